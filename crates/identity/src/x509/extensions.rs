//! The extensions of a certificate that this crate understands (RFC 5280 section 4.2, RFC 3820, VOMS).

use std::fmt;
use std::ops::Range;

use x509_parser::asn1_rs::FromDer as _;
use x509_parser::extensions::{
    BasicConstraints as ParsedBasicConstraints, CRLDistributionPoints, DistributionPointName,
    ExtendedKeyUsage, GeneralName, KeyUsage as ParsedKeyUsage, PolicyConstraints,
    SubjectAlternativeName, X509Extension,
};

use super::alternative_name::AlternativeName;
use super::name_constraints::NameConstraints;
use super::proxy_information::ProxyInformation;
use crate::der;
use crate::limits::{ALTERNATIVE_NAMES_MAX, EXTENSION_BYTES_MAX, EXTENSIONS_MAX};
use crate::malformed::Malformed;

/// What the extensions of one certificate state.
#[derive(Clone, Debug, Default)]
pub(crate) struct Extensions {
    pub(crate) basic_constraints: Option<BasicConstraints>,
    pub(crate) key_usage: Option<KeyUsages>,
    pub(crate) purposes: Option<Purposes>,
    /// Subject alternative names.
    pub(crate) alternative_names: Option<Vec<AlternativeName>>,
    pub(crate) has_issuer_alternative_name: bool,
    pub(crate) name_constraints: Option<NameConstraints>,
    /// The URIs of lists of all reasons by the certificate's own issuer (RFC 5280 section 4.2.1.13).
    pub(crate) distribution_points: Vec<String>,
    pub(crate) proxy: Option<ProxyInformation>,
    /// Where the VOMS extension's content lies in the certificate.
    pub(crate) attribute_certificates: Option<Range<usize>>,
    /// The object identifier of the first critical extension that isn't understood.
    pub(crate) unknown_critical: Option<String>,
}

/// RFC 5280 section 4.2.1.9.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BasicConstraints {
    pub(crate) is_authority: bool,
    /// How many authorities that aren't self-issued may follow below.
    pub(crate) path_length: Option<u32>,
}

/// One use of a key (RFC 5280 section 4.2.1.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KeyUsage {
    DigitalSignature,
    CertificateSigning,
    RevocationListSigning,
}

/// The uses that a certificate allows for its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KeyUsages(u16);

impl KeyUsages {
    pub(crate) fn contains(self, one: KeyUsage) -> bool {
        let usage = ParsedKeyUsage { flags: self.0 };
        match one {
            KeyUsage::DigitalSignature => usage.digital_signature(),
            KeyUsage::CertificateSigning => usage.key_cert_sign(),
            KeyUsage::RevocationListSigning => usage.crl_sign(),
        }
    }
}

/// The ends of a connection that a certificate may stand for, by its extended key usages (RFC 5280 section 4.2.1.12).
///
/// `anyExtendedKeyUsage` stands for neither: RFC 5280 leaves that to applications, and OpenSSL and webpki have it so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Purposes {
    /// `clientAuth`
    pub client: bool,
    /// `serverAuth`
    pub server: bool,
}

impl Purposes {
    /// What a certificate without extended key usages allows.
    pub(crate) const ALL: Self = Self {
        client: true,
        server: true,
    };

    /// What both allow.
    pub(crate) fn and(self, other: Self) -> Self {
        Self {
            client: self.client && other.client,
            server: self.server && other.server,
        }
    }

    pub(crate) fn allow_neither(self) -> bool {
        !self.client && !self.server
    }
}

impl fmt::Display for Purposes {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match (self.client, self.server) {
            (true, true) => "clientAuth and serverAuth",
            (true, false) => "clientAuth only",
            (false, true) => "serverAuth only",
            (false, false) => "neither clientAuth nor serverAuth",
        })
    }
}

