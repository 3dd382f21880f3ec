//! What is simulated.

use std::time::Duration;

use exoskel_flow::{Index, SchedulerConfig, Skeleton};

use crate::network::LinkModel;
use crate::random::SplitMix64;

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

/// A slot dies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Before this step (events are numbered from 0).
    pub step: u64,
    /// Which slot, counted among those alive, oldest first; counted round.
    pub slot: u32,
    /// After this time a new slot is there.
    pub restart: Option<Duration>,
}

/// Everything a run depends on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scenario {
    /// Of all randomness.
    pub seed: u64,
    /// The program.
    pub skeleton: Skeleton,
    /// How many items the user has.
    pub items: u64,
    /// How many slots there are at the start.
    pub slots: u32,
    /// Slot number n needs `slowness[n % len]` times as long.
    pub slowness: Vec<u32>,
    /// How long each function takes.
    pub service: Service,
    /// Bytes of a token, evenly from 1 to this.
    pub input_bytes_max: u64,
    /// Bytes of a result, evenly from 1 to this.
    pub result_bytes_max: u64,
    /// One of so many items raises in each segment, which is its outcome; 0: none.
    pub raises_one_in: u64,
    /// The wires.
    pub link: LinkModel,
    /// Results older than this are sent although their frame is not finished.
    pub flush_time: Duration,
    /// How long the user works on an outcome before taking the next; outcomes are taken in order.
    pub take_time: Duration,
    /// Which slots die when.
    pub faults: Vec<Fault>,
    /// A slot that runs one of these items dies of it; a new one is there after `restart_time`.
    pub poison: Vec<Index>,
    /// See `poison`.
    pub restart_time: Duration,
    /// The scheduler's settings.
    pub config: SchedulerConfig,
    /// A run with more steps is a run without end.
    pub steps_max: u64,
}

impl Scenario {
    /// A calm one: a farm of one function, two equal slots, small items.
    pub fn new(seed: u64, skeleton: Skeleton, items: u64, service: Service) -> Self {
        Self {
            seed,
            skeleton,
            items,
            slots: 2,
            slowness: vec![1],
            service,
            input_bytes_max: 200,
            result_bytes_max: 200,
            raises_one_in: 0,
            link: LinkModel::default(),
            flush_time: Duration::from_millis(2),
            take_time: Duration::ZERO,
            faults: Vec::new(),
            poison: Vec::new(),
            restart_time: Duration::from_millis(50),
            config: SchedulerConfig::default(),
            steps_max: 2_000_000,
        }
    }

    /// The size of a token or result.
    pub(crate) fn bytes(&self, most: u64, index: Index, segment: u16) -> u64 {
        let mix = index.wrapping_mul(0x9E6C_63D0_876A_68DE) ^ u64::from(segment).rotate_left(40);
        1 + SplitMix64::new(self.seed ^ mix).below(most)
    }

    /// Whether the item raises in this segment.
    pub(crate) fn raises(&self, index: Index, segment: u16) -> bool {
        let mix = index.wrapping_mul(0xA24B_AED4_963E_E407) ^ u64::from(segment).rotate_left(20);
        self.raises_one_in > 0 && SplitMix64::new(self.seed ^ mix).below(self.raises_one_in) == 0
    }
}
