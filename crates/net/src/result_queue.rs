//! Where the outcomes of one stream wait for the user: the only place that the driver and user threads share.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use exoskel_flow::RangeSet;
pub use exoskel_task::outcome::{Contents, Origin, Outcomes};
pub use exoskel_task::router::OpenError;

use crate::manager::Attempt;
use crate::payload::{RecordReader, RecordWriter};

/// Attempts that one line tells of, at most.
const RECENT_MAX: usize = 5;

/// In which order outcomes are handed out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OutcomeOrder {
    /// The items' own.
    Admission,
    /// As they come.
    Completion,
}

/// What a look into the queue found.
#[derive(Debug)]
pub enum Taken {
    /// Outcomes.
    Outcomes(Outcomes),
    /// Nothing yet.
    Nothing,
    /// Nothing, and nothing will come: the reason.
    Ended(StreamEnd),
}

/// Why a stream has ended before all of its items had their outcomes.
#[derive(Debug, Clone, thiserror::Error)]
pub enum StreamEnd {
    /// Its manager was closed.
    #[error("the manager was closed")]
    Closed,
    /// It could not be opened.
    #[error(transparent)]
    NotOpened(#[from] OpenError),
    /// The input of an item is gone.
    #[error("lost track of an item's input; this is a defect of exoskel")]
    LostTrack,
    /// Nobody is left to work and nobody will come.
    #[error("no worker is left{}: {}", came(*.waited), recent(.attempts))]
    NoWorker {
        /// How long it was waited for somebody; none if nobody can come however long that is.
        waited: Option<Duration>,
        /// The last attempt at each place where one has failed.
        attempts: Arc<[Attempt]>,
    },
}

/// What was found out about the time when somebody will come.
fn came(waited: Option<Duration>) -> String {
    match waited {
        Some(waited) => format!(" and none has come within {waited:?} (patience)"),
        None => " and none can be found".to_owned(),
    }
}

/// The last of many reasons, on one line.
fn recent(attempts: &[Attempt]) -> String {
    if attempts.is_empty() {
        return "nobody has dialled in, and no attempt to reach one has failed".to_owned();
    }
    let recent = attempts.len().saturating_sub(RECENT_MAX);
    let texts: Vec<String> = attempts[recent..].iter().map(Attempt::to_string).collect();
    texts.join("; ")
}

/// The shared end of a stream.
#[derive(Debug)]
pub struct ResultQueue {
    inner: Mutex<Inner>,
    changed: Condvar,
    /// How many items may have been admitted altogether.
    admissible: AtomicU64,
    /// How many outcomes there will be, of a stream whose items are made into others; the greatest number while nobody knows.
    total: AtomicU64,
    /// Whether slots wait for items, so that the next one should leave at once.
    hungry: AtomicBool,
    /// Whether the driver has so many items that it need not be told of more.
    plenty: AtomicBool,
}

#[derive(Debug)]
struct Inner {
    order: OutcomeOrder,
    next: u64,
    waiting: u32,
    ordered: BTreeMap<u64, Outcomes>,
    completed: VecDeque<Outcomes>,
    ended: Option<StreamEnd>,
    notified: u64,
    /// Outcomes that have come, wanted or not.
    arrived: u64,
    /// How many outcomes there are up to the last one of each item, in order; what nobody has asked for yet.
    ends: Vec<u64>,
    /// Items whose outcomes nobody wants, as far as these have not gone.
    unwanted: RangeSet,
    /// Items whose outcomes are in `completed`.
    held: u64,
    /// Outcomes that were given up since `completed` was last looked through for such.
    forgotten: u64,
}

/// Items whose outcomes were thrown away: the first, and how many.
pub type ThrownAway = Vec<(u64, u32)>;

impl ResultQueue {
    /// An empty queue.
    #[must_use]
    pub fn new(order: OutcomeOrder) -> Self {
        let inner = Inner {
            order,
            next: 0,
            waiting: 0,
            ordered: BTreeMap::new(),
            completed: VecDeque::new(),
            ended: None,
            notified: 0,
            arrived: 0,
            ends: Vec::new(),
            unwanted: RangeSet::default(),
            held: 0,
            forgotten: 0,
        };
        Self {
            inner: Mutex::new(inner),
            changed: Condvar::new(),
            admissible: AtomicU64::new(1),
            total: AtomicU64::new(u64::MAX),
            hungry: AtomicBool::new(true),
            plenty: AtomicBool::new(false),
        }
    }

