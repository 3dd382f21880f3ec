//! Distinguished names: read once, compared by RFC 5280, written in the two forms that grids use.

use std::fmt::{self, Write as _};

use x509_parser::asn1_rs::{Any, Tag};
use x509_parser::prelude::FromDer;
use x509_parser::x509::{AttributeTypeAndValue, X509Name};

use crate::der;
use crate::limits::DISTINGUISHED_NAME_BYTES_MAX;
use crate::malformed::Malformed;
use crate::peer_text::PeerText;

mod attribute_types;
mod parts;

use attribute_types::short_name;
pub(crate) use attribute_types::{of_alias, written_type};
pub(crate) use parts::NameParts;

/// A distinguished name (RFC 5280 section 4.1.2.4), as it stands in a certificate: the DER of a `Name`.
///
/// Equality is equality of the bytes. Whether two encodings name the same entity is what [`matches`](Self::matches)
/// says.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct DistinguishedName(Box<[u8]>);

impl DistinguishedName {
    /// Takes the DER of one `Name`.
    ///
    /// # Errors
    /// [`Malformed`] when it is longer than [`DISTINGUISHED_NAME_BYTES_MAX`], no `Name`, not DER, or followed by other bytes.
    pub fn from_der(der: &[u8]) -> Result<Self, Malformed> {
        let (rest, name) = X509Name::from_der(der).map_err(|_| Malformed::NoDistinguishedName)?;
        if !rest.is_empty() {
            return Err(Malformed::TrailingBytes {
                what: "distinguished name",
                got: rest.len(),
            });
        }
        der::check(der, "distinguished name")?;
        Self::from_parsed(&name)
    }

    /// Takes a name that was parsed as a part of something else.
    pub(crate) fn from_parsed(name: &X509Name<'_>) -> Result<Self, Malformed> {
        let der = name.as_raw();
        if der.len() > DISTINGUISHED_NAME_BYTES_MAX {
            return Err(Malformed::TooLong {
                what: "distinguished name",
                got: der.len(),
                max: DISTINGUISHED_NAME_BYTES_MAX,
            });
        }
        Ok(Self(der.into()))
    }

    /// The DER of the name.
    pub fn as_der(&self) -> &[u8] {
        &self.0
    }

    /// The name as RFC 2253 writes it, the last part first: `CN=alice,OU=people,DC=example,DC=org`. Characters beyond
    /// ASCII are escaped byte by byte (`\C3\B6`), and a value that is no text is written as `#` and its DER, so the form
    /// is the one of `openssl x509 -nameopt RFC2253`.
    pub fn rfc2253(&self) -> String {
        let mut text = String::with_capacity(self.0.len());
        let name = self.parsed();
        for (before, relative) in name.iter().rev_parts().enumerate() {
            if before > 0 {
                text.push(',');
            }
            for (before, attribute) in relative.iter().rev_parts().enumerate() {
                if before > 0 {
                    text.push('+');
                }
                put_rfc2253(&mut text, attribute);
            }
        }
        text
    }

    /// The name with slashes, the first part first: `/DC=org/DC=example/OU=people/CN=alice`, and `+` between several
    /// attributes of one part. It is what `X509_NAME_oneline`
    /// of OpenSSL makes, byte for byte, because grid-mapfiles, `signing_policy` and `.lsc` files are written in it.
    ///
    /// # Security
    /// A value may hold a slash (`CN=host/lab1`), so two different names can have one slash form. Grids take that form
    /// for the identity, and authorities are bound to name spaces in it; compare names themselves by
    /// [`matches`](Self::matches).
    pub fn slash(&self) -> String {
        let mut text = String::with_capacity(self.0.len());
        let name = self.parsed();
        let attributes = name.iter().flat_map(|part| part.iter().enumerate());
        for (before, attribute) in attributes {
            text.push(if before == 0 { '/' } else { '+' });
            put_type(&mut text, attribute);
            text.push('=');
            for &byte in attribute.as_slice() {
                if (b' '..=b'~').contains(&byte) {
                    text.push(char::from(byte));
                } else {
                    let _ = write!(text, "\\x{byte:02X}");
                }
            }
        }
        text
    }

