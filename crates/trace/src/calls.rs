//! What the tracer of `tracer/` leaves: for each rank a file of its calls and a text with its communicators.
//!
//! The file of calls has a head of 32 bytes (`EXOCALL1`, rank and number of ranks as u32, when the trace began as u64, 8 bytes of nothing) and
//! 48 bytes for each call: entry, duration and gap in nanoseconds and payload as u64, peer and tag as i32, request as u32, operation and
//! communicator as u8, 2 bytes of nothing; all little endian. A program that died leaves a file that ends earlier, maybe within a call.

use crate::{
    Field, GAP_NS_MAX, Operation, RANKS_MAX, RECORDS_MAX, Trace, TraceError, TraceFault,
    TraceRecord,
};

const MAGIC: &[u8; 8] = b"EXOCALL1";
const HEAD_BYTES: usize = 32;
const CALL_BYTES: usize = 48;
/// Where the fields of a call are.
const PEER: usize = 32;
const OPERATION: usize = 44;
const COMMUNICATOR: usize = 45;

/// What the tracer left of one rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RankCalls<'a> {
    /// What the file of calls is called, for messages.
    pub name: &'a str,
    /// What is in it.
    pub calls: &'a [u8],
    /// The text of communicators: a line of ranks for each.
    pub communicators: &'a str,
}

