//! The rings of the process, by the numbers of their descriptors.
//!
//! A ring goes into the table of numbers (`descriptors::numbers`) when it is complete and leaves it before its end begins;
//! whoever looked it up before finds a ring that has ended (`LockFailure::Ended`).

use crate::descriptors::numbers::{forget_use, note_ring, RINGS, RINGS_END};
use crate::descriptors::{self, cookie_of};
use crate::device;
use crate::forced::{point, Point};
use crate::issue::lint;
use crate::lock::Lock;
use crate::mutation::{mutated, Mutation};
use crate::ring::helper;
use crate::ring::notes::{Closing, Note};
use crate::ring::{LockFailure, Ring, State};
use crate::stats;
use crate::thread;
use crate::thread::tables;
use crate::Errno;
use core::sync::atomic::Ordering;

/// Rings that live, whether or not a number of theirs is known. Also held by whoever changes which numbers a ring has.
static LIVE: Lock<Vec<&'static Ring>> = Lock::new(Vec::new());

/// Rings that have ended.
static POOL: Lock<Vec<&'static Ring>> = Lock::new(Vec::new());

/// The ring with number `fd`.
#[inline]
pub fn ring(fd: i32) -> Option<&'static Ring> {
    let slot = RINGS.get(usize::try_from(fd).ok()?)?;
    // Acquire pairs with the Release store in `publish`.
    let ring = slot.load(Ordering::Acquire).cast::<Ring>();
    // SAFETY: only `publish` puts rings into the table, which come from Box::leak and are never freed.
    unsafe { ring.as_ref() }
}

/// A ring without state, from the pool or new.
pub fn unborn_ring() -> &'static Ring {
    let pooled = POOL.lock().and_then(|mut pool| pool.pop());
    pooled.unwrap_or_else(|| Box::leak(Box::new(Ring::unborn())))
}

/// Whether a ring may have number `fd`.
pub fn fits(fd: i32) -> bool {
    (0..RINGS_END as i32).contains(&fd)
}

/// Makes a complete ring known under its number.
pub fn publish(fd: i32, ring: &'static Ring) -> Result<(), Errno> {
    if !fits(fd) {
        return Err(Errno::MFILE);
    }
    let mut live = LIVE.lock();
    add_number(fd, ring);
    let is_new = live.as_mut().is_some_and(|live| {
        let is_new = !live.iter().any(|known| core::ptr::eq(*known, ring));
        if is_new {
            live.push(ring);
        }
        thread::set_needed(true);
        is_new
    });
    drop(live);
    if is_new {
        stats::ring_made(); // without the lock, which `rings_are_gone` takes under its own
    }
    Ok(())
}

/// The ring has this number from now on. With the lock of [`LIVE`], unless the caller has interrupted its holder.
fn add_number(fd: i32, ring: &'static Ring) {
    let known = core::ptr::from_ref(ring).cast_mut().cast();
    // Release: partner of the Acquire load in `ring`.
    note_ring(fd);
    if RINGS[fd as usize].swap(known, Ordering::Release) != known {
        ring.numbers.fetch_add(1, Ordering::Relaxed);
    }
}

/// The ring has this number no more: calls `let_go` where it had it. Answers whether it has others.
fn remove_number(fd: i32, ring: &'static Ring, let_go: impl FnOnce()) -> bool {
    let _live = LIVE.lock();
    let known = core::ptr::from_ref(ring).cast_mut().cast();
    let was_known =
        RINGS[fd as usize].compare_exchange(known, core::ptr::null_mut(), Ordering::Release, Ordering::Relaxed);
    let before = match was_known {
        Ok(_) => {
            let_go(); // with the lock: nobody adopts the number meanwhile
            ring.numbers.fetch_sub(1, Ordering::Relaxed)
        }
        Err(_) => ring.numbers.load(Ordering::Relaxed) + 1,
    };
    let others = before > 1;
    // Another number of the ring, if one is known, is the one to receive from.
    let is_other = |slot: &usize| core::ptr::eq(RINGS[*slot].load(Ordering::Relaxed), known);
    let other = others.then(|| (0..RINGS_END).find(is_other)).flatten().map_or(-1, |slot| slot as i32);
    let _ = ring.fd.compare_exchange(fd, other, Ordering::Relaxed, Ordering::Relaxed);
    others
}

