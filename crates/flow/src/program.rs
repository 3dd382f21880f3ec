//! Skeletons, and what they compile to.

mod compile;
mod order;

use thiserror::Error;

pub(crate) use order::SegmentRange;

/// How deep skeletons may be nested; deeper ones are a mistake of the program that builds them.
pub const SKELETON_DEPTH_MAX: usize = 64;

/// How many functions a program may hold: a segment number must fit the frames on the wire (16 bits).
pub const PROGRAM_FUNCTIONS_MAX: usize = 1024;

/// A place in the caller's table of functions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FunctionId(pub u32);

/// A parallel program as the user says it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Skeleton {
    /// One stateless function. Outside a [`Skeleton::Farm`], it handles one item of the stream at a time.
    Seq(FunctionId),
    /// What is inside runs on as many slots as are free.
    Farm(Box<Self>),
    /// Stages one after another, each working on another item.
    Pipeline(Vec<Self>),
    /// A function that makes any number of items of one. They follow each other in the order of those that they were made of.
    FlatMap(FunctionId),
    /// A function that makes any number of results and of further items of one. It runs on those again, until none is left. The results follow each
    /// other as if each of those items stood where its results are.
    Feedback(FunctionId),
    /// What is inside runs on each part of an item at the same time; then the results of the parts become one again.
    Map {
        /// Makes the parts of an item; without one, the item is its parts.
        split: Option<FunctionId>,
        /// What runs on each part, on as many slots as are free.
        worker: Box<Self>,
        /// Makes one result of the list of the parts' results; without one, the list is the result.
        join: Option<FunctionId>,
    },
    /// All items become one, two neighbours at a time: the last stage of a program.
    Reduce {
        /// Makes one of two; it is associative.
        operator: FunctionId,
        /// What stands before the first item, if anything does: a value in the table of functions.
        initial: Option<FunctionId>,
    },
    /// A function of a state and an item, which gives the next state and a result. Items come to it one by one, in order.
    Stateful {
        /// Makes a state and a result of a state and an item.
        function: FunctionId,
        /// The state before the first item: a value in the table of functions.
        initial: FunctionId,
    },
    /// The result of an item is what all items up to it make, two at a time.
    Scan {
        /// Makes one of two.
        operator: FunctionId,
        /// What stands before the first item, if anything does: a value in the table of functions, which is the first result then.
        initial: Option<FunctionId>,
    },
    /// What is inside runs on an item again and again, once at least.
    Iterate {
        /// What makes the next value of a value, on as many slots as are free.
        body: Box<Self>,
        /// Says of each new value whether it is the result.
        until: FunctionId,
        /// After so many rounds a value is the result, whatever is said of it.
        at_most: Option<u32>,
    },
    /// A problem is solved, or divided into smaller ones whose solutions give its own.
    Divide {
        /// Says whether a problem is to be solved as it is.
        is_base: FunctionId,
        /// Solves such a problem.
        base: FunctionId,
        /// Makes smaller problems of another one.
        divide: FunctionId,
        /// Makes a problem's solution of the list of theirs.
        conquer: FunctionId,
    },
}

/// A program ready to be scheduled: lines of items, each with its segments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    lines: Vec<ProgramLine>,
}

/// An index space of items, and the segments that each of them passes in order. The user's items are in the first line; what is made of items of a
/// line is in another one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProgramLine {
    /// There is at least one.
    pub segments: Vec<Segment>,
    /// What becomes of its items' outcomes.
    pub role: LineRole,
    /// Its first item, where that is made of no other one: a value in the table of functions.
    pub first: Option<FunctionId>,
}

