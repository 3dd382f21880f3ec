//! Handlers that are added to an endpoint after links to it are open.

use super::early::{Ends, called};
use super::*;

/// The link of the opener is asked for again, as whoever drives its machine does.
fn attach(ends: &mut Ends, shared: &mut early::Shared) {
    let policy = |_: &str| Protection::Plain;
    let machine = &mut ends.opener.machine;
    let happened = machine.attach(shared.id, &mut shared.opener, &policy);
    ends.opener.happened(happened);
}

/// An open link, by which one request has come that is not answered yet.
fn open() -> (Ends, early::Shared) {
    let mut ends = Ends::calling(&["note"]);
    let mut shared = ends.meet(1);
    ends.forth(&mut shared);
    ends.back(&mut shared);
    assert_eq!(called(&ends.owner), ["note"]);
    (ends, shared)
}

fn ask(ends: &mut Ends, handler: &str) -> Option<exoskel_node::links::OutgoingMessage> {
    let contents = MessageContents::default();
    let machine = &mut ends.opener.machine;
    machine.request(ends.bound, handler, contents).unwrap().1
}

fn replies(ends: &Ends) -> usize {
    let is_reply = |answer: &&RequestAnswer| matches!(answer, RequestAnswer::Reply { .. });
    ends.opener.answers.iter().filter(is_reply).count()
}

#[test]
fn a_handler_that_is_added_later_is_called_by_an_open_link() {
    let (mut ends, mut shared) = open();
    let (id, machine) = (shared.id, &mut ends.owner.machine);
    machine.add_handler("coupler", "added").unwrap();
    let before = ends.opener.machine.session_of(ends.bound);
    for handler in ["added", "note", "added"] {
        assert_eq!(ask(&mut ends, handler), None);
    }
    attach(&mut ends, &mut shared);
    assert_ne!(ends.opener.machine.session_of(ends.bound), before);
    // What waits in the owner's program is answered by the link as it is now.
    for _ in 0..3 {
        ends.forth(&mut shared);
        ends.back(&mut shared);
    }
    assert_eq!(called(&ends.owner), ["note", "added", "note", "added"]);
    ends.answer(&mut shared);
    ends.back(&mut shared);
    assert_eq!((replies(&ends), ends.opener.answers.len()), (4, 4));
    // The next one goes at once, and the link is asked for no more.
    let outgoing = ask(&mut ends, "added").unwrap();
    assert_eq!((outgoing.session, outgoing.message.handler), (id, 2));
    assert_eq!(ends.owner.machine.open_links().len(), 1);
}

#[test]
fn whoever_asks_for_what_is_not_there_hears_it_and_loses_nothing_else() {
    let (mut ends, mut shared) = open();
    assert_eq!(ask(&mut ends, "absent"), None);
    assert_eq!(ask(&mut ends, "flux"), None);
    attach(&mut ends, &mut shared);
    for _ in 0..3 {
        ends.forth(&mut shared);
        ends.back(&mut shared);
    }
    ends.answer(&mut shared);
    ends.back(&mut shared);
    let is_unknown = |answer: &&RequestAnswer| matches!(answer, RequestAnswer::Lost(LinkError::NoHandler { handler, .. }) if handler == "absent");
    let unknown = ends.opener.answers.iter().filter(is_unknown).count();
    assert_eq!((unknown, replies(&ends)), (1, 2));
}

#[test]
fn what_waits_for_an_added_handler_goes_over_the_next_session() {
    let (mut ends, mut shared) = open();
    ends.answer(&mut shared);
    let machine = &mut ends.owner.machine;
    machine.add_handler("coupler", "added").unwrap();
    assert_eq!(ask(&mut ends, "added"), None);
    // Once before the link is asked for again, and once before the answer.
    for secret in [2, 3] {
        ends.lose(&shared);
        shared = ends.meet(secret);
    }
    for _ in 0..3 {
        ends.forth(&mut shared);
        ends.back(&mut shared);
    }
    assert_eq!(called(&ends.owner), ["added"]);
    ends.answer(&mut shared);
    ends.back(&mut shared);
    assert_eq!((replies(&ends), ends.opener.answers.len()), (2, 2));
}
