//! The program of a stream: its functions, and what its outcomes must be.

use std::collections::BTreeMap;

use exoskel_flow::{FunctionId, Program, Segment, SegmentStep, Skeleton, Then};
use exoskel_meaning::meaning::{self, Data, Outcome, Raised};
use exoskel_meaning::{
    CarriedExpectation, Expectation, TooManyCourses, carries, functions, renumbered,
};

/// What has come as an outcome.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum FoundOutcome {
    Value(Data),
    Raised(Raised),
    /// The item of this number could not be sent.
    Unsent(u64),
    /// There was nothing to make one value of.
    Nothing,
    /// It ended on its way for a reason that its program doesn't know.
    Ended,
}

/// What outcomes must be.
#[derive(Debug)]
enum ExpectedOutcomes {
    /// Each item has one.
    Each(Vec<Outcome>),
    /// Items are made into others, or into one, or bring a state along. What has come is looked at in the end.
    Together(TogetherExpected, BTreeMap<u64, FoundOutcome>),
}

#[derive(Debug)]
enum TogetherExpected {
    Items(Expectation),
    States(CarriedExpectation),
}

/// The program of a stream.
#[derive(Debug)]
pub(super) struct StreamProgram {
    /// With the places of its functions in the table.
    pub(super) skeleton: Skeleton,
    /// The table: which functions they are.
    pub(super) functions: Vec<u32>,
    compiled: Program,
    items: Vec<Outcome>,
    expected: ExpectedOutcomes,
    is_reduced: bool,
    keeps_number: bool,
    carries: bool,
}

impl StreamProgram {
    /// For these items.
    pub(super) fn new(skeleton: &Skeleton, items: Vec<Outcome>) -> Result<Self, String> {
        let table: Vec<u32> = functions(skeleton).into_iter().collect();
        let place = |number: u32| table.iter().position(|known| *known == number).unwrap_or(0);
        let dense = renumbered(skeleton, &mut |FunctionId(number)| {
            FunctionId(place(number) as u32)
        });
        let compiled = Program::compile(&dense).map_err(|error| error.to_string())?;
        let (keeps_number, carries) = (skeleton.keeps_number(), carries(skeleton));
        let together = |all| ExpectedOutcomes::Together(all, BTreeMap::new());
        let expected = match (keeps_number, carries) {
            (true, false) => ExpectedOutcomes::Each(meaning::run(skeleton, items.clone())),
            (false, false) => together(TogetherExpected::Items(Expectation::of(
                skeleton,
                items.clone(),
            ))),
            (_, true) => {
                let all = CarriedExpectation::of(skeleton, items.clone());
                together(TogetherExpected::States(all))
            }
        };
        let last = match skeleton {
            Skeleton::Pipeline(stages) => stages.last(),
            other => Some(other),
        };
        Ok(Self {
            is_reduced: matches!(last, Some(Skeleton::Reduce { .. })),
            keeps_number,
            carries,
            skeleton: dense,
            functions: table,
            compiled,
            items,
            expected,
        })
    }

    /// Whether each item has one outcome.
    pub(super) fn keeps_number(&self) -> bool {
        self.keeps_number
    }

    /// Whether items bring a state along.
    pub(super) fn carries(&self) -> bool {
        self.carries
    }

    /// Lines of items.
    pub(super) fn lines(&self) -> u16 {
        self.compiled.lines().len() as u16
    }

    /// Whether items of this line run one at a time in this segment.
    pub(super) fn has_serial(&self, line: u16, segment: u16) -> bool {
        let line = self.compiled.lines().get(usize::from(line));
        let segment = line.and_then(|line| line.segments.get(usize::from(segment)));
        segment.is_some_and(|segment| segment.serial)
    }

    /// Whether items of this line wait for what they were made into, or are what others wait for.
    pub(super) fn waits_for_parts(&self, line: u16) -> bool {
        let waits = |segment: &Segment| matches!(segment.then, Then::Expand { join: Some(_), .. });
        let line = self.compiled.lines().get(usize::from(line));
        line.is_some_and(|line| line.is_inner() || line.segments.iter().any(waits))
    }

    /// Segments of the user's items.
    pub(super) fn segments(&self) -> &[Segment] {
        self.compiled.segments()
    }

