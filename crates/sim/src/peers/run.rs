//! The run: what happens when, and what drivers do about it.

mod bindings;
mod connections;
mod faults;
mod rules;
mod tracing;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use exoskel_determinism::{RunDigest, SplitMix64};
use exoskel_identity::VerifiedIdentity;
use exoskel_link::handshake::ProcessNumber;
use exoskel_link::{CloseReason, Event, Protection, SessionError};
use exoskel_node::SessionId;
use exoskel_node::links::{AcceptedId, Happening, OutgoingMessage, RequestAnswer};

use super::ledger::Ledger;
use super::peer::{PlayedPeer, WireNumber};
use super::scenario::{Mischief, PeersReport, PeersScenario};
use super::trace::TraceEnd;
use super::wire::{PeerPiece, PeerWire};
use crate::agenda::Agenda;
use crate::violation::Violation;

/// Everything has its end so long after the last fault.
const ALLOWANCE: Duration = Duration::from_secs(300);

/// A run with more steps is one without end.
const STEPS_MAX: u64 = 2_000_000;

/// Seconds since 1970 at the start: any time will do at which the peers' certificates are good.
const START_UNIX: u64 = 1_800_000_000;

/// One of so many things goes wrong by mischief.
const MISCHIEF_ONE_IN: u64 = 7;

#[derive(Debug)]
pub(super) enum PeerEvent {
    /// Something comes to an end of a connection.
    Arrive(WireNumber, usize, PeerPiece),
    /// The connection broke: this end is told.
    Broken(WireNumber, usize),
    /// A session wants to know the time.
    Timer(usize, u32, SessionId),
    /// A machine does.
    Wake(usize, u32),
    /// A handshake has taken too long.
    Impatience(WireNumber),
    /// A holder binds its startpoint.
    Bind(usize),
    /// A holder posts or requests.
    Say(usize),
    /// A handler is done.
    Handled(usize, u32, AcceptedId),
    /// A process that ends in good order is gone.
    Left(usize, u32, Duration),
    /// It is looked for startpoints that have expired.
    Expire(usize, u32),
    /// A process takes up its node's rules.
    TakeUp(usize),
    /// A process begins.
    Begin(usize),
    Fault(usize),
    /// Time to see whether all is quiet.
    Look,
}

pub(super) struct PeersRun {
    scenario: PeersScenario,
    people: Vec<VerifiedIdentity>,
    peers: Vec<PlayedPeer>,
    wires: BTreeMap<WireNumber, PeerWire>,
    wires_made: WireNumber,
    /// Who doesn't reach whom.
    blocked: BTreeSet<(usize, usize)>,
    startpoints: BTreeMap<usize, (u32, u64)>,
    /// Whose endpoint each binding leads to: of looked-up ones, that of the process which has answered.
    owners: Vec<usize>,
    /// By the number of a node's name: those whom its rules are against.
    barred: BTreeSet<(usize, String)>,
    /// Messages that each binding has said or tried to.
    tried: Vec<u64>,
    required: Vec<bool>,
    ledger: Ledger,
    agenda: Agenda<PeerEvent>,
    random: SplitMix64,
    /// Of what goes wrong by mischief.
    chance: SplitMix64,
    now: Duration,
    digest: RunDigest,
    report: PeersReport,
    calm_from: Duration,
    /// What happened last, if somebody wants to know.
    trace: Option<TraceEnd>,
}

impl PeersRun {
    pub(super) fn new(
        scenario: PeersScenario,
        people: Vec<VerifiedIdentity>,
        trace: Option<TraceEnd>,
    ) -> Self {
        let mut run = Self {
            people,
            peers: Vec::new(),
            wires: BTreeMap::new(),
            wires_made: 0,
            blocked: BTreeSet::new(),
            startpoints: BTreeMap::new(),
            owners: scenario.bindings.iter().map(|one| one.owner).collect(),
            barred: BTreeSet::new(),
            tried: vec![0; scenario.bindings.len()],
            required: vec![false; scenario.bindings.len()],
            ledger: Ledger::new(scenario.bindings.len()),
            agenda: Agenda::new(),
            random: SplitMix64::new(scenario.seed),
            chance: SplitMix64::new(scenario.seed ^ 0xBAD),
            now: Duration::ZERO,
            digest: RunDigest::default(),
            report: PeersReport::default(),
            calm_from: Duration::ZERO,
            trace,
            scenario,
        };
        for number in 0..run.scenario.peers.len() {
            let peer = run.new_process(0, Protection::Plain);
            run.peers.push(peer);
            run.set_up(number);
        }
        for (number, binding) in run.scenario.bindings.iter().enumerate() {
            run.agenda.plan(binding.begins_at, PeerEvent::Bind(number));
        }
        for (number, (at, _)) in run.scenario.faults.iter().enumerate() {
            run.agenda.plan(*at, PeerEvent::Fault(number));
            run.calm_from = run.calm_from.max(*at);
        }
        run.agenda.plan(Duration::from_secs(1), PeerEvent::Look);
        run
    }

