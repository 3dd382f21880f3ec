//! From skeletons to lines of segments.

use super::{
    CarriedStart, FunctionId, LineRole, PROGRAM_FUNCTIONS_MAX, Program, ProgramError, ProgramLine,
    SKELETON_DEPTH_MAX, Segment, SegmentStep, Skeleton, Then,
};

/// Where a skeleton stands in its program.
#[derive(Clone, Copy)]
struct Surroundings {
    /// Everything is parallel here.
    farmed: bool,
    /// It is part of what runs on parts, or in rounds.
    inside: bool,
    /// Nothing follows it in the whole program.
    is_last: bool,
    depth: usize,
}

struct LineBuilder {
    lines: Vec<ProgramLine>,
    /// The line of the items at this point of the program.
    line: usize,
    /// What comes next begins a segment: results can come to it from elsewhere.
    begins: bool,
    functions: usize,
}

impl Program {
    /// Turns a skeleton into segments.
    ///
    /// Everything inside a farm is parallel, and so is what runs on parts or in rounds. A segment starts at each serial function and behind it: only there can moving
    /// the token gain anything, since the serial function may then work on one slot while others go on with what it has done. Another starts
    /// where an item comes back from another line, or for another round.
    ///
    /// # Errors
    ///
    /// When the skeleton holds an empty pipeline or what can't stand where it does, or passes one of the named limits.
    pub fn compile(skeleton: &Skeleton) -> Result<Self, ProgramError> {
        let mut compiler = LineBuilder {
            lines: vec![ProgramLine::default()],
            line: 0,
            begins: false,
            functions: 0,
        };
        let place = Surroundings {
            farmed: false,
            inside: false,
            is_last: true,
            depth: 1,
        };
        compiler.add(skeleton, place)?;
        Ok(Self {
            lines: compiler.lines,
        })
    }
}

impl LineBuilder {
    fn add(&mut self, skeleton: &Skeleton, place: Surroundings) -> Result<(), ProgramError> {
        if place.depth > SKELETON_DEPTH_MAX {
            return Err(ProgramError::TooDeep);
        }
        let below = Surroundings {
            depth: place.depth + 1,
            ..place
        };
        let within = Surroundings {
            farmed: true,
            inside: true,
            is_last: false,
            ..below
        };
        match skeleton {
            Skeleton::Seq(function) => self.step(SegmentStep::Call, &[*function], !place.farmed),
            Skeleton::Farm(inner) => self.add(
                inner,
                Surroundings {
                    farmed: true,
                    ..below
                },
            ),
            Skeleton::Pipeline(stages) => {
                let Some(last) = stages.len().checked_sub(1) else {
                    return Err(ProgramError::EmptyPipeline);
                };
                stages.iter().enumerate().try_for_each(|(number, stage)| {
                    let is_last = place.is_last && number == last;
                    self.add(stage, Surroundings { is_last, ..below })
                })
            }
            Skeleton::FlatMap(_) | Skeleton::Feedback(_) if place.inside => {
                Err(ProgramError::FlatMapInside)
            }
            Skeleton::FlatMap(function) => self.flat_map(Some(*function), place.is_last),
            Skeleton::Feedback(function) => {
                self.divide(SegmentStep::Feedback, SegmentStep::Feedback, &[*function])?;
                // There is one list for each item here, in order.
                self.flat_map(None, place.is_last)
            }
            Skeleton::Map {
                split,
                worker,
                join,
            } => self.map(*split, worker, *join, within),
            Skeleton::Reduce { .. } if !place.is_last => Err(ProgramError::ReduceNotLast),
            Skeleton::Reduce { operator, initial } => self.reduce(*operator, *initial),
            Skeleton::Stateful { .. } | Skeleton::Scan { .. } if place.farmed => {
                Err(ProgramError::CarriedInside)
            }
            Skeleton::Stateful { function, initial } => {
                self.carried(SegmentStep::Carry, *function, Some(*initial))
            }
            Skeleton::Scan {
                operator,
                initial: None,
            } => self.carried(SegmentStep::Scan, *operator, None),
            Skeleton::Scan {
                operator,
                initial: Some(initial),
            } => self.scan(*operator, *initial, place.is_last),
            Skeleton::Iterate { at_most, .. } if *at_most == Some(0) => Err(ProgramError::NoRound),
            Skeleton::Iterate {
                body,
                until,
                at_most,
            } => self.iterate(body, *until, *at_most, within),
            Skeleton::Divide {
                is_base,
                base,
                divide,
                conquer,
            } => {
                let functions = [*is_base, *base, *divide, *conquer];
                self.divide(SegmentStep::Divide, SegmentStep::Resume, &functions)
            }
        }
    }

