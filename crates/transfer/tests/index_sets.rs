//! Arrays whose indices belong to processes by index sets: who is told of which runs, and what is no set.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::collections::BTreeMap;

use exoskel_redist::{
    AxisSharing, ElementType, IndexSet, IndexSets, Layout, MemoryOrder, SetsOfAxes,
};
use exoskel_transfer::{
    ArrayEnd, AttachRequest, ConnectionState, Coupler, Coupling, IndexPart, IndexParts, IndexWord,
    Keeper, KeeperAction, KeeperMessage, LayoutDescription, MemberId, MemberMessage, OWN_KEEPER,
    SaidIndices,
};

const MESH: &str = r#"
    [program.ocean]
    [program.atmosphere]
    [[connection]]
    from = "ocean.mesh"
    to = "atmosphere.mesh"
"#;

struct House {
    coupler: Coupler,
    keeper: Keeper,
    told: Vec<(MemberId, KeeperMessage)>,
    allocated: Vec<u64>,
    closed: Vec<MemberId>,
}

impl House {
    fn new() -> Self {
        let coupling = Coupling::parse(MESH).unwrap();
        let mut house = Self {
            coupler: Coupler::new(coupling.clone()),
            keeper: Keeper::new(coupling, OWN_KEEPER, false),
            told: Vec::new(),
            allocated: Vec::new(),
            closed: Vec::new(),
        };
        for (member, program, rank) in [(0, "ocean", 0), (1, "ocean", 1), (2, "atmosphere", 0)] {
            let size = if program == "ocean" { 2 } else { 1 };
            house.say(
                member,
                MemberMessage::Attach(AttachRequest::new(program, rank, size)),
            );
        }
        house.told.clear();
        house
    }

    fn say(&mut self, member: MemberId, message: MemberMessage) {
        self.keeper.hear(member, message);
        loop {
            while let Some((_, order)) = self.coupler.next_order() {
                self.keeper.order(order);
            }
            match self.keeper.next_action() {
                None => return,
                Some(KeeperAction::Report(report)) => self.coupler.report(OWN_KEEPER, report),
                Some(KeeperAction::Allocate { bytes, .. }) => self.allocated.push(bytes),
                Some(KeeperAction::Close { member }) => self.closed.push(member),
                Some(KeeperAction::Send {
                    member, message, ..
                }) => self.told.push((member, message)),
                Some(other) => panic!("there is no other host: {other:?}"),
            }
        }
    }

    fn indices(&mut self, member: MemberId, process: u32, indices: &[u64]) {
        for part in parts(process, indices) {
            let name = "mesh".to_owned();
            self.say(member, MemberMessage::Indices { name, part });
        }
    }

    /// Describes a mesh of 8 cells with 3 layers each.
    fn describe(&mut self, member: MemberId, sharing: AxisSharing, processes: u32) {
        let layout = Layout::new(
            &[8, 3],
            ElementType::FLOAT64,
            vec![sharing, AxisSharing::Whole],
            &[processes, 1],
            &[0, 0],
            MemoryOrder::C,
        );
        let layout = LayoutDescription::of(&layout.unwrap());
        let name = "mesh".to_owned();
        self.say(member, MemberMessage::Array { name, layout });
    }

    fn state(&self) -> &ConnectionState {
        &self.coupler.connections()[0].state
    }

    /// What a member was told of the indices at the other end.
    fn told_of(&self, whose: MemberId) -> Vec<(u32, u64, Vec<u64>)> {
        let told = self
            .told
            .iter()
            .filter_map(|(member, message)| match message {
                KeeperMessage::Indices { part, .. } if *member == whose => {
                    Some((part.process, part.length, part.runs.clone()))
                }
                _ => None,
            });
        told.collect()
    }

    fn refusals(&self) -> Vec<String> {
        let told = self.told.iter().filter_map(|(_, message)| match message {
            KeeperMessage::Refused { reason } => Some(reason.clone()),
            _ => None,
        });
        told.collect()
    }
}

fn parts(process: u32, indices: &[u64]) -> Vec<IndexPart> {
    let set = IndexSet::new(indices.iter().copied()).unwrap();
    let sets = SetsOfAxes::from([(0, BTreeMap::from([(process, set)]))]);
    IndexPart::of(&sets).collect()
}

fn sets() -> AxisSharing {
    AxisSharing::Indices(IndexSets::default())
}

