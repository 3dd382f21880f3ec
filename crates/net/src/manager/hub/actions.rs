//! What the router wants done, carried to the slots and the users.

use bytes::Bytes;
use exoskel_link::{CloseReason, Message, MessageKind};
use exoskel_task::router::Effect;

use super::Hub;
use crate::message::ToSlot;
use crate::outlet::StreamEnd;

/// What a slot may have under way besides results: heads, output in pieces, what it lacks.
const BESIDES_RESULTS_BYTES: u64 = 1 << 20;

impl Hub {
    /// Does everything the router wants done, and lets it go out.
    pub(super) fn pump(&mut self) {
        let now = self.now();
        while let Some(effect) = self.router.poll_effect(now) {
            match effect {
                Effect::Send {
                    slot,
                    message,
                    bulk,
                } => self.queue(slot, &message, bulk),
                Effect::Deliver { stream, outcomes } => {
                    if let Some(outlet) = self.outlets.get(&stream) {
                        outlet.deliver(outcomes);
                    }
                }
                Effect::LostTrack { stream } => {
                    if let Some(outlet) = self.outlets.get(&stream) {
                        outlet.end(StreamEnd::LostTrack);
                    }
                }
            }
        }
        self.flush();
        self.publish();
        if self
            .router
            .next_timeout()
            .is_some_and(|next| self.armed.is_none_or(|armed| next < armed))
        {
            self.shared.wake.notify_one();
        }
    }

    pub(super) fn queue(&mut self, number: u32, message: &ToSlot, bulk: Vec<Bytes>) {
        let Some(slot) = self.slots.get(&number) else {
            return;
        };
        let link = if message.is_code() {
            slot.code
        } else {
            slot.tasks
        };
        let (handler, head) = message.encode();
        let bytes = head.len() + bulk.iter().map(Bytes::len).sum::<usize>();
        let message = Message {
            handler,
            kind: MessageKind::Post,
            head,
            bulk,
        };
        if let Err(error) = slot.connection.queue(link, message) {
            // Over a limit, or the session is ending: its end puts the items back.
            slot.connection
                .abort(CloseReason::Fault(error.to_string().into()));
        } else {
            self.tell_watch(number, true, bytes as u64);
        }
        if self.dirty.last() != Some(&number) {
            self.dirty.push(number);
        }
    }

    pub(super) fn flush(&mut self) {
        for number in self.dirty.drain(..) {
            let Some(slot) = self.slots.get(&number) else {
                continue;
            };
            // Before anything leaves that gives the slot more to send.
            if !slot.origin.is_trusted() {
                let expected = self
                    .router
                    .receivable(number)
                    .saturating_add(BESIDES_RESULTS_BYTES);
                slot.connection
                    .with(|session| session.limit_reception(expected));
            }
            slot.connection.flush();
        }
    }

    /// Tells user threads how many items they may hand over, and whether they should hurry.
    fn publish(&self) {
        for opening in self.router.openings() {
            if let Some(outlet) = self.outlets.get(&opening.stream) {
                outlet.set_admissible(opening.admissible);
                outlet.set_hungry(opening.is_hungry);
            }
        }
    }
}
