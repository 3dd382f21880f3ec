//! Versions on their way between hosts: who has asked for which, and what has come.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use exoskel_redist::{CutCopy, Layout, PlanSide, RedistributionPlan, StridedCopy};

use crate::between_hosts::{KeeperId, PIECE_BYTES_MAX, PieceHead, RankPair, WantedVersion};
use crate::coupling::{ConnectionTerms, Coupling};
use crate::keeper::MemoryId;
use crate::{MEMBERS_MAX, MEMBERS_OF_KEEPER_MAX};

/// All that goes from or comes to one host.
#[derive(Debug, Default)]
pub(crate) struct RankPairs {
    layouts: BTreeMap<u32, (Layout, Layout)>,
    packing: BTreeMap<RankPair, Arc<CutCopy>>,
    unpacking: BTreeMap<RankPair, Arc<CutCopy>>,
    departures: BTreeMap<RankPair, OutgoingVersions>,
    arrivals: BTreeMap<(u32, u32), IncomingVersion>,
    /// The keepers of a connection's processes at both ends, by ranks.
    keepers: BTreeMap<u32, [Vec<KeeperId>; 2]>,
    /// What was asked for before we knew of the connection, by connection and keeper, and by process of the target.
    early: BTreeMap<(u32, KeeperId), BTreeMap<u32, WantedVersion>>,
}

/// What goes from one of our processes to one elsewhere.
#[derive(Debug)]
struct OutgoingVersions {
    keeper: KeeperId,
    every: u64,
    /// The first of the source's versions that hasn't gone.
    next: u64,
    /// The last version that was asked for.
    wanted: u64,
    is_under_way: bool,
    /// Its target has left, and takes nothing more.
    is_over: bool,
}

/// Where versions are written.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TargetPart {
    /// The memory of the target's part.
    pub(crate) memory: MemoryId,
    /// The connection's place on its board.
    pub(crate) place: u16,
}

/// What comes to one of our processes over one connection.
#[derive(Debug)]
struct IncomingVersion {
    arrival: TargetPart,
    /// The version that it waits for; what comes of others is not taken.
    wanted: u64,
    /// The version that it doesn't want any more, and has not been told so.
    forgone: Option<u64>,
    sources: BTreeMap<u32, IncomingPart>,
}

#[derive(Debug)]
struct IncomingPart {
    keeper: KeeperId,
    /// The next piece of the version that is wanted.
    piece: u64,
    is_whole: bool,
    /// A piece is being written.
    is_written: bool,
}

impl RankPairs {
    /// The copy of what a pair moves, at one of its ends, cut into pieces.
    pub(crate) fn cut(
        &mut self,
        terms: &ConnectionTerms,
        pair: RankPair,
        side: PlanSide,
    ) -> Option<Arc<CutCopy>> {
        let cuts = match side {
            PlanSide::Source => &mut self.packing,
            PlanSide::Target => &mut self.unpacking,
        };
        if let Some(known) = cuts.get(&pair) {
            return Some(Arc::clone(known));
        }
        let (source, target) = self.layouts.get(&pair.connection)?;
        let mapping = terms.mapping(source, target).ok()?;
        let (own, other) = match side {
            PlanSide::Source => (pair.source, pair.target),
            PlanSide::Target => (pair.target, pair.source),
        };
        let plan = RedistributionPlan::new(source, target, &mapping, side, own);
        let message = plan.messages().find(|message| message.rank() == other)?;
        let copy = match side {
            PlanSide::Source => StridedCopy::packing(message, &source.local_strides(own)),
            PlanSide::Target => StridedCopy::unpacking(message, &target.local_strides(own)),
        };
        let cut = Arc::new(copy.cut(PIECE_BYTES_MAX));
        cuts.insert(pair, Arc::clone(&cut));
        Some(cut)
    }

