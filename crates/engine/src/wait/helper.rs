//! The helper: one thread per process that drives the rings whose program makes no calls on them.
//!
//! The helper starts with the first call that leaves something pending, or that leaves files for a worker to open.
//!
//! - The helper takes a ring's driver role only after the program has made no call for a period. It does not wait for
//!   that if the program is known to read only the CQ.
//! - It loses the role to the next thread that waits in io_uring_enter(2). That thread takes the ring's poll set out
//!   of the helper's.
//! - It disturbs a program that waits in io_uring_enter(2) less and less. The period doubles each time the program
//!   has called by itself, and the check that finds this takes no lock.
//! - It does not tick when nothing is pending, or while a thread sleeps in io_uring_enter(2).
//! - On a ring whose completions wait for its owner (`IORING_SETUP_DEFER_TASKRUN`) the helper only signals.
//!
//! `driver::owner` holds the state shared by the helper and the ring's users, under the ring's lock. Users hand rings
//! over to the helper in `MAILBOX`, whose lock is taken after a ring's. Only the helper thread uses a `Driven`.

use crate::descriptors::ends;
use crate::device;
use crate::driver::owner::Duty;
use crate::forced::{point, Point};
use crate::mutation::{mutated, Mutation};
use crate::os::{syscall, EpollEvent, Os, Sys};
use crate::poll::turns::When;
use crate::poll::CHECK_NS;
use crate::resource::files::CLOSED_ELSEWHERE;
use crate::ring::broken::{contain, contain_any};
use crate::ring::helper::{self, MAILBOX, SET, WAKE, WOKEN};
use crate::ring::holder_work::HolderWork;
use crate::ring::table;
use crate::ring::{LockFailure, Ring, RingGuard};
use crate::sync::thread_pointer;
use crate::wq;
use crate::{thread, Errno};
use anyring_abi::IORING_SETUP_DEFER_TASKRUN;
use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

/// The time without a call of the program after which the helper takes over, in nanoseconds.
const PERIOD_NS: u64 = 1_000_000;
/// The longest period, in nanoseconds, for programs that have waited in io_uring_enter(2) for longer than that.
const LONGEST_PERIOD_NS: u64 = 64 * PERIOD_NS;
/// Number of restarts of the helper's loop after a panic outside of every ring.
const LIVES: usize = 8;
/// The time without work after which the helper ends, in nanoseconds.
const IDLE_NS: u64 = 2_000_000_000;
/// The time after which the helper ends once the process has no ring at all, in nanoseconds.
const LINGER_NS: u64 = 100_000_000;

const ENGINE_END: u64 = 1;

/// The helper's thread pointer; 0 if there is no helper. Relaxed: a thread compares it with its own pointer, which
/// only that thread stores.
static THREAD: AtomicUsize = AtomicUsize::new(0);

/// True if the calling thread is the helper. The helper may sleep only to wait for events.
fn is_this_thread() -> bool {
    THREAD.load(Ordering::Relaxed) == thread_pointer()
}

fn now_ns() -> u64 {
    Sys::clock_ns(libc::CLOCK_MONOTONIC)
}

/// Starts the helper's thread. False if it cannot be made. In one of the program's signal handlers only the maker
/// can make it. Without a maker a call from a handler returns false, and the thread's next call tries again. After
/// `TRIES` failures the handler makes the thread all the same.
pub fn start((): ()) -> bool {
    const TRIES: u32 = 3;
    static TRIED: AtomicU32 = AtomicU32::new(0);
    thread::spawn(run, core::ptr::null_mut())
        || TRIED.fetch_add(1, Ordering::Relaxed) >= TRIES && thread::spawn_needed(run, core::ptr::null_mut())
}

/// Forgets the helper in a forked child, where another thread may get its thread pointer.
pub fn reset_after_fork() {
    THREAD.store(0, Ordering::Relaxed);
}

extern "C" fn run(_: *mut libc::c_void) -> *mut libc::c_void {
    thread::name(c"anyring-helper");
    THREAD.store(thread_pointer(), Ordering::Relaxed);
    CLOSED_ELSEWHERE.set(|fd| is_this_thread() && wq::queue_close(fd));
    // Timers fire as the kernel's own do, not up to 50 us later.
    syscall(libc::SYS_prctl, [libc::PR_SET_TIMERSLACK as usize, 1, 0, 0, 0, 0]);
    let mut rings = DrivenRings(Vec::new());
    // A panic outside of every ring has damaged no ring: go on with all of them.
    let ended = (0..LIVES).find_map(|_| match mutated(Mutation::HelpersPanicEscapes) {
        true => Some(rings.run()),
        false => contain_any(|| rings.run()),
    });
    if let Err(error) = ended.unwrap_or(Err(Errno::IO)) {
        crate::log::line(&format!("the helper ended: {error}"));
        let _ = contain_any(|| rings.give_up());
    }
    // Another helper may have begun since this helper left the mailbox.
    let _ = THREAD.compare_exchange(thread_pointer(), 0, Ordering::Relaxed, Ordering::Relaxed);
    if !thread::is_needed() {
        // This takes a while. A new ring need not wait for it, since it gets another helper.
        device::destroy_spare();
    }
    core::ptr::null_mut()
}

