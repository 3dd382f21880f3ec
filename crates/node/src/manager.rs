//! The machine of a manager: its slots, what they are told and what they say, and who is asked for more of them.

mod answers;
pub mod backoff;
pub mod breaks;
mod contract;
mod hearsay;
pub mod hints;
pub mod history;
pub mod initializers;
pub mod joining_slot;
mod membership;
pub mod notice;
mod patience;
pub mod recruiter;
pub mod worker_table;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use exoskel_flow::SchedulerConfig;
use exoskel_flow::contract::{Contract, Planner, Tier};
use exoskel_link::{CloseReason, Endpoint, LinkId, Message, MessageKind, SessionError};
use exoskel_task::Router;
use exoskel_task::message::{
    Digest, EncodedMessage, HEARD_HANDLER, HeardWorker, RESULT_ENDPOINT, RESULT_HANDLERS,
    SlotEndpoint, ToSlot,
};
use exoskel_task::outcome::{Origin, Outcomes};
use exoskel_task::payload::Batch;
use exoskel_task::router::{Effect, OpenError, Opening, StreamPlan};

use self::breaks::Breaks;
use self::hearsay::Tellings;
use self::hints::Trial;
use self::history::History;
use self::initializers::InitializerFailures;
pub use self::joining_slot::JoiningSlot;
pub use self::membership::{Arrival, JoinError};
use self::notice::{Notice, Unwanted};
use self::patience::Patience;
use self::recruiter::{Listing, PlaceState, Recruiter, SlotSource, SlotSources, Wish};
use self::worker_table::{WorkerKey, WorkerReport, WorkerTable};
use crate::endpoints::Endpoints;
use crate::session::SessionId;

/// What a slot may have under way besides results: heads, output in pieces, what it lacks.
const BESIDES_RESULTS_BYTES: u64 = 1 << 20;

/// Workers of which the user was told that they get no items, of which it is remembered.
const UNWANTED_MAX: usize = 1000;

/// Why a slot is given up that neither answers nor ends.
const UNANSWERED: &str = "it has neither answered for an item in time nor ended";

/// What a manager decides by.
#[derive(Clone, Debug)]
pub struct ManagerSettings {
    /// The scheduler's limits.
    pub scheduler: SchedulerConfig,
    /// The most bytes of a message.
    pub message_bytes_max: u64,
    /// The bytes of functions' pickles that each slot keeps, unless its streams use more.
    pub function_bytes_max: u64,
    /// Where slots come from.
    pub sources: SlotSources,
    /// How long runs wait for a slot when none is left.
    pub patience: Duration,
    /// Of the random part of the pauses between attempts.
    pub seed: u64,
    /// What slots get before any code (opaque here), those of this process's children.
    pub setup_local: Bytes,
    /// The same for all others.
    pub setup_remote: Bytes,
    /// How many slots there are to be; as many as the sources say if that is none.
    pub contract: Option<Contract>,
    /// Slots run an initializer when they have that, and work when it has come to its end.
    pub has_initializer: bool,
    /// Workers may tell of others that they hear.
    pub takes_hearsay: bool,
}

/// What the driver has to do.
#[derive(Debug)]
pub enum ManagerAction {
    /// Queue a message on a session. Sessions write when there is no action left; who can't take the message tells the
    /// machine by [`ManagerMachine::not_sent`].
    Send {
        /// The session.
        session: SessionId,
        /// The link.
        link: LinkId,
        /// The message.
        message: Message,
    },
    /// Hold the peer to so many bytes from now on, before anything more is written to it.
    LimitReception {
        /// The session.
        session: SessionId,
        /// The bytes.
        bytes: u64,
    },
    /// End a session in order.
    Close {
        /// The session.
        session: SessionId,
        /// Why.
        reason: CloseReason,
    },
    /// End a session at once.
    Abort {
        /// The session.
        session: SessionId,
        /// Why.
        reason: CloseReason,
    },
    /// Hand outcomes to the stream's user.
    Deliver {
        /// The stream.
        stream: u64,
        /// What became of its items.
        outcomes: Outcomes,
    },
    /// It is known how many outcomes a stream has whose items are made into others.
    Total {
        /// The stream.
        stream: u64,
        /// How many.
        count: u64,
    },
    /// Further items have been made into all that they are made into. Comes before the outcomes behind them.
    Ends {
        /// The stream.
        stream: u64,
        /// For each of them, in order: how many outcomes there are up to its last one.
        ends: Vec<u64>,
    },
    /// The stream can't go on: the input of an item is gone, which is a defect.
    LostTrack {
        /// The stream.
        stream: u64,
    },
    /// Nobody is left to work on this stream, and nobody will come: it ends.
    GiveUp {
        /// The stream.
        stream: u64,
        /// How long it was waited for somebody; none if nobody can come however long that is.
        waited: Option<Duration>,
    },
    /// Start the child of this number, and make a session with it.
    Start(u32),
    /// End this child, which has no session any more. It takes time: what is to be sent goes first.
    End(u32),
    /// Make a session with the worker at the place of this number.
    Dial(usize),
    /// Send a piece of shared contents on a session; an empty one if they aren't there any more.
    SendPiece {
        /// The session.
        session: SessionId,
        /// The link.
        link: LinkId,
        /// Which piece.
        piece: PieceWanted,
    },
    /// A worker tells of all others that it hears; of nobody, when its last session is over.
    Hearsay {
        /// Its name.
        worker: String,
        /// Whom it hears, as it says.
        heard: Vec<HeardWorker>,
    },
    /// Tell the user.
    Tell(Notice),
    /// A worker of which the user was told that it gets no items has a slot that works.
    Wanted(WorkerKey),
    /// Keep for the user why this worker gets no items.
    Unwanted {
        /// The worker.
        worker: WorkerKey,
        /// Why.
        why: Unwanted,
    },
}

