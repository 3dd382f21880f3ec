//! `[sandbox]`: whose code is confined on this host, and to what. Who has something confined is elsewhere; here is what was said.

use std::fmt;
use std::path::{Component, Path, PathBuf};

use serde::Deserialize;
use toml::Spanned;

use super::error::{AuthorizationError, AuthorizationProblem};
use super::facts::Facts;
use super::pattern::IdentityPattern;
use crate::policy_text::{LIST_ENTRIES_MAX, line_of};

/// The least memory that a Python with Exoskel runs in.
const MEMORY_BYTES_MIN: u64 = 64 << 20;

/// More than any machine has.
const PROCESSES_MAX: i64 = 1 << 20;

/// Units of sizes, with the powers of two that they stand for.
const UNITS: [(&str, u32); 6] = [
    ("", 0),
    ("B", 0),
    ("KiB", 10),
    ("MiB", 20),
    ("GiB", 30),
    ("TiB", 40),
];

/// `[sandbox]`, as it is written.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SandboxTable {
    #[serde(default)]
    managers: Vec<Spanned<String>>,
    #[serde(default)]
    free: Vec<Spanned<String>>,
    #[serde(default)]
    read: Vec<Spanned<String>>,
    system: Option<bool>,
    #[serde(default)]
    write: Vec<Spanned<String>>,
    network: Option<Spanned<String>>,
    memory: Option<Spanned<String>>,
    processes: Option<Spanned<i64>>,
    file_size: Option<Spanned<String>>,
    total_memory: Option<Spanned<String>>,
    total_processes: Option<Spanned<i64>>,
}

/// What the code of somebody may use on this host. Whatever isn't limited here, nobody limits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SandboxUse {
    /// What it may read and execute.
    pub read: Vec<PathBuf>,
    /// Whether it may besides read and execute the system's programs and the Python that runs it.
    pub reads_system: bool,
    /// What it may change.
    pub write: Vec<PathBuf>,
    /// To whom it may connect.
    pub network: SandboxNetwork,
    /// The address space of each process.
    pub memory_bytes: Option<u64>,
    /// Processes and threads.
    pub processes: Option<u64>,
    /// The length of each file.
    pub file_bytes: Option<u64>,
    /// What all processes of a job on this host have in memory together.
    pub total_memory_bytes: Option<u64>,
    /// And how many processes and threads they are together.
    pub total_processes: Option<u64>,
}

impl Default for SandboxUse {
    fn default() -> Self {
        Self {
            read: Vec::new(),
            reads_system: true,
            write: Vec::new(),
            network: SandboxNetwork::default(),
            memory_bytes: None,
            processes: None,
            file_bytes: None,
            total_memory_bytes: None,
            total_processes: None,
        }
    }
}

impl fmt::Display for SandboxUse {
    /// What it may use, in a line.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let listed = |paths: &[PathBuf]| {
            let paths: Vec<_> = paths
                .iter()
                .map(|path| path.display().to_string())
                .collect();
            paths.join(", ")
        };
        match (self.reads_system, &self.read[..]) {
            (true, []) => write!(formatter, "reads the system's programs and Python")?,
            (true, read) => write!(
                formatter,
                "reads the system's programs, Python, {}",
                listed(read)
            )?,
            (false, []) => write!(formatter, "reads nothing")?,
            (false, read) => write!(formatter, "reads {}", listed(read))?,
        }
        if !self.write.is_empty() {
            write!(formatter, "; changes {}", listed(&self.write))?;
        }
        write!(formatter, "; network \"{}\"", self.network.word())?;
        let limits = [
            ("bytes of memory", self.memory_bytes),
            ("processes", self.processes),
            ("bytes a file", self.file_bytes),
            ("bytes of memory a job", self.total_memory_bytes),
            ("processes a job", self.total_processes),
        ];
        for (unit, most) in limits {
            if let Some(most) = most {
                write!(formatter, "; {most} {unit}")?;
            }
        }
        Ok(())
    }
}

/// To whom code in a sandbox may connect.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SandboxNetwork {
    /// To nobody.
    None,
    /// To its siblings.
    #[default]
    Links,
    /// To everybody.
    All,
}

