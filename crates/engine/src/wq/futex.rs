//! Threads (watchers) that wait on futexes for FUTEX_WAIT and FUTEX_WAITV. They are needed because only a thread can
//! be in the kernel's queue of a futex.
//!
//! A [`FutexWaiter`] sleeps on words of its own before it is needed. To put a request into the queue of the program's
//! futex, the submitter moves the sleeping thread there (FUTEX_CMP_REQUEUE). After this one call the wait is queued
//! in its turn, as in the kernel. Then the submitter sets the thread's own word to 1. The kernel may restart the
//! thread's sleep, after SIGSTOP for example. Since its own word has changed, the thread then sleeps on the program's
//! word.
//!
//! | kind | sleeps by | is ended by |
//! |---|---|---|
//! | plain | futex_waitv(2) on its `control` word, then one word a slot | a wake of `control` |
//! | for 128 words | futex_waitv(2) without `control` | `os::interrupt` |
//! | with bits, or without futex_waitv(2) | FUTEX_WAIT_BITSET | `os::interrupt` |
//!
//! A watcher has one request, so that it knows exactly which word was woken. Beyond `ALONE_MAX` watchers requests
//! share them, up to 127 requests each. A shared watcher that is woken leaves all its queues for a moment. A wake in
//! that time is recognised only by a changed value. Requests for the same word get different watchers. Once no more
//! threads are available, such requests are woken together.
//!
//! Some systems do not report whether a thread was moved (gVisor). There a wait is queued a moment after its
//! submission.
//!
//! A wake of the word may reach a thread whose request has just been cancelled. The thread passes such a wake on.
//!
//! `slots` says which request waits in which slot, and is a small lock. It is taken under a ring's lock, and held
//! over calls that do not sleep. The watcher's thread takes it between two sleeps, and never holds it when it
//! delivers a result to a ring.

use crate::lock::Lock;
use crate::mutation::{mutated, Mutation};
use crate::op::futex::{Word, ANY, PRIVATE_U32, SYS_FUTEX_REQUEUE, SYS_FUTEX_WAIT, WORDS_MAX};
use crate::op::{Op, Verdict};
use crate::os::{can_wait_for_several, check, interrupt, interruptible, nap, syscall, version, Os, Sys};
use crate::thread::caught;
use crate::wq::{self, Job};
use crate::Errno;
use core::sync::atomic::{AtomicI32, AtomicU32, Ordering};
use std::sync::Arc;

/// Number of watchers that have one request each.
const ALONE_MAX: u32 = 128;
/// The most watchers. Beyond this number a wait fails with ENOMEM.
const THREADS_MAX: u32 = 512;
/// Number of watchers kept for the next request while the process has rings.
const IDLE_MAX: usize = 4;
/// Number of slots of a shared watcher.
const SHARED_SLOTS: usize = WORDS_MAX - 1;
/// How long a cancellation waits until the thread has left the futex, in nanoseconds.
const LEAVE_NS: u64 = 100_000_000;
/// Number of failed moves after which the engine tests whether moves are not counted ([`moves_unseen`]).
const UNSEEN_TRIES: u32 = 40;
/// How long a submission waits for a new thread to fall asleep, in nanoseconds.
const BEGIN_NS: u64 = 5_000_000_000;

/// `struct futex_waitv`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Entry {
    value: u64,
    address: u64,
    flags: u32,
    reserved: u32,
}

/// A word of the watcher's own, and the node number that follows a futex with FUTEX2_NUMA.
#[repr(C, align(8))]
struct Own {
    word: AtomicU32,
    node: AtomicU32,
}

impl Own {
    fn new() -> Own {
        Own { word: AtomicU32::new(0), node: AtomicU32::new(u32::MAX) } // FUTEX_NO_NODE
    }

    /// True if the slot has one of the program's words to sleep on. Relaxed: it changes under the lock of the slots.
    fn is_armed(&self) -> bool {
        self.word.load(Ordering::Relaxed) != 0
    }

    fn set_armed(&self, armed: bool) {
        self.word.store(armed.into(), Ordering::Relaxed);
    }
}

/// A job in a slot.
struct Occupant {
    job: Arc<Job>,
    word: Word,
    /// The word's index in the request's vector.
    index: u32,
    /// True if the request must leave the queue.
    leaves: bool,
}

/// The state guarded by a watcher's lock.
struct Slots {
    occupants: Vec<Option<Occupant>>,
    /// True if the thread must end when no request is left.
    ends: bool,
}

