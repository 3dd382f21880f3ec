//! Gateways: who is connected with whom, what both ends know of it, and what a gateway or its users can do wrong.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod wire;

use std::fmt::Write as _;
use std::fs;
use std::net::SocketAddr;
use std::time::Duration;

use exoskel_identity::{Credential, Identity, Role};
use exoskel_link::handshake::{
    Answer, GatewayCall, Hello, MinimumProtections, PROTOCOL, Path, ProcessNumber, Purpose, Refuse,
    RefuseReason, Statement, Ticket,
};
use exoskel_link::{CipherSuite, Limits, Protection, Protections};
use exoskel_net::address::Address;
use exoskel_net::connection::Ended;
use exoskel_net::establish::{EstablishError, NodeConfig, dial, welcome};
use exoskel_net::gateway::service::{Gateway, GatewayStartError, TunnelPatience};
use exoskel_net::gateway::{GatewayError, GatewayProblem, Registration, connect_through};
use exoskel_net::links::{GatewayAddress, LinkNode, LinkNodeConfig};
use exoskel_net::listening::Listening;
use exoskel_net::socket::{Socket, SocketKind};
use exoskel_node::gateway::REGISTRATIONS_OF_PROCESS_MAX;
use socket2::{Domain, Type};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::spawn_local;

use wire::networks::{EVERYBODY, Networks, Running, Target, at, hidden, meet, run, talk};
use wire::raw::RawClient;
use wire::{End, anybody, part, soon, terms};

#[test]
fn a_node_is_reached_by_its_address() {
    run(async {
        let networks = Networks::new();
        let target = Target::new(networks.worker("lab1")).await;
        let gate = networks.gateway("gate", &target.site());
        let manager = networks.manager();
        let (client, server) = tokio::join!(gate.connect("lab1", &manager), target.accept());
        let (client, server) = meet(client.unwrap(), server, &manager, &target.config).await;
        assert_eq!(client.connection.transport().kind(), "gateway");
        talk(client, server).await;
        let accepted = gate.line(&["accepted tunnel"]).await;
        assert!(
            accepted.contains("manager head at 127.0.0.1:"),
            "{accepted}"
        );
        assert!(accepted.contains("to lab1 at 127.0.0.1:"), "{accepted}");
        assert!(
            accepted.contains("by the rule at line 1 of the policy"),
            "{accepted}"
        );
        let ended = gate.line(&["ended tunnel", "manager head to lab1"]).await;
        assert!(ended.ends_with("both ends are done"), "{ended}");
        assert!(!ended.contains(" 0 bytes"), "{ended}");
    });
}

#[test]
fn a_node_that_nobody_can_dial_is_called() {
    run(async {
        let networks = Networks::new();
        let gate = networks.gateway("gate", "");
        let (manager, worker) = (networks.manager(), networks.worker("lab1"));
        let mut calls = hidden(&gate, &worker).await;
        for _ in 0..2 {
            let (client, server) = tokio::join!(gate.connect("lab1", &manager), calls.recv());
            let (client, server) = (client.unwrap(), server.unwrap());
            let (client, server) = meet(client, server, &manager, &worker).await;
            talk(client, server).await;
        }
        gate.line(&["accepted tunnel", "to lab1 that was called"])
            .await;
    });
}

#[test]
fn two_gateways_are_one_way() {
    run(async {
        let networks = Networks::new();
        let (manager, worker) = (networks.manager(), networks.worker("lab1"));
        let far = networks.gateway("far", "");
        let site = format!(
            "[subnet.cloud]\nnames = \"lab*\"\ngateways = [{{ name = \"far\", address = \"{}\" }}]\n",
            far.address
        );
        let near = networks.gateway("near", &site);
        let mut calls = hidden(&far, &worker).await;
        let (client, server) = tokio::join!(near.connect("lab1", &manager), calls.recv());
        let (client, server) = meet(client.unwrap(), server.unwrap(), &manager, &worker).await;
        talk(client, server).await;
        near.line(&[
            "accepted tunnel",
            "manager head",
            "to lab1 through gateway far",
        ])
        .await;
        far.line(&[
            "accepted tunnel",
            "gateway near",
            "(for manager head, as it says)",
        ])
        .await;
        far.line(&["ended tunnel", "both ends are done"]).await;
    });
}

