//! The real world: sockets, TLS, processes; a thin router between links and data flow.
//!
//! # Layout
//!
//! - [`address`], [`listening`]: where nodes can be reached, and how they wait there.
//! - [`folder`]: whether a folder is one in which nobody else can replace our files.
//! - [`socket`], [`transport`], `epoll_set`: what carries bytes; [`tls`], [`establish`], [`connection`]: from there to a session that runs.
//! - [`payload`], [`message`]: items and instructions as they travel, from the crate that knows what to do with them.
//! - [`sources`]: what a node brings to its handshakes, made from files and kept current.
//! - [`manager`]: the driver of a manager; [`result_queue`]: where its user waits.
//! - [`slot`]: a worker's process; [`rendezvous`]: how it meets its manager.
//! - [`key_memory`]: where the keys of sessions are kept; [`fork`]: what a forked child must not touch.
//! - [`loopback`]: the policies of a manager's own children.
//! - [`pki`]: private certificate authorities, on disk and throw-away ones.

#![deny(unsafe_code)]

pub mod address;
pub mod connection;
pub mod descendants;
mod descriptor;
mod epoll_set;
pub mod establish;
pub mod folder;
pub mod fork;
pub mod key_memory;
pub mod listening;
pub mod loopback;
pub mod manager;
pub mod pki;
mod reception;
mod refusals;
pub mod rendezvous;
pub mod result_queue;
pub mod slot;
pub mod socket;
pub mod sources;
pub mod tls;
pub mod transport;

pub use exoskel_task::{message, payload};
