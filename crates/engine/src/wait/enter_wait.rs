//! The wait of io_uring_enter(2), and the driver's role: exactly one thread of a process sleeps on a ring's poll set
//! and fires its timers. That thread is the ring's driver.
//!
//! `driver::owner` records which thread has the role. The role is only about the sleep on the poll set. Any thread
//! that holds the ring's lock may poll the set without a sleep, and serve events. So handing the role over loses
//! nothing at any moment: an event is a hint that leads to another attempt.

use super::sleep::Ended;
use super::spin_first::spin_or_sleep;
use crate::driver::owner::Acquired;
use crate::issue::chaos;
use crate::memory::layout::word;
use crate::mutation::{mutated, Mutation};
use crate::os::{self, Clock};
use crate::ring::sleeps;
use crate::ring::table;
use crate::ring::wake::pass_role_on;
use crate::ring::RingGuard;
use crate::shared::control::{Control, PostLock};
use crate::thread;
use crate::Errno;
use core::sync::atomic::Ordering;

/// The completions and times that io_uring_enter(2) was asked to wait for.
#[derive(Clone, Copy)]
pub struct WaitOptions {
    /// Number of completions to wait for.
    pub min_complete: u32,
    /// The time at which the wait gives up, by `clock`. `None`: it does not give up.
    pub deadline_ns: Option<u64>,
    /// The end of the minimum wait, by `clock`. Until then only `min_complete` completions end the wait. Afterwards a
    /// single completion ends it.
    pub minimum_ns: Option<u64>,
    /// The clock of `deadline_ns` and `minimum_ns`.
    pub clock: Clock,
    /// The signal mask during the sleep.
    pub sigmask: Option<u64>,
}

impl WaitOptions {
    /// Asks for this many completions, without any limit.
    pub fn of(min_complete: u32, clock: Clock) -> WaitOptions {
        WaitOptions { min_complete, deadline_ns: None, minimum_ns: None, clock, sigmask: None }
    }

    /// Returns the longest time for the next sleep. `None` if there is no limit.
    pub fn left_ns(&self) -> Option<u64> {
        let until_ns = self.minimum_ns.or(self.deadline_ns);
        until_ns.map(|until_ns| until_ns.saturating_sub(self.clock.now_ns()))
    }
}

/// The most CQEs that a wait counts. No CQ holds as many, so a wait for them goes on until something else ends it.
const NEVER: u64 = 1 << 29;

/// Returns the CQ total that ends a wait for `min_complete` CQEs, and whether the wait is over already. CQEs that are
/// already there are counted from the words in ring memory. With a head beyond the tail their number is huge, and there
/// is nothing to wait for.
///
/// The kernel limits the number as a signed one. Then it compares without sign, and else takes the sign of the
/// difference. So a negative number is there at once, if it is more than the CQEs that are there. Source:
/// `io_cqring_wait` in io_uring/io_uring.c, `io_should_wake` in io_uring/io_uring.h.
fn wait_target(guard: &RingGuard, min_complete: u32) -> Result<(u64, bool), Errno> {
    let view = guard.memory.view;
    let wanted = (min_complete as i32).min(view.layout().cq_entries as i32) as u32;
    let head = view.load(word::CQ_HEAD)?;
    let ready = view.load(word::CQ_TAIL)?.wrapping_sub(head);
    let post = guard.control.lock_post();
    Ok(if ready >= wanted || ready.wrapping_sub(wanted) as i32 >= 0 {
        (post.cq_total(), true)
    } else if (wanted as i32) < 0 {
        (post.cq_total() + NEVER, false)
    } else {
        let target = post.total_at(head.wrapping_add(wanted));
        (target, post.cq_total() >= target)
    })
}

/// Waits as io_uring_enter(2) with IORING_ENTER_GETEVENTS does. Source: `io_cqring_wait` in io_uring/io_uring.c.
pub fn wait(guard: RingGuard, options: &WaitOptions) -> Result<(), Errno> {
    wait_until(guard, options, None)
}

