//! A site's file, and the questions its owner would ask.

use std::net::IpAddr;

use exoskel_identity::{Identity, Role};

use super::*;
use crate::Protection;

mod bad_files;
mod guide;
mod links;
mod properties;

const SITE: &str = r#"
[domain.lab]
addresses = ["10.1.0.0/16", "2001:db8:1::/48"]
names = ["lab*.example.org", "head.example.org"]
results = "pickle"

[domain.cloud]
addresses = ["203.0.113.0/24"]
names = ["*.cloud.example.net"]

[[rule]]
from = "lab"
to = "lab"
protection = "plain"

[[rule]]
from = "any"
to = "cloud"
protection = "encrypted"

[[rule]]
from = "any"
to = "any"
class = ["data", "code"]
protection = "integrity"

[allow]
managers = ["head.example.org", "alice@example.org"]

[deny]
workers = ["lab13.example.org"]
"#;

fn site() -> Policy {
    Policy::parse(SITE, 7).unwrap()
}

fn worker(name: &str) -> Identity {
    Identity::new(Role::Worker, name).unwrap()
}

/// The protection between two `name@address`, as the runtime asks for it.
fn ask(
    policy: &Policy,
    ends: [&str; 2],
    proof: PlaceProof,
    class: TrafficClass,
) -> ProtectionVerdict {
    let identities = ends.map(|end| worker(end.rsplit_once('@').unwrap().0));
    let places: Vec<WireEnd<'_>> = ends
        .iter()
        .zip(&identities)
        .map(|(end, identity)| WireEnd {
            address: Some(end.rsplit_once('@').unwrap().1.parse::<IpAddr>().unwrap()),
            node: Some(WireNode::named(identity)),
        })
        .collect();
    policy.protection(
        &Wire {
            local: places[0],
            remote: places[1],
            proof,
        },
        class,
    )
}

fn data(ends: [&str; 2], proof: PlaceProof) -> Protection {
    ask(&site(), ends, proof, TrafficClass::Data).protection
}

const HEAD: &str = "head.example.org@10.1.0.1";
const LAB1: &str = "lab1.example.org@10.1.2.3";

#[test]
fn a_trusted_wire_needs_address_and_name_at_both_ends() {
    assert_eq!(data([HEAD, LAB1], PlaceProof::Direct), Protection::Plain);
    assert_eq!(
        data(
            [HEAD, "lab1.example.org@::ffff:10.1.2.3"],
            PlaceProof::Direct
        ),
        Protection::Plain
    );
    assert_eq!(
        data([HEAD, "lab1.example.org@2001:db8:1::7"], PlaceProof::Direct),
        Protection::Plain
    );
    // The right place with another name, the right name in another place, another label behind.
    for other in [
        "stranger.example.org@10.1.2.3",
        "lab1.example.org@192.0.2.1",
        "lab1.example.org.evil.net@10.1.2.3",
    ] {
        assert!(
            data([HEAD, other], PlaceProof::Direct) > Protection::Plain,
            "{other}"
        );
    }
}

/// A relay that makes a far peer look near: name and address are right, but the ends don't see the
/// same wire.
#[test]
fn an_unproven_wire_is_in_no_trusted_domain() {
    let verdict = ask(
        &site(),
        [HEAD, LAB1],
        PlaceProof::Unproven,
        TrafficClass::Data,
    );
    assert!(verdict.protection > Protection::Plain, "{verdict}");
    let builtin = ask(
        &Policy::builtin(),
        [HEAD, LAB1],
        PlaceProof::Direct,
        TrafficClass::Data,
    );
    assert_eq!(builtin.protection, Protection::Encrypted);
}

