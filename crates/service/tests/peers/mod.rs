//! What the tests need on the other side of the door: an authority that can be changed while it judges, certificates,
//! and a client that speaks real TLS.
#![allow(
    dead_code,
    missing_docs,
    unreachable_pub,
    clippy::unwrap_used,
    reason = "each test binary uses its own part"
)]

pub mod behind;
pub mod fronts;

use std::net::SocketAddr;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, RwLock};

use exoskel_identity::{
    Expected, Identity, IdentityError, PeerVerifier, PrivateAuthority, Role, VerifiedIdentity,
};
use exoskel_service::{
    Handler, HostCredential, Renewable, Renewal, Server, ServerHandle, Settings, StartError,
};
use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, DnType,
    ExtendedKeyUsagePurpose, IsCa, Issuer, KeyIdMethod, KeyPair, KeyUsagePurpose,
    RevokedCertParams, SanType, SerialNumber,
};
use rustls::pki_types::{
    CertificateDer, CertificateRevocationListDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName,
    UnixTime,
};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{ClientConfig, RootCertStore};
use time::{Duration, OffsetDateTime};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// An authority whose revocations can change while a server uses it.
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    root: CertificateDer<'static>,
    revoked: RwLock<Vec<u64>>,
    current: RwLock<Arc<PrivateAuthority>>,
    generation: AtomicU64,
    serial: AtomicU64,
    /// Called for each verdict, with the serial number of the leaf.
    pub watcher: RwLock<Option<Box<dyn Fn() + Send + Sync>>>,
}

/// A certificate of the authority with its key.
#[derive(Clone)]
pub struct Card {
    pub serial: u64,
    pub chain: Vec<CertificateDer<'static>>,
    pub key: Arc<PrivateKeyDer<'static>>,
}

impl Authority {
    pub fn new() -> Arc<Self> {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        params
            .distinguished_name
            .push(DnType::CommonName, "test authority");
        let root = params.self_signed(&key).unwrap().der().clone();
        let issuer = Issuer::new(params, key);
        let current = PrivateAuthority::new(std::slice::from_ref(&root), &[], 0).unwrap();
        Arc::new(Self {
            issuer,
            root,
            revoked: RwLock::default(),
            current: RwLock::new(Arc::new(current)),
            generation: AtomicU64::new(0),
            serial: AtomicU64::new(1),
            watcher: RwLock::default(),
        })
    }

    fn params(&self) -> (u64, CertificateParams) {
        let serial = self.serial.fetch_add(1, Ordering::Relaxed);
        let mut params = params(serial);
        params.extended_key_usages = vec![
            ExtendedKeyUsagePurpose::ClientAuth,
            ExtendedKeyUsagePurpose::ServerAuth,
        ];
        (serial, params)
    }

    fn issue(&self, serial: u64, params: &CertificateParams) -> Card {
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        Card {
            serial,
            chain: vec![certificate.der().clone()],
            key: Arc::new(PrivatePkcs8KeyDer::from(key.serialize_der()).into()),
        }
    }

    /// A user's certificate.
    pub fn user(&self, name: &str) -> Card {
        let (serial, mut params) = self.params();
        params.distinguished_name.push(DnType::CommonName, name);
        let identity = Identity::new(Role::Manager, name).unwrap();
        params.subject_alt_names = identity
            .to_uris()
            .into_iter()
            .map(|uri| SanType::URI(uri.try_into().unwrap()))
            .collect();
        self.issue(serial, &params)
    }

    /// A host certificate for `localhost`, in files.
    pub fn host(&self, directory: &Path) -> HostCredential {
        use ExtendedKeyUsagePurpose::{ClientAuth, ServerAuth};
        self.host_for(directory, &[ClientAuth, ServerAuth])
    }

    /// The same for these purposes.
    pub fn host_for(
        &self,
        directory: &Path,
        purposes: &[ExtendedKeyUsagePurpose],
    ) -> HostCredential {
        let (serial, mut params) = self.params();
        params.extended_key_usages = purposes.to_vec();
        params
            .distinguished_name
            .push(DnType::CommonName, "localhost");
        params.subject_alt_names = vec![SanType::DnsName("localhost".try_into().unwrap())];
        let card = self.issue(serial, &params);
        let credential = HostCredential {
            certificate: directory.join("hostcert.pem"),
            key: directory.join("hostkey.pem"),
        };
        write(
            &credential.certificate,
            "CERTIFICATE",
            &card.chain[0],
            0o644,
        );
        write(&credential.key, "PRIVATE KEY", card.key.secret_der(), 0o600);
        credential
    }

