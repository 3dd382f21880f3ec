//! An array that the processes of a program share, and its versions.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};
use std::time::Duration;

use exoskel_redist::{Layout, PartBlocks};
use exoskel_transfer::{ConnectionPlace, GoneMember, MemberMessage, source_version};

use self::incoming::IncomingConnection;
use self::outgoing::OutgoingConnection;
use crate::error::MemberError;
use crate::member::{Attachment, Interrupted, SLICE};
use crate::memory::{Counter, NotedWait, OwnMemory, PartMemory};
use crate::memory_in_use::MemoryInUse;

mod incoming;
mod outgoing;

/// What a process gives of its own memory at once.
const BLOCK_BYTES_MAX: u64 = 256 * 1024;

/// What of it lies in shared memory while it is taken: as much as a processor's cache holds.
const RING_BYTES_MAX: u64 = 4 << 20;

/// Blocks that the ring has room for: at least one, which it is of no use for.
fn ring_blocks(blocks: &PartBlocks) -> u64 {
    (RING_BYTES_MAX / blocks.block_bytes()).max(1)
}

/// One process's part of an array.
///
/// What it exports are versions, counted from 1. A version is taken by each process at the other end of a connection before the array is
/// written again; what is read is one version, whole, or an error.
#[derive(Debug)]
pub struct SharedArray {
    attachment: Arc<Attachment>,
    name: String,
    layout: Layout,
    /// Where others of this host take it from, and the keeper.
    memory: Arc<PartMemory>,
    /// Where its contents are instead, if the caller has memory of its own.
    own: Option<OwnMemory>,
    _in_use: MemoryInUse,
    blocks: PartBlocks,
    /// Whether the keeper is told of each version.
    is_watched: bool,
    is_read_into: bool,
    /// The last versions, for whoever asks while somebody waits.
    exported: AtomicU64,
    read: AtomicU64,
    /// Held while somebody waits: nobody waits for it.
    versions: Mutex<Versions>,
}

/// The memory of an array.
#[derive(Debug)]
pub(crate) struct ArrayContents {
    /// Where others of this host take it from, and the keeper.
    pub(crate) shared: PartMemory,
    /// Where its contents are instead, if the caller has memory of its own.
    pub(crate) own: Option<OwnMemory>,
    /// Where its contents are: no other array has that.
    pub(crate) in_use: MemoryInUse,
}

#[derive(Debug)]
struct Versions {
    is_written: bool,
    is_read: bool,
    /// Of memory of our own, more than the ring is in shared memory.
    is_spread: bool,
    /// The last time that a version waited for those who take it, they didn't come: the next one doesn't wait.
    has_waited_in_vain: bool,
    outgoing: Vec<OutgoingConnection>,
    incoming: Vec<IncomingConnection>,
}

/// Why a counter never comes to where it should.
struct Hopeless {
    gone: GoneMember,
    rank: u32,
    reached: u64,
    /// Of a process that has gone before it described its array: what the coupler says of that.
    undescribed: Option<String>,
}

/// Says on the board what is waited for, as long as it lives.
struct WaitNote<'a>(&'a PartMemory);

impl Drop for WaitNote<'_> {
    fn drop(&mut self) {
        self.0.note_no_wait();
    }
}

impl SharedArray {
    pub(crate) fn new(
        attachment: Arc<Attachment>,
        name: String,
        layout: Layout,
        memory: ArrayContents,
        sources: Vec<ConnectionPlace>,
        targets: Vec<ConnectionPlace>,
        is_watched: bool,
    ) -> Self {
        let outgoing = sources.into_iter().map(|place| OutgoingConnection {
            connection: place.connection,
            every: place.every.max(1),
            place: place.place,
            source_place: place.source_place,
            takers: None,
        });
        let is_read_into = !targets.is_empty();
        let incoming = targets.into_iter().map(|place| IncomingConnection {
            connection: place.connection,
            every: place.every.max(1),
            place: place.place,
            wanted: 0,
            is_forgoing: false,
            givers: None,
        });
        Self {
            exported: AtomicU64::new(0),
            read: AtomicU64::new(0),
            versions: Mutex::new(Versions {
                is_written: false,
                is_read: false,
                is_spread: false,
                has_waited_in_vain: false,
                outgoing: outgoing.collect(),
                incoming: incoming.collect(),
            }),
            blocks: PartBlocks::new(&layout, attachment.rank(), BLOCK_BYTES_MAX),
            attachment,
            name,
            layout,
            memory: Arc::new(memory.shared),
            own: memory.own,
            _in_use: memory.in_use,
            is_watched,
            is_read_into,
        }
    }

