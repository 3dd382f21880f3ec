//! Workers that are heard, kept for whoever shows them, or tells others of them.

use std::collections::BTreeMap;
use std::time::Duration;

use exoskel_task::message::{HEARD_MAX, HeardWorker};

use crate::manager::hints::{HINTS_MAX, Hint};

/// How long the same workers are told of where more are heard than can be told of at once: long enough that each is dialled.
pub const TURN_TIME: Duration = Duration::from_secs(60);

/// Announcements that were not taken back, by their names: a number of those that are wanted, and as many others, so that neither
/// leaves the other no room.
#[derive(Debug, Default)]
pub struct HeardList {
    wanted: Announcements,
    others: Announcements,
}

#[derive(Debug, Default)]
struct Announcements {
    heard: BTreeMap<String, (u64, Hint)>,
    number: u64,
}

impl HeardList {
    /// An announcement. Where there are too many, the oldest goes.
    pub fn heard(&mut self, announcement: String, hint: Hint, is_wanted: bool) {
        let (list, other) = match is_wanted {
            true => (&mut self.wanted, &mut self.others),
            false => (&mut self.others, &mut self.wanted),
        };
        other.heard.remove(&announcement);
        list.heard(announcement, hint);
    }

    /// An announcement was taken back, or not repeated in time.
    pub fn gone(&mut self, announcement: &str) {
        self.wanted.heard.remove(announcement);
        self.others.heard.remove(announcement);
    }

    /// Forgets all.
    pub fn clear(&mut self) {
        *self = Self::default();
    }

    /// All announcements: those that are wanted, then others.
    pub fn hints(&self) -> impl Iterator<Item = &Hint> {
        let lists = [&self.wanted, &self.others].into_iter();
        lists.flat_map(|list| list.heard.values().map(|(_, hint)| hint))
    }

    /// Who is told of at this time: where there are too many for one telling, all have their turn.
    #[must_use]
    pub fn telling(&self, now: Duration) -> Vec<HeardWorker> {
        let told = self.hints().filter_map(|hint| {
            let addresses = hint.dialable();
            let name = hint.name.clone();
            (!addresses.is_empty()).then_some(HeardWorker { name, addresses })
        });
        let mut told: Vec<_> = told.collect();
        if told.len() > HEARD_MAX {
            let turn = now.as_secs() / TURN_TIME.as_secs();
            let turns = told.len().div_ceil(HEARD_MAX) as u64;
            told.rotate_left((turn % turns) as usize * HEARD_MAX);
            told.truncate(HEARD_MAX);
        }
        told
    }
}

impl Announcements {
    fn heard(&mut self, announcement: String, hint: Hint) {
        if let Some((_, known)) = self.heard.get_mut(&announcement) {
            *known = hint;
            return;
        }
        if self.heard.len() >= HINTS_MAX {
            let oldest = self.heard.iter().min_by_key(|(_, (number, _))| *number);
            if let Some(oldest) = oldest.map(|(announcement, _)| announcement.clone()) {
                self.heard.remove(&oldest);
            }
        }
        self.number += 1;
        self.heard.insert(announcement, (self.number, hint));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manager::hints::HintedAddress;
    use std::collections::BTreeSet;

    fn hint(name: &str, address: &str) -> Hint {
        let address = HintedAddress {
            address: address.parse().unwrap(),
            is_near: true,
        };
        Hint {
            name: name.to_owned(),
            addresses: vec![address],
        }
    }

    fn names(list: &HeardList) -> BTreeSet<&str> {
        list.hints().map(|hint| hint.name.as_str()).collect()
    }

    #[test]
    fn names_that_are_not_wanted_leave_room_for_those_that_are() {
        let mut list = HeardList::default();
        list.heard("early".to_owned(), hint("early.lab", "192.0.2.1:1"), true);
        for number in 0..HINTS_MAX + 200 {
            let name = format!("liar{number}.elsewhere");
            list.heard(name.clone(), hint(&name, "192.0.2.66:1"), false);
        }
        list.heard("late".to_owned(), hint("late.lab", "192.0.2.2:1"), true);
        let kept = names(&list);
        assert!(kept.contains("early.lab") && kept.contains("late.lab"));
        assert_eq!(kept.len(), HINTS_MAX + 2);
        list.gone("early");
        list.heard(
            "late".to_owned(),
            hint("late.elsewhere", "192.0.2.2:1"),
            false,
        );
        let kept = names(&list);
        assert!(!kept.contains("early.lab") && !kept.contains("late.lab"));
        assert_eq!(kept.len(), HINTS_MAX);
    }

    #[test]
    fn everybody_is_told_of_in_turn() {
        let mut list = HeardList::default();
        list.heard("nobody".to_owned(), hint("a b", "192.0.2.1:1"), true);
        list.heard("nowhere".to_owned(), hint("n.lab", "127.0.0.1:1"), true);
        assert_eq!(list.telling(Duration::ZERO), []);
        let count = 2 * HEARD_MAX + 10;
        for number in 0..count {
            let name = format!("n{number}.lab");
            list.heard(name.clone(), hint(&name, "192.0.2.1:1"), true);
        }
        let mut told = BTreeSet::new();
        for turn in 0..3 {
            let telling = list.telling(TURN_TIME * turn);
            assert_eq!(telling.len(), HEARD_MAX);
            assert_eq!(telling, list.telling(TURN_TIME * turn + TURN_TIME / 2));
            told.extend(telling.into_iter().map(|worker| worker.name));
        }
        assert_eq!(told.len(), count);
        list.clear();
        assert_eq!(list.telling(Duration::ZERO), []);
    }
}
