//! Files that lines are added to, and that `logrotate` moves away.

use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use serde::Serialize;

/// Where the lines of an audit trail or an access log go.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub enum LogTarget {
    /// To the standard error stream, which systemd keeps in its journal.
    #[default]
    StandardError,
    /// To the end of a file, made with mode 0640. SIGHUP starts a new one after the old was moved away.
    File(PathBuf),
    /// Nowhere.
    Nowhere,
}

/// An open target.
pub(crate) enum LogSink {
    StandardError,
    File(File, PathBuf),
}

impl LogSink {
    /// Opens the target; nothing for the one that keeps nothing.
    pub(crate) fn open(target: &LogTarget) -> io::Result<Option<Self>> {
        Ok(match target {
            LogTarget::Nowhere => None,
            LogTarget::StandardError => Some(Self::StandardError),
            LogTarget::File(path) => Some(Self::File(append(path)?, path.clone())),
        })
    }

    pub(crate) fn write(&mut self, text: &[u8]) -> io::Result<()> {
        match self {
            Self::StandardError => io::stderr().lock().write_all(text),
            Self::File(file, _) => file.write_all(text),
        }
    }

    /// Opens the file again.
    pub(crate) fn reopen(&mut self) {
        if let Self::File(file, path) = self {
            match append(path) {
                Ok(new) => *file = new,
                Err(error) => tracing::error!(
                    "{} can't be opened again, the old file is kept: {error}",
                    path.display()
                ),
            }
        }
    }
}

fn append(path: &Path) -> io::Result<File> {
    OpenOptions::new()
        .append(true)
        .create(true)
        .mode(0o640)
        .open(path)
}

/// Adds a line of JSON in which all control characters are escaped: names come from whoever has a certificate, and lines are read
/// on terminals.
pub(crate) fn add_line(text: &mut Vec<u8>, line: &impl Serialize) -> serde_json::Result<()> {
    let start = text.len();
    serde_json::to_writer(&mut *text, line)?;
    escape_from(text, start);
    text.push(b'\n');
    Ok(())
}

/// Adds a string of JSON, with its quotation marks.
pub(crate) fn add_string(text: &mut Vec<u8>, string: &str) {
    let start = text.len();
    let plain = |byte: u8| matches!(byte, b' '..=b'~') && !matches!(byte, b'"' | b'\\');
    if string.bytes().all(plain) {
        text.push(b'"');
        text.extend(string.bytes());
        text.push(b'"');
    } else if serde_json::to_writer(&mut *text, string).is_ok() {
        escape_from(text, start);
    }
}

/// JSON lets DEL and the control characters of ISO 6429 stand, by which terminals can be told to do things, and signs by which a
/// line is shown as another. They stand inside strings only, so they can be written as escapes.
fn escape_from(text: &mut Vec<u8>, start: usize) {
    let may_mislead = |byte: &u8| matches!(*byte, 0x7f | 0xc2 | 0xd8 | 0xe2 | 0xef);
    if !text[start..].iter().any(may_mislead) {
        return;
    }
    let line = String::from_utf8_lossy(&text[start..]).into_owned();
    text.truncate(start);
    for sign in line.chars() {
        if misleads(sign) {
            text.extend(format!("\\u{:04x}", u32::from(sign)).bytes());
        } else {
            text.extend(sign.encode_utf8(&mut [0; 4]).bytes());
        }
    }
}

/// Control characters, and those that end lines, can't be seen, or turn the direction of what follows.
fn misleads(sign: char) -> bool {
    sign.is_control()
        || matches!(sign, '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{2069}' | '\u{feff}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_control_character_leaves_its_line() {
        let name = "/CN=a\u{1b}[2J\r\n\u{7f}\u{9b}2J\0\"\\\u{2028}\u{202e}\u{2066}\u{61c}\u{200b}\u{feff}é";
        let mut text = Vec::new();
        add_line(&mut text, &[name]).unwrap();
        let text = String::from_utf8(text).unwrap();
        assert_eq!(text.chars().filter(|sign| misleads(*sign)).count(), 1);
        let read: Vec<String> = serde_json::from_str(&text).unwrap();
        assert_eq!(read, [name]);
        for string in [name, "plain", ""] {
            let mut text = Vec::new();
            add_string(&mut text, string);
            let text = String::from_utf8(text).unwrap();
            assert!(!text.contains(misleads), "{text}");
            assert_eq!(serde_json::from_str::<String>(&text).unwrap(), string);
        }
    }
}
