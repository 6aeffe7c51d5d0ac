//! The system calls that only this processor has, none, and the places of a guest's code.

use super::trap::Registers;
use crate::world::Block;
use core::ops::Range;

/// The range of a guest's code that can be at any address (see `filter.rs`). It is within the 39 bits of addresses that
/// each kernel has. The kernel places its own mappings from the end of the addresses down, and programs at two thirds.
pub const WINDOW: Range<usize> = 0x20_0000_0000..0x30_0000_0000;
/// The bits of an address's upper half that select the range.
pub const WINDOW_MASK: u32 = 0xffff_fff0;
/// One past the highest address of programs, in kernels whose addresses have 48 bits.
pub const TASK_SIZE: usize = 1 << 48;
/// The machine of ELF files (EM_AARCH64), and its name.
pub const MACHINE: (usize, &str) = (183, "aarch64");

/// Calls that are trapped whatever their arguments.
pub const ALWAYS: &[i64] = &[];
/// Calls that are trapped once there is a ring.
pub const WITH_RINGS: &[i64] = &[];
/// Calls that are trapped once an epoll set has a level-triggered ring.
pub const WITH_LEVELS: &[i64] = &[];
/// Calls that are trapped once there is a ring, if the first argument is large enough to include a ring's number.
pub const SELECTS: &[i64] = &[libc::SYS_pselect6];

/// The code of a function that makes a system call with two arguments, followed by zeroes.
pub static PROBE: [u32; 9] = [
    0xaa00_03e8, // mov x8, x0
    0xaa01_03e0, // mov x0, x1
    0xaa02_03e1, // mov x1, x2
    0xaa1f_03e2, // mov x2, xzr
    0xaa1f_03e3, // mov x3, xzr
    0xaa1f_03e4, // mov x4, xzr
    0xaa1f_03e5, // mov x5, xzr
    0xd400_0001, // svc 0
    0xd65f_03c0, // ret
];

/// Returns the arguments of clone(2) in this order: flags, stack, parent_tid, child_tid, tls. The kernel has the last
/// two in the other order, so the function also gives the kernel's arguments.
pub fn clone_arguments([flags, stack, parent_tid, fourth, fifth, sixth]: [usize; 6]) -> [usize; 6] {
    [flags, stack, parent_tid, fifth, fourth, sixth]
}

/// Returns `None`: there are no such calls.
pub fn serve(_: &Block, _: &mut Registers, _: i64, _: [usize; 6]) -> Option<isize> {
    None
}
