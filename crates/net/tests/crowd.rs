//! Peers that want more of a node than their share, and those that come when it closes.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod wire;

use std::cell::Cell;
use std::os::fd::AsFd;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use exoskel_identity::Role;
use exoskel_link::capability::Caveat;
use exoskel_link::{
    CloseReason, Endpoint, Event, LinkId, Message, MessageKind, Protection, TrafficClass,
};
use exoskel_net::address::Address;
use exoskel_net::connection::{Connection, Ended, PeerTurn};
use exoskel_net::establish::{EstablishError, Established, NodeConfig, dial};
use exoskel_net::links::{LinkNode, LinkNodeConfig, LookupQuestion, MessageContents};
use exoskel_net::listening::Listening;
use exoskel_net::socket::Socket;
use wire::{ENDPOINT, Site, Way, meet, message, run, soon, tcp, terms};

/// Messages that come with one read.
const MANY: usize = 200;

/// How long each of them keeps its handler.
const WORK: Duration = Duration::from_millis(2);

/// Two ends with a link, neither of them served.
async fn opened(site: &Site) -> (Arc<Connection>, Arc<Connection>, LinkId) {
    let (client, server) = Way::Tcp.meet(&site.manager(), &site.worker("lab1")).await;
    let (client, server) = (client.connection, server.connection);
    let link = link_between(&client, &server);
    (client, server, link)
}

fn link_between(client: &Connection, server: &Connection) -> LinkId {
    let endpoint = Endpoint::new(ENDPOINT, &["take"]);
    server.with(|session| session.offer(endpoint)).unwrap();
    let open =
        |session: &mut exoskel_link::Session| session.open_link(ENDPOINT, TrafficClass::Data);
    client.with(open).unwrap()
}

/// Who has sent many messages that take long is heard in turns with others.
#[test]
fn a_peer_that_keeps_its_handler_busy_holds_up_nobody() {
    run(async {
        let site = Site::new();
        let (busy, busy_end, busy_link) = opened(&site).await;
        let (other, other_end, other_link) = opened(&site).await;
        for _ in 0..MANY {
            busy.queue(busy_link, message(b"much", b"")).unwrap();
        }
        busy.flush();
        other.send(other_link, message(b"little", b"")).unwrap();
        let handled = Rc::new(Cell::new(0));
        let before = Rc::new(Cell::new(None));
        let local = tokio::task::LocalSet::new();
        let count = handled.clone();
        let busy_task = local.spawn_local(async move {
            let take = |event| {
                if matches!(event, Event::Message { .. }) {
                    let begin = Instant::now();
                    while begin.elapsed() < WORK {
                        std::hint::spin_loop();
                    }
                    count.set(count.get() + 1);
                }
            };
            busy_end.run(take).await
        });
        let (seen, count) = (before.clone(), handled.clone());
        let other_task = local.spawn_local(async move {
            let take = |event| {
                if matches!(event, Event::Message { .. }) {
                    seen.set(Some(count.get()));
                }
            };
            other_end.run(take).await
        });
        let clients = async {
            busy.close(CloseReason::Finished);
            other.close(CloseReason::Finished);
            let nobody = |_| ();
            tokio::join!(busy.run(nobody), other.run(nobody))
        };
        let all = async { tokio::join!(clients, busy_task, other_task) };
        let (_, busy, other) = soon("the end of both", local.run_until(all)).await;
        assert!(busy.is_ok() && other.is_ok());
        assert_eq!(
            handled.get(),
            MANY,
            "each is handed out, before the end as well"
        );
        assert!(before.get().unwrap() < MANY / 10, "{before:?}");
    });
}

/// What has come before a reset has arrived, however long dealing with it takes: sent again over connections that end like this one, it
/// might never.
#[test]
fn what_came_before_a_reset_is_handed_out() {
    const BEFORE: usize = 100;
    // More of them than what one read takes.
    const BYTES: usize = 4096;
    run(async {
        let site = Site::new();
        let (client, server) = tcp().await;
        rustix::net::sockopt::set_socket_recv_buffer_size(&server, 4 * BEFORE * BYTES).unwrap();
        let arrived = server.as_fd().try_clone_to_owned().unwrap();
        let (manager, worker) = (site.manager(), site.worker("lab1"));
        let (client, server) = meet((client, server), &manager, None, &worker).await;
        let (client, server) = (client.unwrap().connection, server.unwrap().connection);
        let link = link_between(&client, &server);
        let opened = async {
            let mut is_open = false;
            while !is_open {
                server.progress(|_| ()).unwrap();
                let see = |event| is_open |= matches!(event, Event::LinkAccepted { .. });
                client.progress(see).unwrap();
                tokio::task::yield_now().await;
            }
        };
        soon("the link", opened).await;
        let of_kind = |kind| Message {
            kind,
            ..message(b"much", &[0; BYTES])
        };
        let requests = [1, 2].map(MessageKind::Request);
        for kind in requests {
            client.send(link, of_kind(kind)).unwrap();
        }
        let mut handled = 0;
        let asked = async {
            while handled < requests.len() {
                let count = |_| handled += 1;
                server.progress(count).unwrap();
                tokio::task::yield_now().await;
            }
        };
        soon("the requests", asked).await;
        for _ in 0..BEFORE {
            client.send(link, of_kind(MessageKind::Post)).unwrap();
        }
        let here = async {
            while rustix::io::ioctl_fionread(&arrived).unwrap() < (BEFORE * BYTES) as u64 {
                client.flush();
                tokio::task::yield_now().await;
            }
        };
        soon("all of them", here).await;
        // Whoever goes without reading it resets the connection.
        server.send(link, of_kind(MessageKind::Reply(1))).unwrap();
        drop(client);
        server.queue(link, of_kind(MessageKind::Reply(2))).unwrap();
        let mut handled = 0;
        let take = |event| {
            if matches!(event, Event::Message { .. }) {
                let begin = Instant::now();
                while begin.elapsed() < WORK {
                    std::hint::spin_loop();
                }
                handled += 1;
            }
        };
        let ended = soon("the end", server.run(take)).await;
        assert!(!matches!(ended, Ended::Closed(_)), "{ended:?}");
        assert_eq!(handled, BEFORE);
    });
}

