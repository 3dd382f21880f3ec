//! Names in both forms, as `openssl x509 -nameopt compat` and `-nameopt RFC2253` write them, and their comparison.

use proptest::prelude::*;

use super::*;

const CN: &[u8] = &[0x55, 4, 3];
const O: &[u8] = &[0x55, 4, 10];
const DC: &[u8] = &[0x09, 0x92, 0x26, 0x89, 0x93, 0xf2, 0x2c, 0x64, 1, 25];
const MAIL: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 9, 1];
/// 1.3.6.1.4.1.55555.1
const STRANGE: &[u8] = &[0x2b, 6, 1, 4, 1, 0x83, 0xb2, 3, 1];

const UTF8: u8 = 12;
const PRINTABLE: u8 = 19;
const TELETEX: u8 = 20;
const IA5: u8 = 22;
const BMP: u8 = 30;

fn tlv(tag: u8, content: &[u8]) -> Vec<u8> {
    let mut out = vec![tag];
    match content.len() {
        length @ 0..=0x7f => out.push(length as u8),
        length @ 0x80..=0xff => out.extend([0x81, length as u8]),
        length => out.extend([0x82, (length >> 8) as u8, length as u8]),
    }
    out.extend_from_slice(content);
    out
}

type Attribute<'a> = (&'a [u8], u8, &'a [u8]);

