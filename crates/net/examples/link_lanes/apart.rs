//! The two ends in processes of their own, which can be on different hosts, with whatever there is between them.
//!
//! The directory has `far.pem` and a credential for each way, `WAY.pem`; the far end puts its startpoint there. A way is `NAME=HINT` for a
//! node's link, or `NAME=raw:HOST:PORT` for a raw stream.

use std::collections::VecDeque;
use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use bytes::Bytes;
use exoskel_identity::{Credential, Role};
use exoskel_link::capability::{Caveat, Startpoint};
use exoskel_net::links::{BindingId, LinkNode, RequestAnswer};
use exoskel_trust::{Document, Sources};

use super::nodes::{HANDLER, contents, node, now, take_all, terms};
use super::raw::{READ_BYTES, set_up};
use super::{Failure, Lane, Lanes, payload};

const STARTPOINT: &str = "startpoint";
const PATIENCE: Duration = Duration::from_secs(60);

/// Bytes that have been asked and not answered, at most.
const UNDER_WAY_MAX: usize = 8 << 20;

/// How long the first message of a turn is: the numbers of bytes and messages that follow.
const ANNOUNCEMENT_BYTES: usize = 16;

/// Serves until it is killed.
pub(crate) fn far(directory: &Path, listen: &str, raw: &str) -> Result<(), Failure> {
    let raw = TcpListener::bind(raw)?;
    let far = Arc::new(node(
        terms(credential(directory, "far")?)?,
        &[listen],
        Vec::new(),
    )?);
    take_all(&far)?;
    let startpoint = far.startpoint("encrypted", false, vec![Caveat::holder("*")?])?;
    fs::write(directory.join("startpoint.new"), startpoint.text())?;
    // Whole or not at all.
    fs::rename(directory.join("startpoint.new"), directory.join(STARTPOINT))?;
    for socket in raw.incoming() {
        let socket = socket?;
        thread::spawn(move || swallow(socket));
    }
    Ok(())
}

/// Reads turns to their ends, and says so.
fn swallow(mut socket: TcpStream) -> Result<(), Failure> {
    set_up(&socket)?;
    let mut piece = vec![0; READ_BYTES];
    loop {
        let mut announcement = [0; ANNOUNCEMENT_BYTES];
        socket.read_exact(&mut announcement)?;
        let (bytes, count) = announcement.split_at(8);
        let number = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().unwrap_or_default());
        let mut left = number(bytes) * number(count);
        while left > 0 {
            let room = READ_BYTES.min(usize::try_from(left)?);
            match socket.read(&mut piece[..room])? {
                0 => return Ok(()),
                count => left -= count as u64,
            }
        }
        socket.write_all(&[1])?;
    }
}

fn credential(directory: &Path, name: &str) -> Result<Credential, Failure> {
    let files = Sources {
        credential: Document::File(directory.join(format!("{name}.pem"))),
        key: None,
        holder: None,
        revocation_list: None,
        trust: None,
        policy: None,
    };
    let (credential, _) = files.credential(Role::Peer, now())?;
    Ok(credential)
}

/// Connects all ways at once.
pub(crate) fn near(directory: &Path, ways: &[&str], lanes: &mut Lanes) -> Result<(), Failure> {
    let text = fs::read_to_string(directory.join(STARTPOINT))?;
    let startpoint = Startpoint::parse(&text)?;
    for way in ways {
        let expected = || format!("got {way:?}, expected NAME=HINT");
        let (name, hint) = way.split_once('=').ok_or_else(expected)?;
        let lane: Box<dyn Lane> = match hint.strip_prefix("raw:") {
            Some(address) => {
                let socket = TcpStream::connect(address)?;
                set_up(&socket)?;
                Box::new(RawApart(socket))
            }
            None => {
                let node = node(terms(credential(directory, name)?)?, &[], Vec::new())?;
                let binding = node.bind(startpoint.with_hints(vec![hint.to_owned()])?);
                let mut lane = NodeApart { node, binding };
                lane.turn(1, 1)
                    .map_err(|error| format!("{name}: {error}"))?;
                Box::new(lane)
            }
        };
        lanes.insert(name.to_owned(), lane);
    }
    Ok(())
}

struct RawApart(TcpStream);

impl Lane for RawApart {
    fn turn(&mut self, bytes: usize, count: u64) -> Result<Duration, Failure> {
        let message = payload(bytes);
        let start = Instant::now();
        let mut announcement = (bytes as u64).to_le_bytes().to_vec();
        announcement.extend(count.to_le_bytes());
        self.0.write_all(&announcement)?;
        for _ in 0..count {
            self.0.write_all(&message)?;
        }
        self.0.read_exact(&mut [0])?;
        Ok(start.elapsed())
    }
}

struct NodeApart {
    node: LinkNode,
    binding: BindingId,
}

impl Lane for NodeApart {
    /// Requests, several under way at once.
    fn turn(&mut self, bytes: usize, count: u64) -> Result<Duration, Failure> {
        let message = Bytes::from(payload(bytes));
        let most = (UNDER_WAY_MAX / bytes.max(1)).clamp(1, 1024);
        let mut asked = VecDeque::new();
        let start = Instant::now();
        for _ in 0..count {
            if asked.len() >= most {
                self.wait(asked.pop_front())?;
            }
            let contents = contents(&message);
            asked.push_back(self.node.request(self.binding, HANDLER, contents)?);
        }
        while !asked.is_empty() {
            self.wait(asked.pop_front())?;
        }
        Ok(start.elapsed())
    }
}

impl NodeApart {
    fn wait(&self, request: Option<u64>) -> Result<(), Failure> {
        let Some(request) = request else {
            return Ok(());
        };
        match self.node.wait(self.binding, request, PATIENCE) {
            Some(RequestAnswer::Reply { .. }) => Ok(()),
            Some(RequestAnswer::Lost(error)) => Err(error.into()),
            Some(RequestAnswer::Failure { .. }) => Err("the handler failed".into()),
            None => Err("no answer came".into()),
        }
    }
}
