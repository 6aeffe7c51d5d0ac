//! Work for the holder of a busy ring. The holder may sleep: in a page fault on the program's memory (userfaultfd(2), a
//! file on a server that is gone), or in the device. A thread that closes a descriptor must not wait for a ring
//! ([`Ring::lock_soon`]), nor must a thread that serves several rings or works for all. Such a thread leaves the work,
//! and the ring's holder does it.
//!
//! The holder does the work before it releases the ring, and before it takes up each SQE, event and request. So no
//! operation continues on a number that was closed while the ring was held.

use super::{LockFailure, Ring, RingGuard};
use crate::issue::lint;
use crate::mutation::{mutated, Mutation};
use crate::os::Clock;
use crate::resource::files::FixedFile;
use crate::ring::arrivals::Left;
use crate::ring::helper;
use crate::ring::table;
use crate::sync::{fence_after_swap, thread_pointer};
use crate::wq::creds::Claim;
use crate::wq::{self, Job};
use crate::{alloc, thread, Errno};
use core::sync::atomic::{fence, Ordering};
use std::sync::Arc;

/// A request to the holder of a busy ring.
pub enum HolderWork {
    /// The program closed this number. Requests in flight on it continue with the duplicate, if a duplicate could be
    /// made.
    Closed(i32, Option<Arc<FixedFile>>),
    /// One of the ring's own numbers was closed; true if the process has other numbers of the ring.
    OwnNumberClosed(bool),
    /// The last user of the ring has left it, so the ring may have to end.
    End,
    /// The helper wants to lock the ring.
    Helper,
    /// The ring's polling thread wants to lock the ring.
    Poller,
    /// Another ring sends a file: the job is its MSG_RING, which the holder of this ring carries out.
    File(Arc<Job>),
    /// A thread has changed its identity. The value is a claim to the old identity, which requests in flight keep.
    Identity(Claim),
}

/// A number that is being closed, and its one duplicate, which all busy rings share.
pub struct Closing {
    fd: i32,
    private: Option<Option<Arc<FixedFile>>>,
}

impl Closing {
    /// The program is about to close `fd`.
    pub fn new(fd: i32) -> Closing {
        Closing { fd, private: None }
    }

    fn private(&mut self) -> Option<Arc<FixedFile>> {
        let fd = self.fd;
        self.private.get_or_insert_with(|| FixedFile::private(fd).ok()).clone()
    }
}

/// Actions due once the ring is released.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AfterRelease(u8);

impl AfterRelease {
    /// No action.
    pub const NOTHING: AfterRelease = AfterRelease(0);
    /// End the ring if no thread uses it any more.
    pub const END: AfterRelease = AfterRelease(1);
    /// Wake the helper, which wants to lock the ring.
    pub(crate) const HELPER: AfterRelease = AfterRelease(2);
    /// Wake the ring's polling thread, which wants to lock the ring.
    pub(crate) const POLLER: AfterRelease = AfterRelease(4);
    /// Complete the polls of this ring that another ring has.
    pub(crate) const RING_THAT_POLLS: AfterRelease = AfterRelease(8);

    /// Adds `other`.
    pub fn add(&mut self, other: AfterRelease) {
        self.0 |= other.0;
    }

    /// Takes `other` out.
    pub(crate) fn remove(&mut self, other: AfterRelease) {
        self.0 &= !other.0;
    }

    /// Does the actions. The caller has released the ring.
    #[cold]
    pub(crate) fn act(self, ring: &'static Ring) {
        if self.0 & AfterRelease::HELPER.0 != 0 {
            helper::nudge();
        }
        if self.0 & AfterRelease::POLLER.0 != 0 {
            ring.nudge_poller();
        }
        if self.0 & AfterRelease::RING_THAT_POLLS.0 != 0 {
            ring.serve_ring_that_polls();
        }
        if self.0 & AfterRelease::END.0 != 0 {
            table::end_if_unused(ring);
        }
    }
}

impl Ring {
    /// Returns the ring's state, for callers that must not wait for one ring. Fails with `Busy` if another thread holds
    /// the ring, and in a signal handler that interrupted the holder.
    pub fn lock_soon(&'static self) -> Result<RingGuard, LockFailure> {
        if mutated(Mutation::WaitsForBusyRings) {
            return self.lock();
        }
        self.guard(self.state.lock_soon().ok_or(LockFailure::Busy)?)
    }

