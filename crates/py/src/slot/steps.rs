//! What an item passes at a slot: the steps of its segments.

use std::collections::HashMap;
use std::ops::RangeInclusive;
use std::sync::Arc;

use exoskel_flow::SegmentStep;
use exoskel_net::fork::Owned;
use exoskel_net::message::{Call, Digest, PARTS_MAX, SegmentEnding};
use exoskel_net::payload::Record;
use exoskel_net::slot::{Item, ItemKey, List, SlotNode};
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBytes, PyDict, PyList, PyTuple};

use super::{Loaded, LoopEnd, SlotInterpreter, TaskFailure};
use crate::interrupt::Interruptible;
use crate::item_note::Subject;
use crate::pickle::decode;

/// So long a slot works on a problem, or on an item that is fed back, by itself, in seconds; then it gives up what it hasn't begun of it, for others.
const WORK_SECONDS: f64 = 0.02;

/// An item on its way through its segments.
pub(super) enum Intermediate<'py> {
    /// A value, for the next segment or as an outcome.
    Value(Bound<'py, PyAny>),
    /// Several values, and what a slot wanted to be given back with them.
    List(Bound<'py, PyList>, Option<Bound<'py, PyAny>>),
    /// A value for another segment than the next one.
    At(u16, Bound<'py, PyAny>),
    /// What the item was made into, and what is to be given back with what becomes of that.
    Parts(Vec<Bound<'py, PyAny>>, Option<Bound<'py, PyAny>>),
    /// A value that is to be folded by this function.
    Folding(Digest, Bound<'py, PyAny>),
}

/// A value on its way through a segment, or what ended its way.
pub(super) type Passing<'py> = Result<Intermediate<'py>, Box<TaskFailure<'py>>>;

/// Where a function stands.
#[derive(Clone, Copy)]
pub(super) struct FunctionPlace {
    /// It is the first one that the item meets in the program.
    pub(super) is_first: bool,
    pub(super) call: Call,
}

impl FunctionPlace {
    /// What an exception is about that comes of this value there.
    fn subject<'py>(
        self,
        function: Option<Bound<'py, PyAny>>,
        value: Bound<'py, PyAny>,
    ) -> Subject<'py> {
        match (function, self.is_first, self.call) {
            (Some(function), true, Call::Arguments) => Subject::Call {
                function,
                arguments: value,
            },
            (Some(function), false, _) => Subject::Argument { function, value },
            (None, _, _) | (_, true, Call::Item) => Subject::Item(value),
        }
    }
}

impl<'py> Intermediate<'py> {
    /// As the functions' argument: a list is one value.
    pub(super) fn into_value(self) -> PyResult<Bound<'py, PyAny>> {
        match self {
            Self::Value(value) | Self::At(_, value) | Self::Folding(_, value) => Ok(value),
            Self::List(values, _) => Ok(values.into_any()),
            Self::Parts(..) => Err(PyRuntimeError::new_err("got a step behind parts")),
        }
    }
}

