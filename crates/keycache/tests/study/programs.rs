//! How processes run: what they wait for, and what can't be run.

use std::slice::from_ref;
use std::sync::Arc;

use exoskel_keycache::{KeycacheError, OnOff, Parameters, ReplayProgram, SchedulerKind, Study};
use exoskel_trace::{Operation, TraceRecord};

use super::workload::{after, bare, call, compute, program, receive, run, send, trace};

fn started(operation: Operation, peer: u16, request: u32, tag: i32) -> TraceRecord {
    TraceRecord {
        request,
        tag,
        ..call(operation, peer, 256)
    }
}

fn wait(request: u32) -> TraceRecord {
    TraceRecord {
        request,
        ..TraceRecord::new(Operation::Wait)
    }
}

fn wait_all(lowest: u32, count: i32) -> TraceRecord {
    TraceRecord {
        request: lowest,
        tag: count,
        ..TraceRecord::new(Operation::WaitAll)
    }
}

/// What follows a receive is as far behind the arrival as it was in the trace, whenever that is.
#[test]
fn a_gap_counts_from_the_arrival() {
    let parameters = bare(2);
    let job = program(vec![
        vec![after(1_000, send(1, 256)), receive(1, 256)],
        vec![receive(0, 256), after(500, send(0, 256))],
    ]);
    assert_eq!(
        run(&parameters, &[job]).completion_ps,
        1_000_000 + 256_000 + 500_000 + 256_000
    );
}

#[test]
fn computation_is_scaled_and_changed_by_chance() {
    let job = program(vec![vec![compute(1_000_000)]]);
    let percent = Parameters {
        compute_percent: 6_500,
        ..bare(1)
    };
    assert_eq!(run(&percent, from_ref(&job)).completion_ps, 65_000_000_000);
    let jittered = Parameters {
        compute_jitter_ppm: 10_000,
        ..bare(1)
    };
    let study = Study::new(jittered, vec![job]).unwrap();
    let times: Vec<u64> = (0..50)
        .map(|seed| study.run(seed).unwrap().completion_ps)
        .collect();
    assert!(
        times
            .iter()
            .all(|time| (990_000_000..=1_010_000_000).contains(time))
    );
    assert!(times.iter().any(|time| *time < 995_000_000));
    assert!(times.iter().any(|time| *time > 1_005_000_000));
}

/// Aim: a receive takes the message with its tag, and a wait waits for its request only. Method: the message with tag 2 comes first; who waits
/// for the one with tag 1 has to wait for the later one.
#[test]
fn messages_are_matched_by_tag() {
    let ranks = |first: u32| {
        vec![
            vec![
                started(Operation::Send, 1, 0, 2),
                after(10_000, started(Operation::Send, 1, 0, 1)),
            ],
            vec![
                started(Operation::ReceiveStart, 0, 1, 1),
                started(Operation::ReceiveStart, 0, 2, 2),
                wait(first),
                after(100_000, wait(3 - first)),
            ],
        ]
    };
    let parameters = bare(2);
    let sent_second = 256_000 + 10_000_000;
    assert_eq!(
        run(&parameters, &[program(ranks(1))]).completion_ps,
        sent_second + 100_000_000
    );
    assert_eq!(
        run(&parameters, &[program(ranks(2))]).completion_ps,
        256_000 + 100_000_000
    );
}

#[test]
fn waiting_for_all_takes_the_oldest_from_the_lowest_on() {
    let sends = |gap| after(gap, started(Operation::Send, 1, 0, 0));
    let receives = |request| started(Operation::ReceiveStart, 0, request, 0);
    let job = program(vec![
        vec![sends(0), sends(1_000), sends(10_000)],
        vec![
            receives(1),
            receives(2),
            receives(3),
            wait_all(1, 2),
            after(100_000, wait(3)),
        ],
    ]);
    assert_eq!(
        run(&bare(2), &[job]).completion_ps,
        1_000_000 + 256_000 + 100_000_000
    );
}

