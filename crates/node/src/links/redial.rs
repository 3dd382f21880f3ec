//! Who is dialled, and dialled again after a session was lost.

use std::collections::BTreeMap;
use std::time::Duration;

use super::{PeerProcess, Want, WantedProcess};

/// Before the second attempt to reach a process again.
const PAUSE_MIN: Duration = Duration::from_millis(50);

/// Between two attempts, after many.
const PAUSE_MAX: Duration = Duration::from_secs(5);

/// How long a session has to last before losing it is no part of the same trouble.
const CALM: Duration = Duration::from_secs(10);

/// A process to which there is no session any more, and links that wait for one; or was none a short while ago.
struct Redial {
    hints: Vec<String>,
    at: Duration,
    pause: Duration,
    /// Whether links wait.
    is_missed: bool,
    /// What the last attempts came to.
    attempts: Vec<String>,
}

impl Redial {
    /// Whether it works again, and has for a while.
    fn is_calm(&self, now: Duration) -> bool {
        !self.is_missed && self.at + CALM <= now
    }
}

/// Somebody who is being dialled.
struct BeingDialled {
    hints: Vec<String>,
    /// The hint that is tried just now.
    at: Option<String>,
    /// What the ones before it came to.
    failed: Vec<String>,
}

#[derive(Default)]
pub(super) struct Dialling {
    now: BTreeMap<WantedProcess, BeingDialled>,
    again: BTreeMap<PeerProcess, Redial>,
}

impl Dialling {
    /// Whether somebody is dialled who may be that process.
    pub(super) fn is_dialled(&self, wanted: &WantedProcess) -> bool {
        self.now.keys().any(|dialled| dialled.may_be(wanted))
    }

    pub(super) fn begin(&mut self, want: &Want) {
        let dialled = BeingDialled {
            hints: want.hints.clone(),
            at: None,
            failed: Vec::new(),
        };
        self.now.insert(want.peer.clone(), dialled);
    }

    /// A hint is tried now, after others have failed.
    pub(super) fn trying(&mut self, wanted: &WantedProcess, hint: &str, failed: Vec<String>) {
        if let Some(dialled) = self.now.get_mut(wanted) {
            dialled.at = Some(hint.to_owned());
            dialled.failed = failed;
        }
    }

    /// The hint at which a process is dialled just now.
    pub(super) fn tried_now(&self, wanted: &WantedProcess) -> Option<&str> {
        self.dialled(wanted)?.at.as_deref()
    }

    fn dialled(&self, wanted: &WantedProcess) -> Option<&BeingDialled> {
        let mut now = self.now.iter();
        let (_, dialled) = now.find(|(dialled, _)| dialled.may_be(wanted))?;
        Some(dialled)
    }

    /// Whether there is a hint by which links that have lost their session can find it again.
    pub(super) fn can_dial(&self, wanted: &WantedProcess) -> bool {
        let mut again = self.again.iter();
        again.any(|(peer, known)| wanted.is(peer) && !known.hints.is_empty())
    }

    /// This process has been dialled. Gives the hints by which it was.
    pub(super) fn met(&mut self, peer: &PeerProcess) -> Vec<String> {
        let mut hints = Vec::new();
        self.now.retain(|wanted, known| {
            let is_met = wanted.is(peer);
            if is_met {
                hints = std::mem::take(&mut known.hints);
            }
            !is_met
        });
        hints
    }

    /// It could not be reached.
    pub(super) fn end(&mut self, wanted: &WantedProcess) {
        self.now.remove(wanted);
    }

    /// Links have lost their session to this process.
    pub(super) fn lost(&mut self, peer: &PeerProcess, hints: Vec<String>, now: Duration) {
        // Nobody can dial who has dialled us and said no address.
        if hints.is_empty() && !self.again.contains_key(peer) {
            return;
        }
        let known = self.again.entry(peer.clone()).or_insert(Redial {
            hints: Vec::new(),
            at: now,
            pause: Duration::ZERO,
            is_missed: true,
            attempts: Vec::new(),
        });
        if !hints.is_empty() {
            known.hints = hints;
        }
        if known.is_calm(now) {
            known.pause = Duration::ZERO;
        }
        known.is_missed = true;
        known.at = now + known.pause;
        known.pause = (2 * known.pause).clamp(PAUSE_MIN, PAUSE_MAX);
    }

