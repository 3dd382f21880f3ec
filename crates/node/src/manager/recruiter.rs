//! Who is asked for a slot next, and when nobody is left: children of this process, places where workers listen, and
//! workers that dial in.
//!
//! Places are asked, not slots: where an attempt has failed, one attempt at a time finds out whether that has changed, with
//! pauses that grow. As soon as one succeeds, as many more as the worker has slots are made side by side. Only what waiting
//! can't change ends this.

use std::time::Duration;

use exoskel_determinism::SplitMix64;
use exoskel_flow::contract::{Supply, Tier};

use super::backoff::Backoff;
use super::hints::Trial;

/// Children that died before they could work, in a row, after which no other is started: what they need isn't there.
pub const CHILDREN_LOST_MAX: u32 = 6;

/// Attempts under way at once. Each is a handshake; with too many side by side none of them would end in time.
const ATTEMPTS_MAX: usize = 64;

/// Of these, attempts at places that failed before: they may hang for seconds and must not keep others waiting.
const PROBES_MAX: usize = ATTEMPTS_MAX / 2;

/// Room of a source that sets no number of slots itself.
const ROOM_UNKNOWN: u32 = 1 << 16;

/// Where slots may come from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SlotSources {
    /// How many slots are wanted.
    pub slots: u32,
    /// Children of this process can be started.
    pub children: bool,
    /// The names of the workers that listen, one for each place.
    pub hosts: Vec<String>,
    /// Workers may dial in.
    pub listening: bool,
}

/// Where one slot comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlotSource {
    /// The child of this number.
    Child(u32),
    /// The place of this number.
    Host(usize),
    /// It dialled in.
    DialledIn,
}

/// Whether another attempt at a place may end better.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Prospect {
    /// Waiting may help.
    Passing,
    /// What was asked for had everything it needs from us, and came to nothing. After some of these in a row waiting won't help.
    Doubtful,
    /// Waiting can't help.
    Hopeless,
}

/// What is to be done to get a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wish {
    Start(u32),
    Dial(usize),
}

/// What a new list says of a place that is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Listing {
    /// It is in it no more.
    Unlisted,
    /// It is in it still.
    Kept,
    /// It is in it, and is asked even if that seemed hopeless: whoever writes the list may have mended more.
    Anew,
}

/// How recruiting at one place stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlaceState {
    /// As many slots as it has, or as are wanted.
    Served,
    /// An attempt is under way.
    Dialling,
    /// An attempt follows at this time.
    Waiting(Duration),
    /// It is not asked any more: that can't end better.
    Hopeless,
    /// Its line is gone from the host file.
    Unlisted,
}

/// What recruiting remembers.
#[derive(Debug)]
pub(super) struct Recruiter {
    wanted: usize,
    /// The most slots outside the trusted domains. Then, and while their number is planned, trusted places come first.
    remote_max: Option<u32>,
    prefers_trusted: bool,
    /// Slots outside the trusted domains that dialled in.
    remote_dialled_in: u32,
    in_flight: usize,
    next_child: u32,
    children: Option<ChildSource>,
    hosts: Vec<ListeningWorker>,
    /// How many places were listed so far.
    listings: u64,
    listening: bool,
    retry_at: Option<Duration>,
    random: SplitMix64,
}

#[derive(Debug, Default)]
struct ChildSource {
    backoff: Backoff,
    attempts: usize,
    /// Lost in a row before they could work.
    lost: u32,
}

#[derive(Debug)]
struct ListeningWorker {
    name: String,
    /// How many places were listed before it.
    listing: u64,
    /// Where its slots are, as far as that is known before one has come.
    tier: Tier,
    /// Slots and attempts.
    in_use: u32,
    attempts: u32,
    /// Slots it said it has; unknown before the first session.
    capacity: Option<u32>,
    backoff: Backoff,
    /// No other attempt can end better.
    is_hopeless: bool,
    /// It is not asked any more, whatever its other slots do.
    is_set_aside: bool,
    is_listed: bool,
}

