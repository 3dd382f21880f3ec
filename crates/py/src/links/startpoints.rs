//! Startpoints as `exoskel.links` sees them, and what they can be restricted to.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::time::Duration;

use exoskel_link::capability::{Caveat, Startpoint};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;

use super::{protection_of, refused};
use crate::time::since_1970;

/// What lasts longer lasts for ever, as `exoskel.link_waiting` has it too.
const SECONDS_MAX: f64 = 1e8;

/// The sending end of links to an endpoint.
#[pyclass(frozen, name = "Startpoint")]
pub(crate) struct StartpointHandle(Startpoint);

/// What a startpoint is restricted to.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub(crate) struct Restrictions {
    /// Patterns of which a holder has to fit at least one. None: of the holder nothing more is asked.
    to: Option<Vec<String>>,
    handlers: Option<Vec<String>>,
    /// In seconds since 1970.
    expires: Option<u64>,
    protection: Option<String>,
}

impl StartpointHandle {
    pub(super) fn new(startpoint: Startpoint) -> Self {
        Self(startpoint)
    }

    pub(crate) fn get(&self) -> &Startpoint {
        &self.0
    }
}

#[pymethods]
impl StartpointHandle {
    /// Reads the text of a startpoint.
    #[staticmethod]
    fn parse(py: Python<'_>, text: &str) -> PyResult<Self> {
        let read = Startpoint::parse(text.trim());
        read.map(Self).map_err(|error| refused(py, &error))
    }

    /// The text, by which whoever has it opens links.
    fn text(&self) -> String {
        self.0.text()
    }

    /// Returns a copy that allows less, to be passed on: for holders that also fit `to`, or any of a list, for no more than `handlers`, for `expires`
    /// seconds at most, and on links of at least this `protection`. What it allows less already stays so. Nobody is asked.
    #[pyo3(signature = (*, to=None, handlers=None, expires=None, protection=None))]
    fn attenuate(
        &self,
        py: Python<'_>,
        to: Option<OneOrMore>,
        handlers: Option<OneOrMore>,
        expires: Option<f64>,
        protection: Option<String>,
    ) -> PyResult<Self> {
        let restrictions = Restrictions {
            to: to.map(OneOrMore::into_all),
            handlers: handlers.map(OneOrMore::into_all),
            expires: expires.map(ends_at).transpose()?.flatten(),
            protection,
        };
        let mut narrower = self.0.clone();
        for caveat in restrictions.caveats(py)? {
            narrower = narrower
                .attenuate(caveat)
                .map_err(|error| refused(py, &error))?;
        }
        Ok(Self(narrower))
    }

    /// A copy that says other addresses.
    fn with_hints(&self, py: Python<'_>, hints: &Bound<'_, PyAny>) -> PyResult<Self> {
        let made = self.0.with_hints(list_of_texts("hints", hints)?);
        made.map(Self).map_err(|error| refused(py, &error))
    }

    #[getter]
    fn endpoint(&self) -> &str {
        self.0.endpoint()
    }

    #[getter]
    fn node(&self) -> &str {
        &self.0.node().name
    }

    #[getter]
    fn hints(&self) -> Vec<String> {
        self.0.hints().to_vec()
    }

    #[getter]
    fn number(&self) -> u64 {
        self.0.number()
    }

    #[getter]
    fn is_bearer(&self) -> bool {
        self.0.is_bearer()
    }

    #[getter]
    fn expires(&self) -> Option<u64> {
        self.0.allowance().expires
    }

    #[getter]
    fn handlers(&self) -> Option<Vec<String>> {
        let handlers = self.0.allowance().handlers?;
        Some(handlers.into_iter().collect())
    }

    #[getter]
    fn protection(&self) -> &'static str {
        self.0.allowance().protection.name()
    }

    fn __repr__(&self) -> String {
        format!("<exoskel.links.Startpoint {}>", self.0)
    }

    fn __eq__(&self, other: &Self) -> bool {
        self.0 == other.0
    }

    /// Of what stands beside the tag: the hash of a secret would be a part of it.
    fn __hash__(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        let parts = (self.0.key_id(), self.0.number(), self.0.endpoint());
        (parts, self.0.hints(), self.0.caveats().len()).hash(&mut hasher);
        hasher.finish()
    }

    /// Its pickle holds its text.
    fn __reduce__<'py>(&self, py: Python<'py>) -> PyResult<(Bound<'py, PyAny>, (String,))> {
        let module = py.import("exoskel.link_arguments")?;
        Ok((module.getattr("as_startpoint")?, (self.0.text(),)))
    }
}

/// A text, or several.
#[derive(FromPyObject)]
enum OneOrMore {
    One(String),
    More(Vec<String>),
}

impl OneOrMore {
    fn into_all(self) -> Vec<String> {
        match self {
            Self::One(text) => vec![text],
            Self::More(texts) => texts,
        }
    }
}

/// A list of texts. A text is one of letters to Python, and nobody means that.
fn list_of_texts(name: &str, given: &Bound<'_, PyAny>) -> PyResult<Vec<String>> {
    given.extract().map_err(|_| {
        let shown = given.repr().map(|shown| shown.to_string());
        let shown = shown.unwrap_or_default();
        PyTypeError::new_err(format!("got {name}={shown}, expected a list of texts"))
    })
}

/// When so many seconds from now are over, in seconds since 1970; never, for more than any program runs.
fn ends_at(seconds: f64) -> PyResult<Option<u64>> {
    if seconds >= SECONDS_MAX {
        return Ok(None);
    }
    match Duration::try_from_secs_f64(seconds) {
        Ok(time) if !time.is_zero() => Ok(Some(since_1970().saturating_add(time).as_secs())),
        _ => Err(PyValueError::new_err(format!(
            "got expires={seconds}, expected a number of seconds above 0"
        ))),
    }
}

impl Restrictions {
    pub(super) fn caveats(self, py: Python<'_>) -> PyResult<Vec<Caveat>> {
        let mut caveats = Vec::new();
        if let Some(to) = self.to {
            let holders = Caveat::holders(to.iter().map(String::as_str));
            caveats.push(holders.map_err(|error| refused(py, &error))?);
        }
        if let Some(handlers) = self.handlers {
            caveats.push(Caveat::handlers(handlers.iter().map(String::as_str)));
        }
        caveats.extend(self.expires.map(Caveat::Expires));
        if let Some(protection) = self.protection {
            caveats.push(Caveat::Protection(protection_of(&protection)?));
        }
        Ok(caveats)
    }
}
