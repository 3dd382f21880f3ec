//! How long functions take.

use std::time::Duration;

use exoskel_determinism::SplitMix64;
use exoskel_flow::Index;

/// How long a function takes for an item, the same wherever and however often it runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Service {
    /// Always so long.
    Fixed(Duration),
    /// Evenly between two times.
    Uniform(Duration, Duration),
    /// `usual`, but one of `one_in` items takes `slow`.
    Rare {
        /// The time of most items.
        usual: Duration,
        /// The time of the others.
        slow: Duration,
        /// How rare those are.
        one_in: u64,
    },
    /// `usual`, but this item takes `slow`.
    One {
        /// The time of all other items.
        usual: Duration,
        /// Its time.
        slow: Duration,
        /// Which one.
        index: Index,
    },
}

impl Service {
    /// The time of one item.
    pub(crate) fn time(&self, seed: u64, index: Index) -> Duration {
        let mut random = SplitMix64::new(seed ^ index.wrapping_mul(0xD134_2543_DE82_EF95));
        match self {
            Self::Fixed(time) => *time,
            Self::Uniform(least, most) => random.between(*least, *most),
            Self::Rare {
                usual,
                slow,
                one_in,
            } => {
                if random.below(*one_in) == 0 {
                    *slow
                } else {
                    *usual
                }
            }
            Self::One {
                usual,
                slow,
                index: one,
            } => {
                if index == *one {
                    *slow
                } else {
                    *usual
                }
            }
        }
    }
}