impl Slots {
    fn are_free(&self) -> bool {
        self.occupants.iter().all(Option::is_none)
    }
}

/// A thread that waits on futexes.
pub struct FutexWaiter {
    /// A futex word. It is changed and woken to make the thread check its slots.
    control: AtomicU32,
    /// Not 0 if an interruptible sleep is over.
    stop: AtomicU32,
    /// The thread's id, once it runs.
    thread: AtomicU32,
    /// Number of times that the thread has checked its slots; a futex word.
    turns: AtomicU32,
    /// The error that ended the thread; 0 for no error.
    failed: AtomicI32,
    /// The word on which each slot sleeps while it has none of the program's words. It holds 0, and 1 once the slot has
    /// a program word.
    own: Box<[Own]>,
    /// The `FUTEX2_*` flags of each slot. A sleeper can be moved only to a word with the same flags.
    kinds: Box<[u32]>,
    mask: u32,
    slots: Lock<Slots>,
}

/// The process's watchers.
struct Pool {
    idle: Vec<Arc<FutexWaiter>>,
    shared: Vec<Arc<FutexWaiter>>,
    threads: u32,
}

static POOL: Lock<Pool> = Lock::new(Pool { idle: Vec::new(), shared: Vec::new(), threads: 0 });

/// Queues a job's wait on the program's futexes.
///
/// # Errors
/// The result of the request: EAGAIN, EINVAL or EFAULT, or ENOMEM if no thread can be made.
pub fn arm(job: &Arc<Job>) -> Result<(), Errno> {
    let (words, mask) = {
        let op = job.op.lock().ok_or(Errno::INVAL)?;
        let Op::FutexWait(wait) = &*op else { return Err(Errno::INVAL) };
        wait.check()?;
        let mask = if mutated(Mutation::BitsDoNotMatter) { ANY } else { wait.mask };
        (wait.words().copied().collect::<Vec<_>>(), mask)
    };
    let (waiter, first) = claim_slots(job, &words, mask)?;
    job.waited_on_by(&waiter);
    let queued = words.iter().enumerate().try_for_each(|(index, word)| waiter.queue(first + index, word));
    // A value that changed before the wait was queued may also have been woken before.
    let Err(error) = queued.and_then(|()| words.iter().try_for_each(Word::check)) else { return Ok(()) };
    waiter.withdraw(job);
    match job.cancel() {
        true => Err(error),
        false => Ok(()), // the wait was woken before it could be cancelled
    }
}

/// Claims a watcher with slots for these words, and puts the job into the slots. Returns the watcher and the first
/// slot.
fn claim_slots(job: &Arc<Job>, words: &[Word], mask: u32) -> Result<(Arc<FutexWaiter>, usize), Errno> {
    let mut pool = POOL.lock().ok_or(Errno::NOMEM)?;
    let kind = words[0].flags;
    let plain = words.len() == 1 && mask == ANY && can_wait_for_several();
    let of_kind = |waiter: &Arc<FutexWaiter>| waiter.kinds[0] == kind;
    if let Some(place) = pool.idle.iter().position(|it| plain && of_kind(it)) {
        let waiter = pool.idle.swap_remove(place);
        waiter.occupy(job, 0, words);
        return Ok((waiter, 0));
    }
    let share = plain && pool.threads >= ALONE_MAX;
    if share {
        for waiter in pool.shared.iter().filter(|waiter| of_kind(waiter)) {
            if let Some(slot) = waiter.occupy_free(job, words, pool.threads < THREADS_MAX) {
                return Ok((waiter.clone(), slot));
            }
        }
    }
    if pool.threads >= THREADS_MAX {
        return Err(Errno::NOMEM);
    }
    let kinds = match share {
        true => vec![kind; SHARED_SLOTS],
        false => words.iter().map(|word| word.flags).collect(),
    };
    let waiter = Arc::new(FutexWaiter::new(kinds, mask));
    waiter.occupy(job, 0, words);
    let argument = Arc::into_raw(waiter.clone()).cast_mut().cast();
    if !crate::thread::spawn_needed(live, argument) {
        // SAFETY: no thread has taken the reference over.
        drop(unsafe { Arc::from_raw(argument.cast_const().cast::<FutexWaiter>()) });
        return Err(Errno::NOMEM);
    }
    pool.threads += 1;
    if share {
        pool.shared.push(waiter.clone());
    }
    Ok((waiter, 0))
}

