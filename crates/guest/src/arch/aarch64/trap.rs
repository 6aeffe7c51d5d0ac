//! The registers of a trapped call, and the way to the trampoline.
//!
//! During the call the thread is on one of the host's stacks, which holds a copy of the trap's frame. At the end the
//! copy goes back to the frame's place, once all signals are blocked. Until then a handler may have used that place, if
//! it is on the guest's alternate signal stack. The kernel restores all registers from the frame, vector registers of
//! any length included.

use super::crossing::{is_of_host, trampoline};
use crate::trap::{begin, serve};
use crate::world::{Block, Level, LEVELS, STACK};
use anyring_engine::os::arch::CONTEXT_IN_FRAME;
use anyring_engine::stats;
use anyring_serve::sys;
use core::mem::size_of;
use core::ops::Range;
use core::sync::atomic::Ordering;
use libc::{stack_t, ucontext_t};

/// The most bytes of a signal frame that are copied. With vectors of 2,048 bits a frame has some 90 KiB.
const MOST: usize = 128 << 10;
/// Bytes of a signal frame with all registers but the longest vector ones, which come after it.
const FRAME: usize = CONTEXT_IN_FRAME + size_of::<ucontext_t>();

/// A trapped call, at the top of the stack on which it is made.
#[repr(C, align(16))]
pub struct Trapped {
    /// The thread's record.
    pub block: *const Block,
    /// The thread pointer of the guest's world, to which the thread returns.
    pub pointer: usize,
    level: *const Level,
    /// The address of the signal's frame, of its copy, and the bytes of both.
    home: usize,
    copy: usize,
    bytes: usize,
    number: i32,
    /// True if the guest was on its alternate signal stack, which is disabled during the call.
    is_alternate: bool,
}

/// A trapped call, whose registers are in a copy of the trap's frame.
pub type Registers = Trapped;

/// The address of the frame with which a new thread begins.
pub type Begin = usize;

/// Where a thread continues after the call: see [`trampoline`].
#[repr(C)]
pub struct Onward {
    frame: usize,
    level: *const Level,
}

/// Returns the guest's stack pointer.
pub fn stack_pointer(context: &ucontext_t) -> usize {
    context.uc_mcontext.sp as usize
}

/// Returns `None`: no call traps under another number.
pub fn number_meant(_: &ucontext_t) -> Option<i32> {
    None
}

/// Returns the signal mask of a context: one word, all that the kernel fills in and rt_sigreturn(2) reads.
fn mask_of(context: &mut ucontext_t) -> &mut u64 {
    // SAFETY: sigset_t is larger, as aligned, and borrowed as long as the context is.
    unsafe { &mut *(&raw mut context.uc_sigmask).cast::<u64>() }
}

/// Makes the thread, which has trapped, continue in [`trampoline`], on the stack of `level` that ends at `top`. If the
/// guest was on its alternate signal stack, all signals are blocked until that is disabled.
///
/// # Safety
/// The stack is mapped and this thread's alone, and `top` is aligned to a page.
pub unsafe fn cross(
    block: &Block,
    level: usize,
    top: usize,
    (number, _): (i32, Option<i32>),
    context: &mut ucontext_t,
    is_alternate: bool,
) {
    let home = core::ptr::from_mut(context) as usize - CONTEXT_IN_FRAME;
    // A frame that handlers may overwrite is on the alternate stack, below what the guest has used there. Any other
    // stays whole, so that a copy of its beginning is enough.
    let alternate = context.uc_stack.ss_sp as usize..context.uc_stack.ss_sp as usize + context.uc_stack.ss_size;
    let is_overwritten = !is_alternate && alternate.contains(&home);
    let bytes = if is_overwritten { (alternate.end - home).min(MOST) } else { FRAME };
    let at = (top - size_of::<Trapped>()) as *mut Trapped;
    let copy = (at as usize - bytes) & !15;
    let level = core::ptr::from_ref(&block.levels[level]);
    // SAFETY: the caller vouches for the stack. The frame has so many bytes.
    unsafe {
        at.write(Trapped { block, pointer: 0, level, home, copy, bytes, number, is_alternate });
        core::ptr::copy_nonoverlapping(home as *const u8, copy as *mut u8, bytes);
    }
    if is_alternate {
        *mask_of(context) = u64::MAX;
    }
    context.uc_mcontext.regs[0] = at as u64;
    context.uc_mcontext.sp = copy as u64;
    context.uc_mcontext.pc = trampoline as *const () as u64;
}

