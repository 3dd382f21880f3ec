//! What holds for every policy, wire and text.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{select, subsequence};

use super::*;

const NAMES: [&str; 5] = ["lab1.a", "lab2.a", "head.a", "vm.b", "x"];
const ADDRESSES: [&str; 5] = [
    "10.1.0.1",
    "10.2.0.1",
    "::ffff:10.1.0.1",
    "2001:db8::1",
    "192.0.2.1",
];
const PATTERNS: [&str; 5] = ["lab*.a", "*.a", "*.b", "head.a", "*"];
const RANGES: [&str; 5] = [
    "10.1.0.0/16",
    "10.0.0.0/8",
    "2001:db8::/32",
    "192.0.2.1",
    "0.0.0.0/0",
];
const SIDES: [&str; 5] = ["d0", "d1", "d2", "any", "host"];
const ENDPOINT_PATTERNS: [&str; 5] = ["flux.*", "flux.heat", "f*.heat", "grid", "*"];
const ENDPOINTS: [&str; 4] = ["flux.heat", "flux.salt", "grid", "x"];
const CLASSES: [&str; 4] = ["control", "code", "data", "any"];
const PROTECTIONS: [&str; 3] = ["plain", "integrity", "encrypted"];

fn list(entries: &[&str]) -> String {
    format!("{entries:?}")
}

fn domain() -> impl Strategy<Value = String> {
    let results = select(
        &[
            "",
            "results = \"pickle\"\n",
            "results = \"restricted\"\n",
            "results = \"data\"\n",
        ][..],
    );
    (
        subsequence(&RANGES[..], 1..4),
        subsequence(&PATTERNS[..], 1..4),
        results,
    )
        .prop_map(|(addresses, names, results)| {
            format!(
                "addresses = {}\nnames = {}\n{results}",
                list(&addresses),
                list(&names)
            )
        })
}

fn rule() -> impl Strategy<Value = String> {
    let word = |words: &'static [&'static str]| select(words);
    let endpoint = proptest::option::of(subsequence(&ENDPOINT_PATTERNS[..], 1..3));
    (word(&SIDES), word(&SIDES), word(&CLASSES), word(&PROTECTIONS), endpoint).prop_map(
        |(from, to, class, protection, endpoint)| {
            let endpoint = endpoint.map_or_else(String::new, |names| format!("endpoint = {}\n", list(&names)));
            format!(
                "[[rule]]\nfrom = \"{from}\"\nto = \"{to}\"\nclass = \"{class}\"\n{endpoint}protection = \"{protection}\"\n"
            )
        },
    )
}

/// A class as a whole, or a link to one of these.
fn endpoint() -> impl Strategy<Value = Option<&'static str>> {
    proptest::option::weighted(0.7, select(&ENDPOINTS[..]))
}

fn asked(
    policy: &Policy,
    wire: &Wire<'_>,
    class: TrafficClass,
    endpoint: Option<&str>,
) -> ProtectionVerdict {
    match endpoint {
        Some(name) => policy.link_protection(wire, name),
        None => policy.protection(wire, class),
    }
}

/// Everybody else gets less than the default, so that a rule which fails to apply shows.
const LENIENT: &str = "[[rule]]\nfrom = \"any\"\nto = \"any\"\nprotection = \"integrity\"\n";

/// Three domains and some rules. Rules that a whole policy would refuse are left out, so that most
/// of what is made is a policy worth asking.
fn policy() -> impl Strategy<Value = Policy> {
    (vec(domain(), 3), vec(rule(), 0..8), any::<bool>()).prop_map(
        |(domains, mut rules, lenient)| {
            let mut text: String = (0..)
                .zip(&domains)
                .map(|(index, domain)| format!("[domain.d{index}]\n{domain}"))
                .collect();
            let mut policy = Policy::parse(&text, 1).expect("the domains are well formed");
            if lenient {
                rules.push(LENIENT.to_owned());
            }
            for rule in rules {
                let longer = format!("{text}{rule}");
                if let Ok(accepted) = Policy::parse(&longer, 1) {
                    (text, policy) = (longer, accepted);
                }
            }
            policy
        },
    )
}

