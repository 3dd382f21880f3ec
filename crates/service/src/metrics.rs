//! What the service counts, for Prometheus.

use std::fmt::{self, Write as _};
use std::time::Duration;

use exoskel_identity::{DecisionCacheStatistics, IdentityError};
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{EncodeLabelValue, LabelValueEncoder};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use rustls_pki_types::UnixTime;

use crate::renewable::RevocationListDates;

/// Seconds that a handshake took: from a cached verdict on an idle host to the limit.
const HANDSHAKE_BUCKETS: [f64; 12] = [
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0,
];

/// Why a connection was ended without a verdict on its client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Refusal {
    /// [`Limits::handshakes_max`](crate::Limits::handshakes_max).
    Handshakes,
    /// [`Limits::connections_max`](crate::Limits::connections_max).
    Connections,
    /// [`Limits::connections_per_address_max`](crate::Limits::connections_per_address_max).
    Address,
    /// [`Limits::strangers_max`](crate::Limits::strangers_max), after the handshake.
    Strangers,
    /// The connection of a load balancer did not begin with a header of the PROXY protocol.
    Balancer,
}

/// How a handshake came out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum HandshakeOutcome {
    /// The client proved who it is and may come in.
    Accepted,
    /// The client's identity was refused.
    Refused,
    /// The client showed no certificate, and may ask for what needs none.
    WithoutCertificate,
    /// TLS failed: garbage, no certificate, a closed connection.
    Failed,
    /// It took too long, or another took its place.
    TimedOut,
}

/// Why an identity was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RefusalCause {
    /// No certificate was shown.
    NoCertificate,
    /// The client did not prove that it holds its key.
    Key,
    /// The chain ends at nobody who is trusted.
    UnknownAuthority,
    /// Its time is over, or has not come.
    Dates,
    /// It was taken back.
    Revoked,
    /// A revocation list is missing, or past its date: the site must act.
    RevocationList,
    /// The certificate is not for clients.
    Usage,
    /// Any other fault of the chain.
    Chain,
    /// The rules of the policy.
    Rules,
    /// A ban.
    Banned,
}

impl RefusalCause {
    pub(crate) fn of(error: &IdentityError) -> Self {
        match error {
            IdentityError::NoCertificate => Self::NoCertificate,
            IdentityError::UnknownAuthority { .. } | IdentityError::UntrustedAuthority { .. } => {
                Self::UnknownAuthority
            }
            IdentityError::Expired { .. }
            | IdentityError::NotYetValid { .. }
            | IdentityError::AuthorityOutOfDate { .. } => Self::Dates,
            IdentityError::Revoked { .. } => Self::Revoked,
            IdentityError::RevocationListStale { .. }
            | IdentityError::RevocationListForged { .. }
            | IdentityError::RevocationListFromFuture { .. }
            | IdentityError::NoRevocationList { .. } => Self::RevocationList,
            IdentityError::WrongUsage { .. } => Self::Usage,
            _ => Self::Chain,
        }
    }
}

/// Why the service ended a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ConnectionEnd {
    /// The handshake took too long.
    Handshake,
    /// The handshake took long and others waited for its place.
    Displaced,
    /// No traffic.
    Idle,
    /// The client did not take what it asked for.
    Slow,
    /// The identity's time is over.
    Expired,
    /// The identity is no longer good: trust, revocation, bans or rules have changed.
    NoLongerGood,
    /// The server stops.
    Shutdown,
}

macro_rules! written {
    ($kind:ident: $($variant:ident => $word:literal),+ $(,)?) => {
        impl $kind {
            const ALL: &[Self] = &[$(Self::$variant),+];
        }

        impl EncodeLabelValue for $kind {
            fn encode(&self, encoder: &mut LabelValueEncoder<'_>) -> fmt::Result {
                encoder.write_str(match self {
                    $(Self::$variant => $word,)+
                })
            }
        }
    };
}

written!(Refusal:
    Handshakes => "handshakes_max",
    Connections => "connections_max",
    Address => "connections_per_address_max",
    Strangers => "strangers_max",
    Balancer => "proxy_header",
);
written!(RefusalCause:
    NoCertificate => "no_certificate",
    Key => "key_not_proven",
    UnknownAuthority => "unknown_authority",
    Dates => "dates",
    Revoked => "revoked",
    RevocationList => "revocation_list",
    Usage => "usage",
    Chain => "chain",
    Rules => "rules",
    Banned => "banned",
);
written!(HandshakeOutcome:
    Accepted => "accepted",
    Refused => "refused",
    WithoutCertificate => "without_certificate",
    Failed => "failed",
    TimedOut => "timed_out",
);
written!(ConnectionEnd:
    Handshake => "handshake_time",
    Displaced => "handshake_displaced",
    Idle => "idle",
    Slow => "slow",
    Expired => "expired",
    NoLongerGood => "no_longer_good",
    Shutdown => "shutdown",
);

