//! What happens in a run.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use exoskel_determinism::{RunDigest, SplitMix64};
use exoskel_flow::contract::{Observation, Planner, SlotDecision, Supply};
use exoskel_flow::{
    Action, Departure, FrameId, Index, Program, Results, Scheduler, SchedulerConfig, SlotId,
    StreamId, StreamOptions,
};

use super::{ContractReport, ContractScenario, ItemTimes};
use crate::agenda::Agenda;
use crate::violation::Violation;

/// Results leave when so much time was spent on them, or when their frame is done.
const RESULTS_TIME: Duration = Duration::from_millis(1);

/// How often items come in from a source that has its own pace.
const SOURCE_TIME: Duration = Duration::from_millis(10);

/// Bytes of a token and of a result.
const ITEM_BYTES: u64 = 100;

/// Nobody else could give slots.
const ROOM: u32 = 10_000;

#[derive(Debug)]
enum Event {
    /// A slot that was asked for is there.
    Join,
    /// A frame comes to a slot: frame, segment, first item, items.
    Work(u32, SlotFrame),
    /// A slot is asked for items of a frame.
    Recall(u32, FrameId, u32),
    /// A slot has done a part of its frame.
    Done(u32),
    /// Results come to the manager, with the time spent on them.
    Results(u32, SlotFrame, Duration),
    /// Items given back come to the manager.
    Recalled(u32, SlotFrame),
    /// Some slot is lost.
    Loss,
    /// The source gives items.
    Source,
    /// The planner looks.
    Look,
    /// The scheduler wants to know the time.
    Wake,
}

#[derive(Clone, Copy, Debug)]
struct SlotFrame {
    id: FrameId,
    segment: u16,
    first: Index,
    count: u32,
}

#[derive(Debug, Default)]
struct Process {
    queue: VecDeque<SlotFrame>,
    /// The first frame's items before this one are in work, and take so long.
    working: Option<(u32, Duration)>,
    is_warm: bool,
    factor: u32,
}

pub(super) struct ContractRun<'a> {
    scenario: &'a ContractScenario,
    scheduler: Scheduler,
    program: Program,
    stream: StreamId,
    planner: Planner,
    agenda: Agenda<Event>,
    random: SplitMix64,
    now: Duration,
    processes: BTreeMap<u32, Process>,
    draining: Vec<u32>,
    /// Slots that were asked for and are not there.
    coming: u32,
    next_slot: u32,
    /// Items that the source has given, and those that have entered.
    given: f64,
    admitted: u64,
    outcomes: u64,
    steps: u64,
    wake: Option<Duration>,
    digest: RunDigest,
    report: ContractReport,
}

impl<'a> ContractRun<'a> {
    pub(super) fn new(scenario: &'a ContractScenario) -> Result<Self, Violation> {
        let refuse = |what: String| Violation {
            seed: scenario.seed,
            step: 0,
            at: Duration::ZERO,
            what,
        };
        let program = Program::compile(&scenario.skeleton);
        let program = program.map_err(|error| refuse(error.to_string()))?;
        let mut scheduler = Scheduler::new(SchedulerConfig::default());
        let stream = scheduler
            .open_stream(&program, StreamOptions::default(), Duration::ZERO)
            .map_err(|error| refuse(error.to_string()))?;
        let mut agenda = Agenda::new();
        for _ in 0..scenario.contract.slots_min {
            agenda.plan(scenario.start, Event::Join);
        }
        for at in &scenario.losses {
            agenda.plan(*at, Event::Loss);
        }
        agenda.plan(Duration::ZERO, Event::Source);
        agenda.plan(Duration::ZERO, Event::Look);
        Ok(Self {
            planner: Planner::new(scenario.contract.clone(), scenario.settings.clone()),
            random: SplitMix64::new(scenario.seed),
            coming: scenario.contract.slots_min,
            scenario,
            scheduler,
            program,
            stream,
            agenda,
            now: Duration::ZERO,
            processes: BTreeMap::new(),
            draining: Vec::new(),
            next_slot: 0,
            given: 0.0,
            admitted: 0,
            outcomes: 0,
            steps: 0,
            wake: None,
            digest: RunDigest::default(),
            report: ContractReport::default(),
        })
    }

    pub(super) fn play(mut self) -> Result<ContractReport, Violation> {
        while let Some((now, event)) = self.agenda.next() {
            if now > self.scenario.end {
                self.report.digest = self.digest.value();
                return Ok(self.report);
            }
            self.now = now;
            self.steps += 1;
            self.digest.word(now.as_nanos() as u64);
            self.happen(event)?;
            self.manage()?;
        }
        self.broken("standstill".to_owned())
    }

