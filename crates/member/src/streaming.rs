//! Copies into large parts, past the caches: what is written there isn't read before all of it has come.
//!
//! Has `unsafe` code: stores that don't fetch what they overwrite have no safe wrapper. Shared memory has small pages on most systems, at whose
//! ends processors stop fetching ahead; runs are copied in lanes, so that several pages are fetched at once.
#![allow(
    unsafe_code,
    reason = "streaming stores are intrinsics that take pointers"
)]

use exoskel_redist::StridedCopy;

/// Parts below this size are copied as usual: they fit into the caches, where their process finds them.
const LARGE_PART_BYTES: usize = 4 << 20;

/// Shorter runs are copied as usual.
const LONG_RUN_BYTES: usize = 4 << 10;

/// Copies what a message has into a process's part.
///
/// # Panics
/// As [`StridedCopy::run`].
pub fn copy_to_part(copy: &StridedCopy, source: &[u8], part: &mut [u8]) {
    if part.len() < LARGE_PART_BYTES {
        return copy.run(source, part);
    }
    copy.run_by(source, part, copy_run);
    finish();
}

fn copy_run(source: &[u8], target: &mut [u8]) {
    if source.len() < LONG_RUN_BYTES || source.len() != target.len() {
        return target.copy_from_slice(source);
    }
    copy_long_run(source, target);
}

#[cfg(not(target_arch = "x86_64"))]
fn copy_long_run(source: &[u8], target: &mut [u8]) {
    target.copy_from_slice(source);
}

#[cfg(not(target_arch = "x86_64"))]
fn finish() {}

/// Has all that was stored here stand before whatever is stored from now on: others are told of it by ordinary stores.
#[cfg(target_arch = "x86_64")]
fn finish() {
    // SAFETY: every x86-64 processor has SSE.
    unsafe { std::arch::x86_64::_mm_sfence() }
}

#[cfg(target_arch = "x86_64")]
fn copy_long_run(source: &[u8], target: &mut [u8]) {
    /// What a processor stores at once without fetching it.
    const LINE: usize = 64;
    /// Pages that are read at the same time.
    const LANES: usize = 4;
    /// A page in each lane.
    const BLOCK: usize = LANES * 4096;
    let before = target.as_ptr().align_offset(LINE).min(target.len());
    let (front, mut to) = target.split_at_mut(before);
    let (source_front, mut from) = source.split_at(before);
    front.copy_from_slice(source_front);
    while to.len() >= LANES * LINE {
        let lane = to.len().min(BLOCK) / LANES / LINE * LINE;
        let (block, rest) = to.split_at_mut(LANES * lane);
        let (source_block, source_rest) = from.split_at(LANES * lane);
        for at in (0..lane).step_by(LINE) {
            for begin in (at..LANES * lane).step_by(lane) {
                store_line(
                    &source_block[begin..begin + LINE],
                    &mut block[begin..begin + LINE],
                );
            }
        }
        (to, from) = (rest, source_rest);
    }
    to.copy_from_slice(from);
}

/// Copies a line of 64 bytes to where a line begins.
#[cfg(target_arch = "x86_64")]
fn store_line(source: &[u8], target: &mut [u8]) {
    use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_stream_si128};

    const WORD: usize = size_of::<__m128i>();
    debug_assert!(target.as_ptr().addr().is_multiple_of(WORD));
    for (source, target) in source.chunks_exact(WORD).zip(target.chunks_exact_mut(WORD)) {
        // SAFETY: both are of the word's size; the target begins at a multiple of it, as lines do. Every x86-64 processor has SSE2.
        unsafe {
            let word = _mm_loadu_si128(source.as_ptr().cast());
            _mm_stream_si128(target.as_mut_ptr().cast(), word);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Aim: whatever the length and the places, all bytes come, and none beside them.
    #[test]
    fn long_runs_come_whole_from_any_place_to_any_place() {
        let source: Vec<u8> = (0..100_000_u32)
            .map(|number| (number % 251) as u8)
            .collect();
        for length in [0, 1, 4095, 4096, 4097, 5000, 16_384, 16_385, 40_000, 65_536] {
            for from in [0, 1, 8, 63] {
                for place in [0, 1, 8, 24, 64, 129] {
                    let mut target = vec![255; length + 300];
                    copy_run(
                        &source[from..from + length],
                        &mut target[place..place + length],
                    );
                    finish();
                    assert_eq!(target[place..place + length], source[from..from + length]);
                    let beside = target[..place].iter().chain(&target[place + length..]);
                    assert!(beside.copied().all(|byte| byte == 255));
                }
            }
        }
    }
}
