//! Grid identity for any server.
//!
//! A [`Server`] accepts TLS connections, has every client's chain judged inside its handshake, and hands a [`Stream`]
//! and a [`Peer`] to a [`Handler`]. Limits, metrics and the audit trail are the same for every kind of handler.

#![forbid(unsafe_code)]

mod accept;
mod access_log;
mod admission;
mod audit;
mod balancers;
mod body;
mod configuration;
mod connection_streams;
mod connections;
mod descriptors;
mod front;
mod handle;
mod head;
mod host;
mod http;
mod layer;
mod limits;
mod log_file;
mod metrics;
mod monitor;
mod one_answer;
mod own_task;
mod peer;
mod plain_http;
mod renewable;
mod renewal;
mod request_slots;
mod rule_notes;
mod secret;
mod server;
mod server_state;
mod settings;
mod signals;
mod tls;
mod unread_bodies;

pub use access_log::AccessLog;
pub use admission::Authorizer;
pub use audit::{Audit, Verdict};
pub use balancers::{BadBalancer, Balancer};
pub use body::{BodyError, BoxError, RequestBody};
pub use configuration::{
    Configuration, ConfigurationError, HostTable, LimitsTable, NameSpacesWord, RefusalsWord,
    RevocationWord, TrustTable, UpstreamTable,
};
pub use exoskel_trust::{Renewal, Rules, RulesError};
pub use front::{
    BadPathRule, BadUpstream, Front, FrontSettings, HeaderError, PathError, PathRuleProblem,
    PathRules, PathTable, Upstream,
};
pub use handle::ServerHandle;
pub use host::{HostCredential, HostCredentialError};
pub use http::Http;
pub use layer::{Identified, IdentityLayer, Require, Required};
pub use limits::{BadLimit, Limits};
pub use log_file::LogTarget;
pub use metrics::{ConnectionEnd, HandshakeOutcome, Metrics, Refusal, RefusalCause};
pub use peer::{Handler, Peer, Stranger, Strangers, Stream, Working};
pub use renewable::{Renewable, RevocationListDates};
pub use renewal::RENEWAL_INTERVAL;
pub use secret::{FrontSecret, SecretError};
pub use server::Server;
pub use settings::{Settings, StartError};
pub use signals::{ProcessError, run};