/// What becomes of the outcomes of a line's items.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LineRole {
    /// They are the user's.
    #[default]
    User,
    /// The items have been expanded: what they made is in this line, in their order. An item that ended without that has a place there.
    Ordered {
        /// The line of what they made.
        line: u16,
    },
    /// An outcome belongs to the item of another line that this one was made of, which waits for all of its parts.
    Joined,
    /// They are folded into one, in their order.
    Folded {
        /// The line whose items are lists of partial results.
        combine: u16,
        /// The line whose one item is the list of what is left at last. The initial value stands before that, if there is one.
        last: u16,
        /// Whether there is.
        has_initial: bool,
    },
    /// An outcome is a partial result of a line that is folded.
    Partial,
    /// The outcome is that of the whole program.
    Total,
}

/// Functions between which nothing is ever gained by moving a token: a serial one alone, or parallel ones. Whether a slot runs a segment
/// and the next one without giving the token back in between is decided for each frame.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Segment {
    /// Run by at most one slot at a time, over items in order; then there is one function.
    pub serial: bool,
    /// In the order in which the steps need them.
    pub functions: Vec<FunctionId>,
    /// What is done, in the order in which an item passes it.
    pub steps: Vec<SegmentStep>,
    /// Its tokens are lists of values.
    pub takes_lists: bool,
    /// What becomes of its results.
    pub then: Then,
    /// It takes a state from each item to the next one, if it is serial.
    pub carries: Option<CarriedStart>,
}

/// What stands before the first item that a state is carried to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CarriedStart {
    /// Nothing: the first item makes the first state.
    Nothing,
    /// A value in the table of functions.
    Value(FunctionId),
}

/// One thing that a slot does with an item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SegmentStep {
    /// Calls a function with the value.
    Call,
    /// Calls a function, or takes the value, and gives what it iterates over as parts.
    Split {
        /// Whether there is a function.
        calls: bool,
    },
    /// Calls a function with the list of values, or makes the list the value.
    Join {
        /// Whether there is a function.
        calls: bool,
    },
    /// Asks a function whether the item goes on, or another round.
    Until,
    /// Makes one value of those of consecutive items.
    Fold,
    /// Makes one value of a list of them.
    Combine,
    /// The same, with another value before them.
    CombineInitial,
    /// Solves a problem, or gives parts of it.
    Divide,
    /// Goes on with a problem of which parts have been solved.
    Resume,
    /// Calls a function with the state and the value, for the next state and the result.
    Carry,
    /// Makes one of the state and the value, which is the next state and the result. The first value is both.
    Scan,
    /// The same behind another value, which is there before the first item. A result is the one part that its item is made into.
    ScanInitial,
    /// Makes the list of an item's results, or gives some of the items that are left of it; goes on when there are the lists of those.
    Feedback,
}

impl SegmentStep {
    /// How many of the segment's functions it needs.
    pub fn functions(self) -> usize {
        match self {
            Self::Split { calls } | Self::Join { calls } => usize::from(calls),
            Self::Call | Self::Until | Self::Fold | Self::Combine | Self::Feedback => 1,
            Self::Carry | Self::Scan | Self::ScanInitial => 1,
            Self::CombineInitial => 2,
            Self::Divide | Self::Resume => 4,
        }
    }
}

/// What becomes of the results of a segment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Then {
    /// They are tokens for the next segment, or outcomes.
    #[default]
    Next,
    /// A slot gives a list for an item, and its members become items of another line, or of the same.
    Expand {
        /// That line.
        line: u16,
        /// The item waits for what becomes of them, and goes on with that at this segment. Otherwise it is gone.
        join: Option<u16>,
        /// A slot may do without parts; then the result is a token for this segment.
        after: Option<u16>,
    },
    /// They are tokens for the next segment, or for an earlier one. Where that is the same one, slots repeat by themselves.
    Repeat {
        /// The first segment of a round.
        from: u16,
        /// How many rounds there are at most.
        at_most: Option<u32>,
    },
    /// A slot gives one result for consecutive items.
    Fold,
}

