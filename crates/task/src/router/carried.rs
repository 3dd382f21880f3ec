//! Segments that carry a state from item to item: a frame takes it along, and the answer that counts brings the next one.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use exoskel_flow::{CarriedStart, FrameId, FunctionId, LineRole, ProgramLine, SlotId, Then};

use super::answers::{ReceiveError, accept};
use super::lines::ItemLine;
use super::order::Made;
use super::parcels::{Arrived, Heads, Parcel, Parcels, origin_of};
use super::{Effect, Function, Router};
use crate::message::GivenState;
use crate::outcome::{Contents, Origin, Outcomes};
use crate::payload::{Batch, BatchBuilder, Format};
use crate::tokens::Collected;

/// A message has room for a state and as much again.
const STATE_PART: u64 = 2;

/// The state of a segment behind the last item whose result counts.
#[derive(Debug)]
pub(super) struct CarriedState {
    /// None before the first item of all, where nothing stands before that.
    value: Option<Collected>,
    origin: Arc<Origin>,
    /// Who has sent it last, with results of which frame, and so has it still.
    kept: Option<(u32, FrameId)>,
    /// Who may have another one than it has sent with results of that frame, which may have waited for a grant meanwhile.
    dropped: Option<(u32, FrameId)>,
}

impl CarriedState {
    /// Who has touched it.
    pub(super) fn origin(&self) -> &Arc<Origin> {
        &self.origin
    }

    /// The first states of a line's segments.
    pub(super) fn all(line: &ProgramLine, functions: &[Function]) -> BTreeMap<u16, Self> {
        let segments = (0..).zip(&line.segments);
        let carrying = segments.filter_map(|(number, segment)| Some((number, segment.carries?)));
        let first = |start| match start {
            CarriedStart::Nothing => None,
            CarriedStart::Value(value) => Some(whole(&value_of(functions, value)?)),
        };
        carrying
            .map(|(number, start)| {
                let state = Self {
                    value: first(start),
                    origin: Origin::user(),
                    kept: None,
                    dropped: None,
                };
                (number, state)
            })
            .collect()
    }
}

/// A value in the table of functions, as an item.
fn value_of(functions: &[Function], value: FunctionId) -> Option<Batch> {
    let function = functions.get(value.0 as usize)?;
    let mut builder = BatchBuilder::default();
    builder.push(Format::Pickle, &function.pickle, &[], Vec::new());
    Some(builder.take(Origin::user()))
}

/// All items of a batch.
fn whole(batch: &Batch) -> Collected {
    let (records, bulk) = batch.range(0, batch.count());
    let bulk = bulk.to_vec();
    Collected { records, bulk }
}

impl ItemLine {
    /// The state that goes to this slot with the items of a frame that begins with this segment: where it is, and its record if that must be sent.
    pub(super) fn given_state(&self, segment: u16, slot: u32) -> (GivenState, Option<&Collected>) {
        let Some(state) = self.carried.get(&segment) else {
            return (GivenState::Nothing, None);
        };
        match (&state.value, state.kept) {
            (None, _) => (GivenState::Nothing, None),
            (Some(_), Some((holder, frame))) if holder == slot => (GivenState::Kept(frame.0), None),
            (Some(value), _) => (GivenState::Sent, Some(value)),
        }
    }

    /// What the slot has of a state is not what it sends with results of this frame, now or later.
    pub(super) fn drop_kept(&mut self, segment: u16, slot: u32, frame: FrameId) {
        if let Some(state) = self.carried.get_mut(&segment) {
            state.kept = None;
            state.dropped = Some((slot, frame));
        }
    }

    /// The state of this segment must be sent again, whoever is next.
    pub(super) fn forget_kept(&mut self, segment: u16) {
        if let Some(state) = self.carried.get_mut(&segment) {
            state.kept = None;
        }
    }
}

impl Router {
    /// The slot gives items of a frame back: it may have run some of them.
    pub(super) fn forget_kept(&mut self, slot: SlotId, frame: FrameId) {
        if let Some((stream, from, _)) = self.scheduler.frame(slot, frame)
            && let Some(&(number, line)) = self.numbers.get(&stream)
            && let Some(state) = self.line(number, line)
        {
            state.forget_kept(from);
        }
    }

    /// Some lines begin with an item that is made of no other one.
    pub(super) fn admit_first(
        &mut self,
        number: u64,
        line: u16,
        first: FunctionId,
        now: Duration,
    ) -> Option<()> {
        let stream = self.streams.get_mut(&number)?;
        let batch = value_of(&stream.functions, first)?;
        let state = stream.lines.get_mut(usize::from(line))?;
        let index = self.scheduler.admit_made(state.id, &batch.sizes(), now)?;
        if state.is_end() {
            self.scheduler.finish(state.id, index, now);
            let origin = batch.origin().clone();
            let outcomes = Outcomes {
                first: index,
                count: 1,
                contents: Contents::Records(whole(&batch).into_reader(), origin),
            };
            let stream = number;
            self.effects.push_back(Effect::Deliver { stream, outcomes });
        } else {
            state.tokens.first_mut()?.insert(index, batch);
        }
        Some(())
    }