    /// The segment that the next step belongs to: the last one if all of both is parallel and nothing comes in between.
    fn segment(&mut self, serial: bool) -> &mut Segment {
        let begins = std::mem::take(&mut self.begins);
        let segments = &mut self.lines[self.line].segments;
        let joins = segments
            .last()
            .is_some_and(|last| !last.serial && last.then == Then::Next);
        if begins || serial || !joins {
            segments.push(Segment {
                serial,
                ..Segment::default()
            });
        }
        let last = segments.len() - 1;
        &mut segments[last]
    }

    fn step(
        &mut self,
        step: SegmentStep,
        functions: &[FunctionId],
        serial: bool,
    ) -> Result<(), ProgramError> {
        // A step without a function takes a place as well.
        self.functions += functions.len().max(1);
        if self.functions > PROGRAM_FUNCTIONS_MAX {
            return Err(ProgramError::TooManyFunctions);
        }
        let segment = self.segment(serial);
        segment.steps.push(step);
        segment.functions.extend(functions);
        Ok(())
    }

    fn next_segment(&self) -> u16 {
        // There are no more than steps.
        self.lines[self.line].segments.len() as u16
    }

    fn end_segment(&mut self, then: Then) {
        if let Some(last) = self.lines[self.line].segments.last_mut() {
            last.then = then;
        }
    }

    fn new_line(&mut self, role: LineRole) -> u16 {
        self.lines.push(ProgramLine {
            role,
            ..ProgramLine::default()
        });
        // There are no more than steps.
        (self.lines.len() - 1) as u16
    }

    fn flat_map(
        &mut self,
        function: Option<FunctionId>,
        is_last: bool,
    ) -> Result<(), ProgramError> {
        let calls = function.is_some();
        self.step(SegmentStep::Split { calls }, function.as_slice(), false)?;
        self.expand_in_order(is_last);
        Ok(())
    }

    /// What the last segment makes of items goes on in a line of its own, in their order.
    fn expand_in_order(&mut self, is_last: bool) {
        let line = self.new_line(LineRole::User);
        let (join, after) = (None, None);
        self.end_segment(Then::Expand { line, join, after });
        self.lines[self.line].role = LineRole::Ordered { line };
        self.line = usize::from(line);
        if is_last {
            // Its items are outcomes as they come: a segment without a step, which no item ever passes.
            self.lines[self.line].segments.push(Segment::default());
        }
    }

    fn carried(
        &mut self,
        step: SegmentStep,
        function: FunctionId,
        initial: Option<FunctionId>,
    ) -> Result<(), ProgramError> {
        self.step(step, &[function], true)?;
        if let Some(last) = self.lines[self.line].segments.last_mut() {
            last.carries = Some(initial.map_or(CarriedStart::Nothing, CarriedStart::Value));
        }
        Ok(())
    }

    /// There is one result more than items, even where there is no item: so they are in another line.
    fn scan(
        &mut self,
        operator: FunctionId,
        initial: FunctionId,
        is_last: bool,
    ) -> Result<(), ProgramError> {
        self.carried(SegmentStep::ScanInitial, operator, Some(initial))?;
        self.expand_in_order(is_last);
        self.lines[self.line].first = Some(initial);
        Ok(())
    }

