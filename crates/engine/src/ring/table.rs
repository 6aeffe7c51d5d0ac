//! The rings of the process, by the numbers of their descriptors.
//!
//! A ring enters the table of numbers (`descriptors::numbers`) when it is complete, and leaves it before its end
//! begins. A thread that looked the ring up before finds a ring that has ended (`LockFailure::Ended`).

use crate::descriptors::numbers::{forget_use, mark_ring, RINGS, RINGS_END};
use crate::descriptors::{self, cookie_of};
use crate::device;
use crate::forced::{point, Point};
use crate::issue::lint;
use crate::lock::Lock;
use crate::mutation::{mutated, Mutation};
use crate::ring::helper;
use crate::ring::holder_work::{Closing, HolderWork};
use crate::ring::{LockFailure, Ring, State};
use crate::shared::fences;
use crate::stats;
use crate::thread;
use crate::thread::tables;
use crate::Errno;
use core::sync::atomic::Ordering;

/// Live rings, with or without a known number. Its lock also guards changes to a ring's numbers.
static LIVE: Lock<Vec<&'static Ring>> = Lock::new(Vec::new());

/// Rings that have ended.
static POOL: Lock<Vec<&'static Ring>> = Lock::new(Vec::new());

/// Returns the ring with number `fd`.
#[inline]
pub fn ring(fd: i32) -> Option<&'static Ring> {
    let slot = RINGS.get(usize::try_from(fd).ok()?)?;
    // Acquire pairs with the Release store in `publish`.
    let ring = slot.load(Ordering::Acquire).cast::<Ring>();
    // SAFETY: only `publish` puts rings into the table, which come from Box::leak and are never freed.
    unsafe { ring.as_ref() }
}

/// Returns a ring without a state, from the pool or a new one.
pub fn unborn_ring() -> &'static Ring {
    let pooled = POOL.lock().and_then(|mut pool| pool.pop());
    pooled.unwrap_or_else(|| Box::leak(Box::new(Ring::unborn())))
}

/// True if the table has a place for number `fd`.
pub fn fits(fd: i32) -> bool {
    (0..RINGS_END as i32).contains(&fd)
}

/// Publishes a complete ring under its number.
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
        stats::ring_made(); // without the lock: `rings_are_gone` takes it under its own
    }
    Ok(())
}

/// Gives the ring this number. The caller holds the lock of [`LIVE`], or has interrupted its holder.
fn add_number(fd: i32, ring: &'static Ring) {
    let known = core::ptr::from_ref(ring).cast_mut().cast();
    // Release: partner of the Acquire load in `ring`.
    mark_ring(fd);
    if RINGS[fd as usize].swap(known, Ordering::Release) != known {
        ring.numbers.fetch_add(1, Ordering::Relaxed);
    }
}

/// Takes this number from the ring. Calls `release` if the ring had the number. True if the ring has other numbers.
fn remove_number(fd: i32, ring: &'static Ring, release: impl FnOnce()) -> bool {
    let _live = LIVE.lock();
    let known = core::ptr::from_ref(ring).cast_mut().cast();
    let was_known =
        RINGS[fd as usize].compare_exchange(known, core::ptr::null_mut(), Ordering::Release, Ordering::Relaxed);
    let before = match was_known {
        Ok(_) => {
            release(); // under the lock, so that no thread can adopt the number
            ring.numbers.fetch_sub(1, Ordering::Relaxed)
        }
        Err(_) => ring.numbers.load(Ordering::Relaxed) + 1,
    };
    let others = before > 1;
    // The ring's readiness bytes are now received through another of its numbers, if a number is known.
    let is_other = |slot: &usize| core::ptr::eq(RINGS[*slot].load(Ordering::Relaxed), known);
    let other = others.then(|| (0..RINGS_END).find(is_other)).flatten().map_or(-1, |slot| slot as i32);
    let _ = ring.fd.compare_exchange(fd, other, Ordering::Relaxed, Ordering::Relaxed);
    others
}

/// Adds a new ring without a number to the live ones.
pub fn keep(ring: &'static Ring) {
    if let Some(mut live) = LIVE.lock() {
        live.push(ring);
        thread::set_needed(true);
    }
    stats::ring_made();
}

/// All live rings of the process.
pub fn rings() -> Vec<&'static Ring> {
    LIVE.lock().map(|live| live.clone()).unwrap_or_default()
}

/// Finds the ring whose descriptor the unknown number `fd` duplicates (dup(2), or inherited), and makes the number
/// known.
#[cold]
pub fn adopt(fd: i32) -> Option<&'static Ring> {
    if !fits(fd) || cookie_of(fd).is_none() {
        return None;
    }
    let live = LIVE.lock()?;
    // Read under the lock. A close makes the number name another file before it takes the lock to forget the number.
    let cookie = cookie_of(fd)?;
    let found = live.iter().copied().find(|ring| ring.cookie.load(Ordering::Relaxed) == cookie)?;
    add_number(fd, found);
    // Relaxed: the ring itself receives from `fd`, under the ring's lock.
    let _ = found.fd.compare_exchange(-1, fd, Ordering::Relaxed, Ordering::Relaxed);
    Some(found)
}

