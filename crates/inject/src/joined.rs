//! What was in libpthread.so.0 and libdl.so.2 before glibc 2.34, and is in libc.so.6 since.
//!
//! libanyring.so needs libc.so.6 alone: small images have nothing else, and a library that needs more would end each program there. So
//! what it calls of these goes by a word that the loader fills in where it finds the function: in libc.so.6, in musl, or in a library
//! that the program has brought along. Where it does not, in an older glibc's program without threads, the constructor has that load
//! the two.

use crate::arch;
use core::ffi::{c_char, c_int, c_void, CStr};
use core::sync::atomic::{AtomicPtr, Ordering};

/// Defines each function, hidden in this library, and its word, in this order.
macro_rules! joined {
    ($($name:ident $version:literal;)*) => {
        core::arch::global_asm!(
            ".pushsection .data.anyring_joined, \"aw\"\n.balign 8\n.hidden anyring_joined\n.globl anyring_joined\nanyring_joined:\n",
            $(concat!(
                ".weak anyring_joined_", stringify!($name), "\n",
                ".symver anyring_joined_", stringify!($name), ", ", stringify!($name), arch::oldest!($version), "\n",
                "anyring_word_", stringify!($name), ": .quad anyring_joined_", stringify!($name), "\n",
            ),)*
            // glibc's own, until 2.33; by them its parts load each other.
            ".weak __libc_dlopen_mode\n.weak __libc_dlsym\n.quad __libc_dlopen_mode, __libc_dlsym\n.popsection\n",
            $(concat!(
                ".globl ", stringify!($name), "\n.hidden ", stringify!($name), "\n.type ", stringify!($name), ", @function\n",
                stringify!($name), ": .cfi_startproc\n", arch::jump_by!(concat!("anyring_word_", stringify!($name))),
                ".cfi_endproc\n"
            ),)*
            // By this name the unwinder looks whether there may be threads.
            ".globl __pthread_key_create\n.hidden __pthread_key_create\n.set __pthread_key_create, pthread_key_create\n",
        );
        const NAMES: &[&CStr] = &[$(
            // SAFETY: a name without a zero, and one behind it.
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
/// The two, where they were loaded here.
static LOADED: [Word; 2] = [const { AtomicPtr::new(core::ptr::null_mut()) }; 2];
/// `__RTLD_DLOPEN` of glibc's include/dlfcn.h.
const BY_LIBC: c_int = c_int::MIN;

extern "C" {
    /// A word for each of [`NAMES`], and two.
    #[link_name = "anyring_joined"]
    static WORDS: [Word; NAMES.len() + 2];
}

type Open = unsafe extern "C" fn(*const c_char, c_int) -> *mut c_void;
type Find = unsafe extern "C" fn(*mut c_void, *const c_char) -> *mut c_void;

fn words() -> (&'static [Word], Option<(Open, Find)>) {
    // SAFETY: defined above, with so many words, which are only used as atomics.
    let (words, openers) = unsafe { WORDS.split_at(NAMES.len()) };
    // Relaxed, as everywhere here: whoever else comes here stores the same.
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

/// Sees to it that each function can be called. Before other code of the process runs, or where that comes earlier.
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
        // Not for everybody to find: then this loader's list of what it is about to start would be longer than it knows (RTLD_GLOBAL
        // before _dl_init has begun).
        // SAFETY: a C string; the loader runs what has to be run of the two and libc.
        let handle = unsafe { open(library.as_ptr(), libc::RTLD_NOW | BY_LIBC) };
        place.store(handle, Ordering::Relaxed);
        if handle.is_null() {
            continue;
        }
        for (word, name) in words.iter().zip(NAMES).filter(|(word, _)| word.load(Ordering::Relaxed).is_null()) {
            // SAFETY: what was just opened, and a C string.
            word.store(unsafe { find(handle, name.as_ptr()) }, Ordering::Relaxed);
        }
    }
}

/// A function of what was loaded here, where nothing else of the process has it.
pub fn find(name: &CStr) -> Option<*mut c_void> {
    let (_, find) = words().1?;
    let handles = LOADED.iter().map(|place| place.load(Ordering::Relaxed)).filter(|handle| !handle.is_null());
    // SAFETY: what was opened, for good, and a C string.
    handles.map(|handle| unsafe { find(handle, name.as_ptr()) }).find(|address| !address.is_null())
}

/// dlsym(3) where there is no libdl: what libc has.
pub unsafe extern "C" fn find_in_libc(_handle: *mut c_void, name: *const c_char) -> *mut c_void {
    let Some((open, find)) = words().1 else { return core::ptr::null_mut() };
    // SAFETY: C strings, of ours and of the caller; libc is there.
    unsafe { find(open(c"libc.so.6".as_ptr(), libc::RTLD_NOW | BY_LIBC), name) }
}

/// What answers a pointer, or nothing found, by 0.
extern "C" fn nothing() -> usize {
    0
}

/// What answers an error number.
extern "C" fn refused() -> c_int {
    libc::EAGAIN
}
