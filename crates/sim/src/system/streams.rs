//! The users: they hand items over, take outcomes and check them.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use exoskel_flow::{Program, Tickets};
use exoskel_task::message::Call;
use exoskel_task::outcome::{Contents, Origin, Outcomes};
use exoskel_task::payload::{Batch, BatchBuilder, Format, Record};
use exoskel_task::router::{Function, StreamPlan};
use exoskel_task::slot_queue::ItemKey;

use super::content::{OVERDUE, Sizes, Token, What, exceptions_of, functions_of};
use super::interpreter::FunctionPart;
use super::scenario::{InjectedFault, Node, Scenario, StreamScenario, TakingOrder};
use exoskel_determinism::SplitMix64;

/// What became of an item, as its user knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Open,
    Cancelled,
    Finished,
}

/// A stream and its user.
#[derive(Debug)]
pub(super) struct User {
    pub(super) scenario: StreamScenario,
    /// Of the manager's processes, the one that it is in.
    life: u32,
    program: Program,
    sizes: Sizes,
    /// Handed over so far, and how many may be.
    pub(super) handed: u64,
    pub(super) admissible: u64,
    pub(super) input_ended: bool,
    /// Time passes at workers in which nothing runs, so that any item may have run for too long.
    time_is_lost: bool,
    fates: Vec<Fate>,
    finished: u64,
    refused: u64,
    exhausted: u64,
    overdue: u64,
    unsent: u64,
    cancelled: u64,
    pub(super) taken: u64,
    /// Outcomes that wait to be taken, first item and count.
    ordered: BTreeMap<u64, u32>,
    completed: VecDeque<(u64, u32)>,
    next: u64,
    pub(super) is_open: bool,
    pub(super) is_closed: bool,
    /// It was closed because nobody is left to work.
    pub(super) is_given_up: bool,
    pub(super) admit_planned: bool,
    pub(super) take_planned: bool,
}

/// All of them.
#[derive(Debug)]
pub(super) struct Streams {
    pub(super) users: Vec<User>,
    /// The users in the order in which the scheduler numbered their streams.
    pub(super) opened: Vec<usize>,
    /// The most bytes of a result.
    result_bytes_max: u64,
    seed: u64,
    life: u32,
}

impl Streams {
    /// Those of the manager's process of this number.
    pub(super) fn new(scenario: &Scenario, life: u32) -> Result<Self, String> {
        let time_is_lost = scenario.faults.iter().any(|(_, fault)| {
            let (InjectedFault::Jump { node, .. } | InjectedFault::Hold(node)) = fault else {
                return false;
            };
            *node != Node::Manager
        });
        let user = |(number, stream): (usize, &StreamScenario)| {
            let program = Program::compile(&stream.skeleton).map_err(|error| error.to_string())?;
            Ok(User {
                scenario: stream.clone(),
                life,
                time_is_lost,
                program,
                sizes: Sizes {
                    seed: scenario.seed ^ (number as u64) << 50,
                    input_bytes_max: stream.input_bytes_max,
                    result_bytes_max: stream.result_bytes_max,
                    has_bulk: stream.has_bulk,
                },
                handed: 0,
                admissible: u64::from(!stream.unbounded),
                input_ended: false,
                fates: vec![Fate::Open; stream.items as usize],
                finished: 0,
                refused: 0,
                exhausted: 0,
                overdue: 0,
                unsent: 0,
                cancelled: 0,
                taken: 0,
                ordered: BTreeMap::new(),
                completed: VecDeque::new(),
                next: 0,
                is_open: false,
                is_closed: false,
                is_given_up: false,
                admit_planned: false,
                take_planned: false,
            })
        };
        let users: Result<Vec<User>, String> =
            scenario.streams.iter().enumerate().map(user).collect();
        Ok(Self {
            users: users?,
            opened: Vec::new(),
            result_bytes_max: scenario.limits.message_bytes_max,
            seed: scenario.seed,
            life,
        })
    }

