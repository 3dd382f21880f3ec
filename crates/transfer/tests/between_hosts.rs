//! Couplers and keepers of several hosts, in every order that a seed can think of: what they say to each other is under way for as long as
//! the seed wants, members are lost and keepers with all they have.
//!
//! The machines are the product's; members follow `exoskel_member::SharedArray` in small. A source's contents are the number of the version
//! that is being written, so a piece that was packed too late, or written too early, is seen.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use exoskel_redist::{AxisSharing, ElementType, Layout, MemoryOrder, PlanSide, RedistributionPlan};
use exoskel_transfer::{
    ArrayEnd, Coupler, CouplerOrder, Coupling, GoneMember, Keeper, KeeperAction, KeeperId,
    KeeperMessage, KeeperReport, LayoutDescription, Loss, MemberId, MemberMessage, MemoryId,
    PROTOCOL, PieceHead, RankPair, WantedVersion, last_taken, source_version,
};

const SEEDS: u64 = 10_000;
const VERSIONS: u64 = 5;
const LENGTH: u64 = 24;
/// Whatever is done: nothing goes on for longer.
const STEPS_MAX: usize = 200_000;

/// Numbers drawn from a seed (SplitMix64, Steele and others 2014).
struct Draws(u64);

impl Draws {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) % bound as u64) as usize
    }

    fn one_in(&mut self, many: usize) -> bool {
        self.below(many) == 0
    }
}

/// One part of an array, and its board.
#[derive(Clone, Debug, Default)]
struct Part {
    /// Of a source: the version that is in it.
    contents: u64,
    exported: u64,
    released: BTreeMap<u16, u64>,
    arrived: BTreeMap<u16, u64>,
    taken: BTreeMap<u16, u64>,
    /// Of a target: the keeper may write into it.
    is_open: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Attaching,
    Writing,
    Reading,
    Ended,
}

#[derive(Debug)]
struct Connected {
    here: Vec<u32>,
    elsewhere: Vec<u32>,
}

/// A process: it writes and reads its two arrays in turn.
struct Process {
    program: String,
    rank: u32,
    size: u32,
    keeper: usize,
    id: MemberId,
    phase: Phase,
    wanted: u64,
    memories: BTreeMap<String, MemoryId>,
    connected: BTreeMap<(u32, bool), Connected>,
    failed: BTreeSet<u32>,
    gone: BTreeMap<(String, u32), GoneMember>,
    says: VecDeque<MemberMessage>,
    hears: VecDeque<KeeperMessage>,
    read: u64,
    written: u64,
    error: Option<String>,
}

struct Host {
    keeper: Keeper,
    is_lost: bool,
    parts: BTreeMap<MemoryId, Part>,
    orders: VecDeque<CouplerOrder>,
    reports: VecDeque<KeeperReport>,
    wants: VecDeque<WantedVersion>,
    pieces: VecDeque<(PieceHead, u64)>,
    /// What goes to each other host.
    carried: BTreeMap<KeeperId, VecDeque<(PieceHead, MemoryId)>>,
    /// What has gone, and the keeper hasn't been told.
    departed: VecDeque<RankPair>,
}

struct World {
    draws: Draws,
    coupling: Coupling,
    layouts: BTreeMap<String, Layout>,
    coupler: Coupler,
    hosts: Vec<Host>,
    processes: Vec<Process>,
    has_faults: bool,
    /// Some leave before all is done, in good order.
    has_leavers: bool,
}

fn layout(draws: &mut Draws, processes: u32) -> Layout {
    let sharing = [
        AxisSharing::Block,
        AxisSharing::Cyclic(1),
        AxisSharing::Cyclic(5),
    ];
    let sharing = sharing[draws.below(3)].clone();
    Layout::new(
        &[LENGTH],
        ElementType::FLOAT64,
        vec![sharing],
        &[processes],
        &[0],
        MemoryOrder::C,
    )
    .unwrap()
}

