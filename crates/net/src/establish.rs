//! From a connected socket to a session: TLS, Hello, the answer, and the secret that follows.
//!
//! What stands here moves the bytes and keeps the time; what is said and judged is in `exoskel_link::handshake` and
//! `exoskel_identity`. The peer's bytes are read one TLS record at a time and never beyond, so that what follows the
//! answer is the session's own.

pub(crate) mod for_gateway;

use std::collections::BTreeMap;
use std::io;
use std::os::fd::AsFd;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

pub use crate::ring::SharedMemoryError;
use exoskel_identity::{Identity, PeerText, VerifiedIdentity};
use exoskel_link::handshake::{
    Agreement, Answer, AnswerError, Chains, HandshakeError, Hello, HelloSent, MemoryName,
    NotAllowed, Path, ProcessNumber, Purpose, Refuse, RefuseReason,
};
pub use exoskel_link::handshake::{NoLongerGood, NodeConfig, PeerRecord};
use exoskel_link::policy::PlaceProof;
use exoskel_link::{CipherSuite, CodecError, Protections, Side};
use exoskel_node::links::Hindrance;
use rustls::pki_types::UnixTime;
use tokio::sync::Semaphore;

use crate::beside::Served;
use crate::connection::Connection;
use crate::epoll_set::EpollSet;
use crate::reception::HandshakePlace;
use crate::ring::passing::{self, NewMemory, PassedMemory};
use crate::socket::Socket;
use crate::tls::{Handshake, Tls, TlsError, TlsFault, TlsPeer};
use crate::transport::Transport;

/// Bytes that a peer may make us read before it is verified.
const HANDSHAKE_BYTES_MAX: usize = 128 * 1024;

/// Bytes of one TLS record at most (RFC 8446, section 5.2), without its header.
const TLS_RECORD_MAX: usize = 16_384 + 256;

/// Content type, version and length of a TLS record (RFC 8446, section 5.1).
const RECORD_HEADER_BYTES: usize = 5;

/// How long a peer that dialled us may take to begin its handshake.
pub(crate) const FIRST_BYTE_TIME: Duration = Duration::from_secs(5);

/// How long a refused peer may take to read why.
const REFUSAL_TIME: Duration = Duration::from_millis(500);

/// A session that can begin.
pub struct Established {
    /// The session on its transport.
    pub connection: Arc<Connection>,
    /// Who the peer is.
    pub peer: VerifiedIdentity,
    /// Which process of its node the peer says it is.
    pub process: ProcessNumber,
    /// Which end of the connection we are.
    pub side: Side,
    /// What was agreed.
    pub protections: Protections,
    /// What our own policy and settings ask for, at least.
    pub own_minimum: Protections,
    /// How sure we are where the peer is.
    pub proof: PlaceProof,
    /// The trust domain the peer is in, or none.
    pub domain: Option<String>,
    /// Whether what it sends may be unpickled without restrictions.
    pub trusted_results: bool,
    /// What the session is judged by again when trust or policy change.
    pub record: PeerRecord,
    /// The largest message that both ends take, in bytes.
    pub message_bytes_max: u64,
    properties: BTreeMap<PeerText, PeerText>,
}

