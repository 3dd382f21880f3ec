//! The machine of a keeper: its members, their arrays' memory, and whom of them it tells of whose.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use exoskel_redist::{CutCopy, Layout, Mapping, PlanSide, RedistributionPlan};

use crate::attach::{
    ArrayEnd, AttachRequest, ConnectedTerms, ConnectionPlace, GIVE_RANKS, GoneMember,
    KeeperMessage, Loss, MemberMessage, bounded,
};
use crate::between_hosts::{KeeperId, PieceHead, RankPair, WantedVersion};
use crate::coupler::{CoupledEnd, CouplerOrder, KeeperReport};
use crate::coupling::{ConnectionTerms, Coupling, Variable};
use crate::description::LayoutDescription;
use crate::indices::IndexParts;
use crate::rank_pairs::{RankPairs, TargetPart};
use directory::{IndexDirectories, KnownConnection};
pub use directory::{IndexWord, SaidIndices};
use index_sets::{OwnSets, with_own_sets};

mod directory;
mod index_sets;
mod losses;
#[cfg(test)]
mod tests;

/// A member's socket, in words of who drives the machine.
pub type MemberId = u64;

/// The memory of one process's part of an array.
pub type MemoryId = u64;

/// What the driver is to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeeperAction {
    /// Make memory for a board and so many bytes, which are zero.
    Allocate {
        /// What it is called from now on.
        memory: MemoryId,
        /// Behind the board.
        bytes: u64,
    },
    /// Tell a member.
    Send {
        /// Whom.
        member: MemberId,
        /// What.
        message: KeeperMessage,
        /// Its descriptor comes along: to write for who has it, to read for others.
        memory: Option<(MemoryId, MemoryAccess)>,
    },
    /// End what a member's socket carries, when it has been told what is waiting for it.
    Close {
        /// Whose.
        member: MemberId,
    },
    /// Tell the coupler.
    Report(KeeperReport),
    /// Ask a keeper for a version: a member's part of a target may be written.
    Want {
        /// Whom.
        keeper: KeeperId,
        /// For whom, and which.
        wanted: WantedVersion,
    },
    /// Tell a keeper something of index sets. What is told to one keeper must come in this order.
    Indices {
        /// Whom.
        keeper: KeeperId,
        /// What.
        said: SaidIndices,
    },
    /// Send a keeper what a member has exported, and say so by [`Keeper::departed`].
    Depart {
        /// Whom.
        keeper: KeeperId,
        /// From whom to whom.
        pair: RankPair,
        /// Which of the source's versions.
        version: u64,
        /// Where it is.
        memory: MemoryId,
    },
    /// Write on a source's board that all versions up to this one are on their way to other hosts.
    Release {
        /// Whose board.
        memory: MemoryId,
        /// The connection's place there.
        place: u16,
        /// The version.
        version: u64,
    },
    /// Write on a target's board that all that comes from other hosts for this version is there.
    Arrive {
        /// Whose board.
        memory: MemoryId,
        /// The connection's place there.
        place: u16,
        /// Which of the source's versions.
        version: u64,
    },
}

/// What who gets memory may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryAccess {
    /// Its own.
    ReadWrite,
    /// Another's.
    ReadOnly,
}

#[derive(Debug)]
struct KnownMember {
    program: String,
    rank: u32,
    is_attached: bool,
    /// Its socket has ended. Its arrays stay: what they have may not have been taken yet.
    is_gone: bool,
    /// Layouts of arrays of which the coupler is asked.
    asked: BTreeMap<String, LayoutDescription>,
    arrays: BTreeMap<String, KeptArray>,
    /// Index sets of arrays that are not described yet.
    said_sets: BTreeMap<String, IndexParts>,
    /// Those of arrays that are.
    sets: BTreeMap<String, OwnSets>,
}

#[derive(Debug)]
struct KeptArray {
    memory: MemoryId,
    bytes: u64,
    /// The last version that its member has told of.
    exported: u64,
}

