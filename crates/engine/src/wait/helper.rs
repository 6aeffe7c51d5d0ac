//! The helper: one thread a process that drives rings whose program stays away.
//!
//! The first call that leaves something pending, or files to be opened by a worker, starts it. It takes a ring's driver
//! role only after the program has stayed away for a period, unless the program is known to look at the CQ only; it loses
//! the role to the next thread that waits in enter, which takes the ring's poll set out of the helper's. A program that
//! waits in enter meets it less and less: the period doubles each time it has come by itself, and a look that finds it so
//! takes no lock. With nothing pending, or a thread asleep in enter, the helper does not tick. On a ring whose completions
//! wait for its owner (`IORING_SETUP_DEFER_TASKRUN`) it only signals.
//!
//! What both sides know of each other is in `driver::owner`, under the ring's lock. `MAILBOX` is where rings are handed
//! over; its lock comes after a ring's. A `Driven` belongs to the helper thread alone.

use crate::device;
use crate::driver::owner::Duty;
use crate::forced::{point, Point};
use crate::mutation::{mutated, Mutation};
use crate::os::{syscall, EpollEvent, Os, Sys};
use crate::poll::turns::When;
use crate::poll::LOOK_NS;
use crate::resource::files::CLOSED_ELSEWHERE;
use crate::ring::broken::{contain, contain_any};
use crate::ring::helper::{self, MAILBOX, SET, WAKE, WOKEN};
use crate::ring::notes::Note;
use crate::ring::table;
use crate::ring::{LockFailure, Ring, RingGuard};
use crate::sync::thread_pointer;
use crate::wq;
use crate::{descriptors, thread, Errno};
use anyring_abi::IORING_SETUP_DEFER_TASKRUN;
use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

/// How long a program may stay away before the helper takes over, in nanoseconds.
const PERIOD_NS: u64 = 1_000_000;
/// The longest period, for programs that have waited in enter for longer than that.
const LONGEST_PERIOD_NS: u64 = 64 * PERIOD_NS;
/// How often it starts anew after a panic outside of every ring.
const LIVES: usize = 8;
/// The helper ends after this long with nothing to do, in nanoseconds.
const IDLE_NS: u64 = 2_000_000_000;
/// The same once the process has no ring at all.
const LINGER_NS: u64 = 100_000_000;

const ENGINE_END: u64 = 1;

/// The helper's thread pointer; 0 when there is none. Relaxed: a thread finds what it has stored itself, or no pointer of its own.
static THREAD: AtomicUsize = AtomicUsize::new(0);

/// Whether the calling thread is the helper, which must not sleep but for events.
fn is_this_thread() -> bool {
    THREAD.load(Ordering::Relaxed) == thread_pointer()
}

fn now_ns() -> u64 {
    Sys::clock_ns(libc::CLOCK_MONOTONIC)
}

/// Starts the thread. False if there cannot be one, or not in the handler of the program's that this is in: its thread's next
/// call tries again. A program that makes calls in handlers only has one after some tries.
pub fn start((): ()) -> bool {
    const TRIES: u32 = 3;
    static TRIED: AtomicU32 = AtomicU32::new(0);
    thread::spawn(run, core::ptr::null_mut())
        || TRIED.fetch_add(1, Ordering::Relaxed) >= TRIES && thread::spawn_needed(run, core::ptr::null_mut())
}

/// In a forked child there is no helper: a thread of the child's may get its pointer.
pub fn reset_after_fork() {
    THREAD.store(0, Ordering::Relaxed);
}

