//! Ranges of addresses: `192.0.2.0/24`, `2001:db8::/32`, `192.0.2.7`.

use std::fmt;
use std::net::IpAddr;

use ipnet::{IpNet, Ipv4Net};

/// The addresses of a domain that share a prefix. A single address is a range of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AddressRange(IpNet);

/// What is wrong with an address or a range.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RangeProblem {
    /// A host name, a typing error, a port.
    #[error(
        "it is no address: expected one like 192.0.2.7, or a range like 192.0.2.0/24 or 2001:db8::/32"
    )]
    Syntax,
    /// `10.1.2.3/8`: did they mean one host or sixteen million?
    #[error(
        "a range starts at its first address: expected {range} for the range, or {address} for the one host"
    )]
    HostBits {
        /// The range without the bits behind the prefix.
        range: String,
        /// The address as given.
        address: String,
    },
    /// `fe80::1%eth0`: the zone is known to one machine only, and the policy is for many.
    #[error("a zone (the part from `%` on) has no meaning on other machines: leave it out")]
    Zone,
}

/// The IPv4-mapped part of IPv6, `::ffff:0:0/96`.
const MAPPED_PREFIX_BITS: u8 = 96;

impl AddressRange {
    pub(crate) fn parse(text: &str) -> Result<Self, RangeProblem> {
        if text.contains('%') {
            return Err(RangeProblem::Zone);
        }
        let network: IpNet = if text.contains('/') {
            text.parse().map_err(|_| RangeProblem::Syntax)?
        } else {
            IpNet::from(text.parse::<IpAddr>().map_err(|_| RangeProblem::Syntax)?)
        };
        if network.trunc() != network {
            return Err(RangeProblem::HostBits {
                range: network.trunc().to_string(),
                address: network.addr().to_string(),
            });
        }
        Ok(Self(unmapped(network)))
    }

    /// Whether the address lies inside. A mapped address (`::ffff:192.0.2.7`, which a socket open
    /// to both families reports) is the IPv4 address that it stands for.
    pub(crate) fn contains(&self, address: IpAddr) -> bool {
        self.0.contains(&address.to_canonical())
    }
}

/// Observed addresses are compared unmapped, so a range of mapped ones must be too, or it would
/// never match.
fn unmapped(network: IpNet) -> IpNet {
    if let IpNet::V6(six) = network
        && six.prefix_len() >= MAPPED_PREFIX_BITS
        && let Some(address) = six.addr().to_ipv4_mapped()
        && let Ok(four) = Ipv4Net::new(address, six.prefix_len() - MAPPED_PREFIX_BITS)
    {
        return IpNet::V4(four);
    }
    network
}

impl fmt::Display for AddressRange {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.prefix_len() == self.0.max_prefix_len() {
            return self.0.addr().fmt(formatter);
        }
        self.0.fmt(formatter)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn contains(range: &str, address: &str) -> bool {
        AddressRange::parse(range)
            .unwrap()
            .contains(address.parse().unwrap())
    }

    #[test]
    fn mapped_addresses_are_the_ipv4_ones() {
        assert!(contains("10.0.0.0/8", "10.1.2.3"));
        assert!(contains("10.0.0.0/8", "::ffff:10.1.2.3"));
        assert!(contains("::ffff:10.0.0.0/104", "10.1.2.3"));
        assert!(contains("::ffff:10.1.2.3", "10.1.2.3"));
        assert!(contains("2001:db8::/32", "2001:db8::7"));
        assert!(!contains("10.0.0.0/8", "11.0.0.1"));
        assert!(!contains("10.1.2.3", "10.1.2.4"));
        // Else "all of IPv6" would silently hold all of IPv4.
        assert!(!contains("::/0", "::ffff:10.1.2.3"));
        // The deprecated compatible form, which no socket reports, is not IPv4.
        assert!(!contains("10.0.0.0/8", "::10.1.2.3"));
    }

    #[test]
    fn what_is_no_range_is_refused() {
        for text in [
            "",
            "lab1",
            "10.0.0.1:80",
            "10.0.0.0/33",
            "10.0/8",
            "[::1]",
            "010.0.0.1",
            "/8",
        ] {
            assert_eq!(
                AddressRange::parse(text),
                Err(RangeProblem::Syntax),
                "{text}"
            );
        }
        assert_eq!(AddressRange::parse("fe80::1%eth0"), Err(RangeProblem::Zone));
        let error = AddressRange::parse("10.1.2.3/8").unwrap_err().to_string();
        assert!(
            error.contains("10.0.0.0/8") && error.contains("10.1.2.3 for"),
            "{error}"
        );
    }
}
