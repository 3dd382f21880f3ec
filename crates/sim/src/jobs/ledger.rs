//! What is true of the processes of a run, and what is checked of what machines and drivers say.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::scenario::PlayedProgram;
use exoskel_node::job::{EndReason, FutureFate, GroupMember, GroupTelling, MemberEnd};

/// What is known of a process from the outside.
#[derive(Debug)]
pub(super) struct ProcessTruth {
    pub(super) host: usize,
    pub(super) group: u32,
    pub(super) rank: u32,
    /// What has started: a process of the host.
    pub(super) has_run: bool,
    /// When it was asked for.
    pub(super) added_at: Duration,
    /// How it has ended, if it has; and when.
    pub(super) exit: Option<i32>,
    pub(super) exited_at: Duration,
    /// Nobody can say how: what would have said it was killed.
    pub(super) is_exit_unknown: bool,
    /// The creator has taken it for there.
    pub(super) is_there: bool,
    pub(super) is_liar: bool,
    /// The creator has heard of its end.
    pub(super) has_ended: bool,
    /// Outcomes of its future.
    pub(super) outcomes: u32,
}

/// What the creator has said of a group.
#[derive(Debug, Default)]
pub(super) struct GroupTruth {
    /// The newest process of each rank.
    pub(super) members: Vec<u32>,
    /// It was told since the last change of its members.
    pub(super) is_told: bool,
    /// What was told last: the process of each rank that was there.
    pub(super) told: Vec<Option<u32>>,
}

/// The truth of a run.
#[derive(Debug, Default)]
pub(super) struct JobsLedger {
    pub(super) processes: BTreeMap<u32, ProcessTruth>,
    pub(super) groups: BTreeMap<u32, GroupTruth>,
    /// What the processes of each group do.
    pub(super) programs: BTreeMap<u32, PlayedProgram>,
    /// Each process that was ever where.
    ranks: BTreeMap<(u32, u32), BTreeSet<u32>>,
}

/// A broken promise, in words.
pub(super) type Broken = Result<(), String>;

impl JobsLedger {
    /// A process is to be started on a host.
    pub(super) fn add(
        &mut self,
        group: u32,
        member: GroupMember,
        is_liar: bool,
        now: Duration,
    ) -> Broken {
        let GroupMember {
            number,
            rank,
            agent,
        } = member;
        let process = ProcessTruth {
            host: agent as usize - 1,
            group,
            rank,
            has_run: false,
            added_at: now,
            exit: None,
            exited_at: Duration::ZERO,
            is_exit_unknown: false,
            is_there: false,
            is_liar,
            has_ended: false,
            outcomes: 0,
        };
        if self.processes.insert(number, process).is_some() {
            return Err(format!("two processes have the number {number}"));
        }
        let its = self.groups.entry(group).or_default();
        match its.members.get_mut(rank as usize) {
            Some(member) => *member = number,
            None => its.members.push(number),
        }
        its.is_told = false;
        self.ranks.entry((group, rank)).or_default().insert(number);
        Ok(())
    }

    /// A process counts as there.
    pub(super) fn there(&mut self, number: u32) -> Broken {
        let process = self.known(number)?;
        if process.is_liar {
            return Err(format!("process {number} is there, where somebody else is"));
        }
        if !process.has_run || process.has_ended {
            return Err(format!("process {number} is there, but does not run"));
        }
        process.is_there = true;
        self.settled(number)
    }

    /// The future of a process has an outcome.
    pub(super) fn settled(&mut self, number: u32) -> Broken {
        let process = self.known(number)?;
        process.outcomes += 1;
        if process.outcomes > 1 {
            return Err(format!("the future of process {number} has two outcomes"));
        }
        Ok(())
    }

