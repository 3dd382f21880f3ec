//! One file of TOML for a service: where it listens, whom it trusts, what is behind it.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use exoskel_identity::{DecisionCacheLimits, GridSettings, NameSpaces, Revocation, SettingsError};
use exoskel_trust::{OpenError, Trust, TrustDirectories};
use rustls_pki_types::UnixTime;
use serde::Deserialize;

use crate::audit::{Audit, AuditTarget};
use crate::front::{BadUpstream, FrontSettings, Upstream};
use crate::host::{HostCredential, HostCredentialError};
use crate::limits::{BadLimit, Limits};
use crate::renewal::RENEWAL_INTERVAL;
use crate::secret::{FrontSecret, SecretError};
use crate::server::Settings;
use exoskel_trust::{Rules, RulesError};

/// What a service is told by its administrator. `docs/administration.md` explains each line.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Configuration {
    /// Where to listen.
    pub listen: SocketAddr,
    /// What clients see.
    #[serde(default)]
    pub host: HostTable,
    /// Whom the service trusts.
    #[serde(default)]
    pub trust: TrustTable,
    /// The policy file whose rules say who may connect; everybody with a good identity without one.
    pub policy: Option<PathBuf>,
    /// Where decisions are written down: `stderr`, `none`, or a file.
    #[serde(default = "stderr")]
    pub audit: String,
    /// Where metrics and health are served, without TLS. None by default.
    pub monitor: Option<SocketAddr>,
    /// The server behind a front.
    pub upstream: Option<UpstreamTable>,
    /// What strangers and slow clients may take.
    #[serde(default)]
    pub limits: LimitsTable,
}

fn stderr() -> String {
    "stderr".to_owned()
}

/// `[host]`
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct HostTable {
    /// The host certificate, PEM.
    pub certificate: PathBuf,
    /// Its key, PEM, mode 0600 or 0400.
    pub key: PathBuf,
}

impl Default for HostTable {
    fn default() -> Self {
        Self {
            certificate: "/etc/grid-security/hostcert.pem".into(),
            key: "/etc/grid-security/hostkey.pem".into(),
        }
    }
}

/// `[trust]`
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TrustTable {
    /// The IGTF directory.
    pub anchors: PathBuf,
    /// The vomsdir; an empty path for none.
    pub vomsdir: PathBuf,
    /// Seconds between two looks at the directories.
    pub interval_seconds: u64,
    /// `require` or `where-listed`: what to do about issuers without a revocation list.
    pub revocation: RevocationWord,
    /// `require` or `where-present`: what to do about authorities without `signing_policy` and `namespaces`.
    pub name_spaces: NameSpacesWord,
    /// Whether proxies of Globus Toolkit 2 are accepted.
    pub legacy_proxies: bool,
    /// Whether proxies of the draft before RFC 3820 are accepted.
    pub draft_proxies: bool,
    /// Proxies in a chain at most.
    pub proxy_depth_max: usize,
    /// Further policy languages of proxies, dotted object identifiers.
    pub policy_languages: Vec<String>,
    /// Names of this host that attribute certificates with targets may mean.
    pub attribute_targets: Vec<String>,
    /// By how much clients' clocks may be ahead.
    pub clock_skew_seconds: u64,
    /// Whether clients may show certificates that are for servers only.
    pub server_certificates: bool,
    /// Identities that are remembered, for ten minutes at most; 0 judges each connection's chain anew.
    pub cache_identities: usize,
}

impl Default for TrustTable {
    fn default() -> Self {
        let settings = GridSettings::default();
        Self {
            anchors: "/etc/grid-security/certificates".into(),
            vomsdir: "/etc/grid-security/vomsdir".into(),
            interval_seconds: RENEWAL_INTERVAL.as_secs(),
            revocation: RevocationWord::Require,
            name_spaces: NameSpacesWord::Require,
            legacy_proxies: settings.legacy_proxies,
            draft_proxies: settings.draft_proxies,
            proxy_depth_max: settings.proxy_depth_max,
            policy_languages: settings.policy_languages,
            attribute_targets: settings.attribute_targets,
            clock_skew_seconds: settings.clock_skew_seconds,
            server_certificates: false,
            cache_identities: DecisionCacheLimits::default().identities,
        }
    }
}

/// See [`Revocation`].
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RevocationWord {
    /// Refuse.
    Require,
    /// Accept.
    WhereListed,
}

