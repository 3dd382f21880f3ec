//! Somebody in the middle of an established session: what is done to the wire ends the session with an error that
//! says so, on encrypted wires and on plain ones.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod wire;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use exoskel_link::{CloseReason, Protection, SessionError};
use exoskel_net::connection::Ended;

use wire::relay::{Direction, Move, Record, Relay};
use wire::{End, Site, part, run, sessions};

const BULK_BYTES: usize = 100_000;
const MESSAGES: u8 = 4;

const BOTH: [Protection; 2] = [Protection::Plain, Protection::Encrypted];

/// What became of the session at the client and at the server, and what the server got.
type Outcome = (Ended, Ended, Vec<(Vec<u8>, Vec<u8>)>);

/// Two ends with a wire of this protection, and somebody on it.
async fn wired(data: Protection) -> (Relay, End, End) {
    let site = Site::new();
    let (mut client, server) = (site.manager(), site.worker("lab1"));
    client.floor = data;
    let (relay, sockets) = Relay::unseen();
    let (client, server) = sessions(sockets, &client, &server).await;
    let agreed = client.connection.with(|session| session.protections());
    assert_eq!(agreed.data, data);
    (relay, client, server)
}

/// Lets the client send messages through somebody's hands; what became of the session at both ends, and what the
/// server got.
async fn through(data: Protection, hand: impl FnMut(Record) -> Move + Send + 'static) -> Outcome {
    let (relay, client, server) = wired(data).await;
    relay.set(hand);
    let link = client.open();
    for number in 0..MESSAGES {
        client
            .post(link, &[number; 40], &[number; BULK_BYTES])
            .unwrap();
    }
    let ((server, messages), client) = tokio::join!(server.rest(), client.ended());
    (client, server, messages)
}

/// The server gave up over the records, the client was told of it, and nothing false was delivered.
fn assert_noticed(what: &str, outcome: &Outcome) {
    let (client, server, messages) = outcome;
    // A record may also be known to be wrong before its tag is looked at, from what its header says.
    let is_noticed = matches!(
        server,
        Ended::Session(SessionError::Authentication { .. } | SessionError::Unexpected { .. })
    );
    assert!(is_noticed, "{what}: {server}");
    let told = matches!(client, Ended::Closed(CloseReason::Fault(_)));
    assert!(told, "{what}: {client:?}");
    for (number, (head, bulk)) in messages.iter().enumerate() {
        assert!(
            head.iter().all(|byte| usize::from(*byte) == number),
            "{what}"
        );
        assert!(
            bulk.iter().all(|byte| usize::from(*byte) == number),
            "{what}"
        );
    }
    assert!(messages.len() < usize::from(MESSAGES), "{what}");
}

/// Does something to the one record that is meant; `step` gets it and gives what goes on.
fn once(
    meant: impl Fn(&Record) -> bool + Send + 'static,
    mut step: impl FnMut(Record) -> Move + Send + 'static,
) -> impl FnMut(Record) -> Move + Send + 'static {
    let mut count = 0;
    move |record| {
        if record.direction == Direction::ToServer && meant(&record) {
            count += 1;
            if count == 2 {
                return step(record);
            }
        }
        Move::Pass(record.bytes)
    }
}

#[test]
fn a_flipped_bit_of_a_head_is_noticed() {
    run(async {
        for data in BOTH {
            // In the group, the body, and the tag.
            for place in [11, 20, 70] {
                let flip = once(Record::is_head, move |mut record| {
                    record.bytes[place] ^= 0x10;
                    Move::Pass(record.bytes)
                });
                let (client, server, messages) = through(data, flip).await;
                if place == 11 {
                    // What the header says is looked at first: the group is not the link's.
                    assert!(matches!(server, Ended::Session(_)), "{server}");
                    assert!(matches!(client, Ended::Closed(CloseReason::Fault(_))));
                    assert_eq!(messages.len(), 1);
                } else {
                    assert_noticed("a flipped bit", &(client, server, messages));
                }
            }
        }
    });
}

#[test]
fn a_flipped_bit_of_encrypted_bulk_is_noticed() {
    run(async {
        for place in [16, 5000, BULK_BYTES + 31] {
            let flip = once(Record::is_bulk, move |mut record| {
                record.bytes[place] ^= 1;
                Move::Pass(record.bytes)
            });
            let outcome = through(Protection::Encrypted, flip).await;
            assert_noticed("a flipped bit", &outcome);
        }
    });
}