extern "C" fn run(_: *mut libc::c_void) -> *mut libc::c_void {
    thread::name(c"anyring-helper");
    THREAD.store(thread_pointer(), Ordering::Relaxed);
    CLOSED_ELSEWHERE.set(|fd| is_this_thread() && wq::queue_close(fd));
    // Deadlines are met as the kernel's own timers do, not up to 50 us later.
    syscall(libc::SYS_prctl, [libc::PR_SET_TIMERSLACK as usize, 1, 0, 0, 0, 0]);
    let mut rings = DrivenRings(Vec::new());
    // A panic outside of every ring has cost none of them anything: on with them.
    let ended = (0..LIVES).find_map(|_| match mutated(Mutation::HelpersPanicEscapes) {
        true => Some(rings.watch()),
        false => contain_any(|| rings.watch()),
    });
    if let Err(error) = ended.unwrap_or(Err(Errno::IO)) {
        crate::log::line(&format!("the helper ended: {error}"));
        let _ = contain_any(|| rings.give_up());
    }
    // Another helper may have begun since this one has left the mailbox.
    let _ = THREAD.compare_exchange(thread_pointer(), 0, Ordering::Relaxed, Ordering::Relaxed);
    if !thread::is_needed() {
        // As late as this, since it takes a while: a new ring gets another helper.
        device::destroy_spare();
    }
    core::ptr::null_mut()
}

/// The rings that the helper knows.
struct DrivenRings(Vec<Driven>);

/// A ring that the helper knows.
struct Driven {
    ring: &'static Ring,
    /// The program's visits when last looked.
    visits: u32,
    period_ns: u64,
    /// When to look again without being told, by CLOCK_MONOTONIC.
    due_ns: Option<u64>,
    /// An event of the ring's poll set or engine end came.
    event: bool,
    /// Nothing is pending, or a thread of the program sees to it.
    idle: bool,
    /// Closed under a number, waiting for its last copy to go: its engine end is registered.
    orphan: bool,
    /// A look at it has panicked.
    struck: bool,
    /// Somebody keeps it and has a note to tell the helper.
    busy: bool,
    /// Its poll set, once that was in the helper's.
    poll_set: i32,
    /// There is none, or the helper's did not take it.
    refused: bool,
}

impl DrivenRings {
    /// The helper's loop.
    fn watch(&mut self) -> Result<(), Errno> {
        point(Point::HelperStart);
        let (set, wake) = (SET.load(Ordering::Relaxed), WAKE.load(Ordering::Relaxed));
        let mut events = [EpollEvent::default(); 32];
        loop {
            self.take_in();
            point(Point::HelperTick);
            let now_ns = now_ns();
            self.0.retain_mut(|driven| driven.tick_contained(now_ns));
            let due_ns = self.0.iter().filter_map(|driven| driven.due_ns).min();
            let idle = self.0.iter().all(|driven| driven.idle);
            wq::look_again();
            let timeout_ns = match due_ns {
                None if idle => Some(if thread::is_needed() { IDLE_NS } else { LINGER_NS }),
                due_ns => due_ns.map(|due_ns| Sys::sleep_ns(due_ns.saturating_sub(now_ns), true)),
            };
            let timeout_ns = timeout_ns.into_iter().chain(wq::look_again_ns()).min();
            let count = match Sys::epoll_wait(set, &mut events, timeout_ns, None) {
                Ok(count) => count,
                Err(Errno::INTR) => 0,
                Err(error) => return Err(error),
            };
            if count == 0 && idle && self.leave() {
                return Ok(());
            }
            for event in &events[..count] {
                self.note(event.data, wake);
            }
        }
    }

    fn note(&mut self, data: u64, wake: i32) {
        if data == WOKEN {
            let mut value = 0u64;
            syscall(libc::SYS_read, [wake as usize, &mut value as *mut u64 as usize, 8, 0, 0, 0]);
            self.0.iter_mut().for_each(Driven::try_again);
        } else if let Some(driven) = self.0.iter_mut().find(|driven| driven.address() == data & !ENGINE_END) {
            driven.event = true;
        }
    }

    fn take_in(&mut self) {
        if let Some(mut mailbox) = MAILBOX.lock() {
            // Where there is no memory they wait for the next round.
            if self.0.try_reserve(mailbox.waiting()).is_ok() {
                self.0.extend(mailbox.take().into_iter().map(Driven::new));
            }
        }
    }

