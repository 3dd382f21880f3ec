//! The open connections: who may open one, whose time is over, whom they belong to.

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use exoskel_identity::VerifiedIdentity;
use rustls_pki_types::UnixTime;
use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::limits::Limits;
use crate::metrics::{ConnectionEnd, Metrics, Refusal};
use crate::plain_http::{PlainHttp, is_request};

/// Milliseconds since the server started, which fit into an atomic.
#[derive(Clone, Copy, Debug)]
struct ServerClock(Instant);

impl ServerClock {
    fn now(self) -> u64 {
        u64::try_from(self.0.elapsed().as_millis()).unwrap_or(u64::MAX)
    }
}

fn milliseconds(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// Nothing is being waited for.
const NEVER: u64 = u64::MAX;

/// One connection, from its acceptance to its end.
#[derive(Debug)]
pub(crate) struct Connection {
    number: u64,
    socket: TcpStream,
    /// The other end of the socket.
    neighbour: SocketAddr,
    /// Where a load balancer says that the client is.
    client: OnceLock<SocketAddr>,
    clock: ServerClock,
    opened: u64,
    /// When bytes last moved in either direction.
    moved: AtomicU64,
    /// Since when the client doesn't take what we write, or [`NEVER`].
    blocked: AtomicU64,
    /// How many things run for the client: it is not idle while we are the ones who are waited for.
    running: AtomicUsize,
    stalls: Mutex<Vec<Weak<Stall>>>,
    /// Who it is, once the handshake is over; nothing for a stranger.
    identity: OnceLock<Option<VerifiedIdentity>>,
    /// Unix time at which the newest verdict on the identity ends.
    good_until: AtomicU64,
    ended: AtomicBool,
    end: Notify,
}

impl Connection {
    /// Where the client is.
    pub(crate) fn address(&self) -> SocketAddr {
        self.client.get().copied().unwrap_or(self.neighbour)
    }

    pub(crate) fn age(&self) -> Duration {
        Duration::from_millis(self.clock.now().saturating_sub(self.opened))
    }

    /// Waits until the service wants this connection to end.
    pub(crate) async fn ended(&self) {
        // `notify_one` keeps its permit, so an end that came first is not missed.
        self.end.notified().await;
    }

    /// Whether the handshake is over.
    pub(crate) fn is_identified(&self) -> bool {
        self.identity.get().is_some()
    }

    /// Whether the client has said something that we have not got to: then it is we who are late.
    fn has_unread(&self) -> bool {
        rustix::io::ioctl_fionread(&self.socket).is_ok_and(|bytes| bytes > 0)
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }

    /// A new verdict says the same about the client, and may end at another time.
    pub(crate) fn confirm(&self, identity: &VerifiedIdentity) {
        let end = identity.not_after().as_secs();
        self.good_until.store(end, Ordering::Relaxed);
    }

    /// Something runs for the client until this is dropped.
    pub(crate) fn run(self: &Arc<Self>) -> RunningRequest {
        self.running.fetch_add(1, Ordering::Relaxed);
        RunningRequest(self.clone())
    }

    /// A place to note since when the client has not asked for the rest of a response.
    pub(crate) fn stall(&self) -> Arc<Stall> {
        let stall = Arc::new(Stall {
            clock: self.clock,
            since: AtomicU64::new(NEVER),
        });
        let mut stalls = locked(&self.stalls);
        stalls.retain(|known| known.strong_count() > 0);
        stalls.push(Arc::downgrade(&stall));
        stall
    }

    /// Ends the connection, whoever holds its stream.
    fn end(&self) -> bool {
        if self.ended.swap(true, Ordering::AcqRel) {
            return false;
        }
        let socket = SockRef::from(&self.socket);
        if self.identity.get().is_none() {
            // A stranger gets a reset when the last reference goes: nothing stays in the kernel.
            let _ = socket.set_linger(Some(Duration::ZERO));
        } else {
            let _ = socket.shutdown(std::net::Shutdown::Both);
        }
        self.end.notify_one();
        true
    }

    /// Why the time of this connection is over, if it is.
    fn overdue(&self, now: u64, wall: UnixTime, limits: &Limits) -> Option<ConnectionEnd> {
        if self.identity.get().is_none() {
            let over = now.saturating_sub(self.opened) >= milliseconds(limits.handshake_time);
            return over.then_some(ConnectionEnd::Handshake);
        }
        if self.good_until.load(Ordering::Relaxed) <= wall.as_secs() {
            return Some(ConnectionEnd::Expired);
        }
        let idle = milliseconds(limits.idle_time);
        let older = |since: u64, limit| since != NEVER && now.saturating_sub(since) >= limit;
        if older(self.blocked.load(Ordering::Relaxed), idle) {
            return Some(ConnectionEnd::Slow);
        }
        let patience = milliseconds(limits.body_time);
        let stalled = |stall: &Weak<Stall>| {
            stall
                .upgrade()
                .is_some_and(|stall| older(stall.since.load(Ordering::Relaxed), patience))
        };
        if locked(&self.stalls).iter().any(stalled) {
            return Some(ConnectionEnd::Slow);
        }
        let idle = self.running.load(Ordering::Relaxed) == 0
            && older(self.moved.load(Ordering::Relaxed), idle);
        idle.then_some(ConnectionEnd::Idle)
    }
}

/// Since when a client has not asked for the rest of a response.
#[derive(Debug)]
pub(crate) struct Stall {
    clock: ServerClock,
    since: AtomicU64,
}

impl Stall {
    /// The client has got a part and must ask for the next.
    pub(crate) fn begin(&self) {
        self.since.store(self.clock.now(), Ordering::Relaxed);
    }

    /// The client asked.
    pub(crate) fn finish(&self) {
        self.since.store(NEVER, Ordering::Relaxed);
    }
}

/// Keeps its connection from being idle.
#[derive(Debug)]
pub(crate) struct RunningRequest(Arc<Connection>);

impl Drop for RunningRequest {
    fn drop(&mut self) {
        self.0.moved.store(self.0.clock.now(), Ordering::Relaxed);
        self.0.running.fetch_sub(1, Ordering::Relaxed);
    }
}

/// All connections of one server.
#[derive(Debug)]
pub(crate) struct Connections {
    limits: Limits,
    clock: ServerClock,
    metrics: Arc<Metrics>,
    table: Mutex<ConnectionTable>,
    emptied: Notify,
}

#[derive(Debug, Default)]
struct ConnectionTable {
    next: u64,
    open: HashMap<u64, Arc<Connection>>,
    /// In the order of their beginning, since numbers grow.
    handshaking: BTreeSet<u64>,
    of_address: HashMap<IpAddr, usize>,
}

impl Connections {
    pub(crate) fn new(limits: Limits, metrics: Arc<Metrics>) -> Self {
        Self {
            limits,
            clock: ServerClock(Instant::now()),
            metrics,
            table: Mutex::default(),
            emptied: Notify::new(),
        }
    }

    pub(crate) fn limits(&self) -> &Limits {
        &self.limits
    }

    pub(crate) fn metrics(&self) -> &Arc<Metrics> {
        &self.metrics
    }

    /// Takes a connection in, or resets it. Nothing waits here: this is the accept loop.
    pub(crate) fn open(
        self: &Arc<Self>,
        socket: TcpStream,
        address: SocketAddr,
        is_balancer: bool,
    ) -> Result<Admitted, Refusal> {
        self.metrics.count_accepted();
        let now = self.clock.now();
        let mut table = locked(&self.table);
        let table = &mut *table;
        // A socket of both kinds of addresses shows those of IPv4 in the form of IPv6. Nobody writes or searches them so.
        let address = SocketAddr::new(address.ip().to_canonical(), address.port());
        // All clients of a balancer come from one address: theirs is counted when it is known.
        let host = (!is_balancer).then(|| host(address.ip()));
        let refusal = host
            .and_then(|host| self.refusal_of_host(table, host))
            .or_else(|| self.refusal(table, now));
        if let Some(reason) = refusal {
            self.metrics.count_refused(reason);
            let _ = SockRef::from(&socket).set_linger(Some(Duration::ZERO));
            return Err(reason);
        }
        let number = table.next;
        table.next += 1;
        let connection = Arc::new(Connection {
            number,
            socket,
            neighbour: address,
            client: OnceLock::new(),
            clock: self.clock,
            opened: now,
            moved: AtomicU64::new(now),
            blocked: AtomicU64::new(NEVER),
            running: AtomicUsize::new(0),
            stalls: Mutex::default(),
            identity: OnceLock::new(),
            good_until: AtomicU64::new(0),
            ended: AtomicBool::new(false),
            end: Notify::new(),
        });
        table.open.insert(number, connection.clone());
        table.handshaking.insert(number);
        if let Some(host) = host {
            *table.of_address.entry(host).or_insert(0) += 1;
        }
        Ok(Admitted {
            connections: self.clone(),
            connection,
            host: host.map_or_else(OnceLock::new, OnceLock::from),
        })
    }

    fn refusal_of_host(&self, table: &ConnectionTable, host: IpAddr) -> Option<Refusal> {
        let of_address = table.of_address.get(&host).copied().unwrap_or(0);
        let full = of_address >= self.limits.connections_per_address_max;
        full.then_some(Refusal::Address)
    }

    fn refusal(&self, table: &mut ConnectionTable, now: u64) -> Option<Refusal> {
        // Displacing needs the old one's task to run before its descriptor is free, so the count of all
        // connections is a bound on its own.
        if table.open.len() >= self.limits.connections_max {
            return Some(Refusal::Connections);
        }
        if table.handshaking.len() < self.limits.handshakes_max {
            return None;
        }
        let assured = milliseconds(self.limits.handshake_time_assured);
        let oldest = table.handshaking.first().copied();
        let displaced = oldest
            .and_then(|number| table.open.get(&number))
            .filter(|oldest| now.saturating_sub(oldest.opened) >= assured)
            // Whoever waits for us is about to be served. Displacing those under overload would spend our time on
            // handshakes that never end.
            .filter(|oldest| !oldest.has_unread());
        match displaced {
            Some(oldest) => {
                if oldest.end() {
                    self.metrics.count_ended(ConnectionEnd::Displaced);
                }
                table.handshaking.pop_first();
                None
            }
            None => Some(Refusal::Handshakes),
        }
    }

    /// Ends what is overdue. `wall` is the calendar time by which identities end.
    pub(crate) fn watch(&self, wall: UnixTime) {
        let now = self.clock.now();
        let table = locked(&self.table);
        self.metrics
            .set_open(table.open.len(), table.handshaking.len());
        for connection in table.open.values() {
            if let Some(reason) = connection.overdue(now, wall, &self.limits)
                && connection.end()
            {
                self.metrics.count_ended(reason);
            }
        }
    }

    /// The connections of clients that proved who they are.
    pub(crate) fn identified(&self) -> Vec<(Arc<Connection>, VerifiedIdentity)> {
        let table = locked(&self.table);
        table
            .open
            .values()
            .filter_map(|connection| {
                Some((connection.clone(), connection.identity.get()?.clone()?))
            })
            .collect()
    }

    pub(crate) fn end(&self, connection: &Connection, reason: ConnectionEnd) {
        if connection.end() {
            self.metrics.count_ended(reason);
        }
    }

    pub(crate) fn end_all(&self, reason: ConnectionEnd) {
        let all: Vec<_> = locked(&self.table).open.values().cloned().collect();
        for connection in all {
            self.end(&connection, reason);
        }
    }

    pub(crate) fn count(&self) -> (usize, usize) {
        let table = locked(&self.table);
        (table.open.len(), table.handshaking.len())
    }

    /// Waits until no connection is open.
    pub(crate) async fn emptied(&self) {
        loop {
            let emptied = self.emptied.notified();
            if locked(&self.table).open.is_empty() {
                return;
            }
            emptied.await;
        }
    }
}

/// A connection that was let in. Dropping it, by whatever way, takes it out of the table.
#[derive(Debug)]
pub(crate) struct Admitted {
    connections: Arc<Connections>,
    connection: Arc<Connection>,
    /// The host by which it is counted.
    host: OnceLock<IpAddr>,
}

impl Admitted {
    pub(crate) fn connection(&self) -> &Arc<Connection> {
        &self.connection
    }

    pub(crate) fn transport(&self) -> PeerTransport {
        PeerTransport {
            connection: self.connection.clone(),
            begins: false,
        }
    }

    /// The same for a handshake of TLS: a request of HTTP in its place is the error [`PlainHttp`].
    pub(crate) fn transport_of_handshake(&self) -> PeerTransport {
        PeerTransport {
            begins: true,
            ..self.transport()
        }
    }

    /// A balancer says where the client is. From now on the connection counts as that host's.
    pub(crate) fn is_from(&self, client: SocketAddr) -> Result<(), Refusal> {
        let host = host(client.ip());
        let mut table = locked(&self.connections.table);
        if let Some(reason) = self.connections.refusal_of_host(&table, host) {
            self.connections.metrics.count_refused(reason);
            return Err(reason);
        }
        // Nobody else sets it, and this is called once.
        let _ = self.connection.client.set(client);
        *table.of_address.entry(host).or_insert(0) += 1;
        let _ = self.host.set(host);
        Ok(())
    }

    /// The handshake is over and has shown whom this belongs to; nobody, for a stranger.
    pub(crate) fn identify(&self, identity: Option<VerifiedIdentity>) {
        match &identity {
            Some(identity) => self.connection.confirm(identity),
            None => self.connection.good_until.store(NEVER, Ordering::Relaxed),
        }
        // Nobody else sets it, and this is called once.
        let _ = self.connection.identity.set(identity);
        self.connection
            .moved
            .store(self.connection.clock.now(), Ordering::Relaxed);
        locked(&self.connections.table)
            .handshaking
            .remove(&self.connection.number);
    }
}

impl Drop for Admitted {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.connections.metrics.count_panic();
        }
        // The table and this guard hold it; one more means that somebody kept the stream beyond the handler's end.
        if Arc::strong_count(&self.connection) > 2 {
            self.connection.end();
        }
        let mut table = locked(&self.connections.table);
        table.open.remove(&self.connection.number);
        table.handshaking.remove(&self.connection.number);
        if let Some(host) = self.host.get()
            && let Some(count) = table.of_address.get_mut(host)
        {
            *count -= 1;
            if *count == 0 {
                table.of_address.remove(host);
            }
        }
        if table.open.is_empty() {
            self.connections.emptied.notify_waiters();
        }
    }
}

