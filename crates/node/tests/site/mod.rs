//! A manager's machine without its driver: what it wants is looked at, what slots say is said here.

#![allow(dead_code, reason = "each of the tests uses a part of it")]

use std::time::Duration;

use bytes::Bytes;
use exoskel_flow::contract::Contract;
use exoskel_flow::{FunctionId, SchedulerConfig, Skeleton, Tickets};
use exoskel_identity::{Identity, Role};
use exoskel_link::keys::KeyStore;
use exoskel_link::policy::PlaceProof;
use exoskel_link::{
    CloseReason, Ended, Event, LinkId, MessageKind, Protections, Session, SessionConfig,
    SessionError, SessionSecret, Side, TrafficClass,
};
use exoskel_node::manager::backoff::PAUSE_MAX;
use exoskel_node::manager::recruiter::{Prospect, SlotSource, SlotSources};
use exoskel_node::manager::{JoinError, JoiningSlot, ManagerAction, ManagerSettings};
use exoskel_node::{ManagerMachine, SessionId};
use exoskel_task::message::{Call, RESULT_ENDPOINT, ToManager, ToSlot};
use exoskel_task::outcome::Origin;
use exoskel_task::payload::{BatchBuilder, Format};
use exoskel_task::router::{Function, StreamPlan};

/// Longer than any place rests.
pub(crate) const REST: Duration = PAUSE_MAX;

/// How long runs wait for a slot.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) struct Site {
    pub(crate) machine: ManagerMachine,
    pub(crate) now: Duration,
    /// What the machine wanted, since it was last looked at.
    pub(crate) actions: Vec<ManagerAction>,
}

impl Site {
    pub(crate) fn new(sources: SlotSources) -> Self {
        Self::of(sources, false)
    }

    /// With an initializer.
    pub(crate) fn initializing(sources: SlotSources) -> Self {
        Self::of(sources, true)
    }

    pub(crate) fn of(sources: SlotSources, has_initializer: bool) -> Self {
        Self::made(sources, has_initializer, None)
    }

    /// With a contract.
    pub(crate) fn contracted(sources: SlotSources, contract: Contract) -> Self {
        Self::made(sources, false, Some(contract))
    }

