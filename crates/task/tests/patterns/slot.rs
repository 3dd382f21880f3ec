//! A slot as the real one is, but for the interpreter: it runs the functions of [`meaning`].

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use bytes::Bytes;
use exoskel_flow::{Lease, SegmentStep};
use exoskel_meaning::Random;
use exoskel_meaning::meaning::{self, Data, Raised, Value};
use exoskel_meaning::steps::{PassingItem, Stepper};
use exoskel_task::SlotQueue;
use exoskel_task::message::{ReceivedMessage, SegmentFunctions, SlotEndpoint, ToSlot};
use exoskel_task::payload::{Format, Record, RecordWriter};
use exoskel_task::slot_queue::{Item, ItemKey, Outgoing, SerialPassage, StateBefore, Work};

use super::record;

/// The most bytes of a message.
pub(crate) const MESSAGE_BYTES_MAX: u64 = 1 << 20;

pub(crate) struct Slot {
    pub(crate) inbox: VecDeque<(SlotEndpoint, ReceivedMessage)>,
    pub(crate) outbox: VecDeque<Outgoing>,
    pub(crate) is_stranger: bool,
    queue: SlotQueue,
    passage: SerialPassage,
    programs: HashMap<u32, Vec<SegmentFunctions>>,
    /// What has passed a serial function.
    passed: VecDeque<(ItemKey, u16, Format, PassingItem)>,
    /// The same, of a frame that has given its lease back.
    rest: VecDeque<(ItemKey, u16, Format, PassingItem)>,
    /// The first item that was folded, the one behind the last, and what came of them.
    folding: Option<(ItemKey, u64, Format, Value)>,
    /// The states of segments that carry one, and the last item whose result waits for one.
    carried: HashMap<(u32, u16), Carried>,
    carrying: Option<ItemKey>,
}

/// The state that a slot has behind the items of a frame.
struct Carried {
    frame: u64,
    next: u64,
    state: Option<Value>,
    format: Format,
}

impl Slot {
    pub(crate) fn new(is_stranger: bool) -> Self {
        Self {
            inbox: VecDeque::new(),
            outbox: VecDeque::new(),
            is_stranger,
            queue: SlotQueue::new(MESSAGE_BYTES_MAX),
            passage: SerialPassage::default(),
            programs: HashMap::new(),
            passed: VecDeque::new(),
            rest: VecDeque::new(),
            folding: None,
            carried: HashMap::new(),
            carrying: None,
        }
    }

    /// Takes a message in, or does the next thing. Says whether there was anything.
    pub(crate) fn step(&mut self, random: &mut Random, now: Duration) -> bool {
        if let Some((endpoint, message)) = self.inbox.pop_front() {
            let answers = self.queue.receive(endpoint, message, &self.passage);
            self.outbox.extend(answers.unwrap());
            return true;
        }
        if self.go_on(random, now) {
            return true;
        }
        let work = self.queue.begin(&self.passage, now);
        let goes_on = match (&work, &self.folding) {
            (Work::Item(item), Some((key, ..))) => item.key.frame == key.frame,
            _ => false,
        };
        if !goes_on {
            self.end_folding();
        }
        match (&work, &self.carrying) {
            (Work::Item(item), Some(key)) if item.key.frame == key.frame => {}
            _ => self.end_carrying(),
        }
        match work {
            Work::Code(ToSlot::Define {
                stream, segments, ..
            }) => {
                self.programs.insert(stream, segments);
            }
            Work::Code(ToSlot::Forget { stream }) => {
                self.programs.remove(&stream);
                self.carried.retain(|(of, _), _| *of != stream);
            }
            Work::Code(_) => {}
            Work::Item(item) if self.carries(item.key.stream, item.from) => self.carry(item, now),
            Work::Item(item) => {
                let (key, from, lease) = (item.key, item.from, item.lease);
                let (format, flow) = match item.list {
                    None => (item.record.format, PassingItem::Value(read(&item.record))),
                    Some(list) => {
                        let parts = list.parts.iter().map(read).collect();
                        let state = list.state.as_ref().map(read);
                        (list.format, PassingItem::Parts(parts, state))
                    }
                };
                let to = if lease == Lease::None { key.to } else { from };
                let flow = self.apply(random, key, from, to, flow);
                match lease {
                    Lease::PassedOn => self.passed.push_back((key, from + 1, format, flow)),
                    _ => {
                        if lease == Lease::Kept {
                            self.outbox.extend(self.passage.pass(key.frame));
                        }
                        let flow = self.apply(random, key, to + 1, key.to, flow);
                        self.finish(key, format, flow, now);
                    }
                }
            }
            Work::Rest { frame } => {
                let released = self.queue.release(frame, now);
                self.outbox.push_back(released);
                self.rest.extend(self.passed.drain(..));
            }
            Work::Nothing => {
                self.outbox.extend(self.queue.flush(now));
                return !self.outbox.is_empty();
            }
            Work::Ended(_) => return false,
        }
        true
    }

