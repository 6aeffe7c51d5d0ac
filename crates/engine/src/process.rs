//! What a process has of the engine: its rings, what a close of a number means to them, and what a fork makes of all that.
//!
//! A ring goes into the table of numbers (`descriptors::numbers`) when it is complete and leaves it before its
//! end begins; whoever looked it up before finds a ring that has ended (`ring::LockFailure::Ended`).

use crate::descriptors::numbers::{forget_use, was_used, NUMBERS_END, RINGS, RINGS_END};
use crate::descriptors::{self, cookie_of, is_ring};
use crate::forced::{point, Point};
use crate::lock::Lock;
use crate::mutation::{mutated, Mutation};
use crate::os::{file_status, syscall, ForkPage, Look, Os, Sys};
use crate::ring::broken::contain_any;
use crate::ring::notes::{Closing, Note};
use crate::ring::{LockFailure, Ring, State};
use crate::thread::tables;
use crate::{aio, identity, thread, Errno};
use anyring_abi::{IORING_OFF_MMAP_MASK, IORING_OFF_PBUF_RING, IORING_OFF_PBUF_SHIFT};
use core::cell::Cell;
use core::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

/// Rings that live, whether or not a number of theirs is known.
static LIVE: Lock<Vec<&'static Ring>> = Lock::new(Vec::new());
/// Rings that have ended.
static POOL: Lock<Vec<&'static Ring>> = Lock::new(Vec::new());

/// A word that a forked child finds to be 0.
static FORK_PAGE: ForkPage = ForkPage::new();

/// The process that these tables belong to.
static OWNER: AtomicU32 = AtomicU32::new(0);

/// Rings that a thread registered for itself (`IORING_REGISTER_RING_FDS`).
pub const REGISTERED_RINGS: usize = 16;

/// The numbers a thread registered. A thread that ends gives back what it still holds.
struct Registered(Cell<[i32; REGISTERED_RINGS]>);

impl Drop for Registered {
    fn drop(&mut self) {
        // In a forked child they are the parent's thread's: `after_fork` gives them back, if the child does anything at all.
        if !is_noticed() {
            return;
        }
        for number in self.0.get().into_iter().filter(|number| descriptors::is_own(*number)) {
            // The C library runs this at the end of the thread: a panic must not go on into it.
            let drop = || {
                point(Point::ThreadExit);
                drop_duplicate(number);
            };
            let _ = (0..2).any(|_| contain_any(drop).is_some());
        }
    }
}

thread_local! {
    static REGISTERED: Registered = const { Registered(Cell::new([-1; REGISTERED_RINGS])) };
}

/// The ring with number `fd`.
#[inline]
pub fn ring(fd: i32) -> Option<&'static Ring> {
    let slot = RINGS.get(usize::try_from(fd).ok()?)?;
    // Acquire pairs with the Release store in `publish`.
    let ring = slot.load(Ordering::Acquire).cast::<Ring>();
    // SAFETY: only `publish` puts rings into the table, which come from Box::leak and are never freed.
    unsafe { ring.as_ref() }
}

/// The ring with number `fd`, if that number still names it: a close that was not seen may have let the number go to
/// another file.
pub fn verified_ring(fd: i32) -> Option<&'static Ring> {
    notice_fork();
    let ring = ring(fd)?;
    // Not from the state, whose lock somebody may keep. Relaxed: 0 at the latest when the ring has ended.
    (cookie_of(fd) == Some(ring.cookie.load(Ordering::Relaxed))).then_some(ring)
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
    let slot = RINGS.get(fd as usize).ok_or(Errno::MFILE)?;
    ring.numbers.fetch_add(1, Ordering::Relaxed);
    slot.store(core::ptr::from_ref(ring).cast_mut().cast(), Ordering::Release); // partner: the Acquire load in `ring`
    if let Some(mut live) = LIVE.lock() {
        if !live.iter().any(|known| core::ptr::eq(*known, ring)) {
            live.push(ring);
        }
    }
    Ok(())
}

/// Counts a new ring, which has no number, among those that live.
pub fn keep(ring: &'static Ring) {
    if let Some(mut live) = LIVE.lock() {
        live.push(ring);
    }
}

