//! What a scheduler does, seen from outside: who ends when, who spins, how often a processor changes hands.

use std::sync::Arc;

use exoskel_keycache::{Parameters, ReplayProgram, RunOutcome, SchedulerKind, Study};

use super::workload::{after, bare, compute, program, receive, run, send};

const MILLISECOND_NS: u64 = 1_000_000;
const MILLISECOND_PS: u64 = 1_000_000_000;

fn ends(outcome: &RunOutcome) -> Vec<u64> {
    outcome.jobs.iter().map(|job| job.completed_ps).collect()
}

fn alone(milliseconds: u64) -> Arc<ReplayProgram> {
    program(vec![vec![compute(milliseconds * MILLISECOND_NS)]])
}

#[test]
fn batch_runs_one_job_after_the_other() {
    let outcome = run(&bare(1), &[alone(50), alone(30)]);
    assert_eq!(ends(&outcome), [50 * MILLISECOND_PS, 80 * MILLISECOND_PS]);
    assert_eq!(outcome.jobs[1].started_ps, 50 * MILLISECOND_PS);
    assert_eq!(outcome.context_switches, 1);
    assert_eq!(outcome.computed_ps, 80 * MILLISECOND_PS);
}

/// Aim: jobs take turns of 20 ms. Method: 50 ms and 50 ms: A 0-20, B 20-40, A 40-60, B 60-80, A 80-90 and ends, B 90-100. Each change costs.
#[test]
fn a_gang_runs_in_slices() {
    let parameters = Parameters {
        scheduler: SchedulerKind::Gang,
        ..bare(1)
    };
    let outcome = run(&parameters, &[alone(50), alone(50)]);
    assert_eq!(ends(&outcome), [90 * MILLISECOND_PS, 100 * MILLISECOND_PS]);
    assert_eq!(outcome.context_switches, 5);
    let costly = Parameters {
        context_switch_ns: MILLISECOND_NS,
        ..parameters
    };
    // Four slices of 19 ms and what is left, five changes: A has 20 + 19 + 11, from 81 ms on; B has 19 + 19 + 12, from 93 ms on.
    let outcome = run(&costly, &[alone(50), alone(50)]);
    assert_eq!(ends(&outcome), [92 * MILLISECOND_PS, 105 * MILLISECOND_PS]);
}

/// All nodes change together: a message between two ranks of a job never waits for a slice of another job, but for the one that is over.
#[test]
fn a_gang_has_all_nodes_at_once() {
    let parameters = Parameters {
        scheduler: SchedulerKind::Gang,
        ..bare(2)
    };
    let pair = program(vec![
        vec![after(30 * MILLISECOND_NS, send(1, 256))],
        vec![receive(0, 256)],
    ]);
    let other = program(vec![vec![compute(100 * MILLISECOND_NS)]; 2]);
    // 20 ms in the first slice, 10 ms in the third one.
    let outcome = run(&parameters, &[pair, other]);
    assert_eq!(outcome.jobs[0].completed_ps, 50 * MILLISECOND_PS + 256_000);
}

#[test]
fn local_processes_take_turns_of_a_quantum() {
    let parameters = Parameters {
        scheduler: SchedulerKind::Local,
        quantum_ns: 20 * MILLISECOND_NS,
        ..bare(1)
    };
    let mut both = ends(&run(&parameters, &[alone(50), alone(50)]));
    both.sort_unstable();
    assert_eq!(both, [90 * MILLISECOND_PS, 100 * MILLISECOND_PS]);
}

/// Node 1 has two processes: one waits for a message that comes after 10 ms, one computes for 20 ms. The seed decides who is first: this gives
/// the run in which it is the one that waits, and the other one.
fn waiter_and_worker(parameters: &Parameters) -> [RunOutcome; 2] {
    let waiter = program(vec![
        vec![after(10 * MILLISECOND_NS, send(1, 256))],
        vec![receive(0, 256)],
    ]);
    let worker = program(vec![vec![], vec![compute(20 * MILLISECOND_NS)]]);
    let study = Study::new(parameters.clone(), vec![waiter, worker]).unwrap();
    let outcomes: Vec<RunOutcome> = (0..16).map(|seed| study.run(seed).unwrap()).collect();
    let waited = |first: bool| {
        let found = outcomes
            .iter()
            .find(|outcome| (outcome.spun_ps > 0) == first);
        found.unwrap().clone()
    };
    [waited(true), waited(false)]
}

