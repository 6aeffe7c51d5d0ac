//! Chooses the door and the flag set of a case where each case runs once. The case's name decides. So all doors and
//! sets are used, and a new case changes no other.

use crate::case::{Case, Context, FLAG_SETS};
use crate::door::{Door, IS_STATIC};

/// The doors of a program. A program without `syscall` instructions of its own has no raw door. A static program has no
/// shared library, and so no `liburing` door.
fn doors(has_instructions: bool, is_static: bool) -> &'static [Door] {
    match (has_instructions, is_static) {
        (true, false) => &[Door::Liburing, Door::Libc, Door::Raw],
        (false, false) => &[Door::Libc, Door::Liburing],
        (true, true) => &[Door::Libc, Door::Raw],
        (false, true) => &[Door::Libc],
    }
}

/// The number that a name stands for, the same in each build (FNV-1a).
fn number(name: &str) -> u64 {
    name.bytes().fold(0xcbf2_9ce4_8422_2325, |sum, byte| (sum ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
}

/// Returns the context for `case` in this program. `has_instructions`: the program has `syscall` instructions of its
/// own. `None` if the case needs a library's functions and the program is static.
pub fn place(case: &Case, has_instructions: bool) -> Option<Context> {
    place_among(case, doors(has_instructions, IS_STATIC))
}

fn place_among(case: &Case, doors: &[Door]) -> Option<Context> {
    // The low bits of a product depend only on the low bits of its factors.
    let at = number(case.name()) >> 32;
    let door = case.door.unwrap_or(doors[at as usize % doors.len()]);
    let set = if case.any_flags { (at >> 8) as usize % FLAG_SETS.len() } else { 0 };
    doors.contains(&door).then_some(Context { door, flag_set: FLAG_SETS[set] })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::case::all;

    #[test]
    fn every_door_meets_every_flag_set() {
        for doors in [(true, false), (false, false), (true, true), (false, true)].map(|(has, is)| doors(has, is)) {
            for &door in doors {
                for &flag_set in FLAG_SETS {
                    let meets = |case: &&Case| place_among(case, doors) == Some(Context { door, flag_set });
                    let met = all().into_iter().filter(|case| case.any_flags).any(|case| meets(&case));
                    assert!(met, "no case runs with {} through {door:?}", flag_set.name);
                }
            }
        }
    }
    #[test]
    fn a_static_program_leaves_out_what_is_about_a_shared_library() {
        let cases = all();
        let count = |doors| cases.iter().filter(|case| place_among(case, doors).is_none()).count();
        let about_it = cases.iter().filter(|case| case.door == Some(Door::Liburing)).count();
        assert_eq!((count(doors(true, true)), count(doors(true, false))), (about_it, 0));
        assert_ne!(about_it, 0);
    }
}
