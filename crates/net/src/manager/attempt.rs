//! Attempts to get a slot that came to nothing: where each was made, and why it failed.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use exoskel_link::SessionError;
use exoskel_node::manager::JoinError;
use exoskel_node::manager::notice::Unwanted;

use crate::establish::{EstablishError, NoLongerGood};
use crate::pki::PkiError;
use crate::tls::TlsError;

/// An attempt that came to nothing. Its text names the place and the reason.
#[derive(Debug, Clone)]
pub struct Attempt {
    /// Who was asked, for people: `worker node1 at 10.0.0.1:7600`.
    pub worker: String,
    /// The address as it was given, or `local worker 3` for a child of this process.
    pub place: String,
    /// Why it came to nothing.
    pub error: Arc<AttemptError>,
}

impl fmt::Display for Attempt {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let colon = match *self.error {
            AttemptError::Unwanted(_) => "",
            _ => ":",
        };
        write!(formatter, "{}{colon} {}", self.worker, self.error)
    }
}

/// The same attempt, and not only one that ended alike.
impl PartialEq for Attempt {
    fn eq(&self, other: &Self) -> bool {
        self.worker == other.worker && Arc::ptr_eq(&self.error, &other.error)
    }
}

impl Eq for Attempt {}

/// Why an attempt to get a slot came to nothing.
#[derive(Debug, thiserror::Error)]
pub enum AttemptError {
    /// Nobody accepts connections there.
    #[error("can't connect: {0}; is `exoskel worker --listen` running there?")]
    Connect(#[source] io::Error),
    /// The network doesn't answer.
    #[error("no connection within {0:?}")]
    NoConnection(Duration),
    /// The system doesn't let us start a child.
    #[error("can't start a local worker: {0}")]
    Start(#[source] io::Error),
    /// No credential could be made for a child.
    #[error(transparent)]
    Issue(#[from] PkiError),
    /// No session came about.
    #[error(transparent)]
    Establish(#[from] EstablishError),
    /// The session ended before it had begun to work.
    #[error(transparent)]
    Session(#[from] SessionError),
    /// Credential, policy or lists have changed during the handshake, and the worker isn't good any more.
    #[error(transparent)]
    NoLongerGood(#[from] NoLongerGood),
    /// The worker is of no use to this manager.
    #[error(transparent)]
    Unwanted(#[from] Unwanted),
}

/// Whether somebody who dialled in and got no session was a worker, by what is known then. Strangers and scanners are nobody's
/// attempt, and one that finds no free place asks again.
pub(super) fn is_of_worker(error: &EstablishError) -> bool {
    match error {
        EstablishError::Tls(TlsError::Peer(_) | TlsError::OwnCertificate(_))
        | EstablishError::Handshake(_)
        | EstablishError::Refused(_)
        | EstablishError::NotAllowed(_) => !error.is_busy(),
        EstablishError::Tls(
            TlsError::Credential(_) | TlsError::Protocol(_) | TlsError::TooMuch,
        )
        | EstablishError::Socket(_)
        | EstablishError::Silent(_)
        | EstablishError::SaidNothing(_)
        | EstablishError::NoConfig(_)
        | EstablishError::Displaced
        | EstablishError::TooMuch
        | EstablishError::NotTls
        | EstablishError::Own(_) => false,
    }
}

impl AttemptError {
    /// Whether another attempt may end better.
    #[must_use]
    pub fn may_pass(&self) -> bool {
        match self {
            Self::Connect(_)
            | Self::NoConnection(_)
            | Self::Start(_)
            | Self::Issue(_)
            | Self::Session(_) => true,
            Self::Establish(error) => error.may_pass(),
            Self::NoLongerGood(_) | Self::Unwanted(_) => false,
        }
    }

    /// Whether the slot that answered had just been taken; the worker's others may be free.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        matches!(self, Self::Establish(error) if error.is_busy())
    }
}

impl From<JoinError> for AttemptError {
    fn from(error: JoinError) -> Self {
        match error {
            JoinError::Unwanted(why) => why.into(),
            JoinError::Session(error) => error.into(),
        }
    }
}
