//! A disk that loses and tears what was not synced when its machine ends.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use exoskel_determinism::SplitMix64;
use exoskel_journal::StorageBackend;

/// What a disk writes whole or not at all.
const SECTOR_BYTES: usize = 512;

/// The power of a machine, which goes at some step of its disks: in a write, which shows when its disk is asked to have all written. The store
/// writes pages in no certain order, so what was written of them by then is drawn.
#[derive(Debug)]
pub(crate) struct Power {
    steps: AtomicU64,
    ends_at: AtomicU64,
    is_off: AtomicBool,
}

impl Power {
    pub(crate) fn on(ends_at: u64) -> Arc<Self> {
        Arc::new(Self {
            steps: AtomicU64::new(0),
            ends_at: AtomicU64::new(ends_at),
            is_off: AtomicBool::new(false),
        })
    }

    /// It goes after so many more steps.
    pub(crate) fn end_after(&self, steps: u64) {
        let ends_at = self.steps().saturating_add(steps);
        self.ends_at.store(ends_at, Ordering::Relaxed);
    }

    /// It goes now, between two steps.
    pub(crate) fn end(&self) {
        self.is_off.store(true, Ordering::Relaxed);
    }

    /// It has not gone: a disk was full, and there is room again.
    pub(crate) fn stay(&self) {
        self.ends_at.store(u64::MAX, Ordering::Relaxed);
        self.is_off.store(false, Ordering::Relaxed);
    }

    /// Steps so far.
    pub(crate) fn steps(&self) -> u64 {
        self.steps.load(Ordering::Relaxed)
    }

    pub(crate) fn is_off(&self) -> bool {
        self.is_off.load(Ordering::Relaxed)
    }

    /// One more step.
    fn step(&self) -> io::Result<()> {
        self.check()?;
        self.steps.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// One more step, behind which all before it is written; an error if the power has gone in one of them.
    fn barrier(&self) -> io::Result<()> {
        self.step()?;
        if self.steps() > self.ends_at.load(Ordering::Relaxed) {
            self.end();
        }
        self.check()
    }

    fn check(&self) -> io::Result<()> {
        match self.is_off() {
            true => Err(io::Error::other("the power is off")),
            false => Ok(()),
        }
    }
}

#[derive(Debug, Clone)]
enum Change {
    Length(usize),
    Write(usize, Vec<u8>),
}

impl Change {
    fn offset(&self) -> usize {
        match self {
            Self::Length(length) => *length,
            Self::Write(offset, _) => *offset,
        }
    }

    fn apply(&self, contents: &mut Vec<u8>) {
        match self {
            Self::Length(length) => contents.resize(*length, 0),
            Self::Write(offset, data) => {
                let end = offset + data.len();
                if contents.len() < end {
                    contents.resize(end, 0);
                }
                contents[*offset..end].copy_from_slice(data);
            }
        }
    }

    /// The parts of it that reach the disk by themselves.
    fn torn(&self) -> Vec<Self> {
        let Self::Write(offset, data) = self else {
            return vec![self.clone()];
        };
        let mut parts = Vec::new();
        let mut done = 0;
        while done < data.len() {
            let in_sector = SECTOR_BYTES - (offset + done) % SECTOR_BYTES;
            let end = data.len().min(done + in_sector);
            parts.push(Self::Write(offset + done, data[done..end].to_vec()));
            done = end;
        }
        parts
    }
}

#[derive(Debug, Default)]
struct DiskState {
    /// What a loss of power leaves for certain.
    synced: Vec<u8>,
    /// What the machine reads.
    contents: Vec<u8>,
    unsynced: Vec<Change>,
    /// So many of these came before the last barrier.
    settled: usize,
    /// The power has gone in the others.
    is_in_write: bool,
}

impl DiskState {
    fn change(&mut self, change: Change) {
        change.apply(&mut self.contents);
        self.unsynced.push(change);
    }

    /// What comes next is written behind all that came before.
    fn settle(&mut self) {
        // In whatever order it came.
        self.unsynced[self.settled..].sort_by_key(Change::offset);
        self.settled = self.unsynced.len();
    }

    fn sync(&mut self) {
        for change in std::mem::take(&mut self.unsynced) {
            change.apply(&mut self.synced);
        }
        self.settled = 0;
    }