    /// Whether both name the same entity (RFC 5280 section 7.1): the same parts in the same order, where texts are
    /// compared without case, and runs of spaces count as one.
    pub fn matches(&self, other: &Self) -> bool {
        self.0 == other.0 || self.key() == other.key()
    }

    /// Whether this is `issuer` with one more part of exactly one attribute, a common name: the subject rule of RFC 3820
    /// section 3.4. Returns that common name's bytes.
    pub(crate) fn common_name_below(&self, issuer: &Self) -> Option<Box<[u8]>> {
        let name = self.parsed();
        let parts: Vec<_> = name.iter().collect();
        let (last, first) = parts.split_last()?;
        let issuer = issuer.parsed();
        let same = issuer.iter().count() == first.len()
            && issuer
                .iter()
                .zip(first)
                .all(|(one, other)| part_key(one.iter()) == part_key(other.iter()));
        let mut attributes = last.iter();
        match (attributes.next(), attributes.next()) {
            (Some(attribute), None)
                if same && attribute.attr_type().as_bytes() == attribute_types::COMMON_NAME =>
            {
                Some(attribute.as_slice().into())
            }
            _ => None,
        }
    }

    /// Bytes that are equal for exactly the names that [`matches`](Self::matches) finds equal.
    pub(crate) fn key(&self) -> NameKey {
        let mut key = Vec::with_capacity(self.0.len() + 16);
        for part in self.parsed().iter() {
            put_part(&mut key, &part_key(part.iter()));
        }
        NameKey(key.into_boxed_slice())
    }

    /// The keys of the parts, the first part first, for questions about subtrees.
    pub(crate) fn part_keys(&self) -> Vec<Vec<u8>> {
        self.parsed()
            .iter()
            .map(|part| part_key(part.iter()))
            .collect()
    }

    /// For messages.
    pub(crate) fn quoted(&self) -> PeerText {
        PeerText::new(&self.slash())
    }

    /// The first common name that is a text.
    pub(crate) fn common_name(&self) -> Option<String> {
        self.parsed()
            .iter_common_name()
            .find_map(|name| name.as_str().ok())
            .map(str::to_owned)
    }

    /// The `emailAddress` attributes, which name constraints on mail addresses cover as well.
    pub(crate) fn mail_addresses(&self) -> Vec<String> {
        self.parsed()
            .iter_email()
            .filter_map(|attribute| attribute.as_str().ok())
            .map(str::to_owned)
            .collect()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.parsed().iter().next().is_none()
    }

    fn parsed(&self) -> X509Name<'_> {
        // It was parsed before it was taken in; what can't be read any more is the empty name, which matches nothing.
        X509Name::from_der(&self.0)
            .map_or_else(|_| X509Name::new(Vec::new(), &[]), |(_, name)| name)
    }
}

impl fmt::Debug for DistinguishedName {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "DistinguishedName({:?})", self.slash())
    }
}

/// The slash form.
impl fmt::Display for DistinguishedName {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.slash())
    }
}

/// A name in the one form that is the same for all its encodings; the key of tables.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct NameKey(Box<[u8]>);

/// The parser's iterators run forwards only.
trait RevParts: Iterator + Sized {
    fn rev_parts(self) -> impl Iterator<Item = Self::Item> {
        self.collect::<Vec<_>>().into_iter().rev()
    }
}

impl<I: Iterator> RevParts for I {}

fn part_key<'a, 'b: 'a>(
    attributes: impl Iterator<Item = &'a AttributeTypeAndValue<'b>>,
) -> Vec<u8> {
    // A part of several attributes is a set: their order means nothing.
    let mut keys: Vec<_> = attributes.map(attribute_key).collect();
    keys.sort_unstable();
    let mut key = Vec::new();
    for one in keys {
        put_part(&mut key, &one);
    }
    key
}

