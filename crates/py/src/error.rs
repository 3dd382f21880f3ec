//! One way from the crates' errors to the exceptions of `exoskel.errors`.
//!
//! No match here has a wildcard arm: a new variant has to find its exception.

use exoskel_journal::JournalError;
use exoskel_link::handshake::{HandshakeError, RefuseReason};
use exoskel_link::policy::PolicyError;
use exoskel_net::establish::{EstablishError, NoLongerGood};
use exoskel_net::manager::{Attempt, AttemptError, EarlyPhase, Unwanted};
use exoskel_net::pki::PkiError;
use exoskel_net::rendezvous::MeetError;
use exoskel_net::result_queue::{OpenError, StreamEnd};
use exoskel_net::sources::NodeConfigError;
use exoskel_net::tls::TlsError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{IntoPyDict, PyTuple, PyType};

/// The exceptions that are raised from here.
#[derive(Clone, Copy)]
pub(crate) enum ExceptionKind {
    Authentication,
    Coupling,
    Credential,
    Exoskel,
    Fork,
    Initializer,
    Journal,
    Keeper,
    KeyMemory,
    Link,
    MemberLost,
    NoAddress,
    NoWorker,
    Policy,
    ProcessEnded,
    Program,
    ProgramLeft,
    Refused,
    ResultRejected,
    SizeLimit,
    Startpoint,
    Version,
}

/// An exception of `exoskel.errors` with this text.
pub(crate) fn raise(py: Python<'_>, kind: ExceptionKind, text: impl Into<String>) -> PyErr {
    match class(py, kind) {
        Ok(class) => PyErr::from_type(class.clone(), (text.into(),)),
        Err(error) => error,
    }
}

/// Whether an exception is one of this kind.
pub(crate) fn is(py: Python<'_>, kind: ExceptionKind, error: &PyErr) -> bool {
    class(py, kind).is_ok_and(|class| error.is_instance(py, class))
}