    /// Whether it is nothing but functions one after another.
    pub(super) fn is_row(&self) -> bool {
        let is_call = |segment: &Segment| {
            let mut steps = segment.steps.iter();
            segment.then == Then::Next && steps.all(|step| *step == SegmentStep::Call)
        };
        self.lines() == 1 && self.segments().iter().all(is_call)
    }

    /// What the user hands over in this place.
    pub(super) fn item(&self, index: u64) -> Option<&Outcome> {
        self.items.get(index as usize)
    }

    /// What an item of a row of functions is in front of this segment.
    pub(super) fn value_at(&self, index: u64, segment: u16) -> Option<Outcome> {
        let before = self.segments().get(..usize::from(segment))?;
        let functions = before.iter().map(|segment| segment.functions.len());
        self.values(index).nth(functions.sum())
    }

    /// What an item of a row of functions is in front of each of them, and in the end.
    pub(super) fn values(&self, index: u64) -> impl Iterator<Item = Outcome> {
        let functions = self
            .segments()
            .iter()
            .flat_map(|segment| &segment.functions);
        let mut places = functions.map(|FunctionId(place)| *place as usize);
        let pass = move |value: &Outcome| {
            let number = *self.functions.get(places.next()?)?;
            let passed = value
                .clone()
                .and_then(|value| meaning::call(number, &value).map_err(|raised| vec![raised]));
            Some(passed)
        };
        std::iter::successors(self.item(index).cloned(), pass)
    }

    /// Takes an outcome in.
    ///
    /// # Errors
    /// When it can't be that of its place.
    pub(super) fn take_in(&mut self, index: u64, found: FoundOutcome) -> Result<(), String> {
        match &mut self.expected {
            ExpectedOutcomes::Each(outcomes) => {
                let expected = outcomes.get(index as usize);
                let is_own = expected.is_some_and(|expected| match &found {
                    FoundOutcome::Unsent(item) => {
                        *item == index && is_expected(&found, expected, false)
                    }
                    _ => is_expected(&found, expected, false),
                });
                if is_own || found == FoundOutcome::Ended {
                    return Ok(());
                }
                Err(format!(
                    "the outcome of item {index} is {found:?}, expected {expected:?}"
                ))
            }
            ExpectedOutcomes::Together(_, all) => {
                all.insert(index, found);
                Ok(())
            }
        }
    }

    /// Looks at all outcomes that have come; `total`: how many there must be, if that is known. False: there are
    /// [too many courses](TooManyCourses) to say whether they are right.
    ///
    /// # Errors
    /// When they can't be what the program makes of its items.
    pub(super) fn check(&self, total: Option<u64>) -> Result<bool, String> {
        let ExpectedOutcomes::Together(expectation, all) = &self.expected else {
            return Ok(true);
        };
        let is_whole = total == Some(all.len() as u64);
        let end = total.unwrap_or_else(|| all.keys().next_back().map_or(0, |last| last + 1));
        let mut accepts =
            |place: usize, expected: Option<&Outcome>| match (all.get(&(place as u64)), expected) {
                (None, _) => !is_whole,
                (Some(found), None) => *found == FoundOutcome::Ended,
                // Items that ended on their way are not to be seen there, and the states behind them are others.
                (Some(FoundOutcome::Raised(_)), _) if self.is_reduced && self.carries => true,
                (Some(found), Some(expected)) => is_expected(found, expected, self.is_reduced),
            };
        let are_allowed = match expectation {
            TogetherExpected::Items(all) => Ok(all.allows(end as usize, is_whole, &mut accepts)),
            TogetherExpected::States(all) => all.allows(end as usize, is_whole, &mut accepts),
        };
        match are_allowed {
            Ok(true) => Ok(true),
            Err(TooManyCourses) => Ok(false),
            Ok(false) => Err(format!(
                "the outcomes can't be those of {:?}: {total:?} in all, {all:?}, expected {expectation:?}",
                self.skeleton
            )),
        }
    }
}

/// Whether that is what must come; `is_reduced`: of all items together.
fn is_expected(found: &FoundOutcome, expected: &Outcome, is_reduced: bool) -> bool {
    match (found, expected) {
        (FoundOutcome::Value(value), Ok(expected)) => value == expected,
        // Of several, any may be the first.
        (FoundOutcome::Raised(raised), Err(expected)) => expected.contains(raised),
        (FoundOutcome::Unsent(_), Err(expected)) => is_reduced || expected.is_empty(),
        (FoundOutcome::Nothing, Err(expected)) => expected.is_empty(),
        _ => false,
    }
}
