//! A site's rules, and who gets in by them. How a [`VerifiedIdentity`](crate::VerifiedIdentity) becomes the facts that
//! rules look at is tested with the chains of `vectors/identity`.

use proptest::prelude::*;

use super::*;
use crate::claim::Role;
use crate::peer_text::PeerText;
use crate::slash_name::SlashName;
use crate::voms::{AttributeFault, AttributeProblem};
use crate::which_certificate::WhichCertificate;

const SITE: &str = r#"
[allow]
managers = ["head.example.org", "/vo/Role=production", "/DC=org/DC=grid/CN=Alice"]

[[allow.rule]]
action = ["read", "list"]
vo = "vo"

[[allow.rule]]
action = "submit"
fqan = ["/vo/Role=production", "/vo/Role=pilot"]
limited = false

[[allow.rule]]
action = "status"
dn = "*"

[deny]
banned = ["/DC=org/DC=grid/CN=Mallory"]
workers = ["lab13.example.org"]

[[deny.rule]]
action = "any"
dn = "/DC=org/DC=grid/CN=Suspended *"

[accounts]
map = [
    { dn = "/DC=org/DC=grid/CN=Alice", account = "alice" },
    { fqan = "/vo/Role=production", account = "voprod" },
    { fqan = "/vo", account = "vo" },
    { dn = "/DC=org/DC=grid/*", account = "guest" },
]
"#;

fn site() -> Authorization {
    Authorization::parse(SITE).unwrap()
}

fn person<'a>(name: &'a str, fqans: &[&str]) -> Facts<'a> {
    Facts {
        role: Role::Manager,
        name,
        asker: name,
        subject: SlashName::parse(name),
        owners: vec![],
        is_of_grid: true,
        fqans: fqans.iter().map(ToString::to_string).collect(),
        vos: if fqans.is_empty() { vec![] } else { vec!["vo"] },
        limited: false,
        independent: false,
        faults: &[],
    }
}

const ALICE: &str = "/DC=org/DC=grid/CN=Alice";
const BOB: &str = "/DC=org/DC=grid/CN=Bob";

fn admit(rules: &Authorization, facts: &Facts<'_>, chosen: bool) -> Admission {
    admission::admission(
        &rules.allowed_roles,
        &rules.denied_roles,
        &rules.bans,
        facts,
        chosen,
    )
}

#[test]
fn what_nothing_allows_is_refused_with_what_is_missing() {
    let decision = site().decide_about(&person(BOB, &["/vo"]), "submit");
    assert!(!decision.allowed);
    assert_eq!(decision.rule, None);
    assert_eq!(
        decision.reason,
        "action \"submit\" asked by /DC=org/DC=grid/CN=Bob with /vo: no [[allow.rule]] of the policy fits: \
         the one at line 9 asks for fqan \"/vo/Role=production\" or \"/vo/Role=pilot\""
    );
    let decision = site().decide_about(&person(BOB, &[]), "delete");
    assert_eq!(
        decision.reason,
        "action \"delete\" asked by /DC=org/DC=grid/CN=Bob without attributes: \
         no [[allow.rule]] of the policy is about this action"
    );
    let fault = AttributeFault {
        certificate: WhichCertificate {
            position: Some(0),
            subject: PeerText::new("/CN=1"),
        },
        position: Some(0),
        vo: Some(PeerText::new("vo")),
        problem: AttributeProblem::NoAttributes,
    };
    let nameless = Facts {
        faults: &[fault],
        ..person(BOB, &[])
    };
    let decision = site().decide_about(&nameless, "read");
    assert!(
        decision.reason.ends_with(
            "asks for vo \"vo\"; attributes that don't count: attribute certificate 0 of the virtual \
             organisation \"vo\" in the leaf certificate \"/CN=1\": it has no attribute names"
        ),
        "{decision}"
    );
}

#[test]
fn every_condition_of_a_rule_must_be_met() {
    let mut producer = person(BOB, &["/vo", "/vo/Role=production"]);
    let decision = site().decide_about(&producer, "submit");
    assert!(decision.allowed, "{decision}");
    assert_eq!(decision.rule, Some(RuleSource::Policy { line: 9 }));
    producer.limited = true;
    let decision = site().decide_about(&producer, "submit");
    assert!(!decision.allowed);
    assert!(decision.reason.contains("(limited proxy)"), "{decision}");
    assert!(
        decision
            .reason
            .ends_with("asks for a proxy that is not limited"),
        "{decision}"
    );
    assert!(site().decide_about(&producer, "read").allowed);
    assert!(site().decide_about(&person(BOB, &[]), "status").allowed);
}

