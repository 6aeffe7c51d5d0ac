//! The answer for one size, which follows from its pairs: requests with IOSQE_ASYNC are faster, slower or equally
//! fast, or this is undecided.

use crate::TURNS;
use anyring_lab::statistics::Estimate;
use serde::Serialize;

/// The smallest difference that counts. A size is *faster* if it takes at most `1 - LEAST_EFFECT` of the time, and
/// *slower* if it takes at least `1 / (1 - LEAST_EFFECT)` of it.
const LEAST_EFFECT: f64 = 0.05;

/// The time with IOSQE_ASYNC, in relation to the time without it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// At least 5 % less time.
    Faster,
    /// At least 5 % more time.
    Slower,
    /// Less than 5 % difference.
    Same,
    /// The turns give different answers.
    TurnsDiffer,
    /// The turns give the same answer, but the interval of all pairs contains 1, or there are too few pairs for an
    /// interval.
    Chance,
}

impl Answer {
    /// Derives the answer from the ratio of all pairs, and from the ratios of each turn alone.
    pub fn of(all: &Estimate, turns: &[f64]) -> Answer {
        let answer = Answer::of_ratio(all.value);
        let agreed = turns.len() == TURNS as usize && turns.iter().all(|turn| Answer::of_ratio(*turn) == answer);
        let holds_one = all.interval.is_none_or(|[low, high]| low <= 1.0 && 1.0 <= high);
        match answer {
            _ if !agreed => Answer::TurnsDiffer,
            Answer::Faster | Answer::Slower if holds_one => Answer::Chance,
            _ => answer,
        }
    }

    fn of_ratio(ratio: f64) -> Answer {
        match ratio {
            ratio if ratio <= 1.0 - LEAST_EFFECT => Answer::Faster,
            ratio if ratio >= 1.0 / (1.0 - LEAST_EFFECT) => Answer::Slower,
            _ => Answer::Same,
        }
    }

    /// True if nothing follows from this size.
    pub fn is_open(self) -> bool {
        matches!(self, Answer::TurnsDiffer | Answer::Chance)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyring_lab::statistics::median;

    /// Three turns of 15 pairs whose first figure is `effect` times the second, with this noise.
    fn answer(random: &mut fastrand::Rng, effects: [f64; 3], noise: f64) -> Answer {
        let turns = effects.map(|effect| {
            let mut value = || 100.0 * (1.0 + noise * (random.f64() - 0.5));
            (0..15).map(|_| (effect * value(), value())).collect::<Vec<_>>()
        });
        let ratios = turns.each_ref().map(|turn| {
            let (with, without): (Vec<f64>, Vec<f64>) = turn.iter().copied().unzip();
            median(&with) / median(&without)
        });
        Answer::of(&Estimate::ratio_among(&turns.concat(), 2), &ratios)
    }

    #[test]
    fn an_effect_of_some_size_is_found_each_time() {
        let mut random = fastrand::Rng::with_seed(1);
        for (effect, expected) in [(0.7, Answer::Faster), (1.5, Answer::Slower), (1.0, Answer::Same)] {
            for _ in 0..5 {
                assert_eq!(answer(&mut random, [effect; 3], 0.1), expected);
            }
        }
    }

    #[test]
    fn less_than_5_percent_is_no_effect_however_sure_it_is() {
        let mut random = fastrand::Rng::with_seed(2);
        for effect in [0.97, 1.03] {
            assert_eq!(answer(&mut random, [effect; 3], 0.001), Answer::Same);
        }
        let sure = Estimate { value: 0.96, interval: Some([0.955, 0.965]) };
        assert_eq!(Answer::of(&sure, &[0.96; 3]), Answer::Same);
    }

    #[test]
    fn two_turns_of_three_are_not_enough() {
        let mut random = fastrand::Rng::with_seed(3);
        assert_eq!(answer(&mut random, [0.7, 0.7, 1.0], 0.1), Answer::TurnsDiffer);
        let sure = Estimate { value: 0.8, interval: Some([0.79, 0.81]) };
        assert_eq!(Answer::of(&sure, &[0.8, 0.8]), Answer::TurnsDiffer, "a turn is missing");
        assert_eq!(Answer::of(&sure, &[0.8, 0.8, 0.8]), Answer::Faster);
    }

    #[test]
    fn a_ratio_that_chance_may_have_made_is_no_answer() {
        let wide = Estimate { value: 0.8, interval: Some([0.6, 1.01]) };
        assert_eq!(Answer::of(&wide, &[0.8; 3]), Answer::Chance);
        assert_eq!(Answer::of(&Estimate { interval: None, ..wide }, &[0.8; 3]), Answer::Chance);
    }

    /// If the two kinds of requests do not differ, there is no answer that another run would contradict, however
    /// much noise there is.
    #[test]
    fn noise_alone_is_never_faster_or_slower() {
        let mut random = fastrand::Rng::with_seed(4);
        for _ in 0..20 {
            let answer = answer(&mut random, [1.0; 3], 1.5);
            assert!(!matches!(answer, Answer::Faster | Answer::Slower), "{answer:?}");
        }
    }
}
