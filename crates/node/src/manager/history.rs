//! What became of a manager's slots, when and why.

use std::collections::VecDeque;
use std::fmt;
use std::time::Duration;

/// Changes that are kept; the oldest go first.
pub const CHANGES_MAX: usize = 1000;

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChangeKind {
    /// The manager began.
    Begin,
    /// More slots are wanted.
    Recruit,
    /// Slots are given back.
    Release,
    /// A slot was lost, or has left by itself; another takes its place.
    Loss,
    /// A slot can work in the place of one that was lost.
    Replace,
    /// The contract can't be kept.
    Lack,
    /// The contract is kept.
    Met,
}

impl fmt::Display for ChangeKind {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Begin => "begin",
            Self::Recruit => "recruit",
            Self::Release => "release",
            Self::Loss => "loss",
            Self::Replace => "replace",
            Self::Lack => "lack",
            Self::Met => "met",
        })
    }
}

/// One change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlotChange {
    /// When.
    pub at: Duration,
    /// What.
    pub kind: ChangeKind,
    /// How many slots are wanted since then.
    pub wanted: u32,
    /// How many can work at that moment.
    pub ready: u32,
    /// Why.
    pub reason: String,
}

/// The last changes.
#[derive(Clone, Debug, Default)]
pub struct History {
    changes: VecDeque<SlotChange>,
    /// Slots that were lost and not replaced.
    lost: u32,
}

impl History {
    /// Takes a change in.
    pub(super) fn push(&mut self, change: SlotChange) {
        match change.kind {
            ChangeKind::Loss => self.lost += 1,
            ChangeKind::Replace => self.lost = self.lost.saturating_sub(1),
            _ => {}
        }
        if change.ready >= change.wanted {
            // Fewer are wanted now.
            self.lost = 0;
        }
        if self.changes.len() >= CHANGES_MAX {
            self.changes.pop_front();
        }
        self.changes.push_back(change);
    }

    /// Whether slots were lost and not replaced.
    pub(super) fn has_lost(&self) -> bool {
        self.lost > 0
    }

    /// All that are kept, the oldest first.
    pub fn changes(&self) -> impl Iterator<Item = &SlotChange> {
        self.changes.iter()
    }
}