extern "C" fn live(argument: *mut libc::c_void) -> *mut libc::c_void {
    // SAFETY: `take` has given this reference to the thread.
    let waiter = unsafe { Arc::from_raw(argument.cast_const().cast::<FutexWaiter>()) };
    crate::thread::name(c"anyring-futex");
    waiter.thread.store(Sys::thread_id(), Ordering::Release); // partner: the load in `wake`
    while caught(|| waiter.live()).is_none() {}
    core::ptr::null_mut()
}

impl FutexWaiter {
    fn new(kinds: Vec<u32>, mask: u32) -> FutexWaiter {
        let occupants = kinds.iter().map(|_| None).collect();
        FutexWaiter {
            control: AtomicU32::new(0),
            stop: AtomicU32::new(0),
            thread: AtomicU32::new(0),
            turns: AtomicU32::new(0),
            failed: AtomicI32::new(0),
            own: kinds.iter().map(|_| Own::new()).collect(),
            kinds: kinds.into(),
            mask,
            slots: Lock::new(Slots { occupants, ends: false }),
        }
    }

    /// True if the watcher sleeps by futex_waitv(2).
    fn by_vector(&self) -> bool {
        self.mask == ANY && can_wait_for_several()
    }

    /// True if the first entry of the watcher's vector is `control`.
    fn has_control(&self) -> bool {
        self.by_vector() && self.own.len() < WORDS_MAX
    }

    fn occupy(&self, job: &Arc<Job>, first: usize, words: &[Word]) {
        let Some(mut slots) = self.slots.lock() else { return };
        for (index, word) in words.iter().enumerate() {
            let occupant = Occupant { job: job.clone(), word: *word, index: index as u32, leaves: false };
            slots.occupants[first + index] = Some(occupant);
        }
    }

    /// Puts a job into a free slot, and returns that slot. `apart`: only if no other job of this watcher waits for
    /// the same word.
    fn occupy_free(&self, job: &Arc<Job>, words: &[Word], apart: bool) -> Option<usize> {
        let slot = {
            let slots = self.slots.lock()?;
            let mut others = slots.occupants.iter().flatten();
            if slots.ends || apart && others.any(|it| it.word.address == words[0].address) {
                return None;
            }
            slots.occupants.iter().position(Option::is_none)?
        };
        // Only the holder of the pool gives slots away.
        self.occupy(job, slot, words);
        Some(slot)
    }

    /// Moves the thread, which sleeps on the slot's own word or soon will, to the program's word.
    fn queue(&self, slot: usize, word: &Word) -> Result<(), Errno> {
        let own = &self.own[slot];
        let begun_ns = Sys::clock_ns(libc::CLOCK_MONOTONIC);
        let mut unseen_since = None;
        for tries in 0u32.. {
            {
                let slots = self.slots.lock().ok_or(Errno::NOMEM)?;
                // Relaxed: a thread that finds itself on another word checks its slots under this lock.
                let turn = self.turns.load(Ordering::Relaxed);
                let moved = match unseen_since {
                    None => is_asleep(own, word)? && move_to(own, 0, word)? != 0,
                    // The thread sleeps again, or will find its own word changed.
                    Some(before) => turn != before && move_to(own, 0, word).map(|_| true)?,
                };
                if tries >= UNSEEN_TRIES && unseen_since.is_none() && moves_unseen(own, word)? {
                    unseen_since = Some(turn);
                }
                if slots.occupants[slot].is_none() || moved {
                    if slots.occupants[slot].is_some() {
                        own.set_armed(true);
                        // If the thread's sleep was restarted just before the store, the thread is back on its own
                        // word.
                        let _ = move_to(own, 1, word);
                    }
                    return Ok(());
                }
            }
            match self.failed.load(Ordering::Relaxed) {
                0 => {}
                error => return Err(Errno::from_raw_os_error(error)),
            }
            if Sys::clock_ns(libc::CLOCK_MONOTONIC) - begun_ns > BEGIN_NS {
                return Err(Errno::NOMEM);
            }
            nap(tries);
        }
        Ok(())
    }

    /// Makes the thread check its slots now.
    fn wake(&self) {
        if self.has_control() {
            self.control.fetch_add(1, Ordering::Release); // partner: the load in `live`
            let operation = libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG;
            syscall(libc::SYS_futex, [self.control.as_ptr() as usize, operation as usize, 1, 0, 0, 0]);
        } else {
            self.stop.store(1, Ordering::Relaxed); // the signal is sent after this store
                                                   // Acquire: partner is the store in `live`. If it is 0, the thread
                                                   // will take the slots' lock after this call.
            match self.thread.load(Ordering::Acquire) {
                0 => {} // the thread has not slept yet
                thread => interrupt(thread),
            }
        }
    }

