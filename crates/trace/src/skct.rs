//! The SKCT file format, version 1.
//!
//! A zstd frame around, all numbers little endian: `SKCT0001`, the length of the header (u32), the header (JSON), and for each rank its columns, each one
//! contiguous and as long as the rank has records. The content without zstd around it is read as well.

use std::io::Read;

use serde::{Deserialize, Serialize};

use crate::{
    Field, Operation, RANKS_MAX, RECORDS_MAX, Trace, TraceError, TraceFault, TraceRecord,
    check_communicators, check_name,
};

const MAGIC: &[u8; 8] = b"SKCT0001";
/// Longest header.
const HEADER_BYTES_MAX: usize = 16 << 20;
/// Bytes of one record in all columns.
const RECORD_BYTES: usize = 29;
/// Longest content after decompression.
const CONTENT_BYTES_MAX: usize = MAGIC.len() + 4 + HEADER_BYTES_MAX + RECORDS_MAX * RECORD_BYTES;
/// Longest file: what can't be compressed becomes a little longer in a zstd frame, by less than this share.
pub const FILE_BYTES_MAX: usize = CONTENT_BYTES_MAX + CONTENT_BYTES_MAX / 128;
/// Higher levels take many times as long for a tenth less.
const COMPRESSION_LEVEL: i32 = 9;

const COMPRESSED: &str = "the compressed content";
const HEADER: &str = "the header";

/// The columns of a rank: name, kind, bytes of a value.
const COLUMNS: [(&str, &str, usize); 10] = [
    ("op", "u1", 1),
    ("comm", "u1", 1),
    ("peer", "<i2", 2),
    ("tag", "<i4", 4),
    ("bytes", "<u4", 4),
    ("req", "<u4", 4),
    ("gap_ns", "<u4", 4),
    ("gap_hi", "u1", 1),
    ("t_us", "<u4", 4),
    ("dur_us", "<u4", 4),
];
const OPERATION: usize = 0;
const COMMUNICATOR: usize = 1;
const PEER: usize = 2;
const GAP: usize = 6;

#[derive(Serialize, Deserialize)]
struct Header {
    #[serde(default)]
    bench: String,
    #[serde(default)]
    cls: String,
    ranks: usize,
    #[serde(default)]
    iterations: u64,
    nrec: Vec<usize>,
    comms: Vec<Vec<Vec<u16>>>,
    columns: Vec<(String, String)>,
    #[serde(default)]
    note: String,
}

impl Trace {
    /// A trace from the bytes of an SKCT file.
    ///
    /// # Errors
    ///
    /// [`TraceError`] that names the part, rank, record and byte when the file is torn, no trace, over a limit, or says something that can't
    /// be, such as a message to a rank that isn't there.
    pub fn read(bytes: &[u8]) -> Result<Self, TraceError> {
        if bytes.starts_with(MAGIC) {
            return read_content(bytes);
        }
        read_content(&decompressed(bytes)?)
    }

    /// The bytes of an SKCT file.
    ///
    /// # Errors
    ///
    /// [`TraceError`] when [`Trace::read`] could not read them back.
    pub fn write(&self) -> Result<Vec<u8>, TraceError> {
        self.check()?;
        let header = Header {
            bench: self.name.clone(),
            cls: String::new(),
            ranks: self.ranks.len(),
            iterations: self.iterations,
            nrec: self.ranks.iter().map(Vec::len).collect(),
            comms: self.communicators.clone(),
            columns: COLUMNS
                .iter()
                .map(|(name, kind, _)| ((*name).to_owned(), (*kind).to_owned()))
                .collect(),
            note: self.note.clone(),
        };
        let header = serde_json::to_vec(&header).map_err(|error| bad_header(&error))?;
        if header.len() > HEADER_BYTES_MAX {
            return Err(long_header(header.len()));
        }
        let mut content = Vec::with_capacity(12 + header.len() + self.records() * RECORD_BYTES);
        content.extend(MAGIC);
        content.extend((header.len() as u32).to_le_bytes());
        content.extend(header);
        for records in &self.ranks {
            write_columns(&mut content, records);
        }
        zstd::bulk::compress(&content, COMPRESSION_LEVEL).map_err(|error| {
            TraceFault::Compression {
                reason: error.to_string(),
            }
            .at(COMPRESSED)
        })
    }
}

