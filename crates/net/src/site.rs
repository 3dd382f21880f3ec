//! Where nodes are: `site.toml` says which subnets there are, which gateways each has, and at which addresses nodes listen.
//!
//! All of it is hints. It says where to go, and never whom to trust: whoever is met there has to prove who it is, and a
//! gateway connects nobody whom its policy doesn't allow.

use std::collections::BTreeMap;
use std::fmt;

use exoskel_identity::authorization::{IdentityPattern, PatternProblem};
use exoskel_identity::policy_text::{BYTES_MAX, OneOrMany, line_of, syntax};
use exoskel_identity::{ClaimError, Identity, Role};
use serde::Deserialize;
use toml::Spanned;

use crate::address::{Address, AddressError};

/// Subnets of one file.
pub const SUBNETS_MAX: usize = 256;
/// Gateways of one subnet.
pub const GATEWAYS_OF_SUBNET_MAX: usize = 16;
/// Patterns of names of one subnet.
pub const NAMES_OF_SUBNET_MAX: usize = 256;
/// Words of the command that leads to the nodes of a subnet.
pub const COMMAND_WORDS_MAX: usize = 256;
/// Addresses of one node.
pub const ADDRESSES_OF_NODE_MAX: usize = 8;

/// Where nodes and gateways are.
#[derive(Clone, Debug, Default)]
pub struct Site {
    /// By name, in the order of the file.
    subnets: Vec<Subnet>,
    nodes: BTreeMap<String, Vec<Address>>,
}

#[derive(Clone, Debug)]
struct Subnet {
    names: Vec<IdentityPattern>,
    gateways: Vec<GatewayPlace>,
    /// A command whose input and output lead to its nodes; none without words.
    via: Vec<String>,
}

/// A gateway, and where it listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GatewayPlace {
    /// The name in its certificate.
    pub name: String,
    /// Where it listens.
    pub address: Address,
}

/// A way to try.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WayToNode {
    /// The node listens here.
    Dial(Address),
    /// This gateway may have a way.
    Through(GatewayPlace),
}

/// A site file that can't be used. Whoever wrote it must act.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SiteError {
    /// The line, from 1; nothing, when it is about the file as a whole.
    pub line: Option<usize>,
    /// What is wrong there.
    pub problem: SiteProblem,
}

impl fmt::Display for SiteError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(line) = self.line {
            write!(formatter, "line {line}: ")?;
        }
        self.problem.fmt(formatter)
    }
}

impl std::error::Error for SiteError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.problem.source()
    }
}

/// What is wrong with a site file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SiteProblem {
    /// A file beyond its limit.
    #[error("the site file has {0} bytes, expected {BYTES_MAX} at most")]
    TooLarge(usize),
    /// Not TOML, or not the keys and types of a site file.
    #[error("{0}")]
    Syntax(String),
    /// A list that is too long.
    #[error("got {count} {what}, expected {max} at most")]
    TooMany {
        /// Of what.
        what: &'static str,
        /// How many.
        count: usize,
        /// The limit.
        max: usize,
    },
    /// A subnet that no node is in.
    #[error("subnet `{0}` has no names, expected patterns such as \"*.lab.example.org\"")]
    NoNames(String),
    /// A pattern that is none.
    #[error("subnet `{subnet}` names: \"{text}\": {problem}")]
    Pattern {
        /// Whose.
        subnet: String,
        /// The pattern.
        text: String,
        /// What is wrong with it.
        #[source]
        problem: PatternProblem,
    },
    /// An attribute where a name is meant.
    #[error("subnet `{subnet}` names: got the attribute \"{text}\", expected the name of a node")]
    Attribute {
        /// Whose.
        subnet: String,
        /// The pattern.
        text: String,
    },
    /// A name that nobody can have.
    #[error(transparent)]
    Name(#[from] ClaimError),
    /// An address that is none.
    #[error(transparent)]
    Address(#[from] AddressError),
    /// A node or a gateway on other machines can't be at a path.
    #[error("got the address {0:?}, expected tcp://HOST:PORT: nobody else can dial a Unix socket")]
    UnixSocket(String),
    /// A node without an address.
    #[error("the node \"{0}\" has no address; leave it out if it registers at a gateway")]
    NoAddress(String),
}

/// The file as it is written.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SiteTables {
    #[serde(default)]
    subnet: BTreeMap<Spanned<String>, SubnetTable>,
    #[serde(default)]
    node: BTreeMap<Spanned<String>, Spanned<OneOrMany<String>>>,
}

