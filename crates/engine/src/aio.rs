//! Linux AIO: io_setup(2), io_destroy(2), io_submit(2), io_getevents(2), io_pgetevents(2) and io_cancel(2).
//!
//! A context is a ring of the engine without a descriptor. Its requests take the same paths as io_uring's, except for
//! the first and the last step. `submit.rs` makes requests of iocbs, in place of the intake of SQEs.
//! [`RingGuard::flush_events`] posts into a completion ring in the kernel's layout (`completions.rs`), in place of
//! the CQ. `wait.rs` serves io_getevents(2). The CQ tail in the control area counts a context's events, and
//! io_getevents(2) waits for that tail.
//!
//! A context belongs to the process that made it. A forked child has the memory of the completion ring, but every
//! call in the child fails with EINVAL, as in the kernel.
//!
//! | part | guarded by |
//! |---|---|
//! | `CONTEXTS`: index and address -> ring | its own lock, a leaf (`NEAR_CONTEXTS` is read without a lock) |
//! | [`Context`] | the ring's lock |
//! | the completion ring's head | stored by the program, or under the ring's lock, and read as an untrusted word |

mod submit;
#[cfg(test)]
mod tests;
mod wait;

pub use submit::io_submit;
pub use wait::{io_getevents, io_pgetevents, Wait};

use crate::aio_ring::cold::Cold;
use crate::aio_ring::completions::Completions;
use crate::aio_ring::{Context, Pending};
use crate::issue::single;
use crate::lock::Lock;
use crate::os::Clock;
use crate::os::{user_read, user_write, GuardedWords};
use crate::request::State;
use crate::ring::table;
use crate::ring::{LockFailure, Ring, RingGuard};
use crate::setup::private_state;
use crate::wait::enter_wait::{wait_until, WaitOptions};
use crate::{process, Errno};
use anyring_abi::{AioRing, Iocb};
use core::mem::offset_of;
use core::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

/// The most contexts of a process. A list of all contexts is then never larger than the allocator's reserve allows.
const CONTEXTS_MAX: usize = 2048;
/// The contexts of the process, by the index stored in the completion ring's `id`.
static CONTEXTS: Lock<Contexts> = Lock::new(Contexts { named: Vec::new(), free: Vec::new() });

struct Contexts {
    named: Vec<Option<Named>>,
    /// The free places in `named`.
    free: Vec<u32>,
}

/// A context's ring, under the context's address.
#[derive(Clone, Copy)]
struct Named {
    address: u64,
    ring: &'static Ring,
}

/// Number of contexts that can be found without the lock of `CONTEXTS`.
const NEAR: usize = 16;

/// A copy of the first `CONTEXTS`: each address, or 0, and its ring. Stored under the lock of `CONTEXTS`. A reader
/// may find the address of one context and the ring of another. So it checks that the ring has that address
/// (`lock`).
static NEAR_CONTEXTS: [(AtomicU64, AtomicPtr<Ring>); NEAR] =
    [const { (AtomicU64::new(0), AtomicPtr::new(core::ptr::null_mut())) }; NEAR];

/// Updates the copy of a context in `NEAR_CONTEXTS`.
fn record_near(id: u32, named: Option<Named>) {
    let Some((address, ring)) = NEAR_CONTEXTS.get(id as usize) else { return };
    if let Some(named) = named {
        ring.store(core::ptr::from_ref(named.ring).cast_mut(), Ordering::Relaxed);
    }
    // Release: partner is the Acquire load in `find_near`.
    address.store(named.map_or(0, |named| named.address), Ordering::Release);
}

/// Returns the ring of the context at `address`. `None` if the context has no entry in [`NEAR_CONTEXTS`].
fn find_near(id: u32, address: u64) -> Option<&'static Ring> {
    let (near, ring) = NEAR_CONTEXTS.get(id as usize)?;
    // Acquire: partner is the Release store in `record_near`.
    if address == 0 || near.load(Ordering::Acquire) != address {
        return None;
    }
    // SAFETY: the pointer was stored before the address. It points to a ring, and rings are never freed.
    unsafe { ring.load(Ordering::Relaxed).as_ref() }
}

impl Contexts {
    fn get(&self, id: u32) -> Option<Named> {
        self.named.get(id as usize).copied().flatten()
    }

    /// Adds a context. Returns its index.
    ///
    /// # Errors
    /// NOMEM, even if there are too many contexts: AGAIN would mean that `fs.aio-max-nr` is reached.
    fn add(&mut self, named: Named) -> Result<u32, Errno> {
        let id = match self.free.pop() {
            Some(id) => id,
            None if self.named.len() == CONTEXTS_MAX => return Err(Errno::NOMEM),
            None => {
                self.named.try_reserve(1).map_err(|_| Errno::NOMEM)?;
                self.named.push(None);
                self.named.len() as u32 - 1
            }
        };
        self.named[id as usize] = Some(named);
        record_near(id, Some(named));
        Ok(id)
    }

