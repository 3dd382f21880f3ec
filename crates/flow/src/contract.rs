//! How many slots there should be: a contract, what is seen of the work, and what is decided by both.
//!
//! A [`Planner`] looks at the work a few times a second. It asks for more slots only while slots are what limits: they are full, with
//! time spent in functions. It gives slots back only if the surplus was there for a whole [window](PlannerSettings::window), and within a window it
//! never does both. What is known of few items counts as little as few items say.

mod estimates;
mod reason;

use std::time::Duration;

use self::estimates::{Certainty, Estimates, Span};
pub use self::reason::{Lack, Reason};
use crate::Workload;

/// Of what is asked for, a rate that passes as it.
const MET: f64 = 0.97;

/// Slots that have items for less than this share of the time wait for something else than each other.
const FULL: f64 = 0.9;

/// Slots that spend less than this share of the time for which they have items in functions wait for the wire, or for the manager.
const AT_WORK: f64 = 0.5;

/// Of what a serial function can do, a rate that is enough: a slot that does nothing else is a little slower, and a second one would hardly help.
const SERIAL: f64 = 0.95;

/// Slots that are kept beyond what items cost, as a share.
const RESERVE: f64 = 0.05;

/// A deadline is aimed at with this share of the time that is left.
const AIM: f64 = 0.95;

/// What is to be done by a deadline is estimated with this share of the doubt: what is late can't be made up for, a surplus can.
const HASTE: f64 = 0.25;

/// The last items to be done before a deadline go on for longer than the mean, by this share of what that is if times are exponential, and
/// by no more than this share of the time that is left.
const LAST: f64 = 0.5;
const LAST_MAX: f64 = 0.25;

/// As long as each slot does fewer items than this until a deadline, it counts that it does only whole ones.
const WHOLE_MAX: f64 = 8.0;

/// What a contract lacks is told when it has lacked it for so long.
const PERSISTENCE: Duration = Duration::from_secs(3);

/// For so long a number of slots has to be the same for its rate to be known.
const KNOWN: Duration = Duration::from_secs(2);

/// Slots that were asked for, or that replace others, may take so long to come before that is told.
const ABSENCE: Duration = Duration::from_secs(10);

/// What a user asks for.
#[derive(Clone, Debug, PartialEq)]
pub struct Contract {
    /// The fewest slots.
    pub slots_min: u32,
    /// The most slots.
    pub slots_max: u32,
    /// Items a second.
    pub throughput: Option<f64>,
    /// Items that are to be done by a time.
    pub deadline: Option<ItemsDeadline>,
    /// The most slots outside the trusted domains.
    pub remote_max: Option<u32>,
}

/// Items that are to be done by a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ItemsDeadline {
    /// Counted from the first item.
    pub time: Duration,
    /// How many.
    pub items: u64,
}

impl Contract {
    /// So many slots, whatever happens.
    #[must_use]
    pub fn fixed(slots: u32) -> Self {
        Self {
            slots_min: slots,
            slots_max: slots,
            throughput: None,
            deadline: None,
            remote_max: None,
        }
    }

    /// Whether there is nothing to decide.
    #[must_use]
    pub fn is_fixed(&self) -> bool {
        self.slots_min == self.slots_max
    }
}

/// How a planner decides.
#[derive(Clone, Debug, PartialEq)]
pub struct PlannerSettings {
    /// How often it looks.
    pub look_time: Duration,
    /// After slots were recruited none is released for so long, and conversely. A surplus must last so long.
    pub window: Duration,
    /// For so long, what slots do that have just come is not believed: they load what they need.
    pub settling: Duration,
    /// How many standard deviations an estimate is moved to the safe side.
    pub doubt: f64,
    /// Whether only full slots are a reason for more. A planner that doesn't look for that, to be compared with, asks for one more
    /// slot whenever the rate is too low.
    pub looks_for_limit: bool,
}

