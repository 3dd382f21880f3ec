//! Messages that follow the opening of their link at once.

use super::*;

/// Who has bound an encrypted startpoint, who owns it, and what carries bytes between them.
pub(super) struct Ends {
    pub(super) opener: Site,
    pub(super) owner: Site,
    pub(super) bound: BindingId,
}

/// A session that both ends have.
pub(super) struct Shared {
    pub(super) id: SessionId,
    pub(super) opener: Session,
    pub(super) owner: Session,
}

impl Ends {
    /// These handlers are called before there is a session.
    pub(super) fn calling(handlers: &[&str]) -> Self {
        let mut owner = Site::new();
        owner.machine = LinkMachine::new(OWN, PATIENCE);
        let machine = &mut owner.machine;
        machine
            .offer("coupler", Protection::Encrypted, [7; 16], [8; 32])
            .unwrap();
        for handler in ["flux", "note"] {
            machine.add_handler("coupler", handler).unwrap();
        }
        let node = ATMOSPHERE.identity().clone();
        let startpoint = machine.startpoint("coupler", node, Vec::new(), true, Vec::new());
        let mut opener = Site::new();
        opener.machine = LinkMachine::new(THEIRS, PATIENCE);
        let bound = opener.machine.bind(startpoint.unwrap());
        for handler in handlers {
            let contents = MessageContents::default();
            let asked = opener.machine.request(bound, handler, contents).unwrap();
            assert!(asked.1.is_none());
        }
        Self {
            opener,
            owner,
            bound,
        }
    }

    pub(super) fn meet(&mut self, secret: u8) -> Shared {
        let id = SessionId(u32::from(secret));
        let mut shared = Shared {
            id,
            opener: session(Side::Client, secret),
            owner: session(Side::Server, secret),
        };
        let peer = |process, dialled| SessionPeer {
            identity: Arc::new(ATMOSPHERE.clone()),
            process,
            same_host: false,
            dialled,
        };
        let policy = |_: &str| Protection::Plain;
        let (opener, owner) = (&mut self.opener, &mut self.owner);
        let happened = owner
            .machine
            .begin(id, &mut shared.owner, peer(THEIRS, false), &policy);
        owner.happened(happened);
        let happened = opener
            .machine
            .begin(id, &mut shared.opener, peer(OWN, true), &policy);
        opener.happened(happened);
        shared
    }

    /// What the opener has sent arrives.
    pub(super) fn forth(&mut self, shared: &mut Shared) {
        pass(&mut shared.opener, &mut shared.owner);
        hear(&mut self.owner, shared.id, &mut shared.owner);
    }

    /// What the owner has sent arrives.
    pub(super) fn back(&mut self, shared: &mut Shared) {
        pass(&mut shared.owner, &mut shared.opener);
        hear(&mut self.opener, shared.id, &mut shared.opener);
    }

    /// Every call that has come is answered in this session.
    pub(super) fn answer(&mut self, shared: &mut Shared) {
        for call in std::mem::take(&mut self.owner.calls) {
            let contents = MessageContents::default();
            let outgoing = self.owner.machine.answer(&call, contents, false).unwrap();
            shared.owner.send(outgoing.link, outgoing.message).unwrap();
            self.owner.machine.handled(&call);
        }
    }

    pub(super) fn lose(&mut self, shared: &Shared) {
        for site in [&mut self.opener, &mut self.owner] {
            site.lose_one(shared);
        }
    }
}

impl Site {
    fn lose_one(&mut self, shared: &Shared) {
        let ended = Ended::Session(SessionError::Truncated { records: 1 });
        let happened = self.machine.end(shared.id, &ended, Duration::ZERO);
        self.happened(happened);
    }
}

fn hear(site: &mut Site, id: SessionId, session: &mut Session) {
    while let Some(event) = session.poll_event() {
        let policy = |_: &str| Protection::Plain;
        let happened = site
            .machine
            .event(id, session, event, &policy, NOW, Duration::ZERO)
            .unwrap();
        site.happened(happened);
    }
}

pub(super) fn called(site: &Site) -> Vec<&str> {
    site.calls
        .iter()
        .map(|call| call.handler.as_str())
        .collect()
}

#[test]
fn first_requests_are_answered_in_one_round_trip() {
    let mut ends = Ends::calling(&["note", "flux", "note"]);
    let mut shared = ends.meet(1);
    ends.forth(&mut shared);
    assert_eq!(called(&ends.owner), ["note", "flux", "note"]);
    ends.answer(&mut shared);
    ends.back(&mut shared);
    let replies = |answer: &RequestAnswer| matches!(answer, RequestAnswer::Reply { .. });
    assert_eq!(ends.opener.answers.len(), 3);
    assert!(ends.opener.answers.iter().all(replies));
    // What is asked now has the indexes of the answer.
    let contents = MessageContents::default();
    let sent = ends.opener.machine.request(ends.bound, "note", contents);
    let outgoing = sent.unwrap().1.unwrap();
    assert_eq!(outgoing.message.handler, 1);
}