/// Why no session came about.
#[derive(Debug, thiserror::Error)]
pub enum EstablishError {
    /// TLS or a certificate.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The rules of the handshake.
    #[error(transparent)]
    Handshake(#[from] HandshakeError),
    /// Our own policy doesn't let us do business with whom we reached.
    #[error(transparent)]
    NotAllowed(#[from] NotAllowed),
    /// We refused the peer.
    #[error("refused: {}", .0.text.own_sentence())]
    Refused(Refuse),
    /// Somebody who dialled us has proved who it is, and left.
    #[error(
        "{0} proved who it is and left before it said more: its own rules may be against this side; its log says why"
    )]
    LeftBeforeHello(Identity),
    /// Somebody who dialled us and waited until we have a place for it has left.
    #[error("{0} left while it waited to be called")]
    LeftWaiting(Identity),
    /// The socket.
    #[error("the connection broke during the handshake: {0}")]
    Socket(#[from] io::Error),
    /// Too slow.
    #[error(
        "no handshake within {0:?}: the other side accepted the connection and said nothing; all of its places may be taken"
    )]
    Silent(Duration),
    /// A connection that nothing came over.
    #[error("no byte within {0:?}")]
    SaidNothing(Duration),
    /// It stood in others' way.
    #[error("it had not proved who it is when others needed its place")]
    Displaced,
    /// More bytes than an unverified peer may send.
    #[error("got more than {HANDSHAKE_BYTES_MAX} bytes before the peer was verified")]
    TooMuch,
    /// Something that is no TLS record.
    #[error("got bytes that are no TLS record: the other side isn't an exoskel process")]
    NotTls,
    /// The memory that the peer wanted to share isn't what it should be.
    #[error(transparent)]
    SharedMemory(#[from] SharedMemoryError),
    /// Our own message is too large to be sent.
    #[error("our own handshake message can't be sent: {0}")]
    Own(#[from] CodecError),
}

impl From<AnswerError> for EstablishError {
    fn from(error: AnswerError) -> Self {
        match error {
            AnswerError::Refused(refuse) => Self::Refused(refuse),
            AnswerError::Own(error) => Self::Own(error),
        }
    }
}

impl EstablishError {
    /// Whether another attempt may end better.
    #[must_use]
    pub fn may_pass(&self) -> bool {
        match self {
            Self::Socket(_) | Self::Silent(_) => true,
            // Cut off or damaged on the way: nothing was said about who may come in.
            Self::Tls(TlsError::Protocol(fault)) => matches!(
                fault,
                TlsFault::Engine(_) | TlsFault::Buffer(_) | TlsFault::Closed | TlsFault::CutOff
            ),
            _ => self.is_busy(),
        }
    }

    /// What stood between the two.
    #[must_use]
    pub fn hindrance(&self) -> Hindrance {
        match self {
            Self::Tls(TlsError::Peer(_) | TlsError::OwnCertificate(_))
            | Self::Handshake(HandshakeError::Identity { .. }) => Hindrance::Identity,
            Self::Handshake(HandshakeError::Protocol { .. } | HandshakeError::Version { .. }) => {
                Hindrance::Version
            }
            Self::Handshake(HandshakeError::Refused(refuse)) | Self::Refused(refuse) => {
                hindrance_of(&refuse.reason)
            }
            Self::NotAllowed(_) => Hindrance::Rules,
            _ => Hindrance::Way,
        }
    }

    /// Whether one of the two said that it has no place left just now.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        match self {
            Self::Handshake(HandshakeError::Refused(refuse)) | Self::Refused(refuse) => {
                refuse.reason == RefuseReason::Busy
            }
            _ => false,
        }
    }
}

/// What stands between us and who refuses for this reason.
pub(crate) fn hindrance_of(reason: &RefuseReason) -> Hindrance {
    match reason {
        RefuseReason::Version { .. } => Hindrance::Version,
        RefuseReason::Certificate => Hindrance::Identity,
        RefuseReason::Role
        | RefuseReason::NotAllowed
        | RefuseReason::Limit
        | RefuseReason::Cipher => Hindrance::Rules,
        RefuseReason::Busy
        | RefuseReason::Malformed
        | RefuseReason::Unreachable
        | RefuseReason::OtherProcess => Hindrance::Way,
    }
}

/// Makes a session on a socket that we dialled. `name` is whom we meant to reach.
///
/// # Errors
/// See [`EstablishError`].
pub async fn dial(
    socket: Socket,
    config: &NodeConfig,
    name: Option<String>,
) -> Result<Established, EstablishError> {
    let chosen = name.is_some();
    let engine = client_engine(config, name)?;
    let transport = Transport::Stream(socket);
    let dialled = Box::pin(async {
        let purpose = Purpose::Session;
        let asked = Asked::ask(&transport, engine, config, chosen, purpose).await?;
        asked.answered(&transport, config).await
    });
    let agreed = within_handshake_time(config, dialled).await?;
    agreed.begin(transport, config)
}

