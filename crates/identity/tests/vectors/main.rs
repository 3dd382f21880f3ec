//! The cases of `vectors/identity`, which OpenSSL and voms-proxy-fake made, judged at their fixed time.

#![expect(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "the cases are files, and a test may read them, start threads, and panic"
)]

mod attributes;
mod authorization;
mod chains;
mod damage;
mod decision_cache;
mod manifest;
