//! How bytes move through one direction of a ring, and how the two sides sleep and wake each other.
//!
//! Both indices count bytes since the start and wrap at 2^32. Each side keeps its own index to itself and only publishes it, so that
//! whatever the peer writes into the memory, this side never leaves its part of it. The peer's index is read once and checked before it counts.
//!
//! Who sleeps says so, then looks once more; who has moved bytes then looks whether the other one sleeps. Between the two steps both have
//! a sequentially consistent fence, so that at least one of them sees the other: no wake-up is lost. `model` tries all orders.

use std::io::{self, IoSlice, IoSliceMut};
use std::sync::atomic::Ordering::{self, Acquire, Relaxed, Release};

/// A word that both sides share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Word {
    /// Bytes that the writer has put in since the start. Only the writer writes it.
    Written,
    /// Bytes that the reader has taken since the start. Only the reader writes it.
    Read,
    /// Not 0: the reader wants to be woken when bytes come, or the end.
    ReaderSleeps,
    /// Not 0: the writer wants to be woken when there is room.
    WriterSleeps,
    /// Not 0: the writer has put its last byte in.
    Ended,
}

/// The memory of one direction.
pub(super) trait RingMemory {
    /// How many bytes fit: a power of two, less than 2^31.
    const CAPACITY: u32;

    fn load(&self, word: Word, order: Ordering) -> u32;

    fn store(&self, word: Word, value: u32, order: Ordering);

    /// A sequentially consistent fence.
    fn fence(&self);

    /// Copies into the ring, from this place on and not beyond its end.
    fn put(&self, place: usize, bytes: &[u8]);

    /// Copies out of the ring, from this place on and not beyond its end.
    fn take(&self, place: usize, bytes: &mut [u8]);
}

/// What wakes the peer, and what the peer wakes this side with.
pub(super) trait Doorbell {
    /// Wakes the peer.
    fn ring(&self);

    /// Takes what the peer has rung so far.
    fn hear(&self) -> io::Result<Rung>;
}

/// What the doorbell said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rung {
    /// Everything that was rung has been taken.
    Everything,
    /// There may be more.
    Part,
    /// The peer has gone.
    End,
}

/// The peer has written something into the memory that can't be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the shared memory says that {got} bytes are under way, expected at most {expected}: the peer's software is at fault"
)]
pub(super) struct RingIndexError {
    got: u32,
    expected: u32,
}

impl From<RingIndexError> for io::Error {
    fn from(error: RingIndexError) -> Self {
        Self::new(io::ErrorKind::InvalidData, error)
    }
}

/// How often one call looks at a ring whose peer changes its mind.
const LOOKS_MAX: usize = 4;

/// How often who never sleeps finds nothing before it asks the doorbell whether the peer has gone.
const LOOKS_BETWEEN_BELLS: u32 = 4096;

/// The reading end of one direction.
#[derive(Debug, Default)]
pub(super) struct RingReader {
    read: u32,
    looks: u32,
}

impl RingReader {
    /// A reader that stands where the writer starts.
    pub(super) fn new() -> Self {
        Self::default()
    }

