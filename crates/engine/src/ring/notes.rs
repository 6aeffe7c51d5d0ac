//! Notes for a ring that another thread holds. The holder may sleep: in a page fault of the program's memory
//! (userfaultfd(2), a file on a server that is gone), in the device. Who closes a descriptor, serves several rings or
//! works for all of them waits for no ring ([`Ring::lock_soon`]): it leaves a note, and whoever holds the ring acts on
//! it.
//!
//! A note is heeded before the ring is let go of, and before each SQE, event and request that is taken up, so that nothing
//! goes on with a number that has been closed meanwhile.

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

/// What somebody wanted of a ring that was busy.
pub enum Note {
    /// The program closed this number. What is in flight on it goes on with the duplicate, if there could be one.
    Closed(i32, Option<Arc<FixedFile>>),
    /// A number of the ring's own was closed; whether the process has others.
    LostNumber(bool),
    /// Whoever worked on the ring last has left it: it may be possible to end it.
    End,
    /// The helper has something to do on it.
    Helper,
    /// So has the thread that polls it.
    Poller,
    /// Another ring sends a file: its MSG_RING, which whoever holds this one makes.
    File(Arc<Job>),
    /// A thread has changed its identity: what is in flight keeps the one that this is a claim to.
    Identity(Hold),
}

/// A number that is being closed, and the one duplicate of it for all rings that are busy.
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

/// What is to be done once the ring is let go of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Due(u8);

impl Due {
    /// Nothing.
    pub const NOTHING: Due = Due(0);
    /// End the ring if nobody uses it any more.
    pub const END: Due = Due(1);
    /// Wake the helper, which wants the ring.
    pub(crate) const HELPER: Due = Due(2);
    /// Wake the thread that polls it, for the same.
    pub(crate) const POLLER: Due = Due(4);

    /// This, too.
    pub fn add(&mut self, other: Due) {
        self.0 |= other.0;
    }

    /// Does it. The caller has let go of the ring.
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
    /// The ring's state unless somebody keeps it: for those who must not wait for one ring. `Busy` then, also in a signal
    /// handler that interrupted the holder.
    pub fn lock_soon(&'static self) -> Result<RingGuard, LockFailure> {
        if mutated(Mutation::WaitsForBusyRings) {
            return self.lock();
        }
        self.guard(self.state.lock_soon().ok_or(LockFailure::Busy)?)
    }

    /// Leaves a note, for the holder if there is one.
    pub fn leave_note(&'static self, note: Note) {
        let mut left = [note].into_iter();
        while let Err(note) = self.notes.put(&self.left, left) {
            if self.notes.held_by_me() {
                return; // a handler that was set past us interrupted this very function
            }
            left = note;
            alloc::wait();
        }
        self.look_at_notes();
    }

    /// Leaves another ring's request that sends a file. False where there is no memory for it, and in a signal handler that
    /// interrupted this very function.
    #[must_use]
    pub fn leave_file(&'static self, job: Arc<Job>) -> bool {
        let left = self.notes.put(&self.left, [Note::File(job)].into_iter()).is_ok();
        if left {
            self.look_at_notes();
        }
        left
    }

    /// Notes are heeded now, or by whoever holds the ring before letting go.
    fn look_at_notes(&'static self) {
        self.left.set(Left::UNTOLD);
        match self.try_lock() {
            Some(guard) => drop(guard),
            None => self.forget_notes_if_ended(),
        }
    }

    /// Notes for a ring that has ended concern nobody, and must not meet its next life. Called by whoever ended it, too, after
    /// letting go: so one of both finds the lock free and the notes.
    pub fn forget_notes_if_ended(&self) {
        fence_after_swap();
        let notes = match self.state.try_lock() {
            Some(held) if held.is_none() => self.notes.take(&self.left),
            _ => return,
        };
        for note in notes {
            // What was held is closed, so not under the lock.
            if let Note::File(job) = note {
                wq::refuse(job, Errno::BADFD);
            }
        }
    }

    /// The program is about to close a number that is none of the ring's.
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

    /// The ring's state unless its holder sleeps, perhaps for long: for those who have to know how it stands now, and must not
    /// wait for a ring that somebody keeps. `Busy` then.
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

    /// Waits until the holder has acted on the notes, or sleeps. It may be about to use the number that is being closed, some
    /// instructions away from the system call: natively it has the file by then.
    fn wait_for_holder(&'static self) {
        let begin_ns = Clock::Monotonic.now_ns();
        let mut tries = 0;
        while self.has_unheeded_notes() && !self.left_alone.load(Ordering::Relaxed) {
            // What it calls to act on notes is short, and needs the number as it is.
            let at_it = self.heeds.load(Ordering::Relaxed) && !is_long_since(begin_ns);
            if !at_it && self.holder_sleeps(begin_ns) {
                return self.left_alone.store(true, Ordering::Relaxed);
            }
            crate::os::nap(tries);
            tries += 1;
            drop(self.try_lock());
        }
    }

    /// Whether nobody has come to the end of some notes.
    fn has_unheeded_notes(&self) -> bool {
        // In this order: who takes the notes has said before that it heeds them. The fence's partner is in `Heeding::begin`,
        // the Acquire's in its drop.
        self.left.any(Left::NOTES) || {
            fence(Ordering::Acquire);
            self.heeds.load(Ordering::Acquire)
        }
    }

    /// Whether the holder, who has been waited for since `begin_ns`, sleeps.
    fn holder_sleeps(&self, begin_ns: u64) -> bool {
        let noted = self.holder.load(Ordering::Acquire); // partner: the Release in `note_holder`
        match thread::sleeps(self.holder_id.load(Ordering::Relaxed)) {
            // A holder that has not noted itself yet is awake.
            Some(sleeps) => sleeps && noted == self.state.holder(),
            None => is_long_since(begin_ns), // the kernel does not tell
        }
    }

    /// Another thread than the last one has taken the ring. (A new thread in an ended one's place is taken for that one: it is
    /// not found asleep, then.)
    #[cold]
    pub(crate) fn note_holder(&self) {
        self.holder_id.store(thread::id(), Ordering::Relaxed);
        self.holder.store(thread_pointer(), Ordering::Release); // partner: the Acquire in `holder_sleeps`
    }
}

/// Whether the time since `begin_ns` is enough for a thread to have got a core and made some short calls.
fn is_long_since(begin_ns: u64) -> bool {
    const LONG_NS: u64 = 10_000_000;
    Clock::Monotonic.now_ns().saturating_sub(begin_ns) >= LONG_NS
}

/// The holder acts on notes, for as long as this lives.
pub(crate) struct Heeding(&'static Ring);

impl Heeding {
    pub(crate) fn begin(ring: &'static Ring) -> Heeding {
        ring.heeds.store(true, Ordering::Relaxed);
        // Whoever finds no notes any more sees this. Partner: the fence in `has_unheeded_notes`.
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
