//! One file of TOML for a service: where it listens, whom it trusts, what is behind it.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use exoskel_identity::policy_text::{line_of, syntax};
use exoskel_identity::{
    Authorization, DecisionCacheLimits, GridSettings, NameSpaces, Revocation, SettingsError,
};
use exoskel_trust::{OpenTrustError, Trust, TrustDirectories};
use rustls_pki_types::UnixTime;
use serde::Deserialize;
use toml::Spanned;

mod named_files;
mod notes;

use crate::access_log::AccessLog;
use crate::admission::{CONNECT, nobody_may};
use crate::audit::Audit;
use crate::balancers::{BadBalancer, Balancer};
use crate::front::{
    BadPathRule, BadUpstream, FrontSettings, PathRuleProblem, PathRules, PathTable, Upstream,
};
use crate::host::{HostCredential, HostCredentialError};
use crate::limits::{BadLimit, Limits};
use crate::log_file::LogTarget;
use crate::renewal::RENEWAL_INTERVAL;
use crate::rule_notes::similar_action;
use crate::secret::{FrontSecret, SecretError};
use crate::settings::Settings;
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
    /// Where requests are written down: `stderr`, `none`, or a file.
    #[serde(default = "nowhere")]
    pub access_log: String,
    /// How somebody is refused who proved who they are, and whom the policy refuses.
    #[serde(default)]
    pub refusals: RefusalsWord,
    /// Load balancers whose connections begin with a header of the PROXY protocol (version 2): addresses and networks.
    #[serde(default)]
    pub balancers: Vec<Spanned<String>>,
    /// What requests need, by path and method.
    #[serde(default, rename = "path")]
    path_tables: Vec<Spanned<PathTable>>,
    #[serde(skip)]
    rules: ConfigurationRules,
    /// Where metrics and health are served, without TLS. None by default.
    pub monitor: Option<SocketAddr>,
    /// The server behind a front.
    pub upstream: Option<UpstreamTable>,
    /// What strangers and slow clients may take.
    #[serde(default)]
    pub limits: LimitsTable,
}

/// What was made of the text of a file while its lines were known.
#[derive(Clone, Debug, Default)]
struct ConfigurationRules {
    /// The file, if it is one.
    file: Option<PathBuf>,
    /// What stood in it.
    text: String,
    paths: PathRules,
    balancers: Vec<Balancer>,
    /// The files that it names, with the line of each.
    named: Vec<(PathBuf, usize)>,
}

/// How a front refuses somebody who proved who they are.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub enum RefusalsWord {
    /// Each request is answered with 403 and the reason.
    #[default]
    Http,
    /// The handshake ends with an alert.
    Tls,
}

/// What is expected of a policy that has no rule about [`CONNECT`], and none about a similar word.
fn connect_hint(rules: &Authorization) -> String {
    match similar_action(rules, CONNECT) {
        None if !rules.allows_somebody(CONNECT) => {
            format!(": expected one with action = {CONNECT:?}, or \"any\"")
        }
        _ => String::new(),
    }
}

