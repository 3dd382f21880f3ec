//! What the checks know of the manager's workers.

use std::collections::{BTreeMap, BTreeSet};

use exoskel_node::SessionId;

/// What a manager must know of its workers, since it was told.
#[derive(Debug, Default)]
pub(super) struct KnownWorkers {
    /// Workers that said what they lack, or whose initializer raised again and again.
    pub(super) unfit: BTreeSet<String>,
    /// How often an initializer has raised, by worker.
    pub(super) uninitialized: BTreeMap<String, u32>,
    pub(super) broken: BTreeMap<String, BreaksSeen>,
    /// Places where no other attempt can end better.
    pub(super) hopeless: BTreeSet<usize>,
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
