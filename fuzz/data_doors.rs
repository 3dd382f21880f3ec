//! The doors for plain data: what answers of strangers are. The fuzz targets push bytes through them, and so does
//! `crates/data/tests/corpus.rs` with the kept corpus.
//!
//! No reader may panic, whatever the bytes; what is taken can be walked over to its end, and comes back when it is written.

#![allow(dead_code, reason = "each target goes through one of the doors")]

use exoskel_data::limits::{MEMORY_BYTES_MIN, MEMORY_PER_BYTE_MAX};
use exoskel_data::{Checked, CheckedException, DataItem, Fault, Reader, Writer};

/// A value with its bulk parts: how many parts, the length of each as u16, the parts, and the record.
pub(crate) fn data(bytes: &[u8]) {
    let (body, parts) = split(bytes);
    match Checked::new(body, &parts) {
        Ok(checked) => {
            let again = written(checked.reader());
            assert_eq!(written(Reader::new(&again)), again);
            // The shortest heads may make a message too short for what it weighs, and nothing else.
            if let Err(fault) = Checked::new(&again, &parts) {
                assert!(again.len() < body.len(), "{fault}");
                assert!(matches!(fault, Fault::Memory { .. } | Fault::Limit { .. }));
            }
        }
        Err(Fault::Memory { maximum, message }) => {
            assert_eq!(maximum, MEMORY_BYTES_MIN + MEMORY_PER_BYTE_MAX * message);
        }
        Err(fault) => assert!(!fault.to_string().is_empty()),
    }
}

/// The record of an exception.
pub(crate) fn data_exception(bytes: &[u8]) {
    if let Ok(exception) = CheckedException::new(bytes) {
        let text = exception.traceback.iter().map(|line| line.len());
        assert!(text.sum::<usize>() + exception.text.len() + exception.kind.len() <= bytes.len());
        assert!(!written(exception.data.reader()).is_empty());
    }
}

fn split(bytes: &[u8]) -> (&[u8], Vec<&[u8]>) {
    let Some((count, mut rest)) = bytes.split_first() else {
        return (bytes, Vec::new());
    };
    let mut parts = Vec::new();
    for _ in 0..*count % 4 {
        let Some((length, behind)) = rest.split_first_chunk() else {
            break;
        };
        let length = usize::from(u16::from_be_bytes(*length)).min(behind.len());
        let (part, behind) = behind.split_at(length);
        parts.push(part);
        rest = behind;
    }
    (rest, parts)
}

/// All items of a value that was taken, each with the shortest head.
fn written(mut reader: Reader<'_>) -> Vec<u8> {
    let mut writer = Writer::default();
    while reader.remaining() > 0 {
        match reader.next_item().expect("it was read before") {
            DataItem::Null => writer.null(),
            DataItem::Boolean(value) => writer.boolean(value),
            DataItem::Integer(value) => writer.integer(value),
            DataItem::Unsigned(value) => writer.unsigned(value),
            // The writer has no such integers, because they have a second form. Any other one stands where they may.
            DataItem::Negative(_) => writer.integer(i64::MIN),
            DataItem::Float(value) => writer.float(value),
            DataItem::Text(text) => writer.text(std::str::from_utf8(text).expect("it was checked")),
            DataItem::Bytes(bytes) => writer.bytes(bytes),
            DataItem::Array(count) => writer.array(count),
            DataItem::Map(count) => writer.map(count),
            DataItem::Tag(tag) => writer.tag(tag),
        }
    }
    writer.as_bytes().to_vec()
}
