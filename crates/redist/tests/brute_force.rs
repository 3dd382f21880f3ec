//! Plans against the definition: each element by itself, for each pair of ways to share an axis out.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::collections::BTreeMap;

use exoskel_redist::{
    AxisShare, AxisSharing, ElementType, IndexSet, IndexSets, Layout, Mapping, MemoryOrder,
    PlanSide, PlannedMessage, RedistributionPlan, SetsOfAxes, StridedCopy,
};
use proptest::prelude::*;

/// What no element has.
const UNTOUCHED: u64 = u64::MAX;

/// Sets of indices in any order, each index with one owner. At a target some processes list indices of others besides.
fn index_sets(length: u64, side: PlanSide) -> impl Strategy<Value = (AxisSharing, u32, u64)> {
    let order = Just((0..length).collect::<Vec<u64>>()).prop_shuffle();
    let (keeps_order, owner) = (any::<bool>(), 0_usize..5);
    let owners = prop::collection::vec(owner, length as usize);
    let more = prop::collection::vec(any::<bool>(), 5 * length as usize);
    (1_usize..6, order, keeps_order, owners, more).prop_map(
        move |(count, mut order, keeps_order, owners, more)| {
            if keeps_order {
                order.sort_unstable();
            }
            let mut lists = vec![Vec::new(); count];
            for index in order {
                let owner = owners[index as usize] % count;
                for (process, list) in lists.iter_mut().enumerate() {
                    let also = side == PlanSide::Target && more[5 * index as usize + process];
                    if process == owner || also {
                        list.push(index);
                    }
                }
            }
            let sets = lists.into_iter().map(|list| {
                let set = IndexSet::new(list.iter().copied()).unwrap();
                assert_eq!(listed(&set), list, "the indices of runs");
                set
            });
            let sets = IndexSets::of_all(sets.collect());
            (AxisSharing::Indices(sets), count as u32, 0)
        },
    )
}

/// A set's indices in the order of its process's memory.
fn listed(set: &IndexSet) -> Vec<u64> {
    let mut list = vec![u64::MAX; set.length() as usize];
    for run in set.runs() {
        for cell in 0..run.length {
            list[(run.local + cell) as usize] = run.start + cell;
        }
    }
    list
}

/// Each way to share an axis out. A new one needs its line here, and its definition in `local`: the properties below then hold it to what
/// plans promise, together with all others.
fn sharing(length: u64, side: PlanSide) -> impl Strategy<Value = (AxisSharing, u32, u64)> {
    let processes = 1_u32..6;
    prop_oneof![
        2 => index_sets(length, side),
        1 => (processes.clone(), 0_u64..3).prop_map(|(count, halo)| (AxisSharing::Block, count, halo)),
        1 => (processes.clone(), 1_u64..6).prop_map(|(count, block)| (
            AxisSharing::Cyclic(block),
            count,
            0
        )),
        1 => (processes.clone(), 0_u64..3).prop_map(move |(count, more)| (
            AxisSharing::BlockOf((length.div_ceil(u64::from(count)) + more).max(1)),
            count,
            0
        )),
        1 => (prop::collection::vec(0..=length, 0..4), 0_u64..3).prop_map(move |(mut inner, halo)| {
            inner.extend([0, length]);
            inner.sort_unstable();
            let count = inner.len() as u32 - 1;
            (AxisSharing::Bounds(inner), count, halo)
        }),
        1 => Just((AxisSharing::Whole, 1, 0)),
        1 => processes.prop_map(|count| (AxisSharing::Replicated, count, 0)),
    ]
}

fn order() -> impl Strategy<Value = MemoryOrder> {
    prop_oneof![Just(MemoryOrder::C), Just(MemoryOrder::Fortran)]
}

fn layout(shape: Vec<u64>, side: PlanSide) -> impl Strategy<Value = Layout> {
    let axes: Vec<_> = shape.iter().map(|length| sharing(*length, side)).collect();
    (axes, order()).prop_map(move |(axes, order)| {
        let sharing = axes.iter().map(|(sharing, ..)| sharing.clone()).collect();
        let grid: Vec<u32> = axes.iter().map(|(_, count, _)| *count).collect();
        let halo: Vec<u64> = axes.iter().map(|(.., halo)| *halo).collect();
        let element = ElementType::FLOAT64;
        Layout::new(&shape, element, sharing, &grid, &halo, order).unwrap()
    })
}

