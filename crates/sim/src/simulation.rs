//! The machine that runs a scenario and checks every promise on the way.

mod slot_side;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::time::Duration;

use exoskel_flow::{
    Action, Departure, Index, Program, Results, Scheduler, SlotId, StreamId, StreamOptions,
};

use crate::agenda::Agenda;
use crate::digest::Digest;
use crate::network::{Direction, Network};
use crate::process::{Answer, Process};
use crate::random::SplitMix64;
use crate::report::{Report, Violation};
use crate::scenario::Scenario;

/// Items whose time of outcome is kept.
const FINISHED_AT_MAX: u64 = 8192;

#[derive(Debug)]
enum Event {
    Join,
    ToSlot(SlotId, Action),
    ToManager(SlotId, Answer),
    Done(SlotId),
    Flush(SlotId),
    Lost(SlotId),
    Take,
    Wake,
}

/// One run of a [`Scenario`].
#[derive(Debug)]
pub struct Simulation {
    scenario: Scenario,
    program: Program,
    scheduler: Scheduler,
    stream: StreamId,
    agenda: Agenda<Event>,
    network: Network,
    random: SplitMix64,
    processes: BTreeMap<SlotId, Process>,
    /// Slots that died, and whether what they had sent still arrives.
    dead: BTreeMap<SlotId, bool>,
    next_slot: u32,
    now: Duration,
    admitted: u64,
    next_take: Index,
    take_free: Duration,
    take_planned: bool,
    wake: Option<Duration>,
    outcomes: BTreeSet<Index>,
    begun: BTreeMap<(u16, Index), u32>,
    /// Begun at a slot, without an answer that counted.
    unanswered: BTreeMap<SlotId, BTreeSet<(u16, Index)>>,
    digest: Digest,
    report: Report,
}

impl Simulation {
    /// Runs a scenario to its end.
    ///
    /// # Errors
    ///
    /// The first broken promise: an item without or with two outcomes, two slots in a serial function, a budget
    /// passed, a standstill.
    pub fn run(scenario: Scenario) -> Result<Report, Violation> {
        let mut simulation = Self::new(scenario)?;
        simulation.manage()?;
        while !simulation.is_over() {
            simulation.step()?;
        }
        let results = simulation.outcomes.len() as u64 - simulation.report.failed.len() as u64;
        simulation.report.results = results;
        simulation.report.makespan = simulation.now;
        simulation.report.digest = simulation.digest.value();
        Ok(simulation.report)
    }

    fn new(scenario: Scenario) -> Result<Self, Violation> {
        let refuse = |what: String| Violation {
            seed: scenario.seed,
            step: 0,
            at: Duration::ZERO,
            what,
        };
        let program =
            Program::compile(&scenario.skeleton).map_err(|error| refuse(error.to_string()))?;
        let mut scheduler = Scheduler::new(scenario.config.clone());
        let stream = scheduler
            .open_stream(&program, StreamOptions::default(), Duration::ZERO)
            .map_err(|error| refuse(error.to_string()))?;
        let mut agenda = Agenda::new();
        (0..scenario.slots).for_each(|_| agenda.plan(Duration::ZERO, Event::Join));
        let mut random = SplitMix64::new(scenario.seed);
        Ok(Self {
            network: Network::new(scenario.link.clone(), random.next_u64()),
            random,
            program,
            scheduler,
            stream,
            agenda,
            processes: BTreeMap::new(),
            dead: BTreeMap::new(),
            next_slot: 0,
            now: Duration::ZERO,
            admitted: 0,
            next_take: 0,
            take_free: Duration::ZERO,
            take_planned: false,
            wake: None,
            outcomes: BTreeSet::new(),
            begun: BTreeMap::new(),
            unanswered: BTreeMap::new(),
            digest: Digest::default(),
            report: Report::default(),
            scenario,
        })
    }

    fn is_over(&self) -> bool {
        self.next_take == self.scenario.items
    }

