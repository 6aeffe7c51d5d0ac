//! Replaces trapped instructions by jumps. A trap costs 2.7 us, a jump next to nothing.
//!
//! [`patch`] replaces one of the instructions directly before the `syscall` (`serve/patch/run.rs`) with a `jmp rel32`.
//! The jump leads to an island within its reach (`island.rs`), which has a copy of the instructions from there to the
//! `syscall`. After its copy, the island compares the call's number. If it is not the number that trapped, the island
//! jumps to the `syscall` itself. Otherwise it jumps to [`patched`], which takes a stack, builds the frame that a trap
//! builds, and continues as a trap does. Afterwards rax holds the answer, rcx the return address, and r11 the flags, as
//! they do after the instruction.
//!
//! While the instruction is replaced, other threads may be at any instruction. The instructions after the replaced one
//! stay in place. A thread that has already executed the replaced instruction, or branches to a later one, traps as
//! before. Only bytes of the replaced instruction change, by one store to the aligned eight bytes that hold them. An
//! instruction fetch sees that store as a whole or not at all. The bytes of the jump beyond the instruction keep their
//! value. A core may use the old bytes for a while, which is harmless. During the store the page is writable as well as
//! executable. If the system refuses that (SELinux's execmod, or a filter), nothing changes. Since a filter may kill
//! the process for it, a child process tries it first.
//!
//! `patched` leaves difficult cases to the `syscall`, which traps. These are calls without a valid [`stack::Hint`]: a
//! thread's first call, the first after a fork, a handler's call in the middle of another. A forked child has the
//! patched page and the islands as its parent has them. After dlclose(3) unmaps an object, its islands stay until the
//! next scan. Shadow stacks are not affected by jumps. Indirect branch tracking needs an endbr only at the targets of
//! indirect jumps. [`patched`] begins with an endbr, and the jumps back to the program are `notrack`.

use super::hot::When;
use super::island::{Call, Island};
use super::object::Object;
use super::stack::{self, Hint};
use super::trap;
use crate::{probe, signals};
use anyring_serve::crossing::{Registers, PATCHED};
use anyring_serve::patch::ahead::trapping;
use anyring_serve::patch::jump::Jump;
use anyring_serve::patch::{origin, run};
use anyring_serve::{asm_on_registers, save_registers};
use core::mem::{offset_of, size_of};
use core::ops::Range;

/// Distances from the code at which no island is placed, since the program itself and the heap above it are there. If
/// an island kept the heap from growing, allocators would have to go on with mmap(2).
const AVOIDED: Range<isize> = -(1 << 20)..1 << 26;

/// True if the processor has the instructions of [`patched`].
pub fn is_supported() -> bool {
    const LAHF: u32 = 1; // absent from the first x86-64 processors
    core::arch::x86_64::__cpuid(0x8000_0001).ecx & LAHF != 0
}

/// Patches the instruction at `site`, which may make a call of one of `numbers`. The caller has blocked all signals.
pub fn patch(
    object: &Object,
    site: usize,
    numbers: &[u32],
    when: When,
    reports_faults: bool,
) -> Result<(), &'static str> {
    if !object.is_plain {
        return Err("its code is writable");
    }
    // SAFETY: the object is mapped readable, at least until this thread makes its call, which comes from the object;
    // only this library writes to it.
    let code = unsafe { core::slice::from_raw_parts(object.code.start as *const u8, object.code.len()) };
    let offset = site - object.code.start;
    let first = offset.saturating_sub(run::AROUND + run::MOVED_AT_MOST);
    let base = object.code.start + first;
    let mut code = code[first..code.len().min(offset + run::AROUND)].to_vec();
    origin::restore(&mut code, base);
    let mut starts = run::starts(&code, site - base, reports_faults);
    if when == When::Ahead {
        starts.retain(|start| !start.is_passed);
    }
    if starts.is_empty() {
        return Err("no instruction directly before it can be moved");
    }
    let jumps = Jump::before(&code, base, &starts, site - base, &AVOIDED);
    if jumps.is_empty() {
        return Err("the instructions before it cannot be replaced in one step");
    }
    if let Some(why) = probe::patching_refusal() {
        return Err(why);
    }
    let mut refusal = "";
    for jump in jumps {
        let moved = &code[jump.from - base..site - base];
        if let Some(island) = Island::built_before(&jump, numbers, site, moved) {
            return jump.store(island);
        }
        let trapping = |number| if when == When::Ahead { trapping(number) } else { u64::from(number) };
        match Island::build(object.identity(), &jump, numbers, trapping, site, moved) {
            Ok(island) => return jump.store(island).inspect_err(|_| Island::remove(island)),
            Err(reason) => refusal = reason,
        }
    }
    Err(refusal)
}

