//! Properties: what is written is read, narrowing never widens, and the order of caveats matters to proofs only.

use std::collections::BTreeSet;
use std::sync::LazyLock;

use exoskel_identity::VerifiedIdentity;
use exoskel_link::Protection;
use exoskel_link::capability::{
    CAVEATS_MAX, CapabilityError, Caveat, NewStartpoint, Presentation, Startpoint,
};
use proptest::collection::{btree_set, vec};
use proptest::prelude::*;
use proptest::sample::{Index, select};

use super::{NOW, bearer, bound, holder, holders, opened, proof_of, root, shown, with_proof};

static HOLDERS: LazyLock<[VerifiedIdentity; 3]> = LazyLock::new(|| {
    [
        "plotter.example.org",
        "ocean.example.org",
        "a.cloud.example.net",
    ]
    .map(holders::named)
});

const PATTERNS: [&str; 6] = [
    "*",
    "*.example.org",
    "plotter.example.org",
    "p*.example.org",
    "*.cloud.example.net",
    "/testvo/Role=production",
];

fn protection() -> impl Strategy<Value = Protection> {
    select(&Protection::ALL[..])
}

fn handlers() -> impl Strategy<Value = BTreeSet<String>> {
    btree_set("[abc]", 1..4)
}

fn caveat() -> impl Strategy<Value = Caveat> {
    prop_oneof![
        handlers().prop_map(Caveat::Handlers),
        (NOW - 2..NOW + 5).prop_map(Caveat::Expires),
        select(&PATTERNS[..]).prop_map(holder),
        vec(select(&PATTERNS[..]), 1..4).prop_map(|some| Caveat::holders(some).unwrap()),
        protection().prop_map(Caveat::Protection),
    ]
}

/// What can be issued: for somebody, unless it is a bearer's.
fn new() -> impl Strategy<Value = NewStartpoint> {
    let parts = (
        vec("[a-zäß:/.]{0,40}", 0..4),
        protection(),
        any::<bool>(),
        select(&PATTERNS[..]),
        vec(caveat(), 0..5),
    );
    parts.prop_map(|(hints, minimum, is_bearer, pattern, mut caveats)| {
        if !is_bearer {
            caveats.push(holder(pattern));
        }
        NewStartpoint {
            hints,
            minimum,
            bearer: is_bearer,
            ..bound(caveats)
        }
    })
}

fn presented() -> impl Strategy<Value = Presentation<'static>> {
    (0..3_usize, protection(), any::<bool>()).prop_map(|(who, protection, same_host)| {
        Presentation {
            protection,
            same_host,
            ..shown(&HOLDERS[who])
        }
    })
}

