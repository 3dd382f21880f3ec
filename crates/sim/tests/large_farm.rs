//! Farms with a manager whose work takes time.

use std::time::Duration;

use exoskel_flow::{FunctionId, Skeleton};
use exoskel_sim::{LargeFarm, LargeFarmReport, Spread};

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

/// Aim: what is asked back has not begun, also where answers wait for the manager longer than items take. Method: a manager that is at its end,
/// in the proportions of 10,000 slots and items of 10 ms. Without regard to how late answers are it asks for each fourth item in vain.
#[test]
fn few_items_are_asked_back_in_vain() {
    let (millisecond, microsecond) = (Duration::from_millis(1), Duration::from_micros(1));
    let farm = LargeFarm::new(1, 1000, 30_000, 10 * millisecond, LATENCY);
    let behind = pipeline(false, 1000, 30_000, 10 * millisecond, 10 * microsecond);
    let both = pipeline(true, 1000, 20_000, 10 * millisecond, 10 * microsecond);
    for mut farm in [farm, behind, both] {
        (farm.frame_cost, farm.item_cost) = (93 * microsecond, 2 * microsecond);
        let report = finish(&farm);
        let in_vain = report.in_vain(farm.items);
        assert!(in_vain < 0.05, "{in_vain}: {report:?}");
    }
}

/// The stages that stand in the text: `f` in a farm, `s` serial.
fn stages(text: &str) -> Skeleton {
    let stage = |(number, kind)| {
        let function = Skeleton::Seq(FunctionId(number));
        match kind {
            's' => function,
            _ => Skeleton::Farm(Box::new(function)),
        }
    };
    Skeleton::Pipeline((0..).zip(text.chars()).map(stage).collect())
}

/// Aim: however long single items take, neither a serial function nor the slots wait for them. Method: exponential times, in programs whose slots
/// and serial functions have just as much to do, or the slots more. While each lease went with its items, these got 0.62 to 0.69 of what bounds them.
#[test]
fn varying_items_keep_a_pipeline_near_its_bound() {
    for (program, slots, grain_micros) in [
        ("sf", 4, 3000),
        ("sf", 8, 10_000),
        ("sfs", 4, 2000),
        ("fsf", 8, 3500),
        ("fsfsf", 8, 2000),
    ] {
        let grain = Duration::from_micros(grain_micros);
        let mut farm = LargeFarm::new(1, slots, 5000, grain, LATENCY);
        farm.skeleton = stages(program);
        farm.serial = Duration::from_millis(1);
        farm.spread = Spread::Exponential;
        farm.frame_cost = FRAME_COST;
        let report = finish(&farm);
        assert!(report.of_bound() >= 0.96, "{program}: {report:?}");
    }
}

/// Aim: few items don't end late because frames of a serial function were long, or because they were short. Method: what was the worst case of long
/// frames (20 % over the short ones), and one where short frames take twice as long as long ones.
#[test]
fn short_streams_end_in_time() {
    let (millisecond, microsecond) = (Duration::from_millis(1), Duration::from_micros(1));
    let run = |items, grain, latency| {
        let mut farm = LargeFarm::new(1, 16, items, grain, latency);
        (farm.skeleton, farm.serial) = (stages("sf"), microsecond);
        farm.frame_cost = FRAME_COST;
        finish(&farm)
    };
    let near = run(1000, millisecond, LATENCY);
    assert!(near.of_bound() > 0.9, "{near:?}");
    let far = run(200, 10 * millisecond, 20 * millisecond);
    assert!(far.makespan < 600 * millisecond, "{far:?}");
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

/// Aim: items that are slow where they are don't make a run slow. Method: one item in 100 takes 50 times as long at the first slot that begins
/// it; the same run without such items, and without second copies.
#[test]
fn stragglers_run_at_a_second_slot() {
    for (slots, items) in [(8, 1000), (50, 5_000), (500, 20_000)] {
        let mut farm = LargeFarm::new(3, slots, items, Duration::from_millis(100), LATENCY);
        farm.frame_cost = FRAME_COST;
        let none = finish(&farm).makespan;
        farm.straggler_one_in = 100;
        let alone = finish(&farm).makespan;
        farm.config.stragglers = 200;
        let copied = finish(&farm);
        assert!(alone > none.mul_f64(1.7), "{alone:?} {none:?}");
        assert!(copied.makespan < none.mul_f64(1.1), "{copied:?} {none:?}");
        assert!(copied.second_copies <= items / 100 * 3 / 2, "{copied:?}");
    }
}

/// Aim: where no slot is slow, copies cost next to nothing, whatever times items take. Method: exponential times, of which each seventh is more
/// than twice the mean.
#[test]
fn copies_in_vain_cost_little() {
    let mut farm = LargeFarm::new(4, 50, 5_000, Duration::from_millis(100), LATENCY);
    farm.spread = Spread::Exponential;
    let none = finish(&farm);
    farm.config.stragglers = 200;
    let copied = finish(&farm);
    let most = none.makespan.mul_f64(1.02);
    assert!(copied.makespan < most, "{copied:?} {none:?}");
    assert!(copied.second_copies > 0, "{copied:?}");
}
