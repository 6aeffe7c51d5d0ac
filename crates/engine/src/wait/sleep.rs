//! One sleep of a thread that waits on a ring: on the ring's futex word, on its poll set, or, where a thread polls the ring, on
//! the eventfd that this one rings.

use super::enter_wait::Wish;
use crate::driver::{may_be_killed, IN_EPOLL, IN_FUTEX};
use crate::forced::{point, Point};
use crate::issue::unwatched;
use crate::mutation::{mutated, Mutation};
use crate::os::{self, syscall, EpollEvent, Os, Sys};
use crate::poll::turns::When;
use crate::poll::LOOK_NS;
use crate::ring::sleeps::{Awake, Kind, Sleep};
use crate::ring::{Ring, RingGuard};
use crate::shared::member;
use crate::thread::tables;
use crate::wq;
use crate::Errno;
use core::sync::atomic::{fence, Ordering};

/// Why a thread sleeps no more.
pub(super) struct Ended {
    pub why: Errno,
    /// See [`Awake::held_cqes`].
    pub held_cqes: Option<bool>,
}

impl From<Errno> for Ended {
    fn from(why: Errno) -> Ended {
        Ended { why, held_cqes: None }
    }
}

/// Events that end one sleep: those on a caller's stack.
const EVENTS: usize = 32;

/// A futex wait always has a timeout: the kernel restarts one without after a signal handler with SA_RESTART, where
/// io_uring_enter(2) returns EINTR.
const FOR_EVER_NS: u64 = 1 << 55;

/// IORING_ENTER_SQ_WAIT: waits until the thread that polls the ring has made room in its SQ, or a signal came. `None` when
/// the ring has ended. Source: `io_sqpoll_wait_sq` in io_uring/sqpoll.c.
pub fn wait_for_room(mut guard: RingGuard) -> Option<RingGuard> {
    let (ring, control, cookie) = (guard.ring(), guard.control, guard.cookie);
    // Nobody waits for this many CQEs: only `announce_room` and a signal end the sleep.
    const NEVER: u64 = u64::MAX;
    os::heed_handlers();
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
        drop(guard);
        let word = &control.header().waiters.sequence;
        let slept = if full { Sys::futex_sleep(word, sequence, Some(FOR_EVER_NS)) } else { Ok(()) };
        let again = lock_again(ring, cookie); // as in `sleep`
        if again.is_some() {
            control.header().room_waiters.fetch_sub(1, Ordering::Relaxed);
        }
        drop(awake);
        guard = again?;
        if slept == Err(Errno::INTR) {
            break;
        }
    }
    Some(guard)
}

/// The ring, unless it has ended meanwhile, and perhaps been made anew: a thread that a jump has taken out of the books did not
/// keep it.
pub(super) fn lock_again(ring: &'static Ring, cookie: u64) -> Option<RingGuard> {
    ring.lock().ok().filter(|guard| guard.cookie == cookie)
}

