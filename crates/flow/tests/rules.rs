//! The rules of the scheduler one by one, each in the smallest situation that shows it.

use std::time::Duration;

use exoskel_flow::*;

const START: Duration = Duration::ZERO;

fn seq(number: u32) -> Skeleton {
    Skeleton::Seq(FunctionId(number))
}

fn farm(inner: Skeleton) -> Skeleton {
    Skeleton::Farm(Box::new(inner))
}

fn open(scheduler: &mut Scheduler, skeleton: &Skeleton, tickets: Tickets) -> StreamId {
    let program = Program::compile(skeleton).expect("a program");
    scheduler
        .open_stream(
            &program,
            StreamOptions {
                tickets,
                time_limit: None,
            },
            START,
        )
        .expect("a stream")
}

fn scheduler(slots: u32) -> Scheduler {
    let mut scheduler = Scheduler::new(SchedulerConfig::default());
    (0..slots).for_each(|slot| scheduler.add_slot(SlotId(slot), START).expect("a slot"));
    scheduler
}

fn actions(scheduler: &mut Scheduler, now: Duration) -> Vec<Action> {
    std::iter::from_fn(|| scheduler.poll_action(now)).collect()
}

/// The dispatches among the actions: slot, frame, stream, first, count.
fn dispatches(
    scheduler: &mut Scheduler,
    now: Duration,
) -> Vec<(SlotId, FrameId, StreamId, Index, u32)> {
    let dispatch = |action| match action {
        Action::Dispatch {
            slot,
            frame,
            stream,
            first,
            count,
            ..
        } => Some((slot, frame, stream, first, count)),
        _ => None,
    };
    actions(scheduler, now)
        .into_iter()
        .filter_map(dispatch)
        .collect()
}

/// How far a frame's items get: to the segment behind the last one that it runs through.
fn reached(scheduler: &Scheduler, slot: SlotId, frame: FrameId) -> u16 {
    scheduler.frame(slot, frame).map_or(1, |(.., to)| to + 1)
}

fn answer(
    scheduler: &mut Scheduler,
    slot: SlotId,
    frame: FrameId,
    first: Index,
    count: u32,
    now: Duration,
) -> bool {
    let results = Results {
        frame,
        first,
        reached: reached(scheduler, slot, frame),
        sizes: &vec![10; count as usize],
        ended: &[],
        busy: Duration::from_micros(10) * count,
    };
    let accepted = scheduler.results(slot, results, now);
    accepted.expect("within its grant").is_some()
}

/// The answer of one slot to one item of a frame that it has.
fn answer_one(
    scheduler: &mut Scheduler,
    (slot, frame, index): (SlotId, FrameId, Index),
    bytes: u64,
) -> Result<bool, Breach> {
    let results = Results {
        frame,
        first: index,
        reached: reached(scheduler, slot, frame),
        sizes: &[bytes],
        ended: &[],
        busy: Duration::ZERO,
    };
    let accepted = scheduler.results(slot, results, START)?;
    Ok(accepted.is_some())
}

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
    let announced = scheduler.announced(slot, frame, Index::MAX, u64::MAX, START);
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

/// Suspects of a serial stage go before its ordinary items, or its lease would never be free for them.
#[test]
fn suspects_of_a_serial_stage_go_first() {
    let mut scheduler = scheduler(2);
    let stream = open(&mut scheduler, &seq(0), Tickets::Unbounded);
    scheduler.admit(stream, &[1; 1000], START).expect("tickets");
    let sent = dispatches(&mut scheduler, START);
    assert!(
        sent.len() == 2 && sent[0].0 == sent[1].0,
        "one slot has the lease: {sent:?}"
    );
    scheduler.remove_slot(sent[0].0, Departure::Lost, START);
    for expected in [0, 1] {
        let sent = dispatches(&mut scheduler, START);
        assert_eq!(
            sent.iter().map(|sent| (sent.3, sent.4)).collect::<Vec<_>>(),
            [(expected, 1)]
        );
        answer(&mut scheduler, sent[0].0, sent[0].1, expected, 1, START);
    }
    assert_eq!(dispatches(&mut scheduler, START)[0].3, 2);
}

