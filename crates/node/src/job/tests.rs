//! The machines of a job, each by itself; how they play together is for the simulation.

use std::time::Duration;

use proptest::prelude::*;

use super::*;

const JOB: &str = "0123";

/// A job with agents that are there.
fn job(hosts: u32) -> JobMachine {
    let mut machine = JobMachine::new(JOB.to_owned());
    for host in 1..=hosts {
        let agent = machine.add_agent(format!("host{host}")).unwrap();
        assert!(machine.agent_here(agent) && !machine.agent_here(agent));
    }
    machine
}

fn node(agent: u32, process: u32) -> (u32, String) {
    (process, format!("host{agent}#{process}.{JOB}"))
}

/// Aim: neighbours are on one host, no number comes twice, and the limit is one of the whole job.
#[test]
fn groups_are_spread_over_hosts_and_numbers_are_never_used_again() {
    let mut machine = job(2);
    let members = machine.fill(4, JobPlacement::AllHosts, None, true).unwrap();
    let placed: Vec<(u32, u32, u32)> = members
        .iter()
        .map(|one| (one.number, one.rank, one.agent))
        .collect();
    assert_eq!(placed, [(3, 0, 1), (4, 1, 1), (5, 2, 2), (6, 3, 2)]);
    let first = machine
        .fill(2, JobPlacement::FirstHost, Some(3), false)
        .unwrap();
    assert!(first.iter().all(|one| one.agent == 1));
    assert_eq!(
        machine.fill(PROCESSES_MAX, JobPlacement::AllHosts, None, true),
        Err(JobError::TooMany)
    );
    assert_eq!(
        machine.fill(1, JobPlacement::AllHosts, None, true).unwrap()[0].number,
        9
    );
}

/// Aim: a group is told once, when all are there or have ended; one that was there and has ended is not named as there.
#[test]
fn a_group_is_told_once_of_those_that_are_there() {
    let mut machine = job(2);
    machine.fill(4, JobPlacement::AllHosts, None, true).unwrap();
    assert_eq!(machine.here(1, &[node(1, 3), node(1, 4)]), Ok(vec![3, 4]));
    assert_eq!(machine.here(1, &[node(1, 3)]), Ok(vec![]));
    let ended = machine.ended(1, 4, Some(-9), &[]).unwrap();
    assert_eq!(
        (ended[0].fate, ended[0].code),
        (FutureFate::Settled, Some(-9))
    );
    assert_eq!(machine.next_telling(), None);
    let ended = machine.ended(2, 5, Some(1), &[]).unwrap();
    assert_eq!(ended[0].fate, FutureFate::Failed);
    // Not its own name.
    assert_eq!(
        machine.here(2, &[(6, "host1#6.0123".to_owned())]),
        Ok(vec![])
    );
    assert_eq!(machine.next_telling(), None);
    assert_eq!(
        machine.ended(2, 6, Some(0), &[]).unwrap()[0].fate,
        FutureFate::Done
    );
    let telling = machine.next_telling().unwrap();
    assert_eq!(
        telling.members,
        [(3, true), (4, false), (5, false), (6, false)]
    );
    assert_eq!(telling.agents, [1, 2]);
    assert_eq!(machine.next_telling(), None);
    // Another one in the place of a member is told again.
    assert_eq!(machine.replace(3), None);
    let other = machine.replace(5).unwrap();
    assert_eq!((other.number, other.rank, other.agent), (7, 2, 2));
    assert_eq!(machine.replace(5), None);
    assert_eq!(machine.here(2, &[node(2, 7)]), Ok(vec![7]));
    let telling = machine.next_telling().unwrap();
    assert_eq!(
        telling.members,
        [(3, true), (4, false), (7, true), (6, false)]
    );
}

