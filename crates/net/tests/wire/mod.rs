//! What the tests of the wire stand on: an authority, two ends on real sockets, and a runtime that counts its tasks.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test that cannot go on has failed"
)]
#![allow(dead_code, reason = "each test file uses its own part")]

pub(crate) mod folder;
pub(crate) mod networks;
pub(crate) mod raw;
pub(crate) mod relay;

use std::future::Future;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use exoskel_identity::{Credential, Role, VerifiedIdentity};
use exoskel_link::handshake::{Hello, ProcessNumber, Refuse};
use exoskel_link::keys::KeyStore;
use exoskel_link::policy::Policy;
use exoskel_link::{
    CloseReason, Endpoint, Event, Limits, LinkId, Message, MessageKind, Protection,
};
use exoskel_link::{SessionError, TrafficClass};
use exoskel_net::connection::{Connection, Ended};
use exoskel_net::establish::{EstablishError, Established, NodeConfig, dial, welcome};
use exoskel_net::listening::Listening;
use exoskel_net::pki::ThrowAwayAuthority;
use exoskel_net::socket::Socket;
use rustls_pki_types::UnixTime;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

/// No test takes so long; one that does hangs.
const PATIENCE: Duration = Duration::from_secs(30);

/// How soon all tasks of a test must have ended behind it.
const LEAVE_TIME: Duration = Duration::from_secs(5);

/// The endpoint that every end offers, and its one handler.
pub(crate) const ENDPOINT: &str = "test.echo";
const HANDLERS: &[&str] = &["take"];

/// Runs a test to its end, and fails it if one of its tasks goes on.
pub(crate) fn run<T>(test: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let result = runtime.block_on(async {
        let result = tokio::time::timeout(PATIENCE, test).await;
        let result = result.expect("the test hangs");
        let deadline = Instant::now() + LEAVE_TIME;
        let metrics = tokio::runtime::Handle::current().metrics();
        while metrics.num_alive_tasks() > 0 {
            let left = metrics.num_alive_tasks();
            assert!(Instant::now() < deadline, "{left} tasks are left over");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        result
    });
    runtime.shutdown_timeout(LEAVE_TIME);
    result
}

/// What every wait in a test goes through: an event that does not come fails the test, it does not hang it.
pub(crate) async fn soon<T>(what: &str, event: impl Future<Output = T>) -> T {
    let waited = tokio::time::timeout(Duration::from_secs(10), event).await;
    waited.unwrap_or_else(|_| panic!("{what} did not happen"))
}

pub(crate) fn unix_now() -> UnixTime {
    UnixTime::since_unix_epoch(SystemTime::now().duration_since(UNIX_EPOCH).unwrap())
}

/// One authority and the processes it knows.
pub(crate) struct Site(ThrowAwayAuthority);

impl Site {
    pub(crate) fn new() -> Self {
        Self(ThrowAwayAuthority::new(unix_now()).unwrap())
    }

    pub(crate) fn credential(&self, role: Role, name: &str) -> Credential {
        self.0.issue(role, name, unix_now()).unwrap()
    }

    /// A manager, which wants to meet workers.
    pub(crate) fn manager(&self) -> NodeConfig {
        terms(self.credential(Role::Manager, "head"), &[Role::Worker])
    }

    /// A worker, which wants to meet managers.
    pub(crate) fn worker(&self, name: &str) -> NodeConfig {
        terms(self.credential(Role::Worker, name), &[Role::Manager])
    }
}

pub(crate) fn terms(credential: Credential, peer_roles: &[Role]) -> NodeConfig {
    NodeConfig {
        verifier: Arc::new(credential.authority(1).unwrap()),
        credential: Arc::new(credential),
        policy: Arc::new(Policy::builtin()),
        peer_roles: peer_roles.to_vec(),
        minimum: Protection::Plain,
        asks_for_each_link: false,
        limits: Limits::default(),
        dead_after: Duration::from_secs(5),
        handshake_time: Duration::from_secs(5),
        versions: vec![("python".to_owned(), "3.11".to_owned())],
        same_versions: vec!["python".to_owned()],
        keys: KeyStore::in_ordinary_memory(8),
        job: 0,
        process: ProcessNumber::new([5; 16]),
        shared_memory: false,
        properties: Vec::new(),
    }
}

pub(crate) fn with_policy(mut terms: NodeConfig, policy: &str) -> NodeConfig {
    terms.policy = Arc::new(Policy::parse(policy, 1).unwrap());
    terms
}

/// Both ends of a TCP connection over loopback: who dialled, who listened.
pub(crate) async fn tcp() -> (Socket, Socket) {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let dialling = tokio::net::TcpStream::connect(address);
    let (dialled, accepted) = tokio::join!(dialling, listener.accept());
    let accepted = accepted.unwrap().0;
    (
        Socket::tcp(dialled.unwrap()).unwrap(),
        Socket::tcp(accepted).unwrap(),
    )
}

/// Both ends of a socketpair.
pub(crate) fn socketpair() -> (Socket, Socket) {
    let (one, other) = std::os::unix::net::UnixStream::pair().unwrap();
    (Socket::unix(one).unwrap(), Socket::unix(other).unwrap())
}

/// Both ends of a connection to a Unix socket: who dialled, who listened.
pub(crate) async fn unix(listening: &Listening) -> (Socket, Socket) {
    let dialled = listening.address().connect().await.unwrap();
    (dialled, accept(listening))
}

/// The connection that waits there.
pub(crate) fn accept(listening: &Listening) -> Socket {
    let descriptor = listening.as_fd().try_clone_to_owned().unwrap();
    let listener = std::os::unix::net::UnixListener::from(descriptor);
    Socket::unix(listener.accept().unwrap().0).unwrap()
}

/// What a session can go through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    Tcp,
    Socketpair,
    SharedMemory,
}