/// As [`dial`], with somebody who may let us wait for the answer until it needs us. When that is so, `waiting` is called, once.
///
/// # Errors
/// As [`dial`].
pub(crate) async fn knock(
    socket: Socket,
    config: &NodeConfig,
    name: Option<String>,
    waiting: impl FnOnce(),
) -> Result<Established, EstablishError> {
    let chosen = name.is_some();
    let engine = client_engine(config, name)?;
    // Nothing is said while we wait, and the other end's host may go.
    socket.keep_alive()?;
    let transport = Transport::Stream(socket);
    let purpose = Purpose::Session;
    let asked = Box::pin(Asked::ask(&transport, engine, config, chosen, purpose));
    let asked = within_handshake_time(config, asked).await?;
    let answered = async {
        let mut answered = Box::pin(asked.answered(&transport, config));
        tokio::select! {
            agreed = &mut answered => return agreed,
            () = tokio::time::sleep(config.handshake_time) => waiting(),
        }
        answered.await
    };
    let agreed = answered.await?;
    agreed.begin(transport, config)
}

fn client_engine(
    config: &NodeConfig,
    name: Option<String>,
) -> Result<Box<dyn Handshake>, EstablishError> {
    let engine = Tls::client(
        &config.credential,
        config.verifier.clone(),
        config.peer_roles.clone(),
        name,
    )?;
    Ok(Box::new(engine))
}

/// A server that has our Hello, and has not answered it yet.
struct Asked<'a> {
    wire: HandshakeWire<'a>,
    hello: HelloSent,
    path: Path,
    peer: TlsPeer,
    chosen: bool,
}

impl<'a> Asked<'a> {
    async fn ask(
        transport: &'a Transport,
        engine: Box<dyn Handshake>,
        config: &NodeConfig,
        chosen: bool,
        purpose: Purpose,
    ) -> Result<Box<Self>, EstablishError> {
        let mut wire = HandshakeWire::new(transport, engine);
        wire.complete().await?;
        let peer = wire.peer()?;
        if let Err(refused) = config.admit(&peer.identity, chosen) {
            // The other end learns who it was that left.
            wire.write().await?;
            return Err(refused.into());
        }
        let path = transport.path();
        let offer = config.offer(path, ciphers(), &peer.identity);
        let hello = HelloSent::to(purpose, offer)?;
        wire.send(hello.bytes()).await?;
        Ok(Box::new(Self {
            wire,
            hello,
            path,
            peer,
            chosen,
        }))
    }

    async fn answered(
        mut self: Box<Self>,
        transport: &Transport,
        config: &NodeConfig,
    ) -> Result<Agreed, EstablishError> {
        let answer = self.wire.receive().await?;
        let agreement = self.hello.answered(answer, self.peer.identity.identity())?;
        let readiness = transport.readiness()?;
        let memory = if agreement.shares_memory() {
            let offered = Box::pin(self.wire.offer_memory());
            within_handshake_time(config, offered).await?
        } else {
            None
        };
        Ok(Agreed {
            readiness,
            side: Side::Client,
            memory,
            agreement,
            path: self.path,
            peer: self.peer,
            chosen: self.chosen,
        })
    }
}

/// Makes a session on a socket that dialled us. `judge` may refuse an authenticated peer.
///
/// # Errors
/// See [`EstablishError`]. The peer has been told why.
pub async fn welcome(
    socket: Socket,
    config: &NodeConfig,
    judge: impl FnOnce(&Hello, &VerifiedIdentity) -> Result<(), Refuse>,
) -> Result<Established, EstablishError> {
    welcome_called(socket, config, judge, async |_| Ok(())).await
}

