//! Who is asked for a slot next, and when nobody is left: children of this process, places where workers listen, and
//! workers that dial in.

use std::time::Duration;

/// A place that failed is asked again after this time, as long as slots are missing.
const RETRY_TIME: Duration = Duration::from_millis(500);

/// Failures in a row after which a source isn't asked again.
pub const FAILURES_MAX: u32 = 6;

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

/// What is to be done to get a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wish {
    Start(u32),
    Dial(usize),
    /// Nobody is left to work, and nobody can be asked.
    GiveUp,
}

/// What recruiting remembers.
#[derive(Debug)]
pub(super) struct Recruiter {
    wanted: usize,
    in_flight: usize,
    next_child: u32,
    children: bool,
    child_failures: u32,
    hosts: Vec<ListeningWorker>,
    listening: bool,
    retry_at: Option<Duration>,
    has_given_up: bool,
}

#[derive(Debug)]
struct ListeningWorker {
    name: String,
    in_use: u32,
    /// Slots it said it has; unknown before the first session.
    capacity: Option<u32>,
    failures: u32,
    /// It is not asked any more, whatever its other slots do.
    is_set_aside: bool,
    /// Not to be asked before this time.
    rest_until: Option<Duration>,
}

impl Recruiter {
    pub(super) fn new(sources: &SlotSources) -> Self {
        let host = |name: &String| ListeningWorker {
            name: name.clone(),
            in_use: 0,
            capacity: None,
            failures: 0,
            is_set_aside: false,
            rest_until: None,
        };
        Self {
            wanted: sources.slots as usize,
            in_flight: 0,
            next_child: 0,
            children: sources.children,
            child_failures: 0,
            hosts: sources.hosts.iter().map(host).collect(),
            listening: sources.listening,
            retry_at: None,
            has_given_up: false,
        }
    }

    /// What to do next, when `in_use` sessions there are; none for now if enough is under way.
    pub(super) fn next(&mut self, in_use: usize, now: Duration) -> Option<Wish> {
        if in_use + self.in_flight >= self.wanted {
            return None;
        }
        if self.children && self.child_failures < FAILURES_MAX {
            self.in_flight += 1;
            self.next_child += 1;
            return Some(Wish::Start(self.next_child - 1));
        }
        if let Some(position) = self.next_host(now) {
            self.in_flight += 1;
            return Some(Wish::Dial(position));
        }
        if self.hosts.iter().any(|host| host.failures < FAILURES_MAX) {
            self.retry_at.get_or_insert(now + RETRY_TIME);
            return None;
        }
        let gives_up = in_use == 0 && !self.has_hope() && !self.has_given_up;
        self.has_given_up |= gives_up;
        gives_up.then_some(Wish::GiveUp)
    }

    /// When to ask for the next wish although nothing has happened.
    pub(super) fn retry_at(&self) -> Option<Duration> {
        self.retry_at
    }

    /// Whether the time to ask again has come; it is over then.
    pub(super) fn is_due(&mut self, now: Duration) -> bool {
        self.retry_at.take_if(|at| *at <= now).is_some()
    }

    /// The host to ask next: the one with the fewest slots in use that may have another.
    fn next_host(&mut self, now: Duration) -> Option<usize> {
        let candidate = self
            .hosts
            .iter_mut()
            .enumerate()
            .filter(|(_, host)| host.in_use < host.capacity.unwrap_or(1))
            .filter(|(_, host)| {
                host.failures < FAILURES_MAX && host.rest_until.is_none_or(|until| until <= now)
            })
            .min_by_key(|(position, host)| (host.failures, host.in_use, *position));
        candidate.map(|(position, host)| {
            host.in_use += 1;
            position
        })
    }

    /// Somebody who dialled in may have a place, which is kept while the handshake ends, so that two can't have the same.
    pub(super) fn reserve(&mut self, in_use: usize) -> Result<(), usize> {
        if in_use + self.in_flight >= self.wanted {
            return Err(self.wanted);
        }
        self.in_flight += 1;
        Ok(())
    }

    /// Attempts that are under way.
    pub(super) fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// An attempt is over, whatever came of it.
    pub(super) fn landed(&mut self) {
        self.in_flight = self.in_flight.saturating_sub(1);
    }

    /// A slot or an attempt is gone.
    pub(super) fn release(&mut self, source: SlotSource, now: Duration) {
        if let Some(host) = self.host(source) {
            host.in_use = host.in_use.saturating_sub(1);
            host.rest_until = Some(now + RETRY_TIME);
        }
    }

    /// An attempt came to nothing, or a slot broke the rules; `is_final` when another attempt can't end better.
    pub(super) fn failed(&mut self, source: SlotSource, is_final: bool) {
        let count = if is_final { FAILURES_MAX } else { 1 };
        if matches!(source, SlotSource::Child(_)) {
            self.child_failures += count;
        }
        if let Some(host) = self.host(source) {
            host.failures += count;
        }
    }

    /// Nobody of this name is asked any more.
    pub(super) fn set_aside(&mut self, name: &str) {
        for host in self.hosts.iter_mut().filter(|host| host.name == name) {
            host.is_set_aside = true;
            host.failures = FAILURES_MAX;
        }
    }

    /// A slot kept to the rules to its end, whatever that was: its source is as good as new.
    pub(super) fn proved(&mut self, source: SlotSource) {
        if matches!(source, SlotSource::Child(_)) {
            self.child_failures = 0;
        }
        if let Some(host) = self.host(source).filter(|host| !host.is_set_aside) {
            host.failures = 0;
        }
    }

    /// A session has begun; the worker may have said how many slots it has.
    pub(super) fn succeeded(&mut self, source: SlotSource, slots: Option<u32>) {
        if let Some(host) = self.host(source) {
            host.capacity = Some(slots.unwrap_or(1).max(host.in_use));
        }
    }

    /// Whether somebody may still come.
    pub(super) fn has_hope(&self) -> bool {
        self.in_flight > 0
            || (self.children && self.child_failures < FAILURES_MAX)
            || self.hosts.iter().any(|host| host.failures < FAILURES_MAX)
            || self.listening
    }

    fn host(&mut self, source: SlotSource) -> Option<&mut ListeningWorker> {
        match source {
            SlotSource::Host(position) => self.hosts.get_mut(position),
            SlotSource::Child(_) | SlotSource::DialledIn => None,
        }
    }
}
