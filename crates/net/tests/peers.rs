//! Peers: programs that have links with others, of a private authority and of a grid. A role is no right.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod wire;

use std::sync::Arc;

use exoskel_identity::{
    Credential, GridSettings, GridVerifier, Identity, NameSpaces, Revocation, Role, TrustFile,
    TrustStore,
};
use exoskel_link::handshake::{
    Answer, Hello, MinimumProtections, NodeConfig, PROTOCOL, Path, ProcessNumber, RefuseReason,
    Statement,
};
use exoskel_link::policy::{PlaceProof, Policy};
use exoskel_link::{CipherSuite, Limits, Protection, Protections};
use exoskel_net::establish::welcome;
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DistinguishedName, DnType,
    ExtendedKeyUsagePurpose, IsCa, KeyPair, KeyUsagePurpose, SanType,
};

use wire::raw::{RawClient, stranger};
use wire::{Site, anybody, meet, run, soon, tcp, terms, text, unix_now, with_policy};

fn peer(site: &Site, name: &str) -> NodeConfig {
    terms(site.credential(Role::Peer, name), &[Role::Peer])
}

#[test]
fn two_peers_get_a_session() {
    run(async {
        let site = Site::new();
        let (ocean, plotter) = (peer(&site, "ocean"), peer(&site, "plotter"));
        let (client, server) = meet(tcp().await, &plotter, Some("ocean"), &ocean).await;
        assert_eq!(client.unwrap().peer.identity().to_string(), "peer ocean");
        assert_eq!(server.unwrap().peer.identity().to_string(), "peer plotter");
    });
}

/// Attack: a peer that would have code run, or be sent some.
#[test]
fn a_peer_is_neither_a_manager_nor_a_worker() {
    run(async {
        let site = Site::new();
        let mut to_worker = peer(&site, "plotter");
        to_worker.peer_roles = vec![Role::Worker];
        let (_, server) = meet(tcp().await, &to_worker, None, &site.worker("lab1")).await;
        let said = text(server);
        assert!(
            said.contains("peer plotter") && said.contains("expected role manager"),
            "{said}"
        );
        let mut as_worker = peer(&site, "plotter");
        as_worker.peer_roles = vec![Role::Manager];
        let (client, _) = meet(tcp().await, &site.manager(), None, &as_worker).await;
        assert!(text(client).contains("expected role worker"));
    });
}

#[test]
fn peers_come_in_by_their_own_list() {
    run(async {
        let site = Site::new();
        let ocean = with_policy(
            peer(&site, "ocean"),
            "[allow]\nmanagers = [\"plotter\"]\npeers = [\"atmosphere\"]",
        );
        let (client, server) = meet(tcp().await, &peer(&site, "plotter"), None, &ocean).await;
        assert!(text(server).contains("refused, as [allow] peers has no pattern for it"));
        assert!(client.is_err());
        let (client, _) = meet(tcp().await, &peer(&site, "atmosphere"), None, &ocean).await;
        assert!(client.is_ok());
    });
}

const COUPLED: &str = r#"
[domain.here]
addresses = ["127.0.0.0/8"]
names = ["*"]

[[rule]]
from = "here"
to = "here"
endpoint = "flux.*"
protection = "integrity"

[[rule]]
from = "here"
to = "here"
endpoint = "grid"
protection = "plain"
"#;

/// A session whose links are each asked about states the least of them; each link then gets its own.
#[test]
fn a_running_session_is_asked_for_each_link() {
    run(async {
        let site = Site::new();
        let coupled = |name| {
            let mut config = with_policy(peer(&site, name), COUPLED);
            config.asks_for_each_link = true;
            config
        };
        let (mut ocean, plotter) = (coupled("ocean"), coupled("plotter"));
        let (client, server) = meet(tcp().await, &plotter, None, &ocean).await;
        let least = Protections {
            data: Protection::Plain,
            ..Protections::default()
        };
        assert_eq!(client.unwrap().protections, least);
        let record = server.unwrap().record;
        let of = |config: &NodeConfig, endpoint| config.link_protection(&record, endpoint);
        assert_eq!(of(&ocean, "flux.heat"), Protection::Integrity);
        assert_eq!(of(&ocean, "grid"), Protection::Plain);
        assert_eq!(of(&ocean, "coupler"), Protection::Encrypted);
        ocean.minimum = Protection::Integrity;
        assert_eq!(
            ocean.link_verdict(&record, "grid").to_string(),
            "integrity: rule 2 (line 12) says plain, raised by the minimum that this process was started with"
        );
        // What is asked next is asked of the policy as it is then.
        ocean.policy = Arc::new(Policy::builtin());
        assert_eq!(of(&ocean, "grid"), Protection::Encrypted);

        // Who doesn't ask for each link holds to its classes, whatever rules say of endpoints.
        let mut engine = coupled("ocean");
        engine.asks_for_each_link = false;
        let (client, server) = meet(tcp().await, &plotter, None, &engine).await;
        let (client, server) = (client.unwrap(), server.unwrap());
        assert_eq!(server.proof, PlaceProof::Direct);
        assert_eq!(client.protections, Protections::default());
    });
}

/// A grid: one authority, that knows everybody.
struct Grid {
    root: CertifiedIssuer<'static, KeyPair>,
    verifier: Arc<GridVerifier>,
}

fn parameters(name: &str) -> CertificateParams {
    let mut parameters = CertificateParams::default();
    let mut subject = DistinguishedName::new();
    subject.push(DnType::OrganizationName, "Grid");
    subject.push(DnType::CommonName, name);
    parameters.distinguished_name = subject;
    parameters
}

