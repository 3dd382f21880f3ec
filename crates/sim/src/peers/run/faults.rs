//! What goes wrong.

use std::time::Duration;

use exoskel_link::{CloseReason, LinkRefusal, Protection, Protections};

use super::{AcceptedId, PeerEvent, PeersRun};
use crate::peers::peer::WireNumber;
use crate::peers::scenario::{Mischief, PeersFault};
use crate::violation::Violation;

/// How long a process that ends in good order stays for its peers.
const LEAVING_TIME: Duration = Duration::from_secs(1);

impl PeersRun {
    pub(super) fn fault(&mut self, number: usize) -> Result<(), Violation> {
        let (_, fault) = self.scenario.faults[number].clone();
        self.report.faults += 1;
        match fault {
            PeersFault::Cut(one, other) => {
                for wire in self.between(one, other) {
                    self.cut(wire);
                }
                Ok(())
            }
            PeersFault::Partition(from, to) => {
                self.blocked.insert((from, to));
                Ok(())
            }
            PeersFault::Repair(from, to) => {
                self.blocked.remove(&(from, to));
                self.unpile(from, to)
            }
            PeersFault::Hold(peer) => {
                self.peers[peer].is_held = true;
                Ok(())
            }
            PeersFault::Release(peer) => {
                if !std::mem::take(&mut self.peers[peer].is_held) {
                    return Ok(());
                }
                for event in std::mem::take(&mut self.peers[peer].deferred) {
                    self.agenda.plan(self.now, event);
                }
                for from in 0..self.peers.len() {
                    self.unpile(from, peer)?;
                }
                Ok(())
            }
            PeersFault::Kill {
                peer,
                silent,
                restart,
            } => self.kill(peer, silent, restart),
            PeersFault::Leave { peer, restart } => self.leave_in_order(peer, restart),
            PeersFault::Renew(peer, protection) => self.renew(peer, protection),
            PeersFault::Bar(binding) => self.bar(binding),
            PeersFault::Alter(one, other) => {
                if let Some(number) = self.between(one, other).last()
                    && let Some(wire) = self.wires.get_mut(number)
                {
                    wire.alter = true;
                }
                Ok(())
            }
            PeersFault::Raise(peer, protection) => {
                self.peers[peer].policy = self.peers[peer].policy.max(protection);
                self.raise(peer);
                self.tend(peer)
            }
            PeersFault::Revoke(binding) => self.revoke(binding),
        }
    }

    /// What the policy demands now holds from the next record on.
    fn raise(&mut self, peer: usize) {
        let own = &mut self.peers[peer];
        let data = own.policy;
        if self.scenario.mischief != Some(Mischief::IgnoresPolicies) {
            for line in own.lines.values_mut() {
                line.session.raise_protections(Protections {
                    data,
                    code: Protection::Integrity,
                    control: Protection::Encrypted,
                });
            }
        }
    }

    /// The process's sessions are closed, and everything else of it is over within a second.
    fn leave_in_order(&mut self, peer: usize, restart: Duration) -> Result<(), Violation> {
        let own = &mut self.peers[peer];
        if own.is_down || own.is_held || own.is_leaving {
            return Ok(());
        }
        own.is_leaving = true;
        for line in own.lines.values_mut() {
            line.session.close(CloseReason::ShuttingDown);
        }
        let event = PeerEvent::Left(peer, own.life, restart);
        self.agenda.plan(self.now + LEAVING_TIME, event);
        self.orphan(peer);
        self.tend(peer)
    }

    /// What binds the process, or is bound by it, may lose something from now on.
    fn orphan(&mut self, peer: usize) {
        for (number, binding) in self.scenario.bindings.iter().enumerate() {
            if binding.holder == peer || self.owners[number] == peer {
                self.ledger.bindings[number].is_orphan = true;
            }
        }
    }

