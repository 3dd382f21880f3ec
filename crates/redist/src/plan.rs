//! One process's own part of what moves between two layouts: the product of its parts on each axis.

use crate::axis_plan::{AxisPartner, AxisPlan, MappedAxis, StridedRuns};
use crate::layout::Layout;
use crate::selection::{Selection, SelectionError};
use crate::{DIMENSIONS_MAX, ElementType};

/// Which end a process is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlanSide {
    /// It sends.
    Source,
    /// It receives.
    Target,
}

/// What of a source goes where in a target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mapping {
    pub(crate) from: Selection,
    pub(crate) to: Selection,
    /// The target's axis a comes from the source's axis `permutation[a]`.
    pub(crate) permutation: Vec<usize>,
}

/// A source and a target that don't fit each other.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MappingError {
    /// The part of the source.
    #[error("the selection of the source: {0}")]
    From(#[source] SelectionError),
    /// The part of the target.
    #[error("the selection of the target: {0}")]
    To(#[source] SelectionError),
    /// The number of axes.
    #[error("got a source of {from} axes and a target of {target}, expected as many")]
    Axes {
        /// Of the source.
        from: usize,
        /// Of the target.
        target: usize,
    },
    /// The types.
    #[error(
        "got a source of {from} and a target of {target}, expected the same type (byte orders may differ)"
    )]
    Elements {
        /// Of the source.
        from: ElementType,
        /// Of the target.
        target: ElementType,
    },
    /// The shapes.
    #[error(
        "the source's part has the shape {from:?} and the target's {target:?}, expected the same: see select, into and permute"
    )]
    Shapes {
        /// Of the source, in the order of the target's axes.
        from: Vec<u64>,
        /// Of the target.
        target: Vec<u64>,
    },
    /// No permutation.
    #[error("got the permutation {got:?}, expected each of the {axes} axes once, counted from 0")]
    Permutation {
        /// As it was given.
        got: Vec<usize>,
        /// As many as there are.
        axes: usize,
    },
}

impl Mapping {
    /// What `select` takes of the source goes to where `into` is in the target, both as `[::2, 10:20]`, the target's axis a from the source's
    /// axis `permute[a]`.
    ///
    /// # Errors
    /// [`MappingError`].
    pub fn new(
        source: &Layout,
        target: &Layout,
        select: Option<&str>,
        into: Option<&str>,
        permute: Option<&[usize]>,
    ) -> Result<Self, MappingError> {
        let (from, to) = (source.shape(), target.shape());
        if from.len() != to.len() {
            return Err(MappingError::Axes {
                from: from.len(),
                target: to.len(),
            });
        }
        if !source.element().is_same_value(target.element()) {
            return Err(MappingError::Elements {
                from: source.element(),
                target: target.element(),
            });
        }
        let of = |text: Option<&str>, shape: &[u64]| match text {
            Some(text) => Selection::parse(text, shape),
            None => Ok(Selection::all(shape)),
        };
        let axes = from.len();
        let permutation = permute.map_or_else(|| (0..axes).collect(), <[usize]>::to_vec);
        let mut sorted = permutation.clone();
        sorted.sort_unstable();
        if !sorted.into_iter().eq(0..axes) {
            let got = permutation.into_iter().take(DIMENSIONS_MAX).collect();
            return Err(MappingError::Permutation { got, axes });
        }
        let mapping = Self {
            from: of(select, &from).map_err(MappingError::From)?,
            to: of(into, &to).map_err(MappingError::To)?,
            permutation,
        };
        let from = mapping.from.shape();
        let from: Vec<u64> = mapping.permutation.iter().map(|axis| from[*axis]).collect();
        let target = mapping.to.shape();
        if from != target {
            return Err(MappingError::Shapes { from, target });
        }
        Ok(mapping)
    }

    /// How many elements move to each replica.
    #[must_use]
    pub fn elements(&self) -> u64 {
        self.to.shape().iter().product()
    }

    /// The target's axis a comes from the source's axis `permutation[a]`.
    #[must_use]
    pub fn permutation(&self) -> &[usize] {
        &self.permutation
    }
}

/// One process's own part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RedistributionPlan {
    side: PlanSide,
    /// In the order of the target's axes.
    axes: Vec<AxisPlan>,
    /// The source's axis of each.
    permutation: Vec<usize>,
    /// How much the other program's rank grows with the coordinate of each axis.
    rank_strides: Vec<u32>,
    element_bytes: u32,
    /// Bytes of what changes its byte order on the way; 1 if nothing does.
    swapped_bytes: u32,
}

