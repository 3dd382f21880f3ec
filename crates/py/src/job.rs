//! A job's authority and the credentials of its processes, for `exoskel.job`; `machines`: what a job decides.

mod machines;

use std::str::FromStr;

use exoskel_identity::Role;
use exoskel_net::pki::{JobAuthority, PkiError, ProcessKey};
use exoskel_trust::Document;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use rustls_pki_types::CertificateDer;

use crate::error;
use crate::time::now;

pub(crate) fn add(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<JobAuthorityHandle>()?;
    module.add_class::<ProcessKeyHandle>()?;
    module.add_class::<ProcessCredential>()?;
    machines::add(module)
}

/// The authority of a job.
#[pyclass(frozen, name = "JobAuthority")]
pub(crate) struct JobAuthorityHandle(JobAuthority);

/// The key of a process of a job.
#[pyclass(frozen, name = "ProcessKey")]
pub(crate) struct ProcessKeyHandle(ProcessKey);

/// The credential of a process of a job, in memory only.
#[pyclass(frozen, name = "ProcessCredential")]
pub(crate) struct ProcessCredential {
    pub(crate) document: Document,
    /// The name that it proves.
    #[pyo3(get)]
    name: String,
}

fn raised(py: Python<'_>) -> impl Fn(PkiError) -> PyErr + '_ {
    move |error| error::pki(py, &error)
}

#[pymethods]
impl JobAuthorityHandle {
    #[new]
    fn new(py: Python<'_>) -> PyResult<Self> {
        JobAuthority::new(now()).map(Self).map_err(raised(py))
    }

    /// Which job it is, in 32 hexadecimal digits.
    #[getter]
    fn job(&self) -> String {
        self.0.job().to_string()
    }

    /// The certificate that all processes of the job trust, in DER.
    #[getter]
    fn root<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, self.0.root())
    }

    /// Signs the public keys of processes on one host for one role, given with the processes' numbers. Returns certificates in DER.
    fn sign<'py>(
        &self,
        py: Python<'py>,
        role: &str,
        host: &str,
        keys: Vec<(u32, Vec<u8>)>,
    ) -> PyResult<Vec<Bound<'py, PyBytes>>> {
        let role =
            Role::from_str(role).map_err(|error| PyValueError::new_err(error.to_string()))?;
        let now = now();
        let signed = py.detach(|| {
            let signed = keys
                .iter()
                .map(|(number, key)| self.0.sign(role, host, *number, key, now));
            signed.collect::<Result<Vec<_>, _>>()
        });
        let signed = signed.map_err(raised(py))?;
        Ok(signed.iter().map(|one| PyBytes::new(py, one)).collect())
    }
}

#[pymethods]
impl ProcessKeyHandle {
    #[new]
    fn new(py: Python<'_>) -> PyResult<Self> {
        ProcessKey::new().map(Self).map_err(raised(py))
    }

    /// What the job's authority is to sign.
    #[getter]
    fn public_key<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, self.0.public_key())
    }

    /// The process's credential, with what the authority has signed; both certificates in DER.
    fn credential(
        &self,
        py: Python<'_>,
        certificate: Vec<u8>,
        root: Vec<u8>,
    ) -> PyResult<ProcessCredential> {
        let certificates = (
            CertificateDer::from(certificate),
            CertificateDer::from(root),
        );
        let credential = self.0.credential(certificates.0, certificates.1);
        let credential = credential.map_err(raised(py))?;
        Ok(ProcessCredential {
            name: credential.identity().name.clone(),
            document: Document::Memory(credential.to_pem()),
        })
    }
}
