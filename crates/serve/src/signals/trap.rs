//! The SIGSYS with which a seccomp filter reports a call (SECCOMP_RET_TRAP in seccomp(2)), and where it arrives.

use core::mem::size_of;
use core::ops::Range;
use libc::{siginfo_t, stack_t};

/// SYS_SECCOMP: si_code of a trap by a filter.
const SYS_SECCOMP: i32 = 1;

/// The part of siginfo_t that a SIGSYS fills (sigaction(2)).
#[repr(C)]
struct SigsysInfo {
    signal: i32,
    /// SECCOMP_RET_DATA of the filter.
    errno: i32,
    code: i32,
    _padding: i32,
    address: usize,
    number: i32,
    arch: u32,
}
const _: () = assert!(size_of::<SigsysInfo>() <= size_of::<siginfo_t>());

/// Returns the number of the call that trapped, if the signal comes from a filter whose SECCOMP_RET_DATA is `mark`. Any
/// other SIGSYS belongs to the program.
pub fn trapped_call(info: &siginfo_t, mark: u16) -> Option<i32> {
    // SAFETY: for SIGSYS the kernel fills these fields, and a siginfo_t is larger; plain integers otherwise.
    let info = unsafe { &*core::ptr::from_ref(info).cast::<SigsysInfo>() };
    (info.code == SYS_SECCOMP && info.errno == i32::from(mark)).then_some(info.number)
}

/// Returns the addresses of an alternate signal stack, none if it is disabled.
pub fn range_of(alternate: &stack_t) -> Range<usize> {
    let start = alternate.ss_sp as usize;
    match alternate.ss_flags & libc::SS_DISABLE {
        0 => start..start.wrapping_add(alternate.ss_size),
        _ => 0..0,
    }
}
