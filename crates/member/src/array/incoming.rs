//! Connections that end in an array: who gives what of a version, and how it is taken.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use exoskel_redist::{PartBlocks, PlanSide, StridedCopy};
use exoskel_transfer::{ArrayEnd, GoneMember, MemberMessage, Variable, source_version};

use super::{BLOCK_BYTES_MAX, Hopeless, SharedArray, Versions, WaitNote, ring_blocks};
use crate::error::MemberError;
use crate::member::{HeardPartner, Interrupted, MadeConnection, SLICE, UsableConnection};
use crate::memory::{
    Counter, LANES_MAX, NotedWait, OwnMemory, PartMemory, SeenCounter, can_wait_for, wait_for_any,
};
use crate::streaming::copy_to_part;

/// A connection that ends here.
#[derive(Debug)]
pub(super) struct IncomingConnection {
    pub(super) connection: u32,
    pub(super) every: u64,
    pub(super) place: u16,
    /// The last of the source's versions that was asked of the keeper.
    pub(super) wanted: u64,
    /// The keeper was told that it is wanted no more, and has not answered yet.
    pub(super) is_forgoing: bool,
    pub(super) givers: Option<VersionGivers>,
}

#[derive(Debug)]
pub(super) struct VersionGivers {
    array: Variable,
    processes: Vec<Giver>,
    elsewhere: GiversElsewhere,
    /// How long copies of the version have taken so far.
    time: Duration,
}

/// Processes on other hosts, whose versions the keeper writes into our shared part.
#[derive(Debug, Default)]
struct GiversElsewhere {
    ranks: Vec<u32>,
    /// Bytes of a version.
    bytes: u64,
    /// From there to memory of our own, if that is where the array is.
    copies: Vec<StridedCopy>,
    is_taken: bool,
}

#[derive(Debug)]
struct Giver {
    rank: u32,
    memory: PartMemory,
    copy: StridedCopy,
    bytes: u64,
    blocks: PartBlocks,
    /// The same copy by blocks of the giver's part. Worked out when it first gives so.
    by_block: Vec<StridedCopy>,
    /// Its blocks that were taken, of all versions together.
    taken: u64,
}

/// The contents of an array, wherever they are.
#[derive(Clone, Copy)]
struct TargetContents<'a> {
    shared: &'a PartMemory,
    own: Option<&'a OwnMemory>,
}

impl TargetContents<'_> {
    fn copied_to(self, copy: impl FnOnce(&mut [u8])) {
        match self.own {
            Some(own) => own.copied_to(copy),
            None => self.shared.copied_to(copy),
        }
    }
}

impl VersionGivers {
    /// Takes what has come of a version, but of each process no more than a block that is in its ring. Says whether there was anything.
    fn take(&mut self, wanted: u64, place: u16, target: TargetContents<'_>) -> bool {
        let begin = Instant::now();
        let mut has_taken = false;
        for giver in &mut self.processes {
            has_taken |= giver.take(wanted, place, target);
        }
        let elsewhere = &mut self.elsewhere;
        let arrived = Counter::Arrived(place);
        if !elsewhere.is_taken && target.shared.load(arrived) >= wanted {
            elsewhere.is_taken = true;
            has_taken = true;
            let bytes = target.shared.len();
            target.shared.copied_from(0, bytes, |source| {
                for copy in &elsewhere.copies {
                    target.copied_to(|target| copy_to_part(copy, source, target));
                }
            });
        }
        if has_taken {
            self.time += begin.elapsed();
        }
        has_taken
    }

    /// Bytes of a version, and how long copies of it have taken.
    pub(super) fn moved(&self) -> (u64, Duration) {
        let here: u64 = self.processes.iter().map(|giver| giver.bytes).sum();
        (here + self.elsewhere.bytes, self.time)
    }

    /// Whether all of a version was taken.
    fn have_given(&self, wanted: u64) -> bool {
        let mut processes = self.processes.iter();
        self.elsewhere.is_taken && processes.all(|giver| giver.taken >= giver.end(wanted))
    }

