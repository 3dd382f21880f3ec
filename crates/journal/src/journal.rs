//! What a journal holds on its disk.

use std::any::Any;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::{fmt, io};

use redb::{Builder, Database, ReadableTable, StorageBackend, TableDefinition};

use crate::JournalError;
use crate::disk::{
    Behind, Doubt, HEAD_BYTES, Head, LastRead, SharedDisk, doubt_store, read_head, write_beginning,
    write_head,
};
use crate::overlay::Overlay;
use crate::panics::{caught, is_too_short};

/// Results that may have come early: this many items after the watermark are run at most.
pub const EARLY_RESULTS_MAX: u64 = 65_536;

/// Bytes of an early result, at most: what the store takes, with room for what is around it.
pub const EARLY_BYTES_MAX: usize = 3 << 30;

/// Bytes of a position of the sink, at most. That of a fold holds what has been folded.
pub const POSITION_BYTES_MAX: usize = 3 << 30;

/// The part of a run that its program is.
pub(crate) const PROGRAM: &str = "program";

/// Between the parts of a text that says what a program is.
const BETWEEN_PARTS: &str = ", ";

/// Bytes of a text that says what a run is of, at most.
pub const RUN_TEXT_BYTES_MAX: usize = 1 << 20;

/// Bytes of the journal that are held in memory, at most. Early results are read once.
const CACHE_BYTES: usize = 4 << 20;

const RUN: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("run");
const EARLY: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("early");

/// How far the store says that it is with mending when it has found the last state to be damaged, and goes on with the one before.
const FIRST_IS_WRONG: std::ops::RangeInclusive<f64> = 0.25..=0.35;

/// The only row of `RUN` that changes.
const STATE: &str = "state";

/// What a run is of, as texts for people. A run goes on only with the texts that its journal was begun with.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RunTexts {
    /// The functions, by name and by a digest of their source text.
    pub program: String,
    /// Where the items come from, with a digest where there can be one.
    pub source: String,
    /// Where the results go.
    pub sink: String,
}

impl RunTexts {
    fn parts(&self) -> [(&'static str, &str); 3] {
        [
            (PROGRAM, &self.program),
            ("source", &self.source),
            ("sink", &self.sink),
        ]
    }
}

/// How far a run has come.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RunState {
    /// The results of all items before this one are in the sink, or are left out of it. Items are those of the source.
    pub watermark: u64,
    /// How many results these have in the sink.
    pub results: u64,
    /// How many are left out, because there is an exception in their place.
    pub skipped: u64,
    /// Whether these are all items.
    pub is_finished: bool,
    /// Where the sink was then, in its own words.
    pub position: Vec<u8>,
}

/// The result of an item that came before its turn.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EarlyResult {
    /// Whether the item ended in an exception, so that nothing goes to the sink.
    pub is_skipped: bool,
    /// Whether somebody made or touched the result who isn't trusted: it is read as plain data, now and always.
    pub is_restricted: bool,
    /// The result as it came.
    pub record: Vec<u8>,
}

/// What is committed together.
#[derive(Debug)]
pub(crate) struct CommitGroup<'a> {
    pub(crate) state: &'a RunState,
    /// Results that came early since the last group.
    pub(crate) added: &'a BTreeMap<u64, EarlyResult>,
    /// Early results that are in the sink now.
    pub(crate) removed: &'a [u64],
}

/// The journal of one run.
pub struct Journal {
    /// Away only while it is dropped.
    database: Option<Database>,
    last_read: Arc<LastRead>,
}

impl fmt::Debug for Journal {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Journal")
    }
}

impl Drop for Journal {
    fn drop(&mut self) {
        // The store writes at its end, too, and panics over a head that it would never have written. All that was promised is on the
        // disk by then.
        let database = self.database.take();
        let _ = caught(|| drop(database));
    }
}

impl Journal {
    /// Opens the journal on `disk`; begins one if there is none, at `position` of the sink. Also says how far its run has come.
    ///
    /// `position` is asked only if the journal may have to be begun, and before anything is written.
    ///
    /// # Errors
    /// If the disk holds something else, a damaged journal, or the journal of a run of something else. Nothing is written then. Also what
    /// `position` says.
    pub fn open<E: From<JournalError>>(
        disk: impl StorageBackend,
        texts: &RunTexts,
        position: impl FnOnce() -> Result<Vec<u8>, E>,
    ) -> Result<(Self, RunState), E> {
        for (part, text) in texts.parts() {
            if text.len() > RUN_TEXT_BYTES_MAX {
                let got = text.len();
                return Err(JournalError::TextTooLong { part, got }.into());
            }
        }
        let disk = Arc::new(disk);
        match read_head(&*disk)? {
            Head::Whole => Ok(Self::go_on(disk, texts)?),
            Head::Empty | Head::Begun => Ok(Self::begin(disk, texts, position()?)?),
            Head::Torn(offset) => {
                Self::check_unbegun(&disk, offset, texts, position)?;
                // A killed run may not have come to this.
                disk.sync_data(false).map_err(JournalError::Disk)?;
                write_head(&*disk)?;
                Ok(Self::go_on(disk, texts)?)
            }
        }
    }

