//! Engine threads follow a change of identity that a program thread has made.
//!
//! libc's setuid(3) and its like change the identity of every thread that libc knows. In a guest, the guest's own
//! libc makes these calls, and it knows no engine thread. So each such call is reported to [`follow`], which makes
//! the engine threads repeat it. A thread that did not repeat it would be a way back to privileges that the program
//! gave up. None of this happens unless [`begin`] was called.
//!
//! | state | who uses it |
//! |---|---|
//! | the list | the maker of a thread links it, and the thread unlinks itself when it ends, under `LIST`'s lock |
//! | `CALLS` | written under the lock, and read by the threads without it, even in their signal handlers |
//! | `Follower::made` | its thread, and the handlers that interrupt it |

use crate::lock::Lock;
use crate::os::{self, syscall, Os, Sys};
use crate::Errno;
use core::cell::Cell;
use core::ptr::{null_mut, NonNull};
use core::sync::atomic::{AtomicBool, AtomicI64, AtomicPtr, AtomicU32, AtomicUsize, Ordering};

/// Number of recent calls that are kept for threads that are about to begin. A thread starts within the time of one
/// or two such calls.
const KEPT: usize = 32;
/// Longest wait for a thread to make the call, in nanoseconds. A thread in an uninterruptible sleep may take longer.
/// It then makes the call before it does anything else.
const PATIENCE_NS: u64 = 10_000_000_000;
/// Interval after which a thread is asked again, in nanoseconds.
const AGAIN_NS: u64 = 100_000_000;

/// A call that changes the caller's identity.
struct Call {
    number: AtomicI64,
    args: [AtomicUsize; 3],
    /// The memory that the pointer arguments point to, in words.
    memory: AtomicPtr<u32>,
    words: AtomicUsize,
    /// True if all of the program's threads made the call, so members of credentials pools make it, too.
    of_process: AtomicBool,
}

static CALLS: [Call; KEPT] = [const {
    Call {
        number: AtomicI64::new(0),
        args: [const { AtomicUsize::new(0) }; 3],
        memory: AtomicPtr::new(null_mut()),
        words: AtomicUsize::new(0),
        of_process: AtomicBool::new(false),
    }
}; KEPT];
/// Number of calls reported so far. The Release in [`follow`] pairs with the Acquire in [`catch_up`].
static FOLLOWED: AtomicU32 = AtomicU32::new(0);
/// Futex word: changes when a thread has made a call.
static MADE: AtomicU32 = AtomicU32::new(0);
/// True if engine threads follow in this process.
static FOLLOWS: AtomicBool = AtomicBool::new(false);

/// The record of an engine thread. It exists before the thread does. So [`follow`] reaches every thread that could
/// keep privileges which the program gave up.
struct Follower {
    next: Cell<*mut Follower>,
    /// The thread's id; 0 until it has begun.
    thread: AtomicU32,
    is_member: bool,
    /// Number of calls that the thread has made. The Release in [`catch_up`] pairs with the Acquire in [`all_made`].
    made: AtomicU32,
}

/// The follower of a thread that is about to begin. It is in the list until this value is dropped.
pub(super) struct Birth(NonNull<Follower>);

// SAFETY: it passes from the maker to the new thread. The follower it points to is changed under the lock, or
// atomically.
unsafe impl Send for Birth {}

/// The first follower of the list of engine threads.
struct List(*mut Follower);

// SAFETY: the followers are reached under the lock, or by their own thread.
unsafe impl Send for List {}

static LIST: Lock<List> = Lock::new(List(null_mut()));

thread_local! {
    /// The calling thread's own follower, if it is an engine thread.
    static MINE: Cell<*const Follower> = const { Cell::new(core::ptr::null()) };
    /// The follower of the thread that the calling thread is just making.
    static MAKING: Cell<*const Follower> = const { Cell::new(core::ptr::null()) };
}

/// Makes engine threads follow, from now on. Called before the first engine thread is made.
pub fn begin() {
    FOLLOWS.store(true, Ordering::Relaxed); // no engine thread exists yet that could miss it
}

