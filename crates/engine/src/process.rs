//! State of the engine that belongs to a process: its rings, the handling of closed numbers, and of forks.
//!
//! A ring enters the table of numbers (`descriptors::numbers`) when it is complete, and leaves the table before its
//! end begins. So a thread that looked it up earlier may find a ring that has ended (`ring::LockFailure::Ended`).

use crate::descriptors::level;
use crate::descriptors::numbers::{next_known, was_used, RINGS, RINGS_END};
use crate::descriptors::{self, is_ring};
use crate::forced::{point, Point};
use crate::memory::{mapped, Area};
use crate::mutation::{mutated, Mutation};
use crate::os::calls;
use crate::os::{changes, handlers, owner, standard, Access, Os, Sys};
use crate::ring::broken::contain_any;
use crate::ring::holder_work::HolderWork;
use crate::ring::table::{self, ring, rings};
use crate::ring::{LockFailure, Ring};
use crate::thread::tables;
use crate::wq::creds::Claim;
use crate::{identity, thread, Errno};
use core::cell::Cell;
use core::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

/// Number of rings that a thread can register for itself (`IORING_REGISTER_RING_FDS`).
pub const REGISTERED_RINGS: usize = 16;

thread_local! {
    /// The numbers that the thread registered. A thread that ends gives back those that it still holds
    /// ([`thread_ends`]), by a pthread key. A destructor of a thread-local value would make libc call calloc(3),
    /// which the calling thread may have interrupted. In a child of _Fork(3), calloc(3) might also wait forever for
    /// its lock.
    static REGISTERED: Cell<[i32; REGISTERED_RINGS]> = const { Cell::new([-1; REGISTERED_RINGS]) };
    /// True once the kernel would have made the thread's io_uring context, which holds its registered rings.
    static HAS_CONTEXT: Cell<bool> = const { Cell::new(false) };
}

extern "C" fn thread_ends(_: *mut core::ffi::c_void) {
    // In a forked child the numbers belong to the parent's thread. `after_fork` closes them, if the child calls the
    // engine at all.
    if !owner::is_noticed() {
        return;
    }
    let numbers = REGISTERED.replace([-1; REGISTERED_RINGS]);
    for number in numbers.into_iter().filter(|number| descriptors::is_own(*number)) {
        // The C library calls this at the end of the thread, so a panic must not unwind into it.
        let drop = || {
            point(Point::ThreadExit);
            drop_duplicate(number);
        };
        let _ = (0..2).any(|_| contain_any(drop).is_some());
    }
}

/// Makes [`thread_ends`] run at the end of the calling thread. False if the process has no key left for that.
fn give_back_at_end() -> bool {
    /// The key plus one. Relaxed, since only the number itself is compared and exchanged.
    static KEY: AtomicU32 = AtomicU32::new(0);
    // SAFETY: the engine made the keys, and the destructor lives as long as the library. The value of one of the
    // first 32 keys is in the thread's own memory, so libc allocates none.
    unsafe {
        if KEY.load(Ordering::Relaxed) == 0 {
            let mut made = 0;
            if libc::pthread_key_create(&mut made, Some(thread_ends)) != 0 {
                return false;
            }
            if KEY.compare_exchange(0, made + 1, Ordering::Relaxed, Ordering::Relaxed).is_err() {
                libc::pthread_key_delete(made);
            }
        }
        libc::pthread_setspecific(KEY.load(Ordering::Relaxed) - 1, (&raw const KEY).cast()) == 0
    }
}

/// Returns the ring with number `fd`, if that number still names the ring. After a close without the engine's notice,
/// it may name another file.
pub fn verified_ring(fd: i32) -> Option<&'static Ring> {
    notice_fork();
    ring(fd).filter(|ring| table::is_still_number_of(fd, ring))
}

/// Returns the ring that a number names, which may be a new duplicate. From now on the number is known.
pub fn adopt(fd: i32) -> Option<&'static Ring> {
    notice_fork();
    table::adopt(fd)
}

