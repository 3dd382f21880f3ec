//! Bindings that are closed before anybody knows whether their posts have arrived.

use super::*;

/// A session in which the other end accepts the link that is asked for.
fn accepted(
    site: &mut Site,
    secret: u8,
    resumption: Resumption,
) -> (Conversation, LinkLife, Vec<Event>) {
    let mut conversation = site.dialled_by(OWN, secret);
    let asked = site.settle(&mut conversation);
    let [Event::LinkAsked { link, life, .. }] = asked[..] else {
        panic!("{asked:?}");
    };
    let handlers = vec!["note".to_owned()];
    let peer = &mut conversation.peer;
    let accepted = peer.accept_lasting_link(link, handlers, Protection::Encrypted, resumption);
    accepted.unwrap();
    let events = site.settle(&mut conversation);
    (conversation, life, events)
}

fn has_received(received: u64) -> Resumption {
    Resumption {
        received,
        withheld: 0,
    }
}

fn messages(events: &[Event]) -> usize {
    let is_message = |event: &&Event| matches!(event, Event::Message { .. });
    events.iter().filter(is_message).count()
}

impl Site {
    /// A binding whose link is open, and one post has come by it.
    fn with_a_post(&mut self, startpoint: Startpoint, secret: u8) -> (BindingId, Conversation) {
        let bound = self.machine.bind(startpoint);
        let contents = MessageContents::default();
        assert!(
            self.machine
                .post(bound, "note", contents)
                .unwrap()
                .is_none()
        );
        let (conversation, _, events) = accepted(self, secret, Resumption::default());
        assert_eq!(messages(&events), 1);
        (bound, conversation)
    }

    /// Posts, and closes the binding: nothing of that leaves before bytes are passed on.
    fn post_and_close(&mut self, bound: BindingId, posts: usize, conversation: &mut Conversation) {
        for _ in 0..posts {
            let contents = MessageContents::default();
            let outgoing = self.machine.post(bound, "note", contents).unwrap().unwrap();
            let own = &mut conversation.own;
            own.send(outgoing.link, outgoing.message).unwrap();
        }
        let (place, happened) = self.machine.unbind(bound);
        assert!(happened.is_empty(), "{happened:?}");
        let (id, link) = place.unwrap();
        assert_eq!(id, conversation.id);
        conversation.own.close_link(link).unwrap();
    }

    /// What is told of lost posts, in the log and to whoever closes the node.
    fn told(&mut self) -> (Vec<String>, Vec<LinkError>) {
        let lines = std::mem::take(&mut self.lines).into_iter();
        let lines = lines.filter(|line| line.contains("may be lost")).collect();
        (lines, self.machine.abandon(Duration::ZERO))
    }
}

#[test]
fn posts_of_an_open_binding_that_is_closed_go_over_every_cut() {
    let (mut site, startpoint) = opener();
    let (bound, mut conversation) = site.with_a_post(startpoint, 30);
    site.post_and_close(bound, 5, &mut conversation);
    assert!(site.machine.is_delivering());
    // Nothing of it has left.
    site.lose(&conversation);
    assert!(site.machine.is_delivering());
    let after = site.machine.post(bound, "note", MessageContents::default());
    assert_eq!(after, Err(LinkError::Closed));

    // All of it arrives now, and its way is lost again before the other end can say so.
    let mut conversation = site.dialled_by(OWN, 31);
    let asked = site.settle(&mut conversation);
    let [Event::LinkAsked { link, life, .. }] = asked[..] else {
        panic!("{asked:?}");
    };
    assert!(
        matches!(life, LinkLife::Resumed { attempt: 1, .. }),
        "{life:?}"
    );
    let (handlers, peer) = (vec!["note".to_owned()], &mut conversation.peer);
    peer.accept_lasting_link(link, handlers, Protection::Encrypted, has_received(1))
        .unwrap();
    pass(&mut conversation.peer, &mut conversation.own);
    while let Some(event) = conversation.own.poll_event() {
        let (id, own) = (conversation.id, &mut conversation.own);
        let policy = |_: &str| Protection::Plain;
        let happened = site
            .machine
            .event(id, own, event, &policy, NOW, Duration::ZERO);
        site.happened(happened.unwrap());
    }
    pass(&mut conversation.own, &mut conversation.peer);
    let events: Vec<_> = std::iter::from_fn(|| conversation.peer.poll_event()).collect();
    assert_eq!(messages(&events), 5);
    assert!(matches!(events.last(), Some(Event::LinkClosed { .. })));
    assert!(site.machine.is_delivering(), "nobody has confirmed it");
    site.lose(&conversation);

    let (_, life, events) = accepted(&mut site, 32, has_received(6));
    assert!(
        matches!(life, LinkLife::Resumed { attempt: 2, .. }),
        "{life:?}"
    );
    assert_eq!(messages(&events), 0, "all has come");
    assert!(!site.machine.is_delivering());
    assert_eq!(site.machine.bindings().count(), 0);
    assert_eq!(site.told(), (Vec::new(), Vec::new()));
}