    pub(crate) fn add_departure(&mut self, pair: RankPair, keeper: Option<KeeperId>, every: u64) {
        // Who has come has a keeper.
        if let Some(keeper) = keeper {
            let departure = OutgoingVersions {
                keeper,
                every: every.max(1),
                next: 1,
                wanted: 0,
                is_under_way: false,
                is_over: false,
            };
            self.departures.insert(pair, departure);
        }
    }

    pub(crate) fn add_arrival(
        &mut self,
        pair: RankPair,
        keeper: Option<KeeperId>,
        arrival: TargetPart,
    ) {
        if let Some(keeper) = keeper {
            let place = (pair.connection, pair.target);
            let arriving = self.arrivals.entry(place).or_insert(IncomingVersion {
                arrival,
                wanted: 0,
                forgone: None,
                sources: BTreeMap::new(),
            });
            let part = IncomingPart {
                keeper,
                piece: 0,
                is_whole: false,
                is_written: false,
            };
            arriving.sources.insert(pair.source, part);
        }
    }

    /// All versions of a connection are known now.
    pub(crate) fn connected(
        &mut self,
        connection: u32,
        source: Layout,
        target: Layout,
        keepers: [Vec<KeeperId>; 2],
    ) {
        self.layouts.insert(connection, (source, target));
        self.keepers.insert(connection, keepers);
        let early = self
            .early
            .range((connection, 0)..=(connection, KeeperId::MAX));
        let places: Vec<(u32, KeeperId)> = early.map(|(place, _)| *place).collect();
        for place in places {
            for wanted in self.early.remove(&place).unwrap_or_default().into_values() {
                self.wanted(wanted);
            }
        }
    }

    /// Whether a connection can be used.
    pub(crate) fn is_ready(&self, connection: u32) -> bool {
        self.layouts.contains_key(&connection)
    }

    /// The processes that a keeper has, as far as connections have named them.
    pub(crate) fn processes_of(
        &self,
        keeper: KeeperId,
        coupling: &Coupling,
    ) -> BTreeSet<(String, u32)> {
        let mut found = BTreeSet::new();
        for (number, ends) in &self.keepers {
            let Some(terms) = coupling.connections().get(*number as usize) else {
                continue;
            };
            for (end, keepers) in [&terms.from, &terms.to].into_iter().zip(ends) {
                let its = keepers
                    .iter()
                    .enumerate()
                    .filter(|(_, its)| **its == keeper);
                found.extend(its.map(|(rank, _)| (end.program.clone(), rank as u32)));
            }
        }
        found
    }

    /// Whether a keeper has a process, as far as connections have named it.
    pub(crate) fn has(
        &self,
        keeper: KeeperId,
        (program, rank): &(String, u32),
        coupling: &Coupling,
    ) -> bool {
        self.keepers.iter().any(|(number, ends)| {
            let terms = coupling.connections().get(*number as usize);
            terms.is_some_and(|terms| {
                let mut ends = [&terms.from, &terms.to].into_iter().zip(ends);
                ends.any(|(end, keepers)| {
                    end.program == *program && keepers.get(*rank as usize) == Some(&keeper)
                })
            })
        })
    }

    /// Whether anything goes to a keeper, or comes from it.
    pub(crate) fn are_with(&self, keeper: KeeperId) -> bool {
        let mut departures = self.departures.values();
        let sources = |arriving: &IncomingVersion| {
            let mut sources = arriving.sources.values();
            sources.any(|part| part.keeper == keeper)
        };
        departures.any(|departure| departure.keeper == keeper)
            || self.arrivals.values().any(sources)
    }

    /// The pairs of which something has still to go; `is_due` says so of the first version that hasn't gone.
    pub(crate) fn owing(
        &self,
        is_due: impl Fn(&RankPair, u64) -> bool,
    ) -> impl Iterator<Item = &RankPair> {
        let departures = self.departures.iter();
        let owing = departures.filter(move |(pair, departure)| {
            departure.is_under_way || (!departure.is_over && is_due(pair, departure.next))
        });
        owing.map(|(pair, _)| pair)
    }

