//! Workers that are heard on the network, by the manager itself or by workers that tell it. What is heard is a hint, which everybody may
//! send: what is kept of hints has a limit, and so has how often places are dialled because of them.
//!
//! A place that doesn't prove its name has a trial of some seconds. Then the next address of its announcement has its turn, after the places
//! that were tried less often. So lies cost time, and an honest worker is dialled as long as its announcement is heard.
//!
//! What a worker tells is a source of its own, with limits of its own: a worker that lies, or hears liars, takes nothing from what others
//! tell or the manager hears.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use exoskel_identity::limits::NAME_BYTES_MAX;
use exoskel_task::message::{HEARD_MAX, HeardWorker};

/// Announcements that are kept of those that the manager hears; and as many of all that workers tell of.
pub const HINTS_MAX: usize = 4096;

/// Addresses of an announcement that are kept. A host has several; who says more lies.
pub const ADDRESSES_MAX: usize = 8;

/// Places that are dialled for one name at the same time, without those that have proven it.
pub const TRIALS_OF_NAME_MAX: usize = 4;

/// How long a place is dialled that doesn't prove its name, when others wait.
pub const TRIAL_TIME: Duration = Duration::from_secs(10);

/// How long a place is kept that was not asked at all, since enough others are: it must not keep its source's other places waiting for ever.
pub const UNTRIED_TIME: Duration = Duration::from_secs(300);

/// The limits of what the manager hears.
pub const OF_MANAGER: SourceLimits = SourceLimits {
    hints: HINTS_MAX,
    places: 1024,
    trials_at_once: 64,
    trial_pause: Duration::from_millis(50),
};

/// The limits of what one worker tells.
pub const OF_WORKER: SourceLimits = SourceLimits {
    hints: HEARD_MAX,
    places: 8,
    trials_at_once: 8,
    trial_pause: Duration::from_secs(2),
};

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

/// How much of what comes from one source is kept and tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SourceLimits {
    /// Announcements that are kept.
    pub hints: usize,
    /// Places that are tried at the same time, without those that have proven their names.
    pub places: usize,
    /// Trials that may begin at once. Those that prove a name are given back.
    pub trials_at_once: u32,
    /// How long it takes until another one may begin.
    pub trial_pause: Duration,
}

/// How the trial of a place that is dialled stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trial {
    /// It was not asked yet.
    Untried,
    /// It failed when it was asked last.
    Failing,
    /// It has proven its name, and works or has not failed since.
    Proven,
}

/// What has been heard and not been taken back.
#[derive(Debug)]
pub struct Hints {
    of_manager: Source,
    /// By the names of the workers that tell.
    of_workers: BTreeMap<String, Source>,
    /// When those end that are stale.
    stale_until: Option<Duration>,
}

/// What comes from one source.
#[derive(Debug)]
struct Source {
    limits: SourceLimits,
    /// By the names of the announcements, which are none of workers.
    heard: BTreeMap<String, Known>,
    /// Announcements so far.
    number: u64,
    /// Trials that have begun, less those that proved a name or that time has made good since.
    trials_spent: u32,
    refilled_at: Duration,
    /// The newest have their turn before the oldest, and the next time the oldest: a flood is one or the other.
    newest_first: bool,
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
    /// That place has proven the name.
    is_proven: bool,
    /// Its trial is not made good.
    is_spent: bool,
    /// It has not been heard since everybody was asked again, or is not told of any more.
    is_stale: bool,
}

/// A name that is proven at a port, at whatever address.
type ProvenName = (String, u16);

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

impl Default for Hints {
    fn default() -> Self {
        Self {
            of_manager: Source::new(OF_MANAGER),
            of_workers: BTreeMap::new(),
            stale_until: None,
        }
    }
}

impl Hints {
    /// The manager has heard an announcement. Where there are too many, the oldest of those goes whose worker hasn't proven its name.
    pub fn heard(&mut self, announcement: &str, hint: &Hint, is_allowed: impl Fn(&str) -> bool) {
        let addresses = hint.dialable();
        if addresses.is_empty() || !is_allowed(&hint.name) {
            self.of_manager.heard.remove(announcement);
            return;
        }
        self.of_manager.hear(announcement, &hint.name, addresses);
    }

    /// An announcement was taken back, or not repeated in time.
    pub fn gone(&mut self, announcement: &str) {
        self.of_manager.heard.remove(announcement);
    }