    fn step(&mut self) -> Result<(), Violation> {
        let here: Vec<_> = self
            .scenario
            .faults
            .iter()
            .filter(|fault| fault.step == self.report.steps)
            .cloned()
            .collect();
        for fault in here {
            if let Some(slot) = self
                .processes
                .keys()
                .nth(fault.slot as usize % self.processes.len().max(1))
                .copied()
            {
                self.kill(slot, fault.restart);
            }
        }
        let Some((now, event)) = self.agenda.next() else {
            return self.broken(format!(
                "standstill after {} of {} outcomes",
                self.outcomes.len(),
                self.scenario.items
            ));
        };
        if self.report.steps == self.scenario.steps_max {
            return self.broken("no end within the steps allowed".to_owned());
        }
        self.now = now;
        self.record(&event);
        self.report.steps += 1;
        match event {
            Event::Join => self.join()?,
            Event::ToSlot(slot, action) => self.at_slot(slot, action)?,
            Event::ToManager(slot, answer) => self.at_manager(slot, answer)?,
            Event::Done(slot) => self.done(slot)?,
            Event::Flush(slot) => {
                let answers = self
                    .processes
                    .get_mut(&slot)
                    .map(Process::flush)
                    .unwrap_or_default();
                self.send_answers(slot, answers);
            }
            Event::Lost(slot) => {
                self.scheduler.remove_slot(slot, Departure::Lost, now);
                self.report.unfinished += self
                    .unanswered
                    .remove(&slot)
                    .map_or(0, |begun| begun.len() as u64);
            }
            Event::Take => self.take_planned = false,
            Event::Wake => self.wake = None,
        }
        self.manage()
    }

    /// Everything that happens goes into the digest.
    fn record(&mut self, event: &Event) {
        let (kind, slot, more) = match event {
            Event::Join => (1, 0, 0),
            Event::ToSlot(
                slot,
                Action::Dispatch {
                    frame,
                    first,
                    count,
                    ..
                },
            ) => (
                2,
                slot.0,
                frame.0.rotate_left(32) ^ first.rotate_left(16) ^ u64::from(*count),
            ),
            Event::ToSlot(slot, _) => (3, slot.0, 0),
            Event::ToManager(slot, answer) => (4, slot.0, answer.bytes()),
            Event::Done(slot) => (5, slot.0, 0),
            Event::Flush(slot) => (6, slot.0, 0),
            Event::Lost(slot) => (7, slot.0, 0),
            Event::Take => (8, 0, self.next_take),
            Event::Wake => (9, 0, 0),
        };
        let words = [self.now.as_nanos() as u64, kind, u64::from(slot), more];
        words.into_iter().for_each(|word| self.digest.word(word));
    }

    fn join(&mut self) -> Result<(), Violation> {
        let slot = SlotId(self.next_slot);
        let slowness = &self.scenario.slowness;
        let slowness = slowness
            .get(self.next_slot as usize % slowness.len().max(1))
            .copied()
            .unwrap_or(1);
        self.next_slot += 1;
        self.processes.insert(slot, Process::new(slot, slowness));
        self.scheduler
            .add_slot(slot, self.now)
            .or_else(|error| self.broken(error.to_string()))
    }

    fn at_manager(&mut self, slot: SlotId, answer: Answer) -> Result<(), Violation> {
        if self.dead.get(&slot) == Some(&false) {
            return Ok(());
        }
        let now = self.now;
        match answer {
            Answer::Released { frame, busy } => self.scheduler.released(slot, frame, busy, now),
            Answer::Announced {
                frame,
                index,
                bytes,
            } => {
                let announced = self.scheduler.announced(slot, frame, index, bytes, now);
                return announced.or_else(|breach| self.broken(breach.to_string()));
            }
            Answer::Recalled {
                frame,
                first,
                count,
            } => {
                self.report.recalled += u64::from(count);
                self.scheduler.recalled(slot, frame, first, count, now);
            }
            Answer::Results {
                frame,
                first,
                sizes,
                busy,
            } => {
                let raised = self.scheduler.frame(slot, frame).map(|(_, segment)| {
                    let items = first..first + sizes.len() as u64;
                    let raises = |index: &Index| self.scenario.raises(*index, segment);
                    items.filter(raises).collect::<Vec<Index>>()
                });
                let ended = raised.unwrap_or_default();
                let results = Results {
                    frame,
                    first,
                    sizes: &sizes,
                    ended: &ended,
                    busy,
                };
                let accepted = match self.scheduler.results(slot, results, now) {
                    Ok(Some(accepted)) => accepted,
                    Ok(None) => return Ok(()),
                    Err(breach) => return self.broken(breach.to_string()),
                };
                let segment = accepted.segment;
                let items = |ranges: &[Range<Index>]| -> Vec<Index> {
                    ranges.iter().cloned().flatten().collect()
                };
                let (outcomes, tokens) = (items(accepted.outcomes), items(accepted.tokens));
                for index in outcomes.iter().chain(&tokens) {
                    if let Some(begun) = self.unanswered.get_mut(&slot) {
                        begun.remove(&(segment, *index));
                    }
                }
                for index in outcomes {
                    self.outcome(index)?;
                }
            }
        }
        Ok(())
    }

