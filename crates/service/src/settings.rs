//! What a server is made of, and why it can't start.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use exoskel_trust::Rules;
use rustls::time_provider::{DefaultTimeProvider, TimeProvider};

use crate::access_log::AccessLog;
use crate::audit::Audit;
use crate::balancers::Balancer;
use crate::host::{HostCredential, HostCredentialError};
use crate::limits::{BadLimit, Limits};
use crate::renewable::Renewable;

/// What a server is made of.
#[derive(Clone)]
pub struct Settings {
    /// Where to listen. Port 0 takes any free one.
    pub listen: SocketAddr,
    /// The certificate that clients see.
    pub host: HostCredential,
    /// Who judges the clients' chains.
    pub verifier: Arc<dyn Renewable>,
    /// Who may connect, as the action `connect`; everybody with a good identity where there are no rules.
    pub rules: Option<Arc<Rules>>,
    /// The actions that requests need beside `connect`: rules that allow one of them to nobody are warned of.
    pub actions: Vec<String>,
    /// Whether clients may show certificates that are for servers only: their extended key usages, or those of an authority
    /// above, lack `clientAuth` (RFC 5280 section 4.2.1.12).
    pub server_certificates: bool,
    /// What strangers and slow clients may take.
    pub limits: Limits,
    /// Where decisions are written down.
    pub audit: Arc<Audit>,
    /// Where requests are written down, by a server that speaks HTTP.
    pub access_log: Arc<AccessLog>,
    /// Load balancers in front of the server. Their connections, and no others, begin with a header of the PROXY protocol
    /// (version 2) that says where the client is.
    pub balancers: Vec<Balancer>,
    /// The calendar by which certificates are judged.
    pub time: Arc<dyn TimeProvider>,
}

impl Settings {
    /// Settings with default limits, this host's clock and no audit trail.
    pub fn new(listen: SocketAddr, host: HostCredential, verifier: Arc<dyn Renewable>) -> Self {
        Self {
            listen,
            host,
            verifier,
            rules: None,
            actions: Vec::new(),
            server_certificates: false,
            limits: Limits::default(),
            audit: Audit::nowhere(),
            access_log: AccessLog::nowhere(),
            balancers: Vec::new(),
            time: Arc::new(DefaultTimeProvider),
        }
    }
}

impl fmt::Debug for Settings {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Settings")
            .field("listen", &self.listen)
            .field("host", &self.host)
            .field("limits", &self.limits)
            .finish_non_exhaustive()
    }
}

/// Why a server can't start. Its administrator must act.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The address.
    #[error("can't listen on {address}: {reason}")]
    Listen {
        /// Which one.
        address: SocketAddr,
        /// What the system says.
        reason: io::Error,
    },
    /// The host certificate or its key.
    #[error(transparent)]
    Credential(#[from] HostCredentialError),
    /// The TLS engine refuses its settings.
    #[error("TLS can't be set up: {0}")]
    Tls(#[from] rustls::Error),
    /// A limit that can't work.
    #[error(transparent)]
    Limit(#[from] BadLimit),
}
