//! The machine of a slot: its end of the session with its manager, and the queue of what it has to run.

use std::time::Duration;

use bytes::Bytes;
use exoskel_link::{
    CloseReason, Endpoint, Event, LinkId, Message, MessageKind, Session, SessionError, TrafficClass,
};
use exoskel_task::SlotQueue;
use exoskel_task::message::{
    CODE_ENDPOINT, CODE_HANDLERS, Digest, EncodedMessage, HEARD_HANDLER, HeardWorker,
    RESULT_ENDPOINT, RESULT_HANDLERS, ReceivedMessage, SlotEndpoint, TASK_ENDPOINT, TASK_HANDLERS,
};
use exoskel_task::payload::RecordWriter;
use exoskel_task::slot_queue::{
    ItemKey, Outgoing, Overdue, SerialPassage, TimeoutAnswer, TooLarge, Work,
};

use crate::endpoints::Endpoints;
use crate::session::SessionId;

/// What a task prints faster than the manager takes it is cut at this many bytes waiting.
const OUTPUT_BYTES_MAX: u64 = 1024 * 1024;

/// Text in one message at most: a manager expects little besides results.
const OUTPUT_PIECE_BYTES_MAX: usize = 256 * 1024;

/// A slot has one session.
const SESSION: SessionId = SessionId(0);

/// Whose a link of a slot is.
#[derive(Clone, Copy, Debug)]
enum SlotLink {
    /// What the manager says to one of the endpoints.
    Manager(SlotEndpoint),
    /// The way back.
    Results,
}

/// A message to the manager, on [`SlotMachine::results`].
#[derive(Debug)]
pub struct SlotAnswer {
    /// The message.
    pub message: Message,
    /// There is something to run: the next item need not wait for this one's sealing and writing.
    pub can_wait: bool,
}

impl From<Outgoing> for SlotAnswer {
    fn from(outgoing: Outgoing) -> Self {
        let EncodedMessage {
            handler,
            head,
            bulk,
        } = outgoing.message;
        Self {
            message: Message {
                handler,
                kind: MessageKind::Post,
                head,
                bulk,
                is_gathered: false,
            },
            can_wait: outgoing.can_wait,
        }
    }
}

/// One slot without its socket, threads and clocks. Each call gives what is to be sent, to the one who called: who gives
/// results must not have them sent by another thread, behind what it gives next.
///
/// Times are durations since any start that never go back. How far the running item is stands beside the machine, in a
/// [`SerialPassage`], so that whoever runs it says so without waiting for anybody.
#[derive(Debug)]
pub struct SlotMachine {
    endpoints: Endpoints<SlotLink>,
    results: LinkId,
    queue: SlotQueue,
    output_is_cut: bool,
    /// The manager wants to know whom the worker hears.
    takes_hearsay: bool,
}

impl SlotMachine {
    /// What a slot offers to its manager: instructions, and code.
    #[must_use]
    pub fn endpoints() -> [Endpoint; 2] {
        [
            Endpoint::new(TASK_ENDPOINT, TASK_HANDLERS),
            Endpoint::new(CODE_ENDPOINT, CODE_HANDLERS),
        ]
    }

    /// A slot whose session has begun. Messages have at most `message_bytes_max` bytes.
    ///
    /// # Errors
    /// When the session is over already.
    pub fn begin(session: &mut Session, message_bytes_max: u64) -> Result<Self, SessionError> {
        let [tasks, code] = Self::endpoints();
        let mut endpoints = Endpoints::new(vec![
            (tasks, SlotLink::Manager(SlotEndpoint::Task)),
            (code, SlotLink::Manager(SlotEndpoint::Code)),
        ]);
        endpoints.begin(SESSION, session)?;
        let class = TrafficClass::Data;
        let results =
            endpoints.open(SESSION, session, RESULT_ENDPOINT, class, SlotLink::Results)?;
        Ok(Self {
            endpoints,
            results,
            queue: SlotQueue::new(message_bytes_max),
            output_is_cut: false,
            takes_hearsay: false,
        })
    }

    /// The link by which everything goes to the manager.
    #[must_use]
    pub fn results(&self) -> LinkId {
        self.results
    }

