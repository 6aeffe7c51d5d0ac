//! From the SIGSYS of a trapped instruction to the emulated call and back.
//!
//! The handler emulates nothing: it takes a stack, writes the program's registers to its top, and lets the signal
//! return into [`trampoline`], which runs the call outside any handler, with the program's signal mask, so that a
//! blocking call is as interruptible as the real one. The program's stack is not touched, its red zone least of all.
//!
//! A patched call reaches [`trampoline`] without the signal, from [`super::patch`].

use super::filter::MARK;
use super::patch;
use super::scan;
use super::stack::{self, Slot};
use crate::signals::action;
use crate::{dispatch, entry, signals, sys};
use anyring_engine::forced::{point, Point};
use anyring_engine::mutation::{mutated, Mutation};
use anyring_engine::ring::broken::contain_any;
use anyring_engine::stats;
use anyring_serve::signals::trap::trapped_call;
use anyring_serve::state::{MOVES, SAVES_BY, STATE_SIZE};
use core::mem::{align_of, offset_of, size_of};
use core::sync::atomic::Ordering;
use libc::{siginfo_t, ucontext_t};

/// The program's registers, at the top of an emulation stack.
#[repr(C, align(64))]
pub struct Registers {
    pub rax: u64,
    pub rdi: u64,
    pub rsi: u64,
    pub rdx: u64,
    pub r10: u64,
    pub r8: u64,
    pub r9: u64,
    pub rbx: u64,
    pub rbp: u64,
    pub r12: u64,
    pub r13: u64,
    pub r14: u64,
    pub r15: u64,
    pub rsp: u64,
    pub rip: u64,
    pub flags: u64,
    pub slot: *const Slot,
    /// 1 when the instruction is to be patched before the call is made, [`patch::PATCHED`] when no trap led here.
    pub patch: u64,
    /// The context of the trap by whose rt_sigreturn(2) the emulation ends, if the program was on its alternate signal stack,
    /// on which that frame stays; else 0.
    pub context: u64,
    /// Then: the program's signal mask.
    pub mask: u64,
}

/// Bytes of an alternate signal stack that a call of ours may need: with less it is refused, since there was no memory for a
/// stack of its own.
const ROOM: usize = 64 << 10;