/// A piece of shared contents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PieceWanted {
    /// The name of the contents: SHA-256 of them.
    pub digest: Digest,
    /// Where the piece begins.
    pub offset: u64,
    /// Its bytes at most.
    pub bytes: u32,
}

impl PieceWanted {
    /// The message that carries it. Without contents it says that these aren't there any more.
    #[must_use]
    pub fn message(&self, contents: Option<Bytes>) -> Message {
        let (digest, offset) = (self.digest, self.offset);
        let piece = ToSlot::Piece { digest, offset };
        post(piece.with_bulk(contents.into_iter().collect()))
    }
}

/// How recruiting stands.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Recruited {
    /// Slots that can work, or will when their initializer has run.
    pub ready: u32,
    /// Attempts at places of which it is not known that they fail, and slots that are not ready yet.
    pub pending: u32,
    /// Whether nobody else can be asked.
    pub is_final: bool,
}

/// Whose a link of a manager is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ManagerLink {
    /// The links by which slots are told.
    Slot,
    /// Those by which they answer.
    Results,
}

/// A manager without its sockets, threads and clocks.
///
/// After every call its driver does what [`poll_action`](Self::poll_action) says until there is nothing, and again when
/// [`next_timeout`](Self::next_timeout) has come. Times are durations since any start that never go back. Streams have
/// the driver's numbers, none of which is used twice.
#[derive(Debug)]
pub struct ManagerMachine {
    settings: ManagerSettings,
    router: Router,
    endpoints: Endpoints<ManagerLink>,
    slots: BTreeMap<SessionId, Slot>,
    next_session: SessionId,
    recruiter: Recruiter,
    /// What decides how many slots are wanted, if that is not one number for all time.
    planner: Option<Planner>,
    /// Slots that get nothing more, and end when they have done what they have.
    draining: Vec<SessionId>,
    history: History,
    patience: Patience,
    /// Streams that are open and were not given up.
    streams: BTreeSet<u64>,
    workers: WorkerTable,
    /// Workers that can't run the program, by name, and why.
    unfit: BTreeMap<String, Unwanted>,
    /// Workers whose other versions the user was told of.
    differing: BTreeSet<WorkerKey>,
    /// Workers of which the user was told that they get no items.
    unwanted: BTreeSet<WorkerKey>,
    initializers: InitializerFailures,
    breaks: Breaks,
    actions: VecDeque<ManagerAction>,
    /// Sessions that may be sent another number of bytes than their peers were held to.
    held_anew: Vec<SessionId>,
    recruited: Recruited,
    is_closing: bool,
}

#[derive(Debug)]
struct Slot {
    tasks: LinkId,
    code: LinkId,
    origin: Arc<Origin>,
    worker: WorkerKey,
    source: SlotSource,
    tier: Tier,
    state: SlotState,
    /// The most bytes of a message that it takes.
    message_bytes_max: u64,
    /// How its process ended, if it has and that is known.
    process_end: Option<Arc<str>>,
    /// It has not answered in time, and its session is ended for that.
    is_overdue: bool,
    presence: Presence,
    /// It was judged again, and has to leave.
    is_barred: bool,
    /// Bytes of all messages that were sent to it.
    bytes_sent: u64,
    tellings: Tellings,
}

