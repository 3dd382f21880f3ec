//! Who waits for what: read from the boards, for somebody who asks why nothing moves.

use std::collections::BTreeMap;

use exoskel_transfer::{ConnectionState, Coupler, ranks_of};

use super::Inside;

/// Processes of a program that wait for the same.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WaitReport {
    /// Whose processes.
    pub program: String,
    /// Which.
    pub ranks: Vec<u32>,
    /// The array of which they wait for a version, or for one to be taken.
    pub array: String,
    /// Which version, as the array's program counts.
    pub version: u64,
    /// In words: who waits for what, and who has not done it.
    pub text: String,
}

/// Who has to attach, or to describe an array, before a connection can be used.
pub(super) fn missing(coupler: &Coupler, connection: usize) -> Option<String> {
    if coupler.connections()[connection].state != ConnectionState::Waiting {
        return None;
    }
    let terms = &coupler.coupling().connections()[connection];
    let mut ends = [&terms.from, &terms.to].into_iter();
    ends.find_map(|array| coupler.missing(array))
}

impl Inside {
    /// Who waits for what, just now, by the own word of the members of this host.
    pub(super) fn waits(&self, coupler: &Coupler) -> Vec<WaitReport> {
        let mut reports = Vec::new();
        for (number, terms) in coupler.coupling().connections().iter().enumerate() {
            for (array, is_reader) in [(&terms.to, true), (&terms.from, false)] {
                let mut waiting: BTreeMap<u64, Vec<u32>> = BTreeMap::new();
                for (rank, memory) in self.keeper.memory_of(array) {
                    let noted = self.memories.get(&memory);
                    let noted = noted.and_then(|kept| kept.mapped.wait_noted());
                    let noted = noted.filter(|wait| wait.connection as usize == number);
                    let is_here = self.keeper.is_here(&array.program, rank);
                    if let Some(wait) = noted.filter(|_| is_here) {
                        waiting.entry(wait.version).or_default().push(rank);
                    }
                }
                for (version, mut ranks) in waiting {
                    ranks.sort_unstable();
                    let who = ranks_of(&array.program, &ranks);
                    let verb = if ranks.len() == 1 { "waits" } else { "wait" };
                    let what = match is_reader {
                        true => format!("for version {version} of {}", terms.from),
                        false => format!(
                            "until version {version} of {array} is taken into {}",
                            terms.to
                        ),
                    };
                    let why = self.behind(coupler, number, version, is_reader);
                    let text = match why {
                        Some(why) => format!("{who} {verb} {what}: {why}"),
                        None => format!("{who} {verb} {what}"),
                    };
                    reports.push(WaitReport {
                        program: array.program.clone(),
                        ranks,
                        array: terms.from.to_string(),
                        version,
                        text,
                    });
                }
            }
        }
        reports
    }

    /// Who has not come as far as a version of a connection's source: those who give it, or those who take it.
    fn behind(
        &self,
        coupler: &Coupler,
        connection: usize,
        version: u64,
        is_given: bool,
    ) -> Option<String> {
        if let Some(missing) = missing(coupler, connection) {
            return Some(missing);
        }
        let coupling = coupler.coupling();
        let terms = &coupling.connections()[connection];
        let place = coupling.place_into(connection) as u16;
        let (array, done) = match is_given {
            true => (&terms.from, "exported"),
            false => (&terms.to, "taken"),
        };
        let parts = self.keeper.memory_of(array).into_iter();
        let reached = parts.filter_map(|(rank, memory)| {
            let board = &self.memories.get(&memory)?.mapped;
            Some(match is_given {
                true => (board.exported(), rank),
                false => (board.taken(place).0, rank),
            })
        });
        // Whoever is furthest behind holds up all others.
        let (last, rank) = reached.min().filter(|(last, _)| *last < version)?;
        let who = ranks_of(&array.program, &[rank]);
        Some(match last {
            0 => format!("{who} has {done} none"),
            last => format!("{who} has {done} version {last}"),
        })
    }
}
