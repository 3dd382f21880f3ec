//! Memory that members of different programs share: a board of counters, and an array behind it.
//!
//! Has `unsafe` code: no library gives slices of memory that another process may change, or atomics inside of it.
//!
//! # Security
//! All processes here belong to one account. A process that breaks the protocol can change the array's bytes while they are copied: any
//! bytes are values. It can't change what is copied, from where or to where: nothing in this memory is a length or an offset to anybody.
#![allow(
    unsafe_code,
    reason = "memory that another process writes to has no safe wrapper"
)]

use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, PoisonError, RwLock};
use std::time::Duration;

use exoskel_transfer::CONNECTIONS_OF_ARRAY_MAX;
use memmap2::{Advice, MmapOptions, MmapRaw};
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::thread::futex;

use crate::error::MemberError;

/// The board stands first, on a page of its own.
const BOARD_BYTES: usize = 4096;

/// Processes of a source that can hand on block by block, at most, by their ranks. Others hand on what is whole.
pub(crate) const LANES_MAX: u32 = 4096;

/// Behind the board: how far the process has come with each of these, for each connection. What nobody writes to takes no memory.
const LANES_BYTES: usize = CONNECTIONS_OF_ARRAY_MAX * LANES_MAX as usize * size_of::<u64>();

/// What stands before the array.
const HEAD_BYTES: usize = BOARD_BYTES + LANES_BYTES;

/// Counters that are waited for at the same time, at most: so many the kernel takes.
pub(crate) const COUNTERS_WAITED_FOR_MAX: usize = 128;

/// Counters that different processes write stand so far apart that no processor fetches one for the other.
const PLACE_BYTES: usize = 64;

/// Behind the places of connections: what its process waits for.
const WAIT_PLACE: usize = 1 + CONNECTIONS_OF_ARRAY_MAX;

const _: () = assert!((1 + WAIT_PLACE) * PLACE_BYTES <= BOARD_BYTES);

/// What keeps the memory from being made smaller, and every process that has it mapped from being killed.
const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW);

/// A counter of a board.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Counter {
    /// Versions that the array's own process has exported.
    Exported,
    /// Blocks of its part that it has given, of all versions together.
    Given,
    /// The first block of the last version that is at its own place in the part; those before it are in the ring.
    OwnPlaceFrom,
    /// The source's version that its process takes just now over a connection, block by block as they come; 0 if none. By the
    /// connection's place.
    Taking(u16),
    /// Blocks that it has taken over a connection of one process of the source, by the connection's place and that process's rank.
    BlocksTaken(u16, u32),
    /// The last of these that is on its way to all who take it on other hosts, by the connection's place. Written by the keeper.
    Released(u16),
    /// The last of the source's versions that the array's own process has taken over a connection, by the connection's place.
    Taken(u16),
    /// Bytes that it has copied for it.
    Bytes(u16),
    /// How long that took, in nanoseconds.
    Nanoseconds(u16),
    /// The last of the source's versions of which all that comes from other hosts is there. Written by the keeper.
    Arrived(u16),
    /// One more than the number of the connection for which its process waits; 0 if it doesn't wait.
    WaitedFor,
    /// The source's version that it waits for.
    WaitedVersion,
}

/// What a process waits for with an array: for a version to be there if the connection ends in it, else for it to be taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotedWait {
    /// The connection's number.
    pub connection: u32,
    /// Of the source's versions.
    pub version: u64,
}

/// One process's part of an array, mapped into this process. Unmapped when it goes.
#[derive(Debug)]
pub struct PartMemory {
    map: MmapRaw,
    bytes: usize,
    is_writable: bool,
    /// Held by who reads or writes the contents through this mapping, where several threads do.
    contents: RwLock<()>,
}

/// The contents of a part, to be read by whoever has this, for as long as it takes. It keeps nobody from writing: whoever reads it last may be
/// on a host that never says so.
#[derive(Debug)]
pub struct LentContents(Arc<PartMemory>);

impl AsRef<[u8]> for LentContents {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: mapped as long as this lives, to read only: nobody writes through this mapping. Who has another one of the same memory leaves
        // it alone until it is told that it was read; one that doesn't keep to that, here or elsewhere, spoils its own numbers.
        unsafe { std::slice::from_raw_parts(self.0.first_byte(), self.0.bytes) }
    }
}