/// The guard on SIGSYS: true when the trap came from our filter.
///
/// # Safety
/// As [`crate::signals::Guard`].
pub unsafe fn guard(context: &mut ucontext_t, info: &siginfo_t) -> bool {
    let Some(number) = trapped_call(info, MARK) else { return false };
    let this = core::ptr::from_mut(context) as u64;
    let alternate = &mut context.uc_stack;
    let gregs = context.uc_mcontext.gregs;
    let register = |index: i32| gregs[index as usize] as u64;
    let (trapped_at, flags) = (register(libc::REG_RSP), register(libc::REG_EFL));
    // Without a stack, or if taking one panics, the call is made here, if there is room.
    let slot = contain_any(|| stack::take(trapped_at as usize, flags, alternate)).flatten();
    let Some(slot) = slot else {
        let args = [libc::REG_RDI, libc::REG_RSI, libc::REG_RDX, libc::REG_R10, libc::REG_R8, libc::REG_R9];
        let args = args.map(|index| register(index) as usize);
        if scan::is_ours(u64::from(number as u32))
            && stack::room_on(alternate, this as usize).is_some_and(|room| room < ROOM)
        {
            context.uc_mcontext.gregs[libc::REG_RAX as usize] = -i64::from(libc::ENOMEM);
            return true;
        }
        // SAFETY: the first word of uc_sigmask is all that the kernel has filled in.
        action::set_mask(unsafe { (&raw const context.uc_sigmask).cast::<u64>().read() });
        let answer = entry::answer_any(|| dispatch::call(i64::from(number), args));
        context.uc_mcontext.gregs[libc::REG_RAX as usize] = answer as i64;
        return true;
    };
    let saved = Registers {
        rax: number as u64,
        rdi: register(libc::REG_RDI),
        rsi: register(libc::REG_RSI),
        rdx: register(libc::REG_RDX),
        r10: register(libc::REG_R10),
        r8: register(libc::REG_R8),
        r9: register(libc::REG_R9),
        rbx: register(libc::REG_RBX),
        rbp: register(libc::REG_RBP),
        r12: register(libc::REG_R12),
        r13: register(libc::REG_R13),
        r14: register(libc::REG_R14),
        r15: register(libc::REG_R15),
        rsp: trapped_at,
        rip: register(libc::REG_RIP),
        flags,
        slot,
        patch: u64::from(patch::is_due(number, register(libc::REG_RIP) as usize)),
        context: if slot.note_disabled(trapped_at as usize, alternate) { this } else { 0 },
        // SAFETY: the first word of uc_sigmask is all that the kernel has filled in.
        mask: unsafe { (&raw const context.uc_sigmask).cast::<u64>().read() },
    };
    if saved.context != 0 {
        // SAFETY: as above; rt_sigreturn reads it.
        unsafe { (&raw mut context.uc_sigmask).cast::<u64>().write(u64::MAX) };
    }
    let frame = match mutated(Mutation::TrampolineOnTheProgramsStack) {
        true => (trapped_at as usize - size_of::<Registers>()) & !(align_of::<Registers>() - 1),
        false => slot.top() - size_of::<Registers>(),
    } as *mut Registers;
    // SAFETY: the stack is mapped, was just taken by this thread, and its top is aligned to a page. With the mutation it is the
    // stack that the program has trapped on, below its pointer.
    unsafe { frame.write(saved) };
    context.uc_mcontext.gregs[libc::REG_RSP as usize] = frame as i64;
    context.uc_mcontext.gregs[libc::REG_RIP as usize] = trampoline as *const () as i64;
    true
}

/// `naked_asm!` in which the fields of [`Registers`] are known by their names. What else the lines name follows a `;`.
macro_rules! asm_on_registers {
    ($($line:expr),+; $($operands:tt)*) => {
        core::arch::naked_asm!(
            $($line,)+
            rax = const offset_of!(Registers, rax),
            rdi = const offset_of!(Registers, rdi),
            rsi = const offset_of!(Registers, rsi),
            rdx = const offset_of!(Registers, rdx),
            r10 = const offset_of!(Registers, r10),
            r8 = const offset_of!(Registers, r8),
            r9 = const offset_of!(Registers, r9),
            rbx = const offset_of!(Registers, rbx),
            rbp = const offset_of!(Registers, rbp),
            r12 = const offset_of!(Registers, r12),
            r13 = const offset_of!(Registers, r13),
            r14 = const offset_of!(Registers, r14),
            r15 = const offset_of!(Registers, r15),
            rsp = const offset_of!(Registers, rsp),
            rip = const offset_of!(Registers, rip),
            flags = const offset_of!(Registers, flags),
            slot = const offset_of!(Registers, slot),
            context = const offset_of!(Registers, context),
            $($operands)*
        )
    };
}
pub(super) use asm_on_registers;

