//! The sleeps of a thread, including those of its signal handlers.
//!
//! A signal handler that interrupts a sleep may itself wait, on the same ring or on another. So a thread can be in
//! several sleeps at once, and each of them has to be undone. The frame that sleeps undoes its own sleep. If a jump
//! leaves that frame forever, [`leaving_by_jump`] does.
//!
//! The engine cannot notice every way out of a frame (a compiler's own longjmp, exit(2) by an instruction). So, for
//! other threads, a thread in one of the program's handlers does not sleep. It gives up its part when the handler
//! begins ([`handler_begins`]), and takes it again if the handler returns. The ring stays in use for that thread until
//! the thread waits again outside any handler.

use crate::driver::AWAKE;
use crate::memory::view::cq_at_is_empty;
use crate::mutation::{mutated, Mutation};
use crate::os::handlers;
use crate::ring::wake::pass_role_on;
use crate::ring::Ring;
use crate::shared::control::Control;
use crate::thread;
use core::cell::Cell;
use core::sync::atomic::{compiler_fence, fence, AtomicBool, AtomicU32, Ordering};

/// A thread's sleep, as other threads know it.
#[derive(Clone, Copy)]
pub(crate) struct Sleep {
    pub ring: &'static Ring,
    pub control: Control,
    pub kind: Kind,
    pub driving: bool,
    /// The address of the ring's memory. Only the address is kept: the table of sleeps is on each thread's stack, and
    /// has to be small.
    pub rings: usize,
}

/// The way in which a thread waits.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The thread sleeps on the futex word.
    Futex,
    /// The thread sleeps in an epoll wait, or in poll(2).
    Epoll,
    /// The thread spins before a sleep: no other thread has to wake it.
    Spin,
    /// The thread is in a call for one of the ring's requests (`issue::calls`): no other thread can wake it.
    Call,
}

/// The most sleeps that are recorded per thread. A signal handler may wait while its thread sleeps, and be interrupted
/// in turn. A deeper sleep ends like every other, but a jump out of it leaves it counted.
const DEEPEST: usize = 8;

/// The sleeps that a thread is in. They need not end in reverse order. By swapcontext(3) a handler may switch to
/// another user thread, which may sleep and switch back. A handler may come between any two instructions.
struct Sleeps {
    places: [Place; DEEPEST],
    /// True once a handler has begun during a sleep, until [`Sleeps::were_left`] finds no such sleep.
    may_be_suspended: AtomicBool,
}

struct Place {
    /// The state is in the low two bits, the number of uses above. Always Relaxed: only this thread and its handlers
    /// use it.
    usage: AtomicU32,
    sleep: Cell<Option<Sleep>>,
    /// True if the CQ was not empty when the first handler that interrupted the sleep began. `None` if no handler has
    /// begun.
    held_cqes: Cell<Option<bool>>,
}

const USAGE: u32 = 3;
const FREE: u32 = 0;
const BEING_RECORDED: u32 = 1;
const RECORDED: u32 = 2;
/// One of the program's handlers has begun since, and may have left by a jump.
const SUSPENDED: u32 = 3;

/// The place of a recorded sleep.
struct Entry {
    place: usize,
    usage: u32,
}

/// A thread's thread-local memory is on its stack, which may be as small as 16 KiB.
const _: () = assert!(size_of::<Sleeps>() <= 512);

thread_local! {
    /// The sleeps of the calling thread.
    static ASLEEP: Sleeps = const {
        Sleeps {
            places: [const { Place { usage: AtomicU32::new(FREE), sleep: Cell::new(None), held_cqes: Cell::new(None) } }; DEEPEST],
            may_be_suspended: AtomicBool::new(false),
        }
    };
}

