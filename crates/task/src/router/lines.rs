//! The lines of a program: what becomes of the items of one in others, and how that comes back.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::time::Duration;

use exoskel_flow::{Index, LineRole, Program, ProgramLine, StreamId, Then};

use super::blocks::KeptBlocks;
use super::carried::CarriedState;
use super::order::OrderedPlace;
use super::{Effect, Function, Router, Stream};
use crate::message::{SegmentEnding, SegmentFunctions};
use crate::outcome::{Contents, Outcomes};
use crate::tokens::Tokens;

/// One line of a stream's program.
#[derive(Debug)]
pub(super) struct ItemLine {
    pub(super) id: StreamId,
    pub(super) role: LineRole,
    /// As slots are told.
    pub(super) segments: Vec<SegmentFunctions>,
    /// What becomes of the results of each segment, and whether its tokens are lists.
    pub(super) ways: Vec<(Then, bool)>,
    /// One for each segment.
    pub(super) tokens: Vec<Tokens>,
    /// Outcomes that wait for others.
    pub(super) parts: Tokens,
    /// What items of another line were made into, by the first of each.
    pub(super) blocks: KeptBlocks,
    /// How many of them nobody waits for any more.
    pub(super) dead: usize,
    /// What items came to that are made into others in their order, by the first of them.
    pub(super) places: BTreeMap<Index, OrderedPlace>,
    /// The first item that hasn't been made into others.
    pub(super) next: Index,
    /// Where in this line ends what the user's items were made into, of those that aren't made into others yet.
    pub(super) ends: VecDeque<Index>,
    /// No more items will come.
    pub(super) has_ended: bool,
    /// How many rounds items have gone that have another one before them, by the last segments of loops.
    rounds: BTreeMap<u16, BTreeMap<Index, u32>>,
    /// The states of segments that carry one.
    pub(super) carried: BTreeMap<u16, CarriedState>,
}

impl ItemLine {
    fn new(id: StreamId, line: &ProgramLine, for_user: bool, functions: &[Function]) -> Self {
        let segments = line.segments.iter().map(|segment| SegmentFunctions {
            serial: segment.serial,
            ending: match segment.then {
                Then::Next => SegmentEnding::Next,
                Then::Expand { after, .. } => SegmentEnding::Expand { after },
                Then::Repeat { from, at_most } => SegmentEnding::Repeat { from, at_most },
                Then::Fold => SegmentEnding::Fold,
            },
            for_user,
            steps: segment.steps.clone(),
            functions: segment
                .functions
                .iter()
                .filter_map(|function| functions.get(function.0 as usize))
                .map(|function| function.digest)
                .collect(),
        });
        let ways = line.segments.iter();
        Self {
            id,
            role: line.role,
            segments: segments.collect(),
            ways: ways
                .map(|segment| (segment.then, segment.takes_lists))
                .collect(),
            tokens: (0..)
                .zip(&line.segments)
                .map(|(number, _)| match line.is_in_loop(number) {
                    true => Tokens::singles(),
                    false => Tokens::default(),
                })
                .collect(),
            parts: Tokens::default(),
            blocks: KeptBlocks::default(),
            dead: 0,
            places: BTreeMap::new(),
            next: 0,
            ends: VecDeque::new(),
            has_ended: false,
            rounds: BTreeMap::new(),
            carried: CarriedState::all(line, functions),
        }
    }

    /// All lines of a program whose first one has this number.
    pub(super) fn all(first: StreamId, program: &Program, functions: &[Function]) -> Vec<Self> {
        let is_end = |line: u16| {
            let line = program.lines().get(usize::from(line));
            line.is_some_and(ProgramLine::is_end)
        };
        let lines = (first.0..).zip(program.lines());
        let state = |(number, line): (u32, &ProgramLine)| {
            let for_user = match line.role {
                LineRole::User | LineRole::Total => true,
                LineRole::Ordered { line } => is_end(line),
                LineRole::Joined | LineRole::Folded { .. } | LineRole::Partial => false,
            };
            Self::new(StreamId(number), line, for_user, functions)
        };
        lines.map(state).collect()
    }

