//! The real world: sockets, TLS, processes; a thin router between links and data flow.
//!
//! # Layout
//!
//! - [`address`], [`listening`]: where nodes can be reached, and how they wait there.
//! - [`host_file`]: workers as people name them, in lines and files.
//! - [`folder`]: whether a folder is one in which nobody else can replace our files.
//! - [`socket`], [`transport`], [`ring`], `epoll_set`: what carries bytes; [`tls`], [`establish`], [`connection`]: from there to a session that runs; `beside`: what would hold their thread up.
//! - [`payload`], [`message`]: items and instructions as they travel, from the crate that knows what to do with them.
//! - [`gateway`], [`site`], `splice`: connections through other nodes, and the node that joins them.
//! - [`signer`]: the process of a worker that has its credential, and signs for its slots; `remote_key`: how TLS asks it.
//! - [`sources`]: what a node brings to its handshakes, made from files and kept current.
//! - [`manager`]: the driver of a manager; [`result_queue`]: where its user waits.
//! - [`slot`]: a worker's process; [`rendezvous`], `knock`: how it meets its manager; `leaving`: how it is told to go.
//! - [`discovery`]: announcements of workers by multicast DNS; [`hearing_worker`]: what a worker hears, for its slots.
//! - [`key_memory`]: where the keys of sessions are kept; [`fork`]: what a forked child must not touch.
//! - [`keeper`]: the memory of arrays that parallel programs on this host hand to each other.
//! - [`loopback`]: the policies of a manager's own children.
//! - [`pki`]: private certificate authorities, on disk and throw-away ones.

#![deny(unsafe_code)]

pub mod address;
mod beside;
pub mod connection;
pub mod descendants;
mod descriptor;
pub mod discovery;
mod epoll_set;
pub mod establish;
pub mod folder;
pub mod fork;
pub mod gateway;
pub mod hearing_worker;
pub mod host_file;
pub mod keeper;
pub mod key_memory;
mod knock;
mod leaving;
pub mod links;
pub mod listening;
pub mod loopback;
pub mod manager;
pub mod pki;
mod reception;
mod refusals;
mod remote_key;
pub mod rendezvous;
pub mod result_queue;
pub mod ring;
pub mod shared_table;
pub mod signer;
pub mod site;
pub mod slot;
pub mod socket;
pub mod sources;
mod splice;
pub mod tls;
pub mod transport;
mod wake_up;

pub use exoskel_task::{message, payload};