/// Waits until the CQ total has reached `target`. Without a target, waits as [`wait`] does.
pub fn wait_until(mut guard: RingGuard, options: &WaitOptions, target: Option<u64>) -> Result<(), Errno> {
    let mut wait = Wait::begin(&mut guard, options, target).inspect_err(|_| guard.call_helper())?;
    let result = loop {
        if wait.only_asks || wait.is_over(&guard) {
            break Ok(());
        }
        wait.acquire_role(&mut guard);
        if wait.had_work(&mut guard) {
            continue;
        }
        wait.record(&mut guard);
        if sleeps::were_left() && !give_up_what_was_left(&mut guard) {
            return Err(Errno::BADF);
        }
        let slept = spin_or_sleep(&mut guard, &mut wait).ok_or(Errno::BADF)?;
        if guard.is_broken() {
            break Err(guard.refuse_call());
        }
        guard.collect();
        wait.check_role(&guard);
        if let Some(result) = slept.err().and_then(|ended| wait.end_early(&guard, &ended)) {
            break result;
        }
    };
    wait.end(guard);
    result
}

/// One thread's wait. The value does not move: its address identifies the stack frame that has the driver's role.
pub(super) struct Wait {
    pub options: WaitOptions,
    /// The CQ total that ends the wait.
    target: u64,
    /// Number of TIMEOUTs that had fired when the wait began. One more TIMEOUT ends the wait.
    timeouts: u32,
    /// True if the wait ends once the completions that are there are posted, whatever another process does to the
    /// shared words.
    only_asks: bool,
    /// The result of [`is_satisfied`](Wait::is_satisfied), for as long as nothing can have changed since the target was
    /// chosen.
    at_first: Option<bool>,
    /// True if a polling thread does all of the ring's work. The role then only says which thread sleeps with a
    /// signal mask.
    pub polled: bool,
    /// True if the thread has spun in vain, so that it sleeps next.
    pub has_spun: bool,
    acquired: Acquired,
    is_recorded: bool,
}

impl Wait {
    /// Begins a wait: posts the completions that are there, without a sleep.
    fn begin(guard: &mut RingGuard, options: &WaitOptions, target: Option<u64>) -> Result<Wait, Errno> {
        guard.ring().driver.handover.visit();
        if options.min_complete != 0 {
            guard.dismiss_helper();
        }
        guard.clear_announcement();
        guard.collect();
        let only_asks = target.is_none() && options.min_complete == 0;
        if !only_asks {
            os::arm_interruption();
        }
        let (target, at_first) = match target {
            Some(target) => (target, None),
            None => wait_target(guard, options.min_complete).map(|(target, is_over)| (target, Some(is_over)))?,
        };
        let timeouts = guard.control.header().waiters.timeouts.load(Ordering::Relaxed);
        let (polled, acquired) = (guard.is_polled(), Acquired::No);
        let mut wait = Wait {
            options: *options,
            target,
            timeouts,
            only_asks,
            at_first,
            polled,
            has_spun: false,
            acquired,
            is_recorded: false,
        };
        if !polled {
            wait.poll_once(guard);
        }
        Ok(wait)
    }

    /// Polls the poll set once, since a wait that ends without a sleep would otherwise never check it.
    fn poll_once(&mut self, guard: &mut RingGuard) {
        // A steady supply of completions must not hide later readiness forever.
        let is_due = || guard.ring().driver.handover.visits().is_multiple_of(8) && self.is_satisfied(guard);
        if self.options.min_complete == 0 || is_due() {
            self.at_first = None;
            guard.drive();
        }
        if self.options.min_complete == 0 && guard.poll_set.has_postponed() {
            // The program asks for what is ready now, so postponed attempts are due.
            guard.verify();
            guard.collect();
        }
    }

    /// True if there is nothing left to wait for.
    fn is_over(&mut self, guard: &RingGuard) -> bool {
        self.at_first.take().unwrap_or_else(|| self.is_satisfied(guard))
    }

    /// True if the CQ holds what the thread waits for, or a TIMEOUT has fired since the wait began.
    fn is_satisfied(&self, guard: &RingGuard) -> bool {
        self.is_reached(&guard.control.lock_post())
    }

    /// Answers [`is_satisfied`](Self::is_satisfied) for a caller that holds the post lock.
    pub fn is_reached(&self, post: &PostLock) -> bool {
        let timeouts = &post.control().header().waiters.timeouts;
        post.cq_total() >= self.target || timeouts.load(Ordering::Relaxed) != self.timeouts
    }

    /// True if [`is_reached`](Self::is_reached) is likely, for a thread without the post lock.
    #[inline]
    pub fn may_be_reached(&self, control: &Control) -> bool {
        let is_past = control.posted().wrapping_sub(self.target as u32) as i32 >= 0;
        is_past || control.header().waiters.timeouts.load(Ordering::Relaxed) != self.timeouts
    }

