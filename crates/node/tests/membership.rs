//! Who is asked for slots, who gets a session, and what becomes of both.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod site;

use std::time::Duration;

use bytes::Bytes;
use exoskel_link::handshake::RefuseReason;
use exoskel_link::{CloseReason, Ended, Event, MessageKind, SessionError};
use exoskel_node::SessionId;
use exoskel_node::manager::backoff::{PAUSE_MAX, PAUSE_MIN};
use exoskel_node::manager::notice::{EarlyPhase, Notice, Unwanted};
use exoskel_node::manager::recruiter::{
    CHILDREN_LOST_MAX, Listing, PlaceState, Prospect, SlotSource, SlotSources,
};
use exoskel_node::manager::{Arrival, JoinError, ManagerAction, PieceWanted};
use exoskel_task::message::{SlotEndpoint, ToManager, ToSlot};
use exoskel_task::outcome::Contents;

use self::site::*;

#[test]
fn slots_come_from_the_places_with_the_fewest() {
    let mut site = Site::with_hosts(3, &["one", "two"]);
    assert_eq!(
        site.dialled(),
        [0, 1],
        "one of each, until they say how many they have"
    );
    site.join(SlotSource::Host(1), "two").unwrap();
    assert_eq!(site.dialled(), [], "it has one slot");
    let recruited = site.machine.recruited();
    assert_eq!((recruited.ready, recruited.pending), (0, 2));
}

/// Aim: a worker that is away for however long is asked again within the longest pause of its return, and seldom until then.
#[test]
fn a_place_that_fails_is_asked_for_ever_with_pauses_that_grow() {
    let mut site = Site::with_hosts(8, &["one"]);
    let hour = Duration::from_secs(3600);
    let asked = site.play(hour, |site, _| {
        site.fail(SlotSource::Host(0), Prospect::Passing)
    });
    assert!(asked[1].0 <= PAUSE_MIN);
    let pauses = asked.windows(2).map(|pair| pair[1].0 - pair[0].0);
    assert!(pauses.max().unwrap() <= PAUSE_MAX);
    assert!(asked.len() < 3600 / 2, "{}", asked.len());
    assert!(!site.machine.recruited().is_final);
    assert_eq!(site.given_up(), [], "nobody needs a slot");
}

/// Aim: nobody is woken for a run that waits no longer. Method: a run waits for a slot and its user closes it, or the manager.
#[test]
fn a_run_that_is_closed_waits_no_longer() {
    for closes_all in [false, true] {
        let mut site = Site::listening(1);
        site.open(1);
        site.pass(Duration::from_secs(1));
        assert!(site.machine.next_timeout().is_some(), "it is looked after");
        match closes_all {
            true => site.machine.close(),
            false => site.machine.close_stream(1, site.now),
        }
        site.pass(Duration::from_secs(10));
        let next = site.machine.next_timeout();
        assert!(next.is_none_or(|next| next > site.now), "{next:?}");
        assert_eq!(site.given_up(), []);
    }
}

/// Aim: eight slots that end at once, or eight attempts, are one failure of their worker.
#[test]
fn a_place_that_failed_is_asked_once_and_for_all_its_slots_when_it_answers() {
    let mut site = Site::with_hosts(8, &["one"]);
    let first = site.serve(SlotSource::Host(0), "one", 8);
    let rest: Vec<SessionId> = (1..8)
        .map(|_| site.serve(SlotSource::Host(0), "one", 8))
        .collect();
    assert_eq!(site.dialled().len(), 8);
    for session in std::iter::once(first).chain(rest) {
        let truncated = SessionError::Truncated { records: 9 };
        site.end(session, &Ended::Session(truncated));
    }
    site.pass(PAUSE_MIN);
    assert_eq!(site.dialled(), [0; 8], "nothing is known against it");
    (0..8).for_each(|_| site.fail(SlotSource::Host(0), Prospect::Passing));
    for _ in 0..10 {
        site.pass(REST);
        assert_eq!(site.dialled(), [0], "one finds out");
        site.fail(SlotSource::Host(0), Prospect::Passing);
    }
    site.pass(REST);
    assert_eq!(site.dialled(), [0]);
    site.serve(SlotSource::Host(0), "one", 8);
    assert_eq!(site.dialled(), [0; 7], "the others at once");
}

