//! Our own lanes of `make bench-links`, and those of raw sockets and rustls beside them.
//!
//! A lane is a pair of connected ends. All lanes of a process are connected when it says which it has, on its first line. From then on each
//! line that it reads is a turn, `LANE BYTES COUNT`, and the answer is the seconds that it took, or `failed` and why. Nobody spins between
//! turns, so that lanes of other processes have the machine to themselves.
//!
//!     link_lanes stream ping connect node     lanes of these kinds, both ends in this process
//!     link_lanes far DIRECTORY LISTEN RAW_LISTEN      the far end of lanes between two hosts, and
//!     link_lanes near DIRECTORY WAY...    the near one: see `apart`
//!     link_lanes messages METHOD PROTECTION COUNT     round trips of 64 bytes, and nothing else

#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a program for the terminal"
)]

mod apart;
mod connects;
mod messages;
mod nodes;
mod polling;
mod raw;
mod sessions;
mod tls;

use std::collections::BTreeMap;
use std::error::Error;
use std::io::{BufRead, Write};
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::thread::{self, Thread};
use std::time::Duration;

type Failure = Box<dyn Error + Send + Sync>;

/// A pair of connected ends.
trait Lane {
    /// Moves so many messages of so many bytes, and says how long that took.
    fn turn(&mut self, bytes: usize, count: u64) -> Result<Duration, Failure>;
}

type Lanes = BTreeMap<String, Box<dyn Lane>>;

fn main() -> Result<(), Failure> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let mut lanes = Lanes::new();
    match words.as_slice() {
        ["far", directory, listen, raw] => return apart::far(directory.as_ref(), listen, raw),
        ["near", directory, ways @ ..] => apart::near(directory.as_ref(), ways, &mut lanes)?,
        ["messages", method, protection, count] => {
            return messages::run(method, protection.parse()?, count.parse()?);
        }
        kinds => {
            for kind in kinds {
                match *kind {
                    "stream" => streams(&mut lanes)?,
                    "ping" => polling::lanes(&mut lanes)?,
                    "connect" => connects::lanes(&mut lanes)?,
                    "node" => nodes::tcp(&mut lanes)?,
                    other => {
                        let text = format!("got {other}, expected stream, ping, connect, node");
                        return Err(text.into());
                    }
                }
            }
        }
    }
    take_turns(&mut lanes)
}

fn streams(lanes: &mut Lanes) -> Result<(), Failure> {
    raw::lanes(lanes)?;
    sessions::lanes(lanes)?;
    tls::lanes(lanes)?;
    nodes::streams(lanes)
}

fn take_turns(lanes: &mut Lanes) -> Result<(), Failure> {
    let names: Vec<_> = lanes.keys().map(String::as_str).collect();
    println!("{}", names.join(" "));
    std::io::stdout().flush()?;
    for line in std::io::stdin().lock().lines() {
        match turn(lanes, &line?) {
            Ok(time) => println!("{:.9}", time.as_secs_f64()),
            Err(error) => println!("failed {error}"),
        }
        std::io::stdout().flush()?;
    }
    Ok(())
}

fn turn(lanes: &mut Lanes, line: &str) -> Result<Duration, Failure> {
    let expected = || format!("got {line:?}, expected LANE BYTES COUNT");
    let words: Vec<_> = line.split_whitespace().collect();
    let [name, bytes, count] = words[..] else {
        return Err(expected().into());
    };
    let lane = lanes.get_mut(name).ok_or_else(expected)?;
    lane.turn(bytes.parse()?, count.parse()?)
}

/// What has come at a far end, and who waits for it.
struct Arrivals {
    bytes: AtomicU64,
    wanted: AtomicU64,
    waiter: Thread,
}

impl Arrivals {
    /// Those for which this thread will wait.
    fn new() -> Self {
        Self {
            bytes: AtomicU64::new(0),
            wanted: AtomicU64::new(u64::MAX),
            waiter: thread::current(),
        }
    }

    fn count(&self) -> u64 {
        self.bytes.load(SeqCst)
    }

    fn add(&self, bytes: u64) {
        let before = self.bytes.fetch_add(bytes, SeqCst);
        let wanted = self.wanted.load(SeqCst);
        if before < wanted && before + bytes >= wanted {
            self.waiter.unpark();
        }
    }

    /// Says for how many it will wait, so that nobody is woken for less.
    fn want(&self, bytes: u64) {
        self.wanted.store(bytes, SeqCst);
    }

    fn wait(&self, bytes: u64) {
        self.want(bytes);
        while self.count() < bytes {
            thread::park();
        }
    }
}

/// Something to send, the same bytes in each message.
fn payload(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|index| ((index * 31) >> 3) as u8).collect()
}
