//! The creator's driver: what `job_state.py` and `launched_slots.py` do.

use std::time::Duration;

use exoskel_node::job::{
    FutureFate, GroupMember, JobError, JobMachine, JobPlacement, MemberEnd, Replacements, Sibling,
};

use super::{Broken, END_PATIENCE, JOB, JobsEvent, JobsRun, LineEnd, SIGN_PATIENCE};
use crate::jobs::line::JobsMessage;
use crate::jobs::scenario::{JobsEnd, JobsMischief, PlayedProgram};

/// How often each slot has been started before all are given up.
const STARTS_MIN: usize = 2;

/// How long the creator waits before it looks again whether it can end.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

impl JobsRun {
    /// The machine of the creator, if it lives.
    pub(super) fn creator(&mut self) -> Option<&mut JobMachine> {
        self.creator.as_mut().map(|creator| &mut creator.machine)
    }

    /// A user asks for processes.
    pub(super) fn start_group(&mut self, number: usize) -> Broken {
        let wanted = self.scenario.groups[number].clone();
        let is_function = !matches!(wanted.program, PlayedProgram::Program { .. });
        let now = self.now;
        let Some(creator) = &mut self.creator else {
            return Ok(());
        };
        let filled = creator
            .machine
            .fill(wanted.count, JobPlacement::AllHosts, None, is_function);
        let members = match filled {
            Ok(members) => members,
            Err(JobError::AgentLost { .. } | JobError::Over) => return Ok(()),
            Err(error) => return Err(format!("a group can't be started: {error}")),
        };
        let Some(group) = members.first().map(|member| member.number) else {
            return Ok(());
        };
        creator.groups.insert(group, number);
        if creator.is_closing {
            return Err(format!("group {group} begins in a job that is over"));
        }
        if matches!(wanted.program, PlayedProgram::Slot { .. }) {
            creator
                .replacements
                .insert(group, Replacements::new(wanted.count, now));
        }
        self.ledger.programs.insert(group, wanted.program);
        for member in &members {
            self.ledger
                .add(group, *member, wanted.program == PlayedProgram::Liar, now)?;
        }
        for host in 0..self.hosts.len() {
            let its: Vec<GroupMember> = members
                .iter()
                .filter(|member| member.agent as usize == host + 1)
                .copied()
                .collect();
            if its.is_empty() || self.ask_to_start(host, group, wanted.count, &its) {
                continue;
            }
            // Nobody is asked to start the others.
            let others = members
                .iter()
                .filter(|member| member.agent as usize > host + 1);
            let others: Vec<u32> = others.map(|member| member.number).collect();
            let ended = self.creator().map(|machine| machine.not_started(&others));
            self.take_ends(ended.unwrap_or_default())?;
            return self.give_up(host);
        }
        Ok(())
    }

    /// Asks an agent to start processes. Says whether it can be asked.
    fn ask_to_start(
        &mut self,
        host: usize,
        group: u32,
        size: u32,
        members: &[GroupMember],
    ) -> bool {
        let members = members
            .iter()
            .map(|member| (member.number, member.rank))
            .collect();
        let start = JobsMessage::Start {
            group,
            size,
            members,
        };
        self.send(host, LineEnd::Agent, start)
    }

    /// The creator lets go of an agent to which there is no link any more: its processes end with its channel.
    pub(super) fn give_up(&mut self, host: usize) -> Broken {
        if self.creator.is_some() {
            self.send(host, LineEnd::Agent, JobsMessage::HangUp);
        }
        self.lose_agent(host)
    }

    /// An agent has gone, as its channel says.
    pub(super) fn lose_agent(&mut self, host: usize) -> Broken {
        let Some(creator) = &mut self.creator else {
            return Ok(());
        };
        if !creator.lost.insert(host) {
            return Ok(());
        }
        self.report.agents_lost += 1;
        let ended = creator.machine.agent_lost(host as u32 + 1);
        self.take_ends(ended)
    }