    /// A worker of this name has told of all that it hears; of nobody, when it has gone. What has proven its name meanwhile goes on without it.
    pub fn told(&mut self, worker: &str, heard: &[HeardWorker], is_allowed: impl Fn(&str) -> bool) {
        let heard = heard
            .iter()
            .take(HEARD_MAX)
            .filter(|heard| is_allowed(&heard.name));
        let heard = heard.filter_map(|heard| {
            let addresses = dialable_from_elsewhere(heard);
            let first = addresses.first()?;
            Some((format!("{} {first}", heard.name), &heard.name, addresses))
        });
        let heard: Vec<_> = heard.collect();
        if heard.is_empty() && !self.of_workers.contains_key(worker) {
            return;
        }
        let source = self.of_workers.entry(worker.to_owned());
        let source = source.or_insert_with(|| Source::new(OF_WORKER));
        for known in source.heard.values_mut() {
            known.is_stale = true;
        }
        source.heard.retain(|announcement, known| {
            known.is_proven || heard.iter().any(|(told, ..)| told == announcement)
        });
        for (announcement, name, addresses) in heard {
            source.hear(&announcement, name, addresses);
        }
        self.make_room();
    }

    /// Takes from the worker that tells of the most, until what all of them tell is within its limit.
    fn make_room(&mut self) {
        let mut total: usize = self
            .of_workers
            .values()
            .map(|source| source.heard.len())
            .sum();
        while total > HINTS_MAX {
            let largest = self
                .of_workers
                .values_mut()
                .max_by_key(|source| source.heard.len());
            let Some(largest) = largest else {
                return;
            };
            if !largest.drop_oldest() {
                largest.heard.pop_first();
            }
            total -= 1;
        }
    }

    /// Other names are allowed than before.
    pub fn retain(&mut self, is_allowed: impl Fn(&str) -> bool) {
        for source in self.sources() {
            source.heard.retain(|_, known| is_allowed(&known.name));
        }
    }

    /// Everybody is asked again, by somebody who does not know whom these are of: those that are not heard soon are gone.
    pub fn ask_again(&mut self, now: Duration) {
        for known in self.of_manager.heard.values_mut() {
            known.is_stale = true;
        }
        self.stale_until = Some(now + STALE_TIME);
    }

    /// Where workers may be dialled now.
    pub fn places(
        &mut self,
        now: Duration,
        trial: impl Fn(&HintedPlace) -> Trial,
    ) -> BTreeSet<HintedPlace> {
        if self.stale_until.take_if(|until| now >= *until).is_some() {
            self.of_manager.heard.retain(|_, known| !known.is_stale);
        }
        let mut places = BTreeSet::new();
        // First what goes on, of all: what one source has found no other one needs to look for.
        for source in self.sources() {
            source.go_on(now, &trial, &mut places);
        }
        for source in self.of_workers.values_mut() {
            source
                .heard
                .retain(|_, known| known.is_proven || !known.is_stale);
        }
        let proven = self.sources().flat_map(|source| source.heard.values());
        let proven = proven.filter(|known| known.is_proven).filter_map(|known| {
            let (address, _) = known.dialled?;
            Some((known.name.clone(), address.port()))
        });
        let proven: BTreeSet<ProvenName> = proven.collect();
        self.of_manager
            .try_others(now, &BTreeSet::new(), &mut places);
        for source in self.of_workers.values_mut() {
            source.try_others(now, &proven, &mut places);
        }
        // Not before: whoever told of nobody for a moment would have all trials anew.
        self.of_workers
            .retain(|_, source| !source.heard.is_empty() || source.trials_spent > 0);
        places
    }

    fn sources(&mut self) -> impl Iterator<Item = &mut Source> {
        std::iter::once(&mut self.of_manager).chain(self.of_workers.values_mut())
    }
}

impl Source {
    fn new(limits: SourceLimits) -> Self {
        Self {
            limits,
            heard: BTreeMap::new(),
            number: 0,
            trials_spent: 0,
            refilled_at: Duration::ZERO,
            newest_first: false,
        }
    }

    /// Takes up an allowed announcement. Where there are too many, the oldest of those goes whose worker hasn't proven its name.
    fn hear(&mut self, announcement: &str, name: &str, addresses: Vec<SocketAddr>) {
        if let Some(known) = self.heard.get_mut(announcement) {
            if known.name == name {
                // Who says something else every moment has no more trials by that.
                known.addresses = addresses;
                known.is_stale = false;
                let moved = known
                    .dialled
                    .take_if(|(address, _)| !known.addresses.contains(address));
                known.is_proven &= moved.is_none();
                return;
            }
            self.heard.remove(announcement);
        }
        if self.heard.len() >= self.limits.hints && !self.drop_oldest() {
            return;
        }
        self.number += 1;
        let known = Known {
            number: self.number,
            name: name.to_owned(),
            addresses,
            trials: 0,
            dialled: None,
            is_proven: false,
            is_spent: false,
            is_stale: false,
        };
        self.heard.insert(announcement.to_owned(), known);
    }

