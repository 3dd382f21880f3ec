//! Workers that are heard on the network. What is heard is a hint, which everybody may send: what is kept of hints has a limit, and so has
//! how often places are dialled because of them.
//!
//! A place that doesn't prove its name has a trial of some seconds. Then the next address of its announcement has its turn, after the places
//! that were tried less often. So lies cost time, and an honest worker is dialled as long as its announcement is heard.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use exoskel_identity::limits::NAME_BYTES_MAX;

/// Announcements that are kept.
pub const HINTS_MAX: usize = 4096;

/// Addresses of an announcement that are kept. A host has several; who says more lies.
pub const ADDRESSES_MAX: usize = 8;

/// Places that are dialled for one name at the same time, without those that have proven it.
pub const TRIALS_OF_NAME_MAX: usize = 4;

/// Places that are dialled at the same time.
pub const PLACES_MAX: usize = 1024;

/// How long a place is dialled that doesn't prove its name, when others wait.
pub const TRIAL_TIME: Duration = Duration::from_secs(10);

/// Trials that may begin at once.
pub const TRIALS_AT_ONCE_MAX: u32 = 64;

/// How long it takes until another trial may begin.
pub const TRIAL_PAUSE: Duration = Duration::from_millis(50);

/// How long an announcement counts that has not been heard since everybody was asked again.
pub const STALE_TIME: Duration = Duration::from_secs(10);

/// What an announcement says of a worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hint {
    /// The name that its certificate is to prove.
    pub name: String,
    /// Where it is reached, by one or the other.
    pub addresses: Vec<HintedAddress>,
}

impl Hint {
    /// The addresses that a worker on another host can have, in the order in which they are tried; none if its name is none of a worker.
    #[must_use]
    pub fn dialable(&self) -> Vec<SocketAddr> {
        if !is_name(&self.name) {
            return Vec::new();
        }
        let possible = self.addresses.iter();
        let possible = possible.filter(|hinted| is_of_host(&hinted.address));
        let mut possible: Vec<_> = possible.copied().collect();
        possible.sort_by_key(|hinted| (!hinted.is_near, farness(&hinted.address)));
        possible.dedup();
        possible.truncate(ADDRESSES_MAX);
        possible.iter().map(|hinted| hinted.address).collect()
    }
}

/// An address of an announcement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HintedAddress {
    /// The address.
    pub address: SocketAddr,
    /// It is on the subnet on which it was heard.
    pub is_near: bool,
}

/// A worker that may be dialled.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct HintedPlace {
    /// The name that its certificate must prove.
    pub name: String,
    /// Where.
    pub address: SocketAddr,
}

/// What has been heard and not been taken back.
#[derive(Debug, Default)]
pub struct Hints {
    /// By the names of the announcements, which are none of workers.
    heard: BTreeMap<String, Known>,
    /// Announcements so far.
    number: u64,
    /// Trials that have begun, less those that time has made good since.
    trials_spent: u32,
    refilled_at: Duration,
    /// The newest have their turn before the oldest, and the next time the oldest: a flood is one or the other.
    newest_first: bool,
    /// When those end that are stale.
    stale_until: Option<Duration>,
}

/// An announcement of an allowed name.
#[derive(Debug)]
struct Known {
    number: u64,
    name: String,
    /// The nearest first.
    addresses: Vec<SocketAddr>,
    /// Trials of it so far.
    trials: usize,
    /// The place that is dialled now, and since when.
    dialled: Option<(SocketAddr, Duration)>,
    /// It has not been heard since everybody was asked again.
    is_stale: bool,
}

impl Known {
    fn place(&self, address: SocketAddr) -> HintedPlace {
        HintedPlace {
            name: self.name.clone(),
            address,
        }
    }

    fn next_address(&self) -> Option<SocketAddr> {
        let position = self.trials.checked_rem(self.addresses.len())?;
        self.addresses.get(position).copied()
    }
}