fn attribute_key(attribute: &AttributeTypeAndValue<'_>) -> Vec<u8> {
    let mut key = Vec::with_capacity(attribute.as_slice().len() + 16);
    put_part(&mut key, attribute.attr_type().as_bytes());
    match text_of(attribute.attr_value()) {
        Some(text) => {
            key.push(b't');
            let mut words = text.split_whitespace();
            key.extend(words.next().unwrap_or("").to_lowercase().into_bytes());
            for word in words {
                key.push(b' ');
                key.extend(word.to_lowercase().into_bytes());
            }
        }
        // No text: only the same bytes of the same type are the same.
        None => {
            key.push(b'b');
            key.extend(attribute.attr_value().tag().0.to_be_bytes());
            key.extend_from_slice(attribute.as_slice());
        }
    }
    key
}

/// Lengths in front, so that no two lists of parts have the same bytes.
fn put_part(key: &mut Vec<u8>, part: &[u8]) {
    key.extend(u32::try_from(part.len()).unwrap_or(u32::MAX).to_be_bytes());
    key.extend_from_slice(part);
}

fn put_type(text: &mut String, attribute: &AttributeTypeAndValue<'_>) -> bool {
    let name = short_name(attribute.attr_type().as_bytes());
    match name {
        Some(name) => text.push_str(name),
        None => text.push_str(&attribute.attr_type().to_id_string()),
    }
    name.is_some()
}

fn put_rfc2253(text: &mut String, attribute: &AttributeTypeAndValue<'_>) {
    let known = put_type(text, attribute);
    text.push('=');
    let value = attribute.attr_value();
    let Some(value_text) = text_of(value).filter(|_| known) else {
        text.push('#');
        put_hex(text, value);
        return;
    };
    let last = value_text.chars().count().saturating_sub(1);
    for (position, character) in value_text.chars().enumerate() {
        match character {
            ',' | '+' | '"' | '\\' | '<' | '>' | ';' => {
                text.push('\\');
                text.push(character);
            }
            ' ' if position == 0 || position == last => text.push_str("\\ "),
            '#' if position == 0 => text.push_str("\\#"),
            ' '..='~' => text.push(character),
            other => {
                let mut bytes = [0; 4];
                for byte in other.encode_utf8(&mut bytes).bytes() {
                    let _ = write!(text, "\\{byte:02X}");
                }
            }
        }
    }
}

fn put_hex(text: &mut String, value: &Any<'_>) {
    // Its header again: names are bounded, so the length has at most two bytes.
    let _ = write!(
        text,
        "{:02X}",
        (value.tag().0 & 0x1f) | u32::from(value.header.is_constructed()) << 5
    );
    let length = value.data.len();
    match length {
        0..=0x7f => {
            let _ = write!(text, "{length:02X}");
        }
        0x80..=0xff => {
            let _ = write!(text, "81{length:02X}");
        }
        _ => {
            let _ = write!(text, "82{length:04X}");
        }
    }
    for byte in value.data {
        let _ = write!(text, "{byte:02X}");
    }
}

/// The text of a value of one of the string types, or nothing for bytes that are none.
fn text_of(value: &Any<'_>) -> Option<String> {
    let data = value.data;
    match value.tag() {
        Tag::Utf8String => String::from_utf8(data.to_vec()).ok(),
        Tag::PrintableString
        | Tag::NumericString
        | Tag::Ia5String
        | Tag::VisibleString
        // Teletex is read as Latin-1 by everybody, whatever its standard says.
        | Tag::T61String => Some(data.iter().copied().map(char::from).collect()),
        Tag::BmpString if data.len().is_multiple_of(2) => {
            let units = data
                .chunks_exact(2)
                .map(|pair| u16::from_be_bytes([pair[0], pair[1]]));
            char::decode_utf16(units).collect::<Result<_, _>>().ok()
        }
        Tag::UniversalString if data.len().is_multiple_of(4) => data
            .chunks_exact(4)
            .map(|four| char::from_u32(u32::from_be_bytes([four[0], four[1], four[2], four[3]])))
            .collect(),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
