//! What the scheduler wants done, carried to the slots.

use bytes::Bytes;
use exoskel_flow::{Action, Lease, SlotId, StreamId};
use exoskel_link::{CloseReason, Message, MessageKind};

use super::Hub;
use crate::manager::Function;
use crate::message::{Execute, ToSlot};
use crate::outlet::{Contents, Outcomes};

impl Hub {
    /// Does everything the scheduler wants done, and lets it go out.
    pub(super) fn pump(&mut self) {
        let now = self.now();
        while let Some(action) = self.scheduler.poll_action(now) {
            match action {
                Action::Dispatch {
                    slot,
                    frame,
                    stream,
                    segment,
                    first,
                    count,
                    grant,
                    lease,
                } => {
                    let frame = Frame {
                        frame: frame.0,
                        stream,
                        segment,
                        first,
                        count,
                        grant,
                        lease,
                    };
                    self.dispatch(slot.0, &frame);
                }
                Action::Recall { slot, frame, count } => {
                    self.queue(
                        slot.0,
                        &ToSlot::Recall {
                            frame: frame.0,
                            count,
                        },
                        Vec::new(),
                    );
                }
                Action::Grant { slot, frame, index } => {
                    self.queue(
                        slot.0,
                        &ToSlot::Grant {
                            frame: frame.0,
                            index,
                        },
                        Vec::new(),
                    );
                }
                Action::Failed {
                    stream,
                    index,
                    failure,
                } => {
                    let exoskel_flow::Failure::WorkersLost { count } = failure;
                    let Some(stream) = self
                        .numbers
                        .get(&stream)
                        .and_then(|number| self.streams.get_mut(number))
                    else {
                        continue;
                    };
                    for tokens in &mut stream.tokens {
                        tokens.release(&(index..index + 1));
                    }
                    stream.outlet.deliver(Outcomes {
                        first: index,
                        count: 1,
                        contents: Contents::WorkersLost(count),
                    });
                }
            }
        }
        self.flush();
        self.publish();
        if self
            .scheduler
            .next_timeout()
            .is_some_and(|next| self.armed.is_none_or(|armed| next < armed))
        {
            self.shared.wake.notify_one();
        }
    }

    pub(super) fn dispatch(&mut self, number: u32, frame: &Frame) {
        let Some(&stream_number) = self.numbers.get(&frame.stream) else {
            return;
        };
        self.define(number, stream_number);
        let Some(stream) = self.streams.get(&stream_number) else {
            return;
        };
        let items = frame.first..frame.first + u64::from(frame.count);
        let Some(collected) = stream
            .tokens
            .get(usize::from(frame.segment))
            .and_then(|tokens| tokens.collect(items))
        else {
            // Can't be: a token is kept until its result counts. Ending the stream is better than waiting for ever.
            stream
                .outlet
                .end("lost track of an item's input; this is a defect of exoskel");
            return;
        };
        let execute = Execute {
            frame: frame.frame,
            stream: frame.stream.0,
            segment: frame.segment,
            restricted: collected.restricted,
            lease: frame.lease,
            grant: frame.grant,
            first: frame.first,
            count: frame.count,
            records: collected.records,
        };
        self.queue(number, &ToSlot::Execute(execute), collected.bulk);
    }

    /// Sends a stream's program and functions to a slot that doesn't have them yet.
    pub(super) fn define(&mut self, number: u32, stream_number: u64) {
        let Some(stream) = self.streams.get(&stream_number) else {
            return;
        };
        let Some(slot) = self.slots.get_mut(&number) else {
            return;
        };
        if !slot.streams.insert(stream_number) {
            return;
        }
        let missing: Vec<Function> = stream
            .functions
            .iter()
            .filter(|function| slot.functions.insert(function.digest))
            .cloned()
            .collect();
        let define = ToSlot::Define {
            stream: stream.id.0,
            call: stream.call,
            segments: stream.segments.clone(),
        };
        for function in missing {
            self.queue(
                number,
                &ToSlot::Function {
                    digest: function.digest,
                    pickle: function.pickle,
                },
                Vec::new(),
            );
        }
        self.queue(number, &define, Vec::new());
    }

    pub(super) fn queue(&mut self, number: u32, message: &ToSlot, bulk: Vec<Bytes>) {
        let Some(slot) = self.slots.get(&number) else {
            return;
        };
        let link = match message {
            ToSlot::Setup(_) | ToSlot::Function { .. } | ToSlot::Define { .. } => slot.code,
            _ => slot.tasks,
        };
        let (handler, head) = message.encode();
        let message = Message {
            handler,
            kind: MessageKind::Post,
            head,
            bulk,
        };
        if let Err(error) = slot.connection.queue(link, message) {
            // Over a limit, or the session is ending: its end puts the items back.
            slot.connection.abort(CloseReason::Fault(error.to_string()));
        }
        if self.dirty.last() != Some(&number) {
            self.dirty.push(number);
        }
    }

    pub(super) fn flush(&mut self) {
        for number in self.dirty.drain(..) {
            if let Some(slot) = self.slots.get(&number) {
                slot.connection.flush();
            }
        }
    }

    /// Tells user threads how many items they may hand over, and whether they should hurry.
    pub(super) fn publish(&self) {
        for stream in self.streams.values() {
            if !stream.bounded {
                continue;
            }
            let tickets = if stream.backlog.is_empty() {
                self.scheduler.tickets(stream.id)
            } else {
                0
            };
            stream
                .outlet
                .set_admissible(stream.received + u64::from(tickets));
            let ready = self
                .scheduler
                .progress(stream.id)
                .map_or(0, |progress| progress.ready);
            stream
                .outlet
                .set_hungry(ready == 0 && self.someone_is_idle());
        }
    }

    pub(super) fn someone_is_idle(&self) -> bool {
        self.slots.keys().any(|number| {
            self.scheduler
                .slot_statistics(SlotId(*number))
                .is_some_and(|statistics| statistics.outstanding == 0)
        })
    }
}

/// One dispatch, as the scheduler wants it.
pub(super) struct Frame {
    frame: u64,
    stream: StreamId,
    segment: u16,
    first: u64,
    count: u32,
    grant: u64,
    lease: Lease,
}
