//! The definition of a symbol that the program would use without this library.
//!
//! Each wrapper pre-empts another definition, usually libc's, perhaps that of a further preloaded library. This next
//! definition is looked up at start-up, or at the first call if that is earlier, and its address is kept. Two threads
//! may look it up at once, since both find the same address.

use crate::joined;
use core::ffi::{c_int, c_void, CStr};
use core::marker::PhantomData;
use core::sync::atomic::{AtomicPtr, Ordering};

/// The next definition of one symbol, of function pointer type `F`.
pub struct Next<F> {
    name: &'static CStr,
    address: AtomicPtr<c_void>,
    signature: PhantomData<F>,
}

// SAFETY: holds an atomic and a static name; `F` is only a type.
unsafe impl<F> Sync for Next<F> {}

impl<F: Copy> Next<F> {
    /// # Safety
    /// `F` must be the `extern "C"` function pointer type of the C function `name`.
    pub const unsafe fn new(name: &'static CStr) -> Self {
        assert!(size_of::<F>() == size_of::<*mut c_void>());
        Next { name, address: AtomicPtr::new(core::ptr::null_mut()), signature: PhantomData }
    }

    /// Returns the function, or `None` if no later library defines it (an older libc). errno is untouched.
    #[inline]
    pub fn get(&self) -> Option<F> {
        let mut address = self.address.load(Ordering::Relaxed);
        if address.is_null() {
            address = self.look_up()?;
        }
        // SAFETY: `address` is the function `name`, whose type is `F` by the contract of `new`.
        Some(unsafe { core::mem::transmute_copy(&address) })
    }

    #[cold]
    fn look_up(&self) -> Option<*mut c_void> {
        joined::complete();
        // SAFETY: `name` is a C string; RTLD_NEXT searches the libraries after this one.
        let mut address = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
        if address.is_null() {
            address = joined::find(self.name)?;
        }
        self.address.store(address, Ordering::Relaxed);
        Some(address)
    }
}

/// Answers for a wrapper whose function no later library has. Sets errno to ENOSYS and returns -1, as a kernel without
/// the call does.
pub fn missing() -> c_int {
    crate::sys::set_errno(libc::ENOSYS);
    -1
}

/// Declares the next definitions that a file of wrappers needs.
macro_rules! next {
    ($($name:ident = $symbol:literal: fn($($arg:ty),*) $(-> $answer:ty)?;)*) => {$(
        pub(super) static $name: $crate::next::Next<unsafe extern "C-unwind" fn($($arg),*) $(-> $answer)?> = {
            // SAFETY: the type is the function's declaration in the C header, on x86-64.
            unsafe { $crate::next::Next::new($symbol) }
        };
    )*

    /// Looks all of these definitions up. dlsym(3) clears the message that dlerror(3) would have returned. So this must
    /// not happen between a failed dlopen(3) of the program and its dlerror(3).
    #[cfg(not(test))]
    pub(crate) fn resolve() {
        $($name.get();)*
    }};
}
pub(crate) use next;
