//! Whose word counts when keepers speak of processes and of each other, and what they can have others keep.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::collections::BTreeMap;

use exoskel_redist::{AxisSharing, ElementType, Layout, MemoryOrder};
use exoskel_transfer::{
    AttachRequest, ConnectionState, CoupledEnd, Coupler, CouplerOrder, Coupling, GivenUp,
    GoneMember, KEEPERS_MAX, Keeper, KeeperAction, KeeperId, KeeperMessage, KeeperReport,
    LayoutDescription, Loss, MEMBERS_OF_KEEPER_MAX, MemberMessage, PieceHead, REASON_BYTES_MAX,
    RankPair, WantedVersion,
};

const TWO: &str = r#"
    [program.ocean]
    [program.atmosphere]
    [[connection]]
    from = "ocean.sst"
    to = "atmosphere.sst"
"#;

fn layout(processes: u32) -> LayoutDescription {
    let sharing = vec![AxisSharing::Block];
    let (element, order) = (ElementType::FLOAT64, MemoryOrder::C);
    let layout = Layout::new(&[8], element, sharing, &[processes], &[0], order);
    LayoutDescription::of(&layout.unwrap())
}

fn coupler_of(keepers: KeeperId) -> Coupler {
    let mut coupler = Coupler::new(Coupling::parse(TWO).unwrap());
    for number in 1..=keepers {
        assert_eq!(coupler.join().unwrap().keeper, number);
    }
    coupler
}

/// A process comes, and describes its program's array.
fn attach(coupler: &mut Coupler, keeper: KeeperId, program: &str, rank: u32, size: u32) {
    let program = || program.to_owned();
    let attach = KeeperReport::Attach {
        program: program(),
        rank,
        size,
    };
    coupler.report(keeper, attach);
    let array = KeeperReport::Array {
        program: program(),
        rank,
        name: "sst".to_owned(),
        layout: layout(size),
    };
    coupler.report(keeper, array);
}

fn orders(coupler: &mut Coupler) -> Vec<(Option<KeeperId>, CouplerOrder)> {
    std::iter::from_fn(|| coupler.next_order()).collect()
}

fn given_up(coupler: &mut Coupler) -> Vec<KeeperId> {
    let given_up = std::iter::from_fn(|| coupler.next_given_up());
    given_up.map(|(keeper, _)| keeper).collect()
}

fn gone(program: &str, rank: u32, why: Option<&str>) -> GoneMember {
    GoneMember {
        program: program.to_owned(),
        rank,
        loss: why.map(|why| Loss {
            program: "somebody else".to_owned(),
            rank: 77,
            why: why.to_owned(),
        }),
        exported: BTreeMap::from([("sst".to_owned(), 3), ("junk".to_owned(), 4)]),
        lost_since: None,
    }
}

fn unreachable(keeper: KeeperId) -> KeeperReport {
    KeeperReport::Unreachable {
        keeper,
        why: "no answer".to_owned(),
    }
}

#[test]
fn a_keeper_speaks_for_its_own_processes_once_and_in_few_words() {
    let mut coupler = coupler_of(2);
    attach(&mut coupler, 1, "atmosphere", 0, 1);
    orders(&mut coupler);
    let killed = || KeeperReport::Gone(gone("atmosphere", 0, Some(&"why ".repeat(10_000))));
    coupler.report(2, killed());
    assert_eq!(orders(&mut coupler), []);
    coupler.report(1, killed());
    let said = orders(&mut coupler);
    let told = said.iter().find_map(|(_, order)| match order {
        CouplerOrder::Gone(gone) => Some(gone.clone()),
        _ => None,
    });
    let told = told.unwrap();
    let loss = told.loss.unwrap();
    assert_eq!((loss.program.as_str(), loss.rank), ("atmosphere", 0));
    assert!(loss.why.len() <= REASON_BYTES_MAX);
    assert_eq!(told.exported, BTreeMap::from([("sst".to_owned(), 3)]));
    coupler.report(1, killed());
    assert_eq!(orders(&mut coupler), []);
}

