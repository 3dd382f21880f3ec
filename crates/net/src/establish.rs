//! From a connected socket to a session: TLS, Hello, the answer, and the secret that follows.
//!
//! What stands here is the driver; what is said and judged is in `exoskel_link::handshake` and `exoskel_identity`.
//! The peer's bytes are read one TLS record at a time and never beyond, so that what follows the answer is the
//! session's own.

use std::collections::BTreeMap;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use exoskel_identity::{
    Credential, Expected, Identity, IdentityError, PeerText, PeerVerifier, Role, VerifiedIdentity,
};
use exoskel_link::handshake::{
    Accept, Answer, HandshakeError, Hello, PROTOCOL, Path, Refuse, RefuseReason, ServerTerms,
    accept, check_accept, session_config, session_secret,
};
use exoskel_link::keys::KeyStore;
use exoskel_link::policy::{Node, Place, Policy, Proof, Wire};
use exoskel_link::{
    CipherSuite, CodecError, Limits, Protection, Protections, Session, SessionSecret, Side,
};

use rustls::pki_types::{CertificateDer, UnixTime};

use crate::connection::Connection;
use crate::reception::HandshakePlace;
use crate::socket::Socket;
use crate::sources::TermsError;
use crate::tls::{Handshake, Proof as TlsProof, Tls, TlsError};

/// Bytes that a peer may make us read before it is verified.
const HANDSHAKE_BYTES_MAX: usize = 128 * 1024;

/// Bytes of one TLS record at most (RFC 8446, section 5.2), without its header.
const TLS_RECORD_MAX: usize = 16_384 + 256;

/// How long a peer that dialled us may take to begin its handshake.
const FIRST_BYTE_TIME: Duration = Duration::from_secs(5);

/// How long a refused peer may take to read why.
const REFUSAL_TIME: Duration = Duration::from_millis(500);

/// Names the running kernel: a random number that it draws when it starts, the same in all of its containers.
const MACHINE: &str = "/proc/sys/kernel/random/boot_id";

/// What this node brings to every handshake.
#[derive(Clone)]
pub struct Terms {
    /// Who we are.
    pub credential: Arc<Credential>,
    /// Who judges the peers.
    pub verifier: Arc<dyn PeerVerifier>,
    /// What wires get.
    pub policy: Arc<Policy>,
    /// The roles a peer may have.
    pub peer_roles: Vec<Role>,
    /// Nothing of class data goes below this, whatever the policy says.
    pub floor: Protection,
    /// What we are willing to hold.
    pub limits: Limits,
    /// A silent peer is dead after this time.
    pub dead_after: Duration,
    /// How long a handshake may take.
    pub patience: Duration,
    /// Software versions; those named in [`Terms::same_versions`] must agree.
    pub versions: Vec<(String, String)>,
    /// Names of versions that both ends must share.
    pub same_versions: Vec<String>,
    /// The keys of all our sessions.
    pub keys: KeyStore,
    /// The group (process or job) we belong to.
    pub group: u32,
    /// Anything else, for the peer.
    pub properties: Vec<(String, String)>,
}

/// A session that can begin.
pub struct Established {
    /// The session on its socket.
    pub connection: Arc<Connection>,
    /// Who the peer is.
    pub peer: VerifiedIdentity,
    /// What was agreed.
    pub protections: Protections,
    /// How sure we are where the peer is.
    pub proof: Proof,
    /// Whether we dialled the peer by its name.
    pub chosen: bool,
    /// The trust domain the peer is in, or none.
    pub domain: Option<String>,
    /// Whether what it sends may be unpickled without restrictions.
    pub trusted_results: bool,
    /// The peer's certificates as presented, leaf first, DER: what it is judged by again when trust changes.
    pub peer_chain: Vec<Vec<u8>>,
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
    #[error("{0}")]
    NotAllowed(String),
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
    NoTerms(#[from] TermsError),
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
    /// Versions that must agree don't.
    #[error(
        "got {of} {got} at the peer, expected {expected}: install the same {of} on both machines"
    )]
    Version {
        /// What has to agree.
        of: String,
        /// The peer's.
        got: PeerText,
        /// Ours.
        expected: String,
    },
}

