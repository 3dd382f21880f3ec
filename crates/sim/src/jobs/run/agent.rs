//! The driver of an agent: what `agent.py` does.

use exoskel_node::job::{AgentAction, NewProcess, ProcessOrigin, StartRefusal};

use super::creator::node_name;
use super::processes::{PlayedProcess, Step};
use super::{Broken, JobsEvent, JobsRun, LineEnd};
use crate::jobs::line::JobsMessage;
use crate::jobs::scenario::{JobsEnd, JobsMischief, PlayedProgram};

const SIGKILL: i32 = 9;

impl JobsRun {
    /// Something comes to an agent.
    pub(super) fn agent_hears(&mut self, host: usize, message: JobsMessage) -> Broken {
        if !self.hosts[host].is_alive {
            return Ok(());
        }
        let now = self.now;
        match message {
            JobsMessage::Start {
                group,
                size,
                members,
            } => {
                for (number, rank) in members {
                    self.start_process(host, group, size, number, rank)?;
                }
            }
            JobsMessage::Siblings { group, siblings } => {
                self.hosts[host].machine.siblings(group, siblings);
            }
            JobsMessage::Signed(numbers) => {
                self.hosts[host].is_signing = false;
                self.hosts[host].machine.signed(&numbers);
                for number in numbers {
                    self.certified(host, number);
                }
            }
            JobsMessage::End if !self.is(JobsMischief::IgnoresEnd) => {
                self.notice_end(host);
                self.hosts[host].machine.end(now);
            }
            JobsMessage::End => {}
            JobsMessage::HangUp => self.channel_ended(host),
            JobsMessage::AgentHere
            | JobsMessage::Sign(_)
            | JobsMessage::Here(_)
            | JobsMessage::Returned(_)
            | JobsMessage::Ended { .. } => {
                return Err("a creator says what an agent says".to_owned());
            }
        }
        self.tend_agent(host)
    }

    /// The creator has gone, as the channel says.
    pub(super) fn channel_ended(&mut self, host: usize) {
        if self.is(JobsMischief::IgnoresHangUp) {
            return;
        }
        let now = self.now;
        if self.scenario.end == JobsEnd::Left {
            self.hosts[host].machine.leave();
        } else {
            self.notice_end(host);
            self.hosts[host].machine.end(now);
        }
    }

    pub(super) fn notice_end(&mut self, host: usize) {
        let now = self.now;
        self.hosts[host].noticed_end.get_or_insert(now);
    }

    fn start_process(
        &mut self,
        host: usize,
        group: u32,
        size: u32,
        number: u32,
        rank: u32,
    ) -> Broken {
        let new = NewProcess {
            number,
            rank,
            size,
            group,
            origin: ProcessOrigin::Agent,
        };
        let played = &mut self.hosts[host];
        match played.machine.start(new) {
            Ok(()) => {}
            Err(StartRefusal::Full) if self.is(JobsMischief::IgnoresLimits) => {}
            Err(StartRefusal::Known) => {
                return Err(format!("process {number} is started twice"));
            }
            Err(StartRefusal::Full | StartRefusal::Over) => {
                self.report.refused += 1;
                self.say(host, JobsMessage::Ended { number, code: None });
                return Ok(());
            }
        }
        let program = self.program_of(group);
        let process = PlayedProcess::new(group, size, program);
        self.hosts[host].processes.insert(number, process);
        if self.hosts[host].has_zygote {
            let at = self.soon(self.scenario.forks_within);
            self.agenda.plan(at, JobsEvent::Forked(host, number));
            return Ok(());
        }
        self.hosts[host].processes.remove(&number);
        self.report_end(host, number, None)
    }

    fn program_of(&self, group: u32) -> PlayedProgram {
        // Also when the creator has died meanwhile.
        let truth = self.ledger.programs.get(&group);
        truth.copied().unwrap_or(PlayedProgram::Liar)
    }

    /// The creator is told of an end, after what there was to tell before.
    pub(super) fn report_end(&mut self, host: usize, number: u32, code: Option<i32>) -> Broken {
        self.tell_news(host);
        self.hosts[host].machine.ended(number);
        if !self.hosts[host].machine.has_left() {
            self.say(host, JobsMessage::Ended { number, code });
        }
        self.tend_agent(host)
    }

    /// An agent says something to the creator. Without a link it ends, or goes on alone.
    fn say(&mut self, host: usize, message: JobsMessage) {
        if self.hosts[host].is_alive && !self.send(host, LineEnd::Creator, message) {
            self.agent_fails(host);
        }
    }

    /// What an agent has said comes to nothing: there is no creator any more.
    pub(super) fn agent_fails(&mut self, host: usize) {
        if self.scenario.end == JobsEnd::Left {
            self.hosts[host].machine.leave();
        } else {
            self.kill_agent(host);
        }
    }

    /// An agent ends without a word, and all that it has started with it.
    pub(super) fn kill_agent(&mut self, host: usize) {
        if !std::mem::replace(&mut self.hosts[host].is_alive, false) {
            return;
        }
        self.notice_end(host);
        self.kill_processes(host);
        self.send(host, LineEnd::Creator, JobsMessage::HangUp);
    }

