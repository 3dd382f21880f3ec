//! How fast sessions are over each transport inside a host: TCP, a socketpair, shared memory; in clear and encrypted.
//!
//! All lanes are connected at once and take short turns; the ratios are medians over the turns. A stream is 1 MiB messages, of which a
//! few are under way; a ping-pong is 64 bytes, asked by a thread that reads by itself and answered by the connection's task. The last
//! line is JSON.

#![expect(clippy::print_stdout, reason = "a program for the terminal")]

use std::error::Error;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use exoskel_identity::Role;
use exoskel_link::keys::KeyStore;
use exoskel_link::policy::Policy;
use exoskel_link::{
    Endpoint, Event, Limits, LinkId, Message, MessageKind, Protection, Session, TrafficClass,
};
use exoskel_net::connection::Connection;
use exoskel_net::establish::{Established, NodeConfig, dial, welcome};
use exoskel_net::loopback;
use exoskel_net::pki::ThrowAwayAuthority;
use exoskel_net::socket::Socket;
use rustls_pki_types::UnixTime;

type Failure = Box<dyn Error + Send + Sync>;

const MESSAGE_BYTES: usize = 1 << 20;
const MESSAGES_A_TURN: u64 = 64;
const UNDER_WAY_MAX: u64 = 4;
const PING_BYTES: usize = 64;
const PINGS_A_TURN: u64 = 500;
const FOR_EVER: Duration = Duration::from_secs(3600);
const WAYS: [&str; 3] = ["tcp", "socketpair", "shared memory"];
const PROTECTIONS: [Protection; 2] = [Protection::Plain, Protection::Encrypted];

/// A session, and what has come at either end.
struct Lane {
    client: Arc<Connection>,
    link: LinkId,
    arrived: Arc<AtomicU64>,
    answered: Arc<AtomicU64>,
    stream: Vec<f64>,
    pings: Vec<f64>,
}

fn main() -> Result<(), Failure> {
    let quick = std::env::args().any(|argument| argument == "--quick");
    let turns = if quick { 4 } else { 40 };
    let now = SystemTime::now().duration_since(UNIX_EPOCH)?;
    let authority = ThrowAwayAuthority::new(UnixTime::since_unix_epoch(now))?;
    let mut lanes = Vec::new();
    for way in WAYS {
        for protection in PROTECTIONS {
            lanes.push(Lane::new(&authority, way, protection)?);
        }
    }
    // The first turns fill caches and open windows.
    for turn in 0..turns + 2 {
        for lane in &mut lanes {
            let (stream, pings) = (lane.stream()?, lane.pings()?);
            if turn >= 2 {
                lane.stream.push(stream);
                lane.pings.push(pings);
            }
        }
    }
    let mut fields = Vec::new();
    let names = WAYS
        .iter()
        .flat_map(|way| PROTECTIONS.map(|protection| (way, protection)));
    for (index, (lane, (way, protection))) in lanes.iter().zip(names).enumerate() {
        let tcp = &lanes[index % PROTECTIONS.len()];
        let rate =
            MESSAGES_A_TURN as f64 * MESSAGE_BYTES as f64 / median(lane.stream.clone()) / 1e9;
        let micros = median(lane.pings.clone()) / PINGS_A_TURN as f64 * 1e6;
        let stream = ratio(&tcp.stream, &lane.stream);
        let pings = ratio(&lane.pings, &tcp.pings);
        println!(
            "{way} {protection}: {rate:.2} GB/s ({stream:.2} of TCP), {micros:.2} us there and back ({pings:.2} of TCP)"
        );
        fields.push(format!(
            "\"{way} {protection}\": {{\"gb_per_s\": {rate:.3}, \"stream_over_tcp\": {stream:.3}, \
             \"us\": {micros:.3}, \"time_over_tcp\": {pings:.3}}}"
        ));
    }
    println!("{{{}}}", fields.join(", "));
    Ok(())
}

impl Lane {
    fn new(
        authority: &ThrowAwayAuthority,
        way: &str,
        protection: Protection,
    ) -> Result<Self, Failure> {
        let config = |role, name, peer| config(authority, role, name, peer, way, protection);
        let client = config(Role::Manager, "head", Role::Worker)?;
        let server = config(Role::Worker, "lab1", Role::Manager)?;
        let (here, there) = pair(way)?;
        let (arrived, answered) = (Arc::default(), Arc::default());
        let listening = serve(
            async move || Ok(welcome(there()?, &server, |_, _| Ok(())).await?),
            &arrived,
            true,
        );
        let dialling = serve(
            async move || Ok(dial(here()?, &client, None).await?),
            &answered,
            false,
        );
        let client = dialling.recv()?;
        listening.recv()?;
        let open = |session: &mut Session| session.open_link("sink", TrafficClass::Data);
        Ok(Self {
            link: client.with(open)?,
            client,
            arrived,
            answered,
            stream: Vec::new(),
            pings: Vec::new(),
        })
    }