impl World {
    fn new(seed: u64) -> Self {
        let mut draws = Draws(seed);
        let every = 1 + draws.below(2);
        // Programs that wait for each other take as many versions as they give.
        let back = match draws.below(2) {
            0 if every == 1 => "[[connection]]\nfrom = \"b.out\"\nto = \"a.in\"\n",
            _ => "",
        };
        let third = match draws.below(2) {
            0 => "[program.c]\n[[connection]]\nfrom = \"a.out\"\nto = \"c.in\"\nevery = 2\n",
            _ => "",
        };
        let text = format!(
            "[program.a]\n[program.b]\n[[connection]]\nfrom = \"a.out\"\nto = \"b.in\"\nevery = {every}\n{back}{third}"
        );
        let coupling = Coupling::parse(&text).unwrap();
        let mut coupler = Coupler::new(coupling.clone());
        let count = 1 + draws.below(3);
        let hosts = (0..=count).map(|number| {
            let id = match number {
                0 => 0,
                _ => coupler.join().keeper,
            };
            Host {
                keeper: Keeper::new(coupling.clone(), id, true),
                is_lost: false,
                parts: BTreeMap::new(),
                orders: VecDeque::new(),
                reports: VecDeque::new(),
                wants: VecDeque::new(),
                pieces: VecDeque::new(),
                carried: BTreeMap::new(),
                departed: VecDeque::new(),
            }
        });
        let hosts: Vec<Host> = hosts.collect();
        let mut processes = Vec::new();
        let mut layouts = BTreeMap::new();
        for program in coupling.programs().keys() {
            let size = 1 + draws.below(3) as u32;
            for array in ["in", "out"] {
                layouts.insert(format!("{program}.{array}"), layout(&mut draws, size));
            }
            for rank in 0..size {
                processes.push(Process {
                    program: program.clone(),
                    rank,
                    size,
                    keeper: draws.below(hosts.len()),
                    id: processes.len() as MemberId,
                    phase: Phase::Attaching,
                    wanted: 0,
                    memories: BTreeMap::new(),
                    connected: BTreeMap::new(),
                    failed: BTreeSet::new(),
                    gone: BTreeMap::new(),
                    says: VecDeque::from([MemberMessage::Attach {
                        protocol: PROTOCOL,
                        program: program.clone(),
                        rank,
                        size,
                    }]),
                    hears: VecDeque::new(),
                    read: 0,
                    written: 0,
                    error: None,
                });
            }
        }
        Self {
            has_faults: draws.one_in(2),
            has_leavers: draws.one_in(3),
            draws,
            coupling,
            layouts,
            coupler,
            hosts,
            processes,
        }
    }

    /// Plays until nothing more can happen.
    fn play(&mut self) {
        for _ in 0..STEPS_MAX {
            let mut moves: Vec<(usize, usize)> = Vec::new();
            for (number, host) in self.hosts.iter().enumerate() {
                let queues = [
                    !host.orders.is_empty(),
                    !host.reports.is_empty(),
                    !host.wants.is_empty(),
                    !host.pieces.is_empty(),
                    host.carried.values().any(|queue| !queue.is_empty()),
                    !host.departed.is_empty(),
                ];
                let full = queues.iter().enumerate().filter(|(_, is_full)| **is_full);
                moves.extend(full.map(|(kind, _)| (kind, number)));
            }
            for (number, process) in self.processes.iter().enumerate() {
                if !process.says.is_empty() {
                    moves.push((6, number));
                }
                if !process.hears.is_empty() && process.phase != Phase::Ended {
                    moves.push((7, number));
                }
                if process.phase != Phase::Ended && self.next_of(number).is_some() {
                    moves.push((8, number));
                }
            }
            if moves.is_empty() {
                return;
            }
            if self.has_faults && self.draws.one_in(60) {
                self.fault();
                continue;
            }
            let (kind, number) = moves[self.draws.below(moves.len())];
            self.step(kind, number);
        }
        panic!("it goes on and on");
    }

