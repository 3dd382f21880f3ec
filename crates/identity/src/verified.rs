//! A proven identity, and the seam where proofs are judged.

use std::fmt;
use std::sync::Arc;

use aws_lc_rs::digest;
use rustls_pki_types::{CertificateDer, UnixTime};

use crate::claim::{Identity, Role};
use crate::distinguished_name::DistinguishedName;
use crate::error::IdentityError;
use crate::grid::naming;
use crate::grid::path::JudgedPath;
use crate::grid::proxy::Proxy;
use crate::voms::attributes::{Attributes, VomsAttributes};
use crate::voms::error::AttributeFault;
use crate::voms::fqan::Fqan;
use crate::which_certificate::WhichCertificate;
use crate::x509::Certificate;

/// Who a peer is, as a [`PeerVerifier`] of this crate has found it to be.
///
/// # Security
/// The fields are private and there is no public constructor: holding one means that the chain led to a trusted
/// authority at the time of the check. It does not mean that the peer holds the leaf's key; the TLS engine proves that
/// in the same handshake. It is good until [`not_after`](Self::not_after), and to be judged again when the
/// [`generation`](Self::generation) of the trust changes.
#[derive(Clone, PartialEq, Eq)]
pub struct VerifiedIdentity(Arc<Proven>);

#[derive(Clone, PartialEq, Eq)]
struct Proven {
    identity: Identity,
    subject: DistinguishedName,
    proxy: Option<Proxy>,
    not_after: UnixTime,
    fingerprint: [u8; 32],
    serials: Vec<Box<[u8]>>,
    chain: Vec<CertificateDer<'static>>,
    generation: u64,
    grid: Option<OfGrid>,
}

/// What only a grid says about somebody.
#[derive(Clone, PartialEq, Eq)]
struct OfGrid {
    /// The subject in slash form, by which people are known there.
    subject: String,
    /// Of an independent proxy: the subjects above its own in slash form, the end entity's last.
    owners: Vec<String>,
    attributes: Vec<VomsAttributes>,
    attribute_faults: Vec<AttributeFault>,
    unfit_for_clients: Option<WhichCertificate>,
}

impl VerifiedIdentity {
    /// For verifiers only: states that the chain was found good under the trust of that generation.
    ///
    /// `chain` is what was presented, leaf first; there is at least the leaf.
    pub(crate) fn of_authority(
        identity: Identity,
        chain: &[Certificate],
        not_after: UnixTime,
        generation: u64,
    ) -> Self {
        Self(Arc::new(Proven {
            identity,
            subject: chain[0].subject.clone(),
            proxy: None,
            not_after,
            fingerprint: fingerprint(&chain[0].der),
            serials: serials(chain),
            chain: chain.iter().map(|one| one.der.clone()).collect(),
            generation,
            grid: None,
        }))
    }

    /// As [`of_authority`](Self::of_authority), for a path of a grid.
    pub(crate) fn of_grid(
        identity: Identity,
        path: JudgedPath,
        attributes: Attributes,
        generation: u64,
    ) -> Self {
        Self(Arc::new(Proven {
            identity,
            subject: path.subject().clone(),
            proxy: path.proxy,
            not_after: attributes.ends,
            fingerprint: fingerprint(&path.leaf().der),
            serials: serials(&path.presented),
            grid: Some(OfGrid {
                subject: path.subject().slash(),
                owners: path.owners().map(DistinguishedName::slash).collect(),
                attributes: attributes.good,
                attribute_faults: attributes.faults,
                unfit_for_clients: path.unfit_for_clients(),
            }),
            chain: path.presented.into_iter().map(|one| one.der).collect(),
            generation,
        }))
    }

    /// The same somebody in another role, if its certificate may stand for that one. That of a private authority states one role. A
    /// grid's states none: a host may be a worker, gateway, agent or peer, and everybody else a manager or peer.
    ///
    /// # Security
    /// The somebody chooses among these roles, so none of them is a right: let nobody of a grid in without a list for the role.
    #[must_use]
    pub fn in_role(&self, role: Role) -> Option<Self> {
        if role == self.role() {
            return Some(self.clone());
        }
        let may_be = self.0.grid.is_some() && naming::roles_of(self.name()).contains(&role);
        may_be.then(|| {
            let mut proven = Proven::clone(&self.0);
            proven.identity.role = role;
            Self(Arc::new(proven))
        })
    }

    /// What the peer is.
    pub fn role(&self) -> Role {
        self.0.identity.role
    }

    /// Which one it is.
    pub fn name(&self) -> &str {
        &self.0.identity.name
    }

    /// Role and name together.
    pub fn identity(&self) -> &Identity {
        &self.0.identity
    }

    /// Whom the peer acts as: the subject of the end entity's certificate, whatever proxies stand below it, or an
    /// independent proxy's own.
    pub fn subject(&self) -> &DistinguishedName {
        &self.0.subject
    }

