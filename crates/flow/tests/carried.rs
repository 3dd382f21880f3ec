//! Segments that carry a state: items have their turns, and results count with the state behind them.

use std::time::Duration;

use exoskel_flow::*;

const START: Duration = Duration::ZERO;

fn seq(number: u32) -> Skeleton {
    Skeleton::Seq(FunctionId(number))
}

fn stateful() -> Skeleton {
    Skeleton::Stateful {
        function: FunctionId(0),
        initial: FunctionId(1),
    }
}

fn scan() -> Skeleton {
    Skeleton::Scan {
        operator: FunctionId(0),
        initial: None,
    }
}

/// Slot, frame, segments, first item, count.
type Sent = (SlotId, FrameId, (u16, u16), Index, u32);

/// A scheduler with some slots and a stream of a program, with so many items of one byte.
fn begun(skeleton: &Skeleton, slots: u32, items: usize) -> (Scheduler, StreamId) {
    let config = SchedulerConfig {
        grant_bytes: 10,
        grant_bytes_min: 10,
        ..SchedulerConfig::default()
    };
    let mut scheduler = Scheduler::new(config);
    for slot in 0..slots {
        scheduler.add_slot(SlotId(slot), START).expect("a slot");
    }
    let program = Program::compile(skeleton).expect("a program");
    let options = StreamOptions {
        tickets: Tickets::Unbounded,
        time_limit: None,
    };
    let stream = scheduler.open_stream(&program, options, START);
    let stream = stream.expect("a stream");
    let admitted = scheduler.admit(stream, &vec![1; items], START);
    admitted.expect("tickets");
    (scheduler, stream)
}

/// All that is sent now.
fn sent(scheduler: &mut Scheduler) -> Vec<Sent> {
    let actions = std::iter::from_fn(|| scheduler.poll_action(START));
    let frames = actions.filter_map(|action| match action {
        Action::Dispatch {
            slot,
            frame,
            from,
            to,
            first,
            count,
            ..
        } => Some((slot, frame, (from, to), first, count)),
        _ => None,
    });
    frames.collect()
}

fn answer(frame: FrameId, first: Index, reached: u16, sizes: &[u64]) -> Results<'_> {
    Results {
        frame,
        first,
        reached,
        sizes,
        ended: &[],
        busy: Duration::from_micros(1),
    }
}

/// Aim: a segment that carries a state is by itself, whatever stands before and behind it.
#[test]
fn a_state_has_a_segment_of_its_own() {
    let stages = vec![seq(0), stateful(), Skeleton::Farm(Box::new(seq(1))), scan()];
    let program = Program::compile(&Skeleton::Pipeline(stages)).expect("a program");
    let segments = program.segments().iter();
    let known: Vec<_> = segments
        .map(|segment| (segment.serial, segment.carries, segment.steps.clone()))
        .collect();
    let expected = [
        (true, None, vec![SegmentStep::Call]),
        (
            true,
            Some(CarriedStart::Value(FunctionId(1))),
            vec![SegmentStep::Carry],
        ),
        (false, None, vec![SegmentStep::Call]),
        (true, Some(CarriedStart::Nothing), vec![SegmentStep::Scan]),
    ];
    assert_eq!(known, expected);
    assert_eq!(program.furthest(1), 1);
}

/// Aim: where items run at the same time there is no order for a state.
#[test]
fn a_state_is_refused_where_items_have_no_order() {
    let inside = |inner: Skeleton| {
        [
            Skeleton::Farm(Box::new(inner.clone())),
            Skeleton::Map {
                split: None,
                worker: Box::new(inner.clone()),
                join: None,
            },
            Skeleton::Iterate {
                body: Box::new(inner),
                until: FunctionId(0),
                at_most: None,
            },
        ]
    };
    let all = [stateful(), scan(), Skeleton::Pipeline(vec![scan()])].map(inside);
    for skeleton in all.into_iter().flatten() {
        let refused = Program::compile(&skeleton);
        assert_eq!(refused, Err(ProgramError::CarriedInside), "{skeleton:?}");
    }
}

/// Aim: a scan with an initial value makes a line of results, which begins with that.
#[test]
fn an_initial_value_is_the_first_item_of_a_line() {
    let initial = Some(FunctionId(7));
    let skeleton = Skeleton::Scan {
        operator: FunctionId(0),
        initial,
    };
    assert!(!skeleton.keeps_number());
    let program = Program::compile(&skeleton).expect("a program");
    let [first, second] = program.lines() else {
        panic!("two lines");
    };
    assert_eq!(first.role, LineRole::Ordered { line: 1 });
    let (join, after) = (None, None);
    let expands = Then::Expand {
        line: 1,
        join,
        after,
    };
    assert_eq!(first.segments[0].then, expands);
    assert_eq!((second.first, second.role), (initial, LineRole::User));
    assert!(second.is_end());
}