/// A slot that heard nothing of its manager has done nothing wrong, however many say so.
#[test]
fn silence_of_the_manager_is_no_failure_of_its_workers() {
    let mut site = Site::with_hosts(8, &["one"]);
    for _ in 0..10 {
        let sessions: Vec<SessionId> = (0..8)
            .map(|_| site.serve(SlotSource::Host(0), "one", 8))
            .collect();
        assert_eq!(site.dialled().len(), 8);
        for session in sessions {
            site.end(session, &Ended::Closed(CloseReason::Silence));
        }
        assert!(site.machine.unwanted("one").is_none());
        site.pass(REST);
    }
    assert_eq!(site.dialled(), [0; 8]);
}

#[test]
fn a_run_without_a_slot_waits_for_as_long_as_it_may() {
    let mut site = Site::with_hosts(1, &["one"]);
    site.open(3);
    let session = site.serve(SlotSource::Host(0), "one", 1);
    site.pass(PATIENCE * 2);
    assert_eq!(site.given_up(), [], "a slot works");
    site.end(session, &finished());
    let fail = |site: &mut Site, _| site.fail(SlotSource::Host(0), Prospect::Passing);
    site.play(PATIENCE - PAUSE_MIN, fail);
    assert_eq!(site.given_up(), []);
    site.play(PAUSE_MIN * 2, fail);
    assert_eq!(site.given_up(), [(3, Some(PATIENCE))]);
    site.play(PATIENCE * 3, fail);
    assert_eq!(site.given_up(), [], "it has been told");
    // The next run waits anew, and the worker is asked still.
    site.open(4);
    site.play(PATIENCE / 2, fail);
    assert_eq!(site.given_up(), []);
    assert_eq!(site.play(PATIENCE, |_, _| {}).len(), 1);
    site.serve(SlotSource::Host(0), "one", 1);
    assert_eq!(site.given_up(), [(4, Some(PATIENCE))]);
}

#[test]
fn what_waiting_cannot_change_ends_all_runs_at_once() {
    let mut site = Site::with_hosts(1, &["one"]);
    site.open(3);
    site.fail(SlotSource::Host(0), Prospect::Hopeless);
    assert_eq!(site.given_up(), [(3, None)]);
    assert!(site.machine.recruited().is_final);
    site.open(4);
    assert_eq!(site.given_up(), [(4, None)]);
    site.pass(REST);
    assert_eq!(site.dialled(), []);
}