fn end() -> impl Strategy<Value = (Option<Identity>, Option<IpAddr>)> {
    let name = proptest::option::weighted(0.9, select(&NAMES[..]));
    let address = proptest::option::weighted(0.9, select(&ADDRESSES[..]));
    (name, address).prop_map(|(name, address)| {
        (
            name.map(worker),
            address.map(|address| address.parse().expect("an address")),
        )
    })
}

fn class() -> impl Strategy<Value = TrafficClass> {
    select(
        &[
            TrafficClass::Control,
            TrafficClass::Code,
            TrafficClass::Data,
        ][..],
    )
}

fn protection() -> impl Strategy<Value = Protection> {
    select(
        &[
            Protection::Plain,
            Protection::Integrity,
            Protection::Encrypted,
        ][..],
    )
}

fn place(end: &(Option<Identity>, Option<IpAddr>)) -> WireEnd<'_> {
    WireEnd {
        address: end.1,
        node: end.0.as_ref().map(WireNode::named),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 1000, ..ProptestConfig::default() })]

    #[test]
    fn any_text_is_read_or_refused(text in "\\PC{0,200}") {
        let _ = Policy::parse(&text, 1);
        let _ = Policy::builtin().explain(&text, "host", TrafficClass::Data);
        let _ = Policy::builtin().explain(&text, &text, TrafficClass::Data);
    }

    /// Closer to a policy than any text: its own words, in any order.
    #[test]
    fn any_words_are_read_or_refused(words in vec(select(&[
        "[", "]", "[[", "]]", "domain", "rule", "allow", ".", "lab", "host", "any", "=", "\"", "\n",
        "addresses", "names", "from", "to", "class", "endpoint", "protection", "plain", "data", ",", "{", "}",
        "10.0.0.0/8", "::/0", "*", "'", "\"\"\"", "#", "0", "ö", "\u{0}",
    ][..]), 0..60)) {
        let _ = Policy::parse(&words.concat(), 1);
        let _ = Policy::parse(&words.join(" "), 1);
    }

    /// A peer's claims can turn `Direct` into `Unproven`, and no more; neither that, nor hiding its
    /// address, nor a demand for more, ever loosens.
    #[test]
    fn what_a_peer_claims_never_loosens(
        policy in policy(), one in end(), other in end(), class in class(), endpoint in endpoint(), claim in protection(),
    ) {
        let (local, remote) = (place(&one), place(&other));
        let ask = |remote, proof| asked(&policy, &Wire { local, remote, proof }, class, endpoint);
        let direct = ask(remote, PlaceProof::Direct);
        prop_assert!(ask(remote, PlaceProof::Unproven).protection >= direct.protection);
        let hidden = WireEnd { address: None, ..remote };
        prop_assert!(ask(hidden, PlaceProof::Direct).protection >= direct.protection);
        prop_assert!(ask(hidden, PlaceProof::Unproven).protection >= direct.protection);
        let nameless = WireEnd { node: None, ..remote };
        prop_assert!(ask(nameless, PlaceProof::Direct).protection >= direct.protection);
        let joined = direct.joined(claim).protection;
        prop_assert_eq!(joined, direct.protection.max(claim));
    }

    #[test]
    fn an_unproven_wire_is_never_plain_and_never_trusted(
        policy in policy(), one in end(), other in end(), class in class(), endpoint in endpoint(),
    ) {
        let wire = Wire { local: place(&one), remote: place(&other), proof: PlaceProof::Unproven };
        prop_assert!(asked(&policy, &wire, class, endpoint).protection > Protection::Plain);
        prop_assert!(policy.remote_domains(&wire).is_empty());
        prop_assert!(!policy.results_pickle(&wire));
    }

    #[test]
    fn only_data_is_ever_plain(
        policy in policy(), one in end(), other in end(), class in class(),
    ) {
        for proof in [PlaceProof::SameHost, PlaceProof::Direct, PlaceProof::Unproven] {
            let wire = Wire { local: place(&one), remote: place(&other), proof };
            let verdict = policy.protection(&wire, class);
            prop_assert!(class == TrafficClass::Data || verdict.protection > Protection::Plain);
            prop_assert!(verdict.protection >= verdict.said);
            prop_assert_eq!(policy.protections(&wire).of(class), verdict.protection);
        }
    }

    /// What a session states when it asks for each link: no link gets less, and a weaker proof never makes it less.
    #[test]
    fn no_link_gets_less_than_the_least(
        policy in policy(), one in end(), other in end(), endpoint in endpoint(), class in class(),
    ) {
        let mut stricter = Protections::all(Protection::Encrypted);
        for proof in [PlaceProof::Unproven, PlaceProof::Direct] {
            let wire = Wire { local: place(&one), remote: place(&other), proof };
            let least = policy.least_protections(&wire);
            let enough = if endpoint.is_some() { least.data } else { least.of(class) };
            prop_assert!(asked(&policy, &wire, class, endpoint).protection >= enough);
            prop_assert!(policy.protections(&wire).satisfies(least));
            prop_assert!(stricter.satisfies(least));
            stricter = least;
        }
    }

    #[test]
    fn control_between_hosts_is_always_encrypted(policy in policy(), one in end(), other in end()) {
        for proof in [PlaceProof::Direct, PlaceProof::Unproven] {
            let wire = Wire { local: place(&one), remote: place(&other), proof };
            prop_assert_eq!(policy.protections(&wire).control, Protection::Encrypted);
            prop_assert_eq!(policy.least_protections(&wire).control, Protection::Encrypted);
        }
    }

    /// Both ends with one file come to one answer.
    #[test]
    fn a_wire_has_no_direction(
        policy in policy(), one in end(), other in end(), class in class(), endpoint in endpoint(),
    ) {
        for proof in [PlaceProof::SameHost, PlaceProof::Direct, PlaceProof::Unproven] {
            let (local, remote) = (place(&one), place(&other));
            let there = asked(&policy, &Wire { local, remote, proof }, class, endpoint);
            let back = asked(&policy, &Wire { local: remote, remote: local, proof }, class, endpoint);
            prop_assert_eq!(there, back);
        }
    }

    #[test]
    fn explain_agrees_with_what_is_done(
        policy in policy(), one in end(), other in end(), class in class(), endpoint in endpoint(),
    ) {
        let text = |(identity, address): &(Option<Identity>, Option<IpAddr>)| match identity {
            Some(identity) => address.map(|address| format!("{}@{address}", identity.name)),
            None => address.map(|address| address.to_string()),
        };
        let (Some(from), Some(to)) = (text(&one), text(&other)) else { return Ok(()) };
        let explain = |from: &str, to: &str| match endpoint {
            Some(name) => policy.explain_link(from, to, name),
            None => policy.explain(from, to, class),
        };
        let explanation = explain(&from, &to).expect("both ends are well formed");
        let wire = |proof| Wire { local: place(&one), remote: place(&other), proof };
        let ask = |proof| asked(&policy, &wire(proof), class, endpoint);
        prop_assert_eq!(explanation.verdict, ask(PlaceProof::Direct));
        prop_assert_eq!(explanation.unproven, Some(ask(PlaceProof::Unproven)));
        let pickle = explanation.results == ResultsFormat::Pickle;
        prop_assert_eq!(pickle, policy.results_pickle(&wire(PlaceProof::Direct)));

        let inside = explain("host", "host").expect("host is always there");
        prop_assert_eq!(inside.verdict, ask(PlaceProof::SameHost));
        // Displaying never fails, and names the rule that decides.
        prop_assert!(explanation.to_string().contains(&explanation.rule()));
    }
}
