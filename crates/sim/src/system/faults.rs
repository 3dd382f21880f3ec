//! What goes wrong: processes that crash or stand still, wires, clocks, policies.

use std::time::Duration;

use exoskel_flow::contract::Tier;
use exoskel_link::Protections;

use super::machine::{Machine, THINK_TIME};
use super::manager::SimulatedManager;
use super::scenario::{InjectedFault, Node};
use super::streams::Streams;
use super::wires::{ConnectionId, Way};
use super::world::Event;
use crate::violation::Violation;

impl Machine {
    /// A fault of the scenario happens, or ends.
    pub(super) fn fault(&mut self, number: usize) -> Result<(), Violation> {
        let (_, fault) = self.scenario.faults[number].clone();
        let is_remedy = matches!(
            fault,
            InjectedFault::Repair { .. } | InjectedFault::Release(_)
        ) || fault == InjectedFault::Want(self.workers.len() as u32);
        if self.is_settling && !is_remedy {
            return Ok(());
        }
        self.report.faults += u64::from(!is_remedy);
        match fault {
            InjectedFault::Partition { worker, from, to } => {
                self.excuse(Node::Worker(worker));
                for (way, is_cut) in [(Way::ToManager, from), (Way::ToWorker, to)] {
                    if is_cut {
                        self.world.wires.block(worker, way);
                    }
                }
                Ok(())
            }
            InjectedFault::Refuse { worker } => {
                self.workers[worker].is_refusing = true;
                Ok(())
            }
            InjectedFault::Repair { worker } => {
                self.workers[worker].is_refusing = false;
                self.excuse(Node::Worker(worker));
                for id in self.world.wires.unblock(worker) {
                    self.unpile_soon(id);
                }
                Ok(())
            }
            InjectedFault::Hold(node) => {
                self.excuse(node);
                match node {
                    Node::Manager => self.manager.is_held = !self.manager.is_down,
                    Node::Worker(number) => self.workers[number].is_held = true,
                }
                Ok(())
            }
            InjectedFault::Release(node) => {
                self.release(node);
                Ok(())
            }
            InjectedFault::Crash {
                node: Node::Manager,
                silent,
                restart,
            } => self.crash_manager(silent, restart),
            InjectedFault::Crash {
                node: Node::Worker(worker),
                silent,
                restart,
            } => {
                self.crash_worker(worker, silent, restart)?;
                // What a stopped process was to do, it does not do any more.
                self.workers[worker]
                    .deferred
                    .retain(|event| matches!(event, Event::Join(..)));
                Ok(())
            }
            InjectedFault::EndInWrite {
                writes,
                end,
                restart,
            } => {
                self.journals.end_in_write(writes, end, restart);
                Ok(())
            }
            InjectedFault::Leave { worker } => {
                if self.workers[worker].is_held {
                    return Ok(());
                }
                self.leave(worker)
            }
            InjectedFault::Drain { worker } => {
                if self.workers[worker].is_held {
                    return Ok(());
                }
                self.drain(worker)
            }
            InjectedFault::Cut { worker } => {
                if let Some(id) = self.workers[worker].connection() {
                    self.world.cut(id, &Way::BOTH);
                }
                Ok(())
            }
            InjectedFault::Alter { worker, to_manager } => {
                let way = if to_manager {
                    Way::ToManager
                } else {
                    Way::ToWorker
                };
                if let Some(id) = self.workers[worker].connection() {
                    self.world.alter(id, way);
                }
                Ok(())
            }
            InjectedFault::Slow { worker, slowness } => {
                self.workers[worker].slowness = slowness;
                Ok(())
            }
            InjectedFault::Jump { node, by } => {
                self.excuse(node);
                match node {
                    Node::Manager => self.manager.clock.jump(by),
                    Node::Worker(number) => self.workers[number].clock.jump(by),
                }
                self.look_at_clock(node);
                Ok(())
            }
            InjectedFault::Want(slots) => {
                // The next process of a manager begins with what it began with.
                let stands = self.manager.is_held || self.manager.is_down;
                if !stands || is_remedy {
                    let now = self.manager.clock.shows(self.world.now);
                    self.manager.machine.want(slots, now);
                    self.world.agenda.plan(self.world.now, Event::Wake);
                }
                Ok(())
            }
            InjectedFault::Raise(minimum) => {
                self.raise(minimum);
                Ok(())
            }
            InjectedFault::Revoke { worker } => {
                self.revoke(worker);
                Ok(())
            }
            InjectedFault::WearOut { worker } => {
                self.worn.insert(worker);
                Ok(())
            }
        }
    }

    /// From now on, errors of this node's sessions have a reason.
    fn excuse(&mut self, node: Node) {
        let workers = match node {
            Node::Manager => 0..self.workers.len(),
            Node::Worker(number) => number..number + 1,
        };
        for worker in workers {
            for id in self.world.wires.of_worker(worker) {
                self.world.excuse(id);
            }
        }
    }

