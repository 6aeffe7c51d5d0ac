//! The driver: exactly one thread of a process sleeps on a ring's poll set and fires its timers.
//!
//! `driver::owner` says who that is. It says who *sleeps* on the poll set: looking at it and serving events happens under the
//! ring's lock whoever does it, so a hand-over in the middle loses nothing: events are hints that lead to another attempt.

use super::sleep::{lock_again, sleep, Ended};
use crate::driver::owner::Taken;
use crate::issue::chaos;
use crate::memory::layout::word;
use crate::os::{self, Clock};
use crate::ring::sleeps;
use crate::ring::table;
use crate::ring::wake::pass_role_on;
use crate::ring::RingGuard;
use crate::thread;
use crate::Errno;
use core::sync::atomic::Ordering;

/// What io_uring_enter(2) was asked to wait for.
#[derive(Clone, Copy)]
pub struct Wish {
    /// Completions that must be there.
    pub min_complete: u32,
    /// When to give up, by `clock`.
    pub deadline_ns: Option<u64>,
    /// The end of the minimum wait, by `clock`: until then only `min_complete` ends the wait, from then on any completion.
    pub minimum_ns: Option<u64>,
    /// The clock of both.
    pub clock: Clock,
    /// The signal mask while asleep.
    pub sigmask: Option<u64>,
}

/// Whether the CQ holds what is waited for, or a timeout completed since the wait began.
fn satisfied(guard: &RingGuard, target: u64, timeouts: u32) -> bool {
    let post = guard.control.lock_post();
    let reached = post.cq_total() >= target;
    reached || guard.control.header().waiters.timeouts.load(Ordering::Relaxed) != timeouts
}

/// The total of the CQ that ends a wait for `min_complete` CQEs, natively a signed number: of a negative one there is enough.
/// What is there already counts by the words in ring memory: of a
/// head beyond the tail the difference is as large as can be, and there is nothing to wait for.
fn wait_target(guard: &RingGuard, min_complete: u32) -> Result<u64, Errno> {
    let view = guard.memory.view;
    let wanted = min_complete.min(view.layout().cq_entries);
    let head = view.load(word::CQ_HEAD)?;
    let ready = view.load(word::CQ_TAIL)?.wrapping_sub(head);
    let post = guard.control.lock_post();
    Ok(if ready >= wanted || (min_complete as i32) < 0 {
        post.cq_total()
    } else {
        post.total_at(head.wrapping_add(wanted))
    })
}

/// Waits as io_uring_enter(2) with IORING_ENTER_GETEVENTS does. Source: `io_cqring_wait` in io_uring/io_uring.c.
pub fn wait(guard: RingGuard, wish: &Wish) -> Result<(), Errno> {
    wait_until(guard, wish, None)
}

/// Waits until the total of the CQ has come to `target`, or as [`wait`] does.
pub fn wait_until(mut guard: RingGuard, wish: &Wish, target: Option<u64>) -> Result<(), Errno> {
    let ring = guard.ring();
    let mut wish = *wish;
    ring.driver.handover.visit();
    if wish.min_complete != 0 {
        guard.dismiss_helper();
    }
    guard.clear_announcement();
    guard.collect();
    // A caller that waits for 0 completions never sleeps, whatever another process writes to the shared words.
    let only_asks = target.is_none() && wish.min_complete == 0;
    if !only_asks {
        os::heed_handlers();
    }
    let mut target = match target.map_or_else(|| wait_target(&guard, wish.min_complete), Ok) {
        Ok(target) => target,
        Err(error) => {
            guard.call_helper();
            return Err(error);
        }
    };
    let timeouts = guard.control.header().waiters.timeouts.load(Ordering::Relaxed);
    let polled = guard.is_polled();
    // Completions must not keep what is ready behind them from being seen for ever. Who sleeps looks anyhow.
    let look_due = || ring.driver.handover.visits().is_multiple_of(8) && satisfied(&guard, target, timeouts);
    if !polled && (wish.min_complete == 0 || look_due()) {
        guard.drive();
    }
    if !polled && wish.min_complete == 0 && guard.poll_set.has_postponed() {
        // The program asks what there is now: attempts that were put off are due.
        guard.verify();
        guard.collect();
    }
    let frame = 0u8;
    let mut taken = Taken::No;
    let mut said = false;
    let result = loop {
        if only_asks || satisfied(&guard, target, timeouts) {
            break Ok(());
        }
        // On a polled ring the role only says who sleeps with a signal mask.
        if taken == Taken::No && (!polled || wish.sigmask.is_some()) {
            let take = || ring.driver.handover.take(thread::id(), &raw const frame as usize);
            taken = take();
            if taken == Taken::No && ring.driver.bury() {
                taken = take();
            }
            guard.leave_helper();
        }
        let driving = taken != Taken::No;
        if driving && !polled && guard.poll_set.has_unverified() {
            if guard.poll_now() {
                guard.collect();
                continue;
            }
            guard.verify();
            guard.collect();
            if satisfied(&guard, target, timeouts) {
                break Ok(());
            }
        }
        if !polled && guard.chaos.is_some() && chaos::let_next_go(&mut guard) {
            guard.collect();
            continue;
        }
        if !core::mem::replace(&mut said, true) {
            guard.record(|it| it.cqring_wait(wish.min_complete));
        }
        if sleeps::were_left() {
            guard = give_up_what_was_left(guard)?;
        }
        let (again, slept) = sleep(guard, &wish, target, timeouts, driving);
        guard = match again {
            Some(guard) => guard,
            None => return Err(Errno::BADF),
        };
        if guard.is_broken() {
            break Err(guard.refuse_call());
        }
        guard.collect();
        taken = ring.driver.handover.still(taken, thread::id(), &raw const frame as usize);
        if let Err(Ended { why: error, held_cqes }) = slept {
            let minimum_over = error == Errno::TIME && wish.minimum_ns.take().is_some();
            if minimum_over && wish.deadline_ns.is_some() && guard.cq_is_empty() {
                target = guard.cq_total() + 1;
                continue;
            }
            // io_getevents(2) looks for itself.
            let of_aio = guard.is_context();
            let now = || !of_aio && !guard.cq_is_empty() || satisfied(&guard, target, timeouts);
            let done = held_cqes.filter(|_| !of_aio).unwrap_or_else(now);
            break if done { Ok(()) } else { Err(error) };
        }
    };
    guard.settle_readability();
    if taken == Taken::Mine {
        ring.driver.handover.give_back();
        pass_role_on(&guard);
    }
    guard.call_helper();
    let closed = guard.is_closed();
    drop(guard);
    if closed {
        // Another thread closed the ring meanwhile: this call was its last user.
        table::end_if_unused(ring);
    }
    result
}

/// The calling thread has left waits unseen, which end now.
#[cold]
fn give_up_what_was_left(guard: RingGuard) -> Result<RingGuard, Errno> {
    let (ring, cookie) = (guard.ring(), guard.cookie);
    drop(guard);
    sleeps::leaving_by_jump();
    lock_again(ring, cookie).ok_or(Errno::BADF)
}
