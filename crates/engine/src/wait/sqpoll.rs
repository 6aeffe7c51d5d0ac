//! SQPOLL: a thread that consumes SQEs as soon as the program has published them, without an io_uring_enter(2).
//!
//! One `Poller` serves all rings that were attached to each other (`IORING_SETUP_ATTACH_WQ`). As in the kernel, only
//! its thread issues and completes requests of its rings. Workers and callers of io_uring_enter(2) and
//! io_uring_register(2) leave that work to the thread (`RingGuard::may_issue_here`) and nudge it (`Poller::nudge`).
//!
//! Without work the thread spins for the rings' idle time, then sets IORING_SQ_NEED_WAKEUP and sleeps. It wakes when
//! it is nudged, a descriptor of an armed request becomes ready, or a timer is due.
//!
//! | part | used by |
//! |---|---|
//! | `waiting` | a thread that attaches a ring, and the polling thread, under its own lock |
//! | `again`, `sleeping` | the polling thread and a thread that nudges it, see `Poller::nudge` |
//! | `PolledRing` | the polling thread |
//! | `Ring::poller`, `Ring::polled_by` | set before the ring is published; the thread clears them under the ring's lock |
//!
//! The thread keeps the memory of its rings mapped: a closed ring ends only after the thread has given that ring up.
//! The thread also gives up a ring that a panic broke (`ring::broken`).

mod polled_ring;

use crate::descriptors::{self};
use crate::forced::{point, Point};
use crate::lock::Lock;
use crate::os::calls;
use crate::os::{check, syscall, Os, Sys};
use crate::ring::broken::contain_any;
use crate::ring::poller::{Attached, Poller, Waiting, ENDED, STARTING};
use crate::ring::Ring;
use crate::ring::{helper, table};
use crate::wait::enter::Enter;
use crate::{identity, process, stats, thread, Errno};
use anyring_abi::{
    Params, IORING_ENTER_GETEVENTS, IORING_ENTER_SQ_WAIT, IORING_ENTER_SQ_WAKEUP, IORING_SETUP_ATTACH_WQ,
    IORING_SETUP_SQPOLL, IORING_SETUP_SQ_AFF,
};
use core::sync::atomic::{fence, AtomicBool, AtomicU32, Ordering};
use polled_ring::PolledRing;
use rustix::event::EventfdFlags;
use rustix::fd::AsRawFd;
use std::sync::Arc;

/// Number of SQEs that one ring may submit at a time while others share the thread
/// (`IORING_SQPOLL_CAP_ENTRIES_VALUE`).
const FAIR_SHARE: u32 = 8;
/// Rounds without work after which the clock is read: some microseconds.
const ROUNDS: u32 = 64;
/// Number of rounds without work after which the thread yields its core, for machines with one core: about 100 us.
const YIELD_ROUNDS: u32 = 32 * ROUNDS;
/// Number of restarts of the thread's loop after a panic outside of every ring.
const LIVES: usize = 8;
/// The most CPUs that sched_setaffinity(2) takes.
const CPUS: usize = 8192;

/// The polling and attaching that io_uring_setup(2) was asked for.
pub struct PollerOptions {
    /// The polling thread that the new ring shares.
    shared: Option<Arc<Poller>>,
    cpu: Option<u32>,
    idle_ns: u64,
}

/// Reads the polling and attaching parameters of io_uring_setup(2). Source: `io_sq_offload_create` in
/// io_uring/sqpoll.c.
pub fn options(params: &Params) -> Result<Option<PollerOptions>, Errno> {
    let polls = params.flags & IORING_SETUP_SQPOLL != 0;
    let mut shared = None;
    if params.flags & IORING_SETUP_ATTACH_WQ != 0 {
        // Without SQPOLL the ring shares io-wq, which exists once per process anyway.
        let fd = params.wq_fd as i32;
        let ring = process::verified_ring(fd).or_else(|| table::adopt(fd)).ok_or_else(|| no_ring(fd))?;
        if polls {
            let poller = ring.poller().ok_or(Errno::INVAL)?;
            // A polling thread of another process cannot be shared, nor one with another identity. A new thread is
            // made instead.
            shared = (!poller.inherited && !identity::may_differ()).then_some(poller);
        }
    }
    let affine = params.flags & IORING_SETUP_SQ_AFF != 0;
    if !polls {
        return if affine { Err(Errno::INVAL) } else { Ok(None) };
    }
    let idle_ms = if params.sq_thread_idle == 0 { 1000 } else { params.sq_thread_idle };
    let cpu = affine.then_some(params.sq_thread_cpu);
    Ok(Some(PollerOptions { shared, cpu, idle_ns: u64::from(idle_ms) * 1_000_000 }))
}

