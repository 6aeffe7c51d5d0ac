//! Timeouts that are cancelled, and timeouts that fire.

use super::now_ns;
use crate::outcome::{available, checked, expect, figure, Outcome};
use crate::peer::epoll::Epoll;
use crate::peer::libuv::{Libuv, Timer};
use crate::peer::not_for;
use crate::ring::{sqe, Ring};
use anyring_abi::{Opcode, Sqe, Timespec, IORING_TIMEOUT_ABS};
use anyring_lab::message::{ArmAndCancel, CancelOrder, Door, Measured, Program};
use std::cell::Cell;
use std::collections::BTreeSet;
use std::ffi::c_void;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::Instant;

/// SQEs in a submit call.
const BATCH: usize = 128;
/// The time of the timeouts, far enough in the future that none fires. Each has a different time.
const FAR_NS: u64 = 3_600_000_000_000;

/// Arms timeouts, then cancels them. The figure is ns for arming and cancelling one timeout.
pub fn arm_and_cancel(program: Program, door: Door, work: &ArmAndCancel) -> Outcome<Measured> {
    let count = work.timeouts as usize;
    let mut order: Vec<usize> = (0..count).collect();
    match work.order {
        CancelOrder::FirstIn => {}
        CancelOrder::LastIn => order.reverse(),
        CancelOrder::Random => fastrand::Rng::with_seed(1).shuffle(&mut order),
    }
    let each = |start: Instant| start.elapsed().as_nanos() as f64 / count as f64;
    match program {
        Program::Uring => {
            let mut ring = Ring::new(door, BATCH as u32, 0)?;
            let start = Instant::now();
            uring_cancel(&mut ring, count, &order)?;
            let ns = each(start);
            Ok(figure(ns, Some(ring.proof())))
        }
        // As an event loop does: timers in an ordered set, and a timerfd for the first of them.
        Program::Epoll => {
            let clock = Clock::new()?;
            let mut timers = BTreeSet::new();
            let start = Instant::now();
            timers.extend((0..count).map(|timer| (deadline_ns(timer), timer)));
            clock.set(deadline_ns(0))?;
            for timer in order {
                expect(timers.remove(&(deadline_ns(timer), timer)), || format!("timer {timer} was lost"))?;
            }
            expect(timers.is_empty(), || format!("{} timers are left", timers.len()))?;
            Ok(figure(each(start), None))
        }
        Program::Libuv => {
            let libuv = Libuv::new()?;
            let timers: Vec<Timer> = (0..count).map(|_| libuv.timer()).collect();
            let start = Instant::now();
            for (number, timer) in timers.iter().enumerate() {
                timer.start((FAR_NS / 1_000_000) + number as u64, never, std::ptr::null_mut());
            }
            order.into_iter().for_each(|timer| timers[timer].stop());
            Ok(figure(each(start), None))
        }
        other => not_for(other),
    }
}

unsafe extern "C" fn never(_: *mut c_void) {}

fn deadline_ns(timer: usize) -> u64 {
    FAR_NS + timer as u64 * 1_000
}

fn timespec(ns: u64) -> Timespec {
    Timespec { tv_sec: (ns / 1_000_000_000) as i64, tv_nsec: (ns % 1_000_000_000) as i64 }
}

fn uring_cancel(ring: &mut Ring, count: usize, order: &[usize]) -> Outcome<()> {
    let numbers: Vec<usize> = (0..count).collect();
    for batch in numbers.chunks(BATCH) {
        let times: Vec<Timespec> = batch.iter().map(|timer| timespec(deadline_ns(*timer))).collect();
        for (timer, time) in batch.iter().zip(&times) {
            let addr = std::ptr::from_ref(time) as u64;
            ring.push(Sqe { addr, len: 1, ..sqe(Opcode::Timeout, -1, *timer as u64) })?;
        }
        ring.submit()?;
    }
    let mut cancelled = vec![false; count];
    for batch in order.chunks(BATCH) {
        for timer in batch {
            ring.push(Sqe { addr: *timer as u64, ..sqe(Opcode::TimeoutRemove, -1, REMOVAL) })?;
        }
        ring.submit()?;
        for _ in 0..2 * batch.len() {
            let cqe = ring.wait_cqe()?;
            match cqe.user_data {
                REMOVAL => expect(cqe.res == 0, || format!("a removal completed with {cqe:?}"))?,
                timer => {
                    let first = !std::mem::replace(&mut cancelled[timer as usize], true);
                    expect(first && cqe.res == -libc::ECANCELED, || format!("a timeout completed with {cqe:?}"))?;
                }
            }
        }
    }
    expect(cancelled.iter().all(|cancelled| *cancelled), || "a timeout was not cancelled".to_owned())
}

const REMOVAL: u64 = u64::MAX;
/// The time before the first deadline, so that all are armed by then.
const HEAD_START_NS: u64 = 10_000_000;

