//! Arrays that no memory holds, by what is said of them.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use exoskel_redist::{
    AxisSharing, ElementType, Layout, Mapping, MemoryOrder, PlanSide, RedistributionPlan,
};

fn layout(shape: &[u64], sharing: &[AxisSharing], grid: &[u32]) -> Layout {
    let halo = vec![0; shape.len()];
    let element = ElementType::FLOAT64;
    let made = Layout::new(
        shape,
        element,
        sharing.to_vec(),
        grid,
        &halo,
        MemoryOrder::C,
    );
    made.unwrap()
}

/// Both ends say the same of each message, and nothing is left out.
fn agree(source: &Layout, target: &Layout) {
    let mapping = Mapping::new(source, target, None, None, None).unwrap();
    let plans = |layout: &Layout, side| {
        let ranks = 0..layout.processes();
        let mapping = &mapping;
        let plan = move |rank| RedistributionPlan::new(source, target, mapping, side, rank);
        ranks.map(plan).collect::<Vec<_>>()
    };
    let (sending, receiving) = (
        plans(source, PlanSide::Source),
        plans(target, PlanSide::Target),
    );
    let total =
        |plans: &[RedistributionPlan]| plans.iter().map(|plan| plan.elements()).sum::<u64>();
    let elements: u64 = source.shape().iter().product();
    assert_eq!((total(&sending), total(&receiving)), (elements, elements));
    for (rank, plan) in (0_u32..).zip(&sending) {
        for message in plan.messages() {
            let mut there = receiving[message.rank() as usize].messages();
            let there = there
                .find(|one| one.rank() == rank)
                .expect("it is received");
            assert_eq!(there.elements(), message.elements());
        }
    }
}

#[test]
fn more_elements_than_32_bits_count() {
    use AxisSharing::{Block, Cyclic, Whole};
    let long = [1_u64 << 33];
    let ways = [
        (Block, 5),
        (Cyclic(1), 3),
        (Cyclic(64), 7),
        (Cyclic(1 << 20), 4),
        (Whole, 1),
    ];
    for (from, count) in &ways {
        for (to, other) in &ways {
            let source = layout(&long, std::slice::from_ref(from), &[*count]);
            let target = layout(&long, std::slice::from_ref(to), &[*other]);
            agree(&source, &target);
        }
    }
    let shape = [3, (1 << 32) + 1, 5];
    let source = layout(&shape, &[Block, Cyclic(37), Whole], &[2, 5, 1]);
    let target = layout(&shape, &[Whole, Block, Cyclic(2)], &[1, 3, 2]);
    agree(&source, &target);
}

#[test]
fn awkward_blocks_of_many_processes_agree() {
    let length = [1_u64 << 16];
    let source = layout(&length, &[AxisSharing::Cyclic(37)], &[128]);
    let target = layout(&length, &[AxisSharing::Cyclic(53)], &[127]);
    agree(&source, &target);
}