    fn bytes<const N: usize>(&mut self) -> [u8; N] {
        std::array::from_fn(|_| self.random.next_u64() as u8)
    }

    fn new_process(&mut self, life: u32, policy: Protection) -> PlayedPeer {
        let (process, key) = (ProcessNumber::new(self.bytes()), self.bytes());
        PlayedPeer::new(life, process, self.scenario.patience, policy, key)
    }

    pub(super) fn run(mut self) -> Result<PeersReport, Violation> {
        loop {
            let Some((now, event)) = self.agenda.next() else {
                return self.broken("standstill".to_owned());
            };
            self.now = now;
            self.report.steps += 1;
            self.digest.word(now.as_nanos() as u64);
            if self.report.steps > STEPS_MAX {
                return self.broken("no end within the steps allowed".to_owned());
            }
            if matches!(event, PeerEvent::Look) && self.look()? {
                self.report.digest = self.digest.value();
                self.report.ended_at = self.now;
                return Ok(self.report);
            }
            if let Some(event) = self.defer(event) {
                self.note_event(&event);
                self.happen(event)?;
            }
        }
    }

    fn broken<T>(&self, what: String) -> Result<T, Violation> {
        Err(Violation {
            seed: self.scenario.seed,
            step: self.report.steps,
            at: self.now,
            what,
        })
    }

    fn mischief(&mut self, kind: Mischief) -> bool {
        self.scenario.mischief == Some(kind) && self.chance.below(MISCHIEF_ONE_IN) == 0
    }

    fn is(&self, kind: Mischief) -> bool {
        self.scenario.mischief == Some(kind)
    }

    /// Nothing happens at a process that stands still; it comes later.
    fn defer(&mut self, event: PeerEvent) -> Option<PeerEvent> {
        let peer = match &event {
            PeerEvent::Timer(peer, ..)
            | PeerEvent::Wake(peer, _)
            | PeerEvent::Expire(peer, _)
            | PeerEvent::TakeUp(peer)
            | PeerEvent::Handled(peer, ..) => *peer,
            PeerEvent::Say(binding) | PeerEvent::Bind(binding) => {
                self.scenario.bindings[*binding].holder
            }
            PeerEvent::Broken(wire, end) => match self.wires.get(wire) {
                Some(wire) => wire.peers[*end],
                None => return None,
            },
            PeerEvent::Impatience(wire) => match self.wires.get(wire) {
                Some(wire) => wire.peers[0],
                None => return None,
            },
            _ => return Some(event),
        };
        if self.peers[peer].is_held {
            self.peers[peer].deferred.push(event);
            return None;
        }
        Some(event)
    }

    fn happen(&mut self, event: PeerEvent) -> Result<(), Violation> {
        match event {
            PeerEvent::Arrive(number, end, piece) => {
                let Some(wire) = self.wires.get(&number) else {
                    return Ok(());
                };
                let (from, to) = (wire.peers[1 - end], wire.peers[end]);
                let gets_through = !self.blocked.contains(&(from, to)) && !self.peers[to].is_held;
                let wire = self.wires.get_mut(&number);
                match wire.and_then(|wire| wire.arrive(end, piece, gets_through)) {
                    Some(piece) => self.arrive(number, end, piece),
                    None => Ok(()),
                }
            }
            PeerEvent::Broken(number, end) => self.hear_end(number, end),
            PeerEvent::Timer(peer, life, session) => {
                let now = self.now;
                if self.peers[peer].life == life
                    && let Some(line) = self.peers[peer].lines.get_mut(&session)
                {
                    line.timer = None;
                    let _ = line.session.handle_timeout(now);
                    return self.tend(peer);
                }
                Ok(())
            }
            PeerEvent::Wake(peer, life) => {
                if self.peers[peer].life == life && !self.peers[peer].is_down {
                    self.peers[peer].wake = None;
                    return self.tend(peer);
                }
                Ok(())
            }
            PeerEvent::Impatience(number) => {
                let dialler = self.wires.get(&number).map(|wire| wire.peers[0]);
                match dialler {
                    Some(peer) if self.peers[peer].dials.contains_key(&number) => {
                        self.dial_failed(peer, number, "no handshake in time", false)
                    }
                    _ => Ok(()),
                }
            }
            PeerEvent::Bind(binding) => self.bind(binding),
            PeerEvent::Say(binding) => self.say(binding),
            PeerEvent::Handled(peer, life, accepted) => {
                if self.peers[peer].life != life {
                    return Ok(());
                }
                self.handled(peer, accepted)
            }
            PeerEvent::Begin(peer) => {
                let (life, policy) = (self.peers[peer].life + 1, self.peers[peer].policy);
                self.peers[peer] = self.new_process(life, policy);
                self.set_up(peer);
                Ok(())
            }
            PeerEvent::Left(peer, life, restart) => {
                if self.peers[peer].life != life {
                    return Ok(());
                }
                self.kill(peer, false, restart)
            }
            PeerEvent::Expire(peer, life) => {
                if self.peers[peer].life != life || self.peers[peer].is_down {
                    return Ok(());
                }
                self.expire(peer)
            }
            PeerEvent::TakeUp(peer) => {
                if self.peers[peer].is_down {
                    return Ok(());
                }
                self.take_up_rules(peer)
            }
            PeerEvent::Fault(number) => self.fault(number),
            PeerEvent::Look => {
                let at = self.now + Duration::from_millis(500);
                self.agenda.plan(at, PeerEvent::Look);
                Ok(())
            }
        }
    }

