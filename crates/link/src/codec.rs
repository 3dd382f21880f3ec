//! Reading and writing big-endian fields, with every length checked before anything is taken.

use crate::error::CodecError;

/// Takes fields from the front of a message. Each call names what it reads, for the error.
pub(crate) struct Reader<'a> {
    bytes: &'a [u8],
}

impl<'a> Reader<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes }
    }

    pub(crate) fn take(
        &mut self,
        what: &'static str,
        count: usize,
    ) -> Result<&'a [u8], CodecError> {
        let Some((taken, rest)) = self.bytes.split_at_checked(count) else {
            return Err(CodecError::Short {
                what,
                got: self.bytes.len(),
                expected: count,
            });
        };
        self.bytes = rest;
        Ok(taken)
    }

    pub(crate) fn array<const N: usize>(
        &mut self,
        what: &'static str,
    ) -> Result<[u8; N], CodecError> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(what, N)?);
        Ok(array)
    }

    pub(crate) fn u8(&mut self, what: &'static str) -> Result<u8, CodecError> {
        Ok(u8::from_be_bytes(self.array(what)?))
    }

    pub(crate) fn u16(&mut self, what: &'static str) -> Result<u16, CodecError> {
        Ok(u16::from_be_bytes(self.array(what)?))
    }

    pub(crate) fn u32(&mut self, what: &'static str) -> Result<u32, CodecError> {
        Ok(u32::from_be_bytes(self.array(what)?))
    }

    pub(crate) fn u64(&mut self, what: &'static str) -> Result<u64, CodecError> {
        Ok(u64::from_be_bytes(self.array(what)?))
    }

    pub(crate) fn u128(&mut self, what: &'static str) -> Result<u128, CodecError> {
        Ok(u128::from_be_bytes(self.array(what)?))
    }

    /// Text with its length in two bytes; control characters are refused, because it ends up in logs.
    pub(crate) fn text(&mut self, what: &'static str, limit: usize) -> Result<&'a str, CodecError> {
        let length = usize::from(self.u16(what)?);
        if length > limit {
            return Err(over(what, length as u64, limit as u64));
        }
        let bytes = self.take(what, length)?;
        match core::str::from_utf8(bytes) {
            Ok(text) if is_plain(text) => Ok(text),
            _ => Err(CodecError::Text { what }),
        }
    }

    /// How many bytes are left.
    pub(crate) fn remaining(&self) -> usize {
        self.bytes.len()
    }

    /// What is left.
    pub(crate) fn rest(self) -> &'a [u8] {
        self.bytes
    }

    /// Nothing may be left.
    pub(crate) fn end(self, what: &'static str) -> Result<(), CodecError> {
        if self.bytes.is_empty() {
            Ok(())
        } else {
            Err(CodecError::Trailing {
                what,
                bytes: self.bytes.len(),
            })
        }
    }
}

/// Appends text with its length in two bytes.
pub(crate) fn put_text(
    out: &mut Vec<u8>,
    what: &'static str,
    text: &str,
    limit: usize,
) -> Result<(), CodecError> {
    if text.len() > limit {
        return Err(over(what, text.len() as u64, limit as u64));
    }
    if !is_plain(text) {
        return Err(CodecError::Text { what });
    }
    let length =
        u16::try_from(text.len()).map_err(|_| over(what, text.len() as u64, limit as u64))?;
    out.extend_from_slice(&length.to_be_bytes());
    out.extend_from_slice(text.as_bytes());
    Ok(())
}

/// Cuts text at a limit, at a character's border, and replaces what `put_text` would refuse.
pub(crate) fn fitting_text(text: &str, limit: usize) -> String {
    let mut fitting: String = text
        .chars()
        .take(limit)
        .map(|character| if allowed(character) { character } else { ' ' })
        .collect();
    while fitting.len() > limit {
        fitting.pop();
    }
    fitting
}

pub(crate) fn over(what: &'static str, got: u64, limit: u64) -> CodecError {
    CodecError::Limit { what, got, limit }
}

fn is_plain(text: &str) -> bool {
    text.chars().all(allowed)
}

fn allowed(character: char) -> bool {
    !character.is_control() || character == '\n'
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_that_does_not_fit_is_cut_at_a_character() {
        assert_eq!(fitting_text("aüü", 4), "aü");
        assert_eq!(fitting_text("a\u{1b}b", 10), "a b");
    }

    #[test]
    fn control_characters_are_refused_both_ways() {
        let mut out = Vec::new();
        assert!(put_text(&mut out, "text", "a\u{7}", 10).is_err());
        assert!(Reader::new(b"\0\x01\x07").text("text", 10).is_err());
        assert!(Reader::new(b"\0\x02ab").text("text", 1).is_err());
        assert_eq!(Reader::new(b"\0\x02ab").text("text", 2), Ok("ab"));
    }
}
