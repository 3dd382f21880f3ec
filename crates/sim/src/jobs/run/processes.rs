//! The processes of hosts: what starts them, what they do, and how they die.

use std::collections::BTreeMap;
use std::time::Duration;

use super::{Broken, JobsMischief, JobsRun, PROMPT};
use crate::jobs::scenario::PlayedProgram;

const SIGTERM: i32 = 15;
const SIGKILL: i32 = 9;
/// How long functions compute at most.
const COMPUTES: Duration = Duration::from_secs(3);
/// How many siblings a process asks for at most.
const SIBLINGS_MAX: u64 = 4;

/// What a process does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::jobs) enum Step {
    /// It sends its key.
    Join,
    /// It says where it is, and asks for siblings.
    Ready,
    /// It asks for this sibling.
    Ask(u32),
    /// Its function returns.
    Return,
}

/// A process of a host, from the request that it be started to its end.
pub(super) struct PlayedProcess {
    pub(super) group: u32,
    pub(super) size: u32,
    pub(super) program: PlayedProgram,
    /// It has been forked; and when.
    pub(super) runs: bool,
    pub(super) forked_at: Duration,
    /// It is about to die: nothing that it was to do happens.
    pub(super) is_dying: bool,
    pub(super) has_joined: bool,
    pub(super) has_certificate: bool,
    pub(super) is_hung_up: bool,
    /// It would have returned, but for a sibling that it waits for.
    pub(super) is_due_to_return: bool,
    /// What it has learned of siblings that it asked for: nothing yet, or where they are, if they are somewhere.
    pub(super) asked: BTreeMap<u32, Option<Option<u32>>>,
}

impl PlayedProcess {
    pub(super) fn new(group: u32, size: u32, program: PlayedProgram) -> Self {
        Self {
            group,
            size,
            program,
            runs: false,
            forked_at: Duration::ZERO,
            is_dying: false,
            has_joined: false,
            has_certificate: false,
            is_hung_up: false,
            is_due_to_return: false,
            asked: BTreeMap::new(),
        }
    }
}

impl JobsRun {
    /// What starts processes has forked one.
    pub(super) fn forked(&mut self, host: usize, number: u32) -> Broken {
        let step = self.soon(Duration::from_millis(50));
        let played = &mut self.hosts[host];
        let Some(process) = played.processes.get_mut(&number) else {
            // Who was to fork it has died.
            return Ok(());
        };
        process.runs = true;
        process.forked_at = self.now;
        self.ledger.known(number)?.has_run = true;
        self.report.processes += 1;
        let running = played
            .processes
            .values()
            .filter(|process| process.runs)
            .count();
        if played.limit.is_some_and(|limit| running > limit) {
            return Err(format!(
                "{running} processes run on host {host} at the same time"
            ));
        }
        let program = self.hosts[host].processes[&number].program;
        match program {
            PlayedProgram::Program { lasts, .. } => {
                let at = self.soon(lasts);
                let code = [0, 0, 3][self.random.below(3) as usize];
                self.agenda
                    .plan(at, super::JobsEvent::Exit(host, number, code));
            }
            PlayedProgram::Slot { fails_one_in } if self.one_in(fails_one_in) => {
                self.agenda
                    .plan(step, super::JobsEvent::Exit(host, number, 1));
            }
            PlayedProgram::Function { .. } | PlayedProgram::Slot { .. } | PlayedProgram::Liar => {
                self.agenda
                    .plan(step, super::JobsEvent::Step(host, number, Step::Join));
            }
        }
        self.hosts[host].machine.started(number);
        self.tend_agent(host)
    }

    fn one_in(&mut self, count: u64) -> bool {
        count > 0 && self.random.below(count) == 0
    }

