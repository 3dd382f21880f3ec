//! A command as the wire: its input and output lead to the node, as those of `ssh -W HOST:PORT LOGIN` do.
//!
//! Commands come from this node's own options and nowhere else. Of a startpoint, only the host and the port are put into the words of
//! such a command, and only if they can be nothing else.

use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStderr, Command, Stdio};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use exoskel_identity::authorization::{IdentityPattern, PatternProblem};
use exoskel_identity::{Identity, PeerText};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};

use super::lock;
use crate::address::Address;
use crate::socket::Socket;

/// Words of a command at most.
const WORDS_MAX: usize = 256;

/// What a command says to its standard error is kept up to so many bytes, the last ones.
const SAID_BYTES_MAX: usize = 2000;

/// How long a command may take to end by itself when the session that it has carried has ended.
const END_TIME: Duration = Duration::from_secs(2);

/// How long it may take to end when it is told to. After that it is killed.
const TERMINATION_TIME: Duration = Duration::from_millis(500);

/// How long a node that ends waits for commands that are killed.
const KILLING_TIME: Duration = Duration::from_secs(1);

/// Between two looks at whether a command has ended.
const LEAVING_LOOK: Duration = Duration::from_millis(2);

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
    pub(super) fn start(
        &self,
        address: &Address,
        commands: &Arc<ViaCommands>,
    ) -> Result<(Socket, RunningCommand), ViaError> {
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
        let mut command = Command::new(&words[0]);
        command
            .args(&words[1..])
            .stdin(OwnedFd::from(theirs))
            .stdout(OwnedFd::from(output))
            .stderr(Stdio::piped());
        let running = RunningCommand::start(&mut command, commands).map_err(failed)?;
        // Our copies of its ends: it is to find them at an end when ours is closed.
        drop(command);
        Ok((Socket::command(ours).map_err(failed)?, running))
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

/// The commands of a node that have not ended yet.
#[derive(Debug, Default)]
pub(super) struct ViaCommands {
    running: Mutex<usize>,
    ended: Condvar,
}

impl ViaCommands {
    /// Waits until all have ended that nobody needs any more.
    pub(super) fn wait(&self) {
        let running = lock(&self.running);
        let patience = END_TIME + TERMINATION_TIME + KILLING_TIME;
        let waited = self
            .ended
            .wait_timeout_while(running, patience, |running| *running > 0);
        drop(waited.unwrap_or_else(PoisonError::into_inner));
    }
}

/// A command that runs, in a process group of its own. When this is dropped, it ends, with all of its group.
#[derive(Debug)]
pub(super) struct RunningCommand {
    /// Until it is dropped.
    group: Option<CommandGroup>,
    said: Arc<CommandWords>,
}

/// What a command has said to its standard error.
#[derive(Debug, Default)]
struct CommandWords {
    bytes: Mutex<Vec<u8>>,
    /// Whether it says nothing more.
    is_over: Mutex<bool>,
    told: Condvar,
}

impl RunningCommand {
    fn start(command: &mut Command, commands: &Arc<ViaCommands>) -> io::Result<Self> {
        let mut child = command.process_group(0).spawn()?;
        *lock(&commands.running) += 1;
        let errors = child.stderr.take();
        let running = Self {
            group: Some(CommandGroup {
                leader: child,
                patience: Duration::ZERO,
                commands: commands.clone(),
            }),
            said: Arc::default(),
        };
        let words = running.said.clone();
        if let Some(errors) = errors {
            let listener = std::thread::Builder::new().name("exoskel-via".to_owned());
            listener.spawn(move || words.listen(errors))?;
        }
        Ok(running)
    }

    /// A session goes over it: what that has written last is carried to its end when the session is over.
    pub(super) fn carries_session(&mut self) {
        if let Some(group) = &mut self.group {
            group.patience = END_TIME;
        }
    }

    /// What it has said, for whoever couldn't reach anybody by it.
    pub(super) async fn said(self) -> String {
        let words = self.said.clone();
        let said = crate::beside::beside(move || words.wait(SAID_TIME));
        let said = said.await.unwrap_or_default();
        let text = String::from_utf8_lossy(&said).trim().to_owned();
        match text.as_str() {
            "" => String::new(),
            text => format!("; the command said: {}", PeerText::new(text).sentence()),
        }
    }
}

impl Drop for RunningCommand {
    fn drop(&mut self) {
        let Some(group) = self.group.take() else {
            return;
        };
        let end = std::thread::Builder::new().name("exoskel-via-end".to_owned());
        // Without a thread, the group is dropped right here.
        drop(end.spawn(move || group.end()));
    }
}

impl CommandWords {
    fn listen(&self, mut source: ChildStderr) {
        let mut piece = [0; 512];
        while let Ok(count @ 1..) = source.read(&mut piece) {
            let mut bytes = lock(&self.bytes);
            bytes.extend_from_slice(&piece[..count]);
            let over = bytes.len().saturating_sub(SAID_BYTES_MAX);
            bytes.drain(..over);
        }
        *lock(&self.is_over) = true;
        self.told.notify_all();
    }

    /// What it has said, after waiting for so long at most until it is all.
    fn wait(&self, patience: Duration) -> Vec<u8> {
        let is_over = lock(&self.is_over);
        let waited = self
            .told
            .wait_timeout_while(is_over, patience, |is_over| !*is_over);
        drop(waited.unwrap_or_else(PoisonError::into_inner));
        lock(&self.bytes).clone()
    }
}

/// The process group of a command. Its number stays the command's until its leader is waited for, which is done when this is dropped.
#[derive(Debug)]
struct CommandGroup {
    leader: Child,
    /// How long it may take to end by itself: its input is at an end.
    patience: Duration,
    commands: Arc<ViaCommands>,
}

impl CommandGroup {
    /// Ends it: it may end by itself, then it is told to, and then it has to.
    fn end(self) {
        if !self.has_left(self.patience) {
            self.signal(Signal::TERM);
            self.has_left(TERMINATION_TIME);
        }
    }

    /// Whether its leader has ended, after waiting for so long at most.
    fn has_left(&self, patience: Duration) -> bool {
        let deadline = Instant::now() + patience;
        while self.state().is_ok_and(|has_left| !has_left) {
            if Instant::now() >= deadline {
                return false;
            }
            std::thread::sleep(LEAVING_LOOK);
        }
        true
    }

    /// Whether its leader has ended, without waiting for it; an error where somebody else has waited for it.
    fn state(&self) -> io::Result<bool> {
        let ended = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        let leader = WaitId::Pid(Pid::from_child(&self.leader));
        Ok(waitid(leader, ended)?.is_some())
    }

    fn signal(&self, signal: Signal) {
        // The number may be another group's else.
        if self.state().is_ok() {
            let _ = kill_process_group(Pid::from_child(&self.leader), signal);
        }
    }
}

impl Drop for CommandGroup {
    fn drop(&mut self) {
        self.signal(Signal::KILL);
        let _ = self.leader.wait();
        *lock(&self.commands.running) -= 1;
        self.commands.ended.notify_all();
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
