//! Strict DER: every value has the one spelling that X.690 and RFC 5280 leave it.
//!
//! The parsers of this crate take some of BER too. Whoever reads something signed walks over it here before it believes
//! what they found, so that no two readers can see two things in the same bytes.

use std::ops::Range;

use thiserror::Error;

use crate::limits::DER_NESTING_MAX;

const BOOLEAN: u8 = 1;
const INTEGER: u8 = 2;
const BIT_STRING: u8 = 3;
const NULL: u8 = 5;
const OBJECT_IDENTIFIER: u8 = 6;
const ENUMERATED: u8 = 10;
/// `SEQUENCE` and `SEQUENCE OF`.
pub(crate) const SEQUENCE: u8 = 16;
const SET: u8 = 17;
const UTC_TIME: u8 = 23;
const GENERALIZED_TIME: u8 = 24;

/// Bytes that are not DER. Whoever wrote the structure must write it anew.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("got {got} at byte {at} of the {what}, expected {expected}")]
pub struct NotDer {
    /// What was read.
    pub what: &'static str,
    /// The first byte of the value, from 0.
    pub at: usize,
    /// What stands there.
    pub got: String,
    /// What DER has in its place.
    pub expected: &'static str,
}

/// Checks that `bytes` are one value in DER, with all values inside it. What stands in octet strings and bit strings is
/// not looked into. `what` is what the value is called, for the error.
///
/// Three things that DER asks for are not: the order in sets, the characters of texts, and that nobody writes down what is the
/// default. Certificates in use break them, and each has one meaning all the same.
///
/// # Errors
/// [`NotDer`] names the value's place, its fault, and what was expected.
pub(crate) fn check(bytes: &[u8], what: &'static str) -> Result<(), NotDer> {
    let fault = |at: usize, fault: DerFault| NotDer {
        what,
        at,
        got: fault.got,
        expected: fault.expected,
    };
    let mut ends = vec![bytes.len()];
    let mut at = 0;
    loop {
        let end = *ends.last().unwrap_or(&bytes.len());
        if at == end {
            ends.pop();
            if ends.is_empty() {
                return Ok(());
            }
            continue;
        }
        if ends.len() == 1 && at > 0 {
            let got = format!("{} bytes after the value", end - at);
            return Err(fault(at, DerFault::of(got, "none")));
        }
        let (header, rest) =
            TagAndLength::read(&bytes[at..end]).map_err(|found| fault(at, found))?;
        let content = &rest[..header.length];
        header.check(content).map_err(|found| fault(at, found))?;
        let start = end - rest.len();
        if header.is_constructed {
            if ends.len() > DER_NESTING_MAX {
                let got = format!("a value {} levels deep", ends.len());
                return Err(fault(at, DerFault::of(got, "fewer levels")));
            }
            ends.push(start + header.length);
            at = start;
        } else {
            at = start + header.length;
        }
    }
}

/// The content of the universal value of that tag at the beginning of `bytes`, and what follows it; nothing where there is
/// none, or one with a header that is not DER.
pub(crate) fn value(bytes: &[u8], tag: u8) -> Option<(&[u8], &[u8])> {
    let (header, rest) = TagAndLength::read(bytes).ok()?;
    let is_constructed = matches!(tag, SEQUENCE | SET);
    let is_meant =
        header.class == 0 && header.number == tag && header.is_constructed == is_constructed;
    is_meant.then(|| rest.split_at(header.length))
}

/// The signature's or the key's bytes: a `BIT STRING` of whole bytes, and what follows it.
pub(crate) fn whole_bits(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    match value(bytes, BIT_STRING)? {
        // The first byte counts unused bits, of which there are none.
        ([0, bits @ ..], rest) => Some((bits, rest)),
        _ => None,
    }
}

/// A non-negative integer without a leading zero, and what follows it; nothing for a negative one.
pub(crate) fn natural(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    match value(bytes, INTEGER)? {
        ([0x80..=0xff, ..], _) => None,
        ([0, digits @ ..], rest) | (digits, rest) => Some((digits, rest)),
    }
}

/// Whether the value at the beginning of `bytes` has a header that is DER.
pub(crate) fn has_strict_header(bytes: &[u8]) -> bool {
    TagAndLength::read(bytes).is_ok()
}

/// Tag and length of one value.
struct TagAndLength {
    /// 0 for the universal tags.
    class: u8,
    is_constructed: bool,
    number: u8,
    /// Bytes of the content, which are there.
    length: usize,
}

/// What is wrong with a value.
struct DerFault {
    got: String,
    expected: &'static str,
}

impl DerFault {
    fn of(got: impl Into<String>, expected: &'static str) -> Self {
        Self {
            got: got.into(),
            expected,
        }
    }
}