impl Trapped {
    /// Returns the context in the copy of the frame.
    fn context(&mut self) -> &mut ucontext_t {
        // SAFETY: `cross` has written the copy, which only this call uses.
        unsafe { &mut *((self.copy + CONTEXT_IN_FRAME) as *mut ucontext_t) }
    }

    /// Returns the call's number.
    pub fn number(&self) -> i64 {
        self.number.into()
    }

    /// Returns the call's arguments.
    pub fn args(&self) -> [usize; 6] {
        // SAFETY: as in `context`.
        let context = unsafe { &*((self.copy + CONTEXT_IN_FRAME) as *const ucontext_t) };
        [0, 1, 2, 3, 4, 5].map(|register: usize| context.uc_mcontext.regs[register] as usize)
    }

    /// Makes the guest continue with this stack pointer.
    pub fn set_stack(&mut self, stack: usize) {
        self.context().uc_mcontext.sp = stack as u64;
    }

    /// Returns the thread pointer of the guest's world.
    pub fn thread_pointer(&self) -> usize {
        self.pointer
    }

    /// Makes the guest continue with this thread pointer.
    pub fn set_thread_pointer(&mut self, pointer: usize) {
        self.pointer = pointer;
    }

    /// Completes the frame, from which rt_sigreturn(2) resumes the guest with the call's answer. It also gets the
    /// signal mask and the alternate signal stack, which the call may have changed. All signals are blocked until then.
    fn end(&mut self, answer: isize) {
        let mask = sys::set_mask(u64::MAX);
        let is_alternate = self.is_alternate;
        let context = self.context();
        context.uc_mcontext.regs[0] = answer as u64;
        *mask_of(context) = mask;
        if !is_alternate {
            // A handler may have set it during the call.
            // SAFETY: the kernel writes the context's field.
            unsafe { sys::call(libc::SYS_sigaltstack, [0, &raw mut context.uc_stack as usize, 0, 0, 0, 0]) };
        }
        // SAFETY: the frame's own place. Nothing is there now: all signals are blocked, and the thread is on another
        // stack.
        unsafe { core::ptr::copy_nonoverlapping(self.copy as *const u8, self.home as *mut u8, self.bytes) };
    }
}

/// Returns the guest's registers when a signal came: those of the call in progress if the signal has interrupted the
/// host.
pub fn guest_registers<'a>(context: &'a ucontext_t, block: &Block) -> &'a [u64; 31] {
    let is_guest = !is_of_host(context.uc_mcontext.pc as usize);
    match block.stack_with(stack_pointer(context)).filter(|_| !is_guest) {
        None => &context.uc_mcontext.regs,
        // SAFETY: the host runs on this stack only during a call, and `cross` has written both there.
        Some(top) => unsafe {
            let trapped = &*((top - size_of::<Trapped>()) as *const Trapped);
            &(*((trapped.copy + CONTEXT_IN_FRAME) as *const ucontext_t)).uc_mcontext.regs
        },
    }
}

/// Makes the trapped call, in the host's world.
///
/// # Safety
/// Called with what [`cross`] has written.
pub unsafe extern "C" fn emulate(trapped: *mut Trapped) -> Onward {
    // SAFETY: the caller vouches for it.
    let trapped = unsafe { &mut *trapped };
    // SAFETY: blocks are never freed.
    let block = unsafe { &*trapped.block };
    begin(block);
    if trapped.is_alternate {
        let disabled = stack_t { ss_sp: core::ptr::null_mut(), ss_flags: libc::SS_DISABLE, ss_size: 0 };
        // SAFETY: a local, which the kernel reads.
        unsafe { sys::call(libc::SYS_sigaltstack, [&raw const disabled as usize, 0, 0, 0, 0, 0]) };
        sys::set_mask(*mask_of(trapped.context()));
    }
    stats::stats().traps.fetch_add(1, Ordering::Relaxed);
    let answer = serve(block, trapped);
    trapped.end(answer);
    Onward { frame: trapped.home, level: trapped.level }
}

