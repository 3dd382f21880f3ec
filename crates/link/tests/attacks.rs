//! What somebody on the wire can do: nothing that is not noticed. Every test drives two real sessions and meddles with
//! the bytes between them; the receiver must fail, must hand out no forged message, and must never panic.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod pair;

use core::time::Duration;
use std::sync::Arc;

use exoskel_link::{
    CloseReason, Event, LinkId, Message, MessageKind, Protection, Protections, SessionError,
    SharedReception, TrafficClass,
};
use pair::{Pair, TRUSTED, drain, message, messages, outgoing, pattern, post, records};

const SECOND: Duration = Duration::from_secs(1);

const LEVELS: [Protections; 3] = [
    TRUSTED,
    Protections::all(Protection::Integrity),
    Protections::all(Protection::Encrypted),
];

/// A linked pair and the records of three posts on their way to the server.
fn three_posts(protections: Protections) -> (Pair, LinkId, Vec<Vec<u8>>) {
    let (mut pair, link) = Pair::linked(protections);
    for name in [b"one", b"two", b"six"] {
        pair.client.send(link, post(name, &[])).unwrap();
    }
    let records = records(&pair.sent_by_client());
    assert_eq!(records.len(), 3);
    (pair, link, records)
}

fn is_authentication(outcome: &Result<(), SessionError>) -> bool {
    matches!(outcome, Err(SessionError::Authentication { .. }))
}

#[test]
fn a_replayed_record_is_noticed() {
    for protections in LEVELS {
        let (mut pair, _, records) = three_posts(protections);
        pair.give_server(&records[0]).unwrap();
        assert!(is_authentication(&pair.give_server(&records[0])));
        assert_eq!(messages(drain(&mut pair.server)).len(), 1);
    }
}

#[test]
fn records_out_of_order_are_noticed() {
    for protections in LEVELS {
        let (mut pair, _, records) = three_posts(protections);
        pair.give_server(&records[0]).unwrap();
        assert!(is_authentication(&pair.give_server(&records[2])));
        assert_eq!(messages(drain(&mut pair.server)).len(), 1);
    }
}

#[test]
fn a_dropped_record_is_noticed_by_the_next() {
    for protections in LEVELS {
        let (mut pair, _, records) = three_posts(protections);
        pair.give_server(&records[1]).unwrap_err();
        assert_eq!(drain(&mut pair.server), []);
    }
}

/// The last record has no next one, but a heartbeat and the end of the connection show that it is missing.
#[test]
fn a_dropped_last_record_is_noticed_by_the_heartbeat_and_by_the_end() {
    let (mut pair, _, records) = three_posts(TRUSTED);
    pair.give_server(&records[0]).unwrap();
    pair.now = Duration::from_secs(2);
    pair.client.handle_timeout(pair.now).unwrap();
    let heartbeat = pair.sent_by_client();
    assert!(!heartbeat.is_empty());
    assert!(is_authentication(&pair.give_server(&heartbeat)));

    let (mut pair, _, records) = three_posts(TRUSTED);
    pair.give_server(&records[0]).unwrap();
    assert!(matches!(
        pair.server.received_end(),
        Err(SessionError::Truncated { .. })
    ));
}

/// Cut anywhere, before, in or between records: the end of the connection is an error unless Close came.
#[test]
fn a_truncated_stream_is_noticed_wherever_it_is_cut() {
    for protections in LEVELS {
        let (mut pair, link) = Pair::linked(protections);
        pair.client
            .send(link, post(b"head", &[&pattern(300, 1)]))
            .unwrap();
        pair.client.close(CloseReason::Finished);
        let bytes = pair.sent_by_client();
        for cut in 0..bytes.len() {
            let (mut pair, _) = Pair::linked(protections);
            pair.give_server(&bytes[..cut]).unwrap();
            assert!(
                matches!(
                    pair.server.received_end(),
                    Err(SessionError::Truncated { .. })
                ),
                "{cut}"
            );
        }
        pair.give_server(&bytes).unwrap();
        assert_eq!(pair.server.received_end(), Ok(()));
    }
}

