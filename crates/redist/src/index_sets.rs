//! Index sets: an axis whose indices belong to processes in no regular way, as the cells of an unstructured mesh do.
//!
//! A set is kept as runs of indices that lie one after the other in its process's memory. A process's part of a plan costs its own runs,
//! each with a search, and the runs that it meets.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

/// Runs of one process's set, at most.
pub const INDEX_RUNS_MAX: usize = 1 << 24;

/// Indices one after the other, which lie one after the other in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IndexRun {
    /// The first index.
    pub start: u64,
    /// How many.
    pub length: u64,
    /// Where the first one is in the process's memory of this axis.
    pub local: u64,
}

impl IndexRun {
    fn end(&self) -> u64 {
        self.start + self.length
    }
}

/// The indices of one process, in the order in which its memory has them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IndexSet {
    /// Cells of the process's memory.
    length: u64,
    /// In ascending order. They may be a part of the set: what has to do with somebody.
    runs: Vec<IndexRun>,
}

/// What can't be an index set.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IndexSetError {
    /// An index that is there twice.
    #[error(
        "got the index {index} at the places {first} and {second}, expected each index once in a process's set"
    )]
    Twice {
        /// Which.
        index: u64,
        /// Where it is first.
        first: u64,
        /// Where it is again.
        second: u64,
    },
    /// More runs than a set may have.
    #[error(
        "got indices in {got} or more runs, expected at most {INDEX_RUNS_MAX} runs of one process"
    )]
    Runs {
        /// As many as were seen.
        got: usize,
    },
    /// Runs that no list of indices has.
    #[error("got runs that are not those of a set: {0}")]
    Malformed(&'static str),
}

impl IndexSet {
    /// The indices of a process, in the order of its memory.
    ///
    /// # Errors
    /// [`IndexSetError`].
    pub fn new(indices: impl IntoIterator<Item = u64>) -> Result<Self, IndexSetError> {
        let mut runs: Vec<IndexRun> = Vec::new();
        let mut length = 0;
        for index in indices {
            let count = runs.len();
            match runs.last_mut() {
                Some(last) if last.end() == index => last.length += 1,
                _ if count >= INDEX_RUNS_MAX => {
                    return Err(IndexSetError::Runs { got: count + 1 });
                }
                _ if index == u64::MAX => {
                    return Err(IndexSetError::Malformed("an index beyond 64 bits"));
                }
                _ => runs.push(IndexRun {
                    start: index,
                    length: 1,
                    local: length,
                }),
            }
            length += 1;
        }
        Self::sorted(length, runs)
    }

    /// A set, or the part of it that has to do with somebody, as it was said by others: cells of the memory, and runs.
    ///
    /// # Errors
    /// [`IndexSetError`].
    pub fn of_runs(length: u64, runs: Vec<IndexRun>) -> Result<Self, IndexSetError> {
        if runs.len() > INDEX_RUNS_MAX {
            return Err(IndexSetError::Runs { got: runs.len() });
        }
        let is_inside = |run: &IndexRun| {
            let local = run.local.checked_add(run.length);
            let end = run.start.checked_add(run.length);
            run.length > 0 && end.is_some() && local.is_some_and(|end| end <= length)
        };
        if !runs.iter().all(is_inside) {
            return Err(IndexSetError::Malformed("a run beyond the set's length"));
        }
        Self::sorted(length, runs)
    }

    fn sorted(length: u64, mut runs: Vec<IndexRun>) -> Result<Self, IndexSetError> {
        runs.sort_unstable_by_key(|run| run.start);
        for pair in runs.windows(2) {
            if pair[0].end() > pair[1].start {
                let (index, before) = (pair[1].start, &pair[0]);
                let (one, other) = (before.local + (index - before.start), pair[1].local);
                return Err(IndexSetError::Twice {
                    index,
                    first: one.min(other),
                    second: one.max(other),
                });
            }
        }
        Ok(Self { length, runs })
    }

