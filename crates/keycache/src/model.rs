//! How many keys are in use at once: the ON/OFF chain in closed form.
//!
//! A process communicates (ON) and computes (OFF) in turn, both for exponentially distributed times. Of `n` such processes, the number that are
//! ON at the same time is a birth-and-death chain (Lee, An, Kim: "A session key caching and prefetching scheme for secure communication in
//! cluster systems", J. Parallel Distrib. Comput. 70 (2010), section 3.2). Its stationary distribution, their equation 1, is the binomial one with the share of the time that
//! one process is ON, so their `F_n(x)`, equation 3, is `I_{1-q}(n - x, x + 1)`, the regularised incomplete beta function.
//!
//! The function is computed here: the crates that have it give up, or lose half the digits, beyond some thousand processes. Its factor comes from Loader's
//! formula ("Fast and accurate computation of binomial probabilities", 2000), in which nothing large cancels; the rest is a continued fraction (DLMF 8.17.22).

use std::f64::consts::PI;

use thiserror::Error;

/// Most processes that the model counts.
pub const PROCESSES_MAX: u64 = 1_000_000_000;

/// A parameter that no model has.
#[derive(Clone, Copy, Debug, PartialEq, Error)]
pub enum ModelError {
    /// The ratio of the two mean times.
    #[error("got off-on = {got}, expected a positive number")]
    OffOn {
        /// What was asked for.
        got: f64,
    },
    /// The hit rate.
    #[error("got hit = {got}, expected more than 0 and at most 1")]
    Hit {
        /// What was asked for.
        got: f64,
    },
    /// The size of the cache.
    #[error("got entries = 0, expected at least 1")]
    NoEntries,
    /// More than the model counts.
    #[error("got {what}, expected at most {PROCESSES_MAX} processes")]
    TooMany {
        /// What would be more.
        what: &'static str,
    },
}

/// Processes that communicate and compute in turn, independently of each other.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct OnOffParameters {
    /// The share of its time that a process is ON.
    on: f64,
    off: f64,
}

impl OnOffParameters {
    /// From the mean time that a process computes, over the mean time that it communicates: `mu / lambda` of the paper.
    ///
    /// # Errors
    ///
    /// [`ModelError::OffOn`] if that is no positive number.
    pub fn new(off_on: f64) -> Result<Self, ModelError> {
        let on = 1.0 / (1.0 + off_on);
        let off = off_on / (1.0 + off_on);
        if off_on.is_finite() && on > 0.0 && off > 0.0 && off_on > 0.0 {
            Ok(Self { on, off })
        } else {
            Err(ModelError::OffOn { got: off_on })
        }
    }

    /// The probability that at most `entries` of `processes` are ON: `F_n(x)`. It is a share of time and not of packets, and calls every state with
    /// more a full loss, so it is no bound of a hit rate, neither from above nor from below; see [`OnOffParameters::covered`].
    pub fn fits(&self, processes: u64, entries: u64) -> f64 {
        self.sides(processes, entries).0
    }

    /// The mean share of the ON processes that have one of the `entries`: `E[min(i, x)] / E[i]`. The hit rate of an LRU cache comes close when each
    /// ON period has a hundred packets or more, interleaved with those of others; with `B` packets it is about `1 / B` lower, for the first
    /// of them.
    pub fn covered(&self, processes: u64, entries: u64) -> f64 {
        if entries >= processes {
            return 1.0;
        }
        if entries == 0 {
            return 0.0;
        }
        // The sum of i P_i up to x is n q F_{n-1}(x - 1).
        let (below, _) = self.sides(processes - 1, entries - 1);
        let (_, above) = self.sides(processes, entries);
        below + above * entries as f64 / (processes as f64 * self.on)
    }