/// The rings that the helper knows.
struct DrivenRings(Vec<Driven>);

/// A ring that the helper knows.
struct Driven {
    ring: &'static Ring,
    /// The program's visits to the ring at the last check.
    visits: u32,
    period_ns: u64,
    /// The time of the next check that nothing else causes, by CLOCK_MONOTONIC.
    due_ns: Option<u64>,
    /// True if the ring's poll set or engine end has an event.
    event: bool,
    /// True if nothing is pending, or a thread of the program drives the ring.
    idle: bool,
    /// True if the ring was closed under one number, with copies left. Its engine end is then registered, so that the
    /// helper notices when the last copy is closed.
    orphan: bool,
    /// True if a check of the ring has panicked.
    panicked: bool,
    /// True if another thread holds the ring. That thread will wake the helper.
    busy: bool,
    /// The ring's poll set, once it has been in the helper's.
    poll_set: i32,
    /// True if the ring has no poll set, or the poll set could not be added to the helper's.
    refused: bool,
}

impl DrivenRings {
    /// The helper's loop.
    fn run(&mut self) -> Result<(), Errno> {
        point(Point::HelperStart);
        let (set, wake) = (SET.load(Ordering::Relaxed), WAKE.load(Ordering::Relaxed));
        let mut events = [EpollEvent::default(); 32];
        loop {
            self.add_new_rings();
            point(Point::HelperTick);
            let now_ns = now_ns();
            self.0.retain_mut(|driven| driven.tick_contained(now_ns));
            let due_ns = self.0.iter().filter_map(|driven| driven.due_ns).min();
            let idle = self.0.iter().all(|driven| driven.idle);
            wq::recheck();
            let timeout_ns = match due_ns {
                None if idle => Some(if thread::is_needed() { IDLE_NS } else { LINGER_NS }),
                due_ns => due_ns.map(|due_ns| Sys::sleep_ns(due_ns.saturating_sub(now_ns), true)),
            };
            let timeout_ns = timeout_ns.into_iter().chain(wq::recheck_ns()).min();
            let count = match Sys::epoll_wait(set, &mut events, timeout_ns, None) {
                Ok(count) => count,
                Err(Errno::INTR) => 0,
                Err(error) => return Err(error),
            };
            if count == 0 && idle && self.leave() {
                return Ok(());
            }
            for event in &events[..count] {
                self.record(event.data, wake);
            }
        }
    }

    fn record(&mut self, data: u64, wake: i32) {
        if data == WOKEN {
            let mut value = 0u64;
            syscall(libc::SYS_read, [wake as usize, &mut value as *mut u64 as usize, 8, 0, 0, 0]);
            self.0.iter_mut().for_each(Driven::try_again);
        } else if let Some(driven) = self.0.iter_mut().find(|driven| driven.address() == data & !ENGINE_END) {
            driven.event = true;
        }
    }

    fn add_new_rings(&mut self) {
        if let Some(mut mailbox) = MAILBOX.lock() {
            // Without memory, the rings wait for the next round.
            if self.0.try_reserve(mailbox.waiting()).is_ok() {
                self.0.extend(mailbox.take().into_iter().map(Driven::new));
            }
        }
    }

    /// Ends the thread unless there is something to do.
    fn leave(&mut self) -> bool {
        self.0.retain_mut(|driven| !driven.can_leave());
        if !self.0.is_empty() {
            return false;
        }
        let Some(mut mailbox) = MAILBOX.lock() else { return false };
        let ends = mailbox.leave();
        if ends && !thread::is_needed() {
            helper::close();
        }
        ends
    }

    /// Gives all rings up when the thread ends early. The next program thread that leaves something pending starts a
    /// new helper.
    fn give_up(&mut self) {
        loop {
            for mut driven in self.0.drain(..) {
                let _held = driven.ring.lock_soon();
                driven.detach_unlocked();
                driven.ring.driver.handover.forget();
            }
            if self.leave() {
                return;
            }
            self.add_new_rings();
        }
    }
}

impl Driven {
    fn new(ring: &'static Ring) -> Driven {
        let visits = ring.driver.handover.visits();
        let (period_ns, due_ns) = (PERIOD_NS, None);
        Driven {
            ring,
            visits,
            period_ns,
            due_ns,
            event: false,
            idle: false,
            orphan: false,
            panicked: false,
            busy: false,
            poll_set: -1,
            refused: false,
        }
    }