/// Aim: one frame at a time, and the next one begins behind the last item that has passed. Method: two slots, parts of a frame answered.
#[test]
fn there_is_one_frame_at_a_time() {
    let (mut scheduler, _) = begun(&stateful(), 2, 9);
    let (mut next, mut frames) = (0, 0);
    while next < 9 {
        let all = sent(&mut scheduler);
        let [(slot, frame, segments, first, count)] = all[..] else {
            panic!("{all:?}");
        };
        assert_eq!((segments, first), ((0, 0), next));
        frames += 1;
        for index in first..first + u64::from(count) {
            assert_eq!(sent(&mut scheduler), []);
            let accepted = scheduler.carried(slot, answer(frame, index, 1, &[1]), 2, START);
            assert!(accepted.is_ok_and(|accepted| accepted.is_some()));
        }
        next += u64::from(count);
    }
    assert!(frames < 9, "frames grow");
}

/// Aim: an item waits for those before it, and not for those that have ended. Method: three slots have one item each of the segment in front, and
/// the last one is the first to answer; the first item ends there, the second one is cancelled for that.
#[test]
fn items_have_their_turns() {
    let farm = Skeleton::Farm(Box::new(seq(0)));
    let (mut scheduler, stream) = begun(&Skeleton::Pipeline(vec![farm, stateful()]), 3, 3);
    let all = sent(&mut scheduler);
    assert_eq!(all.len(), 3);
    for (slot, frame, _, first, _) in all[1..].iter().rev() {
        let passed = scheduler.results(*slot, answer(*frame, *first, 1, &[1]), START);
        assert!(passed.is_ok_and(|accepted| accepted.is_some()));
        assert_eq!(sent(&mut scheduler), [], "the first one isn't there");
    }
    let (slot, frame, _, first, _) = all[0];
    let ended = Results {
        ended: &[first],
        ..answer(frame, first, 1, &[1])
    };
    let passed = scheduler.results(slot, ended, START);
    assert!(passed.is_ok_and(|accepted| accepted.is_some()));
    assert!(scheduler.is_finished(stream, first));
    let all = sent(&mut scheduler);
    let [(_, _, (1, 1), 1, _)] = all[..] else {
        panic!("{all:?}");
    };
}

/// Aim: results count with their state, all or none: what isn't next, or is too large, breaks the rules.
#[test]
fn results_and_their_state_count_together() {
    let (mut scheduler, _) = begun(&stateful(), 1, 20);
    // A frame of three items at least.
    let (slot, frame, first, count) = loop {
        let (slot, frame, _, first, count) = sent(&mut scheduler)[0];
        if count > 2 {
            break (slot, frame, first, count as usize);
        }
        let sizes = vec![1; count as usize];
        let answered = scheduler.carried(slot, answer(frame, first, 1, &sizes), 1, START);
        assert!(answered.is_ok());
    };
    let sizes = vec![4; count + 1];
    for (first, count) in [(first + 1, 1), (first, count + 1), (u64::MAX, 2)] {
        let wrong = scheduler.carried(slot, answer(frame, first, 1, &sizes[..count]), 0, START);
        assert!(matches!(wrong, Err(Breach::CarriedOthers { .. })));
    }
    // Ten bytes are granted to each: 4 of each result leave 6 for a state.
    let room = 6 * count as u64;
    let all = answer(frame, first, 1, &sizes[..count]);
    let wrong = scheduler.carried(slot, all, room + 1, START);
    assert!(matches!(wrong, Err(Breach::CarriedOverGrant { .. })));
    let right = scheduler.carried(slot, all, room, START);
    assert!(right.is_ok_and(|accepted| accepted.is_some()));
    let again = scheduler.carried(slot, all, room, START);
    assert_eq!(again, Ok(None), "its frame is over");
}

/// Aim: a slot that is lost while results wait there leaves some items that are suspects and some that aren't: all have their turns. Method: the
/// first of several items is announced for all of them.
#[test]
fn what_a_lost_slot_had_has_its_turns() {
    let (mut scheduler, stream) = begun(&stateful(), 1, 20);
    let (slot, frame, first, count) = loop {
        let (slot, frame, _, first, count) = sent(&mut scheduler)[0];
        if count > 3 {
            break (slot, frame, first, count);
        }
        let sizes = vec![1; count as usize];
        let answered = scheduler.carried(slot, answer(frame, first, 1, &sizes), 1, START);
        assert!(answered.is_ok());
    };
    let announced = scheduler.announced(slot, frame, first..first + 1, 500, START);
    assert_eq!(announced, Ok(()));
    let gone = scheduler.remove_slot(slot, Departure::Lost, START);
    assert!(gone.is_some_and(|gone| gone.put_back == u64::from(count)));
    scheduler.add_slot(SlotId(9), START).expect("a slot");
    let mut next = first;
    while next < 20 {
        let all = sent(&mut scheduler);
        let [(slot, frame, _, at, count)] = all[..] else {
            panic!("{all:?} at {next}");
        };
        assert_eq!(at, next);
        let sizes = vec![1; count as usize];
        let answered = scheduler.carried(slot, answer(frame, at, 1, &sizes), 1, START);
        assert!(answered.is_ok_and(|accepted| accepted.is_some()));
        next += u64::from(count);
    }
    assert!((0..20).all(|index| scheduler.is_finished(stream, index)));
}
