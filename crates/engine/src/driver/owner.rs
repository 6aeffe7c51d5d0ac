//! The hand-over of a ring between threads that wait in enter and the helper: who drives, and what the helper does.
//!
//! | `role` | meaning | who leaves it |
//! |---|---|---|
//! | free | nobody drives | a thread that waits in enter, or the helper once the program has stayed away |
//! | a thread id | that thread drives, inside `driver::wait` | the thread, when it returns |
//! | helper | the helper drives because the program stayed away | the next thread that asks to wait |
//!
//! | `helper` | what the helper does about the ring | who leaves it |
//! |---|---|---|
//! | absent | does not know it | whoever leaves something pending hands it over |
//! | resting | sleeps without regard to it | whoever leaves something pending calls |
//! | called | is to see whether the program comes back by itself | the helper, without the ring's lock |
//! | urgent | is to look at it now | the helper |
//! | looking | looks again after a period by itself | the helper |
//! | watching | sleeps on its poll set and until its next deadline | the helper, a thread that takes the role, a caller |
//!
//! All of this changes under the ring's lock, but for the role of a thread that jumps out of a wait and the step from
//! called to looking. `visits` alone is read without it. So orderings are Relaxed, except where a word is the hand-over.
//! The file makes no system call: `tests/loom.rs` model-checks it as it stands.

use crate::sync::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};

const FREE: u32 = 0;
/// No thread has this id.
const HELPER: u32 = u32::MAX;

const ABSENT: u32 = 0;
const RESTING: u32 = 1;
const CALLED: u32 = 2;
const URGENT: u32 = 3;
const LOOKING: u32 = 4;
const WATCHING: u32 = 5;

/// Times in a row that the program stayed away for a period, after which it is known to look at the CQ only.
const KNOWN: u32 = 3;

/// What trying to take the role led to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum Taken {
    /// This call drives, and gives the role back.
    Mine,
    /// The call that this one interrupted has the role.
    Shared,
    /// Another thread has it.
    No,
}

/// What a caller of the helper has to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum Call {
    /// Nothing: it watches, or looks soon, or has been woken.
    Nothing,
    /// Wake it.
    Wake,
    /// Hand the ring over: it does not know it.
    HandOver,
}

/// What the helper, awake, is to do about a ring that it has not locked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum Duty {
    /// Begin a period.
    Begin,
    /// Look now.
    Look,
    /// Look if the period has passed and the program has not come by itself.
    LookWhenDue,
    /// Look if an event or a deadline came.
    Watch,
}

/// Who drives a ring, and what the helper does about it.
#[derive(Debug)]
pub struct Handover {
    role: AtomicU32,
    helper: AtomicU32,
    /// The frame in which a thread took the role.
    frame: AtomicUsize,
    /// Times a thread asked for events.
    visits: AtomicU32,
    /// Periods in a row for which the program stayed away, since a thread slept in enter.
    away: AtomicU32,
    /// The ring's poll set is in the helper's.
    attached: AtomicBool,
    /// Until when the helper sleeps while it watches, by CLOCK_MONOTONIC.
    until_ns: AtomicU64,
    /// What the helper posted last, see `note_posted`.
    posted: AtomicU64,
}

/// In `posted`: nothing to watch for.
const NOTHING_POSTED: u64 = u64::MAX;

impl Handover {
    /// Nobody drives, and the helper does not know the ring.
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

    /// As new: for a forked child, which has no helper, and for a ring that has ended.
    pub fn reset(&self) {
        self.role.store(FREE, Ordering::Relaxed);
        self.helper.store(ABSENT, Ordering::Relaxed);
        self.away.store(0, Ordering::Relaxed);
        self.attached.store(false, Ordering::Relaxed);
        self.posted.store(NOTHING_POSTED, Ordering::Relaxed);
    }

    /// Thread `me` waits: it takes the role, also from the helper, which stops watching. `frame` is an address in its
    /// frame: a signal handler that waits while the interrupted code drives shares the role and does not end it; where
    /// the frame that took it is gone (siglongjmp), the role is taken anew.
    pub fn take(&self, me: u32, frame: usize) -> Taken {
        let taken = self.role_from(FREE, me) || self.role_from(HELPER, me);
        if !taken && self.role.load(Ordering::Relaxed) != me {
            return Taken::No;
        }
        if !taken && frame < self.frame.load(Ordering::Relaxed) {
            return Taken::Shared;
        }
        self.frame.store(frame, Ordering::Relaxed);
        if self.helper.load(Ordering::Relaxed) == WATCHING {
            self.helper.store(RESTING, Ordering::Relaxed);
        }
        Taken::Mine
    }

