//! The assembly for x86-64 at which the program's calls of libc arrive.

/// The numbers of calls that may make a child which runs in its parent's memory. [`syscall`] records such calls.
pub const LENDERS: &[i64] = &[libc::SYS_vfork, libc::SYS_clone, libc::SYS_clone3];

/// Calls that close or replace a descriptor, and exist on this processor only.
pub const CLOSES: &[i64] = &[libc::SYS_dup2];

/// Waits whose descriptors are in memory, which a filter cannot read. Any of them may be a ring.
pub const WAITS: &[i64] = &[libc::SYS_poll, libc::SYS_ppoll];

/// Waits that concern a ring only if their first argument is large enough to include its number.
pub const SELECTS: &[i64] = &[libc::SYS_select, libc::SYS_pselect6];

/// Lines of assembly that push registers, with CFI for unwinders.
macro_rules! pushed {
    ($($register:literal),*) => { concat!($("push ", $register, "\n.cfi_adjust_cfa_offset 8\n"),*) };
}
pub(crate) use pushed;

/// Lines of assembly that pop registers, with CFI for unwinders.
macro_rules! popped {
    ($($register:literal),*) => { concat!($("pop ", $register, "\n.cfi_adjust_cfa_offset -8\n"),*) };
}
pub(crate) use popped;

/// Lines of assembly that set errno from the error in eax, by `{errno}`, and return -1.
macro_rules! failed {
    () => {
        concat!(
            "neg eax\n",
            "push rax\n", // also aligns the stack for the call
            ".cfi_adjust_cfa_offset 8\n",
            "call {errno}\n",
            "pop rcx\n",
            ".cfi_adjust_cfa_offset -8\n",
            "mov [rax], ecx\n",
            "mov rax, -1\n",
            "ret\n",
        )
    };
}
pub(crate) use failed;

/// libc's `syscall()`: calls `$special` for the numbers below `$limit` whose bits are set in `$ours`.
macro_rules! syscall {
    ($limit:path, $ours:path, $special:path) => {
        core::arch::naked_asm!(
            ".cfi_startproc",
            "cmp rdi, {limit}",
            "jae 2f",
            "mov eax, edi",
            "shr eax, 6",
            "lea r11, [rip + {ours}]",
            "mov r11, [r11 + rax * 8]",
            "bt r11, rdi", // takes the number modulo 64
            "jc 4f",
            "2:",
            "mov rax, rdi",
            "mov rdi, rsi",
            "mov rsi, rdx",
            "mov rdx, rcx",
            "mov r10, r8",
            "mov r8, r9",
            "mov r9, [rsp + 8]", // the seventh C argument
            "syscall",
            "cmp rax, -4095",
            "jae 3f",
            "ret",
            "3:",
            $crate::arch::failed!(),
            "5:", // a child may run in this memory: no frame here
            "mov byte ptr [rip + {made}], 1",
            "jmp 2b",
            "4:",
            "cmp edi, {vfork}",
            "je 5b",
            "cmp edi, {clone}",
            "je 5b",
            "cmp edi, {clone3}",
            "je 5b",
            // Number and arguments become an array: 7 words, which also align the stack.
            "mov r11, [rsp + 8]",
            "sub rsp, 56",
            ".cfi_adjust_cfa_offset 56",
            "mov [rsp], rdi",
            "mov [rsp + 8], rsi",
            "mov [rsp + 16], rdx",
            "mov [rsp + 24], rcx",
            "mov [rsp + 32], r8",
            "mov [rsp + 40], r9",
            "mov [rsp + 48], r11",
            "mov rdi, rsp",
            "call {special}",
            "add rsp, 56",
            ".cfi_adjust_cfa_offset -56",
            "ret",
            ".cfi_endproc",
            limit = const $limit,
            ours = sym $ours,
            errno = sym libc::__errno_location,
            special = sym $special,
            made = sym anyring_engine::os::borrowed::MADE,
            vfork = const libc::SYS_vfork,
            clone = const libc::SYS_clone,
            clone3 = const libc::SYS_clone3,
        )
    };
}
pub(crate) use syscall;