/// Handles that the program is about to close number `fd`, or to replace its file.
#[inline]
pub fn closing(fd: i32) {
    standard::closing(fd);
    if fd >= 0 && (is_ring(fd) || was_used(fd)) {
        // After a panic the ring that it hit has been put in order, but the rest of this work is not done. So try
        // once more.
        let _ = (0..2).any(|_| contain_any(|| closing_known(fd, None)).is_some());
    }
}

/// Handles that the program closes number `fd`. True if the number is closed on return. A ring's number always is,
/// since only closing it shows whether it was the last copy.
#[inline]
pub fn close(fd: i32) -> bool {
    if !is_ring(fd) {
        closing(fd);
        return false;
    }
    standard::closing(fd);
    close_ring(fd)
}

#[cold]
fn close_ring(fd: i32) -> bool {
    let closed = Cell::new(false);
    let close = || {
        closed.set(true);
        Sys::close(fd);
    };
    // As in `closing`.
    let _ = (0..2).any(|_| closed.get() || contain_any(|| closing_known(fd, Some(&close))).is_some());
    closed.get()
}

#[cold]
fn closing_known(fd: i32, close: Option<&dyn Fn()>) {
    if !has_these_tables() && !mutated(Mutation::VforkChildrenClose) {
        return;
    }
    level::forget(fd);
    // The program used this number earlier, but now it belongs to the engine, so the program cannot close it.
    if descriptors::is_own(fd) {
        return;
    }
    if let Some(ring) = ring(fd) {
        if ring.is_of_my_table() {
            table::closing_ring(fd, ring, close); // otherwise another table has the number, too, and keeps it
        }
    } else {
        table::closing_file(fd);
    }
}

/// Handles that the program is about to close every number in `first..=last`.
pub fn closing_range(first: u32, last: u32) {
    (first..=last.min(2)).for_each(|fd| standard::closing(fd as i32));
    let mut next = first;
    while let Some(fd) = next_known(next, last) {
        closing(fd as i32);
        next = fd + 1;
    }
}

/// True if a close of number `fd`, or another file under it, may concern the engine.
#[inline]
pub fn concerns_number(fd: i32) -> bool {
    fd >= 0 && (fd <= 2 || descriptors::may_be_own(fd) || is_ring(fd) || was_used(fd))
}

/// True if one of the numbers `first..=last` is 0, 1 or 2, belongs to a ring, or may be used by a request. Before such a
/// close the engine has work to do.
pub fn knows_range(first: u32, last: u32) -> bool {
    first <= 2 || next_known(first, last).is_some()
}

/// True if a close of the numbers `first..=last` concerns the engine.
pub fn concerns_range(first: u32, last: u32) -> bool {
    descriptors::have_been() || knows_range(first, last)
}

/// Handles that the program is about to close number `fd`, or to open another file under it. Fails with EBADF if the
/// program closes a number that an engine descriptor fills for a moment.
pub fn taking(fd: i32, closes: bool) -> Result<(), Errno> {
    if !standard::is_held(fd) || !has_these_tables() {
        return Ok(());
    }
    if closes {
        return Err(Errno::BADF);
    }
    standard::replacing(fd);
    Ok(())
}

/// Calls `map` with the area at mmap(2) offset `offset` of ring `fd`. The area does not move during the call.
pub fn with_area<T>(fd: i32, offset: u64, map: impl FnOnce(Area) -> T) -> Option<T> {
    let guard = verified_ring(fd)?.lock().ok()?;
    guard.mapping(offset).map(map)
}

/// Calls [`Memory::map_both`](crate::memory::Memory::map_both) of ring `fd`.
pub fn map_both(fd: i32) -> Option<Result<[(usize, usize); 2], Errno>> {
    verified_ring(fd)?.lock().ok()?.memory.map_both()
}

