//! One file of a trust directory: what its name says it is, and what its bytes say.

use std::collections::BTreeMap;
use std::sync::Arc;

use rustls_pki_types::pem::{PemObject as _, SectionKind};
use rustls_pki_types::{CertificateDer, CertificateRevocationListDer};

use super::bad_file::BadFileReason;
use super::coverage::Coverage;
use super::name_space::{NameStatement, read_namespaces, read_signing_policy};
use crate::limits::{CERTIFICATES_IN_FILE_MAX, POLICY_FILE_BYTES_MAX, TRUST_FILE_BYTES_MAX};
use crate::peer_text::PeerText;
use crate::revocation::RevocationList;
use crate::voms::SignerChains;
use crate::x509::Certificate;

/// Which of the two directories a file is in.
#[derive(Clone, Copy)]
pub(super) enum Directory {
    Anchors,
    Voms,
}

/// What a file of a trust directory is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum FileKind {
    Authorities,
    RevocationList,
    SigningPolicy,
    Namespaces,
    VomsChains,
    VomsCertificates,
}

/// What a file holds.
pub(super) enum Content {
    Authorities(Vec<Arc<Certificate>>),
    RevocationList(Arc<Coverage>),
    SigningPolicy(Vec<NameStatement>),
    Namespaces(Vec<NameStatement>),
    Voms(VomsFile),
}

/// What a good file said.
pub(super) struct Kept {
    pub(super) digest: [u8; 32],
    pub(super) content: Content,
}

/// A file of a vomsdir (`VO/HOST.lsc` or `VO/HOST.pem`): who may sign attributes for a virtual organisation.
#[derive(Clone, Debug)]
pub(crate) enum VomsFile {
    /// Chains of names: the signer's, its issuer's, and so on up.
    Chains(SignerChains),
    /// The signer's own certificates, pinned.
    Certificates(Vec<Arc<Certificate>>),
}

/// The certificates of all files, each once: the old and the new kind of hash name the same file twice.
pub(super) fn certificates(
    files: &BTreeMap<String, Arc<Kept>>,
) -> impl Iterator<Item = (&str, &Arc<Certificate>)> {
    files.iter().flat_map(|(name, kept)| {
        let certificates = match &kept.content {
            Content::Authorities(certificates) => certificates.as_slice(),
            _ => &[],
        };
        certificates
            .iter()
            .map(move |certificate| (name.as_str(), certificate))
    })
}

impl FileKind {
    /// What a file of that name is for; nothing for one that isn't looked at.
    pub(super) fn of(directory: Directory, name: &str) -> Option<Self> {
        match directory {
            Directory::Anchors => Self::of_anchors(name),
            Directory::Voms => Self::of_voms(name),
        }
    }

    fn of_anchors(name: &str) -> Option<Self> {
        let (hash, kind) = name.split_once('.')?;
        if hash.len() != 8 || !hash.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return None;
        }
        let is_number = |text: &str| {
            !text.is_empty() && text.len() <= 3 && text.bytes().all(|byte| byte.is_ascii_digit())
        };
        match kind {
            "signing_policy" => Some(Self::SigningPolicy),
            "namespaces" => Some(Self::Namespaces),
            number if is_number(number) => Some(Self::Authorities),
            list if list.strip_prefix('r').is_some_and(is_number) => Some(Self::RevocationList),
            _ => None,
        }
    }

    fn of_voms(name: &str) -> Option<Self> {
        let (_, file) = name.split_once('/')?;
        match file.rsplit_once('.')?.1 {
            "lsc" => Some(Self::VomsChains),
            "pem" => Some(Self::VomsCertificates),
            _ => None,
        }
    }

    pub(super) fn read(self, content: Vec<u8>) -> Result<Content, BadFileReason> {
        if content.iter().all(u8::is_ascii_whitespace) {
            return Err(BadFileReason::Empty);
        }
        let max = match self {
            Self::RevocationList => TRUST_FILE_BYTES_MAX,
            _ => POLICY_FILE_BYTES_MAX,
        };
        if content.len() > max {
            return Err(BadFileReason::TooLong {
                got: content.len(),
                max,
            });
        }
        Ok(match self {
            Self::Authorities => Content::Authorities(read_certificates(&content)?),
            Self::RevocationList => {
                Content::RevocationList(Arc::new(Coverage::new(read_list(content)?)))
            }
            Self::SigningPolicy => Content::SigningPolicy(read_signing_policy(&content)?),
            Self::Namespaces => Content::Namespaces(read_namespaces(&content)?),
            Self::VomsChains => Content::Voms(VomsFile::Chains(SignerChains::parse(&content)?)),
            Self::VomsCertificates => {
                Content::Voms(VomsFile::Certificates(read_certificates(&content)?))
            }
        })
    }
}

fn is_der(content: &[u8]) -> bool {
    // SEQUENCE with a length of two or more bytes; no text begins like that.
    matches!(content, [0x30, length, ..] if *length >= 0x80)
}

fn read_certificates(content: &[u8]) -> Result<Vec<Arc<Certificate>>, BadFileReason> {
    let ders = if is_der(content) {
        vec![CertificateDer::from(content)]
    } else {
        let mut ders = Vec::new();
        for (kind, der) in blocks(content, "CERTIFICATE")? {
            if kind == SectionKind::Certificate {
                ders.push(CertificateDer::from(der));
            }
        }
        ders
    };
    if ders.is_empty() {
        return Err(BadFileReason::NoBlock {
            expected: "CERTIFICATE",
        });
    }
    let mut certificates = Vec::with_capacity(ders.len());
    for der in ders {
        let certificate = Certificate::read(&der)?;
        if certificate.is_self_issued()
            && certificate.verify_self_signature() == Err(crate::signature::SignatureFault::Wrong)
        {
            return Err(BadFileReason::BadSelfSignature {
                subject: PeerText::new(&certificate.subject.slash()),
            });
        }
        certificates.push(Arc::new(certificate));
    }
    Ok(certificates)
}

fn read_list(content: Vec<u8>) -> Result<RevocationList, BadFileReason> {
    let der = if is_der(&content) {
        content
    } else {
        let mut lists = blocks(&content, "X509 CRL")?
            .into_iter()
            .filter_map(|(kind, der)| (kind == SectionKind::Crl).then_some(der));
        let list = lists.next().ok_or(BadFileReason::NoBlock {
            expected: "X509 CRL",
        })?;
        // What the others revoke must not be lost.
        if lists.next().is_some() {
            return Err(BadFileReason::SeveralLists);
        }
        list
    };
    Ok(RevocationList::read(&CertificateRevocationListDer::from(
        der,
    ))?)
}

fn blocks(
    content: &[u8],
    expected: &'static str,
) -> Result<Vec<(SectionKind, Vec<u8>)>, BadFileReason> {
    let mut blocks = Vec::new();
    for block in <(SectionKind, Vec<u8>)>::pem_slice_iter(content) {
        if blocks.len() == CERTIFICATES_IN_FILE_MAX {
            return Err(BadFileReason::TooManyBlocks);
        }
        blocks.push(block.map_err(|_| BadFileReason::NoBlock { expected })?);
    }
    Ok(blocks)
}
