//! The driver: gives its machine what happens, and does what it wants.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use exoskel_flow::contract::Tier;
use exoskel_link::handshake::{Refuse, RefuseReason};
use exoskel_link::{CloseReason, Event, LinkId, Message};
use exoskel_node::manager::hints::{HintedPlace, Trial};
use exoskel_node::manager::recruiter::{Listing, Prospect, SlotSource, SlotSources};
use exoskel_node::manager::{
    Arrival, JoinError, JoiningSlot, ManagerAction, ManagerSettings, PieceWanted, Recruited,
};
use exoskel_node::{ManagerMachine, SessionId};
use exoskel_task::message::HeardWorker;
use tokio::sync::Notify;

use super::child_process::ProcessEnd;
use super::children::{Children, Started};
use super::recruit::RecruitingPlace;
use super::status::{self, ManagerStatus};
use super::{
    Attempt, AttemptError, Command, ManagerConfig, Notice, ObservedMessage, Shared, StreamPlan,
};
use crate::address::Address;
use crate::connection::{Connection, Ended};
use crate::discovery::Hearing;
use crate::establish::{Established, NodeConfig, PeerRecord, judge_again};
use crate::host_file::HostLine;
use crate::result_queue::{Origin, ResultQueue, StreamEnd};

/// Messages that wait on a link on which a slot asks for pieces of shared contents. It asks for a few at once, and what waits
/// is no copy.
const PIECES_MAX: usize = 4096;

/// The bytes of functions' pickles that each slot keeps, unless its streams use more.
const FUNCTION_BYTES_MAX: u64 = 64 << 20;

/// Items of a stream that keep all slots busy for a while: what is handed over beyond them may wait.
const WAITING_ITEMS_MIN: u64 = 4096;

/// Workers that dialled in and wait to be called, at most: one connection each.
const WAITING_MAX: usize = 256;

/// Everything that the driver's thread owns.
pub(super) struct ManagerDriver {
    config: ManagerConfig,
    /// Workers that the user has listed, in a file or otherwise.
    listed: Vec<HostLine>,
    /// Workers that are heard, and the numbers of their places.
    heard: BTreeMap<HintedPlace, usize>,
    /// What workers told of others last, where nobody has looked at it yet, by their names.
    hearsay: BTreeMap<String, Vec<HeardWorker>>,
    shared: Arc<Shared>,
    machine: ManagerMachine,
    epoch: Instant,
    peers: HashMap<SessionId, SlotPeer>,
    /// Where the outcomes of each stream go.
    queues: HashMap<u64, Arc<ResultQueue>>,
    children: Children,
    /// Streams whose users need not tell of further items.
    plenty: Vec<u64>,
    /// Where slots are to be asked for.
    wishes: Vec<RecruitingPlace>,
    /// Sessions with something queued.
    dirty: Vec<SessionId>,
    /// How recruiting stood when users were last told.
    told: Recruited,
    /// How many slots were wanted then.
    told_wanted: u32,
    /// Users that wait have something to look at.
    has_news: bool,
    /// How often the config has changed since the manager began.
    renewals: u64,
    /// Children that have no session any more.
    leaving: Vec<u32>,
    /// The user has been warned that nobody is left, and nobody has come since.
    is_deserted: bool,
    /// Those who dialled in, have proven who they are, and find no place; they are told when there is one.
    waiting: Rc<Notify>,
    /// When the loop wakes for the machine.
    armed: Option<Duration>,
    is_shutting_down: bool,
}

/// The place of somebody who waits to be called.
pub(super) struct WaitingPlace(Rc<Notify>);

impl WaitingPlace {
    /// Waits until there may be room.
    pub(super) async fn called(&self) {
        self.0.notified().await;
    }
}

/// A session's other end.
struct SlotPeer {
    connection: Arc<Connection>,
    record: PeerRecord,
}

