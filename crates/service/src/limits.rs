//! How much strangers and slow clients may take. Every bound has a name, and metrics count each time one is reached.

use std::time::Duration;

/// How often the watchman looks for connections whose time is over. Their limits are exact to this.
pub(crate) const WATCH_INTERVAL: Duration = Duration::from_millis(500);

/// Connections that the kernel holds for us before we accept them (it takes `net.core.somaxconn` if that is less).
pub(crate) const BACKLOG: i32 = 4096;

/// How long a client that was refused may take to read the alert that says why, or to end the request that is refused.
pub(crate) const REFUSAL_TIME: Duration = Duration::from_secs(1);

/// Bytes that are read and thrown away meanwhile: an unread byte would turn the alert into a reset.
pub(crate) const REFUSAL_BYTES_MAX: usize = 64 * 1024;

/// Bytes of a refusal of the server behind that is held until it is whole, while its request still comes.
pub(crate) const HELD_REFUSAL_BYTES_MAX: usize = 64 * 1024;

/// Bytes of the body of a refused request that are read and thrown away, so that the client gets to read its answer.
pub(crate) const REFUSED_BODY_BYTES_MAX: usize = 1024 * 1024;

/// How long the rest of the body of an HTTP/2 request is read and thrown away once the request has its answer. A client has to read the answer
/// meanwhile, or to end its body.
pub(crate) const UNREAD_BODY_TIME: Duration = Duration::from_secs(5);

/// Bytes of such a rest that are read. With more to come, the stream is reset.
pub(crate) const UNREAD_BODY_BYTES_MAX: usize = 8 * 1024 * 1024;

/// Such rests that are read at once on one connection. The stream of one more is reset with its answer.
pub(crate) const UNREAD_BODIES_OF_CONNECTION_MAX: usize = 16;

/// The same over all connections. None of them keeps bytes: they are thrown away as they come.
pub(crate) const UNREAD_BODIES_MAX: usize = 1024;

/// How long the accept loop rests when the process has no file descriptors left.
pub(crate) const DESCRIPTORS_PAUSE: Duration = Duration::from_millis(50);

/// Audit lines that may wait for the disk, the places kept for handshakes included. When they are full, new decisions wait
/// too: none goes unwritten. A line has some 500 bytes.
pub(crate) const AUDIT_LINES_MAX: usize = 32 * 1024;

/// The most that [`Limits::handshakes_max`] may be: each handshake keeps a place for its audit line, and half of the places
/// are for other decisions.
pub(crate) const HANDSHAKES_MAX: usize = AUDIT_LINES_MAX / 2;

/// Rules by path of one front. Each request is compared with them one by one.
pub(crate) const PATH_RULES_MAX: usize = 256;

/// Bytes of access lines that wait for the disk. What comes beyond is counted and lost: requests don't wait for a log.
pub(crate) const ACCESS_BYTES_MAX: usize = 8 * 1024 * 1024;

/// How long access lines gather before they are written together.
pub(crate) const ACCESS_GATHER_TIME: Duration = Duration::from_millis(100);

/// Bytes of a PROXY header behind its first 16: addresses, and what balancers add of their own.
pub(crate) const PROXY_HEADER_BYTES_MAX: usize = 2048;

/// Bytes of the header that lists what a client may do: most servers take 8 KiB for all of a head.
pub(crate) const ACTIONS_BYTES_MAX: usize = 2048;

/// Bytes of the header that says why actions are refused.
pub(crate) const REFUSALS_BYTES_MAX: usize = 1024;

/// Bytes of the header by which the server behind a front says what it requires and a client lacks.
pub(crate) const REQUIREMENT_BYTES_MAX: usize = 2048;

/// Warnings that are said at once. A vomsdir or a directory of authorities that went wrong can bring hundreds.
pub(crate) const WARNINGS_LISTED_MAX: usize = 16;

/// Notes on one policy, ban list or grid-mapfile about names that nobody can have. Lists that several sites share have many.
pub(crate) const NOTES_OF_FILE_MAX: usize = 8;

/// Bytes of a front's secret file.
pub(crate) const SECRET_BYTES_MAX: usize = 1024;

/// Bytes that a front's secret has at least: sixteen random ones in hexadecimal digits.
pub(crate) const SECRET_BYTES_MIN: usize = 32;

/// How long the server behind a front may take to accept a connection.
pub(crate) const UPSTREAM_CONNECT_TIME: Duration = Duration::from_secs(5);

/// Certificates of a refused chain whose serial numbers stand in the audit line.
pub(crate) const CLAIMED_CERTIFICATES_MAX: usize = 12;

/// Connections at once that ask for metrics or health.
pub(crate) const MONITOR_CONNECTIONS_MAX: usize = 16;

/// How long such a connection may take.
pub(crate) const MONITOR_TIME: Duration = Duration::from_secs(5);

/// File descriptors beside those of connections: listeners, the runtime, files being read.
pub(crate) const DESCRIPTORS_BESIDE: usize = 64;

/// Bytes of a host certificate or key file.
pub(crate) const CREDENTIAL_FILE_BYTES_MAX: usize = 1024 * 1024;

/// Fields that the HTTP parser takes without asking for memory of their own.
pub(crate) const HEADERS_MAX_OF_PARSER: usize = 100;

/// What a client is told that met a full queue.
pub(crate) const RETRY_AFTER_SECONDS: u16 = 1;

