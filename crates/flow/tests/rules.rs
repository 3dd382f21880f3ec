//! The rules of the scheduler one by one, each in the smallest situation that shows it.

mod situation;

use std::time::Duration;

use exoskel_flow::*;

use self::situation::*;

#[test]
fn a_second_frame_waits_behind_the_running_one() {
    let mut scheduler = scheduler(2);
    let stream = open(&mut scheduler, &farm(seq(0)), Tickets::Bounded);
    assert_eq!(scheduler.tickets(stream), 16);
    scheduler.admit(stream, &[1; 16], START).expect("tickets");
    let sent = dispatches(&mut scheduler, START);
    assert_eq!(
        sent.iter()
            .map(|sent| (sent.0.0, sent.3, sent.4))
            .collect::<Vec<_>>(),
        [(0, 0, 1), (1, 1, 1), (0, 2, 1), (1, 3, 1)]
    );
}

#[test]
fn frames_grow_with_what_is_known() {
    let mut scheduler = scheduler(1);
    let stream = open(&mut scheduler, &farm(seq(0)), Tickets::Unbounded);
    scheduler
        .admit(stream, &[1; 100_000], START)
        .expect("tickets");
    let mut largest = 0;
    let mut sizes = Vec::new();
    for step in 1..30 {
        let now = Duration::from_millis(step);
        for (slot, frame, _, first, count) in dispatches(&mut scheduler, now) {
            assert!(count <= 4 * largest.max(1));
            largest = largest.max(count);
            sizes.push(count);
            assert!(answer(&mut scheduler, slot, frame, first, count, now));
        }
    }
    // 10 microseconds an item, 2 milliseconds a frame.
    assert_eq!(largest, 200, "{sizes:?}");
}

#[test]
fn late_and_unknown_answers_change_nothing() {
    let mut scheduler = scheduler(2);
    let stream = open(&mut scheduler, &farm(seq(0)), Tickets::Bounded);
    scheduler.admit(stream, &[1; 2], START).expect("tickets");
    let sent = dispatches(&mut scheduler, START);
    let (slot, frame, _, first, count) = sent[0];
    let other = sent[1].0;
    assert!(!answer(&mut scheduler, other, frame, first, count, START));
    assert!(!answer(
        &mut scheduler,
        SlotId(77),
        frame,
        first,
        count,
        START
    ));
    assert!(!answer(
        &mut scheduler,
        slot,
        FrameId(77),
        first,
        count,
        START
    ));
    assert!(!answer(&mut scheduler, slot, frame, first + 1, 1000, START));
    assert!(!answer(
        &mut scheduler,
        slot,
        frame,
        Index::MAX,
        1000,
        START
    ));
    scheduler.released(slot, frame, Duration::ZERO, START);
    scheduler.recalled(slot, FrameId(77), 0, u32::MAX, START);
    let announced = scheduler.announced(slot, frame, Index::MAX..Index::MAX, u64::MAX, START);
    assert_eq!(announced, Ok(()));
    assert!(answer(&mut scheduler, slot, frame, first, 1000, START));
    assert!(!answer(&mut scheduler, slot, frame, first, count, START));
    assert_eq!(scheduler.progress(stream).expect("open").finished, 1);
    assert_eq!(scheduler.taken(stream, 0, u32::MAX, START), 1);
    assert_eq!(scheduler.taken(stream, 0, u32::MAX, START), 0);
}

#[test]
fn calls_of_the_driver_that_make_no_sense_are_errors() {
    let mut scheduler = scheduler(1);
    let stream = open(&mut scheduler, &farm(seq(0)), Tickets::Bounded);
    let tickets = scheduler.tickets(stream);
    let items = tickets as usize + 1;
    assert_eq!(
        scheduler.admit(stream, &vec![1; items], START),
        Err(FlowError::NoTickets { items, tickets })
    );
    scheduler.end_of_input(stream);
    assert_eq!(
        scheduler.admit(stream, &[], START),
        Err(FlowError::InputEnded(stream))
    );
    assert_eq!(
        scheduler.add_slot(SlotId(0), START),
        Err(FlowError::SlotExists(SlotId(0)))
    );
    scheduler.close_stream(stream, START);
    assert_eq!(
        scheduler.admit(stream, &[1], START),
        Err(FlowError::UnknownStream(stream))
    );
    assert_eq!(scheduler.tickets(stream), 0);
}

