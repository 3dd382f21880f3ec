//! Sorts what comes: calls for functions wait for their endpoint's threads, what is posted to an inbox for who takes it; calls of streams and
//! regions are dealt with at once. Answers
//! go to whoever waits, or to the stream or transfer that has asked.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use exoskel_node::links::BindingId;
use exoskel_node::links::{
    LinkCall, LinkError, LinkMachine, MARK, MessageContents, PeerFailure, RequestAnswer, RequestId,
    StreamMessage,
};

use super::calls::waiting_too_much;
use super::compression::is_compressed;
use super::inboxes::SharedInbox;
use super::regions::{RegionUse, SharedRegion, Transfer};
use super::streams::SharedStream;
use super::{LinkShared, lock};

/// What stands behind a handler's name, if that is no function.
#[derive(Clone)]
pub(super) enum HandlerKind {
    Stream,
    Region(Arc<SharedRegion>, RegionUse),
    Inbox(Arc<SharedInbox>),
}

/// Where the answer to a request of our own goes.
pub(super) enum AnswerSink {
    Stream(Arc<SharedStream>, StreamMessage),
    Transfer(Arc<Transfer>, BindingId, u64),
}

/// What is no function's.
#[derive(Default)]
pub(super) struct Intake {
    /// By endpoint and handler.
    kinds: Mutex<BTreeMap<String, BTreeMap<String, HandlerKind>>>,
    sinks: Mutex<BTreeMap<RequestId, AnswerSink>>,
}

impl Intake {
    fn kind(&self, call: &LinkCall) -> Option<HandlerKind> {
        let kinds = lock(&self.kinds);
        kinds.get(&call.endpoint)?.get(&call.handler).cloned()
    }

    pub(super) fn regions(&self) -> Vec<Arc<SharedRegion>> {
        let kinds = lock(&self.kinds);
        let all = kinds.values().flat_map(BTreeMap::values);
        let regions = all.filter_map(|kind| match kind {
            HandlerKind::Region(region, RegionUse::Get) => Some(region.clone()),
            HandlerKind::Region(_, RegionUse::Put)
            | HandlerKind::Stream
            | HandlerKind::Inbox(_) => None,
        });
        regions.collect()
    }

    pub(super) fn inboxes(&self) -> Vec<Arc<SharedInbox>> {
        let kinds = lock(&self.kinds);
        let all = kinds.values().flat_map(BTreeMap::values);
        let inboxes = all.filter_map(|kind| match kind {
            HandlerKind::Inbox(inbox) => Some(inbox.clone()),
            HandlerKind::Region(..) | HandlerKind::Stream => None,
        });
        inboxes.collect()
    }

    pub(super) fn take_sinks(&self) -> BTreeMap<RequestId, AnswerSink> {
        std::mem::take(&mut *lock(&self.sinks))
    }
}

impl LinkShared {
    /// Adds a handler that is no function.
    pub(super) fn add_kind(
        &self,
        endpoint: &str,
        handler: &str,
        kind: HandlerKind,
    ) -> Result<(), LinkError> {
        let mut kinds = lock(&self.intake.kinds);
        lock(&self.machine).add_handler(endpoint, handler)?;
        let of_endpoint = kinds.entry(endpoint.to_owned()).or_default();
        of_endpoint.insert(handler.to_owned(), kind);
        Ok(())
    }

    /// A call has come.
    pub(super) fn take_in(self: &Arc<Self>, call: LinkCall) {
        let is_marked = call.head.first() == Some(&MARK) && !is_compressed(&call.head);
        let handler = &call.handler;
        let expected = match (self.intake.kind(&call), is_marked) {
            (None, false) => {
                let accepted = call.accepted;
                if let Err(got) = self.calls.put(call) {
                    self.end_for_waiting(accepted, waiting_too_much(got));
                }
                return;
            }
            (Some(HandlerKind::Inbox(inbox)), false) => return self.inbox_asked(&inbox, call),
            (Some(HandlerKind::Stream), true) => return self.stream_asked(call),
            (Some(HandlerKind::Region(region, purpose)), true) => {
                return self.region_asked(&region, purpose, call);
            }
            (None, true) => format!("{handler} is a handler: call it by request or post"),
            (Some(HandlerKind::Inbox(_)), true) => {
                format!("{handler} is an inbox: send to it by post({handler:?}, value)")
            }
            (Some(HandlerKind::Stream), false) => {
                format!("{handler} is a stream: open it by stream({handler:?})")
            }
            (Some(HandlerKind::Region(..)), false) => {
                let name = handler
                    .rsplit_once('.')
                    .map_or(&**handler, |(name, _)| name);
                format!("{handler} is a region's: use it by region({name:?})")
            }
        };
        self.answer_failure(&call, &PeerFailure::new("TypeError", expected));
        self.give_back(&call);
    }

    /// What a call has taken from its link's credit goes home.
    pub(super) fn give_back(&self, call: &LinkCall) {
        let place = lock(&self.machine).handled(call);
        self.consumed(place, call.size);
    }

    /// The answer to a call that nobody waits for here. A link that has ended hears nothing.
    pub(super) fn answer_now(&self, call: &LinkCall, contents: MessageContents, is_failure: bool) {
        if !self.is_to_be_answered(call) {
            return;
        }
        let mut machine = lock(&self.machine);
        let Some(outgoing) = machine.answer(call, contents, is_failure) else {
            return self.kept(&machine, call);
        };
        if let Err(error) = self.send(machine, outgoing) {
            let line = format!("an answer of {} can't be sent: {error}", call.handler);
            self.note_by(Some(call.peer.identity()), line);
        }
    }

    /// An answer is kept for another session, perhaps. The node's thread ends links of which too much is kept.
    pub(super) fn kept(&self, machine: &LinkMachine, call: &LinkCall) {
        if call.request.is_some() && machine.keeps_too_much() {
            self.want();
        }
    }

    pub(super) fn answer_failure(&self, call: &LinkCall, failure: &PeerFailure) {
        self.answer_now(call, failure.contents(), true);
    }

    /// Makes a request whose answer goes to `sink`.
    pub(super) fn ask(
        &self,
        id: BindingId,
        handler: &str,
        contents: MessageContents,
        sink: AnswerSink,
    ) -> Result<(), LinkError> {
        self.check_open()?;
        let mut machine = lock(&self.machine);
        let (number, outgoing) = machine.request(id, handler, contents)?;
        lock(&self.intake.sinks).insert(number, sink);
        let sent = self.go_out(machine, outgoing);
        if sent.is_err() {
            lock(&self.machine).forget(id, number);
            lock(&self.intake.sinks).remove(&number);
        }
        sent
    }

    /// An answer has come. Says whether somebody may wait for it.
    pub(super) fn answered(self: &Arc<Self>, request: RequestId, answer: RequestAnswer) -> bool {
        let sink = lock(&self.intake.sinks).remove(&request);
        if let Some(sink) = sink {
            sink.take(self, answer);
            return false;
        }
        // Nobody may wait for it any more.
        let mut answers = lock(&self.answers);
        let place = answers.get_mut(&request);
        place.map(|place| *place = Some(answer)).is_some()
    }
}

impl AnswerSink {
    pub(super) fn take(self, shared: &Arc<LinkShared>, answer: RequestAnswer) {
        match self {
            Self::Stream(stream, asked) => {
                stream.with(shared, |end| end.answered(&asked, answer));
            }
            Self::Transfer(transfer, binding, piece) => {
                transfer.answered(piece, answer);
                shared.transfer_more(binding);
            }
        }
    }
}
