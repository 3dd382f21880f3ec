//! A job's agent on one host: which processes run there, whose keys are due, who has asked for whom, and what ends when the job does.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use super::{GRACE, JobError, KEYS_AT_ONCE_MAX};

/// The signal that asks a program to end (signal(7)).
const SIGTERM: i32 = 15;
/// The signal that ends a program.
const SIGKILL: i32 = 9;

/// What a process of a detached job learns of siblings that weren't there in time.
const LEFT: &str = "the job's creator has left before all processes were there";

/// An agent's part of a job.
///
/// Into it go what the creator asks for, what processes say and how they end. Out of it come [`AgentAction`]s, one by one, for as long as
/// [`next_action`](Self::next_action) gives any; keys that are to be signed ([`keys_due`](Self::keys_due)), and news for the creator
/// ([`news`](Self::news)). When nothing happens, the machine is asked again at its [`next_timeout`](Self::next_timeout).
#[derive(Debug)]
pub struct AgentMachine {
    processes: BTreeMap<u32, HostProcess>,
    groups: BTreeMap<u32, HostGroup>,
    /// At the same time; as many as the creator wants, if it is `None`.
    processes_max: Option<usize>,
    keys_due: VecDeque<u32>,
    /// The creator has been asked to sign some, and has not answered.
    is_signing: bool,
    here: Vec<u32>,
    returned: Vec<u32>,
    actions: VecDeque<AgentAction>,
    ending: JobEnding,
    has_left: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum JobEnding {
    /// The job goes on.
    No,
    /// What runs at this time is killed.
    Until(Duration),
    /// What ran was killed.
    Killed,
}

#[derive(Debug)]
struct HostProcess {
    rank: u32,
    size: u32,
    group: u32,
    origin: ProcessOrigin,
    has_key: bool,
    is_signed: bool,
    is_here: bool,
    has_returned: bool,
    /// It is known which process of the host it is.
    is_started: bool,
    /// Before that was known.
    signals: Vec<i32>,
    /// Siblings that it has asked for.
    asked: BTreeSet<u32>,
}

#[derive(Debug, Default)]
struct HostGroup {
    /// By ranks, when all that will be there are.
    siblings: Option<Vec<Sibling>>,
    /// Who has asked for which rank before.
    waiting: Vec<(u32, u32)>,
}

/// A process that is to be started, or has come by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewProcess {
    /// Its number in the job.
    pub number: u32,
    /// Which of its group it is.
    pub rank: u32,
    /// How many the group has.
    pub size: u32,
    /// Which group.
    pub group: u32,
    /// Where it comes from.
    pub origin: ProcessOrigin,
}

/// Where a process comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProcessOrigin {
    /// Its agent starts it.
    Agent,
    /// A program that the agent has started, started it.
    Program,
    /// It ran before, and goes on when the job ends.
    Invitation,
}

/// A sibling as processes learn of it: its startpoint, or why it has none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sibling {
    /// Where it is reached.
    pub startpoint: Option<String>,
    /// Why it is not.
    pub reason: String,
}

/// Why a process is not started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StartRefusal {
    /// There is one of this number: the request came twice.
    Known,
    /// There are as many as may be.
    Full,
    /// The job is ending.
    Over,
}

/// What a driver is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AgentAction {
    /// Say the end to a process over its socket.
    HangUp {
        /// Which process.
        process: u32,
    },
    /// Send a signal to a process, and to what it has started.
    Signal {
        /// Which process.
        process: u32,
        /// Which signal.
        signal: i32,
    },
    /// Tell a process of a sibling, as [`sibling`](AgentMachine::sibling) has it.
    Tell {
        /// Which process.
        process: u32,
        /// The sibling's rank.
        rank: u32,
    },
    /// Let go of a process that runs on: its job is over.
    Release {
        /// Which process.
        process: u32,
    },
}

impl AgentMachine {
    /// An agent without processes.
    #[must_use]
    pub fn new(processes_max: Option<usize>) -> Self {
        Self {
            processes: BTreeMap::new(),
            groups: BTreeMap::new(),
            processes_max,
            keys_due: VecDeque::new(),
            is_signing: false,
            here: Vec::new(),
            returned: Vec::new(),
            actions: VecDeque::new(),
            ending: JobEnding::No,
            has_left: false,
        }
    }

    /// A process is to be started; or has come, if it is not the agent that starts it.
    ///
    /// # Errors
    /// Why it isn't.
    pub fn start(&mut self, new: NewProcess) -> Result<(), StartRefusal> {
        if self.ending != JobEnding::No || self.has_left {
            return Err(StartRefusal::Over);
        }
        if self.processes.contains_key(&new.number) {
            return Err(StartRefusal::Known);
        }
        let is_own = new.origin == ProcessOrigin::Agent;
        if is_own
            && self
                .processes_max
                .is_some_and(|limit| self.processes.len() >= limit)
        {
            return Err(StartRefusal::Full);
        }
        let process = HostProcess {
            rank: new.rank,
            size: new.size,
            group: new.group,
            origin: new.origin,
            has_key: false,
            is_signed: false,
            is_here: false,
            has_returned: false,
            is_started: !is_own,
            signals: Vec::new(),
            asked: BTreeSet::new(),
        };
        self.groups.entry(new.group).or_default();
        self.processes.insert(new.number, process);
        Ok(())
    }