impl Way {
    pub(crate) const ALL: [Self; 3] = [Self::Tcp, Self::Socketpair, Self::SharedMemory];

    pub(crate) async fn sockets(self) -> (Socket, Socket) {
        match self {
            Self::Tcp => tcp().await,
            Self::Socketpair | Self::SharedMemory => socketpair(),
        }
    }

    /// The kind of transport that tables name.
    pub(crate) fn kind(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Socketpair => "socketpair",
            Self::SharedMemory => "shared memory",
        }
    }

    /// Two ends that meet this way.
    pub(crate) async fn meet(
        self,
        client: &NodeConfig,
        server: &NodeConfig,
    ) -> (Established, Established) {
        let willing = |config: &NodeConfig| NodeConfig {
            shared_memory: self == Self::SharedMemory,
            ..config.clone()
        };
        let sockets = self.sockets().await;
        let (client, server) = meet(sockets, &willing(client), None, &willing(server)).await;
        let (client, server) = (client.unwrap(), server.unwrap());
        for end in [&client, &server] {
            assert_eq!(end.connection.transport().kind(), self.kind());
        }
        (client, server)
    }

    /// Two served ends that have met this way.
    pub(crate) async fn sessions(self, client: &NodeConfig, server: &NodeConfig) -> (End, End) {
        let (client, server) = self.meet(client, server).await;
        (End::serve(client), End::serve(server))
    }
}

type Outcome = Result<Established, EstablishError>;

/// Shakes hands over a pair of sockets; what came of it at the client, and at the server.
pub(crate) async fn meet(
    sockets: (Socket, Socket),
    client: &NodeConfig,
    name: Option<&str>,
    server: &NodeConfig,
) -> (Outcome, Outcome) {
    let dialled = dial(sockets.0, client, name.map(str::to_owned));
    let both = async { tokio::join!(dialled, welcome(sockets.1, server, anybody)) };
    soon("the handshake's end", both).await
}

/// The same where both ends are to come to terms.
pub(crate) async fn sessions(
    sockets: (Socket, Socket),
    client: &NodeConfig,
    server: &NodeConfig,
) -> (End, End) {
    let (client, server) = meet(sockets, client, None, server).await;
    (End::serve(client.unwrap()), End::serve(server.unwrap()))
}