/// See [`NameSpaces`].
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum NameSpacesWord {
    /// Refuse.
    Require,
    /// Accept.
    WherePresent,
}

/// `[upstream]`
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UpstreamTable {
    /// `unix:/path` or `tcp://127.0.0.1:port`.
    pub address: String,
    /// The file with the secret that front and server share. A TCP address needs it.
    pub secret: Option<PathBuf>,
    /// Whether `Client-Cert-Chain` is sent.
    #[serde(default)]
    pub chain: bool,
    /// Seconds that the server may take to begin its answer.
    #[serde(default = "response_seconds")]
    pub response_seconds: u64,
    /// Seconds that an idle connection to it is kept.
    #[serde(default = "upstream_idle_seconds")]
    pub idle_seconds: u64,
    /// WebSockets at once.
    #[serde(default = "tunnels_max")]
    pub tunnels_max: usize,
    /// WebSockets at once of one identity.
    #[serde(default = "tunnels_per_identity_max")]
    pub tunnels_per_identity_max: usize,
}

impl UpstreamTable {
    /// The server at this address, with defaults for everything else.
    pub fn new(address: String) -> Self {
        Self {
            address,
            secret: None,
            chain: false,
            response_seconds: response_seconds(),
            idle_seconds: upstream_idle_seconds(),
            tunnels_max: tunnels_max(),
            tunnels_per_identity_max: tunnels_per_identity_max(),
        }
    }
}

fn response_seconds() -> u64 {
    60
}

fn upstream_idle_seconds() -> u64 {
    4
}

fn tunnels_max() -> usize {
    1024
}

fn tunnels_per_identity_max() -> usize {
    512
}

/// `[limits]`; [`Limits`] explains each.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[expect(
    missing_docs,
    reason = "each field is the one of `Limits` with that name, times in seconds"
)]
pub struct LimitsTable {
    pub handshakes_max: Option<usize>,
    pub handshake_seconds: Option<u64>,
    pub handshake_assured_seconds: Option<u64>,
    pub connections_max: Option<usize>,
    pub connections_per_address_max: Option<usize>,
    pub idle_seconds: Option<u64>,
    pub header_seconds: Option<u64>,
    pub header_bytes_max: Option<usize>,
    pub headers_max: Option<usize>,
    pub body_seconds: Option<u64>,
    pub body_bytes_per_second_min: Option<u32>,
    pub streams_max: Option<u32>,
    pub requests_max: Option<usize>,
    pub requests_per_identity_max: Option<usize>,
    pub requests_waiting_max: Option<usize>,
    pub request_wait_seconds: Option<u64>,
    pub shutdown_seconds: Option<u64>,
}

impl LimitsTable {
    fn limits(&self) -> Limits {
        let default = Limits::default();
        let time = |seconds: Option<u64>, default| seconds.map_or(default, Duration::from_secs);
        Limits {
            handshakes_max: self.handshakes_max.unwrap_or(default.handshakes_max),
            handshake_time: time(self.handshake_seconds, default.handshake_time),
            handshake_time_assured: time(
                self.handshake_assured_seconds,
                default.handshake_time_assured,
            ),
            connections_max: self.connections_max.unwrap_or(default.connections_max),
            connections_per_address_max: self
                .connections_per_address_max
                .unwrap_or(default.connections_per_address_max),
            idle_time: time(self.idle_seconds, default.idle_time),
            header_time: time(self.header_seconds, default.header_time),
            header_bytes_max: self.header_bytes_max.unwrap_or(default.header_bytes_max),
            headers_max: self.headers_max.unwrap_or(default.headers_max),
            body_time: time(self.body_seconds, default.body_time),
            body_bytes_per_second_min: self
                .body_bytes_per_second_min
                .unwrap_or(default.body_bytes_per_second_min),
            streams_max: self.streams_max.unwrap_or(default.streams_max),
            requests_max: self.requests_max.unwrap_or(default.requests_max),
            requests_per_identity_max: self
                .requests_per_identity_max
                .unwrap_or(default.requests_per_identity_max),
            requests_waiting_max: self
                .requests_waiting_max
                .unwrap_or(default.requests_waiting_max),
            request_wait_time: time(self.request_wait_seconds, default.request_wait_time),
            shutdown_time: time(self.shutdown_seconds, default.shutdown_time),
        }
    }
}