/// Knows the members of one host.
#[derive(Debug)]
pub struct Keeper {
    id: KeeperId,
    /// Whether there may be keepers on other hosts.
    has_others: bool,
    coupling: Coupling,
    pairs: RankPairs,
    members: BTreeMap<MemberId, KnownMember>,
    places: BTreeMap<(String, u32), MemberId>,
    /// For those who come later.
    gone: BTreeMap<(String, u32), GoneMember>,
    /// What other keepers have said of their processes while the coupler was there.
    told: BTreeMap<KeeperId, BTreeMap<(String, u32), GoneMember>>,
    /// Keepers that we can't reach, and why.
    unreachable: BTreeMap<KeeperId, String>,
    /// Those of our own. When the coupler is lost, who knows whether it has told of the last ones.
    own_gone: Vec<GoneMember>,
    /// Why nobody can be let in any more, and nothing described.
    coupler_lost: Option<String>,
    /// The process here that was lost first for all others, since the coupler has given up this host.
    given_up: Option<Loss>,
    last_memory: MemoryId,
    /// Runs that its members have said of their index sets.
    index_runs: usize,
    directories: IndexDirectories,
    actions: VecDeque<KeeperAction>,
}

impl Keeper {
    /// For a coupling, by the number that the coupler gives it. `has_others` says whether there may be keepers on other hosts.
    #[must_use]
    pub fn new(coupling: Coupling, id: KeeperId, has_others: bool) -> Self {
        Self {
            id,
            has_others,
            coupling,
            pairs: RankPairs::default(),
            members: BTreeMap::new(),
            places: BTreeMap::new(),
            gone: BTreeMap::new(),
            told: BTreeMap::new(),
            unreachable: BTreeMap::new(),
            own_gone: Vec::new(),
            coupler_lost: None,
            given_up: None,
            last_memory: 0,
            index_runs: 0,
            directories: IndexDirectories::default(),
            actions: VecDeque::new(),
        }
    }

    /// What is to be done next.
    pub fn next_action(&mut self) -> Option<KeeperAction> {
        self.actions.pop_front()
    }

    /// Its number.
    #[must_use]
    pub fn id(&self) -> KeeperId {
        self.id
    }

    /// What it keeps arrays for.
    #[must_use]
    pub fn coupling(&self) -> &Coupling {
        &self.coupling
    }

    /// How many members are here.
    #[must_use]
    pub fn member_count(&self) -> usize {
        let members = self.members.values();
        members.filter(|member| !member.is_gone).count()
    }

    /// The memory of the parts of an array that are here, with the ranks.
    pub fn memory_of(&self, array: &Variable) -> Vec<(u32, MemoryId)> {
        let members = self.members.values();
        let members = members.filter(|member| member.program == array.program);
        let found = members.filter_map(|member| {
            let kept = member.arrays.get(&array.name)?;
            Some((member.rank, kept.memory))
        });
        found.collect()
    }

    /// Whether a process has attached, and has not gone.
    #[must_use]
    pub fn is_here(&self, program: &str, rank: u32) -> bool {
        let id = self.places.get(&(program.to_owned(), rank));
        let known = id.and_then(|id| self.members.get(id));
        known.is_some_and(|member| member.is_attached && !member.is_gone)
    }

