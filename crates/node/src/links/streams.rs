//! Byte streams over a link: the two ends, without sockets, threads and clocks.
//!
//! A stream is opened by the side that opened its link. It sends *pieces* as requests, which are answered when they have been read; and it
//! *pulls*: requests that are answered with a piece as soon as there is one. So neither side ever has more than
//! [`STREAM_PIECES_MAX`] pieces that nobody has read, and messages of other streams and handlers of the link pass by.

use std::collections::VecDeque;

use bytes::{Buf, Bytes, BytesMut};
use thiserror::Error;

use super::marked::{HeadReader, HeadWriter};
use super::{LinkError, MessageContents, PeerFailure, RequestAnswer};

/// The largest piece of a stream.
pub const STREAM_PIECE_BYTES_MAX: usize = 128 << 10;

/// Pieces of one direction that nobody has read yet, at most.
pub const STREAM_PIECES_MAX: usize = 8;

/// Bytes that a writer may leave to be sent, at most.
pub const STREAM_KEPT_BYTES_MAX: usize = 1 << 20;

/// The kind of a program's failure that has written to who reads no more.
const WRITES_IN_VAIN: &str = "BrokenPipeError";

/// Why a stream can't be read or written any more.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum StreamFault {
    /// Its link has ended, or was never opened.
    #[error(transparent)]
    Link(#[from] LinkError),
    /// The other end's program failed.
    #[error("the other end of the stream raised {0}")]
    Failed(PeerFailure),
    /// The other end broke the rules.
    #[error("the other end of the stream broke the rules: {0}")]
    Broken(String),
    /// The other end reads no more.
    #[error("the other end reads no more of this stream")]
    Stopped,
    /// It was closed here.
    #[error("the stream is closed for this")]
    Closed,
}

/// What the opener of a stream says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StreamMessage {
    /// Opens it. Answered when the endpoint takes it.
    Open,
    /// One piece, which is the message's only bulk part. Answered when it has been read.
    Piece {
        /// How many came before.
        number: u64,
    },
    /// Asks for a piece.
    Pull {
        /// How often it has been asked before.
        number: u64,
    },
    /// No more pieces come. Answered when the other end is closed, or has failed.
    Finish,
    /// The opener reads no more. A post.
    Stop,
    /// The opener has failed. A post.
    Fail(PeerFailure),
}

impl StreamMessage {
    /// The head of the message, for the opener's stream of this number.
    #[must_use]
    pub fn head(&self, stream: u64) -> Bytes {
        let of = |operation| HeadWriter::new(operation).number(stream);
        match self {
            Self::Open => of(1),
            Self::Piece { number } => of(2).number(*number),
            Self::Pull { number } => of(3).number(*number),
            Self::Finish => of(4),
            Self::Stop => of(5),
            Self::Fail(failure) => of(6).text(&failure.kind, 100).text(&failure.text, 4096),
        }
        .head()
    }

    /// The stream's number and the message, if that is what the bytes are.
    #[must_use]
    pub fn read(head: &[u8]) -> Option<(u64, Self)> {
        let mut reader = HeadReader::new(head)?;
        let (operation, stream) = (reader.byte()?, reader.number()?);
        let message = match operation {
            1 => Self::Open,
            2 => Self::Piece {
                number: reader.number()?,
            },
            3 => Self::Pull {
                number: reader.number()?,
            },
            4 => Self::Finish,
            5 => Self::Stop,
            6 => Self::Fail(PeerFailure {
                kind: reader.text(100)?,
                text: reader.text(4096)?,
            }),
            _ => return None,
        };
        reader.is_at_end().then_some((stream, message))
    }
}

/// How a request of a stream is answered: that a piece was read, or is there and is or isn't the last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StreamAnswer {
    Done,
    /// To a piece: nobody reads any more. To a pull: this was the last.
    End,
}

impl StreamAnswer {
    fn contents(self, piece: Bytes) -> MessageContents {
        let bulk = if piece.is_empty() {
            Vec::new()
        } else {
            vec![piece]
        };
        let head = HeadWriter::new(match self {
            Self::Done => 0,
            Self::End => 1,
        })
        .head();
        MessageContents {
            head,
            bulk,
            is_gathered: false,
        }
    }

