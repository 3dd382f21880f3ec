//! Load balancers in front of a server, which say where clients come from: version 2 of the PROXY protocol.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::str::FromStr;

use ipnet::IpNet;
use tokio::io::{AsyncRead, AsyncReadExt as _};

use crate::limits::PROXY_HEADER_BYTES_MAX;

/// What each header begins with.
const SIGNATURE: [u8; 12] = *b"\r\n\r\n\0\r\nQUIT\n";

/// Bits before an address of IPv4 in the form of IPv6 (`::ffff:192.0.2.7`).
const MAPPED_BITS: u8 = 96;

/// Signature, version and command, family, length.
const FIXED_BYTES: usize = 16;

/// A host or a network whose connections begin with a header of the PROXY protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Balancer(IpNet);

/// Text that names no balancer. Whoever wrote the configuration must act.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "got balancer {got:?}, expected an address such as \"192.0.2.7\", or a network that begins at its first address such as \"192.0.2.0/24\""
)]
pub struct BadBalancer {
    /// What stood there.
    pub got: String,
}

impl FromStr for Balancer {
    type Err = BadBalancer;

    fn from_str(text: &str) -> Result<Self, BadBalancer> {
        let address = || {
            text.parse::<IpAddr>()
                .ok()
                .map(|one| one.to_canonical().into())
        };
        let network = || {
            let network = text.parse::<IpNet>().ok();
            network.filter(|one| one.trunc() == *one).map(canonical)
        };
        let balancer = address().or_else(network).map(Self);
        balancer.ok_or_else(|| BadBalancer {
            got: text.to_owned(),
        })
    }
}

impl Balancer {
    /// Whether connections from there are a balancer's.
    pub(crate) fn is_at(&self, address: IpAddr) -> bool {
        self.0.contains(&address.to_canonical())
    }
}

/// A network of IPv4 that is written as one of IPv6 holds the addresses that are looked for: those are in their own form.
fn canonical(network: IpNet) -> IpNet {
    let address = network.network().to_canonical();
    let length = network.prefix_len().checked_sub(MAPPED_BITS);
    match (address, length) {
        (IpAddr::V4(_), Some(length)) => IpNet::new(address, length).unwrap_or(network),
        _ => network,
    }
}

/// Why a balancer's connection does not begin as it should.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ProxyHeaderError {
    #[error(transparent)]
    Transport(#[from] io::Error),
    #[error("it does not begin with a header of version 2 of the PROXY protocol")]
    NoHeader,
    #[error("got version and command {0:#04x} in its PROXY header, expected 0x20 or 0x21")]
    Command(u8),
    #[error("got a PROXY header of {0} bytes, expected at most {PROXY_HEADER_BYTES_MAX}")]
    TooLong(usize),
    #[error("got a PROXY header that is shorter than the addresses of its family")]
    TooShort,
    #[error("got the address family {0:#04x} in its PROXY header, expected TCP over IPv4 or IPv6")]
    Family(u8),
}

/// Reads the header, and not a byte more. Nothing where the balancer itself is the client, as in its health checks.
pub(crate) async fn read_header(
    transport: &mut (impl AsyncRead + Unpin),
) -> Result<Option<SocketAddr>, ProxyHeaderError> {
    let mut fixed = [0; FIXED_BYTES];
    transport.read_exact(&mut fixed).await?;
    let [command, family, high, low] = fixed[SIGNATURE.len()..] else {
        return Err(ProxyHeaderError::NoHeader);
    };
    if fixed[..SIGNATURE.len()] != SIGNATURE {
        return Err(ProxyHeaderError::NoHeader);
    }
    let length = usize::from(u16::from_be_bytes([high, low]));
    if length > PROXY_HEADER_BYTES_MAX {
        return Err(ProxyHeaderError::TooLong(length));
    }
    let mut rest = vec![0; length];
    transport.read_exact(&mut rest).await?;
    match command {
        0x20 => Ok(None),
        0x21 => source(family, &rest).map(Some),
        other => Err(ProxyHeaderError::Command(other)),
    }
}