#[test]
fn each_member_is_told_of_the_runs_that_meet_its_own() {
    let mut house = House::new();
    house.indices(0, 0, &[6, 7, 0, 1, 2]);
    house.describe(0, sets(), 2);
    house.indices(1, 1, &[4, 3, 5]);
    house.describe(1, sets(), 2);
    house.indices(2, 0, &[1, 2, 3, 7]);
    house.describe(2, sets(), 1);
    assert_eq!(*house.state(), ConnectionState::Ready);
    // 24 bytes for the layers of a cell.
    assert_eq!(house.allocated, [5 * 24, 3 * 24, 4 * 24]);
    assert_eq!(house.told_of(0), [(0, 4, vec![1, 2, 0, 7, 1, 3])]);
    assert_eq!(house.told_of(1), [(0, 4, vec![3, 1, 2])]);
    let met = [(0, 5, vec![1, 2, 3, 7, 1, 1]), (1, 3, vec![3, 1, 1])];
    assert_eq!(house.told_of(2), met);
    let last = house.told.iter().rfind(|(member, _)| *member == 2);
    assert!(
        matches!(
            last,
            Some((_, KeeperMessage::Connected { own: ArrayEnd::Target, terms, .. }))
                if terms.source.layout().unwrap().index_sets().count() == 1
        ),
        "{last:?}"
    );
}

#[test]
fn sets_that_do_not_fit_fail_the_connection_at_both_ends() {
    for (own, words) in [
        (
            vec![4, 3, 5, 1],
            "rank 0 and rank 1 of the source both list the index 1 on axis 0",
        ),
        (
            vec![4, 5],
            "rank 0 of the target wants the index 3 on its axis 0",
        ),
    ] {
        let mut house = House::new();
        house.describe(2, AxisSharing::Block, 1);
        house.indices(0, 0, &[6, 7, 0, 1, 2]);
        house.describe(0, sets(), 2);
        house.indices(1, 1, &own);
        house.describe(1, sets(), 2);
        let ConnectionState::Failed(reason) = house.state() else {
            panic!("{:?}", house.state());
        };
        assert!(
            reason.contains(words)
                && reason.contains("ocean.mesh is 8 x 3 of <f8, (indices, whole)"),
            "{reason}"
        );
        let failed = house
            .told
            .iter()
            .filter(|(_, message)| matches!(message, KeeperMessage::Failed { connection: 0, .. }));
        assert_eq!(failed.count(), 3);
    }
}

#[test]
fn an_array_whose_sets_are_none_is_refused() {
    let mut house = House::new();
    house.describe(0, sets(), 2);
    house.indices(1, 1, &[7, 8]);
    house.describe(1, sets(), 2);
    assert_eq!(
        house.refusals(),
        [
            "rank 0 of ocean has not said its indices on axis 0 of \"mesh\"",
            "rank 1 of ocean describes \"mesh\": process 1 lists the index 8, expected indices from 0 to below 8: the axis's length",
        ]
    );
    assert!(house.allocated.is_empty());
    let ConnectionState::Failed(reason) = house.state() else {
        panic!("{:?}", house.state());
    };
    assert!(
        reason.contains("a process of ocean was refused"),
        "{reason}"
    );
}

#[test]
fn what_is_no_part_of_a_set_ends_the_member() {
    let part = |runs: &[u64]| MemberMessage::Indices {
        name: "mesh".to_owned(),
        part: IndexPart {
            axis: 0,
            process: 0,
            length: 2,
            runs: runs.to_vec(),
        },
    };
    let mut house = House::new();
    house.say(0, part(&[1, 2]));
    assert_eq!(house.closed, [0]);
    // Said after the array, nobody waits for it.
    house.indices(1, 1, &[3]);
    house.describe(1, sets(), 2);
    house.indices(1, 1, &[4]);
    assert_eq!(house.closed, [0, 1]);
    let mut heard = IndexParts::default();
    for part in parts(5, &[9, 3]) {
        heard.take(&part).unwrap();
    }
    assert_eq!(heard.sets().unwrap()[&0][&5].length(), 2);
}

