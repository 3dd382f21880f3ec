//! A world around the scheduler that is as unkind as the rules allow: messages arrive late, slots flush when they
//! like, results are huge, slots are lost. It mirrors what the scheduler may know and checks every dispatch.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;
use std::time::Duration;

use exoskel_flow::*;

/// A frame as its slot sees it.
struct Job {
    frame: FrameId,
    stream: StreamId,
    grant: u64,
    queue: VecDeque<Index>,
    /// Items that must still pass the serial function before any goes on.
    serial_left: u32,
    /// Each item goes on to other functions after the serial one by itself.
    goes_on: bool,
    done: Vec<(Index, u64)>,
}

enum Answer {
    Results(FrameId, Index, Vec<u64>),
    Released(FrameId),
    Announced(FrameId, Index, u64),
    Recalled(FrameId, Index, u32),
}

#[derive(Default)]
struct Process {
    inbox: VecDeque<Action>,
    jobs: VecDeque<Job>,
    large: BTreeMap<(FrameId, Index), u64>,
    outbox: VecDeque<Answer>,
    /// What the scheduler must take as running: frame, item.
    running: BTreeSet<(FrameId, Index)>,
    waiting: BTreeSet<(FrameId, Index)>,
    /// Serial frames without an answer that frees the lease.
    leases: BTreeMap<FrameId, (StreamId, u16)>,
    suspect: bool,
}

#[derive(Default)]
pub(crate) struct Tape(pub(crate) Vec<u32>, pub(crate) usize);

impl Tape {
    /// The next number below `limit`; 0 when the tape is at its end.
    pub(crate) fn below(&mut self, limit: u32) -> u32 {
        self.1 += 1;
        self.0
            .get(self.1 - 1)
            .map_or(0, |number| number % limit.max(1))
    }

    pub(crate) fn is_over(&self) -> bool {
        self.1 >= self.0.len()
    }
}

pub(crate) struct World {
    pub(crate) scheduler: Scheduler,
    programs: BTreeMap<StreamId, Program>,
    processes: BTreeMap<SlotId, Process>,
    frames: BTreeMap<FrameId, (StreamId, u16, Index, u32)>,
    seen_frames: BTreeSet<FrameId>,
    suspects: BTreeSet<(StreamId, Index)>,
    pub(crate) outcomes: BTreeMap<(StreamId, Index), u32>,
    untaken: BTreeMap<StreamId, BTreeSet<Index>>,
    pub(crate) cancelled: BTreeSet<(StreamId, Index)>,
    pub(crate) charges: BTreeMap<(StreamId, Index), u32>,
    closed: BTreeSet<StreamId>,
    next_slot: u32,
    pub(crate) now: Duration,
    size_max: u32,
    /// Slots that stop at this item and must be lost.
    pub(crate) poison: Option<Index>,
}

impl World {
    pub(crate) fn new(config: SchedulerConfig, size_max: u32) -> Self {
        Self {
            scheduler: Scheduler::new(config),
            programs: BTreeMap::new(),
            processes: BTreeMap::new(),
            frames: BTreeMap::new(),
            seen_frames: BTreeSet::new(),
            suspects: BTreeSet::new(),
            outcomes: BTreeMap::new(),
            untaken: BTreeMap::new(),
            cancelled: BTreeSet::new(),
            charges: BTreeMap::new(),
            closed: BTreeSet::new(),
            next_slot: 0,
            now: Duration::ZERO,
            size_max,
            poison: None,
        }
    }

    pub(crate) fn open(&mut self, skeleton: &Skeleton, tickets: Tickets) -> StreamId {
        let program = Program::compile(skeleton).unwrap();
        let stream = self
            .scheduler
            .open_stream(&program, StreamOptions { tickets }, self.now)
            .unwrap();
        self.programs.insert(stream, program);
        self.untaken.insert(stream, BTreeSet::new());
        stream
    }

    pub(crate) fn slots(&self) -> usize {
        self.processes.len()
    }

    pub(crate) fn add_slot(&mut self) {
        let slot = SlotId(self.next_slot);
        self.next_slot += 1;
        self.scheduler.add_slot(slot, self.now).unwrap();
        self.processes.insert(slot, Process::default());
    }

    /// Admits up to `count` items, as tickets allow.
    pub(crate) fn admit(&mut self, stream: StreamId, count: u32, tape: &mut Tape) -> u32 {
        let tickets = self.scheduler.tickets(stream);
        let sizes: Vec<u64> = (0..count.min(tickets)).map(|_| self.size(tape)).collect();
        if !sizes.is_empty() {
            let first = self.scheduler.admit(stream, &sizes, self.now).unwrap();
            // Some can't be sent and are their own outcomes.
            for index in first..first + sizes.len() as u64 {
                if tape.below(12) == 11 {
                    assert!(self.scheduler.finish(stream, index, self.now));
                    self.outcome(stream, index);
                }
            }
        }
        sizes.len() as u32
    }

