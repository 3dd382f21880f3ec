//! Public keys, signature algorithms, and the one place where signatures of certificates, lists and attribute
//! certificates are checked. The arithmetic is aws-lc-rs'.

use std::fmt;

use aws_lc_rs::digest::{self, Digest};
use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_ASN1, ECDSA_P256_SHA384_ASN1, ECDSA_P256_SHA512_ASN1, ECDSA_P384_SHA256_ASN1,
    ECDSA_P384_SHA384_ASN1, ECDSA_P384_SHA512_ASN1, ECDSA_P521_SHA256_ASN1, ECDSA_P521_SHA384_ASN1,
    ECDSA_P521_SHA512_ASN1, ED25519, RSA_PKCS1_1024_8192_SHA1_FOR_LEGACY_USE_ONLY,
    RSA_PKCS1_1024_8192_SHA256_FOR_LEGACY_USE_ONLY, RSA_PKCS1_1024_8192_SHA512_FOR_LEGACY_USE_ONLY,
    RSA_PKCS1_2048_8192_SHA384, RSA_PSS_2048_8192_SHA256, RSA_PSS_2048_8192_SHA384,
    RSA_PSS_2048_8192_SHA512, UnparsedPublicKey, VerificationAlgorithm,
};
use rustls_pki_types::alg_id;
use x509_parser::asn1_rs::Oid;
use x509_parser::x509::SubjectPublicKeyInfo;

use crate::der::{self, NotDer};
use crate::hex::hex;
use crate::limits::RSA_EXPONENT_BITS_MAX;

/// A public key of a certificate: its kind and its bits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PublicKey {
    kind: KeyKind,
    /// The content of the `subjectPublicKey` bit string.
    bits: Box<[u8]>,
}

/// What kind of key it is, and how strong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum KeyKind {
    /// RSA, with the bits of its modulus.
    Rsa {
        /// Bits of the modulus.
        bits: usize,
    },
    /// RSA with numbers that no RSA key has: with the exponent 1, anybody could sign.
    FalseRsa {
        /// What is wrong with them.
        got: String,
    },
    /// ECDSA over the curve of that many bits: P-256, P-384 or P-521.
    Ecdsa {
        /// Bits of the curve.
        bits: usize,
    },
    /// Ed25519.
    Ed25519,
    /// A kind that no signature is checked with.
    Other {
        /// The algorithm, and the curve if it has one, as object identifiers.
        algorithm: String,
    },
}

impl fmt::Display for KeyKind {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rsa { bits } => write!(formatter, "RSA of {bits} bits"),
            Self::FalseRsa { got } => write!(formatter, "RSA with {got}"),
            Self::Ecdsa { bits } => write!(formatter, "ECDSA P-{bits}"),
            Self::Ed25519 => formatter.write_str("Ed25519"),
            Self::Other { algorithm } => write!(formatter, "a key of the kind {algorithm}"),
        }
    }
}

/// `rsaEncryption`: 1.2.840.113549.1.1.1
const RSA_KEY: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 1, 1];
const EC_PUBLIC_KEY: &[u8] = &[0x2a, 0x86, 0x48, 0xce, 0x3d, 2, 1];
const P256: &[u8] = &[0x2a, 0x86, 0x48, 0xce, 0x3d, 3, 1, 7];
const P384: &[u8] = &[0x2b, 0x81, 4, 0, 0x22];
const P521: &[u8] = &[0x2b, 0x81, 4, 0, 0x23];
const ED25519_KEY: &[u8] = &[0x2b, 0x65, 0x70];

impl PublicKey {
    /// Reads a key. A kind that isn't known, or is too weak, is no error here: the certificate can still be shown.
    ///
    /// # Errors
    /// [`NotDer`] for an RSA key in another form.
    pub(crate) fn read(info: &SubjectPublicKeyInfo<'_>) -> Result<Self, NotDer> {
        Ok(Self {
            kind: kind(info)?,
            bits: info.subject_public_key.data.as_ref().into(),
        })
    }

    pub(crate) fn kind(&self) -> &KeyKind {
        &self.kind
    }

    /// The key's bits, as they stand in the certificate.
    pub(crate) fn bits(&self) -> &[u8] {
        &self.bits
    }

    /// Strong enough for a certificate below a trust anchor: RSA from 2048 bits on, P-256 or better.
    pub(crate) fn is_strong(&self) -> bool {
        match self.kind {
            KeyKind::Rsa { bits } => (2048..=8192).contains(&bits),
            KeyKind::Ecdsa { .. } | KeyKind::Ed25519 => true,
            KeyKind::FalseRsa { .. } | KeyKind::Other { .. } => false,
        }
    }