    /// It could not be reached. Links that have lost it dial again later. Says whether some have, and the attempts came to something else
    /// than the ones before.
    pub(super) fn failed(
        &mut self,
        wanted: &WantedProcess,
        attempts: &[String],
        now: Duration,
    ) -> bool {
        let mut is_news = false;
        let again = self.again.iter_mut();
        let of_wanted = |peer: &PeerProcess, known: &Redial| {
            known.is_missed && WantedProcess::from(peer) == *wanted
        };
        for (_, known) in again.filter(|(peer, known)| of_wanted(peer, known)) {
            known.at = now + known.pause;
            known.pause = (2 * known.pause).clamp(PAUSE_MIN, PAUSE_MAX);
            is_news |= known.attempts != attempts;
            known.attempts = attempts.to_vec();
        }
        is_news
    }

    /// Dials at once whoever links have lost.
    pub(super) fn hurry(&mut self, now: Duration) {
        for known in self.again.values_mut().filter(|known| known.is_missed) {
            known.at = known.at.min(now);
        }
    }

    /// Links work again. A peer that ends the next session at once isn't dialled at once. Says whether it was missed.
    pub(super) fn found(&mut self, peer: &PeerProcess) -> bool {
        let Some(known) = self.again.get_mut(peer) else {
            return false;
        };
        known.attempts.clear();
        std::mem::replace(&mut known.is_missed, false)
    }

    /// A session has brought something: it was worth its dial, and losing it is a network's doing rather than the peer's.
    pub(super) fn worked(&mut self, peer: &PeerProcess) {
        if !self.again.is_empty()
            && let Some(known) = self.again.get_mut(peer).filter(|known| !known.is_missed)
        {
            known.pause = known.pause.min(PAUSE_MIN);
        }
    }

    /// Nobody waits any more.
    pub(super) fn forget(&mut self, peer: &PeerProcess) {
        self.again.remove(peer);
    }

    pub(super) fn retain(&mut self, now: Duration, is_missed: impl Fn(&PeerProcess) -> bool) {
        self.again
            .retain(|peer, known| is_missed(peer) || !known.is_missed && !known.is_calm(now));
    }

    /// What the last attempts to reach a process came to: those of the round that goes on, if there are some.
    pub(super) fn attempts(&self, wanted: &WantedProcess) -> &[String] {
        let dialled = self.dialled(wanted);
        if let Some(dialled) = dialled.filter(|dialled| !dialled.failed.is_empty()) {
            return &dialled.failed;
        }
        let mut again = self.again.iter().filter(|(peer, _)| wanted.is(peer));
        again.next().map_or(&[], |(_, known)| &known.attempts)
    }

    /// Processes that are to be dialled again by now.
    pub(super) fn due(&self, now: Duration) -> Vec<Want> {
        let due = self.again.iter().filter(|(peer, known)| {
            known.is_missed
                && known.at <= now
                && !known.hints.is_empty()
                && !self.is_dialled(&(*peer).into())
        });
        let want = |(peer, known): (&PeerProcess, &Redial)| Want {
            peer: peer.into(),
            hints: known.hints.clone(),
        };
        due.map(want).collect()
    }

    /// When the next of these is due to which `is_missing` says there is no session.
    pub(super) fn next(&self, is_missing: impl Fn(&PeerProcess) -> bool) -> Option<Duration> {
        let missing = self.again.iter().filter(|(peer, known)| {
            let is_dialled = self.is_dialled(&(*peer).into());
            known.is_missed && !known.hints.is_empty() && !is_dialled && is_missing(peer)
        });
        missing.map(|(_, known)| known.at).min()
    }
}
