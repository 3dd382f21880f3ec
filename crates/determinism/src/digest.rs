//! A number for everything that happened, in its order.

/// Like FNV-1a, but a word at a time and turned after each, so that high bits count as well: tells runs apart that
/// should be equal. Not for secrets, and not against people.
#[derive(Clone, Debug)]
pub struct RunDigest(u64);

impl Default for RunDigest {
    fn default() -> Self {
        Self(0xCBF2_9CE4_8422_2325)
    }
}

impl RunDigest {
    /// Takes bytes in, and how many there are.
    pub fn bytes(&mut self, bytes: &[u8]) {
        let (words, rest) = bytes.as_chunks();
        for word in words {
            self.word(u64::from_le_bytes(*word));
        }
        if !rest.is_empty() {
            let mut word = [0; 8];
            word[..rest.len()].copy_from_slice(rest);
            self.word(u64::from_le_bytes(word));
        }
        self.word(bytes.len() as u64);
    }

    /// Takes a number in.
    pub fn word(&mut self, word: u64) {
        self.0 = (self.0 ^ word)
            .wrapping_mul(0x0000_0100_0000_01B3)
            .rotate_left(29);
    }

    /// The number for everything so far.
    pub fn value(&self) -> u64 {
        self.0
    }
}
