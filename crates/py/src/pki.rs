//! Private authorities and their certificates, for the command line.

use std::path::PathBuf;
use std::time::Duration;

use exoskel_identity::{CertificateDetails, Credential, Role};
use exoskel_net::pki::{self, AuthorityDirectory, PkiError};
use exoskel_trust::read_credential;
use pyo3::exceptions::{PyOSError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};

use crate::error::{self, ExceptionKind, raise};
use crate::time::now;

pub(crate) fn add(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(pki_init, module)?)?;
    module.add_function(wrap_pyfunction!(pki_issue, module)?)?;
    module.add_function(wrap_pyfunction!(pki_renew, module)?)?;
    module.add_function(wrap_pyfunction!(pki_renew_list, module)?)?;
    module.add_function(wrap_pyfunction!(pki_revoke, module)?)?;
    module.add_function(wrap_pyfunction!(pki_list, module)?)?;
    module.add_function(wrap_pyfunction!(write_credential, module)?)?;
    module.add_function(wrap_pyfunction!(write_secret, module)?)?;
    module.add_function(wrap_pyfunction!(write_public, module)?)
}

#[pyfunction]
fn pki_init(py: Python<'_>, directory: &str) -> PyResult<()> {
    AuthorityDirectory::initialise(directory, now())
        .map(drop)
        .map_err(|error| error::pki(py, &error))
}

#[pyfunction]
fn pki_issue<'py>(
    py: Python<'py>,
    directory: &str,
    role: &str,
    name: &str,
    days: f64,
) -> PyResult<(Bound<'py, PyBytes>, String)> {
    let role: Role = role
        .parse()
        .map_err(|error| PyValueError::new_err(format!("{error}")))?;
    let authority = AuthorityDirectory::open(directory).map_err(|error| error::pki(py, &error))?;
    let credential = authority
        .issue(role, name, validity(days)?, now())
        .map_err(|error| error::pki(py, &error))?;
    let serial = leaf(&credential).map(|details| details.serial_hex());
    let pem = PyBytes::new(py, &credential.to_pem());
    Ok((pem, serial.unwrap_or_default()))
}

/// A credential in the place of the one in a file, which is not touched; without days as long as that one.
#[pyfunction]
fn pki_renew<'py>(
    py: Python<'py>,
    directory: &str,
    file: PathBuf,
    days: Option<f64>,
) -> PyResult<Bound<'py, PyDict>> {
    let validity = days.map(validity).transpose()?;
    let authority = AuthorityDirectory::open(directory).map_err(|error| error::pki(py, &error))?;
    let of_file = |text: String| raise(py, ExceptionKind::Credential, text);
    let old = read_credential(&file).map_err(|error| of_file(error.to_string()))?;
    let renewed = authority
        .renew(&old, validity, now())
        .map_err(|error| of_file(format!("{}: {error}", file.display())))?;
    let row = PyDict::new(py);
    row.set_item("pem", PyBytes::new(py, &renewed.to_pem()))?;
    row.set_item("role", renewed.identity().role.to_string())?;
    row.set_item("name", renewed.identity().name)?;
    for (key, credential) in [("new", &renewed), ("old", &old)] {
        let details = leaf(credential);
        let ends = details.as_ref().map(|details| details.not_after.as_secs());
        row.set_item(format!("{key}_not_after"), ends)?;
        let serial = details.map(|details| details.serial_hex());
        row.set_item(format!("{key}_serial"), serial)?;
    }
    Ok(row)
}

/// The revocation list, signed anew. Comes back with the time at which it becomes stale.
#[pyfunction]
fn pki_renew_list(py: Python<'_>, directory: &str, days: Option<f64>) -> PyResult<u64> {
    let validity = days.map(validity).transpose()?;
    let authority = AuthorityDirectory::open(directory).map_err(|error| error::pki(py, &error))?;
    let until = authority
        .renew_list(validity, now())
        .map_err(|error| error::pki(py, &error))?;
    Ok(until.as_secs())
}

fn validity(days: f64) -> PyResult<Duration> {
    Duration::try_from_secs_f64(days * 86_400.0)
        .map_err(|_| PyValueError::new_err(format!("got {days} days, expected a number above 0")))
}

fn leaf(credential: &Credential) -> Option<CertificateDetails> {
    CertificateDetails::read(credential.chain().first()?).ok()
}

#[pyfunction]
fn pki_revoke(py: Python<'_>, directory: &str, what: &str) -> PyResult<Vec<String>> {
    let authority = AuthorityDirectory::open(directory).map_err(|error| error::pki(py, &error))?;
    let revoked = authority
        .revoke(what, now())
        .map_err(|error| error::pki(py, &error))?;
    Ok(revoked
        .into_iter()
        .map(|certificate| certificate.serial)
        .collect())
}

#[pyfunction]
fn pki_list<'py>(py: Python<'py>, directory: &str) -> PyResult<Vec<Bound<'py, PyDict>>> {
    let authority = AuthorityDirectory::open(directory).map_err(|error| error::pki(py, &error))?;
    let issued = authority.list().map_err(|error| error::pki(py, &error))?;
    let row = |certificate: pki::IssuedCertificate| {
        let row = PyDict::new(py);
        row.set_item("serial", certificate.serial)?;
        row.set_item("role", certificate.identity.role.to_string())?;
        row.set_item("name", certificate.identity.name)?;
        row.set_item("not_after", certificate.not_after.as_secs())?;
        row.set_item("revoked", certificate.revoked.is_some())?;
        Ok(row)
    };
    issued.into_iter().map(row).collect()
}

#[pyfunction]
fn write_credential(py: Python<'_>, path: PathBuf, pem: &[u8]) -> PyResult<()> {
    let credential = Credential::from_pem(pem)
        .map_err(|error| raise(py, ExceptionKind::Credential, error.to_string()))?;
    written(py, pki::write_credential(path, &credential))
}

/// Writes a secret file that replaces what is there, unless somebody else made that or could replace the new one.
#[pyfunction]
fn write_secret(py: Python<'_>, path: PathBuf, content: &[u8]) -> PyResult<()> {
    written(py, pki::write_secret(path, content))
}

/// The same for what all may read.
#[pyfunction]
fn write_public(py: Python<'_>, path: PathBuf, content: &[u8]) -> PyResult<()> {
    written(py, pki::write_public(path, content))
}

/// What the system says becomes an `OSError` with the file's name, as if Python had written it.
fn written(py: Python<'_>, result: Result<(), PkiError>) -> PyResult<()> {
    let error = match result {
        Ok(()) => return Ok(()),
        Err(error) => error,
    };
    if let PkiError::File { path, source, .. } = &error
        && let Some(number) = source.raw_os_error()
    {
        let said = py.import("os")?.call_method1("strerror", (number,))?;
        let said: String = said.extract()?;
        return Err(PyOSError::new_err((number, said, path.clone())));
    }
    Err(error::pki(py, &error))
}