/// A slice with `count` indices, and the length of an axis that has it.
#[derive(Clone, Debug)]
struct Slice {
    start: u64,
    step: u64,
    length: u64,
}

impl Slice {
    fn text(&self, count: u64) -> String {
        let stop = match count {
            0 => self.start,
            _ => self.start + (count - 1) * self.step + 1,
        };
        format!("{}:{stop}:{}", self.start, self.step)
    }
}

fn slice(count: u64) -> impl Strategy<Value = Slice> {
    (0_u64..5, 1_u64..5, 0_u64..4).prop_map(move |(start, step, more)| Slice {
        start,
        step,
        length: start + step * count + more,
    })
}

#[derive(Clone, Debug)]
struct Case {
    source: Layout,
    target: Layout,
    counts: Vec<u64>,
    from: Vec<Slice>,
    to: Vec<Slice>,
    permutation: Vec<usize>,
}

fn case(axes: std::ops::RangeInclusive<usize>, most: u64) -> impl Strategy<Value = Case> {
    let counts = prop::collection::vec(0..=most, axes);
    let slices = counts.prop_flat_map(|counts| {
        let each = || counts.iter().map(|count| slice(*count)).collect::<Vec<_>>();
        let (from, to) = (each(), each());
        let order: Vec<usize> = (0..counts.len()).collect();
        (Just(counts), from, to, Just(order).prop_shuffle())
    });
    slices.prop_flat_map(|(counts, from, to, permutation)| {
        // `from` is in the order of the target's axes, as the counts are.
        let mut source = vec![0; counts.len()];
        for (slice, axis) in from.iter().zip(&permutation) {
            source[*axis] = slice.length;
        }
        let target = to.iter().map(|slice| slice.length).collect();
        let layouts = (
            layout(source, PlanSide::Source),
            layout(target, PlanSide::Target),
        );
        layouts.prop_map(move |(source, target)| Case {
            source,
            target,
            counts: counts.clone(),
            from: from.clone(),
            to: to.clone(),
            permutation: permutation.clone(),
        })
    })
}

/// By definition: where a process's memory has an index of an axis, if it has it.
fn local(layout: &Layout, axis: usize, coordinate: u32, index: u64, halo: u64) -> Option<u64> {
    let (length, count) = (layout.shape()[axis], u64::from(layout.grid()[axis]));
    let process = u64::from(coordinate);
    let own = layout.halo()[axis];
    let in_range = |start: u64, end: u64| {
        let has = start < end && index + halo >= start && index < end + halo;
        has.then(|| index + own - start)
    };
    let in_turn = |block: u64| {
        let number = index / block;
        (number % count == process).then(|| number / count * block + index % block)
    };
    match &layout.sharing()[axis] {
        AxisSharing::Block => {
            let block = length.div_ceil(count).max(1);
            in_range(
                (block * process).min(length),
                (block * (process + 1)).min(length),
            )
        }
        AxisSharing::BlockOf(block) => in_turn(*block),
        AxisSharing::Cyclic(block) => in_turn(*block),
        AxisSharing::Bounds(bounds) => {
            in_range(bounds[process as usize], bounds[process as usize + 1])
        }
        AxisSharing::Indices(sets) => {
            let list = listed(sets.set(coordinate).unwrap());
            let place = list.iter().position(|listed| *listed == index);
            place.map(|place| place as u64)
        }
        AxisSharing::Whole | AxisSharing::Replicated => Some(index),
    }
}

fn memory(layout: &Layout, rank: u32) -> Vec<u64> {
    let cells: u64 = layout.local_shape(rank).iter().product();
    vec![UNTOUCHED; cells as usize]
}

