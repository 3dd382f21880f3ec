//! One process of a parallel program and its arrays.
//!
//! A [`Member`] is attached to the keeper of its host by a Unix socket, and shares memory with it and with members of other programs there.
//! It has no thread, no key and no MPI call: it works with any MPI, at any thread level, or with none. What waits here waits in the kernel.

#![deny(unsafe_code)]

mod array;
mod error;
mod keeper_socket;
mod member;
mod memory;
mod memory_in_use;
mod streaming;

pub use array::SharedArray;
pub use error::MemberError;
pub use keeper_socket::{KEEPER_VARIABLE, keeper_of_environment, keeper_socket_of_account};
pub use member::{Interrupted, Member};
pub use memory::{LentContents, NotedWait, OwnMemory, PartMemory, new_part_memory};
pub use streaming::copy_to_part;
