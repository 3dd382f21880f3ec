//! A credential as one PEM file: the leaf, its intermediates, the key, the authorities, their revocation lists.

use std::sync::Arc;

use rustls_pki_types::pem::{self, PemObject, SectionKind};
use rustls_pki_types::{CertificateDer, CertificateRevocationListDer};
use zeroize::{Zeroize, Zeroizing};

use super::{Credential, PrivateKey, RemoteKey, old_key};
use crate::certificate::CertificateDetails;
use crate::credential::CredentialError;
use crate::limits::CREDENTIAL_BYTES_MAX;

const CERTIFICATE: &str = "CERTIFICATE";
const PRIVATE_KEY: &str = "PRIVATE KEY";
const REVOCATION_LIST: &str = "X509 CRL";

impl Credential {
    /// Reads a credential from PEM. The first `CERTIFICATE` is the leaf; of the others those that an authority issued
    /// to itself are trust anchors, the rest intermediates. There is one key, not encrypted (`PRIVATE KEY`, or `RSA PRIVATE
    /// KEY` and `EC PRIVATE KEY` of before PKCS#8), and any number of `X509 CRL`. Text between the blocks is ignored. So a
    /// proxy file is read as it is, and a host certificate with its key behind it.
    ///
    /// # Errors
    /// [`CredentialError`] says what the owner of the file must change. It never repeats the file's text.
    pub fn from_pem(text: &[u8]) -> Result<Self, CredentialError> {
        let mut blocks = Blocks::read(text)?;
        let key = blocks.key.take().ok_or_else(|| missing_key(text))?;
        Self::of_blocks(blocks, PrivateKey::Here(Arc::new(key)))
    }

    /// As [`from_pem`](Self::from_pem), from what [`public_pem`](Self::public_pem) has written, with a key that another process has.
    ///
    /// # Errors
    /// As there; and when there is a key in the text.
    pub fn from_public_pem(text: &[u8], key: Arc<dyn RemoteKey>) -> Result<Self, CredentialError> {
        let blocks = Blocks::read(text)?;
        if blocks.key.is_some() {
            return Err(CredentialError::SeveralKeys);
        }
        Self::of_blocks(blocks, PrivateKey::Elsewhere(key))
    }

    fn of_blocks(blocks: Blocks, key: PrivateKey) -> Result<Self, CredentialError> {
        let mut certificates = blocks.certificates.into_iter();
        let mut chain: Vec<_> = certificates.next().into_iter().collect();
        let mut trust_anchors = Vec::new();
        for (before, certificate) in certificates.enumerate() {
            let details = CertificateDetails::read(&certificate).map_err(|reason| {
                CredentialError::BadCertificate {
                    position: before + 1,
                    reason,
                }
            })?;
            let part = if details.is_authority && details.is_self_issued {
                &mut trust_anchors
            } else {
                &mut chain
            };
            part.push(certificate);
        }
        Self::with_key(chain, key, trust_anchors, blocks.revocation_lists)
    }

    /// Writes the credential as [`from_pem`](Self::from_pem) reads it; without a key, if another process has that.
    ///
    /// # Security
    /// The result holds the private key: it may go to a file that only its owner can read, or into sealed memory, but
    /// never to a command line, an environment variable or a log.
    pub fn to_pem(&self) -> Zeroizing<Vec<u8>> {
        let key = self.key();
        let key = key.as_ref().map(|key| key.secret_pkcs8_der());
        Zeroizing::new(self.written(key))
    }

    /// Writes all of the credential but the key: nothing of it is secret.
    pub fn public_pem(&self) -> Vec<u8> {
        self.written(None)
    }

    fn written(&self, key: Option<&[u8]>) -> Vec<u8> {
        let parts = self.chain.iter().map(|one| (CERTIFICATE, one.as_ref()));
        let parts = parts.chain(key.map(|key| (PRIVATE_KEY, key)));
        let parts = parts.chain(
            self.trust_anchors
                .iter()
                .map(|one| (CERTIFICATE, one.as_ref())),
        );
        let parts = parts.chain(
            self.revocation_lists
                .iter()
                .map(|one| (REVOCATION_LIST, one.as_ref())),
        );
        let parts: Vec<_> = parts.collect();
        // Room for everything at once: a buffer that grows leaves copies of the key behind.
        let mut text =
            Vec::with_capacity(parts.iter().map(|(_, der)| armoured_bytes_max(der)).sum());
        for (label, der) in parts {
            armour(label, der, &mut text);
        }
        text
    }
}

