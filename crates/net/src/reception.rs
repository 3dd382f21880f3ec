//! Connections whose handshake is under way: how many there may be, and who has to make room.
//!
//! Anybody can connect and say nothing. So a newcomer always finds a place: the oldest connection of whoever holds the most places
//! makes room. A connection that has said something keeps its place for [`ASSURED_TIME`], which is many times what a
//! handshake takes; one that has said nothing keeps it for [`SILENCE_TIME`].
//!
//! Who has to wait for a place stands in line, and holds up nobody else. A free place goes to the crowd that has the fewest, and within a
//! crowd to who has waited longest. A full line turns away who has waited longest in the largest crowd, so a newcomer gets in.

use std::cell::{Cell, RefCell};
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr};
use std::rc::Rc;
use std::time::Duration;

use rustix::process::{Resource, getrlimit};
use tokio::sync::Notify;
use tokio::task::JoinHandle;
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

/// Whose connections make room for each other first.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Crowd {
    /// Those of a host.
    Host(Host),
    /// Those that come through a gateway, by the name of who has asked it, as the gateway says.
    Asker(Rc<str>),
}

impl From<Host> for Crowd {
    fn from(host: Host) -> Self {
        Self::Host(host)
    }
}

/// Connections that may wait in line, at most. Each is a descriptor.
const WAITING_MAX: u64 = 512;

/// Into so many parts the descriptors are divided, and those in line get no more than one of them.
pub(crate) const SHARE_OF_WAITING: u64 = 8;

/// Those of one crowd that may wait in line, at most, and no more than half of all.
const WAITING_OF_CROWD_MAX: usize = 128;

/// How many may wait in line, where a process may have so many descriptors.
pub(crate) fn waiting_max(descriptors: u64) -> u64 {
    WAITING_MAX.min(descriptors / SHARE_OF_WAITING)
}

/// The handshakes at one listening socket. Clones are the same one.
#[derive(Clone)]
pub(crate) struct Reception {
    table: Rc<RefCell<Table>>,
    places_max: usize,
    of_one_crowd_max: usize,
    waiting_max: usize,
}

#[derive(Default)]
struct Table {
    next: u64,
    /// By number, so that the oldest comes first.
    places: BTreeMap<u64, Rc<Occupied>>,
    /// Who waits for a place, by number as well.
    line: BTreeMap<u64, Rc<InLine>>,
    /// When the first one in line looks for places again.
    looks_at: Option<Instant>,
}

struct Occupied {
    crowd: Crowd,
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
    /// So many handshakes at once, and so many of them with one crowd.
    pub(crate) fn new(places_max: usize, of_one_crowd_max: usize) -> Self {
        let descriptors = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        Self {
            table: Rc::default(),
            places_max,
            of_one_crowd_max,
            waiting_max: waiting_max(descriptors) as usize,
        }
    }

    /// How many handshakes are under way.
    pub(crate) fn len(&self) -> usize {
        self.table.borrow().places.len()
    }

    /// Deals with a connection from there, in a task of its own, as soon as it has a place. That is at most [`ASSURED_TIME`] where nobody
    /// else waits. A connection that has to make room in line is dropped. Who accepts connections never waits: others have places.
    pub(crate) fn receive(
        &self,
        crowd: impl Into<Crowd>,
        deal: impl AsyncFnOnce(HandshakePlace) + 'static,
    ) -> JoinHandle<()> {
        let (reception, crowd) = (self.clone(), crowd.into());
        tokio::task::spawn_local(async move {
            if let Some(place) = reception.enter(crowd).await {
                deal(place).await;
            }
        })
    }

    /// A place for a connection from there, or none if newer ones needed the room to wait.
    async fn enter(&self, crowd: Crowd) -> Option<HandshakePlace> {
        let place = self.wait_in_line(crowd);
        loop {
            let until = self.admit(Instant::now());
            match place.waiting.state.take() {
                WaitingState::Admitted(place) => return Some(place),
                WaitingState::TurnedAway => return None,
                WaitingState::Waits => {}
            }
            let changed = place.waiting.changed.notified();
            // The first one in line keeps the time for all.
            match until.filter(|_| self.table.borrow().is_first(place.number)) {
                Some(until) => drop(tokio::time::timeout_at(until, changed).await),
                None => changed.await,
            }
        }
    }

