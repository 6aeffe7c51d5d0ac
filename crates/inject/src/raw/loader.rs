//! Scans the objects that dlopen(3) maps before their constructors run.
//!
//! ld.so reports new objects to debuggers by calling a function that does nothing (`r_brk` of link.h's struct r_debug).
//! It does so once it has mapped everything, before it relocates or runs any of it. At the program's first dlopen, this
//! library replaces that function by a jump to its own code. A program that loads nothing keeps the function.
//!
//! The function also stays if its code is not just a `ret` (a debugger may have set a breakpoint). It stays, too, if it
//! is out of a jump's reach, or if code may not be written. In these cases the kernel answers the calls of a plugin's
//! constructors.

use super::{object, KNOWN};
use crate::arch::{popped, pushed};
use crate::{backend, probe, sys};
use anyring_engine::mutation::{mutated, Mutation};
use anyring_engine::ring::broken;
use anyring_engine::thread::{self, symbol};
use anyring_serve::entry;
use anyring_serve::patch::decode;
use anyring_serve::patch::jump::{Jump, JUMP};
use anyring_serve::patch::run::Start;
use core::arch::naked_asm;
use core::sync::atomic::{AtomicBool, Ordering};

/// True once [`observe`] has run. Relaxed: a second thread would find that the function's code is no longer a `ret`.
static OBSERVES: AtomicBool = AtomicBool::new(false);

/// True if loaded code is to be scanned before it runs.
fn scans_loaded_objects() -> bool {
    let is_known = || KNOWN.try_lock().is_some_and(|known| known.is_some());
    let declined = super::DECLINED.load(Ordering::Relaxed) || mutated(Mutation::PluginsAreNotScanned);
    !declined && super::hot::is_enabled() && backend::serves_instructions() && is_known()
}

/// Installs the jump: the program is about to load something.
pub(super) fn observe() {
    if OBSERVES.load(Ordering::Relaxed) || !scans_loaded_objects() || OBSERVES.swap(true, Ordering::Relaxed) {
        return;
    }
    let dl_debug_state = dl_debug_state as *const () as usize;
    let Some(function) = symbol::next_after(dl_debug_state, c"_dl_debug_state") else { return };
    let jump = jump_at(function).filter(|jump| jump.leads_from(dl_debug_state));
    if let Some(jump) = jump.filter(|_| probe::patching_refusal().is_none()) {
        let _ = jump.store(dl_debug_state); // a failure has the effect of a refusal
    }
}

/// Returns the jump that replaces the function. The function is a `ret`, perhaps after an endbr64, with padding up to
/// 16 bytes. After an endbr64 another thread may be just before the `ret`, so the calling thread must be the only one.
fn jump_at(function: usize) -> Option<Jump> {
    const ALIGNMENT: usize = 16;
    const RETURN: u8 = 0xc3;
    const LANDING: [u8; JUMP] = [0xf3, 0x0f, 0x1e, 0xfa, RETURN];
    if !function.is_multiple_of(ALIGNMENT) {
        return None;
    }
    // SAFETY: code of the loader, which is mapped in whole pages.
    let code = unsafe { core::slice::from_raw_parts(function as *const u8, ALIGNMENT) };
    let is_free = code.starts_with(&LANDING) && thread::is_alone() || code[0] == RETURN && fills(&code[1..]);
    let start = Start { offset: 0, length: JUMP, is_passed: false };
    is_free.then(|| Jump::new(code, function, &start, 0, &(0..0)))?
}

/// True if as many bytes as a jump needs are instructions that do nothing.
fn fills(code: &[u8]) -> bool {
    let mut at = 0;
    while at < JUMP - 1 {
        match decode::decode(code, at).filter(decode::does_nothing) {
            Some(nothing) => at += decode::length(&nothing),
            None => return false,
        }
    }
    true
}

/// Replaces ld.so's function, in the middle of dlopen(3) and dlclose(3). Its callers may rely on it to change no
/// register.
#[unsafe(naked)]
unsafe extern "C" fn dl_debug_state() {
    naked_asm!(
        ".cfi_startproc",
        "endbr64",
        pushed!("rax", "rcx", "rdx", "rsi", "rdi", "r8", "r9", "r10", "r11"), // the stack is aligned for the call
        "call {scan_new_objects}",
        popped!("r11", "r10", "r9", "r8", "rdi", "rsi", "rdx", "rcx", "rax"),
        "ret",
        ".cfi_endproc",
        scan_new_objects = sym scan_new_objects,
    )
}

/// Scans the new objects. The thread holds the loader's lock, so nothing here may end it. Another thread may hold
/// [`KNOWN`] and wait for the loader's lock. So this function does not wait for [`KNOWN`]. Objects that it leaves out
/// are scanned once dlopen(3) has loaded them.
extern "C" fn scan_new_objects() {
    let errno = sys::errno();
    let _ = broken::contain_any(|| {
        entry::inside(|| {
            if let Some(known) = KNOWN.try_lock().as_deref_mut().and_then(Option::as_mut) {
                known.holder = object::Holder::Loader;
                super::cover(known, super::When::Later);
                known.holder = object::Holder::Nobody;
            }
        });
    });
    sys::set_errno(errno);
}
