//! Who of the other hosts is gone, and what becomes of it.

use std::sync::Arc;
use std::time::Duration;

use exoskel_transfer::{GivenUp, KeeperId, SaidIndices};

use super::super::Inside;
use crate::links::{BindingId, LinkError, LinkNode, RequestAnswer, RequestId};

/// What has become of a request that is answered at the other one's end only.
enum StayEnd {
    /// It has ended in good order.
    Ended,
    /// It is there, and has given this host up.
    GivenUp(GivenUp),
    /// It can't be reached.
    Lost(String),
}

impl StayEnd {
    fn of(node: &LinkNode, (binding, request): (BindingId, RequestId)) -> Option<Self> {
        if !node.has_answer(request) {
            return None;
        }
        Some(match node.wait(binding, request, Duration::ZERO) {
            Some(RequestAnswer::Reply { .. }) => Self::Ended,
            Some(RequestAnswer::Failure { head }) => {
                Self::GivenUp(serde_json::from_slice(&head).unwrap_or_else(|error| {
                    GivenUp::alone(&format!("it answers what can't be read: {error}"))
                }))
            }
            // It has waited for us in vain, and knows nothing of us any more.
            Some(RequestAnswer::Lost(error @ LinkError::Refused { .. })) => {
                Self::GivenUp(GivenUp::alone(&error.to_string()))
            }
            Some(RequestAnswer::Lost(error)) => Self::Lost(error.to_string()),
            None => Self::Lost("it has ended".to_owned()),
        })
    }
}

impl Inside {
    /// Tells a keeper something of index sets: without it the connection could never be used.
    pub(in crate::keeper) fn say_indices(&mut self, keeper: KeeperId, said: &SaidIndices) {
        let said = self
            .others
            .as_ref()
            .map(|others| others.say_indices(keeper, said));
        if let Some(Err(error)) = said {
            self.lose_keeper(keeper, &error.to_string());
        }
    }

    /// Looks at the requests that have no answer as long as others are there.
    pub(in crate::keeper) fn notice_losses(&mut self, is_idle: bool) {
        let Some(others) = &mut self.others else {
            return;
        };
        if others.has_ended {
            return;
        }
        let node = Arc::clone(&others.node);
        let coupler = others.coupler.as_mut();
        if let Some(coupler) = coupler.filter(|coupler| coupler.lost.is_none()) {
            match StayEnd::of(&node, coupler.stay) {
                None => {}
                Some(StayEnd::Ended) => coupler.has_ended = true,
                Some(StayEnd::Lost(_) | StayEnd::GivenUp(_)) if coupler.has_ended => {}
                Some(StayEnd::Lost(why)) => {
                    coupler.lost = Some(why.clone());
                    self.keeper.coupler_lost(&why);
                }
                Some(StayEnd::GivenUp(given_up)) => {
                    coupler.lost = Some(format!("it has given this host up: {}", given_up.why));
                    self.keeper.given_up(given_up);
                }
            }
        }
        // What it has said before comes first.
        let coupler = others.coupler.as_ref();
        if is_idle && coupler.is_some_and(|coupler| coupler.has_ended) {
            return self.end_with_coupler();
        }
        let mut lost = Vec::new();
        for (number, keeper) in &mut others.keepers {
            if keeper.lost.is_some() {
                continue;
            }
            if keeper.has_ended && !is_idle {
                continue;
            }
            let end = match keeper.has_ended {
                true => Some(StayEnd::Ended),
                false => StayEnd::of(&node, keeper.stay),
            };
            match end {
                None => {}
                Some(StayEnd::Ended) if !is_idle => keeper.has_ended = true,
                Some(StayEnd::Ended) => lost.push((*number, "it has ended".to_owned())),
                Some(StayEnd::GivenUp(given_up)) => {
                    let why = format!("it has given this host up: {}", given_up.why);
                    lost.push((*number, why));
                }
                Some(StayEnd::Lost(why)) => lost.push((*number, why)),
            }
        }
        for (number, why) in lost {
            self.lose_keeper(number, &why);
        }
    }

    /// The coupler has ended in good order. Who is still here has nothing more to wait for there.
    pub(in crate::keeper) fn end_with_coupler(&mut self) {
        let Some(others) = &mut self.others else {
            return;
        };
        others.has_ended = true;
        if let Some(coupler) = &mut others.coupler {
            let why = coupler
                .lost
                .get_or_insert_with(|| "it has ended".to_owned());
            self.keeper.coupler_lost(why);
        }
    }

    /// A keeper can't be reached any more.
    pub(in crate::keeper) fn lose_keeper(&mut self, keeper: KeeperId, why: &str) {
        let Some(others) = &mut self.others else {
            return;
        };
        if others.has_ended || !others.give_up(keeper, GivenUp::alone(why)) {
            return;
        }
        self.keeper.sends_no_more(keeper);
        match &mut self.coupler {
            Some(coupler) => coupler.keeper_lost(keeper, why),
            None => self.keeper.keeper_unreachable(keeper, why),
        }
    }
}