#[test]
fn who_cannot_be_reached_is_given_up_only_for_those_who_need_it() {
    let mut coupler = coupler_of(3);
    attach(&mut coupler, 1, "ocean", 0, 1);
    attach(&mut coupler, 2, "atmosphere", 0, 1);
    assert_eq!(coupler.connections()[0].state, ConnectionState::Ready);
    orders(&mut coupler);
    // Nothing goes between these two, and nobody has joined as the last one.
    for (keeper, other) in [(3, 1), (1, 3), (1, 9)] {
        coupler.report(keeper, unreachable(other));
        assert_eq!(orders(&mut coupler), []);
    }
    // It may have left, and said so: what it has said comes first.
    coupler.report(1, unreachable(2));
    assert_eq!(orders(&mut coupler), [(Some(2), CouplerOrder::Doubt)]);
    coupler.report(2, KeeperReport::Present);
    assert_eq!(given_up(&mut coupler), [2]);
    let lost = coupler.first_lost().unwrap();
    assert_eq!((lost.program.as_str(), lost.rank), ("atmosphere", 0));
    assert!(
        lost.why
            .contains("keeper 1 can't reach keeper 2: no answer")
    );
    // Whoever can't reach the coupler's host is lost to it.
    coupler.report(3, unreachable(0));
    assert_eq!(given_up(&mut coupler), [3]);
}

/// Each sees the other one silent at the same moment, and the coupler sees both: only one of them can be lost.
#[test]
fn of_two_that_cannot_reach_each_other_one_is_given_up() {
    for first in [1, 2] {
        let mut coupler = coupler_of(2);
        attach(&mut coupler, 1, "ocean", 0, 1);
        attach(&mut coupler, 2, "atmosphere", 0, 1);
        orders(&mut coupler);
        coupler.report(1, unreachable(2));
        coupler.report(2, unreachable(1));
        let doubts = [
            (Some(2), CouplerOrder::Doubt),
            (Some(1), CouplerOrder::Doubt),
        ];
        assert_eq!(orders(&mut coupler), doubts);
        for keeper in [first, 3 - first] {
            coupler.report(keeper, KeeperReport::Present);
        }
        let (lost, given_up) = coupler.next_given_up().unwrap();
        assert_eq!(lost, first);
        // What its own processes are told is what all others hear.
        assert_eq!(given_up.first_lost.as_ref(), coupler.first_lost());
        assert_eq!(coupler.next_given_up(), None);
    }
}

/// What one keeper doubts others may doubt for themselves.
#[test]
fn a_doubt_goes_on_when_another_one_who_had_it_is_lost() {
    let mut coupler = coupler_of(3);
    attach(&mut coupler, 1, "ocean", 0, 2);
    attach(&mut coupler, 3, "ocean", 1, 2);
    attach(&mut coupler, 2, "atmosphere", 0, 1);
    for keeper in [1, 3] {
        coupler.report(keeper, unreachable(2));
    }
    coupler.keeper_lost(1, "no answer");
    coupler.report(2, KeeperReport::Present);
    assert_eq!(given_up(&mut coupler), [1, 2]);
    let mut coupler = coupler_of(2);
    attach(&mut coupler, 1, "ocean", 0, 1);
    attach(&mut coupler, 2, "atmosphere", 0, 1);
    coupler.report(1, unreachable(2));
    coupler.keeper_lost(1, "no answer");
    coupler.report(2, KeeperReport::Present);
    assert_eq!(given_up(&mut coupler), [1]);
}

#[test]
fn a_keeper_that_ends_after_its_processes_is_no_loss() {
    let mut coupler = coupler_of(1);
    attach(&mut coupler, 1, "ocean", 0, 1);
    attach(&mut coupler, 0, "atmosphere", 0, 1);
    coupler.report(1, KeeperReport::Gone(gone("ocean", 0, None)));
    orders(&mut coupler);
    coupler.keeper_lost(1, "it has ended");
    assert_eq!(coupler.first_lost(), None);
    let said = orders(&mut coupler);
    let [(None, CouplerOrder::Gone(told))] = said.as_slice() else {
        panic!("{said:?}");
    };
    // Who still waits for a version of it learns that it is lost; who has had all goes by the end in good order.
    assert_eq!((&told.loss, told.exported["sst"]), (&None, 3));
    assert!(
        told.lost_since
            .as_ref()
            .unwrap()
            .why
            .contains("it has ended")
    );
}

