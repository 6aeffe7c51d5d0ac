//! Signals whose handlers wait until their thread holds no engine lock (`os::handlers`).
//!
//! The signal itself is kept here, and a *carrier*, a signal of the same number, is sent to the thread. The kernel only
//! has to remember that a carrier is pending, so RLIMIT_SIGPENDING refuses no carrier. When the number is unblocked,
//! any pending signal of that number may come first. The handler gets the one that has been kept longest. Each thread
//! has its list, which only the thread itself and its handlers touch.

use super::{mask, sys};
use anyring_engine::mutation::{mutated, Mutation};
use core::ffi::c_int;
use core::sync::atomic::Ordering;
use libc::siginfo_t;
use std::alloc::{alloc, dealloc, Layout};

/// A signal that waits.
pub struct Kept {
    info: siginfo_t,
    next: *mut Kept,
}

/// The `si_errno` of a carrier, if the kernel has kept its siginfo.
const MARK: c_int = 0x616e_7972;

/// Finds the link to the calling thread's first kept signal of this number, or to its last one if `is_last`.
fn find(is_last: bool, signal: c_int) -> Option<*mut *mut Kept> {
    let (mut place, mut found) = (mask::kept().as_ptr(), None);
    // SAFETY: the list is this thread's own, and each entry lives until it is taken out.
    while let Some(kept) = unsafe { (*place).as_ref() } {
        if kept.info.si_signo == signal {
            found = Some(place);
            if !is_last {
                break;
            }
        }
        // SAFETY: as above; `place` leads to an entry.
        place = unsafe { &raw mut (**place).next };
    }
    found
}

fn is_carrier(info: &siginfo_t) -> bool {
    // SAFETY: every siginfo has the bytes of a sender.
    let nobody_sent = info.si_code == libc::SI_USER && unsafe { info.si_pid() } == 0;
    nobody_sent && (info.si_errno == MARK || info.si_errno == 0 && find(false, info.si_signo).is_some())
}

/// Sends the calling thread a carrier. False if a filter refuses the call.
fn carry(signal: c_int) -> bool {
    // struct siginfo as the kernel takes it: signal, errno, code (SI_USER), padding, and no sender.
    let mut info = [0_u32; 32];
    info[..2].copy_from_slice(&[signal as u32, MARK as u32]);
    // SAFETY: the kernel reads `info`, a whole one.
    unsafe { super::send(sys::thread_id() as u32, signal, info.as_ptr().cast()) }
}

/// Appends a signal to the calling thread's list. False if there is no memory.
fn keep(info: &siginfo_t) -> bool {
    let layout = Layout::new::<Kept>();
    // SAFETY: the size is not zero. The engine's allocator may be interrupted by a handler that calls it.
    let kept = unsafe { alloc(layout) }.cast::<Kept>();
    if kept.is_null() {
        return false;
    }
    let mut place = mask::kept().as_ptr();
    // SAFETY: memory for this type, and the list is this thread's own; no other handler can interrupt this.
    unsafe {
        kept.write(Kept { info: *info, next: core::ptr::null_mut() });
        while !(*place).is_null() {
            place = &raw mut (**place).next;
        }
        *place = kept;
    }
    true
}

/// Keeps a signal that the thread blocks from now on, and sends a carrier. False if that is impossible.
pub fn defer(signal: c_int, info: &siginfo_t) -> bool {
    let kept = is_carrier(info) || keep(info);
    let deferred = kept && carry(signal);
    if kept && !deferred && !is_carrier(info) {
        let _ = take(true, signal);
    }
    deferred
}

fn take(is_last: bool, signal: c_int) -> Option<siginfo_t> {
    let place = find(is_last, signal)?;
    // SAFETY: an entry of the list, which is taken out of it before its memory is given back.
    unsafe {
        let kept = *place;
        let Kept { info, next } = kept.read();
        *place = next;
        dealloc(kept.cast(), Layout::new::<Kept>());
        Some(info)
    }
}

/// Exchanges the signal in `info`, whose handler is about to run, for the oldest kept signal of its number. False if no
/// handler must run: the signal is a carrier, and no kept signal is left.
pub fn in_turn(signal: c_int, info: &mut siginfo_t) -> bool {
    if mask::kept().load(Ordering::Relaxed).is_null() {
        return !is_carrier(info);
    }
    let is_carrier = is_carrier(info);
    if !is_carrier && !keep(info) {
        return true; // out of its turn
    }
    let first = take(mutated(Mutation::DeferredSignalsComeLast), signal);
    if let Some(first) = first {
        *info = first;
    }
    if find(false, signal).is_some() {
        carry(signal);
    }
    first.is_some()
}
