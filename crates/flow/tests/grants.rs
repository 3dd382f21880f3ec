//! What slots may send, and what that comes to: grants are limits, and the memory they allow is bounded.

use std::collections::BTreeMap;
use std::time::Duration;

use exoskel_flow::*;
use proptest::prelude::*;

const START: Duration = Duration::ZERO;
const SLOT: SlotId = SlotId(0);

fn farm(number: u32) -> Skeleton {
    Skeleton::Farm(Box::new(Skeleton::Seq(FunctionId(number))))
}

/// Frame, first item, count, grant.
type Sent = (FrameId, Index, u32, u64);

/// A stream of items of one byte, one slot, and the frames that it got.
fn begun(config: SchedulerConfig, items: usize) -> (Scheduler, StreamId, Vec<Sent>) {
    let mut scheduler = Scheduler::new(config);
    scheduler.add_slot(SLOT, START).expect("a slot");
    let program = Program::compile(&farm(0)).expect("a program");
    let options = StreamOptions::default();
    let stream = scheduler.open_stream(&program, options, START);
    let stream = stream.expect("a stream");
    let admitted = scheduler.admit(stream, &vec![1; items], START);
    admitted.expect("tickets");
    let frames = dispatched(&mut scheduler);
    (scheduler, stream, frames)
}

fn dispatched(scheduler: &mut Scheduler) -> Vec<Sent> {
    let dispatch = |action| match action {
        Action::Dispatch {
            frame,
            first,
            count,
            grant,
            ..
        } => Some((frame, first, count, grant)),
        _ => None,
    };
    let actions = std::iter::from_fn(|| scheduler.poll_action(START));
    actions.filter_map(dispatch).collect()
}

fn results<'a>(frame: FrameId, first: Index, sizes: &'a [u64]) -> Results<'a> {
    Results {
        frame,
        first,
        reached: 1,
        sizes,
        ended: &[],
        busy: Duration::from_micros(1),
    }
}

/// Aim: each way of sending more than was granted is told, and changes nothing. Method: each of them, then the
/// same result as it should be.
#[test]
fn what_was_not_granted_is_a_breach() {
    let (mut scheduler, stream, frames) = begun(SchedulerConfig::default(), 2);
    let [(one, 0, 1, grant), (two, 1, 1, _)] = frames[..] else {
        panic!("{frames:?}");
    };
    let before = scheduler.receivable(SLOT);
    assert_eq!(before, 2 * grant);

    let over = scheduler.results(SLOT, results(one, 0, &[grant + 1]), START);
    let breach = Breach::OverGrant {
        index: 0,
        got: grant + 1,
        grant,
    };
    assert_eq!(over, Err(breach));
    assert_eq!(scheduler.receivable(SLOT), before);
    assert_eq!(scheduler.progress(stream).expect("open").finished, 0);

    let large = grant + 5;
    let announced = scheduler.announced(SLOT, two, 1..1 + 1, large, START);
    assert_eq!(announced, Ok(()));
    assert_eq!(scheduler.receivable(SLOT), grant);
    let again = scheduler.announced(SLOT, two, 1..1 + 1, 1, START);
    assert_eq!(again, Err(Breach::AnnouncedTwice { index: 1 }));
    let early = scheduler.results(SLOT, results(two, 1, &[large]), START);
    assert_eq!(early, Err(Breach::NotGranted { index: 1 }));

    assert!(matches!(
        scheduler.poll_action(START),
        Some(Action::Grant { index: 1, .. })
    ));
    assert_eq!(scheduler.receivable(SLOT), grant + large);
    let again = scheduler.announced(SLOT, two, 1..1 + 1, 1, START);
    assert_eq!(again, Err(Breach::AnnouncedTwice { index: 1 }));
    let over = scheduler.results(SLOT, results(two, 1, &[large + 1]), START);
    let breach = Breach::OverAnnounced {
        index: 1,
        got: large + 1,
        announced: large,
    };
    assert_eq!(over, Err(breach));

    let granted = scheduler.results(SLOT, results(two, 1, &[large]), START);
    assert!(granted.is_ok_and(|accepted| accepted.is_some()));
    let small = scheduler.results(SLOT, results(one, 0, &[grant]), START);
    assert!(small.is_ok_and(|accepted| accepted.is_some()));
    assert_eq!(scheduler.receivable(SLOT), 0);
    assert_eq!(scheduler.progress(stream).expect("open").finished, 2);
}