/// All indices of an array of this shape.
fn indices(shape: &[u64]) -> Vec<Vec<u64>> {
    shape.iter().fold(vec![Vec::new()], |all, length| {
        let with = |before: &Vec<u64>| {
            let longer = |index| [before.as_slice(), &[index]].concat();
            (0..*length).map(longer).collect::<Vec<_>>()
        };
        all.iter().flat_map(with).collect()
    })
}

/// Where a process's memory has an element, in cells; nothing if it hasn't.
fn place(layout: &Layout, rank: u32, index: &[u64], with_halo: bool) -> Option<usize> {
    let (strides, places) = (layout.local_strides(rank), layout.coordinates(rank));
    let halos = layout.halo();
    let mut bytes = 0;
    for (axis, index) in index.iter().enumerate() {
        let halo = if with_halo { halos[axis] } else { 0 };
        bytes += strides[axis] * local(layout, axis, places[axis], *index, halo)?;
    }
    Some((bytes / 8) as usize)
}

fn number(shape: &[u64], index: &[u64]) -> u64 {
    let places = shape.iter().zip(index);
    places.fold(0, |number, (length, index)| number * length + index)
}

fn bytes(cells: &[u64]) -> Vec<u8> {
    cells.iter().flat_map(|cell| cell.to_ne_bytes()).collect()
}

fn check(case: &Case) {
    let Case { source, target, .. } = case;
    let axes = case.counts.len();
    let mut select = vec![String::new(); axes];
    let mut into = Vec::new();
    for axis in 0..axes {
        select[case.permutation[axis]] = case.from[axis].text(case.counts[axis]);
        into.push(case.to[axis].text(case.counts[axis]));
    }
    let (select, into) = (
        format!("[{}]", select.join(", ")),
        format!("[{}]", into.join(", ")),
    );
    let permutation = Some(case.permutation.as_slice());
    let mapping = Mapping::new(source, target, Some(&select), Some(&into), permutation).unwrap();
    assert_eq!(mapping.check_owners(source, target), Ok(()));

    let shape = source.shape();
    let sources: Vec<Vec<u8>> = (0..source.processes())
        .map(|rank| {
            let mut cells = memory(source, rank);
            for index in indices(&shape) {
                if let Some(place) = place(source, rank, &index, false) {
                    cells[place] = number(&shape, &index);
                }
            }
            bytes(&cells)
        })
        .collect();
    let expected: Vec<Vec<u8>> = (0..target.processes())
        .map(|rank| {
            let mut cells = memory(target, rank);
            for position in indices(&case.counts) {
                let mut from = vec![0; axes];
                let mut to = vec![0; axes];
                for axis in 0..axes {
                    let slice = &case.from[axis];
                    from[case.permutation[axis]] = slice.start + slice.step * position[axis];
                    to[axis] = case.to[axis].start + case.to[axis].step * position[axis];
                }
                if let Some(place) = place(target, rank, &to, true) {
                    cells[place] = number(&shape, &from);
                }
            }
            bytes(&cells)
        })
        .collect();

    let plan = |side, rank| {
        let whole = RedistributionPlan::new(source, target, &mapping, side, rank);
        let (source, target) = known_to(source, target, &mapping, side, rank);
        let own = RedistributionPlan::new(&source, &target, &mapping, side, rank);
        // Runs may be cut where shares end: the cells are the same, in the same order.
        let cells = |plan: &RedistributionPlan| {
            let cells = |message: PlannedMessage<'_>| {
                let cells = (0..axes).map(|axis| message.cells(axis));
                (message.rank(), cells.collect::<Vec<_>>())
            };
            plan.messages().map(cells).collect::<Vec<_>>()
        };
        assert_eq!(
            cells(&own),
            cells(&whole),
            "a plan of what one process knows"
        );
        whole
    };
    let of_source = |rank| plan(PlanSide::Source, rank);
    let of_target = |rank| plan(PlanSide::Target, rank);
    let mut sent = BTreeMap::new();
    let mut copied: Vec<Vec<u8>> = (0..target.processes())
        .map(|rank| bytes(&memory(target, rank)))
        .collect();
    for from in 0..source.processes() {
        let plan = of_source(from);
        let strides = source.local_strides(from);
        let array = &sources[from as usize];
        assert_eq!(
            plan.messages().map(|one| one.elements()).sum::<u64>(),
            plan.elements()
        );
        for message in plan.messages() {
            assert!(message.elements() > 0, "an empty message");
            let mut packed = vec![0; message.bytes() as usize];
            let packing = StridedCopy::packing(message, &strides);
            packing.run(array, &mut packed);
            if let Some(stretches) = packing.stretches() {
                let stretches = stretches.into_iter();
                let lying: Vec<&[u8]> = stretches
                    .map(|at| &array[at.start as usize..at.end as usize])
                    .collect();
                assert_eq!(lying.concat(), packed);
            }
            for bytes_max in piece_sizes(message) {
                let cut = StridedCopy::packing(message, &strides).cut(bytes_max);
                let pieces = (0..cut.count()).map(|number| {
                    let piece = cut.piece(number);
                    assert!(piece.bytes() <= bytes_max.max(u64::from(message.element_bytes())));
                    let mut bytes = vec![0; piece.bytes() as usize];
                    piece.run(array, &mut bytes);
                    bytes
                });
                assert_eq!(pieces.collect::<Vec<_>>().concat(), packed, "packed pieces");
            }
            let before = sent.insert((from, message.rank()), packed);
            assert_eq!(before, None, "two messages to one process");
            let there = target.local_strides(message.rank());
            let copy = StridedCopy::between(message, &strides, &there);
            copy.run(array, &mut copied[message.rank() as usize]);
        }
    }
    assert_eq!(copied, expected, "copies of the source's plan");
    for to in 0..target.processes() {
        let plan = of_target(to);
        let strides = target.local_strides(to);
        let mut unpacked = bytes(&memory(target, to));
        let mut by_pieces = unpacked.clone();
        for message in plan.messages() {
            let packed = sent.remove(&(message.rank(), to));
            let packed = packed.expect("nobody sends this message");
            StridedCopy::unpacking(message, &strides).run(&packed, &mut unpacked);
            for bytes_max in piece_sizes(message) {
                let cut = StridedCopy::unpacking(message, &strides).cut(bytes_max);
                let mut rest = packed.as_slice();
                for number in 0..cut.count() {
                    let piece = cut.piece(number);
                    let (bytes, more) = rest.split_at(piece.bytes() as usize);
                    piece.run(bytes, &mut by_pieces);
                    rest = more;
                }
                assert!(rest.is_empty(), "pieces for fewer bytes than were packed");
            }
        }
        assert_eq!(by_pieces, expected[to as usize], "pieces of bytes in a row");
        assert_eq!(unpacked, expected[to as usize], "bytes in a row");
    }
    assert!(
        sent.is_empty(),
        "messages that nobody receives: {:?}",
        sent.keys()
    );
}