    fn step(&mut self, kind: usize, number: usize) {
        match kind {
            0 => {
                let order = self.hosts[number].orders.pop_front().unwrap();
                self.hosts[number].keeper.order(order);
                self.act(number);
            }
            1 => {
                let report = self.hosts[number].reports.pop_front().unwrap();
                self.coupler.report(number as KeeperId, report);
                self.give_orders();
            }
            2 => {
                let wanted = self.hosts[number].wants.pop_front().unwrap();
                self.hosts[number].keeper.wanted(wanted);
                self.act(number);
            }
            3 => self.take_piece(number),
            4 => self.carry(number),
            5 => {
                let pair = self.hosts[number].departed.pop_front().unwrap();
                self.hosts[number].keeper.departed(pair);
                self.act(number);
            }
            6 => {
                let message = self.processes[number].says.pop_front().unwrap();
                let (host, id) = (self.processes[number].keeper, self.processes[number].id);
                self.hosts[host].keeper.hear(id, message);
                self.act(host);
            }
            7 => {
                let message = self.processes[number].hears.pop_front().unwrap();
                self.hear(number, message);
            }
            _ => self.go_on(number),
        }
    }

    fn give_orders(&mut self) {
        while let Some((whom, order)) = self.coupler.next_order() {
            for (number, host) in self.hosts.iter_mut().enumerate() {
                if !host.is_lost && whom.is_none_or(|whom| whom as usize == number) {
                    host.orders.push_back(order.clone());
                }
            }
        }
    }

    fn act(&mut self, number: usize) {
        while let Some(action) = self.hosts[number].keeper.next_action() {
            let host = &mut self.hosts[number];
            match action {
                KeeperAction::Allocate { memory, .. } => {
                    host.parts.insert(memory, Part::default());
                }
                KeeperAction::Send {
                    member,
                    message,
                    memory,
                } => {
                    let process = &mut self.processes[member as usize];
                    if let (KeeperMessage::Memory { name, .. }, Some((memory, _))) =
                        (&message, memory)
                    {
                        process.memories.insert(name.clone(), memory);
                    }
                    process.hears.push_back(message);
                }
                KeeperAction::Close { .. } => {}
                KeeperAction::Report(report) => host.reports.push_back(report),
                KeeperAction::Want { keeper, wanted } => {
                    let other = &mut self.hosts[keeper as usize];
                    if !other.is_lost {
                        other.wants.push_back(wanted);
                    }
                }
                KeeperAction::Depart {
                    keeper,
                    pair,
                    version,
                    memory,
                } => {
                    let pieces = 1 + self.draws.below(3) as u64;
                    for piece in 0..pieces {
                        let head = PieceHead {
                            keeper: number as KeeperId,
                            pair,
                            version,
                            piece,
                        };
                        let queue = host.carried.entry(keeper).or_default();
                        // The last one says so by a number that no piece has.
                        let is_last = piece + 1 == pieces;
                        let head = match is_last {
                            true => PieceHead {
                                piece: u64::MAX - piece,
                                ..head
                            },
                            false => head,
                        };
                        queue.push_back((head, memory));
                    }
                }
                KeeperAction::Release {
                    memory,
                    place,
                    version,
                } => {
                    let part = host.parts.get_mut(&memory).unwrap();
                    let before = part.released.insert(place, version);
                    assert!(before <= Some(version), "a release is taken back");
                }
                KeeperAction::Arrive {
                    memory,
                    place,
                    version,
                } => {
                    let part = host.parts.get_mut(&memory).unwrap();
                    part.arrived.insert(place, version);
                }
            }
        }
    }

