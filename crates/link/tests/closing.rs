//! How a session ends, in virtual time: whom it waits for, for how long, and what counts until then.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod pair;

use core::time::Duration;
use std::io;

use exoskel_link::{CLOSING_TIME, CloseReason, Ended, Event, LinkId, Session, SessionError};

use pair::{Pair, TRUSTED, drain, feed, messages, outgoing, post};

/// A peer of these pairs is dead after five times this.
const SECOND: Duration = Duration::from_secs(1);

/// Tells a session the time whenever it wants to know it, until it is over. Says when that was.
#[track_caller]
fn wait_for_end(session: &mut Session, mut now: Duration) -> Duration {
    while session.ended().is_none() {
        let next = session.next_timeout();
        now = next.expect("a session that isn't over wants to know the time");
        // That it fails is known to `ended`.
        let _ = session.handle_timeout(now);
        session.prepare(now).unwrap();
    }
    assert_eq!(session.next_timeout(), None, "nothing is left to wait for");
    now
}

#[track_caller]
fn assert_closed(session: &Session, reason: &CloseReason) {
    let ended = session.ended();
    assert!(
        matches!(&ended, Some(Ended::Closed(got)) if got == reason),
        "{ended:?}, expected {reason:?}"
    );
}

/// What the session is given and never writes: its peer reads no more.
fn stuff(session: &mut Session, link: LinkId, now: Duration) {
    session.send(link, post(b"", &[&[7; 100_000]])).unwrap();
    session.prepare(now).unwrap();
    assert!(session.outgoing_bytes() > 100_000);
}

#[test]
fn both_sides_are_over_when_both_have_said_close() {
    let (mut pair, _) = Pair::linked(TRUSTED);
    assert!(!pair.client.is_ending() && pair.client.ended().is_none());
    pair.client.close(CloseReason::ShuttingDown);
    assert!(pair.client.is_ending() && pair.client.ended().is_none());
    pair.settle();
    for session in [&pair.client, &pair.server] {
        assert_closed(session, &CloseReason::ShuttingDown);
        assert_eq!(session.next_timeout(), None);
    }
}

/// Aim: nobody is kept by a peer that says Close and reads no more. Method: bytes wait for the writer, and stay there.
#[test]
fn a_peer_that_closes_and_stops_reading_is_cut_off() {
    let (mut pair, link) = Pair::linked(TRUSTED);
    pair.now = SECOND;
    stuff(&mut pair.client, link, SECOND);
    pair.server.close(CloseReason::ShuttingDown);
    let close = pair.sent_by_server();
    pair.give_client(&close).unwrap();
    pair.client.prepare(SECOND).unwrap();
    assert!(pair.client.is_closed() && !pair.client.is_drained());
    let end = wait_for_end(&mut pair.client, SECOND);
    assert_eq!(end, SECOND + CLOSING_TIME);
    assert_closed(&pair.client, &CloseReason::ShuttingDown);
}

/// Aim: a peer that has said Close may be silent, however much waits for it. Method: so much waits that our own Close finds no
/// place behind it, and nothing is written.
#[test]
fn a_peer_that_closes_is_not_dead_while_much_waits_for_it() {
    let (mut pair, link) = Pair::linked(TRUSTED);
    pair.now = SECOND;
    let much = post(b"", &[&vec![7; 2 << 20]]);
    pair.client.send(link, much).unwrap();
    pair.client.prepare(SECOND).unwrap();
    pair.server.close(CloseReason::ShuttingDown);
    let close = pair.sent_by_server();
    pair.give_client(&close).unwrap();
    pair.client.prepare(SECOND).unwrap();
    assert!(!pair.client.is_closed(), "our Close is not sealed");
    let end = wait_for_end(&mut pair.client, SECOND);
    assert_eq!(end, SECOND + 5 * SECOND);
    assert_closed(&pair.client, &CloseReason::ShuttingDown);
}

/// Aim: nor by one that never answers our Close. Method: it goes on with its heartbeats, so it isn't dead.
#[test]
fn a_peer_that_never_answers_a_close_is_cut_off() {
    let (mut pair, _) = Pair::linked(TRUSTED);
    pair.client.close(CloseReason::Finished);
    let lost = pair.sent_by_client();
    assert!(!lost.is_empty() && pair.client.is_drained());
    let half = CLOSING_TIME / 2;
    pair.server
        .handle_timeout(half)
        .and_then(|()| pair.server.prepare(2 * SECOND))
        .unwrap();
    let heartbeat = outgoing(&mut pair.server, 2 * SECOND);
    assert!(!heartbeat.is_empty());
    feed(&mut pair.client, &heartbeat, half).unwrap();
    assert_eq!(wait_for_end(&mut pair.client, half), CLOSING_TIME);
    assert_closed(&pair.client, &CloseReason::Finished);
}

