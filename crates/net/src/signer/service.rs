//! The signer itself: it answers each slot in turn.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::convert::Infallible;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixDatagram as StdUnixDatagram, UnixStream as StdUnixStream};
use std::rc::Rc;
use std::sync::Arc;

use exoskel_identity::{Expected, PrivateKey};
use exoskel_link::handshake::PeerRecord;
use rustls::sign::SigningKey;
use rustls_pki_types::{CertificateDer, UnixTime};
use serde::Serialize;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, Interest};
use tokio::net::{UnixDatagram, UnixStream};
use tokio::sync::{Mutex, MutexGuard, watch};

use super::messages::{
    JudgedManager, LENGTH_BYTES, SignerAnswer, SignerRequest, framed, length, read, told,
};
use crate::establish::{NodeConfig, unix_time};
use crate::remote_key::{schemes_of, sign};
use crate::ring::passing;
use crate::sources::{NodeConfigRenewal, NodeSources, RENEWAL_TIME};
use crate::tls::signing_key;

/// So many keys of one slot are remembered: those of handshakes that are under way while the files change.
const KEYS_MAX: usize = 8;

/// Serves slots for as long as this process lives. Each sends an end of a connection of its own over `requests`.
///
/// # Errors
/// When the system has no descriptors left, or nobody can ask any more.
pub fn serve(requests: OwnedFd, sources: NodeSources) -> io::Result<Infallible> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .enable_time()
        .build()?;
    tokio::task::LocalSet::new().block_on(&runtime, async {
        let requests = StdUnixDatagram::from(requests);
        requests.set_nonblocking(true)?;
        let requests = UnixDatagram::from_std(requests)?;
        let renewal = sources.clone().renewal();
        let service = Rc::new(SignerService {
            sources,
            renewal: RefCell::new(renewal),
            current: watch::Sender::new(None),
            watched: Cell::new(0),
            keys: Cell::new(0),
            turn: Mutex::new(()),
        });
        tokio::task::spawn_local(service.clone().renew());
        loop {
            let received = requests
                .async_io(Interest::READABLE, || passing::receive(requests.as_fd()))
                .await?;
            let Some(connection) = received else {
                continue;
            };
            let stream = StdUnixStream::from(connection);
            stream.set_nonblocking(true)?;
            let stream = UnixStream::from_std(stream)?;
            let service = service.clone();
            // A slot that has gone ends its conversation, and that is all.
            tokio::task::spawn_local(async move { drop(service.converse(stream).await) });
        }
    })
}

struct SignerService {
    sources: NodeSources,
    renewal: RefCell<NodeConfigRenewal>,
    /// By what managers are judged; nothing before somebody asks.
    current: watch::Sender<Option<Arc<NodeConfig>>>,
    /// How many managers are judged again.
    watched: Cell<usize>,
    /// How many keys have been given a number.
    keys: Cell<u64>,
    /// Whose turn it is to knock.
    turn: Mutex<()>,
}

/// A manager that is judged again, for as long as this lives.
struct Watching<'a>(&'a Cell<usize>);

impl<'a> Watching<'a> {
    fn begin(watched: &'a Cell<usize>) -> Self {
        watched.set(watched.get() + 1);
        Self(watched)
    }
}

impl Drop for Watching<'_> {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

impl SignerService {
    async fn renew(self: Rc<Self>) {
        loop {
            tokio::time::sleep(RENEWAL_TIME).await;
            if self.watched.get() > 0 {
                self.look();
            }
        }
    }

    /// Reads the files again if they have changed. What can't be read leaves what was in force.
    fn look(&self) {
        let mut renewal = self.renewal.borrow_mut();
        let read = match self.current.borrow().is_some() {
            true => renewal.renew(),
            false => Some(renewal.read_again()),
        };
        if let Some(Ok(config)) = read {
            self.current.send_replace(Some(Arc::new(config)));
        }
    }

    async fn converse(&self, mut stream: UnixStream) -> io::Result<()> {
        let mut keys = VecDeque::new();
        let mut turn: Option<MutexGuard<'_, ()>> = None;
        loop {
            let answer = match receive(&mut stream).await? {
                SignerRequest::Credential => self.credential(&mut keys),
                SignerRequest::Sign {
                    key,
                    scheme,
                    message,
                } => signature(&keys, key, scheme, &message),
                SignerRequest::Turn => {
                    if turn.is_none() {
                        turn = Some(self.turn.lock().await);
                    }
                    SignerAnswer::Turn
                }
                SignerRequest::Judge(watched) => {
                    // From now on whoever is at the other end may be anybody.
                    drop((keys, turn));
                    return self.watch(stream, &watched).await;
                }
            };
            send(&mut stream, &answer).await?;
        }
    }

