//! What a keeper holds, which nobody outside sees.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use super::*;
use crate::{AttachRequest, Coupler, GivenUp, OWN_KEEPER, Sharing};

/// Its processes are the ones that were lost first, for those at the other ends and for themselves.
#[test]
fn members_of_a_host_that_was_given_up_hear_that_they_were() {
    for is_forgotten in [false, true] {
        hear_of_given_up(is_forgotten);
    }
}

/// `is_forgotten`: nobody tells this host why, as who stood still for too long is not known any more.
fn hear_of_given_up(is_forgotten: bool) {
    let text = "[program.a]\n[program.b]\n[[connection]]\nfrom = \"a.x\"\nto = \"b.x\"";
    let coupling = Coupling::parse(text).unwrap();
    let mut coupler = Coupler::new(coupling.clone());
    let own = coupler.join().unwrap().keeper;
    let mut keepers = [OWN_KEEPER, own].map(|id| Keeper::new(coupling.clone(), id, true));
    let mut heard = Vec::new();
    let mut settle = |keepers: &mut [Keeper; 2], coupler: &mut Coupler| {
        while let Some((index, action)) = keepers
            .iter_mut()
            .enumerate()
            .find_map(|(index, keeper)| Some((index, keeper.next_action()?)))
        {
            match action {
                KeeperAction::Report(report) => coupler.report(index as KeeperId, report),
                KeeperAction::Send {
                    message: KeeperMessage::Gone(gone),
                    ..
                } => heard.push((index, gone.loss.unwrap())),
                _ => {}
            }
            while let Some((whom, order)) = coupler.next_order() {
                for keeper in keepers.iter_mut() {
                    if whom.is_none_or(|whom| whom == keeper.id()) {
                        keeper.order(order.clone());
                    }
                }
            }
        }
        std::mem::take(&mut heard)
    };
    for (index, program) in ["a", "b"].into_iter().enumerate() {
        let attach = MemberMessage::Attach(AttachRequest::new(program, 0, 1));
        let array = MemberMessage::Array {
            name: "x".to_owned(),
            layout: layout(8, 1),
        };
        for message in [attach, array] {
            keepers[index].hear(0, message);
            assert_eq!(settle(&mut keepers, &mut coupler), []);
        }
    }
    keepers[0].keeper_unreachable(own, "no answer");
    coupler.keeper_lost(own, "no answer");
    while let Some((_, order)) = coupler.next_order() {
        keepers[0].order(order);
    }
    let (lost, given_up) = coupler.next_given_up().unwrap();
    assert_eq!(lost, own);
    keepers[1].given_up(match is_forgotten {
        true => GivenUp::alone("no such link"),
        false => given_up,
    });
    let heard = settle(&mut keepers, &mut coupler);
    let whom: Vec<usize> = heard.iter().map(|(index, _)| *index).collect();
    assert_eq!(whom, [0, 1]);
    for (_, loss) in heard {
        assert_eq!((loss.program.as_str(), loss.rank), ("b", 0));
    }
}

fn layout(length: u64, grid: u32) -> LayoutDescription {
    LayoutDescription {
        shape: vec![length],
        element: "<f8".to_owned(),
        sharing: vec![Sharing::Word("block".to_owned())],
        grid: vec![grid],
        halo: vec![0],
        fortran: false,
    }
}

#[test]
fn a_layout_is_kept_until_it_is_answered_and_of_who_is_gone_not_at_all() {
    let text = "[program.a]\n[program.b]\n[[connection]]\nfrom = \"a.x\"\nto = \"b.x\"";
    let coupling = Coupling::parse(text).unwrap();
    let mut keeper = Keeper::new(coupling.clone(), OWN_KEEPER, false);
    let mut coupler = Coupler::new(coupling);
    let mut say = |keeper: &mut Keeper, id, message, is_answered| {
        keeper.hear(id, message);
        while let Some(action) = keeper.next_action() {
            if let KeeperAction::Report(report) = action {
                coupler.report(OWN_KEEPER, report);
            }
            while let Some((_, order)) = coupler.next_order().filter(|_| is_answered) {
                keeper.order(order);
            }
        }
    };
    for rank in 0..2 {
        let attach = MemberMessage::Attach(AttachRequest::new("a", rank, 2));
        say(&mut keeper, u64::from(rank), attach, true);
    }
    let array = |length| MemberMessage::Array {
        name: "x".to_owned(),
        layout: layout(length, 2),
    };
    say(&mut keeper, 0, array(8), true);
    assert!(keeper.members[&0].asked.is_empty());
    assert_eq!(keeper.members[&0].arrays["x"].bytes, 4 * 8);
    // The coupler has not answered yet.
    say(&mut keeper, 1, array(8), false);
    assert_eq!(keeper.members[&1].asked["x"], layout(8, 2));
    keeper.lost(1, "its process ended without leave()");
    assert!(keeper.members[&1].asked.is_empty());
}
