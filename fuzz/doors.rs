//! The doors through which foreign bytes come in, one function for each reader. The fuzz targets push bytes through them,
//! and so does `crates/link/tests/corpus.rs` with the kept corpus.
//!
//! No reader may panic, whatever the bytes; what has a second form must come back from it.

#![allow(dead_code, reason = "each target goes through one of the doors")]

use exoskel_identity::authorization::IdentityPattern;
use exoskel_identity::{
    AttributeCertificateDetails, Authorization, CertificateDetails, Fqan, RevocationListDetails,
    TrustFile, TrustStore,
};
use exoskel_link::capability::{Caveat, Right, Startpoint};
use rustls_pki_types::{CertificateDer, CertificateRevocationListDer};

type Door = fn(&[u8]);

/// Every door, by the name of its target and of its directory in the corpus.
pub(crate) const DOORS: [(&str, Door); 12] = [
    ("certificate", certificate),
    ("revocation_list", revocation_list),
    ("proxy_information", proxy_information),
    ("attribute_certificate", attribute_certificate),
    ("signer_chains", signer_chains),
    ("signing_policy", signing_policy),
    ("namespaces", namespaces),
    ("grid_mapfile", grid_mapfile),
    ("ban_list", ban_list),
    ("policy", policy),
    ("startpoint", startpoint),
    ("right", right),
];

pub(crate) fn certificate(bytes: &[u8]) {
    let certificate = CertificateDer::from(bytes);
    let read = CertificateDetails::read(&certificate);
    let attributes = AttributeCertificateDetails::of_certificate(&certificate);
    assert!(read.is_ok() || attributes.is_err());
    load("0a1b2c3d.0", bytes);
}

pub(crate) fn revocation_list(bytes: &[u8]) {
    if let Ok(list) = RevocationListDetails::read(&CertificateRevocationListDer::from(bytes)) {
        for entry in list.revoked.iter().take(8) {
            assert!(list.revokes(&entry.serial));
        }
    }
    load("0a1b2c3d.r0", bytes);
}

/// The bytes as the value of the extension, in a certificate around it.
pub(crate) fn proxy_information(bytes: &[u8]) {
    certificate(&proxy(bytes));
}

pub(crate) fn attribute_certificate(bytes: &[u8]) {
    if let Ok(read) = AttributeCertificateDetails::read(bytes) {
        for fqan in &read.fqans {
            assert_eq!(fqan.to_string().parse::<Fqan>().as_ref(), Ok(fqan));
        }
    }
}

pub(crate) fn signer_chains(bytes: &[u8]) {
    let file = TrustFile {
        name: "vo/voms.example.org.lsc".to_owned(),
        content: bytes.to_vec(),
    };
    TrustStore::load(Vec::new(), vec![file], None, 1);
}

pub(crate) fn signing_policy(bytes: &[u8]) {
    load("0a1b2c3d.signing_policy", bytes);
}

pub(crate) fn namespaces(bytes: &[u8]) {
    load("0a1b2c3d.namespaces", bytes);
}

pub(crate) fn grid_mapfile(bytes: &[u8]) {
    if let Ok(text) = std::str::from_utf8(bytes) {
        let _ = Authorization::default().with_grid_mapfile(text);
    }
}

pub(crate) fn ban_list(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return;
    };
    let _ = Authorization::default().with_bans(text);
    for line in text.lines() {
        if let Ok(pattern) = IdentityPattern::parse(line) {
            let again = IdentityPattern::parse(&pattern.to_string());
            assert_eq!(again.as_ref(), Ok(&pattern));
            pattern.matches_node(line, Some(line));
        }
    }
}

/// One file with two readers: what the one about wires takes, the one about people takes too.
pub(crate) fn policy(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return;
    };
    let authorization = Authorization::parse(text);
    let whole = exoskel_link::policy::Policy::parse(text, 1);
    assert!(whole.is_err() || authorization.is_ok());
}

