//! The one process of a worker that reads its credential: it signs the handshakes of the worker's slots, and judges their managers again.
//!
//! A slot runs other people's code. So it never has the host's private key, nor the right to read the files that say whom the host trusts:
//! it has a connection to the signer instead. Before it has a session, it asks over that connection for what is public of the credential,
//! for its turn to knock, and for signatures. With its session it hands over whom the session is with, and from then on it is told what
//! the files say of that manager, and nothing else: no code that it runs later can have anything signed.
//!
//! - `messages`: what goes over the connection.
//! - `service`: the signer itself.
//! - `slot_end`: the slot's end.

mod messages;
mod service;
mod slot_end;

pub use service::serve;
pub use slot_end::SlotEnd;
pub(crate) use slot_end::{ManagerVerdict, Verdicts};

#[cfg(test)]
mod tests;
