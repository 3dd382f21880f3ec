//! A command as the wire: its input and output lead to the node, as those of `ssh -W HOST:PORT LOGIN` do.
//!
//! Commands come from this node's own options and nowhere else. Of a startpoint, only the host and the port are put into the words of
//! such a command, and only if they can be nothing else.

use std::fmt;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::{Child, ChildStderr, Command, Stdio};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use exoskel_identity::authorization::{IdentityPattern, PatternProblem};
use exoskel_identity::{Identity, PeerText};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};

use super::lock;
use crate::address::Address;
use crate::socket::Socket;

/// Words of a command at most.
const WORDS_MAX: usize = 256;

/// What a command says to its standard error is kept up to so many bytes, the last ones.
const SAID_BYTES_MAX: usize = 2000;

/// How long a command may take to end by itself when its connection has ended.
const END_TIME: Duration = Duration::from_secs(2);

/// How long a failure waits for what the command has to say about it.
const SAID_TIME: Duration = Duration::from_millis(500);

/// A command that leads to nodes.
#[derive(Clone, Debug)]
pub struct ViaCommand {
    /// To which; to all without a pattern.
    nodes: Option<IdentityPattern>,
    words: Vec<String>,
}

/// Why a command leads nowhere.
#[derive(Debug, thiserror::Error)]
pub enum ViaError {
    /// Words that are no command.
    #[error("got a command of {0} words, expected 1 to {WORDS_MAX}")]
    Words(usize),
    /// Nodes that nobody can mean.
    #[error("got {pattern} for the nodes of a command: {problem}")]
    Nodes {
        /// As it was written.
        pattern: PeerText,
        /// What is wrong with it.
        problem: PatternProblem,
    },
    /// A host or a port that could be something else to the command.
    #[error(
        "got the place {0}, expected HOST:PORT with letters, digits, dots, hyphens and colons: no other text is given to a command"
    )]
    Place(PeerText),
    /// It can't be started.
    #[error("can't run {command:?}: {source}")]
    Start {
        /// Its first word.
        command: String,
        /// Why.
        #[source]
        source: io::Error,
    },
}

impl ViaCommand {
    /// A command for nodes whose names fit the pattern, or for all nodes. `{host}` and `{port}` in its words stand for where the node
    /// listens. No shell reads it.
    ///
    /// # Errors
    /// [`ViaError`] for what is no command or no pattern.
    pub fn new(nodes: Option<&str>, words: Vec<String>) -> Result<Self, ViaError> {
        if words.is_empty() || words.len() > WORDS_MAX {
            return Err(ViaError::Words(words.len()));
        }
        let read = |text: &str| {
            IdentityPattern::parse(text).map_err(|problem| ViaError::Nodes {
                pattern: text.into(),
                problem,
            })
        };
        let nodes = nodes.map(read).transpose()?;
        Ok(Self { nodes, words })
    }

    /// Whether it leads to this node.
    pub(super) fn leads_to(&self, node: &Identity) -> bool {
        let subject = node.name.starts_with('/').then_some(node.name.as_str());
        let nodes = self.nodes.as_ref();
        nodes.is_none_or(|pattern| pattern.matches_node(&node.name, subject))
    }

    /// Starts it for a node that listens at this address.
    pub(super) fn start(&self, address: &Address) -> Result<(Socket, RunningCommand), ViaError> {
        let place = address.to_string();
        let (host, port) = host_and_port(address).ok_or_else(|| ViaError::Place(place.into()))?;
        let words = self.words.iter();
        let words: Vec<_> = words
            .map(|word| word.replace("{host}", host).replace("{port}", port))
            .collect();
        let failed = |source| ViaError::Start {
            command: words[0].clone(),
            source,
        };
        let (ours, theirs) = UnixStream::pair().map_err(failed)?;
        let output = theirs.try_clone().map_err(failed)?;
        let mut child = Command::new(&words[0])
            .args(&words[1..])
            .stdin(OwnedFd::from(theirs))
            .stdout(OwnedFd::from(output))
            .stderr(Stdio::piped())
            .spawn()
            .map_err(failed)?;
        let said = child.stderr.take();
        let running = RunningCommand::new(child, said).map_err(failed)?;
        ours.set_nonblocking(true).map_err(failed)?;
        let ours = tokio::net::UnixStream::from_std(ours).map_err(failed)?;
        Ok((Socket::Command(ours), running))
    }
}

/// The host and the port of an address, if they are nothing but that to whatever command: no option, no word for a shell.
fn host_and_port(address: &Address) -> Option<(&str, &str)> {
    let Address::Tcp(place) = address else {
        return None;
    };
    let (host, port) = place.rsplit_once(':')?;
    let bare = host
        .strip_prefix('[')
        .and_then(|host| host.strip_suffix(']'));
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b".-:".contains(&byte);
    let name = bare.unwrap_or(host);
    let is_host = name.starts_with(|first: char| first.is_ascii_alphanumeric() || first == ':')
        && name.bytes().all(is_plain)
        && (bare.is_some() || !name.contains(':'));
    let is_port = port.parse::<u16>().is_ok() && port.bytes().all(|byte| byte.is_ascii_digit());
    (is_host && is_port).then_some((host, port))
}