#[test]
fn streams_take_turns() {
    let mut scheduler = scheduler(1);
    let streams =
        [0, 1, 2].map(|number| open(&mut scheduler, &farm(seq(number)), Tickets::Unbounded));
    for stream in streams {
        scheduler.admit(stream, &[1; 50], START).expect("tickets");
    }
    let mut sent = dispatches(&mut scheduler, START);
    let mut order = Vec::new();
    while order.len() < 9 {
        let (slot, frame, stream, first, count) = sent.remove(0);
        order.push(stream);
        answer(
            &mut scheduler,
            slot,
            frame,
            first,
            count,
            START + Duration::from_micros(10),
        );
        sent.extend(dispatches(
            &mut scheduler,
            START + Duration::from_micros(10),
        ));
    }
    assert!(
        order
            .chunks(3)
            .all(|turn| streams.iter().all(|stream| turn.contains(stream))),
        "{order:?}"
    );
}

#[test]
fn only_an_item_that_ran_alone_is_charged() {
    let mut scheduler = scheduler(1);
    let stream = open(&mut scheduler, &farm(seq(0)), Tickets::Bounded);
    scheduler.admit(stream, &[1; 2], START).expect("tickets");
    let mut failed = Vec::new();
    for slot in 0..5 {
        // The first slot has both items, the next three have the first one alone, the last has the second one.
        let sent = dispatches(&mut scheduler, START);
        assert_eq!(sent.len(), if slot == 0 { 2 } else { 1 });
        assert_eq!(sent[0].3, u64::from(slot == 4));
        if slot < 4 {
            scheduler.remove_slot(SlotId(slot), Departure::Lost, START);
            scheduler.add_slot(SlotId(slot + 1), START).expect("a slot");
        }
        if slot == 3 {
            failed.push(scheduler.poll_action(START));
        }
    }
    let failure = Failure::WorkersLost { count: 3 };
    assert_eq!(
        failed,
        [Some(Action::Failed {
            stream,
            segment: 0,
            index: 0,
            failure
        })]
    );
}

#[test]
fn a_slot_gets_no_larger_frames_than_it_takes() {
    let mut scheduler = scheduler(1);
    scheduler.limit_frames(SlotId(0), 100);
    let stream = open(&mut scheduler, &farm(seq(0)), Tickets::Bounded);
    scheduler
        .admit(stream, &[30, 30, 30, 30, 30, 300, 30], START)
        .expect("tickets");
    let (mut now, mut counts) = (START, Vec::new());
    let mut sent = dispatches(&mut scheduler, now);
    while !sent.is_empty() {
        let (slot, frame, _, first, count) = sent.remove(0);
        counts.push((first, count));
        now += Duration::from_millis(1);
        answer(&mut scheduler, slot, frame, first, count, now);
        sent.extend(dispatches(&mut scheduler, now));
    }
    assert!(counts.contains(&(5, 1)), "{counts:?}");
    assert!(counts.iter().all(|&(_, count)| count <= 3), "{counts:?}");
}

#[test]
fn a_slot_that_leaves_is_not_suspicious() {
    let mut scheduler = scheduler(1);
    let stream = open(&mut scheduler, &farm(seq(0)), Tickets::Bounded);
    scheduler.admit(stream, &[1; 4], START).expect("tickets");
    assert_eq!(dispatches(&mut scheduler, START).len(), 2);
    scheduler.drain_slot(SlotId(0), START);
    assert_eq!(
        scheduler.stalled(START + Duration::from_secs(3)),
        Some(Duration::from_secs(3))
    );
    assert_eq!(
        scheduler
            .remove_slot(SlotId(0), Departure::Orderly, START)
            .expect("known")
            .put_back,
        2
    );
    scheduler.add_slot(SlotId(1), START).expect("a slot");
    assert_eq!(scheduler.stalled(START), None);
    assert_eq!(dispatches(&mut scheduler, START).len(), 2);
}