    fn renew(&mut self, peer: usize, protection: Protection) -> Result<(), Violation> {
        let own = &mut self.peers[peer];
        if own.is_down || own.is_held || own.is_leaving {
            return Ok(());
        }
        own.policy = protection;
        self.raise(peer);
        let reason = match self.scenario.mischief {
            Some(Mischief::ClosesForGood) => CloseReason::ShuttingDown,
            _ => CloseReason::Finished,
        };
        let own = &mut self.peers[peer];
        for id in own.machine.begin_anew() {
            if let Some(line) = own.lines.get_mut(&id) {
                line.session.close(reason.clone());
                self.report.renewed += 1;
            }
        }
        self.tend(peer)
    }

    fn between(&self, one: usize, other: usize) -> Vec<WireNumber> {
        let pairs = [[one, other], [other, one]];
        let wires = self.wires.iter();
        let between = wires.filter(|(_, wire)| pairs.contains(&wire.peers) && !wire.is_dead);
        between.map(|(number, _)| *number).collect()
    }

    /// What is on the way is lost, and both ends are told.
    fn cut(&mut self, number: WireNumber) {
        if let Some(wire) = self.wires.get_mut(&number) {
            wire.is_dead = true;
            for end in [0, 1] {
                let late = self
                    .random
                    .between(Duration::ZERO, Duration::from_millis(2));
                self.agenda
                    .plan(self.now + late, PeerEvent::Broken(number, end));
            }
        }
    }

    fn unpile(&mut self, from: usize, to: usize) -> Result<(), Violation> {
        if self.blocked.contains(&(from, to)) || self.peers[to].is_held {
            return Ok(());
        }
        for number in self.between(from, to) {
            let end = match self.wires.get(&number) {
                Some(wire) => usize::from(wire.peers[0] != to),
                None => continue,
            };
            while let Some(piece) = self
                .wires
                .get_mut(&number)
                .and_then(|wire| wire.unpile(end))
            {
                self.arrive(number, end, piece)?;
            }
        }
        Ok(())
    }

    pub(super) fn kill(
        &mut self,
        peer: usize,
        silent: bool,
        restart: Duration,
    ) -> Result<(), Violation> {
        if self.peers[peer].is_down {
            return Ok(());
        }
        self.orphan(peer);
        let mut of_peer = Vec::new();
        for (number, wire) in &self.wires {
            if wire.peers.contains(&peer) {
                of_peer.push(*number);
            }
        }
        for number in of_peer {
            match silent {
                true => {
                    if let Some(wire) = self.wires.get_mut(&number) {
                        wire.is_dead = true;
                    }
                }
                false => self.leave(number, peer)?,
            }
        }
        let own = &mut self.peers[peer];
        let (life, policy, is_held) = (own.life + 1, own.policy, own.is_held);
        let mut dead = self.new_process(life, policy);
        (dead.is_down, dead.is_held) = (true, is_held);
        self.peers[peer] = dead;
        self.agenda.plan(self.now + restart, PeerEvent::Begin(peer));
        Ok(())
    }

    fn revoke(&mut self, number: usize) -> Result<(), Violation> {
        let owner = self.scenario.bindings[number].owner;
        let Some((life, startpoint)) = self.startpoints.get(&number).copied() else {
            return Ok(());
        };
        if self.peers[owner].life != life || self.peers[owner].is_down {
            return Ok(());
        }
        self.ledger.bindings[number].is_revoked = true;
        let own = &mut self.peers[owner];
        let ended = match own.machine.revoke("sink", startpoint) {
            Ok(ended) => ended,
            Err(error) => return self.broken(format!("can't revoke: {error}")),
        };
        if self.scenario.mischief == Some(Mischief::IgnoresRevocation) {
            return Ok(());
        }
        self.end_links(owner, ended, "it was revoked");
        if self.peers[owner].is_held {
            return Ok(());
        }
        self.tend(owner)
    }

    /// Ends links that others have opened to a process.
    pub(super) fn end_links(&mut self, owner: usize, links: Vec<AcceptedId>, why: &str) {
        let own = &mut self.peers[owner];
        for accepted in links {
            if let Some((id, link)) = own.machine.end_link(accepted)
                && let Some(line) = own.lines.get_mut(&id)
            {
                // It may have ended by itself.
                let _ = line.session.end_link(link, LinkRefusal::Ended(why.into()));
            }
        }
    }
}
