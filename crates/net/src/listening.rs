//! Listening sockets: TCP, and Unix sockets at a path that is safe to listen at.
//!
//! The file of a Unix socket belongs to whoever listens there. It is made with mode 0600, so that only the account's own
//! processes (and root's) can connect; one that a killed process left is replaced, one where somebody listens never is;
//! and it goes when its [`Listening`] goes. Between processes that start at the same time a lock on the directory decides.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::net::ToSocketAddrs;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, Mode};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use crate::address::Address;
use crate::folder::{Replaceable, replaceable};
use crate::socket::Socket;

/// Connections that wait to be accepted, at most; one slot may be busy with a handshake for a while.
const BACKLOG: i32 = 128;

/// How long another process may hold the lock of the directory. It is held for a few system calls.
const LOCK_TIME: Duration = Duration::from_secs(2);

/// Pause between two attempts to have the lock: waiting for it has no time-out.
const LOCK_PAUSE: Duration = Duration::from_millis(5);

/// Only the owner may connect.
const SOCKET_MODE: u32 = 0o600;

/// Why an address can't be listened at.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// The system says no.
    #[error("can't listen on {address}: {source}")]
    System {
        /// Where.
        address: String,
        /// What it says.
        #[source]
        source: io::Error,
    },
    /// Somebody listens there.
    #[error("can't listen on {0}: the address is in use; is another program running there?")]
    Taken(String),
    /// There is a file of another kind.
    #[error(
        "can't listen on {0}: there is a file that is no socket; remove it, or choose another path"
    )]
    NoSocket(String),
    /// Others could put a socket of theirs into the place of ours.
    #[error("can't listen on {address}: {reason}")]
    Directory {
        /// Where.
        address: String,
        /// How they could.
        reason: Replaceable,
    },
    /// Some process holds a lock.
    #[error(
        "can't listen on {address}: another process holds a lock on {directory} for longer than {LOCK_TIME:?}"
    )]
    Locked {
        /// Where.
        address: String,
        /// The directory.
        directory: String,
    },
}

/// A socket that listens. Dropping it removes a Unix socket's file, even while others have the descriptor.
#[derive(Debug)]
pub struct Listening {
    // Goes first, while the socket still listens: nobody else would take the path for free before it is.
    file: Option<SocketFile>,
    descriptor: OwnedFd,
    address: Address,
}

impl Listening {
    /// Listens at an address; port 0 is any that is free.
    ///
    /// # Errors
    /// [`ListenError`], which says who must act.
    pub fn bind(address: &Address) -> Result<Self, ListenError> {
        match address {
            Address::Tcp(place) => Self::tcp(place),
            Address::Unix(path) => Self::unix(path),
        }
    }

    /// Takes over a socket that another program has had listen for this one. A Unix socket's file stays that one's.
    ///
    /// # Errors
    /// When it is no listening socket, or one of another family.
    pub fn inherited(descriptor: OwnedFd) -> io::Result<Self> {
        if !rustix::net::sockopt::socket_acceptconn(&descriptor)? {
            return Err(io::ErrorKind::NotConnected.into());
        }
        let local = rustix::net::getsockname(&descriptor)?;
        let address = match local.address_family() {
            AddressFamily::UNIX => {
                let name = SocketAddrUnix::try_from(local)?;
                let path = name.path().ok_or(io::ErrorKind::Unsupported)?;
                Address::Unix(PathBuf::from(OsStr::from_bytes(path.to_bytes())))
            }
            _ => Address::Tcp(std::net::SocketAddr::try_from(local)?.to_string()),
        };
        Ok(Self {
            file: None,
            descriptor,
            address,
        })
    }

    /// The socket alone, for a process that [takes it over](Self::inherited). A Unix socket's file stays.
    #[must_use]
    pub fn leave(self) -> OwnedFd {
        if let Some(mut file) = self.file {
            file.stays = true;
        }
        self.descriptor
    }

    /// Where it listens, with the port that it has.
    #[must_use]
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// The listener on the runtime that is entered, and the file, which goes by itself: before the listener does.
    pub(crate) fn into_parts(self) -> io::Result<(Listener, Option<SocketFile>)> {
        Ok((Listener::inherited(self.descriptor)?, self.file))
    }

    /// The listener of a Unix socket without a runtime, and the file, as above.
    pub(crate) fn into_unix_parts(self) -> (std::os::unix::net::UnixListener, Option<SocketFile>) {
        (self.descriptor.into(), self.file)
    }

    fn tcp(place: &str) -> Result<Self, ListenError> {
        let bound = || {
            let addresses: Vec<_> = place.to_socket_addrs()?.collect();
            let listener = std::net::TcpListener::bind(addresses.as_slice())?;
            let address = Address::Tcp(listener.local_addr()?.to_string());
            Ok((listener, address))
        };
        let (listener, address) = bound().map_err(|source: io::Error| {
            let address = format!("tcp://{place}");
            if source.kind() == io::ErrorKind::AddrInUse {
                ListenError::Taken(address)
            } else {
                ListenError::System { address, source }
            }
        })?;
        Ok(Self {
            file: None,
            descriptor: listener.into(),
            address,
        })
    }

    fn unix(path: &Path) -> Result<Self, ListenError> {
        let place = UnixPlace::new(path)?;
        let _lock = place.lock_directory()?;
        place.clear()?;
        place.listen()
    }
}

/// For children that accept too.
impl AsFd for Listening {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

/// A path at which a socket is to listen.
struct UnixPlace<'a> {
    path: &'a Path,
    name: SocketAddrUnix,
    address: String,
}

