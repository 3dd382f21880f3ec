//! The disk as the store sees it: behind a head of our own, which says what the file is.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use redb::StorageBackend;

use crate::JournalError;

/// The head's length: a page, so that the store's pages are whole ones of the disk.
pub(crate) const HEAD_BYTES: u64 = 4096;

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

/// A disk without the head.
#[derive(Debug)]
pub(crate) struct Behind<D> {
    disk: D,
    last_read: Arc<AtomicU64>,
}

impl<D: StorageBackend> Behind<D> {
    /// Keeps in `last_read` where on the disk was read last: if that was damaged, it was there.
    pub(crate) fn new(disk: D, last_read: Arc<AtomicU64>) -> Self {
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
        if end > self.disk.len()? {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.last_read.store(offset, Ordering::Relaxed);
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