/// Whether a slot is still there. What has taken another slot of its worker may have taken it too, and then no item is to be blamed for its
/// end as well.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Presence {
    Certain,
    /// Another one was lost; it has been asked, and gets nothing until it answers.
    Asked,
    /// Yet another one was lost since.
    AskedTooEarly,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SlotState {
    /// It takes its settings in.
    Joining,
    /// It runs the initializer.
    Initializing,
    /// It gets work.
    Ready,
    /// It can't run the program and is on its way out.
    Unfit {
        /// Another slot from the same place can't either.
        is_final: bool,
    },
    /// It finishes what runs and goes.
    Leaving,
}

impl ManagerMachine {
    /// A manager without slots and streams, which has asked nobody yet.
    #[must_use]
    pub fn new(settings: ManagerSettings) -> Self {
        let mut results = Endpoint::new(RESULT_ENDPOINT, RESULT_HANDLERS);
        if settings.takes_hearsay {
            results.handlers.push(HEARD_HANDLER.to_owned());
        }
        Self {
            router: Router::new(
                settings.scheduler.clone(),
                settings.message_bytes_max,
                settings.function_bytes_max,
            ),
            endpoints: Endpoints::new(vec![(results, ManagerLink::Results)]),
            slots: BTreeMap::new(),
            next_session: SessionId(0),
            recruiter: contract::recruiter(&settings),
            planner: contract::planner(&settings),
            draining: Vec::new(),
            history: contract::begun(&settings),
            patience: Patience::new(settings.patience),
            streams: BTreeSet::new(),
            workers: WorkerTable::default(),
            unfit: BTreeMap::new(),
            differing: BTreeSet::new(),
            unwanted: BTreeSet::new(),
            initializers: InitializerFailures::default(),
            breaks: Breaks::default(),
            actions: VecDeque::new(),
            held_anew: Vec::new(),
            recruited: Recruited::default(),
            is_closing: false,
            settings,
        }
    }

    /// What the driver must do next, if anything.
    pub fn poll_action(&mut self, now: Duration) -> Option<ManagerAction> {
        if self.recruiter.is_due(now) {
            self.recruit(now);
        }
        if self.slots.is_empty() && !self.streams.is_empty() {
            self.despair(now);
        }
        self.plan(now);
        self.end_drained();
        loop {
            if let Some(action) = self.actions.pop_front() {
                return Some(action);
            }
            if let Some(effect) = self.router.poll_effect(now) {
                if let Some(action) = self.action_of(effect) {
                    return Some(action);
                }
                continue;
            }
            let session = self.held_anew.pop()?;
            if self.slots.contains_key(&session) {
                let results = self.router.receivable(session.0);
                let bytes = results.saturating_add(BESIDES_RESULTS_BYTES);
                return Some(ManagerAction::LimitReception { session, bytes });
            }
        }
    }

    /// When to call [`poll_action`](Self::poll_action) although nothing has happened.
    #[must_use]
    pub fn next_timeout(&self) -> Option<Duration> {
        let times = [
            self.router.next_timeout(),
            self.recruiter.retry_at(),
            self.patience.look_at(),
            self.next_look(),
        ];
        times.into_iter().flatten().min()
    }

    fn action_of(&mut self, effect: Effect) -> Option<ManagerAction> {
        match effect {
            Effect::Send {
                slot,
                endpoint,
                message,
            } => self.send(SessionId(slot), endpoint, message),
            Effect::Deliver { stream, outcomes } => {
                Some(ManagerAction::Deliver { stream, outcomes })
            }
            Effect::Total { stream, count } => Some(ManagerAction::Total { stream, count }),
            Effect::Ends { stream, ends } => Some(ManagerAction::Ends { stream, ends }),
            Effect::Overdue { slot } => {
                let session = SessionId(slot);
                self.slots.get_mut(&session)?.is_overdue = true;
                self.dismiss(session, UNANSWERED.into());
                None
            }
            Effect::LetGo { slot } => {
                let session = SessionId(slot);
                // It can't be taken back any more.
                self.draining.retain(|draining| *draining != session);
                let reason = CloseReason::Finished;
                Some(ManagerAction::Close { session, reason })
            }
            Effect::LostTrack { stream } => Some(ManagerAction::LostTrack { stream }),
        }
    }

