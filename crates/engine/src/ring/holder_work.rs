//! Notes for a ring that another thread holds. The holder may sleep: in a page fault of the program's memory
//! (userfaultfd(2), a file on a server that is gone), or in the device. A thread that closes a descriptor, serves
//! several rings or works for all of them waits for no ring ([`Ring::lock_soon`]). It leaves a note, and the ring's
//! holder acts on it.
//!
//! A note is handled before the ring is released, and before each SQE, event and request is taken up. So nothing goes
//! on with a number that has been closed meanwhile.

use super::{LockFailure, Ring, RingGuard};
use crate::issue::lint;
use crate::mutation::{mutated, Mutation};
use crate::os::Clock;
use crate::resource::files::FixedFile;
use crate::ring::arrivals::Left;
use crate::ring::helper;
use crate::ring::table;
use crate::sync::{fence_after_swap, thread_pointer};
use crate::wq::creds::Hold;
use crate::wq::{self, Job};
use crate::{alloc, thread, Errno};
use core::sync::atomic::{fence, Ordering};
use std::sync::Arc;

/// A request to the holder of a busy ring.
pub enum Note {
    /// The program closed this number. Requests in flight on it go on with the duplicate, if one could be made.
    Closed(i32, Option<Arc<FixedFile>>),
    /// A number of the ring's own was closed; true if the process has others.
    LostNumber(bool),
    /// The last user of the ring has left it: it may be possible to end it.
    End,
    /// The helper wants the ring.
    Helper,
    /// The thread that polls the ring wants it.
    Poller,
    /// Another ring sends a file: its MSG_RING, which the holder of this one carries out.
    File(Arc<Job>),
    /// A thread has changed its identity. Requests in flight keep the old one, which this is a claim to.
    Identity(Hold),
}

/// A number that is being closed, and its one duplicate, shared by all rings that are busy.
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
pub struct Due(u8);

impl Due {
    /// Nothing.
    pub const NOTHING: Due = Due(0);
    /// End the ring if nobody uses it any more.
    pub const END: Due = Due(1);
    /// Wake the helper, which wants the ring.
    pub(crate) const HELPER: Due = Due(2);
    /// Wake the thread that polls the ring, which wants it.
    pub(crate) const POLLER: Due = Due(4);

    /// Adds `other`.
    pub fn add(&mut self, other: Due) {
        self.0 |= other.0;
    }

    /// Does the actions. The caller has released the ring.
    #[cold]
    pub(crate) fn act(self, ring: &'static Ring) {
        if self.0 & Due::HELPER.0 != 0 {
            helper::nudge();
        }
        if self.0 & Due::POLLER.0 != 0 {
            ring.nudge_poller();
        }
        if self.0 & Due::END.0 != 0 {
            table::end_if_unused(ring);
        }
    }
}

impl Ring {
    /// The ring's state unless another thread keeps it, for callers that must not wait for one ring. `Busy` then,
    /// also in a signal handler that interrupted the holder.
    pub fn lock_soon(&'static self) -> Result<RingGuard, LockFailure> {
        if mutated(Mutation::WaitsForBusyRings) {
            return self.lock();
        }
        self.guard(self.state.lock_soon().ok_or(LockFailure::Busy)?)
    }

    /// Leaves a note for the holder. If nobody holds the ring, the note is handled now.
    pub fn leave_note(&'static self, note: Note) {
        let mut left = [note].into_iter();
        while let Err(note) = self.notes.put(&self.left, left) {
            if self.notes.held_by_me() {
                return; // a handler installed unseen by us interrupted this very function
            }
            left = note;
            alloc::wait();
        }
        self.look_at_notes();
    }

    /// Leaves another ring's request that sends a file. False if there is no memory, or in a signal handler that
    /// interrupted this very function.
    #[must_use]
    pub fn leave_file(&'static self, job: Arc<Job>) -> bool {
        let left = self.notes.put(&self.left, [Note::File(job)].into_iter()).is_ok();
        if left {
            self.look_at_notes();
        }
        left
    }

    /// Handles notes now, or leaves them to the holder, which handles them before it releases the ring.
    fn look_at_notes(&'static self) {
        self.left.set(Left::UNTOLD);
        match self.try_lock() {
            Some(guard) => drop(guard),
            None => self.forget_notes_if_ended(),
        }
    }

    /// Drops the notes of a ring that has ended: they must not reach its next life. The thread that ends a ring calls
    /// this, too, after its release. So one of the two threads finds the lock free and the notes there.
    pub fn forget_notes_if_ended(&self) {
        fence_after_swap();
        let notes = match self.state.try_lock() {
            Some(held) if held.is_none() => self.notes.take(&self.left),
            _ => return,
        };
        for note in notes {
            // Dropping a note closes what it held, so that happens outside the lock.
            if let Note::File(job) = note {
                wq::refuse(job, Errno::BADFD);
            }
        }
    }

    /// Handles the close by the program of a number that is none of the ring's.
    pub fn close_number(&'static self, closing: &mut Closing) {
        match self.lock_soon() {
            Ok(mut guard) => {
                if guard.chaos.is_some() {
                    lint::closes(&mut guard, closing.fd);
                }
                guard.detach_number(closing.fd, None);
            }
            Err(LockFailure::Busy) => {
                if !self.has_unheeded_notes() {
                    self.left_alone.store(false, Ordering::Relaxed);
                }
                self.leave_note(Note::Closed(closing.fd, closing.private()));
                if !self.held_by_me() {
                    self.wait_for_holder();
                }
            }
            Err(_) => {}
        }
    }

