//! Calling the helper (`wait/helper.rs`): rings are handed over at the desk, whose lock comes after a ring's.

use crate::driver::owner::{Call, Desk};
use crate::lock::{Held, Lock};
use crate::mutation::{mutated, Mutation};
use crate::os::{syscall, Os, Sys};
use crate::ring::{Ring, RingGuard};
use crate::sync::Hook;
use crate::thread::tables;
use crate::{descriptors, Errno};
use anyring_abi::{IORING_SETUP_DEFER_TASKRUN, IORING_SETUP_TASKRUN_FLAG};
use core::sync::atomic::{AtomicI32, Ordering};
use rustix::event::{epoll, EventfdFlags};
use rustix::fd::IntoRawFd;

/// What the helper is woken by, in its poll set; other data are a ring's address, odd for its engine end.
pub(crate) const WOKEN: u64 = 0;

/// Starts the thread: whether there is one.
pub static START: Hook<(), bool> = Hook::new();
/// Where rings are handed over.
pub(crate) static DESK: Lock<Desk<&'static Ring>> = Lock::new(Desk::NEW);

/// The eventfd that wakes the helper, and its poll set; -1 when there is none. Opened and closed under `DESK`.
pub(crate) static WAKE: AtomicI32 = AtomicI32::new(-1);

pub(crate) static SET: AtomicI32 = AtomicI32::new(-1);

/// Does what a call of the helper asks for. The caller holds the ring.
fn answer(ring: &'static Ring, call: Call) {
    match call {
        // The helper has the first table of descriptors.
        Call::HandOver if ring.table.load(Ordering::Relaxed) != tables::FIRST => ring.driver.handover.forget(),
        Call::Nothing => {}
        Call::Wake => nudge(),
        Call::HandOver => match DESK.lock() {
            Some(desk) => hand_over(ring, desk),
            // A signal handler interrupted a hand-over in its own thread: the next call tries again.
            None => ring.driver.handover.forget(),
        },
    }
}

fn hand_over(ring: &'static Ring, mut desk: Held<'static, Desk<&'static Ring>>) {
    if !desk.hand_over(ring) {
        return wake();
    }
    if !start(&mut desk) {
        ring.driver.handover.forget();
    }
}

/// Starts the thread, if there is none, before a worker opens files for the program: for a moment its descriptors take
/// the lowest numbers, which those files would have natively. False if there cannot be one.
pub fn stand_by() -> bool {
    // Where the desk cannot be had, this very thread is at it, and starts the helper.
    let Some(mut desk) = DESK.lock() else { return true };
    !desk.start() || start(&mut desk)
}

fn start(desk: &mut Desk<&'static Ring>) -> bool {
    // It would have its maker's table.
    let started = tables::mine() == tables::FIRST && open().is_ok() && START.call(()) == Some(true);
    if !started {
        close();
        desk.close();
    }
    started
}

/// Makes the helper, if there is one, look at what it has been told.
pub fn nudge() {
    // Held, so that the number is not closed, and perhaps another file's, before the write. Where it cannot be had, this
    // very thread holds it.
    let _desk = DESK.lock();
    wake();
}

pub(crate) fn wake() {
    let wake = WAKE.load(Ordering::Relaxed);
    if wake >= 0 {
        let one = 1u64;
        syscall(libc::SYS_write, [wake as usize, &one as *const u64 as usize, 8, 0, 0, 0]);
    }
}

fn open() -> Result<(), Errno> {
    let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
    let wake = descriptors::to_top(rustix::event::eventfd(0, flags)?)?;
    let set = descriptors::to_top(epoll::create(epoll::CreateFlags::CLOEXEC)?)?;
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
    // SAFETY: no other thread exists, and the value is put in order right away.
    unsafe { DESK.reset() };
    if let Some(mut desk) = DESK.lock() {
        desk.close();
        close(); // the child's copies; the parent's helper has its own
    }
}

impl RingGuard {
    /// Leaves the ring to the helper if something is pending that the program may never come back for.
    #[inline]
    pub fn call_helper(&mut self) {
        let always = mutated(Mutation::EachEnterCallsTheHelper) && !self.is_polled();
        if (self.has_pending() && !self.ring().driver.handover.is_seen_to()) || always {
            self.leave_to_helper();
        }
    }

    /// Whether requests are armed, or timers run, for which somebody of this process has to look.
    #[inline]
    pub fn has_pending(&self) -> bool {
        (self.awaits_events() || !self.timers.is_empty()) && !self.is_polled()
    }

    #[cold]
    fn leave_to_helper(&mut self) {
        let ring = self.ring();
        let handover = &ring.driver.handover;
        if ring.has(IORING_SETUP_DEFER_TASKRUN) && !self.is_watched() && !ring.has(IORING_SETUP_TASKRUN_FLAG) {
            return; // nobody could be told
        }
        if let Ok(head) = self.consumed() {
            handover.note_head(head);
        }
        // Who is in a call takes over nothing.
        let in_calls = ring.callers.load(Ordering::Relaxed);
        answer(ring, handover.leave(ring.sleepers.load(Ordering::Relaxed).saturating_sub(in_calls)));
    }

    /// Whether somebody may be told of completions by another file.
    fn is_watched(&self) -> bool {
        self.eventfd.is_some() || self.control.header().watched.load(Ordering::Relaxed) != 0
    }

    /// A thread asks for completions and is ready to wait: the helper need not be there before it, unless somebody is told of
    /// what it posts.
    #[inline]
    pub fn dismiss_helper(&mut self) {
        let handover = &self.ring().driver.handover;
        if handover.is_helpers() && !self.is_watched() && handover.dismiss() {
            self.detach();
        }
    }

    /// Makes the helper look at the ring now, to watch for its end.
    pub fn call_helper_now(&mut self) {
        answer(self.ring(), self.ring().driver.handover.call(true));
    }

    /// The helper sleeps on the ring's poll set, and a poll was armed or a timer started.
    #[cold]
    pub fn tell_watching_helper(&mut self, is_timer: bool) {
        let handover = &self.ring().driver.handover;
        if !is_timer && handover.is_attached() {
            return self.verify();
        }
        let next_ns = self.timers.next_ns().filter(|_| is_timer);
        if next_ns.is_none_or(|next_ns| {
            Sys::clock_ns(libc::CLOCK_MONOTONIC).saturating_add(next_ns) < handover.watches_until_ns()
        }) {
            self.call_helper_now();
        }
    }

    /// The calling thread drives from now on: events are not the helper's any more.
    #[inline]
    pub fn leave_helper(&mut self) {
        if self.ring().driver.handover.is_attached() && self.ring().driver.handover.has_thread() {
            self.detach();
        }
    }

    #[cold]
    pub(crate) fn detach(&mut self) {
        if self.ring().driver.handover.set_attached(false) {
            if let Some(epoll) = self.poll_set.epoll() {
                let _ = Sys::epoll_ctl(SET.load(Ordering::Relaxed), libc::EPOLL_CTL_DEL, epoll, 0, 0);
            }
        }
    }

    /// Puts the ring's poll set into the helper's.
    pub(crate) fn attach(&mut self) {
        let Some(epoll) = self.poll_set.epoll() else { return };
        if !self.ring().driver.handover.is_attached() {
            let (set, data) = (SET.load(Ordering::Relaxed), core::ptr::from_ref(self.ring()) as u64);
            let added = Sys::epoll_ctl(set, libc::EPOLL_CTL_ADD, epoll, libc::EPOLLIN as u32, data);
            self.ring().driver.handover.set_attached(added.is_ok());
        }
    }
}