    /// All functions of all programs, and what they have exceptions retried on.
    pub(super) fn functions(&self) -> impl Iterator<Item = Function> {
        self.users.iter().enumerate().flat_map(|(number, user)| {
            let number = number as u64;
            functions_of(number, user.function_count()).chain([exceptions_of(number)])
        })
    }

    pub(super) fn sizes(&self, stream: u64) -> Sizes {
        self.users[stream as usize].sizes
    }

    fn user(&self, key: &ItemKey) -> Result<(u64, &User), String> {
        let number = self.opened.get(key.stream as usize).copied();
        let number = number.ok_or_else(|| format!("got an item of stream {}", key.stream))?;
        Ok((number as u64, &self.users[number]))
    }

    /// How long one function takes for an item.
    pub(super) fn time(&self, key: &ItemKey) -> Result<Duration, String> {
        let (_, user) = self.user(key)?;
        Ok(user.scenario.service.time(self.seed, key.index))
    }

    /// Whether this attempt at a segment raises what the program wants the item to be run again for.
    pub(super) fn is_retriable(&self, key: &ItemKey) -> bool {
        self.user(key).is_ok_and(|(_, user)| {
            let one_in = user.scenario.retriable_one_in;
            let place = key.index.wrapping_mul(0x9FB2_1C65_1E98_DF25) ^ key.frame.rotate_left(32);
            one_in > 0 && SplitMix64::new(self.seed ^ place).below(one_in) == 0
        })
    }

    /// Whether it never ends by itself, and then whether it ends when it is told to.
    pub(super) fn hangs(&self, key: &ItemKey, part: FunctionPart) -> Option<bool> {
        self.user(key)
            .ok()
            .and_then(|(_, user)| user.hangs(self.seed, key.index, part))
    }

    /// Whether its stream has not been closed.
    pub(super) fn is_wanted(&self, key: &ItemKey) -> bool {
        self.user(key).is_ok_and(|(_, user)| !user.is_closed)
    }

    /// Whether a slot dies of it.
    pub(super) fn is_poison(&self, key: &ItemKey) -> bool {
        self.user(key)
            .is_ok_and(|(_, user)| user.scenario.poison.contains(&key.index))
    }

    /// Whether slots answer with a pickle for it, come what may.
    pub(super) fn is_pickled(&self, key: &ItemKey) -> bool {
        self.user(key)
            .is_ok_and(|(_, user)| user.is_pickled(self.seed, key.index))
    }

    /// What the item is after the segments from this one to the last that it passes, or what one of them raises.
    pub(super) fn result(&self, key: &ItemKey, from: u16) -> Result<Token, String> {
        let (stream, user) = self.user(key)?;
        let raises = user.raises(self.seed, key.index);
        let raises = raises.filter(|segment| (from..=key.to).contains(segment));
        Ok(Token {
            life: self.life,
            stream,
            index: key.index,
            passed: raises.unwrap_or(key.to) + 1,
            what: if raises.is_some() {
                What::Raised
            } else {
                What::Value
            },
        })
    }

    /// Whether a slot got what it should.
    pub(super) fn check_input(
        &self,
        key: &ItemKey,
        segment: u16,
        record: &Record,
    ) -> Result<(), String> {
        let (stream, user) = self.user(key)?;
        let token = Token {
            life: self.life,
            stream,
            index: key.index,
            passed: segment,
            what: What::Value,
        };
        if token.is_in(record, user.sizes) {
            return Ok(());
        }
        Err(format!(
            "a slot got something else than item {} of stream {stream} for segment {segment}, namely {:?}",
            key.index,
            Token::index_of(record)
        ))
    }