impl Grid {
    fn new() -> Self {
        let mut authority = parameters("CA");
        authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        authority.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let root = CertifiedIssuer::self_signed(authority, KeyPair::generate().unwrap()).unwrap();
        let anchor = TrustFile {
            name: "00000001.0".to_owned(),
            content: root.pem().into_bytes(),
        };
        let (store, _) = TrustStore::load(vec![anchor], Vec::new(), None, 1);
        let settings = GridSettings {
            revocation: Revocation::WhereListed,
            name_spaces: NameSpaces::WherePresent,
            ..GridSettings::default()
        };
        let verifier = GridVerifier::new(Arc::new(store), Arc::new(settings)).unwrap();
        Self {
            root,
            verifier: Arc::new(verifier),
        }
    }

    fn credential(&self, mut parameters: CertificateParams) -> Credential {
        parameters.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        let key = KeyPair::generate().unwrap();
        let leaf = parameters.signed_by(&key, &self.root).unwrap();
        let text = format!("{}{}", leaf.pem(), key.serialize_pem());
        Credential::from_pem(text.as_bytes()).unwrap()
    }

    fn person(&self, name: &str) -> Credential {
        let mut parameters = parameters(name);
        parameters.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        self.credential(parameters)
    }

    fn host(&self, name: &str) -> Credential {
        let mut parameters = parameters(name);
        parameters.extended_key_usages = vec![
            ExtendedKeyUsagePurpose::ClientAuth,
            ExtendedKeyUsagePurpose::ServerAuth,
        ];
        parameters.subject_alt_names = vec![SanType::DnsName(name.try_into().unwrap())];
        self.credential(parameters)
    }

    fn config(&self, credential: Credential, role: Role, peer_roles: &[Role]) -> NodeConfig {
        let private = Site::new();
        NodeConfig {
            credential: Arc::new(credential.for_role(role)),
            verifier: self.verifier.clone(),
            peer_roles: peer_roles.to_vec(),
            ..private.manager()
        }
    }

    /// A host that takes managers and peers, by a list for each.
    fn server(&self) -> NodeConfig {
        let host = self.host("ocean.example.org");
        let config = self.config(host, Role::Peer, &[Role::Manager, Role::Peer]);
        with_policy(
            config,
            "[allow]\nmanagers = [\"/O=Grid/CN=Bob\"]\npeers = [\"/O=Grid/CN=Alice\"]",
        )
    }
}

/// Of the roles that are expected, the one counts that the person states. What it opens stands in the policy.
#[test]
fn a_person_of_a_grid_is_a_peer_who_says_so() {
    run(async {
        let grid = Grid::new();
        let server = grid.server();
        for (name, role, expected) in [
            ("Alice", Role::Peer, Ok("peer /O=Grid/CN=Alice")),
            (
                "Alice",
                Role::Manager,
                Err("[allow] managers has no pattern"),
            ),
            ("Bob", Role::Manager, Ok("manager /O=Grid/CN=Bob")),
            ("Bob", Role::Peer, Err("[allow] peers has no pattern")),
        ] {
            let client = grid.config(grid.person(name), role, &[Role::Peer]);
            let dialled = Some("ocean.example.org");
            let (client, met) = meet(tcp().await, &client, dialled, &server).await;
            match expected {
                Ok(identity) => {
                    let record = met.unwrap().record;
                    assert_eq!(record.peer.to_string(), identity);
                    // Judged again, it is what it was.
                    assert!(server.judge_again(&record, unix_now()).is_ok());
                    let client = client.unwrap();
                    assert_eq!(client.peer.to_string(), "peer ocean.example.org");
                }
                Err(reason) => {
                    let said = text(met);
                    assert!(said.contains(reason), "{said}");
                }
            }
        }
    });
}

/// Attack: a person states a host's role, which is expected there, too. Somebody who isn't expected as what it states stays what it is.
#[test]
fn nobody_of_a_grid_states_a_role_that_its_certificate_cannot_have() {
    run(async {
        let grid = Grid::new();
        let mut server = grid.server();
        server.peer_roles = vec![Role::Worker, Role::Manager, Role::Peer];
        server.policy = Arc::new(
            Policy::parse(
                "[allow]\nworkers = [\"*\"]\nmanagers = [\"*\"]\npeers = [\"*\"]",
                1,
            )
            .unwrap(),
        );
        for (role, name) in [
            (Role::Worker, "ocean.example.org"),
            (Role::Gateway, "ocean.example.org"),
            (Role::Peer, "/O=Grid/CN=Bob"),
        ] {
            let (stream, socket) = stranger().await;
            let credential = grid.person("Alice");
            let hello = Hello {
                purpose: exoskel_link::handshake::Purpose::Session,
                protocol: PROTOCOL,
                statement: Statement {
                    identity: Identity::from_statement(role, name).unwrap(),
                    limits: Limits::default(),
                    dead_after: server.dead_after,
                    versions: vec![("python".into(), "3.11".into())],
                    path: Path::Relayed,
                    policy_generation: 0,
                    job: 0,
                    process: ProcessNumber::new([5; 16]),
                    properties: Vec::new(),
                },
                minimum: MinimumProtections {
                    proven: Protections::default(),
                    unproven: Protections::default(),
                },
                ciphers: CipherSuite::ALL.to_vec(),
            };
            let client = async {
                let verifier = grid.verifier.clone();
                let mut raw =
                    RawClient::connect_judging(stream, &credential, verifier, Role::Peer).await;
                raw.send(&hello.encode().unwrap()).await;
                Answer::read(&raw.receive().await.unwrap()).unwrap()
            };
            let both = async { tokio::join!(client, welcome(socket, &server, anybody)) };
            let (answer, welcomed) = soon("the answer", both).await;
            assert!(
                matches!(answer, Answer::Refuse(refuse) if refuse.reason == RefuseReason::Certificate)
            );
            assert!(welcomed.is_err());
        }
    });
}