/// Lets the timeouts fire. The figures are the mean and the greatest lateness, us.
pub fn fire(program: Program, door: Door, timeouts: u32, over_ms: u32) -> Outcome<Measured> {
    let step = u64::from(over_ms) * 1_000_000 / u64::from(timeouts);
    let (late, proof) = match program {
        Program::Uring => {
            let mut ring = Ring::new(door, timeouts.next_power_of_two(), 0)?;
            let late = fire_uring(&mut ring, u64::from(timeouts), step)?;
            (late, Some(ring.proof()))
        }
        Program::Epoll => (fire_epoll(u64::from(timeouts), step)?, None),
        Program::Libuv => (fire_libuv(u64::from(timeouts), step)?, None),
        other => return not_for(other),
    };
    expect(late.len() == timeouts as usize, || format!("{} of {timeouts} fired", late.len()))?;
    expect(late.iter().all(|late| *late >= 0.0), || "a timeout fired early".to_owned())?;
    let mean = late.iter().sum::<f64>() / late.len() as f64;
    let greatest = late.iter().copied().fold(0.0, f64::max);
    Ok(Measured { figures: vec![mean, greatest], proof, ..Measured::default() })
}

/// Returns the lateness in us; negative if early.
fn late_us(deadline: u64) -> f64 {
    (now_ns() as f64 - deadline as f64) / 1000.0
}

fn fire_uring(ring: &mut Ring, timeouts: u64, step: u64) -> Outcome<Vec<f64>> {
    let first = now_ns() + HEAD_START_NS;
    let times: Vec<Timespec> = (0..timeouts).map(|timer| timespec(first + timer * step)).collect();
    for (timer, time) in times.iter().enumerate() {
        let addr = std::ptr::from_ref(time) as u64;
        ring.push(Sqe { addr, len: 1, op_flags: IORING_TIMEOUT_ABS, ..sqe(Opcode::Timeout, -1, timer as u64) })?;
    }
    ring.submit()?;
    let mut late = Vec::new();
    for _ in 0..timeouts {
        let cqe = ring.wait_cqe()?;
        late.push(late_us(first + cqe.user_data * step));
        expect(cqe.res == -libc::ETIME, || format!("a timeout completed with {cqe:?}"))?;
    }
    Ok(late)
}

fn fire_epoll(timeouts: u64, step: u64) -> Outcome<Vec<f64>> {
    let mut epoll = Epoll::new()?;
    let clock = Clock::new()?;
    epoll.add(clock.fd.as_raw_fd(), 0, 0)?;
    let first = now_ns() + HEAD_START_NS;
    let mut timers: BTreeSet<(u64, u64)> = (0..timeouts).map(|timer| (first + timer * step, timer)).collect();
    let mut late = Vec::new();
    while let Some((next, _)) = timers.first().copied() {
        if next > now_ns() {
            clock.set(next)?;
            let events = epoll.wait()?.count();
            expect(events == 1, || format!("epoll gave {events} events for one timerfd"))?;
        }
        let now = now_ns();
        while let Some((deadline, timer)) = timers.first().copied().filter(|(deadline, _)| *deadline <= now) {
            timers.remove(&(deadline, timer));
            late.push(late_us(deadline));
        }
    }
    Ok(late)
}

/// The argument of a libuv timer's callback.
struct Alarm {
    deadline_ns: u64,
    late_us: Cell<Option<f64>>,
}

unsafe extern "C" fn record_expiry(handle: *mut c_void) {
    // SAFETY: the handle's first word is the Alarm that `fire_libuv` keeps until the last has fired.
    let alarm = unsafe { &*handle.cast::<*const Alarm>().read() };
    alarm.late_us.set(Some(late_us(alarm.deadline_ns)));
}

fn fire_libuv(timeouts: u64, step: u64) -> Outcome<Vec<f64>> {
    let libuv = Libuv::new()?;
    let now_ms = libuv.now_ms();
    let alarms: Vec<Alarm> = (0..timeouts)
        .map(|timer| {
            let deadline_ms = now_ms + (HEAD_START_NS + timer * step).div_ceil(1_000_000);
            Alarm { deadline_ns: deadline_ms * 1_000_000, late_us: Cell::new(None) }
        })
        .collect();
    for alarm in &alarms {
        let timeout_ms = alarm.deadline_ns / 1_000_000 - now_ms;
        libuv.timer().start(timeout_ms, record_expiry, std::ptr::from_ref(alarm).cast_mut().cast());
    }
    while alarms.iter().any(|alarm| alarm.late_us.get().is_none()) {
        libuv.run_once();
    }
    Ok(alarms.iter().filter_map(|alarm| alarm.late_us.get()).collect())
}

/// A timerfd.
struct Clock {
    fd: OwnedFd,
}

impl Clock {
    fn new() -> Outcome<Self> {
        // SAFETY: no pointers.
        let fd = unsafe { libc::timerfd_create(libc::CLOCK_MONOTONIC, libc::TFD_CLOEXEC | libc::TFD_NONBLOCK) };
        let fd = available("timerfd_create", fd)? as i32;
        // SAFETY: the call just returned this descriptor, and no other code knows it.
        Ok(Clock { fd: unsafe { OwnedFd::from_raw_fd(fd) } })
    }

    /// Makes it readable at this time of CLOCK_MONOTONIC, and not before.
    fn set(&self, deadline: u64) -> Outcome<()> {
        let time = timespec(deadline);
        let value = libc::itimerspec {
            it_interval: libc::timespec { tv_sec: 0, tv_nsec: 0 },
            it_value: libc::timespec { tv_sec: time.tv_sec, tv_nsec: time.tv_nsec },
        };
        // SAFETY: an initialised time; the old one is not returned.
        let answer = unsafe {
            libc::timerfd_settime(self.fd.as_raw_fd(), libc::TFD_TIMER_ABSTIME, &value, std::ptr::null_mut())
        };
        checked("timerfd_settime", answer)?;
        Ok(())
    }
}
