//! Workers that are heard on the network. What is heard is a hint, which everybody may send: what is kept of hints has a limit, and so has
//! the number of places that are dialled because of them.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use exoskel_identity::limits::NAME_BYTES_MAX;

/// Announcements that are kept.
pub const HINTS_MAX: usize = 4096;

/// Places that are dialled for one name. A name is announced from several places if somebody lies, or if its worker has moved.
pub const PLACES_OF_NAME_MAX: usize = 4;

/// Places that are ever dialled because of hints.
pub const PLACES_MAX: usize = 4096;

/// What an announcement says of a worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hint {
    /// The name that its certificate is to prove.
    pub name: String,
    /// Where it is reached, by one or the other.
    pub addresses: Vec<SocketAddr>,
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
    heard: BTreeMap<String, Hint>,
    /// All that were ever given.
    given: BTreeSet<HintedPlace>,
}

impl Hints {
    /// An announcement. Where there are too many, one of a name that is not allowed goes.
    pub fn heard(&mut self, announcement: &str, hint: Hint, is_allowed: impl Fn(&str) -> bool) {
        if !is_name(&hint.name) || hint.addresses.is_empty() {
            self.heard.remove(announcement);
            return;
        }
        if self.heard.len() >= HINTS_MAX && !self.heard.contains_key(announcement) {
            let mut known = self.heard.iter();
            let other = known.find(|(_, known)| !is_allowed(&known.name));
            let Some(other) = other.map(|(other, _)| other.clone()) else {
                return;
            };
            self.heard.remove(&other);
        }
        self.heard.insert(announcement.to_owned(), hint);
    }

    /// An announcement was taken back, or not repeated in time.
    pub fn gone(&mut self, announcement: &str) {
        self.heard.remove(announcement);
    }

    /// Where workers of allowed names may be dialled now.
    pub fn places(&mut self, is_allowed: impl Fn(&str) -> bool) -> BTreeSet<HintedPlace> {
        let mut places = BTreeSet::new();
        let mut of_name: BTreeMap<&str, usize> = BTreeMap::new();
        for hint in self.heard.values().filter(|hint| is_allowed(&hint.name)) {
            let Some(address) = hint.addresses.iter().min_by_key(|address| farness(address)) else {
                continue;
            };
            let place = HintedPlace {
                name: hint.name.clone(),
                address: *address,
            };
            let count = of_name.entry(&hint.name).or_default();
            if *count == PLACES_OF_NAME_MAX || places.contains(&place) {
                continue;
            }
            if !self.given.contains(&place) {
                if self.given.len() == PLACES_MAX {
                    continue;
                }
                self.given.insert(place.clone());
            }
            *count += 1;
            places.insert(place);
        }
        places
    }
}

/// Whether certificates of workers have such names.
fn is_name(name: &str) -> bool {
    let is_part = |byte: u8| byte.is_ascii_alphanumeric() || b".-_:@+".contains(&byte);
    (1..=NAME_BYTES_MAX).contains(&name.len()) && name.bytes().all(is_part)
}

/// Of a worker's addresses, the least one is dialled: IPv4 first, then IPv6, then what holds on one link only.
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

    fn hint(name: &str, addresses: &[&str]) -> Hint {
        Hint {
            name: name.to_owned(),
            addresses: addresses.iter().map(|text| text.parse().unwrap()).collect(),
        }
    }

    fn is_of_lab(name: &str) -> bool {
        name.ends_with(".lab")
    }

    fn dialled(hints: &mut Hints) -> Vec<String> {
        let places = hints.places(is_of_lab);
        let shown = places
            .iter()
            .map(|place| format!("{} {}", place.name, place.address));
        shown.collect()
    }

    #[test]
    fn allowed_names_are_dialled_at_their_nearest_address() {
        let mut hints = Hints::default();
        let addresses = ["[fe80::1]:7601", "[2001:db8::1]:7601", "192.0.2.9:7601"];
        hints.heard("a", hint("n1.lab", &addresses), is_of_lab);
        hints.heard("b", hint("n1.elsewhere", &addresses), is_of_lab);
        hints.heard("c", hint("n2.lab", &addresses[..1]), is_of_lab);
        assert_eq!(
            dialled(&mut hints),
            ["n1.lab 192.0.2.9:7601", "n2.lab [fe80::1]:7601"]
        );
        hints.gone("a");
        hints.gone("never heard");
        assert_eq!(dialled(&mut hints), ["n2.lab [fe80::1]:7601"]);
        hints.heard("c", hint("n2.lab", &["192.0.2.3:1"]), is_of_lab);
        assert_eq!(dialled(&mut hints), ["n2.lab 192.0.2.3:1"], "it has moved");
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
            hints.heard("a", hint(name, &["192.0.2.1:1"]), is_of_lab);
        }
        hints.heard("b", hint("n1.lab", &[]), is_of_lab);
        assert_eq!(dialled(&mut hints), [""; 0]);
    }

    #[test]
    fn floods_cost_a_number_of_hints_and_dials() {
        let mut hints = Hints::default();
        for number in 0..3 * HINTS_MAX {
            let name = format!("liar{number}.elsewhere");
            hints.heard(&name, hint(&name, &["192.0.2.1:1"]), is_of_lab);
        }
        assert_eq!(hints.heard.len(), HINTS_MAX);
        hints.heard("n1", hint("n1.lab", &["192.0.2.2:1"]), is_of_lab);
        assert_eq!(
            dialled(&mut hints),
            ["n1.lab 192.0.2.2:1"],
            "there is room for it"
        );
        for port in 1..=60_000 {
            let announcement = format!("liar{}", port % 7);
            let place = format!("192.0.2.66:{port}");
            hints.heard(&announcement, hint("n1.lab", &[&place]), is_of_lab);
            assert!(dialled(&mut hints).len() <= PLACES_OF_NAME_MAX);
        }
        assert_eq!(hints.given.len(), PLACES_MAX);
    }
}
