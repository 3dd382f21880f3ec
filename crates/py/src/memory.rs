//! Fresh memory for large objects, in huge pages.
//!
//! What a program keeps of large results is memory that it never had before, and the kernel hands that out page by
//! page: at 4 KiB each, the page faults of one MiB take several times as long as copying it. With 2 MiB pages (which
//! Linux gives by default to who asks for them: `transparent_hugepage/enabled` is `madvise`) they take next to nothing.
//! NumPy asks for its large arrays in the same way; `bytes` objects come from `malloc`, so it is asked for the memory
//! that `malloc` is going to cut them from.

use std::sync::Mutex;

use exoskel_link::Session;
use pyo3::exceptions::PyMemoryError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

/// Copies into a new `bytes` object.
///
/// # Errors
/// `MemoryError` when there is none left.
pub(crate) fn bytes_of<'py>(py: Python<'py>, contents: &[u8]) -> PyResult<Bound<'py, PyBytes>> {
    expect(contents.len());
    let length = ffi::Py_ssize_t::try_from(contents.len())
        .map_err(|_| PyMemoryError::new_err("got contents larger than the address space"))?;
    // SAFETY: without contents to copy the object is made uninitialised; nobody else sees it before it is filled, over
    // its whole length, by a copy from memory that is not its own.
    unsafe {
        let object = ffi::PyBytes_FromStringAndSize(std::ptr::null(), length);
        let object = Bound::from_owned_ptr_or_err(py, object)?;
        let start = ffi::PyBytes_AsString(object.as_ptr()).cast::<u8>();
        if contents.len() > PIECE_BYTES_MAX {
            huge::ask(start, contents.len());
        }
        std::ptr::copy_nonoverlapping(contents.as_ptr(), start, contents.len());
        Ok(object.cast_into_unchecked())
    }
}

/// Memory to receive so many bytes in, empty for more than is worth keeping.
pub(crate) fn buffer_of(bytes: usize) -> Vec<u8> {
    if bytes > PIECE_BYTES_MAX {
        return Vec::new();
    }
    let length = bytes + Session::RECEIVE_ROOM_BYTES;
    if let Some(known) = take_of(length) {
        return known;
    }
    expect(length);
    vec![0; length]
}

/// Memory that arrays had: what a program takes and drops again and again needs no fresh memory, which would have to be cleared first.
#[derive(Default)]
struct PutBy {
    buffers: Vec<Vec<u8>>,
    bytes: usize,
}

static PUT_BY: Mutex<PutBy> = Mutex::new(PutBy {
    buffers: Vec::new(),
    bytes: 0,
});

/// Smaller buffers are had from the allocator as fast.
const PUT_BY_EACH_MIN: usize = 4 << 10;
/// What is put by, at most.
const PUT_BY_MAX: usize = 64;
const PUT_BY_BYTES_MAX: usize = 16 << 20;

/// Puts by what a received array doesn't need any more.
pub(crate) fn put_by(buffer: Vec<u8>) {
    let bytes = buffer.capacity();
    if !(PUT_BY_EACH_MIN..=PIECE_BYTES_MAX + Session::RECEIVE_ROOM_BYTES).contains(&bytes) {
        return;
    }
    // Nobody waits for it: it goes back to the allocator.
    let Ok(mut known) = PUT_BY.try_lock() else {
        return;
    };
    if known.buffers.len() < PUT_BY_MAX && known.bytes + bytes <= PUT_BY_BYTES_MAX {
        known.bytes += bytes;
        known.buffers.push(buffer);
    }
}

/// What was put by last and has room for so much, without wasting more than half of it.
fn take_of(length: usize) -> Option<Vec<u8>> {
    let mut known = PUT_BY.try_lock().ok()?;
    let suits = |one: &Vec<u8>| one.capacity() >= length && one.capacity() / 2 <= length;
    let place = known.buffers.iter().rposition(suits)?;
    let buffer = known.buffers.remove(place);
    known.bytes -= buffer.capacity();
    Some(buffer)
}

/// Says that objects of `bytes` altogether are about to be made by this thread.
pub(crate) fn expect(bytes: usize) {
    if bytes <= PIECE_BYTES_MAX {
        huge::expect(bytes);
    }
}

/// Gives the system back what nothing uses.
///
/// A run takes and frees large memory in several threads, and what `malloc` keeps of it lies between what is still used. A process that
/// makes one manager after the other would grow with each.
pub(crate) fn give_back() {
    if let Ok(mut known) = PUT_BY.try_lock() {
        *known = PutBy::default();
    }
    huge::give_back();
}

/// Gives the system back the free end of the calling thread's heap, which [`give_back`] can't see from another thread.
pub(crate) fn give_back_of_thread() {
    huge::give_back_of_thread();
}

/// Larger objects are asked for one by one, once they are there.
const PIECE_BYTES_MAX: usize = 4 << 20;

#[cfg(all(target_os = "linux", target_env = "gnu"))]
mod huge {
    use std::cell::Cell;
    use std::sync::Once;

    use super::PIECE_BYTES_MAX;

    /// How far ahead of what is needed the kernel is asked. The memory itself is taken only when it is used. It is the
    /// largest block that glibc cuts from the heap, and of each such block the last page stays small.
    const AHEAD_BYTES: usize = (32 << 20) - (64 << 10);

