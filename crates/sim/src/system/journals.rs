//! Runs with a journal: what their users do with outcomes, on a disk that tears and loses what was not synced.
//!
//! Journal and delivery are the product's. The manager's process may end between two writes or in one, and the next one goes on from what the
//! disks have kept. In the end each result is in the sink once, and unaltered.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use exoskel_determinism::SplitMix64;
use exoskel_journal::{
    Delivery, EarlyResult, ItemNumbers, ItemOutcome, Journal, JournalError, ResultSink, RunTexts,
    StorageBackend,
};
use exoskel_meaning::meaning::{self, Data, Outcome};
use exoskel_task::payload::{Format, Record};

use super::content::{Sizes, Token, What};
use super::scenario::{Scenario, StreamScenario, WriteEnd};
use super::streams::{input_of_run, sizes_of};
use crate::deliveries::BrokenDelivery;
use crate::deliveries::sink::{FileSink, failed};
use crate::faulty_disk::{Disk, Power};

/// All runs with a journal, on the disks of the manager's host.
#[derive(Debug)]
pub(super) struct Journals {
    power: Arc<Power>,
    /// How the process ends that is in a write when the power goes, and when another one begins.
    pub(super) armed: Option<(WriteEnd, Duration)>,
    /// By the number of the stream.
    runs: BTreeMap<usize, RunWithJournal>,
}

impl Journals {
    pub(super) fn new(scenario: &Scenario) -> Self {
        let power = Power::on(u64::MAX);
        let streams = scenario.streams.iter().enumerate();
        let runs = streams
            .filter(|(_, stream)| stream.has_journal)
            .map(|(number, stream)| {
                let run = RunWithJournal::new(scenario, number, stream, &power);
                (number, run)
            });
        Self {
            runs: runs.collect(),
            armed: None,
            power,
        }
    }

    pub(super) fn run(&mut self, number: usize) -> Option<&mut RunWithJournal> {
        self.runs.get_mut(&number)
    }

    /// Whether a process has this run open.
    pub(super) fn is_open(&self, number: usize) -> bool {
        let run = self.runs.get(&number);
        run.is_some_and(|run| run.open.is_some())
    }

    /// The process ends in this one of the writes from now on.
    pub(super) fn end_in_write(&mut self, writes: u64, end: WriteEnd, restart: Duration) {
        self.power.end_after(writes);
        self.armed = Some((end, restart));
    }

    /// Whether a write was the last one.
    pub(super) fn is_off(&self) -> bool {
        self.power.is_off()
    }

    /// The process is gone: what was not synced is lost with its host, or what it had not handed to the kernel if only the process has ended.
    pub(super) fn crash(&mut self, is_host_gone: bool, random: &mut SplitMix64) {
        let ended = self.armed.take().filter(|_| self.is_off());
        // Who finds the disk full has time to close what is open, and finds room for that or not.
        let closes = matches!(ended, Some((WriteEnd::DiskFull, _)));
        match closes && random.below(2) == 0 {
            true => self.power.stay(),
            false => self.power.end(),
        }
        let is_killed = !is_host_gone;
        let former = std::mem::replace(&mut self.power, Power::on(u64::MAX));
        for run in self.runs.values_mut() {
            if closes {
                run.journal.goes_on();
                run.sink.goes_on();
            }
            run.open = None;
        }
        former.end();
        for run in self.runs.values_mut() {
            run.is_begun |= run.journal.is_begun();
            run.journal = run.journal.after_crash(is_killed, random, &self.power);
            run.sink = run.sink.after_crash(is_killed, random, &self.power);
        }
    }

    /// The user gives a run up: nobody is left to work on it.
    pub(super) fn close(&mut self, number: usize) {
        if let Some(run) = self.run(number) {
            run.open = None;
        }
    }

    /// All that must be in the sinks is. Runs that were `given_up` have a part.
    pub(super) fn check(&self, given_up: impl Fn(usize) -> bool) -> Result<(), String> {
        self.runs.iter().try_for_each(|(number, run)| {
            let checked = match given_up(*number) {
                true => run.check_kept(),
                false => run.check_whole(),
            };
            checked.map_err(|what| format!("the sink of stream {number}: {what}"))
        })
    }
}

/// What a process has for a run.
#[derive(Debug)]
struct OpenRun {
    delivery: Delivery,
    sink: ItemSink,
    /// Where the outcomes of further items end, if items have any number of them.
    ends: VecDeque<u64>,
    /// Items that have handed out all of theirs, and how many outcomes these were.
    ended: u64,
    delivered: u64,
}