/// A command that runs. When this is dropped, it gets a moment to end by itself.
#[derive(Debug)]
pub(super) struct RunningCommand(Arc<CommandState>);

struct CommandState {
    process: Pid,
    /// Whether it has ended, and its number may be somebody else's.
    is_over: Mutex<bool>,
    told: Condvar,
    said: Mutex<Vec<u8>>,
}

impl fmt::Debug for CommandState {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "process {}", self.process.as_raw_nonzero())
    }
}

impl RunningCommand {
    fn new(mut child: Child, said: Option<ChildStderr>) -> io::Result<Self> {
        let process = Pid::from_child(&child);
        let state = Arc::new(CommandState {
            process,
            is_over: Mutex::new(false),
            told: Condvar::new(),
            said: Mutex::default(),
        });
        let theirs = state.clone();
        std::thread::Builder::new()
            .name("exoskel-via".to_owned())
            .spawn(move || {
                if let Some(said) = said {
                    theirs.listen(said);
                }
                // The number stays the command's until it is waited for, which is done under the lock.
                let _ = waitid(
                    WaitId::Pid(process),
                    WaitIdOptions::EXITED | WaitIdOptions::NOWAIT,
                );
                let mut is_over = lock(&theirs.is_over);
                let _ = child.wait();
                *is_over = true;
                drop(is_over);
                theirs.told.notify_all();
            })?;
        Ok(Self(state))
    }

    /// What it has said, for whoever couldn't reach anybody by it.
    pub(super) async fn said(self) -> String {
        let state = self.0.clone();
        let said = crate::beside::beside(move || {
            drop(state.wait(SAID_TIME));
            lock(&state.said).clone()
        });
        let said = said.await.unwrap_or_default();
        let text = String::from_utf8_lossy(&said).trim().to_owned();
        match text.as_str() {
            "" => String::new(),
            text => format!("; the command said: {}", PeerText::new(text).sentence()),
        }
    }
}

impl CommandState {
    fn listen(&self, mut source: ChildStderr) {
        let mut piece = [0; 512];
        while let Ok(count @ 1..) = source.read(&mut piece) {
            let mut said = lock(&self.said);
            said.extend_from_slice(&piece[..count]);
            let over = said.len().saturating_sub(SAID_BYTES_MAX);
            said.drain(..over);
        }
    }

    /// Waits until it has ended, for so long at most.
    fn wait(&self, patience: Duration) -> std::sync::MutexGuard<'_, bool> {
        let waited = self
            .told
            .wait_timeout_while(lock(&self.is_over), patience, |is_over| !*is_over);
        waited.unwrap_or_else(std::sync::PoisonError::into_inner).0
    }
}

impl Drop for RunningCommand {
    fn drop(&mut self) {
        let state = self.0.clone();
        let end = move || {
            let is_over = state.wait(END_TIME);
            if !*is_over {
                // It can only have ended by itself in between.
                let _ = kill_process(state.process, Signal::KILL);
            }
        };
        // Without a thread, it ends when it finds its input at an end.
        drop(
            std::thread::Builder::new()
                .name("exoskel-via-end".to_owned())
                .spawn(end),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_host_and_a_port_become_words_of_a_command() {
        for (place, expected) in [
            (
                "ocean.example.org:7700",
                Some(("ocean.example.org", "7700")),
            ),
            ("10.1.0.7:7700", Some(("10.1.0.7", "7700"))),
            ("[fd00::3]:7700", Some(("[fd00::3]", "7700"))),
            ("-oProxyCommand=evil:22", None),
            ("--exec:22", None),
            ("$(evil):22", None),
            ("a b:22", None),
            ("a;b:22", None),
            ("a{port}:22", None),
            (":22", None),
            ("a:b:22", None),
            ("a:+22", None),
            ("a\n:22", None),
        ] {
            let address = Address::Tcp(place.to_owned());
            assert_eq!(host_and_port(&address), expected, "{place}");
        }
        let unix = Address::Unix("/run/ocean".into());
        assert_eq!(host_and_port(&unix), None);
    }

    #[test]
    fn a_command_leads_to_the_nodes_of_its_pattern() {
        let node = |name| Identity::new(exoskel_identity::Role::Peer, name).unwrap();
        let words = || vec!["ssh".to_owned()];
        let some = ViaCommand::new(Some("*.lab.example.org"), words()).unwrap();
        assert!(some.leads_to(&node("ocean.lab.example.org")));
        assert!(!some.leads_to(&node("ocean.example.org")));
        let all = ViaCommand::new(None, words()).unwrap();
        assert!(all.leads_to(&node("ocean.example.org")));
        assert!(matches!(
            ViaCommand::new(None, Vec::new()),
            Err(ViaError::Words(0))
        ));
        assert!(ViaCommand::new(Some("a[b"), words()).is_err());
    }
}
