//! What can be wrong with a study.

use thiserror::Error;

/// Why a study can't be made, or a run can't go on. Who asked for it has to change what is named.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum KeycacheError {
    /// The text of a scenario isn't one.
    #[error("the scenario can't be read: {reason}")]
    Scenario {
        /// What the reader says; names the key.
        reason: String,
    },
    /// No preset has that name.
    #[error("got the preset {got:?}, expected one of {expected}")]
    Preset {
        /// The name.
        got: String,
        /// Those there are.
        expected: String,
    },
    /// A parameter that is impossible, or impossible beside another one.
    #[error("got {name} = {got}, expected {expected}")]
    Parameter {
        /// Which one.
        name: &'static str,
        /// Its value.
        got: u64,
        /// What it could be.
        expected: String,
    },
    /// Processes that wait keep those that could work from the processor.
    #[error(
        "for {seconds} s of virtual time nobody computed and no message came: scheduler = {scheduler:?} gives the processor to processes \
         that spin; take another scheduler, or a shorter quantum_ns"
    )]
    Starved {
        /// The parameter.
        scheduler: &'static str,
        /// Virtual time without any progress.
        seconds: u64,
    },
    /// There is nothing to run.
    #[error("got no trace, expected at least one")]
    NoJobs,
    /// There are too many jobs.
    #[error("got {got} jobs, expected at most {most}")]
    TooManyJobs {
        /// How many.
        got: usize,
        /// How many there may be.
        most: usize,
    },
    /// A trace has more ranks than the nodes have room for.
    #[error(
        "trace {trace}: got {ranks} ranks, but nodes = {nodes} and ranks_per_card = {ranks_per_card}: there is no room for more than {} of a job",
        u64::from(*nodes) * u64::from(*ranks_per_card)
    )]
    MoreRanksThanNodes {
        /// Which trace.
        trace: String,
        /// Its ranks.
        ranks: usize,
        /// The parameter.
        nodes: u32,
        /// The parameter.
        ranks_per_card: u32,
    },
    /// Ranks can't be put on cards, so many on each.
    #[error(
        "got ranks_per_card = {ranks_per_card}, expected a divisor of {ranks}, the number of ranks of trace {trace}"
    )]
    RanksPerCard {
        /// Which trace.
        trace: String,
        /// Its ranks.
        ranks: usize,
        /// What was asked for.
        ranks_per_card: u64,
    },
    /// A trace that can't be run again.
    #[error("trace {trace}, rank {rank}, record {record}: {reason}")]
    Replay {
        /// Which trace.
        trace: String,
        /// Whose record.
        rank: usize,
        /// Which one, from 0 on.
        record: usize,
        /// What is wrong with it.
        reason: String,
    },
    /// A trace with more than one run can hold.
    #[error("trace {trace}: got {got} {what}, expected at most {most}")]
    TooMany {
        /// Which trace.
        trace: String,
        /// Of what.
        what: &'static str,
        /// How many.
        got: usize,
        /// How many there may be.
        most: usize,
    },
    /// Everybody waits for somebody.
    #[error(
        "job {job} ({trace}) is stuck: rank {rank} waits for a message between it and rank {peer}; a larger eager_bytes lets sends end \
         before their receives begin"
    )]
    Stuck {
        /// Which job.
        job: usize,
        /// Its trace.
        trace: String,
        /// A rank that waits.
        rank: usize,
        /// The other end of the message.
        peer: usize,
    },
    /// The run takes longer than virtual time goes.
    #[error(
        "the run has taken 26 days of virtual time, expected less: a smaller compute_percent or faster links help"
    )]
    TooLong,
}