    /// The largest number of processes for which a cache of `entries` holds the keys of all that are ON, for a share `hit` of the time.
    ///
    /// # Errors
    ///
    /// [`ModelError`] names the parameter that is none, or says that there would be more than [`PROCESSES_MAX`].
    pub fn capacity(&self, entries: u64, hit: f64) -> Result<u64, ModelError> {
        if !(hit > 0.0 && hit <= 1.0) {
            return Err(ModelError::Hit { got: hit });
        }
        if entries == 0 {
            return Err(ModelError::NoEntries);
        }
        let what = "a capacity that is larger";
        if entries > PROCESSES_MAX {
            return Err(ModelError::TooMany { what });
        }
        if hit == 1.0 {
            // More processes may all be ON at once, however rarely.
            return Ok(entries);
        }
        // The smaller of the two sides is the exact one.
        let enough = |processes| {
            let (fits, exceeds) = self.sides(processes, entries);
            if exceeds < 0.5 {
                exceeds <= 1.0 - hit
            } else {
                fits >= hit
            }
        };
        let (mut yes, mut no) = (entries, entries.saturating_mul(2));
        while no <= PROCESSES_MAX && enough(no) {
            yes = no;
            no *= 2;
        }
        if no > PROCESSES_MAX {
            no = PROCESSES_MAX + 1;
            if enough(PROCESSES_MAX) {
                return Err(ModelError::TooMany { what });
            }
        }
        while no - yes > 1 {
            let middle = yes + (no - yes) / 2;
            if enough(middle) {
                yes = middle;
            } else {
                no = middle;
            }
        }
        Ok(yes)
    }

    /// The probabilities that at most so many are ON, and that more are; the smaller one to nearly full precision.
    fn sides(&self, processes: u64, entries: u64) -> (f64, f64) {
        if entries >= processes {
            return (1.0, 0.0);
        }
        let (n, x) = (processes as f64, entries as f64);
        // The continued fraction converges fast on the side of the mean that it is meant for (DLMF 8.17.22).
        if self.off < (n - x + 1.0) / (n + 3.0) {
            let fits = self.probability(processes, entries)
                * self.on
                * continued_fraction(n - x, x + 1.0, self.off, self.on);
            (fits.min(1.0), (1.0 - fits).max(0.0))
        } else {
            let exceeds = self.probability(processes, entries + 1)
                * self.off
                * continued_fraction(x + 1.0, n - x, self.on, self.off);
            ((1.0 - exceeds).max(0.0), exceeds.min(1.0))
        }
    }

    /// The probability that just so many are ON; Loader's formula.
    fn probability(&self, processes: u64, active: u64) -> f64 {
        let (n, i) = (processes as f64, active as f64);
        if active == 0 {
            return (n * ln_of_share(self.off, self.on)).exp();
        }
        if active == processes {
            return (n * ln_of_share(self.on, self.off)).exp();
        }
        let rest = n - i;
        let exponent = stirling_error(processes)
            - stirling_error(active)
            - stirling_error(processes - active)
            - deviance(i, n * self.on)
            - deviance(rest, n * self.off);
        exponent.exp() * (n / (2.0 * PI * i * rest)).sqrt()
    }
}

/// The logarithm of a share, given the other one: exact also when the share is nearly all.
fn ln_of_share(share: f64, other: f64) -> f64 {
    if other < 0.5 {
        (-other).ln_1p()
    } else {
        share.ln()
    }
}

/// `ln(n!) - ln(sqrt(2 pi n) (n / e)^n)`: exact logarithms for small numbers, Stirling's series beyond.
fn stirling_error(number: u64) -> f64 {
    /// From here on five terms of the series leave an error below 1e-16.
    const SERIES_FROM: u64 = 16;
    let n = number as f64;
    if number == 0 {
        return 0.0;
    }
    if number < SERIES_FROM {
        let factorial: u64 = (2..=number).product();
        return (factorial as f64).ln() - 0.5 * (2.0 * PI * n).ln() - n * n.ln() + n;
    }
    let square = n * n;
    (1.0 / 12.0
        - (1.0 / 360.0
            - (1.0 / 1260.0 - (1.0 / 1680.0 - 1.0 / (1188.0 * square)) / square) / square)
            / square)
        / n
}

/// `x ln(x / mean) + mean - x`, without the cancellation when both are close.
fn deviance(x: f64, mean: f64) -> f64 {
    let difference = x - mean;
    if difference.abs() >= 0.1 * (x + mean) {
        return x * (x / mean).ln() - difference;
    }
    // ln(x / mean) = 2 artanh(v).
    let v = difference / (x + mean);
    let mut sum = difference * v;
    let mut power = 2.0 * x * v;
    let mut odd = 3.0;
    loop {
        power *= v * v;
        let next = sum + power / odd;
        if next == sum {
            return sum;
        }
        sum = next;
        odd += 2.0;
    }
}

