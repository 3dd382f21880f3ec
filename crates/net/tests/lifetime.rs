//! How sessions end: by silence, in order, with the identity behind them; and what they hold until then.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod wire;

use std::io::{self, Read as _};
use std::net::TcpStream;
use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::time::Duration;

use exoskel_identity::{Expected, IdentityError, PeerVerifier, VerifiedIdentity};
use exoskel_link::{CloseReason, Message, Protection, SessionError};
use exoskel_net::connection::Ended;
use exoskel_net::establish::{NodeConfig, dial, welcome};
use exoskel_net::pki::{THROW_AWAY_VALIDITY, ThrowAwayAuthority};
use rustls_pki_types::{CertificateDer, UnixTime};

use wire::relay::{Direction, Move, Relay};
use wire::{End, Site, Way, anybody, message, part, run, sessions, socketpair, soon, tcp};

const DEAD_AFTER: Duration = Duration::from_millis(300);

fn impatient(site: &Site) -> (NodeConfig, NodeConfig) {
    let (mut manager, mut worker) = (site.manager(), site.worker("lab1"));
    manager.dead_after = DEAD_AFTER;
    worker.dead_after = DEAD_AFTER;
    (manager, worker)
}

#[test]
fn a_peer_whose_process_stops_is_noticed_in_time() {
    run(async {
        let (manager, worker) = impatient(&Site::new());
        let (relay, sockets) = Relay::tcp().await;
        let (client, server) = sessions(sockets, &manager, &worker).await;
        relay.hold();
        let (client, server) = tokio::join!(client.ended(), server.ended());
        for ended in [client, server] {
            assert!(
                matches!(ended, Ended::Session(SessionError::PeerDead(after)) if after == DEAD_AFTER),
                "{ended}"
            );
            assert!(
                ended
                    .to_string()
                    .contains("heard nothing from the peer for 300ms")
            );
        }
        relay.release();
    });
}

/// A dead peer is noticed also by who is in the middle of sending to it.
#[test]
fn a_peer_that_stops_reading_and_writing_is_noticed_by_who_sends() {
    run(async {
        let (manager, worker) = impatient(&Site::new());
        let (relay, sockets) = Relay::tcp().await;
        let (client, server) = sessions(sockets, &manager, &worker).await;
        let link = client.open();
        relay.hold();
        for _ in 0..4 {
            client.post(link, b"much", &vec![7; 1 << 20]).unwrap();
        }
        let (client, server) = tokio::join!(client.ended(), server.ended());
        for ended in [client, server] {
            assert!(
                matches!(ended, Ended::Session(SessionError::PeerDead(_))),
                "{ended}"
            );
        }
        relay.release();
    });
}

/// Nor does the kernel go on sending to it: what waits there may be below what a policy asks for by the time the network is whole again.
#[test]
fn what_a_dead_peer_did_not_take_is_never_sent() {
    run(async {
        let (manager, worker) = impatient(&Site::new());
        let (near, far) = tcp().await;
        let mut stream = TcpStream::from(far.as_fd().try_clone_to_owned().unwrap());
        let (client, server) = sessions((near, far), &manager, &worker).await;
        // Its process lives, so its sockets are open, but nobody reads.
        server.abandon().await;
        let link = client.open();
        for _ in 0..4 {
            client.post(link, b"much", &vec![7; 1 << 20]).unwrap();
        }
        let ended = client.ended().await;
        assert!(
            matches!(ended, Ended::Session(SessionError::PeerDead(_))),
            "{ended}"
        );
        stream.set_nonblocking(false).unwrap();
        let end = stream.read_to_end(&mut Vec::new()).unwrap_err();
        assert_eq!(end.kind(), io::ErrorKind::ConnectionReset);
    });
}

/// Heartbeats alone keep an idle session alive: nothing else is said for several times the limit.
#[test]
fn an_idle_session_lives_on_heartbeats() {
    run(async {
        let (manager, worker) = impatient(&Site::new());
        let (relay, sockets) = Relay::tcp().await;
        let beats = tokio::sync::watch::Sender::new(0);
        let counter = beats.clone();
        relay.set(move |record| {
            if record.direction == Direction::ToServer && record.number.is_some() {
                counter.send_modify(|beats| *beats += 1);
            }
            Move::Pass(record.bytes)
        });
        let (client, mut server) = sessions(sockets, &manager, &worker).await;
        // Each is sent when nothing was for a quarter of the limit: ten of them are more than twice the limit.
        let mut seen = beats.subscribe();
        soon("heartbeats", seen.wait_for(|beats| *beats >= 10))
            .await
            .map(drop)
            .unwrap();
        let link = client.open();
        client.post(link, b"still there", &[]).unwrap();
        assert_eq!(server.message().await.0, b"still there");
        part(client, server).await;
    });
}

