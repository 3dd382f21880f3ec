//! The driver: gives its machine what happens, and does what it wants.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use exoskel_link::handshake::Refuse;
use exoskel_link::{CloseReason, Event, LinkId, Message};
use exoskel_node::manager::recruiter::SlotSources;
use exoskel_node::manager::{JoinError, ManagerAction, ManagerSettings, Member, Recruited};
use exoskel_node::{ManagerMachine, SessionId};

use super::children::{Children, Started};
use super::recruit::RecruitingPlace;
use super::{
    Attempt, AttemptError, Command, ManagerConfig, Notice, ObservedMessage, Shared, StreamPlan,
};
use crate::connection::{Connection, Ended};
use crate::establish::{Established, NodeConfig, PeerRecord, judge_again};
use crate::result_queue::{ResultQueue, StreamEnd};

/// Places where attempts have failed, of which the last one is kept for the user.
const ATTEMPTS_KEPT: usize = 1000;

/// Everything that the driver's thread owns.
pub(super) struct ManagerDriver {
    config: ManagerConfig,
    shared: Arc<Shared>,
    machine: ManagerMachine,
    epoch: Instant,
    peers: HashMap<SessionId, SlotPeer>,
    /// Where the outcomes of each stream go.
    queues: HashMap<u64, Arc<ResultQueue>>,
    children: Children,
    /// Where slots are to be asked for.
    wishes: Vec<RecruitingPlace>,
    /// Sessions with something queued.
    dirty: Vec<SessionId>,
    /// How recruiting stood when users were last told.
    told: Recruited,
    /// Users that wait have something to look at.
    has_news: bool,
    /// The config has changed since the manager began.
    has_renewed: bool,
    /// How all streams ended, if nobody is left.
    given_up: Option<StreamEnd>,
    /// When the loop wakes for the machine.
    armed: Option<Duration>,
    is_shutting_down: bool,
}

/// A session's other end.
struct SlotPeer {
    connection: Arc<Connection>,
    record: PeerRecord,
}

impl ManagerDriver {
    pub(super) fn new(config: ManagerConfig, is_listening: bool, shared: Arc<Shared>) -> Self {
        let recruiting = &config.recruiting;
        let hosts = recruiting.hosts.iter().map(|line| line.name.clone());
        let sources = SlotSources {
            slots: recruiting.slots,
            children: recruiting.local.is_some(),
            hosts: hosts.collect(),
            listening: is_listening,
        };
        let settings = ManagerSettings {
            scheduler: config.scheduler.clone(),
            message_bytes_max: config.terms.limits.message_bytes_max,
            sources,
            setup_local: config.setup_local.clone(),
            setup_remote: config.setup_remote.clone(),
        };
        Self {
            config,
            shared,
            machine: ManagerMachine::new(settings),
            epoch: Instant::now(),
            peers: HashMap::new(),
            queues: HashMap::new(),
            children: Children::default(),
            wishes: Vec::new(),
            dirty: Vec::new(),
            told: Recruited::default(),
            has_news: false,
            has_renewed: false,
            given_up: None,
            armed: None,
            is_shutting_down: false,
        }
    }

    fn now(&self) -> Duration {
        self.epoch.elapsed()
    }

    /// What every handshake begins with.
    pub(super) fn terms(&self) -> &NodeConfig {
        &self.config.terms
    }

    pub(super) fn is_shutting_down(&self) -> bool {
        self.is_shutting_down
    }

    /// Begins to recruit.
    pub(super) fn begin(&mut self) {
        self.machine.recruit(self.now());
        self.pump();
    }

    /// Does what users want.
    pub(super) fn take_commands(&mut self) {
        for command in self.shared.take_commands() {
            self.command(command);
        }
        self.pump();
    }

    /// When the loop has to wake at the latest, and the time now.
    pub(super) fn arm(&mut self) -> (Option<Duration>, Duration) {
        self.armed = self.machine.next_timeout();
        (self.armed, self.now())
    }

    /// Where slots are to be asked for now.
    pub(super) fn take_wishes(&mut self) -> Vec<RecruitingPlace> {
        std::mem::take(&mut self.wishes)
    }

    /// Starts the child of this number.
    pub(super) fn start_child(&mut self, number: u32) -> Started {
        let local = self.config.recruiting.local.as_ref();
        self.children.start(local, number)
    }

    fn command(&mut self, command: Command) {
        let now = self.now();
        match command {
            Command::Open(number, plan, queue) => self.open(number, plan, queue),
            Command::Admit(number, batch) => self.machine.admit(number, batch, now),
            Command::EndOfInput(number) => self.machine.end_of_input(number, now),
            Command::Taken {
                stream,
                first,
                count,
            } => self.machine.taken(stream, first, count, now),
            Command::Cancel(number, index, reply) => {
                // The user may have gone; then nobody needs the answer.
                let _ = reply.send(self.machine.cancel(number, index, now));
            }
            Command::Close(number) => {
                self.queues.remove(&number);
                self.machine.close_stream(number, now);
            }
            Command::Report(reply) => {
                let _ = reply.send(self.machine.report());
            }
            Command::Shutdown => self.is_shutting_down = true,
        }
    }

