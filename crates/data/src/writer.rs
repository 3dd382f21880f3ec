//! Items to bytes. The results of the encoder are left alone: a vector takes everything.

use minicbor::Encoder;
use minicbor::data::Tag;

/// Appends items. What a container's head announces, the caller appends behind it.
#[derive(Debug, Default)]
pub struct Writer {
    bytes: Vec<u8>,
}

impl Writer {
    /// Null.
    pub fn null(&mut self) {
        self.bytes.push(0xf6);
    }

    /// A boolean.
    pub fn boolean(&mut self, value: bool) {
        self.bytes.push(0xf4 | u8::from(value));
    }

    /// An integer, in the fewest bytes.
    #[inline]
    pub fn integer(&mut self, value: i64) {
        match value {
            // One byte, and the commonest.
            0..=23 => self.bytes.push(value as u8),
            -24..=-1 => self.bytes.push(0x20 | (-1 - value) as u8),
            _ => {
                let _ = Encoder::new(&mut self.bytes).i64(value);
            }
        }
    }

    /// An integer from 2^63 on, or any other that isn't negative.
    pub fn unsigned(&mut self, value: u64) {
        let _ = Encoder::new(&mut self.bytes).u64(value);
    }

    /// A float of 64 bits.
    pub fn float(&mut self, value: f64) {
        self.bytes.push(0xfb);
        self.bytes.extend_from_slice(&value.to_be_bytes());
    }

    /// Text.
    pub fn text(&mut self, text: &str) {
        let _ = Encoder::new(&mut self.bytes).str(text);
    }

    /// Bytes.
    pub fn bytes(&mut self, bytes: &[u8]) {
        let _ = Encoder::new(&mut self.bytes).bytes(bytes);
    }

    /// The head of an array of so many values.
    pub fn array(&mut self, count: u64) {
        let _ = Encoder::new(&mut self.bytes).array(count);
    }

    /// The head of a map of so many pairs.
    pub fn map(&mut self, count: u64) {
        let _ = Encoder::new(&mut self.bytes).map(count);
    }

    /// A tag.
    pub fn tag(&mut self, tag: u64) {
        let _ = Encoder::new(&mut self.bytes).tag(Tag::new(tag));
    }

    /// Bytes so far.
    #[must_use]
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Whether nothing was written.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// What was written.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Starts anew; the memory stays.
    pub fn clear(&mut self) {
        self.bytes.clear();
    }

    /// Forgets what was written behind the first `length` bytes.
    pub fn truncate(&mut self, length: usize) {
        self.bytes.truncate(length);
    }
}
