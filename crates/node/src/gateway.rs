//! What a gateway keeps: who has tunnels and how many, which hidden nodes wait for calls, and which calls wait for an answer.

use core::time::Duration;
use std::collections::{BTreeMap, HashMap};

use exoskel_identity::{Identity, Role};
use exoskel_link::handshake::Ticket;
use thiserror::Error;

/// How much a gateway holds at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GatewayLimits {
    /// Tunnels, with those that are being made.
    pub tunnels_max: usize,
    /// Of these, for one node that is no gateway itself.
    pub tunnels_of_node_max: usize,
    /// Nodes that wait for calls.
    pub registrations_max: usize,
    /// Of these, of one name.
    pub registrations_of_node_max: usize,
}

impl Default for GatewayLimits {
    fn default() -> Self {
        Self {
            tunnels_max: 4096,
            tunnels_of_node_max: 256,
            registrations_max: 4096,
            registrations_of_node_max: 64,
        }
    }
}

/// How long a ticket is good. A node that was called dials back at once.
pub const TICKET_TIME: Duration = Duration::from_secs(5);

/// A tunnel of one gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TunnelId(pub u64);

/// A node that waits for calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RegistrationId(u64);

/// A limit that is reached. A retry may help.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("this gateway has {limit} {what}, which is its limit; try again later")]
pub struct Full {
    /// Of what.
    pub what: &'static str,
    /// How many.
    pub limit: usize,
}

/// An answer to no call. One text for every reason: who guesses learns nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error(
    "no call of this node waits for this ticket: it was used, is too old, or is another node's"
)]
pub struct NoSuchCall;

/// The tables of a gateway.
#[derive(Debug)]
pub struct GatewayTables {
    limits: GatewayLimits,
    next: u64,
    tunnels: BTreeMap<TunnelId, Identity>,
    of_node: HashMap<Identity, usize>,
    /// By name; of one name, the newest last.
    registrations: BTreeMap<String, Vec<(RegistrationId, Identity)>>,
    registered: usize,
    /// Each tunnel that is being made waits for one at most, so tunnels bound them.
    calls: HashMap<Ticket, WaitingCall>,
}

#[derive(Debug)]
struct WaitingCall {
    node: Identity,
    tunnel: TunnelId,
    good_until: Duration,
}

impl GatewayTables {
    /// Empty ones.
    pub fn new(limits: GatewayLimits) -> Self {
        Self {
            limits,
            next: 0,
            tunnels: BTreeMap::new(),
            of_node: HashMap::new(),
            registrations: BTreeMap::new(),
            registered: 0,
            calls: HashMap::new(),
        }
    }

    /// How many tunnels there are, with those that are being made.
    pub fn tunnels(&self) -> usize {
        self.tunnels.len()
    }

    /// How many nodes wait for calls.
    pub fn registered(&self) -> usize {
        self.registered
    }

    /// Keeps a place for a tunnel of this node's. A gateway asks for many nodes, whose gateway it is to limit them.
    ///
    /// # Errors
    /// [`Full`] when there are too many, or too many of this node's.
    pub fn begin_tunnel(&mut self, asked_by: &Identity) -> Result<TunnelId, Full> {
        if self.tunnels.len() >= self.limits.tunnels_max {
            return Err(Full {
                what: "tunnels",
                limit: self.limits.tunnels_max,
            });
        }
        let of_node = self.of_node.entry(asked_by.clone()).or_default();
        if *of_node >= self.limits.tunnels_of_node_max && asked_by.role != Role::Gateway {
            return Err(Full {
                what: "tunnels of this node",
                limit: self.limits.tunnels_of_node_max,
            });
        }
        *of_node += 1;
        self.next += 1;
        let tunnel = TunnelId(self.next);
        self.tunnels.insert(tunnel, asked_by.clone());
        Ok(tunnel)
    }

    /// A tunnel is over, or won't be made. Its calls are forgotten.
    pub fn end_tunnel(&mut self, tunnel: TunnelId) {
        let Some(asked_by) = self.tunnels.remove(&tunnel) else {
            return;
        };
        if let Some(of_node) = self.of_node.get_mut(&asked_by) {
            *of_node -= 1;
            if *of_node == 0 {
                self.of_node.remove(&asked_by);
            }
        }
        self.calls.retain(|_, call| call.tunnel != tunnel);
    }

    /// A node that has proved its name waits for calls.
    ///
    /// # Errors
    /// [`Full`] when too many do, or too many of this name.
    pub fn register(&mut self, node: &Identity) -> Result<RegistrationId, Full> {
        let of_node = self.registrations.get(&node.name).map_or(0, Vec::len);
        for (what, got, limit) in [
            (
                "registrations",
                self.registered,
                self.limits.registrations_max,
            ),
            (
                "registrations of this node",
                of_node,
                self.limits.registrations_of_node_max,
            ),
        ] {
            if got >= limit {
                return Err(Full { what, limit });
            }
        }
        self.next += 1;
        let registration = RegistrationId(self.next);
        let of_node = self.registrations.entry(node.name.clone()).or_default();
        of_node.push((registration, node.clone()));
        self.registered += 1;
        Ok(registration)
    }

    /// A node doesn't wait any more.
    pub fn unregister(&mut self, registration: RegistrationId) {
        self.registrations.retain(|_, of_node| {
            let before = of_node.len();
            of_node.retain(|(number, _)| *number != registration);
            self.registered -= before - of_node.len();
            !of_node.is_empty()
        });
    }

