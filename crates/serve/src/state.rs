//! The extended state of the processor, which a program keeps across a system call.

use core::sync::atomic::{AtomicU32, Ordering};

/// Bytes of the extended state that the kernel enabled; 0 when this processor cannot save it in one instruction.
pub static STATE_SIZE: AtomicU32 = AtomicU32::new(0);
/// Not 0 when the processor has xsavec, which leaves out what is in its initial state.
pub static COMPACTS: AtomicU32 = AtomicU32::new(0);

/// How the trampoline saves the extended state where the upper halves of the registers are unused: not at all differently
/// (0), registers 0 to 15 (1), also 16 to 31 and the masks (2). See `moves`.
pub static MOVES: AtomicU32 = AtomicU32::new(0);

/// Learns the size of the extended state; false when trapping is not possible here.
pub fn prepare() -> bool {
    const OSXSAVE: u32 = 1 << 27;
    const XSAVEC: u32 = 1 << 1;
    let basic = core::arch::x86_64::__cpuid(1);
    if basic.ecx & OSXSAVE == 0 {
        return false;
    }
    let (standard, compacted) =
        (core::arch::x86_64::__cpuid_count(0xd, 0), core::arch::x86_64::__cpuid_count(0xd, 1));
    COMPACTS.store(compacted.eax & XSAVEC, Ordering::Relaxed);
    STATE_SIZE.store(standard.ebx.max(compacted.ebx), Ordering::Relaxed);
    MOVES.store(moves(compacted.eax), Ordering::Relaxed);
    true
}

/// Which of the ways of [`MOVES`] there is; `extensions` of xsave as CPUID tells them. xrstor takes longer than all the
/// other work of a call, and moves take a tenth of that, but would mark the upper halves as used, which makes each SSE
/// instruction of the program slower: so they are done only where these are unused, which xgetbv has to tell. The rest of
/// the state (x87, protection keys, tiles) nothing here touches.
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

/// The parts of the extended state that the kernel enabled (XCR0, its lower half).
fn enabled() -> u32 {
    let low: u32;
    // SAFETY: reads a register, which is there: OSXSAVE was seen.
    unsafe { core::arch::asm!("xgetbv", in("ecx") 0, out("eax") low, out("edx") _, options(nomem, nostack)) };
    low
}

/// Lines of assembly: call `{emulate}` with rdi = rbx, and leave the extended state as it was. rbx points to memory of this
/// stack's, and is kept. The operands are `{moves}`, `{size}` and `{compacts}` ([`MOVES`], [`STATE_SIZE`], [`COMPACTS`]).
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
            "cmp dword ptr [rip + {compacts}], 0\n",
            "je 2f\n",
            "xsavec64 [rsp]\n",
            "jmp 3f\n",
            "2:\n",
            "xsave64 [rsp]\n",
            "3:\n",
            "mov rdi, rbx\n",
            "call {emulate}\n",
            "mov eax, -1\n",
            "mov edx, -1\n",
            "xrstor64 [rsp]\n",
            "4:\n",
        )
    };
}
