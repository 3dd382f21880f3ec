//! Verdicts that are kept: what finds them again, when they end, and how many there are.

use std::sync::Arc;
use std::time::Duration;

use exoskel_identity::limits::{REFUSAL_SECONDS_MAX, VERDICT_SECONDS_MAX};
use exoskel_identity::{
    DecisionCache, DecisionCacheLimits, DecisionCacheStatistics, GridSettings, GridVerifier,
};
use rustls_pki_types::{CertificateDer, UnixTime};

use crate::manifest::VECTORS;

fn at(time: UnixTime, seconds: i64) -> UnixTime {
    let seconds = time.as_secs().checked_add_signed(seconds).unwrap();
    UnixTime::since_unix_epoch(Duration::from_secs(seconds))
}

fn cache() -> DecisionCache {
    DecisionCache::new(DecisionCacheLimits::default())
}

/// Found identities, found refusals, judged chains.
fn counts(cache: &DecisionCache) -> (u64, u64, u64) {
    let DecisionCacheStatistics {
        identities_found,
        refusals_found,
        judged,
        ..
    } = cache.statistics();
    (identities_found, refusals_found, judged)
}

#[test]
fn an_identity_is_found_again_with_all_that_was_said() {
    let vectors = &*VECTORS;
    let case = vectors.case("voms_two_vos");
    let (verifier, chain, cache) = (vectors.verifier(case), case.chain(), cache());
    let first = cache.judge(&verifier, &chain, vectors.now()).unwrap();
    let second = cache.judge(&verifier, &chain, vectors.now()).unwrap();
    assert!(first == second && first.fqans().count() == 4);
    assert_eq!(counts(&cache), (1, 0, 1));
    let statistics = cache.statistics();
    assert_eq!((statistics.identities, statistics.refusals), (1, 0));
    cache.clear();
    let statistics = cache.statistics();
    assert_eq!((statistics.identities, statistics.identity_bytes), (0, 0));
    assert!(cache.judge(&verifier, &chain, vectors.now()).is_ok());
    assert_eq!(counts(&cache), (1, 0, 2));
}

/// The same leaf below other certificates, or in another order, is another question.
#[test]
fn the_whole_chain_the_trust_and_the_settings_are_the_question() {
    let vectors = &*VECTORS;
    let case = vectors.case("voms");
    let (verifier, chain, cache) = (vectors.verifier(case), case.chain(), cache());
    let judge = |verifier: &GridVerifier, chain: &[CertificateDer<'_>]| {
        let before = cache.statistics().judged;
        let _ = cache.judge(verifier, chain, vectors.now());
        cache.statistics().judged - before
    };
    assert_eq!(judge(&verifier, &chain), 1);
    assert_eq!(judge(&verifier, &chain), 0);
    assert_eq!(judge(&verifier, &chain[..1]), 1);
    let twice: Vec<_> = chain.iter().chain(&chain).cloned().collect();
    assert_eq!(judge(&verifier, &twice), 1);
    // The same bytes, cut at another place.
    let joined = CertificateDer::from([chain[0].as_ref(), chain[1].as_ref()].concat());
    assert_eq!(judge(&verifier, &[joined]), 1);

    let reloaded = GridVerifier::new(Arc::new(case.load(2)), verifier.settings().clone()).unwrap();
    assert_eq!(judge(&reloaded, &chain), 1);
    let other = GridSettings {
        proxy_depth_max: 0,
        ..verifier.settings().as_ref().clone()
    };
    let other = GridVerifier::new(verifier.store().clone(), Arc::new(other)).unwrap();
    assert_eq!(judge(&other, &chain), 1);
    assert!(cache.judge(&other, &chain, vectors.now()).is_err());
    assert_eq!(judge(&verifier, &chain), 0);
}

#[test]
fn a_verdict_ends_with_the_identity_and_after_ten_minutes() {
    let vectors = &*VECTORS;
    let case = vectors.case("voms");
    let (verifier, chain, cache) = (vectors.verifier(case), case.chain(), cache());
    let judged_at = |now: UnixTime| {
        let before = cache.statistics().judged;
        let verdict = cache.judge(&verifier, &chain, now);
        (verdict.is_ok(), cache.statistics().judged - before)
    };
    let now = vectors.now();
    assert_eq!(judged_at(now), (true, 1));
    assert_eq!(judged_at(at(now, VERDICT_SECONDS_MAX as i64)), (true, 0));
    // What was judged later says nothing about earlier.
    assert_eq!(judged_at(at(now, -1)), (true, 1));
    assert_eq!(judged_at(at(now, VERDICT_SECONDS_MAX as i64)), (true, 1));

    let end = cache.judge(&verifier, &chain, now).unwrap().not_after();
    assert!(judged_at(at(end, -5)).0);
    assert_eq!(judged_at(end), (true, 0));
    let (is_as_good, judged) = judged_at(at(end, 1));
    assert_eq!(judged, 1);
    let later = cache.judge(&verifier, &chain, at(end, 1));
    assert!(!is_as_good || later.is_ok_and(|who| who.not_after() > end));
}

