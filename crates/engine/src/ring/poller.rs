//! The thread that polls a ring (IORING_SETUP_SQPOLL), as other threads know it. Its own code is in `wait/sqpoll.rs`.

use crate::descriptors::{self, Own};
use crate::lock::Lock;
use crate::memory::layout::word;
use crate::memory::view::View;
use crate::os::calls;
use crate::os::{changes, for_now, syscall};
use crate::ring::State;
use crate::ring::{Ring, RingGuard};
use crate::shared::control::Control;
use crate::Errno;
use core::sync::atomic::{fence, AtomicBool, AtomicU32, Ordering};
use rustix::event::EventfdFlags;
use rustix::fd::{AsRawFd, IntoRawFd};
use std::sync::Arc;

/// The value of `Poller::thread` before the thread has begun.
pub(crate) const STARTING: u32 = 0;

/// The value of `Poller::thread` once the thread is gone.
pub(crate) const ENDED: u32 = u32::MAX;

/// A polling thread, as other threads know it.
pub struct Poller {
    pub(crate) waiting: Lock<Waiting>,
    /// The eventfd that ends the thread's sleep.
    pub(crate) wake: Own,
    /// The thread's id, [`STARTING`] or [`ENDED`]. A futex word while the thread starts.
    pub(crate) thread: AtomicU32,
    /// Something has changed that the thread does not notice by itself, so it must check all its rings.
    pub(crate) again: AtomicBool,
    /// The thread sleeps or is about to sleep.
    pub(crate) sleeping: AtomicBool,
    /// The thread belongs to the process from which this process was forked.
    pub(crate) inherited: bool,
}

/// A ring for a polling thread to take in. The ring does not end before that thread gives it up.
pub struct Attached {
    /// The ring.
    pub ring: &'static Ring,
    /// The ring's memory.
    pub view: View,
    /// The control area that its processes share.
    pub control: Control,
    /// The time for which the program wants the thread to spin without work, in nanoseconds.
    pub idle_ns: u64,
}

/// The rings that the thread has not taken in yet.
pub(crate) struct Waiting {
    pub(crate) rings: Vec<Attached>,
    /// The thread is about to end and takes no more rings.
    pub(crate) ended: bool,
}

impl Ring {
    /// The thread that polls this ring, if there is one. `None` also in a signal handler that interrupted this very
    /// function.
    pub fn poller(&self) -> Option<Arc<Poller>> {
        let poller = self.poller.lock()?.clone();
        if self.wake_owed.load(Ordering::Relaxed) && self.wake_owed.swap(false, Ordering::Relaxed) {
            poller.iter().for_each(|poller| poller.wake());
        }
        poller
    }

    pub(crate) fn set_poller(&self, poller: &Arc<Poller>) {
        self.polled_by.store(poller.thread.load(Ordering::Relaxed), Ordering::Relaxed);
        if let Some(mut held) = self.poller.lock() {
            *held = Some(poller.clone());
        }
    }

    /// Removes the ring's polling thread.
    pub fn clear_poller(&self) {
        self.polled_by.store(0, Ordering::Relaxed);
        let poller = self.poller.lock().and_then(|mut held| held.take());
        drop(poller);
    }

    /// Makes the thread that polls this ring check for work.
    #[cold]
    pub fn nudge_poller(&self) {
        if let Some(poller) = self.poller() {
            poller.nudge();
        }
    }

    /// Prepares a closed ring for its end. False if its polling thread still serves it: then that thread ends the ring.
    pub fn leave_poller(&self) -> bool {
        match self.poller() {
            Some(poller) if !poller.inherited => {
                poller.nudge();
                false
            }
            Some(_) => {
                self.clear_poller();
                true
            }
            None => true,
        }
    }
}