#[test]
fn nothing_is_lost_when_the_end_of_the_link_is_confirmed() {
    let (mut site, startpoint) = opener();
    let (bound, mut conversation) = site.with_a_post(startpoint, 30);
    site.post_and_close(bound, 5, &mut conversation);
    // Once is enough.
    assert_eq!(site.machine.unbind(bound).0, None);
    let events = site.settle(&mut conversation);
    assert_eq!(messages(&events), 5);
    assert_eq!(site.machine.bindings().count(), 0);
    site.lose(&conversation);
    assert_eq!(site.told(), (Vec::new(), Vec::new()));
    assert_eq!(site.machine.next_timeout(), None);
}

/// What nobody can deliver is in the log, and whoever closes the node hears it.
#[test]
fn posts_of_an_open_binding_that_is_closed_are_told_when_they_are_lost() {
    let told = |end: &dyn Fn(&mut Site, &Conversation) -> Vec<Happening>| {
        let (mut site, startpoint) = opener();
        let (bound, mut conversation) = site.with_a_post(startpoint, 30);
        site.post_and_close(bound, 2, &mut conversation);
        let happened = end(&mut site, &conversation);
        site.happened(happened);
        let (lines, errors) = site.told();
        assert_eq!(site.machine.bindings().count(), 0);
        let [error @ LinkError::ClosedPostsLost { posts: 3, .. }] = &errors[..] else {
            panic!("{errors:?}");
        };
        let text = error.to_string();
        (lines, text)
    };
    // Patience ends.
    let (lines, text) = told(&|site, conversation| {
        site.lose(conversation);
        site.machine.give_up(PATIENCE)
    });
    assert_eq!(lines, [text]);
    // The other end ends in order, and has not said that all has come.
    let (lines, text) = told(&|site, conversation| {
        let ended = Ended::Closed(CloseReason::ShuttingDown);
        site.machine.end(conversation.id, &ended, Duration::ZERO)
    });
    assert_eq!(lines, [text]);
    // The node is closed before. Who asks writes it down.
    let (lines, text) = told(&|_, _| Vec::new());
    assert_eq!(lines, [""; 0]);
    assert!(text.contains("had not confirmed their arrival"), "{text}");
}

/// The end of a link may be confirmed in a session, and its number in use again, before the machine has read that.
#[test]
fn a_confirmed_end_takes_nothing_from_the_next_link_of_its_number() {
    let (mut site, startpoint) = opener();
    let (bound, mut conversation) = site.with_a_post(startpoint.clone(), 30);
    let (_, ended) = site.machine.session_of(bound).unwrap();
    site.post_and_close(bound, 1, &mut conversation);
    pass(&mut conversation.own, &mut conversation.peer);
    while conversation.peer.poll_event().is_some() {}
    pass(&mut conversation.peer, &mut conversation.own);
    let second = site.machine.bind(startpoint);
    let contents = MessageContents::default;
    site.machine.post(second, "note", contents()).unwrap();
    let (id, own) = (conversation.id, &mut conversation.own);
    let happened = site.machine.attach(id, own, &|_| Protection::Plain);
    site.happened(happened);
    assert_eq!(site.machine.session_of(second), Some((id, ended)));
    assert_eq!(site.machine.bindings().collect::<Vec<_>>(), [second]);
    // Its owner closes it before it is open.
    assert_eq!(site.machine.unbind(second).0, None);
    let events = site.settle(&mut conversation);
    let [Event::LinkAsked { link, .. }] = events[..] else {
        panic!("{events:?}");
    };
    let (handlers, peer) = (vec!["note".to_owned()], &mut conversation.peer);
    let resumption = Resumption::default();
    peer.accept_lasting_link(link, handlers, Protection::Encrypted, resumption)
        .unwrap();
    assert_eq!(messages(&site.settle(&mut conversation)), 1);
    assert!(!site.machine.is_delivering());
    assert_eq!(site.told(), (Vec::new(), Vec::new()));
}

