//! What makes a run repeat: random numbers that follow from a seed, and digests that tell two runs apart.
//!
//! Nothing here is for secrets.

#![forbid(unsafe_code)]

mod digest;
mod random;

pub use digest::RunDigest;
pub use random::SplitMix64;