#[test]
fn processes_at_one_place_of_the_grid_have_one_set() {
    let text = "[program.a]\n[program.b]\n[[connection]]\nfrom = \"a.mesh\"\nto = \"b.mesh\"\n";
    let coupling = Coupling::parse(text).unwrap();
    let mut house = House {
        coupler: Coupler::new(coupling.clone()),
        keeper: Keeper::new(coupling, OWN_KEEPER, false),
        told: Vec::new(),
        allocated: Vec::new(),
        closed: Vec::new(),
    };
    for (member, program, rank, size) in [(0, "a", 0, 2), (1, "a", 1, 2), (2, "b", 0, 1)] {
        house.say(
            member,
            MemberMessage::Attach(AttachRequest::new(program, rank, size)),
        );
    }
    house.describe(2, AxisSharing::Block, 1);
    let layout = Layout::new(
        &[8, 3],
        ElementType::FLOAT64,
        vec![sets(), AxisSharing::Block],
        &[1, 2],
        &[0, 0],
        MemoryOrder::C,
    );
    let layout = LayoutDescription::of(&layout.unwrap());
    for (member, cells) in [(0, [0, 1, 2, 3, 4, 5, 6, 7]), (1, [0, 1, 2, 3, 4, 5, 7, 6])] {
        house.indices(member, 0, &cells);
        let (name, layout) = ("mesh".to_owned(), layout.clone());
        house.say(member, MemberMessage::Array { name, layout });
    }
    let ConnectionState::Failed(reason) = house.state() else {
        panic!("{:?}", house.state());
    };
    assert!(
        reason.contains("rank 0 and rank 1 of a have the same place on axis 0"),
        "{reason}"
    );
}

/// Aim: a keeper that has no process at a connection keeps nobody from using it, whatever it says of index sets before others know who takes
/// part; what one says that has such a process fails the connection, and nobody waits for it.
#[test]
fn who_takes_no_part_in_a_connection_says_nothing_of_its_index_sets() {
    for liar in [3, 2] {
        let coupling = Coupling::parse(MESH).unwrap();
        let mut coupler = Coupler::new(coupling.clone());
        let numbers = [1, 2, 3].map(|_| coupler.join().unwrap().keeper);
        let mut keepers = numbers.map(|number| Keeper::new(coupling.clone(), number, true));
        let wrong = IndexPart {
            axis: u8::MAX,
            process: 0,
            length: 1,
            runs: vec![0, 1, 0],
        };
        let end = ArrayEnd::Source;
        keepers[0].told_indices(SaidIndices {
            keeper: liar,
            connection: 0,
            word: IndexWord::Own { end, part: wrong },
        });
        let layout = Layout::new(
            &[8],
            ElementType::FLOAT64,
            vec![sets()],
            &[1],
            &[0],
            MemoryOrder::C,
        );
        let layout = LayoutDescription::of(&layout.unwrap());
        let mut told = Vec::new();
        for (place, program) in ["ocean", "atmosphere"].into_iter().enumerate() {
            let name = || "mesh".to_owned();
            let attach = MemberMessage::Attach(AttachRequest::new(program, 0, 1));
            let own = parts(0, &[0, 1, 2, 3, 4, 5, 6, 7]).into_iter();
            let own = own.map(|part| MemberMessage::Indices { name: name(), part });
            let layout = layout.clone();
            let array = MemberMessage::Array {
                name: name(),
                layout,
            };
            for message in [attach].into_iter().chain(own).chain([array]) {
                keepers[place].hear(0, message);
                settle(&mut coupler, &mut keepers, &mut told);
            }
        }
        let is_usable = matches!(told.last(), Some(KeeperMessage::Connected { .. }));
        let has_failed = matches!(told.last(), Some(KeeperMessage::Failed { .. }));
        assert_eq!((is_usable, has_failed), (liar == 3, liar == 2), "{told:?}");
    }
}

/// Has the coupler and its keepers say all that they have to say.
fn settle(coupler: &mut Coupler, keepers: &mut [Keeper], told: &mut Vec<KeeperMessage>) {
    loop {
        while let Some((whom, order)) = coupler.next_order() {
            for keeper in keepers.iter_mut() {
                if whom.is_none_or(|whom| whom == keeper.id()) {
                    keeper.order(order.clone());
                }
            }
        }
        let actions = keepers.iter_mut().map(|one| (one.id(), one.next_action()));
        let mut actions = actions.filter_map(|(number, action)| Some((number, action?)));
        let Some((number, action)) = actions.next() else {
            return;
        };
        drop(actions);
        match action {
            KeeperAction::Report(report) => coupler.report(number, report),
            KeeperAction::Indices { keeper, said } => {
                let mut others = keepers.iter_mut();
                let other = others.find(|one| one.id() == keeper);
                other.unwrap().told_indices(said);
            }
            KeeperAction::Send { message, .. } => told.push(message),
            _ => {}
        }
    }
}