/// A run, whatever process it is in.
#[derive(Debug)]
pub(super) struct RunWithJournal {
    number: usize,
    items: u64,
    /// Items have any number of results, and these come in order.
    is_ordered: bool,
    sizes: Sizes,
    broken: Option<BrokenDelivery>,
    /// What each item comes to.
    expected: Vec<Vec<Outcome>>,
    journal: Disk,
    sink: Disk,
    /// A journal was begun on this disk.
    is_begun: bool,
    /// What was in the sink at the last commit that succeeded, and of how many items.
    committed: (u64, Vec<u8>),
    is_finished: bool,
    /// Items that have ended, in any process, for a reason that their program doesn't know.
    astray: BTreeSet<u64>,
    open: Option<OpenRun>,
}

/// What a process finds when it begins or goes on with a run.
#[derive(Debug)]
pub(super) struct FoundRun {
    /// Which items are to be run.
    pub(super) items: Vec<u64>,
    /// All are done.
    pub(super) is_finished: bool,
    /// Early results of former processes.
    pub(super) early: u64,
    /// It goes on amid its items.
    pub(super) is_continued: bool,
    /// A journal was damaged before it was begun, and was removed.
    pub(super) was_removed: bool,
}

/// An outcome, on its way from the stream to the run.
#[derive(Debug)]
pub(super) enum Handed {
    /// A result, with what a journal keeps of it, and whether somebody has touched it who isn't trusted.
    Result(Data, Record, bool),
    /// An exception that the program has there.
    Exception,
    /// The item has ended for a reason that its program doesn't know.
    Astray,
}

impl RunWithJournal {
    fn new(
        scenario: &Scenario,
        number: usize,
        stream: &StreamScenario,
        power: &Arc<Power>,
    ) -> Self {
        let items = 0..stream.items;
        let expected = items.map(|item| {
            let outcome = input_of_run(scenario.seed, stream, number, item);
            meaning::run(&stream.skeleton, vec![outcome])
        });
        Self {
            number,
            items: stream.items,
            is_ordered: !stream.skeleton.keeps_number(),
            sizes: sizes_of(scenario.seed, number, stream),
            broken: scenario.broken_delivery,
            expected: expected.collect(),
            journal: Disk::new(power),
            sink: Disk::new(power),
            is_begun: false,
            committed: (0, Vec::new()),
            is_finished: false,
            astray: BTreeSet::new(),
            open: None,
        }
    }

    /// Begins the run, or goes on with it.
    ///
    /// # Errors
    /// If the power goes, and if something is lost.
    pub(super) fn begin(&mut self) -> Result<FoundRun, JournalError> {
        let mut was_removed = false;
        let (journal, state) = loop {
            let texts = RunTexts {
                program: format!("program {}", self.number),
                source: format!("{} items", self.items),
                sink: "a file".to_owned(),
            };
            let place = self.sink.contents().len() as u64;
            let position = || Ok::<_, JournalError>(place.to_le_bytes().to_vec());
            match Journal::open(self.journal.clone(), &texts, position) {
                Err(JournalError::Damaged { .. })
                    if !self.is_begun && place == 0 && !self.journal.power().is_off() =>
                {
                    // Whoever reads that removes it.
                    was_removed = true;
                    self.journal.set_len(0).map_err(JournalError::Disk)?;
                    self.journal.sync_data(false).map_err(JournalError::Disk)?;
                }
                opened => break opened?,
            }
        };
        self.journal.begun();
        self.is_begun = true;
        let (watermark, kept) = &self.committed;
        if state.watermark < *watermark {
            return Err(failed(&format!(
                "{} items are done as the journal says, but {watermark} were when it was last committed",
                state.watermark
            )));
        }
        if !self.sink.contents().starts_with(kept) {
            return Err(failed("results that were committed are not in the sink"));
        }
        let mut sink = ItemSink {
            file: FileSink::new(self.sink.clone(), self.broken),
            number: self.number as u64,
            sizes: self.sizes,
        };
        sink.file.cut_back(&state.position)?;
        self.check(&self.sink.contents(), state.watermark)
            .map_err(|what| failed(&what))?;
        self.is_finished = state.is_finished;
        let is_continued = state.watermark > 0;
        let mut delivery = Delivery::new(journal, state, true)?;
        let early = delivery.early();
        let items = items_of(delivery.numbers(), self.items);
        if !self.is_finished {
            delivery.follow_up(&mut sink)?;
            self.open = Some(OpenRun {
                delivery,
                sink,
                ends: VecDeque::new(),
                ended: 0,
                delivered: 0,
            });
        }
        Ok(FoundRun {
            is_finished: self.is_finished,
            items,
            early,
            is_continued,
            was_removed,
        })
    }

