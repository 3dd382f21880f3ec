//! Workers announce themselves to their network, and managers hear them: multicast DNS (RFC 6762) with DNS-SD (RFC 6763).
//!
//! Everybody on a network may announce everything, so what is heard is a hint. Whoever uses it dials the name that a policy allows, and
//! the certificate must prove it.

use std::cell::LazyCell;
use std::net::{IpAddr, SocketAddr, SocketAddrV6};
use std::time::Duration;

use exoskel_node::manager::hints::{Hint, HintedAddress};
use if_addrs::{IfAddr, Interface};
use mdns_sd::{
    Receiver, ResolvedService, ScopedIp, ServiceDaemon, ServiceEvent, ServiceInfo, TryRecvError,
};

/// The service of workers that listen.
const SERVICE: &str = "_exoskel._tcp.local.";

/// Of its text record: the name that the worker's certificate proves.
const NAME: &str = "name";

/// A label of DNS has 63 bytes at most; the service finds room behind it for what tells two of one name apart.
const LABEL_BYTES_MAX: usize = 40;

/// Events that are looked at in a turn of the manager's thread.
const NEWS_OF_TURN_MAX: usize = 128;

/// Events after which it begins anew. The library keeps all that it hears for as long as who says it wants.
const NEWS_MAX: usize = 1 << 14;

/// Addresses of one announcement that are looked at.
const ADDRESSES_HEARD_MAX: usize = 64;

/// How long it waits before it asks again who is there.
const AGAIN_TIME: Duration = Duration::from_secs(1);

/// How long the end of an announcement may take.
const END_TIME: Duration = Duration::from_millis(500);

/// The network can't be listened to, or nothing can be announced to it. Whoever runs this machine must act.
#[derive(Debug, thiserror::Error)]
#[error("multicast DNS can't be used here: {0}")]
pub struct DiscoveryError(#[from] mdns_sd::Error);

/// A worker that says that it is there, for as long as this is.
pub struct Announcement {
    daemon: ServiceDaemon,
    full_name: String,
}

impl Announcement {
    /// Announces the worker of this name, which listens on this port: at one address, or at all of this machine where that is none.
    ///
    /// # Errors
    /// [`DiscoveryError`] if the system gives no socket, or the name can't be announced.
    pub fn new(name: &str, address: Option<IpAddr>, port: u16) -> Result<Self, DiscoveryError> {
        let part = |byte: u8| match byte {
            byte if byte.is_ascii_alphanumeric() => char::from(byte.to_ascii_lowercase()),
            _ => '-',
        };
        let label: String = name.bytes().map(part).take(LABEL_BYTES_MAX).collect();
        let label = format!("{}-{port}", label.trim_matches('-'));
        let host = format!("{label}.local.");
        let addresses: Vec<IpAddr> = address.into_iter().collect();
        let text = [(NAME, name)];
        let info = ServiceInfo::new(SERVICE, &label, &host, &addresses[..], port, &text[..])?;
        let info = match address {
            Some(_) => info,
            None => info.enable_addr_auto(),
        };
        let full_name = info.get_fullname().to_owned();
        let daemon = ServiceDaemon::new()?;
        daemon.register(info)?;
        Ok(Self { daemon, full_name })
    }
}

impl Drop for Announcement {
    /// Takes it back, so that nobody dials in vain.
    fn drop(&mut self) {
        if let Ok(taken_back) = self.daemon.unregister(&self.full_name) {
            let _ = taken_back.recv_timeout(END_TIME);
        }
        if let Ok(ended) = self.daemon.shutdown() {
            let _ = ended.recv_timeout(END_TIME);
        }
    }
}

/// What is heard of a worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HeardNews {
    /// It is there, says the announcement of this name.
    There(String, Hint),
    /// The announcement of this name was taken back, or not repeated.
    Gone(String),
}

/// Hears announcements, for as long as this is.
pub struct Hearing {
    daemon: ServiceDaemon,
    events: Receiver<ServiceEvent>,
    /// Events since it began.
    count: usize,
    /// When it begins anew, if the library has given up to tell what it hears.
    begins_at: Option<Duration>,
}

