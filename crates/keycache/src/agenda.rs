//! What happens when, in one order for every run, for millions of events each second.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use crate::time::Picoseconds;

/// Events by time; those of the same time in the order in which they were planned. The crate's other agenda is a tree over
/// `Duration`; here an event is three words, in a heap that only grows.
#[derive(Debug)]
pub(crate) struct PacketAgenda<E> {
    events: BinaryHeap<AgendaEntry<E>>,
    planned: u64,
}

#[derive(Debug)]
struct AgendaEntry<E> {
    at: Picoseconds,
    sequence: u64,
    event: E,
}

impl<E> AgendaEntry<E> {
    fn key(&self) -> u128 {
        u128::from(self.at.0) << 64 | u128::from(self.sequence)
    }
}

// The heap gives the greatest first.
impl<E> Ord for AgendaEntry<E> {
    fn cmp(&self, other: &Self) -> Ordering {
        other.key().cmp(&self.key())
    }
}

impl<E> PartialOrd for AgendaEntry<E> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<E> PartialEq for AgendaEntry<E> {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl<E> Eq for AgendaEntry<E> {}

impl<E> PacketAgenda<E> {
    pub(crate) fn new() -> Self {
        Self {
            events: BinaryHeap::new(),
            planned: 0,
        }
    }

    pub(crate) fn plan(&mut self, at: Picoseconds, event: E) {
        self.events.push(AgendaEntry {
            at,
            sequence: self.planned,
            event,
        });
        self.planned += 1;
    }

    /// The next event and its time.
    pub(crate) fn next(&mut self) -> Option<(Picoseconds, E)> {
        self.events.pop().map(|entry| (entry.at, entry.event))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_by_time_and_then_by_plan() {
        let mut agenda = PacketAgenda::new();
        for (at, name) in [(2, 'c'), (1, 'a'), (2, 'd'), (1, 'b')] {
            agenda.plan(Picoseconds(at), name);
        }
        let names: String = std::iter::from_fn(|| agenda.next())
            .map(|(_, name)| name)
            .collect();
        assert_eq!(names, "abcd");
    }
}