#[test]
fn an_orderly_end_lets_everything_out_first() {
    run(async {
        let site = Site::new();
        for way in Way::ALL {
            let (client, server) = way.sessions(&site.manager(), &site.worker("lab1")).await;
            let link = client.open();
            // More than the sockets take, less than the credit.
            for number in 0..7 {
                client
                    .connection
                    .queue(link, message(&[number], &vec![number; 1 << 20]))
                    .unwrap();
            }
            client.connection.close(CloseReason::ShuttingDown);
            let ((server, messages), client) = tokio::join!(server.rest(), client.ended());
            assert!(
                matches!(server, Ended::Closed(CloseReason::ShuttingDown)),
                "{server}"
            );
            assert!(matches!(client, Ended::Closed(_)), "{client}");
            assert_eq!(messages.len(), 7);
            for (number, (head, bulk)) in messages.iter().enumerate() {
                assert_eq!(usize::from(head[0]), number);
                assert_eq!(bulk.len(), 1 << 20);
                assert!(bulk.iter().all(|byte| usize::from(*byte) == number));
            }
        }
    });
}

/// Threads have stacks of all sizes, and an unoptimised build copies a future onto them wherever it is handed on. (Both
/// ends together took 80 KiB when this was written.)
#[test]
fn a_handshake_takes_little_stack() {
    const STACK_BYTES: usize = 256 * 1024;
    const FUTURE_BYTES_MAX: usize = 1024;
    let handshake = || {
        run(async {
            let site = Site::new();
            let (client, server) = (site.manager(), site.worker("lab1"));
            let (dialled, listened) = socketpair();
            let dialled = dial(dialled, &client, None);
            let listened = welcome(listened, &server, anybody);
            assert!(size_of_val(&dialled) <= FUTURE_BYTES_MAX);
            assert!(size_of_val(&listened) <= FUTURE_BYTES_MAX);
            let (dialled, listened) = tokio::join!(dialled, listened);
            part(End::serve(dialled.unwrap()), End::serve(listened.unwrap())).await;
        });
    };
    let thread = std::thread::Builder::new().stack_size(STACK_BYTES);
    thread.spawn(handshake).unwrap().join().unwrap();
}

/// Both sides have much on its way when one of them closes; what credit allows still arrives at both.
#[test]
fn the_other_side_of_an_orderly_end_lets_everything_out_too() {
    run(async {
        let site = Site::new();
        for way in Way::ALL {
            let (client, server) = way.sessions(&site.manager(), &site.worker("lab1")).await;
            let (forth, back) = (client.open(), server.open());
            for number in 0..7 {
                let bulk = vec![number; 1 << 20];
                client
                    .connection
                    .queue(forth, message(&[number], &bulk))
                    .unwrap();
                server
                    .connection
                    .queue(back, message(&[number], &bulk))
                    .unwrap();
            }
            server.connection.flush();
            client.connection.close(CloseReason::Finished);
            let ((client, of_server), (server, of_client)) =
                tokio::join!(client.rest(), server.rest());
            assert!(
                matches!(client, Ended::Closed(CloseReason::Finished)),
                "{client}"
            );
            assert!(
                matches!(server, Ended::Closed(CloseReason::Finished)),
                "{server}"
            );
            assert_eq!((of_client.len(), of_server.len()), (7, 7));
        }
    });
}

#[test]
fn nothing_can_be_sent_after_the_end() {
    run(async {
        let site = Site::new();
        for way in Way::ALL {
            let (client, server) = way.sessions(&site.manager(), &site.worker("lab1")).await;
            let link = client.open();
            let connection = client.connection.clone();
            part(client, server).await;
            let late: Result<(), SessionError> = connection.send(link, message(b"late", &[]));
            assert!(matches!(late, Err(SessionError::Closed(_))));
        }
    });
}

/// Finds that a peer is who its certificate says, and that this ends a second after it was asked: no handshake is too slow for it.
struct EndsSoon(Arc<dyn PeerVerifier>);