    /// Packs the next piece of what goes to one of the other hosts.
    fn carry(&mut self, number: usize) {
        let host = &mut self.hosts[number];
        let mut full: Vec<KeeperId> = host.carried.keys().copied().collect();
        full.retain(|keeper| !host.carried[keeper].is_empty());
        let keeper = full[self.draws.below(full.len())];
        let queue = host.carried.get_mut(&keeper).unwrap();
        let (head, memory) = queue.pop_front().unwrap();
        let contents = host.parts[&memory].contents;
        assert_eq!(
            contents, head.version,
            "a source was written before all of it had gone"
        );
        let is_last = head.piece > u64::MAX / 2;
        let other = &mut self.hosts[keeper as usize];
        if !other.is_lost {
            other.pieces.push_back((head, contents));
        }
        if is_last {
            self.hosts[number].departed.push_back(head.pair);
        }
    }

    fn take_piece(&mut self, number: usize) {
        let (head, contents) = self.hosts[number].pieces.pop_front().unwrap();
        let is_last = head.piece > u64::MAX / 2;
        let head = match is_last {
            true => PieceHead {
                piece: u64::MAX - head.piece,
                ..head
            },
            false => head,
        };
        let host = &mut self.hosts[number];
        let Some(memory) = host.keeper.expected(&head) else {
            panic!("a piece that nobody has asked for: {head:?}");
        };
        let part = host.parts.get_mut(&memory).unwrap();
        assert!(
            part.is_open,
            "a target was written while its process had it"
        );
        assert_eq!(contents, head.version);
        host.keeper.arrived(&head, is_last);
        self.act(number);
    }

    fn hear(&mut self, number: usize, message: KeeperMessage) {
        let layouts = &self.layouts;
        let process = &mut self.processes[number];
        match message {
            KeeperMessage::Attached => {
                for name in ["in", "out"] {
                    let layout = &layouts[&format!("{}.{name}", process.program)];
                    process.says.push_back(MemberMessage::Array {
                        name: name.to_owned(),
                        layout: LayoutDescription::of(layout),
                    });
                }
            }
            KeeperMessage::Refused { reason } => panic!("{reason}"),
            KeeperMessage::Memory { .. } => {
                if process.memories.len() == 2 && process.phase == Phase::Attaching {
                    process.phase = Phase::Writing;
                }
            }
            KeeperMessage::Partner {
                connection,
                own,
                rank,
                ..
            } => {
                let place = (connection, own == ArrayEnd::Source);
                let known = process.connected.entry(place).or_insert_with(|| Connected {
                    here: Vec::new(),
                    elsewhere: vec![u32::MAX],
                });
                known.here.push(rank);
            }
            KeeperMessage::Connected {
                connection, own, ..
            } => {
                let terms = &self.coupling.connections()[connection as usize];
                let (source, target) = (
                    &layouts[&terms.from.to_string()],
                    &layouts[&terms.to.to_string()],
                );
                let mapping = terms.mapping(source, target).unwrap();
                let side = match own {
                    ArrayEnd::Source => PlanSide::Source,
                    ArrayEnd::Target => PlanSide::Target,
                };
                let plan = RedistributionPlan::new(source, target, &mapping, side, process.rank);
                let place = (connection, own == ArrayEnd::Source);
                let known = process.connected.entry(place).or_insert_with(|| Connected {
                    here: Vec::new(),
                    elsewhere: Vec::new(),
                });
                let ranks = plan.messages().map(|message| message.rank());
                known.elsewhere = ranks.filter(|rank| !known.here.contains(rank)).collect();
            }
            KeeperMessage::Failed { connection, .. } => {
                process.failed.insert(connection);
            }
            KeeperMessage::Gone(gone) => {
                let place = (gone.program.clone(), gone.rank);
                process.gone.insert(place, gone);
            }
        }
    }

    /// The connections at one end of a process's arrays, by their numbers.
    fn connections(&self, process: &Process, is_source: bool) -> Vec<u32> {
        let connections = self.coupling.connections().iter().enumerate();
        let found = connections.filter(|(_, terms)| {
            let end = if is_source { &terms.from } else { &terms.to };
            end.program == process.program
        });
        found.map(|(number, _)| number as u32).collect()
    }