    /// One of our processes lets its part of a target be written. Returns the keepers that are to be told.
    pub(crate) fn want(&mut self, connection: u32, target: u32, version: u64) -> Vec<KeeperId> {
        let Some(arriving) = self.arrivals.get_mut(&(connection, target)) else {
            return Vec::new();
        };
        if version <= arriving.wanted {
            return Vec::new();
        }
        (arriving.wanted, arriving.forgone) = (version, None);
        let mut keepers = BTreeSet::new();
        for part in arriving.sources.values_mut() {
            (part.piece, part.is_whole) = (0, false);
            keepers.insert(part.keeper);
        }
        keepers.into_iter().collect()
    }

    /// A keeper says so of one of its processes. Returns our processes that may have something for it.
    pub(crate) fn wanted(&mut self, wanted: WantedVersion) -> Vec<u32> {
        let connection = wanted.connection;
        let Some((_, target)) = self.layouts.get(&connection) else {
            let early = self.early.entry((connection, wanted.keeper)).or_default();
            let has_room = early.len() < MEMBERS_OF_KEEPER_MAX;
            if wanted.target < MEMBERS_MAX && (has_room || early.contains_key(&wanted.target)) {
                early.insert(wanted.target, wanted);
            }
            return Vec::new();
        };
        if wanted.target >= target.processes() {
            return Vec::new();
        }
        let first = RankPair {
            connection,
            source: 0,
            target: 0,
        };
        let mut sources = Vec::new();
        for (pair, departure) in self.departures.range_mut(first..) {
            if pair.connection != connection {
                break;
            }
            let is_meant = pair.target == wanted.target && departure.keeper == wanted.keeper;
            // What has gone doesn't go again. The next one may be wanted before the last one is said to have gone.
            if is_meant && wanted.version >= departure.next {
                departure.wanted = wanted.version;
                sources.push(pair.source);
            }
        }
        sources
    }

    /// What goes from one of our processes now, of a source that was exported up to this version: to which keeper, for whom, which version.
    pub(crate) fn depart(
        &mut self,
        connection: u32,
        source: u32,
        exported: u64,
    ) -> Vec<(KeeperId, u32, u64)> {
        let due = self.of_source(connection, source);
        let due = due.filter(|(_, departure)| {
            !departure.is_under_way
                && !departure.is_over
                && departure.wanted == departure.next
                && departure.next <= exported
        });
        due.map(|(target, departure)| {
            departure.is_under_way = true;
            (departure.keeper, target, departure.next)
        })
        .collect()
    }

    /// What is on its way to a keeper.
    pub(crate) fn under_way_to(&self, keeper: KeeperId) -> Vec<RankPair> {
        let departures = self.departures.iter();
        let its = departures.filter(|(_, one)| one.is_under_way && one.keeper == keeper);
        its.map(|(pair, _)| *pair).collect()
    }

    /// All of a version is on its way. Says whether that counts: its keeper may have been given up meanwhile.
    pub(crate) fn departed(&mut self, pair: RankPair) -> bool {
        let departure = self.departures.get_mut(&pair);
        let Some(departure) = departure.filter(|one| one.is_under_way) else {
            return false;
        };
        departure.is_under_way = false;
        departure.next = departure.next.saturating_add(departure.every);
        true
    }

    /// What was under way doesn't go any more.
    pub(crate) fn not_departed(&mut self, pair: RankPair) {
        if let Some(departure) = self.departures.get_mut(&pair) {
            departure.is_under_way = false;
        }
    }

    /// A process of targets has left. Returns which connections of which of our sources that concerns.
    pub(crate) fn leave(
        &mut self,
        target: u32,
        is_meant: impl Fn(u32) -> bool,
    ) -> BTreeSet<(u32, u32)> {
        let mut concerned = BTreeSet::new();
        for (pair, departure) in &mut self.departures {
            if pair.target == target && is_meant(pair.connection) {
                departure.is_over = true;
                concerned.insert((pair.connection, pair.source));
            }
        }
        concerned
    }