    /// Notifies the thread that a job's wait is over. Returns the value of `turns` before the notification. `None` if
    /// the thread knew already.
    pub fn release(&self, job: &Job) -> Option<u32> {
        let turn = {
            let mut slots = self.slots.lock()?;
            let mut found = false;
            for occupant in slots.occupants.iter_mut().flatten().filter(|it| core::ptr::eq(&*it.job, job)) {
                found = !core::mem::replace(&mut occupant.leaves, true) || found;
            }
            found.then(|| self.turns.load(Ordering::Relaxed))?
        };
        self.wake();
        Some(turn)
    }

    /// Takes a job's wait out of its queues, unless it has been woken. After `LEAVE_NS` it returns although the
    /// thread has not left the queues. A wake that then reaches the thread is passed on.
    pub fn withdraw(&self, job: &Job) {
        let Some(turn) = self.release(job) else { return };
        let until_ns = Sys::clock_ns(libc::CLOCK_MONOTONIC) + LEAVE_NS;
        // Acquire: partner is the change in `next_vector`.
        while self.turns.load(Ordering::Acquire) == turn {
            let now_ns = Sys::clock_ns(libc::CLOCK_MONOTONIC);
            if now_ns >= until_ns {
                return;
            }
            let _ = Sys::futex_wait(&self.turns, turn, Some(until_ns - now_ns));
        }
    }

    /// Runs the thread until it is no longer needed.
    fn live(self: &Arc<FutexWaiter>) {
        loop {
            let seen = self.control.load(Ordering::Acquire); // partner: the change in `wake`
            let Some(entries) = self.next_vector(seen) else { return };
            let slept = self.sleep(&entries);
            let finished = self.after(slept);
            for (job, verdict) in finished {
                wq::conclude(job, verdict);
            }
        }
    }

    /// Drops requests that must leave, between two sleeps. Returns the next sleep's vector. `None` if the thread must
    /// end.
    fn next_vector(self: &Arc<FutexWaiter>, seen: u32) -> Option<Vec<Entry>> {
        let mut gone = Vec::new();
        let mut slots = self.slots.lock().expect("a waiter does not interrupt itself");
        self.stop.store(0, Ordering::Relaxed);
        for (occupant, own) in slots.occupants.iter_mut().zip(&self.own) {
            if occupant.as_ref().is_some_and(|it| it.leaves) {
                gone.extend(occupant.take());
                own.set_armed(false);
            }
        }
        // Release: a thread that reads the new turn finds that the watcher has left the futexes. Partner: the load in
        // `withdraw`.
        self.turns.fetch_add(1, Ordering::Release);
        Sys::futex_wake(&self.turns, i32::MAX as u32);
        let free = slots.are_free();
        drop(slots);
        drop(gone);
        if free && !self.rest() {
            return None;
        }
        let slots = self.slots.lock().expect("a waiter does not interrupt itself");
        let control =
            Entry { value: seen.into(), address: address(&self.control), flags: PRIVATE_U32, reserved: 0 };
        let mut entries = Vec::with_capacity(self.own.len() + 1);
        entries.extend(self.has_control().then_some(control));
        for (slot, own) in self.own.iter().enumerate() {
            let of_program = slots.occupants[slot].as_ref().filter(|_| own.is_armed());
            entries.push(match of_program {
                Some(Occupant { word, .. }) => {
                    Entry { value: word.value.into(), address: word.address, flags: word.flags, reserved: 0 }
                }
                None => Entry { value: 0, address: address(&own.word), flags: self.kinds[slot], reserved: 0 },
            });
        }
        Some(entries)
    }

    /// Rests a watcher that has nothing to wait for. True if it stays for the next request.
    fn rest(self: &Arc<FutexWaiter>) -> bool {
        let mut pool = POOL.lock().expect("a waiter does not interrupt itself");
        let slots = self.slots.lock().expect("a waiter does not interrupt itself");
        if !slots.are_free() {
            return true; // the thread got a request just now
        }
        let known = pool.idle.iter().any(|it| Arc::ptr_eq(it, self));
        let wanted = !slots.ends && crate::thread::is_needed() && self.own.len() == 1 && self.has_control();
        if known && wanted {
            return true;
        }
        if wanted && pool.idle.len() < IDLE_MAX {
            pool.idle.push(self.clone());
            return true;
        }
        pool.idle.retain(|it| !Arc::ptr_eq(it, self));
        pool.shared.retain(|it| !Arc::ptr_eq(it, self));
        pool.threads -= 1;
        false
    }

