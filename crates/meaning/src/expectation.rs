//! What the outcomes of a stream must be, when any item may have ended on its way for a reason that its program doesn't know.

use std::collections::BTreeSet;

use exoskel_flow::Skeleton;

use crate::meaning::{self, Outcome};

/// What an item comes to, or what becomes of the items that it was made into.
#[derive(Clone, Debug, PartialEq, Eq)]
enum ExpectedItem {
    One(Outcome),
    /// If the item ends on its way, it has one outcome in their place.
    Many(Vec<Self>),
}

/// What the outcomes of a stream must be, in their order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expectation(Vec<ExpectedItem>);

impl Expectation {
    /// Of these items.
    #[must_use]
    pub fn of(skeleton: &Skeleton, items: Vec<Outcome>) -> Self {
        let stages = match skeleton {
            Skeleton::Pipeline(stages) => &stages[..],
            other => std::slice::from_ref(other),
        };
        if let Some((last @ Skeleton::Reduce { .. }, before)) = stages.split_last() {
            let before = items.into_iter().map(|item| expected(before, item));
            let mut folded = Vec::new();
            before.for_each(|expected| expected.flatten(&mut folded));
            let one = meaning::run(last, folded);
            return Self(one.into_iter().map(ExpectedItem::One).collect());
        }
        Self(
            items
                .into_iter()
                .map(|item| expected(stages, item))
                .collect(),
        )
    }

    /// Whether outcomes from the first one on may be these. `accepts` says whether the outcome in a place may be what is expected there, or, with
    /// nothing expected, that of an item that ended on its way. Places from `end` on are nobody's: with `is_whole` no outcome may be missing there.
    pub fn allows(
        &self,
        end: usize,
        is_whole: bool,
        accepts: &mut impl FnMut(usize, Option<&Outcome>) -> bool,
    ) -> bool {
        let mut places = BTreeSet::from([0]);
        for expected in &self.0 {
            places = expected.behind(&places, (end, is_whole), accepts);
        }
        match is_whole {
            true => places.contains(&end),
            false => !places.is_empty(),
        }
    }
}

fn expected(stages: &[Skeleton], item: Outcome) -> ExpectedItem {
    let mut item = item;
    for (number, stage) in stages.iter().enumerate() {
        let results = meaning::run(stage, vec![item]);
        if matches!(stage, Skeleton::FlatMap(_) | Skeleton::Feedback(_)) {
            let behind = &stages[number + 1..];
            let parts = results.into_iter().map(|part| expected(behind, part));
            return ExpectedItem::Many(parts.collect());
        }
        // All others keep their number.
        item = results
            .into_iter()
            .next()
            .unwrap_or_else(|| Err(Vec::new()));
    }
    ExpectedItem::One(item)
}

impl ExpectedItem {
    fn flatten(self, out: &mut Vec<Outcome>) {
        match self {
            Self::One(outcome) => out.push(outcome),
            Self::Many(parts) => parts.into_iter().for_each(|part| part.flatten(out)),
        }
    }

    /// The places behind this if it begins at one of those.
    fn behind(
        &self,
        places: &BTreeSet<usize>,
        (end, is_whole): (usize, bool),
        accepts: &mut impl FnMut(usize, Option<&Outcome>) -> bool,
    ) -> BTreeSet<usize> {
        let within = |place: usize| place < end || !is_whole;
        match self {
            Self::One(outcome) => {
                let here = places.iter().filter(|place| {
                    within(**place) && (accepts(**place, Some(outcome)) || accepts(**place, None))
                });
                here.map(|place| place + 1).collect()
            }
            Self::Many(parts) => {
                let ended = places
                    .iter()
                    .filter(|place| within(**place) && accepts(**place, None));
                let mut behind: BTreeSet<usize> = ended.map(|place| place + 1).collect();
                let mut reached = places.clone();
                for part in parts {
                    reached = part.behind(&reached, (end, is_whole), accepts);
                }
                behind.extend(reached);
                behind
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use exoskel_flow::FunctionId;

    use super::*;
    use crate::meaning::Data;

    /// Aim: an item that ends on its way has one outcome in the place of all that it would have been made into, and nothing else may differ.
    #[test]
    fn an_item_may_end_on_its_way() {
        let skeleton = Skeleton::Pipeline(vec![
            Skeleton::FlatMap(FunctionId(0)),
            Skeleton::Seq(FunctionId(1)),
        ]);
        let items: Vec<Outcome> = (0..4).map(|number| Ok(Data::Number(number))).collect();
        let whole = meaning::run(&skeleton, items.clone());
        let expectation = Expectation::of(&skeleton, items.clone());
        let may_be = |outcomes: &[Option<Outcome>], is_whole: bool| {
            let mut accepts =
                |place: usize, expected: Option<&Outcome>| match (outcomes.get(place), expected) {
                    (None, _) => true,
                    (Some(outcome), expected) => outcome.as_ref() == expected,
                };
            expectation.allows(outcomes.len(), is_whole, &mut accepts)
        };
        let found: Vec<Option<Outcome>> = whole.iter().cloned().map(Some).collect();
        assert!(may_be(&found, true));
        for number in 0..items.len() {
            let parts = |count| meaning::run(&skeleton, items[..count].to_vec()).len();
            let ended = [
                &found[..parts(number)],
                &[None],
                &found[parts(number + 1)..],
            ]
            .concat();
            assert!(may_be(&ended, true), "{number}");
            assert!(may_be(&ended[..ended.len() - 1], false));
            assert!(!may_be(&ended[..ended.len() - 1], true));
        }
        for number in 0..found.len() {
            let mut other = found.clone();
            other[number] = Some(Ok(Data::Number(20_000)));
            assert!(!may_be(&other, true) && !may_be(&other, false));
            other.remove(number);
            assert!(!may_be(&other, true));
        }
    }
}
