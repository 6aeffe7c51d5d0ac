//! The search for a shorter program that still fails.

use anyhow::Result;

/// Leaves out parts of a program for as long as it fails: first halves, in the end single parts. Each part that is left
/// is then needed. `without` are the parts that are left out already, and `found` is what the program finds without
/// them. `fails` runs the program without the given parts, and returns what it finds. Returns the parts that can be
/// left out, and what the shorter program finds.
pub fn fewest<P: Copy + PartialEq, F>(
    parts: &[P],
    mut without: Vec<P>,
    mut found: F,
    mut fails: impl FnMut(&[P]) -> Result<Option<F>>,
) -> Result<(Vec<P>, F)> {
    let mut size = (parts.len() / 2).max(1);
    while size > 0 {
        let left: Vec<P> = parts.iter().copied().filter(|part| !without.contains(part)).collect();
        let mut shorter = false;
        for chunk in left.chunks(size) {
            let attempt = [&without[..], chunk].concat();
            if let Some(now) = fails(&attempt)? {
                (without, found, shorter) = (attempt, now, true);
            }
        }
        if !shorter || size > 1 {
            size /= 2;
        }
    }
    Ok((without, found))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_is_what_fails_together() {
        let needed = [3, 4, 17];
        let parts: Vec<u32> = (0..20).collect();
        let mut runs = 0;
        let fails = |without: &[u32]| {
            runs += 1;
            Ok(needed.iter().all(|part| !without.contains(part)).then_some(without.len()))
        };
        let (mut without, found) = fewest(&parts, vec![9], 1, fails).expect("no error");
        assert_eq!(found, 17);
        without.sort_unstable();
        assert_eq!(without, Vec::from_iter(parts.iter().copied().filter(|part| !needed.contains(part))));
        assert!(runs < 60, "{runs} runs");
    }

    #[test]
    fn a_program_that_needs_all_its_parts_stays() {
        let stays = fewest(&[1, 2, 3], vec![], "it", |_| Ok(None)).expect("no error");
        assert_eq!(stays, (vec![], "it"));
    }
}