fn decompressed(bytes: &[u8]) -> Result<Vec<u8>, TraceError> {
    // The first four bytes of a zstd frame (RFC 8878, section 3.1.1).
    if !bytes.starts_with(&[0x28, 0xB5, 0x2F, 0xFD]) {
        let got = bytes[..bytes.len().min(MAGIC.len())].to_vec();
        return Err(TraceFault::Magic { got }.at_byte("the file", 0));
    }
    let mut content = Vec::new();
    let read = zstd::stream::read::Decoder::with_buffer(bytes).and_then(|decoder| {
        decoder
            .take(CONTENT_BYTES_MAX as u64 + 1)
            .read_to_end(&mut content)
    });
    if let Err(error) = read {
        return Err(TraceFault::Compression {
            reason: format!("{error} after {} bytes of content", content.len()),
        }
        .at_byte(COMPRESSED, bytes.len()));
    }
    if content.len() > CONTENT_BYTES_MAX {
        return Err(TraceFault::TooMany {
            what: "bytes",
            got: content.len() as u64,
            most: CONTENT_BYTES_MAX as u64,
        }
        .at("the content"));
    }
    Ok(content)
}

fn read_content(content: &[u8]) -> Result<Trace, TraceError> {
    let Some(rest) = content.strip_prefix(MAGIC) else {
        let got = content[..content.len().min(MAGIC.len())].to_vec();
        return Err(TraceFault::Magic { got }.at_byte("the content", 0));
    };
    let (header, columns) = read_header(rest)?;
    let start = content.len() - columns.len();
    let mut records: usize = 0;
    for (rank, count) in header.nrec.iter().enumerate() {
        records = records.saturating_add(*count);
        if records > RECORDS_MAX {
            return Err(TraceFault::TooMany {
                what: "records",
                got: records as u64,
                most: RECORDS_MAX as u64,
            }
            .in_rank(HEADER, rank));
        }
    }
    let mut reader = Columns {
        content,
        position: start,
    };
    let mut ranks = Vec::with_capacity(header.ranks);
    for (rank, count) in header.nrec.iter().enumerate() {
        ranks.push(reader.rank(rank, *count, &header.comms)?);
    }
    if reader.position != content.len() {
        let got = content.len() - reader.position;
        return Err(TraceFault::Trailing { got }.at_byte("the content", reader.position));
    }
    let mut name = header.bench;
    if !header.cls.is_empty() {
        name = format!("{name}.{}", header.cls);
    }
    check_name(&name)?;
    Ok(Trace {
        name,
        iterations: header.iterations,
        note: header.note,
        ranks,
        communicators: header.comms,
    })
}

/// The header, and what stands after it. `rest` begins after the magic.
fn read_header(rest: &[u8]) -> Result<(Header, &[u8]), TraceError> {
    let torn = |expected| TraceFault::Torn { expected }.at_byte(HEADER, MAGIC.len() + rest.len());
    let Some((length, rest_of_it)) = rest.split_first_chunk() else {
        return Err(torn(4 - rest.len()));
    };
    let length = u32::from_le_bytes(*length) as usize;
    if length > HEADER_BYTES_MAX {
        return Err(long_header(length));
    }
    let Some((header, columns)) = rest_of_it.split_at_checked(length) else {
        return Err(torn(length - rest_of_it.len()));
    };
    let header: Header = serde_json::from_slice(header).map_err(|error| bad_header(&error))?;
    if header.ranks > RANKS_MAX {
        return Err(TraceFault::TooMany {
            what: "ranks",
            got: header.ranks as u64,
            most: RANKS_MAX as u64,
        }
        .at(HEADER));
    }
    if header.nrec.len() != header.ranks {
        return Err(TraceFault::Ranks {
            got: header.nrec.len(),
            expected: header.ranks,
        }
        .at("the numbers of records in the header"));
    }
    let same = header.columns.len() == COLUMNS.len()
        && header
            .columns
            .iter()
            .zip(COLUMNS)
            .all(|(got, (name, kind, _))| got.0 == name && got.1 == kind);
    if !same {
        let columns = |all: &mut dyn Iterator<Item = (&str, &str)>| {
            let all: Vec<String> = all.map(|(name, kind)| format!("{name} {kind}")).collect();
            all.join(", ")
        };
        return Err(TraceFault::Columns {
            got: columns(
                &mut header
                    .columns
                    .iter()
                    .take(2 * COLUMNS.len())
                    .map(|(name, kind)| (name.as_str(), kind.as_str())),
            ),
            expected: columns(&mut COLUMNS.iter().map(|(name, kind, _)| (*name, *kind))),
        }
        .at(HEADER));
    }
    check_communicators(header.ranks, &header.comms)?;
    Ok((header, columns))
}

