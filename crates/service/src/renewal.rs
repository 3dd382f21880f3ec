//! What changes while the server runs: trust data and the host's certificate.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use exoskel_identity::VerifiedIdentity;
use exoskel_trust::Renewal;
use rustls_pki_types::UnixTime;
use tokio::signal::unix::Signal;

use crate::admission::{CONNECT, still_good};
use crate::audit::{AuditLine, Verdict};
use crate::handle::ServerHandle;
use crate::limits::WARNINGS_LISTED_MAX;
use crate::metrics::ConnectionEnd;
use crate::server_state::{SaidWarnings, ServerState};

/// How often trust data is read again where nothing else is said.
pub const RENEWAL_INTERVAL: Duration = Duration::from_secs(60);

impl ServerHandle {
    /// Reads trust data and host certificate again, and ends the connections of those who are no longer good. No
    /// handshake fails for it: those under way finish with the data they began with.
    pub async fn renew(&self) -> Renewal {
        self.renew_by(renew).await
    }

    /// Reads rules and bans again if their files have changed; a running server does this twice in a second.
    pub async fn renew_rules(&self) -> Renewal {
        if self.state().admission.has_rules() {
            self.renew_by(renew_rules).await
        } else {
            Renewal::default()
        }
    }

    async fn renew_by(
        &self,
        work: fn(&Arc<ServerState>) -> (Renewal, Vec<EndedConnection>),
    ) -> Renewal {
        let state = self.state().clone();
        let work = move || work(&state);
        match tokio::task::spawn_blocking(work).await {
            Ok((renewal, ended)) => {
                self.record(&ended).await;
                renewal
            }
            Err(error) => Renewal {
                faults: vec![format!("reading trust data again failed: {error}")],
                ..Renewal::default()
            },
        }
    }

    /// Renews at every interval, and at every `asked` signal, which also reopens the audit file, until the server stops.
    pub async fn keep_current(&self, interval: Duration, mut asked: Signal) {
        let mut ticks = tokio::time::interval(interval);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        tell(&self.renew_by(look).await);
        // The first tick is due at once, and the data has just been read.
        ticks.tick().await;
        loop {
            let is_asked = tokio::select! {
                biased;
                () = self.stopping() => return,
                _ = ticks.tick() => false,
                _ = asked.recv() => {
                    self.state().audit.reopen().await;
                    self.state().access_log.reopen();
                    true
                }
            };
            let work = if is_asked { renew_and_repeat } else { renew };
            let renewal = self.renew_by(work).await;
            if is_asked && renewal.changes.is_empty() && renewal.faults.is_empty() {
                tracing::info!(
                    "reloaded: nothing has changed in trust, rules and host certificate"
                );
            }
            tell(&renewal);
        }
    }

    async fn record(&self, ended: &[EndedConnection]) {
        for one in ended {
            let now = self.state().now();
            let line = AuditLine::identified(
                &one.identity,
                one.address,
                now,
                CONNECT,
                Verdict::Refused,
                &one.reason,
            );
            self.state().audit.record(&line).await;
        }
    }
}

/// Says what a renewal brought.
pub(crate) fn tell(renewal: &Renewal) {
    for change in &renewal.changes {
        tracing::info!("reloaded: {change}");
    }
    for fault in &renewal.faults {
        tracing::error!("{fault}");
    }
    for warning in &renewal.warnings {
        tracing::warn!("{warning}");
    }
}

