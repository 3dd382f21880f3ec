//! Round trips of which both ends poll: raw sockets, and sessions over TCP, a Unix socket and shared memory.

use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::mpsc;
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use bytes::Bytes;
use exoskel_identity::Role;
use exoskel_link::{Endpoint, Event, LinkId, Message, MessageKind, Protection, TrafficClass};
use exoskel_net::connection::Connection;
use exoskel_net::establish::{dial, welcome};
use exoskel_net::pki::ThrowAwayAuthority;
use exoskel_net::socket::Socket;

use super::nodes::{now, terms};
use super::raw::tcp_pair;
use super::{Failure, Lane, Lanes, payload};

/// A far end that polls while it is its turn, and sleeps at other times.
struct Echo {
    is_on: Arc<AtomicBool>,
    thread: Thread,
}

impl Echo {
    /// `poll` looks once; an error ends it.
    fn start(
        make: impl FnOnce() -> Result<Box<dyn FnMut() -> bool>, Failure> + Send + 'static,
    ) -> Self {
        let is_on = Arc::new(AtomicBool::new(false));
        let on = is_on.clone();
        let thread = thread::spawn(move || {
            let Ok(mut poll) = make() else { return };
            loop {
                while on.load(SeqCst) {
                    if !poll() {
                        return;
                    }
                }
                thread::park();
            }
        });
        Self {
            is_on,
            thread: thread.thread().clone(),
        }
    }

    fn during<T>(&self, action: impl FnOnce() -> T) -> T {
        self.is_on.store(true, SeqCst);
        self.thread.unpark();
        let done = action();
        self.is_on.store(false, SeqCst);
        done
    }
}

/// A stream socket of either kind.
trait Duplex: Read + Write + Send {}

impl<T: Read + Write + Send> Duplex for T {}

struct RawPing {
    near: Box<dyn Duplex>,
    far: Echo,
}

/// Fills the buffer without blocking; false when nothing has come at all.
fn fill(socket: &mut impl Read, buffer: &mut [u8]) -> std::io::Result<bool> {
    let mut filled = 0;
    while filled < buffer.len() {
        match socket.read(&mut buffer[filled..]) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(count) => filled += count,
            Err(error) if error.kind() != ErrorKind::WouldBlock => return Err(error),
            Err(_) if filled == 0 => return Ok(false),
            Err(_) => std::hint::spin_loop(),
        }
    }
    Ok(true)
}

impl RawPing {
    /// For one size of message.
    fn new(near: impl Duplex + 'static, mut far: impl Duplex + 'static, bytes: usize) -> Self {
        let echo = move || -> Box<dyn FnMut() -> bool> {
            let mut buffer = vec![0; bytes];
            Box::new(move || match fill(&mut far, &mut buffer) {
                Ok(false) => true,
                Ok(true) => far.write_all(&buffer).is_ok(),
                Err(_) => false,
            })
        };
        Self {
            near: Box::new(near),
            far: Echo::start(move || Ok(echo())),
        }
    }
}

impl Lane for RawPing {
    fn turn(&mut self, bytes: usize, count: u64) -> Result<Duration, Failure> {
        let question = payload(bytes);
        let near = &mut self.near;
        self.far.during(|| {
            let mut answer = vec![0; bytes];
            let start = Instant::now();
            for _ in 0..count {
                near.write_all(&question)?;
                while !fill(near, &mut answer)? {
                    std::hint::spin_loop();
                }
            }
            Ok(start.elapsed())
        })
    }
}

/// Both ends of a session, neither with a task.
pub(crate) struct SessionPing {
    near: Arc<Connection>,
    link: LinkId,
    far: Echo,
    asked: u64,
    _runtime: tokio::runtime::Runtime,
}

/// More than this goes out of band, as arrays do.
const HEAD_BYTES_MAX: usize = 4096;

/// The size that raw lanes of round trips are for.
const RAW_BYTES: usize = 64;

pub(crate) fn lanes(lanes: &mut Lanes) -> Result<(), Failure> {
    for name in ["ping_raw_tcp", "ping_raw_tcp_again"] {
        let (near, far) = tcp_pair()?;
        for socket in [&near, &far] {
            socket.set_nonblocking(true)?;
        }
        let lane = RawPing::new(near, far, RAW_BYTES);
        lanes.insert(name.to_owned(), Box::new(lane));
    }
    let (near, far) = UnixStream::pair()?;
    for socket in [&near, &far] {
        socket.set_nonblocking(true)?;
    }
    let lane = RawPing::new(near, far, RAW_BYTES);
    lanes.insert("ping_raw_unix".to_owned(), Box::new(lane));
    let authority = ThrowAwayAuthority::new(now())?;
    for method in ["tcp", "unix", "memory"] {
        for protection in Protection::ALL {
            let lane = SessionPing::new(&authority, method, protection)?;
            lanes.insert(format!("ping_{method}_{protection}"), Box::new(lane));
        }
    }
    Ok(())
}