/// Makes the follower of a thread that the calling thread is about to make. The new thread inherits its maker's
/// identity of that moment, so it may miss calls reported from here on.
pub(super) fn prepare(is_member: bool) -> Option<Birth> {
    if !FOLLOWS.load(Ordering::Relaxed) {
        return None;
    }
    let (next, thread, made) = (Cell::new(null_mut()), AtomicU32::new(0), AtomicU32::new(0));
    let follower = Box::new(Follower { next, thread, is_member, made });
    let follower = NonNull::from(Box::leak(follower));
    if let Some(mut list) = LIST.lock() {
        // SAFETY: it was made above, and no other thread has it yet.
        let it = unsafe { follower.as_ref() };
        // The new thread must also make the calls that its maker, if that is an engine thread, has still to make.
        // `FOLLOWED` changes under the lock.
        // SAFETY: a thread's own follower is there until the thread has forgotten it.
        let makers = unsafe { MINE.get().as_ref() }.map(|maker| maker.made.load(Ordering::Relaxed));
        it.made.store(makers.unwrap_or_else(|| FOLLOWED.load(Ordering::Relaxed)), Ordering::Relaxed);
        it.next.set(list.0);
        list.0 = follower.as_ptr();
    }
    MAKING.set(follower.as_ptr());
    Some(Birth(follower))
}

/// Ends [`prepare`], whether the thread could be made or not.
pub(super) fn prepared() {
    MAKING.set(core::ptr::null());
}

/// Makes the calls that the calling thread, an engine thread that has just begun, has missed.
pub(super) fn join(birth: Option<Birth>) {
    let Some(birth) = birth else { return };
    // SAFETY: the follower lives until the birth is dropped.
    unsafe { birth.0.as_ref() }.thread.store(Sys::thread_id(), Ordering::Relaxed);
    MINE.set(birth.0.as_ptr());
    core::mem::forget(birth); // `leave` takes it back
    catch_up();
}

/// Removes the calling thread, an engine thread that is about to end, from the list.
pub(super) fn leave() {
    let mine = MINE.replace(core::ptr::null()).cast_mut();
    drop(NonNull::new(mine).map(Birth));
}

impl Drop for Birth {
    fn drop(&mut self) {
        let Some(mut list) = LIST.lock() else { return };
        let mine = self.0.as_ptr();
        // SAFETY: the follower lives until the end of this function.
        let next = unsafe { self.0.as_ref() }.next.get();
        if list.0 == mine {
            list.0 = next;
        } else if let Some(before) = list.iter().find(|other| other.next.get() == mine) {
            before.next.set(next);
        }
        drop(list);
        // SAFETY: `prepare` made it from a box, and no thread can reach it any more.
        drop(unsafe { Box::from_raw(mine) });
        MADE.fetch_add(1, Ordering::Relaxed);
        Sys::futex_wake(&MADE, i32::MAX as u32);
    }
}

impl List {
    fn iter(&self) -> impl Iterator<Item = &Follower> {
        let mut next = self.0;
        core::iter::from_fn(move || {
            // SAFETY: linked followers live, and the borrow of the list keeps the lock.
            let follower = unsafe { next.as_ref() }?;
            next = follower.next.get();
            Some(follower)
        })
    }
}

/// The calls that engine threads repeat, with their number of arguments: those that change a thread's privileges.
const CALLS_TO_MAKE: [(i64, usize); 10] = [
    (libc::SYS_setuid, 1),
    (libc::SYS_setgid, 1),
    (libc::SYS_setreuid, 2),
    (libc::SYS_setregid, 2),
    (libc::SYS_setresuid, 3),
    (libc::SYS_setresgid, 3),
    (libc::SYS_setfsuid, 1),
    (libc::SYS_setfsgid, 1),
    (libc::SYS_setgroups, 2),
    (libc::SYS_capset, 2),
];

/// Returns the arguments of call `number`, with 0 for unused registers. `None` if the call is not followed.
pub fn arguments(number: i64, args: [usize; 6]) -> Option<[usize; 3]> {
    let (_, count) = CALLS_TO_MAKE.iter().find(|(call, _)| *call == number)?;
    Some([0, 1, 2].map(|index| if index < *count { args[index] } else { 0 }))
}