#[test]
fn gateways_that_send_each_other_round_in_circles_stop() {
    run(async {
        let networks = Networks::new();
        let listening = || Listening::bind(&"127.0.0.1:0".parse().unwrap()).unwrap();
        let (first, second) = (listening(), listening());
        let site = |name: &str, place: &Listening| {
            format!(
                "[subnet.nowhere]\nnames = \"lab*\"\ngateways = [{{ name = \"{name}\", address = \"{}\" }}]\n",
                place.address()
            )
        };
        // Each takes the other for the gateway of that subnet.
        let sites = [site("second", &second), site("first", &first)];
        let first = networks.start_at(
            "first",
            networks.settings("first", EVERYBODY, &sites[0]),
            first,
        );
        let second = networks.start_at(
            "second",
            networks.settings("second", EVERYBODY, &sites[1]),
            second,
        );
        let refuse = first.refusal("lab1", &networks.manager()).await;
        assert_eq!(refuse.reason, RefuseReason::Unreachable);
        second
            .line(&["refused a tunnel to lab1", "of gateway first"])
            .await;
        assert_eq!(second.audit.lines.borrow().len(), 1);
    });
}

#[test]
fn the_policy_says_who_may_reach_whom() {
    run(async {
        let networks = Networks::new();
        let target = Target::new(networks.worker("lab1")).await;
        let policy = "\n[[allow.tunnel]]\nfrom = \"head\"\nto = \"lab*\"\n[deny]\nmanagers = [\"mallory\"]\n";
        let settings = networks.settings("gate", policy, &target.site());
        let gate = networks.start("gate", settings);
        let refuse = gate.refusal("lab1", &networks.worker("lab2")).await;
        assert_eq!(refuse.reason, RefuseReason::NotAllowed);
        let said = refuse.text.sentence().to_string();
        assert!(said.contains("the one at line 2 asks for 'head'"), "{said}");
        gate.line(&["refused a tunnel to lab1 of worker lab2", "line 2"])
            .await;
        let refuse = gate.refusal("gpu3", &networks.manager()).await;
        assert!(refuse.text.sentence().to_string().contains("leads there"));
        let refuse = gate
            .refusal("lab1", &networks.node(Role::Manager, "mallory"))
            .await;
        assert!(
            refuse
                .text
                .sentence()
                .to_string()
                .contains("[deny] managers")
        );
        let manager = networks.manager();
        let (client, _) = tokio::join!(gate.connect("lab1", &manager), target.accept());
        client.unwrap();
    });
}

/// Without a single rule about tunnels, a gateway connects nobody.
#[test]
fn nothing_said_is_nothing_allowed() {
    run(async {
        let networks = Networks::new();
        let target = Target::new(networks.worker("lab1")).await;
        let gate = networks.start(
            "gate",
            networks.settings("gate", "[allow]\n", &target.site()),
        );
        let refuse = gate.refusal("lab1", &networks.manager()).await;
        assert_eq!(refuse.reason, RefuseReason::NotAllowed);
    });
}

/// An admitted node wants the gateway to dial for it: addresses, names of hosts, the gateway itself.
#[test]
fn a_gateway_is_no_open_proxy() {
    run(async {
        let networks = Networks::new();
        let bystander = Target::new(networks.worker("bystander")).await;
        let gate = networks.gateway("gate", "");
        let manager = networks.manager();
        for node in [&bystander.address(), "localhost", "127.0.0.1", "gate"] {
            let refuse = gate.refusal(node, &manager).await;
            assert_eq!(refuse.reason, RefuseReason::Unreachable, "{node}");
        }
        let said = gate
            .refusal("localhost", &manager)
            .await
            .text
            .sentence()
            .to_string();
        assert!(
            said.contains("knows no way to localhost: it is not registered there"),
            "{said}"
        );
        let error = gate.connect("a b", &manager).await.unwrap_err();
        assert!(matches!(error.problem, GatewayProblem::Name(_)), "{error}");
        // Nobody was dialled: the first who comes is the one that dials now.
        let own = TcpStream::connect(bystander.address()).await.unwrap();
        let (_, from) = bystander.listener.accept().await.unwrap();
        assert_eq!(from, own.local_addr().unwrap());
    });
}

#[test]
fn each_way_that_was_tried_is_named() {
    run(async {
        let networks = Networks::new();
        // Ports that are taken, so that nobody else can begin to listen there.
        let closed = [(); 3].map(|()| {
            let socket = socket2::Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
            let any_port = SocketAddr::from(([127, 0, 0, 1], 0));
            socket.bind(&any_port.into()).unwrap();
            socket
        });
        let [one, other, far] = closed.each_ref().map(|socket| {
            let address = socket.local_addr().unwrap();
            address.as_socket().unwrap()
        });
        let mut site = format!("[node]\nlab1 = [\"{one}\", \"{other}\"]\n");
        write!(
            site,
            "[subnet.here]\nnames = \"lab*\"\ngateways = [{{ name = \"gate\", address = \"{far}\" }}, {{ name = \"far\", address = \"{far}\" }}]\n"
        )
        .unwrap();
        let gate = networks.gateway("gate", &site);
        let refuse = gate.refusal("lab1", &networks.manager()).await;
        let said = refuse.text.sentence().to_string();
        for expected in [
            format!("dialled {one}: Connection refused"),
            format!("dialled {other}: Connection refused"),
            format!("gateway far at {far}: can't connect: Connection refused"),
        ] {
            assert!(said.contains(&expected), "{said}");
        }
        gate.line(&["refused a tunnel to lab1", "Connection refused"])
            .await;
    });
}

