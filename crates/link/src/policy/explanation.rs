//! The long answer, for people: which rule decides about a wire, and why the others don't.

use std::fmt;
use std::net::IpAddr;

use exoskel_identity::{Identity, Role};

use super::Policy;
use super::build::known_domains;
use super::domain::{HOST, Membership, ResultsFormat};
use super::error::ExplainError;
use super::rule::{Fit, PolicyQuestion, Rule, RuleEnd, decide};
use super::verdict::{DecidedBy, ProtectionVerdict, Raise};
use super::wire::{PlaceProof, WireNode};
use crate::control::NAME_BYTES_MAX;
use crate::{Protection, TrafficClass};

/// What a wire gets, and why. Displayed as several lines of text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Explanation {
    /// One end, as it was given.
    pub from: String,
    /// The other end, as it was given.
    pub to: String,
    /// The class of traffic.
    pub class: TrafficClass,
    /// The endpoint of the link, if it is about one link and not about all of the class.
    pub endpoint: Option<String>,
    /// What decides, when both ends see the same pair of addresses.
    pub verdict: ProtectionVerdict,
    /// What the wire gets when they don't, or a gateway is between; nothing for `host`, where that
    /// can't be.
    pub unproven: Option<ProtectionVerdict>,
    /// How results are decoded that come from the end `to`, if it is a worker.
    pub results: ResultsFormat,
    /// The same of the end `from`.
    pub results_of_from: ResultsFormat,
    /// The steps to the verdict, a sentence each.
    pub reasons: Vec<String>,
}

impl Explanation {
    /// What the wire gets, when both ends see the same pair of addresses.
    pub fn protection(&self) -> Protection {
        self.verdict.protection
    }

    /// What decides, in a few words.
    pub fn rule(&self) -> String {
        self.verdict.decided_by.to_string()
    }

    /// How results are read, whichever end is the worker: a line for each end where they differ.
    pub fn results_lines(&self) -> Vec<String> {
        let of = |end: &str, results: ResultsFormat| {
            format!("results of {end}: {}", results.explained())
        };
        let to = of(&self.to, self.results);
        if self.results_of_from == self.results {
            let same = match self.from == self.to {
                true => "",
                false => "; the same the other way round",
            };
            return vec![format!("{to}{same}")];
        }
        vec![of(&self.from, self.results_of_from), to]
    }
}

impl fmt::Display for Explanation {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (from, to, protection) = (&self.from, &self.to, self.protection());
        match &self.endpoint {
            Some(name) => writeln!(
                formatter,
                "link from {from} to the endpoint {name} of {to}: {protection}"
            )?,
            None => writeln!(
                formatter,
                "{} from {from} to {to}: {protection}",
                self.class
            )?,
        }
        writeln!(formatter, "  decided by: {}", self.rule())?;
        for reason in &self.reasons {
            writeln!(formatter, "  {reason}")?;
        }
        write!(formatter, "  {}", self.results_lines().join("\n  "))
    }
}

/// One end of the wire in question.
struct ExplainedEnd {
    text: String,
    membership: Membership,
    /// Why it is in the domains it is in.
    reason: String,
}

pub(crate) fn explain(
    policy: &Policy,
    from: &str,
    to: &str,
    class: TrafficClass,
) -> Result<Explanation, ExplainError> {
    let question = PolicyQuestion {
        class,
        endpoint: None,
    };
    explain_question(policy, from, to, question)
}

pub(crate) fn explain_link(
    policy: &Policy,
    from: &str,
    to: &str,
    endpoint: &str,
) -> Result<Explanation, ExplainError> {
    let is_name = !endpoint.is_empty()
        && endpoint.len() <= NAME_BYTES_MAX
        && !endpoint.chars().any(char::is_control);
    if !is_name {
        return Err(ExplainError::Endpoint {
            text: endpoint.to_owned(),
        });
    }
    let question = PolicyQuestion {
        class: TrafficClass::Data,
        endpoint: Some(endpoint),
    };
    explain_question(policy, from, to, question)
}