    fn happen(&mut self, event: Event) -> Result<(), Violation> {
        match event {
            Event::Join => return self.join(),
            Event::Work(slot, frame) => {
                if let Some(process) = self.processes.get_mut(&slot) {
                    process.queue.push_back(frame);
                    self.work(slot);
                }
            }
            Event::Recall(slot, id, count) => self.give_back(slot, id, count),
            Event::Done(slot) => self.go_on(slot),
            Event::Results(slot, frame, busy) => return self.results(slot, frame, busy),
            Event::Recalled(slot, frame) => {
                let SlotFrame {
                    id, first, count, ..
                } = frame;
                let slot = SlotId(slot);
                self.scheduler.recalled(slot, id, first, count, self.now);
            }
            Event::Loss => self.lose(),
            Event::Source => {
                let phase = self.scenario.phase(self.now);
                let rate = phase.source.unwrap_or(f64::INFINITY);
                // Who reads a source keeps nothing back that there was no room for.
                self.given = self.given.min(self.admitted as f64 + 1.0);
                self.given += rate * SOURCE_TIME.as_secs_f64();
                self.agenda.plan(self.now + SOURCE_TIME, Event::Source);
            }
            Event::Look => {
                self.look();
                let at = self.now + self.scenario.settings.look_time;
                self.agenda.plan(at, Event::Look);
            }
            Event::Wake => self.wake = None,
        }
        Ok(())
    }

    fn join(&mut self) -> Result<(), Violation> {
        let slot = self.next_slot;
        self.next_slot += 1;
        self.coming -= 1;
        let factors = &self.scenario.factors;
        let factor = factors.get(slot as usize).copied().unwrap_or(1);
        let process = Process {
            factor,
            ..Process::default()
        };
        self.processes.insert(slot, process);
        self.report.items.push(0);
        self.note_slots();
        let added = self.scheduler.add_slot(SlotId(slot), self.now);
        added.or_else(|error| self.broken(error.to_string()))
    }

    fn note_slots(&mut self) {
        let count = self.processes.len() - self.draining.len();
        self.report.slots.push((self.now, count));
    }

    /// The slot that came first is lost, and another asked for.
    fn lose(&mut self) {
        if let Some((slot, _)) = self.processes.pop_first() {
            let slot = SlotId(slot);
            self.scheduler.remove_slot(slot, Departure::Lost, self.now);
            self.note_slots();
            self.ask(1);
        }
    }

    fn ask(&mut self, slots: u32) {
        for _ in 0..slots {
            self.coming += 1;
            self.agenda
                .plan(self.now + self.scenario.start, Event::Join);
        }
    }

    /// What the manager's planner does with what it sees.
    fn look(&mut self) {
        let there = (self.processes.len() - self.draining.len()) as u32;
        let observation = Observation {
            workload: self.scheduler.workload(self.now),
            trusted: Supply {
                slots: there + self.coming,
                room: ROOM,
            },
            remote: Supply::default(),
        };
        let Some(decision) = self.planner.look(&observation, self.now) else {
            return;
        };
        match &decision {
            SlotDecision::Recruit {
                trusted, remote, ..
            } => self.ask(trusted + remote),
            SlotDecision::Release { slots, .. } => {
                let is_free = |slot: &u32| !self.draining.contains(slot);
                let slots: Vec<u32> = self
                    .processes
                    .keys()
                    .copied()
                    .rev()
                    .filter(is_free)
                    .take(*slots as usize)
                    .collect();
                for slot in slots {
                    self.scheduler.drain_slot(SlotId(slot), self.now);
                    self.draining.push(slot);
                }
                self.note_slots();
            }
            SlotDecision::Lacks(_) | SlotDecision::Met { .. } => {}
        }
        self.report.decisions.push((self.now, decision));
    }

    /// What an item takes in a function.
    fn time(&mut self, segment: u16, factor: u32, is_warm: bool) -> Duration {
        let is_serial = self.program.segments()[usize::from(segment)].serial;
        let mean = match is_serial {
            true => self.scenario.serial,
            false => self.scenario.phase(self.now).item,
        };
        let time = match self.scenario.times {
            _ if is_serial => mean,
            ItemTimes::Constant => mean,
            ItemTimes::Even => self.random.between(mean / 2, mean + mean / 2),
            ItemTimes::Exponential => {
                // More than 0 and at most 1.
                let share = (self.random.below(1 << 32) + 1) as f64 / (1u64 << 32) as f64;
                mean.mul_f64(-share.ln())
            }
            ItemTimes::Mixed => match self.random.below(5) {
                0 => mean * 3,
                _ => mean / 2,
            },
        };
        let cold = if is_warm {
            Duration::ZERO
        } else {
            self.scenario.cold
        };
        time * factor + cold
    }

    /// A slot begins with the next items, if it does nothing.
    fn work(&mut self, slot: u32) {
        let Some(process) = self.processes.get_mut(&slot) else {
            return;
        };
        let Some(frame) = process
            .queue
            .front()
            .copied()
            .filter(|_| process.working.is_none())
        else {
            return;
        };
        let (factor, mut is_warm) = (process.factor, process.is_warm);
        let (mut items, mut time) = (0, Duration::ZERO);
        while items < frame.count && time < RESULTS_TIME {
            time += self.time(frame.segment, factor, std::mem::replace(&mut is_warm, true));
            items += 1;
        }
        if let Some(process) = self.processes.get_mut(&slot) {
            (process.working, process.is_warm) = (Some((items, time)), true);
        }
        self.agenda.plan(self.now + time, Event::Done(slot));
    }

