//! What a revocation list states.

use std::cmp::Ordering;

use rustls_pki_types::{CertificateRevocationListDer, UnixTime};
use x509_parser::asn1_rs::{Any, Class, Tag};
use x509_parser::extensions::{GeneralName, X509Extension};
use x509_parser::prelude::FromDer;
use x509_parser::revocation_list::CertificateRevocationList;

use crate::date::unix_time;
use crate::der;
use crate::der::without_leading_zeros;
use crate::distinguished_name::DistinguishedName;
use crate::limits::{ALTERNATIVE_NAMES_MAX, EXTENSIONS_MAX, REVOCATION_LIST_BYTES_MAX};
use crate::malformed::Malformed;
use crate::peer_text::PeerText;
use crate::signature::{DetachedSignature, PublicKey, SignatureAlgorithm, SignatureFault};
use crate::x509::{Certificate, Signed, repeated};

/// What a signed revocation list states. Its signature is checked where it is used, not here.
#[derive(Clone, Debug)]
pub struct RevocationListDetails {
    /// Who issued it, for people.
    pub issuer: PeerText,
    /// Its number, which grows with each list of the issuer; 0 when it has none, at most
    /// [`u64::MAX`].
    pub number: u64,
    /// When it was made.
    pub this_update: UnixTime,
    /// When the next one is due. From then on it is stale.
    pub next_update: UnixTime,
    /// What it revokes.
    pub revoked: Vec<RevokedCertificate>,
    pub(crate) issuer_der: Vec<u8>,
}

/// One line of a revocation list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RevokedCertificate {
    /// The certificate's serial number, big-endian, without leading zeros.
    pub serial: Vec<u8>,
    /// When it was revoked.
    pub time: UnixTime,
}

impl RevocationListDetails {
    /// Reads a revocation list.
    ///
    /// # Errors
    /// [`Malformed`] when it is longer than [`REVOCATION_LIST_BYTES_MAX`], no X.509 revocation list, not DER, without the time
    /// of the next one, followed by other bytes, or when it or one of its entries has an extension twice.
    pub fn read(list: &CertificateRevocationListDer<'_>) -> Result<Self, Malformed> {
        let parsed = parse(list)?;
        let revoked = parsed
            .iter_revoked_certificates()
            .map(|entry| RevokedCertificate {
                serial: without_leading_zeros(entry.raw_serial()).to_vec(),
                time: unix_time(entry.revocation_date),
            });
        Ok(Self {
            issuer: DistinguishedName::from_parsed(parsed.issuer())?.quoted(),
            number: number(&parsed),
            this_update: unix_time(parsed.last_update()),
            next_update: next_update(&parsed)?,
            revoked: revoked.collect(),
            issuer_der: parsed.issuer().as_raw().to_vec(),
        })
    }

    /// Whether it revokes the certificate with this serial number (big-endian).
    pub fn revokes(&self, serial: &[u8]) -> bool {
        let serial = without_leading_zeros(serial);
        self.revoked.iter().any(|entry| entry.serial == serial)
    }
}

/// A revocation list of one issuer, made for lookups.
#[derive(Debug)]
pub(crate) struct RevocationList {
    pub(crate) issuer: DistinguishedName,
    pub(crate) number: u64,
    pub(crate) this_update: UnixTime,
    pub(crate) next_update: UnixTime,
    serials: SerialNumbers,
    scope: Scope,
    /// The list itself, which can have millions of bytes, is not kept.
    signature: DetachedSignature,
}

/// Serial numbers, without leading zeros, sorted, one behind the other: some bytes apart would take twice the memory.
#[derive(Debug)]
struct SerialNumbers {
    bytes: Box<[u8]>,
    /// Where each one ends.
    ends: Box<[u32]>,
}

