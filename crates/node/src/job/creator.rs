//! A job's creator: which agents and processes there are, how far each has come, and who is to be told of whom.

use std::collections::{BTreeMap, BTreeSet};

use super::{CREATOR, JobError, PROCESSES_MAX};

/// The creator's part of a job.
///
/// Into it go what agents say and what users want. Each call gives what it changes: processes that are there, processes that have ended.
/// What siblings have to be told waits in [`next_telling`](Self::next_telling): who takes a telling sends it before taking the next one, so
/// that agents hear the newest one last.
#[derive(Debug)]
pub struct JobMachine {
    job: String,
    agents: BTreeMap<u32, AgentState>,
    processes: BTreeMap<u32, ProcessState>,
    groups: BTreeMap<u32, GroupState>,
    /// Groups whose members are to be told of each other.
    due: BTreeSet<u32>,
    next: u32,
    is_detached: bool,
    is_over: bool,
}

#[derive(Debug)]
struct AgentState {
    host: String,
    is_here: bool,
    is_lost: bool,
}

#[derive(Debug)]
struct ProcessState {
    group: u32,
    rank: u32,
    agent: u32,
    /// What starts it, if that is not its agent.
    starter: Option<u32>,
    is_function: bool,
    is_signed: bool,
    is_here: bool,
    has_returned: bool,
    has_ended: bool,
}

#[derive(Debug)]
struct GroupState {
    /// By ranks.
    members: Vec<u32>,
    /// Members that are not there and have not ended.
    missing: usize,
}

/// Which hosts get processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JobPlacement {
    /// All of them, neighbours on one.
    AllHosts,
    /// The first one.
    FirstHost,
}

/// A process that is to be started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupMember {
    /// Its number in the job.
    pub number: u32,
    /// Which of its group it is.
    pub rank: u32,
    /// Who starts it.
    pub agent: u32,
}

/// Why a process has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndReason {
    /// Its agent has said so.
    Told,
    /// Its agent was lost, or the job is over before it has said anything.
    Lost,
    /// Its creator has left a detached job: it goes on.
    Left,
}

/// What becomes of the future of a process that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FutureFate {
    /// It had the process before.
    Settled,
    /// It gets the process: a program has done its work without joining.
    Done,
    /// It fails.
    Failed,
}

/// A process that has ended now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemberEnd {
    /// Its number.
    pub number: u32,
    /// Its exit code, if anybody knows it; negative if a signal has ended it.
    pub code: Option<i32>,
    /// Why.
    pub reason: EndReason,
    /// What becomes of its future.
    pub fate: FutureFate,
}

/// What is said to agents, for the processes of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupTelling {
    /// Which group.
    pub group: u32,
    /// Its processes by ranks, and whether each is there.
    pub members: Vec<(u32, bool)>,
    /// Whom to tell.
    pub agents: Vec<u32>,
}

impl JobMachine {
    /// A job without agents.
    #[must_use]
    pub fn new(job: String) -> Self {
        Self {
            job,
            agents: BTreeMap::new(),
            processes: BTreeMap::new(),
            groups: BTreeMap::new(),
            due: BTreeSet::new(),
            next: CREATOR + 1,
            is_detached: false,
            is_over: false,
        }
    }

    /// An agent is on its way. Gives its number.
    ///
    /// # Errors
    /// [`JobError::TooMany`].
    pub fn add_agent(&mut self, host: String) -> Result<u32, JobError> {
        let number = self.take_numbers(1)?;
        let agent = AgentState {
            host,
            is_here: false,
            is_lost: false,
        };
        self.agents.insert(number, agent);
        Ok(number)
    }

    /// It is known on which host an agent is: launchers that choose hosts say it late.
    pub fn set_host(&mut self, agent: u32, host: String) {
        if let Some(known) = self.agents.get_mut(&agent) {
            known.host = host;
        }
    }

    /// The job goes on without an agent that has not come.
    pub fn remove_agent(&mut self, agent: u32) {
        self.agents.remove(&agent);
    }

    /// An agent can be asked now. Says whether it couldn't before.
    pub fn agent_here(&mut self, agent: u32) -> bool {
        let known = self.agents.get_mut(&agent);
        known.is_some_and(|known| !std::mem::replace(&mut known.is_here, true))
    }

