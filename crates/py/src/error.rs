//! One way from the crates' errors to the exceptions of `exoskel.errors`.

use exoskel_link::policy::PolicyError;
use exoskel_net::pki::PkiError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyType;

/// The exceptions that are raised from here.
#[derive(Clone, Copy)]
pub(crate) enum Kind {
    Authentication,
    Credential,
    Exoskel,
    Fork,
    KeyMemory,
    Link,
    NoWorker,
    Policy,
    ResultRejected,
    SizeLimit,
}

/// An exception of `exoskel.errors` with this text.
pub(crate) fn raise(py: Python<'_>, kind: Kind, text: impl Into<String>) -> PyErr {
    match class(py, kind) {
        Ok(class) => PyErr::from_type(class.clone(), (text.into(),)),
        Err(error) => error,
    }
}

/// Whether an exception is one of this kind.
pub(crate) fn is(py: Python<'_>, kind: Kind, error: &PyErr) -> bool {
    class(py, kind).is_ok_and(|class| error.is_instance(py, class))
}

fn class(py: Python<'_>, kind: Kind) -> PyResult<&Bound<'_, PyType>> {
    static CLASSES: [PyOnceLock<Py<PyType>>; 10] = [const { PyOnceLock::new() }; 10];
    let name = match kind {
        Kind::Authentication => "AuthenticationError",
        Kind::Credential => "CredentialError",
        Kind::Exoskel => "ExoskelError",
        Kind::Fork => "ForkError",
        Kind::KeyMemory => "KeyMemoryError",
        Kind::Link => "LinkError",
        Kind::NoWorker => "NoWorkerError",
        Kind::Policy => "PolicyError",
        Kind::ResultRejected => "ResultRejectedError",
        Kind::SizeLimit => "SizeLimitError",
    };
    CLASSES[kind as usize].import(py, "exoskel.errors", name)
}

pub(crate) fn pki(py: Python<'_>, error: &PkiError) -> PyErr {
    raise(py, Kind::Credential, error.to_string())
}

pub(crate) fn policy(py: Python<'_>, error: &PolicyError) -> PyErr {
    raise(py, Kind::Policy, error.to_string())
}
