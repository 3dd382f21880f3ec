//! Both kinds of file, as the IGTF writes them and as nobody should.

use proptest::prelude::*;

use super::*;

fn rules(statements: Vec<NameStatement>, is_signing_policy: bool) -> IssuerRules {
    let rules = Some(statements.into_iter().map(|one| one.rule).collect());
    if is_signing_policy {
        IssuerRules {
            signing_policy: rules,
            namespaces: None,
        }
    } else {
        IssuerRules {
            signing_policy: None,
            namespaces: rules,
        }
    }
}

fn permits(rules: &IssuerRules, name: &str) -> bool {
    rules.check(&normal_form(name)).is_ok()
}

#[test]
fn a_signing_policy_permits_what_it_lists() {
    let text = b"# comment\n\
        access_id_CA      X509         '/C=BG/O=Grid/CN=CA'\n\
        pos_rights        globus        CA:sign\n\
        cond_subjects     globus     '\"/C=BG/O=Grid/CN=CA\"  \"/DC=bg/O=people/*\" \"/DC=bg/*/Email=*@x\"'\n\n";
    let statements = read_signing_policy(text).unwrap();
    assert_eq!(statements.len(), 3);
    assert_eq!(statements[0].issuer.as_deref(), Some("/c=bg/o=grid/cn=ca"));
    let rules = rules(statements, true);
    for name in [
        "/C=BG/O=Grid/CN=CA",
        "/dc=BG/O=People/CN=alice",
        "/DC=bg/O=people/",
        "/DC=bg/O=a/CN=b/emailAddress=c@x",
    ] {
        assert!(permits(&rules, name), "{name}");
    }
    for name in [
        "",
        "/",
        "/C=BG/O=Grid/CN=CA2",
        "/C=BG/O=Grid",
        "/DC=bg/O=people",
        "/X=1/DC=bg/O=people/CN=a",
        "/DC=bg/O=a/CN=b/emailAddress=c@y",
        "/DC=bg/Email=@x",
    ] {
        assert!(!permits(&rules, name), "{name}");
    }
}

#[test]
fn one_pattern_needs_no_inner_quotation_marks() {
    for pattern in ["'/O=Grid/*'", "\"/O=Grid/*\"", "'\"/O=Grid/*\"'"] {
        let text = format!(
            "access_id_CA X509 \"/CN=CA\"\npos_rights globus CA:sign\ncond_subjects globus {pattern}\n"
        );
        let rules = rules(read_signing_policy(text.as_bytes()).unwrap(), true);
        assert!(
            permits(&rules, "/O=Grid/CN=a") && !permits(&rules, "/O=Other/CN=a"),
            "{pattern}"
        );
    }
}

#[test]
fn what_is_denied_is_not_permitted() {
    let text = b"access_id_CA X509 '/CN=CA'\npos_rights globus CA:sign\ncond_subjects globus '\"/O=Grid/*\"'\n\
        neg_rights globus CA:sign\ncond_subjects globus '\"/O=Grid/OU=old/*\"'\n";
    let of_policy = rules(read_signing_policy(text).unwrap(), true);
    assert!(permits(&of_policy, "/O=Grid/OU=new/CN=a"));
    assert!(!permits(&of_policy, "/O=Grid/OU=old/CN=a"));
    let text = b"TO Issuer \"/CN=CA\" DENY Subject \"/O=Grid/OU=old/.*\"\nTO Issuer \"/CN=CA\" PERMIT Subject \"/O=Grid/.*\"\n";
    let of_namespaces = rules(read_namespaces(text).unwrap(), false);
    assert!(permits(&of_namespaces, "/O=Grid/OU=new/CN=a"));
    assert!(!permits(&of_namespaces, "/O=Grid/OU=old/CN=a"));
}

#[test]
fn namespaces_go_on_behind_a_backslash() {
    let text = b"#NAMESPACES-VERSION: 1.0\n\nTO Issuer \"/C=NL/CN=CA [x]\" \\\n  PERMIT Subject \"/C=NL/O=L.L.C.  [x]/.*\"\n\
        to issuer self permit subject \"/O=Grid/CN=.*\"";
    let statements = read_namespaces(text).unwrap();
    assert_eq!(statements[0].issuer.as_deref(), Some("/c=nl/cn=ca [x]"));
    assert_eq!(statements[1].issuer, None);
    let rules = rules(statements, false);
    assert!(permits(&rules, "/C=NL/O=L.L.C.  [x]/CN=a"));
    // Nothing but ".*" is special.
    assert!(!permits(&rules, "/C=NL/O=LxLxCx  x/CN=a"));
    assert!(permits(&rules, "/O=Grid/CN=a") && !permits(&rules, "/O=Grid/OU=a"));
}

