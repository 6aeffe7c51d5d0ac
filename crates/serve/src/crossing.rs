//! The trap crossing: how a thread that trapped with a system call gets to the engine, and then back to the program's
//! next instruction.
//!
//! The SIGSYS handler makes no call. It takes a stack, writes the program's registers to its top, and lets the signal
//! return into a trampoline there (`crossing!`). The trampoline makes the call outside any handler, with the program's
//! signal mask. A blocking call is therefore as interruptible as the real one. The program's stack, with its red zone,
//! is not touched. The preloaded library and the guest host each decide which stack a call gets. In a guest, the call
//! is made in the host's world.

use crate::sys;
use core::mem::{offset_of, size_of};
use libc::ucontext_t;

/// The value of [`Registers::patch`] for a call that came by a jump instead of a trap.
pub const PATCHED: u64 = 2;

/// The program's registers, at the top of one of the engine's stacks.
#[repr(C, align(64))]
#[derive(Clone, Copy)]
#[allow(missing_docs)] // named like the registers
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
    /// The address of the stack's record, which says who uses it.
    pub stack: u64,
    /// 1 if the instruction must be patched before the call is made, or [`PATCHED`] if the call came by a jump.
    pub patch: u64,
    /// The trap's context, to which rt_sigreturn(2) returns at the end of the call. 0 unless the program was on its
    /// alternate signal stack, where the trap's frame stays.
    pub context: u64,
    /// The program's signal mask. It is set only together with `context`.
    pub mask: u64,
    /// The FS base of a guest's world, to which the thread returns.
    pub fs: u64,
    /// The address of a guest thread's record.
    pub block: u64,
}

// The tables of `crossing!` write each offset as `offset + 128, 0`, a signed LEB128.
const _: () = assert!(offset_of!(Registers, rip) < 128);

/// Returns the signal mask of a context: one word, all that the kernel fills in and rt_sigreturn(2) reads.
fn mask_of(context: &mut ucontext_t) -> &mut u64 {
    // SAFETY: sigset_t is larger, as aligned, and borrowed as long as the context is.
    unsafe { &mut *(&raw mut context.uc_sigmask).cast::<u64>() }
}

impl Registers {
    /// Returns the registers of a thread that has trapped with call `number`.
    pub fn of(context: &ucontext_t, number: i32) -> Registers {
        let register = |index: i32| context.uc_mcontext.gregs[index as usize] as u64;
        Registers {
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
            rsp: register(libc::REG_RSP),
            rip: register(libc::REG_RIP),
            flags: register(libc::REG_EFL),
            stack: 0,
            patch: 0,
            context: 0,
            mask: 0,
            fs: 0,
            block: 0,
        }
    }

    /// Returns the call's number.
    pub fn number(&self) -> i64 {
        self.rax as i64
    }

    /// Makes the program continue with this stack pointer.
    pub fn set_stack(&mut self, stack: usize) {
        self.rsp = stack as u64;
    }

    /// Returns the thread pointer of a guest's world.
    pub fn thread_pointer(&self) -> usize {
        self.fs as usize
    }

    /// Makes the guest continue with this thread pointer.
    pub fn set_thread_pointer(&mut self, pointer: usize) {
        self.fs = pointer as u64;
    }

    /// Returns the call's arguments.
    pub fn args(&self) -> [usize; 6] {
        [self.rdi, self.rsi, self.rdx, self.r10, self.r8, self.r9].map(|arg| arg as usize)
    }

    /// Makes the trap return into `trampoline`, on the stack that ends at `top`. If the program was on its alternate
    /// signal stack, all signals are blocked until that stack is disabled ([`Registers::begin`]).
    ///
    /// # Safety
    /// The stack is mapped and this thread's alone, and `top` is aligned like `Registers`.
    pub unsafe fn cross(
        mut self,
        context: &mut ucontext_t,
        top: usize,
        is_alternate: bool,
        trampoline: unsafe extern "C" fn(),
    ) {
        if is_alternate {
            self.context = core::ptr::from_mut(context) as u64;
            self.mask = core::mem::replace(mask_of(context), u64::MAX);
        }
        let frame = (top - size_of::<Registers>()) as *mut Registers;
        // SAFETY: the caller vouches for it.
        unsafe { frame.write(self) };
        context.uc_mcontext.gregs[libc::REG_RSP as usize] = frame as i64;
        context.uc_mcontext.gregs[libc::REG_RIP as usize] = trampoline as *const () as i64;
    }