    /// A slot has results of a segment that carries a state, and the state behind them.
    pub(super) fn carried(
        &mut self,
        slot: u32,
        arrived: Arrived,
        count: u32,
        heads: &mut Heads,
        now: Duration,
    ) -> Result<(), ReceiveError> {
        let id = SlotId(slot);
        let (mut arrived, came) = heads.read_carried(arrived, count)?;
        let bytes = came.value.bytes();
        let maximum = self.message_bytes_max / STATE_PART;
        if came.is_exception {
            return Err(ReceiveError::ExceptionAsState);
        }
        if bytes > maximum {
            return Err(ReceiveError::StateTooLarge { bytes, maximum });
        }
        let Some((stream, from, to)) = self.scheduler.frame(id, arrived.frame) else {
            // Late. The scheduler may still have counted on its bytes.
            self.scheduler
                .results(id, heads.results(&arrived, 1), now)?;
            return Ok(());
        };
        // A frame of such a segment ends with it.
        arrived.reached = to + 1;
        let place = self.numbers.get(&stream).copied();
        let state = place.and_then(|(number, line)| {
            let state = self.streams.get(&number)?.lines.get(usize::from(line))?;
            Some((state, state.tokens.get(usize::from(from))?))
        });
        let (Some(known), Some((line_state, tokens)), Some((number, line))) =
            (self.slots.get(&slot), state, place)
        else {
            // Nobody wants the stream any more.
            let results = heads.results(&arrived, to + 1);
            self.scheduler.carried(id, results, bytes, now)?;
            return Ok(());
        };
        let Some(carried) = line_state.carried.get(&from) else {
            return Err(ReceiveError::NotCarrying);
        };
        // Whose items a state has seen stays in it, and so in all results that follow.
        let maker = known.origin.clone();
        let items = arrived.first..arrived.first.saturating_add(count.into());
        let mut origin = carried.origin.clone();
        let mut runs = Vec::new();
        for (run, token) in tokens.origins(items) {
            origin = origin_of(&origin, token);
            runs.push((run, origin_of(&maker, Some(&origin))));
        }
        let origin = origin_of(&maker, Some(&origin));
        let is_refused = !origin.allows(came.format);
        for (run, origin) in &runs {
            for index in run.clone() {
                // There is a record of each.
                let record = heads.index.entries()[(index - arrived.first) as usize];
                let refused = is_refused || !origin.allows(record.format);
                if refused {
                    heads.refused.push(index);
                }
                if refused || record.exception {
                    heads.ended.push(index);
                }
            }
        }
        let results = heads.results(&arrived, to + 1);
        let accepted = self.scheduler.carried(id, results, bytes, now)?;
        heads.accepted.clear();
        if !accept(&mut heads.accepted, accepted) {
            return Ok(());
        }
        let Some(state) = self.line(number, line) else {
            return Ok(());
        };
        match (is_refused, state.carried.get_mut(&from)) {
            (false, Some(carried)) => {
                let sender = Some((slot, arrived.frame));
                *carried = CarriedState {
                    value: Some(came.value),
                    origin,
                    kept: sender.filter(|_| carried.dropped != sender),
                    dropped: carried.dropped,
                };
            }
            _ => state.forget_kept(from),
        }
        let expands = matches!(state.then(to), Then::Expand { .. });
        if state.role != LineRole::User {
            heads.part(expands || state.keeps_parts());
        }
        let tokens = state.tokens.get_mut(usize::from(from));
        if let Some(tokens) = tokens {
            for (range, _) in &heads.accepted {
                tokens.release(range);
            }
        }
        let mut parcels = Parcels::new(arrived, &heads.index, &heads.refused, &maker, None);
        let mut runs = runs.into_iter().peekable();
        for (range, way) in heads.accepted.drain(..) {
            let mut left = range;
            while let Some((run, origin)) = runs.peek()
                && !left.is_empty()
            {
                let end = run.end.min(left.end);
                parcels.cut_run(left.start..end, way, origin.clone());
                left.start = end;
                if end == run.end {
                    runs.next();
                }
            }
        }
        let done = parcels.done;
        match expands {
            true => self.place_each((number, line), done, now),
            false => self.hand_on((number, line), done, now),
        }
        Ok(())
    }

    /// Each of these results is the one item that its own was made into.
    fn place_each(&mut self, (number, line): (u64, u16), parcels: Vec<Parcel>, now: Duration) {
        for parcel in parcels {
            match parcel {
                Parcel::Part(first, batch) => {
                    let made = Made {
                        first,
                        counts: vec![1; batch.count() as usize],
                        origin: batch.origin().clone(),
                        parts: Some(batch),
                        state: None,
                    };
                    self.place(number, line, made);
                }
                Parcel::Outcome(run, contents) => {
                    self.settle(number, line, run.start, contents, now);
                }
                // Nothing goes on where it is expanded.
                Parcel::Token(..) => {}
            }
        }
        self.advance(number, now);
    }
}