fn explain_question(
    policy: &Policy,
    from: &str,
    to: &str,
    question: PolicyQuestion<'_>,
) -> Result<Explanation, ExplainError> {
    for (end, other) in [(from, to), (to, from)] {
        if end == HOST && other != HOST {
            return Err(ExplainError::HostAtOneEnd {
                other: other.to_owned(),
            });
        }
    }
    let is_link = question.endpoint.is_some();
    let (one, other) = (end(policy, from, is_link)?, end(policy, to, is_link)?);
    let verdict = decide(&policy.rules, &one.membership, &other.membership, question);
    let unproven = (from != HOST).then(|| {
        let (one, other) = (one.membership.unproven(), other.membership.unproven());
        decide(&policy.rules, &one, &other, question)
    });
    let mut reasons = vec![format!("{}: {}", one.text, one.reason)];
    if other.text != one.text {
        reasons.push(format!("{}: {}", other.text, other.reason));
    }
    reasons.extend(rule_reasons(
        policy,
        &one.membership,
        &other.membership,
        question,
    ));
    if verdict.decided_by == DecidedBy::Default {
        reasons.push("no rule fits: encrypted".to_owned());
    }
    match verdict.raised_by {
        Some(Raise::Minimum(class)) => {
            reasons.push(format!(
                "{class} is never plain: raised to {}",
                verdict.protection
            ));
        }
        Some(Raise::ControlBetweenHosts) => {
            reasons.push("control between hosts is always encrypted".to_owned());
        }
        Some(raise) => reasons.push(format!("raised to {} by {raise}", verdict.protection)),
        None => {}
    }
    if let Some(unproven) = unproven {
        reasons.push(format!(
            "through a NAT, relay, tunnel or gateway: {unproven}"
        ));
    }
    Ok(Explanation {
        from: one.text,
        to: other.text,
        class: question.class,
        endpoint: question.endpoint.map(str::to_owned),
        verdict,
        unproven,
        results: policy.results(&other.membership),
        results_of_from: policy.results(&one.membership),
        reasons,
    })
}

/// Reads one end. An `@` can be part of a name, never of an address. The end of a link can be a name alone.
fn end(policy: &Policy, text: &str, is_link: bool) -> Result<ExplainedEnd, ExplainError> {
    if let Some(index) = policy.domains.iter().position(|domain| domain.name == text) {
        return Ok(member(policy, text, index));
    }
    let unreadable = || ExplainError::Subject {
        text: text.to_owned(),
        known: known_domains(&policy.domains, &[]),
    };
    let (name, address) = match text.rsplit_once('@') {
        Some((name, address)) => (Some(name), address),
        None => (None, text),
    };
    let bare = address
        .strip_prefix('[')
        .and_then(|rest| rest.strip_suffix(']'))
        .unwrap_or(address);
    let address: IpAddr = match bare.parse() {
        Ok(address) => address,
        Err(_) if is_link => return named_only(policy, text),
        Err(_) => return Err(unreadable()),
    };
    let spelt = |name| {
        spelt(name).ok_or_else(|| ExplainError::Name {
            text: text.to_owned(),
        })
    };
    let name = name.map(spelt).transpose()?;
    let membership = Membership::of(
        &policy.domains,
        Some(address),
        name.as_deref().map(node),
        PlaceProof::Direct,
    );
    let reason = place_reason(policy, address, name.as_deref(), &membership);
    Ok(ExplainedEnd {
        text: text.to_owned(),
        membership,
        reason,
    })
}

/// A name as certificates have it, which have one spelling for each. The role doesn't matter here.
fn spelt(name: &str) -> Option<String> {
    if name.starts_with('/') {
        return Some(name.to_owned());
    }
    let identity = Identity::new(Role::Worker, name).ok()?;
    Some(identity.name)
}

/// Somebody of whose place nothing is known.
fn named_only(policy: &Policy, text: &str) -> Result<ExplainedEnd, ExplainError> {
    let name = spelt(text).ok_or_else(|| ExplainError::Node {
        text: text.to_owned(),
        known: known_domains(&policy.domains, &[]),
    })?;
    let node = Some(node(&name));
    Ok(ExplainedEnd {
        text: text.to_owned(),
        membership: Membership::of(&policy.domains, None, node, PlaceProof::Direct),
        reason: format!(
            "in no domain for certain, as its address is not known: give {text}@ADDRESS to see it"
        ),
    })
}

/// The machine that a name stands for: a distinguished name starts with a slash, and patterns of host names don't match
/// it.
fn node(name: &str) -> WireNode<'_> {
    WireNode {
        name,
        subject: name.starts_with('/').then_some(name),
        is_independent: false,
    }
}

