//! Attribute certificates as they are written: RFC 5755 with the attributes and extensions of VOMS (GFD.182).

use rustls_pki_types::UnixTime;
use x509_parser::asn1_rs::{Any, BitString, Class, FromDer, GeneralizedTime, Integer, Oid, Tag};
use x509_parser::extensions::{GeneralName, X509Extension};
use x509_parser::time::ASN1Time;

use super::attributes::GenericAttribute;
use super::error::AttributeProblem;
use crate::date::unix_time;
use crate::der;
use crate::limits::{
    ATTRIBUTE_CERTIFICATES_MAX, ATTRIBUTE_TARGETS_MAX, FQANS_MAX, GENERIC_ATTRIBUTES_MAX,
    SIGNER_CERTIFICATES_MAX,
};

/// The attribute that holds attribute names.
const FQANS: &str = "1.3.6.1.4.1.8005.100.100.4";
/// The extension that holds the signer's certificate and its authorities'.
const SIGNER_CERTIFICATES: &str = "1.3.6.1.4.1.8005.100.100.10";
/// The extension that holds generic attributes.
const GENERIC_ATTRIBUTES: &str = "1.3.6.1.4.1.8005.100.100.11";
/// RFC 5755 section 4.3.2.
const TARGETS: &str = "2.5.29.55";
/// RFC 5755 section 4.3.6: its presence is all that it says.
const NO_REVOCATION: &str = "2.5.29.56";
/// RFC 5755 section 4.3.3: a hint, which finding the signature good makes needless.
const AUTHORITY_KEY: &str = "2.5.29.35";

/// The version that RFC 5755 section 4.2.1 asks for: `v2`.
const VERSION: u32 = 1;

/// RFC 5755 section 4.2.5: 20 octets, and perhaps a zero before them.
const SERIAL_BYTES_MAX: usize = 21;

/// An attribute certificate, borrowed from the proxy that carries it. Nothing here is proven.
#[derive(Debug)]
pub(crate) struct AttributeCertificate<'a> {
    /// The issuer that the holder's certificate states, as a Name in DER.
    pub(crate) holder_issuer: &'a [u8],
    /// The serial number of the holder's certificate, as it is encoded.
    pub(crate) holder_serial: &'a [u8],
    /// Who says to have signed it, as a Name in DER.
    pub(crate) issuer: &'a [u8],
    /// Its own serial number, as it is encoded.
    pub(crate) serial: &'a [u8],
    pub(crate) not_before: UnixTime,
    pub(crate) not_after: UnixTime,
    /// `VO://HOST:PORT`
    pub(crate) policy_authority: &'a str,
    pub(crate) fqans: Vec<&'a str>,
    pub(crate) extensions: AttributeExtensions<'a>,
}

/// What the extensions say that we read.
#[derive(Debug, Default)]
pub(crate) struct AttributeExtensions<'a> {
    /// The hosts that may believe it; nothing, when all may.
    pub(crate) targets: Option<Vec<&'a str>>,
    /// The signer's certificate in DER, then its authorities'.
    pub(crate) signer_certificates: Vec<&'a [u8]>,
    pub(crate) generic: Vec<GenericAttribute>,
}

/// Takes the value of a proxy's extension apart: the attribute certificates in DER, in their order.
///
/// # Errors
/// [`AttributeProblem`] when it is no list of them, an empty one, or one of too many.
pub(crate) fn read_list(extension: &[u8]) -> Result<Vec<&[u8]>, AttributeProblem> {
    let mut outer = Fields::within(extension, "list of attribute certificates")?;
    let list = outer.sequence()?;
    outer.end()?;
    let certificates = raw_elements(list, "attribute certificates", ATTRIBUTE_CERTIFICATES_MAX)?;
    match certificates.len() {
        0 => Err(malformed("list of attribute certificates")),
        _ => Ok(certificates),
    }
}