impl Default for PlannerSettings {
    fn default() -> Self {
        Self {
            look_time: Duration::from_millis(250),
            window: Duration::from_secs(10),
            settling: Duration::from_secs(1),
            doubt: 1.75,
            looks_for_limit: true,
        }
    }
}

/// Where slots are, as their owner declares it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Tier {
    /// In a trusted domain of the policy.
    Trusted,
    /// Outside all of them.
    Remote,
}

/// The slots of one tier.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Supply {
    /// Slots that are there, or are being asked for.
    pub slots: u32,
    /// How many more there may be.
    pub room: u32,
}

/// What a planner looks at.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Observation {
    /// The work.
    pub workload: Workload,
    /// The slots in trusted domains.
    pub trusted: Supply,
    /// The other slots.
    pub remote: Supply,
}

/// What is to be done, and why.
#[derive(Clone, Debug, PartialEq)]
pub enum SlotDecision {
    /// Ask for more slots.
    Recruit {
        /// So many in trusted domains.
        trusted: u32,
        /// So many others.
        remote: u32,
        /// Why.
        reason: Reason,
    },
    /// Give slots back, [remote](Tier::Remote) ones first.
    Release {
        /// So many.
        slots: u32,
        /// Why.
        reason: Reason,
    },
    /// The contract can't be kept.
    Lacks(Lack),
    /// The contract is kept again.
    Met {
        /// Items a second.
        rate: f64,
        /// Those that are asked for.
        wanted: f64,
    },
}

/// What limits the rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// More slots would do more.
    Slots,
    /// Items don't come in faster.
    Source,
    /// Outcomes are not taken faster.
    Reader,
    /// A serial function does one item at a time.
    Serial,
    /// Slots wait for what comes over the wire, or for the manager.
    Wire,
    /// All items are at slots or done: the end of what there is.
    Ending,
}

/// Decides how many slots there should be.
#[derive(Clone, Debug)]
pub struct Planner {
    contract: Contract,
    settings: PlannerSettings,
    target: u32,
    estimates: Estimates,
    /// When to look next.
    look_at: Duration,
    recruited_at: Option<Duration>,
    released_at: Option<Duration>,
    /// Slots more than needed, at the least, since a time.
    surplus: Option<(Duration, u32)>,
    /// What has been lacking, and since when.
    lacking: Option<(Lack, Duration)>,
    /// What the user was told last; none if the contract is kept.
    told: Option<Lack>,
    has_met: bool,
    /// That the deadline has passed was told.
    is_told_late: bool,
    /// When the first item came, and how many were done before.
    begun: Option<(Duration, u64)>,
}

impl Planner {
    /// Begins with the fewest slots.
    #[must_use]
    pub fn new(contract: Contract, settings: PlannerSettings) -> Self {
        Self {
            target: contract.slots_min,
            contract,
            settings,
            estimates: Estimates::default(),
            look_at: Duration::ZERO,
            recruited_at: None,
            released_at: None,
            surplus: None,
            lacking: None,
            told: None,
            has_met: false,
            is_told_late: false,
            begun: None,
        }
    }

    /// What it plans for.
    #[must_use]
    pub fn contract(&self) -> &Contract {
        &self.contract
    }

    /// How many slots are wanted now.
    #[must_use]
    pub fn target(&self) -> u32 {
        self.target
    }

    /// When it has to look next, while there is work; never if there is nothing to decide.
    #[must_use]
    pub fn next_look(&self) -> Option<Duration> {
        (!self.contract.is_fixed()).then_some(self.look_at)
    }