proptest! {
    #[test]
    fn what_is_written_is_read(new in new(), more in vec(caveat(), 0..4)) {
        let Ok(mut startpoint) = root().issue(new) else { return Ok(()) };
        for caveat in more {
            startpoint = startpoint.attenuate(caveat).unwrap_or(startpoint);
        }
        let bytes = startpoint.encode();
        let read = Startpoint::read(&bytes);
        prop_assert_eq!(read.as_ref(), Ok(&startpoint));
        let text = startpoint.text();
        let parsed = Startpoint::parse(&text);
        prop_assert_eq!(parsed.as_ref(), Ok(&startpoint));
        prop_assert_eq!(parsed.unwrap().text(), text);
    }

    /// Who holds a startpoint can only lose: what the narrower one opens, the wider one opens too, and with no less.
    #[test]
    fn narrowing_never_widens(new in new(), added in caveat(), presented in presented()) {
        let mut root = root();
        let Ok(wide) = root.issue(new) else { return Ok(()) };
        let Ok(narrow) = wide.attenuate(added.clone()) else {
            // Only where no handler would be left, which opens nothing.
            prop_assert!(matches!(added, Caveat::Handlers(_)));
            return Ok(());
        };
        prop_assert!(narrow.needs(false) >= wide.needs(false));
        prop_assert!(narrow.needs(true) >= wide.needs(true));
        let wider = opened(&root, &wide, &presented);
        if let Ok(narrower) = opened(&root, &narrow, &presented) {
            let wider = wider.unwrap();
            prop_assert!(narrower.protection >= wider.protection);
            prop_assert!(narrower.expires.unwrap_or(u64::MAX) <= wider.expires.unwrap_or(u64::MAX));
            match (narrower.handlers, wider.handlers) {
                (Some(narrower), Some(wider)) => prop_assert!(narrower.is_subset(&wider)),
                (None, Some(_)) => prop_assert!(false, "all handlers, from some"),
                (_, None) => {}
            }
        }
    }

    /// The caveats of a startpoint mean the same in any order, but each order has a chain of its own.
    #[test]
    fn order_changes_proofs_and_nothing_else(
        first in caveat(), second in caveat(), presented in presented(),
    ) {
        let mut root = root();
        let start = root.issue(bearer(vec![])).unwrap();
        let add = |one: &Caveat, other: &Caveat| start.attenuate(one.clone())?.attenuate(other.clone());
        let (Ok(forth), Ok(back)) = (add(&first, &second), add(&second, &first)) else { return Ok(()) };
        prop_assert_eq!(forth.allowance(), back.allowance());
        let (one, other) = (opened(&root, &forth, &presented), opened(&root, &back, &presented));
        prop_assert_eq!(one.is_ok(), other.is_ok());
        if first != second {
            let right = |startpoint: &Startpoint| startpoint.right(presented.binding, presented.link);
            let swapped = with_proof(&right(&forth), &proof_of(&right(&back)));
            prop_assert_eq!(root.verify(&swapped, &presented), Err(CapabilityError::Forged));
        }
    }

    /// Caveats added by holders are as good as those of the owner.
    #[test]
    fn narrowing_is_the_same_as_issuing_narrower(
        caveats in vec(caveat(), 1..6), at: Index, presented in presented(),
    ) {
        let cut = at.index(caveats.len());
        let whole = root().issue(bearer(caveats.clone()));
        let start = root().issue(bearer(caveats[..cut].to_vec()));
        let narrowed = start.and_then(|start| {
            caveats[cut..].iter().try_fold(start, |one, caveat| one.attenuate(caveat.clone()))
        });
        prop_assert_eq!(narrowed.is_ok(), whole.is_ok());
        if let (Ok(whole), Ok(narrowed)) = (whole, narrowed) {
            prop_assert_eq!(&whole, &narrowed);
            prop_assert_eq!(opened(&root(), &whole, &presented), opened(&root(), &narrowed, &presented));
        }
    }
}

#[test]
fn caveats_are_counted() {
    let mut startpoint = root().issue(bearer(vec![])).unwrap();
    // The endpoint's minimum protection is one already.
    for _ in 1..CAVEATS_MAX {
        startpoint = startpoint.attenuate(Caveat::Expires(NOW)).unwrap();
    }
    assert_eq!(
        Startpoint::parse(&startpoint.text()).as_ref(),
        Ok(&startpoint)
    );
    assert_eq!(
        startpoint.attenuate(Caveat::Expires(NOW)),
        Err(CapabilityError::TooManyCaveats)
    );
}

#[test]
fn handlers_intersect_expiries_take_the_earliest_and_protections_the_strictest() {
    let startpoint = root()
        .issue(bound(usual_and_more()))
        .unwrap()
        .attenuate(Caveat::Protection(Protection::Encrypted))
        .unwrap();
    let allowance = startpoint.allowance();
    assert_eq!(allowance.handlers, Some(["b".to_owned()].into()));
    assert_eq!(allowance.expires, Some(NOW + 1));
    assert_eq!(allowance.protection, Protection::Encrypted);
    assert_eq!(startpoint.needs(true), Protection::Encrypted);
    assert_eq!(
        startpoint.attenuate(Caveat::handlers(["a"])),
        Err(CapabilityError::NoHandlerLeft)
    );
}

fn usual_and_more() -> Vec<Caveat> {
    vec![
        holder("*.example.org"),
        Caveat::handlers(["a", "b"]),
        Caveat::Expires(NOW + 9),
        Caveat::handlers(["b", "c"]),
        Caveat::Expires(NOW + 1),
        Caveat::Expires(NOW + 5),
    ]
}
