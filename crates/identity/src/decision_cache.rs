//! Verdicts about chains, kept for a while: a path with its lists costs several signature checks, and a job comes back
//! with the same proxy a thousand times.

use std::fmt;
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use aws_lc_rs::digest;
use lru::LruCache;
use rustls_pki_types::{CertificateDer, UnixTime};

use crate::error::IdentityError;
use crate::grid::GridVerifier;
use crate::limits::{REFUSAL_SECONDS_MAX, VERDICT_SECONDS_MAX};
use crate::verified::VerifiedIdentity;

/// Parts of a cache that are locked one by one, so that the cores of a busy server seldom meet.
const SHARDS: usize = 16;

/// What a kept identity takes besides its certificates, roughly.
const ENTRY_BYTES: usize = 2048;

/// How much a [`DecisionCache`] may keep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DecisionCacheLimits {
    /// Identities that were found good; 0 keeps none.
    pub identities: usize,
    /// Bytes that these take, roughly: whoever has one certificate can make any number of long chains with it.
    pub identity_bytes: usize,
    /// Refusals, which strangers can cause in any number and which therefore never displace an identity; 0 keeps none.
    pub refusals: usize,
}

impl Default for DecisionCacheLimits {
    fn default() -> Self {
        Self {
            identities: 8192,
            identity_bytes: 128 * 1024 * 1024,
            refusals: 1024,
        }
    }
}

impl DecisionCacheLimits {
    /// Keeps nothing: each chain is judged each time.
    pub const OFF: Self = Self {
        identities: 0,
        identity_bytes: 0,
        refusals: 0,
    };
}

/// Verdicts of [`GridVerifier`]s, by the whole presented chain, the trust (its generation and its files) and the settings.
///
/// An identity is kept until it ends, and [`VERDICT_SECONDS_MAX`] at most; a refusal [`REFUSAL_SECONDS_MAX`] at most. What was
/// judged by another trust or by other settings is never found, and what was used longest ago goes first.
/// It can be shared by any number of threads.
///
/// # Security
/// A verdict says nothing about whether the peer holds the leaf's key: that is proven in each handshake.
pub struct DecisionCache {
    shards: Box<[Mutex<Shard>]>,
    bytes_max: usize,
    identities_found: AtomicU64,
    refusals_found: AtomicU64,
    judged: AtomicU64,
}

type Key = [u8; 32];

struct Shard {
    identities: Option<LruCache<Key, CachedVerdict<VerifiedIdentity>>>,
    refusals: Option<LruCache<Key, CachedVerdict<IdentityError>>>,
    bytes: usize,
}

/// A verdict and the time for which it holds, both ends included.
struct CachedVerdict<V> {
    verdict: V,
    from: UnixTime,
    until: UnixTime,
    bytes: usize,
}

impl<V> CachedVerdict<V> {
    fn holds(&self, now: UnixTime) -> bool {
        // A clock that was set back could be before what the verdict has looked at.
        (self.from..=self.until).contains(&now)
    }
}

/// What a [`DecisionCache`] did, and what it holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DecisionCacheStatistics {
    /// Identities that were found in the cache.
    pub identities_found: u64,
    /// Refusals that were found in the cache.
    pub refusals_found: u64,
    /// Chains that had to be judged.
    pub judged: u64,
    /// Identities it holds.
    pub identities: usize,
    /// Refusals it holds.
    pub refusals: usize,
    /// Bytes that the identities take, roughly.
    pub identity_bytes: usize,
}

impl DecisionCache {
    /// Makes an empty one.
    pub fn new(limits: DecisionCacheLimits) -> Self {
        let shard = || {
            Mutex::new(Shard {
                identities: lru(limits.identities),
                refusals: lru(limits.refusals),
                bytes: 0,
            })
        };
        Self {
            shards: std::iter::repeat_with(shard).take(SHARDS).collect(),
            bytes_max: limits.identity_bytes / SHARDS,
            identities_found: AtomicU64::new(0),
            refusals_found: AtomicU64::new(0),
            judged: AtomicU64::new(0),
        }
    }

