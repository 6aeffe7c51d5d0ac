//! Maps a value to its place on an axis.

/// The scale of an axis.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Scale {
    kind: Kind,
    low: f64,
    high: f64,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Kind {
    Linear,
    Logarithmic,
    /// 90, 99, 99.9 ... at equal distances.
    Percentile,
}

/// Tick marks by which values are read.
pub trait Ticks {
    /// Returns values, the least first.
    fn ticks(&self) -> Vec<f64>;
}

impl Scale {
    /// Makes a scale from zero, or a logarithmic one if the values are far apart.
    pub fn values(values: impl Iterator<Item = f64>) -> Self {
        let (low, high) = values.fold((f64::MAX, 0.0_f64), |(low, high), value| (low.min(value), high.max(value)));
        if low > 0.0 && high / low > 10.0 {
            let (below, above) = (below(low), above(high));
            return Scale { kind: Kind::Logarithmic, low: below, high: above };
        }
        Scale { kind: Kind::Linear, low: 0.0, high: high.max(f64::MIN_POSITIVE) * 1.05 }
    }

    /// Makes a scale for the places at which measurements were made.
    pub fn places(places: impl Iterator<Item = f64>, percentiles: bool) -> Self {
        let (low, high) = places.fold((f64::MAX, 0.0_f64), |(low, high), x| (low.min(x), high.max(x)));
        let kind = match (percentiles, low < high && high > 20.0 * low.max(0.5)) {
            (true, _) => Kind::Percentile,
            (_, true) => Kind::Logarithmic,
            _ => Kind::Linear,
        };
        Scale { kind, low, high }
    }

    /// True if equal distances are equal ratios.
    pub fn is_logarithmic(&self) -> bool {
        self.kind == Kind::Logarithmic
    }

    /// True if `value` is on the axis.
    pub fn holds(&self, value: f64) -> bool {
        (self.low..=self.high).contains(&value)
    }

    /// Returns the position of `value` on the axis, from 0 (lower end) to 1 (upper end).
    pub fn part(&self, value: f64) -> f64 {
        let bend = |value: f64| match self.kind {
            Kind::Linear => value,
            // A logarithmic axis has no 0: the place of 0 is that of 0.5.
            Kind::Logarithmic => value.max(0.5_f64.min(if self.low > 0.0 { self.low } else { 0.5 })).ln(),
            Kind::Percentile => -(100.0 - value).max(1e-3).ln(),
        };
        let (low, high) = (bend(self.low), bend(self.high));
        match high > low {
            true => (bend(value) - low) / (high - low),
            false => 0.5,
        }
    }
}

impl Ticks for Scale {
    fn ticks(&self) -> Vec<f64> {
        let decades = (self.high / self.low).log10();
        if self.kind == Kind::Logarithmic {
            let steps: &[f64] = if decades > 3.0 { &[1.0] } else { &[1.0, 2.0, 5.0] };
            let from = self.low.log10().floor() as i32;
            let all = (from..from + 20).flat_map(|power| steps.iter().map(move |step| step * 10f64.powi(power)));
            return all.filter(|tick| *tick >= self.low * 0.999 && *tick <= self.high * 1.001).collect();
        }
        let rough = self.high / 5.0;
        let decade = 10f64.powf(rough.log10().floor());
        let step = [1.0, 2.0, 5.0, 10.0].map(|step| step * decade).into_iter().find(|step| *step >= rough);
        let step = step.unwrap_or(rough);
        (0..).map(|number| f64::from(number) * step).take_while(|tick| *tick <= self.high).collect()
    }
}

/// Returns the next of 1, 2, 5, 10 ... at or below.
fn below(value: f64) -> f64 {
    let decade = 10f64.powf(value.log10().floor());
    [5.0, 2.0, 1.0].map(|step| step * decade).into_iter().find(|tick| *tick <= value).unwrap_or(decade)
}

/// Returns the next of 1, 2, 5, 10 ... at or above.
fn above(value: f64) -> f64 {
    let decade = 10f64.powf(value.log10().floor());
    [1.0, 2.0, 5.0, 10.0].map(|step| step * decade).into_iter().find(|tick| *tick >= value).unwrap_or(decade * 10.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_are_at_the_ends_and_ticks_between_them() {
        for values in [vec![3.0, 7.0], vec![12.0, 340.0, 9_000.0], vec![0.0, 4.0], vec![5.0]] {
            let scale = Scale::values(values.iter().copied());
            let ticks = scale.ticks();
            assert!(ticks.len() >= 3 && ticks.len() <= 12, "{values:?}: {ticks:?}");
            for value in values.iter().chain(&ticks) {
                assert!((-0.001..=1.001).contains(&scale.part(*value)), "{value} of {values:?} {scale:?}");
            }
            assert!(ticks.windows(2).all(|pair| scale.part(pair[0]) < scale.part(pair[1])));
        }
    }

    #[test]
    fn places_keep_their_order_with_zero_and_as_percentiles() {
        for (places, percentiles) in [(vec![0.0, 1_000.0, 10_000.0], false), (vec![1.0, 50.0, 99.0, 99.99], true)] {
            let scale = Scale::places(places.iter().copied(), percentiles);
            let parts: Vec<f64> = places.iter().map(|place| scale.part(*place)).collect();
            assert!(parts[0] == 0.0 && parts[parts.len() - 1] == 1.0, "{parts:?}");
            assert!(parts.windows(2).all(|pair| pair[0] + 0.05 < pair[1]), "{parts:?}");
        }
    }
}
