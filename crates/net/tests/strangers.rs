//! Who gets no session: peers without a certificate, with a wrong one, in the wrong place, or of another version.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod wire;

use std::os::fd::{AsFd as _, AsRawFd as _, RawFd};
use std::sync::Arc;
use std::time::Duration;

use exoskel_identity::Role;
use exoskel_link::handshake::{Answer, HandshakeError, ProcessNumber, RefuseReason};
use exoskel_net::establish::{EstablishError, welcome};
use exoskel_net::pki::AuthorityDirectory;
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use wire::folder::Folder;
use wire::raw::{RawClient, stranger};
use wire::{Site, anybody, meet, run, soon, tcp, terms, text, unix_now, with_policy};

const DAY: Duration = Duration::from_secs(86_400);

#[test]
fn two_of_one_authority_get_a_session() {
    run(async {
        let site = Site::new();
        let (client, server) = meet(
            tcp().await,
            &site.manager(),
            Some("lab1"),
            &site.worker("lab1"),
        )
        .await;
        let (client, server) = (client.unwrap(), server.unwrap());
        assert_eq!(client.peer.identity().to_string(), "worker lab1");
        assert_eq!(server.peer.identity().to_string(), "manager head");
        assert_eq!(client.protections, server.protections);
    });
}

/// Trusts everybody and shows nothing.
#[derive(Debug)]
struct Nobody;

