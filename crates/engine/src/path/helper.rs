//! The helper: one thread a process that drives rings whose program stays away.
//!
//! It is started by the first enter that returns with unfinished requests, takes a ring's driver role only after the
//! program has stayed away for one period, loses it to the next thread that waits, and does not tick when nothing is
//! pending. On a ring whose completions wait for its owner (`IORING_SETUP_DEFER_TASKRUN`) it only signals.
//!
//! `RINGS` is the hand-over list; its lock also keeps the eventfd in `WAKE` open for whoever writes to it. `RUNNING` and
//! `WAKE` say whether and how the thread can be reached, and the flags of `driver::Driver` are set by both sides; a `Ward` belongs to the helper thread alone.

use crate::lock::Lock;
use crate::os::{syscall, EpollEvent, Os, Sys};
use crate::ring::{Ring, RingGuard};
use crate::{descriptors, process, thread, Errno};
use anyring_abi::{IORING_SETUP_DEFER_TASKRUN, IORING_SETUP_TASKRUN_FLAG};
use core::sync::atomic::{AtomicI32, AtomicU32, Ordering};
use rustix::event::{epoll, EventfdFlags};
use rustix::fd::{AsRawFd, IntoRawFd};

/// How long a program may stay away before the helper takes over, in nanoseconds.
const PERIOD_NS: u64 = 1_000_000;
/// Periods in which the program came back by itself after which the helper stops looking, until it is called again.
const PATIENCE: u32 = 20;
/// The helper ends after this long without rings, in nanoseconds.
const IDLE_NS: u64 = 2_000_000_000;
/// The same once the process has no ring at all.
const LINGER_NS: u64 = 100_000_000;

/// Rings that were handed to the helper and that it has not picked up.
static RINGS: Lock<Vec<&'static Ring>> = Lock::new(Vec::new());
/// 1 while the thread runs.
static RUNNING: AtomicU32 = AtomicU32::new(0);
/// The eventfd that wakes it.
static WAKE: AtomicI32 = AtomicI32::new(-1);

/// A ring in the helper's care.
struct Ward {
    ring: &'static Ring,
    /// `State::enters` when last seen.
    enters: u32,
    /// Periods in which the program came by itself.
    visits: u32,
    /// The poll set that is registered with the helper's own.
    attached: Option<i32>,
    /// Closed under a number, waiting for its last copy to go: its engine end is registered.
    orphan: bool,
}

impl RingGuard {
    /// Hands the ring to the helper if something is pending that the program may never come back for.
    #[inline]
    pub fn call_helper(&mut self) {
        let pending = self.entries.armed() != 0 || !self.timers.is_empty();
        if !pending {
            return;
        }
        let driver = &self.ring().driver;
        if driver.tracked.load(Ordering::Relaxed) {
            // It sleeps without a tick on what it knew when it had the role; a thread has been at work since.
            if driver.is_drowsy() && !driver.is_helpers() && !self.ring().has(IORING_SETUP_DEFER_TASKRUN) {
                nudge();
            }
            return;
        }
        let watched = self.eventfd.is_some() || self.control.header().watched.load(Ordering::Relaxed) != 0;
        let ring = self.ring();
        if ring.has(IORING_SETUP_DEFER_TASKRUN) && !watched && !ring.has(IORING_SETUP_TASKRUN_FLAG) {
            return;
        }
        hand_over(ring);
    }
}

/// Gives a ring to the helper.
pub fn hand_over(ring: &'static Ring) {
    if ring.driver.tracked.swap(true, Ordering::Relaxed) {
        return;
    }
    if let Some(mut rings) = RINGS.lock() {
        rings.push(ring);
    }
    if RUNNING.swap(1, Ordering::AcqRel) == 0 {
        let started = make_wake().and_then(|()| make_set()).is_ok_and(|set| {
            let started = thread::spawn(run, set as usize as *mut libc::c_void);
            if !started {
                descriptors::close(set);
            }
            started
        });
        if !started {
            RUNNING.store(0, Ordering::Release);
            ring.driver.tracked.store(false, Ordering::Relaxed);
        }
    } else {
        nudge();
    }
}

fn make_wake() -> Result<(), Errno> {
    if WAKE.load(Ordering::Relaxed) < 0 {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let wake = descriptors::to_top(rustix::event::eventfd(0, flags)?)?;
        WAKE.store(wake.into_raw_fd(), Ordering::Relaxed);
    }
    Ok(())
}

