//! Segments that carry a state, at a slot: what a function makes of the state and an item goes with the results.

use std::time::Duration;

use exoskel_flow::SegmentStep;
use exoskel_meaning::meaning::{self, Raised, Value};
use exoskel_meaning::steps::PassingItem;
use exoskel_node::SlotMachine;
use exoskel_task::message::SegmentFunctions;
use exoskel_task::payload::{Format, Record, RecordWriter};
use exoskel_task::slot_queue::{ItemKey, Outgoing, StateBefore, TooLarge, Work};

use super::content::{OVERDUE, RETRIABLE, What, number_of};
use super::interpreter::{Interpreter, RunningItem, Turn, push};
use super::streams::Streams;

/// The state behind the items of a frame that have run here.
#[derive(Clone, Debug)]
pub(super) struct SimulatedState {
    frame: u64,
    /// The item that would follow.
    next: u64,
    /// None as long as there is none.
    value: Option<Value>,
    /// How it must be written.
    format: Format,
}

/// What came of an item.
enum MadeOfState {
    Next(Value, Value),
    Raised(Raised),
    Overdue,
}

/// Whether a segment carries a state. Such a segment has one step.
fn is_carrying(segment: &SegmentFunctions) -> bool {
    matches!(
        segment.steps[..],
        [SegmentStep::Carry | SegmentStep::Scan | SegmentStep::ScanInitial]
    )
}

impl Interpreter {
    fn segment(&self, key: &ItemKey, segment: u16) -> Option<&SegmentFunctions> {
        let segments = self.programs.get(&key.stream)?;
        segments.get(usize::from(segment))
    }

    pub(super) fn carries(&self, key: &ItemKey, segment: u16) -> bool {
        self.segment(key, segment).is_some_and(is_carrying)
    }

    /// The state that comes to an item.
    ///
    /// # Errors
    /// When it isn't here.
    pub(super) fn state_before(
        &mut self,
        key: &ItemKey,
        segment: u16,
        given: StateBefore,
        streams: &Streams,
    ) -> Result<SimulatedState, String> {
        let here = self.carried.remove(&(key.stream, segment));
        let first = |value, format| SimulatedState {
            frame: key.frame,
            next: key.index,
            value,
            format,
        };
        let read = |record: &Record| streams.read(key, segment, record);
        let found = match given {
            StateBefore::OfItemBefore => {
                here.filter(|here| (here.frame, here.next) == (key.frame, key.index))
            }
            StateBefore::Kept(last) => here
                .filter(|here| here.frame == last)
                .map(|here| first(here.value, here.format)),
            StateBefore::Nothing => Some(first(None, Format::Pickle)),
            StateBefore::Sent(record) => Some(first(Some(read(&record)?), record.format)),
        };
        found.ok_or_else(|| {
            format!(
                "got item {} of line {} without the state that it needs",
                key.index, key.stream
            )
        })
    }

    /// An item that brings a state along has run. An item that raises leaves the state to the next one.
    pub(super) fn carry(
        &mut self,
        running: RunningItem,
        before: SimulatedState,
        is_overdue: bool,
        (machine, now): (&mut SlotMachine, Duration),
        streams: &Streams,
    ) -> Result<Turn, String> {
        let RunningItem {
            key,
            from,
            format,
            passing,
            ..
        } = running;
        let PassingItem::Value(value) = passing else {
            return Err(format!(
                "item {} of line {} is a list",
                key.index, key.stream
            ));
        };
        let touched = value.touched
            || self.format == Format::Data
            || before.value.as_ref().is_some_and(|state| state.touched);
        let format = match before.format {
            Format::Data if !streams.is_pickled(&key) => Format::Data,
            _ => format,
        };
        let mut turn = Turn::default();
        if !is_overdue && streams.is_retriable(&key) {
            let sum = value.data.sum();
            let what = What::Raised(Raised {
                function: RETRIABLE,
                sum,
            });
            self.carried.insert((key.stream, from), before);
            turn.outgoing
                .extend(self.end_carrying(machine, now, streams)?);
            let is_told = self.carried.remove(&(key.stream, from)).is_some();
            if is_told {
                let write = push(streams.token(&key, what, touched)?, format, streams);
                let again = machine.finish_retriable(key, now, write);
                turn.outgoing
                    .extend(again.map_err(|error| error.to_string())?);
            } else {
                turn.outgoing.extend(machine.give_back_running(key, now));
            }
            turn.outgoing.extend(machine.give_back_rest(key.frame));
            return Ok(turn);
        }
        let made = match is_overdue {
            true => MadeOfState::Overdue,
            false => self.made(&key, from, before.value.clone(), value, touched)?,
        };
        // What raises may have seen what a stranger made, and have kept it.
        let kept = before.value.map(|state| Value { touched, ..state });
        let (state, what) = match made {
            MadeOfState::Next(state, result) => (Some(state), Some(What::Made(result.data))),
            MadeOfState::Raised(raised) => (kept.clone(), Some(What::Raised(raised))),
            MadeOfState::Overdue => (kept.clone(), None),
        };
        let state_format = match (self.format, before.format, format) {
            (Format::Pickle, Format::Pickle, format) => format,
            _ => Format::Data,
        };
        let is_alone = state.is_none();
        let taken = self.take_carried(
            key,
            (format, is_alone),
            what,
            touched,
            (&mut *machine, now),
            streams,
        )?;
        let (mut state, mut is_due) = (state, taken.is_due);
        turn.outgoing.extend(taken.outgoing);
        if let Some(got) = taken.too_large {
            state = kept;
            let what = Some(What::TooLarge(got));
            let is_alone = state.is_none();
            let taken = self.take_carried(
                key,
                (format, is_alone),
                what,
                touched,
                (&mut *machine, now),
                streams,
            )?;
            if let Some(got) = taken.too_large {
                return Err(format!("an exception of {got} bytes is too large"));
            }
            is_due = taken.is_due;
            turn.outgoing.extend(taken.outgoing);
        }
        if state.is_some() {
            self.carrying = Some(key);
        }
        let place = (key.stream, from);
        self.carried.insert(
            place,
            SimulatedState {
                frame: key.frame,
                next: key.index + 1,
                value: state,
                format: state_format,
            },
        );
        if is_due || self.told_one_by_one.contains(&place) {
            turn.outgoing
                .extend(self.end_carrying(machine, now, streams)?);
        }
        Ok(turn)
    }

