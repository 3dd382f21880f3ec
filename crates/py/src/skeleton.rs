//! Programs as Python hands them over: nested tuples, with functions by their numbers.

use exoskel_flow::{FunctionId, SKELETON_DEPTH_MAX, Skeleton};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyTuple;

/// Reads a structure: `("seq", f)`, `("farm", s)`, `("pipeline", (s, ...))`, `("flat_map", f)`, `("feedback", f)`, `("map", split, s, join)`, `("reduce", op,
/// has_initial, initial)`, `("stateful", f, initial)`, `("scan", op, has_initial, initial)`, `("iterate", s, until, at_most)` or `("divide", is_base,
/// base, divide, conquer)`, where what is a function or an initial value is its number, or None where there may be none.
pub(crate) fn read(structure: &Bound<'_, PyAny>) -> PyResult<Skeleton> {
    read_at(structure, 0)
}

fn read_at(structure: &Bound<'_, PyAny>, depth: usize) -> PyResult<Skeleton> {
    if depth > SKELETON_DEPTH_MAX {
        return Err(PyValueError::new_err(format!(
            "got a program nested deeper than {SKELETON_DEPTH_MAX}"
        )));
    }
    let parts = structure.cast::<PyTuple>()?;
    let kind: String = parts.get_item(0)?.extract()?;
    let inner = |place| PyResult::Ok(Box::new(read_at(&parts.get_item(place)?, depth + 1)?));
    let function = |place| PyResult::Ok(FunctionId(parts.get_item(place)?.extract()?));
    let optional = |place| {
        let number: Option<u32> = parts.get_item(place)?.extract()?;
        PyResult::Ok(number.map(FunctionId))
    };
    Ok(match (kind.as_str(), parts.len()) {
        ("seq", 2) => Skeleton::Seq(function(1)?),
        ("farm", 2) => Skeleton::Farm(inner(1)?),
        ("pipeline", 2) => {
            let stages = parts.get_item(1)?;
            let stages = stages.cast::<PyTuple>()?.iter();
            let stages = stages.map(|stage| read_at(&stage, depth + 1));
            Skeleton::Pipeline(stages.collect::<PyResult<_>>()?)
        }
        ("flat_map", 2) => Skeleton::FlatMap(function(1)?),
        ("feedback", 2) => Skeleton::Feedback(function(1)?),
        ("map", 4) => Skeleton::Map {
            split: optional(1)?,
            worker: inner(2)?,
            join: optional(3)?,
        },
        ("reduce", 4) => Skeleton::Reduce {
            operator: function(1)?,
            initial: match parts.get_item(2)?.extract()? {
                true => optional(3)?,
                false => None,
            },
        },
        ("stateful", 3) => Skeleton::Stateful {
            function: function(1)?,
            initial: function(2)?,
        },
        ("scan", 4) => Skeleton::Scan {
            operator: function(1)?,
            initial: match parts.get_item(2)?.extract()? {
                true => optional(3)?,
                false => None,
            },
        },
        ("iterate", 4) => Skeleton::Iterate {
            body: inner(1)?,
            until: function(2)?,
            at_most: parts.get_item(3)?.extract()?,
        },
        ("divide", 5) => Skeleton::Divide {
            is_base: function(1)?,
            base: function(2)?,
            divide: function(3)?,
            conquer: function(4)?,
        },
        (other, count) => {
            return Err(PyTypeError::new_err(format!(
                "got skeleton {other:?} of {count} parts, expected seq, farm, pipeline, flat_map, feedback, map, reduce, stateful, scan, iterate or divide with theirs"
            )));
        }
    })
}