    /// Agents that have not come yet.
    pub fn agents_missing(&self) -> Vec<u32> {
        let missing = self.agents.iter().filter(|(_, agent)| !agent.is_here);
        missing.map(|(number, _)| *number).collect()
    }

    /// Whether there is somebody left who starts processes.
    #[must_use]
    pub fn has_hosts(&self) -> bool {
        self.agents.values().any(|agent| !agent.is_lost)
    }

    /// From now on, processes go on when the creator leaves.
    pub fn detach(&mut self) {
        self.is_detached = true;
    }

    /// An agent has gone, and so have its processes.
    pub fn agent_lost(&mut self, agent: u32) -> Vec<MemberEnd> {
        let Some(known) = self.agents.get_mut(&agent) else {
            return Vec::new();
        };
        known.is_lost = true;
        let its: Vec<u32> = self
            .processes
            .iter()
            .filter(|(_, process)| process.agent == agent)
            .map(|(number, _)| *number)
            .collect();
        let reason = if self.is_detached && self.is_over {
            EndReason::Left
        } else {
            EndReason::Lost
        };
        let ended = its
            .into_iter()
            .filter_map(|one| self.end(one, None, reason));
        ended.collect()
    }

    /// Makes a group of processes, which takes the number of its first one. `starter`: the process that starts them, in place of their agents.
    ///
    /// # Errors
    /// [`JobError::TooMany`], [`JobError::AgentLost`] or [`JobError::Over`]; nothing is changed then.
    pub fn fill(
        &mut self,
        count: u32,
        placement: JobPlacement,
        starter: Option<u32>,
        is_function: bool,
    ) -> Result<Vec<GroupMember>, JobError> {
        if self.is_over {
            return Err(JobError::Over);
        }
        let hosts_max = match placement {
            JobPlacement::AllHosts => usize::MAX,
            JobPlacement::FirstHost => 1,
        };
        let agents: Vec<u32> = self.agents.keys().copied().take(hosts_max).collect();
        if let Some(lost) = agents
            .iter()
            .map(|agent| &self.agents[agent])
            .find(|one| one.is_lost)
        {
            let host = lost.host.clone();
            return Err(JobError::AgentLost { host });
        }
        if agents.is_empty() || count == 0 {
            return Ok(Vec::new());
        }
        let group = self.take_numbers(count)?;
        let members: Vec<GroupMember> = (0..count)
            .map(|rank| GroupMember {
                number: group + rank,
                rank,
                // Neighbours are on one host, and each host has as many as the others.
                agent: agents[(rank as usize * agents.len()) / count as usize],
            })
            .collect();
        for member in &members {
            self.add(group, *member, starter, is_function);
        }
        self.groups.insert(
            group,
            GroupState {
                members: members.iter().map(|member| member.number).collect(),
                missing: members.len(),
            },
        );
        Ok(members)
    }

    /// Puts another process in the place of one that has ended; on its host, if that is still there. Nothing if there is no host or number
    /// left, the job is over, or the process has not ended or was replaced.
    pub fn replace(&mut self, process: u32) -> Option<GroupMember> {
        let old = self.processes.get(&process)?;
        let (group, rank, starter, is_function) =
            (old.group, old.rank, old.starter, old.is_function);
        let is_free = old.has_ended && self.groups[&group].members[rank as usize] == process;
        if self.is_over || !is_free {
            return None;
        }
        let is_there = |agent: &u32| self.agents.get(agent).is_some_and(|one| !one.is_lost);
        let there: Vec<u32> = self.agents.keys().copied().filter(is_there).collect();
        let agent = if is_there(&old.agent) {
            old.agent
        } else {
            *there.get(rank as usize % there.len().max(1))?
        };
        let number = self.take_numbers(1).ok()?;
        let member = GroupMember {
            number,
            rank,
            agent,
        };
        self.add(group, member, starter, is_function);
        if let Some(its) = self.groups.get_mut(&group) {
            its.members[rank as usize] = number;
            its.missing += 1;
            self.due.remove(&group);
        }
        Some(member)
    }

