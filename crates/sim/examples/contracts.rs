//! Contracts in virtual time: seeds of a step in the time of items, with the product's planner and with planners that are broken on purpose:
//! `contracts FIRST COUNT`, or what was decided in one seed: `contracts SEED`.

#![expect(
    clippy::disallowed_methods,
    clippy::print_stdout,
    reason = "a command line stands outside of what it runs"
)]

use std::error::Error;
use std::time::Duration;

use exoskel_flow::contract::PlannerSettings;
use exoskel_sim::Violation;
use exoskel_sim::contracts::{ContractScenario, ItemTimes};

/// How soon a contract is to be met after a step.
const SOON: Duration = Duration::from_secs(10);

/// What came out of seeds whose times are spread alike.
#[derive(Default)]
struct Tally {
    seeds: u32,
    reversed: u32,
    within: usize,
    late: u32,
    too_many: u32,
    most_too_many: usize,
    longest: Duration,
}

impl Tally {
    fn play(&mut self, scenario: &ContractScenario, step: Duration) -> Result<(), Violation> {
        let report = scenario.run()?;
        let window = PlannerSettings::default().window;
        let (turns, within) = report.reversals(&[step], window);
        self.seeds += 1;
        self.reversed += u32::from(turns > 0);
        self.within += within;
        let rate = scenario.contract.throughput.unwrap_or(0.0);
        let met = report.met_after(step, rate * 0.97, Duration::from_secs(1));
        let met = met.unwrap_or(scenario.end);
        self.late += u32::from(met > SOON);
        self.longest = self.longest.max(met);
        if scenario.phases[1].item > scenario.phases[0].item {
            let needed = scenario.slots_needed(step) as usize;
            let extra = report.slots_at(scenario.end).saturating_sub(needed);
            self.too_many += u32::from(extra > 1);
            self.most_too_many = self.most_too_many.max(extra);
        }
        Ok(())
    }
}

/// What was decided in one seed.
fn tell(seed: u64) -> Result<(), Box<dyn Error>> {
    let (scenario, step) = ContractScenario::with_step(seed);
    let report = scenario.run()?;
    let [before, after] = [Duration::ZERO, step].map(|at| scenario.slots_needed(at));
    println!("{scenario:#?}\n{before} slots are needed until {step:?}, and {after} then\n{report}");
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [seed] = &arguments[..] {
        return tell(seed.parse()?);
    }
    let [first, count] = &arguments[..] else {
        return Err("usage: contracts FIRST COUNT, or contracts SEED".into());
    };
    let (first, count): (u64, u64) = (first.parse()?, count.parse()?);
    let whole = PlannerSettings::default();
    let without_doubt = PlannerSettings {
        doubt: 0.0,
        ..whole.clone()
    };
    let without_window = PlannerSettings {
        window: Duration::ZERO,
        ..whole.clone()
    };
    let without_both = PlannerSettings {
        window: Duration::ZERO,
        ..without_doubt.clone()
    };
    let planners = [
        ("as it is", whole),
        ("without a window", without_window),
        ("without doubt", without_doubt),
        ("without both", without_both),
    ];
    println!(
        "planner,times,seeds,seeds with reversals,reversals within a window,met late,longest,more than one slot too many,most"
    );
    for (name, settings) in planners {
        let mut tallies = [Tally::default(), Tally::default()];
        for seed in first..first + count {
            let (mut scenario, step) = ContractScenario::with_step(seed);
            scenario.settings = settings.clone();
            let is_exponential = scenario.times == ItemTimes::Exponential;
            tallies[usize::from(is_exponential)].play(&scenario, step)?;
        }
        for (times, tally) in ["even", "exponential"].iter().zip(tallies) {
            println!(
                "{name},{times},{},{},{},{},{:.1},{},{}",
                tally.seeds,
                tally.reversed,
                tally.within,
                tally.late,
                tally.longest.as_secs_f64(),
                tally.too_many,
                tally.most_too_many,
            );
        }
    }
    Ok(())
}