    /// Takes what a member says. What it says first must be who it is.
    pub fn hear(&mut self, id: MemberId, message: MemberMessage) {
        let needs_coupler = matches!(
            message,
            MemberMessage::Attach(_) | MemberMessage::Array { .. }
        );
        if let Some(why) = self.coupler_lost.clone().filter(|_| needs_coupler) {
            return self.refuse_without_coupler(id, why);
        }
        match (message, self.members.get_mut(&id)) {
            (MemberMessage::Attach(request), None) => {
                let other_version = request.other_version();
                let AttachRequest {
                    program,
                    rank,
                    size,
                    ..
                } = request;
                if let Some(reason) = other_version {
                    return self.refuse_new(id, program, reason);
                }
                let place = (program.clone(), rank);
                if let Some(other) = self.places.get(&place) {
                    let has_left = self.members.get(other).is_some_and(|other| other.is_gone);
                    let reason = match has_left {
                        true => format!(
                            "rank {rank} of {program} has left already: a process attaches once"
                        ),
                        false => format!(
                            "rank {rank} of {program} is here already, expected a rank of its own for each process: {GIVE_RANKS}"
                        ),
                    };
                    return self.refuse_new(id, program, reason);
                }
                self.places.insert(place, id);
                self.members.insert(
                    id,
                    KnownMember {
                        program: program.clone(),
                        rank,
                        is_attached: false,
                        is_gone: false,
                        asked: BTreeMap::new(),
                        arrays: BTreeMap::new(),
                        said_sets: BTreeMap::new(),
                        sets: BTreeMap::new(),
                    },
                );
                self.actions
                    .push_back(KeeperAction::Report(KeeperReport::Attach {
                        program,
                        rank,
                        size,
                    }));
            }
            (MemberMessage::Indices { name, part }, Some(member)) if member.is_attached => {
                self.hear_indices(id, name, &part);
            }
            (MemberMessage::Array { name, layout }, Some(member)) if member.is_attached => {
                let (program, rank) = (member.program.clone(), member.rank);
                let is_known = member.arrays.contains_key(&name);
                if is_known || member.asked.insert(name.clone(), layout.clone()).is_some() {
                    return self.refuse(id, format!("rank {rank} has asked for {name:?} already"));
                }
                if let Err(reason) = self.take_sets(id, &name, &layout) {
                    return self.refuse_array(id, program, &name, reason);
                }
                self.actions
                    .push_back(KeeperAction::Report(KeeperReport::Array {
                        program,
                        rank,
                        name,
                        layout,
                    }));
            }
            (MemberMessage::Exported { name, version }, Some(member)) if self.has_others => {
                let Some(array) = member.arrays.get_mut(&name) else {
                    return self.refuse_and_close(
                        id,
                        format!("got a version of {name:?}, which isn't there"),
                    );
                };
                array.exported = array.exported.max(version);
                let source = Variable {
                    program: member.program.clone(),
                    name,
                };
                let rank = member.rank;
                self.depart(&source, rank);
            }
            (
                MemberMessage::Want {
                    connection,
                    version,
                },
                Some(member),
            ) if self.has_others => {
                let wanted = WantedVersion {
                    keeper: self.id,
                    connection,
                    target: member.rank,
                    version,
                };
                let is_its_own = self
                    .coupling
                    .connections()
                    .get(connection as usize)
                    .is_some_and(|terms| terms.to.program == member.program);
                let keepers = match is_its_own {
                    true => self.pairs.want(connection, member.rank, version),
                    false => Vec::new(),
                };
                for keeper in keepers {
                    self.actions
                        .push_back(KeeperAction::Want { keeper, wanted });
                }
            }
            (
                MemberMessage::Forgo {
                    connection,
                    version,
                },
                Some(member),
            ) if self.has_others => {
                let terms = self.coupling.connections().get(connection as usize);
                let is_its_own = terms.is_some_and(|terms| terms.to.program == member.program);
                let rank = member.rank;
                if is_its_own && self.pairs.forgo(connection, rank, version) {
                    self.say_forgone(connection, rank);
                } else {
                    let forgone = KeeperMessage::Forgone {
                        connection,
                        version,
                    };
                    self.send(id, forgone, None);
                }
            }
            (MemberMessage::Leave { error }, Some(_)) => {
                self.actions.push_back(KeeperAction::Close { member: id });
                self.end(id, error);
            }
            _ => self.refuse_and_close(id, "got a message that isn't due".to_owned()),
        }
    }

    /// What a member has said can't be read: nothing more of it can.
    pub fn not_understood(&mut self, id: MemberId, why: &str) {
        self.refuse_and_close(id, why.to_owned());
    }

    /// A member's socket has ended, without a word before.
    pub fn lost(&mut self, id: MemberId, why: &str) {
        self.end(id, Some(why.to_owned()));
    }

    fn end(&mut self, id: MemberId, why: Option<String>) {
        let Some(member) = self.members.get_mut(&id).filter(|member| !member.is_gone) else {
            return;
        };
        let (program, rank) = (member.program.clone(), member.rank);
        member.is_gone = true;
        member.asked.clear();
        let exported = member.arrays.iter();
        let exported = exported.map(|(name, array)| (name.clone(), array.exported));
        let exported = exported.filter(|(_, version)| *version > 0).collect();
        let was_attached = member.is_attached;
        if !was_attached {
            self.members.remove(&id);
            self.places.remove(&(program.clone(), rank));
        }
        let loss = why.map(|why| Loss {
            program: program.clone(),
            rank,
            why: bounded(why),
        });
        // Also of one that the coupler may have let in meanwhile: if it hasn't, it knows of no such process.
        let gone = GoneMember {
            program,
            rank,
            loss,
            exported,
            lost_since: None,
        };
        if was_attached {
            self.own_gone.push(gone.clone());
        }
        let gone = self.as_given(gone);
        self.actions
            .push_back(KeeperAction::Report(KeeperReport::Gone(gone)));
    }