impl Hearing {
    /// Asks who is there, and hears who comes and goes.
    ///
    /// # Errors
    /// [`DiscoveryError`] if the system gives no socket.
    pub fn new() -> Result<Self, DiscoveryError> {
        let daemon = ServiceDaemon::new()?;
        let events = daemon.browse(SERVICE)?;
        Ok(Self {
            daemon,
            events,
            count: 0,
            begins_at: None,
        })
    }

    /// What has been heard meanwhile, without waiting; so much of it as fits into a turn.
    pub fn news(&mut self, now: Duration) -> Vec<HeardNews> {
        let mut news = Vec::new();
        let networks: LazyCell<Networks> = LazyCell::new(Networks::now);
        for _ in 0..NEWS_OF_TURN_MAX {
            match self.events.try_recv() {
                Ok(event) => {
                    self.count += 1;
                    news.extend(heard(event, &networks));
                }
                Err(TryRecvError::Empty) => break,
                // The library ends it when more has come than it keeps.
                Err(TryRecvError::Disconnected) => {
                    self.begins_at.get_or_insert(now + AGAIN_TIME);
                    break;
                }
            }
        }
        news
    }

    /// Whether it must begin anew, since more has come than is kept.
    #[must_use]
    pub fn is_over(&self, now: Duration) -> bool {
        self.count >= NEWS_MAX || self.begins_at.is_some_and(|at| now >= at)
    }
}

impl Drop for Hearing {
    /// Ends the thread of the library, without waiting for that.
    fn drop(&mut self) {
        let _ = self.daemon.shutdown();
    }
}

/// The networks of this machine.
struct Networks(Vec<Interface>);

impl Networks {
    fn now() -> Self {
        Self(if_addrs::get_if_addrs().unwrap_or_default())
    }

    /// Whether the address is in the subnet of the interface of this number.
    fn is_near(&self, address: IpAddr, interface: u32) -> bool {
        let of_interface = self.0.iter().filter(|own| own.index == Some(interface));
        let mut subnets = of_interface.map(|own| match (&own.addr, address) {
            (IfAddr::V4(own), IpAddr::V4(other)) => {
                (own.ip.to_bits() ^ other.to_bits()) & own.netmask.to_bits() == 0
            }
            (IfAddr::V6(own), IpAddr::V6(other)) => {
                (own.ip.to_bits() ^ other.to_bits()) & own.netmask.to_bits() == 0
            }
            _ => false,
        });
        subnets.any(|is_in| is_in)
    }
}

fn heard(event: ServiceEvent, networks: &LazyCell<Networks>) -> Option<HeardNews> {
    match event {
        ServiceEvent::ServiceResolved(service) => {
            let name = service.get_property_val_str(NAME)?.to_owned();
            let addresses = addresses(&service, networks);
            Some(HeardNews::There(service.fullname, Hint { name, addresses }))
        }
        ServiceEvent::ServiceRemoved(_, announcement) => Some(HeardNews::Gone(announcement)),
        _ => None,
    }
}

fn addresses(service: &ResolvedService, networks: &Networks) -> Vec<HintedAddress> {
    let port = service.get_port();
    let address = |ip: &ScopedIp| match ip {
        // An address of one link is none without the link.
        ScopedIp::V6(ip) => {
            let link = ip.scope_id().index;
            let is_of_link = ip.addr().is_unicast_link_local();
            let address = SocketAddrV6::new(*ip.addr(), port, 0, if is_of_link { link } else { 0 });
            let is_near = networks.is_near(IpAddr::V6(*ip.addr()), link);
            HintedAddress {
                address: SocketAddr::V6(address),
                is_near,
            }
        }
        ip => {
            let links = match ip {
                ScopedIp::V4(ip) => ip.interface_ids(),
                _ => &[],
            };
            let mut links = links.iter();
            let ip = ip.to_ip_addr();
            HintedAddress {
                address: SocketAddr::new(ip, port),
                is_near: links.any(|link| networks.is_near(ip, link.index)),
            }
        }
    };
    // Who says that it has more addresses than a host has, is heard in part.
    let addresses = service.get_addresses().iter().take(ADDRESSES_HEARD_MAX);
    addresses.map(address).collect()
}
