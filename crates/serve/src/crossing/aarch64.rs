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

use crate::patch::island::Call;
use crate::sys;
use anyring_engine::os::arch::CONTEXT_IN_FRAME;
use core::mem::{offset_of, size_of};
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

/// The registers of a call that came by a jump, at the top of one of the engine's stacks.
#[repr(C, align(16))]
pub struct Jumped {
    /// x0 to x30.
    pub registers: [u64; 31],
    /// The stack pointer, as the island has lowered it.
    pub lowered: u64,
    flags: u64,
    float_status: u64,
    /// The call's number.
    pub number: usize,
    /// The island's code that goes on after the call.
    back: usize,
    /// The address of the stack's record, which says who uses it.
    pub stack: usize,
    /// The address of a guest thread's record.
    pub block: usize,
    /// The thread pointer of the guest's world.
    pub pointer: usize,
    vectors: [u128; 32],
    /// Begins with [`Jumped::MARK`] in a guest, which distinguishes this at the top of a stack from a trapped call.
    pub mark: [usize; 2],
}

impl Jumped {
    /// The first word of `mark`.
    pub const MARK: usize = 1;

    /// Returns the call's arguments.
    pub fn args(&self) -> [usize; 6] {
        [0, 1, 2, 3, 4, 5].map(|register: usize| self.registers[register] as usize)
    }
}

const _: () = assert!(offset_of!(Jumped, registers) == 0 && offset_of!(Jumped, lowered) == 248);
const _: () = assert!(offset_of!(Jumped, flags) == 256 && offset_of!(Jumped, float_status) == 264);
const _: () = assert!(offset_of!(Jumped, number) == 272 && offset_of!(Jumped, back) == 280);
const _: () = assert!(offset_of!(Jumped, stack) == 288 && offset_of!(Jumped, vectors) == 320);
const _: () =
    assert!(offset_of!(Call, number) == 0 && offset_of!(Call, give_up) == 8 && offset_of!(Call, back) == 16);

/// Expands to the body of a naked function to which islands jump. x17 points to a
/// [`Call`](crate::patch::island::Call), and x12 to x17 are saved at the stack pointer.
///
/// - `take`: takes a stack. It leaves the address of a [`Jumped`] at the stack's top in x14, and that of the stack's
///   record in x16. It uses x12 to x16 only, and continues at label 9 for a call that must trap.
/// - `enter` and `leave`: lines around the call. sp is the address of the [`Jumped`].
/// - `give_back`: marks the stack as free. x17 holds [`Jumped::stack`], and x16 is in use.
///
/// After these come the operands of the assembly, `emulate` among them. It gets the [`Jumped`], and returns the answer.
#[macro_export]
macro_rules! jump_crossing {
    (take: $take:literal, enter: $enter:literal, leave: $leave:literal, give_back: $give_back:literal;
     $($operands:tt)*) => {
        core::arch::naked_asm!(
            "hint 34", // bti c
            $take,
            "str x16, [x14, 288]",
            "stp x0, x1, [x14, 0]",
            "stp x2, x3, [x14, 16]",
            "stp x4, x5, [x14, 32]",
            "stp x6, x7, [x14, 48]",
            "stp x8, x9, [x14, 64]",
            "stp x10, x11, [x14, 80]",
            // Those that the island has saved.
            "ldp x12, x13, [sp, 32]",
            "stp x12, x13, [x14, 96]",
            "ldp x12, x13, [sp, 16]",
            "stp x12, x13, [x14, 112]",
            "ldp x12, x13, [sp, 0]",
            "stp x12, x13, [x14, 128]",
            "stp x18, x19, [x14, 144]",
            "stp x20, x21, [x14, 160]",
            "stp x22, x23, [x14, 176]",
            "stp x24, x25, [x14, 192]",
            "stp x26, x27, [x14, 208]",
            "stp x28, x29, [x14, 224]",
            "mov x12, sp",
            "stp x30, x12, [x14, 240]",
            "mrs x12, nzcv",
            "mrs x13, fpsr",
            "stp x12, x13, [x14, 256]",
            "ldr x12, [x17]",
            "ldr x13, [x17, 16]",
            "stp x12, x13, [x14, 272]",
            "stp q0, q1, [x14, 320]",
            "stp q2, q3, [x14, 352]",
            "stp q4, q5, [x14, 384]",
            "stp q6, q7, [x14, 416]",
            "stp q8, q9, [x14, 448]",
            "stp q10, q11, [x14, 480]",
            "stp q12, q13, [x14, 512]",
            "stp q14, q15, [x14, 544]",
            "stp q16, q17, [x14, 576]",
            "stp q18, q19, [x14, 608]",
            "stp q20, q21, [x14, 640]",
            "stp q22, q23, [x14, 672]",
            "stp q24, q25, [x14, 704]",
            "stp q26, q27, [x14, 736]",
            "stp q28, q29, [x14, 768]",
            "stp q30, q31, [x14, 800]",
            "mov sp, x14",
            $enter,
            "mov x0, sp",
            "bl {emulate}",
            $leave,
            "str x0, [sp]",
            "ldp q0, q1, [sp, 320]",
            "ldp q2, q3, [sp, 352]",
            "ldp q4, q5, [sp, 384]",
            "ldp q6, q7, [sp, 416]",
            "ldp q8, q9, [sp, 448]",
            "ldp q10, q11, [sp, 480]",
            "ldp q12, q13, [sp, 512]",
            "ldp q14, q15, [sp, 544]",
            "ldp q16, q17, [sp, 576]",
            "ldp q18, q19, [sp, 608]",
            "ldp q20, q21, [sp, 640]",
            "ldp q22, q23, [sp, 672]",
            "ldp q24, q25, [sp, 704]",
            "ldp q26, q27, [sp, 736]",
            "ldp q28, q29, [sp, 768]",
            "ldp q30, q31, [sp, 800]",
            "ldp x12, x13, [sp, 256]",
            "msr nzcv, x12", // no instruction below changes a flag
            "msr fpsr, x13",
            // The island restores these from the program's stack.
            "ldr x12, [sp, 248]",
            "ldp x14, x15, [sp, 96]",
            "stp x14, x15, [x12, 32]",
            "ldp x14, x15, [sp, 112]",
            "stp x14, x15, [x12, 16]",
            "ldp x14, x15, [sp, 128]",
            "stp x14, x15, [x12, 0]",
            "ldp x0, x1, [sp, 0]",
            "ldp x2, x3, [sp, 16]",
            "ldp x4, x5, [sp, 32]",
            "ldp x6, x7, [sp, 48]",
            "ldp x8, x9, [sp, 64]",
            "ldp x10, x11, [sp, 80]",
            "ldp x18, x19, [sp, 144]",
            "ldp x20, x21, [sp, 160]",
            "ldp x22, x23, [sp, 176]",
            "ldp x24, x25, [sp, 192]",
            "ldp x26, x27, [sp, 208]",
            "ldp x28, x29, [sp, 224]",
            "ldr x30, [sp, 240]",
            "ldp x16, x17, [sp, 280]",
            "mov sp, x12",
            // The thread has left the stack, so it is released only now.
            $give_back,
            "br x16",
            "9:",
            "ldr x16, [x17, 8]",
            "br x16",
            $($operands)*
        )
    };
}