/// Makes every engine thread repeat a call that the calling program thread has made with success, and waits for all.
/// `of_process`: all program threads have made the call, so members of credentials pools follow as well. False if a
/// thread has not done so in time. Such a thread makes the call before it does anything else.
pub fn follow(copy: Copy, of_process: bool) -> bool {
    let Some(list) = LIST.lock() else { return false };
    let followed = FOLLOWED.load(Ordering::Relaxed);
    let call = &CALLS[followed as usize % KEPT];
    // Not freed if a thread that sleeps forever, 32 calls late, may still read it.
    let is_after =
        |follower: &Follower| followed.wrapping_sub(follower.made.load(Ordering::Acquire)) >= KEPT as u32;
    let is_read = list.iter().any(is_after);
    let Copy { number, args, words } = copy;
    let memory = Box::leak(words.into_boxed_slice()); // its capacity is its length already
    let (words, memory) = (memory.len(), memory.as_mut_ptr());
    let (words, memory) = (call.words.swap(words, Ordering::Relaxed), call.memory.swap(memory, Ordering::Relaxed));
    if words != 0 && !is_read {
        // SAFETY: a slice of this many words, which was leaked here and is not read any more.
        drop(unsafe { Box::from_raw(core::ptr::slice_from_raw_parts_mut(memory, words)) });
    }
    call.number.store(number, Ordering::Relaxed);
    for (kept, arg) in call.args.iter().zip(args) {
        kept.store(arg, Ordering::Relaxed);
    }
    call.of_process.store(of_process, Ordering::Relaxed);
    FOLLOWED.store(followed.wrapping_add(1), Ordering::Release); // partner: the Acquire load in `catch_up`
    drop(list);
    all_made(followed.wrapping_add(1))
}

/// Words of struct __user_cap_header_struct, and of two of struct __user_cap_data_struct. Source: capset(2).
const CAP_HEADER: usize = 2;
const CAP_DATA: usize = 6;
/// The versions _LINUX_CAPABILITY_VERSION_1, with one data struct, and _2 and _3, with two. Each has its number of
/// words.
const CAP_VERSIONS: [(u32, usize); 3] = [(0x1998_0330, 3), (0x2007_1026, 6), (0x2008_0522, 6)];
/// NGROUPS_MAX in the kernel.
const GROUPS_MAX: usize = 65_536;

/// A call with a copy of the memory that its pointers point to, since the program may change that memory before the
/// call is made.
pub struct Copy {
    number: i64,
    args: [usize; 3],
    words: Vec<u32>,
}

impl Copy {
    /// Copies call `number` with these [`arguments`].
    ///
    /// # Errors
    /// `ENOMEM`; or another error, if the kernel would refuse the call. The kernel's error may be a different one,
    /// which it checks first.
    pub fn of(number: i64, args: [usize; 3]) -> Result<Copy, Errno> {
        let count = match number {
            libc::SYS_setgroups if args[0] > GROUPS_MAX => return Err(Errno::INVAL),
            libc::SYS_setgroups => args[0],
            libc::SYS_capset => CAP_HEADER + CAP_DATA,
            _ => 0,
        };
        let mut words = Vec::new();
        words.try_reserve_exact(count).map_err(|_| Errno::NOMEM)?;
        words.resize(count, 0);
        match number {
            libc::SYS_setgroups => os::user_read_slice(args[1] as u64, &mut words)?,
            libc::SYS_capset => {
                let (header, data) = words.split_at_mut(CAP_HEADER);
                os::user_read_slice(args[0] as u64, header)?;
                let known = CAP_VERSIONS.iter().find(|(version, _)| *version == header[0]).ok_or(Errno::INVAL)?;
                if ![0, Sys::thread_id()].contains(&header[1]) {
                    return Err(Errno::PERM);
                }
                os::user_read_slice(args[1] as u64, &mut data[..known.1])?;
                header.copy_from_slice(&[CAP_VERSIONS[2].0, 0]);
            }
            _ => {}
        }
        Ok(Copy { number, args, words })
    }

    /// Returns the arguments with which the calling thread makes the call.
    pub fn own(&self) -> [usize; 6] {
        let [first, second, third] = pointing(self.number, self.args, self.words.as_ptr() as usize);
        [first, second, third, 0, 0, 0]
    }
}

/// Returns the arguments of a call, with its pointers to the words at address `words`.
fn pointing(number: i64, args: [usize; 3], words: usize) -> [usize; 3] {
    match number {
        libc::SYS_setgroups => [args[0], words, 0],
        libc::SYS_capset => [words, words + CAP_HEADER * size_of::<u32>(), 0],
        _ => args,
    }
}

