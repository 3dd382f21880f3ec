//! Contracts in virtual time: the planner and the scheduler of the product, slots that take time to come and to work, and work that changes.
//!
//! Sessions and recruiting are left out: a slot that is asked for comes after a while, one that is lost is replaced, one that is released
//! finishes what it has.

mod run;

use std::fmt;
use std::time::Duration;

use exoskel_determinism::SplitMix64;
use exoskel_flow::contract::{Contract, ItemsDeadline, Lack, PlannerSettings, SlotDecision};
use exoskel_flow::{FunctionId, Skeleton};

use self::run::ContractRun;
use crate::violation::Violation;

/// What the items of a run are from a time on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct WorkPhase {
    /// Since when.
    pub at: Duration,
    /// The mean time of an item on a slot of full speed.
    pub item: Duration,
    /// How many come in a second; as many as there is room for if that is none.
    pub source: Option<f64>,
}

/// How the times of items differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ItemTimes {
    /// Not at all.
    Constant,
    /// Evenly between half and one and a half of the mean.
    Even,
    /// Exponentially.
    Exponential,
    /// One item of five takes three times the mean, the others half of it.
    Mixed,
}

/// Everything that such a run depends on.
#[derive(Clone, Debug, PartialEq)]
pub struct ContractScenario {
    /// Of all randomness.
    pub seed: u64,
    /// What is asked for.
    pub contract: Contract,
    /// How the planner decides.
    pub settings: PlannerSettings,
    /// What the items pass.
    pub skeleton: Skeleton,
    /// The time of an item in a serial function.
    pub serial: Duration,
    /// The work, by time. The first phase begins at 0.
    pub phases: Vec<WorkPhase>,
    /// How many items there are; no end of them if that is none.
    pub items: Option<u64>,
    /// How the times of items differ.
    pub times: ItemTimes,
    /// How long a slot that is asked for takes to come.
    pub start: Duration,
    /// What the first item of each slot takes besides.
    pub cold: Duration,
    /// From the manager to a slot, and back.
    pub latency: Duration,
    /// A slot is lost at each of these times.
    pub losses: Vec<Duration>,
    /// The first slots are slower by these factors.
    pub factors: Vec<u32>,
    /// How long it goes on.
    pub end: Duration,
}

/// What came out.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ContractReport {
    /// What was decided, and when.
    pub decisions: Vec<(Duration, SlotDecision)>,
    /// When each outcome came.
    pub outcomes: Vec<Duration>,
    /// How many slots could work since when.
    pub slots: Vec<(Duration, usize)>,
    /// Items by slot, in the order in which slots came.
    pub items: Vec<u64>,
    /// Of all events in their order.
    pub digest: u64,
}

impl ContractScenario {
    /// A farm that is to do so many items a second.
    #[must_use]
    pub fn new(seed: u64, contract: Contract, item: Duration) -> Self {
        Self {
            seed,
            contract,
            settings: PlannerSettings::default(),
            skeleton: Skeleton::Farm(Box::new(Skeleton::Seq(FunctionId(0)))),
            serial: Duration::ZERO,
            phases: vec![WorkPhase {
                at: Duration::ZERO,
                item,
                source: None,
            }],
            items: None,
            times: ItemTimes::Even,
            start: Duration::from_millis(500),
            cold: Duration::from_millis(300),
            latency: Duration::from_millis(1),
            losses: Vec::new(),
            factors: Vec::new(),
            end: Duration::from_secs(60),
        }
    }

    /// A throughput and a step in the time of items, up or down, as the seed has it. The second value is when it comes.
    #[must_use]
    pub fn with_step(seed: u64) -> (Self, Duration) {
        let mut random = SplitMix64::new(seed);
        let mut between = |least: u64, most: u64| least + random.below(most - least + 1);
        let item = Duration::from_millis(between(5, 250));
        let slots = between(2, 12) as f64 - between(0, 9) as f64 / 10.0;
        let rate = slots / item.as_secs_f64();
        // The rate is such that between 1 and 20 slots can do it before and after.
        let factor = match between(0, 2) {
            0 => 1.0 / between(2, 4) as f64,
            _ => 1.0 + between(2, 9) as f64 / 10.0,
        };
        let step = Duration::from_secs(30);
        let contract = Contract {
            slots_max: 64,
            throughput: Some(rate),
            ..Contract::fixed(1)
        };
        let mut scenario = Self::new(seed, contract, item);
        scenario.times = match between(0, 1) {
            0 => ItemTimes::Even,
            _ => ItemTimes::Exponential,
        };
        let source = (between(0, 2) == 0).then(|| rate * (1.0 + between(5, 50) as f64 / 100.0));
        scenario.phases[0].source = source;
        scenario.phases.push(WorkPhase {
            at: step,
            item: item.mul_f64(factor),
            source,
        });
        scenario.start = Duration::from_millis(between(50, 1500));
        scenario.cold = Duration::from_millis(between(0, 500));
        scenario.latency = Duration::from_micros(between(50, 2_000));
        scenario.end = Duration::from_secs(100);
        (scenario, step)
    }