    fn read(head: &[u8]) -> Option<Self> {
        let mut reader = HeadReader::new(head)?;
        let answer = match reader.byte()? {
            0 => Self::Done,
            1 => Self::End,
            _ => return None,
        };
        reader.is_at_end().then_some(answer)
    }
}

/// What an end of a stream wants to be sent. A `Call` is whatever its driver answers calls by.
#[derive(Debug)]
pub enum StreamAction<Call> {
    /// A request, whose answer goes to [`LinkStreamEnd::answered`].
    Ask(StreamMessage, Option<Bytes>),
    /// A post.
    Tell(StreamMessage),
    /// An answer to a call; whether it is a failure.
    Answer(Call, MessageContents, bool),
}

/// A piece that has come, and the call that is answered when it has been read.
struct StreamPiece<Call> {
    bytes: Bytes,
    call: Option<Call>,
}

/// One end of a stream.
pub struct LinkStreamEnd<Call> {
    incoming: VecDeque<StreamPiece<Call>>,
    /// The other end has finished: nothing comes behind what is here.
    is_read_out: bool,
    /// We read no more.
    has_stopped: bool,
    outgoing: BytesMut,
    /// We write no more.
    has_finished: bool,
    /// Why our program has failed, to be told behind what it has written.
    last_word: Option<PeerFailure>,
    /// The other end reads no more.
    is_stopped: bool,
    fault: Option<StreamFault>,
    actions: VecDeque<StreamAction<Call>>,
    role: StreamRole<Call>,
}

enum StreamRole<Call> {
    Opener(StreamOpener),
    Acceptor(StreamAcceptor<Call>),
}

#[derive(Default)]
struct StreamOpener {
    is_asked: bool,
    /// Whether the other end has been told that we read no more.
    has_told_stop: bool,
    pieces_sent: u64,
    /// Pieces without an answer.
    pieces_unread: usize,
    pulls_sent: u64,
    pulls_answered: u64,
    /// Whether the other end has been told that we write no more, and whether it has answered.
    finish: Told,
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Told {
    #[default]
    No,
    Yes,
    Answered,
}

struct StreamAcceptor<Call> {
    pieces_come: u64,
    pulls_come: u64,
    pulls: VecDeque<Call>,
    /// The opener's *finish*, until we are closed.
    finish: Option<Call>,
    /// The opener has had the end of what we write, or wants no more of it.
    is_told: bool,
}

impl<Call> LinkStreamEnd<Call> {
    /// The end of who opens it.
    #[must_use]
    pub fn opener() -> Self {
        Self::new(StreamRole::Opener(StreamOpener::default()))
    }

    /// The end of who is asked, by this call.
    #[must_use]
    pub fn acceptor(open: Call) -> Self {
        let mut made = Self::new(StreamRole::Acceptor(StreamAcceptor {
            pieces_come: 0,
            pulls_come: 0,
            pulls: VecDeque::new(),
            finish: None,
            is_told: false,
        }));
        made.answer(open, StreamAnswer::Done);
        made
    }

    fn new(role: StreamRole<Call>) -> Self {
        Self {
            incoming: VecDeque::new(),
            is_read_out: false,
            has_stopped: false,
            outgoing: BytesMut::new(),
            has_finished: false,
            last_word: None,
            is_stopped: false,
            fault: None,
            actions: VecDeque::new(),
            role,
        }
    }

    /// Bytes that are here to be read.
    #[must_use]
    pub fn front(&self) -> &[u8] {
        self.incoming.front().map_or(&[], |piece| &piece.bytes)
    }

    /// Reads what is here, as far as the buffer takes it: none if nothing is here yet, and no bytes at the end.
    ///
    /// # Errors
    /// [`StreamFault`]. What came before a fault is read first.
    pub fn read(&mut self, buffer: &mut [u8]) -> Result<Option<usize>, StreamFault> {
        if self.has_stopped {
            return Err(StreamFault::Closed);
        }
        let mut count = 0;
        while count < buffer.len()
            && let Some(piece) = self.incoming.front_mut()
        {
            let taken = piece.bytes.len().min(buffer.len() - count);
            piece.bytes.copy_to_slice(&mut buffer[count..count + taken]);
            count += taken;
            if piece.bytes.is_empty()
                && let Some(piece) = self.incoming.pop_front()
                && let Some(call) = piece.call
            {
                self.answer(call, StreamAnswer::Done);
            }
        }
        if count > 0 || buffer.is_empty() || self.is_at_end() {
            return Ok(Some(count));
        }
        self.fault.clone().map_or(Ok(None), Err)
    }

