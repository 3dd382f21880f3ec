//! Random numbers, and programs made of them.

use exoskel_flow::{FunctionId, Skeleton};

use super::meaning::RAISING;

/// A generator that follows from its seed (xorshift).
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        let mut random = Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        (0..4).for_each(|_| assert!(random.below(2) < 2));
        random
    }

    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % bound
    }

    pub(crate) fn is(&mut self, one_in: u64) -> bool {
        self.below(one_in) == 0
    }

    pub(crate) fn pick<T: Copy>(&mut self, from: &[T]) -> Option<T> {
        (!from.is_empty()).then(|| from[self.below(from.len() as u64) as usize])
    }
}

/// A program of all patterns. Some of its functions raise if they may.
pub(crate) fn program(random: &mut Random, raises: bool) -> Skeleton {
    let mut maker = Maker { random, raises };
    let mut stages: Vec<Skeleton> = Vec::new();
    for _ in 0..1 + maker.random.below(3) {
        stages.push(match maker.random.below(5) {
            0 => Skeleton::FlatMap(maker.function()),
            1 => Skeleton::Feedback(maker.function()),
            _ => maker.stage(3),
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
}

impl Maker<'_> {
    fn function(&mut self) -> FunctionId {
        let raises = self.raises && self.random.is(4);
        let base = if raises { RAISING } else { 0 };
        FunctionId(base + self.random.below(u64::from(RAISING)) as u32)
    }

    fn stage(&mut self, depth: u32) -> Skeleton {
        match (self.random.below(7), depth) {
            (0, _) | (_, 0) => Skeleton::Seq(self.function()),
            (1, _) => Skeleton::Farm(Box::new(self.stage(depth - 1))),
            (2, _) => {
                let stages = 1 + self.random.below(2);
                Skeleton::Pipeline((0..stages).map(|_| self.stage(depth - 1)).collect())
            }
            (3 | 4, _) => Skeleton::Map {
                split: self.random.is(2).then(|| self.function()),
                worker: Box::new(self.stage(depth - 1)),
                join: self.random.is(2).then(|| self.function()),
            },
            (5, _) => Skeleton::Iterate {
                body: Box::new(self.stage(depth - 1)),
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
