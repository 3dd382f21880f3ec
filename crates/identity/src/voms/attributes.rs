//! What attribute certificates give, once they were judged.

use rustls_pki_types::UnixTime;

use super::error::{AttributeFault, AttributeProblem};
use super::fqan::Fqan;
use crate::distinguished_name::DistinguishedName;

/// What one attribute certificate gives, after it was found good.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VomsAttributes {
    pub(super) vo: String,
    pub(super) server: String,
    pub(super) fqans: Vec<Fqan>,
    pub(super) generic: Vec<GenericAttribute>,
    pub(super) issuer: DistinguishedName,
    pub(super) serial: Box<[u8]>,
    pub(super) not_after: UnixTime,
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

/// Reads the name in this field.
pub(super) fn name(der: &[u8], field: &'static str) -> Result<DistinguishedName, AttributeProblem> {
    DistinguishedName::from_der(der).map_err(|_| AttributeProblem::Malformed { field })
}