    /// Puts outcomes in (driver's side). Says which of them went at once, because nobody wants them: the user will not take
    /// these.
    pub fn deliver(&self, outcomes: Outcomes) -> ThrownAway {
        let mut inner = self.lock();
        inner.arrived += u64::from(outcomes.count);
        let mut thrown_away = Vec::new();
        match inner.order {
            OutcomeOrder::Admission => {
                let wake = outcomes.first == inner.next;
                inner.ordered.insert(outcomes.first, outcomes);
                if !wake {
                    return thrown_away;
                }
            }
            OutcomeOrder::Completion => {
                let wanted = inner.wanted(outcomes, &mut thrown_away);
                if wanted.is_empty() {
                    inner.notified += 1;
                }
                inner.held += items_of(&wanted);
                inner.completed.extend(wanted);
            }
        }
        if inner.waiting > 0 {
            drop(inner);
            self.changed.notify_all();
        }
        thrown_away
    }

    /// Nobody will take the outcome of this item, which has not been taken: it goes, or will go when it comes. Says what went
    /// now. Outcomes beside others that are wanted may go later, when as many have gathered.
    #[must_use]
    pub fn forget(&self, index: u64) -> ThrownAway {
        let mut inner = self.lock();
        let mut thrown_away = Vec::new();
        inner.unwanted.insert(index..index + 1);
        inner.forgotten += 1;
        if inner.held > 0 && inner.forgotten >= inner.held / 2 {
            inner.forgotten = 0;
            let completed = std::mem::take(&mut inner.completed);
            for outcomes in completed {
                let wanted = inner.wanted(outcomes, &mut thrown_away);
                inner.completed.extend(wanted);
            }
            let (first, second) = inner.completed.as_slices();
            inner.held = items_of(first) + items_of(second);
        }
        thrown_away
    }

    /// How many outcomes have come, wanted or not.
    #[must_use]
    pub fn arrived(&self) -> u64 {
        self.lock().arrived
    }

    /// Ends the stream for everybody who waits (driver's side).
    pub fn end(&self, end: StreamEnd) {
        self.lock().ended.get_or_insert(end);
        self.changed.notify_all();
    }

    /// Wakes everybody who waits, so that they look around.
    pub fn notify(&self) {
        let mut inner = self.lock();
        inner.notified += 1;
        if inner.waiting > 0 {
            drop(inner);
            self.changed.notify_all();
        }
    }

    /// Looks for outcomes without waiting.
    #[must_use]
    pub fn take(&self) -> Taken {
        self.lock().take()
    }

    /// Looks for outcomes and waits for at most `patience`, less if [`ResultQueue::notify`] is called or it becomes possible
    /// to admit items beyond `admitted`.
    #[must_use]
    pub fn wait(&self, patience: Duration, admitted: Option<u64>) -> Taken {
        self.wait_until(patience, |_| {
            admitted.is_some_and(|admitted| self.admissible() > admitted)
        })
    }

    /// The same, until so many outcomes have come altogether.
    #[must_use]
    pub fn wait_for_all(&self, patience: Duration, count: u64) -> Taken {
        self.wait_until(patience, |inner| inner.arrived >= count)
    }

