//! The process of a slot: takes work from its machine as the Python side does, and takes time for it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::RangeInclusive;
use std::time::Duration;

use exoskel_flow::Lease;
use exoskel_meaning::meaning::{self, Raised, Value};
use exoskel_meaning::steps::{PassingItem, Stepper};
use exoskel_node::SlotMachine;
use exoskel_task::message::{Digest, SegmentFunctions, ToSlot};
use exoskel_task::payload::{Format, RecordWriter};
use exoskel_task::slot_queue::{
    Item, ItemKey, Outgoing, SerialPassage, TimeoutAnswer, TooLarge, Work,
};

use super::carrying::SimulatedState;
use super::content::{OVERDUE, RETRIABLE, Token, What, number_of};
use super::streams::Streams;
use exoskel_determinism::SplitMix64;

/// How long what hangs takes.
const FOR_EVER: Duration = Duration::from_secs(1_000_000);

/// Which of a frame's functions an item passes: those of a serial first segment are by themselves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FunctionPart {
    All,
    Serial,
    Rest,
}

/// What runs.
#[derive(Clone, Debug)]
pub(super) struct RunningItem {
    pub(super) key: ItemKey,
    /// The first segment that it passes; its key says the last one.
    pub(super) from: u16,
    pub(super) part: FunctionPart,
    lease: Lease,
    /// Functions of all segments that it passes.
    functions: u32,
    /// How its result is written.
    pub(super) format: Format,
    /// What it is in front of this part.
    pub(super) passing: PassingItem,
    /// The state that it brings along.
    carry: Option<SimulatedState>,
    /// It was told to end on its way to the rest of its functions.
    is_overdue: bool,
}

/// Items of a frame that have been folded into one value and were not told of.
#[derive(Debug)]
struct FoldedItems {
    /// The first of them.
    key: ItemKey,
    /// The item that would follow.
    next: u64,
    /// How it must be written.
    format: Format,
    value: Value,
}

impl RunningItem {
    /// How many segments it runs through in this part.
    pub(super) fn segments(&self) -> u64 {
        let all = u64::from(self.key.to - self.from) + 1;
        match self.part {
            FunctionPart::All => all,
            FunctionPart::Serial => 1,
            FunctionPart::Rest => all - 1,
        }
    }
}

#[derive(Debug)]
pub(super) struct Interpreter {
    /// How results are written, whatever the items are.
    pub(super) format: Format,
    /// Modules that the programs need and that are not here.
    lacks: Vec<String>,
    /// Whether the initializer raises, if there is one.
    initializer: Option<bool>,
    /// A piece of shared contents was asked for.
    awaits_piece: bool,
    pub(super) programs: BTreeMap<u32, Vec<SegmentFunctions>>,
    functions: BTreeSet<Digest>,
    /// What has passed a serial function whose lease is passed on.
    passed: Vec<RunningItem>,
    rest: VecDeque<RunningItem>,
    folding: Option<FoldedItems>,
    /// The states of segments that carry one, and the last item whose result waits for the state behind it.
    pub(super) carried: BTreeMap<(u32, u16), SimulatedState>,
    pub(super) carrying: Option<ItemKey>,
    /// Segments whose states could not be sent.
    pub(super) told_one_by_one: BTreeSet<(u32, u16)>,
    pub(super) running: Option<RunningItem>,
    /// What runs won't end by itself; whether it does when it is told to.
    hangs: Option<bool>,
}

/// What the manager shares: its name, and what it is.
pub(super) const SHARED: (Digest, &[u8]) = ([0xC0; 32], b"shared contents");

/// Where the piece begins that slots ask for.
const SHARED_OFFSET: u64 = 7;

/// What came of looking for work.
#[derive(Debug, Default)]
pub(super) struct Turn {
    pub(super) outgoing: Vec<Outgoing>,
    /// Something runs now, for so long.
    pub(super) time: Option<Duration>,
}

impl Interpreter {
    pub(super) fn new(format: Format, lacks: Vec<String>, initializer: Option<bool>) -> Self {
        Self {
            format,
            lacks,
            initializer,
            awaits_piece: false,
            programs: BTreeMap::new(),
            functions: BTreeSet::new(),
            passed: Vec::new(),
            rest: VecDeque::new(),
            folding: None,
            carried: BTreeMap::new(),
            carrying: None,
            told_one_by_one: BTreeSet::new(),
            running: None,
            hangs: None,
        }
    }

