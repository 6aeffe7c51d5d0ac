//! Medians and their confidence intervals.
//!
//! The two sides of a comparison are measured in turns, so that run i of both sides meets the same state of the
//! machine. So run i of one side and run i of the other are kept, and resampled, as a pair.

use serde::{Deserialize, Serialize};

/// The percentiles that latencies are published with.
pub const PERCENTILES: [f64; 17] =
    [1.0, 5.0, 10.0, 20.0, 30.0, 40.0, 50.0, 60.0, 70.0, 80.0, 90.0, 95.0, 99.0, 99.5, 99.9, 99.95, 99.99];

/// One side's runs, in the row's unit.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// The median run.
    pub median: f64,
    /// The mean of the runs.
    pub mean: f64,
    /// Their standard deviation (of a sample; 0 for one run).
    pub stdev: f64,
    /// The least run.
    pub min: f64,
    /// The greatest run.
    pub max: f64,
}

impl Summary {
    /// Summarises at least one run.
    ///
    /// # Panics
    /// If there is none.
    pub fn of(runs: &[f64]) -> Self {
        let sorted = sorted(runs);
        let mean = runs.iter().sum::<f64>() / runs.len() as f64;
        let squares: f64 = runs.iter().map(|run| (run - mean).powi(2)).sum();
        Summary {
            median: quantile(&sorted, 0.5),
            mean,
            stdev: (squares / (runs.len().max(2) - 1) as f64).sqrt(),
            min: quantile(&sorted, 0.0),
            max: quantile(&sorted, 1.0),
        }
    }
}

/// Returns the [`PERCENTILES`] of at least one value.
///
/// # Panics
/// If there is none.
pub fn percentiles(values: &[f64]) -> Vec<f64> {
    let sorted = sorted(values);
    PERCENTILES.iter().map(|percentile| quantile(&sorted, percentile / 100.0)).collect()
}

/// Returns the median of at least one value.
///
/// # Panics
/// If there is none.
pub fn median(values: &[f64]) -> f64 {
    quantile(&sorted(values), 0.5)
}

/// The comparison of two medians, with its 95 % bootstrap interval. A single interval of [`Estimate::ratio_among`]
/// holds with more than 95 % confidence.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Estimate {
    /// The comparison of the runs as measured.
    pub value: f64,
    /// The interval's lower and upper end; `None` with fewer than [`LEAST_RUNS`].
    pub interval: Option<[f64; 2]>,
}

impl Estimate {
    /// Estimates median(first) / median(second).
    ///
    /// # Panics
    /// If `pairs` is empty.
    pub fn ratio(pairs: &[(f64, f64)]) -> Self {
        Estimate::ratio_among(pairs, 1)
    }

    /// Estimates one of `family` ratios whose intervals together hold with 95 % confidence: each has its part of the 5
    /// % (Bonferroni).
    ///
    /// # Panics
    /// If `pairs` is empty.
    pub fn ratio_among(pairs: &[(f64, f64)], family: usize) -> Self {
        bootstrap(pairs, family, |first, second| first / second)
    }

    /// Estimates median(first) - median(second).
    ///
    /// # Panics
    /// If `pairs` is empty.
    pub fn difference(pairs: &[(f64, f64)]) -> Self {
        bootstrap(pairs, 1, |first, second| first - second)
    }
}

/// The fewest runs for an interval. An interval of fewer runs would look more certain than it is, since it cannot be
/// wider than the range of its runs. 5 runs have the true median in their range in 94 of 100 cases, 3 in 75.
pub const LEAST_RUNS: usize = 5;

/// The number of resamples. With so many, the interval's ends vary by less than the printed precision.
const RESAMPLES: usize = 2000;
/// A constant seed, so that the same runs give the same interval.
const SEED: u64 = 0x616e_7972_696e_6721;

/// Makes a percentile bootstrap over pairs: each resample draws as many pairs as there are, with replacement. The
/// number of resamples is proportional to `family`. So as many resamples lie beyond each end of the interval as for a
/// single ratio.
fn bootstrap(pairs: &[(f64, f64)], family: usize, compare: impl Fn(f64, f64) -> f64) -> Estimate {
    let (mut first, mut second): (Vec<f64>, Vec<f64>) = pairs.iter().copied().unzip();
    let value = compare(quantile(&sorted(&first), 0.5), quantile(&sorted(&second), 0.5));
    if pairs.len() < LEAST_RUNS {
        return Estimate { value, interval: None };
    }
    let mut random = fastrand::Rng::with_seed(SEED);
    let mut resample = || {
        for at in 0..pairs.len() {
            (first[at], second[at]) = pairs[random.usize(..pairs.len())];
        }
        compare(median_in_place(&mut first), median_in_place(&mut second))
    };
    let family = family.max(1);
    let resamples: Vec<f64> = (0..RESAMPLES * family).map(|_| resample()).collect();
    let (resamples, beyond) = (sorted(&resamples), 0.025 / family as f64);
    Estimate { value, interval: Some([quantile(&resamples, beyond), quantile(&resamples, 1.0 - beyond)]) }
}