    /// Whether everything that the other end wrote has been read, and it writes no more.
    #[must_use]
    pub fn is_at_end(&self) -> bool {
        self.is_read_out && self.incoming.is_empty()
    }

    /// Takes bytes to be sent, as many as there is room for.
    ///
    /// # Errors
    /// [`StreamFault`].
    pub fn write(&mut self, bytes: &[u8]) -> Result<usize, StreamFault> {
        if self.has_finished {
            return Err(StreamFault::Closed);
        }
        if let Some(fault) = &self.fault {
            return Err(fault.clone());
        }
        if self.is_stopped {
            return Err(StreamFault::Stopped);
        }
        let room = STREAM_KEPT_BYTES_MAX.saturating_sub(self.outgoing.len());
        let count = bytes.len().min(room);
        self.outgoing.extend_from_slice(&bytes[..count]);
        Ok(count)
    }

    /// We write no more: the other end is told when everything has gone out.
    pub fn finish(&mut self) {
        self.has_finished = true;
    }

    /// We read no more: what is here is dropped, and the other end is told.
    pub fn stop(&mut self) {
        if std::mem::replace(&mut self.has_stopped, true) {
            return;
        }
        for piece in std::mem::take(&mut self.incoming) {
            if let Some(call) = piece.call {
                self.answer(call, StreamAnswer::End);
            }
        }
    }

    /// Our program has failed: the other end is told why. Who was asked says so behind what has been written; who has opened the
    /// stream, at once.
    pub fn fail(&mut self, failure: &PeerFailure) {
        if self.fault.is_some() {
            return;
        }
        match &self.role {
            StreamRole::Opener(opener) => {
                if opener.is_asked {
                    let told = StreamMessage::Fail(failure.clone());
                    self.actions.push_back(StreamAction::Tell(told));
                }
                self.end(StreamFault::Closed, failure);
            }
            StreamRole::Acceptor(_) if self.is_closed() => {}
            // Who reads no more knows why nobody can write to it.
            StreamRole::Acceptor(_) if self.is_stopped && failure.kind == WRITES_IN_VAIN => {
                self.finish();
                self.stop();
            }
            StreamRole::Acceptor(_) => self.fail_acceptor(failure),
        }
    }

    fn fail_acceptor(&mut self, failure: &PeerFailure) {
        self.has_finished = true;
        self.last_word = Some(failure.clone());
        if let StreamRole::Acceptor(acceptor) = &mut self.role {
            acceptor.is_told = false;
        }
        if self.outgoing.is_empty() {
            // Whoever still writes hears it at once.
            for piece in std::mem::take(&mut self.incoming) {
                if let Some(call) = piece.call {
                    self.actions
                        .push_back(StreamAction::Answer(call, failure.contents(), true));
                }
            }
        }
        self.stop();
    }

    /// The link is gone, or a message can't be sent.
    pub fn lost(&mut self, error: LinkError) {
        let failure = PeerFailure::new("ConnectionError", error.to_string());
        self.end(StreamFault::Link(error), &failure);
    }

    /// What is wrong with it, if anything is.
    #[must_use]
    pub fn fault(&self) -> Option<&StreamFault> {
        self.fault.as_ref()
    }

    /// Whether the other end has everything that we wrote, knows that it was all, and is closed if we have opened the stream.
    #[must_use]
    pub fn is_flushed(&self) -> bool {
        match &self.role {
            StreamRole::Opener(opener) => opener.finish == Told::Answered,
            StreamRole::Acceptor(acceptor) => acceptor.is_told,
        }
    }

    /// Whether we neither read nor write any more.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.has_finished && self.has_stopped
    }

