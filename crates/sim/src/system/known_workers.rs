//! What the checks know of the manager's workers.

use std::collections::{BTreeMap, BTreeSet};

use exoskel_node::SessionId;

/// What a manager must know of its workers, since it was told.
#[derive(Debug, Default)]
pub(super) struct KnownWorkers {
    /// Workers that said what they lack.
    pub(super) unfit: BTreeSet<String>,
    pub(super) broken: BTreeMap<String, BreaksSeen>,
    /// Attempts that failed, by place.
    pub(super) failures: BTreeMap<usize, u32>,
}

/// Sessions of a worker that broke.
#[derive(Debug, Default)]
pub(super) struct BreaksSeen {
    pub(super) altogether: u32,
    /// One after the other, with none that ended well between.
    pub(super) in_a_row: u32,
    /// Those with smaller numbers had begun when the last one broke.
    pub(super) counted_before: Option<SessionId>,
}
