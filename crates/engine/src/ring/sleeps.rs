//! The sleeps that a thread is in, its signal handlers' included.
//!
//! A signal handler that interrupts a sleep may wait itself, on the same ring or another, so a thread can be in several
//! sleeps at once, each of which has to be taken back: by the frame that sleeps, or where a jump leaves that frame for good,
//! by [`leaving_by_jump`].
//!
//! Not every way to leave is seen (a compiler's own longjmp, exit(2) by an instruction). So whoever is in a handler of the
//! program's does not sleep to others: it gives up its part when the handler begins ([`handler_begins`]), and takes it again if
//! that returns. What the ring needs to stay is kept for it, until the thread, in no handler, comes to wait again.

use crate::driver::AWAKE;
use crate::memory::view::cq_at_is_empty;
use crate::mutation::{mutated, Mutation};
use crate::os::handlers;
use crate::ring::wake::pass_role_on;
use crate::ring::Ring;
use crate::shared::control::Control;
use crate::thread;
use core::cell::Cell;
use core::sync::atomic::{compiler_fence, fence, AtomicU32, Ordering};

/// A thread's sleep, as the others see it.
#[derive(Clone, Copy)]
pub(crate) struct Sleep {
    pub ring: &'static Ring,
    pub control: Control,
    pub kind: Kind,
    pub driving: bool,
    /// Where the ring's memory is: no more of it, as each thread's stack has room for the books.
    pub rings: usize,
}

/// How a thread waits.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// On the futex word.
    Futex,
    /// In an epoll wait, or in poll.
    Epoll,
    /// In a call for one of the ring's requests (`issue::calls`): nobody can wake it.
    Call,
}

/// How many sleeps of one thread its books hold: a signal handler may wait while its thread sleeps, and be interrupted in
/// turn. One that is deeper still ends as every other, but a jump out of it leaves it counted.
const DEEPEST: usize = 8;

/// The sleeps that a thread is in. They need not end in turn: a handler may switch to another user thread by swapcontext(3),
/// which sleeps itself and is switched from. A handler may come between any two instructions.
struct Sleeps([Place; DEEPEST]);

struct Place {
    /// How it is used, by its last two bits, and how often it was. Relaxed throughout: of this thread and its handlers.
    usage: AtomicU32,
    sleep: Cell<Option<Sleep>>,
    /// Whether the CQ held anything when the first handler began that interrupted the sleep.
    held_cqes: Cell<Option<bool>>,
}

const USAGE: u32 = 3;
const FREE: u32 = 0;
const BEING_NOTED: u32 = 1;
const NOTED: u32 = 2;
/// A handler of the program's has begun since, and may have left.
const SUSPENDED: u32 = 3;

/// A sleep in the books.
struct Note {
    place: usize,
    usage: u32,
}

/// The memory of a thread is on its stack, which may be 16 KiB.
const _: () = assert!(size_of::<Sleeps>() <= 512);

thread_local! {
    /// Those of the calling thread.
    static ASLEEP: Sleeps = const {
        Sleeps([const { Place { usage: AtomicU32::new(FREE), sleep: Cell::new(None), held_cqes: Cell::new(None) } }; DEEPEST])
    };
}

impl Place {
    /// From one usage to another, unless something has come between.
    fn pass(&self, from: u32, to: u32) -> bool {
        self.usage.compare_exchange(from, to, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }

    /// Free for the next, if it is still used so.
    fn free(&self, usage: u32) -> bool {
        self.pass(usage, (usage & !USAGE).wrapping_add(USAGE + 1))
    }
}

impl Sleeps {
    /// Notes `sleep`: where, if there is room.
    fn note(&self, sleep: Sleep) -> Option<Note> {
        let (place, free) = self.0.iter().enumerate().find_map(|(place, it)| {
            let usage = it.usage.load(Ordering::Relaxed);
            (usage & USAGE == FREE && it.pass(usage, usage | BEING_NOTED)).then_some((place, usage))
        })?;
        self.0[place].sleep.set(Some(sleep));
        self.0[place].held_cqes.set(None);
        compiler_fence(Ordering::SeqCst); // a handler that sees it noted finds it
        self.0[place].usage.store(free | NOTED, Ordering::Relaxed);
        Some(Note { place, usage: free | NOTED })
    }

    /// Notes what the CQs hold that the thread sleeps on.
    fn look(&self) {
        for place in &self.0 {
            let is_noted = place.usage.load(Ordering::Relaxed) & USAGE == NOTED && place.held_cqes.get().is_none();
            if let Some(sleep) = place.sleep.get().filter(|_| is_noted) {
                place.held_cqes.set(Some(!cq_at_is_empty(sleep.rings)));
            }
        }
    }

    /// A handler begins: whoever is counted as waiting waits no more.
    fn suspend(&self) {
        for place in &self.0 {
            let usage = place.usage.load(Ordering::Relaxed);
            let waits = place.sleep.get().filter(|sleep| usage & USAGE == NOTED && sleep.kind != Kind::Call);
            if let Some(sleep) = waits.filter(|_| place.pass(usage, usage | SUSPENDED)) {
                sleep.suspend();
            }
        }
    }

