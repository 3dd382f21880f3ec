//! Index sets as they are said to others: in parts, none of which is longer than a message may be.
//!
//! A set's runs are no part of a layout's description: they go to who needs them, and the coupler sees none of them.

use std::collections::BTreeMap;

use exoskel_redist::{DIMENSIONS_MAX, INDEX_RUNS_MAX, IndexRun, IndexSet, SetsOfAxes};
use serde::{Deserialize, Serialize};

/// Runs that go in one message, at most: some megabytes as text.
pub const INDEX_RUNS_OF_PART_MAX: usize = 1 << 16;

/// Runs of all index sets that one keeper has of its members, at most.
pub const INDEX_RUNS_OF_KEEPER_MAX: usize = 1 << 26;

/// Numbers that say one run.
const RUN_NUMBERS: usize = 3;

/// What a set costs beside its runs, in runs: sets without runs would be free, and whoever says millions of them would pay nothing.
const RUNS_OF_SET: usize = 4;

/// Some runs of one process's index set.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct IndexPart {
    /// The array's axis.
    pub axis: u8,
    /// The process's coordinate there.
    pub process: u32,
    /// Cells of its memory on this axis.
    pub length: u64,
    /// First index, length and place in memory of one run after the other.
    pub runs: Vec<u64>,
}

impl IndexPart {
    /// Says sets, in as many parts as they need.
    pub fn of(sets: &SetsOfAxes) -> impl Iterator<Item = Self> {
        let sets = sets
            .iter()
            .flat_map(|(axis, sets)| sets.iter().map(|(process, set)| (*axis, *process, set)));
        sets.flat_map(|(axis, process, set)| {
            // A set without runs is said, too.
            let count = set.runs().len().div_ceil(INDEX_RUNS_OF_PART_MAX).max(1);
            (0..count).map(move |number| {
                let begin = number * INDEX_RUNS_OF_PART_MAX;
                let runs = set.runs()[begin..].iter().take(INDEX_RUNS_OF_PART_MAX);
                Self {
                    // No array has more axes than that.
                    axis: axis as u8,
                    process,
                    length: set.length(),
                    runs: runs
                        .flat_map(|run| [run.start, run.length, run.local])
                        .collect(),
                }
            })
        })
    }
}

/// Index sets of which parts have come.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IndexParts {
    sets: BTreeMap<(u8, u32), (u64, Vec<IndexRun>)>,
}

impl IndexParts {
    /// Takes a part. Returns how many runs it counts for, in limits: those that it has, and some for each new set.
    ///
    /// # Errors
    /// In words, for what is no part of a set.
    pub fn take(&mut self, part: &IndexPart) -> Result<usize, String> {
        let count = part.runs.len() / RUN_NUMBERS;
        if !part.runs.len().is_multiple_of(RUN_NUMBERS) || count > INDEX_RUNS_OF_PART_MAX {
            return Err(format!(
                "got {} numbers for runs of indices, expected {RUN_NUMBERS} for each of at most {INDEX_RUNS_OF_PART_MAX}",
                part.runs.len()
            ));
        }
        if usize::from(part.axis) >= DIMENSIONS_MAX {
            return Err(format!(
                "got indices on axis {}, expected less than {DIMENSIONS_MAX}",
                part.axis
            ));
        }
        let place = (part.axis, part.process);
        let of_set = match self.sets.contains_key(&place) {
            true => 0,
            false => RUNS_OF_SET,
        };
        let (length, runs) = self.sets.entry(place).or_insert((part.length, Vec::new()));
        if *length != part.length || runs.len() + count > INDEX_RUNS_MAX {
            return Err(format!(
                "got {} runs of a set of {} cells, expected at most {INDEX_RUNS_MAX} of {length}",
                runs.len() + count,
                part.length
            ));
        }
        runs.extend(part.runs.chunks_exact(RUN_NUMBERS).map(|run| IndexRun {
            start: run[0],
            length: run[1],
            local: run[2],
        }));
        Ok(of_set + count)
    }

    /// The sets, when all parts have come.
    ///
    /// # Errors
    /// In words, for what is no set.
    pub fn sets(self) -> Result<SetsOfAxes, String> {
        let mut made = SetsOfAxes::new();
        for ((axis, process), (length, runs)) in self.sets {
            let set = IndexSet::of_runs(length, runs).map_err(|error| error.to_string())?;
            made.entry(axis.into()).or_default().insert(process, set);
        }
        Ok(made)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_of_many_runs_come_in_parts() {
        let count = INDEX_RUNS_OF_PART_MAX as u64 + 5;
        let many = IndexSet::new((0..count).map(|cell| 2 * cell)).unwrap();
        let few = IndexSet::new([4, 2]).unwrap();
        let none = IndexSet::new([]).unwrap();
        let sets = SetsOfAxes::from([
            (0, BTreeMap::from([(3, many), (7, none)])),
            (2, BTreeMap::from([(0, few)])),
        ]);
        let parts: Vec<IndexPart> = IndexPart::of(&sets).collect();
        let counts: Vec<usize> = parts.iter().map(|part| part.runs.len() / 3).collect();
        assert_eq!(counts, [INDEX_RUNS_OF_PART_MAX, 5, 0, 2]);
        let mut heard = IndexParts::default();
        for part in &parts {
            heard.take(part).unwrap();
        }
        assert_eq!(heard.sets(), Ok(sets));
    }

    /// Aim: nobody can say sets without end at no cost.
    #[test]
    fn sets_without_runs_count() {
        let mut heard = IndexParts::default();
        let taken = (0..100).map(|process| {
            heard.take(&IndexPart {
                axis: 0,
                process,
                length: 0,
                runs: Vec::new(),
            })
        });
        let counted: Result<usize, String> = taken.sum();
        assert_eq!(counted, Ok(100 * RUNS_OF_SET));
        let beyond = IndexPart {
            axis: DIMENSIONS_MAX as u8,
            process: 0,
            length: 0,
            runs: Vec::new(),
        };
        assert!(
            heard
                .take(&beyond)
                .unwrap_err()
                .contains("got indices on axis 8")
        );
    }

    #[test]
    fn what_is_no_part_is_refused() {
        let part = |length, runs: &[u64]| IndexPart {
            axis: 0,
            process: 0,
            length,
            runs: runs.to_vec(),
        };
        let mut heard = IndexParts::default();
        assert!(heard.take(&part(3, &[1, 2])).is_err());
        assert_eq!(heard.take(&part(3, &[0, 2, 0])), Ok(RUNS_OF_SET + 1));
        assert!(heard.take(&part(4, &[2, 1, 2])).is_err());
        let too_many = vec![0; 3 * INDEX_RUNS_OF_PART_MAX + 3];
        assert!(heard.take(&part(3, &too_many)).is_err());
        assert_eq!(heard.take(&part(3, &[1, 1, 2])), Ok(1));
        let error = heard.sets().unwrap_err();
        assert!(
            error.contains("the index 1 at the places 1 and 2"),
            "{error}"
        );
    }
}
