//! What goes to a sink when, and when the journal hears of it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::journal::CommitGroup;
use crate::journal::EARLY_BYTES_MAX;
use crate::{EarlyResult, ItemNumbers, Journal, JournalError, RunState};

/// A group is committed when so much time has passed since its first result.
pub const GROUP_TIME: Duration = Duration::from_millis(50);

/// A group is committed when its early results, which memory holds until then, have so many bytes.
pub const GROUP_BYTES: usize = 64 * 1024;

/// Where results go, in the order of their items.
pub trait ResultSink {
    /// A result.
    type Value;
    /// What goes wrong with it, or with the journal.
    type Error: From<JournalError>;

    /// Appends the result of an item.
    ///
    /// # Errors
    /// If it can't be written.
    fn write(&mut self, index: u64, value: Self::Value) -> Result<(), Self::Error>;

    /// Makes a result of what came early; none if it turns out that there is none.
    ///
    /// # Errors
    /// If it can't be read.
    fn read_early(
        &mut self,
        index: u64,
        early: EarlyResult,
    ) -> Result<Option<Self::Value>, Self::Error>;

    /// Whether an error of [`Self::write`] or [`Self::read_early`] is about the result itself, so that its item has to run again. If a disk
    /// was full, say, the same result can still go to the sink.
    fn blames_result(_error: &Self::Error) -> bool {
        true
    }

    /// Makes all that was written durable, and says where the sink is then. A sink that is cut back to this position holds
    /// exactly the results before it.
    ///
    /// # Errors
    /// If it can't be made durable.
    fn sync(&mut self) -> Result<Vec<u8>, Self::Error>;
}

/// The outcome of an item, as a delivery takes it.
#[derive(Debug)]
pub enum ItemOutcome<V> {
    /// The result of the item whose turn it is.
    Now(V),
    /// The result of a later one.
    Early(EarlyResult),
    /// The item has none, and the run goes on without it.
    Skipped,
}

/// A run on its way to a sink.
#[derive(Debug)]
pub struct Delivery {
    journal: Journal,
    state: RunState,
    /// Some results of the item whose turn it is are in the sink, and others will follow.
    is_amid: bool,
    numbers: ItemNumbers,
    /// Early results that the journal doesn't have yet, and how many bytes they are.
    fresh: BTreeMap<u64, EarlyResult>,
    fresh_bytes: usize,
    /// Items whose early results are in the journal.
    stored: BTreeSet<u64>,
    /// Those that have gone to the sink since the last commit.
    passed: Vec<u64>,
    /// When the first outcome of the open group came.
    group_since: Option<Duration>,
}

impl Delivery {
    /// A run that goes on from `state`, as its journal says. Early items that were skipped are run again unless
    /// `keep_skipped`.
    ///
    /// # Errors
    /// If the journal can't be read.
    pub fn new(
        journal: Journal,
        state: RunState,
        keep_skipped: bool,
    ) -> Result<Self, JournalError> {
        let mut stored = BTreeSet::new();
        let mut passed = Vec::new();
        for (index, is_skipped) in journal.early_items()? {
            match is_skipped && !keep_skipped {
                true => passed.push(index),
                false => drop(stored.insert(index)),
            }
        }
        Ok(Self {
            numbers: ItemNumbers::new(state.watermark, stored.iter().copied()),
            journal,
            state,
            is_amid: false,
            fresh: BTreeMap::new(),
            fresh_bytes: 0,
            stored,
            passed,
            group_since: None,
        })
    }

    /// The item whose turn it is.
    #[must_use]
    pub fn next(&self) -> u64 {
        self.state.watermark
    }

    /// How far the run has come. The position is that of the last commit.
    #[must_use]
    pub fn state(&self) -> &RunState {
        &self.state
    }

    /// How many results there were in place of which is an exception.
    #[must_use]
    pub fn skipped(&self) -> u64 {
        self.state.skipped
    }

    /// Whether the sink holds a part of the results of an item, so that nothing can be committed.
    #[must_use]
    pub fn is_amid(&self) -> bool {
        self.is_amid
    }

    /// Which item a stream's n-th one is.
    #[must_use]
    pub fn numbers(&self) -> &ItemNumbers {
        &self.numbers
    }

    /// How many results wait for their turn.
    #[must_use]
    pub fn early(&self) -> u64 {
        (self.fresh.len() + self.stored.len()) as u64
    }

