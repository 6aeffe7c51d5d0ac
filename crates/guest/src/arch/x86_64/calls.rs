//! The system calls that only x86-64 has, and the places of a guest's code.

use super::fast;
use super::trap::Registers;
use crate::world::Block;
use crate::{exe, threads};
use anyring_serve::sys;
use core::ops::Range;
use core::sync::atomic::Ordering;

/// The range of a guest's code that can be at any address (see `filter.rs`).
pub const WINDOW: Range<usize> = 0x2000_0000_0000..0x2100_0000_0000;
/// The bits of an address's upper half that select the range.
pub const WINDOW_MASK: u32 = 0xffff_ff00;
/// One past the highest address of programs.
pub const TASK_SIZE: usize = 0x7fff_ffff_f000;
/// The machine of ELF files (EM_X86_64), and its name.
pub const MACHINE: (usize, &str) = (62, "x86-64");

/// Calls that are trapped whatever their arguments.
pub const ALWAYS: &[i64] = &[libc::SYS_fork, libc::SYS_vfork, libc::SYS_readlink, libc::SYS_arch_prctl];
/// Calls that are trapped once there is a ring.
pub const WITH_RINGS: &[i64] = &[libc::SYS_poll, libc::SYS_dup2];
/// Calls that are trapped once an epoll set has a level-triggered ring.
pub const WITH_LEVELS: &[i64] = &[libc::SYS_epoll_wait];
/// Calls that are trapped once there is a ring, if the first argument is large enough to include a ring's number.
pub const SELECTS: &[i64] = &[libc::SYS_select, libc::SYS_pselect6];

/// The code of a function that makes a system call with two arguments, followed by zeroes.
/// mov %rdi,%rax; mov %rsi,%rdi; mov %rdx,%rsi; xor %edx,%edx; xor %r10d,%r10d; xor %r8d,%r8d; syscall; ret
pub static PROBE: [u8; 20] = [
    0x48, 0x89, 0xf8, 0x48, 0x89, 0xf7, 0x48, 0x89, 0xd6, 0x31, 0xd2, 0x4d, 0x31, 0xd2, 0x45, 0x31, 0xc0, 0x0f,
    0x05, 0xc3,
];

/// Returns the arguments of clone(2) in this order: flags, stack, parent_tid, child_tid, tls.
pub fn clone_arguments(args: [usize; 6]) -> [usize; 6] {
    args
}

/// Serves the calls of [`ALWAYS`]. `None` for any other call.
pub fn serve(block: &Block, registers: &mut Registers, number: i64, args: [usize; 6]) -> Option<isize> {
    const VM_VFORK: usize = (libc::CLONE_VM | libc::CLONE_VFORK) as usize;
    let [a, b, c, ..] = args;
    let by_clone = |flags: usize| [flags | libc::SIGCHLD as usize, 0, 0, 0, 0, 0];
    Some(match number {
        libc::SYS_fork => threads::clone(block, registers, by_clone(0)),
        libc::SYS_vfork => threads::clone(block, registers, by_clone(VM_VFORK)),
        libc::SYS_readlink => exe::read_link(libc::AT_FDCWD as usize, a, b, c),
        libc::SYS_arch_prctl => arch_prctl(block, registers, args),
        _ => return None,
    })
}

/// Serves arch_prctl(2) for the guest's thread pointer. During the call the host's is in force, and islands find a thread by
/// the guest's.
fn arch_prctl(block: &Block, registers: &mut Registers, args: [usize; 6]) -> isize {
    const ARCH_SET_FS: usize = 0x1002;
    const ARCH_GET_FS: usize = 0x1003;
    let [code, value, ..] = args;
    match code {
        ARCH_SET_FS if value >= TASK_SIZE => -(libc::EPERM as isize),
        ARCH_SET_FS => {
            fast::forget(value);
            registers.fs = value as u64;
            block.guest_tp.store(value, Ordering::Relaxed);
            fast::depart(block, value);
            0
        }
        ARCH_GET_FS => match sys::write_program(value as *mut u64, registers.fs) {
            true => 0,
            false => -(libc::EFAULT as isize),
        },
        // SAFETY: the guest's own call.
        _ => unsafe { sys::call(libc::SYS_arch_prctl, args) },
    }
}
