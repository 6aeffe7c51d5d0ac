//! The extended state of the processor, which a program keeps across a system call.

use core::sync::atomic::{AtomicU32, Ordering};

/// Size in bytes of the extended state that the kernel enabled, with the header that follows its first 512 bytes. 0
/// before [`prepare`].
pub static STATE_SIZE: AtomicU32 = AtomicU32::new(0);
/// The instruction that saves all of the extended state: fxsave (0), xsave (1), or xsavec (2). xsavec leaves out
/// components in their initial state.
pub static SAVES_BY: AtomicU32 = AtomicU32::new(0);

/// How the trampoline saves the extended state if the upper halves of the registers are unused. 0: by [`SAVES_BY`], as
/// in other cases. 1: by moving registers 0 to 15. 2: by moving also 16 to 31 and the masks. See `moves`.
pub static MOVES: AtomicU32 = AtomicU32::new(0);

/// Determines how this processor's extended state is saved, and its size.
pub fn prepare() {
    prepare_for(has_xsave());
}

/// True if the processor has xsave, and the kernel uses it.
fn has_xsave() -> bool {
    const OSXSAVE: u32 = 1 << 27;
    core::arch::x86_64::__cpuid(1).ecx & OSXSAVE != 0
}

/// Does the work of [`prepare`] for a processor with xsave or without. Without xsave, fxsave saves the whole state.
fn prepare_for(has_xsave: bool) {
    const XSAVEC: u32 = 1 << 1;
    const FXSAVE_AND_HEADER: u32 = 512 + 64;
    let (size, saves_by, moves) = if has_xsave {
        let (standard, compacted) =
            (core::arch::x86_64::__cpuid_count(0xd, 0), core::arch::x86_64::__cpuid_count(0xd, 1));
        let saves_by = if compacted.eax & XSAVEC != 0 { 2 } else { 1 };
        (standard.ebx.max(compacted.ebx), saves_by, moves(compacted.eax))
    } else {
        (FXSAVE_AND_HEADER, 0, 0)
    };
    SAVES_BY.store(saves_by, Ordering::Relaxed);
    STATE_SIZE.store(size, Ordering::Relaxed);
    MOVES.store(moves, Ordering::Relaxed);
}

/// Returns the value of [`MOVES`] for this processor. `extensions`: those of xsave, from CPUID.
///
/// xrstor takes longer than all the other work of a call. Moving the registers takes a tenth of xrstor's time. But
/// to move the upper halves would mark them as used, which slows down each of the program's SSE instructions. So
/// registers are moved only if xgetbv reports the upper halves as unused. Nothing here touches the rest of the
/// state (x87, protection keys, tiles).
fn moves(extensions: u32) -> u32 {
    const XGETBV_OF_USED: u32 = 1 << 2;
    const AVX: u32 = 0b111;
    const AVX512: u32 = 0b111 << 5;
    // Bound registers, protection keys, tiles.
    const UNTOUCHED: u32 = 0b11 << 3 | 1 << 9 | 0b11 << 17;
    const AVX512_F_AND_BW: u32 = 1 << 16 | 1 << 30;
    let enabled = core::arch::x86_64::__cpuid_count(0xd, 0).eax & enabled();
    if extensions & XGETBV_OF_USED == 0 || enabled & AVX != AVX || enabled & !(AVX | AVX512 | UNTOUCHED) != 0 {
        return 0;
    }
    let features = core::arch::x86_64::__cpuid_count(7, 0).ebx;
    match enabled & AVX512 {
        0 => 1,
        AVX512 if features & AVX512_F_AND_BW == AVX512_F_AND_BW => 2,
        _ => 0,
    }
}

/// Returns the parts of the extended state that the kernel enabled (XCR0, its lower half).
fn enabled() -> u32 {
    let low: u32;
    // SAFETY: reads a register that exists: `has_xsave` was asked.
    unsafe { core::arch::asm!("xgetbv", in("ecx") 0, out("eax") low, out("edx") _, options(nomem, nostack)) };
    low
}

