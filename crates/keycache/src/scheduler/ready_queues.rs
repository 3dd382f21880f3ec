//! A local scheduler: quanta, and priorities that favour who slept.

use std::collections::VecDeque;

use crate::parameters::Parameters;
use crate::time::Picoseconds;

/// Queues by priority: one for the boosted, then eleven by sleep, the best first. Linux 2.6 has as many steps of sleep bonus.
const LEVELS: usize = 12;
/// The level of who hasn't slept.
const WORST: u64 = LEVELS as u64 - 1;
const BOOSTED: usize = 0;

/// The processes of one node that could run but don't, after the scheduler of Linux 2.6, simplified: all have the same nice value, so quanta are
/// equal; sleep earns priority at once and computation costs as much as it takes; who has used up its quantum waits until all others have, whatever
/// its priority; there are no kernel threads.
#[derive(Debug)]
pub(crate) struct ReadyQueues {
    active: [VecDeque<u16>; LEVELS],
    expired: [VecDeque<u16>; LEVELS],
    accounts: Vec<TimeAccount>,
    quantum: Picoseconds,
    bonus_max: Picoseconds,
}

#[derive(Clone, Copy, Debug)]
struct TimeAccount {
    slept: Picoseconds,
    quantum_left: Picoseconds,
    boosted: bool,
}

impl ReadyQueues {
    pub(crate) fn new(parameters: &Parameters, processes: usize) -> Self {
        let quantum = Picoseconds::from_nanoseconds(parameters.quantum_ns);
        let account = TimeAccount {
            slept: Picoseconds::ZERO,
            quantum_left: quantum,
            boosted: false,
        };
        Self {
            active: Default::default(),
            expired: Default::default(),
            accounts: vec![account; processes],
            quantum,
            bonus_max: Picoseconds::from_nanoseconds(parameters.sleep_bonus_ns),
        }
    }

    fn level(&self, process: u16) -> usize {
        let account = &self.accounts[usize::from(process)];
        if account.boosted {
            return BOOSTED;
        }
        let bonus = account.slept.0 / (self.bonus_max.0 / (WORST - 1)).max(1);
        (WORST - bonus.min(WORST - 1)) as usize
    }

    /// Behind all of its priority.
    pub(crate) fn add(&mut self, process: u16) {
        self.active[self.level(process)].push_back(process);
    }

    /// Before all of its priority: it was interrupted.
    pub(crate) fn put_back(&mut self, process: u16) {
        self.active[self.level(process)].push_front(process);
    }

    /// It has used up its quantum, and with it a boost.
    pub(crate) fn expire(&mut self, process: u16) {
        self.renew(process);
        self.expired[self.level(process)].push_back(process);
    }

    /// A new quantum, without a boost.
    pub(crate) fn renew(&mut self, process: u16) {
        let account = &mut self.accounts[usize::from(process)];
        account.quantum_left = self.quantum;
        account.boosted = false;
    }

    /// The next one to run.
    pub(crate) fn take(&mut self) -> Option<u16> {
        if self.active.iter().all(VecDeque::is_empty) {
            std::mem::swap(&mut self.active, &mut self.expired);
        }
        self.active.iter_mut().find_map(VecDeque::pop_front)
    }

    /// Takes it out, wherever it is.
    pub(crate) fn remove(&mut self, process: u16) {
        for queue in self.active.iter_mut().chain(&mut self.expired) {
            queue.retain(|other| *other != process);
        }
    }

    /// Whether there is another one to run.
    pub(crate) fn is_empty(&self) -> bool {
        let mut queues = self.active.iter().chain(&self.expired);
        queues.all(VecDeque::is_empty)
    }

    /// Whether one should run instead of the other.
    pub(crate) fn preempts(&self, process: u16, running: u16) -> bool {
        self.level(process) < self.level(running)
    }

    /// The highest priority until it blocks or its quantum ends.
    pub(crate) fn boost(&mut self, process: u16) {
        self.accounts[usize::from(process)].boosted = true;
    }

    /// Whether it could have the processor now: it is ready and has some of its quantum left. A boost is a priority and no new quantum. Could it call
    /// back who has used up a quantum, those with messages that they wait to take would have all the time, and those that they wait for none.
    pub(crate) fn is_active(&self, process: u16) -> bool {
        self.active.iter().flatten().any(|other| *other == process)
    }

    pub(crate) fn slept(&mut self, process: u16, time: Picoseconds) {
        let account = &mut self.accounts[usize::from(process)];
        account.slept = (account.slept + time).min(self.bonus_max);
    }

    pub(crate) fn ran(&mut self, process: u16, time: Picoseconds) {
        let account = &mut self.accounts[usize::from(process)];
        account.slept = account.slept.saturating_sub(time);
        account.quantum_left = account.quantum_left.saturating_sub(time);
    }

    /// It waits without the processor: a boost is over.
    pub(crate) fn blocks(&mut self, process: u16) {
        self.accounts[usize::from(process)].boosted = false;
    }

    pub(crate) fn quantum_left(&self, process: u16) -> Picoseconds {
        self.accounts[usize::from(process)].quantum_left
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queues() -> ReadyQueues {
        ReadyQueues::new(&Parameters::default(), 3)
    }

    #[test]
    fn sleep_earns_priority_and_running_costs_it() {
        let mut queues = queues();
        queues.slept(2, Picoseconds::from_nanoseconds(500_000_000));
        assert!(queues.preempts(2, 0) && !queues.preempts(0, 2));
        queues.ran(2, Picoseconds::from_nanoseconds(450_000_000));
        assert!(!queues.preempts(2, 0));
    }

    #[test]
    fn who_has_used_up_a_quantum_waits_for_all_others() {
        let mut queues = queues();
        queues.add(1);
        queues.boost(0);
        queues.ran(0, Picoseconds::from_nanoseconds(100_000_000));
        assert_eq!(queues.quantum_left(0), Picoseconds::ZERO);
        queues.expire(0);
        queues.add(2);
        assert!(queues.is_active(1) && queues.is_active(2) && !queues.is_active(0));
        let order: Vec<_> = std::iter::from_fn(|| queues.take()).collect();
        assert_eq!(order, [1, 2, 0]);
    }

    #[test]
    fn the_boosted_come_first() {
        let mut queues = queues();
        queues.add(0);
        queues.boost(1);
        queues.add(1);
        assert!(queues.preempts(1, 0));
        assert_eq!(queues.take(), Some(1));
        queues.blocks(1);
        assert!(!queues.preempts(1, 0));
    }
}