/// `[subnet.NAME]`
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SubnetTable {
    names: Spanned<OneOrMany<String>>,
    #[serde(default)]
    gateways: Vec<Spanned<GatewayTable>>,
    #[serde(default)]
    via: Vec<String>,
}

/// An entry of `gateways`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct GatewayTable {
    name: String,
    address: String,
}

impl Site {
    /// Reads a site file.
    ///
    /// # Errors
    /// [`SiteError`] names the line and says what was expected. A file with an error is refused as a whole.
    pub fn parse(text: &str) -> Result<Self, SiteError> {
        if text.len() > BYTES_MAX {
            return Err(SiteError {
                line: None,
                problem: SiteProblem::TooLarge(text.len()),
            });
        }
        let tables: SiteTables = toml::from_str(text).map_err(|error| {
            let (line, message) = syntax(text, &error);
            SiteError {
                line,
                problem: SiteProblem::Syntax(message),
            }
        })?;
        SiteReader { text }.site(tables)
    }

    /// The ways from one node to another, the most direct first. `passed` are gateways that have passed the request on already.
    #[must_use]
    pub fn ways(&self, from: &str, to: &str, passed: &[&str]) -> Vec<WayToNode> {
        let own: Vec<&Subnet> = self.subnets_of(from).collect();
        let theirs: Vec<&Subnet> = self.subnets_of(to).collect();
        let shared = |subnet: &&Subnet| theirs.iter().any(|other| std::ptr::eq(*other, *subnet));
        let is_near = theirs.is_empty() || own.iter().any(shared);
        let is_gateway = own.iter().any(|subnet| subnet.is_gateway(from));
        let addresses = self.nodes.get(to).filter(|_| is_near);
        let mut ways: Vec<WayToNode> = addresses
            .into_iter()
            .flatten()
            .map(|address| WayToNode::Dial(address.clone()))
            .collect();
        // A gateway is where its own subnets end: those beside it are asked for nodes that may have registered there.
        let beside = own.into_iter().filter(|_| is_near || !is_gateway);
        for place in beside.chain(theirs).flat_map(|subnet| &subnet.gateways) {
            let way = WayToNode::Through(place.clone());
            let is_new = place.name != from && place.name != to && !ways.contains(&way);
            if is_new && !passed.contains(&place.name.as_str()) {
                ways.push(way);
            }
        }
        ways
    }

    /// The commands that lead to nodes, each with a pattern of their names and its words. They are for nodes of a program's own links; a
    /// gateway runs none.
    pub fn commands(&self) -> impl Iterator<Item = (&IdentityPattern, &[String])> {
        let subnets = self.subnets.iter().filter(|subnet| !subnet.via.is_empty());
        subnets.flat_map(|subnet| {
            let names = subnet.names.iter();
            names.map(|pattern| (pattern, subnet.via.as_slice()))
        })
    }

    /// The command that leads to a node, if there is one.
    #[must_use]
    pub fn command_to(&self, node: &str) -> Option<&[String]> {
        let subject = node.starts_with('/').then_some(node);
        let mut commands = self.commands();
        let found = commands.find(|(pattern, _)| pattern.matches_node(node, subject));
        found.map(|(_, words)| words)
    }

    /// Where a node listens, as far as the file says.
    #[must_use]
    pub fn addresses(&self, node: &str) -> &[Address] {
        self.nodes.get(node).map_or(&[], Vec::as_slice)
    }

    /// The gateways at which a node can register that can't be dialled: those of its own subnets.
    pub fn gateways_of<'a>(&'a self, node: &'a str) -> impl Iterator<Item = &'a GatewayPlace> {
        self.subnets_of(node).flat_map(|subnet| &subnet.gateways)
    }

    fn subnets_of<'a>(&'a self, node: &'a str) -> impl Iterator<Item = &'a Subnet> {
        self.subnets.iter().filter(move |subnet| subnet.holds(node))
    }
}

impl Subnet {
    fn holds(&self, node: &str) -> bool {
        let subject = node.starts_with('/').then_some(node);
        let mut names = self.names.iter();
        names.any(|pattern| pattern.matches_node(node, subject)) || self.is_gateway(node)
    }

    fn is_gateway(&self, node: &str) -> bool {
        self.gateways.iter().any(|place| place.name == node)
    }
}

struct SiteReader<'a> {
    text: &'a str,
}

