//! Contracts over items of 1 ms to 30 s in virtual time, with the product's planner, beside what somebody could do who knows how long items
//! take: `contract_items FIRST COUNT`, or what was decided in one seed: `contract_items SEED`.

#![expect(
    clippy::disallowed_methods,
    clippy::print_stdout,
    reason = "a command line stands outside of what it runs"
)]

use std::collections::BTreeMap;
use std::error::Error;
use std::time::Duration;

use exoskel_flow::contract::{Lack, PlannerSettings};
use exoskel_sim::Violation;
use exoskel_sim::contracts::ContractScenario;

/// Slots that are needed are to be there so soon, and this many items later.
const SOON: Duration = Duration::from_secs(10);
const ITEMS: u32 = 3;

/// What came out of seeds that are alike.
#[derive(Default)]
struct Tally {
    seeds: u32,
    late: u32,
    /// Late by what could be known.
    late_known: u32,
    /// Deadlines that are missed, and nothing was told before.
    silent: u32,
    /// Deadlines that are kept, though it was told that they can't be.
    in_vain: u32,
    /// How long it took, in items beyond [`SOON`].
    longest: f64,
    too_many: u32,
    most_too_many: usize,
    reversed: u32,
    within: usize,
    /// The most slots that there were, as a multiple of what is needed.
    multiples: f64,
}

impl Tally {
    fn play(
        &mut self,
        scenario: &ContractScenario,
        step: Option<Duration>,
    ) -> Result<(), Violation> {
        let report = scenario.run()?;
        let window = PlannerSettings::default().window;
        let changes: Vec<Duration> = step.into_iter().collect();
        let (turns, within) = report.reversals(&changes, window);
        self.seeds += 1;
        self.within += within;
        let most = report.slots.iter().map(|(_, slots)| *slots).max();
        let needed = scenario.slots_needed(step.unwrap_or_default()) as usize;
        self.multiples += most.unwrap_or(0) as f64 / needed.max(1) as f64;
        let (late, extra) = match scenario.contract.deadline {
            Some(deadline) => {
                let before = report.outcomes.partition_point(|at| *at <= deadline.time);
                let late = (before as u64) < deadline.items;
                let told = report.told(|lack| !matches!(lack, Lack::Time));
                self.silent += u32::from(late && told.is_none_or(|at| at > deadline.time));
                let given_up = report.told(|lack| matches!(lack, Lack::Deadline(_)));
                self.in_vain += u32::from(!late && given_up.is_some());
                (late, most.unwrap_or(0).saturating_sub(2 * needed))
            }
            None => {
                self.reversed += u32::from(turns > 0);
                let (mut late, mut late_known) = (false, false);
                let first = Some(Duration::ZERO).filter(|_| step.is_none());
                for at in first.into_iter().chain(step) {
                    let needed = scenario.slots_needed_for(at, 0.97) as usize;
                    let after = report.slots_after(at, needed).unwrap_or(scenario.end);
                    let item = scenario.item_at(at);
                    let items = after.saturating_sub(SOON).as_secs_f64() / item.as_secs_f64();
                    if item >= Duration::from_secs(1) {
                        self.longest = self.longest.max(items);
                    }
                    late |= after > SOON + item * ITEMS;
                    let shown = at + item * ITEMS;
                    let items = report.items_between(at, shown);
                    let known = scenario.slots_known(at, 0.97, items) as usize;
                    late_known |= report
                        .slots_after(at, known)
                        .is_none_or(|after| after > SOON + item * ITEMS);
                }
                self.late_known += u32::from(late_known);
                (late, report.slots_at(scenario.end).saturating_sub(needed))
            }
        };
        self.late += u32::from(late);
        self.too_many += u32::from(extra > 1);
        self.most_too_many = self.most_too_many.max(extra);
        Ok(())
    }
}

/// What was decided in one seed.
fn tell(seed: u64) -> Result<(), Box<dyn Error>> {
    let (scenario, step) = ContractScenario::with_any_items(seed);
    let report = scenario.run()?;
    let before = scenario.slots_needed(Duration::ZERO);
    println!("{scenario:#?}\n{before} slots are needed at first");
    if let Some(step) = step {
        let after = scenario.slots_needed(step);
        println!("{after} slots are needed from {step:?} on");
    }
    println!("{report}");
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [seed] = &arguments[..] {
        return tell(seed.parse()?);
    }
    let [first, count] = &arguments[..] else {
        return Err("usage: contract_items FIRST COUNT, or contract_items SEED".into());
    };
    let (first, count): (u64, u64) = (first.parse()?, count.parse()?);
    let mut tallies = BTreeMap::<_, Tally>::new();
    for seed in first..first + count {
        let (scenario, step) = ContractScenario::with_any_items(seed);
        let kind = match (scenario.contract.deadline, step) {
            (Some(_), _) => "deadline",
            (None, None) => "throughput",
            (None, Some(_)) => "step",
        };
        let size = match scenario.phases[0].item {
            item if item < Duration::from_millis(100) => "1 to 100 ms",
            item if item < Duration::from_secs(1) => "100 ms to 1 s",
            _ => "1 to 30 s",
        };
        let times = format!("{:?}", scenario.times).to_lowercase();
        let tally = tallies.entry((kind, size, times)).or_default();
        tally.play(&scenario, step)?;
    }
    println!(
        "contract,items,times,seeds,late,late by what is known,missed in silence,told in vain,items until then,too many slots,most,seeds with reversals,reversals within a window,most slots by needed"
    );
    let mut sum = Tally::default();
    for ((kind, size, times), tally) in &tallies {
        println!(
            "{kind},{size},{times},{},{},{},{},{},{:.1},{},{},{},{},{:.2}",
            tally.seeds,
            tally.late,
            tally.late_known,
            tally.silent,
            tally.in_vain,
            tally.longest,
            tally.too_many,
            tally.most_too_many,
            tally.reversed,
            tally.within,
            tally.multiples / f64::from(tally.seeds),
        );
        sum.seeds += tally.seeds;
        sum.late += tally.late;
        sum.late_known += tally.late_known;
        sum.silent += tally.silent;
        sum.in_vain += tally.in_vain;
        sum.too_many += tally.too_many;
        sum.reversed += tally.reversed;
        sum.within += tally.within;
    }
    println!(
        "all,,,{},{},{},{},{},,{},,{},{},",
        sum.seeds,
        sum.late,
        sum.late_known,
        sum.silent,
        sum.in_vain,
        sum.too_many,
        sum.reversed,
        sum.within
    );
    Ok(())
}