    /// Whether nobody needs this end any more.
    #[must_use]
    pub fn is_over(&self) -> bool {
        let is_closed = self.is_closed();
        match &self.role {
            StreamRole::Opener(_) => self.fault.is_some() || is_closed && self.is_flushed(),
            StreamRole::Acceptor(acceptor) => match &self.fault {
                Some(_) => acceptor.is_told,
                None => is_closed && acceptor.is_told && acceptor.finish.is_none(),
            },
        }
    }

    /// What is to be sent now, in order.
    pub fn take_actions(&mut self) -> Vec<StreamAction<Call>> {
        match &mut self.role {
            StreamRole::Opener(opener) if self.fault.is_none() => {
                let wants = Wants {
                    has_finished: self.has_finished,
                    has_stopped: self.has_stopped,
                    is_read_out: self.is_read_out,
                    unread: self.incoming.len(),
                };
                opener.ask(&wants, &mut self.outgoing, &mut self.actions);
            }
            StreamRole::Acceptor(acceptor) if self.fault.is_none() => {
                let last_word = self.last_word.as_ref();
                let outgoing = &mut self.outgoing;
                acceptor.answer_pulls(outgoing, self.has_finished, last_word, &mut self.actions);
                let is_read_first = last_word.is_some() && !outgoing.is_empty();
                if self.has_finished && self.has_stopped && !is_read_first {
                    acceptor.answer_finish(last_word, &mut self.actions);
                }
            }
            _ => {}
        }
        self.actions.drain(..).collect()
    }

    /// The answer to something that the opener asked.
    pub fn answered(&mut self, asked: &StreamMessage, answer: RequestAnswer) {
        let (head, bulk) = match answer {
            RequestAnswer::Reply { head, bulk } => (head, bulk),
            RequestAnswer::Lost(error) => return self.lost(error),
            RequestAnswer::Failure { head } => {
                let failure = PeerFailure::read(&head);
                return self.end(StreamFault::Failed(failure.clone()), &failure);
            }
        };
        if self.fault.is_some() {
            return;
        }
        let Some(answer) = StreamAnswer::read(&head) else {
            return self.broken("got an answer that is none of a stream's");
        };
        let StreamRole::Opener(opener) = &mut self.role else {
            return;
        };
        match asked {
            StreamMessage::Piece { .. } => {
                opener.pieces_unread = opener.pieces_unread.saturating_sub(1);
                if answer == StreamAnswer::End {
                    self.peer_stopped();
                }
            }
            StreamMessage::Finish => opener.finish = Told::Answered,
            StreamMessage::Pull { number } => {
                if *number != opener.pulls_answered {
                    return self.broken("got answers out of order");
                }
                opener.pulls_answered += 1;
                if self.is_read_out || self.has_stopped {
                    self.is_read_out |= answer == StreamAnswer::End;
                    return;
                }
                let bytes: usize = bulk.iter().map(Vec::len).sum();
                if bulk.len() > 1
                    || bytes > STREAM_PIECE_BYTES_MAX
                    || (bytes == 0 && answer == StreamAnswer::Done)
                {
                    return self.broken(&format!(
                        "got a piece of {bytes} bytes in {} parts, expected 1 to {STREAM_PIECE_BYTES_MAX} in one",
                        bulk.len()
                    ));
                }
                self.incoming
                    .extend(bulk.into_iter().map(|bytes| StreamPiece {
                        bytes: bytes.into(),
                        call: None,
                    }));
                self.is_read_out = answer == StreamAnswer::End;
            }
            _ => {}
        }
    }

    /// Answers what is said of a stream that is not there any more: nobody reads, and nothing comes.
    #[must_use]
    pub fn answer_for_none(message: &StreamMessage) -> MessageContents {
        let answer = match message {
            StreamMessage::Finish => StreamAnswer::Done,
            _ => StreamAnswer::End,
        };
        answer.contents(Bytes::new())
    }