    /// Leaves work for the holder. If no thread holds the ring, the work is done at once.
    pub fn leave_holder_work(&'static self, work: HolderWork) {
        let mut left = [work].into_iter();
        while let Err(work) = self.holder_work.put(&self.left, left) {
            if self.holder_work.held_by_me() {
                return; // a handler unknown to the engine interrupted this function
            }
            left = work;
            alloc::wait();
        }
        self.run_or_leave_holder_work();
    }

    /// Leaves another ring's request that sends a file to this ring. False if there is no memory, or in a signal
    /// handler that interrupted this very function.
    #[must_use]
    pub fn leave_file_for_holder(&'static self, job: Arc<Job>) -> bool {
        let left = self.holder_work.put(&self.left, [HolderWork::File(job)].into_iter()).is_ok();
        if left {
            self.run_or_leave_holder_work();
        }
        left
    }

    /// Does the work at once, or leaves it to the holder, which does it before it releases the ring.
    fn run_or_leave_holder_work(&'static self) {
        self.left.set(Left::UNANNOUNCED);
        match self.try_lock() {
            Some(guard) => drop(guard),
            None => self.drop_holder_work_if_ended(),
        }
    }

    /// Drops the work for a ring that has ended: it must not reach the ring's next life. The thread that ends a ring
    /// calls this, too, after its release. So one of the two threads finds the lock free and the work there.
    pub fn drop_holder_work_if_ended(&self) {
        fence_after_swap();
        let items = match self.state.try_lock() {
            Some(held) if held.is_none() => self.holder_work.take(&self.left),
            _ => return,
        };
        for item in items {
            // Dropping an item closes what it held, so that happens outside the lock.
            if let HolderWork::File(job) = item {
                wq::refuse(job, Errno::BADFD);
            }
        }
    }

    /// Handles the program's close of a number that does not belong to this ring.
    pub fn close_number(&'static self, closing: &mut Closing) {
        match self.lock_soon() {
            Ok(mut guard) => {
                if guard.chaos.is_some() {
                    lint::closes(&mut guard, closing.fd);
                }
                guard.detach_number(closing.fd, None);
            }
            Err(LockFailure::Busy) => {
                if !self.has_unfinished_holder_work() {
                    self.close_gave_up.store(false, Ordering::Relaxed);
                }
                self.leave_holder_work(HolderWork::Closed(closing.fd, closing.private()));
                if !self.held_by_me() {
                    self.wait_for_holder();
                }
            }
            Err(_) => {}
        }
    }

    /// Returns the ring's state unless its holder sleeps, perhaps for long: then fails with `Busy`. For callers that
    /// need the present state and must not wait for a ring that another thread keeps.
    pub fn lock_unless_asleep(&'static self) -> Result<RingGuard, LockFailure> {
        let begin_ns = Clock::Monotonic.now_ns();
        let mut tries = 0;
        loop {
            match self.lock_soon() {
                Err(LockFailure::Busy) if !self.held_by_me() && !self.holder_sleeps(begin_ns) => {
                    crate::os::nap(tries);
                    tries += 1;
                }
                answer => return answer,
            }
        }
    }

    /// Waits until the holder has done the work, or sleeps. An awake holder may be a few instructions before a system
    /// call on the number that is being closed. If it sleeps in such a call, the kernel already has the file.
    fn wait_for_holder(&'static self) {
        let begin_ns = Clock::Monotonic.now_ns();
        let mut tries = 0;
        while self.has_unfinished_holder_work() && !self.close_gave_up.load(Ordering::Relaxed) {
            // The holder's calls for this work are short, and need the number to stay open.
            let at_it = self.holder_work_runs.load(Ordering::Relaxed) && !is_long_since(begin_ns);
            if !at_it && self.holder_sleeps(begin_ns) {
                return self.close_gave_up.store(true, Ordering::Relaxed);
            }
            crate::os::nap(tries);
            tries += 1;
            drop(self.try_lock());
        }
    }

    /// True if some holder work is not done yet.
    fn has_unfinished_holder_work(&self) -> bool {
        // The order matters: a holder sets `holder_work_runs` before it takes the work. The partner of the fence is in
        // `HolderWorkRuns::begin`. The partner of the Acquire is in the drop of that value.
        self.left.any(Left::HOLDER_WORK) || {
            fence(Ordering::Acquire);
            self.holder_work_runs.load(Ordering::Acquire)
        }
    }