    /// What several have said of one set, each in ascending order: they may have said the same.
    ///
    /// # Errors
    /// [`IndexSetError`], if they say different things.
    pub fn joined(length: u64, mut runs: Vec<IndexRun>) -> Result<Self, IndexSetError> {
        runs.sort_unstable_by_key(|run| run.start);
        runs.dedup_by(|next, last| {
            let is_same_memory = next.start - last.start == next.local.wrapping_sub(last.local);
            let goes_on = next.start <= last.end() && is_same_memory;
            if goes_on {
                last.length = last.length.max(next.end() - last.start);
            }
            goes_on
        });
        Self::of_runs(length, runs)
    }

    /// The part of it that has these indices.
    pub(crate) fn within(&self, indices: &Range<u64>) -> Self {
        let begin = self.runs.partition_point(|run| run.end() <= indices.start);
        let runs = self.runs[begin..].iter();
        let runs = runs.take_while(|run| run.start < indices.end).map(|run| {
            let start = run.start.max(indices.start);
            IndexRun {
                start,
                length: run.end().min(indices.end) - start,
                local: run.local + (start - run.start),
            }
        });
        self.part(runs.collect())
    }

    /// Runs of this set alone, in ascending order.
    pub(crate) fn part(&self, runs: Vec<IndexRun>) -> Self {
        Self {
            length: self.length,
            runs,
        }
    }

    /// Cells of the process's memory.
    #[must_use]
    pub fn length(&self) -> u64 {
        self.length
    }

    /// In the order of the indices.
    #[must_use]
    pub fn runs(&self) -> &[IndexRun] {
        &self.runs
    }

    /// The largest index and one, 0 if there is none.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.runs.last().map_or(0, IndexRun::end)
    }

    /// Its indices in ascending order, as ranges that don't touch.
    pub(crate) fn ranges(&self) -> Vec<Range<u64>> {
        let mut ranges: Vec<Range<u64>> = Vec::new();
        for run in &self.runs {
            match ranges.last_mut() {
                Some(last) if last.end == run.start => last.end = run.end(),
                _ => ranges.push(run.start..run.end()),
            }
        }
        ranges
    }
}

/// The sets of the processes of one dimension of a grid: of all of them, or of those that are known here.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IndexSets {
    known: Arc<KnownSets>,
}

#[derive(Debug, Default, PartialEq, Eq)]
struct KnownSets {
    sets: BTreeMap<u32, IndexSet>,
    /// How many processes there are, if these are all of them.
    all: Option<u32>,
    /// The runs of all processes, by their indices. A target's may overlap.
    directory: Vec<DirectoryRun>,
    /// How far the runs up to each of them reach.
    reach: Vec<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DirectoryRun {
    pub(crate) start: u64,
    pub(crate) end: u64,
    pub(crate) local: u64,
    pub(crate) process: u32,
}

impl IndexSets {
    /// Of all processes, in the order of their coordinates.
    #[must_use]
    pub fn of_all(sets: Vec<IndexSet>) -> Self {
        let all = u32::try_from(sets.len()).ok();
        Self::new((0..).zip(sets).collect(), all)
    }

    /// Of some processes, by their coordinates on the axis. Nothing is planned with others.
    #[must_use]
    pub fn of_some(sets: BTreeMap<u32, IndexSet>) -> Self {
        Self::new(sets, None)
    }

    fn new(sets: BTreeMap<u32, IndexSet>, all: Option<u32>) -> Self {
        let runs = sets.iter().flat_map(|(process, set)| {
            set.runs.iter().map(|run| DirectoryRun {
                start: run.start,
                end: run.end(),
                local: run.local,
                process: *process,
            })
        });
        let mut directory: Vec<DirectoryRun> = runs.collect();
        directory.sort_unstable_by_key(|run| (run.start, run.process));
        let mut reached = 0;
        let reach = directory.iter().map(|run| {
            reached = run.end.max(reached);
            reached
        });
        let reach = reach.collect();
        Self {
            known: Arc::new(KnownSets {
                sets,
                all,
                directory,
                reach,
            }),
        }
    }

    /// Of how many processes they are, if they are all known.
    #[must_use]
    pub fn processes(&self) -> Option<u32> {
        self.known.all
    }

    /// One process's, if it is known.
    #[must_use]
    pub fn set(&self, process: u32) -> Option<&IndexSet> {
        self.known.sets.get(&process)
    }