/// Counts a new ring, which has no number, among those that live.
pub fn keep(ring: &'static Ring) {
    if let Some(mut live) = LIVE.lock() {
        live.push(ring);
        thread::set_needed(true);
    }
    stats::ring_made();
}

/// Every ring of the process.
pub fn rings() -> Vec<&'static Ring> {
    LIVE.lock().map(|live| live.clone()).unwrap_or_default()
}

/// The ring that an unknown number names as a duplicate (dup(2), or inherited): from now on the number is known.
#[cold]
pub fn adopt(fd: i32) -> Option<&'static Ring> {
    if !fits(fd) || cookie_of(fd).is_none() {
        return None;
    }
    let live = LIVE.lock()?;
    // Asked with the lock: whoever closes the number has it name another file before the lock is taken to forget the number.
    let cookie = cookie_of(fd)?;
    let found = live.iter().copied().find(|ring| ring.cookie.load(Ordering::Relaxed) == cookie)?;
    add_number(fd, found);
    // Relaxed: `fd` names the ring for its own receive, under the ring's lock.
    let _ = found.fd.compare_exchange(-1, fd, Ordering::Relaxed, Ordering::Relaxed);
    Some(found)
}

/// Tells every ring that the program closes `fd`, which is no ring's number.
pub(crate) fn closing_file(fd: i32) {
    let mut closing = Closing::new(fd);
    for ring in rings().into_iter().filter(|ring| ring.is_of_my_table() && !ring.is_unused_inheritance()) {
        ring.close_number(&mut closing);
    }
    if !tables::differ() {
        forget_use(fd);
    }
}

/// The program closes a ring's number, by `close` where there is one, else itself: the ring ends if that was its last copy, and
/// is watched by the helper if not. A forked child that has nothing in flight on the ring gives it up with the last number that
/// it knows: nothing of the ring stays open or mapped there, whatever the child becomes.
pub(crate) fn closing_ring(fd: i32, ring: &'static Ring, close: Option<&dyn Fn()>) {
    if ring.is_unused_inheritance() {
        if !remove_number(fd, ring, || ()) {
            drop(ring.leave_unused().map(|state| Remains { ring, state }));
        }
        return;
    }
    let guard = match ring.lock_soon() {
        Ok(guard) => Some(guard),
        Err(LockFailure::Busy) => None,
        Err(_) => return,
    };
    point(Point::CloseRing);
    // If the number was closed unseen, it names another file by now: then it is only forgotten.
    let is_rings = is_still_number_of(fd, ring);
    let others = remove_number(fd, ring, || match close {
        Some(close) if is_rings => close(),
        // So that it can be seen now whether another copy is left: by the engine's end, which may stand in. Relaxed: the ring has
        // it for as long as it has this number.
        None if is_rings => descriptors::put_nothing(fd, ring.engine_end.load(Ordering::Relaxed)),
        _ => {}
    });
    match guard {
        Some(mut guard) => {
            if !others && guard.chaos.is_some() {
                lint::ends(&mut guard);
            }
            guard.lose_number(others);
        }
        None => ring.leave_note(Note::LostNumber(others)),
    }
}

/// Whether `fd`, which was a number of the ring's, still names it: a close that was not seen may have let it go to another file.
pub(crate) fn is_still_number_of(fd: i32, ring: &'static Ring) -> bool {
    // Not from the state, whose lock somebody may keep. Relaxed: 0 at the latest when the ring has ended.
    descriptors::closes_are_seen() || cookie_of(fd) == Some(ring.cookie.load(Ordering::Relaxed))
}

