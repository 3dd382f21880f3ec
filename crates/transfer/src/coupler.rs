//! The machine of the coupler: which programs are there, whether their layouts fit, which connections are ready.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use exoskel_redist::{Layout, Mapping};
use serde::{Deserialize, Serialize};

use crate::attach::GIVE_RANKS;
use crate::attach::{ConnectionPlace, GoneMember, Loss, bounded};
use crate::between_hosts::{GivenUp, KeeperId, OWN_KEEPER, Welcome};
use crate::coupling::{Coupling, Variable, checked_name};
use crate::description::LayoutDescription;
use crate::{KEEPERS_MAX, MEMBERS_MAX, REFUSALS_MAX, VARIABLES_MAX};

mod absence;
mod ends;
mod overlaps;

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
    /// What a process has taken over a connection. Said when it goes, for who looks at the end.
    Moved {
        /// The connection.
        connection: u32,
        /// Which process of the target.
        rank: u32,
        /// What it has taken.
        taken: TakenVersions,
    },
    /// A process is gone.
    Gone(GoneMember),
    /// All that the keeper had to say of this program before it heard of its end has been said.
    ProgramEnded {
        /// The program.
        program: String,
    },
    /// The keeper is there, and has said all that it had to say before it was asked.
    Present,
    /// The keeper knows what it needs of a connection's index sets.
    KnowsIndices {
        /// The connection.
        connection: u32,
    },
    /// A connection can't be, as its keeper has seen by the index sets.
    Unfit {
        /// The connection.
        connection: u32,
        /// Why, with both sides and the numbers.
        reason: String,
    },
    /// Another keeper can't be reached.
    Unreachable {
        /// Which.
        keeper: KeeperId,
        /// What was seen.
        why: String,
    },
}

/// What a process has taken over a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TakenVersions {
    /// The last of the source's versions.
    pub version: u64,
    /// Bytes of all of them.
    pub bytes: u64,
    /// How long it has copied, in nanoseconds.
    pub nanoseconds: u64,
}

/// One end of a connection, as all keepers have to know it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CoupledEnd {
    /// How its program shares the array out.
    pub layout: LayoutDescription,
    /// The keepers of the program's processes, by their ranks.
    pub keepers: Vec<KeeperId>,
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
        /// Where it begins.
        source: Box<CoupledEnd>,
        /// Where it ends.
        target: Box<CoupledEnd>,
    },
    /// All keepers know what they need of a connection's index sets: it can be used.
    Begin {
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
    /// The command that started a program has ended. Answered by [`KeeperReport::ProgramEnded`].
    ProgramEnded {
        /// The program.
        program: String,
    },
    /// Another keeper can't reach this one. Answered by [`KeeperReport::Present`].
    Doubt,
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
    /// Whether its processes are on several hosts.
    pub is_between_hosts: bool,
    /// The process whose end is why it has failed, if one is.
    gone: Option<GoneMember>,
    /// Keepers that have not said that they know what they need of the index sets.
    awaited: BTreeSet<KeeperId>,
}

/// What is known of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProgramStatus<'a> {
    /// Its name.
    pub name: &'a str,
    /// How many processes it has.
    pub size: u32,
    /// How many have come.
    pub present: u32,
    /// How many of these have gone.
    pub gone: u32,
}

#[derive(Debug)]
struct KnownProgram {
    size: u32,
    /// Whose members they are.
    present: BTreeMap<u32, KeeperId>,
    gone: BTreeSet<u32>,
    variables: BTreeMap<String, DescribedArray>,
}

#[derive(Debug)]
struct DescribedArray {
    layout: LayoutDescription,
    made: Layout,
    by: BTreeSet<u32>,
}

/// Knows programs, layouts and connections.
#[derive(Debug)]
pub struct Coupler {
    coupling: Coupling,
    programs: BTreeMap<String, KnownProgram>,
    connections: Vec<ConnectionStatus>,
    first_lost: Option<Loss>,
    refusals: Vec<(String, String)>,
    /// How many processes were there at the last look, and since when.
    last_attached: (usize, Duration),
    last_keeper: KeeperId,
    lost_keepers: BTreeSet<KeeperId>,
    /// Of these nobody has been told yet, with the reasons.
    given_up: VecDeque<(KeeperId, GivenUp)>,
    /// Those that others can't reach: by whom, and why. What they have said themselves before comes first.
    doubted: BTreeMap<KeeperId, BTreeMap<KeeperId, String>>,
    /// Programs whose commands have ended, with the keepers that may still have reports under way.
    ended: BTreeMap<String, BTreeSet<KeeperId>>,
    /// For keepers that come later.
    gone: BTreeMap<(String, u32), GoneMember>,
    moved: BTreeMap<(u32, u32), TakenVersions>,
    orders: VecDeque<(Option<KeeperId>, CouplerOrder)>,
}