impl rustls::client::danger::ServerCertVerifier for Nobody {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<rustls::client::danger::ServerCertVerified, rustls::Error> {
        Ok(rustls::client::danger::ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &rustls::DigitallySignedStruct,
    ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
        Ok(rustls::client::danger::HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &rustls::DigitallySignedStruct,
    ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
        Ok(rustls::client::danger::HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<rustls::SignatureScheme> {
        rustls::crypto::aws_lc_rs::default_provider()
            .signature_verification_algorithms
            .supported_schemes()
    }
}

/// An anonymous TLS client; `alpn` is what it names as its protocol.
fn anonymous(alpn: &[u8]) -> rustls::ClientConnection {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut config = rustls::ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Nobody))
        .with_no_client_auth();
    config.alpn_protocols = vec![alpn.to_vec()];
    let name = ServerName::try_from("exoskel").unwrap();
    rustls::ClientConnection::new(Arc::new(config), name).unwrap()
}

/// Moves an anonymous client's bytes until it is told off, and says how.
async fn told_off(mut stream: tokio::net::TcpStream, mut tls: rustls::ClientConnection) -> String {
    loop {
        let mut out = Vec::new();
        while tls.wants_write() {
            tls.write_tls(&mut out).unwrap();
        }
        stream.write_all(&out).await.unwrap();
        let mut buffer = vec![0; 16 * 1024];
        let count = stream.read(&mut buffer).await.unwrap();
        if count == 0 {
            return "the end".to_owned();
        }
        tls.read_tls(&mut &buffer[..count]).unwrap();
        if let Err(error) = tls.process_new_packets() {
            return error.to_string();
        }
    }
}

#[test]
fn a_peer_without_a_certificate_is_told_so_and_gets_nothing() {
    run(async {
        let server = Site::new().worker("lab1");
        let (stream, socket) = stranger().await;
        let client = told_off(stream, anonymous(b"exoskel/1"));
        let both = async { tokio::join!(client, welcome(socket, &server, anybody)) };
        let (client, server) = soon("the refusal", both).await;
        assert!(text(server).contains("showed no certificate"));
        assert!(client.contains("CertificateRequired"), "{client}");
    });
}

/// Aim: until somebody has proved who it is, its connection's descriptor is the only one that it takes. Method: the kernel says which epoll
/// sets watch that: the runtime's do, and a session has one more of its own.
#[test]
fn who_has_proved_nothing_takes_one_descriptor() {
    run(async {
        let site = Site::new();
        let (mut stream, socket) = stranger().await;
        let descriptor = socket.as_fd().as_raw_fd();
        let of_runtime = epoll_sets_of(descriptor);
        let unproven = async {
            let mut hello = Vec::new();
            anonymous(b"exoskel/1").write_tls(&mut hello).unwrap();
            stream.write_all(&hello).await.unwrap();
            // The server has answered, and waits for a certificate.
            stream.read_u8().await.unwrap();
            epoll_sets_of(descriptor)
        };
        let server = site.worker("lab1");
        let both = async {
            tokio::select! {
                sets = unproven => sets,
                result = welcome(socket, &server, anybody) => panic!("{}", text(result)),
            }
        };
        assert_eq!(soon("the server's answer", both).await, of_runtime);
        let sockets = tcp().await;
        let descriptors = [&sockets.0, &sockets.1].map(|socket| socket.as_fd().as_raw_fd());
        let proven = meet(sockets, &site.manager(), Some("lab1"), &server).await;
        assert_eq!(descriptors.map(epoll_sets_of), [of_runtime + 1; 2]);
        drop(proven);
    });
}

/// The descriptors of this process that are epoll sets and watch this one.
fn epoll_sets_of(descriptor: RawFd) -> usize {
    let watched = format!("tfd: {descriptor:8} ");
    let sets = std::fs::read_dir("/proc/self/fdinfo").unwrap();
    let sets = sets.filter_map(|set| std::fs::read_to_string(set.unwrap().path()).ok());
    sets.filter(|set| set.contains(&watched)).count()
}

#[test]
fn another_protocol_over_tls_is_refused() {
    run(async {
        let server = Site::new().worker("lab1");
        let (stream, socket) = stranger().await;
        let client = told_off(stream, anonymous(b"http/1.1"));
        let both = async { tokio::join!(client, welcome(socket, &server, anybody)) };
        let (client, server) = soon("the refusal", both).await;
        assert!(server.is_err());
        assert!(client.contains("NoApplicationProtocol"), "{client}");
    });
}

#[test]
fn a_client_of_another_authority_is_refused() {
    run(async {
        let (ours, theirs) = (Site::new(), Site::new());
        // It has our root, but nothing signed by it.
        let mut client = theirs.manager();
        client.verifier = ours.manager().verifier;
        let (client, server) = meet(tcp().await, &client, None, &ours.worker("lab1")).await;
        assert!(text(server).contains("none of the 1 trusted authorities"));
        assert!(text(client).contains("an authority that the peer doesn't trust"));
    });
}

#[test]
fn a_server_of_another_authority_is_refused() {
    run(async {
        let (ours, theirs) = (Site::new(), Site::new());
        let (client, server) =
            meet(tcp().await, &ours.manager(), None, &theirs.worker("lab1")).await;
        assert!(text(client).contains("none of the 1 trusted authorities"));
        assert!(text(server).contains("an authority that the peer doesn't trust"));
    });
}

#[test]
fn an_expired_certificate_is_refused_by_either_end() {
    run(async {
        let folder = Folder::new();
        let now = unix_now().as_secs();
        let at = |days_ago: u64| {
            UnixTime::since_unix_epoch(Duration::from_secs(now - days_ago * DAY.as_secs()))
        };
        let authority = AuthorityDirectory::initialise(&folder.0, at(10)).unwrap();
        let old = authority.issue(Role::Manager, "old", DAY, at(5)).unwrap();
        let fresh = authority.issue(Role::Worker, "lab1", DAY, at(0)).unwrap();
        let (old, fresh) = (terms(old, &[Role::Worker]), terms(fresh, &[Role::Manager]));
        let (client, server) = meet(tcp().await, &old, None, &fresh).await;
        let said = text(server);
        assert!(
            said.contains("expired on") && said.contains("needs a new one"),
            "{said}"
        );
        assert!(text(client).contains("not valid now by the peer's clock"));

        let mut dialler = fresh;
        dialler.peer_roles = vec![Role::Manager];
        let mut listener = old;
        listener.peer_roles = vec![Role::Worker];
        let (client, _) = meet(tcp().await, &dialler, None, &listener).await;
        assert!(text(client).contains("expired on"));
    });
}

#[test]
fn a_revoked_certificate_is_refused_by_who_knows_of_it() {
    run(async {
        let folder = Folder::new();
        let now = unix_now();
        let authority = AuthorityDirectory::initialise(&folder.0, now).unwrap();
        let manager = authority.issue(Role::Manager, "head", DAY, now).unwrap();
        authority.revoke("head", now).unwrap();
        let worker = authority.issue(Role::Worker, "lab1", DAY, now).unwrap();
        let (client, server) = meet(
            tcp().await,
            &terms(manager, &[Role::Worker]),
            None,
            &terms(worker, &[Role::Manager]),
        )
        .await;
        assert!(text(server).contains("is revoked"));
        assert!(text(client).contains("its authority took it back"));
    });
}

#[test]
fn a_workers_certificate_cannot_stand_in_for_a_manager() {
    run(async {
        let site = Site::new();
        let mut impostor = site.worker("lab2");
        impostor.peer_roles = vec![Role::Worker];
        let (client, server) = meet(tcp().await, &impostor, None, &site.worker("lab1")).await;
        let said = text(server);
        assert!(
            said.contains("worker lab2") && said.contains("expected role manager"),
            "{said}"
        );
        assert!(text(client).contains("for another role than the peer expected"));
    });
}

#[test]
fn a_manager_that_dials_a_manager_is_refused() {
    run(async {
        let site = Site::new();
        let (client, server) = meet(tcp().await, &site.manager(), None, &site.manager()).await;
        assert!(text(client).contains("expected role worker"));
        assert!(server.is_err());
    });
}

#[test]
fn one_worker_cannot_pose_as_another() {
    run(async {
        let site = Site::new();
        let (client, server) = meet(
            tcp().await,
            &site.manager(),
            Some("lab1"),
            &site.worker("lab2"),
        )
        .await;
        let said = text(client);
        assert!(said.contains("lab2") && said.contains("lab1"), "{said}");
        assert!(server.is_err());
    });
}

#[test]
fn a_claim_that_the_certificate_does_not_prove_is_refused() {
    run(async {
        let site = Site::new();
        // What an honest manager would say, out of the mouth of another.
        let (bystander, socket) = stranger().await;
        let recorder = site.worker("lab1");
        let other = site.credential(Role::Manager, "other");
        let client = async {
            let mut raw = RawClient::connect(bystander, &other, Role::Worker).await;
            raw.send(&hello_of("head")).await;
            Answer::read(&raw.receive().await.unwrap()).unwrap()
        };
        let both = async { tokio::join!(client, welcome(socket, &recorder, anybody)) };
        let (answer, server) = soon("the refusal", both).await;
        assert!(text(server).contains("its certificate says manager other"));
        assert!(
            matches!(answer, Answer::Refuse(refuse) if refuse.reason == RefuseReason::Certificate)
        );
    });
}

/// A good Hello of a manager of this name.
fn hello_of(name: &str) -> Vec<u8> {
    use exoskel_identity::Identity;
    use exoskel_link::handshake::{Hello, MinimumProtections, PROTOCOL, Path, Purpose, Statement};
    use exoskel_link::{CipherSuite, Limits, Protection, Protections};
    let hello = Hello {
        protocol: PROTOCOL,
        statement: Statement {
            identity: Identity::new(Role::Manager, name).unwrap(),
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
            proven: Protections::all(Protection::Plain),
            unproven: Protections::all(Protection::Plain),
        },
        ciphers: CipherSuite::ALL.to_vec(),
        purpose: Purpose::Session,
    };
    hello.encode().unwrap()
}

#[test]
fn another_version_of_the_protocol_is_told_apart_from_nonsense() {
    run(async {
        let site = Site::new();
        let credential = site.credential(Role::Manager, "head");
        let mut newer = hello_of("head");
        newer[8..10].copy_from_slice(&7_u16.to_be_bytes());
        for (hello, is_version) in [(newer, true), (b"GET / HTTP/1.1\r\n\r\n".to_vec(), false)] {
            let (stream, socket) = stranger().await;
            let server = site.worker("lab1");
            let client = async {
                let mut raw = RawClient::connect(stream, &credential, Role::Worker).await;
                raw.send(&hello).await;
                Answer::read(&raw.receive().await.unwrap()).unwrap()
            };
            let both = async { tokio::join!(client, welcome(socket, &server, anybody)) };
            let (answer, server) = soon("the refusal", both).await;
            assert!(server.is_err());
            let Answer::Refuse(refuse) = answer else {
                panic!("accepted");
            };
            if is_version {
                let RefuseReason::Version { of, expected, got } = refuse.reason else {
                    panic!("got {:?}", refuse.reason);
                };
                assert_eq!(
                    (of, expected, got),
                    ("protocol".into(), "1".into(), "7".into())
                );
            } else {
                assert_eq!(refuse.reason, RefuseReason::Malformed);
            }
        }
    });
}

#[test]
fn another_python_is_an_error_that_both_ends_understand() {
    run(async {
        let site = Site::new();
        let mut old = site.manager();
        old.versions = vec![("python".to_owned(), "3.9".to_owned())];
        let (client, server) = meet(tcp().await, &old, None, &site.worker("lab1")).await;
        let (client, server) = (text(client), text(server));
        assert!(
            client.contains("got python '3.9', expected 3.11"),
            "{client}"
        );
        assert!(
            server.contains("got python \"3.9\", expected 3.11"),
            "{server}"
        );
        assert!(
            client.contains("the same minor version of python")
                && server.contains("the same minor version of python")
        );
    });
}

/// What would look like another line of the worker's log.
const FORGED: &str = "3.9\n2026-01-01T00:00:00 worker accepted manager head \u{202e}\u{2028}";

#[test]
fn who_is_not_admitted_has_no_say_in_the_log() {
    run(async {
        let site = Site::new();
        let server = with_policy(site.worker("lab1"), "[deny]\nmanagers = [\"head\"]\n");
        let mut forger = site.manager();
        forger.versions = vec![("python".to_owned(), FORGED.to_owned())];
        let (client, server) = meet(tcp().await, &forger, None, &server).await;
        let said = text(server);
        assert!(
            said.contains("[deny] managers") && !said.contains("3.9"),
            "{said}"
        );
        let Err(EstablishError::Handshake(HandshakeError::Refused(refuse))) = client else {
            panic!("expected a refusal");
        };
        assert_eq!(refuse.reason, RefuseReason::NotAllowed);
    });
}

#[test]
fn a_version_is_one_line_and_quoted() {
    run(async {
        let site = Site::new();
        let mut forger = site.manager();
        forger.versions = vec![("python".to_owned(), FORGED.to_owned())];
        let (client, server) = meet(tcp().await, &forger, None, &site.worker("lab1")).await;
        let mut forging = site.worker("lab1");
        forging.versions = vec![("python".to_owned(), FORGED.to_owned())];
        forging.same_versions = Vec::new();
        let (dialler, _) = meet(tcp().await, &site.manager(), None, &forging).await;
        for said in [text(client), text(server), text(dialler)] {
            assert!(said.contains("got python"), "{said}");
            assert!(!said.contains(['\n', '\u{202e}', '\u{2028}']), "{said:?}");
        }
    });
}

#[test]
fn a_refusal_of_a_peer_is_one_line() {
    run(async {
        let site = Site::new();
        let (client, server) = tcp().await;
        let no = |_: &_, _: &_| {
            Err(exoskel_link::handshake::Refuse {
                reason: RefuseReason::NotAllowed,
                text: FORGED.into(),
            })
        };
        let (manager, worker) = (site.manager(), site.worker("lab1"));
        let dialled = exoskel_net::establish::dial(client, &manager, None);
        let both = async { tokio::join!(dialled, welcome(server, &worker, no)) };
        let (client, _) = soon("the refusal", both).await;
        let Err(error) = client else {
            panic!("expected a refusal");
        };
        for said in [error.to_string(), format!("{error:?}")] {
            assert!(said.contains("accepted manager head"), "{said}");
            assert!(!said.contains(['\n', '\u{202e}', '\u{2028}']), "{said:?}");
        }
    });
}

#[test]
fn who_is_denied_is_refused_by_name() {
    run(async {
        let site = Site::new();
        let server = with_policy(site.worker("lab1"), "[deny]\nmanagers = [\"head\"]\n");
        let (client, server) = meet(tcp().await, &site.manager(), None, &server).await;
        assert!(text(server).contains("[deny] managers"));
        let Err(EstablishError::Handshake(HandshakeError::Refused(refuse))) = client else {
            panic!("expected a refusal");
        };
        assert_eq!(refuse.reason, RefuseReason::NotAllowed);
    });
}

#[test]
fn who_is_not_listed_is_refused() {
    run(async {
        let site = Site::new();
        let server = with_policy(site.worker("lab1"), "[allow]\nmanagers = [\"alice\"]\n");
        let (client, server) = meet(tcp().await, &site.manager(), None, &server).await;
        assert!(text(server).contains("no pattern for it"));
        assert!(text(client).contains("no pattern for it"));
    });
}

#[test]
fn a_manager_refuses_a_worker_that_its_own_policy_denies() {
    run(async {
        let site = Site::new();
        let client = with_policy(site.manager(), "[deny]\nworkers = [\"lab1\"]\n");
        let (client, server) = meet(tcp().await, &client, None, &site.worker("lab1")).await;
        assert!(text(client).contains("[deny] workers"));
        // It gets no Hello, so it learns no more than that.
        assert!(server.is_err());
    });
}

#[test]
fn a_busy_server_says_so() {
    run(async {
        let site = Site::new();
        let (client, server) = tcp().await;
        let busy = |_: &_, _: &_| {
            let text = "all slots are taken".into();
            Err(exoskel_link::handshake::Refuse {
                reason: RefuseReason::Busy,
                text,
            })
        };
        let (manager, worker) = (site.manager(), site.worker("lab1"));
        let dialled = exoskel_net::establish::dial(client, &manager, None);
        let both = async { tokio::join!(dialled, welcome(server, &worker, busy)) };
        let (client, server) = soon("the refusal", both).await;
        assert!(text(client).contains("all slots are taken"));
        assert!(server.is_err());
    });
}