impl Trace {
    /// A trace from what the tracer left of all ranks, in any order. Ranks that ended early, those of several that said nothing (as when the tracer
    /// could not see what they said), and gaps that were cut because the format has no room for them, are in its note.
    ///
    /// # Errors
    ///
    /// [`TraceError`] that names the file, record and byte, for files that are none of the tracer's, and when a rank is missing or
    /// there twice.
    pub fn read_calls(name: &str, files: &[RankCalls<'_>]) -> Result<Self, TraceError> {
        let mut by_rank: Vec<Option<(&RankCalls<'_>, &[u8])>> = Vec::new();
        for file in files {
            let (rank, ranks, calls) = read_head(file)?;
            if by_rank.is_empty() {
                by_rank.resize(ranks, None);
            }
            let got = ranks;
            let expected = by_rank.len();
            if got != expected {
                return Err(TraceFault::OtherRun { got, expected }.at_byte(file.name, 12));
            }
            if by_rank[rank].replace((file, calls)).is_some() {
                return Err(TraceFault::RankTwice { got: rank }.at_byte(file.name, 8));
            }
        }
        let expected = by_rank.len();
        let there: Vec<_> = by_rank.into_iter().flatten().collect();
        if there.len() != expected {
            let got = there.len();
            return Err(TraceFault::Ranks { got, expected }.at("the files of calls"));
        }
        let communicators = there
            .iter()
            .map(|(file, _)| read_communicators(file))
            .collect::<Result<Vec<_>, _>>()?;
        crate::check_communicators(expected, &communicators)?;
        let records: usize = there
            .iter()
            .map(|(_, calls)| calls.len() / CALL_BYTES)
            .sum();
        if records > RECORDS_MAX {
            return Err(TraceFault::TooMany {
                what: "records",
                got: records as u64,
                most: RECORDS_MAX as u64,
            }
            .at("the files of calls"));
        }
        let mut cut = 0;
        let mut ended_early = Vec::new();
        let mut silent = Vec::new();
        let mut ranks = Vec::with_capacity(expected);
        for (rank, (file, calls)) in there.iter().enumerate() {
            let records = calls
                .chunks_exact(CALL_BYTES)
                .enumerate()
                .map(|(index, call)| read_call(file, rank, index, call, &communicators, &mut cut))
                .collect::<Result<Vec<_>, _>>()?;
            if records.last().map(|last| last.operation) != Some(Operation::Finalize) {
                ended_early.push(rank.to_string());
            }
            let begins_or_ends = |call: &TraceRecord| {
                matches!(call.operation, Operation::Init | Operation::Finalize)
            };
            if expected > 1 && records.iter().all(begins_or_ends) {
                silent.push(rank.to_string());
            }
            ranks.push(records);
        }
        let mut note = Vec::new();
        if !ended_early.is_empty() {
            note.push(format!("ended early: rank {}", ended_early.join(", ")));
        }
        if !silent.is_empty() {
            note.push(format!("said nothing: rank {}", silent.join(", ")));
        }
        if cut > 0 {
            note.push(format!(
                "{cut} gaps were longer than {GAP_NS_MAX} ns and are cut to that"
            ));
        }
        Ok(Self {
            name: name.to_owned(),
            iterations: 0,
            note: note.join("; "),
            ranks,
            communicators,
        })
    }
}

/// Rank, number of ranks, and the calls.
fn read_head<'a>(file: &RankCalls<'a>) -> Result<(usize, usize, &'a [u8]), TraceError> {
    if !file.calls.starts_with(MAGIC) {
        let got = file.calls[..file.calls.len().min(MAGIC.len())].to_vec();
        return Err(TraceFault::NoCalls { got }.at_byte(file.name, 0));
    }
    let Some((head, calls)) = file.calls.split_at_checked(HEAD_BYTES) else {
        let expected = HEAD_BYTES - file.calls.len();
        return Err(TraceFault::Torn { expected }.at_byte(file.name, file.calls.len()));
    };
    let (rank, ranks) = (four(head, 8) as usize, four(head, 12) as usize);
    if ranks > RANKS_MAX {
        return Err(TraceFault::TooMany {
            what: "ranks",
            got: ranks as u64,
            most: RANKS_MAX as u64,
        }
        .at_byte(file.name, 12));
    }
    if rank >= ranks {
        let got = rank as i64;
        return Err(TraceFault::NoSuchPeer { got, ranks }.at_byte(file.name, 8));
    }
    Ok((rank, ranks, calls))
}

fn read_communicators(file: &RankCalls<'_>) -> Result<Vec<Vec<u16>>, TraceError> {
    let read_line = |(index, line): (usize, &str)| {
        line.split_whitespace()
            .map(|word| {
                word.parse().map_err(|_| {
                    let got = word.chars().take(40).collect();
                    let expected = "the number of a rank";
                    let mut error = TraceFault::Text { got, expected }
                        .at(format!("the communicators beside {}", file.name));
                    error.place.line = Some(index + 1);
                    error
                })
            })
            .collect()
    };
    file.communicators
        .lines()
        .enumerate()
        .map(read_line)
        .collect()
}

fn read_call(
    file: &RankCalls<'_>,
    rank: usize,
    index: usize,
    call: &[u8],
    communicators: &[Vec<Vec<u16>>],
    cut: &mut u64,
) -> Result<TraceRecord, TraceError> {
    let fault_at = |fault: TraceFault, field: usize| {
        let mut error = fault.in_record(file.name, rank, index);
        error.place.byte = Some(HEAD_BYTES + index * CALL_BYTES + field);
        error
    };
    let Some(operation) = Operation::from_code(call[OPERATION]) else {
        let got = call[OPERATION];
        return Err(fault_at(TraceFault::UnknownOperation { got }, OPERATION));
    };
    let microseconds = |at| u32::try_from(eight(call, at) / 1000).unwrap_or(u32::MAX);
    let gap_ns = eight(call, 16);
    *cut += u64::from(gap_ns > GAP_NS_MAX);
    let bytes = u32::try_from(eight(call, 24)).map_err(|_| {
        let fault = TraceFault::TooMany {
            what: "bytes",
            got: eight(call, 24),
            most: u64::from(u32::MAX),
        };
        fault_at(fault, 24)
    })?;
    let peer = four(call, PEER) as i32;
    let peer = match u16::try_from(peer) {
        Ok(peer) => Some(peer),
        Err(_) if peer == -1 => None,
        Err(_) => {
            let (got, ranks) = (i64::from(peer), communicators.len());
            return Err(fault_at(TraceFault::NoSuchPeer { got, ranks }, PEER));
        }
    };
    let record = TraceRecord {
        operation,
        peer,
        bytes,
        tag: four(call, 36) as i32,
        request: four(call, 40),
        communicator: call[COMMUNICATOR],
        gap_ns: gap_ns.min(GAP_NS_MAX),
        entry_us: microseconds(0),
        duration_us: microseconds(8),
    };
    match record.fault(rank, communicators) {
        None => Ok(record),
        Some((Field::Communicator, fault)) => Err(fault_at(fault, COMMUNICATOR)),
        Some((Field::Peer | Field::Gap, fault)) => Err(fault_at(fault, PEER)),
    }
}

/// Four bytes of a slice that has them.
fn four(bytes: &[u8], at: usize) -> u32 {
    let mut value = [0; 4];
    value.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(value)
}

fn eight(bytes: &[u8], at: usize) -> u64 {
    u64::from(four(bytes, at)) | u64::from(four(bytes, at + 4)) << 32
}