/// Who connects to a gateway that is another one, or none.
#[test]
fn a_gateway_has_to_prove_that_it_is_one() {
    run(async {
        let networks = Networks::new();
        let manager = networks.manager();
        let gate = networks.gateway("gate", "");
        let error = connect_through(&gate.address, "other", "lab1", None, &manager).await;
        let said = error.unwrap_err().to_string();
        assert!(
            said.contains("gateway other at") && said.contains("other"),
            "{said}"
        );
        // A worker in its place, whom the authority knows.
        let worker = Target::new(networks.worker("gate")).await;
        let impostor = worker.address().parse().unwrap();
        let connected = connect_through(&impostor, "gate", "lab1", None, &manager);
        let (connected, welcomed) = tokio::join!(connected, async {
            welcome(worker.accept().await, &worker.config, anybody).await
        });
        assert!(matches!(
            connected.unwrap_err().problem,
            GatewayProblem::Establish(EstablishError::Tls(_))
        ));
        assert!(welcomed.is_err());
    });
}

/// A node that is no gateway takes neither tunnels nor registrations, and a gateway no sessions.
#[test]
fn nobody_is_taken_for_what_it_is_not() {
    run(async {
        let networks = Networks::new();
        let gate = networks.gateway("gate", "");
        let manager = networks.manager();
        let mut config = manager.clone();
        config.peer_roles = vec![Role::Gateway];
        config.same_versions = Vec::new();
        let socket = gate.address.connect().await.unwrap();
        let error = dial(socket, &config, Some("gate".to_owned()))
            .await
            .err()
            .unwrap();
        assert!(error.to_string().contains("this is a gateway"), "{error}");

        let worker = Target::new(networks.worker("lab1")).await;
        let credential = networks.credential(Role::Manager, "head");
        let stream = TcpStream::connect(worker.address()).await.unwrap();
        let client = async {
            let mut raw = RawClient::connect(stream, &credential, Role::Worker).await;
            let hello = hello(&credential, Purpose::Register);
            raw.send(&hello).await;
            answer(&raw.receive().await.unwrap())
        };
        let welcomed = async { welcome(worker.accept().await, &worker.config, anybody).await };
        let (said, welcomed) = tokio::join!(client, welcomed);
        assert_eq!(said.unwrap_err().reason, RefuseReason::NotAllowed);
        assert!(wire::text(welcomed).contains("no gateway"));
    });
}

/// Another process with the same certificate.
fn process_of(config: &NodeConfig, number: u8) -> NodeConfig {
    NodeConfig {
        process: ProcessNumber::new([number; 16]),
        ..config.clone()
    }
}

/// Aim: two hidden processes have one certificate. Each is reached by its own number, whichever has registered last, and nobody else is
/// when it has left.
#[test]
fn processes_of_one_certificate_are_reached_each_by_its_number() {
    run(async {
        let networks = Networks::new();
        let far = networks.gateway("far", "");
        let site = format!(
            "[subnet.cloud]\nnames = \"lab*\"\ngateways = [{{ name = \"far\", address = \"{}\" }}]\n",
            far.address
        );
        let near = networks.gateway("near", &site);
        let manager = networks.manager();
        let worker = networks.worker("lab1");
        let processes = [1, 2].map(|number| process_of(&worker, number));
        let mut calls = Vec::new();
        for config in &processes {
            calls.push(hidden(&far, config).await);
        }
        for gate in [&far, &near] {
            for (config, calls) in processes.iter().zip(&mut calls) {
                let asked = gate.connect_to("lab1", Some(config.process), &manager);
                let (client, server) = tokio::join!(asked, calls.recv());
                let (client, server) = (client.unwrap(), server.unwrap());
                let (client, server) = meet(client, server, &manager, config).await;
                talk(client, server).await;
            }
        }
        let number = ProcessNumber::new([3; 16]);
        for gate in [&far, &near] {
            let refused = gate.connect_to("lab1", Some(number), &manager).await;
            let refuse = refusal(refused);
            assert_eq!(refuse.reason, RefuseReason::OtherProcess);
            let said = refuse.text.sentence().to_string();
            assert!(
                said.contains(&format!("to process {number} of lab1: ")),
                "{said}"
            );
            assert!(
                said.contains("it is not registered there (2 other processes of lab1 are)"),
                "{said}"
            );
        }
        // Of another node's process, nothing is said of whose number it is.
        let refused = far.connect_to("lab2", Some(number), &manager).await;
        assert_eq!(refusal(refused).reason, RefuseReason::Unreachable);
    });
}

