//! Links that go over to another session, and what an attacker who wants one of them gets.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod attempts;
mod bounds;
mod closed;
mod early;
mod handlers;

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use bytes::Bytes;
use exoskel_identity::{
    Expected, Identity, PeerVerifier, PrivateAuthority, Role, VerifiedIdentity,
};
use exoskel_link::capability::{Caveat, NewStartpoint, RootKey, Startpoint};
use exoskel_link::handshake::ProcessNumber;
use exoskel_link::keys::KeyStore;
use exoskel_link::policy::Policy;
use exoskel_link::{
    CloseReason, Ended, Event, LinkId, LinkLife, LinkRefusal, Message, MessageKind, Protection,
    Resumption, ResumptionKey, Session, SessionConfig, SessionError, SessionSecret, Side,
};
use exoskel_node::SessionId;
use exoskel_node::links::{
    BindingId, FailedAttempts, Happening, Hindrance, LOOKUP_ENDPOINT, LOOKUP_HANDLER, LinkCall,
    LinkError, LinkMachine, MessageContents, RequestAnswer, SessionPeer, StreamMessage, Want,
    WantedProcess,
};
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    KeyUsagePurpose, SanType, date_time_ymd,
};
use rustls_pki_types::UnixTime;

const NOW: u64 = 1_800_000_000;
const PATIENCE: Duration = Duration::from_secs(60);
const OWN: ProcessNumber = ProcessNumber::new([1; 16]);
const THEIRS: ProcessNumber = ProcessNumber::new([2; 16]);
const SIBLINGS: ProcessNumber = ProcessNumber::new([3; 16]);

static ATMOSPHERE: LazyLock<VerifiedIdentity> = LazyLock::new(|| named("atmosphere.example.org"));

fn named(name: &str) -> VerifiedIdentity {
    let valid = || {
        let mut parameters = CertificateParams::default();
        let epoch = date_time_ymd(1970, 1, 1);
        parameters.not_before = epoch + Duration::from_secs(NOW - 86_400);
        parameters.not_after = epoch + Duration::from_secs(NOW + 86_400);
        parameters
    };
    let mut parameters = valid();
    parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    parameters.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    let issuer = CertifiedIssuer::self_signed(parameters, KeyPair::generate().unwrap()).unwrap();
    let verifier = PrivateAuthority::new(&[issuer.der().clone()], &[], 1).unwrap();
    let mut parameters = valid();
    parameters.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    parameters.extended_key_usages = vec![
        ExtendedKeyUsagePurpose::ClientAuth,
        ExtendedKeyUsagePurpose::ServerAuth,
    ];
    parameters.subject_alt_names = Identity::new(Role::Peer, name)
        .unwrap()
        .to_uris()
        .map(|uri| SanType::URI(uri.try_into().unwrap()))
        .to_vec();
    let leaf = parameters
        .signed_by(&KeyPair::generate().unwrap(), &issuer)
        .unwrap();
    let expected = Expected {
        roles: &Role::ALL,
        name: None,
    };
    let now = UnixTime::since_unix_epoch(Duration::from_secs(NOW));
    let chain = [leaf.der().clone()];
    verifier.verify(&chain, now, &expected).unwrap()
}

fn session(side: Side, secret: u8) -> Session {
    let mut config = SessionConfig::new(side);
    config.asks = true;
    Session::new(
        config,
        SessionSecret::from_bytes(&[secret; 32]),
        &KeyStore::in_ordinary_memory(2),
        Duration::ZERO,
    )
}

/// Moves bytes from one end to the other.
fn pass(from: &mut Session, to: &mut Session) {
    loop {
        from.prepare(Duration::ZERO).unwrap();
        let bytes: Vec<u8> = from.outgoing().flatten().copied().collect();
        if bytes.is_empty() {
            return;
        }
        from.sent(bytes.len());
        let mut left = &bytes[..];
        while !left.is_empty() {
            let buffer = to.receive_buffer();
            let count = buffer.len().min(left.len());
            buffer[..count].copy_from_slice(&left[..count]);
            to.received(count, Duration::ZERO).unwrap();
            left = &left[count..];
        }
    }
}

/// A machine with an endpoint, and whoever is at the other end of its sessions.
struct Site {
    machine: LinkMachine,
    startpoint: Startpoint,
    sessions: u32,
    calls: Vec<LinkCall>,
    answers: Vec<RequestAnswer>,
    lines: Vec<String>,
}

struct Conversation {
    id: SessionId,
    own: Session,
    peer: Session,
}

