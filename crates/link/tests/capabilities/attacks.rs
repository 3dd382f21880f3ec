//! What somebody can do who sees rights pass, or holds a startpoint that allows less than they want.

use exoskel_link::Protection;
use exoskel_link::capability::{
    CapabilityError, Caveat, HOLDERS_MAX, Presentation, Right, RootKey, Startpoint,
};

use super::{
    BINDING, LINK, NOW, PROOF_BYTES, bearer, bound, holder, holders, opened, proof_of, root, shown,
    usual, with_proof,
};

/// A right with these caveats as the owner's first startpoint would have it, whoever made it: only the proof is missing.
fn wanted(caveats: Vec<Caveat>) -> Right {
    let mut own = RootKey::new("coupler", [0x1d; 16], [0; 32]).unwrap();
    let startpoint = own.issue(bound(caveats)).unwrap();
    startpoint.right(&BINDING, LINK)
}

fn tag_of(startpoint: &Startpoint) -> Vec<u8> {
    let bytes = startpoint.encode();
    bytes[bytes.len() - PROOF_BYTES..].to_vec()
}

#[test]
fn a_forged_right_is_refused() {
    let plotter = holders::named("plotter.example.org");
    let refused = root().verify(&wanted(usual()), &shown(&plotter));
    assert_eq!(refused, Err(CapabilityError::Forged));
    let zeros = with_proof(&wanted(usual()), &[0; PROOF_BYTES]);
    let refused = root().verify(&zeros, &shown(&plotter));
    assert_eq!(refused, Err(CapabilityError::Forged));
}

/// The proof of a narrow startpoint, beside caveats that allow more: without one of them, in another order, with another one
/// in its place, with one more in between.
#[test]
fn a_widened_right_is_refused() {
    let mut root = root();
    let plotter = holders::named("plotter.example.org");
    let narrow = root.issue(bound(usual())).unwrap();
    let right = narrow.right(&BINDING, LINK);
    assert!(
        root.verify(
            &with_proof(&wanted(usual()), &proof_of(&right)),
            &shown(&plotter)
        )
        .is_ok()
    );

    let mut others = vec![];
    for index in 1..3 {
        let mut dropped = usual();
        dropped.remove(index);
        others.push(dropped);
    }
    for (one, other) in [(0, 1), (1, 2), (0, 2)] {
        let mut swapped = usual();
        swapped.swap(one, other);
        others.push(swapped);
    }
    for (index, replacement) in [
        (0, holder("*")),
        (1, Caveat::handlers(["surface", "deep", "steer"])),
        (2, Caveat::Expires(NOW + 3601)),
        (2, Caveat::Expires(u64::MAX)),
    ] {
        let mut replaced = usual();
        replaced[index] = replacement;
        others.push(replaced);
    }
    let more = [
        Caveat::holders(["*.example.org", "*.example.net"]),
        Caveat::holders(["*.example.org", "plotter.example.org"]),
    ];
    for more in more {
        let mut replaced = usual();
        replaced[0] = more.unwrap();
        others.push(replaced);
    }
    for index in 0..3 {
        let mut doubled = usual();
        doubled.insert(index, doubled[index].clone());
        others.push(doubled);
    }
    for caveats in others {
        let said = format!("{caveats:?}");
        let widened = with_proof(&wanted(caveats), &proof_of(&right));
        let refused = root.verify(&widened, &shown(&plotter));
        assert_eq!(refused, Err(CapabilityError::Forged), "{said}");
    }
}

/// Who got a narrowed copy has its tag: whatever they go on with, the caveat stays in the chain.
#[test]
fn a_tag_does_not_lead_back_to_a_wider_one() {
    let mut root = root();
    let plotter = holders::named("plotter.example.org");
    let wide = root.issue(bound(usual())).unwrap();
    let narrow = wide.attenuate(Caveat::handlers(["deep"])).unwrap();
    // The wide startpoint's bytes with the narrow one's tag.
    let mut bytes = wide.encode();
    let start = bytes.len() - PROOF_BYTES;
    bytes[start..].copy_from_slice(&tag_of(&narrow));
    let spliced = Startpoint::read(&bytes).unwrap();
    for attempt in [
        spliced.clone(),
        spliced.attenuate(Caveat::handlers(["deep"])).unwrap(),
    ] {
        let refused = opened(&root, &attempt, &shown(&plotter));
        assert_eq!(refused, Err(CapabilityError::Forged));
    }
    let allowance = opened(&root, &narrow, &shown(&plotter)).unwrap();
    assert_eq!(allowance.handlers, Some(["deep".to_owned()].into()));
}

