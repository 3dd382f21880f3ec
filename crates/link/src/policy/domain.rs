//! Trust domains, and which of them an end of a wire belongs to.

use std::net::IpAddr;

use exoskel_identity::authorization::IdentityPattern;

use super::range::AddressRange;
use super::wire::{PlaceProof, Wire, WireEnd, WireNode};

/// Domains that one policy can have, with the built-in one: sets of them are the bits of a number.
pub(crate) const DOMAINS_MAX: usize = 128;

/// The name of the built-in domain.
pub(crate) const HOST: &str = "host";

/// The position of the built-in domain.
pub(crate) const HOST_INDEX: usize = 0;

/// How results from a domain's workers are decoded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ResultsFormat {
    /// As data: a worker can't make the manager run anything. Policies may also say `restricted`, the older spelling.
    #[default]
    Data,
    /// Any pickle: a worker there can run code as the manager's account.
    Pickle,
}

impl ResultsFormat {
    /// The word that stands in policies and messages.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Data => "data",
            Self::Pickle => "pickle",
        }
    }

    /// What that means, for people.
    pub const fn explained(self) -> &'static str {
        match self {
            Self::Data => "read as data",
            Self::Pickle => "read as pickles: where it is a worker, it can run code at its manager",
        }
    }
}

impl std::fmt::Display for ResultsFormat {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.pad(self.as_str())
    }
}

/// A named set of hosts whose wires their owner declares safe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Domain {
    pub(crate) name: String,
    pub(crate) addresses: Vec<AddressRange>,
    pub(crate) names: Vec<IdentityPattern>,
    /// What the file says; [`ResultsFormat::Data`] if it says nothing.
    pub(crate) results: ResultsFormat,
}

impl Domain {
    /// The built-in domain, which no address and no name can match: only the kernel's proof does.
    pub(crate) fn host() -> Self {
        Self {
            name: HOST.to_owned(),
            addresses: Vec::new(),
            names: Vec::new(),
            results: ResultsFormat::Pickle,
        }
    }

    pub(crate) fn holds_address(&self, address: IpAddr) -> bool {
        self.addresses.iter().any(|range| range.contains(address))
    }

    /// Whether one of the names is the node's; nothing where a node says so that chose its name.
    pub(crate) fn holds_node(&self, node: WireNode<'_>) -> Option<bool> {
        let is_named = self
            .names
            .iter()
            .any(|pattern| pattern.matches_node(node.name, node.subject));
        (!is_named || !node.is_independent).then_some(is_named)
    }
}

/// A set of domains, by position.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct DomainSet(u128);

impl DomainSet {
    pub(crate) const HOST: Self = Self(1 << HOST_INDEX);

    /// Adds a domain. Positions stay below [`DOMAINS_MAX`], which is checked when a file is read.
    pub(crate) fn insert(&mut self, index: usize) {
        self.0 |= 1 << index;
    }

    pub(crate) fn contains(self, index: usize) -> bool {
        self.0 & (1 << index) != 0
    }

    pub(crate) fn intersects(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    pub(crate) fn holds_all_of(self, other: Self) -> bool {
        other.0 & !self.0 == 0
    }

    pub(crate) fn is_empty(self) -> bool {
        self.0 == 0
    }

    pub(crate) fn indices(self) -> impl Iterator<Item = usize> {
        (0..DOMAINS_MAX).filter(move |index| self.contains(*index))
    }
}

/// To which domains one end of a wire belongs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Membership {
    /// Address, identity and proof all say so: these domains' rules may make things easier.
    pub(crate) certain: DomainSet,
    /// Something says so and the rest is unproven, unknown or against: these domains' rules may
    /// only make things stricter.
    pub(crate) possible: DomainSet,
}

impl Membership {
    /// What is certain to be in the built-in domain is in no other: there is no wire to speak of.
    pub(crate) const HOST: Self = Self {
        certain: DomainSet::HOST,
        possible: DomainSet::HOST,
    };

    /// Judges one end of a wire.
    ///
    /// The file's owner trusts a domain by address *and* name, and fears it by address *or* name:
    /// else a peer that hides its address, or that reports another one than we see, could shake off
    /// a strict rule.
    pub(crate) fn of(
        domains: &[Domain],
        address: Option<IpAddr>,
        node: Option<WireNode<'_>>,
        proof: PlaceProof,
    ) -> Self {
        if proof == PlaceProof::SameHost {
            return Self::HOST;
        }
        let mut membership = Self::default();
        for (index, domain) in domains
            .iter()
            .enumerate()
            .filter(|(index, _)| *index != HOST_INDEX)
        {
            let by_address = address.map(|address| domain.holds_address(address));
            let by_name = node.and_then(|node| domain.holds_node(node));
            if (by_address, by_name) != (Some(false), Some(false)) {
                membership.possible.insert(index);
            }
            if (by_address, by_name, proof) == (Some(true), Some(true), PlaceProof::Direct) {
                membership.certain.insert(index);
            }
        }
        membership
    }

    /// Judges both ends, ours first.
    pub(crate) fn of_both(domains: &[Domain], wire: &Wire<'_>) -> (Self, Self) {
        let of = |place: &WireEnd<'_>| Self::of(domains, place.address, place.node, wire.proof);
        (of(&wire.local), of(&wire.remote))
    }

    /// The same end when nothing proves where it is.
    pub(crate) fn unproven(self) -> Self {
        Self {
            certain: DomainSet::default(),
            possible: self.possible,
        }
    }
}
