//! Sessions over memory that two processes share: plain records carry no tag, and all others do as anywhere.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod pair;

use exoskel_link::{Protection, Protections, SessionError, TrafficClass};
use pair::{Pair, drain, feed_in_steps, messages, pattern, post};
use proptest::collection::vec;
use proptest::prelude::*;

const HEADER_BYTES: usize = 16;
const TAG_BYTES: usize = 16;
const ENVELOPE_BYTES: usize = 21;

fn private(protections: Protections) -> Pair {
    Pair::with(protections, |config| config.is_private = true)
}

fn linked(protections: Protections) -> (Pair, exoskel_link::LinkId) {
    let mut pair = private(protections);
    let link = pair.client.open_link("echo", TrafficClass::Data).unwrap();
    pair.settle();
    drain(&mut pair.client);
    drain(&mut pair.server);
    (pair, link)
}

#[test]
fn a_plain_message_is_its_header_envelope_and_bytes() {
    let (mut pair, link) = linked(Protections::all(Protection::Plain));
    pair.client.send(link, post(&[7; 64], &[])).unwrap();
    let bytes = pair.sent_by_client();
    assert_eq!(bytes.len(), HEADER_BYTES + ENVELOPE_BYTES + 64);
    pair.give_server(&bytes).unwrap();
    assert_eq!(
        messages(drain(&mut pair.server)),
        [(vec![7; 64], Vec::new())]
    );
}

/// Only what is plain: a link that wants more gets its tags, and control always has them.
#[test]
fn what_is_not_plain_is_sealed_as_anywhere() {
    for protection in [Protection::Integrity, Protection::Encrypted] {
        let (mut pair, link) = linked(Protections::all(protection));
        pair.client.send(link, post(&[7; 64], &[])).unwrap();
        let bytes = pair.sent_by_client();
        assert_eq!(bytes.len(), HEADER_BYTES + ENVELOPE_BYTES + 64 + TAG_BYTES);
        let mut bent = bytes.clone();
        *bent.last_mut().unwrap() ^= 1;
        assert!(matches!(
            pair.give_server(&bent),
            Err(SessionError::Authentication { .. })
        ));
    }
    let mut pair = private(Protections::all(Protection::Plain));
    pair.client.open_link("echo", TrafficClass::Data).unwrap();
    let mut opening = pair.sent_by_client();
    *opening.last_mut().unwrap() ^= 1;
    assert!(matches!(
        pair.give_server(&opening),
        Err(SessionError::Authentication { .. })
    ));
}

/// From the record on at which a link is raised, its records have tags; those before had none.
#[test]
fn a_link_that_is_raised_gets_its_tags() {
    let (mut pair, link) = linked(Protections::all(Protection::Plain));
    pair.client.send(link, post(b"before", &[])).unwrap();
    let before = pair.sent_by_client();
    pair.client.raise_link(link, Protection::Encrypted).unwrap();
    pair.give_server(&before).unwrap();
    pair.settle();
    pair.client.send(link, post(b"secret", &[])).unwrap();
    let after = pair.sent_by_client();
    assert_eq!(after.len(), before.len() + TAG_BYTES);
    assert!(!after.windows(6).any(|window| window == b"secret"));
    pair.give_server(&after).unwrap();
    let heads: Vec<_> = messages(drain(&mut pair.server))
        .into_iter()
        .map(|(head, _)| head)
        .collect();
    assert_eq!(heads, [b"before".to_vec(), b"secret".to_vec()]);
}

/// One end that believes in tags and one that doesn't: nothing is taken for something else.
#[test]
fn both_ends_must_say_the_same() {
    let (mut with, link) = linked(Protections::all(Protection::Plain));
    let (mut without, same) = Pair::linked(Protections::all(Protection::Plain));
    assert_eq!(link, same);
    with.client.send(link, post(&[1; 100], &[])).unwrap();
    without.client.send(link, post(&[1; 100], &[])).unwrap();
    let (untagged, tagged) = (with.sent_by_client(), without.sent_by_client());
    // The tag would be the next record's header.
    assert!(with.give_server(&tagged).is_err());
    let more = [untagged, vec![0; TAG_BYTES]].concat();
    assert!(matches!(
        without.give_server(&more),
        Err(SessionError::Authentication { .. })
    ));
    assert_eq!(messages(drain(&mut without.server)), []);
}

proptest! {
    /// Heads and parts of all sizes, in steps of all sizes, as plain and as sealed ones.
    #[test]
    fn messages_arrive_whole(
        sizes in vec((0_usize..200_000, vec(0_usize..600_000, 0..3)), 1..5),
        step in 1_usize..300_000,
        vectored: bool,
        protection in prop::sample::select(Protection::ALL.to_vec()),
    ) {
        let (mut pair, link) = linked(Protections::all(protection));
        let mut sent = Vec::new();
        let mut got = Vec::new();
        for (seed, (head, parts)) in sizes.into_iter().enumerate() {
            let head = pattern(head, seed as u8);
            let parts: Vec<_> = parts.into_iter().map(|size| pattern(size, !(seed as u8))).collect();
            let slices: Vec<&[u8]> = parts.iter().map(Vec::as_slice).collect();
            pair.client.send(link, post(&head, &slices)).unwrap();
            sent.push((head, parts));
            let bytes = pair.sent_by_client();
            let now = pair.now;
            feed_in_steps(&mut pair.server, &bytes, now, step, vectored).unwrap();
            for event in drain(&mut pair.server) {
                if let exoskel_link::Event::Message { link, size, .. } = event {
                    pair.server.consumed(link, size);
                }
                got.extend(messages(vec![event]));
            }
            pair.settle();
        }
        prop_assert!(got == sent);
    }

    /// Whatever stands in the memory, it ends the session or is a message; nothing panics.
    #[test]
    fn any_bytes_are_survived(bytes in vec(any::<u8>(), 0..400)) {
        let (mut pair, link) = linked(Protections::all(Protection::Plain));
        let mut record = vec![2, 1, 0, 0];
        record.extend(link.number().to_be_bytes());
        record.extend([0; 4]);
        record.extend((bytes.len() as u32 / 2).to_be_bytes());
        record.extend(bytes);
        let _ = pair.give_server(&record);
    }
}
