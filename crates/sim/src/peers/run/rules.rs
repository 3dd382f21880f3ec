//! What ends rights by itself: time, and rules; and startpoints that rules give to who asks.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use exoskel_link::Protection;
use exoskel_link::capability::{NewStartpoint, RootKey, Startpoint};
use exoskel_link::policy::Policy;
use exoskel_node::links::{
    BindingId, LOOKUP_ENDPOINT, LOOKUP_HANDLER, LinkError, MessageContents, RequestAnswer,
};

use super::{PeerEvent, PeersRun, START_UNIX};
use crate::peers::scenario::Mischief;
use crate::violation::Violation;

/// Between two looks for startpoints that have expired.
const EXPIRY_TIME: Duration = Duration::from_secs(1);

/// Until a startpoint is asked for again, when no answer came.
const LOOKUP_PAUSE: Duration = Duration::from_millis(500);

impl PeersRun {
    /// What a new process begins with.
    pub(super) fn set_up(&mut self, peer: usize) {
        let node = self.people[self.scenario.peers[peer]].identity().clone();
        let own = &mut self.peers[peer];
        own.machine.give_out(node, vec![format!("peer{peer}")]);
        let life = own.life;
        if self
            .scenario
            .bindings
            .iter()
            .any(|one| one.expires.is_some())
        {
            let event = PeerEvent::Expire(peer, life);
            self.agenda.plan(self.now + EXPIRY_TIME, event);
        }
        let has_rules = self.scenario.bindings.iter().any(|one| one.is_looked_up);
        if has_rules || !self.barred.is_empty() {
            let policy = self.policy_of(peer);
            self.peers[peer].barred = self.barred_by(peer);
            drop(self.peers[peer].machine.set_policy(Arc::new(policy)));
        }
    }

    pub(super) fn expire(&mut self, peer: usize) -> Result<(), Violation> {
        let now_unix = START_UNIX + self.now.as_secs();
        let own = &mut self.peers[peer];
        own.expiry_seen = now_unix;
        let event = PeerEvent::Expire(peer, own.life);
        self.agenda.plan(self.now + EXPIRY_TIME, event);
        let expired = own.machine.expired(now_unix);
        if expired.is_empty() || self.is(Mischief::IgnoresExpiry) {
            return Ok(());
        }
        self.report.ended += expired.len() as u64;
        self.end_links(peer, expired, "the startpoint has expired");
        self.tend(peer)
    }

    /// Whether a rule of an owner's node allows a holder something.
    pub(super) fn is_allowed(&self, owner: usize, holder: usize, handler: &str) -> bool {
        let mut bindings = self.scenario.bindings.iter();
        bindings.any(|one| {
            let is_named = one.is_looked_up && !one.is_foreign;
            is_named
                && self.name(one.owner) == self.name(owner)
                && self.name(one.holder) == self.name(holder)
                && (handler == "note" || !one.is_narrowed)
        })
    }

    fn barred_by(&self, peer: usize) -> BTreeSet<String> {
        let of_node = |(node, _): &&(usize, String)| *node == self.scenario.peers[peer];
        let barred = self.barred.iter().filter(of_node);
        barred.map(|(_, name)| name.clone()).collect()
    }

    fn policy_of(&self, peer: usize) -> Policy {
        let mut text = String::new();
        let everybody = self.is(Mischief::IgnoresLookupRules);
        for holder in 0..self.scenario.peers.len() {
            for handler in ["note", "answer"] {
                if everybody || self.is_allowed(peer, holder, handler) {
                    let name = self.name(holder);
                    let _ = writeln!(
                        text,
                        "[[allow.rule]]\naction = \"sink.{handler}\"\nname = \"{name}\""
                    );
                }
            }
        }
        for name in self.barred_by(peer) {
            let _ = writeln!(
                text,
                "[[deny.rule]]\naction = [\"sink.note\", \"sink.answer\"]\nname = \"{name}\""
            );
        }
        if text.is_empty() {
            return Policy::default();
        }
        Policy::parse(&text, 1).expect("the rules of a scenario are rules")
    }

    /// An administrator has added a rule; processes of the node take it up.
    pub(super) fn bar(&mut self, number: usize) -> Result<(), Violation> {
        let binding = &self.scenario.bindings[number];
        let (owner, holder) = (binding.owner, binding.holder);
        let name = self.name(holder).to_owned();
        let node = self.scenario.peers[owner];
        for other in 0..self.scenario.bindings.len() {
            let of = &self.scenario.bindings[other];
            if self.scenario.peers[of.owner] == node && self.name(of.holder) == name {
                self.ledger.bindings[other].is_barred = true;
            }
        }
        self.barred.insert((node, name));
        for peer in 0..self.peers.len() {
            if self.scenario.peers[peer] == node {
                self.agenda.plan(self.now, PeerEvent::TakeUp(peer));
            }
        }
        Ok(())
    }

