//! dlopen(3) and dlmopen(3). Code that the program loads while it runs is scanned, too.
//!
//! libc searches along the RUNPATH of the calling object, which it finds by the return address. With an ordinary
//! wrapper, libc would take this library for the caller. So the wrapper gives libc another return address: that of
//! some return instruction inside the real caller's code. That instruction then returns here. On aarch64 it is one
//! that first loads the return address from the stack.

use crate::arch::{in_the_callers_name, just_return, return_in};
use crate::entry;
use crate::next::next;
use anyring_engine::forced::{point, Point};
use core::ffi::{c_char, c_int, c_void};
use libc::dl_phdr_info;

next! {
    DLOPEN = c"dlopen": fn(*const c_char, c_int) -> *mut c_void;
    DLMOPEN = c"dlmopen": fn(isize, *const c_char, c_int) -> *mut c_void;
}

/// The targets of the wrappers below, returned in two registers.
#[repr(C)]
struct Onward {
    /// libc's function.
    next: usize,
    /// A `ret` instruction to which that function returns.
    through: usize,
}

/// dlopen(3).
///
/// # Safety
/// As libc's `dlopen`.
#[cfg_attr(not(test), no_mangle)]
#[unsafe(naked)]
pub unsafe extern "C" fn dlopen(name: *const c_char, flags: c_int) -> *mut c_void {
    in_the_callers_name!(before_dlopen, opened)
}

/// dlmopen(3).
///
/// # Safety
/// As libc's `dlmopen`.
#[cfg_attr(not(test), no_mangle)]
#[unsafe(naked)]
pub unsafe extern "C" fn dlmopen(namespace: isize, name: *const c_char, flags: c_int) -> *mut c_void {
    in_the_callers_name!(before_dlmopen, opened)
}

/// Returns a handle of the loaded object with this name, which the caller must close. A null name is the program
/// itself. Calls libc's own function.
pub(super) fn object_named(name: *const c_char) -> Option<*mut c_void> {
    // SAFETY: a name from the loader, or null; nothing is loaded.
    let handle = unsafe { DLOPEN.get()?(name, libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
    (!handle.is_null()).then_some(handle)
}

/// Keeps the library mapped. Only the build with mutations needs this. It is linked without `-z nodelete` (build.rs),
/// so that a mutation can let the library be unmapped.
#[cfg(all(feature = "mutations", not(test)))]
pub(crate) fn stay() {
    use anyring_engine::mutation::{mutated, Mutation};
    if mutated(Mutation::LibraryIsUnmapped) {
        return;
    }
    let mut found = libc::Dl_info {
        dli_fname: core::ptr::null(),
        dli_fbase: core::ptr::null_mut(),
        dli_sname: core::ptr::null(),
        dli_saddr: core::ptr::null_mut(),
    };
    // SAFETY: an address of this library, and a structure for the answer.
    let known = unsafe { libc::dladdr(stay as *const c_void, &mut found) } != 0;
    let flags = libc::RTLD_LAZY | libc::RTLD_NOLOAD | libc::RTLD_NODELETE;
    if let Some(next) = DLOPEN.get().filter(|_| known) {
        // SAFETY: the loader's name of this library; nothing is loaded.
        unsafe { next(found.dli_fname, flags) };
    }
}

extern "C" fn before_dlopen(caller: usize) -> Onward {
    onward(caller, DLOPEN.get().map(|next| next as usize))
}

extern "C" fn before_dlmopen(caller: usize) -> Onward {
    onward(caller, DLMOPEN.get().map(|next| next as usize))
}

fn onward(caller: usize, next: Option<usize>) -> Onward {
    let mut through = just_return as *const () as usize;
    entry::aside(|| {
        super::loader::observe();
        through = return_instruction_near(caller).unwrap_or(through);
    });
    Onward { next: next.unwrap_or(nothing as *const () as usize), through }
}

/// Takes the place of a `ret` in the caller's code if none is found. libc then takes this library for the caller.
#[unsafe(naked)]
unsafe extern "C" fn just_return() {
    just_return!()
}

/// Takes the place of the function if libc lacks it.
extern "C" fn nothing() -> *mut c_void {
    core::ptr::null_mut()
}

extern "C" fn opened(handle: *mut c_void) {
    entry::aside(|| {
        point(Point::Dlopen);
        super::recheck(handle);
    });
}

/// Finds a `ret` instruction in the loaded segment that holds `address`.
fn return_instruction_near(address: usize) -> Option<usize> {
    struct Wanted {
        address: usize,
        code: core::ops::Range<usize>,
    }
    unsafe extern "C" fn visit(info: *mut dl_phdr_info, _size: usize, wanted: *mut c_void) -> c_int {
        // SAFETY: the loader passes a valid object description and our own argument.
        let (info, wanted) = unsafe { (&*info, &mut *wanted.cast::<Wanted>()) };
        for index in 0..usize::from(info.dlpi_phnum) {
            // SAFETY: the loader keeps that many program headers mapped.
            let header = unsafe { &*info.dlpi_phdr.add(index) };
            let start = (info.dlpi_addr as usize).wrapping_add(header.p_vaddr as usize);
            let code = start..start + header.p_filesz as usize;
            let readable_code = libc::PF_R | libc::PF_X;
            if header.p_type == libc::PT_LOAD
                && header.p_flags & readable_code == readable_code
                && code.contains(&wanted.address)
            {
                wanted.code = code;
                return 1;
            }
        }
        0
    }
    let mut wanted = Wanted { address, code: 0..0 };
    // SAFETY: `visit` is called with `wanted` before this returns.
    unsafe { libc::dl_iterate_phdr(Some(visit), (&raw mut wanted).cast()) };
    let length = wanted.code.end.checked_sub(address).filter(|_| !wanted.code.is_empty())?;
    // SAFETY: from the caller's return address to the end of its segment, mapped readable as long as it runs.
    let code = unsafe { core::slice::from_raw_parts(address as *const u8, length) };
    Some(address + return_in(code)?)
}
