//! What was said by which binding, and what is checked of it.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use exoskel_determinism::SplitMix64;
use exoskel_node::links::{LinkCall, MessageContents, RequestAnswer, RequestId};

/// Stands in messages that must be encrypted.
pub(super) const SEALED: [u8; 16] = *b"must be sealed!!";
/// Stands in all others.
const CLEAR: [u8; 16] = *b"may be in clear!";

/// One message: of which binding, between which two losses of its link, and where in the order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Saying {
    pub(super) binding: usize,
    pub(super) epoch: u64,
    pub(super) place: u64,
}

impl Saying {
    pub(super) fn contents(self, is_sealed: bool, bytes: u64, seed: u64) -> MessageContents {
        let mark = if is_sealed { SEALED } else { CLEAR };
        let mut head = Vec::new();
        head.extend((self.binding as u64).to_be_bytes());
        head.extend(self.epoch.to_be_bytes());
        head.extend(self.place.to_be_bytes());
        let mut random = SplitMix64::new(seed ^ self.place ^ (self.epoch << 32));
        let mut part = Vec::new();
        while (part.len() as u64) < bytes {
            part.extend(mark);
            part.extend(random.next_u64().to_be_bytes());
        }
        let bulk = if part.is_empty() {
            vec![]
        } else {
            vec![Bytes::from(part)]
        };
        MessageContents {
            head: head.into(),
            bulk,
            is_gathered: false,
        }
    }

    fn read(head: &[u8]) -> Option<Self> {
        let (fields, rest) = head.as_chunks::<8>();
        let [binding, epoch, place] = fields else {
            return None;
        };
        rest.is_empty().then_some(Self {
            binding: u64::from_be_bytes(*binding) as usize,
            epoch: u64::from_be_bytes(*epoch),
            place: u64::from_be_bytes(*place),
        })
    }
}

/// Whether bytes on a wire show what must be encrypted, and whether they show anything.
pub(super) fn shown(bytes: &[u8]) -> (bool, bool) {
    let shows = |mark: &[u8]| memchr::memmem::find(bytes, mark).is_some();
    (shows(&SEALED), shows(&CLEAR))
}

/// What a binding's holder knows, and its endpoint has got.
#[derive(Default)]
pub(super) struct BindingLedger {
    pub(super) epoch: u64,
    /// In this epoch.
    pub(super) said: u64,
    /// By epoch: how many were said, and how many have come.
    closed: BTreeMap<u64, u64>,
    come: BTreeMap<u64, u64>,
    /// Requests without an outcome.
    open: BTreeMap<RequestId, Saying>,
    /// Their right is gone.
    pub(super) is_revoked: bool,
    /// Rules of its owner are against its holder.
    pub(super) is_barred: bool,
    /// Its owner has refused its holder a startpoint.
    pub(super) is_unlisted: bool,
    /// Its holder or its owner has died.
    pub(super) is_orphan: bool,
}

impl BindingLedger {
    /// The holder was told that something may be lost.
    pub(super) fn told_loss(&mut self) {
        self.closed.insert(self.epoch, self.said);
        self.epoch += 1;
        self.said = 0;
    }

    pub(super) fn requested(&mut self, request: RequestId, saying: Saying) {
        self.open.insert(request, saying);
    }

    /// How many requests have no outcome.
    pub(super) fn unanswered(&self) -> usize {
        self.open.len()
    }

    /// Whether all of the epoch that goes on has to come: of what was said before its link was first opened, a loss is told with the next
    /// message, and there may be none.
    pub(super) fn must_come(&self, is_calm: bool) -> bool {
        is_calm || self.come.contains_key(&self.epoch)
    }

    /// Messages of the epoch that goes on which have not come yet, and requests without an outcome.
    pub(super) fn missing(&self) -> (u64, usize) {
        let come = self.come.get(&self.epoch).copied().unwrap_or(0);
        (self.said - come, self.open.len())
    }
}

/// All of them.
#[derive(Default)]
pub(super) struct Ledger {
    pub(super) bindings: Vec<BindingLedger>,
    /// Which requests are open at which peer: their numbers are the peer's own.
    asked: BTreeSet<(usize, RequestId)>,
    told: BTreeSet<(usize, RequestId)>,
}

impl Ledger {
    pub(super) fn new(bindings: usize) -> Self {
        Self {
            bindings: std::iter::repeat_with(BindingLedger::default)
                .take(bindings)
                .collect(),
            ..Self::default()
        }
    }

    /// A call has come to an endpoint. Gives what it says.
    pub(super) fn call(&mut self, call: &LinkCall) -> Result<Saying, String> {
        let Some(saying) = Saying::read(&call.head) else {
            return Err("a call has contents that nobody has sent".to_owned());
        };
        let Some(binding) = self.bindings.get_mut(saying.binding) else {
            return Err("a call is of a binding that there isn't".to_owned());
        };
        let next = binding.come.entry(saying.epoch).or_default();
        if saying.place != *next {
            return Err(format!(
                "message {} of binding {} came where {next} was due: one is lost, repeated or out of order",
                saying.place, saying.binding
            ));
        }
        *next += 1;
        let said = match saying.epoch == binding.epoch {
            true => binding.said,
            false => binding.closed.get(&saying.epoch).copied().unwrap_or(0),
        };
        if *next > said {
            return Err(format!(
                "more messages of binding {} came than were said",
                saying.binding
            ));
        }
        Ok(saying)
    }

    pub(super) fn asked(&mut self, peer: usize, request: RequestId) {
        self.asked.insert((peer, request));
    }

    /// A request has an outcome.
    pub(super) fn answered(
        &mut self,
        peer: usize,
        binding: usize,
        request: RequestId,
        answer: &RequestAnswer,
    ) -> Result<(), String> {
        if !self.asked.contains(&(peer, request)) || !self.told.insert((peer, request)) {
            return Err(format!("request {request} of peer {peer} has two outcomes"));
        }
        let Some(saying) = self.bindings[binding].open.remove(&request) else {
            return Err(format!("request {request} is of another binding"));
        };
        if let RequestAnswer::Reply { head, .. } = answer
            && Saying::read(head) != Some(saying)
        {
            return Err(format!("request {request} got another one's reply"));
        }
        Ok(())
    }

    /// Whose request it is.
    pub(super) fn binding_of(&self, request: RequestId, of_peer: &[usize]) -> Option<usize> {
        let mut own = of_peer.iter().copied();
        own.find(|binding| self.bindings[*binding].open.contains_key(&request))
    }
}