fn class(py: Python<'_>, kind: ExceptionKind) -> PyResult<&Bound<'_, PyType>> {
    // The last one says how many there are.
    const KINDS: usize = ExceptionKind::Version as usize + 1;
    static CLASSES: [PyOnceLock<Py<PyType>>; KINDS] = [const { PyOnceLock::new() }; KINDS];
    let name = match kind {
        ExceptionKind::Authentication => "AuthenticationError",
        ExceptionKind::Coupling => "CouplingError",
        ExceptionKind::Credential => "CredentialError",
        ExceptionKind::Exoskel => "ExoskelError",
        ExceptionKind::Fork => "ForkError",
        ExceptionKind::Initializer => "InitializerError",
        ExceptionKind::Journal => "JournalError",
        ExceptionKind::Keeper => "KeeperError",
        ExceptionKind::KeyMemory => "KeyMemoryError",
        ExceptionKind::Link => "LinkError",
        ExceptionKind::MemberLost => "MemberLostError",
        ExceptionKind::NoAddress => "NoAddressError",
        ExceptionKind::NoWorker => "NoWorkerError",
        ExceptionKind::Policy => "PolicyError",
        ExceptionKind::ProcessEnded => "ProcessEndedError",
        ExceptionKind::Program => "ProgramError",
        ExceptionKind::ProgramLeft => "ProgramLeftError",
        ExceptionKind::Refused => "RefusedError",
        ExceptionKind::ResultRejected => "ResultRejectedError",
        ExceptionKind::SizeLimit => "SizeLimitError",
        ExceptionKind::Startpoint => "StartpointError",
        ExceptionKind::Version => "VersionError",
    };
    CLASSES[kind as usize].import(py, "exoskel.errors", name)
}

pub(crate) fn pki(py: Python<'_>, error: &PkiError) -> PyErr {
    raise(py, ExceptionKind::Credential, error.to_string())
}

pub(crate) fn policy(py: Python<'_>, error: &PolicyError) -> PyErr {
    raise(py, ExceptionKind::Policy, error.to_string())
}

/// Why files can't be used.
pub(crate) fn terms(py: Python<'_>, error: &NodeConfigError) -> PyErr {
    raise(py, ExceptionKind::from(error), error.to_string())
}

/// Why a worker's process has no session.
pub(crate) fn meet(py: Python<'_>, error: &MeetError) -> PyErr {
    raise(py, ExceptionKind::from(error), error.to_string())
}

/// Why a journal can't be used, or not any longer.
pub(crate) fn journal(py: Python<'_>, error: JournalError) -> PyErr {
    match error {
        JournalError::Disk(error) => error.into(),
        JournalError::NotAJournal
        | JournalError::Version { .. }
        | JournalError::Damaged { .. }
        | JournalError::Changed { .. }
        | JournalError::TextTooLong { .. }
        | JournalError::SecondResult { .. }
        | JournalError::AmidItem { .. }
        | JournalError::PositionTooLong { .. }
        | JournalError::ResultTooLong { .. }
        | JournalError::SourceTooShort { .. } => {
            raise(py, ExceptionKind::Journal, error.to_string())
        }
    }
}

/// Why a stream has ended.
pub(crate) fn stream_end(py: Python<'_>, end: &StreamEnd) -> PyErr {
    match end {
        StreamEnd::NoWorker { attempts, .. } => {
            no_worker(py, end.to_string(), attempts).unwrap_or_else(|error| error)
        }
        StreamEnd::Closed => raise(py, ExceptionKind::NoWorker, end.to_string()),
        StreamEnd::NotOpened(OpenError::Program(_)) => {
            raise(py, ExceptionKind::Program, end.to_string())
        }
        StreamEnd::NotOpened(OpenError::Flow(_)) | StreamEnd::LostTrack => {
            raise(py, ExceptionKind::Exoskel, end.to_string())
        }
    }
}

/// A `NoWorkerError` that holds the attempts; an `InitializerError` where one was that. None is the cause: the text says all of them.
fn no_worker(py: Python<'_>, text: String, attempts: &[Attempt]) -> PyResult<PyErr> {
    let is_uninitialized = |attempt: &Attempt| {
        let error = &*attempt.error;
        matches!(
            error,
            AttemptError::Unwanted(
                Unwanted::Uninitialized(_) | Unwanted::LostEarly(EarlyPhase::Initializing, _)
            )
        )
    };
    let kind = if attempts.iter().any(is_uninitialized) {
        ExceptionKind::Initializer
    } else {
        ExceptionKind::NoWorker
    };
    let attempts = self::attempts(py, attempts)?;
    let keywords = [("attempts", PyTuple::new(py, attempts)?)].into_py_dict(py)?;
    let error = class(py, kind)?.call((text,), Some(&keywords))?;
    Ok(PyErr::from_value(error))
}

/// One exception for each attempt; its `place` says where that was.
pub(crate) fn attempts<'py>(
    py: Python<'py>,
    attempts: &[Attempt],
) -> PyResult<Vec<Bound<'py, PyAny>>> {
    let exception = |attempt: &Attempt| {
        let kind = ExceptionKind::from(&*attempt.error);
        let error = raise(py, kind, attempt.to_string()).into_value(py);
        let error = error.into_bound(py).into_any();
        error.setattr("place", &attempt.place)?;
        Ok(error)
    };
    attempts.iter().map(exception).collect()
}