    /// Ends the thread unless something is to be done.
    fn leave(&mut self) -> bool {
        self.0.retain_mut(|driven| !driven.let_go());
        if !self.0.is_empty() {
            return false;
        }
        let Some(mut mailbox) = MAILBOX.lock() else { return false };
        let ends = mailbox.leave();
        if ends {
            helper::close();
        }
        ends
    }

    /// The thread ends before its time: whoever leaves something pending next starts a new one.
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
            self.take_in();
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
            struck: false,
            busy: false,
            poll_set: -1,
            refused: false,
        }
    }

    fn address(&self) -> u64 {
        core::ptr::from_ref(self.ring) as u64
    }

    /// [`Driven::tick`]; a panic in it breaks that ring, which is looked at once more when its requests have been ended.
    fn tick_contained(&mut self, now_ns: u64) -> bool {
        let ring = self.ring;
        let ticked = match mutated(Mutation::HelpersPanicEscapes) {
            true => Some(self.tick(now_ns)),
            false => contain(|| Some(ring), || self.tick(now_ns)),
        };
        if let Some(stays) = ticked {
            return stays;
        }
        if core::mem::replace(&mut self.struck, true) {
            ring.driver.handover.forget();
            return false;
        }
        (self.due_ns, self.idle) = (Some(now_ns), false);
        true
    }

    /// Does what is to be done now. False when the helper is done with the ring.
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
            Duty::LookWhenDue if due && !self.orphan && self.came() => {
                self.wait_longer(now_ns);
                true
            }
            Duty::LookWhenDue | Duty::Watch if !due => true,
            duty => self.look(duty, now_ns),
        }
    }

    /// Whether the program has asked for events since this was last asked.
    fn came(&mut self) -> bool {
        let visits = self.ring.driver.handover.visits();
        core::mem::replace(&mut self.visits, visits) != visits
    }

    fn wait_longer(&mut self, now_ns: u64) {
        self.period_ns = (2 * self.period_ns).min(LONGEST_PERIOD_NS);
        self.due_ns = Some(now_ns + self.period_ns);
    }

    /// Looks at the ring, under its lock. False when the helper is done with it.
    fn look(&mut self, duty: Duty, now_ns: u64) -> bool {
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
        // What appears from here on, under this hold of the lock, is seen before the helper sleeps.
        handover.look_later();
        if let Ok(head) = guard.consumed() {
            handover.note_head(head);
        }
        self.due_ns = None;
        if !guard.has_pending() || handover.has_thread() {
            // Also where it drives: what makes events with nothing pending is nothing that anybody waits for. And a thread
            // that sleeps in enter calls when it leaves something pending.
            self.rest(&mut guard);
        } else if duty == Duty::LookWhenDue && self.came() {
            self.wait_longer(now_ns); // it came while the helper waited for the lock
        } else {
            if duty == Duty::LookWhenDue {
                handover.note_away();
                self.period_ns = PERIOD_NS;
            }
            self.stand_in(&mut guard);
        }
        true
    }

    /// Somebody keeps the ring, perhaps asleep: the helper goes on with the others until it is told.
    fn retry_later(&mut self) -> bool {
        self.busy = true;
        (self.event, self.due_ns) = (true, None);
        // What is ready there would keep the helper awake.
        self.detach_unlocked();
        self.ring.leave_note(Note::Helper);
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

    /// The helper was told of something: perhaps that a ring is busy no more.
    fn try_again(&mut self) {
        if core::mem::take(&mut self.busy) {
            self.event = true;
            self.idle = false;
        }
    }

    /// Nobody uses the ring any more, but the kernel's AIO still has transfers of it: its end waits for them.
    fn waits_for_device(&mut self, guard: &mut RingGuard) -> bool {
        guard.take_events(When::Later);
        crate::issue::device::reap(guard);
        if guard.device.in_flight() == 0 {
            return false;
        }
        self.idle = false;
        self.watch(guard);
        true
    }

    fn rest(&mut self, guard: &mut RingGuard) {
        guard.detach();
        self.refused = false;
        self.ring.driver.handover.rest();
        self.idle = !self.orphan;
    }

    /// Nobody of the program sees to what is pending.
    fn stand_in(&mut self, guard: &mut RingGuard) {
        let handover = &self.ring.driver.handover;
        self.idle = false;
        if self.ring.has(IORING_SETUP_DEFER_TASKRUN) {
            return self.signal(guard);
        }
        if !handover.take_for_helper() {
            return self.rest(guard); // a thread has it after all, and calls
        }
        let before = guard.cq_tail();
        guard.stand_in();
        let tail = guard.cq_tail();
        if tail != before {
            handover.note_posted(tail);
        }
        if !guard.has_pending() && !handover.only_looks() {
            return self.rest(guard);
        }
        self.watch(guard);
        self.idle = !guard.has_pending() && !self.orphan;
    }

    /// A deferred ring: tell its owner once that there is something, then wait until it has been there.
    fn signal(&mut self, guard: &mut RingGuard) {
        if self.ring.driver.is_announced() {
            return self.rest(guard);
        }
        // A put-off attempt is the owner's to make: its completion would be.
        if guard.poll_set.has_postponed() || guard.has_work_for_owner() {
            guard.announce_work();
            return self.rest(guard); // the owner calls again when it has been there
        }
        self.watch(guard);
    }

    /// Sleeps on the ring's poll set from now on.
    fn watch(&mut self, guard: &mut RingGuard) {
        if !self.refused {
            guard.attach();
        }
        self.refused = guard.awaits_events() && !self.ring.driver.handover.is_attached();
        self.poll_set = guard.poll_set.epoll().unwrap_or(-1);
        let next_ns = guard.timers.next_ns().filter(|_| !mutated(Mutation::HelperSleepsBeyondTimers));
        let look_ns = if self.refused { Some(LOOK_NS) } else { guard.poll_set.look_ns() };
        let next_ns = next_ns.into_iter().chain(look_ns).min();
        self.due_ns = next_ns.map(|next_ns| now_ns().saturating_add(next_ns));
        self.ring.driver.handover.watch(self.due_ns.unwrap_or(u64::MAX));
    }

    /// Registers the engine's end of a ring with other copies once; true when the last of them is gone.
    fn last_copy_went(&mut self, guard: &mut RingGuard) -> bool {
        if !self.orphan {
            let (set, data) = (SET.load(Ordering::Relaxed), self.address() | ENGINE_END);
            self.orphan = Sys::epoll_ctl(set, libc::EPOLL_CTL_ADD, guard.engine_end, 0, data).is_ok();
        }
        if descriptors::last_copy_gone(guard.engine_end) || guard.is_left_by_child() {
            guard.note_closed();
            // The last number may have been closed unseen. Relaxed: a worker that has one of the ring's jobs ends the ring.
            self.ring.fd.store(-1, Ordering::Relaxed);
        }
        guard.is_closed()
    }

    fn end(&mut self, mut guard: RingGuard) {
        if self.orphan {
            let set = SET.load(Ordering::Relaxed);
            let _ = Sys::epoll_ctl(set, libc::EPOLL_CTL_DEL, guard.engine_end, 0, 0);
        }
        guard.detach();
        self.ring.driver.handover.forget();
        drop(guard);
        table::end_if_unused(self.ring);
    }

    /// Forgets a ring that needs no helper; false when it does after all.
    fn let_go(&mut self) -> bool {
        let mut guard = match self.ring.lock_soon() {
            Ok(guard) => guard,
            Err(LockFailure::Busy) => return false, // looked at again after another idle time
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
