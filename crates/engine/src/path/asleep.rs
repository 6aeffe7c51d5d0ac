//! The sleeps of a thread, on the books of their rings.
//!
//! A signal handler that interrupts a sleep may wait itself, on the same ring or another, so a thread can be in several
//! sleeps at once, each of which has to be taken back: by the frame that sleeps, or where a jump leaves that frame for good,
//! by [`leaving_by_jump`].

use super::driver::{pass_role_on, AWAKE};
use crate::mutation::{mutated, Mutation};
use crate::process;
use crate::ring::control::Control;
use crate::ring::Ring;
use core::cell::Cell;
use core::sync::atomic::{compiler_fence, Ordering};

/// A thread's sleep, as the others see it.
#[derive(Clone, Copy)]
pub(super) struct Sleep {
    pub ring: &'static Ring,
    pub control: Control,
    pub kind: Kind,
    pub driving: bool,
}

/// How a thread waits.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// On the futex word.
    Futex,
    /// In an epoll wait, or in poll.
    Epoll,
    /// Not asleep: nobody has to wake it.
    Spin,
    /// In a call for one of the ring's requests (`path::calls`): nobody can wake it.
    Call,
}

/// How many sleeps of one thread its books hold: a signal handler may wait while its thread sleeps, and be interrupted in
/// turn. One that is deeper still ends as every other, but a jump out of it leaves it counted.
const DEEPEST: usize = 8;

/// The sleeps that a thread is in, from the outermost to that of the innermost handler. A handler may come between any two
/// instructions: it finds a place taken before anything is in it, and leaves it taken no longer than its own.
struct Sleeps {
    taken: Cell<usize>,
    places: [Cell<Option<Sleep>>; DEEPEST],
}

thread_local! {
    /// Those of the calling thread.
    static ASLEEP: Sleeps =
        const { Sleeps { taken: Cell::new(0), places: [const { Cell::new(None) }; DEEPEST] } };
}

impl Sleeps {
    /// Notes `sleep`: where.
    fn push(&self, sleep: Sleep) -> usize {
        let place = self.taken.get();
        self.taken.set(place + 1);
        // Only now: what a handler notes from here on comes behind it.
        compiler_fence(Ordering::SeqCst);
        if let Some(slot) = self.places.get(place) {
            slot.set(Some(sleep));
            compiler_fence(Ordering::SeqCst);
        }
        place
    }

    /// Forgets the sleep at `place`, and any above it that were left in ways which nobody sees. False if a jump has.
    fn pop(&self, place: usize) -> bool {
        let noted = self.taken.get() > place;
        if noted {
            self.places.iter().skip(place).for_each(|slot| slot.set(None));
            compiler_fence(Ordering::SeqCst);
            self.taken.set(place);
        }
        noted
    }

    /// Forgets all of them: the outermost first.
    fn leave(&self) -> [Option<Sleep>; DEEPEST] {
        let all = core::array::from_fn(|place| self.places[place].take());
        self.taken.set(0);
        all
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
            Kind::Spin => {}
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
            self.ring.driver.handover.give_back_if_mine(process::thread_id());
        }
        if let Ok(mut guard) = self.ring.lock() {
            pass_role_on(&guard);
            guard.call_helper();
        }
    }
}

/// Ends a sleep of the calling thread, unless a jump has; also when a panic comes through here.
pub(super) struct Awake {
    sleep: Sleep,
    place: usize,
}

impl Awake {
    /// From now on the calling thread counts as asleep.
    pub fn after(sleep: Sleep) -> Awake {
        Awake { place: ASLEEP.try_with(|asleep| asleep.push(sleep)).unwrap_or(DEEPEST), sleep }
    }
}

impl Drop for Awake {
    fn drop(&mut self) {
        // A thread that is being torn down may have lost its books.
        if ASLEEP.try_with(|asleep| asleep.pop(self.place)).unwrap_or(true) {
            self.sleep.end();
        }
    }
}

/// The calling thread is about to leave by longjmp(3), perhaps out of a wait, or of several: what it held there is given up.
/// If the jump stays inside a signal handler, the waits go on without it and notice.
pub fn leaving_by_jump() {
    if mutated(Mutation::JumpLeavesTheSleeper) {
        return;
    }
    let _ = ASLEEP
        .try_with(|asleep| asleep.leave())
        .map(|all| all.into_iter().rev().flatten().for_each(Sleep::end_by_jump));
}
