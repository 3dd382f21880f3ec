//! Links that outlive sessions: what their ends say about it when a link is opened, and the proof that who resumes a link is who had it.

use core::fmt;

use aws_lc_rs::hmac::{self, HMAC_SHA256};
use zeroize::Zeroizing;

use crate::codec::Reader;
use crate::error::CodecError;

/// The bytes of keys and proofs.
const PROOF_BYTES: usize = 32;
/// No other proof's label begins with it.
const LABEL: &[u8] = b"exoskel/1 resumption";

/// Whether a link is more than its session, as its opener says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LinkLife {
    /// It ends with its session.
    #[default]
    OneSession,
    /// It goes over to the next session, if the other side keeps it as well.
    Lasting {
        /// What its opener calls it: no number is used twice between two processes.
        name: u64,
    },
    /// It comes from an earlier session.
    Resumed {
        /// What its opener calls it.
        name: u64,
        /// How many times it has been asked for: what was asked for later counts.
        attempt: u64,
        /// How many messages its opener has received by it.
        received: u64,
        /// That it is the same process.
        proof: [u8; PROOF_BYTES],
    },
}

impl LinkLife {
    /// Whether it comes from an earlier session.
    pub const fn is_resumed(&self) -> bool {
        matches!(self, Self::Resumed { .. })
    }
}

/// What the endpoint's side says of a lasting link that it accepts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Resumption {
    /// How many messages it has received by the link.
    pub received: u64,
    /// Bytes of them that its application has not consumed yet: the opener has so much less credit.
    pub withheld: u64,
}

/// What both ends of a session have, and nobody else: the right to resume the links that were opened in it.
///
/// # Security
/// It is never printed, never sent, and erased when dropped. It follows from the session's secret, and no key of records follows from it.
#[derive(Clone)]
pub struct ResumptionKey(Zeroizing<[u8; PROOF_BYTES]>);

impl ResumptionKey {
    pub(crate) fn new(bytes: Zeroizing<[u8; PROOF_BYTES]>) -> Self {
        Self(bytes)
    }

    /// That its holder resumes the link `name`, for the `attempt`th time, as link `number` of the session of this binding, and has received
    /// so many messages by it.
    #[must_use]
    pub fn prove(
        &self,
        binding: &[u8; 32],
        number: u32,
        name: u64,
        attempt: u64,
        received: u64,
    ) -> [u8; PROOF_BYTES] {
        let tag = hmac::sign(
            &self.key(),
            &message(binding, number, name, attempt, received),
        );
        let mut proof = [0; PROOF_BYTES];
        proof.copy_from_slice(tag.as_ref());
        proof
    }

    /// Whether that is the proof. The time that this takes says nothing about the right one.
    #[must_use]
    pub fn proves(
        &self,
        binding: &[u8; 32],
        number: u32,
        name: u64,
        attempt: u64,
        received: u64,
        proof: &[u8; PROOF_BYTES],
    ) -> bool {
        let message = message(binding, number, name, attempt, received);
        hmac::verify(&self.key(), &message, proof).is_ok()
    }

    fn key(&self) -> hmac::Key {
        hmac::Key::new(HMAC_SHA256, &*self.0)
    }
}

impl fmt::Debug for ResumptionKey {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("ResumptionKey(..)")
    }
}

fn message(binding: &[u8; 32], number: u32, name: u64, attempt: u64, received: u64) -> Vec<u8> {
    let mut message = [LABEL, binding].concat();
    message.extend_from_slice(&number.to_be_bytes());
    message.extend_from_slice(&name.to_be_bytes());
    message.extend_from_slice(&attempt.to_be_bytes());
    message.extend_from_slice(&received.to_be_bytes());
    message
}

pub(crate) fn put_life(out: &mut Vec<u8>, life: &LinkLife) {
    match life {
        LinkLife::OneSession => out.push(0),
        LinkLife::Lasting { name } => {
            out.push(1);
            out.extend_from_slice(&name.to_be_bytes());
        }
        LinkLife::Resumed {
            name,
            attempt,
            received,
            proof,
        } => {
            out.push(2);
            out.extend_from_slice(&name.to_be_bytes());
            out.extend_from_slice(&attempt.to_be_bytes());
            out.extend_from_slice(&received.to_be_bytes());
            out.extend_from_slice(proof);
        }
    }
}

pub(crate) fn read_life(reader: &mut Reader<'_>) -> Result<LinkLife, CodecError> {
    Ok(match reader.u8("life of a link")? {
        0 => LinkLife::OneSession,
        1 => LinkLife::Lasting {
            name: reader.u64("name of a link")?,
        },
        2 => LinkLife::Resumed {
            name: reader.u64("name of a link")?,
            attempt: reader.u64("attempt")?,
            received: reader.u64("received messages")?,
            proof: reader.array("proof of a resumption")?,
        },
        other => return Err(unknown("life of a link", other)),
    })
}

pub(crate) fn put_resumption(out: &mut Vec<u8>, resumption: Option<&Resumption>) {
    match resumption {
        None => out.push(0),
        Some(Resumption { received, withheld }) => {
            out.push(1);
            out.extend_from_slice(&received.to_be_bytes());
            out.extend_from_slice(&withheld.to_be_bytes());
        }
    }
}

pub(crate) fn read_resumption(reader: &mut Reader<'_>) -> Result<Option<Resumption>, CodecError> {
    Ok(match reader.u8("life of a link")? {
        0 => None,
        1 => Some(Resumption {
            received: reader.u64("received messages")?,
            withheld: crate::control::read_limited(
                reader,
                "withheld credit",
                crate::limits::Limits::BYTES_CEILING,
            )?,
        }),
        other => return Err(unknown("life of a link", other)),
    })
}

fn unknown(what: &'static str, got: u8) -> CodecError {
    CodecError::Unknown {
        what,
        got: got.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proof_holds_for_one_link_of_one_session_and_one_count() {
        let key = ResumptionKey::new(Zeroizing::new([7; 32]));
        let proof = key.prove(&[1; 32], 3, 5, 1, 9);
        assert!(key.proves(&[1; 32], 3, 5, 1, 9, &proof));
        assert!(!key.proves(&[2; 32], 3, 5, 1, 9, &proof));
        assert!(!key.proves(&[1; 32], 5, 5, 1, 9, &proof));
        assert!(!key.proves(&[1; 32], 3, 6, 1, 9, &proof));
        assert!(!key.proves(&[1; 32], 3, 5, 1, 8, &proof));
        assert!(!key.proves(&[1; 32], 3, 5, 2, 9, &proof));
        let other = ResumptionKey::new(Zeroizing::new([8; 32]));
        assert!(!other.proves(&[1; 32], 3, 5, 1, 9, &proof));
        assert!(!format!("{key:?}").contains('7'));
    }
}