    pub(super) fn take_up_rules(&mut self, peer: usize) -> Result<(), Violation> {
        let policy = self.policy_of(peer);
        let barred = self.barred_by(peer);
        let own = &mut self.peers[peer];
        own.barred = barred;
        let against = own.machine.set_policy(Arc::new(policy));
        if self.is(Mischief::IgnoresRules) {
            return Ok(());
        }
        self.report.ended += against.len() as u64;
        let links = against.into_iter().map(|link| link.accepted).collect();
        self.end_links(peer, links, "a rule is against it");
        self.tend(peer)
    }

    /// A holder asks the owner's node for a startpoint.
    pub(super) fn look_up(&mut self, number: usize) -> Result<(), Violation> {
        let binding = &self.scenario.bindings[number];
        let (owner, peer) = (binding.owner, binding.holder);
        let node = self.people[self.scenario.peers[owner]].identity().clone();
        let (key_id, secret) = (self.bytes(), self.bytes());
        let own = &mut self.peers[peer];
        let asked = RootKey::new(LOOKUP_ENDPOINT, key_id, secret).and_then(|mut key| {
            key.issue(NewStartpoint {
                node,
                process: own.process,
                hints: vec![format!("peer{owner}")],
                minimum: Protection::Plain,
                bearer: true,
                caveats: Vec::new(),
            })
        });
        let lookup = match asked {
            Ok(startpoint) => own.machine.bind(startpoint),
            Err(error) => return self.broken(format!("can't ask for a startpoint: {error}")),
        };
        let contents = MessageContents {
            head: bytes::Bytes::from_static(b"sink"),
            bulk: Vec::new(),
            is_gathered: false,
        };
        let (request, outgoing) = match own.machine.request(lookup, LOOKUP_HANDLER, contents) {
            Ok(asked) => asked,
            Err(error) => return self.broken(format!("can't ask for a startpoint: {error}")),
        };
        own.lookups.insert(request, (number, lookup));
        if let Some(outgoing) = outgoing {
            self.queue(peer, outgoing)?;
        }
        self.tend(peer)
    }

    /// A lookup has its outcome.
    pub(super) fn looked_up(
        &mut self,
        peer: usize,
        number: usize,
        lookup: BindingId,
        answer: &RequestAnswer,
    ) -> Result<(), Violation> {
        let (place, _) = self.peers[peer].machine.unbind(lookup);
        if let Some((id, link)) = place
            && let Some(line) = self.peers[peer].lines.get_mut(&id)
        {
            // It may have ended by itself.
            let _ = line.session.close_link(link);
        }
        let owner = self.scenario.bindings[number].owner;
        let is_allowed = self.is_allowed(owner, peer, "note");
        let head = match answer {
            RequestAnswer::Reply { head, .. } => head,
            RequestAnswer::Failure { head } => {
                if is_allowed && !self.ledger.bindings[number].is_barred {
                    let why = String::from_utf8_lossy(head).into_owned();
                    return self.broken(format!(
                        "binding {number} was refused a startpoint that a rule allows: {why}"
                    ));
                }
                self.report.refused += 1;
                self.ledger.bindings[number].is_unlisted = true;
                return Ok(());
            }
            RequestAnswer::Lost(LinkError::Closed) => return Ok(()),
            RequestAnswer::Lost(_) => {
                self.agenda
                    .plan(self.now + LOOKUP_PAUSE, PeerEvent::Bind(number));
                return Ok(());
            }
        };
        if !is_allowed {
            return self.broken(format!(
                "binding {number} was given a startpoint that no rule allows"
            ));
        }
        let given = match Startpoint::read(head) {
            Ok(given) => given,
            Err(error) => return self.broken(format!("no startpoint was given: {error}")),
        };
        if given.node().name != self.name(owner) || given.endpoint() != "sink" {
            return self.broken(format!("binding {number} was given another's startpoint"));
        }
        // Any process of the node may answer, and it may have died since.
        let mut peers = self.peers.iter();
        match peers.position(|one| one.process == given.process() && !one.is_leaving) {
            Some(owner) => self.owners[number] = owner,
            None => self.ledger.bindings[number].is_orphan = true,
        }
        self.report.looked_up += 1;
        let own = &mut self.peers[peer];
        let bound = own.machine.bind(given);
        own.bound.insert(number, bound);
        self.agenda.plan(self.now, PeerEvent::Say(number));
        Ok(())
    }
}
