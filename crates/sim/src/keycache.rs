//! The session-key cache on paper: what traffic asks of it, and how often it has the key.
//!
//! # Layout
//!
//! * `model`: how many keys are in use at once, in closed form
//! * `periods`: when a program computes and when it communicates
//! * `sequence`: how often a cache has the key, where only the order counts
//! * `trace`: messages of real programs, read, written and checked

pub mod model;
pub mod periods;
pub mod sequence;
pub mod trace;