/// Why a running session has to end when it is judged again.
#[derive(Debug, thiserror::Error)]
pub enum JudgementError {
    /// The peer's certificates no longer prove who it is.
    #[error(transparent)]
    Certificate(#[from] IdentityError),
    /// Our own policy no longer lets us do business with the peer.
    #[error("{0}")]
    NotAllowed(String),
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
    terms: &Terms,
    name: Option<String>,
) -> Result<Established, EstablishError> {
    let chosen = name.is_some();
    let engine = Tls::client(
        &terms.credential,
        terms.verifier.clone(),
        terms.peer_roles.clone(),
        name,
    )?;
    let dialled = Box::pin(async {
        let mut wire = HandshakeWire::new(&socket, Box::new(engine));
        wire.complete().await?;
        let proof = wire.proof()?;
        let admission = terms.policy.admission(&proof.peer, chosen);
        if !admission.is_allowed() {
            return Err(EstablishError::NotAllowed(format!(
                "{}: {admission}",
                proof.peer.identity()
            )));
        }
        let hello = terms.hello(&socket, &proof.peer);
        let hello_bytes = hello.encode()?;
        wire.send(&hello_bytes).await?;
        let answer_bytes = wire.receive().await?;
        let accepted = match Answer::read(&answer_bytes)? {
            Answer::Accept(accepted) => accepted,
            Answer::Refuse(refuse) => return Err(HandshakeError::Refused(refuse).into()),
        };
        let way = check_accept(&hello, &accepted, proof.peer.identity())?;
        if let Some(Mismatch { of, got, expected }) = terms.mismatch(&accepted.versions) {
            return Err(EstablishError::Version { of, got, expected });
        }
        Ok(Agreement {
            side: Side::Client,
            proof,
            hello,
            hello_bytes,
            accepted,
            answer_bytes,
            way,
            chosen,
        })
    });
    let agreement = terms.within_patience(dialled).await?;
    terms.begin(socket, agreement)
}

/// Makes a session on a socket that dialled us. `judge` may refuse an authenticated peer.
///
/// # Errors
/// See [`EstablishError`]. The peer has been told why.
pub async fn welcome(
    socket: Socket,
    terms: &Terms,
    judge: impl FnOnce(&Hello, &VerifiedIdentity) -> Result<(), Refuse>,
) -> Result<Established, EstablishError> {
    let engine = Tls::server(
        &terms.credential,
        terms.verifier.clone(),
        terms.peer_roles.clone(),
    )?;
    let welcomed = Box::pin(async {
        let mut wire = HandshakeWire::new(&socket, Box::new(engine));
        wire.complete().await?;
        let hello_bytes = wire.receive().await?;
        let proof = wire.proof()?;
        let answer = match Hello::read(&hello_bytes) {
            Ok(hello) => terms
                .answer(&socket, &hello, &proof.peer, judge)
                .map(|(accepted, way)| (hello, accepted, way)),
            Err(error) => Err(error.refusal()),
        };
        let (hello, accepted, way) = match answer {
            Ok(parts) => parts,
            Err(refuse) => {
                wire.send(&Answer::Refuse(refuse.clone()).encode()?).await?;
                drain(wire.socket).await;
                return Err(EstablishError::Refused(refuse));
            }
        };
        let answer_bytes = Answer::Accept(accepted.clone()).encode()?;
        wire.send(&answer_bytes).await?;
        Ok(Agreement {
            side: Side::Server,
            proof,
            hello,
            hello_bytes,
            accepted,
            answer_bytes,
            way,
            chosen: false,
        })
    });
    let agreement = terms.within_patience(welcomed).await?;
    terms.begin(socket, agreement)
}

/// Makes a session on a socket that dialled us and has a place for its handshake, for as long as it has it. The terms are asked for
/// when the peer has said something: reading them takes longer than to connect and say nothing.
///
/// # Errors
/// As [`welcome`], [`EstablishError::SaidNothing`] and [`EstablishError::Displaced`].
pub(crate) async fn welcome_in_place(
    socket: Socket,
    terms: impl FnOnce() -> Result<Terms, TermsError>,
    judge: impl FnOnce(&Hello, &VerifiedIdentity) -> Result<(), Refuse>,
    place: &HandshakePlace,
) -> Result<Established, EstablishError> {
    let handshake = async {
        let first = tokio::time::timeout(FIRST_BYTE_TIME, socket.heard()).await;
        first.map_err(|_| EstablishError::SaidNothing(FIRST_BYTE_TIME))??;
        place.has_spoken();
        let terms = terms()?;
        welcome(socket, &terms, judge).await
    };
    tokio::select! {
        result = handshake => result,
        () = place.displaced() => Err(EstablishError::Displaced),
    }
}

/// What a running session is judged by again.
#[derive(Debug, Clone)]
pub struct Standing {
    peer: Identity,
    chain: Vec<Vec<u8>>,
    proof: Proof,
    chosen: bool,
}

impl Established {
    /// What the peer said of itself under this name.
    #[must_use]
    pub fn property(&self, name: &str) -> Option<&PeerText> {
        self.properties.get(&PeerText::new(name))
    }