/// Registers ring `fd` for the calling thread at `index`, or at a free index. Returns the index.
pub fn register_ring_number(fd: i32, index: Option<u32>) -> Result<u32, Errno> {
    let mut table = REGISTERED.get();
    let index = match index {
        Some(index) => index as usize,
        None => table.iter().position(|fd| *fd < 0).ok_or(Errno::BUSY)?,
    };
    let slot = table.get_mut(index).ok_or(Errno::INVAL)?;
    if *slot >= 0 {
        return Err(Errno::BUSY);
    }
    *slot = fd;
    if !give_back_at_end() {
        return Err(Errno::NOMEM);
    }
    REGISTERED.set(table);
    Ok(index as u32)
}

/// True if the calling thread has registered a ring.
pub fn has_registered_rings() -> bool {
    REGISTERED.get().iter().any(|fd| *fd >= 0)
}

/// Takes a registered ring out of the calling thread's table. Returns the ring's number.
pub fn unregister_ring_number(index: u32) -> Result<i32, Errno> {
    let mut table = REGISTERED.get();
    let number = core::mem::replace(table.get_mut(index as usize).ok_or(Errno::INVAL)?, -1);
    REGISTERED.set(table);
    Ok(number)
}

/// Makes another number for ring `fd`, which belongs to the engine.
pub fn duplicate_ring(fd: i32) -> Result<i32, Errno> {
    let ring = ring(fd).ok_or(Errno::BADF)?;
    let duplicate = descriptors::duplicate(fd)?;
    table::publish(duplicate, ring).inspect_err(|_| descriptors::close(duplicate))?;
    Ok(duplicate)
}

/// Closes a number from [`duplicate_ring`]. The ring ends if that was its last number.
pub fn drop_duplicate(duplicate: i32) {
    // Not by `closing`, which handles closes by the program, since this number belongs to the engine.
    let closed = Cell::new(false);
    let close = || {
        closed.set(true);
        descriptors::close(duplicate);
    };
    if let Some(ring) = ring(duplicate) {
        table::closing_ring(duplicate, ring, Some(&close));
    }
    if !closed.get() {
        close();
    }
}

/// Gives the calling thread an io_uring context, as `io_uring_add_tctx_node` in io_uring/tctx.h does.
pub fn give_context() {
    HAS_CONTEXT.set(true);
}

/// True if the calling thread has an io_uring context.
pub fn has_context() -> bool {
    HAS_CONTEXT.get()
}

/// Returns the ring number that the calling thread registered at `index`. Fails with EBADF if there is none. A thread
/// without a context cannot name a ring by index: EINVAL (`io_uring_register_get_file` in io_uring/register.c).
#[inline]
pub fn registered_ring_number(index: u32) -> Result<i32, Errno> {
    match REGISTERED.get().get(index as usize) {
        Some(number) if *number >= 0 => Ok(*number),
        Some(_) if has_context() => Err(Errno::BADF),
        _ => Err(Errno::INVAL),
    }
}

/// Forgets, in a forked child, everything that only the parent can complete. Called whenever the program calls the
/// engine.
#[inline]
pub fn notice_fork() {
    match owner::FORK_PAGE.word(Access::ByLoad) {
        Some(word) if word.load(Ordering::Relaxed) == 1 => {}
        Some(word) => after_fork(word),
        None => make_fork_word(),
    }
}

/// Handles that the program excludes its mapping at `address` from forked children (MADV_DONTFORK). If that is a
/// ring's memory, the engine also excludes its own mappings of the ring, since no such child can reach the ring.
pub fn keep_from_children(address: usize) {
    if !mapped::may_be(address) {
        return;
    }
    notice_fork();
    let Ok(maps) = calls::read_text("/proc/self/maps") else { return };
    let Some(inode) = inode_mapped_at(&maps, address) else { return };
    // Only the ring in question is locked. This call waits for that ring's holder, as every other call does. Relaxed:
    // the program knows the memory of a ring that is complete.
    let is_meant =
        |ring: &&'static Ring| inode_mapped_at(&maps, ring.mapped.load(Ordering::Relaxed)) == Some(inode);
    for ring in rings().into_iter().filter(is_meant).filter(|ring| !ring.is_unused_inheritance()) {
        if let Ok(guard) = ring.lock() {
            let _ = guard.keep_from_children();
        }
    }
}

