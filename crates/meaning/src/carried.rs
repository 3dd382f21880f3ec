//! What the outcomes of a program may be that carries a state from item to item, when any item may have ended on its way.
//!
//! An item that ended before a stage with a state has left that as it was, one that ended behind it has not, and which of both it was shows only in what
//! follows. So all courses that a run may have taken are followed at once, up to a number of them.

use std::collections::BTreeSet;

use exoskel_flow::Skeleton;

use crate::meaning::{self, Data, Outcome};

/// Each outcome that nobody knows, and each item that ended on its way, may double them.
const COURSES_MAX: usize = 10_000;

/// So many courses lead to what has come that it was not decided whether one of them is a right one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooManyCourses;

/// What the outcomes of a stream with states may be, in their order.
#[derive(Clone, Debug)]
pub struct CarriedExpectation {
    /// Pipelines within the program are taken apart.
    stages: Vec<Skeleton>,
    items: Vec<Outcome>,
    /// The one outcome, if all become one.
    folded: Option<Outcome>,
}

/// How far a run may have come: the states of its stages, and the place of the next outcome.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Course {
    place: usize,
    states: Vec<Option<Data>>,
}

/// Whether a program has a stage with a state.
#[must_use]
pub fn carries(skeleton: &Skeleton) -> bool {
    match skeleton {
        Skeleton::Stateful { .. } | Skeleton::Scan { .. } => true,
        // Where items have no order, there is none.
        Skeleton::Pipeline(stages) => stages.iter().any(carries),
        _ => false,
    }
}

impl CarriedExpectation {
    /// Of these items.
    #[must_use]
    pub fn of(skeleton: &Skeleton, items: Vec<Outcome>) -> Self {
        let mut stages = Vec::new();
        take_apart(skeleton, &mut stages);
        let folded = match stages.last() {
            Some(Skeleton::Reduce { .. }) => meaning::run(skeleton, items.clone()).pop(),
            _ => None,
        };
        Self {
            stages,
            items,
            folded,
        }
    }

    /// As [`Expectation::allows`](crate::Expectation::allows). Of a program that ends in one outcome, only what no item has ended for is known.
    ///
    /// # Errors
    /// When there are too many courses to follow.
    pub fn allows(
        &self,
        end: usize,
        is_whole: bool,
        accepts: &mut impl FnMut(usize, Option<&Outcome>) -> bool,
    ) -> Result<bool, TooManyCourses> {
        if let Some(folded) = &self.folded {
            return Ok(match end {
                0 => !is_whole,
                1 => accepts(0, Some(folded)) || accepts(0, None),
                _ => false,
            });
        }
        let first = |stage: &Skeleton| match stage {
            Skeleton::Stateful { .. }
            | Skeleton::Scan {
                initial: Some(_), ..
            } => Some(meaning::initial()),
            _ => None,
        };
        let mut walk = CourseWalk {
            stages: &self.stages,
            end,
            is_whole,
            accepts,
        };
        let mut courses = BTreeSet::from([Course {
            place: 0,
            states: self.stages.iter().map(first).collect(),
        }]);
        // What a scan begins with stands before all that comes to it.
        for (number, stage) in self.stages.iter().enumerate().rev() {
            if let Skeleton::Scan {
                initial: Some(_), ..
            } = stage
            {
                courses = walk.pass_all(courses, &Ok(meaning::initial()), number + 1)?;
            }
        }
        for item in &self.items {
            courses = walk.pass_all(courses, item, 0)?;
        }
        Ok(match is_whole {
            true => courses.iter().any(|course| course.place == end),
            false => !courses.is_empty(),
        })
    }
}

fn take_apart(skeleton: &Skeleton, stages: &mut Vec<Skeleton>) {
    match skeleton {
        Skeleton::Pipeline(inner) => inner.iter().for_each(|stage| take_apart(stage, stages)),
        stage => stages.push(stage.clone()),
    }
}

struct CourseWalk<'a, A> {
    stages: &'a [Skeleton],
    end: usize,
    is_whole: bool,
    accepts: &'a mut A,
}