#[test]
fn a_right_is_of_no_use_in_another_session_or_on_another_link() {
    let mut root = root();
    let plotter = holders::named("plotter.example.org");
    let startpoint = root.issue(bound(usual())).unwrap();
    let right = startpoint.right(&BINDING, LINK);
    assert!(root.verify(&right, &shown(&plotter)).is_ok());
    let mut binding = BINDING;
    binding[31] ^= 1;
    for elsewhere in [
        Presentation {
            binding: &binding,
            ..shown(&plotter)
        },
        Presentation {
            link: LINK + 2,
            ..shown(&plotter)
        },
        Presentation {
            link: 0,
            ..shown(&plotter)
        },
    ] {
        let refused = root.verify(&right, &elsewhere);
        assert_eq!(refused, Err(CapabilityError::Forged));
    }
}

/// Who steals the bytes of a startpoint has not stolen who it is for.
#[test]
fn a_stolen_startpoint_is_refused_to_the_thief() {
    let mut root = root();
    let startpoint = root.issue(bound(usual())).unwrap();
    let stolen = Startpoint::parse(&startpoint.text()).unwrap();
    for thief in [
        "mallory.example.net",
        "example.org",
        "plotter.example.org.example.net",
        "a.b.example.org",
    ] {
        let who = holders::named(thief);
        let refused = opened(&root, &stolen, &shown(&who)).unwrap_err();
        assert_eq!(
            refused.to_string(),
            format!(
                "the startpoint is not for \"{thief}\": it is for \"*.example.org\"; ask its owner for one of your own"
            )
        );
    }
    // All holders' patterns must fit: one who was left out by a narrower one can't add himself.
    let ours = stolen.attenuate(holder("plotter.example.org")).unwrap();
    let mallory = holders::named("mallory.example.net");
    let again = ours.attenuate(holder("mallory.example.net")).unwrap();
    for attempt in [ours, again] {
        let refused = opened(&root, &attempt, &shown(&mallory));
        assert!(matches!(refused, Err(CapabilityError::NotForHolder { .. })));
    }
}

/// Of several holders in one caveat any may come. A caveat behind it still has to let in whoever comes, and so has one of several.
#[test]
fn any_of_several_holders_is_let_in_and_nobody_else() {
    let mut root = root();
    let both = ["plotter.example.org", "ocean.example.org"];
    let several = Caveat::holders(both).unwrap();
    let wide = root.issue(bound(vec![several])).unwrap();
    let one = Caveat::holders(["ocean.example.org", "ocean.example.org"]).unwrap();
    assert_eq!(one, holder("ocean.example.org"));
    let fewer = wide.attenuate(one).unwrap();
    let others = Caveat::holders(["plotter.example.org", "*.example.net"]).unwrap();
    let overlap = wide.attenuate(others).unwrap();
    for (startpoint, fits) in [
        (&wide, [true, true, false]),
        (&fewer, [false, true, false]),
        (&overlap, [true, false, false]),
    ] {
        for (who, fits) in both.into_iter().chain(["a.example.net"]).zip(fits) {
            let who = holders::named(who);
            let is_open = opened(&root, startpoint, &shown(&who)).is_ok();
            assert_eq!(is_open, fits, "{startpoint} {who:?}");
        }
    }
    let mallory = holders::named("mallory.example.net");
    let refused = opened(&root, &wide, &shown(&mallory)).unwrap_err();
    assert_eq!(
        refused.to_string(),
        "the startpoint is not for \"mallory.example.net\": it is for \"ocean.example.org\" or \"plotter.example.org\"; \
         ask its owner for one of your own"
    );
}

#[test]
fn of_many_holders_a_message_names_some() {
    let names: Vec<_> = (0..HOLDERS_MAX)
        .map(|number| format!("n{number:02}"))
        .collect();
    let many = Caveat::holders(names.iter().map(String::as_str)).unwrap();
    assert_eq!(
        many.to_string(),
        "for n00 or n01 or n02 or n03 or n04 or n05 or n06 or n07 or 56 more"
    );
    let refused = Caveat::holders([]);
    assert_eq!(refused, Err(CapabilityError::NoHolder));
}

/// Nothing that travels in a session holds the tag, or anything that could stand for it.
#[test]
fn the_tag_is_never_in_what_travels() {
    let mut root = root();
    let plotter = holders::named("plotter.example.org");
    let wide = root.issue(bound(usual())).unwrap();
    let narrow = wide.attenuate(Caveat::Expires(NOW + 60)).unwrap();
    let seen: Vec<Right> = (1..40).map(|link| narrow.right(&BINDING, link)).collect();
    for right in &seen {
        let bytes = right.encode();
        for tag in [tag_of(&wide), tag_of(&narrow)] {
            assert!(
                !bytes
                    .windows(8)
                    .any(|part| tag.windows(8).any(|other| part == other))
            );
        }
    }
    // A proof that stands where a tag should, with the caveats before it and without the last one.
    for victim in [&narrow, &wide] {
        let mut bytes = victim.encode();
        let start = bytes.len() - PROOF_BYTES;
        bytes[start..].copy_from_slice(&proof_of(&seen[0]));
        let made = Startpoint::read(&bytes).unwrap();
        let refused = opened(&root, &made, &shown(&plotter));
        assert_eq!(refused, Err(CapabilityError::Forged));
    }
}

