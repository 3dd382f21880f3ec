//! Real programs: everything arrives once, whatever the network, and the same on every machine.

use std::path::Path;
use std::sync::Arc;

use exoskel_keycache::{
    Forwarding, KeySource, KeycacheError, Level, Parameters, ReplayProgram, SchedulerKind, Study,
    SwitchKind, requests,
};
use exoskel_trace::Trace;

/// The short ones of `traces/`.
const SHORT: [&str; 6] = [
    "bt.S.16", "cg.S.16", "ft.S.16", "lu.S.16", "mg.S.16", "sp.S.16",
];

fn kept(name: &str) -> Arc<ReplayProgram> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../traces");
    let bytes = std::fs::read(directory.join(format!("{name}.skct.zst"))).unwrap();
    Arc::new(ReplayProgram::from_trace(&Trace::read(&bytes).unwrap()).unwrap())
}

/// Aim: each message is delivered once, and nothing gets stuck, with the least buffers there can be. Method: both kinds of switch and of
/// forwarding, large messages that wait for receivers; counts, and the hits and misses that have to make up all lookups.
#[test]
fn every_message_of_every_trace_arrives() {
    for name in SHORT {
        let job = kept(name);
        for (switch_kind, switch_forwarding) in [
            (SwitchKind::OutputQueued, Forwarding::CutThrough),
            (SwitchKind::Crossbar, Forwarding::StoreAndForward),
        ] {
            let parameters = Parameters {
                switch_kind,
                switch_forwarding,
                switch_buffer_packets: 1,
                card_buffer_packets: 1,
                packet_payload_bytes: 2_048,
                eager_bytes: 4_096,
                ..Parameters::default()
            };
            let study = Study::new(parameters, vec![job.clone()]).unwrap();
            let mut run = study.start(1).unwrap();
            while !run.advance(100_000).unwrap() {}
            let outcome = run.outcome();
            assert!(outcome.finished, "{name}");
            assert_eq!(outcome.messages, job.messages() as u64, "{name}");
            assert_eq!(outcome.message_latency.count, outcome.messages, "{name}");
            assert_eq!(outcome.packet_latency.count, outcome.packets, "{name}");
            assert_eq!(outcome.lookups, 2 * outcome.packets, "{name}");
            assert_eq!(
                outcome.hits + outcome.prefetch_hits + outcome.misses,
                outcome.lookups,
                "{name}"
            );
            assert_eq!(outcome.key_memory.accesses, outcome.misses, "{name}");
        }
    }
}

/// Aim: a run is the same everywhere, for ever. Method: the digests of some runs. Whoever changes the model changes them, and says so; a new compiler
/// or machine must not.
#[test]
fn runs_have_the_digests_that_they_had() {
    let paper = Parameters::default();
    let crossbar = Parameters {
        switch_kind: SwitchKind::Crossbar,
        keys: KeySource::Memory,
        key_memory_accesses_in_flight: 1,
        ..paper.clone()
    };
    let messages = Parameters {
        level: Level::Message,
        ..paper.clone()
    };
    let coscheduled = |scheduler| Parameters {
        scheduler,
        cache_entries: 10,
        prefetch_buffer_entries: 8,
        quantum_ns: 1_000_000,
        gang_slice_ns: 1_000_000,
        boost_period_ns: 100_000,
        spin_ns: 50_000,
        ..paper.clone()
    };
    let one = ["cg.S.16"];
    let several = ["mg.S.16", "lu.S.16", "mg.S.16"];
    let four = Parameters {
        nodes: 4,
        ranks_per_card: 4,
        ..coscheduled(SchedulerKind::DynamicCoscheduling)
    };
    let cases: [(&str, &[&str], Parameters, u64); 10] = [
        ("paper", &one, paper.clone(), 0x5363_6a52_3c8c_c7e8),
        ("crossbar", &one, crossbar, 0x5918_59a5_5b74_592d),
        ("messages", &one, messages, 0x815c_9d41_c92c_d46c),
        (
            "batch",
            &several,
            coscheduled(SchedulerKind::Batch),
            0x220a_ba6e_195f_ac09,
        ),
        (
            "local",
            &several,
            coscheduled(SchedulerKind::Local),
            0x410e_8e79_0122_1274,
        ),
        (
            "spin",
            &several,
            coscheduled(SchedulerKind::SpinBlock),
            0xe7c2_ae71_f7b9_9886,
        ),
        (
            "dynamic",
            &several,
            coscheduled(SchedulerKind::DynamicCoscheduling),
            0x3978_10a4_f8cb_3cb3,
        ),
        (
            "boost",
            &several,
            coscheduled(SchedulerKind::PeriodicBoost),
            0xe63a_d7c1_3023_0cad,
        ),
        (
            "gang",
            &several,
            coscheduled(SchedulerKind::Gang),
            0xcaa8_fbbb_04dc_de2d,
        ),
        ("four ranks a card", &several, four, 0xb49c_3696_18a3_37bc),
    ];
    let mut wrong = Vec::new();
    for (what, names, parameters, expected) in cases {
        let jobs = names.iter().map(|name| kept(name)).collect();
        let study = Study::new(parameters, jobs).unwrap();
        let outcome = study.run(7).unwrap();
        assert_eq!(outcome, study.run(7).unwrap(), "{what}");
        assert_ne!(outcome.digest, study.run(8).unwrap().digest, "{what}");
        assert!(
            outcome.jobs.iter().all(|job| job.completed_ps > 0),
            "{what}"
        );
        if outcome.digest != expected {
            wrong.push(format!("{what}: got 0x{:016x}", outcome.digest));
        }
    }
    assert_eq!(wrong, Vec::<String>::new());
}