    fn send(
        &mut self,
        session: SessionId,
        endpoint: SlotEndpoint,
        message: EncodedMessage,
    ) -> Option<ManagerAction> {
        let slot = self.slots.get(&session)?;
        if !slot.origin.is_trusted() && self.held_anew.last() != Some(&session) {
            self.held_anew.push(session);
        }
        let link = match endpoint {
            SlotEndpoint::Task => slot.tasks,
            SlotEndpoint::Code => slot.code,
        };
        let message = post(message);
        Some(ManagerAction::Send {
            session,
            link,
            message,
        })
    }

    /// A message of so many bytes was queued for a slot.
    pub fn sent(&mut self, session: SessionId, bytes: u64) {
        if let Some(slot) = self.slots.get_mut(&session) {
            slot.bytes_sent += bytes;
        }
    }

    /// A message could not be queued, because it is over a limit or the session is ending. Its end puts the items back.
    pub fn not_sent(&mut self, session: SessionId, error: &SessionError) {
        if !matches!(error, SessionError::Closed(_)) {
            self.dismiss(session, error.to_string());
        }
    }

    /// Ends the session with a slot that breaks the rules; nothing of what it still says counts.
    fn dismiss(&mut self, session: SessionId, reason: String) {
        if self.slots.contains_key(&session) {
            let reason = CloseReason::Fault(reason.into());
            self.actions
                .push_back(ManagerAction::Abort { session, reason });
        }
    }

    /// Begins to recruit, and goes on as slots are missing.
    pub fn recruit(&mut self, now: Duration) {
        if self.is_closing {
            return;
        }
        self.take_back(now);
        while let Some(wish) = self.recruiter.next(self.staying(), now) {
            self.actions.push_back(match wish {
                Wish::Start(child) => ManagerAction::Start(child),
                Wish::Dial(host) => ManagerAction::Dial(host),
            });
        }
    }

    /// Other places are listed than before: how it stands with those that are known, and the names at new ones.
    pub fn relist(&mut self, listed: &[Listing], new: Vec<String>, now: Duration) {
        for name in self.recruiter.relist(listed, new, now) {
            // Whoever sets up the machine may have mended that. What a worker did to its sessions stays.
            self.unfit.remove(&name);
            self.initializers.forget(&name);
            if self.breaks.set_aside(&name).is_some() {
                self.recruiter.set_aside(&name);
            }
        }
        self.recruit(now);
    }

    /// A worker of this name may be dialled at another place, which has this number if it is known. Gives its number: a free one, or the next.
    pub fn list(&mut self, known: Option<usize>, name: &str) -> usize {
        let position = self.recruiter.list(known, name);
        if self.unfit.contains_key(name) || self.breaks.set_aside(name).is_some() {
            self.recruiter.set_aside(name);
        }
        position
    }

    /// No slot is asked for at this place any more. Those that run stay.
    pub fn unlist(&mut self, position: usize) {
        self.recruiter.unlist(position);
    }

    /// How the trial of this place stands, if it has one.
    #[must_use]
    pub fn trial(&self, position: usize) -> Trial {
        self.recruiter.trial(position)
    }

    /// Nobody will dial in any more: without a slot, and without another place to get one, runs end.
    pub fn expect_nobody(&mut self, now: Duration) {
        self.recruiter.expect_nobody();
        if self.recruited.ready == 0 {
            self.despair(now);
        }
    }

    /// No slot is there: runs that have waited for too long are given up, and all of them when nobody can come.
    fn despair(&mut self, now: Duration) {
        if self.is_closing {
            return;
        }
        let waited = if self.recruiter.has_hope() {
            let mut streams = self.router.streams();
            if !streams.any(|stream| stream.has_work() && self.streams.contains(&stream.stream)) {
                return self.patience.pause();
            }
            if !self.patience.is_over(now) {
                return;
            }
            Some(self.settings.patience)
        } else {
            None
        };
        for stream in self.router.streams() {
            if (waited.is_none() || stream.has_work()) && self.streams.remove(&stream.stream) {
                let stream = stream.stream;
                self.actions
                    .push_back(ManagerAction::GiveUp { stream, waited });
            }
        }
        self.patience.renew();
    }

    /// Opens a stream.
    ///
    /// # Errors
    /// When its skeleton is no program, or there are too many streams.
    pub fn open(&mut self, stream: u64, plan: StreamPlan, now: Duration) -> Result<(), OpenError> {
        self.router.open(stream, plan, now)?;
        self.streams.insert(stream);
        Ok(())
    }

    /// The user hands items over.
    pub fn admit(&mut self, stream: u64, batch: Batch, now: Duration) {
        self.router.admit(stream, batch, now);
    }