/// Aim: who has many sessions gets no more of the thread's time than who has one, for what its sessions have left behind as well.
#[test]
fn a_peer_with_many_sessions_has_one_turn() {
    const SESSIONS: usize = 8;
    const OF_OTHER: usize = 20;
    run(async {
        let site = Site::new();
        let work = || {
            let begin = Instant::now();
            while begin.elapsed() < WORK {
                std::hint::spin_loop();
            }
        };
        let local = tokio::task::LocalSet::new();
        let turns = [(); 2].map(|()| Rc::new(PeerTurn::default()));
        let busy_count = Rc::new(Cell::new(0));
        let mut clients = Vec::new();
        let mut ends = Vec::new();
        for _ in 0..SESSIONS {
            let (busy, busy_end, link) = opened(&site).await;
            for _ in 0..MANY / SESSIONS {
                busy.queue(link, message(b"much", b"")).unwrap();
            }
            // They have gone when most of what they have said is dealt with.
            busy.close(CloseReason::Finished);
            clients.push(busy);
            let (turn, count) = (turns[0].clone(), busy_count.clone());
            ends.push(local.spawn_local(async move {
                let take = |event| {
                    if matches!(event, Event::Message { .. }) {
                        work();
                        count.set(count.get() + 1);
                    }
                };
                busy_end.run_in_turn(&turn, take).await
            }));
        }
        let (other, other_end, link) = opened(&site).await;
        for _ in 0..OF_OTHER {
            other.queue(link, message(b"much", b"")).unwrap();
        }
        other.close(CloseReason::Finished);
        clients.push(other);
        let (turn, count) = (turns[1].clone(), busy_count.clone());
        let (begun, before) = (Rc::new(Cell::new(None)), Rc::new(Cell::new(0)));
        let (first, last) = (begun.clone(), before.clone());
        ends.push(local.spawn_local(async move {
            let take = |event| {
                if matches!(event, Event::Message { .. }) {
                    if first.get().is_none() {
                        first.set(Some(count.get()));
                    }
                    work();
                    last.set(count.get());
                }
            };
            other_end.run_in_turn(&turn, take).await
        }));
        for client in clients {
            ends.push(local.spawn_local(async move { client.run(|_| ()).await }));
        }
        let all = async {
            for end in ends {
                end.await.unwrap();
            }
        };
        soon("the end of all", local.run_until(all)).await;
        // From its first to its last one, there is about one of the crowd for each.
        let meanwhile = before.get() - begun.get().unwrap();
        assert!(meanwhile <= 2 * OF_OTHER, "{meanwhile}");
    });
}

/// Aim: a connection that breaks while it waits for its turn doesn't keep the turn for itself.
#[test]
fn who_breaks_while_it_waits_for_its_turn_holds_up_nobody() {
    const SESSIONS: usize = 8;
    run(async {
        let site = Site::new();
        let local = tokio::task::LocalSet::new();
        let turn = Rc::new(PeerTurn::default());
        let handled = Rc::new(Cell::new(0));
        let mut ends = Vec::new();
        for _ in 0..SESSIONS {
            let (busy, busy_end, link) = opened(&site).await;
            for _ in 0..MANY / SESSIONS {
                busy.queue(link, message(b"much", b"")).unwrap();
            }
            busy.close(CloseReason::Finished);
            let (turn, count) = (turn.clone(), handled.clone());
            ends.push(local.spawn_local(async move {
                let take = |event| {
                    if matches!(event, Event::Message { .. }) {
                        let begin = Instant::now();
                        while begin.elapsed() < WORK {
                            std::hint::spin_loop();
                        }
                        count.set(count.get() + 1);
                    }
                };
                busy_end.run_in_turn(&turn, take).await
            }));
            ends.push(local.spawn_local(async move { busy.run(|_| ()).await }));
        }
        let (broken, gone, link) = opened(&site).await;
        // Whoever goes without reading it resets the connection.
        broken.send(link, message(b"little", b"")).unwrap();
        drop(gone);
        let all = async {
            while handled.get() == 0 {
                tokio::task::yield_now().await;
            }
            let serving = broken.clone();
            ends.push(local.spawn_local(async move { serving.run_in_turn(&turn, |_| ()).await }));
            // It stands in line behind the others by then.
            for _ in 0..2 {
                tokio::task::yield_now().await;
            }
            broken.send(link, message(b"little", b"")).unwrap();
            for end in ends {
                end.await.unwrap();
            }
        };
        soon("the end of all", local.run_until(all)).await;
        assert_eq!(handled.get(), MANY);
    });
}