impl<'py> SlotInterpreter<'py> {
    /// Reads an item.
    pub(super) fn start<'a>(&self, py: Python<'a>, item: Item) -> Result<Passing<'a>, LoopEnd> {
        drop_sent();
        let Some(list) = item.list else {
            let value = self.read(py, item.record)?;
            return Ok(value.map(Intermediate::Value).map_err(Box::from));
        };
        let List { state, parts, .. } = *list;
        let state = match state.map(|record| self.read(py, record)).transpose()? {
            Some(Err(error)) => return Ok(Err(error.into())),
            Some(Ok(state)) => Some(state),
            None => None,
        };
        let mut values = Vec::with_capacity(parts.len());
        for part in parts {
            match self.read(py, part)? {
                Ok(value) => values.push(value),
                Err(error) => return Ok(Err(error.into())),
            }
        }
        let values = PyList::new(py, values);
        Ok(values
            .map(|values| Intermediate::List(values, state))
            .map_err(Box::from))
    }

    /// Reads a value.
    pub(super) fn read<'a>(
        &self,
        py: Python<'a>,
        record: Record,
    ) -> Result<PyResult<Bound<'a, PyAny>>, LoopEnd> {
        let mut spent = Vec::new();
        let interruptible = Interruptible::begin();
        let value = decode(py, record, "an earlier worker", false, &mut spent);
        drop(interruptible);
        let node = self.node()?;
        spent.into_iter().for_each(|buffer| node.recycle(buffer));
        Ok(value)
    }

    /// Takes an item through these segments.
    pub(super) fn apply<'a>(
        &mut self,
        py: Python<'a>,
        key: ItemKey,
        segments: RangeInclusive<u16>,
        passing: Passing<'a>,
    ) -> Passing<'a> {
        let mut passage = passing?;
        let interruptible = Interruptible::begin();
        for number in segments {
            passage = self.pass(py, key.stream, number, passage)?;
        }
        drop(interruptible);
        Ok(passage)
    }

    /// Takes an item through one segment, again and again if it is a loop by itself.
    fn pass<'a>(
        &mut self,
        py: Python<'a>,
        stream: u32,
        number: u16,
        passage: Intermediate<'a>,
    ) -> Passing<'a> {
        let program = self.programs.get(&stream).cloned();
        let program = program.ok_or_else(never_defined)?;
        let Some(segment) = program.segments.get(usize::from(number)) else {
            return Ok(passage);
        };
        let mut passage = passage;
        let mut is_first = number == 0;
        let mut rounds = 0_u32;
        loop {
            let mut functions = &segment.functions[..];
            for step in &segment.steps {
                let Some((own, others)) = functions.split_at_checked(step.functions()) else {
                    return Err(
                        PyRuntimeError::new_err("got a program without its functions").into(),
                    );
                };
                functions = others;
                let place = FunctionPlace {
                    is_first: std::mem::take(&mut is_first),
                    call: program.call,
                };
                passage = self.step(py, *step, own, place, segment.ending, passage)?;
            }
            match (passage, segment.ending) {
                (Intermediate::At(from, value), SegmentEnding::Repeat { at_most, .. })
                    if from == number =>
                {
                    rounds = rounds.saturating_add(1);
                    passage = Intermediate::Value(value);
                    if at_most.is_some_and(|most| rounds >= most) {
                        return Ok(passage);
                    }
                }
                (passage, _) => return Ok(passage),
            }
        }
    }

    fn step<'a>(
        &mut self,
        py: Python<'a>,
        step: SegmentStep,
        functions: &[Digest],
        place: FunctionPlace,
        ending: SegmentEnding,
        passage: Intermediate<'a>,
    ) -> Passing<'a> {
        match (step, functions) {
            (SegmentStep::Call | SegmentStep::Join { calls: true }, [function]) => {
                let value = passage.into_value()?;
                self.call(py, function, place, value)
                    .map(Intermediate::Value)
            }
            (SegmentStep::Join { calls: false }, _) => {
                Ok(Intermediate::Value(passage.into_value()?))
            }
            (SegmentStep::Split { calls }, _) => {
                let item = passage.into_value()?;
                let (mut value, mut called) = (item.clone(), None);
                if let ([function], true) = (functions, calls) {
                    value = self.call(py, function, place, value)?;
                    called = Some(self.function(py, function)?);
                }
                let parts = parts_of(&value, called.as_ref()).map_err(|error| {
                    // Also what a generator raises, which runs only now.
                    let subject = place.subject(called, item);
                    Box::new(TaskFailure { error, subject })
                })?;
                Ok(Intermediate::Parts(parts, None))
            }
            (SegmentStep::Until, [function]) => {
                let value = passage.into_value()?;
                let is_over = self.call(py, function, place, value.clone())?;
                let is_over = match is_over.is_truthy() {
                    Ok(is_over) => is_over,
                    // What an array says, for one.
                    Err(error) => {
                        let function = self.function(py, function)?;
                        let subject = Subject::Argument { function, value };
                        return Err(Box::new(TaskFailure { error, subject }));
                    }
                };
                match (is_over, ending) {
                    (false, SegmentEnding::Repeat { from, .. }) => {
                        Ok(Intermediate::At(from, value))
                    }
                    _ => Ok(Intermediate::Value(value)),
                }
            }
            (SegmentStep::Fold, [function]) => {
                Ok(Intermediate::Folding(*function, passage.into_value()?))
            }
            (SegmentStep::Combine | SegmentStep::CombineInitial, [function, initial @ ..]) => {
                let Intermediate::List(values, _) = passage else {
                    return Ok(passage);
                };
                let mut values = values.iter();
                let first = match initial.first() {
                    // The operation may change its first argument, and the next stream begins with the same value.
                    Some(initial) => Some(copied(py, &self.function(py, initial)?)?),
                    None => values.next(),
                };
                let mut folded = first.unwrap_or_else(|| py.None().into_bound(py));
                for value in values {
                    folded = self.fold(py, function, folded, value)?;
                }
                Ok(Intermediate::Value(folded))
            }
            // A state comes to it: see `carrying`.
            (SegmentStep::Carry | SegmentStep::Scan | SegmentStep::ScanInitial, _) => Ok(passage),
            (SegmentStep::Divide | SegmentStep::Resume, _) => {
                static DIVIDE: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
                let work_on = DIVIDE.import(py, "exoskel.divide", "work_on")?;
                self.work_on(work_on, functions, ending, passage)
            }
            (SegmentStep::Feedback, _) => {
                static FEEDBACK: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
                let work_on = FEEDBACK.import(py, "exoskel.feedback", "work_on")?;
                self.work_on(work_on, functions, ending, passage)
            }
            (_, _) => Err(PyRuntimeError::new_err("got a step without its functions").into()),
        }
    }

    /// One value of two.
    pub(super) fn fold<'a>(
        &mut self,
        py: Python<'a>,
        operator: &Digest,
        first: Bound<'a, PyAny>,
        second: Bound<'a, PyAny>,
    ) -> Result<Bound<'a, PyAny>, Box<TaskFailure<'a>>> {
        let function = self.function(py, operator)?;
        function.call1((first, &second)).map_err(|error| {
            let subject = Subject::Argument {
                function,
                value: second,
            };
            Box::new(TaskFailure { error, subject })
        })
    }

    /// Works on a problem, or goes on with one of which parts have been solved.
    fn work_on<'a>(
        &mut self,
        work_on: &Bound<'a, PyAny>,
        functions: &[Digest],
        ending: SegmentEnding,
        passage: Intermediate<'a>,
    ) -> Passing<'a> {
        let py = work_on.py();
        let functions: Vec<_> = functions
            .iter()
            .map(|digest| self.function(py, digest))
            .collect::<PyResult<_>>()?;
        let functions = PyTuple::new(py, functions)?;
        let (problem, state, solutions) = match passage {
            Intermediate::List(solutions, state) => (None, state, Some(solutions)),
            other => (Some(other.into_value()?), None, None),
        };
        let arguments = (functions, &problem, state, solutions, WORK_SECONDS);
        let worked = work_on.call1(arguments).map_err(|error| {
            let subject = problem.map_or(Subject::Unknown, Subject::Item);
            Box::new(TaskFailure { error, subject })
        })?;
        let (parts, given): (Option<Vec<Bound<'a, PyAny>>>, Bound<'a, PyAny>) = worked.extract()?;
        Ok(match (parts, ending) {
            (Some(parts), _) => Intermediate::Parts(parts, Some(given)),
            (None, SegmentEnding::Expand { after: Some(after) }) => Intermediate::At(after, given),
            (None, _) => Intermediate::Value(given),
        })
    }

    fn call<'a>(
        &mut self,
        py: Python<'a>,
        digest: &Digest,
        place: FunctionPlace,
        value: Bound<'a, PyAny>,
    ) -> Result<Bound<'a, PyAny>, Box<TaskFailure<'a>>> {
        call_function(&self.function(py, digest)?, place, value)
    }

    /// A function of a program, loaded when it is first needed.
    pub(super) fn function<'a>(
        &mut self,
        py: Python<'a>,
        digest: &Digest,
    ) -> PyResult<Bound<'a, PyAny>> {
        let Self {
            functions,
            pickles,
            node,
            loader,
            ..
        } = self;
        let function = loaded(py, functions, pickles, (node, loader), digest)?;
        Ok(function.bind(py).clone())
    }
}

