//! Startpoints and rights through their public doors: what goes round comes back, narrowing never widens, and what an
//! attacker can do with what he sees or holds opens nothing.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod attacks;
mod bad_input;
mod holders;
mod narrowing;

use exoskel_identity::{Identity, Role, VerifiedIdentity};
use exoskel_link::Protection;
use exoskel_link::capability::{
    Allowance, CapabilityError, Caveat, NewStartpoint, Presentation, Right, RootKey, Startpoint,
};
use exoskel_link::handshake::ProcessNumber;

pub(crate) const NOW: u64 = 1_800_000_000;
pub(crate) const BINDING: [u8; 32] = [0xb1; 32];
pub(crate) const LINK: u32 = 5;
pub(crate) const PROCESS: ProcessNumber = ProcessNumber::new([0x2f; 16]);
pub(crate) const PROOF_BYTES: usize = 32;

pub(crate) fn root() -> RootKey {
    RootKey::new("coupler", [0x1d; 16], [0x5e; 32]).unwrap()
}

pub(crate) fn ocean() -> Identity {
    Identity::new(Role::Worker, "ocean.example.org").unwrap()
}

pub(crate) fn hints() -> Vec<String> {
    vec![
        "unix:/run/ocean.socket".to_owned(),
        "tcp://ocean.example.org:7700".to_owned(),
    ]
}

/// A startpoint that names its holders.
pub(crate) fn bound(caveats: Vec<Caveat>) -> NewStartpoint {
    NewStartpoint {
        node: ocean(),
        process: PROCESS,
        hints: hints(),
        minimum: Protection::Integrity,
        bearer: false,
        caveats,
    }
}

/// A startpoint for whoever holds it.
pub(crate) fn bearer(caveats: Vec<Caveat>) -> NewStartpoint {
    NewStartpoint {
        bearer: true,
        ..bound(caveats)
    }
}

pub(crate) fn holder(pattern: &str) -> Caveat {
    Caveat::holder(pattern).unwrap()
}

/// For the hosts of a site, two handlers, an hour.
pub(crate) fn usual() -> Vec<Caveat> {
    vec![
        holder("*.example.org"),
        Caveat::handlers(["surface", "deep"]),
        Caveat::Expires(NOW + 3600),
    ]
}

/// Somebody shows a right on the link that it was made for, as it should be.
pub(crate) fn shown(who: &VerifiedIdentity) -> Presentation<'_> {
    Presentation {
        binding: &BINDING,
        link: LINK,
        holder: who,
        now_unix: NOW,
        protection: Protection::Encrypted,
        minimum: Protection::Plain,
        same_host: false,
    }
}

/// Makes the right, passes it as bytes, and verifies it.
pub(crate) fn opened(
    root: &RootKey,
    startpoint: &Startpoint,
    presented: &Presentation<'_>,
) -> Result<Allowance, CapabilityError> {
    let right = startpoint.right(&BINDING, LINK).encode();
    root.verify(&Right::read(&right).unwrap(), presented)
}

/// A right as an attacker writes it, with a proof that came from elsewhere.
pub(crate) fn with_proof(right: &Right, proof: &[u8]) -> Right {
    let mut bytes = right.encode();
    let start = bytes.len() - PROOF_BYTES;
    bytes[start..].copy_from_slice(proof);
    Right::read(&bytes).unwrap()
}

pub(crate) fn proof_of(right: &Right) -> Vec<u8> {
    let bytes = right.encode();
    bytes[bytes.len() - PROOF_BYTES..].to_vec()
}

#[test]
fn a_startpoint_opens_what_it_says() {
    let mut root = root();
    let startpoint = root.issue(bound(usual())).unwrap();
    assert_eq!(startpoint.node(), &ocean());
    assert_eq!(startpoint.endpoint(), "coupler");
    assert_eq!(startpoint.needs(false), Protection::Integrity);
    let text = startpoint.text();
    assert!(text.starts_with("exo://") && text.len() < 512, "{text}");

    let received = Startpoint::parse(&text).unwrap();
    let plotter = holders::named("plotter.example.org");
    let allowance = opened(&root, &received, &shown(&plotter)).unwrap();
    assert_eq!(
        allowance,
        Allowance {
            number: 1,
            handlers: Some(["deep".to_owned(), "surface".to_owned()].into()),
            expires: Some(NOW + 3600),
            protection: Protection::Encrypted,
        }
    );
}

/// Each startpoint has a number; a revoked one is gone with its copies, and the others stay.
#[test]
fn a_revoked_startpoint_opens_nothing_and_neither_do_its_copies() {
    let mut root = root();
    let first = root.issue(bound(usual())).unwrap();
    let second = root.issue(bound(usual())).unwrap();
    let copy = first.attenuate(Caveat::handlers(["deep"])).unwrap();
    root.revoke(first.number()).unwrap();
    let plotter = holders::named("plotter.example.org");
    for gone in [&first, &copy] {
        assert_eq!(
            opened(&root, gone, &shown(&plotter)),
            Err(CapabilityError::Revoked { number: 1 })
        );
    }
    assert!(opened(&root, &second, &shown(&plotter)).is_ok());
}

/// The endpoint's minimum may have risen since: the link is raised, not refused.
#[test]
fn a_minimum_that_has_risen_raises_the_link() {
    let mut root = root();
    let startpoint = root.issue(bound(usual())).unwrap();
    let plotter = holders::named("plotter.example.org");
    let presented = Presentation {
        protection: Protection::Integrity,
        ..shown(&plotter)
    };
    let allowance = opened(&root, &startpoint, &presented).unwrap();
    assert_eq!(allowance.protection, Protection::Integrity);
    let raised = Presentation {
        minimum: Protection::Encrypted,
        ..presented
    };
    let allowance = opened(&root, &startpoint, &raised).unwrap();
    assert_eq!(allowance.protection, Protection::Encrypted);
}

#[test]
fn other_hints_change_nothing_of_the_right() {
    let mut root = root();
    let startpoint = root.issue(bound(usual())).unwrap();
    let moved = vec!["tcp://10.0.0.7:7700".to_owned()];
    let moved = startpoint.with_hints(moved).unwrap();
    let plotter = holders::named("plotter.example.org");
    assert!(opened(&root, &moved, &shown(&plotter)).is_ok());
    assert_ne!(moved, startpoint);
}

#[test]
fn people_see_what_a_startpoint_is_and_no_secret() {
    let mut root = root();
    let startpoint = root.issue(bearer(usual())).unwrap();
    let bytes = startpoint.encode();
    let tag = &bytes[bytes.len() - PROOF_BYTES..];
    let right = startpoint.right(&BINDING, LINK);
    assert_eq!(
        startpoint.to_string(),
        "startpoint to \"coupler\" of worker ocean.example.org, for whoever holds it, at least integrity, \
         for *.example.org, handlers deep, surface, until 2027-01-15 09:00:00 UTC"
    );
    for secret in [tag, &proof_of(&right), &[0x5e; 32]] {
        let digits: String = secret.iter().map(|byte| format!("{byte:02x}")).collect();
        let list = format!("{secret:?}");
        for shown in [
            format!("{startpoint:?}"),
            format!("{right:?}"),
            format!("{root:?}"),
        ] {
            assert!(!shown.contains(&digits), "{shown}");
            assert!(!shown.contains(&list[1..20]), "{shown}");
        }
    }
}
