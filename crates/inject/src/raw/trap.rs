//! The way from the SIGSYS of a trapped instruction to the emulated call and back. It is [`anyring_serve::crossing`],
//! on the stacks of `stack.rs`.
//!
//! A patched call reaches [`trampoline`] without the signal, from [`super::patch`].

use super::filter::MARK;
use super::hot;
use super::scan;
use super::stack;
use crate::signals::action;
use crate::{dispatch, entry, sys};
use anyring_engine::forced::{point, Point};
use anyring_engine::mutation::{mutated, Mutation};
use anyring_engine::ring::broken::contain_any;
use anyring_engine::stats;
use anyring_serve::crossing::{Registers, PATCHED};
use anyring_serve::patch::ahead::number_in;
use anyring_serve::signals::trap::trapped_call;
use anyring_serve::state::{MOVES, STATE_SIZE};
use core::sync::atomic::Ordering;
use libc::{siginfo_t, ucontext_t};

/// Bytes of the alternate signal stack that an emulated call may need. A call runs there only if there is no memory for
/// a stack of its own. If there is less room, the call fails with ENOMEM.
const ROOM: usize = 64 << 10;

/// Prepares the crossing, before the first trap.
pub fn prepare() {
    anyring_serve::state::prepare();
}

/// The guard on SIGSYS. True if the trap came from one of the library's filters.
///
/// # Safety
/// As [`crate::signals::Guard`].
pub unsafe fn guard(context: &mut ucontext_t, info: &siginfo_t) -> bool {
    let Some(number) = trapped_call(info, MARK) else { return false };
    let meant = number_in(context.uc_mcontext.gregs[libc::REG_RAX as usize] as u64);
    let number = meant.unwrap_or(number);
    let this = core::ptr::from_mut(context) as u64;
    let mut registers = Registers::of(context, number);
    let (trapped_at, alternate) = (registers.rsp as usize, &mut context.uc_stack);
    // Without a stack, or if taking one panics, the call is made here, if there is room.
    let slot = contain_any(|| stack::allocate(trapped_at, registers.flags, alternate)).flatten();
    let Some(slot) = slot else {
        if scan::is_ours(u64::from(number as u32))
            && stack::room_on(alternate, this as usize).is_some_and(|room| room < ROOM)
        {
            context.uc_mcontext.gregs[libc::REG_RAX as usize] = -i64::from(libc::ENOMEM);
            return true;
        }
        // SAFETY: the first word of uc_sigmask, which is all that the kernel has filled in.
        action::set_mask(unsafe { (&raw const context.uc_sigmask).cast::<u64>().read() });
        let answer = entry::answer_any(|| dispatch::call(i64::from(number), registers.args()));
        context.uc_mcontext.gregs[libc::REG_RAX as usize] = answer as i64;
        return true;
    };
    registers.stack = core::ptr::from_ref(slot) as u64;
    registers.patch = u64::from(meant.is_none() && hot::is_due(number, registers.rip as usize));
    let is_alternate = slot.mark_disabled(trapped_at, alternate);
    let top = match mutated(Mutation::TrampolineOnTheProgramsStack) {
        true => trapped_at & !(align_of::<Registers>() - 1),
        false => slot.top(),
    };
    // SAFETY: the stack is mapped, was just taken by this thread, and its top is aligned to a page. With the mutation
    // it is the stack on which the program has trapped, below its stack pointer.
    unsafe { registers.cross(context, top, is_alternate, trampoline) };
    true
}

/// The code at which a trapped thread continues.
#[unsafe(naked)]
pub unsafe extern "C" fn trampoline() {
    anyring_serve::crossing!(
        enter: "",
        leave: "",
        resume: "",
        give_back: "mov qword ptr [r11 + {owner}], 0",
        enabled: "mov qword ptr [r11 + {alternate_size}], 0";
        alternate_size = const stack::ALTERNATE_SIZE,
        emulate = sym emulate,
        owner = const stack::OWNER,
        stack_flags = const stack::FLAGS,
    )
}

/// Makes the trapped call and stores its answer where the program's rax is restored from.
unsafe extern "C" fn emulate(registers: *mut Registers) {
    // SAFETY: the trampoline passes the frame at the top of its own stack.
    let registers = unsafe { &mut *registers };
    let saved = mutated(Mutation::ExtendedStateIsLost).then(|| area_of(registers)).flatten();
    let errno = sys::errno();
    registers.begin();
    if registers.patch != PATCHED {
        stats::stats().traps.fetch_add(1, Ordering::Relaxed);
    }
    if registers.patch == 1 {
        entry::aside(|| hot::apply(registers.rip as usize, registers.rax as u32));
    }
    let answer = entry::answer_any(|| {
        point(Point::Trap);
        dispatch::call(registers.rax as i64, registers.args())
    });
    sys::set_errno(errno);
    // SAFETY: the frame is the trampoline's.
    unsafe { registers.end(answer as u64) };
    if let Some(area) = saved {
        // SAFETY: the header of the area that the trampoline has filled below `registers`; xrstor resets a component
        // whose bit here is 0 to its initial state.
        unsafe { area.add(512).cast::<u64>().write(0) };
    }
}

/// Returns the area in which the trampoline has saved the extended state by one instruction. None if the trampoline
/// only moves registers. Call this before any code that may use the registers' upper halves.
fn area_of(registers: &Registers) -> Option<*mut u8> {
    const UPPER_HALVES: u32 = 0x44;
    if MOVES.load(Ordering::Relaxed) != 0 {
        let used: u32;
        // SAFETY: reads a register that exists: `moves` has checked.
        unsafe { core::arch::asm!("xgetbv", in("ecx") 1, out("eax") used, out("edx") _, options(nomem, nostack)) };
        if used & UPPER_HALVES == 0 {
            return None;
        }
    }
    let top = core::ptr::from_ref(registers) as usize;
    Some(((top - STATE_SIZE.load(Ordering::Relaxed) as usize) & !63) as *mut u8)
}
