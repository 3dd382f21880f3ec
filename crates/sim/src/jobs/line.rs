//! The line between a job's creator and an agent: messages in order, and a channel whose end each side sees.

use std::collections::VecDeque;
use std::time::Duration;

use exoskel_determinism::SplitMix64;
use exoskel_node::job::Sibling;

/// For how long a link waits for another connection; then what is said over it comes to nothing.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);

/// After so much silence, both sides take the channel for ended.
pub(super) const CHANNEL_DEAD_AFTER: Duration = Duration::from_secs(20);

/// What is said between creator and agent: what `job_state.py` and `agent.py` say to each other.
#[derive(Clone, Debug)]
pub(super) enum JobsMessage {
    // To the agent.
    Start {
        group: u32,
        size: u32,
        members: Vec<(u32, u32)>,
    },
    Siblings {
        group: u32,
        siblings: Vec<Sibling>,
    },
    Signed(Vec<u32>),
    End,
    // To the creator.
    AgentHere,
    Sign(Vec<u32>),
    Here(Vec<(u32, String)>),
    Returned(Vec<u32>),
    Ended {
        number: u32,
        code: Option<i32>,
    },
    /// The channel has ended, in either direction.
    HangUp,
}

/// Who is at an end of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum LineEnd {
    Creator,
    Agent,
}

/// A line. Nothing is lost but by its end: what can't pass waits.
#[derive(Debug)]
pub(super) struct JobLine {
    latency: (Duration, Duration),
    /// What comes on top, and until when.
    delay: (Duration, Duration),
    /// When the last message to each end arrives.
    free: [Duration; 2],
    pub(super) cut_since: Option<Duration>,
    /// What waits for the end of a cut.
    waiting: VecDeque<(LineEnd, JobsMessage)>,
    /// A cut has lasted for longer than links wait.
    pub(super) has_lost_link: bool,
    /// Nothing passes any more.
    pub(super) is_dead: bool,
}

impl JobLine {
    pub(super) fn new(latency: (Duration, Duration)) -> Self {
        Self {
            latency,
            delay: (Duration::ZERO, Duration::ZERO),
            free: [Duration::ZERO; 2],
            cut_since: None,
            waiting: VecDeque::new(),
            has_lost_link: false,
            is_dead: false,
        }
    }

    /// When a message arrives that is sent now, or `None` if it waits or comes to nothing.
    pub(super) fn send(
        &mut self,
        to: LineEnd,
        message: JobsMessage,
        now: Duration,
        random: &mut SplitMix64,
    ) -> Option<(Duration, JobsMessage)> {
        let is_hang_up = matches!(message, JobsMessage::HangUp);
        if self.is_dead || self.has_lost_link && !is_hang_up {
            return None;
        }
        if self.cut_since.is_some() {
            self.waiting.push_back((to, message));
            return None;
        }
        let extra = if now < self.delay.1 {
            self.delay.0
        } else {
            Duration::ZERO
        };
        let at = now + extra + self.latency.0 + random.between(Duration::ZERO, self.latency.1);
        let free = &mut self.free[to as usize];
        *free = (*free).max(at);
        Some((*free, message))
    }

    pub(super) fn delay(&mut self, by: Duration, until: Duration) {
        self.delay = (by, until);
    }

    /// What waited, in its order, once nothing is cut any more.
    pub(super) fn heal(&mut self) -> Vec<(LineEnd, JobsMessage)> {
        self.cut_since = None;
        self.waiting.drain(..).collect()
    }

    /// When a message that is sent then has arrived, if nothing is cut.
    pub(super) fn arrives_by(&self, sent: Duration) -> Duration {
        let on_the_way = self.latency.0 + self.latency.1 + self.delay.0;
        (sent + on_the_way).max(self.free[LineEnd::Agent as usize])
    }

    /// Links have waited for long enough: what waited for them comes to nothing. The channel's end still waits.
    pub(super) fn lose_link(&mut self) -> Vec<(LineEnd, JobsMessage)> {
        let waiting = self.waiting.drain(..);
        let (kept, lost): (Vec<_>, Vec<_>) =
            waiting.partition(|(_, message)| matches!(message, JobsMessage::HangUp));
        self.waiting = kept.into();
        lost
    }
}