/// Every bit of every byte of a stream, one at a time: a head with bulk, sealed at each level. Only the body of a plain
/// bulk record can change unnoticed, and no other byte of the message with it.
#[test]
fn a_flipped_bit_is_noticed_wherever_it_is() {
    for protections in LEVELS {
        let bulk = pattern(100, 1);
        let head = b"what is executed";
        let send = |pair: &mut Pair, link| {
            pair.client
                .send(link, post(head, &[&bulk, &bulk[..5]]))
                .unwrap();
            pair.client.send(link, post(b"next", &[])).unwrap();
            pair.sent_by_client()
        };
        let (mut pair, link) = Pair::linked(protections);
        let bytes = send(&mut pair, link);
        let mut unnoticed = 0;
        for index in 0..bytes.len() {
            for bit in 0..8 {
                let (mut pair, _) = Pair::linked(protections);
                let mut bent = bytes.clone();
                bent[index] ^= 1 << bit;
                let outcome = pair.give_server(&bent);
                let arrived = messages(drain(&mut pair.server));
                if outcome.is_ok() && arrived.len() == 2 {
                    unnoticed += 1;
                    assert_eq!(protections.data, Protection::Plain);
                    assert_eq!(arrived[0].0, head);
                    assert_eq!(arrived[1].0, b"next");
                    continue;
                }
                // A longer length makes the receiver wait for bytes that never come: the end is an error then.
                assert!(
                    outcome.is_err() || pair.server.received_end().is_err(),
                    "{index} {bit}"
                );
                assert!(
                    arrived
                        .iter()
                        .all(|message| message.0 == head || message.0 == b"next")
                );
                if protections.data != Protection::Plain {
                    assert!(
                        arrived
                            .iter()
                            .all(|(_, parts)| parts.is_empty() || parts[0] == bulk)
                    );
                }
            }
        }
        let expected = if protections.data == Protection::Plain {
            8 * 105
        } else {
            0
        };
        assert_eq!(unnoticed, expected);
    }
}

/// The same for the first segments of a large message, whose bodies go straight to their final place.
#[test]
fn a_flipped_bit_in_a_large_segment_is_noticed() {
    let bulk = pattern(600_000, 1);
    for protections in [LEVELS[1], LEVELS[2]] {
        let (mut pair, link) = Pair::linked(protections);
        pair.client.send(link, post(b"", &[&bulk])).unwrap();
        let bytes = pair.sent_by_client();
        for index in [
            60,
            1000,
            262_000,
            262_200,
            262_250,
            400_000,
            bytes.len() - 17,
            bytes.len() - 1,
        ] {
            let (mut pair, _) = Pair::linked(protections);
            let mut bent = bytes.clone();
            bent[index] ^= 1;
            let outcome = pair.give_server(&bent);
            assert!(
                outcome.is_err() || pair.server.received_end().is_err(),
                "{index}"
            );
            assert_eq!(drain(&mut pair.server), []);
        }
    }
}

#[test]
fn a_record_moved_to_another_link_is_noticed() {
    for protections in LEVELS {
        let mut pair = Pair::new(protections);
        let first = pair.client.open_link("echo", TrafficClass::Data).unwrap();
        let second = pair.client.open_link("echo", TrafficClass::Data).unwrap();
        pair.settle();
        drain(&mut pair.server);
        pair.client
            .send(first, post(b"for the first", &[]))
            .unwrap();
        let mut bytes = pair.sent_by_client();
        bytes[4..8].copy_from_slice(&second.number().to_be_bytes());
        assert!(is_authentication(&pair.give_server(&bytes)));
        assert_eq!(drain(&mut pair.server), []);
    }
}

#[test]
fn a_record_moved_to_another_session_is_noticed() {
    for protections in LEVELS {
        let (_, _, records) = three_posts(protections);
        let mut other = Pair::from_secret([2; 32], protections, |_| {});
        other.client.open_link("echo", TrafficClass::Data).unwrap();
        other.settle();
        drain(&mut other.server);
        assert!(is_authentication(&other.give_server(&records[0])));
        assert_eq!(drain(&mut other.server), []);
    }
}