/// Calls `next` with the first argument and the address of a list of the others. The arguments in registers are pushed
/// in place of the return address, below those that are on the stack already, which makes them one list.
macro_rules! with_list {
    ($next:path) => {
        core::arch::naked_asm!(
            ".cfi_startproc",
            "pop rax",
            ".cfi_adjust_cfa_offset -8",
            ".cfi_register rip, rax",
            "push r9",
            ".cfi_adjust_cfa_offset 8",
            "push r8",
            ".cfi_adjust_cfa_offset 8",
            "push rcx",
            ".cfi_adjust_cfa_offset 8",
            "push rdx",
            ".cfi_adjust_cfa_offset 8",
            "push rsi",
            ".cfi_adjust_cfa_offset 8",
            "mov rsi, rsp",
            "push rax",
            ".cfi_adjust_cfa_offset 8",
            ".cfi_offset rip, -48",
            "call {next}",
            "pop rcx",
            ".cfi_adjust_cfa_offset -8",
            ".cfi_register rip, rcx",
            "add rsp, 40",
            ".cfi_adjust_cfa_offset -40",
            "push rcx",
            ".cfi_adjust_cfa_offset 8",
            ".cfi_offset rip, -8",
            "ret",
            ".cfi_endproc",
            next = sym $next,
        )
    };
}
pub(crate) use with_list;

/// Calls `$find` with the caller's arguments, then jumps with them to the address that it returns. If that is 0,
/// returns its answer.
macro_rules! looked_up {
    ($find:path) => {
        core::arch::naked_asm!(
            ".cfi_startproc",
            $crate::arch::pushed!("rdi", "rsi", "rdx"), // the stack is aligned for the call
            "call {find}",
            "mov r11, rax",
            "mov rax, rdx",
            $crate::arch::popped!("rdx", "rsi", "rdi"),
            "test r11, r11",
            "jz 2f",
            "jmp r11",
            "2:",
            "ret",
            ".cfi_endproc",
            find = sym $find,
        )
    };
}
pub(crate) use looked_up;

/// The branch instruction.
macro_rules! jump {
    () => {
        "jmp"
    };
}
pub(crate) use jump;

/// Jumps to the address that a word of this library holds.
macro_rules! jump_by {
    ($word:expr) => {
        concat!("jmp qword ptr [rip + ", $word, "]\n")
    };
}
pub(crate) use jump_by;

/// The version of glibc's oldest symbols.
macro_rules! oldest {
    ($version:literal) => {
        concat!("@GLIBC_", $version)
    };
}
pub(crate) use oldest;

/// Calls the next definition of the function in such a way that it takes the program for its caller. Then calls
/// `$opened` with the answer. `$prepare` gets the caller's address, and returns the two targets.
macro_rules! in_the_callers_name {
    ($prepare:path, $opened:path) => {
        core::arch::naked_asm!(
            ".cfi_startproc",
            $crate::arch::pushed!("rdi", "rsi", "rdx"),
            "mov rdi, [rsp + 24]", // our return address; the stack is aligned for the call
            "call {prepare}",
            "mov r11, rax",
            "mov rax, rdx",
            $crate::arch::popped!("rdx", "rsi", "rdi"),
            "lea rcx, [rip + 2f]",
            "push rcx",
            ".cfi_adjust_cfa_offset 8",
            "push rax", // libc returns to this `ret`, which returns to the label
            ".cfi_adjust_cfa_offset 8",
            "jmp r11",
            ".cfi_adjust_cfa_offset -16",
            "2:",
            "push rax",
            ".cfi_adjust_cfa_offset 8",
            "mov rdi, rax",
            "call {opened}",
            "pop rax",
            ".cfi_adjust_cfa_offset -8",
            "ret",
            ".cfi_endproc",
            prepare = sym $prepare,
            opened = sym $opened,
        )
    };
}
pub(crate) use in_the_callers_name;

/// A return instruction, for a caller without any.
macro_rules! just_return {
    () => {
        core::arch::naked_asm!("ret")
    };
}
pub(crate) use just_return;

/// Returns the offset of the first `ret` in some code.
pub fn return_in(code: &[u8]) -> Option<usize> {
    const RETURN: u8 = 0xc3;
    memchr::memchr(RETURN, code)
}