impl SandboxNetwork {
    /// Each with its word.
    const WORDS: [(&'static str, Self); 3] = [
        ("none", Self::None),
        ("links", Self::Links),
        ("all", Self::All),
    ];

    /// As it is written.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Links => "links",
            Self::All => "all",
        }
    }
}

/// Whose code goes into a sandbox, and which one.
#[derive(Clone, Debug, Default)]
pub(crate) struct SandboxRules {
    /// The line of the table; nothing, where the file has none.
    pub(super) line: Option<usize>,
    managers: Vec<IdentityPattern>,
    free: Vec<IdentityPattern>,
    pub(super) allowed: SandboxUse,
}

impl SandboxRules {
    /// What the table lets code use, whosever that is; nothing, where the file has none.
    pub(super) fn table(&self) -> Option<&SandboxUse> {
        self.line.map(|_| &self.allowed)
    }

    /// What the code of somebody may use, and why; nothing: all that the account may.
    ///
    /// A grid's authorities vouch for everybody, so that those whom only they know are confined unless a list says otherwise.
    pub(super) fn of(&self, facts: &Facts<'_>) -> Option<(&SandboxUse, String)> {
        let barred = self.managers.iter().find(|pattern| pattern.bars(facts));
        let is_free = self.free.iter().any(|pattern| pattern.admits(facts));
        match (barred, self.line) {
            (Some(pattern), Some(line)) => Some((
                &self.allowed,
                format!("by \"{pattern}\" in [sandbox] managers (line {line})"),
            )),
            _ if facts.is_of_grid && !is_free => Some((
                &self.allowed,
                "as people and hosts of a grid are, unless [sandbox] free names them".to_owned(),
            )),
            _ => None,
        }
    }
}

/// Checks the table. `text` is the file.
pub(super) fn build(
    table: Option<Spanned<SandboxTable>>,
    text: &str,
) -> Result<SandboxRules, AuthorizationError> {
    let Some(table) = table else {
        return Ok(SandboxRules::default());
    };
    let checker = SandboxChecker { text };
    let line = line_of(text, table.span().start);
    let table = table.into_inner();
    let managers = checker.patterns("managers", &table.managers)?;
    let free = checker.patterns("free", &table.free)?;
    if let Some(both) = table.free.iter().find(|one| {
        let mut confined = table.managers.iter();
        confined.any(|other| other.get_ref() == one.get_ref())
    }) {
        let expected =
            "one that isn't in `managers` as well: it would be both in a sandbox and free";
        return Err(checker.wrong(both, "free", both.get_ref(), expected));
    }
    let count = |key, most: Option<&Spanned<i64>>| {
        most.map(|most| checker.processes(key, most)).transpose()
    };
    Ok(SandboxRules {
        line: Some(line),
        managers,
        free,
        allowed: SandboxUse {
            read: checker.paths("read", &table.read)?,
            reads_system: table.system.unwrap_or(true),
            write: checker.folders(&table.write)?,
            network: checker.network(table.network.as_ref())?,
            memory_bytes: checker.memory("memory", table.memory.as_ref())?,
            processes: count("processes", table.processes.as_ref())?,
            file_bytes: checker.bytes("file_size", table.file_size.as_ref())?,
            total_memory_bytes: checker.memory("total_memory", table.total_memory.as_ref())?,
            total_processes: count("total_processes", table.total_processes.as_ref())?,
        },
    })
}

struct SandboxChecker<'a> {
    text: &'a str,
}

