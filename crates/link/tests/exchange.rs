//! What two honest sessions do: messages of every shape arrive whole, in order, and only within credit.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod pair;

use core::time::Duration;

use exoskel_link::{
    CipherSuite, CloseReason, Event, Limits, LinkRefusal, Message, MessageKind, Protection,
    Protections, SessionError, TrafficClass, UNVERIFIED_BYTES_PER_SECOND,
};
use pair::{Pair, TRUSTED, drain, feed, feed_in_steps, message, messages, outgoing, pattern, post};
use proptest::collection::vec;
use proptest::prelude::*;

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn a_request_gets_its_reply() {
    let mut pair = Pair::new(Protections::default());
    let link = pair
        .client
        .open_link("echo", TrafficClass::Control)
        .unwrap();
    pair.client
        .send(link, message(MessageKind::Request(7), b"ping", &[]))
        .unwrap();
    pair.settle();
    let events = drain(&mut pair.server);
    let [
        Event::LinkOpened { endpoint, .. },
        Event::Message {
            link: there,
            handler: 1,
            kind,
            head,
            bulk,
            size: 68,
        },
    ] = &events[..]
    else {
        panic!("{events:?}");
    };
    assert_eq!(
        (endpoint.as_str(), *kind),
        ("echo", MessageKind::Request(7))
    );
    assert_eq!((&head[..], bulk.len()), (&b"ping"[..], 0));
    pair.server
        .send(*there, message(MessageKind::Reply(7), b"pong", &[b"bulk"]))
        .unwrap();
    pair.settle();
    let events = drain(&mut pair.client);
    let [
        Event::LinkAccepted { handlers, .. },
        Event::Message {
            kind: MessageKind::Reply(7),
            head,
            bulk,
            ..
        },
    ] = &events[..]
    else {
        panic!("{events:?}");
    };
    assert_eq!(handlers, &["first".into(), "second".into()]);
    assert_eq!(
        (&head[..], &bulk[..]),
        (&b"pong"[..], &[b"bulk".to_vec()][..])
    );
}