/// Makes memory for a board and so many bytes, all zero.
///
/// # Errors
/// What the kernel says.
pub fn new_part_memory(bytes: u64) -> io::Result<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let memory = rustix::fs::memfd_create("exoskel array", flags)?;
    let whole = bytes
        .checked_add(HEAD_BYTES as u64)
        .ok_or(rustix::io::Errno::FBIG)?;
    rustix::fs::ftruncate(&memory, whole)?;
    rustix::fs::fcntl_add_seals(&memory, SEALS | SealFlags::SEAL)?;
    Ok(memory)
}

impl PartMemory {
    /// Maps the process's own part.
    ///
    /// # Errors
    /// If it isn't what the keeper says, or the kernel refuses.
    pub fn own(memory: &OwnedFd, bytes: u64) -> Result<Self, MemberError> {
        Self::new(memory, bytes, true)
    }

    /// Maps another process's part, to read.
    ///
    /// # Errors
    /// As [`own`](Self::own).
    pub fn of_another(memory: &OwnedFd, bytes: u64) -> Result<Self, MemberError> {
        Self::new(memory, bytes, false)
    }

    fn new(memory: &OwnedFd, bytes: u64, is_writable: bool) -> Result<Self, MemberError> {
        let seals = rustix::fs::fcntl_get_seals(memory)
            .map_err(MemberError::system("memory of an array without seals"))?;
        if !seals.contains(SEALS) {
            return Err(MemberError::Keeper(
                "memory that could be made smaller".to_owned(),
            ));
        }
        let status =
            rustix::fs::fstat(memory).map_err(MemberError::system("memory of an array"))?;
        let (bytes, whole) = usize::try_from(bytes)
            .ok()
            .and_then(|bytes| Some((bytes, bytes.checked_add(HEAD_BYTES)?)))
            .ok_or_else(|| MemberError::Keeper(format!("an array of {bytes} bytes")))?;
        if status.st_size as u64 != whole as u64 {
            return Err(MemberError::Keeper(format!(
                "memory of {} bytes where {whole} were said",
                status.st_size
            )));
        }
        let mut options = MmapOptions::new();
        options.len(whole);
        let map = match is_writable {
            true => options.map_raw(memory),
            false => options.map_raw_read_only(memory),
        };
        let map = map.map_err(|error| MemberError::System {
            what: "mapping an array",
            error,
        })?;
        // Whether a kernel has large pages for such memory is its own matter.
        let _ = map.advise(Advice::HugePage);
        Ok(Self {
            map,
            bytes,
            is_writable,
            contents: RwLock::new(()),
        })
    }

    /// The array's bytes, without the board.
    #[must_use]
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Whether the process has no part of the array.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// What its process has taken over the connection at this place of the board: the last of the source's versions, bytes, nanoseconds.
    ///
    /// # Panics
    /// If no board has such a place.
    #[must_use]
    pub fn taken(&self, place: u16) -> (u64, u64, u64) {
        (
            self.load(Counter::Taken(place)),
            self.load(Counter::Bytes(place)),
            self.load(Counter::Nanoseconds(place)),
        )
    }

    /// How many versions its process has exported.
    #[must_use]
    pub fn exported(&self) -> u64 {
        self.load(Counter::Exported)
    }

    /// What its process waits for, by its own word, and just now.
    #[must_use]
    pub fn wait_noted(&self) -> Option<NotedWait> {
        let connection = self.load(Counter::WaitedFor).checked_sub(1)?;
        Some(NotedWait {
            connection: u32::try_from(connection).ok()?,
            version: self.load(Counter::WaitedVersion),
        })
    }

    /// Says on the board what is waited for.
    pub(crate) fn note_wait(&self, wait: NotedWait) {
        self.put(Counter::WaitedVersion, wait.version);
        self.put(Counter::WaitedFor, u64::from(wait.connection) + 1);
    }

    /// Says on the board that nothing is waited for.
    pub(crate) fn note_no_wait(&self) {
        self.put(Counter::WaitedFor, 0);
    }

    /// Where the array's first byte is. It stays there as long as this lives.
    #[must_use]
    pub fn first_byte(&self) -> *mut u8 {
        // SAFETY: the mapping has at least HEAD_BYTES, so this is inside of it or just behind it.
        unsafe { self.map.as_mut_ptr().add(HEAD_BYTES) }
    }