    /// Sleeps until a word is woken, and returns its slot. `None` if `control` was woken.
    fn sleep(&self, entries: &[Entry]) -> Result<Option<usize>, Errno> {
        if self.by_vector() {
            let args = [entries.as_ptr() as usize, entries.len(), 0, 0, 0, 0];
            let place = check(interruptible(&self.stop, libc::SYS_futex_waitv, args))?;
            return Ok(place.checked_sub(self.has_control().into()));
        }
        let Entry { value, address, flags, .. } = entries[0];
        let word = Word { address, value: value as u32, flags };
        let (address, value, mask) = (address as usize, value as usize, self.mask as usize);
        let answer = if word.has_node() {
            let args = [address, value, mask, flags as usize, 0, libc::CLOCK_MONOTONIC as usize];
            interruptible(&self.stop, SYS_FUTEX_WAIT, args)
        } else {
            let operation = libc::FUTEX_WAIT_BITSET | word.private_flag();
            interruptible(&self.stop, libc::SYS_futex, [address, operation as usize, value, 0, 0, mask])
        };
        check(answer).map(|_| Some(0))
    }

    /// Returns the jobs that a sleep has ended, with their results.
    fn after(&self, slept: Result<Option<usize>, Errno>) -> Vec<(Arc<Job>, Verdict)> {
        let mut finished = Vec::new();
        let mut slots = self.slots.lock().expect("a waiter does not interrupt itself");
        match slept {
            Ok(None) | Err(Errno::INTR) => {}
            Ok(Some(slot)) if !self.own[slot].is_armed() => {} // a wake of `moves_unseen`
            Ok(Some(slot)) => {
                let slot = if version::answers_as_7_3() { slot } else { first_of_same(&slots, slot) };
                if let Some(Occupant { job, word, index, .. }) = slots.occupants[slot].take() {
                    let verdict = Verdict::Done(index as i32);
                    if !job.begin() {
                        pass_on(&word);
                    } else {
                        finished.push((job.clone(), verdict));
                    }
                    self.free(&mut slots, &job);
                    self.own[slot].set_armed(false);
                    self.wake_companions(&mut slots, &word, &mut finished);
                }
            }
            // A value has changed, or a word cannot be read any more.
            Err(Errno::AGAIN | Errno::FAULT) => self.find_changed(&mut slots, &mut finished),
            Err(error) => {
                self.failed.store(error.raw_os_error(), Ordering::Relaxed);
                slots.ends = true;
                for occupant in slots.occupants.iter_mut().filter_map(Option::take) {
                    if occupant.job.begin() {
                        finished.push((occupant.job, Verdict::error(error)));
                    }
                }
            }
        }
        finished
    }

    fn find_changed(&self, slots: &mut Slots, finished: &mut Vec<(Arc<Job>, Verdict)>) {
        for slot in 0..self.own.len() {
            let Some(occupant) = &slots.occupants[slot] else { continue };
            if !self.own[slot].is_armed() {
                continue;
            }
            let verdict = match occupant.word.check() {
                Ok(()) => continue,
                // The wait was queued while the word had its value: the thread that changed the value has woken it,
                // or will.
                Err(Errno::AGAIN) => Verdict::Done(occupant.index as i32),
                Err(error) => Verdict::error(error),
            };
            let job = occupant.job.clone();
            self.free(slots, &job);
            if job.begin() {
                finished.push((job, verdict));
            }
        }
    }

    /// Ends other requests for a word that was woken. Whether they were woken is unknown, and a superfluous wake is
    /// no error.
    fn wake_companions(&self, slots: &mut Slots, word: &Word, finished: &mut Vec<(Arc<Job>, Verdict)>) {
        for (occupant, own) in slots.occupants.iter_mut().zip(&self.own) {
            let armed = own.is_armed();
            if !occupant.as_ref().is_some_and(|it| armed && it.word.address == word.address) {
                continue;
            }
            own.set_armed(false);
            finished.extend(occupant.take().filter(|it| it.job.begin()).map(|it| (it.job, Verdict::Done(0))));
        }
    }

