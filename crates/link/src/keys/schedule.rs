//! The key schedule: from the session's secret to the keys of each direction, epoch and protection.

use core::fmt;
use core::str::FromStr;

use aws_lc_rs::aead::{
    AES_256_GCM, Aad, Algorithm, CHACHA20_POLY1305, LessSafeKey, NONCE_LEN, Nonce, UnboundKey,
};
use aws_lc_rs::error::Unspecified;
use aws_lc_rs::hkdf::{HKDF_SHA256, KeyType, Prk, Salt};
use thiserror::Error;
use zeroize::Zeroizing;

use crate::protection::Protection;
use crate::record::TAG_BYTES;
use crate::resumption::ResumptionKey;
use crate::session::Side;

/// The bytes of every secret of the schedule.
pub(crate) const SECRET_BYTES: usize = 32;
/// The bytes of a record key; both ciphers take as many.
pub(crate) const KEY_BYTES: usize = 32;

/// The AEAD that protects all records of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CipherSuite {
    /// AES-256-GCM, with GMAC for `integrity`: where the processor has AES instructions.
    Aes256Gcm,
    /// ChaCha20-Poly1305, for `integrity` over no plaintext: where it hasn't.
    ChaCha20Poly1305,
}

impl CipherSuite {
    /// All ciphers, the preferred one first.
    pub const ALL: [Self; 2] = [Self::Aes256Gcm, Self::ChaCha20Poly1305];

    /// The word in labels and reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Aes256Gcm => "aes-256-gcm",
            Self::ChaCha20Poly1305 => "chacha20-poly1305",
        }
    }

    pub(crate) fn code(self) -> u8 {
        match self {
            Self::Aes256Gcm => 1,
            Self::ChaCha20Poly1305 => 2,
        }
    }

    pub(crate) fn from_code(code: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|cipher| cipher.code() == code)
    }

    fn algorithm(self) -> &'static Algorithm {
        match self {
            Self::Aes256Gcm => &AES_256_GCM,
            Self::ChaCha20Poly1305 => &CHACHA20_POLY1305,
        }
    }
}

impl fmt::Display for CipherSuite {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(self.name())
    }
}

/// A word that names no [`CipherSuite`].
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("got an unknown cipher, expected \"aes-256-gcm\" or \"chacha20-poly1305\"")]
pub struct ParseCipherError;

impl FromStr for CipherSuite {
    type Err = ParseCipherError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::ALL
            .into_iter()
            .find(|cipher| cipher.name() == text)
            .ok_or(ParseCipherError)
    }
}

/// The secret of one session, from which all its keys follow.
///
/// # Security
/// Whoever holds it can read and forge the whole session. It is never printed and is erased when dropped.
pub struct SessionSecret(Prk);

impl SessionSecret {
    /// Extracts the secret from the TLS exporter's output, salted with the transcript's hash.
    pub(crate) fn extract(transcript: &[u8], exporter: &[u8]) -> Self {
        Self(Salt::new(HKDF_SHA256, transcript).extract(exporter))
    }

    /// A secret given as bytes, for tests, vectors and simulations.
    pub fn from_bytes(bytes: &[u8; SECRET_BYTES]) -> Self {
        Self(Prk::new_less_safe(HKDF_SHA256, bytes))
    }

    /// What proofs that are made for the session contain. It may be known: it says nothing of any key.
    pub(crate) fn binding(&self) -> [u8; SECRET_BYTES] {
        let mut bytes = [0; SECRET_BYTES];
        expand(&self.0, &[b"exoskel/1 binding"], &mut bytes);
        bytes
    }

    /// By which both ends resume links of the session in a later one.
    pub(crate) fn resumption_key(&self) -> ResumptionKey {
        let mut bytes = Zeroizing::new([0; SECRET_BYTES]);
        expand(&self.0, &[b"exoskel/1 resumption key"], &mut *bytes);
        ResumptionKey::new(bytes)
    }
}

impl fmt::Debug for SessionSecret {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("SessionSecret(..)")
    }
}

/// The secret of one direction in one epoch. The next epoch's follows from it and not the other way round.
pub(crate) struct EpochSecret(Zeroizing<[u8; SECRET_BYTES]>);

impl EpochSecret {
    /// The first epoch of the direction in which `sender` writes.
    pub(crate) fn first(secret: &SessionSecret, sender: Side) -> Self {
        let label = match sender {
            Side::Client => "exoskel/1 client",
            Side::Server => "exoskel/1 server",
        };
        let mut bytes = Zeroizing::new([0; SECRET_BYTES]);
        expand(&secret.0, &[label.as_bytes()], &mut *bytes);
        Self(bytes)
    }

    /// The next epoch's secret. The owner drops this one, which erases it.
    pub(crate) fn next(&self) -> Self {
        let mut bytes = Zeroizing::new([0; SECRET_BYTES]);
        expand(&self.prk(), &[b"exoskel/1 epoch"], &mut *bytes);
        Self(bytes)
    }

    /// The raw key and the static part of the nonces for one protection.
    pub(crate) fn record_key(&self, cipher: CipherSuite, protection: Protection) -> RawRecordKey {
        let mut raw = RawRecordKey {
            key: Zeroizing::new([0; KEY_BYTES]),
            iv: Zeroizing::new([0; NONCE_LEN]),
        };
        let suffix = [
            b" ",
            cipher.name().as_bytes(),
            b" ",
            protection.name().as_bytes(),
        ];
        let [space, cipher, gap, protection] = suffix;
        let prk = self.prk();
        expand(
            &prk,
            &[b"exoskel/1 key", space, cipher, gap, protection],
            &mut *raw.key,
        );
        expand(
            &prk,
            &[b"exoskel/1 iv", space, cipher, gap, protection],
            &mut *raw.iv,
        );
        raw
    }

