//! Streams of items: opened, fed, cancelled, closed.

use std::collections::VecDeque;
use std::sync::Arc;

use exoskel_flow::{Cancel, Program, StreamOptions, Tickets};

use super::{Hub, Stream};
use crate::manager::StreamPlan;
use crate::manager::tokens::Tokens as TokenStore;
use crate::message::{SegmentFunctions, ToSlot};
use crate::outlet::Outlet;
use crate::payload::Batch;

impl Hub {
    pub(super) fn open(&mut self, number: u64, plan: StreamPlan, outlet: Arc<Outlet>) {
        let tickets = if plan.unbounded {
            Tickets::Unbounded
        } else {
            Tickets::Bounded
        };
        let program = match Program::compile(&plan.skeleton) {
            Ok(program) => program,
            Err(error) => return outlet.end(&error.to_string()),
        };
        let id = match self.scheduler.open_stream(
            &program,
            StreamOptions { tickets },
            self.epoch.elapsed(),
        ) {
            Ok(id) => id,
            Err(error) => return outlet.end(&error.to_string()),
        };
        let segments: Vec<SegmentFunctions> = program
            .segments()
            .iter()
            .map(|segment| SegmentFunctions {
                serial: segment.serial.is_some(),
                functions: segment
                    .serial
                    .iter()
                    .chain(&segment.parallel)
                    .filter_map(|function| plan.functions.get(function.0 as usize))
                    .map(|function| function.digest)
                    .collect(),
            })
            .collect();
        if let Some(reason) = self.recruiter.given_up() {
            outlet.end(reason);
        }
        let stream = Stream {
            id,
            outlet,
            functions: plan.functions,
            call: plan.call,
            tokens: segments.iter().map(|_| TokenStore::default()).collect(),
            segments,
            bounded: !plan.unbounded,
            received: 0,
            backlog: VecDeque::new(),
            input_ended: false,
        };
        self.numbers.insert(id, number);
        self.streams.insert(number, stream);
    }

    pub(super) fn admit(&mut self, number: u64, batch: Batch) {
        let Some(stream) = self.streams.get_mut(&number) else {
            return;
        };
        stream.backlog.extend(batch.sizes());
        let first = stream.received;
        stream.received += u64::from(batch.count());
        if let Some(tokens) = stream.tokens.first_mut() {
            tokens.insert(first, batch);
        }
        self.admit_backlog(number);
    }

    pub(super) fn admit_backlog(&mut self, number: u64) {
        let now = self.now();
        let Some(stream) = self.streams.get_mut(&number) else {
            return;
        };
        let count = stream
            .backlog
            .len()
            .min(self.scheduler.tickets(stream.id) as usize);
        if count > 0 {
            let sizes: Vec<u64> = stream.backlog.drain(..count).collect();
            // There are tickets, the stream is open and its input hasn't ended: nothing can be refused.
            let _ = self.scheduler.admit(stream.id, &sizes, now);
        }
        if stream.input_ended && stream.backlog.is_empty() {
            self.scheduler.end_of_input(stream.id);
        }
    }

    pub(super) fn cancel(&mut self, number: u64, index: u64) -> bool {
        let now = self.now();
        let Some(stream) = self.streams.get_mut(&number) else {
            return false;
        };
        let removed = self.scheduler.cancel(stream.id, index, now) == Cancel::Removed;
        if removed && let Some(tokens) = stream.tokens.first_mut() {
            tokens.release(&(index..index + 1));
        }
        removed
    }

    pub(super) fn close_stream(&mut self, number: u64) {
        let Some(stream) = self.streams.remove(&number) else {
            return;
        };
        self.numbers.remove(&stream.id);
        self.scheduler.close_stream(stream.id, self.epoch.elapsed());
        let knowing: Vec<u32> = self
            .slots
            .iter_mut()
            .filter(|(_, slot)| slot.streams.contains(&number))
            .map(|(slot, _)| *slot)
            .collect();
        for slot in knowing {
            if let Some(entry) = self.slots.get_mut(&slot) {
                entry.streams.remove(&number);
            }
            self.queue(
                slot,
                &ToSlot::Forget {
                    stream: stream.id.0,
                },
                Vec::new(),
            );
        }
    }
}