impl<'a> AttributeCertificate<'a> {
    /// Reads one attribute certificate.
    ///
    /// # Errors
    /// [`AttributeProblem`] says that it is not DER, or names the field that is not what RFC 5755 and VOMS prescribe, or the extension that is
    /// critical and not known.
    pub(crate) fn read(der: &'a [u8]) -> Result<Self, AttributeProblem> {
        der::check(der, "attribute certificate")?;
        let mut outer = Fields::within(der, "structure")?;
        let signed = outer.element()?.raw;
        let algorithm = outer.at("signature algorithm").element()?.raw;
        let signature: BitString<'a> = outer.at("signature").next()?;
        outer.end()?;
        if signature.unused_bits != 0 {
            return Err(malformed("signature"));
        }

        let mut fields = Fields::within(signed, "structure")?;
        if fields.at("version").next::<u32, _>()? != VERSION {
            return Err(malformed("version"));
        }
        let (holder_issuer, holder_serial) = read_holder(fields.at("holder").sequence()?)?;
        let issuer = read_issuer(fields.at("issuer").context(0)?)?;
        if fields.at("signature algorithm").element()?.raw != algorithm {
            return Err(AttributeProblem::TwoAlgorithms);
        }
        let serial = fields.at("serial number").serial()?;
        let mut period = fields.at("validity").sequence()?;
        let (not_before, not_after) = (period.time()?, period.time()?);
        period.end()?;
        let (policy_authority, fqans) = read_attributes(fields.at("attributes").sequence()?)?;
        // The issuer's unique identifier says nothing that its name and its signature don't.
        if fields
            .at("issuer's unique identifier")
            .starts_with(Tag::BitString)
        {
            fields.next::<BitString<'a>, _>()?;
        }
        let extensions = match fields.at("extensions").rest {
            [] => AttributeExtensions::default(),
            _ => AttributeExtensions::read(fields.sequence()?)?,
        };
        fields.end()?;
        Ok(Self {
            holder_issuer,
            holder_serial,
            issuer,
            serial,
            not_before,
            not_after,
            policy_authority,
            fqans,
            extensions,
        })
    }
}

/// RFC 5755 section 4.2.2: `baseCertificateID`, and nothing else, as VOMS writes it.
fn read_holder<'a>(mut holder: Fields<'a>) -> Result<(&'a [u8], &'a [u8]), AttributeProblem> {
    let mut certificate = holder.context(0)?;
    holder.end()?;
    let issuer = directory_name(certificate.sequence()?)?;
    let serial = certificate.serial()?;
    certificate.end()?;
    Ok((issuer, serial))
}

/// RFC 5755 section 4.2.3: `v2Form` with one name.
fn read_issuer<'a>(mut form: Fields<'a>) -> Result<&'a [u8], AttributeProblem> {
    let issuer = directory_name(form.sequence()?)?;
    form.end()?;
    Ok(issuer)
}

/// Finds the attribute of VOMS among the others: its policy authority, and the attribute names.
fn read_attributes<'a>(
    mut attributes: Fields<'a>,
) -> Result<(&'a str, Vec<&'a str>), AttributeProblem> {
    let mut found = None;
    while !attributes.rest.is_empty() {
        let mut attribute = attributes.sequence()?;
        let kind: Oid<'a> = attribute.next()?;
        let values = attribute.tagged(Class::Universal, Tag::Set)?;
        attribute.end()?;
        if kind.to_id_string() == FQANS && found.replace(read_fqans(values)?).is_some() {
            return Err(malformed("attributes"));
        }
    }
    found.ok_or(AttributeProblem::NoAttributes)
}

/// RFC 5755 section 4.4: one `IetfAttrSyntax` of octet strings.
fn read_fqans<'a>(mut values: Fields<'a>) -> Result<(&'a str, Vec<&'a str>), AttributeProblem> {
    let mut value = values.sequence()?;
    values.end()?;
    let policy_authority = uri(value.at("policy authority").context(0)?)?;
    let names = value.at("attributes").sequence()?;
    value.end()?;
    let names = names.elements("attribute names", FQANS_MAX)?;
    let names = names.into_iter().map(|name| octets(&name, "attributes"));
    Ok((policy_authority, names.collect::<Result<_, _>>()?))
}