    /// What is still waited for.
    fn awaited<'a>(
        &'a self,
        wanted: u64,
        place: u16,
        own: &'a PartMemory,
    ) -> impl Iterator<Item = SeenCounter<'a>> {
        let begun = self.processes.iter().filter_map(move |giver| {
            (giver.taken < giver.end(wanted)).then_some(SeenCounter {
                board: &giver.memory,
                counter: Counter::Given,
                seen: giver.memory.load(Counter::Given),
            })
        });
        let arrived = (!self.elsewhere.is_taken).then(|| SeenCounter {
            board: own,
            counter: Counter::Arrived(place),
            seen: own.load(Counter::Arrived(place)),
        });
        begun.chain(arrived)
    }

    /// Whether something has come that was not taken.
    fn has_more(&self, wanted: u64, place: u16, own: &PartMemory) -> bool {
        let mut processes = self.processes.iter();
        processes.any(|giver| giver.has_more(wanted))
            || (!self.elsewhere.is_taken && own.load(Counter::Arrived(place)) >= wanted)
    }

    /// Begins a version, or begins again with what still lies where it was given.
    fn begin(&mut self, wanted: u64) {
        self.time = Duration::ZERO;
        self.elsewhere.is_taken = self.elsewhere.ranks.is_empty();
        for giver in &mut self.processes {
            let base = giver.base(wanted);
            if giver.taken < base || giver.memory.load(Counter::OwnPlaceFrom) == 0 {
                giver.taken = base;
            }
        }
    }

    /// Whether part of a version was taken that is nowhere else any more.
    fn is_broken_off(&self, wanted: u64) -> bool {
        let mut processes = self.processes.iter();
        processes.any(|giver| {
            giver.taken > giver.base(wanted) && giver.memory.load(Counter::OwnPlaceFrom) != 0
        })
    }
}

impl Giver {
    /// Its blocks of all versions before.
    fn base(&self, wanted: u64) -> u64 {
        wanted.saturating_sub(1).saturating_mul(self.blocks.count())
    }

    /// The same with this one's.
    fn end(&self, wanted: u64) -> u64 {
        self.base(wanted).saturating_add(self.blocks.count())
    }

    /// Whether blocks of this version were given that were not taken.
    fn has_more(&self, wanted: u64) -> bool {
        self.memory.load(Counter::Given).min(self.end(wanted)) > self.taken
    }

    /// Takes the next block if it was given, or the whole version if all of it lies in its place. Says whether there was anything.
    fn take(&mut self, wanted: u64, place: u16, target: TargetContents<'_>) -> bool {
        let (base, end) = (self.base(wanted), self.end(wanted));
        let given = self.memory.load(Counter::Given).min(end);
        if given <= self.taken {
            return false;
        }
        let own_places = self.memory.load(Counter::OwnPlaceFrom);
        if own_places == 0 && given == end && self.taken == base {
            let bytes = self.memory.len();
            self.memory.copied_from(0, bytes, |source| {
                target.copied_to(|target| copy_to_part(&self.copy, source, target));
            });
            self.taken = end;
            return true;
        }
        if self.by_block.is_empty() {
            self.by_block = self.copy.from_blocks(&self.blocks);
        }
        let block = self.taken - base;
        let ring = ring_blocks(&self.blocks);
        let there = if block < own_places {
            block % ring
        } else {
            block
        };
        let begin = (there * self.blocks.block_bytes()) as usize;
        let bytes = self.blocks.bytes_of(block) as usize;
        let copy = &self.by_block[block as usize];
        if copy.bytes() > 0 {
            self.memory.copied_from(begin, bytes, |source| {
                target.copied_to(|target| copy_to_part(copy, source, target));
            });
        }
        self.taken += 1;
        if self.rank < LANES_MAX {
            let lane = Counter::BlocksTaken(place, self.rank);
            target.shared.store(lane, self.taken);
        }
        true
    }
}