    /// Something has happened in the session.
    ///
    /// # Errors
    /// Why the session has to end.
    pub fn event(
        &mut self,
        event: Event,
        passage: &SerialPassage,
    ) -> Result<Vec<Outgoing>, CloseReason> {
        let user = self.endpoints.user_of(SESSION, &event);
        if let (Some(SlotLink::Results), Event::LinkAccepted { handlers, .. }) = (user, &event) {
            let heard = handlers.get(RESULT_HANDLERS.len());
            self.takes_hearsay = heard.is_some_and(|name| name.is(HEARD_HANDLER));
        }
        let Event::Message {
            handler,
            kind,
            head,
            bulk,
            ..
        } = event
        else {
            return Ok(Vec::new());
        };
        match (user, kind) {
            (Some(SlotLink::Manager(endpoint)), MessageKind::Post) => {
                let message = ReceivedMessage {
                    handler,
                    head,
                    bulk,
                };
                let answers = self.queue.receive(endpoint, message, passage);
                answers.map_err(|error| CloseReason::Fault(error.to_string().into()))
            }
            // Nothing here answers: whoever asks would wait for ever.
            (Some(_), kind) => {
                let text = format!("got {kind:?}, expected a post");
                Err(CloseReason::Fault(text.into()))
            }
            (None, _) => Ok(Vec::new()),
        }
    }

    /// Takes what to do next; from now on it runs.
    pub fn begin_work(&mut self, passage: &SerialPassage, now: Duration) -> Work {
        self.queue.begin(passage, now)
    }

    /// Takes the outcome of an item: `write` appends its one record.
    ///
    /// # Errors
    /// When the result is over its size limit; nothing of it is kept then.
    pub fn finish(
        &mut self,
        key: ItemKey,
        now: Duration,
        write: impl FnOnce(&mut RecordWriter),
    ) -> Result<Vec<Outgoing>, TooLarge> {
        self.queue.finish(key, now, write)
    }

    /// Takes the outcome of an item, as [`finish`](Self::finish) does, and begins what comes next, unless something is to be sent.
    ///
    /// # Errors
    /// As those of [`finish`](Self::finish). Nothing begins then.
    pub fn finish_and_begin(
        &mut self,
        key: ItemKey,
        passage: &SerialPassage,
        now: Duration,
        write: impl FnOnce(&mut RecordWriter),
    ) -> Result<(Vec<Outgoing>, Work), TooLarge> {
        self.queue.finish_and_begin(key, passage, now, write)
    }

    /// Takes the result of an item that goes on at another segment than the next one, as [`finish`](Self::finish) takes an outcome.
    ///
    /// # Errors
    /// As those of [`finish`](Self::finish).
    pub fn finish_at(
        &mut self,
        key: ItemKey,
        reached: u16,
        now: Duration,
        write: impl FnOnce(&mut RecordWriter),
    ) -> Result<Vec<Outgoing>, TooLarge> {
        self.queue.finish_at(key, reached, now, write)
    }

    /// Takes what an item was made into, any number of records. With `has_state`, the first of them is no part.
    ///
    /// # Errors
    /// As those of [`finish`](Self::finish).
    pub fn finish_expanded(
        &mut self,
        key: ItemKey,
        has_state: bool,
        now: Duration,
        write: impl FnOnce(&mut RecordWriter),
    ) -> Result<Vec<Outgoing>, TooLarge> {
        self.queue.finish_expanded(key, has_state, now, write)
    }

    /// Takes the outcome of an item of a segment that carries a state: `write` appends its one record. Says whether it is time to tell of it.
    ///
    /// # Errors
    /// When it is over the size limit.
    pub fn carry(
        &mut self,
        key: ItemKey,
        now: Duration,
        write: impl FnOnce(&mut RecordWriter),
    ) -> Result<bool, TooLarge> {
        self.queue.carry(key, now, write)
    }

    /// Tells of items that were [carried](Self::carry), the last of which is `key`'s: `write` appends the one record of the state behind it.
    ///
    /// # Errors
    /// When that is over its size limit.
    pub fn finish_carried(
        &mut self,
        key: ItemKey,
        write: impl FnOnce(&mut RecordWriter),
    ) -> Result<Vec<Outgoing>, TooLarge> {
        self.queue.finish_carried(key, write)
    }

    /// How many items were [carried](Self::carry) and not told of.
    #[must_use]
    pub fn carried(&self) -> u32 {
        self.queue.carried()
    }