    /// All processes of a program have ended, whatever still has their sockets.
    pub fn program_ended(&mut self, program: &str) {
        let left = self.having(|member| member.program == program);
        for member in left {
            self.lost(member, "its program has ended");
        }
    }

    fn refuse(&mut self, member: MemberId, reason: String) {
        self.send(member, KeeperMessage::Refused { reason }, None);
    }

    /// Refuses an array: not all processes of its program will have described it.
    fn refuse_array(&mut self, id: MemberId, program: String, name: &str, reason: String) {
        if let Some(member) = self.members.get_mut(&id) {
            member.asked.remove(name);
        }
        let report = KeeperReport::Refused {
            program,
            reason: reason.clone(),
        };
        self.actions.push_back(KeeperAction::Report(report));
        self.refuse(id, reason);
    }

    /// Refuses who is no member yet: its program will not be whole.
    fn refuse_new(&mut self, id: MemberId, program: String, reason: String) {
        let refused = reason.clone();
        self.actions
            .push_back(KeeperAction::Report(KeeperReport::Refused {
                program,
                reason: refused,
            }));
        self.refuse_and_close(id, reason);
    }

    fn refuse_and_close(&mut self, member: MemberId, reason: String) {
        let why = format!("it was refused: {reason}");
        self.refuse(member, reason);
        self.end(member, Some(why));
        self.actions.push_back(KeeperAction::Close { member });
    }

    fn send(
        &mut self,
        member: MemberId,
        message: KeeperMessage,
        memory: Option<(MemoryId, MemoryAccess)>,
    ) {
        if self.members.get(&member).is_some_and(|known| known.is_gone) {
            return;
        }
        self.actions.push_back(KeeperAction::Send {
            member,
            message,
            memory,
        });
    }

    /// Memory could not be had.
    pub fn no_memory(&mut self, memory: MemoryId, why: &str) {
        let has = |member: &KnownMember| {
            let mut arrays = member.arrays.values();
            arrays.any(|array| array.memory == memory)
        };
        let found = self.members.iter().find(|(_, member)| has(member));
        if let Some((id, _)) = found {
            let id = *id;
            self.refuse_and_close(id, format!("the keeper has no memory for it: {why}"));
        }
    }

    /// Takes what the coupler says.
    pub fn order(&mut self, order: CouplerOrder) {
        // What was on its way when the coupler was lost: those whom it concerns have been told otherwise.
        if self.coupler_lost.is_some() {
            return;
        }
        match order {
            CouplerOrder::Attached { program, rank } => {
                if let Some(id) = self.places.get(&(program, rank)).copied() {
                    if let Some(member) = self.members.get_mut(&id) {
                        member.is_attached = true;
                    }
                    self.send(id, KeeperMessage::Attached, None);
                    for gone in self.gone.clone().into_values() {
                        self.tell(&gone, Some(id));
                    }
                }
            }
            CouplerOrder::Refused {
                program,
                rank,
                reason,
            } => {
                if let Some(id) = self.places.get(&(program, rank)).copied() {
                    self.refuse_and_close(id, reason);
                }
            }
            CouplerOrder::Array {
                program,
                rank,
                name,
                sources,
                targets,
            } => self.allocate(&program, rank, name, sources, targets),
            CouplerOrder::Connect {
                connection,
                source,
                target,
            } => self.connect(connection, &source, &target),
            CouplerOrder::Begin { connection } => self.begin(connection),
            CouplerOrder::Fail {
                connection,
                reason,
                gone,
            } => self.fail(connection, &reason, gone.as_ref()),
            CouplerOrder::Gone(gone) => self.lose(gone),
            CouplerOrder::ProgramEnded { program } => {
                let said = KeeperReport::ProgramEnded { program };
                self.actions.push_back(KeeperAction::Report(said));
            }
            CouplerOrder::Doubt => {
                let present = KeeperAction::Report(KeeperReport::Present);
                self.actions.push_back(present);
            }
        }
    }