    /// It is known where the outcomes of further items end.
    pub(super) fn told_ends(&mut self, ends: Vec<u64>) {
        if let Some(open) = &mut self.open {
            open.ends.extend(ends);
        }
    }

    /// Takes outcomes of the stream, in the order of their items where these have any number.
    ///
    /// # Errors
    /// As [`Delivery::take`].
    pub(super) fn take(
        &mut self,
        outcomes: Vec<(u64, Handed)>,
        now: Duration,
    ) -> Result<u64, JournalError> {
        let mut commits = 0;
        for (index, handed) in outcomes {
            let Some(open) = &mut self.open else {
                return Ok(commits);
            };
            let numbers = open.delivery.numbers().clone();
            let is_due = match self.is_ordered {
                true => {
                    // What has ended since then is told first, as the iterator over the outcomes does by a pause.
                    open.follow_ends();
                    let item = numbers.index_of(open.ended);
                    open.delivery.end_items(item, now)?;
                    if matches!(handed, Handed::Astray) {
                        self.astray.insert(item);
                    }
                    let result = match handed {
                        Handed::Result(data, ..) => Some(written(item, &data)),
                        Handed::Exception | Handed::Astray => None,
                    };
                    open.delivery.append(&mut open.sink, result)?;
                    open.delivered += 1;
                    open.follow_ends();
                    let end = numbers.index_of(open.ended);
                    open.delivery.end_items(end, now)?
                }
                false => {
                    let item = numbers.index_of(index);
                    if matches!(handed, Handed::Astray) {
                        self.astray.insert(item);
                    }
                    let turn = match handed {
                        Handed::Result(data, ..) if item == open.delivery.next() => {
                            ItemOutcome::Now(written(item, &data))
                        }
                        Handed::Result(_, record, is_restricted) => {
                            ItemOutcome::Early(EarlyResult {
                                is_skipped: false,
                                is_restricted,
                                record: early_record(&record),
                            })
                        }
                        Handed::Exception | Handed::Astray => ItemOutcome::Skipped,
                    };
                    open.delivery.take(&mut open.sink, item, turn, now)?
                }
            };
            if is_due {
                self.commit()?;
                commits += 1;
            }
        }
        Ok(commits)
    }

    /// Whether outcomes wait to be committed.
    pub(super) fn has_group(&self) -> bool {
        let open = self.open.as_ref();
        open.is_some_and(|open| open.delivery.has_group())
    }

    /// Commits what has waited for long enough. Says whether it has.
    ///
    /// # Errors
    /// As [`Delivery::commit`].
    pub(super) fn commit_due(&mut self, now: Duration) -> Result<bool, JournalError> {
        let Some(open) = &mut self.open else {
            return Ok(false);
        };
        if self.is_ordered {
            // Items without outcomes behind the last one may have been told since.
            open.follow_ends();
            let end = open.delivery.numbers().index_of(open.ended);
            open.delivery.end_items(end, now)?;
        }
        let is_due = open.delivery.is_due(now);
        if is_due {
            self.commit()?;
        }
        Ok(is_due)
    }

    fn commit(&mut self) -> Result<(), JournalError> {
        let Some(open) = &mut self.open else {
            return Ok(());
        };
        open.delivery.commit(&mut open.sink)?;
        self.committed = (open.delivery.next(), self.sink.contents());
        Ok(())
    }

    /// These were all items.
    ///
    /// # Errors
    /// As [`Delivery::finish`].
    pub(super) fn finish(&mut self) -> Result<(), JournalError> {
        let Some(mut open) = self.open.take() else {
            return Ok(());
        };
        if self.is_ordered {
            open.follow_ends();
            let end = open.delivery.numbers().index_of(open.ended);
            open.delivery.end_items(end, Duration::ZERO)?;
        }
        open.delivery.finish(&mut open.sink)?;
        let next = open.delivery.next();
        if next != self.items {
            let items = self.items;
            return Err(failed(&format!("{next} of {items} items are done")));
        }
        self.is_finished = true;
        self.committed = (next, self.sink.contents());
        Ok(())
    }

    /// The run has come to its end.
    fn check_whole(&self) -> Result<(), String> {
        match self.is_finished {
            true => self.check(&self.sink.contents(), self.items),
            false => Err("the run did not come to its end".to_owned()),
        }
    }

    /// The run has not: what was committed is there.
    fn check_kept(&self) -> Result<(), String> {
        let (items, kept) = &self.committed;
        if !self.sink.contents().starts_with(kept) {
            return Err("results that were committed are not there".to_owned());
        }
        self.check(kept, *items)
    }

