//! Farms and pipelines of a size that nobody here can run: the real scheduler, thousands of slots, and a manager whose work takes time.
//!
//! Sessions and payloads are left out: what they cost the manager is a parameter, to be measured where they are real. What is
//! asked is where one manager is at its end.

use std::collections::VecDeque;
use std::time::Duration;

use exoskel_flow::{
    Action, FrameId, FunctionId, Index, Lease, Program, Results, Scheduler, SchedulerConfig,
    Segment, Skeleton, SlotId, StreamId, StreamOptions,
};

use crate::agenda::Agenda;
use crate::violation::Violation;
use exoskel_determinism::{RunDigest, SplitMix64};

/// Bytes of a token and of a result.
const ITEM_BYTES: u64 = 100;

/// Every so many steps, what the scheduler counts is held against what has happened.
const CHECK_EVERY: u64 = 4096;

/// Everything that such a run depends on.
#[derive(Clone, Debug, PartialEq)]
pub struct LargeFarm {
    /// Of all randomness.
    pub seed: u64,
    /// Slots.
    pub slots: u32,
    /// What each item passes.
    pub skeleton: Skeleton,
    /// Items, each one instruction for each segment of the program.
    pub items: u64,
    /// The mean time of an item in a function inside a farm; each takes evenly between half and one and a half of it.
    pub grain: Duration,
    /// What each item takes in a serial function.
    pub serial: Duration,
    /// From the manager to a slot, and back.
    pub latency: Duration,
    /// So many of the slots are elsewhere, and so far away.
    pub elsewhere: (u32, Duration),
    /// What a frame costs the manager, out and back together, besides its items.
    pub frame_cost: Duration,
    /// What an item costs the manager, out and back together.
    pub item_cost: Duration,
    /// The scheduler's settings.
    pub config: SchedulerConfig,
}

/// What came out.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LargeFarmReport {
    /// From the first item's admission to the last outcome.
    pub makespan: Duration,
    /// Time spent in items, all slots together.
    pub work: Duration,
    /// Time in which the manager was busy.
    pub managing: Duration,
    /// Frames sent.
    pub frames: u64,
    /// Items given back.
    pub recalled: u64,
    /// Times that a slot gave a serial function back before its frame's end.
    pub released: u64,
    /// How many events there were.
    pub steps: u64,
    /// Of all events in their order.
    pub digest: u64,
}

impl LargeFarmReport {
    /// How many times as fast as one slot without a manager.
    pub fn speed_up(&self) -> f64 {
        self.work.as_secs_f64() / self.makespan.as_secs_f64()
    }

    /// The share of the time in which the manager was busy.
    pub fn load(&self) -> f64 {
        self.managing.as_secs_f64() / self.makespan.as_secs_f64()
    }
}

#[derive(Clone, Copy, Debug)]
struct FarmFrame {
    id: FrameId,
    segment: u16,
    lease: Lease,
    first: Index,
    count: u32,
}

/// How far a slot is in its frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FarmPart {
    /// What is left of the frame runs as a whole.
    Whole,
    /// All items pass the serial function, which another slot has then ([`Lease::PassedOn`]).
    Passing,
    /// This item, counted from the frame's first, is in the serial function ([`Lease::Kept`]).
    Serial(u32),
    /// It is in those after it.
    Rest(u32),
}

#[derive(Clone, Copy, Debug)]
struct FarmRunning {
    frame: FarmFrame,
    part: FarmPart,
    /// Time spent that no answer has said yet.
    busy: Duration,
    /// The serial function goes back as soon as the running item has passed it.
    is_awaited: bool,
}

#[derive(Debug)]
enum Event {
    /// A frame comes to a slot.
    Work(u32, FarmFrame),
    /// A slot is asked for items of a frame.
    Recall(u32, FrameId, u32),
    /// A slot has finished its frame, or a part of it.
    Done(u32),
    /// A slot gives a serial function back, with the time spent in it.
    Released(u32, FrameId, Duration),
    /// Results come to the manager, with the time spent on them.
    Results(u32, FarmFrame, Duration),
    /// Items given back come to the manager.
    Recalled(u32, FarmFrame),
    /// The scheduler wants to know the time.
    Wake,
}

#[derive(Debug, Default)]
struct FarmSlot {
    queue: VecDeque<FarmFrame>,
    running: Option<FarmRunning>,
}

