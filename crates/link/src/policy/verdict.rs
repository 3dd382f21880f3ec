//! The answer about one wire, and what made it.

use std::fmt;

use crate::{Protection, TrafficClass};

/// Which protection a wire gets, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProtectionVerdict {
    /// What the wire's links get, or the link that was asked about.
    pub protection: Protection,
    /// What the deciding rule says by itself, which is never stricter.
    pub said: Protection,
    /// What decided.
    pub decided_by: DecidedBy,
    /// What made it stricter than that, if anything did.
    pub raised_by: Option<Raise>,
}

impl ProtectionVerdict {
    /// Takes in what the other end demands: the stricter one wins.
    #[must_use]
    pub fn joined(mut self, peer: Protection) -> Self {
        self.raise(peer, Raise::Peer);
        self
    }

    pub(crate) fn raise(&mut self, minimum: Protection, reason: Raise) {
        if minimum > self.protection {
            self.protection = minimum;
            self.raised_by = Some(reason);
        }
    }
}

impl fmt::Display for ProtectionVerdict {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}: {}", self.protection, self.decided_by)?;
        if let Some(raise) = self.raised_by {
            write!(formatter, " says {}, raised by {raise}", self.said)?;
        }
        Ok(())
    }
}

/// What decided about a wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DecidedBy {
    /// The first rule that fits.
    Rule(RuleName),
    /// No rule fits.
    Default,
}

impl fmt::Display for DecidedBy {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rule(name) => name.fmt(formatter),
            Self::Default => formatter.write_str("the default, as no rule fits"),
        }
    }
}

/// Why a wire is better protected than the rule that decides about it asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Raise {
    /// An earlier rule could apply, which nothing proves and nothing excludes.
    Rule(RuleName),
    /// This class never goes that low.
    Minimum(TrafficClass),
    /// Control leaves a host encrypted, or not at all.
    ControlBetweenHosts,
    /// This process was started with a minimum of its own.
    Setting,
    /// The other end demands it.
    Peer,
}

impl fmt::Display for Raise {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rule(name) => write!(formatter, "{name}, which could apply too"),
            Self::Minimum(class) => {
                write!(formatter, "the safety rule that {class} is never plain")
            }
            Self::ControlBetweenHosts => formatter
                .write_str("the safety rule that control between hosts is always encrypted"),
            Self::Setting => formatter.write_str("the minimum that this process was started with"),
            Self::Peer => formatter.write_str("the policy of the other end"),
        }
    }
}

/// Names a rule to the owner of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RuleName {
    /// A rule of the file.
    Numbered {
        /// Which one, from 1.
        number: usize,
        /// The line of its `[[rule]]`, from 1.
        line: usize,
    },
    /// The rule for the domain `host`, which stands after all others.
    BuiltIn,
}

impl fmt::Display for RuleName {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Numbered { number, line } => write!(formatter, "rule {number} (line {line})"),
            Self::BuiltIn => formatter.write_str("the built-in rule for `host`"),
        }
    }
}
