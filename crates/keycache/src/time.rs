//! Virtual time in whole picoseconds: sums are exact, and the same on every machine.

use std::ops::{Add, AddAssign, Sub};

/// Picoseconds since a run began, or between two moments of it. 64 bits of them are some 213 days.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Picoseconds(pub(crate) u64);

/// Picoseconds of a second.
const SECOND: u128 = 1_000_000_000_000;

impl Picoseconds {
    pub(crate) const ZERO: Self = Self(0);
    /// What never comes.
    pub(crate) const NEVER: Self = Self(u64::MAX / 4);
    /// The end of virtual time: whatever a run plans before it is before [`Self::NEVER`], since no packet waits for as long as
    /// what is between them, with the longest times that parameters may name.
    pub(crate) const END: Self = Self(u64::MAX / 8);

    pub(crate) fn from_nanoseconds(nanoseconds: u64) -> Self {
        Self(nanoseconds.saturating_mul(1000).min(Self::NEVER.0))
    }

    /// `count` things at `rate` things each second, rounded to the next picosecond: thirty cycles at 270 MHz are
    /// 111,111 ps and not thirty times the rounded cycle of 3,704 ps (111,120 ps).
    pub(crate) fn for_count(count: u64, rate: u64) -> Self {
        let rate = u128::from(rate.max(1));
        let picoseconds = (u128::from(count) * SECOND + rate / 2) / rate;
        Self(picoseconds.min(u128::from(Self::NEVER.0)) as u64)
    }

    pub(crate) fn saturating_sub(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }
}

impl Add for Picoseconds {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }
}

impl AddAssign for Picoseconds {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

impl Sub for Picoseconds {
    type Output = Self;

    fn sub(self, other: Self) -> Self {
        Self(self.0 - other.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_the_sum_and_not_each_cycle() {
        assert_eq!(Picoseconds::for_count(1, 270_000_000).0, 3_704);
        assert_eq!(Picoseconds::for_count(30, 270_000_000).0, 111_111);
        assert_eq!(Picoseconds::for_count(256, 1_000_000_000).0, 256_000);
        assert_eq!(Picoseconds::for_count(u64::MAX, 1), Picoseconds::NEVER);
    }
}