impl SharedArray {
    /// Sees to it that nothing is written into our part that was asked for by a read that has failed.
    pub(super) fn stop_coming(
        &self,
        connections: &mut [IncomingConnection],
        interrupted: Interrupted<'_>,
    ) -> Result<(), MemberError> {
        let next = self.read.load(Ordering::Relaxed) + 1;
        let is_coming = |incoming: &IncomingConnection| {
            let givers = incoming.givers.as_ref();
            incoming.wanted > self.memory.load(Counter::Arrived(incoming.place))
                || givers.is_some_and(|givers| {
                    givers.is_broken_off(source_version(next, incoming.every))
                })
        };
        if !connections.iter().any(is_coming) {
            return Ok(());
        }
        let is_over = |incoming: &IncomingConnection| {
            let wanted = source_version(next, incoming.every);
            let givers = incoming.givers.as_ref();
            givers.is_some_and(|givers| self.never_given(givers, incoming, wanted).is_some())
        };
        if !connections.iter().any(is_over) {
            return Err(MemberError::Access(
                "a read was broken off, and its version is still on its way into the array: read again first",
            ));
        }
        // No version is ever whole again.
        let is_asked_for = |incoming: &&mut IncomingConnection| {
            incoming.wanted > self.memory.load(Counter::Arrived(incoming.place))
        };
        for incoming in connections.iter_mut().filter(is_asked_for) {
            let (connection, version) = (incoming.connection, incoming.wanted);
            if !incoming.is_forgoing {
                let forgo = MemberMessage::Forgo {
                    connection,
                    version,
                };
                self.attachment.tell(&forgo)?;
                incoming.is_forgoing = true;
            }
            let attachment = &self.attachment;
            attachment.until_forgone(connection, version, interrupted)?;
            (incoming.wanted, incoming.is_forgoing) = (0, false);
        }
        Ok(())
    }

    /// Takes all of a version, over all connections that end here, as it comes.
    pub(super) fn take(
        &self,
        versions: &mut Versions,
        version: u64,
        interrupted: Interrupted<'_>,
    ) -> Result<(), MemberError> {
        let connections = &mut versions.incoming;
        let target = TargetContents {
            shared: &self.memory,
            own: self.own.as_ref(),
        };
        let mut counters = 0;
        for incoming in connections.iter_mut() {
            if let Some(givers) = &mut incoming.givers {
                givers.begin(source_version(version, incoming.every));
                counters += givers.processes.len() + usize::from(!givers.elsewhere.is_taken);
            }
        }
        // Who waits for one after the other must not keep the others waiting.
        if can_wait_for(counters) {
            for incoming in connections.iter() {
                let wanted = source_version(version, incoming.every);
                self.memory.put(Counter::Taking(incoming.place), wanted);
            }
        }
        let taken = self.take_as_it_comes(connections, version, target, interrupted);
        for incoming in connections.iter() {
            self.memory.put(Counter::Taking(incoming.place), 0);
            let givers = incoming.givers.iter().flat_map(|givers| &givers.processes);
            for giver in givers.filter(|giver| taken.is_err() && giver.rank < LANES_MAX) {
                // They wait for us no more.
                let lane = Counter::BlocksTaken(incoming.place, giver.rank);
                self.memory.wake(lane);
            }
        }
        taken
    }