    /// A throughput or a deadline, and items of 1 ms to 30 s whose times may take a step, as the seed has it. The second value is when that is.
    #[must_use]
    pub fn with_any_items(seed: u64) -> (Self, Option<Duration>) {
        let mut random = SplitMix64::new(seed);
        let mut between = |least: u64, most: u64| least + random.below(most - least + 1);
        // As many seeds in each magnitude.
        let magnitude = between(0, 4477) as f64 / 1000.0;
        let seconds = 10_f64.powf(magnitude) / 1000.0;
        let item = Duration::from_secs_f64(seconds);
        let is_short = item < Duration::from_millis(20);
        let slots = between(2, if is_short { 3 } else { 12 }) as f64 - between(1, 9) as f64 / 10.0;
        let rate = slots / seconds;
        let is_deadline = between(0, 2) == 0;
        let mut contract = Contract {
            slots_max: 64,
            ..Contract::fixed(1)
        };
        let time = Duration::from_secs(between(20, if is_short { 30 } else { 120 }));
        let time = time.max(item * between(5, 20) as u32);
        match is_deadline {
            true => {
                contract.deadline = Some(ItemsDeadline {
                    time,
                    items: ((rate * time.as_secs_f64() * 0.8) as u64).max(1),
                });
            }
            false => contract.throughput = Some(rate),
        }
        let items = contract.deadline.map(|deadline| deadline.items);
        let mut scenario = Self::new(seed, contract, item);
        scenario.items = items;
        scenario.times = match between(0, 3) {
            0 => ItemTimes::Constant,
            1 => ItemTimes::Even,
            2 => ItemTimes::Exponential,
            _ => ItemTimes::Mixed,
        };
        let factor = match between(0, 3) {
            0 => Some(1.0 / between(2, 4) as f64),
            1 => Some(1.0 + between(2, 20) as f64 / 10.0),
            _ => None,
        };
        let step = Duration::from_secs(20) + item * 10;
        let step = factor.filter(|_| !is_deadline).map(|factor| {
            let item = item.mul_f64(factor);
            scenario.phases.push(WorkPhase {
                at: step,
                item,
                source: None,
            });
            step
        });
        scenario.start = Duration::from_millis(between(50, 1500));
        scenario.cold = Duration::from_millis(between(0, 500));
        scenario.latency = Duration::from_micros(between(50, 2_000));
        let last = scenario.phases[scenario.phases.len() - 1].item;
        let rest = last * 12 + Duration::from_secs(if is_short { 20 } else { 60 });
        scenario.end = match is_deadline {
            true => time * 2,
            false => step.unwrap_or_default() + rest,
        };
        (scenario, step)
    }

    /// The work at this time.
    fn phase(&self, at: Duration) -> &WorkPhase {
        let begun = self.phases.partition_point(|phase| phase.at <= at);
        &self.phases[begun.max(1) - 1]
    }

    /// The mean time of an item at this time.
    #[must_use]
    pub fn item_at(&self, at: Duration) -> Duration {
        self.phase(at).item
    }

    /// Slots that the contract's throughput or deadline needs at this time, if they do nothing else.
    #[must_use]
    pub fn slots_needed(&self, at: Duration) -> u32 {
        self.slots_needed_for(at, 1.0)
    }

    /// The same for this share of what the contract asks for.
    #[must_use]
    pub fn slots_needed_for(&self, at: Duration, share: f64) -> u32 {
        let by_deadline = self.contract.deadline;
        let by_deadline =
            by_deadline.map(|ItemsDeadline { time, items }| items as f64 / time.as_secs_f64());
        let rate = self.contract.throughput.or(by_deadline).unwrap_or(0.0);
        (share * rate * self.item_at(at).as_secs_f64()).ceil() as u32
    }

    /// Slots that somebody would ask for who knows when the work has changed, how the times of items differ, and those of so many items since: as many as
    /// these show surely, which is twice the deviation of their mean.
    #[must_use]
    pub fn slots_known(&self, at: Duration, share: f64, items: usize) -> u32 {
        let doubt = 2.0 * self.times.variation() / (items.max(1) as f64).sqrt();
        self.slots_needed_for(at, share * (1.0 - doubt).max(0.0))
    }

