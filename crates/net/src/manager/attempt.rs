//! Attempts to get a slot that came to nothing: where each was made, and why it failed.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use exoskel_identity::{IdentityError, PeerText};
use exoskel_link::SessionError;
use exoskel_node::manager::JoinError;
use exoskel_node::manager::notice::Unwanted;

use crate::establish::{EstablishError, NoLongerGood};
use crate::pki::PkiError;
use crate::tls::TlsError;

/// Places where attempts have failed, of which the last one is kept for the user.
const ATTEMPTS_KEPT: usize = 1000;

/// Of these, attempts of strangers who dialled in: anybody can make as many as there are addresses.
const STRANGERS_KEPT: usize = 10;

/// An attempt that came to nothing. Its text names the place and the reason.
#[derive(Debug, Clone)]
pub struct Attempt {
    /// Who was asked, for people: `worker node1 at 10.0.0.1:7600`.
    pub worker: String,
    /// The address as it was given, or `local worker 3` for a child of this process.
    pub place: String,
    /// Whether somebody dialled in who has not proved who it is.
    pub is_of_stranger: bool,
    /// Why it came to nothing.
    pub error: Arc<AttemptError>,
}

impl Attempt {
    /// Whether the user has had a warning of this: the worker is of no use, and was told so.
    #[must_use]
    pub fn is_told(&self) -> bool {
        matches!(
            *self.error,
            AttemptError::Unwanted(_) | AttemptError::Establish(EstablishError::Refused(_))
        )
    }

    /// Keeps the attempt behind others, in the place of an earlier one there. The oldest goes when there are too many.
    pub(super) fn keep_in(self, attempts: &mut Vec<Self>) {
        attempts.retain(|known| known.worker != self.worker);
        attempts.push(self);
        let strangers = attempts.iter().filter(|known| known.is_of_stranger);
        let surplus = if strangers.count() > STRANGERS_KEPT {
            attempts.iter().position(|known| known.is_of_stranger)
        } else {
            (attempts.len() > ATTEMPTS_KEPT).then_some(0)
        };
        if let Some(oldest) = surplus {
            attempts.remove(oldest);
        }
    }
}

impl fmt::Display for Attempt {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let colon = match *self.error {
            AttemptError::Unwanted(_) => "",
            _ => ":",
        };
        write!(formatter, "{}{colon} {}", self.worker, self.error)?;
        match &*self.error {
            AttemptError::Establish(EstablishError::Tls(TlsError::Peer(
                IdentityError::WrongName { got, .. },
            ))) => {
                let name = PeerText::new(&got.name).unquoted();
                let place = &self.place;
                write!(
                    formatter,
                    "; if it is the one that you mean, list it as `{place} {name}`"
                )
            }
            _ => Ok(()),
        }
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
    /// A child has neither begun nor ended.
    #[error(
        "its process has said nothing for {0:?}, while it imports Python and exoskel; is the disk that they are on very slow?"
    )]
    Loading(Duration),
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
        | EstablishError::LeftBeforeHello(_)
        | EstablishError::Refused(_)
        | EstablishError::NotAllowed(_) => !error.is_busy(),
        EstablishError::Tls(
            TlsError::Credential(_) | TlsError::Protocol(_) | TlsError::TooMuch,
        )
        | EstablishError::Socket(_)
        | EstablishError::LeftWaiting(_)
        | EstablishError::Silent(_)
        | EstablishError::SaidNothing(_)
        | EstablishError::Displaced
        | EstablishError::TooMuch
        | EstablishError::NotTls
        | EstablishError::SharedMemory(_)
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
            | Self::Loading(_)
            | Self::Issue(_)
            | Self::Session(_) => true,
            Self::Establish(error) => error.may_pass(),
            Self::NoLongerGood(_) | Self::Unwanted(_) => false,
        }
    }

    /// Whether the peer had proved who it is when this happened.
    #[must_use]
    pub fn is_of_verified_peer(&self) -> bool {
        match self {
            Self::Establish(error) => matches!(
                error,
                EstablishError::Handshake(_)
                    | EstablishError::LeftBeforeHello(_)
                    | EstablishError::LeftWaiting(_)
                    | EstablishError::Refused(_)
                    | EstablishError::NotAllowed(_)
            ),
            Self::Session(_) | Self::NoLongerGood(_) | Self::Unwanted(_) => true,
            Self::Connect(_)
            | Self::NoConnection(_)
            | Self::Start(_)
            | Self::Loading(_)
            | Self::Issue(_) => false,
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Aim: who can prove nothing can't crowd out what is known of workers.
    #[test]
    fn strangers_have_a_small_part_of_what_is_kept() {
        let mut attempts = Vec::new();
        let attempt = |worker: String, is_of_stranger| Attempt {
            place: worker.clone(),
            worker,
            is_of_stranger,
            error: Arc::new(AttemptError::NoConnection(Duration::ZERO)),
        };
        attempt("a worker".to_owned(), false).keep_in(&mut attempts);
        for number in 0..5000 {
            attempt(format!("stranger {number}"), true).keep_in(&mut attempts);
        }
        assert_eq!(attempts.len(), 1 + STRANGERS_KEPT);
        assert_eq!(attempts[0].worker, "a worker");
        assert_eq!(attempts[1].worker, "stranger 4990");
        for number in 0..5000 {
            attempt(format!("worker {number}"), false).keep_in(&mut attempts);
        }
        assert_eq!(attempts.len(), ATTEMPTS_KEPT);
    }
}
