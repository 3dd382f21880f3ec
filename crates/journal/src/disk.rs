//! The disk as the store sees it: behind a head of our own, which says what the file is.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use redb::StorageBackend;

use crate::JournalError;

/// The head's length: a page, so that the store's pages are whole ones of the disk.
pub(crate) const HEAD_BYTES: u64 = 4096;

/// Where in the file the flags of the store are, of its format 3.
const STORE_FLAGS_AT: u64 = HEAD_BYTES + 9;
/// It was not closed.
const WAS_NOT_CLOSED: u8 = 2;
/// All of its last state was on the disk before the head said so.
const STATE_IS_WHOLE: u8 = 4;

/// Changes whenever the tables or their contents do.
const FORMAT: u32 = 2;

/// How the file begins. With a byte that is no text, so that no text is taken for it.
const MAGIC: &[u8] = b"exoskel run journal\x1a\n";

/// How it begins before that, until all that a journal has is on the disk. Such a file is of a run that has no results, whatever stands in it.
const BEGUN_MAGIC: &[u8] = b"exoskel run opening\x1a\n";

/// What the beginning of a file says.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Head {
    /// It is a journal.
    Whole,
    /// There is nothing.
    Empty,
    /// A journal was to be begun here, and a run ended before it was.
    Begun,
    /// Zeros stand in the place of some of its bytes, the first of them here. A run may have ended before the head was written, or the head is damaged.
    Torn(u64),
}

/// What was read of a disk last: if that was damaged, it was there.
#[derive(Debug, Default)]
pub(crate) struct LastRead {
    offset: AtomicU64,
    /// Where the store has found a checksum of its last state to be wrong, before it went on with the state before.
    wrong: AtomicU64,
    /// How long the file is.
    length: AtomicU64,
}

impl LastRead {
    /// What was read last is wrong, whatever is read behind it. The first such place counts.
    pub(crate) fn is_wrong(&self) {
        if self.wrong.load(Ordering::Relaxed) == 0 {
            self.wrong.store(self.last(), Ordering::Relaxed);
        }
    }

    /// Where something was found to be wrong.
    pub(crate) fn wrong(&self) -> Option<u64> {
        Some(self.wrong.load(Ordering::Relaxed)).filter(|offset| *offset > 0)
    }

    /// What was read last.
    pub(crate) fn last(&self) -> u64 {
        self.offset.load(Ordering::Relaxed)
    }

    /// How long the file is.
    pub(crate) fn length(&self) -> u64 {
        self.length.load(Ordering::Relaxed)
    }
}

/// How the store is to look at its own head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Doubt {
    /// As after a crash: it asks whether the last state there has its checksum. It takes the head of a journal that was closed as it is.
    Crash,
    /// As after a crash before the last state was known to be whole: it checks all pages of that before it reads them.
    TornState,
}

/// Has the store look at its own head with doubt.
///
/// # Errors
/// If the disk can't be read or written.
pub(crate) fn doubt_store(disk: &impl StorageBackend, doubt: Doubt) -> io::Result<()> {
    let flags = disk.read(STORE_FLAGS_AT, 1)?;
    let known = match doubt {
        Doubt::Crash => u8::MAX,
        Doubt::TornState => !STATE_IS_WHOLE,
    };
    let doubted: Vec<u8> = flags
        .iter()
        .map(|flags| (flags & known) | WAS_NOT_CLOSED)
        .collect();
    disk.write(STORE_FLAGS_AT, &doubted)
}

/// A disk without the head.
#[derive(Debug)]
pub(crate) struct Behind<D> {
    disk: D,
    last_read: Arc<LastRead>,
}

impl<D: StorageBackend> Behind<D> {
    /// Keeps what was read last in `last_read`.
    pub(crate) fn new(disk: D, last_read: Arc<LastRead>) -> Self {
        Self { disk, last_read }
    }
}

impl<D: StorageBackend> StorageBackend for Behind<D> {
    fn len(&self) -> io::Result<u64> {
        Ok(self.disk.len()?.saturating_sub(HEAD_BYTES))
    }

