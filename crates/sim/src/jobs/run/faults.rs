//! What goes wrong.

use std::time::Duration;

use super::{Broken, CHANNEL_DEAD_AFTER, JobsEvent, JobsRun, LineEnd, PATIENCE};
use crate::jobs::line::JobsMessage;
use crate::jobs::scenario::{JobsEnd, JobsFault, JobsMischief};

const SIGKILL: i32 = 9;

impl JobsRun {
    pub(super) fn fault(&mut self, number: usize) -> Broken {
        let (_, fault) = self.scenario.faults[number];
        self.report.faults += 1;
        match fault {
            JobsFault::KillAgent(host) => {
                self.kill_agent(host);
                Ok(())
            }
            JobsFault::KillZygote(host) => self.kill_zygote(host),
            JobsFault::KillProcess(host) => {
                self.kill_process(host);
                Ok(())
            }
            JobsFault::Cut(host, lasting) => {
                self.cut(host, lasting);
                Ok(())
            }
            JobsFault::Delay(host, by, lasting) => {
                let until = self.now + lasting;
                self.hosts[host].line.delay(by, until);
                self.hosts[host].disturbed_at = Some(until);
                Ok(())
            }
            JobsFault::EndOnHost(host) => {
                if self.hosts[host].is_alive {
                    self.notice_end(host);
                    let now = self.now;
                    self.over_on(host, now);
                    if !self.is(JobsMischief::IgnoresEnd) {
                        self.hosts[host].machine.end(now);
                    }
                }
                self.tend_agent(host)
            }
            JobsFault::KillCreator => self.kill_creator(),
        }
    }

    /// What starts the processes of a host is killed, and they with it, as its agent sees at once.
    fn kill_zygote(&mut self, host: usize) -> Broken {
        if !self.hosts[host].is_alive || !std::mem::replace(&mut self.hosts[host].has_zygote, false)
        {
            return Ok(());
        }
        let its: Vec<u32> = self.hosts[host]
            .machine
            .processes()
            .map(|(number, _)| number)
            .collect();
        self.hosts[host].machine.zygote_lost();
        self.kill_processes(host);
        // What is told of them needs no process any more; they die within a moment.
        for number in its {
            if let Ok(truth) = self.ledger.known(number) {
                truth.is_exit_unknown = true;
                truth.exit.get_or_insert(-SIGKILL);
            }
            self.report_end(host, number, None)?;
        }
        Ok(())
    }

    fn kill_process(&mut self, host: usize) {
        let count = self.hosts[host].processes.len() as u64;
        let which = self.random.below(count) as usize;
        let chosen = self.hosts[host].processes.iter().nth(which);
        if let Some((number, process)) = chosen
            && process.runs
        {
            let number = *number;
            self.die(host, number, -SIGKILL);
        }
    }

    fn cut(&mut self, host: usize, lasting: Duration) {
        let (now, played) = (self.now, &mut self.hosts[host]);
        if played.line.cut_since.is_some() || played.line.is_dead {
            return;
        }
        played.cuts += 1;
        played.line.cut_since = Some(now);
        played.disturbed_at = Some(now + lasting);
        let cut = played.cuts;
        self.agenda
            .plan(now + PATIENCE, JobsEvent::LinkLost(host, cut));
        self.agenda
            .plan(now + CHANNEL_DEAD_AFTER, JobsEvent::ChannelDead(host, cut));
        self.agenda.plan(now + lasting, JobsEvent::Heal(host, cut));
    }

    pub(super) fn heal(&mut self, host: usize, cut: u64) {
        if self.hosts[host].cuts != cut || self.hosts[host].line.is_dead {
            return;
        }
        for (to, message) in self.hosts[host].line.heal() {
            self.send(host, to, message);
        }
    }

    /// A cut has lasted for longer than links wait: what was said over them comes to nothing.
    pub(super) fn lose_link(&mut self, host: usize, cut: u64) -> Broken {
        let played = &mut self.hosts[host];
        if played.cuts != cut || played.line.cut_since.is_none() || played.line.is_dead {
            return Ok(());
        }
        played.line.has_lost_link = true;
        let lost = played.line.lose_link();
        let is_agents = |(to, _): &(LineEnd, JobsMessage)| *to == LineEnd::Creator;
        let agent_spoke = lost.iter().any(is_agents) || played.is_signing;
        let starts =
            |(_, message): &(LineEnd, JobsMessage)| matches!(message, JobsMessage::Start { .. });
        let creator_asked = lost.iter().any(starts);
        if agent_spoke && self.hosts[host].is_alive {
            self.agent_fails(host);
            self.tend_agent(host)?;
        }
        if creator_asked {
            return self.give_up(host);
        }
        Ok(())
    }

    /// Both sides take the channel for ended.
    pub(super) fn lose_channel(&mut self, host: usize, cut: u64) -> Broken {
        let played = &mut self.hosts[host];
        if played.cuts != cut || played.line.cut_since.is_none() {
            return Ok(());
        }
        played.line.is_dead = true;
        if played.is_alive {
            if self.scenario.end != JobsEnd::Left {
                let now = self.now;
                self.over_on(host, now);
            }
            self.channel_ended(host);
            self.tend_agent(host)?;
        }
        self.lose_agent(host)
    }
}