    fn open(&mut self, number: u64, plan: StreamPlan, queue: Arc<ResultQueue>) {
        let now = self.now();
        if let Err(error) = self.machine.open(number, plan, now) {
            return queue.end(error.into());
        }
        if let Some(end) = &self.given_up {
            queue.end(end.clone());
        }
        self.queues.insert(number, queue);
    }

    /// Does everything the machine wants done, and lets it go out.
    fn pump(&mut self) {
        let now = self.now();
        while let Some(action) = self.machine.poll_action(now) {
            self.act(action);
        }
        for session in self.dirty.drain(..) {
            if let Some(peer) = self.peers.get(&session) {
                peer.connection.flush();
            }
        }
        self.publish();
        let next = self.machine.next_timeout();
        let is_earlier = next.is_some_and(|next| self.armed.is_none_or(|armed| next < armed));
        if is_earlier || !self.wishes.is_empty() {
            self.shared.wake.notify_one();
        }
    }

    fn act(&mut self, action: ManagerAction) {
        match action {
            ManagerAction::Send {
                session,
                link,
                message,
            } => self.queue(session, link, message),
            ManagerAction::Deliver { stream, outcomes } => {
                if let Some(queue) = self.queues.get(&stream) {
                    queue.deliver(outcomes);
                }
            }
            ManagerAction::LimitReception { session, bytes } => {
                if let Some(peer) = self.peers.get(&session) {
                    peer.connection.limit_reception(bytes);
                }
            }
            ManagerAction::Close { session, reason } => {
                if let Some(peer) = self.peers.get(&session) {
                    peer.connection.close(reason);
                }
            }
            ManagerAction::Abort { session, reason } => {
                if let Some(peer) = self.peers.get(&session) {
                    peer.connection.abort(reason);
                }
            }
            ManagerAction::LostTrack { stream } => {
                if let Some(queue) = self.queues.get(&stream) {
                    queue.end(StreamEnd::LostTrack);
                }
            }
            ManagerAction::GiveUp => self.give_up(),
            ManagerAction::Start(number) => self.wishes.push(RecruitingPlace::Child(number)),
            ManagerAction::Dial(position) => {
                let line = self.config.recruiting.hosts[position].clone();
                self.wishes.push(RecruitingPlace::Host(position, line));
            }
            ManagerAction::End(number) => self.children.end(number),
            ManagerAction::Tell(notice) => self.tell(notice),
            ManagerAction::Unwanted { worker, why } => self.keep(Attempt {
                worker: worker.to_string(),
                place: worker.address,
                error: Arc::new(why.into()),
            }),
        }
    }

    fn queue(&mut self, session: SessionId, link: LinkId, message: Message) {
        let Some(peer) = self.peers.get(&session) else {
            return;
        };
        let bytes = message.head.len() + message.bulk.iter().map(Bytes::len).sum::<usize>();
        match peer.connection.queue(link, message) {
            Ok(()) => self.observe(session, true, bytes),
            Err(error) => self.machine.not_sent(session, &error),
        }
        if self.dirty.last() != Some(&session) {
            self.dirty.push(session);
        }
    }

    fn observe(&mut self, session: SessionId, is_sent: bool, bytes: usize) {
        if let Some(observer) = &mut self.config.observer {
            observer(ObservedMessage {
                slot: session.0,
                is_sent,
                bytes: bytes as u64,
                at: self.epoch.elapsed(),
            });
        }
    }

    /// Tells user threads how many items they may hand over, whether they should hurry, and how recruiting stands.
    fn publish(&mut self) {
        for opening in self.machine.openings() {
            if let Some(queue) = self.queues.get(&opening.stream) {
                queue.set_admissible(opening.admissible);
                queue.set_hungry(opening.is_hungry);
            }
        }
        let recruited = self.machine.recruited();
        if recruited != self.told {
            self.has_news |= recruited.is_final != self.told.is_final;
            self.told = recruited;
            self.shared.change_readiness(|readiness| {
                readiness.ready = recruited.ready;
                readiness.pending = recruited.pending;
                readiness.is_final = recruited.is_final;
            });
        }
        if std::mem::take(&mut self.has_news) {
            // A user thread that waits looks at the notices.
            for queue in self.queues.values() {
                queue.notify();
            }
        }
    }

    /// Something has happened in a session.
    pub(super) fn event(&mut self, session: SessionId, event: Event) {
        if let Event::Message {
            link,
            head,
            bulk,
            size,
            ..
        } = &event
        {
            let Some(peer) = self.peers.get(&session) else {
                return;
            };
            peer.connection.consumed(*link, *size);
            if !bulk.is_empty() {
                // The connection that just gave buffers away is the one that needs some.
                for spent in self.shared.take_spent() {
                    peer.connection.recycle(spent);
                }
            }
            let bytes = head.len() + bulk.iter().map(Vec::len).sum::<usize>();
            self.observe(session, false, bytes);
        }
        self.machine.event(session, event, self.now());
        self.pump();
    }