    /// It is known now which process of the host a process is.
    pub fn started(&mut self, process: u32) {
        if let Some(known) = self.processes.get_mut(&process) {
            known.is_started = true;
            for signal in std::mem::take(&mut known.signals) {
                self.actions
                    .push_back(AgentAction::Signal { process, signal });
            }
        }
    }

    /// A process has sent its key.
    ///
    /// # Errors
    /// [`JobError::Misbehaved`], if it had.
    pub fn key(&mut self, process: u32) -> Result<(), JobError> {
        let known = self.speaker(process)?;
        if std::mem::replace(&mut known.has_key, true) {
            return Err(misbehaved(process, "it has one key"));
        }
        if self.has_left {
            self.actions.push_back(AgentAction::HangUp { process });
        } else if self.ending == JobEnding::No {
            self.keys_due.push_back(process);
        }
        Ok(())
    }

    /// A process has said where it is reached.
    ///
    /// # Errors
    /// [`JobError::Misbehaved`], if it had.
    pub fn here(&mut self, process: u32) -> Result<(), JobError> {
        let known = self.speaker(process)?;
        if std::mem::replace(&mut known.is_here, true) {
            return Err(misbehaved(process, "it says once that it is there"));
        }
        self.here.push(process);
        Ok(())
    }

    /// The function of a process has returned.
    ///
    /// # Errors
    /// [`JobError::Misbehaved`], if it had.
    pub fn returned(&mut self, process: u32) -> Result<(), JobError> {
        let known = self.speaker(process)?;
        if std::mem::replace(&mut known.has_returned, true) {
            return Err(misbehaved(process, "a function returns once"));
        }
        self.returned.push(process);
        Ok(())
    }

    /// A process asks for a sibling.
    ///
    /// # Errors
    /// [`JobError::Misbehaved`], if there is none, or it has asked before.
    pub fn ask(&mut self, process: u32, rank: u32) -> Result<(), JobError> {
        let known = self.speaker(process)?;
        if rank >= known.size {
            return Err(misbehaved(process, "it has no such sibling"));
        }
        if !known.asked.insert(rank) {
            return Err(misbehaved(process, "it asks for each sibling once"));
        }
        let group = known.group;
        let group = self.groups.entry(group).or_default();
        if group.siblings.is_some() {
            self.actions.push_back(AgentAction::Tell { process, rank });
        } else {
            group.waiting.push((process, rank));
        }
        Ok(())
    }

    /// What processes learn of a sibling.
    #[must_use]
    pub fn sibling(&self, process: u32, rank: u32) -> Option<&Sibling> {
        let group = self.processes.get(&process)?.group;
        self.groups
            .get(&group)?
            .siblings
            .as_ref()?
            .get(rank as usize)
    }

    /// The creator says who the members of a group are, by ranks; again when others are in the place of some.
    pub fn siblings(&mut self, group: u32, siblings: Vec<Sibling>) {
        let mut its = self
            .processes
            .iter()
            .filter(|(_, process)| process.group == group);
        if self.has_left || its.any(|(_, process)| process.size as usize != siblings.len()) {
            return;
        }
        let known = self.groups.entry(group).or_default();
        let waiting = std::mem::take(&mut known.waiting);
        let before = known.siblings.replace(siblings);
        let after = known.siblings.as_deref().unwrap_or_default();
        let changed: BTreeSet<u32> = before
            .iter()
            .flatten()
            .zip(after)
            .zip(0..)
            .filter(|((old, new), _)| old.startpoint != new.startpoint)
            .map(|(_, rank)| rank)
            .collect();
        let members = self
            .processes
            .iter()
            .filter(|(_, process)| process.group == group);
        for (process, state) in members {
            for rank in state.asked.intersection(&changed) {
                let (process, rank) = (*process, *rank);
                self.actions.push_back(AgentAction::Tell { process, rank });
            }
        }
        self.tell_waiting(waiting);
    }

    /// Sends a signal to processes: to those of which it isn't known yet which they are, as soon as it is.
    pub fn signal(&mut self, processes: &[u32], signal: i32) {
        for process in processes {
            match self.processes.get_mut(process) {
                Some(known) if known.is_started => {
                    let process = *process;
                    self.actions
                        .push_back(AgentAction::Signal { process, signal });
                }
                Some(known) if !known.signals.contains(&signal) => known.signals.push(signal),
                Some(_) | None => {}
            }
        }
    }

    /// A process has ended, or was not started after all.
    pub fn ended(&mut self, process: u32) {
        let Some(known) = self.processes.remove(&process) else {
            return;
        };
        self.keys_due.retain(|one| *one != process);
        if let Some(group) = self.groups.get_mut(&known.group) {
            group.waiting.retain(|(one, _)| *one != process);
        }
    }