/// Aim: a node that claims a number answers no call of the process whose it is, and gets no call under another name.
#[test]
fn the_number_of_a_process_opens_nothing_to_others() {
    run(async {
        let networks = Networks::new();
        let gate = networks.gateway("gate", "");
        let [lab1, lab2] = ["lab1", "lab2"].map(|name| networks.credential(Role::Worker, name));
        let manager = networks.manager();
        // The number of [`hello`].
        let number = ProcessNumber::new([5; 16]);
        let (_thief, answer) = say(&gate, &lab2, Purpose::Register).await;
        answer.unwrap();
        gate.line(&["registered worker lab2"]).await;
        let refused = gate.connect_to("lab1", Some(number), &manager).await;
        assert_eq!(refusal(refused).reason, RefuseReason::Unreachable);
        let (mut waiting, answer) = say(&gate, &lab1, Purpose::Register).await;
        answer.unwrap();
        gate.line(&["registered worker lab1"]).await;
        let asked = gate.connect_to("lab1", Some(number), &manager);
        let (connected, ()) = tokio::join!(asked, async {
            let call = soon("a call", waiting.receive()).await.unwrap();
            let ticket = GatewayCall::read(&call).unwrap().ticket;
            let callback = Purpose::Callback { ticket };
            let (_, stolen) = say(&gate, &lab2, callback.clone()).await;
            assert_eq!(stolen.unwrap_err().reason, RefuseReason::NotAllowed);
            // It has registered with one number, and comes with another one.
            let mut other = Hello::read(&hello(&lab1, callback.clone())).unwrap();
            other.statement.process = ProcessNumber::new([6; 16]);
            let (_, changed) = say_hello(&gate, &lab1, &other.encode().unwrap()).await;
            assert_eq!(changed.unwrap_err().reason, RefuseReason::NotAllowed);
            let (_, own) = say(&gate, &lab1, callback).await;
            own.unwrap();
        });
        connected.unwrap();
    });
}

/// Aim: who registers again and again has a few places, and those that it had before end.
#[test]
fn a_process_that_registers_again_ends_its_older_registrations() {
    run(async {
        let networks = Networks::new();
        let gate = networks.gateway("gate", "");
        let worker = networks.worker("lab1");
        let mut held = Vec::new();
        for _ in 0..=REGISTRATIONS_OF_PROCESS_MAX {
            held.push(
                Registration::begin(&gate.address, "gate", &worker)
                    .await
                    .unwrap(),
            );
        }
        gate.line(&["not registered any more: the same process has registered again"])
            .await;
        soon("the end of the oldest", held.remove(0).serve(|_| ())).await;
        drop(held);
    });
}

fn refusal(connected: Result<Socket, GatewayError>) -> Refuse {
    match connected.map(drop) {
        Err(GatewayError {
            problem: GatewayProblem::Refused(refuse),
            ..
        }) => refuse,
        other => panic!("expected a refusal, got {other:?}"),
    }
}

/// The bare stream of a connection that leads through a gateway.
fn relayed(socket: Socket) -> TcpStream {
    assert_eq!(socket.kind(), SocketKind::Relayed);
    TcpStream::from_std(socket.into_descriptor().into()).unwrap()
}

fn hello(credential: &Credential, purpose: Purpose) -> Vec<u8> {
    let all = Protections::all(Protection::Plain);
    let hello = Hello {
        protocol: PROTOCOL,
        statement: Statement {
            identity: credential.identity(),
            limits: Limits::default(),
            dead_after: Duration::from_secs(5),
            versions: vec![("python".into(), "3.11".into())],
            path: Path::Relayed,
            policy_generation: 0,
            job: 0,
            process: ProcessNumber::new([5; 16]),
            properties: Vec::new(),
        },
        minimum: MinimumProtections {
            proven: all,
            unproven: all,
        },
        ciphers: CipherSuite::ALL.to_vec(),
        purpose,
    };
    hello.encode().unwrap()
}

fn answer(bytes: &[u8]) -> Result<(), Refuse> {
    match Answer::read(bytes).unwrap() {
        Answer::Accept(_) => Ok(()),
        Answer::Refuse(refuse) => Err(refuse),
    }
}

/// Somebody who says what we want it to say.
async fn say(
    gate: &Running,
    credential: &Credential,
    purpose: Purpose,
) -> (RawClient, Result<(), Refuse>) {
    say_hello(gate, credential, &hello(credential, purpose)).await
}

