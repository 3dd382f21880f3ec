//! The users: they hand items over, take outcomes and check them.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use exoskel_flow::Tickets;
use exoskel_meaning::meaning::{self, Data, INITIAL, Outcome, Raised, Value};
use exoskel_task::message::Call;
use exoskel_task::outcome::{Contents, Origin, Outcomes};
use exoskel_task::payload::{Batch, BatchBuilder, Format, Record};
use exoskel_task::router::{Function, StreamPlan};
use exoskel_task::slot_queue::ItemKey;

use super::content::{OVERDUE, RETRIABLE, Sizes, Token, What, exceptions_of, function};
use super::interpreter::FunctionPart;
use super::journals::Handed;
use super::program::{FoundOutcome, StreamProgram};
use super::scenario::{InjectedFault, Node, Scenario, StreamScenario, TakingOrder};
use exoskel_determinism::SplitMix64;

/// What became of an item, as its user knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Open,
    Cancelled,
    Finished,
}

/// An item passes so many segments and functions at most, with all that it is made into.
const PASSES_MAX: u32 = 1000;

/// Where fewer parts may be inside, there may be too many.
const PARTS_FEW: u32 = 1000;

/// More outcomes than any program makes of its items.
const OUTCOMES_MAX: u64 = 1 << 20;

/// The most bytes of a value itself.
const VALUE_BYTES_MAX: u64 = 64 << 10;

/// A stream and its user.
#[derive(Debug)]
pub(super) struct User {
    pub(super) scenario: StreamScenario,
    /// Of the manager's processes, the one that it is in.
    life: u32,
    pub(super) program: StreamProgram,
    sizes: Sizes,
    /// Handed over so far, and how many may be.
    pub(super) handed: u64,
    pub(super) admissible: u64,
    pub(super) input_ended: bool,
    /// Time passes at workers in which nothing runs, so that any item may have run for too long.
    time_is_lost: bool,
    /// Of outcomes, as far as there are any.
    fates: Vec<Fate>,
    /// How many outcomes there are, once that is known.
    total: Option<u64>,
    finished: u64,
    refused: u64,
    exhausted: u64,
    overdue: u64,
    too_large: u64,
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
    /// Items that former processes have had the outcomes of.
    done_before: u64,
    /// Outcomes for a run with a journal, until they are taken.
    handed_over: BTreeMap<u64, Handed>,
    pub(super) commit_planned: bool,
    pub(super) admit_planned: bool,
    pub(super) take_planned: bool,
}

/// All of them.
#[derive(Debug)]
pub(super) struct Streams {
    pub(super) users: Vec<User>,
    /// The users, and the lines of their programs, in the order in which the scheduler numbered these.
    pub(super) opened: Vec<(usize, u16)>,
    /// The most bytes of a result.
    result_bytes_max: u64,
    seed: u64,
}

impl Streams {
    /// Those of the manager's process of this number.
    pub(super) fn new(scenario: &Scenario, life: u32) -> Result<Self, String> {
        let users: Result<Vec<User>, String> = (0..scenario.streams.len())
            .map(|number| {
                let items = (0..scenario.streams[number].items).collect();
                User::new(scenario, number, life, items)
            })
            .collect();
        Ok(Self {
            users: users?,
            opened: Vec::new(),
            result_bytes_max: scenario.limits.message_bytes_max,
            seed: scenario.seed,
        })
    }

    /// All functions of all programs, and what they have exceptions retried on.
    pub(super) fn functions(&self) -> impl Iterator<Item = Function> {
        self.users.iter().enumerate().flat_map(|(number, user)| {
            let number = number as u64;
            user.functions(number).chain([exceptions_of(number)])
        })
    }

    pub(super) fn sizes(&self, stream: u64) -> Sizes {
        self.users[stream as usize].sizes
    }

    fn user(&self, key: &ItemKey) -> Result<(u64, &User), String> {
        let known = self.opened.get(key.stream as usize).copied();
        let (number, _) = known.ok_or_else(|| format!("got an item of stream {}", key.stream))?;
        Ok((number as u64, &self.users[number]))
    }

    /// A number of the item that no other one of its user has.
    fn place(&self, key: &ItemKey) -> u64 {
        let line = self
            .opened
            .get(key.stream as usize)
            .map_or(0, |(_, line)| *line);
        key.index ^ u64::from(line).rotate_right(16)
    }

    /// The lines of the streams that are open: the number of each, its stream, and which of that.
    pub(super) fn lines(&self) -> impl Iterator<Item = (u32, usize, u16)> {
        let lines = (0..).zip(&self.opened);
        lines.map(|(id, (number, line))| (id, *number, *line))
    }

