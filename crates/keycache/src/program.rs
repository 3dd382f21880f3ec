//! A trace made ready to run: who waits for which message is found once, not in each run.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, HashMap, VecDeque};

use crate::error::KeycacheError;
use exoskel_trace::{MessageDirection, Operation, Trace, TraceRecord};

/// Most messages of a program: they and the instructions about them take some 50 bytes each.
pub(crate) const MESSAGES_MAX: usize = 1 << 24;

/// SimGrid's number for `MPI_BYTE`.
const BYTES: u8 = 6;

/// A trace as its processes run it again: computation for as long as the trace's gaps, and calls that wait for the very messages that they waited
/// for. The n-th receive of a rank from another one with a tag gets the n-th message that was sent so, as MPI has it; collectives are the
/// messages of [`Trace::steps`]. One program serves any number of runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplayProgram {
    name: String,
    ranks: Vec<Vec<Instruction>>,
    messages: Vec<MessagePlan>,
    ends_after: u64,
}

/// What a process does next. Messages are numbers of [`ReplayProgram::messages_planned`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Instruction {
    /// Has the processor for so many nanoseconds.
    Compute(u64),
    /// Hands a message to the card.
    Send(u32),
    /// Says where a message may go.
    Post(u32),
    /// Waits until the message is here.
    AwaitArrival(u32),
    /// Waits until the message has left: at once for a small one.
    AwaitDeparture(u32),
}

/// A message between two ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MessagePlan {
    pub(crate) source: u16,
    pub(crate) destination: u16,
    pub(crate) bytes: u32,
}

/// Where messages can't overtake one another. Communicators have other numbers in each rank, so they don't count here; collectives have a
/// channel to themselves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct MessageChannel {
    source: u16,
    destination: u16,
    /// `None`: collectives.
    tag: Option<i32>,
}

impl ReplayProgram {
    /// Prepares a trace.
    ///
    /// # Errors
    /// [`KeycacheError::Replay`] names rank and record: a receive without a message or from anybody, a wait for a request that isn't open.
    /// [`KeycacheError::TooMany`] beyond 17 million messages.
    pub fn from_trace(trace: &Trace) -> Result<Self, KeycacheError> {
        let mut channels: HashMap<MessageChannel, VecDeque<u32>> = HashMap::new();
        let mut messages = Vec::new();
        for rank in 0..trace.ranks.len() {
            for record in &trace.ranks[rank] {
                for (channel, bytes) in sends(trace, rank, record) {
                    channels
                        .entry(channel)
                        .or_default()
                        .push_back(messages.len() as u32);
                    messages.push(MessagePlan {
                        source: channel.source,
                        destination: channel.destination,
                        bytes,
                    });
                }
                // Collectives make many messages of few bytes in a file: the next record may be one too many.
                if messages.len() > MESSAGES_MAX {
                    return Err(KeycacheError::TooMany {
                        trace: trace.name.clone(),
                        what: "messages",
                        got: messages.len(),
                        most: MESSAGES_MAX,
                    });
                }
            }
        }
        let mut next_sent = 0;
        let mut ranks = Vec::with_capacity(trace.ranks.len());
        for (rank, records) in trace.ranks.iter().enumerate() {
            let mut compiler = Compiler {
                trace,
                rank,
                channels: &mut channels,
                next_sent: &mut next_sent,
                open: BTreeMap::new(),
                instructions: Vec::with_capacity(2 * records.len()),
            };
            for (index, record) in records.iter().enumerate() {
                compiler
                    .record(record)
                    .map_err(|reason| KeycacheError::Replay {
                        trace: trace.name.clone(),
                        rank,
                        record: index,
                        reason,
                    })?;
            }
            ranks.push(compiler.instructions);
        }
        Ok(Self {
            name: trace.name.clone(),
            ranks,
            messages,
            ends_after: 0,
        })
    }

    /// The same program, as a job that ends when so many of its messages have been delivered, whatever
    /// [`Parameters::message_limit`](crate::Parameters::message_limit) says; 0: that says.
    #[must_use]
    pub fn ending_after(mut self, messages: u64) -> Self {
        self.ends_after = messages;
        self
    }

    /// After how many delivered messages it ends; 0 if that is no matter of its own.
    pub fn ends_after(&self) -> u64 {
        self.ends_after
    }

    /// The trace's.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// How many processes it has.
    pub fn ranks(&self) -> usize {
        self.ranks.len()
    }

    /// How many messages they send.
    pub fn messages(&self) -> usize {
        self.messages.len()
    }

    /// The calls of a rank as SimGrid's time-independent replay reads them, with computation in operations of a nanosecond each. Messages have tags of
    /// their own, and collectives are the messages they are made of, so that SimGrid replays the very messages that our runs do.
    pub fn replay_text(&self, rank: usize) -> String {
        let mut text = format!("{rank} init\n");
        let mut instructions = self.ranks.get(rank).into_iter().flatten().peekable();
        while let Some(instruction) = instructions.next() {
            let name = match instruction {
                Instruction::Compute(nanoseconds) => {
                    text += &format!("{rank} compute {nanoseconds}\n");
                    continue;
                }
                Instruction::Send(message) => {
                    let waits = Instruction::AwaitDeparture(*message);
                    let waits = instructions.next_if_eq(&&waits).is_some();
                    if waits { "send" } else { "isend" }
                }
                Instruction::Post(message) => {
                    let waits = Instruction::AwaitArrival(*message);
                    let waits = instructions.next_if_eq(&&waits).is_some();
                    if waits { "recv" } else { "irecv" }
                }
                Instruction::AwaitArrival(_) | Instruction::AwaitDeparture(_) => "wait",
            };
            let (Instruction::Send(message)
            | Instruction::Post(message)
            | Instruction::AwaitArrival(message)
            | Instruction::AwaitDeparture(message)) = instruction
            else {
                continue;
            };
            let plan = &self.messages[*message as usize];
            let (source, destination) = (plan.source, plan.destination);
            text += &match name {
                "wait" => format!("{rank} wait {source} {destination} {message}\n"),
                "send" | "isend" => {
                    format!(
                        "{rank} {name} {destination} {message} {} {BYTES}\n",
                        plan.bytes
                    )
                }
                _ => format!("{rank} {name} {source} {message} {} {BYTES}\n", plan.bytes),
            };
        }
        text + &format!("{rank} finalize\n")
    }