    /// Forgets the oldest of those whose worker hasn't proven its name; says whether there was one.
    fn drop_oldest(&mut self) -> bool {
        let unproven = self.heard.iter().filter(|(_, known)| !known.is_proven);
        let oldest = unproven.min_by_key(|(_, known)| known.number);
        let oldest = oldest.map(|(announcement, _)| announcement.clone());
        oldest.is_some_and(|oldest| self.heard.remove(&oldest).is_some())
    }

    /// Looks at the places that are dialled: those that have proven their names go on, and others until their trial is over.
    fn go_on(
        &mut self,
        now: Duration,
        trial: impl Fn(&HintedPlace) -> Trial,
        places: &mut BTreeSet<HintedPlace>,
    ) {
        for known in self.heard.values_mut() {
            let Some((address, since)) = known.dialled else {
                continue;
            };
            let place = known.place(address);
            let (is_proven, time) = match trial(&place) {
                Trial::Proven => (true, Duration::MAX),
                Trial::Failing => (false, TRIAL_TIME),
                Trial::Untried => (false, UNTRIED_TIME),
            };
            if is_proven && std::mem::take(&mut known.is_spent) {
                self.trials_spent = self.trials_spent.saturating_sub(1);
            }
            known.is_proven = is_proven;
            if now.saturating_sub(since) < time {
                places.insert(place);
            } else {
                known.dialled = None;
            }
        }
    }

