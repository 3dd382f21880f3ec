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

/// A serial stage and a farm behind it.
fn serial_first(slots: u32, items: u64, grain: Duration, serial: Duration) -> LargeFarm {
    let stage = |number| Skeleton::Seq(FunctionId(number));
    let mut farm = LargeFarm::new(1, slots, items, grain, LATENCY);
    farm.skeleton = Skeleton::Pipeline(vec![stage(0), Skeleton::Farm(Box::new(stage(1)))]);
    farm.serial = serial;
    farm.frame_cost = FRAME_COST;
    farm.config.tickets_max = 32_768;
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

/// Aim: a serial function with others behind it goes from slot to slot, and all slots have work until it comes round again, however far away
/// they are. Method: as much work for few slots and many, near and far. (A lease waits for the item that runs where it comes to, and the first frames are small.)
#[test]
fn a_serial_function_that_moves_keeps_all_slots_at_work() {
    let (millisecond, microsecond) = (Duration::from_millis(1), Duration::from_micros(1));
    let mut many = pipeline(true, 400, 20_000, 10 * millisecond, microsecond);
    many.config.tickets_max = 32_768;
    let many = finish(&many);
    assert!(many.speed_up() > 300.0 && many.load() < 0.7, "{many:?}");
    for (grain, latency, least) in [
        (10 * millisecond, 20 * millisecond, 3.0),
        (millisecond, 20 * millisecond, 2.5),
        (10 * millisecond, millisecond, 3.0),
    ] {
        let mut few = serial_first(4, 8_000, grain, microsecond);
        few.latency = latency;
        let few = finish(&few);
        assert!(few.speed_up() > least, "{grain:?}, {latency:?}: {few:?}");
    }
}

/// Aim: slots elsewhere help those that are near and don't hinder them. Method: four slots, none to three of them 20 ms away; and a serial function
/// that four near ones keep busy.
#[test]
fn slots_elsewhere_help() {
    let (millisecond, microsecond) = (Duration::from_millis(1), Duration::from_micros(1));
    let run = |slots, elsewhere, serial| {
        let mut farm = serial_first(slots, 4_000, 10 * millisecond, serial);
        farm.elsewhere = (elsewhere, 20 * millisecond);
        finish(&farm).speed_up()
    };
    let near: Vec<f64> = (1..=4).map(|slots| run(slots, 0, microsecond)).collect();
    for elsewhere in 1..4 {
        let mixed = run(4, elsewhere, microsecond);
        let alone = near[3 - elsewhere as usize];
        assert!(
            mixed > alone + 0.25 * f64::from(elsewhere),
            "{elsewhere}: {mixed}, {near:?}"
        );
    }
    let busy = 4 * millisecond;
    let (alone, mixed) = (run(4, 0, busy), run(5, 1, busy));
    assert!(mixed > 0.9 * alone, "{mixed}, {alone}");
}

/// Aim: short items are not bound by dispatching, long ones leave no slot waiting, and how far away the slots are need not be set: it is found out.
/// Method: two slots near, and two at 20 ms; the manager has time enough.
#[test]
fn slots_are_kept_busy() {
    let (near, far) = (Duration::from_micros(40), Duration::from_millis(20));
    for (latency, grain_micros, items, least) in [
        (near, 1, 100_000, 85),
        (near, 20, 20_000, 90),
        (near, 1000, 4000, 97),
        (near, 40_000, 200, 96),
        (far, 200, 40_000, 90),
        (far, 1000, 6000, 90),
        (far, 40_000, 400, 90),
    ] {
        let grain = Duration::from_micros(grain_micros);
        let mut farm = LargeFarm::new(1, 2, items, grain, latency);
        farm.config.tickets_max = 32_768;
        let report = finish(&farm);
        assert!(
            report.speed_up() >= 2.0 * f64::from(least) / 100.0,
            "{grain:?} at {latency:?}: {report:?}"
        );
    }
}

/// Aim: tokens go from one serial stage to the next in frames, not one by one, and both stages are at work.
#[test]
fn serial_stages_pass_frames() {
    let (items, serial) = (20_000, Duration::from_micros(10));
    let stage = |number| Skeleton::Seq(FunctionId(number));
    let mut farm = LargeFarm::new(1, 2, items, Duration::ZERO, LATENCY);
    farm.skeleton = Skeleton::Pipeline(vec![stage(0), stage(1)]);
    farm.serial = serial;
    farm.config.tickets_max = 32_768;
    let report = finish(&farm);
    assert!(report.frames < items / 5, "{report:?}");
    assert!(report.speed_up() > 1.8, "{report:?}");
}
