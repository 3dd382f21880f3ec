//! Who the owners of the chains are, or which rule their chains break.

use exoskel_identity::{IdentityError, NameSpaceRule, ProxyFault, ProxyKind, VerifiedIdentity};

use crate::manifest::{Expect, VECTORS};

/// Whoever made a certificate that is too large needs to know what in it is.
#[test]
fn a_long_extension_is_named_with_its_certificate() {
    let error = |name: &str| VECTORS.judge(VECTORS.case(name)).unwrap_err().to_string();
    assert_eq!(
        error("extension_8500"),
        "the leaf certificate \"/DC=org/DC=example/O=Users/CN=Big\" is a certificate whose extension \
         1.3.6.1.4.1.55555.1.1 has 8504 bytes, expected at most 8192"
    );
}

/// A user can only ask for another certificate who knows what is wrong with this one.
#[test]
fn a_signature_that_nobody_should_make_is_named() {
    let error = VECTORS.judge(VECTORS.case("eec_md5")).unwrap_err();
    assert!(error.to_string().contains("RSA with MD5"), "{error}");
}

/// The rules of the manifest that an error can stand for.
fn reasons(error: &IdentityError) -> &'static [&'static str] {
    match error {
        IdentityError::WrongRole { .. }
        | IdentityError::WrongName { .. }
        | IdentityError::RevocationListForged { .. }
        | IdentityError::PathRule { .. }
        | IdentityError::TooManyAuthorities
        | IdentityError::TooManySignatures
        | IdentityError::Claim { .. } => &[],
        // A file without a block.
        IdentityError::NoCertificate => &["encoding"],
        IdentityError::ChainTooLong { .. } => &["chain-length"],
        IdentityError::Malformed { .. } => &[
            "encoding",
            "alternative-names",
            "extension-once",
            "certificate-size",
            "extension-size",
            "proxy-info",
        ],
        IdentityError::UnknownAuthority { .. } => &["trust-anchor", "signature"],
        IdentityError::Expired { .. }
        | IdentityError::NotYetValid { .. }
        | IdentityError::AuthorityOutOfDate { .. } => &["validity"],
        IdentityError::Revoked { .. } => &["revoked"],
        IdentityError::RevocationListStale { .. }
        | IdentityError::RevocationListFromFuture { .. } => &["crl-current"],
        // A list that can't be used never gets into the store, which reports it.
        IdentityError::NoRevocationList { .. } => &[
            "crl-missing",
            "crl-issuer",
            "crl-encoding",
            "crl-extensions",
            "digest",
        ],
        IdentityError::UnknownCriticalExtension { .. } => &["critical-extension"],
        IdentityError::WeakKey { .. } => &["key-strength", "rsa-numbers"],
        IdentityError::WeakSignature { .. } => &["digest"],
        IdentityError::WrongSignature { .. } => &["signature"],
        IdentityError::UntrustedAuthority { .. } => {
            &["ca-key-usage", "key-strength", "ca-basic-constraints"]
        }
        IdentityError::PathLength { .. } => &["ca-path-length"],
        IdentityError::NameNotPermitted { rule, .. } => match rule {
            NameSpaceRule::NameConstraints => &["name-constraints"],
            NameSpaceRule::SigningPolicy => &["signing-policy"],
            NameSpaceRule::Namespaces => &["namespaces"],
        },
        IdentityError::NoNameSpace { .. } => &["signing-policy"],
        IdentityError::AuthorityAsLeaf { .. } => &["end-entity"],
        IdentityError::LeafAsAuthority { .. } => &["ca-basic-constraints", "end-entity"],
        IdentityError::WrongUsage { expected, .. } => match *expected {
            "key usage for digital signatures" => &["key-usage", "proxy-usage"],
            "key usage for signing certificates" => &["ca-key-usage"],
            _ => &["extended-key-usage"],
        },
        IdentityError::AuthorityPurpose { .. } => &["ca-extended-key-usage"],
        IdentityError::Proxy { fault, .. } => proxy_reasons(fault),
    }
}

