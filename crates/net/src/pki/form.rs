//! The one form of our certificates: what stands in a root, in a leaf and in a revocation list.

use std::time::Duration;

use exoskel_identity::{Identity, RevokedCertificate, hex};
use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationList,
    CertificateRevocationListParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyIdMethod,
    KeyPair, KeyUsagePurpose, RevokedCertParams, SanType, SerialNumber, date_time_ymd,
};
use rustls_pki_types::UnixTime;

use super::{CLOCK_SKEW, PkiError};

/// 9999-12-31 23:59:59, the last second that a certificate can name.
const LAST_SECOND: u64 = 253_402_300_799;

/// A root for `key`. Its name holds a part of the key's digest: roots are looked up by name, so no two may share one.
pub(super) fn root(
    kind: &str,
    key: &KeyPair,
    now: UnixTime,
    validity: Duration,
) -> Result<CertificateParams, PkiError> {
    let mut parameters = named("");
    let digest = parameters.key_identifier(key);
    parameters = named(&format!("{kind} {}", hex(&digest[..8])));
    valid(&mut parameters, now, later(now, validity))?;
    parameters.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    parameters.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    Ok(parameters)
}

/// What an issuer needs to be known of a root that was made by [`root`] before.
pub(super) fn issuer(common_name: &str, key: KeyPair) -> Issuer<'static, KeyPair> {
    let mut parameters = named(common_name);
    parameters.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    Issuer::new(parameters, key)
}

/// A leaf: who it is stands in its URIs, and it serves both ends of a handshake because a node dials and listens.
pub(super) fn leaf(
    identity: &Identity,
    now: UnixTime,
    not_after: UnixTime,
) -> Result<CertificateParams, PkiError> {
    // X.520 allows 64 characters in a common name, and this one is for people only.
    let mut parameters = named(&identity.to_string().chars().take(64).collect::<String>());
    valid(&mut parameters, now, not_after)?;
    parameters.is_ca = IsCa::ExplicitNoCa;
    parameters.use_authority_key_identifier_extension = true;
    parameters.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    parameters.extended_key_usages = vec![
        ExtendedKeyUsagePurpose::ServerAuth,
        ExtendedKeyUsagePurpose::ClientAuth,
    ];
    for uri in identity.to_uris() {
        parameters
            .subject_alt_names
            .push(SanType::URI(uri.as_str().try_into()?));
    }
    Ok(parameters)
}

/// A signed list of everything that was ever revoked.
pub(super) fn revocation_list(
    issuer: &Issuer<'_, KeyPair>,
    number: u64,
    revoked: &[RevokedCertificate],
    now: UnixTime,
    next_update: UnixTime,
) -> Result<CertificateRevocationList, PkiError> {
    let epoch = date_time_ymd(1970, 1, 1);
    let mut entries = Vec::with_capacity(revoked.len());
    for entry in revoked {
        entries.push(RevokedCertParams {
            serial_number: SerialNumber::from_slice(&entry.serial),
            revocation_time: epoch + offset(entry.time)?,
            reason_code: None,
            invalidity_date: None,
        });
    }
    let parameters = CertificateRevocationListParams {
        this_update: epoch + offset(now)?,
        next_update: epoch + offset(next_update)?,
        crl_number: SerialNumber::from(number),
        issuing_distribution_point: None,
        revoked_certs: entries,
        key_identifier_method: KeyIdMethod::Sha256,
    };
    Ok(parameters.signed_by(issuer)?)
}

/// `time` + `by`, at most the last time there is; [`offset`] refuses that one.
pub(super) fn later(time: UnixTime, by: Duration) -> UnixTime {
    UnixTime::since_unix_epoch(Duration::from_secs(
        time.as_secs().saturating_add(by.as_secs()),
    ))
}

fn named(common_name: &str) -> CertificateParams {
    let mut parameters = CertificateParams::default();
    parameters.distinguished_name.remove(DnType::CommonName);
    parameters
        .distinguished_name
        .push(DnType::CommonName, common_name);
    parameters
}

fn valid(
    parameters: &mut CertificateParams,
    now: UnixTime,
    not_after: UnixTime,
) -> Result<(), PkiError> {
    let not_before = Duration::from_secs(now.as_secs().saturating_sub(CLOCK_SKEW.as_secs()));
    let epoch = date_time_ymd(1970, 1, 1);
    parameters.not_before = epoch + offset(UnixTime::since_unix_epoch(not_before))?;
    parameters.not_after = epoch + offset(not_after)?;
    Ok(())
}

/// The distance from 1970, for the certificate library's own type of time, whose addition panics beyond the year 9999.
fn offset(time: UnixTime) -> Result<Duration, PkiError> {
    if time.as_secs() > LAST_SECOND {
        Err(PkiError::Clock { now: time })
    } else {
        Ok(Duration::from_secs(time.as_secs()))
    }
}