/// What a peer gives no credit for waits here: whoever answers it can see how much that is.
#[test]
fn messages_that_wait_for_credit_are_counted() {
    run(async {
        let site = Site::new();
        let (client, server, link) = opened(&site).await;
        let size = 1 << 20;
        let mut sent = 0;
        while client.waiting_bytes() < 4 * size {
            client
                .queue(link, message(b"", &vec![0; size as usize]))
                .unwrap();
            sent += 1;
            assert!(sent < 100, "nothing is seen to wait");
            loop {
                client.progress(|_| ()).unwrap();
                // It reads all, and says of nothing that it has dealt with it.
                server.progress(|_| ()).unwrap();
                if client.unwritten_bytes() == 0 {
                    break;
                }
                tokio::task::yield_now().await;
            }
        }
        assert_eq!(client.unwritten_bytes(), 0);
    });
}

fn peer(site: &Site, name: &str) -> NodeConfig {
    let mut terms = terms(site.credential(Role::Peer, name), &[Role::Peer]);
    terms.asks_for_each_link = true;
    terms
}

fn node(terms: NodeConfig, listen: Vec<Listening>) -> LinkNode {
    LinkNode::start(LinkNodeConfig {
        terms,
        renewal: None,
        listen,
        gateways: Vec::new(),
        hints: Vec::new(),
        patience: Duration::from_secs(60),
        via: Vec::new(),
        dialler: None,
        status: None,
    })
    .unwrap()
}

/// A node that listens, and where.
fn listening(terms: NodeConfig) -> (LinkNode, Address) {
    let listening = Listening::bind(&"127.0.0.1:0".parse().unwrap()).unwrap();
    let address = listening.address().clone();
    (node(terms, vec![listening]), address)
}

async fn dialled(address: &Address, terms: &NodeConfig) -> Result<Established, EstablishError> {
    let socket: Socket = address.connect().await?;
    dial(socket, terms, Some("ocean".to_owned())).await
}

/// A process has one session. One that dials again and again loses its older ones, and others find room.
#[test]
fn a_process_has_few_sessions_at_once() {
    run(async {
        let site = Site::new();
        let (owner, address) = listening(peer(&site, "ocean"));
        let crowd = peer(&site, "crowd");
        let mut running = tokio::task::JoinSet::new();
        for _ in 0..20 {
            let connection = dialled(&address, &crowd).await.unwrap().connection;
            running.spawn(async move { connection.run(|_| ()).await });
        }
        for _ in 0..16 {
            soon("the end of an older session", running.join_next()).await;
        }
        let few = async {
            while owner.status().sessions.len() != 4 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        soon("four sessions", few).await;
        owner
            .offer("news", Protection::Plain, [1; 16], [2; 32])
            .unwrap();
        owner.add_handler("news", "note").unwrap();
        let startpoint = owner
            .startpoint("news", false, vec![Caveat::holder("*").unwrap()])
            .unwrap();
        let other = node(peer(&site, "other"), Vec::new());
        let binding = other.bind(startpoint);
        let asked = other.request(binding, "note", MessageContents::default());
        asked.unwrap();
        let called = tokio::task::spawn_blocking(move || {
            let call = owner.take_call("news", Duration::from_secs(10));
            drop(other);
            owner.close();
            call.is_some()
        });
        assert!(called.await.unwrap());
        while running.join_next().await.is_some() {}
    });
}

/// Its links would wait for another session, and there will be none.
#[test]
fn a_node_that_closes_takes_nobody_in() {
    run(async {
        let site = Site::new();
        let (owner, address) = listening(peer(&site, "ocean"));
        let guest = peer(&site, "guest");
        // It doesn't read that the node closes, which waits for it therefore.
        let slow = dialled(&address, &guest).await.unwrap();
        let owner = Arc::new(owner);
        let closing = owner.clone();
        let closed = tokio::task::spawn_blocking(move || closing.close());
        let begun = async {
            while owner
                .look_up(question(), [3; 16], [4; 32])
                .map(|pending| owner.end_lookup(&pending))
                .is_ok()
            {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        soon("the node's closing", begun).await;
        let late = dialled(&address, &peer(&site, "late")).await;
        assert!(late.is_err(), "it was welcomed");
        closed.await.unwrap();
        drop(slow);
    });
}

fn question() -> LookupQuestion {
    LookupQuestion {
        node: exoskel_identity::Identity::new(Role::Peer, "ocean").unwrap(),
        hints: Vec::new(),
        is_by_hints: false,
        endpoint: "any".to_owned(),
    }
}
