//! The code for aarch64: the same names as in `x86_64.rs`.

/// The numbers of calls that may make a child in its parent's memory. Empty: on aarch64 the library does not record
/// such calls, and asks the kernel for the process id instead.
pub const LENDERS: &[i64] = &[];

/// Calls that close or replace a descriptor, and exist on this processor only.
pub const CLOSES: &[i64] = &[];

/// Waits whose descriptors are in memory, which a filter cannot read. Any of them may be a ring.
pub const WAITS: &[i64] = &[libc::SYS_ppoll];

/// Waits that concern a ring only if their first argument is large enough to include its number.
pub const SELECTS: &[i64] = &[libc::SYS_pselect6];

/// libc's `syscall()`: calls `$special` for the numbers below `$limit` whose bits are set in `$ours`.
macro_rules! syscall {
    ($limit:path, $ours:path, $special:path) => {
        core::arch::naked_asm!(
            ".cfi_startproc",
            "cmp x0, {limit}",
            "b.hs 2f",
            "lsr x9, x0, 6",
            "adrp x10, {ours}",
            "add x10, x10, :lo12:{ours}",
            "ldr x9, [x10, x9, lsl 3]",
            "lsr x9, x9, x0", // takes the number modulo 64
            "tbnz x9, 0, 4f",
            "2:",
            "mov x8, x0",
            "mov x0, x1",
            "mov x1, x2",
            "mov x2, x3",
            "mov x3, x4",
            "mov x4, x5",
            "mov x5, x6",
            "svc 0",
            "cmn x0, 4095",
            "b.hs 3f",
            "ret",
            "3:",
            "neg x0, x0",
            "stp x30, x0, [sp, -16]!",
            ".cfi_adjust_cfa_offset 16",
            ".cfi_rel_offset x30, 0",
            "bl {errno}",
            "ldp x30, x9, [sp], 16",
            ".cfi_adjust_cfa_offset -16",
            ".cfi_restore x30",
            "str w9, [x0]",
            "mov x0, -1",
            "ret",
            "4:", // number and arguments become an array of 7 words
            "sub sp, sp, 64",
            ".cfi_adjust_cfa_offset 64",
            "stp x0, x1, [sp]",
            "stp x2, x3, [sp, 16]",
            "stp x4, x5, [sp, 32]",
            "stp x6, x30, [sp, 48]",
            ".cfi_rel_offset x30, 56",
            "mov x0, sp",
            "bl {special}",
            "ldr x30, [sp, 56]",
            ".cfi_restore x30",
            "add sp, sp, 64",
            ".cfi_adjust_cfa_offset -64",
            "ret",
            ".cfi_endproc",
            limit = const $limit,
            ours = sym $ours,
            errno = sym libc::__errno_location,
            special = sym $special,
        )
    };
}
pub(crate) use syscall;

/// Calls `next` with the first argument and the address of a list of the others. The arguments in registers are stored
/// below those that are on the stack already, which makes them one list.
macro_rules! with_list {
    ($next:path) => {
        core::arch::naked_asm!(
            ".cfi_startproc",
            "sub sp, sp, 64",
            ".cfi_adjust_cfa_offset 64",
            "str x30, [sp]",
            ".cfi_rel_offset x30, 0",
            "stp x1, x2, [sp, 8]",
            "stp x3, x4, [sp, 24]",
            "stp x5, x6, [sp, 40]",
            "str x7, [sp, 56]",
            "add x1, sp, 8",
            "bl {next}",
            "ldr x30, [sp]",
            ".cfi_restore x30",
            "add sp, sp, 64",
            ".cfi_adjust_cfa_offset -64",
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
            "sub sp, sp, 32",
            ".cfi_adjust_cfa_offset 32",
            "stp x0, x1, [sp]",
            "stp x2, x30, [sp, 16]",
            ".cfi_rel_offset x30, 24",
            "bl {find}",
            "mov x16, x0",
            "mov x17, x1",
            "ldp x0, x1, [sp]",
            "ldp x2, x30, [sp, 16]",
            ".cfi_restore x30",
            "add sp, sp, 32",
            ".cfi_adjust_cfa_offset -32",
            "cbz x16, 2f",
            "br x16",
            "2:",
            "mov x0, x17",
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
        "b"
    };
}
pub(crate) use jump;

/// Jumps to the address that a word of this library holds.
macro_rules! jump_by {
    ($word:expr) => {
        concat!("adrp x16, ", $word, "\nldr x16, [x16, :lo12:", $word, "]\nbr x16\n")
    };
}
pub(crate) use jump_by;

/// The version of glibc's oldest symbols. On aarch64 glibc began with 2.17.
macro_rules! oldest {
    ($version:literal) => {
        "@GLIBC_2.17"
    };
}
pub(crate) use oldest;

/// Calls the next definition of the function in such a way that it takes the program for its caller. Then calls
/// `$opened` with the answer. `$prepare` gets the caller's address, and returns the two targets. The second loads
/// x29 and x30 from the stack before it returns.
macro_rules! in_the_callers_name {
    ($prepare:path, $opened:path) => {
        core::arch::naked_asm!(
            ".cfi_startproc",
            "stp x29, x30, [sp, -48]!",
            ".cfi_adjust_cfa_offset 48",
            ".cfi_rel_offset x29, 0",
            ".cfi_rel_offset x30, 8",
            "stp x0, x1, [sp, 16]",
            "str x2, [sp, 32]",
            "mov x0, x30",
            "bl {prepare}",
            "mov x16, x0",
            "mov x30, x1",
            "ldp x0, x1, [sp, 16]",
            "ldr x2, [sp, 32]",
            "adr x9, 2f",
            "stp x29, x9, [sp, -16]!", // libc returns to the instruction that loads these
            ".cfi_adjust_cfa_offset 16",
            "br x16",
            ".cfi_adjust_cfa_offset -16",
            "2:",
            "str x0, [sp, 16]",
            "bl {opened}",
            "ldr x0, [sp, 16]",
            "ldp x29, x30, [sp], 48",
            ".cfi_adjust_cfa_offset -48",
            ".cfi_restore x29",
            ".cfi_restore x30",
            "ret",
            ".cfi_endproc",
            prepare = sym $prepare,
            opened = sym $opened,
        )
    };
}
pub(crate) use in_the_callers_name;

/// The code that takes the place of such a return if the caller has none: it returns to the address on the stack.
macro_rules! just_return {
    () => {
        core::arch::naked_asm!("ldp x29, x30, [sp], 16", "ret")
    };
}
pub(crate) use just_return;

/// Returns the offset of the first `ldp x29, x30, [sp], 16` that a `ret` follows, in code that begins at a multiple of
/// 4.
pub fn return_in(code: &[u8]) -> Option<usize> {
    const RETURN: [u8; 8] = 0xd65f_03c0_a8c1_7bfd_u64.to_le_bytes();
    let mut words = code.windows(RETURN.len()).step_by(4);
    words.position(|words| words == RETURN).map(|index| index * 4)
}