    fn wait_until(&self, patience: Duration, is_enough: impl Fn(&Inner) -> bool) -> Taken {
        let deadline = Instant::now() + patience;
        let mut inner = self.lock();
        let notified = inner.notified;
        loop {
            let taken = inner.take();
            if !matches!(taken, Taken::Nothing) || inner.notified != notified || is_enough(&inner) {
                return taken;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Taken::Nothing;
            }
            inner.waiting += 1;
            inner = self
                .changed
                .wait_timeout(inner, left)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
            inner.waiting -= 1;
        }
    }

    /// How many items may have been admitted altogether by now.
    #[must_use]
    pub fn admissible(&self) -> u64 {
        self.admissible.load(Ordering::Acquire)
    }

    /// Says how many items may have been admitted altogether (driver's side).
    pub fn set_admissible(&self, total: u64) {
        if self.admissible.swap(total, Ordering::AcqRel) < total {
            let inner = self.lock();
            if inner.waiting > 0 {
                drop(inner);
                self.changed.notify_all();
            }
        }
    }

    /// How many outcomes there will be, of a stream whose items are made into others, if that is known.
    #[must_use]
    pub fn total(&self) -> Option<u64> {
        Some(self.total.load(Ordering::Acquire)).filter(|total| *total < u64::MAX)
    }

    /// Says how many outcomes there will be (driver's side).
    pub fn set_total(&self, total: u64) {
        self.total.store(total, Ordering::Release);
        self.notify();
    }

    /// Where the outcomes of further items end (driver's side): how many there are up to the last one of each.
    pub fn add_ends(&self, ends: Vec<u64>) {
        self.lock().ends.extend(ends);
        self.notify();
    }

    /// The same, since the last time. Those of all items before an outcome are there before it.
    #[must_use]
    pub fn take_ends(&self) -> Vec<u64> {
        std::mem::take(&mut self.lock().ends)
    }

    /// Whether slots wait for items.
    #[must_use]
    pub fn is_hungry(&self) -> bool {
        self.hungry.load(Ordering::Relaxed)
    }

    /// Says whether slots wait for items (driver's side).
    pub fn set_hungry(&self, hungry: bool) {
        self.hungry.store(hungry, Ordering::Relaxed);
    }

    /// Whether the driver will look for more items by itself.
    #[must_use]
    pub fn has_plenty(&self) -> bool {
        self.plenty.load(Ordering::Acquire)
    }

