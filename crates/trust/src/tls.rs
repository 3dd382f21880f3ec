//! The TLS engine's check of a peer's certificate: our own verdict on its chain, and the proof that the peer holds its key.

use std::fmt;

use exoskel_identity::public_key_info;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{
    CryptoProvider, WebPkiSupportedAlgorithms, verify_tls13_signature_with_raw_key,
};
use rustls::pki_types::{CertificateDer, ServerName, SubjectPublicKeyInfoDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, PeerMisbehaved,
    SignatureScheme,
};
use webpki::RawPublicKeyEntity;

/// Hands each peer's chain to a judge, and checks the signature over the handshake by the leaf's bare key: the engine's own
/// helpers read the leaf as an ordinary end entity and refuse proxies.
///
/// # Security
/// Clients must show a certificate, unless [`without_certificate`](Self::without_certificate) says otherwise. A server's name is not compared with the one that was dialled; that is the judge's to do.
pub struct ChainVerifier<Judge> {
    judge: Judge,
    is_mandatory: bool,
    algorithms: WebPkiSupportedAlgorithms,
}

impl<Judge> ChainVerifier<Judge>
where
    Judge: Fn(&[CertificateDer<'_>], UnixTime) -> Result<(), Error> + Send + Sync,
{
    /// A verifier that accepts whom `judge` accepts, given the chain as presented (leaf first) and the time.
    pub fn new(provider: &CryptoProvider, judge: Judge) -> Self {
        Self {
            judge,
            is_mandatory: true,
            algorithms: provider.signature_verification_algorithms,
        }
    }

    /// Lets clients finish the handshake that show no certificate at all. `judge` never sees them.
    #[must_use]
    pub fn without_certificate(self, allowed: bool) -> Self {
        Self {
            is_mandatory: !allowed,
            ..self
        }
    }

    fn judge(
        &self,
        leaf: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<(), Error> {
        let chain: Vec<CertificateDer<'_>> = std::iter::once(leaf)
            .chain(intermediates)
            .map(|certificate| CertificateDer::from(certificate.as_ref()))
            .collect();
        (self.judge)(&chain, now)
    }

    fn tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let key = public_key(certificate)?;
        let key = RawPublicKeyEntity::try_from(&key)
            .map_err(|_| Error::from(CertificateError::BadEncoding))?;
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

    fn tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let key = public_key(certificate)?;
        verify_tls13_signature_with_raw_key(message, &key, signature, &self.algorithms)
    }
}

/// The key in a certificate whose chain was found good.
fn public_key<'a>(
    certificate: &'a CertificateDer<'_>,
) -> Result<SubjectPublicKeyInfoDer<'a>, Error> {
    public_key_info(certificate).map_err(|_| CertificateError::BadEncoding.into())
}

impl<Judge> fmt::Debug for ChainVerifier<Judge> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("ChainVerifier")
            .finish_non_exhaustive()
    }
}

impl<Judge> ServerCertVerifier for ChainVerifier<Judge>
where
    Judge: Fn(&[CertificateDer<'_>], UnixTime) -> Result<(), Error> + Send + Sync,
{
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        self.judge(end_entity, intermediates, now)?;
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

impl<Judge> ClientCertVerifier for ChainVerifier<Judge>
where
    Judge: Fn(&[CertificateDer<'_>], UnixTime) -> Result<(), Error> + Send + Sync,
{
    fn client_auth_mandatory(&self) -> bool {
        self.is_mandatory
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        // A hundred names of authorities in each handshake would help no client.
        &[]
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        self.judge(end_entity, intermediates, now)?;
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}