    /// Looks at the work, and decides.
    pub fn look(&mut self, seen: &Observation, now: Duration) -> Option<SlotDecision> {
        self.look_at = now + self.settings.look_time;
        let work = &seen.workload;
        self.estimates.take(work, now, self.settings.settling);
        if !work.has_work() && !self.estimates.moves() {
            // Nobody wants anything: what was lacking is not.
            (self.lacking, self.surplus) = (None, None);
            return None;
        }
        if self.begun.is_none() && work.admitted > 0 {
            self.begun = Some((now, 0));
        }
        let wanted = self.wanted_rate(work.finished, now);
        if wanted.is_late && !self.is_told_late {
            self.is_told_late = true;
            return self.lack(Lack::Time, Duration::ZERO, now);
        }
        if let Some(item) = self.is_too_late(work, wanted) {
            return self.lack(Lack::Deadline(item), wanted.persistence(), now);
        }
        let judged = self.estimates.judged()?;
        let limit = limit_of(&judged, work, self.estimates.at_work());
        let is_short = judged.rate < wanted.rate * MET || self.is_short_of_time(work, wanted);
        let may_help = limit == Limit::Slots || !self.settings.looks_for_limit;
        let decision = match (is_short, may_help) {
            (true, true) => self.go_up(seen, &judged, wanted, now),
            (true, false) => self.lack_of_rate(limit, wanted, &judged, now),
            (false, _) => self.is_met(&judged, wanted),
        };
        let surplus = match (is_short && may_help, limit) {
            (true, _) | (_, Limit::Ending) => None,
            (false, _) => self.surplus_of(work, &judged, wanted, limit),
        };
        decision.or_else(|| self.go_down(surplus, &judged, wanted, now))
    }

    /// Whether more slots are needed for a deadline, however fast the last items were.
    fn is_short_of_time(&self, work: &Workload, wanted: Wanted) -> bool {
        wanted.left.is_some() && self.needed(work, wanted.rate, wanted) > work.slots
    }

    /// Items a second that the contract asks for now: as many as can be if it doesn't say.
    fn wanted_rate(&self, finished: u64, now: Duration) -> Wanted {
        let by_throughput = self.contract.throughput.unwrap_or(0.0);
        let left = self.contract.deadline.map(|deadline| {
            let (begun, before) = self.begun.unwrap_or((now, finished));
            let done = finished - before.min(finished);
            let time = (begun + deadline.time).saturating_sub(now);
            let left = deadline.items.saturating_sub(done);
            (left, time.as_secs_f64() * AIM)
        });
        let by_deadline = left.map(|left| match left {
            (0, _) => 0.0,
            (_, 0.0) => f64::INFINITY,
            (items, seconds) => items as f64 / seconds,
        });
        let is_late = by_deadline == Some(f64::INFINITY);
        let rate = match (self.contract.throughput, by_deadline) {
            (None, None) => f64::INFINITY,
            (_, by_deadline) => by_throughput.max(by_deadline.unwrap_or(0.0)),
        };
        Wanted {
            rate,
            is_late,
            left: left.filter(|(items, seconds)| *items > 0 && *seconds > 0.0),
        }
    }

    /// Slots limit, and more is wanted.
    fn go_up(
        &mut self,
        seen: &Observation,
        judged: &Span,
        wanted: Wanted,
        now: Duration,
    ) -> Option<SlotDecision> {
        let here = seen.workload.slots;
        let possible = serial_rate(&seen.workload);
        let is_beyond = possible < wanted.rate * MET;
        let aim = match is_beyond {
            true => possible * SERIAL,
            false => wanted.rate.min(possible),
        };
        let needed = match aim.is_finite() {
            true if !self.settings.looks_for_limit => self.target + 1,
            true => self.needed(&seen.workload, aim, wanted),
            // As fast as can be: twice as many, as soon as all that were asked for are there, have settled, and are full.
            false if here >= self.target => here.saturating_mul(2).max(1),
            false => self.target,
        };
        let most = self.contract.slots_max;
        if is_beyond && wanted.rate.is_finite() && needed <= self.target {
            return self.lack(Lack::Serial(possible), wanted.persistence(), now);
        }
        if needed.min(most) <= self.target {
            let is_at_end = self.target >= most && needed > self.target && aim.is_finite();
            let is_waiting = here < self.target;
            return match (is_at_end, is_waiting) {
                (true, _) => self.lack(Lack::Degree(most), wanted.persistence(), now),
                // Of what nobody asked for by a number nothing is lacking.
                (false, true) if !wanted.is_all() || here < self.contract.slots_min => {
                    let there = seen.trusted.slots.saturating_add(seen.remote.slots);
                    let room = seen.trusted.room.saturating_add(seen.remote.room);
                    let may_come = there.saturating_add(room) >= self.target;
                    let persistence = if may_come { ABSENCE } else { PERSISTENCE };
                    self.lack(Lack::Workers(here, self.target), persistence, now)
                }
                (false, _) => {
                    self.lacking = None;
                    None
                }
            };
        }
        // As long as slots settle, nothing is known that was not known when they were asked for.
        if !self.estimates.learns() || is_within(self.released_at, self.settings.window, now) {
            return None;
        }
        self.recruit(needed.min(most) - self.target, seen, judged, wanted, now)
    }