    /// Takes work as long as it costs no time.
    ///
    /// # Errors
    /// What is wrong with what came.
    pub(super) fn start(
        &mut self,
        machine: &mut SlotMachine,
        passage: &SerialPassage,
        streams: &Streams,
        now: Duration,
    ) -> Result<Turn, String> {
        let mut turn = Turn::default();
        if self.awaits_piece
            && let Some(piece) = machine.take_piece(SHARED.0, SHARED_OFFSET)
        {
            self.awaits_piece = false;
            if SHARED.1[SHARED_OFFSET as usize..] != piece {
                return Err(format!("got other shared contents: {piece:?}"));
            }
        }
        while self.running.is_none() {
            turn.outgoing
                .extend(self.give_back_halfway(machine, streams, now)?);
            if let Some(passed) = self.rest.pop_front() {
                if passed.is_overdue && self.programs.contains_key(&passed.key.stream) {
                    let outgoing = machine.finish(passed.key, now, |writer| {
                        writer.push(passed.format, true, OVERDUE, &[], []);
                    });
                    turn.outgoing
                        .extend(outgoing.map_err(|error| error.to_string())?);
                } else if self.programs.contains_key(&passed.key.stream) {
                    let part = FunctionPart::Rest;
                    let running = RunningItem { part, ..passed };
                    let functions = running.functions - 1;
                    turn.time = Some(self.run(running, functions, streams)?);
                } else {
                    // Nobody reads what a forgotten stream makes, but the frame must be answered for.
                    let outgoing = machine.finish(passed.key, now, |writer| {
                        writer.push(Format::Data, true, &[], &[], []);
                    });
                    turn.outgoing
                        .extend(outgoing.map_err(|error| error.to_string())?);
                }
                continue;
            }
            let work = machine.begin_work(passage, now);
            turn.outgoing
                .extend(self.end_folding_before(&work, machine, streams)?);
            turn.outgoing
                .extend(self.end_carrying_before(&work, machine, now, streams)?);
            match work {
                Work::Code(code) => turn.outgoing.extend(self.code(code, machine, streams)?),
                Work::Item(item) => self.item(item, streams, &mut turn)?,
                Work::Rest { frame } => {
                    turn.outgoing.push(machine.release(frame, now));
                    self.rest.extend(self.passed.drain(..));
                }
                Work::Nothing | Work::Ended(_) => break,
            }
        }
        Ok(turn)
    }

    /// Gives back what has passed the serial function and is asked back, from the last one on: values that fit their grants.
    fn give_back_halfway(
        &mut self,
        machine: &mut SlotMachine,
        streams: &Streams,
        now: Duration,
    ) -> Result<Vec<Outgoing>, String> {
        let frame = self.rest.front().map(|passed| passed.key.frame);
        let asked = frame.and_then(|frame| Some((frame, machine.asked_back(frame)?)));
        let Some((frame, count)) = asked else {
            return Ok(Vec::new());
        };
        let (mut records, mut reached) = (VecDeque::new(), 0);
        while records.len() < count as usize
            && let Some(passed) = self.rest.pop_back()
        {
            reached = passed.from + 1;
            let to = passed.from;
            let key = ItemKey { to, ..passed.key };
            let value = match &passed.passing {
                PassingItem::Value(value) if !passed.is_overdue => Some(value.clone()),
                _ => None,
            };
            let mut record = RecordWriter::default();
            let is_value = value.is_some();
            if let Some(value) = value {
                self.write(&key, passed.format, value, streams)?(&mut record);
            }
            if !is_value || record.bytes() > key.grant {
                self.rest.push_back(passed);
                break;
            }
            records.push_front(record);
        }
        Ok(machine.give_back_halfway(frame, reached, records.into(), now))
    }

