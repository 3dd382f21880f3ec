//! Connections whose handshake is under way: how many there may be, and who has to make room.
//!
//! Anybody can connect and say nothing. So a newcomer always finds a place: the oldest connection of whoever holds the most places
//! makes room. A connection that has said something keeps its place for [`ASSURED_TIME`], which is many times what a
//! handshake takes; one that has said nothing keeps it for [`SILENCE_TIME`].

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr};
use std::rc::Rc;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use crate::socket::Socket;

/// How long nobody has to make room who has begun a handshake. One takes milliseconds, and a round trip or two.
pub(crate) const ASSURED_TIME: Duration = Duration::from_millis(250);

/// How long nobody has to make room who has said nothing. A peer's first bytes come right behind its connection.
const SILENCE_TIME: Duration = Duration::from_millis(20);

/// Where connections come from, as far as one host is likely to be told from another: an IPv4 address, or the /64 network that
/// every IPv6 host can fill. None is this machine, over a Unix socket.
pub(crate) type Host = Option<IpAddr>;

/// The host at the other end.
pub(crate) fn host_of(socket: &Socket) -> Host {
    let (_, peer) = socket.addresses()?;
    Some(match peer.ip().to_canonical() {
        IpAddr::V6(address) => {
            let [a, b, c, d, ..] = address.segments();
            IpAddr::V6(Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0))
        }
        address => address,
    })
}

/// The handshakes at one listening socket. Clones are the same one.
#[derive(Clone)]
pub(crate) struct Reception {
    table: Rc<RefCell<Table>>,
    places_max: usize,
    of_one_host_max: usize,
}

#[derive(Default)]
struct Table {
    next: u64,
    /// By number, so that the oldest comes first.
    places: BTreeMap<u64, Rc<Occupied>>,
}

struct Occupied {
    host: Host,
    since: Instant,
    has_spoken: Cell<bool>,
    displaced: Notify,
}

/// A connection's place; dropping it makes it free.
pub(crate) struct HandshakePlace {
    reception: Reception,
    number: u64,
    occupied: Rc<Occupied>,
}

impl Reception {
    /// So many handshakes at once, and so many of them with one host.
    pub(crate) fn new(places_max: usize, of_one_host_max: usize) -> Self {
        Self {
            table: Rc::default(),
            places_max,
            of_one_host_max,
        }
    }

    /// How many handshakes are under way.
    pub(crate) fn len(&self) -> usize {
        self.table.borrow().places.len()
    }

    /// A place for a connection from there. Waits if need be until somebody can make room, which is at most [`ASSURED_TIME`].
    pub(crate) async fn enter(&self, host: Host) -> HandshakePlace {
        loop {
            match self.try_enter(host, Instant::now()) {
                Ok(place) => return place,
                Err(until) => tokio::time::sleep_until(until).await,
            }
        }
    }

    /// A place, or when to ask again.
    fn try_enter(&self, host: Host, now: Instant) -> Result<HandshakePlace, Instant> {
        let mut table = self.table.borrow_mut();
        let of = |host: Host| {
            table
                .places
                .values()
                .filter(move |place| place.host == host)
        };
        let crowd = if of(host).count() >= self.of_one_host_max {
            Some(host)
        } else if table.places.len() >= self.places_max {
            let hosts = table.places.values().map(|place| place.host);
            hosts.max_by_key(|&host| of(host).count())
        } else {
            None
        };
        if let Some(crowd) = crowd {
            let crowd = table.places.iter().filter(|(_, place)| place.host == crowd);
            let first = crowd.min_by_key(|(number, place)| (place.assured_until(), **number));
            if let Some((&number, place)) = first {
                let until = place.assured_until();
                if until > now {
                    return Err(until);
                }
                place.displaced.notify_one();
                table.places.remove(&number);
            }
        }
        let number = table.next;
        table.next += 1;
        let occupied = Rc::new(Occupied {
            host,
            since: now,
            has_spoken: Cell::new(false),
            displaced: Notify::new(),
        });
        table.places.insert(number, occupied.clone());
        Ok(HandshakePlace {
            reception: self.clone(),
            number,
            occupied,
        })
    }
}