impl SiteReader<'_> {
    fn error<T>(&self, place: &Spanned<T>, problem: impl Into<SiteProblem>) -> SiteError {
        SiteError {
            line: Some(line_of(self.text, place.span().start)),
            problem: problem.into(),
        }
    }

    fn check_count<T>(
        &self,
        place: &Spanned<T>,
        what: &'static str,
        count: usize,
        max: usize,
    ) -> Result<(), SiteError> {
        if count > max {
            return Err(self.error(place, SiteProblem::TooMany { what, count, max }));
        }
        Ok(())
    }

    fn site(&self, tables: SiteTables) -> Result<Site, SiteError> {
        let mut subnets: Vec<_> = tables.subnet.into_iter().collect();
        subnets.sort_by_key(|(name, _)| name.span().start);
        if let Some((name, _)) = subnets.last() {
            self.check_count(name, "subnets", subnets.len(), SUBNETS_MAX)?;
        }
        let subnets = subnets.iter().map(|(name, table)| self.subnet(name, table));
        let nodes = tables.node.iter().map(|(name, addresses)| {
            let checked = node_name(name.get_ref()).map_err(|error| self.error(name, error))?;
            let OneOrMany(words) = addresses.get_ref();
            if words.is_empty() {
                return Err(self.error(name, SiteProblem::NoAddress(checked)));
            }
            self.check_count(addresses, "addresses", words.len(), ADDRESSES_OF_NODE_MAX)?;
            let read = words.iter().map(|word| self.address(addresses, word));
            Ok((checked, read.collect::<Result<_, _>>()?))
        });
        Ok(Site {
            subnets: subnets.collect::<Result<_, _>>()?,
            nodes: nodes.collect::<Result<_, _>>()?,
        })
    }

    fn subnet(&self, name: &Spanned<String>, table: &SubnetTable) -> Result<Subnet, SiteError> {
        let OneOrMany(words) = table.names.get_ref();
        let subnet = name.get_ref();
        if words.is_empty() {
            return Err(self.error(&table.names, SiteProblem::NoNames(subnet.clone())));
        }
        self.check_count(&table.names, "names", words.len(), NAMES_OF_SUBNET_MAX)?;
        let names = words.iter().map(|text| {
            let (subnet, text) = (subnet.clone(), text.clone());
            match IdentityPattern::parse(&text) {
                Ok(pattern) if pattern.is_of_attributes() => {
                    Err(self.error(&table.names, SiteProblem::Attribute { subnet, text }))
                }
                Ok(pattern) => Ok(pattern),
                Err(problem) => {
                    let problem = SiteProblem::Pattern {
                        subnet,
                        text,
                        problem,
                    };
                    Err(self.error(&table.names, problem))
                }
            }
        });
        let names = names.collect::<Result<_, _>>()?;
        let count = table.gateways.len();
        self.check_count(name, "gateways", count, GATEWAYS_OF_SUBNET_MAX)?;
        let gateways = table.gateways.iter().map(|place| {
            let written = place.get_ref();
            let identity = Identity::new(Role::Gateway, &written.name);
            let identity = identity.map_err(|error| self.error(place, error))?;
            Ok(GatewayPlace {
                name: identity.name,
                address: self.address(place, &written.address)?,
            })
        });
        let gateways = gateways.collect::<Result<_, _>>()?;
        let words = table.via.len();
        self.check_count(name, "words of a command", words, COMMAND_WORDS_MAX)?;
        Ok(Subnet {
            names,
            gateways,
            via: table.via.clone(),
        })
    }

    fn address<T>(&self, place: &Spanned<T>, text: &str) -> Result<Address, SiteError> {
        match text.parse() {
            Ok(Address::Unix(_)) => {
                Err(self.error(place, SiteProblem::UnixSocket(text.to_owned())))
            }
            Ok(address) => Ok(address),
            Err(error) => Err(self.error::<T>(place, error)),
        }
    }
}