/// The continued fraction of `I_x(a, b)`, of which `y = 1 - x`, by Lentz's method with Thompson's and Barnett's changes: it takes some multiple of
/// the root of the larger parameter.
fn continued_fraction(a: f64, b: f64, x: f64, y: f64) -> f64 {
    const TINY: f64 = 1e-300;
    let not_zero = |value: f64| if value.abs() < TINY { TINY } else { value };
    let steps_max = 1000 + 40 * a.max(b).sqrt() as u64;
    // Written with y where 1 - x would lose digits: 1 - (a + b) x / (a + 1).
    let mut d = 1.0 / not_zero((1.0 - b * x + a * y) / (a + 1.0));
    let mut c = 1.0;
    let mut fraction = d;
    for step in 1..=steps_max {
        let m = step as f64;
        let even = m * (b - m) * x / ((a + 2.0 * m - 1.0) * (a + 2.0 * m));
        d = 1.0 / not_zero(1.0 + even * d);
        c = not_zero(1.0 + even / c);
        fraction *= c * d;
        let odd = -(a + m) * (a + b + m) * x / ((a + 2.0 * m) * (a + 2.0 * m + 1.0));
        d = 1.0 / not_zero(1.0 + odd * d);
        c = not_zero(1.0 + odd / c);
        let change = c * d;
        fraction *= change;
        if (change - 1.0).abs() < f64::EPSILON {
            break;
        }
    }
    fraction
}

#[cfg(test)]
mod tests {
    use num_bigint::BigUint;
    use proptest::prelude::*;

    use super::*;

    fn model(off_on: f64) -> OnOffParameters {
        OnOffParameters::new(off_on).unwrap()
    }

    /// The quotient of two large numbers, exact to 2^-100.
    fn quotient(part: &BigUint, whole: &BigUint) -> f64 {
        let scaled = (part << 160_u32) / whole;
        // All bits up to 2^64 are kept by going through two halves.
        let high = u128::try_from(&scaled >> 60_u32).unwrap() as f64;
        high / 2_f64.powi(100)
    }

    /// The weights of all states, up to a common factor, for OFF / ON = off / on: exact, for some hundred processes.
    fn exact(processes: u64, entries: u64, off: u32, on: u32) -> (f64, f64) {
        let mut weight = BigUint::from(off).pow(processes as u32);
        let (mut below, mut above) = (BigUint::ZERO, BigUint::ZERO);
        for active in 0..=processes {
            if active <= entries {
                below += &weight;
            } else {
                above += &weight;
            }
            weight = weight * (processes - active) * on / (active + 1) / off;
        }
        let whole = &below + &above;
        (quotient(&below, &whole), quotient(&above, &whole))
    }

    /// The same for any number: from the most probable state outwards in steps of 2^-400, until nothing is left.
    fn precise(processes: u64, entries: u64, off: u64, on: u64) -> (f64, f64) {
        let middle = processes * on / (on + off);
        let one = BigUint::from(1_u32) << 400_u32;
        let (mut below, mut above) = (BigUint::ZERO, BigUint::ZERO);
        let mut add = |active: u64, weight: &BigUint| {
            if active <= entries {
                below += weight;
            } else {
                above += weight;
            }
        };
        let mut weight = one.clone();
        let mut active = middle;
        while weight > BigUint::ZERO {
            add(active, &weight);
            weight = weight * (processes - active) * on / ((active + 1) * off);
            active += 1;
        }
        weight = one;
        active = middle;
        while active > 0 && weight > BigUint::ZERO {
            weight = weight * active * off / ((processes - active + 1) * on);
            active -= 1;
            add(active, &weight);
        }
        let whole = &below + &above;
        (quotient(&below, &whole), quotient(&above, &whole))
    }

    fn assert_near(got: f64, expected: f64, what: &str) {
        let error = (got - expected).abs() / expected.max(1e-12);
        assert!(error < 1e-11, "{what}: got {got:e}, expected {expected:e}");
    }

    /// Aim: the paper's worked examples. Method: its section 3.2.
    #[test]
    fn has_the_papers_examples() {
        let even = model(1.0);
        assert_near(even.fits(4, 3), 15.0 / 16.0, "four processes");
        assert_near(even.fits(5, 3), 13.0 / 16.0, "five processes");
        assert_eq!(even.capacity(3, 0.9), Ok(4));
        assert_near(even.probability(4, 2), 3.0 / 8.0, "P_2");
        assert_near(even.probability(4, 0), 1.0 / 16.0, "P_0");
    }

    /// What the paper's Fig. 3 needs to be right: 128 entries for about 1000 keys, and what 16 KB then hold.
    #[test]
    fn has_the_capacities_of_the_paper() {
        assert_eq!(model(7.66).capacity(128, 0.9), Ok(999));
        assert_eq!(model(7.66).capacity(1024, 0.9), Ok(8543));
        assert_eq!(model(7.66).capacity(64, 0.9), Ok(480));
        assert_eq!(model(9.14).capacity(128, 0.9), Ok(1169));
    }

