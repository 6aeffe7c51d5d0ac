//! system(3), popen(3) and wordexp(3) start a shell inside libc, with the process's own environment. If the shell
//! cannot load this library ([`preload`]), the library must not be in that environment's LD_PRELOAD.

use crate::entry;
use crate::exec::own_environment;
use crate::next::{missing, next};
use anyring_serve::exec::preload;
use core::ffi::{c_char, c_int, c_void, CStr};
use core::sync::atomic::{AtomicPtr, Ordering};
use libc::FILE;

next! {
    SYSTEM = c"system": fn(*const c_char) -> c_int;
    POPEN = c"popen": fn(*const c_char, *const c_char) -> *mut FILE;
    WORDEXP = c"wordexp": fn(*const c_char, *mut c_void, c_int) -> c_int;
}

/// The last replacement for LD_PRELOAD, a C string. It is never freed, since another thread may still read it.
static MEANWHILE: AtomicPtr<c_char> = AtomicPtr::new(core::ptr::null_mut());

/// Finds a string for which `is_it` holds in the environment. Returns the address of its pointer.
fn place(is_it: impl Fn(*const c_char) -> bool) -> Option<*mut *const c_char> {
    // SAFETY: libc's list, which ends with a null pointer. A thread that changes the list during the search races with
    // libc in any case.
    unsafe {
        let mut at = own_environment().cast_mut();
        while !at.is_null() && !(*at).is_null() {
            if is_it(*at) {
                return Some(at);
            }
            at = at.add(1);
        }
        None
    }
}

/// The LD_PRELOAD of the process while it starts a shell.
struct Hidden {
    before: *const c_char,
    meanwhile: *const c_char,
}

impl Hidden {
    /// Removes the entries that cannot be loaded from LD_PRELOAD. A shell that another thread starts before `end` may
    /// lack them, too.
    fn begin() -> Option<Hidden> {
        // SAFETY: strings of the environment.
        let bytes = |string| unsafe { CStr::from_ptr(string) }.to_bytes_with_nul();
        let at = place(|string| bytes(string).starts_with(preload::NAME))?;
        let mut rest = [0; preload::LONGEST];
        // SAFETY: found in the list just now.
        let before = unsafe { *at };
        let rest = preload::shortened(before as usize + preload::NAME.len(), false, &mut rest)?;
        let string = [preload::NAME, rest, &[0]].concat();
        let mut meanwhile = MEANWHILE.load(Ordering::Acquire); // partner: the Release below
        if meanwhile.is_null() || bytes(meanwhile) != string {
            meanwhile = Box::leak(string.into_boxed_slice()).as_mut_ptr().cast();
            MEANWHILE.store(meanwhile, Ordering::Release); // partner: the Acquire above
        }
        // SAFETY: as above.
        unsafe { *at = meanwhile };
        Some(Hidden { before, meanwhile })
    }

    fn end(self) {
        if let Some(at) = place(|string| string == self.meanwhile) {
            // SAFETY: found in the list just now; a string that was there before.
            unsafe { *at = self.before };
        }
    }
}

/// Makes a call that starts a shell. If the thread is cancelled during the call, the entries stay hidden.
fn start<T>(call: impl FnOnce() -> T) -> T {
    let mut hidden = None;
    entry::aside(|| hidden = Hidden::begin());
    let answer = call();
    entry::aside(|| {
        if let Some(hidden) = hidden.take() {
            hidden.end();
        }
    });
    answer
}

/// system(3).
///
/// # Safety
/// As libc's `system`.
#[cfg_attr(not(test), no_mangle)]
pub unsafe extern "C-unwind" fn system(command: *const c_char) -> c_int {
    // SAFETY: the caller's own argument.
    SYSTEM.get().map_or_else(missing, |next| start(|| unsafe { next(command) }))
}

/// popen(3).
///
/// # Safety
/// As libc's `popen`.
#[cfg_attr(not(test), no_mangle)]
pub unsafe extern "C-unwind" fn popen(command: *const c_char, kind: *const c_char) -> *mut FILE {
    let Some(next) = POPEN.get() else {
        missing();
        return core::ptr::null_mut();
    };
    // SAFETY: the caller's own arguments.
    start(|| unsafe { next(command, kind) })
}

/// wordexp(3).
///
/// # Safety
/// As libc's `wordexp`.
#[cfg_attr(not(test), no_mangle)]
pub unsafe extern "C-unwind" fn wordexp(words: *const c_char, found: *mut c_void, flags: c_int) -> c_int {
    // SAFETY: the caller's own arguments.
    WORDEXP.get().map_or_else(missing, |next| start(|| unsafe { next(words, found, flags) }))
}