/// A node's name as its certificate states it: host names are in small letters there.
fn node_name(text: &str) -> Result<String, ClaimError> {
    if text.starts_with('/') {
        return Ok(Identity::of_subject(Role::Peer, text)?.name);
    }
    Ok(Identity::new(Role::Worker, text)?.name)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TWO_SUBNETS: &str = r#"
[subnet.lab]
names = ["*.lab.example.org"]
gateways = [{ name = "gate.lab.example.org", address = "tcp://192.0.2.1:7700" }]

[subnet.cloud]
names = "*.cloud.example.org"
gateways = [
    { name = "gate1.cloud.example.org", address = "tcp://198.51.100.1:7700" },
    { name = "gate2.cloud.example.org", address = "tcp://198.51.100.2:7700" },
]

[node]
"Ocean.lab.example.org" = "tcp://10.1.0.7:7700"
"gpu3.cloud.example.org" = ["10.2.0.3:7700", "[fd00::3]:7700"]
"anywhere.example.org" = "203.0.113.9:7700"
"#;

    fn words(ways: &[WayToNode]) -> Vec<String> {
        let word = |way: &WayToNode| match way {
            WayToNode::Dial(address) => address.to_string(),
            WayToNode::Through(place) => place.name.clone(),
        };
        ways.iter().map(word).collect()
    }

    fn ways(from: &str, to: &str, passed: &[&str]) -> Vec<String> {
        words(&Site::parse(TWO_SUBNETS).unwrap().ways(from, to, passed))
    }

    #[test]
    fn near_nodes_are_dialled_and_far_ones_reached_through_gateways() {
        let ocean = "ocean.lab.example.org";
        let (gate, gpu) = ("gate.lab.example.org", "gpu3.cloud.example.org");
        let (gate1, gate2) = ("gate1.cloud.example.org", "gate2.cloud.example.org");
        assert_eq!(
            ways("land.lab.example.org", ocean, &[]),
            ["10.1.0.7:7700", gate]
        );
        // From another subnet: its own gateway first, and never the address.
        assert_eq!(ways(ocean, gpu, &[]), [gate, gate1, gate2]);
        assert_eq!(ways(gate, gpu, &[]), [gate1, gate2]);
        assert_eq!(
            ways(gate1, gpu, &[gate]),
            ["10.2.0.3:7700", "[fd00::3]:7700", gate2]
        );
        assert_eq!(
            ways(gate1, gpu, &[gate, gate2]),
            ["10.2.0.3:7700", "[fd00::3]:7700"]
        );
        // A node of no subnet may be anywhere.
        assert_eq!(
            ways(gate, "anywhere.example.org", &[]),
            ["203.0.113.9:7700"]
        );
        assert_eq!(ways("x.example.org", gpu, &[]), [gate1, gate2]);
        assert_eq!(ways(gate, "nobody.example.org", &[]), [""; 0]);
        let site = Site::parse(TWO_SUBNETS).unwrap();
        let registers: Vec<_> = site.gateways_of("hidden.cloud.example.org").collect();
        assert_eq!(registers.len(), 2);
    }

    #[test]
    fn a_subnet_can_be_behind_a_command() {
        let text = TWO_SUBNETS.replace(
            "names = [\"*.lab.example.org\"]",
            "names = [\"*.lab.example.org\"]\nvia = [\"ssh\", \"-W\", \"{host}:{port}\", \"login\"]",
        );
        let site = Site::parse(&text).unwrap();
        let words = site.command_to("ocean.lab.example.org").unwrap();
        assert_eq!(words, ["ssh", "-W", "{host}:{port}", "login"]);
        assert_eq!(site.command_to("gpu3.cloud.example.org"), None);
        assert_eq!(site.addresses("ocean.lab.example.org").len(), 1);
        assert_eq!(site.addresses("nobody.example.org"), []);
    }

    #[test]
    fn an_error_names_its_line_and_what_was_expected() {
        for (text, line, expected) in [
            ("[subnet.a]\nnames = []", 2, "has no names"),
            ("[subnet.a]\nnames = \"a[1]\"", 2, "a[1]"),
            (
                "[subnet.a]\nnames = \"/vo/Role=x\"",
                2,
                "expected the name of a node",
            ),
            ("\n[subnet.a]\nnames = \"*\"\ngateway = 1", 4, "gateway"),
            (
                "[subnet.a]\nnames = \"*\"\ngateways = [{ name = \"*\", address = \"a:1\" }]",
                3,
                "name",
            ),
            (
                "[subnet.a]\nnames = \"*\"\ngateways = [{ name = \"g\", address = \"a\" }]",
                3,
                "host:port",
            ),
            (
                "[node]\n\"a\" = \"unix:/run/a\"",
                2,
                "nobody else can dial a Unix socket",
            ),
            ("[node]\n\"a\" = []", 2, "no address"),
            ("[node]\n\"a b\" = \"a:1\"", 2, "name"),
            ("[node]\nx = 1", 2, "quotation marks"),
            ("[[node]]\n", 1, "map"),
        ] {
            let error = Site::parse(text).unwrap_err();
            assert_eq!(error.line, Some(line), "{text}: {error}");
            assert!(error.to_string().contains(expected), "{text}: {error}");
        }
        let many = ["\"a:1\""; ADDRESSES_OF_NODE_MAX + 1].join(", ");
        let error = Site::parse(&format!("[node]\na = [{many}]")).unwrap_err();
        assert!(error.to_string().contains("expected 8 at most"), "{error}");
        let error = Site::parse(&" ".repeat(BYTES_MAX + 1)).unwrap_err();
        assert!(matches!(error.problem, SiteProblem::TooLarge(_)));
    }
}
