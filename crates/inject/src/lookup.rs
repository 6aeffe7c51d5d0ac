//! dlsym(3) and dlvsym(3): a caller that looks up libc's `syscall()` by a handle (ctypes, cffi, LuaJIT, JNA) gets this
//! library's.
//!
//! libc looks up every other name. The wrappers reach libc by a jump, since the meaning of RTLD_NEXT depends on the
//! return address. This library's own lookups arrive here, too. So libc's dlsym and dlvsym are found without a call of
//! either.

use crate::{arch, joined, syscall};
use anyring_engine::thread::symbol;
use core::ffi::{c_char, c_void, CStr};
use core::sync::atomic::{AtomicUsize, Ordering};

type Find = unsafe extern "C" fn(*mut c_void, *const c_char, *const c_char) -> *mut c_void;

/// The libc function that a wrapper here pre-empts. The address is 0 until it is looked up. Relaxed: every lookup finds
/// the same address.
struct Behind(&'static CStr, AtomicUsize);

static DLSYM: Behind = Behind(c"dlsym", AtomicUsize::new(0));
static DLVSYM: Behind = Behind(c"dlvsym", AtomicUsize::new(0));
static SYSCALL: Behind = Behind(c"syscall", AtomicUsize::new(0));

impl Behind {
    fn address(&self) -> Option<usize> {
        match self.1.load(Ordering::Relaxed) {
            0 => {
                let found = symbol::next_after(found_by_dlsym as *const () as usize, self.0)?;
                self.1.store(found, Ordering::Relaxed);
                Some(found)
            }
            found => Some(found),
        }
    }
}

/// The result of the functions below, returned in two registers.
#[repr(C)]
pub struct Found {
    /// The address to jump to; 0 if the answer is known.
    next: usize,
    answer: *mut c_void,
}

/// dlsym(3).
///
/// # Safety
/// As libc's `dlsym`.
#[cfg_attr(not(test), no_mangle)]
#[unsafe(naked)]
pub unsafe extern "C" fn dlsym(handle: *mut c_void, name: *const c_char) -> *mut c_void {
    arch::looked_up!(found_by_dlsym)
}

/// dlvsym(3).
///
/// # Safety
/// As libc's `dlvsym`.
#[cfg_attr(not(test), no_mangle)]
#[unsafe(naked)]
pub unsafe extern "C" fn dlvsym(handle: *mut c_void, name: *const c_char, version: *const c_char) -> *mut c_void {
    arch::looked_up!(found_by_dlvsym)
}

unsafe extern "C" fn found_by_dlsym(handle: *mut c_void, name: *const c_char, _: *const c_char) -> Found {
    let next = DLSYM.address().unwrap_or(joined::find_in_libc as *const () as usize);
    // SAFETY: the caller's own arguments.
    unsafe { found(next, handle, name, core::ptr::null()) }
}

unsafe extern "C" fn found_by_dlvsym(handle: *mut c_void, name: *const c_char, version: *const c_char) -> Found {
    let next = DLVSYM.address().unwrap_or(nothing as *const () as usize);
    // SAFETY: as above.
    unsafe { found(next, handle, name, version) }
}

/// Takes the place of the function if libc lacks it.
extern "C" fn nothing() -> *mut c_void {
    core::ptr::null_mut()
}

/// # Safety
/// `next` is libc's function, and the others are its arguments.
unsafe fn found(next: usize, handle: *mut c_void, name: *const c_char, version: *const c_char) -> Found {
    let ours = syscall::syscall as *mut c_void;
    // SAFETY: a name that the caller vouches for.
    if name.is_null() || unsafe { CStr::from_ptr(name) } != SYSCALL.0 {
        return Found { next, answer: core::ptr::null_mut() };
    }
    if handle == libc::RTLD_NEXT {
        return Found { next: 0, answer: ours };
    }
    // SAFETY: the function's type, or a longer one, whose last argument dlsym ignores.
    let there = unsafe { core::mem::transmute::<usize, Find>(next)(handle, name, version) };
    let is_libcs = !there.is_null() && SYSCALL.address() == Some(there as usize);
    Found { next: 0, answer: if is_libcs { ours } else { there } }
}