    fn map(
        &mut self,
        split: Option<FunctionId>,
        worker: &Skeleton,
        join: Option<FunctionId>,
        within: Surroundings,
    ) -> Result<(), ProgramError> {
        let calls = split.is_some();
        self.step(SegmentStep::Split { calls }, split.as_slice(), false)?;
        let line = self.new_line(LineRole::Joined);
        let back = self.next_segment();
        self.end_segment(Then::Expand {
            line,
            join: Some(back),
            after: None,
        });
        let own = std::mem::replace(&mut self.line, usize::from(line));
        self.add(worker, within)?;
        self.line = own;
        self.begins = true;
        let calls = join.is_some();
        self.step(SegmentStep::Join { calls }, join.as_slice(), false)?;
        self.take_lists();
        Ok(())
    }

    /// The tokens of the last segment are lists.
    fn take_lists(&mut self) {
        if let Some(last) = self.lines[self.line].segments.last_mut() {
            last.takes_lists = true;
        }
    }

    fn reduce(
        &mut self,
        operator: FunctionId,
        initial: Option<FunctionId>,
    ) -> Result<(), ProgramError> {
        self.step(SegmentStep::Fold, &[operator], false)?;
        self.end_segment(Then::Fold);
        let own = self.line;
        let combine = self.new_line(LineRole::Partial);
        self.line = usize::from(combine);
        self.step(SegmentStep::Combine, &[operator], false)?;
        self.take_lists();
        let last = self.new_line(LineRole::Total);
        self.line = usize::from(last);
        match initial {
            Some(initial) => self.step(SegmentStep::CombineInitial, &[operator, initial], false)?,
            None => self.step(SegmentStep::Combine, &[operator], false)?,
        }
        self.take_lists();
        self.line = own;
        self.lines[own].role = LineRole::Folded {
            combine,
            last,
            has_initial: initial.is_some(),
        };
        Ok(())
    }

    fn iterate(
        &mut self,
        body: &Skeleton,
        until: FunctionId,
        at_most: Option<u32>,
        within: Surroundings,
    ) -> Result<(), ProgramError> {
        let from = self.next_segment();
        self.begins = true;
        self.add(body, within)?;
        self.step(SegmentStep::Until, &[until], false)?;
        self.end_segment(Then::Repeat { from, at_most });
        Ok(())
    }

    /// What begins an item may make parts of it, and what resumes it gets what they come to. Both do the same with the parts.
    fn divide(
        &mut self,
        begin: SegmentStep,
        resume: SegmentStep,
        functions: &[FunctionId],
    ) -> Result<(), ProgramError> {
        self.begins = true;
        let first = self.next_segment();
        self.divide_in([begin, resume], functions, first, None)?;
        let Then::Expand { line, .. } = self.lines[self.line].segments[usize::from(first)].then
        else {
            return Ok(());
        };
        // What is made of parts are parts.
        let own = std::mem::replace(&mut self.line, usize::from(line));
        self.divide_in([begin, resume], functions, 0, Some(line))?;
        self.line = own;
        self.begins = true;
        Ok(())
    }

    /// The two segments of a problem: it is begun, and it is resumed when parts of it have been solved.
    fn divide_in(
        &mut self,
        [begin, resume]: [SegmentStep; 2],
        functions: &[FunctionId],
        first: u16,
        line: Option<u16>,
    ) -> Result<(), ProgramError> {
        self.step(begin, functions, false)?;
        let line = line.unwrap_or_else(|| self.new_line(LineRole::Joined));
        let then = Then::Expand {
            line,
            join: Some(first + 1),
            after: Some(first + 2),
        };
        self.end_segment(then);
        self.step(resume, functions, false)?;
        self.take_lists();
        self.end_segment(then);
        Ok(())
    }
}
