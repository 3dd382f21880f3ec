//! Regions: arrays of this process whose parts peers read and write, and transfers from and to those of peers.
//!
//! A region's bytes are copied, while its gate is shut, by one thread at a time. So each message is done as a whole, and what has not been
//! verified never gets into an array.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use exoskel_node::links::{
    AcceptedId, ArrayPart, BindingId, LinkCall, LinkError, MessageContents, PartError, PeerFailure,
    REGION_PIECE_BYTES_MAX, RegionLayout, RegionMessage, RequestAnswer,
};
use thiserror::Error;

use super::calls::{UNREAD_PAUSE, waiting_too_much};
use super::intake::{AnswerSink, HandlerKind};
use super::region_gate::{RegionCall, RegionGate};
use super::{LinkNode, LinkShared, lock};
use crate::connection::TURN_TIME;

/// How long who lets go of a region serves those that have waited. The node's thread goes on with the rest.
const RELEASE_TIME: Duration = Duration::from_millis(100);

/// Pieces of transfers that one binding has under way at once.
const PIECES_UNDER_WAY_MAX: usize = 8;

/// The memory of an array.
pub trait ArrayMemory: Send + Sync {
    /// Its length in bytes.
    fn length(&self) -> usize;
    /// Appends these bytes of it. They lie within.
    fn append_to(&self, offset: usize, length: usize, bytes: &mut Vec<u8>);
    /// Writes to it from this byte on. The bytes lie within.
    fn write(&self, offset: usize, bytes: &[u8]);
}

/// By which of its two names a region is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RegionUse {
    Get,
    Put,
}

/// An array that peers read, and may write.
pub(super) struct SharedRegion {
    layout: RegionLayout,
    memory: Box<dyn ArrayMemory>,
    gate: RegionGate,
}

/// A thread that serves a region, until this is dropped.
struct ServingRegion<'a> {
    shared: &'a LinkShared,
    region: &'a Arc<SharedRegion>,
}

impl Drop for ServingRegion<'_> {
    fn drop(&mut self) {
        if self.region.gate.served() {
            self.shared.region_work.add(self.region);
        }
    }
}

/// A region of ours, for its owner.
#[derive(Clone)]
pub struct OwnRegion {
    shared: Arc<LinkShared>,
    region: Arc<SharedRegion>,
}