    /// Those that are known.
    pub fn sets(&self) -> impl Iterator<Item = (u32, &IndexSet)> {
        self.known.sets.iter().map(|(process, set)| (*process, set))
    }

    /// The runs of all processes that have something from the index `first` to the index `last`, by their first indices.
    pub(crate) fn between(&self, first: u64, last: u64) -> impl Iterator<Item = &DirectoryRun> {
        let begin = self.known.reach.partition_point(|reach| *reach <= first);
        let runs = self.known.directory[begin..].iter();
        runs.take_while(move |run| run.start <= last)
            .filter(move |run| run.end > first)
    }

    /// The first index from `first` to `last` that two processes have, with both.
    pub(crate) fn doubled(&self, first: u64, last: u64) -> Option<(u64, u32, u32)> {
        let mut before: Option<&DirectoryRun> = None;
        for run in self.between(first, last) {
            let index = run.start.max(first);
            if let Some(other) = before.filter(|other| other.end > index) {
                return Some((index, other.process, run.process));
            }
            before = Some(run);
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_what_lies_together() {
        let set = IndexSet::new([7, 8, 9, 3, 2, 4, 5]).unwrap();
        let run = |start, length, local| IndexRun {
            start,
            length,
            local,
        };
        let expected = [run(2, 1, 4), run(3, 1, 3), run(4, 2, 5), run(7, 3, 0)];
        assert_eq!(
            (set.length(), set.runs(), set.end()),
            (7, &expected[..], 10)
        );
        assert_eq!(set.ranges(), [2..6, 7..10]);
        assert_eq!(IndexSet::of_runs(7, expected.to_vec()), Ok(set));
        assert_eq!(IndexSet::new([]).unwrap().end(), 0);
    }

    #[test]
    fn an_index_is_there_once() {
        let twice = |index, first, second| IndexSetError::Twice {
            index,
            first,
            second,
        };
        assert_eq!(IndexSet::new([5, 1, 5]), Err(twice(5, 0, 2)));
        assert_eq!(IndexSet::new([3, 4, 5, 4]), Err(twice(4, 1, 3)));
    }

    #[test]
    fn runs_of_others_are_checked() {
        let run = |start, length, local| IndexRun {
            start,
            length,
            local,
        };
        for bad in [
            run(0, 0, 0),
            run(0, 3, 0),
            run(u64::MAX, 1, 0),
            run(0, u64::MAX, 1),
            run(0, 1, 2),
        ] {
            let made = IndexSet::of_runs(2, vec![bad]);
            assert!(
                matches!(made, Err(IndexSetError::Malformed(_))),
                "{bad:?}: {made:?}"
            );
        }
        assert!(IndexSet::new([u64::MAX]).is_err());
    }

    #[test]
    fn who_has_what_is_found_where_sets_overlap() {
        let set = |indices: &[u64]| IndexSet::new(indices.iter().copied()).unwrap();
        let sets = IndexSets::of_all(vec![set(&[0, 1, 2, 3, 4, 5]), set(&[9, 1]), set(&[3, 4])]);
        let found = |first, last| {
            let runs = sets.between(first, last);
            runs.map(|run| (run.process, run.start)).collect::<Vec<_>>()
        };
        assert_eq!(found(4, 8), [(0, 0), (2, 3)]);
        assert_eq!(found(1, 1), [(0, 0), (1, 1)]);
        assert_eq!(found(6, 8), []);
        assert_eq!(found(9, 9), [(1, 9)]);
        assert_eq!(sets.doubled(0, 9), Some((1, 0, 1)));
        assert_eq!(sets.doubled(2, 9), Some((3, 0, 2)));
        assert_eq!(sets.doubled(5, 9), None);
        let run = |start, length, local| IndexRun {
            start,
            length,
            local,
        };
        let said = vec![run(5, 2, 1), run(0, 2, 7), run(6, 3, 2), run(2, 1, 0)];
        let joined = IndexSet::joined(9, said).unwrap();
        assert_eq!(joined.runs(), [run(0, 2, 7), run(2, 1, 0), run(5, 4, 1)]);
        assert!(IndexSet::joined(9, vec![run(1, 2, 0), run(2, 1, 5)]).is_err());
    }
}
