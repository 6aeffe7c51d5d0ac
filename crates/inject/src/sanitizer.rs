//! Informs the program's sanitizers of events that they do not see. ThreadSanitizer learns that submission and
//! completion synchronise, MemorySanitizer that memory has been written. AddressSanitizer is asked for freed memory.
//!
//! A thread's writes before a submission are visible to the thread that sees a CQE of the same ring. ThreadSanitizer
//! sees only the program's side of that: a load of the CQ's tail, which no thread that it knows has stored. So each
//! submission is a release of the tail's address. An instrumented load of the tail (liburing's inline functions, a
//! program's own) acquires it, and so does our code that sees CQEs for the program. A ring whose memory is not known is
//! named by the address of its place in [`TAILS`], a context of Linux AIO by its number.
//!
//! This orders more than the ring does: also submissions whose CQE was not seen yet. So no false race is reported, but
//! some true ones are missed.
//!
//! MemorySanitizer marks each byte of the program's memory that nobody has written. The engine reports what reads and
//! receives have filled (`chaos::set_fill_observer`), and liburing's functions here report their own writes.
//!
//! AddressSanitizer knows freed memory: chaos asks it for memory that has become poisoned.
//!
//! The functions are looked up once, at the start. A program without ThreadSanitizer pays a branch for each submission
//! and for each check of the CQ.

use anyring_abi::{
    IORING_ENTER_REGISTERED_RING, IORING_OFF_CQ_RING, IORING_OFF_SQ_RING, NR_IO_GETEVENTS, NR_IO_PGETEVENTS,
    NR_IO_SUBMIT, NR_IO_URING_ENTER,
};
use anyring_engine::memory::layout::word;
use anyring_engine::process::{registered_ring_number, REGISTERED_RINGS};
use core::ffi::c_void;
use core::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

/// The offsets that map the memory with the CQ's tail.
const RING_OFFSETS: [i64; 2] = [IORING_OFF_SQ_RING as i64, IORING_OFF_CQ_RING as i64];

/// ThreadSanitizer's functions on an address, both or none.
type OnAddress = unsafe extern "C" fn(*const c_void);
static ACQUIRE: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());
static RELEASE: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());

/// MemorySanitizer's function on an address and a size in bytes.
type OnMemory = unsafe extern "C" fn(*const c_void, usize);
static UNPOISON: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());

/// The program's address of the CQ's tail of each ring that it mapped itself, by the ring's number; 0 if unknown. It
/// serves as a name only: nothing is read there.
static TAILS: [AtomicUsize; RINGS_END] = [const { AtomicUsize::new(0) }; RINGS_END];
const RINGS_END: usize = crate::door::KNOWN_NUMBERS.end as usize;

/// AddressSanitizer's function on an address and a size in bytes. Returns the first poisoned address, or null.
#[cfg(not(test))]
type FirstPoisoned = unsafe extern "C" fn(*const c_void, usize) -> *const c_void;
#[cfg(not(test))]
static POISONED: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());

/// Looks for the sanitizers. Called before the program's threads.
#[cfg(not(test))]
pub(crate) fn resolve() {
    let find = |name: &core::ffi::CStr| {
        // SAFETY: a C string; looks up the first definition in the process.
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
        anyring_engine::chaos::set_fill_observer(|address, bytes| wrote(address as *const c_void, bytes));
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
    // SAFETY: it reads only its own records of that memory, and takes no lock.
    unsafe { function(address as *const c_void, bytes) as usize }
}

/// Records that we or the kernel have written the program's memory.
#[inline(always)]
pub fn wrote<T>(address: *const T, bytes: usize) {
    if !UNPOISON.load(Ordering::Relaxed).is_null() {
        unpoison(address.cast(), bytes);
    }
}

#[cold]
fn unpoison(address: *const c_void, bytes: usize) {
    // SAFETY: not null, so `resolve` has found it: MemorySanitizer's function of that type. The memory was just
    // written.
    let function = unsafe { core::mem::transmute::<*mut c_void, OnMemory>(UNPOISON.load(Ordering::Relaxed)) };
    // SAFETY: as above.
    unsafe { function(address, bytes) };
}

#[inline(always)]
fn is_present() -> bool {
    !ACQUIRE.load(Ordering::Relaxed).is_null()
}

/// Records that the calling thread is about to submit to the ring, or context, of that name.
#[inline(always)]
pub fn submits(name: *const u32) {
    if is_present() {
        call(&RELEASE, name as usize);
    }
}

/// Records that the calling thread may have seen CQEs of that ring, or context.
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
        // SAFETY: `resolve` has found ThreadSanitizer's function of that type, which takes any address.
        unsafe { core::mem::transmute::<*mut c_void, OnAddress>(function)(name as *const c_void) };
    }
}

/// Records that the program has mapped memory of ring `fd` at `address`, with this mmap(2) `offset`.
pub fn mapped(fd: i32, offset: i64, address: usize) {
    if is_present() && RING_OFFSETS.contains(&offset) {
        if let Some(tail) = TAILS.get(fd as usize) {
            tail.store(address + word::CQ_TAIL, Ordering::Relaxed);
        }
    }
}

/// Makes a system call of the program's, which may submit or wait.
#[inline]
pub fn around(number: i64, args: [usize; 6], serve: impl FnOnce() -> isize) -> isize {
    let Some(name) = is_present().then(|| name(number, args)).flatten() else { return serve() };
    call(&RELEASE, name);
    let answer = serve();
    call(&ACQUIRE, name);
    answer
}

/// Returns the name of the ring or context that the call submits to or waits on, if it does.
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
