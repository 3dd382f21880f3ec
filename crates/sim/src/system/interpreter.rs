//! The process of a slot: takes work from its machine as the Python side does, and takes time for it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use exoskel_flow::Lease;
use exoskel_node::SlotMachine;
use exoskel_task::message::{Digest, SegmentFunctions, ToSlot};
use exoskel_task::payload::{Format, RecordWriter};
use exoskel_task::slot_queue::{Item, ItemKey, Outgoing, SerialPassage, TimeoutAnswer, Work};

use super::content::{OVERDUE, Token, What};
use super::streams::Streams;

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
#[derive(Clone, Copy, Debug)]
pub(super) struct RunningItem {
    pub(super) key: ItemKey,
    /// The first segment that it passes; its key says the last one.
    pub(super) from: u16,
    pub(super) part: FunctionPart,
    lease: Lease,
    /// Functions of all segments that it passes.
    functions: u32,
    /// How its result is written.
    format: Format,
    /// It was told to end on its way to the rest of its functions.
    is_overdue: bool,
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
    format: Format,
    /// Modules that the programs need and that are not here.
    lacks: Vec<String>,
    /// Whether the initializer raises, if there is one.
    initializer: Option<bool>,
    /// A piece of shared contents was asked for.
    awaits_piece: bool,
    programs: BTreeMap<u32, Vec<SegmentFunctions>>,
    functions: BTreeSet<Digest>,
    /// What has passed a serial function whose lease is passed on.
    passed: Vec<RunningItem>,
    rest: VecDeque<RunningItem>,
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
                    let running = RunningItem {
                        part: FunctionPart::Rest,
                        ..passed
                    };
                    turn.time = Some(self.run(running, passed.functions - 1, streams)?);
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
            match machine.begin_work(passage, now) {
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
            let token = streams.result(&key, passed.from)?;
            let (body, bulk) = token.contents(streams.sizes(token.stream));
            let mut record = RecordWriter::default();
            record.push(passed.format, false, &body, &[], bulk);
            let is_value = token.what == What::Value && !passed.is_overdue;
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
        let functions = || segments.iter().flat_map(|segment| &segment.functions);
        let has_all = functions().all(|digest| self.functions.contains(digest));
        let functions = functions().count() as u32;
        let running = RunningItem {
            key,
            from: item.from,
            part: match item.lease {
                Lease::None => FunctionPart::All,
                Lease::Kept | Lease::PassedOn => FunctionPart::Serial,
            },
            lease: item.lease,
            functions,
            is_overdue: false,
            format: match item.record.format {
                _ if streams.is_pickled(&key) => Format::Pickle,
                Format::Data => Format::Data,
                Format::Pickle => self.format,
            },
        };
        streams.check_input(&key, item.from, &item.record)?;
        if functions == 0 {
            return Err(format!(
                "got item {} of segment {} of stream {}, which is not defined here",
                key.index, item.from, key.stream
            ));
        }
        if !has_all && streams.is_wanted(&key) {
            return Err(format!(
                "got item {} of segment {} of stream {}, whose functions were discarded",
                key.index, item.from, key.stream
            ));
        }
        let passes = if running.part == FunctionPart::All {
            functions
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
        self.running = Some(running);
        self.hangs = streams.hangs(&running.key, running.part);
        match self.hangs {
            Some(_) => Ok(FOR_EVER),
            None => Ok(streams.time(&running.key)? * functions),
        }
    }

    /// What runs is told to end. Says what comes of it, if it does.
    pub(super) fn told(
        &mut self,
        machine: &mut SlotMachine,
        now: Duration,
    ) -> Option<Result<Turn, String>> {
        // Whoever works on a real item doesn't hear it before that is done.
        if self.hangs != Some(true) {
            return None;
        }
        let running = self.running.take()?;
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
        if running.part == FunctionPart::Serial {
            if running.lease == Lease::PassedOn {
                self.passed.push(running);
                return Ok(turn);
            }
            let frame = running.key.frame;
            turn.outgoing.extend(passage.pass(frame));
            if running.functions > 1 {
                running.part = FunctionPart::Rest;
                turn.time = Some(self.run(running, running.functions - 1, streams)?);
                return Ok(turn);
            }
        }
        let mut token = streams.result(&running.key, running.from)?;
        let retriable = streams.is_retriable(&running.key);
        let sizes = streams.sizes(token.stream);
        let push = |token: Token| {
            move |writer: &mut RecordWriter| {
                let (body, bulk) = token.contents(sizes);
                let is_exception = token.what != What::Value;
                writer.push(running.format, is_exception, &body, &[], bulk);
            }
        };
        if retriable {
            token.what = What::Raised;
            let outgoing = machine.finish_retriable(running.key, now, push(token));
            turn.outgoing
                .extend(outgoing.map_err(|error| error.to_string())?);
            return Ok(turn);
        }
        let outgoing = machine
            .finish(running.key, now, push(token))
            .or_else(|_| {
                let what = What::TooLarge;
                machine.finish(running.key, now, push(Token { what, ..token }))
            })
            .map_err(|error| error.to_string())?;
        turn.outgoing.extend(outgoing);
        Ok(turn)
    }

    /// Whether this process is in a serial function of that segment.
    pub(super) fn is_in_serial(&self, stream: u32, segment: u16) -> bool {
        self.running.is_some_and(|running| {
            running.part == FunctionPart::Serial
                && running.key.stream == stream
                && running.from == segment
        })
    }
}