    /// Strong enough for a trust anchor, some of which are old: RSA from 1024 bits on.
    pub(crate) fn is_strong_enough_for_anchor(&self) -> bool {
        matches!(self.kind, KeyKind::Rsa { bits } if (1024..=8192).contains(&bits))
            || self.is_strong()
    }
}

fn kind(info: &SubjectPublicKeyInfo<'_>) -> Result<KeyKind, NotDer> {
    let algorithm = &info.algorithm.algorithm;
    if algorithm.as_bytes() == RSA_KEY {
        return rsa(&info.subject_public_key.data);
    }
    let curve: Option<Oid<'_>> = info
        .algorithm
        .parameters
        .as_ref()
        .and_then(|parameters| parameters.clone().oid().ok());
    Ok(
        match (algorithm.as_bytes(), curve.as_ref().map(Oid::as_bytes)) {
            (EC_PUBLIC_KEY, Some(P256)) => KeyKind::Ecdsa { bits: 256 },
            (EC_PUBLIC_KEY, Some(P384)) => KeyKind::Ecdsa { bits: 384 },
            (EC_PUBLIC_KEY, Some(P521)) => KeyKind::Ecdsa { bits: 521 },
            (ED25519_KEY, _) => KeyKind::Ed25519,
            _ => KeyKind::Other {
                algorithm: match curve {
                    Some(curve) => format!("{algorithm} {curve}"),
                    None => algorithm.to_string(),
                },
            },
        },
    )
}

/// `RSAPublicKey ::= SEQUENCE { modulus INTEGER, publicExponent INTEGER }` (RFC 8017 section A.1.1): a product of odd primes, and
/// an odd number from 3 on.
fn rsa(key: &[u8]) -> Result<KeyKind, NotDer> {
    der::check(key, "RSA key")?;
    let is_odd = |number: &[u8]| number.last().is_some_and(|last| last % 2 == 1);
    let Some((numbers, [])) = der::value(key, der::SEQUENCE) else {
        return Ok(false_rsa("something else than two numbers"));
    };
    let Some((modulus, rest)) = der::natural(numbers).filter(|(modulus, _)| is_odd(modulus)) else {
        return Ok(false_rsa("an even or negative modulus"));
    };
    let Some((exponent, [])) = der::natural(rest) else {
        return Ok(false_rsa("a negative exponent, or something behind it"));
    };
    let exponent_bits = match exponent {
        [first, rest @ ..] => 8 * (rest.len() + 1) - first.leading_zeros() as usize,
        [] => 0,
    };
    if !is_odd(exponent) || exponent == [1] || exponent_bits > RSA_EXPONENT_BITS_MAX {
        let got = match exponent_bits {
            0 => "the exponent 0".to_owned(),
            1..=RSA_EXPONENT_BITS_MAX => format!("the exponent 0x{}", hex(exponent)),
            _ => format!("an exponent of {exponent_bits} bits"),
        };
        return Ok(KeyKind::FalseRsa { got });
    }
    // Rounded up to whole bytes, as everybody counts: some keys of "2048 bits" have 2047.
    Ok(KeyKind::Rsa {
        bits: 8 * modulus.len(),
    })
}

fn false_rsa(got: &str) -> KeyKind {
    KeyKind::FalseRsa {
        got: got.to_owned(),
    }
}

/// How something was signed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SignatureAlgorithm {
    RsaSha1,
    RsaSha256,
    RsaSha384,
    RsaSha512,
    RsaPssSha256,
    RsaPssSha384,
    RsaPssSha512,
    EcdsaSha256,
    EcdsaSha384,
    EcdsaSha512,
    Ed25519,
    /// MD5, SHA-1 with another key than RSA, DSA, and whatever else nobody should sign with: what it is, for messages.
    Other(&'static str),
}

