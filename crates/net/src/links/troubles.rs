//! What is wrong with a node or its links just now: for who waits, for `exoskel links`, and for the program's log.

use std::collections::BTreeMap;
use std::sync::Mutex;

use exoskel_node::links::BindingId;

use super::{LinkNode, LinkShared, PendingLookup, lock};

/// Warnings that wait until the program takes them, at most. The audit has all of them.
const WARNINGS_MAX: usize = 64;

/// What a trouble of the node is about. There is one at a time of each.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum TroubleSubject {
    /// The registration at this gateway.
    Gateway(String),
    /// Credential, policy and revocation list.
    Files,
    /// This node's own certificate has expired.
    Certificate,
}

/// The troubles of a node.
#[derive(Default)]
pub(super) struct Troubles(Mutex<KnownTroubles>);

#[derive(Default)]
struct KnownTroubles {
    standing: BTreeMap<TroubleSubject, String>,
    warnings: Vec<String>,
}

impl KnownTroubles {
    fn warn(&mut self, text: String) {
        if self.warnings.len() < WARNINGS_MAX {
            self.warnings.push(text);
        }
    }
}

impl LinkShared {
    /// Something is wrong. Whoever asks is told as long as it is, and the log once.
    pub(super) fn has_trouble(&self, subject: TroubleSubject, text: String) {
        let mut known = lock(&self.troubles.0);
        let before = known.standing.insert(subject, text.clone());
        if before.as_ref() == Some(&text) {
            return;
        }
        known.warn(text.clone());
        drop(known);
        self.note(text);
    }

    /// Something has gone wrong that the log has to say, as nobody waits for it.
    pub(super) fn warn(&self, text: String) {
        lock(&self.troubles.0).warn(text);
    }

    /// It is no longer wrong.
    pub(super) fn is_well(&self, subject: &TroubleSubject) {
        lock(&self.troubles.0).standing.remove(subject);
    }

    /// What is wrong with the node itself.
    pub(super) fn standing_troubles(&self) -> Vec<String> {
        lock(&self.troubles.0).standing.values().cloned().collect()
    }
}

impl LinkNode {
    /// What is wrong with the node itself: it isn't registered, or goes on with files of before.
    #[must_use]
    pub fn troubles(&self) -> Vec<String> {
        self.shared.standing_troubles()
    }

    /// Warnings for the program's log since this was asked last.
    #[must_use]
    pub fn take_warnings(&self) -> Vec<String> {
        std::mem::take(&mut lock(&self.shared.troubles.0).warnings)
    }

    /// Why a binding has no link just now: nothing, if it has one, or needs none.
    #[must_use]
    pub fn trouble_of(&self, id: BindingId) -> Option<String> {
        lock(&self.shared.machine).trouble_of(id, self.shared.now())
    }

    /// Why a lookup has no answer so far, if nobody could be asked.
    #[must_use]
    pub fn trouble_of_lookup(&self, pending: &PendingLookup) -> Option<String> {
        self.trouble_of(pending.binding())
    }
}
