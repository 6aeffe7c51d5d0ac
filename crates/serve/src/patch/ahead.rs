//! Instructions that are replaced before they run, because a filter kills for io_uring's calls and leaves no trap.
//!
//! The kernel takes the strictest answer of all filters. A call for which another filter kills is therefore never
//! trapped by anyring's filter. So an instruction that makes such a call, or may make it, becomes a jump to an island.
//! Some calls still need a trap, for example a thread's first call. For these the `syscall` makes rt_sigprocmask(2)
//! instead, which anyring's filter traps at that address, and for which no filter kills. The intended number is in
//! the upper half of rax, which the kernel ignores ([`trapping`]).
//!
//! If a program cannot be served in this way, `anyring run` asks for it to be refused ([`REFUSES`]). Without `anyring
//! run`, the log reports it.

use crate::environment::{variable, REFUSES};
use crate::{probe, sys};
use anyring_abi::{NR_IO_URING_ENTER, NR_IO_URING_REGISTER, NR_IO_URING_SETUP};
use anyring_engine::log;
use core::sync::atomic::{AtomicU32, Ordering};

/// The numbers of io_uring's calls. Each instruction is replaced for all of them, since branches may lead to it with
/// other numbers than the code before it loads.
pub const NUMBERS: [u32; 3] = [NR_IO_URING_SETUP as u32, NR_IO_URING_ENTER as u32, NR_IO_URING_REGISTER as u32];

/// The mark in the upper half of rax, above one of io_uring's numbers.
const MEANT: u64 = 0x616e << 48;

/// Returns the value of rax for a call of `number` that traps as another.
pub fn trapping(number: u32) -> u64 {
    MEANT | u64::from(number) << 32 | libc::SYS_rt_sigprocmask as u64
}

/// Returns the intended number, if rax is a value of [`trapping`].
pub fn number_in(rax: u64) -> Option<i32> {
    let number = (rax >> 32) as u16;
    (rax == trapping(u32::from(number))).then_some(i32::from(number))
}

/// True if a filter kills for io_uring's calls. A probe finds this out once, when the first instruction is found
/// that may make such a call.
pub fn is_needed() -> bool {
    const UNKNOWN: u32 = 0;
    const NO: u32 = 1;
    const YES: u32 = 2;
    // Relaxed: every thread that asks gets the same answer.
    static KILLS: AtomicU32 = AtomicU32::new(UNKNOWN);
    if KILLS.load(Ordering::Relaxed) == UNKNOWN {
        KILLS.store(if probe::ring_calls_kill() { YES } else { NO }, Ordering::Relaxed);
    }
    KILLS.load(Ordering::Relaxed) == YES
}

/// Logs that the instruction at `site` cannot be replaced, so that a call by it ends the program. Does not log it but
/// returns true if `anyring run` has asked for the program to be refused, and it has not begun.
pub fn is_refused(site: usize, why: &str) -> bool {
    log::line(&format!("{}", Refusal { site, why }));
    variable(REFUSES).is_some_and(|process| process.parse() == Ok(sys::process_id()))
}

/// The reason why a program is not served.
pub struct Refusal<'a> {
    /// The address of an instruction.
    pub site: usize,
    /// The reason why it cannot be replaced.
    pub why: &'a str,
}

impl core::fmt::Display for Refusal<'_> {
    fn fmt(&self, formatter: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let Self { site, why } = self;
        write!(
            formatter,
            "a seccomp filter kills for the program's own calls of io_uring; its system call at {site:#x} cannot be \
             replaced: {why}"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_meaning_of_a_trap_of_another_call_is_reported() {
        for number in NUMBERS {
            assert_eq!(number_in(trapping(number)), Some(number as i32));
            assert_eq!(trapping(number) as u32, libc::SYS_rt_sigprocmask as u32);
        }
        for other in [14, 426, 426 << 32 | 14, u64::MAX] {
            assert_eq!(number_in(other), None);
        }
    }
}