pub(crate) fn anybody(_: &Hello, _: &VerifiedIdentity) -> Result<(), Refuse> {
    Ok(())
}

/// The text of an error, for looking into what people read.
pub(crate) fn text<T, E: std::fmt::Display>(result: Result<T, E>) -> String {
    match result {
        Ok(_) => panic!("expected an error"),
        Err(error) => error.to_string(),
    }
}

/// Ends a session in order; both ends must see it so.
pub(crate) async fn part(closer: End, other: End) {
    closer.connection.close(CloseReason::Finished);
    let (closer, other) = tokio::join!(closer.ended(), other.ended());
    for ended in [closer, other] {
        assert!(
            matches!(ended, Ended::Closed(CloseReason::Finished)),
            "{ended}"
        );
    }
}

/// One end of a session, served by a task.
pub(crate) struct End {
    pub(crate) connection: Arc<Connection>,
    events: mpsc::UnboundedReceiver<Event>,
    ended: JoinHandle<Ended>,
}

impl End {
    pub(crate) fn serve(established: Established) -> Self {
        let connection = established.connection;
        let endpoint = Endpoint::new(ENDPOINT, HANDLERS);
        connection.with(|session| session.offer(endpoint)).unwrap();
        let (sender, events) = mpsc::unbounded_channel();
        let served = connection.clone();
        let ended = tokio::spawn(async move {
            // The test may not look at events any more.
            served.run(|event| drop(sender.send(event))).await
        });
        Self {
            connection,
            events,
            ended,
        }
    }

    pub(crate) fn open(&self) -> LinkId {
        let open =
            |session: &mut exoskel_link::Session| session.open_link(ENDPOINT, TrafficClass::Data);
        self.connection.with(open).unwrap()
    }

    /// Sends a post with one bulk part, if there is any of it.
    pub(crate) fn post(&self, link: LinkId, head: &[u8], bulk: &[u8]) -> Result<(), SessionError> {
        self.connection.send(link, message(head, bulk))
    }

    /// The next message, whose credit goes back.
    pub(crate) async fn message(&mut self) -> (Vec<u8>, Vec<u8>) {
        loop {
            let event = soon("a message", self.events.recv()).await;
            if let Event::Message {
                link,
                head,
                bulk,
                size,
                ..
            } = event.expect("the session ended before the message came")
            {
                self.connection.consumed(link, size);
                self.connection.flush();
                return (head.to_vec(), bulk.concat());
            }
        }
    }

    /// How many messages have come that nobody has taken.
    pub(crate) fn waiting_bytes(&mut self) -> u64 {
        let mut bytes = 0;
        while let Ok(event) = self.events.try_recv() {
            if let Event::Message { size, .. } = event {
                bytes += size;
            }
        }
        bytes
    }

    /// Why the session is over.
    pub(crate) async fn ended(self) -> Ended {
        soon("the session's end", self.ended).await.unwrap()
    }

    /// Nobody serves it from now on.
    pub(crate) async fn abandon(self) {
        self.ended.abort();
        assert!(self.ended.await.unwrap_err().is_cancelled());
    }

    /// Why the session is over, and the messages that came before.
    pub(crate) async fn rest(mut self) -> (Ended, Vec<(Vec<u8>, Vec<u8>)>) {
        let mut messages = Vec::new();
        let all = async {
            while let Some(event) = self.events.recv().await {
                if let Event::Message { head, bulk, .. } = event {
                    messages.push((head.to_vec(), bulk.concat()));
                }
            }
        };
        soon("the session's end", all).await;
        let ended = soon("the session's end", self.ended).await.unwrap();
        (ended, messages)
    }
}

pub(crate) fn message(head: &[u8], bulk: &[u8]) -> Message {
    let bulk = if bulk.is_empty() {
        Vec::new()
    } else {
        vec![Bytes::copy_from_slice(bulk)]
    };
    Message {
        handler: 0,
        kind: MessageKind::Post,
        head: Bytes::copy_from_slice(head),
        bulk,
        is_gathered: false,
    }
}