    /// The opener says something, by this call. An answer to a post goes nowhere.
    pub fn asked(&mut self, call: Call, message: StreamMessage, bulk: Vec<Vec<u8>>) {
        if let Some(failure) = self.failure() {
            if let StreamRole::Acceptor(acceptor) = &mut self.role {
                acceptor.is_told = true;
            }
            self.actions
                .push_back(StreamAction::Answer(call, failure.contents(), true));
            return;
        }
        let StreamRole::Acceptor(acceptor) = &mut self.role else {
            return;
        };
        match message {
            StreamMessage::Open => self.broken_by(call, "got a stream a second time"),
            StreamMessage::Piece { number } => {
                let bytes: usize = bulk.iter().map(Vec::len).sum();
                let is_next = number == acceptor.pieces_come;
                acceptor.pieces_come += 1;
                if !is_next || self.is_read_out {
                    self.broken_by(call, "got a piece that is not the next one");
                } else if bulk.len() != 1 || bytes == 0 || bytes > STREAM_PIECE_BYTES_MAX {
                    let why = format!(
                        "got a piece of {bytes} bytes in {} parts, expected 1 to {STREAM_PIECE_BYTES_MAX} in one",
                        bulk.len()
                    );
                    self.broken_by(call, &why);
                } else if self.has_stopped {
                    self.answer(call, StreamAnswer::End);
                } else if self.incoming.len() >= STREAM_PIECES_MAX {
                    let why = format!(
                        "got more than {STREAM_PIECES_MAX} pieces before any was read: who writes has to wait for answers"
                    );
                    self.broken_by(call, &why);
                } else {
                    self.incoming.push_back(StreamPiece {
                        bytes: bulk.into_iter().next().unwrap_or_default().into(),
                        call: Some(call),
                    });
                }
            }
            StreamMessage::Pull { number } => {
                let is_next = number == acceptor.pulls_come;
                acceptor.pulls_come += 1;
                if !is_next || acceptor.pulls.len() >= STREAM_PIECES_MAX {
                    let why = format!(
                        "got a pull that is not the next one, or more than {STREAM_PIECES_MAX} without an answer"
                    );
                    self.broken_by(call, &why);
                } else {
                    acceptor.pulls.push_back(call);
                }
            }
            StreamMessage::Finish if acceptor.finish.is_some() => {
                self.broken_by(call, "got the end of a stream a second time");
            }
            StreamMessage::Finish => {
                self.is_read_out = true;
                acceptor.finish = Some(call);
            }
            StreamMessage::Stop => self.peer_stopped(),
            StreamMessage::Fail(failure) => {
                self.end(StreamFault::Failed(failure.clone()), &failure)
            }
        }
    }

    fn peer_stopped(&mut self) {
        self.is_stopped = true;
        self.outgoing.clear();
        match &mut self.role {
            // The answer to its *finish* says how the other end has ended.
            StreamRole::Opener(_) => {}
            StreamRole::Acceptor(acceptor) => {
                // Who has failed still has to say so.
                acceptor.is_told |= self.last_word.is_none();
                for call in std::mem::take(&mut acceptor.pulls) {
                    let contents = StreamAnswer::End.contents(Bytes::new());
                    self.actions
                        .push_back(StreamAction::Answer(call, contents, false));
                }
            }
        }
    }

    fn answer(&mut self, call: Call, answer: StreamAnswer) {
        let contents = answer.contents(Bytes::new());
        self.actions
            .push_back(StreamAction::Answer(call, contents, false));
    }

    fn broken(&mut self, why: &str) {
        let failure = PeerFailure::new("ConnectionError", why);
        if matches!(self.role, StreamRole::Opener(_)) && self.fault.is_none() {
            let told = StreamMessage::Fail(failure.clone());
            self.actions.push_back(StreamAction::Tell(told));
        }
        self.end(StreamFault::Broken(why.to_owned()), &failure);
    }

    fn broken_by(&mut self, call: Call, why: &str) {
        self.broken(why);
        let failure = PeerFailure::new("ConnectionError", why);
        self.actions
            .push_back(StreamAction::Answer(call, failure.contents(), true));
    }

