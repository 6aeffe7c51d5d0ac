//! Instructions that are replaced before they run: where a filter kills for io_uring's calls, since no trap is left there.
//!
//! The kernel takes the strictest answer of all filters, so that a call for which another filter kills never gets to ours. What
//! makes such a call, or may, becomes a jump as in `patch.rs`, and [`super::patch::patched`] goes on as always. Where it needs a
//! trap, for a thread's first call among others, the `syscall` makes another call, for which our filter traps there and nobody
//! kills: rt_sigprocmask(2). Which one was meant is in the upper half of rax, which the kernel does not look at ([`trapping`]).
//!
//! `anyring run` has a program refused that cannot be served so ([`REFUSES`]); else the log says it.

use super::island;
use super::object::Object;
use super::patch::{self, When};
use super::scan::{self, OfRings};
use crate::environment::variable;
use crate::signals::action::set_mask;
use crate::{probe, sys};
use anyring_abi::{NR_IO_URING_ENTER, NR_IO_URING_REGISTER, NR_IO_URING_SETUP};
use anyring_engine::{log, stats};
use anyring_serve::environment::REFUSES;
use core::sync::atomic::{AtomicU32, Ordering};

/// In the upper half of rax, above a number of io_uring's.
const MEANT: u64 = 0x616e << 48;

/// What rax is for a call of `number` that traps as another.
pub fn trapping(number: u32) -> u64 {
    MEANT | u64::from(number) << 32 | libc::SYS_rt_sigprocmask as u64
}

/// The number that is meant, if rax is a [`trapping`].
pub fn number_in(rax: u64) -> Option<i32> {
    let number = (rax >> 32) as u16;
    (rax == trapping(u32::from(number))).then_some(i32::from(number))
}

/// Whether a filter kills for io_uring's calls. Asked once, with the first instruction that may make one.
pub fn is_needed() -> bool {
    const UNKNOWN: u32 = 0;
    const NO: u32 = 1;
    const YES: u32 = 2;
    // Relaxed: whoever asks gets the same answer.
    static KILLS: AtomicU32 = AtomicU32::new(UNKNOWN);
    if KILLS.load(Ordering::Relaxed) == UNKNOWN {
        KILLS.store(if probe::ring_calls_kill() { YES } else { NO }, Ordering::Relaxed);
    }
    KILLS.load(Ordering::Relaxed) == YES
}

/// Replaces what may make a call on rings in these objects. Without `traps` nothing can be. `may_refuse` before the program begins.
pub fn replace(objects: &[Object], traps: bool, may_refuse: bool) {
    let faults_are_told = traps && island::guard_faults(); // before the mask changes, which a guard looks at
    for object in objects {
        let start = object.code.start;
        let offsets = object.sites.iter().map(|site| site - start);
        // SAFETY: the object is mapped readable while it is looked through.
        let code = unsafe { core::slice::from_raw_parts(start as *const u8, object.code.len()) };
        let Ok(of_rings) = scan::of_rings(code, offsets) else {
            return refuse(start, "there is no memory", may_refuse);
        };
        for OfRings { offset, is_likely } in of_rings {
            let mask = set_mask(u64::MAX);
            let replaced = replace_one(object, start + offset, traps, faults_are_told);
            set_mask(mask);
            match replaced {
                Ok(()) => {
                    stats::stats().patches.fetch_add(1, Ordering::Relaxed);
                }
                Err(why) => refuse(start + offset, why, may_refuse && is_likely),
            }
        }
    }
}

fn replace_one(object: &Object, site: usize, traps: bool, faults_are_told: bool) -> Result<(), &'static str> {
    // All, whichever it loads itself: branches may bring others.
    const NUMBERS: [u32; 3] = [NR_IO_URING_SETUP as u32, NR_IO_URING_ENTER as u32, NR_IO_URING_REGISTER as u32];
    if !traps || !patch::is_possible() {
        return Err("nothing may be replaced here");
    }
    patch::patch(object, site, &NUMBERS, When::Ahead, faults_are_told)
}

/// Says that a call by this instruction ends the program: in the log, or where `anyring run` has asked for it, instead of its
/// beginning.
fn refuse(site: usize, why: &str, may_refuse: bool) {
    const CANNOT_SERVE: usize = 125;
    let text = format!("its system call at {site:#x} cannot be replaced: {why}");
    log::line(&format!("a seccomp filter kills for io_uring's calls, and the program has some of its own; {text}"));
    let this = sys::process_id();
    if !may_refuse || variable(REFUSES).is_none_or(|process| process.parse() != Ok(this)) {
        return;
    }
    let line =
        format!("anyring: cannot serve io_uring: a seccomp filter kills for the program's own calls; {text}\n");
    // SAFETY: the kernel reads the line; nothing of the program's has run, whose process this is to be.
    unsafe {
        sys::call(libc::SYS_write, [2, line.as_ptr() as usize, line.len(), 0, 0, 0]);
        sys::call(libc::SYS_exit_group, [CANNOT_SERVE, 0, 0, 0, 0, 0]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_trap_of_another_call_means_is_told() {
        for number in 425..428 {
            assert_eq!(number_in(trapping(number)), Some(number as i32));
            assert_eq!(trapping(number) as u32, libc::SYS_rt_sigprocmask as u32);
        }
        for other in [14, 426, 426 << 32 | 14, u64::MAX] {
            assert_eq!(number_in(other), None);
        }
    }
}