    /// What the session is judged by again when trust or policy change.
    #[must_use]
    pub fn standing(&self) -> Standing {
        Standing {
            peer: self.peer.identity().clone(),
            chain: self.peer_chain.clone(),
            proof: self.proof,
            chosen: self.chosen,
        }
    }
}

/// What both sides have said and proved, on either side of the connection.
struct Agreement {
    side: Side,
    proof: TlsProof,
    hello: Hello,
    hello_bytes: Vec<u8>,
    accepted: Accept,
    answer_bytes: Vec<u8>,
    way: Proof,
    /// Whether we dialled the peer by its name.
    chosen: bool,
}

impl Agreement {
    /// The session's secret. The chains stand in the transcript as client's and server's, whoever we are.
    fn secret(&self) -> SessionSecret {
        let (own, peer) = (
            slices(&self.proof.own_chain),
            slices(&self.proof.peer_chain),
        );
        let (client, server) = match self.side {
            Side::Client => (own, peer),
            Side::Server => (peer, own),
        };
        session_secret(
            &self.hello_bytes,
            &self.answer_bytes,
            &client,
            &server,
            &self.proof.exporter,
        )
    }

    /// What the peer said of itself.
    fn peer_properties(&self) -> BTreeMap<PeerText, PeerText> {
        let properties = match self.side {
            Side::Client => &self.accepted.properties,
            Side::Server => &self.hello.properties,
        };
        properties.iter().cloned().collect()
    }
}

/// Versions that should agree and don't.
struct Mismatch {
    of: String,
    got: PeerText,
    expected: String,
}

/// Statements of ours as they travel.
fn stated(pairs: &[(String, String)]) -> Vec<(PeerText, PeerText)> {
    let pair = |(name, value): &(String, String)| (name.as_str().into(), value.as_str().into());
    pairs.iter().map(pair).collect()
}

impl Terms {
    fn hello(&self, socket: &Socket, peer: &VerifiedIdentity) -> Hello {
        let path = path(socket);
        let proof = if matches!(path, Path::SameHost { .. }) {
            Proof::SameHost
        } else {
            Proof::Direct
        };
        Hello {
            protocol: PROTOCOL,
            identity: self.credential.identity(),
            floors: self.floors(socket, peer, proof),
            floors_unproven: self.floors(socket, peer, Proof::Unproven),
            ciphers: ciphers(),
            limits: self.limits,
            dead_after: self.dead_after,
            versions: stated(&self.versions),
            path,
            policy_generation: self.policy.generation(),
            group: self.group,
            properties: stated(&self.properties),
        }
    }