async fn say_hello(
    gate: &Running,
    credential: &Credential,
    hello: &[u8],
) -> (RawClient, Result<(), Refuse>) {
    let Address::Tcp(place) = &gate.address else {
        panic!("it listens at TCP");
    };
    let stream = TcpStream::connect(place).await.unwrap();
    let mut raw = RawClient::connect(stream, credential, Role::Gateway).await;
    raw.send(hello).await;
    let said = soon("an answer", raw.receive()).await.unwrap();
    (raw, answer(&said))
}

/// A ticket opens one tunnel, once, for the node that was called.
#[test]
fn stolen_guessed_and_used_tickets_are_refused() {
    run(async {
        let networks = Networks::new();
        let gate = networks.gateway("gate", "");
        let manager = networks.manager();
        let [lab1, lab2] = ["lab1", "lab2"].map(|name| networks.credential(Role::Worker, name));
        let (mut waiting, answer) = say(&gate, &lab1, Purpose::Register).await;
        answer.unwrap();
        gate.line(&["registered worker lab1"]).await;
        let (connected, ()) = tokio::join!(gate.connect("lab1", &manager), async {
            let call = soon("a call", waiting.receive()).await.unwrap();
            let GatewayCall { ticket, asked_by } = GatewayCall::read(&call).unwrap();
            assert_eq!(asked_by.to_string(), "manager head");
            let callback = |ticket| Purpose::Callback { ticket };
            let (_, stolen) = say(&gate, &lab2, callback(ticket)).await;
            let (_, guessed) = say(&gate, &lab1, callback(Ticket([0; 16]))).await;
            let (mut raw, used) = say(&gate, &lab1, callback(ticket)).await;
            used.unwrap();
            let (_, replayed) = say(&gate, &lab1, callback(ticket)).await;
            let texts = [stolen, guessed, replayed].map(|refused| {
                let refuse = refused.unwrap_err();
                assert_eq!(refuse.reason, RefuseReason::NotAllowed);
                refuse.text.sentence().to_string()
            });
            // Who tries learns nothing from the answer.
            assert!(texts.iter().all(|text| *text == texts[0]), "{texts:?}");
            raw.stream.write_all(b"it is me").await.unwrap();
        });
        let mut got = [0; 8];
        let mut stream = relayed(connected.unwrap());
        stream.read_exact(&mut got).await.unwrap();
        assert_eq!(&got, b"it is me");
        gate.line(&["refused a callback of worker lab2"]).await;
    });
}

#[test]
fn who_asks_for_too_many_tunnels_waits_and_others_do_not() {
    run(async {
        let networks = Networks::new();
        let target = Target::new(networks.worker("lab1")).await;
        let mut settings = networks.settings("gate", EVERYBODY, &target.site());
        settings.limits.tunnels_of_node_max = 2;
        settings.limits.registrations_of_node_max = 1;
        let gate = networks.start("gate", settings);
        let manager = networks.manager();
        let mut held = Vec::new();
        for _ in 0..2 {
            let (client, server) = tokio::join!(gate.connect("lab1", &manager), target.accept());
            held.push((client.unwrap(), server));
        }
        let refuse = gate.refusal("lab1", &manager).await;
        assert_eq!(refuse.reason, RefuseReason::Busy);
        assert!(
            refuse
                .text
                .sentence()
                .to_string()
                .contains("2 tunnels of this node")
        );
        let other = networks.worker("lab2");
        let (client, _) = tokio::join!(gate.connect("lab1", &other), target.accept());
        client.unwrap();
        // One that ends makes room.
        held.pop();
        gate.line(&["ended tunnel", "manager head"]).await;
        let (client, _) = tokio::join!(gate.connect("lab1", &manager), target.accept());
        client.unwrap();
        // Registrations, too.
        let _first = Registration::begin(&gate.address, "gate", &other).await;
        let sibling = process_of(&other, 6);
        let second = Registration::begin(&gate.address, "gate", &sibling).await;
        let error = second.err().unwrap();
        assert!(
            error.to_string().contains("1 registrations of this node"),
            "{error}"
        );
    });
}

#[test]
fn no_node_gets_more_than_its_share_of_a_small_gateway() {
    run(async {
        let networks = Networks::new();
        let target = Target::new(networks.worker("lab1")).await;
        let mut settings = networks.settings("gate", EVERYBODY, &target.site());
        settings.limits.tunnels_max = 4;
        let gate = networks.start("gate", settings);
        let manager = networks.manager();
        let (client, _server) = tokio::join!(gate.connect("lab1", &manager), target.accept());
        let _client = client.unwrap();
        let refuse = gate.refusal("lab1", &manager).await;
        let text = refuse.text.sentence().to_string();
        assert!(text.contains("1 tunnels of this node"), "{text}");
        let other = networks.worker("lab2");
        let (client, _) = tokio::join!(gate.connect("lab1", &other), target.accept());
        client.unwrap();
    });
}

