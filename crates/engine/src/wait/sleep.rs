//! One sleep of a thread that waits on a ring. The thread sleeps on the ring's futex word or on its poll set. If a
//! polling thread serves the ring, the waiting thread sleeps on the eventfd that the polling thread signals.

use super::enter_wait::Wait;
use crate::driver::{may_be_killed, IN_EPOLL, IN_FUTEX};
use crate::forced::{point, Point};
use crate::issue::unwatched;
use crate::mutation::{mutated, Mutation};
use crate::os::{self, syscall, EpollEvent, Os, Sys};
use crate::poll::turns::When;
use crate::poll::CHECK_NS;
use crate::ring::sleeps::{Awake, Kind, Sleep};
use crate::ring::RingGuard;
use crate::shared::member;
use crate::thread::tables;
use crate::wq;
use crate::Errno;
use core::sync::atomic::{fence, AtomicU32, Ordering};

/// The reason why a thread no longer sleeps.
pub(super) struct Ended {
    pub why: Errno,
    /// True if the CQ was not empty when the first signal handler interrupted the sleep. `None` without such a handler.
    pub held_cqes: Option<bool>,
}

impl From<Errno> for Ended {
    fn from(why: Errno) -> Ended {
        Ended { why, held_cqes: None }
    }
}

/// The most events that one sleep takes, since they are on the caller's stack.
const EVENTS: usize = 32;

/// The timeout, in nanoseconds, of a futex wait without an end. Without a timeout, the kernel restarts the wait after
/// a signal handler with SA_RESTART. io_uring_enter(2) returns EINTR in that case.
const FOR_EVER_NS: u64 = 1 << 55;

/// Serves IORING_ENTER_SQ_WAIT: waits until the polling thread has made room in the SQ, or a signal has come. `None`
/// if the ring has ended. Source: `io_sqpoll_wait_sq` in io_uring/sqpoll.c.
pub fn wait_for_room(mut guard: RingGuard) -> Option<RingGuard> {
    let (ring, control, cookie) = (guard.ring(), guard.control, guard.cookie);
    // No wait is for this many CQEs, so only `announce_room` and a signal end the sleep.
    const NEVER: u64 = u64::MAX;
    os::arm_interruption();
    while guard.sq_is_full() && !guard.is_broken() {
        control.header().room_waiters.fetch_add(1, Ordering::Relaxed);
        let sequence = {
            let mut post = control.lock_post();
            post.register_waiter(NEVER, true)
        };
        ring.sleepers.fetch_add(1, Ordering::Relaxed);
        let awake = Awake::after(Sleep {
            ring,
            control,
            kind: Kind::Futex,
            driving: false,
            rings: guard.memory.view.rings(),
        });
        // Partner: the fence in `announce_room`.
        fence(Ordering::SeqCst);
        let full = guard.sq_is_full();
        guard.unlock();
        let word = &control.header().waiters.sequence;
        let slept = if full { Sys::futex_sleep(word, sequence, Some(FOR_EVER_NS)) } else { Ok(()) };
        let is_there = guard.lock_again(cookie); // as in `sleep`
        if is_there {
            control.header().room_waiters.fetch_sub(1, Ordering::Relaxed);
        }
        drop(awake);
        if !is_there {
            return None;
        }
        if slept == Err(Errno::INTR) {
            break;
        }
    }
    Some(guard)
}

/// The object that a thread sleeps on.
#[derive(Clone, Copy)]
enum On {
    /// The ring's futex word.
    Futex,
    /// The poll set.
    PollSet(i32),
    /// The eventfd of a polled ring. The polling thread, to which the poll set belongs, signals it.
    Eventfd(i32),
    /// The futex word, because no descriptor is left for a poll set. The thread then checks the ring from time to
    /// time.
    NoDescriptor,
}

impl On {
    /// Chooses the object that the calling thread sleeps on, and makes it if there is none.
    fn choose(guard: &mut RingGuard, wait: &Wait) -> Result<On, Errno> {
        if !wait.is_driving() || (!guard.awaits_events() && wait.options.sigmask.is_none()) {
            return Ok(On::Futex);
        }
        let ends = guard.ends;
        let made = match wait.polled {
            true => guard.make_poller_eventfd().map(On::Eventfd),
            false => guard.poll_set.make_epoll(ends).map(On::PollSet),
        };
        match made {
            Err(Errno::MFILE | Errno::NFILE) => Ok(On::NoDescriptor),
            made => made,
        }
    }

    /// Returns the kind of sleep, by what ends it: a descriptor, or the futex word.
    fn kind(self) -> Kind {
        match self {
            On::PollSet(_) | On::Eventfd(_) => Kind::Epoll,
            On::Futex | On::NoDescriptor => Kind::Futex,
        }
    }

    /// Sleeps until woken, but not for longer than `timeout_ns`. Returns the number of events taken.
    fn sleep(
        self,
        (word, sequence): (&AtomicU32, u32),
        timeout_ns: Option<u64>,
        sigmask: Option<&u64>,
        events: &mut [EpollEvent],
    ) -> Result<usize, Errno> {
        match self {
            On::PollSet(epoll) => Sys::epoll_wait(epoll, events, timeout_ns, sigmask),
            On::Eventfd(eventfd) => {
                let mut set = [libc::pollfd { fd: eventfd, events: libc::POLLIN, revents: 0 }];
                let signalled = Sys::poll(&mut set, timeout_ns, sigmask);
                let mut count = 0u64;
                syscall(libc::SYS_read, [eventfd as usize, &raw mut count as usize, 8, 0, 0, 0]);
                signalled.map(|_| 0)
            }
            // ppoll(2), so that the mask holds during the sleep, and no longer.
            On::NoDescriptor if sigmask.is_some() => Sys::poll(&mut [], timeout_ns, sigmask).map(|_| 0),
            On::Futex | On::NoDescriptor => {
                Sys::futex_sleep(word, sequence, Some(timeout_ns.unwrap_or(FOR_EVER_NS))).map(|()| 0)
            }
        }
    }
}