impl SandboxChecker<'_> {
    fn error<T>(&self, place: &Spanned<T>, problem: AuthorizationProblem) -> AuthorizationError {
        AuthorizationError {
            line: Some(line_of(self.text, place.span().start)),
            problem,
        }
    }

    fn wrong<T>(
        &self,
        place: &Spanned<T>,
        key: &str,
        text: &str,
        expected: &'static str,
    ) -> AuthorizationError {
        let problem = AuthorizationProblem::WrongKind {
            list: format!("[sandbox] {key}"),
            text: text.to_owned(),
            expected,
        };
        self.error(place, problem)
    }

    fn bounded<'a>(
        &self,
        list: &'static str,
        entries: &'a [Spanned<String>],
    ) -> Result<&'a [Spanned<String>], AuthorizationError> {
        match entries {
            [first, ..] if entries.len() > LIST_ENTRIES_MAX => {
                let count = entries.len();
                Err(self.error(first, AuthorizationProblem::TooManyEntries { list, count }))
            }
            _ => Ok(entries),
        }
    }

    fn patterns(
        &self,
        key: &'static str,
        entries: &[Spanned<String>],
    ) -> Result<Vec<IdentityPattern>, AuthorizationError> {
        let read = |entry: &Spanned<String>| {
            IdentityPattern::parse(entry.get_ref()).map_err(|problem| {
                let problem = AuthorizationProblem::Pattern {
                    list: format!("[sandbox] {key}"),
                    text: entry.get_ref().clone(),
                    problem,
                };
                self.error(entry, problem)
            })
        };
        self.bounded(key, entries)?.iter().map(read).collect()
    }

    fn paths(
        &self,
        key: &'static str,
        entries: &[Spanned<String>],
    ) -> Result<Vec<PathBuf>, AuthorizationError> {
        let read = |entry: &Spanned<String>| {
            let path = Path::new(entry.get_ref());
            let goes_up = path.components().any(|part| part == Component::ParentDir);
            if path.is_absolute() && !goes_up && !entry.get_ref().contains('\0') {
                return Ok(path.to_owned());
            }
            let expected = "a path that begins with / and has no ..";
            Err(self.wrong(entry, key, entry.get_ref(), expected))
        };
        self.bounded(key, entries)?.iter().map(read).collect()
    }

    fn folders(&self, entries: &[Spanned<String>]) -> Result<Vec<PathBuf>, AuthorizationError> {
        let paths = self.paths("write", entries)?;
        match paths
            .iter()
            .zip(entries)
            .find(|(path, _)| path.parent().is_none())
        {
            Some((_, entry)) => {
                let expected = "a folder below: to write everywhere is no sandbox";
                Err(self.wrong(entry, "write", entry.get_ref(), expected))
            }
            None => Ok(paths),
        }
    }

    fn network(
        &self,
        word: Option<&Spanned<String>>,
    ) -> Result<SandboxNetwork, AuthorizationError> {
        let Some(word) = word else {
            return Ok(SandboxNetwork::default());
        };
        let mut words = SandboxNetwork::WORDS.into_iter();
        let found = words.find(|(known, _)| known == word.get_ref());
        let expected = "\"none\", \"links\" or \"all\"";
        found
            .map(|(_, network)| network)
            .ok_or_else(|| self.wrong(word, "network", word.get_ref(), expected))
    }

    fn memory(
        &self,
        key: &'static str,
        size: Option<&Spanned<String>>,
    ) -> Result<Option<u64>, AuthorizationError> {
        let bytes = self.bytes(key, size)?;
        match (bytes, size) {
            (Some(bytes), Some(size)) if bytes < MEMORY_BYTES_MIN => {
                let expected = "at least \"64 MiB\": a Python takes that";
                Err(self.wrong(size, key, size.get_ref(), expected))
            }
            _ => Ok(bytes),
        }
    }

    fn bytes(
        &self,
        key: &'static str,
        size: Option<&Spanned<String>>,
    ) -> Result<Option<u64>, AuthorizationError> {
        let Some(size) = size else {
            return Ok(None);
        };
        let expected = "a whole number with KiB, MiB, GiB or TiB, as in \"4 GiB\"";
        match bytes(size.get_ref()) {
            Some(bytes) => Ok(Some(bytes)),
            None => Err(self.wrong(size, key, size.get_ref(), expected)),
        }
    }

    fn processes(&self, key: &str, most: &Spanned<i64>) -> Result<u64, AuthorizationError> {
        let got = *most.get_ref();
        match u64::try_from(got) {
            Ok(count @ 1..) if got <= PROCESSES_MAX => Ok(count),
            _ => Err(self.wrong(most, key, &got.to_string(), "1 to 1048576")),
        }
    }
}

