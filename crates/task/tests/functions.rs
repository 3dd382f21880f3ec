//! What slots are sent of functions: each once, as long as the slot keeps it.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use exoskel_flow::{FunctionId, SchedulerConfig, Skeleton, Tickets};
use exoskel_task::Router;
use exoskel_task::message::{Call, ReceivedMessage, ToManager, ToSlot};
use exoskel_task::outcome::Origin;
use exoskel_task::payload::{BatchBuilder, Format};
use exoskel_task::router::{Effect, Function, StreamPlan};

const SLOT: u32 = 3;
const NOW: Duration = Duration::ZERO;
const FUNCTION_BYTES: usize = 1000;

fn site() -> Router {
    let origin = Origin {
        worker: "worker".to_owned(),
        format: Format::Pickle,
    };
    // Room for two functions.
    let bytes_max = 2 * FUNCTION_BYTES as u64;
    let mut router = Router::new(SchedulerConfig::default(), 1 << 20, bytes_max);
    router
        .add_slot(SLOT, Arc::new(origin), u64::MAX, NOW)
        .unwrap();
    router
}

/// Opens a stream with one item for this function, and says what the slot is told of functions.
fn run(router: &mut Router, stream: u64, function: u8) -> Vec<String> {
    let plan = StreamPlan {
        skeleton: Skeleton::Farm(Box::new(Skeleton::Seq(FunctionId(0)))),
        functions: vec![Function {
            digest: [function; 32],
            pickle: Bytes::from(vec![function; FUNCTION_BYTES]),
        }],
        call: Call::Item,
        tickets: Tickets::Unbounded,
        timeout: None,
        retries_on: None,
        tells_ends: false,
    };
    router.open(stream, plan, NOW).unwrap();
    let mut builder = BatchBuilder::default();
    builder.push(Format::Pickle, &[function], &[], Vec::new());
    router.admit(stream, builder.take(Origin::user()), NOW);
    told(router, true)
}

/// What the slot is told of functions, while it answers for its items or keeps them.
fn told(router: &mut Router, answers: bool) -> Vec<String> {
    let mut told = Vec::new();
    while let Some(effect) = router.poll_effect(NOW) {
        let Effect::Send {
            endpoint, message, ..
        } = effect
        else {
            continue;
        };
        match ToSlot::decode(endpoint, message.handler, message.head).unwrap() {
            ToSlot::Function { digest, .. } => told.push(format!("function {}", digest[0])),
            ToSlot::Discard { digest } => told.push(format!("discard {}", digest[0])),
            ToSlot::Define { segments, .. } => {
                let digest = segments[0].functions[0];
                told.push(format!("define {}", digest[0]));
            }
            ToSlot::Execute(execute) if answers => {
                let (handler, head) = ToManager::Results {
                    frame: execute.frame,
                    first: execute.first,
                    reached: execute.to + 1,
                    count: execute.count,
                    busy: 0,
                    records: execute.records,
                }
                .encode();
                let bulk = Vec::new();
                let message = ReceivedMessage {
                    handler,
                    head,
                    bulk,
                };
                router.receive(SLOT, message, NOW).unwrap();
            }
            _ => {}
        }
    }
    told
}

/// Aim: a function travels once, goes when others need its room and no stream uses it, and comes again when it is needed again.
#[test]
fn functions_that_no_stream_uses_make_room() {
    let mut router = site();
    assert_eq!(run(&mut router, 0, 10), ["function 10", "define 10"]);
    router.close(0, NOW);
    assert_eq!(run(&mut router, 1, 10), ["define 10"], "the slot kept it");
    assert_eq!(run(&mut router, 2, 20), ["function 20", "define 20"]);
    router.close(2, NOW);
    assert_eq!(
        run(&mut router, 3, 30),
        ["discard 20", "function 30", "define 30"],
        "a stream uses 10"
    );
    assert_eq!(
        run(&mut router, 4, 40),
        ["function 40", "define 40"],
        "streams use all"
    );
    for stream in [1, 3, 4] {
        router.close(stream, NOW);
    }
    assert_eq!(
        run(&mut router, 5, 20),
        ["discard 10", "discard 30", "function 20", "define 20"]
    );
}

/// Aim: items that wait can be told from others, and taken back all at once.
#[test]
fn what_waits_can_be_taken_back() {
    let mut router = site();
    run(&mut router, 0, 10);
    let mut builder = BatchBuilder::default();
    for _ in 1..100 {
        builder.push(Format::Pickle, &[0], &[], Vec::new());
    }
    router.admit(0, builder.take(Origin::user()), NOW);
    told(&mut router, false);
    let is_waiting = |router: &Router| -> Vec<u64> {
        (0..110)
            .filter(|item| router.is_waiting(0, *item))
            .collect()
    };
    let waiting = is_waiting(&router);
    assert_eq!(waiting.len() as u64, router.waiting(0));
    // Those at the slot come first; nothing beyond the last one waits.
    assert_eq!(waiting.last(), Some(&99));
    assert!((50..99).contains(&waiting.len()), "{waiting:?}");
    assert_eq!(router.cancel_waiting(0, NOW), waiting);
    assert!(is_waiting(&router).is_empty());
    assert!(router.cancel_waiting(0, NOW).is_empty());
    assert!(router.cancel_waiting(1, NOW).is_empty());
}

/// Aim: the first state of a program travels with the items that need it, protected as they are, and never as a function.
#[test]
fn a_first_state_is_no_function() {
    let mut router = site();
    let plan = StreamPlan {
        skeleton: Skeleton::Stateful {
            function: FunctionId(1),
            initial: FunctionId(0),
        },
        functions: [10, 20]
            .map(|number| Function {
                digest: [number; 32],
                pickle: Bytes::from(vec![number; 10]),
            })
            .to_vec(),
        call: Call::Item,
        tickets: Tickets::Bounded,
        timeout: None,
        retries_on: None,
        tells_ends: false,
    };
    router.open(0, plan, NOW).unwrap();
    let mut builder = BatchBuilder::default();
    builder.push(Format::Pickle, &[7], &[], Vec::new());
    router.admit(0, builder.take(Origin::user()), NOW);
    assert_eq!(told(&mut router, false), ["function 20", "define 20"]);
}
