//! Couplers and keepers of several hosts, in every order that a seed can think of: what they say to each other is under way for as long as
//! the seed wants. Members are lost, keepers with all they have, the coupler, and the way between two hosts; keepers end in good order.
//!
//! The machines are the product's; members follow `exoskel_member::SharedArray` in small. A source's contents are the number of the version
//! that is being written, so a piece that was packed too late, or written too early, is seen.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod faults;
mod members;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use exoskel_redist::{
    AxisShare, AxisSharing, ElementType, IndexSet, IndexSets, Layout, MemoryOrder, PlanSide,
    RedistributionPlan, SetsOfAxes,
};
use exoskel_transfer::{
    ArrayEnd, AttachRequest, Coupler, CouplerOrder, Coupling, GivenUp, GoneMember, IndexPart,
    IndexParts, Keeper, KeeperAction, KeeperId, KeeperMessage, KeeperReport, LayoutDescription,
    Loss, MemberId, MemberMessage, MemoryId, PieceHead, RankPair, SaidIndices, WantedVersion,
    last_taken, source_version,
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
    /// Nothing more can be read, and what was asked for is wanted no more.
    Forgoing,
    /// It has nothing to read any more.
    WritingOn,
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
    /// Index sets at the other end, by connections and ends.
    indices: BTreeMap<(u32, bool), IndexParts>,
    failed: BTreeSet<u32>,
    gone: BTreeMap<(String, u32), GoneMember>,
    /// What ranks have given all of, by connections.
    came: BTreeMap<(u32, u32), u64>,
    says: VecDeque<MemberMessage>,
    hears: VecDeque<KeeperMessage>,
    read: u64,
    written: u64,
    error: Option<String>,
    has_forgone: bool,
}

struct Host {
    keeper: Keeper,
    is_lost: bool,
    /// What its links tell it: the coupler is gone (none), or a keeper.
    notices: VecDeque<Option<KeeperId>>,
    /// What other keepers say, for want of a coupler.
    told: VecDeque<(KeeperId, GoneMember)>,
    knows_of_coupler: bool,
    /// It has ended in good order, and the coupler hasn't seen it.
    is_leaving: bool,
    /// The coupler wants nothing of it any more.
    given_up: Option<GivenUp>,
    parts: BTreeMap<MemoryId, Part>,
    orders: VecDeque<CouplerOrder>,
    reports: VecDeque<KeeperReport>,
    wants: VecDeque<WantedVersion>,
    pieces: VecDeque<(PieceHead, u64)>,
    /// What other keepers say of index sets.
    indices: VecDeque<SaidIndices>,
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
    is_coupler_lost: bool,
    /// Hosts that can't reach each other.
    cut: BTreeSet<(usize, usize)>,
    /// A keeper or a way was lost.
    has_lost_host: bool,
    /// A process, a host, or the way between a host and the coupler.
    has_lost_more_than_ways: bool,
    /// What goes wrong here is that hosts can't reach each other, and all see the coupler.
    loses_ways_only: bool,
    /// A keeper has ended before all that it had was taken.
    has_left_owing: bool,
    /// Some leave before all is done, in good order.
    has_leavers: bool,
}

/// Sets in any order, in which each index has one owner; processes of a target list some of others besides.
fn index_sets(draws: &mut Draws, processes: u32, is_target: bool) -> AxisSharing {
    let mut lists = vec![Vec::new(); processes as usize];
    for index in 0..LENGTH {
        // Each process has something.
        let owner = match index < u64::from(processes) {
            true => index as usize,
            false => draws.below(processes as usize),
        };
        for (process, list) in lists.iter_mut().enumerate() {
            if process == owner || (is_target && draws.one_in(4)) {
                let place = draws.below(list.len() + 1);
                list.insert(place, index);
            }
        }
    }
    let sets = lists.into_iter().map(|list| IndexSet::new(list).unwrap());
    AxisSharing::Indices(IndexSets::of_all(sets.collect()))
}