    const PAGE_BYTES: usize = 2 << 20;

    /// What glibc sets when it has seen a block of [`AHEAD_BYTES`] freed.
    const SHRINKS_AT_BYTES: libc::c_int = 64 << 20;

    /// Room for small things; less than an object for which huge pages are worth it.
    const ROOM_BYTES: usize = 1 << 20;
    /// What closes it, above it. Holes elsewhere in the heap may have to be passed by until one comes that does.
    const LID_BYTES: usize = 4096;
    const LIDS_MAX: usize = 256;

    /// glibc maps large blocks one by one, at addresses that huge pages don't fit, until it has seen one of that size freed; from then on
    /// it cuts them from the heap, and shrinks a heap only when twice that size is free at its end.
    static FREED_ONE: Once = Once::new();

    /// A block whose end makes glibc look at the end of the heap.
    const LOOKED_AT_BYTES: usize = 128 << 10;

    thread_local! {
        /// What is left of the memory that was asked for. Threads have arenas of their own.
        static LEFT: Cell<usize> = const { Cell::new(0) };
        static ROOM: Lid = Lid::over_room();
    }

    pub(super) fn expect(bytes: usize) {
        let left = LEFT.get();
        if left >= bytes + PIECE_BYTES_MAX {
            return LEFT.set(left - bytes);
        }
        FREED_ONE.call_once(|| with_block(AHEAD_BYTES, |_| {}));
        ROOM.with(|_| {});
        // The block is cut from the end of the heap, and so are the objects once it is free again. It is asked for while
        // some of the last one is left, so that no page is touched before.
        with_block(AHEAD_BYTES, |block| ask(block, AHEAD_BYTES));
        LEFT.set(AHEAD_BYTES - bytes);
    }

    /// What closes a hole in this thread's heap, below where the objects will be: room for the small things that the thread makes in
    /// between. A heap only shrinks from its end: one of them that is cut from there, and kept or put by for the next of its size, would
    /// keep all objects below it from going back to the kernel.
    struct Lid(*mut libc::c_void);

    impl Lid {
        fn over_room() -> Self {
            let mut tried = [std::ptr::null_mut(); LIDS_MAX];
            let mut lid = std::ptr::null_mut();
            // SAFETY: blocks that nobody else knows of; each is freed once, the lid with this.
            unsafe {
                let room = taken(ROOM_BYTES);
                for other in &mut tried {
                    let block = taken(LID_BYTES);
                    if block > room {
                        lid = block;
                        break;
                    }
                    *other = block;
                }
                libc::free(room);
                for other in tried {
                    libc::free(other);
                }
            }
            Self(lid)
        }
    }

    impl Drop for Lid {
        fn drop(&mut self) {
            // SAFETY: it is this one's alone.
            unsafe { libc::free(self.0) };
        }
    }

    /// A block whose place matters and not its contents. Unseen, the compiler would take such a block for useless and leave it out.
    fn taken(bytes: usize) -> *mut libc::c_void {
        // SAFETY: asking for memory is always allowed.
        std::hint::black_box(unsafe { libc::malloc(bytes) })
    }

    fn with_block(bytes: usize, action: impl FnOnce(*mut u8)) {
        // SAFETY: a block that is freed at once; `action` gets its address only to name it to the kernel.
        unsafe {
            let block = taken(bytes);
            if !block.is_null() {
                action(block.cast());
                libc::free(block);
            }
        }
    }

    pub(super) fn give_back_of_thread() {
        // Before that heaps shrink by themselves, and glibc is still to find its own measure.
        if !FREED_ONE.is_completed() {
            return;
        }
        // SAFETY: settings of the allocator, which any thread may change; what others do meanwhile is slower, not wrong.
        unsafe { libc::mallopt(libc::M_TRIM_THRESHOLD, 0) };
        with_block(LOOKED_AT_BYTES, |_| {});
        // SAFETY: as above.
        unsafe { libc::mallopt(libc::M_TRIM_THRESHOLD, SHRINKS_AT_BYTES) };
    }

    pub(super) fn give_back() {
        // SAFETY: it may be called at any time, from any thread.
        unsafe { libc::malloc_trim(0) };
    }

    /// Asks for huge pages where they fit into this memory, which belongs to the caller.
    pub(super) fn ask(start: *mut u8, length: usize) {
        let skipped = start.align_offset(PAGE_BYTES);
        let whole = length.saturating_sub(skipped) / PAGE_BYTES * PAGE_BYTES;
        if whole > 0 {
            // SAFETY: a hint; it changes nothing that a program can see. A kernel that has no huge pages refuses.
            unsafe {
                libc::madvise(
                    start.wrapping_add(skipped).cast(),
                    whole,
                    libc::MADV_HUGEPAGE,
                )
            };
        }
    }
}

#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
mod huge {
    /// Other allocators have ways of their own.
    pub(super) fn expect(_: usize) {}

    /// See `expect`.
    pub(super) fn ask(_: *mut u8, _: usize) {}

    /// See `expect`.
    pub(super) fn give_back() {}

    /// See `expect`.
    pub(super) fn give_back_of_thread() {}
}
