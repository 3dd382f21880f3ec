//! Who is at the other end of a session.

use std::sync::Arc;

use exoskel_identity::{Identity, PeerText, VerifiedIdentity};
use exoskel_link::handshake::ProcessNumber;

/// One process of a node. Several processes can have one certificate; links lead to one of them.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PeerProcess {
    /// Whose process it is.
    pub node: Identity,
    /// Which one.
    pub process: ProcessNumber,
}

/// What a new session's handshake has shown.
#[derive(Clone)]
pub struct SessionPeer {
    /// Who has proven to be at the other end.
    pub identity: Arc<VerifiedIdentity>,
    /// Which process of that node it says it is.
    pub process: ProcessNumber,
    /// Whether it is proven to be on this host.
    pub same_host: bool,
    /// Whether we dialled.
    pub dialled: bool,
}

impl SessionPeer {
    pub(super) fn to_process(&self) -> PeerProcess {
        PeerProcess {
            node: self.identity.identity().clone(),
            process: self.process,
        }
    }
}

/// What stands between us and a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Hindrance {
    /// The way, or how the other end fares just now: it may be better later.
    #[default]
    Way,
    /// Somebody's certificate isn't accepted, or is another one's.
    Identity,
    /// The two ends don't speak the same version.
    Version,
    /// Rules of one of the two are against it.
    Rules,
}

/// How a program came to mean one process of a node, which has ended since.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EndedProcess {
    /// It made the startpoint.
    #[default]
    Issuer,
    /// It answered a lookup.
    LookedUp,
}

impl EndedProcess {
    /// What to do about it.
    pub(super) fn advice(self) -> &'static str {
        match self {
            Self::Issuer => "the process that made this startpoint has ended: ask for a new one",
            Self::LookedUp => {
                "the process that answered the lookup has ended: look the endpoint up again"
            }
        }
    }
}

/// The attempts to reach a node that came to nothing.
#[derive(Clone, Debug, Default)]
pub struct FailedAttempts {
    /// Why they failed, and at which hints.
    failed: Vec<(String, Vec<String>)>,
    /// Whether another process of the node was there.
    pub is_gone: bool,
    /// What stood between of the attempt that came furthest.
    pub hindrance: Hindrance,
}

impl FailedAttempts {
    /// Another one, at a hint. A reason that several have is told once.
    pub fn add(&mut self, hint: &str, reason: String, hindrance: Hindrance) {
        let hint = PeerText::new(hint).unquoted();
        match self.failed.iter_mut().find(|(known, _)| *known == reason) {
            Some((_, hints)) => hints.push(hint),
            None => self.failed.push((reason, vec![hint])),
        }
        self.hindrance = self.hindrance.max(hindrance);
    }

    /// What they came to, a phrase for each reason.
    #[must_use]
    pub fn told(&self) -> Vec<String> {
        let failed = self.failed.iter();
        failed
            .map(|(reason, hints)| format!("{}: {reason}", hints.join(", ")))
            .collect()
    }
}

/// To whom a link leads: one process of a node, or any, if whoever asks doesn't know which.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct WantedProcess {
    /// Whose process it is.
    pub node: Identity,
    /// Which one; any of that node, if it isn't said.
    pub process: Option<ProcessNumber>,
}

impl WantedProcess {
    /// Whether this process will do.
    #[must_use]
    pub fn is(&self, peer: &PeerProcess) -> bool {
        self.node == peer.node && self.process.is_none_or(|process| process == peer.process)
    }

    /// Whether one process may be what both want.
    pub(super) fn may_be(&self, other: &Self) -> bool {
        let is_any = self.process.is_none() || other.process.is_none();
        self.node == other.node && (is_any || self.process == other.process)
    }
}

impl From<&PeerProcess> for WantedProcess {
    fn from(peer: &PeerProcess) -> Self {
        Self {
            node: peer.node.clone(),
            process: Some(peer.process),
        }
    }
}