    /// A process has ended, as the creator has it. `is_lost`: whether nobody can say how.
    pub(super) fn ended(&mut self, end: MemberEnd, is_lost: bool) -> Broken {
        let number = end.number;
        let process = self.known(number)?;
        if std::mem::replace(&mut process.has_ended, true) {
            return Err(format!("process {number} has ended twice"));
        }
        match end.reason {
            EndReason::Told if process.has_run && process.exit.is_none() => {
                return Err(format!("process {number} has ended, but runs"));
            }
            EndReason::Told
                if process.has_run && !process.is_exit_unknown && end.code != process.exit =>
            {
                let (got, true_one) = (end.code, process.exit);
                return Err(format!(
                    "process {number} ended with {true_one:?}, told was {got:?}"
                ));
            }
            EndReason::Lost if !is_lost => {
                return Err(format!("process {number} is said to be lost for no reason"));
            }
            EndReason::Told | EndReason::Lost | EndReason::Left => {}
        }
        let right = match (process.is_there, end.code) {
            (true, _) => FutureFate::Settled,
            (false, Some(0)) => FutureFate::Done,
            (false, _) => FutureFate::Failed,
        };
        if right != end.fate {
            let fate = end.fate;
            return Err(format!(
                "the future of process {number} is {fate:?}, not {right:?}"
            ));
        }
        if end.fate != FutureFate::Settled {
            return self.settled(number);
        }
        Ok(())
    }

    /// A group is told of its members.
    pub(super) fn told(&mut self, telling: &GroupTelling) -> Broken {
        let group = telling.group;
        let Some(its) = self.groups.get_mut(&group) else {
            return Err(format!("group {group} is told, which is none"));
        };
        if std::mem::replace(&mut its.is_told, true) {
            return Err(format!("group {group} is told twice"));
        }
        let named: Vec<u32> = telling.members.iter().map(|(number, _)| *number).collect();
        if named != its.members {
            return Err(format!(
                "group {group} is told of {named:?}, it has {:?}",
                its.members
            ));
        }
        for (number, is_named) in &telling.members {
            let process = &self.processes[number];
            if !process.is_there && !process.has_ended {
                return Err(format!(
                    "group {group} is told before process {number} is there"
                ));
            }
            if *is_named != (process.is_there && !process.has_ended) {
                return Err(format!("group {group} is told wrongly of process {number}"));
            }
        }
        let told = telling
            .members
            .iter()
            .map(|(number, is_there)| is_there.then_some(*number));
        its.told = told.collect();
        Ok(())
    }

    /// A process learns that a sibling is this one.
    pub(super) fn learned(&self, group: u32, rank: u32, sibling: Option<u32>) -> Broken {
        let Some(sibling) = sibling else {
            return Ok(());
        };
        let ever = self.ranks.get(&(group, rank));
        if !ever.is_some_and(|ever| ever.contains(&sibling)) {
            return Err(format!(
                "process {sibling} is named as rank {rank} of group {group}"
            ));
        }
        if !self.processes[&sibling].is_there {
            return Err(format!("process {sibling} is named, but was never there"));
        }
        Ok(())
    }

    /// Every process has ended, and every future has its outcome.
    pub(super) fn all_settled(&self) -> Broken {
        let left = self
            .processes
            .iter()
            .find(|(_, process)| process.outcomes != 1);
        match left {
            Some((number, _)) => Err(format!("the future of process {number} has no outcome")),
            None => Ok(()),
        }
    }

    /// Whether each rank of a group of slots has had so many processes.
    pub(super) fn has_tried(&self, group: u32, times: usize) -> bool {
        let its = self.ranks.iter().filter(|((one, _), _)| *one == group);
        its.into_iter().all(|(_, ever)| ever.len() >= times)
    }

    /// Whether all members of a group are there, or have ended.
    pub(super) fn is_complete(&self, group: u32) -> bool {
        let members = self.groups.get(&group).map(|group| &group.members);
        members.into_iter().flatten().all(|number| {
            let process = &self.processes[number];
            process.is_there || process.has_ended
        })
    }

    pub(super) fn known(&mut self, number: u32) -> Result<&mut ProcessTruth, String> {
        let process = self.processes.get_mut(&number);
        process.ok_or_else(|| format!("process {number} is none"))
    }
}
