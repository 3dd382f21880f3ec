//! What virtual organisations say about the owners of the chains.

use std::sync::Arc;

use exoskel_identity::{AttributeProblem, GridVerifier, TrustFile, TrustStore, VerifiedIdentity};
use proptest::prelude::*;
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject as _;

use crate::manifest::{Expect, VECTORS};

/// The rules of the manifest that a problem can stand for.
fn rules(problem: &AttributeProblem) -> &'static [&'static str] {
    use AttributeProblem as Problem;
    match problem {
        Problem::NotInherited | Problem::NotNearest => &["ac-place"],
        Problem::Malformed { field: "holder" } => &["ac-holder"],
        Problem::Malformed { .. } | Problem::NotDer(_) | Problem::TooMany { .. } => {
            &["ac-encoding"]
        }
        Problem::TwoAlgorithms | Problem::Signature { .. } => &["ac-signature"],
        // The site has another certificate of that name, or the signature is wrong: nothing tells these apart.
        Problem::OtherThanPinned { .. } => &["ac-signer-pinned", "ac-signature"],
        Problem::UnknownCriticalExtension { .. } => &["ac-extensions"],
        Problem::OtherHolder { .. } => &["ac-holder"],
        Problem::NotYetValid { .. } | Problem::Expired { .. } => &["ac-validity"],
        Problem::OtherTarget { .. } => &["ac-targets"],
        Problem::BadPolicyAuthority { .. } => &["ac-vo"],
        Problem::NoAttributes | Problem::BadFqan(_) | Problem::ForeignFqan { .. } => {
            &["ac-attributes"]
        }
        // Neither a list nor a pinned certificate that can be used: which of them is missing is for the site to say.
        Problem::UnknownServer { .. } => &["ac-vo", "ac-signer-list", "ac-signer-pinned"],
        Problem::NoSignerCertificate { .. } | Problem::OtherChain { .. } => &["ac-signer-list"],
        Problem::OtherSigner { .. } => &["ac-issuer"],
        Problem::SignerUsage { .. } | Problem::Signer(_) => &["ac-signer-path"],
    }
}

/// Says how the attributes differ from what the manifest expects, if they do.
fn difference(who: &VerifiedIdentity, expect: &Expect) -> Option<String> {
    let fqans: Vec<String> = who.fqans().map(ToString::to_string).collect();
    let faults: Vec<String> = who
        .attribute_faults()
        .iter()
        .map(ToString::to_string)
        .collect();
    if who.vo() != expect.vo.as_deref() || fqans != expect.fqans {
        return Some(format!("got {:?} {fqans:?}; {faults:?}", who.vo()));
    }
    let reasons_fit = who.attribute_faults().len() == expect.attribute_reasons.len()
        && who
            .attribute_faults()
            .iter()
            .zip(&expect.attribute_reasons)
            .all(|(fault, reason)| rules(&fault.problem).contains(&reason.as_str()));
    if !reasons_fit {
        return Some(format!(
            "got {faults:?}, expected {:?}",
            expect.attribute_reasons
        ));
    }
    let generic: Vec<(String, String)> = who
        .attributes()
        .iter()
        .flat_map(|one| one.generic())
        .map(|one| (one.name.clone(), one.value.clone()))
        .collect();
    if generic != expect.generic {
        return Some(format!("got {generic:?}"));
    }
    let ends = who.not_after().as_secs();
    expect
        .expires
        .filter(|expires| *expires != ends)
        .map(|expires| format!("ends at {ends}, expected {expires}"))
}

#[test]
fn every_chain_gives_the_attributes_that_the_manifest_states() {
    let vectors = &*VECTORS;
    let (mut judged, mut with_attributes, mut with_faults) = (0, 0, 0);
    let mut wrong = Vec::new();
    for case in vectors.cases().iter().filter(|case| case.expect.accepted) {
        judged += 1;
        match vectors.judge(case) {
            Ok(who) => {
                with_attributes += usize::from(who.vo().is_some());
                with_faults += usize::from(!who.attribute_faults().is_empty());
                if let Some(difference) = difference(&who, &case.expect) {
                    wrong.push(format!("{}: {difference}", case.name));
                }
            }
            Err(error) => wrong.push(format!("{}: {error}", case.name)),
        }
    }
    assert!(
        wrong.is_empty(),
        "{} of {judged}:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
    assert!(
        with_attributes > 30 && with_faults > 40,
        "{with_attributes} {with_faults}"
    );
}

/// The certificate in a file of the vomsdir, with another key: what a site keeps when its VOMS server has got a new one.
fn with_another_key(file: &TrustFile) -> Vec<u8> {
    let mut certificate = CertificateDer::from_pem_slice(&file.content)
        .unwrap()
        .to_vec();
    let modulus_of_2048_bits = [2, 0x82, 1, 1, 0];
    let mut places = certificate.windows(5);
    let modulus = places
        .position(|bytes| bytes == modulus_of_2048_bits)
        .unwrap();
    certificate[modulus + 100] ^= 1;
    certificate
}

#[test]
fn an_outdated_pinned_certificate_does_not_shut_out_its_server() {
    let case = VECTORS.case("signer_pinned_and_sent");
    let (anchors, vomsdir) = (case.trust_files(), case.voms_files());
    let pinned = vomsdir
        .iter()
        .find(|file| file.name.starts_with("pinnedvo/"))
        .unwrap();
    let outdated = TrustFile {
        name: "pinnedvo/an-older-one.pem".to_owned(),
        content: with_another_key(pinned),
    };
    let list = TrustFile {
        name: "pinnedvo/voms-pinned.example.org.lsc".to_owned(),
        content: b"/DC=org/DC=example/O=Hosts/CN=voms-pinned.example.org\n/DC=org/DC=example/CN=Classic CA\n"
            .to_vec(),
    };
    let judge = |vomsdir: Vec<TrustFile>| {
        let (store, report) = TrustStore::load(anchors.clone(), vomsdir, None, 1);
        let names = report.bad_files.iter().map(|file| file.name.as_str());
        assert_eq!(names.filter(|name| name.contains('/')).count(), 0);
        let settings = VECTORS.verifier(case).settings().clone();
        let verifier = GridVerifier::new(Arc::new(store), settings).unwrap();
        verifier.judge(&case.chain(), VECTORS.now()).unwrap()
    };
    let both = judge(vec![outdated.clone(), pinned.clone()]);
    assert_eq!(both.vo(), Some("pinnedvo"));
    let by_list = judge(vec![outdated.clone(), list]);
    assert_eq!(by_list.vo(), Some("pinnedvo"));
    let alone = judge(vec![outdated]);
    assert_eq!(alone.vo(), None);
    assert!(matches!(
        alone.attribute_faults()[0].problem,
        AttributeProblem::OtherThanPinned { .. }
    ));
}

proptest! {
    /// Every byte of a chain is signed by somebody, or is such a signature.
    #[test]
    fn a_changed_byte_never_keeps_the_attributes(
        certificate in 0..2_usize,
        place: prop::sample::Index,
        bit in 0..8_u32,
    ) {
        let vectors = &*VECTORS;
        let case = vectors.case("voms_two_vos");
        let mut chain = case.chain();
        let mut bytes = chain[certificate].to_vec();
        *place.get_mut(&mut bytes) ^= 1 << bit;
        chain[certificate] = CertificateDer::from(bytes);
        prop_assert!(vectors.verifier(case).judge(&chain, vectors.now()).is_err());
    }
}