    /// Plays it to its end.
    ///
    /// # Errors
    /// The first broken promise: an item with two outcomes, a standstill, a call that the scheduler refuses.
    pub fn run(&self) -> Result<ContractReport, Violation> {
        ContractRun::new(self)?.play()
    }
}

impl fmt::Display for ContractReport {
    /// What was decided, a line for each.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, decision) in &self.decisions {
            let what = match decision {
                SlotDecision::Recruit {
                    trusted, remote, ..
                } => format!("{} more", trusted + remote),
                SlotDecision::Release { slots, .. } => format!("{slots} fewer"),
                SlotDecision::Lacks(_) => "lack".to_owned(),
                SlotDecision::Met { .. } => "met".to_owned(),
            };
            let (at, there) = (at.as_secs_f64(), self.slots_at(*at));
            writeln!(
                formatter,
                "{at:8.2} s  {there:3} slots  {what:8}  {decision}"
            )?;
        }
        Ok(())
    }
}

impl ItemTimes {
    /// How far they are from their mean, as a share of it.
    #[must_use]
    pub fn variation(self) -> f64 {
        match self {
            Self::Constant => 0.0,
            Self::Even => 0.289,
            Self::Exponential | Self::Mixed => 1.0,
        }
    }
}

impl ContractReport {
    /// How many items were done between two times.
    #[must_use]
    pub fn items_between(&self, from: Duration, to: Duration) -> usize {
        let before = |time: Duration| self.outcomes.partition_point(|at| *at < time);
        before(to).saturating_sub(before(from))
    }

    /// When this was told first of a contract.
    #[must_use]
    pub fn told(&self, is_meant: impl Fn(&Lack) -> bool) -> Option<Duration> {
        let mut told = self.decisions.iter();
        told.find_map(|(at, decision)| match decision {
            SlotDecision::Lacks(lack) if is_meant(lack) => Some(*at),
            _ => None,
        })
    }

    /// Items a second between two times.
    #[must_use]
    pub fn rate(&self, from: Duration, to: Duration) -> f64 {
        self.items_between(from, to) as f64 / to.saturating_sub(from).as_secs_f64()
    }

    /// How long after a time the rate of the last `window` is this one at last.
    #[must_use]
    pub fn met_after(&self, time: Duration, rate: f64, window: Duration) -> Option<Duration> {
        let step = Duration::from_millis(100);
        let last = *self.outcomes.last()?;
        let mut at = time + window;
        while at <= last {
            if self.rate(at - window, at) >= rate {
                return Some(at - time);
            }
            at += step;
        }
        None
    }

    /// How long after a time there were as many slots, if ever.
    #[must_use]
    pub fn slots_after(&self, time: Duration, slots: usize) -> Option<Duration> {
        if self.slots_at(time) >= slots {
            return Some(Duration::ZERO);
        }
        let mut later = self.slots.iter().filter(|(at, _)| *at > time);
        let (at, _) = later.find(|(_, there)| *there >= slots)?;
        Some(*at - time)
    }

    /// How many slots could work at a time.
    #[must_use]
    pub fn slots_at(&self, time: Duration) -> usize {
        let begun = self.slots.partition_point(|(at, _)| *at <= time);
        begun.checked_sub(1).map_or(0, |place| self.slots[place].1)
    }

    /// When slots were recruited (true) or released (false).
    pub fn moves(&self) -> impl Iterator<Item = (Duration, bool)> {
        self.decisions
            .iter()
            .filter_map(|(at, decision)| match decision {
                SlotDecision::Recruit { .. } => Some((*at, true)),
                SlotDecision::Release { .. } => Some((*at, false)),
                SlotDecision::Lacks(_) | SlotDecision::Met { .. } => None,
            })
    }

    /// How often slots were released after others had been recruited, or conversely, with no change of the work between, and how often that
    /// was within so long, whatever the work did.
    #[must_use]
    pub fn reversals(&self, changes: &[Duration], window: Duration) -> (usize, usize) {
        let moves: Vec<_> = self.moves().collect();
        let turns = moves.windows(2).filter(|pair| pair[0].1 != pair[1].1);
        let (mut without_reason, mut within) = (0, 0);
        for pair in turns {
            let (before, after) = (pair[0].0, pair[1].0);
            let has_changed = changes.iter().any(|at| (before..after).contains(at));
            without_reason += usize::from(!has_changed);
            within += usize::from(after.saturating_sub(before) < window);
        }
        (without_reason, within)
    }
}