/// As [`welcome`], with an answer to whom `judge` lets in that comes when `call` does, however long that takes.
async fn welcome_called(
    socket: Socket,
    config: &NodeConfig,
    judge: impl FnOnce(&Hello, &VerifiedIdentity) -> Result<(), Refuse>,
    call: impl AsyncFnOnce(&VerifiedIdentity) -> Result<(), Refuse>,
) -> Result<Established, EstablishError> {
    let transport = Transport::Stream(socket);
    let heard = Box::pin(async {
        let (mut wire, peer, hello) = hear_hello(&transport, config).await?;
        let peer = TlsPeer {
            identity: config.in_stated_role(peer.identity, &hello),
            ..peer
        };
        let path = transport.path();
        let agreement = Agreement::answer(
            config.offer(path, ciphers(), &peer.identity),
            hello,
            peer.identity.identity(),
            config.admit(&peer.identity, false),
            |hello| judge(hello, &peer.identity),
        );
        if let Err(AnswerError::Refused(refuse)) = &agreement {
            wire.refuse(refuse).await?;
        }
        let agreement = agreement?;
        Ok(Box::new(Heard {
            wire,
            agreement,
            path,
            peer,
        }))
    });
    let heard = within_handshake_time(config, heard).await?;
    let peer = &heard.peer.identity;
    let called = tokio::select! {
        biased;
        called = call(peer) => called,
        // It has nothing to say before it has its answer.
        _ = transport.heard() => {
            return Err(EstablishError::LeftWaiting(peer.identity().clone()));
        }
    };
    let answered = Box::pin(async {
        let Heard {
            mut wire,
            agreement,
            path,
            peer,
        } = *heard;
        if let Err(refuse) = called {
            wire.refuse(&refuse).await?;
            return Err(EstablishError::Refused(refuse));
        }
        let readiness = transport.readiness()?;
        wire.send(agreement.answer_bytes()).await?;
        let memory = if agreement.shares_memory() {
            wire.take_memory().await?
        } else {
            None
        };
        Ok(Agreed {
            readiness,
            side: Side::Server,
            memory,
            agreement,
            path,
            peer,
            chosen: false,
        })
    });
    let agreed = within_handshake_time(config, answered).await?;
    agreed.begin(transport, config)
}

/// The server's part of TLS: who dialled us, and its Hello, which nobody has read.
async fn hear_hello<'a>(
    transport: &'a Transport,
    config: &NodeConfig,
) -> Result<(HandshakeWire<'a>, TlsPeer, Vec<u8>), EstablishError> {
    let engine = Tls::server(
        &config.credential,
        config.verifier.clone(),
        config.peer_roles.clone(),
    )?;
    let mut wire = HandshakeWire::new(transport, Box::new(engine));
    wire.complete().await?;
    let peer = wire.peer()?;
    let hello = wire.receive().await.map_err(|error| match error {
        EstablishError::Socket(_) => {
            EstablishError::LeftBeforeHello(peer.identity.identity().clone())
        }
        other => other,
    })?;
    Ok((wire, peer, hello))
}

/// A client that has said Hello, and has no answer yet.
struct Heard<'a> {
    wire: HandshakeWire<'a>,
    agreement: Agreement,
    path: Path,
    peer: TlsPeer,
}

/// Makes a session on a socket that dialled us and has a place for its handshake, for as long as it has it. The config is asked for
/// when the peer has said something: reading it takes longer than to connect and say nothing. Whom `judge` lets in has its answer
/// when `call` says so.
///
/// # Errors
/// As [`welcome`], [`EstablishError::SaidNothing`] and [`EstablishError::Displaced`].
pub(crate) async fn welcome_in_place(
    socket: Socket,
    config: impl FnOnce() -> NodeConfig,
    judge: impl FnOnce(&Hello, &VerifiedIdentity) -> Result<(), Refuse>,
    call: impl AsyncFnOnce(&VerifiedIdentity) -> Result<(), Refuse>,
    place: &HandshakePlace,
) -> Result<Established, EstablishError> {
    let handshake = async {
        let first = tokio::time::timeout(FIRST_BYTE_TIME, socket.heard()).await;
        first.map_err(|_| EstablishError::SaidNothing(FIRST_BYTE_TIME))??;
        place.has_spoken();
        let config = config();
        welcome_called(socket, &config, judge, call).await
    };
    tokio::select! {
        result = handshake => result,
        () = place.displaced() => Err(EstablishError::Displaced),
    }
}

