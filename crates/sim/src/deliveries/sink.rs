//! A sink that appends to a file.

use std::io;

use exoskel_journal::{EarlyResult, JournalError, ResultSink, StorageBackend};

use super::{BrokenDelivery, is_restricted};
use crate::faulty_disk::Disk;

/// So many bytes are kept in memory before they are handed to the disk.
const BUFFER_BYTES: usize = 700;

/// Appends each result with its length.
#[derive(Debug)]
pub(crate) struct FileSink {
    disk: Disk,
    end: u64,
    buffer: Vec<u8>,
    broken: Option<BrokenDelivery>,
    /// The last result, in a sink that is too late.
    late: Option<Vec<u8>>,
}

impl FileSink {
    pub(crate) fn new(disk: Disk, broken: Option<BrokenDelivery>) -> Self {
        Self {
            disk,
            end: 0,
            buffer: Vec::new(),
            broken,
            late: None,
        }
    }

    pub(crate) fn cut_back(&mut self, position: &[u8]) -> Result<(), JournalError> {
        let position = position.try_into().map(u64::from_le_bytes);
        self.end = position.map_err(|_| failed("no position"))?;
        let length = self.disk.len().map_err(JournalError::Disk)?;
        if length < self.end {
            return Err(failed("the sink is shorter than its position"));
        }
        if self.broken == Some(BrokenDelivery::NotCutBack) {
            self.end = length;
            return Ok(());
        }
        self.disk.set_len(self.end).map_err(JournalError::Disk)
    }

    fn flush(&mut self) -> Result<(), JournalError> {
        let written = self.disk.write(self.end, &self.buffer);
        written.map_err(JournalError::Disk)?;
        self.end += self.buffer.len() as u64;
        self.buffer.clear();
        Ok(())
    }
}

/// Nothing of the journal's is wrong.
pub(crate) fn failed(what: &str) -> JournalError {
    JournalError::Disk(io::Error::other(what.to_owned()))
}

/// A result as it stands in the file.
pub(crate) fn framed(result: &[u8]) -> Vec<u8> {
    let mut framed = (result.len() as u32).to_le_bytes().to_vec();
    framed.extend_from_slice(result);
    framed
}

impl ResultSink for FileSink {
    type Value = Vec<u8>;
    type Error = JournalError;

    fn write(&mut self, _index: u64, value: Vec<u8>) -> Result<(), JournalError> {
        let mut framed = framed(&value);
        if self.broken == Some(BrokenDelivery::WatermarkTooEarly) {
            match self.late.replace(framed) {
                Some(earlier) => framed = earlier,
                None => return Ok(()),
            }
        }
        self.buffer.extend_from_slice(&framed);
        match self.buffer.len() > BUFFER_BYTES {
            true => self.flush(),
            false => Ok(()),
        }
    }

    fn read_early(
        &mut self,
        index: u64,
        early: EarlyResult,
    ) -> Result<Option<Vec<u8>>, JournalError> {
        match early.is_restricted == is_restricted(index) {
            true => Ok(Some(early.record)),
            false => Err(failed("an early result has changed whom it is trusted by")),
        }
    }

    fn sync(&mut self) -> Result<Vec<u8>, JournalError> {
        self.flush()?;
        if self.broken != Some(BrokenDelivery::CommitBeforeSync) {
            self.disk.sync_data(false).map_err(JournalError::Disk)?;
        }
        Ok(self.end.to_le_bytes().to_vec())
    }
}
