//! Connections without a task: whoever has them asks again and again.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test that cannot go on has failed"
)]

mod wire;

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use exoskel_link::{CloseReason, Endpoint, Event, Message, MessageKind, Protection, TrafficClass};
use exoskel_net::connection::{Connection, Ended};

use wire::{ENDPOINT, Site, Way, run};

/// Longer than any test should take.
const PATIENCE: Duration = Duration::from_secs(20);

/// Asks both ends until something is so.
fn drive(
    ends: [&Arc<Connection>; 2],
    mut handle: impl FnMut(usize, Event),
    mut is_done: impl FnMut() -> bool,
) {
    let deadline = Instant::now() + PATIENCE;
    while !is_done() {
        assert!(Instant::now() < deadline, "it doesn't come");
        for (index, end) in ends.into_iter().enumerate() {
            end.progress(|event| handle(index, event)).unwrap();
        }
    }
}

fn small(kind: MessageKind, head: &[u8], bulk: Vec<Bytes>) -> Message {
    Message {
        handler: 0,
        kind,
        head: Bytes::copy_from_slice(head),
        bulk,
        is_gathered: false,
    }
}

/// Nobody runs the connections' tasks, and nobody sleeps: requests with parts larger than any buffer get their answers.
#[test]
fn who_asks_again_and_again_needs_no_task() {
    run(async {
        let site = Site::new();
        for way in Way::ALL {
            for protection in [Protection::Plain, Protection::Encrypted] {
                let mut manager = site.manager();
                manager.minimum = protection;
                let (client, server) = way.meet(&manager, &site.worker("lab1")).await;
                let (client, server) = (client.connection, server.connection);
                let endpoint = Endpoint::new(ENDPOINT, &["take"]);
                server.with(|session| session.offer(endpoint)).unwrap();
                let link = client
                    .with(|session| session.open_link(ENDPOINT, TrafficClass::Data))
                    .unwrap();
                let mut asked = 0_u64;
                let answers = std::cell::Cell::new(0_u64);
                let sizes = [0, 1, 5000, 3_000_001];
                for size in sizes {
                    asked += 1;
                    let bulk = vec![Bytes::from(vec![asked as u8; size])];
                    let question = small(MessageKind::Request(asked), b"what", bulk);
                    client.queue(link, question).unwrap();
                    let handle = |index: usize, event| {
                        let Event::Message {
                            link,
                            kind,
                            bulk,
                            size: all,
                            ..
                        } = event
                        else {
                            return;
                        };
                        assert!(bulk.concat() == vec![asked as u8; size]);
                        [&client, &server][index].consumed(link, all);
                        match kind {
                            MessageKind::Request(number) => {
                                let bulk = bulk.into_iter().map(Bytes::from).collect();
                                let answer = small(MessageKind::Reply(number), b"that", bulk);
                                server.queue(link, answer).unwrap();
                            }
                            _ => answers.set(answers.get() + 1),
                        }
                    };
                    drive([&client, &server], handle, || answers.get() == asked);
                }
            }
        }
    });
}

/// The peer's end, in order or not, is an end here too.
#[test]
fn who_asks_hears_of_the_end() {
    run(async {
        let site = Site::new();
        for way in Way::ALL {
            for is_orderly in [true, false] {
                let (client, server) = way.meet(&site.manager(), &site.worker("lab1")).await;
                if is_orderly {
                    client.connection.close(CloseReason::Finished);
                    let _ = client.connection.progress(drop);
                }
                drop(client);
                let deadline = Instant::now() + PATIENCE;
                let ended = loop {
                    assert!(Instant::now() < deadline, "the end doesn't come");
                    if let Err(ended) = server.connection.progress(drop) {
                        break ended;
                    }
                };
                let is_closed = matches!(ended, Ended::Closed(CloseReason::Finished));
                assert_eq!(is_closed, is_orderly, "{way:?}: {ended}");
            }
        }
    });
}

/// Who has asked for a while can wait: what comes then wakes it.
#[test]
fn a_connection_that_was_asked_can_be_run() {
    run(async {
        let site = Site::new();
        for way in Way::ALL {
            let (client, server) = way.meet(&site.manager(), &site.worker("lab1")).await;
            let endpoint = Endpoint::new(ENDPOINT, &["take"]);
            server
                .connection
                .with(|session| session.offer(endpoint))
                .unwrap();
            let ask = || {
                client.connection.progress(drop).unwrap();
                server.connection.progress(drop).unwrap();
            };
            let open = |session: &mut exoskel_link::Session| {
                session.open_link(ENDPOINT, TrafficClass::Data)
            };
            client.connection.with(open).unwrap();
            // Something has come, and everything that anybody rang has been heard.
            (0..10_000).for_each(|_| ask());
            let mut server = wire::End::serve(server);
            let client = wire::End::serve(client);
            let link = client.open();
            client.post(link, b"hello", &[]).unwrap();
            assert_eq!(server.message().await.0, b"hello");
            wire::part(client, server).await;
        }
    });
}