    /// Takes a job out of all its slots.
    fn free(&self, slots: &mut Slots, job: &Arc<Job>) {
        for (occupant, own) in slots.occupants.iter_mut().zip(&self.own) {
            if occupant.as_ref().is_some_and(|it| Arc::ptr_eq(&it.job, job)) {
                *occupant = None;
                own.set_armed(false);
            }
        }
    }
}

/// Returns the first slot of the same job with the woken word. Before Linux 7.2 a word listed twice is woken by its
/// first entry, but the sleep may report the last. From then on the request reports what the sleep does.
fn first_of_same(slots: &Slots, woken: usize) -> usize {
    let Some(occupant) = &slots.occupants[woken] else { return woken };
    let same = |it: &Occupant| Arc::ptr_eq(&it.job, &occupant.job) && it.word.address == occupant.word.address;
    slots.occupants.iter().position(|it| it.as_ref().is_some_and(same)).unwrap_or(woken)
}

fn address(word: &AtomicU32) -> u64 {
    word.as_ptr() as u64
}

/// Moves a sleeper from `own`, which holds `value`, to `word`. Returns the number moved, 0 or 1.
fn move_to(own: &Own, value: u32, word: &Word) -> Result<usize, Errno> {
    let (from, to) = (address(&own.word) as usize, word.address as usize);
    if word.has_node() {
        let from = Entry { value: value.into(), address: from as u64, flags: word.flags, reserved: 0 };
        let to = Entry { value: 0, address: to as u64, flags: word.flags, reserved: 0 };
        let both = [from, to];
        return match check(syscall(SYS_FUTEX_REQUEUE, [both.as_ptr() as usize, 0, 0, 1, 0, 0])) {
            Err(Errno::NOSYS | Errno::PERM) => Err(Errno::INVAL),
            answer => answer,
        };
    }
    let operation = libc::FUTEX_CMP_REQUEUE | word.private_flag();
    check(syscall(libc::SYS_futex, [from, operation as usize, 0, 1, to, value as usize]))
}

/// True if a thread sleeps on `own`. Before it sleeps, a thread checks that it is still queued (`futex_do_wait` in
/// kernel/futex/waitwake.c). If it is moved at that moment, it finds itself in neither queue and leaves. One of the
/// program's wakes is then lost. This function moves a sleeper to its own word, so to no other. After it the thread
/// is past that check.
fn is_asleep(own: &Own, kind: &Word) -> Result<bool, Errno> {
    let own_word = Word { address: address(&own.word), ..*kind };
    move_to(own, 0, &own_word).map(|moved| moved != 0)
}

/// True if FUTEX_CMP_REQUEUE moves a sleeper on this system but does not count it, as in gVisor. A wake of the target
/// word shows that. The thread then restarts its sleep.
fn moves_unseen(own: &Own, kind: &Word) -> Result<bool, Errno> {
    if kind.has_node() {
        return Ok(false); // another system call moves the sleeper, and the node is beside the word
    }
    let beside = Word { address: address(&own.node), ..*kind };
    let counted = move_to(own, 0, &beside)?;
    Ok(wake_one(&beside) == Ok(1) && counted == 0)
}

/// Passes on a wake that reached a thread whose request has ended.
fn pass_on(word: &Word) {
    let _ = wake_one(word);
}

/// Wakes one sleeper on `word`. Returns the number woken.
fn wake_one(word: &Word) -> Result<usize, Errno> {
    let operation = libc::FUTEX_WAKE | word.private_flag();
    check(syscall(libc::SYS_futex, [word.address as usize, operation as usize, 1, 0, 0, 0]))
}

/// Ends the watchers that are kept for the next request, since the process's last ring has ended.
pub fn rings_are_gone() {
    let idle = POOL.lock().map(|mut pool| core::mem::take(&mut pool.idle));
    for waiter in idle.unwrap_or_default() {
        if let Some(mut slots) = waiter.slots.lock() {
            slots.ends = true;
        }
        waiter.wake();
    }
}

/// Forgets, in a forked child, the parent's threads.
///
/// # Safety
/// Only the forking thread may exist in the process.
pub unsafe fn reset_after_fork() {
    // SAFETY: no other thread exists, and the value is replaced right away.
    unsafe { POOL.reset() };
    if let Some(mut pool) = POOL.lock() {
        core::mem::forget(core::mem::take(&mut pool.idle));
        core::mem::forget(core::mem::take(&mut pool.shared));
        pool.threads = 0;
    }
}
