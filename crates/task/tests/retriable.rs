//! Answers for which items run again, as slots send them and as the user gets them.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use exoskel_flow::{FunctionId, SchedulerConfig, Skeleton, Tickets};
use exoskel_task::Router;
use exoskel_task::message::{Call, Execute, ReceivedMessage, ToManager, ToSlot};
use exoskel_task::outcome::{Contents, Origin};
use exoskel_task::payload::{BatchBuilder, Format, RecordReader, RecordWriter};
use exoskel_task::router::{Effect, Function, ReceiveError, StreamPlan};

const STREAM: u64 = 9;
const NOW: Duration = Duration::ZERO;

/// A manager with one slot and one item, which the slot has got.
struct Site {
    router: Router,
    execute: Execute,
}

impl Site {
    fn new(retries: u32, retries_on: Option<Function>, format: Format) -> Self {
        let config = SchedulerConfig {
            retries,
            ..SchedulerConfig::default()
        };
        let mut router = Router::new(config, 1 << 20, 1 << 20);
        let plan = StreamPlan {
            skeleton: Skeleton::Farm(Box::new(Skeleton::Seq(FunctionId(0)))),
            functions: vec![function(1)],
            call: Call::Item,
            tickets: Tickets::Bounded,
            timeout: None,
            retries_on,
            tells_ends: false,
        };
        router.open(STREAM, plan, NOW).unwrap();
        let origin = Origin {
            worker: "worker".to_owned(),
            format,
        };
        router.add_slot(0, Arc::new(origin), 1 << 20, NOW).unwrap();
        let mut batch = BatchBuilder::default();
        batch.push(Format::Pickle, b"the item", &[], Vec::new());
        router.admit(STREAM, batch.take(Origin::user()), NOW);
        let execute = executed(&mut router).unwrap();
        Self { router, execute }
    }

    /// The slot answers that this is what the item runs again for.
    fn raise(&mut self, is_exception: bool) -> Result<(), ReceiveError> {
        let mut writer = RecordWriter::default();
        writer.push(Format::Pickle, is_exception, b"the exception", &[], []);
        let (handler, head) = ToManager::Retriable {
            frame: self.execute.frame,
            first: 0,
            count: 1,
            busy: 0,
            records: writer.take().1,
        }
        .encode();
        let bulk = Vec::new();
        let message = ReceivedMessage {
            handler,
            head,
            bulk,
        };
        self.router.receive(0, message, NOW).map(|_| ())
    }

    /// What the item's outcome is, if it has one.
    fn outcome(&mut self) -> Option<Contents> {
        std::iter::from_fn(|| self.router.poll_effect(NOW)).find_map(|effect| match effect {
            Effect::Deliver { outcomes, .. } => Some(outcomes.contents),
            _ => None,
        })
    }
}

fn function(number: u8) -> Function {
    Function {
        digest: [number; 32],
        pickle: Bytes::from(vec![number]),
    }
}

/// The next frame that the slot gets.
fn executed(router: &mut Router) -> Option<Execute> {
    std::iter::from_fn(|| router.poll_effect(NOW)).find_map(|effect| {
        let Effect::Send {
            endpoint, message, ..
        } = effect
        else {
            return None;
        };
        match ToSlot::decode(endpoint, message.handler, message.head).unwrap() {
            ToSlot::Execute(execute) => Some(execute),
            _ => None,
        }
    })
}

#[test]
fn an_item_comes_again_with_its_input_until_it_has_run_often_enough() {
    let mut site = Site::new(2, Some(function(2)), Format::Pickle);
    site.raise(true).unwrap();
    site.execute = executed(&mut site.router).unwrap();
    let mut reader = RecordReader::new(site.execute.records.clone(), Vec::new());
    assert_eq!(reader.next_record().unwrap().unwrap().body, "the item");
    site.raise(true).unwrap();
    let Some(Contents::Exhausted {
        mut records,
        attempts,
        ..
    }) = site.outcome()
    else {
        panic!("it has run twice")
    };
    assert_eq!(attempts, 2);
    assert_eq!(
        records.next_record().unwrap().unwrap().body,
        "the exception"
    );
}

#[test]
fn nothing_runs_again_in_a_stream_that_does_not_ask_for_it() {
    let mut site = Site::new(3, None, Format::Pickle);
    site.raise(true).unwrap();
    assert!(matches!(site.outcome(), Some(Contents::Records(..))));
}

#[test]
fn a_value_is_no_reason_to_run_again() {
    let mut site = Site::new(3, Some(function(2)), Format::Pickle);
    assert_eq!(site.raise(false), Err(ReceiveError::NoException));
    assert!(site.outcome().is_none());
}

#[test]
fn a_pickle_that_must_be_data_is_refused_in_the_end() {
    let mut site = Site::new(2, Some(function(2)), Format::Data);
    site.raise(true).unwrap();
    site.execute = executed(&mut site.router).unwrap();
    site.raise(true).unwrap();
    assert!(matches!(site.outcome(), Some(Contents::Refused(_))));
}