    /// Registers the thread as a waiter and returns the value of the futex word. `None` if the thread need not wait.
    #[inline]
    pub fn register(&self, guard: &RingGuard, in_futex: bool) -> Option<u32> {
        let mut post = guard.control.lock_post();
        if self.is_reached(&post) {
            return None;
        }
        if self.has_spun && mutated(Mutation::SpinnerSleepsUnannounced) {
            return Some(post.control().header().waiters.sequence.load(Ordering::Relaxed));
        }
        Some(post.register_waiter(self.target, in_futex))
    }

    /// True if the thread drives the ring: it sleeps on the poll set and until the next deadline.
    pub fn is_driving(&self) -> bool {
        self.acquired != Acquired::No
    }

    /// Returns an address in the frame that waits.
    fn frame(&self) -> usize {
        core::ptr::from_ref(self) as usize
    }

    /// Acquires the driver role, if no other thread has it.
    fn acquire_role(&mut self, guard: &mut RingGuard) {
        if self.is_driving() || (self.polled && self.options.sigmask.is_none()) {
            return;
        }
        let driver = &guard.ring().driver;
        let acquire = || driver.handover.acquire(thread::id(), self.frame());
        let mut acquired = acquire();
        if acquired == Acquired::No && driver.bury() {
            acquired = acquire();
        }
        self.acquired = acquired;
        guard.leave_helper();
    }

    /// Checks after a sleep whether the thread still has the role. One of the program's handlers may have interrupted
    /// the sleep and given the role up.
    fn check_role(&mut self, guard: &RingGuard) {
        self.acquired = guard.ring().driver.handover.still(self.acquired, thread::id(), self.frame());
    }

    /// Does the work left before a sleep. True if there was such work, which may end the wait.
    fn had_work(&self, guard: &mut RingGuard) -> bool {
        if self.polled {
            return false;
        }
        if self.is_driving() && guard.poll_set.has_unverified() {
            let has_handled = guard.poll_now();
            if !has_handled {
                guard.verify();
            }
            guard.collect();
            if has_handled || self.is_satisfied(guard) {
                return true;
            }
        }
        if guard.chaos.is_some() && chaos::let_next_go(guard) {
            guard.collect();
            return true;
        }
        false
    }

    /// Records once, for a tracer, that the call waits.
    fn record(&mut self, guard: &mut RingGuard) {
        if !core::mem::replace(&mut self.is_recorded, true) {
            guard.record(|it| it.cqring_wait(self.options.min_complete));
        }
    }

    /// Returns the result of the wait after a signal or a deadline ended a sleep. `None` if the wait goes on.
    fn end_early(&mut self, guard: &RingGuard, ended: &Ended) -> Option<Result<(), Errno>> {
        let is_minimum_over = ended.why == Errno::TIME && self.options.minimum_ns.take().is_some();
        if is_minimum_over && self.options.deadline_ns.is_some() && guard.cq_is_empty() {
            self.target = guard.cq_total() + 1;
            return None;
        }
        // io_getevents(2) checks for its own events.
        let of_aio = guard.is_context();
        let now = || !of_aio && !guard.cq_is_empty() || self.is_satisfied(guard);
        let done = ended.held_cqes.filter(|_| !of_aio).unwrap_or_else(now);
        Some(if done { Ok(()) } else { Err(ended.why) })
    }

    /// Gives the role back, and releases the ring.
    fn end(self, mut guard: RingGuard) {
        let ring = guard.ring();
        guard.update_readability();
        if self.acquired == Acquired::Mine {
            ring.driver.handover.give_back();
            pass_role_on(&guard);
        }
        guard.call_helper();
        let closed = guard.is_closed();
        guard.leave(); // `collect` has settled it
        if closed {
            // Another thread closed the ring during this call, which was the ring's last user.
            table::end_if_unused(ring);
        }
    }
}

/// Ends the waits that the calling thread has left by a jump out of a signal handler. False if the ring has ended.
#[cold]
fn give_up_what_was_left(guard: &mut RingGuard) -> bool {
    let cookie = guard.cookie;
    guard.unlock();
    sleeps::leaving_by_jump();
    let is_there = guard.lock_again(cookie);
    if is_there {
        guard.finish_batch(); // the sleep that follows expects that
    }
    is_there
}