    /// What has become of the role that thread `me` has `taken`, with this frame: a handler of the program's that interrupted its
    /// sleep has given it up.
    pub fn still(&self, taken: Taken, me: u32, frame: usize) -> Taken {
        let is_mine = self.role.load(Ordering::Relaxed) == me;
        let has_it = is_mine && (taken == Taken::Shared || self.frame.load(Ordering::Relaxed) == frame);
        if has_it {
            taken
        } else {
            Taken::No
        }
    }

    /// A thread waits for what may be there already: it does not only look, and a helper that drives leaves the role. True when
    /// one did. Were the role taken before a sleep only, a helper that is always there first would keep it for good, and every
    /// event wake it.
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
        // AcqRel: the new driver sees what the old one left, also where a jump gave the role back without the lock.
        self.role.compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// The thread that has the role leaves it.
    pub fn give_back(&self) {
        self.role.store(FREE, Ordering::Release); // partner: the AcqRel exchange of the next driver
    }

    /// Thread `me` leaves a wait by a jump, perhaps with the role.
    pub fn give_back_if_mine(&self, me: u32) {
        let _ = self.role_from(me, FREE);
    }

    /// Whether nobody drives.
    pub fn is_free(&self) -> bool {
        self.role.load(Ordering::Relaxed) == FREE
    }

    /// Whether a thread in enter drives.
    pub fn has_thread(&self) -> bool {
        self.thread().is_some()
    }

    /// The thread in enter that drives.
    pub fn thread(&self) -> Option<u32> {
        Some(self.role.load(Ordering::Relaxed)).filter(|role| ![FREE, HELPER].contains(role))
    }

    /// Whether the helper drives.
    pub fn is_helpers(&self) -> bool {
        self.role.load(Ordering::Relaxed) == HELPER
    }

    /// A thread asks for events: the program comes by itself.
    #[inline]
    pub fn visit(&self) {
        // Not one instruction: the ring's lock keeps other writers away.
        self.visits.store(self.visits().wrapping_add(1), Ordering::Relaxed);
    }

    /// How often the program has come by itself.
    pub fn visits(&self) -> u32 {
        self.visits.load(Ordering::Relaxed)
    }

    /// Whether a thread in enter may sleep, which a program that only looks never does. False when something `arrived`
    /// after it had looked, and was announced to nobody: this thread is the one to be told. What comes from here on changes
    /// the futex word that it is about to read.
    #[inline]
    pub fn may_sleep(&self, arrived: bool) -> bool {
        self.away.store(0, Ordering::Relaxed);
        !arrived
    }

    /// The program stayed away for a period.
    pub fn note_away(&self) {
        self.away.store(self.away.load(Ordering::Relaxed).saturating_add(1), Ordering::Relaxed);
    }

    /// Whether the program is known to look at the CQ only: the helper does not wait for it to come.
    pub fn only_looks(&self) -> bool {
        self.away.load(Ordering::Relaxed) >= KNOWN
    }

    /// The helper posted, up to CQ tail `tail`.
    pub fn note_posted(&self, tail: u32) {
        self.posted.store(u64::from(self.visits() & 0x7fff_ffff) << 32 | u64::from(tail), Ordering::Relaxed);
    }

    /// The CQ's head is at `head`: a program that took what the helper posted and did not ask for it only looks.
    pub fn note_head(&self, head: u32) {
        let posted = self.posted.load(Ordering::Relaxed);
        if posted == NOTHING_POSTED || (head.wrapping_sub(posted as u32) as i32) < 0 {
            return;
        }
        self.posted.store(NOTHING_POSTED, Ordering::Relaxed);
        if (posted >> 32) as u32 == self.visits() & 0x7fff_ffff {
            self.away.store(KNOWN, Ordering::Relaxed);
        }
    }

    /// The helper is wanted for a ring that nobody may come back for: `now`, or once the program has stayed away.
    pub fn call(&self, now: bool) -> Call {
        let wanted = if now { URGENT } else { CALLED };
        match self.helper.load(Ordering::Relaxed) {
            URGENT => Call::Nothing,
            CALLED if !now => Call::Nothing,
            // A swap: the helper may be stepping from called to looking. Release: partner is `duty`.
            _ => match self.helper.swap(wanted, Ordering::Release) {
                ABSENT => Call::HandOver,
                CALLED => Call::Nothing, // it was woken, and has not looked yet
                _ => Call::Wake,
            },
        }
    }

    /// Whether the helper watches the ring, or looks soon and there is nothing new to tell it.
    #[inline]
    pub fn is_seen_to(&self) -> bool {
        match self.helper.load(Ordering::Relaxed) {
            WATCHING | URGENT => true,
            CALLED | LOOKING => !self.only_looks() && self.posted.load(Ordering::Relaxed) == NOTHING_POSTED,
            _ => false,
        }
    }