#[test]
fn a_file_with_a_line_that_is_not_understood_is_refused_whole() {
    let policy = |text: &str| read_signing_policy(text.as_bytes());
    let block =
        "access_id_CA X509 '/CN=CA'\npos_rights globus CA:sign\ncond_subjects globus '\"/*\"'\n";
    assert!(policy(block).is_ok());
    for (text, line) in [
        (format!("{block}cond_time globus '1'\n"), 4),
        (format!("{block}access_id_ANYBODY globus '*'\n"), 4),
        (block.replace("CA:sign", "CA:anything"), 2),
        (block.replace("'/CN=CA'", "/CN=CA"), 1),
        (block.replace("'/CN=CA'", "''"), 1),
        (block.replace("'\"/*\"'", "'\"/*'"), 3),
        (block.replace("'\"/*\"'", "'\"/*\" x'"), 3),
        ("pos_rights globus CA:sign\n".to_owned(), 1),
        (
            "access_id_CA X509 '/CN=CA'\ncond_subjects globus '\"/*\"'\n".to_owned(),
            2,
        ),
        ("access_id_CA X509 '/CN=CA'\n".to_owned(), 1),
        (block.replace("'/CN=CA'", "'/CN=*'"), 1),
        // For or against everybody, who knows?
        (format!("{block}neg_rights globus CA:sign\n"), 4),
        (format!("{block}neg_rights globus CA:sign\n{block}"), 4),
        (
            block.replace("pos_rights", "neg_rights globus CA:sign\npos_rights"),
            2,
        ),
        ("# nothing\n".to_owned(), 1),
    ] {
        let error = policy(&text).unwrap_err();
        assert!(
            matches!(error, BadFileReason::BadLine { line: got, .. } if got == line),
            "{text}: {error}"
        );
    }
    for text in [
        "TO Issuer \"/CN=CA\" PERMIT Subject /O=Grid/.*\n",
        "TO Issuer /CN=CA PERMIT Subject \"/O=Grid/.*\"\n",
        "TO Issuer \"/CN=CA\" ALLOW Subject \"/O=Grid/.*\"\n",
        "TO Issuer \"/CN=CA\" PERMIT Subject \"/O=Grid/.*\" x\n",
        "TO Issuer \"/CN=CA\" PERMIT \\\n",
        "#\n",
    ] {
        assert!(read_namespaces(text.as_bytes()).is_err(), "{text}");
    }
}

/// The order of statements must not matter: readers don't agree on it.
#[test]
fn what_is_denied_first_or_last_is_denied() {
    let block = |rights: &str, pattern: &str| {
        format!(
            "access_id_CA X509 '/CN=CA'\n{rights} globus CA:sign\ncond_subjects globus '\"{pattern}\"'\n"
        )
    };
    let (permitted, denied) = (
        block("pos_rights", "/O=Grid/*"),
        block("neg_rights", "/O=Grid/OU=old/*"),
    );
    for text in [
        format!("{permitted}{denied}"),
        format!("{denied}{permitted}"),
    ] {
        let rules = rules(read_signing_policy(text.as_bytes()).unwrap(), true);
        assert!(permits(&rules, "/O=Grid/OU=new/CN=a"), "{text}");
        assert!(!permits(&rules, "/O=Grid/OU=old/CN=a"), "{text}");
    }
}