    pub(crate) fn instructions(&self, rank: usize) -> &[Instruction] {
        &self.ranks[rank]
    }

    pub(crate) fn messages_planned(&self) -> &[MessagePlan] {
        &self.messages
    }
}

/// The messages that a call sends, in order.
fn sends(trace: &Trace, rank: usize, record: &TraceRecord) -> Vec<(MessageChannel, u32)> {
    let source = rank as u16;
    if let (true, Some(destination)) = (record.operation.is_send(), record.peer) {
        let channel = MessageChannel {
            source,
            destination,
            tag: Some(record.tag),
        };
        return vec![(channel, record.bytes)];
    }
    let steps = trace.steps(rank, record).into_iter();
    steps
        .filter(|step| step.direction == MessageDirection::Send)
        .map(|step| {
            let channel = MessageChannel {
                source,
                destination: step.peer,
                tag: None,
            };
            (channel, step.bytes)
        })
        .collect()
}

/// Turns the records of one rank into instructions. Messages have numbers in the order in which they are sent, rank by rank.
struct Compiler<'a> {
    trace: &'a Trace,
    rank: usize,
    channels: &'a mut HashMap<MessageChannel, VecDeque<u32>>,
    next_sent: &'a mut u32,
    /// What a wait for a request waits for.
    open: BTreeMap<u32, Instruction>,
    instructions: Vec<Instruction>,
}

impl Compiler<'_> {
    fn record(&mut self, record: &TraceRecord) -> Result<(), String> {
        if record.gap_ns > 0 {
            self.instructions.push(Instruction::Compute(record.gap_ns));
        }
        match record.operation {
            Operation::Send => {
                let message = self.send();
                self.instructions.push(Instruction::AwaitDeparture(message));
            }
            Operation::SendStart => {
                let message = self.send();
                self.begin(record.request, Instruction::AwaitDeparture(message))?;
            }
            Operation::Receive => {
                let message = self.receive(record.peer, Some(record.tag))?;
                self.instructions.push(Instruction::AwaitArrival(message));
            }
            Operation::ReceiveStart => {
                let message = self.receive(record.peer, Some(record.tag))?;
                self.begin(record.request, Instruction::AwaitArrival(message))?;
            }
            Operation::Wait => {
                let awaited = self.open.remove(&record.request).ok_or_else(|| {
                    format!("waits for request {}, which isn't open", record.request)
                })?;
                self.instructions.push(awaited);
            }
            Operation::WaitAll => self.wait_all(record),
            _ => self.collective(record)?,
        }
        Ok(())
    }

    fn send(&mut self) -> u32 {
        let message = *self.next_sent;
        *self.next_sent += 1;
        self.instructions.push(Instruction::Send(message));
        message
    }

    fn receive(&mut self, peer: Option<u16>, tag: Option<i32>) -> Result<u32, String> {
        let source = peer.ok_or(
            "receives from anybody, and the trace doesn't say whose message came: record it again",
        )?;
        let channel = MessageChannel {
            source,
            destination: self.rank as u16,
            tag,
        };
        let message = self
            .channels
            .get_mut(&channel)
            .and_then(VecDeque::pop_front)
            .ok_or_else(|| match tag {
                Some(tag) => format!(
                    "receives from rank {source} with tag {tag}, but that rank sends no further such message"
                ),
                None => format!(
                    "rank {source} does not take part in this collective as this rank does"
                ),
            })?;
        self.instructions.push(Instruction::Post(message));
        Ok(message)
    }

    fn begin(&mut self, request: u32, awaited: Instruction) -> Result<(), String> {
        match self.open.entry(request) {
            Entry::Vacant(free) => {
                free.insert(awaited);
                Ok(())
            }
            Entry::Occupied(_) => Err(format!("begins request {request}, which is open already")),
        }
    }

    /// The trace says how many requests were waited for and the lowest one's number: they are the oldest from there on.
    fn wait_all(&mut self, record: &TraceRecord) {
        let count = usize::try_from(record.tag).unwrap_or(0);
        let numbers: Vec<u32> = self
            .open
            .range(record.request..)
            .take(count)
            .map(|(number, _)| *number)
            .collect();
        for number in numbers {
            self.instructions.extend(self.open.remove(&number));
        }
    }

    /// Sends don't hold up the receive that follows them, and have left before the step after that.
    fn collective(&mut self, record: &TraceRecord) -> Result<(), String> {
        let mut leaving = Vec::new();
        for step in self.trace.steps(self.rank, record) {
            match step.direction {
                MessageDirection::Send => leaving.push(Instruction::AwaitDeparture(self.send())),
                MessageDirection::Receive => {
                    let message = self.receive(Some(step.peer), None)?;
                    self.instructions.push(Instruction::AwaitArrival(message));
                    self.instructions.append(&mut leaving);
                }
            }
        }
        self.instructions.append(&mut leaving);
        Ok(())
    }
}