    /// How many slots a rate needs at least, as far as that is known.
    fn needed(&self, work: &Workload, aim: f64, wanted: Wanted) -> u32 {
        let here = work.slots;
        let doubt = self.settings.doubt;
        let by = |certainty| ceiling(self.estimates.cost_at_least(doubt, certainty) * aim);
        // What is only likely adds no more than one slot, so that there is not more than one too many if it is wrong.
        let surely = by(Certainty::Sure);
        let needed = surely.max(by(Certainty::Likely).min(surely.saturating_add(1)));
        let needed = match wanted.left {
            Some((items, seconds)) => {
                let cost = self.hasty_cost();
                // The last items to be done are the long ones.
                let last = cost * self.estimates.variation() * f64::from(here.max(1)).ln();
                let seconds = seconds - (last * LAST).min(seconds * LAST_MAX);
                let until = needed_until(here, cost, self.estimates.underway(), items, seconds);
                // More of them would wait for a serial function.
                let until = until.min(ceiling(cost * serial_rate(work) * SERIAL).max(here));
                // Who has nothing to begin with helps nobody.
                let most = u32::try_from(items).unwrap_or(u32::MAX);
                let by_throughput = self.contract.throughput.map_or(0, |_| needed);
                needed.max(until).min(most).max(by_throughput)
            }
            None => needed,
        };
        // The first items may take longer than others: they load what they need.
        match self.estimates.is_new() {
            true => needed.min(here.saturating_mul(2)),
            false => needed,
        }
    }

    /// Seconds of a slot that an item takes, where waiting until that is known would cost more than a mistake.
    fn hasty_cost(&self) -> f64 {
        let doubt = self.settings.doubt * HASTE;
        self.estimates.cost_at_least(doubt, Certainty::Likely)
    }

    /// How long an item takes, if some items can't be done by the deadline, with whatever slots.
    fn is_too_late(&self, work: &Workload, wanted: Wanted) -> Option<Duration> {
        let (items, seconds) = wanted.left?;
        let seconds = seconds / AIM;
        let (cost, running) = (self.hasty_cost(), u64::from(work.running));
        // At least one of so many items takes so much, almost surely.
        let longest = |items: u64| cost * self.estimates.longest_share(items);
        let by_waiting = items > running && longest(items - running) > seconds;
        let underway = work.underway.as_secs_f64() / f64::from(work.running.max(1));
        // If times are exponential, the time for which an item has run says nothing of the rest.
        let counts = 1.0 - self.estimates.variation().powi(2);
        let by_running = (1..=items).contains(&running)
            && (longest(1) > counts * work.latest.as_secs_f64() + seconds
                || longest(running) > counts * underway + seconds);
        (by_waiting || by_running).then(|| {
            let done = self.estimates.judged().filter(|judged| judged.items > 0);
            in_time(done.map_or(cost, |judged| {
                cost.max(judged.answered / judged.items as f64)
            }))
        })
    }