    /// A session has been made. Gives the number that it is served under, if it is of use.
    pub(super) fn join(
        &mut self,
        place: &RecruitingPlace,
        established: &Established,
    ) -> Option<SessionId> {
        let now = self.now();
        let connection = &established.connection;
        // The handshake began with what was in force then, and may have taken long.
        if self.has_renewed
            && let Err(reason) = judge_again(&self.config.terms, &established.record, connection)
        {
            connection.abort(CloseReason::NotAllowed(reason.to_string().into()));
            self.attempt_failed(place, reason.into());
            return None;
        }
        let member = member_of(established);
        let joined =
            connection.with(|session| self.machine.join(place.source(), &member, session, now));
        let session = joined
            .map_err(|error| {
                if let JoinError::Unwanted(why) = &error {
                    connection.abort(CloseReason::NotAllowed(why.refusal().into()));
                }
                self.note(place.attempt(error.into()));
            })
            .ok();
        if let Some(session) = session {
            let peer = SlotPeer {
                connection: connection.clone(),
                record: established.record.clone(),
            };
            self.peers.insert(session, peer);
            // What failed there before has got better.
            let worker = place.to_string();
            self.shared.change_readiness(|readiness| {
                readiness.attempts.retain(|known| known.worker != worker);
            });
        }
        self.pump();
        session
    }

    /// Somebody who dialled in has proven this name; keeps a place for it if it may have a session.
    pub(super) fn admit_worker(&mut self, name: &str) -> Result<(), Refuse> {
        let admitted = self.machine.admit_worker(name);
        self.publish();
        admitted
    }

    /// Somebody who had a place did not get through the handshake.
    pub(super) fn leave_place(&mut self, place: &RecruitingPlace) {
        let now = self.now();
        self.machine.attempt_failed(place.source(), false, now);
        self.pump();
    }

    /// An attempt came to nothing.
    pub(super) fn attempt_failed(&mut self, place: &RecruitingPlace, error: AttemptError) {
        let (is_final, now) = (!error.may_pass(), self.now());
        self.machine.attempt_failed(place.source(), is_final, now);
        self.note(place.attempt(error));
        self.pump();
    }

    /// A session is over.
    pub(super) fn ended(&mut self, session: SessionId, ended: &Ended) {
        self.peers.remove(&session);
        self.machine.ended(session, ended, self.now());
        self.pump();
    }

    /// Takes up new terms, and judges all sessions by them.
    pub(super) fn take_up(&mut self, terms: NodeConfig) {
        let peers = &self.peers;
        self.machine.judge_again(|session| {
            peers.get(&session).map_or(Ok(()), |peer| {
                judge_again(&terms, &peer.record, &peer.connection)
            })
        });
        self.config.terms = terms;
        self.has_renewed = true;
        self.pump();
    }

    /// Tells the user something.
    pub(super) fn tell(&mut self, notice: Notice) {
        self.has_news |= !matches!(notice, Notice::Audit(_));
        self.shared.notice(notice);
    }

    fn note(&mut self, attempt: Attempt) {
        self.tell(Notice::Audit(format!("no session with {attempt}")));
        self.keep(attempt);
    }

    /// Keeps an attempt for the user, in the place of an earlier one there.
    pub(super) fn keep(&mut self, attempt: Attempt) {
        self.has_news = true;
        self.shared.change_readiness(|readiness| {
            let attempts = &mut readiness.attempts;
            attempts.retain(|known| known.worker != attempt.worker);
            attempts.push(attempt);
            let surplus = attempts.len().saturating_sub(ATTEMPTS_KEPT);
            attempts.drain(..surplus);
        });
    }

    /// Nobody is left to work and nobody can be found: all streams end with the reason.
    fn give_up(&mut self) {
        let end = StreamEnd::NoWorker(self.shared.attempts().into());
        for queue in self.queues.values() {
            queue.end(end.clone());
        }
        self.tell(Notice::Warning(end.to_string()));
        self.given_up = Some(end);
    }

    /// Ends all streams and, in order, all sessions.
    pub(super) fn shut_down(&mut self) {
        for queue in self.queues.values() {
            queue.end(StreamEnd::Closed);
        }
        self.machine.close();
        self.pump();
    }

    /// Whether sessions go on.
    pub(super) fn has_sessions(&self) -> bool {
        self.machine.sessions() > 0
    }

    /// The children, for whoever waits for their end.
    pub(super) fn take_children(&mut self) -> Children {
        std::mem::take(&mut self.children)
    }
}

/// Who is at the other end, for the machine.
fn member_of(established: &Established) -> Member {
    let transport = established.connection.transport();
    let address = transport
        .addresses()
        .map(|(_, peer)| peer.ip().to_string())
        .or_else(|| Some(transport.unix_path()?.display().to_string()))
        .unwrap_or_default();
    let number = |name| {
        let said = established.property(name)?;
        said.raw_for_comparison().parse::<u32>().ok()
    };
    Member {
        identity: established.peer.identity().clone(),
        address,
        place: transport.peer_text(),
        transport: transport.kind().to_owned(),
        proof: established.proof,
        protections: established.protections,
        domain: established.domain.clone(),
        is_trusted: established.trusted_results,
        slots: number("slots"),
        pid: number("pid"),
    }
}