/// What another reader would take for more than text is not taken for text here.
#[test]
fn patterns_that_are_more_than_text_are_refused_by_line_and_construct() {
    let policy = |pattern: &str| {
        let text = format!(
            "access_id_CA X509 '/CN=CA'\npos_rights globus CA:sign\ncond_subjects globus '\"{pattern}\"'\n"
        );
        read_signing_policy(text.as_bytes())
    };
    let namespaces = |pattern: &str| {
        let text = format!("#\n\nTO Issuer \"/CN=CA\" PERMIT Subject \"{pattern}\"\n");
        read_namespaces(text.as_bytes())
    };
    for (pattern, construct) in [
        ("/O=Grid/CN=a?", "the wildcard \"?\""),
        ("^/O=Grid/CN=a", "the anchor \"^\""),
        ("/O=Grid/CN=a$", "the anchor \"$\""),
        ("/O=(Grid|Other)/CN=a", "the alternative \"|\""),
        ("/O=Grid/CN=.+", "the repetition \".+\""),
        ("/O=Grid/CN=a{3}", "a repetition in braces"),
        ("/O=Grid/CN=[0-9]", "a range of characters in brackets"),
        ("/O=Grid/CN=[_a-zA-Z]", "a range of characters in brackets"),
        ("/O=Grid/CN=a\\.b", "an escape"),
        ("/O=Grid/CN=\\xg1", "an escape"),
        ("/O=Grid/CN=a\\", "an escape"),
    ] {
        for (result, line) in [(policy(pattern), 3), (namespaces(pattern), 3)] {
            let error = result.unwrap_err().to_string();
            assert!(
                error.starts_with(&format!("line {line}: got {construct} in \"")),
                "{pattern}: {error}"
            );
        }
    }
    assert_eq!(
        policy("/O=Grid/.*").unwrap_err().to_string(),
        "line 3: got the wildcard \".*\" in \"/O=Grid/.*\", expected text, and * as the only wildcard"
    );
    assert_eq!(
        namespaces("/O=Grid/*").unwrap_err().to_string(),
        "line 3: got the wildcard \"*\" in \"/O=Grid/*\", expected text, and .* as the only wildcard"
    );
    for pattern in [
        "/O=L.L.C./CN=A (b) [Run by the Issuer] a+b@c-d",
        "/CN=J\\xC3\\xBCrgen",
        "/CN=[x-y z]",
        "/CN=[d-3]",
    ] {
        assert!(
            policy(pattern).is_ok() && namespaces(pattern).is_ok(),
            "{pattern}"
        );
    }
}

proptest! {
    #[test]
    fn arbitrary_files_do_not_panic(text in "(access_id_CA X509|pos_rights globus|cond_subjects globus|TO Issuer|PERMIT Subject|\\\\|'|\"|/CN=a|CA:sign|\\*|\\.\\*|\n| |[ -~]){0,40}") {
        let _ = (read_signing_policy(text.as_bytes()), read_namespaces(text.as_bytes()));
    }

    /// A pattern matches what is made by putting texts into its wildcards, and both kinds of file agree on it.
    #[test]
    fn wildcards_stand_for_any_text(
        texts in prop::collection::vec("[a-c/=]{0,3}", 1..5),
        fillings in prop::collection::vec("[a-c/=]{0,3}", 4),
    ) {
        let name: String = texts.iter().enumerate()
            .flat_map(|(position, text)| {
                let filling = if position == 0 { "" } else { fillings[position - 1].as_str() };
                [filling, text.as_str()]
            })
            .collect();
        let star = Pattern::read(&texts.join("*"), Spelling::SigningPolicy, 1).unwrap();
        let expression = Pattern::read(&texts.join(".*"), Spelling::Namespaces, 1).unwrap();
        let normal = normal_form(&name);
        prop_assert!(star.matches(&normal), "{:?} {}", star, normal);
        prop_assert_eq!(star, expression);
    }

    /// The quick comparison and a slow one say the same.
    #[test]
    fn patterns_match_as_the_definition_says(pattern in "[ab*]{0,8}", name in "[ab]{0,8}") {
        fn slow(pattern: &[u8], name: &[u8]) -> bool {
            match pattern.split_first() {
                None => name.is_empty(),
                Some((b'*', rest)) => (0..=name.len()).any(|start| slow(rest, &name[start..])),
                Some((byte, rest)) => name.first() == Some(byte) && slow(rest, &name[1..]),
            }
        }
        let read = Pattern::read(&pattern, Spelling::SigningPolicy, 1).unwrap();
        prop_assert_eq!(read.matches(&name), slow(pattern.as_bytes(), name.as_bytes()));
    }
}

#[test]
fn patterns_have_a_name_in_common_or_none() {
    for (one, other, expected) in [
        ("/dc=org/*", "/dc=org/cn=alice", true),
        ("/dc=org/*", "/dc=*/cn=alice", true),
        ("/dc=org/o=a*", "/dc=org/*b", true),
        ("/dc=org/*", "/dc=or*", true),
        ("*", "", true),
        ("**", "*", true),
        ("", "", true),
        ("/dc=org/*", "/dc=org", false),
        ("/dc=org/*", "/dc=net/*", false),
        ("/dc=org/o=a*", "/dc=org/o=b*", false),
        ("*a", "*b", false),
        ("", "a", false),
    ] {
        let meet = |one: &str, other: &str| have_a_text_in_common(one.as_bytes(), other.as_bytes());
        assert_eq!(meet(one, other), expected, "{one} {other}");
        assert_eq!(meet(other, one), expected, "{other} {one}");
    }
}