    fn address(&self) -> u64 {
        core::ptr::from_ref(self.ring) as u64
    }

    /// Runs [`Driven::tick`]. A panic in it breaks the ring, which is checked once more after its requests have been
    /// ended.
    fn tick_contained(&mut self, now_ns: u64) -> bool {
        let ring = self.ring;
        let ticked = match mutated(Mutation::HelpersPanicEscapes) {
            true => Some(self.tick(now_ns)),
            false => contain(|| Some(ring), || self.tick(now_ns)),
        };
        if let Some(stays) = ticked {
            return stays;
        }
        if core::mem::replace(&mut self.panicked, true) {
            ring.driver.handover.forget();
            return false;
        }
        (self.due_ns, self.idle) = (Some(now_ns), false);
        true
    }

    /// Does what is due now for the ring. False if the helper is done with the ring.
    fn tick(&mut self, now_ns: u64) -> bool {
        if self.busy {
            return true;
        }
        let handover = &self.ring.driver.handover;
        let due = core::mem::take(&mut self.event) || self.due_ns.is_some_and(|due_ns| due_ns <= now_ns);
        match handover.duty() {
            Duty::Begin => {
                self.visits = handover.visits();
                self.due_ns = Some(now_ns + self.period_ns);
                self.idle = false;
                true
            }
            Duty::CheckWhenDue if due && !self.orphan && self.came() => {
                self.wait_longer(now_ns);
                true
            }
            Duty::CheckWhenDue | Duty::SleepOnPolls if !due => true,
            duty => self.check_ring(duty, now_ns),
        }
    }

    /// True if the program has asked for events since the last check.
    fn came(&mut self) -> bool {
        let visits = self.ring.driver.handover.visits();
        core::mem::replace(&mut self.visits, visits) != visits
    }

    fn wait_longer(&mut self, now_ns: u64) {
        self.period_ns = (2 * self.period_ns).min(LONGEST_PERIOD_NS);
        self.due_ns = Some(now_ns + self.period_ns);
    }

    /// Checks the ring under its lock. False if the helper is done with the ring.
    fn check_ring(&mut self, duty: Duty, now_ns: u64) -> bool {
        let mut guard = match self.ring.lock_soon() {
            Ok(guard) => guard,
            Err(LockFailure::Busy) => return self.retry_later(),
            Err(_) => return false,
        };
        point(Point::HelperRing);
        if guard.is_closed() || (guard.is_orphan() && self.last_copy_went(&mut guard)) {
            if guard.is_abandoned() && self.waits_for_device(&mut guard) {
                return true;
            }
            self.end(guard);
            return false;
        }
        let handover = &self.ring.driver.handover;
        // Under this hold of the lock, the helper checks for work before it sleeps. So it finds work that appears
        // from here on.
        handover.check_later();
        if let Ok(head) = guard.consumed() {
            handover.record_head(head);
        }
        self.due_ns = None;
        if !guard.has_pending() || handover.has_thread() {
            // Rests even if the helper drives, since events without a pending request are spurious. A thread asleep
            // in io_uring_enter(2) calls the helper when it leaves something pending.
            self.rest(&mut guard);
        } else if duty == Duty::CheckWhenDue && self.came() {
            self.wait_longer(now_ns); // the program called while the helper waited for the lock
        } else {
            if duty == Duty::CheckWhenDue {
                handover.record_away();
                self.period_ns = PERIOD_NS;
            }
            self.stand_in(&mut guard);
        }
        true
    }

    /// Leaves a ring that another thread holds, perhaps in a sleep. The helper serves the other rings until it is
    /// woken for this one.
    fn retry_later(&mut self) -> bool {
        self.busy = true;
        (self.event, self.due_ns) = (true, None);
        // Readiness of this poll set would keep the helper awake.
        self.detach_unlocked();
        self.ring.leave_holder_work(HolderWork::Helper);
        true
    }

    /// Takes the ring's descriptors out of the helper's poll set. They are open as long as the helper knows the ring.
    fn detach_unlocked(&mut self) {
        let set = SET.load(Ordering::Relaxed);
        if self.ring.driver.handover.set_attached(false) {
            let _ = Sys::epoll_ctl(set, libc::EPOLL_CTL_DEL, self.poll_set, 0, 0);
        }
        if core::mem::take(&mut self.orphan) {
            let engine_end = self.ring.engine_end.load(Ordering::Relaxed);
            let _ = Sys::epoll_ctl(set, libc::EPOLL_CTL_DEL, engine_end, 0, 0);
        }
    }

