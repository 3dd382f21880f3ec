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
    /// The segment behind the serial one that all items pass first.
    halfway: Option<u16>,
    /// A state goes through it.
    carries: bool,
    done: Vec<(Index, u64)>,
}

/// A frame as it was sent.
#[derive(Clone, Copy)]
struct Dispatched {
    stream: StreamId,
    from: u16,
    to: u16,
    first: Index,
    count: u32,
}

impl Dispatched {
    fn range(&self) -> Range<Index> {
        self.first..self.first + u64::from(self.count)
    }
}

enum Answer {
    Results(FrameId, Index, Vec<u64>),
    /// Results, and the bytes of the state behind them.
    Carried(FrameId, Index, Vec<u64>, u64),
    /// Results for this segment of the program, of items that were to go on.
    Halfway(FrameId, u16, Index, Vec<u64>),
    Released(FrameId),
    Announced(FrameId, Index, u64),
    Recalled(FrameId, Index, u32),
}

#[derive(Default)]
struct Process {
    inbox: VecDeque<Action>,
    jobs: VecDeque<Job>,
    large: BTreeMap<(FrameId, Index), u64>,
    /// Results that wait with the state behind them.
    carried: BTreeMap<(FrameId, Index), (Vec<u64>, u64)>,
    outbox: VecDeque<Answer>,
    /// What the scheduler must take as running: frame, item.
    running: BTreeSet<(FrameId, Index)>,
    waiting: BTreeSet<(FrameId, Index)>,
    /// Serial frames without an answer that frees the lease.
    leases: BTreeMap<FrameId, (StreamId, u16)>,
    suspect: bool,
}

impl Process {
    /// Runs the next item of the first job, through which a state goes: its result waits for the state behind it.
    fn carry(&mut self, size: u64, state: u64, flush: bool, is_closed: bool) {
        let Some(job) = self.jobs.front_mut() else {
            return;
        };
        if let Some(index) = job.queue.pop_front() {
            job.done.push((index, size));
        }
        let frame = job.frame;
        let is_due = flush || size > job.grant || job.queue.is_empty();
        if is_due && !job.done.is_empty() {
            let done = std::mem::take(&mut job.done);
            let sizes: Vec<u64> = done.iter().map(|(_, size)| *size).collect();
            let (first, count) = (done[0].0, sizes.len() as u64);
            let total = sizes.iter().sum::<u64>() + state;
            if total <= job.grant * count {
                let answer = Answer::Carried(frame, first, sizes, state);
                self.outbox.push_back(answer);
            } else {
                let announced = Answer::Announced(frame, first, total);
                self.outbox.push_back(announced);
                match is_closed {
                    true => {
                        let left = Answer::Recalled(frame, first + 1, count as u32 - 1);
                        self.outbox.push_back(left);
                    }
                    false => {
                        self.carried.insert((frame, first), (sizes, state));
                    }
                }
                // The rest needs a state that is not at the manager yet.
                if let Some(next) = job.queue.front() {
                    let left = Answer::Recalled(frame, *next, job.queue.len() as u32);
                    self.outbox.push_back(left);
                    job.queue.clear();
                }
            }
        }
        if job.queue.is_empty() {
            self.jobs.pop_front();
        }
    }
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
    frames: BTreeMap<FrameId, Dispatched>,
    seen_frames: BTreeSet<FrameId>,
    suspects: BTreeSet<(StreamId, Index)>,
    /// Copies of items that other slots have answered for.
    late: BTreeSet<(FrameId, Index)>,
    /// Items that were dispatched while another slot had them.
    pub(crate) copies: u32,
    pub(crate) outcomes: BTreeMap<(StreamId, Index), u32>,
    /// The items whose results came with states, by their segments: in the order in which these states count.
    pub(crate) carried: BTreeMap<(StreamId, u16), Vec<Index>>,
    untaken: BTreeMap<StreamId, BTreeSet<Index>>,
    pub(crate) cancelled: BTreeSet<(StreamId, Index)>,
    pub(crate) charges: BTreeMap<(StreamId, Index), u32>,
    /// Items that lost one of two copies with its slot, and how often that was the only item there.
    bereft: BTreeMap<(StreamId, Index), u32>,
    closed: BTreeSet<StreamId>,
    ended: BTreeSet<StreamId>,
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
            late: BTreeSet::new(),
            copies: 0,
            outcomes: BTreeMap::new(),
            carried: BTreeMap::new(),
            untaken: BTreeMap::new(),
            cancelled: BTreeSet::new(),
            charges: BTreeMap::new(),
            bereft: BTreeMap::new(),
            closed: BTreeSet::new(),
            ended: BTreeSet::new(),
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
            .open_stream(
                &program,
                StreamOptions {
                    tickets,
                    time_limit: None,
                },
                self.now,
            )
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

