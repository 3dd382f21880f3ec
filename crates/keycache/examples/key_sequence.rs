//! The study's sequences of keys for other programs, and what our cache makes of them.
//!
//! `key_sequence trace FILE DIRECTORY` writes what each rank of a trace looks up, a message each; `key_sequence synthetic KEYS OFF_ON
//! PACKETS_PER_ON SEED PACKETS FILE` synthetic traffic. Both write the format that libCacheSim calls oracleGeneral: 24 bytes for a
//! lookup, of which it takes the key and the size, 1. `key_sequence count FILE POLICY ENTRIES..` prints, for each number of entries, what
//! the cache of the runtime finds in such a file, and the seconds that it took for it. `key_sequence calls PLACE` prints what the tracer
//! left in a folder, or what SimGrid wrote into the files of a list: the note, and for each rank its calls as names with peer, bytes, tag, gap, the messages
//! that they are made of and the communicator's members.

#![allow(
    clippy::disallowed_methods,
    clippy::print_stdout,
    reason = "a tool, not the sans-IO library: it reads files, arguments and a clock"
)]

use std::env;
use std::error::Error;
use std::fs;
use std::path::Path;
use std::time::Instant;

use exoskel_keycache::S3Fifo;
use exoskel_keycache::sequence::{Lookup, Traffic, keys};
use exoskel_link::keys::{Cache, ClockPolicy, Geometry, LeastRecentlyUsed, Replacement};
use exoskel_trace::{RankCalls, ReplayText, Trace, TraceRecord};
use serde_json::{Value, json};

/// Of the host that `smpirun` takes for the real one, unless told otherwise.
const OPERATIONS_PER_SECOND: f64 = 20_000.0;
/// Bytes of a lookup: time u32, key u64, size u32, number of the key's next lookup i64.
const LOOKUP_BYTES: usize = 24;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words[..] {
        ["trace", file, directory] => {
            let trace = Trace::read(&fs::read(file)?)?;
            for rank in 0..trace.ranks.len() {
                let peers = keys(&trace, rank, Lookup::Message).map(|(peer, _)| u64::from(peer));
                write(&Path::new(directory).join(rank.to_string()), peers)?;
            }
        }
        [
            "synthetic",
            keys,
            off_on,
            packets_per_on,
            seed,
            packets,
            file,
        ] => {
            let traffic = Traffic::new(keys.parse()?, off_on.parse()?, packets_per_on.parse()?)?;
            let keys = traffic.packets(seed.parse()?).map(u64::from);
            write(Path::new(file), keys.take(packets.parse()?))?;
        }
        ["count", file, policy, ref entries @ ..] => {
            let lookups = fs::read(file)?;
            let count = match policy {
                "lru" => count::<LeastRecentlyUsed>,
                "clock" => count::<ClockPolicy>,
                "s3-fifo" => count::<S3Fifo>,
                _ => {
                    return Err(
                        format!("got policy {policy}, expected lru, clock or s3-fifo").into(),
                    );
                }
            };
            let entries = entries
                .iter()
                .map(|entries| -> Result<Value, Box<dyn Error>> {
                    Ok(count(
                        &lookups,
                        Geometry::fully_associative(entries.parse()?)?,
                    ))
                });
            println!("{}", Value::Array(entries.collect::<Result<_, _>>()?));
        }
        ["calls", place] => println!("{}", traced(Path::new(place))?),
        _ => return Err("got other arguments, expected: trace, synthetic, count or calls".into()),
    }
    Ok(())
}

fn traced(place: &Path) -> Result<Value, Box<dyn Error>> {
    let trace = match place.is_dir() {
        true => left(place)?,
        false => listed(place)?,
    };
    // What can be written can be read: the packer's whole way.
    let trace = Trace::read(&trace.write()?)?;
    let call = |rank: usize, record: &TraceRecord| {
        let steps = trace.steps(rank, record).len();
        let operation = record.operation.name();
        json!([
            operation,
            record.peer,
            record.bytes,
            record.tag,
            record.gap_ns,
            steps,
            trace.communicators[rank][usize::from(record.communicator)],
        ])
    };
    let ranks: Vec<Vec<Value>> = (0..trace.ranks.len())
        .map(|rank| {
            trace.ranks[rank]
                .iter()
                .map(|record| call(rank, record))
                .collect()
        })
        .collect();
    Ok(json!({"note": trace.note, "ranks": ranks}))
}

/// What the tracer left.
fn left(folder: &Path) -> Result<Trace, Box<dyn Error>> {
    let mut files = Vec::new();
    for rank in 0.. {
        let path = folder.join(format!("rank-{rank:05}.calls"));
        if !path.exists() {
            break;
        }
        let communicators = fs::read_to_string(path.with_extension("communicators"))?;
        files.push((path.display().to_string(), fs::read(path)?, communicators));
    }
    let files: Vec<RankCalls<'_>> = files
        .iter()
        .map(|(name, calls, communicators)| RankCalls {
            name,
            calls,
            communicators,
        })
        .collect();
    Ok(Trace::read_calls("traced", &files)?)
}

/// What SimGrid wrote, a file for each rank.
fn listed(list: &Path) -> Result<Trace, Box<dyn Error>> {
    let folder = list.parent().ok_or("got no file, expected a list")?;
    let names = fs::read_to_string(list)?;
    let texts = names
        .lines()
        .map(|name| Ok((name, fs::read_to_string(folder.join(name))?)))
        .collect::<Result<Vec<_>, Box<dyn Error>>>()?;
    let texts: Vec<ReplayText<'_>> = texts
        .iter()
        .map(|(name, text)| ReplayText { name, text })
        .collect();
    Ok(Trace::read_simgrid(
        "written",
        &texts,
        OPERATIONS_PER_SECOND,
    )?)
}

fn write(file: &Path, keys: impl Iterator<Item = u64>) -> Result<(), Box<dyn Error>> {
    let mut lookups = Vec::new();
    for (number, key) in keys.enumerate() {
        lookups.extend((number as u32).to_le_bytes());
        lookups.extend(key.to_le_bytes());
        lookups.extend(1_u32.to_le_bytes());
        lookups.extend((-1_i64).to_le_bytes());
    }
    Ok(fs::write(file, lookups)?)
}

fn count<P: Replacement>(lookups: &[u8], geometry: Geometry) -> Value {
    let mut cache = Cache::<u64, (), P>::new(geometry);
    let start = Instant::now();
    for lookup in lookups.chunks_exact(LOOKUP_BYTES) {
        let mut key = [0; 8];
        key.copy_from_slice(&lookup[4..12]);
        let key = u64::from_le_bytes(key);
        if cache.get(key).is_none() {
            cache.insert(key, ());
        }
    }
    let seconds = start.elapsed().as_secs_f64();
    let counters = cache.counters();
    json!({
        "entries": geometry.entries(),
        "lookups": counters.lookups(),
        "hits": counters.hits,
        "seconds": seconds,
    })
}