/// Aim: places that can't be reached keep nobody waiting who can. Method: many of them hang.
#[test]
fn attempts_under_way_are_limited_and_places_that_fail_leave_room() {
    let names: Vec<String> = (0..200).map(|number| format!("host{number}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let mut site = Site::with_hosts(1000, &names);
    let all = site.play(Duration::from_secs(1), |site, host| {
        site.fail(SlotSource::Host(host), Prospect::Passing);
    });
    assert!(all.len() >= 200);
    site.pass(REST);
    let probes = site.dialled();
    assert_eq!(probes.len(), 32, "they hang");
    site.serve(SlotSource::Host(probes[0]), "back", 50);
    let more = site.dialled();
    let of_back = more.iter().filter(|host| **host == probes[0]).count();
    assert_eq!(of_back, 64 - 31 - (more.len() - of_back), "{more:?}");
    assert!(of_back > 30, "{of_back}");
}

#[test]
fn places_of_a_changed_list_are_asked_and_those_gone_are_not() {
    let mut site = Site::with_hosts(3, &["one", "two"]);
    assert_eq!(site.dialled(), [0, 1]);
    let one = site.serve(SlotSource::Host(0), "one", 1);
    site.fail(SlotSource::Host(1), Prospect::Hopeless);
    site.machine.relist(
        &[Listing::Unlisted, Listing::Anew],
        vec!["three".to_owned()],
        site.now,
    );
    site.look();
    assert_eq!(site.dialled(), [2, 1], "and the one that was given up");
    assert_eq!(site.machine.recruited().ready, 1, "running slots stay");
    site.end(one, &finished());
    site.fail(SlotSource::Host(1), Prospect::Passing);
    let asked = site.play(REST * 3, |_, _| {});
    assert!(asked.iter().all(|(_, host)| *host == 1), "{asked:?}");
    let places: Vec<PlaceState> = site.machine.places().collect();
    assert_eq!(places[0], PlaceState::Unlisted);
    assert_eq!(places[1..], [PlaceState::Dialling; 2]);
}

/// A system without processes to give is asked again; a child that dies at once, again and again, lacks something here.
#[test]
fn children_that_cannot_be_started_are_tried_again() {
    let sources = SlotSources {
        slots: 3,
        children: true,
        ..SlotSources::default()
    };
    let starts = |site: &mut Site| {
        let starts = site.actions.iter().filter_map(|action| match action {
            ManagerAction::Start(child) => Some(*child),
            _ => None,
        });
        let starts: Vec<u32> = starts.collect();
        site.actions.clear();
        starts
    };
    let mut site = Site::new(sources.clone());
    for child in starts(&mut site) {
        site.fail(SlotSource::Child(child), Prospect::Passing);
    }
    let mut last = Vec::new();
    for _ in 0..20 {
        site.pass(REST);
        last = starts(&mut site);
        assert_eq!(last.len(), 1, "one finds out");
        site.fail(SlotSource::Child(last[0]), Prospect::Passing);
    }
    site.pass(REST);
    let next = starts(&mut site);
    assert!(next[0] > last[0]);
    site.serve(SlotSource::Child(next[0]), "local", 1);
    assert_eq!(starts(&mut site).len(), 2, "the others at once");
    let mut site = Site::new(sources);
    let mut count = 0;
    while let [child, ..] = starts(&mut site)[..] {
        count += 1;
        site.fail(SlotSource::Child(child), Prospect::Doubtful);
        site.pass(REST);
    }
    assert!(count <= CHILDREN_LOST_MAX, "{count}");
}

#[test]
fn who_lacks_modules_gets_no_items_and_is_not_asked_again() {
    let mut site = Site::with_hosts(2, &["one", "one"]);
    assert_eq!(site.dialled(), [0, 1]);
    let first = site.join(SlotSource::Host(0), "one").unwrap();
    site.say(first, &lacks());
    let why = Unwanted::Lacks("numpy".to_owned());
    let is_told = |action: &ManagerAction| matches!(action, ManagerAction::Unwanted { why: told, .. } if *told == why);
    assert!(site.actions.iter().any(is_told), "{:?}", site.actions);
    assert_eq!(site.ended(), [(first, CloseReason::Finished)]);
    // Its other slot was being dialled.
    let second = site.join(SlotSource::Host(1), "one");
    assert!(matches!(second, Err(JoinError::Unwanted(told)) if told == why));
    site.end(first, &finished());
    assert!(site.machine.recruited().is_final);
    site.pass(REST);
    assert_eq!(site.dialled(), []);
    let refused = site.machine.admit_worker("one").unwrap_err();
    assert_eq!(refused.reason, RefuseReason::NotAllowed);
    assert_eq!(site.machine.report()[0].state, "unfit");
}

fn ready() -> ToManager {
    ToManager::Ready { lacks: Vec::new() }
}

fn initialized(error: &'static str) -> ToManager {
    ToManager::Initialized {
        error: Bytes::from_static(error.as_bytes()),
    }
}

#[test]
fn a_slot_that_runs_its_initializer_counts_and_has_no_work_yet() {
    let mut site = Site::initializing(SlotSources {
        slots: 1,
        listening: true,
        ..SlotSources::default()
    });
    site.machine.admit_worker("one").unwrap();
    let session = site.join(SlotSource::DialledIn, "one").unwrap();
    site.say(session, &initialized(""));
    assert_eq!(site.machine.recruited().ready, 0, "it has no settings yet");
    site.say(session, &ready());
    assert_eq!(site.machine.recruited().ready, 1);
    let works = |site: &Site| site.machine.router().slot_statistics(session.0).is_some();
    assert!(!works(&site));
    site.say(session, &initialized(""));
    assert!(works(&site));
    // Once is enough, whatever it says then.
    site.say(session, &initialized("ValueError: no"));
    assert!(works(&site));
    assert_eq!(site.ended(), []);
}

#[test]
fn a_place_where_the_initializer_raises_again_and_again_is_not_asked_any_more() {
    let mut site = Site::initializing(SlotSources {
        slots: 1,
        hosts: vec!["one".to_owned()],
        ..SlotSources::default()
    });
    site.open(1);
    let error = "Traceback\n  a line\nValueError: no \u{1b}[2J\n";
    for left in [2, 1, 0] {
        assert_eq!(site.dialled(), [0]);
        let session = site.join(SlotSource::Host(0), "one").unwrap();
        site.say(session, &ready());
        site.actions.clear();
        site.say(session, &initialized(error));
        let warnings = site.actions.iter().filter(|action| {
            matches!(action, ManagerAction::Tell(Notice::Warning(text)) if text.contains("a line"))
        });
        assert_eq!(warnings.count(), usize::from(left == 2), "told once");
        let why = Unwanted::Uninitialized("ValueError: no \\u{1b}[2J".to_owned());
        let is_told = |action: &ManagerAction| matches!(action, ManagerAction::Unwanted { why: told, .. } if *told == why);
        assert!(site.actions.iter().any(is_told), "{:?}", site.actions);
        assert_eq!(site.ended(), [(session, CloseReason::Finished)]);
        let recruited = site.machine.recruited();
        assert_eq!((recruited.ready, recruited.pending), (0, 1));
        site.end(session, &finished());
        assert_eq!(site.machine.unwanted("one").is_some(), left == 0);
        let has_given_up = site
            .actions
            .iter()
            .any(|action| matches!(action, ManagerAction::GiveUp { stream: 1, .. }));
        assert_eq!(has_given_up, left == 0);
        site.pass(REST);
    }
    assert_eq!(site.dialled(), []);
    assert!(site.machine.recruited().is_final);
    assert_eq!(site.machine.report()[0].state, "unfit");
}

/// Aim: what raised at a worker may be mended by whoever changes the host file, and what was told of the worker is over once it works.
#[test]
fn a_place_where_the_initializer_raised_is_asked_again_when_the_host_file_changes() {
    let mut site = Site::initializing(SlotSources {
        slots: 1,
        hosts: vec!["one".to_owned()],
        ..SlotSources::default()
    });
    for _ in 0..3 {
        assert_eq!(site.dialled(), [0]);
        let session = site.join(SlotSource::Host(0), "one").unwrap();
        site.say(session, &ready());
        site.say(session, &initialized("ValueError: no"));
        site.end(session, &finished());
        site.pass(REST);
    }
    assert!(site.machine.recruited().is_final);
    site.machine.relist(&[Listing::Anew], Vec::new(), site.now);
    site.look();
    assert_eq!(site.dialled(), [0]);
    assert_eq!(site.machine.unwanted("one"), None);
    let session = site.join(SlotSource::Host(0), "one").unwrap();
    site.say(session, &ready());
    site.actions.clear();
    site.say(session, &initialized(""));
    assert!(
        site.actions
            .iter()
            .any(|action| matches!(action, ManagerAction::Wanted(worker) if worker.name == "one")),
        "{:?}",
        site.actions
    );
}

#[test]
fn an_initializer_that_comes_to_its_end_makes_failures_before_it_good() {
    let mut site = Site::initializing(SlotSources {
        slots: 1,
        children: true,
        ..SlotSources::default()
    });
    for (child, error) in ["no", "no", "", "no", "no", ""].into_iter().enumerate() {
        let child = SlotSource::Child(child as u32);
        let session = site.join(child, "local").unwrap();
        site.say(session, &ready());
        site.say(session, &initialized(error));
        site.end(session, &finished());
        assert!(!site.machine.recruited().is_final);
    }
}

/// Aim: a run that ends because no child comes as far as its work says what became of the last one.
#[test]
fn children_that_fall_in_their_initializer_are_told_of() {
    let mut site = Site::initializing(SlotSources {
        slots: 1,
        children: true,
        ..SlotSources::default()
    });
    site.open(1);
    for child in 0..CHILDREN_LOST_MAX {
        site.pass(REST);
        site.actions.clear();
        let session = site.join(SlotSource::Child(child), "local").unwrap();
        site.say(session, &ready());
        site.end(session, &Ended::Session(SessionError::PeerDead(REST)));
    }
    let told = site.actions.iter().find_map(|action| match action {
        ManagerAction::Unwanted { why, .. } => Some(why.clone()),
        _ => None,
    });
    let how = SessionError::PeerDead(REST).to_string();
    assert_eq!(
        told,
        Some(Unwanted::LostEarly(EarlyPhase::Initializing, how))
    );
    assert_eq!(site.given_up(), [(1, None)]);
}

#[test]
fn a_piece_that_a_slot_asks_for_goes_by_its_code_link() {
    let mut site = Site::listening(1);
    site.machine.admit_worker("one").unwrap();
    let session = site.join(SlotSource::DialledIn, "one").unwrap();
    site.actions.clear();
    let (digest, offset, bytes) = ([3; 32], 5, 7);
    site.say(
        session,
        &ToManager::Fetch {
            digest,
            offset,
            bytes,
        },
    );
    let wanted = PieceWanted {
        digest,
        offset,
        bytes,
    };
    assert!(
        matches!(site.actions[..], [ManagerAction::SendPiece { session: to, piece, .. }] if to == session && piece == wanted)
    );
    let message = wanted.message(Some(Bytes::from_static(b"piece")));
    let read = ToSlot::decode(SlotEndpoint::Code, message.handler, message.head);
    assert_eq!(read, Ok(ToSlot::Piece { digest, offset }));
    assert_eq!(message.bulk, [Bytes::from_static(b"piece")]);
    assert!(wanted.message(None).bulk.is_empty(), "not there any more");
}

/// Whoever pays for traffic wants to know of all of it: also of what goes while a slot isn't ready, and of slots that have gone.
#[test]
fn all_that_is_sent_to_a_worker_counts() {
    let mut site = Site::with_hosts(2, &["one"]);
    let sent = |site: &Site| -> Vec<u64> {
        let report = site.machine.report();
        report.iter().map(|worker| worker.bytes_sent).collect()
    };
    let first = site.join(SlotSource::Host(0), "one").unwrap();
    let second = site.join(SlotSource::Host(0), "one").unwrap();
    site.machine.sent(first, 10);
    site.machine.sent(second, 200);
    assert_eq!(sent(&site), [210]);
    site.end(first, &Ended::Closed(CloseReason::ShuttingDown));
    assert_eq!(sent(&site), [210]);
    site.machine.sent(first, 1);
    site.machine.sent(second, 3000);
    assert_eq!(sent(&site), [3210]);
}

/// Who was told to end is no loss: its user is told once that it leaves, and counts on it no more.
#[test]
fn who_leaves_is_not_lost() {
    let mut site = Site::with_hosts(1, &["one"]);
    let slot = site.join(SlotSource::Host(0), "one").unwrap();
    site.say(slot, &ToManager::Ready { lacks: Vec::new() });
    assert_eq!(site.machine.recruited().ready, 1);
    site.actions.clear();
    site.say(slot, &ToManager::Leaving);
    site.say(slot, &ToManager::Leaving);
    assert_eq!(site.machine.recruited().ready, 0);
    site.end(slot, &Ended::Closed(CloseReason::ShuttingDown));
    let told = site.actions.iter().filter_map(|action| match action {
        ManagerAction::Tell(Notice::Warning(text)) => Some(text.as_str()),
        _ => None,
    });
    let told: Vec<_> = told.collect();
    assert_eq!(
        told,
        ["worker one at 10.0.0.1 leaves: it was told to end; slots that go on: 0"]
    );
    assert_eq!(site.machine.report()[0].state, "left");
    site.pass(REST);
    assert_eq!(site.dialled(), [0]);
}

/// Aim: the loss of a child says what became of its process, where that is known.
#[test]
fn a_loss_says_how_the_process_ended() {
    let mut site = Site::of(
        SlotSources {
            slots: 1,
            children: true,
            ..SlotSources::default()
        },
        false,
    );
    let slot = site.serve(SlotSource::Child(0), "local-1", 1);
    site.actions.clear();
    site.machine.process_ended(slot, "exit code 3");
    site.end(
        slot,
        &Ended::Session(SessionError::Truncated { records: 9 }),
    );
    let text =
        "lost worker local-1 at 10.0.0.1 (exit code 3); items put back: 0, slots that go on: 0";
    assert_eq!(warnings(&site), [text]);
    assert_eq!(site.machine.report()[0].state, "lost");
}

/// Aim: a slot that ends itself for an item that is overdue is no loss, though other items of its frame go back.
#[test]
fn a_slot_that_ends_for_an_overdue_item_is_not_lost() {
    let mut site = Site::with_hosts(1, &["one"]);
    let slot = site.serve(SlotSource::Host(0), "one", 1);
    site.open(1);
    site.actions.clear();
    site.end(slot, &Ended::Closed(CloseReason::ShuttingDown));
    let told = warnings(&site);
    assert!(
        matches!(&told[..], [text] if text.contains("an item runs for too long") && text.contains("items put back: 1")),
        "{told:?}"
    );
    assert_eq!(site.machine.report()[0].state, "left");
}

fn warnings(site: &Site) -> Vec<&str> {
    let told = site.actions.iter().filter_map(|action| match action {
        ManagerAction::Tell(Notice::Warning(text)) => Some(text.as_str()),
        _ => None,
    });
    told.collect()
}

#[test]
fn who_dials_in_has_a_place_only_while_slots_are_missing() {
    let mut site = Site::listening(1);
    assert_eq!(site.machine.admit_worker("one"), Ok(Arrival::Placed));
    assert_eq!(site.machine.admit_worker("two"), Ok(Arrival::Waits));
    assert_eq!(site.machine.busy_refusal().reason, RefuseReason::Busy);
    site.fail(SlotSource::DialledIn, Prospect::Passing);
    assert!(site.machine.has_room());
    assert_eq!(site.machine.admit_worker("two"), Ok(Arrival::Placed));
    assert!(!site.machine.has_room());
    let two = site.join(SlotSource::DialledIn, "two").unwrap();
    assert_eq!(site.machine.admit_worker("one"), Ok(Arrival::Waits));
    site.end(two, &finished());
    assert!(site.machine.has_room());
    assert_eq!(site.machine.admit_worker("one"), Ok(Arrival::Placed));
    site.machine.close();
    assert!(!site.machine.has_room(), "nobody is called at the end");
}

/// All slots of a worker have the same packages: the user is told of them once.
#[test]
fn other_versions_are_told_of_once_for_each_worker() {
    let mut site = Site::listening(3);
    for name in ["one", "one", "two"] {
        site.machine.admit_worker(name).unwrap();
        let slot = site.join(SlotSource::DialledIn, name).unwrap();
        let packages = vec!["numpy 1.26.4, not 2.1.0".to_owned()];
        site.say(slot, &ToManager::Differs { packages });
        site.say(slot, &ToManager::Ready { lacks: Vec::new() });
    }
    let told = site.actions.iter().filter_map(|action| match action {
        ManagerAction::Tell(Notice::Warning(text)) => Some(text.as_str()),
        _ => None,
    });
    let expected = ["one", "two"].map(|name| {
        format!("worker {name} at 10.0.0.1 has other versions than the manager: numpy 1.26.4, not 2.1.0; results may differ: install the same at both")
    });
    assert_eq!(told.collect::<Vec<_>>(), expected);
    assert_eq!(site.machine.recruited().ready, 3, "it works all the same");
}

#[test]
fn who_breaks_its_sessions_again_and_again_is_set_aside() {
    let mut site = Site::with_hosts(1, &["one"]);
    for left in [2, 1, 0] {
        assert_eq!(site.dialled(), [0]);
        let session = site.join(SlotSource::Host(0), "one").unwrap();
        site.say(session, &ToManager::Ready { lacks: Vec::new() });
        assert_eq!(site.machine.recruited().ready, 1);
        site.end(session, &broken());
        let is_set_aside = site.machine.unwanted("one").is_some();
        assert_eq!(is_set_aside, left == 0, "{left} left");
        site.pass(REST);
    }
    assert_eq!(site.dialled(), []);
    assert!(site.machine.recruited().is_final);
}

#[test]
fn who_is_no_longer_allowed_leaves_at_once() {
    let mut site = Site::listening(2);
    site.machine.admit_worker("good").unwrap();
    let good = site.join(SlotSource::DialledIn, "good").unwrap();
    site.machine.admit_worker("bad").unwrap();
    let bad = site.join(SlotSource::DialledIn, "bad").unwrap();
    site.machine.admit_worker("sorry").unwrap();
    let sorry = site.join(SlotSource::DialledIn, "sorry").unwrap();
    let reason = CloseReason::NotAllowed("no sandbox".into());
    site.end(sorry, &Ended::Closed(reason));
    let mut told = site.actions.iter().map(|action| format!("{action:?}"));
    assert!(told.any(|one| one.contains("Unwanted") && one.contains("no sandbox")));
    // The warning calls it lost, so the summary does.
    assert!(
        warnings(&site)
            .iter()
            .any(|text| text.starts_with("lost worker sorry"))
    );
    let report = site.machine.report();
    assert!(
        report
            .iter()
            .any(|row| row.name == "sorry" && row.state == "lost")
    );
    site.actions.clear();
    site.machine.judge_again(|session| match session == bad {
        true => Err("its certificate was revoked"),
        false => Ok(()),
    });
    site.look();
    let reason = CloseReason::NotAllowed("its certificate was revoked".into());
    assert_eq!(site.ended(), [(bad, reason.clone())]);
    // Whoever was sent away has refused nobody.
    site.end(bad, &Ended::Closed(reason));
    assert!(!format!("{:?}", site.actions).contains("Unwanted"));
    site.machine.close();
    site.look();
    assert_eq!(site.ended(), [(good, CloseReason::Finished)]);
}

/// A message that is no post would wait for an answer for ever; one that can't be read is of a peer that breaks the rules.
#[test]
fn a_slot_that_breaks_the_rules_is_dismissed() {
    let mut site = Site::listening(1);
    site.machine.admit_worker("one").unwrap();
    let session = site.join(SlotSource::DialledIn, "one").unwrap();
    site.say(session, &ToManager::Ready { lacks: Vec::new() });
    site.actions.clear();
    for (kind, handler) in [(MessageKind::Request(1), 0), (MessageKind::Post, 77)] {
        let said = Event::Message {
            link: link(),
            handler,
            kind,
            head: Bytes::new(),
            bulk: Vec::new(),
            size: 0,
        };
        site.machine.event(session, said, site.now);
        site.look();
        let ended = site.ended();
        assert!(
            matches!(&ended[..], [(_, CloseReason::Fault(_))]),
            "{ended:?}"
        );
    }
}

/// Aim: a machine that is cut off takes its slots with it, one after the other; an item that is tried at each of them has not killed
/// them. One that takes down a slot each time that it is tried anew is found out all the same.
#[test]
fn a_worker_that_is_lost_with_all_its_slots_is_charged_once() {
    let failed = |site: &mut Site| {
        let failed = site.actions.iter().any(|action| {
            matches!(action, ManagerAction::Deliver { outcomes, .. }
                if matches!(outcomes.contents, Contents::WorkersLost { .. }))
        });
        site.actions.clear();
        failed
    };
    let truncated = || Ended::Session(SessionError::Truncated { records: 9 });
    let mut site = Site::with_hosts(8, &["one"]);
    let lost: Vec<SessionId> = (0..8)
        .map(|_| site.serve(SlotSource::Host(0), "one", 8))
        .collect();
    site.open(1);
    for session in lost {
        site.end(session, &truncated());
        assert!(!failed(&mut site));
        site.pass(Duration::from_millis(100));
    }
    // The first loss was counted, and each of these is another one.
    for left in [1, 0] {
        site.pass(REST);
        let session = site.serve(SlotSource::Host(0), "one", 8);
        assert!(!failed(&mut site));
        site.end(session, &truncated());
        assert_eq!(failed(&mut site), left == 0);
    }
}

/// Aim: an item that takes down slots of one worker, one after the other, is found out after as many as it may. The slots that are left say
/// between two losses that they are still there.
#[test]
fn an_item_that_takes_down_slots_of_one_worker_is_charged_with_each() {
    let mut site = Site::with_hosts(4, &["one"]);
    let slots: Vec<SessionId> = (0..4)
        .map(|_| site.serve(SlotSource::Host(0), "one", 4))
        .collect();
    site.open(1);
    let mut left = slots.clone();
    for taken in 1..=3 {
        let holder = site.given().expect("somebody has the item");
        left.retain(|session| *session != holder);
        site.end(
            holder,
            &Ended::Session(SessionError::Truncated { records: 9 }),
        );
        if taken == 3 {
            break;
        }
        // Nobody gets it before it has answered.
        assert_eq!(site.given(), None);
        for session in &left {
            site.say(*session, &ToManager::Probed);
        }
    }
    let has_failed = |action: &ManagerAction| {
        matches!(action, ManagerAction::Deliver { outcomes, .. }
            if matches!(outcomes.contents, Contents::WorkersLost { .. }))
    };
    assert!(site.actions.iter().any(has_failed));
}

/// Aim: who was told to end, and is ended before its item is done, takes nothing down: the item goes to others, however often.
#[test]
fn an_item_is_not_charged_with_slots_that_were_told_to_end() {
    let mut site = Site::with_hosts(1, &["one"]);
    site.open(1);
    for _ in 0..5 {
        let slot = site.serve(SlotSource::Host(0), "one", 1);
        assert_eq!(site.given(), Some(slot));
        site.say(slot, &ToManager::Leaving);
        site.end(
            slot,
            &Ended::Session(SessionError::Truncated { records: 9 }),
        );
        let delivered = site
            .actions
            .iter()
            .any(|action| matches!(action, ManagerAction::Deliver { .. }));
        assert!(!delivered, "the item has failed");
        site.pass(REST);
        site.dialled();
    }
}
