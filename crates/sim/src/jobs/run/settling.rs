//! What is looked at when nothing more happens: after the faults, when a job is over for a host, and at the end.

use std::time::Duration;

use super::{Broken, CHANNEL_DEAD_AFTER, END_PATIENCE, GRACE, JobsEvent, JobsRun, PROMPT};
use crate::jobs::scenario::PlayedProgram;

/// How long news of a process takes at most, over lines that nothing disturbs, and until it is forked.
const NEWS_AFTER: Duration = Duration::from_secs(10);

impl JobsRun {
    /// Nothing runs on a host whose job was over at this time, or a while later if its line was disturbed.
    pub(super) fn look_empty(&mut self, host: usize, since: Duration, is_last: bool) -> Broken {
        let played = &self.hosts[host];
        let was_disturbed = played
            .disturbed_at
            .is_some_and(|until| until + PROMPT >= since);
        if was_disturbed && !is_last {
            let longest = END_PATIENCE + CHANNEL_DEAD_AFTER + GRACE + 2 * PROMPT;
            let until = played.disturbed_at.unwrap_or_default().max(self.now);
            let at = played.line.arrives_by(until) + longest;
            self.agenda.plan(at, JobsEvent::Empty(host, since, true));
            return Ok(());
        }
        // What was just being forked is killed as soon as it is.
        let mut left = played
            .processes
            .iter()
            .filter(|(_, process)| process.runs && process.forked_at + PROMPT < self.now);
        match left.next() {
            Some((number, _)) => Err(format!(
                "process {number} runs on host {host}, and its job is over"
            )),
            None => Ok(()),
        }
    }

    /// The job goes on, and all that was to happen has.
    pub(super) fn look_settled(&self) -> Broken {
        if self
            .creator
            .as_ref()
            .is_none_or(|creator| creator.is_closing)
        {
            return Ok(());
        }
        for host in 0..self.hosts.len() {
            let is_lost = self
                .creator
                .as_ref()
                .is_some_and(|creator| creator.lost.contains(&host));
            let mut its = self
                .ledger
                .processes
                .iter()
                .filter(|(_, truth)| truth.host == host);
            if let Some((number, _)) = its.find(|(_, truth)| is_lost && !truth.has_ended) {
                return Err(format!(
                    "process {number} is on a lost host, and has not ended"
                ));
            }
            let played = &self.hosts[host];
            let is_reached = !played.line.is_dead && !played.line.has_lost_link;
            if !played.is_alive || !is_reached || played.noticed_end.is_some() {
                continue;
            }
            let unheard = self.ledger.processes.iter().find(|(_, truth)| {
                truth.host == host
                    && truth.exit.is_some()
                    && !truth.has_ended
                    && truth.exited_at + NEWS_AFTER < self.now
            });
            if let Some((number, _)) = unheard {
                return Err(format!(
                    "the creator has not heard of the end of process {number}"
                ));
            }
            for (number, process) in &played.processes {
                if process.has_joined && !process.has_certificate {
                    return Err(format!("process {number} has no certificate"));
                }
                let group = &self.ledger.groups[&process.group];
                if !group.is_told && self.ledger.is_complete(process.group) {
                    return Err(format!("group {} was not told", process.group));
                }
                for (rank, known) in &process.asked {
                    let said = group.told.get(*rank as usize).copied();
                    if group.is_told && *known != said {
                        return Err(format!(
                            "process {number} knows {known:?} as rank {rank}, and not {said:?}"
                        ));
                    }
                }
            }
        }
        self.look_at_slots()
    }

    /// Each slot runs, or is to be replaced.
    fn look_at_slots(&self) -> Broken {
        let Some(creator) = &self.creator else {
            return Ok(());
        };
        for (group, slots) in &creator.replacements {
            let is_hopeless = slots.is_hopeless(self.now);
            let ever_fails = PlayedProgram::Slot { fails_one_in: 1 };
            // What needs long to be forked seems to run for long.
            let is_prompt = self.scenario.forks_within < PROMPT;
            if self.ledger.programs[group] == ever_fails && is_prompt && !is_hopeless {
                return Err(format!("the slots of group {group} are not given up"));
            }
            if is_hopeless || slots.next_timeout().is_some() || !creator.machine.has_hosts() {
                continue;
            }
            for number in &self.ledger.groups[group].members {
                let truth = &self.ledger.processes[number];
                let runs = truth.has_run && truth.exit.is_none();
                let is_new = truth.added_at + NEWS_AFTER > self.now;
                if !runs && !is_new && !self.hosts[truth.host].line.has_lost_link {
                    return Err(format!(
                        "the slot that was process {number} is not replaced"
                    ));
                }
            }
        }
        Ok(())
    }

    /// Long after the end of the job, nothing of it is left anywhere.
    pub(super) fn look_over(&self) -> Broken {
        for (host, played) in self.hosts.iter().enumerate() {
            if let Some((number, process)) = played.processes.iter().next() {
                let what = match process.program {
                    PlayedProgram::Program { .. } => "the program",
                    _ => "the function",
                };
                return Err(format!(
                    "{what} of process {number} runs on host {host} for ever"
                ));
            }
            if played.is_alive {
                return Err(format!("the agent of host {host} runs for ever"));
            }
        }
        match self.creator {
            Some(_) => Err("the creator has not ended".to_owned()),
            None => Ok(()),
        }
    }
}
