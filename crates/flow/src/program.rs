//! Skeletons, and what they compile to.

use thiserror::Error;

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
}

/// A program ready to be scheduled: segments, in the order in which a token passes them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    segments: Vec<Segment>,
}

/// What one slot runs without giving the token back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Run first, over all items of a frame, by at most one slot at a time.
    pub serial: Option<FunctionId>,
    /// Run after it, item by item, by any number of slots.
    pub parallel: Vec<FunctionId>,
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
}

impl Program {
    /// Turns a skeleton into segments.
    ///
    /// Everything inside a farm is parallel and is fused with what stands before it. A new segment starts at each
    /// serial function but the first: only there can moving the token gain anything, since two serial functions
    /// may then work on two slots at the same time.
    ///
    /// # Errors
    ///
    /// When the skeleton holds an empty pipeline, or passes one of the named limits.
    pub fn compile(skeleton: &Skeleton) -> Result<Self, ProgramError> {
        let mut segments = Vec::new();
        let mut functions = 0;
        flatten(skeleton, false, 1, &mut |function, serial| {
            functions += 1;
            if functions > PROGRAM_FUNCTIONS_MAX {
                return Err(ProgramError::TooManyFunctions);
            }
            match segments.last_mut() {
                Some(Segment { parallel, .. }) if !serial => parallel.push(function),
                _ => segments.push(Segment {
                    serial: serial.then_some(function),
                    parallel: if serial { Vec::new() } else { vec![function] },
                }),
            }
            Ok(())
        })?;
        Ok(Self { segments })
    }

    /// The segments, in order; there is at least one.
    pub fn segments(&self) -> &[Segment] {
        &self.segments
    }
}

impl Segment {
    /// Whether a slot keeps working on a frame after it has given the lease back.
    pub fn has_rest(&self) -> bool {
        !self.parallel.is_empty()
    }

    /// The functions in the order in which an item passes them.
    pub fn functions(&self) -> impl Iterator<Item = FunctionId> {
        self.serial.into_iter().chain(self.parallel.iter().copied())
    }
}

/// Visits the functions in the order in which a token meets them, saying of each whether it is serial.
fn flatten(
    skeleton: &Skeleton,
    farmed: bool,
    depth: usize,
    visit: &mut impl FnMut(FunctionId, bool) -> Result<(), ProgramError>,
) -> Result<(), ProgramError> {
    if depth > SKELETON_DEPTH_MAX {
        return Err(ProgramError::TooDeep);
    }
    match skeleton {
        Skeleton::Seq(function) => visit(*function, !farmed),
        Skeleton::Farm(inner) => flatten(inner, true, depth + 1, visit),
        Skeleton::Pipeline(stages) => {
            if stages.is_empty() {
                return Err(ProgramError::EmptyPipeline);
            }
            stages
                .iter()
                .try_for_each(|stage| flatten(stage, farmed, depth + 1, visit))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seq(number: u32) -> Skeleton {
        Skeleton::Seq(FunctionId(number))
    }

    fn farm(inner: Skeleton) -> Skeleton {
        Skeleton::Farm(Box::new(inner))
    }

    fn shape(skeleton: &Skeleton) -> Vec<(Option<u32>, Vec<u32>)> {
        let program = Program::compile(skeleton).unwrap();
        let segments = program.segments().iter();
        segments
            .map(|s| {
                (
                    s.serial.map(|f| f.0),
                    s.parallel.iter().map(|f| f.0).collect(),
                )
            })
            .collect()
    }

    /// Aim: the fusing rule. Method: the shapes of issue and design, written out.
    #[test]
    fn segments_start_at_serial_functions() {
        assert_eq!(shape(&seq(0)), [(Some(0), vec![])]);
        assert_eq!(shape(&farm(seq(0))), [(None, vec![0])]);
        assert_eq!(
            shape(&Skeleton::Pipeline(vec![seq(0), farm(seq(1))])),
            [(Some(0), vec![1])]
        );
        assert_eq!(
            shape(&Skeleton::Pipeline(vec![
                farm(seq(0)),
                farm(seq(1)),
                seq(2),
                seq(3),
                farm(seq(4))
            ])),
            [(None, vec![0, 1]), (Some(2), vec![]), (Some(3), vec![4])]
        );
        let nested = farm(Skeleton::Pipeline(vec![seq(0), farm(seq(1)), seq(2)]));
        assert_eq!(shape(&nested), [(None, vec![0, 1, 2])]);
    }

    /// Aim: bad programs are errors that name the limit, not panics. Method: one program past each limit.
    #[test]
    fn bad_programs_are_refused() {
        assert_eq!(
            Program::compile(&Skeleton::Pipeline(vec![])),
            Err(ProgramError::EmptyPipeline)
        );
        let deep = (0..SKELETON_DEPTH_MAX).fold(seq(0), |inner, _| farm(inner));
        assert_eq!(Program::compile(&deep), Err(ProgramError::TooDeep));
        let wide = Skeleton::Pipeline(vec![seq(0); PROGRAM_FUNCTIONS_MAX + 1]);
        assert_eq!(Program::compile(&wide), Err(ProgramError::TooManyFunctions));
        let full = Skeleton::Pipeline(vec![seq(0); PROGRAM_FUNCTIONS_MAX]);
        assert_eq!(
            Program::compile(&full).unwrap().segments().len(),
            PROGRAM_FUNCTIONS_MAX
        );
    }
}
