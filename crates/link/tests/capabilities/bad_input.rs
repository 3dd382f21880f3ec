//! Bytes and texts that are damaged, cut, too long, or another spelling of what has one already.

use exoskel_identity::{Identity, Role};
use exoskel_link::capability::{
    CAVEAT_BYTES_MAX, CapabilityError, Caveat, HINT_BYTES_MAX, HINTS_MAX, HOLDERS_MAX,
    NewStartpoint, REVOKED_MAX, RIGHT_BYTES_MAX, Right, RootKey, STARTPOINT_BYTES_MAX, Startpoint,
};
use exoskel_link::{CodecError, Protection};

use super::{BINDING, LINK, NOW, PROCESS, bearer, bound, holder, holders, root, shown, usual};

fn startpoint() -> Startpoint {
    root().issue(bound(usual())).unwrap()
}

fn flipped(bytes: &[u8]) -> impl Iterator<Item = Vec<u8>> {
    (0..bytes.len() * 8).map(move |bit| {
        let mut changed = bytes.to_vec();
        changed[bit / 8] ^= 1 << (bit % 8);
        changed
    })
}

/// A right is refused with any bit changed, by its reader or by its endpoint.
#[test]
fn every_bit_of_a_right_counts() {
    let plotter = holders::named("plotter.example.org");
    let right = startpoint().right(&BINDING, LINK).encode();
    for bytes in flipped(&right) {
        if let Ok(read) = Right::read(&bytes) {
            assert_eq!(read.encode(), bytes);
            assert!(root().verify(&read, &shown(&plotter)).is_err());
        }
    }
}

/// So is a startpoint, but for whom to expect and where to look.
#[test]
fn every_bit_of_a_startpoint_counts() {
    let plotter = holders::named("plotter.example.org");
    let startpoint = startpoint();
    let mut elsewhere = 0;
    for bytes in flipped(&startpoint.encode()) {
        let Ok(read) = Startpoint::read(&bytes) else {
            continue;
        };
        assert_eq!(read.encode(), bytes);
        assert_ne!(read, startpoint);
        // Its endpoint's name is what the opener asks for.
        let asked = RootKey::new(read.endpoint(), [0x1d; 16], [0x5e; 32]).unwrap();
        let right = read.right(&BINDING, LINK);
        let is_elsewhere = read.node() != startpoint.node()
            || read.process() != startpoint.process()
            || read.hints() != startpoint.hints();
        if is_elsewhere {
            elsewhere += 1;
        } else {
            assert!(asked.verify(&right, &shown(&plotter)).is_err());
        }
    }
    assert!(elsewhere > 100);
}

/// Damage is told from forgery: the checksum finds it before anybody is asked.
#[test]
fn every_bit_of_a_text_counts() {
    let text = startpoint().text();
    for bytes in flipped(text.as_bytes()) {
        if let Ok(damaged) = String::from_utf8(bytes) {
            let refused = Startpoint::parse(&damaged).unwrap_err();
            assert!(
                matches!(
                    refused,
                    CapabilityError::NotAStartpoint
                        | CapabilityError::BadCharacter { .. }
                        | CapabilityError::Damaged
                ),
                "{refused}"
            );
        }
    }
}

#[test]
fn what_is_cut_or_goes_on_is_refused() {
    let startpoint = startpoint();
    let (bytes, text) = (startpoint.encode(), startpoint.text());
    let right = startpoint.right(&BINDING, LINK).encode();
    for length in 0..bytes.len() {
        assert!(Startpoint::read(&bytes[..length]).is_err());
    }
    for length in 0..text.len() {
        assert!(Startpoint::parse(&text[..length]).is_err());
    }
    for length in 0..right.len() {
        assert!(Right::read(&right[..length]).is_err());
    }
    assert!(Startpoint::read(&[&bytes[..], &[0]].concat()).is_err());
    assert!(Right::read(&[&right[..], &[0]].concat()).is_err());
    for more in ["A", "AAAA", "=", "==", " ", "\n", "/", "#x"] {
        assert!(
            Startpoint::parse(&format!("{text}{more}")).is_err(),
            "{more:?}"
        );
    }
}

#[test]
fn a_text_has_one_spelling() {
    let text = startpoint().text();
    let body = text.strip_prefix("exo://").unwrap();
    for other in [
        format!("EXO://{body}"),
        format!("exo:/{body}"),
        format!(" {text}"),
        format!("exo:// {body}"),
        body.to_owned(),
        "exo://".to_owned(),
        String::new(),
    ] {
        assert!(Startpoint::parse(&other).is_err(), "{other}");
    }
    // The last character has bits that stand for nothing; they are zero. Each hint's length changes how many those are.
    let mut spare = 0;
    for length in 0..3 {
        let hints = vec!["x".repeat(length)];
        let text = startpoint().with_hints(hints).unwrap().text();
        let (start, _) = text.split_at(text.len() - 1);
        let spellings = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
        let read = spellings
            .chars()
            .filter(|last| Startpoint::parse(&format!("{start}{last}")).is_ok());
        assert_eq!(read.count(), 1);
        spare += text.len() % 4;
    }
    assert!(spare > 0);
}

/// The conditions of a right, up to its first caveat, and a right made of such bytes.
fn right_of(caveats: &[&[u8]]) -> Result<Right, CapabilityError> {
    let mut bytes = [[0x1d; 16].as_slice(), &[0, 0, 0, 0, 0, 0, 0, 1], &[0]].concat();
    bytes.push(caveats.len() as u8);
    bytes.extend(caveats.concat());
    bytes.extend([0; 32]);
    Right::read(&bytes)
}