#[test]
fn an_idle_slot_gets_half_of_what_waits_elsewhere() {
    let mut scheduler = scheduler(1);
    let stream = open(&mut scheduler, &farm(seq(0)), Tickets::Bounded);
    scheduler.admit(stream, &[1; 2], START).expect("tickets");
    let sent = dispatches(&mut scheduler, START);
    assert_eq!(sent.len(), 2);
    scheduler.add_slot(SlotId(1), START).expect("a slot");
    let (slot, frame) = (SlotId(0), sent[1].1);
    assert_eq!(
        actions(&mut scheduler, START),
        [Action::Recall {
            slot,
            frame,
            count: 1
        }]
    );
    assert_eq!(actions(&mut scheduler, START), [], "asked once");
    scheduler.recalled(slot, frame, 1, 1, START);
    let again = dispatches(&mut scheduler, START);
    assert_eq!(
        again
            .iter()
            .map(|sent| (sent.0, sent.3))
            .collect::<Vec<_>>(),
        [(SlotId(1), 1)]
    );
    // A slot that gives nothing back is not asked again.
    scheduler.cancel(stream, 0, START);
    assert_eq!(actions(&mut scheduler, START + Duration::from_secs(9)), []);
}

/// A slot that is slower than its estimate said is asked when it has been silent for a while, and the time for that
/// is announced.
#[test]
fn silence_is_a_reason_to_recall() {
    let recall_time = Duration::from_secs(1);
    let config = SchedulerConfig {
        recall_time,
        ..SchedulerConfig::default()
    };
    let mut scheduler = Scheduler::new(config);
    scheduler.add_slot(SlotId(0), START).expect("a slot");
    let stream = open(&mut scheduler, &farm(seq(0)), Tickets::Unbounded);
    scheduler.admit(stream, &[1; 3], START).expect("tickets");
    let sent = dispatches(&mut scheduler, START);
    assert_eq!(sent.len(), 2);
    let now = Duration::from_micros(10);
    answer(&mut scheduler, SlotId(0), sent[0].1, 0, 1, now);
    let sent = dispatches(&mut scheduler, now);
    assert_eq!(sent.len(), 1);
    scheduler.add_slot(SlotId(1), now).expect("a slot");
    assert_eq!(actions(&mut scheduler, now), []);
    assert_eq!(scheduler.next_timeout(), Some(now + recall_time));
    assert_eq!(actions(&mut scheduler, now + recall_time / 2), []);
    let recall = Action::Recall {
        slot: SlotId(0),
        frame: sent[0].1,
        count: 1,
    };
    assert_eq!(actions(&mut scheduler, now + recall_time), [recall]);
    assert_eq!(scheduler.next_timeout(), None);
}

#[test]
fn cancelled_items_do_not_run() {
    let mut scheduler = scheduler(1);
    let stream = open(&mut scheduler, &farm(seq(0)), Tickets::Bounded);
    scheduler.admit(stream, &[1; 5], START).expect("tickets");
    let sent = dispatches(&mut scheduler, START);
    assert_eq!(scheduler.cancel(stream, 0, START), Cancel::TooLate);
    assert_eq!(scheduler.cancel(stream, 2, START), Cancel::Removed);
    assert_eq!(scheduler.cancel(stream, 2, START), Cancel::TooLate);
    assert_eq!(scheduler.progress(stream).expect("open").taken, 1);
    answer(&mut scheduler, SlotId(0), sent[0].1, 0, 1, START);
    assert_eq!(dispatches(&mut scheduler, START)[0].3, 3);
}

/// Its token of the first segment is gone, and part of the work is done.
#[test]
fn items_between_two_segments_are_not_cancelled() {
    let mut scheduler = scheduler(1);
    let program = Skeleton::Pipeline(vec![farm(seq(0)), seq(1)]);
    let stream = open(&mut scheduler, &program, Tickets::Bounded);
    scheduler.admit(stream, &[1; 2], START).expect("tickets");
    let sent = dispatches(&mut scheduler, START);
    answer(&mut scheduler, SlotId(0), sent[0].1, 0, 1, START);
    assert_eq!(scheduler.cancel(stream, 0, START), Cancel::TooLate);
    let again = dispatches(&mut scheduler, START);
    assert_eq!((again[0].3, again[0].4), (0, 1));
}

