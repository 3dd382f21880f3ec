//! What two ends on one host say to each other about memory that they could share: whether they are willing, and which memory it is.
//!
//! It is said behind Accept, inside of TLS, so that nobody between the two can put other memory in its place.

use core::fmt;

use exoskel_identity::PeerText;

use crate::codec::Reader;
use crate::error::CodecError;

/// The property of a node that is willing.
pub(super) const WILLING: (&str, &str) = ("shared memory", "1");

/// Which memory it is. While somebody has it open no other on the machine has this name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryName {
    /// The kernel's number of the device that it stands on.
    pub device: u64,
    /// Its inode there.
    pub inode: u64,
    /// Its size in bytes.
    pub bytes: u64,
}

impl fmt::Display for MemoryName {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            device,
            inode,
            bytes,
        } = self;
        write!(formatter, "{device:x}:{inode} of {bytes} bytes")
    }
}

impl MemoryName {
    /// The client's message behind Accept, and the server's answer: the memory that is to be shared, or that there is none.
    pub fn encode(memory: Option<Self>) -> Vec<u8> {
        let Some(memory) = memory else {
            return vec![0];
        };
        let mut out = vec![1];
        for number in [memory.device, memory.inode, memory.bytes] {
            out.extend_from_slice(&number.to_be_bytes());
        }
        out
    }

    /// Reads such a message.
    ///
    /// # Errors
    /// [`CodecError`] when it is malformed.
    pub fn read(bytes: &[u8]) -> Result<Option<Self>, CodecError> {
        let mut reader = Reader::new(bytes);
        let memory = match reader.u8("shared memory")? {
            0 => None,
            1 => Some(Self {
                device: reader.u64("device of shared memory")?,
                inode: reader.u64("inode of shared memory")?,
                bytes: reader.u64("size of shared memory")?,
            }),
            other => {
                return Err(CodecError::Unknown {
                    what: "shared memory",
                    got: other.into(),
                });
            }
        };
        reader.end("shared memory")?;
        Ok(memory)
    }
}

/// Whether what a node says of itself includes that it is willing.
pub(super) fn is_willing(properties: &[(PeerText, PeerText)]) -> bool {
    let (name, value) = WILLING;
    properties
        .iter()
        .any(|(of, said)| of.is(name) && said.is(value))
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn every_name_reads_back(numbers in proptest::option::of(any::<(u64, u64, u64)>())) {
            let memory = numbers.map(|(device, inode, bytes)| MemoryName { device, inode, bytes });
            let mut bytes = MemoryName::encode(memory);
            prop_assert_eq!(MemoryName::read(&bytes), Ok(memory));
            bytes.push(0);
            prop_assert!(MemoryName::read(&bytes).is_err());
        }

        /// What reads at all has one spelling.
        #[test]
        fn no_bytes_make_it_panic(code in 0_u8..3, rest in vec(any::<u8>(), 0..30)) {
            let mut bytes = vec![code];
            bytes.extend(rest);
            if let Ok(memory) = MemoryName::read(&bytes) {
                prop_assert_eq!(MemoryName::encode(memory), bytes);
            }
        }
    }
}
