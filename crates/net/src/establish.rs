//! From a connected socket to a session: TLS, Hello, the answer, and the secret that follows.
//!
//! What stands here moves the bytes and keeps the time; what is said and judged is in `exoskel_link::handshake` and
//! `exoskel_identity`. The peer's bytes are read one TLS record at a time and never beyond, so that what follows the
//! answer is the session's own.

use std::collections::BTreeMap;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use exoskel_identity::{PeerText, VerifiedIdentity};
use exoskel_link::handshake::{
    Agreement, Answer, AnswerError, Chains, HandshakeError, Hello, HelloSent, NotAllowed, Path,
    Refuse, RefuseReason,
};
pub use exoskel_link::handshake::{NoLongerGood, NodeConfig, PeerRecord};
use exoskel_link::policy::PlaceProof;
use exoskel_link::{CipherSuite, CodecError, Protections};
use rustls::pki_types::UnixTime;

use crate::connection::Connection;
use crate::reception::HandshakePlace;
use crate::socket::Socket;
use crate::sources::NodeConfigError;
use crate::tls::{Handshake, Tls, TlsError, TlsPeer};
use crate::transport::Transport;

/// Bytes that a peer may make us read before it is verified.
const HANDSHAKE_BYTES_MAX: usize = 128 * 1024;

/// Bytes of one TLS record at most (RFC 8446, section 5.2), without its header.
const TLS_RECORD_MAX: usize = 16_384 + 256;

/// How long a peer that dialled us may take to begin its handshake.
const FIRST_BYTE_TIME: Duration = Duration::from_secs(5);

/// How long a refused peer may take to read why.
const REFUSAL_TIME: Duration = Duration::from_millis(500);

/// A session that can begin.
pub struct Established {
    /// The session on its transport.
    pub connection: Arc<Connection>,
    /// Who the peer is.
    pub peer: VerifiedIdentity,
    /// What was agreed.
    pub protections: Protections,
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
    /// The socket.
    #[error("the connection broke during the handshake: {0}")]
    Socket(#[from] io::Error),
    /// Too slow.
    #[error(
        "no handshake within {0:?}: the other side accepted the connection and said nothing; all of its slots may be taken"
    )]
    Silent(Duration),
    /// A connection that nothing came over.
    #[error("no byte within {0:?}")]
    SaidNothing(Duration),
    /// Our own credential, trust or policy can't be used.
    #[error(transparent)]
    NoConfig(#[from] NodeConfigError),
    /// It stood in others' way.
    #[error("it had not proved who it is when others needed its place")]
    Displaced,
    /// More bytes than an unverified peer may send.
    #[error("got more than {HANDSHAKE_BYTES_MAX} bytes before the peer was verified")]
    TooMuch,
    /// Something that is no TLS record.
    #[error("got bytes that are no TLS record: the other side isn't an exoskel process")]
    NotTls,
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
            _ => self.is_busy(),
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
    let engine = Tls::client(
        &config.credential,
        config.verifier.clone(),
        config.peer_roles.clone(),
        name,
    )?;
    let transport = Transport::stream(socket)?;
    let dialled = Box::pin(async {
        let mut wire = HandshakeWire::new(&transport, Box::new(engine));
        wire.complete().await?;
        let peer = wire.peer()?;
        config.admit(&peer.identity, chosen)?;
        let path = transport.path();
        let hello = HelloSent::new(config.offer(path, ciphers(), &peer.identity))?;
        wire.send(hello.bytes()).await?;
        let answer = wire.receive().await?;
        let agreement = hello.answered(answer, peer.identity.identity())?;
        Ok(Agreed {
            agreement,
            path,
            peer,
            chosen,
        })
    });
    let agreed = within_patience(config, dialled).await?;
    Ok(agreed.begin(transport, config))
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
    let engine = Tls::server(
        &config.credential,
        config.verifier.clone(),
        config.peer_roles.clone(),
    )?;
    let transport = Transport::stream(socket)?;
    let welcomed = Box::pin(async {
        let mut wire = HandshakeWire::new(&transport, Box::new(engine));
        wire.complete().await?;
        let hello = wire.receive().await?;
        let peer = wire.peer()?;
        let path = transport.path();
        let agreement = Agreement::answer(
            config.offer(path, ciphers(), &peer.identity),
            hello,
            peer.identity.identity(),
            config.admit(&peer.identity, false),
            |hello| judge(hello, &peer.identity),
        );
        if let Err(AnswerError::Refused(refuse)) = &agreement {
            wire.send(&Answer::Refuse(refuse.clone()).encode()?).await?;
            let_it_read(&transport).await;
        }
        let agreement = agreement?;
        wire.send(agreement.answer_bytes()).await?;
        Ok(Agreed {
            agreement,
            path,
            peer,
            chosen: false,
        })
    });
    let agreed = within_patience(config, welcomed).await?;
    Ok(agreed.begin(transport, config))
}

