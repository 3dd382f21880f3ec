//! How fast sessions are beside the sockets they run on: `make bench PART=link`.
//!
//! Lanes (raw TCP, a plain session, an encrypted one) are all connected at once and take short turns, so that what
//! disturbs the machine disturbs all of them; the ratios are medians over the turns. Streams of 1 MiB messages use blocking
//! sockets; the ping-pong of 64 bytes polls, because the kernel's wake-up would hide the cipher. The last line is JSON.
//!
//! Raw streams run twice: over sockets as the system sets them, which is what a program gets that does nothing about it,
//! and with the congestion control that nodes choose inside a host. Where the system's default paces (BBR), the first is
//! easy to beat and the second is as fast as the machine can copy.

#![expect(clippy::print_stdout, reason = "a program for the terminal")]

use std::error::Error;
use std::io::{self, IoSlice, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use bytes::Bytes;
use exoskel_link::keys::KeyStore;
use exoskel_link::{
    Endpoint, Event, LinkId, Message, MessageKind, Protection, Protections, Session, SessionConfig,
    SessionSecret, Side, TrafficClass,
};

type Failure = Box<dyn Error + Send + Sync>;

const MESSAGE_BYTES: usize = 1 << 20;
/// Messages of one turn: long enough that socket buffers don't matter, short enough that turns see the same machine.
const MESSAGES_A_TURN: u64 = 96;
const RAW_READ_BYTES: usize = 256 << 10;
const PING_BYTES: usize = 64;
const PINGS_A_TURN: u64 = 2000;
const SLICES_MAX: usize = 64;
/// Data in clear, all else authenticated: what a trusted domain gives.
const PLAIN: Protections = Protections {
    control: Protection::Integrity,
    code: Protection::Integrity,
    data: Protection::Plain,
};
const ENCRYPTED: Protections = Protections::all(Protection::Encrypted);

fn main() -> Result<(), Failure> {
    let quick = std::env::args().any(|argument| argument == "--quick");
    let stream = streams(if quick { 8 } else { 60 })?;
    let ping = pings(if quick { 8 } else { 60 })?;
    println!(
        "raw {:.2} GB/s, raw and not paced {:.2}, plain {:.2}, encrypted {:.2}; \
         ping-pong raw {:.2} us, plain {:.2}, encrypted {:.2}",
        rate(&stream[DEFAULT]),
        rate(&stream[UNPACED]),
        rate(&stream[SESSIONS]),
        rate(&stream[SESSIONS + 1]),
        micros(&ping[0]),
        micros(&ping[1]),
        micros(&ping[2]),
    );
    println!(
        "{{\"plain_over_raw\": {:.4}, \"encrypted_over_raw\": {:.4}, \"raw_gb_per_s\": {:.3}, \
         \"plain_over_unpaced\": {:.4}, \"encrypted_over_unpaced\": {:.4}, \"unpaced_gb_per_s\": {:.3}, \
         \"pingpong_plain_over_raw\": {:.4}, \"pingpong_encrypted_over_plain\": {:.4}, \"pingpong_plain_us\": {:.3}}}",
        ratio(&stream[DEFAULT], &stream[SESSIONS]),
        ratio(&stream[DEFAULT], &stream[SESSIONS + 1]),
        rate(&stream[DEFAULT]),
        ratio(&stream[UNPACED], &stream[SESSIONS]),
        ratio(&stream[UNPACED], &stream[SESSIONS + 1]),
        rate(&stream[UNPACED]),
        ratio(&ping[1], &ping[0]),
        ratio(&ping[2], &ping[1]),
        micros(&ping[1]),
    );
    Ok(())
}

fn rate(times: &[f64]) -> f64 {
    MESSAGES_A_TURN as f64 * MESSAGE_BYTES as f64 / median(times.to_vec()) / 1e9
}

fn micros(times: &[f64]) -> f64 {
    median(times.to_vec()) / PINGS_A_TURN as f64 * 1e6
}

/// The median of `above / below`, turn by turn.
fn ratio(above: &[f64], below: &[f64]) -> f64 {
    median(above.iter().zip(below).map(|(a, b)| a / b).collect())
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

// --- a session on a socket --------------------------------------------------------------------------

/// A session and its socket, driven by one thread.
struct Lane {
    session: Session,
    socket: TcpStream,
    epoch: Instant,
}

impl Lane {
    fn new(side: Side, protections: Protections, socket: TcpStream) -> Result<Self, Failure> {
        let mut config = SessionConfig::new(side);
        config.protections = protections;
        config.dead_after = Duration::from_secs(3600);
        config.heartbeat_every = Duration::from_secs(1800);
        // One thread writes and another reads; credit would need both to do both.
        config.limits.credit_bytes = 1 << 47;
        config.peer_limits.credit_bytes = 1 << 47;
        let mut session = Session::new(
            config,
            SessionSecret::from_bytes(&[7; 32]),
            &KeyStore::in_ordinary_memory(1),
            Duration::ZERO,
        );
        session.offer(Endpoint::new("sink", &["take"]))?;
        Ok(Self {
            session,
            socket,
            epoch: Instant::now(),
        })
    }

    /// Writes all that is queued; in polling mode a full socket is tried again at once.
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
            match self.socket.write_vectored(&slices[..count]) {
                Ok(written) => self.session.sent(written),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Reads once; the number of messages that became complete, or none at the connection's end.
    fn read(
        &mut self,
        mut each: impl FnMut(&mut Session, LinkId, MessageKind),
    ) -> Result<Option<u64>, Failure> {
        let count = match self.socket.read(self.session.receive_buffer()) {
            Ok(0) => return Ok(None),
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(Some(0)),
            Err(error) => return Err(error.into()),
        };
        self.session.received(count, self.epoch.elapsed())?;
        let mut messages = 0;
        while let Some(event) = self.session.poll_event() {
            if let Event::Message {
                link,
                kind,
                bulk,
                size,
                ..
            } = event
            {
                messages += 1;
                self.session.consumed(link, size);
                for buffer in bulk {
                    self.session.recycle(buffer);
                }
                each(&mut self.session, link, kind);
            }
        }
        Ok(Some(messages))
    }
}

/// A connection as the system sets it.
fn pair() -> Result<(TcpStream, TcpStream), Failure> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let near = TcpStream::connect(listener.local_addr()?)?;
    let far = listener.accept()?.0;
    for socket in [&near, &far] {
        socket.set_nodelay(true)?;
    }
    Ok((near, far))
}

/// A connection as nodes set it inside a host.
fn unpaced_pair() -> Result<(TcpStream, TcpStream), Failure> {
    let (near, far) = pair()?;
    for socket in [&near, &far] {
        rustix::net::sockopt::set_tcp_congestion(socket, "reno")?;
    }
    Ok((near, far))
}

// --- streams ----------------------------------------------------------------------------------------

/// The lanes of streams: raw ones first, then a plain and an encrypted session.
const DEFAULT: usize = 0;
const UNPACED: usize = 1;
const SESSIONS: usize = 2;
const STREAM_LANES: usize = 4;

/// Seconds of each turn of each lane.
fn streams(turns: usize) -> Result<[Vec<f64>; STREAM_LANES], Failure> {
    let arrived: [Arc<AtomicU64>; STREAM_LANES] = Default::default();
    let payload = Bytes::from(
        (0..MESSAGE_BYTES)
            .map(|index| ((index * 31) >> 3) as u8)
            .collect::<Vec<_>>(),
    );
    let mut receivers = Vec::new();
    let mut raw = Vec::new();
    for ((near, mut far), count) in [pair()?, unpaced_pair()?].into_iter().zip(&arrived) {
        let count = Arc::clone(count);
        raw.push(near);
        receivers.push(thread::spawn(move || -> Result<(), Failure> {
            let mut message = vec![0; MESSAGE_BYTES];
            // In pieces, which is faster than the whole message at once: the session is held against the better way.
            // The turn's sender keeps the connection; its end is the end of this thread.
            while message
                .chunks_mut(RAW_READ_BYTES)
                .all(|piece| far.read_exact(piece).is_ok())
            {
                count.fetch_add(1, Ordering::Release);
            }
            Ok(())
        }));
    }
    let mut lanes = Vec::new();
    for (protections, count) in [PLAIN, ENCRYPTED].into_iter().zip(&arrived[SESSIONS..]) {
        let (near, far) = unpaced_pair()?;
        let mut near = Lane::new(Side::Client, protections, near)?;
        let mut far = Lane::new(Side::Server, protections, far)?;
        let count = Arc::clone(count);
        receivers.push(thread::spawn(move || {
            while let Some(messages) = far.read(|_, _, _| {})? {
                count.fetch_add(messages, Ordering::Release);
            }
            Ok(())
        }));
        let link = near.session.open_link("sink", TrafficClass::Data)?;
        lanes.push((near, link));
    }
    let mut times: [Vec<f64>; STREAM_LANES] = Default::default();
    for turn in 0..turns + 2 {
        let target = (turn as u64 + 1) * MESSAGES_A_TURN;
        for (index, times) in times.iter_mut().enumerate() {
            let start = Instant::now();
            for _ in 0..MESSAGES_A_TURN {
                if let Some(raw) = raw.get_mut(index) {
                    raw.write_all(&payload)?;
                } else {
                    let (lane, link) = &mut lanes[index - SESSIONS];
                    lane.session
                        .send(*link, post(Bytes::new(), vec![payload.clone()]))?;
                    lane.write()?;
                }
            }
            while arrived[index].load(Ordering::Acquire) < target {
                std::hint::spin_loop();
            }
            // The first turns fill caches and open windows.
            if turn >= 2 {
                times.push(start.elapsed().as_secs_f64());
            }
        }
    }
    drop(raw);
    drop(lanes);
    for receiver in receivers {
        receiver.join().map_err(|_| "a receiver panicked")??;
    }
    Ok(times)
}

fn post(head: Bytes, bulk: Vec<Bytes>) -> Message {
    Message {
        handler: 0,
        kind: MessageKind::Post,
        head,
        bulk,
        is_gathered: false,
    }
}

// --- ping-pong --------------------------------------------------------------------------------------

/// Seconds of each turn of raw, plain and encrypted ping-pongs, both sides polling.
fn pings(turns: usize) -> Result<[Vec<f64>; 3], Failure> {
    let active = Arc::new(AtomicUsize::new(0));
    let stop = Arc::new(AtomicBool::new(false));
    let (mut raw, mut raw_far) = unpaced_pair()?;
    raw.set_nonblocking(true)?;
    raw_far.set_nonblocking(true)?;
    let mut near = Vec::new();
    let mut far = Vec::new();
    for protections in [PLAIN, ENCRYPTED] {
        let (here, there) = unpaced_pair()?;
        here.set_nonblocking(true)?;
        there.set_nonblocking(true)?;
        let mut lane = Lane::new(Side::Client, protections, here)?;
        let link = lane.session.open_link("sink", TrafficClass::Data)?;
        near.push((lane, link));
        far.push(Lane::new(Side::Server, protections, there)?);
    }
    let (theirs, theirs_stop) = (Arc::clone(&active), Arc::clone(&stop));
    let echo = thread::spawn(move || -> Result<(), Failure> {
        let mut buffer = [0; PING_BYTES];
        let answer = Bytes::from(vec![5; PING_BYTES]);
        while !theirs_stop.load(Ordering::Relaxed) {
            match theirs.load(Ordering::Relaxed) {
                0 => {
                    if poll_exact(&mut raw_far, &mut buffer, &|| {
                        theirs.load(Ordering::Relaxed) == 0 && !theirs_stop.load(Ordering::Relaxed)
                    })? {
                        raw_far.write_all(&buffer)?;
                    }
                }
                index => {
                    let lane = &mut far[index - 1];
                    let mut asked = None;
                    if lane
                        .read(|_, link, kind| asked = Some((link, kind)))?
                        .is_none()
                    {
                        return Ok(());
                    }
                    if let Some((link, MessageKind::Request(number))) = asked {
                        let kind = MessageKind::Reply(number);
                        let reply = Message {
                            handler: 0,
                            kind,
                            head: answer.clone(),
                            bulk: Vec::new(),
                            is_gathered: false,
                        };
                        lane.session.send(link, reply)?;
                    }
                    lane.write()?;
                }
            }
        }
        Ok(())
    });
    let mut times: [Vec<f64>; 3] = Default::default();
    let question = Bytes::from(vec![9; PING_BYTES]);
    let mut number = 0;
    for turn in 0..turns + 2 {
        for (index, times) in times.iter_mut().enumerate() {
            active.store(index, Ordering::Relaxed);
            let start = Instant::now();
            for _ in 0..PINGS_A_TURN {
                number += 1;
                if index == 0 {
                    let mut buffer = [0; PING_BYTES];
                    raw.write_all(&question)?;
                    poll_exact(&mut raw, &mut buffer, &|| true)?;
                    continue;
                }
                let (lane, link) = &mut near[index - 1];
                let kind = MessageKind::Request(number);
                let ping = Message {
                    handler: 0,
                    kind,
                    head: question.clone(),
                    bulk: Vec::new(),
                    is_gathered: false,
                };
                lane.session.send(*link, ping)?;
                lane.write()?;
                while lane.read(|_, _, _| {})?.ok_or("the echo is gone")? == 0 {}
            }
            if turn >= 2 {
                times.push(start.elapsed().as_secs_f64());
            }
        }
    }
    stop.store(true, Ordering::Relaxed);
    echo.join().map_err(|_| "the echo panicked")??;
    Ok(times)
}

/// Fills the buffer without blocking, as long as `go_on` says; whether it was filled.
fn poll_exact(
    socket: &mut TcpStream,
    buffer: &mut [u8],
    go_on: &dyn Fn() -> bool,
) -> io::Result<bool> {
    let mut filled = 0;
    while filled < buffer.len() {
        match socket.read(&mut buffer[filled..]) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(count) => filled += count,
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => return Err(error),
            Err(_) if filled == 0 && !go_on() => return Ok(false),
            Err(_) => std::hint::spin_loop(),
        }
    }
    Ok(true)
}
