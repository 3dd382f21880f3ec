//! What the scheduler wants done, as messages.

use std::time::Duration;

use bytes::Bytes;
use exoskel_flow::{Action, Failure, Results, StreamId};

use super::{Effect, Function, Router, Slot};
use crate::message::{Call, Digest, Execute, GivenState, SlotEndpoint, ToSlot};
use crate::outcome::Contents;

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
            Action::Interrupt { slot, frame, index } => {
                let frame = frame.0;
                self.send(slot.0, &ToSlot::Interrupt { frame, index });
            }
            Action::LetGo { slot } => {
                self.effects.push_back(Effect::LetGo { slot: slot.0 });
            }
            Action::Overdue { slot } => {
                self.effects.push_back(Effect::Overdue { slot: slot.0 });
            }
            Action::Failed {
                stream,
                segment,
                index,
                failure: Failure::WorkersLost { count },
            } => {
                let last_end = self.last_end.clone();
                let contents = Contents::WorkersLost { count, last_end };
                self.fail((stream, segment), index, contents, now);
            }
        }
    }

    /// An item has failed in this segment of its stream.
    fn fail(
        &mut self,
        (stream, segment): (StreamId, u16),
        index: u64,
        contents: Contents,
        now: Duration,
    ) {
        let Some(&(number, line)) = self.numbers.get(&stream) else {
            return;
        };
        let state = self.line(number, line);
        if let Some(tokens) = state.and_then(|state| state.tokens.get_mut(usize::from(segment))) {
            tokens.release(&(index..index + 1));
        }
        self.settle(number, line, index, contents, now);
        self.advance(number, now);
    }

    fn dispatch(&mut self, action: Action, now: Duration) {
        let Action::Dispatch {
            slot,
            frame,
            stream,
            from,
            to,
            first,
            count,
            grant,
            lease,
        } = action
        else {
            return;
        };
        let Some(&(number, line)) = self.numbers.get(&stream) else {
            return;
        };
        self.define(slot.0, number, line);
        let state = self.line(number, line);
        let found = state.and_then(|state| {
            let tokens = state.tokens.get(usize::from(from))?;
            let collected = tokens.collect(first..first + u64::from(count))?;
            let (given, value) = state.given_state(from, slot.0);
            let collected = match value {
                Some(value) => value.before(collected),
                None => collected,
            };
            Some((collected, given, state.ways.get(usize::from(from))?.1))
        });
        let Some((collected, given, lists)) = found else {
            let lost = Effect::LostTrack { stream: number };
            return self.effects.push_back(lost);
        };
        let execute = Execute {
            frame: frame.0,
            stream: stream.0,
            from,
            to,
            lease,
            grant,
            first,
            count,
            state: given,
            lists,
            records: collected.records,
        };
        let message = ToSlot::Execute(execute).with_bulk(collected.bulk);
        let known = self.slots.get(&slot.0);
        let maximum = known.map_or(u64::MAX, |known| known.message_bytes_max);
        let bytes = message.bytes();
        if (count == 1 || given == GivenState::Sent) && bytes > maximum {
            // The session would not take it. So the items end as if the slot had answered: within any grant, without a byte. There are several only
            // beside a state, which is too large then.
            let items: Vec<u64> = (first..first + u64::from(count)).collect();
            let answer = Results {
                frame,
                first,
                reached: to + 1,
                sizes: &vec![0; items.len()],
                ended: &items,
                busy: Duration::ZERO,
            };
            if let Ok(Some(_)) = self.scheduler.results(slot, answer, now) {
                for index in items {
                    let contents = Contents::TooLarge { bytes, maximum };
                    self.fail((stream, from), index, contents, now);
                }
            }
            return;
        }
        self.effects.push_back(Effect::Send {
            slot: slot.0,
            endpoint: SlotEndpoint::Task,
            message,
        });
    }

    /// Sends the program of a line and its stream's functions to a slot that doesn't have them yet.
    fn define(&mut self, slot: u32, number: u64, line: u16) {
        let (Some(stream), Some(known)) = (self.streams.get(&number), self.slots.get_mut(&slot))
        else {
            return;
        };
        if !known.lines.insert((number, line)) {
            return;
        }
        let Some(state) = stream.lines.get(usize::from(line)) else {
            return;
        };
        let Slot {
            functions, lines, ..
        } = known;
        let is_in_use = |digest: &Digest| {
            let of_slot = lines
                .iter()
                .filter_map(|(number, _)| self.streams.get(number));
            let mut functions = of_slot.flat_map(|stream| &stream.at_slots);
            functions.any(|function| function.digest == *digest)
        };
        let to_send = functions.need(&stream.at_slots, self.function_bytes_max, is_in_use);
        let define = ToSlot::Define {
            stream: state.id.0,
            first_stream: stream.lines.first().map_or(state.id, |line| line.id).0,
            call: if line == 0 { stream.call } else { Call::Item },
            rules: stream.rules,
            segments: state.segments.clone(),
        };
        let functions = stream.at_slots.iter();
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