    /// A directory of authorities with this one and its list, which is good for a day.
    pub fn trust_directory(&self, directory: &Path) -> PathBuf {
        let anchors = directory.join("certificates");
        std::fs::create_dir_all(&anchors).unwrap();
        write(
            &anchors.join("00000001.0"),
            "CERTIFICATE",
            &self.root,
            0o644,
        );
        write(
            &anchors.join("00000001.r0"),
            "X509 CRL",
            &self.list(),
            0o644,
        );
        anchors
    }

    pub fn root(&self) -> &CertificateDer<'static> {
        &self.root
    }

    /// From the next renewal on.
    pub fn revoke(&self, card: &Card) {
        self.revoked.write().unwrap().push(card.serial);
    }

    fn list(&self) -> CertificateRevocationListDer<'static> {
        let revoked = self.revoked.read().unwrap();
        let number = self.generation.load(Ordering::Relaxed);
        revocation_list(&self.issuer, number, &revoked)
    }
}

/// What every certificate here has: a serial number, and 30 days.
pub fn params(serial: u64) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.serial_number = Some(SerialNumber::from(serial));
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.not_before = OffsetDateTime::now_utc() - Duration::hours(1);
    params.not_after = OffsetDateTime::now_utc() + Duration::days(30);
    params
}

/// The list of those who are revoked, good for a day.
pub fn revocation_list(
    issuer: &Issuer<'_, KeyPair>,
    number: u64,
    revoked: &[u64],
) -> CertificateRevocationListDer<'static> {
    let now = OffsetDateTime::now_utc();
    let params = CertificateRevocationListParams {
        this_update: now - Duration::hours(1),
        next_update: now + Duration::days(1),
        crl_number: SerialNumber::from(number),
        issuing_distribution_point: None,
        revoked_certs: revoked
            .iter()
            .map(|serial| RevokedCertParams {
                serial_number: SerialNumber::from(*serial),
                revocation_time: now - Duration::minutes(1),
                reason_code: None,
                invalidity_date: None,
            })
            .collect(),
        key_identifier_method: KeyIdMethod::Sha256,
    };
    params.signed_by(issuer).unwrap().der().clone()
}