impl Established {
    /// What the peer said of itself under this name.
    #[must_use]
    pub fn property(&self, name: &str) -> Option<&PeerText> {
        self.properties.get(&PeerText::new(name))
    }
}

/// Judges the peer of a running session by a config that has changed since the session began. A peer that is still good keeps its
/// session, with at least the protections that the policy wants now.
///
/// # Errors
/// Why the session has to end.
pub fn judge_again(
    config: &NodeConfig,
    record: &PeerRecord,
    connection: &Connection,
) -> Result<(), NoLongerGood> {
    let now = UnixTime::since_unix_epoch(unix_time());
    let minimum = config.judge_again(record, now)?;
    connection.with(|session| session.raise_protections(minimum));
    connection.flush();
    Ok(())
}

/// What both sides have said and proved, on either side of the connection.
struct Agreed {
    readiness: EpollSet,
    side: Side,
    /// What the session goes through in the place of the socket.
    memory: Option<PassedMemory>,
    agreement: Agreement,
    path: Path,
    peer: TlsPeer,
    /// Whether we dialled the peer by its name.
    chosen: bool,
}

impl Agreed {
    fn begin(
        self,
        transport: Transport,
        config: &NodeConfig,
    ) -> Result<Established, EstablishError> {
        let Self {
            readiness,
            side,
            memory,
            agreement,
            path,
            peer,
            chosen,
        } = self;
        // Both ends have confirmed to each other which memory it is.
        let is_private = memory.is_some();
        let transport = transport.through(memory, side)?;
        let (identity, proof) = (peer.identity, agreement.proof());
        let chains = Chains {
            own: &peer.own_chain,
            peer: &peer.chain,
        };
        let epoch = Instant::now();
        let expires_at = time_left(&identity);
        let session = agreement.session(
            chains,
            &peer.exporter,
            &config.keys,
            Duration::ZERO,
            |session| {
                session.expires_at = Some(expires_at);
                session.asks = config.asks_for_each_link;
                session.is_private = is_private;
            },
        );
        Ok(Established {
            connection: Connection::new(transport, readiness, session, epoch),
            protections: agreement.protections(),
            own_minimum: config
                .offer(path, Vec::new(), &identity)
                .minimum
                .for_proof(proof),
            proof,
            domain: config.domain(path, &identity, proof),
            trusted_results: config.trusts_results(path, &identity, proof),
            record: PeerRecord {
                peer: identity.clone(),
                path,
                proof,
                chosen,
            },
            message_bytes_max: agreement.message_bytes_max(),
            process: agreement.peer().process,
            side,
            properties: agreement.peer().properties.iter().cloned().collect(),
            peer: identity,
        })
    }
}

/// Lets a handshake take as long as it may, and no longer.
///
/// It comes in a box: what it holds is kilobytes, which every future around it would hold as well, and which an
/// unoptimised build copies onto the stack at each step outwards.
async fn within_handshake_time<T>(
    config: &NodeConfig,
    handshake: Pin<Box<impl Future<Output = Result<T, EstablishError>>>>,
) -> Result<T, EstablishError> {
    tokio::time::timeout(config.handshake_time, handshake)
        .await
        .unwrap_or(Err(EstablishError::Silent(config.handshake_time)))
}

/// How long the peer's identity holds from now on.
fn time_left(peer: &VerifiedIdentity) -> Duration {
    Duration::from_secs(peer.not_after().as_secs()).saturating_sub(unix_time())
}