/// A large message leaves when both ends have called, and its sender goes on when it is there.
#[test]
fn large_messages_wait_for_their_receivers() {
    let ranks = || {
        vec![
            vec![send(1, 2_560), compute(1_000)],
            vec![after(50_000, receive(0, 2_560))],
        ]
    };
    let small = run(&bare(2), &[program(ranks())]);
    assert_eq!(small.completion_ps, 50_000_000);
    assert_eq!(small.message_latency.max_ps, 2_560_000);
    let parameters = Parameters {
        eager_bytes: 2_559,
        ..bare(2)
    };
    let large = run(&parameters, &[program(ranks())]);
    assert_eq!(large.completion_ps, 50_000_000 + 2_560_000 + 1_000_000);
    assert_eq!(large.message_latency.max_ps, 2_560_000);
}

/// Sixteen ranks: a barrier has four rounds, recursive doubling as well, a pairwise exchange fifteen.
#[test]
fn collectives_are_messages() {
    let everybody = |operation| {
        let record = TraceRecord {
            bytes: 256,
            ..TraceRecord::new(operation)
        };
        run(&bare(16), &[program(vec![vec![record]; 16])])
    };
    let barrier = everybody(Operation::Barrier);
    assert_eq!((barrier.messages, barrier.completion_ps), (64, 0));
    let doubling = everybody(Operation::AllReduce);
    assert_eq!(
        (doubling.messages, doubling.completion_ps),
        (64, 4 * 256_000)
    );
    let exchange = everybody(Operation::AllToAll);
    assert_eq!(
        (exchange.messages, exchange.completion_ps),
        (240, 15 * 256_000)
    );
}

#[test]
fn messages_to_oneself_need_no_network() {
    let outcome = run(
        &bare(1),
        &[program(vec![vec![send(0, 1_000), receive(0, 1_000)]])],
    );
    assert_eq!((outcome.messages, outcome.packets), (1, 0));
    assert_eq!(outcome.completion_ps, 0);
}

#[test]
fn a_job_may_end_after_so_many_messages() {
    let ping = |peer| [send(peer, 256), receive(peer, 256)];
    let pong = |peer| [receive(peer, 256), send(peer, 256)];
    let job = program(vec![
        (0..100).flat_map(|_| ping(1)).collect(),
        (0..100).flat_map(|_| pong(0)).collect(),
    ]);
    for scheduler in [SchedulerKind::Batch, SchedulerKind::Local] {
        let parameters = Parameters {
            message_limit: 20,
            scheduler,
            ..bare(2)
        };
        let outcome = run(&parameters, from_ref(&job));
        assert!(outcome.finished);
        assert_eq!(outcome.messages, 20);
        assert_eq!(outcome.jobs[0].completed_ps, 20 * 256_000);
    }
}

/// Aim: jobs that share the nodes can end each after messages of its own. Method: two of the same program, one of which says when it ends; the other one
/// ends by the parameter.
#[test]
fn a_job_s_own_end_goes_before_that_of_all() {
    let one_way = || {
        trace(vec![
            (0..100).map(|_| send(1, 256)).collect(),
            (0..100).map(|_| receive(0, 256)).collect(),
        ])
    };
    let jobs = [0, 7].map(|messages| {
        let program = ReplayProgram::from_trace(&one_way()).unwrap();
        Arc::new(program.ending_after(messages))
    });
    let parameters = Parameters {
        message_limit: 20,
        card_buffer_packets: 1,
        switch_buffer_packets: 1,
        ..bare(2)
    };
    assert_eq!(jobs.each_ref().map(|job| job.ends_after()), [0, 7]);
    let ends = |jobs: &[Arc<ReplayProgram>]| run(&parameters, jobs).jobs[0].completed_ps;
    assert_eq!(ends(&jobs[..1]), 20 * 256_000);
    assert_eq!(ends(&jobs[1..]), 7 * 256_000);
}