    /// Begins the call, outside the handler. If the thread came from its alternate signal stack, disables that stack
    /// and sets the program's mask again. The record of the engine's stack keeps the alternate stack's settings.
    pub fn begin(&self) {
        if self.context != 0 {
            let disabled = libc::stack_t { ss_sp: core::ptr::null_mut(), ss_flags: libc::SS_DISABLE, ss_size: 0 };
            // SAFETY: a local, which the kernel reads.
            unsafe { sys::call(libc::SYS_sigaltstack, [&raw const disabled as usize, 0, 0, 0, 0, 0]) };
            sys::set_mask(self.mask);
        }
    }

    /// Stores the call's answer. If the call ends by rt_sigreturn(2), this function makes the trap's context resume the
    /// program after its instruction. The context gets the program's current mask, which the call may have changed. All
    /// signals are blocked until the context is restored. The thread is about to be on its alternate stack again,
    /// and the kernel does not know that yet.
    ///
    /// # Safety
    /// The trampoline passed `self`.
    pub unsafe fn end(&mut self, answer: u64) {
        self.rax = answer;
        if self.context == 0 {
            return;
        }
        // SAFETY: the frame of the trap, which nothing touches while the alternate stack is disabled.
        let context = unsafe { &mut *(self.context as *mut ucontext_t) };
        *mask_of(context) = sys::set_mask(u64::MAX);
        let gregs = &mut context.uc_mcontext.gregs;
        gregs[libc::REG_RAX as usize] = self.rax as i64;
        gregs[libc::REG_RSP as usize] = self.rsp as i64;
        gregs[libc::REG_RIP as usize] = self.rip as i64;
    }
}

/// Expands to `naked_asm!` in which the fields of [`Registers`] have names. Other operands of the lines follow a `;`.
#[macro_export]
macro_rules! asm_on_registers {
    ($($line:expr),+; $($operands:tt)*) => {
        core::arch::naked_asm!(
            $($line,)+
            rax = const core::mem::offset_of!($crate::crossing::Registers, rax),
            rdi = const core::mem::offset_of!($crate::crossing::Registers, rdi),
            rsi = const core::mem::offset_of!($crate::crossing::Registers, rsi),
            rdx = const core::mem::offset_of!($crate::crossing::Registers, rdx),
            r10 = const core::mem::offset_of!($crate::crossing::Registers, r10),
            r8 = const core::mem::offset_of!($crate::crossing::Registers, r8),
            r9 = const core::mem::offset_of!($crate::crossing::Registers, r9),
            rbx = const core::mem::offset_of!($crate::crossing::Registers, rbx),
            rbp = const core::mem::offset_of!($crate::crossing::Registers, rbp),
            r12 = const core::mem::offset_of!($crate::crossing::Registers, r12),
            r13 = const core::mem::offset_of!($crate::crossing::Registers, r13),
            r14 = const core::mem::offset_of!($crate::crossing::Registers, r14),
            r15 = const core::mem::offset_of!($crate::crossing::Registers, r15),
            rsp = const core::mem::offset_of!($crate::crossing::Registers, rsp),
            rip = const core::mem::offset_of!($crate::crossing::Registers, rip),
            flags = const core::mem::offset_of!($crate::crossing::Registers, flags),
            stack = const core::mem::offset_of!($crate::crossing::Registers, stack),
            context = const core::mem::offset_of!($crate::crossing::Registers, context),
            $($operands)*
        )
    };
}