impl Place {
    /// Changes the place's usage from `from` to `to`. False if a handler has changed the usage in between.
    fn pass(&self, from: u32, to: u32) -> bool {
        self.usage.compare_exchange(from, to, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }

    /// Frees the place for the next sleep, if the sleep with this `usage` still has it.
    fn free(&self, usage: u32) -> bool {
        self.pass(usage, (usage & !USAGE).wrapping_add(USAGE + 1))
    }
}

impl Sleeps {
    /// Records `sleep`. Returns its place, or `None` if there is no room.
    #[inline]
    fn record(&self, sleep: Sleep) -> Option<Entry> {
        let (place, free) = self.places.iter().enumerate().find_map(|(place, it)| {
            let usage = it.usage.load(Ordering::Relaxed);
            (usage & USAGE == FREE && it.pass(usage, usage | BEING_RECORDED)).then_some((place, usage))
        })?;
        self.places[place].sleep.set(Some(sleep));
        self.places[place].held_cqes.set(None);
        compiler_fence(Ordering::SeqCst); // a handler that reads RECORDED finds the sleep
        self.places[place].usage.store(free | RECORDED, Ordering::Relaxed);
        Some(Entry { place, usage: free | RECORDED })
    }

    /// Records whether the CQs of the rings on which the thread sleeps are empty.
    fn record_empty(&self) {
        for place in &self.places {
            let is_recorded =
                place.usage.load(Ordering::Relaxed) & USAGE == RECORDED && place.held_cqes.get().is_none();
            if let Some(sleep) = place.sleep.get().filter(|_| is_recorded) {
                place.held_cqes.set(Some(!cq_at_is_empty(sleep.rings)));
            }
        }
    }

    /// Makes other threads regard the thread as awake, since a handler begins.
    fn suspend(&self) {
        for place in &self.places {
            let usage = place.usage.load(Ordering::Relaxed);
            let waits = place.sleep.get().filter(|sleep| usage & USAGE == RECORDED && sleep.kind != Kind::Call);
            let Some(sleep) = waits else { continue };
            self.may_be_suspended.store(true, Ordering::Relaxed);
            if place.pass(usage, usage | SUSPENDED) {
                sleep.suspend();
            }
        }
    }

    /// True if a handler that interrupted one of the sleeps seems to have left by a jump: the thread is in no handler
    /// now.
    fn were_left(&self) -> bool {
        if !self.may_be_suspended.load(Ordering::Relaxed) || handlers::is_running() {
            return false;
        }
        // Cleared before the places are read: a handler that comes in between sets it again.
        self.may_be_suspended.store(false, Ordering::Relaxed);
        let is_suspended = |place: &Place| place.usage.load(Ordering::Relaxed) & USAGE == SUSPENDED;
        let were_left = self.places.iter().any(is_suspended);
        if were_left {
            self.may_be_suspended.store(true, Ordering::Relaxed);
        }
        were_left
    }

    /// Forgets the sleep and returns its usage. `None` if a jump has forgotten the sleep before.
    fn forget(&self, entry: &Entry) -> Option<u32> {
        let place = &self.places[entry.place];
        [entry.usage, entry.usage | SUSPENDED]
            .into_iter()
            .find(|usage| place.free(*usage))
            .map(|usage| usage & USAGE)
    }

    /// Forgets the innermost recorded sleep. Returns the sleep and its usage.
    fn leave(&self) -> Option<(Sleep, u32)> {
        self.places.iter().rev().find_map(|place| {
            let usage = place.usage.load(Ordering::Relaxed);
            let sleep = place.sleep.get();
            let is_left = [RECORDED, SUSPENDED].contains(&(usage & USAGE)) && place.free(usage);
            sleep.filter(|_| is_left).map(|sleep| (sleep, usage & USAGE))
        })
    }
}

impl Sleep {
    /// Takes the sleeping thread out of the ring's counts. `usage` is the state of its place.
    fn end(self, usage: u32) {
        match (usage, self.kind) {
            (SUSPENDED, _) | (_, Kind::Call) => drop(self.ring.callers.fetch_sub(1, Ordering::Relaxed)),
            (_, Kind::Futex | Kind::Epoll | Kind::Spin) => self.wake_up(),
        }
        // Release: after this, a thread that ended its sleep by a jump, without the lock, touches nothing of the ring.
        // Partner: the load in `end_if_unused`.
        self.ring.sleepers.fetch_sub(1, Ordering::Release);
    }

    /// Makes other threads regard the thread as awake.
    fn wake_up(self) {
        if self.driving {
            self.ring.driver.sleeping.store(AWAKE, Ordering::Relaxed);
        }
        if self.kind != Kind::Spin {
            self.control.leave(self.kind == Kind::Futex);
        }
    }