/// What a side has sent cannot be turned around and fed back to it.
#[test]
fn a_reflected_record_is_noticed() {
    for protections in LEVELS {
        let (mut pair, _, records) = three_posts(protections);
        assert!(pair.give_client(&records[0]).is_err());
        assert_eq!(drain(&mut pair.client), []);
    }
}

/// On a sealed link a plain record is no record: which protection holds is a matter of the link, not of the bytes.
#[test]
fn a_plain_record_in_place_of_a_sealed_one_is_noticed() {
    // The strongest forger: the same secret, but a session that believes the link to be plain.
    let (mut forger, forged_link) = Pair::linked(TRUSTED);
    let evil = pattern(1000, 9);
    forger
        .client
        .send(forged_link, post(b"head", &[&evil]))
        .unwrap();
    let forged = records(&forger.sent_by_client());
    for protections in [LEVELS[1], LEVELS[2]] {
        let (mut pair, link) = Pair::linked(protections);
        pair.client
            .send(link, post(b"head", &[&pattern(1000, 1)]))
            .unwrap();
        let honest = records(&pair.sent_by_client());
        pair.give_server(&honest[0]).unwrap();
        assert!(is_authentication(&pair.give_server(&forged[1])));
        assert_eq!(drain(&mut pair.server), []);
    }
}