/// Says what is to be warned of and was not when it was last looked for, or all of it for somebody who `asks`, and which authorities'
/// people are no longer refused.
fn warn(state: &ServerState, said: &mut SaidWarnings, renewal: &mut Renewal, asks: bool) {
    let now = state.now();
    let found = SaidWarnings {
        lists: state.admission.list_faults(now),
        others: state
            .host_warning(now)
            .into_iter()
            .chain(state.admission.warnings_of_rules())
            .collect(),
    };
    let counts = |authority: &str| {
        let lists = state.admission.revocation_lists();
        let mut of_it = lists.iter().filter(|list| list.authority == authority);
        of_it.any(|list| list.next_update >= now)
    };
    for over in &said.lists {
        let authority = &over.authority;
        if !found.lists.iter().any(|one| one.authority == *authority) && counts(authority) {
            let text =
                format!("users of {authority} are accepted again: its revocation list counts");
            renewal.changes.push(text);
        }
    }
    let lists = found.lists.iter();
    let lists = lists.filter(|fault| asks || !said.lists.contains(fault));
    let others = found.others.iter();
    let others = others.filter(|warning| asks || !said.others.contains(warning));
    let mut new: Vec<String> = lists
        .map(ToString::to_string)
        .chain(others.cloned())
        .collect();
    *said = found;
    let more = new.len().saturating_sub(WARNINGS_LISTED_MAX);
    if more > 0 {
        new.truncate(WARNINGS_LISTED_MAX);
        new.push(format!(
            "{more} other warnings like these: run exoskel front --check"
        ));
    }
    renewal.warnings = new;
}

/// A connection that was ended because its client is no longer good.
struct EndedConnection {
    identity: VerifiedIdentity,
    address: std::net::SocketAddr,
    reason: String,
}

fn renew(state: &Arc<ServerState>) -> (Renewal, Vec<EndedConnection>) {
    renew_for(state, false)
}

/// The same for somebody who wants to hear again what was said before.
fn renew_and_repeat(state: &Arc<ServerState>) -> (Renewal, Vec<EndedConnection>) {
    renew_for(state, true)
}

fn renew_for(state: &Arc<ServerState>, asks: bool) -> (Renewal, Vec<EndedConnection>) {
    // One at a time: the interval and a signal may meet.
    let mut said = state.renewing();
    let mut renewal = state.admission.renew();
    match state.renew_host() {
        Ok(change) => renewal.changes.extend(change),
        Err(error) => renewal
            .faults
            .push(format!("{error}; the one in use is kept")),
    }
    warn(state, &mut said, &mut renewal, asks);
    let metrics = state.connections.metrics();
    metrics.count_reload(renewal.faults.is_empty(), state.admission.generation());
    let ended = apply(state, &renewal);
    (renewal, ended)
}

/// Reads nothing, and says what is to be warned of.
fn look(state: &Arc<ServerState>) -> (Renewal, Vec<EndedConnection>) {
    let mut renewal = Renewal::default();
    warn(state, &mut state.renewing(), &mut renewal, false);
    (renewal, Vec::new())
}

fn renew_rules(state: &Arc<ServerState>) -> (Renewal, Vec<EndedConnection>) {
    let mut said = state.renewing();
    let mut renewal = state.admission.renew_rules().unwrap_or_default();
    if renewal.changed {
        warn(state, &mut said, &mut renewal, false);
    }
    let ended = apply(state, &renewal);
    (renewal, ended)
}

fn apply(state: &ServerState, renewal: &Renewal) -> Vec<EndedConnection> {
    if !renewal.changed {
        return Vec::new();
    }
    state.begin_epoch();
    judge_again(state, state.now())
}

/// Judges everybody who is connected again. A chain is judged once, however many connections show it.
fn judge_again(state: &ServerState, now: UnixTime) -> Vec<EndedConnection> {
    let connected = state.connections.identified();
    let mut verdicts = HashMap::new();
    let mut ended = Vec::new();
    for (connection, identity) in &connected {
        let verdict = verdicts
            .entry(identity.chain())
            .or_insert_with(|| state.admission.judge(identity.chain(), now));
        match still_good(identity, verdict) {
            Ok(again) => connection.confirm(again),
            Err(reason) => {
                state
                    .connections
                    .end(connection, ConnectionEnd::NoLongerGood);
                ended.push(EndedConnection {
                    identity: identity.clone(),
                    address: connection.address(),
                    reason: format!("no longer good: {reason}"),
                });
            }
        }
    }
    ended
}