    fn take_as_it_comes(
        &self,
        connections: &mut [IncomingConnection],
        version: u64,
        target: TargetContents<'_>,
        interrupted: Interrupted<'_>,
    ) -> Result<(), MemberError> {
        let mut note: Option<(WaitNote<'_>, u32)> = None;
        loop {
            let mut has_taken = false;
            for incoming in connections.iter_mut() {
                let wanted = source_version(version, incoming.every);
                if let Some(givers) = &mut incoming.givers {
                    has_taken |= givers.take(wanted, incoming.place, target);
                }
            }
            if has_taken {
                continue;
            }
            let waiting = connections.iter().filter_map(|incoming| {
                let wanted = source_version(version, incoming.every);
                let givers = incoming.givers.as_ref()?;
                (!givers.have_given(wanted)).then_some((incoming, givers, wanted))
            });
            let waiting: Vec<_> = waiting.collect();
            let Some((first, _, wanted)) = waiting.first() else {
                return Ok(());
            };
            if note.as_ref().is_none_or(|note| note.1 != first.connection) {
                // The last one ends before the next one begins.
                drop(note.take());
                let wait = NotedWait {
                    connection: first.connection,
                    version: *wanted,
                };
                note = Some((self.noted(wait), first.connection));
            }
            self.until_more(&waiting, version, interrupted)?;
        }
    }

    /// Waits until something more of a version is there.
    fn until_more(
        &self,
        waiting: &[(&IncomingConnection, &VersionGivers, u64)],
        version: u64,
        interrupted: Interrupted<'_>,
    ) -> Result<(), MemberError> {
        let awaited = waiting.iter().flat_map(|(incoming, givers, wanted)| {
            givers.awaited(*wanted, incoming.place, &self.memory)
        });
        let awaited: Vec<SeenCounter<'_>> = awaited.collect();
        let hopeless = || {
            waiting.iter().find_map(|(incoming, givers, wanted)| {
                let hopeless = self.never_given(givers, incoming, *wanted)?;
                Some(self.ended(hopeless, version, *wanted))
            })
        };
        if self.attachment.is_anybody_gone()
            && let Some(error) = hopeless()
        {
            return Err(error);
        }
        // What has come since the last look is taken first.
        let has_more = |(incoming, givers, wanted): &(&IncomingConnection, &VersionGivers, u64)| {
            givers.has_more(*wanted, incoming.place, &self.memory)
        };
        if waiting.iter().any(has_more) {
            return Ok(());
        }
        wait_for_any(&awaited, SLICE);
        if awaited.iter().any(SeenCounter::has_changed) {
            return Ok(());
        }
        match self.attachment.listen(Duration::ZERO) {
            Ok(()) => {}
            // Its last words may say who was lost.
            Err(MemberError::KeeperLost(why)) => {
                return Err(hopeless().unwrap_or(MemberError::KeeperLost(why)));
            }
            Err(error) => return Err(error),
        }
        if interrupted() {
            return Err(MemberError::Interrupted);
        }
        Ok(())
    }

    /// Lets the keeper write into our part what processes on other hosts give of a version.
    pub(super) fn want(
        &self,
        incoming: &mut IncomingConnection,
        version: u64,
        interrupted: Interrupted<'_>,
    ) -> Result<(), MemberError> {
        let wanted = source_version(version, incoming.every);
        let wait = NotedWait {
            connection: incoming.connection,
            version: wanted,
        };
        if incoming.givers.is_none() {
            let _note = self.noted(wait);
            let (connection, own) = (incoming.connection, ArrayEnd::Target);
            let made = self.attachment.connected(connection, own, interrupted)?;
            let givers = match made {
                MadeConnection::Usable(terms, partners) => self.givers(&terms, partners),
                MadeConnection::Gone(gone, why) => {
                    let hopeless = Hopeless {
                        rank: gone.rank,
                        gone,
                        reached: 0,
                        undescribed: Some(why),
                    };
                    return Err(self.ended(hopeless, version, wanted));
                }
            };
            incoming.givers = Some(givers);
        }
        let is_here = incoming
            .givers
            .as_ref()
            .is_none_or(|givers| givers.elsewhere.ranks.is_empty());
        if is_here || incoming.wanted >= wanted {
            return Ok(());
        }
        let want = MemberMessage::Want {
            connection: incoming.connection,
            version: wanted,
        };
        let told = self.attachment.tell(&want);
        told.map_err(|error| self.last_words(error, version))?;
        incoming.wanted = wanted;
        Ok(())
    }

    /// Whose end means that a version never comes.
    fn never_given(
        &self,
        givers: &VersionGivers,
        incoming: &IncomingConnection,
        wanted: u64,
    ) -> Option<Hopeless> {
        let arrived = Counter::Arrived(incoming.place);
        let gone = |rank, reached: &dyn Fn(&GoneMember) -> u64| {
            // In this order: what a process did before it went is seen behind the word that it is gone.
            let gone = self.attachment.gone(&givers.array.program, rank)?;
            let reached = reached(&gone);
            (reached < wanted).then_some(Hopeless {
                gone,
                rank,
                reached,
                undescribed: None,
            })
        };
        let here = givers.processes.iter();
        let given = |giver: &Giver| match giver.memory.load(Counter::Given) >= giver.end(wanted) {
            // It ended between giving its last block and counting the version.
            true => wanted,
            false => giver.memory.load(Counter::Exported),
        };
        let here = here.filter_map(|giver| gone(giver.rank, &|_| given(giver)));
        // What its keeper has will come.
        let left = |gone: &GoneMember| gone.exported.get(&givers.array.name).copied();
        let elsewhere = givers.elsewhere.ranks.iter().filter_map(|rank| {
            let ended = gone(*rank, &|gone| left(gone).unwrap_or(0));
            let without_keeper = || {
                let mut gone = self.attachment.gone(&givers.array.program, *rank)?;
                gone.loss = Some(gone.lost_since.take()?);
                Some(Hopeless {
                    reached: left(&gone).unwrap_or(0),
                    gone,
                    rank: *rank,
                    undescribed: None,
                })
            };
            let hopeless = ended.or_else(without_keeper);
            let connection = incoming.connection;
            let is_missing = |_: &Hopeless| {
                self.memory.load(arrived) < wanted
                    && !self.attachment.has_come(connection, *rank, wanted)
            };
            hopeless.filter(is_missing)
        });
        // A loss says more than that somebody has left.
        here.chain(elsewhere)
            .min_by_key(|hopeless| hopeless.gone.loss.is_none())
    }

    /// Why a version never comes, which the source counts as `wanted`.
    pub(super) fn ended(&self, hopeless: Hopeless, version: u64, wanted: u64) -> MemberError {
        let array = self.said();
        match hopeless.gone.loss {
            None => MemberError::Ended {
                array,
                program: hopeless.gone.program,
                rank: hopeless.rank,
                version: wanted,
                exported: hopeless.reached,
                undescribed: hopeless.undescribed,
            },
            Some(loss) => MemberError::Lost {
                array,
                version,
                loss,
            },
        }
    }

    /// Who sends what to this process, from the one behind it on: so that not all ask the same one first.
    fn givers(&self, terms: &UsableConnection, partners: Vec<HeardPartner>) -> VersionGivers {
        let rank = self.attachment.rank();
        let plan = terms.plan(PlanSide::Target, &self.layout, rank);
        let target = self.layout.local_strides(rank);
        let mut memories: BTreeMap<u32, PartMemory> = partners
            .into_iter()
            .map(|one| (one.rank, one.memory))
            .collect();
        let mut processes = Vec::new();
        let mut elsewhere = GiversElsewhere::default();
        for message in plan.messages() {
            let Some(memory) = memories.remove(&message.rank()) else {
                elsewhere.ranks.push(message.rank());
                elsewhere.bytes += message.bytes();
                if self.own.is_some() {
                    let copy = StridedCopy::at_target(message, &target);
                    elsewhere.copies.push(copy);
                }
                continue;
            };
            let source = terms.source.local_strides(message.rank());
            processes.push(Giver {
                rank: message.rank(),
                memory,
                copy: StridedCopy::between(message, &source, &target),
                bytes: message.bytes(),
                blocks: PartBlocks::new(&terms.source, message.rank(), BLOCK_BYTES_MAX),
                by_block: Vec::new(),
                taken: 0,
            });
        }
        let first = processes.partition_point(|giver| giver.rank < rank);
        let count = processes.len();
        processes.rotate_left(first % count.max(1));
        VersionGivers {
            array: terms.other.clone(),
            processes,
            elsewhere,
            time: Duration::ZERO,
        }
    }
}