type MakeSocket = Box<dyn FnOnce() -> std::io::Result<Socket> + Send>;

/// Both ends, each to be made on the thread that serves it.
fn pair(method: &str) -> Result<(MakeSocket, MakeSocket), Failure> {
    if method == "tcp" {
        let (near, far) = tcp_pair()?;
        return Ok((
            Box::new(|| Socket::tcp_from_std(near)),
            Box::new(|| Socket::tcp_from_std(far)),
        ));
    }
    let (near, far) = UnixStream::pair()?;
    Ok((
        Box::new(|| Socket::unix(near)),
        Box::new(|| Socket::unix(far)),
    ))
}

fn runtime() -> std::io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
}

impl SessionPing {
    pub(crate) fn new(
        authority: &ThrowAwayAuthority,
        method: &str,
        protection: Protection,
    ) -> Result<Self, Failure> {
        let config = |name: &str| -> Result<_, Failure> {
            let mut terms = terms(authority.issue(Role::Peer, name, now())?)?;
            terms.shared_memory = method == "memory";
            terms.minimum = protection;
            terms.asks_for_each_link = false;
            Ok(terms)
        };
        let (here, there) = pair(method)?;
        let (client, server) = (config("near")?, config("far")?);
        let (told, ready) = mpsc::channel();
        let far = Echo::start(move || {
            let runtime = runtime()?;
            let entered = runtime.enter();
            let socket = there()?;
            let connection = runtime
                .block_on(welcome(socket, &server, |_, _| Ok(())))?
                .connection;
            drop(entered);
            connection.with(|session| session.offer(Endpoint::new("sink", &["take"])))?;
            told.send(())?;
            Ok(Box::new(move || {
                let _kept = &runtime;
                let answer = |event| {
                    let Some((link, kind, head, bulk, size)) = message(event) else {
                        return;
                    };
                    connection.with(|session| session.consumed(link, size));
                    if let MessageKind::Request(number) = kind {
                        // Without an answer the near end waits for ever, which is seen.
                        let bulk = bulk.into_iter().map(Bytes::from).collect();
                        let answer = carrying(MessageKind::Reply(number), head, bulk);
                        let _ = connection.queue(link, answer);
                    }
                };
                connection.progress(answer).is_ok()
            }))
        });
        let runtime = runtime()?;
        let entered = runtime.enter();
        let socket = here()?;
        let near = runtime.block_on(dial(socket, &client, None))?.connection;
        drop(entered);
        ready.recv()?;
        let link = near.with(|session| session.open_link("sink", TrafficClass::Data))?;
        Ok(Self {
            near,
            link,
            far,
            asked: 0,
            _runtime: runtime,
        })
    }
}

type Heard = (LinkId, MessageKind, Bytes, Vec<Vec<u8>>, u64);

fn message(event: Event) -> Option<Heard> {
    match event {
        Event::Message {
            link,
            kind,
            head,
            bulk,
            size,
            ..
        } => Some((link, kind, head, bulk, size)),
        _ => None,
    }
}

fn carrying(kind: MessageKind, head: Bytes, bulk: Vec<Bytes>) -> Message {
    Message {
        handler: 0,
        kind,
        head,
        bulk,
        is_gathered: false,
    }
}

impl Lane for SessionPing {
    fn turn(&mut self, bytes: usize, count: u64) -> Result<Duration, Failure> {
        let question = Bytes::from(payload(bytes));
        let (head, bulk) = if bytes > HEAD_BYTES_MAX {
            (Bytes::new(), vec![question])
        } else {
            (question, Vec::new())
        };
        let (near, link, asked) = (&self.near, self.link, &mut self.asked);
        self.far.during(|| {
            let start = Instant::now();
            for _ in 0..count {
                *asked += 1;
                let kind = MessageKind::Request(*asked);
                near.queue(link, carrying(kind, head.clone(), bulk.clone()))?;
                let mut is_answered = false;
                while !is_answered {
                    near.progress(|event| {
                        if let Some((link, _, _, bulk, size)) = message(event) {
                            near.with(|session| session.consumed(link, size));
                            bulk.into_iter().for_each(|spent| near.recycle(spent));
                            is_answered = true;
                        }
                    })?;
                }
            }
            Ok(start.elapsed())
        })
    }
}