impl Site {
    /// A link by which two posts have come, and that its opener has closed.
    fn with_a_closed_link(&mut self) -> (Conversation, ResumptionKey) {
        let mut first = self.dialled_by(THEIRS, 10);
        let opened = self.open(&mut first, |_, _| LinkLife::Lasting { name: 5 });
        let (link, _) = opened.unwrap();
        for _ in 0..2 {
            first.peer.send(link, post(b"news")).unwrap();
        }
        first.peer.close_link(link).unwrap();
        self.settle(&mut first);
        assert_eq!(self.calls.len(), 2);
        let key = first.peer.resumption_key().clone();
        (first, key)
    }
}

/// Who closes a link, and doesn't hear that its end has come, hears it in the next session: nothing is said to be lost, or sent again.
#[test]
fn who_resumes_a_link_that_it_has_closed_hears_that_all_has_come() {
    let mut site = Site::new();
    let (first, key) = site.with_a_closed_link();
    let mut second = site.dialled_by(THEIRS, 11);
    // It may know that its session is lost before we do; and the word may be lost once more.
    let (_, said) = site
        .open(&mut second, |binding, link| resumed(&key, binding, link, 0))
        .unwrap();
    assert_eq!(said, Some(has_received(2)));
    site.lose(&first);
    site.lose(&second);
    let mut third = site.dialled_by(THEIRS, 12);
    let again = site.open(&mut third, |binding, link| resumed(&key, binding, link, 0));
    assert!(matches!(again, Err(LinkRefusal::Ended(_))), "{again:?}");
    let honest = |binding: &[u8; 32], link| resumed_again(&key, binding, link, (2, 0));
    let (link, said) = site.open(&mut third, honest).unwrap();
    assert_eq!(said, Some(has_received(2)));
    // It is closed: what comes by it reaches nobody, and its end ends nothing else.
    third.peer.send(link, post(b"more")).unwrap();
    third.peer.close_link(link).unwrap();
    site.settle(&mut third);
    assert_eq!(site.calls.len(), 2);
    assert!(!third.own.is_ending());
}

#[test]
fn a_closed_link_is_nobody_elses_and_is_forgotten() {
    let mut site = Site::new();
    let (first, key) = site.with_a_closed_link();
    site.lose(&first);
    let honest = |binding: &[u8; 32], link| resumed(&key, binding, link, 0);
    let mut sibling = site.dialled_by(SIBLINGS, 11);
    assert!(site.open(&mut sibling, honest).is_err());
    let mut liar = site.dialled_by(THEIRS, 12);
    let own_key = liar.peer.resumption_key().clone();
    let stolen = site.open(&mut liar, |binding, link| {
        resumed(&own_key, binding, link, 0)
    });
    assert!(stolen.is_err());
    site.machine.give_up(PATIENCE);
    let mut late = site.dialled_by(THEIRS, 13);
    assert!(site.open(&mut late, honest).is_err());

    // Who has ended in order resumes nothing.
    let mut site = Site::new();
    let (first, key) = site.with_a_closed_link();
    let ended = Ended::Closed(CloseReason::ShuttingDown);
    site.machine.end(first.id, &ended, Duration::ZERO);
    let mut second = site.dialled_by(THEIRS, 11);
    let honest = |binding: &[u8; 32], link| resumed(&key, binding, link, 0);
    assert!(site.open(&mut second, honest).is_err());
}