struct FarmRun<'a> {
    farm: &'a LargeFarm,
    program: Program,
    scheduler: Scheduler,
    stream: StreamId,
    processes: Vec<FarmSlot>,
    agenda: Agenda<Event>,
    now: Duration,
    /// When the manager has done what it has begun.
    free: Duration,
    wake: Option<Duration>,
    admitted: u64,
    outcomes: u64,
    /// A bit for each item that has its outcome.
    finished: Vec<u64>,
    digest: RunDigest,
    report: LargeFarmReport,
}

impl LargeFarm {
    /// Such a farm with costs of nothing.
    pub fn new(seed: u64, slots: u32, items: u64, grain: Duration, latency: Duration) -> Self {
        Self {
            seed,
            slots,
            skeleton: Skeleton::Farm(Box::new(Skeleton::Seq(FunctionId(0)))),
            items,
            grain,
            serial: Duration::ZERO,
            latency,
            elsewhere: (0, latency),
            frame_cost: Duration::ZERO,
            item_cost: Duration::ZERO,
            config: SchedulerConfig {
                slots_max: slots,
                tickets_max: slots.saturating_mul(16),
                ..SchedulerConfig::default()
            },
        }
    }

    fn latency_to(&self, slot: u32) -> Duration {
        let (slots, latency) = self.elsewhere;
        match slot < slots {
            true => latency,
            false => self.latency,
        }
    }

    /// Plays it to its end.
    ///
    /// # Errors
    /// The first broken promise: an item with two outcomes or none, counts that differ, a standstill.
    pub fn run(&self) -> Result<LargeFarmReport, Violation> {
        let refuse = |what: String| Violation {
            seed: self.seed,
            step: 0,
            at: Duration::ZERO,
            what,
        };
        let program =
            Program::compile(&self.skeleton).map_err(|error| refuse(error.to_string()))?;
        let mut scheduler = Scheduler::new(self.config.clone());
        let stream = scheduler
            .open_stream(&program, StreamOptions::default(), Duration::ZERO)
            .map_err(|error| refuse(error.to_string()))?;
        for slot in 0..self.slots {
            scheduler
                .add_slot(SlotId(slot), Duration::ZERO)
                .map_err(|error| refuse(error.to_string()))?;
        }
        let mut run = FarmRun {
            farm: self,
            program,
            scheduler,
            stream,
            processes: (0..self.slots).map(|_| FarmSlot::default()).collect(),
            agenda: Agenda::new(),
            now: Duration::ZERO,
            free: Duration::ZERO,
            wake: None,
            admitted: 0,
            outcomes: 0,
            finished: vec![0; (self.items as usize).div_ceil(64)],
            digest: RunDigest::default(),
            report: LargeFarmReport::default(),
        };
        run.manage()?;
        while run.outcomes < self.items {
            run.step()?;
        }
        run.report.makespan = run.free;
        run.report.digest = run.digest.value();
        Ok(run.report)
    }

    /// What an item takes in these functions of a farm.
    fn time(&self, index: Index, functions: &[FunctionId]) -> Duration {
        let time = |function: &FunctionId| {
            let place = index.wrapping_mul(0xD134_2543_DE82_EF95)
                ^ u64::from(function.0).wrapping_mul(0xA24B_AED4_963E_E407);
            let mut random = SplitMix64::new(self.seed ^ place);
            random.between(self.grain / 2, self.grain + self.grain / 2)
        };
        functions.iter().map(time).sum()
    }
}

