//! Chains that were good until somebody touched them.

use std::sync::Arc;

use exoskel_identity::{GridSettings, GridVerifier, TrustStore};
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, CertificateRevocationListDer};

use crate::manifest::VECTORS;

/// Every byte of every certificate is signed, or is the signature: there is nothing that a peer could change.
#[test]
fn a_chain_with_any_byte_changed_is_nobodys() {
    let vectors = &*VECTORS;
    for name in ["rfc_full_p384_chain", "intermediate_sent", "voms"] {
        let case = vectors.case(name);
        let verifier = vectors.verifier(case);
        let chain = case.chain();
        assert!(verifier.judge(&chain, vectors.now()).is_ok());
        for (position, certificate) in chain.iter().enumerate() {
            for at in 0..certificate.len() {
                let mut bytes = certificate.to_vec();
                bytes[at] ^= 1 << (at % 8);
                let mut changed = chain.clone();
                changed[position] = CertificateDer::from(bytes);
                let verdict = verifier.judge(&changed, vectors.now());
                assert!(
                    verdict.is_err(),
                    "{name}: byte {at} of certificate {position}"
                );
            }
        }
    }
}

/// A trust directory that the disk has damaged accepts nobody: neither a damaged list nor a damaged authority counts.
#[test]
fn an_authority_with_any_byte_changed_accepts_nobody() {
    let vectors = &*VECTORS;
    let case = vectors.case("same_name_first");
    let chain = case.chain();
    let good = case.trust_files();
    let settings = Arc::new(GridSettings::default());
    for (index, file) in good.iter().enumerate() {
        let der = match file.name.rsplit_once('.') {
            Some((_, "0")) => CertificateDer::from_pem_slice(&file.content)
                .unwrap()
                .to_vec(),
            Some((_, "r0")) => CertificateRevocationListDer::from_pem_slice(&file.content)
                .unwrap()
                .to_vec(),
            _ => continue,
        };
        for at in 0..der.len() {
            let mut files = good.clone();
            files[index].content = der.clone();
            files[index].content[at] ^= 1 << (at % 8);
            let (store, _) = TrustStore::load(files, Vec::new(), None, 1);
            let verifier = GridVerifier::new(Arc::new(store), Arc::clone(&settings)).unwrap();
            let verdict = verifier.judge(&chain, vectors.now());
            assert!(verdict.is_err(), "byte {at} of {}", file.name);
        }
    }
}

/// A chain that was cut off anywhere is an error like any other.
#[test]
fn a_chain_that_was_cut_off_is_nobodys() {
    let vectors = &*VECTORS;
    let case = vectors.case("voms");
    let verifier = vectors.verifier(case);
    let chain = case.chain();
    for (position, certificate) in chain.iter().enumerate() {
        for length in 0..certificate.len() {
            let mut changed = chain.clone();
            changed[position] = CertificateDer::from(certificate[..length].to_vec());
            assert!(verifier.judge(&changed, vectors.now()).is_err());
        }
    }
    for length in 0..chain.len() {
        assert!(verifier.judge(&chain[..length], vectors.now()).is_err());
    }
}
