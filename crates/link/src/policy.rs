//! Which protection a wire gets, who may do business with us, and how results are decoded: one
//! TOML file, text in and verdicts out. `docs/policy.md` is the guide to the file.
//!
//! Three ideas carry it:
//!
//! - A *trust domain* needs address **and** identity at an end, and a wire whose ends see the same
//!   pair of addresses. Short of that, its rules can still make things stricter, never easier.
//! - The first rule that fits decides; none leaves [`Protection::Encrypted`](crate::Protection::Encrypted).
//! - Every answer says why, and [`Policy::explain`] asks the very code that decides.

mod build;
mod change;
mod domain;
mod endpoint;
mod error;
mod explanation;
mod file;
mod range;
mod rule;
#[cfg(test)]
mod tests;
mod verdict;
mod wire;

use exoskel_identity::authorization::{Admission, AuthorizationError};
use exoskel_identity::{Authorization, VerifiedIdentity};

use crate::{Protections, TrafficClass};

use self::domain::{Domain, Membership};
use self::rule::{PolicyQuestion, Rule};

pub use self::domain::ResultsFormat;
pub use self::endpoint::EndpointProblem;
pub use self::error::{ExplainError, PolicyError, PolicyProblem};
pub use self::explanation::Explanation;
pub use self::range::RangeProblem;
pub use self::verdict::{DecidedBy, ProtectionVerdict, Raise, RuleName};
pub use self::wire::{PlaceProof, Wire, WireEnd, WireNode};

/// The rules of one site, read from a policy file.
#[derive(Clone, Debug)]
pub struct Policy {
    generation: u64,
    /// The built-in one first, then those of the file in its order.
    domains: Vec<Domain>,
    /// Those of the file in its order, then the built-in one.
    rules: Vec<Rule>,
    authorization: Authorization,
}

impl Policy {
    /// Reads a policy file. `generation` is a number of the caller's that grows with each reading,
    /// so that a session can tell which state of the file it was judged by.
    ///
    /// # Errors
    /// [`PolicyError`] names the line and what to write instead. A file with an error is refused as
    /// a whole: half a policy would be a different one.
    pub fn parse(text: &str, generation: u64) -> Result<Self, PolicyError> {
        let parts = build::build(file::read(text)?, text)?;
        Ok(Self {
            generation,
            domains: parts.domains,
            rules: parts.rules,
            authorization: parts.authorization,
        })
    }

    /// What holds without a file: plain bulk data inside the machine, encryption everywhere else,
    /// and every verified peer is allowed in its role. Its generation is 0.
    pub fn builtin() -> Self {
        Self {
            generation: 0,
            domains: vec![Domain::host()],
            rules: vec![Rule::BUILT_IN],
            authorization: Authorization::default(),
        }
    }

    /// The number given at [`parse`](Self::parse).
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// Which protection this end wants for a class of traffic on a wire. The other end has a policy
    /// too; [`ProtectionVerdict::joined`] takes it in.
    ///
    /// The two ends of the wire are interchangeable. A weaker [`PlaceProof`], or knowing less about an
    /// end, never gives a lower protection.
    pub fn protection(&self, wire: &Wire<'_>, class: TrafficClass) -> ProtectionVerdict {
        self.decide(wire, class, None)
    }

    /// Which protection this end wants for a link to the endpoint of this name on a wire, of the class `data`: rules that name
    /// endpoints count, too. What [`protection`](Self::protection) says of wires holds here as well.
    ///
    /// It can be below what the class has as a whole: see [`least_protections`](Self::least_protections).
    pub fn link_protection(&self, wire: &Wire<'_>, endpoint: &str) -> ProtectionVerdict {
        self.decide(wire, TrafficClass::Data, Some(endpoint))
    }

    fn decide(
        &self,
        wire: &Wire<'_>,
        class: TrafficClass,
        endpoint: Option<&str>,
    ) -> ProtectionVerdict {
        let (local, remote) = Membership::of_both(&self.domains, wire);
        rule::decide(
            &self.rules,
            &local,
            &remote,
            PolicyQuestion { class, endpoint },
        )
    }

    /// [`protection`](Self::protection) for each class: the minimum that a handshake states.
    pub fn protections(&self, wire: &Wire<'_>) -> Protections {
        Protections::each(|class| self.protection(wire, class).protection)
    }