    /// Changes the address of the context with this index from `before` to `after`. If `after` is `None`, removes the
    /// context.
    fn rename(&mut self, id: u32, before: u64, after: Option<u64>) -> Result<(), Errno> {
        let place = self.named.get_mut(id as usize).ok_or(Errno::INVAL)?;
        let named = place.filter(|named| named.address == before).ok_or(Errno::INVAL)?;
        *place = after.map(|address| Named { address, ..named });
        record_near(id, *place);
        if place.is_none() {
            self.free.push(id);
        }
        Ok(())
    }
}

/// Returns the index stored in the completion ring at `address`, if there is one. Source: `lookup_ioctx` in fs/aio.c.
fn id_at(address: u64) -> Result<u32, Errno> {
    GuardedWords::load((address as usize).wrapping_add(offset_of!(AioRing, id))).map_err(|_| Errno::INVAL)
}

/// Returns the ring of the context at `address`.
fn find(address: u64) -> Result<&'static Ring, Errno> {
    process::notice_fork();
    let id = id_at(address)?;
    if let Some(ring) = find_near(id, address) {
        return Ok(ring);
    }
    // `None`: a signal handler interrupted a lookup in its own thread.
    let named = CONTEXTS.lock().ok_or(Errno::AGAIN)?.get(id).ok_or(Errno::INVAL)?;
    if named.address != address {
        follow_move(named, id, address)?;
    }
    Ok(named.ring)
}

/// True if `address` names one of the engine's contexts.
pub fn is_context(address: u64) -> bool {
    find(address).is_ok()
}

/// Accepts a new address of a context, if the program has moved the completion ring to it. Source: `aio_ring_mremap`
/// in fs/aio.c.
#[cold]
fn follow_move(named: Named, id: u32, address: u64) -> Result<(), Errno> {
    {
        let mut guard = named.ring.lock().map_err(|_| Errno::INVAL)?;
        let context = guard.aio.as_mut().filter(|context| context.address() == named.address);
        if !context.is_some_and(|context| context.completions.has_moved_to(address as usize)) {
            return Err(Errno::INVAL);
        }
    }
    CONTEXTS.lock().ok_or(Errno::AGAIN)?.rename(id, named.address, Some(address))
}

/// Locks the context at `address`, which may have ended since `ring` was looked up. `reentry` is the error in a
/// signal handler that interrupted another call of its own thread on the context.
fn lock(ring: &'static Ring, address: u64, reentry: Errno) -> Result<RingGuard, Errno> {
    let mut guard = ring.lock().map_err(|failure| match failure {
        LockFailure::Reentry | LockFailure::Busy => reentry,
        LockFailure::Ended | LockFailure::Crowded => Errno::INVAL,
    })?;
    if guard.aio.as_ref().is_none_or(|context| context.address() != address || context.dead) {
        return Err(Errno::INVAL);
    }
    if guard.is_broken() {
        return Err(guard.refuse_call());
    }
    Ok(guard)
}

/// Makes a context for `requests` requests in flight. Stores its address at `context`, where 0 must be.
///
/// # Errors
/// Those of io_setup(2): FAULT, INVAL, NOMEM. AGAIN is not among them, since `fs.aio-max-nr` limits kernel memory.
pub fn io_setup(requests: u32, context: u64) -> Result<(), Errno> {
    crate::wait::begin(reset_after_fork)?;
    if user_read::<u64>(context)? != 0 || requests == 0 {
        return Err(Errno::INVAL);
    }
    Completions::check(requests)?;
    let completions = Completions::create(requests)?;
    let address = completions.address();
    let mut state = private_state()?;
    let (pending, free, eventfds) = (Vec::new(), Vec::new(), Vec::new());
    let cold = Cold::default();
    let made = Context { completions, pending, free, overdue: 0, cold, eventfds, dead: false, requests };
    state.recorder = crate::ring::recorder::Recorder::of_new_context(address, requests, made.completions.places());
    state.notice_watchers();
    state.aio = Some(Box::new(made));
    let ring = table::unborn_ring();
    ring.activate(Ring::NO_NUMBER, 0, state);
    table::keep(ring);
    let stored = name(ring, address).and_then(|()| user_write(context, &address));
    if stored.is_err() && io_destroy(address).is_err() {
        destroy(ring); // the context is not in the table
    }
    stored
}

/// Adds a context to the table, and stores its index in its completion ring.
fn name(ring: &'static Ring, address: u64) -> Result<(), Errno> {
    let id = CONTEXTS.lock().ok_or(Errno::AGAIN)?.add(Named { address, ring })?;
    let guard = ring.lock().map_err(|_| Errno::AGAIN)?;
    guard.aio.as_ref().map_or(Err(Errno::INVAL), |context| context.completions.set_id(id))
}

