//! The run: what happens when.

mod agent;
mod creator;
mod faults;
mod processes;
mod settling;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use exoskel_determinism::{RunDigest, SplitMix64};
use exoskel_node::job::{AgentMachine, GRACE, JobMachine, Replacements};

use super::ledger::{Broken, JobsLedger};
use super::line::{CHANNEL_DEAD_AFTER, JobLine, JobsMessage, LineEnd, PATIENCE};
use super::scenario::{JobsEnd, JobsMischief, JobsReport, JobsScenario};
use crate::agenda::Agenda;
use crate::violation::Violation;
use processes::{PlayedProcess, Step};

/// The authority of the job.
const JOB: &str = "0123456789abcdef";

/// A run with more steps is one without end.
const STEPS_MAX: u64 = 500_000;

/// One of so many things goes wrong by mischief.
const MISCHIEF_ONE_IN: u64 = 3;

/// How long processes and what starts them take at most for what they do at once: to end after a signal, to be forked, to be heard of.
const PROMPT: Duration = Duration::from_millis(100);

/// How long the creator waits for ends before it closes the channels.
const END_PATIENCE: Duration = Duration::from_secs(10);

/// How long the creator of a detached job waits until all is signed.
const SIGN_PATIENCE: Duration = Duration::from_secs(60);

/// So long after the last fault, all is quiet.
const QUIET_AFTER: Duration = Duration::from_secs(60);

/// Programs that nobody ends have ended by themselves so long after the end of a detached job.
const ALL_OVER_AFTER: Duration = Duration::from_secs(900);

#[derive(Debug)]
pub(super) enum JobsEvent {
    /// An agent is started by its launcher.
    Launch(usize),
    /// A user asks for processes.
    Start(usize),
    /// A message comes to an end of the line of a host.
    Arrive(usize, LineEnd, JobsMessage),
    /// The cut of this number ends.
    Heal(usize, u64),
    /// It has lasted for longer than links wait, or than channels live.
    LinkLost(usize, u64),
    ChannelDead(usize, u64),
    /// What starts processes has started one.
    Forked(usize, u32),
    /// A process does the next thing.
    Step(usize, u32, Step),
    /// It dies.
    Exit(usize, u32, i32),
    /// Its agent hears of that.
    Reaped(usize, u32),
    /// Its agent wants to know the time.
    AgentTimer(usize),
    /// Slots are due to be replaced.
    SlotTimer,
    Fault(usize),
    /// The job ends as the scenario has it.
    End,
    /// The creator looks whether all has ended, and waits no longer at this time.
    AwaitEnds(Duration),
    /// The same for what is to be signed.
    AwaitSigned(Duration),
    /// Nothing of the job may run on a host any more, whose job was over at this time; at last even if its line was disturbed.
    Empty(usize, Duration, bool),
    /// All is quiet.
    Settle,
    /// All is over.
    Stop,
}

/// A host, its agent and its processes.
pub(super) struct PlayedHost {
    machine: AgentMachine,
    limit: Option<usize>,
    line: JobLine,
    cuts: u64,
    /// When its line was cut, healed or slowed last.
    disturbed_at: Option<Duration>,
    /// Its agent runs.
    is_alive: bool,
    has_zygote: bool,
    /// The agent has noticed that its job is over.
    noticed_end: Option<Duration>,
    /// The agent waits for what it has sent to be signed.
    is_signing: bool,
    timer: Option<Duration>,
    processes: BTreeMap<u32, PlayedProcess>,
}

/// The creator, as long as it lives and has the job.
pub(super) struct PlayedCreator {
    machine: JobMachine,
    /// Of each group of slots.
    replacements: BTreeMap<u32, Replacements>,
    /// By the numbers of groups: which of the scenario's they are.
    groups: BTreeMap<u32, usize>,
    slot_timer: Option<Duration>,
    /// Agents that the creator has given up, or that have gone.
    lost: BTreeSet<usize>,
    is_closing: bool,
}

pub(super) struct JobsRun {
    scenario: JobsScenario,
    hosts: Vec<PlayedHost>,
    creator: Option<PlayedCreator>,
    ledger: JobsLedger,
    agenda: Agenda<JobsEvent>,
    random: SplitMix64,
    /// Of what goes wrong by mischief.
    chance: SplitMix64,
    now: Duration,
    digest: RunDigest,
    report: JobsReport,
}

impl JobsRun {
    pub(super) fn new(scenario: JobsScenario) -> Self {
        let host = |limit: &Option<usize>| PlayedHost {
            machine: AgentMachine::new(*limit),
            limit: *limit,
            line: JobLine::new(scenario.latency),
            cuts: 0,
            disturbed_at: None,
            is_alive: true,
            has_zygote: true,
            noticed_end: None,
            is_signing: false,
            timer: None,
            processes: BTreeMap::new(),
        };
        let mut machine = JobMachine::new(JOB.to_owned());
        for number in 0..scenario.hosts.len() {
            // Hosts are far fewer than numbers.
            let _ = machine.add_agent(format!("host{number}"));
        }
        if scenario.end == JobsEnd::Left {
            machine.detach();
        }
        let mut run = Self {
            hosts: scenario.hosts.iter().map(host).collect(),
            creator: Some(PlayedCreator {
                machine,
                replacements: BTreeMap::new(),
                groups: BTreeMap::new(),
                slot_timer: None,
                lost: BTreeSet::new(),
                is_closing: false,
            }),
            ledger: JobsLedger::default(),
            agenda: Agenda::new(),
            random: SplitMix64::new(scenario.seed),
            chance: SplitMix64::new(scenario.seed ^ 0xBAD),
            now: Duration::ZERO,
            digest: RunDigest::default(),
            report: JobsReport::default(),
            scenario,
        };
        run.plan_all();
        run
    }