/// What meets a process's part, worked out in three shares, each from what is known there of all sets.
fn met_in_shares(
    source: &Layout,
    target: &Layout,
    mapping: &Mapping,
    side: PlanSide,
    rank: u32,
) -> SetsOfAxes {
    let mut met = SetsOfAxes::new();
    for number in 0..3 {
        let share = AxisShare { number, of: 3 };
        let cut = |layout: &Layout, side| {
            let sets = mapping.cut_sets(layout, side, share).into_iter();
            sets.fold(layout.clone(), |layout, (axis, sets)| {
                let sets = IndexSets::of_some(sets);
                layout.with_index_sets(axis, sets).unwrap()
            })
        };
        let (from, to) = (cut(source, PlanSide::Source), cut(target, PlanSide::Target));
        assert_eq!(mapping.check_share(&from, &to, share), Ok(()));
        for (axis, sets) in mapping.met_sets(&from, &to, side, rank, share) {
            let known = met.entry(axis).or_default();
            for (process, set) in sets {
                let before = known.remove(&process).unwrap_or_default();
                let runs = [before.runs(), set.runs()].concat();
                known.insert(process, IndexSet::joined(set.length(), runs).unwrap());
            }
        }
    }
    met
}

/// Both layouts as one process knows them: its own index sets, and of others the runs that meet them.
fn known_to(
    source: &Layout,
    target: &Layout,
    mapping: &Mapping,
    side: PlanSide,
    rank: u32,
) -> (Layout, Layout) {
    let met = met_in_shares(source, target, mapping, side, rank);
    let (own, other) = match side {
        PlanSide::Source => (source, target),
        PlanSide::Target => (target, source),
    };
    let (mut known, mut known_other) = (own.clone(), other.clone());
    for (axis, sets) in own.index_sets() {
        let process = own.coordinates(rank)[axis];
        let own = BTreeMap::from([(process, sets.set(process).unwrap().clone())]);
        known = known
            .with_index_sets(axis, IndexSets::of_some(own))
            .unwrap();
    }
    for (axis, _) in other.index_sets() {
        let sets = IndexSets::of_some(met[&axis].clone());
        known_other = known_other.with_index_sets(axis, sets).unwrap();
    }
    match side {
        PlanSide::Source => (known, known_other),
        PlanSide::Target => (known_other, known),
    }
}

