//! The children of this process: how they are started, with their connection, credential and options, and ended.

use std::collections::HashMap;
use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Child, Command as Process, Stdio};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use exoskel_identity::Role;
use rustix::process::Pid;
use rustls::pki_types::UnixTime;

use super::attempt::AttemptError;
use crate::descendants::end_with_descendants;
use crate::descriptor::{inheritable, sealed_memory};
use crate::pki::ThrowAwayAuthority;
use crate::socket::Socket;

/// How children are started.
pub struct LocalWorkers {
    /// Program and arguments; the descriptors' numbers are added.
    pub command: Vec<OsString>,
    /// What they read first (opaque here).
    pub options: Bytes,
    /// What we talk to them over.
    pub transport: LocalTransport,
    /// Who signs their certificates.
    pub authority: ThrowAwayAuthority,
    /// The policy they apply, as TOML; none is the built-in one.
    pub policy: Option<String>,
}

/// What we talk to children over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LocalTransport {
    /// An inherited socketpair.
    Socketpair,
    /// TCP on loopback, for measurements and tests.
    Tcp,
}

/// A child that was started: our end of the connection, and its name.
pub(super) type Started = Result<(Socket, String), AttemptError>;

/// The children that run.
#[derive(Debug, Default)]
pub(super) struct Children {
    running: HashMap<u32, Child>,
}

impl Children {
    /// Starts a child with its end of the connection and its credential; says how to reach it and its name.
    pub(super) fn start(&mut self, local: Option<&LocalWorkers>, number: u32) -> Started {
        let failed = AttemptError::Start;
        let Some(local) = local else {
            return Err(failed(io::ErrorKind::Unsupported.into()));
        };
        let name = format!("local-{}", number + 1);
        let now = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        let credential =
            local
                .authority
                .issue(Role::Worker, &name, UnixTime::since_unix_epoch(now))?;
        let (socket, theirs) = pair(local.transport).map_err(failed)?;
        let secret = sealed_memory("exoskel-credential", &credential.to_pem()).map_err(failed)?;
        let options = sealed_memory("exoskel-options", &local.options).map_err(failed)?;
        let policy = local
            .policy
            .as_deref()
            .map(|policy| sealed_memory("exoskel-policy", policy.as_bytes()));
        let policy = policy.transpose().map_err(failed)?;
        let mut process = Process::new(&local.command[0]);
        process.args(&local.command[1..]).stdin(Stdio::null());
        let mut give = |option: &str, descriptor: &OwnedFd| -> io::Result<()> {
            process
                .arg(option)
                .arg(inheritable(descriptor.as_fd())?.to_string());
            Ok(())
        };
        give("--options-fd", &options).map_err(failed)?;
        give("--connection-fd", &theirs).map_err(failed)?;
        give("--credential-fd", &secret).map_err(failed)?;
        if let Some(policy) = &policy {
            give("--policy-fd", policy).map_err(failed)?;
        }
        // The descriptors close here when `theirs`, `secret` and the others go, right after the child has its own.
        let child = process.spawn().map_err(failed)?;
        self.running.insert(number, child);
        Ok((socket, name))
    }

    /// Ends a child that has no session any more.
    pub(super) fn end(&mut self, number: u32) {
        if let Some(mut child) = self.running.remove(&number) {
            end(&mut child);
        }
    }

    /// Waits for children to leave by themselves, then makes them.
    pub(super) async fn end_all(&mut self, patience: Duration) {
        let deadline = Instant::now() + patience;
        while !self.running.is_empty() && Instant::now() < deadline {
            self.running
                .retain(|_, child| matches!(child.try_wait(), Ok(None)));
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        for child in self.running.values_mut() {
            end(child);
        }
    }
}

/// A connected pair: ours, and the child's.
fn pair(transport: LocalTransport) -> io::Result<(Socket, OwnedFd)> {
    match transport {
        LocalTransport::Socketpair => {
            let (ours, theirs) = std::os::unix::net::UnixStream::pair()?;
            Ok((Socket::unix(ours)?, theirs.into()))
        }
        LocalTransport::Tcp => {
            let listener = std::net::TcpListener::bind(("127.0.0.1", 0))?;
            let ours = std::net::TcpStream::connect(listener.local_addr()?)?;
            loop {
                // Somebody else may dial in between: only the one whose address is ours is the pair.
                let (theirs, from) = listener.accept()?;
                if from == ours.local_addr()? {
                    return Ok((Socket::tcp_from_std(ours)?, theirs.into()));
                }
            }
        }
    }
}

fn end(child: &mut Child) {
    // Until we have waited for it, nobody else has its number.
    if let (Ok(None), Ok(number)) = (child.try_wait(), i32::try_from(child.id()))
        && let Some(process) = Pid::from_raw(number)
    {
        end_with_descendants(process);
    }
    let _ = child.wait();
}
