//! Whatever happens in whatever order, the scheduler keeps its invariants and comes to an end.

#![expect(
    clippy::unwrap_used,
    reason = "the model around the scheduler is test code, outside of test functions too"
)]

mod model;

use std::time::Duration;

use exoskel_flow::*;
use model::{Tape, World};
use proptest::prelude::*;
use proptest::test_runner::TestRunner;

fn skeletons() -> impl Strategy<Value = Skeleton> {
    let leaf = (0u32..8).prop_map(|number| Skeleton::Seq(FunctionId(number)));
    let farmed = leaf.prop_recursive(3, 8, 3, |inner| {
        prop_oneof![
            inner
                .clone()
                .prop_map(|inner| Skeleton::Farm(Box::new(inner))),
            prop::collection::vec(inner, 1..4).prop_map(Skeleton::Pipeline),
        ]
    });
    // States go through the stages of a program's own pipeline.
    let carried = prop_oneof![
        Just(Skeleton::Stateful {
            function: FunctionId(0),
            initial: FunctionId(1),
        }),
        Just(Skeleton::Scan {
            operator: FunctionId(0),
            initial: None,
        }),
    ];
    let stages = prop_oneof![3 => farmed.clone(), 1 => carried];
    let pipeline = prop::collection::vec(stages, 1..4).prop_map(Skeleton::Pipeline);
    prop_oneof![farmed, pipeline]
}

fn configs() -> impl Strategy<Value = SchedulerConfig> {
    let frames = prop_oneof![Just(1u32), 2u32..6, Just(64u32)];
    (
        frames,
        1u32..200,
        1u64..100_000,
        prop_oneof![Just(4u64), Just(256)],
        1u32..4,
        prop_oneof![Just(0u32), Just(100), Just(300)],
    )
        .prop_map(
            |(frame_items_max, tickets_max, budget, grant_bytes_min, retries, stragglers)| {
                SchedulerConfig {
                    stragglers,
                    straggler_time: Duration::from_micros(500),
                    frame_items_max,
                    tickets_max,
                    result_budget_bytes: budget,
                    input_budget_bytes: budget,
                    frame_bytes_max: 2000,
                    grant_bytes: 256,
                    grant_bytes_min,
                    retries,
                    frame_time: Duration::from_micros(200),
                    window_time: Duration::from_millis(1),
                    recall_time: Duration::from_micros(100),
                    ..SchedulerConfig::default()
                }
            },
        )
}

/// How unkind the world is.
#[derive(Clone, Copy, Debug)]
struct Troubles {
    losses: bool,
    leaves: bool,
    cancels: bool,
    closes: bool,
    ordered: bool,
    poison: bool,
}

fn troubles() -> impl Strategy<Value = Troubles> {
    any::<[bool; 6]>().prop_map(
        |[losses, leaves, cancels, closes, ordered, poison]| Troubles {
            losses,
            leaves,
            cancels,
            closes,
            ordered,
            poison,
        },
    )
}

fn run(
    config: SchedulerConfig,
    skeletons: &[Skeleton],
    size_max: u32,
    troubles: Troubles,
    tape: Vec<u32>,
) -> u32 {
    let tape = &mut Tape(tape, 0);
    let mut world = World::new(config, size_max);
    let streams: Vec<StreamId> = skeletons
        .iter()
        .enumerate()
        .map(|(at, skeleton)| {
            world.open(
                skeleton,
                if at == 1 {
                    Tickets::Unbounded
                } else {
                    Tickets::Bounded
                },
            )
        })
        .collect();
    world.poison = troubles.poison.then_some(3);
    let mut open = streams;
    while !tape.is_over() {
        let stream = open.get(tape.below(open.len() as u32) as usize).copied();
        match (tape.below(40), stream) {
            (0, _) if world.slots() < 6 => world.add_slot(),
            (1, _) if troubles.losses => world.lose(tape.below(6), Departure::Lost),
            (2, _) if troubles.leaves => {
                let departures = [Departure::Orderly, Departure::Broken];
                world.lose(tape.below(6), departures[tape.below(2) as usize]);
            }
            (3, _) if troubles.leaves => world.drain(tape.below(6)),
            (4, Some(stream)) if troubles.cancels => {
                world.cancel(stream, u64::from(tape.below(60)))
            }
            (5, Some(stream)) if troubles.closes && tape.below(4) == 0 => {
                world.close(stream);
                open.retain(|other| *other != stream);
            }
            (6..12, Some(stream)) => {
                let count = tape.below(30);
                world.admit(stream, count, tape);
            }
            (16, Some(stream)) if tape.below(4) == 0 => world.end(stream),
            (12..16, Some(stream)) => {
                world.take(stream, troubles.ordered, tape);
            }
            (17, _) => world.now += Duration::from_millis(1),
            _ => {
                world.step(tape);
            }
        }
        world.act();
    }
    world.add_slot();
    // One must be enough.
    if troubles.ordered {
        world.add_slot();
    }
    world.finish(troubles.ordered, tape);
    if !troubles.losses && !troubles.poison {
        assert!(world.charges.is_empty());
    }
    world.copies
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    /// Aim: exactly one outcome each, serial stages alone, suspects alone, budgets kept, tickets back, no deadlock.
    /// Method: random programs and settings; a tape of random numbers picks what happens next, then all slots work
    /// and the user takes everything, which must empty the scheduler.
    #[test]
    fn every_item_has_one_outcome(
        config in configs(),
        skeletons in prop::collection::vec(skeletons(), 1..4),
        size_max in prop_oneof![Just(300u32), Just(50_000)],
        troubles in troubles(),
        tape in prop::collection::vec(any::<u32>(), 0..3000),
    ) {
        let _ = run(config, &skeletons, size_max, troubles, tape);
    }
}

/// Aim: the same where many items run at two slots. Method: short times after which they do, and programs of farms; of 2,000 runs, 500 second
/// copies at least.
#[test]
fn items_that_run_twice_have_one_outcome() {
    let settings = ProptestConfig {
        cases: 2000,
        failure_persistence: None,
        ..ProptestConfig::default()
    };
    let farm = || Skeleton::Farm(Box::new(Skeleton::Seq(FunctionId(0))));
    let programs = prop_oneof![
        Just(farm()),
        Just(Skeleton::Pipeline(vec![
            farm(),
            Skeleton::Seq(FunctionId(1)),
            farm()
        ])),
    ];
    let copies = std::cell::Cell::new(0);
    let cases = (
        configs(),
        prop::collection::vec(programs, 1..2),
        prop_oneof![Just(300u32), Just(50_000)],
        troubles(),
        prop::collection::vec(any::<u32>(), 2000..4000),
    );
    let outcome =
        TestRunner::new(settings).run(&cases, |(config, skeletons, size_max, troubles, tape)| {
            let config = SchedulerConfig {
                stragglers: 100,
                straggler_time: Duration::from_micros(100),
                tickets_max: config.tickets_max.min(6),
                ..config
            };
            copies.set(copies.get() + run(config, &skeletons, size_max, troubles, tape));
            Ok(())
        });
    outcome.unwrap();
    assert!(copies.get() > 500, "{}", copies.get());
}