/// Every ring of the process.
pub fn rings() -> Vec<&'static Ring> {
    LIVE.lock().map(|live| live.clone()).unwrap_or_default()
}

/// Whether the process has a ring: without one, threads of the engine have nothing to stay for.
pub fn has_rings() -> bool {
    LIVE.lock().is_some_and(|live| !live.is_empty() || mutated(Mutation::ThreadsOutstayTheLastRing))
}

/// The ring that an unknown number names as a duplicate (dup(2), or inherited): from now on the number is known.
#[cold]
pub fn adopt(fd: i32) -> Option<&'static Ring> {
    notice_fork();
    let cookie = cookie_of(fd)?;
    let found = rings().into_iter().find(|ring| ring.cookie.load(Ordering::Relaxed) == cookie)?;
    publish(fd, found).ok()?;
    // Relaxed: `fd` names the ring for its own receive, under the ring's lock.
    let _ = found.fd.compare_exchange(-1, fd, Ordering::Relaxed, Ordering::Relaxed);
    Some(found)
}

/// The program is about to close number `fd`, or to replace what it names.
#[inline]
pub fn closing(fd: i32) {
    if fd >= 0 && (is_ring(fd) || was_used(fd)) {
        // After a panic the struck ring has been put in order: nothing of it may stay behind, so once more.
        let _ = (0..2).any(|_| contain_any(|| closing_known(fd)).is_some());
    }
}

#[cold]
fn closing_known(fd: i32) {
    if !owns_this_memory() && !mutated(Mutation::VforkChildrenClose) {
        return;
    }
    // A number that the program used before and that is the engine's now: the program cannot close it.
    if descriptors::is_own(fd) {
        return;
    }
    if let Some(ring) = ring(fd) {
        if ring.is_of_my_table() {
            closing_ring(fd, ring); // else another table has the number, too, and keeps it
        }
    } else {
        closing_file(fd);
    }
}

/// The program is about to close every number in `first..=last`.
pub fn closing_range(first: u32, last: u32) {
    let highest = NUMBERS_END as u32;
    for fd in first..=last.min(highest) {
        closing(fd as i32);
    }
}

/// Where the area at mmap(2) offset `offset` of ring `fd` is: a memfd and the offset in it.
pub fn ring_mapping(fd: i32, offset: u64) -> Option<(i32, u64)> {
    let guard = verified_ring(fd)?.lock().ok()?;
    if offset == crate::resource::wait_region::MAP_OFFSET {
        return Some((guard.wait_region.as_ref()?.memfd()?, 0));
    }
    if offset & u64::from(IORING_OFF_MMAP_MASK) == u64::from(IORING_OFF_PBUF_RING) {
        let group = (offset & !u64::from(IORING_OFF_MMAP_MASK)) >> IORING_OFF_PBUF_SHIFT;
        return Some((guard.groups.memfd(u16::try_from(group).ok()?)?, 0));
    }
    let offset = guard.memory.view.layout().memfd_offset(offset)?;
    Some((guard.memory.memfd?, guard.memory.offset + offset))
}

/// Tells every ring that the program closes `fd`, which is no ring's number.
fn closing_file(fd: i32) {
    let mut closing = Closing::new(fd);
    for ring in rings().into_iter().filter(|ring| ring.is_of_my_table() && !ring.is_unused_inheritance()) {
        ring.close_number(&mut closing);
    }
    if !tables::differ() {
        forget_use(fd);
    }
}

