//! Who has the processors.

use super::messages::NextStep;
use super::{RankState, Run};
use crate::event::Event;
use crate::flight::DELIVERED;
use crate::scheduler::Slice;
use crate::time::Picoseconds;

impl Run<'_> {
    /// Something is due on a processor.
    pub(super) fn due(&mut self, rank: u16, generation: u32) {
        let processor = &self.processors[usize::from(rank)];
        if processor.generation != generation {
            return;
        }
        if processor.running.is_some() {
            self.account(rank);
            self.proceed(rank);
        } else {
            self.dispatch(rank);
        }
    }

    /// Charges the running process for its time up to now.
    fn account(&mut self, rank: u16) {
        let processor = &mut self.processors[usize::from(rank)];
        let (Some(job), now) = (processor.running, self.now) else {
            return;
        };
        if processor.since >= now {
            return;
        }
        let elapsed = now - processor.since;
        processor.since = now;
        processor.ready.ran(job, elapsed);
        let place = self.place(job, rank);
        let process = &mut self.processes[place];
        if process.awaited.is_some() {
            process.spin_left = process.spin_left.saturating_sub(elapsed);
            self.spun += elapsed;
        } else {
            process.computing = process.computing.saturating_sub(elapsed);
            self.computed += elapsed;
        }
    }

    /// The running process goes on, as far as it can now; plans when to look again.
    fn proceed(&mut self, rank: u16) {
        let number = usize::from(rank);
        let Some(job) = self.processors[number].running else {
            return;
        };
        let place = self.place(job, rank);
        let work = match self.execute(place) {
            NextStep::Computes => self.processes[place].computing,
            NextStep::Ends => {
                self.end_running(rank, place);
                return;
            }
            NextStep::Waits => match self.rules.spin {
                None => Picoseconds::NEVER,
                Some(_) if self.processes[place].spin_left == Picoseconds::ZERO => {
                    let process = &mut self.processes[place];
                    process.state = RankState::Blocked;
                    process.blocked_at = self.now;
                    self.processors[number].ready.blocks(job);
                    self.release(rank);
                    return;
                }
                Some(_) => self.processes[place].spin_left,
            },
        };
        let processor = &mut self.processors[number];
        let mut planned = work;
        if self.rules.turns.is_none() {
            if processor.ready.quantum_left(job) == Picoseconds::ZERO {
                if processor.ready.is_empty() {
                    processor.ready.renew(job);
                } else {
                    processor.ready.expire(job);
                    self.release(rank);
                    return;
                }
            }
            planned = planned.min(processor.ready.quantum_left(job));
        }
        processor.generation = processor.generation.wrapping_add(1);
        if planned < Picoseconds::NEVER {
            let generation = processor.generation;
            let at = processor.since + planned;
            self.agenda.plan(at, Event::Processor { rank, generation });
        }
    }

    /// The processor is free for the next one.
    fn release(&mut self, rank: u16) {
        self.processors[usize::from(rank)].running = None;
        self.dispatch(rank);
    }

    /// Gives a free processor to the next process; that begins after the change to it.
    fn dispatch(&mut self, rank: u16) {
        let next = match &self.turns {
            Some(turns) => turns.current().filter(|job| {
                let place = self.place(*job, rank);
                self.processes[place].lives()
            }),
            None => self.processors[usize::from(rank)].ready.take(),
        };
        self.network.activate(rank, next);
        let processor = &mut self.processors[usize::from(rank)];
        processor.running = next;
        processor.generation = processor.generation.wrapping_add(1);
        let Some(job) = next else {
            return;
        };
        let mut begins = self.now;
        if processor.last.is_some_and(|last| last != job) {
            begins += self.context_switch;
            self.context_switches += 1;
        }
        processor.last = Some(job);
        processor.since = begins;
        let generation = processor.generation;
        self.jobs[usize::from(job)].started.get_or_insert(begins);
        self.agenda
            .plan(begins, Event::Processor { rank, generation });
    }

    /// Takes the processor from whom has it; it is the next of its priority.
    fn interrupt(&mut self, rank: u16) {
        self.account(rank);
        let processor = &mut self.processors[usize::from(rank)];
        if let Some(job) = processor.running.take()
            && self.turns.is_none()
        {
            processor.ready.put_back(job);
        }
    }

    /// What a process waits for is here.
    pub(super) fn wake(&mut self, place: usize) {
        let (job, rank) = (self.processes[place].job, self.processes[place].rank);
        if self.processors[usize::from(rank)].running == Some(job) {
            if self.processors[usize::from(rank)].since <= self.now {
                self.account(rank);
                self.proceed(rank);
            }
            return;
        }
        let process = &mut self.processes[place];
        if process.state != RankState::Blocked {
            return;
        }
        process.state = RankState::Runnable;
        let slept = self.now - process.blocked_at;
        let processor = &mut self.processors[usize::from(rank)];
        processor.ready.slept(job, slept);
        if self.rules.arrival_boosts {
            processor.ready.boost(job);
        }
        processor.ready.add(job);
        match processor.running {
            None => self.dispatch(rank),
            Some(running) if processor.ready.preempts(job, running) => {
                self.interrupt(rank);
                self.dispatch(rank);
            }
            Some(_) => {}
        }
    }

    /// The next process that has messages it hasn't taken, and some of its quantum left, gets the processor (periodic boost).
    pub(super) fn boost(&mut self, rank: u16) {
        let Some(period) = self.rules.boost_period else {
            return;
        };
        let count = self.jobs.len() as u16;
        let of_rank = (0..count).map(|job| self.place(job, rank));
        if !of_rank
            .into_iter()
            .any(|place| self.processes[place].lives())
        {
            return;
        }
        self.agenda.plan(self.now + period, Event::Boost(rank));
        let processor = &self.processors[usize::from(rank)];
        let (after, running) = (processor.boosted, processor.running);
        let next = (1..=count)
            .map(|distance| (after + distance) % count)
            .find(|job| {
                self.processes[self.place(*job, rank)].untaken > 0
                    && processor.ready.is_active(*job)
            });
        if let (Some(job), Some(_)) = (next, running) {
            self.interrupt(rank);
            let processor = &mut self.processors[usize::from(rank)];
            processor.boosted = job;
            processor.ready.remove(job);
            processor.ready.boost(job);
            processor.ready.put_back(job);
            self.dispatch(rank);
        }
    }

    /// A gang's slice is over.
    pub(super) fn turn(&mut self) {
        let (Some(turns), Some(Slice::Of(length))) = (&mut self.turns, self.rules.turns) else {
            return;
        };
        if turns.pass() {
            self.agenda.plan(self.now + length, Event::Turn);
            self.change_job();
        }
    }

    /// All nodes change to the job whose turn it is.
    fn change_job(&mut self) {
        for rank in 0..self.processors.len() as u16 {
            self.interrupt(rank);
            self.dispatch(rank);
        }
    }

    /// Ends a process that has its processor, which then goes to another one.
    fn end_running(&mut self, rank: u16, place: usize) {
        self.processors[usize::from(rank)].running = None;
        self.end_process(place);
        if self.processors[usize::from(rank)].running.is_none() {
            self.dispatch(rank);
        }
    }

    fn end_process(&mut self, place: usize) {
        let process = &mut self.processes[place];
        process.state = RankState::Ended;
        let job = process.job;
        self.alive -= 1;
        let own = &mut self.jobs[usize::from(job)];
        own.alive -= 1;
        if own.alive == 0 {
            own.completed = Some(self.now);
            if let Some(turns) = &mut self.turns {
                let had_nodes = turns.current() == Some(job);
                turns.end(job);
                if had_nodes {
                    self.change_job();
                }
            }
        }
    }

    /// Ends all processes of a job that has had enough messages.
    pub(super) fn end_job(&mut self, job: u16) {
        for rank in 0..self.processors.len() as u16 {
            let place = self.place(job, rank);
            let process = &self.processes[place];
            if !process.lives() {
                continue;
            }
            let waits = process.awaited.is_some_and(|awaited| {
                self.flights[awaited.message as usize].state & DELIVERED == 0
            });
            self.waiting -= usize::from(waits);
            let processor = &mut self.processors[usize::from(rank)];
            processor.ready.remove(job);
            if processor.running == Some(job) {
                self.account(rank);
                self.end_running(rank, place);
            } else {
                self.end_process(place);
            }
        }
    }
}