    /// Takes outcomes in and checks them.
    ///
    /// # Errors
    /// An outcome that is not the item's, a second one, one that nobody waits for.
    pub(super) fn deliver(
        &mut self,
        stream: u64,
        outcomes: Outcomes,
        failures_allowed: u32,
        attempts_max: u32,
    ) -> Result<(), String> {
        let (seed, limit) = (self.seed, self.result_bytes_max);
        let user = &mut self.users[stream as usize];
        if user.is_closed {
            return Err(format!("stream {stream} was closed and got an outcome"));
        }
        let Outcomes {
            first,
            count,
            contents,
        } = outcomes;
        for index in first..first + u64::from(count) {
            match user.fates.get_mut(index as usize) {
                Some(fate @ Fate::Open) => *fate = Fate::Finished,
                other => {
                    return Err(format!(
                        "an outcome of item {index} of stream {stream}, which is {other:?}"
                    ));
                }
            }
        }
        match contents {
            Contents::WorkersLost { count: charges, .. } => {
                if charges > failures_allowed {
                    return Err(format!(
                        "item {first} of stream {stream} failed for {charges} lost slots; {failures_allowed} were lost"
                    ));
                }
            }
            Contents::Exhausted {
                mut records,
                attempts,
                ..
            } => {
                if attempts != attempts_max {
                    return Err(format!(
                        "item {first} of stream {stream} ran {attempts} times, expected {attempts_max}"
                    ));
                }
                for index in first..first + u64::from(count) {
                    let record = records.next_record().map_err(|error| error.to_string())?;
                    user.check_exhausted(stream, index, &record.unwrap_or_default())?;
                    user.exhausted += 1;
                }
            }
            Contents::NothingToReduce | Contents::TooManyParts { .. } => {
                return Err(format!("stream {stream} has no patterns"));
            }
            Contents::TooLarge { bytes, maximum } => {
                return Err(format!(
                    "item {first} of stream {stream} has {bytes} bytes of at most {maximum}"
                ));
            }
            Contents::Refused(origin) => {
                let mut items = first..first + u64::from(count);
                if origin.is_trusted() || !items.all(|index| user.is_pickled(seed, index)) {
                    return Err(format!(
                        "{count} items of stream {stream} from {first} on were refused: {origin:?}"
                    ));
                }
                user.refused += u64::from(count);
            }
            Contents::Records(mut reader, origin) => {
                for index in first..first + u64::from(count) {
                    let record = reader
                        .next_record()
                        .map_err(|error| error.to_string())?
                        .ok_or("fewer outcomes than said")?;
                    if user.is_overdue(seed, index, &record) {
                        user.overdue += 1;
                        continue;
                    }
                    user.check_outcome(stream, index, &record, seed, limit)?;
                    let is_own = origin.worker.is_empty();
                    if is_own != user.is_unsent(seed, index) {
                        return Err(format!(
                            "the outcome of item {index} of stream {stream} is of {origin:?}"
                        ));
                    }
                    user.unsent += u64::from(is_own);
                    // Slots answer as they must, or are refused: so what one wrote says what has touched the item.
                    if (record.format == Format::Pickle) != origin.is_trusted() {
                        return Err(format!(
                            "the outcome of item {index} of stream {stream} is {:?} of {origin:?}",
                            record.format
                        ));
                    }
                }
                if !reader.is_empty() {
                    return Err("more outcomes than said".to_owned());
                }
            }
        }
        user.finished += u64::from(count);
        match user.scenario.order {
            TakingOrder::Admission => {
                user.ordered.insert(first, count);
            }
            TakingOrder::Completion => user.completed.push_back((first, count)),
        }
        Ok(())
    }
}

impl User {
    /// What the router is told.
    pub(super) fn plan(&self, number: u64) -> StreamPlan {
        StreamPlan {
            skeleton: self.scenario.skeleton.clone(),
            functions: functions_of(number, self.function_count()).collect(),
            call: Call::Item,
            tickets: if self.scenario.unbounded {
                Tickets::Unbounded
            } else {
                Tickets::Bounded
            },
            timeout: (self.scenario.hangs_one_in > 0).then_some(self.scenario.timeout),
            retries_on: (self.scenario.retriable_one_in > 0).then(|| exceptions_of(number)),
            tells_ends: false,
        }
    }