impl ConnectionStatus {
    /// Whether all its keepers know what they need of it: then it goes on by itself.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        self.state != ConnectionState::Waiting && self.awaited.is_empty()
    }
}

impl Coupler {
    /// For what a file says.
    #[must_use]
    pub fn new(coupling: Coupling) -> Self {
        let connections = coupling.connections().iter().map(|terms| ConnectionStatus {
            name: terms.to_string(),
            state: ConnectionState::Waiting,
            version_bytes: 0,
            is_between_hosts: false,
            gone: None,
            awaited: BTreeSet::new(),
        });
        Self {
            connections: connections.collect(),
            coupling,
            programs: BTreeMap::new(),
            first_lost: None,
            refusals: Vec::new(),
            last_attached: (0, Duration::ZERO),
            last_keeper: OWN_KEEPER,
            lost_keepers: BTreeSet::new(),
            given_up: VecDeque::new(),
            doubted: BTreeMap::new(),
            ended: BTreeMap::new(),
            gone: BTreeMap::new(),
            moved: BTreeMap::new(),
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

    /// The programs that have come.
    pub fn programs(&self) -> impl Iterator<Item = ProgramStatus<'_>> {
        self.programs.iter().map(|(name, program)| ProgramStatus {
            name,
            size: program.size,
            present: program.present.len() as u32,
            gone: program.gone.len() as u32,
        })
    }

    /// What each process on another host has taken over a connection, as is said when it goes. None if one has not said, or was lost with
    /// its keeper.
    #[must_use]
    pub fn moved(&self, connection: u32) -> Option<Vec<(u32, TakenVersions)>> {
        let terms = self.coupling.connections().get(connection as usize)?;
        let ranks = self.elsewhere(&terms.to.program);
        let said = ranks.map(|rank| Some((rank, *self.moved.get(&(connection, rank))?)));
        said.collect()
    }

    /// The last version of an array that each process on another host has exported, as is said when it goes. None if that isn't known of one.
    #[must_use]
    pub fn exported(&self, array: &Variable) -> Option<Vec<(u32, u64)>> {
        let ranks = self.elsewhere(&array.program);
        let said = ranks.map(|rank| {
            let gone = self.gone.get(&(array.program.clone(), rank))?;
            let last = gone.exported.get(&array.name).copied();
            // Of who was lost with its keeper nothing is known.
            Some((rank, last.or_else(|| gone.loss.is_none().then_some(0))?))
        });
        said.collect()
    }

    /// The processes of a program that are on other hosts.
    fn elsewhere(&self, program: &str) -> impl Iterator<Item = u32> {
        let known = self.programs.get(program).into_iter();
        let present = known.flat_map(|program| &program.present);
        present
            .filter(|(_, keeper)| **keeper != OWN_KEEPER)
            .map(|(rank, _)| *rank)
    }

    /// What a keeper is to be told next; all of them, if none is named.
    pub fn next_order(&mut self) -> Option<(Option<KeeperId>, CouplerOrder)> {
        self.orders.pop_front()
    }

    fn tell_all(&mut self, order: CouplerOrder) {
        self.orders.push_back((None, order));
    }

    /// The next keeper that was given up, and why: all others are to be told, and that keeper when it asks.
    pub fn next_given_up(&mut self) -> Option<(KeeperId, GivenUp)> {
        self.given_up.pop_front()
    }

    /// A keeper of another host takes part from now on.
    ///
    /// # Errors
    /// In words, after [`KEEPERS_MAX`].
    pub fn join(&mut self) -> Result<Welcome, String> {
        if self.last_keeper >= KEEPERS_MAX {
            return Err(format!(
                "{KEEPERS_MAX} keepers have joined already, which is the most for one coupling"
            ));
        }
        self.last_keeper += 1;
        Ok(Welcome {
            keeper: self.last_keeper,
            programs: self.coupling.programs().keys().cloned().collect(),
            connections: self.coupling.connections().to_vec(),
            gone: self.gone.values().cloned().collect(),
        })
    }

    /// Takes what a keeper says.
    pub fn report(&mut self, keeper: KeeperId, report: KeeperReport) {
        if self.lost_keepers.contains(&keeper) {
            return;
        }
        match report {
            KeeperReport::Attach {
                program,
                rank,
                size,
            } => {
                let order = match self.attach(keeper, &program, rank, size) {
                    Ok(()) => CouplerOrder::Attached { program, rank },
                    Err(reason) => {
                        let reason = bounded(reason);
                        self.refused(&program, &reason);
                        CouplerOrder::Refused {
                            program,
                            rank,
                            reason,
                        }
                    }
                };
                self.orders.push_back((Some(keeper), order));
            }
            KeeperReport::Array {
                program,
                rank,
                name,
                layout,
            } => {
                if self.has(keeper, &program, rank) {
                    self.describe(keeper, Variable { program, name }, rank, layout);
                }
            }
            KeeperReport::Refused { program, reason } => self.refused(&program, &reason),
            KeeperReport::Moved {
                connection,
                rank,
                taken,
            } => {
                let terms = self.coupling.connections().get(connection as usize);
                let program = terms.map(|terms| terms.to.program.clone());
                if program.is_some_and(|program| self.has(keeper, &program, rank)) {
                    self.moved.insert((connection, rank), taken);
                }
            }
            KeeperReport::Gone(gone) => self.report_gone(keeper, gone),
            KeeperReport::ProgramEnded { program } => {
                if let Some(keepers) = self.ended.get_mut(&program) {
                    keepers.remove(&keeper);
                }
                self.settle(&program);
            }
            KeeperReport::Present => {
                // All have gone since who couldn't reach it.
                let doubts = self.doubted.remove(&keeper).unwrap_or_default();
                if let Some(why) = doubts.into_values().next() {
                    self.keeper_lost(keeper, &why);
                }
            }
            KeeperReport::KnowsIndices { connection } => self.knows_indices(keeper, connection),
            KeeperReport::Unfit { connection, reason } => {
                self.report_unfit(keeper, connection, reason);
            }
            KeeperReport::Unreachable { keeper: other, why } => {
                self.report_unreachable(keeper, other, &why);
            }
        }
    }

    /// Whether a keeper has this process: it speaks for no other one.
    fn has(&self, keeper: KeeperId, program: &str, rank: u32) -> bool {
        let program = self.programs.get(program);
        program.is_some_and(|program| program.present.get(&rank) == Some(&keeper))
    }

    fn attach(&mut self, keeper: KeeperId, name: &str, rank: u32, size: u32) -> Result<(), String> {
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
                present: BTreeMap::new(),
                gone: BTreeSet::new(),
                variables: BTreeMap::new(),
            });
        if program.size != size {
            return Err(format!(
                "rank {rank} of {name} says that the program has {size} processes, others say {}: start all with the same size",
                program.size
            ));
        }
        if program.present.contains_key(&rank) {
            return Err(format!(
                "got rank {rank} of {name} twice, expected a rank of its own for each process: {GIVE_RANKS}"
            ));
        }
        program.present.insert(rank, keeper);
        Ok(())
    }

    fn describe(
        &mut self,
        keeper: KeeperId,
        array: Variable,
        rank: u32,
        layout: LayoutDescription,
    ) {
        match self.described(&array, rank, layout) {
            Err(reason) => {
                let reason = bounded(reason);
                self.refused(&array.program, &reason);
                let order = CouplerOrder::Refused {
                    program: array.program,
                    rank,
                    reason,
                };
                self.orders.push_back((Some(keeper), order));
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
                        source_place: self.coupling.place_from(number) as u16,
                    });
                }
                let order = CouplerOrder::Array {
                    sources,
                    targets,
                    program: array.program.clone(),
                    rank,
                    name: array.name.clone(),
                };
                self.orders.push_back((Some(keeper), order));
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
                let order = CouplerOrder::Fail {
                    connection: number as u32,
                    reason: reason.clone(),
                    gone: self.connections[number].gone.clone(),
                };
                self.orders.push_back((None, order));
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

    fn connection_end(&self, array: &Variable) -> Option<CoupledEnd> {
        let keepers = self.programs.get(&array.program)?.present.values();
        Some(CoupledEnd {
            layout: self.whole(array)?.layout.clone(),
            keepers: keepers.copied().collect(),
        })
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
            let terms = self.coupling.connections()[number].clone();
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
            let fits = mapping.map_err(|error| {
                format!(
                    "{} is {}, {} is {}: {error}",
                    terms.from, source.made, terms.to, target.made
                )
            });
            let overlap = self.overlap(number, &target.made).map_or(Ok(()), Err);
            match overlap.and(fits) {
                Ok(mapping) => {
                    let bytes = u64::from(target.made.element().bytes());
                    let has_index_sets = [&source.made, &target.made]
                        .iter()
                        .any(|layout| layout.index_sets().next().is_some());
                    self.connections[number].version_bytes = mapping.elements() * bytes;
                    self.connections[number].state = ConnectionState::Ready;
                    let source = self.connection_end(&terms.from);
                    let target = self.connection_end(&terms.to);
                    if let (Some(source), Some(target)) = (source, target) {
                        let mut keepers = source.keepers.iter().chain(&target.keepers);
                        let first = keepers.next();
                        let is_between_hosts = keepers.any(|keeper| Some(keeper) != first);
                        self.connections[number].is_between_hosts = is_between_hosts;
                        if is_between_hosts && has_index_sets {
                            let keepers = source.keepers.iter().chain(&target.keepers);
                            self.connections[number].awaited = keepers.copied().collect();
                            let lost = self.connections[number].awaited.iter();
                            let lost = lost.copied().find(|its| self.lost_keepers.contains(its));
                            if let Some(lost) = lost {
                                self.fail_unsettled(lost);
                                continue;
                            }
                        }
                        self.tell_all(CouplerOrder::Connect {
                            connection,
                            source: Box::new(source),
                            target: Box::new(target),
                        });
                    }
                }
                Err(reason) => self.fail(number, reason, None),
            }
        }
    }

    /// A connection can't be, and those at both of its ends are told.
    pub(super) fn fail(&mut self, number: usize, reason: String, gone: Option<GoneMember>) {
        let status = &mut self.connections[number];
        status.state = ConnectionState::Failed(reason.clone());
        status.gone.clone_from(&gone);
        status.awaited.clear();
        self.tell_all(CouplerOrder::Fail {
            connection: number as u32,
            reason,
            gone,
        });
    }

    /// A keeper knows what it needs of index sets. When all do, the connection can be used.
    fn knows_indices(&mut self, keeper: KeeperId, connection: u32) {
        let status = self.connections.get_mut(connection as usize);
        if status.is_some_and(|status| status.awaited.remove(&keeper) && status.awaited.is_empty())
        {
            self.tell_all(CouplerOrder::Begin { connection });
        }
    }

    /// A keeper says that the index sets of a connection's ends don't fit.
    fn report_unfit(&mut self, keeper: KeeperId, connection: u32, reason: String) {
        let number = connection as usize;
        let Some(terms) = self.coupling.connections().get(number) else {
            return;
        };
        let has = |array: &Variable| {
            let program = self.programs.get(&array.program);
            program.is_some_and(|program| program.present.values().any(|its| *its == keeper))
        };
        let is_its_own = has(&terms.from) || has(&terms.to);
        if is_its_own && self.connections[number].state == ConnectionState::Ready {
            self.fail(number, bounded(reason), None);
        }
    }

    /// A process of a program was refused: what the program hasn't described won't be described by all of its processes.
    fn refused(&mut self, program: &str, why: &str) {
        let why = bounded(why.to_owned());
        if self.refusals.len() < REFUSALS_MAX {
            let refusal = (bounded(program.to_owned()), why.clone());
            self.refusals.push(refusal);
        }
        let size = self.programs.get(program).map(|program| program.size);
        self.give_up(program, None, |described, name| {
            let by = described.map_or(0, |array| array.by.len() as u32);
            (size != Some(by))
                .then(|| format!("a process of {name} was refused ({why}), and not all have said"))
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
                    let instead = known.and_then(|known| known.described_instead(array));
                    let instead = instead.unwrap_or_default();
                    Some(format!("{terms}: {missing} what {array} is{instead}"))
                });
                Some((number, reason?))
            })
            .collect();
        for (number, reason) in hopeless {
            self.connections[number].state = ConnectionState::Failed(reason.clone());
            self.connections[number].gone = gone.cloned();
            self.tell_all(CouplerOrder::Fail {
                connection: number as u32,
                reason,
                gone: gone.cloned(),
            });
        }
    }
}