/// Aim: an agent speaks of its own processes only, and takes them with it.
#[test]
fn agents_speak_of_their_own_processes() {
    let mut machine = job(2);
    machine.fill(2, JobPlacement::AllHosts, None, true).unwrap();
    let not_own = Err(JobError::NotOwn {
        process: 4,
        agent: 1,
    });
    assert_eq!(machine.sign(1, &[3, 4]), not_own);
    assert!(!machine.is_signed());
    machine.sign(1, &[3]).unwrap();
    assert!(machine.ended(1, 4, None, &[]).is_err() && machine.here(1, &[node(1, 4)]).is_err());
    assert_eq!(machine.running(&[3, 4]), 2);
    let lost = machine.agent_lost(2);
    assert_eq!(
        (lost[0].number, lost[0].reason, lost[0].fate),
        (4, EndReason::Lost, FutureFate::Failed)
    );
    assert!(machine.agent_lost(2).is_empty() && machine.is_signed());
    assert_eq!(machine.awaited(), [3]);
    assert!(machine.fill(1, JobPlacement::AllHosts, None, true).is_err());
    // In its place one comes on a host that is there.
    assert_eq!(machine.replace(4).unwrap().agent, 1);
    assert_eq!(machine.finish(), [1]);
    assert_eq!(
        machine.fill(1, JobPlacement::FirstHost, None, true),
        Err(JobError::Over)
    );
    assert_eq!(machine.forget().len(), 2);
    assert!(machine.forget().is_empty() && machine.next_telling().is_none());
}

/// Aim: who has returned is not lost by its end; who ends before is.
#[test]
fn returns_and_starters_are_waited_for() {
    let mut machine = job(1);
    let program = machine
        .fill(1, JobPlacement::FirstHost, None, false)
        .unwrap()[0]
        .number;
    machine
        .fill(2, JobPlacement::FirstHost, Some(program), false)
        .unwrap();
    assert_eq!(machine.running(&[3, 4]), 4);
    machine.returned(1, &[3]).unwrap();
    assert_eq!(machine.unreturned(&[3, 4]), (1, None));
    let ended = machine.ended(1, program, Some(0), &[3, 4]).unwrap();
    let fates: Vec<FutureFate> = ended.iter().map(|one| one.fate).collect();
    assert_eq!(
        fates,
        [FutureFate::Done, FutureFate::Failed, FutureFate::Failed]
    );
    assert_eq!(machine.unreturned(&[3, 4]), (1, Some(4)));
    assert_eq!(machine.running(&[3, 4]), 0);
}

fn process(number: u32, rank: u32, origin: ProcessOrigin) -> NewProcess {
    NewProcess {
        number,
        rank,
        size: 3,
        group: 2,
        origin,
    }
}

fn actions(machine: &mut AgentMachine) -> Vec<AgentAction> {
    std::iter::from_fn(|| machine.next_action()).collect()
}

fn sibling(startpoint: Option<&str>) -> Sibling {
    Sibling {
        startpoint: startpoint.map(str::to_owned),
        reason: String::new(),
    }
}

/// Aim: siblings are told when they are known, once, and again when another one is in the place of one that was asked for.
#[test]
fn an_agent_tells_siblings_to_those_that_asked() {
    let mut machine = AgentMachine::new(Some(2));
    machine.start(process(2, 0, ProcessOrigin::Agent)).unwrap();
    machine.start(process(3, 1, ProcessOrigin::Agent)).unwrap();
    assert_eq!(
        machine.start(process(3, 1, ProcessOrigin::Agent)),
        Err(StartRefusal::Known)
    );
    assert_eq!(
        machine.start(process(4, 2, ProcessOrigin::Agent)),
        Err(StartRefusal::Full)
    );
    machine.ask(2, 1).unwrap();
    assert!(machine.ask(2, 1).is_err() && machine.ask(2, 3).is_err());
    assert!(actions(&mut machine).is_empty());
    // Of another length: whoever says that is wrong.
    machine.siblings(2, vec![sibling(Some("a"))]);
    assert!(actions(&mut machine).is_empty());
    machine.siblings(
        2,
        vec![sibling(Some("a")), sibling(Some("b")), sibling(None)],
    );
    assert_eq!(
        actions(&mut machine),
        [AgentAction::Tell {
            process: 2,
            rank: 1
        }]
    );
    machine.ask(3, 2).unwrap();
    assert_eq!(
        actions(&mut machine),
        [AgentAction::Tell {
            process: 3,
            rank: 2
        }]
    );
    machine.siblings(
        2,
        vec![sibling(Some("a")), sibling(Some("b")), sibling(Some("c"))],
    );
    assert_eq!(
        actions(&mut machine),
        [AgentAction::Tell {
            process: 3,
            rank: 2
        }]
    );
    assert_eq!(machine.sibling(3, 2), Some(&sibling(Some("c"))));
}