    /// Nothing more goes out, and everything that waits for an answer gets this one.
    fn end(&mut self, fault: StreamFault, failure: &PeerFailure) {
        if self.fault.is_some() {
            return;
        }
        self.fault = Some(fault);
        self.outgoing.clear();
        if let StreamRole::Acceptor(acceptor) = &mut self.role {
            let pieces = self.incoming.iter_mut();
            let calls: Vec<_> = pieces
                .filter_map(|piece| piece.call.take())
                .chain(acceptor.pulls.drain(..))
                .chain(acceptor.finish.take())
                .collect();
            acceptor.is_told |= !calls.is_empty()
                || !matches!(
                    self.fault,
                    Some(StreamFault::Closed | StreamFault::Broken(_))
                );
            // Without a link there is nobody to tell.
            if matches!(self.fault, Some(StreamFault::Link(_))) {
                return;
            }
            for call in calls {
                self.actions
                    .push_back(StreamAction::Answer(call, failure.contents(), true));
            }
        }
    }

    /// What the opener is told of a stream that has failed here.
    fn failure(&self) -> Option<PeerFailure> {
        Some(match self.fault.as_ref()? {
            StreamFault::Failed(failure) => failure.clone(),
            other => PeerFailure::new("ConnectionError", other.to_string()),
        })
    }
}

impl StreamOpener {
    fn ask<Call>(
        &mut self,
        wants: &Wants,
        outgoing: &mut BytesMut,
        actions: &mut VecDeque<StreamAction<Call>>,
    ) {
        let mut ask = |message, piece| actions.push_back(StreamAction::Ask(message, piece));
        if !self.is_asked {
            self.is_asked = true;
            ask(StreamMessage::Open, None);
        }
        while !outgoing.is_empty() && self.pieces_unread < STREAM_PIECES_MAX {
            let piece = next_piece(outgoing);
            let number = self.pieces_sent;
            self.pieces_sent += 1;
            self.pieces_unread += 1;
            ask(StreamMessage::Piece { number }, Some(piece));
        }
        if wants.has_finished && outgoing.is_empty() && self.finish == Told::No {
            self.finish = Told::Yes;
            ask(StreamMessage::Finish, None);
        }
        if wants.is_read_out {
            return;
        }
        if wants.has_stopped {
            if !std::mem::replace(&mut self.has_told_stop, true) {
                actions.push_back(StreamAction::Tell(StreamMessage::Stop));
            }
            return;
        }
        let mut pulls = (self.pulls_sent - self.pulls_answered) as usize;
        while pulls + wants.unread < STREAM_PIECES_MAX {
            let number = self.pulls_sent;
            self.pulls_sent += 1;
            pulls += 1;
            ask(StreamMessage::Pull { number }, None);
        }
    }
}

/// How the opener's end stands.
struct Wants {
    has_finished: bool,
    has_stopped: bool,
    is_read_out: bool,
    /// Pieces that are here.
    unread: usize,
}

impl<Call> StreamAcceptor<Call> {
    fn answer_pulls(
        &mut self,
        outgoing: &mut BytesMut,
        has_finished: bool,
        last_word: Option<&PeerFailure>,
        actions: &mut VecDeque<StreamAction<Call>>,
    ) {
        while (!outgoing.is_empty() || has_finished)
            && let Some(call) = self.pulls.pop_front()
        {
            if let Some(failure) = last_word.filter(|_| outgoing.is_empty()) {
                self.is_told = true;
                actions.push_back(StreamAction::Answer(call, failure.contents(), true));
                continue;
            }
            let piece = next_piece(outgoing);
            let answer = if has_finished && outgoing.is_empty() && last_word.is_none() {
                self.is_told = true;
                StreamAnswer::End
            } else {
                StreamAnswer::Done
            };
            actions.push_back(StreamAction::Answer(call, answer.contents(piece), false));
        }
    }

    /// We are closed: the opener, if it has finished, is told how.
    fn answer_finish(
        &mut self,
        last_word: Option<&PeerFailure>,
        actions: &mut VecDeque<StreamAction<Call>>,
    ) {
        let Some(call) = self.finish.take() else {
            return;
        };
        self.is_told |= last_word.is_some();
        let (contents, is_failure) = match last_word {
            Some(failure) => (failure.contents(), true),
            None => (StreamAnswer::Done.contents(Bytes::new()), false),
        };
        actions.push_back(StreamAction::Answer(call, contents, is_failure));
    }
}

fn next_piece(outgoing: &mut BytesMut) -> Bytes {
    let count = outgoing.len().min(STREAM_PIECE_BYTES_MAX);
    outgoing.split_to(count).freeze()
}

#[cfg(test)]
mod tests;
