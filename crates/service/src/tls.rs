//! The TLS engine's settings, and the check of a client's certificate inside its handshake.
//!
//! One configuration serves all connections. The verdict on a chain is made while the engine reads the client's
//! certificate, within the connection's own task, and left in a slot of that task: so the client gets the alert that says why,
//! the engine keeps no second copy of anything, and a verdict can't end up at another connection.

use std::cell::Cell;
use std::fmt;
use std::sync::Arc;

use arc_swap::ArcSwap;
use exoskel_identity::{IdentityError, VerifiedIdentity, public_key_info};
use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::{
    CryptoProvider, WebPkiSupportedAlgorithms, aws_lc_rs, verify_tls13_signature_with_raw_key,
};
use rustls::pki_types::{CertificateDer, SubjectPublicKeyInfoDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{ClientHello, NoServerSessionStorage, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls::time_provider::TimeProvider;
use rustls::{
    CertificateError, CipherSuite, DigitallySignedStruct, DistinguishedName, PeerMisbehaved,
    ServerConfig, SignatureScheme,
};
use webpki::RawPublicKeyEntity;

use crate::door::{Door, Refused, Who};

tokio::task_local! {
    /// Where the engine's check of a certificate leaves its verdict for the task that runs the handshake.
    pub(crate) static VERDICT: Cell<Option<Result<VerifiedIdentity, Box<Refused>>>>;
}

/// Which cryptography is spoken. X25519 comes first: the hybrid exchange costs a third of a handshake, and the grid's
/// clients don't offer it; those that offer nothing else get it. AES-128 with SHA-256 comes first for the same reason: most
/// clients put AES-256 with SHA-384 first, and processors have instructions for SHA-256 only, which is an eighth of a
/// handshake. RFC 8446 section 9.1 demands it of everybody.
pub(crate) fn provider() -> Arc<CryptoProvider> {
    let mut provider = aws_lc_rs::default_provider();
    provider.kx_groups = vec![
        aws_lc_rs::kx_group::X25519,
        aws_lc_rs::kx_group::SECP256R1,
        aws_lc_rs::kx_group::SECP384R1,
        aws_lc_rs::kx_group::X25519MLKEM768,
    ];
    provider.cipher_suites.sort_by_key(|suite| {
        !matches!(
            suite.suite(),
            CipherSuite::TLS13_AES_128_GCM_SHA256
                | CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256
                | CipherSuite::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256
        )
    });
    Arc::new(provider)
}

/// The settings for all connections that begin from now on.
pub(crate) fn server_config(
    provider: Arc<CryptoProvider>,
    door: Arc<Door>,
    credential: Arc<ArcSwap<CertifiedKey>>,
    protocols: &[&[u8]],
    time: Arc<dyn TimeProvider>,
) -> Result<ServerConfig, rustls::Error> {
    let check = CertificateCheck {
        door,
        algorithms: provider.signature_verification_algorithms,
    };
    let mut config = ServerConfig::builder_with_details(provider, time)
        .with_protocol_versions(&[&rustls::version::TLS13, &rustls::version::TLS12])?
        .with_client_cert_verifier(Arc::new(check))
        .with_cert_resolver(Arc::new(CurrentCertificate(credential)));
    config.alpn_protocols = protocols.iter().map(|name| name.to_vec()).collect();
    config.ignore_client_order = true;
    // Resumption would let a client in without showing its chain.
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    config.max_early_data_size = 0;
    config.send_half_rtt_data = false;
    Ok(config)
}

/// The host's certificate can be renewed while handshakes run.
#[derive(Debug)]
struct CurrentCertificate(Arc<ArcSwap<CertifiedKey>>);

impl ResolvesServerCert for CurrentCertificate {
    fn resolve(&self, _hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.0.load_full())
    }
}

/// Hands a client's chain to the door. The proof that the client holds the leaf's key is checked here, on every
/// handshake: the engine's own helpers read the leaf as an ordinary end entity and refuse proxies.
struct CertificateCheck {
    door: Arc<Door>,
    algorithms: WebPkiSupportedAlgorithms,
}

impl fmt::Debug for CertificateCheck {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("CertificateCheck")
            .finish_non_exhaustive()
    }
}

impl ClientCertVerifier for CertificateCheck {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        // A hundred names of authorities in each handshake would help no client.
        &[]
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        let chain: Vec<CertificateDer<'_>> = std::iter::once(end_entity)
            .chain(intermediates)
            .map(|certificate| CertificateDer::from(certificate.as_ref()))
            .collect();
        let verdict = self.door.judge(&chain, now);
        let answer = match &verdict {
            Ok(_) => Ok(ClientCertVerified::assertion()),
            Err(refused) => Err(alert(refused).into()),
        };
        VERDICT
            .try_with(|slot| slot.set(Some(verdict)))
            .map_err(|_| rustls::Error::General("a handshake outside of its task".to_owned()))?;
        answer
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let key = public_key(certificate)?;
        let key = RawPublicKeyEntity::try_from(&key)
            .map_err(|_| rustls::Error::from(CertificateError::BadEncoding))?;
        let algorithms = self
            .algorithms
            .mapping
            .iter()
            .find(|(scheme, _)| *scheme == signature.scheme)
            .map(|(_, algorithms)| *algorithms)
            .ok_or(PeerMisbehaved::SignedHandshakeWithUnadvertisedSigScheme)?;
        // In TLS 1.2 a scheme doesn't fix the curve, so each algorithm is tried; a wrong signature is wrong for all.
        let good = algorithms.iter().any(|algorithm| {
            key.verify_signature(*algorithm, message, signature.signature())
                .is_ok()
        });
        if good {
            Ok(HandshakeSignatureValid::assertion())
        } else {
            Err(CertificateError::BadSignature.into())
        }
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let key = public_key(certificate)?;
        verify_tls13_signature_with_raw_key(message, &key, signature, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

/// The key in a certificate whose chain was found good.
fn public_key<'a>(
    certificate: &'a CertificateDer<'_>,
) -> Result<SubjectPublicKeyInfoDer<'a>, rustls::Error> {
    public_key_info(certificate).map_err(|_| CertificateError::BadEncoding.into())
}

/// What the client is told. The whole reason stands in the audit line; a stranger needs the kind of it only.
fn alert(refused: &Refused) -> CertificateError {
    let Who::Claimed { error, .. } = &refused.who else {
        return CertificateError::ApplicationVerificationFailure;
    };
    match error {
        IdentityError::Expired { .. } => CertificateError::Expired,
        IdentityError::NotYetValid { .. } => CertificateError::NotValidYet,
        IdentityError::Revoked { .. } => CertificateError::Revoked,
        IdentityError::UnknownAuthority { .. } => CertificateError::UnknownIssuer,
        IdentityError::Malformed { .. } => CertificateError::BadEncoding,
        _ => CertificateError::ApplicationVerificationFailure,
    }
}
