//! Farms with a manager whose work takes time.

use std::time::Duration;

use exoskel_sim::{LargeFarm, LargeFarmReport};

#[track_caller]
fn play(slots: u32, items: u64, grain: Duration) -> LargeFarmReport {
    let mut farm = LargeFarm::new(1, slots, items, grain, Duration::from_micros(100));
    farm.frame_cost = Duration::from_micros(10);
    let report = farm.run().unwrap_or_else(|violation| panic!("{violation}"));
    assert_eq!(farm.run().as_ref(), Ok(&report), "two runs differ");
    report
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