fn bad_header(error: &serde_json::Error) -> TraceError {
    let reason = error.to_string();
    TraceFault::Header { reason }.at(HEADER)
}

fn long_header(length: usize) -> TraceError {
    TraceFault::TooMany {
        what: "bytes",
        got: length as u64,
        most: HEADER_BYTES_MAX as u64,
    }
    .at(HEADER)
}

fn column_name(column: usize) -> String {
    format!("column {}", COLUMNS[column].0)
}

/// The columns, rank after rank.
struct Columns<'a> {
    content: &'a [u8],
    position: usize,
}

impl<'a> Columns<'a> {
    fn rank(
        &mut self,
        rank: usize,
        count: usize,
        communicators: &[Vec<Vec<u16>>],
    ) -> Result<Vec<TraceRecord>, TraceError> {
        let mut starts = [0; COLUMNS.len()];
        let mut columns: [&'a [u8]; COLUMNS.len()] = [&[]; COLUMNS.len()];
        for (index, (_, _, width)) in COLUMNS.iter().enumerate() {
            // At most RECORDS_MAX records, so this can't overflow.
            let length = count * width;
            let left = &self.content[self.position..];
            let Some(column) = left.get(..length) else {
                let expected = length - left.len();
                let mut error = TraceFault::Torn { expected }.in_record(
                    column_name(index),
                    rank,
                    left.len() / width,
                );
                error.place.byte = Some(self.content.len());
                return Err(error);
            };
            starts[index] = self.position;
            columns[index] = column;
            self.position += length;
        }
        let fault_at = |fault: TraceFault, column: usize, index: usize| {
            let mut error = fault.in_record(column_name(column), rank, index);
            error.place.byte = Some(starts[column] + index * COLUMNS[column].2);
            error
        };
        let mut records = Vec::with_capacity(count);
        for index in 0..count {
            let four = |column: usize| u32::from_le_bytes(value(columns[column], index));
            let one = |column: usize| columns[column][index];
            let Some(operation) = Operation::from_code(one(OPERATION)) else {
                let got = one(OPERATION);
                return Err(fault_at(
                    TraceFault::UnknownOperation { got },
                    OPERATION,
                    index,
                ));
            };
            let peer = i16::from_le_bytes(value(columns[PEER], index));
            let record = TraceRecord {
                operation,
                peer: match peer {
                    -1 => None,
                    peer => match u16::try_from(peer) {
                        Ok(peer) => Some(peer),
                        Err(_) => {
                            let (got, ranks) = (i64::from(peer), communicators.len());
                            return Err(fault_at(
                                TraceFault::NoSuchPeer { got, ranks },
                                PEER,
                                index,
                            ));
                        }
                    },
                },
                communicator: one(COMMUNICATOR),
                tag: four(3) as i32,
                bytes: four(4),
                request: four(5),
                gap_ns: u64::from(four(GAP)) | u64::from(one(GAP + 1)) << 32,
                entry_us: four(8),
                duration_us: four(9),
            };
            if let Some((field, fault)) = record.fault(rank, communicators) {
                let column = match field {
                    Field::Communicator => COMMUNICATOR,
                    Field::Peer => PEER,
                    Field::Gap => GAP,
                };
                return Err(fault_at(fault, column, index));
            }
            records.push(record);
        }
        Ok(records)
    }
}

/// The value at that index of a column, which is long enough.
fn value<const WIDTH: usize>(column: &[u8], index: usize) -> [u8; WIDTH] {
    let mut value = [0; WIDTH];
    value.copy_from_slice(&column[index * WIDTH..(index + 1) * WIDTH]);
    value
}

fn write_columns(content: &mut Vec<u8>, records: &[TraceRecord]) {
    content.extend(records.iter().map(|record| record.operation.code()));
    content.extend(records.iter().map(|record| record.communicator));
    for record in records {
        // A peer is below RANKS_MAX, so it keeps its sign.
        let peer = record.peer.map_or(-1, |peer| peer as i16);
        content.extend(peer.to_le_bytes());
    }
    for record in records {
        content.extend(record.tag.to_le_bytes());
    }
    let mut numbers = |number: fn(&TraceRecord) -> u32| {
        for record in records {
            content.extend(number(record).to_le_bytes());
        }
    };
    numbers(|record| record.bytes);
    numbers(|record| record.request);
    numbers(|record| record.gap_ns as u32);
    content.extend(records.iter().map(|record| (record.gap_ns >> 32) as u8));
    for record in records {
        content.extend(record.entry_us.to_le_bytes());
    }
    for record in records {
        content.extend(record.duration_us.to_le_bytes());
    }
}