/// Sizes around every border: empty, the inner block, the copied plain body, the segment, several segments.
#[test]
fn messages_of_every_size_arrive_whole() {
    const SIZES: [usize; 12] = [
        0, 1, 15, 16, 17, 8192, 8193, 65_600, 262_143, 262_144, 262_145, 1_000_003,
    ];
    for protections in [
        TRUSTED,
        Protections::all(Protection::Integrity),
        Protections::default(),
    ] {
        for cipher in CipherSuite::ALL {
            let mut pair = Pair::with(protections, |config| config.cipher = cipher);
            let link = pair.client.open_link("echo", TrafficClass::Data).unwrap();
            let mut sent = Vec::new();
            for (seed, &size) in SIZES.iter().enumerate() {
                let seed = seed as u8;
                let head = pattern(SIZES[SIZES.len() - 1 - usize::from(seed)], seed);
                let bulk = [
                    pattern(size, seed),
                    vec![],
                    pattern(size / 2, !seed),
                    pattern(3, seed),
                ];
                let parts: Vec<&[u8]> = bulk.iter().map(Vec::as_slice).collect();
                pair.client.send(link, post(&head, &parts)).unwrap();
                pair.settle();
                sent.push((head, bulk.to_vec()));
                for event in drain(&mut pair.server) {
                    if let Event::Message {
                        link,
                        head,
                        bulk,
                        size,
                        ..
                    } = event
                    {
                        pair.server.consumed(link, size);
                        assert!(
                            (head.to_vec(), bulk.clone()) == sent[usize::from(seed)],
                            "{size}"
                        );
                        bulk.into_iter()
                            .for_each(|buffer| pair.server.recycle(buffer));
                    }
                }
                pair.settle();
            }
            assert_eq!(pair.client.queued_bytes(), 0);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    /// However the bytes are cut on their way, the same messages arrive.
    #[test]
    fn the_cuts_of_the_stream_do_not_matter(
        sizes in vec((0_usize..70_000, vec(0_usize..40_000, 0..4), any::<bool>()), 1..6),
        step in 1_usize..100_000, vectored: bool, trusted: bool, private: bool, segment in 1_usize..30_000,
    ) {
        let protections = if trusted { TRUSTED } else { Protections::default() };
        let mut pair = Pair::with(protections, |config| {
            config.segment_bytes = segment;
            config.is_private = private;
        });
        let link = pair.client.open_link("echo", TrafficClass::Data).unwrap();
        let other = pair.client.open_link("echo", TrafficClass::Code).unwrap();
        let mut sent = Vec::new();
        for (index, (head, parts, is_gathered)) in sizes.iter().enumerate() {
            let head = pattern(*head, index as u8);
            let bulk: Vec<_> = parts.iter().map(|&size| pattern(size, !(index as u8))).collect();
            let slices: Vec<&[u8]> = bulk.iter().map(Vec::as_slice).collect();
            let message = Message { is_gathered: *is_gathered, ..post(&head, &slices) };
            pair.client.send(if index % 2 == 0 { link } else { other }, message).unwrap();
            // Stretches that are gathered are one part for the receiver.
            sent.push((head, if *is_gathered { vec![bulk.concat()] } else { bulk }));
        }
        let bytes = pair.sent_by_client();
        feed_in_steps(&mut pair.server, &bytes, SECOND, step, vectored).unwrap();
        let mut arrived = messages(drain(&mut pair.server));
        // The two links overtake each other; the first byte tells whose message it was.
        arrived.sort();
        sent.sort();
        prop_assert!(arrived == sent);
    }
}

#[test]
fn an_unknown_endpoint_is_refused_and_the_number_is_free_again() {
    let mut pair = Pair::new(TRUSTED);
    let link = pair.client.open_link("nobody", TrafficClass::Data).unwrap();
    let large = pattern(3 << 20, 1);
    pair.client.send(link, post(b"lost", &[&large])).unwrap();
    // Some of the message is on its way before the refusal comes.
    pair.client.prepare(pair.now).unwrap();
    let early: Vec<u8> = pair.client.outgoing().flatten().copied().collect();
    pair.client.sent(early.len());
    pair.give_server(&early).unwrap();
    let refusal = pair.sent_by_server();
    pair.give_client(&refusal).unwrap();
    pair.settle();
    let reason = LinkRefusal::UnknownEndpoint;
    assert_eq!(
        drain(&mut pair.client),
        [Event::LinkRefused { link, reason }]
    );
    assert_eq!(drain(&mut pair.server), []);
    assert_eq!(pair.client.queued_bytes(), 0);
    assert_eq!(
        pair.client.send(link, post(b"", &[])),
        Err(SessionError::UnknownLink(link))
    );
    assert_eq!(pair.client.open_link("echo", TrafficClass::Data), Ok(link));
    pair.client.send(link, post(b"found", &[])).unwrap();
    pair.settle();
    assert_eq!(
        messages(drain(&mut pair.server)),
        [(b"found".to_vec(), vec![])]
    );
}

#[test]
fn a_closed_link_delivers_what_was_queued_before() {
    let (mut pair, link) = Pair::linked(TRUSTED);
    for index in 0..100 {
        pair.client
            .send(link, post(&[index], &[&[index; 10_000]]))
            .unwrap();
    }
    pair.client.close_link(link).unwrap();
    assert_eq!(
        pair.client.send(link, post(b"", &[])),
        Err(SessionError::UnknownLink(link))
    );
    pair.settle();
    let events = drain(&mut pair.server);
    assert_eq!(events.len(), 101);
    assert_eq!(events[100], Event::LinkClosed { link });
    assert_eq!(drain(&mut pair.client), [Event::LinkClosed { link }]);
    assert_eq!(pair.client.open_link("echo", TrafficClass::Data), Ok(link));
}

#[test]
fn a_link_carries_requests_one_way_and_replies_the_other() {
    let (mut pair, link) = Pair::linked(TRUSTED);
    let reply = message(MessageKind::Reply(1), b"", &[]);
    assert!(matches!(
        pair.client.send(link, reply),
        Err(SessionError::Direction { .. })
    ));
    assert!(matches!(
        pair.server.send(link, post(b"", &[])),
        Err(SessionError::Direction { .. })
    ));
    let beyond = Message {
        handler: 2,
        ..post(b"", &[])
    };
    assert!(matches!(
        pair.client.send(link, beyond),
        Err(SessionError::Limit { .. })
    ));
}

/// A receiver that consumes nothing holds its credit and one message, whatever is sent; consuming lets the rest come.
#[test]
fn memory_is_bounded_by_credit() {
    const MESSAGE: usize = 100_000;
    const COUNT: usize = 200;
    let credit_bytes = 1_000_000;
    let mut pair = Pair::with(Protections::default(), |config| {
        let limits = Limits {
            credit_bytes,
            ..Limits::default()
        };
        (config.limits, config.peer_limits) = (limits, limits);
    });
    let slow = pair.client.open_link("echo", TrafficClass::Data).unwrap();
    let quick = pair.client.open_link("echo", TrafficClass::Data).unwrap();
    for _ in 0..COUNT {
        pair.client
            .send(slow, post(b"", &[&pattern(MESSAGE, 1)]))
            .unwrap();
    }
    let mut held = Vec::new();
    let mut arrived = 0;
    loop {
        // The slow endpoint does not hold up another.
        pair.client.send(quick, post(b"quick", &[])).unwrap();
        pair.settle();
        let events = drain(&mut pair.server);
        assert!(
            events
                .iter()
                .any(|event| matches!(event, Event::Message { link, .. } if *link == quick))
        );
        for event in events {
            match event {
                Event::Message { link, size, .. } if link == slow => held.push(size),
                Event::Message { link, size, .. } => drop(pair.server.consumed(link, size)),
                _ => {}
            }
        }
        let bytes: u64 = held.iter().sum();
        assert!(
            bytes <= credit_bytes + MESSAGE as u64 + Message::OVERHEAD_BYTES,
            "{bytes}"
        );
        if held.is_empty() {
            break;
        }
        arrived += held.len();
        for size in held.drain(..) {
            pair.server.consumed(slow, size);
        }
    }
    assert_eq!(arrived, COUNT);
    assert!(drain(&mut pair.client).contains(&Event::Credit { link: slow }));
}

/// Credit that is worth no record of its own goes back with the next message, and not before.
#[test]
fn credit_goes_along_with_messages() {
    const MESSAGE: usize = 50_000;
    let mut pair = Pair::with(TRUSTED, |config| {
        let limits = Limits {
            credit_bytes: 3_200_000,
            ..Limits::default()
        };
        (config.limits, config.peer_limits) = (limits, limits);
    });
    let link = pair.client.open_link("echo", TrafficClass::Data).unwrap();
    let mut credited = |count: usize, is_answered: bool| {
        for _ in 0..count {
            pair.client
                .send(
                    link,
                    message(MessageKind::Request(1), b"", &[&pattern(MESSAGE, 1)]),
                )
                .unwrap();
        }
        pair.settle();
        for event in drain(&mut pair.server) {
            if let Event::Message { link, size, .. } = event {
                assert!(!pair.server.consumed(link, size));
            }
        }
        if is_answered {
            let reply = message(MessageKind::Reply(1), b"", &[]);
            pair.server.send(link, reply).unwrap();
        }
        pair.settle();
        drain(&mut pair.client);
        pair.client.credited(link)
    };
    let size = MESSAGE as u64 + Message::OVERHEAD_BYTES;
    assert_eq!(credited(1, true), 0, "it is too little");
    assert_eq!(credited(1, false), 0, "nothing goes back");
    assert_eq!(credited(0, true), 2 * size);
    assert_eq!(credited(0, true), 2 * size);
}

#[test]
fn a_message_larger_than_the_credit_passes() {
    let mut pair = Pair::with(TRUSTED, |config| {
        let limits = Limits {
            credit_bytes: 1000,
            ..Limits::default()
        };
        (config.limits, config.peer_limits) = (limits, limits);
    });
    let link = pair.client.open_link("echo", TrafficClass::Data).unwrap();
    for _ in 0..3 {
        pair.client
            .send(link, post(b"", &[&pattern(1 << 20, 1)]))
            .unwrap();
    }
    for _ in 0..3 {
        pair.settle();
        let events = drain(&mut pair.server);
        let sizes: Vec<_> = events
            .iter()
            .filter_map(|event| {
                if let Event::Message { size, .. } = event {
                    Some(*size)
                } else {
                    None
                }
            })
            .collect();
        assert_eq!(sizes.len(), 1);
        pair.server.consumed(link, sizes[0]);
    }
}

/// Late consumption of an old link must not give credit for a new one with the same number.
#[test]
fn no_more_credit_goes_back_than_was_taken() {
    let (mut pair, link) = Pair::linked(TRUSTED);
    pair.server.consumed(link, u64::MAX);
    pair.client
        .send(link, post(b"", &[&pattern(1000, 1)]))
        .unwrap();
    pair.settle();
    pair.server.consumed(link, u64::MAX);
    pair.server.consumed(link, u64::MAX);
    pair.settle();
}

#[test]
fn both_sides_change_keys_at_their_limits_and_go_on() {
    for protections in [TRUSTED, Protections::default()] {
        let mut pair = Pair::with(protections, |config| config.epoch.records_max = 10);
        let link = pair.client.open_link("echo", TrafficClass::Data).unwrap();
        let mut arrived = 0;
        for index in 0..100 {
            pair.client
                .send(
                    link,
                    message(MessageKind::Request(index), b"", &[&pattern(300_000, 1)]),
                )
                .unwrap();
            pair.settle();
            for event in drain(&mut pair.server) {
                if let Event::Message { link, size, .. } = event {
                    pair.server.consumed(link, size);
                    pair.server
                        .send(link, message(MessageKind::Reply(index), b"", &[]))
                        .unwrap();
                    arrived += 1;
                }
            }
        }
        assert_eq!(arrived, 100);
        assert!(pair.client.counts().epoch_sealing >= 30);
        assert_eq!(
            pair.client.counts().epoch_sealing,
            pair.server.counts().epoch_opening
        );
        assert!(pair.server.counts().epoch_sealing >= 10);
    }
}

#[test]
fn keys_change_with_time() {
    let (mut pair, link) = Pair::linked(Protections::default());
    pair.now = Duration::from_secs(3600);
    pair.client.send(link, post(b"late", &[])).unwrap();
    pair.settle();
    assert_eq!(pair.client.counts().epoch_sealing, 1);
    assert_eq!(messages(drain(&mut pair.server)).len(), 1);
}

/// A stricter policy of one end reaches both directions, also in the middle of a message.
#[test]
fn protections_are_raised_while_a_message_is_under_way() {
    let (mut pair, link) = Pair::linked(TRUSTED);
    let secret = pattern(2 << 20, 3);
    pair.client.send(link, post(b"", &[&secret])).unwrap();
    pair.client.prepare(pair.now).unwrap();
    pair.server.raise_protections(Protections::default());
    let notice = pair.sent_by_server();
    pair.give_client(&notice).unwrap();
    // What was sealed before is on its way as it is; everything after the answer is encrypted.
    pair.settle();
    assert_eq!(messages(drain(&mut pair.server)), [(vec![], vec![secret])]);
    assert_eq!(pair.client.protections(), Protections::default());
    assert_eq!(pair.server.protections(), Protections::default());
    let [plain, _, encrypted] = pair.client.counts().bytes_sealed;
    assert!(plain > 0 && encrypted > 1 << 20);
    pair.client
        .send(link, post(b"head", &[&[0x55; 100_000]]))
        .unwrap();
    let bytes = pair.sent_by_client();
    assert!(!bytes.windows(16).any(|window| window == [0x55; 16]));
}

/// Two reloads in a row, each stricter in another class, before anything was written.
#[test]
fn protections_that_are_raised_twice_add_up() {
    let (mut pair, _) = Pair::linked(TRUSTED);
    let data = Protections {
        data: Protection::Integrity,
        ..TRUSTED
    };
    let code = Protections {
        code: Protection::Encrypted,
        ..TRUSTED
    };
    pair.client.raise_protections(data);
    pair.client.raise_protections(code);
    pair.settle();
    let both = data.stricter(code);
    assert_eq!(
        (pair.client.protections(), pair.server.protections()),
        (both, both)
    );
}

#[test]
fn an_orderly_close_flushes_both_sides() {
    let (mut pair, link) = Pair::linked(TRUSTED);
    pair.client
        .send(
            link,
            message(MessageKind::Request(1), b"", &[&pattern(3 << 20, 1)]),
        )
        .unwrap();
    pair.client.close(CloseReason::Finished);
    assert!(matches!(
        pair.client.send(link, post(b"", &[])),
        Err(SessionError::Closed(_))
    ));
    pair.settle();
    assert!(pair.client.is_drained() && pair.client.is_closed());
    assert!(pair.server.is_drained() && pair.server.is_closed());
    let events = drain(&mut pair.server);
    assert!(matches!(
        &events[..],
        [
            Event::Message { .. },
            Event::Closed {
                reason: CloseReason::Finished
            }
        ]
    ));
    assert_eq!(pair.server.received_end(), Ok(()));
    assert_eq!(pair.client.received_end(), Ok(()));
    assert_eq!(pair.client.next_timeout(), None);
}

/// A side that still has replies to send when the other closes sends them first.
#[test]
fn replies_leave_before_the_answer_to_a_close() {
    let (mut pair, link) = Pair::linked(TRUSTED);
    pair.server
        .send(
            link,
            message(MessageKind::Reply(1), b"", &[&pattern(3 << 20, 1)]),
        )
        .unwrap();
    pair.client.close(CloseReason::ShuttingDown);
    let close = pair.sent_by_client();
    pair.give_server(&close).unwrap();
    pair.settle();
    assert_eq!(messages(drain(&mut pair.client)).len(), 1);
    assert!(pair.client.is_closed());
}

#[test]
fn an_idle_pair_stays_alive_by_heartbeats_alone() {
    let mut pair = Pair::new(TRUSTED);
    for _ in 0..200 {
        let next = [pair.client.next_timeout(), pair.server.next_timeout()];
        pair.now = next.into_iter().flatten().min().unwrap();
        pair.client.handle_timeout(pair.now).unwrap();
        pair.server.handle_timeout(pair.now).unwrap();
        pair.settle();
    }
    assert!(pair.now > 100 * SECOND);
    let counts = pair.server.counts();
    assert!(counts.records_opened > 50);
    assert!(counts.peer_records_opened > 50);
}

#[test]
fn a_silent_peer_is_noticed_in_time() {
    let (mut pair, _) = Pair::linked(TRUSTED);
    let mut outcome = Ok(());
    while outcome.is_ok() {
        pair.now = pair.client.next_timeout().unwrap();
        outcome = pair.client.handle_timeout(pair.now);
        let sent = outgoing(&mut pair.client, pair.now);
        feed(&mut pair.server, &sent, pair.now).unwrap();
    }
    assert_eq!(outcome, Err(SessionError::PeerDead(5 * SECOND)));
    assert_eq!(pair.now, 5 * SECOND);
    assert!(pair.client.is_closed());
    // The peer may have stood still: what it reads later is no fault of its own.
    let reason = CloseReason::Silence;
    assert!(drain(&mut pair.server).contains(&Event::Closed { reason }));
}

/// A process that was stopped for a minute (a debugger, a laptop's lid) finds bytes waiting; its peer is not dead.
#[test]
fn having_been_stopped_oneself_does_not_kill_the_peer() {
    let (mut pair, _) = Pair::linked(TRUSTED);
    pair.now = 60 * SECOND;
    pair.client.handle_timeout(pair.now).unwrap();
    let heartbeat = pair.sent_by_server();
    assert!(!heartbeat.is_empty());
    feed(&mut pair.client, &heartbeat, pair.now).unwrap();
    pair.client.handle_timeout(pair.now + 2 * SECOND).unwrap();
}

/// The same in the middle of a record: the first that the process does is to read what came.
#[test]
fn having_been_stopped_within_a_record_does_not_kill_the_peer() {
    let (mut pair, link) = Pair::linked(Protections::default());
    let message = post(b"", &[&pattern(200 * 1024, 1)]);
    pair.client.send(link, message).unwrap();
    let bytes = pair.sent_by_client();
    let (front, behind) = bytes.split_at(100 * 1024);
    pair.give_server(front).unwrap();
    pair.now = 60 * SECOND;
    let (middle, end) = behind.split_at(1024);
    pair.give_server(middle).unwrap();
    pair.now += 2 * SECOND;
    pair.server.handle_timeout(pair.now).unwrap();
    pair.give_server(end).unwrap();
    assert_eq!(messages(drain(&mut pair.server)).len(), 1);
}

/// Over a slow line a record takes longer than a silent peer is given.
#[test]
fn a_large_record_may_come_slowly() {
    let (mut pair, link) = Pair::linked(Protections::default());
    let message = post(b"", &[&pattern(256 * 1024, 1)]);
    pair.client.send(link, message).unwrap();
    let bytes = pair.sent_by_client();
    for second in bytes.chunks(UNVERIFIED_BYTES_PER_SECOND as usize) {
        pair.give_server(second).unwrap();
        pair.now += SECOND;
        pair.server.handle_timeout(pair.now).unwrap();
    }
    assert!(pair.now > 60 * SECOND);
    assert_eq!(messages(drain(&mut pair.server)).len(), 1);
}

#[test]
fn a_session_ends_with_its_identity() {
    let mut pair = Pair::with(TRUSTED, |config| config.expires_at = Some(SECOND));
    let link = pair.client.open_link("echo", TrafficClass::Data).unwrap();
    pair.settle();
    assert_eq!(pair.client.next_timeout(), Some(SECOND));
    pair.client.send(link, post(b"too late", &[])).unwrap();
    pair.client.handle_timeout(SECOND).unwrap();
    pair.now = SECOND;
    drain(&mut pair.server);
    pair.settle();
    let reason = CloseReason::Expired;
    assert!(drain(&mut pair.client).contains(&Event::Closed {
        reason: reason.clone()
    }));
    assert_eq!(drain(&mut pair.server), [Event::Closed { reason }]);
}

#[test]
fn limits_of_the_peer_are_kept_before_anything_is_queued() {
    let mut pair = Pair::with(TRUSTED, |config| {
        config.peer_limits = Limits {
            message_bytes_max: 100,
            bulk_parts_max: 2,
            links_max: 1,
            ..Limits::default()
        };
        // Messages of nothing take memory as well.
        config.limits.queued_bytes_max =
            3 * (100 + Message::OVERHEAD_BYTES + Message::MEMORY_BYTES);
    });
    let link = pair.client.open_link("echo", TrafficClass::Data).unwrap();
    let limit = |outcome| match outcome {
        Err(SessionError::Limit { limit, .. }) => limit,
        other => panic!("{other:?}"),
    };
    assert_eq!(
        limit(pair.client.send(link, post(&[0; 101], &[]))),
        "message_bytes_max"
    );
    assert_eq!(
        limit(pair.client.send(link, post(b"", &[b"", b"", b""]))),
        "bulk_parts_max"
    );
    assert_eq!(
        limit(pair.client.open_link("echo", TrafficClass::Data).map(drop)),
        "links_max"
    );
    for _ in 0..3 {
        pair.client.send(link, post(&[0; 100], &[])).unwrap();
    }
    assert_eq!(
        limit(pair.client.send(link, post(b"", &[]))),
        "queued_bytes_max"
    );
}