/// The bytes of a connection. The table keeps the socket too, so that it can end the connection whoever reads.
#[derive(Debug)]
pub(crate) struct PeerTransport {
    connection: Arc<Connection>,
    /// Whether nothing was read yet of what should be a handshake.
    begins: bool,
}

impl PeerTransport {
    fn wrote(&self, result: io::Result<usize>) -> Poll<io::Result<usize>> {
        let now = self.connection.clock.now();
        self.connection.moved.store(now, Ordering::Relaxed);
        self.connection.blocked.store(NEVER, Ordering::Relaxed);
        Poll::Ready(result)
    }

    fn poll_writing(
        &self,
        context: &mut Context<'_>,
        mut write: impl FnMut(&TcpStream) -> io::Result<usize>,
    ) -> Poll<io::Result<usize>> {
        let socket = &self.connection.socket;
        loop {
            match socket.poll_write_ready(context) {
                Poll::Ready(Ok(())) => match write(socket) {
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                    result => return self.wrote(result),
                },
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Pending => {
                    let now = self.connection.clock.now();
                    let _ = self.connection.blocked.compare_exchange(
                        NEVER,
                        now,
                        Ordering::Relaxed,
                        Ordering::Relaxed,
                    );
                    return Poll::Pending;
                }
            }
        }
    }
}