impl TagAndLength {
    /// Reads a header. Returns it with what follows it: the content first.
    fn read(bytes: &[u8]) -> Result<(Self, &[u8]), DerFault> {
        let cut = || DerFault::of("the beginning of a value", "a whole one");
        let [tag, first, rest @ ..] = bytes else {
            return Err(cut());
        };
        if tag & 0x1f == 0x1f {
            return Err(DerFault::of("a tag of several bytes", "one of X.509"));
        }
        let (length, rest) = match first {
            0..0x80 => (usize::from(*first), rest),
            0x80 => return Err(DerFault::of("an indefinite length", "a definite one")),
            0x85..=0xff => return Err(DerFault::of("a length of 5 or more bytes", "at most 4")),
            _ => {
                let size = usize::from(first & 0x7f);
                let (digits, rest) = rest.split_at_checked(size).ok_or_else(cut)?;
                let length = digits
                    .iter()
                    .fold(0, |length, digit| length << 8 | usize::from(*digit));
                if digits[0] == 0 || length < 0x80 {
                    let got = format!("the length {length} in {} bytes", size + 1);
                    return Err(DerFault::of(got, "the shortest form"));
                }
                (length, rest)
            }
        };
        if length > rest.len() {
            let got = format!("a value of {length} bytes where {} are left", rest.len());
            return Err(DerFault::of(got, "a whole one"));
        }
        let header = Self {
            class: tag >> 6,
            is_constructed: tag & 0x20 != 0,
            number: tag & 0x1f,
            length,
        };
        Ok((header, rest))
    }

    /// Whether the value has the one spelling of its kind. What a tag of another class stands for is not known here.
    fn check(&self, content: &[u8]) -> Result<(), DerFault> {
        if self.class != 0 {
            return Ok(());
        }
        // EXTERNAL, EMBEDDED PDV and CHARACTER STRING are constructed as well.
        let must_be_constructed = matches!(self.number, SEQUENCE | SET | 8 | 11 | 29);
        if self.is_constructed != must_be_constructed {
            return Err(match must_be_constructed {
                true => DerFault::of("a SEQUENCE or SET in one piece", "a constructed one"),
                false => DerFault::of(
                    format!("a value of the tag {} in parts", self.number),
                    "one in one piece",
                ),
            });
        }
        match self.number {
            0 => Err(DerFault::of("an end-of-contents mark", "a value")),
            BOOLEAN => match content {
                [0x00 | 0xff] => Ok(()),
                _ => Err(DerFault::of(
                    format!("a BOOLEAN {}", shown(content)),
                    "00 or ff",
                )),
            },
            INTEGER | ENUMERATED => match content {
                [] => Err(DerFault::of(
                    "an INTEGER without content",
                    "one byte at least",
                )),
                [0x00, 0x00..0x80, ..] | [0xff, 0x80..=0xff, ..] => Err(DerFault::of(
                    format!("an INTEGER {}", shown(content)),
                    "the shortest form",
                )),
                _ => Ok(()),
            },
            BIT_STRING => match content {
                [0, ..] => Ok(()),
                [unused @ 1..8, .., last] if last.trailing_zeros() >= u32::from(*unused) => Ok(()),
                _ => Err(DerFault::of(
                    "a BIT STRING with unused bits that are not 0 to 7 zeros",
                    "zeros",
                )),
            },
            NULL if !content.is_empty() => Err(DerFault::of("a NULL with content", "an empty one")),
            OBJECT_IDENTIFIER => check_identifier(content),
            UTC_TIME => check_time(content, 12, "YYMMDDHHMMSSZ"),
            GENERALIZED_TIME => check_time(content, 14, "YYYYMMDDHHMMSSZ"),
            _ => Ok(()),
        }
    }
}

/// Each number of an object identifier ends with a byte below 0x80, and starts with none of 0x80, which is a leading zero.
fn check_identifier(content: &[u8]) -> Result<(), DerFault> {
    let (mut is_start, mut is_shortest) = (true, true);
    for &byte in content {
        is_shortest &= !is_start || byte != 0x80;
        is_start = byte < 0x80;
    }
    match content {
        [_, ..] if is_start && is_shortest => Ok(()),
        _ => Err(DerFault::of(
            format!("an OBJECT IDENTIFIER {}", shown(content)),
            "whole numbers in the shortest form",
        )),
    }
}

/// RFC 5280 section 4.1.2.5: with seconds, in Greenwich Mean Time, without fractions.
fn check_time(content: &[u8], digits: usize, form: &'static str) -> Result<(), DerFault> {
    match content {
        [number @ .., b'Z'] if number.len() == digits && number.iter().all(u8::is_ascii_digit) => {
            Ok(())
        }
        _ => Err(DerFault::of(
            format!(
                "the time \"{}\"",
                content
                    .escape_ascii()
                    .take(TIME_SHOWN_MAX)
                    .map(char::from)
                    .collect::<String>()
            ),
            form,
        )),
    }
}