    /// A process does the next thing.
    pub(super) fn step(&mut self, host: usize, number: u32, step: Step) -> Broken {
        let played = &mut self.hosts[host];
        let Some(process) = played.processes.get_mut(&number) else {
            return Ok(());
        };
        if process.is_dying {
            return Ok(());
        }
        if process.is_hung_up {
            // It sees the end of its socket.
            process.is_dying = true;
            let at = self.soon(PROMPT / 4);
            self.agenda
                .plan(at, super::JobsEvent::Exit(host, number, 0));
            return Ok(());
        }
        let (size, program) = (process.size, process.program);
        let said = match step {
            Step::Join => {
                process.has_joined = true;
                played.machine.key(number)
            }
            Step::Ready => {
                for _ in 0..self.random.below(SIBLINGS_MAX + 1) {
                    let at = self.soon(Duration::from_millis(200));
                    let rank = self.random.below(u64::from(size)) as u32;
                    let event = super::JobsEvent::Step(host, number, Step::Ask(rank));
                    self.agenda.plan(at, event);
                }
                self.plan_return(host, number, program);
                self.hosts[host].machine.here(number)
            }
            // Who has asked knows, or waits.
            Step::Ask(rank) if process.asked.contains_key(&rank) => Ok(()),
            Step::Ask(rank) => {
                process.asked.insert(rank, None);
                played.machine.ask(number, rank)
            }
            Step::Return if process.asked.values().any(Option::is_none) => {
                // It waits for a sibling.
                process.is_due_to_return = true;
                Ok(())
            }
            Step::Return => played.machine.returned(number),
        };
        // One that the machine doesn't know says what it likes.
        let is_unknown = self.is(JobsMischief::IgnoresLimits);
        let said = if is_unknown { Ok(()) } else { said };
        said.map_err(|error| format!("what process {number} may say is refused: {error}"))?;
        self.tend_agent(host)
    }

    fn plan_return(&mut self, host: usize, number: u32, program: PlayedProgram) {
        let PlayedProgram::Function { fails_one_in } = program else {
            return;
        };
        let at = self.soon(COMPUTES);
        let event = if self.one_in(fails_one_in) {
            super::JobsEvent::Exit(host, number, 1)
        } else {
            super::JobsEvent::Step(host, number, Step::Return)
        };
        self.agenda.plan(at, event);
    }

    /// A process has its certificate.
    pub(super) fn certified(&mut self, host: usize, number: u32) {
        let at = self.soon(Duration::from_millis(50));
        if let Some(process) = self.hosts[host].processes.get_mut(&number) {
            process.has_certificate = true;
            self.agenda
                .plan(at, super::JobsEvent::Step(host, number, Step::Ready));
        }
    }

    /// A process sees the end of its socket, if it looks.
    pub(super) fn hang_up(&mut self, host: usize, number: u32) {
        let at = self.soon(PROMPT / 4);
        if let Some(process) = self.hosts[host].processes.get_mut(&number) {
            process.is_hung_up = true;
            if process.has_joined && !std::mem::replace(&mut process.is_dying, true) {
                self.agenda
                    .plan(at, super::JobsEvent::Exit(host, number, 0));
            }
        }
    }

    /// A process gets a signal.
    pub(super) fn signalled(&mut self, host: usize, number: u32, signal: i32) -> Broken {
        let Some(process) = self.hosts[host].processes.get(&number) else {
            return Ok(());
        };
        let is_stubborn = matches!(
            process.program,
            PlayedProgram::Program {
                is_stubborn: true,
                ..
            }
        );
        if signal == SIGTERM && is_stubborn || !process.runs {
            return Ok(());
        }
        let sees_end = process.is_hung_up || !process.has_joined || !self.hosts[host].has_zygote;
        if signal == SIGKILL && !sees_end {
            return Err(format!(
                "process {number} is killed, and nobody has told it the end"
            ));
        }
        if signal == SIGKILL {
            self.report.killed += 1;
        }
        self.die(host, number, -signal);
        Ok(())
    }

    /// A process dies within a moment, whatever it was doing.
    pub(super) fn die(&mut self, host: usize, number: u32, code: i32) {
        let at = self.soon(PROMPT / 4);
        if let Some(process) = self.hosts[host].processes.get_mut(&number) {
            process.is_dying = true;
            self.agenda
                .plan(at, super::JobsEvent::Exit(host, number, code));
        }
    }

    /// A process has died.
    pub(super) fn exit(&mut self, host: usize, number: u32, code: i32) {
        let Some(process) = self.hosts[host].processes.remove(&number) else {
            return;
        };
        if let Ok(truth) = self.ledger.known(number)
            && process.runs
        {
            (truth.exit, truth.exited_at) = (Some(code), self.now);
        }
        let at = self.soon(PROMPT / 4);
        self.agenda.plan(at, super::JobsEvent::Reaped(host, number));
    }

    /// The agent hears of the death of a process.
    pub(super) fn reaped(&mut self, host: usize, number: u32) -> Broken {
        if !self.hosts[host].is_alive || !self.hosts[host].has_zygote {
            return Ok(());
        }
        let code = self.ledger.known(number)?.exit;
        if self.mischief(JobsMischief::LosesEnds) {
            self.hosts[host].machine.ended(number);
            return self.tend_agent(host);
        }
        self.report_end(host, number, code)
    }
}