    /// Reads what is there. None at the end: the writer has ended its direction, or has gone.
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`] when nothing is there: the doorbell then tells of more.
    pub(super) fn read(
        &mut self,
        memory: &impl RingMemory,
        doorbell: &impl Doorbell,
        slices: &mut [IoSliceMut<'_>],
    ) -> io::Result<Option<usize>> {
        for _ in 0..LOOKS_MAX {
            let bytes = self.take(memory, doorbell, slices)?;
            if bytes > 0 {
                return Ok(Some(bytes));
            }
            let mut is_over = memory.load(Word::Ended, Acquire) != 0;
            if !is_over {
                match doorbell.hear()? {
                    Rung::Everything if self.sleep(memory)? => {
                        return Err(io::ErrorKind::WouldBlock.into());
                    }
                    Rung::Everything => {}
                    Rung::Part => return Err(io::ErrorKind::Interrupted.into()),
                    Rung::End => is_over = true,
                }
            }
            // What was put in before the end still counts.
            if is_over && self.available(memory)? == 0 {
                return Ok(None);
            }
        }
        Err(io::ErrorKind::Interrupted.into())
    }

    /// Reads what is there without saying that this side sleeps when nothing is: nobody rings for what comes next. None at the end.
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`] when nothing is there.
    pub(super) fn look(
        &mut self,
        memory: &impl RingMemory,
        doorbell: &impl Doorbell,
        slices: &mut [IoSliceMut<'_>],
    ) -> io::Result<Option<usize>> {
        let bytes = self.take(memory, doorbell, slices)?;
        if bytes > 0 {
            return Ok(Some(bytes));
        }
        self.looks = self.looks.wrapping_add(1);
        let is_over = memory.load(Word::Ended, Acquire) != 0
            || self.looks.is_multiple_of(LOOKS_BETWEEN_BELLS) && doorbell.hear()? == Rung::End;
        // What was put in before the end still counts.
        if is_over && self.available(memory)? == 0 {
            return Ok(None);
        }
        Err(io::ErrorKind::WouldBlock.into())
    }

    /// Says that this side sleeps. False, and awake, when there is something to read.
    pub(super) fn sleep(&self, memory: &impl RingMemory) -> Result<bool, RingIndexError> {
        memory.store(Word::ReaderSleeps, 1, Relaxed);
        memory.fence();
        let sleeps = self.available(memory)? == 0 && memory.load(Word::Ended, Acquire) == 0;
        if !sleeps {
            memory.store(Word::ReaderSleeps, 0, Relaxed);
        }
        Ok(sleeps)
    }

    /// Says that this side is awake, and looks by itself.
    pub(super) fn wake(&self, memory: &impl RingMemory) {
        memory.store(Word::ReaderSleeps, 0, Relaxed);
    }

    fn take(
        &mut self,
        memory: &impl RingMemory,
        doorbell: &impl Doorbell,
        slices: &mut [IoSliceMut<'_>],
    ) -> Result<usize, RingIndexError> {
        let available = self.available(memory)?;
        let (mut taken, mut said) = (0, 0);
        for slice in slices {
            let count = slice.len().min((available - taken) as usize);
            let mut rest = &mut slice[..count];
            while !rest.is_empty() {
                let unsaid = (taken - said) as usize;
                let (piece, behind) =
                    rest.split_at_mut(rest.len().min(piece_bytes(memory) - unsaid));
                let (front, back) =
                    split(memory, self.read.wrapping_add(taken - said), piece.len());
                let (first, second) = piece.split_at_mut(front.len);
                memory.take(front.place, first);
                if back.len > 0 {
                    memory.take(back.place, second);
                }
                taken += piece.len() as u32;
                if (taken - said) as usize == piece_bytes(memory) {
                    self.say_read(memory, taken - said);
                    said = taken;
                }
                rest = behind;
            }
        }
        if taken == 0 {
            return Ok(0);
        }
        self.say_read(memory, taken - said);
        // A writer that is woken for every byte does nothing else. One that waits longer than this is woken in time: the reader
        // doesn't sleep before the ring is empty.
        if available - taken <= capacity(memory) / 2 {
            memory.fence();
            if memory.load(Word::WriterSleeps, Relaxed) != 0 {
                memory.store(Word::WriterSleeps, 0, Relaxed);
                doorbell.ring();
            }
        }
        Ok(taken as usize)
    }

    fn say_read(&mut self, memory: &impl RingMemory, bytes: u32) {
        self.read = self.read.wrapping_add(bytes);
        memory.store(Word::Read, self.read, Release);
    }

    fn available(&self, memory: &impl RingMemory) -> Result<u32, RingIndexError> {
        under_way(memory, memory.load(Word::Written, Acquire), self.read)
    }
}

/// The writing end of one direction.
#[derive(Debug, Default)]
pub(super) struct RingWriter {
    written: u32,
    /// What the reader had taken when that was last looked at. It writes that word with each message: who looks each time waits for it.
    seen: u32,
}

impl RingWriter {
    /// A writer that starts where the reader stands.
    pub(super) fn new() -> Self {
        Self::default()
    }

    /// Writes what fits, and wakes a reader that sleeps. 0 when nothing fits: the doorbell then tells of room.
    pub(super) fn write(
        &mut self,
        memory: &impl RingMemory,
        doorbell: &impl Doorbell,
        slices: &[IoSlice<'_>],
    ) -> Result<usize, RingIndexError> {
        let wanted = slices.iter().map(|slice| slice.len()).sum();
        let mut room = capacity(memory) - self.written.wrapping_sub(self.seen);
        if (room as usize) < wanted {
            room = self.look_for_room(memory)?;
        }
        if room == 0 {
            memory.store(Word::WriterSleeps, 1, Relaxed);
            memory.fence();
            room = self.look_for_room(memory)?;
            if room == 0 {
                return Ok(0);
            }
            memory.store(Word::WriterSleeps, 0, Relaxed);
        }
        let (mut put, mut said) = (0, 0);
        for slice in slices {
            let count = slice.len().min((room - put) as usize);
            let mut rest = &slice[..count];
            while !rest.is_empty() {
                let unsaid = (put - said) as usize;
                let (piece, behind) = rest.split_at(rest.len().min(piece_bytes(memory) - unsaid));
                let (front, back) =
                    split(memory, self.written.wrapping_add(put - said), piece.len());
                let (first, second) = piece.split_at(front.len);
                memory.put(front.place, first);
                if back.len > 0 {
                    memory.put(back.place, second);
                }
                put += piece.len() as u32;
                if (put - said) as usize == piece_bytes(memory) {
                    self.say_written(memory, put - said);
                    said = put;
                }
                rest = behind;
            }
        }
        self.say_written(memory, put - said);
        // Not sooner: whom the kernel wakes by a socket it puts on this processor, which is not free yet.
        wake_reader(memory, doorbell);
        Ok(put as usize)
    }

    fn say_written(&mut self, memory: &impl RingMemory, bytes: u32) {
        self.written = self.written.wrapping_add(bytes);
        memory.store(Word::Written, self.written, Release);
    }

    /// Says that nothing more comes.
    pub(super) fn end(&self, memory: &impl RingMemory, doorbell: &impl Doorbell) {
        memory.store(Word::Ended, 1, Release);
        wake_reader(memory, doorbell);
    }

    /// How many bytes fit now.
    pub(super) fn look_for_room(
        &mut self,
        memory: &impl RingMemory,
    ) -> Result<u32, RingIndexError> {
        let read = memory.load(Word::Read, Acquire);
        let used = under_way(memory, self.written, read)?;
        self.seen = read;
        Ok(capacity(memory) - used)
    }
}

fn wake_reader(memory: &impl RingMemory, doorbell: &impl Doorbell) {
    memory.fence();
    if memory.load(Word::ReaderSleeps, Relaxed) != 0 {
        memory.store(Word::ReaderSleeps, 0, Relaxed);
        doorbell.ring();
    }
}

const fn capacity<M: RingMemory>(_: &M) -> u32 {
    M::CAPACITY
}

/// So many bytes at most are moved before the other side can see it: if it is awake, it goes on with them while this side moves more.
const fn piece_bytes<M: RingMemory>(_: &M) -> usize {
    (M::CAPACITY as usize).div_ceil(8)
}

fn under_way<M: RingMemory>(_: &M, written: u32, read: u32) -> Result<u32, RingIndexError> {
    let got = written.wrapping_sub(read);
    if got > M::CAPACITY {
        return Err(RingIndexError {
            got,
            expected: M::CAPACITY,
        });
    }
    Ok(got)
}

/// A stretch of the ring that doesn't pass its end.
struct Stretch {
    place: usize,
    len: usize,
}

/// Where `count` bytes from this index on are: up to the ring's end, and from its start on.
fn split<M: RingMemory>(_: &M, index: u32, count: usize) -> (Stretch, Stretch) {
    let place = (index & (M::CAPACITY - 1)) as usize;
    let front = count.min(M::CAPACITY as usize - place);
    let stretch = |place, len| Stretch { place, len };
    (stretch(place, front), stretch(0, count - front))
}