    /// Forgets their outcomes: they are answered for in another way.
    pub fn forget_carried(&mut self) {
        self.queue.forget_carried();
    }

    /// Gives back those items, and what has not been started of their frame.
    pub fn give_back_carried(&mut self) -> Vec<Outgoing> {
        self.queue.give_back_carried()
    }

    /// Gives back the running item, whose state before it nobody will have.
    pub fn give_back_running(&mut self, key: ItemKey, now: Duration) -> Option<Outgoing> {
        self.queue.give_back_running(key, now)
    }

    /// Gives back what has not been started of a frame.
    pub fn give_back_rest(&mut self, frame: u64) -> Option<Outgoing> {
        self.queue.give_back_rest(frame)
    }

    /// An item has been folded into those before it. Says whether it is time to tell of that.
    pub fn absorb(&mut self, key: ItemKey, now: Duration) -> bool {
        self.queue.absorb(key, now)
    }

    /// Tells of what was folded, `key`'s item first: `write` appends its one record.
    ///
    /// # Errors
    /// As those of [`finish`](Self::finish).
    pub fn finish_folded(
        &mut self,
        key: ItemKey,
        write: impl FnOnce(&mut RecordWriter),
    ) -> Result<Vec<Outgoing>, TooLarge> {
        self.queue.finish_folded(key, write)
    }

    /// Takes an exception that the program wants the item to be run again for, as [`finish`](Self::finish) takes an outcome.
    ///
    /// # Errors
    /// When it is over the size limit; nothing of it is kept then.
    pub fn finish_retriable(
        &mut self,
        key: ItemKey,
        now: Duration,
        write: impl FnOnce(&mut RecordWriter),
    ) -> Result<Vec<Outgoing>, TooLarge> {
        self.queue.finish_retriable(key, now, write)
    }

    /// Says how an item of this stream is answered for that runs for too long and does not end when it is told to.
    pub fn set_timeout_answer(&mut self, stream: u32, answer: TimeoutAnswer) {
        self.queue.set_timeout_answer(stream, answer);
    }

    /// When to [`look`](Self::look) at what runs, if it must be looked at. Ask again when messages have come.
    #[must_use]
    pub fn look_at(&self, now: Duration) -> Option<Duration> {
        self.queue.look_at(now)
    }

    /// Looks whether what runs is overdue. Whoever [leaves](Overdue::Leave) closes the session in order once the answers are sent:
    /// the other items here are nobody's fault.
    pub fn look(&mut self, now: Duration) -> Option<Overdue> {
        self.queue.look(now)
    }

    /// Whether the items of any program may run for some time only.
    #[must_use]
    pub fn has_time_limits(&self) -> bool {
        self.queue.has_time_limits()
    }

    /// Whether the running item must have ended by some time.
    #[must_use]
    pub fn has_deadline(&self) -> bool {
        self.queue.has_deadline()
    }

    /// What the running item needs is loaded, which is not its own time.
    pub fn pause_clock(&mut self) {
        self.queue.pause_clock();
    }

    /// It is loaded: the item's time begins now.
    pub fn start_clock(&mut self, now: Duration) {
        self.queue.start_clock(now);
    }

    /// How long the running item could run, if that is over and it is to end; zero if it is to end since nobody needs it any more.
    #[must_use]
    pub fn overdue_after(&self) -> Option<Duration> {
        self.queue.overdue_after()
    }

    /// The slot is to leave: what has not been started goes back, now and when it comes.
    pub fn leave(&mut self, passage: &SerialPassage) -> Vec<Outgoing> {
        self.queue.leave(passage)
    }

    /// Whether the slot [leaves](Self::leave) and has nothing left to say: its session may be closed.
    #[must_use]
    pub fn has_left(&self) -> bool {
        self.queue.has_left()
    }

    /// How many of this frame's items that have passed its serial function are asked back, if that isn't answered.
    #[must_use]
    pub fn asked_back(&self, frame: u64) -> Option<u32> {
        self.queue.asked_back(frame)
    }

    /// Gives back the last items of this frame halfway, as tokens for the segment that they have `reached`.
    pub fn give_back_halfway(
        &mut self,
        frame: u64,
        reached: u16,
        records: Vec<RecordWriter>,
        now: Duration,
    ) -> Vec<Outgoing> {
        self.queue.give_back_halfway(frame, reached, records, now)
    }