    /// Tells the members at both ends of a connection that it can't be.
    fn fail(&mut self, connection: u32, reason: &str, gone: Option<&GoneMember>) {
        self.directories.close(connection);
        let Some(terms) = self.coupling.connections().get(connection as usize) else {
            return;
        };
        let ends = [terms.from.clone(), terms.to.clone()];
        for member in self.having(|member| ends.iter().any(|end| member.has(end))) {
            let failed = KeeperMessage::Failed {
                connection,
                reason: reason.to_owned(),
                gone: gone.cloned(),
            };
            self.send(member, failed, None);
        }
    }

    /// A keeper says that a version may come to one of its members.
    pub fn wanted(&mut self, wanted: WantedVersion) {
        let connection = wanted.connection;
        if connection as usize >= self.coupling.connections().len() {
            return;
        }
        for source in self.pairs.wanted(wanted) {
            if let Some(terms) = self.coupling.connections().get(connection as usize) {
                let from = terms.from.clone();
                self.depart(&from, source);
            }
        }
    }

    /// All of a version is on its way: its source may be written as far as this pair goes.
    pub fn departed(&mut self, pair: RankPair) {
        if !self.pairs.departed(pair) {
            return;
        }
        self.release(pair.connection, pair.source);
        let terms = self.coupling.connections().get(pair.connection as usize);
        if let Some(source) = terms.map(|terms| terms.from.clone()) {
            self.depart(&source, pair.source);
        }
    }

    /// A version doesn't go any more: its keeper is lost, or all is over.
    pub fn not_departed(&mut self, pair: RankPair) {
        self.pairs.not_departed(pair);
        self.release(pair.connection, pair.source);
    }

    /// Where a piece may be written that has come from a keeper; none if nobody asked for it. What is written is told by
    /// [`Keeper::arrived`], what isn't by [`Keeper::not_arrived`].
    #[must_use]
    pub fn expected(&mut self, head: &PieceHead) -> Option<MemoryId> {
        self.pairs.expected(head)
    }

    /// A piece was written. `is_last` says that nothing more comes of this pair's version.
    pub fn arrived(&mut self, head: &PieceHead, is_last: bool) {
        if let Some(arrival) = self.pairs.arrived(head, is_last) {
            self.actions.push_back(KeeperAction::Arrive {
                memory: arrival.memory,
                place: arrival.place,
                version: head.version,
            });
        }
        if is_last {
            self.tell_if_last(head);
        }
        self.say_forgone(head.pair.connection, head.pair.target);
    }

    /// A piece that was expected is none, and was not written.
    pub fn not_arrived(&mut self, head: &PieceHead) {
        self.pairs.not_arrived(head);
        self.say_forgone(head.pair.connection, head.pair.target);
    }

    /// Tells a member that nothing is written any more of what it wants no more, when that is so.
    fn say_forgone(&mut self, connection: u32, target: u32) {
        let Some(version) = self.pairs.forgone(connection, target) else {
            return;
        };
        let terms = self.coupling.connections().get(connection as usize);
        let place = terms.map(|terms| (terms.to.program.clone(), target));
        if let Some(id) = place.and_then(|place| self.places.get(&place)).copied() {
            let forgone = KeeperMessage::Forgone {
                connection,
                version,
            };
            self.send(id, forgone, None);
        }
    }

    /// How what one of our members gives to one elsewhere is packed. Worked out once.
    pub fn packing(&mut self, pair: RankPair) -> Option<Arc<CutCopy>> {
        let terms = self.coupling.connections().get(pair.connection as usize)?;
        self.pairs.cut(terms, pair, PlanSide::Source)
    }

    /// How what comes to one of our members from one elsewhere is unpacked. Worked out once.
    pub fn unpacking(&mut self, pair: RankPair) -> Option<Arc<CutCopy>> {
        let terms = self.coupling.connections().get(pair.connection as usize)?;
        self.pairs.cut(terms, pair, PlanSide::Target)
    }

    /// Has what a member of this rank has exported sent to those who want it.
    fn depart(&mut self, source: &Variable, rank: u32) {
        let Some(array) = self.array_of(source, rank) else {
            return;
        };
        let (memory, exported) = (array.memory, array.exported);
        let numbers: Vec<u32> = self
            .coupling
            .connections_of(source)
            .filter(|(_, terms)| terms.from == *source)
            .map(|(number, _)| number as u32)
            .collect();
        for connection in numbers {
            for (keeper, target, version) in self.pairs.depart(connection, rank, exported) {
                self.actions.push_back(KeeperAction::Depart {
                    keeper,
                    pair: RankPair {
                        connection,
                        source: rank,
                        target,
                    },
                    version,
                    memory,
                });
            }
        }
    }