    fn wait_in_line(&self, crowd: Crowd) -> LinePlace {
        let mut table = self.table.borrow_mut();
        let number = table.number();
        let waiting = Rc::new(InLine {
            crowd,
            state: Cell::default(),
            changed: Notify::new(),
        });
        table.line.insert(number, waiting.clone());
        LinePlace {
            reception: self.clone(),
            number,
            waiting,
        }
    }

    /// Gives those in line what places there are, and turns away those for whom there is no room to wait. Says when to look again.
    fn admit(&self, now: Instant) -> Option<Instant> {
        let mut has_changed = false;
        let until = loop {
            match self.admit_one(now) {
                Ok(()) => has_changed = true,
                Err(until) => break until,
            }
        };
        let mut table = self.table.borrow_mut();
        has_changed |= table.turn_away(self.waiting_max);
        if has_changed || table.looks_at != until {
            table.looks_at = until;
            table.wake_first();
        }
        until
    }

    /// Gives a place to the first one in line who can have one; if nobody can, says when somebody may.
    fn admit_one(&self, now: Instant) -> Result<(), Option<Instant>> {
        let mut firsts = {
            let table = self.table.borrow();
            let crowds = table.crowds_in_line().into_iter();
            let firsts = crowds.map(|(crowd, (_, oldest))| (table.places_of(crowd), oldest));
            firsts.collect::<Vec<_>>()
        };
        firsts.sort_unstable();
        let mut until = None;
        for (_, number) in firsts {
            let Some(waiting) = self.table.borrow().line.get(&number).cloned() else {
                continue;
            };
            match self.try_enter(&waiting.crowd, now) {
                Ok(place) => {
                    self.table.borrow_mut().line.remove(&number);
                    waiting.tell(WaitingState::Admitted(place));
                    return Ok(());
                }
                Err(later) => until = Some(until.map_or(later, |until: Instant| until.min(later))),
            }
        }
        Err(until)
    }