    fn queue(&mut self, peer: usize, outgoing: OutgoingMessage) -> Result<(), Violation> {
        if self.mischief(Mischief::LosesMessages) {
            return Ok(());
        }
        let own = &mut self.peers[peer];
        let (session, link) = (outgoing.session, outgoing.link);
        let Some(line) = own.lines.get_mut(&session) else {
            return self.broken("a message is for a session that has ended".to_owned());
        };
        match line.session.send(link, outgoing.message) {
            Ok(()) => Ok(()),
            Err(SessionError::Limit { .. }) => {
                own.machine.take_back(session, link);
                self.broken("a message is too large".to_owned())
            }
            Err(_) if own.machine.outlives(session, link) => Ok(()),
            Err(error) => self.broken(format!("a message can't be sent: {error}")),
        }
    }

    fn events(&mut self, peer: usize, id: SessionId, events: Vec<Event>) -> Result<(), Violation> {
        for event in events {
            let now_unix = START_UNIX + self.now.as_secs();
            let own = &mut self.peers[peer];
            let policy = match self.scenario.mischief {
                Some(Mischief::IgnoresPolicies) => Protection::Plain,
                _ => own.policy,
            };
            let policy = |_: &str| policy;
            let Some(line) = own.lines.get_mut(&id) else {
                return Ok(());
            };
            let happened =
                own.machine
                    .event(id, &mut line.session, event, &policy, now_unix, self.now);
            match happened {
                Ok(happened) => self.happened(peer, happened)?,
                Err(error) => return self.broken(format!("the peer is at fault: {error}")),
            }
        }
        Ok(())
    }

    fn happened(&mut self, peer: usize, happened: Vec<Happening>) -> Result<(), Violation> {
        for one in happened {
            match one {
                Happening::Call(call) => {
                    if self.mischief(Mischief::LosesCalls) {
                        continue;
                    }
                    self.call(peer, &call)?;
                    if self.mischief(Mischief::RepeatsCalls) {
                        self.call(peer, &call)?;
                    }
                    let accepted = call.accepted;
                    self.peers[peer]
                        .calls
                        .entry(accepted)
                        .or_default()
                        .push_back(call);
                    self.next_call(peer, accepted);
                }
                // What has come by it is handled.
                Happening::LinkClosed(accepted, _) => {
                    self.peers[peer].closed.insert(accepted);
                }
                Happening::LinkOver(accepted, _) => {
                    let dropped = self.peers[peer].calls.remove(&accepted);
                    let is_dropped = dropped.is_some_and(|calls| !calls.is_empty());
                    if is_dropped && self.peers[peer].closed.contains(&accepted) {
                        return self.broken(format!(
                            "process {peer} has not handled what came before a link was closed"
                        ));
                    }
                    self.peers[peer].busy.remove(&accepted);
                }
                Happening::Close(id) => {
                    self.report.surplus += 1;
                    if !self.is(Mischief::KeepsSurplus)
                        && let Some(line) = self.peers[peer].lines.get_mut(&id)
                    {
                        line.session.close(CloseReason::Finished);
                    }
                }
                Happening::Answered(request, answer) => {
                    if self.mischief(Mischief::LosesOutcomes) {
                        continue;
                    }
                    self.answered(peer, request, &answer)?;
                    if self.mischief(Mischief::RepeatsOutcomes) {
                        self.answered(peer, request, &answer)?;
                    }
                }
                Happening::Audit(line) | Happening::Warning(line) => {
                    self.note(|| format!("process {peer}: {line}"));
                    self.report.resumed += u64::from(line.starts_with("resumed"));
                    self.report.refused += u64::from(line.starts_with("refused"));
                }
            }
        }
        Ok(())
    }

