//! The random choices of a generator, all from one source with a seed.

use fastrand::Rng;

/// A generator that chooses at random. The same seed leads to the same choices in each build: what a method takes from
/// the source never changes.
pub trait Choices {
    /// Returns the source.
    fn random(&mut self) -> &mut Rng;

    /// Returns true with the probability `part / of`.
    fn chance(&mut self, part: u32, of: u32) -> bool {
        self.random().u32(0..of) < part
    }

    /// Returns one of these.
    fn choose<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.random().usize(0..from.len())]
    }

    /// Returns a number below `limit`, or 0.
    fn below(&mut self, limit: u32) -> u32 {
        self.random().u32(0..limit.max(1))
    }
}

impl Choices for Rng {
    fn random(&mut self) -> &mut Rng {
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_stands_for_the_same_choices_in_each_build() {
        let mut random = Rng::with_seed(7);
        let numbers: Vec<u32> = (0..8).map(|_| random.below(100)).collect();
        let letters: String = (0..8).map(|_| random.choose(&['a', 'b', 'c'])).collect();
        let chances: Vec<bool> = (0..4).map(|_| random.chance(1, 2)).collect();
        assert_eq!(numbers, [43, 26, 40, 65, 97, 22, 1, 55]);
        assert_eq!((letters.as_str(), chances), ("abbaccbb", vec![true; 4]));
        assert_eq!(random.below(0), 0);
    }
}