/// Where a trapped thread goes on: rsp points to its [`Registers`], the extended state is as the program left it.
#[unsafe(naked)]
pub unsafe extern "C" fn trampoline() {
    // What unwinders and debuggers need to know: the program's stack pointer is the frame's address, and where the registers
    // are that a function keeps. As with a signal frame, the instruction pointer is no return address.
    const _: () = assert!(offset_of!(Registers, rip) < 128, "each offset is `offset + 128, 0` as a signed LEB128");
    asm_on_registers!(
        ".cfi_startproc",
        ".cfi_signal_frame",
        // Of each line, the second number is the register that points to the frame: rsp.
        ".cfi_escape 0x0f, 4, 0x77, {rsp} + 128, 0, 6",
        ".cfi_escape 0x10, 3, 3, 0x77, {rbx} + 128, 0",
        ".cfi_escape 0x10, 6, 3, 0x77, {rbp} + 128, 0",
        ".cfi_escape 0x10, 12, 3, 0x77, {r12} + 128, 0",
        ".cfi_escape 0x10, 13, 3, 0x77, {r13} + 128, 0",
        ".cfi_escape 0x10, 14, 3, 0x77, {r14} + 128, 0",
        ".cfi_escape 0x10, 15, 3, 0x77, {r15} + 128, 0",
        ".cfi_escape 0x10, 16, 3, 0x77, {rip} + 128, 0",
        "cld",
        "mov rbx, rsp",
        ".cfi_remember_state",
        // The same by rbx.
        ".cfi_escape 0x0f, 4, 0x73, {rsp} + 128, 0, 6",
        ".cfi_escape 0x10, 3, 3, 0x73, {rbx} + 128, 0",
        ".cfi_escape 0x10, 6, 3, 0x73, {rbp} + 128, 0",
        ".cfi_escape 0x10, 12, 3, 0x73, {r12} + 128, 0",
        ".cfi_escape 0x10, 13, 3, 0x73, {r13} + 128, 0",
        ".cfi_escape 0x10, 14, 3, 0x73, {r14} + 128, 0",
        ".cfi_escape 0x10, 15, 3, 0x73, {r15} + 128, 0",
        ".cfi_escape 0x10, 16, 3, 0x73, {rip} + 128, 0",
        anyring_serve::call_keeping_state!(),
        "mov rsp, rbx",
        "cmp qword ptr [rsp + {context}], 0",
        "jne 5f",
        "push qword ptr [rsp + {flags}]",
        "popfq", // no instruction below changes a flag
        ".cfi_restore_state",
        ".cfi_remember_state",
        "mov rax, [rsp + {rax}]",
        "mov rdi, [rsp + {rdi}]",
        "mov rsi, [rsp + {rsi}]",
        "mov rdx, [rsp + {rdx}]",
        "mov r10, [rsp + {r10}]",
        "mov r8, [rsp + {r8}]",
        "mov r9, [rsp + {r9}]",
        "mov rbx, [rsp + {rbx}]",
        "mov rbp, [rsp + {rbp}]",
        "mov r12, [rsp + {r12}]",
        "mov r13, [rsp + {r13}]",
        "mov r14, [rsp + {r14}]",
        "mov r15, [rsp + {r15}]",
        "mov rcx, [rsp + {rip}]",
        "mov r11, [rsp + {slot}]",
        "mov rsp, [rsp + {rsp}]",
        ".cfi_def_cfa rsp, 0",
        ".irp n,rbx,rbp,r12,r13,r14,r15\n.cfi_same_value \\n\n.endr",
        ".cfi_register rip, rcx",
        // Off the stack: give it back. Its next user may be a handler on this thread, before the next instruction;
        // then r11 gets the flags of that call, which no program can rely on.
        "mov qword ptr [r11 + {owner}], 0",
        "mov r11, [r11 + {slot_flags}]",
        "notrack jmp rcx",
        // Back in the frame of the trap, on the alternate stack, which is disabled until the call below: give the stack back.
        "5:",
        ".cfi_restore_state",
        "mov r11, [rsp + {slot}]",
        "mov rsp, [rsp + {context}]",
        "mov qword ptr [r11 + {alternate_size}], 0",
        "mov qword ptr [r11 + {owner}], 0",
        "mov eax, {sigreturn}",
        "syscall",
        "ud2",
        ".cfi_endproc";
        alternate_size = const stack::ALTERNATE_SIZE,
        sigreturn = const libc::SYS_rt_sigreturn,
        moves = sym MOVES,
        size = sym STATE_SIZE,
        saves_by = sym SAVES_BY,
        emulate = sym emulate,
        owner = const stack::OWNER,
        slot_flags = const stack::FLAGS,
    )
}

