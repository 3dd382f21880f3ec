//! Links that the endpoint's owner decides about: asked, answered, ended, each with a protection of its own.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod pair;

use exoskel_link::{
    Event, LinkId, LinkLife, LinkRefusal, MessageKind, Protection, Protections, SessionError,
    TrafficClass,
};
use pair::{Pair, TRUSTED, drain, message, messages, post};

fn asking(protections: Protections) -> Pair {
    Pair::with(protections, |config| config.asks = true)
}

/// The one link that the server is asked for.
fn asked(pair: &mut Pair) -> (LinkId, Protection, Vec<u8>) {
    pair.settle();
    let events = drain(&mut pair.server);
    let [
        Event::LinkAsked {
            link,
            endpoint,
            protection,
            right,
            life: LinkLife::OneSession,
            ..
        },
    ] = &events[..]
    else {
        panic!("{events:?}");
    };
    assert!(endpoint.is("coupler"));
    (*link, *protection, right.clone())
}

/// A link that was asked for with one protection and accepted with another.
fn accepted(pair: &mut Pair, wanted: Protection, given: Protection) -> LinkId {
    let link = pair
        .client
        .request_link("coupler", wanted, |_| b"a right".to_vec())
        .unwrap();
    let (there, _, _) = asked(pair);
    pair.server
        .accept_link(there, vec!["surface".to_owned(), "flux".to_owned()], given)
        .unwrap();
    pair.settle();
    drain(&mut pair.client);
    link
}

#[test]
fn nothing_goes_out_before_the_owner_has_answered() {
    let mut pair = asking(TRUSTED);
    let mut number = None;
    let link = pair
        .client
        .request_link("coupler", Protection::Integrity, |link| {
            number = Some(link);
            b"a right".to_vec()
        })
        .unwrap();
    assert_eq!(number, Some(link), "a right may be bound to the link");
    pair.client.send(link, post(b"secret", &[b"bulk"])).unwrap();
    let (there, protection, right) = asked(&mut pair);
    assert_eq!((there, protection), (link, Protection::Integrity));
    assert_eq!(right, b"a right");
    assert_eq!(pair.client.queued_messages(link), 1);
    pair.server
        .accept_link(
            there,
            vec!["first".to_owned(), "second".to_owned()],
            Protection::Plain,
        )
        .unwrap();
    pair.settle();
    assert_eq!(messages(drain(&mut pair.server)).len(), 1);
    assert_eq!(
        pair.client.link_protection(link),
        Some(Protection::Integrity)
    );
    assert_eq!(
        pair.server.link_protection(link),
        Some(Protection::Integrity)
    );
}

#[test]
fn the_stricter_of_both_ends_holds_for_one_link_and_no_other() {
    let (mut pair, plain) = {
        let mut pair = asking(TRUSTED);
        let plain = pair.client.open_link("echo", TrafficClass::Data).unwrap();
        pair.settle();
        drain(&mut pair.server);
        drain(&mut pair.client);
        (pair, plain)
    };
    let link = accepted(&mut pair, Protection::Plain, Protection::Encrypted);
    assert_eq!(
        pair.client.link_protection(link),
        Some(Protection::Encrypted)
    );
    assert_eq!(pair.client.link_protection(plain), Some(Protection::Plain));
    let text = b"nobody else may read this";
    pair.client.send(link, post(b"", &[text])).unwrap();
    pair.client
        .send(plain, post(b"", &[b"everybody may"]))
        .unwrap();
    let wire = pair.sent_by_client();
    let has = |wanted: &[u8]| wire.windows(wanted.len()).any(|part| part == wanted);
    assert!(!has(text));
    assert!(has(b"everybody may"));
    pair.give_server(&wire).unwrap();
    assert_eq!(messages(drain(&mut pair.server)).len(), 2);
}