    fn answered(
        &mut self,
        peer: usize,
        request: u64,
        answer: &RequestAnswer,
    ) -> Result<(), Violation> {
        if let Some((binding, lookup)) = self.peers[peer].lookups.remove(&request) {
            return self.looked_up(peer, binding, lookup, answer);
        }
        let own: Vec<usize> = self.peers[peer].bound.keys().copied().collect();
        let binding = self.ledger.binding_of(request, &own);
        let Some(binding) = binding else {
            return self.broken(format!("request {request} of peer {peer} has two outcomes"));
        };
        if let Err(what) = self.ledger.answered(peer, binding, request, answer) {
            return self.broken(what);
        }
        match answer {
            RequestAnswer::Reply { .. } => self.report.replies += 1,
            RequestAnswer::Failure { .. } => {
                return self.broken("a handler failed".to_owned());
            }
            RequestAnswer::Lost(error) => {
                self.report.lost += 1;
                let ledger = &self.ledger.bindings[binding];
                // All requests of a link are lost together.
                if ledger.said > 0 {
                    self.loss(binding, &error.to_string())?;
                }
            }
        }
        Ok(())
    }

    /// A call has come: may its caller do that?
    fn call(&mut self, peer: usize, call: &exoskel_node::links::LinkCall) -> Result<(), Violation> {
        self.report.calls += 1;
        let saying = match self.ledger.call(call) {
            Ok(saying) => saying,
            Err(what) => return self.broken(what),
        };
        let binding = &self.scenario.bindings[saying.binding];
        let ledger = &self.ledger.bindings[saying.binding];
        let own = &self.peers[peer];
        let expires = binding.expires.map(|at| START_UNIX + at.as_secs());
        let why = if self.owners[saying.binding] != peer {
            "to another's endpoint"
        } else if own.barred.contains(call.peer.name()) {
            "that rules are against"
        } else if binding.is_looked_up {
            match self.is_allowed(peer, binding.holder, &call.handler) {
                true => return Ok(()),
                false => "that no rule allows",
            }
        } else if binding.is_foreign {
            "by somebody for whom its startpoint isn't"
        } else if expires.is_some_and(|at| at <= own.expiry_seen) {
            "by a startpoint that has expired"
        } else if binding.is_narrowed && call.handler != "note" {
            "by a handler that its startpoint leaves out"
        } else if ledger.is_revoked {
            "by a startpoint that was revoked"
        } else if call.peer.name() != self.name(binding.holder) {
            "in another's name"
        } else {
            return Ok(());
        };
        self.broken(format!("a call came {why}"))
    }

    /// Calls of one link are handled one after the other.
    fn next_call(&mut self, peer: usize, accepted: AcceptedId) {
        let own = &mut self.peers[peer];
        let waits = own
            .calls
            .get(&accepted)
            .is_some_and(|calls| !calls.is_empty());
        if waits && own.busy.insert(accepted) {
            let most = Duration::from_millis(if self.random.below(20) == 0 { 800 } else { 5 });
            let at = self.now + self.random.between(Duration::ZERO, most);
            let event = PeerEvent::Handled(peer, self.peers[peer].life, accepted);
            self.agenda.plan(at, event);
        }
    }

    fn handled(&mut self, peer: usize, accepted: AcceptedId) -> Result<(), Violation> {
        if self.is(Mischief::ForgetsClosed) && self.peers[peer].closed.contains(&accepted) {
            return Ok(());
        }
        let own = &mut self.peers[peer];
        own.busy.remove(&accepted);
        let Some(call) = own
            .calls
            .get_mut(&accepted)
            .and_then(|calls| calls.pop_front())
        else {
            return Ok(());
        };
        let contents = exoskel_node::links::MessageContents {
            head: call.head.clone(),
            bulk: call.bulk.iter().cloned().map(Into::into).collect(),
            is_gathered: false,
        };
        let outgoing = own.machine.answer(&call, contents, false);
        let place = own.machine.handled(&call);
        if let Some(outgoing) = outgoing {
            self.queue(peer, outgoing)?;
        }
        if let Some((session, link)) = place
            && let Some(line) = self.peers[peer].lines.get_mut(&session)
        {
            line.session.consumed(link, call.size);
        }
        self.next_call(peer, accepted);
        self.tend(peer)
    }