/// One element, some, half of it, all of it.
fn piece_sizes(message: PlannedMessage<'_>) -> [u64; 4] {
    let element = u64::from(message.element_bytes());
    [1, 3 * element, message.bytes() / 2 + 1, message.bytes()]
}

#[test]
fn bytes_are_swapped_once() {
    for (text, unit, order) in [
        ("i2", 2, "<"),
        ("f4", 4, "<"),
        ("f8", 8, ">"),
        ("c16", 8, "<"),
        ("U3", 4, ">"),
        ("V6", 1, "<"),
    ] {
        let other = if order == "<" { ">" } else { "<" };
        let of = |order: &str, sharing| {
            let element: ElementType = format!("{order}{text}").parse().unwrap();
            Layout::new(&[6], element, vec![sharing], &[2], &[0], MemoryOrder::C).unwrap()
        };
        let (source, target) = (
            of(order, AxisSharing::Block),
            of(other, AxisSharing::Cyclic(1)),
        );
        let size = source.element().bytes() as usize;
        let mapping = Mapping::new(&source, &target, None, None, None).unwrap();
        let cell =
            |index: u8| -> Vec<u8> { (0..size as u8).map(|byte| index * 32 + byte).collect() };
        let swapped = |index: u8| -> Vec<u8> {
            let cell = cell(index);
            let parts = cell.chunks(unit).map(|part| part.iter().rev().copied());
            parts.flatten().collect()
        };
        let sources: [Vec<u8>; 2] = [[0, 1, 2], [3, 4, 5]].map(|own| own.map(cell).concat());
        let expected: [Vec<u8>; 2] = [[0, 2, 4], [1, 3, 5]].map(|own| own.map(swapped).concat());
        let mut copied = [vec![0; 3 * size], vec![0; 3 * size]];
        let mut unpacked = copied.clone();
        for (rank, array) in sources.iter().enumerate() {
            let plan =
                RedistributionPlan::new(&source, &target, &mapping, PlanSide::Source, rank as u32);
            for message in plan.messages() {
                let to = message.rank() as usize;
                let (from, there) = (
                    source.local_strides(rank as u32),
                    target.local_strides(to as u32),
                );
                StridedCopy::between(message, &from, &there).run(array, &mut copied[to]);
                let mut packed = vec![0; message.bytes() as usize];
                StridedCopy::packing(message, &from).run(array, &mut packed);
                StridedCopy::unpacking(message, &there).run(&packed, &mut unpacked[to]);
            }
        }
        assert_eq!(copied, expected, "{text}");
        assert_eq!(unpacked, expected, "{text}, in a row");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, ..ProptestConfig::default() })]

    #[test]
    fn one_axis(case in case(1..=1, 40)) {
        check(&case);
    }

    #[test]
    fn two_axes(case in case(2..=2, 7)) {
        check(&case);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, ..ProptestConfig::default() })]

    #[test]
    fn more_axes(case in case(3..=4, 3)) {
        check(&case);
    }
}
