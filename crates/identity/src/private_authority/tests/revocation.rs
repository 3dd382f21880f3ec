//! Lists that take certificates back, and paths through intermediates.

use std::time::Duration;

use rcgen::{KeyUsagePurpose, SerialNumber, date_time_ymd};

use super::fixture::*;
use crate::error::IdentityError;
use crate::verified::PeerVerifier;

#[test]
fn a_revoked_leaf_is_refused_and_the_newest_list_counts() {
    let root = authority("root");
    let chain = [issue(&worker(), &root)];
    let clean = list(&root, NOW - 3 * DAY, NOW + DAY, &[&[0x12, 0x34]]);
    assert!(verify(&trusting(&[&root], std::slice::from_ref(&clean)), &chain).is_ok());
    let newer = list(&root, NOW - 2 * DAY, NOW + DAY, &[&[1], &[0x91, 0x02]]);
    for lists in [[clean.clone(), newer.clone()], [newer, clean]] {
        let error = verify(&trusting(&[&root], &lists), &chain).unwrap_err();
        assert_eq!(
            error.to_string(),
            "the leaf certificate \"/CN=lab1\" with serial number 9102 is revoked: its owner needs another one"
        );
    }
}

#[test]
fn a_stale_list_refuses_and_says_so() {
    let root = authority("root");
    let stale = list(&root, NOW - 3 * DAY, NOW - DAY, &[]);
    let error = verify(&trusting(&[&root], &[stale]), &[issue(&worker(), &root)]).unwrap_err();
    assert!(
        matches!(error, IdentityError::RevocationListStale { .. }),
        "{error}"
    );
    assert!(
        error
            .to_string()
            .contains("is stale since 2027-01-14 08:00:00 UTC"),
        "{error}"
    );
}

#[test]
fn a_list_that_another_signed_refuses() {
    let (root, namesake) = (authority("root"), authority("root"));
    let forged = list(&namesake, NOW, NOW + DAY, &[]);
    let error = verify(&trusting(&[&root], &[forged]), &[issue(&worker(), &root)]).unwrap_err();
    assert!(
        matches!(error, IdentityError::RevocationListForged { .. }),
        "{error}"
    );
}

#[test]
fn a_list_covers_its_own_issuer_only() {
    let (first, second) = (authority("first"), authority("second"));
    let of_first = list(&first, NOW, NOW + DAY, &[&[0x91, 0x02]]);
    let verifier = trusting(&[&first, &second], &[of_first]);
    assert!(
        verify(&verifier, &[issue(&worker(), &second)]).is_ok(),
        "the same serial number of another issuer"
    );
    assert!(verify(&verifier, &[issue(&worker(), &first)]).is_err());
}

#[test]
fn intermediates_are_followed_checked_and_revoked() {
    let root = authority("root");
    let mut department = authority_parameters("department");
    department.serial_number = Some(SerialNumber::from_slice(&[0x55]));
    department.not_after = date_time_ymd(1970, 1, 1) + Duration::from_secs(NOW + 2 * DAY);
    let department = intermediate(department, &root);
    let chain = [issue(&worker(), &department), department.der().clone()];
    let peer = verify(&trusting(&[&root], &[]), &chain).unwrap();
    assert_eq!(
        peer.not_after(),
        at(NOW + 2 * DAY),
        "the earliest end counts"
    );

    let error = verify(&trusting(&[&root], &[]), &chain[..1]).unwrap_err();
    assert!(
        matches!(error, IdentityError::UnknownAuthority { .. }),
        "{error}"
    );

    let revoked = list(&root, NOW, NOW + DAY, &[&[0x55]]);
    let error = verify(&trusting(&[&root], &[revoked]), &chain).unwrap_err();
    assert!(
        error
            .to_string()
            .starts_with("certificate 1 of the chain \"/CN=department\" with serial"),
        "{error}"
    );

    let expired = trusting(&[&root], &[])
        .verify(&chain, at(NOW + 3 * DAY), &ANY_WORKER)
        .unwrap_err();
    assert!(
        expired
            .to_string()
            .starts_with("certificate 1 of the chain"),
        "{expired}"
    );

    let mut not_signing = authority_parameters("department");
    not_signing.key_usages = vec![KeyUsagePurpose::CrlSign];
    let not_signing = intermediate(not_signing, &root);
    let chain = [issue(&worker(), &not_signing), not_signing.der().clone()];
    let error = verify(&trusting(&[&root], &[]), &chain).unwrap_err();
    assert!(matches!(error, IdentityError::WrongUsage { .. }), "{error}");
}
