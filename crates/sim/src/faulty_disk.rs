//! A disk that loses and tears what was not synced when its machine ends.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use exoskel_determinism::SplitMix64;
use exoskel_journal::StorageBackend;

/// What a disk writes whole or not at all.
const SECTOR_BYTES: usize = 512;

/// The power of a machine, which goes at some step of its disks.
#[derive(Debug)]
pub(super) struct Power {
    steps: AtomicU64,
    ends_at: u64,
}

impl Power {
    pub(super) fn on(ends_at: u64) -> Arc<Self> {
        Arc::new(Self {
            steps: AtomicU64::new(0),
            ends_at,
        })
    }

    /// Steps so far.
    pub(super) fn steps(&self) -> u64 {
        self.steps.load(Ordering::Relaxed)
    }

    pub(super) fn is_off(&self) -> bool {
        self.steps() > self.ends_at
    }

    /// One more step; an error if the power goes in it.
    fn step(&self) -> io::Result<()> {
        self.steps.fetch_add(1, Ordering::Relaxed);
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
    /// The last change, which the power went in.
    half_done: Option<Change>,
}

/// A file on a disk. Copies are the same file.
#[derive(Debug, Clone)]
pub(super) struct Disk {
    state: Arc<Mutex<DiskState>>,
    power: Arc<Power>,
    has_crashed: bool,
    is_begun: Arc<AtomicBool>,
}

impl Disk {
    pub(super) fn new(power: &Arc<Power>) -> Self {
        Self {
            state: Arc::default(),
            power: power.clone(),
            has_crashed: false,
            is_begun: Arc::default(),
        }
    }

    /// A disk that holds this, after a crash.
    pub(super) fn holding(contents: Vec<u8>, power: &Arc<Power>) -> Self {
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

    pub(super) fn power(&self) -> &Power {
        &self.power
    }

    /// A run has begun its journal here.
    pub(super) fn begun(&self) {
        self.is_begun.store(true, Ordering::Relaxed);
    }

    /// Whether one has.
    pub(super) fn is_begun(&self) -> bool {
        self.is_begun.load(Ordering::Relaxed)
    }

    /// Whether an earlier life ended in a crash.
    pub(super) fn has_crashed(&self) -> bool {
        self.has_crashed
    }

    pub(super) fn contents(&self) -> Vec<u8> {
        self.state().contents.clone()
    }

    /// What is left. If the process was killed, all that it had handed to the kernel, else what was synced and any of the rest: each
    /// sector for itself, so later writes may be there without earlier ones.
    pub(super) fn after_crash(
        &self,
        is_killed: bool,
        random: &mut SplitMix64,
        power: &Arc<Power>,
    ) -> Self {
        let mut state = self.state();
        let half_done = state.half_done.take();
        let mut contents = match is_killed {
            true => state.contents.clone(),
            false => state.synced.clone(),
        };
        let mut unsynced = match is_killed {
            true => Vec::new(),
            false => std::mem::take(&mut state.unsynced),
        };
        unsynced.extend(half_done);
        // Disks that keep nearly nothing, nearly all, and anything between.
        let kept = random.below(5);
        for change in unsynced {
            match random.below(4) < kept {
                // In one piece.
                true if random.below(2) == 0 => change.apply(&mut contents),
                true => {
                    for part in change.torn() {
                        if random.below(4) < kept {
                            part.apply(&mut contents);
                        }
                    }
                }
                false => {}
            }
        }
        Self::holding(contents, power)
    }

    fn state(&self) -> MutexGuard<'_, DiskState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, change: Change) -> io::Result<()> {
        self.power.check()?;
        let mut state = self.state();
        if let Err(error) = self.power.step() {
            state.half_done = Some(change);
            return Err(error);
        }
        change.apply(&mut state.contents);
        state.unsynced.push(change);
        Ok(())
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
        self.change(Change::Length(len as usize))
    }

    fn sync_data(&self, _eventual: bool) -> io::Result<()> {
        self.power.check()?;
        self.power.step()?;
        let mut state = self.state();
        for change in std::mem::take(&mut state.unsynced) {
            change.apply(&mut state.synced);
        }
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.change(Change::Write(offset as usize, data.to_vec()))
    }
}
