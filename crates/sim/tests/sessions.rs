//! Two sessions through a simulated network, with a fixed list of seeds.

use std::time::Duration;

use exoskel_link::{Protection, Protections, SessionError};
use exoskel_sim::{Conversation, ConversationReport, LinkModel, WireFault};

const SEEDS: [u64; 4] = [1, 2, 3, 5];

const TRUSTED: Protections = Protections {
    control: Protection::Integrity,
    code: Protection::Integrity,
    data: Protection::Plain,
};

/// Plays it twice: a conversation decides everything.
#[track_caller]
fn run(conversation: &Conversation) -> ConversationReport {
    let report = conversation
        .run()
        .unwrap_or_else(|violation| panic!("{violation}\n{conversation:#?}"));
    assert_eq!(
        conversation.run().as_ref(),
        Ok(&report),
        "two runs differ, seed {}",
        conversation.seed
    );
    report
}

#[test]
fn everything_arrives_in_order() {
    for seed in SEEDS {
        for protections in [TRUSTED, Protections::default()] {
            for (messages, bytes_max) in [(400, 60), (60, 20_000), (4, 700_000)] {
                let report = run(&Conversation::new(seed, messages, bytes_max, protections));
                assert_eq!(report.received, [messages; 2]);
                assert_eq!(report.ends, [Ok(()), Ok(())]);
            }
        }
    }
}

/// Aim: a slow reader and a far wire hold nothing up for ever.
#[test]
fn a_slow_reader_far_away() {
    for seed in SEEDS {
        let link = LinkModel {
            latency: Duration::from_millis(80),
            jitter: Duration::from_millis(30),
            bytes_per_second: 1 << 22,
        };
        let calm = Conversation::new(seed, 20, 300_000, Protections::default());
        let report = run(&Conversation {
            link,
            consume_time: Duration::from_millis(400),
            ..calm
        });
        assert_eq!(report.received, [20; 2]);
    }
}

/// Aim: wherever the connection ends, what arrived is what was sent, and no side takes the cut for an orderly end
/// before the other has said so. Method: a small conversation, and one more for each of its steps.
#[test]
fn a_cut_at_every_step() {
    for protections in [TRUSTED, Protections::default()] {
        let calm = Conversation::new(1, 8, 30_000, protections);
        for step in 0..run(&calm).steps {
            let report = run(&Conversation {
                fault: Some(WireFault::Cut(step)),
                ..calm.clone()
            });
            for (received, end) in report.received.iter().zip(&report.ends) {
                assert!(
                    *received == 8 || end.is_err(),
                    "step {step}: {received} messages and {end:?}"
                );
            }
        }
    }
}

/// Aim: a peer that is not heard is dead after the time that was set, not earlier and not much later.
#[test]
fn silence_is_noticed() {
    for seed in SEEDS {
        let calm = Conversation::new(seed, 30, 10_000, Protections::default());
        let report = run(&Conversation {
            fault: Some(WireFault::Silence(20)),
            ..calm.clone()
        });
        assert!(
            report
                .ends
                .iter()
                .all(|end| matches!(end, Err(SessionError::PeerDead(_)))),
            "{:?}",
            report.ends
        );
        assert!(
            report.ended_at > calm.dead_after && report.ended_at < calm.dead_after * 2,
            "{:?}",
            report.ended_at
        );
    }
}

/// Aim: one altered bit anywhere ends the session that reads it; no message is ever another than was sent (checked
/// inside). Method: everything is sealed, so each bit counts.
#[test]
fn an_altered_bit_at_every_step() {
    let calm = Conversation::new(1, 8, 10_000, Protections::default());
    let mut noticed = 0;
    let steps = run(&calm).steps;
    for step in 0..steps {
        let report = run(&Conversation {
            fault: Some(WireFault::Flip(step)),
            ..calm.clone()
        });
        noticed += u64::from(report.ends.iter().any(Result::is_err));
    }
    assert!(noticed > steps / 2, "{noticed} of {steps}");
}