/// Why a transfer came to nothing.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum TransferError {
    /// The link ended, or was never opened.
    #[error(transparent)]
    Link(#[from] LinkError),
    /// The owner refuses it.
    #[error("the region's owner refuses with {0}")]
    Refused(PeerFailure),
    /// The part can't be.
    #[error(transparent)]
    Part(#[from] PartError),
    /// The owner's answer isn't what was asked for.
    #[error("the region's owner broke the rules: {0}")]
    Broken(String),
}

/// A part of a peer's region that is read or written.
pub struct Transfer {
    state: Mutex<TransferState>,
    changed: Condvar,
    handler: String,
    kind: TransferKind,
    pieces: Vec<ArrayPart>,
}

enum TransferKind {
    Describe,
    /// Into this memory.
    Get(Box<dyn ArrayMemory>),
    Put(Bytes),
}

#[derive(Default)]
struct TransferState {
    asked: usize,
    /// Bytes of the pieces that have been asked for.
    asked_bytes: u64,
    /// Where the pieces under way belong.
    places: BTreeMap<u64, u64>,
    done: usize,
    layout: Option<RegionLayout>,
    error: Option<TransferError>,
}

/// The transfers of a node, in the order in which they were asked for.
#[derive(Default)]
pub(super) struct Transfers(Mutex<BTreeMap<BindingId, TransferQueue>>);

#[derive(Default)]
struct TransferQueue {
    under_way: usize,
    waiting: VecDeque<Arc<Transfer>>,
    /// Somebody sends already, in order.
    is_sending: bool,
}

impl LinkNode {
    /// Adds a region to an endpoint, for links that are opened from now on: by the name `NAME.get`, and `NAME.put` if it is writable.
    ///
    /// # Errors
    /// [`LinkError::NoEndpoint`], [`LinkError::HandlerTaken`].
    pub fn add_region(
        &self,
        endpoint: &str,
        name: &str,
        layout: RegionLayout,
        memory: Box<dyn ArrayMemory>,
        is_writable: bool,
    ) -> Result<OwnRegion, LinkError> {
        let region = Arc::new(SharedRegion {
            layout,
            memory,
            gate: RegionGate::default(),
        });
        let shared = self.shared.clone();
        let kind = |purpose| HandlerKind::Region(region.clone(), purpose);
        shared.add_kind(endpoint, &format!("{name}.get"), kind(RegionUse::Get))?;
        if is_writable {
            shared.add_kind(endpoint, &format!("{name}.put"), kind(RegionUse::Put))?;
        }
        Ok(OwnRegion { shared, region })
    }

    /// Asks what a region holds. `handler` is one of its names.
    ///
    /// # Errors
    /// [`LinkError`].
    pub fn describe_region(
        &self,
        id: BindingId,
        handler: String,
    ) -> Result<Arc<Transfer>, LinkError> {
        let nothing = ArrayPart::new(0, 1, &[]);
        let pieces = nothing.into_iter().collect();
        self.transfer(id, handler, TransferKind::Describe, pieces)
    }

    /// Reads a part of a region into an array that has as many bytes.
    ///
    /// # Errors
    /// [`TransferError`].
    pub fn get_region(
        &self,
        id: BindingId,
        name: &str,
        part: &ArrayPart,
        into: Box<dyn ArrayMemory>,
    ) -> Result<Arc<Transfer>, TransferError> {
        check_size(into.length() as u64, part)?;
        let pieces = part.pieces(REGION_PIECE_BYTES_MAX);
        Ok(self.transfer(id, format!("{name}.get"), TransferKind::Get(into), pieces)?)
    }

    /// Writes an array into a part of a region that has as many bytes.
    ///
    /// # Errors
    /// [`TransferError`].
    pub fn put_region(
        &self,
        id: BindingId,
        name: &str,
        part: &ArrayPart,
        from: Bytes,
    ) -> Result<Arc<Transfer>, TransferError> {
        check_size(from.len() as u64, part)?;
        let pieces = part.pieces(REGION_PIECE_BYTES_MAX);
        Ok(self.transfer(id, format!("{name}.put"), TransferKind::Put(from), pieces)?)
    }

    fn transfer(
        &self,
        id: BindingId,
        handler: String,
        kind: TransferKind,
        pieces: Vec<ArrayPart>,
    ) -> Result<Arc<Transfer>, LinkError> {
        self.shared.check_open()?;
        let transfer = Arc::new(Transfer {
            state: Mutex::default(),
            changed: Condvar::new(),
            handler,
            kind,
            pieces,
        });
        if !transfer.pieces.is_empty() {
            let mut queues = lock(&self.shared.transfers.0);
            let queue = queues.entry(id).or_default();
            queue.waiting.push_back(transfer.clone());
            drop(queues);
            self.shared.transfer_on(id);
        }
        Ok(transfer)
    }
}

fn check_size(got: u64, part: &ArrayPart) -> Result<(), PartError> {
    let expected = part.bytes();
    if got != expected {
        return Err(PartError::OtherSize { got, expected });
    }
    Ok(())
}

impl Transfer {
    /// Waits for `patience` at most and says whether it is done.
    ///
    /// # Errors
    /// [`TransferError`]; some of its pieces may have been done.
    pub fn wait(&self, patience: Duration) -> Result<bool, TransferError> {
        let deadline = Instant::now().checked_add(patience);
        let mut state = lock(&self.state);
        loop {
            if let Some(error) = &state.error {
                return Err(error.clone());
            }
            if state.done == self.pieces.len() {
                return Ok(true);
            }
            let left = deadline.map_or(super::PATIENCE, |deadline| {
                deadline.saturating_duration_since(Instant::now())
            });
            if left.is_zero() {
                return Ok(false);
            }
            let waited = self.changed.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Whether [`Transfer::wait`] would return at once.
    #[must_use]
    pub fn is_over(&self) -> bool {
        let state = lock(&self.state);
        state.error.is_some() || state.done == self.pieces.len()
    }

    /// What the region holds, once that has come.
    #[must_use]
    pub fn layout(&self) -> Option<RegionLayout> {
        lock(&self.state).layout.clone()
    }

    /// The next piece to ask for: its number and the message.
    fn next(&self) -> Option<(u64, MessageContents)> {
        let mut state = lock(&self.state);
        if state.error.is_some() {
            return None;
        }
        let number = state.asked;
        let part = self.pieces.get(number)?;
        let place = state.asked_bytes;
        state.asked += 1;
        state.asked_bytes += part.bytes();
        state.places.insert(number as u64, place);
        let (message, bulk) = match &self.kind {
            TransferKind::Describe => (RegionMessage::Describe, Vec::new()),
            TransferKind::Get(_) => (RegionMessage::Get(part.clone()), Vec::new()),
            TransferKind::Put(from) => {
                let (start, end) = (place as usize, (place + part.bytes()) as usize);
                (
                    RegionMessage::Put(part.clone()),
                    vec![from.slice(start..end)],
                )
            }
        };
        let head = message.head();
        Some((
            number as u64,
            MessageContents {
                head,
                bulk,
                is_gathered: false,
            },
        ))
    }

    /// The answer to a piece.
    pub(super) fn answered(&self, piece: u64, answer: RequestAnswer) {
        let taken = match answer {
            RequestAnswer::Lost(error) => Err(error.into()),
            RequestAnswer::Failure { head } => {
                Err(TransferError::Refused(PeerFailure::read(&head)))
            }
            RequestAnswer::Reply { head, bulk } => self.take(piece, &head, &bulk),
        };
        let mut state = lock(&self.state);
        match taken {
            Ok(layout) => {
                state.done += 1;
                state.layout = layout;
            }
            Err(error) => drop(state.error.get_or_insert(error)),
        }
        drop(state);
        self.changed.notify_all();
    }

    fn take(
        &self,
        piece: u64,
        head: &[u8],
        bulk: &[Vec<u8>],
    ) -> Result<Option<RegionLayout>, TransferError> {
        let place = lock(&self.state).places.remove(&piece);
        let (Some(place), Some(part)) = (place, self.pieces.get(piece as usize)) else {
            return Err(TransferError::Broken(
                "got an answer a second time".to_owned(),
            ));
        };
        match &self.kind {
            TransferKind::Describe => RegionLayout::read(head)
                .map(Some)
                .ok_or_else(|| TransferError::Broken("got no layout of an array".to_owned())),
            TransferKind::Put(_) => Ok(None),
            TransferKind::Get(into) => {
                let (got, expected) = (bulk.iter().map(Vec::len).sum::<usize>(), part.bytes());
                match bulk {
                    [bytes] if bytes.len() as u64 == expected => into.write(place as usize, bytes),
                    _ => {
                        return Err(TransferError::Broken(format!(
                            "got {got} bytes in {} parts, expected {expected} in one",
                            bulk.len()
                        )));
                    }
                }
                Ok(None)
            }
        }
    }

    fn fail(&self, error: LinkError) {
        let mut state = lock(&self.state);
        state.error.get_or_insert_with(|| error.into());
        drop(state);
        self.changed.notify_all();
    }
}

impl LinkShared {
    /// A piece was answered: the next ones of the binding may go.
    pub(super) fn transfer_more(self: &Arc<Self>, id: BindingId) {
        if let Some(queue) = lock(&self.transfers.0).get_mut(&id) {
            queue.under_way = queue.under_way.saturating_sub(1);
        }
        self.transfer_on(id);
    }

    /// Asks for the pieces that are next, in order: by one thread at a time.
    fn transfer_on(self: &Arc<Self>, id: BindingId) {
        let mut may_send = false;
        loop {
            let mut queues = lock(&self.transfers.0);
            let Some(queue) = queues.get_mut(&id) else {
                return;
            };
            // Who sends looks again when it has sent.
            if queue.is_sending && !may_send {
                return;
            }
            may_send = true;
            let Some((transfer, number, contents)) = queue.next() else {
                queue.is_sending = false;
                if queue.under_way == 0 && queue.waiting.is_empty() {
                    queues.remove(&id);
                }
                return;
            };
            queue.is_sending = true;
            queue.under_way += 1;
            drop(queues);
            let sink = AnswerSink::Transfer(transfer.clone(), id, number);
            if let Err(error) = self.ask(id, &transfer.handler, contents, sink) {
                transfer.fail(error);
                if let Some(queue) = lock(&self.transfers.0).get_mut(&id) {
                    queue.under_way = queue.under_way.saturating_sub(1);
                }
            }
        }
    }

    /// A message for a region of ours.
    pub(super) fn region_asked(
        self: &Arc<Self>,
        region: &Arc<SharedRegion>,
        purpose: RegionUse,
        call: LinkCall,
    ) {
        let message = RegionMessage::read(&call.head).filter(|message| match message {
            RegionMessage::Describe => true,
            RegionMessage::Get(_) => purpose == RegionUse::Get,
            RegionMessage::Put(_) => purpose == RegionUse::Put,
        });
        let Some(message) = message else {
            let text = format!("got a message that is none for {}", call.handler);
            self.answer_failure(&call, &PeerFailure::new("ValueError", text));
            return self.give_back(&call);
        };
        let accepted = call.accepted;
        let asked = RegionCall { call, message };
        match region
            .gate
            .come(asked, &self.calls, |call| self.is_held(call))
        {
            Ok(Some(asked)) => {
                let _serving = self.serving(region);
                self.region_done(region, &asked);
            }
            Ok(None) => {
                if !self.is_kept(accepted) {
                    // The link has ended meanwhile.
                    region.gate.forget(&self.calls, |link| link == accepted);
                }
                if region.gate.is_behind() {
                    self.region_work.add(region);
                }
            }
            Err(got) => self.end_for_waiting(accepted, waiting_too_much(got)),
        }
    }

    fn serving<'a>(&'a self, region: &'a Arc<SharedRegion>) -> ServingRegion<'a> {
        ServingRegion {
            shared: self,
            region,
        }
    }

    /// Serves calls that have waited for regions, a turn for each region. Says when to go on, if others wait.
    pub(super) fn serve_regions(&self) -> Option<Duration> {
        let mut pause = None;
        for region in self.region_work.take() {
            let begin = Instant::now();
            let is_held = |call: &LinkCall| self.is_held(call);
            let mut is_all = false;
            while !is_all && begin.elapsed() < TURN_TIME {
                let asked = region.gate.next(&self.calls, is_held);
                is_all = asked.is_none();
                if let Some(asked) = asked {
                    // Comes back to the work if more wait.
                    let _serving = self.serving(&region);
                    self.region_done(&region, &asked);
                }
            }
            if region.gate.is_behind() {
                self.region_work.keep(&region);
                // Those that are left have to read first.
                let next = if is_all { UNREAD_PAUSE } else { Duration::ZERO };
                pause = Some(pause.map_or(next, |pause: Duration| pause.min(next)));
            }
        }
        pause
    }

    /// Links are over: nobody waits for what they have asked, and nobody has begun with.
    pub(super) fn forget_calls(&self, link: AcceptedId) {
        self.calls.forget(link);
        self.forget_region_calls(|one| one == link);
    }

    pub(super) fn forget_region_calls(&self, is_over: impl Fn(AcceptedId) -> bool) {
        for region in self.intake.regions() {
            region.gate.forget(&self.calls, &is_over);
        }
    }

    /// Does what is asked. For who serves the region.
    fn region_done(&self, region: &SharedRegion, RegionCall { call, message }: &RegionCall) {
        // It may have waited for the gate longer than its link had a right to it.
        if !self.is_kept(call.accepted) {
            return;
        }
        match region.serve(message, &call.bulk) {
            Ok(contents) => self.answer_now(call, contents, false),
            Err(failure) => self.answer_failure(call, &failure),
        }
        self.give_back(call);
    }
}

impl TransferQueue {
    fn next(&mut self) -> Option<(Arc<Transfer>, u64, MessageContents)> {
        while self.under_way < PIECES_UNDER_WAY_MAX {
            let transfer = self.waiting.front()?;
            if let Some((number, contents)) = transfer.next() {
                return Some((transfer.clone(), number, contents));
            }
            self.waiting.pop_front();
        }
        None
    }
}

impl SharedRegion {
    fn serve(
        &self,
        message: &RegionMessage,
        bulk: &[Vec<u8>],
    ) -> Result<MessageContents, PeerFailure> {
        let empty = MessageContents::default();
        match message {
            RegionMessage::Describe => Ok(MessageContents {
                head: self.layout.head(),
                ..empty
            }),
            RegionMessage::Get(part) => {
                let bytes = self.checked(part)?;
                let mut packed = Vec::with_capacity(bytes);
                part.runs(|offset, length| {
                    self.memory
                        .append_to(offset as usize, length as usize, &mut packed);
                });
                Ok(MessageContents {
                    bulk: vec![packed.into()],
                    ..empty
                })
            }
            RegionMessage::Put(part) => {
                let expected = self.checked(part)?;
                let got = bulk.iter().map(Vec::len).sum::<usize>() as u64;
                let [bytes] = bulk else {
                    let text = format!("got {} parts, expected one", bulk.len());
                    return Err(PeerFailure::new("ValueError", text));
                };
                if bytes.len() != expected {
                    let expected = expected as u64;
                    let error = PartError::OtherSize { got, expected };
                    return Err(PeerFailure::new("ValueError", error.to_string()));
                }
                let mut rest = &bytes[..];
                part.runs(|offset, length| {
                    let (run, behind) = rest.split_at(length as usize);
                    self.memory.write(offset as usize, run);
                    rest = behind;
                });
                Ok(empty)
            }
        }
    }

    /// The bytes of a part that lies within, and isn't too large for one message.
    fn checked(&self, part: &ArrayPart) -> Result<usize, PeerFailure> {
        let bytes = part.bytes();
        let checked = part.check(self.memory.length() as u64);
        let size = if (1..=REGION_PIECE_BYTES_MAX).contains(&bytes) {
            Ok(bytes as usize)
        } else {
            Err(PartError::Size(bytes))
        };
        checked
            .and(size)
            .map_err(|error| PeerFailure::new("IndexError", error.to_string()))
    }
}

impl OwnRegion {
    /// Keeps the array for the caller, after waiting for whoever else has it: what peers ask waits until [`OwnRegion::release`]. Says
    /// whether that came within `patience`.
    #[must_use]
    pub fn hold(&self, patience: Duration) -> bool {
        self.region.gate.hold(patience)
    }

    /// Lets peers at it again, and first those that have waited: in turns, for a tenth of a second at most. The node serves the rest.
    pub fn release(&self) {
        let Some(due) = self.region.gate.let_go() else {
            return;
        };
        let _serving = self.shared.serving(&self.region);
        let begin = Instant::now();
        for _ in 0..due {
            let (gate, is_held) = (&self.region.gate, |call: &LinkCall| {
                self.shared.is_held(call)
            });
            let Some(asked) = gate.next_due(&self.shared.calls, is_held) else {
                return;
            };
            self.shared.region_done(&self.region, &asked);
            if begin.elapsed() >= RELEASE_TIME {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Cells(Arc<Mutex<Vec<u8>>>);

    impl ArrayMemory for Cells {
        fn length(&self) -> usize {
            lock(&self.0).len()
        }

        fn append_to(&self, offset: usize, length: usize, bytes: &mut Vec<u8>) {
            bytes.extend_from_slice(&lock(&self.0)[offset..offset + length]);
        }

        fn write(&self, offset: usize, bytes: &[u8]) {
            lock(&self.0)[offset..offset + bytes.len()].copy_from_slice(bytes);
        }
    }

    fn reply(bulk: Vec<Vec<u8>>) -> RequestAnswer {
        let head = Bytes::new();
        RequestAnswer::Reply { head, bulk }
    }

    #[test]
    fn an_owner_that_gives_other_bytes_than_were_asked_for_is_caught() {
        let ten = || vec![1; 10];
        let cases = [
            (vec![reply(vec![vec![1; 9]])], "got 9 bytes"),
            (vec![reply(vec![vec![1; 11]])], "got 11 bytes"),
            (vec![reply(vec![])], "in 0 parts"),
            (vec![reply(vec![vec![1; 5], vec![1; 5]])], "in 2 parts"),
            (vec![reply(vec![ten()]), reply(vec![ten()])], "second time"),
        ];
        for (answers, shown) in cases {
            let into = Arc::new(Mutex::new(vec![0; 20]));
            let part = ArrayPart::new(0, 20, &[]).expect("few levels");
            let transfer = Transfer {
                state: Mutex::default(),
                changed: Condvar::new(),
                handler: "field.get".to_owned(),
                kind: TransferKind::Get(Box::new(Cells(into.clone()))),
                pieces: part.pieces(10),
            };
            transfer.next().expect("there is a piece");
            for answer in answers {
                transfer.answered(0, answer);
            }
            let error = transfer.wait(Duration::ZERO).expect_err("it is caught");
            assert!(error.to_string().contains(shown), "{error}");
            assert_eq!(lock(&into)[10..], [0; 10]);
        }
    }
}