impl<'a> AttributeExtensions<'a> {
    fn read(mut fields: Fields<'a>) -> Result<Self, AttributeProblem> {
        let mut extensions = Self::default();
        let mut seen: Vec<Oid<'a>> = Vec::new();
        while !fields.rest.is_empty() {
            let extension: X509Extension<'a> = fields.next()?;
            if seen.contains(&extension.oid) {
                return Err(malformed("extensions"));
            }
            let oid = extension.oid.to_id_string();
            match oid.as_str() {
                TARGETS => extensions.targets = Some(read_targets(extension.value)?),
                SIGNER_CERTIFICATES => {
                    extensions.signer_certificates = read_signer_certificates(extension.value)?;
                }
                GENERIC_ATTRIBUTES => extensions.generic = read_generic(extension.value)?,
                NO_REVOCATION | AUTHORITY_KEY => {}
                _ if extension.critical => {
                    return Err(AttributeProblem::UnknownCriticalExtension { oid });
                }
                _ => {}
            }
            seen.push(extension.oid);
        }
        Ok(extensions)
    }
}

/// RFC 5755 section 4.3.2: lists of targets, of which a server has to be one. VOMS writes each target in a sequence of its
/// own. Groups and certificates, which VOMS does not write, name no server that we could be.
fn read_targets(value: &[u8]) -> Result<Vec<&str>, AttributeProblem> {
    let mut lists = Fields::within(value, "targets")?;
    let mut names = Vec::new();
    while !lists.rest.is_empty() {
        let mut targets = lists.sequence()?;
        while !targets.rest.is_empty() {
            let mut wrapped = match targets.starts_with(Tag::Sequence) {
                true => targets.sequence()?,
                false => Fields {
                    rest: targets.element()?.raw,
                    field: targets.field,
                },
            };
            let target = wrapped.element()?.any;
            wrapped.end()?;
            if (target.class(), target.tag()) != (Class::ContextSpecific, Tag(0)) {
                continue;
            }
            match GeneralName::from_der(target.data) {
                Ok(([], GeneralName::URI(name) | GeneralName::DNSName(name))) => names.push(name),
                _ => return Err(malformed("targets")),
            }
            if names.len() > ATTRIBUTE_TARGETS_MAX {
                return Err(AttributeProblem::TooMany {
                    what: "targets",
                    got: names.len(),
                    max: ATTRIBUTE_TARGETS_MAX,
                });
            }
        }
    }
    Ok(names)
}

fn read_signer_certificates(value: &[u8]) -> Result<Vec<&[u8]>, AttributeProblem> {
    let mut outer = Fields::within(value, "signer's certificates")?;
    let list = outer.sequence()?;
    outer.end()?;
    raw_elements(list, "certificates of the signer", SIGNER_CERTIFICATES_MAX)
}

/// The generic attributes of VOMS (GFD.182 section 3.5): by grantor, each with name, value and qualifier.
fn read_generic(value: &[u8]) -> Result<Vec<GenericAttribute>, AttributeProblem> {
    let field = "generic attributes";
    let mut outer = Fields::within(value, field)?;
    let mut grantors = outer.sequence()?;
    outer.end()?;
    let mut all = Vec::new();
    while !grantors.rest.is_empty() {
        let mut grantor = grantors.sequence()?;
        grantor.sequence()?;
        let mut attributes = grantor.sequence()?;
        grantor.end()?;
        while !attributes.rest.is_empty() {
            let mut attribute = attributes.sequence()?;
            let mut text = || octets(&attribute.element()?, field).map(str::to_owned);
            let (name, value, qualifier) = (text()?, text()?, text()?);
            attribute.end()?;
            if all.len() == GENERIC_ATTRIBUTES_MAX {
                return Err(AttributeProblem::TooMany {
                    what: field,
                    got: all.len() + 1,
                    max: GENERIC_ATTRIBUTES_MAX,
                });
            }
            all.push(GenericAttribute {
                name,
                value,
                qualifier,
            });
        }
    }
    Ok(all)
}

/// The one directory name of a list of names.
fn directory_name<'a>(names: Fields<'a>) -> Result<&'a [u8], AttributeProblem> {
    match GeneralName::from_der(names.rest) {
        Ok(([], GeneralName::DirectoryName(name))) => Ok(name.as_raw()),
        _ => Err(malformed(names.field)),
    }
}

/// The one URI of a list of names.
fn uri<'a>(names: Fields<'a>) -> Result<&'a str, AttributeProblem> {
    match GeneralName::from_der(names.rest) {
        Ok(([], GeneralName::URI(uri))) => Ok(uri),
        _ => Err(malformed(names.field)),
    }
}

