//! Whole nodes, as programs have them: posts to an endpoint, over TCP and over what two processes of a host choose.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use exoskel_identity::{Credential, Role};
use exoskel_link::Protection;
use exoskel_link::capability::Caveat;
use exoskel_link::handshake::{NodeConfig, PROCESS_NUMBER_BYTES, ProcessNumber};
use exoskel_link::keys::KeyStore;
use exoskel_link::policy::Policy;
use exoskel_net::address::Address;
use exoskel_net::links::{BindingId, GatewayAddress, LinkNode, LinkNodeConfig, MessageContents};
use exoskel_net::listening::Listening;
use exoskel_net::pki::ThrowAwayAuthority;
use rustls::pki_types::UnixTime;

use super::{Arrivals, Failure, Lane, Lanes, payload};

/// Whoever is asked decides what protects a link; the wire needs nothing.
const TRUSTING: &str = r#"
[domain.here]
addresses = ["127.0.0.0/8", "10.0.0.0/8"]
names = ["*"]

[[rule]]
from = "here"
to = "here"
protection = "plain"
"#;

pub(crate) const HANDLER: &str = "take";

/// Bytes that have been posted and have not arrived, at most.
const UNDER_WAY_MAX: u64 = 8 << 20;
const FOR_EVER: Duration = Duration::from_secs(3600);

pub(crate) fn now() -> UnixTime {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    UnixTime::since_unix_epoch(since.unwrap_or_default())
}

/// What a node brings to its handshakes.
pub(crate) fn terms(credential: Credential) -> Result<NodeConfig, Failure> {
    let mut process = [0; PROCESS_NUMBER_BYTES];
    aws_lc_rs::rand::fill(&mut process)?;
    Ok(NodeConfig {
        asks_for_each_link: true,
        verifier: Arc::new(credential.authority(1)?),
        credential: Arc::new(credential),
        policy: Arc::new(Policy::parse(TRUSTING, 1)?),
        peer_roles: vec![Role::Peer],
        minimum: Protection::Plain,
        limits: exoskel_link::Limits::default(),
        dead_after: FOR_EVER,
        handshake_time: Duration::from_secs(20),
        versions: Vec::new(),
        same_versions: Vec::new(),
        keys: KeyStore::in_ordinary_memory(8),
        job: 0,
        process: ProcessNumber::new(process),
        shared_memory: true,
        properties: Vec::new(),
    })
}

pub(crate) fn node(
    terms: NodeConfig,
    listen: &[&str],
    gateways: Vec<GatewayAddress>,
) -> Result<LinkNode, Failure> {
    let bind = |text: &&str| -> Result<_, Failure> {
        let address: Address = text.parse()?;
        Ok(Listening::bind(&address)?)
    };
    let config = LinkNodeConfig {
        terms,
        renewal: None,
        listen: listen.iter().map(bind).collect::<Result<_, _>>()?,
        gateways,
        hints: Vec::new(),
        patience: Duration::from_secs(60),
        via: Vec::new(),
        dialler: None,
        status: None,
    };
    Ok(LinkNode::start(config)?)
}

/// Offers an endpoint for each protection, and takes what comes.
pub(crate) fn take_all(node: &Arc<LinkNode>) -> Result<Vec<(Protection, Arc<Arrivals>)>, Failure> {
    let mut taken = Vec::new();
    for (number, protection) in (0..).zip(Protection::ALL) {
        let name = protection.name();
        node.offer(name, protection, [number; 16], [number + 1; 32])?;
        node.add_handler(name, HANDLER)?;
        let arrivals = Arc::new(Arrivals::new());
        taken.push((protection, arrivals.clone()));
        let node = node.clone();
        thread::spawn(move || {
            loop {
                let Some(mut call) = node.take_call(name, FOR_EVER) else {
                    return;
                };
                let bytes: usize = call.bulk.iter().map(Vec::len).sum();
                // An answer to a request, which is its head, and room to a post.
                let answer = MessageContents {
                    head: call.head.clone(),
                    bulk: Vec::new(),
                    is_gathered: false,
                };
                if let Err(error) = node.handled(&call, answer, false) {
                    arrivals.want(0);
                    return eprintln!("a call was not handled: {error}");
                }
                arrivals.add(bytes as u64);
                let spent = std::mem::take(&mut call.bulk);
                node.recycle(&call, spent);
            }
        });
    }
    Ok(taken)
}