impl<'a> UnixPlace<'a> {
    fn new(path: &'a Path) -> Result<Self, ListenError> {
        let address = Address::Unix(path.to_owned()).to_string();
        match SocketAddrUnix::new(path) {
            Ok(name) => Ok(Self {
                path,
                name,
                address,
            }),
            Err(error) => Err(ListenError::System {
                address,
                source: error.into(),
            }),
        }
    }

    fn error(&self, source: impl Into<io::Error>) -> ListenError {
        ListenError::System {
            address: self.address.clone(),
            source: source.into(),
        }
    }

    /// Locks the directory until the result goes, if it is one in which nobody else can replace our files.
    fn lock_directory(&self) -> Result<File, ListenError> {
        let directory = self.path.parent().unwrap_or(self.path);
        let file = File::open(directory).map_err(|error| self.error(error))?;
        if let Some(reason) = replaceable(directory).map_err(|error| self.error(error))? {
            return Err(ListenError::Directory {
                address: self.address.clone(),
                reason,
            });
        }
        let deadline = Instant::now() + LOCK_TIME;
        loop {
            match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(file),
                Err(Errno::WOULDBLOCK) if Instant::now() < deadline => {
                    std::thread::sleep(LOCK_PAUSE);
                }
                Err(Errno::WOULDBLOCK) => {
                    return Err(ListenError::Locked {
                        address: self.address.clone(),
                        directory: directory.display().to_string(),
                    });
                }
                Err(Errno::INTR) => {}
                Err(error) => return Err(self.error(error)),
            }
        }
    }

    /// Removes what a process that is gone has left.
    fn clear(&self) -> Result<(), ListenError> {
        match std::fs::symlink_metadata(self.path) {
            Ok(metadata) if metadata.file_type().is_socket() => {}
            Ok(_) => return Err(ListenError::NoSocket(self.address.clone())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(self.error(error)),
        }
        let probe = self.socket()?;
        match rustix::net::connect(&probe, &self.name) {
            // A full backlog is somebody's too.
            Ok(()) | Err(Errno::AGAIN) => Err(ListenError::Taken(self.address.clone())),
            Err(Errno::CONNREFUSED) => {
                std::fs::remove_file(self.path).map_err(|error| self.error(error))
            }
            // It went by itself in the meantime.
            Err(Errno::NOENT) => Ok(()),
            Err(error) => Err(self.error(error)),
        }
    }

    fn socket(&self) -> Result<OwnedFd, ListenError> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
            .map_err(|error| self.error(error))
    }

    fn listen(&self) -> Result<Listening, ListenError> {
        let socket = self.socket()?;
        // On Linux the file gets the socket's own mode, so there is no moment at which others could connect, and the
        // process-wide umask, which other threads rely on, stays as it is.
        rustix::fs::fchmod(&socket, Mode::from_raw_mode(SOCKET_MODE))
            .and_then(|()| rustix::net::bind(&socket, &self.name))
            .map_err(|error| self.error(error))?;
        let made = std::fs::symlink_metadata(self.path).map_err(|error| self.error(error))?;
        let file = SocketFile {
            path: self.path.to_owned(),
            device: made.dev(),
            inode: made.ino(),
            stays: false,
        };
        rustix::net::listen(&socket, BACKLOG).map_err(|error| self.error(error))?;
        Ok(Listening {
            file: Some(file),
            descriptor: socket,
            address: Address::Unix(self.path.to_owned()),
        })
    }
}

/// The file of a socket of ours; dropping this removes it.
#[derive(Debug)]
pub(crate) struct SocketFile {
    path: PathBuf,
    device: u64,
    inode: u64,
    /// Another process has the socket.
    stays: bool,
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if self.stays {
            return;
        }
        // Somebody may have removed it and listen there now. As long as it is ours, nobody replaces it: it listens.
        let is_ours = std::fs::symlink_metadata(&self.path)
            .is_ok_and(|found| (found.dev(), found.ino()) == (self.device, self.inode));
        if is_ours {
            // The directory may have changed hands; what is left there is replaced by whoever listens next.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// A listening socket of this process's runtime.
#[derive(Debug)]
pub(crate) enum Listener {
    Tcp(tokio::net::TcpListener),
    Unix(tokio::net::UnixListener),
}

impl Listener {
    /// Takes over a descriptor of either kind.
    pub(crate) fn inherited(descriptor: OwnedFd) -> io::Result<Self> {
        rustix::io::fcntl_setfd(&descriptor, rustix::io::FdFlags::CLOEXEC)?;
        rustix::io::ioctl_fionbio(&descriptor, true)?;
        if is_unix(descriptor.as_fd())? {
            let listener = std::os::unix::net::UnixListener::from(descriptor);
            Ok(Self::Unix(tokio::net::UnixListener::from_std(listener)?))
        } else {
            let listener = std::net::TcpListener::from(descriptor);
            Ok(Self::Tcp(tokio::net::TcpListener::from_std(listener)?))
        }
    }

    /// The next connection, and where it comes from, for messages to people.
    pub(crate) async fn accept(&self) -> io::Result<(Socket, String)> {
        loop {
            match self {
                Self::Tcp(listener) => {
                    let (stream, address) = listener.accept().await?;
                    // An error means that the peer has gone already: the next one.
                    if let Ok(socket) = Socket::tcp(stream) {
                        return Ok((socket, address.to_string()));
                    }
                }
                Self::Unix(listener) => {
                    let socket = Socket::unix(listener.accept().await?.0.into_std()?)?;
                    let from = socket.peer_text();
                    return Ok((socket, from));
                }
            }
        }
    }
}

/// Whether a socket is a Unix socket.
pub(crate) fn is_unix(socket: BorrowedFd<'_>) -> io::Result<bool> {
    Ok(rustix::net::getsockname(socket)?.address_family() == AddressFamily::UNIX)
}