impl Site {
    fn new() -> Self {
        let mut machine = LinkMachine::new(OWN, PATIENCE);
        machine
            .offer("coupler", Protection::Plain, [7; 16], [8; 32])
            .unwrap();
        machine.add_handler("coupler", "note").unwrap();
        let node = Identity::new(Role::Peer, "ocean.example.org").unwrap();
        let caveats = vec![Caveat::holder("*.example.org").unwrap()];
        let startpoint = machine
            .startpoint("coupler", node, Vec::new(), false, caveats)
            .unwrap();
        Self {
            machine,
            startpoint,
            sessions: 0,
            calls: Vec::new(),
            answers: Vec::new(),
            lines: Vec::new(),
        }
    }

    /// Somebody who has dialled us, with this secret and this process number.
    fn dialled_by(&mut self, process: ProcessNumber, secret: u8) -> Conversation {
        let mut conversation = Conversation {
            id: SessionId(self.sessions),
            own: session(Side::Server, secret),
            peer: session(Side::Client, secret),
        };
        self.sessions += 1;
        let peer = SessionPeer {
            identity: Arc::new(ATMOSPHERE.clone()),
            process,
            same_host: false,
            dialled: false,
        };
        let (id, own) = (conversation.id, &mut conversation.own);
        let happened = self.machine.begin(id, own, peer, &|_| Protection::Plain);
        self.happened(happened);
        conversation
    }

    fn happened(&mut self, happened: Vec<Happening>) {
        for one in happened {
            match one {
                Happening::Call(call) => self.calls.push(call),
                Happening::Answered(_, answer) => self.answers.push(answer),
                Happening::Audit(line) | Happening::Warning(line) => self.lines.push(line),
                Happening::LinkClosed(..) | Happening::LinkOver(..) | Happening::Close(_) => {}
            }
        }
    }

    /// Bytes go both ways; gives what the other end hears.
    fn settle(&mut self, conversation: &mut Conversation) -> Vec<Event> {
        for _ in 0..4 {
            pass(&mut conversation.peer, &mut conversation.own);
            while let Some(event) = conversation.own.poll_event() {
                let (id, own) = (conversation.id, &mut conversation.own);
                let policy = |_: &str| Protection::Plain;
                let happened = self
                    .machine
                    .event(id, own, event, &policy, NOW, Duration::ZERO)
                    .unwrap();
                self.happened(happened);
            }
            pass(&mut conversation.own, &mut conversation.peer);
        }
        std::iter::from_fn(|| conversation.peer.poll_event()).collect()
    }

    fn lose(&mut self, conversation: &Conversation) {
        let ended = Ended::Session(SessionError::Truncated { records: 1 });
        let happened = self.machine.end(conversation.id, &ended, Duration::ZERO);
        self.happened(happened);
    }

    /// Opens a link in a session, or resumes one.
    fn open(
        &mut self,
        conversation: &mut Conversation,
        life: impl FnOnce(&[u8; 32], u32) -> LinkLife,
    ) -> Result<(LinkId, Option<Resumption>), LinkRefusal> {
        let binding = *conversation.peer.binding();
        let startpoint = self.startpoint.clone();
        let link = conversation
            .peer
            .request_lasting_link("coupler", Protection::Encrypted, |link| {
                let right = startpoint.right(&binding, link.number()).encode();
                (right, life(&binding, link.number()))
            })
            .unwrap();
        for event in self.settle(conversation) {
            match event {
                Event::LinkAccepted { resumption, .. } => return Ok((link, resumption)),
                Event::LinkRefused { reason, .. } => return Err(reason),
                _ => {}
            }
        }
        panic!("no answer: {:?}", self.lines);
    }

    /// A link by which two posts have come, in a session that is lost.
    fn with_a_lost_link(&mut self) -> ResumptionKey {
        let mut first = self.dialled_by(THEIRS, 10);
        let opened = self.open(&mut first, |_, _| LinkLife::Lasting { name: 5 });
        let (link, resumption) = opened.unwrap();
        assert_eq!(resumption, Some(Resumption::default()));
        for _ in 0..2 {
            first.peer.send(link, post(b"news")).unwrap();
        }
        self.settle(&mut first);
        assert_eq!(self.calls.len(), 2);
        self.lose(&first);
        first.peer.resumption_key().clone()
    }
}

fn post(head: &'static [u8]) -> Message {
    Message {
        handler: 0,
        kind: MessageKind::Post,
        head: Bytes::from_static(head),
        bulk: Vec::new(),
        is_gathered: false,
    }
}

fn resumed(key: &ResumptionKey, binding: &[u8; 32], link: u32, received: u64) -> LinkLife {
    resumed_again(key, binding, link, (1, received))
}

fn resumed_again(
    key: &ResumptionKey,
    binding: &[u8; 32],
    link: u32,
    (attempt, received): (u64, u64),
) -> LinkLife {
    LinkLife::Resumed {
        name: 5,
        attempt,
        received,
        proof: key.prove(binding, link, 5, attempt, received),
    }
}