/// The helper's poll set. Made before the thread is: for a moment it takes the number that the program's next open expects.
fn make_set() -> Result<i32, Errno> {
    let set = descriptors::to_top(epoll::create(epoll::CreateFlags::CLOEXEC)?)?;
    let wake = WAKE.load(Ordering::Relaxed);
    Sys::epoll_ctl(set.as_raw_fd(), libc::EPOLL_CTL_ADD, wake, libc::EPOLLIN as u32, 0)?;
    Ok(set.into_raw_fd())
}

/// Makes the helper look at its rings again.
pub fn nudge() {
    // Held, so that the number is not closed, and perhaps another file's, before the write. Where it cannot be had, this
    // very thread holds it.
    let _rings = RINGS.lock();
    let wake = WAKE.load(Ordering::Relaxed);
    if wake >= 0 {
        let one = 1u64;
        syscall(libc::SYS_write, [wake as usize, &one as *const u64 as usize, 8, 0, 0, 0]);
    }
}

extern "C" fn run(set: *mut libc::c_void) -> *mut libc::c_void {
    thread::name(c"anyring-helper");
    thread::contain(|| {
        if let Err(error) = watch(set as usize as i32) {
            crate::log::line(&format!("the helper ended: {error}"));
        }
    });
    // Whoever hands over a ring next starts a new helper.
    RUNNING.store(0, Ordering::Release);
    core::ptr::null_mut()
}

/// The helper's loop.
fn watch(set: i32) -> Result<(), Errno> {
    let wake = WAKE.load(Ordering::Relaxed);
    let mut wards: Vec<Ward> = Vec::new();
    let mut events = [EpollEvent::default(); 32];
    loop {
        take_in(&mut wards);
        let mut timeout_ns: Option<u64> = None;
        wards.retain_mut(|ward| match ward.attend(set) {
            Some(next_ns) => {
                ward.ring.driver.set_drowsy(next_ns.is_none_or(|next_ns| next_ns > PERIOD_NS));
                timeout_ns = timeout_ns.into_iter().chain(next_ns).min();
                true
            }
            None => false,
        });
        let idle = wards.is_empty();
        if idle {
            timeout_ns = Some(if process::has_rings() { IDLE_NS } else { LINGER_NS });
        }
        let count = match Sys::epoll_wait(set, &mut events, timeout_ns, None) {
            Ok(count) => count,
            Err(Errno::INTR) => 0,
            Err(error) => return Err(error),
        };
        if count == 0 && idle && leave(set) {
            return Ok(());
        }
        if count != 0 {
            let mut value = 0u64;
            syscall(libc::SYS_read, [wake as usize, &mut value as *mut u64 as usize, 8, 0, 0, 0]);
        }
    }
}

/// Ends the thread unless a ring was handed over meanwhile.
fn leave(set: i32) -> bool {
    let Some(rings) = RINGS.lock() else { return false };
    if !rings.is_empty() {
        return false;
    }
    // Under the lock of RINGS: whoever hands over a ring next sees it and starts a new helper.
    RUNNING.store(0, Ordering::Release);
    let wake = WAKE.swap(-1, Ordering::Relaxed);
    if wake >= 0 {
        descriptors::close(wake);
    }
    drop(rings);
    descriptors::close(set);
    true
}

fn take_in(wards: &mut Vec<Ward>) {
    let Some(mut rings) = RINGS.lock() else { return };
    for ring in rings.drain(..) {
        wards.push(Ward { ring, enters: 0, visits: 0, attached: None, orphan: false });
    }
}

impl Ward {
    /// One look at a ring. `None` when the helper is done with it, else how long the next look can wait.
    fn attend(&mut self, set: i32) -> Option<Option<u64>> {
        let Ok(mut guard) = self.ring.lock() else { return self.let_go(set) };
        self.ring.driver.set_drowsy(false);
        if guard.closed || (guard.orphan && self.last_copy_went(set, &mut guard)) {
            return self.end(set, guard);
        }
        if guard.entries.armed() == 0 && guard.timers.is_empty() {
            return if guard.orphan { Some(None) } else { self.let_go_of(set, guard) };
        }
        let away = core::mem::replace(&mut self.enters, guard.enters) == guard.enters;
        if !away && !self.ring.driver.is_helpers() {
            self.detach(set);
            self.visits += 1;
            // A program that keeps coming back does not need the helper: the next unfinished enter calls again.
            return self.step_back(set, guard);
        }
        if guard.sleepers != 0 && !self.ring.driver.is_helpers() {
            self.visits += 1;
            return self.step_back(set, guard);
        }
        self.visits = 0;
        if self.ring.has(IORING_SETUP_DEFER_TASKRUN) {
            return Some(self.signal(set, guard));
        }
        if !self.ring.driver.take_for_helper() {
            return Some(Some(PERIOD_NS));
        }
        guard.drive();
        guard.verify();
        guard.drive();
        self.attach(set, &guard);
        Some(guard.timers.next_ns())
    }

