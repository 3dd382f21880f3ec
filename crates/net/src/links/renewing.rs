//! Taking up a changed policy, credential or revocation list while links run: sessions of peers who are no longer good end, links that
//! rules are against end, and what is stricter now holds from the next record on.

use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use exoskel_link::handshake::NodeConfig;
use exoskel_link::{CloseReason, LinkId, Protection};
use exoskel_node::SessionId;
use exoskel_node::links::LinkError;

use super::troubles::TroubleSubject;
use super::{LinkNode, LinkShared, RunningSession, lock, own_certificate};
use crate::establish::judge_again;
use crate::sources::{NodeConfigError, NodeConfigRenewal, RENEWAL_TIME};

/// What a reload came to: what has changed, a phrase for each.
type ReloadOutcome = Result<Vec<String>, NodeConfigError>;

/// Who waits for a reload.
#[derive(Default)]
pub(super) struct Reloads {
    waiting: Mutex<Vec<SyncSender<ReloadOutcome>>>,
    /// Links that the last one has raised.
    raised: Mutex<Vec<RaisedLink>>,
    wake: tokio::sync::Notify,
}

/// Why a reload came to nothing.
#[derive(Debug, thiserror::Error)]
pub enum ReloadError {
    /// The files can't be used. What was in force before stays.
    #[error(transparent)]
    Files(#[from] NodeConfigError),
    /// The node is closed.
    #[error(transparent)]
    Link(#[from] LinkError),
}

/// How long a reload waits until peers have raised their direction of links as well.
const RAISE_TIME: Duration = Duration::from_secs(1);

/// Between two looks at whether they have.
const RAISE_LOOK: Duration = Duration::from_millis(5);

/// A link that is raised, and the least that it is to have in both directions.
type RaisedLink = (SessionId, LinkId, Protection);

/// A reload that somebody has asked for.
#[derive(Debug)]
pub struct PendingReload {
    is_relaxing: bool,
    /// Until the files have been read; nothing where there are none.
    answer: Option<Receiver<ReloadOutcome>>,
    changes: Vec<String>,
    /// Until when it is waited for peers.
    deadline: Option<Instant>,
}

impl LinkNode {
    /// Has policy, credential and revocation list read again now. What is stricter holds from the next record on, on links that are open;
    /// what is looser holds for sessions that begin from now on. With `relax`, all sessions begin anew whose links can go over to another
    /// one. [`LinkNode::wait_for_reload`] says what has changed.
    ///
    /// # Errors
    /// When the node is closed.
    pub fn begin_reload(&self, relax: bool) -> Result<PendingReload, LinkError> {
        self.shared.check_open()?;
        let answer = self.shared.can_reload.then(|| {
            let (sender, answer) = sync_channel(1);
            lock(&self.shared.reloads.waiting).push(sender);
            self.shared.reloads.wake.notify_one();
            answer
        });
        Ok(PendingReload {
            is_relaxing: relax,
            answer,
            changes: Vec::new(),
            deadline: None,
        })
    }

    /// Waits for a reload for so long at most. Gives what has changed, a phrase for each; nothing if it isn't done. It is when peers have
    /// raised their direction of links as well, or have taken a second for that.
    ///
    /// # Errors
    /// [`ReloadError`].
    pub fn wait_for_reload(
        &self,
        reload: &mut PendingReload,
        patience: Duration,
    ) -> Result<Option<Vec<String>>, ReloadError> {
        if let Some(answer) = &reload.answer {
            match answer.recv_timeout(patience) {
                Ok(reloaded) => reload.changes = reloaded?,
                Err(RecvTimeoutError::Timeout) => {
                    self.shared.check_open()?;
                    return Ok(None);
                }
                Err(RecvTimeoutError::Disconnected) => return Err(LinkError::Closed.into()),
            }
            reload.answer = None;
        }
        let deadline = *reload
            .deadline
            .get_or_insert_with(|| Instant::now() + RAISE_TIME);
        if !self.shared.are_raised() && Instant::now() < deadline {
            self.shared.wait_for_news(patience.min(RAISE_LOOK));
            return Ok(None);
        }
        if reload.is_relaxing {
            reload.changes.extend(self.shared.begin_anew());
        }
        Ok(Some(std::mem::take(&mut reload.changes)))
    }
}

/// Takes up new terms when there are any, or when somebody asks for them.
pub(super) async fn renew(shared: Arc<LinkShared>, mut renewal: NodeConfigRenewal) {
    loop {
        let is_asked = tokio::select! {
            () = tokio::time::sleep(RENEWAL_TIME) => false,
            () = shared.reloads.wake.notified() => true,
        };
        let read = if is_asked {
            Some(renewal.read_again())
        } else {
            renewal.renew()
        };
        let Some(read) = read else { continue };
        let reloaded = match read {
            Ok(terms) => {
                shared.is_well(&TroubleSubject::Files);
                let changes = shared.take_up(terms);
                changes
                    .iter()
                    .for_each(|change| shared.note(format!("took up a change: {change}")));
                Ok(changes)
            }
            Err(reason) => {
                let text =
                    format!("kept the credential, policy and revocation list of before: {reason}");
                shared.has_trouble(TroubleSubject::Files, text);
                Err(reason)
            }
        };
        // Of several who wait, the first one is told of the changes, and the others that there are no more.
        let mut waiting = std::mem::take(&mut *lock(&shared.reloads.waiting)).into_iter();
        if let Some(first) = waiting.next() {
            // Whoever has given up isn't told.
            let _ = first.send(reloaded);
        }
        if waiting.len() > 0 {
            lock(&shared.reloads.waiting).extend(waiting);
            shared.reloads.wake.notify_one();
        }
        if shared.is_over.load(Ordering::Relaxed) {
            return;
        }
    }
}

impl LinkShared {
    /// Has new terms hold from now on, and says what they change.
    fn take_up(self: &Arc<Self>, terms: NodeConfig) -> Vec<String> {
        let before = std::mem::replace(&mut *lock(&self.terms), terms.clone());
        if own_certificate::expiry_of(&terms).is_none() {
            self.is_well(&TroubleSubject::Certificate);
        }
        // Before the sessions are looked through: see `judge_late`.
        self.renewals.fetch_add(1, Ordering::SeqCst);
        let mut changes = terms.policy.changes_since(&before.policy);
        if terms.credential.chain() != before.credential.chain() {
            let name = &terms.credential.identity().name;
            changes.push(if *name == self.identity.name {
                "the credential has been renewed".to_owned()
            } else {
                format!(
                    "the credential is that of {name} now: startpoints of this node still name {}",
                    self.identity.name
                )
            });
        }
        let sessions: Vec<_> = lock(&self.sessions).values().cloned().collect();
        for live in sessions {
            if let Err(error) = judge_again(&terms, &live.record, &live.connection) {
                changes.push(format!(
                    "the session with {} ends: {error}",
                    live.record.peer.identity()
                ));
                let reason = CloseReason::NotAllowed(error.to_string().into());
                live.connection.abort(reason);
            }
        }
        let barred = lock(&self.machine).set_policy(terms.policy.clone());
        for link in barred {
            changes.push(format!("a link of {} ends: {}", link.peer, link.reason));
            self.end_links(vec![link.accepted], &link.reason);
        }
        changes.extend(self.raise_links(&terms));
        changes
    }

    /// Judges the peer of a session that has just come about, and stands in the table: its handshake began with the terms of then, and may
    /// have taken long.
    pub(super) fn judge_late(&self, live: &RunningSession) {
        if self.renewals.load(Ordering::SeqCst) == 0 {
            return;
        }
        let terms = lock(&self.terms).clone();
        if let Err(error) = judge_again(&terms, &live.record, &live.connection) {
            let peer = live.record.peer.identity();
            self.note_by(Some(peer), format!("the session with {peer} ends: {error}"));
            let reason = CloseReason::NotAllowed(error.to_string().into());
            live.connection.abort(reason);
        }
    }

    /// Has links go over to new sessions, in which what is looser now holds.
    fn begin_anew(&self) -> Vec<String> {
        let retiring = lock(&self.machine).begin_anew();
        let sessions: Vec<_> = lock(&self.sessions).values().cloned().collect();
        let running = sessions
            .iter()
            .filter(|live| !live.connection.with(|session| session.is_ending()));
        let line = |live: &Arc<RunningSession>| {
            let peer = live.record.peer.identity();
            if retiring.contains(&live.id) {
                live.connection.close(CloseReason::Finished);
                format!("the session with {peer} begins anew")
            } else {
                format!(
                    "the session with {peer} goes on as it is: one of its links would end with it"
                )
            }
        };
        running.map(line).collect()
    }

    /// Raises links that the policy wants stricter than they are.
    fn raise_links(self: &Arc<Self>, terms: &NodeConfig) -> Vec<String> {
        let links = lock(&self.machine).open_links();
        let (mut changes, mut all_raised) = (Vec::new(), Vec::new());
        for row in links {
            let Some(live) = self.live(row.session) else {
                continue;
            };
            let verdict = terms.link_verdict(&live.record, &row.endpoint);
            lock(&self.machine).policy_asks(row.session, row.link, verdict.protection);
            let raised = live.connection.with(|session| {
                let now = session.link_protection(row.link)?;
                if now >= verdict.protection {
                    return None;
                }
                // It may have ended by itself.
                session.raise_link(row.link, verdict.protection).ok()?;
                Some(now)
            });
            if let Some(now) = raised {
                live.connection.flush();
                all_raised.push((row.session, row.link, verdict.protection));
                let (peer, endpoint) = (live.record.peer.identity(), &row.endpoint);
                changes.push(format!(
                    "the link with {peer} to {endpoint} was {now} and is {verdict}"
                ));
            }
        }
        *lock(&self.reloads.raised) = all_raised;
        changes
    }

    /// Whether peers have raised their direction of all links that the last reload has raised. Those that have ended need nothing.
    fn are_raised(&self) -> bool {
        let raised = lock(&self.reloads.raised).clone();
        raised.into_iter().all(|(session, link, least)| {
            let now = self.live(session).and_then(|live| {
                live.connection
                    .with(|session| session.link_protection(link))
            });
            now.is_none_or(|now| now >= least)
        })
    }
}