    /// The sink holds the results of the first items, each once and unaltered.
    fn check(&self, contents: &[u8], items: u64) -> Result<(), String> {
        let mut found: BTreeMap<u64, Vec<Data>> = BTreeMap::new();
        let (mut rest, mut last) = (contents, 0);
        while !rest.is_empty() {
            let at = contents.len() - rest.len();
            let Some((item, data)) = read_written(&mut rest) else {
                return Err(format!("what is in it at byte {at} is no result"));
            };
            if item < last || item >= items {
                return Err(format!(
                    "a result of item {item} at byte {at}, behind those of item {last} of {items}"
                ));
            }
            last = item;
            found.entry(item).or_default().push(data);
        }
        let none = Vec::new();
        for (item, outcomes) in (0..items).zip(&self.expected) {
            let found = found.get(&item).unwrap_or(&none);
            let mut expected = outcomes.iter().flatten();
            let are_own = match self.astray.contains(&item) {
                // Something may be missing, and all else is there in its order.
                true => found.iter().all(|data| expected.any(|own| own == data)),
                false => found.iter().eq(expected),
            };
            if !are_own {
                return Err(format!(
                    "it has {found:?} of item {item}, expected {outcomes:?}"
                ));
            }
        }
        Ok(())
    }
}

impl OpenRun {
    /// Finds out which items have handed out all of their outcomes.
    fn follow_ends(&mut self) {
        while self.ends.front().is_some_and(|end| *end <= self.delivered) {
            self.ends.pop_front();
            self.ended += 1;
        }
    }
}

/// The items that are to be run.
fn items_of(numbers: &ItemNumbers, count: u64) -> Vec<u64> {
    let items = (0..).map(|nth| numbers.index_of(nth));
    items.take_while(|item| *item < count).collect()
}

/// Appends results to a file.
#[derive(Debug)]
struct ItemSink {
    file: FileSink,
    /// The stream.
    number: u64,
    sizes: Sizes,
}

impl ResultSink for ItemSink {
    type Value = Vec<u8>;
    type Error = JournalError;

    fn write(&mut self, index: u64, value: Vec<u8>) -> Result<(), JournalError> {
        self.file.write(index, value)
    }

    fn read_early(
        &mut self,
        index: u64,
        early: EarlyResult,
    ) -> Result<Option<Vec<u8>>, JournalError> {
        let record = read_early_record(&early.record);
        let token = record.and_then(|record| Token::read(&record, self.sizes));
        match token {
            Some(Token {
                stream,
                touched,
                what: What::Item(data) | What::Made(data),
                ..
            }) if stream == self.number && (early.is_restricted || !touched) => {
                Ok(Some(written(index, &data)))
            }
            other => Err(failed(&format!(
                "the early result of item {index} is something else: {other:?}"
            ))),
        }
    }

    fn sync(&mut self) -> Result<Vec<u8>, JournalError> {
        self.file.sync()
    }
}

/// A result as it stands in the sink, without its length.
fn written(item: u64, data: &Data) -> Vec<u8> {
    let mut bytes = item.to_le_bytes().to_vec();
    data.write(&mut bytes);
    bytes
}

/// Takes a result off the front of what is in the sink.
fn read_written(rest: &mut &[u8]) -> Option<(u64, Data)> {
    let (length, behind) = rest.split_first_chunk()?;
    let length = u32::from_le_bytes(*length) as usize;
    let (own, behind) = behind.split_at_checked(length)?;
    let (item, mut data) = own.split_first_chunk()?;
    let value = Data::read(&mut data)?;
    *rest = behind;
    data.is_empty()
        .then_some((u64::from_le_bytes(*item), value))
}

/// A record of a value, as the journal keeps it.
fn early_record(record: &Record) -> Vec<u8> {
    let mut kept = vec![u8::from(record.format == Format::Pickle)];
    let parts = record.bulk.iter().map(Vec::as_slice);
    for part in [&record.body[..]].into_iter().chain(parts) {
        kept.extend_from_slice(&(part.len() as u64).to_le_bytes());
        kept.extend_from_slice(part);
    }
    kept
}

fn read_early_record(kept: &[u8]) -> Option<Record> {
    let (format, mut rest) = kept.split_first()?;
    let mut parts = VecDeque::new();
    while !rest.is_empty() {
        let (length, behind) = rest.split_first_chunk()?;
        let (part, behind) = behind.split_at_checked(u64::from_le_bytes(*length) as usize)?;
        parts.push_back(part.to_vec());
        rest = behind;
    }
    Some(Record {
        format: match format {
            0 => Format::Data,
            _ => Format::Pickle,
        },
        exception: false,
        body: parts.pop_front()?.into(),
        splices: Vec::new(),
        bulk: parts.into(),
    })
}