    /// Who waits for calls under this name: the newest first, since an older connection may be dead without anybody knowing.
    pub fn registrations(&self, name: &str) -> Vec<RegistrationId> {
        let of_node = self.registrations.get(name).into_iter().flatten().rev();
        of_node.map(|(number, _)| *number).collect()
    }

    /// Calls a registered node for a tunnel. `ticket` is random and new. Nothing when the node has gone.
    pub fn call(
        &mut self,
        registration: RegistrationId,
        tunnel: TunnelId,
        ticket: Ticket,
        now: Duration,
    ) -> Option<()> {
        let all = self.registrations.values().flatten();
        let (_, node) = all
            .into_iter()
            .find(|(number, _)| *number == registration)?;
        // A tunnel has one call at a time; the one before this has come to nothing.
        self.calls.retain(|_, call| call.tunnel != tunnel);
        let call = WaitingCall {
            node: node.clone(),
            tunnel,
            good_until: now + TICKET_TIME,
        };
        self.calls.insert(ticket, call);
        Some(())
    }

    /// Takes the answer to a call: a ticket is good once, in time, and for the node that was called. Gives the tunnel that waits for it.
    ///
    /// # Errors
    /// [`NoSuchCall`]. Another node's attempt leaves the ticket good.
    pub fn answer(
        &mut self,
        ticket: &Ticket,
        node: &Identity,
        now: Duration,
    ) -> Result<TunnelId, NoSuchCall> {
        let call = self.calls.get(ticket).ok_or(NoSuchCall)?;
        if call.node != *node {
            return Err(NoSuchCall);
        }
        let is_in_time = now <= call.good_until;
        let tunnel = call.tunnel;
        self.calls.remove(ticket);
        if is_in_time {
            Ok(tunnel)
        } else {
            Err(NoSuchCall)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Duration = Duration::from_secs(100);

    fn node(name: &str) -> Identity {
        Identity::new(Role::Worker, name).unwrap()
    }

    fn tables() -> GatewayTables {
        GatewayTables::new(GatewayLimits {
            tunnels_max: 4,
            tunnels_of_node_max: 2,
            registrations_max: 3,
            registrations_of_node_max: 2,
        })
    }

    #[test]
    fn a_ticket_is_good_once_in_time_and_for_the_node_that_was_called() {
        let mut tables = tables();
        let hidden = tables.register(&node("hidden")).unwrap();
        let tunnel = tables.begin_tunnel(&node("asker")).unwrap();
        let [ticket, late] = [Ticket([1; 16]), Ticket([2; 16])];
        tables.call(hidden, tunnel, ticket, NOW).unwrap();
        assert_eq!(
            tables.answer(&Ticket([3; 16]), &node("hidden"), NOW),
            Err(NoSuchCall)
        );
        assert_eq!(tables.answer(&ticket, &node("other"), NOW), Err(NoSuchCall));
        assert_eq!(tables.answer(&ticket, &node("hidden"), NOW), Ok(tunnel));
        assert_eq!(
            tables.answer(&ticket, &node("hidden"), NOW),
            Err(NoSuchCall)
        );
        tables.call(hidden, tunnel, late, NOW).unwrap();
        let after = NOW + TICKET_TIME + Duration::from_millis(1);
        assert_eq!(
            tables.answer(&late, &node("hidden"), after),
            Err(NoSuchCall)
        );
        // Who has left is not called, and a tunnel that is over waits for nobody.
        tables.call(hidden, tunnel, ticket, NOW).unwrap();
        tables.end_tunnel(tunnel);
        assert_eq!(
            tables.answer(&ticket, &node("hidden"), NOW),
            Err(NoSuchCall)
        );
        tables.unregister(hidden);
        assert_eq!(tables.call(hidden, tunnel, ticket, NOW), None);
    }

    #[test]
    fn nobody_has_more_than_its_share() {
        let mut tables = tables();
        let first = tables.begin_tunnel(&node("a")).unwrap();
        tables.begin_tunnel(&node("a")).unwrap();
        let full = tables.begin_tunnel(&node("a")).unwrap_err();
        assert_eq!(full.what, "tunnels of this node");
        // A gateway asks for many.
        let gate = Identity::new(Role::Gateway, "gate").unwrap();
        tables.begin_tunnel(&gate).unwrap();
        tables.end_tunnel(first);
        tables.end_tunnel(first);
        for _ in 0..2 {
            tables.begin_tunnel(&gate).unwrap();
        }
        assert_eq!(tables.begin_tunnel(&node("b")).unwrap_err().what, "tunnels");
        assert_eq!(tables.tunnels(), 4);

        let older = tables.register(&node("hidden")).unwrap();
        let newer = tables.register(&node("hidden")).unwrap();
        assert_eq!(tables.registrations("hidden"), [newer, older]);
        assert!(tables.register(&node("hidden")).is_err());
        tables.register(&node("another")).unwrap();
        assert_eq!(
            tables.register(&node("third")).unwrap_err().what,
            "registrations"
        );
        tables.unregister(newer);
        tables.unregister(newer);
        assert_eq!(
            (tables.registrations("hidden"), tables.registered()),
            (vec![older], 2)
        );
        assert_eq!(tables.registrations("nobody"), []);
    }
}