/// Aim: each process says its key, its place and its return once, and the creator hears of them together.
#[test]
fn a_process_says_each_thing_once() {
    let mut machine = AgentMachine::new(None);
    machine.start(process(2, 0, ProcessOrigin::Agent)).unwrap();
    machine.start(process(3, 1, ProcessOrigin::Agent)).unwrap();
    machine.key(2).unwrap();
    machine.here(2).unwrap();
    machine.returned(2).unwrap();
    assert!(machine.key(2).is_err() && machine.here(2).is_err() && machine.returned(2).is_err());
    assert_eq!((machine.keys_due(), machine.keys_due()), (vec![2], vec![]));
    // One request at a time.
    machine.key(3).unwrap();
    assert!(machine.keys_due().is_empty());
    machine.signed(&[2]);
    assert_eq!(machine.keys_due(), [3]);
    assert_eq!(machine.news(), (vec![2], vec![2]));
    assert_eq!(machine.news(), (vec![], vec![]));
    machine.ended(2);
    assert!(machine.here(2).is_err());
}

/// Aim: when its job ends, who has joined sees it, others are asked, and who still runs after the grace is killed; nothing begins any more.
#[test]
fn a_job_ends_as_a_whole() {
    let mut machine = AgentMachine::new(None);
    machine.start(process(2, 0, ProcessOrigin::Agent)).unwrap();
    machine.start(process(3, 1, ProcessOrigin::Agent)).unwrap();
    machine
        .start(process(4, 2, ProcessOrigin::Invitation))
        .unwrap();
    machine.started(3);
    machine.key(2).unwrap();
    assert!(!machine.is_over() && machine.next_timeout().is_none());
    let now = Duration::from_secs(5);
    assert!(machine.end(now) && !machine.end(now));
    let hang_up = |process| AgentAction::HangUp { process };
    let signal = |process, signal| AgentAction::Signal { process, signal };
    let released = AgentAction::Release { process: 4 };
    assert_eq!(
        actions(&mut machine),
        [hang_up(2), hang_up(3), hang_up(4), released, signal(3, 15)]
    );
    machine.ended(4);
    assert_eq!(
        machine.start(process(9, 0, ProcessOrigin::Agent)),
        Err(StartRefusal::Over)
    );
    assert!(machine.keys_due().is_empty());
    assert_eq!(machine.next_timeout(), Some(now + GRACE));
    machine.handle_timeout(now);
    assert!(actions(&mut machine).is_empty());
    machine.handle_timeout(now + GRACE);
    // The other one is killed as soon as it is known which process it is.
    assert_eq!(actions(&mut machine), [signal(3, 9)]);
    machine.started(2);
    assert_eq!(actions(&mut machine), [signal(2, 9)]);
    machine.ended(2);
    assert!(!machine.is_over());
    machine.ended(3);
    assert!(machine.is_over());
}