    /// Something comes to the creator.
    pub(super) fn creator_hears(&mut self, host: usize, message: JobsMessage) -> Broken {
        let agent = host as u32 + 1;
        let believes = self.is(JobsMischief::BelievesLiars);
        let Some(creator) = &mut self.creator else {
            return Ok(());
        };
        let machine = &mut creator.machine;
        let wrong = |error: JobError| format!("what an agent may say is refused: {error}");
        match message {
            JobsMessage::AgentHere => {
                machine.agent_here(agent);
            }
            JobsMessage::Sign(numbers) => {
                machine.sign(agent, &numbers).map_err(wrong)?;
                self.send(host, LineEnd::Agent, JobsMessage::Signed(numbers));
            }
            JobsMessage::Here(mut found) => {
                if believes {
                    for (number, name) in &mut found {
                        *name = node_name(host, *number);
                    }
                }
                for number in machine.here(agent, &found).map_err(wrong)? {
                    self.ledger.there(number)?;
                    self.report.there += 1;
                }
            }
            JobsMessage::Returned(numbers) => machine.returned(agent, &numbers).map_err(wrong)?,
            JobsMessage::Ended { number, code } => {
                let ended = machine.ended(agent, number, code, &[]).map_err(wrong)?;
                self.take_ends(ended)?;
            }
            JobsMessage::HangUp => self.lose_agent(host)?,
            JobsMessage::Start { .. }
            | JobsMessage::Siblings { .. }
            | JobsMessage::Signed(_)
            | JobsMessage::End => return Err("an agent says what a creator says".to_owned()),
        }
        if self.mischief(JobsMischief::InventsLosses) {
            self.lose_agent(host)?;
        }
        self.tell_siblings()
    }

    /// Processes have ended.
    pub(super) fn take_ends(&mut self, ended: Vec<MemberEnd>) -> Broken {
        for end in ended {
            let truth = self.ledger.known(end.number)?;
            let (host, group, rank) = (truth.host, truth.group, truth.rank);
            let played = &self.hosts[host];
            let is_gone = !played.is_alive || played.line.is_dead || played.line.has_lost_link;
            // Whoever closes a job doesn't wait for ever.
            let disturbed = played.disturbed_at;
            let was_disturbed = disturbed.is_some_and(|at| at + END_PATIENCE >= self.now);
            self.ledger.ended(end, is_gone || was_disturbed)?;
            if self.mischief(JobsMischief::SettlesTwice) {
                self.ledger.settled(end.number)?;
            }
            match end.fate {
                FutureFate::Failed => self.report.failed += 1,
                FutureFate::Settled | FutureFate::Done => {}
            }
            if end.reason == exoskel_node::job::EndReason::Lost {
                self.report.lost += 1;
            }
            let forgets = self.mischief(JobsMischief::ForgetsSlots);
            let now = self.now;
            if let Some(creator) = &mut self.creator
                && let Some(slots) = creator.replacements.get_mut(&group)
                && !forgets
            {
                slots.ended(end.number, rank, now);
            }
        }
        self.tell_siblings()?;
        self.plan_slots();
        Ok(())
    }

    fn plan_slots(&mut self) {
        if let Some(creator) = &mut self.creator {
            let slots = creator.replacements.values();
            let next = slots.filter_map(Replacements::next_timeout).min();
            if let Some(at) = next.map(|at| at.max(self.now))
                && creator.slot_timer.is_none_or(|planned| at < planned)
            {
                creator.slot_timer = Some(at);
                self.agenda.plan(at, JobsEvent::SlotTimer);
            }
        }
    }

    /// Other slots come in the place of those that have ended.
    pub(super) fn replace_slots(&mut self) -> Broken {
        let repeats = self.is(JobsMischief::RepeatsNumbers);
        let now = self.now;
        let mut fresh = Vec::new();
        if let Some(creator) = &mut self.creator {
            creator.slot_timer = None;
            if creator.is_closing {
                return Ok(());
            }
            for (group, slots) in &mut creator.replacements {
                while let Some(process) = slots.next_due(now) {
                    let rank = self.ledger.known(process)?.rank;
                    match creator.machine.replace(process) {
                        Some(mut member) => {
                            if repeats {
                                member.number = process;
                            }
                            fresh.push((*group, member));
                        }
                        None => slots.no_host(rank),
                    }
                }
                if slots.is_hopeless(now) {
                    if creator.machine.has_hosts() && !self.ledger.has_tried(*group, STARTS_MIN) {
                        return Err(format!("the slots of group {group} are given up too soon"));
                    }
                    // Nobody waits for them any more.
                    *slots = Replacements::new(0, now);
                }
            }
        }
        for (group, member) in fresh {
            self.report.replaced += 1;
            self.ledger.add(group, member, false, now)?;
            let size = self.ledger.groups[&group].members.len() as u32;
            let host = member.agent as usize - 1;
            if !self.ask_to_start(host, group, size, &[member]) {
                self.give_up(host)?;
            }
        }
        self.plan_slots();
        Ok(())
    }