/// Characters of a bad time that an error repeats: more than any form of a time has.
const TIME_SHOWN_MAX: usize = 40;

/// The first bytes of a content, for people.
fn shown(content: &[u8]) -> String {
    const BYTES: usize = 8;
    let mut shown = crate::hex::hex(&content[..content.len().min(BYTES)]);
    if content.is_empty() {
        shown.push_str("without content");
    } else if content.len() > BYTES {
        shown.push('…');
    }
    shown
}

/// A number without the zeros that it may be padded with.
pub(crate) fn without_leading_zeros(number: &[u8]) -> &[u8] {
    let zeros = number.iter().take_while(|byte| **byte == 0).count();
    &number[zeros..]
}

/// Where `part`, which was cut out of `whole`, lies in it.
pub(crate) fn range_in(whole: &[u8], part: &[u8]) -> Range<usize> {
    let start = part.as_ptr().addr() - whole.as_ptr().addr();
    start..start + part.len()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn fault(bytes: &[u8]) -> String {
        check(bytes, "value").unwrap_err().to_string()
    }

    #[test]
    fn one_spelling_is_read() {
        for good in [
            &[0x30, 0][..],
            &[1, 1, 0],
            &[1, 1, 0xff],
            &[2, 1, 0],
            &[2, 2, 0, 0x80],
            &[2, 2, 0xff, 0x7f],
            &[2, 1, 0x80],
            &[3, 1, 0],
            &[3, 2, 5, 0xa0],
            &[5, 0],
            &[6, 3, 0x2a, 0x86, 0x48],
            b"\x17\x0d260101000000Z",
            b"\x18\x0f20260101000000Z",
            &[0x30, 5, 0x31, 3, 2, 1, 1],
            // What a tag of another class means is not known.
            &[0x82, 0],
        ] {
            assert_eq!(check(good, "value"), Ok(()), "{good:02x?}");
        }
        let long = [&[0x04, 0x81, 0x80][..], &[0; 0x80]].concat();
        assert_eq!(check(&long, "value"), Ok(()));
    }

    #[test]
    fn every_other_spelling_is_refused() {
        for bad in [
            // Lengths.
            &[0x30, 0x80, 0, 0][..],
            &[0x04, 0x81, 1, 0],
            &[0x04, 0x82, 0, 1, 0],
            &[0x04, 0x85, 0, 0, 0, 0, 1, 0],
            &[0x04, 2, 0],
            &[0x04],
            &[0x04, 0x82, 1],
            // Tags.
            &[0x00, 0],
            &[0x1f, 0x20, 0],
            &[0x10, 0],
            &[0x24, 2, 4, 0],
            &[0x22, 1, 0],
            // Contents.
            &[1, 0],
            &[1, 1, 1],
            &[1, 2, 0, 0],
            &[2, 0],
            &[2, 2, 0, 1],
            &[2, 2, 0xff, 0x80],
            &[10, 2, 0, 1],
            &[3, 0],
            &[3, 1, 1],
            &[3, 2, 8, 0],
            &[3, 2, 5, 0x10],
            &[5, 1, 0],
            &[6, 0],
            &[6, 2, 0x2a, 0x86],
            &[6, 3, 0x2a, 0x80, 1],
            b"\x17\x0b2601010000Z",
            b"\x17\x11260101000000+0000",
            b"\x17\x0c260101000000",
            b"\x17\x0d26010100000xZ",
            b"\x18\x1120260101000000.5Z",
            b"\x18\x1320260101000000+0000",
            // Behind and inside.
            &[5, 0, 5, 0],
            &[0x30, 2, 2, 0],
            &[0xa0, 3, 1, 1, 7],
            &[0x30, 2, 5, 1],
        ] {
            assert!(check(bad, "value").is_err(), "{bad:02x?}");
        }
    }

    #[test]
    fn a_fault_says_where_it_is_and_what_was_expected() {
        assert_eq!(
            fault(&[0x30, 4, 2, 2, 0, 1]),
            "got an INTEGER 0001 at byte 2 of the value, expected the shortest form"
        );
        assert_eq!(
            fault(b"\x17\x0b26010100\"0Z"),
            "got the time \"26010100\\\"0Z\" at byte 0 of the value, expected YYMMDDHHMMSSZ"
        );
        let mut deep = Vec::new();
        for _ in 0..=DER_NESTING_MAX {
            let length = u8::try_from(deep.len()).unwrap();
            deep.splice(0..0, [0x30, length]);
        }
        assert!(fault(&deep).contains("33 levels deep"), "{}", fault(&deep));
        assert_eq!(check(&deep[2..], "value"), Ok(()));
    }

    proptest! {
        #[test]
        fn any_bytes_are_der_or_not(bytes: Vec<u8>) {
            let _ = check(&bytes, "value");
        }
    }
}