    fn answer(
        &self,
        socket: &Socket,
        hello: &Hello,
        peer: &VerifiedIdentity,
        judge: impl FnOnce(&Hello, &VerifiedIdentity) -> Result<(), Refuse>,
    ) -> Result<(Accept, Proof), Refuse> {
        let admission = self.policy.admission(peer, false);
        if !admission.is_allowed() {
            return Err(Refuse {
                reason: RefuseReason::NotAllowed,
                text: format!("{}: {admission}", peer.identity()).into(),
            });
        }
        // Not earlier: who isn't admitted has no say in what stands in our log.
        if let Some(Mismatch { of, got, expected }) = self.mismatch(&hello.versions) {
            let text = format!(
                "got {of} {got}, expected {expected}: install the same {of} on both machines"
            );
            let (of, expected) = (of.into(), expected.into());
            return Err(Refuse {
                reason: RefuseReason::Version { of, expected, got },
                text: text.into(),
            });
        }
        judge(hello, peer)?;
        let path = path(socket);
        let terms = ServerTerms {
            identity: self.credential.identity(),
            path,
            ciphers: ciphers(),
            limits: self.limits,
            dead_after: self.dead_after,
            versions: stated(&self.versions),
            policy_generation: self.policy.generation(),
            group: self.group,
            properties: stated(&self.properties),
        };
        let mut way = Proof::Unproven;
        let accepted = accept(hello, peer.identity(), terms, |proof| {
            way = proof;
            self.floors(socket, peer, proof)
        })?;
        Ok((accepted, way))
    }

    /// Judges the peer of a running session by these terms, which have changed since it began.
    ///
    /// A peer that is still good keeps its session, with at least the protections that the policy wants now.
    ///
    /// # Errors
    /// Why the session has to end.
    pub fn judge_again(
        &self,
        standing: &Standing,
        connection: &Connection,
    ) -> Result<(), JudgementError> {
        let chain: Vec<CertificateDer<'_>> = standing
            .chain
            .iter()
            .map(|der| CertificateDer::from(der.as_slice()))
            .collect();
        let expected = Expected {
            roles: &[standing.peer.role],
            name: Some(&standing.peer.name),
        };
        let now = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        let verdict = self
            .verifier
            .verify(&chain, UnixTime::since_unix_epoch(now), &expected);
        let peer = verdict?;
        let admission = self.policy.admission(&peer, standing.chosen);
        if !admission.is_allowed() {
            return Err(JudgementError::NotAllowed(format!(
                "{}: {admission}",
                peer.identity()
            )));
        }
        let floors = self.floors(connection.socket(), &peer, standing.proof);
        connection.with(|session| session.raise_protections(floors));
        connection.flush();
        Ok(())
    }

    /// The least that our policy wants for each class on this wire.
    fn floors(&self, socket: &Socket, peer: &VerifiedIdentity, proof: Proof) -> Protections {
        let own = self.credential.identity();
        let wire = self.wire(&own, socket, peer, proof);
        let floors = self.policy.protections(&wire);
        Protections {
            code: floors.code.max(self.floor),
            data: floors.data.max(self.floor),
            ..floors
        }
    }

    fn wire<'a>(
        &'a self,
        own: &'a Identity,
        socket: &Socket,
        peer: &'a VerifiedIdentity,
        proof: Proof,
    ) -> Wire<'a> {
        let addresses = socket.addresses();
        Wire {
            local: Place {
                address: addresses.map(|pair| pair.0.ip()),
                node: Some(Node {
                    name: &own.name,
                    subject: self.credential.grid_subject(),
                    // Whatever we are, we are at our own end of the wire.
                    is_independent: false,
                }),
            },
            remote: Place {
                address: addresses.map(|pair| pair.1.ip()),
                node: Some(Node::from(peer)),
            },
            proof,
        }
    }

    /// What doesn't agree of the versions that must.
    fn mismatch(&self, peer: &[(PeerText, PeerText)]) -> Option<Mismatch> {
        self.same_versions.iter().find_map(|name| {
            let theirs = peer.iter().find(|(of, _)| of.is(name));
            let got = theirs.map_or_else(|| "none".into(), |(_, version)| version.clone());
            let ours = self.versions.iter().find(|(of, _)| of == name);
            let expected = ours.map_or("none", |(_, version)| version);
            (!got.is(expected)).then(|| Mismatch {
                of: name.clone(),
                got,
                expected: expected.to_owned(),
            })
        })
    }

    /// Lets a handshake take as long as it may, and no longer.
    ///
    /// It comes in a box: what it holds is kilobytes, which every future around it would hold as well, and which an
    /// unoptimised build copies onto the stack at each step outwards.
    async fn within_patience(
        &self,
        handshake: Pin<Box<impl Future<Output = Result<Agreement, EstablishError>>>>,
    ) -> Result<Agreement, EstablishError> {
        tokio::time::timeout(self.patience, handshake)
            .await
            .unwrap_or(Err(EstablishError::Silent(self.patience)))
    }

    fn begin(&self, socket: Socket, agreement: Agreement) -> Result<Established, EstablishError> {
        let (secret, properties) = (agreement.secret(), agreement.peer_properties());
        let Agreement {
            side,
            proof,
            hello,
            accepted,
            way,
            chosen,
            ..
        } = agreement;
        let peer = proof.peer;
        let own = self.credential.identity();
        let wire = self.wire(&own, &socket, &peer, way);
        let domain = self
            .policy
            .remote_domains(&wire)
            .first()
            .map(|&domain| domain.to_owned());
        let trusted_results = self.policy.results_pickle(&wire);
        let mut config = session_config(side, &hello, &accepted);
        let epoch = Instant::now();
        config.expires_at = Some(time_left(&peer));
        let protections = config.protections;
        let message_bytes_max = config
            .limits
            .message_bytes_max
            .min(config.peer_limits.message_bytes_max);
        let session = Session::new(config, secret, &self.keys, Duration::ZERO);
        Ok(Established {
            connection: Connection::new(socket, session, epoch)?,
            peer,
            protections,
            proof: way,
            chosen,
            domain,
            trusted_results,
            peer_chain: proof.peer_chain,
            message_bytes_max,
            properties,
        })
    }
}

