//! Decisions in words.

use std::fmt;
use std::time::Duration;

use super::{Limit, SlotDecision};

/// What a decision was made by.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Reason {
    /// Items a second.
    pub rate: f64,
    /// Those that are asked for; infinite if as many as can be.
    pub wanted: f64,
    /// The time of a slot that an item takes.
    pub cost: Duration,
}

/// What a contract lacks.
#[derive(Clone, Debug, PartialEq)]
pub enum Lack {
    /// Something else than slots limits: what, the rate, and the rate that is asked for.
    Rate(Limit, f64, f64),
    /// A serial function does no more than so many items a second.
    Serial(f64),
    /// The contract allows no more than so many slots.
    Degree(u32),
    /// It allows no more than so many remote slots.
    Cost(u32),
    /// So many slots are there, of so many that are wanted.
    Workers(u32, u32),
    /// An item takes so long that what nobody has begun can't be done by the deadline.
    Deadline(Duration),
    /// The deadline has passed.
    Time,
}

impl Lack {
    /// Whether both say the same, but for numbers.
    pub(super) fn is_like(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Rate(one, ..), Self::Rate(other, ..)) => one == other,
            (one, other) => std::mem::discriminant(one) == std::mem::discriminant(other),
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rate, wanted, cost } = self;
        write!(formatter, "{} items a second", Rate(*rate))?;
        match wanted.is_finite() {
            true => write!(formatter, ", the contract asks for {}", Rate(*wanted))?,
            false => formatter.write_str(", the contract asks for as many as can be")?,
        }
        write!(formatter, "; an item takes {} of a slot", Time(*cost))
    }
}

impl fmt::Display for Lack {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rate(limit, rate, wanted) => {
                let (rate, wanted) = (Rate(*rate), Rate(*wanted));
                write!(
                    formatter,
                    "{rate} items a second, the contract asks for {wanted}; {limit}, so more slots would not help"
                )
            }
            Self::Serial(possible) => {
                let possible = Rate(*possible);
                write!(
                    formatter,
                    "a serial function does no more than {possible} items a second, so more slots would not help"
                )
            }
            Self::Degree(most) => {
                write!(
                    formatter,
                    "all {most} slots of the contract are in use; ParDegree(a, b) with a larger b would allow more"
                )
            }
            Self::Cost(most) => {
                write!(
                    formatter,
                    "no other slot is left in the trusted domains, and Cost allows {most} outside of them"
                )
            }
            Self::Workers(here, wanted) => {
                write!(
                    formatter,
                    "{here} of {wanted} slots are there, and no other worker has one; add workers"
                )
            }
            Self::Deadline(item) => {
                let item = Time(*item);
                write!(
                    formatter,
                    "an item takes {item} of a slot, which is more than the time that is left, so more slots would not help"
                )
            }
            Self::Time => formatter.write_str("the deadline has passed"),
        }
    }
}

impl fmt::Display for Limit {
    /// What it is, as a sentence.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Slots => "slots are full",
            Self::Source => "items do not come in faster",
            Self::Reader => "results are not taken faster",
            Self::Serial => "a serial function does one item at a time",
            Self::Wire => "slots wait for the manager or its wires",
            Self::Ending => "few items are left",
        })
    }
}

impl fmt::Display for SlotDecision {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Recruit { reason, .. } | Self::Release { reason, .. } => reason.fmt(formatter),
            Self::Lacks(lack) => lack.fmt(formatter),
            Self::Met { rate, wanted } => {
                let is_below = rate < wanted;
                let (rate, wanted) = (Rate(*rate), Rate(*wanted));
                write!(
                    formatter,
                    "{rate} items a second, the contract asks for {wanted}"
                )?;
                match is_below {
                    true => formatter.write_str("; 3 % below that count as kept"),
                    false => Ok(()),
                }
            }
        }
    }
}

/// A rate with three digits.
struct Rate(f64);

impl fmt::Display for Rate {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            rate if rate >= 100.0 || rate == 0.0 => write!(formatter, "{rate:.0}"),
            rate if rate >= 10.0 => write!(formatter, "{rate:.1}"),
            rate => write!(formatter, "{rate:.2}"),
        }
    }
}

/// A time in the unit that suits it.
struct Time(Duration);

impl fmt::Display for Time {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.0.as_secs_f64();
        match seconds {
            seconds if seconds >= 1.0 => write!(formatter, "{seconds:.1} s"),
            seconds if seconds >= 1e-3 => write!(formatter, "{:.1} ms", seconds * 1e3),
            seconds => write!(formatter, "{:.1} µs", seconds * 1e6),
        }
    }
}