#[test]
fn deny_and_bans_win() {
    let suspended = person("/DC=org/DC=grid/CN=Suspended Sam", &["/vo"]);
    for action in ["read", "status", "nonsense"] {
        let decision = site().decide_about(&suspended, action);
        assert_eq!(
            (decision.allowed, decision.rule),
            (false, Some(RuleSource::Policy { line: 22 }))
        );
    }
    let mallory = person("/DC=org/DC=grid/CN=Mallory", &["/vo/Role=production"]);
    let decision = site().decide_about(&mallory, "submit");
    assert_eq!(
        (decision.allowed, decision.rule),
        (false, Some(RuleSource::Policy { line: 19 }))
    );
    let admission = admit(&site(), &mallory, true);
    assert_eq!(
        admission.to_string(),
        "refused, as \"/DC=org/DC=grid/CN=Mallory\" is banned (line 19 of the policy)"
    );
}

/// An independent proxy has a name of its own, below its owner's, and can be of use to somebody who is kept out.
#[test]
fn a_proxy_of_its_own_is_no_way_around() {
    let proxy = |owners: &[&str]| Facts {
        owners: owners
            .iter()
            .filter_map(|name| SlashName::parse(name))
            .collect(),
        independent: true,
        ..person("/DC=org/DC=grid/CN=of/O=its own", &[])
    };
    for owners in [
        &["/DC=org/DC=grid/CN=Mallory"][..],
        &["/DC=org/DC=grid/CN=x/CN=1", "/DC=org/DC=grid/CN=mallory"],
        &["/DC=org/DC=grid/CN=Suspended Sam"],
    ] {
        let decision = site().decide_about(&proxy(owners), "status");
        assert!(!decision.allowed, "{owners:?}");
    }
    let rules = Authorization::parse(&format!("[deny]\nmanagers = [\"{BOB}\"]")).unwrap();
    assert!(!admit(&rules, &proxy(&[BOB]), true).is_allowed());
    // What is allowed to the owner is not allowed to it.
    assert!(!admit(&site(), &proxy(&[ALICE]), false).is_allowed());
    assert_eq!(site().account_of(&proxy(&[ALICE])), None);
}

/// Whoever holds an independent proxy chose its name, which fits what they like below their own.
#[test]
fn a_chosen_name_lets_nobody_in() {
    const CHOSEN: &str = "/DC=org/DC=grid/CN=Eve/CN=Admin";
    let proxy = |fqans: &[&str]| Facts {
        independent: true,
        owners: SlashName::parse("/DC=org/DC=grid/CN=Eve")
            .into_iter()
            .collect(),
        ..person(CHOSEN, fqans)
    };
    let rules = |condition: &str| {
        let text = format!(
            r#"
            [allow]
            managers = ["*", "/DC=org/*", "{CHOSEN}", "/vo"]
            [[allow.rule]]
            action = "run"
            {condition}
            [accounts]
            map = [
                {{ dn = "{CHOSEN}", account = "whole" }},
                {{ fqan = "/vo", account = "attribute" }},
                {{ dn = "/DC=org/*", account = "pattern" }},
            ]
            "#
        );
        Authorization::parse(&text).unwrap()
    };
    for dn in ["*", "/DC=org/*", CHOSEN] {
        for (more, independent, other) in [
            ("", false, true),
            ("independent = false", false, true),
            ("independent = true", true, false),
        ] {
            let rules = rules(&format!("dn = \"{dn}\"\n{more}"));
            let asked = |facts: &Facts<'_>| rules.decide_about(facts, "run").allowed;
            assert_eq!(asked(&proxy(&[])), independent, "{dn} {more}");
            assert_eq!(asked(&person(CHOSEN, &[])), other, "{dn} {more}");
        }
    }
    let by_name = rules("dn = \"/DC=org/*\"");
    assert_eq!(
        by_name.decide_about(&proxy(&[]), "run").reason,
        "action \"run\" asked by /DC=org/DC=grid/CN=Eve/CN=Admin (independent proxy) without attributes: no [[allow.rule]] \
         of the policy fits: the one at line 4 asks for dn \"/DC=org/*\", and not by a name that the holder of an \
         independent proxy chose (unless it says independent = true)"
    );
    let refused = admit(&by_name, &proxy(&[]), false);
    assert_eq!(
        refused.to_string(),
        "refused, as its holder chose the name of its independent proxy, and [allow] managers has no attribute for it"
    );
    assert_eq!(by_name.account_of(&proxy(&[])), None);
    assert_eq!(by_name.account_of(&person(CHOSEN, &[])), Some("whole"));
    // What an organisation gave to the proxy itself is nobody's choice.
    let member = proxy(&["/vo"]);
    assert!(admit(&by_name, &member, false).is_allowed());
    assert_eq!(by_name.account_of(&member), Some("attribute"));
    let by_attribute = rules("fqan = \"/vo\"");
    assert!(by_attribute.decide_about(&member, "run").allowed);
    let not_it = rules("fqan = \"/vo\"\nindependent = false");
    assert!(
        not_it
            .decide_about(&member, "run")
            .reason
            .ends_with("asks for a proxy that is not independent")
    );
    let denied = Authorization::parse(
        "[[allow.rule]]\naction = \"run\"\nfqan = \"/vo\"\n\
         [[deny.rule]]\naction = \"any\"\ndn = \"*\"\nindependent = true",
    )
    .unwrap();
    assert!(!denied.decide_about(&member, "run").allowed);
    assert!(denied.decide_about(&person(BOB, &["/vo"]), "run").allowed);
}