    fn unpile_soon(&mut self, id: ConnectionId) {
        for way in Way::BOTH {
            let late = self.world.random.between(Duration::ZERO, THINK_TIME);
            let at = self.world.now + late;
            self.world.agenda.plan(at, Event::Unpile(id, way));
        }
    }

    /// A node goes on: what was to happen meanwhile happens now, in any order as far as order doesn't matter.
    fn release(&mut self, node: Node) {
        self.excuse(node);
        let deferred = match node {
            Node::Manager => {
                self.manager.is_held = false;
                std::mem::take(&mut self.manager.deferred)
            }
            Node::Worker(number) => {
                self.workers[number].is_held = false;
                std::mem::take(&mut self.workers[number].deferred)
            }
        };
        for event in deferred {
            let late = self.world.random.between(Duration::ZERO, THINK_TIME);
            self.world.agenda.plan(self.world.now + late, event);
        }
        let workers = match node {
            Node::Manager => 0..self.workers.len(),
            Node::Worker(number) => number..number + 1,
        };
        for worker in workers {
            for id in self.world.wires.of_worker(worker) {
                self.unpile_soon(id);
            }
        }
    }

    /// The node's clock shows more than was thought: timers may be due.
    fn look_at_clock(&mut self, node: Node) {
        let workers = match node {
            Node::Manager => {
                self.world.agenda.plan(self.world.now, Event::Wake);
                0..self.workers.len()
            }
            Node::Worker(number) => number..number + 1,
        };
        let way = match node {
            Node::Manager => Way::ToWorker,
            Node::Worker(_) => Way::ToManager,
        };
        for worker in workers {
            for id in self.world.wires.of_worker(worker) {
                self.world.plan_timer(self.world.now, Event::Timer(id, way));
            }
            if let Node::Worker(number) = node {
                let life = self.workers[number].life;
                for event in [Event::Flush(number, life), Event::Look(number, life)] {
                    self.world.plan_timer(self.world.now, event);
                }
            }
        }
    }

    /// The policy demands more from now on, also of running sessions.
    fn raise(&mut self, minimum: Protections) {
        self.manager.minimum = self.manager.minimum.stricter(minimum);
        for held in self.manager.sessions.values_mut() {
            held.line.session.0.raise_protections(minimum);
        }
        let sessions: Vec<ConnectionId> = self.manager.sessions.keys().copied().collect();
        sessions.into_iter().for_each(|id| self.stir_manager(id));
        // Handshakes that are under way may come to either.
        for id in self.channels.keys() {
            self.world.raise(*id);
        }
    }

    /// The manager's process is gone at once, with all that it and its users knew. What is left is its host's: the clock,
    /// and the policy file.
    pub(super) fn crash_manager(
        &mut self,
        silent: bool,
        restart: Duration,
    ) -> Result<(), Violation> {
        if self.manager.is_down {
            return Ok(());
        }
        self.report.crashes += 1;
        self.journals.crash(silent, &mut self.world.random);
        let life = self.manager.life + 1;
        let streams = match Streams::new(&self.scenario, life) {
            Ok(streams) => streams,
            Err(what) => return self.world.broken(what),
        };
        self.former
            .push(std::mem::replace(&mut self.streams, streams));
        let keys = match self.scenario.keys.store() {
            Ok(keys) => keys,
            Err(error) => return self.world.broken(error.to_string()),
        };
        self.check_history()?;
        let (clock, minimum) = (self.manager.clock, self.manager.minimum);
        self.manager = SimulatedManager::new(life, &self.scenario, clock, minimum, keys);
        self.manager.is_down = true;
        let connections: Vec<ConnectionId> = self.channels.keys().copied().collect();
        for id in connections {
            if self.has_left(id, Way::ToWorker) {
                continue;
            }
            self.world.excuse(id);
            if silent {
                self.world.cut(id, &[]);
            } else if self.world.random.below(2) == 0 {
                self.world.cut(id, &[Way::ToWorker]);
            }
            self.abandon(id)?;
        }
        let event = Event::Begin(life);
        self.world.agenda.plan(self.world.now + restart, event);
        Ok(())
    }

    /// A process of the manager begins, and its users with it.
    pub(super) fn begin_manager(&mut self, life: u32) {
        self.report.restarts += u64::from(life > 0);
        self.manager.is_down = false;
        let now = self.manager.clock.shows(self.world.now);
        let workers = self.scenario.workers.iter();
        let tiers = workers.map(|worker| match worker.in_domain {
            true => Tier::Trusted,
            false => Tier::Remote,
        });
        let tiers: Vec<Tier> = tiers.collect();
        self.manager.machine.set_tiers(&tiers);
        self.manager.machine.recruit(now);
        self.plan_openings();
    }
}
