//! Sessions that are broken on the wire or by their peer: no item is blamed, and a worker that breaks all of its sessions is set
//! aside.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod crew;
mod wire;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use bytes::Bytes;
use exoskel_flow::{FunctionId, SchedulerConfig, Skeleton};
use exoskel_net::manager::{
    Function, ManagerConfig, ManagerNode, Notice, Recruiting, StreamHandle, StreamPlan, Tickets,
};
use exoskel_net::message::Call;
use exoskel_net::payload::{BatchBuilder, Format};
use exoskel_net::result_queue::{Contents, OutcomeOrder, Taken};

use crew::{Worker, nonsense};
use wire::Site;

/// No run of one item takes so long.
const RUN_TIME: Duration = Duration::from_secs(20);

/// A manager that wants one slot of these workers.
fn manager(site: &Site, workers: &[Worker]) -> ManagerNode {
    ManagerNode::start(ManagerConfig {
        at_end: || (),
        terms: site.manager(),
        renewal: None,
        observer: None,
        scheduler: SchedulerConfig::default(),
        recruiting: Recruiting {
            slots: 1,
            contract: None,
            local: None,
            hosts: workers.iter().map(Worker::line).collect(),
            listen: None,
            host_file: None,
            hearing: None,
            patience: Duration::from_secs(60),
        },
        setup_local: Bytes::new(),
        setup_remote: Bytes::new(),
        has_initializer: false,
        shared: Arc::default(),
    })
    .unwrap()
}

/// A stream with one item.
fn one_item(manager: &ManagerNode) -> StreamHandle {
    let plan = StreamPlan {
        skeleton: Skeleton::Farm(Box::new(Skeleton::Seq(FunctionId(0)))),
        functions: vec![Function {
            digest: [0; 32],
            pickle: Bytes::from_static(b"a function"),
        }],
        call: Call::Item,
        tickets: Tickets::Unbounded,
        timeout: None,
        retries_on: None,
        tells_ends: false,
    };
    let stream = manager.open(plan, OutcomeOrder::Admission);
    let mut batch = BatchBuilder::default();
    batch.push(Format::Pickle, b"item", &[], Vec::new());
    stream.admit(&mut batch);
    stream.end_of_input();
    stream
}

fn outcome(stream: &StreamHandle) -> Taken {
    let deadline = Instant::now() + RUN_TIME;
    loop {
        match stream.results.wait(Duration::from_millis(200), None) {
            Taken::Nothing => assert!(Instant::now() < deadline, "the item has no outcome"),
            taken => return taken,
        }
    }
}

/// Each of them would be charged to the item if the slot had died.
#[test]
fn a_broken_wire_is_not_the_items_fault() {
    let site = Site::new();
    let mut workers: Vec<Worker> = ["one", "two", "three", "four"]
        .into_iter()
        .map(|name| Worker::named(&site, name, |slot, _| nonsense(&slot.connection), 100).0)
        .collect();
    workers.push(Worker::honest(&site, "good"));
    let manager = manager(&site, &workers);
    let Taken::Outcomes(outcomes) = outcome(&one_item(&manager)) else {
        panic!("{:?}", manager.take_notices());
    };
    let Contents::Records(_, origin) = outcomes.contents else {
        panic!("{:?}", manager.take_notices());
    };
    assert_eq!(origin.worker, "good");
    manager.shutdown();
    workers.into_iter().for_each(Worker::end);
}

#[test]
fn who_breaks_each_session_is_set_aside_and_its_user_is_told() {
    let site = Site::new();
    let (evil, sessions) = Worker::breaking(&site);
    let workers = [evil];
    let manager = manager(&site, &workers);
    let Taken::Ended(reason) = outcome(&one_item(&manager)) else {
        panic!("{:?}", manager.take_notices());
    };
    let told = "worker evil at 127.0.0.1 is set aside";
    assert!(reason.to_string().contains(told), "{reason}");
    assert_eq!(sessions.load(Ordering::Relaxed), 3);
    let report = manager.report();
    assert!(
        report[0]
            .set_aside
            .starts_with("broke its session 3 times: "),
        "{report:?}"
    );
    let notices = manager.take_notices();
    let warned =
        |notice: &&Notice| matches!(notice, Notice::Warning(text) if text.starts_with(told));
    assert_eq!(notices.iter().filter(warned).count(), 1, "{notices:?}");
    manager.shutdown();
    workers.into_iter().for_each(Worker::end);
}