    fn size(&self, tape: &mut Tape) -> u64 {
        u64::from(if tape.below(4) == 0 {
            tape.below(self.size_max)
        } else {
            tape.below(200)
        })
    }

    pub(crate) fn take(&mut self, stream: StreamId, ordered: bool, tape: &mut Tape) -> bool {
        let Some(untaken) = self.untaken.get_mut(&stream) else {
            return false;
        };
        let next = self
            .scheduler
            .progress(stream)
            .map(|progress| progress.taken);
        let pick = if ordered {
            untaken.first().copied()
        } else {
            untaken
                .iter()
                .nth(tape.below(untaken.len() as u32) as usize)
                .copied()
        };
        let Some(index) = pick else { return false };
        if ordered && self.cancelled.is_empty() && next != Some(index) {
            return false;
        }
        untaken.remove(&index);
        assert_eq!(self.scheduler.taken(stream, index, 1, self.now), 1);
        true
    }

    pub(crate) fn cancel(&mut self, stream: StreamId, index: Index) {
        if self.scheduler.cancel(stream, index, self.now) == Cancel::Removed {
            assert!(self.cancelled.insert((stream, index)));
            self.suspects.remove(&(stream, index));
        }
    }

    pub(crate) fn close(&mut self, stream: StreamId) {
        self.scheduler.close_stream(stream, self.now);
        self.closed.insert(stream);
        self.untaken.remove(&stream);
        self.suspects.retain(|(of, _)| *of != stream);
        for process in self.processes.values_mut() {
            let frames = &self.frames;
            process
                .waiting
                .retain(|(frame, _)| frames[frame].0 != stream);
        }
    }

    /// Loses a slot, or lets it leave.
    pub(crate) fn lose(&mut self, pick: u32, departure: Departure) {
        let Some(slot) = self
            .processes
            .keys()
            .nth(pick as usize % self.processes.len().max(1))
            .copied()
        else {
            return;
        };
        let process = self.processes.remove(&slot).unwrap();
        let alone = process.running.len() == 1;
        for (frame, index) in process.running {
            let item = (self.frames[&frame].0, index);
            if self.closed.contains(&item.0) || departure != Departure::Lost {
                continue;
            }
            if alone {
                *self.charges.entry(item).or_default() += 1;
            }
            self.suspects.insert(item);
        }
        self.scheduler
            .remove_slot(slot, departure, self.now)
            .unwrap();
    }

    pub(crate) fn drain(&mut self, pick: u32) {
        let Some(slot) = self
            .processes
            .keys()
            .nth(pick as usize % self.processes.len().max(1))
            .copied()
        else {
            return;
        };
        self.scheduler.drain_slot(slot, self.now);
    }

    /// Does what the scheduler says, checking each word.
    pub(crate) fn act(&mut self) {
        while let Some(action) = self.scheduler.poll_action(self.now) {
            match action {
                Action::Dispatch {
                    slot,
                    frame,
                    stream,
                    segment,
                    first,
                    count,
                    lease,
                    ..
                } => {
                    self.check_dispatch(slot, frame, stream, segment, first, count);
                    self.check_lease(slot, frame, lease);
                    self.processes
                        .get_mut(&slot)
                        .unwrap()
                        .inbox
                        .push_back(action);
                }
                Action::Recall { slot, frame, count } => {
                    self.check_recall(slot, frame, count);
                    self.processes
                        .get_mut(&slot)
                        .unwrap()
                        .inbox
                        .push_back(action);
                }
                Action::Grant { slot, frame, index } => {
                    let process = self.processes.get_mut(&slot).unwrap();
                    assert!(
                        process.waiting.contains(&(frame, index)),
                        "granted what was not announced"
                    );
                    process.inbox.push_back(action);
                }
                Action::Failed {
                    stream,
                    segment,
                    index,
                    failure: Failure::WorkersLost { count },
                } => {
                    assert_eq!(count, self.charges[&(stream, index)]);
                    // It was out there for the last time.
                    assert!(self.frames.values().any(|&(of, at, first, count)| {
                        (of, at) == (stream, segment)
                            && (first..first + u64::from(count)).contains(&index)
                    }));
                    assert_eq!(count, self.scheduler.config().retries);
                    self.suspects.remove(&(stream, index));
                    self.outcome(stream, index);
                }
            }
        }
        self.check_budgets();
    }

