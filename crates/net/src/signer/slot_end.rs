//! A slot's end of its connection to the signer.

use std::io::{self, Read as _, Write as _};
use std::net::Shutdown;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use exoskel_identity::{Credential, RemoteKey};
use exoskel_link::Protections;
use exoskel_link::handshake::PeerRecord;
use exoskel_trust::CredentialHolder;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::RecvFlags;
use tokio::io::{AsyncReadExt as _, Interest};

use super::messages::{
    JudgedManager, LENGTH_BYTES, SignerAnswer, SignerRequest, framed, length, meant, read,
};
use crate::ring::passing;

/// How long an answer may take. It takes a millisecond; a signer that stands still is a worker that serves nobody.
const ANSWER_TIME: Duration = Duration::from_secs(10);

/// A connection to the signer. Clones are the same one.
#[derive(Clone)]
pub struct SlotEnd(Arc<Mutex<Option<UnixStream>>>);

impl SlotEnd {
    /// Connects, by the socket that all of the worker's slots have inherited. It is closed: nothing that runs here later has it.
    ///
    /// # Errors
    /// When there is no descriptor left, or no signer.
    pub fn open(requests: OwnedFd) -> io::Result<Self> {
        let (own, theirs) = UnixStream::pair()?;
        // Those of many slots may be in the queue.
        loop {
            match passing::send(requests.as_fd(), theirs.as_fd()) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                sent => {
                    sent?;
                    break;
                }
            }
            let mut waiting = [PollFd::new(&requests, PollFlags::OUT)];
            match poll(&mut waiting, None) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        own.set_read_timeout(Some(ANSWER_TIME))?;
        Ok(Self(Arc::new(Mutex::new(Some(own)))))
    }

    /// Waits until the signer has gone: nobody would sign what this slot says. Another slot in its place finds the signer's successor.
    ///
    /// # Errors
    /// When there is no descriptor left.
    pub(crate) async fn gone(&self) -> io::Result<()> {
        let watched = {
            let stream = self.stream();
            let stream = stream.as_ref().ok_or(io::ErrorKind::NotConnected)?;
            registered(stream)?
        };
        // An answer that nobody has taken yet is no end.
        let is_over = || match peeked(&watched) {
            Peeked::End => Ok(()),
            Peeked::Nothing | Peeked::Answer => Err(io::ErrorKind::WouldBlock.into()),
        };
        watched.async_io(Interest::READABLE, is_over).await
    }

    /// Whether the signer is still there.
    #[must_use]
    pub fn is_connected(&self) -> bool {
        let stream = self.stream();
        let stream = stream.as_ref();
        stream.is_some_and(|stream| !matches!(peeked(stream), Peeked::End))
    }

    /// Waits for this slot's turn to knock. It ends with the session's begin, or with this process.
    ///
    /// # Errors
    /// When the signer has gone.
    pub(crate) async fn turn(&self) -> io::Result<()> {
        let waiting = {
            let stream = self.stream();
            let stream = stream.as_ref().ok_or(io::ErrorKind::NotConnected)?;
            put(stream, &SignerRequest::Turn)?;
            registered(stream)?
        };
        waiting.readable().await?;
        drop(waiting);
        let stream = self.stream();
        let stream = stream.as_ref().ok_or(io::ErrorKind::NotConnected)?;
        match take(stream)? {
            SignerAnswer::Turn => Ok(()),
            _ => Err(io::ErrorKind::InvalidData.into()),
        }
    }

    /// Hands over whom this slot's session is with. Nothing can be asked after this, by whoever.
    ///
    /// # Errors
    /// When the signer has gone.
    pub(crate) fn watch(&self, record: &PeerRecord) -> io::Result<Verdicts> {
        let stream = self.stream().take().ok_or(io::ErrorKind::NotConnected)?;
        put(&stream, &SignerRequest::Judge(JudgedManager::from(record)))?;
        stream.set_nonblocking(true)?;
        Ok(Verdicts(stream))
    }

    fn ask(&self, request: &SignerRequest) -> io::Result<SignerAnswer> {
        let stream = self.stream();
        let stream = stream.as_ref().ok_or(io::ErrorKind::NotConnected)?;
        let answer = put(stream, request).and_then(|()| take(stream));
        if answer.is_err() {
            // An answer that comes later would be taken for one to something else.
            let _ = stream.shutdown(Shutdown::Both);
        }
        answer
    }