impl SignatureAlgorithm {
    /// Reads the content octets of an `AlgorithmIdentifier`.
    pub(crate) fn read(content: &[u8]) -> Self {
        const PKCS1: [u8; 10] = [6, 9, 0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 1];
        const UNKNOWN: &str = "an unknown algorithm";
        const ECDSA_SHA1: [u8; 8] = [6, 7, 0x2a, 0x86, 0x48, 0xce, 0x3d, 4];
        const ECDSA_SHA2: [u8; 9] = [6, 8, 0x2a, 0x86, 0x48, 0xce, 0x3d, 4, 3];
        // RFC 4055 asks for NULL parameters and for readers that bear their absence; ECDSA and Ed25519 have none.
        match content {
            [start @ .., last] | [start @ .., last, 5, 0] if *start == PKCS1 => match last {
                5 => Self::RsaSha1,
                11 => Self::RsaSha256,
                12 => Self::RsaSha384,
                13 => Self::RsaSha512,
                2 => Self::Other("RSA with MD2"),
                4 => Self::Other("RSA with MD5"),
                14 => Self::Other("RSA with SHA-224"),
                _ => Self::Other(UNKNOWN),
            },
            [start @ .., last] if *start == ECDSA_SHA2 => match last {
                2 => Self::EcdsaSha256,
                3 => Self::EcdsaSha384,
                4 => Self::EcdsaSha512,
                1 => Self::Other("ECDSA with SHA-224"),
                _ => Self::Other(UNKNOWN),
            },
            [start @ .., 1] if *start == ECDSA_SHA1 => Self::Other("ECDSA with SHA-1"),
            _ if content == alg_id::RSA_PSS_SHA256.as_ref() => Self::RsaPssSha256,
            _ if content == alg_id::RSA_PSS_SHA384.as_ref() => Self::RsaPssSha384,
            _ if content == alg_id::RSA_PSS_SHA512.as_ref() => Self::RsaPssSha512,
            _ if content == alg_id::ED25519.as_ref() => Self::Ed25519,
            _ => Self::Other(UNKNOWN),
        }
    }

    /// Whether it may stand below a trust anchor. SHA-1 only ever did in the past.
    fn is_strong(self) -> bool {
        !matches!(self, Self::RsaSha1 | Self::Other(_))
    }

    /// By which digest something is signed; nothing for Ed25519, which has none apart from its key, and for what is never checked.
    fn digest(self) -> Option<&'static digest::Algorithm> {
        match self {
            Self::RsaSha256 | Self::RsaPssSha256 | Self::EcdsaSha256 => Some(&digest::SHA256),
            Self::RsaSha384 | Self::RsaPssSha384 | Self::EcdsaSha384 => Some(&digest::SHA384),
            Self::RsaSha512 | Self::RsaPssSha512 | Self::EcdsaSha512 => Some(&digest::SHA512),
            Self::RsaSha1 | Self::Ed25519 | Self::Other(_) => None,
        }
    }

    fn verification(self, key: &KeyKind) -> Option<&'static dyn VerificationAlgorithm> {
        Some(match (key, self) {
            (KeyKind::Rsa { .. }, Self::RsaSha1) => &RSA_PKCS1_1024_8192_SHA1_FOR_LEGACY_USE_ONLY,
            // Which sizes are allowed where is this crate's rule; these take every size that any rule allows.
            (KeyKind::Rsa { .. }, Self::RsaSha256) => {
                &RSA_PKCS1_1024_8192_SHA256_FOR_LEGACY_USE_ONLY
            }
            (KeyKind::Rsa { .. }, Self::RsaSha384) => &RSA_PKCS1_2048_8192_SHA384,
            (KeyKind::Rsa { .. }, Self::RsaSha512) => {
                &RSA_PKCS1_1024_8192_SHA512_FOR_LEGACY_USE_ONLY
            }
            (KeyKind::Rsa { .. }, Self::RsaPssSha256) => &RSA_PSS_2048_8192_SHA256,
            (KeyKind::Rsa { .. }, Self::RsaPssSha384) => &RSA_PSS_2048_8192_SHA384,
            (KeyKind::Rsa { .. }, Self::RsaPssSha512) => &RSA_PSS_2048_8192_SHA512,
            (KeyKind::Ecdsa { bits: 256 }, Self::EcdsaSha256) => &ECDSA_P256_SHA256_ASN1,
            (KeyKind::Ecdsa { bits: 256 }, Self::EcdsaSha384) => &ECDSA_P256_SHA384_ASN1,
            (KeyKind::Ecdsa { bits: 256 }, Self::EcdsaSha512) => &ECDSA_P256_SHA512_ASN1,
            (KeyKind::Ecdsa { bits: 384 }, Self::EcdsaSha256) => &ECDSA_P384_SHA256_ASN1,
            (KeyKind::Ecdsa { bits: 384 }, Self::EcdsaSha384) => &ECDSA_P384_SHA384_ASN1,
            (KeyKind::Ecdsa { bits: 384 }, Self::EcdsaSha512) => &ECDSA_P384_SHA512_ASN1,
            (KeyKind::Ecdsa { bits: 521 }, Self::EcdsaSha256) => &ECDSA_P521_SHA256_ASN1,
            (KeyKind::Ecdsa { bits: 521 }, Self::EcdsaSha384) => &ECDSA_P521_SHA384_ASN1,
            (KeyKind::Ecdsa { bits: 521 }, Self::EcdsaSha512) => &ECDSA_P521_SHA512_ASN1,
            (KeyKind::Ed25519, Self::Ed25519) => &ED25519,
            _ => return None,
        })
    }
}