/// Drops the results that have been sent. The I/O thread only notes them, for the next thread that attaches; a slot that always has something to
/// run doesn't, and would keep them all.
pub(super) fn drop_sent() {
    Python::attach(|_| ());
}

fn never_defined() -> PyErr {
    PyRuntimeError::new_err("got an item of a stream that was never defined")
}

/// A function, loaded when it is first needed.
fn loaded<'a>(
    py: Python<'_>,
    functions: &'a mut HashMap<Digest, Loaded>,
    pickles: &mut HashMap<Digest, Py<PyBytes>>,
    (node, loader): (&Owned<Arc<SlotNode>>, &Bound<'_, PyAny>),
    digest: &Digest,
) -> PyResult<&'a Py<PyAny>> {
    let loaded = functions.entry(*digest).or_insert_with(|| {
        let mut load = || load(py, loader, pickles, digest);
        match node.get() {
            Some(node) => node.loading(load),
            None => load(),
        }
    });
    loaded.as_ref().map_err(|error| error.clone_ref(py))
}

pub(super) fn call_function<'py>(
    function: &Bound<'py, PyAny>,
    place: FunctionPlace,
    value: Bound<'py, PyAny>,
) -> Result<Bound<'py, PyAny>, Box<TaskFailure<'py>>> {
    let is_call = place.is_first && place.call == Call::Arguments;
    let called = if is_call {
        call_with_arguments(function, &value)
    } else {
        call_with_one(function, &value)
    };
    called.map_err(|error| {
        let subject = place.subject(Some(function.clone()), value);
        Box::new(TaskFailure { error, subject })
    })
}

