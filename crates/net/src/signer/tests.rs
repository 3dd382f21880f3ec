//! Slots and their signer, in one process: what is signed, for whom, and until when.

use std::fs;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use exoskel_identity::{Credential, Expected, PeerVerifier as _, PrivateKey, RemoteKey, Role};
use exoskel_link::handshake::{Path as Way, PeerRecord, ProcessNumber};
use exoskel_link::keys::KeyStore;
use exoskel_link::policy::PlaceProof;
use exoskel_link::{Limits, Protection};
use exoskel_trust::{CredentialHolder as _, Document, PolicyFile, Sources};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use rustls_pki_types::UnixTime;

use super::{ManagerVerdict, SlotEnd, serve};
use crate::establish::unix_time;
use crate::pki::{AuthorityDirectory, write_credential};
use crate::sources::{NodeSources, SessionSettings};

const DAY: Duration = Duration::from_secs(86_400);

fn now() -> UnixTime {
    UnixTime::since_unix_epoch(unix_time())
}

/// A worker's signer, with the folder of its files.
struct Site {
    folder: PathBuf,
    authority: AuthorityDirectory,
    requests: OwnedFd,
}

impl Site {
    fn new() -> Self {
        static COUNTER: AtomicU32 = AtomicU32::new(0);
        let number = COUNTER.fetch_add(1, Ordering::Relaxed);
        let name = format!("exoskel-signer-{}-{number}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        fs::create_dir(&folder).unwrap();
        let authority = AuthorityDirectory::initialise(folder.join("ca"), now()).unwrap();
        let own = authority.issue(Role::Worker, "lab1", 30 * DAY, now());
        write_credential(folder.join("worker.pem"), &own.unwrap()).unwrap();
        fs::write(folder.join("policy.toml"), "# everybody\n").unwrap();
        let kind = SocketType::SEQPACKET;
        let (requests, theirs) =
            socketpair(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None).unwrap();
        let sources = sources(&folder);
        // It ends when nobody can ask any more.
        std::thread::spawn(move || serve(theirs, sources));
        Self {
            folder,
            authority,
            requests,
        }
    }

    fn slot(&self) -> SlotEnd {
        SlotEnd::open(self.requests.try_clone().unwrap()).unwrap()
    }

    /// Somebody with whom a slot has a session.
    fn manager(&self, own: &Credential) -> PeerRecord {
        let manager = self.authority.issue(Role::Manager, "head", 30 * DAY, now());
        let expected = Expected {
            roles: &[Role::Manager],
            name: None,
        };
        let verifier = own.authority(0).unwrap();
        let peer = verifier.verify(manager.unwrap().chain(), now(), &expected);
        PeerRecord {
            peer: peer.unwrap(),
            path: Way::Relayed,
            proof: PlaceProof::Unproven,
            chosen: false,
        }
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}

fn sources(folder: &Path) -> NodeSources {
    NodeSources {
        files: Sources {
            credential: Document::File(folder.join("worker.pem")),
            key: None,
            holder: None,
            revocation_list: None,
            trust: None,
            policy: Some(PolicyFile::new(Document::File(folder.join("policy.toml")))),
        },
        settings: SessionSettings {
            peer_roles: vec![Role::Manager],
            minimum: Protection::Plain,
            asks_for_each_link: false,
            limits: Limits::default(),
            dead_after: Duration::from_secs(5),
            handshake_time: Duration::from_secs(5),
            versions: Vec::new(),
            same_versions: Vec::new(),
            properties: Vec::new(),
            keys: KeyStore::in_ordinary_memory(8),
            shared_memory: false,
            job: 0,
            process: ProcessNumber::new([5; 16]),
        },
        role: Role::Worker,
    }
}

fn key_of(credential: &Credential) -> Arc<dyn RemoteKey> {
    match credential.private_key() {
        PrivateKey::Elsewhere(key) => key.clone(),
        PrivateKey::Here(_) => panic!("the slot has got the key"),
    }
}

#[test]
fn a_slot_has_what_it_says_signed_until_it_has_a_session() {
    let site = Site::new();
    let slot = site.slot();
    let credential = slot.credential().unwrap();
    assert_eq!(credential.identity().to_string(), "worker lab1");
    let key = key_of(&credential);
    let scheme = key.schemes()[0];
    assert!(!key.sign(scheme, b"a handshake").unwrap().is_empty());
    let unknown = key.sign(0x0101, b"a handshake").unwrap_err();
    assert!(unknown.contains("doesn't sign by"), "{unknown}");
    let verdicts = slot.watch(&site.manager(&credential)).unwrap();
    for error in [
        key.sign(scheme, b"a handshake").unwrap_err(),
        slot.credential().unwrap_err(),
    ] {
        assert!(error.contains("doesn't answer"), "{error}");
    }
    // Whoever has that socket afterwards asks in vain, and ends the session by it.
    let asked = super::messages::framed(&super::messages::SignerRequest::Credential).unwrap();
    let runtime = runtime();
    let heard = runtime.block_on(async {
        rustix::io::write(&verdicts.0, &asked).unwrap();
        let mut heard = Vec::new();
        let end = verdicts.listen(|standing| heard.push(standing)).await;
        assert!(end.is_err());
        heard
    });
    assert!(matches!(heard[..], [ManagerVerdict::Good(_)]));
}

#[test]
fn a_manager_that_a_new_policy_is_against_is_no_longer_good() {
    let site = Site::new();
    let slot = site.slot();
    let record = site.manager(&slot.credential().unwrap());
    let verdicts = slot.watch(&record).unwrap();
    let policy = site.folder.join("policy.toml");
    let mut heard = Vec::new();
    runtime().block_on(async {
        let end = verdicts.listen(|standing| {
            if heard.is_empty() {
                // By another file in its place, as editors do it.
                let new = policy.with_extension("new");
                fs::write(&new, "[allow]\nmanagers = [\"other\"]\n").unwrap();
                fs::rename(new, &policy).unwrap();
            }
            heard.push(standing);
        });
        let _ = end.await;
    });
    assert!(
        matches!(&heard[..], [ManagerVerdict::Good(_), ManagerVerdict::NoLongerGood(why)] if why.contains("head"))
    );
}

#[test]
fn slots_knock_in_turn() {
    let site = Site::new();
    let (first, second) = (site.slot(), site.slot());
    let credential = first.credential().unwrap();
    runtime().block_on(async {
        first.turn().await.unwrap();
        let mut waiting = Box::pin(second.turn());
        // The signer has its request by the time that it answers another one.
        tokio::select! {
            biased;
            turn = &mut waiting => panic!("two slots have their turn: {turn:?}"),
            () = async { drop(first.credential().unwrap()) } => {}
        }
        // With a session, the turn is the next one's.
        let _verdicts = first.watch(&site.manager(&credential)).unwrap();
        waiting.await.unwrap();
    });
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .enable_time()
        .build()
        .unwrap()
}
