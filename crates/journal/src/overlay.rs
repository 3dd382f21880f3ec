//! A disk that is looked at without being changed.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use redb::StorageBackend;

/// A disk below, and what would have been written to it.
#[derive(Debug)]
pub(crate) struct Overlay<D> {
    below: Arc<D>,
    changes: Mutex<Changes>,
}

#[derive(Debug)]
struct Changes {
    length: u64,
    /// By offset; none overlaps another one.
    writes: BTreeMap<u64, Vec<u8>>,
}

impl<D: StorageBackend> Overlay<D> {
    pub(crate) fn new(below: Arc<D>) -> io::Result<Self> {
        let length = below.len()?;
        Ok(Self {
            below,
            changes: Mutex::new(Changes {
                length,
                writes: BTreeMap::new(),
            }),
        })
    }

    fn changes(&self) -> MutexGuard<'_, Changes> {
        self.changes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Changes {
    /// Removes what is written from `start` to `end`, and keeps what sticks out on both sides.
    fn cut(&mut self, start: u64, end: u64) {
        let before = self.writes.range(..start).next_back();
        if let Some((&offset, data)) = before
            && offset + data.len() as u64 > start
        {
            let mut data = self.writes.remove(&offset).unwrap_or_default();
            let rest = data.split_off((start - offset) as usize);
            self.writes.insert(offset, data);
            self.writes.insert(start, rest);
        }
        let inside: Vec<u64> = self.writes.range(start..end).map(|(at, _)| *at).collect();
        for offset in inside {
            let mut data = self.writes.remove(&offset).unwrap_or_default();
            let covered = end - offset;
            if (data.len() as u64) > covered {
                self.writes.insert(end, data.split_off(covered as usize));
            }
        }
    }
}

impl<D: StorageBackend> StorageBackend for Overlay<D> {
    fn len(&self) -> io::Result<u64> {
        Ok(self.changes().length)
    }

    fn read(&self, offset: u64, len: usize) -> io::Result<Vec<u8>> {
        let changes = self.changes();
        let end = offset.saturating_add(len as u64);
        if end > changes.length {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let below = self.below.len()?.clamp(offset, end) - offset;
        let mut read = self.below.read(offset, below as usize)?;
        read.resize(len, 0);
        for (&at, data) in changes.writes.range(..end) {
            let from = at.max(offset);
            let to = (at + data.len() as u64).min(end);
            if from < to {
                let part = &data[(from - at) as usize..(to - at) as usize];
                read[(from - offset) as usize..(to - offset) as usize].copy_from_slice(part);
            }
        }
        Ok(read)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let mut changes = self.changes();
        changes.cut(len, u64::MAX);
        changes.length = len;
        Ok(())
    }

    fn sync_data(&self, _eventual: bool) -> io::Result<()> {
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let mut changes = self.changes();
        let end = offset + data.len() as u64;
        changes.cut(offset, end);
        changes.writes.insert(offset, data.to_vec());
        changes.length = changes.length.max(end);
        Ok(())
    }
}