impl SerialNumbers {
    /// Of a list within [`REVOCATION_LIST_BYTES_MAX`], so that every end is a `u32`.
    fn sorted<'a>(numbers: impl Iterator<Item = &'a [u8]>) -> Result<Self, Malformed> {
        let mut numbers: Vec<&[u8]> = numbers.map(without_leading_zeros).collect();
        numbers.sort_unstable();
        let mut bytes = Vec::with_capacity(numbers.iter().map(|number| number.len()).sum());
        let mut ends = Vec::with_capacity(numbers.len());
        for number in numbers {
            bytes.extend_from_slice(number);
            ends.push(u32::try_from(bytes.len()).map_err(|_| Malformed::NoRevocationList)?);
        }
        Ok(Self {
            bytes: bytes.into_boxed_slice(),
            ends: ends.into_boxed_slice(),
        })
    }

    fn get(&self, index: usize) -> &[u8] {
        let start = index.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.bytes[start as usize..self.ends[index] as usize]
    }

    fn contain(&self, number: &[u8]) -> bool {
        let (mut start, mut end) = (0, self.ends.len());
        while start < end {
            let middle = start.midpoint(end);
            match self.get(middle).cmp(number) {
                Ordering::Less => start = middle + 1,
                Ordering::Equal => return true,
                Ordering::Greater => end = middle,
            }
        }
        false
    }
}

impl RevocationList {
    /// Reads a list that can say which certificates of its issuer are good.
    ///
    /// # Errors
    /// [`Malformed`] as [`RevocationListDetails::read`] has it, and for a list that covers only some reasons, is about other
    /// issuers' certificates, changes another list, or has a critical extension that isn't understood (RFC 5280 section
    /// 5.2): such a list can't say that a certificate is good.
    pub(crate) fn read(list: &CertificateRevocationListDer<'_>) -> Result<Self, Malformed> {
        let parsed = parse(list)?;
        let scope = scope(&parsed)?;
        if parsed.signature_algorithm != parsed.tbs_cert_list.signature {
            return Err(Malformed::TwoSignatureAlgorithms);
        }
        let signed = Signed::read(list).ok_or(Malformed::NoRevocationList)?;
        Ok(Self {
            issuer: DistinguishedName::from_parsed(parsed.issuer())?,
            number: number(&parsed),
            this_update: unix_time(parsed.last_update()),
            next_update: next_update(&parsed)?,
            serials: SerialNumbers::sorted(
                parsed
                    .iter_revoked_certificates()
                    .map(|entry| entry.raw_serial()),
            )?,
            scope,
            signature: signed.detach(list),
        })
    }

    /// How many certificates it revokes.
    pub(crate) fn len(&self) -> usize {
        self.serials.ends.len()
    }

    /// Whether it revokes the certificate with this serial number (without leading zeros).
    pub(crate) fn revokes(&self, serial: &[u8]) -> bool {
        self.serials.contain(serial)
    }

    /// Whether the list is about this certificate of its issuer.
    pub(crate) fn covers(&self, certificate: &Certificate) -> bool {
        self.scope.covers(certificate)
    }

    pub(crate) fn signature_algorithm(&self) -> SignatureAlgorithm {
        self.signature.algorithm()
    }

    /// Checks that `key` signed it.
    pub(crate) fn verify_signature(&self, key: &PublicKey) -> Result<(), SignatureFault> {
        self.signature.verify(key)
    }
}

fn parse<'a>(
    list: &'a CertificateRevocationListDer<'_>,
) -> Result<CertificateRevocationList<'a>, Malformed> {
    if list.len() > REVOCATION_LIST_BYTES_MAX {
        return Err(Malformed::TooLong {
            what: "revocation list",
            got: list.len(),
            max: REVOCATION_LIST_BYTES_MAX,
        });
    }
    let (rest, parsed) =
        CertificateRevocationList::from_der(list).map_err(|_| Malformed::NoRevocationList)?;
    if !rest.is_empty() {
        return Err(Malformed::TrailingBytes {
            what: "revocation list",
            got: rest.len(),
        });
    }
    der::check(list, "revocation list")?;
    check_extensions(parsed.extensions(), "a revocation list")?;
    for entry in parsed.iter_revoked_certificates() {
        check_extensions(entry.extensions(), "an entry of a revocation list")?;
    }
    Ok(parsed)
}