    fn code(
        &mut self,
        code: ToSlot,
        machine: &mut SlotMachine,
        streams: &Streams,
    ) -> Result<Vec<Outgoing>, String> {
        match code {
            ToSlot::Setup { answers, .. } => {
                self.format = answers;
                let other_versions = vec!["numpy 1.26.4, not 2.1.0".to_owned()];
                let mut said = vec![machine.differs(other_versions)];
                said.push(machine.ready(self.lacks.clone()));
                if let (true, Some(raises)) = (self.lacks.is_empty(), self.initializer) {
                    said.push(machine.fetch(SHARED.0, SHARED_OFFSET, u32::MAX));
                    self.awaits_piece = true;
                    let error = if raises { "RuntimeError: no" } else { "" };
                    said.push(machine.initialized(error.into()));
                }
                return Ok(said);
            }
            ToSlot::Function { digest, pickle } => {
                let expected = streams.functions().find(|known| known.digest == digest);
                if expected.is_none_or(|known| known.pickle != pickle) {
                    return Err("a function is not what was sent".to_owned());
                }
                if !self.functions.insert(digest) {
                    return Err("a function was sent twice".to_owned());
                }
            }
            ToSlot::Discard { digest } => {
                if !self.functions.remove(&digest) {
                    return Err("a function was discarded that is not here".to_owned());
                }
            }
            ToSlot::Define {
                stream,
                segments,
                rules,
                ..
            } => {
                let functions = segments.iter().flat_map(|segment| &segment.functions);
                let mut digests = functions.chain(&rules.retries_on);
                if digests.any(|digest| !self.functions.contains(digest)) {
                    return Err("a program came before its functions".to_owned());
                }
                if self.programs.insert(stream, segments).is_some() {
                    return Err("a program was sent twice".to_owned());
                }
                if rules.timeout.is_some() {
                    let answer = TimeoutAnswer {
                        body: OVERDUE.into(),
                        retriable: false,
                    };
                    machine.set_timeout_answer(stream, answer);
                }
            }
            ToSlot::Forget { stream } => {
                self.programs.remove(&stream);
                self.carried.retain(|(of, _), _| *of != stream);
                self.told_one_by_one.retain(|(of, _)| *of != stream);
            }
            ToSlot::Execute(_)
            | ToSlot::Recall { .. }
            | ToSlot::Grant { .. }
            | ToSlot::Interrupt { .. }
            | ToSlot::Probe
            | ToSlot::Piece { .. } => {}
        }
        Ok(Vec::new())
    }

    fn item(&mut self, item: Item, streams: &Streams, turn: &mut Turn) -> Result<(), String> {
        let key = item.key;
        if self.awaits_piece {
            // It was asked for first, and goes by the link by which programs come.
            return Err("a program came before the shared contents".to_owned());
        }
        let range = usize::from(item.from)..=usize::from(key.to);
        let segments = self
            .programs
            .get(&key.stream)
            .and_then(|segments| segments.get(range))
            .unwrap_or_default();
        if segments.is_empty() {
            return Err(format!(
                "got item {} of segment {} of stream {}, which is not defined here",
                key.index, item.from, key.stream
            ));
        }
        let functions = || segments.iter().flat_map(|segment| &segment.functions);
        let has_all = functions().all(|digest| self.functions.contains(digest));
        if !has_all && streams.is_wanted(&key) {
            return Err(format!(
                "got item {} of segment {} of stream {}, whose functions were discarded",
                key.index, item.from, key.stream
            ));
        }
        let read = |record| streams.read(&key, item.from, record);
        let (written, passing) = match &item.list {
            None => (item.record.format, PassingItem::Value(read(&item.record)?)),
            Some(list) => {
                let parts = list.parts.iter().map(read).collect::<Result<_, _>>()?;
                let state = list.state.as_ref().map(read).transpose()?;
                (list.format, PassingItem::Parts(parts, state))
            }
        };
        let carry = match item.lease == Lease::Kept && self.carries(&key, item.from) {
            true => Some(self.state_before(&key, item.from, item.state, streams)?),
            false => None,
        };
        let segments = self
            .programs
            .get(&key.stream)
            .and_then(|segments| segments.get(usize::from(item.from)..=usize::from(key.to)))
            .unwrap_or_default();
        let running = RunningItem {
            key,
            carry,
            from: item.from,
            part: match item.lease {
                Lease::None => FunctionPart::All,
                Lease::Kept | Lease::PassedOn => FunctionPart::Serial,
            },
            lease: item.lease,
            functions: segments
                .iter()
                .map(|segment| segment.functions.len() as u32)
                .sum(),
            passing,
            is_overdue: false,
            format: match written {
                _ if streams.is_pickled(&key) => Format::Pickle,
                Format::Data => Format::Data,
                Format::Pickle => self.format,
            },
        };
        let passes = if running.part == FunctionPart::All {
            running.functions
        } else {
            1
        };
        turn.time = Some(self.run(running, passes, streams)?);
        Ok(())
    }

    /// An item begins or goes on. Says how long it takes for so many functions.
    fn run(
        &mut self,
        running: RunningItem,
        functions: u32,
        streams: &Streams,
    ) -> Result<Duration, String> {
        // What takes its slot down hears nothing before.
        let is_poison =
            running.part != FunctionPart::Rest && streams.poison(&running.key).is_some();
        self.hangs = match is_poison {
            true => None,
            false => streams.hangs(&running.key, running.part),
        };
        let time = streams.time(&running.key)? * functions;
        self.running = Some(running);
        Ok(match self.hangs {
            Some(_) => FOR_EVER,
            None => time,
        })
    }

