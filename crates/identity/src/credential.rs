//! A node's secret: its certificates, its private key, and whom it trusts.

use std::fmt;
use std::sync::Arc;

use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_ASN1_SIGNING, ECDSA_P384_SHA384_ASN1_SIGNING, ECDSA_P521_SHA512_ASN1_SIGNING,
    EcdsaKeyPair, Ed25519KeyPair, KeyPair, RsaKeyPair,
};
use rustls_pki_types::{
    CertificateDer, CertificateRevocationListDer, PrivatePkcs8KeyDer, UnixTime,
};
use zeroize::Zeroizing;

use crate::certificate::CertificateDetails;
use crate::claim::{Identity, Role};
use crate::error::IdentityError;
use crate::grid;
use crate::limits::{CHAIN_CERTIFICATES_MAX, GRID_CHAIN_CERTIFICATES_MAX, PRIVATE_KEY_BYTES_MAX};
use crate::private_authority::PrivateAuthority;
use crate::private_authority::TrustError;
use crate::verified::{Expected, PeerVerifier, VerifiedIdentity};
use crate::x509::Certificate;

mod error;
mod old_key;
mod pem;
mod private_key;

pub use error::CredentialError;
pub use private_key::{PrivateKey, RemoteKey};

pub use pem::revocation_lists_from_pem;

/// A node's own certificates and private key, with the authorities and revocation lists by which it judges others.
///
/// There are two kinds. A *private* credential's leaf states role and name in URIs, and it brings its authorities along. A
/// *grid* credential is a host certificate, a user certificate or a proxy, as `voms-proxy-init` writes it; whom it trusts
/// stands in a trust directory.
///
/// # Security
/// It holds the private key, which is erased from memory when it is dropped and which `Debug` doesn't show; or it says who signs with a
/// key that this process never has ([`PrivateKey`]). It is not `Clone`: share it, so that there is one copy of the key.
pub struct Credential {
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKey,
    trust_anchors: Vec<CertificateDer<'static>>,
    revocation_lists: Vec<CertificateRevocationListDer<'static>>,
    identity: Identity,
    kind: CredentialKind,
    grid_subject: Option<String>,
}

/// Which rules a credential's certificates are made by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CredentialKind {
    /// A private authority's: role and name stand in URIs, and the authorities come along.
    Private,
    /// A grid's: the trust is elsewhere.
    Grid,
}

impl Credential {
    /// Puts a credential together: `chain` is the leaf and then its intermediates, `key` the leaf's key in PKCS#8. It is
    /// a grid's when no URI of the leaf is of our scheme.
    ///
    /// # Errors
    /// [`CredentialError`] when something can't be read, the key doesn't belong to the leaf, the leaf doesn't state
    /// exactly one role and one name, an intermediate may not sign, or the trust is not usable; for a grid credential,
    /// when an end entity is missing behind its proxies. Dates are not looked at; [`verify_own`](Self::verify_own) does
    /// that.
    pub fn new(
        chain: Vec<CertificateDer<'static>>,
        key: Zeroizing<Vec<u8>>,
        trust_anchors: Vec<CertificateDer<'static>>,
        revocation_lists: Vec<CertificateRevocationListDer<'static>>,
    ) -> Result<Self, CredentialError> {
        let key = PrivateKey::Here(Arc::new(key));
        Self::with_key(chain, key, trust_anchors, revocation_lists)
    }