/// Bounds of one server. [`Limits::default`] suits a service on a host of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Connections whose client has not proved who it is yet. One more is reset, unless
    /// [`handshake_time_assured`](Self::handshake_time_assured) lets it displace an old one.
    pub handshakes_max: usize,
    /// How long a handshake may take.
    pub handshake_time: Duration,
    /// How long a handshake may take when others wait for its place: clients that stop in the middle
    /// can't keep honest ones out for longer than this. A client whose bytes we have not read yet keeps its place.
    pub handshake_time_assured: Duration,
    /// Connections in all, those in their handshake included.
    pub connections_max: usize,
    /// Connections of one IPv4 address or one IPv6 /64 network, which is what one host gets.
    pub connections_per_address_max: usize,
    /// Connections of strangers, in all: of clients that a front tells why they are refused, or serves without a certificate. One
    /// IPv4 address or one IPv6 /64 network gets half of them.
    pub strangers_max: usize,
    /// How long a connection may be without any traffic while nothing runs for it.
    pub idle_time: Duration,
    /// How long the head of an HTTP request may take, the wait for it on a kept connection included.
    pub header_time: Duration,
    /// Bytes of the head of an HTTP request, and of an answer from the server behind a front.
    pub header_bytes_max: usize,
    /// Fields in the head of an HTTP request. A cookie of HTTP/2 that comes in pieces is one.
    pub headers_max: usize,
    /// How long a client may let us wait within one HTTP body, beside what
    /// [`body_bytes_per_second_min`](Self::body_bytes_per_second_min) allows for the bytes that came.
    pub body_time: Duration,
    /// The rate that a slow upload has to reach on average.
    pub body_bytes_per_second_min: u32,
    /// Requests that run at once on one HTTP/2 connection.
    pub streams_max: u32,
    /// Requests that run at once, over all connections.
    pub requests_max: usize,
    /// Requests that run or wait at once for one identity, over all its connections: the end entity's, whatever proxies
    /// it uses. One more gets 429.
    pub requests_per_identity_max: usize,
    /// Requests that may wait until others are done. One more gets 503.
    pub requests_waiting_max: usize,
    /// How long a request may wait before it gets 503.
    pub request_wait_time: Duration,
    /// How long connections may go on after the server was told to stop.
    pub shutdown_time: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            handshakes_max: 2048,
            handshake_time: Duration::from_secs(10),
            handshake_time_assured: Duration::from_secs(2),
            connections_max: 8192,
            connections_per_address_max: 1024,
            strangers_max: 256,
            idle_time: Duration::from_secs(120),
            header_time: Duration::from_secs(30),
            header_bytes_max: 64 * 1024,
            headers_max: 100,
            body_time: Duration::from_secs(30),
            body_bytes_per_second_min: 1024,
            streams_max: 128,
            requests_max: 1024,
            requests_per_identity_max: 512,
            requests_waiting_max: 1024,
            request_wait_time: Duration::from_secs(5),
            shutdown_time: Duration::from_secs(30),
        }
    }
}

/// Bytes of a request's head below which the HTTP parser doesn't work.
const HEADER_BYTES_MIN: usize = 8192;

impl Limits {
    /// Whether the bounds make sense together.
    ///
    /// # Errors
    /// [`BadLimit`] names the first that doesn't.
    pub fn check(&self) -> Result<(), BadLimit> {
        let counts = [
            ("handshakes_max", self.handshakes_max),
            ("connections_max", self.connections_max),
            (
                "connections_per_address_max",
                self.connections_per_address_max,
            ),
            ("headers_max", self.headers_max),
            (
                "streams_max",
                usize::try_from(self.streams_max).unwrap_or(usize::MAX),
            ),
            ("requests_max", self.requests_max),
            ("requests_per_identity_max", self.requests_per_identity_max),
            (
                "body_bytes_per_second_min",
                usize::try_from(self.body_bytes_per_second_min).unwrap_or(usize::MAX),
            ),
        ];
        let times = [
            ("handshake_time", self.handshake_time),
            ("handshake_time_assured", self.handshake_time_assured),
            ("idle_time", self.idle_time),
            ("header_time", self.header_time),
            ("body_time", self.body_time),
            ("request_wait_time", self.request_wait_time),
        ];
        let too_small = |name, got: String| BadLimit {
            name,
            got,
            expected: "more than 0",
        };
        if let Some((name, got)) = counts.into_iter().find(|(_, count)| *count == 0) {
            return Err(too_small(name, got.to_string()));
        }
        if let Some((name, got)) = times.into_iter().find(|(_, time)| time.is_zero()) {
            return Err(too_small(name, format!("{got:?}")));
        }
        if self.handshakes_max > HANDSHAKES_MAX {
            return Err(BadLimit {
                name: "handshakes_max",
                got: self.handshakes_max.to_string(),
                expected: "at most 16384",
            });
        }
        if self.handshake_time_assured > self.handshake_time {
            return Err(BadLimit {
                name: "handshake_time_assured",
                got: format!("{:?}", self.handshake_time_assured),
                expected: "at most handshake_time",
            });
        }
        if self.header_bytes_max < HEADER_BYTES_MIN {
            return Err(BadLimit {
                name: "header_bytes_max",
                got: self.header_bytes_max.to_string(),
                expected: "at least 8192",
            });
        }
        Ok(())
    }
}

/// A bound that can't work. Whoever wrote the configuration must act.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("limit {name}: got {got}, expected {expected}")]
pub struct BadLimit {
    /// Which one.
    pub name: &'static str,
    /// What stood there.
    pub got: String,
    /// What would do.
    pub expected: &'static str,
}