#[test]
fn what_is_asked_while_the_answer_is_under_way_comes_behind() {
    let mut ends = Ends::calling(&["note"]);
    let mut shared = ends.meet(1);
    let contents = MessageContents::default();
    let later = ends.opener.machine.request(ends.bound, "flux", contents);
    assert!(later.unwrap().1.is_none());
    ends.forth(&mut shared);
    ends.back(&mut shared);
    ends.forth(&mut shared);
    assert_eq!(called(&ends.owner), ["note", "flux"]);
}

#[test]
fn an_early_request_for_an_unknown_handler_is_told_and_costs_nobody_else_anything() {
    let mut ends = Ends::calling(&["note", "absent", "flux"]);
    let mut shared = ends.meet(1);
    ends.forth(&mut shared);
    assert_eq!(called(&ends.owner), ["note", "flux"]);
    ends.answer(&mut shared);
    ends.back(&mut shared);
    let unknown = ends.opener.answers.iter().filter(|answer| {
        let RequestAnswer::Lost(LinkError::NoHandler { handler, known, .. }) = answer else {
            return false;
        };
        handler == "absent" && known.len() == 2
    });
    assert_eq!((unknown.count(), ends.opener.answers.len()), (1, 3));
}

#[test]
fn no_request_is_early_on_a_link_that_the_owner_may_want_stricter() {
    let mut ends = Ends::calling(&[]);
    let mut maker = LinkMachine::new(OWN, PATIENCE);
    maker
        .offer("coupler", Protection::Integrity, [7; 16], [8; 32])
        .unwrap();
    let node = ATMOSPHERE.identity().clone();
    let caveats = vec![Caveat::holder("*").unwrap()];
    let startpoint = maker.startpoint("coupler", node, Vec::new(), false, caveats);
    let bound = ends.opener.machine.bind(startpoint.unwrap());
    let contents = MessageContents::default();
    ends.opener
        .machine
        .request(bound, "note", contents)
        .unwrap();
    let mut shared = ends.meet(1);
    ends.forth(&mut shared);
    assert!(ends.owner.calls.is_empty());
    ends.back(&mut shared);
    ends.forth(&mut shared);
    assert_eq!(called(&ends.owner), ["note"]);
}

#[test]
fn early_requests_whose_session_is_lost_are_handled_once() {
    let mut ends = Ends::calling(&["note", "flux"]);
    let mut shared = ends.meet(1);
    ends.forth(&mut shared);
    assert_eq!(called(&ends.owner), ["note", "flux"]);
    // The answer to the opening is lost, and with it whatever the handlers have to say.
    ends.lose(&shared);
    let contents = MessageContents::default();
    let later = ends.opener.machine.request(ends.bound, "flux", contents);
    assert!(later.unwrap().1.is_none());
    assert!(ends.opener.answers.is_empty(), "they go over");
    let mut shared = ends.meet(2);
    for _ in 0..2 {
        ends.forth(&mut shared);
        ends.back(&mut shared);
    }
    assert_eq!(called(&ends.owner), ["note", "flux", "flux"]);
    ends.answer(&mut shared);
    ends.back(&mut shared);
    assert_eq!(ends.opener.answers.len(), 3);
}

#[test]
fn early_requests_that_never_came_go_over_and_are_handled_once() {
    let mut ends = Ends::calling(&["note", "flux"]);
    let late = ends.meet(1);
    ends.lose(&late);
    // Nor does the next attempt arrive.
    let lost = ends.meet(2);
    ends.lose(&lost);
    let mut shared = ends.meet(3);
    for _ in 0..2 {
        ends.forth(&mut shared);
        ends.back(&mut shared);
    }
    assert_eq!(called(&ends.owner), ["note", "flux"]);
    // The link has its key: it goes over as any other.
    ends.lose(&shared);
    let mut shared = ends.meet(4);
    ends.forth(&mut shared);
    ends.back(&mut shared);
    ends.answer(&mut shared);
    ends.back(&mut shared);
    let replies = |answer: &&RequestAnswer| matches!(answer, RequestAnswer::Reply { .. });
    assert_eq!(ends.opener.answers.iter().filter(replies).count(), 2);
}

/// The session ends for its opener only: what it has sent there comes later, to a link that was opened anew in the next one.
#[test]
fn an_opening_that_comes_late_opens_nothing_again() {
    for is_let_go in [false, true] {
        let mut ends = Ends::calling(&["note"]);
        let mut late = ends.meet(1);
        ends.opener.lose_one(&late);
        let mut shared = ends.meet(2);
        for _ in 0..2 {
            ends.forth(&mut shared);
            ends.back(&mut shared);
        }
        assert_eq!(called(&ends.owner), ["note"]);
        if is_let_go {
            let accepted = ends.owner.calls[0].accepted;
            ends.owner.machine.end_link(accepted);
        }
        ends.forth(&mut late);
        assert_eq!(called(&ends.owner), ["note"], "it was handled already");
        let lines = ends.owner.lines.iter();
        let refused = lines.filter(|line| line.contains("or has had one"));
        assert_eq!(refused.count(), 1, "{:?}", ends.owner.lines);
    }
}