fn name(parts: &[&[Attribute<'_>]]) -> DistinguishedName {
    let parts: Vec<u8> = parts
        .iter()
        .flat_map(|attributes| {
            let set: Vec<u8> = attributes
                .iter()
                .flat_map(|(oid, tag, value)| tlv(0x30, &[tlv(6, oid), tlv(*tag, value)].concat()))
                .collect();
            tlv(0x31, &set)
        })
        .collect();
    DistinguishedName::from_der(&tlv(0x30, &parts)).unwrap()
}

fn single(attribute: Attribute<'_>) -> DistinguishedName {
    name(&[&[attribute]])
}

#[test]
fn both_forms_are_those_of_openssl() {
    let alice = name(&[
        &[(DC, IA5, b"org")],
        &[(DC, IA5, b"example")],
        &[(CN, UTF8, "J\u{fc}rgen, \"x\"+<y>;\\z".as_bytes())],
        &[(MAIL, IA5, b"a@example.org")],
    ]);
    assert_eq!(
        alice.slash(),
        "/DC=org/DC=example/CN=J\\xC3\\xBCrgen, \"x\"+<y>;\\z/emailAddress=a@example.org"
    );
    assert_eq!(
        alice.rfc2253(),
        "emailAddress=a@example.org,CN=J\\C3\\BCrgen\\, \\\"x\\\"\\+\\<y\\>\\;\\\\z,DC=example,DC=org"
    );
    let several = name(&[&[(O, PRINTABLE, b"a"), (CN, PRINTABLE, b"b")]]);
    assert_eq!(several.slash(), "/O=a+CN=b");
    assert_eq!(several.rfc2253(), "CN=b+O=a");
    let spaced = single((CN, UTF8, b" # "));
    assert_eq!(spaced.rfc2253(), "CN=\\ #\\ ");
    assert_eq!(single((CN, UTF8, b"#1")).rfc2253(), "CN=\\#1");
    assert_eq!(single((CN, UTF8, b"a\n")).rfc2253(), "CN=a\\0A");
    assert_eq!(single((CN, UTF8, b"a\n")).slash(), "/CN=a\\x0A");
    assert_eq!(
        single((CN, BMP, &[0, b'a', 0x20, 0xac])).rfc2253(),
        "CN=a\\E2\\82\\AC"
    );
    assert_eq!(single((CN, BMP, &[0, b'a'])).slash(), "/CN=\\x00a");
    assert_eq!(single((CN, TELETEX, &[0xfc])).rfc2253(), "CN=\\C3\\BC");
    let strange = single((STRANGE, UTF8, b"a"));
    assert_eq!(strange.slash(), "/1.3.6.1.4.1.55555.1=a");
    assert_eq!(strange.rfc2253(), "1.3.6.1.4.1.55555.1=#0C0161");
    let no_text = single((CN, 4, &[1; 200]));
    assert!(
        no_text.rfc2253().starts_with("CN=#0481C80101"),
        "{}",
        no_text.rfc2253()
    );
    let empty = name(&[]);
    assert_eq!((empty.slash().as_str(), empty.rfc2253().as_str()), ("", ""));
    assert!(empty.is_empty() && !strange.is_empty());
}

/// RFC 5280 section 7.1: neither the string type, nor case, nor runs of spaces tell two names apart.
#[test]
fn names_are_compared_by_what_they_say() {
    let one = name(&[&[(O, PRINTABLE, b"Some  Grid")], &[(CN, UTF8, b"Alice")]]);
    for other in [
        name(&[&[(O, UTF8, b"some grid")], &[(CN, PRINTABLE, b"ALICE")]]),
        name(&[&[(O, UTF8, b" Some Grid ")], &[(CN, TELETEX, b"alice")]]),
    ] {
        assert!(one.matches(&other) && other.matches(&one), "{other}");
        assert_ne!(one, other);
    }
    for other in [
        name(&[&[(O, UTF8, b"SomeGrid")], &[(CN, PRINTABLE, b"alice")]]),
        name(&[&[(CN, UTF8, b"alice")], &[(O, PRINTABLE, b"some grid")]]),
        name(&[&[(O, UTF8, b"some grid"), (CN, PRINTABLE, b"alice")]]),
        name(&[&[(O, UTF8, b"some grid")]]),
        name(&[&[(O, UTF8, b"some grid")], &[(O, UTF8, b"alice")]]),
        // The same slash form, and yet another name.
        name(&[&[(O, UTF8, b"some grid/CN=alice")]]),
    ] {
        assert!(!one.matches(&other), "{other}");
    }
    let set = name(&[&[(O, UTF8, b"a"), (CN, UTF8, b"b")]]);
    assert!(set.matches(&name(&[&[(CN, UTF8, b"B"), (O, UTF8, b"A")]])));
    let bytes = single((CN, 4, b"a"));
    assert!(!bytes.matches(&single((CN, 4, b"A"))), "no text");
    assert!(!bytes.matches(&single((CN, UTF8, b"a"))));
}

#[test]
fn a_proxy_has_one_common_name_more() {
    let user = name(&[&[(O, UTF8, b"grid")], &[(CN, UTF8, b"alice")]]);
    let below = |last: &[Attribute<'_>]| {
        name(&[&[(O, UTF8, b"Grid")], &[(CN, PRINTABLE, b"alice")], last]).common_name_below(&user)
    };
    assert_eq!(below(&[(CN, UTF8, b"1234")]).as_deref(), Some(&b"1234"[..]));
    assert_eq!(below(&[(O, UTF8, b"1234")]), None);
    assert_eq!(below(&[(CN, UTF8, b"1"), (CN, UTF8, b"2")]), None);
    assert_eq!(user.common_name_below(&user), None);
    assert_eq!(name(&[]).common_name_below(&name(&[])), None);
    let deep = name(&[
        &[(O, UTF8, b"grid")],
        &[(CN, UTF8, b"alice")],
        &[(CN, UTF8, b"1")],
        &[(CN, UTF8, b"2")],
    ]);
    assert_eq!(deep.common_name_below(&user), None);
}

#[test]
fn what_is_no_name_is_refused() {
    let der = single((CN, UTF8, b"a")).as_der().to_vec();
    assert_eq!(
        DistinguishedName::from_der(&[der.clone(), vec![0]].concat()),
        Err(Malformed::TrailingBytes {
            what: "distinguished name",
            got: 1
        })
    );
    assert!(DistinguishedName::from_der(&der[1..]).is_err());
    assert!(DistinguishedName::from_der(&[]).is_err());
    let long = vec![b'a'; DISTINGUISHED_NAME_BYTES_MAX];
    let long = tlv(
        0x30,
        &tlv(0x31, &tlv(0x30, &[tlv(6, CN), tlv(UTF8, &long)].concat())),
    );
    assert!(matches!(
        DistinguishedName::from_der(&long),
        Err(Malformed::TooLong { .. })
    ));
}

prop_compose! {
    fn any_name()(parts in prop::collection::vec(
        prop::collection::vec(
            (
                prop::sample::select(vec![CN, O, DC, MAIL, STRANGE]),
                prop::sample::select(vec![UTF8, PRINTABLE, TELETEX, IA5, BMP, 4, 28]),
                prop::collection::vec(prop_oneof![any::<u8>(), prop::char::range(' ', '~').prop_map(|one| one as u8)], 0..12),
            ),
            1..3,
        ),
        0..5,
    )) -> Vec<u8> {
        let parts: Vec<u8> = parts.iter().flat_map(|set| {
            let set: Vec<u8> = set.iter()
                .flat_map(|(oid, tag, value)| tlv(0x30, &[tlv(6, oid), tlv(*tag, value)].concat()))
                .collect();
            tlv(0x31, &set)
        }).collect();
        tlv(0x30, &parts)
    }
}

proptest! {
    /// Whatever stands in a name, both forms are printable ASCII, and it is the same name as itself and no longer one.
    #[test]
    fn every_name_has_its_forms(der in any_name()) {
        if let Ok(name) = DistinguishedName::from_der(&der) {
            let printable = |text: &str| text.bytes().all(|byte| (b' '..=b'~').contains(&byte));
            prop_assert!(printable(&name.slash()), "{}", name.slash());
            prop_assert!(printable(&name.rfc2253()), "{}", name.rfc2253());
            prop_assert!(name.matches(&name));
            prop_assert_eq!(DistinguishedName::from_der(name.as_der()), Ok(name.clone()));
            prop_assert_eq!(name.common_name_below(&name), None);
        }
    }

    /// Two names are the same for [`matches`] exactly when their keys are.
    #[test]
    fn keys_and_comparison_agree(one in any_name(), other in any_name()) {
        if let (Ok(one), Ok(other)) = (DistinguishedName::from_der(&one), DistinguishedName::from_der(&other)) {
            prop_assert_eq!(one.matches(&other), one.key() == other.key());
            prop_assert_eq!(one.matches(&other), one.part_keys() == other.part_keys());
        }
    }

    #[test]
    fn arbitrary_bytes_do_not_panic(der in prop::collection::vec(any::<u8>(), 0..200)) {
        if let Ok(name) = DistinguishedName::from_der(&der) {
            let _ = (name.slash(), name.rfc2253(), name.mail_addresses());
        }
    }
}