    fn waits_to_be_connected(&self, process: &Process) -> bool {
        [true, false].into_iter().any(|is_source| {
            let connections = self.connections(process, is_source).into_iter();
            connections.into_iter().any(|number| {
                let known = process.connected.get(&(number, is_source));
                !process.failed.contains(&number)
                    && known.is_none_or(|known| known.elsewhere == [u32::MAX])
            })
        })
    }

    /// The one that ends there, if there is one.
    fn connection_into(&self, process: &Process) -> Option<u32> {
        self.connections(process, false).first().copied()
    }

    fn part(&self, process: &Process, name: &str) -> &Part {
        &self.hosts[process.keeper].parts[&process.memories[name]]
    }

    /// The part of a process of this host.
    fn part_of(&self, program: &str, rank: u32, name: &str) -> &Part {
        let mut processes = self.processes.iter();
        let process = processes.find(|one| one.program == program && one.rank == rank);
        self.part(process.unwrap(), name)
    }

    /// What a process does next; none if it waits.
    fn next_of(&self, number: usize) -> Option<Result<(), String>> {
        let process = &self.processes[number];
        match process.phase {
            Phase::Attaching | Phase::Ended => None,
            Phase::Writing => self.can_write(process),
            Phase::Reading => self.can_read(process),
        }
    }

    fn can_write(&self, process: &Process) -> Option<Result<(), String>> {
        for connection in self.connections(process, true) {
            match self.has_been_taken(process, connection) {
                Some(Ok(())) => {}
                other => return other,
            }
        }
        Some(Ok(()))
    }

    fn has_been_taken(&self, process: &Process, connection: u32) -> Option<Result<(), String>> {
        let terms = &self.coupling.connections()[connection as usize];
        let last = last_taken(process.written, terms.every);
        if last == 0 {
            return Some(Ok(()));
        }
        if process.failed.contains(&connection) {
            return Some(Err("failed".to_owned()));
        }
        let known = process.connected.get(&(connection, true))?;
        if known.elsewhere == [u32::MAX] {
            return None;
        }
        let other = &terms.to.program;
        let gone = |rank: u32| process.gone.get(&(other.clone(), rank));
        let mut waits = false;
        for rank in &known.here {
            let taken = self.part_of(other, *rank, "in").taken.get(&0).copied();
            if taken.unwrap_or(0) < last {
                match gone(*rank) {
                    Some(gone) if gone.loss.is_some() => return Some(Err("lost".to_owned())),
                    Some(_) => {}
                    None => waits = true,
                }
            }
        }
        let place = self.coupling.place_from(connection as usize) as u16;
        let released = self.part(process, "out").released.get(&place).copied();
        if !known.elsewhere.is_empty() && released.unwrap_or(0) < last {
            let mut elsewhere = known.elsewhere.iter();
            if elsewhere.any(|rank| gone(*rank).is_some_and(|gone| gone.loss.is_some())) {
                return Some(Err("lost".to_owned()));
            }
            waits = true;
        }
        (!waits).then_some(Ok(()))
    }

    fn can_read(&self, process: &Process) -> Option<Result<(), String>> {
        let Some(connection) = self.connection_into(process) else {
            return Some(Ok(()));
        };
        if process.failed.contains(&connection) {
            return Some(Err("failed".to_owned()));
        }
        let known = process.connected.get(&(connection, false))?;
        if known.elsewhere == [u32::MAX] {
            return None;
        }
        let terms = &self.coupling.connections()[connection as usize];
        let wanted = source_version(process.read + 1, terms.every);
        if !known.elsewhere.is_empty() && process.wanted < wanted {
            // It asks first.
            return Some(Ok(()));
        }
        let other = &terms.from.program;
        let gone = |rank: u32| process.gone.get(&(other.clone(), rank));
        let mut waits = false;
        for rank in &known.here {
            if self.part_of(other, *rank, "out").exported < wanted {
                waits = true;
                if gone(*rank).is_some() {
                    return Some(Err("gone".to_owned()));
                }
            }
        }
        let arrived = self.part(process, "in").arrived.get(&0).copied();
        if !known.elsewhere.is_empty() && arrived.unwrap_or(0) < wanted {
            waits = true;
            let left = |gone: &GoneMember| gone.exported.get("out").copied().unwrap_or(0);
            let mut elsewhere = known.elsewhere.iter();
            if elsewhere.any(|rank| gone(*rank).is_some_and(|gone| left(gone) < wanted)) {
                return Some(Err("gone".to_owned()));
            }
        }
        (!waits).then_some(Ok(()))
    }