    /// The items whose results wait in the journal, in order.
    pub fn stored(&self) -> impl Iterator<Item = u64> + '_ {
        self.stored.iter().copied()
    }

    /// Takes the outcome of an item, and writes to the sink what has its turn by that. Says whether a group is due.
    ///
    /// # Errors
    /// If the sink or the journal fails. The run can go on only from the journal then.
    pub fn take<S: ResultSink>(
        &mut self,
        sink: &mut S,
        index: u64,
        turn: ItemOutcome<S::Value>,
        now: Duration,
    ) -> Result<bool, S::Error> {
        let next = self.state.watermark;
        let known = self.fresh.contains_key(&index) || self.stored.contains(&index);
        if index < next
            || known
            || self.is_amid
            || (index > next && matches!(turn, ItemOutcome::Now(_)))
        {
            return Err(JournalError::SecondResult { index, next }.into());
        }
        match turn {
            ItemOutcome::Now(value) => {
                sink.write(index, value)?;
                self.state.results += 1;
            }
            ItemOutcome::Skipped if index == next => self.state.skipped += 1,
            ItemOutcome::Early(early) if index == next => self.write_early(sink, index, early)?,
            ItemOutcome::Early(early) => self.hold(index, early)?,
            ItemOutcome::Skipped => self.hold(
                index,
                EarlyResult {
                    is_skipped: true,
                    ..EarlyResult::default()
                },
            )?,
        }
        if index == next {
            self.state.watermark += 1;
            self.follow_up(sink)?;
        }
        self.group_since.get_or_insert(now);
        Ok(self.is_due(now))
    }

    /// Takes the next of any number of outcomes of the item whose turn it is: a result, or none in whose place is an exception. The sink is
    /// told how many outcomes there were before.
    ///
    /// # Errors
    /// As [`Delivery::take`].
    pub fn append<S: ResultSink>(
        &mut self,
        sink: &mut S,
        value: Option<S::Value>,
    ) -> Result<(), S::Error> {
        self.is_amid = true;
        match value {
            Some(value) => {
                sink.write(self.state.results + self.state.skipped, value)?;
                self.state.results += 1;
            }
            None => self.state.skipped += 1,
        }
        Ok(())
    }

    /// All outcomes of the items before `end` have been appended, and none of a later one. Says whether a group is due.
    ///
    /// # Errors
    /// If there are more such items already.
    pub fn end_items(&mut self, end: u64, now: Duration) -> Result<bool, JournalError> {
        let next = self.state.watermark;
        if end < next {
            return Err(JournalError::SecondResult { index: end, next });
        }
        if end > next {
            self.is_amid = false;
            self.state.watermark = end;
            self.group_since.get_or_insert(now);
        }
        Ok(self.is_due(now))
    }

    /// Whether outcomes came that are not committed.
    #[must_use]
    pub fn has_group(&self) -> bool {
        self.group_since.is_some() && !self.is_amid
    }

    /// Whether these should be committed now.
    #[must_use]
    pub fn is_due(&self, now: Duration) -> bool {
        let Some(since) = self.group_since.filter(|_| !self.is_amid) else {
            return false;
        };
        self.fresh_bytes >= GROUP_BYTES || now.saturating_sub(since) >= GROUP_TIME
    }

    fn hold(&mut self, index: u64, early: EarlyResult) -> Result<(), JournalError> {
        let got = early.record.len();
        if got > EARLY_BYTES_MAX {
            return Err(JournalError::ResultTooLong { index, got });
        }
        self.fresh_bytes += got;
        self.fresh.insert(index, early);
        Ok(())
    }

    /// Writes the early results that have their turn now. Whoever goes on has to begin with it. One of the journal that the sink refuses for
    /// what it is ([`ResultSink::blames_result`]) is taken out of the journal, so that its item runs again instead of failing for ever.
    ///
    /// # Errors
    /// As [`Delivery::take`].
    pub fn follow_up<S: ResultSink>(&mut self, sink: &mut S) -> Result<(), S::Error> {
        loop {
            let index = self.state.watermark;
            let (early, is_stored) = match self.fresh.remove(&index) {
                Some(early) => {
                    self.fresh_bytes -= early.record.len();
                    (early, false)
                }
                None if self.stored.remove(&index) => {
                    self.passed.push(index);
                    (self.journal.early_result(index)?, true)
                }
                None => return Ok(()),
            };
            let written = self.write_early(sink, index, early);
            if is_stored && written.as_ref().is_err_and(S::blames_result) {
                // What the sink says of it comes first. A row that stays fails again, and is taken out then.
                let _ = self.journal.discard(index);
            }
            written?;
            self.state.watermark += 1;
        }
    }

    fn write_early<S: ResultSink>(
        &mut self,
        sink: &mut S,
        index: u64,
        early: EarlyResult,
    ) -> Result<(), S::Error> {
        let value = match early.is_skipped {
            true => None,
            false => sink.read_early(index, early)?,
        };
        match value {
            Some(value) => {
                sink.write(index, value)?;
                self.state.results += 1;
                Ok(())
            }
            None => {
                self.state.skipped += 1;
                Ok(())
            }
        }
    }

    /// Makes all outcomes so far durable: first the sink, then the journal.
    ///
    /// # Errors
    /// As [`Delivery::take`].
    pub fn commit<S: ResultSink>(&mut self, sink: &mut S) -> Result<(), S::Error> {
        if self.is_amid {
            let index = self.state.watermark;
            return Err(JournalError::AmidItem { index }.into());
        }
        self.state.position = sink.sync()?;
        self.journal.commit(&CommitGroup {
            state: &self.state,
            added: &self.fresh,
            removed: &self.passed,
        })?;
        self.passed.clear();
        self.stored.extend(self.fresh.keys());
        self.fresh.clear();
        self.fresh_bytes = 0;
        self.group_since = None;
        Ok(())
    }

    /// Makes the end durable: these were all items.
    ///
    /// # Errors
    /// As [`Delivery::take`]; also if results still wait for items that the source doesn't give.
    pub fn finish<S: ResultSink>(&mut self, sink: &mut S) -> Result<(), S::Error> {
        let last = self.fresh.keys().chain(&self.stored).max();
        if let Some(&expected) = last {
            let got = self.state.watermark;
            return Err(JournalError::SourceTooShort { got, expected }.into());
        }
        self.state.is_finished = true;
        self.commit(sink)
    }
}
