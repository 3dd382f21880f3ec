//! What came out of a run of the whole system.

use std::time::Duration;

/// A run that went to its end.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// How many events there were.
    pub steps: u64,
    /// Of all events and bytes in their order: equal for equal scenarios.
    pub digest: u64,
    /// The virtual time at the end.
    pub ended_at: Duration,
    /// Items with an outcome.
    pub outcomes: u64,
    /// Those of them that were refused: pickles where data was expected.
    pub refused: u64,
    /// Those of them that raised whenever they ran again.
    pub exhausted: u64,
    /// Those of them that ran for too long.
    pub overdue: u64,
    /// Those of them that were over a limit.
    pub too_large: u64,
    /// Those of them that could not be sent.
    pub unsent: u64,
    /// Segments that slots began, of all items.
    pub started: u64,
    /// Items taken back by their user.
    pub cancelled: u64,
    /// Items without an outcome when their user closed the stream.
    pub left: u64,
    /// Sessions that began at the manager.
    pub sessions: u64,
    /// Slots lost to the manager without a good-bye.
    pub slots_lost: u64,
    /// Slots that were told to end and finished what ran.
    pub drained: u64,
    /// Processes that crashed.
    pub crashes: u64,
    /// Times that a crashed manager was there again. What is said of items is of the last one's.
    pub restarts: u64,
    /// Groups of results that were committed to journals.
    pub commits: u64,
    /// Times that a run with a journal was gone on with amid its items.
    pub continued: u64,
    /// Early results of former processes that were found in journals.
    pub early_found: u64,
    /// Journals that were damaged before they had been begun, and were removed.
    pub removed: u64,
    /// Processes that ended in a write.
    pub ended_in_write: u64,
    /// Faults that happened.
    pub faults: u64,
    /// Times that the manager's sessions changed their keys.
    pub keys_changed: u64,
    /// Items given back by slots.
    pub recalled: u64,
    /// Items that a second slot got as well, since they ran for too long.
    pub stragglers: u64,
    /// Answers that say what items were made into.
    pub expanded: u64,
    /// Answers that say what several items were folded into.
    pub folded: u64,
    /// Answers with the state behind their items.
    pub carried: u64,
    /// Leases given back before their frame's end.
    pub released: u64,
    /// Results that waited for a grant.
    pub announced: u64,
    /// Times that the planner asked for more slots.
    pub recruited: u64,
    /// Times that it gave slots back.
    pub given_back: u64,
    /// Slots that said what they lack, and got no items.
    pub unfit: u64,
    /// Workers that were set aside for breaking their sessions.
    pub set_aside: u64,
    /// Certificates that were revoked.
    pub revoked: u64,
    /// Times that a worker was refused a session.
    pub turned_away: u64,
    /// Workers that waited until the manager had room for them.
    pub waited: u64,
    /// Times that nobody accepted the manager's connection.
    pub refused_dials: u64,
    /// Streams that ended because nobody was left to work.
    pub given_up: u64,
    /// Streams with states that so many courses lead to that nobody can say whether their outcomes are right.
    pub unjudged: u64,
    /// Pieces on wires that showed a token, all where that is allowed.
    pub tokens_seen: u64,
}
