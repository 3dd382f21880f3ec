//! Plain data: what an answer is when it comes from a machine that isn't trusted.
//!
//! A pickle is a program; what is read here is not. The bytes are CBOR (RFC 8949) with the tags of [`tags`]: numbers, text,
//! containers, dates, arrays. There are no names to look up, no calls and no attributes. `docs/protocol.md` section 8 is
//! normative, and `tests/data_reference.py` is a second reader of it.
//!
//! [`Checked::new`] reads a value whole and holds it against the limits of [`limits`] before anything is made of it. Whoever
//! makes objects then walks over the same bytes with [`Checked::reader`]. This crate knows nothing of Python, except what its
//! objects cost in memory ([`weight`]).
//!
//! # Layout
//!
//! * [`tags`], [`limits`]: the numbers of the format
//! * [`reader`], [`writer`]: one item after the other
//! * [`check`]: a whole value against the limits; [`weight`]: what it will cost
//! * [`elements`]: what the bytes of an array are

#![forbid(unsafe_code)]

pub mod check;
pub mod elements;
mod fault;
pub mod limits;
pub mod reader;
pub mod tags;
pub mod weight;
pub mod writer;

pub use check::{Checked, CheckedException};
pub use fault::Fault;
pub use reader::{DataItem, Reader};
pub use writer::Writer;