#[test]
fn a_link_is_raised_in_both_directions_from_the_next_record_on() {
    let mut pair = asking(TRUSTED);
    let link = accepted(&mut pair, Protection::Plain, Protection::Plain);
    pair.client.send(link, post(b"", &[b"before"])).unwrap();
    pair.client.raise_link(link, Protection::Encrypted).unwrap();
    pair.settle();
    pair.client
        .send(link, message(MessageKind::Request(1), b"", &[b"after"]))
        .unwrap();
    let wire = pair.sent_by_client();
    assert!(!wire.windows(5).any(|part| part == b"after"));
    pair.give_server(&wire).unwrap();
    let events = drain(&mut pair.server);
    let raised = Event::LinkProtectionRaised {
        link,
        protection: Protection::Encrypted,
    };
    assert!(events.contains(&raised));
    pair.server
        .send(link, message(MessageKind::Reply(1), b"", &[b"answer"]))
        .unwrap();
    let wire = pair.sent_by_server();
    assert!(!wire.windows(6).any(|part| part == b"answer"));
    pair.give_client(&wire).unwrap();
    assert_eq!(messages(drain(&mut pair.client)).len(), 1);
    // It never falls.
    pair.client.raise_link(link, Protection::Plain).unwrap();
    pair.settle();
    assert_eq!(
        pair.client.link_protection(link),
        Some(Protection::Encrypted)
    );
}

#[test]
fn who_is_refused_hears_why_and_nothing_of_it_stays() {
    let mut pair = asking(TRUSTED);
    let link = pair
        .client
        .request_link("coupler", Protection::Plain, |_| Vec::new())
        .unwrap();
    pair.client.send(link, post(b"", &[&[7; 10_000]])).unwrap();
    let (there, ..) = asked(&mut pair);
    let reason = LinkRefusal::NotAllowed("it is for *.example.org".into());
    pair.server.refuse_link(there, reason.clone()).unwrap();
    pair.settle();
    assert_eq!(
        drain(&mut pair.client),
        [Event::LinkRefused { link, reason }]
    );
    assert_eq!(pair.client.queued_bytes(), 0);
    assert_eq!(
        pair.server
            .accept_link(there, Vec::new(), Protection::Plain),
        Err(SessionError::UnknownLink(there))
    );
    assert_eq!(
        pair.client
            .request_link("coupler", Protection::Plain, |_| Vec::new()),
        Ok(link)
    );
}

#[test]
fn the_owner_ends_a_link_in_the_middle_of_messages() {
    let mut pair = asking(TRUSTED);
    let link = accepted(&mut pair, Protection::Plain, Protection::Plain);
    let large = vec![1; 4 << 20];
    pair.client
        .send(link, message(MessageKind::Request(1), b"", &[&large]))
        .unwrap();
    pair.client.prepare(pair.now).unwrap();
    let part: Vec<u8> = pair.client.outgoing().flatten().copied().collect();
    pair.client.sent(part.len());
    pair.give_server(&part).unwrap();
    let reason = LinkRefusal::Ended("revoked".into());
    pair.server.end_link(link, reason.clone()).unwrap();
    pair.settle();
    assert_eq!(
        drain(&mut pair.client),
        [
            Event::LinkRefused { link, reason },
            Event::LinkClosed { link }
        ]
    );
    assert!(drain(&mut pair.server).is_empty());
    assert_eq!(
        (pair.client.queued_bytes(), pair.server.queued_bytes()),
        (0, 0)
    );
    assert!(pair.client.send(link, post(b"", &[])).is_err());
}

#[test]
fn whoever_changes_its_mind_before_the_answer_leaves_nothing() {
    let mut pair = asking(TRUSTED);
    let link = pair
        .client
        .request_link("coupler", Protection::Plain, |_| Vec::new())
        .unwrap();
    let (there, ..) = asked(&mut pair);
    pair.client.close_link(link).unwrap();
    pair.settle();
    assert_eq!(drain(&mut pair.server), [Event::LinkClosed { link: there }]);
    assert!(
        pair.server
            .accept_link(there, Vec::new(), Protection::Plain)
            .is_err()
    );
}

#[test]
fn who_decides_about_nothing_has_no_such_endpoint() {
    let mut pair = Pair::new(TRUSTED);
    let link = pair
        .client
        .request_link("coupler", Protection::Plain, |_| Vec::new())
        .unwrap();
    pair.settle();
    let reason = LinkRefusal::UnknownEndpoint;
    assert_eq!(
        drain(&mut pair.client)[..1],
        [Event::LinkRefused { link, reason }]
    );
}