#[test]
fn large_results_wait_for_room_but_never_the_oldest() {
    let mut scheduler = Scheduler::new(SchedulerConfig {
        result_budget_bytes: 1000,
        ..SchedulerConfig::default()
    });
    scheduler.add_slot(SlotId(0), START).expect("a slot");
    let stream = open(&mut scheduler, &farm(seq(0)), Tickets::Bounded);
    scheduler.admit(stream, &[1; 2], START).expect("tickets");
    let sent = dispatches(&mut scheduler, START);
    let slot = SlotId(0);
    let announced = scheduler.announced(slot, sent[1].1, 1..1 + 1, 9000, START);
    assert_eq!(announced, Ok(()));
    assert_eq!(actions(&mut scheduler, START), []);
    let announced = scheduler.announced(slot, sent[0].1, 0..1, 8000, START);
    assert_eq!(announced, Ok(()));
    assert_eq!(
        actions(&mut scheduler, START),
        [Action::Grant {
            slot,
            frame: sent[0].1,
            index: 0
        }]
    );
    let oldest = (slot, sent[0].1, 0);
    assert_eq!(answer_one(&mut scheduler, oldest, 8000), Ok(true));
    assert_eq!(scheduler.result_bytes(stream), (8000, 0));
    assert_eq!(actions(&mut scheduler, START), []);
    assert_eq!(scheduler.taken(stream, 0, 1, START), 1);
    assert_eq!(
        actions(&mut scheduler, START),
        [Action::Grant {
            slot,
            frame: sent[1].1,
            index: 1
        }]
    );
}

#[test]
fn a_closed_stream_is_asked_back() {
    let mut scheduler = scheduler(1);
    let stream = open(&mut scheduler, &farm(seq(0)), Tickets::Bounded);
    scheduler.admit(stream, &[1; 4], START).expect("tickets");
    let sent = dispatches(&mut scheduler, START);
    scheduler.close_stream(stream, START);
    assert_eq!(actions(&mut scheduler, START).len(), 2);
    assert_eq!(
        scheduler
            .slot_statistics(SlotId(0))
            .expect("known")
            .outstanding,
        2
    );
    assert!(!answer(&mut scheduler, SlotId(0), sent[0].1, 0, 1, START));
    scheduler.recalled(SlotId(0), sent[1].1, 1, 1, START);
    assert_eq!(
        scheduler
            .slot_statistics(SlotId(0))
            .expect("known")
            .outstanding,
        0
    );
}

/// Without a budget an item still may have the least grant, once: a token that waits between segments has its part of it.
#[test]
fn a_token_and_the_result_that_replaces_it_share_the_least_grant() {
    let mut scheduler = Scheduler::new(SchedulerConfig {
        result_budget_bytes: 0,
        grant_bytes_min: 100,
        ..SchedulerConfig::default()
    });
    scheduler.add_slot(SlotId(0), START).expect("a slot");
    let program = Skeleton::Pipeline(vec![farm(seq(0)), seq(1)]);
    let stream = open(&mut scheduler, &program, Tickets::Bounded);
    scheduler.admit(stream, &[1], START).expect("a ticket");
    let mut grants = Vec::new();
    for token_bytes in [80, 15] {
        let sent = actions(&mut scheduler, START);
        let [Action::Dispatch { frame, grant, .. }] = sent[..] else {
            panic!("{sent:?}");
        };
        let (held, reserved) = scheduler.result_bytes(stream);
        assert!(held + reserved <= 100, "{held} held, {reserved} reserved");
        grants.push(grant);
        let answered = answer_one(&mut scheduler, (SlotId(0), frame, 0), token_bytes);
        assert_eq!(answered, Ok(true));
    }
    // An eighth of it is the last result's in any case.
    assert_eq!(grants, [88, 20]);
}

