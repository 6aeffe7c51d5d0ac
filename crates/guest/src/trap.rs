//! Serves a trapped instruction: from its SIGSYS to the call, and back.
//!
//! The path is that of [`anyring_serve::crossing`]. Each thread has its own stacks for it, and makes the call in
//! the host's world.

use crate::arch::trap::Registers;
use crate::arch::{self, crossing, patch};
use crate::filter::MARK;
use crate::world::{self, Block, LEVELS};
use crate::{dispatch, tcb};
use anyring_abi::NR_IO_URING_ENTER;
use anyring_engine::os;
use anyring_serve::signals::trap::{range_of, trapped_call};
use anyring_serve::signals::{action, bit, guarded};
use anyring_serve::{door, entry};
use core::sync::atomic::Ordering;
use libc::{siginfo_t, stack_t, ucontext_t};

/// The next step of [`crossing::on_signal`], and its operand.
#[repr(C)]
pub struct Turn {
    what: u64,
    value: u64,
}

impl Turn {
    /// The thread is in the host's world.
    const STAY: u64 = 0;
    /// The thread is in the guest's world: continue at a handler's address.
    pub const JUMP: u64 = 1;
    /// The thread is in the guest's world: change to the host's world, with the thread's block.
    pub const CROSS: u64 = 2;
    /// The signal was a trap, and nothing remains to be done.
    pub const DONE: u64 = 3;
}

/// Returns the next step after a signal, by the world that the signal has interrupted. The thread pointer may be the guest's,
/// so nothing here uses thread-local memory.
///
/// # Safety
/// The arguments are those of a handler, and `pointer` is the thread pointer.
pub unsafe extern "C" fn whose(
    signal: i32,
    info: *const siginfo_t,
    context: *mut ucontext_t,
    pointer: usize,
) -> Turn {
    const HERE: Turn = Turn { what: Turn::STAY, value: 0 };
    // SAFETY: the caller vouches for both.
    let (info, context) = unsafe { (&*info, &mut *context) };
    if crossing::is_host_code(os::arch::instruction(context)) {
        return HERE;
    }
    let Some(block) = world::mine().filter(|block| block.host_tp.load(Ordering::Relaxed) != pointer) else {
        return HERE;
    };
    patch::set_back(context, block);
    let this = core::ptr::from_ref(context) as usize;
    if range_of(&context.uc_stack).contains(&this) {
        // The handler is on its alternate stack.
        avoid(block, &context.uc_stack);
    }
    let trapped = if signal == libc::SIGSYS { trapped_call(info, MARK) } else { None };
    let meant = arch::trap::number_meant(context);
    if let Some(number) = trapped {
        trap(block, number, meant, context);
        return Turn { what: Turn::DONE, value: 0 };
    }
    let handler = action::of_program(signal);
    let is_plain = handler.flags & libc::SA_RESETHAND as u32 as u64 == 0 && guarded() & bit(signal) == 0;
    match is_plain && ![action::SIG_DFL, action::SIG_IGN].contains(&handler.handler) {
        true => Turn { what: Turn::JUMP, value: handler.handler },
        false => Turn { what: Turn::CROSS, value: core::ptr::from_ref(block) as u64 },
    }
}

/// Makes the thread, which has trapped with call `number`, continue in the trampoline. `meant` is the intended number,
/// if the call trapped under another number. If there is no stack for the call, it fails. All signals are blocked.
fn trap(block: &Block, number: i32, meant: Option<i32>, context: &mut ucontext_t) {
    let trapped_at = arch::trap::stack_pointer(context);
    let Some((level, top)) = claim_level(block, trapped_at, &mut context.uc_stack) else {
        return arch::trap::set_answer(context, -(libc::ENOMEM as isize));
    };
    let is_alternate = record_alternate(block, level, trapped_at, &context.uc_stack);
    if level == 0 {
        avoid(block, &context.uc_stack);
    }
    // SAFETY: the stack is mapped, was just taken by this thread, and its top is aligned to a page.
    unsafe { arch::trap::cross(block, level, top, (number, meant), context, is_alternate) };
}

