//! What a keeper holds, which nobody outside sees.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use super::*;
use crate::{Coupler, OWN_KEEPER, Sharing};

#[test]
fn a_layout_is_kept_until_it_is_answered_and_of_who_is_gone_not_at_all() {
    let text = "[program.a]\n[program.b]\n[[connection]]\nfrom = \"a.x\"\nto = \"b.x\"";
    let coupling = Coupling::parse(text).unwrap();
    let mut keeper = Keeper::new(coupling.clone(), OWN_KEEPER, false);
    let mut coupler = Coupler::new(coupling);
    let layout = |length| LayoutDescription {
        shape: vec![length],
        element: "<f8".to_owned(),
        sharing: vec![Sharing::Word("block".to_owned())],
        grid: vec![2],
        halo: vec![0],
        fortran: false,
    };
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
        layout: layout(length),
    };
    say(&mut keeper, 0, array(8), true);
    assert!(keeper.members[&0].asked.is_empty());
    assert_eq!(keeper.members[&0].arrays["x"].bytes, 4 * 8);
    // The coupler has not answered yet.
    say(&mut keeper, 1, array(8), false);
    assert_eq!(keeper.members[&1].asked["x"], layout(8));
    keeper.lost(1, "its process ended without leave()");
    assert!(keeper.members[&1].asked.is_empty());
}