/// A startpoint as bytes or as text. What is taken has one spelling in both, and can be narrowed.
pub(crate) fn startpoint(bytes: &[u8]) {
    if let Ok(text) = std::str::from_utf8(bytes) {
        match Startpoint::parse(text) {
            Ok(startpoint) => assert_eq!(startpoint.text(), text),
            Err(error) => assert!(!error.to_string().is_empty()),
        }
    }
    let startpoint = match Startpoint::read(bytes) {
        Ok(startpoint) => startpoint,
        Err(error) => return assert!(!error.to_string().is_empty()),
    };
    assert_eq!(startpoint.encode(), bytes);
    assert_eq!(
        Startpoint::parse(&startpoint.text()).as_ref(),
        Ok(&startpoint)
    );
    assert!(!startpoint.to_string().contains(char::is_control));
    if let Ok(narrower) = startpoint.attenuate(Caveat::Expires(1)) {
        assert!(narrower.allowance().expires <= Some(1));
        assert!(narrower.needs(false) >= startpoint.needs(false));
    }
    right(&startpoint.right(&[7; 32], 1).encode());
}

/// What a peer shows to open a link.
pub(crate) fn right(bytes: &[u8]) {
    match Right::read(bytes) {
        Ok(right) => assert_eq!(right.encode(), bytes),
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}

/// A file of the directory of authorities, without and with an earlier one of that name.
fn load(name: &str, bytes: &[u8]) {
    let files = || {
        vec![TrustFile {
            name: name.to_owned(),
            content: bytes.to_vec(),
        }]
    };
    let (store, report) = TrustStore::load(files(), Vec::new(), None, 1);
    let (_, again) = TrustStore::load(files(), Vec::new(), Some(&store), 2);
    assert_eq!(report.bad_files.len(), again.bad_files.len());
    for authority in &report.authorities {
        authority.problems(authority.not_after);
    }
}

/// A certificate whose only extension is a critical `proxyCertInfo` (RFC 3820) with that value.
fn proxy(value: &[u8]) -> Vec<u8> {
    const ECDSA_SHA256: &[u8] = &[0x30, 10, 6, 8, 0x2a, 0x86, 0x48, 0xce, 0x3d, 4, 3, 2];
    const KEY_KIND: &[u8] = &[
        0x30, 19, 6, 7, 0x2a, 0x86, 0x48, 0xce, 0x3d, 2, 1, 6, 8, 0x2a, 0x86, 0x48, 0xce, 0x3d, 3,
        1, 7,
    ];
    const PROXY: &[u8] = &[6, 8, 0x2b, 6, 1, 5, 5, 7, 1, 14];
    let name = |text: &str| {
        let kind = [6, 3, 0x55, 4, 3];
        der(
            0x30,
            &[&der(
                0x31,
                &[&der(0x30, &[&kind, &der(0x0c, &[text.as_bytes()])])],
            )],
        )
    };
    let period = der(
        0x30,
        &[
            &der(0x17, &[b"250101000000Z"]),
            &der(0x17, &[b"350101000000Z"]),
        ],
    );
    let key = der(0x30, &[KEY_KIND, &der(3, &[&[0, 4], &[1; 64]])]);
    let extension = der(0x30, &[PROXY, &[1, 1, 0xff], &der(4, &[value])]);
    let extensions = der(0xa3, &[&der(0x30, &[&extension])]);
    let parts: [&[u8]; 8] = [
        &[0xa0, 3, 2, 1, 2],
        &[2, 1, 1],
        ECDSA_SHA256,
        &name("user"),
        &period,
        &name("proxy"),
        &key,
        &extensions,
    ];
    let statement = der(0x30, &parts);
    der(0x30, &[&statement, ECDSA_SHA256, &der(3, &[&[0, 1]])])
}

fn der(tag: u8, parts: &[&[u8]]) -> Vec<u8> {
    let content = parts.concat();
    let length = content.len().to_be_bytes();
    let length = &length[content.len().leading_zeros() as usize / 8..];
    let mut element = vec![tag];
    if content.len() < 0x80 {
        element.push(content.len() as u8);
    } else {
        element.push(0x80 | length.len() as u8);
        element.extend(length);
    }
    element.extend(content);
    element
}