    /// Makes other threads regard the thread as awake, and gives the driver role away, since the frame that sleeps
    /// may never come back. The thread counts as one inside a call, and no other thread relies on such a thread. No
    /// lock is taken, since its holder may sleep.
    fn suspend(self) {
        self.ring.callers.fetch_add(1, Ordering::Relaxed);
        self.wake_up();
        if !self.driving {
            return;
        }
        self.ring.driver.handover.give_back_if_mine(thread::id());
        // Partner: the fence in `Awake::is_needed`.
        fence(Ordering::SeqCst);
        let waiters = &self.control.header().waiters;
        if waiters.waiting.load(Ordering::Relaxed) != 0 {
            waiters.bump();
            self.ring.driver.wake(&self.control);
        }
    }

    /// Ends a sleep whose frames are gone, and does what those frames would have done next.
    fn end_by_jump(self, usage: u32) {
        self.end(usage);
        if self.driving {
            self.ring.driver.handover.give_back_if_mine(thread::id());
        }
        if let Ok(mut guard) = self.ring.lock() {
            pass_role_on(&guard);
            guard.call_helper();
        }
    }
}

/// Ends a sleep of the calling thread when dropped, unless a jump has ended it. Does so also when a panic unwinds.
pub(crate) struct Awake {
    sleep: Sleep,
    entry: Option<Entry>,
}

impl Awake {
    /// Counts the calling thread as asleep from now on.
    #[inline]
    pub fn after(sleep: Sleep) -> Awake {
        Awake { entry: ASLEEP.try_with(|asleep| asleep.record(sleep)).ok().flatten(), sleep }
    }

    /// True if no thread drives the ring any more, since a handler has interrupted the thread that did.
    pub fn is_needed(&self) -> bool {
        // Partner: the fence in `Sleep::suspend`. Either that thread finds this thread waiting, or this thread finds
        // the role free.
        fence(Ordering::SeqCst);
        self.sleep.ring.driver.handover.is_free()
    }

    /// True if the CQ was not empty when one of the program's handlers began; `None` if no handler has begun. CQEs
    /// posted by the handler do not end the wait: in the kernel the handler would have run after the call.
    pub fn held_cqes(&self) -> Option<bool> {
        let of = |entry: &Entry| {
            ASLEEP.try_with(|asleep| {
                let place = &asleep.places[entry.place];
                place.held_cqes.get().filter(|_| place.usage.load(Ordering::Relaxed) | USAGE == entry.usage | USAGE)
            })
        };
        self.entry.as_ref().and_then(|entry| of(entry).ok().flatten())
    }
}

impl Drop for Awake {
    #[inline]
    fn drop(&mut self) {
        // A thread that is being torn down may have lost its thread-local table.
        let forget = |entry: &Entry| ASLEEP.try_with(|asleep| asleep.forget(entry)).unwrap_or(Some(RECORDED));
        if let Some(usage) = self.entry.as_ref().map_or(Some(RECORDED), forget) {
            self.sleep.end(usage);
        }
    }
}

/// Called when one of the program's handlers is about to run in the calling thread, which holds no lock.
pub fn handler_begins() {
    if !mutated(Mutation::HandlersAnswerTheirWaits) {
        let _ = ASLEEP.try_with(Sleeps::record_empty);
    }
    if !mutated(Mutation::HandlersKeepTheRole) {
        let _ = ASLEEP.try_with(Sleeps::suspend);
    }
}

/// Removes all sleeps of the calling thread from its rings. The thread is about to leave them by longjmp(3) or the
/// like. A sleep may continue nevertheless: the jump may stay inside a signal handler, or the thread may come back by
/// swapcontext(3). The end of that sleep finds its entry gone.
pub fn leaving_by_jump() {
    if mutated(Mutation::JumpLeavesTheSleeper) {
        return;
    }
    while let Ok(Some((sleep, usage))) = ASLEEP.try_with(|asleep| asleep.leave()) {
        sleep.end_by_jump(usage);
    }
}

/// True if the calling thread, which is about to wait, has left a wait that still counts. The thread then calls
/// [`leaving_by_jump`] without any lock.
pub(crate) fn were_left() -> bool {
    ASLEEP.try_with(Sleeps::were_left).unwrap_or(false)
}
