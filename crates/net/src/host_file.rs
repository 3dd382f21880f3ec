//! Workers as people name them, one a line: `host:port` or `unix:/path`, then perhaps the name in the certificate, then perhaps
//! `key=value` for whoever starts the worker. And the file of such lines, looked at again while a manager runs.

use std::collections::HashMap;
use std::io;
use std::num::IntErrorKind;
use std::path::{Path, PathBuf};

use exoskel_node::manager::hints::HintedPlace;
use exoskel_trust::Stamp;

use crate::address::Address;

/// Of a worker that listens, where a line names no port.
const DEFAULT_PORT: u16 = 7601;

/// No host file is larger.
const FILE_BYTES_MAX: u64 = 1 << 24;

/// One line of a host file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostLine {
    /// Where it listens.
    pub address: Address,
    /// The name its certificate must have.
    pub name: String,
}

/// A line that names no worker.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HostLineError {
    /// No words, or too many.
    #[error(
        "got {0:?}, expected host:port NAME (the name in the worker's certificate), then key=value"
    )]
    Words(String),
    /// A path that depends on where the process happens to be.
    #[error("got the address {0:?}, expected an absolute path: unix:/path")]
    RelativePath(String),
    /// Another scheme.
    #[error("got the address {0:?}, expected tcp://host:port or unix:/path")]
    Scheme(String),
    /// An IPv6 address whose port can't be told from it.
    #[error("got the address {0:?}, expected brackets around an IPv6 address: [::1]:{1}")]
    NoBrackets(String, u16),
    /// No host.
    #[error("got the address {0:?}, expected host:port or unix:/path")]
    NoHost(String),
    /// The address of a worker in the place of its name, or two workers.
    #[error(
        "got {name:?} as the name of the worker at {place:?}, expected host:port NAME (the name in the worker's certificate); are the two in the wrong order?"
    )]
    AddressAsName {
        /// What stands where its address should be.
        place: String,
        /// What stands where its name should be.
        name: String,
    },
    /// The address of another line, with another name.
    #[error(
        "got {address} as {got}, and as {known} in line {first}; expected one line for each worker"
    )]
    TwoNames {
        /// Of both lines.
        address: Address,
        /// The name in this line.
        got: String,
        /// The name in the other one.
        known: String,
        /// Where that is, counted from 1.
        first: usize,
    },
    /// No port.
    #[error("got port {got:?} in {text:?}, expected a number from 0 to 65535")]
    Port {
        /// What stood there.
        got: String,
        /// The line.
        text: String,
    },
}

/// A host file that can't be used.
#[derive(Debug, thiserror::Error)]
pub enum HostFileError {
    /// It can't be read.
    #[error("can't read {path}: {source}")]
    Read {
        /// The file.
        path: String,
        /// What the system says.
        #[source]
        source: io::Error,
    },
    /// A line of it names no worker.
    #[error("{path}, line {line}: {source}")]
    Line {
        /// The file.
        path: String,
        /// Counted from 1.
        line: usize,
        /// What is wrong.
        #[source]
        source: HostLineError,
    },
}

impl HostLine {
    /// A worker that was heard.
    #[must_use]
    pub fn hinted(place: &HintedPlace) -> Self {
        Self {
            address: Address::Tcp(place.address.to_string()),
            name: place.name.clone(),
        }
    }

    /// Reads `host`, `host:port` or `[ipv6]:port`, with or without `tcp://` before it, or `unix:/path`. A second word is the name in
    /// the certificate. Words of the form `key=value` may follow; they say how the worker is started, and nothing to a manager.
    ///
    /// # Errors
    /// [`HostLineError`] says what was expected.
    pub fn read(text: &str, default_port: u16) -> Result<Self, HostLineError> {
        let (words, rest) = words(text);
        let are_options = rest.iter().all(|word| word.contains('='));
        let (place, name) = match words[..] {
            [place] if are_options => (place, None),
            [place, name] if are_options => (place, Some(name)),
            _ => return Err(HostLineError::Words(text.to_owned())),
        };
        if let Some(name) = name.filter(|name| has_port(name)) {
            let (place, name) = (place.to_owned(), name.to_owned());
            return Err(HostLineError::AddressAsName { place, name });
        }
        if let Some(path) = place.strip_prefix("unix:") {
            if !path.starts_with('/') {
                return Err(HostLineError::RelativePath(text.to_owned()));
            }
            let address = Address::Unix(PathBuf::from(path));
            let name = name.map_or_else(this_machine, str::to_owned);
            return Ok(Self { address, name });
        }
        let rest = match place.split_once("://") {
            None => place,
            Some(("tcp", rest)) => rest,
            Some(_) => return Err(HostLineError::Scheme(text.to_owned())),
        };
        let (host, port) = match rest.strip_prefix('[') {
            Some(rest) => match rest.split_once(']') {
                Some((host, "")) => (host, ""),
                Some((host, port)) => (host, port.strip_prefix(':').unwrap_or("?")),
                None => (rest, "?"),
            },
            None if rest.matches(':').count() > 1 => {
                return Err(HostLineError::NoBrackets(text.to_owned(), default_port));
            }
            None => rest.split_once(':').unwrap_or((rest, "")),
        };
        // A leading dash would be an option to ssh.
        if host.is_empty() || host.starts_with('-') || host.contains('/') {
            return Err(HostLineError::NoHost(text.to_owned()));
        }
        let number = match port.parse::<u16>() {
            Ok(number) if !port.starts_with('+') => number,
            Err(error) if *error.kind() == IntErrorKind::Empty => default_port,
            _ => {
                let (got, text) = (port.to_owned(), text.to_owned());
                return Err(HostLineError::Port { got, text });
            }
        };
        let address = if host.contains(':') {
            format!("[{host}]:{number}")
        } else {
            format!("{host}:{number}")
        };
        Ok(Self {
            address: Address::Tcp(address),
            name: name.unwrap_or(host).to_owned(),
        })
    }
}