/// Aim: a slot that says that the oldest result is as long as it likes, and sends nothing, keeps nobody else's waiting. Method: a result beyond
/// the whole budget, then one that is within it.
#[test]
fn the_oldest_result_takes_no_room_from_others_before_it_is_here() {
    let config = SchedulerConfig {
        result_budget_bytes: 1 << 20,
        ..SchedulerConfig::default()
    };
    let (mut scheduler, _, frames) = begun(config, 2);
    let [(one, 0, 1, _), (two, 1, 1, _)] = frames[..] else {
        panic!("expected frames of one item: {frames:?}");
    };
    for (frame, index, bytes) in [(one, 0, 1 << 30), (two, 1, 1 << 19)] {
        let announced = scheduler.announced(SLOT, frame, index..index + 1, bytes, START);
        assert_eq!(announced, Ok(()));
    }
    let granted = |action| match action {
        Action::Grant { index, .. } => Some(index),
        _ => None,
    };
    let actions = std::iter::from_fn(|| scheduler.poll_action(START));
    let granted: Vec<Index> = actions.filter_map(granted).collect();
    assert_eq!(granted, [0, 1]);
}

/// Aim: an honest slot may send what it was granted although the stream was closed meanwhile.
/// Aim: an item that runs for too long has an exception of a few words as its outcome, from a slot that ends with it. It can't wait for a grant, however
/// large the item's token is and however little room there is.
#[test]
fn a_few_words_need_no_grant_behind_a_large_token() {
    let config = SchedulerConfig {
        result_budget_bytes: 0,
        ..SchedulerConfig::default()
    };
    let mut scheduler = Scheduler::new(config);
    scheduler.add_slot(SLOT, START).expect("a slot");
    let serial = Skeleton::Seq(FunctionId(1));
    let program = Program::compile(&Skeleton::Pipeline(vec![farm(0), serial])).expect("a program");
    let stream = scheduler.open_stream(&program, StreamOptions::default(), START);
    let stream = stream.expect("a stream");
    scheduler.admit(stream, &[1], START).expect("a ticket");
    let (mut frame, mut first, mut grant) = (FrameId(0), 0, 0);
    for (reached, bytes) in [(1, 1 << 20), (2, 512)] {
        if let Some(&(next, item, _, granted)) = dispatched(&mut scheduler).first() {
            (frame, first, grant) = (next, item, granted);
        }
        if bytes > grant {
            assert_eq!(reached, 1, "{grant} bytes were granted");
            let announced = scheduler.announced(SLOT, frame, first..first + 1, bytes, START);
            announced.expect("known");
            while scheduler.poll_action(START).is_some() {}
        }
        let sizes = [bytes];
        let answer = Results {
            reached,
            ..results(frame, first, &sizes)
        };
        let accepted = scheduler.results(SLOT, answer, START);
        assert!(accepted.expect("granted").is_some());
    }
    assert_eq!(scheduler.progress(stream).expect("open").finished, 1);
}

#[test]
fn a_granted_result_of_a_closed_stream_may_still_come() {
    let (mut scheduler, stream, frames) = begun(SchedulerConfig::default(), 1);
    let (frame, _, _, grant) = frames[0];
    let large = 3 * grant;
    let announced = scheduler.announced(SLOT, frame, 0..1, large, START);
    assert_eq!(announced, Ok(()));
    assert!(matches!(
        scheduler.poll_action(START),
        Some(Action::Grant { .. })
    ));
    scheduler.close_stream(stream, START);
    assert_eq!(scheduler.receivable(SLOT), large);
    let late = scheduler.results(SLOT, results(frame, 0, &[large]), START);
    assert_eq!(late, Ok(None));
    assert_eq!(scheduler.receivable(SLOT), 0);
}

/// Aim: times without measure neither overflow nor make anybody wait for what they claim.
#[test]
fn absurd_times_do_no_harm() {
    let (mut scheduler, stream, mut frames) = begun(SchedulerConfig::default(), 8);
    let mut answered = 0;
    while let Some((frame, first, count, _)) = frames.pop() {
        let sizes = vec![1; count as usize];
        let absurd = Results {
            busy: Duration::MAX,
            ..results(frame, first, &sizes)
        };
        let accepted = scheduler.results(SLOT, absurd, START);
        assert!(accepted.is_ok_and(|accepted| accepted.is_some()));
        answered += count;
        frames.extend(dispatched(&mut scheduler));
    }
    assert_eq!(answered, 8);
    let busy = scheduler.slot_statistics(SLOT).expect("known").busy;
    assert!(busy <= 8 * scheduler.config().frame_time, "{busy:?}");
    assert_eq!(scheduler.progress(stream).expect("open").finished, 8);
}

/// What a slot owes: items in the order of its frames, with their grants, and results that wait.
#[derive(Default)]
struct Greedy {
    running: Vec<(FrameId, Index, u64)>,
    granted: BTreeMap<(FrameId, Index), u64>,
    announced: BTreeMap<(FrameId, Index), u64>,
}

