//! Streams: ends that users' threads read and write, and those that peers have opened.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use exoskel_node::links::{
    AcceptedId, BindingId, LinkCall, LinkError, LinkStreamEnd, MessageContents, PeerFailure,
    PeerProcess, StreamAction, StreamFault, StreamMessage,
};

use super::intake::{AnswerSink, HandlerKind};
use super::{LinkNode, LinkShared, lock};

/// Streams that one process may have open at another, whatever sessions carry them.
pub const STREAMS_OF_PROCESS_MAX: usize = 64;

/// A stream's name for who is asked: the link, whatever session carries it, and the opener's number.
type StreamKey = (AcceptedId, u64);

/// One end of a stream, and where its other end is.
pub(super) struct SharedStream {
    end: Mutex<LinkStreamEnd<LinkCall>>,
    changed: Condvar,
    /// Held from the decision what is sent until that is sent, so that it is sent in order.
    sending: Mutex<()>,
    place: StreamPlace,
}

enum StreamPlace {
    /// Opened here.
    Opened {
        binding: BindingId,
        handler: String,
        number: u64,
    },
    /// Opened by a peer.
    Accepted {
        key: StreamKey,
        opener: Arc<PeerProcess>,
    },
}

/// The streams of a node.
#[derive(Default)]
pub(super) struct LinkStreams {
    table: Mutex<StreamTable>,
    come: Condvar,
}

#[derive(Default)]
struct StreamTable {
    made: u64,
    accepted: BTreeMap<StreamKey, Arc<SharedStream>>,
    /// Those that peers have opened and that aren't closed here yet, also when they are over: each may hold a thread.
    held: Vec<Weak<SharedStream>>,
    waiting: BTreeMap<String, VecDeque<NewStream>>,
    is_over: bool,
}

struct NewStream {
    stream: Arc<SharedStream>,
    handler: String,
    peer: String,
}

/// A byte stream: like a socket. Dropping it ends it in an error for the other end, unless it was closed.
pub struct LinkStream {
    shared: Arc<LinkShared>,
    stream: Arc<SharedStream>,
}

/// A stream that a peer has opened.
pub struct AcceptedStream {
    /// The stream.
    pub stream: LinkStream,
    /// The handler's name.
    pub handler: String,
    /// The name that the peer has proven.
    pub peer: String,
}

impl LinkNode {
    /// Adds a stream to an endpoint, for links that are opened from now on. [`LinkNode::take_stream`] gives those that peers open.
    ///
    /// # Errors
    /// [`LinkError::NoEndpoint`], [`LinkError::HandlerTaken`].
    pub fn add_stream(&self, endpoint: &str, handler: &str) -> Result<(), LinkError> {
        self.shared.add_kind(endpoint, handler, HandlerKind::Stream)
    }

    /// Opens a stream. The first one of a binding dials. What is wrong is told by the first read or write.
    ///
    /// # Errors
    /// [`LinkError::Closed`].
    pub fn open_stream(&self, id: BindingId, handler: &str) -> Result<LinkStream, LinkError> {
        self.shared.check_open()?;
        let mut table = lock(&self.shared.streams.table);
        table.made += 1;
        let number = table.made;
        drop(table);
        let place = StreamPlace::Opened {
            binding: id,
            handler: handler.to_owned(),
            number,
        };
        let stream = SharedStream::new(LinkStreamEnd::opener(), place);
        stream.with(&self.shared, |_| ());
        Ok(LinkStream {
            shared: self.shared.clone(),
            stream,
        })
    }