    fn read(&self, offset: u64, len: usize) -> io::Result<Vec<u8>> {
        let offset = offset.saturating_add(HEAD_BYTES);
        // A length that a damaged page states is no reason to ask for so much memory, and the damage is in that page.
        let end = offset.saturating_add(len as u64);
        let length = self.disk.len()?;
        self.last_read.length.store(length, Ordering::Relaxed);
        if end > length {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.last_read.offset.store(offset, Ordering::Relaxed);
        self.disk.read(offset, len)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let length = len.saturating_add(HEAD_BYTES);
        let grows = length > self.disk.len()?;
        self.disk.set_len(length)?;
        // The store states its length in a page that it writes next. A disk that keeps this page and not the length has a file that is
        // shorter than it says, which the store never opens again.
        match grows {
            true => self.disk.sync_data(false),
            false => Ok(()),
        }
    }

    fn sync_data(&self, eventual: bool) -> io::Result<()> {
        self.disk.sync_data(eventual)
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.disk.write(offset.saturating_add(HEAD_BYTES), data)
    }
}

/// A disk that several have, one after the other.
#[derive(Debug)]
pub(crate) struct SharedDisk<D>(pub(crate) Arc<D>);

impl<D: StorageBackend> StorageBackend for SharedDisk<D> {
    fn len(&self) -> io::Result<u64> {
        self.0.len()
    }

    fn read(&self, offset: u64, len: usize) -> io::Result<Vec<u8>> {
        self.0.read(offset, len)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.0.set_len(len)
    }

    fn sync_data(&self, eventual: bool) -> io::Result<()> {
        self.0.sync_data(eventual)
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.0.write(offset, data)
    }
}

/// The head of a journal, which is written when the first state is on the disk.
fn head() -> Vec<u8> {
    page(MAGIC)
}

fn page(magic: &[u8]) -> Vec<u8> {
    let mut head = magic.to_vec();
    head.extend_from_slice(&FORMAT.to_le_bytes());
    head.resize(HEAD_BYTES as usize, 0);
    head
}

/// Says, durably, that all which comes behind is of a journal that is not begun yet.
pub(crate) fn write_beginning(disk: &impl StorageBackend) -> Result<(), JournalError> {
    disk.set_len(0).map_err(JournalError::Disk)?;
    // The file gets longer by that: a program that is killed leaves none or all of it.
    write(disk, &page(BEGUN_MAGIC))
}

/// Writes the head, durably.
pub(crate) fn write_head(disk: &impl StorageBackend) -> Result<(), JournalError> {
    write(disk, &head())
}

fn write(disk: &impl StorageBackend, head: &[u8]) -> Result<(), JournalError> {
    let written = disk.write(0, head);
    written
        .and_then(|()| disk.sync_data(false))
        .map_err(JournalError::Disk)
}

/// Reads the head.
///
/// # Errors
/// If it is not ours.
pub(crate) fn read_head(disk: &impl StorageBackend) -> Result<Head, JournalError> {
    let length = disk.len().map_err(JournalError::Disk)?;
    let bytes = length.min(HEAD_BYTES) as usize;
    let got = disk.read(0, bytes).map_err(JournalError::Disk)?;
    let expected = head();
    if got == expected {
        return Ok(Head::Whole);
    }
    if length == 0 {
        return Ok(Head::Empty);
    }
    if got == page(BEGUN_MAGIC) {
        return Ok(Head::Begun);
    }
    // A write that was torn, or never came.
    let torn = |(got, expected): (&u8, &u8)| got == expected || *got == 0;
    let differs = |(got, expected): (&u8, &u8)| got != expected;
    let offset = got.iter().zip(&expected).position(differs);
    let offset = offset.unwrap_or(got.len()) as u64;
    if got.iter().zip(&expected).all(torn) {
        return Ok(Head::Torn(offset));
    }
    let of_beginning = page(BEGUN_MAGIC);
    let is_torn_beginning = got.iter().zip(&of_beginning).all(torn);
    if !is_torn_beginning && !got.starts_with(&MAGIC[..7]) {
        return Err(JournalError::NotAJournal);
    }
    if got.starts_with(MAGIC)
        && let Some(format) = got.get(MAGIC.len()..MAGIC.len() + 4)
    {
        let format = u32::from_le_bytes([format[0], format[1], format[2], format[3]]);
        if format != FORMAT {
            return Err(JournalError::Version {
                got: format,
                expected: FORMAT,
            });
        }
    }
    Err(JournalError::Damaged {
        offset,
        reason: "the head is not what it should be".to_owned(),
    })
}
