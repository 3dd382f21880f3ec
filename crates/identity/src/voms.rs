//! Attributes that a virtual organisation gives to its members: attribute certificates of VOMS in proxy certificates.
//!
//! RFC 5755 says what an attribute certificate is, GFD.182 what VOMS writes into it. A good one adds attributes to an
//! identity that was found good without it; a bad one adds a fault. Neither ever changes who somebody is.

mod attribute_certificate;
mod details;
mod error;
mod fqan;
mod judgement;
mod policy_authority;
mod signers;

use rustls_pki_types::UnixTime;

use crate::distinguished_name::DistinguishedName;

pub use self::details::AttributeCertificateDetails;
pub use self::error::{AttributeFault, AttributeProblem, SignerChainsError};
pub use self::fqan::{BadFqan, Fqan};
pub(crate) use self::fqan::{CAPABILITY, ROLE, is_part_byte};
pub(crate) use self::judgement::judge;
pub(crate) use self::signers::SignerChains;

/// What one attribute certificate gives, after it was found good.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VomsAttributes {
    vo: String,
    server: String,
    fqans: Vec<Fqan>,
    generic: Vec<GenericAttribute>,
    issuer: DistinguishedName,
    serial: Box<[u8]>,
    not_after: UnixTime,
}

impl VomsAttributes {
    /// The virtual organisation.
    pub fn vo(&self) -> &str {
        &self.vo
    }

    /// The host name of the VOMS server.
    pub fn server(&self) -> &str {
        &self.server
    }

    /// The attributes, in the order that their owner asked for; the first one is the primary one. There is at least one,
    /// and all are of this organisation.
    pub fn fqans(&self) -> &[Fqan] {
        &self.fqans
    }

    /// Attributes with values, as they were stated.
    pub fn generic(&self) -> &[GenericAttribute] {
        &self.generic
    }

    /// Who signed the attribute certificate.
    pub fn issuer(&self) -> &DistinguishedName {
        &self.issuer
    }

    /// Its serial number, big-endian, without leading zeros.
    pub fn serial(&self) -> &[u8] {
        &self.serial
    }

    /// Whether both give the same. A renewed revocation list changes when that ends, and nothing else.
    pub(crate) fn says_the_same_as(&self, other: &Self) -> bool {
        let not_after = self.not_after;
        *self
            == Self {
                not_after,
                ..other.clone()
            }
    }

    /// When the first thing ends that proves the attributes: the attribute certificate, a certificate of its signer's path,
    /// or a revocation list used there.
    pub fn not_after(&self) -> UnixTime {
        self.not_after
    }
}

/// What a chain's attribute certificates amount to.
#[derive(Debug)]
pub(crate) struct Attributes {
    /// Those that count, in their order.
    pub(crate) good: Vec<VomsAttributes>,
    /// Those that don't.
    pub(crate) faults: Vec<AttributeFault>,
    /// When the first thing ends that proves the path or a good one.
    pub(crate) ends: UnixTime,
}

/// An attribute with a value, which a virtual organisation gives to a member (GFD.182 section 3.5).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GenericAttribute {
    /// What it says something about, `nickname` for example.
    pub name: String,
    /// What it says.
    pub value: String,
    /// The group in which it says so; it can be empty.
    pub qualifier: String,
}

fn name(der: &[u8], field: &'static str) -> Result<DistinguishedName, AttributeProblem> {
    DistinguishedName::from_der(der).map_err(|_| AttributeProblem::Malformed { field })
}