/// Adjusts the polling threads in a forked child: the threads belong to the parent. The child can wake them and wait
/// for their posts.
///
/// # Safety
/// Only the forking thread may exist in the process, and the locks of `rings` must be free.
pub unsafe fn after_fork(rings: &[&'static Ring]) {
    let mut known: Vec<(Arc<Poller>, Option<Arc<Poller>>)> = Vec::new();
    for ring in rings {
        let Some(mut held) = ring.poller.lock() else { continue };
        let Some(old) = held.take() else { continue };
        let found = known.iter().find(|(other, _)| Arc::ptr_eq(other, &old)).map(|(_, new)| new.clone());
        let new = found.unwrap_or_else(|| {
            let new = old.inherited().ok();
            known.push((old.clone(), new.clone()));
            new
        });
        // No thread of the child has this number in any pid namespace.
        ring.polled_by.store(ENDED, Ordering::Relaxed);
        *held = new;
        core::mem::forget(old);
    }
    for (old, _) in known {
        // The parent's thread never drops its share in the child: this code closes the descriptor itself.
        descriptors::close(old.wake.as_raw_fd());
        core::mem::forget(old);
    }
}

impl Poller {
    /// Gives the thread another ring. Fails with `ENXIO` if the thread is ending.
    pub(crate) fn attach(&self, ring: Attached) -> Result<(), Errno> {
        let mut waiting = self.waiting.lock().ok_or(Errno::NXIO)?;
        if waiting.ended {
            return Err(Errno::NXIO);
        }
        waiting.rings.push(ring);
        Ok(())
    }

    /// Makes the thread check its rings again, whether it sleeps or works.
    pub fn nudge(&self) {
        self.again.store(true, Ordering::Relaxed); // ordered by the fence in `wake`
        self.wake();
    }

    /// Ends the thread's sleep, as IORING_ENTER_SQ_WAKEUP asks.
    pub(crate) fn wake(&self) {
        // Partner: the fence in `sleep`. Either the thread reads what was stored before (`again`, an SQ tail), or this
        // code finds it asleep.
        fence(Ordering::SeqCst);
        if self.inherited || self.sleeping.load(Ordering::Relaxed) {
            let one = 1u64;
            syscall(libc::SYS_write, [self.wake.as_raw_fd() as usize, &raw const one as usize, 8, 0, 0, 0]);
        }
    }

    /// True if the thread exists. Another process's thread exists as long as that process.
    pub(crate) fn lives(&self, guard: &RingGuard) -> bool {
        self.thread.load(Ordering::Relaxed) != ENDED && (!self.inherited || guard.maker_lives())
    }

    /// Makes a forked child's view of another process's thread.
    pub(crate) fn inherited(&self) -> Result<Arc<Poller>, Errno> {
        // SAFETY: the number is the eventfd's for as long as `self` lives. It is only borrowed, to be duplicated.
        let wake = unsafe { rustix::fd::BorrowedFd::borrow_raw(self.wake.as_raw_fd()) };
        Ok(Arc::new(Poller {
            waiting: Lock::new(Waiting { rings: Vec::new(), ended: true }),
            wake: descriptors::to_top(changes::change(|| calls::fcntl_dupfd_cloexec(wake, 0).map(for_now))?)?,
            thread: AtomicU32::new(self.thread.load(Ordering::Relaxed)),
            again: AtomicBool::new(false),
            sleeping: AtomicBool::new(false),
            inherited: true,
        }))
    }
}

impl State {
    /// Returns the eventfd that wakes a thread which waits with a signal mask, and makes it if there is none.
    pub fn make_poller_eventfd(&mut self) -> Result<i32, Errno> {
        if let Some(poller_eventfd) = self.poller_eventfd {
            return Ok(poller_eventfd);
        }
        let poller_eventfd = calls::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(*self.poller_eventfd.insert(descriptors::to_top(poller_eventfd)?.into_raw_fd()))
    }

    /// True if the program has published as many SQEs as the SQ holds (`io_sqring_full` in io_uring/io_uring.c).
    pub fn sq_is_full(&self) -> bool {
        let view = self.memory.view;
        match (view.load(word::SQ_TAIL), view.load(word::SQ_HEAD)) {
            (Ok(tail), Ok(head)) => tail.wrapping_sub(head) == view.layout().sq_entries,
            _ => false,
        }
    }
}