/// Whether a word is `host:port` or `[ipv6]:port`. Some names of certificates have colons, too.
fn has_port(word: &str) -> bool {
    word.rsplit_once(':').is_some_and(|(host, port)| {
        port.parse::<u16>().is_ok() && (host.ends_with(']') || !host.contains(':'))
    })
}

/// The words of the form `key=value` in a line, as pairs. A line that is none of a worker may have some as well.
#[must_use]
pub fn start_options(text: &str) -> Vec<(&str, &str)> {
    let (_, rest) = words(text);
    let pairs = rest.into_iter().filter_map(|word| word.split_once('='));
    pairs.collect()
}

/// The words of a line: those before the first `key=value`, and the others.
fn words(text: &str) -> (Vec<&str>, Vec<&str>) {
    let mut words: Vec<&str> = text.split_whitespace().collect();
    // A path may have such a sign in it.
    let place = words.iter().skip(1).position(|word| word.contains('='));
    let rest = words.split_off(place.map_or(words.len(), |place| place + 1));
    (words, rest)
}

/// The name of this machine.
fn this_machine() -> String {
    let names = rustix::system::uname();
    names.nodename().to_string_lossy().into_owned()
}

/// A file of lines, looked at from time to time.
#[derive(Debug)]
pub struct HostFile {
    path: PathBuf,
    seen: Option<Option<Stamp>>,
}

impl HostFile {
    /// A file that has just been read by somebody else: what it says is looked at once more.
    #[must_use]
    pub fn new(path: PathBuf) -> Self {
        Self { path, seen: None }
    }

    /// The lines, if the file has changed since the last look; and whether this is the first look.
    pub fn look(&mut self) -> Option<(bool, Result<Vec<HostLine>, HostFileError>)> {
        let now = Stamp::of(&self.path);
        if self.seen == Some(now) {
            return None;
        }
        // Before it is read: what changes meanwhile is found by the next look.
        let is_first = self.seen.replace(now).is_none();
        Some((is_first, read_file(&self.path)))
    }
}

/// The workers that a file lists.
fn read_file(path: &Path) -> Result<Vec<HostLine>, HostFileError> {
    let shown = path.display().to_string();
    let text = std::fs::File::open(path).and_then(|file| {
        let mut text = String::new();
        io::Read::read_to_string(&mut io::Read::take(file, FILE_BYTES_MAX), &mut text)?;
        Ok(text)
    });
    match text {
        Ok(text) => read_lines(&shown, &text),
        Err(source) => Err(HostFileError::Read {
            path: shown,
            source,
        }),
    }
}

/// The workers that the text of a file lists. Empty lines and what follows `#` count as nothing, and a line that stands there twice
/// counts once.
fn read_lines(path: &str, text: &str) -> Result<Vec<HostLine>, HostFileError> {
    // Some editors begin a file with a byte order mark.
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut found: Vec<(usize, HostLine)> = Vec::new();
    let mut place_of: HashMap<Address, usize> = HashMap::new();
    for (number, line) in (1..).zip(text.lines()) {
        let line = line.split('#').next().unwrap_or_default().trim();
        if line.is_empty() {
            continue;
        }
        let wrong = |source| HostFileError::Line {
            path: path.to_owned(),
            line: number,
            source,
        };
        let line = HostLine::read(line, DEFAULT_PORT).map_err(wrong)?;
        match place_of.get(&line.address).map(|place| &found[*place]) {
            None => {
                place_of.insert(line.address.clone(), found.len());
                found.push((number, line));
            }
            Some((_, known)) if known.name == line.name => {}
            Some((first, known)) => {
                return Err(wrong(HostLineError::TwoNames {
                    address: line.address,
                    got: line.name,
                    known: known.name.clone(),
                    first: *first,
                }));
            }
        }
    }
    Ok(found.into_iter().map(|(_, line)| line).collect())
}

#[cfg(test)]
mod tests;
