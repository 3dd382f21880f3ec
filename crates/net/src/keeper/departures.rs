//! Versions on their way to keepers of other hosts.
//!
//! Where long stretches lie in a row, a version is sent from its memory, and has gone when the other keeper has it: its process leaves it alone
//! until then. What is cut finer is packed first, and has gone with the last piece.

use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use bytes::Bytes;
use exoskel_member::{LentContents, PartMemory};
use exoskel_redist::{CutCopy, StridedCopy};
use exoskel_transfer::{KeeperId, MemoryId, PAIR_BYTES_MAX, PieceHead, RankPair};

use super::other_hosts::{LOOK_TIME, PIECE, contents};
use super::{KeeperDriver, held};
use crate::links::{BindingId, LinkError, LinkNode};
use crate::wake_up::WakeUp;

/// From this mean length on, stretches are sent from where they lie. To name shorter ones costs as much as to copy them.
const STRETCH_BYTES_MIN: u64 = 8 << 10;

/// A version that is to go to one process elsewhere.
#[derive(Clone, Copy, Debug)]
pub(super) struct DueVersion {
    pub(super) pair: RankPair,
    pub(super) version: u64,
    pub(super) memory: MemoryId,
}

/// Versions that were sent from their memory, and that nobody needs there any more.
#[derive(Debug)]
pub(super) struct DepartedVersions {
    pairs: Mutex<Vec<RankPair>>,
    wake_up: Arc<WakeUp>,
}

impl DepartedVersions {
    pub(super) fn new(wake_up: Arc<WakeUp>) -> Self {
        Self {
            pairs: Mutex::default(),
            wake_up,
        }
    }