/// Calls a function with one argument. The tuple that other ways of calling make of it takes as long as a small function does.
fn call_with_one<'py>(
    function: &Bound<'py, PyAny>,
    argument: &Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyAny>> {
    let no_more = std::ptr::null_mut::<ffi::PyObject>();
    // SAFETY: both objects live as long as they are borrowed, in the interpreter that this thread is attached to; a null pointer ends the
    // arguments. What is returned is ours, or an exception is set.
    unsafe {
        let returned =
            ffi::PyObject_CallFunctionObjArgs(function.as_ptr(), argument.as_ptr(), no_more);
        Bound::from_owned_ptr_or_err(function.py(), returned)
    }
}

fn copied<'py>(py: Python<'py>, value: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    static COPY: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    COPY.import(py, "copy", "deepcopy")?.call1((value,))
}

/// What a value iterates over that a function has returned, or that is the item itself.
fn parts_of<'py>(
    value: &Bound<'py, PyAny>,
    function: Option<&Bound<'py, PyAny>>,
) -> PyResult<Vec<Bound<'py, PyAny>>> {
    let py = value.py();
    let iterator = value.try_iter().or_else(|_| {
        // It says what is wrong with it. Few slots ever need that.
        let module = py.import("exoskel.sequential")?;
        module
            .getattr("iterated")?
            .call1((value, function))?
            .try_iter()
    });
    let mut parts = Vec::new();
    for part in iterator? {
        if parts.len() >= PARTS_MAX as usize {
            return Err(PyValueError::new_err(format!(
                "got more than {PARTS_MAX} parts of one item (PARTS_MAX), expected fewer: give parts that are lists"
            )));
        }
        parts.push(part?);
    }
    Ok(parts)
}

pub(super) fn load(
    py: Python<'_>,
    loader: &Bound<'_, PyAny>,
    pickles: &mut HashMap<Digest, Py<PyBytes>>,
    digest: &Digest,
) -> Loaded {
    // What it is loaded from is needed only once.
    let pickle = pickles.remove(digest);
    let pickle = pickle
        .ok_or_else(|| PyRuntimeError::new_err("got an item whose function was never sent"))?;
    Ok(loader.call_method1("load", (pickle.bind(py),))?.unbind())
}

fn call_with_arguments<'py>(
    function: &Bound<'py, PyAny>,
    value: &Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyAny>> {
    let (positional, keywords): (Bound<'py, PyTuple>, Bound<'py, PyDict>) = value.extract()?;
    function.call(positional, Some(&keywords))
}