    /// Whether slots run one item at a time in this segment of a line.
    pub(super) fn has_serial(&self, line: u32, segment: u16) -> bool {
        let known = self.opened.get(line as usize);
        known.is_some_and(|(number, line)| self.users[*number].program.has_serial(*line, segment))
    }

    /// How long one function takes for an item.
    pub(super) fn time(&self, key: &ItemKey) -> Result<Duration, String> {
        let (_, user) = self.user(key)?;
        Ok(user.scenario.service.time(self.seed, self.place(key)))
    }

    /// Whether this attempt at a segment raises what the program wants the item to be run again for.
    pub(super) fn is_retriable(&self, key: &ItemKey) -> bool {
        self.user(key).is_ok_and(|(_, user)| {
            let one_in = user.scenario.retriable_one_in;
            let place =
                self.place(key).wrapping_mul(0x9FB2_1C65_1E98_DF25) ^ key.frame.rotate_left(32);
            one_in > 0 && SplitMix64::new(self.seed ^ place).below(one_in) == 0
        })
    }

    /// Whether it never ends by itself, and then whether it ends when it is told to.
    pub(super) fn hangs(&self, key: &ItemKey, part: FunctionPart) -> Option<bool> {
        self.user(key)
            .ok()
            .and_then(|(_, user)| user.hangs(self.seed, self.place(key), part))
    }

    /// Whether its stream has not been closed.
    pub(super) fn is_wanted(&self, key: &ItemKey) -> bool {
        self.user(key).is_ok_and(|(_, user)| !user.is_closed)
    }

    /// Whose item it is if a slot dies of it, and after what time.
    pub(super) fn poison(&self, key: &ItemKey) -> Option<(u64, Duration)> {
        let (number, user) = self.user(key).ok()?;
        let is_deadly = user.scenario.poison.contains(&self.place(key));
        is_deadly.then_some((number, user.scenario.poison_time))
    }

    /// Whether slots answer with a pickle for it, come what may.
    pub(super) fn is_pickled(&self, key: &ItemKey) -> bool {
        self.user(key)
            .is_ok_and(|(_, user)| user.is_pickled(self.seed, self.place(key)))
    }

    /// A token of nothing, for what slots make of an item.
    pub(super) fn token(&self, key: &ItemKey, what: What, touched: bool) -> Result<Token, String> {
        let (stream, user) = self.user(key)?;
        Ok(Token {
            life: user.life,
            stream,
            touched,
            what,
        })
    }

