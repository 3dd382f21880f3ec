//! Farms and pipelines of a size that nobody here can run: the real scheduler, thousands of slots, and a manager whose work takes time.
//!
//! Sessions and payloads are left out: what they cost the manager is a parameter, to be measured where they are real. What is
//! asked is where one manager is at its end.

mod slot;

use std::collections::BTreeMap;
use std::time::Duration;

use exoskel_flow::{
    Action, FrameId, FunctionId, Index, Program, Results, Scheduler, SchedulerConfig, Skeleton,
    SlotId, StreamId, StreamOptions,
};

use self::slot::{FarmFrame, FarmSlot};
use crate::agenda::Agenda;
use crate::violation::Violation;
use exoskel_determinism::{RunDigest, SplitMix64};

/// How many times as long an item takes where it is slow.
const STRAGGLER_TIMES: u32 = 50;

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
    /// The mean time of an item in a function inside a farm.
    pub grain: Duration,
    /// The mean time of an item in a serial function.
    pub serial: Duration,
    /// How the times of items differ.
    pub spread: Spread,
    /// One of so many items takes 50 times as long at the first slot that begins it, and not elsewhere; 0: none does.
    pub straggler_one_in: u64,
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

/// How the times of items differ in the same function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spread {
    /// Evenly between half and one and a half of the mean in a farm, not at all in serial functions.
    Even,
    /// Exponentially, in all functions.
    Exponential,
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
    /// Items that slots were asked for.
    pub asked: u64,
    /// Those of them that had begun.
    pub asked_in_vain: u64,
    /// The time that no manager can do with less: that of the slots together, or of the slowest serial function.
    pub bound: Duration,
    /// Items that ran at a second slot since they ran for too long.
    pub second_copies: u64,
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

    /// How near the makespan is to what bounds it.
    pub fn of_bound(&self) -> f64 {
        self.bound.as_secs_f64() / self.makespan.as_secs_f64()
    }

    /// Items asked back in vain, for each of so many items.
    pub fn in_vain(&self, items: u64) -> f64 {
        self.asked_in_vain as f64 / items as f64
    }

    /// The share of the time in which the manager was busy.
    pub fn load(&self) -> f64 {
        self.managing.as_secs_f64() / self.makespan.as_secs_f64()
    }
}

#[derive(Debug)]
enum Event {
    /// A frame comes to a slot.
    Work(u32, FarmFrame),
    /// A slot is asked for items of a frame.
    Recall(u32, FrameId, u32),
    /// A slot has done a part of its frame.
    Done(u32, u64),
    /// Nobody needs an item any more.
    Interrupt(u32, FrameId, Index),
    /// A slot gives a serial function back, with the time spent in it.
    Released(u32, FrameId, Duration),
    /// Results come to the manager: those of the frame as it is here, with the segment reached and the time spent on them.
    Results(u32, FarmFrame, u16, Duration),
    /// Items given back come to the manager.
    Recalled(u32, FarmFrame),
    /// The scheduler wants to know the time.
    Wake,
}

struct FarmRun<'a> {
    farm: &'a LargeFarm,
    program: Program,
    scheduler: Scheduler,
    stream: StreamId,
    processes: Vec<FarmSlot>,
    /// By segment, the time spent in it if it is serial.
    serial_work: Vec<Duration>,
    agenda: Agenda<Event>,
    now: Duration,
    /// When the manager has done what it has begun.
    free: Duration,
    wake: Option<Duration>,
    admitted: u64,
    outcomes: u64,
    /// Slow items that have begun, and where.
    stragglers: BTreeMap<Index, u32>,
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
            spread: Spread::Even,
            straggler_one_in: 0,
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
        let segments = program.segments().len() as u16;
        let mut run = FarmRun {
            farm: self,
            program,
            scheduler,
            stream,
            serial_work: vec![Duration::ZERO; usize::from(segments)],
            processes: (0..self.slots).map(|_| FarmSlot::default()).collect(),
            agenda: Agenda::new(),
            now: Duration::ZERO,
            free: Duration::ZERO,
            wake: None,
            admitted: 0,
            outcomes: 0,
            stragglers: BTreeMap::new(),
            finished: vec![0; (self.items as usize).div_ceil(64)],
            digest: RunDigest::default(),
            report: LargeFarmReport::default(),
        };
        run.manage()?;
        while run.outcomes < self.items {
            run.step()?;
        }
        run.report.makespan = run.free;
        for slot in 0..self.slots {
            let did = run.scheduler.slot_statistics(SlotId(slot));
            let did = did.unwrap_or_default();
            run.report.asked += did.asked;
            run.report.asked_in_vain += did.asked_in_vain;
            run.report.second_copies += did.stragglers;
        }
        let slowest = run.serial_work.iter().copied().max();
        run.report.bound = (run.report.work / self.slots.max(1)).max(slowest.unwrap_or_default());
        run.report.digest = run.digest.value();
        Ok(run.report)
    }

    /// What an item takes in this function.
    fn time(&self, index: Index, function: FunctionId, is_serial: bool) -> Duration {
        let place = index.wrapping_mul(0xD134_2543_DE82_EF95)
            ^ u64::from(function.0).wrapping_mul(0xA24B_AED4_963E_E407);
        let mut random = SplitMix64::new(self.seed ^ place);
        let mean = if is_serial { self.serial } else { self.grain };
        match self.spread {
            Spread::Even if is_serial => mean,
            Spread::Even => random.between(mean / 2, mean + mean / 2),
            Spread::Exponential => {
                // More than 0 and at most 1.
                let share = (random.below(1 << 32) + 1) as f64 / (1u64 << 32) as f64;
                mean.mul_f64(-share.ln())
            }
        }
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
            Event::Done(slot, turn) => {
                self.done(slot, turn);
                return Ok(());
            }
            Event::Interrupt(slot, frame, index) => {
                self.interrupt(slot, frame, index);
                return Ok(());
            }
            Event::Released(slot, frame, busy) => {
                let at = self.works(self.farm.frame_cost / 2);
                self.report.released += 1;
                self.scheduler.released(SlotId(slot), frame, busy, at);
            }
            Event::Results(slot, frame, reached, busy) => {
                self.results(slot, frame, reached, busy)?;
            }
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

    fn results(
        &mut self,
        slot: u32,
        frame: FarmFrame,
        reached: u16,
        busy: Duration,
    ) -> Result<(), Violation> {
        let cost = (self.farm.frame_cost + self.farm.item_cost * frame.count) / 2;
        let at = self.works(cost);
        let results = Results {
            frame: frame.id,
            first: frame.first,
            reached,
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
                    from,
                    to,
                    first,
                    count,
                    lease,
                    ..
                } => {
                    self.works((self.farm.frame_cost + self.farm.item_cost * count) / 2);
                    self.report.frames += 1;
                    let frame = FarmFrame {
                        id: frame,
                        from,
                        to,
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
                Action::Interrupt { slot, frame, index } => {
                    self.works(self.farm.frame_cost / 2);
                    let at = self.free + self.farm.latency_to(slot.0);
                    self.agenda.plan(at, Event::Interrupt(slot.0, frame, index));
                }
                Action::Grant { .. }
                | Action::Failed { .. }
                | Action::Overdue { .. }
                | Action::LetGo { .. } => {
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
