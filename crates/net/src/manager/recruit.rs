//! How slots are got: children are started, workers that listen are dialled. Who is asked when is not said here.

use std::fmt;
use std::time::Duration;

use exoskel_flow::contract::Contract;
use exoskel_node::manager::recruiter::SlotSource;

use super::attempt::{Attempt, AttemptError};
use super::children::{LocalWorkers, Started};
use crate::discovery::Hearing;
use crate::establish::{EstablishError, Established, NodeConfig, dial};
use crate::host_file::{HostFile, HostLine};
use crate::listening::Listening;

/// A worker whose answering slot was just taken is asked again after this time, by the same attempt.
const BUSY_PAUSE: Duration = Duration::from_millis(10);

/// How often an attempt asks a worker again that says it is busy. The pauses double, as each answer costs both sides a handshake.
const BUSY_MAX: u32 = 6;

/// Where slots may come from.
pub struct Recruiting {
    /// How many slots are wanted at first.
    pub slots: u32,
    /// How many there are to be from then on; so many if that is none.
    pub contract: Option<Contract>,
    /// Children of this process.
    pub local: Option<LocalWorkers>,
    /// Workers that listen.
    pub hosts: Vec<HostLine>,
    /// The file that lists them, if it is one: what changes in it counts.
    pub host_file: Option<HostFile>,
    /// Workers of names that the policy allows are dialled when they are heard.
    pub hearing: Option<Hearing>,
    /// Where workers may dial in.
    pub listen: Option<Listening>,
    /// How long runs wait for a slot when none is left.
    pub patience: Duration,
}

/// Where a slot is asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum RecruitingPlace {
    Child(u32),
    Host(usize, HostLine),
    DialledIn(String),
}

impl fmt::Display for RecruitingPlace {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Child(number) => write!(formatter, "local worker {number}"),
            Self::Host(_, line) if line.address.to_string().starts_with(&line.name) => {
                write!(formatter, "worker {}", line.address)
            }
            Self::Host(_, line) => write!(formatter, "worker {} at {}", line.name, line.address),
            Self::DialledIn(address) => {
                write!(formatter, "worker that dialled in from {address}")
            }
        }
    }
}

impl RecruitingPlace {
    /// What the machine knows it as.
    pub(super) fn source(&self) -> SlotSource {
        match self {
            Self::Child(number) => SlotSource::Child(*number),
            Self::Host(position, _) => SlotSource::Host(*position),
            Self::DialledIn(_) => SlotSource::DialledIn,
        }
    }

    /// An attempt to get a slot from here that came to nothing.
    pub(super) fn attempt(&self, error: AttemptError) -> Attempt {
        let place = match self {
            Self::Child(_) => self.to_string(),
            Self::Host(_, line) => line.address.to_string(),
            Self::DialledIn(address) => address.clone(),
        };
        Attempt {
            worker: self.to_string(),
            place,
            is_of_stranger: matches!(self, Self::DialledIn(_)) && !error.is_of_verified_peer(),
            error: error.into(),
        }
    }
}

/// Dials a worker that listens, again for a while if it says that the slot which answered has just been taken.
pub(super) async fn dial_host(
    line: &HostLine,
    terms: &NodeConfig,
    is_wanted: impl Fn() -> bool,
) -> Result<Established, AttemptError> {
    let mut result = dial_host_once(line, terms).await;
    for time in 0..BUSY_MAX {
        if !matches!(&result, Err(error) if error.is_busy()) || !is_wanted() {
            break;
        }
        tokio::time::sleep(BUSY_PAUSE * (1 << time)).await;
        result = dial_host_once(line, terms).await;
    }
    result
}

async fn dial_host_once(line: &HostLine, terms: &NodeConfig) -> Result<Established, AttemptError> {
    let connecting = tokio::time::timeout(terms.handshake_time, line.address.connect()).await;
    let socket = connecting
        .map_err(|_| AttemptError::NoConnection(terms.handshake_time))?
        .map_err(AttemptError::Connect)?;
    Ok(dial(socket, terms, Some(line.name.clone())).await?)
}

/// Makes a session with a child that was started, and that may import what it needs first.
pub(super) async fn dial_child(
    started: Started,
    terms: &NodeConfig,
    loading_time: Option<Duration>,
) -> Result<Established, AttemptError> {
    let (socket, name) = started?;
    let Some(loading_time) = loading_time else {
        return Ok(dial(socket, terms, Some(name)).await?);
    };
    let terms = NodeConfig {
        handshake_time: terms.handshake_time.max(loading_time),
        ..terms.clone()
    };
    let dialled = dial(socket, &terms, Some(name)).await;
    dialled.map_err(|error| match error {
        EstablishError::Silent(time) => AttemptError::Loading(time),
        error => error.into(),
    })
}
