//! Attributes that a virtual organisation gives to its members: attribute certificates of VOMS in proxy certificates.
//!
//! RFC 5755 says what an attribute certificate is, GFD.182 what VOMS writes into it. A good one adds attributes to an
//! identity that was found good without it; a bad one adds a fault. Neither ever changes who somebody is.

mod attribute_certificate;
pub(crate) mod attributes;
mod details;
pub(crate) mod error;
pub(crate) mod fqan;
mod judgement;
mod policy_authority;
mod signers;

pub use self::attributes::{GenericAttribute, VomsAttributes};
pub use self::details::AttributeCertificateDetails;
pub use self::error::{AttributeFault, AttributeProblem, SignerChainsError};
pub use self::fqan::{BadFqan, Fqan};
pub(crate) use self::fqan::{CAPABILITY, ROLE, is_part_byte};
pub(crate) use self::judgement::judge;
pub(crate) use self::signers::SignerChains;
