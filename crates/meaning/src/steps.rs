//! What a slot does with an item: the steps of its segments.

use std::ops::RangeInclusive;

use exoskel_flow::SegmentStep;
use exoskel_task::message::{Digest, SegmentEnding, SegmentFunctions};

use crate::meaning::{self, Data, Raised, Value};

/// An item on its way.
#[derive(Clone, Debug)]
pub enum PassingItem {
    /// A value, for the next segment or as an outcome.
    Value(Value),
    /// A value for this segment.
    At(u16, Value),
    /// Several values, and what stands beside them.
    Parts(Vec<Value>, Option<Value>),
    /// A value that is to be folded.
    Folding(Value),
    /// An exception, and whether a stranger has touched what it is about. None where the segments can't be what a manager sends.
    Raised(Option<Raised>, bool),
}

impl PassingItem {
    /// Whether a stranger has touched it.
    #[must_use]
    pub fn touched(&self) -> bool {
        match self {
            Self::Value(value) | Self::At(_, value) | Self::Folding(value) => value.touched,
            Self::Parts(values, state) => values.iter().chain(state).any(|value| value.touched),
            Self::Raised(_, touched) => *touched,
        }
    }
}

/// Who takes items through steps.
pub struct Stepper<'a> {
    /// Which function has this name.
    pub function: &'a dyn Fn(&Digest) -> u32,
    /// It isn't trusted.
    pub is_stranger: bool,
    /// Whether it solves the next problem by itself, where it may give parts of it.
    pub solves: &'a mut dyn FnMut() -> bool,
}