#[test]
fn a_ban_list_takes_the_place_of_an_earlier_one() {
    let bob = person(BOB, &["/vo/Role=pilot"]);
    let decide = |rules: &Authorization| rules.decide_about(&bob, "submit");
    assert!(decide(&site()).allowed);
    let by_name = site()
        .with_bans(&format!("# since Monday\n\n\"{BOB}\"\n"))
        .unwrap();
    assert_eq!(decide(&by_name).rule, Some(RuleSource::BanList { line: 3 }));
    let by_attribute = by_name.with_bans("/vo/Role=pilot\n").unwrap();
    assert_eq!(
        decide(&by_attribute).rule,
        Some(RuleSource::BanList { line: 1 })
    );
    assert_eq!(
        by_attribute.with_bans("").unwrap_err().to_string(),
        "the ban list has no byte, like one that is being written: one that is meant to hold nothing has a line, such as \
         \"# nothing\""
    );
    assert!(by_attribute.with_bans("\n").is_ok());
    let by_none = by_attribute.with_bans("# nobody\n").unwrap();
    assert!(decide(&by_none).allowed);
    let mallory = person("/DC=org/DC=grid/CN=Mallory", &[]);
    assert!(
        !by_none.decide_about(&mallory, "status").allowed,
        "the policy's own bans stay"
    );
    for bad in [
        "DC=org/CN=Bob",
        "\"/DC=org/CN=Bob",
        "/DC=org/CN=Bob bob",
        "\"/DC=org/CN=a\" b",
        "/vo//x",
    ] {
        assert_eq!(
            site().with_bans(&format!("\n{bad}")).unwrap_err().line,
            Some(2),
            "{bad}"
        );
    }
}

#[test]
fn roles_are_let_in_by_name_subject_or_attribute() {
    let rules = site();
    let head = Facts {
        name: "head.example.org",
        subject: None,
        is_of_grid: false,
        ..person("", &[])
    };
    assert!(admit(&rules, &head, false).is_allowed());
    assert!(admit(&rules, &person(ALICE, &[]), false).is_allowed());
    assert!(admit(&rules, &person(BOB, &["/vo/Role=production"]), false).is_allowed());
    let limited = Facts {
        limited: true,
        ..person(ALICE, &[])
    };
    assert_eq!(
        admit(&rules, &limited, true).to_string(),
        "refused, as its proxy is a limited one, with which no jobs are started: make a full one"
    );
    let refused = admit(&rules, &person(BOB, &["/vo"]), false);
    assert_eq!(
        refused.to_string(),
        "refused, as [allow] managers has no pattern for it"
    );
}

#[test]
fn deny_wins_and_a_missing_list_lets_a_private_authoritys_role_in() {
    let node = |role, name| Facts {
        role,
        name,
        subject: None,
        is_of_grid: false,
        ..person("", &[])
    };
    let rules = site();
    let admit = |role, name| admit(&rules, &node(role, name), false);
    assert!(admit(Role::Worker, "lab1.example.org").is_allowed());
    assert!(admit(Role::Gateway, "gate.example.org").is_allowed());
    assert_eq!(
        admit(Role::Manager, "mallory@example.org").to_string(),
        "refused, as [allow] managers has no pattern for it"
    );
    assert_eq!(
        admit(Role::Worker, "lab13.example.org").to_string(),
        "refused by \"lab13.example.org\" in [deny] workers"
    );
    let empty = Authorization::parse("[allow]\nagents = []").unwrap();
    let agent = admission::admission(
        &empty.allowed_roles,
        &empty.denied_roles,
        &empty.bans,
        &node(Role::Agent, "a"),
        true,
    );
    assert!(!agent.is_allowed(), "an empty list lets nobody in");
}

fn of_private_authority(role: Role, name: &str) -> Facts<'_> {
    Facts {
        role,
        name,
        subject: None,
        is_of_grid: false,
        asker: name,
        ..person("", &[])
    }
}