    /// Does what a driver does when something has happened: writes, takes ends in, dials, keeps time.
    fn tend(&mut self, peer: usize) -> Result<(), Violation> {
        if self.peers[peer].is_down {
            return Ok(());
        }
        loop {
            self.write(peer)?;
            let lines = self.peers[peer].lines.iter();
            let ended = lines
                .filter_map(|(id, line)| Some((*id, line.session.ended()?)))
                .next();
            let Some((id, ended)) = ended else {
                break;
            };
            self.session_ended(peer, id, &ended)?;
        }
        let now = self.now;
        let own = &mut self.peers[peer];
        let lost = own.machine.give_up(now);
        self.happened(peer, lost)?;
        let ids: Vec<SessionId> = self.peers[peer].lines.keys().rev().copied().collect();
        for id in ids {
            let own = &mut self.peers[peer];
            let policy = match self.scenario.mischief {
                Some(Mischief::IgnoresPolicies) => Protection::Plain,
                _ => own.policy,
            };
            if let Some(line) = own.lines.get_mut(&id) {
                let happened = own.machine.attach(id, &mut line.session, &|_: &str| policy);
                self.happened(peer, happened)?;
            }
        }
        if !self.peers[peer].is_leaving {
            let wants = self.peers[peer].machine.take_wants(now);
            for want in wants {
                self.dial(peer, want)?;
            }
        }
        self.write(peer)?;
        let own = &mut self.peers[peer];
        let life = own.life;
        for (id, line) in &mut own.lines {
            let due = line.session.next_timeout().map(|due| due.max(now));
            if let Some(due) = due.filter(|due| line.timer.is_none_or(|timer| *due < timer)) {
                line.timer = Some(due);
                self.agenda.plan(due, PeerEvent::Timer(peer, life, *id));
            }
        }
        // A process that leaves doesn't dial any more.
        let due = own.machine.next_timeout().filter(|_| !own.is_leaving);
        let due = due.map(|due| due.max(now));
        if let Some(due) = due.filter(|due| own.wake.is_none_or(|wake| *due < wake)) {
            own.wake = Some(due);
            self.agenda.plan(due, PeerEvent::Wake(peer, life));
        }
        Ok(())
    }

    /// Whether all is said, has come and is answered; it must be so in time.
    fn look(&self) -> Result<bool, Violation> {
        let mut missing = Vec::new();
        for (number, binding) in self.scenario.bindings.iter().enumerate() {
            let ledger = &self.ledger.bindings[number];
            let holder = &self.peers[binding.holder];
            let is_bound = holder.bound.contains_key(&number);
            if !is_bound && binding.is_looked_up && !ledger.is_orphan && !ledger.is_unlisted {
                missing.push(format!("binding {number}: not looked up"));
                continue;
            }
            if !is_bound && self.now > binding.begins_at {
                continue;
            }
            let left = binding.messages - self.tried[number];
            let (unheard, unanswered) = ledger.missing();
            let may_lose = self.may_lose(number);
            let is_calm = self.scenario.faults.is_empty();
            if left > 0 || unanswered > 0 || (unheard > 0 && !may_lose && ledger.must_come(is_calm))
            {
                missing.push(format!(
                    "binding {number}: {left} messages not said, {unheard} not come, {unanswered} not answered"
                ));
            }
        }
        for (number, peer) in self.peers.iter().enumerate() {
            let waiting: usize = peer.calls.values().map(VecDeque::len).sum();
            if waiting > 0 && !peer.is_down {
                missing.push(format!("process {number}: {waiting} calls not handled"));
            }
        }
        let surplus = self.surplus();
        if let Some((one, other, count)) = surplus {
            missing.push(format!("{count} sessions between {one} and {other}"));
        }
        if missing.is_empty() && self.now > self.calm_from {
            return Ok(true);
        }
        if self.now > self.calm_from + ALLOWANCE {
            return self.broken(format!("no end: {}", missing.join("; ")));
        }
        Ok(false)
    }

    /// Two processes that have more than one session.
    fn surplus(&self) -> Option<(usize, usize, usize)> {
        for (number, peer) in self.peers.iter().enumerate() {
            let mut counts = BTreeMap::new();
            for line in peer.lines.values() {
                let count: &mut usize = counts.entry(line.peer).or_default();
                *count += 1;
                if *count > 1 {
                    return Some((number, line.peer, *count));
                }
            }
        }
        None
    }
}
