//! Runs traces through the key-cache simulator and prints what came out, as JSON: for `make test-peers` and `make bench`.
//!
//! `replay PARAMETERS.toml SEED TRACE...`; `-` instead of a file: the paper's parameters. `replay simgrid DIRECTORY TRACE` writes the same messages as text
//! for SimGrid's replay, a file for each rank and `traces`, which lists them.

#![allow(
    clippy::disallowed_methods,
    clippy::print_stdout,
    reason = "a tool, not the sans-IO library: it reads files, arguments and the clock"
)]

use std::error::Error;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use exoskel_keycache::{Parameters, ReplayProgram, Study};
use exoskel_trace::Trace;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [parameters, seed, traces @ ..] = arguments.as_slice() else {
        return Err("expected PARAMETERS.toml SEED TRACE..., or simgrid DIRECTORY TRACE".into());
    };
    if parameters == "simgrid" {
        return write_replay_text(Path::new(seed), &read(traces.first().ok_or("no trace")?)?);
    }
    let parameters = match parameters.as_str() {
        "-" => Parameters::default(),
        path => Parameters::from_toml(&std::fs::read_to_string(path)?)?,
    };
    let seed: u64 = seed.parse()?;
    let begun = Instant::now();
    let jobs = traces
        .iter()
        .map(|path| read(path).map(Arc::new))
        .collect::<Result<Vec<_>, _>>()?;
    let prepared = Instant::now();
    let outcome = Study::new(parameters, jobs)?.run(seed)?;
    let seconds = prepared.elapsed().as_secs_f64();
    let latency = outcome.packet_latency;
    println!(
        "{}",
        serde_json::json!({
            "prepare_seconds": (prepared - begun).as_secs_f64(),
            "run_seconds": seconds,
            "completion_seconds": outcome.completion_ps as f64 / 1e12,
            "messages": outcome.messages,
            "packets": outcome.packets,
            "events": outcome.events,
            "messages_per_second": outcome.messages as f64 / seconds,
            "events_per_second": outcome.events as f64 / seconds,
            "packet_latency_mean_ns": latency.mean_ps as f64 / 1e3,
            "packet_latency_p50_ns": latency.p50_ps as f64 / 1e3,
            "packet_latency_p99_ns": latency.p99_ps as f64 / 1e3,
            "message_latency_mean_ns": outcome.message_latency.mean_ps as f64 / 1e3,
            "lookups": outcome.lookups,
            "hit_rate": outcome.hit_rate(),
            "prefetch_hit_rate": outcome.prefetch_hit_rate(),
            "joined_fetches": outcome.joined_fetches,
            "prefetches": outcome.prefetches,
            "key_memory_waited_mean_ns": outcome.key_memory.waited_mean_ps as f64 / 1e3,
            "context_switches": outcome.context_switches,
            "job_seconds": outcome.jobs.iter().map(|job| job.completed_ps as f64 / 1e12).collect::<Vec<_>>(),
            "digest": format!("{:016x}", outcome.digest),
        })
    );
    Ok(())
}

fn read(path: &str) -> Result<ReplayProgram, Box<dyn Error>> {
    Ok(ReplayProgram::from_trace(&Trace::read(&std::fs::read(
        path,
    )?)?)?)
}

fn write_replay_text(directory: &Path, program: &ReplayProgram) -> Result<(), Box<dyn Error>> {
    let mut list = String::new();
    for rank in 0..program.ranks() {
        let path = directory.join(format!("rank{rank}"));
        std::fs::write(&path, program.replay_text(rank))?;
        list += &format!("{}\n", path.display());
    }
    std::fs::write(directory.join("traces"), list)?;
    Ok(())
}