    /// What runs is told to end. Says what comes of it, if it does.
    pub(super) fn told(
        &mut self,
        machine: &mut SlotMachine,
        streams: &Streams,
        now: Duration,
    ) -> Option<Result<Turn, String>> {
        // Whoever works on a real item doesn't hear it before that is done.
        if self.hangs != Some(true) {
            return None;
        }
        let mut running = self.running.take()?;
        if let Some(before) = running.carry.take() {
            return Some(self.carry(running, before, true, (machine, now), streams));
        }
        if running.part == FunctionPart::Serial && running.lease == Lease::PassedOn {
            let is_overdue = true;
            self.passed.push(RunningItem {
                is_overdue,
                ..running
            });
            return Some(Ok(Turn::default()));
        }
        let outgoing = machine.finish(running.key, now, |writer| {
            writer.push(running.format, true, OVERDUE, &[], []);
        });
        Some(
            outgoing
                .map_err(|error| error.to_string())
                .map(|outgoing| Turn {
                    outgoing,
                    time: None,
                }),
        )
    }

    /// What runs is done.
    ///
    /// # Errors
    /// What can't be.
    pub(super) fn done(
        &mut self,
        machine: &mut SlotMachine,
        passage: &SerialPassage,
        streams: &Streams,
        now: Duration,
    ) -> Result<Turn, String> {
        let mut turn = Turn::default();
        let Some(mut running) = self.running.take() else {
            return Err("nothing ran".to_owned());
        };
        if let Some(before) = running.carry.take() {
            return self.carry(running, before, false, (machine, now), streams);
        }
        let (key, from) = (running.key, running.from);
        let segments = match running.part {
            FunctionPart::All => from..=key.to,
            FunctionPart::Serial => from..=from,
            FunctionPart::Rest => from + 1..=key.to,
        };
        running.passing = self.apply(key, segments, running.passing);
        if running.part == FunctionPart::Serial {
            if running.lease == Lease::PassedOn {
                self.passed.push(running);
                return Ok(turn);
            }
            turn.outgoing.extend(passage.pass(key.frame));
            if key.to > from {
                running.part = FunctionPart::Rest;
                let functions = running.functions - 1;
                turn.time = Some(self.run(running, functions, streams)?);
                return Ok(turn);
            }
        }
        let RunningItem {
            passing, format, ..
        } = running;
        turn.outgoing = match streams.is_retriable(&key) {
            true => {
                let sum = sum_of(&passing);
                let raised = Raised {
                    function: RETRIABLE,
                    sum,
                };
                let token = streams.token(&key, What::Raised(raised), passing.touched())?;
                let written = machine.finish_retriable(key, now, push(token, format, streams));
                let written = written.map_err(|error| error.to_string())?;
                turn.outgoing.into_iter().chain(written).collect()
            }
            false => {
                let finished = self.finish(key, format, passing, (machine, now), streams)?;
                turn.outgoing.into_iter().chain(finished).collect()
            }
        };
        Ok(turn)
    }

    /// Takes an item through these segments.
    fn apply(
        &self,
        key: ItemKey,
        segments: RangeInclusive<u16>,
        passing: PassingItem,
    ) -> PassingItem {
        let program = self.programs.get(&key.stream);
        let mut solving = SplitMix64::new(key.frame.rotate_left(32) ^ key.index);
        let mut stepper = Stepper {
            function: &number_of,
            is_stranger: self.format == Format::Data,
            solves: &mut || solving.below(2) == 0,
        };
        stepper.apply(program.map_or(&[], |program| program), segments, passing)
    }

    /// An item has passed all segments that it passes here.
    fn finish(
        &mut self,
        key: ItemKey,
        format: Format,
        passing: PassingItem,
        (machine, now): (&mut SlotMachine, Duration),
        streams: &Streams,
    ) -> Result<Vec<Outgoing>, String> {
        let touched = passing.touched();
        let written = match passing {
            PassingItem::Value(value) => {
                machine.finish(key, now, self.write(&key, format, value, streams)?)
            }
            PassingItem::At(reached, value) => {
                let write = self.write(&key, format, value, streams)?;
                machine.finish_at(key, reached, now, write)
            }
            PassingItem::Parts(parts, state) => {
                let has_state = state.is_some();
                let values = state.into_iter().chain(parts);
                let writes = values.map(|value| self.write(&key, format, value, streams));
                let writes: Vec<_> = writes.collect::<Result<_, _>>()?;
                machine.finish_expanded(key, has_state, now, |writer| {
                    writes.into_iter().for_each(|write| write(writer));
                })
            }
            PassingItem::Raised(Some(raised), touched) => {
                let token = streams.token(&key, What::Raised(raised), touched)?;
                machine.finish(key, now, push(token, format, streams))
            }
            PassingItem::Raised(None, _) => {
                return Err(format!(
                    "item {} of stream {} can't pass its segments",
                    key.index, key.stream
                ));
            }
            PassingItem::Folding(value) => {
                return self.fold(key, format, value, (machine, now), streams);
            }
        };
        written.or_else(|TooLarge { got, .. }| {
            let token = streams.token(&key, What::TooLarge(got), touched)?;
            let written = machine.finish(key, now, push(token, format, streams));
            written.map_err(|error| error.to_string())
        })
    }