    /// Agents are told of the members of groups.
    pub(super) fn tell_siblings(&mut self) -> Broken {
        while let Some(mut telling) = self.creator().and_then(JobMachine::next_telling) {
            if self.mischief(JobsMischief::NamesTheDead) {
                telling
                    .members
                    .iter_mut()
                    .for_each(|(_, is_there)| *is_there = true);
            }
            self.ledger.told(&telling)?;
            self.report.told += 1;
            if self.mischief(JobsMischief::RepeatsTellings) {
                self.ledger.told(&telling)?;
            }
            let ledger = &self.ledger;
            let siblings: Vec<Sibling> = telling
                .members
                .iter()
                .map(|(number, is_there)| Sibling {
                    startpoint: is_there.then(|| node_name(ledger.processes[number].host, *number)),
                    reason: "it has ended".to_owned(),
                })
                .collect();
            for agent in telling.agents {
                if self.mischief(JobsMischief::LosesTellings) {
                    continue;
                }
                let siblings = siblings.clone();
                let group = telling.group;
                // The processes of an agent that has gone have gone, too.
                let message = JobsMessage::Siblings { group, siblings };
                self.send(agent as usize - 1, LineEnd::Agent, message);
            }
        }
        Ok(())
    }

    /// The job ends as the scenario has it.
    pub(super) fn end_job(&mut self) -> Broken {
        let Some(creator) = &mut self.creator else {
            return Ok(());
        };
        if self.scenario.end == JobsEnd::Killed {
            return self.kill_creator();
        }
        creator.is_closing = true;
        let there = creator.machine.finish();
        if self.scenario.end == JobsEnd::Left {
            let until = self.now + SIGN_PATIENCE;
            return self.await_signed(until);
        }
        for agent in there {
            self.send(agent as usize - 1, LineEnd::Agent, JobsMessage::End);
        }
        for host in 0..self.hosts.len() {
            let line = &self.hosts[host].line;
            let late = if line.has_lost_link {
                END_PATIENCE
            } else {
                Duration::ZERO
            };
            let from = line.arrives_by(self.now) + late;
            self.over_on(host, from);
        }
        let until = self.now + END_PATIENCE;
        self.await_ends(until)
    }

    /// The creator of a job that is over waits for ends, and closes the channels then.
    pub(super) fn await_ends(&mut self, until: Duration) -> Broken {
        let Some(creator) = &mut self.creator else {
            return Ok(());
        };
        let awaited = creator.machine.awaited();
        if creator.machine.running(&awaited) > 0 && self.now < until {
            self.agenda
                .plan(self.now + LOOK_AGAIN, JobsEvent::AwaitEnds(until));
            return Ok(());
        }
        self.close_channels()
    }

    /// The creator of a detached job waits until nobody needs it any more.
    pub(super) fn await_signed(&mut self, until: Duration) -> Broken {
        let Some(creator) = &mut self.creator else {
            return Ok(());
        };
        if !creator.machine.is_signed() && self.now < until {
            self.agenda
                .plan(self.now + LOOK_AGAIN, JobsEvent::AwaitSigned(until));
            return Ok(());
        }
        self.close_channels()
    }

    fn close_channels(&mut self) -> Broken {
        for host in 0..self.hosts.len() {
            self.send(host, LineEnd::Agent, JobsMessage::HangUp);
            if self.scenario.end == JobsEnd::Left {
                self.lose_agent(host)?;
            }
        }
        let ended = self.creator().map(JobMachine::forget);
        self.take_ends(ended.unwrap_or_default())?;
        self.ledger.all_settled()?;
        self.creator = None;
        Ok(())
    }

    /// The creator dies, and nobody hears of its futures any more.
    pub(super) fn kill_creator(&mut self) -> Broken {
        if self.creator.take().is_none() {
            return Ok(());
        }
        for host in 0..self.hosts.len() {
            self.send(host, LineEnd::Agent, JobsMessage::HangUp);
            if self.scenario.end != JobsEnd::Left {
                let from = self.hosts[host].line.arrives_by(self.now);
                self.over_on(host, from);
            }
        }
        Ok(())
    }
}

/// The name in the certificate of a process.
pub(super) fn node_name(host: usize, number: u32) -> String {
    format!("host{host}#{number}.{JOB}")
}