/// The text of an octet string.
fn octets<'a>(element: &Element<'a>, field: &'static str) -> Result<&'a str, AttributeProblem> {
    let kind = (element.any.class(), element.any.tag());
    if kind != (Class::Universal, Tag::OctetString) || element.any.header.is_constructed() {
        return Err(malformed(field));
    }
    std::str::from_utf8(element.any.data).map_err(|_| malformed(field))
}

fn raw_elements<'a>(
    list: Fields<'a>,
    what: &'static str,
    max: usize,
) -> Result<Vec<&'a [u8]>, AttributeProblem> {
    let elements = list.elements(what, max)?;
    Ok(elements.into_iter().map(|element| element.raw).collect())
}

fn malformed(field: &'static str) -> AttributeProblem {
    AttributeProblem::Malformed { field }
}

/// One value, with and without its header.
struct Element<'a> {
    raw: &'a [u8],
    any: Any<'a>,
}

/// The values inside a constructed one, taken one after the other. The library reads them; this only remembers where it
/// is, for the error.
struct Fields<'a> {
    rest: &'a [u8],
    field: &'static str,
}

impl<'a> Fields<'a> {
    /// The values inside the one sequence that `bytes` are.
    fn within(bytes: &'a [u8], field: &'static str) -> Result<Self, AttributeProblem> {
        let mut outer = Self { rest: bytes, field };
        let inner = outer.sequence()?;
        outer.end()?;
        Ok(inner)
    }

    /// Names what comes next.
    fn at(&mut self, field: &'static str) -> &mut Self {
        self.field = field;
        self
    }

    fn next<T: FromDer<'a, E>, E>(&mut self) -> Result<T, AttributeProblem> {
        let (rest, value) = T::from_der(self.rest).map_err(|_| malformed(self.field))?;
        self.rest = rest;
        Ok(value)
    }

    fn element(&mut self) -> Result<Element<'a>, AttributeProblem> {
        let before = self.rest;
        if !der::has_strict_header(before) {
            return Err(malformed(self.field));
        }
        let any: Any<'a> = self.next()?;
        let raw = &before[..before.len() - self.rest.len()];
        Ok(Element { raw, any })
    }

    fn tagged(&mut self, class: Class, tag: Tag) -> Result<Self, AttributeProblem> {
        let any = self.element()?.any;
        if (any.class(), any.tag()) != (class, tag) || !any.header.is_constructed() {
            return Err(malformed(self.field));
        }
        Ok(Self {
            rest: any.data,
            field: self.field,
        })
    }

    fn sequence(&mut self) -> Result<Self, AttributeProblem> {
        self.tagged(Class::Universal, Tag::Sequence)
    }

    fn context(&mut self, tag: u32) -> Result<Self, AttributeProblem> {
        self.tagged(Class::ContextSpecific, Tag(tag))
    }

    fn starts_with(&self, tag: Tag) -> bool {
        Any::from_der(self.rest)
            .is_ok_and(|(_, any)| (any.class(), any.tag()) == (Class::Universal, tag))
    }

    /// A serial number, as it is encoded.
    fn serial(&mut self) -> Result<&'a [u8], AttributeProblem> {
        let any = self.element()?.any;
        let integer = Integer::try_from(&any).map_err(|_| malformed(self.field))?;
        if integer.as_ref().len() > SERIAL_BYTES_MAX {
            return Err(malformed(self.field));
        }
        Ok(any.data)
    }

    fn time(&mut self) -> Result<UnixTime, AttributeProblem> {
        let time: GeneralizedTime = self.next()?;
        let time = time.utc_datetime().map_err(|_| malformed(self.field))?;
        Ok(unix_time(ASN1Time::new(time)))
    }

    /// All that is left.
    fn elements(
        mut self,
        what: &'static str,
        max: usize,
    ) -> Result<Vec<Element<'a>>, AttributeProblem> {
        let mut elements = Vec::new();
        while !self.rest.is_empty() {
            elements.push(self.element()?);
            if elements.len() > max {
                let got = elements.len();
                return Err(AttributeProblem::TooMany { what, got, max });
            }
        }
        Ok(elements)
    }

    fn end(&self) -> Result<(), AttributeProblem> {
        match self.rest {
            [] => Ok(()),
            _ => Err(malformed(self.field)),
        }
    }
}
