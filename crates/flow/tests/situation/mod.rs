//! Small situations of a scheduler, for tests of its rules.

#![allow(dead_code, reason = "each of the tests uses some")]

use std::time::Duration;

use exoskel_flow::*;

pub(crate) const START: Duration = Duration::ZERO;

pub(crate) fn seq(number: u32) -> Skeleton {
    Skeleton::Seq(FunctionId(number))
}

pub(crate) fn farm(inner: Skeleton) -> Skeleton {
    Skeleton::Farm(Box::new(inner))
}

pub(crate) fn open(scheduler: &mut Scheduler, skeleton: &Skeleton, tickets: Tickets) -> StreamId {
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

pub(crate) fn scheduler(slots: u32) -> Scheduler {
    let mut scheduler = Scheduler::new(SchedulerConfig::default());
    (0..slots).for_each(|slot| scheduler.add_slot(SlotId(slot), START).expect("a slot"));
    scheduler
}

pub(crate) fn actions(scheduler: &mut Scheduler, now: Duration) -> Vec<Action> {
    std::iter::from_fn(|| scheduler.poll_action(now)).collect()
}

/// The dispatches among the actions: slot, frame, stream, first, count.
pub(crate) fn dispatches(
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
pub(crate) fn reached(scheduler: &Scheduler, slot: SlotId, frame: FrameId) -> u16 {
    scheduler.frame(slot, frame).map_or(1, |(.., to)| to + 1)
}

pub(crate) fn answer(
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
pub(crate) fn answer_one(
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

/// What a slot has to do with the frames it gets: slot, frame, first, count, lease.
pub(crate) type Leased = (SlotId, FrameId, Index, u32, Lease);

pub(crate) fn leased(scheduler: &mut Scheduler, now: Duration) -> Vec<Leased> {
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
