//! A program as a slot is told of it.

use std::time::Duration;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use exoskel_flow::SegmentStep;

use super::{Call, ItemRules, SegmentEnding, SegmentFunctions, ToSlot, get_digest};

/// What is done, by the numbers that they have in messages.
const STEPS: [SegmentStep; 15] = [
    SegmentStep::Call,
    SegmentStep::Split { calls: false },
    SegmentStep::Split { calls: true },
    SegmentStep::Join { calls: false },
    SegmentStep::Join { calls: true },
    SegmentStep::Until,
    SegmentStep::Fold,
    SegmentStep::Combine,
    SegmentStep::CombineInitial,
    SegmentStep::Divide,
    SegmentStep::Resume,
    SegmentStep::Carry,
    SegmentStep::Scan,
    SegmentStep::ScanInitial,
    SegmentStep::Feedback,
];

pub(super) fn put_define(
    out: &mut BytesMut,
    streams: [u32; 2],
    call: Call,
    rules: ItemRules,
    segments: &[SegmentFunctions],
) {
    streams.iter().for_each(|stream| out.put_u32(*stream));
    out.put_u8(u8::from(call == Call::Arguments));
    let timeout = rules.timeout.map_or(0, |timeout| timeout.as_nanos().max(1));
    out.put_u64(u64::try_from(timeout).unwrap_or(u64::MAX));
    out.put_u8(u8::from(rules.retries_on.is_some()));
    if let Some(digest) = rules.retries_on {
        out.put_slice(&digest);
    }
    for segment in segments {
        put_segment(out, segment);
    }
}

pub(super) fn read_define(mut head: Bytes) -> Option<ToSlot> {
    let stream = head.try_get_u32().ok()?;
    let first_stream = head.try_get_u32().ok()?;
    let call = match head.try_get_u8().ok()? {
        0 => Call::Item,
        1 => Call::Arguments,
        _ => return None,
    };
    let timeout = match head.try_get_u64().ok()? {
        0 => None,
        nanos => Some(Duration::from_nanos(nanos)),
    };
    let retries_on = match head.try_get_u8().ok()? {
        0 => None,
        1 => {
            let mut digest = [0; 32];
            head.try_copy_to_slice(&mut digest).ok()?;
            Some(digest)
        }
        _ => return None,
    };
    let mut segments = Vec::new();
    while head.has_remaining() {
        segments.push(read_segment(&mut head)?);
    }
    Some(ToSlot::Define {
        stream,
        first_stream,
        call,
        rules: ItemRules {
            timeout,
            retries_on,
        },
        segments,
    })
}

fn put_segment(out: &mut BytesMut, segment: &SegmentFunctions) {
    out.put_u8(u8::from(segment.serial) | u8::from(segment.for_user) << 1);
    match segment.ending {
        SegmentEnding::Next => out.put_u8(0),
        SegmentEnding::Expand { after } => {
            out.put_u8(1);
            out.put_u16(after.unwrap_or(0));
        }
        SegmentEnding::Repeat { from, at_most } => {
            out.put_u8(2);
            out.put_u16(from);
            out.put_u32(at_most.unwrap_or(0));
        }
        SegmentEnding::Fold => out.put_u8(3),
    }
    out.put_u32(u32::try_from(segment.steps.len()).unwrap_or(u32::MAX));
    for step in &segment.steps {
        let number = STEPS.iter().position(|known| known == step);
        // All are in the list.
        out.put_u8(number.map_or(u8::MAX, |number| number as u8));
    }
    for digest in &segment.functions {
        out.put_slice(digest);
    }
}

fn read_segment(head: &mut Bytes) -> Option<SegmentFunctions> {
    let flags = head.try_get_u8().ok()?;
    let (serial, for_user) = (flags & 1 != 0, flags & 2 != 0);
    let ending = match head.try_get_u8().ok()? {
        0 => SegmentEnding::Next,
        1 => SegmentEnding::Expand {
            after: Some(head.try_get_u16().ok()?).filter(|after| *after > 0),
        },
        2 => SegmentEnding::Repeat {
            from: head.try_get_u16().ok()?,
            at_most: Some(head.try_get_u32().ok()?).filter(|rounds| *rounds > 0),
        },
        3 => SegmentEnding::Fold,
        _ => return None,
    };
    let count = head.try_get_u32().ok()? as usize;
    if head.remaining() < count {
        return None;
    }
    let mut steps = Vec::with_capacity(count);
    for number in head.split_to(count) {
        steps.push(*STEPS.get(usize::from(number))?);
    }
    let count: usize = steps.iter().map(|step| step.functions()).sum();
    if head.remaining() / 32 < count {
        return None;
    }
    let functions = (0..count).map(|_| get_digest(head)).collect();
    Some(SegmentFunctions {
        serial,
        ending,
        for_user,
        steps,
        functions,
    })
}
