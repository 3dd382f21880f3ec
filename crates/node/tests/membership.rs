//! Who is asked for slots, who gets a session, and what becomes of both.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::time::Duration;

use bytes::Bytes;
use exoskel_flow::SchedulerConfig;
use exoskel_identity::{Identity, Role};
use exoskel_link::handshake::RefuseReason;
use exoskel_link::keys::KeyStore;
use exoskel_link::policy::PlaceProof;
use exoskel_link::{
    CloseReason, Ended, Event, LinkId, MessageKind, Protections, Session, SessionConfig,
    SessionError, SessionSecret, Side, TrafficClass,
};
use exoskel_node::manager::notice::Unwanted;
use exoskel_node::manager::recruiter::{FAILURES_MAX, SlotSource, SlotSources};
use exoskel_node::manager::{JoinError, ManagerAction, ManagerSettings, Member};
use exoskel_node::{ManagerMachine, SessionId};
use exoskel_task::message::{RESULT_ENDPOINT, ToManager};

/// Longer than a place rests.
const REST: Duration = Duration::from_secs(1);

struct Site {
    machine: ManagerMachine,
    now: Duration,
    /// What the machine wanted, since it was last looked at.
    actions: Vec<ManagerAction>,
}

impl Site {
    fn new(sources: SlotSources) -> Self {
        let settings = ManagerSettings {
            scheduler: SchedulerConfig::default(),
            message_bytes_max: 1 << 20,
            sources,
            setup_local: Bytes::from_static(b"local"),
            setup_remote: Bytes::from_static(b"remote"),
        };
        let mut site = Self {
            machine: ManagerMachine::new(settings),
            now: Duration::ZERO,
            actions: Vec::new(),
        };
        site.machine.recruit(site.now);
        site.look();
        site
    }

    /// Hosts of these names.
    fn with_hosts(slots: u32, names: &[&str]) -> Self {
        Self::new(SlotSources {
            slots,
            hosts: names.iter().map(|&name| name.to_owned()).collect(),
            ..SlotSources::default()
        })
    }

    fn listening(slots: u32) -> Self {
        Self::new(SlotSources {
            slots,
            listening: true,
            ..SlotSources::default()
        })
    }

    fn look(&mut self) {
        while let Some(action) = self.machine.poll_action(self.now) {
            self.actions.push(action);
        }
    }

    fn pass(&mut self, time: Duration) {
        self.now += time;
        self.look();
    }

    /// Whom the machine dialled since this was last asked.
    fn dialled(&mut self) -> Vec<usize> {
        let dialled = self.actions.iter().filter_map(|action| match action {
            ManagerAction::Dial(host) => Some(*host),
            _ => None,
        });
        let dialled = dialled.collect();
        self.actions.clear();
        dialled
    }

    fn join(&mut self, source: SlotSource, name: &str) -> Result<SessionId, JoinError> {
        let member = Member {
            identity: Identity::new(Role::Worker, name).unwrap(),
            address: "10.0.0.1".to_owned(),
            place: "10.0.0.1:7600".to_owned(),
            transport: "tcp".to_owned(),
            proof: PlaceProof::Direct,
            protections: Protections::default(),
            domain: None,
            is_trusted: true,
            slots: Some(1),
            pid: None,
        };
        let joined = self.machine.join(source, &member, &mut session(), self.now);
        self.look();
        joined
    }

    /// A slot says something by a link of its own.
    fn say(&mut self, session: SessionId, message: &ToManager) {
        let (handler, head) = message.encode();
        let opened = Event::LinkOpened {
            link: link(),
            endpoint: RESULT_ENDPOINT.to_owned(),
            class: TrafficClass::Data,
            job: 0,
        };
        self.machine.event(session, opened, self.now);
        let said = Event::Message {
            link: link(),
            handler,
            kind: MessageKind::Post,
            head,
            bulk: Vec::new(),
            size: 0,
        };
        self.machine.event(session, said, self.now);
        self.look();
    }

