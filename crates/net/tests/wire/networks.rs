//! Networks for the tests of gateways: one authority, gateways that run, nodes that listen or wait for calls.

use std::cell::RefCell;
use std::fs;
use std::future::Future;
use std::rc::Rc;
use std::time::Duration;

use exoskel_identity::{Credential, Role};
use exoskel_link::handshake::{NodeConfig, ProcessNumber, Refuse};
use exoskel_link::keys::KeyStore;
use exoskel_link::policy::PlaceProof;
use exoskel_link::{Limits, Protection, Protections};
use exoskel_net::address::Address;
use exoskel_net::establish::{dial, welcome};
use exoskel_net::gateway::service::{Gateway, GatewaySettings, TunnelPatience};
use exoskel_net::gateway::{
    GatewayError, GatewayLimits, GatewayProblem, Registration, connect_through,
};
use exoskel_net::listening::Listening;
use exoskel_net::pki::{AuthorityDirectory, write_credential};
use exoskel_net::socket::Socket;
use exoskel_net::sources::{NodeSources, SessionSettings};
use exoskel_trust::{Document, PolicyFile, Sources};
use tokio::net::TcpListener;
use tokio::sync::Notify;
use tokio::task::{LocalSet, spawn_local};

use super::folder::Folder;
use super::{End, anybody, part, soon, terms, unix_now, with_policy};

pub(crate) const DAY: Duration = Duration::from_secs(86_400);

/// Both ends' policy: as trusting as one can be.
pub(crate) const TRUSTING: &str = r#"
[domain.here]
addresses = ["127.0.0.0/8"]
names = ["*"]
results = "pickle"

[[rule]]
from = "here"
to = "here"
protection = "plain"

[[rule]]
from = "any"
to = "any"
protection = "integrity"
"#;

pub(crate) const EVERYBODY: &str = "[[allow.tunnel]]\nfrom = \"*\"\nto = \"*\"\n";

/// Runs a test of gateways, whose tasks end with it.
pub(crate) fn run(test: impl Future<Output = ()>) {
    super::run(async {
        LocalSet::new().run_until(test).await;
    });
}

/// One authority, and the files of its gateways.
pub(crate) struct Networks {
    pub(crate) folder: Folder,
    pub(crate) authority: AuthorityDirectory,
}

/// A gateway that runs.
pub(crate) struct Running {
    pub(crate) name: String,
    pub(crate) address: Address,
    pub(crate) audit: Rc<Audit>,
    pub(crate) policy: std::path::PathBuf,
    pub(crate) site: std::path::PathBuf,
}

#[derive(Default)]
pub(crate) struct Audit {
    pub(crate) lines: RefCell<Vec<String>>,
    pub(crate) more: Notify,
}

impl Networks {
    pub(crate) fn new() -> Self {
        let folder = Folder::new();
        let authority = AuthorityDirectory::initialise(folder.0.join("ca"), unix_now()).unwrap();
        Self { folder, authority }
    }

    pub(crate) fn credential(&self, role: Role, name: &str) -> Credential {
        let issued = self.authority.issue(role, name, 30 * DAY, unix_now());
        issued.unwrap()
    }

    /// A node that dials, and one that is dialled.
    pub(crate) fn node(&self, role: Role, name: &str) -> NodeConfig {
        let roles = [Role::Manager, Role::Worker];
        with_policy(terms(self.credential(role, name), &roles), TRUSTING)
    }

    pub(crate) fn manager(&self) -> NodeConfig {
        self.node(Role::Manager, "head")
    }

    pub(crate) fn worker(&self, name: &str) -> NodeConfig {
        self.node(Role::Worker, name)
    }

    /// Writes a credential where a process of the test finds it.
    pub(crate) fn write(&self, role: Role, name: &str) {
        let issued = self.credential(role, name);
        write_credential(self.folder.0.join(format!("{name}.pem")), &issued).unwrap();
    }

    pub(crate) fn settings(&self, name: &str, policy: &str, site: &str) -> GatewaySettings {
        let file = |ending: &str| self.folder.0.join(format!("{name}.{ending}"));
        self.write(Role::Gateway, name);
        fs::write(file("policy"), policy).unwrap();
        fs::write(file("site"), site).unwrap();
        Self::settings_in(&self.folder.0, name)
    }

    /// Those of a gateway whose files are in this folder.
    pub(crate) fn settings_in(folder: &std::path::Path, name: &str) -> GatewaySettings {
        let file = |ending: &str| folder.join(format!("{name}.{ending}"));
        GatewaySettings {
            sources: NodeSources {
                files: Sources {
                    credential: Document::File(file("pem")),
                    key: None,
                    holder: None,
                    revocation_list: None,
                    trust: None,
                    policy: Some(PolicyFile::new(Document::File(file("policy")))),
                },
                settings: SessionSettings {
                    shared_memory: false,
                    asks_for_each_link: false,
                    peer_roles: Vec::new(),
                    minimum: Protection::Plain,
                    limits: Limits::default(),
                    dead_after: Duration::from_secs(5),
                    handshake_time: Duration::from_secs(5),
                    versions: Vec::new(),
                    same_versions: Vec::new(),
                    properties: Vec::new(),
                    keys: KeyStore::in_ordinary_memory(8),
                    job: 0,
                    process: ProcessNumber::new([5; 16]),
                },
                role: Role::Gateway,
            },
            site: Some(file("site")),
            limits: GatewayLimits::default(),
            patience: TunnelPatience {
                idle: Duration::from_secs(10),
                still: Duration::from_secs(3600),
            },
        }
    }

    /// Starts a gateway that connects everybody with everybody whom the site file has.
    pub(crate) fn gateway(&self, name: &str, site: &str) -> Running {
        self.start(name, self.settings(name, EVERYBODY, site))
    }

