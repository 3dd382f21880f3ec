//! Startpoints, the rights that they prove, and what a reader or an endpoint refuses.

use exoskel_identity::{Identity, Role};
use exoskel_link::Protection;
use exoskel_link::capability::{
    CapabilityError, Caveat, NewStartpoint, Right, RootKey, Startpoint,
};
use exoskel_link::handshake::ProcessNumber;

use super::{array, file, hex, identity, object, pattern, text};

const ENDPOINT: &str = "coupler";
const NOW: u64 = 1_800_000_000;
const LINK: u32 = 5;

fn bytes<const N: usize>(seed: u8) -> [u8; N] {
    pattern(N, seed).try_into().unwrap()
}

fn binding() -> [u8; 32] {
    bytes(0x77)
}

pub(super) fn capabilities() -> String {
    let mut root = RootKey::new(ENDPOINT, bytes(0x1d), bytes(0x5e)).unwrap();
    let startpoints = startpoints(&mut root);
    let cases: Vec<_> = startpoints
        .iter()
        .map(|(name, one)| case(name, one))
        .collect();
    let first = &startpoints[0].1;
    file(&[
        ("endpoint", text(ENDPOINT)),
        ("key_id", hex(root.key_id())),
        ("secret", hex(&bytes::<32>(0x5e))),
        ("binding", hex(&binding())),
        ("startpoints", array(&cases)),
        ("rights", array(&rights(&startpoints))),
        ("bad_texts", array(&bad_texts(first))),
        ("bad_startpoints", array(&bad_startpoints(first))),
        ("bad_rights", array(&bad_rights())),
    ])
}

fn new(caveats: Vec<Caveat>) -> NewStartpoint {
    NewStartpoint {
        node: identity(Role::Worker, "ocean.example.org"),
        hints: ["unix:/run/ocean.socket", "tcp://ocean.example.org:7700"]
            .map(str::to_owned)
            .to_vec(),
        process: ProcessNumber::new(bytes(0x2f)),
        minimum: Protection::Integrity,
        bearer: false,
        caveats,
    }
}

fn usual() -> Vec<Caveat> {
    vec![
        Caveat::holder("*.example.org").unwrap(),
        Caveat::handlers(["surface", "deep"]),
        Caveat::Expires(NOW + 3600),
    ]
}

fn startpoints(root: &mut RootKey) -> Vec<(&'static str, Startpoint)> {
    let usual = root.issue(new(usual())).unwrap();
    let narrowed = usual
        .attenuate(Caveat::handlers(["deep", "größe"]))
        .and_then(|one| one.attenuate(Caveat::holder("plotter.example.org")?))
        .and_then(|one| one.attenuate(Caveat::Protection(Protection::Encrypted)))
        .and_then(|one| one.attenuate(Caveat::Expires(NOW + 60)))
        .unwrap();
    let bearer = NewStartpoint {
        node: identity(Role::Manager, "head.example.org"),
        process: ProcessNumber::new(bytes(0x2f)),
        hints: vec![],
        minimum: Protection::Plain,
        bearer: true,
        caveats: vec![],
    };
    let of_grid = NewStartpoint {
        node: Identity::of_subject(Role::Manager, "/DC=org/DC=grid/CN=Alice").unwrap(),
        hints: vec!["tcp://[2001:db8::7]:7700".to_owned()],
        ..new(vec![
            Caveat::holder("/DC=org/DC=grid/CN=J\u{fc}rgen *").unwrap(),
            Caveat::holder("/testvo/Role=production").unwrap(),
        ])
    };
    let of_several = new(vec![
        Caveat::holders(["plotter.example.org", "*.example.net", "/testvo/*"]).unwrap(),
        Caveat::holders(["*.example.org", "*.example.net"]).unwrap(),
    ]);
    let bearer = root.issue(bearer).unwrap();
    let bound = bearer.attenuate(Caveat::holder("*").unwrap()).unwrap();
    vec![
        ("usual", usual),
        ("narrowed by its holders", narrowed),
        ("bearer, nothing else", bearer),
        ("bearer, narrowed to holders", bound),
        ("of a grid", root.issue(of_grid).unwrap()),
        (
            "for any of several holders",
            root.issue(of_several).unwrap(),
        ),
    ]
}

fn case(name: &str, startpoint: &Startpoint) -> String {
    let allowance = startpoint.allowance();
    let handlers = allowance.handlers.map(|names| words(names.iter()));
    let allowance = object(&[
        ("handlers", or_null(handlers)),
        (
            "expires",
            or_null(allowance.expires.map(|at| at.to_string())),
        ),
        ("protection", text(allowance.protection.name())),
    ]);
    let fields = object(&[
        ("role", text(startpoint.node().role.as_str())),
        ("name", text(&startpoint.node().name)),
        ("hints", words(startpoint.hints().iter())),
        ("endpoint", text(startpoint.endpoint())),
        ("process", hex(startpoint.process().bytes())),
        ("key_id", hex(startpoint.key_id())),
        ("number", startpoint.number().to_string()),
        ("bearer", startpoint.is_bearer().to_string()),
        ("caveats", caveats(startpoint.caveats())),
    ]);
    object(&[
        ("case", text(name)),
        ("fields", fields),
        ("allowance", allowance),
        ("startpoint", hex(&startpoint.encode())),
        ("text", text(&startpoint.text())),
        ("link", LINK.to_string()),
        ("right", hex(&startpoint.right(&binding(), LINK).encode())),
    ])
}