#[test]
fn caveats_have_one_spelling() {
    assert!(right_of(&[b"\x01\x02\0\x01a\0\x01b"]).is_ok());
    for (caveat, why) in [
        (&b"\x01\0"[..], "no handlers"),
        (b"\x01\x02\0\x01b\0\x01a", "out of order"),
        (b"\x01\x02\0\x01a\0\x01a", "twice"),
        (b"\x01\x01\0\x01\x07", "control character"),
        (b"\x01\x01\0\x01\xff", "not UTF-8"),
        (b"\x03\0\0", "an empty pattern"),
        (b"\x03\0\x02**", "two stars"),
        (b"\x04\x03", "no such protection"),
        (b"\x05\0", "no holders"),
        (b"\x05\x01\0\x01a", "one holder has another kind"),
        (b"\x05\x02\0\x01b\0\x01a", "holders out of order"),
        (b"\x05\x02\0\x01a\0\x01a", "a holder twice"),
        (b"\x05\x02\0\x01a\0\x02**", "two stars in one of several"),
    ] {
        assert!(right_of(&[caveat]).is_err(), "{why}");
    }
    for kind in [0, 6, 0xff] {
        let refused = right_of(&[&[kind, 0]]);
        assert_eq!(refused, Err(CapabilityError::UnknownCaveat { got: kind }));
    }
    let expires = [&[2][..], &NOW.to_be_bytes()].concat();
    assert!(right_of(&[&expires[..]; 16]).is_ok());
    assert_eq!(
        right_of(&[&expires[..]; 17]),
        Err(CapabilityError::TooManyCaveats)
    );
    let mut bytes = startpoint().encode();
    bytes[0] = 2;
    assert_eq!(
        Startpoint::read(&bytes),
        Err(CapabilityError::Version { got: 2 })
    );
}

#[test]
fn what_is_too_long_is_refused_before_it_is_looked_at() {
    for refused in [
        Startpoint::read(&vec![1; STARTPOINT_BYTES_MAX + 1]).map(drop),
        Right::read(&vec![1; RIGHT_BYTES_MAX + 1]).map(drop),
        Startpoint::parse(&format!("exo://{}", "A".repeat(20_000))).map(drop),
        root().issue(bearer(vec![long_handlers()])).map(drop),
        startpoint()
            .with_hints(vec![String::new(); HINTS_MAX + 1])
            .map(drop),
        startpoint()
            .with_hints(vec!["x".repeat(HINT_BYTES_MAX + 1)])
            .map(drop),
        RootKey::new(&"x".repeat(101), [0; 16], [0; 32]).map(drop),
        startpoint()
            .attenuate(Caveat::handlers(["x".repeat(101).as_str()]))
            .map(drop),
        startpoint().attenuate(too_many_holders()).map(drop),
    ] {
        assert!(
            matches!(
                refused,
                Err(CapabilityError::Malformed(CodecError::Limit { .. }))
            ),
            "{refused:?}"
        );
    }
    let widest = startpoint()
        .with_hints(vec!["x".repeat(HINT_BYTES_MAX); HINTS_MAX])
        .unwrap();
    assert_eq!(Startpoint::parse(&widest.text()).as_ref(), Ok(&widest));
}

fn too_many_holders() -> Caveat {
    let names: Vec<String> = (0..=HOLDERS_MAX).map(|index| format!("n{index}")).collect();
    Caveat::holders(names.iter().map(String::as_str)).unwrap()
}

fn long_handlers() -> Caveat {
    let names: Vec<String> = (0..=CAVEAT_BYTES_MAX / 102)
        .map(|index| format!("{index:0100}"))
        .collect();
    Caveat::handlers(names.iter().map(String::as_str))
}

#[test]
fn a_startpoint_for_nobody_or_nothing_is_not_made() {
    let refused = root().issue(bound(vec![Caveat::Expires(NOW)]));
    assert_eq!(refused, Err(CapabilityError::NoHolder));
    let nothing = vec![Caveat::handlers(["a"]), Caveat::handlers(["b"])];
    let refused = root().issue(bearer(nothing));
    assert_eq!(refused, Err(CapabilityError::NoHandlerLeft));
    let refused = root().issue(bearer(vec![Caveat::handlers([])]));
    assert!(refused.is_err());
    for pattern in ["", "a b", "**", "/*/Role=x"] {
        assert!(matches!(
            Caveat::holder(pattern),
            Err(CapabilityError::Pattern { .. })
        ));
    }
    let nobody = NewStartpoint {
        node: Identity {
            role: Role::Worker,
            name: "Lab 1*".to_owned(),
        },
        process: PROCESS,
        hints: vec![],
        minimum: Protection::Plain,
        bearer: true,
        caveats: vec![],
    };
    assert!(root().issue(nobody).is_err());
    assert!(
        startpoint()
            .with_hints(vec!["tcp://a\u{7}".to_owned()])
            .is_err()
    );
    assert!(root().issue(bearer(vec![holder("*")])).is_ok());
}

/// A refused startpoint takes no number: the next one has the first.
#[test]
fn numbers_have_no_gaps_and_revocations_an_end() {
    let mut root = root();
    assert!(root.issue(bound(vec![])).is_err());
    assert_eq!(root.issue(bound(usual())).unwrap().number(), 1);
    assert_eq!(root.issue(bound(usual())).unwrap().number(), 2);
    for number in 0..REVOKED_MAX as u64 {
        root.revoke(number).unwrap();
    }
    assert_eq!(root.revoke(7), Ok(()));
    assert_eq!(root.revoke(u64::MAX), Err(CapabilityError::TooManyRevoked));
}