    /// A place, or when to ask again.
    fn try_enter(&self, crowd: &Crowd, now: Instant) -> Result<HandshakePlace, Instant> {
        let mut table = self.table.borrow_mut();
        let fullest = if table.places_of(crowd) >= self.of_one_crowd_max {
            Some(crowd)
        } else if table.places.len() >= self.places_max {
            let crowds = table.places.values().map(|place| &place.crowd);
            crowds.max_by_key(|crowd| table.places_of(crowd))
        } else {
            None
        };
        let first = fullest.and_then(|fullest| {
            let places = table.places.iter();
            let places = places.filter(|(_, place)| place.crowd == *fullest);
            let first = places.min_by_key(|(number, place)| (place.assured_until(), **number));
            first.map(|(number, place)| (*number, place.clone()))
        });
        if let Some((number, place)) = first {
            let until = place.assured_until();
            if until > now {
                return Err(until);
            }
            place.displaced.notify_one();
            table.places.remove(&number);
        }
        let number = table.number();
        let occupied = Rc::new(Occupied {
            crowd: crowd.clone(),
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

impl Table {
    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    fn places_of(&self, crowd: &Crowd) -> usize {
        let places = self.places.values();
        places.filter(|place| place.crowd == *crowd).count()
    }

    /// How many of each crowd wait, and who of them has waited longest.
    fn crowds_in_line(&self) -> BTreeMap<&Crowd, (usize, u64)> {
        let mut crowds = BTreeMap::new();
        for (number, waiting) in &self.line {
            let (count, _) = crowds.entry(&waiting.crowd).or_insert((0, *number));
            *count += 1;
        }
        crowds
    }

    /// Makes the line as short as it may be. Says whether somebody had to go.
    fn turn_away(&mut self, waiting_max: usize) -> bool {
        let of_crowd_max = WAITING_OF_CROWD_MAX.min(waiting_max / 2);
        let mut has_changed = false;
        loop {
            let crowds = self.crowds_in_line().into_values();
            let largest = crowds.max_by_key(|&(count, oldest)| (count, Reverse(oldest)));
            let Some((count, oldest)) = largest else {
                return has_changed;
            };
            if self.line.len() <= waiting_max && count <= of_crowd_max {
                return has_changed;
            }
            if let Some(waiting) = self.line.remove(&oldest) {
                waiting.tell(WaitingState::TurnedAway);
            }
            has_changed = true;
        }
    }

    fn is_first(&self, number: u64) -> bool {
        self.line.keys().next() == Some(&number)
    }

    fn wake_first(&self) {
        if let Some(first) = self.line.values().next() {
            first.changed.notify_one();
        }
    }
}

/// A connection that waits for a place.
struct InLine {
    crowd: Crowd,
    state: Cell<WaitingState>,
    changed: Notify,
}

/// What has come of the waiting.
#[derive(Default)]
enum WaitingState {
    #[default]
    Waits,
    Admitted(HandshakePlace),
    TurnedAway,
}

impl InLine {
    fn tell(&self, state: WaitingState) {
        self.state.set(state);
        self.changed.notify_one();
    }
}

/// A place in line; dropping it gives it up.
struct LinePlace {
    reception: Reception,
    number: u64,
    waiting: Rc<InLine>,
}

impl Drop for LinePlace {
    fn drop(&mut self) {
        let mut table = self.reception.table.borrow_mut();
        if table.line.remove(&self.number).is_some() {
            table.wake_first();
        }
    }
}

impl HandshakePlace {
    /// The peer has said something.
    pub(crate) fn has_spoken(&self) {
        self.occupied.has_spoken.set(true);
    }

    /// The peer has proved who it is: it needs no place any more, and makes room for nobody.
    pub(crate) fn leave(&self) {
        let mut table = self.reception.table.borrow_mut();
        if table.places.remove(&self.number).is_some() {
            table.wake_first();
        }
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

    fn host(last: u8) -> Crowd {
        Crowd::Host(Some(IpAddr::from([10, 0, 0, last])))
    }

    /// Enters at a time, or fails the test.
    fn enter(reception: &Reception, crowd: Crowd, now: Instant) -> HandshakePlace {
        let place = reception.try_enter(&crowd, now);
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
        assert!(reception.try_enter(&host(1), start).is_err());
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
        let until = reception.try_enter(&host(1), start + SILENCE_TIME).err();
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

    /// As many may wait as with so many descriptors.
    fn reception(places_max: usize, of_one_crowd_max: usize, descriptors: u64) -> Reception {
        Reception {
            waiting_max: waiting_max(descriptors) as usize,
            ..Reception::new(places_max, of_one_crowd_max)
        }
    }

    /// Stands in line, without a task that waits there.
    fn wait(reception: &Reception, crowd: Crowd, now: Instant) -> LinePlace {
        let place = reception.wait_in_line(crowd);
        reception.admit(now);
        place
    }

    fn is_admitted(place: &LinePlace) -> bool {
        let state = place.waiting.state.take();
        let is_admitted = matches!(state, WaitingState::Admitted(_));
        place.waiting.state.set(state);
        is_admitted
    }

    fn is_turned_away(place: &LinePlace) -> bool {
        let state = place.waiting.state.take();
        let is_turned_away = matches!(state, WaitingState::TurnedAway);
        place.waiting.state.set(state);
        is_turned_away
    }

    /// Aim: however many of a crowd wait, a newcomer waits as well, and they alone make room for it.
    #[test]
    fn a_full_line_turns_away_who_has_waited_longest() {
        let start = Instant::now();
        let reception = reception(8, 1, u64::MAX);
        let other = enter(&reception, host(2), start);
        let other_waits = wait(&reception, host(2), start);
        let first = enter(&reception, host(1), start);
        let line: Vec<LinePlace> = (0..WAITING_OF_CROWD_MAX)
            .map(|_| wait(&reception, host(1), start))
            .collect();
        assert!(
            !line
                .iter()
                .any(|place| is_admitted(place) || is_turned_away(place))
        );
        let newcomer = wait(&reception, host(1), start);
        assert!(is_turned_away(&line[0]) && !is_turned_away(&line[1]));
        assert!(!is_turned_away(&newcomer) && !is_turned_away(&other_waits));
        drop((line, first));
        reception.admit(start);
        assert!(is_admitted(&newcomer), "nobody is before it any more");
        drop((newcomer, other, other_waits));
        let table = reception.table.borrow();
        assert!(table.line.is_empty() && table.places.is_empty());
    }

    /// Aim: the longest part of a line makes room for those who are few.
    #[test]
    fn a_crowd_in_line_makes_room_for_others() {
        let start = Instant::now();
        let reception = reception(1, 1, 1024);
        let _first = enter(&reception, host(0), start);
        let crowds = 4;
        let line: Vec<LinePlace> = (0..128)
            .map(|number| wait(&reception, host(1 + (number % crowds) as u8), start))
            .collect();
        let newcomer = wait(&reception, host(100), start);
        let gone = line.iter().filter(|place| is_turned_away(place));
        assert_eq!(gone.count(), 1);
        assert!(is_turned_away(&line[0]) && !is_turned_away(&newcomer));
        // Who has the fewest places is next.
        reception.admit(start + SILENCE_TIME);
        assert!(
            is_admitted(&line[1]),
            "all have none, and it has waited longest"
        );
    }

    /// Aim: of those who wait, the crowd that has the fewest places is next, however late it came.
    #[test]
    fn a_free_place_goes_to_who_has_the_fewest() {
        let start = Instant::now();
        let reception = Reception::new(3, 3);
        let held: Vec<HandshakePlace> = (0..3).map(|_| enter(&reception, host(1), start)).collect();
        let (crowd, alone) = (
            wait(&reception, host(1), start),
            wait(&reception, host(2), start),
        );
        held[2].leave();
        reception.admit(start);
        assert!(is_admitted(&alone) && !is_admitted(&crowd));
        reception.admit(start + SILENCE_TIME);
        assert!(is_admitted(&crowd) && is_displaced(&held[0]));
    }

    /// Aim: whoever accepts connections is held up by nobody who waits, and what waits is dropped when the reception's tasks are.
    #[tokio::test]
    async fn who_waits_holds_up_nobody_else() {
        let tasks = tokio::task::LocalSet::new();
        let reception = Reception::new(2, 1);
        let come = Rc::new(RefCell::new(Vec::new()));
        let all_come = Rc::new(Notify::new());
        let other = tasks.run_until(async {
            for crowd in [host(1), host(1), host(2)] {
                let (come, all_come) = (come.clone(), all_come.clone());
                let who = crowd.clone();
                reception.receive(crowd, async move |place| {
                    place.has_spoken();
                    come.borrow_mut().push(who.clone());
                    if who == host(2) {
                        all_come.notify_one();
                    }
                    std::future::pending::<()>().await;
                });
            }
            all_come.notified().await;
        });
        other.await;
        assert!(come.borrow().contains(&host(2)), "{come:?}");
        drop(tasks);
        let table = reception.table.borrow();
        assert!(table.line.is_empty() && table.places.is_empty());
    }

    /// Aim: who finds no place waits until somebody can make room, and is woken as soon as somebody leaves.
    #[tokio::test]
    async fn who_waits_in_line_gets_a_place() {
        let reception = Reception::new(1, 1);
        let silent = reception.enter(host(1)).await.unwrap();
        let next = reception.enter(host(1)).await.unwrap();
        assert!(is_displaced(&silent) && !is_displaced(&next));
        next.has_spoken();
        let (last, ()) = tokio::join!(reception.enter(host(1)), async { next.leave() });
        assert!(last.is_some_and(|place| !is_displaced(&place)));
        let table = reception.table.borrow();
        assert!(table.line.is_empty() && table.places.is_empty());
    }
}