#[test]
fn a_link_is_resumed_with_what_has_come_and_what_is_not_handled_yet() {
    let mut site = Site::new();
    let key = site.with_a_lost_link();
    let mut second = site.dialled_by(THEIRS, 11);
    let (link, resumption) = site
        .open(&mut second, |binding, link| resumed(&key, binding, link, 0))
        .unwrap();
    let withheld = 2 * post(b"news").size();
    let expected = Resumption {
        received: 2,
        withheld,
    };
    assert_eq!(resumption, Some(expected));
    second.peer.send(link, post(b"more")).unwrap();
    site.settle(&mut second);
    assert_eq!(site.calls.len(), 3);
    let accepted = site.calls[0].accepted;
    assert!(site.calls.iter().all(|call| call.accepted == accepted));
    let place = site.machine.handled(&site.calls[0].clone());
    assert_eq!(place, Some((second.id, link)));
}

#[test]
fn a_resumption_that_is_shown_again_opens_nothing() {
    let mut site = Site::new();
    let key = site.with_a_lost_link();
    let mut second = site.dialled_by(THEIRS, 11);
    let mut seen = None;
    let opened = site.open(&mut second, |binding, link| {
        let life = resumed(&key, binding, link, 0);
        seen = Some(life);
        life
    });
    assert!(opened.is_ok());
    // On another link of this session, and in the next one.
    let again = site.open(&mut second, |_, _| seen.unwrap());
    assert!(
        matches!(again, Err(LinkRefusal::NotAllowed(_))),
        "{again:?}"
    );
    site.lose(&second);
    let mut third = site.dialled_by(THEIRS, 12);
    let again = site.open(&mut third, |_, _| seen.unwrap());
    assert!(
        matches!(again, Err(LinkRefusal::NotAllowed(_))),
        "{again:?}"
    );
    // The link is still its opener's.
    let honest = |binding: &[u8; 32], link| resumed_again(&key, binding, link, (2, 0));
    assert!(site.open(&mut third, honest).is_ok());
}

#[test]
fn another_process_of_the_same_name_gets_nobodys_link() {
    let mut site = Site::new();
    let key = site.with_a_lost_link();
    let mut sibling = site.dialled_by(SIBLINGS, 11);
    // Even with the key, which it hasn't.
    let stolen = site.open(&mut sibling, |binding, link| {
        resumed(&key, binding, link, 0)
    });
    assert!(matches!(stolen, Err(LinkRefusal::Ended(_))), "{stolen:?}");
    // As the process that it isn't.
    let mut liar = site.dialled_by(THEIRS, 12);
    let own_key = liar.peer.resumption_key().clone();
    let stolen = site.open(&mut liar, |binding, link| {
        resumed(&own_key, binding, link, 0)
    });
    assert!(
        matches!(&stolen, Err(LinkRefusal::NotAllowed(_))),
        "{stolen:?}"
    );
    // Nor does it get one of the same name opened.
    let second = site.open(&mut liar, |_, _| LinkLife::Lasting { name: 5 });
    assert!(second.is_err());
    let mut owner = site.dialled_by(THEIRS, 13);
    let honest = |binding: &[u8; 32], link| resumed(&key, binding, link, 0);
    assert!(site.open(&mut owner, honest).is_ok());
}

#[test]
fn nobody_has_received_what_was_not_sent() {
    let mut site = Site::new();
    let key = site.with_a_lost_link();
    let mut second = site.dialled_by(THEIRS, 11);
    for received in [1, 100, u64::MAX] {
        let claimed = site.open(&mut second, |binding, link| {
            resumed(&key, binding, link, received)
        });
        let Err(LinkRefusal::Ended(text)) = claimed else {
            panic!("{claimed:?}");
        };
        assert!(text.to_string().contains("expected 0 to 0"), "{text}");
    }
}

#[test]
fn a_revoked_right_resumes_nothing() {
    let mut site = Site::new();
    let key = site.with_a_lost_link();
    let number = site.startpoint.number();
    for accepted in site.machine.revoke("coupler", number).unwrap() {
        assert_eq!(site.machine.end_link(accepted), None);
    }
    let mut second = site.dialled_by(THEIRS, 11);
    let claimed = site.open(&mut second, |binding, link| resumed(&key, binding, link, 0));
    assert!(claimed.is_err());
}