impl Greedy {
    /// The most that it may send now.
    fn may_send(&self) -> u64 {
        let grants = self.running.iter().map(|(_, _, grant)| grant);
        grants.chain(self.granted.values()).sum()
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    /// Aim: slots that keep the rules and send all they may never make the manager hold more than the documented
    /// bound, and it always knows how much each of them may send. Method: random settings and programs; slots announce
    /// as much as the bound allows for, or send exactly what was granted; the user takes little.
    #[test]
    fn greedy_slots_stay_below_the_bound(
        budgets in (0_u64..200_000, 0_u64..50_000, 0_u64..3000),
        tickets_max in 1_u32..80,
        stages in 1_u32..4,
        slots in 1_u32..5,
        item_bytes in 1_u64..9000,
        result_bytes_max in 1_u64..60_000,
        tape in prop::collection::vec(any::<u32>(), 50..800),
    ) {
        let config = SchedulerConfig {
            result_budget_bytes: budgets.0,
            input_budget_bytes: budgets.1,
            grant_bytes_min: budgets.2,
            grant_bytes: 1000,
            tickets_max,
            ..SchedulerConfig::default()
        };
        let largest = item_bytes.max(result_bytes_max).max(budgets.2);
        let bound = config.memory_bytes_max(slots, largest);
        let mut scheduler = Scheduler::new(config);
        let functions = (0..stages).map(|number| match number % 2 {
            0 => farm(number),
            _ => Skeleton::Seq(FunctionId(number)),
        });
        let program = Program::compile(&Skeleton::Pipeline(functions.collect())).unwrap();
        let stream = scheduler.open_stream(&program, StreamOptions::default(), START).unwrap();
        let mut peers: Vec<Greedy> = (0..slots).map(|_| Greedy::default()).collect();
        for slot in 0..slots {
            scheduler.add_slot(SlotId(slot), START).unwrap();
        }
        let (mut now, mut untaken) = (START, Vec::new());
        for number in tape {
            now += Duration::from_micros(u64::from(number % 300));
            let tickets = scheduler.tickets(stream) as usize;
            if number % 5 == 0 && tickets > 0 {
                scheduler.admit(stream, &vec![item_bytes; tickets], now).unwrap();
            }
            while let Some(action) = scheduler.poll_action(now) {
                match action {
                    Action::Dispatch { slot, frame, first, count, grant, .. } => {
                        let items = (first..first + u64::from(count)).map(|index| (frame, index, grant));
                        peers[slot.0 as usize].running.extend(items);
                    }
                    Action::Grant { slot, frame, index } => {
                        let peer = &mut peers[slot.0 as usize];
                        let bytes = peer.announced.remove(&(frame, index)).unwrap();
                        peer.granted.insert((frame, index), bytes);
                    }
                    // Nothing is given back, which is allowed.
                    Action::Recall { slot, frame, .. } => scheduler.recalled(slot, frame, 0, 0, now),
                    Action::Interrupt { .. }
                    | Action::Failed { .. }
                    | Action::Overdue { .. }
                    | Action::LetGo { .. } => {}
                }
            }
            let place = (number / 7 % slots) as usize;
            let slot = SlotId(place as u32);
            let peer = &mut peers[place];
            let choice = number / 64 % 4;
            let sent = if choice == 0 && let Some((key, bytes)) = peer.granted.pop_first() {
                Some((key, bytes))
            } else if peer.running.is_empty() {
                None
            } else {
                let (frame, index, grant) = peer.running.remove(0);
                if choice < 3 && result_bytes_max > grant {
                    scheduler.announced(slot, frame, index..index + 1, result_bytes_max, now).unwrap();
                    peer.announced.insert((frame, index), result_bytes_max);
                    None
                } else {
                    Some(((frame, index), grant.min(largest)))
                }
            };
            if let Some(((frame, index), bytes)) = sent {
                let (_, _, to) = scheduler.frame(slot, frame).unwrap();
                let sizes = [bytes];
                let answer = Results { reached: to + 1, ..results(frame, index, &sizes) };
                let accepted = scheduler.results(slot, answer, now).unwrap();
                untaken.extend(accepted.unwrap().outcomes.iter().cloned().flatten());
            }
            if number % 11 == 0 && !untaken.is_empty() {
                let index = untaken.remove(number as usize % untaken.len());
                prop_assert_eq!(scheduler.taken(stream, index, 1, now), 1);
            }
            let (held, reserved) = scheduler.result_bytes(stream);
            let items = scheduler.item_bytes(stream);
            prop_assert!(held + reserved + items <= bound, "{} + {} + {} > {}", held, reserved, items, bound);
            for (number, peer) in peers.iter().enumerate() {
                prop_assert_eq!(scheduler.receivable(SlotId(number as u32)), peer.may_send());
            }
        }
    }
}