impl<A: FnMut(usize, Option<&Outcome>) -> bool> CourseWalk<'_, A> {
    fn pass_all(
        &mut self,
        courses: BTreeSet<Course>,
        item: &Outcome,
        stage: usize,
    ) -> Result<BTreeSet<Course>, TooManyCourses> {
        let mut behind = BTreeSet::new();
        for course in courses {
            self.pass(course, item.clone(), stage, &mut behind)?;
            if behind.len() > COURSES_MAX {
                return Err(TooManyCourses);
            }
        }
        Ok(behind)
    }

    /// An item comes to a stage; `behind`: the courses with all of its outcomes.
    fn pass(
        &mut self,
        mut course: Course,
        item: Outcome,
        stage: usize,
        behind: &mut BTreeSet<Course>,
    ) -> Result<(), TooManyCourses> {
        let stages = self.stages;
        if course.place >= self.end && !self.is_whole {
            // Nobody knows of these yet.
            behind.insert(course);
            return Ok(());
        }
        let (Ok(value), Some(own)) = (&item, stages.get(stage)) else {
            // It may have ended behind the last stage, too.
            self.end_with(course.clone(), None, behind);
            self.end_with(course, Some(&item), behind);
            return Ok(());
        };
        self.end_with(course.clone(), None, behind);
        let state = course.states.get_mut(stage);
        let result = match (own, state) {
            (Skeleton::Stateful { function, .. }, Some(Some(state))) => {
                meaning::carry(function.0, state.clone(), value.clone())
                    .map(|(next, result)| {
                        *state = next;
                        result
                    })
                    .map_err(|raised| vec![raised])
            }
            (Skeleton::Scan { operator, .. }, Some(state)) => {
                let next = match state.clone() {
                    Some(state) => meaning::scan(operator.0, state, value.clone()),
                    None => Ok(value.clone()),
                };
                next.inspect(|next| *state = Some(next.clone()))
                    .map_err(|raised| vec![raised])
            }
            (Skeleton::FlatMap(_) | Skeleton::Feedback(_), _) => {
                let mut courses = BTreeSet::from([course]);
                for part in meaning::run(own, vec![item]) {
                    courses = self.pass_all(courses, &part, stage + 1)?;
                }
                behind.extend(courses);
                return Ok(());
            }
            _ => meaning::run(own, vec![item])
                .pop()
                .unwrap_or_else(|| Err(Vec::new())),
        };
        self.pass(course, result, stage + 1, behind)
    }

    /// The outcome of an item; none: it ended on its way.
    fn end_with(
        &mut self,
        course: Course,
        outcome: Option<&Outcome>,
        behind: &mut BTreeSet<Course>,
    ) {
        let place = course.place;
        if place < self.end && (self.accepts)(place, outcome) {
            behind.insert(Course {
                place: place + 1,
                ..course
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use exoskel_flow::FunctionId;

    use super::*;
    use crate::meaning::INITIAL;

    /// Aim: a state has seen the items before, but for those that ended before it, and nothing else may be. Method: outcomes of a stage in front of a
    /// scan that begins with a value; each item ends before the scan and behind it; then one outcome is another one.
    #[test]
    fn a_state_has_seen_an_item_or_not() {
        let scan = Skeleton::Scan {
            operator: FunctionId(1),
            initial: Some(FunctionId(INITIAL)),
        };
        let before = Skeleton::FlatMap(FunctionId(0));
        let behind = Skeleton::Seq(FunctionId(2));
        check(&Skeleton::Pipeline(vec![before.clone(), scan.clone()]));
        check(&Skeleton::Pipeline(vec![before, scan, behind]));
    }

    fn check(skeleton: &Skeleton) {
        let items: Vec<Outcome> = (0..4).map(|number| Ok(Data::Number(number))).collect();
        let expectation = CarriedExpectation::of(skeleton, items.clone());
        let may_be = |outcomes: &[Option<Outcome>]| {
            let mut accepts =
                |place: usize, expected: Option<&Outcome>| match (&outcomes[place], expected) {
                    (None, None) => true,
                    (Some(outcome), Some(expected)) => outcome == expected,
                    _ => false,
                };
            expectation.allows(outcomes.len(), true, &mut accepts) == Ok(true)
        };
        let whole = meaning::run(skeleton, items.clone());
        let found: Vec<Option<Outcome>> = whole.iter().cloned().map(Some).collect();
        assert!(may_be(&found));
        for number in 0..found.len() {
            let mut behind = found.clone();
            behind[number] = None;
            assert!(may_be(&behind), "{number} ended behind the scan");
            behind[number] = Some(Ok(Data::Number(20_000)));
            assert!(!may_be(&behind), "{number} is another one");
        }
        for number in 0..items.len() {
            let count = |items: &[Outcome]| meaning::run(skeleton, items.to_vec()).len();
            let first = count(&items[..number]);
            let mut others = items.clone();
            let _ = others.remove(number);
            let mut before: Vec<Option<Outcome>> = meaning::run(skeleton, others)
                .into_iter()
                .map(Some)
                .collect();
            assert!(!may_be(&before) || count(&items[number..=number]) == 1);
            before.insert(first, None);
            assert!(may_be(&before), "{number} ended before the scan");
        }
    }

    /// Aim: a stream of which nothing is known yet takes no more memory than its courses may. Method: two scans in a row, no outcome there.
    #[test]
    fn too_many_courses_are_not_followed() {
        let scan = Skeleton::Scan {
            operator: FunctionId(1),
            initial: None,
        };
        let skeleton = Skeleton::Pipeline(vec![scan.clone(), scan]);
        let items = |count| (0..count).map(|number| Ok(Data::Number(number))).collect();
        let judged = |count| {
            CarriedExpectation::of(&skeleton, items(count)).allows(200, false, &mut |_, _| true)
        };
        assert_eq!(judged(2), Ok(true));
        assert_eq!(judged(200), Err(TooManyCourses));
    }
}