    fn array_of(&self, array: &Variable, rank: u32) -> Option<&KeptArray> {
        let member = self.places.get(&(array.program.clone(), rank))?;
        self.members.get(member)?.arrays.get(&array.name)
    }

    /// Says on a source's board which versions are on their way to all who take them elsewhere.
    fn release(&mut self, connection: u32, rank: u32) {
        let Some(terms) = self.coupling.connections().get(connection as usize) else {
            return;
        };
        let source = terms.from.clone();
        let Some(array) = self.array_of(&source, rank) else {
            return;
        };
        let memory = array.memory;
        let place = self.coupling.place_from(connection as usize) as u16;
        let version = self.pairs.released(connection, rank);
        self.actions.push_back(KeeperAction::Release {
            memory,
            place,
            version,
        });
    }

    fn having(&self, is_meant: impl Fn(&KnownMember) -> bool) -> Vec<MemberId> {
        let members = self.members.iter();
        let meant =
            members.filter(|(_, member)| member.is_attached && !member.is_gone && is_meant(member));
        meant.map(|(id, _)| *id).collect()
    }

    fn allocate(
        &mut self,
        program: &str,
        rank: u32,
        name: String,
        sources: Vec<ConnectionPlace>,
        targets: Vec<ConnectionPlace>,
    ) {
        let Some(id) = self.places.get(&(program.to_owned(), rank)).copied() else {
            return;
        };
        let Some(member) = self.members.get_mut(&id) else {
            return;
        };
        let layout = member.asked.remove(&name);
        let Some(mut made) = layout.and_then(|layout| layout.layout().ok()) else {
            return;
        };
        if let Some(own) = member.sets.get(&name) {
            match with_own_sets(made, rank, own) {
                Ok(with) => made = with,
                // They were looked at when the array was described.
                Err(_) => return,
            }
        }
        let bytes = local_bytes(&made, rank);
        self.last_memory += 1;
        let memory = self.last_memory;
        member.arrays.insert(
            name.clone(),
            KeptArray {
                memory,
                bytes,
                exported: 0,
            },
        );
        self.actions
            .push_back(KeeperAction::Allocate { memory, bytes });
        let message = KeeperMessage::Memory {
            name,
            bytes,
            sources,
            targets,
            is_watched: self.has_others,
        };
        self.send(id, message, Some((memory, MemoryAccess::ReadWrite)));
    }

    /// Both ends of a connection are there.
    fn connect(&mut self, connection: u32, source: &CoupledEnd, target: &CoupledEnd) {
        let Some(terms) = self.coupling.connections().get(connection as usize) else {
            return;
        };
        let terms = terms.clone();
        let (Ok(source_made), Ok(target_made)) = (source.layout.layout(), target.layout.layout())
        else {
            return;
        };
        let has_index_sets = [&source_made, &target_made]
            .iter()
            .any(|made| made.index_sets().next().is_some());
        let mut keepers = source.keepers.iter().chain(&target.keepers);
        let is_here = keepers.all(|keeper| *keeper == self.id);
        if has_index_sets && !is_here {
            let layouts = (&source_made, &target_made);
            return self.open_directory(connection, &terms, (source, target), layouts);
        }
        match self.with_index_sets(&terms, source_made, target_made) {
            Ok((from, to, mapping)) => self.make(
                connection,
                KnownConnection {
                    source: source.clone(),
                    target: target.clone(),
                    from,
                    to,
                    mapping,
                },
            ),
            Err(reason) => self.report_unfit(connection, reason),
        }
    }

    /// All keepers know what they need of a connection's index sets.
    fn begin(&mut self, connection: u32) {
        if let Some(known) = self.directories.take_known(connection) {
            self.make(connection, known);
        }
    }