    /// The next item that has passed a serial function goes on, unless it is asked back. Says whether there was one.
    fn go_on(&mut self, random: &mut Random, now: Duration) -> bool {
        let Some((ItemKey { frame, .. }, reached, ..)) = self.rest.front() else {
            return false;
        };
        let (frame, reached) = (*frame, *reached);
        if let Some(count) = self.queue.asked_back(frame) {
            let mut records = VecDeque::new();
            while records.len() < count as usize
                && let Some((key, _, format, PassingItem::Value(value))) = self.rest.back()
            {
                let mut record = RecordWriter::default();
                write(&mut record, self.format(*format), value);
                if record.bytes() > key.grant {
                    break;
                }
                self.rest.pop_back();
                records.push_front(record);
            }
            let given = self
                .queue
                .give_back_halfway(frame, reached, records.into(), now);
            self.outbox.extend(given);
        }
        if let Some((key, reached, format, flow)) = self.rest.pop_front() {
            let flow = self.apply(random, key, reached, key.to, flow);
            self.finish(key, format, flow, now);
        }
        true
    }

    /// How an answer must be written.
    fn format(&self, format: Format) -> Format {
        if self.is_stranger {
            Format::Data
        } else {
            format
        }
    }

    fn apply(
        &self,
        random: &mut Random,
        key: ItemKey,
        from: u16,
        to: u16,
        flow: PassingItem,
    ) -> PassingItem {
        let segments = self.programs.get(&key.stream);
        let mut stepper = Stepper {
            function: &|digest| u32::from(digest[0]),
            is_stranger: self.is_stranger,
            solves: &mut || random.is(2),
        };
        stepper.apply(segments.map_or(&[], |segments| segments), from..=to, flow)
    }

    fn finish(&mut self, key: ItemKey, format: Format, flow: PassingItem, now: Duration) {
        let format = self.format(format);
        let queue = &mut self.queue;
        let one = |value: Value| move |writer: &mut RecordWriter| write(writer, format, &value);
        let answers = match flow {
            PassingItem::Value(value) => queue.finish(key, now, one(value)),
            PassingItem::At(reached, value) => queue.finish_at(key, reached, now, one(value)),
            PassingItem::Parts(parts, state) => {
                queue.finish_expanded(key, state.is_some(), now, |writer| {
                    for value in state.into_iter().chain(parts) {
                        one(value)(writer);
                    }
                })
            }
            PassingItem::Raised(raised, touched) => {
                let body = exception(raised, touched);
                queue.finish(key, now, |writer| {
                    writer.push(format, true, &body, &[], []);
                })
            }
            PassingItem::Folding(value) => return self.fold(key, format, value, now),
        };
        self.outbox.extend(answers.unwrap());
    }

    fn step_at(&self, stream: u32, segment: u16) -> Option<(SegmentStep, u32)> {
        let segment = self.programs.get(&stream)?.get(usize::from(segment))?;
        let function = segment.functions.first()?;
        Some((*segment.steps.first()?, function[0].into()))
    }

    fn carries(&self, stream: u32, segment: u16) -> bool {
        let step = self.step_at(stream, segment).map(|(step, _)| step);
        matches!(
            step,
            Some(SegmentStep::Carry | SegmentStep::Scan | SegmentStep::ScanInitial)
        )
    }

