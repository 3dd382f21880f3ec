//! Children of a manager that never become workers: none of them is left behind.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod wire;

use std::ffi::OsString;
use std::fs;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use exoskel_flow::{FunctionId, SchedulerConfig, Skeleton};
use exoskel_net::manager::{
    Function, LocalTransport, LocalWorkers, ManagerConfig, ManagerNode, Readiness, Recruiting,
    StreamPlan, Tickets,
};
use exoskel_net::message::Call;
use exoskel_net::pki::ThrowAwayAuthority;
use exoskel_net::result_queue::{OutcomeOrder, StreamEnd, Taken};

use wire::{Site, unix_now};

/// Processes whose parent is this one, zombies included.
fn children() -> Vec<String> {
    let own = std::process::id().to_string();
    let processes = fs::read_dir("/proc").unwrap();
    let stats = processes
        .filter_map(|entry| fs::read_to_string(entry.ok()?.path().join("stat")).ok())
        // The name may hold anything; what follows it does not.
        .filter(|stat| {
            let behind = stat.rsplit(')').next().unwrap_or_default();
            behind.split_whitespace().nth(1) == Some(&own)
        });
    stats.collect()
}

fn manager_of(command: &[&str], transport: LocalTransport, forks: bool) -> ManagerNode {
    let site = Site::new();
    let mut terms = site.manager();
    terms.handshake_time = Duration::from_millis(200);
    ManagerNode::start(ManagerConfig {
        at_end: || (),
        terms,
        renewal: None,
        observer: None,
        scheduler: SchedulerConfig::default(),
        recruiting: Recruiting {
            slots: 2,
            contract: None,
            local: Some(LocalWorkers {
                command: command.iter().map(OsString::from).collect(),
                forks,
                loading_time: Duration::from_millis(200),
                options: Bytes::new(),
                transport,
                authority: ThrowAwayAuthority::new(unix_now()).unwrap(),
                policy: None,
            }),
            hosts: Vec::new(),
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

/// A manager that has ended tells whoever comes late, by a thread that knew nothing of it.
fn answers_late_comers(manager: &ManagerNode) {
    let plan = StreamPlan {
        skeleton: Skeleton::Seq(FunctionId(0)),
        functions: vec![Function {
            digest: [1; 32],
            pickle: Bytes::from_static(b"function"),
        }],
        call: Call::Item,
        tickets: Tickets::Unbounded,
        timeout: None,
        retries_on: None,
        tells_ends: false,
    };
    let stream = manager.open(plan, OutcomeOrder::Completion);
    let taken = stream.results.take();
    assert!(
        matches!(taken, Taken::Ended(StreamEnd::Closed)),
        "got {taken:?}: it would wait for ever"
    );
    assert!(!stream.cancel(0));
    assert!(stream.cancel_waiting().is_empty());
    assert!(manager.report().is_empty());
    assert!(manager.status().is_none());
}

/// One test, since it looks at all processes that this one has started.
#[test]
fn nobody_is_left_behind() {
    for transport in [
        LocalTransport::Socketpair,
        LocalTransport::SharedMemory,
        LocalTransport::Tcp,
    ] {
        for command in [
            &["sh", "-c", "exec sleep 60"][..],
            &["false"],
            &["/nowhere/at/all"],
        ] {
            for forks in [false, true] {
                let manager = manager_of(command, transport, forks);
                let mut seen = Readiness::default();
                let deadline = Instant::now() + Duration::from_secs(10);
                while seen.attempts.is_empty() {
                    assert!(Instant::now() < deadline, "{command:?}: {seen:?}");
                    seen = manager.wait_readiness(&seen, Duration::from_millis(500));
                }
                assert_eq!(seen.ready, 0);
                manager.shutdown();
                answers_late_comers(&manager);
                assert_eq!(children(), Vec::<String>::new(), "{command:?}");
            }
        }
    }
}