/// Returns the error for a number that names no ring to attach to.
fn no_ring(fd: i32) -> Errno {
    let open = crate::wait::enter::not_a_ring(fd) == Errno::OPNOTSUPP && !descriptors::is_own(fd);
    if open {
        Errno::INVAL
    } else {
        Errno::NXIO
    }
}

/// Starts polling for a new ring. Fails with `EINVAL` for a CPU that the thread may not run on, and with `EAGAIN` if
/// no thread can be made.
pub fn begin(ring: &'static Ring, options: PollerOptions) -> Result<(), Errno> {
    let mut guard = ring.lock()?;
    // The polling thread must not make the poll set itself, nor open what the helper needs. For a moment these take
    // the number that the program's next open expects. Also, another thread may hold the ring by then, and the polling
    // thread's other rings must not wait for that.
    let ends = guard.ends;
    guard.poll_set.make_epoll(ends)?;
    helper::open_ahead();
    let (view, control, idle_ns) = (guard.memory.view, guard.control, options.idle_ns);
    let attached = Attached { ring, view, control, idle_ns };
    drop(guard);
    let poller = match options.shared {
        Some(poller) => {
            poller.attach(attached)?;
            poller.nudge();
            poller
        }
        None => Poller::start(attached, options.cpu)?,
    };
    ring.set_poller(&poller);
    Ok(())
}

impl Poller {
    fn start(first: Attached, cpu: Option<u32>) -> Result<Arc<Poller>, Errno> {
        let wake = calls::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let poller = Arc::new(Poller {
            waiting: Lock::new(Waiting { rings: vec![first], ended: false }),
            wake: descriptors::to_top(wake)?,
            thread: AtomicU32::new(STARTING),
            again: AtomicBool::new(true),
            sleeping: AtomicBool::new(false),
            inherited: false,
        });
        let argument = Box::into_raw(Box::new(Start { poller: poller.clone(), cpu }));
        if !thread::spawn_like_caller(run, argument.cast()) {
            // SAFETY: no thread was made that could have taken the box.
            drop(unsafe { Box::from_raw(argument) });
            return Err(Errno::AGAIN);
        }
        // Acquire pairs with the thread's Release: its affinity is settled.
        while poller.thread.load(Ordering::Acquire) == STARTING {
            let _ = Sys::futex_wait(&poller.thread, STARTING, None);
        }
        // Before it has a ring, the thread ends only if the CPU is unavailable.
        if cpu.is_some() && poller.thread.load(Ordering::Relaxed) == ENDED {
            return Err(Errno::INVAL);
        }
        Ok(poller)
    }
}

/// The arguments of a new polling thread.
struct Start {
    poller: Arc<Poller>,
    cpu: Option<u32>,
}

extern "C" fn run(argument: *mut libc::c_void) -> *mut libc::c_void {
    // SAFETY: `start` made this box for this thread alone.
    let Start { poller, cpu } = *unsafe { Box::from_raw(argument.cast::<Start>()) };
    thread::name(c"anyring-sqpoll");
    // Without IORING_SETUP_SQ_AFF the thread may run on its maker's CPUs, as the kernel's may.
    let placed = cpu.is_none_or(|cpu| place(cpu).is_ok());
    let id = if placed { thread::id() } else { ENDED };
    poller.thread.store(id, Ordering::Release); // partner: the Acquire load in `start`
    Sys::futex_wake(&poller.thread, 1);
    if placed {
        let mut polled = Vec::new();
        // A panic outside of every ring has damaged no ring: go on with all of them.
        let ended = (0..LIVES).any(|_| contain_any(|| poller.poll(&mut polled)).is_some());
        poller.thread.store(ENDED, Ordering::Relaxed);
        if !ended {
            let _ = contain_any(|| poller.give_up(&mut polled));
        }
    }
    core::ptr::null_mut()
}

