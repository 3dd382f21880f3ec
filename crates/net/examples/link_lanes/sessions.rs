//! Sessions on TCP sockets, one thread at each end, as `link_speed` has them.

use std::io::{IoSlice, IoSliceMut, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use bytes::Bytes;
use exoskel_link::keys::KeyStore;
use exoskel_link::{
    Endpoint, Event, LinkId, Message, MessageKind, Protection, Protections, Session, SessionConfig,
    SessionSecret, Side, TrafficClass,
};

use super::raw::tcp_pair;
use super::{Arrivals, Failure, Lane, Lanes, payload};

const SLICES_MAX: usize = 64;

/// A session and its socket.
struct Driven {
    session: Session,
    socket: TcpStream,
    epoch: Instant,
}

struct SessionStream {
    near: Driven,
    link: LinkId,
    arrivals: Arc<Arrivals>,
}

pub(crate) fn lanes(lanes: &mut Lanes) -> Result<(), Failure> {
    for protection in Protection::ALL {
        let (near, far) = tcp_pair()?;
        let mut near = Driven::new(Side::Client, protection, near)?;
        let mut far = Driven::new(Side::Server, protection, far)?;
        let arrivals = Arc::new(Arrivals::new());
        let heard = arrivals.clone();
        thread::spawn(move || while let Ok(true) = far.read(&heard) {});
        let link = near.session.open_link("sink", TrafficClass::Data)?;
        let lane = SessionStream {
            near,
            link,
            arrivals,
        };
        lanes.insert(format!("stream_{protection}"), Box::new(lane));
    }
    Ok(())
}

pub(crate) fn post(bulk: Vec<Bytes>) -> Message {
    Message {
        handler: 0,
        kind: MessageKind::Post,
        head: Bytes::new(),
        bulk,
        is_gathered: false,
    }
}

impl Lane for SessionStream {
    fn turn(&mut self, bytes: usize, count: u64) -> Result<Duration, Failure> {
        let message = Bytes::from(payload(bytes));
        let target = self.arrivals.count() + bytes as u64 * count;
        self.arrivals.want(target);
        let start = Instant::now();
        for _ in 0..count {
            let message = post(vec![message.clone()]);
            self.near.session.send(self.link, message)?;
            self.near.write()?;
        }
        self.arrivals.wait(target);
        Ok(start.elapsed())
    }
}

impl Driven {
    fn new(side: Side, protection: Protection, socket: TcpStream) -> Result<Self, Failure> {
        let mut config = SessionConfig::new(side);
        config.protections = Protections::all(protection);
        config.dead_after = Duration::from_secs(3600);
        config.heartbeat_every = Duration::from_secs(1800);
        // One thread writes and another reads; credit would need both to do both.
        config.limits.credit_bytes = 1 << 47;
        config.peer_limits.credit_bytes = 1 << 47;
        let secret = SessionSecret::from_bytes(&[7; 32]);
        let keys = KeyStore::in_ordinary_memory(1);
        let mut session = Session::new(config, secret, &keys, Duration::ZERO);
        session.offer(Endpoint::new("sink", &["take"]))?;
        Ok(Self {
            session,
            socket,
            epoch: Instant::now(),
        })
    }

    fn write(&mut self) -> Result<(), Failure> {
        loop {
            self.session.prepare(self.epoch.elapsed())?;
            let mut slices = [IoSlice::new(&[]); SLICES_MAX];
            let mut count = 0;
            for (slice, bytes) in slices.iter_mut().zip(self.session.outgoing()) {
                *slice = IoSlice::new(bytes);
                count += 1;
            }
            if count == 0 {
                return Ok(());
            }
            let written = self.socket.write_vectored(&slices[..count])?;
            self.session.sent(written);
        }
    }

    /// Reads once; false at the connection's end.
    fn read(&mut self, arrivals: &Arrivals) -> Result<bool, Failure> {
        let mut slices = self.session.receive_buffers().map(IoSliceMut::new);
        let count = self.socket.read_vectored(&mut slices)?;
        self.session.received(count, self.epoch.elapsed())?;
        while let Some(event) = self.session.poll_event() {
            if let Event::Message {
                link, bulk, size, ..
            } = event
            {
                self.session.consumed(link, size);
                for buffer in bulk {
                    arrivals.add(buffer.len() as u64);
                    self.session.recycle(buffer);
                }
            }
        }
        Ok(count > 0)
    }
}
