//! Programs of all patterns, and what they mean.
//!
//! [`program`] makes random skeletons. [`meaning::run`] says what they come to, one item after the other. [`steps::apply`] takes an item through the
//! segments that a skeleton was compiled to, as a slot does. Whoever plays slots and a manager compares the two.
//!
//! Functions are numbers here, and values are numbers or lists: which function has seen which values shows in the result.
//!
//! # Layout
//!
//! * `generator`: random numbers, and programs made of them; `functions`: which functions a program has
//! * `meaning`: values, functions, and what programs mean; `expectation`, `carried`: what the outcomes of a stream must be
//! * `steps`: what a slot does with an item

#![forbid(unsafe_code)]

mod carried;
mod expectation;
mod functions;
mod generator;
pub mod meaning;
pub mod steps;

pub use carried::{CarriedExpectation, TooManyCourses, carries};
pub use expectation::Expectation;
pub use functions::{functions, renumbered};
pub use generator::{Random, program};
