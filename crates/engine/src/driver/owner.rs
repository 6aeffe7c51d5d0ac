//! The hand-over of a ring between the helper and threads that wait in io_uring_enter(2): who drives, and what the
//! helper does.
//!
//! | `role` | meaning | who leaves it |
//! |---|---|---|
//! | `free` | nobody drives | a thread that waits in io_uring_enter(2), or the helper once the program has stayed away |
//! | a thread id | that thread drives, inside `driver::wait` | the thread, when it returns |
//! | `helper` | the helper drives because the program stayed away | the next thread that asks to wait |
//!
//! | `helper` | what the helper does about the ring | who leaves it |
//! |---|---|---|
//! | `absent` | does not know the ring | the caller that leaves something pending hands the ring over |
//! | `resting` | sleeps without regard to the ring | the caller that leaves something pending calls the helper |
//! | `called` | will check whether the program calls again by itself | the helper, without the ring's lock |
//! | `urgent` | will serve the ring now | the helper |
//! | `checking` | checks the ring again after a period | the helper |
//! | `watching` | sleeps on the poll set, until the next deadline | the helper, a thread that takes the role, a caller |
//!
//! All of this changes under the ring's lock, with two exceptions. A thread that jumps out of a wait gives up the
//! role without the lock, and the helper goes from `called` to `checking` without it. `visits` is the only word
//! also read without the lock. So orderings are Relaxed, except where a word hands the ring over. The file makes no
//! system call: `tests/loom.rs` model-checks it unchanged.

use crate::sync::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};

const FREE: u32 = 0;
/// The role of the helper. No thread has this id.
const HELPER: u32 = u32::MAX;

const ABSENT: u32 = 0;
const RESTING: u32 = 1;
const CALLED: u32 = 2;
const URGENT: u32 = 3;
const CHECKING: u32 = 4;
const WATCHING: u32 = 5;

/// Number of periods in a row without a call of the program. After these the program is known to only poll the CQ.
const KNOWN: u32 = 3;

/// Outcome of trying to take the role.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum Acquired {
    /// The calling thread drives, and must give the role back.
    Mine,
    /// The call that the calling thread has interrupted has the role.
    Shared,
    /// Another thread has the role.
    No,
}

/// The action a caller of the helper must take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum Call {
    /// Nothing: the helper watches, checks soon, or has been woken.
    Nothing,
    /// Wake the helper.
    Wake,
    /// Hand the ring over, since the helper does not know it.
    HandOver,
}

/// The helper's next action, once awake, for a ring that it has not locked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum Duty {
    /// Begin a period.
    Begin,
    /// Serve the ring now.
    Check,
    /// Serve the ring if the period has passed without a call of the program.
    CheckWhenDue,
    /// Serve the ring if an event or a deadline has come.
    SleepOnPolls,
}

/// The thread that drives a ring, and the helper's task for it.
#[derive(Debug)]
pub struct Handover {
    role: AtomicU32,
    helper: AtomicU32,
    /// An address in the stack frame in which a thread took the role.
    frame: AtomicUsize,
    /// Number of times that a thread asked for events.
    visits: AtomicU32,
    /// Number of periods in a row without a call of the program, since a thread last slept in io_uring_enter(2).
    away: AtomicU32,
    /// True if the ring's poll set is in the helper's.
    attached: AtomicBool,
    /// The time until which the helper sleeps while it watches, in nanoseconds by CLOCK_MONOTONIC.
    until_ns: AtomicU64,
    /// The CQ tail and the visits at the helper's last post, see `record_posted`.
    posted: AtomicU64,
}

/// The value of `posted` when there is nothing to compare.
const NOTHING_POSTED: u64 = u64::MAX;

impl Handover {
    /// Makes a state in which nobody drives, and the helper does not know the ring.
    #[allow(clippy::new_without_default)] // `Driver` makes the only ones
    pub fn new() -> Handover {
        Handover {
            role: AtomicU32::new(FREE),
            helper: AtomicU32::new(ABSENT),
            frame: AtomicUsize::new(0),
            visits: AtomicU32::new(0),
            away: AtomicU32::new(0),
            attached: AtomicBool::new(false),
            until_ns: AtomicU64::new(0),
            posted: AtomicU64::new(NOTHING_POSTED),
        }
    }