#[test]
fn a_refusal_is_kept_for_a_minute() {
    let vectors = &*VECTORS;
    let case = vectors.case("voms_of_a_revoked_user");
    let (verifier, chain, cache) = (vectors.verifier(case), case.chain(), cache());
    let now = vectors.now();
    let first = cache.judge(&verifier, &chain, now).unwrap_err();
    assert_eq!(
        cache.judge(&verifier, &chain, at(now, 1)).unwrap_err(),
        first
    );
    assert_eq!(counts(&cache), (0, 1, 1));
    let late = at(now, REFUSAL_SECONDS_MAX as i64 + 1);
    assert!(cache.judge(&verifier, &chain, late).is_err());
    assert_eq!(counts(&cache), (0, 1, 2));
}

/// Strangers can send any number of bad chains.
#[test]
fn refusals_are_bounded_and_displace_no_identity() {
    let vectors = &*VECTORS;
    let case = vectors.case("voms");
    let verifier = vectors.verifier(case);
    let cache = DecisionCache::new(DecisionCacheLimits {
        identities: 16,
        refusals: 32,
        ..DecisionCacheLimits::default()
    });
    assert!(cache.judge(&verifier, &case.chain(), vectors.now()).is_ok());
    for number in 0..2000_u32 {
        let garbage = CertificateDer::from(number.to_be_bytes().to_vec());
        assert!(cache.judge(&verifier, &[garbage], vectors.now()).is_err());
    }
    let statistics = cache.statistics();
    assert_eq!((statistics.identities, statistics.refusals), (1, 32));
    assert!(cache.judge(&verifier, &case.chain(), vectors.now()).is_ok());
    assert_eq!(counts(&cache), (1, 0, 2001));
}

/// Whoever has a certificate can present it in many ways, a stranger's certificate added here.
#[test]
fn identities_are_bounded_in_number_and_bytes() {
    let vectors = &*VECTORS;
    let accepted = vectors.cases().iter().filter(|case| case.expect.accepted);
    let questions: Vec<_> = accepted
        .map(|case| (vectors.verifier(case), case.chain()))
        .collect();
    let ask_all = |cache: &DecisionCache| {
        for (verifier, chain) in &questions {
            assert!(cache.judge(verifier, chain, vectors.now()).is_ok());
        }
        cache.statistics()
    };
    let by_number = ask_all(&DecisionCache::new(DecisionCacheLimits {
        identities: 16,
        ..DecisionCacheLimits::default()
    }));
    assert_eq!(by_number.identities, 16);
    let bytes = 16 * 8192;
    let by_bytes = ask_all(&DecisionCache::new(DecisionCacheLimits {
        identity_bytes: bytes,
        ..DecisionCacheLimits::default()
    }));
    assert!(
        by_bytes.identity_bytes <= bytes && by_bytes.identities >= 8,
        "{by_bytes:?}"
    );
    assert!(by_bytes.identities < questions.len());

    let off = DecisionCache::new(DecisionCacheLimits::OFF);
    let (nothing, again) = (ask_all(&off), ask_all(&off));
    assert_eq!((nothing.identities, nothing.refusals), (0, 0));
    assert_eq!(again.judged, 2 * questions.len() as u64);
}

#[test]
fn threads_share_one_cache() {
    let vectors = &*VECTORS;
    let questions: Vec<_> = vectors
        .cases()
        .iter()
        .map(|case| (vectors.verifier(case), case.chain()))
        .collect();
    let expected: Vec<_> = questions
        .iter()
        .map(|(verifier, chain)| verifier.judge(chain, vectors.now()))
        .collect();
    let cache = cache();
    std::thread::scope(|scope| {
        for start in 0..4 {
            let (questions, expected, cache, now) = (&questions, &expected, &cache, vectors.now());
            scope.spawn(move || {
                for step in 0..2 * questions.len() {
                    let index = (step + start * 37) % questions.len();
                    let (verifier, chain) = &questions[index];
                    assert!(
                        cache.judge(verifier, chain, now) == expected[index],
                        "{index}"
                    );
                }
            });
        }
    });
    let (identities_found, refusals_found, judged) = counts(&cache);
    let asked = 8 * questions.len() as u64;
    assert_eq!(identities_found + refusals_found + judged, asked);
    assert!(judged < asked / 2, "{judged} of {asked}");
}