    /// Whether a handler that began in one of them has left, as far as can be told: the thread is in none.
    fn were_left(&self) -> bool {
        let is_suspended = |place: &Place| place.usage.load(Ordering::Relaxed) & USAGE == SUSPENDED;
        self.0.iter().any(is_suspended) && !handlers::is_running()
    }

    /// Forgets the sleep: how it was used. `None` if a jump has.
    fn forget(&self, note: &Note) -> Option<u32> {
        let place = &self.0[note.place];
        [note.usage, note.usage | SUSPENDED].into_iter().find(|usage| place.free(*usage)).map(|usage| usage & USAGE)
    }

    /// Forgets one that is noted, the innermost first, and how it was used.
    fn leave(&self) -> Option<(Sleep, u32)> {
        self.0.iter().rev().find_map(|place| {
            let usage = place.usage.load(Ordering::Relaxed);
            let sleep = place.sleep.get();
            let is_left = [NOTED, SUSPENDED].contains(&(usage & USAGE)) && place.free(usage);
            sleep.filter(|_| is_left).map(|sleep| (sleep, usage & USAGE))
        })
    }
}

impl Sleep {
    /// Takes the sleeper, whose books say `usage`, out of them.
    fn end(self, usage: u32) {
        match (usage, self.kind) {
            (SUSPENDED, _) | (_, Kind::Call) => drop(self.ring.callers.fetch_sub(1, Ordering::Relaxed)),
            (_, Kind::Futex | Kind::Epoll) => self.wake_up(),
        }
        // Release: whoever ended by a jump, without the lock, touches nothing of the ring after this. Partner: the load in
        // `end_if_unused`.
        self.ring.sleepers.fetch_sub(1, Ordering::Release);
    }

    /// To others it does not sleep any more.
    fn wake_up(self) {
        if self.driving {
            self.ring.driver.sleeping.store(AWAKE, Ordering::Relaxed);
        }
        self.control.leave(self.kind == Kind::Futex);
    }

    /// The same, and the role is another's. The frame that sleeps may never come back, and counts as one in a call, from which
    /// nobody can expect anything. No lock is taken: its holder may sleep.
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

    /// The sleep ends where the frames that slept are gone: what they would have done next is done here.
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

/// Ends a sleep of the calling thread, unless a jump has; also when a panic comes through here.
pub(crate) struct Awake {
    sleep: Sleep,
    note: Option<Note>,
}

impl Awake {
    /// From now on the calling thread counts as asleep.
    pub fn after(sleep: Sleep) -> Awake {
        Awake { note: ASLEEP.try_with(|asleep| asleep.note(sleep)).ok().flatten(), sleep }
    }

    /// Whether nobody drives the ring, though somebody did when the calling thread looked: a handler has interrupted that one.
    pub fn is_needed(&self) -> bool {
        // Partner: the fence in `Sleep::suspend`. Either that one sees this thread wait, or this one that the role is free.
        fence(Ordering::SeqCst);
        self.sleep.ring.driver.handover.is_free()
    }

    /// Whether the CQ held anything when a handler of the program's began to run, if one did. What that has posted is no answer to
    /// the wait: in the kernel it would have run when the call was over.
    pub fn held_cqes(&self) -> Option<bool> {
        let of = |note: &Note| {
            ASLEEP.try_with(|asleep| {
                let place = &asleep.0[note.place];
                place.held_cqes.get().filter(|_| place.usage.load(Ordering::Relaxed) | USAGE == note.usage | USAGE)
            })
        };
        self.note.as_ref().and_then(|note| of(note).ok().flatten())
    }
}

impl Drop for Awake {
    fn drop(&mut self) {
        // A thread that is being torn down may have lost its books.
        let forget = |note: &Note| ASLEEP.try_with(|asleep| asleep.forget(note)).unwrap_or(Some(NOTED));
        if let Some(usage) = self.note.as_ref().map_or(Some(NOTED), forget) {
            self.sleep.end(usage);
        }
    }
}

/// A handler of the program's is about to run in the calling thread, which holds no lock.
pub fn handler_begins() {
    if !mutated(Mutation::HandlersAnswerTheirWaits) {
        let _ = ASLEEP.try_with(Sleeps::look);
    }
    if !mutated(Mutation::HandlersKeepTheRole) {
        let _ = ASLEEP.try_with(Sleeps::suspend);
    }
}

/// The calling thread is about to leave by longjmp(3) or the like, perhaps out of a wait, or of several: what it held there is
/// given up. If that stays inside a signal handler, or it comes back by swapcontext(3), the waits go on without it and notice.
pub fn leaving_by_jump() {
    if mutated(Mutation::JumpLeavesTheSleeper) {
        return;
    }
    while let Ok(Some((sleep, usage))) = ASLEEP.try_with(|asleep| asleep.leave()) {
        sleep.end_by_jump(usage);
    }
}

/// Whether the calling thread, which is about to wait, has left a wait that counts still: then it is to call [`leaving_by_jump`],
/// with no lock.
pub(crate) fn were_left() -> bool {
    ASLEEP.try_with(Sleeps::were_left).unwrap_or(false)
}