    /// The power may have gone in what came since the last barrier.
    fn barrier(&mut self, power: &Power) -> io::Result<()> {
        let passed = power.barrier();
        if passed.is_err() && self.settled < self.unsynced.len() {
            self.is_in_write = true;
        }
        passed
    }
}

/// A file on a disk. Copies are the same file.
#[derive(Debug, Clone)]
pub(crate) struct Disk {
    state: Arc<Mutex<DiskState>>,
    power: Arc<Power>,
    has_crashed: bool,
    is_begun: Arc<AtomicBool>,
}

impl Disk {
    pub(crate) fn new(power: &Arc<Power>) -> Self {
        Self {
            state: Arc::default(),
            power: power.clone(),
            has_crashed: false,
            is_begun: Arc::default(),
        }
    }

    /// A disk that holds this, after a crash.
    pub(crate) fn holding(contents: Vec<u8>, power: &Arc<Power>) -> Self {
        Self {
            state: Arc::new(Mutex::new(DiskState {
                synced: contents.clone(),
                contents,
                ..DiskState::default()
            })),
            power: power.clone(),
            has_crashed: true,
            is_begun: Arc::default(),
        }
    }

    pub(crate) fn power(&self) -> &Power {
        &self.power
    }

    /// A run has begun its journal here.
    pub(crate) fn begun(&self) {
        self.is_begun.store(true, Ordering::Relaxed);
    }

    /// Whether one has.
    pub(crate) fn is_begun(&self) -> bool {
        self.is_begun.load(Ordering::Relaxed)
    }

    /// Whether an earlier life ended in a crash.
    pub(crate) fn has_crashed(&self) -> bool {
        self.has_crashed
    }

    pub(crate) fn contents(&self) -> Vec<u8> {
        self.state().contents.clone()
    }

    /// The process has not ended in a write: all is written.
    pub(crate) fn goes_on(&self) {
        self.state().is_in_write = false;
    }

    /// What is left. If the process was killed, all that it had handed to the kernel, which may still lose what was not synced. Else what was synced and any
    /// of the rest: each sector for itself, so later writes may be there without earlier ones.
    pub(crate) fn after_crash(
        &self,
        is_killed: bool,
        random: &mut SplitMix64,
        power: &Arc<Power>,
    ) -> Self {
        let mut state = self.state();
        let written = state.settled;
        state.settle();
        let mut left = DiskState {
            synced: state.synced.clone(),
            contents: state.synced.clone(),
            ..DiskState::default()
        };
        let mut unsynced = std::mem::take(&mut state.unsynced);
        let lost = match (is_killed, state.is_in_write) {
            (true, true) => unsynced.split_off(written),
            (true, false) => Vec::new(),
            (false, _) => std::mem::take(&mut unsynced),
        };
        unsynced.into_iter().for_each(|change| left.change(change));
        // Disks that keep nearly nothing, nearly all, and anything between.
        let kept = random.below(5);
        for change in lost {
            match random.below(4) < kept {
                // In one piece.
                true if random.below(2) == 0 => left.change(change),
                true => {
                    for part in change.torn() {
                        if random.below(4) < kept {
                            left.change(part);
                        }
                    }
                }
                false => {}
            }
        }
        match is_killed {
            true => left.settled = left.unsynced.len(),
            false => left.sync(),
        }
        Self {
            state: Arc::new(Mutex::new(left)),
            power: power.clone(),
            has_crashed: true,
            is_begun: Arc::default(),
        }
    }

    fn state(&self) -> MutexGuard<'_, DiskState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl StorageBackend for Disk {
    fn len(&self) -> io::Result<u64> {
        self.power.check()?;
        Ok(self.state().contents.len() as u64)
    }

    fn read(&self, offset: u64, len: usize) -> io::Result<Vec<u8>> {
        self.power.check()?;
        let state = self.state();
        let start = offset as usize;
        let read = state.contents.get(start..start.saturating_add(len));
        read.map(<[u8]>::to_vec)
            .ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let mut state = self.state();
        self.power.check()?;
        state.settle();
        state.change(Change::Length(len as usize));
        // The length alone may be missing.
        state.settled = state.unsynced.len() - 1;
        state.barrier(&self.power)?;
        state.settled = state.unsynced.len();
        Ok(())
    }

    fn sync_data(&self, _eventual: bool) -> io::Result<()> {
        let mut state = self.state();
        state.barrier(&self.power)?;
        state.settle();
        state.sync();
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.power.step()?;
        self.state()
            .change(Change::Write(offset as usize, data.to_vec()));
        Ok(())
    }
}