/// Some member of a domain, of which nothing else is known.
fn member(policy: &Policy, text: &str, index: usize) -> ExplainedEnd {
    let mut membership = Membership::default();
    membership.certain.insert(index);
    membership.possible.insert(index);
    let reason = match text {
        HOST => "a process of this account on this machine, proven by the kernel".to_owned(),
        _ if policy.domains.len() > 2 => {
            format!("a host that is in `{text}` by address and name, and in no other domain")
        }
        _ => format!("a host that is in `{text}` by address and name"),
    };
    ExplainedEnd {
        text: text.to_owned(),
        membership,
        reason,
    }
}

fn place_reason(
    policy: &Policy,
    address: IpAddr,
    name: Option<&str>,
    membership: &Membership,
) -> String {
    let list = |indices: &mut dyn Iterator<Item = usize>| {
        let names = indices.filter_map(|index| policy.domains.get(index));
        names
            .map(|domain| format!("`{}`", domain.name))
            .collect::<Vec<_>>()
            .join(", ")
    };
    let holds_address = |index: &usize| {
        policy
            .domains
            .get(*index)
            .is_some_and(|domain| domain.holds_address(address))
    };
    let half = |index: &usize| !membership.certain.contains(*index);
    let by_address = list(
        &mut membership
            .possible
            .indices()
            .filter(half)
            .filter(holds_address),
    );
    let mut parts = Vec::new();
    if !membership.certain.is_empty() {
        let domains = list(&mut membership.certain.indices());
        parts.push(format!("in {domains} by address and name"));
    }
    if name.is_none() {
        let hint = match by_address.as_str() {
            "" => "in no domain by its address".to_owned(),
            _ => format!("in {by_address} by its address"),
        };
        parts.push(format!(
            "{hint}, but a domain takes a name too: give NAME@{address} to see it"
        ));
        return parts.join("; ");
    }
    if !by_address.is_empty() {
        parts.push(format!(
            "in {by_address} by address only, as no pattern of its names matches"
        ));
    }
    let otherwise = |index: &usize| !holds_address(index);
    let by_name = list(&mut membership.possible.indices().filter(half).filter(otherwise));
    if !by_name.is_empty() {
        parts.push(format!(
            "in {by_name} by name only, as the address is outside its addresses"
        ));
    }
    if parts.is_empty() {
        parts.push("in no domain".to_owned());
    }
    parts.join("; ")
}

/// A sentence for each rule up to the one that decides.
fn rule_reasons(
    policy: &Policy,
    one: &Membership,
    other: &Membership,
    question: PolicyQuestion<'_>,
) -> Vec<String> {
    let mut reasons = Vec::new();
    for (position, rule) in policy.rules.iter().enumerate() {
        let text = describe(policy, rule);
        if !rule.is_about(question) {
            let class = question.class;
            reasons.push(match question.endpoint {
                _ if !rule.classes.contains(class) => format!("{text}: not for {class}"),
                Some(name) => format!("{text}: not for the endpoint {name}"),
                None => format!("{text}: for links to these endpoints only"),
            });
            continue;
        }
        match rule.fit(one, other) {
            Fit::Never => reasons.push(format!("{text}: does not fit these ends")),
            Fit::Possible => reasons.push(format!(
                "{text}: an end is in it by half only, so it can make things stricter, never easier"
            )),
            Fit::Certain => {
                reasons.push(format!("{text}: fits, and decides"));
                let later = policy.rules.len() - position - 1;
                // The built-in rule is always the last one, and of no interest here.
                match later {
                    0 | 1 => {}
                    2 => reasons.push("1 later rule was not asked".to_owned()),
                    _ => reasons.push(format!("{} later rules were not asked", later - 1)),
                }
                break;
            }
        }
    }
    reasons
}

fn describe(policy: &Policy, rule: &Rule) -> String {
    let side = |side: RuleEnd| match side {
        RuleEnd::Any => "any".to_owned(),
        RuleEnd::Domains(set) => policy.names_of(set).collect::<Vec<_>>().join(" or "),
    };
    let (from, to) = (side(rule.from), side(rule.to));
    let endpoints = rule
        .endpoints
        .as_ref()
        .map_or_else(String::new, |patterns| {
            let texts: Vec<_> = patterns.iter().map(ToString::to_string).collect();
            format!(" to {}", texts.join(" or "))
        });
    format!(
        "{}, {from} - {to}, {}{endpoints}, {}",
        rule.name, rule.classes, rule.protection
    )
}