    fn made(
        &self,
        key: &ItemKey,
        segment: u16,
        state: Option<Value>,
        value: Value,
        touched: bool,
    ) -> Result<MadeOfState, String> {
        let own = self
            .segment(key, segment)
            .and_then(|own| Some((*own.steps.first()?, number_of(own.functions.first()?))));
        let made = match (own, state) {
            // Nobody reads what a forgotten stream makes.
            (None, _) => return Ok(MadeOfState::Next(value.clone(), value)),
            (Some((SegmentStep::Carry, function)), Some(state)) => {
                meaning::carry(function, state.data, value.data)
            }
            (Some((_, function)), Some(state)) => {
                let next = meaning::scan(function, state.data, value.data);
                next.map(|next| (next.clone(), next))
            }
            (Some((SegmentStep::Scan, _)), None) => Ok((value.data.clone(), value.data)),
            (Some(_), None) => {
                let (index, line) = (key.index, key.stream);
                return Err(format!(
                    "got item {index} of line {line} before its first state"
                ));
            }
        };
        let of = |data| Value { data, touched };
        Ok(match made {
            Ok((state, result)) => MadeOfState::Next(of(state), of(result)),
            Err(raised) => MadeOfState::Raised(raised),
        })
    }

    /// The queue takes what came of an item; `what`: none if it ran for too long. With `is_alone` there is no state behind it.
    fn take_carried(
        &self,
        key: ItemKey,
        (format, is_alone): (Format, bool),
        what: Option<What>,
        touched: bool,
        (machine, now): (&mut SlotMachine, Duration),
        streams: &Streams,
    ) -> Result<TakenItem, String> {
        let token = what
            .map(|what| streams.token(&key, what, touched))
            .transpose()?;
        let write = |writer: &mut RecordWriter| match token {
            Some(token) => push(token, format, streams)(writer),
            None => writer.push(format, true, OVERDUE, &[], []),
        };
        let mut taken = TakenItem::default();
        if is_alone {
            let outgoing = machine.finish(key, now, write);
            taken.outgoing = outgoing.map_err(|error| error.to_string())?;
            return Ok(taken);
        }
        match machine.carry(key, now, write) {
            Ok(is_due) => taken.is_due = is_due,
            Err(TooLarge { got, .. }) => taken.too_large = Some(got),
        }
        Ok(taken)
    }

    /// What has been carried is told of, unless more of the same frame comes.
    pub(super) fn end_carrying_before(
        &mut self,
        work: &Work,
        machine: &mut SlotMachine,
        now: Duration,
        streams: &Streams,
    ) -> Result<Vec<Outgoing>, String> {
        match (work, &self.carrying) {
            (Work::Item(item), Some(last)) if item.key.frame == last.frame => Ok(Vec::new()),
            (_, None) => Ok(Vec::new()),
            _ => self.end_carrying(machine, now, streams),
        }
    }

    /// Tells of all items that wait for the state behind them.
    fn end_carrying(
        &mut self,
        machine: &mut SlotMachine,
        now: Duration,
        streams: &Streams,
    ) -> Result<Vec<Outgoing>, String> {
        let Some(key) = self.carrying.take() else {
            return Ok(Vec::new());
        };
        let place = (key.stream, key.to);
        let known = self.carried.get(&place).cloned();
        let Some((value, format)) = known.and_then(|known| Some((known.value?, known.format)))
        else {
            return Ok(Vec::new());
        };
        let touched = value.touched;
        let token = streams.token(&key, What::Made(value.data), touched)?;
        let got = match machine.finish_carried(key, push(token, format, streams)) {
            Ok(outgoing) => return Ok(outgoing),
            Err(TooLarge { got, .. }) => got,
        };
        // The next item needs the state that the manager has.
        self.carried.remove(&place);
        let is_alone = machine.carried() == 1;
        self.told_one_by_one.insert(place);
        if is_alone {
            // The others have no part in it.
            machine.forget_carried();
            let token = streams.token(&key, What::TooLarge(got), touched)?;
            let outgoing = machine.finish(key, now, push(token, format, streams));
            let outgoing = outgoing.map_err(|error| error.to_string())?;
            let back = machine.give_back_rest(key.frame);
            return Ok(outgoing.into_iter().chain(back).collect());
        }
        Ok(machine.give_back_carried())
    }
}

/// What the queue says of an item.
#[derive(Default)]
struct TakenItem {
    outgoing: Vec<Outgoing>,
    is_due: bool,
    /// So many bytes are over the limit.
    too_large: Option<u64>,
}
