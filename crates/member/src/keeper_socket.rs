//! The Unix socket between a member and its keeper: messages, and descriptors beside them.

use std::collections::VecDeque;
use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::net::Shutdown;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use exoskel_transfer::{FrameReader, KeeperMessage, MemberMessage, frame};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};

use crate::error::MemberError;

/// Names the keeper's socket to the processes that a coupling starts.
pub const KEEPER_VARIABLE: &str = "EXOSKEL_KEEPER";

/// As many descriptors as one message of the kernel carries.
const DESCRIPTORS_AT_ONCE: usize = 253;

/// The keeper's socket as the environment names it, or else the account's own. A starter such as mpiexec hands the variable on to
/// processes on other hosts: where nothing is at the named place, the account's own is taken if there is one.
#[must_use]
pub fn keeper_of_environment() -> PathBuf {
    let named = std::env::var_os(KEEPER_VARIABLE).filter(|place| !place.is_empty());
    let runtime_directory = std::env::var_os("XDG_RUNTIME_DIR").filter(|place| !place.is_empty());
    let runtime_directory = runtime_directory.map(PathBuf::from);
    let usual = keeper_socket_of_account(runtime_directory.as_deref());
    match named.map(PathBuf::from) {
        Some(named) if named.exists() || !usual.exists() => named,
        _ => usual,
    }
}

/// The socket of a keeper that this account has started by itself.
#[must_use]
pub fn keeper_socket_of_account(runtime_directory: Option<&Path>) -> PathBuf {
    match runtime_directory {
        Some(directory) => directory.join("exoskel").join("keeper"),
        None => {
            let account = rustix::process::getuid().as_raw();
            let folder = format!("exoskel-{account}");
            std::env::temp_dir().join(folder).join("keeper")
        }
    }
}

/// A message and the descriptor that came along.
pub(crate) type HeardMessage = (KeeperMessage, Option<OwnedFd>);

/// The sending half: nobody who has something to say waits for who listens.
#[derive(Debug)]
pub(crate) struct KeeperVoice {
    stream: UnixStream,
}

impl KeeperVoice {
    pub(crate) fn say(&self, message: &MemberMessage) -> Result<(), MemberError> {
        let bytes = frame(message)?;
        io::Write::write_all(&mut &self.stream, &bytes)
            .map_err(|error| MemberError::KeeperLost(error.to_string()))
    }

    /// Says something, and neither says nor hears anything more.
    pub(crate) fn end(&self, message: &MemberMessage) -> Result<(), MemberError> {
        self.say(message)?;
        // The keeper may have gone meanwhile.
        let _ = self.stream.shutdown(Shutdown::Both);
        Ok(())
    }

    /// As [`KeeperSocket::forget`].
    pub(crate) fn forget(&mut self) {
        forget(&mut self.stream);
    }
}

/// An end of a pair that nobody has the other end of, in place of a socket: whatever is tried with it fails.
fn forget(stream: &mut UnixStream) {
    if let Ok((nobody, _)) = UnixStream::pair() {
        *stream = nobody;
    }
}

#[derive(Debug)]
pub(crate) struct KeeperSocket {
    stream: UnixStream,
    frames: FrameReader,
    descriptors: VecDeque<OwnedFd>,
}

impl KeeperSocket {
    pub(crate) fn connect(place: &Path) -> Result<(Self, KeeperVoice), MemberError> {
        let stream = UnixStream::connect(place).map_err(|error| MemberError::NoKeeper {
            place: place.to_owned(),
            error,
        })?;
        let peer = rustix::net::sockopt::socket_peercred(&stream)
            .map_err(MemberError::system("the keeper's account"))?;
        let own = rustix::process::geteuid();
        if peer.uid != own {
            return Err(MemberError::Refused(format!(
                "the keeper at {} belongs to account {}, expected {}: this one",
                place.display(),
                peer.uid.as_raw(),
                own.as_raw()
            )));
        }
        let voice = stream.try_clone().map_err(|error| MemberError::System {
            what: "the keeper's socket",
            error,
        })?;
        let socket = Self {
            stream,
            frames: FrameReader::default(),
            descriptors: VecDeque::new(),
        };
        Ok((socket, KeeperVoice { stream: voice }))
    }

    /// Lets go of the socket, of which a forked child has a copy: its end would be noticed only when all have let go.
    pub(crate) fn forget(&mut self) {
        forget(&mut self.stream);
    }

    /// The next message that has come, if any comes within this time.
    pub(crate) fn hear(&mut self, time: Duration) -> Result<Option<HeardMessage>, MemberError> {
        loop {
            if let Some(message) = self.frames.message::<KeeperMessage>()? {
                let has_descriptor = matches!(
                    message,
                    KeeperMessage::Memory { .. } | KeeperMessage::Partner { .. }
                );
                let descriptor = match has_descriptor {
                    true => Some(self.descriptors.pop_front().ok_or_else(|| {
                        MemberError::Keeper("memory without a descriptor".to_owned())
                    })?),
                    false => None,
                };
                return Ok(Some((message, descriptor)));
            }
            if !self.receive(time)? {
                return Ok(None);
            }
        }
    }

    /// Takes what has come. Says whether anything has.
    fn receive(&mut self, time: Duration) -> Result<bool, MemberError> {
        let limit = Timespec {
            tv_sec: time.as_secs() as i64,
            tv_nsec: i64::from(time.subsec_nanos()),
        };
        let mut polled = [PollFd::new(&self.stream, PollFlags::IN)];
        match poll(&mut polled, Some(&limit)) {
            Ok(0) | Err(rustix::io::Errno::INTR) => return Ok(false),
            Ok(_) => {}
            Err(error) => return Err(MemberError::system("the keeper's socket")(error)),
        }
        let mut bytes = vec![0; 64 * 1024];
        let space = rustix::cmsg_space!(ScmRights(DESCRIPTORS_AT_ONCE));
        let mut space = vec![MaybeUninit::uninit(); space];
        let mut beside = RecvAncillaryBuffer::new(&mut space);
        let received = recvmsg(
            self.stream.as_fd(),
            &mut [IoSliceMut::new(&mut bytes)],
            &mut beside,
            RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT,
        );
        let count = match received {
            Ok(received) => received.bytes,
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => return Ok(false),
            Err(error) => return Err(MemberError::KeeperLost(error.to_string())),
        };
        for message in beside.drain() {
            if let RecvAncillaryMessage::ScmRights(descriptors) = message {
                self.descriptors.extend(descriptors);
            }
        }
        if count == 0 {
            return Err(MemberError::KeeperLost(
                "it has closed the socket".to_owned(),
            ));
        }
        self.frames.take(&bytes[..count]);
        Ok(true)
    }
}