const ARRIVAL: u64 = 10 * MILLISECOND_PS + 256_000;

#[test]
fn who_waits_under_the_local_scheduler_spins() {
    let parameters = Parameters {
        scheduler: SchedulerKind::Local,
        ..bare(2)
    };
    let [waited, worked] = waiter_and_worker(&parameters);
    assert_eq!(waited.spun_ps, ARRIVAL);
    assert_eq!(ends(&waited), [ARRIVAL, ARRIVAL + 20 * MILLISECOND_PS]);
    assert_eq!(ends(&worked), [20 * MILLISECOND_PS; 2]);
}

/// 750 us of spinning, then the other one has the processor; the message changes nothing, but the waiter is the next.
#[test]
fn spin_block_spins_and_then_blocks() {
    let parameters = Parameters {
        scheduler: SchedulerKind::SpinBlock,
        ..bare(2)
    };
    let [waited, worked] = waiter_and_worker(&parameters);
    assert_eq!(waited.spun_ps, 750_000_000);
    assert_eq!(ends(&waited), [750_000_000 + 20 * MILLISECOND_PS; 2]);
    assert_eq!(ends(&worked), [20 * MILLISECOND_PS; 2]);
}

/// The message gives the waiter the processor at once.
#[test]
fn a_message_wakes_and_boosts_under_dynamic_coscheduling() {
    let parameters = Parameters {
        scheduler: SchedulerKind::DynamicCoscheduling,
        ..bare(2)
    };
    let [waited, worked] = waiter_and_worker(&parameters);
    assert_eq!(ends(&waited), [ARRIVAL, 750_000_000 + 20 * MILLISECOND_PS]);
    // Node 1: to the worker, to the waiter and back; node 0: to the worker's first rank, which has nothing to do.
    assert_eq!(waited.context_switches, 3 + 1);
    // Who hasn't had the processor hasn't blocked: nothing boosts it.
    assert_eq!(ends(&worked), [20 * MILLISECOND_PS; 2]);
}

/// Aim: sooner or later a process with a message gets the processor. Method: the waiter never had it; its message comes after 10 ms, and the next boost is at
/// most 2 ms later.
#[test]
fn periodic_boost_finds_who_has_messages() {
    let parameters = Parameters {
        scheduler: SchedulerKind::PeriodicBoost,
        ..bare(2)
    };
    let [waited, worked] = waiter_and_worker(&parameters);
    assert_eq!(ends(&waited)[0], ARRIVAL);
    let boosted = ends(&worked)[0];
    assert!(
        (ARRIVAL..=ARRIVAL + 2 * MILLISECOND_PS).contains(&boosted),
        "got {boosted} ps"
    );
    assert_eq!(ends(&worked)[1], 20 * MILLISECOND_PS);
}

/// Aim: what arrives for a process that doesn't have the processor has its process's frequent keys prefetched. Method: two jobs on three nodes,
/// each with two peers, and a cache of two keys: a job's turn on node 0 drives the other one's keys out. Answers take so long that some come
/// in the other one's turn; with a buffer of two, the first of them brings both keys back.
#[test]
fn a_message_for_somebody_else_prefetches() {
    let job = || {
        let here = |_| {
            let calls = [send(1, 256), send(2, 256), receive(1, 256), receive(2, 256)];
            calls.map(|record| after(50_000, record))
        };
        let there = |_| [receive(0, 256), after(30_000, send(0, 256))];
        program(vec![
            (0..200).flat_map(here).collect(),
            (0..200).flat_map(there).collect(),
            (0..200).flat_map(there).collect(),
        ])
    };
    let parameters = Parameters {
        scheduler: SchedulerKind::DynamicCoscheduling,
        keys: exoskel_keycache::KeySource::Cache,
        quantum_ns: 60_000,
        spin_ns: 10_000,
        cache_entries: 2,
        ..bare(3)
    };
    let without = run(&parameters, &[job(), job()]);
    assert_eq!((without.prefetches, without.prefetch_hits), (0, 0));
    let buffered = Parameters {
        prefetch_buffer_entries: 2,
        ..parameters
    };
    let with = run(&buffered, &[job(), job()]);
    assert!(with.prefetches > 0 && with.prefetch_hits > 0, "{with:?}");
    assert!(with.misses < without.misses);
    assert_eq!(with.key_memory.accesses, with.misses + with.prefetches);
}
