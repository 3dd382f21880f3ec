//! The memory outside the chip, where all keys are.

use crate::outcome::KeyMemoryOutcome;
use crate::time::Picoseconds;

/// Gives a key after its latency, to so many at a time; who comes later waits for the first to be done.
#[derive(Debug)]
pub(crate) struct KeyLatency {
    latency: Picoseconds,
    /// When each of the accesses that may overlap has ended.
    free_at: Vec<Picoseconds>,
    accesses: u64,
    demands: u64,
    waited: u128,
    waited_longest: Picoseconds,
}

impl KeyLatency {
    pub(crate) fn new(latency: Picoseconds, in_flight: u32) -> Self {
        Self {
            latency,
            free_at: vec![Picoseconds::ZERO; in_flight as usize],
            accesses: 0,
            demands: 0,
            waited: 0,
            waited_longest: Picoseconds::ZERO,
        }
    }

    /// When a key is there that is asked for now.
    pub(crate) fn fetch(&mut self, now: Picoseconds) -> Picoseconds {
        let (place, free_at) = self.first_free();
        let waited = free_at.saturating_sub(now);
        self.demands += 1;
        self.waited += u128::from(waited.0);
        self.waited_longest = self.waited_longest.max(waited);
        self.occupy(place, now + waited)
    }

    /// When a key would be there that was wanted at `wanted` and that no packet waits for; `None`, and no access, if that couldn't have begun before
    /// `now`. Who asks in the order of time gives what packets need the precedence.
    pub(crate) fn fetch_before(
        &mut self,
        wanted: Picoseconds,
        now: Picoseconds,
    ) -> Option<Picoseconds> {
        let (place, free_at) = self.first_free();
        let begins = free_at.max(wanted);
        (begins < now).then(|| self.occupy(place, begins))
    }

    fn first_free(&self) -> (usize, Picoseconds) {
        let free = self.free_at.iter().copied().enumerate();
        free.min_by_key(|(_, at)| *at)
            .unwrap_or((0, Picoseconds::NEVER))
    }

    fn occupy(&mut self, place: usize, begins: Picoseconds) -> Picoseconds {
        self.accesses += 1;
        let ends = begins + self.latency;
        self.free_at[place] = ends;
        ends
    }

    /// Adds what this memory did to that of others; their mean weighs by `demands`.
    pub(crate) fn add_to(&self, total: &mut KeyMemoryTotal) {
        total.demands += self.demands;
        total.waited += self.waited;
        let outcome = &mut total.outcome;
        outcome.accesses += self.accesses;
        outcome.waited_max_ps = outcome.waited_max_ps.max(self.waited_longest.0);
        outcome.busy_ps = outcome
            .busy_ps
            .saturating_add(self.accesses.saturating_mul(self.latency.0));
    }
}

/// What several memories did.
#[derive(Debug, Default)]
pub(crate) struct KeyMemoryTotal {
    demands: u64,
    waited: u128,
    outcome: KeyMemoryOutcome,
}

impl KeyMemoryTotal {
    pub(crate) fn outcome(&self) -> KeyMemoryOutcome {
        KeyMemoryOutcome {
            waited_mean_ps: (self.waited / u128::from(self.demands.max(1))) as u64,
            ..self.outcome
        }
    }
}