    /// The kernel ends what a zygote has started.
    pub(super) fn kill_processes(&mut self, host: usize) {
        let all: Vec<u32> = self.hosts[host].processes.keys().copied().collect();
        for number in all {
            if let Ok(truth) = self.ledger.known(number) {
                truth.is_exit_unknown = true;
            }
            let runs = self.hosts[host]
                .processes
                .get(&number)
                .is_some_and(|process| process.runs);
            if runs {
                self.die(host, number, -SIGKILL);
            } else {
                self.hosts[host].processes.remove(&number);
            }
        }
    }

    fn tell_news(&mut self, host: usize) {
        let (here, returned) = self.hosts[host].machine.news();
        if !here.is_empty() {
            let found = here
                .into_iter()
                .map(|number| (number, self.place_of(host, number)));
            let found = found.collect();
            self.say(host, JobsMessage::Here(found));
        }
        if !returned.is_empty() {
            self.say(host, JobsMessage::Returned(returned));
        }
    }

    /// Where a process says that it is.
    fn place_of(&self, host: usize, number: u32) -> String {
        let is_liar = self
            .ledger
            .processes
            .get(&number)
            .is_some_and(|process| process.is_liar);
        node_name(host, if is_liar { number + 1 } else { number })
    }

    /// Does what an agent's machine wants.
    pub(super) fn tend_agent(&mut self, host: usize) -> Broken {
        if !self.hosts[host].is_alive {
            return Ok(());
        }
        let now = self.now;
        if !self.is(JobsMischief::ForgetsGrace) {
            self.hosts[host].machine.handle_timeout(now);
        }
        while let Some(action) = self.hosts[host].machine.next_action() {
            self.act(host, action)?;
        }
        let due = self.hosts[host].machine.keys_due();
        if !due.is_empty() && !self.mischief(JobsMischief::LosesKeys) {
            self.hosts[host].is_signing = true;
            self.say(host, JobsMessage::Sign(due));
        }
        self.tell_news(host);
        if self.hosts[host].is_alive && self.hosts[host].machine.is_over() {
            if let Some(noticed) = self.hosts[host].noticed_end {
                self.report.longest_end = self.report.longest_end.max(now - noticed);
            }
            self.kill_agent(host);
        }
        if let Some(at) = self.hosts[host].machine.next_timeout()
            && self.hosts[host].timer.is_none()
            && at > now
        {
            self.hosts[host].timer = Some(at);
            self.agenda.plan(at, JobsEvent::AgentTimer(host));
        }
        Ok(())
    }

    fn act(&mut self, host: usize, action: AgentAction) -> Broken {
        match action {
            AgentAction::HangUp { process } => self.hang_up(host, process),
            AgentAction::Signal { process, signal } => {
                let is_new = self.hosts[host]
                    .processes
                    .get(&process)
                    .is_some_and(|one| !one.has_joined);
                if !(is_new && self.mischief(JobsMischief::LosesSignals)) {
                    self.signalled(host, process, signal)?;
                }
            }
            AgentAction::Tell { process, rank } => self.tell_process(host, process, rank)?,
            AgentAction::Release { process } => {
                return Err(format!(
                    "process {process} is released, which was not invited"
                ));
            }
        }
        Ok(())
    }

    /// A process learns of a sibling, and calls it.
    fn tell_process(&mut self, host: usize, number: u32, rank: u32) -> Broken {
        let Some(sibling) = self.hosts[host].machine.sibling(number, rank) else {
            return Err(format!(
                "process {number} is told of rank {rank}, which nobody knows"
            ));
        };
        let place = sibling.startpoint.clone();
        let Some(process) = self.hosts[host].processes.get(&number) else {
            return Ok(());
        };
        let is_known = process.asked.get(&rank).copied().flatten().is_some();
        let (group, is_dying) = (process.group, process.is_dying);
        if is_known && self.mischief(JobsMischief::HidesReplacements) {
            return Ok(());
        }
        let found = place.as_deref().and_then(number_in);
        self.ledger.learned(group, rank, found)?;
        self.report.siblings += 1;
        if let Some(found) = found
            && !is_dying
        {
            let truth = self.ledger.known(found)?;
            self.report.met += u64::from(truth.has_run && truth.exit.is_none());
        }
        let Some(process) = self.hosts[host].processes.get_mut(&number) else {
            return Ok(());
        };
        let Some(known) = process.asked.get_mut(&rank) else {
            return Err(format!(
                "process {number} is told of rank {rank}, and has not asked"
            ));
        };
        *known = Some(found);
        let knows_all = process.asked.values().all(Option::is_some);
        if knows_all && std::mem::take(&mut process.is_due_to_return) {
            let event = JobsEvent::Step(host, number, Step::Return);
            self.agenda.plan(self.now, event);
        }
        Ok(())
    }
}

/// The number of the process in the name of its node.
fn number_in(name: &str) -> Option<u32> {
    let (_, number) = name.split_once('#')?;
    number.split_once('.')?.0.parse().ok()
}