/// A rule by name is for those who have no distinguished name that counts.
#[test]
fn an_action_is_allowed_by_a_name_of_a_private_authority() {
    let rules = Authorization::parse(
        "[[allow.rule]]\naction = \"coupler.surface\"\nname = [\"atmosphere.example.org\", \"plot*.example.org\"]\n\
         [[deny.rule]]\naction = \"coupler.surface\"\nname = \"plotter-13.example.org\"\n",
    )
    .unwrap();
    let ask = |name| rules.decide_about(&of_private_authority(Role::Peer, name), "coupler.surface");
    for name in ["atmosphere.example.org", "plotter.example.org"] {
        let decision = ask(name);
        assert!(decision.allowed, "{decision}");
        assert_eq!(decision.rule, Some(RuleSource::Policy { line: 1 }));
    }
    let denied = ask("plotter-13.example.org");
    assert_eq!(
        (denied.allowed, denied.rule),
        (false, Some(RuleSource::Policy { line: 4 }))
    );
    let refused = ask("ocean.example.org");
    assert_eq!(
        refused.reason,
        "action \"coupler.surface\" asked by ocean.example.org without attributes: no [[allow.rule]] of the policy fits: \
         the one at line 1 asks for name \"atmosphere.example.org\" or \"plot*.example.org\""
    );
    for name in ["atmosphere.example.org.evil.net", "x.plotter.example.org"] {
        assert!(!ask(name).allowed, "{name}");
    }
}

/// Attack: somebody of a grid, whose distinguished name ends like a name of ours, or whom `*` would mean elsewhere.
#[test]
fn no_distinguished_name_is_a_name_of_ours() {
    for pattern in ["*", "*.example.org"] {
        let text = format!("[[allow.rule]]\naction = \"read\"\nname = \"{pattern}\"");
        let rules = Authorization::parse(&text).unwrap();
        for name in ["/DC=org/CN=a.example.org", ALICE] {
            assert!(!rules.decide_about(&person(name, &["/vo"]), "read").allowed);
        }
        let ours = of_private_authority(Role::Peer, "a.example.org");
        assert!(rules.decide_about(&ours, "read").allowed);
    }
}

/// The list of peers is a list like the others; a role of a grid's people, who choose it, is no right.
#[test]
fn peers_have_lists_of_their_own() {
    let rules = Authorization::parse(&format!(
        "[allow]\npeers = [\"*.example.org\", \"{ALICE}\"]\nmanagers = []\n[deny]\npeers = [\"x.example.org\"]"
    ))
    .unwrap();
    let admitted = |facts: &Facts<'_>| admit(&rules, facts, false).to_string();
    let ours = |name| admitted(&of_private_authority(Role::Peer, name));
    assert_eq!(
        ours("ocean.example.org"),
        "allowed by \"*.example.org\" in [allow] peers"
    );
    assert_eq!(
        ours("x.example.org"),
        "refused by \"x.example.org\" in [deny] peers"
    );
    assert_eq!(
        ours("ocean.example.net"),
        "refused, as [allow] peers has no pattern for it"
    );
    let as_peer = |name| Facts {
        role: Role::Peer,
        limited: true,
        ..person(name, &[])
    };
    // A limited proxy starts no jobs, and a peer has none run.
    assert!(admit(&rules, &as_peer(ALICE), false).is_allowed());
    assert!(!admit(&rules, &person(ALICE, &[]), false).is_allowed());
    assert!(!admit(&rules, &as_peer(BOB), false).is_allowed());
    let unlisted = Authorization::default();
    assert!(matches!(
        admit(&unlisted, &as_peer(ALICE), false),
        Admission::NoList { role: Role::Peer }
    ));
}

/// A grid's authorities know tens of thousands of people and hosts.
#[test]
fn a_missing_list_lets_nobody_in_whom_only_a_grid_vouches_for() {
    let rules = Authorization::default();
    let host = Facts {
        role: Role::Worker,
        name: "wn1.example.org",
        subject: SlashName::parse("/DC=org/CN=wn1.example.org"),
        ..person("", &[])
    };
    for facts in [&host, &person(ALICE, &["/vo"])] {
        assert!(matches!(
            admit(&rules, facts, false),
            Admission::NoList { .. }
        ));
        assert!(
            admit(&rules, facts, true).is_allowed(),
            "we chose it by its name"
        );
    }
    let by_name = Authorization::parse("[allow]\nworkers = [\"wn*.example.org\"]").unwrap();
    assert!(admit(&by_name, &host, false).is_allowed());
    let by_subject = Authorization::parse("[allow]\nworkers = [\"/DC=org/CN=wn*\"]").unwrap();
    assert!(admit(&by_subject, &host, false).is_allowed());
}

#[test]
fn accounts_go_by_name_then_by_attribute_then_by_pattern() {
    let rules = site();
    let account =
        |name: &str, fqans: &[&str]| rules.account_of(&person(name, fqans)).map(str::to_owned);
    assert_eq!(
        account(ALICE, &["/vo/Role=production"]).as_deref(),
        Some("alice")
    );
    assert_eq!(
        account(BOB, &["/vo/Role=production", "/vo"]).as_deref(),
        Some("voprod")
    );
    assert_eq!(
        account(BOB, &["/vo", "/vo/Role=production"]).as_deref(),
        Some("vo")
    );
    assert_eq!(account(BOB, &[]).as_deref(), Some("guest"));
    assert_eq!(account("/DC=com/CN=Eve", &[]), None);
}

