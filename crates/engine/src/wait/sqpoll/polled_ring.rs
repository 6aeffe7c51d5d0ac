//! One ring that a polling thread serves. Once the thread has taken a [`PolledRing`] in, only that thread uses it.

use crate::alloc;
use crate::forced::{point, Point};
use crate::issue::unwatched;
use crate::memory::layout::word;
use crate::memory::view::View;
use crate::mutation::{mutated, Mutation};
use crate::os::{syscall, EpollEvent, Os, Sys};
use crate::poll::turns::When;
use crate::ring::broken::{contain, contain_any};
use crate::ring::holder_work::HolderWork;
use crate::ring::poller::Attached;
use crate::ring::table;
use crate::ring::{LockFailure, Ring, RingGuard};
use crate::shared::control::Control;
use crate::wait::sqpoll::FAIR_SHARE;
use crate::Errno;
use anyring_abi::IORING_SQ_NEED_WAKEUP;
use core::sync::atomic::fence;
use core::sync::atomic::Ordering;

/// A ring that the thread serves, and its state when the thread last held its lock.
pub struct PolledRing {
    /// The ring.
    pub ring: &'static Ring,
    view: View,
    control: Control,
    /// The time for which the ring's program wants the thread to spin without work, in nanoseconds.
    pub idle_ns: u64,
    disabled: bool,
    /// True if ready requests are left.
    left: bool,
    /// The poll set; `None` while no request is armed.
    epoll: Option<i32>,
    /// True if entries of the poll set wait for verification, or reads wait for their first attempt.
    unverified: bool,
    /// The events last taken from the poll set. The first `unhandled` of them wait because the ring was busy. No later
    /// event repeats them.
    events: Box<[EpollEvent; 128]>,
    unhandled: usize,
    /// The time of the next timer, by CLOCK_MONOTONIC.
    due_ns: Option<u64>,
    /// True if another thread holds the ring. That thread will nudge this one.
    busy: bool,
    /// True if the program has to call io_uring_enter(2) to have its SQEs consumed. Ring memory says so as soon as
    /// the ring can be locked.
    asleep: bool,
}

impl PolledRing {
    /// Takes a ring in, with what was attached.
    pub fn new(Attached { ring, view, control, idle_ns }: Attached) -> PolledRing {
        PolledRing {
            ring,
            view,
            control,
            idle_ns,
            disabled: true,
            left: false,
            epoll: None,
            unverified: false,
            events: Box::new([EpollEvent::default(); 128]),
            unhandled: 0,
            due_ns: None,
            busy: false,
            asleep: false,
        }
    }

    /// Returns the number of SQEs that the program has published and that were not consumed.
    fn entries(&self) -> u32 {
        let head = self.control.header().sq_head.load(Ordering::Relaxed);
        let tail = self.view.load(word::SQ_TAIL).unwrap_or(head);
        tail.wrapping_sub(head).min(self.view.layout().sq_entries)
    }

    /// True if there is something to submit, or to issue.
    pub fn has_work(&self) -> bool {
        !self.busy && (self.left || !self.disabled && self.entries() != 0)
    }

    /// Returns the poll set, while requests are armed, and the time of the next timer. These end the thread's sleep
    /// for this ring.
    pub fn awaited(&self) -> (Option<i32>, Option<u64>) {
        if self.busy {
            return (None, None);
        }
        (self.epoll, self.due_ns)
    }

    /// Leaves a ring that another thread holds, perhaps in a sleep. The polling thread serves the other rings until
    /// it is nudged.
    fn retry_later(&mut self) {
        self.busy = true;
        self.ring.leave_holder_work(HolderWork::Poller);
    }

    /// True if a panic broke the ring, in any thread or process.
    pub fn is_broken(&self) -> bool {
        !self.busy && self.control.header().broken.load(Ordering::Relaxed) != 0
    }

    /// Serves the events taken from the poll set, and runs `work` on the ring. A panic breaks this ring only.
    /// Afterwards a thread that waits for the ring's lock gets a chance, however much work there is.
    pub fn with<R>(&mut self, work: impl FnOnce(&mut RingGuard) -> R) {
        let ring = self.ring;
        let mut contended = false;
        contain(
            || Some(ring),
            || {
                if self.busy {
                    return;
                }
                let mut guard = match ring.lock_soon() {
                    Ok(guard) => guard,
                    Err(LockFailure::Busy) => return self.retry_later(),
                    Err(_) => return,
                };
                let taken = core::mem::take(&mut self.unhandled);
                if taken != 0 {
                    guard.handle_events(&self.events[..taken], When::Later);
                }
                work(&mut guard);
                guard.finish_batch();
                self.record(&guard);
                contended = ring.is_contended();
            },
        );
        if contended {
            syscall(libc::SYS_sched_yield, [0; 6]);
        }
    }