/// One label with its value.
type Label<T> = [(&'static str, T); 1];

fn seconds(time: UnixTime) -> i64 {
    i64::try_from(time.as_secs()).unwrap_or(i64::MAX)
}

/// Counters for all of these reasons. Whoever watches them sees a first event only if there was a nought before it.
fn counters<T>(reasons: &[T]) -> Family<Label<T>, Counter>
where
    T: Copy + Eq + std::hash::Hash,
{
    let family = Family::default();
    for reason in reasons {
        drop(family.get_or_create(&why(*reason)));
    }
    family
}

fn why<T>(reason: T) -> Label<T> {
    [("reason", reason)]
}

/// The numbers of one server. Counters are atomic; reading them disturbs nobody.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    accepted: Counter,
    refused: Family<Label<Refusal>, Counter>,
    handshakes: Family<Label<HandshakeOutcome>, Counter>,
    identities_refused: Family<Label<RefusalCause>, Counter>,
    host_certificate_end: Gauge,
    lists_made: Family<Label<String>, Gauge>,
    lists_due: Family<Label<String>, Gauge>,
    access_lines_lost: Gauge,
    handshake_seconds: Histogram,
    ended: Family<Label<ConnectionEnd>, Counter>,
    panics: Counter,
    requests: Family<Label<u16>, Counter>,
    connections_open: Gauge,
    handshakes_open: Gauge,
    verdicts_found: Gauge,
    verdicts_judged: Gauge,
    verdicts_kept: Gauge,
    generation: Gauge,
    reloads: Counter,
    reloads_failed: Counter,
    audit_lines_lost: Gauge,
}

impl Default for Metrics {
    fn default() -> Self {
        let mut registry = Registry::with_prefix("exoskel");
        macro_rules! register {
            ($name:literal, $help:literal, $metric:expr) => {{
                let metric = $metric;
                registry.register($name, $help, metric.clone());
                metric
            }};
        }
        Self {
            accepted: register!(
                "connections",
                "Connections accepted, refused ones included",
                Counter::default()
            ),
            refused: register!(
                "connections_refused",
                "Connections ended without a verdict on their client, by reason",
                counters(Refusal::ALL)
            ),
            handshakes: register!(
                "handshakes",
                "Handshakes, by outcome",
                counters(HandshakeOutcome::ALL)
            ),
            identities_refused: register!(
                "identities_refused",
                "Identities refused, a connection or a request by path, by cause",
                counters(RefusalCause::ALL)
            ),
            host_certificate_end: register!(
                "host_certificate_end_timestamp_seconds",
                "When the host's certificate ends, in seconds since 1970",
                Gauge::default()
            ),
            lists_made: register!(
                "revocation_list_made_timestamp_seconds",
                "When the revocation list of an authority was made, in seconds since 1970",
                Family::default()
            ),
            lists_due: register!(
                "revocation_list_due_timestamp_seconds",
                "When an authority's next list is due: past it, the authority's users are refused",
                Family::default()
            ),
            access_lines_lost: register!(
                "access_lines_lost",
                "Access lines that could not be written since the start",
                Gauge::default()
            ),
            handshake_seconds: register!(
                "handshake_seconds",
                "Time from accepting a connection to its verdict",
                Histogram::new(HANDSHAKE_BUCKETS)
            ),
            ended: register!(
                "connections_ended",
                "Connections that the service ended, by reason",
                counters(ConnectionEnd::ALL)
            ),
            panics: register!(
                "panics",
                "Connections lost to a fault of the program",
                Counter::default()
            ),
            requests: register!("requests", "HTTP requests, by status", Family::default()),
            connections_open: register!("connections_open", "Connections now", Gauge::default()),
            handshakes_open: register!("handshakes_open", "Handshakes now", Gauge::default()),
            verdicts_found: register!(
                "verdicts_found",
                "Verdicts found in the cache since the start",
                Gauge::default()
            ),
            verdicts_judged: register!(
                "verdicts_judged",
                "Chains that had to be judged since the start",
                Gauge::default()
            ),
            verdicts_kept: register!(
                "verdicts_kept",
                "Verdicts in the cache now",
                Gauge::default()
            ),
            generation: register!(
                "trust_generation",
                "Generation of the trust data in use",
                Gauge::default()
            ),
            reloads: register!(
                "trust_reloads",
                "Times that the trust data was read again",
                Counter::default()
            ),
            reloads_failed: register!(
                "trust_reloads_failed",
                "Times that something could not be read and the last good state was kept",
                Counter::default()
            ),
            audit_lines_lost: register!(
                "audit_lines_lost",
                "Audit lines that could not be written since the start",
                Gauge::default()
            ),
            registry,
        }
    }
}

impl Metrics {
    pub(crate) fn count_accepted(&self) {
        self.accepted.inc();
    }

    pub(crate) fn count_refused(&self, reason: Refusal) {
        self.refused.get_or_create(&why(reason)).inc();
    }

    pub(crate) fn count_handshake(&self, reason: HandshakeOutcome, took: Duration) {
        self.handshakes.get_or_create(&why(reason)).inc();
        if matches!(
            reason,
            HandshakeOutcome::Accepted | HandshakeOutcome::Refused
        ) {
            self.handshake_seconds.observe(took.as_secs_f64());
        }
    }

    pub(crate) fn count_identity_refused(&self, reason: RefusalCause) {
        self.identities_refused.get_or_create(&why(reason)).inc();
    }

    pub(crate) fn set_host_certificate_end(&self, end: UnixTime) {
        self.host_certificate_end.set(seconds(end));
    }

    pub(crate) fn set_revocation_lists(&self, lists: &[RevocationListDates]) {
        // Authorities that are gone have no list.
        self.lists_made.clear();
        self.lists_due.clear();
        for list in lists {
            let authority = [("authority", list.authority.clone())];
            let made = self.lists_made.get_or_create(&authority);
            made.set(seconds(list.this_update));
            let due = self.lists_due.get_or_create(&authority);
            due.set(seconds(list.next_update));
        }
    }

    pub(crate) fn count_ended(&self, reason: ConnectionEnd) {
        self.ended.get_or_create(&why(reason)).inc();
    }

    pub(crate) fn count_panic(&self) {
        self.panics.inc();
    }

    pub(crate) fn count_request(&self, status: u16) {
        self.requests.get_or_create(&[("status", status)]).inc();
    }

    pub(crate) fn count_reload(&self, good: bool, generation: u64) {
        self.reloads.inc();
        if !good {
            self.reloads_failed.inc();
        }
        self.set_generation(generation);
    }

    pub(crate) fn set_generation(&self, generation: u64) {
        self.generation
            .set(i64::try_from(generation).unwrap_or(i64::MAX));
    }

    pub(crate) fn set_verdicts(&self, cache: DecisionCacheStatistics) {
        let set = |gauge: &Gauge, value: u64| gauge.set(i64::try_from(value).unwrap_or(i64::MAX));
        set(
            &self.verdicts_found,
            cache.identities_found + cache.refusals_found,
        );
        set(&self.verdicts_judged, cache.judged);
        set(
            &self.verdicts_kept,
            (cache.identities + cache.refusals) as u64,
        );
    }

    pub(crate) fn set_audit_lines_lost(&self, count: u64) {
        self.audit_lines_lost
            .set(i64::try_from(count).unwrap_or(i64::MAX));
    }

    pub(crate) fn set_access_lines_lost(&self, count: u64) {
        self.access_lines_lost
            .set(i64::try_from(count).unwrap_or(i64::MAX));
    }

    pub(crate) fn set_open(&self, connections: usize, handshakes: usize) {
        self.connections_open
            .set(i64::try_from(connections).unwrap_or(i64::MAX));
        self.handshakes_open
            .set(i64::try_from(handshakes).unwrap_or(i64::MAX));
    }

    /// Connections reset before their handshake for this reason, so far.
    pub fn refused(&self, reason: Refusal) -> u64 {
        self.refused.get_or_create(&why(reason)).get()
    }

    /// Handshakes with this outcome, so far.
    pub fn handshakes(&self, reason: HandshakeOutcome) -> u64 {
        self.handshakes.get_or_create(&why(reason)).get()
    }

    /// Identities refused for this cause, so far.
    pub fn identities_refused(&self, cause: RefusalCause) -> u64 {
        self.identities_refused.get_or_create(&why(cause)).get()
    }

    /// Connections that the service ended for this reason, so far.
    pub fn ended(&self, reason: ConnectionEnd) -> u64 {
        self.ended.get_or_create(&why(reason)).get()
    }

    /// Connections lost to a fault of the program, so far.
    pub fn panics(&self) -> u64 {
        self.panics.get()
    }

    /// All of them in the text format of Prometheus (OpenMetrics 1.0).
    pub fn text(&self) -> String {
        let mut text = String::new();
        // Writing into a string does not fail.
        let _ = encode(&mut text, &self.registry);
        text
    }
}