/// The strict rule for the cloud holds for a cloud machine that comes through a relay (its address
/// is another one) and for one that has another name, though neither is certain to be in `cloud`.
#[test]
fn a_strict_rule_cannot_be_shaken_off() {
    for (cloud, proof) in [
        ("vm1.cloud.example.net@203.0.113.9", PlaceProof::Direct),
        ("vm1.cloud.example.net@203.0.113.9", PlaceProof::Unproven),
        ("vm1.cloud.example.net@198.51.100.1", PlaceProof::Direct),
        ("other.example.net@203.0.113.9", PlaceProof::Direct),
    ] {
        assert_eq!(
            data([HEAD, cloud], proof),
            Protection::Encrypted,
            "{cloud} {proof:?}"
        );
    }
    let relayed = [
        "head.example.org@10.1.0.1",
        "vm1.cloud.example.net@198.51.100.1",
    ];
    let verdict = ask(&site(), relayed, PlaceProof::Direct, TrafficClass::Data);
    assert_eq!(verdict.said, Protection::Integrity);
    assert!(matches!(
        verdict.raised_by,
        Some(Raise::Rule(RuleName::Numbered { number: 2, .. }))
    ));
    // Somebody who is in no domain by anything gets what everybody gets.
    assert_eq!(
        data([HEAD, "x.example.com@198.51.100.1"], PlaceProof::Direct),
        Protection::Integrity
    );
}

#[test]
fn code_and_control_are_never_plain() {
    for (class, between_hosts, raise) in [
        (
            TrafficClass::Control,
            Protection::Encrypted,
            Raise::ControlBetweenHosts,
        ),
        (
            TrafficClass::Code,
            Protection::Integrity,
            Raise::Minimum(TrafficClass::Code),
        ),
    ] {
        let verdict = ask(&site(), [HEAD, LAB1], PlaceProof::Direct, class);
        assert_eq!(verdict.protection, between_hosts);
        assert_eq!(verdict.said, Protection::Plain);
        assert_eq!(verdict.raised_by, Some(raise));
        let inside = ask(
            &Policy::builtin(),
            [HEAD, LAB1],
            PlaceProof::SameHost,
            class,
        );
        assert_eq!(inside.protection, Protection::Integrity);
    }
}

#[test]
fn inside_the_machine_addresses_do_not_count() {
    let nowhere = WireEnd {
        address: None,
        node: None,
    };
    let wire = Wire {
        local: nowhere,
        remote: nowhere,
        proof: PlaceProof::SameHost,
    };
    let builtin = Policy::builtin();
    let verdict = builtin.protection(&wire, TrafficClass::Data);
    assert_eq!(verdict.to_string(), "plain: the built-in rule for `host`");
    assert!(builtin.results_pickle(&wire));
    assert_eq!(builtin.remote_domains(&wire), ["host"]);
    // A rule of the file stands before the built-in one.
    let strict = "[[rule]]\nfrom = \"host\"\nto = \"host\"\nprotection = \"encrypted\"";
    let strict = Policy::parse(strict, 1).unwrap();
    assert_eq!(
        strict.protection(&wire, TrafficClass::Data).protection,
        Protection::Encrypted
    );
}

#[test]
fn the_other_ends_demand_only_raises() {
    let plain = ask(
        &site(),
        [HEAD, LAB1],
        PlaceProof::Direct,
        TrafficClass::Data,
    );
    let joined = plain.joined(Protection::Encrypted);
    assert_eq!(joined.protection, Protection::Encrypted);
    assert_eq!(
        joined.to_string(),
        "encrypted: rule 1 (line 11) says plain, raised by the policy of the other end"
    );
    assert_eq!(joined.joined(Protection::Plain), joined);
}

#[test]
fn results_are_pickles_only_where_a_domain_says_so() {
    let policy = site();
    let head = worker("head.example.org");
    let ask = |name: &str, address: &str, proof| {
        let identity = worker(name);
        let local = WireEnd {
            address: "10.1.0.1".parse().ok(),
            node: Some(WireNode::named(&head)),
        };
        let remote = WireEnd {
            address: address.parse().ok(),
            node: Some(WireNode::named(&identity)),
        };
        policy.results_pickle(&Wire {
            local,
            remote,
            proof,
        })
    };
    assert!(ask("lab1.example.org", "10.1.2.3", PlaceProof::Direct));
    assert!(!ask("lab1.example.org", "10.1.2.3", PlaceProof::Unproven));
    assert!(!ask("lab1.example.org", "10.2.2.3", PlaceProof::Direct));
    assert!(!ask(
        "vm1.cloud.example.net",
        "203.0.113.9",
        PlaceProof::Direct
    ));
}

