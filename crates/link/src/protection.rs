//! What a link does to its messages, and the classes of traffic a policy tells apart.

use core::fmt;
use core::str::FromStr;

use thiserror::Error;

/// What a link does to its messages. Stricter is greater, so that `max` combines two opinions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Protection {
    /// The peers are authenticated, bulk parts travel in clear; record headers, message heads and control
    /// are still authenticated.
    Plain,
    /// Everything is authenticated, nothing is encrypted.
    Integrity,
    /// Everything is encrypted and authenticated.
    #[default]
    Encrypted,
}

impl Protection {
    /// All protections, from the weakest to the strictest.
    pub const ALL: [Self; 3] = [Self::Plain, Self::Integrity, Self::Encrypted];

    /// The protection's number on the wire.
    pub(crate) fn code(self) -> u8 {
        match self {
            Self::Plain => 0,
            Self::Integrity => 1,
            Self::Encrypted => 2,
        }
    }

    /// Reads a protection's number.
    pub(crate) fn from_code(code: u8) -> Option<Self> {
        Self::ALL.get(usize::from(code)).copied()
    }

    /// The word used in policies and on the wire's labels.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Plain => "plain",
            Self::Integrity => "integrity",
            Self::Encrypted => "encrypted",
        }
    }
}

impl fmt::Display for Protection {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(self.name())
    }
}

/// A word that names no [`Protection`].
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("got protection {0:?}, expected \"plain\", \"integrity\" or \"encrypted\"")]
pub struct ParseProtectionError(String);

impl FromStr for Protection {
    type Err = ParseProtectionError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::ALL
            .into_iter()
            .find(|protection| protection.name() == text)
            .ok_or_else(|| ParseProtectionError(text.chars().take(40).collect()))
    }
}

/// What kind of traffic a link carries; policies give each its own protection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TrafficClass {
    /// Scheduling, credit, heartbeats: small messages that steer the run.
    Control,
    /// Functions and modules: what the receiver will execute.
    Code,
    /// Inputs and results.
    Data,
}

impl TrafficClass {
    /// All classes, in the order of their numbers on the wire.
    pub const ALL: [Self; 3] = [Self::Control, Self::Code, Self::Data];

    /// The class's number on the wire.
    pub(crate) fn code(self) -> u8 {
        match self {
            Self::Control => 0,
            Self::Code => 1,
            Self::Data => 2,
        }
    }

    /// Reads a class's number.
    pub(crate) fn from_code(code: u8) -> Option<Self> {
        Self::ALL.get(usize::from(code)).copied()
    }

    /// The word used in policies.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Control => "control",
            Self::Code => "code",
            Self::Data => "data",
        }
    }
}

impl fmt::Display for TrafficClass {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(self.name())
    }
}

/// One protection for each class of traffic. The default is the strictest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Protections {
    /// Protection of [`TrafficClass::Control`].
    pub control: Protection,
    /// Protection of [`TrafficClass::Code`].
    pub code: Protection,
    /// Protection of [`TrafficClass::Data`].
    pub data: Protection,
}

impl Protections {
    /// The same protection for every class.
    pub const fn all(protection: Protection) -> Self {
        Self {
            control: protection,
            code: protection,
            data: protection,
        }
    }

    /// For each class what the caller says of it.
    pub(crate) fn each(of: impl Fn(TrafficClass) -> Protection) -> Self {
        Self {
            control: of(TrafficClass::Control),
            code: of(TrafficClass::Code),
            data: of(TrafficClass::Data),
        }
    }

    /// The protection of one class.
    pub const fn of(self, class: TrafficClass) -> Protection {
        match class {
            TrafficClass::Control => self.control,
            TrafficClass::Code => self.code,
            TrafficClass::Data => self.data,
        }
    }

    /// For each class the stricter of the two.
    #[must_use]
    pub fn stricter(self, other: Self) -> Self {
        Self {
            control: self.control.max(other.control),
            code: self.code.max(other.code),
            data: self.data.max(other.data),
        }
    }

    /// Whether no class is weaker than the minimum says.
    pub fn satisfies(self, minimum: Self) -> bool {
        self.stricter(minimum) == self
    }

    /// The strictest protection of any class.
    pub fn strictest(self) -> Protection {
        self.control.max(self.code).max(self.data)
    }
}

impl fmt::Display for Protections {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            formatter,
            "control {}, code {}, data {}",
            self.control, self.code, self.data
        )
    }
}