    /// No more items will come.
    pub(crate) fn end(&mut self, stream: StreamId) {
        self.scheduler.end_of_input(stream);
        self.ended.insert(stream);
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
                .retain(|(frame, _)| frames[frame].stream != stream);
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
            let item = (self.frames[&frame].stream, index);
            let is_closed = self.closed.contains(&item.0);
            if self.late.contains(&(frame, index)) || is_closed || departure != Departure::Lost {
                continue;
            }
            if self.others(frame, index).next().is_some() {
                // Another copy goes on, and shows whether the item was the reason.
                *self.bereft.entry(item).or_default() += u32::from(alone);
                continue;
            }
            if alone {
                let earlier = self.bereft.remove(&item).unwrap_or(0);
                *self.charges.entry(item).or_default() += 1 + earlier;
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
                    from,
                    to,
                    first,
                    count,
                    lease,
                    ..
                } => {
                    let sent = Dispatched {
                        stream,
                        from,
                        to,
                        first,
                        count,
                    };
                    self.check_dispatch(slot, frame, sent);
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
                Action::Interrupt { slot, frame, index } => {
                    let is_closed = self.closed.contains(&self.frames[&frame].stream);
                    assert!(
                        is_closed || self.late.contains(&(frame, index)),
                        "interrupted what counts"
                    );
                    let process = self.processes.get_mut(&slot).unwrap();
                    process.inbox.push_back(action);
                }
                Action::Overdue { .. } => unreachable!("there are no time limits"),
                Action::LetGo { .. } => unreachable!("nobody waits for so long"),
                Action::Failed {
                    stream,
                    segment,
                    index,
                    failure: Failure::WorkersLost { count },
                } => {
                    assert_eq!(count, self.charges[&(stream, index)]);
                    // It was out there for the last time.
                    assert!(self.frames.values().any(|sent| {
                        (sent.stream, sent.from) == (stream, segment)
                            && sent.range().contains(&index)
                    }));
                    // The last copy may not be the only one that took its slot down.
                    let retries = self.scheduler.config().retries;
                    assert!((retries..=retries + 1).contains(&count));
                    self.suspects.remove(&(stream, index));
                    self.outcome(stream, index);
                }
            }
        }
        self.check_budgets();
    }

    fn check_dispatch(&mut self, slot: SlotId, frame: FrameId, sent: Dispatched) {
        let Dispatched { stream, count, .. } = sent;
        assert!(
            self.seen_frames.insert(frame),
            "a frame number was used twice"
        );
        assert!(count > 0 && count <= self.scheduler.config().frame_items_max);
        assert!(!self.closed.contains(&stream));
        self.frames.insert(frame, sent);
        self.check_order(sent);
        let process = self
            .processes
            .get_mut(&slot)
            .expect("dispatched to a slot that is gone");
        assert!(
            !process.suspect || process.running.is_empty(),
            "something was put behind a suspect"
        );
        let indexes = sent.range();
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
        let others: Vec<_> = sent
            .range()
            .flat_map(|index| self.others(frame, index))
            .collect();
        if let [(at, ..)] = others[..] {
            self.check_copy(slot, frame, at);
        } else {
            assert!(others.is_empty(), "an item is at two slots");
        }
    }

    /// A state comes to an item when all items before it have left theirs, or have ended.
    fn check_order(&self, sent: Dispatched) {
        let Dispatched {
            stream,
            from,
            first,
            ..
        } = sent;
        if !self.carries(stream, from) {
            return;
        }
        let carried = self.carried.get(&(stream, from));
        for index in 0..first {
            let item = (stream, index);
            let has_passed = carried.is_some_and(|carried| carried.contains(&index));
            let has_ended = self.outcomes.contains_key(&item) || self.cancelled.contains(&item);
            assert!(has_passed || has_ended, "item {first} came before {index}");
        }
    }

    fn carries(&self, stream: StreamId, segment: u16) -> bool {
        self.programs[&stream].segments()[usize::from(segment)]
            .carries
            .is_some()
    }

    /// Other frames at slots that have this item of a frame, and an answer of which counts.
    fn others(&self, frame: FrameId, index: Index) -> impl Iterator<Item = (SlotId, FrameId)> {
        let at_slots = self.processes.iter().flat_map(|(slot, process)| {
            let items = process.running.iter().chain(&process.waiting);
            items.map(move |item| (*slot, *item))
        });
        at_slots
            .filter(move |(_, (at, other))| {
                let is_same = self.frames[at].stream == self.frames[&frame].stream;
                *at != frame && is_same && *other == index && !self.late.contains(&(*at, index))
            })
            .map(|(slot, (at, _))| (slot, at))
    }

    /// A second copy is that of an item which runs elsewhere, and alone in its frame.
    fn check_copy(&mut self, slot: SlotId, frame: FrameId, first: SlotId) {
        let Dispatched {
            stream,
            from,
            count,
            ..
        } = self.frames[&frame];
        assert!(self.scheduler.config().stragglers > 0);
        assert!(count == 1 && slot != first, "an item is at two slots");
        let segment = &self.programs[&stream].segments()[usize::from(from)];
        assert!(!segment.serial, "a serial function runs twice");
        assert!(!self.processes[&slot].suspect, "a suspect has a copy");
        let item = (stream, self.frames[&frame].range().start);
        assert!(!self.bereft.contains_key(&item), "a copy was lost before");
        self.copies += 1;
    }

    /// An answer of this frame for an item counts: those of other copies don't.
    fn decide(&mut self, frame: FrameId, index: Index) {
        let others: Vec<_> = self.others(frame, index).collect();
        let late = others.into_iter().map(|(_, at)| (at, index));
        self.late.extend(late);
    }

    /// A serial function is at one slot only, and there at the front of its frames or with each of its items.
    fn check_lease(&mut self, slot: SlotId, frame: FrameId, lease: Lease) {
        let Dispatched {
            stream, from, to, ..
        } = self.frames[&frame];
        let program = &self.programs[&stream];
        let serial = program.segments()[usize::from(from)].serial;
        assert_eq!(lease == Lease::None, !serial);
        assert!((from..=program.furthest(from)).contains(&to));
        assert!(lease != Lease::PassedOn || to > from);
        if lease == Lease::None {
            return;
        }
        for (other, process) in &self.processes {
            let held = process.leases.values().any(|held| *held == (stream, from));
            assert!(!held || *other == slot, "two slots have a serial function");
        }
        let process = self.processes.get_mut(&slot).unwrap();
        process.leases.insert(frame, (stream, from));
    }

    /// Never a suspect is asked back, nor what must have been started, except to get a lease.
    fn check_recall(&self, slot: SlotId, frame: FrameId, count: u32) {
        let running = &self.processes[&slot].running;
        let here = running.iter().filter(|(of, _)| *of == frame).count();
        let Dispatched { stream, from, .. } = self.frames[&frame];
        if self.closed.contains(&stream) {
            return assert_eq!(here, count as usize, "a closed stream is asked back whole");
        }
        let serial = self.programs[&stream].segments()[usize::from(from)].serial;
        // What is late here is decided, and may have become a suspect in another segment since.
        let is_suspect = |(of, index): &(FrameId, Index)| {
            *of == frame
                && !self.late.contains(&(frame, *index))
                && self.suspects.contains(&(stream, *index))
        };
        assert!(!running.iter().any(is_suspect), "a suspect is asked back");
        let is_free = !serial || !self.processes[&slot].leases.contains_key(&frame);
        let head = is_free && running.first().is_some_and(|(of, _)| *of == frame);
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
        let closed = &self.closed;
        let programs = &self.programs;
        let process = self.processes.get_mut(&slot).unwrap();
        match process.inbox.pop_front() {
            None => return false,
            Some(Action::Dispatch {
                frame,
                stream,
                from,
                to,
                first,
                count,
                grant,
                lease,
                ..
            }) => {
                let queue = (first..first + u64::from(count)).collect();
                let serial_left = if lease == Lease::PassedOn { count } else { 0 };
                let job = Job {
                    frame,
                    stream,
                    grant,
                    queue,
                    serial_left,
                    goes_on: lease == Lease::Kept && to > from,
                    halfway: (lease == Lease::PassedOn).then_some(from + 1),
                    carries: programs[&stream].segments()[usize::from(from)]
                        .carries
                        .is_some(),
                    done: Vec::new(),
                };
                process.jobs.push_back(job);
            }
            Some(Action::Recall { frame, count, .. }) => {
                let end = self.frames[&frame].range().end;
                if closed.contains(&self.frames[&frame].stream) {
                    let Process {
                        carried, outbox, ..
                    } = process;
                    carried.retain(|(at, first), (sizes, _)| {
                        if *at == frame {
                            let left = sizes.len() as u32 - 1;
                            outbox.push_back(Answer::Recalled(frame, first + 1, left));
                        }
                        *at != frame
                    });
                }
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
                    if let Some(reached) = job.halfway.filter(|_| job.serial_left == 0)
                        && let Some(first) = back.front()
                    {
                        let sizes = vec![job.grant.min(50); back.len()];
                        let halfway = Answer::Halfway(frame, reached, *first, sizes);
                        process.outbox.push_back(halfway);
                        return (end, 0, false);
                    }
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
                if let Some((sizes, state)) = process.carried.remove(&(frame, index)) {
                    let answer = Answer::Carried(frame, index, sizes, state);
                    process.outbox.push_back(answer);
                }
                if let Some(size) = process.large.remove(&(frame, index)) {
                    process
                        .outbox
                        .push_back(Answer::Results(frame, index, vec![size]));
                }
            }
            Some(Action::Interrupt { frame, index, .. }) => {
                process.large.remove(&(frame, index));
            }
            Some(Action::Failed { .. } | Action::Overdue { .. } | Action::LetGo { .. }) => {
                unreachable!("never sent to a slot")
            }
        }
        true
    }

    fn run(&mut self, slot: SlotId, tape: &mut Tape) -> bool {
        let size = self.size(tape);
        let flush = tape.below(3) == 0;
        let state = u64::from(tape.below(300));
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
        if job.carries {
            let is_closed = self.closed.contains(&job.stream);
            process.carry(size, state, flush, is_closed);
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
                let stream = self.frames[&frame].stream;
                if !self.closed.contains(&stream) && !self.late.contains(&(frame, index)) {
                    process.waiting.insert((frame, index));
                    self.suspects.remove(&(stream, index));
                    self.decide(frame, index);
                }
                self.free_lease(slot, frame);
                let announced =
                    self.scheduler
                        .announced(slot, frame, index..index + 1, bytes, self.now);
                assert_eq!(announced, Ok(()));
            }
            Some(Answer::Recalled(frame, first, count)) => {
                (first..first + u64::from(count)).for_each(|index| {
                    process.running.remove(&(frame, index));
                });
                self.free_lease(slot, frame);
                self.scheduler.recalled(slot, frame, first, count, self.now);
            }
            Some(Answer::Halfway(frame, reached, first, sizes)) => {
                self.results(slot, (frame, reached), first, sizes, tape);
            }
            Some(Answer::Carried(frame, first, sizes, state)) => {
                let reached = self.frames[&frame].to + 1;
                self.results_with(slot, (frame, reached), first, (sizes, Some(state)), tape);
            }
            Some(Answer::Results(frame, first, sizes)) => {
                let sent = self.frames[&frame];
                // What can't travel halfway goes on where it is.
                let furthest = self.programs[&sent.stream].furthest(sent.from);
                let last = if tape.below(4) == 0 {
                    furthest
                } else {
                    sent.to
                };
                let reached = last + 1;
                self.results(slot, (frame, reached), first, sizes, tape);
            }
        }
        true
    }

    fn results(
        &mut self,
        slot: SlotId,
        (frame, reached): (FrameId, u16),
        first: Index,
        sizes: Vec<u64>,
        tape: &mut Tape,
    ) {
        self.results_with(slot, (frame, reached), first, (sizes, None), tape);
    }

    /// Results, and the bytes of the state behind them if there is one.
    fn results_with(
        &mut self,
        slot: SlotId,
        (frame, reached): (FrameId, u16),
        first: Index,
        (sizes, state): (Vec<u64>, Option<u64>),
        tape: &mut Tape,
    ) {
        let process = self.processes.get_mut(&slot).unwrap();
        let Dispatched { stream, from, .. } = self.frames[&frame];
        for index in first..first + sizes.len() as u64 {
            process.running.remove(&(frame, index));
            process.waiting.remove(&(frame, index));
        }
        self.free_lease(slot, frame);
        let late: BTreeSet<Index> = (first..first + sizes.len() as u64)
            .filter(|index| self.late.remove(&(frame, *index)))
            .collect();
        for index in (first..first + sizes.len() as u64).filter(|index| !late.contains(index)) {
            self.suspects.remove(&(stream, index));
            self.decide(frame, index);
        }
        let items = first..first + sizes.len() as u64;
        let last = usize::from(reached) == self.programs[&stream].segments().len();
        let ends: Vec<bool> = items.clone().map(|_| tape.below(4) == 3).collect();
        let (ended, goes_on): (Vec<Index>, Vec<Index>) = items
            .filter(|index| !late.contains(index))
            .partition(|index| ends[(index - first) as usize]);
        // Some programs have long items.
        let item_micros = if stream.0 == 0 { 300 } else { 10 };
        let results = Results {
            frame,
            first,
            reached,
            sizes: &sizes,
            ended: &ended,
            busy: Duration::from_micros(item_micros * sizes.len() as u64),
        };
        let scheduler = &mut self.scheduler;
        let accepted = match state {
            Some(state) => scheduler.carried(slot, results, state, self.now),
            None => scheduler.results(slot, results, self.now),
        };
        let accepted = accepted.unwrap();
        if self.closed.contains(&stream) || late.len() == sizes.len() {
            assert!(accepted.is_none());
            return;
        }
        let accepted = accepted.expect("the answer is in time");
        let passed = (accepted.stream, accepted.from, accepted.reached);
        assert_eq!(passed, (stream, from, reached));
        let flat = |ranges: &[Range<Index>]| ranges.iter().cloned().flatten().collect();
        let outcomes: Vec<Index> = flat(accepted.outcomes);
        let tokens: Vec<Index> = flat(accepted.tokens);
        if last {
            let all = first..first + sizes.len() as u64;
            let all: Vec<Index> = all.filter(|index| !late.contains(index)).collect();
            assert_eq!((&outcomes, tokens.len()), (&all, 0));
        } else {
            assert_eq!((&outcomes, &tokens), (&ended, &goes_on));
        }
        // Said twice, it counts once.
        match state {
            Some(state) => {
                let again = self.scheduler.carried(slot, results, state, self.now);
                assert!(matches!(
                    again,
                    Ok(None) | Err(Breach::CarriedOthers { .. })
                ));
                let carried = self.carried.entry((stream, from)).or_default();
                let next = carried.last().map_or(0, |last| last + 1);
                assert!(first >= next, "a state is older than the last one");
                carried.extend(first..first + sizes.len() as u64);
            }
            None => {
                let again = self.scheduler.results(slot, results, self.now);
                assert_eq!(again, Ok(None));
            }
        }
        outcomes
            .into_iter()
            .for_each(|index| self.outcome(stream, index));
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
            let has_ended = self.ended.contains(stream);
            assert_eq!(self.scheduler.tickets(*stream) == 0, has_ended);
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