    /// Resets to the initial state, for a forked child, which has no helper, and for a ring that has ended.
    pub fn reset(&self) {
        self.role.store(FREE, Ordering::Relaxed);
        self.helper.store(ABSENT, Ordering::Relaxed);
        self.away.store(0, Ordering::Relaxed);
        self.attached.store(false, Ordering::Relaxed);
        self.posted.store(NOTHING_POSTED, Ordering::Relaxed);
    }

    /// Acquires the role for thread `me`, which waits. The thread also takes the role from the helper, which then stops
    /// watching. `frame` is an address in the thread's stack frame.
    ///
    /// If a signal handler waits on a ring that the interrupted code drives, the handler shares the role, and does not
    /// give it up. If the frame that took the role is gone (siglongjmp), the role is taken anew.
    pub fn acquire(&self, me: u32, frame: usize) -> Acquired {
        let acquired = self.role_from(FREE, me) || self.role_from(HELPER, me);
        if !acquired && self.role.load(Ordering::Relaxed) != me {
            return Acquired::No;
        }
        if !acquired && frame < self.frame.load(Ordering::Relaxed) {
            return Acquired::Shared;
        }
        self.frame.store(frame, Ordering::Relaxed);
        if self.helper.load(Ordering::Relaxed) == WATCHING {
            self.helper.store(RESTING, Ordering::Relaxed);
        }
        Acquired::Mine
    }

    /// Returns which role thread `me` still has, after it had `acquired` a role with this frame. One of the program's
    /// handlers that interrupted its sleep may have given the role up.
    pub fn still(&self, acquired: Acquired, me: u32, frame: usize) -> Acquired {
        let is_mine = self.role.load(Ordering::Relaxed) == me;
        let has_it = is_mine && (acquired == Acquired::Shared || self.frame.load(Ordering::Relaxed) == frame);
        if has_it {
            acquired
        } else {
            Acquired::No
        }
    }

    /// Takes the role from a helper that drives, since a thread waits for something that may have arrived already.
    /// True if the helper had the role. If threads took the role only before they sleep, a helper that always comes
    /// first would keep it forever. Every event would then wake the helper.
    #[must_use]
    pub fn dismiss(&self) -> bool {
        if !self.is_helpers() {
            return false;
        }
        self.away.store(0, Ordering::Relaxed);
        let left = self.role_from(HELPER, FREE);
        if self.helper.load(Ordering::Relaxed) == WATCHING {
            self.helper.store(RESTING, Ordering::Relaxed);
        }
        left
    }