#[test]
fn a_link_is_kept_for_as_long_as_patience_lasts() {
    let mut site = Site::new();
    let key = site.with_a_lost_link();
    assert_eq!(site.machine.next_timeout(), Some(PATIENCE));
    assert!(site.machine.give_up(PATIENCE / 2).is_empty());
    let over = site.machine.give_up(PATIENCE);
    assert!(matches!(over[..], [Happening::LinkClosed(..)]), "{over:?}");
    assert_eq!(site.machine.next_timeout(), None);
    let mut late = site.dialled_by(THEIRS, 11);
    let claimed = site.open(&mut late, |binding, link| resumed(&key, binding, link, 0));
    assert!(matches!(claimed, Err(LinkRefusal::Ended(_))), "{claimed:?}");
}

/// An endpoint that claims to have received more than was sent loses the link, and its opener hears why.
#[test]
fn an_endpoint_that_claims_too_much_loses_the_link() {
    let owner = Site::new();
    let mut opener = Site::new();
    opener.machine = LinkMachine::new(THEIRS, PATIENCE);
    let mut maker = LinkMachine::new(OWN, PATIENCE);
    maker
        .offer("coupler", Protection::Plain, [7; 16], [8; 32])
        .unwrap();
    let caveats = owner.startpoint.caveats().to_vec();
    let node = ATMOSPHERE.identity().clone();
    let startpoint = maker.startpoint("coupler", node, Vec::new(), false, caveats);
    let bound: BindingId = opener.machine.bind(startpoint.unwrap());
    let contents = MessageContents::default();
    let said = opener.machine.request(bound, "note", contents.clone());
    assert!(said.unwrap().1.is_none());
    let accept = |site: &mut Site, secret, resumption| {
        let mut conversation = site.dialled_by(OWN, secret);
        let events = site.settle(&mut conversation);
        let [Event::LinkAsked { link, .. }] = events[..] else {
            panic!("{events:?}");
        };
        let handlers = vec!["note".to_owned()];
        let protection = Protection::Encrypted;
        conversation
            .peer
            .accept_lasting_link(link, handlers, protection, resumption)
            .unwrap();
        site.settle(&mut conversation);
        conversation
    };
    let first = accept(&mut opener, 20, Resumption::default());
    opener.lose(&first);
    assert!(opener.answers.is_empty(), "the request goes over");
    let claimed = Resumption {
        received: 2,
        withheld: 0,
    };
    accept(&mut opener, 21, claimed);
    let [
        RequestAnswer::Lost(LinkError::ImpossibleCount {
            got: 2, most: 1, ..
        }),
    ] = &opener.answers[..]
    else {
        panic!("{:?}", opener.answers);
    };
}

/// What was asked for in an earlier session may come later than what was asked for in the next one: it takes nothing away.
#[test]
fn a_resumption_that_comes_late_takes_nothing_away() {
    let mut site = Site::new();
    let key = site.with_a_lost_link();
    let (mut slow, mut fast) = (site.dialled_by(THEIRS, 11), site.dialled_by(THEIRS, 12));
    let second = |binding: &[u8; 32], link| resumed_again(&key, binding, link, (2, 0));
    let (link, _) = site.open(&mut fast, second).unwrap();
    let late = site.open(&mut slow, |binding, link| resumed(&key, binding, link, 0));
    assert!(matches!(late, Err(LinkRefusal::Ended(_))), "{late:?}");
    fast.peer.send(link, post(b"more")).unwrap();
    site.settle(&mut fast);
    assert_eq!(site.calls.len(), 3);
}

/// Whoever looks an endpoint up doesn't know which process has it: the first one that is met answers.
#[test]
fn a_lookup_is_answered_by_any_process_of_its_node() {
    let node = ATMOSPHERE.identity().clone();
    let mut key = RootKey::new(LOOKUP_ENDPOINT, [1; 16], [2; 32]).unwrap();
    let mut startpoint = |endpoint_process| {
        key.issue(NewStartpoint {
            node: node.clone(),
            process: endpoint_process,
            hints: vec!["tcp://127.0.0.1:1".to_owned()],
            minimum: Protection::Plain,
            bearer: true,
            caveats: Vec::new(),
        })
        .unwrap()
    };
    let mut site = Site::new();
    let bound = site.machine.bind(startpoint(OWN));
    let asked = site
        .machine
        .request(bound, LOOKUP_HANDLER, MessageContents::default());
    assert!(asked.unwrap().1.is_none());
    let wants = site.machine.take_wants(Duration::ZERO);
    let [want] = &wants[..] else {
        panic!("{wants:?}");
    };
    assert_eq!((&want.peer.node, want.peer.process), (&node, None));
    // A second question to the same node dials nobody else.
    let other = site.machine.bind(startpoint(SIBLINGS));
    let asked = site
        .machine
        .request(other, LOOKUP_HANDLER, MessageContents::default());
    assert!(asked.unwrap().1.is_none());
    assert!(site.machine.take_wants(Duration::ZERO).is_empty());

    let mut conversation = site.dialled_by(THEIRS, 10);
    let events = site.settle(&mut conversation);
    for event in &events {
        let Event::LinkAsked { link, .. } = event else {
            panic!("{events:?}");
        };
        let handlers = vec![LOOKUP_HANDLER.to_owned()];
        let accepted = conversation
            .peer
            .accept_link(*link, handlers, Protection::Encrypted);
        accepted.unwrap();
    }
    assert_eq!(events.len(), 2);
    for binding in [bound, other] {
        let place = site.machine.session_of(binding).unwrap();
        assert_eq!(place.0, conversation.id);
    }
}