/// Expands to the lines of assembly that begin a call that came by a jump. They save the registers that still hold the
/// program's values to the frame at rsp. They also mark the frame as that of a jump. Operands in addition to those of
/// [`asm_on_registers!`]: `{patch}` and `{patched}`.
#[macro_export]
macro_rules! save_registers {
    () => {
        concat!(
            "mov qword ptr [rsp + {patch}], {patched}\n",
            "mov qword ptr [rsp + {context}], 0\n",
            "mov [rsp + {rdi}], rdi\n",
            "mov [rsp + {rsi}], rsi\n",
            "mov [rsp + {rdx}], rdx\n",
            "mov [rsp + {r10}], r10\n",
            "mov [rsp + {r8}], r8\n",
            "mov [rsp + {r9}], r9\n",
            "mov [rsp + {rbx}], rbx\n",
            "mov [rsp + {rbp}], rbp\n",
            "mov [rsp + {r12}], r12\n",
            "mov [rsp + {r13}], r13\n",
            "mov [rsp + {r14}], r14\n",
            "mov [rsp + {r15}], r15\n",
        )
    };
}

/// Expands to the body of a naked function in which a trapped thread continues. At its start rsp points to the
/// thread's [`Registers`], and the extended state is the program's.
///
/// - `enter` and `leave`: lines around the call, which use rbx and rsp.
/// - `resume`: the label from which on the registers are loaded.
/// - `give_back`: marks the stack as free. r11 holds [`Registers::stack`].
/// - `enabled`: marks the alternate signal stack as the kernel's again. r11 is the same.
///
/// After these come the operands of the assembly, `emulate` and `stack_flags` among them.
#[macro_export]
macro_rules! crossing {
    (enter: $enter:literal, leave: $leave:literal, resume: $resume:literal, give_back: $give_back:literal,
     enabled: $enabled:literal; $($operands:tt)*) => {
        $crate::asm_on_registers!(
            // For unwinders and debuggers: the program's stack pointer is the frame's address, and the callee-saved
            // registers are in the frame. As with a signal frame, the instruction pointer is no return address.
            ".cfi_startproc",
            ".cfi_signal_frame",
            // The second number of each line is the register that points to the frame: rsp.
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
            // The same table, relative to rbx.
            ".cfi_escape 0x0f, 4, 0x73, {rsp} + 128, 0, 6",
            ".cfi_escape 0x10, 3, 3, 0x73, {rbx} + 128, 0",
            ".cfi_escape 0x10, 6, 3, 0x73, {rbp} + 128, 0",
            ".cfi_escape 0x10, 12, 3, 0x73, {r12} + 128, 0",
            ".cfi_escape 0x10, 13, 3, 0x73, {r13} + 128, 0",
            ".cfi_escape 0x10, 14, 3, 0x73, {r14} + 128, 0",
            ".cfi_escape 0x10, 15, 3, 0x73, {r15} + 128, 0",
            ".cfi_escape 0x10, 16, 3, 0x73, {rip} + 128, 0",
            $enter,
            $crate::call_keeping_state!(),
            "mov rsp, rbx",
            $leave,
            "cmp qword ptr [rsp + {context}], 0",
            "jne 5f",
            $resume,
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
            "mov r11, [rsp + {stack}]",
            "mov rsp, [rsp + {rsp}]",
            ".cfi_def_cfa rsp, 0",
            ".irp n,rbx,rbp,r12,r13,r14,r15\n.cfi_same_value \\n\n.endr",
            ".cfi_register rip, rcx",
            // The thread has left the stack, so it is released only now. A handler on this thread may use the stack
            // before the next instruction. Then r11 gets the flags of the handler's call, but no program can rely on
            // r11.
            $give_back,
            "mov r11, [r11 + {stack_flags}]",
            "notrack jmp rcx",
            // Back to the frame of the trap, on the alternate stack, with all signals blocked. From that frame the
            // kernel restores the mask and the alternate stack.
            "5:",
            ".cfi_restore_state",
            "mov r11, [rsp + {stack}]",
            "mov rsp, [rsp + {context}]",
            $enabled,
            $give_back,
            "mov eax, {sigreturn}",
            "syscall",
            "ud2",
            ".cfi_endproc";
            sigreturn = const libc::SYS_rt_sigreturn,
            moves = sym $crate::state::MOVES,
            size = sym $crate::state::STATE_SIZE,
            saves_by = sym $crate::state::SAVES_BY,
            $($operands)*
        )
    };
}
