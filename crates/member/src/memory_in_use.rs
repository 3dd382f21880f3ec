//! Which memory of this process its arrays have: two of them don't have the same, if a version is read into one of the two.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use crate::error::MemberError;
use crate::member::held;

/// Of all members of this process.
static IN_USE: Mutex<Vec<UsedMemory>> = Mutex::new(Vec::new());

#[derive(Debug)]
struct UsedMemory {
    number: u64,
    array: String,
    begin: usize,
    end: usize,
    is_read_into: bool,
    /// Its member has left: whatever is called now has no effect.
    has_left: Arc<AtomicBool>,
}

/// An array's memory, in use as long as this lives, or until its member leaves.
#[derive(Debug)]
pub(crate) struct MemoryInUse(u64);

impl MemoryInUse {
    /// Has an array's memory in use, unless another array has some of it.
    ///
    /// # Errors
    /// [`MemberError::Overlap`] if it has, and a version is read into one of the two.
    pub(crate) fn new(
        array: &str,
        first: *const u8,
        bytes: usize,
        is_read_into: bool,
        has_left: &Arc<AtomicBool>,
    ) -> Result<Self, MemberError> {
        static NUMBERS: AtomicU64 = AtomicU64::new(0);
        let begin = first.addr();
        let used = UsedMemory {
            number: NUMBERS.fetch_add(1, Ordering::Relaxed),
            array: array.to_owned(),
            begin,
            end: begin.saturating_add(bytes),
            is_read_into,
            has_left: Arc::clone(has_left),
        };
        let mut in_use = held(&IN_USE);
        in_use.retain(|other| !other.has_left.load(Ordering::Relaxed));
        if let Some(other) = in_use.iter().find(|other| used.is_spoiled_by(other)) {
            return Err(MemberError::Overlap {
                array: used.said(),
                other: other.said(),
                read_into: [&used, other]
                    .into_iter()
                    .find(|one| one.is_read_into)
                    .map_or_else(String::new, |one| one.array.clone()),
            });
        }
        let number = used.number;
        in_use.push(used);
        Ok(Self(number))
    }
}

impl Drop for MemoryInUse {
    fn drop(&mut self) {
        held(&IN_USE).retain(|used| used.number != self.0);
    }
}

impl UsedMemory {
    /// Whether what is read into one of the two would be in the other one.
    fn is_spoiled_by(&self, other: &Self) -> bool {
        let begin = self.begin.max(other.begin);
        let end = self.end.min(other.end);
        begin < end && (self.is_read_into || other.is_read_into)
    }

    fn said(&self) -> String {
        format!(
            "{} (bytes {:#x} to {:#x})",
            self.array, self.begin, self.end
        )
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

    use super::*;

    fn used(
        array: &str,
        memory: &[u8],
        is_read_into: bool,
        left: &Arc<AtomicBool>,
    ) -> Result<MemoryInUse, MemberError> {
        MemoryInUse::new(array, memory.as_ptr(), memory.len(), is_read_into, left)
    }

    #[test]
    fn memory_into_which_a_version_is_read_belongs_to_one_array() {
        let memory = [0_u8; 64];
        let there = Arc::new(AtomicBool::new(false));
        let first = used("ocean.sst", &memory[..40], true, &there).unwrap();
        // Side by side is no overlap, and what has no bytes overlaps nothing.
        let beside = used("ocean.heat", &memory[40..], true, &there).unwrap();
        let empty = used("ocean.ice", &memory[8..8], true, &there).unwrap();
        let error = used("ocean.salt", &memory[39..], false, &there).unwrap_err();
        let begin = memory.as_ptr().addr();
        assert_eq!(
            error.to_string(),
            format!(
                "the memory of ocean.salt (bytes {:#x} to {:#x}) overlaps that of ocean.sst (bytes {begin:#x} to {:#x}), and versions are read into \
                 ocean.sst: expected memory that no other array has",
                begin + 39,
                begin + 64,
                begin + 40
            )
        );
        drop((first, beside, empty));
        // Nothing is read into either.
        let given = used("ocean.sst", &memory, false, &there).unwrap();
        let also = used("ocean.heat", &memory, false, &there).unwrap();
        assert!(used("ocean.salt", &memory[..1], true, &there).is_err());
        // Its member has left.
        let left = Arc::new(AtomicBool::new(true));
        drop((given, also));
        let old = used("ocean.sst", &memory, true, &left).unwrap();
        used("ocean.salt", &memory, true, &there).unwrap();
        drop(old);
    }
}