    #[test]
    fn capacity_is_where_the_probability_falls_below() {
        for (off_on, entries, hit) in [(0.5, 10, 0.99), (20.0, 1024, 0.5), (3.0, 1, 0.9)] {
            let model = model(off_on);
            let capacity = model.capacity(entries, hit).unwrap();
            assert!(model.fits(capacity, entries) >= hit);
            assert!(model.fits(capacity + 1, entries) < hit);
        }
        // When nothing may be missed, each process needs an entry.
        assert_eq!(model(1e6).capacity(128, 1.0), Ok(128));
        assert_eq!(model(1.0).capacity(3, 15.0 / 16.0), Ok(4));
    }

    #[test]
    fn is_exact_for_small_numbers() {
        for (off, on) in [(1, 1), (8, 1), (1, 9), (766, 100)] {
            for processes in [1, 2, 5, 17, 100, 400] {
                for entries in (0..processes).step_by(1 + processes as usize / 7) {
                    let model = model(f64::from(off) / f64::from(on));
                    let (fits, exceeds) = exact(processes, entries, off, on);
                    let (got_fits, got_exceeds) = model.sides(processes, entries);
                    let what = format!("{entries} of {processes}, {off}/{on}");
                    let precise = precise(processes, entries, off.into(), on.into());
                    assert_near(precise.0, fits, &what);
                    assert_near(got_fits, fits, &what);
                    assert_near(got_exceeds, exceeds, &what);
                }
            }
        }
    }

    #[test]
    fn is_stable_to_a_million_processes() {
        for (off, on) in [(9, 1), (1, 1), (1000, 1)] {
            let mean: u64 = 1_000_000 * on / (on + off);
            let deviation = ((mean * off / (on + off)) as f64).sqrt() as u64;
            for distance in [-6, -3, -1, 0, 1, 3, 6_i64] {
                let entries = mean.saturating_add_signed(distance * deviation as i64);
                let (fits, exceeds) = precise(1_000_000, entries, off, on);
                let got = model(off as f64 / on as f64).sides(1_000_000, entries);
                let what = format!("{entries}, {off}/{on}");
                assert_near(got.0, fits, &what);
                assert_near(got.1, exceeds, &what);
            }
        }
    }

    #[test]
    fn covered_is_the_mean_share() {
        // Four processes, half of the time ON: min(i, 3) / 2, by hand.
        let expected = (4.0 + 6.0 * 2.0 + 4.0 * 3.0 + 3.0) / 16.0 / 2.0;
        assert_near(model(1.0).covered(4, 3), expected, "four processes");
        assert_near(model(1.0).covered(3, 3), 1.0, "as many as entries");
        assert_near(
            model(4.0).covered(10_000, 1024),
            0.512,
            "half of what is ON",
        );
    }

    #[test]
    fn refuses_what_is_no_parameter() {
        for got in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            assert!(matches!(
                OnOffParameters::new(got),
                Err(ModelError::OffOn { .. })
            ));
        }
        for got in [0.0, 1.1, f64::NAN] {
            assert!(matches!(
                model(1.0).capacity(4, got),
                Err(ModelError::Hit { .. })
            ));
        }
        assert_eq!(model(1.0).capacity(0, 0.9), Err(ModelError::NoEntries));
        let error = model(1e9).capacity(100, 0.9).unwrap_err();
        assert_eq!(
            error.to_string(),
            "got a capacity that is larger, expected at most 1000000000 processes"
        );
    }

    proptest! {
        /// More entries never hurt, more processes never help, and the two sides are everything.
        #[test]
        fn is_monotonous(processes in 1..200_000_u64, share in 0.0..1.0_f64, off_on in 0.01..100.0_f64) {
            let model = model(off_on);
            let entries = (processes as f64 * share) as u64;
            let (fits, exceeds) = model.sides(processes, entries);
            prop_assert!((fits + exceeds - 1.0).abs() < 1e-12);
            prop_assert!(model.fits(processes, entries + 1) >= fits - 1e-12);
            prop_assert!(model.fits(processes + 1, entries) <= fits + 1e-12);
            let covered = model.covered(processes, entries);
            prop_assert!((0.0..=1.0 + 1e-12).contains(&covered));
        }
    }
}