    /// Makes a busy ring due again, since the helper was woken, perhaps because the ring is free.
    fn try_again(&mut self) {
        if core::mem::take(&mut self.busy) {
            self.event = true;
            self.idle = false;
        }
    }

    /// True if an unused ring cannot end yet, since its transfers in the kernel's AIO have not ended.
    fn waits_for_device(&mut self, guard: &mut RingGuard) -> bool {
        guard.poll_events(When::Later);
        crate::issue::device::reap(guard);
        if guard.device.in_flight() == 0 {
            return false;
        }
        self.idle = false;
        self.sleep_on_polls(guard);
        true
    }

    fn rest(&mut self, guard: &mut RingGuard) {
        guard.detach();
        self.refused = false;
        self.ring.driver.handover.rest();
        self.idle = !self.orphan;
    }

    /// Serves what is pending, since no thread of the program does.
    fn stand_in(&mut self, guard: &mut RingGuard) {
        let handover = &self.ring.driver.handover;
        self.idle = false;
        if self.ring.has(IORING_SETUP_DEFER_TASKRUN) {
            return self.signal(guard);
        }
        if !handover.acquire_for_helper() {
            return self.rest(guard); // a thread drives after all, and calls the helper
        }
        let before = guard.cq_tail();
        guard.stand_in();
        let tail = guard.cq_tail();
        if tail != before {
            handover.record_posted(tail);
        }
        if !guard.has_pending() && !handover.only_peeks() {
            return self.rest(guard);
        }
        self.sleep_on_polls(guard);
        self.idle = !guard.has_pending() && !self.orphan;
    }

    /// Announces work to the owner of a deferred ring, once. Then the helper rests until the owner has called
    /// io_uring_enter(2).
    fn signal(&mut self, guard: &mut RingGuard) {
        if self.ring.driver.is_announced() {
            return self.rest(guard);
        }
        // The owner must make a postponed attempt, and its completion.
        if guard.poll_set.has_postponed() || guard.has_work_for_owner() {
            guard.announce_work();
            return self.rest(guard); // the owner calls the helper again after its io_uring_enter(2)
        }
        self.sleep_on_polls(guard);
    }

    /// Lets the helper sleep on the ring's poll set from now on.
    fn sleep_on_polls(&mut self, guard: &mut RingGuard) {
        if !self.refused {
            guard.attach();
        }
        self.refused = guard.awaits_events() && !self.ring.driver.handover.is_attached();
        self.poll_set = guard.poll_set.epoll().unwrap_or(-1);
        let next_ns = guard.timers.next_ns().filter(|_| !mutated(Mutation::HelperSleepsBeyondTimers));
        let recheck_ns = if self.refused { Some(CHECK_NS) } else { guard.poll_set.recheck_ns() };
        let next_ns = next_ns.into_iter().chain(recheck_ns).min();
        self.due_ns = next_ns.map(|next_ns| now_ns().saturating_add(next_ns));
        self.ring.driver.handover.sleep_on_polls(self.due_ns.unwrap_or(u64::MAX));
    }

    /// Registers the engine's end of a ring with other copies, the first time. True if the last copy is closed.
    fn last_copy_went(&mut self, guard: &mut RingGuard) -> bool {
        if !self.orphan {
            let (set, data) = (SET.load(Ordering::Relaxed), self.address() | ENGINE_END);
            self.orphan = Sys::epoll_ctl(set, libc::EPOLL_CTL_ADD, guard.ends.sender, 0, data).is_ok();
        }
        if ends::last_copy_gone(guard.ends.sender) || guard.is_left_by_child() {
            guard.mark_closed();
            // The last number may have been closed without the engine's notice. Relaxed: a worker with one of the
            // ring's jobs ends the ring.
            self.ring.fd.store(-1, Ordering::Relaxed);
        }
        guard.is_closed()
    }

    fn end(&mut self, mut guard: RingGuard) {
        if self.orphan {
            let set = SET.load(Ordering::Relaxed);
            let _ = Sys::epoll_ctl(set, libc::EPOLL_CTL_DEL, guard.ends.sender, 0, 0);
        }
        guard.detach();
        self.ring.driver.handover.forget();
        drop(guard);
        table::end_if_unused(self.ring);
    }

    /// Forgets a ring that needs no helper. False if the ring does need the helper.
    fn can_leave(&mut self) -> bool {
        let mut guard = match self.ring.lock_soon() {
            Ok(guard) => guard,
            Err(LockFailure::Busy) => return false, // checked again after another idle time
            Err(_) => return true,
        };
        let handover = &self.ring.driver.handover;
        let unused = handover.is_resting() || (handover.is_watching() && !guard.has_pending());
        if guard.is_closed() || guard.is_orphan() || !unused {
            self.idle = false;
            return false;
        }
        guard.detach();
        handover.forget();
        true
    }
}
