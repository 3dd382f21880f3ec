//! Connections that begin in an array: who takes its versions, and how memory that nobody else can read is given.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use exoskel_redist::{PlanSide, PlannedMessage};
use exoskel_transfer::{ArrayEnd, GoneMember, last_taken};

use super::{Hopeless, SharedArray, Versions, ring_blocks};
use crate::error::MemberError;
use crate::member::{HeardPartner, Interrupted, MadeConnection, SLICE, UsableConnection};
use crate::memory::{Counter, LANES_MAX, NotedWait, OwnMemory, PartMemory};

/// A connection that begins here.
#[derive(Debug)]
pub(super) struct OutgoingConnection {
    pub(super) connection: u32,
    pub(super) every: u64,
    pub(super) place: u16,
    /// Its place on our own board.
    pub(super) source_place: u16,
    pub(super) takers: Option<VersionTakers>,
}

#[derive(Debug)]
pub(super) struct VersionTakers {
    program: String,
    processes: Vec<(u32, PartMemory)>,
    /// Those on other hosts.
    elsewhere: Vec<u32>,
}

/// How long a version in memory of our own waits for those who are about to take it: a moment beside the time that copying it takes.
const TAKERS_PATIENCE: Duration = Duration::from_millis(5);

/// Between two looks at whether they do.
const TAKERS_LOOK: Duration = Duration::from_micros(50);

/// What those who take a version are doing.
#[derive(Clone, Copy)]
enum TakersState<'a> {
    /// There are none.
    NobodyTakes,
    /// They take what comes, block by block.
    AllAreTaking,
    /// One of them does something else: its board, and the counter that says what it takes.
    OneIsNot(&'a PartMemory, Counter),
    /// They aren't known yet, or are on other hosts.
    OneCannot,
}

/// How a wait for those who take has ended.
#[derive(Clone, Copy, PartialEq, Eq)]
enum WaitedForTakers {
    Taken,
    /// One of them has been broken off.
    NotTaking,
    Interrupted,
}

impl SharedArray {
    /// Waits until the last exported version was taken by all who take it.
    pub(super) fn until_taken(
        &self,
        outgoing: &mut [OutgoingConnection],
        interrupted: Interrupted<'_>,
    ) -> Result<(), MemberError> {
        let exported = self.exported.load(Ordering::Relaxed);
        for outgoing in outgoing {
            let last = last_taken(exported, outgoing.every);
            if last == 0 {
                continue;
            }
            let wait = NotedWait {
                connection: outgoing.connection,
                version: last,
            };
            if outgoing.takers.is_none() {
                let _note = self.noted(wait);
                let (connection, own) = (outgoing.connection, ArrayEnd::Source);
                let made = self.attachment.connected(connection, own, interrupted)?;
                outgoing.takers = Some(self.takers(made, exported + 1)?);
            }
            let Some(takers) = &outgoing.takers else {
                continue;
            };
            self.until_taken_by(takers, outgoing, wait, interrupted)?;
        }
        Ok(())
    }

    fn until_taken_by(
        &self,
        takers: &VersionTakers,
        outgoing: &OutgoingConnection,
        wait: NotedWait,
        interrupted: Interrupted<'_>,
    ) -> Result<(), MemberError> {
        let (program, last) = (&takers.program, wait.version);
        let counter = Counter::Taken(outgoing.place);
        let lost = |rank, taken: u64| {
            let gone = self.attachment.gone(program, rank)?;
            // Who has left takes nothing more.
            (taken < last && gone.loss.is_some()).then_some(Hopeless {
                gone,
                rank,
                reached: taken,
                undescribed: None,
            })
        };
        // A loss of any of them is said, also to who waits for another one.
        let hopeless = || {
            let mut here = takers.processes.iter();
            let here = here.find_map(|(rank, board)| lost(*rank, board.load(counter)));
            let mut elsewhere = takers.elsewhere.iter();
            here.or_else(|| {
                let released = self.memory.load(Counter::Released(outgoing.source_place));
                elsewhere.find_map(|rank| lost(*rank, released))
            })
        };
        let here = takers.processes.iter();
        let mut boards: Vec<_> = here
            .map(|(rank, board)| (Some(*rank), board, counter))
            .collect();
        if !takers.elsewhere.is_empty() {
            let released = Counter::Released(outgoing.source_place);
            boards.push((None, &self.memory, released));
        }
        for (rank, board, counter) in boards {
            let has_left = || {
                let rank = rank?;
                let gone = self.attachment.gone(program, rank)?;
                let reached = board.load(counter);
                Some(Hopeless {
                    gone,
                    rank,
                    reached,
                    undescribed: None,
                })
            };
            let hopeless = || hopeless().or_else(has_left);
            let gone = self.until(board, counter, wait, &hopeless, interrupted)?;
            if let Some(loss) = gone.and_then(|hopeless| hopeless.gone.loss) {
                return Err(MemberError::Lost {
                    array: self.said(),
                    version: self.exported.load(Ordering::Relaxed) + 1,
                    loss,
                });
            }
        }
        Ok(())
    }