#[test]
fn a_grid_mapfile_is_read_as_globus_writes_it() {
    let text = concat!(
        "# people\n",
        "\"/DC=org/DC=grid/CN=Bob\" bob,users\n",
        "  \"/C=DE/O=x/CN=J\\xC3\\xBCrgen \\\"J\\\" Y\"   juergen \n",
        "/C=IT/CN=NoQuotes noquotes\n",
        "\"/vo/Role=production/Capability=NULL\" prod\n",
        "\"/O=x/Email=a@example.org\" mail\n",
        "\"/DC=org/DC=grid/CN=Alice\" other\n",
    );
    let rules = site().with_grid_mapfile(text).unwrap();
    let account =
        |name: &str, fqans: &[&str]| rules.account_of(&person(name, fqans)).map(str::to_owned);
    assert_eq!(
        account("/C=IT/CN=NoQuotes", &[]).as_deref(),
        Some("noquotes")
    );
    assert_eq!(
        account("/C=DE/O=x/CN=J\\xC3\\xBCrgen \"J\" Y", &[]).as_deref(),
        Some("juergen")
    );
    assert_eq!(
        account("/O=x/emailAddress=a@example.org", &[]).as_deref(),
        Some("mail")
    );
    assert_eq!(
        account("/C=FR/CN=x", &["/vo/Role=production"]).as_deref(),
        Some("voprod")
    );
    assert_eq!(
        account(ALICE, &[]).as_deref(),
        Some("alice"),
        "the policy's map counts first"
    );
    for (bad, wanted) in [
        (
            "\"/CN=a\"",
            "expected a name in quotation marks and an account",
        ),
        (
            "\"/CN=a b",
            "expected a name in quotation marks and an account",
        ),
        (
            "CN=a b",
            "expected a name in quotation marks and an account",
        ),
        ("\"/CN=a\" .atlas", "pool account"),
        ("\"/CN=a\" -rf", "got account \"-rf\""),
        ("\"/vo//x\" a", "an empty part"),
    ] {
        let error = rules
            .with_grid_mapfile(&format!("\n\n{bad}\n"))
            .unwrap_err();
        assert_eq!(error.line, Some(3));
        assert!(error.to_string().contains(wanted), "{error}");
    }
}

/// Each line breaks one rule of the file.
#[test]
fn a_file_that_could_not_be_meant_is_refused_with_its_line() {
    for (text, wanted) in [
        ("", "the policy has no byte, like one that is being written"),
        ("[allow]\nmanager = []", "line 2: unknown field `manager`"),
        (
            "[[allow.rule]]\naction = \"read\"",
            "line 1: this rule has neither `name` nor `dn` nor `vo` nor `fqan`",
        ),
        (
            "[[allow.rule]]\nvo = \"vo\"",
            "line 1: missing field `action`",
        ),
        (
            "[allow.rule]\naction = \"submit\"\nvo = \"atlas\"\n",
            "line 1: got one table, expected a list of them: write its head as [[...]]",
        ),
        (
            "[[allow.rule]]\naction = []\nvo = \"vo\"",
            "line 2: `action` is empty",
        ),
        (
            "[[allow.rule]]\naction = [\"any\", \"read\"]\nvo = \"vo\"",
            "line 2: `action` has \"any\"",
        ),
        (
            "[[allow.rule]]\naction = \"a b\"\nvo = \"vo\"",
            "line 2: `action`: got \"a b\"",
        ),
        (
            "[[allow.rule]]\naction = \"a\"\nvo = \"/vo\\n\"",
            "line 3: `vo`: got",
        ),
        (
            "[[allow.rule]]\naction = \"a\"\ndn = \"/vo/Role=x\"",
            "line 3: `dn`: got \"/vo/Role=x\", expected a",
        ),
        (
            "[[allow.rule]]\naction = \"a\"\ndn = \"alice\"",
            "line 3: `dn`: got \"alice\", expected a",
        ),
        (
            "[[allow.rule]]\naction = \"a\"\nfqan = \"/DC=org/CN=a\"",
            "line 3: `fqan`: got",
        ),
        (
            "[[allow.rule]]\naction = \"a\"\nname = \"/DC=org/CN=a\"",
            "line 3: `name`: got \"/DC=org/CN=a\", expected a name like",
        ),
        (
            "[[allow.rule]]\naction = \"a\"\nname = []",
            "line 3: `name` is empty",
        ),
        (
            "[[allow.rule]]\naction = \"a\"\nname = \"a?\"",
            "line 3: `name`: pattern \"a?\"",
        ),
        (
            "[[allow.rule]]\naction = \"a\"\nfqan = \"/*\"",
            "does not say of which virtual organisation",
        ),
        (
            "[[allow.rule]]\naction = \"a\"\nvo = \"vo\"\nlimited = 1",
            "line 4: ",
        ),
        (
            "[deny]\nbanned = [\"\"]",
            "line 2: [deny] banned: pattern \"\": it is empty",
        ),
        (
            "[accounts]\nmap = [{ account = \"a\" }]",
            "line 2: an entry of [accounts] map needs",
        ),
        (
            "[accounts]\nmap = [{ dn = \"/CN=a\", fqan = \"/vo\", account = \"a\" }]",
            "line 2: an entry",
        ),
        (
            "[accounts]\nmap = [{ dn = \"/vo\", account = \"a\" }]",
            "line 2: [accounts] map: got \"/vo\"",
        ),
        (
            "[accounts]\nmap = [{ fqan = \"/vo\", account = \"../a\" }]",
            "line 2: got ",
        ),
        ("[alow]\nmanagers = []", "unknown field `alow`"),
    ] {
        let error = Authorization::parse(text).unwrap_err().to_string();
        assert!(error.contains(wanted), "{text}\n{error}");
    }
    let many = "[[allow.rule]]\naction = \"a\"\nvo = \"v\"\n".repeat(1025);
    let error = Authorization::parse(&many).unwrap_err().to_string();
    assert!(error.contains("got 1025 rules in `allow.rule`"), "{error}");
}

