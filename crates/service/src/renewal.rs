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
use crate::metrics::ConnectionEnd;
use crate::server_state::ServerState;

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
                changed: false,
                faults: vec![format!("reading trust data again failed: {error}")],
            },
        }
    }

    /// Renews at every interval, and at every `asked` signal, which also reopens the audit file, until the server stops.
    pub async fn keep_current(&self, interval: Duration, mut asked: Signal) {
        let mut ticks = tokio::time::interval(interval);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        // The first tick is due at once, and the data has just been read.
        ticks.tick().await;
        loop {
            tokio::select! {
                biased;
                () = self.stopping() => return,
                _ = ticks.tick() => {}
                _ = asked.recv() => {
                    self.state().audit.reopen().await;
                }
            }
            for fault in self.renew().await.faults {
                tracing::warn!("the last good state is kept: {fault}");
            }
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

/// A connection that was ended because its client is no longer good.
struct EndedConnection {
    identity: VerifiedIdentity,
    address: std::net::SocketAddr,
    reason: String,
}

fn renew(state: &Arc<ServerState>) -> (Renewal, Vec<EndedConnection>) {
    // One at a time: the interval and a signal may meet.
    let _one = state.renewing();
    let mut renewal = state.admission.renew();
    if let Err(error) = state.renew_host() {
        renewal.faults.push(error.to_string());
    }
    let metrics = state.connections.metrics();
    metrics.count_reload(renewal.faults.is_empty(), state.admission.generation());
    let ended = apply(state, &renewal);
    (renewal, ended)
}

fn renew_rules(state: &Arc<ServerState>) -> (Renewal, Vec<EndedConnection>) {
    let _one = state.renewing();
    let renewal = state.admission.renew_rules().unwrap_or_default();
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