/// The program closes a ring's number: the ring ends if that was its last copy, and is watched by the helper if not. A forked
/// child that has nothing in flight on the ring gives it up with the last number that it knows: nothing of the ring stays
/// open or mapped there, whatever the child becomes.
fn closing_ring(fd: i32, ring: &'static Ring) {
    if ring.is_unused_inheritance() {
        RINGS[fd as usize].store(core::ptr::null_mut(), Ordering::Release);
        if ring.numbers.fetch_sub(1, Ordering::Relaxed) == 1 {
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
    RINGS[fd as usize].store(core::ptr::null_mut(), Ordering::Release);
    // If the number was closed unseen, it names another file by now: then it is only forgotten.
    if cookie_of(fd) == Some(ring.cookie.load(Ordering::Relaxed)) {
        // Replaces the program's copy by one of our end, which the program is about to close: so it can be seen now
        // whether another copy is left.
        let args =
            [ring.engine_end.load(Ordering::Relaxed) as usize, fd as usize, libc::O_CLOEXEC as usize, 0, 0, 0];
        syscall(libc::SYS_dup3, args);
    }
    // Another number of the ring, if one is known, is the one to receive from.
    let others = ring.numbers.fetch_sub(1, Ordering::Relaxed) > 1;
    let known = |slot: &usize| core::ptr::eq(RINGS[*slot].load(Ordering::Relaxed).cast(), ring);
    let other = others.then(|| (0..RINGS_END).find(known)).flatten().map_or(-1, |slot| slot as i32);
    let _ = ring.fd.compare_exchange(fd, other, Ordering::Relaxed, Ordering::Relaxed);
    match guard {
        Some(mut guard) => guard.lose_number(others),
        None => ring.leave_note(Note::LostNumber(others)),
    }
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
    if !guard.closed || ring.sleepers.load(Ordering::Acquire) != 0 {
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
            live.is_empty()
        });
        state.poll_set.release();
        state.device.release();
        for eventfd in state.eventfd.take().map(|(eventfd, _)| eventfd).into_iter().chain(state.bell.take()) {
            descriptors::close(eventfd);
        }
        if state.engine_end >= 0 {
            descriptors::close(state.engine_end);
        }
        state.memory.release();
        state.release_resources();
        state.control.unmap();
        ring.driver.reset();
        ring.forget_notes_if_ended();
        if let Some(mut pool) = POOL.lock() {
            pool.push(ring);
        }
        if last {
            crate::stats::rings_are_gone(|| rings().is_empty());
            crate::wq::rings_are_gone();
            crate::wq::futex::rings_are_gone();
            crate::device::rings_are_gone();
            crate::wait::helper::nudge();
        }
    }
}

/// Registers ring `fd` for the calling thread at `index`, or at a free one; answers the index.
pub fn register_ring_number(fd: i32, index: Option<u32>) -> Result<u32, Errno> {
    REGISTERED
        .try_with(|Registered(cell)| {
            let mut table = cell.get();
            let index = match index {
                Some(index) => index as usize,
                None => table.iter().position(|fd| *fd < 0).ok_or(Errno::BUSY)?,
            };
            let slot = table.get_mut(index).ok_or(Errno::INVAL)?;
            if *slot >= 0 {
                return Err(Errno::BUSY);
            }
            *slot = fd;
            cell.set(table);
            Ok(index as u32)
        })
        .unwrap_or(Err(Errno::NOMEM))
}

/// Takes a registered ring out of the calling thread's table: its number there.
pub fn unregister_ring_number(index: u32) -> Result<i32, Errno> {
    REGISTERED
        .try_with(|Registered(cell)| {
            let mut table = cell.get();
            let number = core::mem::replace(table.get_mut(index as usize).ok_or(Errno::INVAL)?, -1);
            cell.set(table);
            Ok(number)
        })
        .unwrap_or(Err(Errno::NOMEM))
}

/// Another number for ring `fd`, of the engine's own.
pub fn duplicate_ring(fd: i32) -> Result<i32, Errno> {
    let ring = ring(fd).ok_or(Errno::BADF)?;
    let duplicate = descriptors::duplicate(fd)?;
    publish(duplicate, ring).inspect_err(|_| descriptors::close(duplicate))?;
    Ok(duplicate)
}

/// Closes what [`duplicate_ring`] made; the ring ends if it was the last number.
pub fn drop_duplicate(duplicate: i32) {
    // Not by `closing`, which is for what the program closes: this number is the engine's own.
    if let Some(ring) = ring(duplicate) {
        closing_ring(duplicate, ring);
    }
    descriptors::close(duplicate);
}

/// The ring number that the calling thread registered at `index`.
#[inline]
pub fn registered_ring_number(index: u32) -> Option<i32> {
    let table = REGISTERED.try_with(|Registered(cell)| cell.get()).ok()?;
    table.get(index as usize).copied().filter(|fd| *fd >= 0)
}