    fn go_on(&mut self, slot: u32) {
        let at = self.now + self.scenario.latency;
        let Some(process) = self.processes.get_mut(&slot) else {
            return;
        };
        let (Some((items, busy)), Some(frame)) =
            (process.working.take(), process.queue.front_mut())
        else {
            return;
        };
        let done = SlotFrame {
            count: items,
            ..*frame
        };
        frame.first += u64::from(items);
        frame.count -= items;
        if frame.count == 0 {
            process.queue.pop_front();
        }
        self.agenda.plan(at, Event::Results(slot, done, busy));
        self.work(slot);
    }

    fn give_back(&mut self, slot: u32, id: FrameId, count: u32) {
        let at = self.now + self.scenario.latency;
        let Some(process) = self.processes.get_mut(&slot) else {
            return;
        };
        let mut given = SlotFrame {
            id,
            segment: 0,
            first: 0,
            count: 0,
        };
        if let Some(place) = process.queue.iter().position(|frame| frame.id == id) {
            let begun = process
                .working
                .filter(|_| place == 0)
                .map_or(0, |(items, _)| items);
            let frame = &mut process.queue[place];
            given.count = count.min(frame.count - begun);
            frame.count -= given.count;
            given.first = frame.first + u64::from(frame.count);
            if frame.count == 0 {
                process.queue.remove(place);
            }
        }
        self.agenda.plan(at, Event::Recalled(slot, given));
    }

    fn results(&mut self, slot: u32, frame: SlotFrame, busy: Duration) -> Result<(), Violation> {
        let results = Results {
            frame: frame.id,
            first: frame.first,
            reached: frame.segment + 1,
            sizes: &vec![ITEM_BYTES; frame.count as usize],
            ended: &[],
            busy,
        };
        let accepted = self.scheduler.results(SlotId(slot), results, self.now);
        let accepted = match accepted {
            Ok(accepted) => accepted.map(|accepted| accepted.outcomes.to_vec()),
            Err(breach) => return self.broken(breach.to_string()),
        };
        for range in accepted.into_iter().flatten() {
            let count = range.end - range.start;
            self.outcomes += count;
            self.report.items[slot as usize] += count;
            let outcomes = std::iter::repeat_n(self.now, count as usize);
            self.report.outcomes.extend(outcomes);
            let taken = self
                .scheduler
                .taken(self.stream, range.start, count as u32, self.now);
            if u64::from(taken) != count || self.outcomes > self.admitted {
                return self.broken(format!("{taken} of {count} outcomes could be taken"));
            }
        }
        Ok(())
    }

    /// Items enter, frames leave, slots that were released end.
    fn manage(&mut self) -> Result<(), Violation> {
        let free = (self.given - self.admitted as f64).max(0.0) as u64;
        let free = match self.scenario.items {
            Some(items) => free.min(items - self.admitted),
            None => free,
        };
        let room = u64::from(self.scheduler.tickets(self.stream)).min(free);
        if room > 0 {
            let sizes = vec![ITEM_BYTES; room as usize];
            if let Err(error) = self.scheduler.admit(self.stream, &sizes, self.now) {
                return self.broken(error.to_string());
            }
            self.admitted += room;
            if Some(self.admitted) == self.scenario.items {
                self.scheduler.end_of_input(self.stream);
            }
        }
        while let Some(action) = self.scheduler.poll_action(self.now) {
            let at = self.now + self.scenario.latency;
            match action {
                Action::Dispatch {
                    slot,
                    frame,
                    from,
                    first,
                    count,
                    ..
                } => {
                    let frame = SlotFrame {
                        id: frame,
                        segment: from,
                        first,
                        count,
                    };
                    self.agenda.plan(at, Event::Work(slot.0, frame));
                }
                Action::Recall { slot, frame, count } => {
                    self.agenda.plan(at, Event::Recall(slot.0, frame, count));
                }
                Action::Grant { .. }
                | Action::Interrupt { .. }
                | Action::Failed { .. }
                | Action::Overdue { .. }
                | Action::LetGo { .. } => {
                    return self.broken(format!("got {action:?}, expected none such"));
                }
            }
        }
        let scheduler = &mut self.scheduler;
        let is_done = |slot: &mut u32| {
            let did = scheduler.slot_statistics(SlotId(*slot));
            did.is_none_or(|did| did.outstanding == 0)
        };
        let done: Vec<u32> = self.draining.extract_if(.., is_done).collect();
        for slot in done {
            self.scheduler
                .remove_slot(SlotId(slot), Departure::Orderly, self.now);
            self.processes.remove(&slot);
        }
        if let Some(wake) = self.scheduler.next_timeout()
            && self.wake.is_none_or(|planned| wake < planned)
        {
            self.wake = Some(wake);
            self.agenda.plan(wake.max(self.now), Event::Wake);
        }
        Ok(())
    }

    fn broken<T>(&self, what: String) -> Result<T, Violation> {
        Err(Violation {
            seed: self.scenario.seed,
            step: self.steps,
            at: self.now,
            what,
        })
    }
}
