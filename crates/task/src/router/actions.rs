//! What the scheduler wants done, as messages.

use std::time::Duration;

use bytes::Bytes;
use exoskel_flow::{Action, Failure, Results, StreamId};

use super::{Effect, Function, Router, Slot};
use crate::message::{Digest, Execute, SlotEndpoint, ToSlot};
use crate::outcome::{Contents, Outcomes};

impl Router {
    /// What the driver must do next, if anything.
    pub fn poll_effect(&mut self, now: Duration) -> Option<Effect> {
        loop {
            if let Some(effect) = self.effects.pop_front() {
                return Some(effect);
            }
            let action = self.scheduler.poll_action(now)?;
            self.act(action, now);
        }
    }

    fn act(&mut self, action: Action, now: Duration) {
        match action {
            Action::Dispatch { .. } => self.dispatch(action, now),
            Action::Recall { slot, frame, count } => {
                let frame = frame.0;
                self.send(slot.0, &ToSlot::Recall { frame, count });
            }
            Action::Grant { slot, frame, index } => {
                let frame = frame.0;
                self.send(slot.0, &ToSlot::Grant { frame, index });
            }
            Action::Failed {
                stream,
                segment,
                index,
                failure: Failure::WorkersLost { count },
            } => {
                let last_end = self.last_end.clone();
                let contents = Contents::WorkersLost { count, last_end };
                self.fail((stream, segment), index, contents);
            }
        }
    }

    /// An item has failed in this segment of its stream.
    fn fail(&mut self, (stream, segment): (StreamId, u16), index: u64, contents: Contents) {
        let Some(&number) = self.numbers.get(&stream) else {
            return;
        };
        let stream = self.streams.get_mut(&number);
        if let Some(tokens) = stream.and_then(|stream| stream.tokens.get_mut(usize::from(segment)))
        {
            tokens.release(&(index..index + 1));
        }
        let outcomes = Outcomes {
            first: index,
            count: 1,
            contents,
        };
        let stream = number;
        self.effects.push_back(Effect::Deliver { stream, outcomes });
    }

    fn dispatch(&mut self, action: Action, now: Duration) {
        let Action::Dispatch {
            slot,
            frame,
            stream,
            segment,
            first,
            count,
            grant,
            lease,
        } = action
        else {
            return;
        };
        let Some(&number) = self.numbers.get(&stream) else {
            return;
        };
        self.define(slot.0, number);
        let tokens = self
            .streams
            .get(&number)
            .and_then(|stream| stream.tokens.get(usize::from(segment)));
        let Some(collected) =
            tokens.and_then(|tokens| tokens.collect(first..first + u64::from(count)))
        else {
            let lost = Effect::LostTrack { stream: number };
            return self.effects.push_back(lost);
        };
        let execute = Execute {
            frame: frame.0,
            stream: stream.0,
            segment,
            lease,
            grant,
            first,
            count,
            records: collected.records,
        };
        let message = ToSlot::Execute(execute).with_bulk(collected.bulk);
        let known = self.slots.get(&slot.0);
        let maximum = known.map_or(u64::MAX, |known| known.message_bytes_max);
        let bytes = message.bytes();
        if count == 1 && bytes > maximum {
            // The session would not take it. So the item ends as if the slot had answered: within any grant, without a byte.
            let answer = Results {
                frame,
                first,
                sizes: &[0],
                ended: &[first],
                busy: Duration::ZERO,
            };
            if let Ok(Some(_)) = self.scheduler.results(slot, answer, now) {
                let contents = Contents::TooLarge { bytes, maximum };
                self.fail((stream, segment), first, contents);
            }
            return;
        }
        self.effects.push_back(Effect::Send {
            slot: slot.0,
            endpoint: SlotEndpoint::Task,
            message,
        });
    }

    /// Sends a stream's program and functions to a slot that doesn't have them yet.
    fn define(&mut self, slot: u32, number: u64) {
        let (Some(stream), Some(known)) = (self.streams.get(&number), self.slots.get_mut(&slot))
        else {
            return;
        };
        if !known.streams.insert(number) {
            return;
        }
        let Slot {
            functions, streams, ..
        } = known;
        let is_in_use = |digest: &Digest| {
            let of_slot = streams.iter().filter_map(|number| self.streams.get(number));
            let mut functions = of_slot.flat_map(|stream| &stream.functions);
            functions.any(|function| function.digest == *digest)
        };
        let to_send = functions.need(&stream.functions, self.function_bytes_max, is_in_use);
        let define = ToSlot::Define {
            stream: stream.id.0,
            call: stream.call,
            rules: stream.rules,
            segments: stream.segments.clone(),
        };
        let functions = stream.functions.iter();
        let missing: Vec<Function> = functions
            .filter(|function| to_send.missing.contains(&function.digest))
            .cloned()
            .collect();
        for digest in to_send.discarded {
            self.send(slot, &ToSlot::Discard { digest });
        }
        for Function { digest, pickle } in missing {
            self.send(slot, &ToSlot::Function { digest, pickle });
        }
        self.send(slot, &define);
    }

    pub(super) fn send(&mut self, slot: u32, message: &ToSlot) {
        self.send_with_bulk(slot, message, Vec::new());
    }

    fn send_with_bulk(&mut self, slot: u32, message: &ToSlot, bulk: Vec<Bytes>) {
        self.effects.push_back(Effect::Send {
            slot,
            endpoint: message.endpoint(),
            message: message.with_bulk(bulk),
        });
    }
}
