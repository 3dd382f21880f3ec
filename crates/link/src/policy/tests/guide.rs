//! What `docs/policy.md` shows is what the code does.

use exoskel_identity::authorization::IdentityPattern;

use super::*;

const GUIDE: &str = include_str!("../../../../../docs/policy.md");

/// The fenced blocks of a language.
fn blocks(language: &str) -> Vec<&'static str> {
    let fence = format!("```{language}\n");
    let behind = GUIDE.split(fence.as_str()).skip(1);
    behind
        .map(|rest| rest.split("```").next().unwrap())
        .collect()
}

#[test]
fn the_guides_policy_gives_the_answer_that_it_prints() {
    let policy = Policy::parse(blocks("toml")[0], 1).unwrap();
    let explanation = policy.explain(HEAD, LAB1, TrafficClass::Data).unwrap();
    // The command adds what one file can't know.
    let shown: String = blocks("text")[0]
        .split_inclusive('\n')
        .filter(|line| !line.contains("see --other"))
        .collect();
    assert_eq!(format!("{explanation}\n"), shown);
}

/// The command says of itself which ways there are, and what one file can't know.
#[test]
fn the_guides_link_gets_the_answer_that_it_prints() {
    let policy = Policy::parse(blocks("toml")[1], 1).unwrap();
    let (from, to) = (
        "lab1.example.org@10.1.2.3",
        "sea.partner.example.net@198.51.100.7",
    );
    let explanation = policy.explain_link(from, to, "flux.heat").unwrap();
    let explained = explanation.to_string();
    let shown = blocks("text")[1];
    assert_eq!(explained.lines().next(), shown.lines().next());
    for line in explained
        .lines()
        .filter(|line| !line.starts_with("  results"))
    {
        assert!(shown.lines().any(|shown| shown == line), "{line}");
    }
}

#[test]
fn the_guides_error_is_the_one_that_people_see() {
    let error = Policy::parse("[domain.lab]\nadresses = [\"10.0.0.1\"]\n", 1).unwrap_err();
    assert_eq!(
        Some(format!("{error}\n").as_str()),
        blocks("text").last().copied()
    );
}

#[test]
fn every_policy_of_the_guide_can_be_read() {
    let policies = blocks("toml");
    assert_eq!(policies.len(), 8);
    for policy in policies {
        assert!(Policy::parse(policy, 1).is_ok(), "{policy}");
    }
}

/// Each row of the table of patterns: a pattern, what it matches, what it doesn't.
#[test]
fn the_guides_patterns_match_what_it_says() {
    let table = GUIDE
        .split("| pattern | matches | does not match |")
        .nth(1)
        .unwrap();
    let rows = table
        .lines()
        .skip(2)
        .take_while(|line| line.starts_with('|'));
    let mut count = 0;
    for row in rows {
        let cells: Vec<Vec<&str>> = row
            .split('|')
            .skip(1)
            .map(|cell| cell.split('`').skip(1).step_by(2).collect())
            .collect();
        let pattern = IdentityPattern::parse(cells[0][0]).unwrap();
        for name in &cells[1] {
            assert!(pattern.matches_node(name, None), "{row}: {name}");
        }
        for name in &cells[2] {
            assert!(!pattern.matches_node(name, None), "{row}: {name}");
        }
        count += 1;
    }
    assert_eq!(count, 5);
}
