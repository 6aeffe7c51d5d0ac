//! The registers of a trapped call, and the way to the trampoline, by [`anyring_serve::crossing`].

use super::crossing::{is_of_host, trampoline};
use crate::trap::{begin, serve};
use crate::world::{Block, Level, LEVELS, STACK};
use crate::{dispatch, hot};
use anyring_abi::NR_IO_URING_ENTER;
use anyring_engine::os::arch::CONTEXT_IN_FRAME;
use anyring_engine::stats;
use anyring_serve::crossing::{self, args, mask_of, Frame, Jumped};
use anyring_serve::entry;
use anyring_serve::patch::{ahead, island};
use core::mem::{offset_of, size_of};
use core::ops::Range;
use core::sync::atomic::Ordering;
use libc::{stack_t, ucontext_t};

/// A trapped call, at the top of the stack on which it is made.
#[repr(C, align(16))]
pub struct Trapped {
    /// The thread's record.
    pub block: *const Block,
    /// The thread pointer of the guest's world, to which the thread returns.
    pub pointer: usize,
    level: *const Level,
    frame: Frame,
    number: i32,
    /// True if the instruction must be patched before the call is made.
    is_due: bool,
    /// Not [`Jumped::MARK`], which would be there if the call had come by a jump.
    mark: [usize; 2],
}
const _: () = assert!(offset_of!(Trapped, mark) + 16 == size_of::<Trapped>());
const _: () = assert!(offset_of!(Jumped, mark) + 16 == size_of::<Jumped>());

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

/// Ends the trapped call with this answer.
pub fn set_answer(context: &mut ucontext_t, answer: isize) {
    context.uc_mcontext.regs[0] = answer as u64;
}

/// Returns the intended number of a call that may have trapped under another number. The thread is
/// [set back](super::patch::set_back) to its own instruction, so x8 has the number.
pub fn number_meant(context: &ucontext_t) -> Option<i32> {
    let number = context.uc_mcontext.regs[8] as u32;
    ahead::NUMBERS.contains(&number).then_some(number as i32)
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
    (number, meant): (i32, Option<i32>),
    context: &mut ucontext_t,
    is_alternate: bool,
) {
    let at = (top - size_of::<Trapped>()) as *mut Trapped;
    if level == 0 {
        block.frame.store(top - size_of::<Jumped>(), Ordering::Relaxed);
    }
    let level = core::ptr::from_ref(&block.levels[level]);
    let number = meant.unwrap_or(number);
    let return_address = context.uc_mcontext.pc as usize;
    let is_due = !island::has_site(return_address - 4) && hot::is_due(number.into(), return_address);
    // SAFETY: the caller vouches for the stack. The context is that of the handler.
    let copy = unsafe {
        let frame = Frame::copied(context, at as usize, is_alternate);
        let copy = frame.copy();
        at.write(Trapped { block, pointer: 0, level, frame, number, is_due, mark: [0; 2] });
        copy
    };
    context.uc_mcontext.regs[0] = at as u64;
    context.uc_mcontext.sp = copy as u64;
    context.uc_mcontext.pc = trampoline as *const () as u64;
}

impl Trapped {
    /// Returns the call's number.
    pub fn number(&self) -> i64 {
        self.number.into()
    }

    /// Returns the call's arguments.
    pub fn args(&self) -> [usize; 6] {
        args(self.frame.context())
    }

    /// Makes the guest continue with this stack pointer.
    pub fn set_stack(&mut self, stack: usize) {
        self.frame.context_mut().uc_mcontext.sp = stack as u64;
    }

    /// Returns the thread pointer of the guest's world.
    pub fn thread_pointer(&self) -> usize {
        self.pointer
    }

    /// Makes the guest continue with this thread pointer.
    pub fn set_thread_pointer(&mut self, pointer: usize) {
        self.pointer = pointer;
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
            let jumped = (top - size_of::<Jumped>()) as *const Jumped;
            if (*jumped).mark[0] == Jumped::MARK {
                return &(*jumped).registers;
            }
            &(*((top - size_of::<Trapped>()) as *const Trapped)).frame.context().uc_mcontext.regs
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
    trapped.frame.begin();
    stats::stats().traps.fetch_add(1, Ordering::Relaxed);
    if trapped.is_due {
        let return_address = trapped.frame.context().uc_mcontext.pc as usize;
        entry::aside(|| hot::apply(return_address, trapped.number as u32));
    }
    let answer = serve(block, trapped);
    trapped.frame.end(answer);
    Onward { frame: trapped.frame.home(), level: trapped.level }
}

/// Makes a call that came by a jump, in the host's world, and returns its answer.
///
/// # Safety
/// Called by [`patched`](super::crossing::patched) with what it has written.
pub unsafe extern "C" fn emulate_jumped(jumped: *mut Jumped) -> isize {
    // SAFETY: the caller vouches for it, and blocks are never freed.
    let (jumped, block) = unsafe { (&*jumped, &*((*jumped).block as *const Block)) };
    begin(block);
    match jumped.number as i64 {
        NR_IO_URING_ENTER => dispatch::enter(jumped.args()),
        number => entry::answer_any(|| dispatch::on_rings(number, jumped.args())),
    }
}

/// Prepares the frame with which `child` begins: its parent's registers, with this stack pointer. A system call keeps
/// only the first 128 bits of each vector register, so the frame leaves out the rest. False if there is no memory.
///
/// # Safety
/// The block was just claimed for the child, so that nothing else touches it.
pub unsafe fn prepare_child(child: &Block, registers: &Registers, stack: Option<usize>, _pointer: usize) -> bool {
    /// FPSIMD_MAGIC (asm/sigcontext.h).
    const VECTORS: u32 = 0x4650_8001;
    let Some(top) = child.stack(0) else { return false };
    let frame = (top - crossing::BYTES) & !15;
    // SAFETY: the child's own stack, which nothing uses yet, and the copy of the parent's frame.
    unsafe {
        core::ptr::copy_nonoverlapping(registers.frame.copy() as *const u8, frame as *mut u8, crossing::BYTES);
        let context = &mut *((frame + CONTEXT_IN_FRAME) as *mut ucontext_t);
        context.uc_mcontext.regs[0] = 0;
        if let Some(stack) = stack {
            context.uc_mcontext.sp = stack as u64;
        }
        context.uc_stack = alternate_of_child(child, &context.uc_stack);
        *mask_of(context) = child.mask.load(Ordering::Relaxed);
        keep_only(VECTORS, frame + crossing::BYTES - RECORDS..frame + crossing::BYTES);
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
    // No child has so many nested handlers that a call needs the stack of the last level.
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
