//! The whole system in virtual time, with a fixed list of seeds; `make soak` plays others.

use std::time::Duration;

use exoskel_flow::Skeleton;
use exoskel_sim::system::{InjectedFault, Node, Report, Scenario, play_twice};

/// Plays a seed twice: it decides everything.
#[track_caller]
fn play(seed: u64) -> Report {
    replay(seed, &Scenario::from_seed(seed))
}

#[track_caller]
fn replay(seed: u64, scenario: &Scenario) -> Report {
    play_twice(scenario).unwrap_or_else(|violation| {
        panic!("{violation}\n  replay: cargo run -p exoskel-sim --example system -- --seed {seed}\n{scenario:#?}")
    })
}

/// Aim: everything that is promised holds, and the seeds see what they are there for. Method: the promises are checked
/// inside; together the runs must have met every kind of trouble and of relief.
#[test]
fn everything_holds_whatever_happens() {
    let mut all = Report::default();
    for seed in 1..=120 {
        let report = play(seed);
        let streams = Scenario::from_seed(seed).streams;
        let items: u64 = streams.iter().map(|stream| stream.items).sum();
        let mut programs = streams.iter().map(|stream| &stream.skeleton);
        if programs.all(Skeleton::keeps_number) {
            assert_eq!(report.outcomes + report.cancelled + report.left, items);
        }
        let closes_early = streams.iter().any(|stream| stream.closes_after.is_some());
        let is_left = closes_early || report.given_up > 0;
        assert!(is_left || report.left == 0, "seed {seed}");
        all.left += report.left;
        all.outcomes += report.outcomes;
        all.refused += report.refused;
        all.exhausted += report.exhausted;
        all.overdue += report.overdue;
        all.too_large += report.too_large;
        all.unsent += report.unsent;
        all.cancelled += report.cancelled;
        all.slots_lost += report.slots_lost;
        all.crashes += report.crashes;
        all.restarts += report.restarts;
        all.keys_changed += report.keys_changed;
        all.recalled += report.recalled;
        all.stragglers += report.stragglers;
        all.released += report.released;
        all.recruited += report.recruited;
        all.expanded += report.expanded;
        all.folded += report.folded;
        all.carried += report.carried;
        all.commits += report.commits;
        all.continued += report.continued;
        all.early_found += report.early_found;
        all.ended_in_write += report.ended_in_write;
        all.announced += report.announced;
        all.tokens_seen += report.tokens_seen;
        all.unfit += report.unfit;
        all.set_aside += report.set_aside;
        all.revoked += report.revoked;
        all.turned_away += report.turned_away;
        all.waited += report.waited;
        all.given_up += report.given_up;
        all.refused_dials += report.refused_dials;
        all.unjudged += report.unjudged;
    }
    let seen = [
        all.outcomes,
        all.refused,
        all.exhausted,
        all.overdue,
        all.too_large,
        all.unsent,
        all.cancelled,
        all.left,
        all.slots_lost,
        all.crashes,
        all.restarts,
        all.keys_changed,
        all.recalled,
        all.stragglers,
        all.released,
        all.recruited,
        all.expanded,
        all.folded,
        all.carried,
        all.commits,
        all.continued,
        all.early_found,
        all.ended_in_write,
        all.announced,
        all.tokens_seen,
        all.unfit,
        all.set_aside,
        all.revoked,
        all.turned_away,
        all.waited,
        all.given_up,
        all.refused_dials,
    ];
    assert!(!seen.contains(&0), "{all:?}");
    assert!(all.unjudged <= 5, "{} streams", all.unjudged);
}

/// Seeds that break a promise without what was mended for them: tried with each. A seed means what the generator makes of it, so these change with that.
#[test]
fn what_was_broken_once_holds() {
    // A run was closed while it waited for a slot, and the manager was woken for it without end.
    play(752);
    // An item ran again while results before it waited for a grant, and its slot was thought to have the state that it had dropped.
    play(500_169);
    // An exception that came without a state counted as untouched, whoever had touched the state.
    play(9_005_792);
    // The last of a run's items came to nothing in the first of three stages in a row that make any number of each, and was never done.
    play(9_122_600);
    // An item with an exception ran when the state before it was too large to send, and was given back with its neighbours.
    play(9_198_866);
    // The only slot was to end, and waited for room for its results, which nobody made.
    play(9_196_265);
}