/// Ends a context: cancels the requests that can be cancelled, waits for the others, and gives its memory back.
///
/// # Errors
/// INVAL if `address` is no context. AGAIN in a signal handler that interrupted a call of its own thread on the
/// context.
pub fn io_destroy(address: u64) -> Result<(), Errno> {
    let ring = find(address)?;
    if ring.held_by_me() {
        return Err(Errno::AGAIN);
    }
    // Only the first of several callers gets past this line.
    CONTEXTS.lock().ok_or(Errno::AGAIN)?.rename(id_at(address)?, address, None)?;
    destroy(ring);
    Ok(())
}

/// Ends a context that was taken out of the table, so this runs once for each context.
fn destroy(ring: &'static Ring) {
    let Ok(mut guard) = ring.lock() else { return };
    if let Some(context) = &mut guard.aio {
        context.dead = true;
    }
    single::join_lists(&mut guard);
    let mut place = 0;
    while let Some(id) = guard.slab.next_from(place) {
        place = id.place() + 1;
        let _ = guard.cancel_one(id);
    }
    guard.finish_batch();
    // A call that a worker has begun still uses program memory.
    while !guard.slab.is_empty() && !guard.is_broken() {
        let target = guard.cq_total() + 1;
        let clock = Clock::Monotonic;
        let options = WaitOptions { min_complete: 1, deadline_ns: None, minimum_ns: None, clock, sigmask: None };
        let _ = wait_until(guard, &options, Some(target)); // no signal ends this wait, as in the kernel
        let Ok(again) = ring.lock() else { return };
        guard = again;
    }
    if let Some(context) = &mut guard.aio {
        context.completions.unmap();
    }
    guard.close();
    ring.fd.store(-1, Ordering::Relaxed); // from now on the last user to return ends the ring
    let control = guard.control;
    let mut post = control.lock_post();
    let beyond_every_target = post.cq_tail().wrapping_add(1 << 30);
    post.advance(beyond_every_target, 0);
    post.waiters().bump();
    drop(post);
    guard.wake();
    drop(guard);
    table::end_if_unused(ring);
}

/// Ends the request of the iocb at `iocb`. The request gets an event, and nothing else is stored, as in the kernel
/// since Linux 4.19.
///
/// # Errors
/// INPROGRESS for success. INVAL if the iocb is not in flight or cannot be ended. FAULT if it cannot be read.
pub fn io_cancel(address: u64, iocb: u64) -> Result<(), Errno> {
    const KEY: u32 = 0;
    if user_read::<u32>(iocb.wrapping_add(offset_of!(Iocb, key) as u64))? != KEY {
        return Err(Errno::INVAL);
    }
    let mut guard = lock(find(address)?, address, Errno::AGAIN)?;
    let places = guard.aio.as_ref().map_or(0, |context| context.pending.len());
    let is_it = |pending: &Pending| pending.obj == iocb;
    let cancelled = (0..places).any(|place| {
        let pending = guard.aio.as_ref().and_then(|context| context.pending.get(place)?.as_ref());
        pending.is_some_and(is_it) && cancel_place(&mut guard, place as u64)
    });
    guard.finish_batch();
    guard.call_helper();
    Err(if cancelled { Errno::INPROGRESS } else { Errno::INVAL })
}

/// Ends the request in this place. False if that is not possible.
fn cancel_place(guard: &mut RingGuard, place: u64) -> bool {
    let pending = guard.aio.as_ref().and_then(|context| context.pending.get(place as usize)?.as_ref());
    if let Some(fd) = pending.and_then(|pending| pending.single.as_ref()).map(|single| single.fd) {
        single::join_list(guard, fd);
    }
    let Some(id) = guard.slab.first_with_user_data(place, |_| true, |id| guard.slab.age(id)) else { return false };
    if let (Some(_), State::Polling(_)) = (guard.slab[id].op.poll(), guard.slab[id].state()) {
        // A cancelled poll reports no events: `aio_poll_complete_work` in fs/aio.c.
        let id = guard.disarm(id).id();
        guard.finish(id, 0, false);
        return true;
    }
    guard.cancel_one(id).is_ok()
}

/// Forgets the parent's contexts in a forked child, which has no use for their rings.
fn reset_after_fork() {
    // SAFETY: `at_fork` calls this while the child has one thread.
    unsafe { CONTEXTS.reset() };
    if let Some(mut contexts) = CONTEXTS.lock() {
        // Not dropped, since another thread of the parent may have been changing it.
        core::mem::forget(core::mem::take(&mut contexts.named));
        core::mem::forget(core::mem::take(&mut contexts.free));
    }
    for (address, _) in &NEAR_CONTEXTS {
        address.store(0, Ordering::Relaxed); // the process has one thread
    }
    // Relaxed: the process has one thread.
    table::retain(|ring| ring.fd.load(Ordering::Relaxed) != Ring::NO_NUMBER);
}