    fn check_dispatch(
        &mut self,
        slot: SlotId,
        frame: FrameId,
        stream: StreamId,
        segment: u16,
        first: Index,
        count: u32,
    ) {
        assert!(
            self.seen_frames.insert(frame),
            "a frame number was used twice"
        );
        assert!(count > 0 && count <= self.scheduler.config().frame_items_max);
        assert!(!self.closed.contains(&stream));
        self.frames.insert(frame, (stream, segment, first, count));
        let process = self
            .processes
            .get_mut(&slot)
            .expect("dispatched to a slot that is gone");
        assert!(
            !process.suspect || process.running.is_empty(),
            "something was put behind a suspect"
        );
        let indexes = first..first + u64::from(count);
        process.suspect = indexes
            .clone()
            .any(|index| self.suspects.contains(&(stream, index)));
        if process.suspect {
            assert_eq!(count, 1, "a suspect is not alone in its frame");
            assert!(
                process.running.is_empty(),
                "a suspect is not alone at its slot"
            );
        }
        for index in indexes {
            assert!(
                !self.cancelled.contains(&(stream, index)),
                "a cancelled item runs"
            );
            assert!(
                !self.outcomes.contains_key(&(stream, index)),
                "a finished item runs again"
            );
            process.running.insert((frame, index));
        }
        let twice = self
            .processes
            .values()
            .flat_map(|process| process.running.iter().chain(&process.waiting));
        let same = twice.filter(|(at, index)| {
            self.frames[at].0 == stream && *index >= first && *index < first + u64::from(count)
        });
        assert_eq!(same.count(), count as usize, "an item is at two slots");
    }

    /// A serial function is at one slot only, and there at the front of its frames or with each of its items.
    fn check_lease(&mut self, slot: SlotId, frame: FrameId, lease: Lease) {
        let (stream, number, ..) = self.frames[&frame];
        let segment = &self.programs[&stream].segments()[usize::from(number)];
        assert_eq!(lease == Lease::None, segment.serial.is_none());
        assert!(lease != Lease::PassedOn || segment.has_rest());
        if lease == Lease::None {
            return;
        }
        for (other, process) in &self.processes {
            let held = process
                .leases
                .values()
                .any(|held| *held == (stream, number));
            assert!(!held || *other == slot, "two slots have a serial function");
        }
        let process = self.processes.get_mut(&slot).unwrap();
        process.leases.insert(frame, (stream, number));
    }

    /// Never a suspect is asked back, nor what must have been started, except to get a lease.
    fn check_recall(&self, slot: SlotId, frame: FrameId, count: u32) {
        let running = &self.processes[&slot].running;
        let here = running.iter().filter(|(of, _)| *of == frame).count();
        let (stream, segment, first, _) = self.frames[&frame];
        if self.closed.contains(&stream) {
            return assert_eq!(here, count as usize, "a closed stream is asked back whole");
        }
        let serial = self.programs[&stream].segments()[usize::from(segment)].serial;
        assert!(
            !self.suspects.contains(&(stream, first)),
            "a suspect is asked back"
        );
        let head = serial.is_none() && running.first().is_some_and(|(of, _)| *of == frame);
        assert!(
            count > 0 && count as usize + usize::from(head) <= here,
            "{count} of {here}"
        );
    }

    fn check_budgets(&self) {
        let config = self.scheduler.config();
        for stream in self.programs.keys() {
            let (held, reserved) = self.scheduler.result_bytes(*stream);
            let inside = self
                .scheduler
                .progress(*stream)
                .map_or(0, |at| at.admitted - at.taken);
            let least_grants = config.grant_bytes_min * inside + 2 * u64::from(self.size_max);
            assert!(
                held + reserved <= config.result_budget_bytes + least_grants,
                "{held} held and {reserved} reserved"
            );
        }
    }

    fn outcome(&mut self, stream: StreamId, index: Index) {
        let count = self.outcomes.entry((stream, index)).or_default();
        *count += 1;
        assert_eq!(*count, 1, "two outcomes of one item");
        self.untaken.get_mut(&stream).unwrap().insert(index);
    }

    /// Something happens at a slot: a message arrives, an item runs, or an answer arrives here. Says whether
    /// anything could happen at all.
    pub(crate) fn step(&mut self, tape: &mut Tape) -> bool {
        let count = self.processes.len() as u32;
        let start = tape.below(count);
        let kind = tape.below(3);
        for offset in 0..count * 3 {
            let slot = *self
                .processes
                .keys()
                .nth(((start + offset / 3) % count) as usize)
                .unwrap();
            let happened = match (kind + offset) % 3 {
                0 => self.read(slot),
                1 => self.run(slot, tape),
                _ => self.answer(slot, tape),
            };
            if happened {
                return true;
            }
        }
        false
    }