/// Strangers that say nothing, or stop in the middle, keep nobody out, and are gone in time.
#[test]
fn slow_handshakes_keep_nobody_out() {
    run(async {
        let networks = Networks::new();
        let target = Target::new(networks.worker("lab1")).await;
        // Its handshakes have the usual time: honest ones come to their end among these.
        let gate = networks.gateway("gate", &target.site());
        let Address::Tcp(place) = &gate.address else {
            panic!("it listens at TCP");
        };
        let mut silent = Vec::new();
        for number in 0..200 {
            let mut stream = TcpStream::connect(place).await.unwrap();
            if number % 2 == 0 {
                // The beginning of a TLS record that never ends.
                stream.write_all(&[22, 3, 1, 1, 0, 1]).await.unwrap();
            }
            silent.push(stream);
        }
        // One that has proved who it is, and doesn't say what it wants.
        let credential = networks.credential(Role::Worker, "lab2");
        let stream = TcpStream::connect(place).await.unwrap();
        let mut mute = RawClient::connect(stream, &credential, Role::Gateway).await;
        let manager = networks.manager();
        let (client, server) = tokio::join!(gate.connect("lab1", &manager), target.accept());
        let (client, server) = meet(client.unwrap(), server, &manager, &target.config).await;
        part(client, server).await;
        assert!(
            soon("the end of the mute one", mute.receive())
                .await
                .is_err()
        );
    });
}

#[test]
fn a_tunnel_that_nobody_uses_is_cut() {
    run(async {
        let networks = Networks::new();
        let target = Target::new(networks.worker("lab1")).await;
        let mut settings = networks.settings("gate", EVERYBODY, &target.site());
        settings.patience.idle = Duration::from_millis(100);
        let gate = networks.start("gate", settings);
        let manager = networks.manager();
        let (client, mut server) = tokio::join!(gate.connect("lab1", &manager), async {
            target.listener.accept().await.unwrap().0
        });
        let _client = client.unwrap();
        let read = soon("the cut", server.read_u8()).await;
        assert!(read.is_err());
        gate.line(&["ended tunnel", "nobody said anything"]).await;
    });
}

/// Somebody who holds both ends could keep their descriptors for ever.
#[test]
fn a_tunnel_that_falls_still_is_cut() {
    run(async {
        let networks = Networks::new();
        let target = Target::new(networks.worker("lab1")).await;
        let mut settings = networks.settings("gate", EVERYBODY, &target.site());
        settings.patience = TunnelPatience {
            idle: Duration::from_millis(50),
            still: Duration::from_millis(200),
        };
        let gate = networks.start("gate", settings);
        let manager = networks.manager();
        let (client, mut server) = tokio::join!(gate.connect("lab1", &manager), async {
            let mut server = target.listener.accept().await.unwrap().0;
            server.write_all(b"here I am").await.unwrap();
            server
        });
        let mut client = relayed(client.unwrap());
        let mut got = [0; 9];
        client.read_exact(&mut got).await.unwrap();
        for end in [&mut client, &mut server] {
            assert!(soon("the cut", end.read_u8()).await.is_err());
        }
        gate.line(&[
            "ended tunnel",
            "9 back",
            "cut, as nothing has moved for 200ms",
        ])
        .await;
    });
}

/// One end says what it has to say and ends; the other one still answers.
#[test]
fn half_a_tunnel_goes_on() {
    run(async {
        let networks = Networks::new();
        let target = Target::new(networks.worker("lab1")).await;
        let gate = networks.gateway("gate", &target.site());
        let manager = networks.manager();
        let (client, server) = tokio::join!(gate.connect("lab1", &manager), async {
            target.listener.accept().await.unwrap().0
        });
        let (mut client, mut server) = (relayed(client.unwrap()), server);
        let much = vec![7; 2_000_000];
        let (_, heard) = tokio::join!(
            async {
                client.write_all(&much).await.unwrap();
                client.shutdown().await.unwrap();
            },
            async {
                let mut heard = Vec::new();
                server.read_to_end(&mut heard).await.unwrap();
                heard
            }
        );
        assert_eq!(heard, much);
        server.write_all(b"thank you").await.unwrap();
        drop(server);
        let mut answer = String::new();
        client.read_to_string(&mut answer).await.unwrap();
        assert_eq!(answer, "thank you");
        gate.line(&[
            "ended tunnel",
            "2000000 bytes there, 9 back",
            "both ends are done",
        ])
        .await;
    });
}

/// What somebody in a gateway's place does with the bytes to the server.
#[derive(Clone, Copy, Debug)]
enum Harm {
    Alter(usize),
    Cut(usize),
}

