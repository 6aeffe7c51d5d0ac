//! The trap crossing: how a thread that trapped with a system call gets to the engine, and then back to the program's
//! next instruction.
//!
//! The SIGSYS handler makes no call. It takes a stack, copies the trap's frame to its top, and lets the signal return
//! into a trampoline there. The trampoline makes the call outside any handler, with the program's signal mask.
//!
//! A system call changes x0 only, so no register is free for the way back to the program. The call therefore ends by
//! rt_sigreturn(2) from the trap's own frame. The kernel restores all registers from it, vector registers of any length
//! included. At the end of the call the copy goes back to the frame's place, once all signals are blocked. Until then a
//! handler may have used that place, if it is on the program's alternate signal stack.
//!
//! The preloaded library and the guest host each decide which stack a call gets. In a guest, the call is made in the
//! host's world.

use crate::sys;
use anyring_engine::os::arch::CONTEXT_IN_FRAME;
use core::mem::size_of;
use libc::{stack_t, ucontext_t};

/// The most bytes of a frame that are copied. With vectors of 2,048 bits a frame has some 90 KiB.
const MOST: usize = 128 << 10;
/// Bytes of a frame with all registers but the longest vector ones, which come after it.
pub const BYTES: usize = CONTEXT_IN_FRAME + size_of::<ucontext_t>();

/// Returns the signal mask of a context: one word, all that the kernel fills in and rt_sigreturn(2) reads.
pub fn mask_of(context: &mut ucontext_t) -> &mut u64 {
    // SAFETY: sigset_t is larger, as aligned, and borrowed as long as the context is.
    unsafe { &mut *(&raw mut context.uc_sigmask).cast::<u64>() }
}

/// The frame of a trap, and its copy.
pub struct Frame {
    home: usize,
    copy: usize,
    bytes: usize,
    /// True if the program was on its alternate signal stack, which is disabled during the call.
    is_alternate: bool,
}

impl Frame {
    /// Copies the frame of `context` to the memory before `end`. If `is_alternate`, all signals are blocked until
    /// [`begin`](Self::begin).
    ///
    /// # Safety
    /// `context` is in the frame of a signal. There is a stack before `end` with room for the copy and for the call, and
    /// it is this thread's alone.
    pub unsafe fn copied(context: &mut ucontext_t, end: usize, is_alternate: bool) -> Frame {
        let home = core::ptr::from_mut(context) as usize - CONTEXT_IN_FRAME;
        let stack = &context.uc_stack;
        let is_enabled = stack.ss_flags & libc::SS_DISABLE == 0;
        let room = (stack.ss_sp as usize).wrapping_add(stack.ss_size).wrapping_sub(home);
        // A frame that handlers may overwrite is at the top of the alternate stack. Any other stays whole, so a copy of
        // its beginning is enough.
        let is_overwritten = !is_alternate && is_enabled && room <= stack.ss_size.min(MOST);
        let bytes = if is_overwritten { room } else { BYTES };
        let copy = (end - bytes) & !15;
        // SAFETY: the caller vouches for both; the frame has so many bytes.
        unsafe { core::ptr::copy_nonoverlapping(home as *const u8, copy as *mut u8, bytes) };
        if is_alternate {
            *mask_of(context) = u64::MAX;
        }
        Frame { home, copy, bytes, is_alternate }
    }

    /// Returns the address of the frame, from which the call ends by rt_sigreturn(2).
    pub fn home(&self) -> usize {
        self.home
    }

    /// Returns the address of the copy, where the call's stack begins.
    pub fn copy(&self) -> usize {
        self.copy
    }

    /// Returns the context in the copy.
    pub fn context(&self) -> &ucontext_t {
        // SAFETY: `copied` has written it.
        unsafe { &*((self.copy + CONTEXT_IN_FRAME) as *const ucontext_t) }
    }

    /// Returns the context in the copy, to be changed.
    pub fn context_mut(&mut self) -> &mut ucontext_t {
        // SAFETY: `copied` has written it, and only this call uses it.
        unsafe { &mut *((self.copy + CONTEXT_IN_FRAME) as *mut ucontext_t) }
    }

    /// Begins the call, outside the handler. If the thread came from its alternate signal stack, disables that stack
    /// and sets the program's mask again.
    pub fn begin(&mut self) {
        if self.is_alternate {
            let disabled = stack_t { ss_sp: core::ptr::null_mut(), ss_flags: libc::SS_DISABLE, ss_size: 0 };
            // SAFETY: a local, which the kernel reads.
            unsafe { sys::call(libc::SYS_sigaltstack, [&raw const disabled as usize, 0, 0, 0, 0, 0]) };
            sys::set_mask(*mask_of(self.context_mut()));
        }
    }

    /// Completes the frame with the call's answer. All signals are blocked until rt_sigreturn(2).
    pub fn end(&mut self, answer: isize) {
        let is_alternate = self.is_alternate;
        complete(self.context_mut(), answer, is_alternate);
        // SAFETY: the frame's own place. Nothing is there now: all signals are blocked, and the thread is on another
        // stack.
        unsafe { core::ptr::copy_nonoverlapping(self.copy as *const u8, self.home as *mut u8, self.bytes) };
    }
}

/// Returns the arguments of the call that a context made.
pub fn args(context: &ucontext_t) -> [usize; 6] {
    [0, 1, 2, 3, 4, 5].map(|register: usize| context.uc_mcontext.regs[register] as usize)
}

/// Completes a context, from which rt_sigreturn(2) resumes the program. It gets the call's answer. It also gets the
/// signal mask and, unless `keeps_alternate`, the alternate signal stack. The call, or a handler during the call, may
/// have changed both. All signals are blocked until rt_sigreturn(2).
pub fn complete(context: &mut ucontext_t, answer: isize, keeps_alternate: bool) {
    let mask = sys::set_mask(u64::MAX);
    context.uc_mcontext.regs[0] = answer as u64;
    *mask_of(context) = mask;
    if !keeps_alternate {
        // SAFETY: the kernel writes the context's field.
        unsafe { sys::call(libc::SYS_sigaltstack, [0, &raw mut context.uc_stack as usize, 0, 0, 0, 0]) };
    }
}