    fn read(&mut self, slot: SlotId) -> bool {
        let process = self.processes.get_mut(&slot).unwrap();
        match process.inbox.pop_front() {
            None => return false,
            Some(Action::Dispatch {
                frame,
                stream,
                segment,
                first,
                count,
                grant,
                lease,
                ..
            }) => {
                let rest = self.programs[&stream].segments()[usize::from(segment)].has_rest();
                let queue = (first..first + u64::from(count)).collect();
                let serial_left = if lease == Lease::PassedOn { count } else { 0 };
                let job = Job {
                    frame,
                    stream,
                    grant,
                    queue,
                    serial_left,
                    goes_on: lease == Lease::Kept && rest,
                    done: Vec::new(),
                };
                process.jobs.push_back(job);
            }
            Some(Action::Recall { frame, count, .. }) => {
                let (_, _, first, items) = self.frames[&frame];
                let end = first + u64::from(items);
                let head = process.jobs.front().is_some_and(|job| job.frame == frame);
                let job = process.jobs.iter_mut().find(|job| {
                    let untouched = job.serial_left as usize == job.queue.len();
                    job.frame == frame && (job.serial_left == 0 || untouched && !head)
                });
                let answer = job.map(|job| {
                    // The last item of what runs now is taken as started.
                    let able = job.queue.len().saturating_sub(usize::from(head));
                    let keep = job.queue.len() - able.min(count as usize);
                    let back = job.queue.split_off(keep);
                    job.serial_left = job.serial_left.min(keep as u32);
                    // What runs has passed the serial function, and nothing else of the frame will come to it.
                    let released = head && job.goes_on && job.queue.len() == 1;
                    (
                        back.front().copied().unwrap_or(end),
                        back.len() as u32,
                        released,
                    )
                });
                let (first, count, released) = answer.unwrap_or((end, 0, false));
                process
                    .outbox
                    .push_back(Answer::Recalled(frame, first, count));
                if released {
                    process.outbox.push_back(Answer::Released(frame));
                }
            }
            Some(Action::Grant { frame, index, .. }) => {
                if let Some(size) = process.large.remove(&(frame, index)) {
                    process
                        .outbox
                        .push_back(Answer::Results(frame, index, vec![size]));
                }
            }
            Some(Action::Failed { .. }) => unreachable!("never sent to a slot"),
        }
        true
    }

    fn run(&mut self, slot: SlotId, tape: &mut Tape) -> bool {
        let size = self.size(tape);
        let flush = tape.below(3) == 0;
        let process = self.processes.get_mut(&slot).unwrap();
        let Some(job) = process.jobs.front_mut() else {
            return false;
        };
        self.now += Duration::from_micros(1 + size % 700);
        if job.serial_left > 0 {
            job.serial_left -= 1;
            if job.serial_left == 0 {
                process.outbox.push_back(Answer::Released(job.frame));
            }
            return true;
        }
        let poisoned = job
            .queue
            .front()
            .is_some_and(|index| Some(*index) == self.poison && job.stream == StreamId(0));
        if poisoned {
            let pick = self.processes.keys().position(|key| *key == slot).unwrap();
            self.lose(pick as u32, Departure::Lost);
            self.add_slot();
            return true;
        }
        if let Some(index) = job.queue.pop_front() {
            if size > job.grant {
                process.large.insert((job.frame, index), size);
                process
                    .outbox
                    .push_back(Answer::Announced(job.frame, index, size));
            } else {
                job.done.push((index, size));
            }
        }
        if flush || job.queue.is_empty() {
            for run in job.done.chunk_by(|one, next| one.0 + 1 == next.0) {
                let sizes = run.iter().map(|(_, size)| *size).collect();
                process
                    .outbox
                    .push_back(Answer::Results(job.frame, run[0].0, sizes));
            }
            job.done.clear();
        }
        if job.queue.is_empty() {
            process.jobs.pop_front();
        }
        true
    }

