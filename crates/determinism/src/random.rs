//! Randomness that is the same everywhere and for ever.

use std::time::Duration;

/// SplitMix64 (Steele, Lea, Flood 2014): one addition and three multiply-and-shift steps for each number, any seed is good, and two
/// generators with different seeds have nothing to do with each other. Not for secrets.
#[derive(Clone, Debug)]
pub struct SplitMix64 {
    state: u64,
}

impl SplitMix64 {
    /// A generator; equal seeds give equal numbers.
    pub fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    /// The next number.
    pub fn next_u64(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// A number below `limit`; 0 when the limit is 0. The bias of small limits (below 2^-32) does not matter here.
    pub fn below(&mut self, limit: u64) -> u64 {
        let wide = u128::from(self.next_u64()) * u128::from(limit);
        (wide >> 64) as u64
    }

    /// A time from `least` up to `most`.
    pub fn between(&mut self, least: Duration, most: Duration) -> Duration {
        let span = most.saturating_sub(least).as_nanos() as u64;
        least + Duration::from_nanos(self.below(span.saturating_add(1)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Aim: this is the published generator. Method: the first numbers of seed 1234567, as its reference code gives them.
    #[test]
    fn gives_the_published_numbers() {
        let mut random = SplitMix64::new(1_234_567);
        let numbers: Vec<u64> = (0..5).map(|_| random.next_u64()).collect();
        assert_eq!(
            numbers,
            [
                6_457_827_717_110_365_317,
                3_203_168_211_198_807_973,
                9_817_491_932_198_370_423,
                4_593_380_528_125_082_431,
                16_408_922_859_458_223_821
            ]
        );
    }

    #[test]
    fn stays_below_its_limit() {
        let mut random = SplitMix64::new(1);
        assert!((0..1000).all(|_| random.below(7) < 7));
        assert_eq!(random.below(0), 0);
        let (least, most) = (Duration::from_micros(5), Duration::from_micros(6));
        assert!(
            (0..1000)
                .map(|_| random.between(least, most))
                .all(|time| time >= least && time <= most)
        );
    }
}
