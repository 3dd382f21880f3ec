//! Contracts: who is asked for slots, who gives them back, and what the manager says of it.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod site;

use std::time::Duration;

use exoskel_flow::contract::{Contract, Tier};
use exoskel_link::CloseReason;
use exoskel_node::SessionId;
use exoskel_node::manager::history::ChangeKind;
use exoskel_node::manager::recruiter::{SlotSource, SlotSources};
use exoskel_node::manager::{Arrival, JoinError, ManagerAction};
use exoskel_task::message::ToManager;

use self::site::{REST, Site, finished};

fn hosts(names: &[&str]) -> SlotSources {
    SlotSources {
        slots: 1,
        hosts: names.iter().map(|&name| name.to_owned()).collect(),
        ..SlotSources::default()
    }
}

fn between(slots_min: u32, slots_max: u32) -> Contract {
    Contract {
        slots_max,
        ..Contract::fixed(slots_min)
    }
}

fn kinds(site: &Site) -> Vec<ChangeKind> {
    let changes = site.machine.history().changes();
    changes.map(|change| change.kind).collect()
}

/// A slot in a trusted domain that can work.
fn serve(site: &mut Site, host: usize, name: &str, domain: Option<&str>) -> SessionId {
    let source = SlotSource::Host(host);
    let slot = site.join_in(source, name, 4, domain).unwrap();
    site.say(slot, &ToManager::Ready { lacks: Vec::new() });
    slot
}

/// Children that were started since this was last asked.
fn started(site: &mut Site) -> Vec<u32> {
    let started = site.actions.iter().filter_map(|action| match action {
        ManagerAction::Start(child) => Some(*child),
        _ => None,
    });
    let started = started.collect();
    site.actions.clear();
    started
}

/// Aim: a range begins with its fewest slots, and grows while slots are full of items that take long.
#[test]
fn a_range_begins_small_and_grows_while_slots_are_full() {
    let sources = SlotSources {
        slots: 2,
        children: true,
        ..SlotSources::default()
    };
    let mut site = Site::contracted(sources, between(2, 6));
    assert_eq!(started(&mut site), [0, 1]);
    for child in 0..2 {
        site.serve(SlotSource::Child(child), "local", 1);
    }
    // Two items run, and others wait, for as long as this is played.
    (1..=20).for_each(|stream| site.open(stream));
    for _ in 0..100 {
        site.pass(Duration::from_millis(250));
    }
    let children = started(&mut site);
    assert_eq!(
        children,
        [2, 3],
        "twice as many, and no more until these are there"
    );
    assert_eq!(site.machine.wanted(), 4);
    assert_eq!(kinds(&site)[..2], [ChangeKind::Begin, ChangeKind::Recruit]);
}

/// Aim: places in trusted domains are asked first, as far as the policy says which these are, and the others as far as their cost allows.
#[test]
fn trusted_places_come_first_and_remote_slots_are_bounded() {
    let mut contract = Contract::fixed(6);
    contract.remote_max = Some(1);
    let mut sources = hosts(&["rented", "other", "lab"]);
    sources.slots = 6;
    let mut site = Site::contracted(sources, contract);
    // As long as nobody knows where the others are, each of them would cost something.
    assert_eq!(site.dialled(), [0]);
    site.machine
        .set_tiers(&[Tier::Remote, Tier::Remote, Tier::Trusted]);
    site.machine.recruit(site.now);
    site.look();
    assert_eq!(site.dialled(), [2]);
    serve(&mut site, 2, "lab", Some("lab"));
    assert_eq!(site.dialled(), [2, 2, 2], "it has four slots");
    serve(&mut site, 0, "rented", None);
    assert_eq!(site.dialled(), [], "the other ones would cost too much");
}

