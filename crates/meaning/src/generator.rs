//! Random numbers, and programs made of them.

use exoskel_flow::{FunctionId, Skeleton};

use crate::meaning::{INITIAL, RAISING};

/// A generator that follows from its seed (xorshift).
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// The generator of a seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        let mut random = Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        for _ in 0..4 {
            random.below(2);
        }
        random
    }

    /// A number below this one.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % bound
    }

    /// True once in so many times.
    pub fn is(&mut self, one_in: u64) -> bool {
        self.below(one_in) == 0
    }

    /// One of these, if there is any.
    pub fn pick<T: Copy>(&mut self, from: &[T]) -> Option<T> {
        (!from.is_empty()).then(|| from[self.below(from.len() as u64) as usize])
    }
}

/// A program of all patterns. Some of its functions raise if they may, and some of its stages have a state if they may.
pub fn program(random: &mut Random, raises: bool, carries: bool) -> Skeleton {
    let mut maker = Maker {
        random,
        raises,
        carries,
    };
    let mut stages: Vec<Skeleton> = Vec::new();
    for _ in 0..1 + maker.random.below(3) {
        stages.push(match maker.random.below(5) {
            0 => Skeleton::FlatMap(maker.function()),
            1 => Skeleton::Feedback(maker.function()),
            _ => maker.stage(3, carries),
        });
    }
    if maker.random.is(3) {
        stages.push(Skeleton::Reduce {
            operator: maker.function(),
            initial: maker.random.is(2).then(|| maker.function()),
        });
    }
    Skeleton::Pipeline(stages)
}

struct Maker<'a> {
    random: &'a mut Random,
    raises: bool,
    carries: bool,
}

impl Maker<'_> {
    fn function(&mut self) -> FunctionId {
        let raises = self.raises && self.random.is(4);
        let base = if raises { RAISING } else { 0 };
        FunctionId(base + self.random.below(u64::from(RAISING)) as u32)
    }

    /// A stage. Where items have an order, they may bring a state along.
    fn stage(&mut self, depth: u32, has_order: bool) -> Skeleton {
        let kinds = if self.carries { 9 } else { 7 };
        match (self.random.below(kinds), depth) {
            (7, _) if has_order => Skeleton::Stateful {
                function: self.function(),
                initial: FunctionId(INITIAL),
            },
            (8, _) if has_order => Skeleton::Scan {
                operator: self.function(),
                initial: self.random.is(2).then_some(FunctionId(INITIAL)),
            },
            (0, _) | (_, 0) => Skeleton::Seq(self.function()),
            (1, _) => Skeleton::Farm(Box::new(self.stage(depth - 1, false))),
            (2, _) => {
                let stages = 1 + self.random.below(2);
                let stages = (0..stages).map(|_| self.stage(depth - 1, has_order));
                Skeleton::Pipeline(stages.collect())
            }
            (3 | 4, _) => Skeleton::Map {
                split: self.random.is(2).then(|| self.function()),
                worker: Box::new(self.stage(depth - 1, false)),
                join: self.random.is(2).then(|| self.function()),
            },
            (5, _) => Skeleton::Iterate {
                body: Box::new(self.stage(depth - 1, false)),
                until: self.function(),
                at_most: Some(1 + self.random.below(4) as u32),
            },
            (_, _) => Skeleton::Divide {
                is_base: self.function(),
                base: self.function(),
                divide: self.function(),
                conquer: self.function(),
            },
        }
    }
}
