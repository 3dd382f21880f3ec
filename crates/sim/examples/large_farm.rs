//! A farm or a pipeline of thousands of slots by grain and latency, as comma-separated values: `large_farm PROGRAM SERIAL_NANOS SLOTS ITEMS
//! FRAME_NANOS ITEM_NANOS FRAME_TIME_MICROS GRAIN_MICROS,... LATENCY_MICROS,... [exponential] [tickets=NUMBER]`. A program is its stages, `f` in a farm and `s` serial: `f`, `fs`, `fsf`.
//! The two costs are what a frame and an item take of the manager's time.

#![expect(
    clippy::disallowed_methods,
    clippy::print_stdout,
    reason = "a command line stands outside of what it runs"
)]

use std::error::Error;
use std::time::{Duration, Instant};

use exoskel_flow::{FunctionId, Skeleton};
use exoskel_sim::{LargeFarm, Spread};

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (arguments, tickets) = match arguments.split_last() {
        Some((last, others)) if last.starts_with("tickets=") => {
            (others, Some(last["tickets=".len()..].parse()?))
        }
        _ => (&arguments[..], None),
    };
    let (arguments, spread) = match arguments.split_last() {
        Some((last, others)) if last == "exponential" => (others, Spread::Exponential),
        _ => (arguments, Spread::Even),
    };
    let [
        program,
        serial,
        slots,
        items,
        frame_nanos,
        item_nanos,
        frame_time,
        grains,
        latencies,
    ] = arguments
    else {
        return Err("expected nine arguments; the source says which".into());
    };
    let list = |text: &str| -> Result<Vec<u64>, std::num::ParseIntError> {
        text.split(',').map(str::parse).collect()
    };
    println!(
        "program,serial_ns,slots,items,frame_cost_ns,item_cost_ns,frame_time_us,grain_us,latency_us,speed_up,manager_load,frames,recalled,makespan_s,steps,digest,run_s,of_bound,asked,in_vain"
    );
    for grain in list(grains)? {
        for latency in list(latencies)? {
            let mut farm = LargeFarm::new(
                1,
                slots.parse()?,
                items.parse()?,
                Duration::from_micros(grain),
                Duration::from_micros(latency),
            );
            farm.skeleton = pipeline(program)?;
            farm.spread = spread;
            farm.config.tickets_max = tickets.unwrap_or(farm.config.tickets_max);
            farm.serial = Duration::from_nanos(serial.parse()?);
            farm.frame_cost = Duration::from_nanos(frame_nanos.parse()?);
            farm.item_cost = Duration::from_nanos(item_nanos.parse()?);
            farm.config.frame_time = Duration::from_micros(frame_time.parse()?);
            let begun = Instant::now();
            let report = farm.run()?;
            println!(
                "{program},{serial},{slots},{items},{frame_nanos},{item_nanos},{frame_time},{grain},{latency},{:.1},{:.4},{},{},{:.3},{},{:016x},{:.1},{:.3},{},{:.4}",
                report.speed_up(),
                report.load(),
                report.frames,
                report.recalled,
                report.makespan.as_secs_f64(),
                report.steps,
                report.digest,
                begun.elapsed().as_secs_f64(),
                report.of_bound(),
                report.asked,
                report.in_vain(farm.items),
            );
        }
    }
    Ok(())
}

/// The stages that stand in the text.
fn pipeline(text: &str) -> Result<Skeleton, String> {
    let stage = |(number, kind): (usize, char)| {
        let function = Skeleton::Seq(FunctionId(number as u32));
        match kind {
            'f' => Ok(Skeleton::Farm(Box::new(function))),
            's' => Ok(function),
            _ => Err(format!("got stage {kind:?}, expected f or s")),
        }
    };
    let stages: Result<Vec<_>, _> = text.chars().enumerate().map(stage).collect();
    stages.map(Skeleton::Pipeline)
}