    /// True if the holder sleeps. The caller has waited for it since `begin_ns`.
    fn holder_sleeps(&self, begin_ns: u64) -> bool {
        let recorded = self.holder.load(Ordering::Acquire); // partner: the Release in `record_holder`
        match thread::sleeps(self.holder_id.load(Ordering::Relaxed)) {
            // A holder that has not stored its id yet is awake.
            Some(sleeps) => sleeps && recorded == self.state.holder(),
            None => is_long_since(begin_ns), // the kernel does not report it
        }
    }

    /// Stores the id of a holder that is not the previous holder. (A new thread may have an ended thread's thread
    /// pointer and is then taken for that thread. It is not found asleep in that case.)
    #[cold]
    pub(crate) fn record_holder(&self) {
        self.holder_id.store(thread::id(), Ordering::Relaxed);
        self.holder.store(thread_pointer(), Ordering::Release); // partner: the Acquire in `holder_sleeps`
    }
}

/// True if the time since `begin_ns` suffices for a thread to get a core and make some short calls.
fn is_long_since(begin_ns: u64) -> bool {
    const LONG_NS: u64 = 10_000_000;
    Clock::Monotonic.now_ns().saturating_sub(begin_ns) >= LONG_NS
}

/// Marks, for as long as the value lives, that the holder does holder work.
pub(crate) struct HolderWorkRuns(&'static Ring);

impl HolderWorkRuns {
    pub(crate) fn begin(ring: &'static Ring) -> HolderWorkRuns {
        ring.holder_work_runs.store(true, Ordering::Relaxed);
        // A thread that finds no work left finds this flag set. Partner: the fence in `has_unfinished_holder_work`.
        fence(Ordering::Release);
        HolderWorkRuns(ring)
    }
}

impl Drop for HolderWorkRuns {
    fn drop(&mut self) {
        self.0.close_gave_up.store(false, Ordering::Relaxed);
        self.0.holder_work_runs.store(false, Ordering::Release); // partner: the Acquire in `has_unfinished_holder_work`
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;
    use std::sync::atomic::{AtomicBool, AtomicU32};
    use std::time::{Duration, Instant};

    #[test]
    fn a_close_waits_until_the_holder_has_acted_on_it() {
        let (reader, _writer) = std::io::pipe().expect("a pipe");
        let (ring, closed) = (table::unborn_ring(), AtomicBool::new(false));
        std::thread::scope(|scope| {
            let held = ring.state.lock().expect("a ring that nobody knows");
            ring.record_holder();
            scope.spawn(|| {
                ring.close_number(&mut Closing::new(reader.as_raw_fd()));
                closed.store(true, Ordering::Release);
            });
            while !ring.has_unfinished_holder_work() {
                std::thread::yield_now();
            }
            let running = HolderWorkRuns::begin(ring);
            assert_eq!(ring.holder_work.take(&ring.left).len(), 1);
            // This thread runs for 2 ms, so that the closing thread does not find it asleep.
            let until = Instant::now() + Duration::from_millis(2);
            while Instant::now() < until {
                assert!(!closed.load(Ordering::Acquire), "the number is still in use");
            }
            drop(running);
            drop(held);
        });
        assert!(closed.into_inner() && !ring.has_unfinished_holder_work());
    }

    #[test]
    fn a_holder_that_is_not_recorded_is_not_found_asleep() {
        let (ring, sleeper) = (table::unborn_ring(), AtomicU32::new(0));
        std::thread::scope(|scope| {
            let (wakes, awake) = std::sync::mpsc::channel::<()>();
            let sleeper = &sleeper;
            scope.spawn(move || {
                drop(ring.state.lock());
                ring.record_holder();
                sleeper.store(thread::id(), Ordering::Release);
                let _ = awake.recv();
            });
            while !is_asleep(sleeper) {
                std::thread::yield_now();
            }
            let held = ring.state.lock();
            assert!(!ring.holder_sleeps(Clock::Monotonic.now_ns()));
            drop((held, wakes));
        });
    }

    fn is_asleep(thread: &AtomicU32) -> bool {
        let thread = thread.load(Ordering::Acquire);
        thread != 0 && thread::sleeps(thread) == Some(true)
    }

    #[test]
    fn work_for_a_ring_that_has_ended_is_dropped() {
        let (reader, _writer) = std::io::pipe().expect("a pipe");
        let file = FixedFile::private(reader.as_raw_fd()).expect("a duplicate");
        let known = Arc::downgrade(&file);
        table::unborn_ring().leave_holder_work(HolderWork::Closed(reader.as_raw_fd(), Some(file)));
        assert!(known.upgrade().is_none(), "the file would stay open");
    }
}