/// Aim: who waits for a version of a process that has left hears of the same first loss as all others, when its host is lost.
#[test]
fn what_has_left_a_lost_host_is_lost_by_the_first_loss_too() {
    let mut coupler = coupler_of(2);
    for rank in 0..2 {
        attach(&mut coupler, 1, "ocean", rank, 2);
    }
    attach(&mut coupler, 2, "atmosphere", 0, 1);
    coupler.report(1, KeeperReport::Gone(gone("ocean", 0, None)));
    orders(&mut coupler);
    coupler.keeper_lost(1, "no answer");
    let told = orders(&mut coupler).into_iter().map(|(_, order)| order);
    let named = told.filter_map(|order| match order {
        CouplerOrder::Gone(gone) => Some((gone.rank, gone.loss.or(gone.lost_since)?.rank)),
        _ => None,
    });
    let mut named: Vec<(u32, u32)> = named.collect();
    named.sort_unstable();
    assert_eq!(named, [(0, 1), (1, 1)]);
    assert_eq!(coupler.first_lost().unwrap().rank, 1);
    // The host that was given up says the same of what it hears later.
    let mut keeper = exporter();
    connect(&mut keeper, &[2]);
    keeper.order(CouplerOrder::Gone(gone("atmosphere", 0, None)));
    let first_lost = coupler.first_lost().cloned();
    keeper.given_up(GivenUp {
        why: "no answer".to_owned(),
        first_lost,
    });
    actions(&mut keeper);
    let mut less = gone("atmosphere", 0, None);
    less.exported.clear();
    keeper.told_gone(2, less);
    let said = actions(&mut keeper).into_iter();
    let mut since = said.filter_map(|action| match action {
        KeeperAction::Send {
            message: KeeperMessage::Gone(gone),
            ..
        } => gone.lost_since,
        _ => None,
    });
    let since = since.next().unwrap();
    assert_eq!((since.program.as_str(), since.rank), ("ocean", 1));
}

#[test]
fn who_dies_before_it_is_let_in_is_gone() {
    let mut coupler = coupler_of(1);
    let mut keeper = Keeper::new(Coupling::parse(TWO).unwrap(), 1, true);
    let attach = MemberMessage::Attach(AttachRequest::new("ocean", 0, 2));
    keeper.hear(5, attach);
    keeper.lost(5, "its process ended without leave()");
    while let Some(action) = keeper.next_action() {
        if let KeeperAction::Report(report) = action {
            coupler.report(1, report);
        }
    }
    let program = coupler.programs().next().unwrap();
    assert_eq!((program.present, program.gone), (1, 1));
    assert_eq!(coupler.first_lost().unwrap().rank, 0);
}

#[test]
fn no_more_keepers_join_than_are_good_for_anybody() {
    let mut coupler = coupler_of(KEEPERS_MAX);
    let refused = coupler.join().unwrap_err();
    assert!(refused.contains("1024 keepers have joined already"));
}

#[test]
fn a_refusal_is_told_in_few_words() {
    let mut coupler = coupler_of(1);
    attach(&mut coupler, 0, "atmosphere", 0, 1);
    let long = "long ".repeat(10_000);
    let refused = KeeperReport::Refused {
        program: "ocean".to_owned(),
        reason: long.clone(),
    };
    coupler.report(1, refused);
    let attach = KeeperReport::Attach {
        program: long,
        rank: 0,
        size: 1,
    };
    coupler.report(1, attach);
    for (program, reason) in coupler.refusals() {
        assert!(program.len() + reason.len() <= 2 * REASON_BYTES_MAX);
    }
    let ConnectionState::Failed(why) = &coupler.connections()[0].state else {
        panic!("{:?}", coupler.connections());
    };
    assert!(why.len() <= 2 * REASON_BYTES_MAX);
}