/// What has come once is not handled again because nobody remembers it any more.
#[test]
fn early_requests_that_came_and_were_forgotten_are_lost_with_their_link() {
    let mut ends = Ends::calling(&["note"]);
    let mut shared = ends.meet(1);
    ends.forth(&mut shared);
    assert_eq!(called(&ends.owner), ["note"]);
    ends.lose(&shared);
    let accepted = ends.owner.calls[0].accepted;
    ends.owner.machine.end_link(accepted);
    let mut shared = ends.meet(2);
    ends.forth(&mut shared);
    ends.back(&mut shared);
    assert_eq!(called(&ends.owner), ["note"]);
    let is_lost = matches!(ends.opener.answers[..], [RequestAnswer::Lost(_)]);
    assert!(is_lost, "{:?}", ends.opener.answers);
    // The next one opens the link anew.
    let contents = MessageContents::default();
    let machine = &mut ends.opener.machine;
    machine.request(ends.bound, "note", contents).unwrap();
    let policy = |_: &str| Protection::Plain;
    let happened = machine.attach(shared.id, &mut shared.opener, &policy);
    ends.opener.happened(happened);
    for _ in 0..2 {
        ends.forth(&mut shared);
        ends.back(&mut shared);
    }
    assert_eq!(called(&ends.owner), ["note", "note"]);
}

/// A link is opened anew for a session that is remembered: for as long as links wait, and not if the owner has left it for good.
#[test]
fn nothing_is_opened_anew_for_a_session_that_is_forgotten() {
    let broken = Ended::Session(SessionError::Truncated { records: 1 });
    let barred = Ended::Closed(CloseReason::NotAllowed("by a rule".into()));
    for (ended, age) in [(&broken, PATIENCE), (&barred, Duration::ZERO)] {
        let mut ends = Ends::calling(&["note"]);
        let shared = ends.meet(1);
        ends.opener.lose_one(&shared);
        let owner = &mut ends.owner.machine;
        owner.end(shared.id, ended, Duration::ZERO);
        owner.give_up(age);
        let mut shared = ends.meet(2);
        ends.forth(&mut shared);
        ends.back(&mut shared);
        assert!(ends.owner.calls.is_empty());
        let is_lost = matches!(ends.opener.answers[..], [RequestAnswer::Lost(_)]);
        assert!(is_lost, "{:?}", ends.opener.answers);
    }
}

/// Another process of the same certificate that claims the number has had no session in which the link was asked for.
#[test]
fn nobody_else_has_a_link_opened_anew() {
    let mut ends = Ends::calling(&["note"]);
    let late = ends.meet(1);
    ends.lose(&late);
    let mut thief = ends.owner.dialled_by(THEIRS, 9);
    let key = session(Side::Client, 8).resumption_key().clone();
    let right = &ends
        .opener
        .machine
        .startpoint_of(ends.bound)
        .unwrap()
        .clone();
    let link = thief
        .peer
        .request_early_link("coupler", Protection::Encrypted, &[], |link| {
            let binding = [0; 32];
            let life = resumed(&key, &binding, link.number(), 0);
            (right.right(&binding, link.number()).encode(), life)
        });
    link.unwrap();
    let events = ends.owner.settle(&mut thief);
    let refused = |event: &Event| matches!(event, Event::LinkRefused { .. });
    assert!(events.iter().any(refused), "{events:?}");
    // Its owner gets it all the same.
    let mut shared = ends.meet(2);
    for _ in 0..2 {
        ends.forth(&mut shared);
        ends.back(&mut shared);
    }
    assert_eq!(called(&ends.owner), ["note"]);
}

/// Who was dialled doesn't know whether who dialled has the session, as long as nothing comes: it may have taken another way meanwhile.
#[test]
fn nothing_goes_early_by_a_session_that_the_other_end_may_not_have() {
    let mut ends = Ends::calling(&["note"]);
    let policy = |_: &str| Protection::Plain;
    let mut opener = session(Side::Server, 1);
    let peer = SessionPeer {
        identity: Arc::new(ATMOSPHERE.clone()),
        process: OWN,
        same_host: false,
        dialled: false,
    };
    let machine = &mut ends.opener.machine;
    let happened = machine.begin(SessionId(1), &mut opener, peer, &policy);
    ends.opener.happened(happened);
    let broken = Ended::Session(SessionError::Truncated { records: 0 });
    let happened = ends
        .opener
        .machine
        .end(SessionId(1), &broken, Duration::ZERO);
    ends.opener.happened(happened);
    let mut shared = ends.meet(2);
    for _ in 0..2 {
        ends.forth(&mut shared);
        ends.back(&mut shared);
    }
    assert_eq!(called(&ends.owner), ["note"]);
    assert!(ends.opener.answers.is_empty());
}