fn layout(draws: &mut Draws, processes: u32, is_target: bool) -> Layout {
    let sharing = [
        AxisSharing::Block,
        AxisSharing::Cyclic(1),
        AxisSharing::Cyclic(5),
    ];
    let sharing = match draws.below(4) {
        3 => index_sets(draws, processes, is_target),
        number => sharing[number].clone(),
    };
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
                _ => coupler.join().unwrap().keeper,
            };
            Host {
                keeper: Keeper::new(coupling.clone(), id, true),
                is_lost: false,
                notices: VecDeque::new(),
                told: VecDeque::new(),
                knows_of_coupler: false,
                is_leaving: false,
                given_up: None,
                parts: BTreeMap::new(),
                orders: VecDeque::new(),
                reports: VecDeque::new(),
                wants: VecDeque::new(),
                pieces: VecDeque::new(),
                indices: VecDeque::new(),
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
                let made = layout(&mut draws, size, array == "in");
                layouts.insert(format!("{program}.{array}"), made);
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
                    indices: BTreeMap::new(),
                    failed: BTreeSet::new(),
                    gone: BTreeMap::new(),
                    came: BTreeMap::new(),
                    says: VecDeque::from([MemberMessage::Attach(AttachRequest::new(
                        program, rank, size,
                    ))]),
                    hears: VecDeque::new(),
                    read: 0,
                    written: 0,
                    error: None,
                    has_forgone: false,
                });
            }
        }
        Self {
            has_faults: draws.one_in(2),
            is_coupler_lost: false,
            cut: BTreeSet::new(),
            has_lost_host: false,
            has_lost_more_than_ways: false,
            loses_ways_only: draws.one_in(8),
            has_left_owing: false,
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
                    !host.notices.is_empty(),
                    !host.told.is_empty(),
                    false,
                    !host.indices.is_empty(),
                ];
                let full = queues.iter().enumerate().filter(|(_, is_full)| **is_full);
                moves.extend(full.map(|(kind, _)| (kind, number)));
            }
            let hosts = self.hosts.iter().enumerate();
            let leaving = hosts.filter(|(_, host)| host.is_leaving && host.reports.is_empty());
            moves.extend(leaving.map(|(number, _)| (8, number)));
            for (number, process) in self.processes.iter().enumerate() {
                if !process.says.is_empty() {
                    moves.push((16, number));
                }
                if !process.hears.is_empty() && process.phase != Phase::Ended {
                    moves.push((17, number));
                }
                if process.phase != Phase::Ended && self.next_of(number).is_some() {
                    moves.push((18, number));
                }
            }
            if moves.is_empty() {
                return;
            }
            if self.has_faults && self.draws.one_in(60) {
                self.fault();
                continue;
            }
            if self.draws.one_in(40) {
                self.end_some_host();
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
                if !self.is_coupler_lost {
                    self.coupler.report(number as KeeperId, report);
                    self.give_orders();
                }
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
            6 => self.notice(number),
            7 => {
                let (keeper, gone) = self.hosts[number].told.pop_front().unwrap();
                self.hosts[number].keeper.told_gone(keeper, gone);
                self.act(number);
            }
            8 => {
                self.hosts[number].is_leaving = false;
                if !self.is_coupler_lost {
                    let host = number as KeeperId;
                    self.coupler.keeper_lost(host, "it has ended");
                    self.give_orders();
                }
            }
            9 => {
                let said = self.hosts[number].indices.pop_front().unwrap();
                self.hosts[number].keeper.told_indices(said);
                self.act(number);
            }
            16 => {
                let message = self.processes[number].says.pop_front().unwrap();
                let (host, id) = (self.processes[number].keeper, self.processes[number].id);
                self.hosts[host].keeper.hear(id, message);
                self.act(host);
            }
            17 => {
                let message = self.processes[number].hears.pop_front().unwrap();
                self.hear(number, message);
            }
            _ => self.go_on(number),
        }
    }

    fn give_orders(&mut self) {
        while let Some((whom, order)) = self.coupler.next_order() {
            for (number, host) in self.hosts.iter_mut().enumerate() {
                let is_there = !host.is_lost && host.given_up.is_none();
                if is_there && whom.is_none_or(|whom| whom as usize == number) {
                    host.orders.push_back(order.clone());
                }
            }
        }
        while let Some((keeper, given_up)) = self.coupler.next_given_up() {
            let number = keeper as usize;
            if self.hosts[number].is_lost {
                continue;
            }
            // It learns it from all that it asks.
            self.hosts[number].given_up = Some(given_up);
            self.hosts[number].notices.push_back(None);
            for other in 0..self.hosts.len() {
                if other != number {
                    self.cut_way(number, other);
                    let notices = &mut self.hosts[number].notices;
                    notices.push_back(Some(other as KeeperId));
                    // The coupler says so; if it is lost before it has, who is cut off tells.
                    if other > 0 && !self.hosts[other].is_lost {
                        self.hosts[other].notices.push_back(Some(keeper));
                    }
                }
            }
        }
    }

    fn act(&mut self, number: usize) {
        while let Some(action) = self.hosts[number].keeper.next_action() {
            let reached: Vec<bool> = (0..self.hosts.len())
                .map(|other| self.can_reach(number, other))
                .collect();
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
                KeeperAction::Report(report) if !host.knows_of_coupler => {
                    if host.given_up.is_none() {
                        host.reports.push_back(report);
                    }
                }
                KeeperAction::Report(report) => {
                    if let KeeperReport::Gone(gone) = report {
                        host.keeper.lose(gone.clone());
                        for (other, host) in self.hosts.iter_mut().enumerate() {
                            if other != number && reached[other] {
                                host.told.push_back((number as KeeperId, gone.clone()));
                            }
                        }
                    }
                }
                KeeperAction::Want { keeper, wanted } => {
                    if reached[keeper as usize] {
                        self.hosts[keeper as usize].wants.push_back(wanted);
                    }
                }
                KeeperAction::Indices { keeper, said } => {
                    if reached[keeper as usize] {
                        self.hosts[keeper as usize].indices.push_back(said);
                    }
                }
                KeeperAction::Depart {
                    keeper,
                    pair,
                    version,
                    memory,
                } => {
                    if !reached[keeper as usize] {
                        host.keeper.not_departed(pair);
                        continue;
                    }
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
            let program = &self.coupling.connections()[head.pair.connection as usize].to;
            let mut processes = self.processes.iter();
            let meant = processes
                .find(|one| one.program == program.program && one.rank == head.pair.target);
            assert!(
                meant.unwrap().has_forgone,
                "a piece that nobody has asked for: {head:?}"
            );
            return;
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
}

#[test]
fn nobody_waits_for_ever_and_each_version_is_whole() {
    let (mut faults, mut lost_couplers, mut ended_keepers, mut cut_off) = (0, 0, 0, 0);
    for seed in 0..SEEDS {
        let mut world = World::new(seed);
        world.play();
        let lost: Option<&Loss> = world.coupler.first_lost();
        let has_lost = lost.is_some() || world.has_lost_host || world.has_left_owing;
        faults += u64::from(has_lost);
        let mut killed = world.processes.iter().map(|one| one.error.as_deref());
        let has_fault = world.has_lost_host || world.has_left_owing;
        assert!(
            lost.is_none() || has_fault || killed.any(|error| error == Some("killed")),
            "seed {seed}: {lost:?} without a fault"
        );
        lost_couplers += u64::from(world.is_coupler_lost);
        let ended = world.hosts.iter().filter(|host| host.is_lost).count() as u64;
        ended_keepers += u64::from(!has_lost && ended > 0);
        // For processes that have never come, whose keepers were lost before: who starts them knows. Others wait for who waits for them.
        let mut programs = world.coupler.programs();
        let are_some_missing = programs.any(|program| program.present < program.size)
            || world.coupler.programs().count() < world.coupling.programs().len();
        let mut processes = world.processes.iter();
        let waits_for_missing = are_some_missing
            && processes.any(|one| one.phase != Phase::Ended && world.waits_to_be_connected(one));
        if !world.has_lost_more_than_ways && !world.has_left_owing {
            cut_off += u64::from(lost.is_some());
            for gone in world.processes.iter().flat_map(|one| one.gone.values()) {
                let told = gone.loss.as_ref();
                let places = [told, lost].map(|one| one.map(|one| (&one.program, one.rank)));
                assert!(
                    told.is_none() || places[0] == places[1],
                    "seed {seed}: a process heard {told:?}, others {lost:?}"
                );
            }
        }
        for process in &world.processes {
            let (program, rank) = (&process.program, process.rank);
            let may_wait = has_lost && !world.is_coupler_lost;
            let is_waiting_to_begin =
                may_wait && (process.phase == Phase::Attaching || waits_for_missing);
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
    assert!(
        cut_off > SEEDS / 200,
        "only {cut_off} seeds had hosts that saw the coupler, and not each other"
    );
    assert!(
        lost_couplers > SEEDS / 50,
        "only {lost_couplers} lost couplers"
    );
    assert!(
        ended_keepers > SEEDS / 50,
        "only {ended_keepers} keepers have ended alone"
    );
}