    /// A stretch of the contents, to be copied from. What of it another process changes meanwhile are values.
    ///
    /// # Panics
    /// If it isn't inside.
    pub(crate) fn copied_from<Copied>(
        &self,
        begin: usize,
        bytes: usize,
        copy: impl FnOnce(&[u8]) -> Copied,
    ) -> Copied {
        let end = begin.checked_add(bytes);
        assert!(end.is_some_and(|end| end <= self.bytes), "not of this part");
        // SAFETY: mapped as long as the borrow lasts, and inside by the assertion. In this process only the array's own copies write there,
        // which whoever calls this holds; two arrays never have the same memory.
        copy(unsafe { std::slice::from_raw_parts(self.first_byte().add(begin), bytes) })
    }

    /// The contents, to be copied to.
    ///
    /// # Panics
    /// If it was mapped to read only.
    pub(crate) fn copied_to(&self, copy: impl FnOnce(&mut [u8])) {
        assert!(self.is_writable, "a copy into another process's memory");
        // SAFETY: mapped to write as long as the borrow lasts. What else this process has of it is the caller's array, whose contents it has
        // given away for the while.
        copy(unsafe { std::slice::from_raw_parts_mut(self.first_byte(), self.bytes) });
    }

    /// Gives back to the system what the contents have from this byte on. They are zeros then.
    pub(crate) fn give_back(&self, from: usize) {
        const PAGE: usize = 4096;
        let from = (HEAD_BYTES + from).next_multiple_of(PAGE);
        let whole = HEAD_BYTES + self.bytes;
        if !self.is_writable || from >= whole {
            return;
        }
        // SAFETY: inside of the mapping. Nobody has a borrow of these bytes: what was there was taken, and the array's own copies are held.
        // That they aren't given back is no error.
        let _ = unsafe {
            let first = self.map.as_mut_ptr().add(from);
            rustix::mm::madvise(first.cast(), whole - from, rustix::mm::Advice::LinuxRemove)
        };
    }

    /// Reads the contents, for a keeper: nobody in its process writes them meanwhile.
    pub fn read<Read>(&self, read: impl FnOnce(&[u8]) -> Read) -> Read {
        let _held = self.contents.read().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: mapped as long as the borrow lasts, and in this process only `write` changes it, which the lock keeps away. Its member
        // leaves it alone until it is told that it was read; one that doesn't keep to that spoils its own numbers.
        read(unsafe { std::slice::from_raw_parts(self.first_byte(), self.bytes) })
    }

    /// Lends the contents to somebody who reads them later, for a keeper.
    ///
    /// # Panics
    /// If it wasn't mapped to read only.
    #[must_use]
    pub fn lend(self: &Arc<Self>) -> LentContents {
        assert!(!self.is_writable, "lending what is written here");
        LentContents(Arc::clone(self))
    }

    /// Writes the contents, for a keeper: nobody else in its process has them through this mapping meanwhile.
    ///
    /// # Panics
    /// If it was mapped to read only.
    pub fn write<Written>(&self, write: impl FnOnce(&mut [u8]) -> Written) -> Written {
        assert!(self.is_writable, "writing another process's memory");
        let _held = self
            .contents
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        // SAFETY: mapped to write as long as the borrow lasts, and the lock keeps everybody of this process away. Its member waits, as above.
        write(unsafe { std::slice::from_raw_parts_mut(self.first_byte(), self.bytes) })
    }

    /// Writes on a source's board which versions are on their way to other hosts over the connection at this place, for its keeper.
    ///
    /// # Panics
    /// If no board has such a place.
    pub fn release(&self, place: u16, version: u64) {
        self.store(Counter::Released(place), version);
    }

    /// Writes on a target's board which version has come from other hosts over the connection at this place, for its keeper.
    ///
    /// # Panics
    /// If no board has such a place.
    pub fn arrive(&self, place: u16, version: u64) {
        self.store(Counter::Arrived(place), version);
    }

