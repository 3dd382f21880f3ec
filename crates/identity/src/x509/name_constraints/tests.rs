//! Each form of name inside and outside of a subtree (RFC 5280 section 4.2.1.10), and constraints that can't be read.

use proptest::prelude::*;
use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair, SanType};

use super::*;
use crate::x509::Certificate;

fn dns(name: &str) -> AlternativeName {
    AlternativeName::Dns(name.to_owned())
}

fn mail(name: &str) -> AlternativeName {
    AlternativeName::Mail(name.to_owned())
}

fn uri(name: &str) -> AlternativeName {
    AlternativeName::Uri(name.to_owned())
}

fn address(bytes: &[u8]) -> AlternativeName {
    AlternativeName::Address(bytes.into())
}

fn allow(constraints: &NameConstraints, certificate: &Certificate) -> bool {
    certificate.has_names_within(constraints)
}

fn certificate(subject: &[(DnType, &str)], names: Vec<SanType>) -> Certificate {
    let mut parameters = CertificateParams::default();
    parameters.distinguished_name = DistinguishedName::new();
    for (kind, value) in subject {
        parameters.distinguished_name.push(kind.clone(), *value);
    }
    parameters.subject_alt_names = names;
    let key = KeyPair::generate().unwrap();
    Certificate::read(parameters.self_signed(&key).unwrap().der()).unwrap()
}

fn directory(subject: &[(DnType, &str)]) -> AlternativeName {
    AlternativeName::Directory(certificate(subject, Vec::new()).subject)
}

#[test]
fn a_name_lies_in_a_subtree_of_its_form() {
    let cases = [
        (dns("lab1.Example.org"), dns("example.ORG"), Some(true)),
        (dns("example.org"), dns("example.org"), Some(true)),
        (dns("example.org"), dns(".example.org"), Some(true)),
        (dns("badexample.org"), dns("example.org"), Some(false)),
        (dns("org"), dns("example.org"), Some(false)),
        (dns("anything"), dns(""), Some(true)),
        (dns("lab1.EXAMPLE.org."), dns("example.org"), Some(true)),
        (dns("example.org."), dns("Example.Org"), Some(true)),
        (dns("lab1.example.org"), dns("example.org."), Some(true)),
        (dns("badexample.org."), dns("example.org"), Some(false)),
        (dns("lab1.example.org.."), dns("example.org"), None),
        (dns("lab1..org"), dns("example.org"), None),
        (dns("."), dns("example.org"), None),
        (dns(""), dns("example.org"), None),
        (dns("lab1.example.org\0.net"), dns("example.org"), None),
        (dns("lab1.example.org "), dns("example.org"), None),
        (mail("a@EXAMPLE.org."), mail("example.org"), Some(true)),
        (mail("a@lab.example.org."), mail(".example.org"), Some(true)),
        (mail("a@example.org."), mail("a@example.org"), Some(true)),
        (
            uri("https://Lab.example.org./x"),
            uri("lab.example.org"),
            Some(true),
        ),
        (
            uri("https://lab.EXAMPLE.org.:443"),
            uri(".example.org"),
            Some(true),
        ),
        (mail("a@example.org"), mail("example.org"), Some(true)),
        (mail("a@lab.example.org"), mail("example.org"), Some(false)),
        (mail("a@lab.example.org"), mail(".example.org"), Some(true)),
        (mail("a@example.org"), mail(".example.org"), Some(false)),
        (mail("a@example.org"), mail("a@Example.org"), Some(true)),
        (mail("A@example.org"), mail("a@example.org"), Some(false)),
        (mail("nobody"), mail("example.org"), None),
        (
            uri("https://u@lab.example.org:1/x"),
            uri("lab.example.org"),
            Some(true),
        ),
        (
            uri("https://lab.example.org?x"),
            uri(".example.org"),
            Some(true),
        ),
        (uri("https://example.org"), uri(".example.org"), Some(false)),
        (uri("urn:x"), uri("example.org"), None),
        (uri("https://[::1]/"), uri("example.org"), None),
        (
            address(&[10, 1, 2, 3]),
            address(&[10, 1, 0, 0, 255, 255, 0, 0]),
            Some(true),
        ),
        (
            address(&[10, 2, 2, 3]),
            address(&[10, 1, 0, 0, 255, 255, 0, 0]),
            Some(false),
        ),
        (address(&[10, 1, 2, 3]), address(&[0; 32]), Some(false)),
        (address(&[10, 1]), address(&[0; 8]), None),
        (AlternativeName::Other(0), AlternativeName::Other(0), None),
    ];
    for (name, tree, expected) in cases {
        assert_eq!(within(&name, &tree), expected, "{name:?} in {tree:?}");
    }
    let (o, cn) = (DnType::OrganizationName, DnType::CommonName);
    let alice = directory(&[(o.clone(), "Grid"), (cn.clone(), "alice")]);
    for (tree, expected) in [
        (vec![(o.clone(), "grid")], true),
        (vec![], true),
        (vec![(o.clone(), "Grid"), (cn.clone(), "Alice")], true),
        (vec![(o.clone(), "Gri")], false),
        (vec![(cn, "alice")], false),
    ] {
        assert_eq!(
            within(&alice, &directory(&tree)),
            Some(expected),
            "{tree:?}"
        );
    }
}