    pub(super) fn take(&self) -> Vec<RankPair> {
        std::mem::take(&mut *self.pairs.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Any thread may say so, whatever it holds.
    fn add(&self, pair: RankPair) {
        let mut pairs = self.pairs.lock().unwrap_or_else(PoisonError::into_inner);
        pairs.push(pair);
        drop(pairs);
        self.wake_up.raise();
    }
}

/// A part's memory, mapped a second time from when a version of it is first sent from where it lies: what is lent is never written through the
/// same mapping, and keeps nobody from writing.
#[derive(Debug)]
pub(super) struct LendableMemory {
    to_read: Arc<OwnedFd>,
    bytes: u64,
    /// None if it can't be mapped again.
    mapped: OnceLock<Option<Arc<PartMemory>>>,
}

impl LendableMemory {
    pub(super) fn new(to_read: Arc<OwnedFd>, bytes: u64) -> Self {
        Self {
            to_read,
            bytes,
            mapped: OnceLock::new(),
        }
    }

    pub(super) fn lend(&self) -> Option<LentContents> {
        let map = || PartMemory::of_another(&self.to_read, self.bytes).ok();
        let mapped = self.mapped.get_or_init(|| map().map(Arc::new));
        mapped.as_ref().map(PartMemory::lend)
    }
}

/// A version that is sent from its memory. When all messages that need it have gone, so has it.
struct LentVersion {
    contents: Option<LentContents>,
    pair: RankPair,
    /// All pieces were sent. What ends before is told by who gave it up.
    is_whole: Arc<AtomicBool>,
    departed: Arc<DepartedVersions>,
}

impl AsRef<[u8]> for LentVersion {
    fn as_ref(&self) -> &[u8] {
        self.contents.as_ref().map_or(&[], LentContents::as_ref)
    }
}

impl Drop for LentVersion {
    fn drop(&mut self) {
        self.contents = None;
        if self.is_whole.load(Ordering::Acquire) {
            self.departed.add(self.pair);
        }
    }
}

/// Where the bytes of a version's pieces come from.
enum VersionSource {
    /// The memory itself.
    Lent(Bytes, Arc<AtomicBool>),
    /// Copies of it.
    Packed(Arc<PartMemory>),
}

impl VersionSource {
    fn read<Read>(&self, read: impl FnOnce(&[u8]) -> Read) -> Read {
        match self {
            Self::Lent(all, _) => read(all),
            Self::Packed(memory) => memory.read(read),
        }
    }

    /// A piece from where it lies, in few slices, if that can be.
    fn lying(&self, piece: &StridedCopy) -> Option<Vec<Bytes>> {
        let Self::Lent(all, _) = self else {
            return None;
        };
        // Of one version some pieces may lie in long stretches, and others not.
        let stretches = long_stretches(piece)?.into_iter();
        let slices = stretches.map(|at| all.slice(at.start as usize..at.end as usize));
        Some(slices.collect())
    }
}

/// How a version has gone.
enum SentVersion {
    /// With its last piece.
    Gone,
    /// When [`DepartedVersions`] has it.
    UnderWay,
    /// It doesn't go any more.
    Over,
}

/// The stretches of a piece, if they are long enough to be sent one by one.
fn long_stretches(piece: &StridedCopy) -> Option<Vec<Range<u64>>> {
    let stretches = piece.stretches();
    stretches.filter(|all| piece.bytes() / STRETCH_BYTES_MIN >= all.len() as u64)
}

impl KeeperDriver {
    /// Sends versions to one keeper, one after the other.
    pub(super) fn carry(
        &self,
        node: &LinkNode,
        own: KeeperId,
        keeper: KeeperId,
        binding: BindingId,
        due: &Receiver<DueVersion>,
    ) {
        for due in due {
            let sent = self.send_version(node, (own, keeper), binding, due);
            let mut inside = held(&self.inside);
            match sent {
                Ok(SentVersion::Gone) => inside.keeper.departed(due.pair),
                Ok(SentVersion::UnderWay) => {}
                Ok(SentVersion::Over) => inside.keeper.not_departed(due.pair),
                Err(error) => {
                    inside.keeper.not_departed(due.pair);
                    inside.lose_keeper(keeper, &error.to_string());
                }
            }
            self.act(&mut inside);
        }
        node.unbind(binding);
    }

    /// Whether nothing more goes to a keeper.
    fn is_over(&self, keeper: KeeperId) -> bool {
        let inside = held(&self.inside);
        let others = inside.others.as_ref();
        inside.is_ending || others.is_none_or(|others| others.is_lost(keeper))
    }

    /// Sends all of a version, unless nothing more goes to its keeper.
    fn send_version(
        &self,
        node: &LinkNode,
        (own, keeper): (KeeperId, KeeperId),
        binding: BindingId,
        due: DueVersion,
    ) -> Result<SentVersion, LinkError> {
        let found = {
            let mut inside = held(&self.inside);
            let kept = inside.memories.get(&due.memory);
            let memory = kept.map(|kept| (Arc::clone(&kept.mapped), Arc::clone(&kept.to_lend)));
            memory.zip(inside.keeper.packing(due.pair))
        };
        let Some(((memory, to_lend), cut)) = found else {
            return Ok(SentVersion::Over);
        };
        let source = self.source_of(memory, &to_lend, &cut, due.pair);
        for number in 0..cut.count() {
            let piece = cut.piece(number);
            let head = PieceHead {
                keeper: own,
                pair: due.pair,
                version: due.version,
                piece: number,
            };
            let mut contents = contents(&head);
            if let Some(slices) = source.lying(&piece) {
                (contents.bulk, contents.is_gathered) = (slices, true);
            } else if let Some(bytes) = self.packed(keeper, &source, &piece) {
                contents.bulk.push(bytes);
            } else {
                return Ok(SentVersion::Over);
            }
            while !node.wait_for_room_within(binding, &contents, PAIR_BYTES_MAX, LOOK_TIME) {
                if self.is_over(keeper) {
                    return Ok(SentVersion::Over);
                }
            }
            node.post(binding, PIECE, contents)?;
        }
        Ok(match source {
            VersionSource::Packed(_) => SentVersion::Gone,
            VersionSource::Lent(all, is_whole) => {
                is_whole.store(true, Ordering::Release);
                drop(all);
                SentVersion::UnderWay
            }
        })
    }

    /// A version of one piece is packed: to hear that it was taken would take longer.
    fn source_of(
        &self,
        memory: Arc<PartMemory>,
        to_lend: &LendableMemory,
        cut: &CutCopy,
        pair: RankPair,
    ) -> VersionSource {
        if cut.count() < 2 || long_stretches(&cut.piece(0)).is_none() {
            return VersionSource::Packed(memory);
        }
        let Some(contents) = to_lend.lend() else {
            return VersionSource::Packed(memory);
        };
        let is_whole = Arc::new(AtomicBool::new(false));
        let lent = LentVersion {
            contents: Some(contents),
            pair,
            is_whole: Arc::clone(&is_whole),
            departed: Arc::clone(&self.departed),
        };
        VersionSource::Lent(Bytes::from_owner(lent), is_whole)
    }

    /// A piece's bytes, packed when there is room for them. None when nothing more goes to its keeper.
    fn packed(
        &self,
        keeper: KeeperId,
        source: &VersionSource,
        piece: &StridedCopy,
    ) -> Option<Bytes> {
        let pack = |bytes: &mut [u8]| source.read(|contents| piece.run(contents, bytes));
        let length = piece.bytes() as usize;
        loop {
            if self.is_over(keeper) {
                return None;
            }
            if let Some(bytes) = self.buffers.packed(length, LOOK_TIME, pack) {
                return Some(bytes);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

    use std::sync::mpsc::channel;
    use std::time::Duration;

    use exoskel_redist::{
        AxisSharing, ElementType, IndexSet, IndexSets, Layout, Mapping, MemoryOrder, PlanSide,
        RedistributionPlan,
    };
    use exoskel_transfer::PIECE_BYTES_MAX;

    use super::*;
    use crate::keeper::KeptMemory;

    /// Aim: nobody can keep a keeper's threads waiting to write by not saying that it has read: they would never hear of anything else.
    #[test]
    fn what_is_lent_keeps_nobody_from_writing() {
        let memory = KeptMemory::new(8).unwrap();
        let lent = memory.to_lend.lend().unwrap();
        let mapped = Arc::clone(&memory.mapped);
        let (said, written) = channel();
        std::thread::spawn(move || {
            mapped.write(|contents| contents.fill(7));
            said.send(()).unwrap();
        });
        written.recv_timeout(Duration::from_secs(60)).unwrap();
        assert_eq!(lent.as_ref(), [7; 8]);
    }

    /// Aim: no piece is sent as a crowd of slices, which would take far more memory than its bytes. Method: a process wants as much in a row as
    /// a piece has, and behind that every other element.
    #[test]
    fn only_pieces_of_long_stretches_are_sent_from_where_they_lie() {
        const IN_A_ROW: u64 = PIECE_BYTES_MAX / 8;
        let made = |sharing| {
            let (element, order) = (ElementType::FLOAT64, MemoryOrder::C);
            let shape = [3 * IN_A_ROW];
            Layout::new(&shape, element, vec![sharing], &[1], &[0], order).unwrap()
        };
        let wanted = (0..IN_A_ROW).chain((IN_A_ROW..3 * IN_A_ROW).step_by(2));
        let wanted = IndexSets::of_all(vec![IndexSet::new(wanted).unwrap()]);
        let (from, to) = (made(AxisSharing::Whole), made(AxisSharing::Indices(wanted)));
        let mapping = Mapping::new(&from, &to, None, None, None).unwrap();
        let plan = RedistributionPlan::new(&from, &to, &mapping, PlanSide::Source, 0);
        let message = plan.messages().next().unwrap();
        let cut = StridedCopy::packing(message, &from.local_strides(0)).cut(PIECE_BYTES_MAX);
        let bytes = 8 * 3 * IN_A_ROW;
        let memory = KeptMemory::new(bytes).unwrap();
        let lent = LentVersion {
            contents: memory.to_lend.lend(),
            pair: RankPair {
                connection: 0,
                source: 0,
                target: 0,
            },
            is_whole: Arc::default(),
            departed: Arc::new(DepartedVersions::new(Arc::new(WakeUp::new().unwrap()))),
        };
        let source = VersionSource::Lent(Bytes::from_owner(lent), Arc::default());
        let slices = (0..cut.count()).map(|number| source.lying(&cut.piece(number)));
        let slices: Vec<Option<usize>> = slices.map(|some| Some(some?.len())).collect();
        assert_eq!(slices, [Some(1), None]);
    }
}