    fn function_count(&self) -> u32 {
        let functions = self.program.segments().iter();
        let functions = functions.flat_map(|segment| &segment.functions);
        functions.map(|function| function.0 + 1).max().unwrap_or(0)
    }

    /// Functions that an item passes.
    pub(super) fn functions_passed(&self) -> u32 {
        let segments = self.program.segments().iter();
        segments.map(|segment| segment.functions.len() as u32).sum()
    }

    /// Segments that an item passes.
    pub(super) fn segments_passed(&self) -> u32 {
        self.program.segments().len() as u32
    }

    pub(super) fn has_serial(&self, segment: u16) -> bool {
        self.program.segments()[usize::from(segment)].serial
    }

    /// The segment in which this item raises, if it does.
    fn raises(&self, seed: u64, index: u64) -> Option<u16> {
        let one_in = self.scenario.raises_one_in;
        let mut random = SplitMix64::new(seed ^ index.wrapping_mul(0xA24B_AED4_963E_E407));
        let segments = self.program.segments().len() as u64;
        (one_in > 0 && random.below(one_in) == 0).then(|| random.below(segments) as u16)
    }

    /// Whether this item never ends by itself where it passes this part of a segment, and then whether it ends when it is told to.
    fn hangs(&self, seed: u64, index: u64, part: FunctionPart) -> Option<bool> {
        let one_in = self.scenario.hangs_one_in;
        let mut random = SplitMix64::new(seed ^ index.wrapping_mul(0xD6E8_FEB8_6659_FD93));
        if one_in == 0 || random.below(one_in) > 0 {
            return None;
        }
        let is_late = random.below(2) == 0;
        let is_here = match part {
            FunctionPart::All => true,
            FunctionPart::Serial => !is_late,
            FunctionPart::Rest => is_late,
        };
        is_here.then(|| random.below(2) == 0)
    }

    /// Whether this is the outcome of an item that hangs.
    fn is_overdue(&self, seed: u64, index: u64, record: &Record) -> bool {
        let parts = [FunctionPart::Serial, FunctionPart::Rest];
        let hangs = |part| self.hangs(seed, index, part).is_some();
        let has_limit = self.scenario.hangs_one_in > 0;
        let may_be = self.time_is_lost && has_limit || parts.into_iter().any(hangs);
        record.exception && record.body == OVERDUE[..] && may_be
    }

    /// What an item raised whenever it ran.
    fn check_exhausted(&self, stream: u64, index: u64, record: &Record) -> Result<(), String> {
        let segments = self.program.segments().len() as u16;
        let token = |passed| Token {
            life: self.life,
            stream,
            index,
            passed,
            what: What::Raised,
        };
        if (1..=segments).any(|passed| token(passed).is_in(record, self.sizes)) {
            return Ok(());
        }
        Err(format!(
            "item {index} of stream {stream} ran often enough, but with something else as its outcome"
        ))
    }

    /// Whether slots answer with a pickle for this item, come what may.
    fn is_pickled(&self, seed: u64, index: u64) -> bool {
        let one_in = self.scenario.pickled_one_in;
        let mut random = SplitMix64::new(seed ^ index.wrapping_mul(0x8CB9_2BA7_2F3D_8DD7));
        one_in > 0 && random.below(one_in) == 0
    }

    /// Whether this item can't be sent, so that its user hands over an exception in its place.
    fn is_unsent(&self, seed: u64, index: u64) -> bool {
        let one_in = self.scenario.unsent_one_in;
        let mut random = SplitMix64::new(seed ^ index.wrapping_mul(0xC2B2_AE3D_27D4_EB4F));
        one_in > 0 && random.below(one_in) == 0
    }