/// Called at every entry: in a forked child, forgets what only the parent can complete.
#[inline]
pub fn notice_fork() {
    match FORK_PAGE.word(Look::ByLoad) {
        Some(word) if word.load(Ordering::Relaxed) == 1 => {}
        Some(word) => after_fork(word),
        None => make_fork_word(),
    }
}

/// Gives up a ring of which the process, a forked child, has no memory.
fn forget_ring(ring: &'static Ring) {
    for slot in &RINGS {
        let known = core::ptr::from_ref(ring).cast_mut().cast();
        let _ = slot.compare_exchange(known, core::ptr::null_mut(), Ordering::Relaxed, Ordering::Relaxed);
    }
    drop(ring.leave_unused().map(|state| Remains { ring, state }));
}

/// The program keeps what it has mapped at `address` from forked children (MADV_DONTFORK). If that is a ring's memory, so does
/// the engine with what it has of the ring: no such child can reach it.
pub fn keep_from_children(address: usize) {
    notice_fork();
    let Some(inode) = inode_mapped_at(address) else { return };
    // Only the ring that is meant is locked: a call on it waits for its holder, as every other. Relaxed: the program knows the
    // memory of a ring that is complete.
    let inode_of = |fd| file_status(fd).map(|status| status.inode);
    let is_meant = |ring: &&'static Ring| inode_of(ring.memfd.load(Ordering::Relaxed)) == Ok(inode);
    for ring in rings().into_iter().filter(is_meant).filter(|ring| !ring.is_unused_inheritance()) {
        if let Ok(guard) = ring.lock() {
            let _ = guard.keep_from_children();
        }
    }
}

/// The inode of the file that is mapped at `address`; None where there is no /proc.
fn inode_mapped_at(address: usize) -> Option<u64> {
    let maps = std::fs::read_to_string("/proc/self/maps").ok()?;
    maps.lines().find_map(|line| {
        let mut fields = line.split_ascii_whitespace();
        let (first, last) = fields.next()?.split_once('-')?;
        let bound = |text| usize::from_str_radix(text, 16).ok();
        let is_it = (bound(first)?..bound(last)?).contains(&address);
        is_it.then(|| fields.nth(3)?.parse().ok()).flatten()
    })
}

/// Whether the calling process is the one that the tables belong to: not one that shares their memory (vfork(2)), nor a
/// forked child that has not been noticed.
fn is_noticed() -> bool {
    let word = FORK_PAGE.word(Look::ByLoad).map(|word| word.load(Ordering::Relaxed));
    word == Some(1) && OWNER.load(Ordering::Relaxed) == Sys::process_id()
}

/// Whether what the calling process closes is what the tables tell of: a forked child is noticed by this. A child of vfork(2)
/// has the tables in its memory, and descriptors of its own.
fn owns_this_memory() -> bool {
    match FORK_PAGE.word(Look::ByLoad) {
        Some(word) if word.load(Ordering::Relaxed) != 1 => {
            // Of a child that libc's fork made the page tells the process id: where that is another one, this is that child's
            // child of vfork.
            let forked = FORK_PAGE.child(Look::ByLoad).map_or(0, |child| child.load(Ordering::Relaxed));
            let owns = forked == 0 || forked == Sys::process_id();
            if owns {
                after_fork(word);
            }
            owns
        }
        _ => OWNER.load(Ordering::Relaxed) == Sys::process_id(),
    }
}

/// The calling thread has got a table of descriptors of its own.
pub fn unshared() {
    tables::unshared(OWNER.load(Ordering::Relaxed) != 0 && !owns_this_memory());
}

/// The calling thread is about to make system call `number`, one of [`identity::NUMBERS`], with this first argument.
#[cold]
pub fn before_identity_call(number: i64, argument: usize) {
    if identity::is_changed_by(number, argument) {
        identity::changing(|| {
            for ring in rings() {
                if let Ok(mut guard) = ring.lock() {
                    guard.keep_identity();
                }
            }
        });
    }
}

/// What others have to put in order in a forked child.
static AT_FORK: [AtomicPtr<()>; 2] = [const { AtomicPtr::new(core::ptr::null_mut()) }; 2];