    /// Says whether the driver will look for more items by itself (driver's side).
    pub fn set_plenty(&self, plenty: bool) {
        self.plenty.store(plenty, Ordering::Release);
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    /// Parts outcomes from those that nobody wants, unless more than half of them are wanted.
    fn wanted(&mut self, outcomes: Outcomes, thrown_away: &mut ThrownAway) -> Vec<Outcomes> {
        let items = outcomes.first..outcomes.first + u64::from(outcomes.count);
        let unwanted = self.unwanted.overlap(items);
        let count: u64 = unwanted.iter().map(|range| range.end - range.start).sum();
        if 2 * count < u64::from(outcomes.count) || count == 0 {
            return vec![outcomes];
        }
        // Each is part of these outcomes, whose count is a u32.
        let lengths = unwanted.iter();
        thrown_away.extend(lengths.map(|range| (range.start, (range.end - range.start) as u32)));
        let wanted = without(outcomes, &unwanted);
        for range in unwanted {
            self.unwanted.remove_range(range);
        }
        wanted
    }

    fn take(&mut self) -> Taken {
        let outcomes = match self.order {
            OutcomeOrder::Completion => self.completed.pop_front(),
            OutcomeOrder::Admission => {
                let next = self.next;
                self.ordered
                    .first_entry()
                    .filter(|entry| *entry.key() == next)
                    .map(|entry| entry.remove())
            }
        };
        match (outcomes, &self.ended) {
            (Some(outcomes), _) => {
                self.next = outcomes.first + u64::from(outcomes.count);
                self.held = self.held.saturating_sub(u64::from(outcomes.count));
                for range in self.unwanted.overlap(outcomes.first..self.next) {
                    self.unwanted.remove_range(range);
                }
                Taken::Outcomes(outcomes)
            }
            (None, Some(end)) => Taken::Ended(end.clone()),
            (None, None) => Taken::Nothing,
        }
    }
}

fn items_of(outcomes: &[Outcomes]) -> u64 {
    outcomes
        .iter()
        .map(|outcomes| u64::from(outcomes.count))
        .sum()
}

/// What is left of outcomes without these items, of which there is one at least. Its memory is its own.
fn without(outcomes: Outcomes, unwanted: &[Range<u64>]) -> Vec<Outcomes> {
    let end = outcomes.first + u64::from(outcomes.count);
    let mut gaps = unwanted.iter().cloned();
    let mut left = Vec::new();
    let mut start = outcomes.first;
    let mut contents = outcomes.contents;
    loop {
        let gap = gaps.next().unwrap_or(end..end);
        if start < gap.start {
            left.extend(part(&mut contents, start..gap.start));
        }
        if gap.start == end {
            return left;
        }
        skip(&mut contents, gap.end - gap.start);
        start = gap.end;
    }
}

/// Takes the next items off the contents of outcomes.
fn part(contents: &mut Contents, items: Range<u64>) -> Option<Outcomes> {
    let contents = match contents {
        Contents::Records(reader, origin) => {
            Contents::Records(next_records(reader, items.clone())?, origin.clone())
        }
        Contents::Exhausted {
            records,
            origin,
            attempts,
        } => Contents::Exhausted {
            records: next_records(records, items.clone())?,
            origin: origin.clone(),
            attempts: *attempts,
        },
        Contents::Refused(origin) => Contents::Refused(origin.clone()),
        Contents::TooManyParts { maximum, recurs } => Contents::TooManyParts {
            maximum: *maximum,
            recurs: *recurs,
        },
        Contents::TooManyBytes { maximum, recurs } => Contents::TooManyBytes {
            maximum: *maximum,
            recurs: *recurs,
        },
        Contents::NothingToReduce => Contents::NothingToReduce,
        Contents::WorkersLost { count, last_end } => Contents::WorkersLost {
            count: *count,
            last_end: last_end.clone(),
        },
        Contents::TooLarge { bytes, maximum } => Contents::TooLarge {
            bytes: *bytes,
            maximum: *maximum,
        },
    };
    Some(Outcomes {
        first: items.start,
        // No more than there were.
        count: (items.end - items.start) as u32,
        contents,
    })
}

/// Copies the records of the next items.
fn next_records(reader: &mut RecordReader, items: Range<u64>) -> Option<RecordReader> {
    let mut writer = RecordWriter::default();
    for _ in items {
        // The router has read all of them before.
        let record = reader.next_record().ok().flatten()?;
        let bulk = record.bulk.into_iter().map(Bytes::from);
        let (format, exception) = (record.format, record.exception);
        writer.push(format, exception, &record.body, &record.splices, bulk);
    }
    let (_, records, bulk) = writer.take();
    let bulk = bulk.into_iter().map(Vec::from).collect();
    Some(RecordReader::new(records, bulk))
}

fn skip(contents: &mut Contents, items: u64) {
    if let Contents::Records(reader, _)
    | Contents::Exhausted {
        records: reader, ..
    } = contents
    {
        for _ in 0..items {
            let _ = reader.next_record();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::payload::Format;

    /// A number below `bound` that follows from the last one (xorshift).
    fn below(state: &mut u64, bound: u64) -> u64 {
        *state ^= *state << 13;
        *state ^= *state >> 7;
        *state ^= *state << 17;
        *state % bound
    }

    /// Each item's record is its index; every third one has a bulk part.
    fn outcomes(items: Range<u64>) -> Outcomes {
        let mut writer = RecordWriter::default();
        for index in items.clone() {
            let bulk = (index % 3 == 0).then(|| Bytes::from(index.to_be_bytes().to_vec()));
            let body = index.to_be_bytes();
            writer.push(Format::Pickle, index % 5 == 0, &body, &[], bulk);
        }
        let (count, records, bulk) = writer.take();
        let bulk = bulk.into_iter().map(Vec::from).collect();
        Outcomes {
            first: items.start,
            count,
            contents: Contents::Records(RecordReader::new(records, bulk), Origin::user()),
        }
    }

    /// The items whose outcomes these are, each with its own record.
    fn read(outcomes: Outcomes) -> Vec<u64> {
        let items = outcomes.first..outcomes.first + u64::from(outcomes.count);
        let Contents::Records(mut reader, _) = outcomes.contents else {
            panic!("other contents");
        };
        for index in items.clone() {
            let record = reader.next_record().unwrap().unwrap();
            assert_eq!(record.body, index.to_be_bytes().to_vec());
            assert_eq!(record.exception, index % 5 == 0);
            assert_eq!(record.bulk.len(), usize::from(index % 3 == 0));
        }
        assert!(reader.is_empty());
        items.collect()
    }

    /// Aim: an outcome that is wanted is handed out, each other one is handed out or thrown away, and what waits is at most twice
    /// what is wanted. Method: items arrive and are forgotten in any order.
    #[test]
    fn what_nobody_wants_goes() {
        for seed in 1..200 {
            let random = &mut (seed << 32 | seed);
            let queue = ResultQueue::new(OutcomeOrder::Completion);
            let items = 1 + below(random, 300);
            let mut parts = Vec::new();
            let mut first = 0;
            while first < items {
                let end = items.min(first + 1 + below(random, 40));
                parts.push(first..end);
                first = end;
            }
            let unwanted_in = 1 + below(random, 10);
            let mut unwanted: Vec<u64> = (0..items)
                .filter(|_| below(random, 10) < unwanted_in)
                .collect();
            let is_unwanted: Vec<bool> = (0..items).map(|item| unwanted.contains(&item)).collect();
            let mut thrown_away = Vec::new();
            let mut arrived = 0;
            while !parts.is_empty() || !unwanted.is_empty() {
                if unwanted.is_empty() || (!parts.is_empty() && below(random, 2) == 0) {
                    let part = parts.swap_remove(below(random, parts.len() as u64) as usize);
                    arrived += part.end - part.start;
                    thrown_away.extend(queue.deliver(outcomes(part)));
                } else {
                    let place = below(random, unwanted.len() as u64) as usize;
                    thrown_away.extend(queue.forget(unwanted.swap_remove(place)));
                }
                assert_eq!(queue.arrived(), arrived);
            }
            let mut seen = vec![0; items as usize];
            for (first, count) in thrown_away {
                for item in first..first + u64::from(count) {
                    assert!(is_unwanted[item as usize], "item {item} was wanted");
                    seen[item as usize] += 1;
                }
            }
            let wanted = is_unwanted.iter().filter(|unwanted| !**unwanted).count();
            if wanted == 0 {
                assert_eq!(queue.lock().held, 0);
            }
            while let Taken::Outcomes(taken) = queue.take() {
                for item in read(taken) {
                    seen[item as usize] += 1;
                }
            }
            assert!(seen.iter().all(|count| *count == 1), "seed {seed}");
            let inner = queue.lock();
            assert!(inner.unwanted.is_empty() && inner.held == 0, "seed {seed}");
        }
    }

    /// Aim: whoever waits for all outcomes is not left waiting for those that were thrown away.
    #[test]
    fn a_wait_for_all_ends_with_the_last_outcome() {
        let queue = ResultQueue::new(OutcomeOrder::Completion);
        assert!(queue.forget(0).is_empty());
        assert_eq!(queue.deliver(outcomes(0..1)), [(0, 1)]);
        let patience = Duration::from_secs(3600);
        assert!(matches!(queue.wait_for_all(patience, 1), Taken::Nothing));
    }
}