impl From<&AttemptError> for ExceptionKind {
    fn from(error: &AttemptError) -> Self {
        match error {
            AttemptError::Connect(_)
            | AttemptError::NoConnection(_)
            | AttemptError::Start(_)
            | AttemptError::Loading(_)
            | AttemptError::Session(_) => Self::Link,
            AttemptError::Issue(_) => Self::Credential,
            AttemptError::Establish(error) => error.into(),
            AttemptError::NoLongerGood(NoLongerGood::Identity(_)) => Self::Authentication,
            AttemptError::NoLongerGood(NoLongerGood::NotAllowed(_))
            | AttemptError::Unwanted(
                Unwanted::Lacks(_)
                | Unwanted::OverCost
                | Unwanted::SetAside(_)
                | Unwanted::Refuses(_),
            ) => Self::Refused,
            AttemptError::Unwanted(
                Unwanted::Uninitialized(_) | Unwanted::LostEarly(EarlyPhase::Initializing, _),
            ) => Self::Initializer,
            AttemptError::Unwanted(Unwanted::LostEarly(EarlyPhase::Joining, _)) => Self::Link,
        }
    }
}

impl From<&MeetError> for ExceptionKind {
    fn from(error: &MeetError) -> Self {
        match error {
            MeetError::InheritedConnection(_)
            | MeetError::InheritedListener(_)
            | MeetError::Signal(_)
            | MeetError::ListenerGone
            | MeetError::Connect(_)
            | MeetError::NoConnection(_)
            | MeetError::Session(_) => Self::Link,
            MeetError::Start(_) | MeetError::Signer(_) => Self::Exoskel,
            MeetError::Establish(error) => error.into(),
        }
    }
}

impl From<&EstablishError> for ExceptionKind {
    fn from(error: &EstablishError) -> Self {
        match error {
            EstablishError::Tls(error) => error.into(),
            EstablishError::Handshake(error) => error.into(),
            EstablishError::NotAllowed(_) => Self::Refused,
            EstablishError::Refused(refuse) => (&refuse.reason).into(),
            EstablishError::Socket(_)
            | EstablishError::LeftBeforeHello(_)
            | EstablishError::LeftWaiting(_)
            | EstablishError::Silent(_)
            | EstablishError::SaidNothing(_)
            | EstablishError::Displaced
            | EstablishError::TooMuch
            | EstablishError::NotTls
            | EstablishError::SharedMemory(_)
            | EstablishError::Own(_) => Self::Link,
        }
    }
}

impl From<&NodeConfigError> for ExceptionKind {
    fn from(error: &NodeConfigError) -> Self {
        match error {
            NodeConfigError::Credential(_) | NodeConfigError::Trust(_) => Self::Credential,
            NodeConfigError::PolicyFile(_) | NodeConfigError::Policy { .. } => Self::Policy,
        }
    }
}

impl From<&TlsError> for ExceptionKind {
    fn from(error: &TlsError) -> Self {
        match error {
            TlsError::Peer(_) | TlsError::OwnCertificate(_) => Self::Authentication,
            TlsError::Credential(_) => Self::Credential,
            TlsError::Protocol(_) | TlsError::TooMuch => Self::Link,
        }
    }
}

impl From<&HandshakeError> for ExceptionKind {
    fn from(error: &HandshakeError) -> Self {
        match error {
            HandshakeError::Protocol { .. } | HandshakeError::Version { .. } => Self::Version,
            HandshakeError::Refused(refuse) => (&refuse.reason).into(),
            HandshakeError::Identity { .. } => Self::Authentication,
            HandshakeError::Codec(_)
            | HandshakeError::Downgrade { .. }
            | HandshakeError::CipherNotOffered => Self::Link,
        }
    }
}

impl From<&RefuseReason> for ExceptionKind {
    fn from(reason: &RefuseReason) -> Self {
        match reason {
            RefuseReason::Version { .. } => Self::Version,
            RefuseReason::Certificate => Self::Authentication,
            RefuseReason::Role
            | RefuseReason::NotAllowed
            | RefuseReason::Busy
            | RefuseReason::Limit
            | RefuseReason::Cipher => Self::Refused,
            RefuseReason::Malformed | RefuseReason::Unreachable | RefuseReason::OtherProcess => {
                Self::Link
            }
        }
    }
}
