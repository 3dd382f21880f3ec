//! What a job's creator and the agents of its hosts decide: who gets which number, who is told of whom, what ends with what, and when.
//!
//! A *job* is processes on several hosts that end together. Its creator has an agent on each host, which starts processes there and passes on
//! what they say. Neither machine knows sockets, keys or texts: its driver keeps those under the numbers of processes.
//!
//! * [`JobMachine`]: the creator's part
//! * [`AgentMachine`]: an agent's part
//! * [`Replacements`]: when another slot of a manager takes the place of one that has ended

mod agent;
mod creator;
mod replacements;
#[cfg(test)]
mod tests;

use std::time::Duration;

use thiserror::Error;

pub use agent::{AgentAction, AgentMachine, NewProcess, ProcessOrigin, Sibling, StartRefusal};
pub use creator::{
    EndReason, FutureFate, GroupMember, GroupTelling, JobMachine, JobPlacement, MemberEnd,
};
pub use replacements::Replacements;

/// Numbers of a job: of its agents and processes. None is used again.
pub const PROCESSES_MAX: u32 = 100_000;

/// The number of the job's creator.
pub const CREATOR: u32 = 0;

/// Keys that are sent up to be signed in one request.
pub const KEYS_AT_ONCE_MAX: usize = 1024;

/// How long processes may take to end in order when their job ends. Those that still run are killed.
pub const GRACE: Duration = Duration::from_secs(2);

/// What a job's creator can't do, or an agent may not say.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum JobError {
    /// There are no more numbers.
    #[error("got more than {PROCESSES_MAX} processes for one job")]
    TooMany,
    /// An agent that is needed has gone.
    #[error("what starts processes on {host} has ended")]
    AgentLost {
        /// Its host.
        host: String,
    },
    /// Nothing begins in a job that is over.
    #[error("this job is over")]
    Over,
    /// An agent speaks of a process that it has not started.
    #[error("process {process} is not one of agent {agent}")]
    NotOwn {
        /// The process.
        process: u32,
        /// Who speaks.
        agent: u32,
    },
    /// A process says what it can't, or can't say again.
    #[error("process {process} says what it can't: {what}")]
    Misbehaved {
        /// The process.
        process: u32,
        /// What is wrong.
        what: &'static str,
    },
}