    /// Begins trials of those whose turn it is.
    fn try_others(
        &mut self,
        now: Duration,
        proven: &BTreeSet<ProvenName>,
        places: &mut BTreeSet<HintedPlace>,
    ) {
        let mut trials_of: BTreeMap<String, usize> = BTreeMap::new();
        let mut trials = 0;
        let mut waiting = Vec::new();
        for known in self.heard.values_mut() {
            if known.dialled.is_none() {
                waiting.push(known);
            } else if !known.is_proven {
                *trials_of.entry(known.name.clone()).or_default() += 1;
                trials += 1;
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
        let pause = self.limits.trial_pause;
        let brought = now.saturating_sub(self.refilled_at).as_millis() / pause.as_millis();
        let brought = u32::try_from(brought).unwrap_or(u32::MAX);
        self.trials_spent = self.trials_spent.saturating_sub(brought);
        self.refilled_at += pause * brought;
        for known in waiting {
            if trials == self.limits.places || self.trials_spent == self.limits.trials_at_once {
                break;
            }
            let count = trials_of.entry(known.name.clone()).or_default();
            if *count == TRIALS_OF_NAME_MAX {
                continue;
            }
            let Some(address) = known.next_address() else {
                continue;
            };
            if proven.contains(&(known.name.clone(), address.port())) {
                continue;
            }
            let place = known.place(address);
            known.trials += 1;
            // Two announcements of one place are one place.
            if places.insert(place) {
                known.dialled = Some((address, now));
                known.is_spent = true;
                self.trials_spent += 1;
                trials += 1;
                *count += 1;
            }
        }
    }
}

/// The addresses at which a worker can be reached that another one hears, in the order in which that one says them; none if its name is none of a worker.
fn dialable_from_elsewhere(heard: &HeardWorker) -> Vec<SocketAddr> {
    if !is_name(&heard.name) {
        return Vec::new();
    }
    let mut addresses = Vec::new();
    for address in heard.addresses.iter().take(ADDRESSES_MAX) {
        if is_of_host(address) && !is_of_link(address) && !addresses.contains(address) {
            addresses.push(*address);
        }
    }
    addresses
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

/// Whether it holds on one link only.
fn is_of_link(address: &SocketAddr) -> bool {
    match address.ip().to_canonical() {
        IpAddr::V4(ip) => ip.is_link_local(),
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    }
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

    const NOBODY: fn(&HintedPlace) -> Trial = |_| Trial::Failing;

    fn proven_if(is_proven: bool) -> Trial {
        match is_proven {
            true => Trial::Proven,
            false => Trial::Failing,
        }
    }

    fn worker(name: &str, addresses: &[&str]) -> HeardWorker {
        HeardWorker {
            name: name.to_owned(),
            addresses: addresses.iter().map(|text| text.parse().unwrap()).collect(),
        }
    }

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
            self.heard(announcement, &hint, is_of_lab);
        }

        fn tell(&mut self, by: &str, heard: &[HeardWorker]) {
            self.told(by, heard, is_of_lab);
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
            let now = TRIAL_TIME * u32::try_from(hints.of_manager.heard["a"].trials).unwrap();
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
            let places = hints.places(TRIAL_TIME * time, |place| proven_if(good(place)));
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
            let places = hints.places(TRIAL_TIME * time, |place| proven_if(proven(place)));
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
        assert_eq!(hints.of_manager.heard.len(), 0, "nobody may dial these");
        let mut tried = BTreeSet::new();
        for number in 0..HINTS_MAX + 200 {
            let name = format!("liar{number}.lab");
            hints.hear(&name, &name, &["192.0.2.66:1"]);
        }
        assert_eq!(hints.of_manager.heard.len(), HINTS_MAX);
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
            assert!(dialled.len() <= OF_MANAGER.places);
            is_found |= dialled.iter().any(|place| place.starts_with("n1.lab "));
            tried.extend(dialled);
        }
        assert!(is_found, "its turn comes");
        let most = u64::from(OF_MANAGER.trials_at_once) + minutes * 60 * 20;
        assert!(tried.len() as u64 <= most, "{} trials", tried.len());
    }
    #[test]
    fn what_workers_tell_is_dialled_in_their_order_and_not_where_nobody_else_can_be() {
        let mut hints = Hints::default();
        let elsewhere = [
            "127.0.0.1:7601",
            "[::1]:7601",
            "[::ffff:127.0.0.1]:7601",
            "0.0.0.0:7601",
            "224.0.0.251:7601",
            "169.254.1.1:7601",
            "[fe80::1]:7601",
            "192.0.2.1:0",
        ];
        hints.tell(
            "a",
            &[
                worker("n1.lab", &elsewhere),
                worker("n2.elsewhere", &["192.0.2.2:1"]),
            ],
        );
        assert_eq!(hints.dialled(seconds(0)), [""; 0]);
        hints.tell(
            "a",
            &[worker(
                "n1.lab",
                &["192.0.2.9:1", "192.0.2.1:1", "192.0.2.9:1"],
            )],
        );
        assert_eq!(hints.dialled(seconds(0)), ["n1.lab 192.0.2.9:1"]);
        assert_eq!(hints.dialled(TRIAL_TIME), ["n1.lab 192.0.2.1:1"]);
        assert_eq!(hints.dialled(TRIAL_TIME * 2), ["n1.lab 192.0.2.9:1"]);
        for name in ["", "a\u{1b}[2J.lab", "a b.lab", "/DC=org/CN=a.lab"] {
            hints.tell("a", &[worker(name, &["192.0.2.3:1"])]);
        }
        assert_eq!(
            hints.dialled(TRIAL_TIME * 3),
            [""; 0],
            "it tells of nobody else any more"
        );
    }

    #[test]
    fn a_worker_that_was_told_of_outlives_who_told_as_long_as_it_is_proven() {
        let mut hints = Hints::default();
        let told = [
            worker("n1.lab", &["192.0.2.1:1"]),
            worker("n2.lab", &["192.0.2.2:2"]),
        ];
        hints.tell("a", &told);
        let is_first = |place: &HintedPlace| proven_if(place.address.port() == 1);
        assert_eq!(hints.places(seconds(0), is_first).len(), 2);
        assert_eq!(hints.places(seconds(1), is_first).len(), 2);
        hints.tell("a", &[]);
        let names = |places: BTreeSet<HintedPlace>| -> Vec<String> {
            places.into_iter().map(|place| place.name).collect()
        };
        assert_eq!(names(hints.places(seconds(2), is_first)), ["n1.lab"]);
        // Told of again, and not any more: it is the same place all the time.
        hints.tell("a", &told[..1]);
        hints.tell("a", &[]);
        assert_eq!(names(hints.places(seconds(60), is_first)), ["n1.lab"]);
        hints.places(seconds(61), NOBODY);
        assert_eq!(hints.dialled(seconds(62)), [""; 0]);
        assert!(hints.of_workers.is_empty());
    }

    /// Each turn of a second, liars tell of other places; every place that is not the honest one fails.
    #[test]
    fn a_worker_that_lies_without_end_takes_nothing_from_others() {
        let mut hints = Hints::default();
        hints.hear("n1", "n1.lab", &["192.0.2.1:1"]);
        hints.tell(
            "honest",
            &[
                worker("n1.lab", &["192.0.2.3:1"]),
                worker("n2.lab", &["192.0.2.2:1"]),
            ],
        );
        let mut tried = BTreeSet::new();
        let trial = |place: &HintedPlace| proven_if(place.address.port() == 1);
        for second in 0..60_u16 {
            let lies: Vec<_> = (0..2 * HEARD_MAX)
                .map(|number| {
                    let name = if number % 2 == 0 {
                        "n2.lab".to_owned()
                    } else {
                        format!("liar{number}.lab")
                    };
                    worker(
                        &name,
                        &[&format!("198.51.100.{}:{}", number % 256, second + 2)],
                    )
                })
                .collect();
            hints.tell("liar", &lies);
            assert!(hints.of_workers["liar"].heard.len() <= HEARD_MAX);
            let places = hints.places(seconds(second.into()), trial);
            assert!(
                places
                    .iter()
                    .any(|place| place.name == "n1.lab" && place.address.port() == 1)
            );
            assert!(
                places
                    .iter()
                    .any(|place| place.name == "n2.lab" && place.address.port() == 1)
            );
            tried.extend(places.into_iter().filter(|place| place.address.port() != 1));
        }
        let most = OF_WORKER.trials_at_once as usize + 30;
        assert!(
            (8..=most).contains(&tried.len()),
            "{} lies were tried",
            tried.len()
        );
    }

    #[test]
    fn honest_workers_of_a_network_are_found_at_once_and_each_once() {
        let told: Vec<_> = (0..60)
            .map(|number| {
                let near = format!("192.0.2.{number}:7601");
                worker(
                    &format!("n{number}.lab"),
                    &[&near, &format!("10.0.0.{number}:7601")],
                )
            })
            .collect();
        let proven = |place: &HintedPlace| proven_if(place.address.to_string().starts_with("192."));
        for tellers in [1, 60] {
            let mut hints = Hints::default();
            for teller in 0..tellers {
                hints.tell(&format!("n{teller}.lab"), &told);
            }
            let mut places = BTreeSet::new();
            for second in 0..10 {
                places = hints.places(seconds(second), proven);
            }
            assert_eq!(places.len(), 60, "{tellers} tell: {places:?}");
            assert!(places.iter().all(|place| proven(place) == Trial::Proven));
        }
    }

    #[test]
    fn all_that_workers_tell_has_a_limit_that_takes_from_those_who_tell_most() {
        let mut hints = Hints::default();
        let told = |by: usize, count: usize| -> Vec<HeardWorker> {
            let name = |number| format!("n{number}.of{by}.lab");
            let named = (0..count).map(|number| worker(&name(number), &["192.0.2.1:1"]));
            named.collect()
        };
        hints.tell("modest", &told(0, 3));
        for by in 1..=3 * HINTS_MAX / HEARD_MAX {
            hints.tell(&format!("teller{by}"), &told(by, HEARD_MAX));
        }
        let counts = hints.of_workers.values().map(|source| source.heard.len());
        assert_eq!(counts.sum::<usize>(), HINTS_MAX);
        assert_eq!(hints.of_workers["modest"].heard.len(), 3);
        hints.tell("late", &told(99, 5));
        assert_eq!(hints.of_workers["late"].heard.len(), 5);
    }

    #[test]
    fn a_place_that_nobody_has_asked_waits_for_that() {
        let mut hints = Hints::default();
        let lies: Vec<_> = (0..20)
            .map(|number| worker(&format!("n{number}.lab"), &["192.0.2.1:1"]))
            .collect();
        hints.tell("a", &lies);
        let untried = |_: &HintedPlace| Trial::Untried;
        let first = hints.places(seconds(0), untried);
        assert_eq!(first.len(), OF_WORKER.places);
        assert_eq!(hints.places(UNTRIED_TIME / 2, untried), first);
        assert!(hints.places(UNTRIED_TIME, untried).is_disjoint(&first));
    }

    #[test]
    fn telling_of_nobody_for_a_moment_gives_no_trials() {
        let mut hints = Hints::default();
        let mut tried = BTreeSet::new();
        for round in 0..20 {
            let lies =
                (0..20).map(|number| worker(&format!("n{number}.r{round}.lab"), &["192.0.2.1:1"]));
            hints.tell("a", &lies.collect::<Vec<_>>());
            tried.extend(hints.places(Duration::from_millis(round), NOBODY));
            hints.tell("a", &[]);
            hints.places(Duration::from_millis(round), NOBODY);
        }
        assert_eq!(tried.len(), OF_WORKER.trials_at_once as usize);
        hints.places(seconds(60), NOBODY);
        assert!(hints.of_workers.is_empty());
    }
}
