//! How users go about their runs with a journal.

use exoskel_journal::{GROUP_TIME, JournalError};

use super::journals::FoundRun;
use super::machine::Machine;
use super::scenario::WriteEnd;
use super::streams::User;
use super::world::Event;
use crate::violation::Violation;

impl Machine {
    /// A user's run begins or goes on, if it has a journal. Says whether there is anything to run.
    pub(super) fn begin_run(&mut self, number: usize) -> Result<bool, Violation> {
        let Some(run) = self.journals.run(number) else {
            return Ok(true);
        };
        let found = match run.begin() {
            Ok(found) => found,
            Err(error) => return self.run_failed(number, &error).map(|()| false),
        };
        let FoundRun {
            items,
            is_finished,
            early,
            is_continued,
            was_removed,
        } = found;
        self.report.removed += u64::from(was_removed);
        self.report.early_found += early;
        self.report.continued += u64::from(is_continued && !is_finished);
        let user = match User::new(&self.scenario, number, self.manager.life, items) {
            Ok(user) => user,
            Err(what) => return self.world.broken(what),
        };
        self.streams.users[number] = user;
        self.streams.users[number].is_closed = is_finished;
        Ok(!is_finished)
    }

    /// A user hands the outcomes that it takes to its run, if that has a journal. Says whether the process goes on.
    pub(super) fn hand_to_run(
        &mut self,
        number: usize,
        first: u64,
        count: u32,
    ) -> Result<bool, Violation> {
        let now = self.manager.clock.shows(self.world.now);
        let Some(run) = self.journals.run(number) else {
            return Ok(true);
        };
        let outcomes = self.streams.users[number].hand_over(first, count);
        match run.take(outcomes, now) {
            Ok(commits) => self.report.commits += commits,
            Err(error) => return self.run_failed(number, &error).map(|()| false),
        }
        self.plan_commit(number);
        Ok(true)
    }

    /// What has waited for long enough is committed, or the end of a run.
    pub(super) fn commit(&mut self, number: usize) -> Result<(), Violation> {
        let now = self.manager.clock.shows(self.world.now);
        let user = &mut self.streams.users[number];
        user.commit_planned = false;
        let Some(run) = self.journals.run(number).filter(|_| !user.is_closed) else {
            return Ok(());
        };
        let committed = match user.is_done() {
            true => run.finish().map(|()| true),
            false => run.commit_due(now),
        };
        match committed {
            Ok(is_committed) => self.report.commits += u64::from(is_committed),
            Err(error) => return self.run_failed(number, &error),
        }
        self.plan_commit(number);
        Ok(())
    }

    fn plan_commit(&mut self, number: usize) {
        let user = &mut self.streams.users[number];
        let has_group = self.journals.run(number).is_some_and(|run| run.has_group());
        if has_group && !user.commit_planned {
            user.commit_planned = true;
            let event = Event::Commit(number, self.manager.life);
            self.world.plan_timer(self.world.now + GROUP_TIME, event);
        }
    }

    /// A run has met an error: the process ends in the write in which the power went. Nothing else may be wrong.
    fn run_failed(&mut self, number: usize, error: &JournalError) -> Result<(), Violation> {
        let Some((end, restart)) = self.journals.armed.filter(|_| self.journals.is_off()) else {
            return self
                .world
                .broken(format!("the run of stream {number}: {error}"));
        };
        self.report.ended_in_write += 1;
        self.crash_manager(end == WriteEnd::HostGone, restart)?;
        // That may be long after all other faults.
        self.calm_from = self.calm_from.max(self.world.now + restart);
        self.deadline = self.deadline.max(self.calm_from + self.allowance());
        Ok(())
    }
}
