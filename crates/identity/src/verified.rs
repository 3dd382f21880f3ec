//! A proven identity, and the seam where proofs are judged.

use std::fmt;

use aws_lc_rs::digest;
use rustls_pki_types::{CertificateDer, UnixTime};

use crate::certificate::CertificateDetails;
use crate::claim::{Identity, Role};
use crate::error::IdentityError;

/// Who a peer is, as a [`PeerVerifier`] of this crate has found it to be.
///
/// # Security
/// The fields are private and there is no public constructor: holding one means that the chain led to a trusted
/// authority at the time of the check. It does not mean that the peer holds the leaf's key; the TLS engine proves that
/// in the same handshake. It is good until [`not_after`](Self::not_after), and to be judged again when the
/// [`generation`](Self::generation) of the trust changes.
#[derive(Clone, PartialEq, Eq)]
pub struct VerifiedIdentity {
    identity: Identity,
    not_after: UnixTime,
    fingerprint: [u8; 32],
    serial: Box<[u8]>,
    generation: u64,
}

impl VerifiedIdentity {
    /// For verifiers only: states that `leaf` was found good under the trust of that generation.
    pub(crate) fn proven(
        identity: Identity,
        leaf: &CertificateDer<'_>,
        details: &CertificateDetails,
        not_after: UnixTime,
        generation: u64,
    ) -> Self {
        Self {
            identity,
            not_after,
            fingerprint: fingerprint(leaf),
            serial: details.serial.clone().into_boxed_slice(),
            generation,
        }
    }

    /// What the peer is.
    pub fn role(&self) -> Role {
        self.identity.role
    }

    /// Which one it is.
    pub fn name(&self) -> &str {
        &self.identity.name
    }

    /// Role and name together.
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// When the first of the certificates that prove it (leaf, intermediates, authority) ends.
    pub fn not_after(&self) -> UnixTime {
        self.not_after
    }

    /// SHA-256 of the leaf in DER.
    pub fn fingerprint(&self) -> [u8; 32] {
        self.fingerprint
    }

    /// The leaf's serial number, big-endian, without leading zeros.
    pub fn serial(&self) -> &[u8] {
        &self.serial
    }

    /// The generation of the trust data by which it was judged.
    pub fn generation(&self) -> u64 {
        self.generation
    }
}

impl fmt::Debug for VerifiedIdentity {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("VerifiedIdentity")
            .field("identity", &format_args!("{}", self.identity))
            .field("not_after", &self.not_after.as_secs())
            .field("generation", &self.generation)
            .finish_non_exhaustive()
    }
}

impl fmt::Display for VerifiedIdentity {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.identity.fmt(formatter)
    }
}

/// SHA-256 of a certificate in DER, by which logs and allow-lists name it.
pub fn fingerprint(certificate: &CertificateDer<'_>) -> [u8; 32] {
    let mut bytes = [0; 32];
    bytes.copy_from_slice(digest::digest(&digest::SHA256, certificate).as_ref());
    bytes
}

/// Whom the caller is ready to meet.
#[derive(Clone, Copy, Debug)]
pub struct Expected<'a> {
    /// The roles that may stand here. Nobody passes an empty list.
    pub roles: &'a [Role],
    /// The name that a dialler meant to reach; a listener has none. Case doesn't matter.
    pub name: Option<&'a str>,
}

impl Expected<'_> {
    /// Compares a claim that has just been proven with what was expected.
    pub(crate) fn check(&self, identity: &Identity) -> Result<(), IdentityError> {
        if !self.roles.contains(&identity.role) {
            return Err(IdentityError::WrongRole {
                got: identity.clone(),
                expected: self.roles.to_vec(),
            });
        }
        match self.name {
            // A verified name is in small letters, so this is the same as comparing host names.
            Some(name) if !name.eq_ignore_ascii_case(&identity.name) => {
                Err(IdentityError::WrongName {
                    got: identity.clone(),
                    expected: name.to_owned(),
                })
            }
            _ => Ok(()),
        }
    }
}

/// Turns a chain of certificates into a [`VerifiedIdentity`], or says why not.
///
/// [`PrivateAuthority`](crate::PrivateAuthority) is the one for a private authority; certificates of a grid, with
/// their proxies, will come in here as another one.
pub trait PeerVerifier: Send + Sync {
    /// Judges `chain` (leaf first) at the time `now`.
    ///
    /// # Errors
    /// [`IdentityError`] names the certificate, the rule and what was expected.
    ///
    /// # Security
    /// The caller must have the TLS engine check that the peer holds the leaf's key, and must not act on the peer's
    /// bytes before both checks have passed.
    fn verify(
        &self,
        chain: &[CertificateDer<'_>],
        now: UnixTime,
        expected: &Expected<'_>,
    ) -> Result<VerifiedIdentity, IdentityError>;

    /// Which state of the trust data this verifier holds. It grows with each reload.
    fn generation(&self) -> u64;
}