#[test]
fn the_end_of_a_command_does_not_overtake_what_its_processes_said_elsewhere() {
    let mut coupler = coupler_of(2);
    attach(&mut coupler, 2, "atmosphere", 0, 1);
    orders(&mut coupler);
    coupler.program_ended("ocean");
    let asked = orders(&mut coupler);
    let keepers: Vec<_> = asked.iter().map(|(keeper, _)| *keeper).collect();
    assert_eq!(keepers, [Some(1), Some(2)]);
    // What it said last is still on its way when the command ends.
    attach(&mut coupler, 1, "ocean", 0, 2);
    let ended = |program: &str| KeeperReport::ProgramEnded {
        program: program.to_owned(),
    };
    coupler.report(1, ended("ocean"));
    coupler.report(2, ended("ocean"));
    assert_eq!(coupler.connections()[0].state, ConnectionState::Waiting);
    // When no process of it is anywhere, nobody waits for the rest.
    coupler.report(1, KeeperReport::Gone(gone("ocean", 0, None)));
    let ConnectionState::Failed(why) = &coupler.connections()[0].state else {
        panic!("{:?}", coupler.connections());
    };
    assert!(why.contains("ocean has ended, and only 1 of its 2 processes have said"));
}

#[test]
fn a_keeper_that_is_lost_answers_for_no_program_any_more() {
    let mut coupler = coupler_of(2);
    attach(&mut coupler, 2, "atmosphere", 0, 1);
    coupler.program_ended("ocean");
    coupler.report(
        2,
        KeeperReport::ProgramEnded {
            program: "ocean".to_owned(),
        },
    );
    assert_eq!(coupler.connections()[0].state, ConnectionState::Waiting);
    coupler.keeper_lost(1, "no answer");
    let ConnectionState::Failed(why) = &coupler.connections()[0].state else {
        panic!("{:?}", coupler.connections());
    };
    assert!(why.contains("ocean has ended without a Member"));
}

/// A keeper with rank 0 of 1 of a program, whose array is there.
fn keeper_of(number: KeeperId, program: &str) -> Keeper {
    let mut keeper = Keeper::new(Coupling::parse(TWO).unwrap(), number, true);
    keeper.hear(5, MemberMessage::Attach(AttachRequest::new(program, 0, 1)));
    keeper.order(CouplerOrder::Attached {
        program: program.to_owned(),
        rank: 0,
    });
    let name = || "sst".to_owned();
    let layout = layout(1);
    keeper.hear(
        5,
        MemberMessage::Array {
            name: name(),
            layout,
        },
    );
    keeper.order(CouplerOrder::Array {
        program: program.to_owned(),
        rank: 0,
        name: name(),
        sources: Vec::new(),
        targets: Vec::new(),
    });
    keeper
}

/// A keeper with rank 0 of ocean, which has exported a version.
fn exporter() -> Keeper {
    let mut keeper = keeper_of(1, "ocean");
    let exported = MemberMessage::Exported {
        name: "sst".to_owned(),
        version: 1,
    };
    keeper.hear(5, exported);
    keeper
}

/// Aim: of two processes elsewhere one has given its part of a version, and its keeper has ended. Who waits for the other one's part is told
/// that it needs the first one no more, whichever of the two is heard first.
#[test]
fn who_has_all_of_a_lost_keeper_needs_it_no_more() {
    for is_part_first in [true, false] {
        let mut keeper = keeper_of(3, "atmosphere");
        let end = |size, keepers: &[KeeperId]| {
            Box::new(CoupledEnd {
                layout: layout(size),
                keepers: keepers.to_vec(),
            })
        };
        keeper.order(CouplerOrder::Connect {
            connection: 0,
            source: end(2, &[1, 2]),
            target: end(1, &[3]),
        });
        let want = MemberMessage::Want {
            connection: 0,
            version: 1,
        };
        keeper.hear(5, want);
        actions(&mut keeper);
        let mut lost = gone("ocean", 0, None);
        lost.lost_since = Some(Loss {
            program: "ocean".to_owned(),
            rank: 0,
            why: "its keeper has ended".to_owned(),
        });
        let head = PieceHead {
            keeper: 1,
            pair: RankPair {
                connection: 0,
                source: 0,
                target: 0,
            },
            version: 1,
            piece: 0,
        };
        if !is_part_first {
            keeper.order(CouplerOrder::Gone(lost.clone()));
        }
        assert!(keeper.expected(&head).is_some());
        keeper.arrived(&head, true);
        if is_part_first {
            keeper.order(CouplerOrder::Gone(lost.clone()));
        }
        let said = actions(&mut keeper).into_iter();
        let said = said.filter_map(|action| match action {
            KeeperAction::Send { message, .. } => Some(message),
            _ => None,
        });
        let came = KeeperMessage::Came {
            connection: 0,
            rank: 0,
            version: 1,
        };
        let mut expected = vec![came, KeeperMessage::Gone(lost)];
        if !is_part_first {
            expected.reverse();
        }
        assert_eq!(said.collect::<Vec<_>>(), expected);
    }
}