/// Returns the inode of the file mapped at `address`, according to /proc/PID/maps. Shared memory has an inode, too.
fn inode_mapped_at(maps: &str, address: usize) -> Option<u64> {
    maps.lines().find_map(|line| {
        let mut fields = line.split_ascii_whitespace();
        let (first, last) = fields.next()?.split_once('-')?;
        let bound = |text| usize::from_str_radix(text, 16).ok();
        let is_it = (bound(first)?..bound(last)?).contains(&address);
        is_it.then(|| fields.nth(3)?.parse().ok()).flatten()
    })
}

/// True if the memory belongs to the calling process. Also notices a forked child that has not been noticed yet.
pub fn is_owner() -> bool {
    let is_owner = owner::of_memory() == Sys::process_id();
    if is_owner {
        notice_fork();
    }
    is_owner
}

/// True if the tables in this memory describe the calling process's descriptors. Checked before the tables are
/// changed for that process. A child of vfork(2) has its own descriptors. A child of clone(2) with CLONE_VM may share
/// its parent's.
pub fn has_these_tables() -> bool {
    is_owner() || owner::shares_table_with(owner::of_memory())
}

/// Handles that number `fd` is a new duplicate, perhaps of a ring's descriptor.
pub fn duplicated(fd: i32) {
    if has_these_tables() {
        adopt(fd);
    }
}

/// True if only engine threads share the calling thread's descriptor table.
pub fn shares_table_with_engine_only() -> bool {
    thread::are_there() && is_owner() && tables::is_engines_only()
}

/// Handles that the calling thread has got a descriptor table of its own.
pub fn unshared() {
    tables::unshared(owner::recorded() != 0 && !is_owner());
}

/// Prepares system call `number`, one of [`identity::NUMBERS`], which the calling thread is about to make. `argument`
/// is the call's first argument.
#[cold]
pub fn before_identity_call(number: i64, argument: usize) {
    if !identity::may_be_changed_by(number, argument) {
        return;
    }
    // A child of vfork(2) counts, too: its parent then only makes new pools of threads.
    if identity::is_kept()
        && owner::FORK_PAGE.word(Access::ByLoad).is_some_and(|word| word.load(Ordering::Relaxed) == 1)
    {
        return identity::count_change();
    }
    // A forked child that is noticed later would forget what is recorded here. A child of vfork(2) changes nothing of
    // its parent.
    if owner::recorded() != 0 && !is_owner() {
        return;
    }
    // The only thread of a process differs from no other.
    if !thread::is_alone() {
        identity::changing(|| {
            let mut claim = None;
            for ring in rings() {
                match ring.lock_unless_asleep() {
                    Ok(mut guard) => guard.keep_identity(None),
                    // The holder sleeps. It does the work before it does anything else.
                    Err(LockFailure::Busy) => {
                        let claim = claim.get_or_insert_with(Claim::on_caller);
                        ring.leave_holder_work(HolderWork::Identity(claim.another()));
                    }
                    Err(_) => {}
                }
            }
        });
    }
}

/// Functions that run in a forked child. They belong to the upper modules and to other crates.
static AT_FORK: [AtomicPtr<()>; 6] = [const { AtomicPtr::new(core::ptr::null_mut()) }; 6];

/// Makes `renew` run in a forked child before the engine does anything else there. False if the table is full. From
/// now on [`notice_fork`] notices forks.
///
/// `renew` is called while at most one thread of the child calls the engine: the thread that forked.
pub fn at_fork(renew: fn()) -> bool {
    notice_fork();
    let renew = renew as *mut ();
    // Release pairs with the Acquire in `after_fork`, in a child that another thread makes.
    let claim = |slot: &AtomicPtr<()>| {
        let claimed = slot.compare_exchange(core::ptr::null_mut(), renew, Ordering::Release, Ordering::Relaxed);
        claimed.map_or_else(|there| there == renew, |_| true)
    };
    AT_FORK.iter().any(claim)
}