pub(crate) fn unix_time() -> Duration {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
}

/// The ciphers of our records, the fastest on this processor first.
fn ciphers() -> Vec<CipherSuite> {
    let mut ciphers = CipherSuite::ALL.to_vec();
    if !has_aes() {
        ciphers.reverse();
    }
    ciphers
}

#[cfg(target_arch = "x86_64")]
fn has_aes() -> bool {
    std::arch::is_x86_feature_detected!("aes")
}

#[cfg(target_arch = "aarch64")]
fn has_aes() -> bool {
    std::arch::is_aarch64_feature_detected!("aes")
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn has_aes() -> bool {
    false
}

const CUT_OFF: TlsError = TlsError::Protocol(TlsFault::CutOff);

/// The transport and the TLS engine during the handshake.
struct HandshakeWire<'a> {
    transport: &'a Transport,
    /// Away only while a step of it runs on the pool.
    engine: Option<Box<dyn Handshake>>,
    bytes: usize,
    served: Served,
}

impl<'a> HandshakeWire<'a> {
    fn new(transport: &'a Transport, engine: Box<dyn Handshake>) -> Self {
        Self {
            transport,
            engine: Some(engine),
            bytes: 0,
            served: Served::begin(),
        }
    }

    fn engine(&mut self) -> Result<&mut Box<dyn Handshake>, EstablishError> {
        Ok(self.engine.as_mut().ok_or(CUT_OFF)?)
    }

    /// Comes to where the engine knows who the peer is. What it has to say last leaves with what is [sent](Self::send) next.
    async fn complete(&mut self) -> Result<(), EstablishError> {
        while !self.engine()?.is_complete() {
            self.write().await?;
            self.step().await?;
        }
        Ok(())
    }

    async fn send(&mut self, plaintext: &[u8]) -> Result<(), EstablishError> {
        self.engine()?.send(plaintext)?;
        self.write().await
    }

    /// Tells the peer why it may not come in, and lets it read that.
    async fn refuse(&mut self, refuse: &Refuse) -> Result<(), EstablishError> {
        self.send(&Answer::Refuse(refuse.clone()).encode()?).await?;
        let_it_read(self.transport).await;
        Ok(())
    }

    async fn receive(&mut self) -> Result<Vec<u8>, EstablishError> {
        loop {
            if let Some(plaintext) = self.engine()?.take_plaintext()? {
                return Ok(plaintext);
            }
            self.step().await?;
            self.write().await?;
        }
    }

    /// The client's part behind Accept: makes memory, sends it over the socket, and says inside of TLS which one it is. None when one
    /// of the two has no memory to share; the session goes through the socket then.
    async fn offer_memory(&mut self) -> Result<Option<PassedMemory>, EstablishError> {
        let made = NewMemory::new().ok();
        let offered = made.as_ref().map(|made| made.name);
        self.send(&MemoryName::encode(offered)).await?;
        let Some(made) = made else {
            return Ok(None);
        };
        let socket = self.transport.socket();
        socket.send_descriptor(made.descriptor.as_fd()).await?;
        let answer = self.receive().await?;
        match MemoryName::read(&answer).map_err(HandshakeError::from)? {
            None => Ok(None),
            Some(got) if got == made.name => Ok(Some(made.memory)),
            Some(got) => Err(SharedMemoryError::Replaced {
                got,
                expected: made.name,
            }
            .into()),
        }
    }

    /// The server's part: takes the memory that the client has made, if it is what the client says it is.
    async fn take_memory(&mut self) -> Result<Option<PassedMemory>, EstablishError> {
        let offer = self.receive().await?;
        let Some(name) = MemoryName::read(&offer).map_err(HandshakeError::from)? else {
            return Ok(None);
        };
        let socket = self.transport.socket();
        let descriptor = socket.receive_descriptor().await?;
        let descriptor = descriptor.ok_or(SharedMemoryError::NoDescriptor)?;
        let memory = passing::map(&descriptor, name)?.ok();
        let taken = memory.is_some().then_some(name);
        self.send(&MemoryName::encode(taken)).await?;
        Ok(memory)
    }