    /// All items of a frame have passed the serial function.
    pub fn release(&mut self, frame: u64, now: Duration) -> Outgoing {
        self.queue.release(frame, now)
    }

    /// Settings have been taken in and what work may need is there, but for these modules.
    #[must_use]
    pub fn ready(&self, lacks: Vec<String>) -> Outgoing {
        self.queue.ready(lacks)
    }

    /// Packages have other versions here than at the manager, one line for each.
    #[must_use]
    pub fn differs(&self, packages: Vec<String>) -> Outgoing {
        self.queue.differs(packages)
    }

    /// Whether the manager wants to know whom its worker hears.
    #[must_use]
    pub fn takes_hearsay(&self) -> bool {
        self.takes_hearsay
    }

    /// Its worker hears these on its network, and no others. Only for managers that [want to know](Self::takes_hearsay).
    #[must_use]
    pub fn heard(&self, workers: Vec<HeardWorker>) -> Outgoing {
        self.queue.heard(workers)
    }

    /// The initializer has run, or raised what is told here.
    #[must_use]
    pub fn initialized(&self, error: Bytes) -> Outgoing {
        self.queue.initialized(error)
    }

    /// Asks for a piece of shared contents, of `bytes` at most.
    #[must_use]
    pub fn fetch(&mut self, digest: Digest, offset: u64, bytes: u32) -> Outgoing {
        self.queue.fetch(digest, offset, bytes)
    }

    /// Takes a piece that was asked for, if it is there. It is empty where the contents aren't at the manager any more.
    pub fn take_piece(&mut self, digest: Digest, offset: u64) -> Option<Vec<u8>> {
        self.queue.take_piece(digest, offset)
    }

    /// Whether somebody waits for pieces of shared contents, or one that has come is still here.
    #[must_use]
    pub fn awaits_pieces(&self) -> bool {
        self.queue.awaits_pieces()
    }

    /// A task printed something (0 standard output, 1 standard error, 2 log) while so many bytes wait to be sent; a
    /// flood is cut.
    pub fn output(&mut self, stream: u8, text: &[u8], waiting: u64) -> Vec<Outgoing> {
        let is_flood = waiting > OUTPUT_BYTES_MAX;
        let was_cut = std::mem::replace(&mut self.output_is_cut, is_flood);
        if is_flood {
            let text = Bytes::from_static(b"[output cut: more than 1 MiB waits to be sent]\n");
            let note = (!was_cut).then(|| self.queue.output(stream, text));
            return note.into_iter().collect();
        }
        let mut rest = text;
        let mut outgoing = Vec::new();
        while !rest.is_empty() {
            let (piece, behind) = rest.split_at(piece_of(rest));
            rest = behind;
            outgoing.push(self.queue.output(stream, Bytes::copy_from_slice(piece)));
        }
        outgoing
    }

    /// When [`flush`](Self::flush) has something to send though nothing happens.
    #[must_use]
    pub fn flush_at(&self) -> Option<Duration> {
        self.queue.flush_at()
    }

    /// Results that have waited for long enough: the next item may take long.
    pub fn flush(&mut self, now: Duration) -> Option<Outgoing> {
        self.queue.flush(now)
    }

    /// Whether nothing waits here and nothing runs.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.queue.is_idle()
    }

    /// Whether the frame that came last has several items: its results may be sent in parts.
    #[must_use]
    pub fn ends_with_long_frame(&self) -> bool {
        self.queue.ends_with_long_frame()
    }

    /// The session is over, for this reason.
    pub fn end(&mut self, reason: String) {
        self.queue.end(reason);
    }

    /// Whether [`end`](Self::end) was called.
    #[must_use]
    pub fn is_ended(&self) -> bool {
        self.queue.is_ended()
    }
}

/// How much of a text goes into one message: no character is cut in two.
fn piece_of(text: &[u8]) -> usize {
    if text.len() <= OUTPUT_PIECE_BYTES_MAX {
        return text.len();
    }
    let is_inside = |position: &usize| text[*position] & 0xc0 == 0x80;
    let mut cuts = (OUTPUT_PIECE_BYTES_MAX - 3..=OUTPUT_PIECE_BYTES_MAX).rev();
    cuts.find(|position| !is_inside(position))
        .unwrap_or(OUTPUT_PIECE_BYTES_MAX)
}
