//! Items that run for too long, each rule in the smallest situation that shows it.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::time::Duration;

use exoskel_flow::*;

/// What the items of these programs usually take.
const USUAL: Duration = Duration::from_millis(100);

fn at(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

fn actions(scheduler: &mut Scheduler, now: Duration) -> Vec<Action> {
    std::iter::from_fn(|| scheduler.poll_action(now)).collect()
}

/// The frames among the actions, with their slots and first items.
fn frames(actions: &[Action]) -> Vec<(SlotId, FrameId, Index)> {
    let frame = |action: &Action| match *action {
        Action::Dispatch {
            slot, frame, first, ..
        } => Some((slot, frame, first)),
        _ => None,
    };
    actions.iter().filter_map(frame).collect()
}

fn answer(
    scheduler: &mut Scheduler,
    (slot, frame, first): (SlotId, FrameId, Index),
    now: Duration,
) -> Vec<Index> {
    let results = Results {
        frame,
        first,
        reached: 1,
        sizes: &[10],
        ended: &[],
        busy: USUAL,
    };
    let accepted = scheduler.results(slot, results, now).unwrap();
    let outcomes = accepted.map(|accepted| accepted.outcomes.to_vec());
    outcomes.into_iter().flatten().flatten().collect()
}

/// Two slots, of which the first one has run some items. It has begun another one at 1,000 ms, and the other slot is idle.
fn straggling(skeleton: Skeleton) -> (Scheduler, StreamId, (SlotId, FrameId, Index)) {
    let mut scheduler = Scheduler::new(SchedulerConfig {
        stragglers: 200,
        retries: 1,
        ..SchedulerConfig::default()
    });
    scheduler.add_slot(SlotId(0), at(0)).unwrap();
    let program = Program::compile(&skeleton).unwrap();
    let options = StreamOptions::default();
    let stream = scheduler.open_stream(&program, options, at(0)).unwrap();
    for item in 0..5 {
        let now = at(item * 100);
        scheduler.admit(stream, &[10], now).unwrap();
        let sent = frames(&actions(&mut scheduler, now))[0];
        let outcomes = answer(&mut scheduler, sent, now + USUAL);
        assert_eq!(outcomes, [item]);
    }
    scheduler.admit(stream, &[10], at(1000)).unwrap();
    let sent = frames(&actions(&mut scheduler, at(1000)))[0];
    scheduler.add_slot(SlotId(1), at(1000)).unwrap();
    assert_eq!(frames(&actions(&mut scheduler, at(1190))), []);
    (scheduler, stream, sent)
}

fn farm() -> Skeleton {
    Skeleton::Farm(Box::new(Skeleton::Seq(FunctionId(0))))
}

/// The second copy, once it is due.
fn copy(scheduler: &mut Scheduler) -> (SlotId, FrameId, Index) {
    let due = scheduler.next_timeout().unwrap();
    assert!((at(1200)..at(1230)).contains(&due), "{due:?}");
    let sent = frames(&actions(scheduler, due));
    assert_eq!((sent.len(), sent[0].0, sent[0].2), (1, SlotId(1), 5));
    sent[0]
}

#[test]
fn the_first_answer_counts_and_the_other_slot_is_told() {
    for second_wins in [false, true] {
        let (mut scheduler, _, first) = straggling(farm());
        let second = copy(&mut scheduler);
        let (winner, late) = match second_wins {
            true => (second, first),
            false => (first, second),
        };
        assert_eq!(answer(&mut scheduler, winner, at(1300)), [5]);
        let (slot, frame, index) = late;
        let told = Action::Interrupt { slot, frame, index };
        assert_eq!(actions(&mut scheduler, at(1300)), [told]);
        assert_eq!(answer(&mut scheduler, late, at(1400)), []);
        let slow = scheduler.slot_statistics(SlotId(0)).unwrap();
        assert_eq!((slow.stragglers, slow.outstanding), (1, 0));
        assert_eq!(scheduler.receivable(late.0), 0);
    }
}

#[test]
fn a_large_result_that_is_late_is_dropped_where_it_waits() {
    let (mut scheduler, stream, first) = straggling(farm());
    let second = copy(&mut scheduler);
    let (slot, frame, index) = first;
    let large = 1 << 20;
    scheduler
        .announced(second.0, second.1, 5..5 + 1, large, at(1300))
        .unwrap();
    let told = actions(&mut scheduler, at(1300));
    assert!(told.contains(&Action::Interrupt { slot, frame, index }));
    scheduler
        .announced(slot, frame, index..index + 1, large, at(1400))
        .unwrap();
    // It may have been too late to end it: the slot is told again.
    let again = actions(&mut scheduler, at(1400));
    assert_eq!(again, [Action::Interrupt { slot, frame, index }]);
    assert_eq!(scheduler.result_bytes(stream).1, large);
    assert_eq!(scheduler.receivable(slot), 0);
}

/// Aim: an item that goes on elsewhere is not charged with the loss of one of its slots, though one loss is all that it may have.
#[test]
fn a_lost_copy_charges_nobody() {
    for lost in [0, 1] {
        let (mut scheduler, _, first) = straggling(farm());
        let second = copy(&mut scheduler);
        let departure = Departure::Lost;
        scheduler
            .remove_slot(SlotId(lost), departure, at(1250))
            .unwrap();
        assert_eq!(actions(&mut scheduler, at(1250)), []);
        let left = if lost == 0 { second } else { first };
        assert_eq!(answer(&mut scheduler, left, at(1300)), [5]);
    }
}

/// Aim: an item that takes each of its slots down is charged for all of them when none is left, and gets no further copy meanwhile, which would
/// only take another slot down. Method: as above, but the other copy is lost as well, while a third slot is idle.
#[test]
fn an_item_without_a_copy_left_is_charged() {
    for first_lost in [0, 1] {
        let (mut scheduler, _, _) = straggling(farm());
        copy(&mut scheduler);
        let lost = Departure::Lost;
        let lose = |scheduler: &mut Scheduler, slot, now| {
            scheduler.remove_slot(SlotId(slot), lost, now).unwrap();
        };
        scheduler.add_slot(SlotId(2), at(1240)).unwrap();
        lose(&mut scheduler, first_lost, at(1250));
        for millis in [1250, 2000, 5000] {
            assert_eq!(actions(&mut scheduler, at(millis)), [], "at {millis}");
        }
        lose(&mut scheduler, 1 - first_lost, at(5000));
        let told = actions(&mut scheduler, at(5000));
        let failed = |action: &Action| match *action {
            Action::Failed { index, failure, .. } => Some((index, failure)),
            _ => None,
        };
        let failed: Vec<_> = told.iter().filter_map(failed).collect();
        assert_eq!(failed, [(5, Failure::WorkersLost { count: 2 })], "{told:?}");
    }
}

#[test]
fn what_a_slot_has_that_is_late_charges_nobody() {
    let (mut scheduler, stream, first) = straggling(farm());
    let second = copy(&mut scheduler);
    assert_eq!(answer(&mut scheduler, second, at(1300)), [5]);
    let departure = Departure::Lost;
    let did = scheduler.remove_slot(first.0, departure, at(1350)).unwrap();
    assert_eq!(did.put_back, 0);
    assert_eq!(scheduler.progress(stream).unwrap().finished, 6);
}

#[test]
fn a_serial_function_has_no_second_copy() {
    let (mut scheduler, ..) = straggling(Skeleton::Seq(FunctionId(0)));
    for now in [1300, 2000, 10_000] {
        assert_eq!(frames(&actions(&mut scheduler, at(now))), []);
    }
}
