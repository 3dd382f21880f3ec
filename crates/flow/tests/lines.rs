//! Items that are made into others, in lines side by side: who goes first, what waits, and what that holds.

use std::time::Duration;

use exoskel_flow::*;

const START: Duration = Duration::ZERO;
const SLOT: SlotId = SlotId(0);

fn seq(number: u32) -> Box<Skeleton> {
    Box::new(Skeleton::Seq(FunctionId(number)))
}

fn map() -> Skeleton {
    Skeleton::Map {
        split: Some(FunctionId(0)),
        worker: seq(1),
        join: Some(FunctionId(2)),
    }
}

/// A scheduler with one slot and a stream of a program, with so many items of one byte; its first two lines.
fn begun(config: SchedulerConfig, skeleton: &Skeleton, items: usize) -> (Scheduler, [StreamId; 2]) {
    let mut scheduler = Scheduler::new(config);
    scheduler.add_slot(SLOT, START).expect("a slot");
    let program = Program::compile(skeleton).expect("a program");
    let stream = scheduler.open_stream(&program, StreamOptions::default(), START);
    let stream = stream.expect("a stream");
    let admitted = scheduler.admit(stream, &vec![1; items], START);
    admitted.expect("tickets");
    (scheduler, [stream, StreamId(stream.0 + 1)])
}

/// Line, frame, segment, first item, count.
type Sent = (StreamId, FrameId, u16, Index, u32);

fn next(scheduler: &mut Scheduler) -> Option<Sent> {
    while let Some(action) = scheduler.poll_action(START) {
        if let Action::Dispatch {
            frame,
            stream,
            from,
            first,
            count,
            ..
        } = action
        {
            return Some((stream, frame, from, first, count));
        }
    }
    None
}

fn answer<'a>(frame: FrameId, first: Index, reached: u16, sizes: &'a [u64]) -> Results<'a> {
    Results {
        frame,
        first,
        reached,
        sizes,
        ended: &[],
        busy: Duration::from_micros(1),
    }
}

/// Aim: what an item was made into goes before the next item, and before what an earlier line has ready.
#[test]
fn what_was_made_goes_first() {
    let (mut scheduler, [own, parts]) = begun(SchedulerConfig::default(), &map(), 8);
    let (line, frame, from, first, count) = next(&mut scheduler).expect("a frame");
    assert_eq!((line, from, first, count), (own, 0, 0, 1));
    let expanded = scheduler.expanded(SLOT, answer(frame, 0, 1, &[3]), START);
    let expanded = expanded.expect("within its grant").expect("in time");
    let kept: Vec<Index> = expanded.tokens.iter().cloned().flatten().collect();
    assert_eq!((kept, expanded.outcomes), (vec![0], &[][..]));
    scheduler.keep(own, 0..1, 0);
    assert_eq!(scheduler.admit_made(parts, &[1, 1, 1], START), Some(0));
    // The second frame was there before.
    let (line, ..) = next(&mut scheduler).expect("a frame");
    assert_eq!(line, parts);
}

/// Aim: items come out one after the other, and not all together behind the parts of all. Method: an item is joined while parts of others are ready.
#[test]
fn what_is_joined_goes_before_parts_of_others() {
    let (mut scheduler, [own, parts]) = begun(SchedulerConfig::default(), &map(), 2);
    let frames = [next(&mut scheduler), next(&mut scheduler)].map(|frame| frame.expect("a frame"));
    for (_, frame, _, first, _) in frames {
        let expanded = scheduler.expanded(SLOT, answer(frame, first, 1, &[3]), START);
        assert!(expanded.is_ok_and(|accepted| accepted.is_some()));
    }
    scheduler.keep(own, 0..2, 0);
    assert_eq!(scheduler.admit_made(parts, &[1; 40], START), Some(0));
    assert!(scheduler.join(own, 0, 9, START));
    let (line, _, from, first, _) = next(&mut scheduler).expect("a frame");
    assert_eq!((line, from, first), (own, 1, 0));
    let (line, ..) = next(&mut scheduler).expect("a frame");
    assert_eq!(line, parts);
}