impl fmt::Display for SignatureAlgorithm {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::RsaSha1 => "RSA with SHA-1",
            Self::RsaSha256 => "RSA with SHA-256",
            Self::RsaSha384 => "RSA with SHA-384",
            Self::RsaSha512 => "RSA with SHA-512",
            Self::RsaPssSha256 => "RSA-PSS with SHA-256",
            Self::RsaPssSha384 => "RSA-PSS with SHA-384",
            Self::RsaPssSha512 => "RSA-PSS with SHA-512",
            Self::EcdsaSha256 => "ECDSA with SHA-256",
            Self::EcdsaSha384 => "ECDSA with SHA-384",
            Self::EcdsaSha512 => "ECDSA with SHA-512",
            Self::Ed25519 => "Ed25519",
            Self::Other(what) => what,
        })
    }
}

/// A signature over something long of which only the digest is kept: to check a key takes as long as for something short.
#[derive(Clone, Debug)]
pub(crate) struct DetachedSignature {
    algorithm: SignatureAlgorithm,
    message: SignedContent,
    signature: Box<[u8]>,
}

/// What was signed.
#[derive(Clone, Debug)]
enum SignedContent {
    Digest(Digest),
    Whole(Box<[u8]>),
    /// Signed in a way that never counts.
    Unchecked,
}

impl DetachedSignature {
    pub(crate) fn new(algorithm: SignatureAlgorithm, message: &[u8], signature: &[u8]) -> Self {
        Self {
            algorithm,
            message: match algorithm.digest() {
                Some(digest) => SignedContent::Digest(digest::digest(digest, message)),
                None if algorithm.is_strong() => SignedContent::Whole(message.into()),
                None => SignedContent::Unchecked,
            },
            signature: signature.into(),
        }
    }

    pub(crate) fn algorithm(&self) -> SignatureAlgorithm {
        self.algorithm
    }

    /// As the function [`verify`].
    pub(crate) fn verify(&self, key: &PublicKey) -> Result<(), SignatureFault> {
        let digest = match &self.message {
            SignedContent::Whole(message) => {
                return verify(key, self.algorithm, message, &self.signature);
            }
            SignedContent::Digest(digest) if key.is_strong_enough_for_anchor() => digest,
            SignedContent::Digest(_) | SignedContent::Unchecked => {
                return Err(SignatureFault::Weak);
            }
        };
        let verification = self
            .algorithm
            .verification(&key.kind)
            .ok_or(SignatureFault::Wrong)?;
        UnparsedPublicKey::new(verification, &*key.bits)
            .verify_digest(digest, &self.signature)
            .map_err(|_| SignatureFault::Wrong)
    }
}

/// Why a signature doesn't count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SignatureFault {
    /// Nobody should sign like this any more.
    Weak,
    /// This key did not make this signature.
    Wrong,
}

/// Checks that `key` signed `message`.
///
/// # Errors
/// [`SignatureFault::Weak`] for SHA-1, MD5, unknown algorithms, and keys that not even an old trust anchor may have,
/// before any arithmetic.
pub(crate) fn verify(
    key: &PublicKey,
    algorithm: SignatureAlgorithm,
    message: &[u8],
    signature: &[u8],
) -> Result<(), SignatureFault> {
    if !algorithm.is_strong() {
        return Err(SignatureFault::Weak);
    }
    verify_even_if_weak(key, algorithm, message, signature)
}

/// As [`verify`], but SHA-1 with RSA counts too.
///
/// # Security
/// For the signature of a trust anchor over itself only, which proves nothing but that the file is undamaged.
pub(crate) fn verify_even_if_weak(
    key: &PublicKey,
    algorithm: SignatureAlgorithm,
    message: &[u8],
    signature: &[u8],
) -> Result<(), SignatureFault> {
    if matches!(algorithm, SignatureAlgorithm::Other(_)) || !key.is_strong_enough_for_anchor() {
        return Err(SignatureFault::Weak);
    }
    let verification = algorithm
        .verification(&key.kind)
        .ok_or(SignatureFault::Wrong)?;
    UnparsedPublicKey::new(verification, &*key.bits)
        .verify(message, signature)
        .map_err(|_| SignatureFault::Wrong)
}