/// A rule that is against a link ends it also while no session carries it.
#[test]
fn a_link_that_rules_are_against_is_not_resumed() {
    let mut site = Site::new();
    let key = site.with_a_lost_link();
    let denied = "[[deny.rule]]\naction = \"coupler.note\"\nname = \"*\"\n";
    let policy = Arc::new(Policy::parse(denied, 1).unwrap());
    let barred = site.machine.set_policy(policy.clone());
    let [link] = &barred[..] else {
        panic!("{barred:?}");
    };
    assert_eq!(link.peer, *ATMOSPHERE.identity());
    assert_eq!(site.machine.end_link(link.accepted), None);
    assert!(site.machine.set_policy(policy).is_empty());
    let mut conversation = site.dialled_by(THEIRS, 11);
    let refused = site.open(&mut conversation, |binding, link| {
        resumed(&key, binding, link, 0)
    });
    assert!(
        matches!(refused, Err(LinkRefusal::NotAllowed(_))),
        "{refused:?}"
    );
}

impl Site {
    /// A session with some node, that the side says has dialled.
    fn met(
        &mut self,
        who: &VerifiedIdentity,
        process: ProcessNumber,
        secret: u8,
        dialled: bool,
    ) -> Conversation {
        let (own, peer) = if dialled {
            (Side::Client, Side::Server)
        } else {
            (Side::Server, Side::Client)
        };
        let mut conversation = Conversation {
            id: SessionId(self.sessions),
            own: session(own, secret),
            peer: session(peer, secret),
        };
        self.sessions += 1;
        let peer = SessionPeer {
            identity: Arc::new(who.clone()),
            process,
            same_host: false,
            dialled,
        };
        let (id, own) = (conversation.id, &mut conversation.own);
        let happened = self.machine.begin(id, own, peer, &|_| Protection::Plain);
        self.happened(happened);
        conversation
    }

    fn lose_at(&mut self, conversation: &Conversation, now: Duration) -> Vec<Happening> {
        let ended = Ended::Session(SessionError::Truncated { records: 1 });
        self.machine.end(conversation.id, &ended, now)
    }

    /// Asks for a link, and says no more to it before anybody has read that.
    fn ask_and_close(
        &self,
        conversation: &mut Conversation,
        life: impl FnOnce(&[u8; 32], u32) -> LinkLife,
    ) {
        let binding = *conversation.peer.binding();
        let startpoint = self.startpoint.clone();
        let link = conversation
            .peer
            .request_lasting_link("coupler", Protection::Encrypted, |link| {
                let right = startpoint.right(&binding, link.number()).encode();
                (right, life(&binding, link.number()))
            })
            .unwrap();
        conversation.peer.close_link(link).unwrap();
    }
}

/// A program that drops its startpoint at once closes its link before the other side has answered: nothing else of the session ends.
#[test]
fn a_link_that_is_closed_before_its_answer_ends_no_session() {
    let mut site = Site::new();
    let mut conversation = site.dialled_by(THEIRS, 10);
    let (kept, _) = site
        .open(&mut conversation, |_, _| LinkLife::Lasting { name: 5 })
        .unwrap();
    for life in [LinkLife::OneSession, LinkLife::Lasting { name: 6 }] {
        site.ask_and_close(&mut conversation, |_, _| life);
        site.settle(&mut conversation);
        assert!(!conversation.own.is_ending());
    }
    conversation.peer.send(kept, post(b"news")).unwrap();
    site.settle(&mut conversation);
    assert_eq!(site.calls.len(), 1);
}

/// Nobody has us keep a link for ever by asking for it and closing that before we have answered.
#[test]
fn a_resumption_that_is_closed_before_its_answer_leaves_the_link_away() {
    let mut site = Site::new();
    let key = site.with_a_lost_link();
    let mut second = site.dialled_by(THEIRS, 11);
    site.ask_and_close(&mut second, |binding, link| resumed(&key, binding, link, 0));
    pass(&mut second.peer, &mut second.own);
    while let Some(event) = second.own.poll_event() {
        let policy = |_: &str| Protection::Plain;
        let happened = site.machine.event(
            second.id,
            &mut second.own,
            event,
            &policy,
            NOW,
            Duration::ZERO,
        );
        if let Ok(happened) = happened {
            site.happened(happened);
        }
    }
    site.lose(&second);
    let over = site.machine.give_up(PATIENCE);
    assert!(matches!(over[..], [Happening::LinkClosed(..)]), "{over:?}");
}