impl ChildSource {
    fn may_start(&self, now: Duration) -> bool {
        self.has_hope()
            && self.backoff.next_at() <= now
            && (self.backoff.failures() == 0 || self.attempts == 0)
    }

    fn has_hope(&self) -> bool {
        self.lost < CHILDREN_LOST_MAX
    }
}

impl ListeningWorker {
    /// A place that is listed behind all others.
    fn new(name: String, listings: &mut u64) -> Self {
        let listing = *listings;
        *listings += 1;
        Self {
            name,
            listing,
            tier: Tier::Remote,
            in_use: 0,
            attempts: 0,
            capacity: None,
            backoff: Backoff::default(),
            is_hopeless: false,
            is_set_aside: false,
            is_listed: true,
        }
    }

    fn has_hope(&self) -> bool {
        self.is_listed && !self.is_hopeless && !self.is_set_aside
    }

    /// It has failed, and nothing better is known yet.
    fn is_failing(&self) -> bool {
        self.backoff.failures() > 0
    }

    /// It may be asked, if its time has come.
    fn is_askable(&self) -> bool {
        self.has_hope()
            && self.in_use < self.capacity.unwrap_or(1)
            && (!self.is_failing() || self.attempts == 0)
    }
}

impl Recruiter {
    /// `seed`: of the pauses between attempts, which differ from one manager to the next.
    pub(super) fn new(sources: &SlotSources, seed: u64) -> Self {
        let mut listings = 0;
        let hosts = sources.hosts.iter().cloned();
        let hosts = hosts.map(|name| ListeningWorker::new(name, &mut listings));
        let hosts = hosts.collect();
        Self {
            wanted: sources.slots as usize,
            remote_max: None,
            prefers_trusted: false,
            remote_dialled_in: 0,
            in_flight: 0,
            next_child: 0,
            children: sources.children.then(ChildSource::default),
            hosts,
            listings,
            listening: sources.listening,
            retry_at: None,
            random: SplitMix64::new(seed),
        }
    }

    /// How many slots are wanted.
    pub(super) fn wanted(&self) -> usize {
        self.wanted
    }

    /// Slots are wanted as a contract says: in trusted domains first, and no more than so many outside of them.
    pub(super) fn follow(&mut self, remote_max: Option<u32>) {
        (self.prefers_trusted, self.remote_max) = (true, remote_max);
    }

    /// So many slots are wanted from now on.
    pub(super) fn set_wanted(&mut self, slots: u32) {
        self.wanted = slots as usize;
    }

    /// What the policy says of each place before somebody has come from there, in their order.
    pub(super) fn set_tiers(&mut self, tiers: &[Tier]) {
        for (host, tier) in self.hosts.iter_mut().zip(tiers) {
            if host.capacity.is_none() {
                host.tier = *tier;
            }
        }
    }

    /// A slot has come, and this is where it is. Says whether it may stay.
    pub(super) fn is_within_cost(&mut self, source: SlotSource, tier: Tier) -> bool {
        if let Some(host) = self.host(source) {
            host.tier = tier;
        }
        let is_dialled_in = source == SlotSource::DialledIn;
        let with_it = self.remote_in_use() + u32::from(is_dialled_in);
        let is_within = tier == Tier::Trusted || self.remote_max.is_none_or(|most| with_it <= most);
        if is_within && is_dialled_in && tier == Tier::Remote {
            self.remote_dialled_in += 1;
        }
        is_within
    }

    /// A slot that dialled in from outside the trusted domains has gone.
    pub(super) fn remote_left(&mut self) {
        self.remote_dialled_in = self.remote_dialled_in.saturating_sub(1);
    }

    /// Slots and attempts outside the trusted domains.
    fn remote_in_use(&self) -> u32 {
        let hosts = self.hosts.iter().filter(|host| host.tier == Tier::Remote);
        self.remote_dialled_in + hosts.map(|host| host.in_use).sum::<u32>()
    }