/// The same when the slot that is kept for them is not free yet and another one could take ordinary items.
#[test]
fn the_lease_waits_for_suspects() {
    let mut scheduler = scheduler(3);
    let serial = open(&mut scheduler, &seq(0), Tickets::Unbounded);
    scheduler.admit(serial, &[1; 9], START).expect("tickets");
    assert!(
        dispatches(&mut scheduler, START)
            .iter()
            .all(|sent| sent.0 == SlotId(0))
    );
    let farmed = open(&mut scheduler, &farm(seq(1)), Tickets::Unbounded);
    scheduler.admit(farmed, &[1; 4], START).expect("tickets");
    let sent = dispatches(&mut scheduler, START);
    assert_eq!(
        sent.iter().map(|sent| sent.0.0).collect::<Vec<_>>(),
        [1, 2, 1, 2]
    );
    scheduler.remove_slot(SlotId(0), Departure::Lost, START);
    // Both others are as busy; the first of them is kept for the suspects.
    assert_eq!(dispatches(&mut scheduler, START), []);
    for (slot, frame, _, first, count) in sent.into_iter().filter(|sent| sent.0 == SlotId(2)) {
        assert!(answer(&mut scheduler, slot, frame, first, count, START));
        let next = dispatches(&mut scheduler, START);
        assert!(
            next.iter().all(|sent| sent.3 < 2),
            "suspects are items 0 and 1: {next:?}"
        );
    }
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
    let announced = scheduler.announced(slot, sent[1].1, 1, 9000, START);
    assert_eq!(announced, Ok(()));
    assert_eq!(actions(&mut scheduler, START), []);
    let announced = scheduler.announced(slot, sent[0].1, 0, 8000, START);
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

/// What a slot has to do with the frames it gets: slot, frame, first, count, lease.
type Leased = (SlotId, FrameId, Index, u32, Lease);

fn leased(scheduler: &mut Scheduler, now: Duration) -> Vec<Leased> {
    let of = |action| match action {
        Action::Dispatch {
            slot,
            frame,
            first,
            count,
            lease,
            ..
        } => Some((slot, frame, first, count, lease)),
        _ => None,
    };
    actions(scheduler, now).into_iter().filter_map(of).collect()
}

/// Two slots through a serial stage of `serial` an item and a farmed one of `rest`, a millisecond away, until
/// everything is known; then what was sent last, and the time.
fn settled(serial: Duration, rest: Duration) -> (Scheduler, Vec<Leased>, Duration) {
    let near = Duration::from_millis(1);
    settled_at([near, near], serial, rest)
}

/// The same, each slot at its own distance.
fn settled_at(
    away: [Duration; 2],
    serial: Duration,
    rest: Duration,
) -> (Scheduler, Vec<Leased>, Duration) {
    let mut scheduler = scheduler(2);
    let program = Skeleton::Pipeline(vec![seq(0), farm(seq(1))]);
    let stream = open(&mut scheduler, &program, Tickets::Unbounded);
    scheduler
        .admit(stream, &[1; 100_000], START)
        .expect("tickets");
    let mut now = START;
    let mut sent = leased(&mut scheduler, now);
    for _ in 0..24 {
        let (slot, frame, first, count, lease) = sent.remove(0);
        now += away[slot.0 as usize];
        let (_, from, to) = scheduler.frame(slot, frame).expect("it has the frame");
        let mut busy = if to == 1 { rest * count } else { START };
        if lease == Lease::PassedOn {
            now += serial * count;
            scheduler.released(slot, frame, serial * count, now);
            sent.extend(leased(&mut scheduler, now));
        } else if from == 0 {
            busy += serial * count;
        }
        now += busy;
        let results = Results {
            frame,
            first,
            reached: reached(&scheduler, slot, frame),
            sizes: &vec![0; count as usize],
            ended: &[],
            busy,
        };
        let accepted = scheduler.results(slot, results, now);
        assert!(accepted.is_ok_and(|accepted| accepted.is_some()));
        sent.extend(leased(&mut scheduler, now));
    }
    (scheduler, sent, now)
}

#[test]
fn a_lease_is_passed_on_when_much_can_go_on_meanwhile() {
    let (mut scheduler, sent, now) = settled(Duration::from_micros(10), Duration::from_micros(100));
    let (slot, frame, first, count, lease) = sent[0];
    assert_eq!((lease, sent.len()), (Lease::PassedOn, 1), "{sent:?}");
    scheduler.released(slot, frame, Duration::from_micros(10) * count, now);
    let next = leased(&mut scheduler, now);
    assert_eq!(next.len(), 1, "{next:?}");
    assert_ne!(next[0].0, slot, "the other one is idle");
    assert_eq!(next[0].2, first + u64::from(count), "in the order of items");
}

#[test]
fn a_lease_stays_when_little_can_go_on_meanwhile() {
    let (mut scheduler, sent, now) = settled(Duration::from_micros(10), Duration::from_micros(1));
    let home = sent[0].0;
    assert!(
        sent.len() > 1,
        "frames wait behind the running one: {sent:?}"
    );
    assert!(
        sent.iter()
            .all(|sent| (sent.0, sent.4) == (home, Lease::Kept)),
        "{sent:?}"
    );
    // The other slot is idle all the time, and gets the lease only when this one is lost.
    assert_eq!(actions(&mut scheduler, now), []);
    scheduler.remove_slot(home, Departure::Orderly, now);
    let next = leased(&mut scheduler, now);
    assert!(!next.is_empty() && next.iter().all(|next| next.0 != home));
    assert_eq!(next[0].2, sent[0].2, "what was put back goes first");
}

/// An item of the farmed stage takes long against all experience, at the slot that keeps the lease.
#[test]
fn a_lease_does_not_wait_for_a_slow_item_behind_it() {
    let (mut scheduler, mut sent, now) =
        settled(Duration::from_micros(10), Duration::from_micros(1));
    let home = sent[0].0;
    let wake = scheduler.next_timeout().expect("the slot is watched");
    assert!(wake > now);
    assert_eq!(actions(&mut scheduler, wake - Duration::from_nanos(1)), []);
    let mut asked = Vec::new();
    for action in actions(&mut scheduler, wake) {
        match action {
            Action::Recall { frame, count, .. } => asked.push((frame, count)),
            // By its estimate the frame that runs must be through soon.
            Action::Dispatch {
                slot,
                frame,
                first,
                count,
                lease,
                ..
            } => sent.push((slot, frame, first, count, lease)),
            other => panic!("{other:?}"),
        }
    }
    assert!(sent.iter().all(|sent| sent.0 == home));
    let all = sent.iter().rev().map(|sent| (sent.1, sent.3));
    assert_eq!(asked, all.collect::<Vec<_>>(), "from the last one on");
    for (slot, frame, first, count, _) in sent.iter().skip(1).rev() {
        scheduler.recalled(*slot, *frame, *first, *count, wake);
    }
    let (_, frame, first, count, _) = sent[0];
    scheduler.recalled(home, frame, first + 1, count - 1, wake);
    assert_eq!(
        leased(&mut scheduler, wake),
        [],
        "the running item may be in the serial function"
    );
    scheduler.released(home, frame, Duration::ZERO, wake);
    let next = leased(&mut scheduler, wake);
    assert_ne!(next[0].0, home);
    assert_eq!(next[0].2, first + 1);
    assert!(answer(
        &mut scheduler,
        home,
        frame,
        first,
        1,
        wake + Duration::from_secs(9)
    ));
}

/// A slot so far away that nothing is gained by moving the lease there: it gets the lease all the same when the one that
/// had it is held up, whatever that slot had passed on or given back before.
#[test]
fn a_lease_goes_far_rather_than_nowhere() {
    let away = [Duration::from_millis(1), Duration::from_millis(400)];
    let (mut scheduler, mut sent, mut now) =
        settled_at(away, Duration::from_micros(10), Duration::from_micros(30));
    let near = SlotId(0);
    assert!(sent.iter().all(|sent| sent.0 == near), "{sent:?}");
    // An item at the near slot takes for ever. It answers what needs no item to end.
    let stuck = sent[0].1;
    let mut ends = std::collections::BTreeMap::new();
    for _ in 0..100 {
        let passing = std::mem::take(&mut sent);
        for (slot, frame, first, count, lease) in passing {
            ends.insert(frame, first + u64::from(count));
            if slot != near {
                return;
            }
            if lease == Lease::PassedOn && frame == stuck {
                scheduler.released(slot, frame, Duration::from_micros(10) * count, now);
            }
        }
        for action in actions(&mut scheduler, now) {
            match action {
                Action::Dispatch {
                    slot,
                    frame,
                    first,
                    count,
                    lease,
                    ..
                } => sent.push((slot, frame, first, count, lease)),
                Action::Recall { slot, frame, count } if frame != stuck => {
                    let first = ends[&frame] - u64::from(count);
                    scheduler.recalled(slot, frame, first, count, now);
                }
                other => panic!("{other:?}"),
            }
        }
        if sent.is_empty() {
            now = scheduler
                .next_timeout()
                .expect("somebody has to look again");
        }
    }
    panic!("the far slot never got anything");
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

/// What has passed a serial function and waits for the functions behind it is asked back for an idle slot, and comes as tokens
/// for those: nothing passes the serial function twice.
#[test]
fn what_waits_halfway_goes_on_elsewhere() {
    let (serial, rest) = (Duration::from_micros(10), Duration::from_micros(100));
    let (mut scheduler, sent, now) = settled(serial, rest);
    let (busy, frame, first, count, lease) = sent[0];
    assert_eq!(lease, Lease::PassedOn, "{sent:?}");
    assert!(count > 4, "{count} items in a frame");
    // Nothing is left but this frame, and it takes long against all experience.
    let (stream, ..) = scheduler.frame(busy, frame).expect("it has the frame");
    scheduler.end_of_input(stream);
    let waiting: Vec<Index> = scheduler.waiting(stream, 0).collect();
    for index in waiting {
        assert_eq!(scheduler.cancel(stream, index, now), Cancel::Removed);
    }
    let late = now + Duration::from_secs(1);
    assert_eq!(
        actions(&mut scheduler, late),
        [],
        "it may be in the serial function"
    );
    scheduler.released(busy, frame, serial * count, late);
    let later = late + Duration::from_secs(1);
    let asked = actions(&mut scheduler, later);
    let [
        Action::Recall {
            slot, count: back, ..
        },
    ] = asked[..]
    else {
        panic!("{asked:?}");
    };
    assert_eq!((slot, back), (busy, (count - 1).div_ceil(2)));
    let from = first + u64::from(count - back);
    let results = Results {
        frame,
        first: from,
        reached: 1,
        sizes: &vec![10; back as usize],
        ended: &[],
        busy: Duration::ZERO,
    };
    let accepted = scheduler.results(busy, results, later);
    let accepted = accepted.expect("within its grant").expect("in time");
    assert_eq!((accepted.from, accepted.reached), (0, 1));
    assert_eq!(accepted.outcomes, []);
    scheduler.recalled(busy, frame, 0, 0, later);
    let did = scheduler.slot_statistics(busy).expect("known");
    assert_eq!((did.asked, did.asked_in_vain), (back.into(), 0));
    let next = actions(&mut scheduler, later);
    let [
        Action::Dispatch {
            slot,
            from: 1,
            to: 1,
            first,
            lease: Lease::None,
            ..
        },
        ..,
    ] = next[..]
    else {
        panic!("{next:?}");
    };
    assert_ne!(slot, busy);
    assert_eq!(first, from);
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

/// Where a lease would wait for long behind items of the functions after it, the serial function stays at one slot, and its items go on
/// elsewhere; until a slot can't give back what has passed it, and goes on by itself.
#[test]
fn a_serial_segment_runs_by_itself_where_its_lease_would_wait() {
    let millis = Duration::from_millis;
    let (mut scheduler, mut sent, mut now) = settled(millis(8), millis(10));
    let (mut homes, mut ends) = (Vec::new(), Vec::new());
    for _ in 0..12 {
        let (slot, frame, first, count, lease) = sent.remove(0);
        let (_, from, to) = scheduler.frame(slot, frame).expect("it has the frame");
        assert_eq!(from, to, "{lease:?}");
        if from == 0 {
            assert_eq!(lease, Lease::Kept);
            homes.push(slot);
        } else {
            ends.push(slot);
        }
        now += millis(10);
        assert!(answer(&mut scheduler, slot, frame, first, count, now));
        sent.extend(leased(&mut scheduler, now));
    }
    assert!(homes.iter().all(|home| *home == homes[0]), "{homes:?}");
    assert!(ends.iter().any(|end| *end != homes[0]), "{ends:?}");
    let alone = |sent: &Leased| {
        scheduler
            .frame(sent.0, sent.1)
            .map(|(_, from, to)| (from, to))
    };
    let place = sent.iter().position(|sent| alone(sent) == Some((0, 0)));
    let (slot, frame, first, count, _) = sent.remove(place.expect("the serial function runs"));
    let results = Results {
        frame,
        first,
        reached: 2,
        sizes: &vec![1; count as usize],
        ended: &[],
        busy: millis(18) * count,
    };
    let accepted = scheduler.results(slot, results, now);
    let accepted = accepted.expect("within its grant").expect("in time");
    let all = first..first + u64::from(count);
    assert_eq!(accepted.outcomes, std::slice::from_ref(&all));
    // From now on it is not tried again.
    let mut rounds = 0;
    sent.extend(leased(&mut scheduler, now));
    while rounds < 20 && !sent.is_empty() {
        let (slot, frame, first, count, lease) = sent.remove(0);
        let (_, from, to) = scheduler.frame(slot, frame).expect("it has the frame");
        rounds += u32::from(from == 0 && to == 1);
        now += millis(10);
        if lease == Lease::PassedOn {
            scheduler.released(slot, frame, millis(8) * count, now);
        }
        assert!(answer(&mut scheduler, slot, frame, first, count, now));
        let more = leased(&mut scheduler, now);
        let goes_on = |sent: &Leased| {
            scheduler
                .frame(sent.0, sent.1)
                .map(|(_, from, to)| (from, to))
        };
        assert!(
            more.iter().all(|sent| goes_on(sent) != Some((0, 0))),
            "{more:?}"
        );
        sent.extend(more);
    }
    assert_eq!(rounds, 20);
}
