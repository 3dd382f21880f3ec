//! The TLS engine behind the [`Handshake`] seam: TLS 1.3 only, mutual, no resumption.
//!
//! The engine works on whole records and does no I/O; the simulation puts another one in its place.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use exoskel_identity::{
    Credential, Expected, IdentityError, PeerVerifier, PrivateKey, Role, VerifiedIdentity,
};
use exoskel_link::handshake::{ALPN, EXPORTER_BYTES, EXPORTER_LABEL};
use exoskel_trust::ChainVerifier;
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::sign::{CertifiedKey, SigningKey, SingleCertAndKey};
use rustls::{
    AlertDescription, CertificateError, ClientConfig, ClientConnection, Connection, ServerConfig,
    ServerConnection,
};
use zeroize::Zeroizing;

use crate::remote_key::SigningElsewhere;

/// Plaintext of one TLS record at most (RFC 8446, section 5.1).
const RECORD_PLAINTEXT_MAX: usize = 16_384;

/// The peer that a finished handshake proves, and what binds the session to it.
#[derive(Debug)]
pub struct TlsPeer {
    /// Who the peer is.
    pub identity: VerifiedIdentity,
    /// The secret both ends exported, 32 bytes.
    pub exporter: Zeroizing<[u8; EXPORTER_BYTES]>,
    /// Our certificates as presented, leaf first, DER.
    pub own_chain: Vec<Vec<u8>>,
    /// The peer's certificates as presented, leaf first, DER.
    pub chain: Vec<Vec<u8>>,
}