    fn may_ask(&self, tier: Tier) -> bool {
        tier == Tier::Trusted
            || self
                .remote_max
                .is_none_or(|most| self.remote_in_use() < most)
    }

    /// What there is and what there may be, when `in_use` sessions there are: in trusted domains, and elsewhere.
    pub(super) fn supplies(&self, in_use: usize) -> (Supply, Supply) {
        let room = |tier: Tier| {
            let hosts = self.hosts.iter().filter(|host| host.tier == tier);
            let hosts = hosts.filter(|host| host.has_hope()).map(|host| {
                let capacity = host.capacity.unwrap_or(ROOM_UNKNOWN);
                capacity.saturating_sub(host.in_use)
            });
            hosts.fold(0, u32::saturating_add)
        };
        // Who dials in may be anywhere, and says so when it comes.
        let anywhere = if self.listening { ROOM_UNKNOWN } else { 0 };
        let here = match self.has_hope_of_children() {
            true => ROOM_UNKNOWN,
            false => 0,
        };
        let all = u32::try_from(in_use + self.in_flight).unwrap_or(u32::MAX);
        let remote = self.remote_in_use().min(all);
        let trusted = Supply {
            slots: all - remote,
            room: room(Tier::Trusted)
                .saturating_add(anywhere)
                .saturating_add(here),
        };
        let remote = Supply {
            slots: remote,
            room: room(Tier::Remote).saturating_add(anywhere),
        };
        (trusted, remote)
    }

    /// What to do next, when `in_use` sessions there are; none for now if enough is under way.
    pub(super) fn next(&mut self, in_use: usize, now: Duration) -> Option<Wish> {
        self.retry_at = None;
        if !self.has_room(in_use) || self.in_flight >= ATTEMPTS_MAX {
            return None;
        }
        if let Some(children) = self
            .children
            .as_mut()
            .filter(|children| children.may_start(now))
        {
            children.attempts += 1;
            children.backoff.begin(now);
            self.in_flight += 1;
            self.next_child += 1;
            return Some(Wish::Start(self.next_child - 1));
        }
        if let Some(position) = self.next_host(now) {
            let host = &mut self.hosts[position];
            host.in_use += 1;
            host.attempts += 1;
            host.backoff.begin(now);
            self.in_flight += 1;
            return Some(Wish::Dial(position));
        }
        self.retry_at = self.earliest(now);
        None
    }

    /// When to ask for the next wish although nothing has happened.
    pub(super) fn retry_at(&self) -> Option<Duration> {
        self.retry_at
    }

    /// Whether the time to ask again has come; it is over then.
    pub(super) fn is_due(&mut self, now: Duration) -> bool {
        self.retry_at.take_if(|at| *at <= now).is_some()
    }

    /// The host to ask next: of those that didn't fail last, if there are any, the one with the fewest slots in use.
    fn next_host(&self, now: Duration) -> Option<usize> {
        let probes = self.hosts.iter().filter(|host| host.is_failing());
        let probes: u32 = probes.map(|host| host.attempts).sum();
        let may_probe = (probes as usize) < PROBES_MAX;
        let candidates = self.hosts.iter().enumerate().filter(|(_, host)| {
            host.is_askable()
                && host.backoff.next_at() <= now
                && (may_probe || !host.is_failing())
                && self.may_ask(host.tier)
        });
        candidates
            .min_by_key(|(_, host)| {
                let tier = self.prefers_trusted.then_some(host.tier);
                (
                    host.is_failing(),
                    tier,
                    host.backoff.failures(),
                    host.in_use,
                    // Who is heard later must not come before those that wait.
                    host.listing,
                )
            })
            .map(|(position, _)| position)
    }