/// Why a configuration can't be used. Its administrator must act.
#[derive(Debug, thiserror::Error)]
pub enum ConfigurationError {
    /// The file.
    #[error("{}: {reason}", file.display())]
    File {
        /// Which one.
        file: PathBuf,
        /// What the system says.
        reason: std::io::Error,
    },
    /// Something that is no configuration.
    #[error("{0}")]
    Toml(#[from] Box<toml::de::Error>),
    /// The trust directories.
    #[error("trust: {0}")]
    Trust(#[from] OpenError),
    /// The rules by which chains are judged.
    #[error("trust: {0}")]
    Judgement(#[from] SettingsError),
    /// The policy file.
    #[error("policy: {0}")]
    Rules(#[from] RulesError),
    /// The host certificate.
    #[error("host: {0}")]
    Host(#[from] HostCredentialError),
    /// A limit.
    #[error("limits: {0}")]
    Limit(#[from] BadLimit),
    /// The server behind.
    #[error("upstream: {0}")]
    Upstream(#[from] BadUpstream),
    /// The secret that it shares with the front.
    #[error("upstream.secret: {0}")]
    Secret(#[from] SecretError),
    /// A front without a server behind.
    #[error("upstream: nothing is set, expected the address of the server behind")]
    NoUpstream,
    /// Anybody on the host could speak for the front.
    #[error(
        "upstream.secret: a server on a TCP port needs one, since every process of this host can reach the port: make one with \"openssl rand -hex 32\" in a file of mode 0600, or listen on unix:"
    )]
    NoSecret,
    /// The audit file.
    #[error("audit: {target} can't be opened: {reason}")]
    Audit {
        /// Which file.
        target: String,
        /// What the system says.
        reason: std::io::Error,
    },
    /// Something that repeats for ever.
    #[error("trust.interval_seconds: got 0, expected at least 1")]
    NoInterval,
}

impl Configuration {
    /// Reads a file. Relative paths in it are beside it.
    ///
    /// # Errors
    /// [`ConfigurationError`] names the file, the line and what was expected.
    pub fn read(file: &Path) -> Result<Self, ConfigurationError> {
        let text = std::fs::read_to_string(file).map_err(|reason| ConfigurationError::File {
            file: file.to_owned(),
            reason,
        })?;
        let mut read = Self::parse(&text)?;
        read.place(file.parent().unwrap_or_else(|| Path::new(".")));
        Ok(read)
    }

    /// Takes the text of a file.
    ///
    /// # Errors
    /// [`ConfigurationError::Toml`] names the line and what was expected.
    pub fn parse(text: &str) -> Result<Self, ConfigurationError> {
        toml::from_str(text).map_err(|error| Box::new(error).into())
    }

    /// The configuration with defaults for everything but where to listen.
    pub fn new(listen: SocketAddr) -> Self {
        Self {
            listen,
            host: HostTable::default(),
            trust: TrustTable::default(),
            policy: None,
            audit: stderr(),
            monitor: None,
            upstream: None,
            limits: LimitsTable::default(),
        }
    }

    fn place(&mut self, beside: &Path) {
        let place = |path: &mut PathBuf| {
            if !path.as_os_str().is_empty() {
                *path = beside.join(&*path);
            }
        };
        place(&mut self.host.certificate);
        place(&mut self.host.key);
        place(&mut self.trust.anchors);
        place(&mut self.trust.vomsdir);
        self.policy.as_mut().into_iter().for_each(place);
        let secret = self.upstream.as_mut().and_then(|one| one.secret.as_mut());
        secret.into_iter().for_each(place);
        if !matches!(self.audit.as_str(), "stderr" | "none") {
            self.audit = beside.join(&self.audit).display().to_string();
        }
    }

    fn judgement(&self) -> GridSettings {
        let trust = &self.trust;
        GridSettings {
            revocation: match trust.revocation {
                RevocationWord::Require => Revocation::Require,
                RevocationWord::WhereListed => Revocation::WhereListed,
            },
            name_spaces: match trust.name_spaces {
                NameSpacesWord::Require => NameSpaces::Require,
                NameSpacesWord::WherePresent => NameSpaces::WherePresent,
            },
            legacy_proxies: trust.legacy_proxies,
            draft_proxies: trust.draft_proxies,
            proxy_depth_max: trust.proxy_depth_max,
            policy_languages: trust.policy_languages.clone(),
            attribute_targets: trust.attribute_targets.clone(),
            clock_skew_seconds: trust.clock_skew_seconds,
        }
    }

    fn trust(&self) -> Result<Arc<Trust>, ConfigurationError> {
        let vomsdir = &self.trust.vomsdir;
        let directories = TrustDirectories {
            anchors: self.trust.anchors.clone(),
            vomsdir: (!vomsdir.as_os_str().is_empty()).then(|| vomsdir.clone()),
        };
        let cache = match self.trust.cache_identities {
            0 => DecisionCacheLimits::OFF,
            identities => DecisionCacheLimits {
                identities,
                ..DecisionCacheLimits::default()
            },
        };
        Ok(Trust::open(directories, self.judgement(), cache)?)
    }

    fn audit_target(&self) -> AuditTarget {
        match self.audit.as_str() {
            "stderr" => AuditTarget::StandardError,
            "none" => AuditTarget::Nowhere,
            file => AuditTarget::File(file.into()),
        }
    }

    /// How often trust data is read again.
    ///
    /// # Errors
    /// [`ConfigurationError::NoInterval`]
    pub fn interval(&self) -> Result<Duration, ConfigurationError> {
        match self.trust.interval_seconds {
            0 => Err(ConfigurationError::NoInterval),
            seconds => Ok(Duration::from_secs(seconds)),
        }
    }

    /// Reads what the configuration names, and makes the settings of a server of it. The audit file is opened and made.
    ///
    /// # Errors
    /// [`ConfigurationError`] says which line, and what to do about it.
    pub fn settings(&self) -> Result<Settings, ConfigurationError> {
        let limits = self.limits.limits();
        limits.check()?;
        self.interval()?;
        let mut settings = Settings::new(
            self.listen,
            HostCredential {
                certificate: self.host.certificate.clone(),
                key: self.host.key.clone(),
            },
            self.trust()?,
        );
        settings.rules = self.policy.as_deref().map(Rules::open).transpose()?;
        settings.server_certificates = self.trust.server_certificates;
        settings.limits = limits;
        settings.audit =
            Audit::open(&self.audit_target()).map_err(|reason| ConfigurationError::Audit {
                target: self.audit.clone(),
                reason,
            })?;
        Ok(settings)
    }

    /// What a front is told about the server behind it.
    ///
    /// # Errors
    /// [`ConfigurationError`] says which line, and what to do about it.
    pub fn front(&self) -> Result<FrontSettings, ConfigurationError> {
        let table = self
            .upstream
            .as_ref()
            .ok_or(ConfigurationError::NoUpstream)?;
        let upstream: Upstream = table.address.parse()?;
        let secret = table.secret.as_deref().map(FrontSecret::read).transpose()?;
        if secret.is_none() && matches!(upstream, Upstream::Tcp(_)) {
            return Err(ConfigurationError::NoSecret);
        }
        Ok(FrontSettings {
            upstream,
            secret,
            chain: table.chain,
            response_time: Duration::from_secs(table.response_seconds.max(1)),
            upstream_idle_time: Duration::from_secs(table.idle_seconds),
            tunnels_max: table.tunnels_max,
            tunnels_per_identity_max: table.tunnels_per_identity_max,
        })
    }

    /// Reads everything that the configuration names, listens nowhere and opens no audit file. Comes back with what an
    /// administrator should know and that doesn't keep the service from running.
    ///
    /// # Errors
    /// [`ConfigurationError`] for what would keep it from running.
    pub fn check(&self, now: UnixTime) -> Result<Vec<String>, ConfigurationError> {
        let limits = self.limits.limits();
        limits.check()?;
        self.interval()?;
        let host = HostCredential {
            certificate: self.host.certificate.clone(),
            key: self.host.key.clone(),
        };
        let mut notes = host.check(now)?;
        let trust = self.trust()?;
        let report = trust.report();
        for bad in &report.bad_files {
            notes.push(format!("trust: {}: {}", bad.name, bad.reason));
        }
        for authority in &report.authorities {
            let problems = authority.problems(now);
            if !problems.is_empty() {
                let subject = authority.subject.slash();
                notes.push(format!("trust: {subject}: {}", problems.join("; ")));
            }
        }
        self.policy.as_deref().map(Rules::open).transpose()?;
        if self.upstream.is_some() {
            self.front()?;
        }
        notes.extend(crate::process::descriptors_note(&limits));
        Ok(notes)
    }
}
