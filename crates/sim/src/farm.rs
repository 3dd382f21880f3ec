//! A farm of a size that nobody here can run: the real scheduler, thousands of slots, and a manager whose work takes time.
//!
//! Sessions and payloads are left out: what they cost the manager is a parameter, to be measured where they are real. What is
//! asked is where one manager is at its end.

use std::collections::VecDeque;
use std::time::Duration;

use exoskel_flow::{
    Action, FrameId, FunctionId, Index, Program, Scheduler, SchedulerConfig, Sizes, Skeleton,
    SlotId, StreamId, StreamOptions,
};

use crate::agenda::Agenda;
use crate::digest::Digest;
use crate::random::SplitMix64;
use crate::report::Violation;

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
    /// Items, each one instruction.
    pub items: u64,
    /// The mean time of an item; each takes evenly between half and one and a half of it.
    pub grain: Duration,
    /// From the manager to a slot, and back.
    pub latency: Duration,
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
struct Frame {
    id: FrameId,
    first: Index,
    count: u32,
}

#[derive(Debug)]
enum Event {
    /// A frame comes to a slot.
    Work(u32, Frame),
    /// A slot is asked for items of a frame.
    Recall(u32, FrameId, u32),
    /// A slot has finished its frame.
    Done(u32),
    /// Results come to the manager, with the time spent on them.
    Results(u32, Frame, Duration),
    /// Items given back come to the manager.
    Recalled(u32, Frame),
    /// The scheduler wants to know the time.
    Wake,
}

#[derive(Debug, Default)]
struct Process {
    queue: VecDeque<Frame>,
    running: Option<(Frame, Duration)>,
}

struct Run<'a> {
    farm: &'a LargeFarm,
    scheduler: Scheduler,
    stream: StreamId,
    processes: Vec<Process>,
    agenda: Agenda<Event>,
    now: Duration,
    /// When the manager has done what it has begun.
    free: Duration,
    wake: Option<Duration>,
    admitted: u64,
    outcomes: u64,
    /// A bit for each item that has its outcome.
    finished: Vec<u64>,
    digest: Digest,
    report: LargeFarmReport,
}

impl LargeFarm {
    /// Such a farm with costs of nothing.
    pub fn new(seed: u64, slots: u32, items: u64, grain: Duration, latency: Duration) -> Self {
        Self {
            seed,
            slots,
            items,
            grain,
            latency,
            frame_cost: Duration::ZERO,
            item_cost: Duration::ZERO,
            config: SchedulerConfig {
                slots_max: slots,
                tickets_max: slots.saturating_mul(16),
                ..SchedulerConfig::default()
            },
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
        let skeleton = Skeleton::Farm(Box::new(Skeleton::Seq(FunctionId(0))));
        let program = Program::compile(&skeleton).map_err(|error| refuse(error.to_string()))?;
        let mut scheduler = Scheduler::new(self.config.clone());
        let stream = scheduler
            .open_stream(&program, StreamOptions::default(), Duration::ZERO)
            .map_err(|error| refuse(error.to_string()))?;
        for slot in 0..self.slots {
            scheduler
                .add_slot(SlotId(slot), Duration::ZERO)
                .map_err(|error| refuse(error.to_string()))?;
        }
        let mut run = Run {
            farm: self,
            scheduler,
            stream,
            processes: (0..self.slots).map(|_| Process::default()).collect(),
            agenda: Agenda::new(),
            now: Duration::ZERO,
            free: Duration::ZERO,
            wake: None,
            admitted: 0,
            outcomes: 0,
            finished: vec![0; (self.items as usize).div_ceil(64)],
            digest: Digest::default(),
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

    fn time(&self, index: Index) -> Duration {
        let mut random = SplitMix64::new(self.seed ^ index.wrapping_mul(0xD134_2543_DE82_EF95));
        random.between(self.grain / 2, self.grain + self.grain / 2)
    }
}

impl Run<'_> {
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
                if let Some((frame, busy)) = self.processes[slot as usize].running.take() {
                    let at = now + self.farm.latency;
                    self.agenda.plan(at, Event::Results(slot, frame, busy));
                }
                self.start(slot);
                return Ok(());
            }
            Event::Results(slot, frame, busy) => self.results(slot, frame, busy)?,
            Event::Recalled(slot, frame) => {
                let at = self.works(self.farm.frame_cost / 2);
                self.report.recalled += u64::from(frame.count);
                let Frame { id, first, count } = frame;
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

    fn results(&mut self, slot: u32, frame: Frame, busy: Duration) -> Result<(), Violation> {
        let cost = (self.farm.frame_cost + self.farm.item_cost * frame.count) / 2;
        let at = self.works(cost);
        let sizes = Sizes::Total {
            count: frame.count,
            bytes: ITEM_BYTES * u64::from(frame.count),
        };
        let accepted = self
            .scheduler
            .results(SlotId(slot), frame.id, frame.first, sizes, busy, at);
        let ranges = accepted.map(|accepted| accepted.ranges.to_vec());
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
                    first,
                    count,
                    ..
                } => {
                    self.works((self.farm.frame_cost + self.farm.item_cost * count) / 2);
                    self.report.frames += 1;
                    let frame = Frame {
                        id: frame,
                        first,
                        count,
                    };
                    let at = self.free + self.farm.latency;
                    self.agenda.plan(at, Event::Work(slot.0, frame));
                }
                Action::Recall { slot, frame, count } => {
                    self.works(self.farm.frame_cost / 2);
                    let at = self.free + self.farm.latency;
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

    fn start(&mut self, slot: u32) {
        let process = &mut self.processes[slot as usize];
        if process.running.is_some() {
            return;
        }
        let Some(frame) = process.queue.pop_front() else {
            return;
        };
        let items = frame.first..frame.first + u64::from(frame.count);
        let time: Duration = items.map(|index| self.farm.time(index)).sum();
        process.running = Some((frame, time));
        self.report.work += time;
        self.agenda.plan(self.now + time, Event::Done(slot));
    }

    /// A slot gives back what it has not begun: frames here run as a whole.
    fn give_back(&mut self, slot: u32, id: FrameId, count: u32) {
        let queue = &mut self.processes[slot as usize].queue;
        let mut given = Frame {
            id,
            first: 0,
            count: 0,
        };
        if let Some(position) = queue.iter().position(|frame| frame.id == id) {
            let frame = &mut queue[position];
            given.count = count.min(frame.count);
            frame.count -= given.count;
            given.first = frame.first + u64::from(frame.count);
            if frame.count == 0 {
                queue.remove(position);
            }
        }
        let at = self.now + self.farm.latency;
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
