//! Grid identity for any server.
//!
//! A [`Server`] accepts TLS connections, has every client's chain judged inside its handshake, and hands a [`Stream`]
//! and a [`Peer`] to a [`Handler`]. Limits, metrics and the audit trail are the same for every kind of handler.

#![forbid(unsafe_code)]

mod accept;
mod admission;
mod audit;
mod body;
mod configuration;
mod connections;
mod descriptors;
mod front;
mod handle;
mod head;
mod host;
mod http;
mod layer;
mod limits;
mod metrics;
mod monitor;
mod peer;
mod renewable;
mod renewal;
mod request_slots;
mod secret;
mod server;
mod server_state;
mod settings;
mod signals;
mod tls;

pub use audit::{Audit, AuditTarget, Verdict};
pub use body::{BodyError, BoxError, RequestBody};
pub use configuration::{
    Configuration, ConfigurationError, HostTable, LimitsTable, NameSpacesWord, RevocationWord,
    TrustTable, UpstreamTable,
};
pub use exoskel_trust::{Renewal, Rules, RulesError};
pub use front::{BadUpstream, Front, FrontSettings, HeaderError, Upstream};
pub use handle::ServerHandle;
pub use host::{HostCredential, HostCredentialError};
pub use http::Http;
pub use layer::{Identified, IdentityLayer, Require, Required};
pub use limits::{BadLimit, Limits};
pub use metrics::{ConnectionEnd, HandshakeOutcome, Metrics, Refusal};
pub use peer::{Handler, Peer, Stream, Working};
pub use renewable::Renewable;
pub use renewal::RENEWAL_INTERVAL;
pub use secret::{FrontSecret, SecretError};
pub use server::Server;
pub use settings::{Settings, StartError};
pub use signals::{ProcessError, run};