    fn plan_all(&mut self) {
        for host in 0..self.hosts.len() {
            self.agenda.plan(Duration::ZERO, JobsEvent::Launch(host));
        }
        // A job begins when its agents are there.
        let begins = 2 * (self.scenario.latency.0 + self.scenario.latency.1);
        for (number, group) in self.scenario.groups.iter().enumerate() {
            self.agenda
                .plan(begins + group.begins_at, JobsEvent::Start(number));
        }
        let mut calm = Duration::ZERO;
        for (number, (at, _)) in self.scenario.faults.iter().enumerate() {
            calm = begins + *at;
            self.agenda.plan(calm, JobsEvent::Fault(number));
        }
        let ends_at = begins + self.scenario.ends_at;
        self.agenda.plan(calm + QUIET_AFTER, JobsEvent::Settle);
        self.agenda.plan(ends_at, JobsEvent::End);
        self.agenda.plan(ends_at + ALL_OVER_AFTER, JobsEvent::Stop);
    }

    pub(super) fn run(mut self) -> Result<JobsReport, Violation> {
        loop {
            let Some((now, event)) = self.agenda.next() else {
                return Err(self.violation("standstill".to_owned()));
            };
            self.now = now;
            self.report.steps += 1;
            self.digest.word(now.as_nanos() as u64);
            self.digest.bytes(format!("{event:?}").as_bytes());
            if self.report.steps > STEPS_MAX {
                return Err(self.violation("no end within the steps allowed".to_owned()));
            }
            let is_last = matches!(event, JobsEvent::Stop);
            self.happen(event).map_err(|what| self.violation(what))?;
            if is_last {
                self.report.digest = self.digest.value();
                self.report.ended_at = self.now;
                return Ok(self.report);
            }
        }
    }

    fn violation(&self, what: String) -> Violation {
        Violation {
            seed: self.scenario.seed,
            step: self.report.steps,
            at: self.now,
            what,
        }
    }

    fn mischief(&mut self, kind: JobsMischief) -> bool {
        self.scenario.mischief == Some(kind) && self.chance.below(MISCHIEF_ONE_IN) == 0
    }

    fn is(&self, kind: JobsMischief) -> bool {
        self.scenario.mischief == Some(kind)
    }

    fn soon(&mut self, most: Duration) -> Duration {
        self.now + self.random.between(Duration::ZERO, most)
    }

    fn happen(&mut self, event: JobsEvent) -> Broken {
        match event {
            JobsEvent::Launch(host) => {
                self.send(host, LineEnd::Creator, JobsMessage::AgentHere);
                Ok(())
            }
            JobsEvent::Start(number) => self.start_group(number),
            JobsEvent::Arrive(host, LineEnd::Creator, message) => self.creator_hears(host, message),
            JobsEvent::Arrive(host, LineEnd::Agent, message) => self.agent_hears(host, message),
            JobsEvent::Heal(host, cut) => {
                self.heal(host, cut);
                Ok(())
            }
            JobsEvent::LinkLost(host, cut) => self.lose_link(host, cut),
            JobsEvent::ChannelDead(host, cut) => self.lose_channel(host, cut),
            JobsEvent::Forked(host, number) => self.forked(host, number),
            JobsEvent::Step(host, number, step) => self.step(host, number, step),
            JobsEvent::Exit(host, number, code) => {
                self.exit(host, number, code);
                Ok(())
            }
            JobsEvent::Reaped(host, number) => self.reaped(host, number),
            JobsEvent::AgentTimer(host) => {
                self.hosts[host].timer = None;
                self.tend_agent(host)
            }
            JobsEvent::SlotTimer => self.replace_slots(),
            JobsEvent::Fault(number) => self.fault(number),
            JobsEvent::End => self.end_job(),
            JobsEvent::AwaitEnds(until) => self.await_ends(until),
            JobsEvent::AwaitSigned(until) => self.await_signed(until),
            JobsEvent::Empty(host, since, is_last) => self.look_empty(host, since, is_last),
            JobsEvent::Settle => self.look_settled(),
            JobsEvent::Stop => self.look_over(),
        }
    }

    /// Sends a message over the line of a host. Says whether there still is a link: otherwise it comes to nothing.
    fn send(&mut self, host: usize, to: LineEnd, message: JobsMessage) -> bool {
        let line = &mut self.hosts[host].line;
        let has_link = !line.is_dead && !line.has_lost_link;
        if let Some((at, message)) = line.send(to, message, self.now, &mut self.random) {
            self.agenda.plan(at, JobsEvent::Arrive(host, to, message));
        }
        has_link
    }

    /// The job is over for a host from this time on: it plans to look.
    fn over_on(&mut self, host: usize, from: Duration) {
        let at = from + GRACE + 2 * PROMPT;
        self.agenda
            .plan(at, JobsEvent::Empty(host, self.now, false));
    }
}
