//! clone(2), fork(2) and vfork(2).

use crate::arch::crossing::clone_away;
use crate::arch::trap::{prepare_child, Registers};
use crate::arch::{calls, fast, tls};
use crate::tcb;
use crate::world::{self, Block};
use anyring_engine::driver::mark_memory_shared;
use anyring_engine::process;
use anyring_serve::signals;
use anyring_serve::sys::{self, set_mask};
use core::sync::atomic::Ordering;

const VM: usize = libc::CLONE_VM as usize;
const VFORK: usize = libc::CLONE_VFORK as usize;
const SETTLS: usize = libc::CLONE_SETTLS as usize;
const THREAD: usize = libc::CLONE_THREAD as usize;

/// Serves clone(2), with the arguments as in [`calls::clone_arguments`]. Returns in the parent, and in a child that has its own memory.
pub fn clone(block: &Block, registers: &mut Registers, args: [usize; 6]) -> isize {
    // No signal handler runs before the child has its record.
    let mask = set_mask(u64::MAX);
    let answer = match args[0] & VM {
        0 => copy(block, registers, args),
        _ => share(block, registers, args, mask),
    };
    set_mask(mask);
    answer
}

/// Makes a child with a copy of everything.
fn copy(block: &Block, registers: &mut Registers, args: [usize; 6]) -> isize {
    let [flags, stack, parent_tid, child_tid, tls, _] = args;
    let kernel = calls::clone_arguments([flags & !SETTLS, 0, parent_tid, child_tid, 0, 0]);
    process::forks();
    // SAFETY: the child goes on here, on its copy of this very stack.
    let answer = tcb::fork(|| unsafe { sys::call(libc::SYS_clone, kernel) });
    if answer == 0 {
        block.enter();
        world::renew_after_fork(block);
        process::forked();
        // Records that this process owns its memory. Otherwise the first child in this memory that asks would be taken
        // for the owner, and this process's signals would then really be blocked.
        let _ = signals::in_borrowed_memory();
        if stack != 0 {
            registers.set_stack(stack);
        }
        if flags & SETTLS != 0 {
            registers.set_thread_pointer(tls);
        }
    } else {
        process::has_forked();
    }
    answer
}

/// Makes a child in this memory: a thread, or another process until it executes a program. `mask` is the signal mask
/// of both.
fn share(block: &Block, registers: &Registers, args: [usize; 6], mask: u64) -> isize {
    let [flags, stack, parent_tid, child_tid, tls, _] = args;
    let Some(child) = world::claim() else { return -(libc::EAGAIN as isize) };
    let pointer = if flags & SETTLS != 0 { tls } else { registers.thread_pointer() };
    child.guest_tp.store(pointer, Ordering::Relaxed);
    child.mask.store(mask, Ordering::Relaxed);
    // SAFETY: the block's TCB and thread-local memory are new, or were reset when the block was claimed.
    unsafe { signals::mask::pass_on(child.host_tp.load(Ordering::Relaxed).wrapping_sub(tls::current())) };
    child.identity.store(block.identity.load(Ordering::Relaxed), Ordering::Relaxed);
    child.is_borrowed.store(flags & THREAD == 0, Ordering::Relaxed);
    if flags & THREAD == 0 {
        mark_memory_shared();
    }
    match flags & SETTLS {
        0 => fast::share(child, pointer),
        _ => fast::forget(pointer),
    }
    let stack_of = (stack != 0).then_some(stack);
    // SAFETY: the block was just claimed.
    if !unsafe { prepare_child(child, registers, stack_of, pointer) } {
        child.give_back();
        return -(libc::ENOMEM as isize);
    }
    // SAFETY: all signals are blocked, and the block is the child's.
    let answer = unsafe { clone_away(flags, stack, parent_tid, child_tid, tls, child) };
    if answer < 0 || flags & VFORK != 0 {
        fast::depart(child, usize::MAX);
        child.give_back();
    }
    answer
}
