//! What a run of jobs is made of, and what came of it.

use std::time::Duration;

/// What is simulated. [`from_seed`](Self::from_seed) makes one of a number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobsScenario {
    /// Everything random comes from it.
    pub seed: u64,
    /// How many processes the agent of each host lets be at the same time; as many as are wanted, if it is `None`.
    pub hosts: Vec<Option<usize>>,
    /// The least time between creator and agents, and what comes on top at most.
    pub latency: (Duration, Duration),
    /// How long it takes at most to fork a process: hosts may be busy.
    pub forks_within: Duration,
    /// What is started.
    pub groups: Vec<JobGroupScenario>,
    /// What goes wrong, and when.
    pub faults: Vec<(Duration, JobsFault)>,
    /// How the job ends.
    pub end: JobsEnd,
    /// When, if it does not end by a fault before.
    pub ends_at: Duration,
    /// What a driver does wrong on purpose.
    pub mischief: Option<JobsMischief>,
}

/// Processes that are started together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobGroupScenario {
    /// When.
    pub begins_at: Duration,
    /// How many.
    pub count: u32,
    /// What each does.
    pub program: PlayedProgram,
}

/// What processes do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlayedProgram {
    /// A function: joins, asks for siblings, returns, and stays until its job ends.
    Function {
        /// One of so many ends before it has returned, with an exit code; none, if it is 0.
        fails_one_in: u64,
    },
    /// A slot of a manager: joins, asks for siblings, and is replaced when it ends.
    Slot {
        /// One of so many ends as soon as it has begun; none, if it is 0.
        fails_one_in: u64,
    },
    /// Ends by itself, without joining.
    Program {
        /// How long it runs at most.
        lasts: Duration,
        /// Whether it does nothing upon a signal that asks it to end.
        is_stubborn: bool,
    },
    /// Says that it is where somebody else is.
    Liar,
}

/// How a job ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JobsEnd {
    /// The creator closes it.
    Closed,
    /// The creator dies.
    Killed,
    /// It is detached, and the creator leaves.
    Left,
}

/// What goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JobsFault {
    /// An agent is killed, and all that it has started with it.
    KillAgent(usize),
    /// What starts the processes of a host is killed, and they with it.
    KillZygote(usize),
    /// One of the processes of a host is killed, wherever it stands.
    KillProcess(usize),
    /// Nothing passes between a host and the creator for so long.
    Cut(usize, Duration),
    /// All that passes takes so much longer, for so long.
    Delay(usize, Duration, Duration),
    /// Whoever lets the agent run ends the job on this host.
    EndOnHost(usize),
    /// The creator dies.
    KillCreator,
}

/// What a driver does wrong on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JobsMischief {
    /// Some ends are not told to the creator.
    LosesEnds,
    /// Some futures have two outcomes.
    SettlesTwice,
    /// Some processes that run well are said to be lost.
    InventsLosses,
    /// The process that takes another one's place has its number.
    RepeatsNumbers,
    /// Processes are started although the host has as many as may be.
    IgnoresLimits,
    /// Agents don't hear that their job ends.
    IgnoresEnd,
    /// Agents don't hear that their creator has gone.
    IgnoresHangUp,
    /// What does not end in time is not killed.
    ForgetsGrace,
    /// Signals to processes that are just being started are lost.
    LosesSignals,
    /// Some groups are not told.
    LosesTellings,
    /// Some groups are told twice.
    RepeatsTellings,
    /// Members that have ended are named as there.
    NamesTheDead,
    /// Agents don't pass on that another one is in the place of a sibling.
    HidesReplacements,
    /// Some slots that have ended are not replaced.
    ForgetsSlots,
    /// Some keys are not sent up.
    LosesKeys,
    /// Whatever a process says of its place is believed.
    BelievesLiars,
}

/// A run that went to its end.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JobsReport {
    /// How many events there were.
    pub steps: u64,
    /// Of all events and their times.
    pub digest: u64,
    /// When it was over.
    pub ended_at: Duration,
    /// Faults that happened.
    pub faults: u64,
    /// Processes that hosts have started.
    pub processes: u64,
    /// Processes that were there.
    pub there: u64,
    /// Futures that failed.
    pub failed: u64,
    /// Processes that were lost with their agents.
    pub lost: u64,
    /// Starts that agents refused.
    pub refused: u64,
    /// Slots that took another one's place.
    pub replaced: u64,
    /// Times that a group was told.
    pub told: u64,
    /// Siblings that processes learned of.
    pub siblings: u64,
    /// Siblings that were reached where they were said to be.
    pub met: u64,
    /// Processes that were killed because they didn't end.
    pub killed: u64,
    /// Agents that were lost.
    pub agents_lost: u64,
    /// The longest time from when an agent noticed the end of its job to the end of its last process.
    pub longest_end: Duration,
}
