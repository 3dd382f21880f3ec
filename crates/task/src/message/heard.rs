//! Workers that a worker hears on its network, as it tells its manager of them.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use bytes::{Buf, BufMut, Bytes, BytesMut};

/// The handler of the manager's endpoint for results that a manager offers behind all others if it dials workers that are heard.
pub const HEARD_HANDLER: &str = "heard";

/// A worker tells of so many others at once.
pub const HEARD_MAX: usize = 256;

/// Of each of them it tells so many addresses.
const HEARD_ADDRESSES_MAX: usize = 8;

/// The longest name of one.
const NAME_BYTES_MAX: usize = 253;

/// What an address has.
const ADDRESS_BYTES: usize = 18;

/// What is told has at most.
pub const HEARD_BYTES_MAX: usize =
    HEARD_MAX * (2 + NAME_BYTES_MAX + 1 + HEARD_ADDRESSES_MAX * ADDRESS_BYTES);

/// A worker that is heard. Nobody has proven anything.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeardWorker {
    /// The name that its certificate is to prove.
    pub name: String,
    /// Where it may be reached, in the order in which they are tried.
    pub addresses: Vec<SocketAddr>,
}

/// Writes the first [`HEARD_MAX`] of these that can be told of, and of each what fits.
#[must_use]
pub fn write_heard(workers: &[HeardWorker]) -> Bytes {
    let mut out = BytesMut::new();
    let can_be_told =
        |worker: &&HeardWorker| is_name(worker.name.as_bytes()) && !worker.addresses.is_empty();
    for worker in workers.iter().filter(can_be_told).take(HEARD_MAX) {
        let addresses = &worker.addresses[..worker.addresses.len().min(HEARD_ADDRESSES_MAX)];
        out.put_u16(worker.name.len() as u16);
        out.put_slice(worker.name.as_bytes());
        out.put_u8(addresses.len() as u8);
        for address in addresses {
            let ip = match address.ip() {
                IpAddr::V4(ip) => ip.to_ipv6_mapped(),
                IpAddr::V6(ip) => ip,
            };
            out.put_slice(&ip.octets());
            out.put_u16(address.port());
        }
    }
    out.freeze()
}

/// Reads what [`write_heard`] wrote; nothing if it could not have written that.
#[must_use]
pub fn read_heard(mut head: Bytes) -> Option<Vec<HeardWorker>> {
    if head.len() > HEARD_BYTES_MAX {
        return None;
    }
    let mut workers = Vec::new();
    while head.has_remaining() {
        let length = usize::from(head.try_get_u16().ok()?);
        if length > head.remaining() || workers.len() == HEARD_MAX {
            return None;
        }
        let name = head.split_to(length);
        if !is_name(&name) {
            return None;
        }
        let count = usize::from(head.try_get_u8().ok()?);
        if !(1..=HEARD_ADDRESSES_MAX).contains(&count) || head.remaining() < count * ADDRESS_BYTES {
            return None;
        }
        let addresses = (0..count).map(|_| {
            let ip = Ipv6Addr::from_bits(head.get_u128());
            SocketAddr::new(ip.to_canonical(), head.get_u16())
        });
        let addresses = addresses.collect();
        let name = String::from_utf8(name.into()).ok()?;
        workers.push(HeardWorker { name, addresses });
    }
    Some(workers)
}

/// Printable, and no longer than the names of hosts are.
fn is_name(name: &[u8]) -> bool {
    (1..=NAME_BYTES_MAX).contains(&name.len()) && name.iter().all(u8::is_ascii_graphic)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    fn worker(name: &str, addresses: &[&str]) -> HeardWorker {
        HeardWorker {
            name: name.to_owned(),
            addresses: addresses.iter().map(|text| text.parse().unwrap()).collect(),
        }
    }

    #[test]
    fn what_is_told_reads_back() {
        let workers = vec![
            worker(
                "lab1.example.org",
                &["192.0.2.1:7601", "[2001:db8::1]:7601"],
            ),
            worker("a", &["192.0.2.2:1"]),
        ];
        assert_eq!(read_heard(write_heard(&workers)), Some(workers));
        assert_eq!(read_heard(Bytes::new()), Some(Vec::new()));
    }

    #[test]
    fn no_more_is_told_than_may_be() {
        let name = "n".repeat(NAME_BYTES_MAX);
        let addresses = ["[2001:db8::1]:7601"; HEARD_ADDRESSES_MAX + 1];
        let mut workers = vec![worker(&name, &addresses); HEARD_MAX + 1];
        let told = write_heard(&workers);
        assert_eq!(told.len(), HEARD_BYTES_MAX);
        let read = read_heard(told.clone()).unwrap();
        assert_eq!(
            (read.len(), read[0].addresses.len()),
            (HEARD_MAX, HEARD_ADDRESSES_MAX)
        );
        let one_more = [&told[..], &told[..1]].concat();
        assert_eq!(read_heard(one_more.into()), None);
        // What has no name or no address is left out, and not what comes behind it.
        workers.truncate(1);
        workers.insert(0, worker(&"n".repeat(NAME_BYTES_MAX + 1), &addresses));
        workers.insert(0, worker("a b", &addresses));
        workers.insert(0, worker("nowhere", &[]));
        assert_eq!(read_heard(write_heard(&workers)).unwrap().len(), 1);
    }

    #[test]
    fn what_is_malformed_is_nothing() {
        let good = write_heard(&[worker("lab1", &["192.0.2.1:7601"])]);
        for length in 1..good.len() {
            assert_eq!(read_heard(good.slice(..length)), None, "{length} bytes");
        }
        let changed = |at: usize, byte: u8| {
            let mut bytes = good.to_vec();
            bytes[at] = byte;
            read_heard(bytes.into())
        };
        for (at, byte) in [(0, 0xff), (1, 0), (1, 5), (3, b' '), (3, 0x1b), (3, 0xff)] {
            assert_eq!(changed(at, byte), None, "byte {at} is {byte}");
        }
        // No address, two, and as many as there are of nothing.
        for count in [0, 2, HEARD_ADDRESSES_MAX as u8 + 1, 255] {
            assert_eq!(changed(6, count), None, "{count} addresses");
        }
        let many: Vec<u8> = (0..=HEARD_MAX).flat_map(|_| good.to_vec()).collect();
        assert_eq!(read_heard(many.into()), None);
    }

    proptest! {
        #[test]
        fn anything_else_is_read_within_its_bounds(bytes in vec(prop::sample::select(&[0, 1, 2, b'a'][..]), 0..80)) {
            if let Some(workers) = read_heard(bytes.clone().into()) {
                prop_assert_eq!(write_heard(&workers).len(), bytes.len());
            }
        }
    }
}
