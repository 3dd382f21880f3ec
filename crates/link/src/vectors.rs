//! The key schedule laid open, for transcripts that other implementations check.
//!
//! Everything here takes secrets as plain bytes, so nothing of a live session can be learnt by it.

pub use crate::handshake::transcript_hash;

use crate::keys::{CipherSuite, EpochSecret, SessionSecret};
use crate::protection::Protection;
use crate::session::Side;

/// The secret of the direction in which `sender` writes, after so many changes of keys.
pub fn epoch_secret(session_secret: &[u8; 32], sender: Side, epoch: u32) -> [u8; 32] {
    *schedule(session_secret, sender, epoch).bytes()
}

/// Key and static nonce part of the records of one direction, epoch and protection.
pub fn record_key(
    session_secret: &[u8; 32],
    sender: Side,
    epoch: u32,
    cipher: CipherSuite,
    protection: Protection,
) -> ([u8; 32], [u8; 12]) {
    let raw = schedule(session_secret, sender, epoch).record_key(cipher, protection);
    (*raw.key, *raw.iv)
}

/// Binding and proof of a link that is resumed: both from sessions' secrets, the binding of the session in which it is resumed, the key of
/// the one in which it was opened.
pub fn resumption(
    opened_in: &[u8; 32],
    resumed_in: &[u8; 32],
    link: u32,
    name: u64,
    attempt: u64,
    received: u64,
) -> ([u8; 32], [u8; 32]) {
    let binding = SessionSecret::from_bytes(resumed_in).binding();
    let key = SessionSecret::from_bytes(opened_in).resumption_key();
    (binding, key.prove(&binding, link, name, attempt, received))
}

fn schedule(session_secret: &[u8; 32], sender: Side, epoch: u32) -> EpochSecret {
    let first = EpochSecret::first(&SessionSecret::from_bytes(session_secret), sender);
    (0..epoch).fold(first, |secret, _| secret.next())
}

#[cfg(test)]
mod tests {
    use aws_lc_rs::hmac;

    use super::*;
    use crate::handshake::session_secret;

    /// The secret of a session is HMAC-SHA256 of the exporter under the transcript's hash, as HKDF-Extract is defined.
    #[test]
    fn the_session_secret_is_an_extract() {
        let (hello, accept, exporter) = (&b"hello"[..], &b"accept"[..], [3; 32]);
        let chains: [&[&[u8]]; 2] = [&[b"leaf", b"intermediate"], &[b"other leaf"]];
        let hash = transcript_hash(hello, accept, chains[0], chains[1]);
        let tag = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, &hash), &exporter);
        let secret = session_secret(hello, accept, chains[0], chains[1], &exporter);
        let expected = epoch_secret(tag.as_ref().try_into().unwrap(), Side::Client, 0);
        assert_eq!(EpochSecret::first(&secret, Side::Client).bytes(), &expected);
    }

    /// Moving a byte from one piece to the next gives another transcript.
    #[test]
    fn no_two_transcripts_read_alike() {
        let first = transcript_hash(b"ab", b"c", &[b"d", b"e"], &[b"f"]);
        assert_ne!(first, transcript_hash(b"a", b"bc", &[b"d", b"e"], &[b"f"]));
        assert_ne!(first, transcript_hash(b"ab", b"c", &[b"d"], &[b"e", b"f"]));
        assert_ne!(first, transcript_hash(b"ab", b"c", &[b"de"], &[b"f"]));
    }
}
