//! What can be wrong with a policy file. Whoever wrote the file must act, so every message says
//! where and what to write instead.

use std::fmt;

use exoskel_identity::authorization::{AuthorizationError, AuthorizationProblem, PatternProblem};
use exoskel_identity::policy_text::{BYTES_MAX, LIST_ENTRIES_MAX};

use super::domain::{DOMAINS_MAX, HOST};
use super::endpoint::EndpointProblem;
use super::file::{ENDPOINTS_MAX, RULES_MAX};
use super::range::RangeProblem;
use super::verdict::RuleName;
use crate::control::NAME_BYTES_MAX;

/// A policy file that can't be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyError {
    /// The line, from 1; nothing, when it is about the file as a whole.
    pub line: Option<usize>,
    /// What is wrong there.
    pub problem: PolicyProblem,
}

impl fmt::Display for PolicyError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(line) = self.line {
            write!(formatter, "line {line}: ")?;
        }
        self.problem.fmt(formatter)
    }
}

impl std::error::Error for PolicyError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.problem.source()
    }
}

impl From<AuthorizationError> for PolicyError {
    fn from(error: AuthorizationError) -> Self {
        Self {
            line: error.line,
            problem: PolicyProblem::Authorization(error.problem),
        }
    }
}

/// What is wrong with a policy file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PolicyProblem {
    /// A policy is written by people; this was not.
    #[error("the policy has {bytes} bytes, expected {BYTES_MAX} at most")]
    TooLarge {
        /// Its size.
        bytes: usize,
    },
    /// Not TOML, or not the keys and types of a policy.
    #[error("{message}")]
    Syntax {
        /// What the parser says.
        message: String,
    },
    /// More domains than a set of them has room for.
    #[error("got {count} domains, expected {} at most", DOMAINS_MAX - 1)]
    TooManyDomains {
        /// How many.
        count: usize,
    },
    /// More rules than anybody can oversee.
    #[error("got {count} rules, expected {RULES_MAX} at most")]
    TooManyRules {
        /// How many.
        count: usize,
    },
    /// A list beyond its limit.
    #[error("`{list}` has {count} entries, expected {LIST_ENTRIES_MAX} at most")]
    TooManyEntries {
        /// Which list.
        list: &'static str,
        /// How many.
        count: usize,
    },
    /// `[domain.host]`
    #[error(
        "`{HOST}` is built in (processes of one machine, proven by its kernel) and can't be defined: \
         choose another name; rules may use it"
    )]
    HostRedefined,
    /// `[domain.any]`
    #[error("`any` means everybody in rules and can't be a domain: choose another name")]
    AnyDefined,
    /// Names of domains stand in rules, tables and command lines.
    #[error(
        "domain {name:?}: a domain's name starts with a letter and has letters, digits, `-` and `_`, 64 at most"
    )]
    DomainName {
        /// The name.
        name: String,
    },
    /// A domain that could be entered from anywhere.
    #[error(
        "domain `{domain}` has no addresses, so it would never be trusted: a certificate says who a host is, \
         not where; add addresses = [\"192.0.2.0/24\"] with the site's ranges"
    )]
    NoAddresses {
        /// Its name.
        domain: String,
    },
    /// A domain that could be entered by anybody.
    #[error(
        "domain `{domain}` has no names, so it would never be trusted: add patterns of the names in its certificates, \
         such as names = [\"*.site.example.org\"]"
    )]
    NoNames {
        /// Its name.
        domain: String,
    },
    /// An entry of `addresses`.
    #[error("domain `{domain}`: address {text:?}: {problem}")]
    Address {
        /// The domain's name.
        domain: String,
        /// The entry.
        text: String,
        /// What is wrong with it.
        problem: RangeProblem,
    },
    /// An entry of `names`.
    #[error("{list}: pattern {text:?}: {problem}")]
    Pattern {
        /// Which list.
        list: String,
        /// The entry.
        text: String,
        /// What is wrong with it.
        problem: PatternProblem,
    },
    /// An attribute, which belongs to people, in a domain, which consists of machines.
    #[error(
        "domain `{domain}` names: {text:?} is an attribute of people, and a domain consists of machines: write the \
         names in their certificates, or their distinguished names like /DC=org/DC=grid/CN=*.example.org"
    )]
    AttributeInDomain {
        /// The domain's name.
        domain: String,
        /// The entry.
        text: String,
    },
    /// Something in `[allow]`, `[deny]` or `[accounts]`.
    #[error(transparent)]
    Authorization(AuthorizationProblem),
    /// A rule without a `from`, a `to` or a class.
    #[error(
        "`{key}` is empty, so this rule would never apply: name a domain, or leave the rule out"
    )]
    EmptyList {
        /// The key.
        key: &'static str,
    },
    /// More endpoints in one rule than it may name.
    #[error(
        "`endpoint` has {count} entries, expected {ENDPOINTS_MAX} at most: use patterns like \"flux.*\", or several rules"
    )]
    TooManyEndpoints {
        /// How many.
        count: usize,
    },
    /// An entry of `endpoint`.
    #[error("`endpoint`: pattern {text:?}: {problem}")]
    Endpoint {
        /// The entry.
        text: String,
        /// What is wrong with it.
        problem: EndpointProblem,
    },
    /// A rule about a domain that isn't there.
    #[error("unknown domain {name:?} in `{key}`, expected one of {known}")]
    UnknownDomain {
        /// The key.
        key: &'static str,
        /// The name.
        name: String,
        /// Those there are.
        known: String,
    },
    /// `["any", "lab"]`
    #[error(
        "`{key}` has \"any\" and domains beside it: \"any\" is everybody already, write it alone"
    )]
    AnyAmongDomains {
        /// The key.
        key: &'static str,
    },
    /// `host` to another machine.
    #[error(
        "`{HOST}` stays inside one machine: got it in only one of `from` and `to`, expected it in both; \
         for wires to other machines, name this machine's domain"
    )]
    HostAtOneEnd,
    /// Plain for strangers.
    #[error(
        "plain for \"any\" would send data in clear to whoever has a certificate, over whatever wire: \
         name a domain in `from` and in `to`, or use \"integrity\" or \"encrypted\""
    )]
    PlainForAny,
    /// A rule that an earlier one leaves no work.
    #[error(
        "this rule would never decide: {by} stands before it and fits wherever it does; put it first, or drop one"
    )]
    Shadowed {
        /// The earlier rule.
        by: RuleName,
    },
}

