//! The store under real sessions: whatever it forgets and however often, no number is used twice with a key, and every record opens.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod pair;

use core::time::Duration;
use std::collections::HashSet;

use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use exoskel_link::keys::{COMPACT_KEY_BYTES, Geometry, KeyStore};
use exoskel_link::vectors::record_key;
use exoskel_link::{
    CipherSuite, Endpoint, LinkId, Protection, Protections, Session, SessionConfig, SessionSecret,
    Side, TrafficClass,
};
use pair::{drain, feed, messages, outgoing, post, records};
use proptest::prelude::*;

const HEADER_BYTES: usize = 16;

fn store(entries: usize, rows: usize) -> KeyStore {
    let room = Geometry::fully_associative(entries).unwrap();
    KeyStore::new(room, Box::new(vec![0; rows * COMPACT_KEY_BYTES])).unwrap()
}

/// Reads the records of one direction with keys of its own, made from the session's secret without a store.
struct Witness {
    secret: [u8; 32],
    sender: Side,
    epoch: u32,
    number: u64,
}

impl Witness {
    /// Opens the next record, whatever protects it; gives the key and the nonce that it took.
    fn open(&mut self, record: &[u8]) -> ([u8; 32], [u8; 12]) {
        let try_all = |witness: &Self| {
            let mut protections = Protection::ALL.into_iter();
            protections.find_map(|protection| witness.try_open(record, protection))
        };
        let used = try_all(self)
            .or_else(|| {
                self.epoch += 1;
                try_all(self)
            })
            .expect("a record is sealed with this epoch's key or the next one's, and with its place as number");
        self.number += 1;
        used
    }

    fn try_open(&self, record: &[u8], protection: Protection) -> Option<([u8; 32], [u8; 12])> {
        let (key, mut nonce) = record_key(
            &self.secret,
            self.sender,
            self.epoch,
            CipherSuite::Aes256Gcm,
            protection,
        );
        for (byte, number) in nonce[4..].iter_mut().zip(self.number.to_be_bytes()) {
            *byte ^= number;
        }
        let opened = LessSafeKey::new(UnboundKey::new(&AES_256_GCM, &key).unwrap());
        let (header, body) = record.split_at(HEADER_BYTES);
        // A plain record has its tag in front of a body that nothing covers.
        let tag_start = body.len() - 16;
        let (covered, sealed, tag) = match protection {
            Protection::Plain => (header.to_vec(), &[][..], &body[..16]),
            Protection::Integrity => (
                [&body[..tag_start], header].concat(),
                &[][..],
                &body[tag_start..],
            ),
            Protection::Encrypted => (header.to_vec(), &body[..tag_start], &body[tag_start..]),
        };
        let mut text = sealed.to_vec();
        let result = opened.open_in_place_separate_tag(
            Nonce::assume_unique_for_key(nonce),
            Aad::from(covered),
            tag,
            &mut text,
        );
        result.is_ok().then_some((key, nonce))
    }
}

/// A session between a node and one of its peers.
struct Conversation {
    own: Session,
    peer: Session,
    link: LinkId,
    /// The way back, for who needs one.
    back: Option<LinkId>,
    witnesses: [Witness; 2],
    sent: [Vec<Vec<u8>>; 2],
}

impl Conversation {
    fn new(number: u8, protections: Protections, job: u32, stores: [&KeyStore; 2]) -> Self {
        let secret = [number; 32];
        let session = |side, keys| {
            let mut config = SessionConfig::new(side);
            config.protections = protections;
            config.job = job;
            config.epoch.records_max = 5;
            Session::new(
                config,
                SessionSecret::from_bytes(&secret),
                keys,
                Duration::ZERO,
            )
        };
        let mut own = session(Side::Client, stores[0]);
        let mut peer = session(Side::Server, stores[1]);
        for session in [&mut own, &mut peer] {
            let endpoint = Endpoint::new("echo", &["first", "second"]);
            session.offer(endpoint).unwrap();
        }
        let link = own.open_link("echo", TrafficClass::Data).unwrap();
        let witness = |sender| Witness {
            secret,
            sender,
            epoch: 0,
            number: 0,
        };
        Self {
            own,
            peer,
            link,
            back: None,
            witnesses: [witness(Side::Client), witness(Side::Server)],
            sent: [vec![], vec![]],
        }
    }

    /// Sends one message there and moves whatever there is to move.
    fn step(&mut self, text: &[u8], seen: &mut HashSet<([u8; 32], [u8; 12])>) {
        self.sent[0].push(text.to_vec());
        self.own.send(self.link, post(text, &[])).unwrap();
        self.carry(seen);
    }

    /// Sends one message back, with bulk, and moves whatever there is to move.
    fn step_back(&mut self, text: &[u8], seen: &mut HashSet<([u8; 32], [u8; 12])>) {
        self.sent[1].push(text.to_vec());
        let peer = &mut self.peer;
        let open = || peer.open_link("echo", TrafficClass::Code).unwrap();
        let link = *self.back.get_or_insert_with(open);
        self.peer.send(link, post(text, &[b"in bulk"])).unwrap();
        self.carry(seen);
    }

