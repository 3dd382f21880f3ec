//! What streams and regions say in the heads of their messages. No plain data begins with their mark, so that nobody takes one for the
//! other; and failures, which are plain data everywhere: a kind and a text.

use std::fmt;

use bytes::Bytes;
use exoskel_identity::PeerText;

use super::MessageContents;

/// The first byte of a head that is no plain data: a break, with which nothing can begin.
pub const MARK: u8 = 0xff;

/// Bytes of a failure's kind that are shown, at most.
const KIND_BYTES_MAX: usize = 100;

/// Bytes of a failure's text that are shown, at most.
const TEXT_BYTES_MAX: usize = 4096;

/// Why something came to nothing at the other end, as its program says it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerFailure {
    /// The class of the exception there.
    pub kind: String,
    /// Its text.
    pub text: String,
}

impl PeerFailure {
    /// A failure of this kind.
    #[must_use]
    pub fn new(kind: &str, text: impl Into<String>) -> Self {
        Self {
            kind: kind.to_owned(),
            text: text.into(),
        }
    }

    /// As a message's contents: an array of two texts.
    #[must_use]
    pub fn contents(&self) -> MessageContents {
        let mut head = vec![0x82];
        for (text, maximum) in [(&self.kind, KIND_BYTES_MAX), (&self.text, TEXT_BYTES_MAX)] {
            let text = shortened(text, maximum);
            head.push(0x79);
            head.extend((text.len() as u16).to_be_bytes());
            head.extend(text.as_bytes());
        }
        MessageContents {
            head: head.into(),
            bulk: Vec::new(),
            is_gathered: false,
        }
    }

    /// Reads one. What is none says so itself.
    #[must_use]
    pub fn read(head: &[u8]) -> Self {
        let whole = || {
            let rest = head.strip_prefix(&[0x82])?;
            let (kind, rest) = text_item(rest)?;
            let (text, rest) = text_item(rest)?;
            rest.is_empty().then(|| Self {
                kind: shortened(kind, KIND_BYTES_MAX).to_owned(),
                text: shortened(text, TEXT_BYTES_MAX).to_owned(),
            })
        };
        whole().unwrap_or_else(|| {
            Self::new(
                "Exception",
                "the other end failed, and its reason can't be read",
            )
        })
    }
}

impl fmt::Display for PeerFailure {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = |text| PeerText::new(text).own_sentence();
        write!(formatter, "{}: {}", shown(&self.kind), shown(&self.text))
    }
}

/// A text of plain data, and what is behind it.
fn text_item(bytes: &[u8]) -> Option<(&str, &[u8])> {
    let (&first, rest) = bytes.split_first()?;
    let (length, rest) = match first {
        0x60..=0x77 => (usize::from(first - 0x60), rest),
        0x78 => {
            let (&length, rest) = rest.split_first()?;
            (usize::from(length), rest)
        }
        0x79 => {
            let (length, rest) = rest.split_first_chunk::<2>()?;
            (usize::from(u16::from_be_bytes(*length)), rest)
        }
        _ => return None,
    };
    let (text, rest) = rest.split_at_checked(length)?;
    Some((std::str::from_utf8(text).ok()?, rest))
}

fn shortened(text: &str, maximum: usize) -> &str {
    let mut end = text.len().min(maximum);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

/// Takes numbers from the front of a head.
pub(super) struct HeadReader<'a>(&'a [u8]);

impl<'a> HeadReader<'a> {
    /// Behind the mark, if that is there.
    pub(super) fn new(head: &'a [u8]) -> Option<Self> {
        head.strip_prefix(&[MARK]).map(Self)
    }

    pub(super) fn byte(&mut self) -> Option<u8> {
        let (&byte, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(byte)
    }

    pub(super) fn number(&mut self) -> Option<u64> {
        let (number, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u64::from_be_bytes(*number))
    }

    pub(super) fn text(&mut self, maximum: usize) -> Option<String> {
        let (length, rest) = self.0.split_first_chunk::<2>()?;
        let length = usize::from(u16::from_be_bytes(*length));
        let (text, rest) = rest.split_at_checked(length)?;
        self.0 = rest;
        let text = std::str::from_utf8(text).ok()?;
        (length <= maximum).then(|| text.to_owned())
    }

    pub(super) fn is_at_end(&self) -> bool {
        self.0.is_empty()
    }
}

/// Appends what [`HeadReader`] takes.
pub(super) struct HeadWriter(Vec<u8>);

impl HeadWriter {
    pub(super) fn new(first: u8) -> Self {
        Self(vec![MARK, first])
    }

    pub(super) fn byte(mut self, byte: u8) -> Self {
        self.0.push(byte);
        self
    }

    pub(super) fn number(mut self, number: u64) -> Self {
        self.0.extend(number.to_be_bytes());
        self
    }

    pub(super) fn text(mut self, text: &str, maximum: usize) -> Self {
        let text = shortened(text, maximum);
        self.0.extend((text.len() as u16).to_be_bytes());
        self.0.extend(text.as_bytes());
        self
    }

    pub(super) fn head(self) -> Bytes {
        self.0.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_come_through() {
        let long = "ä".repeat(5000);
        for text in ["", "short", "a text of more than twenty-three bytes", &long] {
            let read = PeerFailure::read(&PeerFailure::new("ValueError", text).contents().head);
            assert_eq!(read.kind, "ValueError");
            assert!(text.starts_with(&read.text) && read.text.len() <= TEXT_BYTES_MAX);
        }
    }

    #[test]
    fn what_is_no_failure_is_told() {
        for head in [
            &b""[..],
            b"\x82",
            b"\x82\x61a",
            b"\x82\x61a\x79\xff\xff",
            b"\x82\x61\xff\x60",
            b"\x82\x60\x60\x60",
        ] {
            assert!(
                PeerFailure::read(head).text.contains("can't be read"),
                "{head:?}"
            );
        }
    }
}
