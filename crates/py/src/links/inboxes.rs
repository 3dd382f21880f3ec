//! Inboxes as `exoskel.link_inboxes` sees them.

use std::sync::Arc;
use std::time::Instant;

use exoskel_net::fork::Owned;
use exoskel_net::links::{LinkCall, LinkInbox, LinkNode, PeerFailure};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyInt, PyList};

use super::{NodeHandle, PATIENCE, encoded, raised, value_in};
use crate::fork;
use crate::options::seconds;

/// Where what is posted to a name waits until it is taken.
#[pyclass(frozen, name = "LinkInbox")]
pub(crate) struct LinkInboxHandle {
    inbox: Owned<LinkInbox>,
    node: Arc<LinkNode>,
}

/// What has come: a value, or who has sent what is none, and why; and the stream of the task that has posted it, if a task has.
#[derive(IntoPyObject)]
struct TakenValue<'py>(
    Option<Bound<'py, PyAny>>,
    Option<(String, String)>,
    Option<u32>,
);

#[pymethods]
impl LinkInboxHandle {
    /// Adds an inbox to an endpoint.
    #[staticmethod]
    fn offer(py: Python<'_>, node: &NodeHandle, endpoint: &str, name: &str) -> PyResult<Self> {
        let node = node.shared(py)?;
        let added = node.add_inbox(endpoint, name);
        let inbox = added.map_err(|error| raised(py, &error))?;
        let inbox = Owned::new(inbox)?;
        Ok(Self { inbox, node })
    }

    /// Takes what has come first, after waiting for `timeout` seconds at most, or without end: the value, or who has sent what is none and
    /// why. Nothing if nothing has come, or the node is closed.
    fn take<'py>(
        &self,
        py: Python<'py>,
        timeout: Option<f64>,
    ) -> PyResult<Option<TakenValue<'py>>> {
        let own = fork::own(py, &self.inbox)?;
        if let Some(call) = own.take_waiting() {
            if own.is_brought() {
                py.detach(|| own.read_on());
            }
            return self.taken(py, own, call).map(Some);
        }
        let deadline = match timeout {
            Some(timeout) => Instant::now().checked_add(seconds(timeout)?),
            None => None,
        };
        loop {
            let left = deadline.map_or(PATIENCE, |deadline| {
                deadline.saturating_duration_since(Instant::now())
            });
            let slice = left.min(PATIENCE);
            if let Some(call) = py.detach(|| own.take(slice)) {
                return self.taken(py, own, call).map(Some);
            }
            py.check_signals()?;
            if own.is_over() || (left <= slice && deadline.is_some()) {
                return Ok(None);
            }
        }
    }

    /// How much waits that has been read.
    fn __len__(&self, py: Python<'_>) -> PyResult<usize> {
        Ok(fork::own(py, &self.inbox)?.len())
    }

    /// Whether the node is closed.
    fn is_over(&self, py: Python<'_>) -> PyResult<bool> {
        Ok(fork::own(py, &self.inbox)?.is_over())
    }
}

impl LinkInboxHandle {
    fn taken<'py>(
        &self,
        py: Python<'py>,
        own: &LinkInbox,
        mut call: LinkCall,
    ) -> PyResult<TakenValue<'py>> {
        match self.value_of(py, &mut call) {
            Ok((value, stream)) => {
                let answer = match call.request {
                    Some(_) => Some(encoded(py.None().bind(py), "answer")?),
                    None => None,
                };
                own.taken(&call, answer);
                Ok(TakenValue(Some(value), None, stream))
            }
            Err(error) => {
                let kind = error.get_type(py).name()?.to_string();
                let text = error.value(py).to_string();
                own.refused(&call, &PeerFailure::new(&kind, text.clone()));
                Ok(TakenValue(
                    None,
                    Some((call.peer.name().to_owned(), text)),
                    None,
                ))
            }
        }
    }

    /// The one argument of a post, and its stream.
    fn value_of<'py>(
        &self,
        py: Python<'py>,
        call: &mut LinkCall,
    ) -> PyResult<(Bound<'py, PyAny>, Option<u32>)> {
        let (head, parts) = (call.head.clone(), std::mem::take(&mut call.bulk));
        let expanded = self.node.expanded(head, parts);
        let mut spent = Vec::new();
        let contents = value_in(py, expanded, call.peer.name(), &mut spent)?;
        if !spent.is_empty() {
            self.node.recycle(call, spent);
        }
        let contents = contents.cast::<PyList>()?;
        let count = contents.len();
        if !(2..=3).contains(&count) {
            return Err(PyTypeError::new_err(format!(
                "got a call of {count} parts, expected a list of arguments, a dict of keywords, and the stream of a task at most"
            )));
        }
        let (arguments, keywords) = (contents.get_item(0)?, contents.get_item(1)?);
        let (arguments, keywords) = (arguments.cast::<PyList>()?, keywords.cast::<PyDict>()?);
        if arguments.len() != 1 || !keywords.is_empty() {
            let (got, name) = (arguments.len(), &call.handler);
            let keywords = keywords.len();
            return Err(PyTypeError::new_err(format!(
                "got {got} arguments and {keywords} keywords for the inbox {name}, expected one value: post({name:?}, value)"
            )));
        }
        let stream = if count > 2 {
            let number = contents.get_item(2)?;
            Some(number.cast_exact::<PyInt>()?.extract::<u32>()?)
        } else {
            None
        };
        Ok((arguments.get_item(0)?, stream))
    }
}
