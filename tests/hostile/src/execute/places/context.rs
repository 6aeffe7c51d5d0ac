//! Steps in another context of the same thread: with another mask, on a small stack, or in a context that a signal
//! handler leaves.

use super::{all_but_the_alarm, Runner, STACK_BYTES};
use crate::call::{leap_from_calls, Leap};
use crate::child::SIGNALS;
use crate::program::Step;
use libc::{c_int, c_void, ucontext_t};
use std::sync::atomic::{AtomicPtr, Ordering};

/// The size of a signal handler's stack, without the frame.
const SMALL_BYTES: usize = 16 << 10;

struct Work<'a> {
    runner: &'a mut Runner,
    steps: &'a [Step],
}

/// The work of the thread that is elsewhere. Only this thread and its handlers use these atomics: Relaxed.
static WORK: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
static BACK: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());

/// Room for glibc's sigjmp_buf.
type Jump = [u64; 32];

extern "C" {
    fn __sigsetjmp(buffer: *mut Jump, mask: c_int) -> c_int;
    fn siglongjmp(buffer: *mut c_void, value: c_int) -> !;
}

extern "C" fn work() {
    // SAFETY: the thread that is elsewhere has stored it, and waits for this to return.
    let work = unsafe { &mut *WORK.load(Ordering::Relaxed).cast::<Work>() };
    work.runner.steps(work.steps, None);
}

extern "C" fn work_in_handler(_: c_int) {
    work();
}

/// Calls `run`, and returns when `run` does or when a handler jumps to the buffer. sigsetjmp(3), which returns twice,
/// is called here, where the compiler does not see it. A jump restores the registers that the compiler expects to be
/// preserved.
#[unsafe(naked)]
unsafe extern "C" fn until_jump(buffer: *mut Jump, run: extern "C" fn()) {
    core::arch::naked_asm!(
        "push rbx",
        "mov rbx, rsi",
        "mov esi, 1",
        "call {sigsetjmp}",
        "test eax, eax",
        "jnz 2f",
        "call rbx",
        "2:",
        "pop rbx",
        "ret",
        sigsetjmp = sym __sigsetjmp,
    )
}

/// Leaves, in a handler, the interrupted context.
pub fn leap(how: Leap) -> ! {
    let back = BACK.load(Ordering::Relaxed);
    // SAFETY: a context or buffer of a frame that has not returned; between are frames of steps without anything to be dropped.
    unsafe {
        match how {
            Leap::Jump => siglongjmp(back, 1),
            Leap::Context => {
                libc::setcontext(back.cast());
                libc::abort()
            }
        }
    }
}

impl Runner {
    /// Runs steps in a context by swapcontext(3), on a stack of its own.
    pub fn in_context(&mut self, is_masked: bool, leaps: bool, steps: &[Step]) {
        let mut work = Work { runner: self, steps };
        WORK.store((&raw mut work).cast(), Ordering::Relaxed);
        // SAFETY: contexts of this frame, which does not return before they have, or were left.
        unsafe {
            let (mut back, mut there): (ucontext_t, ucontext_t) = (std::mem::zeroed(), std::mem::zeroed());
            BACK.store((&raw mut back).cast(), Ordering::Relaxed);
            libc::getcontext(&mut there);
            there.uc_stack.ss_sp = super::stack();
            there.uc_stack.ss_size = STACK_BYTES;
            there.uc_link = &mut back;
            if is_masked {
                there.uc_sigmask = all_but_the_alarm();
            }
            libc::makecontext(&mut there, self::work, 0);
            leap_from_calls(leaps.then_some(Leap::Context));
            libc::swapcontext(&mut back, &there);
            leap_from_calls(None);
        }
    }

    /// Runs steps in which a handler's siglongjmp(3) ends a call.
    pub fn before_jumps(&mut self, steps: &[Step]) {
        let mut work = Work { runner: self, steps };
        WORK.store((&raw mut work).cast(), Ordering::Relaxed);
        let mut buffer: Jump = [0; 32];
        BACK.store((&raw mut buffer).cast(), Ordering::Relaxed);
        leap_from_calls(Some(Leap::Jump));
        // SAFETY: the buffer is this frame's.
        unsafe { until_jump(&mut buffer, self::work) };
        leap_from_calls(None);
    }

    /// Runs steps in a handler, on a small alternate stack.
    pub fn in_handler(&mut self, steps: &[Step]) {
        let mut work = Work { runner: self, steps };
        WORK.store((&raw mut work).cast(), Ordering::Relaxed);
        // SAFETY: all zeroes are an action and a stack; the stack is never unmapped, and has no other user.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = work_in_handler as *const () as usize;
            action.sa_flags = libc::SA_ONSTACK;
            // These signals are blocked in the handler: their frames would fill the stack, on the kernel, too.
            for signal in SIGNALS {
                libc::sigaddset(&mut action.sa_mask, signal);
            }
            libc::sigaction(libc::SIGUSR2, &action, std::ptr::null_mut());
            let mut kept: libc::stack_t = std::mem::zeroed();
            let frame = libc::getauxval(libc::AT_MINSIGSTKSZ) as usize;
            let small = libc::stack_t { ss_sp: super::stack(), ss_flags: 0, ss_size: SMALL_BYTES + frame };
            libc::sigaltstack(&small, &mut kept);
            libc::pthread_kill(libc::pthread_self(), libc::SIGUSR2);
            libc::sigaltstack(&kept, std::ptr::null_mut());
        }
    }
}