/// Prepares for libc's fork(3). Called before it forks and takes malloc's locks. A signal handler that interrupted
/// fork(3) might call a ring for which a thread must be made, and wait for these locks forever. So the program's
/// handlers are deferred until the locks are free.
pub fn forks() {
    handlers::enter_critical();
    table::before_fork();
    changes::fork_begins();
}

/// Ends the deferral that [`forks`] began. Called after fork(3) has returned in the parent.
pub fn has_forked() {
    changes::fork_ends();
    handlers::leave_critical();
}

/// Records, after fork(3) has returned in the child, only the id that distinguishes the child from its own children
/// of vfork(2). Also closes files of the parent's requests. The rest waits, since most children execute another
/// program.
pub fn forked() {
    changes::reset_after_fork();
    descriptors::close_in_flight();
    standard::reset_after_fork(false);
    // By system call, since the program may have blocked SIGSEGV.
    if let Some(child) = owner::FORK_PAGE.child(Access::ByCall) {
        child.store(Sys::process_id(), Ordering::Relaxed);
    }
    handlers::leave_critical();
}

#[cold]
fn make_fork_word() {
    owner::record(Sys::process_id());
    descriptors::CLOSING.set(closing);
    let _ = owner::FORK_PAGE.map(1); // out of memory: the next call of the engine tries again
}

/// Puts a forked child in order. No handler may interrupt this function, since a handler's calls would wait for this
/// very thread.
#[cold]
fn after_fork(word: &AtomicU32) {
    thread::uninterrupted(|| put_in_order(word));
}

fn put_in_order(word: &AtomicU32) {
    // 2: another thread of the child was first, and is doing this.
    if word.compare_exchange(0, 2, Ordering::Acquire, Ordering::Relaxed).is_err() {
        let mut tries = 0;
        while word.load(Ordering::Acquire) != 1 {
            crate::os::nap(tries);
            tries += 1;
        }
        return;
    }
    let owner = owner::of_memory();
    // SAFETY: as below.
    unsafe { thread::reset_after_fork() };
    let shared = tables::record_sharing_with(owner::recorded());
    descriptors::set_forgetting(shared);
    standard::reset_after_fork(shared);
    // SAFETY: the word is zero only in a child that has not called the engine yet, where the forking thread is alone.
    unsafe {
        table::reset_after_fork();
        tables::reset_after_fork();
        changes::reset_after_fork();
        descriptors::limit::reset_after_fork();
        crate::wq::reset_after_fork();
        crate::wq::futex::reset_after_fork();
        crate::wq::waitid::reset_after_fork();
        crate::wq::creds::reset_after_fork();
        crate::identity::reset_after_fork();
        crate::ring::helper::reset_after_fork();
        crate::device::reset_after_fork();
        let rings = rings();
        rings.iter().for_each(|ring| ring.reset_after_fork());
        drop_registered_numbers();
        descriptors::close_in_flight();
        crate::stats::reset_after_fork();
        crate::event::reset_after_fork(); // after the rings have given up their recorders
        crate::ring::poller::after_fork(&rings);
        // Relaxed: the process has one thread.
        rings
            .into_iter()
            .filter(|ring| ring.kept_from_children.load(Ordering::Relaxed))
            .for_each(table::forget_ring);
    }
    descriptors::set_forgetting(false);
    for renew in AT_FORK.iter().map(|slot| slot.load(Ordering::Acquire)).filter(|renew| !renew.is_null()) {
        // SAFETY: only functions of this type are stored there.
        unsafe { core::mem::transmute::<*mut (), fn()>(renew)() };
    }
    owner::record(owner);
    word.store(1, Ordering::Release); // partner: the Acquire loads above
}

/// Closes the parent's registered numbers, since the thread of a forked child has no io_uring context.
///
/// # Safety
/// Only the forking thread may exist in the process.
unsafe fn drop_registered_numbers() {
    REGISTERED.set([-1; REGISTERED_RINGS]);
    HAS_CONTEXT.set(false);
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