impl PeerVerifier for Authority {
    fn verify(
        &self,
        chain: &[CertificateDer<'_>],
        now: UnixTime,
        expected: &Expected<'_>,
    ) -> Result<VerifiedIdentity, IdentityError> {
        if let Some(watcher) = &*self.watcher.read().unwrap() {
            watcher();
        }
        let current = self.current.read().unwrap().clone();
        current.verify(chain, now, expected)
    }

    fn generation(&self) -> u64 {
        self.generation.load(Ordering::Relaxed)
    }
}

impl Renewable for Authority {
    fn renew(&self) -> Renewal {
        let generation = self.generation.fetch_add(1, Ordering::Relaxed) + 1;
        let new =
            PrivateAuthority::new(std::slice::from_ref(&self.root), &[self.list()], generation);
        *self.current.write().unwrap() = Arc::new(new.unwrap());
        Renewal {
            changed: true,
            ..Renewal::default()
        }
    }
}

fn write(path: &Path, label: &str, der: &[u8], mode: u32) {
    use std::io::Write as _;
    let text = pem(label, der);
    let mut file = std::fs::OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(mode)
        .open(path)
        .unwrap();
    file.write_all(text.as_bytes()).unwrap();
}

pub fn pem(label: &str, der: &[u8]) -> String {
    let body = data_encoding::BASE64.encode(der);
    let lines: Vec<&str> = body
        .as_bytes()
        .chunks(64)
        .map(|line| std::str::from_utf8(line).unwrap())
        .collect();
    format!(
        "-----BEGIN {label}-----\n{}\n-----END {label}-----\n",
        lines.join("\n")
    )
}

/// A directory that is gone when this is dropped.
pub struct Scratch(PathBuf);

impl Scratch {
    pub fn new() -> Self {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("exoskel-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A server that runs, and what it takes to reach it.
pub struct Running {
    pub authority: Arc<Authority>,
    pub address: SocketAddr,
    pub handle: ServerHandle,
    task: Option<JoinHandle<Result<(), StartError>>>,
    pub scratch: Scratch,
}

impl Running {
    pub fn start(handler: impl Handler, change: impl FnOnce(&mut Settings)) -> Self {
        Self::start_in(Scratch::new(), handler, change)
    }

    pub fn start_in(
        scratch: Scratch,
        handler: impl Handler,
        change: impl FnOnce(&mut Settings),
    ) -> Self {
        let authority = Authority::new();
        let host = authority.host(scratch.path());
        let mut settings = Settings::new("127.0.0.1:0".parse().unwrap(), host, authority.clone());
        change(&mut settings);
        let server = Server::bind(settings).unwrap();
        let address = server.address().unwrap();
        let handle = server.handle();
        let task = Some(tokio::spawn(server.run(handler)));
        Self {
            authority,
            address,
            handle,
            task,
            scratch,
        }
    }

    pub async fn connect(&self, card: &Card) -> std::io::Result<TlsStream<TcpStream>> {
        self.connect_as(card, &[]).await
    }

    pub async fn connect_as(
        &self,
        card: &Card,
        protocols: &[&[u8]],
    ) -> std::io::Result<TlsStream<TcpStream>> {
        let config = self.client(card, protocols, &[&rustls::version::TLS13]);
        let socket = TcpStream::connect(self.address).await?;
        connect(config, socket).await
    }

    pub fn client(
        &self,
        card: &Card,
        protocols: &[&[u8]],
        versions: &[&'static rustls::SupportedProtocolVersion],
    ) -> ClientConfig {
        let mut roots = RootCertStore::empty();
        roots.add(self.authority.root().clone()).unwrap();
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        // Unchecked: the engine does not read proxy certificates, and some tests show what isn't theirs.
        let signer = provider.key_provider.load_private_key(card.key.clone_key());
        let credential = CertifiedKey::new(card.chain.clone(), signer.unwrap());
        let mut config = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(versions)
            .unwrap()
            .with_root_certificates(roots)
            .with_client_cert_resolver(Arc::new(SingleCertAndKey::from(credential)));
        config.alpn_protocols = protocols.iter().map(|name| name.to_vec()).collect();
        config
    }

    pub async fn stop(mut self) -> Scratch {
        self.handle.stop();
        self.task.take().unwrap().await.unwrap().unwrap();
        assert_eq!(self.handle.open(), (0, 0));
        self.scratch
    }
}

/// Keeps the paused clock of a test from turning itself forward while the runtime waits for the network: time passes by
/// `tokio::time::advance` only.
#[derive(Debug)]
pub struct HeldTime(std::sync::mpsc::Sender<()>);

impl HeldTime {
    pub fn new() -> Self {
        let (sender, receiver) = std::sync::mpsc::channel::<()>();
        // The clock stands while a blocking task runs; this one runs until the sender is dropped.
        tokio::task::spawn_blocking(move || receiver.recv().is_ok());
        Self(sender)
    }
}

/// Calendar time that passes with the runtime's, which tests can turn forward.
#[derive(Debug)]
pub struct Calendar {
    start: UnixTime,
    since: tokio::time::Instant,
}

impl Default for Calendar {
    fn default() -> Self {
        Self {
            start: UnixTime::now(),
            since: tokio::time::Instant::now(),
        }
    }
}

impl rustls::time_provider::TimeProvider for Calendar {
    fn current_time(&self) -> Option<UnixTime> {
        let now = std::time::Duration::from_secs(self.start.as_secs()) + self.since.elapsed();
        Some(UnixTime::since_unix_epoch(now))
    }
}

/// The first bytes of a client.
pub fn client_hello() -> Vec<u8> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(RootCertStore::empty())
        .with_no_client_auth();
    let name = ServerName::try_from("localhost").unwrap();
    let mut client = rustls::ClientConnection::new(Arc::new(config), name).unwrap();
    let mut bytes = Vec::new();
    client.write_tls(&mut bytes).unwrap();
    bytes
}

pub async fn connect(
    config: ClientConfig,
    socket: TcpStream,
) -> std::io::Result<TlsStream<TcpStream>> {
    let name = ServerName::try_from("localhost").unwrap();
    TlsConnector::from(Arc::new(config))
        .connect(name, socket)
        .await
}

/// Sends bytes as they are, and reads until the connection ends.
pub async fn raw(server: &Running, card: &Card, request: &[u8]) -> String {
    let mut stream = server.connect_as(card, &[b"http/1.1"]).await.unwrap();
    stream.write_all(request).await.unwrap();
    let mut answer = Vec::new();
    // Some servers say goodbye, some just go.
    let _ = stream.read_to_end(&mut answer).await;
    String::from_utf8_lossy(&answer).into_owned()
}

/// The lines of an audit file.
pub fn audited(file: &Path) -> Vec<serde_json::Value> {
    let text = std::fs::read_to_string(file).unwrap();
    let lines = text.lines();
    lines
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}
