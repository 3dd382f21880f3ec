//! Farms with a manager whose work takes time.

use std::time::Duration;

use exoskel_flow::{FunctionId, Skeleton};
use exoskel_sim::{LargeFarm, LargeFarmReport};

#[track_caller]
fn play(slots: u32, items: u64, grain: Duration) -> LargeFarmReport {
    let mut farm = LargeFarm::new(1, slots, items, grain, LATENCY);
    farm.frame_cost = FRAME_COST;
    finish(&farm)
}

#[track_caller]
fn finish(farm: &LargeFarm) -> LargeFarmReport {
    let report = farm.run().unwrap_or_else(|violation| panic!("{violation}"));
    assert_eq!(farm.run().as_ref(), Ok(&report), "two runs differ");
    report
}

const LATENCY: Duration = Duration::from_micros(100);
const FRAME_COST: Duration = Duration::from_micros(10);

/// A stage in a farm and a serial one behind it; if so, another farm after that.
fn pipeline(goes_on: bool, slots: u32, items: u64, grain: Duration, serial: Duration) -> LargeFarm {
    let stage = |number| Skeleton::Seq(FunctionId(number));
    let mut stages = vec![Skeleton::Farm(Box::new(stage(0))), stage(1)];
    if goes_on {
        stages.push(Skeleton::Farm(Box::new(stage(2))));
    }
    let mut farm = LargeFarm::new(1, slots, items, grain, LATENCY);
    farm.skeleton = Skeleton::Pipeline(stages);
    farm.serial = serial;
    farm.frame_cost = FRAME_COST;
    farm
}

/// Aim: where the manager has time enough, all slots work; where it has not, it is what bounds them. Method: a frame
/// costs it 10 microseconds, so 500 slots are fed from items of 5 ms on.
#[test]
fn the_manager_is_the_limit_where_it_must_be() {
    let long = play(500, 20_000, Duration::from_millis(50));
    assert!(long.speed_up() > 450.0 && long.load() < 0.2, "{long:?}");
    let short = play(500, 50_000, Duration::from_millis(2));
    assert!(short.load() > 0.95, "{short:?}");
    assert!(short.speed_up() < 250.0, "{short:?}");
}

/// Aim: what bounds a pipeline is what must. Method: with long items all slots work; with short ones the manager does, for
/// frames of both stages; a slow serial function lets through what it can.
#[test]
fn a_pipeline_is_bounded_by_slots_manager_or_serial_function() {
    let (millisecond, microsecond) = (Duration::from_millis(1), Duration::from_micros(1));
    let slots = finish(&pipeline(false, 200, 8_000, 50 * millisecond, microsecond));
    assert!(slots.speed_up() > 180.0 && slots.load() < 0.5, "{slots:?}");
    let manager = finish(&pipeline(false, 200, 10_000, millisecond, microsecond));
    assert!(manager.load() > 0.95, "{manager:?}");
    assert!(manager.speed_up() < 150.0, "{manager:?}");
    let slow = 100 * microsecond;
    let serial = finish(&pipeline(false, 200, 8_000, 5 * millisecond, slow));
    assert!(serial.makespan >= slow * 8_000, "{serial:?}");
    assert!(serial.makespan < slow * 10_000, "{serial:?}");
}

/// Aim: a serial function with others behind it goes from slot to slot, so each frame costs it a round trip, however many slots there are.
/// Method: twice the slots, the same time.
#[test]
fn a_serial_function_that_moves_is_bounded_by_round_trips() {
    let grain = Duration::from_millis(10);
    let run = |slots| {
        finish(&pipeline(
            true,
            slots,
            4_000,
            grain,
            Duration::from_micros(1),
        ))
    };
    let (some, more) = (run(200), run(400));
    for report in [&some, &more] {
        assert!(report.released > 3_000, "{report:?}");
        assert!(report.makespan > LATENCY * 2 * 3_000, "{report:?}");
        assert!(report.load() < 0.5, "{report:?}");
    }
    assert!(more.makespan * 10 > some.makespan * 9, "{some:?} {more:?}");
}
