//! A sink that folds what comes, and writes what it has folded at the end.

use exoskel_journal::{EarlyResult, JournalError, ResultSink};

use super::BrokenDelivery;
use super::sink::{FileSink, failed};

/// What is folded into what: associative, and not commutative. A value is read as a number, in the order of its bytes.
pub(super) fn folded(into: Option<u64>, value: &[u8]) -> u64 {
    let number = value.iter().fold(7, |number: u64, byte| {
        number.wrapping_mul(257).wrapping_add(u64::from(*byte))
    });
    joined(into, number | 1)
}

/// Products of matrices, of which one number has two.
fn joined(into: Option<u64>, number: u64) -> u64 {
    let Some(into) = into else {
        return number;
    };
    let parts = |number: u64| ((number >> 32) as u32, number as u32 | 1);
    let ((first, scale), (second, more)) = (parts(into), parts(number));
    let sum = first.wrapping_add(scale.wrapping_mul(second));
    u64::from(sum) << 32 | u64::from(scale.wrapping_mul(more))
}

/// Folds values, each of which is a folded slice.
#[derive(Debug)]
pub(super) struct FoldSink {
    file: FileSink,
    /// Where the file is until the end.
    place: Vec<u8>,
    folded: Option<u64>,
    before_last: Option<u64>,
    has_ended: bool,
    broken: Option<BrokenDelivery>,
}

impl FoldSink {
    /// Goes on from a position.
    pub(super) fn new(
        file: FileSink,
        position: &[u8],
        broken: Option<BrokenDelivery>,
    ) -> Result<Self, JournalError> {
        let (place, kept) = position.split_at_checked(8).unwrap_or_default();
        let folded = match kept {
            [] => None,
            kept => {
                let kept = kept.try_into().map_err(|_| failed("no fold"))?;
                Some(u64::from_le_bytes(kept))
            }
        };
        Ok(Self {
            file,
            place: place.to_vec(),
            folded,
            before_last: folded,
            has_ended: false,
            broken,
        })
    }

    /// Writes what was folded.
    pub(super) fn end(&mut self) -> Result<(), JournalError> {
        self.has_ended = true;
        let folded = self.folded.unwrap_or_default();
        self.file.write(0, folded.to_le_bytes().to_vec())
    }
}

impl ResultSink for FoldSink {
    type Value = Vec<u8>;
    type Error = JournalError;

    fn write(&mut self, _index: u64, value: Vec<u8>) -> Result<(), JournalError> {
        let number = value.try_into().map_err(|_| failed("no number"))?;
        self.before_last = self.folded;
        self.folded = Some(joined(self.folded, u64::from_le_bytes(number)));
        Ok(())
    }

    fn read_early(&mut self, _: u64, _: EarlyResult) -> Result<Option<Vec<u8>>, JournalError> {
        Err(failed("nothing that is folded comes early"))
    }

    fn sync(&mut self) -> Result<Vec<u8>, JournalError> {
        if self.has_ended {
            return self.file.sync();
        }
        let folded = match self.broken {
            Some(BrokenDelivery::FoldTooLate) => self.before_last,
            _ => self.folded,
        };
        let mut position = self.place.clone();
        position.extend(folded.iter().flat_map(|folded| folded.to_le_bytes()));
        Ok(position)
    }
}