/// `lab` lies inside `campus`. Only if both say "pickle" are pickles read there.
#[test]
fn a_domain_that_does_not_open_wins_over_one_that_does() {
    let identity = worker("lab1.example.org");
    let place = WireEnd {
        address: "10.1.2.3".parse().ok(),
        node: Some(WireNode::named(&identity)),
    };
    let wire = Wire {
        local: place,
        remote: place,
        proof: PlaceProof::Direct,
    };
    let campus = "[domain.campus]\naddresses = [\"10.0.0.0/8\"]\nnames = [\"*.example.org\"]\n";
    for (says, is_pickle) in [
        ("", false),
        ("results = \"restricted\"", false),
        ("results = \"data\"", false),
        ("results = \"pickle\"", true),
    ] {
        let policy = Policy::parse(&format!("{SITE}{campus}{says}"), 1).unwrap();
        assert_eq!(policy.remote_domains(&wire), ["lab", "campus"]);
        assert_eq!(policy.results_pickle(&wire), is_pickle, "{says}");
    }
    // A domain in which it only could be, by its name, counts as well.
    let elsewhere = campus.replace("10.0.0.0/8", "192.0.2.0/24");
    let policy = Policy::parse(&format!("{SITE}{elsewhere}"), 1).unwrap();
    assert_eq!(policy.remote_domains(&wire), ["lab"]);
    assert!(!policy.results_pickle(&wire));
}

/// The kernel vouches for a process of this account on this machine. No address and no name takes that away.
#[test]
fn no_domain_of_the_file_closes_this_machine() {
    let all = "[domain.all]\naddresses = [\"0.0.0.0/0\", \"::/0\"]\nnames = [\"*\"]\n";
    let identity = worker("lab1.example.org");
    let place = WireEnd {
        address: "127.0.0.1".parse().ok(),
        node: Some(WireNode::named(&identity)),
    };
    let policy = Policy::parse(all, 1).unwrap();
    let ask = |proof| {
        policy.results_pickle(&Wire {
            local: place,
            remote: place,
            proof,
        })
    };
    assert!(ask(PlaceProof::SameHost));
    assert!(!ask(PlaceProof::Direct));
}

/// A host of the grid is in a domain by its distinguished name, by the host names in its certificate, or by neither.
#[test]
fn a_domain_can_name_hosts_by_their_distinguished_names() {
    let policy = "[domain.farm]\naddresses = [\"10.9.0.0/16\"]\n\
                  names = [\"/DC=org/DC=grid/CN=wn*.example.org\", \"se*.example.org\"]\n\
                  [[rule]]\nfrom = \"farm\"\nto = \"farm\"\nprotection = \"plain\"";
    let policy = Policy::parse(policy, 1).unwrap();
    let protection_for = |name: &str, subject: Option<&str>, is_independent| {
        let place = WireEnd {
            address: "10.9.0.1".parse().ok(),
            node: Some(WireNode {
                name,
                subject,
                is_independent,
            }),
        };
        let wire = Wire {
            local: place,
            remote: place,
            proof: PlaceProof::Direct,
        };
        policy.protection(&wire, TrafficClass::Data).protection
    };
    let protection = |name: &str, subject| protection_for(name, subject, false);
    let subject = "/DC=org/DC=grid/CN=wn7.example.org";
    // Nobody gets into a domain by a name that they chose.
    assert_eq!(
        protection_for(subject, Some(subject), true),
        Protection::Encrypted
    );
    assert_eq!(
        protection("wn7.example.org", Some(subject)),
        Protection::Plain
    );
    assert_eq!(
        protection("se1.example.org", Some("/DC=org/CN=x")),
        Protection::Plain
    );
    assert_eq!(protection("wn7.example.org", None), Protection::Encrypted);
    // A person can choose a common name like a host's.
    let person = "/DC=org/CN=se1.example.org";
    assert_eq!(protection(person, Some(person)), Protection::Encrypted);
    let end = format!("{subject}@10.9.0.1");
    let explanation = policy.explain(&end, &end, TrafficClass::Data).unwrap();
    assert_eq!(explanation.protection(), Protection::Plain);
}