    /// For each class the least that a link over this wire can get, whatever its endpoint is called: the minimum that a handshake
    /// states when each link is asked about by [`link_protection`](Self::link_protection).
    ///
    /// # Security
    /// A session with this minimum protects a link by what the link states. Who doesn't ask for each link takes
    /// [`protections`](Self::protections).
    pub fn least_protections(&self, wire: &Wire<'_>) -> Protections {
        let (local, remote) = Membership::of_both(&self.domains, wire);
        Protections::each(|class| rule::least(&self.rules, &local, &remote, class))
    }

    /// Whether results and exceptions from the wire's remote end may be decoded as pickles of any
    /// kind.
    ///
    /// # Security
    /// Yes means that the peer can run code as our account. That is so inside the machine, and in
    /// domains that say `results = "pickle"`; a domain that doesn't say so and to which the
    /// peer could belong wins over them.
    pub fn results_pickle(&self, wire: &Wire<'_>) -> bool {
        let (_, remote) = Membership::of_both(&self.domains, wire);
        self.results(&remote) == ResultsFormat::Pickle
    }

    /// The trusted domains that the wire's remote end is certain to be in, for tables and logs.
    pub fn remote_domains(&self, wire: &Wire<'_>) -> Vec<&str> {
        let (_, remote) = Membership::of_both(&self.domains, wire);
        self.names_of(remote.certain).collect()
    }

    /// Whether a peer may do business with us at all: a worker asks this about its managers, a
    /// manager about its workers, both about gateways and agents. `chosen` says that we dialled it by
    /// its proven name; see [`Authorization::admission`].
    pub fn admission(&self, peer: &VerifiedIdentity, chosen: bool) -> Admission {
        self.authorization.admission(peer, chosen)
    }

    /// Who may do what, for other servers than links.
    pub fn authorization(&self) -> &Authorization {
        &self.authorization
    }

    /// This policy with a ban list, which takes effect where this policy is asked next.
    ///
    /// # Errors
    /// [`AuthorizationError`] as [`Authorization::with_bans`].
    pub fn with_bans(&self, list: &str) -> Result<Self, AuthorizationError> {
        Ok(Self {
            authorization: self.authorization.with_bans(list)?,
            ..self.clone()
        })
    }

    /// Explains what a wire from `from` to `to` gets, and which rule decides.
    ///
    /// Each end is an `ADDRESS`, a `NAME@ADDRESS`, the name of a domain (some member of it), or
    /// `host` at both ends. The ends are taken to see the same pair of addresses; the explanation
    /// says what holds when they don't.
    ///
    /// # Errors
    /// [`ExplainError`] when an end is none of these.
    pub fn explain(
        &self,
        from: &str,
        to: &str,
        class: TrafficClass,
    ) -> Result<Explanation, ExplainError> {
        explanation::explain(self, from, to, class)
    }

    /// Explains what a link from `from` to the endpoint `endpoint` of `to` gets, as [`explain`](Self::explain) does for a class. An end
    /// can be a `NAME` alone, too: it is then in no domain for certain.
    ///
    /// # Errors
    /// [`ExplainError`] when an end is none of these, or no endpoint can have that name.
    pub fn explain_link(
        &self,
        from: &str,
        to: &str,
        endpoint: &str,
    ) -> Result<Explanation, ExplainError> {
        explanation::explain_link(self, from, to, endpoint)
    }

    /// Pickles are read from a peer that is certain to be in a domain, if each domain in which it could be wants that. Inside the
    /// machine no other domain comes into it: see [`Membership::HOST`].
    fn results(&self, remote: &Membership) -> ResultsFormat {
        let wants_pickles = |index: usize| {
            let domain = self.domains.get(index);
            domain.is_some_and(|domain| domain.results == ResultsFormat::Pickle)
        };
        if !remote.certain.is_empty() && remote.possible.indices().all(wants_pickles) {
            ResultsFormat::Pickle
        } else {
            ResultsFormat::Data
        }
    }

    fn names_of(&self, set: domain::DomainSet) -> impl Iterator<Item = &str> {
        set.indices()
            .filter_map(|index| self.domains.get(index))
            .map(|domain| domain.name.as_str())
    }
}

impl Default for Policy {
    fn default() -> Self {
        Self::builtin()
    }
}