/// Aim: who still has something to say to our Close may say it. Method: a message comes just before the time is up, again
/// and again; then none does.
#[test]
fn a_peer_that_goes_on_talking_has_its_time_anew() {
    let (mut pair, link) = Pair::linked(TRUSTED);
    pair.server.close(CloseReason::Finished);
    drop(pair.sent_by_server());
    for round in 1..=5_u8 {
        pair.now += CLOSING_TIME - Duration::from_millis(1);
        pair.client.send(link, post(&[round], &[])).unwrap();
        let bytes = pair.sent_by_client();
        pair.give_server(&bytes).unwrap();
        assert_eq!(messages(drain(&mut pair.server)).len(), 1);
    }
    let end = wait_for_end(&mut pair.server, pair.now);
    assert_eq!(end, pair.now + CLOSING_TIME);
    assert_closed(&pair.server, &CloseReason::Finished);
}

/// Aim: nothing counts behind an abrupt end, neither what has been read before nor what still comes, and neither makes it
/// last longer. The peer's own Close still ends it at once.
#[test]
fn nothing_counts_after_an_abrupt_end() {
    for answers in [false, true] {
        let (mut pair, link) = Pair::linked(TRUSTED);
        pair.client.send(link, post(b"read", &[])).unwrap();
        let bytes = pair.sent_by_client();
        pair.give_server(&bytes).unwrap();
        let reason = CloseReason::NotAllowed("revoked".into());
        pair.server.abort(reason.clone());
        assert!(pair.server.is_aborted());
        let told = pair.sent_by_server();
        pair.now = CLOSING_TIME / 2;
        pair.client.send(link, post(b"late", &[])).unwrap();
        if answers {
            pair.give_client(&told).unwrap();
        }
        let late = pair.sent_by_client();
        pair.give_server(&late).unwrap();
        let events = drain(&mut pair.server);
        assert_eq!(events.len(), usize::from(answers), "{events:?}");
        assert!(
            events
                .iter()
                .all(|event| matches!(event, Event::Closed { .. }))
        );
        let end = wait_for_end(&mut pair.server, pair.now);
        assert_eq!(end, if answers { pair.now } else { CLOSING_TIME });
        assert_closed(&pair.server, &reason);
    }
}

/// Aim: an abrupt end comes in time also when our Close can't be written.
#[test]
fn an_abrupt_end_does_not_wait_for_the_writer() {
    let (mut pair, link) = Pair::linked(TRUSTED);
    stuff(&mut pair.client, link, Duration::ZERO);
    pair.client
        .abort(CloseReason::Fault("it breaks the rules".into()));
    pair.client.prepare(Duration::ZERO).unwrap();
    assert!(!pair.client.is_drained());
    assert_eq!(wait_for_end(&mut pair.client, Duration::ZERO), CLOSING_TIME);
    assert!(matches!(
        pair.client.ended(),
        Some(Ended::Closed(CloseReason::Fault(_)))
    ));
}

/// Aim: an identity that runs out ends the session like an abrupt end, with an event of its own.
#[test]
fn the_end_of_an_identity_is_abrupt() {
    let mut pair = Pair::with(TRUSTED, |config| config.expires_at = Some(SECOND / 2));
    let end = wait_for_end(&mut pair.client, Duration::ZERO);
    assert_eq!(
        end,
        SECOND / 2 + CLOSING_TIME,
        "nobody answers, nor writes our Close"
    );
    assert_closed(&pair.client, &CloseReason::Expired);
    assert!(pair.client.is_aborted());
    assert!(matches!(
        &drain(&mut pair.client)[..],
        [Event::Closed {
            reason: CloseReason::Expired
        }]
    ));
}

/// Aim: the first reason is the one that counts, whoever gave it, while the peer is told this side's own.
#[test]
fn the_first_reason_counts() {
    let (mut pair, _) = Pair::linked(TRUSTED);
    pair.server.close(CloseReason::ShuttingDown);
    let close = pair.sent_by_server();
    pair.give_client(&close).unwrap();
    pair.client.close(CloseReason::Finished);
    pair.settle();
    assert_closed(&pair.client, &CloseReason::ShuttingDown);
    assert_closed(&pair.server, &CloseReason::ShuttingDown);
    assert!(matches!(
        &drain(&mut pair.server)[..],
        [Event::Closed {
            reason: CloseReason::Finished
        }]
    ));
}

/// Aim: a connection that is gone is an error, unless one of the sides had said Close.
#[test]
fn the_end_of_the_connection() {
    let broken = || io::Error::from(io::ErrorKind::ConnectionReset);
    for has_closed in [false, true] {
        let mut pair = Pair::new(TRUSTED);
        if has_closed {
            pair.client.close(CloseReason::Finished);
            drop(pair.sent_by_client());
        }
        let ended = pair.client.ended_by(broken());
        assert_eq!(has_closed, matches!(ended, Ended::Closed(_)), "{ended:?}");
        assert_eq!(!has_closed, matches!(ended, Ended::Transport(_)));
        assert!(matches!(
            pair.client.received_end(),
            Err(SessionError::Truncated { .. })
        ));
        for ended in [pair.client.ended(), Some(pair.client.ended_by(broken()))] {
            let is_truncated =
                matches!(ended, Some(Ended::Session(SessionError::Truncated { .. })));
            assert_eq!(!has_closed, is_truncated, "{ended:?}");
            assert_eq!(has_closed, matches!(ended, Some(Ended::Closed(_))));
        }
    }
}