impl Hints {
    /// An announcement. Where there are too many, the oldest of those goes whose worker hasn't proven its name.
    pub fn heard(
        &mut self,
        announcement: &str,
        hint: &Hint,
        is_allowed: impl Fn(&str) -> bool,
        is_proven: impl Fn(&HintedPlace) -> bool,
    ) {
        let addresses = hint.dialable();
        if addresses.is_empty() || !is_allowed(&hint.name) {
            self.heard.remove(announcement);
            return;
        }
        if let Some(known) = self.heard.get_mut(announcement) {
            if known.name == hint.name {
                // Who says something else every moment has no more trials by that.
                known.addresses = addresses;
                known.is_stale = false;
                known
                    .dialled
                    .take_if(|(address, _)| !known.addresses.contains(address));
                return;
            }
            self.heard.remove(announcement);
        }
        if self.heard.len() >= HINTS_MAX {
            let unproven = self.heard.iter().filter(|(_, known)| {
                let dialled = known.dialled.map(|(address, _)| known.place(address));
                !dialled.is_some_and(|place| is_proven(&place))
            });
            let oldest = unproven.min_by_key(|(_, known)| known.number);
            let Some(oldest) = oldest.map(|(announcement, _)| announcement.clone()) else {
                return;
            };
            self.heard.remove(&oldest);
        }
        self.number += 1;
        let known = Known {
            number: self.number,
            name: hint.name.clone(),
            addresses,
            trials: 0,
            dialled: None,
            is_stale: false,
        };
        self.heard.insert(announcement.to_owned(), known);
    }

    /// An announcement was taken back, or not repeated in time.
    pub fn gone(&mut self, announcement: &str) {
        self.heard.remove(announcement);
    }

    /// Other names are allowed than before.
    pub fn retain(&mut self, is_allowed: impl Fn(&str) -> bool) {
        self.heard.retain(|_, known| is_allowed(&known.name));
    }

    /// Everybody is asked again, by somebody who does not know whom these are of: those that are not heard soon are gone.
    pub fn ask_again(&mut self, now: Duration) {
        for known in self.heard.values_mut() {
            known.is_stale = true;
        }
        self.stale_until = Some(now + STALE_TIME);
    }

    /// Where workers may be dialled now.
    pub fn places(
        &mut self,
        now: Duration,
        is_proven: impl Fn(&HintedPlace) -> bool,
    ) -> BTreeSet<HintedPlace> {
        if self.stale_until.take_if(|until| now >= *until).is_some() {
            self.heard.retain(|_, known| !known.is_stale);
        }
        let mut places = BTreeSet::new();
        let mut trials_of: BTreeMap<String, usize> = BTreeMap::new();
        let mut waiting = Vec::new();
        for known in self.heard.values_mut() {
            let Some((address, since)) = known.dialled else {
                waiting.push(known);
                continue;
            };
            let place = known.place(address);
            if is_proven(&place) {
                places.insert(place);
            } else if now < since + TRIAL_TIME {
                places.insert(place);
                *trials_of.entry(known.name.clone()).or_default() += 1;
            } else {
                waiting.push(known);
            }
        }
        self.newest_first = !self.newest_first;
        let newest_first = self.newest_first;
        waiting.sort_by_key(|known| {
            let number = if newest_first {
                u64::MAX - known.number
            } else {
                known.number
            };
            (known.trials, number)
        });
        let brought = now.saturating_sub(self.refilled_at).as_millis() / TRIAL_PAUSE.as_millis();
        let brought = u32::try_from(brought).unwrap_or(u32::MAX);
        self.trials_spent = self.trials_spent.saturating_sub(brought);
        self.refilled_at += TRIAL_PAUSE * brought;
        for known in waiting {
            known.dialled = None;
            let count = trials_of.entry(known.name.clone()).or_default();
            if *count == TRIALS_OF_NAME_MAX
                || places.len() == PLACES_MAX
                || self.trials_spent == TRIALS_AT_ONCE_MAX
            {
                continue;
            }
            if let Some(address) = known.next_address() {
                let place = known.place(address);
                known.trials += 1;
                // Two announcements of one place are one place.
                if places.insert(place) {
                    known.dialled = Some((address, now));
                    self.trials_spent += 1;
                    *count += 1;
                }
            }
        }
        places
    }
}

