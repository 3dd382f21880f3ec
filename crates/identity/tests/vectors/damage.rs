//! Chains that were good until somebody touched them.

use rustls_pki_types::CertificateDer;

use crate::manifest::Vectors;

/// Every byte of every certificate is signed, or is the signature: there is nothing that a peer could change.
#[test]
fn a_chain_with_any_byte_changed_is_nobodys() {
    let vectors = Vectors::read();
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

/// A chain that was cut off anywhere is an error like any other.
#[test]
fn a_chain_that_was_cut_off_is_nobodys() {
    let vectors = Vectors::read();
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
