//! Several copies of the library in one process. The first copy serves the process, and the others leave everything to
//! the kernel. Usually the library's symbols lead to the first copy's functions in every copy. Then the calls of the
//! others reach that copy, which serves them, too. A copy that was loaded with RTLD_LOCAL or in another namespace
//! (dlmopen(3)) has its own functions, and only the kernel's answers.

#[cfg(not(test))]
use anyring_engine::thread::symbol;
use core::ffi::c_void;
#[cfg(not(test))]
use core::sync::atomic::{AtomicU8, Ordering};

/// The symbol by which copies find each other, whatever their files' names are. It holds 1 in the copy that serves.
/// Drop-ins do not export it: a program may call their functions only by a handle, and then they must serve.
#[cfg(not(test))]
#[no_mangle]
#[allow(non_upper_case_globals)]
pub static anyring_library: AtomicU8 = AtomicU8::new(0);
/// The symbol's name.
pub const NAME: &core::ffi::CStr = c"anyring_library";

/// Returns the loader's facts about an address.
pub fn loader_info(address: *const c_void) -> Option<libc::Dl_info> {
    let (name, nowhere) = (core::ptr::null(), core::ptr::null_mut());
    let mut info = libc::Dl_info { dli_fname: name, dli_fbase: nowhere, dli_sname: name, dli_saddr: nowhere };
    // SAFETY: the address is only looked up, and the structure is for the answer.
    (unsafe { libc::dladdr(address, &mut info) } != 0).then_some(info)
}

/// True if an address is in this very copy. In every copy, the library's symbols have the addresses that they have in
/// the first copy.
pub fn is_ours(address: *const c_void) -> bool {
    let base = |address| loader_info(address).map(|info| info.dli_fbase);
    base(address).is_some_and(|found| Some(found) == base(loader_info as *const c_void))
}

/// True if this copy is to serve the process: no other copy comes before it, and none serves already.
///
/// # Safety
/// Called once, by the library's constructor.
#[cfg(not(test))]
pub unsafe fn serves() -> bool {
    let Some(own) = loader_info(loader_info as *const c_void).map(|info| info.dli_fbase as usize) else {
        return true;
    };
    let (mut is_served, mut mark) = (false, None);
    // SAFETY: the caller's.
    for (base, address) in unsafe { symbol::definitions(NAME) } {
        // SAFETY: a copy's own word, which is mapped as long as the copy is.
        let word = unsafe { &*(address as *const AtomicU8) };
        match base == own {
            true => mark = Some(word),
            false => is_served |= word.load(Ordering::Relaxed) == 1,
        }
    }
    // The loader's lock orders the constructors.
    let serves = is_first() && !(is_served && mark.is_some());
    if let Some(mark) = mark.filter(|_| serves) {
        mark.store(1, Ordering::Relaxed);
    }
    serves
}

/// True if no other copy comes before this one, where the loader looks symbols up.
#[cfg(not(test))]
fn is_first() -> bool {
    // SAFETY: C strings; looks up the first definition in the process.
    let first = unsafe { libc::dlsym(libc::RTLD_DEFAULT, NAME.as_ptr()) };
    if first.is_null() || is_ours(first) {
        return true;
    }
    let Some(info) = loader_info(loader_info as *const c_void) else { return true };
    // SAFETY: the loader's name of this library, which is loaded and stays.
    let own = unsafe {
        let handle = libc::dlopen(info.dli_fname, libc::RTLD_LAZY | libc::RTLD_NOLOAD);
        if handle.is_null() {
            handle
        } else {
            libc::dlsym(handle, NAME.as_ptr())
        }
    };
    own.is_null() || !is_ours(own)
}
