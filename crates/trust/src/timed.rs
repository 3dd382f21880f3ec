//! Trust directories that are read again once in an interval.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use exoskel_identity::{DecisionCacheLimits, GridSettings, PeerVerifier as _};

use crate::renewal::Renewal;
use crate::trust::{OpenTrustError, Trust, TrustDirectories};

/// A [`Trust`] whose directories are looked at once in an interval, by whichever clone is asked first.
#[derive(Clone, Debug)]
pub struct TimedTrust {
    trust: Arc<Trust>,
    interval: Duration,
    last: Arc<Mutex<LastLook>>,
}

#[derive(Debug)]
struct LastLook {
    at: Instant,
    /// What was found at fault since somebody last asked for it.
    unsaid: Vec<String>,
}

impl TimedTrust {
    /// Reads the directories for the first time.
    ///
    /// # Errors
    /// [`OpenTrustError`] says which one can't be used.
    pub fn open(directories: TrustDirectories, interval: Duration) -> Result<Self, OpenTrustError> {
        let cache = DecisionCacheLimits::default();
        let trust = Trust::open(directories, GridSettings::default(), cache)?;
        let last = LastLook {
            at: Instant::now(),
            unsaid: trust.faults(),
        };
        Ok(Self {
            trust,
            interval,
            last: Arc::new(Mutex::new(last)),
        })
    }

    /// Who judges by the newest state.
    pub fn trust(&self) -> &Arc<Trust> {
        &self.trust
    }

    /// Reads the directories again if the interval has passed. The faults are those that were found since the last time.
    pub fn reload(&self) -> Renewal {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let changed = self.look(&mut last);
        Renewal {
            changed,
            faults: std::mem::take(&mut last.unsaid),
            ..Renewal::default()
        }
    }

    /// Reads the directories again if the interval has passed, for somebody who can't say what is at fault. The next
    /// [`reload`](Self::reload) says it.
    pub fn refresh(&self) {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        self.look(&mut last);
    }

    /// Whether anything has changed.
    fn look(&self, last: &mut LastLook) -> bool {
        if last.at.elapsed() < self.interval {
            return false;
        }
        last.at = Instant::now();
        let Renewal {
            changed, faults, ..
        } = self.trust.reload();
        let new = faults.into_iter();
        let new: Vec<_> = new.filter(|fault| !last.unsaid.contains(fault)).collect();
        last.unsaid.extend(new);
        changed
    }

    /// Grows with each change, whoever noticed it.
    pub fn generation(&self) -> u64 {
        self.trust.generation()
    }
}