    pub(crate) fn start(&self, name: &str, settings: GatewaySettings) -> Running {
        let listening = Listening::bind(&"127.0.0.1:0".parse().unwrap()).unwrap();
        self.start_at(name, settings, listening)
    }

    pub(crate) fn start_at(
        &self,
        name: &str,
        settings: GatewaySettings,
        listening: Listening,
    ) -> Running {
        let address = listening.address().clone();
        let audit = Rc::new(Audit::default());
        let lines = audit.clone();
        let write = move |line: String| {
            lines.lines.borrow_mut().push(line);
            lines.more.notify_waiters();
        };
        let gateway = Gateway::new(listening, settings, Box::new(write)).unwrap();
        assert_eq!(gateway.name(), name);
        spawn_local(gateway.serve());
        Running {
            name: name.to_owned(),
            address,
            audit,
            policy: self.folder.0.join(format!("{name}.policy")),
            site: self.folder.0.join(format!("{name}.site")),
        }
    }
}

impl Running {
    pub(crate) async fn connect(
        &self,
        node: &str,
        config: &NodeConfig,
    ) -> Result<Socket, GatewayError> {
        self.connect_to(node, None, config).await
    }

    pub(crate) async fn connect_to(
        &self,
        node: &str,
        process: Option<ProcessNumber>,
        config: &NodeConfig,
    ) -> Result<Socket, GatewayError> {
        let connected = connect_through(&self.address, &self.name, node, process, config);
        soon("the gateway's answer", connected).await
    }

    /// Why it says no.
    pub(crate) async fn refusal(&self, node: &str, config: &NodeConfig) -> Refuse {
        match self.connect(node, config).await {
            Err(GatewayError {
                problem: GatewayProblem::Refused(refuse),
                ..
            }) => refuse,
            Err(other) => panic!("expected a refusal, got {other}"),
            Ok(_) => panic!("expected a refusal"),
        }
    }

    /// The audit line that has all these words, as soon as there is one.
    pub(crate) async fn line(&self, words: &[&str]) -> String {
        let found = async {
            loop {
                let more = self.audit.more.notified();
                let has_all = |line: &&String| words.iter().all(|word| line.contains(word));
                if let Some(line) = self.audit.lines.borrow().iter().find(has_all) {
                    return line.clone();
                }
                more.await;
            }
        };
        tokio::time::timeout(Duration::from_secs(10), found)
            .await
            .unwrap_or_else(|_| {
                panic!("no line with {words:?} in {:#?}", self.audit.lines.borrow())
            })
    }
}

/// A node that listens.
pub(crate) struct Target {
    pub(crate) listener: TcpListener,
    pub(crate) config: NodeConfig,
}

impl Target {
    pub(crate) async fn new(config: NodeConfig) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        Self { listener, config }
    }

    pub(crate) fn address(&self) -> String {
        self.listener.local_addr().unwrap().to_string()
    }

    /// A site file that says where it is.
    pub(crate) fn site(&self) -> String {
        at(&self.config.credential.identity().name, &self.address())
    }

    pub(crate) async fn accept(&self) -> Socket {
        Socket::tcp(self.listener.accept().await.unwrap().0).unwrap()
    }
}

pub(crate) fn at(name: &str, address: &str) -> String {
    format!("[node]\n\"{name}\" = \"tcp://{address}\"\n")
}

/// Both ends shake hands over a tunnel; neither may take the other for near.
pub(crate) async fn meet(
    client: Socket,
    server: Socket,
    client_config: &NodeConfig,
    server_config: &NodeConfig,
) -> (End, End) {
    let name = server_config.credential.identity().name;
    let dialled = dial(client, client_config, Some(name));
    let welcomed = welcome(server, server_config, anybody);
    let (client, server) = tokio::join!(dialled, welcomed);
    let (client, server) = (client.unwrap(), server.unwrap());
    for end in [&client, &server] {
        assert_eq!(end.proof, PlaceProof::Unproven);
        assert_eq!(end.protections, Protections::all(Protection::Encrypted));
        assert_eq!(end.domain, None);
        assert!(!end.trusted_results);
    }
    (End::serve(client), End::serve(server))
}

/// Large messages both ways at once, and an end in order.
pub(crate) async fn talk(mut client: End, mut server: End) {
    let bulk: Vec<u8> = (0..3_000_000_u32).map(|number| number as u8).collect();
    let (to_server, to_client) = (client.open(), server.open());
    client.post(to_server, b"question", &bulk).unwrap();
    server.post(to_client, b"answer", &bulk).unwrap();
    let (asked, answered) = tokio::join!(server.message(), client.message());
    assert_eq!((asked.0.as_slice(), &asked.1), (&b"question"[..], &bulk));
    assert_eq!(
        (answered.0.as_slice(), &answered.1),
        (&b"answer"[..], &bulk)
    );
    part(client, server).await;
}

/// Registers, and gives the sockets of those who call.
pub(crate) async fn hidden(
    gate: &Running,
    config: &NodeConfig,
) -> tokio::sync::mpsc::UnboundedReceiver<Socket> {
    let registered = Registration::begin(&gate.address, &gate.name, config).await;
    let (sender, sockets) = tokio::sync::mpsc::unbounded_channel();
    let serve = registered.unwrap().serve(move |call| {
        assert_eq!(call.asked_by().to_string(), "manager head");
        let sender = sender.clone();
        spawn_local(async move { drop(sender.send(call.answer().await.unwrap())) });
    });
    spawn_local(serve);
    let name = config.credential.identity().to_string();
    let process = format!("process {}", config.process);
    gate.line(&["registered", &name, &process]).await;
    sockets
}