/// Stands for a sleep that does not end by itself.
const NEVER_NS: u64 = u64::MAX;

/// Returns the time after which the sleep ends by itself, or [`NEVER_NS`].
fn ends_after_ns(guard: &RingGuard, wait: &Wait, on: On, left_ns: Option<u64>) -> u64 {
    let (driving, mut ends_ns) = (wait.is_driving(), left_ns.unwrap_or(NEVER_NS));
    if driving && !wait.polled && !mutated(Mutation::DriverSleepsBeyondTimers) {
        if let Some(timer_ns) = guard.timers.next_ns() {
            ends_ns = ends_ns.min(Sys::sleep_ns(timer_ns, on.kind() == Kind::Epoll));
        }
    }
    // No wake announces the death of another process. A post by a thread with another descriptor table may wake
    // nobody either. So the sleep ends from time to time.
    if guard.is_shared() || tables::differ() || !driving && may_be_killed() {
        ends_ns = ends_ns.min(member::CHECK_NS);
    }
    if driving && guard.poll_set.has_unwatched() || matches!(on, On::NoDescriptor) {
        ends_ns = ends_ns.min(CHECK_NS);
    }
    ends_ns
}

/// Sleeps once, without the ring's lock, and serves the events of the sleep. Returns how the sleep ended: with an error
/// after a signal or at the deadline. `None` if the ring has ended, so that the guard holds nothing any more.
pub(super) fn sleep(guard: &mut RingGuard, wait: &Wait) -> Option<Result<(), Ended>> {
    let (ring, control, cookie, driving) = (guard.ring(), guard.control, guard.cookie, wait.is_driving());
    if !wait.polled && !ring.driver.handover.may_sleep(ring.has_arrived()) {
        return Some(Ok(()));
    }
    let left_ns = wait.options.left_ns();
    if left_ns == Some(0) {
        return Some(Err(Errno::TIME.into()));
    }
    let on = match On::choose(guard, wait) {
        Ok(on) => on,
        Err(error) => return Some(Err(error.into())),
    };
    let Some(sequence) = wait.register(guard, on.kind() == Kind::Futex) else { return Some(Ok(())) };
    if driving {
        publish_driver_asleep(guard, on);
    }
    let (shared, ends_after_ns) = (guard.is_shared(), ends_after_ns(guard, wait, on, left_ns));
    ring.sleepers.fetch_add(1, Ordering::Relaxed);
    let awake = Awake::after(Sleep { ring, control, kind: on.kind(), driving, rings: guard.memory.view.rings() });
    point(Point::Sleep);
    match wait.polled {
        true => guard.unlock(),
        false => guard.unlock_settled(), // by `collect`, before each sleep
    }
    let mut events = [EpollEvent::default(); EVENTS];
    let slept = if !driving && !wait.polled && awake.is_needed() {
        Ok(0)
    } else {
        let word = (&control.header().waiters.sequence, sequence);
        let ends_after_ns = ends_after_ns.min(wq::recheck_ns().unwrap_or(NEVER_NS));
        let timeout_ns = (ends_after_ns != NEVER_NS).then_some(ends_after_ns);
        on.sleep(word, timeout_ns, wait.options.sigmask.as_ref(), &mut events)
    };
    // Locked before the sleep is dropped, since the ring cannot end until then.
    let is_there = guard.lock_again(cookie);
    let held_cqes = awake.held_cqes();
    // A signal handler that jumped to another place may have ended this sleep in the table already.
    drop(awake);
    if !is_there {
        return None;
    }
    wq::recheck();
    if shared && matches!(slept, Ok(0) | Err(Errno::TIMEDOUT)) {
        guard.reap_dead_members();
    }
    if driving && guard.poll_set.has_unwatched() {
        unwatched::check(guard);
    }
    let slept = match slept {
        Ok(count) => {
            guard.handle_events(&events[..count], When::Later);
            Ok(())
        }
        Err(Errno::TIMEDOUT | Errno::AGAIN) => Ok(()),
        Err(Errno::INTR) => Err(Ended { why: Errno::INTR, held_cqes }),
        Err(error) => Err(error.into()),
    };
    Some(slept)
}

/// Publishes, for threads that post completions, how the driver sleeps and what wakes it.
fn publish_driver_asleep(guard: &RingGuard, on: On) {
    let (kick, sleeping) = match on {
        On::PollSet(_) => (guard.poll_set.kick(), IN_EPOLL),
        On::Eventfd(eventfd) => (Some(eventfd), IN_EPOLL),
        On::Futex | On::NoDescriptor => (None, IN_FUTEX),
    };
    let driver = &guard.ring().driver;
    driver.kick.store(kick.unwrap_or(-1), Ordering::Relaxed);
    driver.sleeping.store(sleeping, Ordering::Relaxed);
}