/// Makes a session on a socket that dialled us and has a place for its handshake, for as long as it has it. The config is asked for
/// when the peer has said something: reading it takes longer than to connect and say nothing.
///
/// # Errors
/// As [`welcome`], [`EstablishError::SaidNothing`] and [`EstablishError::Displaced`].
pub(crate) async fn welcome_in_place(
    socket: Socket,
    config: impl FnOnce() -> Result<NodeConfig, NodeConfigError>,
    judge: impl FnOnce(&Hello, &VerifiedIdentity) -> Result<(), Refuse>,
    place: &HandshakePlace,
) -> Result<Established, EstablishError> {
    let handshake = async {
        let first = tokio::time::timeout(FIRST_BYTE_TIME, socket.heard()).await;
        first.map_err(|_| EstablishError::SaidNothing(FIRST_BYTE_TIME))??;
        place.has_spoken();
        let config = config()?;
        welcome(socket, &config, judge).await
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
    agreement: Agreement,
    path: Path,
    peer: TlsPeer,
    /// Whether we dialled the peer by its name.
    chosen: bool,
}

impl Agreed {
    fn begin(self, transport: Transport, config: &NodeConfig) -> Established {
        let Self {
            agreement,
            path,
            peer,
            chosen,
        } = self;
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
            |session| session.expires_at = Some(expires_at),
        );
        Established {
            connection: Connection::new(transport, session, epoch),
            protections: agreement.protections(),
            proof,
            domain: config.domain(path, &identity, proof),
            trusted_results: config.trusts_results(path, &identity, proof),
            record: PeerRecord {
                identity: identity.identity().clone(),
                chain: peer.chain,
                path,
                proof,
                chosen,
            },
            message_bytes_max: agreement.message_bytes_max(),
            properties: agreement.peer().properties.iter().cloned().collect(),
            peer: identity,
        }
    }
}

/// Lets a handshake take as long as it may, and no longer.
///
/// It comes in a box: what it holds is kilobytes, which every future around it would hold as well, and which an
/// unoptimised build copies onto the stack at each step outwards.
async fn within_patience(
    config: &NodeConfig,
    handshake: Pin<Box<impl Future<Output = Result<Agreed, EstablishError>>>>,
) -> Result<Agreed, EstablishError> {
    tokio::time::timeout(config.patience, handshake)
        .await
        .unwrap_or(Err(EstablishError::Silent(config.patience)))
}

/// How long the peer's identity holds from now on.
fn time_left(peer: &VerifiedIdentity) -> Duration {
    Duration::from_secs(peer.not_after().as_secs()).saturating_sub(unix_time())
}

fn unix_time() -> Duration {
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

/// The transport and the TLS engine during the handshake.
struct HandshakeWire<'a> {
    transport: &'a Transport,
    /// Away only while a step of it runs on the pool.
    engine: Option<Box<dyn Handshake>>,
    bytes: usize,
}

impl<'a> HandshakeWire<'a> {
    fn new(transport: &'a Transport, engine: Box<dyn Handshake>) -> Self {
        Self {
            transport,
            engine: Some(engine),
            bytes: 0,
        }
    }

    fn engine(&mut self) -> Result<&mut Box<dyn Handshake>, EstablishError> {
        let gone = || {
            EstablishError::Tls(TlsError::Protocol(
                "a step of the handshake was cut off".to_owned(),
            ))
        };
        self.engine.as_mut().ok_or_else(gone)
    }

    async fn complete(&mut self) -> Result<(), EstablishError> {
        self.write().await?;
        while !self.engine()?.is_complete() {
            self.step().await?;
        }
        Ok(())
    }

    async fn send(&mut self, plaintext: &[u8]) -> Result<(), EstablishError> {
        self.engine()?.send(plaintext)?;
        self.write().await
    }

    async fn receive(&mut self) -> Result<Vec<u8>, EstablishError> {
        loop {
            if let Some(plaintext) = self.engine()?.take_plaintext()? {
                return Ok(plaintext);
            }
            self.step().await?;
        }
    }

    fn peer(&mut self) -> Result<TlsPeer, EstablishError> {
        Ok(self.engine()?.peer()?)
    }

    /// Reads one record and lets the engine work on it, on the pool: it may be a millisecond of public-key arithmetic.
    async fn step(&mut self) -> Result<(), EstablishError> {
        let record = self.read_record().await?;
        let gone = || {
            EstablishError::Tls(TlsError::Protocol(
                "a step of the handshake was cut off".to_owned(),
            ))
        };
        let mut engine = self.engine.take().ok_or_else(gone)?;
        let work = move || {
            let result = engine.receive(&record);
            (engine, result)
        };
        let (engine, result) = tokio::task::spawn_blocking(work)
            .await
            .map_err(|_| gone())?;
        self.engine = Some(engine);
        // Even a failed step may have an alert to send.
        let written = self.write().await;
        if result.is_err() {
            let_it_read(self.transport).await;
        }
        result?;
        written
    }

    async fn read_record(&mut self) -> Result<Vec<u8>, EstablishError> {
        let mut header = [0; 5];
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
        record[..5].copy_from_slice(&header);
        self.transport.read_exact(&mut record[5..]).await?;
        Ok(record)
    }

    async fn write(&mut self) -> Result<(), EstablishError> {
        let mut out = Vec::new();
        self.engine()?.take_outgoing(&mut out);
        self.transport.write_all(&out).await?;
        Ok(())
    }
}

/// Lets the peer read why it was refused.
async fn let_it_read(transport: &Transport) {
    transport.linger(REFUSAL_TIME, HANDSHAKE_BYTES_MAX).await;
}