#[test]
fn permitted_and_excluded_names_of_a_certificate() {
    let host = |name: &str| SanType::DnsName(name.try_into().unwrap());
    let grid = [(DnType::OrganizationName, "Grid")];
    let named = |name| certificate(&grid, vec![host(name)]);
    let constraints = NameConstraints {
        permitted: vec![dns("example.org"), dns("example.com")],
        excluded: vec![dns("secret.example.org")],
    };
    assert!(allow(&constraints, &named("lab.example.org")));
    assert!(allow(&constraints, &named("example.com")));
    assert!(
        allow(&constraints, &certificate(&grid, Vec::new())),
        "no such name"
    );
    assert!(!allow(&constraints, &named("lab.example.net")));
    for excluded in [
        "a.secret.example.org",
        "secret.example.org.",
        "a.Secret.Example.ORG.",
        "a.secret.example.org..",
    ] {
        assert!(!allow(&constraints, &named(excluded)), "{excluded}");
    }
    assert!(allow(&constraints, &named("LAB.example.org.")));
    let both = certificate(
        &grid,
        vec![host("lab.example.org"), host("lab.example.net")],
    );
    assert!(!allow(&constraints, &both), "every name counts");

    let directories = NameConstraints {
        permitted: vec![directory(&grid)],
        excluded: vec![],
    };
    assert!(allow(&directories, &certificate(&grid, Vec::new())));
    assert!(!allow(
        &directories,
        &certificate(&[(DnType::OrganizationName, "Other")], Vec::new())
    ));
    assert!(
        allow(&directories, &certificate(&[], Vec::new())),
        "an empty subject"
    );

    let mails = NameConstraints {
        permitted: vec![mail("example.org")],
        excluded: vec![],
    };
    let old_mail = DnType::CustomDnType(vec![1, 2, 840, 113549, 1, 9, 1]);
    let of = |address| certificate(&[(old_mail.clone(), address)], Vec::new());
    assert!(allow(&mails, &of("a@example.org")));
    assert!(!allow(&mails, &of("a@example.net")), "in the subject");
}

/// What can't be compared is neither permitted nor free of exclusion.
#[test]
fn a_form_that_cannot_be_compared_is_refused_where_it_is_constrained() {
    let strange =
        SanType::OtherName((vec![1, 2, 3], rcgen::OtherNameValue::Utf8String("a".into())));
    let certificate = certificate(&[], vec![strange]);
    let other = || vec![AlternativeName::Other(0)];
    assert!(certificate.has_names_within(&NameConstraints::default()));
    let permitted = NameConstraints {
        permitted: other(),
        excluded: vec![],
    };
    let excluded = NameConstraints {
        permitted: vec![],
        excluded: other(),
    };
    assert!(!certificate.has_names_within(&permitted) && !certificate.has_names_within(&excluded));
}

#[test]
fn constraints_have_bases_only_and_come_in_order() {
    // [0] { SEQUENCE { [2] "a" } } and [1] likewise
    let permitted = [0xa0, 5, 0x30, 3, 0x82, 1, b'a'];
    let excluded = [0xa1, 5, 0x30, 3, 0x82, 1, b'b'];
    let read = |parts: &[&[u8]]| {
        let content = parts.concat();
        NameConstraints::read(&[&[0x30, content.len() as u8], content.as_slice()].concat())
    };
    assert_eq!(
        read(&[&permitted, &excluded]).unwrap(),
        NameConstraints {
            permitted: vec![dns("a")],
            excluded: vec![dns("b")]
        }
    );
    assert!(read(&[&excluded]).is_ok());
    for parts in [
        &[&excluded[..], &permitted][..],
        &[&permitted, &permitted],
        &[&[0xa2, 5, 0x30, 3, 0x82, 1, b'a']],
        &[&[0xa0, 0]],
        // A minimum behind the base.
        &[&[0xa0, 8, 0x30, 6, 0x82, 1, b'a', 0x80, 1, 0]],
    ] {
        assert_eq!(read(parts), Err(Malformed::BadExtension), "{parts:x?}");
    }
}

proptest! {
    #[test]
    fn arbitrary_constraints_do_not_panic(value in prop::collection::vec(any::<u8>(), 0..60), name in ".{0,20}", tree in ".{0,20}") {
        let _ = NameConstraints::read(&value);
        for (name, tree) in [(dns(&name), dns(&tree)), (mail(&name), mail(&tree)), (uri(&name), uri(&tree)), (address(name.as_bytes()), address(tree.as_bytes()))] {
            let _ = within(&name, &tree);
        }
    }
}
