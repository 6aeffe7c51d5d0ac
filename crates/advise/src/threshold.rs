//! Finds the size from which on requests need a worker, by bisection.

use serde::Serialize;

/// The size from which on requests need a worker, as far as it was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case", tag = "found")]
pub enum Threshold {
    /// No size that was measured needs a worker.
    Never {
        /// The largest size that was measured.
        up_to_bytes: u32,
    },
    /// All sizes that were measured need a worker.
    Always {
        /// The smallest size that was measured.
        from_bytes: u32,
    },
    /// Requests up to `last_bytes` need no worker. From `first_bytes`, the next possible size, on they need one.
    At {
        /// The largest size that needs no worker.
        last_bytes: u32,
        /// The smallest size that needs a worker.
        first_bytes: u32,
        /// True if both sizes gave the same result each time that they were tried again.
        sharp: bool,
    },
    /// There is no threshold: smaller sizes need a worker, and larger ones do not.
    None,
}

impl Threshold {
    /// The two sizes between which the threshold lies.
    pub fn sides(&self) -> impl Iterator<Item = u32> {
        let sides = match self {
            Threshold::At { last_bytes, first_bytes, .. } => vec![*last_bytes, *first_bytes],
            _ => Vec::new(),
        };
        sides.into_iter()
    }
}

/// The number of times that each side is tried again.
const AGAIN: u32 = 3;

/// Finds the threshold between two of the `measured` sizes, to a multiple of `step`. `measured` has at least one size,
/// ascending; its flag says that the size needs a worker. `probe` measures one more size.
pub fn find<E>(
    measured: &[(u32, bool)],
    step: u32,
    mut probe: impl FnMut(u32) -> Result<bool, E>,
) -> Result<Threshold, E> {
    let Some(first) = measured.iter().position(|(_, worker)| *worker) else {
        return Ok(Threshold::Never { up_to_bytes: measured.last().map_or(0, |(bytes, _)| *bytes) });
    };
    if measured[first..].iter().any(|(_, worker)| !worker) {
        return Ok(Threshold::None);
    }
    if first == 0 {
        return Ok(Threshold::Always { from_bytes: measured[0].0 });
    }
    let (mut without, mut with) = (measured[first - 1].0, measured[first].0);
    // The multiples of `step` strictly between the two.
    while let middle @ 1.. = middle(without, with, step) {
        match probe(middle)? {
            true => with = middle,
            false => without = middle,
        }
    }
    let mut sharp = true;
    for _ in 0..AGAIN {
        sharp &= !probe(without)? && probe(with)?;
    }
    Ok(Threshold::At { last_bytes: without, first_bytes: with, sharp })
}

/// A multiple of `step` near the middle between the two, or 0 when there is none between them.
fn middle(low: u32, high: u32, step: u32) -> u32 {
    let first = low / step + 1;
    let last = high.div_ceil(step) - 1;
    match first <= last {
        true => (first + (last - first) / 2) * step,
        false => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;
    use std::convert::Infallible;

    fn search(measured: &[u32], step: u32, last: u32) -> (Threshold, Vec<u32>) {
        let probed = RefCell::new(Vec::new());
        let needs = |bytes: u32| bytes > last;
        let measured: Vec<_> = measured.iter().map(|bytes| (*bytes, needs(*bytes))).collect();
        let found = find(&measured, step, |bytes| {
            probed.borrow_mut().push(bytes);
            Ok::<_, Infallible>(needs(bytes))
        });
        let Ok(found) = found;
        (found, probed.into_inner())
    }

    #[test]
    fn the_cut_is_found_to_the_block() {
        let sizes = [512, 4096, 65536, 1 << 20];
        for last in [4096, 4608, 5000, 262_144, 300_000, (1 << 20) - 1] {
            let (found, probed) = search(&sizes, 512, last);
            let last_bytes = last / 512 * 512;
            assert_eq!(found, Threshold::At { last_bytes, first_bytes: last_bytes + 512, sharp: true });
            assert!(probed.iter().all(|bytes| bytes.is_multiple_of(512)) && probed.len() <= 11 + 6, "{probed:?}");
        }
    }

    #[test]
    fn sizes_between_blocks_bound_it_too() {
        // 1000 and 1500 were asked for; 1024 is the only block between them.
        assert_eq!(
            search(&[1000, 1500], 512, 1000).0,
            Threshold::At { last_bytes: 1000, first_bytes: 1024, sharp: true }
        );
        assert_eq!(
            search(&[1000, 1500], 512, 1100).0,
            Threshold::At { last_bytes: 1024, first_bytes: 1500, sharp: true }
        );
        assert_eq!(
            search(&[1000, 1010], 512, 1000).0,
            Threshold::At { last_bytes: 1000, first_bytes: 1010, sharp: true }
        );
    }

    #[test]
    fn nothing_is_searched_without_two_sides() {
        assert_eq!(search(&[512, 4096], 512, 1 << 30), (Threshold::Never { up_to_bytes: 4096 }, vec![]));
        assert_eq!(search(&[512, 4096], 512, 0), (Threshold::Always { from_bytes: 512 }, vec![]));
        let odd = find(&[(512, true), (4096, false)], 512, |_| -> Result<bool, Infallible> { panic!("a probe") });
        assert_eq!(odd, Ok(Threshold::None));
    }

    #[test]
    fn a_cut_that_moves_is_not_sharp_and_a_failing_probe_ends_the_search() {
        let mut calls = 0;
        let found = find(&[(512, false), (2048, true)], 512, |bytes| {
            calls += 1;
            Ok::<_, Infallible>(bytes > 1024 && calls < 4)
        });
        assert!(matches!(found, Ok(Threshold::At { sharp: false, .. })), "{found:?}");
        assert_eq!(find(&[(512, false), (2048, true)], 512, |_| Err("gone")), Err("gone"));
    }
}
