//! Links in Rust: two processes, and a capability that is passed on.
//!
//! This process is an ocean that offers a handler, and an atmosphere that narrows its startpoint. The atmosphere passes it on to a plotter, a second
//! process, which asks the ocean directly. `cargo run -p exoskel-net --example links` shows it.

#![expect(clippy::print_stdout, reason = "a program for the terminal")]

use std::error::Error;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use aws_lc_rs::rand;
use exoskel_identity::{Credential, Role};
use exoskel_link::capability::{Caveat, Startpoint};
use exoskel_link::handshake::{PROCESS_NUMBER_BYTES, ProcessNumber};
use exoskel_link::keys::KeyStore;
use exoskel_link::policy::Policy;
use exoskel_link::{Limits, Protection};
use exoskel_net::establish::NodeConfig;
use exoskel_net::links::{LinkNode, LinkNodeConfig, MessageContents, RequestAnswer};
use exoskel_net::listening::Listening;
use exoskel_net::pki::{ThrowAwayAuthority, write_credential};
use rustls_pki_types::UnixTime;

type Failure = Box<dyn Error>;

const PATIENCE: Duration = Duration::from_secs(20);

fn main() -> Result<(), Failure> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    match words.as_slice() {
        [credential, text] => plotter(credential, text),
        _ => ocean_and_atmosphere(Command::new(std::env::current_exe()?)),
    }
}

/// `second` begins the second process: it is given a credential's file and a startpoint.
pub(crate) fn ocean_and_atmosphere(mut second: Command) -> Result<(), Failure> {
    let now = UnixTime::since_unix_epoch(SystemTime::now().duration_since(UNIX_EPOCH)?);
    let authority = ThrowAwayAuthority::new(now)?;
    let issue = |name| authority.issue(Role::Peer, name, now);
    let address = "127.0.0.1:0".parse()?;
    let ocean = node(issue("ocean")?, vec![Listening::bind(&address)?])?;
    let (mut key_id, mut secret) = ([0; 16], [0; 32]);
    rand::fill(&mut key_id)?;
    rand::fill(&mut secret)?;
    ocean.offer("coupler", Protection::Plain, key_id, secret)?;
    for handler in ["surface", "heat"] {
        ocean.add_handler("coupler", handler)?;
    }
    let everybody = vec![Caveat::holder("*")?];
    let startpoint = ocean.startpoint("coupler", false, everybody)?;

    // The atmosphere narrows it, and asks nobody for that.
    let narrower = startpoint
        .attenuate(Caveat::holder("plotter")?)?
        .attenuate(Caveat::handlers(["surface"]))?;

    let folder = std::env::temp_dir().join(format!("exoskel-links-{}", std::process::id()));
    std::fs::create_dir(&folder)?;
    let file = folder.join("plotter.pem");
    write_credential(&file, &issue("plotter")?)?;
    let plotter = second.arg(&file).arg(narrower.text()).spawn();
    let call = ocean.take_call("coupler", PATIENCE).ok_or("nobody calls")?;
    let answer = format!("15 degrees, {}", call.peer.name());
    ocean.handled(&call, contents(&answer), false)?;
    let ended = plotter?.wait()?;
    std::fs::remove_dir_all(&folder)?;
    ocean.close();
    if ended.success() {
        Ok(())
    } else {
        Err("the plotter has failed".into())
    }
}

pub(crate) fn plotter(credential: &str, text: &str) -> Result<(), Failure> {
    let credential = Credential::from_pem(&std::fs::read(credential)?)?;
    let plotter = node(credential, Vec::new())?;
    let ocean = plotter.bind(Startpoint::parse(text)?);
    let request = plotter.request(ocean, "surface", contents(""))?;
    match plotter.wait(ocean, request, PATIENCE) {
        Some(RequestAnswer::Reply { head, .. }) => {
            println!("the ocean says: {}", String::from_utf8_lossy(&head));
        }
        other => return Err(format!("got {other:?}, expected a reply").into()),
    }
    match plotter.request(ocean, "heat", contents("")) {
        Err(error) => println!("more is not allowed: {error}"),
        Ok(_) => return Err("the narrower startpoint lets it heat".into()),
    }
    plotter.close();
    Ok(())
}

fn contents(text: &str) -> MessageContents {
    MessageContents {
        head: text.to_owned().into_bytes().into(),
        bulk: Vec::new(),
        is_gathered: false,
    }
}

/// A node with the built-in policy: what leaves this host is encrypted.
fn node(credential: Credential, listen: Vec<Listening>) -> Result<LinkNode, Failure> {
    let mut process = [0; PROCESS_NUMBER_BYTES];
    rand::fill(&mut process)?;
    let terms = NodeConfig {
        verifier: Arc::new(credential.authority(1)?),
        credential: Arc::new(credential),
        policy: Arc::new(Policy::builtin()),
        peer_roles: vec![Role::Peer],
        minimum: Protection::Plain,
        asks_for_each_link: true,
        limits: Limits::default(),
        dead_after: Duration::from_secs(10),
        handshake_time: Duration::from_secs(10),
        versions: Vec::new(),
        same_versions: Vec::new(),
        keys: KeyStore::in_ordinary_memory(64),
        job: 0,
        process: ProcessNumber::new(process),
        shared_memory: true,
        properties: Vec::new(),
    };
    Ok(LinkNode::start(LinkNodeConfig {
        terms,
        renewal: None,
        listen,
        gateways: Vec::new(),
        hints: Vec::new(),
        patience: Duration::from_secs(60),
        via: Vec::new(),
        dialler: None,
        status: None,
    })?)
}
