//! The machine of the coupler: which programs are there, whether their layouts fit, which connections are ready.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use exoskel_redist::{Layout, Mapping};
use serde::{Deserialize, Serialize};

use crate::attach::{ConnectionPlace, GoneMember, Loss};
use crate::coupling::{Coupling, Variable, checked_name};
use crate::description::LayoutDescription;
use crate::{MEMBERS_MAX, REFUSALS_MAX, VARIABLES_MAX};

mod absence;

pub use absence::ranks_of;

/// What a keeper tells the coupler.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum KeeperReport {
    /// A process of a program has come.
    Attach {
        /// The program.
        program: String,
        /// Which process.
        rank: u32,
        /// Of how many.
        size: u32,
    },
    /// A process has described an array.
    Array {
        /// The program.
        program: String,
        /// Which process.
        rank: u32,
        /// The array.
        name: String,
        /// Its layout.
        layout: LayoutDescription,
    },
    /// A process of a program was not let in: its program is not whole.
    Refused {
        /// The program.
        program: String,
        /// Why.
        reason: String,
    },
    /// A process is gone.
    Gone(GoneMember),
}

/// What the coupler tells a keeper.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum CouplerOrder {
    /// The process that came is welcome.
    Attached {
        /// The program.
        program: String,
        /// Which process.
        rank: u32,
    },
    /// What a process asked for can't be.
    Refused {
        /// The program.
        program: String,
        /// Which process.
        rank: u32,
        /// Why.
        reason: String,
    },
    /// An array is as it should be.
    Array {
        /// The program.
        program: String,
        /// Which process.
        rank: u32,
        /// The array.
        name: String,
        /// Connections that begin there.
        sources: Vec<ConnectionPlace>,
        /// Connections that end there.
        targets: Vec<ConnectionPlace>,
    },
    /// Both ends of a connection are there.
    Connect {
        /// Its number.
        connection: u32,
    },
    /// A connection can't be.
    Fail {
        /// Its number.
        connection: u32,
        /// Why.
        reason: String,
        /// The process that has gone before it described its array, if that is why.
        gone: Option<GoneMember>,
    },
    /// A process is gone: those at the other ends of its program's connections are told.
    Gone(GoneMember),
}

/// What has become of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConnectionState {
    /// Not all processes have described their array yet.
    Waiting,
    /// It can be used.
    Ready,
    /// It can't be.
    Failed(String),
}

/// A connection and what has become of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectionStatus {
    /// From which array to which.
    pub name: String,
    /// Whether it can be used.
    pub state: ConnectionState,
    /// What one version moves.
    pub version_bytes: u64,
    /// The process whose end is why it has failed, if one is.
    gone: Option<GoneMember>,
}

#[derive(Debug)]
struct KnownProgram {
    size: u32,
    present: BTreeSet<u32>,
    variables: BTreeMap<String, DescribedArray>,
}

#[derive(Debug)]
struct DescribedArray {
    layout: LayoutDescription,
    made: Layout,
    by: BTreeSet<u32>,
}

/// Knows programs, layouts and connections. Its orders are for all keepers.
#[derive(Debug)]
pub struct Coupler {
    coupling: Coupling,
    programs: BTreeMap<String, KnownProgram>,
    connections: Vec<ConnectionStatus>,
    first_lost: Option<Loss>,
    refusals: Vec<(String, String)>,
    /// How many processes were there at the last look, and since when.
    last_attached: (usize, Duration),
    orders: VecDeque<CouplerOrder>,
}

impl Coupler {
    /// For what a file says.
    #[must_use]
    pub fn new(coupling: Coupling) -> Self {
        let connections = coupling.connections().iter().map(|terms| ConnectionStatus {
            name: terms.to_string(),
            state: ConnectionState::Waiting,
            version_bytes: 0,
            gone: None,
        });
        Self {
            connections: connections.collect(),
            coupling,
            programs: BTreeMap::new(),
            first_lost: None,
            refusals: Vec::new(),
            last_attached: (0, Duration::ZERO),
            orders: VecDeque::new(),
        }
    }

    /// What the file says.
    #[must_use]
    pub fn coupling(&self) -> &Coupling {
        &self.coupling
    }

    /// What has become of the connections, by their numbers.
    #[must_use]
    pub fn connections(&self) -> &[ConnectionStatus] {
        &self.connections
    }

    /// The first process that was lost.
    #[must_use]
    pub fn first_lost(&self) -> Option<&Loss> {
        self.first_lost.as_ref()
    }

    /// Programs of which processes were refused, and why: the first ones.
    #[must_use]
    pub fn refusals(&self) -> &[(String, String)] {
        &self.refusals
    }

    /// Of each program that has come, how many processes are there, and of how many.
    pub fn present(&self) -> impl Iterator<Item = (&str, u32, u32)> {
        let programs = self.programs.iter();
        programs.map(|(name, program)| (name.as_str(), program.present.len() as u32, program.size))
    }

