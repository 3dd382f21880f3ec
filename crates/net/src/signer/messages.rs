//! What a slot asks its worker's signer, and what it answers. Both ends are processes of one program, forked from one another.

use std::io;
use std::net::SocketAddr;

use exoskel_identity::Role;
use exoskel_identity::limits::CREDENTIAL_BYTES_MAX;
use exoskel_link::Protections;
use exoskel_link::handshake::{Path, PeerRecord, WITNESS_BYTES};
use exoskel_link::policy::PlaceProof;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// The longest message: a credential with its revocation lists, as text in a text.
pub(super) const MESSAGE_BYTES_MAX: usize = 2 * CREDENTIAL_BYTES_MAX;

/// What stands before each message: its length.
pub(super) const LENGTH_BYTES: usize = 4;

/// What a slot asks.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum SignerRequest {
    /// What is public of the credential, as its files have it now.
    Credential,
    /// A signature by the key that came with an answer.
    Sign {
        key: u64,
        scheme: u16,
        message: Vec<u8>,
    },
    /// The turn to knock. It ends with the connection, or with `Judge`.
    Turn,
    /// The last one: what is said of this manager from now on.
    Judge(JudgedManager),
}

/// What it is told.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum SignerAnswer {
    /// Certificates and lists in PEM, and what its key is called here.
    Credential {
        key: u64,
        schemes: Vec<u16>,
        public: String,
    },
    /// What was signed.
    Signature(Vec<u8>),
    /// It is the slot's turn.
    Turn,
    /// What was asked can't be had.
    Fault(String),
    /// The manager is still good; the session gets at least these protections: control, code, data.
    Good([String; 3]),
    /// The session has to end.
    NoLongerGood(String),
}

/// Whom a session is with, as [`PeerRecord`] has it; its certificates are judged once more by who reads this.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct JudgedManager {
    pub(super) role: String,
    pub(super) name: String,
    pub(super) chain: Vec<Vec<u8>>,
    path: SeenPath,
    proof: SeenProof,
    pub(super) chosen: bool,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
enum SeenPath {
    SameHost([u8; WITNESS_BYTES]),
    Network(SocketAddr, SocketAddr),
    Relayed,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
enum SeenProof {
    SameHost,
    Direct,
    Unproven,
}

impl From<&PeerRecord> for JudgedManager {
    fn from(record: &PeerRecord) -> Self {
        let PeerRecord {
            peer,
            path,
            proof,
            chosen,
        } = record;
        Self {
            role: peer.role().to_string(),
            name: peer.name().to_owned(),
            chain: peer.chain().iter().map(|one| one.to_vec()).collect(),
            path: match *path {
                Path::SameHost { witness } => SeenPath::SameHost(witness),
                Path::Network { local, remote } => SeenPath::Network(local, remote),
                Path::Relayed => SeenPath::Relayed,
            },
            proof: match proof {
                PlaceProof::SameHost => SeenProof::SameHost,
                PlaceProof::Direct => SeenProof::Direct,
                PlaceProof::Unproven => SeenProof::Unproven,
            },
            chosen: *chosen,
        }
    }
}

impl JudgedManager {
    /// The role that the manager has been found in.
    pub(super) fn role(&self) -> Option<Role> {
        self.role.parse().ok()
    }

    /// How the slot sees the way to it, and what both views prove.
    pub(super) fn way(&self) -> (Path, PlaceProof) {
        let path = match self.path {
            SeenPath::SameHost(witness) => Path::SameHost { witness },
            SeenPath::Network(local, remote) => Path::Network { local, remote },
            SeenPath::Relayed => Path::Relayed,
        };
        let proof = match self.proof {
            SeenProof::SameHost => PlaceProof::SameHost,
            SeenProof::Direct => PlaceProof::Direct,
            SeenProof::Unproven => PlaceProof::Unproven,
        };
        (path, proof)
    }
}

/// Protections as they are said.
pub(super) fn told(protections: Protections) -> [String; 3] {
    [protections.control, protections.code, protections.data].map(|one| one.name().to_owned())
}

/// And as they are meant.
pub(super) fn meant(told: &[String; 3]) -> io::Result<Protections> {
    let read = |text: &String| text.parse().map_err(io::Error::other);
    let [control, code, data] = told;
    Ok(Protections {
        control: read(control)?,
        code: read(code)?,
        data: read(data)?,
    })
}

/// A message with its length before it.
pub(super) fn framed(message: &impl Serialize) -> io::Result<Vec<u8>> {
    let body = serde_json::to_vec(message)?;
    let length = u32::try_from(body.len()).ok();
    let length = length.filter(|length| *length as usize <= MESSAGE_BYTES_MAX);
    let length = length.ok_or(io::ErrorKind::FileTooLarge)?;
    Ok([&length.to_be_bytes()[..], &body].concat())
}

/// How long the message is that this stands before.
pub(super) fn length(before: [u8; LENGTH_BYTES]) -> io::Result<usize> {
    let length = u32::from_be_bytes(before) as usize;
    match length <= MESSAGE_BYTES_MAX {
        true => Ok(length),
        false => Err(io::ErrorKind::FileTooLarge.into()),
    }
}

pub(super) fn read<T: DeserializeOwned>(body: &[u8]) -> io::Result<T> {
    Ok(serde_json::from_slice(body)?)
}
