//! Nodes that are dialled in vain.

use super::*;

/// Two startpoints of one process say different addresses, and the first one asked for leads nowhere.
#[test]
fn a_startpoint_is_tried_at_its_own_address() {
    let (mut site, startpoint) = opener();
    let at = |hint: &str| {
        startpoint
            .clone()
            .with_hints(vec![hint.to_owned()])
            .unwrap()
    };
    let first = site.machine.bind(at("tcp://nowhere:1"));
    let contents = MessageContents::default;
    site.machine.request(first, "note", contents()).unwrap();
    let wants = site.machine.take_wants(Duration::ZERO);
    let second = site.machine.bind(at("tcp://ocean:2"));
    site.machine.request(second, "note", contents()).unwrap();
    assert!(
        site.machine.take_wants(Duration::ZERO).is_empty(),
        "the process is being dialled"
    );
    let mut attempts = FailedAttempts::default();
    attempts.add("tcp://nowhere:1", "refused".to_owned(), Hindrance::Way);
    let lost = site
        .machine
        .unreachable(&wants[0], &attempts, Duration::ZERO);
    let [Happening::Answered(..), Happening::Audit(line)] = &lost[..] else {
        panic!("{lost:?}");
    };
    assert!(line.contains("tcp://nowhere:1: refused"), "{line}");
    let wants = site.machine.take_wants(Duration::ZERO);
    assert_eq!(wants[0].hints, ["tcp://ocean:2"]);
}

#[test]
fn a_node_without_an_address_is_told_as_that() {
    let (mut site, startpoint) = opener();
    let startpoint = startpoint.with_hints(Vec::new()).unwrap();
    let bound = site.machine.bind(startpoint);
    let contents = MessageContents::default();
    site.machine.request(bound, "note", contents).unwrap();
    let wants = site.machine.take_wants(Duration::ZERO);
    let attempts = FailedAttempts::default();
    let lost = site
        .machine
        .unreachable(&wants[0], &attempts, Duration::ZERO);
    let [Happening::Answered(_, answer), Happening::Audit(_)] = &lost[..] else {
        panic!("{lost:?}");
    };
    let error = RequestAnswer::Lost(LinkError::NoAddress(wants[0].peer.node.clone()));
    assert_eq!(*answer, error);
}

/// Somebody whom we have dialled, and what that came to.
fn dialled(site: &mut Site, secret: u8) -> (Conversation, Vec<Happening>) {
    let mut conversation = Conversation {
        id: SessionId(site.sessions),
        own: session(Side::Client, secret),
        peer: session(Side::Server, secret),
    };
    site.sessions += 1;
    let peer = SessionPeer {
        identity: Arc::new(ATMOSPHERE.clone()),
        process: OWN,
        same_host: false,
        dialled: true,
    };
    let (id, own) = (conversation.id, &mut conversation.own);
    let happened = site.machine.begin(id, own, peer, &|_| Protection::Plain);
    (conversation, happened)
}

/// Who is found at another place of the same process uses the session that there is.
#[test]
fn a_process_that_is_dialled_at_two_places_keeps_one_session() {
    let (mut site, startpoint) = opener();
    let at = |hint: &str| {
        startpoint
            .clone()
            .with_hints(vec![hint.to_owned()])
            .unwrap()
    };
    let first = site.machine.bind(at("tcp://ocean:1"));
    let contents = MessageContents::default;
    site.machine.request(first, "note", contents()).unwrap();
    assert_eq!(site.machine.take_wants(Duration::ZERO).len(), 1);
    let (one, happened) = dialled(&mut site, 40);
    assert!(happened.is_empty(), "{happened:?}");
    // The same place, written otherwise, and one that may be another process's.
    for (hint, is_new) in [("Ocean:1", false), ("tcp://sea:1", true)] {
        let by_hint = site.machine.bind_by_hints(at(hint));
        site.machine.request(by_hint, "note", contents()).unwrap();
        assert_eq!(
            site.machine.take_wants(Duration::ZERO).len(),
            usize::from(is_new),
            "{hint}"
        );
    }
    let (other, happened) = dialled(&mut site, 41);
    assert!(
        matches!(happened[..], [Happening::Close(id)] if id == other.id),
        "{happened:?}"
    );
    let wanted = WantedProcess {
        node: ATMOSPHERE.identity().clone(),
        process: Some(OWN),
    };
    assert_eq!(site.machine.session_to(&wanted), Some(one.id));
    assert!(site.machine.take_wants(Duration::ZERO).is_empty());
}

