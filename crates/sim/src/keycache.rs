//! The session-key cache on paper: what traffic asks of it, and how often it has the key.
//!
//! # Layout
//!
//! * `model`: how many keys are in use at once, in closed form
//! * `trace`: messages of real programs, read, written and checked

pub mod model;
pub mod trace;
