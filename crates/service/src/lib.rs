//! Grid identity at the door of any server.
//!
//! A [`Server`] accepts TLS connections, has every client's chain judged inside its handshake, and hands a [`Stream`]
//! and a [`Peer`] to a [`Handler`]. Limits, metrics and the audit trail are the same for every kind of handler.

#![forbid(unsafe_code)]

mod audit;
mod body;
mod configuration;
mod connections;
mod door;
mod front;
mod head;
mod host;
mod http;
mod layer;
mod limits;
mod metrics;
mod monitor;
mod places;
mod process;
mod renewal;
mod secret;
mod server;
mod tls;

pub use audit::{Audit, AuditTarget, Verdict};
pub use body::{BodyError, RequestBody};
pub use configuration::{
    Configuration, ConfigurationError, HostTable, LimitsTable, NameSpacesWord, RevocationWord,
    TrustTable, UpstreamTable,
};
pub use exoskel_trust::{Renewal, Rules, RulesError};
pub use front::{BadUpstream, Front, FrontSettings, HeaderError, Upstream};
pub use host::{HostCredential, HostCredentialError};
pub use http::{BoxError, Http};
pub use layer::{Identified, IdentityLayer, Require, Required};
pub use limits::{BadLimit, Limits};
pub use metrics::{End, Metrics, Outcome, Refusal};
pub use process::{ProcessError, run};
pub use renewal::{RENEWAL_INTERVAL, Renewable};
pub use secret::{FrontSecret, SecretError};
pub use server::{Handler, Peer, Server, ServerHandle, Settings, StartError, Stream, Working};
