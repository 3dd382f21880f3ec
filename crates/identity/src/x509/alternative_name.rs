//! The names that a certificate has beside its subject.

use x509_parser::extensions::GeneralName;

use crate::distinguished_name::DistinguishedName;
use crate::malformed::Malformed;

/// A subject alternative name (RFC 5280 section 4.2.1.6).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum AlternativeName {
    Dns(String),
    Mail(String),
    Uri(String),
    Address(Box<[u8]>),
    Directory(DistinguishedName),
    /// A form that isn't looked into, by its tag.
    Other(u32),
}

impl AlternativeName {
    pub(super) fn is_empty(&self) -> bool {
        match self {
            Self::Dns(text) | Self::Mail(text) | Self::Uri(text) => text.is_empty(),
            Self::Address(bytes) => bytes.is_empty(),
            Self::Directory(name) => name.is_empty(),
            Self::Other(_) => false,
        }
    }

    pub(super) fn read(name: &GeneralName<'_>) -> Result<Self, Malformed> {
        Ok(match name {
            GeneralName::DNSName(text) => Self::Dns((*text).to_owned()),
            GeneralName::RFC822Name(text) => Self::Mail((*text).to_owned()),
            GeneralName::URI(text) => Self::Uri((*text).to_owned()),
            GeneralName::IPAddress(bytes) => Self::Address((*bytes).into()),
            GeneralName::DirectoryName(name) => {
                Self::Directory(DistinguishedName::from_parsed(name)?)
            }
            GeneralName::OtherName(..) => Self::Other(0),
            GeneralName::X400Address(_) => Self::Other(3),
            GeneralName::EDIPartyName(_) => Self::Other(5),
            GeneralName::RegisteredID(_) => Self::Other(8),
            GeneralName::Invalid(..) => return Err(Malformed::BadExtension),
        })
    }
}