/// Prepares the frame with which `child` begins: its parent's registers, with this stack pointer. A system call keeps
/// the first 128 bits of each vector register, so that the frame has no longer ones. False if there is no memory.
///
/// # Safety
/// The block was just claimed for the child, so that nothing else touches it.
pub unsafe fn prepare_child(child: &Block, registers: &Registers, stack: Option<usize>, _pointer: usize) -> bool {
    /// FPSIMD_MAGIC (asm/sigcontext.h).
    const VECTORS: u32 = 0x4650_8001;
    let Some(top) = child.stack(0) else { return false };
    let frame = (top - FRAME) & !15;
    // SAFETY: the child's own stack, which nothing uses yet, and the copy of the parent's frame.
    unsafe {
        core::ptr::copy_nonoverlapping(registers.copy as *const u8, frame as *mut u8, FRAME);
        let context = &mut *((frame + CONTEXT_IN_FRAME) as *mut ucontext_t);
        context.uc_mcontext.regs[0] = 0;
        if let Some(stack) = stack {
            context.uc_mcontext.sp = stack as u64;
        }
        context.uc_stack = alternate_of_child(child, &context.uc_stack);
        *mask_of(context) = child.mask.load(Ordering::Relaxed);
        keep_only(VECTORS, frame + FRAME - RECORDS..frame + FRAME);
        child.begin.get().write(frame);
    }
    true
}

/// Returns the alternate signal stack with which a child begins. clone(2) gives a thread none, and a child of vfork(2)
/// its parent's. If the parent has none, such a child gets one of the host's. Its own stack may have no room for the
/// frame of a trap: musl's posix_spawn(3) gives it 5 KiB.
fn alternate_of_child(child: &Block, of_parent: &stack_t) -> stack_t {
    const NONE: stack_t = stack_t { ss_sp: core::ptr::null_mut(), ss_flags: libc::SS_DISABLE, ss_size: 0 };
    if !child.is_borrowed.load(Ordering::Relaxed) {
        return NONE;
    }
    if of_parent.ss_flags & libc::SS_DISABLE == 0 && of_parent.ss_size != 0 {
        return *of_parent;
    }
    // No child has so many handlers in each other that a call needs this stack.
    let top = child.stack(LEVELS - 1);
    top.map_or(NONE, |top| stack_t { ss_sp: (top - STACK) as *mut _, ss_flags: 0, ss_size: STACK })
}

/// Bytes of the records of further registers, at the end of a context.
const RECORDS: usize = 4096;

/// Removes all records but one of this kind. A record begins with its kind and its bytes. A record of no bytes ends the
/// list.
///
/// # Safety
/// `at` is the place of the records, which nothing else uses.
unsafe fn keep_only(kind: u32, at: Range<usize>) {
    let mut next = at.start;
    let mut kept = 0;
    while next + 8 <= at.end {
        // SAFETY: within the records, by the loop's condition.
        let [found, bytes] = unsafe { (next as *const [u32; 2]).read() };
        let bytes = bytes as usize;
        if bytes == 0 || bytes > at.end - next {
            break;
        }
        if found == kind {
            // SAFETY: both are within the records.
            unsafe { core::ptr::copy(next as *const u8, at.start as *mut u8, bytes) };
            kept = bytes;
            break;
        }
        next += bytes;
    }
    if kept + 8 <= at.len() {
        // SAFETY: within the records.
        unsafe { ((at.start + kept) as *mut [u32; 2]).write([0; 2]) };
    }
}
