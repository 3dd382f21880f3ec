//! The file that says which programs run and which of their arrays are connected.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use exoskel_redist::{DIMENSIONS_MAX, Selection, SelectionError};
use serde::{Deserialize, Serialize};

use crate::{CONNECTIONS_OF_ARRAY_MAX, NAME_BYTES_MAX};

/// An array of a program: `ocean.sst`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Variable {
    /// Whose it is.
    pub program: String,
    /// What the program calls it.
    pub name: String,
}

/// A program and how it is started.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProgramTerms {
    /// What starts all of its processes; none where the site starts them.
    pub command: Option<String>,
}

/// What goes from one array to another.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ConnectionTerms {
    /// The array that is read.
    pub from: Variable,
    /// The array that is written.
    pub to: Variable,
    /// The part of the source, as slices.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub select: Option<String>,
    /// The part of the target.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub into: Option<String>,
    /// The target's axis a comes from the source's axis `permute[a]`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub permute: Option<Vec<usize>>,
    /// Of the source's versions the first one goes, and then each that is so many later.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub every: u64,
}

fn one() -> u64 {
    1
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde calls it with a reference"
)]
fn is_one(number: &u64) -> bool {
    *number == 1
}

impl fmt::Display for ConnectionTerms {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} to {}", self.from, self.to)
    }
}

/// How long processes that have not attached are waited for, if nobody says otherwise: models read their files first.
const WAIT: Duration = Duration::from_secs(300);

impl ConnectionTerms {
    /// What can be wrong whatever the layouts will be.
    fn check_parts(&self) -> Result<(), CouplingError> {
        let connection = || self.to_string();
        let axes = match &self.permute {
            None => DIMENSIONS_MAX,
            Some(permute) => {
                let mut sorted = permute.clone();
                sorted.sort_unstable();
                let count = sorted.len();
                if !(1..=DIMENSIONS_MAX).contains(&count) || !sorted.into_iter().eq(0..count) {
                    return Err(CouplingError::Permutation {
                        connection: connection(),
                        got: permute.iter().copied().take(DIMENSIONS_MAX + 1).collect(),
                    });
                }
                count
            }
        };
        for (key, text) in [("select", &self.select), ("into", &self.into)] {
            let named = text.as_deref().map_or(Ok(0), Selection::named_axes);
            let got = named.map_err(|error| CouplingError::Part {
                connection: connection(),
                key,
                error,
            })?;
            if got > axes {
                return Err(CouplingError::PartAxes {
                    connection: connection(),
                    key,
                    got,
                    expected: axes,
                });
            }
        }
        Ok(())
    }
}

/// Programs and what connects their arrays.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Coupling {
    programs: BTreeMap<String, ProgramTerms>,
    connections: Vec<ConnectionTerms>,
    wait: Duration,
}

/// What can't be a coupling.
#[derive(Debug, thiserror::Error)]
pub enum CouplingError {
    /// A name that is none.
    #[error(
        "got the name {0:?}, expected up to {NAME_BYTES_MAX} letters, digits, hyphens and underscores"
    )]
    Name(String),
    /// A variable without a program.
    #[error("got the array {0:?}, expected program.array, as in \"ocean.sst\"")]
    Variable(String),
    /// Not TOML, or not what is expected there.
    #[error("{0}")]
    Text(#[from] toml::de::Error),
    /// No program at all.
    #[error("got no program, expected a table for each, as [program.ocean]")]
    NoProgram,
    /// A connection names a program that isn't there.
    #[error("the connection {connection} names the program {program:?}, expected one of {known}")]
    Program {
        /// Which connection.
        connection: String,
        /// The name.
        program: String,
        /// Those that are there.
        known: String,
    },
    /// Between an array and itself.
    #[error("the connection {0} has the same array at both ends, expected two")]
    SameArray(String),
    /// The same array twice, with nothing that tells the parts apart.
    #[error("the connection {0} is there twice")]
    Doubled(String),
    /// A part of an array that is no part of any.
    #[error("the connection {connection}: {key}: {error}")]
    Part {
        /// Which connection.
        connection: String,
        /// Of which end, as the file says it.
        key: &'static str,
        /// What is wrong with it.
        #[source]
        error: SelectionError,
    },
    /// No order of axes.
    #[error(
        "the connection {connection} has permute = {got:?}, expected each axis once, counted from 0, as in [1, 0]"
    )]
    Permutation {
        /// Which connection.
        connection: String,
        /// As it was given.
        got: Vec<usize>,
    },
    /// More axes in a part than there are.
    #[error(
        "the connection {connection} has {key} of {got} axes and permute of {expected}, expected at most as many"
    )]
    PartAxes {
        /// Which connection.
        connection: String,
        /// Of which end, as the file says it.
        key: &'static str,
        /// Axes that the part names.
        got: usize,
        /// Axes that there are.
        expected: usize,
    },
    /// No time to wait.
    #[error("got wait = {0}, expected seconds, more than 0")]
    Wait(f64),
    /// A step of none.
    #[error("the connection {0} has every = 0, expected at least 1")]
    Every(String),
    /// More than a board has places for.
    #[error("{count} connections {end} {array}, expected at most {CONNECTIONS_OF_ARRAY_MAX}")]
    TooMany {
        /// Which of their ends it is.
        end: &'static str,
        /// Which array.
        array: Variable,
        /// How many.
        count: usize,
    },
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct CouplingFile {
    wait: Option<f64>,
    #[serde(default)]
    program: BTreeMap<String, ProgramTerms>,
    #[serde(default)]
    connection: Vec<ConnectionTerms>,
}

