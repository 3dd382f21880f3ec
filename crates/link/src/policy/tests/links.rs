//! Rules that name endpoints: what one link gets.

use super::*;

const COUPLED: &str = r#"
[domain.lab]
addresses = ["10.1.0.0/16"]
names = ["lab*.example.org", "head.example.org"]

[domain.cloud]
addresses = ["203.0.113.0/24"]
names = ["*.cloud.example.net"]

[[rule]]
from = "any"
to = "any"
endpoint = "secret.*"
protection = "encrypted"

[[rule]]
from = "lab"
to = "lab"
endpoint = ["flux.*", "grid"]
protection = "plain"

[[rule]]
from = "lab"
to = "lab"
protection = "integrity"

[[rule]]
from = "lab"
to = "cloud"
endpoint = "flux.*"
protection = "integrity"
"#;

const CLOUD: &str = "vm1.cloud.example.net@203.0.113.9";

/// What is asked about a wire between two `name@address`.
fn on_wire<T>(ends: [&str; 2], proof: PlaceProof, ask: impl FnOnce(&Wire<'_>) -> T) -> T {
    let identities = ends.map(|end| worker(end.rsplit_once('@').unwrap().0));
    let [local, remote] = [0, 1].map(|index| WireEnd {
        address: ends[index].rsplit_once('@').unwrap().1.parse().ok(),
        node: Some(WireNode::named(&identities[index])),
    });
    ask(&Wire {
        local,
        remote,
        proof,
    })
}

fn link(ends: [&str; 2], proof: PlaceProof, endpoint: &str) -> ProtectionVerdict {
    let policy = Policy::parse(COUPLED, 1).unwrap();
    on_wire(ends, proof, |wire| policy.link_protection(wire, endpoint))
}

fn numbered(verdict: ProtectionVerdict) -> usize {
    match verdict.decided_by {
        DecidedBy::Rule(RuleName::Numbered { number, .. }) => number,
        _ => 0,
    }
}

/// The first rule that fits wire and name decides; rules without an endpoint are for all links.
#[test]
fn a_rule_about_an_endpoint_decides_about_its_links() {
    for (endpoint, protection, rule) in [
        ("flux.heat", Protection::Plain, 2),
        ("grid", Protection::Plain, 2),
        ("flux", Protection::Integrity, 3),
        ("flux.heat.north", Protection::Integrity, 3),
        ("Grid", Protection::Integrity, 3),
        ("secret.key", Protection::Encrypted, 1),
    ] {
        let verdict = link([HEAD, LAB1], PlaceProof::Direct, endpoint);
        assert_eq!(
            (verdict.protection, numbered(verdict)),
            (protection, rule),
            "{endpoint}"
        );
    }
    let across = link([LAB1, CLOUD], PlaceProof::Direct, "flux.heat");
    assert_eq!(
        (across.protection, numbered(across)),
        (Protection::Integrity, 4)
    );
    let other = link([LAB1, CLOUD], PlaceProof::Direct, "coupler");
    assert_eq!(other.to_string(), "encrypted: the default, as no rule fits");
}

/// Attack: a relay that makes a far peer look near gets no link below what strangers get.
#[test]
fn an_unproven_wire_gets_nothing_easier_by_a_name() {
    for endpoint in ["flux.heat", "grid", "coupler", "secret.key"] {
        for ends in [[HEAD, LAB1], [LAB1, CLOUD]] {
            let verdict = link(ends, PlaceProof::Unproven, endpoint);
            assert_eq!(verdict.protection, Protection::Encrypted, "{endpoint}");
        }
    }
}

/// Half a fit is enough to make a link stricter, as for whole wires.
#[test]
fn a_strict_rule_about_an_endpoint_cannot_be_shaken_off() {
    let policy = Policy::parse(
        "[domain.cloud]\naddresses = [\"203.0.113.0/24\"]\nnames = [\"*.cloud.example.net\"]\n\
         [[rule]]\nfrom = \"any\"\nto = \"cloud\"\nendpoint = \"flux\"\nprotection = \"encrypted\"\n\
         [[rule]]\nfrom = \"any\"\nto = \"any\"\nprotection = \"integrity\"\n",
        1,
    )
    .unwrap();
    let hidden = [HEAD, "vm1.cloud.example.net@198.51.100.1"];
    let ask = |endpoint| {
        on_wire(hidden, PlaceProof::Direct, |wire| {
            policy.link_protection(wire, endpoint)
        })
    };
    let verdict = ask("flux");
    assert_eq!(verdict.protection, Protection::Encrypted);
    assert_eq!(
        verdict.to_string(),
        "encrypted: rule 2 (line 9) says integrity, raised by rule 1 (line 4), which could apply too"
    );
    assert_eq!(ask("grid").protection, Protection::Integrity);
}

/// A class as a whole is what links get that no rule names; a session whose links are each asked about states less.
#[test]
fn classes_as_a_whole_know_no_endpoints() {
    let policy = Policy::parse(COUPLED, 1).unwrap();
    for (ends, of_class, least) in [
        ([HEAD, LAB1], Protection::Integrity, Protection::Plain),
        ([LAB1, CLOUD], Protection::Encrypted, Protection::Integrity),
        (
            [HEAD, "x@192.0.2.1"],
            Protection::Encrypted,
            Protection::Encrypted,
        ),
    ] {
        on_wire(ends, PlaceProof::Direct, |wire| {
            assert_eq!(policy.protections(wire).data, of_class);
            let found = policy.least_protections(wire);
            assert_eq!(found.data, least);
            // Rules about endpoints are about data unless they say otherwise.
            assert_eq!(found.code, policy.protections(wire).code);
            assert_eq!(found.control, Protection::Encrypted);
        });
        on_wire(ends, PlaceProof::Unproven, |wire| {
            assert_eq!(policy.least_protections(wire), Protections::default());
        });
    }
}

#[test]
fn a_rule_about_endpoints_can_name_its_classes() {
    let text = |class: &str| {
        format!(
            "[[rule]]\nfrom = \"any\"\nto = \"any\"\nendpoint = \"flux\"\nclass = {class}\nprotection = \"integrity\""
        )
    };
    let ask = |class| {
        let policy = Policy::parse(&text(class), 1).unwrap();
        on_wire([HEAD, LAB1], PlaceProof::Direct, |wire| {
            policy.link_protection(wire, "flux").protection
        })
    };
    assert_eq!(ask("[\"code\", \"data\"]"), Protection::Integrity);
    assert_eq!(ask("\"any\""), Protection::Integrity);
    assert_eq!(ask("\"code\""), Protection::Encrypted, "links carry data");
}

#[test]
fn a_link_is_explained_with_the_rules_that_it_passes() {
    let policy = Policy::parse(COUPLED, 1).unwrap();
    let explained = policy.explain_link(HEAD, LAB1, "flux.heat").unwrap();
    assert_eq!(
        explained.to_string(),
        "link from head.example.org@10.1.0.1 to the endpoint flux.heat of lab1.example.org@10.1.2.3: plain\n  \
         decided by: rule 2 (line 16)\n  \
         head.example.org@10.1.0.1: in `lab` by address and name\n  \
         lab1.example.org@10.1.2.3: in `lab` by address and name\n  \
         rule 1 (line 10), any - any, data to secret.*, encrypted: not for the endpoint flux.heat\n  \
         rule 2 (line 16), lab - lab, data to flux.* or grid, plain: fits, and decides\n  \
         2 later rules were not asked\n  \
         through a NAT, relay, tunnel or gateway: encrypted: the default, as no rule fits\n  \
         results of lab1.example.org@10.1.2.3: read as data; the same the other way round"
    );
    let of_class = policy.explain(HEAD, LAB1, TrafficClass::Data).unwrap();
    assert!(
        of_class.reasons.iter().any(|reason| reason
            == "rule 2 (line 16), lab - lab, data to flux.* or grid, plain: for links to these endpoints only"),
        "{of_class}"
    );
    // A name alone is in no domain for certain, and strict rules could be about it.
    let named = policy
        .explain_link("ocean.example.org", "lab1.example.org", "flux.heat")
        .unwrap();
    assert_eq!(named.protection(), Protection::Encrypted);
    assert!(
        named.to_string().contains(
            "lab1.example.org: in no domain for certain, as its address is not known: give lab1.example.org@ADDRESS"
        ),
        "{named}"
    );
    assert!(policy.explain_link("host", "host", "flux.heat").is_ok());
    for (from, to, endpoint, message) in [
        (
            "a b",
            "lab",
            "flux",
            "got \"a b\", expected a NAME (ocean.example.org)",
        ),
        ("lab", "host", "flux", "stays inside one machine"),
        ("lab", "lab", "", "got the endpoint \"\""),
        ("lab", "lab", "a\u{1b}", "without control characters"),
        (
            "\u{e4}@10.0.0.1",
            "lab",
            "flux",
            "no name that a certificate could hold",
        ),
    ] {
        let error = policy.explain_link(from, to, endpoint).unwrap_err();
        assert!(error.to_string().contains(message), "{error}");
    }
}
