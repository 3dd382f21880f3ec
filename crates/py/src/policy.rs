//! Policies, for the command line.

use std::path::PathBuf;

use exoskel_link::TrafficClass;
use exoskel_link::policy::{ExplainError, Explanation, Policy};
use exoskel_trust::{Document, PolicyFile, Rules};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::error::{self, ExceptionKind, raise};

pub(crate) fn add(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(policy_check, module)?)?;
    module.add_function(wrap_pyfunction!(policy_check_lists, module)?)?;
    module.add_function(wrap_pyfunction!(policy_files, module)?)?;
    module.add_function(wrap_pyfunction!(policy_explain, module)?)?;
    module.add_function(wrap_pyfunction!(policy_explain_link, module)?)
}

/// Whether a policy's text can be used.
#[pyfunction]
fn policy_check(py: Python<'_>, text: &str) -> PyResult<()> {
    Policy::parse(text, 1)
        .map(drop)
        .map_err(|error| error::policy(py, &error))
}

/// Whether the ban list and the grid-mapfile that a policy file names can.
#[pyfunction]
fn policy_check_lists(py: Python<'_>, policy: PathBuf) -> PyResult<()> {
    py.detach(|| Rules::open(&policy))
        .map(drop)
        .map_err(|error| raise(py, ExceptionKind::Policy, error.to_string()))
}

/// Where a policy is, and the lists that it names.
#[pyfunction]
fn policy_files(py: Python<'_>, policy: PathBuf) -> PyResult<Vec<PathBuf>> {
    let refused = |text| raise(py, ExceptionKind::Policy, text);
    let file = PolicyFile::new(Document::File(policy));
    let text = file.text().map_err(|error| refused(error.to_string()))?;
    let rules = Policy::parse(&text, 1).map_err(|error| error::policy(py, &error))?;
    Ok(file.files(rules.authorization()))
}

#[pyfunction]
#[pyo3(signature = (text, from_, to, class_))]
fn policy_explain<'py>(
    py: Python<'py>,
    text: Option<&str>,
    from_: &str,
    to: &str,
    class_: &str,
) -> PyResult<Bound<'py, PyDict>> {
    let policy = read(py, text)?;
    let class = TrafficClass::ALL
        .into_iter()
        .find(|class| class.name() == class_);
    let class = class.ok_or_else(|| {
        PyValueError::new_err(format!(
            "got class {class_:?}, expected \"control\", \"code\" or \"data\""
        ))
    })?;
    answer(py, policy.explain(from_, to, class))
}

#[pyfunction]
#[pyo3(signature = (text, from_, to, endpoint))]
fn policy_explain_link<'py>(
    py: Python<'py>,
    text: Option<&str>,
    from_: &str,
    to: &str,
    endpoint: &str,
) -> PyResult<Bound<'py, PyDict>> {
    answer(py, read(py, text)?.explain_link(from_, to, endpoint))
}

/// The policy of this text; without one, the built-in policy.
fn read(py: Python<'_>, text: Option<&str>) -> PyResult<Policy> {
    match text {
        Some(text) => Policy::parse(text, 1).map_err(|error| error::policy(py, &error)),
        None => Ok(Policy::builtin()),
    }
}

fn answer(
    py: Python<'_>,
    explanation: Result<Explanation, ExplainError>,
) -> PyResult<Bound<'_, PyDict>> {
    let explanation =
        explanation.map_err(|error| raise(py, ExceptionKind::Policy, error.to_string()))?;
    let unproven = explanation
        .unproven
        .map(|verdict| verdict.protection.name());
    let answer = PyDict::new(py);
    answer.set_item("protection", explanation.protection().name())?;
    answer.set_item("rule", explanation.rule())?;
    answer.set_item("reasons", explanation.reasons.clone())?;
    answer.set_item("unproven", unproven)?;
    answer.set_item("results", explanation.results.as_str())?;
    answer.set_item("results_of_from", explanation.results_of_from.as_str())?;
    answer.set_item("results_lines", explanation.results_lines())?;
    Ok(answer)
}
