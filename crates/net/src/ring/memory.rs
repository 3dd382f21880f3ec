//! Memory that two processes share, and the one place that touches it.
//!
//! Has `unsafe` code: no library copies to and from memory that another process may change meanwhile.
//!
//! # Security
//! The peer can write anything anywhere in this memory at any time. So nothing here makes a reference to its bytes: words are atomics, and
//! bytes are copied, once, by a function that the compiler can't look through. What was copied is private, and is judged only then.
#![allow(
    unsafe_code,
    reason = "memory that another process writes to has no safe wrapper"
)]

use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU32, Ordering, fence};

use exoskel_link::Side;
use memmap2::{Advice, MmapOptions, MmapRaw};

use super::flow::{RingMemory, Word};

/// The bytes that fit into one direction. Enough for a segment while the next is sealed, and little enough to stay in a processor's cache.
pub(super) const RING_BYTES: u32 = 512 * 1024;

/// The words stand before the rings, each direction's in half of this.
const WORDS_BYTES: usize = 4096;

/// Words that different sides write stand so far apart that no processor fetches one for the other.
const WORD_STRIDE: usize = 128;

/// The whole memory: the words, the client's ring, the server's.
pub(super) const MEMORY_BYTES: usize = WORDS_BYTES + 2 * RING_BYTES as usize;

const _: () = assert!(RING_BYTES.is_power_of_two() && 5 * WORD_STRIDE <= WORDS_BYTES / 2);

/// Both directions' memory, mapped into this process. Unmapped when it goes.
#[derive(Debug)]
pub(super) struct SharedMapping {
    map: MmapRaw,
}

impl SharedMapping {
    /// Maps memory that has been found to have [`MEMORY_BYTES`] for ever. The descriptor isn't needed any longer.
    pub(super) fn new(memory: &OwnedFd) -> io::Result<Self> {
        let map = MmapOptions::new().len(MEMORY_BYTES).map_raw(memory)?;
        // A forked child has nothing to say to the peer. Core dumps would show what links carry.
        map.advise(Advice::DontFork)?;
        map.advise(Advice::DontDump)?;
        Ok(Self { map })
    }

    /// The direction that this side sends in.
    pub(super) fn direction(&self, sender: Side) -> RingHalf<'_> {
        RingHalf {
            map: &self.map,
            second: matches!(sender, Side::Server).into(),
        }
    }
}

/// One direction's part of the memory.
pub(super) struct RingHalf<'a> {
    map: &'a MmapRaw,
    /// 0 or 1: which of the two.
    second: usize,
}

impl RingHalf<'_> {
    fn word(&self, word: Word) -> &AtomicU32 {
        let place = self.second * (WORDS_BYTES / 2) + word as usize * WORD_STRIDE;
        // SAFETY: the place is below WORDS_BYTES (asserted above), so inside the mapping, which lives as long as `self`; it is a multiple
        // of 4 in a mapping that begins at a page. This process reaches the word only as an atomic, and every value of it is a u32.
        unsafe { AtomicU32::from_ptr(self.map.as_mut_ptr().add(place).cast()) }
    }

    /// Where the byte at this place of the ring is, when so many from there on are inside of it.
    fn bytes(&self, place: usize, count: usize) -> *mut u8 {
        let ring = RING_BYTES as usize;
        assert!(
            place <= ring && count <= ring - place,
            "a copy passes the ring's end"
        );
        // SAFETY: with the assertion, the place is inside of the mapping, or just behind it when nothing is copied.
        unsafe {
            let rings = self.map.as_mut_ptr().add(WORDS_BYTES);
            rings.add(self.second * ring + place)
        }
    }
}

impl RingMemory for RingHalf<'_> {
    const CAPACITY: u32 = RING_BYTES;

    fn load(&self, word: Word, order: Ordering) -> u32 {
        self.word(word).load(order)
    }

    fn store(&self, word: Word, value: u32, order: Ordering) {
        self.word(word).store(value, order);
    }

    fn fence(&self) {
        fence(Ordering::SeqCst);
    }

    fn put(&self, place: usize, bytes: &[u8]) {
        let target = self.bytes(place, bytes.len());
        // SAFETY: `bytes` found so many bytes inside of the mapping, which no slice of this process can overlap.
        unsafe { copy(bytes.as_ptr(), target, bytes.len()) }
    }

    fn take(&self, place: usize, bytes: &mut [u8]) {
        let source = self.bytes(place, bytes.len());
        // SAFETY: as in `put`.
        unsafe { copy(source, bytes.as_mut_ptr(), bytes.len()) }
    }
}

/// Copies bytes once. Not inlined, so that no later look at the copy can become a second look at memory that the peer changes.
///
/// # Safety
/// Both stretches must be mapped, and must not overlap. The peer may write to the one that is shared: a byte has no wrong values, and
/// which of the peer's values was copied is for who reads the copy to judge.
#[inline(never)]
unsafe fn copy(source: *const u8, target: *mut u8, count: usize) {
    // SAFETY: the caller's.
    unsafe { std::ptr::copy_nonoverlapping(source, target, count) }
}