/// `id-ce`: 2.5.29
const STANDARD: [u8; 2] = [0x55, 0x1d];
/// RFC 3820: 1.3.6.1.5.5.7.1.14
const PROXY: &[u8] = &[0x2b, 6, 1, 5, 5, 7, 1, 14];
/// The draft before it, of Globus Toolkit 3: 1.3.6.1.4.1.3536.1.222
const DRAFT_PROXY: &[u8] = &[0x2b, 6, 1, 4, 1, 0x9b, 0x50, 1, 0x81, 0x5e];
/// VOMS: 1.3.6.1.4.1.8005.100.100.5
const ATTRIBUTE_CERTIFICATES: &[u8] = &[0x2b, 6, 1, 4, 1, 0xbe, 0x45, 100, 100, 5];

impl Extensions {
    pub(super) fn read(certificate: &[u8], found: &[X509Extension<'_>]) -> Result<Self, Malformed> {
        if found.len() > EXTENSIONS_MAX {
            return Err(Malformed::TooMany {
                what: "extensions in a certificate",
                got: found.len(),
                max: EXTENSIONS_MAX,
            });
        }
        let mut extensions = Self::default();
        if let Some(repeated) = repeated(found) {
            return Err(Malformed::RepeatedExtension {
                extension: name_of(repeated),
                place: "a certificate",
            });
        }
        for extension in found {
            if extension.value.len() > EXTENSION_BYTES_MAX {
                return Err(Malformed::LongExtension {
                    extension: name_of(extension),
                    got: extension.value.len(),
                    max: EXTENSION_BYTES_MAX,
                });
            }
            extensions.take(certificate, extension)?;
        }
        Ok(extensions)
    }

    fn take(&mut self, certificate: &[u8], extension: &X509Extension<'_>) -> Result<(), Malformed> {
        // What is read is DER; the value of an extension that isn't read is anybody's.
        let read = || match der::check(extension.value, "value of an extension") {
            Ok(()) => Ok(extension.value),
            Err(fault) => Err(Malformed::NotDer(fault)),
        };
        match extension.oid.as_bytes() {
            [a, b, last] if [*a, *b] == STANDARD => match last {
                15 => {
                    self.key_usage =
                        Some(KeyUsages(whole(ParsedKeyUsage::from_der(read()?))?.flags))
                }
                17 => self.alternative_names = Some(alternative_names(read()?)?),
                18 => {
                    self.has_issuer_alternative_name = true;
                    self.refuse_if_critical(extension);
                }
                19 => self.basic_constraints = Some(basic_constraints(read()?)?),
                30 => self.name_constraints = Some(NameConstraints::read(read()?)?),
                // Certificate policies, their mappings, and the prohibition of any-policy: nobody here asks for a
                // policy, so they exclude nothing (RFC 5280 section 6.1.1 (c) and (e)). Policy *constraints* do where they
                // require an explicit policy, and are unknown then when critical; to inhibit mappings excludes nothing either.
                32 | 33 | 54 => {}
                36 => {
                    if whole(PolicyConstraints::from_der(read()?))?
                        .require_explicit_policy
                        .is_some()
                    {
                        self.refuse_if_critical(extension);
                    }
                }
                // Lists come from the trust directory, but some say that they are only about certificates that
                // name them.
                31 => self.distribution_points = distribution_points(read()?)?,
                37 => self.purposes = Some(purposes(read()?)?),
                _ => self.refuse_if_critical(extension),
            },
            PROXY => {
                self.proxy =
                    Some(self.only_proxy(ProxyInformation::read(read()?, extension.critical)?)?)
            }
            DRAFT_PROXY => {
                self.proxy = Some(
                    self.only_proxy(ProxyInformation::read_draft(read()?, extension.critical)?)?,
                );
            }
            ATTRIBUTE_CERTIFICATES => {
                self.attribute_certificates = Some(der::range_in(certificate, extension.value));
            }
            _ => self.refuse_if_critical(extension),
        }
        Ok(())
    }

    fn refuse_if_critical(&mut self, extension: &X509Extension<'_>) {
        if extension.critical && self.unknown_critical.is_none() {
            self.unknown_critical = Some(extension.oid.to_id_string());
        }
    }

    /// Two kinds of proxy in one certificate would be judged by two sets of rules.
    fn only_proxy(&self, proxy: ProxyInformation) -> Result<ProxyInformation, Malformed> {
        match self.proxy {
            None => Ok(proxy),
            Some(_) => Err(Malformed::BadExtension),
        }
    }
}

/// The first extension whose kind stands there before it already (RFC 5280 section 4.2); `found` has few.
pub(crate) fn repeated<'a, 'b>(found: &'a [X509Extension<'b>]) -> Option<&'a X509Extension<'b>> {
    let mut later = found.iter().enumerate();
    later
        .find(|(position, extension)| {
            let mut earlier = found[..*position].iter();
            earlier.any(|other| other.oid == extension.oid)
        })
        .map(|(_, extension)| extension)
}