/// An island jumps here, with r11 pointing to its [`Call`]. rax and rcx are free: the mov before the `syscall` and the
/// `syscall` overwrite them. All other registers are the program's. No flag changes before the flags are saved, and
/// nothing is pushed on the program's stack.
#[unsafe(naked)]
pub unsafe extern "C" fn patched() {
    asm_on_registers!(
        // CFI as in `trampoline`: first on the program's stack, then on the library's. The `Call` has the instruction
        // pointer.
        ".cfi_startproc",
        ".cfi_signal_frame",
        ".cfi_def_cfa rsp, 0",
        ".cfi_escape 0x10, 16, 3, 0x7b, {return_address} + 128, 0",
        "endbr64",
        // If the thread is on its alternate signal stack, as far as that is known, go to the `syscall` itself, which
        // traps. During the check the flags are in rax.
        "lahf",
        "seto al",
        "mov rcx, [rip + anyring_thread_stack@GOTTPOFF]",
        "cmp rsp, fs:[rcx + {hint_alternate_top}]",
        "jae 7f",
        "cmp rsp, fs:[rcx + {hint_alternate}]",
        "jb 7f",
        "add al, 127", // sets the overflow flag where al is 1
        "sahf",
        "jmp 9f",
        "7:",
        "add al, 127",
        "sahf",
        // A hint is valid if its complement and this process's id add up to -1.
        "mov rax, [rip + anyring_thread_stack@GOTTPOFF]",
        "mov eax, fs:[rax + {hint_process}]",
        "mov rcx, [rip + {process}]",
        "mov ecx, [rcx]", // never null if something was patched
        "lea ecx, [rcx + rax + 1]",
        "jrcxz 2f",
        "jmp 9f",
        "2:",
        "mov rax, [rip + anyring_thread_stack@GOTTPOFF]",
        "mov rax, fs:[rax + {hint_slot}]",
        "mov ecx, 1",
        "xchg [rax + {busy}], ecx",
        "jrcxz 3f",
        // That stack is in use, perhaps by this thread: go to the instruction itself, which traps.
        "9:",
        "mov rax, [r11 + {trapping}]",
        "mov rcx, [r11 + {site}]",
        "notrack jmp rcx",
        "3:",
        "mov [rax + {trapped_at}], rsp",
        "mov rcx, [rip + anyring_thread_stack@GOTTPOFF]",
        "mov ecx, fs:[rcx + {hint_thread}]",
        "mov [rax + {owner}], ecx",
        "mov rcx, [rax + {base}]",
        "lea rcx, [rcx + {frame}]",
        "mov [rcx + {rsp}], rsp",
        "mov rsp, rcx",
        ".cfi_escape 0x0f, 4, 0x77, {rsp} + 128, 0, 6",
        "pushfq",
        ".cfi_escape 0x0f, 4, 0x77, {rsp} + 136, 0, 6",
        "pop rcx",
        ".cfi_escape 0x0f, 4, 0x77, {rsp} + 128, 0, 6",
        "mov [rsp + {flags}], rcx",
        "mov [rax + {slot_flags}], rcx",
        "mov [rsp + {stack}], rax",
        "mov rax, [r11 + {number}]",
        "mov rcx, [r11 + {return_address}]",
        "mov [rsp + {rax}], rax",
        "mov [rsp + {rip}], rcx",
        save_registers!(),
        "jmp {trampoline}",
        ".cfi_endproc";
        hint_process = const offset_of!(Hint, not_process),
        hint_alternate = const offset_of!(Hint, alternate),
        hint_alternate_top = const offset_of!(Hint, alternate_top),
        hint_slot = const offset_of!(Hint, slot),
        hint_thread = const offset_of!(Hint, thread),
        process = sym signals::PROCESS,
        busy = const stack::BUSY,
        owner = const stack::OWNER,
        trapped_at = const stack::TRAPPED_AT,
        base = const stack::BASE,
        slot_flags = const stack::FLAGS,
        number = const offset_of!(Call, number),
        site = const offset_of!(Call, site),
        trapping = const offset_of!(Call, trapping),
        return_address = const offset_of!(Call, return_address),
        frame = const stack::SIZE - size_of::<Registers>(),
        patch = const offset_of!(Registers, patch),
        patched = const PATCHED,
        trampoline = sym trap::trampoline,
    )
}
