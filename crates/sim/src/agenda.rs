//! What happens when, in one order for every run.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::time::Duration;

/// Events by time; those of the same time in the order in which they were planned.
#[derive(Debug)]
pub(crate) struct Agenda<E> {
    events: BTreeMap<Reverse<(Duration, u64)>, E>,
    planned: u64,
}

impl<E> Agenda<E> {
    pub(crate) fn new() -> Self {
        Self {
            events: BTreeMap::new(),
            planned: 0,
        }
    }

    pub(crate) fn plan(&mut self, at: Duration, event: E) {
        self.events.insert(Reverse((at, self.planned)), event);
        self.planned += 1;
    }

    /// The next event and its time.
    pub(crate) fn next(&mut self) -> Option<(Duration, E)> {
        self.events
            .pop_last()
            .map(|(Reverse((at, _)), event)| (at, event))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_by_time_and_then_by_plan() {
        let mut agenda = Agenda::new();
        for (at, name) in [(2, "c"), (1, "a"), (2, "d"), (1, "b")] {
            agenda.plan(Duration::from_secs(at), name);
        }
        let names: Vec<_> = std::iter::from_fn(|| agenda.next())
            .map(|(_, name)| name)
            .collect();
        assert_eq!(names, ["a", "b", "c", "d"]);
    }
}