/// Makes the trapped call and leaves its answer where the program's rax comes from.
unsafe extern "C" fn emulate(registers: *mut Registers) {
    // SAFETY: the trampoline passes the frame at the top of its own stack.
    let registers = unsafe { &mut *registers };
    let saved = mutated(Mutation::ExtendedStateIsLost).then(|| area_of(registers)).flatten();
    let args = [registers.rdi, registers.rsi, registers.rdx, registers.r10, registers.r8, registers.r9];
    let errno = sys::errno();
    if registers.context != 0 {
        disable_alternate(registers.mask);
    }
    if registers.patch != patch::PATCHED {
        stats::stats().traps.fetch_add(1, Ordering::Relaxed);
    }
    if registers.patch == 1 {
        entry::aside(|| patch::apply(registers.rip as usize, registers.rax as u32));
    }
    let answer = entry::answer_any(|| {
        point(Point::Trap);
        dispatch::call(registers.rax as i64, args.map(|arg| arg as usize))
    });
    sys::set_errno(errno);
    registers.rax = answer as u64;
    if registers.context != 0 {
        // SAFETY: the frame of the trap, which nothing touches while the alternate stack is disabled.
        unsafe { end_by_sigreturn(registers, &mut *(registers.context as *mut ucontext_t)) };
    }
    if let Some(area) = saved {
        // SAFETY: the header of the area that the trampoline has filled below `registers`; xrstor takes a component whose bit
        // here is 0 to its initial state.
        unsafe { area.add(512).cast::<u64>().write(0) };
    }
}

/// No alternate signal stack from now on, and the program's mask: the thread is off that stack by now, with all signals blocked.
fn disable_alternate(mask: u64) {
    let disabled = libc::stack_t { ss_sp: core::ptr::null_mut(), ss_flags: libc::SS_DISABLE, ss_size: 0 };
    // SAFETY: a local, which the kernel reads. What was set is in the slot.
    unsafe { sys::call(libc::SYS_sigaltstack, [&raw const disabled as usize, 0, 0, 0, 0, 0]) };
    signals::action::set_mask(mask);
}

/// Makes the context of the trap the one in which the program goes on behind its instruction: with the mask that it has now,
/// which the call may have changed. Its alternate stack is as it was.
///
/// # Safety
/// `registers` and `context` are those of one trap.
unsafe fn end_by_sigreturn(registers: &Registers, context: &mut ucontext_t) {
    let gregs = &mut context.uc_mcontext.gregs;
    for (index, value) in
        [(libc::REG_RAX, registers.rax), (libc::REG_RSP, registers.rsp), (libc::REG_RIP, registers.rip)]
    {
        gregs[index as usize] = value as i64;
    }
    let mut mask = 0_u64;
    let ask = [libc::SIG_BLOCK as usize, 0, &raw mut mask as usize, 8, 0, 0];
    // SAFETY: the set is a local; the first word of uc_sigmask is all that rt_sigreturn reads.
    unsafe {
        sys::call(libc::SYS_rt_sigprocmask, ask);
        (&raw mut context.uc_sigmask).cast::<u64>().write(mask);
    }
}

/// Where the trampoline has saved the extended state in one instruction, if it has: not where it only moves registers. Asked before
/// anything else, which may use their upper halves.
fn area_of(registers: &Registers) -> Option<*mut u8> {
    const UPPER_HALVES: u32 = 0x44;
    if MOVES.load(Ordering::Relaxed) != 0 {
        let used: u32;
        // SAFETY: reads a register, which is there: `moves` has asked.
        unsafe { core::arch::asm!("xgetbv", in("ecx") 1, out("eax") used, out("edx") _, options(nomem, nostack)) };
        if used & UPPER_HALVES == 0 {
            return None;
        }
    }
    let top = core::ptr::from_ref(registers) as usize;
    Some(((top - STATE_SIZE.load(Ordering::Relaxed) as usize) & !63) as *mut u8)
}