/// Stands between the gateway and the node, with all that a gateway can do; gives its address.
async fn evil(target: String, harm: Harm) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    spawn_local(async move {
        let (near, _) = listener.accept().await.unwrap();
        let far = TcpStream::connect(target).await.unwrap();
        let (mut near_read, mut near_write) = near.into_split();
        let (mut far_read, mut far_write) = far.into_split();
        let back = spawn_local(async move {
            let _ = tokio::io::copy(&mut far_read, &mut near_write).await;
        });
        let mut seen = 0;
        let mut buffer = vec![0; 4096];
        while let Ok(count @ 1..) = near_read.read(&mut buffer).await {
            match harm {
                Harm::Alter(at) if (seen..seen + count).contains(&at) => buffer[at - seen] ^= 1,
                Harm::Cut(at) if seen + count > at => break,
                _ => {}
            }
            seen += count;
            if far_write.write_all(&buffer[..count]).await.is_err() {
                break;
            }
        }
        back.abort();
    });
    address
}

#[test]
fn a_gateway_that_alters_or_cuts_is_found_out() {
    run(async {
        for harm in [
            Harm::Alter(20),
            Harm::Alter(1500),
            Harm::Alter(200_000),
            Harm::Cut(100),
            Harm::Cut(300_000),
        ] {
            let networks = Networks::new();
            let target = Target::new(networks.worker("lab1")).await;
            let relay = evil(target.address(), harm).await;
            let gate = networks.gateway("gate", &at("lab1", &relay));
            let manager = networks.manager();
            let (client, server) = tokio::join!(gate.connect("lab1", &manager), target.accept());
            let dialled = dial(client.unwrap(), &manager, Some("lab1".to_owned()));
            let welcomed = welcome(server, &target.config, anybody);
            let (client, server) = tokio::join!(dialled, welcomed);
            let (Ok(client), Ok(server)) = (client, server) else {
                assert!(
                    matches!(harm, Harm::Alter(..2000) | Harm::Cut(100)),
                    "{harm:?}"
                );
                continue;
            };
            let (client, server) = (End::serve(client), End::serve(server));
            let link = client.open();
            client.post(link, b"head", &vec![3; 1_000_000]).unwrap();
            let (ended, messages) = server.rest().await;
            assert_eq!(messages, [], "{harm:?}");
            assert!(
                !matches!(ended, Ended::Closed(exoskel_link::CloseReason::Finished)),
                "{harm:?}: {ended}"
            );
            drop(client.ended().await);
        }
    });
}

/// A gateway that leads to another node than the one that was asked for.
#[test]
fn a_gateway_that_swaps_nodes_is_found_out() {
    run(async {
        let networks = Networks::new();
        let other = Target::new(networks.worker("lab2")).await;
        let gate = networks.gateway("gate", &at("lab1", &other.address()));
        let manager = networks.manager();
        let (client, server) = tokio::join!(gate.connect("lab1", &manager), other.accept());
        let dialled = dial(client.unwrap(), &manager, Some("lab1".to_owned()));
        let (dialled, welcomed) = tokio::join!(dialled, welcome(server, &other.config, anybody));
        let said = wire::text(dialled);
        assert!(said.contains("lab2") && said.contains("lab1"), "{said}");
        assert!(welcomed.is_err());
    });
}

#[test]
fn rights_that_are_taken_back_end_tunnels_and_registrations() {
    run(async {
        let networks = Networks::new();
        let target = Target::new(networks.worker("lab1")).await;
        let gate = networks.gateway("gate", &target.site());
        let (manager, lab2) = (networks.manager(), networks.worker("lab2"));
        let registered = Registration::begin(&gate.address, "gate", &lab2)
            .await
            .unwrap();
        gate.line(&["registered worker lab2"]).await;
        let (client, server) = tokio::join!(gate.connect("lab1", &manager), target.accept());
        let (client, server) = meet(client.unwrap(), server, &manager, &target.config).await;
        let policy =
            "[[allow.tunnel]]\nfrom = \"else\"\nto = \"*\"\n[deny]\nworkers = [\"lab2\"]\n";
        fs::write(&gate.policy, policy).unwrap();
        let (ended, _) = server.rest().await;
        assert!(
            !matches!(ended, Ended::Closed(exoskel_link::CloseReason::Finished)),
            "{ended}"
        );
        drop(client.ended().await);
        gate.line(&[
            "ended tunnel",
            "cut: a tunnel to lab1 asked by head",
            "line 1",
        ])
        .await;
        soon("the registration's end", registered.serve(|_| ())).await;
        gate.line(&["lab2", "not registered any more", "[deny] workers"])
            .await;
    });
}

