//! The process of a slot: takes work from its machine as the Python side does, and takes time for it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use exoskel_flow::Lease;
use exoskel_node::SlotMachine;
use exoskel_task::message::{Digest, SegmentFunctions, ToSlot};
use exoskel_task::payload::{Format, RecordWriter};
use exoskel_task::slot_queue::{Item, ItemKey, Outgoing, SerialPassage, Work};

use super::content::{Token, What};
use super::streams::Streams;

/// Which of its segment's functions an item passes.
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
    pub(super) segment: u16,
    pub(super) part: FunctionPart,
    lease: Lease,
    /// Functions of the segment.
    functions: u32,
    /// How its result is written.
    format: Format,
}

#[derive(Debug)]
pub(super) struct Interpreter {
    /// How results are written, whatever the items are.
    format: Format,
    /// Modules that the programs need and that are not here.
    lacks: Vec<String>,
    programs: BTreeMap<u32, Vec<SegmentFunctions>>,
    functions: BTreeSet<Digest>,
    /// What has passed a serial function whose lease is passed on.
    passed: Vec<RunningItem>,
    rest: VecDeque<RunningItem>,
    pub(super) running: Option<RunningItem>,
}

/// What came of looking for work.
#[derive(Debug, Default)]
pub(super) struct Turn {
    pub(super) outgoing: Vec<Outgoing>,
    /// Something runs now, for so long.
    pub(super) time: Option<Duration>,
}

impl Interpreter {
    pub(super) fn new(format: Format, lacks: Vec<String>) -> Self {
        Self {
            format,
            lacks,
            programs: BTreeMap::new(),
            functions: BTreeSet::new(),
            passed: Vec::new(),
            rest: VecDeque::new(),
            running: None,
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
        while self.running.is_none() {
            if let Some(passed) = self.rest.pop_front() {
                if self.programs.contains_key(&passed.key.stream) {
                    turn.time = Some(streams.time(&passed.key)? * (passed.functions - 1));
                    self.running = Some(RunningItem {
                        part: FunctionPart::Rest,
                        ..passed
                    });
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

    fn code(
        &mut self,
        code: ToSlot,
        machine: &SlotMachine,
        streams: &Streams,
    ) -> Result<Option<Outgoing>, String> {
        match code {
            ToSlot::Setup { answers, .. } => {
                self.format = answers;
                return Ok(Some(machine.ready(self.lacks.clone())));
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
            ToSlot::Define {
                stream, segments, ..
            } => {
                let mut digests = segments.iter().flat_map(|segment| &segment.functions);
                if digests.any(|digest| !self.functions.contains(digest)) {
                    return Err("a program came before its functions".to_owned());
                }
                if self.programs.insert(stream, segments).is_some() {
                    return Err("a program was sent twice".to_owned());
                }
            }
            ToSlot::Forget { stream } => {
                self.programs.remove(&stream);
            }
            ToSlot::Execute(_) | ToSlot::Recall { .. } | ToSlot::Grant { .. } => {}
        }
        Ok(None)
    }

    fn item(&mut self, item: Item, streams: &Streams, turn: &mut Turn) -> Result<(), String> {
        let key = item.key;
        let segment = self
            .programs
            .get(&key.stream)
            .and_then(|segments| segments.get(usize::from(item.segment)));
        let functions = segment.map_or(0, |segment| segment.functions.len()) as u32;
        let running = RunningItem {
            key,
            segment: item.segment,
            part: match item.lease {
                Lease::None => FunctionPart::All,
                Lease::Kept | Lease::PassedOn => FunctionPart::Serial,
            },
            lease: item.lease,
            functions,
            format: match item.record.format {
                _ if streams.is_pickled(&key) => Format::Pickle,
                Format::Data => Format::Data,
                Format::Pickle => self.format,
            },
        };
        streams.check_input(&key, item.segment, &item.record)?;
        if functions == 0 {
            return Err(format!(
                "got item {} of segment {} of stream {}, which is not defined here",
                key.index, item.segment, key.stream
            ));
        }
        let passes = if running.part == FunctionPart::All {
            functions
        } else {
            1
        };
        turn.time = Some(streams.time(&key)? * passes);
        self.running = Some(running);
        Ok(())
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
                turn.time = Some(streams.time(&running.key)? * (running.functions - 1));
                self.running = Some(running);
                return Ok(turn);
            }
        }
        let token = streams.result(&running.key, running.segment)?;
        let sizes = streams.sizes(token.stream);
        let push = |token: Token| {
            move |writer: &mut RecordWriter| {
                let (body, bulk) = token.contents(sizes);
                let is_exception = token.what != What::Value;
                writer.push(running.format, is_exception, &body, &[], bulk);
            }
        };
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
                && running.segment == segment
        })
    }
}