#[test]
fn the_tables_about_wires_are_left_alone() {
    let text =
        format!("[domain.lab]\naddresses = [\"10.0.0.0/8\"]\n[[rule]]\nfrom = \"lab\"\n{SITE}");
    assert!(Authorization::parse(&text).is_ok());
    let paths = "[deny]\nban_list = \"banned.txt\"\n[accounts]\ngrid_mapfile = \"/etc/grid-security/grid-mapfile\"";
    let paths = Authorization::parse(paths).unwrap();
    assert_eq!(paths.ban_list(), Some("banned.txt"));
    assert_eq!(
        paths.grid_mapfile(),
        Some("/etc/grid-security/grid-mapfile")
    );
}

proptest! {
    #[test]
    fn any_texts_are_read_or_refused(text in "(?s).{0,200}") {
        let _ = Authorization::parse(&text);
        let _ = Authorization::default().with_bans(&text);
        let _ = Authorization::default().with_grid_mapfile(&text);
        let _ = IdentityPattern::parse(&text);
    }

    /// A name is matched by itself, written as a pattern, and bans itself.
    #[test]
    fn a_name_is_a_pattern_of_itself(name in "(/(DC|CN|O|Email)=[a-zA-Z0-9 .@-]{1,9}[a-z]){1,5}") {
        let pattern = IdentityPattern::parse(&name).unwrap();
        prop_assert!(pattern.matches_node("x", Some(&name)));
        let banned = Authorization::default().with_bans(&format!("\"{name}\"")).unwrap();
        let decision = banned.decide_about(&person(&name, &[]), "x");
        prop_assert_eq!(decision.rule, Some(RuleSource::BanList { line: 1 }));
    }

    #[test]
    fn quoted_names_come_back(name in "/CN=[ -~]{0,20}[!-~]", account in "[a-z][a-z0-9]{0,8}") {
        prop_assume!(name.matches('*').count() == 0 && IdentityPattern::parse(&name).is_ok());
        let quoted = name.replace('\\', "\\\\").replace('"', "\\\"");
        let rules = Authorization::default()
            .with_grid_mapfile(&format!("\"{quoted}\" {account}"))
            .unwrap();
        prop_assert_eq!(rules.account_of(&person(&name, &[])), Some(account.as_str()));
    }
}

#[test]
fn what_rules_say_otherwise_is_named_with_its_line() {
    let before = site().with_bans("/DC=org/CN=Old\n").unwrap();
    assert_eq!(before.changes_since(&before), Vec::<String>::new());
    // A line more at the top moves every rule and changes none.
    let moved = Authorization::parse(&format!("# moved\n{SITE}")).unwrap();
    let moved = moved.with_bans("# moved\n/DC=org/CN=Old\n").unwrap();
    assert_eq!(moved.changes_since(&before), Vec::<String>::new());
    let text = "[[allow.rule]]\naction = \"connect\"\ndn = \"*\"\n";
    let one = Authorization::parse(text).unwrap();
    let other = Authorization::parse(
        "[[allow.rule]]\naction = \"conect\"\ndn = \"*\"\n[accounts]\nmap = [{ fqan = \"/vo\", account = \"vo\" }]\n",
    );
    let other = other.unwrap().with_bans("\n/DC=org/CN=New\n").unwrap();
    assert_eq!(
        other.changes_since(&one),
        [
            "the [[allow.rule]] at line 1 has changed: action \"conect\" for dn \"*\"; it was: action \"connect\" for dn \"*\"",
            "the ban of \"/DC=org/CN=New\" (line 2 of the ban list) is new",
            "[accounts] map: \"/vo\" is new",
        ]
    );
    let again = one.changes_since(&other);
    assert!(
        again.contains(&"the ban of \"/DC=org/CN=New\" is gone".to_owned()),
        "{again:?}"
    );
    assert!(
        again.contains(&"[accounts] map: \"/vo\" is gone".to_owned()),
        "{again:?}"
    );
}