    /// Whether versions are read into it: a connection ends here.
    #[must_use]
    pub fn is_read_into(&self) -> bool {
        self.is_read_into
    }

    /// What the program calls it.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// How the program shares it out.
    #[must_use]
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Where the first byte of this process's part is: in memory of its own, or in the shared one.
    #[must_use]
    pub fn first_byte(&self) -> *mut u8 {
        match &self.own {
            Some(own) => own.first_byte(),
            None => self.memory.first_byte(),
        }
    }

    /// The memory that this process's part has in common with others.
    #[must_use]
    pub fn memory(&self) -> &Arc<PartMemory> {
        &self.memory
    }

    /// Versions that were exported and read so far.
    #[must_use]
    pub fn versions(&self) -> (u64, u64) {
        (
            self.exported.load(Ordering::Relaxed),
            self.read.load(Ordering::Relaxed),
        )
    }

    fn said(&self) -> String {
        format!("{}.{}", self.attachment.program(), self.name)
    }

    /// What is done with the array, unless another thread, or what a signal has interrupted, does something with it.
    fn access(&self) -> Result<MutexGuard<'_, Versions>, MemberError> {
        match self.versions.try_lock() {
            Ok(versions) => Ok(versions),
            Err(TryLockError::Poisoned(poisoned)) => Ok(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => Err(MemberError::Access(
                "the array is in use: another thread waits for it",
            )),
        }
    }

    /// Waits until the last exported version was taken by all who take it: then the array can be written.
    ///
    /// # Errors
    /// [`MemberError`]. Processes that have left take nothing more, which is none.
    pub fn begin_write(&self, interrupted: Interrupted<'_>) -> Result<(), MemberError> {
        let mut versions = self.access()?;
        if versions.is_written {
            return Err(MemberError::Access("the array is being written already"));
        }
        self.stop_coming(&mut versions.incoming, interrupted)?;
        self.until_taken(&mut versions.outgoing, interrupted)?;
        versions.is_written = true;
        Ok(())
    }

    /// Gives what was written to all who take it, as the next version. Returns its number.
    ///
    /// # Errors
    /// If [`begin_write`](Self::begin_write) was not called. If the caller wants to wait no more for who is taking it just now: it is
    /// exported all the same.
    pub fn export(&self, interrupted: Interrupted<'_>) -> Result<u64, MemberError> {
        let mut access = self.access()?;
        let versions = &mut *access;
        if !versions.is_written {
            return Err(MemberError::Access("the array isn't being written"));
        }
        versions.is_written = false;
        let exported = self.exported.load(Ordering::Relaxed) + 1;
        let given = match &self.own {
            Some(own) => self.give(versions, own, exported, interrupted),
            None => {
                let blocks = exported.saturating_mul(self.blocks.count());
                self.memory.store(Counter::Given, blocks);
                Ok(())
            }
        };
        self.exported.store(exported, Ordering::Relaxed);
        self.memory.put(Counter::Exported, exported);
        if self.is_watched && !versions.outgoing.is_empty() {
            let said = MemberMessage::Exported {
                name: self.name.clone(),
                version: exported,
            };
            let told = self.attachment.tell(&said);
            told.map_err(|error| self.last_words(error, exported))?;
        }
        given.map(|()| exported)
    }