#[test]
fn a_site_file_is_read_again_and_a_bad_one_changes_nothing() {
    run(async {
        let networks = Networks::new();
        let target = Target::new(networks.worker("lab1")).await;
        let gate = networks.gateway("gate", "");
        let manager = networks.manager();
        fs::write(&gate.site, target.site()).unwrap();
        gate.line(&["gate.site has changed"]).await;
        fs::write(&gate.site, "[node]\nlab1 = 7\n").unwrap();
        gate.line(&["gate.site, line 2", "what was in force before stays"])
            .await;
        let (client, _) = tokio::join!(gate.connect("lab1", &manager), target.accept());
        client.unwrap();
        // At the start it is an error.
        let settings = networks.settings("other", EVERYBODY, "[node]\nlab1 = []\n");
        let listening = Listening::bind(&"127.0.0.1:0".parse().unwrap()).unwrap();
        let started = Gateway::new(listening, settings, Box::new(|_| ()));
        assert!(matches!(started, Err(GatewayStartError::Site(_))));
    });
}

/// The registered node is gone, and so is a registered one that doesn't dial back because it stands still.
#[test]
fn a_node_that_has_left_is_not_called() {
    run(async {
        let networks = Networks::new();
        let gate = networks.gateway("gate", "");
        let lab1 = networks.worker("lab1");
        let registered = Registration::begin(&gate.address, "gate", &lab1)
            .await
            .unwrap();
        gate.line(&["registered worker lab1"]).await;
        drop(registered);
        gate.line(&["lab1", "not registered any more: it has left"])
            .await;
        let refuse = gate.refusal("lab1", &networks.manager()).await;
        assert_eq!(refuse.reason, RefuseReason::Unreachable);
    });
}

/// Aim: who asks for tunnel after tunnel, and says nothing that ends in them, has a few places at the node that is called, and makes room
/// for itself there: others are answered.
#[test]
fn a_node_answers_others_while_one_holds_its_tunnels() {
    const ASKED: usize = 40;
    const ANSWERS_FOR_ONE: usize = 8;
    run(async {
        let networks = Networks::new();
        let gate = networks.gateway("gate", "");
        let mut terms = terms(networks.credential(Role::Peer, "ocean"), &[Role::Peer]);
        terms.asks_for_each_link = true;
        // No place becomes free by itself.
        terms.handshake_time = Duration::from_secs(600);
        let node = LinkNode::start(LinkNodeConfig {
            terms,
            renewal: None,
            listen: Vec::new(),
            gateways: vec![GatewayAddress {
                name: gate.name.clone(),
                address: gate.address.clone(),
            }],
            hints: Vec::new(),
            patience: Duration::ZERO,
            via: Vec::new(),
            dialler: None,
            status: None,
        })
        .unwrap();
        gate.line(&["registered peer ocean"]).await;
        let (one, other) = (networks.manager(), networks.node(Role::Manager, "other"));
        let mut held = Vec::new();
        for _ in 0..ASKED {
            let connected = gate.connect("ocean", &one).await;
            let mut stream = relayed(connected.unwrap());
            // The beginning of a TLS record that never ends.
            stream.write_all(&[22, 3, 1, 1, 0, 1]).await.unwrap();
            held.push(stream);
        }
        gate.connect("ocean", &other).await.unwrap();
        let made_room = |lines: Vec<String>| {
            let of_one = lines
                .iter()
                .filter(|line| line.contains("a call for manager head came to nothing"));
            of_one.count()
        };
        let mut count = 0;
        while count < ASKED - ANSWERS_FOR_ONE {
            count += made_room(node.take_audit());
            tokio::task::yield_now().await;
        }
        drop(held);
        let closed = tokio::task::spawn_blocking(move || node.close());
        closed.await.unwrap();
    });
}

/// Whoever asks on behalf of others only says so: the policy judges who proves itself.
#[test]
fn the_word_of_another_gateway_gives_no_right() {
    run(async {
        let networks = Networks::new();
        let target = Target::new(networks.worker("lab1")).await;
        let policy = "[[allow.tunnel]]\nfrom = \"head\"\nto = \"*\"\n";
        let gate = networks.start("gate", networks.settings("gate", policy, &target.site()));
        let credential = networks.credential(Role::Gateway, "far");
        let purpose = Purpose::Connect {
            node: "lab1".to_owned(),
            process: None,
            on_behalf_of: vec![Identity::new(Role::Manager, "head").unwrap()],
        };
        let (_, answer) = say(&gate, &credential, purpose.clone()).await;
        assert_eq!(answer.unwrap_err().reason, RefuseReason::NotAllowed);
        // Who is no gateway asks for itself: the node that is called would be told another name.
        let credential = networks.credential(Role::Manager, "head");
        let (_, answer) = say(&gate, &credential, purpose).await;
        assert_eq!(answer.unwrap_err().reason, RefuseReason::Malformed);
    });
}