    fn go_on(
        disk: Arc<impl StorageBackend>,
        texts: &RunTexts,
    ) -> Result<(Self, RunState), JournalError> {
        // The store mends what a crash has torn, and may find damage or another run's journal only when it has begun to.
        // So that nothing is changed then, it is tried above the disk first.
        Self::doubted(&disk, Doubt::Crash, |disk| Self::attach(disk)?.check(texts))?;
        let journal = Self::attach(disk)?;
        let state = journal.check(texts)?;
        Ok((journal, state))
    }

    /// Checks that nothing but the head is missing from a journal that was just begun. Whatever else has such a head is damaged: it may be
    /// a run that has results in its sink, and would have them twice if it was begun anew.
    fn check_unbegun<E: From<JournalError>>(
        disk: &Arc<impl StorageBackend>,
        offset: u64,
        texts: &RunTexts,
        position: impl FnOnce() -> Result<Vec<u8>, E>,
    ) -> Result<(), E> {
        let damaged = |reason: String| JournalError::Damaged { offset, reason };
        let behind = Self::doubted(disk, Doubt::Crash, |disk| {
            let journal = Self::attach(disk)?;
            let state = journal.check(texts)?;
            Ok((state, journal.early_items()?.len()))
        });
        let (state, early) = match behind {
            Ok(found) => found,
            Err(changed @ JournalError::Changed { .. }) => return Err(changed.into()),
            Err(JournalError::Damaged { .. }) => {
                let reason = "its head is not whole, and behind it is no store that can be read";
                return Err(damaged(reason.to_owned()).into());
            }
            Err(error) => return Err(error.into()),
        };
        let begun = RunState {
            position: state.position.clone(),
            ..RunState::default()
        };
        if state != begun || early > 0 {
            let done = state.watermark;
            let reason = format!(
                "its head is not whole, but behind it is a run of which {done} items are done and {early} more have results"
            );
            return Err(damaged(reason).into());
        }
        match position()? == state.position {
            true => Ok(()),
            false => {
                let reason =
                    "its head is not whole, and the sink is not where it was when this run began";
                Err(damaged(reason.to_owned()).into())
            }
        }
    }

    /// Looks at a disk without changing anything there.
    fn doubted<D: StorageBackend, T>(
        disk: &Arc<D>,
        doubt: Doubt,
        look: impl FnOnce(Arc<Overlay<D>>) -> Result<T, JournalError>,
    ) -> Result<T, JournalError> {
        let length = disk.len().map_err(JournalError::Disk)?;
        if length < 2 * HEAD_BYTES {
            // Without a whole head of its own, the store would begin a new one.
            return Err(JournalError::Damaged {
                offset: length,
                reason: too_short(length),
            });
        }
        let overlay = Overlay::new(disk.clone()).map_err(JournalError::Disk)?;
        doubt_store(&overlay, doubt).map_err(JournalError::Disk)?;
        look(Arc::new(overlay)).map_err(|error| match error {
            JournalError::Damaged { offset, reason } if doubt == Doubt::Crash => {
                let offset = Self::wrong_page(disk).unwrap_or(offset);
                JournalError::Damaged { offset, reason }
            }
            error => error,
        })
    }

    /// Where the last state has a page with a wrong checksum, if it has one. The store reads some pages before it checks them, and stumbles over
    /// where these lead.
    fn wrong_page(disk: &Arc<impl StorageBackend>) -> Option<u64> {
        let last_read = Arc::new(LastRead::default());
        let kept = last_read.clone();
        // Whether it can be mended is not the question.
        let _ = Self::doubted(disk, Doubt::TornState, |disk| {
            Self::attach_as(disk, last_read)
        });
        kept.wrong()
    }

    fn begin(
        disk: Arc<impl StorageBackend>,
        texts: &RunTexts,
        position: Vec<u8>,
    ) -> Result<(Self, RunState), JournalError> {
        write_beginning(&*disk)?;
        let journal = Self::attach(disk.clone())?;
        let state = RunState {
            position,
            ..RunState::default()
        };
        journal.guarded(|database| {
            let transaction = database.begin_write()?;
            {
                let mut run = transaction.open_table(RUN)?;
                for (part, text) in texts.parts() {
                    run.insert(part, text.as_bytes())?;
                }
                run.insert(STATE, &*encode(&state))?;
                transaction.open_table(EARLY)?;
            }
            transaction.commit()?;
            Ok(())
        })?;
        // Last, since a file with a head has all the rest.
        write_head(&*disk)?;
        Ok((journal, state))
    }

