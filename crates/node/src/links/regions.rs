//! Parts of arrays that are read and written over a link: what is asked, and whether it lies within the array.

use bytes::Bytes;
use thiserror::Error;

use super::marked::{HeadReader, HeadWriter};

/// Bytes that one message of a region carries at most; larger parts travel in several.
pub const REGION_PIECE_BYTES_MAX: u64 = 1 << 20;

/// Dimensions of an array, at most.
pub const REGION_DIMENSIONS_MAX: usize = 32;

/// Levels of steps in a part of an array that can't be joined, at most.
pub const REGION_LEVELS_MAX: usize = 8;

/// Bytes of a type's text, at most.
const TYPE_BYTES_MAX: usize = 100;

/// What a region holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegionLayout {
    /// The elements' type, as NumPy writes it: `<f8`.
    pub type_text: String,
    /// Bytes of one element.
    pub item_bytes: u64,
    /// Elements in each dimension, in row-major order.
    pub shape: Vec<u64>,
}

impl RegionLayout {
    /// All bytes together, if there can be so many.
    #[must_use]
    pub fn bytes(&self) -> Option<u64> {
        let mut shape = self.shape.iter();
        shape.try_fold(self.item_bytes, |bytes, &count| bytes.checked_mul(count))
    }

    /// As bytes.
    #[must_use]
    pub fn head(&self) -> Bytes {
        let head = HeadWriter::new(0)
            .text(&self.type_text, TYPE_BYTES_MAX)
            .number(self.item_bytes)
            .byte(self.shape.len() as u8);
        let numbers = self.shape.iter();
        numbers.fold(head, |head, &count| head.number(count)).head()
    }

    /// Reads one, if that is what the bytes are.
    #[must_use]
    pub fn read(head: &[u8]) -> Option<Self> {
        let mut reader = HeadReader::new(head)?;
        if reader.byte()? != 0 {
            return None;
        }
        let (type_text, item_bytes) = (reader.text(TYPE_BYTES_MAX)?, reader.number()?);
        let dimensions = usize::from(reader.byte()?);
        if dimensions > REGION_DIMENSIONS_MAX {
            return None;
        }
        let shape = (0..dimensions)
            .map(|_| reader.number())
            .collect::<Option<_>>()?;
        let layout = Self {
            type_text,
            item_bytes,
            shape,
        };
        (reader.is_at_end() && layout.bytes().is_some()).then_some(layout)
    }
}

/// Runs of bytes within an array: a run, and how often it is repeated at which distance, the outermost level first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArrayPart {
    offset: u64,
    run_bytes: u64,
    /// Each a count and the bytes from one to the next.
    levels: Vec<(u64, u64)>,
}

/// Why a part of an array can't be read or written.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum PartError {
    /// It lies outside.
    #[error("got a part that ends at byte {end}, expected at most {bytes}, which the region has")]
    Outside {
        /// Where it ends, or the largest number where that can't be said.
        end: u64,
        /// What there is.
        bytes: u64,
    },
    /// It has some bytes more than once.
    #[error("got a part with steps that overlap, expected every byte once")]
    Overlaps,
    /// Its steps can't be joined to few levels.
    #[error(
        "got a part with {0} levels of steps, expected at most {REGION_LEVELS_MAX}: take it in several parts"
    )]
    TooManyLevels(usize),
    /// It is larger than one message carries.
    #[error("got a part of {0} bytes in one message, expected 1 to {REGION_PIECE_BYTES_MAX}")]
    Size(u64),
    /// The message has other bytes than it says.
    #[error("got {got} bytes for a part of {expected}")]
    OtherSize {
        /// What there is.
        got: u64,
        /// What the part has.
        expected: u64,
    },
}

impl ArrayPart {
    /// The part that begins at this byte and has these counts and distances of elements, the outermost first.
    ///
    /// # Errors
    /// [`PartError::TooManyLevels`].
    pub fn new(offset: u64, item_bytes: u64, steps: &[(u64, u64)]) -> Result<Self, PartError> {
        let mut run_bytes = item_bytes;
        let mut levels: Vec<(u64, u64)> = Vec::new();
        for &(count, distance) in steps.iter().rev() {
            let inner = levels.last_mut();
            match inner {
                None if distance == run_bytes || count == 1 => {
                    run_bytes = run_bytes.saturating_mul(count);
                }
                _ if count == 1 => {}
                Some((inner, between)) if distance == inner.saturating_mul(*between) => {
                    *inner = inner.saturating_mul(count);
                }
                _ => levels.push((count, distance)),
            }
        }
        if levels.len() > REGION_LEVELS_MAX {
            return Err(PartError::TooManyLevels(levels.len()));
        }
        levels.reverse();
        Ok(Self {
            offset,
            run_bytes,
            levels,
        })
    }

