//! Instructions that are replaced before they run: where a filter kills for io_uring's calls, since no trap is left there.
//!
//! The kernel takes the strictest answer of all filters, so that a call for which another filter kills never gets to ours. What
//! makes such a call, or may, becomes a jump to an island. Where that needs a trap, for a thread's first call among others, the
//! `syscall` makes another call, for which our filter traps there and nobody kills: rt_sigprocmask(2). Which one was meant is in
//! the upper half of rax, which the kernel does not look at ([`trapping`]).
//!
//! `anyring run` has a program refused that cannot be served so ([`REFUSES`]); else the log says it.

use crate::environment::{variable, REFUSES};
use crate::{probe, sys};
use anyring_abi::{NR_IO_URING_ENTER, NR_IO_URING_REGISTER, NR_IO_URING_SETUP};
use anyring_engine::log;
use core::sync::atomic::{AtomicU32, Ordering};

/// The numbers of the calls: each instruction is replaced for all of them, since branches may bring others than it loads itself.
pub const NUMBERS: [u32; 3] = [NR_IO_URING_SETUP as u32, NR_IO_URING_ENTER as u32, NR_IO_URING_REGISTER as u32];

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

/// The instruction at `site` cannot be replaced, so that a call by it ends the program: the log says it. True where `anyring run`
/// has asked that the program, which has not begun, be refused instead.
pub fn is_refused(site: usize, why: &str) -> bool {
    log::line(&format!("{}", Refusal { site, why }));
    variable(REFUSES).is_some_and(|process| process.parse() == Ok(sys::process_id()))
}

/// Why a program is not served.
pub struct Refusal<'a> {
    /// The address of an instruction.
    pub site: usize,
    /// Why that cannot be replaced.
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
    fn what_a_trap_of_another_call_means_is_told() {
        for number in NUMBERS {
            assert_eq!(number_in(trapping(number)), Some(number as i32));
            assert_eq!(trapping(number) as u32, libc::SYS_rt_sigprocmask as u32);
        }
        for other in [14, 426, 426 << 32 | 14, u64::MAX] {
            assert_eq!(number_in(other), None);
        }
    }
}