    /// Asks for more slots, of trusted domains first.
    fn recruit(
        &mut self,
        slots: u32,
        seen: &Observation,
        judged: &Span,
        wanted: Wanted,
        now: Duration,
    ) -> Option<SlotDecision> {
        let there = seen.trusted.slots + seen.remote.slots;
        // What was asked for and is not there yet takes room too.
        let pending = self.target.saturating_sub(there);
        let room = seen.trusted.room.saturating_sub(pending);
        let pending = pending.saturating_sub(seen.trusted.room);
        let trusted = slots.min(room);
        let by_room = seen.remote.room.saturating_sub(pending);
        let by_cost = self.contract.remote_max.unwrap_or(u32::MAX);
        let by_cost = by_cost.saturating_sub(seen.remote.slots + pending);
        let remote = (slots - trusted).min(by_room).min(by_cost);
        if trusted + remote == 0 {
            let lack = match self.contract.remote_max {
                Some(most) if by_cost < by_room => Lack::Cost(most),
                _ if wanted.is_all() => {
                    self.lacking = None;
                    return None;
                }
                _ => Lack::Workers(seen.workload.slots, self.target + slots),
            };
            return self.lack(lack, PERSISTENCE, now);
        }
        self.target += trusted + remote;
        self.recruited_at = Some(now);
        (self.surplus, self.lacking, self.has_met) = (None, None, false);
        Some(SlotDecision::Recruit {
            trusted,
            remote,
            reason: self.reason(judged, wanted),
        })
    }

    /// How many slots are not needed, as far as that is known.
    fn surplus_of(
        &self,
        work: &Workload,
        judged: &Span,
        wanted: Wanted,
        limit: Limit,
    ) -> Option<u32> {
        let is_known = self.estimates.unchanged() >= KNOWN;
        let rate = match wanted.rate.is_finite() {
            true => wanted.rate,
            // As fast as can be, and that is no matter of slots.
            false if limit != Limit::Slots && is_known => judged.rate,
            false => return None,
        };
        let cost = self.estimates.cost_at_most(self.settings.doubt)?;
        let needed = ceiling(rate * cost * (1.0 + RESERVE));
        let needed = needed.max(self.contract.slots_min).max(1);
        Some(work.slots.min(self.target).saturating_sub(needed))
    }

    /// Gives slots back whose surplus has lasted.
    fn go_down(
        &mut self,
        surplus: Option<u32>,
        judged: &Span,
        wanted: Wanted,
        now: Duration,
    ) -> Option<SlotDecision> {
        let Some(surplus) = surplus.filter(|surplus| *surplus > 0) else {
            self.surplus = None;
            return None;
        };
        let (since, least) = self.surplus.unwrap_or((now, surplus));
        let least = least.min(surplus);
        self.surplus = Some((since, least));
        let window = self.settings.window;
        if now.saturating_sub(since) < window || is_within(self.recruited_at, window, now) {
            return None;
        }
        self.target -= least;
        self.released_at = Some(now);
        self.surplus = None;
        Some(SlotDecision::Release {
            slots: least,
            reason: self.reason(judged, wanted),
        })
    }

    /// Something else than slots limits.
    fn lack_of_rate(
        &mut self,
        limit: Limit,
        wanted: Wanted,
        judged: &Span,
        now: Duration,
    ) -> Option<SlotDecision> {
        // Who wants as much as can be gets that, and at the end there is nothing to gain.
        if limit == Limit::Ending || wanted.is_all() {
            self.lacking = None;
            return None;
        }
        self.lack(
            Lack::Rate(limit, judged.rate, wanted.rate),
            PERSISTENCE,
            now,
        )
    }

    /// The contract lacks this; it is told when that has lasted, and once.
    fn lack(&mut self, lack: Lack, persistence: Duration, now: Duration) -> Option<SlotDecision> {
        let since = match &self.lacking {
            Some((known, since)) if known.is_like(&lack) => *since,
            _ => now,
        };
        self.lacking = Some((lack.clone(), since));
        let is_told = self.told.as_ref().is_some_and(|told| told.is_like(&lack));
        if is_told || now.saturating_sub(since) < persistence {
            return None;
        }
        (self.told, self.has_met) = (Some(lack.clone()), false);
        Some(SlotDecision::Lacks(lack))
    }