    /// What [`GridVerifier::judge`] says, or what it said before about the same chain.
    ///
    /// No lock is held while a chain is judged, so that two threads that meet with the same new chain both judge it.
    ///
    /// # Errors
    /// As [`GridVerifier::judge`].
    pub fn judge(
        &self,
        verifier: &GridVerifier,
        chain: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<VerifiedIdentity, IdentityError> {
        let key = key(verifier, chain);
        if let Some(verdict) = self.find(&key, now) {
            return verdict;
        }
        self.judged.fetch_add(1, Ordering::Relaxed);
        let verdict = verifier.judge(chain, now);
        self.keep(key, &verdict, now);
        verdict
    }

    /// Forgets everything, as after a reload of the trust: older verdicts would never be found again.
    pub fn clear(&self) {
        for shard in &self.shards {
            let mut shard = lock(shard);
            if let Some(identities) = &mut shard.identities {
                identities.clear();
            }
            if let Some(refusals) = &mut shard.refusals {
                refusals.clear();
            }
            shard.bytes = 0;
        }
    }

    /// What it did since it was made, and what it holds now.
    pub fn statistics(&self) -> DecisionCacheStatistics {
        let mut statistics = DecisionCacheStatistics {
            identities_found: self.identities_found.load(Ordering::Relaxed),
            refusals_found: self.refusals_found.load(Ordering::Relaxed),
            judged: self.judged.load(Ordering::Relaxed),
            ..DecisionCacheStatistics::default()
        };
        for shard in &self.shards {
            let shard = lock(shard);
            statistics.identities += shard.identities.as_ref().map_or(0, LruCache::len);
            statistics.refusals += shard.refusals.as_ref().map_or(0, LruCache::len);
            statistics.identity_bytes += shard.bytes;
        }
        statistics
    }

    fn shard(&self, key: &Key) -> MutexGuard<'_, Shard> {
        lock(&self.shards[usize::from(key[0]) % SHARDS])
    }

    fn find(&self, key: &Key, now: UnixTime) -> Option<Result<VerifiedIdentity, IdentityError>> {
        let mut shard = self.shard(key);
        if let Some(entry) = shard.identities.as_mut().and_then(|kept| kept.get(key))
            && entry.holds(now)
        {
            self.identities_found.fetch_add(1, Ordering::Relaxed);
            return Some(Ok(entry.verdict.clone()));
        }
        if let Some(entry) = shard.refusals.as_mut().and_then(|kept| kept.get(key))
            && entry.holds(now)
        {
            self.refusals_found.fetch_add(1, Ordering::Relaxed);
            return Some(Err(entry.verdict.clone()));
        }
        None
    }

    fn keep(&self, key: Key, verdict: &Result<VerifiedIdentity, IdentityError>, now: UnixTime) {
        let mut shard = self.shard(&key);
        shard.forget(&key);
        match verdict {
            Ok(identity) => {
                let until = identity.not_after().min(after(now, VERDICT_SECONDS_MAX));
                let chain = identity.chain().iter().map(|certificate| certificate.len());
                let entry = CachedVerdict {
                    verdict: identity.clone(),
                    from: now,
                    until,
                    bytes: ENTRY_BYTES + chain.sum::<usize>(),
                };
                shard.keep_identity(key, entry, self.bytes_max);
            }
            Err(error) => {
                if let Some(refusals) = &mut shard.refusals {
                    let entry = CachedVerdict {
                        verdict: error.clone(),
                        from: now,
                        until: after(now, REFUSAL_SECONDS_MAX),
                        bytes: 0,
                    };
                    refusals.put(key, entry);
                }
            }
        }
    }
}

impl Shard {
    /// Removes what is known about a chain: a new verdict takes its place.
    fn forget(&mut self, key: &Key) {
        if let Some(old) = self.identities.as_mut().and_then(|kept| kept.pop(key)) {
            self.bytes -= old.bytes;
        }
        if let Some(refusals) = &mut self.refusals {
            refusals.pop(key);
        }
    }

    fn keep_identity(
        &mut self,
        key: Key,
        entry: CachedVerdict<VerifiedIdentity>,
        bytes_max: usize,
    ) {
        let Some(identities) = &mut self.identities else {
            return;
        };
        if entry.bytes > bytes_max {
            return;
        }
        self.bytes += entry.bytes;
        if let Some((_, displaced)) = identities.push(key, entry) {
            self.bytes -= displaced.bytes;
        }
        while self.bytes > bytes_max
            && let Some((_, oldest)) = identities.pop_lru()
        {
            self.bytes -= oldest.bytes;
        }
    }
}

impl fmt::Debug for DecisionCache {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.statistics().fmt(formatter)
    }
}

/// A shard's part of a limit, rounded up: a small limit keeps something in each.
fn lru<V>(limit: usize) -> Option<LruCache<Key, V>> {
    NonZeroUsize::new(limit.div_ceil(SHARDS)).map(LruCache::new)
}

/// Nothing that is done under the lock can leave a shard half changed.
fn lock(shard: &Mutex<Shard>) -> MutexGuard<'_, Shard> {
    shard.lock().unwrap_or_else(PoisonError::into_inner)
}

fn after(now: UnixTime, seconds: u64) -> UnixTime {
    let end = now.as_secs().saturating_add(seconds);
    UnixTime::since_unix_epoch(std::time::Duration::from_secs(end))
}

/// SHA-256 over everything that a verdict depends on but the time. Each part has its length before it, so that no two
/// chains are one sequence of bytes.
fn key(verifier: &GridVerifier, chain: &[CertificateDer<'_>]) -> Key {
    let mut context = digest::Context::new(&digest::SHA256);
    context.update(verifier.fingerprint());
    context.update(&(chain.len() as u64).to_be_bytes());
    for certificate in chain {
        context.update(&(certificate.len() as u64).to_be_bytes());
        context.update(certificate);
    }
    let mut key = [0; 32];
    key.copy_from_slice(context.finish().as_ref());
    key
}