fn proxy_reasons(fault: &ProxyFault) -> &'static [&'static str] {
    match fault {
        ProxyFault::NotCritical => &["proxy-info"],
        ProxyFault::AlternativeName | ProxyFault::IssuerAlternativeName => {
            &["proxy-alternative-names"]
        }
        ProxyFault::IsAuthority => &["proxy-not-ca"],
        ProxyFault::SignsCertificates | ProxyFault::IssuerMayNotSign => &["proxy-usage"],
        ProxyFault::IssuedByAuthority { .. } => &["proxy-issuer"],
        ProxyFault::IssuerNotInChain { .. } => &["trust-anchor"],
        ProxyFault::Subject { .. } => &["proxy-name"],
        ProxyFault::PathLength { .. } => &["proxy-path-length"],
        ProxyFault::UnknownLanguage { .. } | ProxyFault::UnexpectedPolicy => &["proxy-language"],
        ProxyFault::FullBelowLimited => &["proxy-limited"],
        ProxyFault::KindOff { kind, .. } => match kind {
            ProxyKind::Draft => &["proxy-draft"],
            _ => &["proxy-legacy"],
        },
        ProxyFault::Mixed { .. } => &["proxy-mixed"],
        ProxyFault::TooDeep { .. } => &["proxy-depth"],
    }
}

fn differences(expect: &Expect, verdict: &Result<VerifiedIdentity, IdentityError>) -> Vec<String> {
    let mut differences = Vec::new();
    let mut compare = |what: &str, got: String, expected: String| {
        if got != expected {
            differences.push(format!("{what}: got {got}, expected {expected}"));
        }
    };
    match verdict {
        Err(error) if expect.accepted => compare("verdict", error.to_string(), "accepted".into()),
        Ok(peer) if !expect.accepted => compare(
            "verdict",
            format!("accepted as {peer}"),
            format!("{:?}", expect.reason),
        ),
        Err(error) => {
            let expected = expect.reason.as_deref().unwrap_or_default();
            if !reasons(error).contains(&expected) {
                compare("reason", error.to_string(), expected.to_owned());
            }
        }
        Ok(peer) => {
            let proxy = peer.proxy();
            let kind = match proxy.map(|proxy| proxy.kind) {
                None => "end-entity",
                Some(ProxyKind::Rfc3820) => "rfc3820",
                Some(ProxyKind::Draft) => "draft",
                Some(ProxyKind::Legacy) => "legacy",
            };
            let text = |text: &Option<String>| text.clone().unwrap_or_default();
            compare("identity", peer.subject().slash(), text(&expect.identity));
            compare("type", kind.to_owned(), text(&expect.kind));
            let leaf = exoskel_identity::CertificateDetails::read(&peer.chain()[0]).unwrap();
            assert_eq!(leaf.serial, peer.serial());
            compare(
                "depth",
                proxy.map_or(0, |proxy| proxy.depth).to_string(),
                expect.depth.unwrap_or_default().to_string(),
            );
            compare(
                "limited",
                proxy.is_some_and(|proxy| proxy.limited).to_string(),
                expect.limited.unwrap_or_default().to_string(),
            );
            compare(
                "independent",
                proxy.is_some_and(|proxy| proxy.independent).to_string(),
                expect.independent.unwrap_or_default().to_string(),
            );
        }
    }
    differences
}

#[test]
fn every_vector_is_judged_as_its_rule_says() {
    let vectors = &*VECTORS;
    let mut failures = Vec::new();
    for case in vectors.cases() {
        let found = differences(&case.expect, &vectors.judge(case));
        failures.extend(found.into_iter().map(|one| format!("{}: {one}", case.name)));
    }
    assert!(vectors.cases().len() > 100, "{}", vectors.cases().len());
    assert!(
        failures.is_empty(),
        "{} differences:\n{}",
        failures.len(),
        failures.join("\n")
    );
}
