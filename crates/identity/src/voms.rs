//! Attributes that a virtual organisation gives to its members: attribute certificates of VOMS in proxy certificates.
//!
//! RFC 5755 says what an attribute certificate is, GFD.182 what VOMS writes into it. A good one adds attributes to an
//! identity that was found good without it; a bad one adds a fault. Neither ever changes who somebody is.

mod attribute_certificate;
mod error;
mod fqan;
mod signers;

pub use self::error::{AttributeFault, AttributeProblem, VomsFileError};
pub use self::fqan::{BadFqan, Fqan};
pub(crate) use self::fqan::{CAPABILITY, ROLE, is_part_byte};

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