/// Aim: without its creator, a detached job goes on until all functions have returned.
#[test]
fn a_detached_job_ends_with_its_last_function() {
    let mut machine = AgentMachine::new(None);
    machine.start(process(2, 0, ProcessOrigin::Agent)).unwrap();
    machine.start(process(3, 1, ProcessOrigin::Agent)).unwrap();
    machine.key(2).unwrap();
    // Its key was sent up, and the answer never comes.
    assert_eq!(machine.keys_due(), [2]);
    machine.ask(2, 2).unwrap();
    assert!(machine.leave() && !machine.leave() && machine.has_left());
    assert_eq!(
        actions(&mut machine),
        [
            AgentAction::HangUp { process: 2 },
            AgentAction::Tell {
                process: 2,
                rank: 2
            }
        ]
    );
    assert!(machine.sibling(2, 2).unwrap().reason.contains("has left"));
    // Nobody signs any more.
    machine.key(3).unwrap();
    assert!(machine.keys_due().is_empty());
    assert_eq!(actions(&mut machine), [AgentAction::HangUp { process: 3 }]);
    machine.ended(2);
    machine.returned(3).unwrap();
    assert_eq!(machine.news(), (vec![], vec![]));
    machine.handle_timeout(Duration::ZERO);
    assert_eq!(machine.next_timeout(), Some(GRACE));
}

/// Aim: slots that end soon wait longer and longer, and are hopeless only if none of them runs well.
#[test]
fn slots_are_replaced_until_that_is_hopeless() {
    let seconds = Duration::from_secs;
    let mut slots = Replacements::new(2, seconds(0));
    slots.ended(5, 0, seconds(9));
    assert_eq!(slots.next_due(seconds(9)), Some(5));
    slots.ended(6, 0, seconds(9));
    assert_eq!(slots.next_due(seconds(9)), None);
    let soon = slots.next_timeout().unwrap();
    assert_eq!(soon, seconds(9) + Duration::from_millis(200));
    assert_eq!(slots.next_due(soon), Some(6));
    slots.ended(7, 0, soon);
    assert_eq!(
        slots.next_timeout(),
        Some(soon + Duration::from_millis(400))
    );
    // The other one has been there all the time.
    assert!(!slots.is_hopeless(seconds(10)));
    // Where nobody is wanted, nobody is missing.
    slots.vacate(1);
    assert!(slots.is_hopeless(seconds(10)));
    slots.occupy(1, seconds(10));
    assert!(!slots.is_hopeless(seconds(13)));
    slots.no_host(1);
    assert!(slots.is_hopeless(seconds(10)));
    assert_eq!(slots.next_due(seconds(20)), None);
}

proptest! {
    /// Aim: whatever agents say in whatever order, each process ends once, a group is told only when nobody is missing, and a telling names
    /// exactly the members that are there.
    #[test]
    fn tellings_and_ends_are_right_in_any_order(steps in prop::collection::vec((0_u8..6, 0_u32..12), 1..80)) {
        let mut machine = job(2);
        let mut members = machine.fill(3, JobPlacement::AllHosts, None, true).unwrap();
        members.extend(machine.fill(3, JobPlacement::AllHosts, None, true).unwrap());
        let (mut here, mut gone) = (Vec::new(), Vec::new());
        for (what, which) in steps {
            let member = members[which as usize % members.len()];
            let (agent, number) = (member.agent, member.number);
            let mut ended = Vec::new();
            match what {
                0 | 1 => here.extend(machine.here(agent, &[node(agent, number)]).unwrap()),
                2 => ended = machine.ended(agent, number, Some(0), &[]).unwrap(),
                3 => members.extend(machine.replace(number)),
                4 if which == 0 => ended = machine.agent_lost(agent),
                _ => {
                    if let Some(telling) = machine.next_telling() {
                        for (one, is_there) in telling.members {
                            prop_assert!(here.contains(&one) || gone.contains(&one));
                            prop_assert_eq!(is_there, here.contains(&one) && !gone.contains(&one));
                        }
                    }
                }
            }
            for one in ended {
                prop_assert!(!gone.contains(&one.number));
                prop_assert_eq!(one.fate == FutureFate::Settled, here.contains(&one.number));
                gone.push(one.number);
            }
        }
        let left = machine.forget().len();
        prop_assert_eq!(left + gone.len(), members.len());
        let mut numbers: Vec<u32> = members.iter().map(|one| one.number).collect();
        numbers.sort_unstable();
        numbers.dedup();
        prop_assert_eq!(numbers.len(), members.len());
    }
}
