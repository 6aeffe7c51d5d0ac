//! Informs the program's sanitizers of events that they cannot observe. ThreadSanitizer learns that submission and
//! completion synchronise. MemorySanitizer learns that memory has been written. AddressSanitizer is asked which memory
//! was freed.
//!
//! A thread's writes before a submission are visible to the thread that sees a CQE of the same ring. ThreadSanitizer
//! observes only the program's side of that: a load of the CQ's tail, which no thread that it knows has stored. So each
//! submission is reported as a release of the tail's address. The matching acquire is an instrumented load of the tail,
//! in liburing's inline functions or in the program. The library's own code reports an acquire when it reads CQEs for
//! the program. If a ring's memory is not known, the address of its place in [`TAILS`] names it. A context of Linux AIO
//! is named by its number.
//!
//! This orders more events than the ring does, since it also orders submissions whose CQE the thread has not read
//! yet. So no false race is reported, but some true races are missed.
//!
//! MemorySanitizer keeps a mark for each byte of the program's memory that the program has not written. The engine
//! reports which bytes reads and receives have filled (`chaos::set_fill_observer`). liburing's functions in this
//! library report their own writes.
//!
//! AddressSanitizer marks freed memory as poisoned. The engine's chaos mode asks it whether a request's memory has
//! become poisoned.
//!
//! The functions are looked up once, at the start. A program without ThreadSanitizer pays a branch for each submission
//! and for each check of the CQ.

use anyring_abi::{
    IORING_ENTER_REGISTERED_RING, IORING_OFF_CQ_RING, IORING_OFF_SQ_RING, NR_IO_GETEVENTS, NR_IO_PGETEVENTS,
    NR_IO_SUBMIT, NR_IO_URING_ENTER,
};
use anyring_engine::memory::layout::word;
use anyring_engine::process::registered_ring_number;
use core::ffi::c_void;
use core::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

/// The mmap(2) offsets of the areas that contain the CQ's tail.
const RING_OFFSETS: [i64; 2] = [IORING_OFF_SQ_RING as i64, IORING_OFF_CQ_RING as i64];

/// The type of ThreadSanitizer's two functions on an address. Either both are found or neither.
type OnAddress = unsafe extern "C" fn(*const c_void);
static ACQUIRE: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());
static RELEASE: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());

/// The type of MemorySanitizer's function, which takes an address and a size in bytes.
type OnMemory = unsafe extern "C" fn(*const c_void, usize);
static UNPOISON: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());

/// The address at which the program itself mapped the CQ's tail, by the ring's number; 0 if unknown. The address only
/// names the ring; nothing is read there.
static TAILS: [AtomicUsize; RINGS_END] = [const { AtomicUsize::new(0) }; RINGS_END];
const RINGS_END: usize = crate::door::KNOWN_NUMBERS.end as usize;

/// The type of AddressSanitizer's function, which takes an address and a size in bytes. It returns the first poisoned
/// address, or null.
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
        anyring_engine::chaos::lifetimes::ask_for_poison(first_poisoned);
    }
}

#[cfg(not(test))]
fn first_poisoned(address: usize, bytes: usize) -> usize {
    // SAFETY: `resolve` has stored AddressSanitizer's function of that type before it named this one.
    let function = unsafe { core::mem::transmute::<*mut c_void, FirstPoisoned>(POISONED.load(Ordering::Relaxed)) };
    // SAFETY: it reads only its own records of that memory, and takes no lock.
    unsafe { function(address as *const c_void, bytes) as usize }
}

/// Informs MemorySanitizer that this library or the kernel has written the program's memory.
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

/// Informs ThreadSanitizer that the calling thread is about to submit to the ring, or context, of that name.
#[inline(always)]
pub fn submits(name: *const u32) {
    if is_present() {
        call(&RELEASE, name as usize);
    }
}

/// Informs ThreadSanitizer that the calling thread may have read CQEs of that ring, or events of that context.
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

/// Records in `TAILS` that the program has mapped memory of ring `fd` at `address`, with this mmap(2) `offset`.
pub fn mapped(fd: i32, offset: i64, address: usize) {
    if is_present() && RING_OFFSETS.contains(&offset) {
        if let Some(tail) = TAILS.get(fd as usize) {
            tail.store(address + word::CQ_TAIL, Ordering::Relaxed);
        }
    }
}

/// Makes one of the program's system calls by `serve`. If the call submits or waits, ThreadSanitizer is informed.
#[inline]
pub fn around(number: i64, args: [usize; 6], serve: impl FnOnce() -> isize) -> isize {
    let Some(name) = is_present().then(|| name(number, args)).flatten() else { return serve() };
    call(&RELEASE, name);
    let answer = serve();
    call(&ACQUIRE, name);
    answer
}

/// Returns the name of the ring or context to which the call submits or for which it waits. `None` for other calls.
#[cold]
fn name(number: i64, [subject, _, _, flags, ..]: [usize; 6]) -> Option<usize> {
    match number {
        NR_IO_SUBMIT | NR_IO_GETEVENTS | NR_IO_PGETEVENTS => Some(subject),
        NR_IO_URING_ENTER => {
            let registered = flags as u32 & IORING_ENTER_REGISTERED_RING != 0;
            let fd = if registered { registered_ring_number(subject as u32).ok()? } else { subject as i32 };
            let place = TAILS.get(fd as usize)?;
            Some(
                Some(place.load(Ordering::Relaxed)).filter(|tail| *tail != 0).unwrap_or(&raw const *place as usize),
            )
        }
        _ => None,
    }
}