    /// What keepers are to be told next.
    pub fn next_order(&mut self) -> Option<CouplerOrder> {
        self.orders.pop_front()
    }

    /// Takes what a keeper says.
    pub fn report(&mut self, report: KeeperReport) {
        match report {
            KeeperReport::Attach {
                program,
                rank,
                size,
            } => {
                let order = match self.attach(&program, rank, size) {
                    Ok(()) => CouplerOrder::Attached { program, rank },
                    Err(reason) => {
                        self.refused(&program, &reason);
                        CouplerOrder::Refused {
                            program,
                            rank,
                            reason,
                        }
                    }
                };
                self.orders.push_back(order);
            }
            KeeperReport::Array {
                program,
                rank,
                name,
                layout,
            } => self.describe(Variable { program, name }, rank, layout),
            KeeperReport::Refused { program, reason } => self.refused(&program, &reason),
            KeeperReport::Gone(gone) => self.lose(gone),
        }
    }

    fn attach(&mut self, name: &str, rank: u32, size: u32) -> Result<(), String> {
        if !self.coupling.programs().contains_key(name) {
            let known: Vec<&str> = self
                .coupling
                .programs()
                .keys()
                .map(String::as_str)
                .collect();
            let known = known.join(", ");
            return Err(format!(
                "got the program {name:?}, expected one of the coupling's: {known}"
            ));
        }
        if rank >= size || size > MEMBERS_MAX {
            return Err(format!(
                "got rank {rank} of {size}, expected a rank from 0 to below the size, which is at most {MEMBERS_MAX}"
            ));
        }
        let program = self
            .programs
            .entry(name.to_owned())
            .or_insert(KnownProgram {
                size,
                present: BTreeSet::new(),
                variables: BTreeMap::new(),
            });
        if program.size != size {
            return Err(format!(
                "rank {rank} of {name} says that the program has {size} processes, others say {}: start all with the same size",
                program.size
            ));
        }
        if !program.present.insert(rank) {
            return Err(format!(
                "got rank {rank} of {name} twice: each process has a rank of its own. Without MPI give them: Member({name:?}, rank=, size=)"
            ));
        }
        Ok(())
    }

    fn describe(&mut self, array: Variable, rank: u32, layout: LayoutDescription) {
        match self.described(&array, rank, layout) {
            Err(reason) => {
                self.refused(&array.program, &reason);
                self.orders.push_back(CouplerOrder::Refused {
                    program: array.program,
                    rank,
                    reason,
                });
            }
            Ok(is_whole) => {
                let (mut sources, mut targets) = (Vec::new(), Vec::new());
                for (number, terms) in self.coupling.connections_of(&array) {
                    let ends = match terms.from == array {
                        true => &mut sources,
                        false => &mut targets,
                    };
                    ends.push(ConnectionPlace {
                        connection: number as u32,
                        every: terms.every,
                        place: self.coupling.place_into(number) as u16,
                    });
                }
                self.orders.push_back(CouplerOrder::Array {
                    sources,
                    targets,
                    program: array.program.clone(),
                    rank,
                    name: array.name.clone(),
                });
                self.repeat_failures(&array);
                if is_whole {
                    self.connect(&array);
                }
            }
        }
    }

    /// Tells who has come late which of the array's connections have failed already.
    fn repeat_failures(&mut self, array: &Variable) {
        for (number, _) in self.coupling.connections_of(array) {
            if let ConnectionState::Failed(reason) = &self.connections[number].state {
                self.orders.push_back(CouplerOrder::Fail {
                    connection: number as u32,
                    reason: reason.clone(),
                    gone: self.connections[number].gone.clone(),
                });
            }
        }
    }

    /// Whether all processes have described it now.
    fn described(
        &mut self,
        array: &Variable,
        rank: u32,
        layout: LayoutDescription,
    ) -> Result<bool, String> {
        checked_name(&array.name).map_err(|error| error.to_string())?;
        let Some(program) = self.programs.get_mut(&array.program) else {
            return Err(format!("{} has no process here", array.program));
        };
        let size = program.size;
        if let Some(known) = program.variables.get_mut(&array.name) {
            if known.layout != layout {
                let got = layout
                    .layout()
                    .map_or_else(|error| error, |made| made.to_string());
                return Err(format!(
                    "rank {rank} describes {array} as {got}; others as {}: all processes of a program give the same layout",
                    known.made
                ));
            }
            if !known.by.insert(rank) {
                return Err(format!("rank {rank} has described {array} already"));
            }
            return Ok(known.by.len() as u32 == size);
        }
        if program.variables.len() >= VARIABLES_MAX {
            return Err(format!(
                "{} has more than {VARIABLES_MAX} arrays",
                array.program
            ));
        }
        let made = layout.layout()?;
        if made.processes() != size {
            return Err(format!(
                "the layout of {array} is for {} processes, the program has {size}",
                made.processes()
            ));
        }
        program.variables.insert(
            array.name.clone(),
            DescribedArray {
                layout,
                made,
                by: BTreeSet::from([rank]),
            },
        );
        Ok(size == 1)
    }