impl RedistributionPlan {
    /// The part of the process of this rank.
    #[must_use]
    pub fn new(
        source: &Layout,
        target: &Layout,
        mapping: &Mapping,
        side: PlanSide,
        rank: u32,
    ) -> Self {
        let own = match side {
            PlanSide::Source => source.coordinates(rank),
            PlanSide::Target => target.coordinates(rank),
        };
        let axes = mapping.permutation.iter().enumerate();
        let axes = axes.map(|(axis, from)| {
            let mapped = MappedAxis {
                source: &source.axes[*from],
                from: mapping.from.axes()[*from],
                target: &target.axes[axis],
                to: mapping.to.axes()[axis],
            };
            let process = match side {
                PlanSide::Source => own[*from],
                PlanSide::Target => own[axis],
            };
            AxisPlan::new(mapped, side, process)
        });
        let axes = axes.collect();
        let strides = |layout: &Layout| {
            let mut strides = vec![1; layout.axes.len()];
            for axis in (1..strides.len()).rev() {
                strides[axis - 1] = strides[axis] * layout.axes[axis].processes;
            }
            strides
        };
        let rank_strides = match side {
            PlanSide::Source => strides(target),
            PlanSide::Target => {
                let strides = strides(source);
                mapping
                    .permutation
                    .iter()
                    .map(|axis| strides[*axis])
                    .collect()
            }
        };
        Self {
            side,
            axes,
            permutation: mapping.permutation.clone(),
            rank_strides,
            element_bytes: source.element().bytes(),
            swapped_bytes: match source.element().is_swapped(target.element()) {
                true => source.element().swapped_bytes(),
                false => 1,
            },
        }
    }

    /// Which end this process is.
    #[must_use]
    pub fn side(&self) -> PlanSide {
        self.side
    }

    /// How many processes of the other program it has to do with.
    #[must_use]
    pub fn message_count(&self) -> u64 {
        let counts = self.axes.iter().map(|axis| axis.partners().len() as u64);
        counts.product()
    }

    /// How many elements it sends or receives.
    #[must_use]
    pub fn elements(&self) -> u64 {
        let of = |axis: &AxisPlan| axis.partners().iter().map(|one| one.elements).sum::<u64>();
        self.axes.iter().map(of).product()
    }

    /// One message for each process of the other program that it has to do with.
    pub fn messages(&self) -> impl Iterator<Item = PlannedMessage<'_>> {
        let mut next = [0; DIMENSIONS_MAX];
        (0..self.message_count()).map(move |_| {
            let partners = next;
            for (axis, place) in self.axes.iter().zip(&mut next).rev() {
                *place += 1;
                if *place < axis.partners().len() {
                    break;
                }
                *place = 0;
            }
            PlannedMessage {
                plan: self,
                partners,
            }
        })
    }
}

/// What moves between this process and one of the other program.
#[derive(Clone, Copy, Debug)]
pub struct PlannedMessage<'a> {
    plan: &'a RedistributionPlan,
    partners: [usize; DIMENSIONS_MAX],
}

/// A message's part of one axis, as copies need it.
pub(crate) struct MessageAxis<'a> {
    pub(crate) plan: &'a AxisPlan,
    pub(crate) partner: &'a AxisPartner,
    pub(crate) source_axis: usize,
}

impl<'a> PlannedMessage<'a> {
    pub(crate) fn axes(self) -> impl DoubleEndedIterator<Item = MessageAxis<'a>> {
        let axes = self.plan.axes.iter().zip(self.partners);
        let axes = axes.zip(&self.plan.permutation);
        axes.map(|((plan, partner), source_axis)| MessageAxis {
            plan,
            partner: &plan.partners()[partner],
            source_axis: *source_axis,
        })
    }

    /// The other process's rank.
    #[must_use]
    pub fn rank(self) -> u32 {
        let places = self.axes().zip(&self.plan.rank_strides);
        places
            .map(|(axis, stride)| axis.partner.process * stride)
            .sum()
    }

    /// How many elements.
    #[must_use]
    pub fn elements(self) -> u64 {
        self.axes().map(|axis| axis.partner.elements).product()
    }

    /// How many bytes.
    #[must_use]
    pub fn bytes(self) -> u64 {
        self.elements() * u64::from(self.plan.element_bytes)
    }

    /// Bytes of one element.
    #[must_use]
    pub fn element_bytes(self) -> u32 {
        self.plan.element_bytes
    }

    /// Bytes of what changes its byte order on the way; 1 if nothing does.
    #[must_use]
    pub fn swapped_bytes(self) -> u32 {
        self.plan.swapped_bytes
    }

    /// The cells of one axis of the target, in the order of their indices.
    pub fn runs(self, axis: usize) -> impl Iterator<Item = StridedRuns> + Clone + 'a {
        let plan = &self.plan.axes[axis];
        plan.runs_with(&plan.partners()[self.partners[axis]])
    }

    /// The same one by one: at the source, and at the target.
    #[must_use]
    pub fn cells(self, axis: usize) -> (Vec<u64>, Vec<u64>) {
        let plan = &self.plan.axes[axis];
        let (source_step, target_step) = (plan.source_step, plan.target_step);
        let cells = self.runs(axis).flat_map(|runs| {
            (0..runs.count).flat_map(move |number| {
                let source = runs.source + number * runs.source_stride;
                let target = runs.target + number * runs.target_stride;
                let cell = move |cell| (source + cell * source_step, target + cell * target_step);
                (0..runs.length).map(cell)
            })
        });
        cells.unzip()
    }
}