    /// What a slot got for this segment, if that is what it should have got.
    pub(super) fn read(
        &self,
        key: &ItemKey,
        segment: u16,
        record: &Record,
    ) -> Result<Value, String> {
        let (stream, user) = self.user(key)?;
        let other = |got: &dyn std::fmt::Debug| {
            format!(
                "a slot got something else than item {} of line {} of stream {stream} for segment {segment}, namely {got:?}",
                key.index, key.stream
            )
        };
        let Some(token) = Token::read(record, user.sizes) else {
            return Err(other(record));
        };
        let is_own = (token.stream, token.life) == (stream, user.life);
        let Some(data) = token.data() else {
            return Err(other(&token));
        };
        let is_expected = !user.program.is_row()
            || user.program.value_at(key.index, segment) == Some(Ok(data.clone()));
        if !is_own || !is_expected {
            return Err(other(&token));
        }
        Ok(Value {
            data,
            touched: token.touched,
        })
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
            match user.fate(index) {
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
                user.ended(first, count)?;
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
                    user.ended(index, 1)?;
                }
            }
            Contents::NothingToReduce => user.program.take_in(first, FoundOutcome::Nothing)?,
            Contents::TooManyParts { maximum, .. } if maximum < PARTS_FEW => {
                user.ended(first, count)?;
            }
            Contents::TooManyParts { maximum, .. } => {
                return Err(format!(
                    "item {first} of stream {stream} is made into more than {maximum} parts"
                ));
            }
            Contents::TooManyBytes { maximum, .. } => {
                return Err(format!(
                    "item {first} of stream {stream} is made into parts beyond {maximum} bytes"
                ));
            }
            // One item, with the state that it needs.
            Contents::TooLarge { bytes, maximum }
                if user.program.carries() && count == 1 && bytes > maximum =>
            {
                user.too_large += 1;
                user.ended(first, count)?;
            }
            Contents::TooLarge { bytes, maximum } => {
                return Err(format!(
                    "item {first} of stream {stream} has {bytes} bytes of at most {maximum}"
                ));
            }
            Contents::Refused(origin) => {
                let mut items = first..first + u64::from(count);
                if origin.is_trusted() || !items.all(|index| user.may_be_pickled(seed, index)) {
                    return Err(format!(
                        "{count} items of stream {stream} from {first} on were refused: {origin:?}"
                    ));
                }
                user.refused += u64::from(count);
                user.ended(first, count)?;
            }
            Contents::Records(mut reader, origin) => {
                for index in first..first + u64::from(count) {
                    let record = reader
                        .next_record()
                        .map_err(|error| error.to_string())?
                        .ok_or("fewer outcomes than said")?;
                    if user.is_overdue(seed, index, &record) {
                        user.overdue += 1;
                        user.ended(index, 1)?;
                        continue;
                    }
                    let (found, is_users) = user.found(stream, index, &record, limit, &origin)?;
                    let is_own = origin.worker.is_empty();
                    if is_own != is_users {
                        return Err(format!(
                            "the outcome of item {index} of stream {stream} is of {origin:?}"
                        ));
                    }
                    user.too_large += u64::from(found == FoundOutcome::Ended);
                    user.unsent += u64::from(matches!(found, FoundOutcome::Unsent(_)));
                    let is_trusted = origin.is_trusted();
                    let format = record.format;
                    if user.scenario.has_journal {
                        let handed = match &found {
                            FoundOutcome::Ended => Handed::Astray,
                            FoundOutcome::Value(data) => {
                                Handed::Result(data.clone(), record, !is_trusted)
                            }
                            _ => Handed::Exception,
                        };
                        user.handed_over.insert(index, handed);
                    }
                    let taken = user.program.take_in(index, found);
                    taken.map_err(|what| format!("stream {stream}: {what}"))?;
                    // Slots answer as they must, or are refused: so what one wrote says what has touched the item.
                    if (format == Format::Pickle) != is_trusted {
                        return Err(format!(
                            "the outcome of item {index} of stream {stream} is {format:?} of {origin:?}"
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
    /// The user of a stream of these items, in a process of the manager.
    pub(super) fn new(
        scenario: &Scenario,
        number: usize,
        life: u32,
        items: Vec<u64>,
    ) -> Result<Self, String> {
        let stream = &scenario.streams[number];
        let time_is_lost = scenario.faults.iter().any(|(_, fault)| {
            let (InjectedFault::Jump { node, .. } | InjectedFault::Hold(node)) = fault else {
                return false;
            };
            *node != Node::Manager
        });
        let count = items.len() as u64;
        let items = items.into_iter().map(|item| match stream.has_journal {
            true => input_of_run(scenario.seed, stream, number, item),
            false => input_of_life(scenario.seed, stream, (number as u64, life), item),
        });
        let program = StreamProgram::new(&stream.skeleton, items.collect())?;
        let keeps_number = program.keeps_number();
        Ok(Self {
            scenario: StreamScenario {
                items: count,
                ..stream.clone()
            },
            life,
            time_is_lost,
            program,
            sizes: sizes_of(scenario.seed, number, stream),
            handed: 0,
            admissible: u64::from(!stream.unbounded),
            input_ended: false,
            fates: match keeps_number {
                true => vec![Fate::Open; count as usize],
                false => Vec::new(),
            },
            total: keeps_number.then_some(count),
            finished: 0,
            refused: 0,
            exhausted: 0,
            overdue: 0,
            too_large: 0,
            unsent: 0,
            cancelled: 0,
            taken: 0,
            ordered: BTreeMap::new(),
            completed: VecDeque::new(),
            next: 0,
            is_open: false,
            is_closed: false,
            is_given_up: false,
            done_before: stream.items - count,
            handed_over: BTreeMap::new(),
            commit_planned: false,
            admit_planned: false,
            take_planned: false,
        })
    }

    /// What the router is told.
    pub(super) fn plan(&self, number: u64) -> StreamPlan {
        StreamPlan {
            skeleton: self.program.skeleton.clone(),
            functions: self.functions(number).collect(),
            call: Call::Item,
            tickets: if self.scenario.unbounded {
                Tickets::Unbounded
            } else {
                Tickets::Bounded
            },
            timeout: (self.scenario.hangs_one_in > 0).then_some(self.scenario.timeout),
            retries_on: (self.scenario.retriable_one_in > 0).then(|| exceptions_of(number)),
            tells_ends: self.scenario.has_journal && !self.program.keeps_number(),
        }
    }

    fn functions(&self, stream: u64) -> impl Iterator<Item = Function> {
        let numbers = self.program.functions.iter();
        let (life, sizes) = (self.life, self.sizes);
        numbers.map(move |number| match *number {
            // It travels as an item does.
            INITIAL => {
                let token = Token {
                    life,
                    stream,
                    touched: false,
                    what: What::Initial,
                };
                let pickle = token.contents(sizes).0.into();
                let digest = function(stream, INITIAL).digest;
                Function { digest, pickle }
            }
            number => function(stream, number),
        })
    }

    /// Functions that an item passes, at most.
    pub(super) fn functions_passed(&self) -> u32 {
        match self.program.is_row() {
            true => self.program.functions.len() as u32,
            false => PASSES_MAX,
        }
    }

    /// Segments that an item passes, at most.
    pub(super) fn segments_passed(&self) -> u32 {
        match self.program.is_row() {
            true => self.program.segments().len() as u32,
            false => PASSES_MAX,
        }
    }

    /// The most bytes that a slot is sent for one item, or sends for it.
    pub(super) fn message_bytes_max(&self) -> u64 {
        let StreamScenario {
            input_bytes_max,
            result_bytes_max,
            ..
        } = self.scenario;
        match self.program.is_row() {
            true => input_bytes_max + result_bytes_max,
            // A list of as many as are combined at a time.
            false => input_bytes_max + 16 * (result_bytes_max + VALUE_BYTES_MAX),
        }
    }

    fn fate(&mut self, index: u64) -> Option<&mut Fate> {
        if !self.program.keeps_number() && index < OUTCOMES_MAX {
            let count = self.fates.len().max(index as usize + 1);
            self.fates.resize(count, Fate::Open);
        }
        self.fates.get_mut(index as usize)
    }

    /// These have ended on their way.
    fn ended(&mut self, first: u64, count: u32) -> Result<(), String> {
        let mut items = first..first + u64::from(count);
        items.try_for_each(|index| {
            if self.scenario.has_journal {
                self.handed_over.insert(index, Handed::Astray);
            }
            self.program.take_in(index, FoundOutcome::Ended)
        })
    }

    /// What a run with a journal gets of these.
    pub(super) fn hand_over(&mut self, first: u64, count: u32) -> Vec<(u64, Handed)> {
        let items = first..first + u64::from(count);
        items
            .filter_map(|index| Some((index, self.handed_over.remove(&index)?)))
            .collect()
    }

    /// It is known how many outcomes there are.
    pub(super) fn told_total(&mut self, count: u64) -> Result<(), String> {
        match self.total.replace(count) {
            None => Ok(()),
            Some(before) => Err(format!("got a total of {count}, and {before} before")),
        }
    }

    /// The user closes the stream: what came must be what the program makes of its items. False: nobody can say.
    pub(super) fn check_all(&self) -> Result<bool, String> {
        self.program.check(self.total)
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
        let is_row = self.program.is_row();
        let hangs = |part| !is_row || self.hangs(seed, index, part).is_some();
        let has_limit = self.scenario.hangs_one_in > 0;
        let may_be = has_limit && (self.time_is_lost || parts.into_iter().any(hangs));
        record.exception && record.body == OVERDUE[..] && may_be
    }

    /// What an item raised whenever it ran.
    fn check_exhausted(&self, stream: u64, index: u64, record: &Record) -> Result<(), String> {
        let token = self.read(stream, index, record)?;
        if matches!(token.what, What::Raised(Raised { function: RETRIABLE, sum }) if self.may_be_at(index, sum))
        {
            return Ok(());
        }
        Err(format!(
            "item {index} of stream {stream} ran often enough, but with something else as its outcome: {token:?}"
        ))
    }

    /// Whether a value of this sum may be an item's on its way.
    fn may_be_at(&self, index: u64, sum: u64) -> bool {
        let mut values = self.program.values(index);
        !self.program.is_row() || values.any(|value| value.is_ok_and(|value| value.sum() == sum))
    }

    /// What the record of an outcome is.
    fn read(&self, stream: u64, index: u64, record: &Record) -> Result<Token, String> {
        let token = Token::read(record, self.sizes);
        let token = token.filter(|token| (token.stream, token.life) == (stream, self.life));
        token.ok_or_else(|| {
            format!("the outcome of item {index} of stream {stream} is something else: {record:?}")
        })
    }

    /// What the record of an outcome says, and whether it is the user's own.
    fn found(
        &self,
        stream: u64,
        index: u64,
        record: &Record,
        limit: u64,
        origin: &Origin,
    ) -> Result<(FoundOutcome, bool), String> {
        let token = self.read(stream, index, record)?;
        if token.touched && origin.is_trusted() {
            return Err(format!(
                "the outcome of item {index} of stream {stream} was touched, but is of {origin:?}"
            ));
        }
        // What a scan begins with is its first result.
        let is_users = matches!(token.what, What::Unsent(_) | What::Initial);
        let found = match token.what {
            What::Item(data) | What::Made(data) => FoundOutcome::Value(data),
            What::Initial => FoundOutcome::Value(meaning::initial()),
            What::Raised(raised) => FoundOutcome::Raised(raised),
            What::Unsent(item) => FoundOutcome::Unsent(item),
            // What the envelope may need is off the limit.
            What::TooLarge(bytes) if bytes + 128 * 1024 > limit => FoundOutcome::Ended,
            // A state has half of a message.
            What::TooLarge(bytes) if self.program.carries() && bytes * 2 + 256 * 1024 > limit => {
                FoundOutcome::Ended
            }
            What::TooLarge(bytes) => {
                return Err(format!(
                    "item {index} of stream {stream} is too large with {bytes} bytes"
                ));
            }
        };
        Ok((found, is_users))
    }

    /// Whether a slot may have answered with a pickle for what became of this item.
    fn may_be_pickled(&self, seed: u64, index: u64) -> bool {
        match self.program.is_row() {
            true => self.is_pickled(seed, index),
            false => self.scenario.pickled_one_in > 0,
        }
    }

    /// Whether slots answer with a pickle for this item, come what may.
    fn is_pickled(&self, seed: u64, index: u64) -> bool {
        let one_in = self.scenario.pickled_one_in;
        let mut random = SplitMix64::new(seed ^ index.wrapping_mul(0x8CB9_2BA7_2F3D_8DD7));
        one_in > 0 && random.below(one_in) == 0
    }

    /// The next items, at most so many.
    pub(super) fn batch(&mut self, number: u64, count: u64) -> Batch {
        let mut builder = BatchBuilder::default();
        for index in self.handed..self.handed + count {
            let what = match self.program.item(index) {
                Some(Ok(data)) => What::Item(data.clone()),
                _ => What::Unsent(index),
            };
            let is_unsent = matches!(what, What::Unsent(_));
            let token = Token {
                life: self.life,
                stream: number,
                touched: false,
                what,
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
        self.total == Some(self.taken + self.cancelled)
            || early.is_some_and(|early| self.finished >= early)
    }

    /// Those that there are, in the sink of a run too.
    pub(super) fn outcomes(&self) -> u64 {
        self.finished + self.done_before
    }

    pub(super) fn overdue(&self) -> u64 {
        self.overdue
    }

    pub(super) fn too_large(&self) -> u64 {
        self.too_large
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
        match self.program.keeps_number() {
            true => open.count() as u64,
            false => 0,
        }
    }
}

impl StreamScenario {
    /// Whether this item can't be sent, so that its user hands over an exception in its place.
    fn is_unsent(&self, seed: u64, index: u64) -> bool {
        let one_in = self.unsent_one_in;
        let mut random = SplitMix64::new(seed ^ index.wrapping_mul(0xC2B2_AE3D_27D4_EB4F));
        one_in > 0 && random.below(one_in) == 0
    }
}

/// The item in this place of a stream of one of the manager's processes: another one than in all others.
fn input((stream, life): (u64, u32), index: u64) -> Data {
    Data::Number((index * 37 + stream * 101 + u64::from(life) * 5003) % 10_007)
}

fn input_of_life(seed: u64, stream: &StreamScenario, place: (u64, u32), index: u64) -> Outcome {
    match stream.is_unsent(seed, index) {
        true => Err(Vec::new()),
        false => Ok(input(place, index)),
    }
}

/// The item of a run with a journal: the same one in all processes.
pub(super) fn input_of_run(
    seed: u64,
    stream: &StreamScenario,
    number: usize,
    item: u64,
) -> Outcome {
    input_of_life(seed, stream, (number as u64, 0), item)
}

/// How large the tokens of a stream are.
pub(super) fn sizes_of(seed: u64, number: usize, stream: &StreamScenario) -> Sizes {
    Sizes {
        seed: seed ^ (number as u64) << 50,
        input_bytes_max: stream.input_bytes_max,
        result_bytes_max: stream.result_bytes_max,
        has_bulk: stream.has_bulk,
    }
}
