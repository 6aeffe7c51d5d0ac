//! Which door and which flag set a case gets where each case runs once: the cases are spread over them by their names, so
//! that all are met and a new case moves no other.

use crate::case::{Case, Context, FLAG_SETS};
use crate::door::Door;

/// The doors of a program: without `syscall` instructions of its own it has no raw one.
fn doors(has_instructions: bool) -> &'static [Door] {
    match has_instructions {
        true => &[Door::Liburing, Door::Libc, Door::Raw],
        false => &[Door::Libc, Door::Liburing],
    }
}

/// The number that a name stands for, the same in each build (FNV-1a).
fn number(name: &str) -> u64 {
    name.bytes().fold(0xcbf2_9ce4_8422_2325, |sum, byte| (sum ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
}

/// What `case` runs with, once, in a program that has `syscall` instructions of its own or has none.
pub fn place(case: &Case, has_instructions: bool) -> Context {
    // The lowest bits of a product know only the lowest bits of what was multiplied.
    let (at, doors) = (number(case.name()) >> 32, doors(has_instructions));
    let door = case.door.unwrap_or(doors[at as usize % doors.len()]);
    let set = if case.any_flags { (at >> 8) as usize % FLAG_SETS.len() } else { 0 };
    Context { door, flag_set: FLAG_SETS[set] }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::case::all;

    #[test]
    fn every_door_meets_every_flag_set() {
        for has_instructions in [true, false] {
            for &door in doors(has_instructions) {
                for &flag_set in FLAG_SETS {
                    let meets = |case: &&Case| place(case, has_instructions) == Context { door, flag_set };
                    let met = all().into_iter().filter(|case| case.any_flags).any(|case| meets(&case));
                    assert!(met, "no case runs with {} through {door:?}", flag_set.name);
                }
            }
        }
    }
}