/// Has `renew` run in a forked child before anything else of the engine's does there. False where there is no room for it.
/// From now on [`notice_fork`] notices.
///
/// `renew` is called while the child has one thread at most that calls on the engine: the one that forked.
pub fn at_fork(renew: fn()) -> bool {
    notice_fork();
    let renew = renew as *mut ();
    // Release pairs with the Acquire in `after_fork`, of a child that another thread makes.
    let claim = |slot: &AtomicPtr<()>| {
        slot.compare_exchange(core::ptr::null_mut(), renew, Ordering::Release, Ordering::Relaxed).is_ok()
    };
    AT_FORK.iter().any(claim)
}

/// libc's fork(3) has returned in the child. Only what tells the child from its children of vfork(2) is noted, and what would
/// keep files of the parent's open is closed: most children execute another program.
pub fn forked() {
    descriptors::close_in_flight();
    // By call: the program may have blocked SIGSEGV.
    if let Some(child) = FORK_PAGE.child(Look::ByCall) {
        child.store(Sys::process_id(), Ordering::Relaxed);
    }
}

#[cold]
fn make_fork_word() {
    OWNER.store(Sys::process_id(), Ordering::Relaxed);
    let _ = FORK_PAGE.map(1); // out of memory: the next entry tries again
}

/// Not to be interrupted by a handler: its calls would wait for this very thread.
#[cold]
fn after_fork(word: &AtomicU32) {
    thread::uninterrupted(|| put_in_order(word));
}

fn put_in_order(word: &AtomicU32) {
    // 2: a thread of the child that came first is at it.
    if word.compare_exchange(0, 2, Ordering::Acquire, Ordering::Relaxed).is_err() {
        while word.load(Ordering::Acquire) != 1 {
            core::hint::spin_loop();
        }
        return;
    }
    thread::reset_after_fork();
    let shared = tables::note_sharing_with(OWNER.load(Ordering::Relaxed));
    descriptors::leave_alone(shared);
    // SAFETY: the word is zero only in a child that has made no entry yet, where the forking thread is alone.
    unsafe {
        POOL.reset();
        tables::reset_after_fork();
        crate::memory::reset_after_fork();
        crate::ring::setup::reset_after_fork();
        crate::wq::reset_after_fork();
        crate::wq::futex::reset_after_fork();
        crate::wq::waitid::reset_after_fork();
        crate::wq::creds::reset_after_fork();
        crate::identity::reset_after_fork();
        crate::wait::helper::reset_after_fork();
        crate::device::reset_after_fork();
        LIVE.reset();
        let rings = rings();
        rings.iter().for_each(|ring| ring.reset_after_fork());
        if let Some(mut live) = LIVE.lock() {
            aio::reset_after_fork(&mut live);
        }
        drop_registered_numbers();
        descriptors::close_in_flight();
        crate::stats::reset_after_fork();
        crate::event::reset_after_fork(); // behind the rings, which have given up their recorders
        crate::wait::sqpoll::after_fork(&rings);
        // Relaxed: the process has one thread.
        rings.into_iter().filter(|ring| ring.kept_from_children.load(Ordering::Relaxed)).for_each(forget_ring);
    }
    descriptors::leave_alone(false);
    for renew in AT_FORK.iter().map(|slot| slot.load(Ordering::Acquire)).filter(|renew| !renew.is_null()) {
        // SAFETY: only functions of this type are stored there.
        unsafe { core::mem::transmute::<*mut (), fn()>(renew)() };
    }
    OWNER.store(Sys::process_id(), Ordering::Relaxed);
    word.store(1, Ordering::Release); // partner: the Acquire loads above
}

/// No thread of a forked child has registered a ring: what the parent's threads had is closed.
///
/// # Safety
/// Only the forking thread may exist in the process.
unsafe fn drop_registered_numbers() {
    let _ = REGISTERED.try_with(|Registered(cell)| cell.set([-1; REGISTERED_RINGS]));
    let mut first = 0;
    while let Some(own) = descriptors::next_own(first, RINGS_END as u32 - 1) {
        if let Some(ring) = ring(own as i32) {
            RINGS[own as usize].store(core::ptr::null_mut(), Ordering::Relaxed);
            ring.numbers.fetch_sub(1, Ordering::Relaxed);
            descriptors::close(own as i32);
        }
        first = own + 1;
    }
}
