//! Which process of a node somebody is.

use core::fmt;

/// The bytes of a [`ProcessNumber`].
pub const PROCESS_NUMBER_BYTES: usize = 16;

/// A random number that a process has as long as it lives: several processes may have one certificate, and one that starts again knows
/// nothing of what was before.
///
/// # Security
/// It is no secret and proves nothing: every peer of the process knows it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ProcessNumber([u8; PROCESS_NUMBER_BYTES]);

impl ProcessNumber {
    /// The number of these bytes, which must be random.
    #[must_use]
    pub const fn new(random: [u8; PROCESS_NUMBER_BYTES]) -> Self {
        Self(random)
    }

    /// Its bytes.
    #[must_use]
    pub const fn bytes(&self) -> &[u8; PROCESS_NUMBER_BYTES] {
        &self.0
    }
}

/// The first bytes: enough to tell processes apart in a line of a log.
impl fmt::Display for ProcessNumber {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0[..4]
            .iter()
            .try_for_each(|byte| write!(formatter, "{byte:02x}"))
    }
}

impl fmt::Debug for ProcessNumber {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "ProcessNumber({self})")
    }
}
