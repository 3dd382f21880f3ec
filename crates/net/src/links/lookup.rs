//! Asking a node for a startpoint of one of its endpoints: what its rules allow us, it gives.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use exoskel_identity::{Identity, PeerText};
use exoskel_link::LinkRefusal;
use exoskel_link::Protection;
use exoskel_link::capability::{HINTS_MAX, NewStartpoint, RootKey, Startpoint};
use exoskel_node::links::{
    BindingId, LOOKUP_ENDPOINT, LOOKUP_HANDLER, LinkError, MessageContents, RequestAnswer,
    RequestId, is_same_place,
};

use super::{LinkNode, lock};

/// How often the same is asked once more, over another session, when one ends without an answer.
const AGAIN_MAX: u32 = 3;

/// What is looked up, and where.
#[derive(Clone, Debug)]
pub struct LookupQuestion {
    /// The node that has the endpoint. It has to prove that.
    pub node: Identity,
    /// Where it may be found, the best first.
    pub hints: Vec<String>,
    /// Whether the process at one of the hints is meant, and no other one of that node to which there may be a session.
    pub is_by_hints: bool,
    /// The endpoint's name.
    pub endpoint: String,
}

/// A lookup without an answer so far.
#[derive(Debug)]
pub struct PendingLookup {
    question: LookupQuestion,
    binding: BindingId,
    asked: Mutex<LastQuestion>,
}

/// What was asked last.
#[derive(Debug)]
struct LastQuestion {
    request: RequestId,
    /// How often it may be asked once more.
    left: u32,
}

impl PendingLookup {
    /// What asks.
    pub(super) fn binding(&self) -> BindingId {
        self.binding
    }
}

impl LinkNode {
    /// Binds a startpoint that a lookup has found: errors advise to look it up again.
    #[must_use]
    pub fn bind_looked_up(&self, startpoint: Startpoint) -> BindingId {
        lock(&self.shared.machine).bind_looked_up(startpoint)
    }

    /// Asks a node for a startpoint of one of its endpoints. Both numbers must be random.
    ///
    /// # Errors
    /// [`LinkError`]; nothing is asked then.
    pub fn look_up(
        &self,
        question: LookupQuestion,
        key_id: [u8; 16],
        secret: [u8; 32],
    ) -> Result<PendingLookup, LinkError> {
        // The endpoint of lookups is open to everybody who comes in: what is shown there is not looked at.
        let mut key = RootKey::new(LOOKUP_ENDPOINT, key_id, secret)?;
        let startpoint = key.issue(NewStartpoint {
            node: question.node.clone(),
            // Any process of that node answers.
            process: lock(&self.shared.terms).process,
            hints: question.hints.clone(),
            minimum: Protection::Plain,
            bearer: true,
            caveats: Vec::new(),
        })?;
        let mut machine = lock(&self.shared.machine);
        let binding = match question.is_by_hints {
            true => machine.bind_by_hints(startpoint),
            false => machine.bind(startpoint),
        };
        drop(machine);
        match self.request(binding, LOOKUP_HANDLER, question.contents()) {
            Ok(request) => Ok(PendingLookup {
                question,
                binding,
                asked: Mutex::new(LastQuestion {
                    request,
                    left: AGAIN_MAX,
                }),
            }),
            Err(error) => {
                self.unbind(binding);
                Err(error)
            }
        }
    }

    /// Waits for the answer, for `patience` at most. End the lookup by [`LinkNode::end_lookup`] in any case.
    pub fn looked_up(
        &self,
        pending: &PendingLookup,
        patience: Duration,
    ) -> Option<Result<Startpoint, LinkError>> {
        let deadline = Instant::now() + patience;
        let mut asked = lock(&pending.asked);
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let answer = self.wait(pending.binding, asked.request, left)?;
            let is_lost = matches!(answer, RequestAnswer::Lost(LinkError::SessionEnded { .. }));
            if !is_lost || asked.left == 0 {
                return Some(pending.question.startpoint(answer));
            }
            // Whoever has asked can't know whether the question came: to give a startpoint twice changes nothing.
            asked.left -= 1;
            let contents = pending.question.contents();
            match self.request(pending.binding, LOOKUP_HANDLER, contents) {
                Ok(request) => asked.request = request,
                Err(error) => return Some(Err(error)),
            }
        }
    }

    /// Ends a lookup, answered or not.
    pub fn end_lookup(&self, pending: &PendingLookup) {
        self.forget(pending.binding, lock(&pending.asked).request);
        self.unbind(pending.binding);
    }
}

impl LookupQuestion {
    fn contents(&self) -> MessageContents {
        MessageContents {
            head: self.endpoint.clone().into_bytes().into(),
            bulk: Vec::new(),
            is_gathered: false,
        }
    }

    fn startpoint(&self, answer: RequestAnswer) -> Result<Startpoint, LinkError> {
        let unfit = |got: String| LinkError::LookedUp {
            node: self.node.clone(),
            endpoint: self.endpoint.clone(),
            got,
        };
        match answer {
            RequestAnswer::Reply { head, .. } => {
                let given = Startpoint::read(&head).map_err(|error| unfit(error.to_string()))?;
                // Whoever answers could send us to somebody else.
                if *given.node() != self.node || given.endpoint() != self.endpoint {
                    let endpoint = PeerText::new(given.endpoint());
                    return Err(unfit(format!("one of {endpoint} of {}", given.node())));
                }
                // Where we have just reached it comes first.
                let mut hints = self.hints.clone();
                for hint in given.hints() {
                    if !hints.iter().any(|known| is_same_place(known, hint)) {
                        hints.push(hint.clone());
                    }
                }
                hints.truncate(HINTS_MAX);
                Ok(given.with_hints(hints)?)
            }
            RequestAnswer::Failure { head } => {
                let text = String::from_utf8_lossy(&head);
                let text: PeerText = text.as_ref().into();
                Err(LinkError::Refused {
                    node: self.node.clone(),
                    endpoint: self.endpoint.clone(),
                    reason: LinkRefusal::NotAllowed(text),
                })
            }
            RequestAnswer::Lost(error) => Err(error),
        }
    }
}
