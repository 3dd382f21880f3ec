//! A job's own authority, and the keys of its processes, which no other process ever has.

use std::fmt;

use aws_lc_rs::rand;
use exoskel_identity::{Credential, Identity, JOB_NUMBER_BYTES, JobNumber, JobProcess, Role};
use rcgen::{KeyPair, PKCS_ECDSA_P256_SHA256, PublicKeyData, SignatureAlgorithm};
use rustls_pki_types::{CertificateDer, UnixTime};
use zeroize::Zeroizing;

use super::{PkiError, ThrowAwayAuthority};

/// The length of a process's public key: a point of P-256, not compressed (SEC 1, section 2.3.3).
const PUBLIC_KEY_BYTES: usize = 65;

/// The authority of a job. It lives in the process that has made the job, and signs what the job's processes send up: public keys.
///
/// Nobody but the job's processes trusts it, so nothing that it signs opens anything outside of the job.
pub struct JobAuthority {
    authority: ThrowAwayAuthority,
    job: JobNumber,
}

/// The key of a process of a job, made where it is used.
pub struct ProcessKey(KeyPair);

/// What a process sends up to be signed.
struct ProcessPublicKey<'a>(&'a [u8]);

impl PublicKeyData for ProcessPublicKey<'_> {
    fn der_bytes(&self) -> &[u8] {
        self.0
    }

    fn algorithm(&self) -> &'static SignatureAlgorithm {
        &PKCS_ECDSA_P256_SHA256
    }
}

impl JobAuthority {
    /// Makes a job with a random number.
    ///
    /// # Errors
    /// [`PkiError`] when the clock is absurd or the library can't make a key.
    pub fn new(now: UnixTime) -> Result<Self, PkiError> {
        let mut job = [0; JOB_NUMBER_BYTES];
        rand::fill(&mut job).map_err(|_| rcgen::Error::RingUnspecified)?;
        Ok(Self {
            authority: ThrowAwayAuthority::new(now)?,
            job: JobNumber::new(job),
        })
    }

    /// Which job it is.
    #[must_use]
    pub fn job(&self) -> JobNumber {
        self.job
    }

    /// The certificate that all processes of the job trust, and nobody else does.
    #[must_use]
    pub fn root(&self) -> &CertificateDer<'static> {
        self.authority.root()
    }

    /// Signs the public key of a process, which alone has the private one: whoever sends somebody else's can't use what comes back.
    ///
    /// `role` is what the process is on the wires that the certificate is for; one process may have several. `host` is the name that its host
    /// has proven, or that the job's owner gives it.
    ///
    /// # Errors
    /// [`PkiError`] for a key that is none, or when the name can't stand in a certificate.
    pub fn sign(
        &self,
        role: Role,
        host: &str,
        number: u32,
        public_key: &[u8],
        now: UnixTime,
    ) -> Result<CertificateDer<'static>, PkiError> {
        // 4: not compressed.
        if public_key.len() != PUBLIC_KEY_BYTES || public_key[0] != 4 {
            return Err(PkiError::ProcessKey {
                got: public_key.len(),
                expected: PUBLIC_KEY_BYTES,
            });
        }
        let process = JobProcess {
            job: self.job,
            number,
        };
        let identity = Identity::of_process(role, host, process)?;
        self.authority
            .sign(&identity, &ProcessPublicKey(public_key), now)
    }
}

impl ProcessKey {
    /// Makes a key.
    ///
    /// # Errors
    /// [`PkiError`] when the library can't.
    pub fn new() -> Result<Self, PkiError> {
        Ok(Self(KeyPair::generate()?))
    }

    /// What the job's authority is to sign: a point of P-256, not compressed.
    #[must_use]
    pub fn public_key(&self) -> &[u8] {
        self.0.der_bytes()
    }

    /// The process's credential, with what the authority has signed.
    ///
    /// # Errors
    /// [`PkiError`] when that is for another key, or isn't the root's.
    pub fn credential(
        &self,
        certificate: CertificateDer<'static>,
        root: CertificateDer<'static>,
    ) -> Result<Credential, PkiError> {
        let key = Zeroizing::new(self.0.serialize_der());
        Ok(Credential::new(
            vec![certificate],
            key,
            vec![root],
            Vec::new(),
        )?)
    }
}

impl fmt::Debug for JobAuthority {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("JobAuthority")
            .field("job", &self.job.to_string())
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for ProcessKey {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("ProcessKey").finish_non_exhaustive()
    }
}