    fn go_on(&mut self, number: usize) {
        let next = self.next_of(number).unwrap();
        let into = self.connection_into(&self.processes[number]);
        let has_elsewhere = into.is_some_and(|connection| {
            let known = self.processes[number].connected.get(&(connection, false));
            known.is_some_and(|known| !known.elsewhere.is_empty())
        });
        let every = into.map_or(1, |number| {
            self.coupling.connections()[number as usize].every
        });
        let leaves = self.has_leavers && self.draws.one_in(10);
        self.check_lost_takers(number);
        let process = &mut self.processes[number];
        let host = &mut self.hosts[process.keeper];
        if leaves && process.phase == Phase::Writing {
            process.phase = Phase::Ended;
            process.says.push_back(MemberMessage::Leave { error: None });
            return;
        }
        if let Err(error) = next {
            process.error = Some(error.clone());
            process.phase = Phase::Ended;
            // That others have ended is no error of one's own.
            let error = Some(error).filter(|error| error != "gone");
            process.says.push_back(MemberMessage::Leave { error });
            return;
        }
        match process.phase {
            Phase::Writing => {
                let part = host.parts.get_mut(&process.memories["out"]).unwrap();
                process.written += 1;
                part.contents = process.written;
                part.exported = process.written;
                process.says.push_back(MemberMessage::Exported {
                    name: "out".to_owned(),
                    version: process.written,
                });
                process.phase = Phase::Reading;
            }
            Phase::Reading => {
                let part = host.parts.get_mut(&process.memories["in"]).unwrap();
                let wanted = source_version(process.read + 1, every);
                if has_elsewhere && process.wanted < wanted {
                    process.wanted = wanted;
                    part.is_open = true;
                    process.says.push_back(MemberMessage::Want {
                        connection: into.unwrap(),
                        version: wanted,
                    });
                    return;
                }
                part.is_open = false;
                part.taken.insert(0, wanted);
                process.read += 1;
                process.phase = Phase::Writing;
                let is_done = process.read == VERSIONS
                    || (every > 1 && source_version(process.read + 1, every) > VERSIONS);
                if is_done {
                    process.phase = Phase::Ended;
                    process.says.push_back(MemberMessage::Leave { error: None });
                }
            }
            Phase::Attaching | Phase::Ended => {}
        }
    }

    /// Nobody writes over what a lost process should have taken, and hasn't asked for.
    fn check_lost_takers(&self, number: usize) {
        let process = &self.processes[number];
        if process.phase != Phase::Writing || self.next_of(number) != Some(Ok(())) {
            return;
        }
        for connection in self.connections(process, true) {
            let terms = &self.coupling.connections()[connection as usize];
            let last = last_taken(process.written, terms.every);
            let known = process.connected.get(&(connection, true));
            for rank in known.iter().flat_map(|known| &known.elsewhere) {
                let mut processes = self.processes.iter();
                let taker =
                    processes.find(|one| one.program == terms.to.program && one.rank == *rank);
                let Some(taker) = taker.filter(|one| one.error.as_deref() == Some("killed")) else {
                    continue;
                };
                assert!(
                    last <= taker.wanted,
                    "version {last} was lost, and is written over"
                );
            }
        }
    }

