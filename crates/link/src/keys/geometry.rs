//! The size and shape of a cache, and where a key belongs in it.

use thiserror::Error;

/// The most entries of one cache: slots are numbered by `u32`, and a policy's lists need a few numbers more.
pub const ENTRIES_MAX: usize = 1 << 28;

/// What a cache finds its values by.
pub trait CacheKey: Copy + Eq {
    /// The number that places the key. Equal keys have equal numbers, on every machine; different keys should have
    /// different ones, or they crowd in one set.
    fn index(self) -> u64;
}

impl CacheKey for u16 {
    fn index(self) -> u64 {
        self.into()
    }
}

impl CacheKey for u32 {
    fn index(self) -> u64 {
        self.into()
    }
}

impl CacheKey for u64 {
    fn index(self) -> u64 {
        self
    }
}

impl CacheKey for (u32, u32) {
    fn index(self) -> u64 {
        u64::from(self.0) << 32 | u64::from(self.1)
    }
}

/// How a key finds its set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Placement {
    /// By a fixed mixing of [`CacheKey::index`], so that regular keys don't crowd in few sets.
    #[default]
    Mixed,
    /// By the index modulo the number of sets, as hardware takes the low bits of an identifier.
    LowBits,
}

/// The size and shape of a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Geometry {
    pub(super) sets: u32,
    pub(super) ways: u32,
    placement: Placement,
}

/// A [`Geometry`] that no cache can have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum GeometryError {
    /// A parameter is zero.
    #[error("got {parameter} = 0, expected at least 1")]
    Zero {
        /// Which one: `entries` or `ways`.
        parameter: &'static str,
    },
    /// More entries than [`ENTRIES_MAX`].
    #[error("got entries = {entries}, expected at most {ENTRIES_MAX}")]
    TooManyEntries {
        /// What was asked for.
        entries: usize,
    },
    /// A set would be larger than the cache.
    #[error("got ways = {ways} for {entries} entries, expected at most as many ways as entries")]
    TooManyWays {
        /// What was asked for.
        ways: usize,
        /// The entries of the cache.
        entries: usize,
    },
    /// The entries don't fall into sets of equal size.
    #[error("got entries = {entries}, expected a multiple of ways = {ways}")]
    Uneven {
        /// The entries of the cache.
        entries: usize,
        /// What doesn't divide them.
        ways: usize,
    },
}

impl Geometry {
    /// A cache in which a key may stand anywhere.
    ///
    /// # Errors
    /// [`GeometryError`] if there are no entries or too many.
    pub fn fully_associative(entries: usize) -> Result<Self, GeometryError> {
        Self::set_associative(entries, entries)
    }

    /// A cache of `entries / ways` sets; a key may stand in any of its set's `ways` places. One way is direct mapped.
    ///
    /// # Errors
    /// [`GeometryError`] names the parameter that can't be.
    pub fn set_associative(entries: usize, ways: usize) -> Result<Self, GeometryError> {
        for (parameter, value) in [("entries", entries), ("ways", ways)] {
            if value == 0 {
                return Err(GeometryError::Zero { parameter });
            }
        }
        if ways > entries {
            return Err(GeometryError::TooManyWays { ways, entries });
        }
        if !entries.is_multiple_of(ways) {
            return Err(GeometryError::Uneven { entries, ways });
        }
        let count = |value: usize| {
            u32::try_from(value)
                .ok()
                .filter(|_| entries <= ENTRIES_MAX)
                .ok_or(GeometryError::TooManyEntries { entries })
        };
        Ok(Self {
            sets: count(entries / ways)?,
            ways: count(ways)?,
            placement: Placement::Mixed,
        })
    }

    /// The same size and shape, with this placement.
    #[must_use]
    pub fn placed(self, placement: Placement) -> Self {
        Self { placement, ..self }
    }

    /// How many keys fit.
    pub fn entries(&self) -> usize {
        self.sets as usize * self.ways as usize
    }

    /// How many places a key may stand in.
    pub fn ways(&self) -> usize {
        self.ways as usize
    }

    /// How many sets there are.
    pub fn sets(&self) -> usize {
        self.sets as usize
    }

    pub(super) fn place<K: CacheKey>(&self, key: K) -> KeyPlace {
        let index = key.index();
        let identity = mix(index);
        let set = match self.placement {
            // The upper half of the product: as even as the identity, without a division. Less than `sets`.
            Placement::Mixed => ((u128::from(identity) * u128::from(self.sets)) >> 64) as u32,
            Placement::LowBits if self.sets.is_power_of_two() => index as u32 & (self.sets - 1),
            Placement::LowBits => (index % u64::from(self.sets)) as u32,
        };
        KeyPlace { identity, set }
    }
}

/// Where a key belongs.
#[derive(Clone, Copy)]
pub(super) struct KeyPlace {
    pub(super) identity: u64,
    pub(super) set: u32,
}

/// The finaliser of SplitMix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number generators", OOPSLA 2014): one to one,
/// and every bit of the result depends on every bit of the index. Fixed, so that a run repeats on every machine;
/// keys aren't chosen by anybody who could want them to collide.
fn mix(index: u64) -> u64 {
    let mut mixed = index.wrapping_add(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A mixed placement is the same on every machine: the study's digests rest on it.
    #[test]
    fn the_mixing_is_fixed() {
        let geometry = Geometry::set_associative(1024, 1).unwrap();
        let sets: Vec<u32> = (0..6_u64).map(|key| geometry.place(key).set).collect();
        assert_eq!(sets, [904, 580, 605, 116, 441, 396]);
    }
}