/// A size as people write it.
fn bytes(text: &str) -> Option<u64> {
    let text = text.trim();
    let unit = text.trim_start_matches(|digit: char| digit.is_ascii_digit());
    let count: u64 = text[..text.len() - unit.len()].parse().ok()?;
    let (_, power) = UNITS.iter().find(|(name, _)| *name == unit.trim())?;
    count.checked_mul(1 << power).filter(|bytes| *bytes > 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::authorization::Authorization;

    fn parsed(text: &str) -> Result<SandboxRules, String> {
        let rules = Authorization::parse(text).map_err(|error| error.to_string())?;
        Ok(rules.sandbox)
    }

    #[test]
    fn a_table_says_what_code_may_use() {
        let rules = parsed(
            "[sandbox]\nmanagers = [\"*.partner.example.org\", \"/vo/*\"]\nread = [\"/usr\"]\nwrite = [\"/data/scratch\"]\n\
             network = \"none\"\nmemory = \"4 GiB\"\nprocesses = 64\nfile_size = \"1MiB\"\nsystem = false\n\
             total_memory = \"8 GiB\"\ntotal_processes = 128\n",
        )
        .unwrap();
        let expected = SandboxUse {
            read: vec!["/usr".into()],
            reads_system: false,
            write: vec!["/data/scratch".into()],
            network: SandboxNetwork::None,
            memory_bytes: Some(4 << 30),
            processes: Some(64),
            file_bytes: Some(1 << 20),
            total_memory_bytes: Some(8 << 30),
            total_processes: Some(128),
        };
        assert_eq!(rules.allowed, expected);
        assert_eq!(rules.line, Some(1));
        assert_eq!(
            rules.allowed.to_string(),
            "reads /usr; changes /data/scratch; network \"none\"; 4294967296 bytes of memory; 64 processes; 1048576 bytes a file; \
             8589934592 bytes of memory a job; 128 processes a job"
        );
        let added = parsed("[sandbox]\nread = [\"/data\"]\n").unwrap();
        assert!(added.allowed.reads_system);
        let shown = added.allowed.to_string();
        assert!(
            shown.starts_with("reads the system's programs, Python, /data;"),
            "{shown}"
        );
        let without = parsed("[allow]\nmanagers = []\n").unwrap();
        assert_eq!(
            (without.line, without.allowed),
            (None, SandboxUse::default())
        );
    }

    #[test]
    fn what_can_not_be_meant_is_an_error_with_its_line() {
        for (entry, words) in [
            (
                "read = [\"usr\"]",
                "line 2: [sandbox] read: got \"usr\", expected a path that begins with /",
            ),
            ("read = [\"/usr/../root\"]", "has no .."),
            ("write = [\"/\"]", "to write everywhere is no sandbox"),
            (
                "network = \"link\"",
                "expected \"none\", \"links\" or \"all\"",
            ),
            (
                "memory = \"4 GB\"",
                "line 2: [sandbox] memory: got \"4 GB\"",
            ),
            ("memory = \"9999999999999 TiB\"", "as in \"4 GiB\""),
            ("memory = \"1 MiB\"", "at least \"64 MiB\""),
            ("memory = \"\"", "as in \"4 GiB\""),
            ("file_size = \"0\"", "as in \"4 GiB\""),
            ("processes = 0", "got \"0\", expected 1 to 1048576"),
            ("processes = -1", "expected 1 to 1048576"),
            (
                "total_processes = 0",
                "[sandbox] total_processes: got \"0\"",
            ),
            ("total_memory = \"1 MiB\"", "at least \"64 MiB\""),
            ("reads = []", "unknown field `reads`"),
            (
                "managers = [\"a[b\"]",
                "line 2: [sandbox] managers: pattern \"a[b\"",
            ),
            (
                "managers = [\"a\"]\nfree = [\"a\"]",
                "line 3: [sandbox] free: got \"a\", expected one that isn't in `managers`",
            ),
        ] {
            let error = parsed(&format!("[sandbox]\n{entry}\n")).unwrap_err();
            assert!(error.contains(words), "{entry}: {error}");
        }
    }
}