    /// Whether the processes of an agent may be signed: they are its own. They count as signed then.
    ///
    /// # Errors
    /// [`JobError::NotOwn`].
    pub fn sign(&mut self, agent: u32, processes: &[u32]) -> Result<(), JobError> {
        self.check_own(agent, processes)?;
        for process in processes {
            if let Some(process) = self.processes.get_mut(process) {
                process.is_signed = true;
            }
        }
        Ok(())
    }

    /// An agent gives the startpoints of processes, whose nodes have these names. Gives those that are there by that: what one process says
    /// wrongly, or twice, is not the fault of the others.
    ///
    /// # Errors
    /// [`JobError::NotOwn`].
    pub fn here(&mut self, agent: u32, found: &[(u32, String)]) -> Result<Vec<u32>, JobError> {
        let numbers: Vec<u32> = found.iter().map(|(number, _)| *number).collect();
        self.check_own(agent, &numbers)?;
        let mut there = Vec::new();
        for (number, node) in found {
            if *node != self.name_of(agent, *number) {
                continue;
            }
            let Some(process) = self.processes.get_mut(number) else {
                continue;
            };
            if !process.has_ended && !process.is_here {
                process.is_here = true;
                let group = process.group;
                there.push(*number);
                self.is_no_longer_missing(group);
            }
        }
        Ok(there)
    }

    /// The functions of processes have returned.
    ///
    /// # Errors
    /// [`JobError::NotOwn`].
    pub fn returned(&mut self, agent: u32, processes: &[u32]) -> Result<(), JobError> {
        self.check_own(agent, processes)?;
        for process in processes {
            if let Some(process) = self.processes.get_mut(process) {
                process.has_returned = true;
            }
        }
        Ok(())
    }

    /// A process has ended, and with it those that it should have started or has.
    ///
    /// # Errors
    /// [`JobError::NotOwn`].
    pub fn ended(
        &mut self,
        agent: u32,
        process: u32,
        code: Option<i32>,
        joined: &[u32],
    ) -> Result<Vec<MemberEnd>, JobError> {
        self.check_own(agent, &[process])?;
        self.check_own(agent, joined)?;
        let first = self.end(process, code, EndReason::Told);
        let joined = joined
            .iter()
            .filter_map(|one| self.end(*one, None, EndReason::Told));
        let joined: Vec<_> = joined.collect();
        Ok(first.into_iter().chain(joined).collect())
    }

    /// Processes that nobody was asked to start, or whose start was refused, have ended.
    pub fn not_started(&mut self, processes: &[u32]) -> Vec<MemberEnd> {
        let ended = processes
            .iter()
            .filter_map(|one| self.end(*one, None, EndReason::Told));
        ended.collect()
    }

    /// What agents are to be told next.
    pub fn next_telling(&mut self) -> Option<GroupTelling> {
        if self.is_over {
            return None;
        }
        let group = self.due.pop_first()?;
        let members = &self.groups[&group].members;
        let its: BTreeSet<u32> = members
            .iter()
            .map(|one| self.processes[one].agent)
            .collect();
        let is_there = |one: &u32| self.processes[one].is_here && !self.processes[one].has_ended;
        let can_hear = |agent: &u32| {
            self.agents
                .get(agent)
                .is_some_and(|one| one.is_here && !one.is_lost)
        };
        Some(GroupTelling {
            group,
            members: members.iter().map(|one| (*one, is_there(one))).collect(),
            agents: its.into_iter().filter(can_hear).collect(),
        })
    }

    /// The job is over: nothing begins any more. Gives the agents that are to be asked to end, none in a detached job.
    pub fn finish(&mut self) -> Vec<u32> {
        self.is_over = true;
        if self.is_detached {
            return Vec::new();
        }
        let there = self
            .agents
            .iter()
            .filter(|(_, agent)| agent.is_here && !agent.is_lost);
        there.map(|(number, _)| *number).collect()
    }

    /// Nobody hears of processes any more: all that have not ended have.
    pub fn forget(&mut self) -> Vec<MemberEnd> {
        let all: Vec<u32> = self.processes.keys().copied().collect();
        let ended = all
            .into_iter()
            .filter_map(|one| self.end(one, None, EndReason::Lost));
        ended.collect()
    }