fn connect(keeper: &mut Keeper, targets: &[KeeperId]) {
    let end = |keepers: &[KeeperId]| {
        Box::new(CoupledEnd {
            layout: layout(keepers.len() as u32),
            keepers: keepers.to_vec(),
        })
    };
    keeper.order(CouplerOrder::Connect {
        connection: 0,
        source: end(&[1]),
        target: end(targets),
    });
}

fn actions(keeper: &mut Keeper) -> Vec<KeeperAction> {
    std::iter::from_fn(|| keeper.next_action()).collect()
}

fn departures(keeper: &mut Keeper) -> Vec<(KeeperId, u32)> {
    let actions = actions(keeper).into_iter();
    let departures = actions.filter_map(|action| match action {
        KeeperAction::Depart { keeper, pair, .. } => Some((keeper, pair.target)),
        _ => None,
    });
    departures.collect()
}

fn wanted(keeper: KeeperId, target: u32) -> WantedVersion {
    WantedVersion {
        keeper,
        connection: 0,
        target,
        version: 1,
    }
}

#[test]
fn what_one_keeper_wants_early_pushes_out_nothing_of_another() {
    let mut keeper = exporter();
    keeper.wanted(wanted(2, 0));
    for target in 0..2 * MEMBERS_OF_KEEPER_MAX as u32 {
        keeper.wanted(wanted(3, target));
    }
    keeper.wanted(wanted(4, 1));
    actions(&mut keeper);
    connect(&mut keeper, &[2, 4]);
    assert_eq!(departures(&mut keeper), [(2, 0), (4, 1)]);
    // A process that the program hasn't got wants nothing.
    keeper.wanted(wanted(4, 2));
    assert_eq!(departures(&mut keeper), []);
}

#[test]
fn nobody_waits_for_what_a_lost_keeper_should_have_been_sent() {
    let mut keeper = exporter();
    connect(&mut keeper, &[2]);
    keeper.wanted(wanted(2, 0));
    assert_eq!(departures(&mut keeper), [(2, 0)]);
    keeper.lose(gone("atmosphere", 0, None));
    keeper.hear(5, MemberMessage::Leave { error: None });
    actions(&mut keeper);
    assert_eq!(keeper.needed_count(), 1);
    keeper.not_departed(RankPair {
        connection: 0,
        source: 0,
        target: 0,
    });
    let released = actions(&mut keeper);
    let is_all = |action: &KeeperAction| matches!(action, KeeperAction::Release { version, .. } if *version == u64::MAX);
    assert!(released.iter().any(is_all), "{released:?}");
    assert_eq!(keeper.needed_count(), 0);
}