/// Computation takes longer on another machine, and nothing else does.
#[test]
fn a_trace_may_be_of_a_slower_machine() {
    let fast = trace(vec![
        vec![after(3_000, send(1, 256))],
        vec![receive(0, 256)],
    ]);
    let slow = fast.clone().with_computation(250).unwrap();
    let ends = [fast, slow].map(|trace| {
        let job = Arc::new(ReplayProgram::from_trace(&trace).unwrap());
        run(&bare(2), &[job]).completion_ps
    });
    assert_eq!(ends, [3_000_000 + 256_000, 7_500_000 + 256_000]);
}

/// Four processes, each with 30 periods of 5 messages: everything arrives, and the seed decides who sends to whom.
#[test]
fn on_and_off_periods_make_a_trace() {
    let traffic = OnOff {
        ranks: 4,
        periods: 30,
        messages: 5,
        ..OnOff::default()
    };
    let trace = traffic.trace(3).unwrap();
    assert_eq!(traffic.trace(3).unwrap(), trace);
    assert_ne!(traffic.trace(4).unwrap(), trace);
    let job = Arc::new(ReplayProgram::from_trace(&trace).unwrap());
    let outcome = run(&bare(4), &[job]);
    assert_eq!(outcome.messages, 4 * 30 * 5);
    // Thirty OFF periods of 766 us and ON periods of 4 gaps of 5 us, in the mean.
    let mean = outcome.computed_ps / 4;
    assert!(
        (18_000_000_000..30_000_000_000).contains(&mean),
        "got {mean} ps"
    );

    let nobody = OnOff {
        ranks: 1,
        ..traffic
    };
    let error = nobody.trace(1).unwrap_err().to_string();
    assert!(
        error.starts_with("got ranks = 1, expected 2 ..="),
        "{error}"
    );
}

// --- what can't be run -----------------------------------------------------------------------------

#[test]
fn who_waits_for_ever_is_named() {
    let ranks = vec![
        vec![send(1, 1_000), receive(1, 1_000)],
        vec![send(0, 1_000), receive(0, 1_000)],
    ];
    for scheduler in [
        SchedulerKind::Batch,
        SchedulerKind::Local,
        SchedulerKind::SpinBlock,
        SchedulerKind::DynamicCoscheduling,
        SchedulerKind::PeriodicBoost,
        SchedulerKind::Gang,
    ] {
        let parameters = Parameters {
            eager_bytes: 999,
            scheduler,
            ..bare(2)
        };
        let other = program(vec![vec![compute(1_000_000)]]);
        let study = Study::new(parameters, vec![program(ranks.clone()), other]).unwrap();
        let error = study.run(1).unwrap_err();
        assert!(
            matches!(
                error,
                KeycacheError::Stuck {
                    job: 0,
                    rank: 0,
                    peer: 1,
                    ..
                }
            ),
            "{scheduler:?}: {error}"
        );
        assert!(error.to_string().contains("eager_bytes"));
    }
    run(&bare(2), &[program(ranks)]);
}

fn refused(ranks: Vec<Vec<TraceRecord>>) -> String {
    ReplayProgram::from_trace(&trace(ranks))
        .unwrap_err()
        .to_string()
}

#[test]
fn traces_that_do_not_fit_together_are_refused_with_their_place() {
    assert_eq!(
        refused(vec![vec![send(1, 1)], vec![receive(0, 1), receive(0, 1)]]),
        "trace test, rank 1, record 1: receives from rank 0 with tag 0, but that rank sends no further such message"
    );
    let anybody = TraceRecord {
        peer: None,
        ..receive(0, 1)
    };
    assert!(refused(vec![vec![anybody]]).contains("rank 0, record 0: receives from anybody"));
    assert!(refused(vec![vec![wait(7)]]).contains("request 7, which isn't open"));
    let twice = vec![
        started(Operation::SendStart, 0, 1, 0),
        started(Operation::SendStart, 0, 1, 0),
    ];
    assert!(refused(vec![twice]).contains("record 1: begins request 1, which is open already"));
    let alone = vec![
        vec![TraceRecord::new(Operation::Barrier)],
        vec![TraceRecord::new(Operation::Finalize)],
    ];
    assert!(refused(alone).contains("does not take part in this collective"));
}

