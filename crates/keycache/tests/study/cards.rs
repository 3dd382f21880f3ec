//! Several ranks behind one card: what they share, what stays on their node, and what can't be.

use std::slice::from_ref;
use std::sync::Arc;

use exoskel_keycache::{KeySource, KeycacheError, Level, Parameters, ReplayProgram, Study};

use super::workload::{after, bare, program, receive, run, send};

/// Ranks 0 and 1 send a packet each: to 2 and 3.
fn two_to_two() -> Arc<ReplayProgram> {
    program(vec![
        vec![send(2, 256)],
        vec![send(3, 256)],
        vec![receive(0, 256)],
        vec![receive(1, 256)],
    ])
}

fn sharing(nodes: u32, ranks_per_card: u32) -> Parameters {
    Parameters {
        ranks_per_card,
        ..bare(nodes)
    }
}

#[test]
fn ranks_of_a_card_share_its_link() {
    let job = two_to_two();
    for level in [Level::Packet, Level::Message] {
        let apart = Parameters {
            level,
            ..sharing(4, 1)
        };
        let together = Parameters {
            level,
            ..sharing(2, 2)
        };
        assert_eq!(run(&apart, from_ref(&job)).completion_ps, 256_000);
        assert_eq!(run(&together, from_ref(&job)).completion_ps, 512_000);
    }
}

/// A key is that of a pair of ranks, also where both pairs are of the same two cards.
#[test]
fn each_pair_of_ranks_has_a_key() {
    let parameters = Parameters {
        keys: KeySource::Cache,
        cache_entries: 2,
        ..sharing(2, 2)
    };
    let outcome = run(&parameters, &[two_to_two()]);
    assert_eq!((outcome.lookups, outcome.misses), (4, 4));
    let two_jobs = run(&parameters, &[two_to_two(), two_to_two()]);
    assert_eq!((two_jobs.lookups, two_jobs.misses), (8, 8));
    let again = program(vec![
        vec![send(2, 256), after(2_000, send(2, 256))],
        vec![after(1_000, send(3, 256)), after(2_000, send(3, 256))],
        vec![receive(0, 256), receive(0, 256)],
        vec![receive(1, 256), receive(1, 256)],
    ]);
    let outcome = run(&parameters, from_ref(&again));
    assert_eq!((outcome.lookups, outcome.misses), (8, 4), "room for both");
    let narrow = Parameters {
        cache_entries: 1,
        ..parameters
    };
    assert_eq!(
        run(&narrow, &[again]).misses,
        8,
        "they drive each other out"
    );
}

#[test]
fn messages_on_a_node_take_no_time_and_no_key() {
    let parameters = Parameters {
        keys: KeySource::Memory,
        ..sharing(1, 4)
    };
    let outcome = run(&parameters, &[two_to_two()]);
    assert!(outcome.finished);
    assert_eq!((outcome.messages, outcome.payload_bytes), (2, 512));
    assert_eq!((outcome.packets, outcome.lookups), (0, 0));
    assert_eq!(outcome.completion_ps, 0);
}

#[test]
fn sizes_that_do_not_fit_are_refused_in_words() {
    let refused = |parameters: Parameters| {
        let error = Study::new(parameters, vec![two_to_two()]).unwrap_err();
        (error.to_string(), error)
    };
    let (text, error) = refused(sharing(4, 3));
    assert!(matches!(
        error,
        KeycacheError::RanksPerCard { ranks: 4, .. }
    ));
    assert_eq!(
        text,
        "got ranks_per_card = 3, expected a divisor of 4, the number of ranks of trace test"
    );
    let (text, error) = refused(sharing(1, 2));
    assert!(matches!(error, KeycacheError::MoreRanksThanNodes { .. }));
    assert!(text.contains("nodes = 1 and ranks_per_card = 2"), "{text}");
    assert!(text.contains("more than 2"), "{text}");
    let (text, _) = refused(sharing(1, 0));
    assert_eq!(text, "got ranks_per_card = 0, expected 1 ..= 4096");
    let (text, _) = refused(sharing(16, 1_024));
    assert!(text.contains("at most 256 with 16 nodes"), "{text}");
    let (text, _) = refused(sharing(1, u32::MAX));
    assert!(text.contains("expected 1 ..= 4096"), "{text}");
}