    fn answer(&mut self, slot: SlotId, tape: &mut Tape) -> bool {
        let process = self.processes.get_mut(&slot).unwrap();
        match process.outbox.pop_front() {
            None => return false,
            Some(Answer::Released(frame)) => {
                process.leases.remove(&frame);
                // Like a slot's clock: now and then too coarse to see anything.
                let busy = Duration::from_micros(u64::from(tape.below(200)));
                self.scheduler.released(slot, frame, busy, self.now);
            }
            Some(Answer::Announced(frame, index, bytes)) => {
                process.running.remove(&(frame, index));
                let stream = self.frames[&frame].0;
                if !self.closed.contains(&stream) {
                    process.waiting.insert((frame, index));
                }
                self.suspects.remove(&(stream, index));
                self.free_lease(slot, frame);
                let announced = self
                    .scheduler
                    .announced(slot, frame, index, bytes, self.now);
                assert_eq!(announced, Ok(()));
            }
            Some(Answer::Recalled(frame, first, count)) => {
                (first..first + u64::from(count)).for_each(|index| {
                    process.running.remove(&(frame, index));
                });
                self.free_lease(slot, frame);
                self.scheduler.recalled(slot, frame, first, count, self.now);
            }
            Some(Answer::Results(frame, first, sizes)) => {
                let (stream, segment, ..) = self.frames[&frame];
                for index in first..first + sizes.len() as u64 {
                    process.running.remove(&(frame, index));
                    process.waiting.remove(&(frame, index));
                    self.suspects.remove(&(stream, index));
                }
                self.free_lease(slot, frame);
                let items = first..first + sizes.len() as u64;
                let last = usize::from(segment) + 1 == self.programs[&stream].segments().len();
                let ends: Vec<bool> = items.clone().map(|_| tape.below(4) == 3).collect();
                let (ended, goes_on): (Vec<Index>, Vec<Index>) =
                    items.partition(|index| ends[(index - first) as usize]);
                let results = Results {
                    frame,
                    first,
                    sizes: &sizes,
                    ended: &ended,
                    busy: Duration::from_micros(10 * sizes.len() as u64),
                };
                let accepted = self.scheduler.results(slot, results, self.now).unwrap();
                if self.closed.contains(&stream) {
                    assert!(accepted.is_none());
                    return true;
                }
                let accepted = accepted.expect("the answer is in time");
                assert_eq!((accepted.stream, accepted.segment), (stream, segment));
                let flat = |ranges: &[Range<Index>]| ranges.iter().cloned().flatten().collect();
                let outcomes: Vec<Index> = flat(accepted.outcomes);
                let tokens: Vec<Index> = flat(accepted.tokens);
                if last {
                    let all: Vec<Index> = (first..first + sizes.len() as u64).collect();
                    assert_eq!((&outcomes, tokens.len()), (&all, 0));
                } else {
                    assert_eq!((&outcomes, &tokens), (&ended, &goes_on));
                }
                // Said twice, it counts once.
                let again = self.scheduler.results(slot, results, self.now);
                assert_eq!(again, Ok(None));
                outcomes
                    .into_iter()
                    .for_each(|index| self.outcome(stream, index));
            }
        }
        true
    }

    /// Without an item to run in it, a frame has no lease.
    fn free_lease(&mut self, slot: SlotId, frame: FrameId) {
        let process = self.processes.get_mut(&slot).unwrap();
        if !process.running.iter().any(|(of, _)| *of == frame) {
            process.leases.remove(&frame);
        }
        if process.running.is_empty() {
            process.suspect = false;
        }
    }

    /// All slots work and the user takes everything: all items admitted must come to their end.
    pub(crate) fn finish(&mut self, ordered: bool, tape: &mut Tape) {
        let mut idle = 0;
        while idle < 3 {
            self.act();
            let moved = self.step(tape)
                || self
                    .untaken
                    .keys()
                    .copied()
                    .collect::<Vec<_>>()
                    .into_iter()
                    .any(|stream| self.take(stream, ordered, tape));
            idle = if moved { 0 } else { idle + 1 };
            if !moved {
                self.now += Duration::from_millis(20);
            }
        }
        for stream in self.untaken.keys() {
            let progress = self.scheduler.progress(*stream).unwrap();
            assert_eq!(progress.taken, progress.admitted, "stuck: {progress:?}");
            assert_eq!(self.scheduler.result_bytes(*stream), (0, 0));
            assert!(self.scheduler.tickets(*stream) > 0);
            let outcomes = (0..progress.admitted)
                .filter(|index| self.outcomes.contains_key(&(*stream, *index)));
            let cancelled = self.cancelled.iter().filter(|(of, _)| of == stream).count() as u64;
            assert_eq!(outcomes.count() as u64 + cancelled, progress.admitted);
        }
        for slot in self.processes.keys() {
            assert_eq!(
                self.scheduler.slot_statistics(*slot).unwrap().outstanding,
                0
            );
        }
    }
}
