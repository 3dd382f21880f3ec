//! What a gateway keeps: who has tunnels and how many, which hidden nodes wait for calls, and which calls wait for an answer.

use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet, HashMap};

use exoskel_identity::{Identity, Role};
use exoskel_link::handshake::{ProcessNumber, Ticket};
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

/// Registrations of one process, at most: it needs one, and has others beside while the gateway doesn't know yet that they are dead.
pub const REGISTRATIONS_OF_PROCESS_MAX: usize = 4;

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
    registrations: BTreeMap<String, Vec<RegisteredProcess>>,
    registered: usize,
    /// Each tunnel that is being made waits for one at most, so tunnels bound them.
    calls: HashMap<Ticket, WaitingCall>,
}

/// A process that waits for calls.
#[derive(Clone, Debug)]
struct RegisteredProcess {
    id: RegistrationId,
    node: Identity,
    process: ProcessNumber,
}

/// A process that waits for calls from now on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Registered {
    /// How it is called.
    pub id: RegistrationId,
    /// An older registration of the same process, which is to be ended: it has too many.
    pub displaced: Option<RegistrationId>,
}

#[derive(Debug)]
struct WaitingCall {
    node: Identity,
    process: ProcessNumber,
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

    /// A process of a node that has proved its name waits for calls. Of one that has too many registrations, or for which there is no more
    /// room, the oldest goes: the process wouldn't register again if that were alive.
    ///
    /// # Errors
    /// [`Full`] when there are too many, or too many of this name, and none of them is this process's.
    ///
    /// # Security
    /// The process number is the node's own word: it tells processes of one certificate apart, and no others.
    pub fn register(
        &mut self,
        node: &Identity,
        process: ProcessNumber,
    ) -> Result<Registered, Full> {
        let of_node = self.registrations.get(&node.name);
        let of_node = of_node.map_or(&[][..], Vec::as_slice);
        let is_own = |one: &&RegisteredProcess| one.node == *node && one.process == process;
        let own: Vec<_> = of_node.iter().filter(is_own).map(|one| one.id).collect();
        let limits = [
            (
                "registrations",
                self.registered,
                self.limits.registrations_max,
            ),
            (
                "registrations of this node",
                of_node.len(),
                self.limits.registrations_of_node_max,
            ),
        ];
        let full = limits.into_iter().find(|(_, got, limit)| got >= limit);
        let displaced = match (full, own.first()) {
            (Some((what, _, limit)), None) => return Err(Full { what, limit }),
            (Some(_), oldest) => oldest.copied(),
            (None, oldest) => oldest
                .filter(|_| own.len() >= REGISTRATIONS_OF_PROCESS_MAX)
                .copied(),
        };
        if let Some(displaced) = displaced {
            self.unregister(displaced);
        }
        self.next += 1;
        let id = RegistrationId(self.next);
        let of_node = self.registrations.entry(node.name.clone()).or_default();
        of_node.push(RegisteredProcess {
            id,
            node: node.clone(),
            process,
        });
        self.registered += 1;
        Ok(Registered { id, displaced })
    }

    /// A node doesn't wait any more.
    pub fn unregister(&mut self, registration: RegistrationId) {
        self.registrations.retain(|_, of_node| {
            let before = of_node.len();
            of_node.retain(|one| one.id != registration);
            self.registered -= before - of_node.len();
            !of_node.is_empty()
        });
    }

    /// Who waits for calls under this name, and is this process, if one is named: the newest first, since an older connection may be dead
    /// without anybody knowing.
    pub fn registrations(&self, name: &str, process: Option<ProcessNumber>) -> Vec<RegistrationId> {
        let of_node = self.registrations.get(name).into_iter().flatten().rev();
        let wanted = of_node.filter(|one| process.is_none_or(|process| one.process == process));
        wanted.map(|one| one.id).collect()
    }

    /// Whether a registration is still there: a newer one of the same process may have taken its place.
    pub fn is_registered(&self, registration: RegistrationId) -> bool {
        let mut all = self.registrations.values().flatten();
        all.any(|one| one.id == registration)
    }

    /// How many processes wait for calls under this name.
    pub fn processes(&self, name: &str) -> usize {
        let of_node = self.registrations.get(name).into_iter().flatten();
        let processes: BTreeSet<_> = of_node.map(|one| (&one.node, one.process)).collect();
        processes.len()
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
        let called = all.into_iter().find(|one| one.id == registration)?;
        // A tunnel has one call at a time; the one before this has come to nothing.
        self.calls.retain(|_, call| call.tunnel != tunnel);
        let call = WaitingCall {
            node: called.node.clone(),
            process: called.process,
            tunnel,
            good_until: now + TICKET_TIME,
        };
        self.calls.insert(ticket, call);
        Some(())
    }