    fn made(sources: SlotSources, has_initializer: bool, contract: Option<Contract>) -> Self {
        let settings = ManagerSettings {
            scheduler: SchedulerConfig::default(),
            message_bytes_max: 1 << 20,
            function_bytes_max: 1 << 20,
            sources,
            patience: PATIENCE,
            seed: 7,
            setup_local: Bytes::from_static(b"local"),
            setup_remote: Bytes::from_static(b"remote"),
            contract,
            has_initializer,
            takes_hearsay: true,
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
    pub(crate) fn with_hosts(slots: u32, names: &[&str]) -> Self {
        Self::new(SlotSources {
            slots,
            hosts: names.iter().map(|&name| name.to_owned()).collect(),
            ..SlotSources::default()
        })
    }

    pub(crate) fn listening(slots: u32) -> Self {
        Self::new(SlotSources {
            slots,
            listening: true,
            ..SlotSources::default()
        })
    }

    pub(crate) fn look(&mut self) {
        while let Some(action) = self.machine.poll_action(self.now) {
            self.actions.push(action);
        }
    }

    pub(crate) fn pass(&mut self, time: Duration) {
        self.now += time;
        self.look();
    }

    /// Whom the machine dialled since this was last asked.
    pub(crate) fn dialled(&mut self) -> Vec<usize> {
        let dialled = self.actions.iter().filter_map(|action| match action {
            ManagerAction::Dial(host) => Some(*host),
            _ => None,
        });
        let dialled = dialled.collect();
        let is_other = |action: &ManagerAction| !matches!(action, ManagerAction::Dial(_));
        self.actions.retain(is_other);
        dialled
    }

    pub(crate) fn join(&mut self, source: SlotSource, name: &str) -> Result<SessionId, JoinError> {
        self.join_of(source, name, 1)
    }

    /// A slot of a worker that has so many.
    pub(crate) fn join_of(
        &mut self,
        source: SlotSource,
        name: &str,
        slots: u32,
    ) -> Result<SessionId, JoinError> {
        self.join_in(source, name, slots, None)
    }

    /// A slot of a worker that has so many, in a trusted domain or in none.
    pub(crate) fn join_in(
        &mut self,
        source: SlotSource,
        name: &str,
        slots: u32,
        domain: Option<&str>,
    ) -> Result<SessionId, JoinError> {
        let peer = JoiningSlot {
            identity: Identity::new(Role::Worker, name).unwrap(),
            address: "10.0.0.1".to_owned(),
            place: "10.0.0.1:7600".to_owned(),
            transport: "tcp".to_owned(),
            proof: PlaceProof::Direct,
            protections: Protections::default(),
            own_minimum: Protections::default(),
            domain: domain.map(str::to_owned),
            is_trusted: true,
            slots: Some(slots),
            pid: None,
        };
        let joined = self.machine.join(source, &peer, &mut session(), self.now);
        self.look();
        joined
    }

    pub(crate) fn fail(&mut self, source: SlotSource, prospect: Prospect) {
        self.machine.attempt_failed(source, prospect, self.now);
        self.look();
    }

    /// A session begins and can work.
    pub(crate) fn serve(&mut self, source: SlotSource, name: &str, slots: u32) -> SessionId {
        let session = self.join_of(source, name, slots).unwrap();
        self.say(session, &ToManager::Ready { lacks: Vec::new() });
        session
    }

    /// A stream of one item.
    pub(crate) fn open(&mut self, stream: u64) {
        self.open_with(stream, None);
    }

    /// The same; the item may run for so long.
    pub(crate) fn open_with(&mut self, stream: u64, timeout: Option<Duration>) {
        let plan = StreamPlan {
            skeleton: Skeleton::Farm(Box::new(Skeleton::Seq(FunctionId(0)))),
            functions: vec![Function {
                digest: [0; 32],
                pickle: Bytes::from_static(b"a function"),
            }],
            call: Call::Item,
            tickets: Tickets::Unbounded,
            timeout,
            retries_on: None,
            tells_ends: false,
        };
        self.machine.open(stream, plan, self.now).unwrap();
        let mut batch = BatchBuilder::default();
        batch.push(Format::Pickle, b"item", &[], Vec::new());
        self.machine
            .admit(stream, batch.take(Origin::user()), self.now);
        self.look();
    }

    /// Plays on for so long, as the machine wants to be woken; gives when it dialled whom.
    pub(crate) fn play(
        &mut self,
        time: Duration,
        mut dialled: impl FnMut(&mut Self, usize),
    ) -> Vec<(Duration, usize)> {
        let end = self.now + time;
        let mut all = Vec::new();
        loop {
            let hosts = self.dialled();
            for host in hosts {
                all.push((self.now, host));
                dialled(self, host);
            }
            let is_dial = |action: &ManagerAction| matches!(action, ManagerAction::Dial(_));
            if self.actions.iter().any(is_dial) {
                continue;
            }
            match self.machine.next_timeout().filter(|next| *next <= end) {
                Some(next) => {
                    self.pass(next.saturating_sub(self.now).max(Duration::from_millis(1)))
                }
                None => {
                    self.pass(end.saturating_sub(self.now));
                    return all;
                }
            }
        }
    }

    /// Streams that were given up, and how long was waited for a slot.
    pub(crate) fn given_up(&mut self) -> Vec<(u64, Option<Duration>)> {
        let given_up = self.actions.iter().filter_map(|action| match action {
            ManagerAction::GiveUp { stream, waited } => Some((*stream, *waited)),
            _ => None,
        });
        let given_up = given_up.collect();
        self.actions.clear();
        given_up
    }

    /// A slot says something by a link of its own.
    pub(crate) fn say(&mut self, session: SessionId, message: &ToManager) {
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

    /// The slot that got work since this was last asked, if any.
    pub(crate) fn given(&mut self) -> Option<SessionId> {
        let given = self.actions.drain(..).filter_map(|action| match action {
            ManagerAction::Send {
                session, message, ..
            } => match ToSlot::decode_task(message.handler, message.head) {
                Ok(ToSlot::Execute(_)) => Some(session),
                _ => None,
            },
            _ => None,
        });
        given.last()
    }

    pub(crate) fn end(&mut self, session: SessionId, ended: &Ended) {
        self.machine.ended(session, ended, self.now);
        self.look();
    }

    /// Sessions that the machine ended, and why.
    pub(crate) fn ended(&mut self) -> Vec<(SessionId, CloseReason)> {
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

pub(crate) fn session() -> Session {
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
pub(crate) fn link() -> LinkId {
    let mut session = session();
    let last = (0..8).map(|_| session.open_link("any", TrafficClass::Data).unwrap());
    last.last().unwrap()
}

pub(crate) fn finished() -> Ended {
    Ended::Closed(CloseReason::Finished)
}

pub(crate) fn broken() -> Ended {
    Ended::Session(SessionError::RecordAfterClose)
}

pub(crate) fn lacks() -> ToManager {
    let lacks = vec!["numpy".to_owned()];
    ToManager::Ready { lacks }
}