    fn record(&mut self, guard: &RingGuard) {
        self.disabled = guard.disabled || !guard.has_sqes();
        self.left = !guard.queue.is_empty();
        self.epoll = if guard.awaits_events() { guard.poll_set.epoll() } else { None };
        self.unverified = guard.poll_set.has_unverified();
        let next_ns = guard.timers.next_ns().into_iter().chain(guard.poll_set.recheck_ns()).min();
        self.due_ns = next_ns.map(|next_ns| Sys::clock_ns(libc::CLOCK_MONOTONIC).saturating_add(next_ns));
    }

    /// Consumes SQEs, and issues ready requests. False if there were no SQEs and no ready requests.
    pub fn submit(&mut self, shared: bool) -> bool {
        if !self.has_work() {
            return false;
        }
        let most = if shared { FAIR_SHARE } else { u32::MAX };
        let mut refused = false;
        self.with(|guard| {
            point(Point::PollerRing);
            if !guard.disabled && !is_abandoned(guard) && guard.has_sqes() {
                guard.check_tracer();
                // Another error means that ring memory is unmapped, so there is nothing to submit.
                refused = guard.submit(most) == Err(Errno::AGAIN);
                announce_room(guard);
            }
        });
        if refused {
            alloc::wait();
        }
        true
    }

    /// Handles events. False if there were none.
    pub fn handle_events(&mut self) -> bool {
        let (Some(epoll), false) = (self.epoll, self.busy) else { return false };
        if self.unverified {
            self.with(|guard| {
                if !guard.poll_now() {
                    guard.verify();
                }
            });
            return true;
        }
        self.unhandled = Sys::epoll_wait(epoll, &mut self.events[..], Some(0), None).unwrap_or(0);
        let any = self.unhandled != 0;
        if any {
            self.with(|_| {});
        }
        any
    }

    /// Fires due timers. False if none was due.
    pub fn fire_timers(&mut self, now_ns: u64) -> bool {
        let due = !self.busy && self.due_ns.is_some_and(|due_ns| due_ns <= now_ns);
        if due {
            self.with(|guard| {
                if guard.poll_set.has_unwatched() {
                    unwatched::check(guard);
                }
                guard.fire_timers();
            });
        }
        due
    }

    /// Checks the whole ring. False if the polling thread has given the ring up, because it was closed or broken.
    pub fn recheck(&mut self) -> bool {
        let ring = self.ring;
        self.busy = false;
        let guard = match ring.lock_soon() {
            Ok(guard) => guard,
            Err(LockFailure::Busy) => {
                self.retry_later();
                return true;
            }
            Err(_) => return false,
        };
        let (broken, abandoned) = (guard.is_broken(), is_abandoned(&guard));
        drop(guard);
        if broken || abandoned {
            return contain_any(|| self.leave(broken)).is_some_and(|left| !left);
        }
        self.say_wakeup();
        self.with(|guard| {
            guard.poll_now();
            guard.fire_timers();
        });
        true
    }

    /// Gives the ring up: from here on its callers serve the ring themselves. False if the ring is busy.
    fn leave(&mut self, broken: bool) -> bool {
        let ring = self.ring;
        if broken {
            // Makes the program call io_uring_enter(2), which reports the error.
            self.need_wakeup(true);
        }
        let mut guard = match ring.lock_soon() {
            Ok(guard) => guard,
            Err(LockFailure::Busy) => {
                self.retry_later();
                return false;
            }
            Err(_) => return true,
        };
        if broken {
            let _ = guard.refuse_call(); // ends the requests, if the panic was in another process
        }
        ring.clear_poller();
        guard.call_helper(); // transfers in the kernel's AIO have not ended yet
        drop(guard);
        table::end_if_unused(ring);
        true
    }

    /// Sets whether the program must call io_uring_enter(2) to have its SQEs consumed.
    pub fn need_wakeup(&mut self, needed: bool) {
        self.asleep = needed && !mutated(Mutation::AsleepWithoutSayingSo);
        self.say_wakeup();
    }

    fn say_wakeup(&mut self) {
        let needed = self.asleep;
        let (set, clear) = if needed { (IORING_SQ_NEED_WAKEUP, 0) } else { (0, IORING_SQ_NEED_WAKEUP) };
        self.with(|guard| {
            let control = guard.control;
            let _post = control.lock_post(); // another process may be changing the overflow flag
            guard.memory.view.change_bits(word::SQ_FLAGS, set, clear)
        });
    }
}

/// True if the ring is closed and no thread is inside a call on it.
pub(crate) fn is_abandoned(guard: &RingGuard) -> bool {
    // Acquire: partner of the Release in `sleeps::Sleep::end`.
    guard.is_closed() && guard.ring().sleepers.load(Ordering::Acquire) == 0
}

/// Wakes threads that wait for room in the SQ: SQEs were consumed.
pub(crate) fn announce_room(guard: &mut RingGuard) {
    // Partner: the fence in `wait_for_room`. Either the waiter reads the new head, or this thread finds the waiter.
    fence(Ordering::SeqCst);
    let control = guard.control;
    let waits = control.header().room_waiters.load(Ordering::Relaxed) != 0;
    if waits && !mutated(Mutation::RoomIsNotAnnounced) {
        control.lock_post().waiters().bump();
        guard.wake();
    }
}