impl PeerVerifier for EndsSoon {
    fn verify(
        &self,
        chain: &[CertificateDer<'_>],
        now: UnixTime,
        expected: &Expected<'_>,
    ) -> Result<VerifiedIdentity, IdentityError> {
        let peer = self.0.verify(chain, now, expected)?;
        let end = Duration::from_secs(now.as_secs() + 1);
        let begin = UnixTime::since_unix_epoch(end - THROW_AWAY_VALIDITY);
        let authority = ThrowAwayAuthority::new(begin).unwrap();
        let ending = authority.issue(peer.role(), peer.name(), begin).unwrap();
        let verifier = ending.authority(1).unwrap();
        verifier.verify(ending.chain(), now, expected)
    }

    fn generation(&self) -> u64 {
        self.0.generation()
    }
}

/// A manager for which its worker's identity ends soon, and the worker.
fn short_lived() -> (NodeConfig, NodeConfig) {
    let site = Site::new();
    let (mut manager, worker) = (site.manager(), site.worker("lab1"));
    manager.verifier = Arc::new(EndsSoon(manager.verifier));
    (manager, worker)
}

#[test]
fn a_session_ends_with_the_identity_behind_it() {
    run(async {
        let (manager, worker) = short_lived();
        let (client, server) = Way::SharedMemory.sessions(&manager, &worker).await;
        let (client, server) = tokio::join!(client.ended(), server.ended());
        for ended in [client, server] {
            assert!(
                matches!(ended, Ended::Closed(CloseReason::Expired)),
                "{ended}"
            );
        }
    });
}

/// Who is told that its time is over may not stay by saying nothing to it, nor go on talking.
#[test]
fn who_does_not_answer_a_close_is_cut_off() {
    run(async {
        let (mut manager, worker) = short_lived();
        manager.dead_after = Duration::from_secs(60);
        let (relay, sockets) = Relay::tcp().await;
        // The worker never hears of the end, so it goes on sending what it has.
        let (client, server) = sessions(sockets, &manager, &worker).await;
        relay.hold_one(Direction::ToServer);
        let link = server.open();
        let talking = server.connection.clone();
        let talk = tokio::spawn(async move {
            let mut pace = tokio::time::interval(Duration::from_millis(20));
            while talking.send(link, message(b"more", &[])).is_ok() {
                pace.tick().await;
            }
        });
        // Well before the minute in which the worker would count as dead.
        let ended = client.ended().await;
        assert!(
            matches!(ended, Ended::Closed(CloseReason::Expired)),
            "{ended}"
        );
        relay.cut();
        server.ended().await;
        soon("the talk's end", talk).await.unwrap();
    });
}

/// Nor may who says Close and reads no more: what waits to be written to it would keep its work for ever.
#[test]
fn who_closes_and_stops_reading_is_cut_off() {
    run(async {
        let site = Site::new();
        let (manager, worker) = (site.manager(), site.worker("lab1"));
        for way in [Way::Socketpair, Way::SharedMemory] {
            let (client, server) = way.meet(&manager, &worker).await;
            let client = End::serve(client);
            // Nobody serves this end.
            let server = server.connection;
            let link = client.open();
            // Little enough waits that our own Close fits behind it: no silence counts from then on.
            let waiting = |session: &mut exoskel_link::Session| session.outgoing_bytes();
            while client.connection.with(waiting) == 0 {
                client.post(link, b"", &[7; 16 << 10]).unwrap();
            }
            server.close(CloseReason::ShuttingDown);
            let ended = client.ended().await;
            assert!(
                matches!(ended, Ended::Closed(CloseReason::ShuttingDown)),
                "{ended}"
            );
        }
    });
}

/// What a peer has under way is bounded by the credit it was given, however much it would like to send.
#[test]
fn a_slow_reader_holds_no_more_than_its_credit() {
    run(async {
        let site = Site::new();
        let credit = 1 << 20;
        let part_bytes = 200_000;
        for minimum in [Protection::Plain, Protection::Encrypted] {
            let (manager, mut worker) = (site.manager(), site.worker("lab1"));
            worker.limits.credit_bytes = credit;
            worker.minimum = minimum;
            let (relay, sockets) = Relay::unseen();
            let (client, mut server): (End, End) = sessions(sockets, &manager, &worker).await;
            let link = client.open();
            let count = 100;
            for _ in 0..count {
                let message: Message = message(b"", &vec![1; part_bytes]);
                client.connection.queue(link, message).unwrap();
            }
            client.connection.flush();
            let message_bytes = part_bytes as u64 + Message::OVERHEAD_BYTES;
            // All that the credit allows has come: what was sealed has been opened, nothing waits for the writer, and what has left the queue
            // has been handed out, which may take several turns.
            let counts = |end: &End| end.connection.with(|session| session.counts());
            let mut came = 0;
            let stalled = async {
                loop {
                    came += server.waiting_bytes();
                    let (sealed, waiting, queued) = client.connection.with(|session| {
                        let sealed = session.counts().records_sealed;
                        (sealed, session.outgoing_bytes(), session.queued_bytes())
                    });
                    let is_handed_out = queued + came == count * message_bytes;
                    if waiting == 0 && counts(&server).records_opened == sealed && is_handed_out {
                        return;
                    }
                    tokio::task::yield_now().await;
                }
            };
            soon("the end of credit", stalled).await;
            assert!(came > credit - message_bytes, "{came}");
            assert!(came <= credit + message_bytes, "{came}");
            let left = client.connection.with(|session| session.queued_bytes());
            assert_eq!(left, count * message_bytes - came);
            relay.cut();
            let (_, _) = tokio::join!(client.ended(), server.ended());
        }
    });
}