impl Coupling {
    /// Reads the file.
    ///
    /// # Errors
    /// [`CouplingError`], which says what was expected.
    pub fn parse(text: &str) -> Result<Self, CouplingError> {
        let file: CouplingFile = toml::from_str(text)?;
        let mut made = Self::new(file.program, file.connection)?;
        if let Some(seconds) = file.wait {
            made.wait_for(seconds)?;
        }
        Ok(made)
    }

    /// Sets for how many seconds processes that have not attached are waited for.
    ///
    /// # Errors
    /// [`CouplingError::Wait`].
    pub fn wait_for(&mut self, seconds: f64) -> Result<(), CouplingError> {
        self.wait = Duration::try_from_secs_f64(seconds)
            .ok()
            .filter(|wait| !wait.is_zero())
            .ok_or(CouplingError::Wait(seconds))?;
        Ok(())
    }

    /// How long processes that have not attached are waited for, counted from the last one that has.
    #[must_use]
    pub fn wait(&self) -> Duration {
        self.wait
    }

    /// Programs by their names, and connections between their arrays.
    ///
    /// # Errors
    /// [`CouplingError`].
    pub fn new(
        programs: BTreeMap<String, ProgramTerms>,
        connections: Vec<ConnectionTerms>,
    ) -> Result<Self, CouplingError> {
        if programs.is_empty() {
            return Err(CouplingError::NoProgram);
        }
        for name in programs.keys() {
            checked_name(name)?;
        }
        let mut seen = BTreeSet::new();
        let mut ends = BTreeMap::new();
        for terms in &connections {
            let connection = terms.to_string();
            for end in [&terms.from, &terms.to] {
                if !programs.contains_key(&end.program) {
                    let known: Vec<&str> = programs.keys().map(String::as_str).collect();
                    return Err(CouplingError::Program {
                        connection,
                        program: end.program.clone(),
                        known: known.join(", "),
                    });
                }
            }
            if terms.from == terms.to {
                return Err(CouplingError::SameArray(connection));
            }
            if terms.every == 0 {
                return Err(CouplingError::Every(connection));
            }
            terms.check_parts()?;
            if !seen.insert((&terms.from, &terms.to, &terms.select, &terms.into)) {
                return Err(CouplingError::Doubled(connection));
            }
            *ends.entry(("end in", &terms.to)).or_insert(0) += 1;
            *ends.entry(("begin in", &terms.from)).or_insert(0) += 1;
        }
        if let Some(((end, array), count)) = ends
            .into_iter()
            .find(|(_, count)| *count > CONNECTIONS_OF_ARRAY_MAX)
        {
            return Err(CouplingError::TooMany {
                end,
                array: array.clone(),
                count,
            });
        }
        Ok(Self {
            programs,
            connections,
            wait: WAIT,
        })
    }

    /// The programs, by their names.
    #[must_use]
    pub fn programs(&self) -> &BTreeMap<String, ProgramTerms> {
        &self.programs
    }

    /// The connections. Their numbers are their places here.
    #[must_use]
    pub fn connections(&self) -> &[ConnectionTerms] {
        &self.connections
    }

    /// The connections that begin or end in an array, with their numbers.
    pub fn connections_of<'a>(
        &'a self,
        array: &'a Variable,
    ) -> impl Iterator<Item = (usize, &'a ConnectionTerms)> {
        let connections = self.connections.iter().enumerate();
        connections.filter(move |(_, terms)| terms.from == *array || terms.to == *array)
    }

    /// The array's connections as a target, and the place of one of them among these: its place in the array's board.
    #[must_use]
    pub fn place_into(&self, connection: usize) -> usize {
        let to = &self.connections[connection].to;
        let before = self.connections[..connection].iter();
        before.filter(|terms| terms.to == *to).count()
    }

    /// The same of the array's connections as a source.
    #[must_use]
    pub fn place_from(&self, connection: usize) -> usize {
        let from = &self.connections[connection].from;
        let before = self.connections[..connection].iter();
        before.filter(|terms| terms.from == *from).count()
    }
}

/// The name of a program or an array, if it is one.
pub(crate) fn checked_name(name: &str) -> Result<(), CouplingError> {
    let is_letter = |letter: char| letter.is_alphanumeric() || matches!(letter, '-' | '_');
    if !name.is_empty() && name.len() <= NAME_BYTES_MAX && name.chars().all(is_letter) {
        return Ok(());
    }
    Err(CouplingError::Name(name.chars().take(64).collect()))
}

/// The source's version that is a connection's version of this number, where each `every`-th goes. Both count from 1.
#[must_use]
pub fn source_version(version: u64, every: u64) -> u64 {
    let before = version.saturating_sub(1);
    before.saturating_mul(every).saturating_add(1)
}

/// The last of the source's versions up to `exported` that goes over a connection where each `every`-th goes; 0 if none does.
#[must_use]
pub fn last_taken(exported: u64, every: u64) -> u64 {
    match exported.checked_sub(1) {
        None => 0,
        Some(before) => before - before % every.max(1) + 1,
    }
}

impl FromStr for Variable {
    type Err = CouplingError;

    fn from_str(text: &str) -> Result<Self, CouplingError> {
        let (program, name) = text
            .split_once('.')
            .ok_or_else(|| CouplingError::Variable(text.chars().take(64).collect()))?;
        checked_name(program)?;
        checked_name(name)?;
        Ok(Self {
            program: program.to_owned(),
            name: name.to_owned(),
        })
    }
}

impl TryFrom<String> for Variable {
    type Error = CouplingError;

    fn try_from(text: String) -> Result<Self, CouplingError> {
        text.parse()
    }
}

impl From<Variable> for String {
    fn from(variable: Variable) -> Self {
        variable.to_string()
    }
}

impl fmt::Display for Variable {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}.{}", self.program, self.name)
    }
}