/// A worker that looks at its policy while somebody writes it must not go on without one.
#[test]
fn a_file_without_a_byte_is_half_written() {
    let error = Policy::parse("", 1).unwrap_err().to_string();
    assert!(error.starts_with("the policy has no byte"), "{error}");
}

#[test]
fn the_generation_is_the_callers() {
    assert_eq!(site().generation(), 7);
    assert_eq!(Policy::default().generation(), 0);
    assert_eq!(Policy::parse("# nothing\n", 3).unwrap().generation(), 3);
}

#[test]
fn an_explanation_tells_the_whole_way() {
    let explanation = site().explain(HEAD, LAB1, TrafficClass::Code).unwrap();
    assert_eq!(explanation.protection(), Protection::Integrity);
    assert_eq!(explanation.rule(), "rule 1 (line 11)");
    assert_eq!(
        explanation.to_string(),
        "\
code from head.example.org@10.1.0.1 to lab1.example.org@10.1.2.3: integrity
  decided by: rule 1 (line 11)
  head.example.org@10.1.0.1: in `lab` by address and name
  lab1.example.org@10.1.2.3: in `lab` by address and name
  rule 1 (line 11), lab - lab, any class, plain: fits, and decides
  2 later rules were not asked
  code is never plain: raised to integrity
  through a NAT, relay, tunnel or gateway: integrity: rule 3 (line 21)
  results of lab1.example.org@10.1.2.3: read as pickles: where it is a worker, it can run code at its manager; the same the other way round"
    );
}

/// Whoever asks with the worker first must not read what holds for the manager's end.
#[test]
fn an_explanation_names_the_end_whose_results_are_meant() {
    let lines = |from: &str, to: &str| {
        let explained = site().explain(from, to, TrafficClass::Data).unwrap();
        explained.results_lines()
    };
    let cloud = "cloud1.example.net@198.51.100.7";
    let data = format!("results of {cloud}: read as data");
    let pickles = format!(
        "results of {HEAD}: read as pickles: where it is a worker, it can run code at its manager"
    );
    assert_eq!(lines(HEAD, cloud), [pickles.clone(), data.clone()]);
    assert_eq!(lines(cloud, HEAD), [data, pickles]);
}

#[test]
fn an_explanation_says_why_a_domain_does_not_apply() {
    let explain = |from: &str, to: &str| {
        site()
            .explain(from, to, TrafficClass::Data)
            .unwrap()
            .to_string()
    };
    let text = explain(HEAD, "10.1.2.3");
    assert!(
        text.contains("in `lab` by its address, but a domain takes a name too: give NAME@10.1.2.3"),
        "{text}"
    );
    let text = explain(HEAD, "stranger.example.org@10.1.2.3");
    assert!(
        text.contains("in `lab` by address only, as no pattern of its names matches"),
        "{text}"
    );
    let text = explain(HEAD, "lab1.example.org@[2001:db8:2::1]");
    assert!(
        text.contains("in `lab` by name only, as the address is outside its addresses"),
        "{text}"
    );
    let text = explain(HEAD, "vm1.cloud.example.net@198.51.100.1");
    assert!(
        text.contains("raised to encrypted by rule 2 (line 16), which could apply too"),
        "{text}"
    );
    let text = explain("cloud", "alice@example.org@192.0.2.1");
    assert!(
        text.contains("alice@example.org@192.0.2.1: in no domain"),
        "{text}"
    );
    let text = explain("host", "host");
    assert!(
        text.starts_with("data from host to host: integrity\n  decided by: rule 3"),
        "{text}"
    );
    assert!(!text.contains("gateway"), "{text}");
}

#[test]
fn what_explain_cannot_read_it_says() {
    let error = |from: &str, to: &str| {
        site()
            .explain(from, to, TrafficClass::Data)
            .unwrap_err()
            .to_string()
    };
    assert!(
        error("lab", "lab1.example.org").ends_with("one of the domains `host`, `lab`, `cloud`")
    );
    assert!(error("host", "lab").contains("got `host` and \"lab\""));
    assert!(error("lab", "host").contains("got `host` and \"lab\""));
    assert!(error("lab*@10.1.2.3", "lab").contains("no name that a certificate could hold"));
    assert!(error("@10.1.2.3", "lab").contains("no name that a certificate could hold"));
}