    /// The next items, at most so many.
    pub(super) fn batch(&mut self, number: u64, count: u64, seed: u64) -> Batch {
        let mut builder = BatchBuilder::default();
        for index in self.handed..self.handed + count {
            let is_unsent = self.is_unsent(seed, index);
            let token = Token {
                life: self.life,
                stream: number,
                index,
                passed: 0,
                what: if is_unsent { What::Raised } else { What::Value },
            };
            let (body, bulk) = token.contents(self.sizes);
            if is_unsent {
                builder.push_exception(Format::Pickle, &body);
            } else {
                builder.push(Format::Pickle, &body, &[], bulk);
            }
        }
        self.handed += count;
        builder.take(Origin::user())
    }

    fn check_outcome(
        &self,
        stream: u64,
        index: u64,
        record: &Record,
        seed: u64,
        limit: u64,
    ) -> Result<(), String> {
        let is_unsent = self.is_unsent(seed, index);
        let raises = self.raises(seed, index);
        let segments = self.program.segments().len() as u16;
        let passed = match raises {
            _ if is_unsent => 0,
            Some(segment) => segment + 1,
            None => segments,
        };
        let token = |passed, what| Token {
            life: self.life,
            stream,
            index,
            passed,
            what,
        };
        let what = if raises.is_some() || is_unsent {
            What::Raised
        } else {
            What::Value
        };
        let is_too_large = |passed| {
            let (pickle, bulk) = token(passed, What::Value).contents(self.sizes);
            let bytes = pickle.len() + bulk.iter().map(|part| part.len()).sum::<usize>();
            // What the envelope may need is off the limit.
            bytes as u64 + 128 * 1024 > limit
        };
        if token(passed, what).is_in(record, self.sizes)
            || (1..=passed).any(|passed| {
                token(passed, What::TooLarge).is_in(record, self.sizes) && is_too_large(passed)
            })
        {
            return Ok(());
        }
        Err(format!(
            "the outcome of item {index} of stream {stream} is something else, of item {:?}",
            Token::index_of(record)
        ))
    }

    /// The next outcomes that the user takes: first item and count.
    pub(super) fn take(&mut self) -> Option<(u64, u32)> {
        let (first, count) = match self.scenario.order {
            TakingOrder::Completion => self.completed.pop_front()?,
            TakingOrder::Admission => {
                let count = self.ordered.remove(&self.next)?;
                (self.next, count)
            }
        };
        self.next = first + u64::from(count);
        self.taken += u64::from(count);
        Some((first, count))
    }

    /// Whether [`take`](Self::take) would find something.
    pub(super) fn has_outcomes(&self) -> bool {
        !self.completed.is_empty() || self.ordered.contains_key(&self.next)
    }

    /// The item was taken back.
    pub(super) fn cancelled(&mut self, index: u64) -> Result<(), String> {
        match self.fates.get_mut(index as usize) {
            Some(fate @ Fate::Open) => *fate = Fate::Cancelled,
            other => return Err(format!("item {index} was cancelled, but is {other:?}")),
        }
        self.cancelled += 1;
        Ok(())
    }

    /// How many items the user may hand over now.
    pub(super) fn may_admit(&self) -> u64 {
        let most = if self.scenario.unbounded {
            self.scenario.items
        } else {
            self.admissible.min(self.scenario.items)
        };
        most.saturating_sub(self.handed)
    }

    /// Whether the user is through with the stream.
    pub(super) fn is_done(&self) -> bool {
        let early = self.scenario.closes_after;
        self.taken + self.cancelled == self.scenario.items
            || early.is_some_and(|early| self.finished >= early)
    }

    pub(super) fn outcomes(&self) -> u64 {
        self.finished
    }

    pub(super) fn overdue(&self) -> u64 {
        self.overdue
    }

    pub(super) fn exhausted(&self) -> u64 {
        self.exhausted
    }

    pub(super) fn refused(&self) -> u64 {
        self.refused
    }

    pub(super) fn unsent(&self) -> u64 {
        self.unsent
    }

    pub(super) fn taken_back(&self) -> u64 {
        self.cancelled
    }

    /// Items that nothing has become of.
    pub(super) fn left(&self) -> u64 {
        let open = self.fates.iter().filter(|fate| **fate == Fate::Open);
        open.count() as u64
    }
}