    /// When the first of those is to be asked who can't be asked now. Places whose time has come wait for attempts that end.
    fn earliest(&self, now: Duration) -> Option<Duration> {
        let hosts = self
            .hosts
            .iter()
            .filter(|host| host.is_askable() && self.may_ask(host.tier));
        let hosts = hosts.map(|host| host.backoff.next_at());
        let children = self.children.iter().filter(|children| children.has_hope());
        let children = children.map(|children| children.backoff.next_at());
        hosts.chain(children).filter(|at| *at > now).min()
    }

    /// Whether another slot is wanted, when `in_use` sessions there are.
    pub(super) fn has_room(&self, in_use: usize) -> bool {
        in_use + self.in_flight < self.wanted
    }

    /// Somebody who dialled in has a place, which is kept while the handshake ends, so that two can't have the same.
    pub(super) fn reserve(&mut self) {
        self.in_flight += 1;
    }

    /// Attempts under way at places of which it is not known that they fail.
    pub(super) fn undecided(&self) -> usize {
        let hosts = self.hosts.iter().filter(|host| host.is_failing());
        let hosts: u32 = hosts.map(|host| host.attempts).sum();
        let children = self.children.iter();
        let children = children.filter(|children| children.backoff.failures() > 0);
        let children: usize = children.map(|children| children.attempts).sum();
        self.in_flight.saturating_sub(hosts as usize + children)
    }

    /// An attempt is over, whatever came of it.
    pub(super) fn landed(&mut self, source: SlotSource) {
        self.in_flight = self.in_flight.saturating_sub(1);
        match source {
            SlotSource::Child(_) => {
                if let Some(children) = &mut self.children {
                    children.attempts = children.attempts.saturating_sub(1);
                }
            }
            SlotSource::Host(_) => {
                if let Some(host) = self.host(source) {
                    host.attempts = host.attempts.saturating_sub(1);
                }
            }
            SlotSource::DialledIn => {}
        }
    }

    /// A slot or an attempt is gone.
    pub(super) fn release(&mut self, source: SlotSource) {
        if let Some(host) = self.host(source) {
            host.in_use = host.in_use.saturating_sub(1);
        }
    }

    /// An attempt came to nothing, or a slot broke the rules or was lost before it could work.
    pub(super) fn failed(&mut self, source: SlotSource, prospect: Prospect, now: Duration) {
        let backoff = match source {
            SlotSource::Child(_) => self.children.as_mut().map(|children| {
                children.lost += u32::from(prospect == Prospect::Doubtful);
                if prospect == Prospect::Hopeless {
                    children.lost = CHILDREN_LOST_MAX;
                }
                &mut children.backoff
            }),
            SlotSource::Host(position) => self.hosts.get_mut(position).map(|host| {
                host.is_hopeless |= prospect == Prospect::Hopeless;
                &mut host.backoff
            }),
            SlotSource::DialledIn => None,
        };
        if let Some(backoff) = backoff {
            backoff.failed(now, &mut self.random);
        }
    }

    /// Nobody of this name is asked any more.
    pub(super) fn set_aside(&mut self, name: &str) {
        for host in self.hosts.iter_mut().filter(|host| host.name == name) {
            host.is_set_aside = true;
        }
    }

    /// A slot that could work is gone: its source is asked again after a pause.
    pub(super) fn rest(&mut self, source: SlotSource, now: Duration) {
        if let Some(host) = self.host(source) {
            host.backoff.rest(now);
        }
    }

    /// A session has begun; the worker may have said how many slots it has.
    pub(super) fn succeeded(&mut self, source: SlotSource, slots: Option<u32>) {
        if let Some(host) = self.host(source) {
            host.capacity = Some(slots.unwrap_or(1).max(host.in_use));
            host.backoff.succeeded();
        }
        if let (SlotSource::Child(_), Some(children)) = (source, &mut self.children) {
            children.backoff.succeeded();
        }
    }