/// Aim: packets of messages in flight together take turns, so that a cache needs a key for each of them at once. Method: parts of class A; others found, with
/// another rule of taking turns, 59 to 66 % for SP and BT with up to five entries and 100.0 % with six, and 99.7 % and more for CG, LU and MG with four.
#[test]
fn messages_in_flight_need_a_key_each() {
    let hit_rate = |name: &str, messages, cache_entries| {
        let parameters = Parameters {
            cache_entries,
            message_limit: messages,
            ..Parameters::default()
        };
        let study = Study::new(parameters, vec![kept(name)]).unwrap();
        study.run(1).unwrap().hit_rate()
    };
    for name in ["sp.A.16", "bt.A.16"] {
        let few = [2, 5].map(|entries| hit_rate(name, 800, entries));
        assert!(
            few.iter().all(|rate| (0.55..0.85).contains(rate)),
            "{name}: {few:?}"
        );
        let enough = hit_rate(name, 800, 6);
        assert!(enough > 0.995, "{name}: {enough}");
    }
    for name in ["cg.A.16", "lu.A.16.it20", "mg.A.16"] {
        let few = hit_rate(name, 6_000, 4);
        assert!(few > 0.997, "{name}: {few}");
    }
}

/// Three instances each of an all-to-all and of requests, whose messages come long before their turn, under periodic boost.
fn boosted(quantum_ns: u64) -> Study {
    let (transform, asking) = (
        kept("ft.S.16"),
        Arc::new(ReplayProgram::from_trace(&requests(16, 500, 1).unwrap()).unwrap()),
    );
    let jobs = [vec![transform; 3], vec![asking; 3]].concat();
    let parameters = Parameters {
        message_limit: 4_000,
        compute_percent: 6_500,
        keys: KeySource::Derive,
        scheduler: SchedulerKind::PeriodicBoost,
        quantum_ns,
        ..Parameters::default()
    };
    Study::new(parameters, jobs).unwrap()
}

/// Aim: boosts starve nobody. Method: processes that spin for one message while others of theirs are here are boosted again and again; whom they wait
/// for has the processor when their quanta are used up.
#[test]
fn whoever_is_boosted_leaves_time_for_the_others() {
    for seed in 8..12 {
        assert!(boosted(100_000_000).run(seed).unwrap().finished, "{seed}");
    }
}

/// Aim: a run that gets nowhere ends with an error. Method: the same, with quanta of a day, which those who spin may use up.
#[test]
fn a_run_in_which_nobody_gets_on_ends() {
    let error = boosted(86_400_000_000_000).run(10).unwrap_err();
    assert!(matches!(error, KeycacheError::Starved { .. }), "{error}");
    assert!(error.to_string().contains("periodic-boost"));
}