/// Why a skeleton is no program. The author of the skeleton must act.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum ProgramError {
    /// A pipeline without a stage computes nothing.
    #[error("got a pipeline without stages, expected at least one")]
    EmptyPipeline,
    /// More levels than [`SKELETON_DEPTH_MAX`].
    #[error(
        "got skeletons nested deeper than the limit, expected at most {SKELETON_DEPTH_MAX} levels (SKELETON_DEPTH_MAX)"
    )]
    TooDeep,
    /// More functions than [`PROGRAM_FUNCTIONS_MAX`].
    #[error(
        "got more functions than a program may hold, expected at most {PROGRAM_FUNCTIONS_MAX} (PROGRAM_FUNCTIONS_MAX)"
    )]
    TooManyFunctions,
    /// Nothing can follow it, since there is one item left.
    #[error("got a Reduce that is not the last stage of the program, expected it there")]
    ReduceNotLast,
    /// The items that one part becomes would have no place.
    #[error(
        "got a FlatMap or a Farm with feedback inside a Map or an Iterate, expected it in the program's own pipeline; a Map in its place can join a list"
    )]
    FlatMapInside,
    /// Items that come to it side by side have no order.
    #[error(
        "got a Stateful or a Scan inside a Farm, a Map or an Iterate, expected it in the program's own pipeline, where items have an order"
    )]
    CarriedInside,
    /// A loop without a round.
    #[error("got an Iterate of at most 0 rounds, expected at least 1")]
    NoRound,
}

impl Skeleton {
    /// Whether each item has one outcome: otherwise items are made into any number of others, or all of them into one.
    pub fn keeps_number(&self) -> bool {
        match self {
            Self::FlatMap(_) | Self::Feedback(_) | Self::Reduce { .. } => false,
            Self::Scan { initial, .. } => initial.is_none(),
            Self::Farm(inner) => inner.keeps_number(),
            Self::Pipeline(stages) => stages.iter().all(Self::keeps_number),
            Self::Seq(_)
            | Self::Stateful { .. }
            | Self::Map { .. }
            | Self::Iterate { .. }
            | Self::Divide { .. } => true,
        }
    }
}

impl Program {
    /// The segments of the first line, in order; there is at least one.
    pub fn segments(&self) -> &[Segment] {
        &self.lines[0].segments
    }

    /// All lines. The first one has the user's items.
    pub fn lines(&self) -> &[ProgramLine] {
        &self.lines
    }

    /// The last segment that a frame may run through which begins with this one, in the first line: the parallel one behind a serial one that
    /// carries no state, else the same.
    pub fn furthest(&self, from: u16) -> u16 {
        self.lines[0].furthest(from)
    }
}

impl ProgramLine {
    /// The last segment that a frame may run through which begins with this one: the parallel one behind a serial one that carries no state, else
    /// the same.
    pub fn furthest(&self, from: u16) -> u16 {
        let at = |segment: u16| self.segments.get(usize::from(segment));
        let goes_on = at(from).is_some_and(|segment| segment.serial && segment.carries.is_none())
            && at(from + 1).is_some_and(|segment| !segment.serial);
        from + u16::from(goes_on)
    }

    /// Whether items may come to this segment again after it.
    pub fn is_in_loop(&self, segment: u16) -> bool {
        let mut behind = (0..).zip(&self.segments).skip(usize::from(segment));
        behind.any(|(last, known)| {
            // A segment that is a loop by itself is one for slots alone.
            matches!(known.then, Then::Repeat { from, .. } if from <= segment && from < last)
        })
    }

    /// Whether nothing is done with its items: they are outcomes as they come.
    pub fn is_end(&self) -> bool {
        self.segments.iter().all(|segment| segment.steps.is_empty())
    }

    /// Whether its items are admitted without tickets: they were made of others that have them.
    pub fn is_inner(&self) -> bool {
        matches!(
            self.role,
            LineRole::Joined | LineRole::Partial | LineRole::Total
        )
    }
}

#[cfg(test)]
mod tests;