/// Aim: a slot that turns out to be outside the trusted domains doesn't get a session when there are as many as may be.
#[test]
fn who_would_cost_too_much_gets_no_session() {
    let mut contract = Contract::fixed(3);
    contract.remote_max = Some(1);
    let sources = SlotSources {
        slots: 3,
        listening: true,
        ..SlotSources::default()
    };
    let mut site = Site::contracted(sources, contract);
    let join = |site: &mut Site, domain: Option<&str>| {
        assert_eq!(site.machine.admit_worker("one"), Ok(Arrival::Placed));
        site.join_in(SlotSource::DialledIn, "one", 1, domain)
    };
    let remote = join(&mut site, None).unwrap();
    let refused = join(&mut site, None).unwrap_err();
    assert!(matches!(&refused, JoinError::Unwanted(why) if why.to_string().contains("Cost")));
    join(&mut site, Some("lab")).unwrap();
    site.end(remote, &finished());
    join(&mut site, None).unwrap();
}

/// Aim: a slot that is given back gets nothing more, finishes what it has, ends in order, is no loss, and is not replaced; one outside the
/// trusted domains goes first.
#[test]
fn a_slot_that_is_given_back_finishes_what_it_has() {
    let mut sources = hosts(&["lab", "rented"]);
    sources.slots = 1;
    let mut site = Site::contracted(sources, between(1, 4));
    site.machine.set_tiers(&[Tier::Trusted, Tier::Remote]);
    site.dialled();
    let lab = serve(&mut site, 0, "lab", Some("lab"));
    site.machine.want(2, site.now);
    site.look();
    site.dialled();
    let rented = serve(&mut site, 1, "rented", None);
    // Both have an item.
    (1..=2).for_each(|stream| site.open(stream));
    site.actions.clear();
    site.machine.want(1, site.now);
    site.look();
    assert_eq!(site.ended(), [], "it has an item");
    site.open(3);
    assert_ne!(site.given(), Some(rented));
    site.machine.close_stream(1, site.now);
    site.machine.close_stream(2, site.now);
    site.look();
    let ended = site.ended();
    assert!(
        ended.is_empty() || ended == [(rented, CloseReason::Finished)],
        "{ended:?}"
    );
    site.end(rented, &finished());
    site.pass(REST);
    assert_eq!(site.dialled(), [], "nobody takes its place");
    assert!(!kinds(&site).contains(&ChangeKind::Loss));
    assert_eq!(site.machine.recruited().ready, 1);
    // The other one is a loss, and its place is taken.
    site.end(lab, &site::broken());
    assert!(kinds(&site).contains(&ChangeKind::Loss));
    site.pass(REST);
    assert_eq!(site.dialled(), [1], "the other one rests");
    serve(&mut site, 2, "rented", None);
    assert_eq!(kinds(&site).last(), Some(&ChangeKind::Replace));
}

/// Aim: a slot that was given back and has not gone stays if slots are missing again: what it holds may wait for a slot that works, so that all would
/// wait in a circle. Method: of two slots with an item each, one is given back; then both are wanted again, or the other one is lost.
#[test]
fn a_slot_that_was_given_back_stays_if_it_is_missed() {
    for is_lost in [false, true] {
        let mut sources = hosts(&["one", "other"]);
        sources.slots = 2;
        let mut site = Site::new(sources);
        site.dialled();
        let mut slots = [("one", 0), ("other", 1)].map(|(name, host)| {
            let source = SlotSource::Host(host);
            let slot = site.join(source, name).unwrap();
            site.say(slot, &ToManager::Ready { lacks: Vec::new() });
            site.open(1 + host as u64);
            slot
        });
        site.machine.want(1, site.now);
        site.look();
        site.actions.clear();
        site.open(3);
        if site.given() == Some(slots[0]) {
            slots.reverse();
        }
        let [given_back, left] = slots;
        match is_lost {
            true => site.end(left, &site::broken()),
            false => site.machine.want(2, site.now),
        }
        site.look();
        assert_eq!(site.machine.recruited().ready, 2 - u32::from(is_lost));
        (4..8).for_each(|stream| site.open(stream));
        let sent = site.actions.iter().filter_map(|action| match action {
            ManagerAction::Send { session, .. } => Some(*session),
            _ => None,
        });
        assert!(sent.into_iter().any(|slot| slot == given_back));
        // Wanted for a moment, given back, wanted: whoever goes on is not given back as well.
        if !is_lost {
            for slots in [1, 2, 1] {
                site.machine.want(slots, site.now);
                site.look();
            }
            assert_eq!(site.machine.recruited().ready, 1);
        }
        assert_eq!(site.ended(), []);
    }
}