/// The client's address and port, which stand before and after the balancer's own.
fn source(family: u8, addresses: &[u8]) -> Result<SocketAddr, ProxyHeaderError> {
    let short = || ProxyHeaderError::TooShort;
    match family {
        0x11 => {
            let all: &[u8; 12] = addresses.first_chunk().ok_or_else(short)?;
            let [a, b, c, d, .., high, low, _, _] = *all;
            let port = u16::from_be_bytes([high, low]);
            Ok((Ipv4Addr::new(a, b, c, d), port).into())
        }
        0x21 => {
            let all: &[u8; 36] = addresses.first_chunk().ok_or_else(short)?;
            let address: &[u8; 16] = all.first_chunk().ok_or_else(short)?;
            let port = u16::from_be_bytes([all[32], all[33]]);
            Ok((Ipv6Addr::from(*address).to_canonical(), port).into())
        }
        other => Err(ProxyHeaderError::Family(other)),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn header(command: u8, family: u8, rest: &[u8]) -> Vec<u8> {
        let mut header = SIGNATURE.to_vec();
        header.extend([command, family]);
        header.extend(u16::try_from(rest.len()).unwrap().to_be_bytes());
        header.extend(rest);
        header
    }

    async fn read(mut bytes: &[u8]) -> Result<(Option<SocketAddr>, usize), ProxyHeaderError> {
        let address = read_header(&mut bytes).await?;
        Ok((address, bytes.len()))
    }

    #[tokio::test]
    async fn a_header_says_where_the_client_is_and_takes_no_byte_more() {
        let four = [
            192, 0, 2, 7, 10, 0, 0, 1, 0xc3, 0x50, 0x20, 0xfb, 4, 0, 1, 9,
        ];
        let mut bytes = header(0x21, 0x11, &four);
        bytes.extend(b"TLS");
        let (address, left) = read(&bytes).await.unwrap();
        assert_eq!(
            (address.unwrap().to_string().as_str(), left),
            ("192.0.2.7:50000", 3)
        );
        let mut six = [0; 36];
        six[..4].copy_from_slice(&[0x20, 1, 0xd, 0xb8]);
        six[15] = 7;
        six[33] = 80;
        let (address, _) = read(&header(0x21, 0x21, &six)).await.unwrap();
        assert_eq!(address.unwrap().to_string(), "[2001:db8::7]:80");
        assert_eq!(read(&header(0x20, 0, &[])).await.unwrap(), (None, 0));
    }

    #[tokio::test]
    async fn anything_else_is_no_header() {
        for bytes in [
            header(0x11, 0x11, &[0; 12]),
            header(0x21, 0x11, &[0; 11]),
            header(0x21, 0x21, &[0; 35]),
            header(0x21, 0x12, &[0; 12]),
            header(0x21, 0x31, &[0; 216]),
            header(0x21, 0x11, &[0; PROXY_HEADER_BYTES_MAX + 1]),
            header(0x21, 0x11, &[0; 12])[..20].to_vec(),
            b"PROXY TCP4 192.0.2.7 10.0.0.1 50000 8443\r\n".to_vec(),
            b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\x00\x00\x00\x00\x00".to_vec(),
        ] {
            assert!(read(&bytes).await.is_err(), "{bytes:?}");
        }
    }

    #[test]
    fn a_balancer_is_a_host_or_a_whole_network() {
        let at = |text: &str, address: &str| {
            text.parse::<Balancer>()
                .unwrap()
                .is_at(address.parse().unwrap())
        };
        assert!(at("192.0.2.7", "::ffff:192.0.2.7"));
        assert!(at("192.0.2.0/24", "192.0.2.7"));
        assert!(at("::ffff:192.0.2.0/120", "192.0.2.7"));
        assert!(!at("::ffff:192.0.2.0/120", "192.0.3.7"));
        assert!(!at("192.0.2.7", "192.0.2.8"));
        for text in ["", "balancer", "192.0.2.7/24", "192.0.2.7:80"] {
            let error = text.parse::<Balancer>().unwrap_err().to_string();
            assert!(error.contains("192.0.2.0/24"), "{error}");
        }
    }

    proptest! {
        #[test]
        fn no_bytes_panic(bytes in prop::collection::vec(any::<u8>(), 0..64), signed in any::<bool>()) {
            let mut all = if signed { SIGNATURE.to_vec() } else { Vec::new() };
            all.extend(bytes);
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            let _ = runtime.block_on(read(&all));
        }
    }
}