    /// The ring's state unless its holder sleeps, perhaps for long: `Busy` then. For callers that need the present
    /// state and must not wait for a ring that another thread keeps.
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

    /// Waits until the holder has acted on the notes, or sleeps. The holder may be about to use the number that is
    /// being closed, some instructions before the system call. Natively it already has the file at that point.
    fn wait_for_holder(&'static self) {
        let begin_ns = Clock::Monotonic.now_ns();
        let mut tries = 0;
        while self.has_unheeded_notes() && !self.left_alone.load(Ordering::Relaxed) {
            // Its calls for the notes are short, and need the number as it is.
            let at_it = self.heeds.load(Ordering::Relaxed) && !is_long_since(begin_ns);
            if !at_it && self.holder_sleeps(begin_ns) {
                return self.left_alone.store(true, Ordering::Relaxed);
            }
            crate::os::nap(tries);
            tries += 1;
            drop(self.try_lock());
        }
    }

    /// True if some notes have not been handled to the end.
    fn has_unheeded_notes(&self) -> bool {
        // In this order: a holder sets `heeds` before it takes the notes. The fence's partner is in `Heeding::begin`,
        // the Acquire's in its drop.
        self.left.any(Left::NOTES) || {
            fence(Ordering::Acquire);
            self.heeds.load(Ordering::Acquire)
        }
    }

    /// True if the holder sleeps. The caller has waited for it since `begin_ns`.
    fn holder_sleeps(&self, begin_ns: u64) -> bool {
        let noted = self.holder.load(Ordering::Acquire); // partner: the Release in `note_holder`
        match thread::sleeps(self.holder_id.load(Ordering::Relaxed)) {
            // A holder that has not stored its id yet is awake.
            Some(sleeps) => sleeps && noted == self.state.holder(),
            None => is_long_since(begin_ns), // the kernel does not say
        }
    }

    /// Stores the id of a holder that is not the previous one. (A new thread at an ended one's thread pointer is
    /// taken for that one: it is not found asleep, then.)
    #[cold]
    pub(crate) fn note_holder(&self) {
        self.holder_id.store(thread::id(), Ordering::Relaxed);
        self.holder.store(thread_pointer(), Ordering::Release); // partner: the Acquire in `holder_sleeps`
    }
}

/// True if the time since `begin_ns` is enough for a thread to have got a core and made some short calls.
fn is_long_since(begin_ns: u64) -> bool {
    const LONG_NS: u64 = 10_000_000;
    Clock::Monotonic.now_ns().saturating_sub(begin_ns) >= LONG_NS
}

/// Marks that the holder acts on notes, for as long as this lives.
pub(crate) struct Heeding(&'static Ring);

impl Heeding {
    pub(crate) fn begin(ring: &'static Ring) -> Heeding {
        ring.heeds.store(true, Ordering::Relaxed);
        // A thread that finds no notes left sees this. Partner: the fence in `has_unheeded_notes`.
        fence(Ordering::Release);
        Heeding(ring)
    }
}

impl Drop for Heeding {
    fn drop(&mut self) {
        self.0.left_alone.store(false, Ordering::Relaxed);
        self.0.heeds.store(false, Ordering::Release); // partner: the Acquire in `has_unheeded_notes`
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;
    use std::sync::atomic::{AtomicBool, AtomicU32};
    use std::time::{Duration, Instant};

    #[test]
    fn a_close_waits_until_its_note_has_been_acted_on() {
        let (reader, _writer) = std::io::pipe().expect("a pipe");
        let (ring, closed) = (table::unborn_ring(), AtomicBool::new(false));
        std::thread::scope(|scope| {
            let held = ring.state.lock().expect("a ring that nobody knows");
            ring.note_holder();
            scope.spawn(|| {
                ring.close_number(&mut Closing::new(reader.as_raw_fd()));
                closed.store(true, Ordering::Release);
            });
            while !ring.has_unheeded_notes() {
                std::thread::yield_now();
            }
            let heeding = Heeding::begin(ring);
            assert_eq!(ring.notes.take(&ring.left).len(), 1);
            // Runs, so that it does not look asleep.
            let until = Instant::now() + Duration::from_millis(2);
            while Instant::now() < until {
                assert!(!closed.load(Ordering::Acquire), "the number is still in use");
            }
            drop(heeding);
            drop(held);
        });
        assert!(closed.into_inner() && !ring.has_unheeded_notes());
    }

    #[test]
    fn a_holder_that_has_not_noted_itself_is_not_found_asleep() {
        let (ring, sleeper) = (table::unborn_ring(), AtomicU32::new(0));
        std::thread::scope(|scope| {
            let (wakes, awake) = std::sync::mpsc::channel::<()>();
            let sleeper = &sleeper;
            scope.spawn(move || {
                drop(ring.state.lock());
                ring.note_holder();
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
    fn a_note_for_a_ring_that_has_ended_is_forgotten() {
        let (reader, _writer) = std::io::pipe().expect("a pipe");
        let file = FixedFile::private(reader.as_raw_fd()).expect("a duplicate");
        let known = Arc::downgrade(&file);
        table::unborn_ring().leave_note(Note::Closed(reader.as_raw_fd(), Some(file)));
        assert!(known.upgrade().is_none(), "the file would stay open");
    }
}