/// Expands to lines of assembly that call `{emulate}` with rdi = rbx, and leave the extended state as it was. rbx
/// points to memory of this stack, and is kept. The operands are `{moves}`, `{size}` and `{saves_by}` ([`MOVES`],
/// [`STATE_SIZE`], [`SAVES_BY`]).
#[macro_export]
macro_rules! call_keeping_state {
    () => {
        concat!(
            "cmp dword ptr [rip + {moves}], 0\n",
            "je 2f\n",
            "mov ecx, 1\n",
            "xgetbv\n",
            "test eax, 0x44\n",
            "jne 2f\n",
            "sub rsp, 1344\n",
            "and rsp, -64\n",
            ".irp n,0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15\nmovaps [rsp + 16*\\n], xmm\\n\n.endr\n",
            "cmp dword ptr [rip + {moves}], 2\n",
            "jne 3f\n",
            ".irp n,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31\nvmovdqa64 [rsp + 64*\\n - 768], zmm\\n\n.endr\n",
            ".irp n,0,1,2,3,4,5,6,7\nkmovq [rsp + 8*\\n + 1280], k\\n\n.endr\n",
            "3:\n",
            "mov rdi, rbx\n",
            "call {emulate}\n",
            "vzeroupper\n",
            ".irp n,0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15\nmovaps xmm\\n, [rsp + 16*\\n]\n.endr\n",
            "cmp dword ptr [rip + {moves}], 2\n",
            "jne 4f\n",
            ".irp n,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31\nvmovdqa64 zmm\\n, [rsp + 64*\\n - 768]\n.endr\n",
            ".irp n,0,1,2,3,4,5,6,7\nkmovq k\\n, [rsp + 8*\\n + 1280]\n.endr\n",
            "jmp 4f\n",
            "2:\n",
            "mov eax, dword ptr [rip + {size}]\n",
            "sub rsp, rax\n",
            "and rsp, -64\n",
            "xor eax, eax\n",
            ".irp n,512,520,528,536,544,552,560,568\nmov [rsp + \\n], rax\n.endr\n",
            "mov eax, -1\n",
            "mov edx, -1\n",
            "cmp dword ptr [rip + {saves_by}], 1\n",
            "je 2f\n",
            "jb 6f\n",
            "xsavec64 [rsp]\n",
            "jmp 3f\n",
            "6:\n",
            "fxsave64 [rsp]\n",
            "jmp 3f\n",
            "2:\n",
            "xsave64 [rsp]\n",
            "3:\n",
            "mov rdi, rbx\n",
            "call {emulate}\n",
            "cmp dword ptr [rip + {saves_by}], 0\n",
            "je 6f\n",
            "mov eax, -1\n",
            "mov edx, -1\n",
            "xrstor64 [rsp]\n",
            "jmp 4f\n",
            "6:\n",
            "fxrstor64 [rsp]\n",
            "4:\n",
        )
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Loads xmm0 to xmm15 and MXCSR from `values`, calls [`clobber`], and stores the registers' new values there.
    #[unsafe(naked)]
    unsafe extern "C" fn through_a_call(values: *mut [u128; 17]) {
        core::arch::naked_asm!(
            "push rbp",
            "push rbx",
            "push rdi",
            "mov rbx, rsp",
            ".irp n,0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15\nmovups xmm\\n, [rdi + 16*\\n]\n.endr",
            "ldmxcsr [rdi + 256]",
            crate::call_keeping_state!(),
            "mov rsp, rbx",
            "mov rdi, [rsp]",
            ".irp n,0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15\nmovups [rdi + 16*\\n], xmm\\n\n.endr",
            "pop rdi",
            "pop rbx",
            "pop rbp",
            "ret",
            moves = sym MOVES,
            size = sym STATE_SIZE,
            saves_by = sym SAVES_BY,
            emulate = sym clobber,
        )
    }

    #[unsafe(naked)]
    unsafe extern "C" fn clobber(_: *mut core::ffi::c_void) {
        core::arch::naked_asm!(".irp n,0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15\npxor xmm\\n, xmm\\n\n.endr", "ret",)
    }

    #[test]
    fn the_registers_are_kept_with_xsave_and_without() {
        const MXCSR_DEFAULT: u128 = 0x1f80;
        let present = [true, false].into_iter().filter(|with| !with || has_xsave());
        for with_xsave in present {
            prepare_for(with_xsave);
            assert_eq!(SAVES_BY.load(Ordering::Relaxed) == 0, !with_xsave);
            let mut values = core::array::from_fn(|index| u128::MAX / (index as u128 + 2));
            values[16] = MXCSR_DEFAULT;
            let before = values;
            // SAFETY: the array has room for the registers; the function keeps what the calling convention says.
            unsafe { through_a_call(&raw mut values) };
            assert_eq!(values, before, "with xsave: {with_xsave}");
        }
    }
}
