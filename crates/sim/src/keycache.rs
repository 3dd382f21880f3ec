//! The session-key cache on paper: what traffic asks of it, and how often it has the key.
//!
//! # Layout
//!
//! * `trace`: messages of real programs, read, written and checked

pub mod trace;