    /// Who takes from this process, of a connection that has been made. `version` is the next one.
    fn takers(&self, made: MadeConnection, version: u64) -> Result<VersionTakers, MemberError> {
        match made {
            MadeConnection::Usable(terms, partners) => Ok(self.takers_of(terms, partners)),
            MadeConnection::Gone(
                GoneMember {
                    loss: Some(loss), ..
                },
                _,
            ) => Err(MemberError::Lost {
                array: self.said(),
                version,
                loss,
            }),
            // Who has left takes nothing.
            MadeConnection::Gone(gone, _) => Ok(VersionTakers {
                program: gone.program,
                processes: Vec::new(),
                elsewhere: Vec::new(),
            }),
        }
    }

    fn takers_of(&self, terms: UsableConnection, partners: Vec<HeardPartner>) -> VersionTakers {
        let plan = terms.plan(PlanSide::Source, &self.layout, self.attachment.rank());
        let ranks = plan.messages().map(PlannedMessage::rank);
        let is_here = |rank: &u32| partners.iter().any(|one| one.rank == *rank);
        VersionTakers {
            program: terms.other.program,
            elsewhere: ranks.filter(|rank| !is_here(rank)).collect(),
            processes: partners
                .into_iter()
                .map(|one| (one.rank, one.memory))
                .collect(),
        }
    }

    /// Gives a version that lies in our own memory, block by block: through a ring in the shared part while all who take it are taking it,
    /// else each at its own place there. It waits for nobody who isn't taking just then.
    ///
    /// # Errors
    /// If the caller wants to wait no more: the version is given all the same.
    pub(super) fn give(
        &self,
        versions: &mut Versions,
        own: &OwnMemory,
        version: u64,
        interrupted: Interrupted<'_>,
    ) -> Result<(), MemberError> {
        let (count, ring) = (self.blocks.count(), ring_blocks(&self.blocks));
        let base = (version - 1).saturating_mul(count);
        self.know_takers(&mut versions.outgoing, version);
        let outgoing = &versions.outgoing;
        let state = self.takers_state(outgoing, version);
        if matches!(state, TakersState::NobodyTakes) {
            self.memory.store(Counter::Given, base + count);
            return Ok(());
        }
        let mut by_ring = false;
        if count > ring {
            let patience = match versions.has_waited_in_vain {
                true => Duration::ZERO,
                false => TAKERS_PATIENCE,
            };
            by_ring = self.are_taking_soon(outgoing, version, state, patience);
            if !matches!(state, TakersState::OneCannot) {
                versions.has_waited_in_vain = !by_ring;
            }
        }
        if by_ring && std::mem::take(&mut versions.is_spread) {
            let ring = ring.saturating_mul(self.blocks.block_bytes());
            self.memory.give_back(ring as usize);
        }
        let mut is_interrupted = false;
        let own_places = if by_ring { u64::MAX } else { 0 };
        self.memory.put(Counter::OwnPlaceFrom, own_places);
        for block in 0..count {
            if by_ring && block >= ring {
                let taken = base + block - ring + 1;
                let waited = self.until_blocks_taken(outgoing, version, taken, interrupted);
                if waited != WaitedForTakers::Taken {
                    is_interrupted |= waited == WaitedForTakers::Interrupted;
                    by_ring = false;
                    self.memory.put(Counter::OwnPlaceFrom, block);
                }
            }
            let place = if by_ring { block % ring } else { block };
            self.give_block(own, block, place);
            self.memory.store(Counter::Given, base + block + 1);
        }
        versions.is_spread |= !by_ring && count > ring;
        match is_interrupted {
            true => Err(MemberError::Interrupted),
            false => Ok(()),
        }
    }