    /// The loss that the keeper has told of before it ended, if that is what has happened.
    fn last_words(&self, error: MemberError, version: u64) -> MemberError {
        if !matches!(error, MemberError::KeeperLost(_)) {
            return error;
        }
        // Behind them is the end, which is known.
        let _ = self.attachment.listen(Duration::ZERO);
        match self.attachment.loss() {
            Some(loss) => MemberError::Lost {
                array: self.said(),
                version,
                loss,
            },
            None => error,
        }
    }

    /// Ends a write without a new version.
    pub fn abandon(&self) {
        if let Ok(mut versions) = self.access() {
            versions.is_written = false;
        }
    }

    /// Waits for the next version over each connection that ends here, and copies it. Returns its number.
    ///
    /// # Errors
    /// [`MemberError`]. The array's contents are then of no version, and the next call tries the same one again.
    pub fn begin_read(&self, interrupted: Interrupted<'_>) -> Result<u64, MemberError> {
        let mut access = self.access()?;
        let versions = &mut *access;
        if versions.is_read || versions.is_written {
            return Err(MemberError::Access("the array is in use already"));
        }
        if versions.incoming.is_empty() {
            return Err(MemberError::NotConnected(self.said()));
        }
        if self.own.as_ref().is_some_and(|own| !own.is_writable()) {
            return Err(MemberError::Access(
                "the array's memory can't be written, and a version would be read into it",
            ));
        }
        // What it has given itself must have been taken before it is written to.
        self.until_taken(&mut versions.outgoing, interrupted)?;
        let version = self.read.load(Ordering::Relaxed) + 1;
        for incoming in &mut versions.incoming {
            self.want(incoming, version, interrupted)?;
        }
        self.take(versions, version, interrupted)?;
        // All of them first: a wait that is broken off, and tried again, has let go of nothing.
        for incoming in &versions.incoming {
            let moved = incoming.givers.as_ref().map(|givers| givers.moved());
            let (bytes, time) = moved.unwrap_or_default();
            let place = incoming.place;
            self.memory.add(Counter::Bytes(place), bytes);
            self.memory
                .add(Counter::Nanoseconds(place), time.as_nanos() as u64);
            let taken = source_version(version, incoming.every);
            self.memory.store(Counter::Taken(place), taken);
        }
        self.read.store(version, Ordering::Relaxed);
        versions.is_read = true;
        Ok(version)
    }

    /// Lets the keeper see what is waited for, until what this returns is dropped.
    fn noted(&self, wait: NotedWait) -> WaitNote<'_> {
        self.memory.note_wait(wait);
        WaitNote(&self.memory)
    }

    /// Ends a read.
    pub fn end_read(&self) {
        if let Ok(mut versions) = self.access() {
            versions.is_read = false;
        }
    }

    /// Waits until a counter has come to `wanted`. Says why it never will, if that is so.
    fn until(
        &self,
        board: &PartMemory,
        counter: Counter,
        wait: NotedWait,
        hopeless: &dyn Fn() -> Option<Hopeless>,
        interrupted: Interrupted<'_>,
    ) -> Result<Option<Hopeless>, MemberError> {
        let wanted = wait.version;
        let mut note = None;
        loop {
            let seen = board.load(counter);
            if seen >= wanted {
                return Ok(None);
            }
            note.get_or_insert_with(|| self.noted(wait));
            if self.attachment.is_anybody_gone()
                && let Some(hopeless) = hopeless()
            {
                return Ok(Some(hopeless));
            }
            board.wait(counter, seen, SLICE);
            if board.load(counter) == seen {
                match self.attachment.listen(Duration::ZERO) {
                    Ok(()) => {}
                    // Its last words may say who was lost.
                    Err(MemberError::KeeperLost(why)) => {
                        let lost = MemberError::KeeperLost(why);
                        return hopeless().map(Some).ok_or(lost);
                    }
                    Err(error) => return Err(error),
                }
                if interrupted() {
                    return Err(MemberError::Interrupted);
                }
            }
        }
    }
}