    fn outcome(&mut self, index: Index) -> Result<(), Violation> {
        if !self.outcomes.insert(index) {
            return self.broken(format!("two outcomes of item {index}"));
        }
        if index < FINISHED_AT_MAX {
            let at = &mut self.report.finished_at;
            at.resize(at.len().max(index as usize + 1), Duration::ZERO);
            at[index as usize] = self.now;
        }
        Ok(())
    }

    /// What the manager does after each event: the user takes and admits, the scheduler's actions leave.
    fn manage(&mut self) -> Result<(), Violation> {
        loop {
            let moved = self.take()? | self.admit()? | self.act()?;
            if !moved {
                break;
            }
        }
        if let Some(wake) = self
            .scheduler
            .next_timeout()
            .filter(|wake| self.wake.is_none_or(|planned| *wake < planned))
        {
            self.wake = Some(wake);
            self.agenda.plan(wake.max(self.now), Event::Wake);
        }
        self.check_budget()
    }

    fn take(&mut self) -> Result<bool, Violation> {
        let start = self.next_take;
        while self.outcomes.contains(&self.next_take) {
            if self.take_free > self.now {
                if !self.take_planned {
                    self.take_planned = true;
                    self.agenda.plan(self.take_free, Event::Take);
                }
                break;
            }
            self.take_free = self.now + self.scenario.take_time;
            let taken = self
                .scheduler
                .taken(self.stream, self.next_take, 1, self.now);
            if taken != 1 {
                return self.broken(format!("item {} can't be taken", self.next_take));
            }
            self.next_take += 1;
        }
        Ok(self.next_take > start)
    }

    fn admit(&mut self) -> Result<bool, Violation> {
        let room =
            u64::from(self.scheduler.tickets(self.stream)).min(self.scenario.items - self.admitted);
        if room == 0 {
            return Ok(false);
        }
        let most = self.scenario.input_bytes_max;
        let sizes: Vec<u64> = (self.admitted..self.admitted + room)
            .map(|index| self.scenario.bytes(most, index, 0))
            .collect();
        if let Err(error) = self.scheduler.admit(self.stream, &sizes, self.now) {
            return self.broken(error.to_string());
        }
        self.admitted += room;
        if self.admitted == self.scenario.items {
            self.scheduler.end_of_input(self.stream);
        }
        self.report.inside_max = self.report.inside_max.max(self.admitted - self.next_take);
        Ok(true)
    }

    fn act(&mut self) -> Result<bool, Violation> {
        let mut moved = false;
        while let Some(action) = self.scheduler.poll_action(self.now) {
            moved = true;
            let (slot, bytes) = match action {
                Action::Dispatch {
                    slot,
                    segment,
                    first,
                    count,
                    ..
                } => {
                    self.report.frames += 1;
                    let most = if segment == 0 {
                        self.scenario.input_bytes_max
                    } else {
                        self.scenario.result_bytes_max
                    };
                    let range = first..first + u64::from(count);
                    (
                        slot,
                        range
                            .map(|index| self.scenario.bytes(most, index, segment))
                            .sum(),
                    )
                }
                Action::Recall { slot, .. } | Action::Grant { slot, .. } => (slot, 0),
                Action::Failed { index, .. } => {
                    self.report.failed.push(index);
                    self.outcome(index)?;
                    continue;
                }
            };
            let at = self
                .network
                .send(slot, Direction::ToSlot, 40 + bytes, self.now);
            self.agenda.plan(at, Event::ToSlot(slot, action));
        }
        Ok(moved)
    }

    fn check_budget(&mut self) -> Result<(), Violation> {
        let config = &self.scenario.config;
        let (held, reserved) = self.scheduler.result_bytes(self.stream);
        let floors = config.grant_bytes_min * (self.admitted - self.next_take)
            + 2 * self.scenario.result_bytes_max;
        self.report.result_bytes_max = self.report.result_bytes_max.max(held + reserved);
        if held + reserved > config.result_budget_bytes + floors {
            return self.broken(format!("{held} result bytes held and {reserved} reserved"));
        }
        Ok(())
    }

    fn broken<T>(&self, what: String) -> Result<T, Violation> {
        Err(Violation {
            seed: self.scenario.seed,
            step: self.report.steps,
            at: self.now,
            what,
        })
    }
}
