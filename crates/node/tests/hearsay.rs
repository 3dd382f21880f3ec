//! What workers tell of others that they hear: whose it is, how long it counts, and how often they may.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod site;

use std::time::Duration;

use exoskel_link::{CloseReason, Event, MessageKind};
use exoskel_node::SlotMachine;
use exoskel_node::manager::ManagerAction;
use exoskel_node::manager::hints::Trial;
use exoskel_node::manager::recruiter::{Prospect, SlotSource};
use exoskel_task::message::{HEARD_HANDLER, HeardWorker, RESULT_HANDLERS, ToManager};
use exoskel_task::slot_queue::SerialPassage;

use site::{Site, finished, link, session};

fn heard(names: &[&str]) -> Vec<HeardWorker> {
    let named = names.iter().map(|&name| HeardWorker {
        name: name.to_owned(),
        addresses: vec!["192.0.2.1:7601".parse().unwrap()],
    });
    named.collect()
}

fn telling(names: &[&str]) -> ToManager {
    ToManager::Heard {
        workers: heard(names),
    }
}

/// What was told since this was last asked.
fn told(site: &mut Site) -> Vec<(String, Vec<HeardWorker>)> {
    let told = site.actions.drain(..).filter_map(|action| match action {
        ManagerAction::Hearsay { worker, heard } => Some((worker, heard)),
        _ => None,
    });
    told.collect()
}

#[test]
fn what_a_worker_tells_counts_until_its_last_slot_is_gone() {
    let mut site = Site::with_hosts(3, &["one", "two"]);
    let first = site.serve(SlotSource::Host(0), "one", 2);
    let second = site.serve(SlotSource::Host(0), "one", 2);
    let silent = site.serve(SlotSource::Host(1), "two", 1);
    site.say(first, &telling(&["n1"]));
    site.say(second, &telling(&["n1", "n2"]));
    let one = |names| ("one".to_owned(), heard(names));
    assert_eq!(told(&mut site), [one(&["n1"]), one(&["n1", "n2"])]);
    site.end(first, &finished());
    site.end(silent, &finished());
    assert_eq!(told(&mut site), []);
    site.end(second, &finished());
    assert_eq!(told(&mut site), [one(&[])]);
}

#[test]
fn who_tells_all_the_time_has_to_go() {
    let mut site = Site::with_hosts(2, &["honest", "flood"]);
    let honest = site.serve(SlotSource::Host(0), "honest", 1);
    let flood = site.serve(SlotSource::Host(1), "flood", 1);
    // Each two seconds, and then all that the network has held up for a minute.
    for _ in 0..100 {
        site.pass(Duration::from_secs(2));
        site.say(honest, &telling(&["n1"]));
    }
    site.pass(Duration::from_secs(60));
    for _ in 0..30 {
        site.say(honest, &telling(&["n1"]));
    }
    assert_eq!(site.ended(), []);
    let mut times = 0;
    let reason = loop {
        site.say(flood, &telling(&["n1"]));
        times += 1;
        if let [(session, CloseReason::Fault(reason))] = &site.ended()[..] {
            assert_eq!(*session, flood);
            break reason.to_string();
        }
        assert!(times < 1000, "nothing ends it");
    };
    assert!(reason.contains("more than 64 times at once"), "{reason}");
    assert_eq!(times, 65);
}

#[test]
fn what_can_not_be_read_ends_the_session() {
    let mut site = Site::with_hosts(1, &["evil"]);
    let evil = site.serve(SlotSource::Host(0), "evil", 1);
    site.say(evil, &telling(&["n1"]));
    let (handler, head) = telling(&["n1"]).encode();
    let cut = Event::Message {
        link: link(),
        handler,
        kind: MessageKind::Post,
        head: head.slice(..head.len() - 1),
        bulk: Vec::new(),
        size: 0,
    };
    assert_eq!(told(&mut site).len(), 1);
    site.machine.event(evil, cut, site.now);
    site.look();
    assert!(matches!(&site.ended()[..], [(session, CloseReason::Fault(_))] if *session == evil));
    let with_bulk = Event::Message {
        link: link(),
        handler,
        kind: MessageKind::Post,
        head,
        bulk: vec![vec![0]],
        size: 0,
    };
    site.machine.event(evil, with_bulk, site.now);
    site.look();
    assert!(matches!(&site.ended()[..], [(session, CloseReason::Fault(_))] if *session == evil));
}

#[test]
fn only_who_wants_to_know_is_told() {
    let wants = |handlers: &[&str]| {
        let mut machine = SlotMachine::begin(&mut session(), 1 << 20).unwrap();
        assert!(!machine.takes_hearsay(), "it has not said so");
        let accepted = Event::LinkAccepted {
            link: machine.results(),
            handlers: handlers.iter().map(|&name| name.into()).collect(),
            resumption: None,
        };
        let answers = machine.event(accepted, &SerialPassage::default()).unwrap();
        assert!(answers.is_empty());
        machine.takes_hearsay()
    };
    assert!(!wants(RESULT_HANDLERS));
    assert!(wants(&[RESULT_HANDLERS, &[HEARD_HANDLER]].concat()));
    // What a later version may have there.
    assert!(!wants(
        &[RESULT_HANDLERS, &["other", HEARD_HANDLER]].concat()
    ));
}

#[test]
fn places_that_are_heard_later_do_not_come_before_those_that_wait() {
    let mut site = Site::with_hosts(1, &[]);
    let list = |site: &mut Site, name: &str| {
        let position = site.machine.list(None, name);
        site.machine.recruit(site.now);
        site.look();
        position
    };
    let lie = list(&mut site, "lie");
    let late = list(&mut site, "late");
    let honest = list(&mut site, "honest");
    assert_eq!(site.dialled(), [lie]);
    assert_eq!(site.machine.trial(honest), Trial::Untried);
    site.machine.unlist(lie);
    site.fail(SlotSource::Host(lie), Prospect::Passing);
    assert_eq!(site.dialled(), [late]);
    // The next lie has the number of the first one.
    assert_eq!(list(&mut site, "lie.2"), lie);
    site.fail(SlotSource::Host(late), Prospect::Passing);
    assert_eq!(site.machine.trial(late), Trial::Failing);
    assert_eq!(site.dialled(), [honest]);
    site.serve(SlotSource::Host(honest), "honest", 1);
    assert_eq!(site.machine.trial(honest), Trial::Proven);
}
