//! The way from the SIGSYS of a trapped instruction to the emulated call and back, by [`anyring_serve::crossing`], on the
//! stacks of [`super::stack`].
//!
//! A patched call comes from [`super::patch`] instead, and ends there ([`emulate_jumped`]).
//!
//! The copy of the trap's frame also serves unwinders and debuggers. They take [`trampoline`] for the code after a
//! signal handler (`mov x8, 139; svc 0`), with the frame at its stack pointer.

use super::filter::MARK;
use super::hot;
use super::scan;
use super::stack::{self, Slot};
use crate::signals::action;
use crate::{dispatch, entry, sys};
use anyring_engine::forced::{point, Point};
use anyring_engine::ring::broken::contain_any;
use anyring_engine::stats;
use anyring_serve::crossing::{self, Frame, Jumped};
use anyring_serve::patch::island;
use anyring_serve::signals::trap::trapped_call;
use core::arch::naked_asm;
use core::mem::size_of;
use libc::{siginfo_t, ucontext_t};

/// Bytes of the alternate signal stack that an emulated call may need. A call runs there only if there is no memory for
/// a stack of its own. If there is less room, the call fails with ENOMEM.
const ROOM: usize = 64 << 10;

/// A trapped call, at the top of the stack on which it is made.
#[repr(C, align(16))]
struct Trapped {
    frame: Frame,
    number: i32,
    /// True if the instruction must be patched before the call is made.
    is_due: bool,
    slot: &'static Slot,
}

/// The place where a thread continues after the call: see [`leave`].
#[repr(C)]
struct Onward {
    frame: usize,
    slot: &'static Slot,
}

/// Nothing is to be prepared: the kernel saves the registers.
pub fn prepare() {}

/// The guard on SIGSYS. True if the trap came from one of the library's filters.
///
/// # Safety
/// As [`crate::signals::Guard`].
pub unsafe fn guard(context: &mut ucontext_t, info: &siginfo_t) -> bool {
    let Some(number) = trapped_call(info, MARK) else { return false };
    // An island's own call may be another one for the kernel.
    let meant = island::set_back(context).map(|number| number as i32);
    let is_on_island = meant.is_some();
    let number = meant.unwrap_or(number);
    let this = core::ptr::from_mut(context) as usize;
    let trapped_at = context.uc_mcontext.sp as usize;
    // Without a stack, or if taking one panics, the call is made here, if there is room.
    let slot = contain_any(|| stack::allocate(trapped_at, 0, &mut context.uc_stack)).flatten();
    let Some(slot) = slot else {
        let is_small = stack::room_on(&context.uc_stack, this).is_some_and(|room| room < ROOM);
        let answer = match scan::is_ours(u64::from(number as u32)) && is_small {
            true => -(libc::ENOMEM as isize),
            false => {
                action::set_mask(*crossing::mask_of(context));
                call_by_trap(number, context)
            }
        };
        keep_alternate(context, number, answer);
        crossing::complete(context, answer, true);
        return true;
    };
    let is_due = !is_on_island && hot::is_due(number, context.uc_mcontext.pc as usize);
    cross(context, number, is_due, slot);
    true
}

/// Makes the signal return into [`trampoline`], on the stack of `slot`.
fn cross(context: &mut ucontext_t, number: i32, is_due: bool, slot: &'static Slot) {
    let is_alternate = slot.mark_disabled(context.uc_mcontext.sp as usize, &context.uc_stack);
    let at = (slot.top() - size_of::<Trapped>()) as *mut Trapped;
    // SAFETY: the stack is mapped, was just taken by this thread, and its top is aligned to a page. The context is that
    // of the handler.
    let copy = unsafe {
        let frame = Frame::copied(context, at as usize, is_alternate);
        let copy = frame.copy();
        at.write(Trapped { frame, number, is_due, slot });
        copy
    };
    context.uc_mcontext.regs[0] = at as u64;
    context.uc_mcontext.sp = copy as u64;
    context.uc_mcontext.pc = trampoline as *const () as u64;
}

/// The code at which a trapped thread continues, with the address of a [`Trapped`] in x0. It has no table for
/// unwinders, which know it by the two instructions after the call.
#[unsafe(naked)]
unsafe extern "C" fn trampoline() {
    naked_asm!("bl {leave}", "mov x8, 139", "svc 0", "brk 0", leave = sym leave)
}
const _: () = assert!(libc::SYS_rt_sigreturn == 139);

/// Makes the trapped call, leaves the stack, and returns to rt_sigreturn(2) with the stack pointer at the signal's frame.
#[unsafe(naked)]
unsafe extern "C" fn leave() {
    naked_asm!(
        ".cfi_startproc",
        "stp x29, x30, [sp, -16]!",
        ".cfi_def_cfa_offset 16",
        ".cfi_offset x29, -16",
        ".cfi_offset x30, -8",
        "mov x29, sp",
        "bl {emulate}",
        "ldr x30, [sp, 8]",
        "mov sp, x0",
        // The thread has left the stack, so it may be given back. The alternate signal stack is the kernel's
        // again with rt_sigreturn(2). Until then all signals are blocked.
        "str xzr, [x1, {alternate_size}]",
        "add x1, x1, {owner}",
        "stlr xzr, [x1]", // Release: pairs with the Acquire in `stack::claim`
        "ret",
        ".cfi_endproc",
        alternate_size = const stack::ALTERNATE_SIZE,
        owner = const stack::OWNER,
        emulate = sym emulate,
    )
}

/// Makes the trapped call, outside the handler.
unsafe extern "C" fn emulate(trapped: *mut Trapped) -> Onward {
    // SAFETY: the trampoline passes what `cross` has written.
    let Trapped { frame, number, is_due, slot } = unsafe { &mut *trapped };
    frame.begin();
    if *is_due {
        entry::aside(|| hot::apply(frame.context().uc_mcontext.pc as usize, *number as u32));
    }
    let answer = call_by_trap(*number, frame.context());
    keep_alternate(frame.context_mut(), *number, answer);
    frame.end(answer);
    Onward { frame: frame.home(), slot }
}

/// Makes a call that came by a jump, and returns its answer.
pub unsafe extern "C" fn emulate_jumped(jumped: *mut Jumped) -> isize {
    // SAFETY: `patched` passes what it has written at the top of its own stack.
    let jumped = unsafe { &*jumped };
    call(jumped.number as i64, jumped.args())
}

/// Makes a trapped call with the arguments in the context.
fn call_by_trap(number: i32, context: &ucontext_t) -> isize {
    stats::stats().traps.fetch_add(1, core::sync::atomic::Ordering::Relaxed);
    call(i64::from(number), crossing::args(context))
}

/// Makes the call, and leaves errno as it is.
fn call(number: i64, args: [usize; 6]) -> isize {
    let errno = sys::errno();
    let answer = entry::answer_any(|| {
        point(Point::Trap);
        dispatch::call(number, args)
    });
    sys::set_errno(errno);
    answer
}

/// Keeps the alternate signal stack that the call has set, for rt_sigreturn(2), which sets that of the context.
fn keep_alternate(context: &mut ucontext_t, number: i32, answer: isize) {
    if i64::from(number) == libc::SYS_sigaltstack && answer == 0 && context.uc_mcontext.regs[0] != 0 {
        // SAFETY: the kernel has just read it.
        context.uc_stack = unsafe { *(context.uc_mcontext.regs[0] as *const libc::stack_t) };
    }
}