/// Waits until all threads have made `followed` calls, and nudges the threads that have not. A thread that ends
/// leaves the list.
fn all_made(followed: u32) -> bool {
    let (begun, making) = (Sys::clock_ns(libc::CLOCK_MONOTONIC), MAKING.get());
    let mut asked = None;
    loop {
        let seen = MADE.load(Ordering::Relaxed);
        let now = Sys::clock_ns(libc::CLOCK_MONOTONIC);
        let ask = asked.is_none_or(|then| now - then >= AGAIN_NS);
        let mut late = false;
        let Some(list) = LIST.lock() else { return false };
        // Acquire pairs with the Release in `catch_up`. Another call may have been reported since.
        let is_late = |it: &&Follower| (followed.wrapping_sub(it.made.load(Ordering::Acquire)) as i32) > 0;
        for follower in list.iter().filter(is_late) {
            match follower.thread.load(Ordering::Relaxed) {
                // A handler interrupted the calling thread while it makes that thread.
                0 if core::ptr::eq(follower, making) => continue,
                0 => {}
                thread if ask => os::nudge(thread),
                _ => {}
            }
            late = true;
        }
        drop(list);
        if !late || now - begun >= PATIENCE_NS {
            return !late;
        }
        if ask {
            asked = Some(now);
        }
        let _ = Sys::futex_wait(&MADE, seen, Some(AGAIN_NS));
    }
}

/// Makes the calls that the calling thread, if it is an engine thread, has not made yet. Async-signal-safe: the
/// handler of [`os::nudge`] also calls it.
pub fn catch_up() {
    // SAFETY: a thread's own follower lives until the thread has forgotten it.
    let Some(mine) = (unsafe { MINE.try_with(Cell::get).unwrap_or(core::ptr::null()).as_ref() }) else { return };
    loop {
        let (made, followed) = (mine.made.load(Ordering::Relaxed), FOLLOWED.load(Ordering::Acquire));
        if made == followed {
            break;
        }
        make(&CALLS[made as usize % KEPT], mine.is_member);
        mine.made.store(made.wrapping_add(1), Ordering::Release); // partner: the Acquire load in `all_made`
    }
    MADE.fetch_add(1, Ordering::Relaxed);
    Sys::futex_wake(&MADE, i32::MAX as u32);
}

/// Makes a call. An error does not matter: a thread that may not make the call already has fewer privileges.
/// capset(2) is the exception, since it fails as a whole if it asks for one right that the thread lacks. So it is
/// then repeated with the rights that the thread has.
fn make(call: &Call, is_member: bool) {
    if is_member && !call.of_process.load(Ordering::Relaxed) {
        return; // a member keeps the identity of a request's submission
    }
    let number = call.number.load(Ordering::Relaxed);
    let args = [0, 1, 2].map(|index| call.args[index].load(Ordering::Relaxed));
    let words = call.memory.load(Ordering::Relaxed);
    let args = pointing(number, args, words as usize);
    let answer = syscall(number, [args[0], args[1], args[2], 0, 0, 0]);
    if number == libc::SYS_capset && answer < 0 {
        // SAFETY: `follow` has put this many words there, and keeps them for the thread.
        let wanted = unsafe { core::slice::from_raw_parts(words, CAP_HEADER + CAP_DATA) };
        let mut both = [0_u32; CAP_HEADER + CAP_DATA];
        both[0] = wanted[0];
        let args = pointing(number, args, both.as_mut_ptr() as usize);
        syscall(libc::SYS_capget, [args[0], args[1], 0, 0, 0, 0]);
        both[CAP_HEADER..].iter_mut().zip(&wanted[CAP_HEADER..]).for_each(|(own, wanted)| *own &= wanted);
        syscall(number, [args[0], args[1], 0, 0, 0, 0]);
    }
}

/// Empties the list in a forked child, which has no engine thread.
///
/// # Safety
/// Only the forking thread may exist in the process.
pub(super) unsafe fn reset_after_fork() {
    // SAFETY: the contract; linked followers stay allocated, unreachable.
    unsafe { LIST.reset() };
    if let Some(mut list) = LIST.lock() {
        list.0 = null_mut();
    }
    let _ = MINE.try_with(|mine| mine.set(core::ptr::null()));
}
