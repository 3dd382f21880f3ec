//! Streams of items: opened, fed, cancelled, closed.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use exoskel_flow::{Cancel, FlowError, FunctionId, Program, ProgramError, StreamOptions, Tickets};
use thiserror::Error;

use super::folded::Reduction;
use super::lines::ItemLine;
use super::{Backlogged, Function, Router, Slot, Stream, StreamPlan};
use crate::message::{ItemRules, ToSlot};
use crate::outcome::Contents;
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
            time_limit: plan.timeout,
        };
        let id = self.scheduler.open_stream(&program, options, now)?;
        let lines = ItemLine::all(id, &program, &plan.functions);
        let rules = ItemRules {
            timeout: plan.timeout,
            retries_on: plan.retries_on.as_ref().map(|classes| classes.digest),
        };
        let mut at_slots = functions_at_slots(&program, &plan.functions);
        at_slots.extend(plan.retries_on);
        let stream = Stream {
            id,
            functions: plan.functions,
            at_slots,
            call: plan.call,
            rules,
            bounded: plan.tickets == Tickets::Bounded,
            tells_ends: plan.tells_ends,
            reduction: Reduction::of(&program),
            lines,
            away: BTreeMap::new(),
            received: 0,
            backlog: VecDeque::new(),
            input_ended: false,
        };
        let ids = (0..).zip(&stream.lines);
        self.numbers
            .extend(ids.map(|(line, state)| (state.id, (number, line))));
        self.streams.insert(number, stream);
        for (line, known) in (0..).zip(program.lines()) {
            if let Some(first) = known.first {
                self.admit_first(number, line, first, now);
            }
        }
        Ok(())
    }

    /// The user hands items over; they enter as tickets allow. An exception among them is its item's outcome.
    pub fn admit(&mut self, number: u64, batch: Batch, now: Duration) {
        let Some(stream) = self.streams.get_mut(&number) else {
            return;
        };
        let mut exceptions = batch.exceptions().iter().peekable();
        stream
            .backlog
            .extend((0..).zip(batch.sizes()).map(|(item, bytes)| {
                Backlogged {
                    bytes,
                    is_outcome: exceptions
                        .next_if(|exception| **exception == item)
                        .is_some(),
                }
            }));
        let first = stream.received;
        stream.received += u64::from(batch.count());
        if let Some(tokens) = stream.tokens() {
            tokens.insert(first, batch);
        }
        self.admit_backlog(number, now);
        self.advance(number, now);
    }

    /// No more items will come.
    pub fn end_of_input(&mut self, number: u64, now: Duration) {
        if let Some(stream) = self.streams.get_mut(&number) {
            stream.input_ended = true;
        }
        self.admit_backlog(number, now);
        self.advance(number, now);
    }

    /// The user has taken the outcomes of so many items: their tickets are free.
    pub fn taken(&mut self, number: u64, first: u64, count: u32, now: Duration) {
        let line = self.streams.get(&number).and_then(Stream::user_line);
        if let Some(id) = line.map(|line| line.id) {
            self.scheduler.taken(id, first, count, now);
            self.admit_backlog(number, now);
            self.advance(number, now);
        }
    }

    /// Takes an item back that no slot has begun; says whether that was possible.
    pub fn cancel(&mut self, number: u64, index: u64, now: Duration) -> bool {
        // What is inside a program that makes others of its items has no number that users know.
        let stream = self.streams.get_mut(&number);
        let Some(stream) = stream.filter(|stream| stream.lines.len() == 1) else {
            return false;
        };
        let removed = self.scheduler.cancel(stream.id, index, now) == Cancel::Removed;
        if removed && let Some(tokens) = stream.tokens() {
            tokens.release(&(index..index + 1));
        }
        removed
    }

    /// Takes all items back that no slot has begun, and says which they are.
    pub fn cancel_waiting(&mut self, number: u64, now: Duration) -> Vec<u64> {
        let Some(id) = self.streams.get(&number).map(|stream| stream.id) else {
            return Vec::new();
        };
        let waiting: Vec<u64> = self.scheduler.waiting(id, 0).collect();
        let cancelled = waiting.into_iter();
        cancelled
            .filter(|index| self.cancel(number, *index, now))
            .collect()
    }

    /// Whether an item is still here: no slot has it, and it has no outcome.
    #[must_use]
    pub fn is_waiting(&self, number: u64, index: u64) -> bool {
        self.streams.get(&number).is_some_and(|stream| {
            let backlogged = stream.received - stream.backlog.len() as u64;
            let mut waiting = self.scheduler.waiting(stream.id, index);
            let is_backlogged = (backlogged..stream.received).contains(&index);
            is_backlogged || waiting.next() == Some(index)
        })
    }

    /// Items of a stream that no slot has and that have no outcome.
    #[must_use]
    pub fn waiting(&self, number: u64) -> u64 {
        self.streams.get(&number).map_or(0, |stream| {
            let progress = self.scheduler.progress(stream.id);
            progress.map_or(0, |progress| progress.ready) + stream.backlog.len() as u64
        })
    }

    /// Forgets the stream and all of its items.
    pub fn close(&mut self, number: u64, now: Duration) {
        let Some(stream) = self.streams.remove(&number) else {
            return;
        };
        self.scheduler.close_stream(stream.id, now);
        for (line, state) in (0..).zip(&stream.lines) {
            self.numbers.remove(&state.id);
            let forget = ToSlot::Forget { stream: state.id.0 };
            let knows = |(slot, known): (&u32, &mut Slot)| {
                known.lines.remove(&(number, line)).then_some(*slot)
            };
            let slots: Vec<u32> = self.slots.iter_mut().filter_map(knows).collect();
            for slot in slots {
                self.send(slot, &forget);
            }
        }
    }

    pub(super) fn admit_backlog(&mut self, number: u64, now: Duration) {
        let Some(stream) = self.streams.get_mut(&number) else {
            return;
        };
        let tickets = self.scheduler.tickets(stream.id) as usize;
        let count = stream.backlog.len().min(tickets);
        if count > 0 {
            let entering = || stream.backlog.iter().take(count);
            let sizes: Vec<u64> = entering().map(|item| item.bytes).collect();
            let is_outcome = |(place, item): (u64, &Backlogged)| item.is_outcome.then_some(place);
            let ended: Vec<u64> = (0..).zip(entering()).filter_map(is_outcome).collect();
            stream.backlog.drain(..count);
            // There are tickets, the stream is open and its input hasn't ended: nothing can be refused.
            let mut given_back = Vec::new();
            if let Ok(first) = self.scheduler.admit(stream.id, &sizes, now) {
                for index in ended.into_iter().map(|place| first + place) {
                    self.scheduler.finish(stream.id, index, now);
                    given_back.extend(stream.give_back(index).map(|outcome| (index, outcome)));
                }
            }
            for (index, contents) in given_back {
                self.settle(number, 0, index, contents, now);
            }
        }
        let stream = self.streams.get(&number);
        let ended = stream.filter(|stream| stream.input_ended && stream.backlog.is_empty());
        if let Some(id) = ended.map(|stream| stream.id) {
            self.scheduler.end_of_input(id);
        }
    }
}

impl Stream {
    /// The tokens of what the user handed over.
    fn tokens(&mut self) -> Option<&mut Tokens> {
        self.lines.first_mut()?.tokens.first_mut()
    }

    /// What the user handed over in the place of an item is its outcome.
    fn give_back(&mut self, index: u64) -> Option<Contents> {
        let item = index..index + 1;
        let tokens = self.tokens()?;
        let collected = tokens.collect(item.clone())?;
        let origin = tokens.origins(item.clone()).next()?.1?.clone();
        tokens.release(&item);
        Some(Contents::Records(collected.into_reader(), origin))
    }
}

/// The functions that slots call. The others in the table are values, which come to items as data.
fn functions_at_slots(program: &Program, functions: &[Function]) -> Vec<Function> {
    let segments = program.lines().iter().flat_map(|line| &line.segments);
    let called: BTreeSet<FunctionId> = segments
        .flat_map(|segment| &segment.functions)
        .copied()
        .collect();
    called
        .into_iter()
        .filter_map(|FunctionId(number)| functions.get(number as usize).cloned())
        .collect()
}