    pub(crate) fn bytes(&self) -> &[u8; SECRET_BYTES] {
        &self.0
    }

    fn prk(&self) -> Prk {
        Prk::new_less_safe(HKDF_SHA256, &*self.0)
    }
}

/// A record key before its expansion.
pub(crate) struct RawRecordKey {
    pub(crate) key: Zeroizing<[u8; KEY_BYTES]>,
    pub(crate) iv: Zeroizing<[u8; NONCE_LEN]>,
}

impl RawRecordKey {
    pub(crate) fn expand(&self, cipher: CipherSuite) -> RecordKey {
        RecordKey::expand(&self.key, &self.iv, cipher)
    }
}

/// A record key ready for use: the cipher's expanded context and the static part of the nonces.
///
/// # Security
/// It knows of no record numbers: whoever seals with it must never use a number twice. When the last handle of it is dropped the context is
/// erased: aws-lc-rs has it in one block of `OPENSSL_malloc` (`aead/aead_ctx.rs` of aws-lc-rs 1.19), and `OPENSSL_free` cleanses every block that it frees
/// (`crypto/mem.c` of aws-lc).
pub struct RecordKey {
    key: LessSafeKey,
    iv: Zeroizing<[u8; NONCE_LEN]>,
}

impl RecordKey {
    /// The key of these bytes and this static part of the nonces.
    pub(crate) fn expand(key: &[u8; KEY_BYTES], iv: &[u8; NONCE_LEN], cipher: CipherSuite) -> Self {
        let unbound = UnboundKey::new(cipher.algorithm(), key);
        Self {
            key: LessSafeKey::new(unbound.expect("the schedule makes keys of the cipher's length")),
            iv: Zeroizing::new(*iv),
        }
    }

    /// Seals `body` where it stands and gives the tag, which covers `covered` too.
    ///
    /// # Errors
    /// [`Unspecified`] when the body is longer than the cipher allows.
    pub fn seal(
        &self,
        number: u64,
        covered: &[u8],
        body: &mut [u8],
    ) -> Result<[u8; TAG_BYTES], Unspecified> {
        let nonce = self.nonce(number);
        let tag = self
            .key
            .seal_in_place_separate_tag(nonce, Aad::from(covered), body)?;
        tag.as_ref().try_into().map_err(|_| Unspecified)
    }

    /// Seals `body` into `sealed`, of the same length, and the tag into `tag`.
    ///
    /// # Errors
    /// [`Unspecified`] when the lengths don't fit.
    pub fn seal_to(
        &self,
        number: u64,
        covered: &[u8],
        body: &[u8],
        sealed: &mut [u8],
        tag: &mut [u8],
    ) -> Result<(), Unspecified> {
        let nonce = self.nonce(number);
        self.key
            .seal_out_of_place_scatter(nonce, Aad::from(covered), body, sealed, &[], tag)
    }

    /// Opens `body` where it stands, if the tag is right for it and for `covered`.
    ///
    /// # Errors
    /// [`Unspecified`] if it isn't; what stands in `body` then means nothing.
    pub fn open(
        &self,
        number: u64,
        covered: &[u8],
        tag: &[u8; TAG_BYTES],
        body: &mut [u8],
    ) -> Result<(), Unspecified> {
        let nonce = self.nonce(number);
        self.key
            .open_in_place_separate_tag(nonce, Aad::from(covered), tag, body)
            .map(drop)
    }

    /// The nonce of the record with this number: the static part XOR the number.
    fn nonce(&self, number: u64) -> Nonce {
        let mut nonce = *self.iv;
        for (byte, number) in nonce[NONCE_LEN - 8..].iter_mut().zip(number.to_be_bytes()) {
            *byte ^= number;
        }
        Nonce::assume_unique_for_key(nonce)
    }
}

/// How many bytes a caller of HKDF-Expand wants.
struct OutputBytes(usize);

impl KeyType for OutputBytes {
    fn len(&self) -> usize {
        self.0
    }
}

fn expand(prk: &Prk, info: &[&[u8]], out: &mut [u8]) {
    prk.expand(info, OutputBytes(out.len()))
        .and_then(|okm| okm.fill(out))
        .expect("the schedule asks for at most 32 bytes, HKDF-SHA256 gives up to 8160");
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every key of a session differs from every other: directions, epochs, ciphers and protections share none.
    #[test]
    fn no_two_keys_agree() {
        let mut seen = std::collections::HashSet::new();
        for side in [Side::Client, Side::Server] {
            let mut secret = EpochSecret::first(&SessionSecret::from_bytes(&[7; 32]), side);
            for _ in 0..3 {
                assert!(seen.insert(secret.bytes().to_vec()));
                for cipher in CipherSuite::ALL {
                    for protection in Protection::ALL {
                        let raw = secret.record_key(cipher, protection);
                        assert!(seen.insert(raw.key.to_vec()));
                        assert!(seen.insert(raw.iv.to_vec()));
                    }
                }
                secret = secret.next();
            }
        }
        assert_eq!(seen.len(), 2 * 3 * (1 + 2 * 3 * 2));
    }

    #[test]
    fn a_secret_is_not_printed() {
        let secret = SessionSecret::from_bytes(&[7; 32]);
        assert_eq!(format!("{secret:?}"), "SessionSecret(..)");
    }
}
