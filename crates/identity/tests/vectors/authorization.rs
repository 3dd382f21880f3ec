//! From a chain to what its owner may do.

use exoskel_identity::Authorization;
use exoskel_identity::authorization::{IdentityPattern, RuleSource};

use crate::manifest::VECTORS;

const POLICY: &str = r#"
[allow]
managers = ["/testvo/Role=production"]

[[allow.rule]]
action = "submit"
fqan = "/testvo/Role=production"
limited = false

[[allow.rule]]
action = "read"
dn = "/DC=org/DC=example/O=Users/*"

[accounts]
map = [{ fqan = "/testvo/Role=production", account = "prod" }]
"#;

/// The same user with the role, without it, and with one that has expired.
#[test]
fn a_role_opens_the_door_and_a_bad_one_does_not() {
    let (vectors, rules) = (&*VECTORS, Authorization::parse(POLICY).unwrap());
    let who = |name: &str| vectors.judge(vectors.case(name)).unwrap();

    let producer = who("voms");
    assert!(rules.admission(&producer, false).is_allowed());
    let decision = rules.decide(&producer, "submit");
    assert!(decision.allowed, "{decision}");
    assert_eq!(rules.account(&producer), Some("prod"));

    let user = who("voms_none");
    assert_eq!(user.grid_subject(), producer.grid_subject());
    assert!(!rules.admission(&user, false).is_allowed());
    let decision = rules.decide(&user, "submit");
    assert!(!decision.allowed);
    assert!(
        decision
            .reason
            .ends_with("asks for fqan \"/testvo/Role=production\""),
        "{decision}"
    );
    assert!(rules.decide(&user, "read").allowed);
    assert_eq!(rules.account(&user), None);

    let expired = who("validity_expired");
    let decision = rules.decide(&expired, "submit");
    assert!(!decision.allowed);
    assert!(
        decision.reason.contains("attributes that don't count"),
        "{decision}"
    );
    assert!(
        decision.reason.ends_with("voms-proxy-init again"),
        "{decision}"
    );

    let limited = rules.decide(&who("voms_limited"), "submit");
    assert!(!limited.allowed);
    assert!(
        limited.reason.contains("a proxy that is not limited"),
        "{limited}"
    );
}

/// `docs/policy.md` shows a policy for services and a refusal by it.
#[test]
fn the_guides_refusal_is_the_one_that_people_see() {
    let guide = include_str!("../../../../docs/policy.md");
    let block = |language: &str, start: &str| {
        let mut blocks = guide.split(language).skip(1);
        let block = blocks.find(|block| block.starts_with(start)).unwrap();
        block.split("```").next().unwrap()
    };
    let rules = Authorization::parse(block("```toml\n", "[[allow.rule]]")).unwrap();
    let user = VECTORS.judge(VECTORS.case("voms_none")).unwrap();
    let decision = rules.decide(&user, "submit");
    assert_eq!(format!("{decision}\n"), block("```text\n", "action"));
}

/// Whoever is banned stays out with every proxy, an independent one included.
#[test]
fn a_ban_holds_for_all_proxies() {
    let vectors = &*VECTORS;
    let owner = vectors.judge(vectors.case("voms")).unwrap();
    let subject = owner.grid_subject().unwrap();
    // An independent proxy is let in where a rule says so only.
    let independent = r#"
        [[allow.rule]]
        action = "read"
        dn = "/DC=org/DC=example/O=Users/*"
        independent = true
    "#;
    let policy = POLICY.replace("[accounts]", &format!("{independent}[accounts]"));
    let rules = Authorization::parse(&policy).unwrap();
    let banned = rules.with_bans(&format!("\"{subject}\"\n")).unwrap();
    for name in [
        "voms",
        "voms_none",
        "voms_limited",
        "independent_below_attributes",
    ] {
        let who = vectors.judge(vectors.case(name)).unwrap();
        assert!(rules.decide(&who, "read").allowed, "{name}");
        let without = Authorization::parse(POLICY).unwrap().decide(&who, "read");
        assert_eq!(without.allowed, !who.is_independent(), "{name}: {without}");
        let decision = banned.decide(&who, "read");
        assert_eq!(
            decision.rule,
            Some(RuleSource::BanList { line: 1 }),
            "{name}: {decision}"
        );
    }
}

/// A pattern alone lets in whom a rule with it would: by name, by attribute, and never by a name that somebody chose for an independent proxy.
#[test]
fn a_pattern_lets_in_whom_a_rule_would() {
    let vectors = &*VECTORS;
    for name in [
        "voms",
        "voms_none",
        "voms_limited",
        "independent_below_attributes",
    ] {
        let who = vectors.judge(vectors.case(name)).unwrap();
        let lets_in = |pattern: &str| IdentityPattern::parse(pattern).unwrap().lets_in(&who);
        let by_name = !who.is_independent();
        assert_eq!(lets_in(who.grid_subject().unwrap()), by_name, "{name}");
        assert_eq!(lets_in("/DC=org/DC=example/*"), by_name, "{name}");
        assert_eq!(lets_in("*"), by_name, "{name}");
        assert!(!lets_in("/DC=org/DC=example/O=Users/CN=Nobody"), "{name}");
        let has_role = who
            .fqans()
            .any(|fqan| fqan.to_string().starts_with("/testvo/Role=production"));
        assert_eq!(lets_in("/testvo/Role=production"), has_role, "{name}");
    }
}
