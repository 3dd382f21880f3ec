//! What holders of startpoints say, and what is lost.

use std::time::Duration;

use exoskel_link::Protection;
use exoskel_link::capability::{Caveat, Startpoint};
use exoskel_node::links::LinkError;

use super::{PeerEvent, PeersRun, START_UNIX};
use crate::peers::ledger::Saying;
use crate::peers::scenario::PeersFault;
use crate::violation::Violation;

impl PeersRun {
    pub(super) fn bind(&mut self, number: usize) -> Result<(), Violation> {
        let binding = self.scenario.bindings[number].clone();
        if self.peers[binding.holder].is_down || self.peers[binding.owner].is_down {
            self.ledger.bindings[number].is_orphan = true;
            return Ok(());
        }
        if self.peers[binding.holder].is_leaving {
            self.ledger.bindings[number].is_orphan = true;
            return Ok(());
        }
        if binding.is_looked_up {
            return self.look_up(number);
        }
        let startpoint = match self.startpoint(number) {
            Ok(startpoint) => startpoint,
            Err(error) => return self.broken(format!("no startpoint: {error}")),
        };
        let life = self.peers[binding.owner].life;
        self.startpoints.insert(number, (life, startpoint.number()));
        let holder = &mut self.peers[binding.holder];
        let bound = holder.machine.bind(startpoint);
        holder.bound.insert(number, bound);
        self.agenda.plan(self.now, PeerEvent::Say(number));
        Ok(())
    }

    fn startpoint(&mut self, number: usize) -> Result<Startpoint, LinkError> {
        let binding = &self.scenario.bindings[number];
        let meant = match binding.is_foreign {
            true => self
                .people
                .last()
                .map_or("nobody", |one| one.name())
                .to_owned(),
            false => self.name(binding.holder).to_owned(),
        };
        let node = self.people[self.scenario.peers[binding.owner]]
            .identity()
            .clone();
        let hints = vec![format!("peer{}", binding.owner)];
        let mut caveats = vec![
            Caveat::holder(&meant)?,
            Caveat::Protection(binding.protection),
        ];
        let expires = binding.expires.map(|at| START_UNIX + at.as_secs());
        caveats.extend(expires.map(Caveat::Expires));
        let owner = &mut self.peers[binding.owner];
        let made = owner
            .machine
            .startpoint("sink", node, hints, false, caveats)?;
        Ok(match binding.is_narrowed {
            true => made.attenuate(Caveat::handlers(["note"]))?,
            false => made,
        })
    }

    pub(super) fn name(&self, peer: usize) -> &str {
        self.people[self.scenario.peers[peer]].name()
    }

    /// What a binding's messages have at least, as far as its holder knows.
    fn minimum(&self, number: usize) -> Protection {
        let binding = &self.scenario.bindings[number];
        let required = match self.required[number] {
            true => Protection::Encrypted,
            false => Protection::Plain,
        };
        // What waits for a session goes by the policy of that one, which may be looser.
        let is_loosened = |(_, fault): &(Duration, PeersFault)| matches!(fault, PeersFault::Renew(peer, _) if *peer == binding.holder);
        let policy = match self.scenario.faults.iter().any(is_loosened) {
            true => Protection::Plain,
            false => self.peers[binding.holder].policy,
        };
        let asked = match binding.is_looked_up {
            true => Protection::Plain,
            false => binding.protection,
        };
        asked.max(required).max(policy)
    }

    pub(super) fn say(&mut self, number: usize) -> Result<(), Violation> {
        let binding = self.scenario.bindings[number].clone();
        let peer = binding.holder;
        let Some(bound) = self.peers[peer].bound.get(&number).copied() else {
            return Ok(());
        };
        let tried = self.tried[number];
        if tried == binding.messages || self.peers[peer].is_down || self.peers[peer].is_leaving {
            return Ok(());
        }
        self.tried[number] += 1;
        if binding.requires_at.is_some_and(|at| at <= tried) && !self.required[number] {
            self.required[number] = true;
            let own = &mut self.peers[peer];
            if let Ok(Some((session, link))) = own.machine.require(bound, Protection::Encrypted)
                && let Some(line) = own.lines.get_mut(&session)
            {
                let _ = line.session.raise_link(link, Protection::Encrypted);
            }
        }
        let is_request = self.random.below(binding.requests_one_in) == 0;
        let ledger = &self.ledger.bindings[number];
        let saying = Saying {
            binding: number,
            epoch: ledger.epoch,
            place: ledger.said,
        };
        let is_sealed = self.minimum(number) == Protection::Encrypted;
        let bytes = self.random.below(binding.bytes_max + 1);
        let contents = saying.contents(is_sealed, bytes, self.scenario.seed);
        let may_request = match binding.is_looked_up {
            true => self.is_allowed(self.owners[number], peer, "answer"),
            false => !binding.is_narrowed,
        };
        let machine = &mut self.peers[peer].machine;
        let said = match is_request && may_request {
            true => machine
                .request(bound, "answer", contents)
                .map(|(request, outgoing)| (Some(request), outgoing)),
            false => machine
                .post(bound, "note", contents)
                .map(|outgoing| (None, outgoing)),
        };
        match said {
            Ok((request, outgoing)) => {
                self.ledger.bindings[number].said += 1;
                match request {
                    Some(_) => self.report.requests += 1,
                    None => self.report.posts += 1,
                }
                if let Some(request) = request {
                    self.ledger.bindings[number].requested(request, saying);
                    self.ledger.asked(peer, request);
                }
                if let Some(outgoing) = outgoing {
                    self.queue(peer, outgoing)?;
                }
            }
            Err(LinkError::PostsLost { why, .. }) => self.loss(number, &why)?,
            Err(LinkError::TooMuchWaits { .. } | LinkError::TooManyRequests) => {}
            Err(error) => return self.broken(format!("can't say anything: {error}")),
        }
        let pause = self.random.between(Duration::ZERO, binding.pause);
        self.agenda.plan(self.now + pause, PeerEvent::Say(number));
        self.tend(peer)
    }

    /// A link said that something may be lost: there must be a reason.
    pub(super) fn loss(&mut self, number: usize, why: &str) -> Result<(), Violation> {
        self.report.losses += 1;
        self.note(|| format!("binding {number} may have lost something: {why}"));
        self.ledger.bindings[number].told_loss();
        let is_first = why.contains("can't reach") && !self.scenario.faults.is_empty();
        if is_first || self.may_lose(number) {
            return Ok(());
        }
        self.broken(format!(
            "binding {number} lost something for no reason: {why}"
        ))
    }

    pub(super) fn may_lose(&self, number: usize) -> bool {
        let binding = &self.scenario.bindings[number];
        let ledger = &self.ledger.bindings[number];
        binding.is_foreign
            || ledger.is_revoked
            || ledger.is_barred
            || binding.expires.is_some_and(|at| at <= self.now)
            || ledger.is_orphan
            || self.is_long()
    }

    /// Whether somebody is away for longer than links wait.
    pub(super) fn is_long(&self) -> bool {
        let mut faults = self.scenario.faults.iter();
        faults.any(|(at, fault)| {
            let is_end = matches!(fault, PeersFault::Repair(..) | PeersFault::Release(_));
            is_end && *at > self.scenario.patience
        })
    }
}
