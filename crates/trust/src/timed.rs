//! Trust directories that are read again once in an interval.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use exoskel_identity::{DecisionCacheLimits, GridSettings, PeerVerifier as _};

use crate::renewal::Renewal;
use crate::trust::{OpenError, Trust, TrustDirectories};

/// A [`Trust`] whose directories are looked at once in an interval, by whichever clone is asked first.
#[derive(Clone, Debug)]
pub struct TimedTrust {
    trust: Arc<Trust>,
    interval: Duration,
    looked: Arc<Mutex<Instant>>,
}

impl TimedTrust {
    /// Reads the directories for the first time.
    ///
    /// # Errors
    /// [`OpenError`] says which one can't be used.
    pub fn open(directories: TrustDirectories, interval: Duration) -> Result<Self, OpenError> {
        let cache = DecisionCacheLimits::default();
        Ok(Self {
            trust: Trust::open(directories, GridSettings::default(), cache)?,
            interval,
            looked: Arc::new(Mutex::new(Instant::now())),
        })
    }

    /// Who judges by the newest state.
    pub fn trust(&self) -> &Arc<Trust> {
        &self.trust
    }

    /// Reads the directories again if the interval has passed; nothing is new otherwise.
    pub fn reload(&self) -> Renewal {
        let mut looked = self.looked.lock().unwrap_or_else(PoisonError::into_inner);
        if looked.elapsed() < self.interval {
            return Renewal::default();
        }
        *looked = Instant::now();
        self.trust.reload()
    }

    /// Grows with each change, whoever noticed it.
    pub fn generation(&self) -> u64 {
        self.trust.generation()
    }
}