#[test]
fn a_change_of_order_that_counts_is_one() {
    let map = |entries: [&str; 2]| {
        let text = format!("[accounts]\nmap = [{}, {}]\n", entries[0], entries[1]);
        Authorization::parse(&text).unwrap()
    };
    let (all, role) = (
        "{ fqan = \"/vo/*\", account = \"all\" }",
        "{ fqan = \"/vo/Role=production\", account = \"production\" }",
    );
    assert_eq!(
        map([role, all]).changes_since(&map([all, role])),
        ["[accounts] map: the order of its patterns has changed"]
    );
    let rule = "[[allow.rule]]\naction = [\"read\", \"list\"]\nvo = \"vo\"\nfqan = \"/vo/Role=a\"\nlimited = false\n";
    let rules = Authorization::parse(rule).unwrap();
    assert_eq!(
        rules.changes_since(&Authorization::default()),
        [
            "the [[allow.rule]] at line 1 is new: action \"read\", \"list\" for vo \"vo\" and fqan \"/vo/Role=a\" and a proxy that \
             is not limited"
        ]
    );
    let gate = Authorization::parse(GATE).unwrap();
    let open = Authorization::parse("[allow]\nmanagers = []\n").unwrap();
    assert_eq!(
        open.changes_since(&gate),
        [
            "the tables [[allow.tunnel]] have changed",
            "the tables [[deny.tunnel]] have changed",
            "the lists of roles in [allow] have changed",
            "the ban of \"/DC=org/DC=grid/CN=Mallory\" is gone",
        ]
    );
}

#[test]
fn every_pattern_of_names_has_its_place() {
    let rules = "[[deny.rule]]\naction = \"any\"\ndn = \"/CN=a\"\n[deny]\nbanned = [\n\"/CN=b\"]\n\
                 [accounts]\nmap = [{ dn = \"/CN=c\", account = \"c\" }]\n";
    let rules = Authorization::parse(rules).unwrap();
    let rules = rules.with_bans("# bans\n/CN=d\n").unwrap();
    let rules = rules.with_grid_mapfile("\"/CN=e\" e\n").unwrap();
    let mut places: Vec<String> = rules
        .patterns()
        .map(|(source, pattern)| format!("{pattern}: {source}"))
        .collect();
    places.sort();
    assert_eq!(
        places,
        [
            "/CN=a: line 1 of the policy",
            "/CN=b: line 6 of the policy",
            "/CN=c: line 8 of the policy",
            "/CN=d: line 2 of the ban list",
            "/CN=e: line 1 of the grid-mapfile",
        ]
    );
}

#[test]
fn a_type_that_no_name_has_is_known() {
    let unknown = |text: &str| {
        let pattern = IdentityPattern::parse(text).unwrap();
        pattern.unknown_type().map(str::to_owned)
    };
    assert_eq!(unknown("/DC=org/XX=Alice"), Some("XX".to_owned()));
    assert_eq!(unknown("/CD=org/*"), Some("CD".to_owned()));
    for known in [
        "/DC=org/CN=Alice",
        "/dc=org/Email=a@b",
        "/1.2.3=x/CN=a",
        "/CN=host/a b=c",
        "/vo/Role=x",
        "*",
    ] {
        assert_eq!(unknown(known), None, "{known}");
    }
}

#[test]
fn a_rule_against_everybody_is_known() {
    let denies = |rule: &str| {
        let rules = Authorization::parse(&format!("[[deny.rule]]\n{rule}\n")).unwrap();
        rules.denied_to_everybody("write")
    };
    assert_eq!(denies("action = \"write\"\ndn = \"*\""), Some(1));
    assert_eq!(denies("action = \"any\"\ndn = [\"/CN=a\", \"*\"]"), Some(1));
    assert_eq!(denies("action = \"read\"\ndn = \"*\""), None);
    assert_eq!(denies("action = \"write\"\ndn = \"/DC=org/*\""), None);
    assert_eq!(
        denies("action = \"write\"\ndn = \"*\"\nlimited = true"),
        None
    );
}

#[test]
fn a_virtual_organisation_is_named_without_slashes() {
    let rule = "[[allow.rule]]\naction = \"read\"\nvo = \"/vo\"\n";
    let error = Authorization::parse(rule).unwrap_err().to_string();
    assert!(error.starts_with("line 3: `vo`: got \"/vo\""), "{error}");
}

const GATE: &str = r#"
[deny]
banned = ["/DC=org/DC=grid/CN=Mallory"]

[[allow.tunnel]]
from = ["*.lab.example.org", "/vo/Role=production"]
to = "*.cloud.example.org"