    fn stream(&self) -> MutexGuard<'_, Option<UnixStream>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What is to be read next, if anything is.
enum Peeked {
    Nothing,
    Answer,
    End,
}

fn peeked(stream: impl AsFd) -> Peeked {
    let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
    match rustix::net::recv(stream, &mut [0][..], flags) {
        Err(Errno::AGAIN | Errno::INTR) => Peeked::Nothing,
        Ok((_, 1)) => Peeked::Answer,
        Ok(_) | Err(_) => Peeked::End,
    }
}

/// The same socket, for the runtime that is entered to wait at. Whoever asks goes on waiting for answers as before.
fn registered(stream: &UnixStream) -> io::Result<tokio::net::UnixStream> {
    stream.set_nonblocking(true)?;
    let registered = stream
        .try_clone()
        .and_then(tokio::net::UnixStream::from_std);
    stream.set_nonblocking(false)?;
    registered
}

fn put(mut stream: &UnixStream, request: &SignerRequest) -> io::Result<()> {
    stream.write_all(&framed(request)?)
}

fn take(mut stream: &UnixStream) -> io::Result<SignerAnswer> {
    let mut before = [0; LENGTH_BYTES];
    stream.read_exact(&mut before)?;
    let mut body = vec![0; length(before)?];
    stream.read_exact(&mut body)?;
    read(&body)
}

fn gone(error: &io::Error) -> String {
    format!("the process of this worker that holds its credential doesn't answer ({error})")
}

impl CredentialHolder for SlotEnd {
    fn credential(&self) -> Result<Credential, String> {
        match self
            .ask(&SignerRequest::Credential)
            .map_err(|error| gone(&error))?
        {
            SignerAnswer::Credential {
                key,
                schemes,
                public,
            } => {
                let key = KeyOfSigner {
                    signer: self.clone(),
                    key,
                    schemes,
                };
                Credential::from_public_pem(public.as_bytes(), Arc::new(key))
                    .map_err(|error| error.to_string())
            }
            SignerAnswer::Fault(error) => Err(error),
            _ => Err(gone(&io::ErrorKind::InvalidData.into())),
        }
    }
}

/// The key of a credential that the signer has given.
struct KeyOfSigner {
    signer: SlotEnd,
    key: u64,
    schemes: Vec<u16>,
}

impl RemoteKey for KeyOfSigner {
    fn schemes(&self) -> &[u16] {
        &self.schemes
    }

    fn sign(&self, scheme: u16, message: &[u8]) -> Result<Vec<u8>, String> {
        let request = SignerRequest::Sign {
            key: self.key,
            scheme,
            message: message.to_vec(),
        };
        match self.signer.ask(&request).map_err(|error| gone(&error))? {
            SignerAnswer::Signature(signature) => Ok(signature),
            SignerAnswer::Fault(error) => Err(error),
            _ => Err(gone(&io::ErrorKind::InvalidData.into())),
        }
    }
}

/// What the signer says of a session's manager.
pub(crate) struct Verdicts(pub(super) UnixStream);

/// One such word.
#[derive(Debug)]
pub(crate) enum ManagerVerdict {
    /// It is good, with these protections at least.
    Good(Protections),
    /// It isn't any more, and why.
    NoLongerGood(String),
}

impl Verdicts {
    /// Tells `obey` each verdict, until it has enough or the signer is gone.
    pub(crate) async fn listen(self, mut obey: impl FnMut(ManagerVerdict)) -> io::Result<()> {
        let mut stream = tokio::net::UnixStream::from_std(self.0)?;
        loop {
            let mut before = [0; LENGTH_BYTES];
            stream.read_exact(&mut before).await?;
            let mut body = vec![0; length(before)?];
            stream.read_exact(&mut body).await?;
            match read(&body)? {
                SignerAnswer::Good(told) => obey(ManagerVerdict::Good(meant(&told)?)),
                SignerAnswer::NoLongerGood(why) => obey(ManagerVerdict::NoLongerGood(why)),
                _ => return Err(io::ErrorKind::InvalidData.into()),
            }
        }
    }
}
