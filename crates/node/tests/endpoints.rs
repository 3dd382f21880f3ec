//! Several users of one process share its sessions: each link is its user's own.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::time::Duration;

use bytes::Bytes;
use exoskel_link::keys::KeyStore;
use exoskel_link::{
    Endpoint, Event, LinkId, Message, MessageKind, Session, SessionConfig, SessionSecret, Side,
    TrafficClass,
};
use exoskel_node::{Endpoints, SessionId};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum User {
    Items,
    Simulation,
    Startpoint,
}

const SESSION: SessionId = SessionId(7);

/// The two ends of a session, and bytes that move between them.
struct Pair {
    here: Session,
    there: Session,
}

impl Pair {
    fn new() -> Self {
        let session = |side| {
            let secret = SessionSecret::from_bytes(&[1; 32]);
            let keys = KeyStore::in_ordinary_memory(1);
            Session::new(SessionConfig::new(side), secret, &keys, Duration::ZERO)
        };
        Self {
            here: session(Side::Client),
            there: session(Side::Server),
        }
    }

    /// Moves bytes both ways until none are left; gives what this end is told.
    fn settle(&mut self) -> Vec<Event> {
        loop {
            let forth = pass(&mut self.here, &mut self.there);
            let back = pass(&mut self.there, &mut self.here);
            if forth + back == 0 {
                return std::iter::from_fn(|| self.here.poll_event()).collect();
            }
        }
    }

    fn say(&mut self, link: LinkId) {
        let message = Message {
            handler: 0,
            kind: MessageKind::Post,
            head: Bytes::new(),
            bulk: Vec::new(),
            is_gathered: false,
        };
        self.there.send(link, message).unwrap();
    }
}

fn pass(from: &mut Session, to: &mut Session) -> usize {
    from.prepare(Duration::ZERO).unwrap();
    let bytes: Vec<u8> = from.outgoing().flatten().copied().collect();
    from.sent(bytes.len());
    let mut left = &bytes[..];
    while !left.is_empty() {
        let buffer = to.receive_buffer();
        let count = buffer.len().min(left.len());
        buffer[..count].copy_from_slice(&left[..count]);
        to.received(count, Duration::ZERO).unwrap();
        left = &left[count..];
    }
    bytes.len()
}

fn table() -> Endpoints<User> {
    Endpoints::new(vec![
        (Endpoint::new("items", &["take"]), User::Items),
        (Endpoint::new("simulation", &["step"]), User::Simulation),
    ])
}

#[test]
fn each_message_is_its_links_users() {
    let (mut pair, mut endpoints) = (Pair::new(), table());
    endpoints.begin(SESSION, &mut pair.here).unwrap();
    let [first, second, third] = ["simulation", "items", "simulation"]
        .map(|name| pair.there.open_link(name, TrafficClass::Data).unwrap());
    let opened: Vec<_> = pair
        .settle()
        .iter()
        .map(|event| endpoints.user_of(SESSION, event))
        .collect();
    let (items, simulation) = (Some(User::Items), Some(User::Simulation));
    assert_eq!(opened, [simulation, items, simulation]);
    for link in [third, second, first] {
        pair.say(link);
    }
    let mut heard: Vec<_> = pair
        .settle()
        .into_iter()
        .map(|event| match event {
            Event::Message { link, .. } => (link, endpoints.user_of(SESSION, &event)),
            other => panic!("{other:?}"),
        })
        .collect();
    heard.sort_by_key(|(link, _)| *link);
    assert_eq!(
        heard,
        [(first, simulation), (second, items), (third, simulation)]
    );
}

#[test]
fn a_link_that_ended_is_nobodys() {
    let (mut pair, mut endpoints) = (Pair::new(), table());
    endpoints.begin(SESSION, &mut pair.here).unwrap();
    let link = pair.there.open_link("items", TrafficClass::Data).unwrap();
    let refused = endpoints
        .open(
            SESSION,
            &mut pair.here,
            "nowhere",
            TrafficClass::Data,
            User::Startpoint,
        )
        .unwrap();
    let told = pair.settle();
    let is_refusal = |event: &&Event| matches!(event, Event::LinkRefused { .. });
    let refusal = told.iter().find(is_refusal).unwrap();
    assert_eq!(endpoints.user_of(SESSION, refusal), Some(User::Startpoint));
    assert_eq!(
        endpoints.user_of(SESSION, refusal),
        None,
        "{refused} is gone"
    );
    for event in &told {
        endpoints.user_of(SESSION, event);
    }
    pair.say(link);
    let message = pair.settle().remove(0);
    assert_eq!(endpoints.user_of(SESSION, &message), Some(User::Items));
    pair.there.close_link(link).unwrap();
    let closed = pair.settle().remove(0);
    assert_eq!(endpoints.user_of(SESSION, &closed), Some(User::Items));
    assert_eq!(endpoints.user_of(SESSION, &message), None);
}

#[test]
fn sessions_do_not_see_each_others_links() {
    let (mut one, mut other, mut endpoints) = (Pair::new(), Pair::new(), table());
    let another = SessionId(8);
    endpoints.begin(SESSION, &mut one.here).unwrap();
    endpoints.begin(another, &mut other.here).unwrap();
    let link = one.there.open_link("items", TrafficClass::Data).unwrap();
    for event in one.settle() {
        endpoints.user_of(SESSION, &event);
    }
    one.say(link);
    let message = one.settle().remove(0);
    assert_eq!(endpoints.user_of(another, &message), None);
    assert_eq!(endpoints.user_of(SESSION, &message), Some(User::Items));
    endpoints.end(SESSION);
    assert_eq!(endpoints.user_of(SESSION, &message), None);
}
