//! Small messages and nothing else, for a tool that counts what the program calls.

use std::time::Instant;

use exoskel_link::Protection;
use exoskel_net::pki::ThrowAwayAuthority;

use super::nodes::now;
use super::polling::SessionPing;
use super::{Failure, Lane};

/// Sends so many round trips of 64 bytes.
pub(crate) fn run(method: &str, protection: Protection, count: u64) -> Result<(), Failure> {
    let authority = ThrowAwayAuthority::new(now())?;
    let mut lane = SessionPing::new(&authority, method, protection)?;
    let start = Instant::now();
    lane.turn(64, count)?;
    println!("{count} in {:?}", start.elapsed());
    Ok(())
}