/// Sleeps once, without the ring's lock, and serves what the sleep brought. `Err` for a signal or the deadline.
pub(super) fn sleep(
    mut guard: RingGuard,
    wish: &Wish,
    target: u64,
    timeouts: u32,
    driving: bool,
) -> (Option<RingGuard>, Result<(), Ended>) {
    let (ring, polled) = (guard.ring(), guard.is_polled());
    if !polled && !ring.driver.handover.may_sleep(ring.has_arrived()) {
        return (Some(guard), Ok(()));
    }
    let until_ns = wish.minimum_ns.or(wish.deadline_ns);
    let left_ns = until_ns.map(|deadline_ns| deadline_ns.saturating_sub(wish.clock.now_ns()));
    if left_ns == Some(0) {
        return (Some(guard), Err(Errno::TIME.into()));
    }
    let mut by_epoll = driving && (guard.awaits_events() || wish.sigmask.is_some());
    let heeds_timers = driving && !polled && !mutated(Mutation::DriverSleepsBeyondTimers);
    let timer_ns = if heeds_timers { guard.timers.next_ns() } else { None };
    let timer_ns = timer_ns.map(|left_ns| Sys::sleep_ns(left_ns, by_epoll));
    let engine_end = guard.engine_end;
    // The poll set of a polled ring is its thread's.
    let made = by_epoll.then(|| if polled { guard.make_bell() } else { guard.poll_set.make_epoll(engine_end) });
    let watched = match made.transpose() {
        Ok(watched) => watched,
        Err(Errno::MFILE | Errno::NFILE) => None,
        Err(error) => return (Some(guard), Err(error.into())),
    };
    // Where there is no descriptor to sleep on, the thread looks for itself.
    let blind_ns = (by_epoll && watched.is_none()).then_some(LOOK_NS);
    by_epoll &= watched.is_some();
    let control = guard.control;
    let sequence = {
        let mut post = control.lock_post();
        let reached = post.cq_total() >= target;
        if reached || control.header().waiters.timeouts.load(Ordering::Relaxed) != timeouts {
            drop(post);
            return (Some(guard), Ok(()));
        }
        post.register_waiter(target, !by_epoll)
    };
    if driving {
        let kick = if polled { watched } else { guard.poll_set.kick() };
        ring.driver.kick.store(kick.unwrap_or(-1), Ordering::Relaxed);
        ring.driver.sleeping.store(if by_epoll { IN_EPOLL } else { IN_FUTEX }, Ordering::Relaxed);
    }
    ring.sleepers.fetch_add(1, Ordering::Relaxed);
    let (shared, unwatched_ns) = (guard.is_shared(), guard.poll_set.look_ns().filter(|_| driving));
    let kind = if by_epoll { Kind::Epoll } else { Kind::Futex };
    let awake = Awake::after(Sleep { ring, control, kind, driving, rings: guard.memory.view.rings() });
    point(Point::Sleep);
    let cookie = guard.cookie;
    drop(guard);
    let is_needed = !driving && !polled && awake.is_needed();
    let mut events = [EpollEvent::default(); EVENTS];
    // Another process's death is announced by nobody.
    // What a thread with another table posts may wake nobody.
    let looks = shared || tables::differ() || !driving && may_be_killed();
    let look_ns = looks.then_some(member::LOOK_NS);
    let ends = [left_ns, timer_ns, look_ns, blind_ns, unwatched_ns, wq::look_again_ns()];
    // Not by `Option`'s own order, in which none is the least.
    let first_ns = ends.into_iter().fold(u64::MAX, |first_ns, end_ns| first_ns.min(end_ns.unwrap_or(u64::MAX)));
    let timeout_ns = (first_ns != u64::MAX).then_some(first_ns);
    let slept = match watched {
        _ if is_needed => Ok(0),
        Some(bell) if polled => {
            let mut set = [libc::pollfd { fd: bell, events: libc::POLLIN, revents: 0 }];
            let rung = Sys::poll(&mut set, timeout_ns, wish.sigmask.as_ref());
            let mut count = 0u64;
            syscall(libc::SYS_read, [bell as usize, &raw mut count as usize, 8, 0, 0, 0]);
            rung.map(|_| 0)
        }
        Some(epoll) => Sys::epoll_wait(epoll, &mut events, timeout_ns, wish.sigmask.as_ref()),
        // The mask is to hold while it sleeps, and no longer.
        None if blind_ns.is_some() && wish.sigmask.is_some() => {
            Sys::poll(&mut [], timeout_ns, wish.sigmask.as_ref()).map(|_| 0)
        }
        None => {
            let word = &control.header().waiters.sequence;
            Sys::futex_sleep(word, sequence, Some(timeout_ns.unwrap_or(FOR_EVER_NS))).map(|_| 0)
        }
    };
    // Before the sleep ends in the books: until then the ring cannot end.
    let again = lock_again(ring, cookie);
    let held_cqes = awake.held_cqes();
    // A signal handler that jumped (but not out of here) has ended this sleep in the books already.
    drop(awake);
    let Some(mut guard) = again else { return (None, Err(Errno::BADF.into())) };
    wq::look_again();
    if shared && matches!(slept, Ok(0) | Err(Errno::TIMEDOUT)) {
        guard.look_for_the_dead();
    }
    if guard.poll_set.has_unwatched() && driving {
        unwatched::look(&mut guard);
    }
    match slept {
        Ok(count) => {
            guard.serve(&events[..count], When::Later);
            (Some(guard), Ok(()))
        }
        Err(Errno::INTR) => (Some(guard), Err(Ended { why: Errno::INTR, held_cqes })),
        Err(Errno::TIMEDOUT | Errno::AGAIN) => (Some(guard), Ok(())),
        Err(error) => (Some(guard), Err(error.into())),
    }
}
