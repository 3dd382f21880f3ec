//! Bytes that nobody sane would send, and sizes beyond the limits.

use proptest::prelude::*;
use rcgen::{
    CertificateRevocationListParams, CrlDistributionPoint, CrlIssuingDistributionPoint,
    CustomExtension, KeyIdMethod, SerialNumber, date_time_ymd,
};
use rustls_pki_types::{CertificateDer, CertificateRevocationListDer};

use super::fixture::*;
use crate::error::IdentityError;
use crate::limits::{CERTIFICATE_BYTES_MAX, CHAIN_CERTIFICATES_MAX, TRUST_ANCHORS_MAX};
use crate::malformed::Malformed;
use crate::private_authority::PrivateAuthority;
use crate::private_authority::TrustError;
use crate::revocation::RevocationListDetails;

#[test]
fn a_changed_byte_anywhere_is_refused() {
    let root = authority("root");
    let verifier = trusting(&[&root], &[]);
    let leaf = issue(&worker(), &root);
    for position in 0..leaf.len() {
        let mut changed = leaf.to_vec();
        changed[position] ^= 1;
        assert!(
            verify(&verifier, &[changed.into()]).is_err(),
            "byte {position}"
        );
    }
}

#[test]
fn sizes_are_bounded() {
    let root = authority("root");
    let verifier = trusting(&[&root], &[]);
    let leaf = issue(&worker(), &root);
    assert_eq!(verify(&verifier, &[]), Err(IdentityError::NoCertificate));
    assert!(verify(&verifier, &vec![leaf.clone(); CHAIN_CERTIFICATES_MAX]).is_ok());
    let error = verify(&verifier, &vec![leaf.clone(); CHAIN_CERTIFICATES_MAX + 1]).unwrap_err();
    assert_eq!(
        error.to_string(),
        "the peer sent 5 certificates, expected at most 4"
    );
    let mut fat = worker();
    fat.custom_extensions = vec![CustomExtension::from_oid_content(
        &[1, 3, 6, 1, 4, 1, 99999, 1],
        vec![0; CERTIFICATE_BYTES_MAX],
    )];
    let error = verify(&verifier, &[issue(&fat, &root)]).unwrap_err();
    assert!(
        matches!(
            &error,
            IdentityError::Malformed {
                reason: Malformed::TooLong { .. },
                ..
            }
        ),
        "{error}"
    );
    let mut trailing = leaf.to_vec();
    trailing.push(0);
    let error = verify(&verifier, &[trailing.into()]).unwrap_err();
    assert!(
        error
            .to_string()
            .contains("1 bytes after the end of the certificate"),
        "{error}"
    );
}

#[test]
fn unusable_trust_is_refused_at_once() {
    let root = authority("root");
    let roots = [root.der().clone()];
    assert_eq!(
        PrivateAuthority::new(&[], &[], 0).unwrap_err(),
        TrustError::NoAuthority
    );
    let many = vec![root.der().clone(); TRUST_ANCHORS_MAX + 1];
    assert!(matches!(
        PrivateAuthority::new(&many, &[], 0),
        Err(TrustError::TooMany { .. })
    ));
    let garbage = [CertificateDer::from(vec![1, 2, 3])];
    assert!(matches!(
        PrivateAuthority::new(&garbage, &[], 0),
        Err(TrustError::BadAuthority { .. })
    ));
    let garbage = [CertificateRevocationListDer::from(vec![1, 2, 3])];
    assert!(matches!(
        PrivateAuthority::new(&roots, &garbage, 0),
        Err(TrustError::BadRevocationList { .. })
    ));
    let partial = CertificateRevocationListParams {
        this_update: date_time_ymd(2026, 1, 1),
        next_update: date_time_ymd(2036, 1, 1),
        crl_number: SerialNumber::from(1),
        issuing_distribution_point: Some(CrlIssuingDistributionPoint {
            distribution_point: CrlDistributionPoint {
                uris: vec!["http://example.org/crl".to_owned()],
            },
            scope: None,
        }),
        revoked_certs: vec![],
        key_identifier_method: KeyIdMethod::Sha256,
    };
    let partial = [partial.signed_by(&root).unwrap().der().clone()];
    let error = PrivateAuthority::new(&roots, &partial, 0).unwrap_err();
    assert!(
        error.to_string().contains("expected a complete list"),
        "{error}"
    );
}

proptest! {
    /// Strangers' bytes give an error, never a panic and never an identity.
    #[test]
    fn arbitrary_bytes_are_refused(chain in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..300), 1..4)) {
        let root = authority("root");
        let chain: Vec<CertificateDer<'_>> = chain.into_iter().map(Into::into).collect();
        prop_assert!(verify(&trusting(&[&root], &[]), &chain).is_err());
    }

    /// So do certificates in which a few bytes were changed, wherever the parsers trust a length.
    #[test]
    fn damaged_certificates_are_refused(changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6), cut in any::<prop::sample::Index>()) {
        let root = authority("root");
        let good = issue(&worker(), &root);
        let mut bad = good.to_vec();
        for (position, byte) in changes {
            *position.get_mut(&mut bad) = byte;
        }
        let verifier = trusting(&[&root], &[]);
        let same = bad.as_slice() == good.as_ref();
        prop_assert_eq!(verify(&verifier, &[bad.clone().into()]).is_ok(), same);
        let cut = cut.index(bad.len());
        prop_assert!(verify(&verifier, &[bad[..cut].to_vec().into()]).is_err());
        let _ = RevocationListDetails::read(&bad.into());
    }

    #[test]
    fn damaged_revocation_lists_do_not_panic(changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6)) {
        let root = authority("root");
        let mut bad = list(&root, NOW, NOW + DAY, &[&[1], &[2, 3]]).to_vec();
        for (position, byte) in changes {
            *position.get_mut(&mut bad) = byte;
        }
        let _ = PrivateAuthority::new(&[root.der().clone()], &[bad.into()], 0);
    }
}