    /// As [`new`](Self::new), with a key that may be elsewhere. Whether such a key belongs to the leaf, whoever holds it has checked.
    fn with_key(
        chain: Vec<CertificateDer<'static>>,
        key: PrivateKey,
        trust_anchors: Vec<CertificateDer<'static>>,
        revocation_lists: Vec<CertificateRevocationListDer<'static>>,
    ) -> Result<Self, CredentialError> {
        let read = read_chain(&chain)?;
        let (leaf, intermediates) = read.split_first().ok_or(CredentialError::NoCertificate)?;
        check_leaf(leaf, &key)?;
        let details = CertificateDetails::of(leaf);
        let kind = if details.states_anything {
            CredentialKind::Private
        } else {
            CredentialKind::Grid
        };
        let identity = match kind {
            CredentialKind::Private => {
                if chain.len() > CHAIN_CERTIFICATES_MAX {
                    return Err(CredentialError::ChainTooLong {
                        got: chain.len(),
                        max: CHAIN_CERTIFICATES_MAX,
                    });
                }
                check_intermediates(intermediates)?;
                // Whether the trust can be used is known now or when the first peer comes; now is better.
                PrivateAuthority::new(&trust_anchors, &revocation_lists, 0)?;
                details.claim.map_err(|reason| CredentialError::Claim {
                    leaf: details.subject,
                    reason,
                })?
            }
            CredentialKind::Grid => grid::claimed_identity(&read)?,
        };
        let grid_subject = match kind {
            CredentialKind::Private => None,
            // A person's name is the subject already, without the proxies' parts.
            CredentialKind::Grid if identity.name.starts_with('/') => Some(identity.name.clone()),
            CredentialKind::Grid => Some(leaf.subject.slash()),
        };
        Ok(Self {
            chain,
            key,
            trust_anchors,
            revocation_lists,
            identity,
            kind,
            grid_subject,
        })
    }

    /// This credential for a node of that role, if its certificate may stand for it: see
    /// [`VerifiedIdentity::in_role`]. Otherwise it stays as it is.
    #[must_use]
    pub fn for_role(mut self, role: Role) -> Self {
        let of_grid = self.kind == CredentialKind::Grid;
        if of_grid && grid::naming::roles_of(&self.identity.name).contains(&role) {
            self.identity.role = role;
        }
        self
    }

    /// By which rules its certificates are made.
    pub fn kind(&self) -> CredentialKind {
        self.kind
    }

    /// The leaf and its intermediates, as peers get them.
    pub fn chain(&self) -> &[CertificateDer<'static>] {
        &self.chain
    }

    /// What signs for the leaf.
    pub fn private_key(&self) -> &PrivateKey {
        &self.key
    }

    /// The private key; nothing where another process has it.
    pub fn key(&self) -> Option<PrivatePkcs8KeyDer<'_>> {
        match &self.key {
            PrivateKey::Here(key) => Some(PrivatePkcs8KeyDer::from(key.as_slice())),
            PrivateKey::Elsewhere(_) => None,
        }
    }

    /// The authorities whose certificates are accepted.
    pub fn trust_anchors(&self) -> &[CertificateDer<'static>] {
        &self.trust_anchors
    }

    /// What those authorities took back.
    pub fn revocation_lists(&self) -> &[CertificateRevocationListDer<'static>] {
        &self.revocation_lists
    }

    /// The role and the name that the own leaf states; for a grid credential those that a
    /// [`GridVerifier`](crate::GridVerifier) would find.
    pub fn identity(&self) -> Identity {
        self.identity.clone()
    }

    /// The subject in slash form, as peers will see it in [`VerifiedIdentity::grid_subject`]; nothing for a private
    /// credential.
    pub fn grid_subject(&self) -> Option<&str> {
        self.grid_subject.as_deref()
    }

    /// Adds revocation lists; of each issuer the newest counts.
    ///
    /// # Errors
    /// [`TrustError`] when one can't be used; the credential is unchanged then.
    pub fn add_revocation_lists(
        &mut self,
        lists: impl IntoIterator<Item = CertificateRevocationListDer<'static>>,
    ) -> Result<(), TrustError> {
        let before = self.revocation_lists.len();
        self.revocation_lists.extend(lists);
        let checked = PrivateAuthority::new(&self.trust_anchors, &self.revocation_lists, 0);
        if checked.is_err() {
            self.revocation_lists.truncate(before);
        }
        checked.map(drop)
    }

    /// The verifier that trusts what this credential trusts.
    ///
    /// # Errors
    /// [`TrustError::NoAuthority`] for a grid credential, whose trust is elsewhere; none for a private one.
    pub fn authority(&self, generation: u64) -> Result<PrivateAuthority, TrustError> {
        PrivateAuthority::new(&self.trust_anchors, &self.revocation_lists, generation)
    }

    /// Judges the own chain as a peer with the trust of `verifier` would: an expired or revoked credential is better
    /// noticed at the start than at each peer.
    ///
    /// # Errors
    /// [`IdentityError`] as a peer would see it. [`IdentityError::UnknownAuthority`] need not be a fault: peers may
    /// trust an authority that this node doesn't.
    pub fn verify_own(
        &self,
        verifier: &dyn PeerVerifier,
        now: UnixTime,
    ) -> Result<VerifiedIdentity, IdentityError> {
        verifier.verify(
            &self.chain,
            now,
            &Expected {
                roles: &Role::ALL,
                name: None,
            },
        )
    }
}