    /// What writes a value into a record.
    fn write(
        &self,
        key: &ItemKey,
        format: Format,
        value: Value,
        streams: &Streams,
    ) -> Result<impl FnOnce(&mut RecordWriter) + use<>, String> {
        let touched = value.touched;
        let token = streams.token(key, What::Made(value.data), touched)?;
        Ok(push(token, format, streams))
    }

    /// An item ends in what is made of it and those before it.
    fn fold(
        &mut self,
        key: ItemKey,
        format: Format,
        value: Value,
        (machine, now): (&mut SlotMachine, Duration),
        streams: &Streams,
    ) -> Result<Vec<Outgoing>, String> {
        let mut outgoing = Vec::new();
        let follows = self
            .folding
            .as_ref()
            .is_some_and(|folding| (folding.key.frame, folding.next) == (key.frame, key.index));
        if !follows {
            outgoing.extend(self.end_folding(machine, streams)?);
        }
        self.folding = Some(match self.folding.take() {
            None => FoldedItems {
                key,
                next: key.index + 1,
                format,
                value,
            },
            Some(before) => FoldedItems {
                next: key.index + 1,
                format: match before.format {
                    Format::Data => Format::Data,
                    Format::Pickle => format,
                },
                value: Value {
                    data: meaning::operator(before.value.data, value.data),
                    touched: before.value.touched || value.touched || self.format == Format::Data,
                },
                ..before
            },
        });
        if machine.absorb(key, now) {
            outgoing.extend(self.end_folding(machine, streams)?);
        }
        Ok(outgoing)
    }

    /// What has been folded is told of, unless more of the same frame comes.
    fn end_folding_before(
        &mut self,
        work: &Work,
        machine: &mut SlotMachine,
        streams: &Streams,
    ) -> Result<Vec<Outgoing>, String> {
        match (work, &self.folding) {
            (Work::Item(item), Some(folding)) if item.key.frame == folding.key.frame => {
                Ok(Vec::new())
            }
            _ => self.end_folding(machine, streams),
        }
    }

    fn end_folding(
        &mut self,
        machine: &mut SlotMachine,
        streams: &Streams,
    ) -> Result<Vec<Outgoing>, String> {
        let Some(FoldedItems {
            key, format, value, ..
        }) = self.folding.take()
        else {
            return Ok(Vec::new());
        };
        let touched = value.touched;
        let write = self.write(&key, format, value, streams)?;
        let written = machine.finish_folded(key, write);
        written.or_else(|TooLarge { got, .. }| {
            let token = streams.token(&key, What::TooLarge(got), touched)?;
            let written = machine.finish_folded(key, push(token, format, streams));
            written.map_err(|error| error.to_string())
        })
    }

    /// Whether this process is in a serial function of that segment.
    pub(super) fn is_in_serial(&self, stream: u32, segment: u16) -> bool {
        self.running.as_ref().is_some_and(|running| {
            running.part == FunctionPart::Serial
                && running.key.stream == stream
                && running.from == segment
        })
    }
}

/// What writes a token into a record.
pub(super) fn push(
    token: Token,
    format: Format,
    streams: &Streams,
) -> impl FnOnce(&mut RecordWriter) + use<> {
    let sizes = streams.sizes(token.stream);
    move |writer: &mut RecordWriter| {
        let (body, bulk) = token.contents(sizes);
        writer.push(format, token.is_exception(), &body, &[], bulk);
    }
}

/// What tells an item's value apart, whatever has become of it.
fn sum_of(passing: &PassingItem) -> u64 {
    match passing {
        PassingItem::Value(value) | PassingItem::At(_, value) | PassingItem::Folding(value) => {
            value.data.sum()
        }
        PassingItem::Raised(Some(raised), _) => raised.sum,
        PassingItem::Parts(..) | PassingItem::Raised(None, _) => 0,
    }
}