/// A question of `explain` that can't be answered.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ExplainError {
    /// Neither an address nor a domain.
    #[error(
        "got {text:?}, expected an ADDRESS (192.0.2.7), a NAME@ADDRESS (lab1.example.org@192.0.2.7, \
         or with a distinguished name /DC=org/CN=lab1@192.0.2.7), or one of the domains {known}"
    )]
    Subject {
        /// What was given.
        text: String,
        /// The policy's domains.
        known: String,
    },
    /// The name before an `@` could not stand in a certificate.
    #[error(
        "{text:?} has no name that a certificate could hold: names have letters, digits and `. - _ : @ +`"
    )]
    Name {
        /// What was given.
        text: String,
    },
    /// Neither an address nor a domain nor a name.
    #[error(
        "got {text:?}, expected a NAME (ocean.example.org), a NAME@ADDRESS (ocean.example.org@192.0.2.7), an ADDRESS, \
         or one of the domains {known}"
    )]
    Node {
        /// What was given.
        text: String,
        /// The policy's domains.
        known: String,
    },
    /// A name that no endpoint can have.
    #[error(
        "got the endpoint {text:?}, expected a name of 1 to {NAME_BYTES_MAX} bytes without control characters"
    )]
    Endpoint {
        /// What was given.
        text: String,
    },
    /// `host` and something else.
    #[error(
        "`{HOST}` is a wire that stays inside one machine, so both ends are `{HOST}`: got `{HOST}` and {other:?}; \
         for a wire to another machine, give this machine's NAME@ADDRESS"
    )]
    HostAtOneEnd {
        /// The other end.
        other: String,
    },
}