    /// How many of these processes still run, with those that have started them.
    #[must_use]
    pub fn running(&self, processes: &[u32]) -> usize {
        let runs = |one: &u32| {
            self.processes
                .get(one)
                .is_some_and(|process| !process.has_ended)
        };
        let starters = processes
            .iter()
            .filter_map(|one| self.processes.get(one)?.starter);
        processes.iter().filter(|one| runs(one)).count() + starters.filter(runs).count()
    }

    /// Processes of agents that are there, or were not lost, at least: those whose ends can be waited for.
    #[must_use]
    pub fn awaited(&self) -> Vec<u32> {
        let is_lost = |agent: &u32| self.agents.get(agent).is_none_or(|one| one.is_lost);
        let awaited = self
            .processes
            .iter()
            .filter(|(_, process)| !is_lost(&process.agent));
        awaited.map(|(number, _)| *number).collect()
    }

    /// How many of these have not returned, and the first one that has ended before it did.
    #[must_use]
    pub fn unreturned(&self, processes: &[u32]) -> (usize, Option<u32>) {
        let missing = processes.iter().filter(|one| {
            self.processes
                .get(one)
                .is_some_and(|process| !process.has_returned)
        });
        let missing: Vec<u32> = missing.copied().collect();
        let lost = missing.iter().find(|one| self.processes[one].has_ended);
        (missing.len(), lost.copied())
    }

    /// Whether all processes that run a function have a certificate, or have ended: without their creator, nobody gets one.
    #[must_use]
    pub fn is_signed(&self) -> bool {
        let mut functions = self
            .processes
            .values()
            .filter(|process| process.is_function);
        functions.all(|process| process.is_signed || process.has_ended)
    }

    /// The name in the certificate of a process.
    fn name_of(&self, agent: u32, process: u32) -> String {
        let host = self.agents.get(&agent).map_or("", |agent| &agent.host);
        format!("{host}#{process}.{}", self.job)
    }

    /// The first of so many new numbers.
    fn take_numbers(&mut self, count: u32) -> Result<u32, JobError> {
        let first = self.next;
        let next = first
            .checked_add(count)
            .filter(|next| *next <= PROCESSES_MAX);
        self.next = next.ok_or(JobError::TooMany)?;
        Ok(first)
    }

    fn add(&mut self, group: u32, member: GroupMember, starter: Option<u32>, is_function: bool) {
        let process = ProcessState {
            group,
            rank: member.rank,
            agent: member.agent,
            starter,
            is_function,
            is_signed: false,
            is_here: false,
            has_returned: false,
            has_ended: false,
        };
        self.processes.insert(member.number, process);
    }

    /// See that processes are those of an agent, and of no other one.
    ///
    /// # Errors
    /// [`JobError::NotOwn`].
    pub fn check_own(&self, agent: u32, processes: &[u32]) -> Result<(), JobError> {
        let is_own = |one: &&u32| self.processes.get(one).is_some_and(|it| it.agent == agent);
        match processes.iter().find(|one| !is_own(one)) {
            None => Ok(()),
            Some(process) => Err(JobError::NotOwn {
                process: *process,
                agent,
            }),
        }
    }

    fn end(&mut self, number: u32, code: Option<i32>, reason: EndReason) -> Option<MemberEnd> {
        let process = self.processes.get_mut(&number)?;
        if std::mem::replace(&mut process.has_ended, true) {
            return None;
        }
        let (was_here, group) = (process.is_here, process.group);
        if !was_here {
            self.is_no_longer_missing(group);
        }
        let fate = match (was_here, code) {
            (true, _) => FutureFate::Settled,
            (false, Some(0)) => FutureFate::Done,
            (false, _) => FutureFate::Failed,
        };
        Some(MemberEnd {
            number,
            code,
            reason,
            fate,
        })
    }

    /// A member of a group is there, or has ended before it was. When no other one is missing, all are told of each other, once.
    fn is_no_longer_missing(&mut self, group: u32) {
        if let Some(its) = self.groups.get_mut(&group) {
            its.missing = its.missing.saturating_sub(1);
            if its.missing == 0 {
                self.due.insert(group);
            }
        }
    }
}