/// Aim: a manager that comes back after a crash knows nothing, and nothing of its former life counts: each item of each
/// stream has its outcome, as in a run without a crash. Method: the manager crashes at each of many moments of a run, with and
/// without a word, while its workers dial it and while it dials them.
#[test]
fn a_manager_begins_anew_after_a_crash() {
    // Nothing else goes wrong in them.
    let is_calm = |seed: &u64| {
        let scenario = Scenario::from_seed(*seed);
        // What items are made into depends on the process that they are of.
        let mut programs = scenario.streams.iter().map(|stream| &stream.skeleton);
        scenario.faults.is_empty()
            && scenario.workers.len() > 1
            && programs.all(Skeleton::keeps_number)
    };
    let seeds: Vec<u64> = (1..).filter(is_calm).take(6).collect();
    let mut dialling = [0; 2];
    for seed in seeds {
        let calm = Scenario::from_seed(seed);
        let whole = replay(seed, &calm);
        dialling[usize::from(calm.manager_dials)] += 1;
        let mut restarts = 0;
        for part in 1..16 {
            let mut scenario = calm.clone();
            let crash = InjectedFault::Crash {
                node: Node::Manager,
                silent: part % 2 == 0,
                restart: Duration::from_millis(part % 3),
            };
            scenario.faults = vec![(whole.ended_at * part as u32 / 16, crash)];
            let report = replay(seed, &scenario);
            restarts += report.restarts;
            if calm
                .streams
                .iter()
                .all(|stream| stream.closes_after.is_none())
            {
                let ended = |report: &Report| report.outcomes + report.cancelled;
                assert_eq!(ended(&report), ended(&whole), "seed {seed}, part {part}");
            }
        }
        assert!(restarts > 0, "seed {seed}: it had always ended");
    }
    assert!(!dialling.contains(&0), "{dialling:?}");
}

/// Aim: workers that dial a manager whose contract needs fewer of them wait until they are called, for however long that is, and come in then.
#[test]
fn workers_that_dial_in_wait_until_the_contract_needs_them() {
    let (mut waited, mut recruited) = (0, 0);
    let has_contract = |scenario: &Scenario| scenario.contract.is_some();
    let scenarios = (1..).map(|seed| (seed, Scenario::from_seed(seed)));
    let scenarios = scenarios.filter(|(_, own)| has_contract(own) && !own.manager_dials);
    for (seed, scenario) in scenarios.take(12) {
        let report = replay(seed, &scenario);
        waited += report.waited;
        recruited += report.recruited;
    }
    assert!(waited > 12 && recruited > 0, "{waited} {recruited}");
}

/// Aim: nobody is given up for having been away, and everybody is back soon. Method: all workers are away at once, or the manager
/// stands still, for longer than anybody waits for a sign of life; the run itself checks that the contract is full in time.
#[test]
fn whoever_was_away_comes_back() {
    let is_calm = |seed: &u64| {
        let scenario = Scenario::from_seed(*seed);
        let mut workers = scenario.workers.iter();
        scenario.faults.is_empty() && workers.all(|worker| worker.lacks.is_empty())
    };
    for seed in (1..).filter(is_calm).take(4) {
        let calm = Scenario::from_seed(seed);
        let whole = replay(seed, &calm);
        for (kind, seconds) in (0..4).flat_map(|kind| [3, 12, 30].map(|time| (kind, time))) {
            let mut scenario = calm.clone();
            let at = whole.ended_at / 3;
            let until = at + Duration::from_secs(seconds);
            let faults = &mut scenario.faults;
            if kind == 0 {
                let node = Node::Manager;
                faults.extend([
                    (at, InjectedFault::Hold(node)),
                    (until, InjectedFault::Release(node)),
                ]);
            }
            for worker in 0..calm.workers.len() {
                let node = Node::Worker(worker);
                let (begin, end) = match kind {
                    0 => break,
                    1 => (InjectedFault::Hold(node), InjectedFault::Release(node)),
                    2 => {
                        let (from, to) = (true, true);
                        let cut = InjectedFault::Partition { worker, from, to };
                        (cut, InjectedFault::Repair { worker })
                    }
                    _ => {
                        let (silent, restart) = (false, Duration::from_millis(100));
                        let crash = InjectedFault::Crash {
                            node,
                            silent,
                            restart,
                        };
                        faults.push((at, crash));
                        let repair = InjectedFault::Repair { worker };
                        (InjectedFault::Refuse { worker }, repair)
                    }
                };
                faults.extend([(at, begin), (until, end)]);
            }
            faults.sort_by_key(|(at, _)| *at);
            let report = replay(seed, &scenario);
            assert_eq!(report.given_up, 0, "seed {seed}, {kind} for {seconds} s");
        }
    }
}