    /// Seconds of a turn.
    fn stream(&self) -> Result<f64, Failure> {
        let payload = Bytes::from(vec![7; MESSAGE_BYTES]);
        let (start, first) = (Instant::now(), self.arrived.load(Relaxed));
        for number in 0..MESSAGES_A_TURN {
            self.client
                .send(self.link, post(Bytes::new(), vec![payload.clone()]))?;
            self.wait_for(first + (number + 1).saturating_sub(UNDER_WAY_MAX));
        }
        self.wait_for(first + MESSAGES_A_TURN);
        Ok(start.elapsed().as_secs_f64())
    }

    fn wait_for(&self, count: u64) {
        while self.arrived.load(Relaxed) < count {
            thread::sleep(Duration::from_micros(20));
        }
    }

    /// Seconds of a turn.
    fn pings(&self) -> Result<f64, Failure> {
        let question = Bytes::from(vec![9; PING_BYTES]);
        let start = Instant::now();
        for _ in 0..PINGS_A_TURN {
            let before = self.answered.load(Relaxed);
            self.client
                .send(self.link, post(question.clone(), Vec::new()))?;
            let is_waiting = || self.answered.load(Relaxed) == before;
            while is_waiting() {
                self.client.read_here(FOR_EVER, is_waiting, |event| {
                    hear(&self.client, &self.answered, None, event);
                });
            }
        }
        Ok(start.elapsed().as_secs_f64())
    }
}

/// Counts a message, gives its memory back, and answers it if it is a question.
fn hear(connection: &Connection, count: &AtomicU64, answer: Option<LinkId>, event: Event) {
    let Event::Message {
        link,
        head,
        bulk,
        size,
        ..
    } = event
    else {
        return;
    };
    connection.consumed(link, size);
    bulk.into_iter()
        .for_each(|buffer| connection.recycle(buffer));
    count.fetch_add(1, Relaxed);
    if let (Some(back), false) = (answer, head.is_empty()) {
        // Without an answer the asker waits for ever, which is seen.
        let _ = connection.send(back, post(head, Vec::new()));
    }
}

/// Serves one end on a thread of its own, and says when it has begun.
fn serve(
    meet: impl AsyncFnOnce() -> Result<Established, Failure> + Send + 'static,
    count: &Arc<AtomicU64>,
    answers: bool,
) -> mpsc::Receiver<Arc<Connection>> {
    let (sender, receiver) = mpsc::channel();
    let count = count.clone();
    thread::spawn(move || -> Result<(), Failure> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        runtime.block_on(async {
            let connection = meet().await?.connection;
            connection.with(|session| session.offer(Endpoint::new("sink", &["take"])))?;
            let open = |session: &mut Session| session.open_link("sink", TrafficClass::Data);
            let back = answers.then(|| connection.with(open)).transpose()?;
            sender.send(connection.clone())?;
            let heard = connection.clone();
            connection
                .run(|event| hear(&heard, &count, back, event))
                .await;
            Ok(())
        })
    });
    receiver
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

fn config(
    authority: &ThrowAwayAuthority,
    role: Role,
    name: &str,
    peer: Role,
    way: &str,
    protection: Protection,
) -> Result<NodeConfig, Failure> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH)?;
    let credential = authority.issue(role, name, UnixTime::since_unix_epoch(now))?;
    let policy = match way {
        "tcp" => Policy::parse(loopback::policy(true), 1)?,
        _ => Policy::builtin(),
    };
    Ok(NodeConfig {
        asks_for_each_link: false,
        verifier: Arc::new(credential.authority(1)?),
        credential: Arc::new(credential),
        policy: Arc::new(policy),
        peer_roles: vec![peer],
        minimum: protection,
        limits: Limits::default(),
        dead_after: FOR_EVER,
        handshake_time: Duration::from_secs(20),
        versions: Vec::new(),
        same_versions: Vec::new(),
        keys: KeyStore::in_ordinary_memory(2),
        job: 0,
        process: exoskel_link::handshake::ProcessNumber::new([5; 16]),
        shared_memory: way == "shared memory",
        properties: Vec::new(),
    })
}

type MakeSocket = Box<dyn FnOnce() -> std::io::Result<Socket> + Send>;

/// Both ends, each to be made on the thread that serves it.
fn pair(way: &str) -> Result<(MakeSocket, MakeSocket), Failure> {
    if way == "tcp" {
        let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
        let here = std::net::TcpStream::connect(listener.local_addr()?)?;
        let there = listener.accept()?.0;
        return Ok((
            Box::new(|| Socket::tcp_from_std(here)),
            Box::new(|| Socket::tcp_from_std(there)),
        ));
    }
    let (here, there) = UnixStream::pair()?;
    Ok((
        Box::new(|| Socket::unix(here)),
        Box::new(|| Socket::unix(there)),
    ))
}

/// The median of `above / below`, turn by turn.
fn ratio(above: &[f64], below: &[f64]) -> f64 {
    median(above.iter().zip(below).map(|(a, b)| a / b).collect())
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