/// Keeps the calling thread on one CPU. Fails with `EINVAL` if that CPU is not online or not in the thread's cpuset.
fn place(cpu: u32) -> Result<(), Errno> {
    let mut set = [0u64; CPUS / 64];
    *set.get_mut(cpu as usize / 64).ok_or(Errno::INVAL)? = 1 << (cpu % 64);
    let args = [0, size_of_val(&set), set.as_ptr() as usize, 0, 0, 0];
    check(syscall(libc::SYS_sched_setaffinity, args)).map(|_| ())
}

impl Poller {
    /// Runs the thread's loop. Source: `io_sq_thread` in io_uring/sqpoll.c.
    fn poll(&self, polled: &mut Vec<PolledRing>) {
        let (mut rounds, mut busy_rounds) = (0u32, 0u32);
        // The kernel's thread, too, begins by going to sleep.
        let mut idle_since_ns = Some(0);
        loop {
            if self.again.load(Ordering::Relaxed) || polled.iter().any(PolledRing::is_broken) {
                point(Point::PollerRound);
                self.again.store(false, Ordering::Relaxed);
                // Partner: the fence in `wake`. From here on this thread reads what was stored before the nudge.
                fence(Ordering::SeqCst);
                self.add_new_rings(polled);
                polled.retain_mut(PolledRing::recheck);
                if polled.is_empty() && self.end() {
                    return;
                }
            }
            let shared = polled.len() > 1;
            let mut worked = false;
            // Every `ROUNDS`-th busy round also handles events and timers. So they are not delayed longer than that,
            // even if a program never stops submitting.
            let all = busy_rounds.is_multiple_of(ROUNDS);
            for polled in &mut *polled {
                let submitted = polled.submit(shared);
                worked |= submitted || polled.handle_events();
                if submitted && all {
                    polled.handle_events();
                    polled.fire_timers(Sys::clock_ns(libc::CLOCK_MONOTONIC));
                }
            }
            if worked {
                busy_rounds = busy_rounds.wrapping_add(1);
                (rounds, idle_since_ns) = (0, None);
                continue;
            }
            crate::sync::spin_loop();
            rounds = rounds.wrapping_add(1);
            if !rounds.is_multiple_of(ROUNDS) {
                continue;
            }
            let now_ns = Sys::clock_ns(libc::CLOCK_MONOTONIC);
            let fired = polled.iter_mut().fold(false, |fired, polled| fired | polled.fire_timers(now_ns));
            let since_ns = match idle_since_ns {
                Some(since_ns) if !fired => since_ns,
                _ => *idle_since_ns.insert(now_ns),
            };
            let idle_ns = polled.iter().map(|polled| polled.idle_ns).max().unwrap_or(0);
            if now_ns - since_ns <= idle_ns {
                if rounds.is_multiple_of(YIELD_ROUNDS) {
                    syscall(libc::SYS_sched_yield, [0; 6]);
                }
                continue;
            }
            self.sleep(polled);
            idle_since_ns = None;
        }
    }

    fn add_new_rings(&self, polled: &mut Vec<PolledRing>) {
        let Some(mut waiting) = self.waiting.lock() else { return };
        polled.extend(waiting.rings.drain(..).map(PolledRing::new));
    }

    /// Breaks all rings of the thread. It ends after panics outside of every ring, and no other thread serves them.
    fn give_up(&self, polled: &mut Vec<PolledRing>) {
        if let Some(mut waiting) = self.waiting.lock() {
            waiting.ended = true;
        }
        self.add_new_rings(polled);
        polled.iter().for_each(|polled| polled.ring.mark_panicked());
        polled.retain_mut(PolledRing::recheck);
    }

    /// Marks the thread as ended, unless a ring waits to be attached. True if the thread must end.
    fn end(&self) -> bool {
        let Some(mut waiting) = self.waiting.lock() else { return false };
        waiting.ended = waiting.rings.is_empty();
        waiting.ended
    }