impl ManagerDriver {
    pub(super) fn new(config: ManagerConfig, may_come: bool, shared: Arc<Shared>) -> Self {
        let recruiting = &config.recruiting;
        let hosts = recruiting.hosts.iter().map(|line| line.name.clone());
        let sources = SlotSources {
            slots: recruiting.slots,
            children: recruiting.local.is_some(),
            hosts: hosts.collect(),
            listening: may_come,
        };
        let settings = ManagerSettings {
            scheduler: config.scheduler.clone(),
            message_bytes_max: config.terms.limits.message_bytes_max,
            function_bytes_max: FUNCTION_BYTES_MAX,
            sources,
            patience: recruiting.patience,
            seed: RandomState::new().build_hasher().finish(),
            setup_local: config.setup_local.clone(),
            setup_remote: config.setup_remote.clone(),
            contract: recruiting.contract.clone(),
            has_initializer: config.has_initializer,
            takes_hearsay: config.recruiting.hearing.is_some(),
        };
        let listed = recruiting.hosts.clone();
        let mut machine = ManagerMachine::new(settings);
        machine.set_tiers(&tiers(&config));
        Self {
            config,
            listed,
            heard: BTreeMap::new(),
            hearsay: BTreeMap::new(),
            shared,
            machine,
            epoch: Instant::now(),
            peers: HashMap::new(),
            queues: HashMap::new(),
            children: Children::default(),
            plenty: Vec::new(),
            wishes: Vec::new(),
            dirty: Vec::new(),
            told: Recruited::default(),
            told_wanted: 0,
            has_news: false,
            renewals: 0,
            leaving: Vec::new(),
            is_deserted: false,
            waiting: Rc::default(),
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

    /// So long a child that was started now may take to import what it needs, if it does that first.
    pub(super) fn child_loading_time(&self) -> Option<Duration> {
        let local = self.config.recruiting.local.as_ref();
        local
            .filter(|_| self.children.loads())
            .map(|local| local.loading_time)
    }

    /// Why this child, to which no session has come about, has no process; none if it has one.
    pub(super) fn child_refusal(&mut self, number: u32) -> Option<std::io::Error> {
        self.children.refusal(number)
    }

    /// A child has a session.
    pub(super) fn child_met(&mut self, number: u32) {
        self.children.met(number);
    }

    fn command(&mut self, command: Command) {
        let now = self.now();
        match command {
            Command::Open(number, plan, queue) => self.open(number, plan, queue),
            Command::Admit(number, mut items) => {
                let batch = items.take(Origin::user());
                self.machine.admit(number, batch, now);
                self.note_plenty(number);
            }
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
            Command::CancelWaiting(number, reply) => {
                // What came just before has begun, where a slot was free.
                self.act_all();
                let _ = reply.send(self.machine.cancel_waiting(number, now));
            }
            Command::IsWaiting(number, index, reply) => {
                let _ = reply.send(self.machine.is_waiting(number, index));
            }
            Command::Close(number) => {
                self.queues.remove(&number);
                self.machine.close_stream(number, now);
            }
            Command::Report(reply) => {
                let _ = reply.send(self.machine.report());
            }
            Command::Status(reply) => {
                let _ = reply.send(self.status());
            }
            Command::History(reply) => {
                let history = self.machine.history().changes().cloned();
                let _ = reply.send(history.collect());
            }
            Command::ExpectNobody => {
                self.machine.expect_nobody(now);
                self.act_all();
            }
            Command::Shutdown => self.is_shutting_down = true,
        }
    }

    fn status(&self) -> ManagerStatus {
        let now = self.now();
        let recruited = self.machine.recruited();
        let attempts = self.shared.attempts();
        let hosts = self.config.recruiting.hosts.iter();
        let places = hosts.enumerate().zip(self.machine.places());
        let recruiting = places.filter_map(|((position, host), state)| {
            let place = RecruitingPlace::Host(position, host.clone()).to_string();
            status::line(&place, state, &attempts, now)
        });
        let number = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
        let workers = self.machine.report().into_iter();
        ManagerStatus {
            ready: recruited.ready,
            wanted: number(self.machine.wanted()),
            busy: number(self.machine.busy()),
            streams: self.machine.router().streams().collect(),
            recruiting: recruiting.collect(),
            workers: workers
                .map(|report| {
                    let age = now.saturating_sub(report.since);
                    (report, age)
                })
                .collect(),
        }
    }

    fn open(&mut self, number: u64, plan: StreamPlan, queue: Arc<ResultQueue>) {
        let now = self.now();
        if let Err(error) = self.machine.open(number, plan, now) {
            return queue.end(error.into());
        }
        self.queues.insert(number, queue);
    }

    fn act_all(&mut self) {
        let now = self.now();
        while let Some(action) = self.machine.poll_action(now) {
            self.act(action);
        }
    }

    /// Does everything the machine wants done, and lets it go out.
    fn pump(&mut self) {
        self.act_all();
        for session in self.dirty.drain(..) {
            if let Some(peer) = self.peers.get(&session) {
                peer.connection.flush();
            }
        }
        // This takes a while: whoever goes on has what it is to do by now.
        for child in self.leaving.drain(..) {
            self.children.end(child);
        }
        self.publish();
        self.call_next();
        self.look_for_items();
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
                    let thrown_away = queue.deliver(outcomes);
                    let now = self.now();
                    for (first, count) in thrown_away {
                        self.machine.taken(stream, first, count, now);
                    }
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
            ManagerAction::Total { stream, count } => {
                if let Some(queue) = self.queues.get(&stream) {
                    queue.set_total(count);
                }
            }
            ManagerAction::Ends { stream, ends } => {
                if let Some(queue) = self.queues.get(&stream) {
                    queue.add_ends(ends);
                }
            }
            ManagerAction::LostTrack { stream } => {
                if let Some(queue) = self.queues.get(&stream) {
                    queue.end(StreamEnd::LostTrack);
                }
            }
            ManagerAction::GiveUp { stream, waited } => self.give_up(stream, waited),
            ManagerAction::Start(number) => self.wishes.push(RecruitingPlace::Child(number)),
            ManagerAction::Dial(position) => {
                let line = self.config.recruiting.hosts[position].clone();
                self.wishes.push(RecruitingPlace::Host(position, line));
            }
            ManagerAction::End(number) => self.leaving.push(number),
            ManagerAction::SendPiece {
                session,
                link,
                piece,
            } => self.send_piece(session, link, piece),
            ManagerAction::Hearsay { worker, heard } => {
                self.hearsay.insert(worker, heard);
            }
            ManagerAction::Tell(notice) => self.tell(notice),
            ManagerAction::Wanted(worker) => self.forget_attempts(&worker.to_string()),
            ManagerAction::Unwanted { worker, why } => self.keep(Attempt {
                worker: worker.to_string(),
                place: worker.address,
                is_of_stranger: false,
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
            Ok(()) => {
                self.machine.sent(session, bytes as u64);
                self.observe(session, true, bytes);
            }
            Err(error) => self.machine.not_sent(session, &error),
        }
        if self.dirty.last() != Some(&session) {
            self.dirty.push(session);
        }
    }

    /// Sends a piece of shared contents. Who asks for more than it reads breaks the rules.
    fn send_piece(&mut self, session: SessionId, link: LinkId, piece: PieceWanted) {
        let Some(peer) = self.peers.get(&session) else {
            return;
        };
        let waiting = peer
            .connection
            .with(|session| session.queued_messages(link));
        if waiting >= PIECES_MAX {
            let text = format!(
                "got a wish for shared contents while {waiting} messages wait to be read, expected fewer than {PIECES_MAX}"
            );
            return peer.connection.abort(CloseReason::Fault(text.into()));
        }
        let contents = self
            .config
            .shared
            .piece(&piece.digest, piece.offset, piece.bytes);
        self.queue(session, link, piece.message(contents));
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
        let wanted = u32::try_from(self.machine.wanted()).unwrap_or(u32::MAX);
        if wanted != self.told_wanted {
            self.told_wanted = wanted;
            self.shared
                .change_readiness(|readiness| readiness.wanted = wanted);
        }
        if std::mem::take(&mut self.has_news) {
            // A user thread that waits looks at the notices.
            for queue in self.queues.values() {
                queue.notify();
            }
        }
    }

    /// With many items there is no need to hear of each further one.
    fn note_plenty(&mut self, stream: u64) {
        let Some(queue) = self.queues.get(&stream) else {
            return;
        };
        if self.machine.waiting(stream) >= WAITING_ITEMS_MIN && !queue.has_plenty() {
            queue.set_plenty(true);
            self.plenty.push(stream);
        }
    }

    /// Looks at what users have left since a stream had many items, if it has few now.
    fn look_for_items(&mut self) {
        let count = self.plenty.len();
        let (machine, queues) = (&self.machine, &self.queues);
        self.plenty.retain(|stream| {
            let has_plenty = machine.waiting(*stream) >= WAITING_ITEMS_MIN;
            if let Some(queue) = queues.get(stream).filter(|_| !has_plenty) {
                queue.set_plenty(false);
            }
            has_plenty
        });
        if self.plenty.len() < count && self.shared.has_commands() {
            self.shared.wake.notify_one();
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
        if self.renewals > 0
            && let Err(reason) = judge_again(&self.config.terms, &established.record, connection)
        {
            connection.abort(CloseReason::NotAllowed(reason.to_string().into()));
            self.attempt_failed(place, reason.into());
            return None;
        }
        let peer = member_of(established);
        let joined =
            connection.with(|session| self.machine.join(place.source(), &peer, session, now));
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
            self.is_deserted = false;
            // What failed there before has got better.
            self.forget_attempts(&place.to_string());
        }
        self.pump();
        session
    }

    /// Somebody who dialled in has proven this name: may it have a session, and when?
    pub(super) fn admit_worker(&mut self, name: &str) -> Result<Arrival, Refuse> {
        let admitted = self.machine.admit_worker(name);
        self.publish();
        self.call_next();
        admitted
    }

    /// How often there were new terms.
    pub(super) fn renewals(&self) -> u64 {
        self.renewals
    }

    /// Sends somebody away whose handshake began before the last new terms: what that handshake agreed on may not hold any more.
    pub(super) fn check_current(&self, renewals: u64) -> Result<(), Refuse> {
        if renewals == self.renewals {
            return Ok(());
        }
        Err(Refuse {
            reason: RefuseReason::Busy,
            text: "the manager's credential, policy or lists have changed since the worker dialled; it has to dial again"
                .into(),
        })
    }

    /// Keeps somebody who waits to be called among the others who do, if there is a place for that.
    pub(super) fn wait_for_room(&self) -> Result<WaitingPlace, Refuse> {
        if Rc::strong_count(&self.waiting) > WAITING_MAX {
            return Err(self.machine.busy_refusal());
        }
        Ok(WaitingPlace(self.waiting.clone()))
    }

    /// Calls the one who has waited longest, if there is room. Whoever then finds none waits again.
    fn call_next(&self) {
        if self.machine.has_room() {
            self.waiting.notify_one();
        }
    }

    /// Somebody who had a place did not get through the handshake.
    pub(super) fn leave_place(&mut self, place: &RecruitingPlace) {
        let now = self.now();
        let prospect = Prospect::Passing;
        self.machine.attempt_failed(place.source(), prospect, now);
        self.pump();
    }

    /// An attempt came to nothing.
    pub(super) fn attempt_failed(&mut self, place: &RecruitingPlace, error: AttemptError) {
        let now = self.now();
        let prospect = match (&error, place.source()) {
            (AttemptError::Start(_), _) => Prospect::Passing,
            // It had everything, and died.
            (_, SlotSource::Child(_)) => Prospect::Doubtful,
            (error, _) if error.may_pass() => Prospect::Passing,
            _ => Prospect::Hopeless,
        };
        self.machine.attempt_failed(place.source(), prospect, now);
        self.note(place.attempt(error));
        self.pump();
    }

    /// How the process of this child ended; none as long as it runs.
    pub(super) fn child_end(&mut self, number: u32) -> Option<ProcessEnd> {
        self.children.process_end(number)
    }

    /// The process behind a session has ended.
    pub(super) fn process_ended(&mut self, session: SessionId, end: &ProcessEnd) {
        if let ProcessEnd::Known(how) = end {
            self.machine.process_ended(session, how);
        }
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
        self.renewals += 1;
        // Those who wait are judged again as well, by a handshake of now.
        self.waiting.notify_waiters();
        self.pump();
    }

    /// Takes up what the host file lists now. Slots that run stay. What it says the first time is known, unless it has changed since.
    pub(super) fn relist(&mut self, lines: Vec<HostLine>, is_first: bool) {
        if is_first && self.listed == lines {
            return;
        }
        let heard: HashSet<usize> = self.heard.values().copied().collect();
        let known = &mut self.config.recruiting.hosts;
        let listing = |(position, line): (usize, &HostLine)| {
            if lines.contains(line) {
                Listing::Anew
            } else if heard.contains(&position) {
                Listing::Kept
            } else {
                Listing::Unlisted
            }
        };
        let listings: Vec<_> = known.iter().enumerate().map(listing).collect();
        let new = lines.iter().filter(|line| !known.contains(line));
        let new: Vec<_> = new.cloned().collect();
        let names = new.iter().map(|line| line.name.clone()).collect();
        known.extend(new);
        self.listed = lines;
        let now = self.now();
        self.machine.relist(&listings, names, now);
        self.machine.set_tiers(&tiers(&self.config));
        self.pump();
    }

    /// Takes up where workers that are heard may be dialled now. Slots that run stay.
    pub(super) fn hear(&mut self, places: &BTreeSet<HintedPlace>) {
        let heard = std::mem::take(&mut self.heard).into_iter();
        let (kept, gone) = heard.partition(|(place, _)| places.contains(place));
        self.heard = kept;
        let gone: BTreeMap<HintedPlace, usize> = gone;
        for (place, position) in gone {
            let line = HostLine::hinted(&place);
            if !self.listed.contains(&line) {
                self.machine.unlist(position);
            }
            let address = line.address.to_string();
            self.shared.change_readiness(|readiness| {
                readiness.attempts.retain(|known| known.place != address);
            });
        }
        let new = places
            .iter()
            .filter(|place| !self.heard.contains_key(place));
        let new: Vec<_> = new.cloned().collect();
        for place in new {
            let HintedPlace { name, address } = &place;
            self.tell(Notice::Audit(format!("heard worker {name} at {address}")));
            let line = HostLine::hinted(&place);
            let hosts = &mut self.config.recruiting.hosts;
            let known = hosts.iter().position(|known| *known == line);
            let position = self.machine.list(known, name);
            match hosts.get_mut(position) {
                Some(known) => *known = line,
                None => hosts.push(line),
            }
            self.heard.insert(place, position);
        }
        self.machine.set_tiers(&tiers(&self.config));
        let now = self.now();
        self.machine.recruit(now);
        self.pump();
    }

    /// How the trial of a worker that was heard stands.
    pub(super) fn trial(&self, place: &HintedPlace) -> Trial {
        let position = self.heard.get(place);
        position.map_or(Trial::Untried, |position| self.machine.trial(*position))
    }

    /// Whether the user has said where the worker of this name is.
    pub(super) fn lists(&self, name: &str) -> bool {
        self.listed.iter().any(|line| line.name == name)
    }

    /// What hears workers, for whoever watches over it.
    pub(super) fn take_hearing(&mut self) -> Option<Hearing> {
        self.config.recruiting.hearing.take()
    }

    /// What one of the workers has told of others, if that is news.
    pub(super) fn take_hearsay(&mut self) -> Option<(String, Vec<HeardWorker>)> {
        self.hearsay.pop_first()
    }

    /// Whether nobody is dialled who is not among these.
    pub(super) fn hears(&self, places: &BTreeSet<HintedPlace>) -> bool {
        self.heard.keys().eq(places)
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
            attempt.keep_in(&mut readiness.attempts);
        });
    }

    fn forget_attempts(&self, worker: &str) {
        self.shared.change_readiness(|readiness| {
            readiness.attempts.retain(|known| known.worker != worker);
        });
    }

    /// Nobody is left to work on a stream and nobody will come: it ends with the reason.
    fn give_up(&mut self, stream: u64, waited: Option<Duration>) {
        let attempts = self.shared.attempts().into();
        let end = StreamEnd::NoWorker { waited, attempts };
        if !std::mem::replace(&mut self.is_deserted, true) {
            self.tell(Notice::Warning(end.to_string()));
        }
        if let Some(queue) = self.queues.get(&stream) {
            queue.end(end);
        }
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

/// What the policy says of the places where workers listen, if they are where their lines say, and who these name.
fn tiers(config: &ManagerConfig) -> Vec<Tier> {
    let tier = |line: &HostLine| expected_tier(&config.terms, line).unwrap_or(Tier::Remote);
    config.recruiting.hosts.iter().map(tier).collect()
}

/// What the policy says of one such place; nothing if its host has a name that has to be looked up.
pub(super) fn expected_tier(terms: &NodeConfig, line: &HostLine) -> Option<Tier> {
    match &line.address {
        Address::Unix(_) => Some(Tier::Trusted),
        Address::Tcp(place) => {
            let address = place.parse::<SocketAddr>().ok()?;
            Some(match terms.expects_in_domain(&line.name, address.ip()) {
                true => Tier::Trusted,
                false => Tier::Remote,
            })
        }
    }
}

/// Who is at the other end, for the machine.
fn member_of(established: &Established) -> JoiningSlot {
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
    JoiningSlot {
        identity: established.peer.identity().clone(),
        address,
        place: transport.peer_text(),
        transport: transport.kind().to_owned(),
        proof: established.proof,
        protections: established.protections,
        own_minimum: established.own_minimum,
        domain: established.domain.clone(),
        is_trusted: established.trusted_results,
        slots: number("slots"),
        pid: number("pid"),
    }
}