/// Releases everything of a closed ring, unless a thread sleeps on it or a worker has one of its requests: whoever is
/// last does it then.
pub fn end_if_unused(ring: &'static Ring) {
    let mut guard = match ring.lock_soon() {
        Ok(guard) => guard,
        // Whoever holds it comes back to this.
        Err(LockFailure::Busy) => return ring.leave_note(Note::End),
        Err(_) => return,
    };
    // Acquire: partner of the Release in `sleeps::Sleep::end`.
    if !guard.is_closed() || ring.sleepers.load(Ordering::Acquire) != 0 {
        return;
    }
    if guard.is_polled() && !ring.leave_poller() {
        return; // its thread lets go of it first
    }
    guard.abandon_requests();
    if !guard.slab.is_empty() {
        if guard.device.in_flight() != 0 {
            guard.call_helper_now(); // there is no worker to come back
        }
        return;
    }
    if ring.driver.handover.is_known() {
        return guard.call_helper_now();
    }
    let Some(state) = guard.end_ring() else { return };
    let remains = Remains { ring, state };
    point(Point::Teardown);
    drop(remains);
}

/// What is left of a ring that has ended. Dropping it gives everything back, also when a panic does so; nothing in it
/// can panic: system calls, and lists under leaf locks.
struct Remains {
    ring: &'static Ring,
    state: Box<State>,
}

impl Drop for Remains {
    fn drop(&mut self) {
        let (ring, state) = (self.ring, &mut self.state);
        let last = LIVE.lock().is_some_and(|mut live| {
            live.retain(|known| !core::ptr::eq(*known, ring));
            thread::set_needed(!live.is_empty());
            live.is_empty()
        });
        state.poll_set.release();
        state.device.release();
        for eventfd in state.eventfd.take().map(|(eventfd, _)| eventfd).into_iter().chain(state.bell.take()) {
            descriptors::close(eventfd);
        }
        if state.engine_end >= 0 && !mutated(Mutation::RingsLeaveADescriptor) {
            descriptors::close(state.engine_end);
        }
        state.release_resources();
        if state.memory.room().is_none() {
            state.control.unmap();
        }
        state.memory.release();
        ring.driver.reset();
        ring.forget_notes_if_ended();
        if let Some(mut pool) = POOL.lock() {
            pool.push(ring);
        }
        if last {
            crate::stats::rings_are_gone(|| rings().is_empty());
            crate::wq::rings_are_gone();
            thread::rings_are_gone();
            crate::wq::futex::rings_are_gone();
            descriptors::limit::give_back();
            // Unless another one comes soon, the helper gives the kernel's contexts back when it ends.
            if device::has_spare() && !helper::stand_by() {
                device::destroy_spare();
            }
            helper::nudge();
        }
    }
}

/// Gives up a ring of which the process, a forked child, has no memory.
pub(crate) fn forget_ring(ring: &'static Ring) {
    for slot in &RINGS {
        let known = core::ptr::from_ref(ring).cast_mut().cast();
        let _ = slot.compare_exchange(known, core::ptr::null_mut(), Ordering::Relaxed, Ordering::Relaxed);
    }
    drop(ring.leave_unused().map(|state| Remains { ring, state }));
}

/// In a forked child: makes the lists usable.
///
/// # Safety
/// Only the forking thread may exist in the process.
pub unsafe fn reset_after_fork() {
    // SAFETY: no other thread exists; both are lists of references that only change by whole elements.
    unsafe {
        POOL.reset();
        LIVE.reset();
    }
}

/// Takes out of those that live the rings of which `keeps` is false.
pub fn retain(keeps: impl FnMut(&&'static Ring) -> bool) {
    if let Some(mut live) = LIVE.lock() {
        live.retain(keeps);
        thread::set_needed(!live.is_empty());
        if live.is_empty() {
            descriptors::limit::give_back();
        }
    }
}