impl FarmRun<'_> {
    fn step(&mut self) -> Result<(), Violation> {
        let Some((now, event)) = self.agenda.next() else {
            return self.broken(format!("standstill after {} outcomes", self.outcomes));
        };
        self.now = now;
        self.report.steps += 1;
        self.digest.word(now.as_nanos() as u64);
        if self.report.steps.is_multiple_of(CHECK_EVERY) {
            self.check()?;
        }
        match event {
            Event::Work(slot, frame) => {
                self.processes[slot as usize].queue.push_back(frame);
                self.start(slot);
                return Ok(());
            }
            Event::Recall(slot, frame, count) => {
                self.give_back(slot, frame, count);
                return Ok(());
            }
            Event::Done(slot) => {
                self.go_on(slot);
                return Ok(());
            }
            Event::Released(slot, frame, busy) => {
                let at = self.works(self.farm.frame_cost / 2);
                self.report.released += 1;
                self.scheduler.released(SlotId(slot), frame, busy, at);
            }
            Event::Results(slot, frame, busy) => self.results(slot, frame, busy)?,
            Event::Recalled(slot, frame) => {
                let at = self.works(self.farm.frame_cost / 2);
                self.report.recalled += u64::from(frame.count);
                let FarmFrame {
                    id, first, count, ..
                } = frame;
                self.scheduler.recalled(SlotId(slot), id, first, count, at);
            }
            Event::Wake => self.wake = self.wake.filter(|planned| now < *planned),
        }
        self.manage()
    }

    /// The manager does something that takes so long, once it has done what came before. Says when it begins.
    fn works(&mut self, cost: Duration) -> Duration {
        let begun = self.free.max(self.now);
        self.free = begun + cost;
        self.report.managing += cost;
        begun
    }

    fn results(&mut self, slot: u32, frame: FarmFrame, busy: Duration) -> Result<(), Violation> {
        let cost = (self.farm.frame_cost + self.farm.item_cost * frame.count) / 2;
        let at = self.works(cost);
        let results = Results {
            frame: frame.id,
            first: frame.first,
            sizes: &vec![ITEM_BYTES; frame.count as usize],
            ended: &[],
            busy,
        };
        let accepted = match self.scheduler.results(SlotId(slot), results, at) {
            Ok(accepted) => accepted,
            Err(breach) => return self.broken(breach.to_string()),
        };
        let ranges = accepted.map(|accepted| accepted.outcomes.to_vec());
        for range in ranges.into_iter().flatten() {
            for index in range.clone() {
                let (word, bit) = ((index / 64) as usize, 1 << (index % 64));
                if self.finished[word] & bit != 0 {
                    return self.broken(format!("two outcomes of item {index}"));
                }
                self.finished[word] |= bit;
            }
            let count = range.end - range.start;
            self.outcomes += count;
            self.scheduler
                .taken(self.stream, range.start, count as u32, at);
        }
        Ok(())
    }

    /// Items enter, frames leave.
    fn manage(&mut self) -> Result<(), Violation> {
        let at = self.free.max(self.now);
        let left = self.farm.items - self.admitted;
        let room = u64::from(self.scheduler.tickets(self.stream)).min(left);
        if room > 0 {
            let sizes = vec![ITEM_BYTES; room as usize];
            if let Err(error) = self.scheduler.admit(self.stream, &sizes, at) {
                return self.broken(error.to_string());
            }
            self.admitted += room;
            if self.admitted == self.farm.items {
                self.scheduler.end_of_input(self.stream);
            }
        }
        while let Some(action) = self.scheduler.poll_action(self.free.max(self.now)) {
            match action {
                Action::Dispatch {
                    slot,
                    frame,
                    segment,
                    first,
                    count,
                    lease,
                    ..
                } => {
                    self.works((self.farm.frame_cost + self.farm.item_cost * count) / 2);
                    self.report.frames += 1;
                    let frame = FarmFrame {
                        id: frame,
                        segment,
                        lease,
                        first,
                        count,
                    };
                    let at = self.free + self.farm.latency_to(slot.0);
                    self.agenda.plan(at, Event::Work(slot.0, frame));
                }
                Action::Recall { slot, frame, count } => {
                    self.works(self.farm.frame_cost / 2);
                    let at = self.free + self.farm.latency_to(slot.0);
                    self.agenda.plan(at, Event::Recall(slot.0, frame, count));
                }
                Action::Grant { .. } | Action::Failed { .. } => {
                    return self.broken(format!("got {action:?}, expected none such"));
                }
            }
        }
        if let Some(wake) = self.scheduler.next_timeout()
            && self.wake.is_none_or(|planned| wake < planned)
        {
            self.wake = Some(wake);
            self.agenda.plan(wake.max(self.now), Event::Wake);
        }
        Ok(())
    }

    fn segment(&self, frame: &FarmFrame) -> &Segment {
        &self.program.segments()[usize::from(frame.segment)]
    }

    fn start(&mut self, slot: u32) {
        let process = &mut self.processes[slot as usize];
        if process.running.is_some() {
            return;
        }
        let Some(frame) = process.queue.pop_front() else {
            return;
        };
        let part = match frame.lease {
            Lease::PassedOn => FarmPart::Passing,
            Lease::Kept if self.segment(&frame).has_rest() => FarmPart::Serial(0),
            Lease::Kept | Lease::None => FarmPart::Whole,
        };
        let running = FarmRunning {
            frame,
            part,
            busy: Duration::ZERO,
            is_awaited: false,
        };
        self.enter(slot, running);
    }

    /// A slot begins a part of its frame.
    fn enter(&mut self, slot: u32, mut running: FarmRunning) {
        let FarmFrame {
            first,
            count,
            lease,
            ..
        } = running.frame;
        let segment = self.segment(&running.frame);
        let rest = |index| self.farm.time(index, &segment.parallel);
        let time: Duration = match running.part {
            FarmPart::Passing => self.farm.serial * count,
            FarmPart::Serial(_) => self.farm.serial,
            FarmPart::Rest(place) => rest(first + u64::from(place)),
            FarmPart::Whole => {
                let serial = match lease {
                    Lease::Kept => self.farm.serial * count,
                    Lease::PassedOn | Lease::None => Duration::ZERO,
                };
                serial
                    + (first..first + u64::from(count))
                        .map(rest)
                        .sum::<Duration>()
            }
        };
        running.busy += time;
        self.report.work += time;
        self.processes[slot as usize].running = Some(running);
        self.agenda.plan(self.now + time, Event::Done(slot));
    }

    /// A slot has done a part of its frame, or all of it.
    fn go_on(&mut self, slot: u32) {
        let Some(mut running) = self.processes[slot as usize].running.take() else {
            return;
        };
        let frame = running.frame;
        let at = self.now + self.farm.latency_to(slot);
        let next = match running.part {
            FarmPart::Passing => {
                let busy = std::mem::take(&mut running.busy);
                self.agenda.plan(at, Event::Released(slot, frame.id, busy));
                Some(FarmPart::Whole)
            }
            FarmPart::Serial(place) => {
                if std::mem::take(&mut running.is_awaited) {
                    let event = Event::Released(slot, frame.id, Duration::ZERO);
                    self.agenda.plan(at, event);
                }
                Some(FarmPart::Rest(place))
            }
            FarmPart::Rest(place) if place + 1 < frame.count => Some(FarmPart::Serial(place + 1)),
            FarmPart::Rest(_) | FarmPart::Whole => None,
        };
        if let Some(part) = next {
            self.enter(slot, FarmRunning { part, ..running });
        } else {
            let event = Event::Results(slot, frame, running.busy);
            self.agenda.plan(at, event);
            self.start(slot);
        }
    }

    /// A slot gives back what it has not begun. Of the frame that runs, that is something only where the items pass a serial
    /// function one by one; when nothing is left for it, it goes back too.
    fn give_back(&mut self, slot: u32, id: FrameId, count: u32) {
        let FarmSlot { queue, running } = &mut self.processes[slot as usize];
        let at = self.now + self.farm.latency_to(slot);
        let mut given = FarmFrame {
            id,
            segment: 0,
            lease: Lease::None,
            first: 0,
            count: 0,
        };
        let mut take = |frame: &mut FarmFrame, begun: u32| {
            given.count = count.min(frame.count - begun);
            frame.count -= given.count;
            given.first = frame.first + u64::from(frame.count);
        };
        if let Some(position) = queue.iter().position(|frame| frame.id == id) {
            let frame = &mut queue[position];
            take(frame, 0);
            if frame.count == 0 {
                queue.remove(position);
            }
        } else if let Some(running) = running.as_mut().filter(|running| running.frame.id == id) {
            match running.part {
                FarmPart::Serial(place) => {
                    take(&mut running.frame, place + 1);
                    running.is_awaited = running.frame.count == place + 1;
                }
                FarmPart::Rest(place) => {
                    take(&mut running.frame, place + 1);
                    if running.frame.count == place + 1 {
                        let event = Event::Released(slot, id, Duration::ZERO);
                        self.agenda.plan(at, event);
                    }
                }
                FarmPart::Whole | FarmPart::Passing => {}
            }
        }
        self.agenda.plan(at, Event::Recalled(slot, given));
    }

    fn check(&self) -> Result<(), Violation> {
        let Some(progress) = self.scheduler.progress(self.stream) else {
            return self.broken("the stream is gone".to_owned());
        };
        if (progress.admitted, progress.taken) != (self.admitted, self.outcomes) {
            return self.broken(format!(
                "{} items and {} outcomes, but the scheduler says {progress:?}",
                self.admitted, self.outcomes
            ));
        }
        if self.admitted - self.outcomes > u64::from(self.farm.config.tickets_max) {
            return self.broken(format!("{} items inside", self.admitted - self.outcomes));
        }
        Ok(())
    }

    fn broken<T>(&self, what: String) -> Result<T, Violation> {
        Err(Violation {
            seed: self.farm.seed,
            step: self.report.steps,
            at: self.now,
            what,
        })
    }
}