    /// The last of a source's versions that nobody elsewhere has still to be sent over a connection.
    pub(crate) fn released(&mut self, connection: u32, source: u32) -> u64 {
        let waiting = self.of_source(connection, source);
        let waiting = waiting.filter(|(_, departure)| !departure.is_over || departure.is_under_way);
        let least = waiting.map(|(_, departure)| departure.next - 1).min();
        least.unwrap_or(u64::MAX)
    }

    fn of_source(
        &mut self,
        connection: u32,
        source: u32,
    ) -> impl Iterator<Item = (u32, &mut OutgoingVersions)> {
        let place = |target| RankPair {
            connection,
            source,
            target,
        };
        let departures = self.departures.range_mut(place(0)..=place(u32::MAX));
        departures.map(|(pair, departure)| (pair.target, departure))
    }

    /// Where a piece may be written. It counts as being written then.
    pub(crate) fn expected(&mut self, head: &PieceHead) -> Option<MemoryId> {
        let place = (head.pair.connection, head.pair.target);
        let arriving = self.arrivals.get_mut(&place)?;
        let part = arriving.sources.get_mut(&head.pair.source)?;
        let is_due = part.keeper == head.keeper
            && !part.is_whole
            && !part.is_written
            && arriving.wanted == head.version
            && part.piece == head.piece;
        part.is_written |= is_due;
        is_due.then_some(arriving.arrival.memory)
    }

    /// A piece was written. Returns where the whole version is, if that was the last that was missing.
    pub(crate) fn arrived(&mut self, head: &PieceHead, is_last: bool) -> Option<TargetPart> {
        let place = (head.pair.connection, head.pair.target);
        let arriving = self.arrivals.get_mut(&place)?;
        let part = arriving.sources.get_mut(&head.pair.source)?;
        part.is_written = false;
        // It may be wanted no more.
        if arriving.wanted != head.version {
            return None;
        }
        part.piece += 1;
        part.is_whole = is_last;
        let is_whole = arriving.sources.values().all(|part| part.is_whole);
        is_whole.then_some(arriving.arrival)
    }

    /// What one of our processes waits for of which a process elsewhere has given all of its own: connections and versions.
    pub(crate) fn given_by(&self, source: u32, target: u32) -> Vec<(u32, u64)> {
        let arrivals = self.arrivals.iter();
        let given = arrivals.filter(|((_, to), arriving)| {
            let part = arriving.sources.get(&source);
            *to == target && part.is_some_and(|part| part.is_whole)
        });
        given
            .map(|((connection, _), arriving)| (*connection, arriving.wanted))
            .collect()
    }

    /// A piece was not written.
    pub(crate) fn not_arrived(&mut self, head: &PieceHead) {
        let place = (head.pair.connection, head.pair.target);
        let arriving = self.arrivals.get_mut(&place);
        if let Some(part) = arriving.and_then(|one| one.sources.get_mut(&head.pair.source)) {
            part.is_written = false;
        }
    }

    /// One of our processes wants nothing more of a version. Says whether anything could come.
    pub(crate) fn forgo(&mut self, connection: u32, target: u32, version: u64) -> bool {
        let arriving = self.arrivals.get_mut(&(connection, target));
        let could_come = arriving.is_some();
        if let Some(arriving) = arriving {
            (arriving.wanted, arriving.forgone) = (0, Some(version));
        }
        could_come
    }

    /// The version of which nothing is written any more, once.
    pub(crate) fn forgone(&mut self, connection: u32, target: u32) -> Option<u64> {
        let arriving = self.arrivals.get_mut(&(connection, target))?;
        if arriving.sources.values().any(|part| part.is_written) {
            return None;
        }
        arriving.forgone.take()
    }
}
