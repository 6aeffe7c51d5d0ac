//! longjmp(3) and its relatives. If a signal handler jumps out of a call, the locks and other things that the call
//! holds are released first.

use crate::next::next;
use crate::signals::mask;
use crate::{door, entry, raw};
use core::ffi::{c_int, c_void};

next! {
    LONGJMP = c"longjmp": fn(*mut c_void, c_int);
    LONGJMP_PLAIN = c"_longjmp": fn(*mut c_void, c_int);
    SIGLONGJMP = c"siglongjmp": fn(*mut c_void, c_int);
    LONGJMP_CHK = c"__longjmp_chk": fn(*mut c_void, c_int);
}

/// Releases everything that the calling thread holds in the calls that it is about to leave.
pub fn leaving() {
    entry::aside(|| {
        door::leaving_by_jump();
        raw::leaving_by_jump();
    });
}

macro_rules! jumps {
    ($($name:ident = $next:ident;)*) => { $(
        /// Notifies the engine, then calls libc's function of the same name.
        ///
        /// # Safety
        /// As longjmp(3): the environment was filled by a function that has not returned.
        #[cfg_attr(not(test), no_mangle)]
        pub unsafe extern "C-unwind" fn $name(environment: *mut c_void, value: c_int) {
            leaving();
            if let Some(next) = $next.get() {
                // SAFETY: the caller's own arguments; this frame holds nothing that would have to be dropped.
                unsafe {
                    mask::leaving_by_jump(environment);
                    next(environment, value)
                }
            }
        }
    )* };
}

jumps! {
    longjmp = LONGJMP;
    _longjmp = LONGJMP_PLAIN;
    siglongjmp = SIGLONGJMP;
    __longjmp_chk = LONGJMP_CHK;
}