/// This is what `plain` gives up, and all that it gives up: the bytes of a bulk part can be changed.
#[test]
fn a_flipped_bit_of_plain_bulk_is_not_noticed() {
    run(async {
        let (relay, client, mut server) = wired(Protection::Plain).await;
        relay.set(once(Record::is_bulk, |mut record| {
            let last = record.bytes.len() - 1;
            record.bytes[last] ^= 1;
            Move::Pass(record.bytes)
        }));
        let link = client.open();
        for number in 0..2 {
            client.post(link, b"head", &[number; BULK_BYTES]).unwrap();
        }
        assert_eq!(server.message().await.1, vec![0; BULK_BYTES]);
        let (head, bulk) = server.message().await;
        let mut expected = vec![1; BULK_BYTES];
        expected[BULK_BYTES - 1] = 0;
        assert_eq!(head, b"head");
        assert_eq!(bulk, expected);
        part(client, server).await;
    });
}

#[test]
fn the_header_of_plain_bulk_is_protected_all_the_same() {
    run(async {
        for place in [16, 31] {
            let flip = once(Record::is_bulk, move |mut record| {
                record.bytes[place] ^= 1;
                Move::Pass(record.bytes)
            });
            assert_noticed("a flipped bit", &through(Protection::Plain, flip).await);
        }
    });
}

#[test]
fn dropped_records_are_noticed() {
    run(async {
        for data in BOTH {
            for meant in [Record::is_head, Record::is_bulk] {
                let drop = once(meant, |_| Move::Pass(Vec::new()));
                assert_noticed("a dropped record", &through(data, drop).await);
            }
        }
    });
}

#[test]
fn replayed_records_are_noticed() {
    run(async {
        for data in BOTH {
            let replay = once(Record::is_head, |record| {
                Move::Pass([record.bytes.clone(), record.bytes].concat())
            });
            assert_noticed("a replayed head", &through(data, replay).await);
            let replay = once(Record::is_bulk, |record| {
                Move::Pass([record.bytes.clone(), record.bytes].concat())
            });
            let (client, server, _) = through(data, replay).await;
            assert!(matches!(server, Ended::Session(_)), "{server}");
            assert!(
                matches!(client, Ended::Closed(CloseReason::Fault(_))),
                "{client}"
            );
        }
    });
}

/// A whole message, played back later: each of its records was good once.
#[test]
fn a_replayed_message_is_noticed() {
    run(async {
        for data in BOTH {
            let mut kept = Vec::new();
            let mut heads = 0;
            let replay = move |record: Record| {
                if record.direction == Direction::ToClient {
                    return Move::Pass(record.bytes);
                }
                heads += u32::from(record.is_head());
                if heads == 1 && record.number.is_some() {
                    kept.extend_from_slice(&record.bytes);
                }
                if heads == 3 {
                    return Move::Pass([std::mem::take(&mut kept), record.bytes].concat());
                }
                Move::Pass(record.bytes)
            };
            assert_noticed("a replayed message", &through(data, replay).await);
        }
    });
}

#[test]
fn records_out_of_order_are_noticed() {
    run(async {
        for data in BOTH {
            let mut kept: Option<Vec<u8>> = None;
            let mut heads = 0;
            let swap = move |record: Record| {
                if record.direction == Direction::ToClient || record.number.is_none() {
                    return Move::Pass(record.bytes);
                }
                heads += u32::from(record.is_head());
                if heads == 2 && kept.is_none() {
                    kept = Some(record.bytes);
                    return Move::Pass(Vec::new());
                }
                let late = kept.as_mut().map(std::mem::take).unwrap_or_default();
                Move::Pass([record.bytes, late].concat())
            };
            let (client, server, messages) = through(data, swap).await;
            assert!(matches!(server, Ended::Session(_)), "{server}");
            assert!(
                matches!(client, Ended::Closed(CloseReason::Fault(_))),
                "{client}"
            );
            assert_eq!(messages.len(), 1);
        }
    });
}