    /// What becomes of the results of a frame that runs through to this segment, or on to the next one.
    pub(super) fn then(&self, to: u16) -> Then {
        let at = |segment: usize| self.ways.get(segment).map_or(Then::Next, |way| way.0);
        let to = usize::from(to);
        match at(to) {
            Then::Next if self.goes_on(to) => at(to + 1),
            then => then,
        }
    }

    /// Whether a slot may go on by itself behind this segment.
    fn goes_on(&self, segment: usize) -> bool {
        let is_serial = self.segments.get(segment).is_some_and(|known| known.serial);
        // A place is the number of a segment.
        is_serial && !self.carried.contains_key(&(segment as u16))
    }

    /// Whether nothing is done with its items: they are outcomes as they come.
    pub(super) fn is_end(&self) -> bool {
        self.segments.iter().all(|segment| segment.steps.is_empty())
    }

    /// Whether its outcomes wait for each other.
    pub(super) fn keeps_parts(&self) -> bool {
        matches!(
            self.role,
            LineRole::Joined | LineRole::Partial | LineRole::Total
        )
    }

    /// How many rounds an item has gone in the loop that ends with this segment, when it has gone another one.
    pub(super) fn next_round(&self, last: u16, index: Index) -> u32 {
        let rounds = self.rounds.get(&last).and_then(|rounds| rounds.get(&index));
        rounds.map_or(1, |rounds| rounds.saturating_add(1))
    }

    /// These items go another round of the loop that ends with this segment.
    pub(super) fn count_round(&mut self, last: u16, items: Range<Index>) {
        let rounds = self.rounds.entry(last).or_default();
        for index in items {
            let rounds = rounds.entry(index).or_insert(0);
            *rounds = rounds.saturating_add(1);
        }
    }

    /// These items are in no loop any more.
    pub(super) fn end_rounds(&mut self, items: Range<Index>) {
        for rounds in self.rounds.values_mut() {
            for index in items.clone() {
                rounds.remove(&index);
            }
        }
    }

    /// These items go no more rounds of the loop that ends with this segment.
    pub(super) fn end_loop(&mut self, last: u16, items: Range<Index>) {
        if let Some(rounds) = self.rounds.get_mut(&last) {
            for index in items {
                rounds.remove(&index);
            }
        }
    }
}

impl Stream {
    /// The line whose items' outcomes are the user's, if there is one: otherwise there is one outcome of all.
    pub(super) fn user_line(&self) -> Option<&ItemLine> {
        self.lines.iter().find(|line| line.role == LineRole::User)
    }
}

impl Router {
    pub(super) fn line(&mut self, number: u64, line: u16) -> Option<&mut ItemLine> {
        self.streams
            .get_mut(&number)?
            .lines
            .get_mut(usize::from(line))
    }

    /// An item of a line has its outcome, which isn't a result that others wait for.
    pub(super) fn settle(
        &mut self,
        number: u64,
        line: u16,
        index: Index,
        contents: Contents,
        now: Duration,
    ) {
        let (mut line, mut index) = (line, index);
        loop {
            let Some(state) = self.line(number, line) else {
                return;
            };
            match state.role {
                LineRole::User => {
                    let outcomes = Outcomes {
                        first: index,
                        count: 1,
                        contents,
                    };
                    let stream = number;
                    return self.effects.push_back(Effect::Deliver { stream, outcomes });
                }
                LineRole::Ordered { .. } => {
                    // Whoever calls has it advance.
                    state.places.insert(index, OrderedPlace::Ended(contents));
                    return;
                }
                LineRole::Joined => match self.end_part(number, line, index, now) {
                    Some(parent) => (line, index) = parent,
                    None => return,
                },
                LineRole::Folded { .. } | LineRole::Partial | LineRole::Total => {
                    return self.end_reduction(number, contents);
                }
            }
        }
    }
}