    fn carry(&mut self, seen: &mut HashSet<([u8; 32], [u8; 12])>) {
        let now = Duration::ZERO;
        loop {
            let forth = outgoing(&mut self.own, now);
            feed(&mut self.peer, &forth, now).unwrap();
            let back = outgoing(&mut self.peer, now);
            feed(&mut self.own, &back, now).unwrap();
            for (witness, bytes) in self.witnesses.iter_mut().zip([&forth, &back]) {
                for record in records(bytes) {
                    assert!(
                        seen.insert(witness.open(&record)),
                        "a key and a nonce were used twice"
                    );
                }
            }
            if forth.is_empty() && back.is_empty() {
                break;
            }
        }
    }
}

fn protection() -> impl Strategy<Value = Protection> {
    prop_oneof![
        Just(Protection::Plain),
        Just(Protection::Integrity),
        Just(Protection::Encrypted)
    ]
}

fn protections() -> impl Strategy<Value = Protections> {
    let classes = (protection(), protection(), protection());
    classes.prop_map(|(control, code, data)| Protections {
        control,
        code,
        data,
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Conversations of one node in any order and both ways, in stores of any size, down to one that forgets every key at the next lookup, and up to those
    /// whose keys are used without the lock: each record has its own nonce, is where an independent reading expects it, and opens at the other side.
    #[test]
    fn no_key_meets_a_nonce_twice_whatever_is_evicted(
        entries in prop_oneof![1_usize..4, 64_usize..70],
        rows in 0_usize..6,
        kinds in prop::collection::vec((protections(), 0_u32..3), 2..40),
        steps in prop::collection::vec((0_usize..40, any::<bool>()), 1..160),
    ) {
        let stores = [store(entries, rows), store(1, 0)];
        let mut seen = HashSet::new();
        let mut conversations: Vec<_> = kinds
            .iter()
            .enumerate()
            .map(|(number, &(protections, job))| {
                let [own, peer] = &stores;
                Conversation::new(number as u8, protections, job, [own, peer])
            })
            .collect();
        for (number, (step, is_back)) in steps.into_iter().enumerate() {
            let count = conversations.len();
            let conversation = &mut conversations[step % count];
            if is_back {
                conversation.step_back(&number.to_be_bytes(), &mut seen);
            } else {
                conversation.step(&number.to_be_bytes(), &mut seen);
            }
            let (ready, compact) = stores[0].held();
            prop_assert!(ready <= entries && compact <= rows);
        }
        for Conversation { own, peer, sent, .. } in &mut conversations {
            for (session, sent) in [peer, own].into_iter().zip(sent) {
                let received = messages(drain(session));
                let received: Vec<_> = received.into_iter().map(|(head, _)| head).collect();
                prop_assert_eq!(&received, sent);
            }
        }
        drop(conversations);
        for store in &stores {
            prop_assert_eq!(store.held(), (0, 0));
        }
    }
}

/// With room for one key, two sessions that take turns drive each other's out: every lookup misses. What the compact table holds is expanded
/// then, what it doesn't is derived.
#[test]
fn a_store_of_one_key_forgets_at_every_step() {
    for rows in [0, 1, 2] {
        let (own, peer) = (store(1, rows), KeyStore::in_ordinary_memory(2));
        let mut seen = HashSet::new();
        let mut talk = |number| {
            let mut new = Conversation::new(number, Protections::default(), 0, [&own, &peer]);
            new.step(b"first", &mut seen);
            new
        };
        let mut conversations = [talk(1), talk(2)];
        // The table forgets what was used longest ago, so both have to come round once.
        let mut turn = |number: usize| {
            let conversation = &mut conversations[number % 2];
            conversation
                .own
                .send(conversation.link, post(b"again", &[]))
                .unwrap();
            let sent = outgoing(&mut conversation.own, Duration::ZERO);
            feed(&mut conversation.peer, &sent, Duration::ZERO).unwrap();
        };
        (0..2).for_each(&mut turn);
        let before = own.counters();
        (0..2).for_each(&mut turn);
        let after = own.counters();
        assert_eq!(after.contexts.hits, before.contexts.hits);
        assert_eq!(after.contexts.misses - before.contexts.misses, 2);
        assert_eq!(after.contexts.evictions - before.contexts.evictions, 2);
        let expansions = if rows == 2 { 2 } else { 0 };
        assert_eq!(after.expansions - before.expansions, expansions);
        assert_eq!(after.derivations - before.derivations, 2 - expansions);
        for conversation in &mut conversations {
            assert_eq!(messages(drain(&mut conversation.peer)).len(), 3);
        }
    }
}

/// What a batch has looked up once it needn't look up again, and a session that is busy alone finds its keys ready.
#[test]
fn a_busy_session_misses_once_for_each_key() {
    let store = KeyStore::in_ordinary_memory(2);
    let mut seen = HashSet::new();
    let mut conversation = Conversation::new(1, Protections::default(), 0, [&store, &store]);
    for _ in 0..3 {
        conversation.step(b"text", &mut seen);
    }
    let counters = store.counters();
    assert_eq!(counters.contexts.evictions, 0);
    assert_eq!(counters.contexts.misses, counters.derivations);
    let epochs = conversation.own.counts().epoch_sealing + conversation.peer.counts().epoch_sealing;
    // Two directions, each seen from both ends, in their first epoch and in those that followed.
    assert_eq!(counters.derivations, 4 + 2 * epochs);
    assert!(counters.contexts.hits > 0);
}
