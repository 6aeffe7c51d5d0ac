//! The registers of a trapped call, and the way to the trampoline.
//!
//! The way is [`anyring_serve::crossing`].

use super::crossing::trampoline;
use super::fast;
use crate::hot;
use crate::trap::{begin, serve};
use crate::world::Block;
use anyring_engine::stats;
use anyring_serve::crossing::PATCHED;
use anyring_serve::entry;
use anyring_serve::patch::ahead;
use core::sync::atomic::Ordering;
use libc::ucontext_t;

pub use anyring_serve::crossing::Registers;

/// The registers with which a new thread begins.
pub type Begin = Registers;

/// Returns the guest's stack pointer.
pub fn stack_pointer(context: &ucontext_t) -> usize {
    context.uc_mcontext.gregs[libc::REG_RSP as usize] as usize
}

/// Ends the trapped call with this answer.
pub fn set_answer(context: &mut ucontext_t, answer: isize) {
    context.uc_mcontext.gregs[libc::REG_RAX as usize] = answer as i64;
}

/// Returns the intended number of a call that trapped under another number.
pub fn number_meant(context: &ucontext_t) -> Option<i32> {
    ahead::number_in(context.uc_mcontext.gregs[libc::REG_RAX as usize] as u64)
}

/// Makes the thread, which has trapped, continue in [`trampoline`], on the stack of `level` that ends at `top`. The
/// numbers are the trapped one and the intended one.
///
/// # Safety
/// The stack is mapped and this thread's alone, and `top` is aligned to a page.
pub unsafe fn cross(
    block: &Block,
    level: usize,
    top: usize,
    (number, meant): (i32, Option<i32>),
    context: &mut ucontext_t,
    is_alternate: bool,
) {
    let mut registers = Registers::of(context, meant.unwrap_or(number));
    block.levels[level].flags.store(registers.flags, Ordering::Relaxed);
    registers.stack = core::ptr::from_ref(&block.levels[level]) as u64;
    registers.block = core::ptr::from_ref(block) as u64;
    registers.patch = u64::from(meant.is_none() && hot::is_due(i64::from(number), registers.rip as usize));
    // SAFETY: the caller vouches for it.
    unsafe { registers.cross(context, top, is_alternate, trampoline) };
}

/// Makes the trapped call, in the host's world, and stores its answer for the guest's rax.
///
/// # Safety
/// Called by the trampoline with the registers at the top of its own stack.
pub unsafe extern "C" fn emulate(registers: *mut Registers) {
    // SAFETY: the caller vouches for it.
    let registers = unsafe { &mut *registers };
    // SAFETY: blocks are never freed.
    let block = unsafe { &*(registers.block as *const Block) };
    begin(block);
    registers.begin();
    if registers.patch != PATCHED {
        by_trap(block, registers);
    }
    let answer = serve(block, registers);
    // SAFETY: the trampoline's.
    unsafe { registers.end(answer as u64) };
}

/// Does the extra work for a call that came by a trap.
fn by_trap(block: &Block, registers: &Registers) {
    stats::stats().traps.fetch_add(1, Ordering::Relaxed);
    if registers.stack == core::ptr::from_ref(&block.levels[0]) as u64 {
        fast::record(block, registers);
    }
    if registers.patch != 0 {
        entry::aside(|| hot::apply(registers.rip as usize, registers.rax as u32));
    }
}

/// Prepares the registers with which `child` begins: those of its parent, with this stack pointer and thread pointer.
/// False if there is no memory.
///
/// # Safety
/// The block was just claimed for the child, so that nothing else touches it.
pub unsafe fn prepare_child(child: &Block, registers: &Registers, stack: Option<usize>, pointer: usize) -> bool {
    let level = &child.levels[0];
    level.flags.store(registers.flags, Ordering::Relaxed);
    let rsp = stack.map_or(registers.rsp, |stack| stack as u64);
    let (fs, stack) = (pointer as u64, core::ptr::from_ref(level) as u64);
    // SAFETY: the caller vouches for it.
    unsafe { child.begin.get().write(Registers { rax: 0, rsp, fs, stack, context: 0, ..*registers }) };
    true
}
