//! A slot as the real one is, but for the interpreter: it runs the functions of [`meaning`](super::meaning).

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use exoskel_flow::{Lease, SegmentStep};
use exoskel_task::SlotQueue;
use exoskel_task::message::{
    ReceivedMessage, SegmentEnding, SegmentFunctions, SlotEndpoint, ToSlot,
};
use exoskel_task::payload::{Format, Record, RecordWriter};
use exoskel_task::slot_queue::{ItemKey, Outgoing, SerialPassage, Work};

use super::generator::Random;
use super::meaning::{self, Data, Raised, Value};

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
    passed: VecDeque<(ItemKey, u16, Format, Flow)>,
    /// The same, of a frame that has given its lease back.
    rest: VecDeque<(ItemKey, u16, Format, Flow)>,
    /// The first item that was folded, the one behind the last, and what came of them.
    folding: Option<(ItemKey, u64, Format, Value)>,
}

/// An item on its way.
enum Flow {
    Value(Value),
    At(u16, Value),
    Parts(Vec<Value>, Option<Value>),
    Folding(Value),
    Raised(bool),
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
        match work {
            Work::Code(ToSlot::Define {
                stream, segments, ..
            }) => {
                self.programs.insert(stream, segments);
            }
            Work::Code(ToSlot::Forget { stream }) => {
                self.programs.remove(&stream);
            }
            Work::Code(_) => {}
            Work::Item(item) => {
                let (key, from, lease) = (item.key, item.from, item.lease);
                let (format, flow) = match item.list {
                    None => (item.record.format, Flow::Value(read(&item.record))),
                    Some(list) => {
                        let parts = list.parts.iter().map(read).collect();
                        let state = list.state.as_ref().map(read);
                        (list.format, Flow::Parts(parts, state))
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
                && let Some((key, _, format, Flow::Value(value))) = self.rest.back()
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

    fn apply(&self, random: &mut Random, key: ItemKey, from: u16, to: u16, flow: Flow) -> Flow {
        let mut flow = flow;
        let Some(segments) = self.programs.get(&key.stream) else {
            return Flow::Raised(false);
        };
        for number in from..=to {
            let segment = &segments[usize::from(number)];
            for round in 1.. {
                flow = self.pass(random, segment, flow);
                let SegmentEnding::Repeat { from, at_most } = segment.ending else {
                    break;
                };
                match flow {
                    Flow::At(at, value) if at == number && from == number => {
                        flow = Flow::Value(value);
                        if at_most == Some(round) {
                            break;
                        }
                    }
                    _ => break,
                }
            }
        }
        flow
    }

    fn pass(&self, random: &mut Random, segment: &SegmentFunctions, flow: Flow) -> Flow {
        let mut functions = segment.functions.iter().map(|digest| u32::from(digest[0]));
        let mut flow = flow;
        for step in &segment.steps {
            let own: Vec<u32> = functions.by_ref().take(step.functions()).collect();
            let touched = self.is_stranger
                || match &flow {
                    Flow::Value(value) | Flow::At(_, value) | Flow::Folding(value) => value.touched,
                    Flow::Parts(values, state) => {
                        values.iter().chain(state).any(|value| value.touched)
                    }
                    Flow::Raised(_) => return flow,
                };
            let value = |data: Data| Value { data, touched };
            let stepped = self.step_of(random, (*step, &own), segment.ending, flow, &value);
            flow = stepped.unwrap_or(Flow::Raised(touched));
        }
        flow
    }

    fn step_of(
        &self,
        random: &mut Random,
        (step, own): (SegmentStep, &[u32]),
        ending: SegmentEnding,
        flow: Flow,
        value: &dyn Fn(Data) -> Value,
    ) -> Result<Flow, Raised> {
        let is_list = matches!(flow, Flow::Parts(..));
        let (input, list): (_, Vec<Data>) = match flow {
            Flow::Parts(values, state) => {
                (state, values.into_iter().map(|value| value.data).collect())
            }
            Flow::Value(value) | Flow::At(_, value) | Flow::Folding(value) => {
                (Some(value), Vec::new())
            }
            Flow::Raised(_) => return Err(Raised),
        };
        let data = input.map(|input| input.data);
        let item = || data.clone().unwrap();
        Ok(match step {
            SegmentStep::Call => Flow::Value(value(meaning::call(own[0], &item())?)),
            SegmentStep::Split { .. } => {
                let parts = meaning::split(own.first().copied(), &item())?;
                Flow::Parts(parts.into_iter().map(value).collect(), None)
            }
            SegmentStep::Join { .. } => {
                Flow::Value(value(meaning::join(own.first().copied(), list)?))
            }
            SegmentStep::Until => match (meaning::until(own[0], &item()), ending) {
                (false, SegmentEnding::Repeat { from, .. }) => Flow::At(from, value(item())),
                _ => Flow::Value(value(item())),
            },
            SegmentStep::Fold => Flow::Folding(value(item())),
            SegmentStep::Combine => {
                Flow::Value(value(list.into_iter().reduce(meaning::operator).unwrap()))
            }
            SegmentStep::CombineInitial => {
                let folded = list.into_iter().fold(meaning::initial(), meaning::operator);
                Flow::Value(value(folded))
            }
            SegmentStep::Divide | SegmentStep::Resume => {
                let SegmentEnding::Expand { after: Some(after) } = ending else {
                    panic!("a division ends so");
                };
                if step == SegmentStep::Resume {
                    // What was kept has come back.
                    assert_eq!(item(), Data::Number(list.len() as u64));
                    let solution = meaning::call(own[3], &Data::List(list))?;
                    return Ok(Flow::At(after, value(solution)));
                }
                if meaning::is_base(&item()) || random.is(2) {
                    let solution = meaning::solve(own[3], &item())?;
                    return Ok(Flow::At(after, value(solution)));
                }
                let parts = meaning::divide(&item());
                let state = Data::Number(parts.len() as u64);
                Flow::Parts(parts.into_iter().map(value).collect(), Some(value(state)))
            }
            SegmentStep::Feedback => {
                let SegmentEnding::Expand { after: Some(after) } = ending else {
                    panic!("what is fed back ends so");
                };
                if is_list {
                    // What was kept has come back: the results before, between and behind the items.
                    let between = meaning::split(None, &item())?;
                    assert_eq!(between.len(), list.len() + 1);
                    let mut lists = list.into_iter();
                    let both = between
                        .into_iter()
                        .flat_map(|before| [Some(before), lists.next()]);
                    let results = both
                        .flatten()
                        .flat_map(|results| meaning::split(None, &results).unwrap());
                    return Ok(Flow::At(after, value(Data::List(results.collect()))));
                }
                let (mut between, mut parts) = (vec![Vec::new()], Vec::new());
                for (goes_in_again, data) in meaning::fed_back(own[0], &item())? {
                    if goes_in_again && random.is(2) {
                        parts.push(value(data));
                        between.push(Vec::new());
                        continue;
                    }
                    let known = between.last_mut().unwrap();
                    match goes_in_again {
                        true => known.extend(meaning::results(own[0], &data)?),
                        false => known.push(data),
                    }
                }
                if parts.is_empty() {
                    return Ok(Flow::At(after, value(Data::List(between.concat()))));
                }
                let state = Data::List(between.into_iter().map(Data::List).collect());
                Flow::Parts(parts, Some(value(state)))
            }
        })
    }

    fn finish(&mut self, key: ItemKey, format: Format, flow: Flow, now: Duration) {
        let format = self.format(format);
        let queue = &mut self.queue;
        let one = |value: Value| move |writer: &mut RecordWriter| write(writer, format, &value);
        let answers = match flow {
            Flow::Value(value) => queue.finish(key, now, one(value)),
            Flow::At(reached, value) => queue.finish_at(key, reached, now, one(value)),
            Flow::Parts(parts, state) => {
                queue.finish_expanded(key, state.is_some(), now, |writer| {
                    for value in state.into_iter().chain(parts) {
                        one(value)(writer);
                    }
                })
            }
            Flow::Raised(touched) => queue.finish(key, now, |writer| {
                writer.push(format, true, &[u8::from(touched)], &[], []);
            }),
            Flow::Folding(value) => return self.fold(key, format, value, now),
        };
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

fn read(record: &Record) -> Value {
    Value::read(&record.body, &record.bulk)
}

fn write(writer: &mut RecordWriter, format: Format, value: &Value) {
    let (body, bulk) = value.write();
    writer.push(format, false, &body, &[], bulk);
}