    /// Its bytes, packed.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        let levels = self.levels.iter();
        levels.fold(self.run_bytes, |bytes, (count, _)| {
            bytes.saturating_mul(*count)
        })
    }

    /// Holds it to an array of so many bytes.
    ///
    /// # Errors
    /// [`PartError::Outside`], [`PartError::Overlaps`].
    pub fn check(&self, bytes: u64) -> Result<(), PartError> {
        if self.bytes() == 0 {
            return Ok(());
        }
        let last = self
            .levels
            .iter()
            .try_fold(0_u64, |last, &(count, distance)| {
                last.checked_add((count - 1).checked_mul(distance)?)
            });
        let end = last
            .and_then(|last| last.checked_add(self.offset))
            .and_then(|last| last.checked_add(self.run_bytes))
            .unwrap_or(u64::MAX);
        if end > bytes || self.bytes() == u64::MAX {
            return Err(PartError::Outside { end, bytes });
        }
        if self.overlaps() {
            return Err(PartError::Overlaps);
        }
        Ok(())
    }

    /// Whether it has some bytes more than once. None of its numbers may be too large to be added.
    fn overlaps(&self) -> bool {
        let mut levels = self.levels.clone();
        levels.sort_unstable_by_key(|&(_, distance)| distance);
        let mut extent = self.run_bytes;
        levels.retain(|&(count, _)| count > 1);
        levels.into_iter().any(|(count, distance)| {
            let overlaps = distance < extent;
            extent += (count - 1) * distance;
            overlaps
        })
    }

    /// Calls `each` with the offset and the length of every run, in order.
    pub fn runs(&self, mut each: impl FnMut(u64, u64)) {
        if self.bytes() == 0 {
            return;
        }
        let mut places = vec![0_u64; self.levels.len()];
        let mut offset = self.offset;
        loop {
            each(offset, self.run_bytes);
            let mut level = self.levels.len();
            loop {
                let Some(inner) = level.checked_sub(1) else {
                    return;
                };
                level = inner;
                let (count, distance) = self.levels[level];
                places[level] += 1;
                if places[level] < count {
                    offset += distance;
                    break;
                }
                offset -= distance * (count - 1);
                places[level] = 0;
            }
        }
    }

    /// Cuts it into parts of at most so many bytes, in order.
    #[must_use]
    pub fn pieces(&self, bytes_max: u64) -> Vec<Self> {
        let mut pieces = Vec::new();
        self.cut(bytes_max.max(1), &mut pieces);
        pieces
    }

    fn cut(&self, bytes_max: u64, pieces: &mut Vec<Self>) {
        let bytes = self.bytes();
        if bytes == 0 {
            return;
        }
        if bytes <= bytes_max {
            return pieces.push(self.clone());
        }
        let Some((&(count, distance), inner)) = self.levels.split_first() else {
            let mut done = 0;
            while done < self.run_bytes {
                let run_bytes = bytes_max.min(self.run_bytes - done);
                pieces.push(Self {
                    offset: self.offset + done,
                    run_bytes,
                    levels: Vec::new(),
                });
                done += run_bytes;
            }
            return;
        };
        let at_once = (bytes_max / (bytes / count)).max(1);
        let mut done = 0;
        while done < count {
            let now = at_once.min(count - done);
            let mut levels = inner.to_vec();
            if now > 1 {
                levels.insert(0, (now, distance));
            }
            let piece = Self {
                offset: self.offset + done * distance,
                run_bytes: self.run_bytes,
                levels,
            };
            piece.cut(bytes_max, pieces);
            done += now;
        }
    }
}

/// What is asked of a region.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RegionMessage {
    /// What it holds.
    Describe,
    /// To read this part, which is the answer's only bulk part.
    Get(ArrayPart),
    /// To write this part, which is the message's only bulk part.
    Put(ArrayPart),
}

impl RegionMessage {
    /// The head of the message.
    #[must_use]
    pub fn head(&self) -> Bytes {
        let (operation, part) = match self {
            Self::Describe => return HeadWriter::new(1).head(),
            Self::Get(part) => (2, part),
            Self::Put(part) => (3, part),
        };
        let head = HeadWriter::new(operation)
            .number(part.offset)
            .number(part.run_bytes)
            .byte(part.levels.len() as u8);
        let levels = part.levels.iter();
        levels
            .fold(head, |head, (count, distance)| {
                head.number(*count).number(*distance)
            })
            .head()
    }

    /// The message, if that is what the bytes are.
    #[must_use]
    pub fn read(head: &[u8]) -> Option<Self> {
        let mut reader = HeadReader::new(head)?;
        let operation = reader.byte()?;
        if operation == 1 {
            return reader.is_at_end().then_some(Self::Describe);
        }
        let (offset, run_bytes) = (reader.number()?, reader.number()?);
        let levels = usize::from(reader.byte()?);
        if levels > REGION_LEVELS_MAX {
            return None;
        }
        let level = |_| Some((reader.number()?, reader.number()?));
        let part = ArrayPart {
            offset,
            run_bytes,
            levels: (0..levels).map(level).collect::<Option<_>>()?,
        };
        let message = match operation {
            2 => Self::Get(part),
            3 => Self::Put(part),
            _ => return None,
        };
        reader.is_at_end().then_some(message)
    }
}

#[cfg(test)]
mod tests {
    use exoskel_determinism::SplitMix64;

