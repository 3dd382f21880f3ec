//! Streams of items: opened, fed, cancelled, closed.

use std::collections::VecDeque;
use std::time::Duration;

use exoskel_flow::{Cancel, FlowError, Program, ProgramError, StreamOptions, Tickets};
use thiserror::Error;

use super::{Effect, Router, Stream, StreamPlan};
use crate::message::{SegmentFunctions, ToSlot};
use crate::payload::Batch;
use crate::tokens::Tokens;

/// Why a stream can't be opened.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum OpenError {
    /// The skeleton is no program.
    #[error(transparent)]
    Program(#[from] ProgramError),
    /// The scheduler takes no more streams.
    #[error(transparent)]
    Flow(#[from] FlowError),
}

impl Router {
    /// Opens a stream under the driver's number.
    ///
    /// # Errors
    /// When the skeleton can't be compiled, or there are too many streams.
    pub fn open(&mut self, number: u64, plan: StreamPlan, now: Duration) -> Result<(), OpenError> {
        let program = Program::compile(&plan.skeleton)?;
        let options = StreamOptions {
            tickets: plan.tickets,
        };
        let id = self.scheduler.open_stream(&program, options, now)?;
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
        let stream = Stream {
            id,
            functions: plan.functions,
            call: plan.call,
            tokens: segments.iter().map(|_| Tokens::default()).collect(),
            segments,
            bounded: plan.tickets == Tickets::Bounded,
            received: 0,
            backlog: VecDeque::new(),
            input_ended: false,
        };
        self.numbers.insert(id, number);
        self.streams.insert(number, stream);
        Ok(())
    }

    /// The user hands items over; they enter as tickets allow.
    pub fn admit(&mut self, number: u64, batch: Batch, now: Duration) {
        let Some(stream) = self.streams.get_mut(&number) else {
            return;
        };
        stream.backlog.extend(batch.sizes());
        let first = stream.received;
        stream.received += u64::from(batch.count());
        if let Some(tokens) = stream.tokens.first_mut() {
            tokens.insert(first, batch);
        }
        self.admit_backlog(number, now);
    }

    /// No more items will come.
    pub fn end_of_input(&mut self, number: u64, now: Duration) {
        if let Some(stream) = self.streams.get_mut(&number) {
            stream.input_ended = true;
        }
        self.admit_backlog(number, now);
    }

    /// The user has taken the outcomes of so many items: their tickets are free.
    pub fn taken(&mut self, number: u64, first: u64, count: u32, now: Duration) {
        if let Some(id) = self.streams.get(&number).map(|stream| stream.id) {
            self.scheduler.taken(id, first, count, now);
            self.admit_backlog(number, now);
        }
    }

    /// Takes an item back that no slot has begun; says whether that was possible.
    pub fn cancel(&mut self, number: u64, index: u64, now: Duration) -> bool {
        let Some(stream) = self.streams.get_mut(&number) else {
            return false;
        };
        let removed = self.scheduler.cancel(stream.id, index, now) == Cancel::Removed;
        if removed && let Some(tokens) = stream.tokens.first_mut() {
            tokens.release(&(index..index + 1));
        }
        removed
    }

    /// Forgets the stream and all of its items.
    pub fn close(&mut self, number: u64, now: Duration) {
        let Some(stream) = self.streams.remove(&number) else {
            return;
        };
        self.numbers.remove(&stream.id);
        self.scheduler.close_stream(stream.id, now);
        for (slot, known) in &mut self.slots {
            if known.streams.remove(&number) {
                self.effects.push_back(Effect::Send {
                    slot: *slot,
                    message: ToSlot::Forget {
                        stream: stream.id.0,
                    },
                    bulk: Vec::new(),
                });
            }
        }
    }

    fn admit_backlog(&mut self, number: u64, now: Duration) {
        let Some(stream) = self.streams.get_mut(&number) else {
            return;
        };
        let tickets = self.scheduler.tickets(stream.id) as usize;
        let count = stream.backlog.len().min(tickets);
        if count > 0 {
            let sizes: Vec<u64> = stream.backlog.drain(..count).collect();
            // There are tickets, the stream is open and its input hasn't ended: nothing can be refused.
            let _ = self.scheduler.admit(stream.id, &sizes, now);
        }
        if stream.input_ended && stream.backlog.is_empty() {
            self.scheduler.end_of_input(stream.id);
        }
    }
}