    fn peer(&mut self) -> Result<TlsPeer, EstablishError> {
        Ok(self.engine()?.peer()?)
    }

    /// Reads a record and lets the engine work on it: beside this thread where it may be a millisecond of public-key arithmetic.
    async fn step(&mut self) -> Result<(), EstablishError> {
        let is_complete = self.engine()?.is_complete();
        let records = if is_complete {
            vec![self.read_record().await?]
        } else {
            self.read_flight().await?
        };
        // What comes behind the handshake, or is no part of it, is opened in less time than another thread takes to wake.
        let is_light = is_complete || records.iter().all(|record| record[0] == CHANGE_CIPHER_SPEC);
        let mut engine = self.engine.take().ok_or(CUT_OFF)?;
        let receive = move || {
            let result = records.iter().try_for_each(|record| engine.receive(record));
            (engine, result)
        };
        let result = if is_light {
            let (engine, result) = receive();
            self.engine = Some(engine);
            result
        } else {
            let turn = COMPUTING.acquire().await.map_err(|_| CUT_OFF)?;
            let done = self.served.alone_or_beside(receive).await;
            let (engine, result) = done.ok_or(CUT_OFF)?;
            drop(turn);
            self.engine = Some(engine);
            result
        };
        if result.is_err() {
            // It may have an alert to send.
            let written = self.write().await;
            let_it_read(self.transport).await;
            result?;
            written?;
        }
        Ok(())
    }

    /// What has come of the other end's turn: at least one record. Before the handshake is complete the other end has nothing to say that
    /// isn't TLS, up to the answer to Hello.
    async fn read_flight(&mut self) -> Result<Vec<Vec<u8>>, EstablishError> {
        let mut records = vec![self.read_record().await?];
        while self.transport.readable_bytes() >= RECORD_HEADER_BYTES {
            records.push(self.read_record().await?);
        }
        Ok(records)
    }

    async fn read_record(&mut self) -> Result<Vec<u8>, EstablishError> {
        let mut header = [0; RECORD_HEADER_BYTES];
        self.transport.read_exact(&mut header).await?;
        let length = usize::from(u16::from_be_bytes([header[3], header[4]]));
        // Content types 20 to 23 and a version of 3.x are all that TLS has.
        if !(20..=23).contains(&header[0]) || header[1] != 3 || length > TLS_RECORD_MAX {
            return Err(EstablishError::NotTls);
        }
        self.bytes += header.len() + length;
        if self.bytes > HANDSHAKE_BYTES_MAX {
            return Err(EstablishError::TooMuch);
        }
        let mut record = vec![0; header.len() + length];
        let (front, body) = record.split_at_mut(RECORD_HEADER_BYTES);
        front.copy_from_slice(&header);
        self.transport.read_exact(body).await?;
        Ok(record)
    }

    async fn write(&mut self) -> Result<(), EstablishError> {
        let mut out = Vec::new();
        self.engine()?.take_outgoing(&mut out);
        self.transport.write_all(&out).await?;
        Ok(())
    }
}

/// The content type of the one record that TLS 1.3 sends for the sake of old boxes in the network, and that says nothing.
const CHANGE_CIPHER_SPEC: u8 = 20;

/// More threads than this would only wait for each other: there are few machines with so many cores.
const COMPUTING_MAX: usize = 64;

/// Handshakes whose public-key arithmetic is under way.
static COMPUTING: Semaphore = Semaphore::const_new(COMPUTING_MAX);

/// Lets the peer read why it was refused.
async fn let_it_read(transport: &Transport) {
    transport
        .linger(None, REFUSAL_TIME, HANDSHAKE_BYTES_MAX)
        .await;
}