    fn credential(&self, keys: &mut VecDeque<(u64, Arc<dyn SigningKey>)>) -> SignerAnswer {
        let credential = match self.sources.files.own() {
            Ok(credential) => credential,
            Err(error) => return SignerAnswer::Fault(error.to_string()),
        };
        let PrivateKey::Here(_) = credential.private_key() else {
            return SignerAnswer::Fault("the key of the credential is elsewhere".to_owned());
        };
        let signs = match signing_key(&credential) {
            Ok(signs) => signs,
            Err(error) => return SignerAnswer::Fault(error.to_string()),
        };
        let key = self.keys.get() + 1;
        self.keys.set(key);
        let schemes = schemes_of(&*signs);
        if keys.len() == KEYS_MAX {
            keys.pop_front();
        }
        keys.push_back((key, signs));
        SignerAnswer::Credential {
            key,
            schemes,
            public: String::from_utf8_lossy(&credential.public_pem()).into_owned(),
        }
    }

    /// Says what the files say of a manager, now and whenever they have changed.
    async fn watch(&self, mut stream: UnixStream, watched: &JudgedManager) -> io::Result<()> {
        let _watching = Watching::begin(&self.watched);
        self.look();
        let mut changes = self.current.subscribe();
        let mut said = [0];
        loop {
            let config = changes.borrow_and_update().clone();
            let answer = match config {
                Some(config) => judged(&config, watched),
                None => {
                    SignerAnswer::NoLongerGood("the files of this worker can't be read".to_owned())
                }
            };
            send(&mut stream, &answer).await?;
            if let SignerAnswer::NoLongerGood(_) = answer {
                return Ok(());
            }
            tokio::select! {
                changed = changes.changed() => changed.map_err(io::Error::other)?,
                // It has nothing to say, only to go.
                _ = stream.read(&mut said) => return Ok(()),
            }
        }
    }
}

/// What a config says of a manager. Its certificates are proven here once more: what a slot says of it is no more than which they are.
fn judged(config: &NodeConfig, watched: &JudgedManager) -> SignerAnswer {
    let now = UnixTime::since_unix_epoch(unix_time());
    let chain = watched.chain.iter().cloned().map(CertificateDer::from);
    let chain: Vec<_> = chain.collect();
    let roles: Vec<_> = watched.role().into_iter().collect();
    let expected = Expected {
        roles: &roles,
        name: Some(&watched.name),
    };
    let (path, proof) = watched.way();
    let verdict = config
        .verifier
        .verify(&chain, now, &expected)
        .map_err(Into::into)
        .and_then(|peer| {
            let chosen = watched.chosen;
            let record = PeerRecord {
                peer,
                path,
                proof,
                chosen,
            };
            config.judge_again(&record, now)
        });
    match verdict {
        Ok(minimum) => SignerAnswer::Good(told(minimum)),
        Err(error) => SignerAnswer::NoLongerGood(error.to_string()),
    }
}

fn signature(
    keys: &VecDeque<(u64, Arc<dyn SigningKey>)>,
    key: u64,
    scheme: u16,
    message: &[u8],
) -> SignerAnswer {
    let found = keys.iter().find(|(number, _)| *number == key);
    let Some((_, found)) = found else {
        return SignerAnswer::Fault("the credential has changed since".to_owned());
    };
    match sign(&**found, scheme, message) {
        Ok(signature) => SignerAnswer::Signature(signature),
        Err(error) => SignerAnswer::Fault(error),
    }
}

async fn receive(stream: &mut UnixStream) -> io::Result<SignerRequest> {
    let mut before = [0; LENGTH_BYTES];
    stream.read_exact(&mut before).await?;
    let mut body = vec![0; length(before)?];
    stream.read_exact(&mut body).await?;
    read(&body)
}

async fn send(stream: &mut UnixStream, message: &impl Serialize) -> io::Result<()> {
    stream.write_all(&framed(message)?).await
}
