//! A certificate's share of a node's descriptors. The limit of open files is one of the whole process, so this test has a process of its own.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod wire;

use std::time::Duration;

use exoskel_identity::Role;
use exoskel_link::handshake::{NodeConfig, ProcessNumber};
use exoskel_net::address::Address;
use exoskel_net::establish::{EstablishError, Established, dial};
use exoskel_net::links::{LinkNode, LinkNodeConfig};
use exoskel_net::listening::Listening;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use wire::{Site, run, soon, terms};

/// Enough for both ends of all sessions of this test.
const DESCRIPTORS: u64 = 256;

/// A session has two descriptors, and all sessions of a certificate have a quarter of them.
const SESSIONS: u64 = DESCRIPTORS / 2 / 4;

fn peer(site: &Site, name: &str) -> NodeConfig {
    let mut terms = terms(site.credential(Role::Peer, name), &[Role::Peer]);
    terms.asks_for_each_link = true;
    // Nobody says anything after the handshake.
    terms.dead_after = Duration::from_secs(600);
    terms
}

async fn dialled(address: &Address, terms: &NodeConfig) -> Result<Established, EstablishError> {
    let socket = address.connect().await?;
    dial(socket, terms, Some("ocean".to_owned())).await
}

/// A process has few sessions, but whoever has a certificate can say of each connection that it is another process.
#[test]
fn a_certificate_has_its_share_of_the_descriptors_whatever_processes_it_states() {
    let limit = getrlimit(Resource::Nofile);
    let few = Rlimit {
        current: Some(DESCRIPTORS),
        ..limit
    };
    setrlimit(Resource::Nofile, few).unwrap();
    run(async {
        let site = Site::new();
        let listening = Listening::bind(&"127.0.0.1:0".parse().unwrap()).unwrap();
        let address = listening.address().clone();
        let owner = LinkNode::start(LinkNodeConfig {
            terms: peer(&site, "ocean"),
            renewal: None,
            listen: vec![listening],
            gateways: Vec::new(),
            hints: Vec::new(),
            patience: Duration::from_secs(60),
            via: Vec::new(),
            dialler: None,
            status: None,
        })
        .unwrap();
        let mut crowd = peer(&site, "crowd");
        let mut next_process = || {
            let mut number = *crowd.process.bytes();
            number[0] += 1;
            crowd.process = ProcessNumber::new(number);
            crowd.clone()
        };
        let mut held = Vec::new();
        for _ in 0..SESSIONS {
            let session = dialled(&address, &next_process()).await;
            held.push(session.unwrap().connection);
        }
        let refused = dialled(&address, &next_process()).await.err().unwrap();
        assert!(refused.is_busy(), "{refused}");
        let expected = format!("has {SESSIONS} sessions with this process, which is its share");
        assert!(refused.to_string().contains(&expected), "{refused}");
        // Others have theirs.
        held.push(
            dialled(&address, &peer(&site, "other"))
                .await
                .unwrap()
                .connection,
        );
        // One that ends makes room.
        drop(held.remove(0));
        let gone = async {
            while owner.status().sessions.len() as u64 > SESSIONS {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        soon("the end of a session", gone).await;
        held.push(dialled(&address, &next_process()).await.unwrap().connection);
        drop(held);
        let closed = tokio::task::spawn_blocking(move || owner.close());
        closed.await.unwrap();
    });
    setrlimit(Resource::Nofile, limit).unwrap();
}