    fn carry(&mut self, item: Item, now: Duration) {
        let Item { key, from, .. } = item;
        let place = (key.stream, from);
        let (step, function) = self.step_at(key.stream, from).unwrap();
        let kept = self.carried.remove(&place);
        let (state, format) = match (item.state, kept) {
            (_, Some(kept)) if (kept.frame, kept.next) == (key.frame, key.index) => {
                (kept.state, kept.format)
            }
            (StateBefore::Kept(frame), Some(kept)) => {
                assert_eq!(kept.frame, frame, "the state of that frame isn't here");
                (kept.state, kept.format)
            }
            (StateBefore::Kept(frame), None) => panic!("no state of frame {frame} is here"),
            (StateBefore::Sent(record), _) => (Some(read(&record)), record.format),
            (StateBefore::OfItemBefore, _) => panic!("its state isn't here"),
            (StateBefore::Nothing, _) => (None, Format::Pickle),
        };
        let format = match (format, self.format(item.record.format)) {
            (Format::Pickle, Format::Pickle) => Format::Pickle,
            _ => Format::Data,
        };
        let value = read(&item.record);
        let touched =
            value.touched || self.is_stranger || state.as_ref().is_some_and(|state| state.touched);
        let first = state.clone().map(|state| state.data);
        let made = match (step, first) {
            (SegmentStep::Carry, Some(first)) => meaning::carry(function, first, value.data),
            (SegmentStep::Carry | SegmentStep::ScanInitial, None) => panic!("a state is there"),
            (_, Some(first)) => {
                let next = meaning::scan(function, first, value.data);
                next.map(|next| (next.clone(), next))
            }
            (_, None) => Ok((value.data.clone(), value.data)),
        };
        let made = made.map(|(state, result)| {
            let [state, result] = [state, result].map(|data| Value { data, touched });
            (state, result)
        });
        let told = made.clone();
        let write = |writer: &mut RecordWriter| match told {
            Ok((_, result)) => write(writer, format, &result),
            Err(raised) => {
                let body = exception(Some(raised), touched);
                writer.push(format, true, &body, &[], []);
            }
        };
        // What raises may have seen what a stranger made, and have kept it.
        let state = made.map_or_else(
            |_| state.map(|state| Value { touched, ..state }),
            |(state, _)| Some(state),
        );
        if state.is_none() {
            let answers = self.queue.finish(key, now, write);
            self.outbox.extend(answers.unwrap());
            return;
        }
        let next = key.index + 1;
        let carried = Carried {
            frame: key.frame,
            next,
            state,
            format,
        };
        self.carried.insert(place, carried);
        self.carrying = Some(key);
        if self.queue.carry(key, now, write).unwrap() {
            self.end_carrying();
        }
    }

    fn end_carrying(&mut self) {
        let Some(key) = self.carrying.take() else {
            return;
        };
        let carried = &self.carried[&(key.stream, key.to)];
        let format = self.format(carried.format);
        let state = carried.state.clone().unwrap();
        let answers = self
            .queue
            .finish_carried(key, |writer| write(writer, format, &state));
        self.outbox.extend(answers.unwrap());
    }

    fn fold(&mut self, key: ItemKey, format: Format, value: Value, now: Duration) {
        let follows = self
            .folding
            .as_ref()
            .is_some_and(|(first, next, ..)| (first.frame, *next) == (key.frame, key.index));
        if !follows {
            self.end_folding();
        }
        self.folding = Some(match self.folding.take() {
            None => (key, key.index + 1, format, value),
            Some((first, next, before, folded)) => {
                let touched = folded.touched || value.touched || self.is_stranger;
                let data = meaning::operator(folded.data, value.data);
                let format = if before == Format::Data {
                    before
                } else {
                    format
                };
                (first, next + 1, format, Value { data, touched })
            }
        });
        if self.queue.absorb(key, now) {
            self.end_folding();
        }
    }

    fn end_folding(&mut self) {
        if let Some((key, _, format, value)) = self.folding.take() {
            let format = self.format(format);
            let answers = self.queue.finish_folded(key, |writer| {
                write(writer, format, &value);
            });
            self.outbox.extend(answers.unwrap());
        }
    }
}

/// What is said of an exception: which function has raised it, of what.
fn exception(raised: Option<Raised>, touched: bool) -> Bytes {
    let told = raised.map(|raised| [raised.function.into(), raised.sum]);
    let data = Data::List(told.into_iter().flatten().map(Data::Number).collect());
    record::body(&Value { data, touched })
}

fn read(record: &Record) -> Value {
    record::read(&record.body, &record.bulk)
}

fn write(writer: &mut RecordWriter, format: Format, value: &Value) {
    let (body, bulk) = record::write(value);
    writer.push(format, false, &body, &[], bulk);
}
