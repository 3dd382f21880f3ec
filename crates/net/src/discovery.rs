//! Workers announce themselves to their network, and managers hear them: multicast DNS (RFC 6762) with DNS-SD (RFC 6763).
//!
//! Everybody on a network may announce everything, so what is heard is a hint. Whoever uses it dials the name that a policy allows, and
//! the certificate must prove it.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr, SocketAddrV6};
use std::time::Duration;

use exoskel_node::manager::hints::Hint;
use mdns_sd::{Receiver, ResolvedService, ScopedIp, ServiceDaemon, ServiceEvent, ServiceInfo};

/// The service of workers that listen.
const SERVICE: &str = "_exoskel._tcp.local.";

/// Of its text record: the name that the worker's certificate proves.
const NAME: &str = "name";

/// A label of DNS has 63 bytes at most; the service finds room behind it for what tells two of one name apart.
const LABEL_BYTES_MAX: usize = 40;

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
        end(&self.daemon);
    }
}

/// What is heard of a worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Heard {
    /// It is there, says the announcement of this name.
    There(String, Hint),
    /// The announcement of this name was taken back, or not repeated.
    Gone(String),
}

/// Hears announcements, for as long as this is.
pub struct Hearing {
    daemon: ServiceDaemon,
    events: Receiver<ServiceEvent>,
}

impl Hearing {
    /// Asks who is there, and hears who comes and goes.
    ///
    /// # Errors
    /// [`DiscoveryError`] if the system gives no socket.
    pub fn new() -> Result<Self, DiscoveryError> {
        let daemon = ServiceDaemon::new()?;
        let events = daemon.browse(SERVICE)?;
        Ok(Self { daemon, events })
    }

    /// What has been heard meanwhile, without waiting.
    pub fn news(&self) -> impl Iterator<Item = Heard> {
        self.events.try_iter().filter_map(heard)
    }

    /// The next thing that is heard within this time.
    pub fn next(&self, time: Duration) -> Option<Heard> {
        let end = std::time::Instant::now() + time;
        loop {
            let event = self.events.recv_deadline(end).ok()?;
            if let Some(heard) = heard(event) {
                return Some(heard);
            }
        }
    }
}

impl Drop for Hearing {
    fn drop(&mut self) {
        end(&self.daemon);
    }
}

/// Ends the thread of the library.
fn end(daemon: &ServiceDaemon) {
    if let Ok(ended) = daemon.shutdown() {
        let _ = ended.recv_timeout(END_TIME);
    }
}

fn heard(event: ServiceEvent) -> Option<Heard> {
    match event {
        ServiceEvent::ServiceResolved(service) => {
            let name = service.get_property_val_str(NAME)?.to_owned();
            let addresses = addresses(&service).into_iter().collect();
            Some(Heard::There(service.fullname, Hint { name, addresses }))
        }
        ServiceEvent::ServiceRemoved(_, announcement) => Some(Heard::Gone(announcement)),
        _ => None,
    }
}

fn addresses(service: &ResolvedService) -> BTreeSet<SocketAddr> {
    let port = service.get_port();
    let address = |ip: &ScopedIp| match ip {
        // An address of one link is none without the link.
        ScopedIp::V6(ip) if ip.addr().is_unicast_link_local() => {
            let link = ip.scope_id().index;
            SocketAddr::V6(SocketAddrV6::new(*ip.addr(), port, 0, link))
        }
        ip => SocketAddr::new(ip.to_ip_addr(), port),
    };
    service.get_addresses().iter().map(address).collect()
}
