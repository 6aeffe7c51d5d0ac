//! The way from the SIGSYS of a trapped instruction to the emulated call and back: as in `trap.rs` of x86-64, on the
//! stacks of [`super::stack`].
//!
//! A system call changes x0 only, so no register is free for the way back to the program. The call therefore ends by
//! rt_sigreturn(2) from the trap's own frame. The kernel restores all registers from it, vector registers of any length
//! included.
//!
//! During the call the thread is on one of the engine's stacks, which holds a copy of that frame. At the end the copy
//! goes back to the frame's place, once all signals are blocked. Until then a handler may have used that place, if it is
//! on the program's alternate signal stack.
//!
//! The copy also serves unwinders and debuggers. They take [`trampoline`] for the code after a signal handler
//! (`mov x8, 139; svc 0`), with the frame at its stack pointer.

use super::filter::MARK;
use super::scan;
use super::stack::{self, Slot};
use crate::signals::action;
use crate::{dispatch, entry, sys};
use anyring_engine::forced::{point, Point};
use anyring_engine::os::arch::CONTEXT_IN_FRAME;
use anyring_engine::ring::broken::contain_any;
use anyring_engine::stats;
use anyring_serve::signals::trap::trapped_call;
use core::arch::naked_asm;
use core::mem::size_of;
use libc::{siginfo_t, ucontext_t};

/// Bytes of the alternate signal stack that an emulated call may need. A call runs there only if there is no memory for
/// a stack of its own. If there is less room, the call fails with ENOMEM.
const ROOM: usize = 64 << 10;

/// The most bytes of a signal frame that are copied. With vectors of 2,048 bits a frame has some 90 KiB.
const MOST: usize = 256 << 10;
/// Bytes of a signal frame with all registers but the longest vector ones, which come after it.
const FRAME: usize = CONTEXT_IN_FRAME + size_of::<ucontext_t>();

/// A trapped call, at the top of the stack on which it is made.
#[repr(C, align(16))]
struct Trapped {
    /// The address of the signal's frame, of its copy, and the bytes of both.
    home: usize,
    copy: usize,
    bytes: usize,
    number: i32,
    /// True if the program was on its alternate signal stack, which is disabled during the call.
    is_alternate: bool,
    slot: &'static Slot,
}

/// Where a thread continues after the call: see [`leave`].
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
    let this = core::ptr::from_mut(context) as usize;
    let trapped_at = context.uc_mcontext.sp as usize;
    // Without a stack, or if taking one panics, the call is made here, if there is room.
    let slot = contain_any(|| stack::allocate(trapped_at, 0, &mut context.uc_stack)).flatten();
    let Some(slot) = slot else {
        let is_small = stack::room_on(&context.uc_stack, this).is_some_and(|room| room < ROOM);
        let answer = match scan::is_ours(u64::from(number as u32)) && is_small {
            true => -(libc::ENOMEM as isize),
            false => {
                action::set_mask(*mask_of(context));
                call(number, context)
            }
        };
        finish(context, number, answer);
        return true;
    };
    cross(context, number, slot);
    true
}

/// Makes the signal return into [`trampoline`], on the stack of `slot`. If the program was on its alternate signal
/// stack, all signals are blocked until that is disabled.
fn cross(context: &mut ucontext_t, number: i32, slot: &'static Slot) {
    let home = core::ptr::from_mut(context) as usize - CONTEXT_IN_FRAME;
    let is_alternate = slot.mark_disabled(context.uc_mcontext.sp as usize, &context.uc_stack);
    // A frame that handlers may overwrite is at the top of the alternate stack. Any other stays whole, so that a copy of
    // its beginning is enough.
    let overwritten = stack::room_above(&context.uc_stack, home).filter(|bytes| !is_alternate && *bytes <= MOST);
    let bytes = overwritten.unwrap_or(FRAME);
    let at = (slot.top() - size_of::<Trapped>()) as *mut Trapped;
    let copy = (at as usize - bytes) & !15;
    // SAFETY: the stack is mapped, was just taken by this thread, and its top is aligned to a page. The frame has so
    // many bytes.
    unsafe {
        at.write(Trapped { home, copy, bytes, number, is_alternate, slot });
        core::ptr::copy_nonoverlapping(home as *const u8, copy as *mut u8, bytes);
    }
    if is_alternate {
        *mask_of(context) = u64::MAX;
    }
    context.uc_mcontext.regs[0] = at as u64;
    context.uc_mcontext.sp = copy as u64;
    context.uc_mcontext.pc = trampoline as *const () as u64;
}

/// Returns the signal mask of a context: one word, all that the kernel fills in and rt_sigreturn(2) reads.
fn mask_of(context: &mut ucontext_t) -> &mut u64 {
    // SAFETY: sigset_t is larger, as aligned, and borrowed as long as the context is.
    unsafe { &mut *(&raw mut context.uc_sigmask).cast::<u64>() }
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
        // The thread has left the stack, so that it may be given back. The alternate signal stack is the kernel's
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
    let trapped = unsafe { &*trapped };
    // SAFETY: the copy, which nothing else uses.
    let context = unsafe { &mut *((trapped.copy + CONTEXT_IN_FRAME) as *mut ucontext_t) };
    if trapped.is_alternate {
        let disabled = libc::stack_t { ss_sp: core::ptr::null_mut(), ss_flags: libc::SS_DISABLE, ss_size: 0 };
        // SAFETY: a local, which the kernel reads.
        unsafe { sys::call(libc::SYS_sigaltstack, [&raw const disabled as usize, 0, 0, 0, 0, 0]) };
        sys::set_mask(*mask_of(context));
    }
    let answer = call(trapped.number, context);
    finish(context, trapped.number, answer);
    // SAFETY: the frame's own place. Nothing is there now: all signals are blocked, and the thread is on another stack.
    unsafe { core::ptr::copy_nonoverlapping(trapped.copy as *const u8, trapped.home as *mut u8, trapped.bytes) };
    Onward { frame: trapped.home, slot: trapped.slot }
}

/// Makes the call with the arguments in the context.
fn call(number: i32, context: &ucontext_t) -> isize {
    let errno = sys::errno();
    stats::stats().traps.fetch_add(1, core::sync::atomic::Ordering::Relaxed);
    let args = [0, 1, 2, 3, 4, 5].map(|register: usize| context.uc_mcontext.regs[register] as usize);
    let answer = entry::answer_any(|| {
        point(Point::Trap);
        dispatch::call(i64::from(number), args)
    });
    sys::set_errno(errno);
    answer
}

/// Completes the context, from which rt_sigreturn(2) resumes the program. It gets the call's answer. It also gets the
/// signal mask and the alternate signal stack, which the call may have changed. All signals are blocked until then.
fn finish(context: &mut ucontext_t, number: i32, answer: isize) {
    if i64::from(number) == libc::SYS_sigaltstack && answer == 0 && context.uc_mcontext.regs[0] != 0 {
        // SAFETY: the kernel has just read it.
        context.uc_stack = unsafe { *(context.uc_mcontext.regs[0] as *const libc::stack_t) };
    }
    context.uc_mcontext.regs[0] = answer as u64;
    *mask_of(context) = sys::set_mask(u64::MAX);
}