    /// How many versions a process should have read when those that give have gone in good order.
    fn versions_for(&self, process: &Process) -> Option<u64> {
        let connection = self.connection_into(process)?;
        let terms = &self.coupling.connections()[connection as usize];
        let known = process.connected.get(&(connection, false))?;
        let ranks = known.here.iter().chain(&known.elsewhere);
        let exported = ranks.map(|rank| self.part_of(&terms.from.program, *rank, "out").exported);
        let last = last_taken(exported.min()?, terms.every);
        Some(
            last.checked_sub(1)
                .map_or(0, |before| before / terms.every + 1),
        )
    }

    /// Loses a process, or a keeper with its processes.
    fn fault(&mut self) {
        if self.draws.one_in(3) && self.hosts.len() > 1 {
            let number = 1 + self.draws.below(self.hosts.len() - 1);
            let host = &mut self.hosts[number];
            if host.is_lost {
                return;
            }
            host.is_lost = true;
            host.orders.clear();
            host.reports.clear();
            host.wants.clear();
            host.pieces.clear();
            host.carried.clear();
            host.departed.clear();
            for process in &mut self.processes {
                if process.keeper == number {
                    process.phase = Phase::Ended;
                    process.says.clear();
                    process.hears.clear();
                    let lost = || "its keeper was lost".to_owned();
                    process.error.get_or_insert_with(lost);
                }
            }
            self.coupler.keeper_lost(number as KeeperId, "no answer");
            self.give_orders();
            return;
        }
        let number = self.draws.below(self.processes.len());
        let process = &mut self.processes[number];
        // Those that haven't come are waited for, by those who started them.
        if process.phase == Phase::Ended || process.phase == Phase::Attaching {
            return;
        }
        process.phase = Phase::Ended;
        process.error = Some("killed".to_owned());
        process.says.clear();
        process.hears.clear();
        let (host, id) = (process.keeper, process.id);
        self.hosts[host].keeper.lost(id, "killed");
        self.act(host);
    }
}

#[test]
fn nobody_waits_for_ever_and_each_version_is_whole() {
    let mut faults = 0;
    for seed in 0..SEEDS {
        let mut world = World::new(seed);
        world.play();
        let lost: Option<&Loss> = world.coupler.first_lost();
        let has_lost = lost.is_some() || world.hosts.iter().any(|host| host.is_lost);
        faults += u64::from(has_lost);
        // For processes that have never come, whose keepers were lost before: who starts them knows. Others wait for who waits for them.
        let mut programs = world.coupler.programs();
        let are_some_missing = programs.any(|program| program.present < program.size)
            || world.coupler.programs().count() < world.coupling.programs().len();
        let mut processes = world.processes.iter();
        let waits_for_missing = are_some_missing
            && processes.any(|one| one.phase != Phase::Ended && world.waits_to_be_connected(one));
        for process in &world.processes {
            let (program, rank) = (&process.program, process.rank);
            let is_waiting_to_begin =
                has_lost && (process.phase == Phase::Attaching || waits_for_missing);
            assert!(
                process.phase == Phase::Ended || is_waiting_to_begin,
                "seed {seed}: rank {rank} of {program} (of {}) waits in {:?}: read {}, written {}, wanted {}, {:?}",
                process.size,
                process.phase,
                process.read,
                process.written,
                process.wanted,
                process.connected,
            );
            if process.error.as_deref() == Some("gone") && !has_lost {
                assert_eq!(
                    Some(process.read),
                    world.versions_for(process),
                    "seed {seed}: rank {rank} of {program} missed versions of who has left"
                );
                continue;
            }
            assert!(
                has_lost || process.error.is_none(),
                "seed {seed}: rank {rank} of {program}: {:?} without a loss",
                process.error
            );
        }
    }
    assert!(faults > SEEDS / 10, "only {faults} seeds had a loss");
}