/// Records of the other direction have another key.
#[test]
fn reflected_records_are_noticed() {
    run(async {
        for data in BOTH {
            let mut of_server: Option<Vec<u8>> = None;
            let reflect = move |record: Record| {
                if record.direction == Direction::ToClient {
                    if record.number.is_some() {
                        of_server.get_or_insert_with(|| record.bytes.clone());
                    }
                    return Move::Pass(record.bytes);
                }
                match of_server.as_mut() {
                    Some(bytes) if record.is_head() && !bytes.is_empty() => {
                        Move::Pass(std::mem::take(bytes))
                    }
                    _ => Move::Pass(record.bytes),
                }
            };
            let (relay, client, mut server) = wired(data).await;
            relay.set(reflect);
            let link = client.open();
            client.post(link, &[0; 40], &[0; BULK_BYTES]).unwrap();
            // The server's answer to the opening of the link is what comes back to it.
            server.message().await;
            client.post(link, &[1; 40], &[1; BULK_BYTES]).unwrap();
            let (server, client) = tokio::join!(server.rest(), client.ended());
            assert_noticed("a reflected record", &(client, server.0, server.1));
        }
    });
}

#[test]
fn what_is_cut_off_inside_a_record_is_told_from_an_end() {
    run(async {
        for data in BOTH {
            for (meant, kept) in [
                (Record::is_head as fn(&Record) -> bool, 9),
                (Record::is_bulk, 5000),
            ] {
                let cut = once(meant, move |record| {
                    Move::Cut(record.bytes[..kept].to_vec())
                });
                let (client, server, messages) = through(data, cut).await;
                assert_truncated(&server);
                assert_broken(&client);
                assert_eq!(messages.len(), 1);
            }
        }
    });
}

#[test]
fn what_is_cut_off_between_records_is_told_from_an_end() {
    run(async {
        for data in BOTH {
            let mut heads = 0;
            let cut = move |record: Record| {
                heads += u32::from(record.is_head());
                if heads == 3 {
                    Move::Cut(Vec::new())
                } else {
                    Move::Pass(record.bytes)
                }
            };
            let (client, server, messages) = through(data, cut).await;
            assert_truncated(&server);
            assert_broken(&client);
            assert_eq!(messages.len(), 2);
        }
    });
}

fn assert_truncated(ended: &Ended) {
    assert!(
        matches!(ended, Ended::Session(SessionError::Truncated { .. })),
        "{ended}"
    );
    assert!(ended.to_string().contains("without a Close"), "{ended}");
}

/// The one who was sending sees the end of the connection, or that it can't be written to any more.
fn assert_broken(ended: &Ended) {
    let is_error = matches!(
        ended,
        Ended::Session(SessionError::Truncated { .. }) | Ended::Transport(_)
    );
    assert!(is_error, "{ended}");
}

#[test]
fn a_close_cannot_be_made_up() {
    run(async {
        for data in BOTH {
            let forge = once(Record::is_head, |record| {
                let mut forged = vec![1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 4];
                forged.extend([10, 0, 0, 0]);
                forged.extend([0; 16]);
                Move::Pass([forged, record.bytes].concat())
            });
            assert_noticed("a forged Close", &through(data, forge).await);
        }
    });
}

#[test]
fn a_record_after_close_is_an_error() {
    run(async {
        let (relay, client, server) = wired(Protection::Encrypted).await;
        let closing = Arc::new(AtomicBool::new(false));
        let armed = closing.clone();
        relay.set(move |record| {
            let is_close = record.direction == Direction::ToServer
                && record.bytes[0] == 1
                && armed.load(Ordering::Relaxed);
            if is_close {
                return Move::Pass([record.bytes.clone(), record.bytes].concat());
            }
            Move::Pass(record.bytes)
        });
        closing.store(true, Ordering::Relaxed);
        client.connection.close(CloseReason::Finished);
        let (server, _client) = tokio::join!(server.ended(), client.ended());
        assert!(
            matches!(server, Ended::Session(SessionError::RecordAfterClose)),
            "{server}"
        );
    });
}

#[test]
fn a_length_that_no_record_has_is_refused_at_once() {
    run(async {
        for data in BOTH {
            let stretch = once(Record::is_head, |mut record| {
                record.bytes[12..16].copy_from_slice(&u32::MAX.to_be_bytes());
                Move::Pass(record.bytes)
            });
            let (client, server, messages) = through(data, stretch).await;
            assert!(
                matches!(server, Ended::Session(SessionError::Header { .. })),
                "{server}"
            );
            assert!(
                matches!(client, Ended::Closed(CloseReason::Fault(_))),
                "{client}"
            );
            assert_eq!(messages.len(), 1);
        }
    });
}