    /// Takes the next stream that a peer has opened to an endpoint, after waiting for `patience` at most.
    #[must_use]
    pub fn take_stream(&self, endpoint: &str, patience: Duration) -> Option<AcceptedStream> {
        let streams = &self.shared.streams;
        let deadline = Instant::now() + patience;
        let mut table = lock(&streams.table);
        loop {
            if let Some(new) = table
                .waiting
                .get_mut(endpoint)
                .and_then(VecDeque::pop_front)
            {
                let shared = self.shared.clone();
                let stream = new.stream;
                return Some(AcceptedStream {
                    stream: LinkStream { shared, stream },
                    handler: new.handler,
                    peer: new.peer,
                });
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() || table.is_over {
                return None;
            }
            let waited = streams.come.wait_timeout(table, left);
            table = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl LinkStream {
    /// Reads what is here, after waiting for `patience` at most: none if nothing came in that time, no bytes at the end.
    ///
    /// # Errors
    /// [`StreamFault`]; what came before it has been read.
    pub fn read(
        &self,
        buffer: &mut [u8],
        patience: Duration,
    ) -> Result<Option<usize>, StreamFault> {
        self.wait(patience, |end| end.read(buffer))
    }

    /// Up to `count` bytes that the next read would give, without waiting.
    #[must_use]
    pub fn peek(&self, count: usize) -> Vec<u8> {
        let end = lock(&self.stream.end);
        let front = end.front();
        front[..front.len().min(count)].to_vec()
    }

    /// Writes as much as there is room for, after waiting for some for `patience` at most: none if there was none in that time.
    ///
    /// # Errors
    /// [`StreamFault`].
    pub fn write(&self, bytes: &[u8], patience: Duration) -> Result<Option<usize>, StreamFault> {
        if bytes.is_empty() {
            return Ok(Some(0));
        }
        self.wait(patience, |end| {
            Ok(Some(end.write(bytes)?).filter(|&count| count > 0))
        })
    }

    /// Writes no more. The other end reads to the end of what was written.
    pub fn finish(&self) {
        self.stream.with(&self.shared, LinkStreamEnd::finish);
    }

    /// Waits for `patience` at most until the other end has everything and is closed, and says whether it is. For the end that has opened
    /// the stream.
    ///
    /// # Errors
    /// [`StreamFault`].
    pub fn flushed(&self, patience: Duration) -> Result<bool, StreamFault> {
        let flushed = self.wait(patience, |end| match end.fault() {
            _ if end.is_flushed() => Ok(Some(())),
            Some(fault) => Err(fault.clone()),
            None => Ok(None),
        });
        Ok(flushed?.is_some())
    }

    /// Writes no more and reads no more. What was written still goes out.
    pub fn close(&self) {
        self.stream.with(&self.shared, |end| {
            end.finish();
            end.stop();
        });
    }

    /// Ends it in an error for the other end.
    pub fn fail(&self, failure: &PeerFailure) {
        self.stream.with(&self.shared, |end| {
            end.fail(failure);
            end.finish();
            end.stop();
        });
    }

    fn wait<T>(
        &self,
        patience: Duration,
        mut attempt: impl FnMut(&mut LinkStreamEnd<LinkCall>) -> Result<Option<T>, StreamFault>,
    ) -> Result<Option<T>, StreamFault> {
        let deadline = Instant::now().checked_add(patience);
        let mut end = lock(&self.stream.end);
        loop {
            let come = attempt(&mut end)?;
            let left = deadline.map_or(Duration::MAX, |deadline| {
                deadline.saturating_duration_since(Instant::now())
            });
            if come.is_some() || left.is_zero() {
                drop(end);
                // What was read or written may want to be told.
                self.stream.with(&self.shared, |_| ());
                return Ok(come);
            }
            let left = left.min(super::PATIENCE);
            let waited = self.stream.changed.wait_timeout(end, left);
            end = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl Drop for LinkStream {
    fn drop(&mut self) {
        let (is_over, has_finished) = {
            let mut end = lock(&self.stream.end);
            (end.is_over(), end.write(&[]) == Err(StreamFault::Closed))
        };
        if has_finished {
            self.close();
        } else if !is_over {
            self.fail(&PeerFailure::new(
                "ConnectionError",
                "the stream was dropped before it was closed",
            ));
        }
    }
}

impl SharedStream {
    fn new(end: LinkStreamEnd<LinkCall>, place: StreamPlace) -> Arc<Self> {
        Arc::new(Self {
            end: Mutex::new(end),
            changed: Condvar::new(),
            sending: Mutex::new(()),
            place,
        })
    }

    /// Does something with the end, and sends what comes of it.
    pub(super) fn with(
        self: &Arc<Self>,
        shared: &Arc<LinkShared>,
        action: impl FnOnce(&mut LinkStreamEnd<LinkCall>),
    ) {
        action(&mut lock(&self.end));
        let order = lock(&self.sending);
        loop {
            let actions = lock(&self.end).take_actions();
            if actions.is_empty() {
                break;
            }
            for action in actions {
                if let Err(error) = self.send(shared, action) {
                    lock(&self.end).lost(error);
                }
            }
        }
        drop(order);
        let is_over = lock(&self.end).is_over();
        if let (true, StreamPlace::Accepted { key, .. }) = (is_over, &self.place) {
            lock(&shared.streams.table).accepted.remove(key);
        }
        self.changed.notify_all();
    }

    fn send(
        self: &Arc<Self>,
        shared: &Arc<LinkShared>,
        action: StreamAction<LinkCall>,
    ) -> Result<(), LinkError> {
        match (&self.place, action) {
            (_, StreamAction::Answer(call, contents, is_failure)) => {
                shared.answer_now(&call, contents, is_failure);
                Ok(())
            }
            (
                StreamPlace::Opened {
                    binding,
                    handler,
                    number,
                },
                StreamAction::Ask(message, piece),
            ) => {
                let contents = MessageContents {
                    head: message.head(*number),
                    bulk: piece.into_iter().collect(),
                    is_gathered: false,
                };
                let sink = AnswerSink::Stream(self.clone(), message);
                shared.ask(*binding, handler, contents, sink)
            }
            (
                StreamPlace::Opened {
                    binding,
                    handler,
                    number,
                },
                StreamAction::Tell(message),
            ) => {
                let contents = MessageContents {
                    head: message.head(*number),
                    bulk: Vec::new(),
                    is_gathered: false,
                };
                shared.tell(*binding, handler, contents)
            }
            // Who is asked only answers.
            (StreamPlace::Accepted { .. }, _) => Ok(()),
        }
    }

    /// Whether either end still has to close it.
    fn is_held(&self, accepted: &BTreeMap<StreamKey, Arc<Self>>) -> bool {
        let is_open =
            matches!(&self.place, StreamPlace::Accepted { key, .. } if accepted.contains_key(key));
        is_open || !lock(&self.end).is_closed()
    }

    fn is_opened_by(&self, process: &PeerProcess) -> bool {
        match &self.place {
            StreamPlace::Opened { .. } => false,
            StreamPlace::Accepted { opener, .. } => **opener == *process,
        }
    }

    fn is_of(&self, link: AcceptedId) -> bool {
        matches!(&self.place, StreamPlace::Accepted { key, .. } if key.0 == link)
    }
}

impl LinkShared {
    fn tell(
        &self,
        id: BindingId,
        handler: &str,
        contents: MessageContents,
    ) -> Result<(), LinkError> {
        let mut machine = lock(&self.machine);
        let outgoing = machine.post(id, handler, contents)?;
        self.go_out(machine, outgoing)
    }

    /// A message of a peer's stream.
    pub(super) fn stream_asked(self: &Arc<Self>, mut call: LinkCall) {
        // A stream has a bound of its own: nobody's reading slowly may hold up the link's other messages.
        self.give_back(&call);
        let Some((number, message)) = StreamMessage::read(&call.head) else {
            let failure =
                PeerFailure::new("ValueError", "got a message that is none of a stream's");
            return self.answer_failure(&call, &failure);
        };
        let key = (call.accepted, number);
        let mut table = lock(&self.streams.table);
        let known = table.accepted.get(&key).cloned();
        if let Some(stream) = known {
            drop(table);
            let bulk = std::mem::take(&mut call.bulk);
            let peer = call.peer.identity().clone();
            let new_fault = {
                let mut end = lock(&stream.end);
                let before = end.fault().is_some();
                end.asked(call, message, bulk);
                (!before).then(|| end.fault().cloned()).flatten()
            };
            if let Some(StreamFault::Broken(why)) = new_fault {
                let line = format!("ended a stream of {peer}: {why}");
                self.note_by(Some(&peer), line);
            }
            stream.with(self, |_| ());
            return;
        }
        if message != StreamMessage::Open {
            drop(table);
            return self.answer_now(&call, LinkStreamEnd::<()>::answer_for_none(&message), false);
        }
        let StreamTable { accepted, held, .. } = &mut *table;
        held.retain(|stream| stream.upgrade().is_some_and(|one| one.is_held(accepted)));
        let held = held.iter().filter_map(Weak::upgrade);
        let of_process = held.filter(|stream| stream.is_opened_by(&call.process));
        if of_process.count() >= STREAMS_OF_PROCESS_MAX {
            drop(table);
            let text = format!(
                "got more than {STREAMS_OF_PROCESS_MAX} streams at once from {}, expected fewer: close some",
                call.peer.name()
            );
            return self.answer_failure(&call, &PeerFailure::new("ConnectionError", text));
        }
        // Under the table's lock: the link ends before its streams do, so one that has ended gets no stream any more.
        if !self.is_kept(call.accepted) {
            return;
        }
        let (endpoint, handler) = (call.endpoint.clone(), call.handler.clone());
        let peer = call.peer.name().to_owned();
        let opener = call.process.clone();
        let place = StreamPlace::Accepted { key, opener };
        let stream = SharedStream::new(LinkStreamEnd::acceptor(call), place);
        table.accepted.insert(key, stream.clone());
        table.held.push(Arc::downgrade(&stream));
        table
            .waiting
            .entry(endpoint)
            .or_default()
            .push_back(NewStream {
                stream: stream.clone(),
                handler,
                peer,
            });
        drop(table);
        stream.with(self, |_| ());
        self.streams.come.notify_all();
    }

    /// Links have ended, and the streams that peers had on them.
    pub(super) fn end_streams(
        self: &Arc<Self>,
        error: &LinkError,
        fits: impl Fn(AcceptedId) -> bool,
    ) {
        let mut table = lock(&self.streams.table);
        let mut ended = Vec::new();
        table.accepted.retain(|(link, _), stream| {
            let is_over = fits(*link);
            if is_over {
                ended.push(stream.clone());
            }
            !is_over
        });
        drop(table);
        for stream in ended {
            stream.with(self, |end| end.lost(error.clone()));
        }
    }

    /// A link has ended because its opener lost the right to it: no handler begins with the streams that wait for theirs.
    pub(super) fn drop_waiting_streams(&self, link: AcceptedId) {
        let mut table = lock(&self.streams.table);
        let mut dropped = Vec::new();
        for waiting in table.waiting.values_mut() {
            let (over, left) = std::mem::take(waiting)
                .into_iter()
                .partition(|new| new.stream.is_of(link));
            *waiting = left;
            let over: VecDeque<NewStream> = over;
            dropped.extend(over);
        }
        drop(table);
        drop(dropped);
    }

    /// The node is closed.
    pub(super) fn close_streams(self: &Arc<Self>) {
        self.end_streams(&LinkError::Closed, |_| true);
        let mut table = lock(&self.streams.table);
        table.is_over = true;
        let never_taken = std::mem::take(&mut table.waiting);
        drop(table);
        drop(never_taken);
        self.streams.come.notify_all();
    }
}