/// Whether certificates of workers have such names.
fn is_name(name: &str) -> bool {
    let is_part = |byte: u8| byte.is_ascii_alphanumeric() || b".-_:@+".contains(&byte);
    (1..=NAME_BYTES_MAX).contains(&name.len()) && name.bytes().all(is_part)
}

/// Whether a worker on another host can have it.
fn is_of_host(address: &SocketAddr) -> bool {
    let ip = address.ip().to_canonical();
    let is_broadcast = matches!(ip, IpAddr::V4(ip) if ip.is_broadcast());
    address.port() != 0
        && !(ip.is_loopback() || ip.is_unspecified() || ip.is_multicast() || is_broadcast)
}

/// IPv4 first, then IPv6, then what holds on one link only.
fn farness(address: &SocketAddr) -> (u8, SocketAddr) {
    let kind = match address.ip() {
        IpAddr::V4(ip) if ip.is_link_local() => 2,
        IpAddr::V4(_) => 0,
        IpAddr::V6(ip) if ip.is_unicast_link_local() => 3,
        IpAddr::V6(_) => 1,
    };
    (kind, *address)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOBODY: fn(&HintedPlace) -> bool = |_| false;

    fn is_of_lab(name: &str) -> bool {
        name.ends_with(".lab")
    }

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    impl Hints {
        fn hear(&mut self, announcement: &str, name: &str, addresses: &[&str]) {
            let addresses = addresses.iter().map(|text| HintedAddress {
                address: text.trim_start_matches("near ").parse().unwrap(),
                is_near: text.starts_with("near "),
            });
            let hint = Hint {
                name: name.to_owned(),
                addresses: addresses.collect(),
            };
            self.heard(announcement, &hint, is_of_lab, NOBODY);
        }

        fn dialled(&mut self, now: Duration) -> Vec<String> {
            let places = self.places(now, NOBODY).into_iter();
            places
                .map(|place| format!("{} {}", place.name, place.address))
                .collect()
        }
    }

    #[test]
    fn allowed_names_are_dialled_at_one_address_after_the_other() {
        let mut hints = Hints::default();
        let addresses = [
            "[fe80::1]:7601",
            "172.17.0.1:7601",
            "near 192.0.2.9:7601",
            "127.0.0.1:7601",
            "0.0.0.0:7601",
            "224.0.0.251:7601",
            "255.255.255.255:7601",
            "[::1]:7601",
            "[::ffff:127.0.0.1]:7601",
            "192.0.2.10:0",
        ];
        hints.hear("a", "n1.lab", &addresses);
        hints.hear("b", "n1.elsewhere", &addresses);
        for expected in [
            "n1.lab 192.0.2.9:7601",
            "n1.lab 172.17.0.1:7601",
            "n1.lab [fe80::1]:7601",
            "n1.lab 192.0.2.9:7601",
        ] {
            let now = TRIAL_TIME * u32::try_from(hints.heard["a"].trials).unwrap();
            assert_eq!(hints.dialled(now), [expected]);
            assert_eq!(hints.dialled(now + TRIAL_TIME / 2), [expected]);
        }
        hints.gone("never heard");
        hints.gone("a");
        assert_eq!(hints.dialled(seconds(60)), [""; 0]);
        hints.hear("a", "n1.lab", &["192.0.2.3:1"]);
        hints.retain(|_| false);
        assert_eq!(hints.dialled(seconds(60)), [""; 0]);
    }

    #[test]
    fn a_worker_that_has_moved_is_dialled_there() {
        let mut hints = Hints::default();
        hints.hear("a", "n1.lab", &["192.0.2.2:1"]);
        assert_eq!(hints.dialled(seconds(0)), ["n1.lab 192.0.2.2:1"]);
        hints.hear("a", "n1.lab", &["192.0.2.3:1"]);
        assert_eq!(hints.dialled(seconds(0)), ["n1.lab 192.0.2.3:1"]);
    }

    #[test]
    fn who_is_not_heard_again_when_everybody_is_asked_is_gone() {
        let mut hints = Hints::default();
        hints.hear("a", "n1.lab", &["192.0.2.2:1"]);
        hints.hear("b", "n2.lab", &["192.0.2.3:1"]);
        hints.ask_again(seconds(1));
        hints.hear("b", "n2.lab", &["192.0.2.3:1"]);
        assert_eq!(hints.dialled(seconds(2)).len(), 2);
        assert_eq!(
            hints.dialled(seconds(1) + STALE_TIME),
            ["n2.lab 192.0.2.3:1"]
        );
    }

    #[test]
    fn a_place_that_has_proven_its_name_stays() {
        let mut hints = Hints::default();
        let good = |place: &HintedPlace| place.address.port() == 1;
        hints.hear("a", "n1.lab", &["192.0.2.2:1", "192.0.2.3:2"]);
        for time in 0..10 {
            let places = hints.places(TRIAL_TIME * time, good);
            assert!(places.iter().all(good) && places.len() == 1, "{places:?}");
        }
    }

    #[test]
    fn what_is_no_name_is_nothing() {
        let mut hints = Hints::default();
        let long = format!("{}.lab", "a".repeat(NAME_BYTES_MAX));
        for name in [
            "",
            "a\u{1b}[2J.lab",
            "a b.lab",
            "/DC=org/CN=a.lab",
            "ä.lab",
            &long,
        ] {
            hints.hear("a", name, &["192.0.2.1:1"]);
        }
        hints.hear("b", "n1.lab", &[]);
        assert_eq!(hints.dialled(seconds(0)), [""; 0]);
    }

    #[test]
    fn liars_of_one_name_do_not_keep_the_honest_worker_from_its_turn() {
        let mut hints = Hints::default();
        for liar in 0..20 {
            hints.hear(
                &format!("0 liar {liar}"),
                "n1.lab",
                &[&format!("192.0.2.66:{}", liar + 2)],
            );
        }
        hints.hear("n1", "n1.lab", &["192.0.2.1:1"]);
        let honest = "n1.lab 192.0.2.1:1".to_owned();
        let mut turns = 0;
        for time in 0..12 {
            let dialled = hints.dialled(TRIAL_TIME * time);
            assert_eq!(dialled.len(), TRIALS_OF_NAME_MAX);
            turns += u32::from(dialled.contains(&honest));
        }
        assert!(turns >= 2, "12 turns of 4 places are 48, for 21 places");
        // Once it has proven its name, no liar costs it its place.
        let proven = |place: &HintedPlace| place.address.port() == 1;
        let mut was_dialled = false;
        for time in 12..40 {
            let places = hints.places(TRIAL_TIME * time, proven);
            assert!(places.iter().any(proven) || !was_dialled);
            was_dialled |= places.iter().any(proven);
        }
        assert!(was_dialled);
    }

    #[test]
    fn floods_cost_a_number_of_hints_and_dials() {
        let mut hints = Hints::default();
        for number in 0..3 * HINTS_MAX {
            let name = format!("liar{number}.elsewhere");
            hints.hear(&name, &name, &["192.0.2.1:1"]);
        }
        assert_eq!(hints.heard.len(), 0, "nobody may dial these");
        let mut tried = BTreeSet::new();
        for number in 0..HINTS_MAX + 200 {
            let name = format!("liar{number}.lab");
            hints.hear(&name, &name, &["192.0.2.66:1"]);
        }
        assert_eq!(hints.heard.len(), HINTS_MAX);
        hints.hear("n1", "n1.lab", &["192.0.2.2:1"]);
        let (minutes, mut is_found) = (1, false);
        for second in 0..minutes * 60 {
            // And they say something else each second.
            for number in 0..100 {
                let announcement = format!("liar{}.lab", HINTS_MAX + number);
                let place = format!("192.0.2.66:{}", 2 + second);
                hints.hear(&announcement, &announcement, &[&place]);
            }
            let dialled = hints.dialled(seconds(second));
            assert!(dialled.len() <= PLACES_MAX);
            is_found |= dialled.iter().any(|place| place.starts_with("n1.lab "));
            tried.extend(dialled);
        }
        assert!(is_found, "its turn comes");
        let most = u64::from(TRIALS_AT_ONCE_MAX) + minutes * 60 * 20;
        assert!(tried.len() as u64 <= most, "{} trials", tried.len());
    }
}