/// Whoever resumes a link in a session that takes less than the one before loses that link, and none of the others.
#[test]
fn an_answer_that_the_next_session_does_not_take_ends_the_link_alone() {
    let mut site = Site::new();
    let mut first = site.dialled_by(THEIRS, 10);
    let opened = site.open(&mut first, |_, _| LinkLife::Lasting { name: 5 });
    let (link, _) = opened.unwrap();
    let asked = Message {
        kind: MessageKind::Request(1),
        ..post(b"?")
    };
    first.peer.send(link, asked).unwrap();
    site.settle(&mut first);
    let call = site.calls.pop().unwrap();
    let contents = MessageContents {
        head: vec![0; 4096].into(),
        bulk: Vec::new(),
        is_gathered: false,
    };
    assert!(site.machine.answer(&call, contents, false).is_some());
    site.lose(&first);
    let key = first.peer.resumption_key().clone();
    let mut second = site.dialled_by(THEIRS, 11);
    let mut config = SessionConfig::new(Side::Server);
    config.asks = true;
    config.peer_limits.message_bytes_max = 1024;
    second.own = Session::new(
        config,
        SessionSecret::from_bytes(&[11; 32]),
        &KeyStore::in_ordinary_memory(2),
        Duration::ZERO,
    );
    let opened = site.open(&mut second, |binding, link| resumed(&key, binding, link, 0));
    assert!(opened.is_ok());
    assert!(!second.own.is_ending());
    let again = site.open(&mut second, |binding, link| {
        resumed_again(&key, binding, link, (2, 0))
    });
    assert!(matches!(again, Err(LinkRefusal::Ended(_))), "{again:?}");
}

/// A peer that lets a link be resumed and ends the session again, each time, isn't dialled without a pause.
#[test]
fn a_peer_that_ends_each_session_is_dialled_ever_less() {
    let mut maker = LinkMachine::new(OWN, PATIENCE);
    maker
        .offer("coupler", Protection::Plain, [7; 16], [8; 32])
        .unwrap();
    let node = ATMOSPHERE.identity().clone();
    let hints = vec!["tcp://127.0.0.1:1".to_owned()];
    let startpoint = maker.startpoint("coupler", node, hints, true, Vec::new());
    let mut opener = Site::new();
    opener.machine = LinkMachine::new(THEIRS, PATIENCE);
    let bound = opener.machine.bind(startpoint.unwrap());
    let asked = opener
        .machine
        .request(bound, "note", MessageContents::default());
    assert!(asked.unwrap().1.is_none());
    let (mut now, mut dialled) = (Duration::ZERO, 0);
    while now < Duration::from_secs(2) && dialled < 100 {
        if opener.machine.take_wants(now).is_empty() {
            now += Duration::from_millis(1);
            continue;
        }
        dialled += 1;
        let mut conversation = opener.met(&ATMOSPHERE, OWN, 20, true);
        let events = opener.settle(&mut conversation);
        let [Event::LinkAsked { link, .. }, ..] = events[..] else {
            panic!("{events:?}");
        };
        let accepted = conversation.peer.accept_lasting_link(
            link,
            vec!["note".to_owned()],
            Protection::Encrypted,
            Resumption::default(),
        );
        accepted.unwrap();
        opener.settle(&mut conversation);
        opener.lose_at(&conversation, now);
    }
    assert!(opener.answers.is_empty(), "{:?}", opener.answers);
    assert!((2..10).contains(&dialled), "{dialled}");
}

/// A link that is accepted and ended at once is over for the reason that the other end gives.
#[test]
fn a_link_that_is_ended_at_once_says_why() {
    let mut maker = LinkMachine::new(OWN, PATIENCE);
    maker
        .offer("coupler", Protection::Plain, [7; 16], [8; 32])
        .unwrap();
    let node = ATMOSPHERE.identity().clone();
    let startpoint = maker.startpoint("coupler", node, Vec::new(), true, Vec::new());
    let mut opener = Site::new();
    opener.machine = LinkMachine::new(THEIRS, PATIENCE);
    let bound = opener.machine.bind(startpoint.unwrap());
    let asked = opener
        .machine
        .request(bound, "note", MessageContents::default());
    assert!(asked.unwrap().1.is_none());
    let mut conversation = opener.dialled_by(OWN, 20);
    let events = opener.settle(&mut conversation);
    let [Event::LinkAsked { link, .. }, ..] = events[..] else {
        panic!("{events:?}");
    };
    let peer = &mut conversation.peer;
    let handlers = vec!["note".to_owned()];
    let accepted = peer.accept_link(link, handlers, Protection::Encrypted);
    accepted.unwrap();
    peer.end_link(link, LinkRefusal::Ended("revoked".into()))
        .unwrap();
    opener.settle(&mut conversation);
    let [RequestAnswer::Lost(error)] = &opener.answers[..] else {
        panic!("{:?}", opener.answers);
    };
    assert!(error.to_string().contains("revoked"), "{error}");
}