/// Aim: an item that is away is neither ready nor at a slot, can't be cancelled, and goes on once, with what it is given; or ends.
#[test]
fn an_item_is_away_until_it_is_joined() {
    let (mut scheduler, [own, _]) = begun(SchedulerConfig::default(), &map(), 2);
    let frames = [next(&mut scheduler), next(&mut scheduler)].map(|frame| frame.expect("a frame"));
    for (_, frame, _, first, _) in frames {
        let expanded = scheduler.expanded(SLOT, answer(frame, first, 1, &[30]), START);
        assert!(expanded.is_ok_and(|accepted| accepted.is_some()));
    }
    let progress = scheduler.progress(own).expect("open");
    assert_eq!((progress.ready, progress.out, progress.finished), (0, 0, 0));
    assert_eq!(scheduler.cancel(own, 0, START), Cancel::TooLate);
    assert_eq!(scheduler.withdraw(own, 0), None);
    assert_eq!(scheduler.result_bytes(own).0, 60);
    scheduler.keep(own, 0..2, 4);
    assert_eq!(scheduler.result_bytes(own).0, 8);
    assert!(scheduler.join(own, 1, 9, START));
    assert!(!scheduler.join(own, 1, 9, START));
    assert!(scheduler.end_away(own, 0, START));
    assert!(!scheduler.end_away(own, 0, START));
    assert_eq!(scheduler.result_bytes(own).0, 9);
    assert!(scheduler.is_finished(own, 0));
    let (line, frame, from, first, count) = next(&mut scheduler).expect("a frame");
    assert_eq!((line, from, first, count), (own, 1, 1, 1));
    let joined = scheduler.results(SLOT, answer(frame, 1, 2, &[5]), START);
    assert!(joined.is_ok_and(|accepted| accepted.is_some()));
    assert_eq!(scheduler.taken(own, 0, 2, START), 2);
    assert_eq!(scheduler.result_bytes(own), (0, 0));
}

/// Aim: an answer says where items are only if the program leads there.
#[test]
fn items_get_only_where_the_program_leads() {
    let (mut scheduler, _) = begun(SchedulerConfig::default(), &map(), 1);
    let (_, frame, ..) = next(&mut scheduler).expect("a frame");
    for reached in [0, 2, 3] {
        let wrong = scheduler.expanded(SLOT, answer(frame, 0, reached, &[1]), START);
        assert!(matches!(wrong, Err(Breach::Reached { .. })), "{reached}");
        let wrong = scheduler.results(SLOT, answer(frame, 0, reached, &[1]), START);
        assert!(matches!(wrong, Err(Breach::Reached { .. })), "{reached}");
    }
    let (mut scheduler, _) = begun(SchedulerConfig::default(), &Skeleton::Farm(seq(0)), 1);
    let (_, frame, ..) = next(&mut scheduler).expect("a frame");
    let wrong = scheduler.expanded(SLOT, answer(frame, 0, 1, &[1]), START);
    assert!(matches!(wrong, Err(Breach::Reached { .. })));
}

/// Aim: what items were made into counts when it is decided whether more may come: otherwise as much would be here as all items
/// together are made into. The oldest item may always move. Method: two items with large lists, of which the budget has room for one.
#[test]
fn what_was_made_takes_up_the_room_for_results() {
    let config = SchedulerConfig {
        result_budget_bytes: 1500,
        grant_bytes: 100,
        grant_bytes_min: 100,
        ..SchedulerConfig::default()
    };
    let (mut scheduler, [own, parts]) = begun(config, &map(), 3);
    let mut frames = Vec::new();
    while frames.len() < 2 {
        let (_, frame, _, first, _) = next(&mut scheduler).expect("a frame");
        let announced = scheduler.announced(SLOT, frame, first..first + 1, 1000, START);
        announced.expect("once");
        frames.push((frame, first));
    }
    // What it says until there is nothing: grants, and frames of parts.
    let polled = |scheduler: &mut Scheduler| {
        let (mut grants, mut frames) = (Vec::new(), Vec::new());
        while let Some(action) = scheduler.poll_action(START) {
            match action {
                Action::Grant { index, .. } => grants.push(index),
                Action::Dispatch {
                    frame,
                    stream,
                    first,
                    count,
                    ..
                } if stream == parts => frames.push((frame, first, count)),
                _ => {}
            }
        }
        (grants, frames)
    };
    // The first one has its grant already: it is the oldest.
    let expanded = scheduler.expanded(SLOT, answer(frames[0].0, 0, 1, &[1000]), START);
    assert!(expanded.is_ok_and(|accepted| accepted.is_some()));
    scheduler.keep(own, 0..1, 0);
    scheduler.admit_made(parts, &[500, 500], START);
    let (grants, sent) = polled(&mut scheduler);
    assert_eq!(grants, []);
    for (frame, first, count) in sent {
        let sizes = vec![0; count as usize];
        let results = scheduler.results(SLOT, answer(frame, first, 1, &sizes), START);
        assert!(results.is_ok_and(|accepted| accepted.is_some()));
    }
    assert_eq!(scheduler.item_bytes(parts), 0);
    assert_eq!(polled(&mut scheduler).0, [1]);
}