/// Aim: what was lent to a keeper that never says that it has it keeps nobody waiting when that keeper is given up, and counts as taken by nobody.
#[test]
fn nobody_waits_for_what_a_keeper_that_was_given_up_does_not_confirm() {
    for has_left in [true, false] {
        let mut keeper = exporter();
        connect(&mut keeper, &[2]);
        keeper.wanted(wanted(2, 0));
        assert_eq!(departures(&mut keeper), [(2, 0)]);
        let why = (!has_left).then_some("killed");
        keeper.order(CouplerOrder::Gone(gone("atmosphere", 0, why)));
        actions(&mut keeper);
        keeper.sends_no_more(3);
        assert_eq!(actions(&mut keeper), []);
        keeper.sends_no_more(2);
        let released = actions(&mut keeper).into_iter().map(|action| match action {
            KeeperAction::Release { version, .. } => version,
            other => panic!("{other:?}"),
        });
        let released: Vec<u64> = released.collect();
        assert_eq!(released, [if has_left { u64::MAX } else { 0 }]);
        // It comes back when the link has ended.
        keeper.departed(RankPair {
            connection: 0,
            source: 0,
            target: 0,
        });
        assert_eq!(actions(&mut keeper), []);
    }
}

#[test]
fn the_end_of_the_coupler_is_told_to_all_whom_it_concerns() {
    let mut keeper = exporter();
    // One of whom the coupler hasn't said anything yet, and a connection that isn't ready.
    let attach = MemberMessage::Attach(AttachRequest::new("atmosphere", 0, 1));
    keeper.hear(6, attach.clone());
    actions(&mut keeper);
    keeper.coupler_lost("no answer");
    keeper.hear(7, attach);
    // What was on its way is of no use without what follows.
    connect(&mut keeper, &[2]);
    let said = actions(&mut keeper).into_iter();
    let said: Vec<_> = said
        .filter_map(|action| match action {
            KeeperAction::Send {
                member, message, ..
            } => Some((member, message)),
            _ => None,
        })
        .collect();
    let why = "the coupler was lost: no answer".to_owned();
    let refused = KeeperMessage::Refused {
        reason: why.clone(),
    };
    let failed = KeeperMessage::Failed {
        connection: 0,
        reason: why,
        gone: None,
    };
    assert_eq!(said, [(5, failed), (6, refused.clone()), (7, refused)]);
}

#[test]
fn without_a_coupler_each_keeper_tells_of_its_own_processes() {
    let mut keeper = exporter();
    actions(&mut keeper);
    // Said before the connection is known, and of a process that another keeper has.
    keeper.told_gone(2, gone("atmosphere", 0, Some("killed")));
    keeper.told_gone(3, gone("atmosphere", 1, Some("killed")));
    connect(&mut keeper, &[2, 2]);
    // The coupler is there, and names one first loss for all.
    keeper.told_gone(2, gone("atmosphere", 0, Some("killed")));
    let is_gone = |action: &KeeperAction| {
        matches!(
            action,
            KeeperAction::Send {
                message: KeeperMessage::Gone(_),
                ..
            }
        )
    };
    let said = actions(&mut keeper);
    assert!(!said.iter().any(is_gone), "{said:?}");
    keeper.coupler_lost("no answer");
    let told: Vec<u32> = actions(&mut keeper)
        .into_iter()
        .filter_map(|action| match action {
            KeeperAction::Send {
                message: KeeperMessage::Gone(gone),
                ..
            } => Some(gone.rank),
            _ => None,
        })
        .collect();
    assert_eq!(told, [0]);
}

#[test]
fn what_a_keeper_does_not_know_where_to_send_is_not_waited_for() {
    let mut keeper = exporter();
    connect(&mut keeper, &[2]);
    keeper.order(CouplerOrder::Gone(gone("atmosphere", 0, None)));
    keeper.coupler_lost("no answer");
    actions(&mut keeper);
    // The coupler had not told its keeper of all connections when it was lost.
    let mut less = gone("atmosphere", 0, None);
    less.exported.clear();
    keeper.told_gone(3, less.clone());
    assert_eq!(actions(&mut keeper), []);
    for _ in 0..2 {
        keeper.told_gone(2, less.clone());
    }
    let told = actions(&mut keeper);
    let [
        KeeperAction::Send {
            message: KeeperMessage::Gone(told),
            ..
        },
        KeeperAction::Release { .. },
    ] = told.as_slice()
    else {
        panic!("{told:?}");
    };
    assert_eq!(told.loss, None);
    assert!(told.lost_since.is_some());
}