    /// A call leaves the ring with something pending, and `sleepers` threads asleep in enter, who take over.
    pub fn leave(&self, sleepers: u32) -> Call {
        match self.helper.load(Ordering::Relaxed) {
            WATCHING => Call::Nothing,
            RESTING | ABSENT if sleepers != 0 => Call::Nothing,
            RESTING | ABSENT => self.call(self.only_looks()),
            _ if self.only_looks() => self.call(true),
            _ => Call::Nothing,
        }
    }

    /// Whether the helper sleeps without regard to the ring.
    pub fn is_resting(&self) -> bool {
        self.helper.load(Ordering::Relaxed) == RESTING
    }

    /// Whether the helper sleeps on the ring's poll set.
    pub fn is_watching(&self) -> bool {
        self.helper.load(Ordering::Relaxed) == WATCHING
    }

    /// When the helper wakes by itself while it watches, by CLOCK_MONOTONIC in nanoseconds.
    pub fn watches_until_ns(&self) -> u64 {
        self.until_ns.load(Ordering::Relaxed)
    }

    /// Whether the helper knows the ring, which then does not end without it.
    pub fn is_known(&self) -> bool {
        self.helper.load(Ordering::Relaxed) != ABSENT
    }

    /// Whether the ring's poll set is in the helper's.
    pub fn is_attached(&self) -> bool {
        self.attached.load(Ordering::Relaxed)
    }

    /// Notes whether the ring's poll set is in the helper's; answers what was noted before.
    pub fn set_attached(&self, attached: bool) -> bool {
        let before = self.attached.load(Ordering::Relaxed);
        self.attached.store(attached, Ordering::Relaxed);
        before
    }

    /// For the helper, awake and without the ring's lock: what it is to do.
    pub fn duty(&self) -> Duty {
        // Acquire: partner is the Release in `call`.
        match self.helper.compare_exchange(CALLED, LOOKING, Ordering::Acquire, Ordering::Acquire) {
            Ok(_) => Duty::Begin,
            Err(URGENT) => Duty::Look,
            Err(LOOKING) => Duty::LookWhenDue,
            Err(_) => Duty::Watch,
        }
    }

    /// The helper takes the role; false when a thread has it.
    #[must_use]
    pub fn take_for_helper(&self) -> bool {
        self.role_from(FREE, HELPER) || self.is_helpers()
    }

    /// The helper looks again after a period.
    pub fn look_later(&self) {
        self.helper.store(LOOKING, Ordering::Relaxed);
    }

    /// The helper sleeps on the ring's poll set, until `until_ns` by CLOCK_MONOTONIC at the latest.
    pub fn watch(&self, until_ns: u64) {
        self.until_ns.store(until_ns, Ordering::Relaxed);
        self.helper.store(WATCHING, Ordering::Relaxed);
    }

    /// The helper sleeps without regard to the ring, and does not drive.
    pub fn rest(&self) {
        let _ = self.role_from(HELPER, FREE);
        self.helper.store(RESTING, Ordering::Relaxed);
    }

    /// The helper forgets the ring.
    pub fn forget(&self) {
        let _ = self.role_from(HELPER, FREE);
        self.helper.store(ABSENT, Ordering::Relaxed);
    }
}

/// Where rings are handed over to the helper, behind a lock that comes after a ring's.
pub struct Mailbox<T> {
    waiting: Vec<T>,
    running: bool,
}

impl<T> Mailbox<T> {
    /// No helper runs.
    pub const NEW: Mailbox<T> = Mailbox { waiting: Vec::new(), running: false };

    /// Leaves a ring for the helper. True when one has to be started, which then counts as running.
    #[must_use]
    pub fn hand_over(&mut self, ring: T) -> bool {
        self.waiting.push(ring);
        self.start()
    }

    /// True when no helper runs: the caller has to start one, which counts as running from now on.
    #[must_use]
    pub fn start(&mut self) -> bool {
        !core::mem::replace(&mut self.running, true)
    }

    /// How much was handed over.
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// What was handed over.
    pub fn take(&mut self) -> Vec<T> {
        core::mem::take(&mut self.waiting)
    }

    /// The helper, which has no ring, wants to end: true when it may, and whoever hands over next starts another.
    #[must_use]
    pub fn leave(&mut self) -> bool {
        self.running = !self.waiting.is_empty();
        !self.running
    }

    /// No helper could be started, or only the parent of this process has one: nothing is handed over.
    pub fn close(&mut self) {
        *self = Mailbox::NEW;
    }
}