fn nowhere() -> String {
    "none".to_owned()
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
    pub strangers_max: Option<usize>,
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
            strangers_max: self.strangers_max.unwrap_or(default.strangers_max),
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

fn log_target(written: &str) -> LogTarget {
    match written {
        "stderr" => LogTarget::StandardError,
        "none" => LogTarget::Nowhere,
        file => LogTarget::File(file.into()),
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
    #[error("{}{message}", line.map_or_else(String::new, |line| format!("line {line}: ")))]
    Toml {
        /// Where reading ended, from 1; nothing when it is about the file as a whole.
        line: Option<usize>,
        /// What was found there, and what was expected.
        message: String,
    },
    /// A file that can't be used, and the line that names it.
    #[error("{}: line {line}: {problem}", file.display())]
    Named {
        /// The configuration.
        file: PathBuf,
        /// The line, from 1.
        line: usize,
        /// What is wrong with the named file.
        problem: Box<Self>,
    },
    /// Revocation lists that are missing or don't say who is revoked, so that nobody whom they cover could come in. Whoever fetches them must
    /// act.
    #[error("{}: {}", directory.display(), lists.join("; "))]
    RevocationLists {
        /// The directory of authorities.
        directory: PathBuf,
        /// Each one in words, with its issuer and its files.
        lists: Vec<String>,
    },
    /// The trust directories.
    #[error("trust: {0}")]
    Trust(#[from] OpenTrustError),
    /// The rules by which chains are judged.
    #[error("trust: {0}")]
    Judgement(#[from] SettingsError),
    /// The policy file.
    #[error("policy: {0}")]
    Rules(#[from] RulesError),
    /// A policy by which nobody could come in.
    #[error("{}: nobody may do \"connect\": {reason}{hint}", policy.display())]
    NobodyMayConnect {
        /// The policy.
        policy: PathBuf,
        /// Why.
        reason: String,
        /// What may have been meant.
        hint: String,
    },
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
        "upstream.secret: a server on a TCP port needs one, since every process of this host can reach it: run \"umask 077; openssl rand -hex 32 > FILE\", or listen on unix:"
    )]
    NoSecret,
    /// The audit file.
    #[error("{what}: {target} can't be opened: {reason}")]
    Log {
        /// The audit trail, or the access log.
        what: &'static str,
        /// Which file.
        target: String,
        /// What the system says.
        reason: std::io::Error,
    },
    /// A path rule.
    #[error("{}{problem}", file.as_ref().map_or_else(String::new, |file| format!("{}: ", file.display())))]
    Path {
        /// The configuration, if what is wrong was found after it was read.
        file: Option<PathBuf>,
        /// Where and what.
        problem: BadPathRule,
    },
    /// A load balancer.
    #[error("line {line}: balancers: {problem}")]
    Balancer {
        /// Where it stands, from 1.
        line: usize,
        /// What is wrong with it.
        problem: BadBalancer,
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
        read.rules.file = Some(file.to_owned());
        read.rules.text = text;
        let beside = file.parent().unwrap_or_else(|| Path::new("."));
        read.place(beside);
        read.rules.named = named_files::read(&read.rules.text, beside);
        Ok(read)
    }

    /// Takes the text of a file.
    ///
    /// # Errors
    /// [`ConfigurationError::Toml`] names the line and what was expected.
    pub fn parse(text: &str) -> Result<Self, ConfigurationError> {
        let mut read: Self = toml::from_str(text).map_err(|error| {
            let (line, message) = syntax(text, &error);
            ConfigurationError::Toml { line, message }
        })?;
        read.rules.paths = PathRules::new(&read.path_tables, text).map_err(|problem| {
            ConfigurationError::Path {
                file: None,
                problem,
            }
        })?;
        for written in &read.balancers {
            let balancer = written.get_ref().parse();
            let balancer = balancer.map_err(|problem| ConfigurationError::Balancer {
                line: line_of(text, written.span().start),
                problem,
            })?;
            read.rules.balancers.push(balancer);
        }
        Ok(read)
    }

    /// The configuration's file, if something else stands in it now than when it was read.
    pub fn changed_file(&self) -> Option<&Path> {
        let file = self.rules.file.as_deref()?;
        let now = std::fs::read_to_string(file).ok();
        (now.as_deref() != Some(self.rules.text.as_str())).then_some(file)
    }

    /// The configuration with defaults for everything but where to listen.
    pub fn new(listen: SocketAddr) -> Self {
        Self {
            listen,
            host: HostTable::default(),
            trust: TrustTable::default(),
            policy: None,
            audit: stderr(),
            access_log: nowhere(),
            refusals: RefusalsWord::default(),
            balancers: Vec::new(),
            path_tables: Vec::new(),
            rules: ConfigurationRules::default(),
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
        for log in [&mut self.audit, &mut self.access_log] {
            if !matches!(log.as_str(), "stderr" | "none") {
                *log = beside.join(&*log).display().to_string();
            }
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

    /// The policy's rules, which must be able to let somebody in, and to allow each action that a path rule asks for.
    fn policy_rules(&self) -> Result<Option<Arc<Rules>>, ConfigurationError> {
        let rules = self.policy.as_deref().map(Rules::open).transpose()?;
        if let (Some(rules), Some(policy)) = (&rules, &self.policy)
            && let Some(reason) = nobody_may(&rules.current(), CONNECT)
        {
            return Err(ConfigurationError::NobodyMayConnect {
                policy: policy.clone(),
                reason,
                hint: connect_hint(&rules.current()),
            });
        }
        for (line, action) in self.rules.paths.actions() {
            let reason = match &rules {
                None => {
                    "there is no policy that could allow it: set policy, or leave the action out"
                        .to_owned()
                }
                Some(rules) => match nobody_may(&rules.current(), action) {
                    Some(reason) => format!("{reason}, so nobody could ever do it"),
                    None => continue,
                },
            };
            let action = action.to_owned();
            let problem = PathRuleProblem::Action { action, reason };
            return Err(ConfigurationError::Path {
                file: self.rules.file.clone(),
                problem: BadPathRule { line, problem },
            });
        }
        Ok(rules)
    }

    /// Says where the configuration names the file that can't be used, if it is the one that does.
    fn with_line(&self, error: ConfigurationError) -> ConfigurationError {
        let line = error.file().and_then(|file| {
            let mut named = self.rules.named.iter();
            named.find(|(one, _)| one == file).map(|(_, line)| *line)
        });
        match (line, &self.rules.file) {
            (Some(line), Some(file)) => ConfigurationError::Named {
                file: file.clone(),
                line,
                problem: Box::new(error),
            },
            _ => error,
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
        self.read_settings().map_err(|error| self.with_line(error))
    }

    fn read_settings(&self) -> Result<Settings, ConfigurationError> {
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
        settings.rules = self.policy_rules()?;
        let actions = self.rules.paths.actions();
        settings.actions = actions.map(|(_, action)| action.to_owned()).collect();
        settings.balancers.clone_from(&self.rules.balancers);
        settings.server_certificates = self.trust.server_certificates;
        settings.limits = limits;
        let failed = |what, target: &String| {
            let target = target.clone();
            move |reason| ConfigurationError::Log {
                what,
                target,
                reason,
            }
        };
        settings.audit =
            Audit::open(&log_target(&self.audit)).map_err(failed("audit", &self.audit))?;
        settings.access_log = AccessLog::open(&log_target(&self.access_log))
            .map_err(failed("access_log", &self.access_log))?;
        Ok(settings)
    }

    /// What a front is told about the server behind it.
    ///
    /// # Errors
    /// [`ConfigurationError`] says which line, and what to do about it.
    pub fn front(&self) -> Result<FrontSettings, ConfigurationError> {
        self.read_front().map_err(|error| self.with_line(error))
    }

    fn read_front(&self) -> Result<FrontSettings, ConfigurationError> {
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
            paths: self.rules.paths.clone(),
            tell_refused: self.refusals == RefusalsWord::Http,
            tunnels_max: table.tunnels_max,
            tunnels_per_identity_max: table.tunnels_per_identity_max,
        })
    }

    /// Reads everything that the configuration names, listens nowhere and opens no audit file. Comes back with what an
    /// administrator should know and that doesn't keep the service from running.
    ///
    /// # Errors
    /// [`ConfigurationError`] for what would keep it from running, and for revocation lists by which it would refuse everybody whom
    /// they cover.
    pub fn check(&self, now: UnixTime) -> Result<Vec<String>, ConfigurationError> {
        self.check_all(now).map_err(|error| self.with_line(error))
    }

    fn check_all(&self, now: UnixTime) -> Result<Vec<String>, ConfigurationError> {
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
            let file = trust.directories().path_of(bad);
            notes.push(format!("trust: {}: {}", file.display(), bad.reason));
        }
        for authority in &report.authorities {
            let problems = authority.problems(now);
            if !problems.is_empty() {
                let subject = authority.subject.slash();
                notes.push(format!("trust: {subject}: {}", problems.join("; ")));
            }
        }
        if let Some(rules) = self.policy_rules()? {
            notes.extend(self.notes_on_rules(&rules, &trust));
        }
        notes.extend(self.notes_on_paths());
        if self.upstream.is_some() {
            self.read_front()?;
        }
        notes.extend(crate::descriptors::descriptors_note(&limits));
        let lists = trust.list_faults(now);
        if !lists.is_empty() {
            return Err(ConfigurationError::RevocationLists {
                directory: self.trust.anchors.clone(),
                lists: lists.iter().map(ToString::to_string).collect(),
            });
        }
        Ok(notes)
    }
}
