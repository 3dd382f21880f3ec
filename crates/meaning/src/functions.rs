//! Which functions a program has.

use std::collections::BTreeSet;

use exoskel_flow::{FunctionId, Skeleton};

/// The numbers of all functions of a skeleton.
#[must_use]
pub fn functions(skeleton: &Skeleton) -> BTreeSet<u32> {
    let mut found = BTreeSet::new();
    let _ = renumbered(skeleton, &mut |FunctionId(number)| {
        found.insert(number);
        FunctionId(number)
    });
    found
}

/// The same skeleton with other numbers for its functions.
#[must_use]
pub fn renumbered(
    skeleton: &Skeleton,
    number: &mut impl FnMut(FunctionId) -> FunctionId,
) -> Skeleton {
    match skeleton {
        Skeleton::Seq(function) => Skeleton::Seq(number(*function)),
        Skeleton::FlatMap(function) => Skeleton::FlatMap(number(*function)),
        Skeleton::Feedback(function) => Skeleton::Feedback(number(*function)),
        Skeleton::Farm(inner) => Skeleton::Farm(Box::new(renumbered(inner, number))),
        Skeleton::Pipeline(stages) => {
            let stages = stages.iter().map(|stage| renumbered(stage, number));
            Skeleton::Pipeline(stages.collect())
        }
        Skeleton::Map {
            split,
            worker,
            join,
        } => Skeleton::Map {
            split: split.map(&mut *number),
            worker: Box::new(renumbered(worker, number)),
            join: join.map(&mut *number),
        },
        Skeleton::Reduce { operator, initial } => Skeleton::Reduce {
            operator: number(*operator),
            initial: initial.map(&mut *number),
        },
        Skeleton::Stateful { function, initial } => Skeleton::Stateful {
            function: number(*function),
            initial: number(*initial),
        },
        Skeleton::Scan { operator, initial } => Skeleton::Scan {
            operator: number(*operator),
            initial: initial.map(&mut *number),
        },
        Skeleton::Iterate {
            body,
            until,
            at_most,
        } => Skeleton::Iterate {
            body: Box::new(renumbered(body, number)),
            until: number(*until),
            at_most: *at_most,
        },
        Skeleton::Divide {
            is_base,
            base,
            divide,
            conquer,
        } => Skeleton::Divide {
            is_base: number(*is_base),
            base: number(*base),
            divide: number(*divide),
            conquer: number(*conquer),
        },
    }
}