    fn word(&self, counter: Counter) -> *mut u64 {
        let (place, word) = match counter {
            Counter::BlocksTaken(place, rank) => return self.lane(place, rank),
            Counter::Exported => (0, 0),
            Counter::Given => (0, 1),
            Counter::OwnPlaceFrom => (0, 2),
            Counter::Taking(place) => (1 + usize::from(place), 5),
            Counter::Taken(place) => (1 + usize::from(place), 0),
            Counter::Bytes(place) => (1 + usize::from(place), 1),
            Counter::Nanoseconds(place) => (1 + usize::from(place), 2),
            Counter::Arrived(place) => (1 + usize::from(place), 3),
            Counter::Released(place) => (1 + usize::from(place), 4),
            Counter::WaitedFor => (WAIT_PLACE, 0),
            Counter::WaitedVersion => (WAIT_PLACE, 1),
        };
        let offset = place * PLACE_BYTES + word * size_of::<u64>();
        assert!(offset + size_of::<u64>() <= BOARD_BYTES, "no such place");
        // SAFETY: inside of the board by the assertion, which every mapping has.
        unsafe { self.map.as_mut_ptr().add(offset).cast() }
    }

    fn lane(&self, place: u16, rank: u32) -> *mut u64 {
        let is_one = usize::from(place) < CONNECTIONS_OF_ARRAY_MAX && rank < LANES_MAX;
        assert!(is_one, "no such lane");
        let lane = usize::from(place) * LANES_MAX as usize + rank as usize;
        // SAFETY: inside of the lanes by the assertion, which every mapping has.
        unsafe {
            let lanes = self.map.as_mut_ptr().add(BOARD_BYTES);
            lanes.cast::<u64>().add(lane)
        }
    }

    /// Reads a counter, and with it what its writer did before.
    pub(crate) fn load(&self, counter: Counter) -> u64 {
        // SAFETY: mapped and a multiple of 8 from a page's beginning. Only a load, which a mapping to read allows.
        let word = unsafe { AtomicU64::from_ptr(self.word(counter)) };
        word.load(Ordering::Acquire)
    }

    /// Writes a counter of the process's own board, and wakes those who wait for it.
    pub(crate) fn store(&self, counter: Counter, value: u64) {
        self.put(counter, value);
        self.wake(counter);
    }

    /// Has those who wait for a counter look again.
    pub(crate) fn wake(&self, counter: Counter) {
        // Nobody may be waiting: that is no error.
        let _ = futex::wake(
            self.low_half(counter),
            futex::Flags::empty(),
            i32::MAX as u32,
        );
    }

    /// Writes a counter of the process's own board.
    pub(crate) fn put(&self, counter: Counter, value: u64) {
        assert!(self.is_writable, "a counter on another process's board");
        // SAFETY: as in `load`, and the mapping can be written.
        let word = unsafe { AtomicU64::from_ptr(self.word(counter)) };
        word.store(value, Ordering::Release);
    }

    /// Adds to a counter of the process's own board, for which nobody waits.
    pub(crate) fn add(&self, counter: Counter, more: u64) {
        assert!(self.is_writable, "a counter on another process's board");
        // SAFETY: as in `load`, and the mapping can be written.
        let word = unsafe { AtomicU64::from_ptr(self.word(counter)) };
        word.fetch_add(more, Ordering::Relaxed);
    }

    /// Waits until a counter is no longer `seen`, or the time is over, or a signal came.
    pub(crate) fn wait(&self, counter: Counter, seen: u64, time: Duration) {
        let time = futex::Timespec {
            tv_sec: time.as_secs() as i64,
            tv_nsec: i64::from(time.subsec_nanos()),
        };
        // Why it returns doesn't matter: the caller looks again.
        let _ = futex::wait(
            self.low_half(counter),
            futex::Flags::empty(),
            seen as u32,
            Some(&time),
        );
    }

    /// What the kernel compares: counters only grow, and no process sleeps through 2**32 versions.
    fn low_half(&self, counter: Counter) -> &AtomicU32 {
        let word: *mut u32 = self.word(counter).cast();
        let half = usize::from(cfg!(target_endian = "big"));
        // SAFETY: half of a word of the board, see `load`. The kernel reads it, and this process nothing but its address.
        unsafe { AtomicU32::from_ptr(word.add(half)) }
    }
}

/// A counter that is waited for, on whose board, and what it was when it was looked at.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SeenCounter<'a> {
    pub(crate) board: &'a PartMemory,
    pub(crate) counter: Counter,
    pub(crate) seen: u64,
}

impl SeenCounter<'_> {
    pub(crate) fn has_changed(&self) -> bool {
        self.board.load(self.counter) != self.seen
    }
}