impl Stepper<'_> {
    /// Takes an item through these segments of a program.
    pub fn apply(
        &mut self,
        segments: &[SegmentFunctions],
        range: RangeInclusive<u16>,
        passing: PassingItem,
    ) -> PassingItem {
        let mut passing = passing;
        for number in range {
            let Some(segment) = segments.get(usize::from(number)) else {
                return PassingItem::Raised(None, passing.touched());
            };
            for round in 1.. {
                passing = self.pass(segment, passing);
                let SegmentEnding::Repeat { from, at_most } = segment.ending else {
                    break;
                };
                match passing {
                    PassingItem::At(at, value) if at == number && from == number => {
                        passing = PassingItem::Value(value);
                        if at_most == Some(round) {
                            break;
                        }
                    }
                    _ => break,
                }
            }
        }
        passing
    }

    fn pass(&mut self, segment: &SegmentFunctions, passing: PassingItem) -> PassingItem {
        let mut functions = segment.functions.iter().map(self.function);
        let mut passing = passing;
        for step in &segment.steps {
            let own: Vec<u32> = functions.by_ref().take(step.functions()).collect();
            let touched = self.is_stranger || passing.touched();
            if let PassingItem::Raised(..) = passing {
                return passing;
            }
            passing = match self.step(*step, &own, segment.ending, passing, touched) {
                Ok(passed) => passed.unwrap_or(PassingItem::Raised(None, touched)),
                Err(raised) => PassingItem::Raised(Some(raised), touched),
            };
        }
        passing
    }

    /// One step. There is nothing behind a step that no manager sends so.
    fn step(
        &mut self,
        step: SegmentStep,
        own: &[u32],
        ending: SegmentEnding,
        passing: PassingItem,
        touched: bool,
    ) -> Result<Option<PassingItem>, Raised> {
        let value = |data: Data| Value { data, touched };
        let is_list = matches!(passing, PassingItem::Parts(..));
        let (input, list): (_, Vec<Data>) = match passing {
            PassingItem::Parts(values, state) => {
                (state, values.into_iter().map(|value| value.data).collect())
            }
            PassingItem::Value(value) | PassingItem::At(_, value) | PassingItem::Folding(value) => {
                (Some(value), Vec::new())
            }
            PassingItem::Raised(..) => return Ok(None),
        };
        let item = input.map(|input| input.data);
        Ok(match (step, own, item) {
            (SegmentStep::Call, [function], Some(item)) => {
                Some(PassingItem::Value(value(meaning::call(*function, &item)?)))
            }
            (SegmentStep::Split { .. }, _, Some(item)) => {
                let parts = meaning::split(own.first().copied(), &item)?;
                Some(PassingItem::Parts(
                    parts.into_iter().map(value).collect(),
                    None,
                ))
            }
            (SegmentStep::Join { .. }, _, _) => {
                let joined = meaning::join(own.first().copied(), list)?;
                Some(PassingItem::Value(value(joined)))
            }
            (SegmentStep::Until, [function], Some(item)) => {
                let is_over = meaning::until(*function, &item);
                Some(match (is_over, ending) {
                    (false, SegmentEnding::Repeat { from, .. }) => {
                        PassingItem::At(from, value(item))
                    }
                    _ => PassingItem::Value(value(item)),
                })
            }
            (SegmentStep::Fold, _, Some(item)) => Some(PassingItem::Folding(value(item))),
            (SegmentStep::Combine, ..) => {
                let folded = list.into_iter().reduce(meaning::operator);
                folded.map(|folded| PassingItem::Value(value(folded)))
            }
            (SegmentStep::CombineInitial, ..) => {
                let folded = list.into_iter().fold(meaning::initial(), meaning::operator);
                Some(PassingItem::Value(value(folded)))
            }
            (SegmentStep::Feedback, [function], Some(item)) => {
                let SegmentEnding::Expand { after: Some(after) } = ending else {
                    return Ok(None);
                };
                let fed_back = match is_list {
                    true => {
                        return Ok(
                            joined(item, list).map(|data| PassingItem::At(after, value(data)))
                        );
                    }
                    false => meaning::fed_back(*function, &item)?,
                };
                let (mut between, mut parts) = (vec![Vec::new()], Vec::new());
                for (goes_in_again, data) in fed_back {
                    if goes_in_again && !(self.solves)() {
                        parts.push(value(data));
                        between.push(Vec::new());
                        continue;
                    }
                    let Some(known) = between.last_mut() else {
                        return Ok(None);
                    };
                    match goes_in_again {
                        true => known.extend(match meaning::results(*function, &data) {
                            Ok(results) => results,
                            Err(raised) => return raised.into_iter().next().map_or(Ok(None), Err),
                        }),
                        false => known.push(data),
                    }
                }
                if parts.is_empty() {
                    let results = Data::List(between.concat());
                    return Ok(Some(PassingItem::At(after, value(results))));
                }
                let state = Data::List(between.into_iter().map(Data::List).collect());
                Some(PassingItem::Parts(parts, Some(value(state))))
            }
            (SegmentStep::Divide, [.., conquer], Some(item)) => {
                let SegmentEnding::Expand { after: Some(after) } = ending else {
                    return Ok(None);
                };
                if meaning::is_base(&item) || (self.solves)() {
                    let solution = meaning::solve(*conquer, &item);
                    let solution = solution.map_err(|raised| raised.into_iter().next());
                    return match solution {
                        Ok(solution) => Ok(Some(PassingItem::At(after, value(solution)))),
                        Err(Some(raised)) => Err(raised),
                        Err(None) => Ok(None),
                    };
                }
                let parts = meaning::divide(&item);
                let state = Data::Number(parts.len() as u64);
                let parts = parts.into_iter().map(value).collect();
                Some(PassingItem::Parts(parts, Some(value(state))))
            }
            (SegmentStep::Resume, [.., conquer], Some(Data::Number(count))) => {
                let SegmentEnding::Expand { after: Some(after) } = ending else {
                    return Ok(None);
                };
                // What was kept must have come back.
                if count != list.len() as u64 {
                    return Ok(None);
                }
                let solution = meaning::call(*conquer, &Data::List(list))?;
                Some(PassingItem::At(after, value(solution)))
            }
            _ => None,
        })
    }
}

/// What was kept of an item that was fed back, the results before, between and behind the items that were given up, with the lists of those.
fn joined(kept: Data, lists: Vec<Data>) -> Option<Data> {
    let Data::List(between) = kept else {
        return None;
    };
    if between.len() != lists.len() + 1 {
        return None;
    }
    let mut lists = lists.into_iter();
    let both = between
        .into_iter()
        .flat_map(|before| [Some(before), lists.next()]);
    let mut results = Vec::new();
    for list in both.flatten() {
        match list {
            Data::List(members) => results.extend(members),
            Data::Number(_) => return None,
        }
    }
    Some(Data::List(results))
}