/// Claims a stack for a call that was trapped with the stack pointer at `trapped_at`. Returns the stack's level, and the
/// address after its end. Stacks of calls that a handler has left by a jump are released first. `alternate` is the
/// alternate signal stack as it will be after the call. `None` if there are too many calls, or no memory.
fn claim_level(block: &Block, trapped_at: usize, alternate: &mut stack_t) -> Option<(usize, usize)> {
    for level in (0..LEVELS).filter(|level| block.levels[*level].busy.load(Ordering::Relaxed) != 0) {
        if is_abandoned(block, level, trapped_at, alternate) {
            if let Some(disabled) = disabled_alternate(block, level) {
                *alternate = disabled;
            }
            block.has_jumped.store(true, Ordering::Relaxed);
            block.levels[level].busy.store(0, Ordering::Relaxed);
        }
    }
    let level = block.levels.iter().position(|level| level.busy.load(Ordering::Relaxed) == 0)?;
    let top = block.stack(level)?;
    // For a handler that interrupts this call. By then there may be no memory.
    let _ = block.stack(level + 1);
    block.trapped_at[level].store(trapped_at, Ordering::Relaxed);
    block.levels[level].busy.store(1, Ordering::Relaxed);
    Some((level, top))
}

/// True if the call on this stack cannot be in progress any more beneath a trap of its thread at `now`.
fn is_abandoned(block: &Block, level: usize, now: usize, alternate: &stack_t) -> bool {
    let then = block.trapped_at[level].load(Ordering::Relaxed);
    if block.is_on_stack(now) {
        return false;
    }
    if let Some(disabled) = disabled_alternate(block, level) {
        // A handler that interrupts such a call is on a stack of the host's.
        return !range_of(&disabled).contains(&now) || now >= then;
    }
    let alternate = range_of(alternate);
    alternate.contains(&now) == alternate.contains(&then) && now >= then
}

/// Makes calls on this alternate signal stack use a trap, which disables the stack during the call.
fn avoid(block: &Block, alternate: &stack_t) {
    let range = range_of(alternate);
    block.avoided[0].store(range.start, Ordering::Relaxed);
    block.avoided[1].store(range.len(), Ordering::Relaxed);
}

/// If the thread trapped on its alternate signal stack, records that stack and returns true. The stack must then be
/// disabled during the call: otherwise the kernel would start the next handler at its top.
fn record_alternate(block: &Block, level: usize, trapped_at: usize, alternate: &stack_t) -> bool {
    let [address, size, flags] = &block.alternate[level];
    let is_there = range_of(alternate).contains(&trapped_at);
    address.store(alternate.ss_sp as usize, Ordering::Relaxed);
    flags.store(alternate.ss_flags as usize, Ordering::Relaxed);
    size.store(if is_there { alternate.ss_size } else { 0 }, Ordering::Relaxed);
    is_there
}

fn disabled_alternate(block: &Block, level: usize) -> Option<stack_t> {
    let [address, size, flags] = [0, 1, 2].map(|at: usize| block.alternate[level][at].load(Ordering::Relaxed));
    (size != 0).then_some(stack_t { ss_sp: address as *mut _, ss_flags: flags as i32, ss_size: size })
}

/// Makes the trapped call, in the host's world, and returns its answer.
pub fn serve(block: &Block, registers: &mut Registers) -> isize {
    match registers.number() {
        NR_IO_URING_ENTER => dispatch::enter(registers.args()),
        _ => entry::answer_any(|| dispatch::call(block, registers)),
    }
}

/// Begins a call of the thread of `block`, in the host's world.
pub fn begin(block: &Block) {
    tcb::set_thread(block.tid.load(Ordering::Relaxed));
    if block.has_jumped.load(Ordering::Relaxed) {
        block.has_jumped.store(false, Ordering::Relaxed);
        entry::aside(door::leaving_by_jump);
    }
}
