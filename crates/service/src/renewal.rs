//! What changes while the server runs: trust data and the host's certificate.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use exoskel_identity::{
    DecisionCacheStatistics, Expected, IdentityError, PeerVerifier, Role, VerifiedIdentity,
};
use exoskel_trust::{Renewal, Trust};
use rustls_pki_types::{CertificateDer, UnixTime};

use tokio::signal::unix::Signal;

use crate::audit::{Line, Verdict};
use crate::door::{CONNECT, Refused};
use crate::metrics::End;
use crate::server::{ServerHandle, Shared};

/// How often trust data is read again where nothing else is said.
pub const RENEWAL_INTERVAL: Duration = Duration::from_secs(60);

/// A verifier whose trust data can be read again while it judges.
pub trait Renewable: PeerVerifier {
    /// Reads the trust data again. Verdicts made meanwhile use the old data, those made afterwards the new. What can't
    /// be read keeps its last good state.
    ///
    /// It reads files and may take long: not for a thread that moves data.
    fn renew(&self) -> Renewal;

    /// Judges a client, whatever its role. An implementation may remember what it said before.
    ///
    /// # Errors
    /// As [`PeerVerifier::verify`].
    fn judge(
        &self,
        chain: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<VerifiedIdentity, IdentityError> {
        // Any role: what the client may do is for the rules and for the service behind to say.
        let anybody = Expected {
            roles: &Role::ALL,
            name: None,
        };
        self.verify(chain, now, &anybody)
    }

    /// What was remembered, for metrics; nothing where nothing is.
    fn statistics(&self) -> Option<DecisionCacheStatistics> {
        None
    }
}

impl Renewable for Trust {
    fn judge(
        &self,
        chain: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<VerifiedIdentity, IdentityError> {
        Self::judge(self, chain, now)
    }

    fn statistics(&self) -> Option<DecisionCacheStatistics> {
        Some(Self::statistics(self))
    }

    fn renew(&self) -> Renewal {
        self.reload()
    }
}

impl ServerHandle {
    /// Reads trust data and host certificate again, and ends the connections of those who are no longer good. No
    /// handshake fails for it: those under way finish with the data they began with.
    pub async fn renew(&self) -> Renewal {
        self.renew_by(renew).await
    }

    /// Reads rules and bans again if their files have changed; a running server does this twice in a second.
    pub async fn renew_rules(&self) -> Renewal {
        if self.shared().door.has_rules() {
            self.renew_by(renew_rules).await
        } else {
            Renewal::default()
        }
    }

    async fn renew_by(&self, work: fn(&Arc<Shared>) -> (Renewal, Vec<Ended>)) -> Renewal {
        let shared = self.shared().clone();
        let work = move || work(&shared);
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
                    self.shared().audit.reopen().await;
                }
            }
            for fault in self.renew().await.faults {
                tracing::warn!("the last good state is kept: {fault}");
            }
        }
    }

    async fn record(&self, ended: &[Ended]) {
        for one in ended {
            let now = self.shared().now();
            let line = Line::identified(
                &one.identity,
                one.address,
                now,
                CONNECT,
                Verdict::Refused,
                &one.reason,
            );
            self.shared().audit.record(&line).await;
        }
    }
}

/// A connection that was ended because its client is no longer good.
struct Ended {
    identity: VerifiedIdentity,
    address: std::net::SocketAddr,
    reason: String,
}

fn renew(shared: &Arc<Shared>) -> (Renewal, Vec<Ended>) {
    // One at a time: the interval and a signal may meet.
    let _one = shared.renewing();
    let mut renewal = shared.door.renew();
    if let Err(error) = shared.renew_host() {
        renewal.faults.push(error.to_string());
    }
    let metrics = shared.connections.metrics();
    metrics.count_reload(renewal.faults.is_empty(), shared.door.generation());
    let ended = apply(shared, &renewal);
    (renewal, ended)
}

fn renew_rules(shared: &Arc<Shared>) -> (Renewal, Vec<Ended>) {
    let _one = shared.renewing();
    let renewal = shared.door.renew_rules().unwrap_or_default();
    let ended = apply(shared, &renewal);
    (renewal, ended)
}

fn apply(shared: &Shared, renewal: &Renewal) -> Vec<Ended> {
    if !renewal.changed {
        return Vec::new();
    }
    shared.begin_epoch();
    judge_again(shared, shared.now())
}

/// Judges everybody who is connected again. A chain is judged once, however many connections show it.
fn judge_again(shared: &Shared, now: UnixTime) -> Vec<Ended> {
    let connected = shared.connections.identified();
    let mut verdicts = HashMap::new();
    let mut ended = Vec::new();
    for (connection, identity) in &connected {
        let verdict = verdicts
            .entry(identity.chain())
            .or_insert_with(|| shared.door.judge(identity.chain(), now));
        match still_good(identity, verdict) {
            Ok(again) => connection.confirm(again),
            Err(reason) => {
                shared.connections.end(connection, End::NoLongerGood);
                ended.push(Ended {
                    identity: identity.clone(),
                    address: connection.address(),
                    reason: format!("no longer good: {reason}"),
                });
            }
        }
    }
    ended
}

/// Whether a client may go on by a later verdict. Who is served by what was proven once, an attribute for example, is not
/// to be when it is proven no longer: they have to come again.
pub(crate) fn still_good<'a>(
    before: &VerifiedIdentity,
    again: &'a Result<VerifiedIdentity, Box<Refused>>,
) -> Result<&'a VerifiedIdentity, &'a str> {
    match again {
        Ok(again) if before.says_the_same_as(again) => Ok(again),
        Ok(_) => Err("other attributes count now than when the connection began"),
        Err(refused) => Err(&refused.reason),
    }
}