/// Aim: a frame that is folded into one result is longer than others, and items enter for it. Method: the same items, of which each takes a
/// tenth of a millisecond, where they are folded and where they aren't.
#[test]
fn frames_that_are_folded_are_long() {
    let longest = |skeleton: &Skeleton, reached: u16| {
        let (mut scheduler, [own, _]) = begun(SchedulerConfig::default(), skeleton, 8);
        let (mut now, mut longest, mut first_open) = (START, 0, 0);
        while first_open < 20_000 {
            let tickets = scheduler.tickets(own) as usize;
            scheduler
                .admit(own, &vec![1; tickets], now)
                .expect("tickets");
            let mut frames = Vec::new();
            while let Some(action) = scheduler.poll_action(now) {
                if let Action::Dispatch {
                    frame,
                    first,
                    count,
                    ..
                } = action
                {
                    frames.push((frame, first, count));
                }
            }
            assert!(!frames.is_empty(), "nothing is to be done");
            for (frame, first, count) in frames {
                longest = longest.max(count);
                let busy = Duration::from_micros(100) * count;
                now += busy;
                let sizes = vec![1; count as usize];
                let results = Results {
                    busy,
                    ..answer(frame, first, reached, &sizes)
                };
                let accepted = scheduler.results(SLOT, results, now);
                assert!(accepted.is_ok_and(|accepted| accepted.is_some()));
                scheduler.taken(own, first, count, now);
                first_open = first + u64::from(count);
            }
        }
        longest
    };
    let farm = Skeleton::Farm(seq(0));
    let reduce = Skeleton::Reduce {
        operator: FunctionId(0),
        initial: None,
    };
    let (plain, folded) = (longest(&farm, 1), longest(&reduce, 1));
    assert!((10..=20).contains(&plain), "{plain}");
    assert!((250..=500).contains(&folded), "{folded}");
}

/// Aim: what was folded keeps its slot busy no longer, also while its result waits for room; or other items, which have to be done before there is
/// room, would wait for the slot. Method: a slot announces for each frame, and has nothing granted but the oldest; then it is lost.
#[test]
fn what_was_folded_frees_its_slot_while_its_result_waits() {
    let reduce = Skeleton::Reduce {
        operator: FunctionId(0),
        initial: None,
    };
    let config = SchedulerConfig {
        result_budget_bytes: 1,
        grant_bytes: 16,
        grant_bytes_min: 16,
        frame_items_max: 5,
        window_bytes_max: 1,
        ..SchedulerConfig::default()
    };
    let mut scheduler = Scheduler::new(config);
    scheduler.add_slot(SLOT, START).expect("a slot");
    let program = Program::compile(&reduce).expect("a program");
    let options = StreamOptions {
        tickets: Tickets::Unbounded,
        time_limit: None,
    };
    let own = scheduler.open_stream(&program, options, START);
    let own = own.expect("a stream");
    scheduler
        .admit(own, &[1; 100], START)
        .expect("room for them");
    let mut frames = 0;
    for round in 0..60 {
        let Some((_, frame, _, first, count)) = next(&mut scheduler) else {
            assert_eq!(scheduler.progress(own).expect("open").ready, 0, "{round}");
            break;
        };
        frames += u32::from(count > 1);
        if round < 12 {
            let sizes = vec![1; count as usize];
            let results = answer(frame, first, 1, &sizes);
            assert!(
                scheduler
                    .results(SLOT, results, START)
                    .is_ok_and(|all| all.is_some())
            );
            scheduler.taken(own, first, count, START);
        } else {
            // More than there is, which can't be.
            let items = first..first + u64::from(count) + u64::from(round % 2 == 1);
            let announced = scheduler.announced(SLOT, frame, items, 1000, START);
            announced.expect("it had them");
        }
    }
    assert!(frames > 3, "only {frames} frames had several items");
    assert_eq!(next(&mut scheduler), None);
    let waits = scheduler.progress(own).expect("open");
    assert!(waits.out > 10, "{waits:?}");
    scheduler
        .remove_slot(SLOT, Departure::Lost, START)
        .expect("it was there");
    // Nobody blames what has run.
    let left = scheduler.progress(own).expect("open");
    assert_eq!((left.ready, left.out), (waits.ready + waits.out, 0));
    assert_eq!(scheduler.result_bytes(own).1, 0);
}

/// Attack: a slot announces the result of many items, has it granted, and sends that of fewer, so that the others are neither waited for nor run again.
#[test]
fn a_result_that_was_announced_of_more_items_is_a_breach() {
    let reduce = Skeleton::Reduce {
        operator: FunctionId(0),
        initial: None,
    };
    let (mut scheduler, [own, _]) = begun(SchedulerConfig::default(), &reduce, 8);
    let (_, frame, _, first, count) = loop {
        let (line, frame, from, first, count) = next(&mut scheduler).expect("a frame");
        if count > 1 {
            break (line, frame, from, first, count);
        }
        let results = answer(frame, first, 1, &[1]);
        assert!(
            scheduler
                .results(SLOT, results, START)
                .is_ok_and(|all| all.is_some())
        );
        scheduler.taken(own, first, count, START);
    };
    let items = first..first + u64::from(count);
    let announced = scheduler.announced(SLOT, frame, items, 1 << 20, START);
    announced.expect("it had them");
    while scheduler.poll_action(START).is_some() {}
    let few = scheduler.results(SLOT, answer(frame, first, 1, &[9]), START);
    let breach = Breach::AnnouncedOfMore {
        index: first,
        announced: count,
    };
    assert_eq!(few.err(), Some(breach));
    let mut sizes = vec![0; count as usize];
    sizes[0] = 1 << 20;
    let all = scheduler.results(SLOT, answer(frame, first, 1, &sizes), START);
    assert!(all.is_ok_and(|all| all.is_some()));
}