    fn whole(&self, array: &Variable) -> Option<&DescribedArray> {
        let program = self.programs.get(&array.program)?;
        let described = program.variables.get(&array.name)?;
        (described.by.len() as u32 == program.size).then_some(described)
    }

    /// Makes what has both of its ends now.
    fn connect(&mut self, array: &Variable) {
        let numbers: Vec<usize> = self
            .coupling
            .connections_of(array)
            .map(|(number, _)| number)
            .collect();
        for number in numbers {
            if self.connections[number].state != ConnectionState::Waiting {
                continue;
            }
            let terms = &self.coupling.connections()[number];
            let (Some(source), Some(target)) = (self.whole(&terms.from), self.whole(&terms.to))
            else {
                continue;
            };
            let mapping = Mapping::new(
                &source.made,
                &target.made,
                terms.select.as_deref(),
                terms.into.as_deref(),
                terms.permute.as_deref(),
            );
            let connection = number as u32;
            match mapping {
                Ok(mapping) => {
                    let bytes = u64::from(target.made.element().bytes());
                    self.connections[number].version_bytes = mapping.elements() * bytes;
                    self.connections[number].state = ConnectionState::Ready;
                    self.orders.push_back(CouplerOrder::Connect { connection });
                }
                Err(error) => {
                    let reason = format!(
                        "{} is {}, {} is {}: {error}",
                        terms.from, source.made, terms.to, target.made
                    );
                    self.connections[number].state = ConnectionState::Failed(reason.clone());
                    self.orders.push_back(CouplerOrder::Fail {
                        connection,
                        reason,
                        gone: None,
                    });
                }
            }
        }
    }

    fn lose(&mut self, mut gone: GoneMember) {
        gone.loss = gone
            .loss
            .map(|loss| self.first_lost.get_or_insert(loss).clone());
        let rank = gone.rank;
        self.give_up(&gone.program, Some(&gone), |described, name| {
            let is_missing = described.is_none_or(|array| !array.by.contains(&rank));
            is_missing.then(|| format!("rank {rank} of {name} is gone, and has not said"))
        });
        self.orders.push_back(CouplerOrder::Gone(gone));
    }

    /// A process of a program was refused: what the program hasn't described won't be described by all of its processes.
    fn refused(&mut self, program: &str, why: &str) {
        if self.refusals.len() < REFUSALS_MAX {
            let refusal = (program.to_owned(), why.to_owned());
            self.refusals.push(refusal);
        }
        let size = self.programs.get(program).map(|program| program.size);
        self.give_up(program, None, |described, name| {
            let by = described.map_or(0, |array| array.by.len() as u32);
            (size != Some(by))
                .then(|| format!("a process of {name} was refused ({why}), and not all have said"))
        });
    }

    /// All processes of a program have ended: what they haven't described won't be.
    pub fn program_ended(&mut self, program: &str) {
        let size = self.programs.get(program).map(|program| program.size);
        self.give_up(program, None, |described, name| {
            let by = described.map_or(0, |array| array.by.len() as u32);
            match size {
                None => Some(format!(
                    "{name} has ended without a Member, so nobody has said"
                )),
                Some(size) if by < size => Some(format!(
                    "{name} has ended, and only {by} of its {size} processes have said"
                )),
                Some(_) => None,
            }
        });
    }

    /// Fails the connections of a program that wait for an array which is never described; `missing` says so of an array.
    fn give_up(
        &mut self,
        program: &str,
        gone: Option<&GoneMember>,
        missing: impl Fn(Option<&DescribedArray>, &str) -> Option<String>,
    ) {
        let known = self.programs.get(program);
        let terms = self.coupling.connections().iter().enumerate();
        let hopeless: Vec<(usize, String)> = terms
            .filter(|(number, _)| self.connections[*number].state == ConnectionState::Waiting)
            .filter_map(|(number, terms)| {
                let ends = [&terms.from, &terms.to].into_iter();
                let mut ends = ends.filter(|array| array.program == program);
                let reason = ends.find_map(|array| {
                    let described = known.and_then(|known| known.variables.get(&array.name));
                    let missing = missing(described, program)?;
                    Some(format!("{terms}: {missing} what {array} is"))
                });
                Some((number, reason?))
            })
            .collect();
        for (number, reason) in hopeless {
            self.connections[number].state = ConnectionState::Failed(reason.clone());
            self.connections[number].gone = gone.cloned();
            self.orders.push_back(CouplerOrder::Fail {
                connection: number as u32,
                reason,
                gone: gone.cloned(),
            });
        }
    }
}