impl AsyncRead for PeerTransport {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let socket = &this.connection.socket;
        let start = buffer.filled().len();
        loop {
            ready!(socket.poll_read_ready(context))?;
            match socket.try_read_buf(buffer) {
                Ok(_) => {
                    let now = this.connection.clock.now();
                    this.connection.moved.store(now, Ordering::Relaxed);
                    // The TLS engine would answer with an alert.
                    if std::mem::take(&mut this.begins) && is_request(&buffer.filled()[start..]) {
                        let error = io::Error::new(io::ErrorKind::InvalidData, PlainHttp);
                        return Poll::Ready(Err(error));
                    }
                    return Poll::Ready(Ok(()));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }
}

impl AsyncWrite for PeerTransport {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll_writing(context, |socket| socket.try_write(bytes))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.poll_writing(context, |socket| socket.try_write_vectored(parts))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(SockRef::from(&self.connection.socket).shutdown(std::net::Shutdown::Write))
    }
}

/// What one host is likely to have: an IPv4 address, or the /64 network that every IPv6 host can fill.
pub(crate) fn host(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V6(address) => {
            let [a, b, c, d, ..] = address.segments();
            IpAddr::V6(Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0))
        }
        address => address,
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // The table is changed in steps that don't panic, so a poisoned lock still guards a sound one.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_is_an_address_or_a_network_of_64_bits() {
        let of = |text: &str| host(text.parse().unwrap()).to_string();
        assert_eq!(of("192.0.2.7"), "192.0.2.7");
        assert_eq!(of("2001:db8:1:2:3:4:5:6"), "2001:db8:1:2::");
    }
}
