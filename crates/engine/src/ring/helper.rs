//! Calls the helper (`wait/helper.rs`). Rings are handed over at the mailbox, whose lock comes after a ring's.

use crate::driver::owner::{Call, Mailbox};
use crate::lock::{Held, Lock};
use crate::os::calls;
use crate::os::{owner, syscall, Os, Sys};
use crate::ring::Ring;
use crate::sync::Hook;
use crate::thread::tables;
use crate::{descriptors, thread, Errno};
use core::sync::atomic::{AtomicI32, Ordering};
use rustix::event::{epoll, EventfdFlags};
use rustix::fd::IntoRawFd;

/// The data of the helper's eventfd in the helper's poll set. Other data are a ring's address, odd for its engine end.
pub(crate) const WOKEN: u64 = 0;

/// Starts the helper's thread. True if the thread exists.
pub static START: Hook<(), bool> = Hook::new();
/// The mailbox at which rings are handed over.
pub(crate) static MAILBOX: Lock<Mailbox<&'static Ring>> = Lock::new(Mailbox::NEW);

/// The eventfd that wakes the helper; -1 if it is not open. It stays open while the process has rings. `WAKE`, and the
/// helper's poll set `SET`, are opened and closed under `MAILBOX`.
pub(crate) static WAKE: AtomicI32 = AtomicI32::new(-1);

pub(crate) static SET: AtomicI32 = AtomicI32::new(-1);

/// Does what the ring's `handover` has decided in `call`. The caller holds the ring.
pub(crate) fn carry_out(ring: &'static Ring, call: Call) {
    match call {
        // The helper uses the first table of descriptors.
        Call::HandOver if ring.table.load(Ordering::Relaxed) != tables::FIRST => ring.driver.handover.forget(),
        Call::Nothing => {}
        Call::Wake => nudge(),
        Call::HandOver => match MAILBOX.lock() {
            Some(mailbox) => hand_over(ring, mailbox),
            // A signal handler has interrupted a hand-over in its own thread: the next call tries again.
            None => ring.driver.handover.forget(),
        },
    }
}

fn hand_over(ring: &'static Ring, mut mailbox: Held<'static, Mailbox<&'static Ring>>) {
    if !mailbox.hand_over(ring) {
        return wake();
    }
    if !start(&mut mailbox) {
        ring.driver.handover.forget();
    }
}

/// Opens the helper's descriptors in a call of the program, after which an engine thread may start the helper. While
/// they are made, they take the lowest numbers, which the program's own files would have in the kernel.
pub fn open_ahead() {
    if !tables::is_first() {
        return;
    }
    // The lock is needed even if they are open: a helper of rings that are gone may be about to close them.
    let Some(_mailbox) = MAILBOX.lock() else { return };
    open_if_closed();
}

/// True if the helper's descriptors are open.
pub fn is_open() -> bool {
    WAKE.load(Ordering::Relaxed) >= 0
}

/// Closes the helper's descriptors after the process's last ring, unless a helper runs. It closes them itself.
pub fn rings_are_gone() {
    let Some(mailbox) = MAILBOX.lock() else { return };
    if mailbox.is_without_helper() && !thread::is_needed() {
        close();
    }
}

/// Starts the helper's thread, if there is none, before a worker opens files for the program. While the helper's
/// descriptors are made, they take the lowest numbers, which those files would have in the kernel. False if the helper
/// cannot exist.
pub fn ensure_started() -> bool {
    // If this very thread holds the mailbox, it is about to start the helper.
    let Some(mut mailbox) = MAILBOX.lock() else { return true };
    !mailbox.start() || start(&mut mailbox)
}

fn start(mailbox: &mut Mailbox<&'static Ring>) -> bool {
    if owner::has_other_table() {
        mailbox.close();
        return false;
    }
    // The helper would inherit the table of the thread that makes it.
    let started = tables::mine() == tables::FIRST && open_if_closed() && START.call(()) == Some(true);
    if !started {
        // The descriptors stay open. The next attempt may be an engine thread's, and would take the lowest numbers.
        mailbox.close();
    }
    started
}

/// Makes the helper, if it exists, check its mailbox and its rings.
pub fn nudge() {
    // The lock is held so that the number is not closed, and perhaps reused for another file, before the write. If the
    // lock fails, this very thread already holds it.
    let _desk = MAILBOX.lock();
    wake();
}

pub(crate) fn wake() {
    let wake = WAKE.load(Ordering::Relaxed);
    if wake >= 0 {
        let one = 1u64;
        syscall(libc::SYS_write, [wake as usize, &one as *const u64 as usize, 8, 0, 0, 0]);
    }
}

/// Opens the helper's descriptors unless they are open. False if that fails.
fn open_if_closed() -> bool {
    let are_open = is_open() || open().is_ok();
    if !are_open {
        close();
    }
    are_open
}

fn open() -> Result<(), Errno> {
    let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
    let wake = descriptors::to_top(calls::eventfd(0, flags)?)?;
    let set = descriptors::to_top(calls::epoll_create(epoll::CreateFlags::CLOEXEC)?)?;
    let (wake, set) = (wake.into_raw_fd(), set.into_raw_fd());
    WAKE.store(wake, Ordering::Relaxed);
    SET.store(set, Ordering::Relaxed);
    Sys::epoll_ctl(set, libc::EPOLL_CTL_ADD, wake, libc::EPOLLIN as u32, WOKEN)
}

pub(crate) fn close() {
    for descriptor in [&WAKE, &SET] {
        let number = descriptor.swap(-1, Ordering::Relaxed);
        if number >= 0 {
            descriptors::close(number);
        }
    }
}

/// Forgets the parent's helper in a forked child.
///
/// # Safety
/// Only the forking thread may exist in the process.
pub unsafe fn reset_after_fork() {
    // SAFETY: no other thread exists, and the value is replaced at once.
    unsafe { MAILBOX.reset() };
    if let Some(mut mailbox) = MAILBOX.lock() {
        mailbox.close();
        close(); // these are the child's copies; the parent's helper has its own
    }
}