/// How long the peer's identity holds from now on.
fn time_left(peer: &VerifiedIdentity) -> Duration {
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    Duration::from_secs(peer.not_after().as_secs()).saturating_sub(now)
}

/// How this end sees the way. Only the kernel's word about a Unix socket counts as the same host.
fn path(socket: &Socket) -> Path {
    if let Some((local, remote)) = socket.addresses() {
        return Path::Network { local, remote };
    }
    match std::fs::read(MACHINE) {
        Ok(machine) if socket.proven_same_host() => {
            let name = socket.unix_path().unwrap_or_default();
            Path::same_host(machine.trim_ascii_end(), name.as_os_str().as_bytes())
        }
        // A machine that can't be named is nobody's.
        _ => Path::Relayed,
    }
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

fn slices(chain: &[Vec<u8>]) -> Vec<&[u8]> {
    chain.iter().map(Vec::as_slice).collect()
}

/// The socket and the TLS engine during the handshake.
struct HandshakeWire<'a> {
    socket: &'a Socket,
    /// Away only while a step of it runs on the pool.
    engine: Option<Box<dyn Handshake>>,
    bytes: usize,
}

impl<'a> HandshakeWire<'a> {
    fn new(socket: &'a Socket, engine: Box<dyn Handshake>) -> Self {
        Self {
            socket,
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

    fn proof(&mut self) -> Result<TlsProof, EstablishError> {
        Ok(self.engine()?.proof()?)
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
            drain(self.socket).await;
        }
        result?;
        written
    }

    async fn read_record(&mut self) -> Result<Vec<u8>, EstablishError> {
        let mut header = [0; 5];
        self.socket.read_exact(&mut header).await?;
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
        self.socket.read_exact(&mut record[5..]).await?;
        Ok(record)
    }

    async fn write(&mut self) -> Result<(), EstablishError> {
        let mut out = Vec::new();
        self.engine()?.take_outgoing(&mut out);
        self.socket.write_all(&out).await?;
        Ok(())
    }
}

/// Lets the peer read why it was refused: a close with unread bytes would reset the connection instead.
async fn drain(socket: &Socket) {
    socket.shutdown_write();
    let drain = async {
        // Not an array: that would be part of every future that may come to this.
        let mut sink = vec![0; 4096];
        for _ in 0..HANDSHAKE_BYTES_MAX / sink.len() {
            let mut one = [0; 1];
            if socket.read_exact(&mut one).await.is_err() {
                return;
            }
            let _ = socket.try_read(&mut sink);
        }
    };
    let _ = tokio::time::timeout(REFUSAL_TIME, drain).await;
}