    use super::*;

    fn offsets(part: &ArrayPart) -> Vec<u64> {
        let mut offsets = Vec::new();
        part.runs(|offset, length| offsets.extend(offset..offset + length));
        offsets
    }

    #[test]
    fn a_part_has_the_bytes_of_its_elements_and_so_have_its_pieces() {
        let mut random = SplitMix64::new(3);
        for _ in 0..2000 {
            let item = 1 + random.below(8);
            let shape: Vec<u64> = (0..random.below(5)).map(|_| 1 + random.below(6)).collect();
            let mut distance = item;
            let mut steps = Vec::new();
            let mut expected = vec![0];
            let mut offset = 0;
            for &length in shape.iter().rev() {
                let (first, step) = (random.below(length), 1 + random.below(3));
                let count = (length - first).div_ceil(step);
                steps.insert(0, (count, step * distance));
                offset += first * distance;
                distance *= length;
            }
            for &(count, between) in &steps {
                let one = |start: &u64| (0..count).map(|n| start + n * between).collect::<Vec<_>>();
                expected = expected.iter().flat_map(one).collect();
            }
            let whole: Vec<u64> = expected
                .iter()
                .flat_map(|start| offset + start..offset + start + item)
                .collect();
            let part = ArrayPart::new(offset, item, &steps).expect("few levels");
            assert_eq!(part.check(distance), Ok(()));
            assert_eq!(offsets(&part), whole);
            assert_eq!(part.bytes(), whole.len() as u64);
            let end = whole.iter().max().expect("there is an element") + 1;
            assert_eq!(part.check(end), Ok(()));
            assert!(part.check(end - 1).is_err());
            let bytes_max = 1 + random.below(64);
            let pieces = part.pieces(bytes_max);
            assert!(pieces.iter().all(|piece| piece.bytes() <= bytes_max));
            assert_eq!(pieces.iter().flat_map(offsets).collect::<Vec<_>>(), whole);
            for message in [RegionMessage::Get(part.clone()), RegionMessage::Put(part)] {
                assert_eq!(RegionMessage::read(&message.head()), Some(message));
            }
        }
    }

    #[test]
    fn whole_rows_are_one_run() {
        let part = ArrayPart::new(800, 8, &[(10, 800), (100, 8)]).expect("few levels");
        assert_eq!((part.run_bytes, part.levels.len()), (8000, 0));
        assert_eq!(part.pieces(3000).len(), 3);
    }

    #[test]
    fn what_a_hostile_peer_asks_for_lies_outside() {
        let part = |offset, run_bytes, levels: &[(u64, u64)]| ArrayPart {
            offset,
            run_bytes,
            levels: levels.to_vec(),
        };
        let outside = [
            part(0, 101, &[]),
            part(100, 1, &[]),
            part(u64::MAX, 1, &[]),
            part(1, u64::MAX, &[]),
            part(0, 1, &[(2, 100)]),
            part(0, 1, &[(2, u64::MAX)]),
            part(0, 1, &[(u64::MAX, u64::MAX)]),
            part(0, 1, &[(u64::MAX, 0)]),
            part(0, 1, &[(1 << 32, 0), (1 << 32, 0)]),
            part(50, 1, &[(2, 1 << 63), (3, 1 << 63)]),
        ];
        for part in outside {
            assert!(part.check(100).is_err(), "{part:?}");
        }
        // A short message with little to be fetched and much to be done.
        let overlapping = [
            part(0, 1, &[(1000, 0)]),
            part(0, 8, &[(2, 4)]),
            part(0, 1, &[(10, 1), (10, 1)]),
            part(0, 1, &[(4, 16), (3, 20)]),
        ];
        for part in overlapping {
            assert_eq!(part.check(100), Err(PartError::Overlaps), "{part:?}");
        }
        // The levels of columns are in the other order.
        for part in [part(0, 8, &[(2, 8), (3, 16)]), part(0, 8, &[(1, 0)])] {
            assert_eq!(part.check(100), Ok(()), "{part:?}");
        }
    }

    #[test]
    fn nothing_reads_that_was_not_written() {
        let layout = RegionLayout {
            type_text: "<f8".to_owned(),
            item_bytes: 8,
            shape: vec![2, 0, 3],
        };
        assert_eq!(RegionLayout::read(&layout.head()), Some(layout.clone()));
        let large = RegionLayout {
            shape: vec![1 << 62, 4],
            ..layout
        };
        assert_eq!(RegionLayout::read(&large.head()), None);
        let mut random = SplitMix64::new(9);
        for _ in 0..20_000 {
            let length = random.below(60) as usize;
            let mut bytes: Vec<u8> = (0..length).map(|_| random.below(5) as u8).collect();
            if let Some(first) = bytes.first_mut() {
                *first = 0xff;
            }
            if let Some(message) = RegionMessage::read(&bytes) {
                assert_eq!(message.head(), bytes);
            }
            if let Some(layout) = RegionLayout::read(&bytes) {
                assert_eq!(layout.head(), bytes);
            }
        }
    }
}
