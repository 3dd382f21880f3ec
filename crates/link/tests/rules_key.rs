//! The second key of an endpoint, of which rules make startpoints.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use exoskel_identity::{Identity, Role};
use exoskel_link::Protection;
use exoskel_link::capability::{Caveat, NewStartpoint, RootKey, Startpoint};
use exoskel_link::handshake::{PROCESS_NUMBER_BYTES, ProcessNumber};

const BINDING: [u8; 32] = [7; 32];

fn issue(key: &mut RootKey) -> Startpoint {
    key.issue(NewStartpoint {
        node: Identity::new(Role::Peer, "ocean").unwrap(),
        process: ProcessNumber::new([5; PROCESS_NUMBER_BYTES]),
        hints: Vec::new(),
        minimum: Protection::Plain,
        bearer: true,
        caveats: vec![Caveat::handlers(["surface"])],
    })
    .unwrap()
}

#[test]
fn the_two_keys_of_an_endpoint_make_different_rights() {
    let mut own = RootKey::new("coupler", [1; 16], [2; 32]).unwrap();
    let mut rules = own.of_rules();
    assert_eq!(rules.endpoint(), "coupler");
    assert_ne!(own.key_id(), rules.key_id());
    assert_eq!(
        rules.key_id(),
        own.of_rules().key_id(),
        "it is the same one each time"
    );
    let right = |startpoint: &Startpoint| startpoint.right(&BINDING, 1).encode();
    let (of_owner, of_rules) = (right(&issue(&mut own)), right(&issue(&mut rules)));
    assert_ne!(
        of_owner[16..],
        of_rules[16..],
        "the proof depends on the secret"
    );
    // Nobody gets from the second key to the first one, nor to a third one that matters.
    assert_ne!(rules.of_rules().key_id(), own.key_id());
}

/// What `tests/capability_reference.py` makes of the same secret.
#[test]
fn an_independent_implementation_finds_the_same_key() {
    let own = RootKey::new("coupler", [1; 16], [2; 32]).unwrap();
    let mut rules = own.of_rules();
    let hexadecimal =
        |bytes: &[u8]| -> String { bytes.iter().map(|byte| format!("{byte:02x}")).collect() };
    assert_eq!(
        hexadecimal(rules.key_id()),
        "9855ebe401a3be80e478e361f2579450"
    );
    let encoded = issue(&mut rules).encode();
    let tag = &encoded[encoded.len() - 32..];
    assert_eq!(
        hexadecimal(tag),
        "4ad1c711aa3c5a57478d0c279efa5c9793585cf6dda425ac4291670c55b8387e"
    );
}