/// RFC 5280 sections 5.2 and 5.3: as those of certificates (section 4.2), no extension stands twice.
fn check_extensions(found: &[X509Extension<'_>], place: &'static str) -> Result<(), Malformed> {
    if found.len() > EXTENSIONS_MAX {
        return Err(Malformed::TooMany {
            what: "extensions in a revocation list or one of its entries",
            got: found.len(),
            max: EXTENSIONS_MAX,
        });
    }
    match repeated(found) {
        None => Ok(()),
        Some(repeated) => Err(Malformed::RepeatedExtension {
            extension: repeated.oid.to_id_string(),
            place,
        }),
    }
}

fn number(parsed: &CertificateRevocationList<'_>) -> u64 {
    parsed
        .crl_number()
        .map_or(0, |number| u64::try_from(number).unwrap_or(u64::MAX))
}

fn next_update(parsed: &CertificateRevocationList<'_>) -> Result<UnixTime, Malformed> {
    parsed
        .next_update()
        .map(unix_time)
        .ok_or(Malformed::NoNextUpdate)
}

/// Which of its issuer's certificates a list is about (RFC 5280 section 5.2.5); all of them by default.
#[derive(Debug, Default)]
struct Scope {
    /// The addresses of which a certificate must name one, when the list names any.
    addresses: Option<Box<[String]>>,
    only_end_entities: bool,
    only_authorities: bool,
}

impl Scope {
    /// RFC 5280 section 6.3.3 (b) (2).
    fn covers(&self, certificate: &Certificate) -> bool {
        let is_authority = certificate
            .extensions
            .basic_constraints
            .is_some_and(|constraints| constraints.is_authority);
        let is_of_kind =
            !(self.only_end_entities && is_authority || self.only_authorities && !is_authority);
        let named = &certificate.extensions.distribution_points;
        is_of_kind
            && self
                .addresses
                .as_ref()
                .is_none_or(|addresses| addresses.iter().any(|one| named.contains(one)))
    }

    /// Reads an `IssuingDistributionPoint`.
    fn read(value: &[u8]) -> Option<Self> {
        let ([], whole) = Any::from_der(value).ok()? else {
            return None;
        };
        whole.tag().assert_eq(Tag::Sequence).ok()?;
        let mut scope = Self::default();
        let mut rest = whole.data;
        while !rest.is_empty() {
            let (behind, member) = Any::from_der(rest).ok()?;
            rest = behind;
            if member.class() != Class::ContextSpecific {
                return None;
            }
            let is_set = member.data == [0xff];
            match member.tag().0 {
                0 => scope.addresses = Some(addresses(member.data)?),
                1 if is_set => scope.only_end_entities = true,
                2 if is_set => scope.only_authorities = true,
                // Only some reasons, other issuers' certificates, or attribute certificates.
                _ => return None,
            }
        }
        Some(scope)
    }
}

/// The URIs of a `fullName`.
fn addresses(point: &[u8]) -> Option<Box<[String]>> {
    let ([], names) = Any::from_der(point).ok()? else {
        return None;
    };
    if (names.class(), names.tag()) != (Class::ContextSpecific, Tag(0)) {
        return None;
    }
    let mut found = Vec::new();
    let mut rest = names.data;
    while !rest.is_empty() {
        let (behind, name) = GeneralName::from_der(rest).ok()?;
        rest = behind;
        if let GeneralName::URI(address) = name {
            found.push(address.to_owned());
        }
    }
    (found.len() <= ALTERNATIVE_NAMES_MAX).then(|| found.into_boxed_slice())
}

/// Which certificates the list is about; an error for a list that can't be relied on.
fn scope(parsed: &CertificateRevocationList<'_>) -> Result<Scope, Malformed> {
    /// `deltaCRLIndicator` and `issuingDistributionPoint` (RFC 5280 sections 5.2.4 and 5.2.5)
    const DELTA: &[u8] = &[0x55, 0x1d, 27];
    const SCOPE: &[u8] = &[0x55, 0x1d, 28];
    /// `authorityKeyIdentifier` and `cRLNumber`
    const NUMBER: &[u8] = &[0x55, 0x1d, 20];
    const KNOWN: [&[u8]; 2] = [&[0x55, 0x1d, 35], NUMBER];
    /// `reasonCode` and `invalidityDate`
    const KNOWN_OF_ENTRIES: [&[u8]; 2] = [&[0x55, 0x1d, 21], &[0x55, 0x1d, 24]];

    let unusable = |reason: String| Malformed::Unusable { reason };
    let mut scope = Scope::default();
    for extension in parsed.extensions() {
        let oid = extension.oid.as_bytes();
        if oid == SCOPE || oid == NUMBER {
            der::check(extension.value, "value of an extension")?;
        }
        match oid {
            DELTA => {
                return Err(unusable(
                    "it holds only the changes of another list, expected a complete one".to_owned(),
                ));
            }
            SCOPE => {
                scope = Scope::read(extension.value).ok_or_else(|| {
                    unusable(
                        "it covers only some reasons, or certificates of other issuers, expected \
                         all reasons for certificates of its own issuer"
                            .to_owned(),
                    )
                })?;
            }
            oid if extension.critical && !KNOWN.contains(&oid) => {
                return Err(unusable(format!(
                    "unknown critical extension {}",
                    extension.oid
                )));
            }
            _ => {}
        }
    }
    for entry in parsed.iter_revoked_certificates() {
        for extension in entry.extensions() {
            if extension.critical && !KNOWN_OF_ENTRIES.contains(&extension.oid.as_bytes()) {
                return Err(unusable(format!(
                    "unknown critical extension {} of an entry",
                    extension.oid
                )));
            }
        }
    }
    Ok(scope)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rcgen::{
        KeyPair, PKCS_ECDSA_P256_SHA256, PKCS_ECDSA_P384_SHA384, PKCS_ED25519, PKCS_RSA_SHA512,
    };

    use super::*;
    use crate::grid::fixture::{NOW, authority, authority_with, list};

    fn read(list: Vec<u8>) -> RevocationList {
        RevocationList::read(&list.into()).unwrap()
    }

    /// The bytes of a list are gone when its signature is checked, whatever digest the signature needs.
    #[test]
    fn a_list_is_of_the_key_that_signed_it() {
        let stranger = Certificate::read(authority("CA").der()).unwrap();
        for algorithm in [
            &PKCS_ECDSA_P256_SHA256,
            &PKCS_ECDSA_P384_SHA384,
            &PKCS_ED25519,
            &PKCS_RSA_SHA512,
        ] {
            let issuer = authority_with("CA", KeyPair::generate_for(algorithm).unwrap());
            let certificate = Certificate::read(issuer.der()).unwrap();
            let good = list(&issuer, 1, NOW, &[&[1]]);
            let mut changed = good.clone();
            let end = changed.len() - 1;
            changed[end] ^= 1;
            let good = read(good);
            assert_eq!(
                good.verify_signature(&certificate.key),
                Ok(()),
                "{algorithm:?}"
            );
            for (list, key) in [(&good, &stranger.key), (&read(changed), &certificate.key)] {
                assert_eq!(
                    list.verify_signature(key),
                    Err(SignatureFault::Wrong),
                    "{algorithm:?}"
                );
            }
        }
    }

    proptest! {
        #[test]
        fn a_list_holds_what_was_put_in(
            numbers in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..4), 0..40),
            other in prop::collection::vec(any::<u8>(), 0..4),
        ) {
            let sorted = SerialNumbers::sorted(numbers.iter().map(Vec::as_slice)).unwrap();
            for number in &numbers {
                prop_assert!(sorted.contain(without_leading_zeros(number)));
            }
            let plain = without_leading_zeros(&other);
            let is_there = numbers.iter().any(|number| without_leading_zeros(number) == plain);
            prop_assert_eq!(sorted.contain(plain), is_there);
        }
    }
}