/// What is told while a link waits for its way, and when its program ends.
#[test]
fn a_link_that_waits_says_what_was_tried() {
    let (mut site, startpoint) = opener();
    let bound = site.machine.bind(startpoint);
    assert_eq!(site.machine.trouble_of(bound, Duration::ZERO), None);
    site.machine
        .post(bound, "note", MessageContents::default())
        .unwrap();
    let trouble = |site: &Site, seconds| {
        let now = Duration::from_secs(seconds);
        site.machine.trouble_of(bound, now).unwrap()
    };
    assert_eq!(trouble(&site, 0), "there is no session yet");
    let wants = site.machine.take_wants(Duration::ZERO);
    let mut attempts = FailedAttempts::default();
    site.machine
        .trying(&wants[0], "tcp://127.0.0.1:1", &attempts);
    assert_eq!(trouble(&site, 0), "no answer from tcp://127.0.0.1:1 so far");
    let (mut conversation, _) = dialled(&mut site, 42);
    let asked = "the other end has not said yet whether it opens the link";
    assert_eq!(trouble(&site, 0), asked);
    let link = site
        .settle(&mut conversation)
        .into_iter()
        .find_map(|event| match event {
            Event::LinkAsked { link, .. } => Some(link),
            _ => None,
        })
        .unwrap();
    let handlers = vec!["note".to_owned()];
    let accepted = conversation.peer.accept_lasting_link(
        link,
        handlers,
        Protection::Encrypted,
        Resumption::default(),
    );
    accepted.unwrap();
    site.settle(&mut conversation);
    assert_eq!(site.machine.trouble_of(bound, Duration::ZERO), None);
    site.lose(&conversation);
    assert!(
        site.lines
            .iter()
            .any(|line| line.starts_with("lost the way to ")),
        "{:?}",
        site.lines
    );

    let wants = site.machine.take_wants(Duration::from_secs(5));
    attempts.add("tcp://127.0.0.1:1", "refused".to_owned(), Hindrance::Way);
    attempts.add("tcp://127.0.0.1:2", "refused".to_owned(), Hindrance::Way);
    let fail = |site: &mut Site, wants: &[Want]| {
        site.machine
            .unreachable(&wants[0], &attempts, Duration::from_secs(5))
    };
    let told = "tcp://127.0.0.1:1, tcp://127.0.0.1:2: refused";
    let news = fail(&mut site, &wants);
    assert!(
        matches!(&news[..], [Happening::Audit(line)] if line.ends_with(told)),
        "{news:?}"
    );
    let text = trouble(&site, 7);
    assert!(
        text.starts_with("the connection was lost 7 s ago: "),
        "{text}"
    );
    assert!(text.ends_with(&format!("; tried {told}")), "{text}");
    let troubled = site.machine.troubled_links(Duration::from_secs(7));
    assert_eq!(troubled[0].why, text);
    // The same again is no news.
    let wants = site.machine.take_wants(Duration::from_secs(20));
    assert!(fail(&mut site, &wants).is_empty());

    // The program ends: who can't be reached at once isn't waited for.
    site.machine.unbind(bound);
    assert!(site.machine.is_delivering());
    site.machine.hurry(Duration::from_secs(20));
    let wants = site.machine.take_wants(Duration::from_secs(20));
    assert_eq!(wants.len(), 1, "it is dialled at once");
    fail(&mut site, &wants);
    assert!(!site.machine.is_delivering());
    let lost = site.machine.abandon(Duration::from_secs(20));
    assert!(lost[0].to_string().contains(told), "{lost:?}");
}