/// What an extension is called, for people.
fn name_of(extension: &X509Extension<'_>) -> String {
    let identifier = extension.oid.to_id_string();
    match extension.oid.as_bytes() {
        ATTRIBUTE_CERTIFICATES => format!("{identifier} (attribute certificates of VOMS)"),
        PROXY | DRAFT_PROXY => format!("{identifier} (proxyCertInfo)"),
        [a, b, 17] if [*a, *b] == STANDARD => format!("{identifier} (subjectAltName)"),
        _ => identifier,
    }
}

/// A parsed extension with nothing behind it.
pub(super) fn whole<T, E>(parsed: Result<(&[u8], T), E>) -> Result<T, Malformed> {
    match parsed {
        Ok(([], value)) => Ok(value),
        _ => Err(Malformed::BadExtension),
    }
}

fn basic_constraints(value: &[u8]) -> Result<BasicConstraints, Malformed> {
    let parsed = whole(ParsedBasicConstraints::from_der(value))?;
    Ok(BasicConstraints {
        is_authority: parsed.ca,
        path_length: parsed.path_len_constraint,
    })
}

fn purposes(value: &[u8]) -> Result<Purposes, Malformed> {
    let parsed = whole(ExtendedKeyUsage::from_der(value))?;
    Ok(Purposes {
        client: parsed.client_auth,
        server: parsed.server_auth,
    })
}

fn distribution_points(value: &[u8]) -> Result<Vec<String>, Malformed> {
    let points = whole(CRLDistributionPoints::from_der(value))?.points;
    let mut found = Vec::new();
    for point in points {
        if point.reasons.is_some() || point.crl_issuer.is_some() {
            continue;
        }
        let Some(DistributionPointName::FullName(names)) = point.distribution_point else {
            continue;
        };
        for name in names {
            if let GeneralName::URI(address) = name {
                found.push(address.to_owned());
            }
        }
    }
    if found.len() > ALTERNATIVE_NAMES_MAX {
        return Err(Malformed::TooMany {
            what: "distribution points in a certificate",
            got: found.len(),
            max: ALTERNATIVE_NAMES_MAX,
        });
    }
    Ok(found)
}

fn alternative_names(value: &[u8]) -> Result<Vec<AlternativeName>, Malformed> {
    let names = whole(SubjectAlternativeName::from_der(value))?.general_names;
    if names.len() > ALTERNATIVE_NAMES_MAX {
        return Err(Malformed::TooMany {
            what: "alternative names in a certificate",
            got: names.len(),
            max: ALTERNATIVE_NAMES_MAX,
        });
    }
    if names.is_empty() {
        return Err(Malformed::EmptyAlternativeName { got: "no name" });
    }
    let names: Vec<_> = names
        .iter()
        .map(AlternativeName::read)
        .collect::<Result<_, _>>()?;
    match names.iter().any(AlternativeName::is_empty) {
        true => Err(Malformed::EmptyAlternativeName {
            got: "an empty name",
        }),
        false => Ok(names),
    }
}