    /// Sleeps until there is something to do.
    fn sleep(&self, polled: &mut [PolledRing]) {
        self.sleeping.store(true, Ordering::Relaxed);
        polled.iter_mut().for_each(|polled| polled.need_wakeup(true));
        let mut count = 0u64;
        let wake = self.wake.as_raw_fd();
        syscall(libc::SYS_read, [wake as usize, &raw mut count as usize, 8, 0, 0, 0]);
        // Partners: the program's fence between its store of the SQ's tail and its load of the flags, and the fence
        // in `wake`. Either the other side reads the flag and `sleeping`, or this thread reads the tail and `again`.
        fence(Ordering::SeqCst);
        if !self.again.load(Ordering::Relaxed)
            && !polled.iter().any(|polled| polled.has_work() || polled.is_broken())
        {
            let watched = polled.iter().filter_map(|polled| polled.awaited().0).chain([wake]);
            let mut set: Vec<libc::pollfd> =
                watched.map(|fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 }).collect();
            let due_ns = polled.iter().filter_map(|polled| polled.awaited().1).min();
            let left_ns = due_ns.map(|due_ns| due_ns.saturating_sub(Sys::clock_ns(libc::CLOCK_MONOTONIC)));
            let _ = Sys::poll(&mut set, left_ns.map(|left_ns| Sys::sleep_ns(left_ns, true)), None);
        }
        self.sleeping.store(false, Ordering::Relaxed);
        polled.iter_mut().for_each(|polled| polled.need_wakeup(false));
    }
}

/// Serves io_uring_enter(2) on a ring that a thread polls. Source: `io_uring_enter` in io_uring/io_uring.c.
#[cold]
pub fn enter(ring: &'static Ring, call: &Enter) -> Result<u32, Errno> {
    if ring.held_by_me() || ring.poller.held_by_me() {
        return enter_again(ring, call);
    }
    let poller = ring.poller();
    let mut guard = ring.lock()?;
    if guard.is_closed() {
        return Err(Errno::BADF);
    }
    if guard.is_broken() {
        return Err(guard.refuse_call());
    }
    if guard.disabled {
        return Err(Errno::BADFD);
    }
    stats::shard().enters.fetch_add(1, Ordering::Relaxed);
    guard.check_tracer();
    guard.record(|it| it.enter(call.fd as i32, call.to_submit, call.min_complete, call.flags));
    let poller = poller.filter(|poller| poller.lives(&guard)).ok_or(Errno::OWNERDEAD)?;
    if call.flags & IORING_ENTER_SQ_WAKEUP != 0 {
        poller.wake();
    }
    if call.flags & IORING_ENTER_SQ_WAIT != 0 {
        guard = match crate::wait::sleep::wait_for_room(guard) {
            Some(guard) => guard,
            None => return Ok(call.to_submit),
        };
    }
    let broken = guard.is_broken().then(|| guard.refuse_call());
    if broken.is_some() || call.flags & IORING_ENTER_GETEVENTS == 0 {
        let closed = guard.is_closed();
        drop(guard);
        if closed {
            // Another thread closed the ring while this thread waited, which was the ring's last user.
            table::end_if_unused(ring);
        }
        return broken.map_or(Ok(call.to_submit), Err);
    }
    match crate::wait::enter::wait_for_events(guard, call) {
        Err(error) if call.to_submit == 0 => Err(error),
        _ => Ok(call.to_submit),
    }
}

/// Serves [`enter`] in a signal handler that interrupted the engine on this very ring. Submitting takes no lock.
/// Waiting is impossible.
fn enter_again(ring: &'static Ring, call: &Enter) -> Result<u32, Errno> {
    if call.flags & IORING_ENTER_SQ_WAKEUP != 0 {
        ring.wake_owed.store(true, Ordering::Relaxed);
        if let Some(poller) = ring.poller() {
            poller.wake();
        }
    }
    match call.flags & IORING_ENTER_GETEVENTS {
        0 => Ok(call.to_submit),
        _ if call.to_submit != 0 => Ok(call.to_submit),
        _ => Err(Errno::INTR),
    }
}

#[cfg(test)]
mod tests;
