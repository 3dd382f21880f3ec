//! Processes that a connection waits for, and for how long it does.

use std::collections::BTreeSet;
use std::time::Duration;

use super::{ConnectionState, Coupler, KnownProgram};
use crate::coupling::Variable;

/// Ranks that a text names. Of more it says how many.
const NAMED_RANKS_MAX: usize = 8;

/// Arrays that a text names.
const NAMED_ARRAYS_MAX: usize = 8;

/// Says processes of a program: `rank 0 of ocean`.
#[must_use]
pub fn ranks_of(program: &str, ranks: &[u32]) -> String {
    let named = &ranks[..ranks.len().min(NAMED_RANKS_MAX)];
    let words: Vec<String> = named.iter().map(ToString::to_string).collect();
    let several = if ranks.len() == 1 { "" } else { "s" };
    let more = match ranks.len() - named.len() {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    format!("rank{several} {}{more} of {program}", words.join(", "))
}

fn have_not(program: &str, ranks: &[u32], done: &str) -> Option<String> {
    let have = match ranks.len() {
        0 => return None,
        1 => "has",
        _ => "have",
    };
    Some(format!("{} {have} not {done}", ranks_of(program, ranks)))
}

impl KnownProgram {
    /// Which arrays a program has described when nobody has described one that the coupling names: one of the two may be misspelt.
    pub(super) fn described_instead(&self, array: &Variable) -> Option<String> {
        if self.variables.contains_key(&array.name) {
            return None;
        }
        let names = self.variables.keys().take(NAMED_ARRAYS_MAX);
        let names: Vec<&str> = names.map(String::as_str).collect();
        let more = match self.variables.len() - names.len() {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        let program = &array.program;
        (!names.is_empty()).then(|| format!("; {program} has described {}{more}", names.join(", ")))
    }
}

impl Coupler {
    /// Gives up waiting for processes that have not attached in time. Returns when to look again; times count from any one moment.
    pub fn look(&mut self, now: Duration) -> Option<Duration> {
        let present = self.programs.values().map(|program| program.present.len());
        let present = present.sum();
        if self.last_attached.0 != present {
            self.last_attached = (present, now);
        }
        let absent = self.absent_programs();
        // Before the first has come nobody waits.
        if present == 0 || absent.is_empty() {
            return None;
        }
        let limit = self.last_attached.1.checked_add(self.coupling.wait())?;
        if now < limit {
            return Some(limit);
        }
        let seconds = self.coupling.wait().as_secs_f64();
        for program in absent {
            let absent = self.absent(&program).unwrap_or_default();
            let size = self.programs.get(&program).map(|program| program.size);
            self.give_up(&program, None, |described, _| {
                let by = described.map_or(0, |array| array.by.len() as u32);
                let absent = format!("{absent} within {seconds} s after the last process that has");
                (size != Some(by)).then(|| format!("{absent}, so not all have said"))
            });
        }
        None
    }

    /// What an array waits for until its connections can be used, if for anything.
    #[must_use]
    pub fn missing(&self, array: &Variable) -> Option<String> {
        if let Some(absent) = self.absent(&array.program) {
            return Some(absent);
        }
        let program = self.programs.get(&array.program)?;
        let described = program.variables.get(&array.name);
        let by = |rank: &u32| described.is_some_and(|array| array.by.contains(rank));
        let silent: Vec<u32> = (0..program.size).filter(|rank| !by(rank)).collect();
        have_not(&array.program, &silent, &format!("described {array}"))
    }

    /// Which processes of a program have not attached, if any.
    fn absent(&self, program: &str) -> Option<String> {
        let Some(known) = self.programs.get(program) else {
            return Some(format!("no process of {program} has attached"));
        };
        let is_absent = |rank: &u32| !known.present.contains_key(rank);
        let absent: Vec<u32> = (0..known.size).filter(is_absent).collect();
        have_not(program, &absent, "attached")
    }

    /// Programs that connections wait for, and that are not whole.
    fn absent_programs(&self) -> BTreeSet<String> {
        let connections = self.coupling.connections().iter().zip(&self.connections);
        let waiting = connections.filter(|(_, status)| status.state == ConnectionState::Waiting);
        let ends = waiting.flat_map(|(terms, _)| [&terms.from.program, &terms.to.program]);
        let is_whole = |name: &&String| {
            let known = self.programs.get(*name);
            known.is_some_and(|known| known.present.len() as u32 == known.size)
        };
        ends.filter(|name| !is_whole(name)).cloned().collect()
    }
}