    /// Tells the members at both ends of a connection whose memory they need, and gets ready for what goes to other hosts.
    fn make(&mut self, connection: u32, known: KnownConnection) {
        let Some(terms) = self.coupling.connections().get(connection as usize) else {
            return;
        };
        let terms = terms.clone();
        let KnownConnection {
            source,
            target,
            from: source_made,
            to: target_made,
            mapping,
        } = known;
        let (from, to) = (self.parts(&terms.from), self.parts(&terms.to));
        let place = self.coupling.place_into(connection as usize) as u16;
        for (own, parts, others, side) in [
            (ArrayEnd::Source, &from, &to, PlanSide::Source),
            (ArrayEnd::Target, &to, &from, PlanSide::Target),
        ] {
            for (rank, part) in parts {
                let layouts = (&source_made, &target_made, &mapping);
                self.tell_indices(connection, part, *rank, side, layouts);
                let plan =
                    RedistributionPlan::new(&source_made, &target_made, &mapping, side, *rank);
                for message in plan.messages() {
                    let other = message.rank();
                    let Some(other_part) = others.get(&other) else {
                        match own {
                            ArrayEnd::Source => {
                                let pair = RankPair {
                                    connection,
                                    source: *rank,
                                    target: other,
                                };
                                let keeper = target.keepers.get(other as usize).copied();
                                self.pairs.add_departure(pair, keeper, terms.every);
                            }
                            ArrayEnd::Target => {
                                let pair = RankPair {
                                    connection,
                                    source: other,
                                    target: *rank,
                                };
                                let keeper = source.keepers.get(other as usize).copied();
                                let arrival = TargetPart {
                                    memory: part.memory,
                                    place,
                                };
                                self.pairs.add_arrival(pair, keeper, arrival);
                            }
                        }
                        continue;
                    };
                    let partner = KeeperMessage::Partner {
                        connection,
                        own,
                        rank: other,
                        bytes: other_part.bytes,
                    };
                    let memory = Some((other_part.memory, MemoryAccess::ReadOnly));
                    self.send(part.member, partner, memory);
                }
                let connected = KeeperMessage::Connected {
                    connection,
                    own,
                    terms: Box::new(ConnectedTerms {
                        source: source.layout.clone(),
                        target: target.layout.clone(),
                        select: terms.select.clone(),
                        into: terms.into.clone(),
                        permute: terms.permute.clone(),
                        other: match own {
                            ArrayEnd::Source => terms.to.clone(),
                            ArrayEnd::Target => terms.from.clone(),
                        },
                    }),
                };
                self.send(part.member, connected, None);
            }
        }
        let sources: Vec<u32> = from.keys().copied().collect();
        let keepers = [source.keepers.clone(), target.keepers.clone()];
        self.pairs
            .connected(connection, source_made, target_made, keepers);
        for gone in self.gone.clone().into_values() {
            if gone.loss.is_none() && gone.program == terms.to.program {
                self.pairs.leave(gone.rank, |into| into == connection);
            }
        }
        for rank in sources {
            self.depart(&terms.from, rank);
            if self.has_others {
                self.release(connection, rank);
            }
        }
        self.report_unreachable();
    }

    /// The parts of an array that are here, by their ranks.
    fn parts(&self, array: &Variable) -> BTreeMap<u32, Part> {
        let members = self.members.iter();
        let members = members.filter(|(_, member)| member.program == array.program);
        let parts = members.filter_map(|(id, member)| {
            let kept = member.arrays.get(&array.name)?;
            let part = Part {
                member: *id,
                memory: kept.memory,
                bytes: kept.bytes,
            };
            Some((member.rank, part))
        });
        parts.collect()
    }
}

struct Part {
    member: MemberId,
    memory: MemoryId,
    bytes: u64,
}

impl KnownMember {
    fn has(&self, array: &Variable) -> bool {
        self.program == array.program && self.arrays.contains_key(&array.name)
    }
}

impl ConnectionTerms {
    /// Which elements go where.
    ///
    /// # Errors
    /// If the layouts don't fit each other.
    pub fn mapping(
        &self,
        source: &Layout,
        target: &Layout,
    ) -> Result<Mapping, exoskel_redist::MappingError> {
        Mapping::new(
            source,
            target,
            self.select.as_deref(),
            self.into.as_deref(),
            self.permute.as_deref(),
        )
    }
}

/// The bytes of a process's part of an array, its halo included.
fn local_bytes(layout: &Layout, rank: u32) -> u64 {
    let elements: u64 = layout.local_shape(rank).iter().product();
    elements * u64::from(layout.element().bytes())
}