/// A process has ended in good order, and another one of its node is met in its place. What has come from it is handled all the same.
#[test]
fn what_has_come_is_handled_when_its_process_has_been_replaced() {
    let mut site = Site::new();
    let mut first = site.dialled_by(THEIRS, 10);
    let opened = site.open(&mut first, |_, _| LinkLife::Lasting { name: 5 });
    let (link, _) = opened.unwrap();
    first.peer.send(link, post(b"news")).unwrap();
    site.settle(&mut first);
    let ended = Ended::Closed(CloseReason::ShuttingDown);
    let happened = site.machine.end(first.id, &ended, Duration::ZERO);
    let [Happening::LinkClosed(closed, _)] = happened[..] else {
        panic!("{happened:?}");
    };
    assert_eq!(closed, site.calls[0].accepted);
    let want = Want {
        peer: WantedProcess {
            node: ATMOSPHERE.identity().clone(),
            process: Some(THEIRS),
        },
        hints: Vec::new(),
    };
    let mut replaced = FailedAttempts::default();
    replaced.is_gone = true;
    let happened = site.machine.unreachable(&want, &replaced, Duration::ZERO);
    assert!(happened.is_empty(), "{happened:?}");
    // It is kept until then, and no longer.
    assert_eq!(site.machine.handled(&site.calls[0].clone()), None);
    assert_eq!(site.machine.next_timeout(), None);
}

/// Its opener may know that it has come: when the link was resumed, we have said so.
#[test]
fn what_has_come_is_handled_after_patience_as_well() {
    let mut site = Site::new();
    let mut first = site.dialled_by(THEIRS, 10);
    let opened = site.open(&mut first, |_, _| LinkLife::Lasting { name: 5 });
    let (link, _) = opened.unwrap();
    first.peer.send(link, post(b"news")).unwrap();
    site.settle(&mut first);
    site.lose(&first);
    let over = site.machine.give_up(PATIENCE);
    assert!(matches!(over[..], [Happening::LinkClosed(..)]), "{over:?}");
    assert_eq!(site.machine.next_timeout(), None);
    let key = first.peer.resumption_key().clone();
    let mut late = site.dialled_by(THEIRS, 11);
    let claimed = site.open(&mut late, |binding, link| resumed(&key, binding, link, 1));
    assert!(claimed.is_err(), "nobody resumes it");
    let call = site.calls[0].clone();
    assert!(site.machine.is_kept(call.accepted));
    assert_eq!(site.machine.handled(&call), None);
    assert!(!site.machine.is_kept(call.accepted));
}

/// An opener with a startpoint of somebody it has not met yet.
fn opener() -> (Site, Startpoint) {
    let owner = Site::new();
    let mut opener = Site::new();
    opener.machine = LinkMachine::new(THEIRS, PATIENCE);
    let mut maker = LinkMachine::new(OWN, PATIENCE);
    maker
        .offer("coupler", Protection::Plain, [7; 16], [8; 32])
        .unwrap();
    let caveats = owner.startpoint.caveats().to_vec();
    let node = ATMOSPHERE.identity().clone();
    let hints = vec!["tcp://127.0.0.1:1".to_owned()];
    let startpoint = maker.startpoint("coupler", node, hints, false, caveats);
    (opener, startpoint.unwrap())
}