struct NodeStream {
    near: Arc<LinkNode>,
    _far: Arc<LinkNode>,
    binding: BindingId,
    arrivals: Arc<Arrivals>,
}

/// Round trips that wait.
struct NodePing {
    near: Arc<LinkNode>,
    binding: BindingId,
}

/// Streams over both ways.
pub(crate) fn streams(lanes: &mut Lanes) -> Result<(), Failure> {
    let path = std::env::temp_dir().join(format!("exoskel-lanes-{}", std::process::id()));
    let unix = format!("unix:{}", path.display());
    tcp(lanes)?;
    connect("chosen", &unix, lanes)
}

/// Streams and round trips over TCP.
pub(crate) fn tcp(lanes: &mut Lanes) -> Result<(), Failure> {
    connect("tcp", "tcp://127.0.0.1:0", lanes)
}

fn connect(method: &str, address: &str, lanes: &mut Lanes) -> Result<(), Failure> {
    let authority = ThrowAwayAuthority::new(now())?;
    let named = |end: &str| -> Result<_, Failure> {
        terms(authority.issue(Role::Peer, &format!("{end}.{method}"), now())?)
    };
    let far = Arc::new(node(named("far")?, &[address], Vec::new())?);
    let near = Arc::new(node(named("near")?, &[], Vec::new())?);
    for (protection, arrivals) in take_all(&far)? {
        let anybody = vec![Caveat::holder("*")?];
        let startpoint = far.startpoint(protection.name(), false, anybody)?;
        let binding = near.bind(startpoint);
        let lane = NodeStream {
            near: near.clone(),
            _far: far.clone(),
            binding,
            arrivals,
        };
        lane.open()?;
        lanes.insert(format!("stream_node_{method}_{protection}"), Box::new(lane));
        let near = near.clone();
        let lane = NodePing { near, binding };
        lanes.insert(format!("ping_node_{method}_{protection}"), Box::new(lane));
    }
    Ok(())
}

/// A message without a head.
pub(crate) fn contents(message: &Bytes) -> MessageContents {
    MessageContents {
        head: Bytes::new(),
        bulk: vec![message.clone()],
        is_gathered: false,
    }
}

impl NodeStream {
    fn open(&self) -> Result<(), Failure> {
        let request = self
            .near
            .request(self.binding, HANDLER, MessageContents::default())?;
        let answer = self.near.wait(self.binding, request, FOR_EVER);
        answer.map(drop).ok_or_else(|| "no answer".into())
    }
}

impl Lane for NodePing {
    fn turn(&mut self, bytes: usize, count: u64) -> Result<Duration, Failure> {
        let head = Bytes::from(payload(bytes));
        let start = Instant::now();
        for _ in 0..count {
            let contents = MessageContents {
                head: head.clone(),
                bulk: Vec::new(),
                is_gathered: false,
            };
            let request = self.near.request(self.binding, HANDLER, contents)?;
            let answer = self.near.wait(self.binding, request, FOR_EVER);
            answer.ok_or("no answer came")?;
        }
        Ok(start.elapsed())
    }
}

impl Lane for NodeStream {
    fn turn(&mut self, bytes: usize, count: u64) -> Result<Duration, Failure> {
        let message = Bytes::from(payload(bytes));
        let first = self.arrivals.count();
        let start = Instant::now();
        for number in 1..=count {
            let sent = first + number * bytes as u64;
            self.near.post(self.binding, HANDLER, contents(&message))?;
            // Half of what may be under way, so that this thread is woken seldom.
            if sent > self.arrivals.count() + UNDER_WAY_MAX {
                self.arrivals.wait(sent - UNDER_WAY_MAX / 2);
            }
        }
        self.arrivals.wait(first + count * bytes as u64);
        Ok(start.elapsed())
    }
}