    fn role_from(&self, from: u32, to: u32) -> bool {
        // AcqRel: the new driver reads the old driver's writes, even if a jump gave the role back without the lock.
        self.role.compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// Gives the role of the calling thread back.
    pub fn give_back(&self) {
        self.role.store(FREE, Ordering::Release); // partner: the AcqRel exchange of the next driver
    }

    /// Gives the role back if thread `me` has it. The thread leaves a wait by a jump.
    pub fn give_back_if_mine(&self, me: u32) {
        let _ = self.role_from(me, FREE);
    }

    /// True if nobody drives.
    pub fn is_free(&self) -> bool {
        self.role.load(Ordering::Relaxed) == FREE
    }

    /// True if a thread in io_uring_enter(2) drives.
    pub fn has_thread(&self) -> bool {
        self.thread().is_some()
    }

    /// Returns the thread in io_uring_enter(2) that drives. `None` if no thread does.
    pub fn thread(&self) -> Option<u32> {
        Some(self.role.load(Ordering::Relaxed)).filter(|role| ![FREE, HELPER].contains(role))
    }

    /// True if the helper drives.
    pub fn is_helpers(&self) -> bool {
        self.role.load(Ordering::Relaxed) == HELPER
    }

    /// Counts that a thread asks for events: the program calls by itself.
    #[inline]
    pub fn visit(&self) {
        // Not an atomic increment: the ring's lock keeps other writers away.
        self.visits.store(self.visits().wrapping_add(1), Ordering::Relaxed);
    }

    /// Returns the number of times that the program has asked for events.
    pub fn visits(&self) -> u32 {
        self.visits.load(Ordering::Relaxed)
    }

    /// True if a thread in io_uring_enter(2) may sleep. That also shows that the program does not only poll the CQ.
    /// False if something `arrived` after the thread's check without anybody having been notified. This thread must
    /// then handle it. Later arrivals change the futex word that the thread is about to read.
    #[inline]
    pub fn may_sleep(&self, arrived: bool) -> bool {
        self.away.store(0, Ordering::Relaxed);
        !arrived
    }

    /// Counts a period without a call of the program.
    pub fn record_away(&self) {
        self.away.store(self.away.load(Ordering::Relaxed).saturating_add(1), Ordering::Relaxed);
    }

    /// True if the program is known to poll the CQ only. The helper then does not wait for a call of the program.
    pub fn only_peeks(&self) -> bool {
        self.away.load(Ordering::Relaxed) >= KNOWN
    }

    /// Records that the helper posted, up to CQ tail `tail`.
    pub fn record_posted(&self, tail: u32) {
        self.posted.store(u64::from(self.visits() & 0x7fff_ffff) << 32 | u64::from(tail), Ordering::Relaxed);
    }

    /// Records that the CQ's head is at `head`. A program that consumed the helper's CQEs without asking for events
    /// is known to poll the CQ only.
    pub fn record_head(&self, head: u32) {
        let posted = self.posted.load(Ordering::Relaxed);
        if posted == NOTHING_POSTED || (head.wrapping_sub(posted as u32) as i32) < 0 {
            return;
        }
        self.posted.store(NOTHING_POSTED, Ordering::Relaxed);
        if (posted >> 32) as u32 == self.visits() & 0x7fff_ffff {
            self.away.store(KNOWN, Ordering::Relaxed);
        }
    }

    /// Calls the helper for a ring that no thread may return to. The helper serves the ring `now`, or after a period
    /// without a call of the program.
    pub fn call(&self, now: bool) -> Call {
        let wanted = if now { URGENT } else { CALLED };
        match self.helper.load(Ordering::Relaxed) {
            URGENT => Call::Nothing,
            CALLED if !now => Call::Nothing,
            // A swap, since the helper may be going from called to checking. Release: partner is `duty`.
            _ => match self.helper.swap(wanted, Ordering::Release) {
                ABSENT => Call::HandOver,
                CALLED => Call::Nothing, // the helper was woken, and has not run yet
                _ => Call::Wake,
            },
        }
    }

    /// True if the helper watches the ring, or checks it soon and needs no further notice.
    #[inline]
    pub fn is_seen_to(&self) -> bool {
        match self.helper.load(Ordering::Relaxed) {
            WATCHING | URGENT => true,
            CALLED | CHECKING => !self.only_peeks() && self.posted.load(Ordering::Relaxed) == NOTHING_POSTED,
            _ => false,
        }
    }

    /// Returns how to call the helper when a call leaves the ring with something pending. `sleepers` threads sleep in
    /// io_uring_enter(2) and will take over.
    pub fn leave(&self, sleepers: u32) -> Call {
        match self.helper.load(Ordering::Relaxed) {
            WATCHING => Call::Nothing,
            RESTING | ABSENT if sleepers != 0 => Call::Nothing,
            RESTING | ABSENT => self.call(self.only_peeks()),
            _ if self.only_peeks() => self.call(true),
            _ => Call::Nothing,
        }
    }

    /// True if the helper sleeps without regard to the ring.
    pub fn is_resting(&self) -> bool {
        self.helper.load(Ordering::Relaxed) == RESTING
    }

    /// True if the helper sleeps on the ring's poll set.
    pub fn is_watching(&self) -> bool {
        self.helper.load(Ordering::Relaxed) == WATCHING
    }

    /// Returns the time, in nanoseconds by CLOCK_MONOTONIC, at which the helper wakes by itself while it watches.
    pub fn watches_until_ns(&self) -> u64 {
        self.until_ns.load(Ordering::Relaxed)
    }

    /// True if the helper knows the ring. The ring then does not end without the helper.
    pub fn is_known(&self) -> bool {
        self.helper.load(Ordering::Relaxed) != ABSENT
    }

    /// True if the ring's poll set is in the helper's.
    pub fn is_attached(&self) -> bool {
        self.attached.load(Ordering::Relaxed)
    }

    /// Sets whether the ring's poll set is in the helper's. Returns the previous value.
    pub fn set_attached(&self, attached: bool) -> bool {
        let before = self.attached.load(Ordering::Relaxed);
        self.attached.store(attached, Ordering::Relaxed);
        before
    }

    /// Returns the helper's next action for the ring. The helper calls this when it is awake, without the ring's
    /// lock.
    pub fn duty(&self) -> Duty {
        // Acquire: partner is the Release in `call`.
        match self.helper.compare_exchange(CALLED, CHECKING, Ordering::Acquire, Ordering::Acquire) {
            Ok(_) => Duty::Begin,
            Err(URGENT) => Duty::Check,
            Err(CHECKING) => Duty::CheckWhenDue,
            Err(_) => Duty::SleepOnPolls,
        }
    }

    /// Acquires the role for the helper. False if a thread has it.
    #[must_use]
    pub fn acquire_for_helper(&self) -> bool {
        self.role_from(FREE, HELPER) || self.is_helpers()
    }

    /// Makes the helper check again after a period.
    pub fn check_later(&self) {
        self.helper.store(CHECKING, Ordering::Relaxed);
    }

    /// Lets the helper sleep on the ring's poll set, until `until_ns` by CLOCK_MONOTONIC at the latest.
    pub fn sleep_on_polls(&self, until_ns: u64) {
        self.until_ns.store(until_ns, Ordering::Relaxed);
        self.helper.store(WATCHING, Ordering::Relaxed);
    }

    /// Makes the helper rest: it sleeps without regard to the ring, and does not drive.
    pub fn rest(&self) {
        let _ = self.role_from(HELPER, FREE);
        self.helper.store(RESTING, Ordering::Relaxed);
    }

    /// Makes the helper forget the ring.
    pub fn forget(&self) {
        let _ = self.role_from(HELPER, FREE);
        self.helper.store(ABSENT, Ordering::Relaxed);
    }
}

/// A mailbox through which rings are handed over to the helper. Its lock is taken after a ring's.
pub struct Mailbox<T> {
    waiting: Vec<T>,
    running: bool,
}

impl<T> Mailbox<T> {
    /// An empty mailbox, while no helper runs.
    pub const NEW: Mailbox<T> = Mailbox { waiting: Vec::new(), running: false };

    /// Leaves a ring for the helper. True if the caller must start a helper, which counts as running from now on.
    #[must_use]
    pub fn hand_over(&mut self, ring: T) -> bool {
        self.waiting.push(ring);
        self.start()
    }

    /// True if no helper runs. The caller must then start a helper, which counts as running from now on.
    #[must_use]
    pub fn start(&mut self) -> bool {
        !core::mem::replace(&mut self.running, true)
    }

    /// True if no helper runs.
    pub fn is_without_helper(&self) -> bool {
        !self.running
    }

    /// Returns the number of rings handed over and not taken yet.
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Takes the rings that were handed over.
    pub fn take(&mut self) -> Vec<T> {
        core::mem::take(&mut self.waiting)
    }

    /// Called by the helper, which has no ring and wants to end. True if it may end. The next hand-over then starts
    /// another helper.
    #[must_use]
    pub fn leave(&mut self) -> bool {
        self.running = !self.waiting.is_empty();
        !self.running
    }

    /// Empties the mailbox. No helper could be started, or only the parent of this process has one.
    pub fn close(&mut self) {
        *self = Mailbox::NEW;
    }
}