/// A session gives a link's number to the next one as soon as the peer has confirmed its end, which its machine may read later.
#[test]
fn the_end_of_a_link_takes_nothing_from_the_next_one_of_its_number() {
    let (mut site, startpoint) = opener();
    let first = site.machine.bind(startpoint.clone());
    let contents = MessageContents::default;
    site.machine.request(first, "note", contents()).unwrap();
    let mut conversation = site.dialled_by(OWN, 30);
    let accept = |conversation: &mut Conversation, events: Vec<Event>| {
        let [Event::LinkAsked { link, .. }] = events[..] else {
            panic!("{events:?}");
        };
        let (handlers, protection) = (vec!["note".to_owned()], Protection::Encrypted);
        let accepted = conversation.peer.accept_lasting_link(
            link,
            handlers,
            protection,
            Resumption::default(),
        );
        accepted.unwrap();
    };
    let events = site.settle(&mut conversation);
    accept(&mut conversation, events);
    let events = site.settle(&mut conversation);
    let [Event::Message { link, size, .. }] = events[..] else {
        panic!("{events:?}");
    };
    conversation.peer.consumed(link, size);
    let (place, _) = site.machine.unbind(first);
    let (_, ended) = place.unwrap();
    conversation.own.close_link(ended).unwrap();
    pass(&mut conversation.own, &mut conversation.peer);
    while conversation.peer.poll_event().is_some() {}
    pass(&mut conversation.peer, &mut conversation.own);
    // What the session knows by now, the machine doesn't.
    let second = site.machine.bind(startpoint);
    site.machine.request(second, "note", contents()).unwrap();
    let policy = |_: &str| Protection::Plain;
    let (id, own) = (conversation.id, &mut conversation.own);
    let happened = site.machine.attach(id, own, &policy);
    site.happened(happened);
    assert_eq!(site.machine.session_of(second), Some((id, ended)));
    let events = site.settle(&mut conversation);
    accept(&mut conversation, events);
    let events = site.settle(&mut conversation);
    assert!(
        matches!(events[..], [Event::Message { .. }]),
        "the request was not sent: {events:?}"
    );
}

/// A stream or a transfer that has failed would keep it to itself.
#[test]
fn lost_posts_are_told_by_a_call_of_the_program() {
    let (mut site, startpoint) = opener();
    let bound = site.machine.bind(startpoint);
    let contents = MessageContents::default;
    for _ in 0..3 {
        site.machine.post(bound, "note", contents()).unwrap();
    }
    let wants = site.machine.take_wants(Duration::ZERO);
    site.machine
        .unreachable(&wants[0], &FailedAttempts::default(), Duration::ZERO);
    let of_stream = MessageContents {
        head: StreamMessage::Open.head(1),
        ..contents()
    };
    assert!(site.machine.request(bound, "echo", of_stream).is_ok());
    let told = site.machine.request(bound, "note", contents());
    assert!(
        matches!(told, Err(LinkError::PostsLost { posts: 3, .. })),
        "{told:?}"
    );
    assert!(site.machine.request(bound, "note", contents()).is_ok());
}

/// Who closes a binding, before its posts are lost or after that, hears of them when the node is closed.
#[test]
fn lost_posts_of_closed_bindings_are_told_at_the_end() {
    let (mut site, startpoint) = opener();
    let post = |site: &mut Site| {
        let bound = site.machine.bind(startpoint.clone());
        let posted = site.machine.post(bound, "note", MessageContents::default());
        posted.unwrap();
        bound
    };
    let fail = |site: &mut Site| {
        let wants = site.machine.take_wants(Duration::ZERO);
        let mut replaced = FailedAttempts::default();
        replaced.is_gone = true;
        let machine = &mut site.machine;
        machine.unreachable(&wants[0], &replaced, Duration::ZERO)
    };
    let audits = |happened: Vec<Happening>| {
        let lines = happened.into_iter().filter_map(|one| match one {
            Happening::Audit(line) if line.contains("may be lost") => Some(line),
            _ => None,
        });
        lines.collect::<Vec<_>>()
    };
    let is_told = |told: &[LinkError]| matches!(told, [LinkError::ClosedPostsLost { posts: 1, endpoint, .. }] if endpoint == "coupler");
    let bound = post(&mut site);
    site.machine.unbind(bound);
    assert_eq!(audits(fail(&mut site)).len(), 1);
    let told = site.machine.abandon(Duration::ZERO);
    assert!(is_told(&told), "{told:?}");
    assert_eq!(site.machine.abandon(Duration::ZERO), []);

    let bound = post(&mut site);
    assert_eq!(audits(fail(&mut site)), [""; 0]);
    assert_eq!(audits(site.machine.unbind(bound).1).len(), 1);
    let told = site.machine.abandon(Duration::ZERO);
    assert!(is_told(&told), "{told:?}");

    let bound = post(&mut site);
    site.machine.unbind(bound);
    let told = site.machine.abandon(Duration::ZERO);
    assert!(is_told(&told), "{told:?}");
    assert_eq!(site.machine.bindings().count(), 0);

    // A call has told it.
    let bound = post(&mut site);
    fail(&mut site);
    let call = site
        .machine
        .request(bound, "note", MessageContents::default());
    assert!(call.is_err());
    site.machine.unbind(bound);
    assert_eq!(site.machine.abandon(Duration::ZERO), []);
}
