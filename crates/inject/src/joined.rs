//! Functions that were in libpthread.so.0 and libdl.so.2 before glibc 2.34. Since that release they are in libc.so.6.
//!
//! libanyring.so depends on libc.so.6 alone. Small images have no other library, and the loader would refuse to start
//! any program there if one were missing. Each of these functions is therefore called through a word that holds its
//! address. The loader fills in the word if it finds the function: in libc.so.6, in musl, or in a library that the
//! program depends on. On an older glibc, a program without threads has no such library. There the constructor loads
//! the two libraries by libc's own loader functions.

use crate::arch;
use core::ffi::{c_char, c_int, c_void, CStr};
use core::sync::atomic::{AtomicPtr, Ordering};

/// Defines each function, which is hidden in this library, and the word with its address. Functions and words are in
/// the same order.
macro_rules! joined {
    ($($name:ident $version:literal;)*) => {
        core::arch::global_asm!(
            ".pushsection .data.anyring_joined, \"aw\"\n.balign 8\n.hidden anyring_joined\n.globl anyring_joined\nanyring_joined:\n",
            $(concat!(
                ".weak anyring_joined_", stringify!($name), "\n",
                ".symver anyring_joined_", stringify!($name), ", ", stringify!($name), arch::oldest!($version), "\n",
                "anyring_word_", stringify!($name), ": .quad anyring_joined_", stringify!($name), "\n",
            ),)*
            // glibc's own, until 2.33: its parts load each other by them.
            ".weak __libc_dlopen_mode\n.weak __libc_dlsym\n.quad __libc_dlopen_mode, __libc_dlsym\n.popsection\n",
            $(concat!(
                ".globl ", stringify!($name), "\n.hidden ", stringify!($name), "\n.type ", stringify!($name), ", @function\n",
                stringify!($name), ": .cfi_startproc\n", arch::jump_by!(concat!("anyring_word_", stringify!($name))),
                ".cfi_endproc\n"
            ),)*
            // The unwinder looks for this name to learn whether there may be threads.
            ".globl __pthread_key_create\n.hidden __pthread_key_create\n.set __pthread_key_create, pthread_key_create\n",
        );
        const NAMES: &[&CStr] = &[$(
            // SAFETY: a name without a zero, and one after it.
            unsafe { CStr::from_bytes_with_nul_unchecked(concat!(stringify!($name), "\0").as_bytes()) },
        )*];
    };
}

joined! {
    dladdr "2.2.5";
    dlclose "2.2.5";
    dlinfo "2.3.3";
    pthread_attr_setstacksize "2.2.5";
    pthread_detach "2.2.5";
    pthread_getspecific "2.2.5";
    pthread_join "2.2.5";
    pthread_key_create "2.2.5";
    pthread_key_delete "2.2.5";
    pthread_once "2.2.5";
    pthread_setspecific "2.2.5";
}

type Word = AtomicPtr<c_void>;
/// The handles of the two libraries, if they were loaded here.
static LOADED: [Word; 2] = [const { AtomicPtr::new(core::ptr::null_mut()) }; 2];
/// `__RTLD_DLOPEN` of glibc's include/dlfcn.h.
const BY_LIBC: c_int = c_int::MIN;

extern "C" {
    /// One word for each of [`NAMES`], and two for libc's functions that open a library.
    #[link_name = "anyring_joined"]
    static WORDS: [Word; NAMES.len() + 2];
}

type Open = unsafe extern "C" fn(*const c_char, c_int) -> *mut c_void;
type Find = unsafe extern "C" fn(*mut c_void, *const c_char) -> *mut c_void;

fn words() -> (&'static [Word], Option<(Open, Find)>) {
    // SAFETY: defined above, with as many words, which are only used as atomics.
    let (words, openers) = unsafe { WORDS.split_at(NAMES.len()) };
    // Relaxed, as everywhere here: any other thread stores the same.
    let [open, find] = [0, 1].map(|at: usize| openers[at].load(Ordering::Relaxed));
    // SAFETY: glibc's functions of these names have these types.
    let openers = unsafe {
        (
            core::mem::transmute::<*mut c_void, Option<Open>>(open),
            core::mem::transmute::<*mut c_void, Option<Find>>(find),
        )
    };
    (words, openers.0.zip(openers.1))
}

/// Loads the two libraries if necessary, so that each function can be called. Runs before other code of the process, or
/// at the first use if that is earlier.
pub fn complete() {
    let (words, openers) = words();
    let is_absent = |word: &Word| word.load(Ordering::Relaxed).is_null();
    if !words.iter().any(is_absent) {
        return;
    }
    if let Some((open, find)) = openers {
        load(words, open, find);
    }
    for (word, name) in words.iter().zip(NAMES).filter(|(word, _)| is_absent(word)) {
        let instead = match name.to_bytes() {
            b"pthread_getspecific" | b"dladdr" => nothing as *const (),
            _ => refused as *const (),
        };
        word.store(instead.cast_mut().cast(), Ordering::Relaxed);
    }
}

fn load(words: &[Word], open: Open, find: Find) {
    for (library, place) in [c"libpthread.so.0", c"libdl.so.2"].into_iter().zip(&LOADED) {
        // Not RTLD_GLOBAL: before _dl_init begins, it would lengthen the loader's list of objects to initialise. The
        // loader has already stored the list's length.
        // SAFETY: a C string; the loader runs the initialisers that the two libraries and libc need.
        let handle = unsafe { open(library.as_ptr(), libc::RTLD_NOW | BY_LIBC) };
        place.store(handle, Ordering::Relaxed);
        if handle.is_null() {
            continue;
        }
        for (word, name) in words.iter().zip(NAMES).filter(|(word, _)| word.load(Ordering::Relaxed).is_null()) {
            // SAFETY: a handle that was just opened, and a C string.
            word.store(unsafe { find(handle, name.as_ptr()) }, Ordering::Relaxed);
        }
    }
}

/// Returns the function of this name in one of the libraries that were loaded here. Only needed for functions that
/// nothing else in the process defines.
pub fn find(name: &CStr) -> Option<*mut c_void> {
    let (_, find) = words().1?;
    let handles = LOADED.iter().map(|place| place.load(Ordering::Relaxed)).filter(|handle| !handle.is_null());
    // SAFETY: a handle that is never closed, and a C string.
    handles.map(|handle| unsafe { find(handle, name.as_ptr()) }).find(|address| !address.is_null())
}

/// Takes the place of dlsym(3) if there is no libdl. It finds functions of libc.
pub unsafe extern "C" fn find_in_libc(_handle: *mut c_void, name: *const c_char) -> *mut c_void {
    let Some((open, find)) = words().1 else { return core::ptr::null_mut() };
    // SAFETY: C strings, of ours and of the caller; libc is there.
    unsafe { find(open(c"libc.so.6".as_ptr(), libc::RTLD_NOW | BY_LIBC), name) }
}

/// Takes the place of a missing function that returns a pointer, or 0 if it finds nothing.
extern "C" fn nothing() -> usize {
    0
}

/// Takes the place of a missing function that returns an error number.
extern "C" fn refused() -> c_int {
    libc::EAGAIN
}