impl fmt::Debug for Credential {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Credential")
            .field("identity", &format_args!("{}", self.identity))
            .field("certificates", &self.chain.len())
            .field("trust_anchors", &self.trust_anchors.len())
            .field("revocation_lists", &self.revocation_lists.len())
            .finish_non_exhaustive()
    }
}

fn read_chain(chain: &[CertificateDer<'_>]) -> Result<Vec<Certificate>, CredentialError> {
    if chain.len() > GRID_CHAIN_CERTIFICATES_MAX {
        return Err(CredentialError::ChainTooLong {
            got: chain.len(),
            max: GRID_CHAIN_CERTIFICATES_MAX,
        });
    }
    let read = chain.iter().enumerate().map(|(position, certificate)| {
        Certificate::read(certificate)
            .map_err(|reason| CredentialError::BadCertificate { position, reason })
    });
    read.collect()
}

fn check_leaf(leaf: &Certificate, key: &PrivateKey) -> Result<(), CredentialError> {
    let leaf_subject = || leaf.subject.quoted();
    if leaf.is_authority() {
        return Err(CredentialError::AuthorityAsLeaf {
            leaf: leaf_subject(),
        });
    }
    match key {
        PrivateKey::Here(key)
            if public_key(key).ok_or(CredentialError::UnknownKey)? != leaf.key.bits() =>
        {
            Err(CredentialError::KeyMismatch {
                leaf: leaf_subject(),
            })
        }
        PrivateKey::Here(_) | PrivateKey::Elsewhere(_) => Ok(()),
    }
}

fn check_intermediates(intermediates: &[Certificate]) -> Result<(), CredentialError> {
    match intermediates.iter().position(|one| !one.is_authority()) {
        None => Ok(()),
        Some(before) => Err(CredentialError::StrayLeaf {
            position: before + 1,
            subject: intermediates[before].subject.quoted(),
        }),
    }
}

/// The public half of a key in PKCS#8, in the form in which it stands in a certificate.
fn public_key(pkcs8: &[u8]) -> Option<Vec<u8>> {
    if pkcs8.len() > PRIVATE_KEY_BYTES_MAX {
        return None;
    }
    // Keys made elsewhere often lack the public half, which `from_pkcs8` of Ed25519 would insist on.
    if let Ok(pair) = Ed25519KeyPair::from_pkcs8_maybe_unchecked(pkcs8) {
        return Some(pair.public_key().as_ref().to_vec());
    }
    for algorithm in [
        &ECDSA_P256_SHA256_ASN1_SIGNING,
        &ECDSA_P384_SHA384_ASN1_SIGNING,
        &ECDSA_P521_SHA512_ASN1_SIGNING,
    ] {
        if let Ok(pair) = EcdsaKeyPair::from_pkcs8(algorithm, pkcs8) {
            return Some(pair.public_key().as_ref().to_vec());
        }
    }
    RsaKeyPair::from_pkcs8(pkcs8)
        .ok()
        .map(|pair| pair.public_key().as_ref().to_vec())
}

#[cfg(test)]
mod tests;