    /// Whether all who take a version do so now, or within a moment: a version that they don't take lies in memory twice.
    fn are_taking_soon<'a>(
        &self,
        outgoing: &'a [OutgoingConnection],
        version: u64,
        mut state: TakersState<'a>,
        patience: Duration,
    ) -> bool {
        let deadline = Instant::now() + patience;
        while let TakersState::OneIsNot(board, taking) = state {
            let seen = board.load(taking);
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            if seen != version {
                // Who begins to take wakes nobody: that would cost each read of a small array as much as the rest of it.
                board.wait(taking, seen, left.min(TAKERS_LOOK));
            }
            state = self.takers_state(outgoing, version);
        }
        matches!(state, TakersState::AllAreTaking)
    }

    fn give_block(&self, own: &OwnMemory, block: u64, place: u64) {
        let bytes = self.blocks.bytes_of(block) as usize;
        let begin = (block * self.blocks.block_bytes()) as usize;
        let there = (place * self.blocks.block_bytes()) as usize;
        own.copied_from(|source| {
            self.memory.copied_to(|target| {
                target[there..there + bytes].copy_from_slice(&source[begin..begin + bytes]);
            });
        });
    }

    /// Finds out who takes a version, as far as that is known already.
    fn know_takers(&self, outgoing: &mut [OutgoingConnection], version: u64) {
        let unknown = outgoing.iter_mut().filter(|one| one.takers.is_none());
        for outgoing in unknown {
            let (connection, own) = (outgoing.connection, ArrayEnd::Source);
            if let Some(Ok(made)) = self.attachment.connected_already(connection, own) {
                // A loss is said when the version is waited for.
                outgoing.takers = self.takers(made, version).ok();
            }
        }
    }

    /// Whether all who take a version do so just now, block by block.
    fn takers_state<'a>(
        &self,
        outgoing: &'a [OutgoingConnection],
        version: u64,
    ) -> TakersState<'a> {
        let mut state = TakersState::NobodyTakes;
        for outgoing in taking(outgoing, version) {
            let Some(takers) = &outgoing.takers else {
                return TakersState::OneCannot;
            };
            if !takers.elsewhere.is_empty() || self.attachment.rank() >= LANES_MAX {
                return TakersState::OneCannot;
            }
            for (rank, board) in &takers.processes {
                if self.attachment.gone(&takers.program, *rank).is_some() {
                    continue;
                }
                let taking = Counter::Taking(outgoing.place);
                if board.load(taking) != version {
                    return TakersState::OneIsNot(board, taking);
                }
                state = TakersState::AllAreTaking;
            }
        }
        state
    }

    /// Waits until all who are there have taken so many blocks.
    fn until_blocks_taken(
        &self,
        outgoing: &[OutgoingConnection],
        version: u64,
        blocks: u64,
        interrupted: Interrupted<'_>,
    ) -> WaitedForTakers {
        for outgoing in taking(outgoing, version) {
            let wait = NotedWait {
                connection: outgoing.connection,
                version,
            };
            if let Some(takers) = &outgoing.takers {
                for (rank, board) in &takers.processes {
                    let is_gone = || self.attachment.gone(&takers.program, *rank).is_some();
                    let taking = Counter::Taking(outgoing.place);
                    let lane = Counter::BlocksTaken(outgoing.place, self.attachment.rank());
                    let taker = BlockTaker {
                        board,
                        taking,
                        lane,
                        is_gone: &is_gone,
                    };
                    let waited = self.until_taker_has(taker, wait, blocks, interrupted);
                    if waited != WaitedForTakers::Taken {
                        return waited;
                    }
                }
            }
        }
        WaitedForTakers::Taken
    }

    fn until_taker_has(
        &self,
        taker: BlockTaker<'_>,
        wait: NotedWait,
        blocks: u64,
        interrupted: Interrupted<'_>,
    ) -> WaitedForTakers {
        let (board, lane) = (taker.board, taker.lane);
        let mut note = None;
        loop {
            // In this order: who has taken all takes no more.
            let is_taking = board.load(taker.taking) == wait.version;
            let seen = board.load(lane);
            if seen >= blocks || (self.attachment.is_anybody_gone() && (taker.is_gone)()) {
                return WaitedForTakers::Taken;
            }
            if !is_taking {
                return WaitedForTakers::NotTaking;
            }
            note.get_or_insert_with(|| self.noted(wait));
            board.wait(lane, seen, SLICE);
            if board.load(lane) == seen {
                // Who has no keeper any more is told so by what waits next.
                if self.attachment.listen(Duration::ZERO).is_err() {
                    return WaitedForTakers::NotTaking;
                }
                if interrupted() {
                    return WaitedForTakers::Interrupted;
                }
            }
        }
    }
}

/// A process that takes blocks.
#[derive(Clone, Copy)]
struct BlockTaker<'a> {
    board: &'a PartMemory,
    taking: Counter,
    lane: Counter,
    is_gone: &'a dyn Fn() -> bool,
}

/// The connections over which a version goes.
fn taking(
    outgoing: &[OutgoingConnection],
    version: u64,
) -> impl Iterator<Item = &OutgoingConnection> {
    let goes = move |one: &&OutgoingConnection| last_taken(version, one.every) == version;
    outgoing.iter().filter(goes)
}