    /// Takes the answer to a call: a ticket is good once, in time, and for the process that was called. Gives the tunnel that waits for it.
    ///
    /// # Errors
    /// [`NoSuchCall`]. Another node's attempt leaves the ticket good.
    pub fn answer(
        &mut self,
        ticket: &Ticket,
        node: &Identity,
        process: ProcessNumber,
        now: Duration,
    ) -> Result<TunnelId, NoSuchCall> {
        let call = self.calls.get(ticket).ok_or(NoSuchCall)?;
        if (&call.node, call.process) != (node, process) {
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

    fn process(number: u8) -> ProcessNumber {
        ProcessNumber::new([number; 16])
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
        let hidden = tables.register(&node("hidden"), process(1)).unwrap().id;
        let tunnel = tables.begin_tunnel(&node("asker")).unwrap();
        let [ticket, late] = [Ticket([1; 16]), Ticket([2; 16])];
        tables.call(hidden, tunnel, ticket, NOW).unwrap();
        assert_eq!(
            tables.answer(&Ticket([3; 16]), &node("hidden"), process(1), NOW),
            Err(NoSuchCall)
        );
        assert_eq!(
            tables.answer(&ticket, &node("other"), process(1), NOW),
            Err(NoSuchCall)
        );
        assert_eq!(
            tables.answer(&ticket, &node("hidden"), process(1), NOW),
            Ok(tunnel)
        );
        assert_eq!(
            tables.answer(&ticket, &node("hidden"), process(1), NOW),
            Err(NoSuchCall)
        );
        tables.call(hidden, tunnel, late, NOW).unwrap();
        let after = NOW + TICKET_TIME + Duration::from_millis(1);
        assert_eq!(
            tables.answer(&late, &node("hidden"), process(1), after),
            Err(NoSuchCall)
        );
        // Who has left is not called, and a tunnel that is over waits for nobody.
        tables.call(hidden, tunnel, ticket, NOW).unwrap();
        tables.end_tunnel(tunnel);
        assert_eq!(
            tables.answer(&ticket, &node("hidden"), process(1), NOW),
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

        let older = tables.register(&node("hidden"), process(1)).unwrap().id;
        let newer = tables.register(&node("hidden"), process(2)).unwrap().id;
        assert_eq!(tables.registrations("hidden", None), [newer, older]);
        let full = tables.register(&node("hidden"), process(3)).unwrap_err();
        assert_eq!(full.what, "registrations of this node");
        tables.register(&node("another"), process(1)).unwrap();
        assert_eq!(
            tables
                .register(&node("third"), process(1))
                .unwrap_err()
                .what,
            "registrations"
        );
        tables.unregister(newer);
        tables.unregister(newer);
        assert_eq!(
            (tables.registrations("hidden", None), tables.registered()),
            (vec![older], 2)
        );
        assert_eq!(tables.registrations("nobody", None), []);
    }

    /// Aim: of several processes with one certificate the one that is wanted is called, and no other one answers in its place.
    #[test]
    fn processes_of_one_certificate_are_called_each_by_its_number() {
        let mut tables = tables();
        let first = tables.register(&node("hidden"), process(1)).unwrap().id;
        let second = tables.register(&node("hidden"), process(2)).unwrap().id;
        assert_eq!(tables.registrations("hidden", Some(process(1))), [first]);
        assert_eq!(tables.registrations("hidden", Some(process(2))), [second]);
        assert_eq!(tables.registrations("hidden", Some(process(3))), []);
        // The number of another node's process is not its name.
        assert_eq!(tables.registrations("another", Some(process(1))), []);
        assert_eq!(tables.processes("hidden"), 2);
        let tunnel = tables.begin_tunnel(&node("asker")).unwrap();
        let ticket = Ticket([1; 16]);
        tables.call(first, tunnel, ticket, NOW).unwrap();
        assert_eq!(
            tables.answer(&ticket, &node("hidden"), process(2), NOW),
            Err(NoSuchCall)
        );
        let answered = tables.answer(&ticket, &node("hidden"), process(1), NOW);
        assert_eq!(answered, Ok(tunnel));
    }

    /// Aim: a process that loses its registrations without the gateway's noticing keeps neither itself nor its siblings out.
    #[test]
    fn a_process_that_registers_again_and_again_takes_its_own_places() {
        let mut tables = GatewayTables::new(GatewayLimits {
            registrations_of_node_max: 2 + REGISTRATIONS_OF_PROCESS_MAX,
            ..GatewayLimits::default()
        });
        let sibling = tables.register(&node("hidden"), process(1)).unwrap();
        let mut own = Vec::new();
        for _ in 0..20 {
            let registered = tables.register(&node("hidden"), process(2)).unwrap();
            let is_one_too_many = own.len() >= REGISTRATIONS_OF_PROCESS_MAX;
            let oldest = is_one_too_many.then(|| own.remove(0));
            assert_eq!(registered.displaced, oldest);
            assert!(oldest.is_none_or(|oldest| !tables.is_registered(oldest)));
            own.push(registered.id);
        }
        assert_eq!(tables.processes("hidden"), 2);
        assert!(tables.is_registered(sibling.id));
        // No more room: another process finds none, and this one takes its own place.
        tables.register(&node("hidden"), process(3)).unwrap();
        assert!(tables.register(&node("hidden"), process(4)).is_err());
        let again = tables.register(&node("hidden"), process(1)).unwrap();
        assert_eq!(again.displaced, Some(sibling.id));
        assert_eq!(tables.registered(), 2 + REGISTRATIONS_OF_PROCESS_MAX);
    }
}