/// Waits until one of several counters is no longer as it was seen, or the time is over, or a signal came. Where the kernel can wait for
/// one only, or there are too many, that is the first.
pub(crate) fn wait_for_any(counters: &[SeenCounter<'_>], time: Duration) {
    match counters {
        [] => {}
        [first, ..] if counters.len() == 1 || !can_wait_for(counters.len()) => {
            first.board.wait(first.counter, first.seen, time);
        }
        _ => {
            let mut waits = [futex::Wait::new(); COUNTERS_WAITED_FOR_MAX];
            for (wait, seen) in waits.iter_mut().zip(counters) {
                let half: *const AtomicU32 = seen.board.low_half(seen.counter);
                wait.val = u64::from(seen.seen as u32);
                wait.uaddr = futex::WaitPtr::new(half.cast_mut().cast());
                wait.flags = futex::WaitFlags::SIZE_U32;
            }
            let clock = rustix::time::ClockId::Monotonic;
            let now = rustix::time::clock_gettime(clock);
            let nanoseconds = now.tv_nsec + i64::from(time.subsec_nanos());
            let until = futex::Timespec {
                tv_sec: now.tv_sec + time.as_secs() as i64 + nanoseconds / 1_000_000_000,
                tv_nsec: nanoseconds % 1_000_000_000,
            };
            let flags = futex::WaitvFlags::empty();
            // Why it returns doesn't matter: the caller looks again.
            let _ = futex::waitv(&waits[..counters.len()], flags, Some(&until), clock);
        }
    }
}

/// Whether this kernel can wait for so many counters at once: Linux can since 5.16.
pub(crate) fn can_wait_for(count: usize) -> bool {
    static SEVERAL: OnceLock<bool> = OnceLock::new();
    let several = || {
        let word = AtomicU32::new(0);
        let mut wait = futex::Wait::new();
        // What isn't as it was seen is answered at once.
        wait.val = 1;
        wait.uaddr = futex::WaitPtr::new((&raw const word).cast_mut().cast());
        wait.flags = futex::WaitFlags::SIZE_U32 | futex::WaitFlags::PRIVATE;
        let (flags, clock) = (futex::WaitvFlags::empty(), rustix::time::ClockId::Monotonic);
        matches!(
            futex::waitv(&[wait], flags, None, clock),
            Err(rustix::io::Errno::AGAIN)
        )
    };
    count <= 1 || (count <= COUNTERS_WAITED_FOR_MAX && *SEVERAL.get_or_init(several))
}

/// Memory of the caller's own for a part of an array.
#[derive(Debug)]
pub struct OwnMemory {
    first: *mut u8,
    bytes: usize,
    is_writable: bool,
}

// SAFETY: who makes it promises that the memory stays, and that no thread has it while the array's calls do.
unsafe impl Send for OwnMemory {}
// SAFETY: as above; the array lets one call at a time have it.
unsafe impl Sync for OwnMemory {}

impl OwnMemory {
    /// So many bytes from this one on. Where they can't be written, nothing can be read into them.
    ///
    /// # Safety
    /// The memory stays as long as this lives. Nobody else uses it while a call of the array does that has it; nobody writes it where it
    /// isn't writable.
    #[must_use]
    pub unsafe fn new(first: *mut u8, bytes: usize, is_writable: bool) -> Self {
        Self {
            first,
            bytes,
            is_writable,
        }
    }

    /// Its bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// Whether something can be read into it.
    #[must_use]
    pub fn is_writable(&self) -> bool {
        self.is_writable
    }

    /// Where it begins.
    #[must_use]
    pub fn first_byte(&self) -> *mut u8 {
        self.first
    }

    pub(crate) fn copied_from<Copied>(&self, copy: impl FnOnce(&[u8]) -> Copied) -> Copied {
        if self.bytes == 0 {
            return copy(&[]);
        }
        // SAFETY: there by the promise of who made it, who leaves it alone meanwhile.
        copy(unsafe { std::slice::from_raw_parts(self.first, self.bytes) })
    }

    pub(crate) fn copied_to(&self, copy: impl FnOnce(&mut [u8])) {
        assert!(self.is_writable, "a copy into memory that is to be read");
        if self.bytes == 0 {
            return copy(&mut []);
        }
        // SAFETY: as above, and writable.
        copy(unsafe { std::slice::from_raw_parts_mut(self.first, self.bytes) });
    }
}
