//! The TLS engine's settings, and the check of a client's certificate inside its handshake.
//!
//! One configuration serves all connections. The verdict on a chain is made while the engine reads the client's
//! certificate, within the connection's own task, and left in a slot of that task: so the client gets the alert that says why,
//! the engine keeps no second copy of anything, and a verdict can't end up at another connection.

use std::cell::Cell;
use std::sync::Arc;

use arc_swap::ArcSwap;
use exoskel_identity::{IdentityError, VerifiedIdentity};
use exoskel_trust::ChainVerifier;
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::{ClientHello, NoServerSessionStorage, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls::time_provider::TimeProvider;
use rustls::{CertificateError, CipherSuite, ServerConfig};

use crate::admission::{AdmissionControl, Refused, Who};
use crate::peer::Strangers;

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
    admission: Arc<AdmissionControl>,
    credential: Arc<ArcSwap<CertifiedKey>>,
    protocols: &[&[u8]],
    strangers: Strangers,
    time: Arc<dyn TimeProvider>,
) -> Result<ServerConfig, rustls::Error> {
    let check = ChainVerifier::new(&provider, move |chain, now| {
        judge(&admission, chain, now, strangers)
    })
    .without_certificate(strangers.without_certificate);
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

/// Leaves the verdict on a client's chain for the task that runs the handshake, and says what the client is told by the engine.
/// Those of whom the handler takes care end the handshake.
fn judge(
    admission: &AdmissionControl,
    chain: &[CertificateDer<'_>],
    now: UnixTime,
    strangers: Strangers,
) -> Result<(), rustls::Error> {
    let verdict = admission.judge(chain, now);
    let answer = match &verdict {
        Ok(_) => Ok(()),
        Err(refused) if strangers.take(refused) => Ok(()),
        Err(refused) => Err(alert(refused).into()),
    };
    VERDICT
        .try_with(|slot| slot.set(Some(verdict)))
        .map_err(|_| rustls::Error::General("a handshake outside of its task".to_owned()))?;
    answer
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
