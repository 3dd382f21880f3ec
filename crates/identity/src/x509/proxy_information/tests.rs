//! `proxyCertInfo` as RFC 3820 and the draft before it encode it, and as nobody may.

use proptest::prelude::*;

use super::*;

const INHERIT_ALL: [u8; 12] = [0x30, 10, 6, 8, 0x2b, 6, 1, 5, 5, 7, 21, 1];

fn whole(parts: &[&[u8]]) -> Vec<u8> {
    let content = parts.concat();
    [&[0x30, content.len() as u8], content.as_slice()].concat()
}

fn rfc(parts: &[&[u8]]) -> Result<ProxyInformation, Malformed> {
    ProxyInformation::read(&whole(parts), true)
}

fn draft(parts: &[&[u8]]) -> Result<ProxyInformation, Malformed> {
    ProxyInformation::read_draft(&whole(parts), true)
}

#[test]
fn the_path_length_stands_in_front_or_in_the_draft_behind() {
    let length = [2, 1, 5];
    let tagged = [0xa1, 3, 2, 1, 5];
    assert_eq!(rfc(&[&INHERIT_ALL]).unwrap().path_length, None);
    let read = rfc(&[&length, &INHERIT_ALL]).unwrap();
    assert_eq!(
        (read.path_length, read.is_draft, read.has_policy),
        (Some(5), false, false)
    );
    assert_eq!(read.language, PolicyLanguage::InheritAll);
    assert_eq!(
        draft(&[&length, &INHERIT_ALL]).unwrap().path_length,
        Some(5)
    );
    assert_eq!(
        draft(&[&INHERIT_ALL, &tagged]).unwrap().path_length,
        Some(5)
    );
    for parts in [
        &[&INHERIT_ALL[..], &tagged][..],
        &[&INHERIT_ALL, &length],
        &[&length],
        &[],
        &[&[2, 1, 0x85], &INHERIT_ALL],
        &[&[2, 9, 1, 0, 0, 0, 0, 0, 0, 0, 0], &INHERIT_ALL],
    ] {
        assert_eq!(rfc(parts), Err(Malformed::BadExtension), "{parts:x?}");
    }
    assert!(
        draft(&[&length, &INHERIT_ALL, &tagged]).is_err(),
        "two lengths"
    );
}

#[test]
fn the_policy_is_an_octet_string_behind_its_language() {
    let with = |policy: &[u8]| {
        let language = &INHERIT_ALL[2..];
        rfc(&[&whole(&[language, policy])])
    };
    assert!(with(&[4, 1, b'x']).unwrap().has_policy);
    assert!(with(&[4, 0]).unwrap().has_policy);
    for policy in [&[12, 1, b'x'][..], &[4, 1], &[4, 0, 4, 0]] {
        assert_eq!(with(policy), Err(Malformed::BadExtension), "{policy:x?}");
    }
    let language = |oid: &[u8]| {
        let oid = [&[6, oid.len() as u8], oid].concat();
        rfc(&[&whole(&[&oid])]).unwrap().language
    };
    assert_eq!(
        language(&[0x2b, 6, 1, 5, 5, 7, 21, 2]),
        PolicyLanguage::Independent
    );
    assert_eq!(
        language(&[0x2b, 6, 1, 4, 1, 0x9b, 0x50, 1, 1, 1, 9]),
        PolicyLanguage::Limited
    );
    assert_eq!(
        language(&[0x2b, 6, 1, 5, 5, 7, 21, 0]),
        PolicyLanguage::Other("1.3.6.1.5.5.7.21.0".to_owned())
    );
}

proptest! {
    #[test]
    fn arbitrary_values_do_not_panic(value in prop::collection::vec(any::<u8>(), 0..60)) {
        let _ = (ProxyInformation::read(&value, true), ProxyInformation::read_draft(&value, false));
    }

    /// Whatever is changed, what is read has one meaning only: nothing stands behind it.
    #[test]
    fn what_is_read_was_read_whole(extra in prop::collection::vec(any::<u8>(), 1..10)) {
        let mut value = whole(&[&INHERIT_ALL]);
        value.extend(extra);
        prop_assert_eq!(ProxyInformation::read(&value, true), Err(Malformed::BadExtension));
    }
}