/// The in-band pickle of a plain link is never plain: altering or replacing it ends the session before it is delivered.
#[test]
fn a_pickle_injected_on_a_plain_wire_is_noticed() {
    let (mut pair, link) = Pair::linked(TRUSTED);
    let harmless = b"\x80\x05K\x01.";
    let hostile = b"cos\nsystem\n(S'id'\ntR.";
    pair.client.send(link, post(harmless, &[b"bulk"])).unwrap();
    let bytes = pair.sent_by_client();
    let start = bytes
        .windows(5)
        .position(|window| window == harmless)
        .expect("integrity leaves it readable");
    let mut bent = bytes.clone();
    bent[start..start + 5].copy_from_slice(&hostile[..5]);
    assert!(is_authentication(&pair.give_server(&bent)));
    assert_eq!(drain(&mut pair.server), []);

    // A whole message made up without the key, put in place of the true one.
    let (mut pair, link) = Pair::linked(TRUSTED);
    let mut forged = vec![2, 1, 0, 0];
    forged.extend_from_slice(&link.number().to_be_bytes());
    forged.extend_from_slice(&[0; 4]);
    forged.extend_from_slice(&(21 + hostile.len() as u32).to_be_bytes());
    forged.extend_from_slice(&[0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    forged.extend_from_slice(&(hostile.len() as u64).to_be_bytes());
    forged.extend_from_slice(&[0, 0]);
    forged.extend_from_slice(hostile);
    forged.extend_from_slice(&[0; 16]);
    assert!(is_authentication(&pair.give_server(&forged)));
    assert_eq!(drain(&mut pair.server), []);
}

#[test]
fn a_record_after_close_is_noticed() {
    let (mut pair, link) = Pair::linked(TRUSTED);
    pair.client.send(link, post(b"last", &[])).unwrap();
    pair.client.close(CloseReason::Finished);
    let bytes = pair.sent_by_client();
    pair.give_server(&bytes).unwrap();
    assert_eq!(pair.give_server(&[0]), Err(SessionError::RecordAfterClose));

    // Also when it comes with the same read.
    let (mut pair, _) = Pair::linked(TRUSTED);
    let twice = [bytes.clone(), bytes].concat();
    assert_eq!(
        pair.give_server(&twice),
        Err(SessionError::RecordAfterClose)
    );
}

/// Lengths far beyond every limit are refused by the header alone, before memory is touched.
#[test]
fn a_huge_record_length_is_refused() {
    for length in [256 * 1024 + 1, 1 << 31, u32::MAX] {
        for kind in 1..=4_u8 {
            let (mut pair, link) = Pair::linked(TRUSTED);
            let number = if kind == 1 { 0 } else { link.number() };
            let mut header = vec![kind, 0, 0, 0];
            header.extend_from_slice(&number.to_be_bytes());
            header.extend_from_slice(&[0; 4]);
            header.extend_from_slice(&u32::to_be_bytes(length));
            assert!(matches!(
                pair.give_server(&header),
                Err(SessionError::Header { .. })
            ));
        }
    }
}

/// A peer with the keys that claims lengths of 2^63, or more than the limits, in an envelope: a session with no limits of
/// its own plays it.
/// Behind a length that somebody made greater, the peer's heartbeats look like the rest of the record. They must not keep the session waiting until
/// there are enough of them.
#[test]
fn a_greater_length_is_noticed_though_heartbeats_come() {
    for (head, length_max) in [(None, 16 * 1024u32), (Some(b"head"), 64 * 1024)] {
        let (mut pair, link) = Pair::linked(Protections::default());
        pair.now += SECOND;
        if let Some(head) = head {
            pair.client.send(link, post(head, &[])).unwrap();
        } else {
            pair.now = pair.client.next_timeout().unwrap();
            pair.client.handle_timeout(pair.now).unwrap();
        }
        let mut record = pair.sent_by_client();
        assert_eq!(records(&record).len(), 1);
        record[12..16].copy_from_slice(&length_max.to_be_bytes());
        pair.give_server(&record).unwrap();
        let altered_at = pair.now;
        let outcome = loop {
            let next = [pair.client.next_timeout(), pair.server.next_timeout()];
            pair.now = next.into_iter().flatten().min().unwrap();
            pair.client.handle_timeout(pair.now).unwrap();
            let heartbeats = pair.sent_by_client();
            if let Err(error) = pair.give_server(&heartbeats) {
                break error;
            }
            if let Err(error) = pair.server.handle_timeout(pair.now) {
                break error;
            }
            // The server's own, so that the client lives.
            let back = pair.sent_by_server();
            pair.give_client(&back).unwrap();
        };
        assert_eq!(outcome, SessionError::PeerDead(5 * SECOND));
        assert!(pair.now - altered_at < 6 * SECOND, "{:?}", pair.now);
        assert_eq!(messages(drain(&mut pair.server)), []);
    }
}

#[test]
fn a_peer_that_exceeds_the_limits_is_cut_off() {
    let generous = |config: &mut exoskel_link::SessionConfig| {
        if config.side == exoskel_link::Side::Server {
            config.limits.message_bytes_max = 1000;
            config.limits.credit_bytes = 1500;
            config.limits.bulk_parts_max = 2;
            config.limits.links_max = 2;
        }
    };
    let attempt = |messages: &[Message]| {
        let mut pair = Pair::with(Protections::default(), generous);
        let link = pair.client.open_link("echo", TrafficClass::Data).unwrap();
        for message in messages {
            pair.client.send(link, message.clone()).unwrap();
        }
        let bytes = pair.sent_by_client();
        pair.give_server(&bytes).unwrap_err()
    };
    assert!(matches!(
        attempt(&[post(&[0; 1001], &[])]),
        SessionError::Content { .. }
    ));
    assert!(matches!(
        attempt(&[post(b"", &[&[0; 1001]])]),
        SessionError::Content { .. }
    ));
    assert!(matches!(
        attempt(&[post(b"", &[b"", b"", b""])]),
        SessionError::Content { .. }
    ));
    let flood = vec![post(&[0; 900], &[]); 3];
    assert!(matches!(
        attempt(&flood),
        SessionError::PeerLimit {
            limit: "credit_bytes",
            ..
        }
    ));

    let mut pair = Pair::with(Protections::default(), generous);
    for _ in 0..3 {
        pair.client.open_link("echo", TrafficClass::Data).unwrap();
    }
    let bytes = pair.sent_by_client();
    assert!(matches!(
        pair.give_server(&bytes),
        Err(SessionError::Unexpected { .. })
    ));
}

/// A verified peer that answers on links in the wrong direction, or names a handler that is not there.
#[test]
fn messages_against_the_rules_of_a_link_end_the_session() {
    // Both believe to be the client of their own pair; each record is then read by the other's server with the same keys.
    let (mut pair, _) = Pair::linked(TRUSTED);
    let mut wide = Pair::with(TRUSTED, |_| {});
    wide.server
        .offer(exoskel_link::Endpoint::new(
            "echo",
            &["first", "second", "third"],
        ))
        .unwrap();
    let link = wide.client.open_link("echo", TrafficClass::Data).unwrap();
    wide.settle();
    let third = Message {
        handler: 2,
        ..post(b"", &[])
    };
    wide.client.send(link, third).unwrap();
    let bytes = wide.sent_by_client();
    assert!(matches!(
        pair.give_server(&bytes),
        Err(SessionError::Unexpected { .. })
    ));
}

/// A peer that never changes its keys is cut off before they wear out.
#[test]
fn worn_keys_are_refused() {
    let mut pair = Pair::with(TRUSTED, |config| {
        if config.side == exoskel_link::Side::Server {
            config.epoch.records_max = 5;
        }
    });
    let link = pair.client.open_link("echo", TrafficClass::Data).unwrap();
    for _ in 0..20 {
        pair.client.send(link, post(b"", &[])).unwrap();
    }
    let bytes = pair.sent_by_client();
    assert!(matches!(
        pair.give_server(&bytes),
        Err(SessionError::PeerLimit { .. })
    ));
}

/// After an error the session stays over, the owner hears the same again, and the peer is told why.
#[test]
fn a_failed_session_stays_failed_and_tells_the_peer() {
    let (mut pair, link, records) = three_posts(TRUSTED);
    let error = pair.give_server(&records[1]).unwrap_err();
    assert_eq!(pair.server.received(1, pair.now), Err(error.clone()));
    assert_eq!(pair.server.received_end(), Err(error.clone()));
    let reply = message(MessageKind::Reply(1), b"", &[]);
    assert_eq!(pair.server.send(link, reply), Err(error.clone()));
    assert!(pair.server.is_closed());
    let close = outgoing(&mut pair.server, pair.now);
    assert!(pair.server.is_drained());
    pair.give_client(&close).unwrap();
    let reason = CloseReason::Fault(error.to_string().into());
    assert_eq!(drain(&mut pair.client), [Event::Closed { reason }]);
}

/// Random bytes in place of the stream, at every level and in pieces: an error or silence, never a message or a panic.
#[test]
fn garbage_is_refused() {
    for seed in 0..=255 {
        for protections in LEVELS {
            let (mut pair, link) = Pair::linked(protections);
            let mut bytes = pattern(500, seed);
            bytes[0] = seed % 6;
            bytes[1..4].copy_from_slice(&[seed & 1, 0, 0]);
            bytes[4..8]
                .copy_from_slice(&(if seed % 6 == 1 { 0 } else { link.number() }).to_be_bytes());
            bytes[8..14].fill(0);
            let outcome = pair.give_server(&bytes);
            assert!(outcome.is_err() || pair.server.received_end().is_err());
            assert_eq!(drain(&mut pair.server), []);
        }
    }
}

/// Whatever is announced beyond what is expected ends the session at its first record.
#[test]
fn more_than_is_expected_ends_the_session_before_it_takes_memory() {
    for (head, bulk) in [(5000, 0), (0, 5000), (2500, 2500)] {
        let (mut pair, link) = Pair::linked(TRUSTED);
        let (head, bulk) = (pattern(head, 1), pattern(bulk, 2));
        let bulk = [bulk.as_slice()];
        pair.server.limit_reception(5000);
        pair.client.send(link, post(&head, &bulk)).unwrap();
        pair.settle();
        assert_eq!(messages(drain(&mut pair.server)).len(), 1);
        pair.server.limit_reception(4999);
        pair.client.send(link, post(&head, &bulk)).unwrap();
        let first = records(&pair.sent_by_client()).swap_remove(0);
        let error = pair.give_server(&first).unwrap_err();
        let SessionError::PeerLimit { got, maximum, .. } = error else {
            panic!("{error}");
        };
        assert_eq!((got, maximum), (5000, 4999));
        assert!(messages(drain(&mut pair.server)).is_empty());
    }
}

/// Messages that are half here count together, on however many links they come.
#[test]
fn half_messages_on_many_links_are_bounded_together() {
    const SIZE: u64 = 100_000;
    for (expected, whole) in [(None, 2), (Some(SIZE + SIZE / 2), 1)] {
        let mut pair = Pair::with(TRUSTED, |config| {
            config.limits.message_bytes_max = SIZE;
            config.peer_limits.message_bytes_max = SIZE;
            config.segment_bytes = 1024;
        });
        let links: Vec<LinkId> = (0..4)
            .map(|_| pair.client.open_link("echo", TrafficClass::Data).unwrap())
            .collect();
        pair.settle();
        if let Some(bytes) = expected {
            pair.server.limit_reception(bytes);
        }
        // Their records go out in turns.
        let part = pattern(SIZE as usize, 3);
        for link in links {
            pair.client.send(link, post(b"", &[&part])).unwrap();
        }
        let sent = pair.sent_by_client();
        let error = pair.give_server(&sent).unwrap_err();
        let SessionError::PeerLimit { got, .. } = error else {
            panic!("{error}");
        };
        assert_eq!(got, (whole + 1) * SIZE);
        assert!(messages(drain(&mut pair.server)).is_empty());
    }
}

/// Aim: sessions of one peer don't multiply what may be half here. Method: each of eight sessions gets nearly all of a message; without the
/// common count, each of them would keep it.
#[test]
fn half_messages_in_many_sessions_are_bounded_together() {
    const SIZE: u64 = 100_000;
    let shared = Arc::new(SharedReception::default());
    let mut pairs: Vec<_> = (0..8)
        .map(|number| {
            let mut pair = Pair::from_secret([number; 32], TRUSTED, |config| {
                config.limits.message_bytes_max = SIZE;
                config.peer_limits.message_bytes_max = SIZE;
                config.segment_bytes = 1024;
            });
            pair.server.share_reception(shared.clone());
            let link = pair.client.open_link("echo", TrafficClass::Data).unwrap();
            pair.settle();
            let part = pattern(SIZE as usize, 3);
            pair.client.send(link, post(b"", &[&part])).unwrap();
            let mut sent = records(&pair.sent_by_client());
            let end = sent.pop().unwrap();
            (pair, sent.concat(), end)
        })
        .collect();
    let (mut good, mut ended) = (Vec::new(), 0);
    for (mut pair, most, end) in pairs.drain(..) {
        match pair.give_server(&most) {
            Ok(()) => good.push((pair, end)),
            Err(SessionError::PeerLimit {
                limit,
                got,
                maximum,
            }) => {
                assert!(limit.contains("all sessions of one certificate"), "{limit}");
                assert!(got > maximum, "{got} {maximum}");
                assert_eq!(maximum, 2 * SIZE);
                ended += 1;
            }
            Err(error) => panic!("{error}"),
        }
    }
    assert_eq!((good.len(), ended), (2, 6));
    // What is whole doesn't count any more, nor what has ended.
    for (pair, end) in &mut good {
        pair.give_server(end).unwrap();
        assert_eq!(messages(drain(&mut pair.server)).len(), 1);
    }
    assert_eq!(shared.bytes(), 0);
}

/// Aim: messages of many empty parts take memory before anything of them has come, and are counted for it.
#[test]
fn parts_of_half_messages_count_by_themselves() {
    let shared = Arc::new(SharedReception::default());
    let mut pair = Pair::new(TRUSTED);
    pair.server.share_reception(shared.clone());
    let link = pair.client.open_link("echo", TrafficClass::Data).unwrap();
    pair.settle();
    let mut parts = vec![&b""[..]; 999];
    let last = pattern(10, 3);
    parts.push(&last);
    pair.client.send(link, post(b"", &parts)).unwrap();
    let sent = records(&pair.sent_by_client());
    pair.give_server(&sent[0]).unwrap();
    assert!(shared.bytes() > 50_000, "{}", shared.bytes());
    drop(pair);
    assert_eq!(shared.bytes(), 0);
}