/// Why a handshake came to nothing.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// We judged the peer's certificate and don't accept it.
    #[error("the peer's certificate was refused: {0}")]
    Peer(#[source] IdentityError),
    /// The peer says that it doesn't accept ours.
    #[error("the peer refused our certificate: {}", refusal(.0))]
    OwnCertificate(AlertDescription),
    /// Our own certificate or key can't be used.
    #[error("our own credential can't be used for TLS: {0}")]
    Credential(#[source] rustls::Error),
    /// The two of us didn't come to TLS, or not to ours.
    #[error("TLS failed: {0}")]
    Protocol(#[from] TlsFault),
    /// More than one record where the protocol has exactly one.
    #[error("got more bytes than one record where the protocol allows exactly one")]
    TooMuch,
}

/// How TLS failed, where no certificate was at fault.
#[derive(Debug, thiserror::Error)]
pub enum TlsFault {
    /// What came isn't TLS as it should be.
    #[error(transparent)]
    Engine(#[from] rustls::Error),
    /// The engine takes or gives no more bytes.
    #[error(transparent)]
    Buffer(#[from] io::Error),
    /// The peer says that it has no version, cipher or protocol of ours.
    #[error("the peer found nothing in common ({0:?})")]
    NothingInCommon(AlertDescription),
    /// A peer without a certificate.
    #[error("the peer showed no certificate, expected one with its role and name")]
    NoCertificate,
    /// TLS for something else.
    #[error("the peer didn't agree on the protocol exoskel/1")]
    OtherProtocol,
    /// The peer left when it was its turn.
    #[error("the peer closed before it answered")]
    Closed,
    /// It was asked for too early.
    #[error("the handshake isn't complete")]
    Incomplete,
    /// Our own process ended what was under way.
    #[error("a step of the handshake was cut off")]
    CutOff,
}

/// What an alert of ours says of the certificate that it is about, for who gets it.
fn refusal(alert: &AlertDescription) -> String {
    use AlertDescription as Alert;
    let why = match alert {
        Alert::BadCertificate => {
            "it expected another name than ours; it may have been told one, or take the address for the name"
        }
        Alert::CertificateExpired => {
            "it is not valid now by the peer's clock; renew it, or check both clocks"
        }
        Alert::CertificateRevoked => "its authority took it back; issue another one",
        Alert::UnknownCA => "it comes from an authority that the peer doesn't trust",
        Alert::UnsupportedCertificate => "it is for another role than the peer expected",
        other => {
            return format!("{other:?}; its owner can say which authority and roles it accepts");
        }
    };
    why.to_owned()
}

/// What the peer is told of its certificate.
fn alert(error: &IdentityError) -> CertificateError {
    match error {
        IdentityError::WrongName { .. } => CertificateError::NotValidForName,
        IdentityError::WrongRole { .. } => CertificateError::InvalidPurpose,
        IdentityError::Expired { .. } => CertificateError::Expired,
        IdentityError::NotYetValid { .. } => CertificateError::NotValidYet,
        IdentityError::Revoked { .. } => CertificateError::Revoked,
        IdentityError::UnknownAuthority { .. } => CertificateError::UnknownIssuer,
        _ => CertificateError::ApplicationVerificationFailure,
    }
}

/// Records in, records out, at last a proven peer: what the driver needs of a TLS engine.
pub trait Handshake: Send {
    /// Takes exactly one whole TLS record, header included.
    ///
    /// # Errors
    /// When the record, or what it proves, is not acceptable. Call [`Handshake::take_outgoing`] once more: it may hold an alert.
    fn receive(&mut self, record: &[u8]) -> Result<(), TlsError>;
    /// Moves the bytes that have to be written to the end of `out`.
    fn take_outgoing(&mut self, out: &mut Vec<u8>);
    /// Whether both ends have proved who they are (as far as this end can know).
    fn is_complete(&self) -> bool;
    /// Queues one application record.
    ///
    /// # Errors
    /// When `plaintext` doesn't fit into one record.
    fn send(&mut self, plaintext: &[u8]) -> Result<(), TlsError>;
    /// The plaintext of an application record that has come, if one has.
    ///
    /// # Errors
    /// When more than one record is there.
    fn take_plaintext(&mut self) -> Result<Option<Vec<u8>>, TlsError>;
    /// What was proved. Only after [`Handshake::is_complete`].
    ///
    /// # Errors
    /// When the handshake isn't complete.
    fn peer(&self) -> Result<TlsPeer, TlsError>;
}

/// The real engine: rustls on aws-lc-rs.
pub struct Tls {
    connection: Connection,
    /// Plaintexts that have come and that nobody took yet, one for each record: the engine itself would hand them out as one.
    records: VecDeque<Vec<u8>>,
    verdict: FoundPeer,
    own_chain: Vec<Vec<u8>>,
}

impl Tls {
    /// The dialling side, which accepts a peer of one of `roles` with the name it meant to reach.
    ///
    /// # Errors
    /// When our own credential can't be used.
    pub fn client(
        credential: &Credential,
        verifier: Arc<dyn PeerVerifier>,
        roles: Vec<Role>,
        name: Option<String>,
    ) -> Result<Self, TlsError> {
        let provider = provider();
        let verdict = FoundPeer::default();
        let judge = Judge {
            verifier,
            roles,
            name,
            verdict: verdict.clone(),
        };
        let check = ChainVerifier::new(&provider, move |chain, now| judge.judge(chain, now));
        let mut config = ClientConfig::builder_with_provider(provider.clone())
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(TlsError::Credential)?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(check))
            .with_client_cert_resolver(own_certificate(credential)?);
        config.alpn_protocols = vec![ALPN.to_vec()];
        config.resumption = rustls::client::Resumption::disabled();
        config.enable_early_data = false;
        // The name in the certificate is judged by our own verifier, from the URI names; TLS carries none.
        config.enable_sni = false;
        let name = ServerName::try_from("exoskel").expect("it is a name of a host");
        let connection =
            ClientConnection::new(Arc::new(config), name).map_err(TlsError::Credential)?;
        Ok(Self {
            connection: connection.into(),
            records: VecDeque::new(),
            verdict,
            own_chain: plain_chain(credential),
        })
    }

    /// The listening side, which accepts peers of `roles`.
    ///
    /// # Errors
    /// When our own credential can't be used.
    pub fn server(
        credential: &Credential,
        verifier: Arc<dyn PeerVerifier>,
        roles: Vec<Role>,
    ) -> Result<Self, TlsError> {
        let provider = provider();
        let verdict = FoundPeer::default();
        let judge = Judge {
            verifier,
            roles,
            name: None,
            verdict: verdict.clone(),
        };
        let check = ChainVerifier::new(&provider, move |chain, now| judge.judge(chain, now));
        let mut config = ServerConfig::builder_with_provider(provider.clone())
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(TlsError::Credential)?
            .with_client_cert_verifier(Arc::new(check))
            .with_cert_resolver(own_certificate(credential)?);
        config.alpn_protocols = vec![ALPN.to_vec()];
        config.session_storage = Arc::new(rustls::server::NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        config.max_early_data_size = 0;
        config.send_half_rtt_data = false;
        let connection = ServerConnection::new(Arc::new(config)).map_err(TlsError::Credential)?;
        Ok(Self {
            connection: connection.into(),
            records: VecDeque::new(),
            verdict,
            own_chain: plain_chain(credential),
        })
    }

    fn explain(&self, error: &rustls::Error) -> TlsError {
        if let Some(Err(identity)) = self.verdict.take_error() {
            return TlsError::Peer(identity);
        }
        match error {
            rustls::Error::AlertReceived(alert) => {
                use AlertDescription as Alert;
                match alert {
                    Alert::NoApplicationProtocol
                    | Alert::ProtocolVersion
                    | Alert::HandshakeFailure => TlsFault::NothingInCommon(*alert).into(),
                    _ => TlsError::OwnCertificate(*alert),
                }
            }
            rustls::Error::NoCertificatesPresented => TlsFault::NoCertificate.into(),
            other => TlsFault::Engine(other.clone()).into(),
        }
    }
}

impl Handshake for Tls {
    fn receive(&mut self, mut record: &[u8]) -> Result<(), TlsError> {
        while !record.is_empty() {
            let taken = self.connection.read_tls(&mut record);
            taken.map_err(TlsFault::Buffer)?;
            match self.connection.process_new_packets() {
                Ok(state) if state.plaintext_bytes_to_read() > 0 => {
                    let mut plaintext = vec![0; state.plaintext_bytes_to_read()];
                    let read = io::Read::read_exact(&mut self.connection.reader(), &mut plaintext);
                    read.map_err(TlsFault::Buffer)?;
                    self.records.push_back(plaintext);
                }
                Ok(_) => {}
                Err(error) => return Err(self.explain(&error)),
            }
        }
        if !self.connection.is_handshaking() && self.connection.alpn_protocol() != Some(ALPN) {
            return Err(TlsFault::OtherProtocol.into());
        }
        Ok(())
    }

    fn take_outgoing(&mut self, out: &mut Vec<u8>) {
        while self.connection.wants_write() {
            if self.connection.write_tls(out).is_err() {
                return;
            }
        }
    }

    fn is_complete(&self) -> bool {
        !self.connection.is_handshaking() && self.verdict.is_accepted()
    }

    fn send(&mut self, plaintext: &[u8]) -> Result<(), TlsError> {
        if plaintext.len() > RECORD_PLAINTEXT_MAX {
            return Err(TlsError::TooMuch);
        }
        let written = io::Write::write_all(&mut self.connection.writer(), plaintext);
        Ok(written.map_err(TlsFault::Buffer)?)
    }

    fn take_plaintext(&mut self) -> Result<Option<Vec<u8>>, TlsError> {
        if self.records.len() > 1 {
            return Err(TlsError::TooMuch);
        }
        if let Some(plaintext) = self.records.pop_front() {
            return Ok(Some(plaintext));
        }
        // Nothing is there to read; what is asked is whether the other end has closed.
        match io::Read::read(&mut self.connection.reader(), &mut [0]) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(error) => Err(TlsFault::Buffer(error).into()),
            Ok(_) => Err(TlsFault::Closed.into()),
        }
    }

    fn peer(&self) -> Result<TlsPeer, TlsError> {
        let identity = self.verdict.identity().ok_or(TlsFault::Incomplete)?;
        let exporter = self
            .connection
            .export_keying_material([0_u8; EXPORTER_BYTES], EXPORTER_LABEL, None)
            .map_err(TlsFault::Engine)?;
        let chain = self
            .connection
            .peer_certificates()
            .unwrap_or_default()
            .iter()
            .map(|certificate| certificate.as_ref().to_vec())
            .collect();
        Ok(TlsPeer {
            identity,
            exporter: Zeroizing::new(exporter),
            own_chain: self.own_chain.clone(),
            chain,
        })
    }
}

/// AES-256 and ChaCha20 suites of TLS 1.3 and hybrid post-quantum key exchange, nothing else: both ends are ours.
fn provider() -> Arc<CryptoProvider> {
    let mut provider = aws_lc_rs::default_provider();
    provider.kx_groups = vec![aws_lc_rs::kx_group::X25519MLKEM768];
    provider.cipher_suites.retain(|suite| {
        matches!(
            suite.suite(),
            rustls::CipherSuite::TLS13_AES_256_GCM_SHA384
                | rustls::CipherSuite::TLS13_CHACHA20_POLY1305_SHA256
        )
    });
    Arc::new(provider)
}

/// What we show and sign with. That the key is the leaf's, the credential has checked: rustls would do so by reading the
/// whole certificate, which it refuses to for a proxy.
fn own_certificate(credential: &Credential) -> Result<Arc<SingleCertAndKey>, TlsError> {
    let key = match credential.private_key() {
        PrivateKey::Here(_) => signing_key(credential)?,
        PrivateKey::Elsewhere(key) => Arc::new(SigningElsewhere(key.clone())),
    };
    let chain = credential.chain().to_vec();
    Ok(Arc::new(SingleCertAndKey::from(CertifiedKey::new(
        chain, key,
    ))))
}

/// A credential's key that is in this process.
///
/// # Errors
/// When it isn't, or can't be used.
pub(crate) fn signing_key(credential: &Credential) -> Result<Arc<dyn SigningKey>, TlsError> {
    let none = || rustls::Error::General("the key is in another process".to_owned());
    let key = credential.key().ok_or_else(none);
    let key = key.map(|key| PrivateKeyDer::Pkcs8(key.clone_key()));
    key.and_then(|key| provider().key_provider.load_private_key(key))
        .map_err(TlsError::Credential)
}

fn plain_chain(credential: &Credential) -> Vec<Vec<u8>> {
    credential
        .chain()
        .iter()
        .map(|certificate| certificate.as_ref().to_vec())
        .collect()
}

/// Where the verifier leaves what it found, since the TLS engine keeps only yes or no.
#[derive(Clone, Debug, Default)]
struct FoundPeer(Arc<Mutex<Option<Result<VerifiedIdentity, IdentityError>>>>);

impl FoundPeer {
    fn set(&self, result: Result<VerifiedIdentity, IdentityError>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(result);
    }

    fn is_accepted(&self) -> bool {
        matches!(
            &*self.0.lock().unwrap_or_else(PoisonError::into_inner),
            Some(Ok(_))
        )
    }

    fn identity(&self) -> Option<VerifiedIdentity> {
        match &*self.0.lock().unwrap_or_else(PoisonError::into_inner) {
            Some(Ok(identity)) => Some(identity.clone()),
            _ => None,
        }
    }

    fn take_error(&self) -> Option<Result<VerifiedIdentity, IdentityError>> {
        let mut slot = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if matches!(&*slot, Some(Err(_))) {
            slot.take()
        } else {
            None
        }
    }
}

/// Hands the peer's chain to our verifier.
struct Judge {
    verifier: Arc<dyn PeerVerifier>,
    roles: Vec<Role>,
    name: Option<String>,
    verdict: FoundPeer,
}

impl Judge {
    fn judge(&self, chain: &[CertificateDer<'_>], now: UnixTime) -> Result<(), rustls::Error> {
        let expected = Expected {
            roles: &self.roles,
            name: self.name.as_deref(),
        };
        let result = self.verifier.verify(chain, now, &expected);
        let answer = match &result {
            Ok(_) => Ok(()),
            Err(error) => Err(alert(error).into()),
        };
        self.verdict.set(result);
        answer
    }
}