impl Occupied {
    fn assured_until(&self) -> Instant {
        let time = if self.has_spoken.get() {
            ASSURED_TIME
        } else {
            SILENCE_TIME
        };
        self.since + time
    }
}

impl HandshakePlace {
    /// The peer has said something.
    pub(crate) fn has_spoken(&self) {
        self.occupied.has_spoken.set(true);
    }

    /// The peer has proved who it is: it needs no place any more, and makes room for nobody.
    pub(crate) fn leave(&self) {
        self.reception
            .table
            .borrow_mut()
            .places
            .remove(&self.number);
    }

    /// Returns when the connection has to make room.
    pub(crate) async fn displaced(&self) {
        self.occupied.displaced.notified().await;
    }
}

impl Drop for HandshakePlace {
    fn drop(&mut self) {
        self.leave();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(last: u8) -> Host {
        Some(IpAddr::from([10, 0, 0, last]))
    }

    /// Enters at a time, or fails the test.
    fn enter(reception: &Reception, host: Host, now: Instant) -> HandshakePlace {
        let place = reception.try_enter(host, now);
        place.unwrap_or_else(|_| panic!("no place"))
    }

    fn is_displaced(place: &HandshakePlace) -> bool {
        let table = place.reception.table.borrow();
        !table.places.contains_key(&place.number)
    }

    #[test]
    fn a_host_makes_room_for_its_own_connections_first() {
        let start = Instant::now();
        let reception = Reception::new(8, 2);
        let other = enter(&reception, host(2), start);
        let (first, second) = (
            enter(&reception, host(1), start),
            enter(&reception, host(1), start),
        );
        assert!(reception.try_enter(host(1), start).is_err());
        let third = enter(&reception, host(1), start + SILENCE_TIME);
        assert!(is_displaced(&first));
        assert!(!is_displaced(&second) && !is_displaced(&third) && !is_displaced(&other));
    }

    #[test]
    fn a_crowd_makes_room_for_a_newcomer_and_not_the_other_way_round() {
        let start = Instant::now();
        let reception = Reception::new(4, 3);
        let alone = enter(&reception, host(2), start);
        let crowd: Vec<HandshakePlace> =
            (0..3).map(|_| enter(&reception, host(1), start)).collect();
        let newcomer = enter(&reception, host(3), start + SILENCE_TIME);
        assert!(is_displaced(&crowd[0]));
        assert!(!is_displaced(&alone) && !is_displaced(&newcomer));
    }

    #[test]
    fn who_has_begun_its_handshake_has_the_time_for_it() {
        let start = Instant::now();
        let reception = Reception::new(2, 2);
        let (honest, silent) = (
            enter(&reception, host(1), start),
            enter(&reception, host(1), start),
        );
        honest.has_spoken();
        let next = enter(&reception, host(1), start + SILENCE_TIME);
        assert!(is_displaced(&silent) && !is_displaced(&honest));
        next.has_spoken();
        let until = reception.try_enter(host(1), start + SILENCE_TIME).err();
        assert_eq!(until, Some(start + ASSURED_TIME));
        honest.leave();
        drop(enter(&reception, host(1), start + SILENCE_TIME));
        assert_eq!(reception.len(), 1);
    }

    #[test]
    fn places_of_displaced_connections_are_not_freed_twice() {
        let start = Instant::now();
        let reception = Reception::new(1, 1);
        let first = enter(&reception, host(1), start);
        let second = enter(&reception, host(1), start + SILENCE_TIME);
        drop(first);
        assert_eq!(reception.len(), 1);
        drop(second);
        assert_eq!(reception.len(), 0);
    }
}