    /// What starts processes was ended, and so will be all that it has started.
    pub fn zygote_lost(&mut self) {
        let all: Vec<u32> = self.processes.keys().copied().collect();
        self.signal(&all, SIGKILL);
    }

    /// The job ends: those that have joined see the end of their sockets, others are asked by a signal. Who doesn't end soon is killed. Says
    /// whether it didn't before.
    pub fn end(&mut self, now: Duration) -> bool {
        if self.ending != JobEnding::No {
            return false;
        }
        self.ending = JobEnding::Until(now + GRACE);
        self.keys_due.clear();
        let mut strangers = Vec::new();
        for (number, known) in &self.processes {
            let process = *number;
            self.actions.push_back(AgentAction::HangUp { process });
            if known.origin == ProcessOrigin::Invitation {
                self.actions.push_back(AgentAction::Release { process });
            } else if !known.has_key {
                strangers.push(process);
            }
        }
        self.signal(&strangers, SIGTERM);
        true
    }

    /// The creator of a detached job has left. What runs goes on, until it has ended: a function that has returned waits for nobody's
    /// requests any more. Says whether it hadn't before.
    pub fn leave(&mut self) -> bool {
        if std::mem::replace(&mut self.has_left, true) {
            return false;
        }
        self.here.clear();
        self.returned.clear();
        self.keys_due.clear();
        // Nobody signs. Those that wait for it learn that their job is over.
        for (process, known) in &self.processes {
            if known.has_key && !known.is_signed {
                let process = *process;
                self.actions.push_back(AgentAction::HangUp { process });
            }
        }
        let sizes: BTreeMap<u32, u32> = self
            .processes
            .values()
            .map(|process| (process.group, process.size))
            .collect();
        let mut waiting = Vec::new();
        for (group, size) in sizes {
            let known = self.groups.entry(group).or_default();
            let missing = Sibling {
                startpoint: None,
                reason: LEFT.to_owned(),
            };
            known
                .siblings
                .get_or_insert_with(|| vec![missing; size as usize]);
            waiting.append(&mut known.waiting);
        }
        self.tell_waiting(waiting);
        true
    }

    /// Processes whose keys are to be signed in one request. None while another one is under way: meanwhile more come together.
    pub fn keys_due(&mut self) -> Vec<u32> {
        let count = self.keys_due.len().min(KEYS_AT_ONCE_MAX);
        if self.is_signing || count == 0 {
            return Vec::new();
        }
        self.is_signing = true;
        self.keys_due.drain(..count).collect()
    }

    /// The keys of processes that were due are signed.
    pub fn signed(&mut self, processes: &[u32]) {
        self.is_signing = false;
        for process in processes {
            if let Some(known) = self.processes.get_mut(process) {
                known.is_signed = true;
            }
        }
    }

    /// Processes that are there, and those whose functions have returned, since this was asked last. It is asked before the end of a process
    /// is told.
    pub fn news(&mut self) -> (Vec<u32>, Vec<u32>) {
        if self.has_left {
            return (Vec::new(), Vec::new());
        }
        (
            std::mem::take(&mut self.here),
            std::mem::take(&mut self.returned),
        )
    }

    /// What is to be done next.
    pub fn next_action(&mut self) -> Option<AgentAction> {
        self.actions.pop_front()
    }

    /// When to call [`handle_timeout`](Self::handle_timeout).
    #[must_use]
    pub fn next_timeout(&self) -> Option<Duration> {
        match self.ending {
            JobEnding::Until(at) => Some(at),
            JobEnding::No | JobEnding::Killed => None,
        }
    }

    /// Kills what still runs when its time is over; and ends a job without a creator in which all is done.
    pub fn handle_timeout(&mut self, now: Duration) {
        if self.has_left && self.processes.values().all(|process| process.has_returned) {
            self.end(now);
        }
        if matches!(self.ending, JobEnding::Until(at) if now >= at) {
            self.ending = JobEnding::Killed;
            let all: Vec<u32> = self.processes.keys().copied().collect();
            self.signal(&all, SIGKILL);
        }
    }

    /// Whether the creator has left a detached job.
    #[must_use]
    pub fn has_left(&self) -> bool {
        self.has_left
    }

    /// Whether the job is over here: all has ended.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.ending != JobEnding::No && self.processes.is_empty()
    }

    /// The processes that run, with their ranks.
    pub fn processes(&self) -> impl Iterator<Item = (u32, u32)> {
        self.processes
            .iter()
            .map(|(number, process)| (*number, process.rank))
    }

    fn speaker(&mut self, process: u32) -> Result<&mut HostProcess, JobError> {
        let known = self.processes.get_mut(&process);
        known.ok_or_else(|| misbehaved(process, "it has ended"))
    }

    fn tell_waiting(&mut self, waiting: Vec<(u32, u32)>) {
        let told = waiting.into_iter();
        self.actions
            .extend(told.map(|(process, rank)| AgentAction::Tell { process, rank }));
    }
}

fn misbehaved(process: u32, what: &'static str) -> JobError {
    JobError::Misbehaved { process, what }
}