    /// A slot can work.
    pub(super) fn proved(&mut self, source: SlotSource) {
        if let (SlotSource::Child(_), Some(children)) = (source, &mut self.children) {
            children.lost = 0;
        }
    }

    /// Other places are listed than before: how it stands with those that are known, and the names at new ones. Gives the names that are asked
    /// anew.
    pub(super) fn relist(
        &mut self,
        listed: &[Listing],
        new: Vec<String>,
        now: Duration,
    ) -> Vec<String> {
        let mut again = new.clone();
        for (host, listing) in self.hosts.iter_mut().zip(listed) {
            host.is_listed = *listing != Listing::Unlisted;
            if *listing == Listing::Anew {
                host.is_hopeless = false;
                host.is_set_aside = false;
                again.push(host.name.clone());
                host.backoff.hurry(now);
            }
        }
        let listings = &mut self.listings;
        let new = new
            .into_iter()
            .map(|name| ListeningWorker::new(name, listings));
        self.hosts.extend(new);
        again
    }

    /// A worker may be dialled at another place: at this known one, or at one that gets the number of one that nobody uses any more, or a new one.
    /// Gives its number.
    pub(super) fn list(&mut self, known: Option<usize>, name: &str) -> usize {
        if let Some(position) = known {
            if let Some(host) = self.hosts.get_mut(position) {
                // What was hopeless when it was asked last may have been mended since.
                host.is_hopeless &= host.is_listed;
                host.is_listed = true;
                host.listing = self.listings;
                self.listings += 1;
            }
            return position;
        }
        let new = ListeningWorker::new(name.to_owned(), &mut self.listings);
        let mut hosts = self.hosts.iter();
        let is_free = |host: &ListeningWorker| !host.is_listed && host.in_use == 0;
        match hosts.position(is_free) {
            Some(free) => {
                self.hosts[free] = new;
                free
            }
            None => {
                self.hosts.push(new);
                self.hosts.len() - 1
            }
        }
    }

    /// No slot is asked for at this place any more.
    pub(super) fn unlist(&mut self, position: usize) {
        if let Some(host) = self.hosts.get_mut(position) {
            host.is_listed = false;
        }
    }

    /// How the trial of this place stands, if it has one.
    pub(super) fn trial(&self, position: usize) -> Trial {
        match self.hosts.get(position) {
            Some(host)
                if host.in_use > host.attempts || host.capacity.is_some() && !host.is_failing() =>
            {
                Trial::Proven
            }
            Some(host) if host.is_failing() || host.is_set_aside => Trial::Failing,
            _ => Trial::Untried,
        }
    }

    /// Nobody will dial in any more.
    pub(super) fn expect_nobody(&mut self) {
        self.listening = false;
    }

    /// Whether somebody may still come.
    pub(super) fn has_hope(&self) -> bool {
        self.in_flight > 0
            || self.has_hope_of_children()
            || self.hosts.iter().any(ListeningWorker::has_hope)
            || self.listening
    }

    /// Whether another child may still be started.
    pub(super) fn has_hope_of_children(&self) -> bool {
        self.children.as_ref().is_some_and(ChildSource::has_hope)
    }

    /// How recruiting stands at each place where workers listen.
    pub(super) fn places(&self) -> impl Iterator<Item = PlaceState> {
        let is_full = self.retry_at.is_none() && self.in_flight == 0;
        self.hosts.iter().map(move |host| match host {
            host if !host.is_listed => PlaceState::Unlisted,
            host if !host.has_hope() => PlaceState::Hopeless,
            host if host.attempts > 0 => PlaceState::Dialling,
            host if host.is_askable() && !is_full => PlaceState::Waiting(host.backoff.next_at()),
            _ => PlaceState::Served,
        })
    }

    fn host(&mut self, source: SlotSource) -> Option<&mut ListeningWorker> {
        match source {
            SlotSource::Host(position) => self.hosts.get_mut(position),
            SlotSource::Child(_) | SlotSource::DialledIn => None,
        }
    }
}