/// Exceptions of an inner segment are outcomes: they hold nobody up, and the serial stage behind gets the others.
#[test]
fn an_item_that_ends_early_holds_nothing_up() {
    let mut scheduler = scheduler(1);
    let program = Skeleton::Pipeline(vec![farm(seq(0)), seq(1), farm(seq(2))]);
    let stream = open(&mut scheduler, &program, Tickets::Unbounded);
    scheduler.admit(stream, &[1; 6], START).expect("tickets");
    let mut finished = Vec::new();
    let mut passed = Vec::new();
    let mut sent = leased(&mut scheduler, START);
    while !sent.is_empty() {
        let (slot, frame, first, count, lease) = sent.remove(0);
        let (_, segment, to) = scheduler.frame(slot, frame).expect("it has the frame");
        if lease == Lease::PassedOn {
            scheduler.released(slot, frame, Duration::ZERO, START);
        }
        let items = first..first + u64::from(count);
        let ended: Vec<Index> = items.clone().filter(|index| index % 3 == 0).collect();
        let results = Results {
            frame,
            first,
            reached: to + 1,
            sizes: &vec![10; count as usize],
            ended: &ended,
            busy: Duration::from_micros(1),
        };
        let accepted = scheduler.results(slot, results, START);
        let accepted = accepted.expect("within its grant").expect("in time");
        finished.extend(accepted.outcomes.iter().cloned().flatten());
        if segment == 1 {
            passed.extend(items);
        }
        sent.extend(leased(&mut scheduler, START));
    }
    finished.sort_unstable();
    passed.sort_unstable();
    assert_eq!(finished, [0, 1, 2, 3, 4, 5], "each once");
    assert_eq!(passed, [1, 2, 4, 5], "0 and 3 ended before");
    assert_eq!(scheduler.taken(stream, 0, 6, START), 6);
    assert_eq!(scheduler.result_bytes(stream), (0, 0));
}

/// What can't be sent is its own outcome: it takes a ticket and no slot.
#[test]
fn an_item_that_is_its_own_outcome_goes_to_no_slot() {
    let mut scheduler = scheduler(1);
    let stream = open(&mut scheduler, &seq(0), Tickets::Bounded);
    scheduler.admit(stream, &[7; 3], START).expect("tickets");
    assert!(scheduler.finish(stream, 0, START));
    assert!(!scheduler.finish(stream, 0, START), "it has its outcome");
    assert!(scheduler.is_finished(stream, 0));
    assert_eq!(scheduler.item_bytes(stream), 21);
    let sent = dispatches(&mut scheduler, START);
    assert!(sent.iter().all(|sent| sent.3 > 0), "{sent:?}");
    let (_, frame, _, first, _) = sent[0];
    assert!(!scheduler.finish(stream, first, START), "it is at a slot");
    assert!(answer(&mut scheduler, SlotId(0), frame, first, 1, START));
    assert_eq!(scheduler.taken(stream, 0, 2, START), 2);
    assert_eq!(scheduler.item_bytes(stream), 7);
    assert_eq!(scheduler.result_bytes(stream).0, 0);
}

/// A session that the peer broke says nothing about the items that were there.
#[test]
fn a_broken_session_is_nobodys_fault() {
    let mut scheduler = scheduler(1);
    let stream = open(&mut scheduler, &farm(seq(0)), Tickets::Bounded);
    scheduler.admit(stream, &[1], START).expect("a ticket");
    for slot in 0..10 {
        let sent = dispatches(&mut scheduler, START);
        assert_eq!((sent.len(), sent[0].3), (1, 0));
        let left = scheduler.remove_slot(SlotId(slot), Departure::Broken, START);
        assert_eq!(left.expect("known").put_back, 1);
        let next = SlotId(slot + 1);
        scheduler.add_slot(next, START).expect("a slot");
    }
    let sent = dispatches(&mut scheduler, START);
    assert_eq!(sent.len(), 1, "no failure: {sent:?}");
}

/// No item gets farther than its frame goes, or back to where it began.
#[test]
fn items_get_no_farther_than_their_frame_goes() {
    let mut scheduler = scheduler(1);
    let program = Skeleton::Pipeline(vec![seq(0), farm(seq(1)), seq(2)]);
    let stream = open(&mut scheduler, &program, Tickets::Bounded);
    scheduler.admit(stream, &[1], START).expect("a ticket");
    let (slot, frame, ..) = dispatches(&mut scheduler, START)[0];
    for got in [0, 3, u16::MAX] {
        let results = Results {
            frame,
            first: 0,
            reached: got,
            sizes: &[1],
            ended: &[],
            busy: Duration::ZERO,
        };
        let (least, most) = (1, 2);
        assert_eq!(
            scheduler.results(slot, results, START),
            Err(Breach::Reached { got, least, most })
        );
    }
    assert!(answer(&mut scheduler, slot, frame, 0, 1, START));
    assert_eq!(dispatches(&mut scheduler, START)[0].3, 0);
}
