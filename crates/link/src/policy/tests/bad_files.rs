//! Everything that can be wrong with a file, and what its owner is told.

use super::*;

/// Each file has one thing wrong, in the line given.
#[test]
fn a_wrong_file_is_refused_with_its_line_and_a_way_out() {
    let lab = "[domain.lab]\naddresses = [\"10.0.0.0/8\"]\nnames = [\"lab*\"]\n";
    let rule = |text: &str| format!("{lab}[[rule]]\n{text}\n");
    let cases = [
        (
            "[domain.lab]\nadresses = []".to_owned(),
            2,
            "unknown field `adresses`",
        ),
        ("[domian.lab]".to_owned(), 1, "unknown field `domian`"),
        ("a = ".to_owned(), 1, ""),
        (format!("{lab}names = []"), 4, "duplicate key"),
        (
            format!("{lab}results = \"pickles\""),
            4,
            "unknown variant `pickles`, expected one of `data`, `restricted`, `pickle`",
        ),
        (
            "[domain.host]\naddresses = []".to_owned(),
            1,
            "`host` is built in",
        ),
        ("[domain.any]".to_owned(), 1, "`any` means everybody"),
        ("\n[domain.\"a b\"]".to_owned(), 2, "starts with a letter"),
        (
            "[domain.lab]\nnames = [\"lab*\"]".to_owned(),
            1,
            "no addresses, so it would never be trusted",
        ),
        (
            "[domain.lab]\naddresses = [\"10.0.0.0/8\"]".to_owned(),
            1,
            "no names, so it would never be trusted",
        ),
        (
            "[domain.lab]\naddresses = [\n\"10.0.0.1\",\n\"lab1\"]\nnames = [\"a\"]".to_owned(),
            4,
            "it is no address",
        ),
        (
            "[domain.lab]\naddresses = [\"10.0.0.1/8\"]\nnames = [\"a\"]".to_owned(),
            2,
            "expected 10.0.0.0/8",
        ),
        (
            "[domain.lab]\naddresses = [\"10.0.0.1\"]\nnames = [\"a?\"]".to_owned(),
            3,
            "`*` is the only wildcard",
        ),
        (
            "[allow]\nmanagers = [\"[ab]\"]".to_owned(),
            2,
            "[allow] managers: pattern \"[ab]\"",
        ),
        (
            "[allow]\nmanager = []".to_owned(),
            2,
            "unknown field `manager`, expected one of `managers`",
        ),
        (
            rule("from = \"lab\"\nprotection = \"plain\""),
            4,
            "missing field `to`",
        ),
        (
            rule("from = \"labb\"\nto = \"lab\"\nprotection = \"plain\""),
            5,
            "expected one of `host`, `lab`, `any`",
        ),
        (
            rule("from = \"lab\"\nto = []\nprotection = \"plain\""),
            6,
            "`to` is empty",
        ),
        (
            rule("from = 7\nto = \"lab\"\nprotection = \"plain\""),
            5,
            "expected a word in quotation marks",
        ),
        (
            rule("from = \"lab\"\nto = \"lab\"\nprotection = \"none\""),
            7,
            "`plain`, `integrity`, `encrypted`",
        ),
        (
            rule("from = \"lab\"\nto = \"lab\"\nclass = \"bulk\"\nprotection = \"plain\""),
            7,
            "unknown variant `bulk`",
        ),
        (
            rule("from = \"lab\"\nto = \"lab\"\nclass = []\nprotection = \"plain\""),
            7,
            "`class` is empty",
        ),
        (
            rule("from = \"lab\"\nto = \"any\"\nprotection = \"plain\""),
            4,
            "plain for \"any\"",
        ),
        (
            rule("from = \"lab\"\nto = [\"any\", \"lab\"]\nprotection = \"encrypted\""),
            6,
            "write it alone",
        ),
        (
            rule("from = \"lab\"\nto = \"host\"\nprotection = \"encrypted\""),
            4,
            "stays inside one machine",
        ),
        (
            rule(
                "from = \"any\"\nto = \"any\"\nprotection = \"integrity\"\n[[rule]]\nfrom = \"lab\"\nto = \"lab\"\nprotection = \"encrypted\"",
            ),
            8,
            "rule 1 (line 4) stands before it",
        ),
        // A wire has no direction, so this is the same rule written the other way round.
        (
            rule(
                "from = \"lab\"\nto = \"any\"\nprotection = \"integrity\"\n[[rule]]\nfrom = \"any\"\nto = \"lab\"\nclass = \"data\"\nprotection = \"encrypted\"",
            ),
            8,
            "rule 1 (line 4) stands before it",
        ),
        (
            rule("from = \"lab\"\nto = \"lab\"\nendpoint = []\nprotection = \"encrypted\""),
            7,
            "`endpoint` is empty",
        ),
        (
            rule(
                "from = \"lab\"\nto = \"lab\"\nendpoint = \"flux[0-9]\"\nprotection = \"encrypted\"",
            ),
            7,
            "`endpoint`: pattern \"flux[0-9]\": it holds '[': `*` is the only wildcard",
        ),
        (
            rule("from = \"lab\"\nto = \"any\"\nendpoint = \"flux\"\nprotection = \"plain\""),
            4,
            "plain for \"any\"",
        ),
        // A rule for all links stands before one for some of them.
        (
            rule(
                "from = \"any\"\nto = \"lab\"\nclass = \"data\"\nprotection = \"integrity\"\n[[rule]]\nfrom = \"lab\"\nto = \"lab\"\nendpoint = \"flux\"\nprotection = \"encrypted\"",
            ),
            9,
            "rule 1 (line 4) stands before it",
        ),
        (
            rule(
                "from = \"any\"\nto = \"any\"\nendpoint = [\"grid\", \"flux.*\"]\nprotection = \"integrity\"\n[[rule]]\nfrom = \"lab\"\nto = \"lab\"\nendpoint = [\"flux.h*\", \"grid\"]\nprotection = \"encrypted\"",
            ),
            9,
            "rule 1 (line 4) stands before it",
        ),
        (
            rule("from = \"lab\"\nto = [\"lab\", \"host\"]\nprotection = \"encrypted\""),
            4,
            "stays inside one machine",
        ),
    ];
    for (text, line, message) in cases {
        let error = Policy::parse(&text, 1).unwrap_err();
        assert_eq!(error.line, Some(line), "{text}\n{error}");
        assert!(error.to_string().contains(message), "{text}\n{error}");
        assert!(!error.to_string().contains('\n'), "{error}");
    }
}

