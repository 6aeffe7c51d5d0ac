//! The sleeps that a thread is in, its signal handlers' included.
//!
//! A signal handler that interrupts a sleep may wait itself, on the same ring or another, so a thread can be in several
//! sleeps at once, each of which has to be taken back: by the frame that sleeps, or where a jump leaves that frame for good,
//! by [`leaving_by_jump`].

use crate::driver::AWAKE;
use crate::memory::view::View;
use crate::mutation::{mutated, Mutation};
use crate::ring::wake::pass_role_on;
use crate::ring::Ring;
use crate::shared::control::Control;
use crate::thread;
use core::cell::Cell;
use core::sync::atomic::{compiler_fence, AtomicU32, Ordering};

/// A thread's sleep, as the others see it.
#[derive(Clone, Copy)]
pub(crate) struct Sleep {
    pub ring: &'static Ring,
    pub control: Control,
    pub kind: Kind,
    pub driving: bool,
    pub view: View,
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

/// A sleep in the books.
struct Note {
    place: usize,
    usage: u32,
}

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
                place.held_cqes.set(Some(!sleep.view.cq_is_empty()));
            }
        }
    }

    /// Forgets the sleep. False if a jump has.
    fn forget(&self, note: &Note) -> bool {
        self.0[note.place].free(note.usage)
    }

    /// Forgets one that is noted, the innermost first.
    fn leave(&self) -> Option<Sleep> {
        self.0.iter().rev().find_map(|place| {
            let usage = place.usage.load(Ordering::Relaxed);
            let sleep = place.sleep.get();
            (usage & USAGE == NOTED && place.free(usage)).then_some(sleep).flatten()
        })
    }
}

impl Sleep {
    /// Takes the sleeper out of the books.
    fn end(self) {
        if self.driving {
            self.ring.driver.sleeping.store(AWAKE, Ordering::Relaxed);
        }
        match self.kind {
            Kind::Futex | Kind::Epoll => self.control.leave(self.kind == Kind::Futex),
            Kind::Call => drop(self.ring.callers.fetch_sub(1, Ordering::Relaxed)),
        }
        // Release: whoever ended by a jump, without the lock, touches nothing of the ring after this. Partner: the load in
        // `end_if_unused`.
        self.ring.sleepers.fetch_sub(1, Ordering::Release);
    }

    /// The same where the frames that slept are gone: what they would have done next is done here.
    fn end_by_jump(self) {
        self.end();
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
}

impl Awake {
    /// Whether the CQ held anything when a handler of the program's began to run, if one did. What that has posted is no answer to
    /// the wait: in the kernel it would have run when the call was over.
    pub fn held_cqes(&self) -> Option<bool> {
        let of = |note: &Note| {
            ASLEEP.try_with(|asleep| {
                let place = &asleep.0[note.place];
                place.held_cqes.get().filter(|_| place.usage.load(Ordering::Relaxed) == note.usage)
            })
        };
        self.note.as_ref().and_then(|note| of(note).ok().flatten())
    }
}

impl Drop for Awake {
    fn drop(&mut self) {
        // A thread that is being torn down may have lost its books.
        let is_mine = |note: &Note| ASLEEP.try_with(|asleep| asleep.forget(note)).unwrap_or(true);
        if self.note.as_ref().is_none_or(is_mine) {
            self.sleep.end();
        }
    }
}

/// A handler of the program's is about to run in the calling thread.
pub fn handler_begins() {
    if !mutated(Mutation::HandlersAnswerTheirWaits) {
        let _ = ASLEEP.try_with(Sleeps::look);
    }
}

/// The calling thread is about to leave by longjmp(3), perhaps out of a wait, or of several: what it held there is given up.
/// If the jump stays inside a signal handler, the waits go on without it and notice.
pub fn leaving_by_jump() {
    if mutated(Mutation::JumpLeavesTheSleeper) {
        return;
    }
    while let Ok(Some(sleep)) = ASLEEP.try_with(|asleep| asleep.leave()) {
        sleep.end_by_jump();
    }
}
