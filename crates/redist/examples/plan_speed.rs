//! How long it takes to plan: one process's own part at a time, of arrays shared out over thousands.
//!
//!     cargo run --release -p exoskel-redist --example plan_speed

#![expect(clippy::print_stdout, reason = "a program for the terminal")]
#![expect(clippy::disallowed_methods, reason = "it measures time")]

use std::error::Error;
use std::time::{Duration, Instant};

use exoskel_redist::{
    AxisSharing, ElementType, Layout, Mapping, MemoryOrder, PlanSide, RedistributionPlan,
};

fn cyclic(length: u64, processes: u32, block: u64) -> Result<Layout, Box<dyn Error>> {
    let sharing = vec![AxisSharing::Cyclic(block)];
    let order = MemoryOrder::C;
    Ok(Layout::new(
        &[length],
        ElementType::FLOAT64,
        sharing,
        &[processes],
        &[0],
        order,
    )?)
}

fn main() -> Result<(), Box<dyn Error>> {
    println!("    from      to    length    messages  mean of one process   worst    a message");
    for (from, to, bits) in [
        (64, 64, 24),
        (64, 63, 24),
        (1024, 1024, 24),
        (1024, 1023, 24),
        (4096, 4096, 24),
        (4096, 4095, 24),
        (4096, 4095, 30),
    ] {
        let length = 1 << bits;
        let (source, target) = (cyclic(length, from, 37)?, cyclic(length, to, 53)?);
        let mapping = Mapping::new(&source, &target, None, None, None)?;
        let (mut all, mut worst, mut messages, mut elements) =
            (Duration::ZERO, Duration::ZERO, 0, 0);
        for rank in 0..from {
            let start = Instant::now();
            let plan = RedistributionPlan::new(&source, &target, &mapping, PlanSide::Source, rank);
            messages += plan
                .messages()
                .map(|one| u64::from(one.rank() < to))
                .sum::<u64>();
            let spent = start.elapsed();
            elements += plan.elements();
            all += spent;
            worst = worst.max(spent);
        }
        if elements != length {
            return Err(format!("got plans of {elements} elements, expected {length}").into());
        }
        println!(
            "{from:>8}{to:>8}     2**{bits}{messages:>12}{:>18.1} us{:>8.1} us{:>8.1} ns",
            all.as_secs_f64() * 1e6 / f64::from(from),
            worst.as_secs_f64() * 1e6,
            all.as_secs_f64() * 1e9 / messages as f64
        );
    }
    Ok(())
}