#[test]
fn a_right_has_a_limit() {
    let mut pair = asking(TRUSTED);
    let asked = pair
        .client
        .request_link("coupler", Protection::Plain, |_| vec![0; 9000]);
    assert!(matches!(
        asked,
        Err(SessionError::Limit {
            limit: "right bytes",
            ..
        })
    ));
    assert_eq!(
        pair.client
            .request_link("coupler", Protection::Plain, |_| Vec::new())
            .map(|link| link.number()),
        Ok(1)
    );
}

#[test]
fn both_ends_of_a_session_and_no_others_have_its_binding() {
    let one = asking(TRUSTED);
    assert_eq!(one.client.binding(), one.server.binding());
    let other = Pair::from_secret([2; 32], TRUSTED, |_| {});
    assert_ne!(one.client.binding(), other.client.binding());
}

/// A link that is asked for with early messages for two handlers.
fn ask_early(pair: &mut Pair, protection: Protection) -> Result<LinkId, SessionError> {
    let early = ["flux".to_owned(), "absent".to_owned()];
    let open = |_| (b"a right".to_vec(), LinkLife::OneSession);
    pair.client
        .request_early_link("coupler", protection, &early, open)
}

fn early(place: u16, head: &[u8]) -> exoskel_link::Message {
    exoskel_link::Message {
        handler: exoskel_link::Message::EARLY_HANDLER + place,
        ..post(head, &[])
    }
}

#[test]
fn early_messages_come_behind_the_opening_and_before_the_answer() {
    let mut pair = asking(TRUSTED);
    let link = ask_early(&mut pair, Protection::Encrypted).unwrap();
    pair.client.send(link, early(0, b"secret")).unwrap();
    pair.client.send(link, early(1, b"for nobody")).unwrap();
    // Which index a handler has is not known before the answer.
    assert!(pair.client.send(link, post(b"", &[])).is_err());
    assert!(pair.client.send(link, early(2, b"")).is_err());
    let wire = pair.sent_by_client();
    assert!(!wire.windows(6).any(|part| part == b"secret"));
    pair.give_server(&wire).unwrap();
    let events = drain(&mut pair.server);
    let [
        Event::LinkAsked { early, .. },
        Event::Message { handler, .. },
        Event::Message { .. },
    ] = &events[..]
    else {
        panic!("{events:?}");
    };
    assert!(early[0].is("flux") && early[1].is("absent"));
    assert_eq!(*handler, exoskel_link::Message::EARLY_HANDLER);
    let handlers = vec!["surface".to_owned(), "flux".to_owned()];
    pair.server
        .accept_link(link, handlers, Protection::Plain)
        .unwrap();
    pair.settle();
    pair.client.send(link, post(b"known", &[])).unwrap();
    pair.settle();
    assert_eq!(messages(drain(&mut pair.server)).len(), 1);
}

#[test]
fn early_messages_go_out_encrypted_or_not_at_all() {
    let mut pair = asking(TRUSTED);
    for protection in [Protection::Plain, Protection::Integrity] {
        let asked = ask_early(&mut pair, protection);
        assert!(
            matches!(asked, Err(SessionError::Limit { .. })),
            "{asked:?}"
        );
    }
    pair.settle();
    assert_eq!(drain(&mut pair.server), []);
}

#[test]
fn a_link_that_is_refused_drops_early_messages() {
    let mut pair = asking(TRUSTED);
    let link = ask_early(&mut pair, Protection::Encrypted).unwrap();
    pair.client.send(link, early(0, b"first")).unwrap();
    let wire = pair.sent_by_client();
    pair.give_server(&wire).unwrap();
    pair.server
        .refuse_link(link, LinkRefusal::UnknownEndpoint)
        .unwrap();
    drain(&mut pair.server);
    pair.client.send(link, early(0, b"second")).unwrap();
    pair.settle();
    assert_eq!(messages(drain(&mut pair.server)), []);
    assert!(pair.client.send(link, early(0, b"third")).is_err());
}