/// Returns the median of at least one value; reorders the values.
fn median_in_place(values: &mut [f64]) -> f64 {
    let even = values.len().is_multiple_of(2);
    let (below, middle, _) = values.select_nth_unstable_by(values.len() / 2, f64::total_cmp);
    let middle = *middle;
    match even {
        true => (below.iter().copied().fold(f64::MIN, f64::max) + middle) / 2.0,
        false => middle,
    }
}

fn sorted(values: &[f64]) -> Vec<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted
}

/// Returns the value below which `part` (0 to 1) of the sorted values are, interpolated linearly between neighbours.
fn quantile(sorted: &[f64], part: f64) -> f64 {
    let position = part * (sorted.len() - 1) as f64;
    let below = position.floor() as usize;
    let above = position.ceil() as usize;
    sorted[below] + (sorted[above] - sorted[below]) * (position - below as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_of_odd_and_even_numbers_of_runs() {
        let three = Summary { median: 2.0, mean: 2.0, stdev: 1.0, min: 1.0, max: 3.0 };
        assert_eq!(Summary::of(&[3.0, 1.0, 2.0]), three);
        assert_eq!(Summary::of(&[4.0, 1.0, 2.0, 3.0]).median, 2.5);
        assert_eq!(Summary::of(&[7.0]), Summary { median: 7.0, mean: 7.0, stdev: 0.0, min: 7.0, max: 7.0 });
    }

    #[test]
    fn quantiles_are_interpolated() {
        let values = [0.0, 10.0, 20.0, 30.0, 40.0];
        assert_eq!(quantile(&values, 0.25), 10.0);
        assert_eq!(quantile(&values, 0.375), 15.0);
        assert_eq!(quantile(&values, 0.975), 39.0);
        let hundred: Vec<f64> = (0..=100).rev().map(f64::from).collect();
        assert_eq!(percentiles(&hundred)[..7], [1.0, 5.0, 10.0, 20.0, 30.0, 40.0, 50.0]);
    }

    #[test]
    fn the_interval_is_a_point_without_spread() {
        let ratio = Estimate::ratio(&[(50.0, 100.0); 9]);
        assert_eq!(ratio, Estimate { value: 0.5, interval: Some([0.5, 0.5]) });
        assert_eq!(Estimate::difference(&[(50.0, 100.0); 9]).value, -50.0);
    }

    #[test]
    fn few_runs_have_no_interval() {
        let pairs = [(50.0, 100.0), (60.0, 100.0), (70.0, 100.0), (80.0, 100.0), (90.0, 100.0)];
        assert_eq!(Estimate::ratio(&pairs[..4]), Estimate { value: 0.65, interval: None });
        assert_eq!(Estimate::ratio(&pairs), Estimate { value: 0.7, interval: Some([0.5, 0.9]) });
    }

    #[test]
    fn noise_widens_the_interval_and_more_runs_narrow_it() {
        let mut random = fastrand::Rng::with_seed(1);
        let mut width = |runs: usize, noise: f64| {
            let mut value = || 100.0 + noise * (random.f64() - 0.5);
            let pairs: Vec<_> = (0..runs).map(|_| (value(), value())).collect();
            let ratio = Estimate::ratio(&pairs);
            let [low, high] = ratio.interval.expect("enough runs");
            assert!(low <= ratio.value && ratio.value <= high, "{ratio:?}");
            high - low
        };
        let (quiet, noisy, many) = (width(15, 2.0), width(15, 40.0), width(1500, 40.0));
        assert!(quiet < noisy / 5.0 && many < noisy / 3.0, "{quiet} {noisy} {many}");
    }

    #[test]
    fn medians_are_the_same_however_they_are_found() {
        let mut random = fastrand::Rng::with_seed(4);
        for count in 1..60 {
            let mut values: Vec<f64> = (0..count).map(|_| f64::from(random.u8(..20))).collect();
            assert_eq!(median(&values), median_in_place(&mut values), "{values:?}");
        }
    }

    #[test]
    fn intervals_that_hold_together_are_wider() {
        let mut random = fastrand::Rng::with_seed(3);
        for _ in 0..5 {
            let pairs: Vec<_> = (0..51).map(|_| (80.0 + 40.0 * random.f64(), 80.0 + 40.0 * random.f64())).collect();
            let [low, high] = Estimate::ratio(&pairs).interval.expect("enough runs");
            let [lower, higher] = Estimate::ratio_among(&pairs, 5).interval.expect("enough runs");
            assert!(lower < low && high < higher, "{lower} {low} {high} {higher}");
        }
    }

    /// Most 95 % intervals around the known ratio must contain it. A wrong quantile or a forgotten pair shows here.
    #[test]
    fn the_interval_holds_the_true_value_about_as_often_as_it_says() {
        let mut random = fastrand::Rng::with_seed(2);
        let trials = 200;
        let held = (0..trials)
            .filter(|_| {
                let pairs: Vec<_> =
                    (0..25).map(|_| (40.0 + 20.0 * random.f64(), 80.0 + 40.0 * random.f64())).collect();
                let [low, high] = Estimate::ratio(&pairs).interval.expect("enough runs");
                low <= 0.5 && 0.5 <= high
            })
            .count();
        assert!((trials * 88 / 100..trials).contains(&held), "{held} of {trials}");
    }
}