/// Notifies every ring that the program closes `fd`, which is not the number of a ring.
pub(crate) fn closing_file(fd: i32) {
    let mut closing = Closing::new(fd);
    for ring in rings().into_iter().filter(|ring| ring.is_of_my_table() && !ring.is_unused_inheritance()) {
        ring.close_number(&mut closing);
    }
    if !tables::differ() {
        forget_use(fd);
    }
}

/// Handles the program's close of a ring's number. `close` makes the system call; without `close` the program makes the
/// call later. If that number was the last copy of the descriptor, the ring ends. Otherwise the helper watches for its
/// end.
///
/// A forked child with nothing in flight on the ring gives it up with the last number that it knows. Nothing of the
/// ring stays open or mapped in the child.
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
    // If the number was closed without the engine's knowledge, it names another file by now. Then it is only forgotten.
    let is_rings = is_still_number_of(fd, ring);
    let others = remove_number(fd, ring, || match close {
        Some(close) if is_rings => close(),
        // Replaces the ring's file at once, so that a hang-up shows whether another copy is left. The engine's end may
        // take the file's place. Relaxed: the ring has that end for as long as it has this number.
        None if is_rings => descriptors::put_nothing(fd, ring.engine_end.load(Ordering::Relaxed)),
        _ => {}
    });
    match guard {
        Some(mut guard) => {
            if !others && guard.chaos.is_some() {
                lint::ends(&mut guard);
            }
            guard.own_number_closed(others);
        }
        None => ring.leave_holder_work(HolderWork::OwnNumberClosed(others)),
    }
}

/// True if `fd`, once a number of the ring, still names it. A close that the engine did not notice may have freed it
/// for another file.
pub(crate) fn is_still_number_of(fd: i32, ring: &'static Ring) -> bool {
    // Not read from the state, whose lock another thread may keep. Relaxed: the cookie is 0 at the latest when the ring
    // has ended.
    descriptors::closes_are_seen() || cookie_of(fd) == Some(ring.cookie.load(Ordering::Relaxed))
}

/// Releases everything that belongs to a closed ring. While threads sleep on the ring or workers have its requests, the
/// last of them releases it.
pub fn end_if_unused(ring: &'static Ring) {
    let mut guard = match ring.lock_soon() {
        Ok(guard) => guard,
        // The holder does this work later.
        Err(LockFailure::Busy) => return ring.leave_holder_work(HolderWork::End),
        Err(_) => return,
    };
    // Acquire: partner of the Release in `sleeps::Sleep::end`.
    if !guard.is_closed() || ring.sleepers.load(Ordering::Acquire) != 0 {
        return;
    }
    if guard.is_polled() && !ring.leave_poller() {
        return; // the polling thread gives up the ring first
    }
    guard.abandon_requests();
    if !guard.slab.is_empty() {
        if guard.device.in_flight() != 0 {
            guard.call_helper_now(); // no worker will return to this ring
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

/// The remains of a ring that has ended. Dropping them gives everything back, also during a panic. The drop cannot
/// panic: it only makes system calls, and changes lists under leaf locks.
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
        for eventfd in
            state.eventfd.take().map(|(eventfd, _)| eventfd).into_iter().chain(state.poller_eventfd.take())
        {
            descriptors::close(eventfd);
        }
        if !mutated(Mutation::RingsLeaveADescriptor) {
            state.ends.close();
        }
        state.release_resources();
        if state.memory.room().is_none() {
            state.control.unmap();
        }
        state.memory.release();
        ring.driver.reset();
        ring.drop_holder_work_if_ended();
        if let Some(mut pool) = POOL.lock() {
            pool.push(ring);
        }
        if last {
            crate::stats::rings_are_gone(|| rings().is_empty());
            crate::wq::rings_are_gone();
            thread::rings_are_gone();
            crate::wq::futex::rings_are_gone();
            descriptors::limit::give_back();
            // The helper gives the kernel's AIO contexts back when it ends, unless another ring comes soon.
            if device::has_spare() && !helper::ensure_started() {
                device::destroy_spare();
            }
            helper::rings_are_gone();
            helper::nudge();
        }
    }
}

/// Gives up a ring whose memory this process, a forked child, does not have.
pub(crate) fn forget_ring(ring: &'static Ring) {
    for slot in &RINGS {
        let known = core::ptr::from_ref(ring).cast_mut().cast();
        let _ = slot.compare_exchange(known, core::ptr::null_mut(), Ordering::Relaxed, Ordering::Relaxed);
    }
    drop(ring.leave_unused().map(|state| Remains { ring, state }));
}

/// Prepares the rings for a fork of the process.
pub fn before_fork() {
    if thread::is_needed() {
        fences::before_fork(thread::is_surely_alone);
    }
}

/// Makes the lists usable in a forked child, and counts the fork.
///
/// # Safety
/// Only the forking thread may exist in the process.
pub unsafe fn reset_after_fork() {
    fences::reset_after_fork();
    // SAFETY: no other thread exists. Both are lists of references that only change by whole elements.
    unsafe {
        POOL.reset();
        LIVE.reset();
    }
}

/// Keeps only those live rings for which `keeps` returns true.
pub fn retain(keeps: impl FnMut(&&'static Ring) -> bool) {
    if let Some(mut live) = LIVE.lock() {
        live.retain(keeps);
        thread::set_needed(!live.is_empty());
        if live.is_empty() {
            descriptors::limit::give_back();
        }
    }
}