#[test]
fn a_bearers_right_needs_an_encrypted_link_between_hosts() {
    let mut root = root();
    let startpoint = root.issue(bearer(vec![])).unwrap();
    assert_eq!(startpoint.needs(false), Protection::Encrypted);
    assert_eq!(startpoint.needs(true), Protection::Integrity);
    let anybody = holders::named("anybody.example.net");
    for protection in Protection::ALL {
        for same_host in [false, true] {
            let presented = Presentation {
                protection,
                same_host,
                ..shown(&anybody)
            };
            let outcome = opened(&root, &startpoint, &presented);
            let enough = protection >= startpoint.needs(same_host);
            assert_eq!(
                outcome.is_ok(),
                enough,
                "{protection} {same_host}: {outcome:?}"
            );
        }
    }
    let presented = Presentation {
        protection: Protection::Integrity,
        ..shown(&anybody)
    };
    assert_eq!(
        opened(&root, &startpoint, &presented),
        Err(CapabilityError::BearerNeedsEncrypted {
            got: Protection::Integrity
        })
    );
}

/// A holder's startpoint that passes for a bearer's would open for everybody.
#[test]
fn nobody_makes_a_bearers_of_it() {
    let mut root = root();
    let mallory = holders::named("mallory.example.net");
    let startpoint = root
        .issue(bound(vec![holder("plotter.example.org")]))
        .unwrap();
    let mut bytes = startpoint.right(&BINDING, LINK).encode();
    let bearer = 16 + 8;
    assert_eq!(bytes[bearer], 0);
    bytes[bearer] = 1;
    let refused = root.verify(&Right::read(&bytes).unwrap(), &shown(&mallory));
    assert_eq!(refused, Err(CapabilityError::Forged));
}

#[test]
fn an_expired_right_is_refused() {
    let mut root = root();
    let plotter = holders::named("plotter.example.org");
    let startpoint = root.issue(bound(usual())).unwrap();
    let at = |now_unix| Presentation {
        now_unix,
        ..shown(&plotter)
    };
    assert!(opened(&root, &startpoint, &at(NOW + 3599)).is_ok());
    for late in [NOW + 3600, NOW + 3601, u64::MAX] {
        let refused = opened(&root, &startpoint, &at(late));
        let expected = CapabilityError::Expired {
            at: NOW + 3600,
            now: late,
        };
        assert_eq!(refused, Err(expected));
    }
    let now = opened(&root, &startpoint, &at(NOW + 3600)).unwrap_err();
    assert_eq!(
        now.to_string(),
        "the startpoint expired on 2027-01-15 09:00:00 UTC, now is 2027-01-15 09:00:00 UTC: ask its owner for a new one"
    );
}

#[test]
fn a_link_below_the_startpoints_protection_is_refused() {
    let mut root = root();
    let plotter = holders::named("plotter.example.org");
    let startpoint = root.issue(bound(usual())).unwrap();
    let presented = Presentation {
        protection: Protection::Plain,
        same_host: true,
        ..shown(&plotter)
    };
    assert_eq!(
        opened(&root, &startpoint, &presented),
        Err(CapabilityError::NeedsProtection {
            got: Protection::Plain,
            expected: Protection::Integrity
        })
    );
}

/// An endpoint that was started again has another key, and so has an endpoint of another name.
#[test]
fn another_key_and_another_endpoint_know_nothing_of_it() {
    let plotter = holders::named("plotter.example.org");
    let startpoint = root().issue(bound(usual())).unwrap();
    let again = RootKey::new("coupler", [0x2d; 16], [0x6e; 32]).unwrap();
    assert_eq!(
        opened(&again, &startpoint, &shown(&plotter))
            .unwrap_err()
            .to_string(),
        "the right is not of the key that endpoint \"coupler\" has: it has been started again; ask its owner for a new \
         startpoint"
    );
    for other in [
        RootKey::new("coupler", [0x1d; 16], [0x6e; 32]).unwrap(),
        RootKey::new("coupler2", [0x1d; 16], [0x5e; 32]).unwrap(),
        RootKey::new("couple", [0x1d; 16], [0x5e; 32]).unwrap(),
    ] {
        let refused = opened(&other, &startpoint, &shown(&plotter));
        assert_eq!(refused, Err(CapabilityError::Forged));
    }
}