    fn is_met(&mut self, judged: &Span, wanted: Wanted) -> Option<SlotDecision> {
        self.lacking = None;
        if self.has_met || wanted.rate <= 0.0 || !self.estimates.is_sure() {
            return None;
        }
        self.has_met = true;
        self.told = None;
        Some(SlotDecision::Met {
            rate: judged.rate,
            wanted: wanted.rate,
        })
    }

    fn reason(&self, judged: &Span, wanted: Wanted) -> Reason {
        let cost = match judged.items {
            // One that has run for so long takes no less.
            0 => self
                .estimates
                .cost_at_least(self.settings.doubt, Certainty::Likely)
                .max(self.estimates.underway_each()),
            _ => judged.cost,
        };
        Reason {
            rate: judged.rate,
            wanted: wanted.rate,
            cost: in_time(cost),
        }
    }
}

/// How many slots do so many items in so many seconds, where each of them does only whole ones.
fn needed_until(here: u32, cost: f64, underway: f64, items: u64, seconds: f64) -> u32 {
    if cost <= 0.0 || seconds / cost > WHOLE_MAX {
        return ceiling(items as f64 * cost / seconds);
    }
    let underway = underway / f64::from(here.max(1));
    let by_those_here = ((seconds + underway.min(cost)) / cost).floor() * f64::from(here);
    let left = items as f64 - by_those_here;
    let each = (seconds / cost).floor();
    // Who can't do a single one helps nobody.
    if left <= 0.0 || each < 1.0 {
        return here;
    }
    here.saturating_add(ceiling(left / each))
}

/// A rate that is asked for.
#[derive(Clone, Copy, Debug)]
struct Wanted {
    rate: f64,
    /// The deadline has passed.
    is_late: bool,
    /// Items that are to be done by a deadline, and the seconds that are left for them.
    left: Option<(u64, f64)>,
}

impl Wanted {
    /// As much as can be.
    fn is_all(&self) -> bool {
        self.rate.is_infinite() && !self.is_late
    }

    /// For how long something has to be lacking before it is told: near a deadline, not for long.
    fn persistence(&self) -> Duration {
        self.left.map_or(PERSISTENCE, |(_, seconds)| {
            PERSISTENCE.min(in_time(seconds) / 4)
        })
    }
}

fn in_time(seconds: f64) -> Duration {
    Duration::from_secs_f64(seconds.clamp(0.0, 1e9))
}

/// Items a second that serial functions let through.
fn serial_rate(work: &Workload) -> f64 {
    let serial = work.serial.as_secs_f64();
    if serial > 0.0 {
        1.0 / serial
    } else {
        f64::INFINITY
    }
}

/// What limits the rate, by what slots did and what waits.
fn limit_of(judged: &Span, work: &Workload, at_work: f64) -> Limit {
    if judged.full >= FULL {
        return match at_work >= AT_WORK {
            true => Limit::Slots,
            false => Limit::Wire,
        };
    }
    match work {
        work if work.waits_for_reader => Limit::Reader,
        work if work.ready > 0 && work.ready == work.ready_for_serial => Limit::Serial,
        work if work.ready > 0 => Limit::Wire,
        work if work.takes_input => Limit::Source,
        _ => Limit::Ending,
    }
}

fn is_within(then: Option<Duration>, window: Duration, now: Duration) -> bool {
    then.is_some_and(|then| now.saturating_sub(then) < window)
}

/// Slots, in whole ones.
fn ceiling(slots: f64) -> u32 {
    // What is a hair more than a whole number is one.
    let whole = (slots - 1e-6).ceil();
    whole.clamp(0.0, f64::from(u32::MAX)) as u32
}

#[cfg(test)]
mod tests;
