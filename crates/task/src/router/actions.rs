//! What the scheduler wants done, as messages.

use std::time::Duration;

use bytes::Bytes;
use exoskel_flow::{Action, Failure};

use super::{Effect, Function, Router};
use crate::message::{Execute, ToSlot};
use crate::outcome::{Contents, Outcomes};

impl Router {
    /// What the driver must do next, if anything.
    pub fn poll_effect(&mut self, now: Duration) -> Option<Effect> {
        loop {
            if let Some(effect) = self.effects.pop_front() {
                return Some(effect);
            }
            let action = self.scheduler.poll_action(now)?;
            self.act(action);
        }
    }

    fn act(&mut self, action: Action) {
        match action {
            Action::Dispatch { .. } => self.dispatch(action),
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
                let Some(&number) = self.numbers.get(&stream) else {
                    return;
                };
                let stream = self.streams.get_mut(&number);
                if let Some(tokens) =
                    stream.and_then(|stream| stream.tokens.get_mut(usize::from(segment)))
                {
                    tokens.release(&(index..index + 1));
                }
                let outcomes = Outcomes {
                    first: index,
                    count: 1,
                    contents: Contents::WorkersLost(count),
                };
                let stream = number;
                self.effects.push_back(Effect::Deliver { stream, outcomes });
            }
        }
    }

    fn dispatch(&mut self, action: Action) {
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
        self.send_with_bulk(slot.0, &ToSlot::Execute(execute), collected.bulk);
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
        let define = ToSlot::Define {
            stream: stream.id.0,
            call: stream.call,
            segments: stream.segments.clone(),
        };
        let missing: Vec<Function> = stream
            .functions
            .iter()
            .filter(|function| known.functions.insert(function.digest))
            .cloned()
            .collect();
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