    /// Opens the store, which looks through all that it holds: an end that was not clean is mended, damage is told.
    fn attach(disk: Arc<impl StorageBackend>) -> Result<Self, JournalError> {
        Self::attach_as(disk, Arc::new(LastRead::default()))
    }

    fn attach_as(
        disk: Arc<impl StorageBackend>,
        last_read: Arc<LastRead>,
    ) -> Result<Self, JournalError> {
        let behind = Behind::new(SharedDisk(disk), last_read.clone());
        let opened = caught(|| -> Result<Database, StoreError> {
            let is_mended = Arc::new(AtomicBool::new(false));
            let mended = is_mended.clone();
            let looked_at = last_read.clone();
            let mut builder = Builder::new();
            builder.set_cache_size(CACHE_BYTES);
            // The format before this one says of itself that it is clean in the same sync that makes it so. Who loses the power then
            // reads a torn list of free pages.
            builder.create_with_file_format_v3(true);
            builder.set_repair_callback(move |repair| {
                mended.store(true, Ordering::Relaxed);
                if FIRST_IS_WRONG.contains(&repair.progress()) {
                    looked_at.is_wrong();
                }
            });
            let mut database = builder.create_with_backend(behind)?;
            // Where the end was clean, nobody has looked yet. What was torn is mended to the last state that was whole.
            if !is_mended.load(Ordering::Relaxed) {
                database.check_integrity()?;
            }
            Ok(database)
        });
        let database = judged(opened, &last_read)?;
        Ok(Self {
            database: Some(database),
            last_read,
        })
    }

    /// Compares what the run is of with what the journal was begun with.
    fn check(&self, texts: &RunTexts) -> Result<RunState, JournalError> {
        for (part, got) in texts.parts() {
            let expected = self.row(part)?;
            if expected != got.as_bytes() {
                let expected = String::from_utf8_lossy(&expected).into_owned();
                let (got, expected) = match part {
                    PROGRAM => what_differs(got, &expected),
                    _ => (got.to_owned(), expected),
                };
                return Err(JournalError::Changed {
                    part,
                    got,
                    expected,
                });
            }
        }
        decode(&self.row(STATE)?).ok_or_else(|| self.damaged("the state of the run makes no sense"))
    }

    fn row(&self, name: &str) -> Result<Vec<u8>, JournalError> {
        let row = self.guarded(|database| {
            let table = database.begin_read()?.open_table(RUN)?;
            Ok(table.get(name)?.map(|row| row.value().to_vec()))
        })?;
        row.ok_or_else(|| self.damaged("there is no state of a run"))
    }

    /// The items with early results, in order.
    pub(crate) fn early_items(&self) -> Result<Vec<(u64, bool)>, JournalError> {
        self.guarded(|database| {
            let table = database.begin_read()?.open_table(EARLY)?;
            let mut items = Vec::new();
            for row in table.iter()? {
                let (index, row) = row?;
                items.push((index.value(), row.value().first() == Some(&SKIPPED)));
            }
            Ok(items)
        })
    }

    /// One early result.
    pub(crate) fn early_result(&self, index: u64) -> Result<EarlyResult, JournalError> {
        let row = self.guarded(|database| {
            let table = database.begin_read()?.open_table(EARLY)?;
            Ok(table.get(index)?.map(|row| row.value().to_vec()))
        })?;
        row.and_then(decode_early)
            .ok_or_else(|| self.damaged("an early result is gone"))
    }

    /// Makes a group durable. The sink has been synced up to its position.
    pub(crate) fn commit(&self, group: &CommitGroup<'_>) -> Result<(), JournalError> {
        let got = group.state.position.len();
        if got > POSITION_BYTES_MAX {
            return Err(JournalError::PositionTooLong { got });
        }
        self.guarded(|database| {
            let transaction = database.begin_write()?;
            {
                let mut run = transaction.open_table(RUN)?;
                run.insert(STATE, &*encode(group.state))?;
                if !group.added.is_empty() || !group.removed.is_empty() {
                    let mut early = transaction.open_table(EARLY)?;
                    for index in group.removed {
                        early.remove(index)?;
                    }
                    for (index, result) in group.added {
                        let mut row = Vec::with_capacity(result.record.len() + 1);
                        row.push(flags(result));
                        row.extend_from_slice(&result.record);
                        early.insert(index, &*row)?;
                    }
                }
            }
            transaction.commit()?;
            Ok(())
        })
    }

    /// Takes an early result away: its item isn't done.
    pub(crate) fn discard(&self, index: u64) -> Result<(), JournalError> {
        self.guarded(|database| {
            let transaction = database.begin_write()?;
            transaction.open_table(EARLY)?.remove(index)?;
            transaction.commit()?;
            Ok(())
        })
    }

