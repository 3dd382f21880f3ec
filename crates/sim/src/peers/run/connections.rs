//! Connections, from dialling to their end, and the sessions on them.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use exoskel_link::handshake::{
    Agreement, Chains, HelloSent, MinimumProtections, Offer, Path, Statement,
};
use exoskel_link::{CipherSuite, CloseReason, Ended, Limits, Protection, Protections};
use exoskel_node::SessionId;
use exoskel_node::links::{FailedAttempts, Happening, Hindrance, SessionPeer};

use super::{PeerEvent, PeersRun};
use crate::peers::ledger::shown;
use crate::peers::peer::{BegunDial, PeerLine, WireNumber};
use crate::peers::scenario::Mischief;
use crate::peers::wire::{PeerPiece, PeerWire};
use crate::violation::Violation;

/// A handshake takes no longer.
const HANDSHAKE_TIME: Duration = Duration::from_secs(10);

impl PeersRun {
    pub(super) fn offer(&self, peer: usize, remote: usize) -> Offer {
        let own = &self.peers[peer];
        let place = |number: usize| {
            let ip = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1 + number as u8));
            SocketAddr::new(ip, 7700)
        };
        let data = match self.is(Mischief::IgnoresPolicies) {
            true => Protection::Plain,
            false => own.policy,
        };
        let minimum = Protections {
            control: Protection::Encrypted,
            code: Protection::Integrity,
            data,
        };
        Offer {
            statement: Statement {
                identity: self.people[self.scenario.peers[peer]].identity().clone(),
                limits: Limits {
                    credit_bytes: self.scenario.credit_bytes,
                    ..Limits::default()
                },
                dead_after: self.scenario.dead_after,
                versions: Vec::new(),
                path: Path::Network {
                    local: place(peer),
                    remote: place(remote),
                },
                policy_generation: 1,
                job: 0,
                process: own.process,
                properties: Vec::new(),
            },
            minimum: MinimumProtections {
                proven: minimum,
                unproven: minimum,
            },
            ciphers: CipherSuite::ALL.to_vec(),
            same_versions: Vec::new(),
        }
    }

    pub(super) fn send(
        &mut self,
        number: WireNumber,
        end: usize,
        piece: PeerPiece,
    ) -> Result<(), Violation> {
        if let PeerPiece::Bytes(bytes) = &piece {
            self.report.wire_bytes += bytes.len() as u64;
            let (sealed, clear) = shown(bytes);
            self.report.seen += u64::from(clear);
            if sealed {
                return self.broken("a wire shows what must be encrypted".to_owned());
            }
        }
        if let Some(wire) = self.wires.get_mut(&number)
            && let Some(at) = wire.send(
                1 - end,
                &piece,
                &self.scenario.link,
                &mut self.random,
                self.now,
            )
        {
            self.agenda
                .plan(at, PeerEvent::Arrive(number, 1 - end, piece));
        }
        Ok(())
    }

    pub(super) fn arrive(
        &mut self,
        number: WireNumber,
        end: usize,
        piece: PeerPiece,
    ) -> Result<(), Violation> {
        let Some(wire) = self.wires.get_mut(&number) else {
            return Ok(());
        };
        let (peer, remote) = (wire.peers[end], wire.peers[1 - end]);
        if wire.lives[end] != self.peers[peer].life || self.peers[peer].is_down {
            return Ok(());
        }
        match piece {
            PeerPiece::Hello(hello) => {
                if self.peers[peer].is_leaving {
                    return self.leave(number, peer);
                }
                let offer = self.offer(peer, remote);
                let certified = self.people[self.scenario.peers[remote]].identity();
                let answered = Agreement::answer(offer, hello, certified, Ok(()), |_| Ok(()));
                let agreement = match answered {
                    Ok(agreement) => agreement,
                    Err(error) => return self.broken(format!("a Hello was refused: {error}")),
                };
                let answer = agreement.answer_bytes().to_vec();
                self.send(number, end, PeerPiece::Answer(answer))?;
                self.begin(number, end, &agreement)
            }
            PeerPiece::Answer(answer) => {
                let Some(dial) = self.peers[peer].dials.remove(&number) else {
                    return Ok(());
                };
                let certified = self.people[self.scenario.peers[remote]].identity();
                let agreement = match dial.hello.clone().answered(answer, certified) {
                    Ok(agreement) => agreement,
                    Err(error) => return self.broken(format!("an answer is bad: {error}")),
                };
                let process = agreement.peer().process;
                let expected = dial.want.peer.process;
                if expected.is_some_and(|expected| expected != process) {
                    self.peers[peer].dials.insert(number, dial);
                    return self.dial_failed(peer, number, "another process", true);
                }
                self.begin(number, end, &agreement)
            }
            PeerPiece::Bytes(mut bytes) => {
                if let Some(wire) = self.wires.get_mut(&number)
                    && std::mem::take(&mut wire.alter)
                {
                    let bit = self.random.below(bytes.len() as u64 * 8) as usize;
                    bytes[bit / 8] ^= 1 << (bit % 8);
                }
                self.digest.bytes(&bytes);
                let now = self.now;
                let Some(id) = self.peers[peer].by_wire.get(&number).copied() else {
                    return Ok(());
                };
                let Some(line) = self.peers[peer].lines.get_mut(&id) else {
                    return Ok(());
                };
                let (events, _) = line.receive(&bytes, now);
                self.events(peer, id, events)?;
                self.tend(peer)
            }
            PeerPiece::End => self.hear_end(number, end),
        }
    }

    /// The other end has left, or the connection broke.
    pub(super) fn hear_end(&mut self, number: WireNumber, end: usize) -> Result<(), Violation> {
        let Some(wire) = self.wires.get(&number) else {
            return Ok(());
        };
        let peer = wire.peers[end];
        if wire.lives[end] != self.peers[peer].life {
            return Ok(());
        }
        if self.peers[peer].dials.contains_key(&number) {
            return self.dial_failed(peer, number, "the connection broke", false);
        }
        let own = &mut self.peers[peer];
        if let Some(id) = own.by_wire.get(&number).copied()
            && let Some(line) = own.lines.get_mut(&id)
        {
            let _ = line.session.received_end();
            return self.tend(peer);
        }
        Ok(())
    }

    pub(super) fn begin(
        &mut self,
        number: WireNumber,
        end: usize,
        agreement: &Agreement,
    ) -> Result<(), Violation> {
        let Some(wire) = self.wires.get(&number) else {
            return Ok(());
        };
        let (peer, remote, exporter) = (wire.peers[end], wire.peers[1 - end], wire.exporter);
        let chain = |peer: usize| vec![self.name(peer).as_bytes().to_vec()];
        let (own_chain, peer_chain) = (chain(peer), chain(remote));
        let chains = Chains {
            own: &own_chain,
            peer: &peer_chain,
        };
        let identity = match self.is(Mischief::IgnoresIdentity) && end == 1 {
            true => self.people.last(),
            false => self.people.get(self.scenario.peers[remote]),
        };
        let Some(identity) = identity else {
            return self.broken("somebody has no identity".to_owned());
        };
        let (now, certificates_last) = (self.now, self.scenario.certificates_last);
        let session = agreement.session(
            chains,
            &exporter,
            &self.peers[peer].keys,
            self.now,
            |config| {
                config.asks = true;
                config.expires_at = certificates_last.map(|lasting| now + lasting);
                config.limits.queued_bytes_max = Limits::default().queued_bytes_max;
            },
        );
        let about = SessionPeer {
            identity: Arc::new(identity.clone()),
            process: agreement.peer().process,
            same_host: false,
            dialled: end == 0,
        };
        let own = &mut self.peers[peer];
        let id = SessionId(own.sessions_made);
        own.sessions_made += 1;
        self.report.sessions += 1;
        let mut line = PeerLine {
            wire: number,
            session,
            timer: None,
            peer: remote,
        };
        // A rule may have come since the handshake's offer was made.
        let policy = own.policy;
        let demanded = |_: &str| policy;
        let ignored = |_: &str| Protection::Plain;
        let happened = match self.scenario.mischief {
            Some(Mischief::IgnoresPolicies) => {
                own.machine.begin(id, &mut line.session, about, &ignored)
            }
            _ => {
                line.session.raise_protections(Protections {
                    data: policy,
                    code: Protection::Integrity,
                    control: Protection::Encrypted,
                });
                own.machine.begin(id, &mut line.session, about, &demanded)
            }
        };
        own.by_wire.insert(number, id);
        own.lines.insert(id, line);
        self.note(|| format!("process {peer}: a session with {remote} on connection {number}"));
        self.happened(peer, happened)?;
        self.tend(peer)
    }

    pub(super) fn write(&mut self, peer: usize) -> Result<(), Violation> {
        let ids: Vec<SessionId> = self.peers[peer].lines.keys().copied().collect();
        for id in ids {
            loop {
                let now = self.now;
                let most = 1 + self.random.below(32 << 10) as usize;
                let Some(line) = self.peers[peer].lines.get_mut(&id) else {
                    break;
                };
                if let Err(error) = line.session.prepare(now) {
                    return self.broken(format!("could not seal: {error}"));
                }
                let outgoing = line.session.outgoing().flatten();
                let bytes: Vec<u8> = outgoing.take(most).copied().collect();
                if bytes.is_empty() {
                    break;
                }
                line.session.sent(bytes.len());
                let number = line.wire;
                let end = match self.wires.get(&number) {
                    Some(wire) if wire.peers[0] == peer => 0,
                    _ => 1,
                };
                self.send(number, end, PeerPiece::Bytes(bytes))?;
            }
        }
        Ok(())
    }

    pub(super) fn session_ended(
        &mut self,
        peer: usize,
        id: SessionId,
        ended: &Ended,
    ) -> Result<(), Violation> {
        let Some(line) = self.peers[peer].lines.remove(&id) else {
            return Ok(());
        };
        self.peers[peer].by_wire.remove(&line.wire);
        let is_calm = self.scenario.faults.is_empty() && self.scenario.certificates_last.is_none();
        if is_calm && !matches!(ended, Ended::Closed(_)) {
            return self.broken(format!("a session met an error without a fault: {ended}"));
        }
        self.note(|| {
            let (other, wire) = (line.peer, line.wire);
            format!(
                "process {peer}: its session with {other} on connection {wire} has ended: {ended}"
            )
        });
        self.leave(line.wire, peer)?;
        if self.is(Mischief::IgnoresEnds) {
            return Ok(());
        }
        let now = self.now;
        let mistaken = Ended::Transport(std::io::ErrorKind::ConnectionReset.into());
        let has_left = matches!(ended, Ended::Closed(CloseReason::ShuttingDown));
        let told = match has_left && self.is(Mischief::MistakesLeaving) {
            true => &mistaken,
            false => ended,
        };
        let own = &mut self.peers[peer];
        self.report.renewed += u64::from(matches!(ended, Ended::Closed(CloseReason::Expired)));
        let bound = own.bound.iter();
        let carried = bound.filter(|(_, bound)| {
            let place = own.machine.session_of(**bound);
            place.is_some_and(|(session, _)| session == id)
        });
        let carried: Vec<usize> = carried.map(|(number, _)| *number).collect();
        let happened = own.machine.end(id, told, now);
        let is_over = |one: &Happening| matches!(one, Happening::LinkOver(number, _) if own.calls.get(number).is_some_and(|calls| !calls.is_empty()));
        if has_left && happened.iter().any(is_over) {
            return self.broken(format!(
                "process {peer} drops calls of a process that has left in good order"
            ));
        }
        self.happened(peer, happened)?;
        let mut carried = carried.into_iter();
        match carried.find(|number| self.ledger.bindings[*number].unanswered() > 0) {
            Some(number) if has_left => self.broken(format!(
                "binding {number} waits for a process that has left in good order"
            )),
            _ => Ok(()),
        }
    }

    /// A process is done with a connection.
    pub(super) fn leave(&mut self, number: WireNumber, peer: usize) -> Result<(), Violation> {
        let Some(wire) = self.wires.get_mut(&number) else {
            return Ok(());
        };
        let end = usize::from(wire.peers[0] != peer);
        wire.has_left[end] = true;
        let is_over = wire.has_left == [true; 2];
        self.send(number, end, PeerPiece::End)?;
        if is_over {
            self.wires.remove(&number);
        }
        Ok(())
    }

    pub(super) fn dial(
        &mut self,
        peer: usize,
        want: exoskel_node::links::Want,
    ) -> Result<(), Violation> {
        let remote = want
            .hints
            .first()
            .and_then(|hint| hint.strip_prefix("peer"));
        let Some(remote) = remote.and_then(|number| number.parse::<usize>().ok()) else {
            return self.broken("somebody is dialled without a hint".to_owned());
        };
        let number = self.wires_made;
        self.wires_made += 1;
        let lives = [self.peers[peer].life, self.peers[remote].life];
        let wire = PeerWire::new([peer, remote], lives, &mut self.random);
        self.wires.insert(number, wire);
        let hello = match HelloSent::new(self.offer(peer, remote)) {
            Ok(hello) => hello,
            Err(error) => return self.broken(format!("no Hello: {error}")),
        };
        let said = hello.bytes().to_vec();
        self.peers[peer]
            .dials
            .insert(number, BegunDial { want, hello });
        if self.peers[remote].is_down {
            let at = self.now + self.scenario.link.latency;
            self.agenda.plan(at, PeerEvent::Broken(number, 0));
            return Ok(());
        }
        self.agenda
            .plan(self.now + HANDSHAKE_TIME, PeerEvent::Impatience(number));
        self.send(number, 0, PeerPiece::Hello(said))
    }

    pub(super) fn dial_failed(
        &mut self,
        peer: usize,
        number: WireNumber,
        why: &str,
        is_gone: bool,
    ) -> Result<(), Violation> {
        let Some(dial) = self.peers[peer].dials.remove(&number) else {
            return Ok(());
        };
        self.leave(number, peer)?;
        let mut attempts = FailedAttempts::default();
        attempts.is_gone = is_gone;
        attempts.add(&dial.want.hints.join(", "), why.to_owned(), Hindrance::Way);
        let now = self.now;
        let machine = &mut self.peers[peer].machine;
        let happened = machine.unreachable(&dial.want, &attempts, now);
        self.happened(peer, happened)?;
        self.tend(peer)
    }
}
