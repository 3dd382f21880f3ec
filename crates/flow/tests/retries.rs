//! Items that run again: elsewhere if that is possible, as often as is allowed, and never lost on the way.

use std::time::Duration;

use exoskel_flow::*;

const START: Duration = Duration::ZERO;

fn farm() -> Skeleton {
    Skeleton::Farm(Box::new(Skeleton::Seq(FunctionId(0))))
}

fn scheduler(slots: u32, retries: u32) -> Scheduler {
    let config = SchedulerConfig {
        retries,
        ..SchedulerConfig::default()
    };
    let mut scheduler = Scheduler::new(config);
    (0..slots).for_each(|slot| scheduler.add_slot(SlotId(slot), START).expect("a slot"));
    scheduler
}

fn open(scheduler: &mut Scheduler, skeleton: &Skeleton, items: usize) -> StreamId {
    let program = Program::compile(skeleton).expect("a program");
    let options = StreamOptions {
        tickets: Tickets::Unbounded,
        time_limit: None,
    };
    let stream = scheduler
        .open_stream(&program, options, START)
        .expect("a stream");
    scheduler
        .admit(stream, &vec![1; items], START)
        .expect("tickets");
    stream
}

/// The dispatches: slot, frame, first item.
fn dispatches(scheduler: &mut Scheduler) -> Vec<(SlotId, FrameId, Index)> {
    let actions = std::iter::from_fn(|| scheduler.poll_action(START));
    let sent = actions.filter_map(|action| match action {
        Action::Dispatch {
            slot, frame, first, ..
        } => Some((slot, frame, first)),
        _ => None,
    });
    sent.collect()
}

/// The item of this frame raised what it runs again for. Says whether that is its outcome.
fn raise(scheduler: &mut Scheduler, (slot, frame, first): (SlotId, FrameId, Index)) -> bool {
    let results = Results {
        frame,
        first,
        reached: scheduler.frame(slot, frame).map_or(1, |(.., to)| to + 1),
        sizes: &[10],
        ended: &[first],
        busy: Duration::ZERO,
    };
    let accepted = scheduler.retriable(slot, results, START);
    let accepted = accepted.expect("within its grant").expect("it counts");
    assert!(accepted.tokens.is_empty());
    !accepted.outcomes.is_empty()
}

#[test]
fn an_item_runs_again_at_another_slot_until_it_has_run_often_enough() {
    let mut scheduler = scheduler(2, 3);
    let stream = open(&mut scheduler, &farm(), 1);
    let mut slots = Vec::new();
    for attempt in 1..=3 {
        let sent = dispatches(&mut scheduler);
        let [only] = sent[..] else {
            panic!("{sent:?} in attempt {attempt}")
        };
        slots.push(only.0);
        assert_eq!(raise(&mut scheduler, only), attempt == 3);
    }
    assert!(slots[0] != slots[1] && slots[1] != slots[2], "{slots:?}");
    assert!(scheduler.is_finished(stream, 0));
    assert_eq!(dispatches(&mut scheduler), []);
    assert_eq!(scheduler.taken(stream, 0, 1, START), 1);
    assert_eq!(scheduler.result_bytes(stream), (0, 0));
    assert_eq!(scheduler.item_bytes(stream), 0);
}

#[test]
fn an_item_may_run_hundreds_of_times() {
    let mut scheduler = scheduler(2, 300);
    open(&mut scheduler, &farm(), 1);
    for attempt in 1..=300 {
        let only = dispatches(&mut scheduler)[0];
        assert_eq!(raise(&mut scheduler, only), attempt == 300, "{attempt}");
    }
}

#[test]
fn a_slot_that_is_alone_has_its_items_again() {
    let mut scheduler = scheduler(1, 2);
    open(&mut scheduler, &farm(), 1);
    let first = dispatches(&mut scheduler)[0];
    assert!(!raise(&mut scheduler, first));
    let second = dispatches(&mut scheduler)[0];
    assert!(raise(&mut scheduler, second));
}

/// Aim: what failed at a slot doesn't wait for that slot's return, and goes back to it when all others are gone.
#[test]
fn an_item_comes_back_when_the_others_have_left() {
    let mut scheduler = scheduler(2, 3);
    open(&mut scheduler, &farm(), 2);
    let sent = dispatches(&mut scheduler);
    let here = sent[0];
    let other = sent.iter().find(|other| other.0 != here.0).copied();
    assert!(!raise(&mut scheduler, here));
    let again = dispatches(&mut scheduler);
    assert!(again.iter().all(|frame| frame.0 != here.0), "{again:?}");
    let other = other.expect("two items go to two slots").0;
    scheduler.remove_slot(other, Departure::Orderly, START);
    let back = dispatches(&mut scheduler);
    assert_eq!(back.iter().map(|frame| frame.2).min(), Some(0), "{back:?}");
}

#[test]
fn a_serial_function_has_its_item_next() {
    let mut scheduler = scheduler(2, 3);
    open(&mut scheduler, &Skeleton::Seq(FunctionId(0)), 1);
    let first = dispatches(&mut scheduler)[0];
    assert!(!raise(&mut scheduler, first));
    let second = dispatches(&mut scheduler)[0];
    assert_eq!((second.0, second.2), (first.0, 0));
}

#[test]
fn attempts_count_for_one_segment() {
    let mut scheduler = scheduler(2, 2);
    let skeleton = Skeleton::Pipeline(vec![farm(), Skeleton::Seq(FunctionId(1))]);
    open(&mut scheduler, &skeleton, 1);
    let first = dispatches(&mut scheduler)[0];
    assert!(!raise(&mut scheduler, first));
    let (slot, frame, index) = dispatches(&mut scheduler)[0];
    let results = Results {
        frame,
        first: index,
        reached: 1,
        sizes: &[1],
        ended: &[],
        busy: Duration::ZERO,
    };
    assert!(matches!(
        scheduler.results(slot, results, START),
        Ok(Some(_))
    ));
    let next = dispatches(&mut scheduler)[0];
    assert!(
        !raise(&mut scheduler, next),
        "the first attempt at its segment"
    );
}

#[test]
fn an_item_that_waits_to_run_again_can_be_given_up() {
    let mut scheduler = scheduler(2, 3);
    let stream = open(&mut scheduler, &farm(), 1);
    let first = dispatches(&mut scheduler)[0];
    assert!(!raise(&mut scheduler, first));
    assert_eq!(scheduler.cancel(stream, 0, START), Cancel::Removed);
    assert_eq!(dispatches(&mut scheduler), []);

    let other = open(&mut scheduler, &farm(), 1);
    let first = dispatches(&mut scheduler)[0];
    assert!(!raise(&mut scheduler, first));
    scheduler.close_stream(other, START);
    assert_eq!(dispatches(&mut scheduler), []);
    assert_eq!(scheduler.progress(other), None);
}