fn or_null(value: Option<String>) -> String {
    value.unwrap_or_else(|| "null".to_owned())
}

fn words<'a>(list: impl Iterator<Item = &'a String>) -> String {
    array(&list.map(|one| text(one)).collect::<Vec<_>>())
}

fn caveats(list: &[Caveat]) -> String {
    let list = list.iter().map(|caveat| match caveat {
        Caveat::Handlers(names) => array(&[text("handlers"), words(names.iter())]),
        Caveat::Expires(seconds) => array(&[text("expires"), seconds.to_string()]),
        Caveat::Holder(pattern) => array(&[text("holder"), text(&pattern.to_string())]),
        Caveat::Holders(patterns) => {
            let patterns: Vec<_> = patterns.iter().map(ToString::to_string).collect();
            array(&[text("holders"), words(patterns.iter())])
        }
        Caveat::Protection(protection) => array(&[text("protection"), text(protection.name())]),
    });
    array(&list.collect::<Vec<_>>())
}

/// Rights of which some are genuine, and some were tampered with or are shown where they don't belong.
fn rights(startpoints: &[(&'static str, Startpoint)]) -> Vec<String> {
    let usual = &startpoints[0].1;
    let right = usual.right(&binding(), LINK).encode();
    let narrowed = startpoints[1].1.right(&binding(), LINK).encode();
    let several = startpoints[5].1.right(&binding(), LINK).encode();
    let other_root = |key_id, secret| {
        let mut root = RootKey::new(ENDPOINT, key_id, secret).unwrap();
        let startpoint = root.issue(new(self::usual())).unwrap();
        startpoint.right(&binding(), LINK).encode()
    };
    let with_proof_of = |right: &[u8], other: &[u8]| {
        let proof = &other[other.len() - 32..];
        [&right[..right.len() - 32], proof].concat()
    };
    let changed = |place: usize, value: u8| {
        let mut changed = right.clone();
        changed[place] = value;
        changed
    };
    [
        ("genuine", right.clone(), LINK, true),
        ("genuine, narrowed", narrowed.clone(), LINK, true),
        ("on another link", right.clone(), LINK + 2, false),
        (
            "of another session",
            usual.right(&bytes(0x78), LINK).encode(),
            LINK,
            false,
        ),
        (
            "without the caveats that its holders added",
            with_proof_of(&right, &narrowed),
            LINK,
            false,
        ),
        (
            "with a caveat whose tag is missing",
            with_proof_of(&narrowed, &right),
            LINK,
            false,
        ),
        ("with another number", changed(23, 9), LINK, false),
        ("turned into a bearer's", changed(24, 1), LINK, false),
        ("genuine, of several holders", several.clone(), LINK, true),
        (
            "with another one of several holders",
            other_holder(&several),
            LINK,
            false,
        ),
        (
            "of another secret",
            other_root(bytes(0x1d), bytes(0x5f)),
            LINK,
            false,
        ),
        (
            "of another key",
            other_root(bytes(0x1e), bytes(0x5e)),
            LINK,
            false,
        ),
    ]
    .map(|(name, right, link, genuine)| {
        Right::read(&right).unwrap();
        object(&[
            ("case", text(name)),
            ("right", hex(&right)),
            ("link", link.to_string()),
            ("genuine", genuine.to_string()),
        ])
    })
    .to_vec()
}

/// A right of several holders, with `z` for the last letter of the first one.
fn other_holder(right: &[u8]) -> Vec<u8> {
    let place = right.windows(4).position(|part| part == b".net").unwrap();
    let mut changed = right.to_vec();
    changed[place + 3] = b'z';
    changed
}

fn bad_texts(startpoint: &Startpoint) -> Vec<String> {
    let good = startpoint.text();
    let other_last = |last: char| format!("{}{last}", &good[..good.len() - 1]);
    // Three characters more make a length at which the last one has bits that stand for nothing.
    let spare = startpoint
        .with_hints(vec!["tcp://a:1".to_owned()])
        .unwrap()
        .text();
    [
        ("nothing", String::new()),
        ("nothing behind the scheme", "exo://".to_owned()),
        ("another scheme", good.replace("exo:", "exi:")),
        ("scheme in capitals", good.replace("exo:", "EXO:")),
        ("a space in front", format!(" {good}")),
        ("a line feed behind", format!("{good}\n")),
        ("padding", format!("{good}=")),
        ("a character of the other alphabet", other_last('+')),
        ("cut by one", good[..good.len() - 1].to_owned()),
        ("cut by four", good[..good.len() - 4].to_owned()),
        ("a byte changed", good.replacen("exo://AQ", "exo://AR", 1)),
        ("bits that stand for nothing", spare_bits(&spare)),
    ]
    .map(|(name, bad)| {
        assert!(Startpoint::parse(&bad).is_err(), "{name}");
        object(&[
            ("case", text(name)),
            ("text", text(&bad.replace('\n', "\\n"))),
        ])
    })
    .to_vec()
}

/// The same bytes with another last character.
fn spare_bits(good: &str) -> String {
    const ALPHABET: &str = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let (start, last) = good.split_at(good.len() - 1);
    assert_ne!(good["exo://".len()..].len() % 4, 0);
    let index = ALPHABET.find(last).unwrap();
    format!("{start}{}", &ALPHABET[index + 1..index + 2])
}

fn bad_startpoints(startpoint: &Startpoint) -> Vec<String> {
    let good = startpoint.encode();
    let changed = |place: usize, value: u8| {
        let mut changed = good.clone();
        changed[place] = value;
        changed
    };
    [
        ("nothing", vec![]),
        ("another version", changed(0, 2)),
        ("no role", changed(1, 0)),
        ("unknown role", changed(1, 200)),
        ("a name that goes on for too long", changed(2, 0xff)),
        ("a control character in the name", changed(4, 7)),
        ("too many hints", changed(4 + 17, 9)),
        ("a byte missing", good[..good.len() - 1].to_vec()),
        ("a byte more", [&good[..], &[0]].concat()),
    ]
    .map(|(name, bad)| {
        assert!(Startpoint::read(&bad).is_err(), "{name}");
        object(&[("case", text(name)), ("startpoint", hex(&bad))])
    })
    .to_vec()
}

fn bad_rights() -> Vec<String> {
    let right = |bearer: u8, count: u8, caveats: &[u8]| {
        let mut right = bytes::<16>(0x1d).to_vec();
        right.extend_from_slice(&1_u64.to_be_bytes());
        right.extend_from_slice(&[bearer, count]);
        right.extend_from_slice(caveats);
        right.extend_from_slice(&[0; 32]);
        right
    };
    let expires = [&[2][..], &NOW.to_be_bytes()].concat();
    let long = [&[1, 1, 0, 100][..], &[b'a'; 100]].concat();
    let many: Vec<u8> = (0..41)
        .flat_map(|index: u8| [&[0, 100][..], &[b'A' + index; 100]].concat())
        .collect();
    let holders = |count: u8| {
        (0..count)
            .flat_map(|index| [0, 2, b'a' + index / 10, b'0' + index % 10])
            .collect::<Vec<_>>()
    };
    assert!(Right::read(&right(0, 1, &long)).is_ok());
    let most = [&[5, 64][..], &holders(64)].concat();
    assert!(Right::read(&right(0, 1, &most)).is_ok());
    [
        ("neither a bearer's nor not", right(2, 0, &[])),
        ("a caveat of kind 0", right(0, 1, &[0])),
        ("an unknown caveat", right(0, 1, &[6, 0])),
        ("no handlers", right(0, 1, &[1, 0])),
        (
            "handlers out of order",
            right(0, 1, b"\x01\x02\0\x01b\0\x01a"),
        ),
        ("a handler twice", right(0, 1, b"\x01\x02\0\x01a\0\x01a")),
        (
            "too many handlers",
            right(0, 1, &[&[1, 129][..], &[0; 258]].concat()),
        ),
        (
            "a handler with a control character",
            right(0, 1, b"\x01\x01\0\x01\x1b"),
        ),
        (
            "a handler that is not UTF-8",
            right(0, 1, b"\x01\x01\0\x01\xff"),
        ),
        ("no holders", right(0, 1, &[5, 0])),
        (
            "one holder, as if there were several",
            right(0, 1, b"\x05\x01\0\x01*"),
        ),
        (
            "holders out of order",
            right(0, 1, b"\x05\x02\0\x01b\0\x01a"),
        ),
        ("a holder twice", right(0, 1, b"\x05\x02\0\x01a\0\x01a")),
        (
            "too many holders",
            right(0, 1, &[&[5, 65][..], &holders(65)].concat()),
        ),
        ("an unknown protection", right(0, 1, &[4, 3])),
        ("too many caveats", right(0, 17, &expires.repeat(17))),
        (
            "caveats that are too long",
            right(0, 1, &[&[1, 41][..], &many].concat()),
        ),
        ("fewer caveats than it says", right(0, 3, &expires)),
        ("more caveats than it says", right(0, 1, &expires.repeat(2))),
        ("nothing", vec![]),
    ]
    .map(|(name, bad)| {
        let refused: Result<Right, CapabilityError> = Right::read(&bad);
        assert!(refused.is_err(), "{name}");
        object(&[("case", text(name)), ("right", hex(&bad))])
    })
    .to_vec()
}