    /// No more items will come.
    pub fn end_of_input(&mut self, stream: u64, now: Duration) {
        self.router.end_of_input(stream, now);
    }

    /// The user has taken outcomes of so many items: their tickets are free.
    pub fn taken(&mut self, stream: u64, first: u64, count: u32, now: Duration) {
        self.router.taken(stream, first, count, now);
    }

    /// Takes an item back that no slot has begun; says whether that was possible.
    pub fn cancel(&mut self, stream: u64, index: u64, now: Duration) -> bool {
        self.router.cancel(stream, index, now)
    }

    /// Takes all items of a stream back that no slot has begun, and says which they are.
    pub fn cancel_waiting(&mut self, stream: u64, now: Duration) -> Vec<u64> {
        self.router.cancel_waiting(stream, now)
    }

    /// Whether no slot has an item, and it has no outcome.
    #[must_use]
    pub fn is_waiting(&self, stream: u64, index: u64) -> bool {
        self.router.is_waiting(stream, index)
    }

    /// Items of a stream that no slot has and that have no outcome.
    #[must_use]
    pub fn waiting(&self, stream: u64) -> u64 {
        self.router.waiting(stream)
    }

    /// Forgets a stream and all of its items.
    pub fn close_stream(&mut self, stream: u64, now: Duration) {
        self.streams.remove(&stream);
        if self.streams.is_empty() {
            self.patience.pause();
        }
        self.router.close(stream, now);
    }

    /// For each bounded stream, how many items its user may hand over.
    pub fn openings(&self) -> impl Iterator<Item = Opening> {
        self.router.openings()
    }

    /// Ends all sessions in order, and asks nobody any more.
    pub fn close(&mut self) {
        self.is_closing = true;
        self.patience.pause();
        let sessions = self.slots.keys();
        self.actions
            .extend(sessions.map(|session| ManagerAction::Close {
                session: *session,
                reason: CloseReason::Finished,
            }));
    }

    /// Whether [`close`](Self::close) was called.
    #[must_use]
    pub fn is_closing(&self) -> bool {
        self.is_closing
    }

    /// How many sessions have begun and not ended.
    #[must_use]
    pub fn sessions(&self) -> usize {
        self.slots.len()
    }

    /// Slots that can work, and whether there will be more.
    #[must_use]
    pub fn recruited(&self) -> Recruited {
        let pending = self.recruited.pending as usize + self.recruiter.undecided();
        Recruited {
            ready: self.recruited.ready,
            pending: u32::try_from(pending).unwrap_or(u32::MAX),
            is_final: !self.recruiter.has_hope(),
        }
    }

    /// How recruiting stands at each place where workers listen, in their order.
    pub fn places(&self) -> impl Iterator<Item = PlaceState> {
        self.recruiter.places()
    }

    /// How many slots are wanted.
    #[must_use]
    pub fn wanted(&self) -> usize {
        self.recruiter.wanted()
    }

    /// Slots that have items now.
    #[must_use]
    pub fn busy(&self) -> usize {
        let slots = self.slots.keys();
        let statistics = slots.filter_map(|session| self.router.slot_statistics(session.0));
        statistics.filter(|slot| slot.outstanding > 0).count()
    }

    /// What every worker did so far.
    #[must_use]
    pub fn report(&self) -> Vec<WorkerReport> {
        let live = self.slots.iter().map(|(session, slot)| {
            let statistics = self.router.slot_statistics(session.0);
            let worker = slot.worker.clone();
            (worker, statistics.unwrap_or_default(), slot.bytes_sent)
        });
        self.workers.report(live)
    }

    /// The router, to look at. Slots have the numbers of their sessions.
    #[must_use]
    pub fn router(&self) -> &Router {
        &self.router
    }

    /// Has the user told why a worker gets no items.
    fn tell_unwanted(&mut self, worker: WorkerKey, why: Unwanted) {
        if self.unwanted.len() < UNWANTED_MAX {
            self.unwanted.insert(worker.clone());
        }
        self.actions
            .push_back(ManagerAction::Unwanted { worker, why });
    }

    fn tell(&mut self, notice: Notice) {
        self.actions.push_back(ManagerAction::Tell(notice));
    }
}

/// A message that wants no answer.
fn post(message: EncodedMessage) -> Message {
    let EncodedMessage {
        handler,
        head,
        bulk,
    } = message;
    Message {
        handler,
        kind: MessageKind::Post,
        head,
        bulk,
        is_gathered: false,
    }
}