    /// A deferred ring: tell its owner once that there is something, then wait until it has been there.
    fn signal(&mut self, set: i32, mut guard: RingGuard) -> Option<u64> {
        if self.ring.driver.is_announced() {
            return None; // clearing the announcement nudges
        }
        // A put-off attempt is the owner's to make: its completion would be.
        let put_off = guard.entries.has_put_off();
        if !put_off {
            guard.verify();
        }
        let ready = put_off
            || guard.entries.epoll().is_some_and(|epoll| Sys::poll_now(epoll, libc::POLLIN as u16) != Ok(0));
        let next_ns = guard.timers.next_ns();
        if ready || next_ns == Some(0) {
            self.detach(set);
            guard.announce_work();
            return Some(PERIOD_NS);
        }
        self.attach(set, &guard);
        next_ns
    }

    fn attach(&mut self, set: i32, guard: &RingGuard) {
        if self.attached.is_none() {
            if let Some(epoll) = guard.entries.epoll() {
                let added = Sys::epoll_ctl(set, libc::EPOLL_CTL_ADD, epoll, libc::EPOLLIN as u32, 1);
                self.attached = added.is_ok().then_some(epoll);
            }
        }
    }

    fn detach(&mut self, set: i32) {
        if let Some(epoll) = self.attached.take() {
            let _ = Sys::epoll_ctl(set, libc::EPOLL_CTL_DEL, epoll, 0, 0);
        }
    }

    fn let_go(&mut self, set: i32) -> Option<Option<u64>> {
        self.detach(set);
        self.ring.driver.tracked.store(false, Ordering::Relaxed);
        None
    }

    /// Lets go under the ring's lock, so that the next unfinished enter sees it and calls again.
    fn let_go_of(&mut self, set: i32, guard: RingGuard) -> Option<Option<u64>> {
        self.ring.driver.give_up_helper();
        let answer = self.let_go(set);
        drop(guard);
        answer
    }

    /// The program drives by itself. One that keeps coming back does not need the helper: the next unfinished enter calls
    /// again.
    fn step_back(&mut self, set: i32, guard: RingGuard) -> Option<Option<u64>> {
        let waits = guard.sleepers != 0 && !guard.orphan;
        if self.visits > PATIENCE && waits {
            return self.let_go_of(set, guard);
        }
        Some(Some(PERIOD_NS))
    }

    /// Registers the engine's end of a ring with other copies once; true when the last of them is gone.
    fn last_copy_went(&mut self, set: i32, guard: &mut RingGuard) -> bool {
        if !self.orphan {
            self.orphan = Sys::epoll_ctl(set, libc::EPOLL_CTL_ADD, guard.engine_end, 0, 2).is_ok();
        }
        guard.closed = process::last_copy_gone(guard.engine_end);
        guard.closed
    }

    fn end(&mut self, set: i32, guard: RingGuard) -> Option<Option<u64>> {
        if self.orphan {
            let _ = Sys::epoll_ctl(set, libc::EPOLL_CTL_DEL, guard.engine_end, 0, 0);
        }
        self.detach(set);
        self.ring.driver.tracked.store(false, Ordering::Relaxed);
        drop(guard);
        process::end_if_unused(self.ring);
        None
    }
}

/// Forgets the parent's helper in a forked child.
///
/// # Safety
/// Only the forking thread may exist in the process.
pub unsafe fn reset_after_fork() {
    // SAFETY: no other thread exists, and the list is emptied right away.
    unsafe { RINGS.reset() };
    if let Some(mut rings) = RINGS.lock() {
        rings.clear();
    }
    RUNNING.store(0, Ordering::Relaxed);
    // The eventfd is shared with the parent: the child makes its own.
    let wake = WAKE.swap(-1, Ordering::Relaxed);
    if wake >= 0 {
        descriptors::close(wake);
    }
}