#[test]
fn every_table_has_a_limit() {
    let message = |text: &str| Policy::parse(text, 1).unwrap_err().to_string();
    let domain = |index: usize| {
        format!("[domain.d{index}]\naddresses = [\"10.0.0.1\"]\nnames = [\"d{index}\"]\n")
    };
    let domains = |count: usize| (0..count).map(domain).collect::<String>();
    assert_eq!(
        message(&domains(128)),
        "got 128 domains, expected 127 at most"
    );
    assert!(Policy::parse(&domains(127), 1).is_ok());
    let rule = "[[rule]]\nfrom = \"host\"\nto = \"host\"\nprotection = \"plain\"\n";
    assert_eq!(
        message(&rule.repeat(257)),
        "got 257 rules, expected 256 at most"
    );
    let endpoints = |count: usize| {
        let names = "\"a\",".repeat(count);
        format!(
            "[[rule]]\nfrom = \"any\"\nto = \"any\"\nendpoint = [{names}]\nprotection = \"integrity\""
        )
    };
    assert!(
        message(&endpoints(65))
            .starts_with("line 4: `endpoint` has 65 entries, expected 64 at most")
    );
    assert!(Policy::parse(&endpoints(64), 1).is_ok());
    let names = format!("[allow]\nworkers = [{}]", "\"a\",".repeat(4097));
    assert_eq!(
        message(&names),
        "line 2: `workers` has 4097 entries, expected 4096 at most"
    );
    let large = "#".repeat(exoskel_identity::policy_text::BYTES_MAX + 1);
    assert!(message(&large).contains("expected 1048576 at most"));
}

/// Rules that look alike and are not: each of them decides about something.
#[test]
fn a_rule_that_can_be_reached_is_taken() {
    let rule = |endpoint: &str, class: &str| {
        format!(
            "[[rule]]\nfrom = \"any\"\nto = \"any\"\n{endpoint}{class}protection = \"integrity\"\n"
        )
    };
    let data = "class = \"data\"\n";
    for (first, second) in [
        // What links to one endpoint get says nothing of the others.
        (rule("endpoint = \"*\"\n", ""), rule("", data)),
        (
            rule("endpoint = \"flux.h*\"\n", ""),
            rule("endpoint = \"flux.*\"\n", ""),
        ),
        (
            rule("endpoint = \"flux.*\"\n", ""),
            rule("endpoint = [\"flux.*\", \"grid\"]\n", ""),
        ),
        (
            rule("endpoint = \"flux\"\n", data),
            rule("endpoint = \"flux\"\n", "class = \"any\"\n"),
        ),
    ] {
        let text = format!("{first}{second}");
        assert!(Policy::parse(&text, 1).is_ok(), "{text}");
        let text = format!("{second}{first}");
        assert!(Policy::parse(&text, 1).is_err(), "{text}");
    }
}
