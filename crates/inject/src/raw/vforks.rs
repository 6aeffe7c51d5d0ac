//! vfork(2) and clone(2). A child that runs in its parent's memory is recorded ([`borrowed`]). So wrappers need not ask
//! the kernel each time which process they are in. libc's own children of that kind (posix_spawn(3), system(3)) call no
//! wrapper.
#![cfg_attr(test, allow(dead_code))] // unit tests use libc's own

use crate::arch::{failed, popped, pushed};
use crate::copy;
use crate::next::Next;
use crate::{entry, signals};
use anyring_engine::os::borrowed;
use core::arch::naked_asm;
use core::ffi::{c_int, c_void, CStr};
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

type CloneType = unsafe extern "C" fn(*mut c_void, *mut c_void, c_int, *mut c_void, ...) -> c_int;
// SAFETY: the function's declaration in the C header.
static CLONE: Next<CloneType> = unsafe { Next::new(c"clone") };

/// The address of libc's `clone`. Relaxed: every lookup finds the same address.
static NEXT_CLONE: AtomicUsize = AtomicUsize::new(0);

/// True if the program calls the functions in this file, and not a sanitizer's functions of the same names. Relaxed:
/// stored once, at the start.
static CALLED: AtomicBool = AtomicBool::new(false);

/// Sets `CALLED`, and looks up libc's function: see [`next`](crate::next).
pub fn resolve() {
    let names: [&CStr; 3] = [c"vfork", c"clone", c"syscall"];
    // SAFETY: C strings; looks up the first definition in the process.
    let is_ours = |name: &&CStr| copy::is_ours(unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) });
    CALLED.store(names.iter().all(is_ours), Ordering::Relaxed);
    find_clone();
}

/// Decides whether the wrappers see every child that runs in this memory. If they do, most calls need not ask the
/// kernel for the process id. `unseen`: some instruction of the program may make such a child.
pub fn update_seen(unseen: bool) {
    borrowed::are_seen(!unseen && CALLED.load(Ordering::Relaxed));
}

/// Records that this process is a forked child, if that has not happened yet. Otherwise a child that it makes in its
/// memory would be taken for the process itself.
extern "C" fn notice() {
    entry::aside(|| _ = signals::in_borrowed_memory());
}

/// vfork(2). The child returns from this function before its parent. So nothing may be on the stack, and the system
/// call is made here instead of in libc.
///
/// # Safety
/// As libc's `vfork`.
#[cfg_attr(not(test), no_mangle)]
#[unsafe(naked)]
pub unsafe extern "C" fn vfork() -> c_int {
    naked_asm!(
        ".cfi_startproc",
        "sub rsp, 8",
        ".cfi_adjust_cfa_offset 8",
        "call {notice}",
        "add rsp, 8",
        ".cfi_adjust_cfa_offset -8",
        "mov r9, [rip + anyring_thread_vforks@GOTTPOFF]",
        "mov r8d, fs:[r9]",
        "mov dword ptr fs:[r9], 1",
        "pop rdi", // the return address, which the child overwrites on the stack
        ".cfi_adjust_cfa_offset -8",
        ".cfi_register rip, rdi",
        "mov eax, {number}",
        "syscall",
        "push rdi",
        ".cfi_adjust_cfa_offset 8",
        ".cfi_offset rip, -8",
        "test eax, eax",
        "jz 3f",
        "mov fs:[r9], r8d",
        "js 4f",
        "ret",
        "3:",
        // With a shadow stack (CET) the child leaves the parent's entry there.
        "xor esi, esi",
        "rdsspq rsi",
        "test rsi, rsi",
        "jnz 5f",
        "ret",
        "5:",
        "mov esi, 1",
        "incsspq rsi",
        "add rsp, 8",
        ".cfi_adjust_cfa_offset -8",
        ".cfi_register rip, rdi",
        "jmp rdi",
        "4:",
        ".cfi_adjust_cfa_offset 8",
        ".cfi_offset rip, -8",
        failed!(),
        ".cfi_endproc",
        notice = sym notice,
        number = const libc::SYS_vfork,
        errno = sym libc::__errno_location,
    )
}

/// [`vfork`] under glibc's other name for it.
///
/// # Safety
/// As libc's `vfork`.
#[cfg_attr(not(test), no_mangle)]
#[unsafe(naked)]
pub unsafe extern "C" fn __vfork() -> c_int {
    naked_asm!("jmp {vfork}", vfork = sym vfork)
}

/// clone(2). Records a child process that shares this memory. The record stays, since the child may run at the same
/// time as its parent.
///
/// # Safety
/// As libc's `clone`.
#[cfg_attr(not(test), no_mangle)]
#[unsafe(naked)]
pub unsafe extern "C" fn clone() -> c_int {
    naked_asm!(
        ".cfi_startproc",
        "mov eax, edx",
        "and eax, {shares}",
        "cmp eax, {memory}",
        "jne 2f",
        "mov byte ptr [rip + {made}], 1",
        "jmp 3f",
        "2:",
        "mov rax, [rip + {next}]",
        "test rax, rax",
        "jz 3f",
        "jmp rax",
        "3:", // for such a child, and before the constructor
        pushed!("rdi", "rsi", "rdx", "rcx", "r8", "r9"),
        "sub rsp, 8",
        ".cfi_adjust_cfa_offset 8",
        "call {find}",
        "add rsp, 8",
        ".cfi_adjust_cfa_offset -8",
        popped!("r9", "r8", "rcx", "rdx", "rsi", "rdi"),
        "jmp rax",
        ".cfi_endproc",
        shares = const libc::CLONE_VM | libc::CLONE_THREAD,
        memory = const libc::CLONE_VM,
        made = sym borrowed::MADE,
        next = sym NEXT_CLONE,
        find = sym find_clone,
    )
}

/// [`clone`] under glibc's other name for it.
///
/// # Safety
/// As libc's `clone`.
#[cfg_attr(not(test), no_mangle)]
#[unsafe(naked)]
pub unsafe extern "C" fn __clone() -> c_int {
    naked_asm!("jmp {clone}", clone = sym clone)
}

/// Calls [`notice`], then returns the address of libc's function for [`clone`].
extern "C" fn find_clone() -> usize {
    notice();
    let found = CLONE.get().map_or(crate::next::missing as *const () as usize, |next| next as usize);
    NEXT_CLONE.store(found, Ordering::Relaxed);
    found
}