/// Reads the revocation lists of a PEM text that holds nothing else that matters.
///
/// # Errors
/// [`CredentialError`] when the text is too long, broken, or holds no list.
pub fn revocation_lists_from_pem(
    text: &[u8],
) -> Result<Vec<CertificateRevocationListDer<'static>>, CredentialError> {
    let lists = Blocks::read(text)?.revocation_lists;
    if lists.is_empty() {
        return Err(CredentialError::BadPem {
            reason: "got no block X509 CRL, expected at least one",
        });
    }
    Ok(lists)
}

#[derive(Default)]
struct Blocks {
    certificates: Vec<CertificateDer<'static>>,
    key: Option<Zeroizing<Vec<u8>>>,
    revocation_lists: Vec<CertificateRevocationListDer<'static>>,
}

impl Blocks {
    fn read(text: &[u8]) -> Result<Self, CredentialError> {
        if text.len() > CREDENTIAL_BYTES_MAX {
            return Err(CredentialError::TooLong { got: text.len() });
        }
        let mut blocks = Self::default();
        for block in <(SectionKind, Vec<u8>)>::pem_slice_iter(text) {
            let (kind, der) = block.map_err(|error| {
                if holds(text, OLD_ENCRYPTION) {
                    return CredentialError::EncryptedKey;
                }
                CredentialError::BadPem {
                    reason: bad_pem(&error),
                }
            })?;
            blocks.take(kind, der)?;
        }
        Ok(blocks)
    }

    fn take(&mut self, kind: SectionKind, mut der: Vec<u8>) -> Result<(), CredentialError> {
        match kind {
            SectionKind::Certificate => self.certificates.push(der.into()),
            SectionKind::Crl => self.revocation_lists.push(der.into()),
            SectionKind::PrivateKey => self.take_key(Zeroizing::new(der))?,
            SectionKind::RsaPrivateKey => {
                let der = Zeroizing::new(der);
                self.take_key(old_key::from_pkcs1(&der))?;
            }
            SectionKind::EcPrivateKey => {
                let der = Zeroizing::new(der);
                self.take_key(old_key::from_sec1(&der).ok_or(CredentialError::UnknownKey)?)?;
            }
            other => {
                der.zeroize();
                return Err(misplaced(other));
            }
        }
        Ok(())
    }

    fn take_key(&mut self, key: Zeroizing<Vec<u8>>) -> Result<(), CredentialError> {
        match self.key.replace(key) {
            None => Ok(()),
            Some(_) => Err(CredentialError::SeveralKeys),
        }
    }
}

fn misplaced(kind: SectionKind) -> CredentialError {
    match kind {
        SectionKind::PublicKey => CredentialError::UnexpectedBlock { got: "PUBLIC KEY" },
        SectionKind::Csr => CredentialError::UnexpectedBlock {
            got: "CERTIFICATE REQUEST",
        },
        _ => CredentialError::UnexpectedBlock {
            got: "of another kind",
        },
    }
}

fn bad_pem(error: &pem::Error) -> &'static str {
    // The library's own message repeats the line, which can be a line of the key.
    match error {
        pem::Error::MissingSectionEnd { .. } => "a block has no line \"-----END\"",
        pem::Error::IllegalSectionStart { .. } => "a line \"-----BEGIN\" is broken",
        pem::Error::Base64Decode(_) => "a block is not base64",
        _ => "a block can't be read",
    }
}

/// A block of a label that the reader doesn't know is skipped, so a key that needs a pass phrase looks like none.
fn missing_key(text: &[u8]) -> CredentialError {
    if holds(text, b"ENCRYPTED PRIVATE KEY-----") {
        CredentialError::EncryptedKey
    } else {
        CredentialError::NoKey
    }
}

/// The header inside an encrypted key of before PKCS#8, which makes the block unreadable.
const OLD_ENCRYPTION: &[u8] = b"Proc-Type: 4,ENCRYPTED";

fn holds(text: &[u8], what: &[u8]) -> bool {
    text.windows(what.len()).any(|window| window == what)
}

/// Bytes of one line: 48 bytes are 64 characters of base64.
const LINE_BYTES: usize = 48;

fn armoured_bytes_max(der: &[u8]) -> usize {
    // 65 with the line's end, and two lines with a label around.
    der.len().div_ceil(LINE_BYTES) * 65 + 2 * 64
}

pub(super) fn armour(label: &str, der: &[u8], text: &mut Vec<u8>) {
    text.extend([b"-----BEGIN ", label.as_bytes(), b"-----\n"].concat());
    let mut line = Zeroizing::new([0_u8; 64]);
    for bytes in der.chunks(LINE_BYTES) {
        let characters = &mut line[..data_encoding::BASE64.encode_len(bytes.len())];
        data_encoding::BASE64.encode_mut(bytes, characters);
        text.extend_from_slice(characters);
        text.push(b'\n');
    }
    text.extend([b"-----END ", label.as_bytes(), b"-----\n"].concat());
}