/// A few bytes of a trace can stand for more messages than there is memory for.
#[test]
fn a_program_of_too_many_messages_is_refused_before_they_are_made() {
    let everybody = vec![(0..1000).collect::<Vec<u16>>()];
    let mut trace = trace(vec![Vec::new(); 1000]);
    trace.communicators = vec![everybody; 1000];
    trace.ranks[0] = vec![TraceRecord::new(Operation::AllToAll); 1_000_000];
    let error = ReplayProgram::from_trace(&trace).unwrap_err();
    assert!(
        matches!(error, KeycacheError::TooMany { got, most, .. } if got < most + 1000),
        "{error}"
    );
}

#[test]
fn impossible_parameters_are_named() {
    let cases: [(&str, &str); 18] = [
        ("nodes = 0", "nodes = 0"),
        ("cache_entries = 0", "cache_entries = 0"),
        ("cache_ways = 7", "cache_ways = 7"),
        (
            "cache_entries = 6\ncache_ways = 4",
            "a divisor of cache_entries = 6",
        ),
        (
            "link_rate_bytes_per_second = 0",
            "link_rate_bytes_per_second = 0, expected 1 ..=",
        ),
        ("switch_buffer_packets = 0", "switch_buffer_packets"),
        ("cipher_frequency_hz = 0", "cipher_frequency_hz"),
        ("quantum_ns = 0", "quantum_ns"),
        // A packet that is somewhere for days.
        (
            "key_memory_ns = 86400000000000",
            "expected 0 ..= 1000000000",
        ),
        (
            "link_rate_bytes_per_second = 281",
            "link_rate_bytes_per_second = 281, expected at least 282",
        ),
        (
            "cipher_frequency_hz = 1",
            "expected at least 30, to be done with the largest packet",
        ),
        // A terabyte of caches.
        (
            "cache_entries = 1048576\nnodes = 4096",
            "cache_entries = 1048576, expected at most 2048 with 4096 nodes",
        ),
        (
            "gang_slice_ns = 5000\nscheduler = \"gang\"",
            "expected more than context_switch_ns = 5000",
        ),
        (
            "boost_period_ns = 1\nscheduler = \"periodic-boost\"",
            "expected more than context_switch_ns = 5000",
        ),
        ("cache_size = 6", "unknown field `cache_size`"),
        ("scheduler = \"fair\"", "unknown variant `fair`"),
        ("nodes = -1", "invalid value: integer `-1`"),
        ("preset = \"future\"", "expected one of paper, "),
    ];
    for (text, expected) in cases {
        let error = Parameters::from_toml(text).unwrap_err().to_string();
        assert!(error.contains(expected), "{text}: {error}");
        let name = text.split(' ').next().unwrap();
        assert!(error.contains(name), "{text}: {error}");
    }
}

#[test]
fn a_job_needs_a_node_for_each_rank() {
    let job = program(vec![vec![], vec![], vec![]]);
    let error = Study::new(bare(2), vec![job]).unwrap_err().to_string();
    assert_eq!(
        error,
        "trace test: got 3 ranks, but nodes = 2 and ranks_per_card = 1: there is no room for more than 2 of a job"
    );
    assert_eq!(
        Study::new(bare(2), Vec::new()).unwrap_err(),
        KeycacheError::NoJobs
    );
}

#[test]
fn parameters_are_toml_and_back() {
    for name in Parameters::PRESETS {
        let preset = Parameters::preset(name).unwrap();
        assert_eq!(Parameters::from_toml(&preset.to_toml()).unwrap(), preset);
        assert_eq!(
            Parameters::from_toml(&format!("preset = \"{name}\"")).unwrap(),
            preset
        );
    }
    let changed =
        Parameters::from_toml("cache_entries = 20\npreset = \"modern\"\ncache_ways = 4\n");
    assert_eq!(
        changed.unwrap(),
        Parameters {
            cache_entries: 20,
            cache_ways: 4,
            ..Parameters::preset("modern").unwrap()
        }
    );
}