    fn guarded<T>(
        &self,
        work: impl FnOnce(&Database) -> Result<T, StoreError>,
    ) -> Result<T, JournalError> {
        let Some(database) = &self.database else {
            return Err(self.damaged("it is closed"));
        };
        let done = caught(|| work(database));
        judged(done, &self.last_read)
    }

    fn damaged(&self, reason: &str) -> JournalError {
        JournalError::Damaged {
            offset: self.last_read.last(),
            reason: reason.to_owned(),
        }
    }
}

/// What the store says, on the heap because it is large.
struct StoreError(Box<redb::Error>);

impl<E: Into<redb::Error>> From<E> for StoreError {
    fn from(error: E) -> Self {
        Self(Box::new(error.into()))
    }
}

fn too_short(length: u64) -> String {
    format!("more should be there than the {length} bytes of the file")
}

/// Turns what the store says into our words. The store panics over pages that it would never have written.
fn judged<T>(
    done: Result<Result<T, StoreError>, Box<dyn Any + Send>>,
    last_read: &LastRead,
) -> Result<T, JournalError> {
    let too_short = || too_short(last_read.length());
    let reason = match done {
        Ok(Ok(value)) => return Ok(value),
        Ok(Err(StoreError(error))) => match *error {
            redb::Error::Io(error) if error.kind() == io::ErrorKind::UnexpectedEof => too_short(),
            redb::Error::Io(error) if error.kind() == io::ErrorKind::InvalidData => {
                "the store's head is not what it should be".to_owned()
            }
            redb::Error::Io(error) => return Err(JournalError::Disk(error)),
            redb::Error::PreviousIo => {
                let text = "the disk has refused before; start the run again";
                return Err(JournalError::Disk(io::Error::other(text)));
            }
            redb::Error::Corrupted(_) => "a checksum is not that of what stands there".to_owned(),
            redb::Error::UpgradeRequired(_) => "the store is of an unknown format".to_owned(),
            redb::Error::TableDoesNotExist(_)
            | redb::Error::TableIsMultimap(_)
            | redb::Error::TableIsNotMultimap(_)
            | redb::Error::TableTypeMismatch { .. }
            | redb::Error::TypeDefinitionChanged { .. } => {
                "a table of a run is not there, or is of another kind".to_owned()
            }
            _ => "the store can't be read".to_owned(),
        },
        Err(panic) if is_too_short(&*panic) => too_short(),
        Err(_) => "a page that makes no sense".to_owned(),
    };
    Err(JournalError::Damaged {
        offset: last_read.last(),
        reason,
    })
}

/// Flags in front of an early result.
const SKIPPED: u8 = 1;
const RESTRICTED: u8 = 2;

/// What the texts of two programs don't share. Each is a list: the program, then its functions and their digests.
fn what_differs(got: &str, expected: &str) -> (String, String) {
    let without = |text: &str, other: &str| {
        let shared: BTreeSet<&str> = other.split(BETWEEN_PARTS).collect();
        let own: Vec<&str> = text
            .split(BETWEEN_PARTS)
            .filter(|part| !shared.contains(part))
            .collect();
        own.join(BETWEEN_PARTS)
    };
    let differ = (without(got, expected), without(expected, got));
    match &differ {
        // The same parts in another order, say.
        (own, other) if own.is_empty() || other.is_empty() => (got.to_owned(), expected.to_owned()),
        _ => differ,
    }
}

fn flags(result: &EarlyResult) -> u8 {
    match (result.is_skipped, result.is_restricted) {
        (true, _) => SKIPPED,
        (false, true) => RESTRICTED,
        (false, false) => 0,
    }
}

fn decode_early(mut row: Vec<u8>) -> Option<EarlyResult> {
    let flags = *row.first()?;
    row.remove(0);
    Some(EarlyResult {
        is_skipped: flags == SKIPPED,
        // Whatever else stands there was not written by us, and is trusted least.
        is_restricted: flags != 0,
        record: row,
    })
}

fn encode(state: &RunState) -> Vec<u8> {
    let mut row = state.watermark.to_le_bytes().to_vec();
    row.extend_from_slice(&state.results.to_le_bytes());
    row.extend_from_slice(&state.skipped.to_le_bytes());
    row.push(u8::from(state.is_finished));
    row.extend_from_slice(&state.position);
    row
}

fn decode(row: &[u8]) -> Option<RunState> {
    let (watermark, row) = row.split_first_chunk()?;
    let (results, row) = row.split_first_chunk()?;
    let (skipped, row) = row.split_first_chunk()?;
    let (finished, position) = row.split_first()?;
    Some(RunState {
        watermark: u64::from_le_bytes(*watermark),
        results: u64::from_le_bytes(*results),
        skipped: u64::from_le_bytes(*skipped),
        is_finished: *finished != 0,
        position: position.to_vec(),
    })
}
