//! Versions on their way between hosts: who has asked for which, and what has come.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use exoskel_redist::{CutCopy, Layout, PlanSide, RedistributionPlan, StridedCopy};

use crate::MEMBERS_MAX;
use crate::between_hosts::{KeeperId, PIECE_BYTES_MAX, PieceHead, RankPair, WantedVersion};
use crate::coupling::ConnectionTerms;
use crate::keeper::MemoryId;

/// All that goes from or comes to one host.
#[derive(Debug, Default)]
pub(crate) struct RankPairs {
    layouts: BTreeMap<u32, (Layout, Layout)>,
    packing: BTreeMap<RankPair, Arc<CutCopy>>,
    unpacking: BTreeMap<RankPair, Arc<CutCopy>>,
    departures: BTreeMap<RankPair, OutgoingVersions>,
    arrivals: BTreeMap<(u32, u32), IncomingVersion>,
    /// What was asked for before we knew of the connection, by connection and process of the target.
    early: BTreeMap<(u32, u32), WantedVersion>,
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
    sources: BTreeMap<u32, IncomingPart>,
}

#[derive(Debug)]
struct IncomingPart {
    keeper: KeeperId,
    /// The next piece of the version that is wanted.
    piece: u64,
    is_whole: bool,
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
                sources: BTreeMap::new(),
            });
            let part = IncomingPart {
                keeper,
                piece: 0,
                is_whole: false,
            };
            arriving.sources.insert(pair.source, part);
        }
    }

    /// All versions of a connection are known now.
    pub(crate) fn connected(&mut self, connection: u32, source: Layout, target: Layout) {
        self.layouts.insert(connection, (source, target));
        let early = self.early.range((connection, 0)..=(connection, u32::MAX));
        let early: Vec<WantedVersion> = early.map(|(_, wanted)| *wanted).collect();
        for wanted in early {
            self.early.remove(&(connection, wanted.target));
            self.wanted(wanted);
        }
    }

    /// One of our processes lets its part of a target be written. Returns the keepers that are to be told.
    pub(crate) fn want(&mut self, connection: u32, target: u32, version: u64) -> Vec<KeeperId> {
        let Some(arriving) = self.arrivals.get_mut(&(connection, target)) else {
            return Vec::new();
        };
        if version <= arriving.wanted {
            return Vec::new();
        }
        arriving.wanted = version;
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
        if !self.layouts.contains_key(&connection) {
            if self.early.len() < MEMBERS_MAX as usize {
                self.early.insert((connection, wanted.target), wanted);
            }
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

    /// All of a version is on its way.
    pub(crate) fn departed(&mut self, pair: RankPair) {
        if let Some(departure) = self.departures.get_mut(&pair) {
            departure.is_under_way = false;
            departure.next = departure.next.saturating_add(departure.every);
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

    /// Where a piece may be written.
    pub(crate) fn expected(&self, head: &PieceHead) -> Option<MemoryId> {
        let place = (head.pair.connection, head.pair.target);
        let arriving = self.arrivals.get(&place)?;
        let part = arriving.sources.get(&head.pair.source)?;
        let is_due = part.keeper == head.keeper
            && !part.is_whole
            && arriving.wanted == head.version
            && part.piece == head.piece;
        is_due.then_some(arriving.arrival.memory)
    }

    /// A piece was written. Returns where the whole version is, if that was the last that was missing.
    pub(crate) fn arrived(&mut self, head: &PieceHead, is_last: bool) -> Option<TargetPart> {
        let place = (head.pair.connection, head.pair.target);
        let arriving = self.arrivals.get_mut(&place)?;
        let part = arriving.sources.get_mut(&head.pair.source)?;
        part.piece += 1;
        part.is_whole = is_last;
        let is_whole = arriving.sources.values().all(|part| part.is_whole);
        is_whole.then_some(arriving.arrival)
    }
}