    /// What its proxy certificates amount to; nothing for a peer without any.
    pub fn proxy(&self) -> Option<&Proxy> {
        self.0.proxy.as_ref()
    }

    /// Whether it acts as an independent proxy, whose subject is its issuer's and a common name that its holder chose.
    ///
    /// # Security
    /// Such a name keeps people apart. That it fits a pattern says nothing.
    pub fn is_independent(&self) -> bool {
        self.proxy().is_some_and(|proxy| proxy.independent)
    }

    /// The subject in slash form, by which people are known in a grid; nothing for certificates of a private authority, in
    /// which only the name counts.
    pub fn grid_subject(&self) -> Option<&str> {
        self.0.grid.as_ref().map(|grid| grid.subject.as_str())
    }

    /// Of an independent proxy: who issued it, in slash form, the end entity last. They are proven, unlike what the proxy's
    /// own name says, which its owner spells as they like.
    pub fn owners(&self) -> &[String] {
        self.0.grid.as_ref().map_or(&[], |grid| &grid.owners)
    }

    /// What virtual organisations say about the peer, one entry for each attribute certificate that counts, in their
    /// order. The first one is the primary one.
    pub fn attributes(&self) -> &[VomsAttributes] {
        self.0.grid.as_ref().map_or(&[], |grid| &grid.attributes)
    }

    /// The attribute certificates that came along and count for nothing, and why.
    pub fn attribute_faults(&self) -> &[AttributeFault] {
        let grid = self.0.grid.as_ref();
        grid.map_or(&[], |grid| &grid.attribute_faults)
    }

    /// The certificate, if any, whose extended key usages leave out TLS clients (RFC 5280 section 4.2.1.12): `clientAuth` isn't among
    /// them. Of proxies, their end entity and the authorities above, the one nearest to the leaf.
    ///
    /// Whether such a peer may be a client is for who listens to say; verification takes a certificate for either use.
    pub fn unfit_for_clients(&self) -> Option<&WhichCertificate> {
        self.0.grid.as_ref()?.unfit_for_clients.as_ref()
    }

    /// The primary virtual organisation.
    pub fn vo(&self) -> Option<&str> {
        self.attributes().first().map(VomsAttributes::vo)
    }

    /// All attributes of all virtual organisations, in their order; the first one is the primary one.
    pub fn fqans(&self) -> impl Iterator<Item = &Fqan> {
        self.attributes().iter().flat_map(VomsAttributes::fqans)
    }

    /// When the first thing that proves it ends: a certificate of the path, from the leaf to the authority, an attribute
    /// certificate or a certificate of its signer's path, or a revocation list of a grid (a private authority's lists are
    /// looked at when they are used).
    pub fn not_after(&self) -> UnixTime {
        self.0.not_after
    }

    /// SHA-256 of the leaf in DER.
    pub fn fingerprint(&self) -> [u8; 32] {
        self.0.fingerprint
    }

    /// The leaf's serial number, big-endian, without leading zeros.
    pub fn serial(&self) -> &[u8] {
        &self.0.serials[0]
    }

    /// The serial numbers of the presented certificates, each as [`serial`](Self::serial) has it, leaf first.
    pub fn serials(&self) -> &[Box<[u8]>] {
        &self.0.serials
    }

    /// The certificates as they were presented, leaf first.
    ///
    /// # Security
    /// All that is proven of them is what this type says. There can be certificates among them that no path needed.
    pub fn chain(&self) -> &[CertificateDer<'static>] {
        &self.0.chain
    }

    /// Whether a later verdict on the same chain says the same about the peer: the same identity, and the same attributes
    /// in the same order. When they end may differ, and so may the reasons why other attributes don't count.
    pub fn says_the_same_as(&self, later: &Self) -> bool {
        let (attributes, others) = (self.attributes(), later.attributes());
        self.identity() == later.identity()
            && self.subject() == later.subject()
            && self.proxy() == later.proxy()
            && attributes.len() == others.len()
            && attributes
                .iter()
                .zip(others)
                .all(|(one, other)| one.says_the_same_as(other))
    }

    /// The generation of the trust data by which it was judged.
    pub fn generation(&self) -> u64 {
        self.0.generation
    }
}

fn serials(chain: &[Certificate]) -> Vec<Box<[u8]>> {
    chain.iter().map(|one| one.serial().into()).collect()
}

impl fmt::Debug for VerifiedIdentity {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("VerifiedIdentity")
            .field("identity", &format_args!("{}", self.0.identity))
            .field("not_after", &self.0.not_after.as_secs())
            .field("generation", &self.0.generation)
            .finish_non_exhaustive()
    }
}

impl fmt::Display for VerifiedIdentity {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.identity.fmt(formatter)
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
            // Host names and distinguished names are both compared without case.
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
/// [`PrivateAuthority`](crate::PrivateAuthority) is the one for a private authority,
/// [`GridVerifier`](crate::GridVerifier) the one for grids.
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
