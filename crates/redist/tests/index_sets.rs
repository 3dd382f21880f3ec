//! Index sets that can't be redistributed, and what one process has to know of others' sets.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::collections::BTreeMap;

use exoskel_redist::{
    AxisSharing, ElementType, IndexRun, IndexSet, IndexSets, Layout, LayoutError, Mapping,
    MemoryOrder, OwnersError, PlanSide, RedistributionPlan,
};

fn sets(lists: &[&[u64]]) -> IndexSets {
    let sets = lists.iter().map(|list| IndexSet::new(list.iter().copied()));
    IndexSets::of_all(sets.collect::<Result<_, _>>().unwrap())
}

fn layout(shape: &[u64], sharing: Vec<AxisSharing>, grid: &[u32]) -> Result<Layout, LayoutError> {
    let halo = vec![0; shape.len()];
    let element = ElementType::FLOAT64;
    Layout::new(shape, element, sharing, grid, &halo, MemoryOrder::C)
}

fn indices(length: u64, lists: &[&[u64]]) -> Layout {
    let sharing = vec![AxisSharing::Indices(sets(lists))];
    layout(&[length], sharing, &[lists.len() as u32]).unwrap()
}

fn check(source: &Layout, target: &Layout, select: Option<&str>) -> Result<(), String> {
    let mapping = Mapping::new(source, target, select, None, None).unwrap();
    let checked = mapping.check_owners(source, target);
    checked.map_err(|error| error.to_string())
}

#[test]
fn a_source_has_each_index_once() {
    let source = indices(6, &[&[0, 1, 2], &[5, 4], &[3, 2]]);
    let target = layout(&[6], vec![AxisSharing::Block], &[2]).unwrap();
    let error = check(&source, &target, None).unwrap_err();
    assert_eq!(
        error,
        "rank 0 and rank 2 of the source both list the index 2 on axis 0, expected one owner of each index (in a target several may list it)"
    );
    assert_eq!(check(&target, &source, None), Ok(()));
}

#[test]
fn what_a_target_wants_somebody_has() {
    let source = indices(8, &[&[0, 1], &[6, 7, 3]]);
    let block = layout(&[8], vec![AxisSharing::Block], &[2]).unwrap();
    let error = check(&source, &block, None).unwrap_err();
    assert_eq!(
        error,
        "rank 0 of the target wants the index 2 on its axis 0, and no process of the source lists the index 2 on axis 0"
    );
    // What nobody wants, nobody needs to have.
    let some = indices(8, &[&[7, 6], &[], &[3, 0]]);
    assert_eq!(check(&source, &some, None), Ok(()));
    let half = indices(4, &[&[0], &[2, 3]]);
    let error = check(&source, &half, Some("[::2]")).unwrap_err();
    assert!(
        error
            .contains("rank 1 of the target wants the index 2 on its axis 0, and no process of the source lists the index 4"),
        "{error}"
    );
    let odd = layout(&[4], vec![AxisSharing::Cyclic(1)], &[3]).unwrap();
    let error = check(&source, &odd, Some("[1::2]")).unwrap_err();
    assert!(
        error
            .contains("rank 2 of the target wants the index 2 on its axis 0, and no process of the source lists the index 5"),
        "{error}"
    );
}

#[test]
fn sets_fit_their_axis() {
    let axes = |lists: &[&[u64]]| vec![AxisSharing::Indices(sets(lists))];
    let error = layout(&[4], axes(&[&[0, 1], &[4, 2]]), &[2]).unwrap_err();
    let (index, process, length) = (4, 1, 4);
    let expected = LayoutError::Index {
        index,
        process,
        length,
    };
    assert_eq!(error, expected);
    let error = layout(&[4], axes(&[&[0, 1]]), &[2]).unwrap_err();
    let (got, processes) = (1, 2);
    assert_eq!(error, LayoutError::IndexSets { got, processes });
    let halo = Layout::new(
        &[2],
        ElementType::FLOAT64,
        axes(&[&[0], &[1]]),
        &[2],
        &[1],
        MemoryOrder::C,
    );
    assert_eq!(halo, Err(LayoutError::Halo("indices".to_owned())));
    let some = IndexSets::of_some(BTreeMap::from([(1, IndexSet::new([0]).unwrap())]));
    let source = layout(&[1], vec![AxisSharing::Indices(some)], &[2]).unwrap();
    let mapping = Mapping::new(&source, &source, None, None, None).unwrap();
    let (side, axis, rank) = ("source", 0, 0);
    let expected = OwnersError::Missing { side, axis, rank };
    assert_eq!(mapping.check_owners(&source, &source), Err(expected));
}

#[test]
fn all_sets_say_how_many_processes_there_are() {
    let axes = [
        AxisSharing::Indices(sets(&[&[0], &[1], &[2]])),
        AxisSharing::Block,
    ];
    assert_eq!(Layout::grid_of(&axes, 12), Ok(vec![3, 4]));
    let own = IndexSets::of_some(BTreeMap::new());
    let axes = [AxisSharing::Indices(own), AxisSharing::Whole];
    assert_eq!(Layout::grid_of(&axes, 12), Ok(vec![12, 1]));
}

/// A process plans its part with its own set and the runs of others that meet it, as with all sets.
#[test]
fn a_part_of_others_sets_is_enough() {
    let source = indices(12, &[&[3, 4, 5, 0, 1, 2], &[11, 10, 9], &[6, 7, 8]]);
    let target = indices(12, &[&[0, 1, 2, 3, 9], &[8, 7, 11, 10]]);
    let mapping = Mapping::new(&source, &target, None, None, None).unwrap();
    let all = RedistributionPlan::new(&source, &target, &mapping, PlanSide::Target, 0);
    let run = |start, length, local| IndexRun {
        start,
        length,
        local,
    };
    let part = |length, runs| IndexSet::of_runs(length, runs).unwrap();
    let met = BTreeMap::from([
        (0, part(6, vec![run(0, 3, 3), run(3, 1, 0)])),
        (1, part(3, vec![run(9, 1, 2)])),
    ]);
    let known = source.with_index_sets(0, IndexSets::of_some(met)).unwrap();
    let some = RedistributionPlan::new(&known, &target, &mapping, PlanSide::Target, 0);
    assert_eq!(some, all);
    assert_eq!(known.local_shape(0), [6]);
}

#[test]
fn scattered_cells_are_planned() {
    // Every process has each seventh cell, in an order of its own; the target has blocks.
    let count = 200_000_u64;
    let list = |process: u64| {
        let cells = count.div_ceil(7) - u64::from(process >= count % 7 && !count.is_multiple_of(7));
        (0..cells).map(move |cell| (cell * 5 % cells) * 7 + process)
    };
    let sets = (0..7).map(|process| IndexSet::new(list(process)).unwrap());
    let sharing = vec![AxisSharing::Indices(IndexSets::of_all(sets.collect()))];
    let source = layout(&[count], sharing, &[7]).unwrap();
    let target = layout(&[count], vec![AxisSharing::Block], &[3]).unwrap();
    let mapping = Mapping::new(&source, &target, None, None, None).unwrap();
    assert_eq!(mapping.check_owners(&source, &target), Ok(()));
    let received = (0..3).map(|rank| {
        RedistributionPlan::new(&source, &target, &mapping, PlanSide::Target, rank).elements()
    });
    assert_eq!(received.sum::<u64>(), count);
}