    fn end(&mut self, session: SessionId, ended: &Ended) {
        self.machine.ended(session, ended, self.now);
        self.look();
    }

    /// Sessions that the machine ended, and why.
    fn ended(&mut self) -> Vec<(SessionId, CloseReason)> {
        let ended = self.actions.iter().filter_map(|action| match action {
            ManagerAction::Close { session, reason } | ManagerAction::Abort { session, reason } => {
                Some((*session, reason.clone()))
            }
            _ => None,
        });
        let ended = ended.collect();
        self.actions.clear();
        ended
    }
}

fn session() -> Session {
    let secret = SessionSecret::from_bytes(&[1; 32]);
    let keys = KeyStore::in_ordinary_memory(1);
    Session::new(
        SessionConfig::new(Side::Client),
        secret,
        &keys,
        Duration::ZERO,
    )
}

/// A number that no link of the machine's has.
fn link() -> LinkId {
    let mut session = session();
    let last = (0..8).map(|_| session.open_link("any", TrafficClass::Data).unwrap());
    last.last().unwrap()
}

fn finished() -> Ended {
    Ended::Closed(CloseReason::Finished)
}

fn broken() -> Ended {
    Ended::Session(SessionError::RecordAfterClose)
}

fn lacks() -> ToManager {
    let lacks = vec!["numpy".to_owned()];
    ToManager::Ready { lacks }
}

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

#[test]
fn a_place_that_fails_rests_and_is_given_up_after_so_many_failures() {
    let mut site = Site::with_hosts(1, &["one"]);
    for attempt in 0..FAILURES_MAX {
        assert_eq!(site.dialled(), [0], "attempt {attempt}");
        site.machine
            .attempt_failed(SlotSource::Host(0), false, site.now);
        site.look();
        let is_over = attempt + 1 == FAILURES_MAX;
        let has_given_up = site
            .actions
            .iter()
            .any(|action| matches!(action, ManagerAction::GiveUp));
        assert_eq!(has_given_up, is_over, "attempt {attempt}");
        assert_eq!(site.machine.recruited().is_final, is_over);
        assert_eq!(site.dialled(), [], "it rests");
        site.pass(REST);
    }
    site.pass(REST);
    assert!(site.actions.is_empty(), "{:?}", site.actions);
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
    assert!(
        site.actions
            .iter()
            .any(|action| matches!(action, ManagerAction::GiveUp))
    );
    site.pass(REST);
    assert_eq!(site.dialled(), []);
    let refused = site.machine.admit_worker("one").unwrap_err();
    assert_eq!(refused.reason, RefuseReason::NotAllowed);
    assert_eq!(site.machine.report()[0].state, "unfit");
}

#[test]
fn who_dials_in_has_a_place_only_while_slots_are_missing() {
    let mut site = Site::listening(1);
    site.machine.admit_worker("one").unwrap();
    let busy = site.machine.admit_worker("two").unwrap_err();
    assert_eq!(busy.reason, RefuseReason::Busy);
    site.machine
        .attempt_failed(SlotSource::DialledIn, false, site.now);
    site.machine.admit_worker("two").unwrap();
    let two = site.join(SlotSource::DialledIn, "two").unwrap();
    assert!(site.machine.admit_worker("one").is_err());
    site.end(two, &finished());
    assert!(site.machine.admit_worker("one").is_ok());
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
    site.actions.clear();
    site.machine.judge_again(|session| match session == bad {
        true => Err("its certificate was revoked"),
        false => Ok(()),
    });
    site.look();
    let reason = CloseReason::NotAllowed("its certificate was revoked".into());
    assert_eq!(site.ended(), [(bad, reason)]);
    site.machine.close();
    site.look();
    let finished = CloseReason::Finished;
    assert_eq!(site.ended(), [(good, finished.clone()), (bad, finished)]);
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