[[deny.tunnel]]
from = "lab13.lab.example.org"
to = "*"
"#;

/// Who comes with a certificate of a private authority.
fn node(name: &str) -> Facts<'_> {
    Facts {
        name,
        subject: None,
        is_of_grid: false,
        asker: name,
        role: Role::Worker,
        ..person(BOB, &[])
    }
}

#[test]
fn tunnels_go_where_a_rule_leads_and_nowhere_else() {
    let rules = Authorization::parse(GATE).unwrap();
    let ask = |facts: &Facts<'_>, to: &str| rules.tunnel_for(facts, to);
    let ocean = node("ocean.lab.example.org");
    let decision = ask(&ocean, "gpu3.cloud.example.org");
    assert!(decision.allowed, "{decision}");
    assert_eq!(decision.rule, Some(RuleSource::Policy { line: 5 }));
    // The other way round, another target, another asker.
    assert!(!ask(&node("gpu3.cloud.example.org"), "ocean.lab.example.org").allowed);
    assert!(ask(&ocean, "gpu3.example.org").reason.ends_with(
        "a tunnel to gpu3.example.org asked by ocean.lab.example.org without attributes: \
         no [[allow.tunnel]] of the policy leads there"
    ));
    let stranger = ask(&node("x.example.org"), "gpu3.cloud.example.org");
    assert!(
        stranger
            .reason
            .contains("the one at line 5 asks for \"*.lab.example.org\""),
        "{stranger}"
    );
    let producer = person(BOB, &["/vo", "/vo/Role=production"]);
    assert!(ask(&producer, "gpu3.cloud.example.org").allowed);
    // Denied and banned.
    let denied = ask(&node("lab13.lab.example.org"), "gpu3.cloud.example.org");
    assert_eq!(
        (denied.allowed, denied.rule),
        (false, Some(RuleSource::Policy { line: 9 }))
    );
    let mallory = person(
        "/DC=org/DC=grid/CN=Mallory",
        &["/vo", "/vo/Role=production"],
    );
    assert!(ask(&mallory, "gpu3.cloud.example.org").is_ban);
    // Without rules about tunnels there are none.
    let silent = Authorization::default();
    assert!(!silent.tunnel_for(&ocean, "gpu3.cloud.example.org").allowed);
}

#[test]
fn rules_about_tunnels_name_their_line_when_they_are_wrong() {
    for (text, expected) in [
        ("[[allow.tunnel]]\nfrom = \"*\"\n", "to"),
        ("[[allow.tunnel]]\nfrom = []\nto = \"*\"\n", "from"),
        (
            "[[allow.tunnel]]\nfrom = \"*\"\nto = \"/vo/Role=x\"\n",
            "the name of a node",
        ),
        ("[[allow.tunnel]]\nfrom = \"a[1]\"\nto = \"*\"\n", "from"),
    ] {
        let error = Authorization::parse(text).unwrap_err();
        assert!(error.line.is_some(), "{error}");
        assert!(error.to_string().contains(expected), "{error}");
    }
}

#[test]
fn code_of_a_grid_is_confined_unless_a_list_says_otherwise_and_that_of_others_if_a_list_says_so() {
    let confined = |rules: &Authorization, facts: &Facts<'_>| {
        let found = rules.sandbox.of(facts);
        found.map(|(allowed, why)| (allowed.network, why))
    };
    let host = |name| Facts {
        subject: None,
        is_of_grid: false,
        ..person(name, &[])
    };
    let without = site();
    let by_grid = "as people and hosts of a grid are, unless [sandbox] free names them";
    let expected = Some((SandboxNetwork::Links, by_grid.to_owned()));
    assert_eq!(confined(&without, &person(ALICE, &[])), expected);
    assert_eq!(confined(&without, &host("head.example.org")), None);
    let text = "[sandbox]\nmanagers = [\"*.partner.example.org\", \"/vo/*\"]\nfree = [\"/DC=org/DC=grid/CN=Alice\"]\nnetwork = \"none\"\n";
    let rules = Authorization::parse(text).unwrap();
    assert_eq!(confined(&rules, &person(ALICE, &[])), None);
    let network = |facts: &Facts<'_>| confined(&rules, facts).map(|(network, _)| network);
    assert_eq!(network(&person(BOB, &[])), Some(SandboxNetwork::None));
    // A list that confines wins over one that frees.
    assert_eq!(
        network(&person(ALICE, &["/vo"])),
        Some(SandboxNetwork::None)
    );
    assert_eq!(
        network(&host("a.partner.example.org")),
        Some(SandboxNetwork::None)
    );
    assert_eq!(network(&host("head.example.org")), None);
    // The holder of an independent proxy has chosen its name.
    let chosen = Facts {
        independent: true,
        ..person(ALICE, &[])
    };
    assert_eq!(network(&chosen), Some(SandboxNetwork::None));
}
