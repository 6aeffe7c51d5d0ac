//! Sanitizers that the program is built with are told what they do not see: ThreadSanitizer that submission and completion
//! synchronise, MemorySanitizer what memory has been written. AddressSanitizer is asked for what was freed.
//!
//! What a thread wrote before it submitted is there for the thread that sees a CQE of the same ring. ThreadSanitizer sees
//! only the program's side of that: a load of the CQ's tail, which nobody that it knows has stored to. So each submission
//! is a release of the tail's address. An instrumented load of the tail (liburing's inline functions, a program's own)
//! acquires it, and here whatever sees CQEs for the program does. Rings whose memory is not known are named by the address
//! of their place in [`TAILS`], contexts of Linux AIO by their number.
//!
//! This orders more than the ring does: also with submissions whose CQE was not seen yet. No race that is none is
//! reported, some that are one are not.
//!
//! MemorySanitizer has a word for each byte of the program's memory that nobody has written. What reads and receives have
//! filled the engine tells (`chaos::tell_filled`); liburing's functions here say what they have written.
//!
//! AddressSanitizer knows what was freed: under chaos it is asked for what has become poisoned.
//!
//! The functions are looked up once, at the start. A program without ThreadSanitizer pays a branch a submission and one a
//! look at the CQ.

use anyring_abi::{
    IORING_ENTER_REGISTERED_RING, IORING_OFF_CQ_RING, IORING_OFF_SQ_RING, NR_IO_GETEVENTS, NR_IO_PGETEVENTS,
    NR_IO_SUBMIT, NR_IO_URING_ENTER,
};
use anyring_engine::memory::layout::word;
use anyring_engine::process::{registered_ring_number, REGISTERED_RINGS};
use core::ffi::c_void;
use core::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

/// Both are mappings of the memory that has the CQ's tail.
const RING_OFFSETS: [i64; 2] = [IORING_OFF_SQ_RING as i64, IORING_OFF_CQ_RING as i64];

/// ThreadSanitizer's functions on an address, both or none.
type OnAddress = unsafe extern "C" fn(*const c_void);
static ACQUIRE: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());
static RELEASE: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());

/// MemorySanitizer's function on an address and a size in bytes.
type OnMemory = unsafe extern "C" fn(*const c_void, usize);
static UNPOISON: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());

/// Where the program has the CQ's tail of each ring that it mapped itself, by the ring's number; 0 if it is not known. Only
/// ever a name: nothing is read there.
static TAILS: [AtomicUsize; RINGS_END] = [const { AtomicUsize::new(0) }; RINGS_END];
const RINGS_END: usize = crate::door::KNOWN_NUMBERS.end as usize;

/// AddressSanitizer's function on an address and a size in bytes: the first poisoned one, or null.
#[cfg(not(test))]
type FirstPoisoned = unsafe extern "C" fn(*const c_void, usize) -> *const c_void;
#[cfg(not(test))]
static POISONED: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());

/// Looks for the sanitizers. Called before the program's threads.
#[cfg(not(test))]
pub(crate) fn resolve() {
    let find = |name: &core::ffi::CStr| {
        // SAFETY: a C string; the first definition in the process is asked for.
        unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) }
    };
    let (acquire, release) = (find(c"__tsan_acquire"), find(c"__tsan_release"));
    if !acquire.is_null() && !release.is_null() {
        RELEASE.store(release, Ordering::Relaxed);
        ACQUIRE.store(acquire, Ordering::Relaxed);
    }
    let unpoison = find(c"__msan_unpoison");
    if !unpoison.is_null() {
        UNPOISON.store(unpoison, Ordering::Relaxed);
        anyring_engine::chaos::tell_filled(|address, bytes| wrote(address as *const c_void, bytes));
    }
    let poisoned = find(c"__asan_region_is_poisoned");
    if !poisoned.is_null() {
        POISONED.store(poisoned, Ordering::Relaxed);
        anyring_engine::chaos::watch::ask_for_poison(first_poisoned);
    }
}

#[cfg(not(test))]
fn first_poisoned(address: usize, bytes: usize) -> usize {
    // SAFETY: `resolve` has stored AddressSanitizer's function of that type before it named this one.
    let function = unsafe { core::mem::transmute::<*mut c_void, FirstPoisoned>(POISONED.load(Ordering::Relaxed)) };
    // SAFETY: it looks at its own notes of that memory only, and takes no lock.
    unsafe { function(address as *const c_void, bytes) as usize }
}

/// Memory of the program's has been written, by us or the kernel.
#[inline(always)]
pub fn wrote<T>(address: *const T, bytes: usize) {
    if !UNPOISON.load(Ordering::Relaxed).is_null() {
        unpoison(address.cast(), bytes);
    }
}

#[cold]
fn unpoison(address: *const c_void, bytes: usize) {
    // SAFETY: not null, so it is what `resolve` found: MemorySanitizer's function of that type. The memory was just written.
    let function = unsafe { core::mem::transmute::<*mut c_void, OnMemory>(UNPOISON.load(Ordering::Relaxed)) };
    // SAFETY: as above.
    unsafe { function(address, bytes) };
}

#[inline(always)]
fn is_present() -> bool {
    !ACQUIRE.load(Ordering::Relaxed).is_null()
}

/// The calling thread is about to submit to the ring, or context, of that name.
#[inline(always)]
pub fn submits(name: *const u32) {
    if is_present() {
        call(&RELEASE, name as usize);
    }
}

/// The calling thread may have seen CQEs of that ring, or context.
#[inline(always)]
pub fn sees(name: *const u32) {
    if is_present() {
        call(&ACQUIRE, name as usize);
    }
}

#[cold]
fn call(function: &AtomicPtr<c_void>, name: usize) {
    let function = function.load(Ordering::Relaxed);
    if !function.is_null() {
        // SAFETY: what `resolve` found is ThreadSanitizer's function of that type, which takes any address.
        unsafe { core::mem::transmute::<*mut c_void, OnAddress>(function)(name as *const c_void) };
    }
}

/// The program has mapped memory of ring `fd` at `address`, as `offset` says.
pub fn mapped(fd: i32, offset: i64, address: usize) {
    if is_present() && RING_OFFSETS.contains(&offset) {
        if let Some(tail) = TAILS.get(fd as usize) {
            tail.store(address + word::CQ_TAIL, Ordering::Relaxed);
        }
    }
}

/// Makes a system call of the program's, perhaps one that submits or waits.
#[inline]
pub fn around(number: i64, args: [usize; 6], serve: impl FnOnce() -> isize) -> isize {
    let Some(name) = is_present().then(|| name(number, args)).flatten() else { return serve() };
    call(&RELEASE, name);
    let answer = serve();
    call(&ACQUIRE, name);
    answer
}

/// What the call works on, if it submits or waits.
#[cold]
fn name(number: i64, [subject, _, _, flags, ..]: [usize; 6]) -> Option<usize> {
    match number {
        NR_IO_SUBMIT | NR_IO_GETEVENTS | NR_IO_PGETEVENTS => Some(subject),
        NR_IO_URING_ENTER => {
            let registered = flags as u32 & IORING_ENTER_REGISTERED_RING != 0;
            let known = |index: u32| registered_ring_number(index).filter(|_| (index as usize) < REGISTERED_RINGS);
            let fd = if registered { known(subject as u32)? } else { subject as i32 };
            let place = TAILS.get(fd as usize)?;
            Some(
                Some(place.load(Ordering::Relaxed)).filter(|tail| *tail != 0).unwrap_or(&raw const *place as usize),
            )
        }
        _ => None,
    }
}
