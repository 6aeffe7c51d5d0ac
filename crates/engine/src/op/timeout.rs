//! TIMEOUT, LINK_TIMEOUT, TIMEOUT_REMOVE: arguments and checks. `request::timer` has the timers themselves.

use super::{reject_unused, Field, OnRing, Operation, Turn, Verdict};
use crate::os::{user_read, version, Clock};
use crate::Errno;
use anyring_abi::{
    Sqe, Timespec, IORING_LINK_TIMEOUT_UPDATE, IORING_TIMEOUT_ABS, IORING_TIMEOUT_BOOTTIME,
    IORING_TIMEOUT_CLOCK_MASK, IORING_TIMEOUT_ETIME_SUCCESS, IORING_TIMEOUT_IMMEDIATE_ARG,
    IORING_TIMEOUT_MULTISHOT, IORING_TIMEOUT_REALTIME, IORING_TIMEOUT_UPDATE, IORING_TIMEOUT_UPDATE_MASK,
    IOSQE_BUFFER_SELECT, IOSQE_FIXED_FILE,
};
use core::num::NonZeroU32;

/// A point in time, or a time span that begins when the request is issued.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct When {
    /// The time in nanoseconds.
    pub time_ns: u64,
    /// `time_ns` is a reading of the clock, not a span.
    pub absolute: bool,
}

impl When {
    /// True if a timer with this time is due as it starts.
    #[inline]
    pub fn is_over(&self, clock: Clock) -> bool {
        self.time_ns == 0 || self.absolute && self.time_ns <= clock.now_ns()
    }

    /// Reads the SQE's field for a time, according to the flags.
    fn read(field: u64, flags: u32) -> Result<When, Errno> {
        let absolute = flags & IORING_TIMEOUT_ABS != 0;
        if flags & IORING_TIMEOUT_IMMEDIATE_ARG != 0 {
            let is_time = field <= i64::MAX as u64;
            return is_time.then_some(When { time_ns: field, absolute }).ok_or(Errno::INVAL);
        }
        let time: Timespec = user_read(field)?;
        if time.tv_sec < 0 || time.tv_nsec < 0 {
            return Err(Errno::INVAL);
        }
        let time_ns = (time.tv_sec as u64).saturating_mul(1_000_000_000).saturating_add(time.tv_nsec as u64);
        Ok(When { time_ns, absolute })
    }
}

/// A timeout, alone or on the request linked before it. Source: io_uring_enter(2), IORING_OP_TIMEOUT.
#[derive(Debug)]
pub struct Timeout {
    /// The time at which it fires.
    pub when: When,
    /// The clock that measures that time.
    pub clock: Clock,
    /// Number of other completions after which the timeout also completes, with result 0. 0 if it counts none. With
    /// `multishot`, the number of times that it fires; 0 for no limit.
    pub count: u32,
    /// Expiry is no failure: links continue (`IORING_TIMEOUT_ETIME_SUCCESS`).
    pub expiry_is_success: bool,
    /// The timeout fires again and again.
    pub multishot: bool,
    /// The operation is a LINK_TIMEOUT: it guards the request linked before it.
    pub linked: bool,
}

impl Timeout {
    /// Number of completions that end the timeout, if it counts completions.
    pub fn counts(&self) -> Option<NonZeroU32> {
        NonZeroU32::new(self.count).filter(|_| !self.multishot)
    }

    /// Reads the SQE and the timespec that it points to. `check_on` checks that a LINK_TIMEOUT has a request to guard.
    pub fn prep(sqe: &Sqe, linked: bool) -> Result<Timeout, Errno> {
        reject_unused(sqe, &[Field::BufIndex, Field::FileIndex, Field::Addr3, Field::Pad2])?;
        let flags = sqe.op_flags;
        let known = IORING_TIMEOUT_ABS
            | IORING_TIMEOUT_CLOCK_MASK
            | IORING_TIMEOUT_ETIME_SUCCESS
            | IORING_TIMEOUT_MULTISHOT
            | later_flags();
        let multishot = flags & IORING_TIMEOUT_MULTISHOT != 0;
        let absolute = flags & IORING_TIMEOUT_ABS != 0;
        if sqe.len != 1 || flags & !known != 0 || (linked && sqe.off != 0) || (multishot && absolute) {
            return Err(Errno::INVAL);
        }
        let clock = clock(flags)?;
        let when = When::read(sqe.addr, flags)?;
        let expiry_is_success = flags & IORING_TIMEOUT_ETIME_SUCCESS != 0;
        Ok(Timeout { when, clock, count: sqe.off as u32, expiry_is_success, multishot, linked })
    }
}

impl Operation for Timeout {
    fn check_on(&self, ring: &mut impl OnRing) -> Result<(), Errno> {
        if self.linked {
            ring.check_link_timeout()?;
        }
        ring.make_room_for_timer(self)
    }

    fn turn(&self) -> Turn {
        if self.linked {
            Turn::Unknown
        } else {
            Turn::Nobody
        }
    }

    /// A timeout's result always goes to the submitter.
    fn is_brought(&self, _result: i32, _inline: bool) -> bool {
        true
    }
}

/// The flags that are newer than Linux 6.18.
fn later_flags() -> u32 {
    if version::has_later_names() {
        IORING_TIMEOUT_IMMEDIATE_ARG
    } else {
        0
    }
}

fn clock(flags: u32) -> Result<Clock, Errno> {
    match flags & IORING_TIMEOUT_CLOCK_MASK {
        0 => Ok(Clock::Monotonic),
        IORING_TIMEOUT_BOOTTIME => Ok(Clock::Boottime),
        IORING_TIMEOUT_REALTIME => Ok(Clock::Realtime),
        _ => Err(Errno::INVAL),
    }
}

/// Ends a timeout, or moves it. Source: io_uring_enter(2), IORING_OP_TIMEOUT_REMOVE.
#[derive(Debug)]
pub struct TimeoutRemove {
    /// The request's `user_data`.
    pub target: u64,
    /// The new time; true if the target is a LINK_TIMEOUT. `None` to end the timeout.
    pub update: Option<(When, bool)>,
}

impl TimeoutRemove {
    /// Reads the SQE and, for an update, the timespec that it points to.
    pub fn prep(sqe: &Sqe) -> Result<TimeoutRemove, Errno> {
        if sqe.flags & (IOSQE_FIXED_FILE | IOSQE_BUFFER_SELECT) != 0 {
            return Err(Errno::INVAL);
        }
        reject_unused(sqe, &[Field::BufIndex, Field::FileIndex, Field::Len, Field::Addr3, Field::Pad2])?;
        let flags = sqe.op_flags;
        if flags & IORING_TIMEOUT_UPDATE_MASK == 0 {
            reject_unused(sqe, &[Field::OpFlags])?;
            return Ok(TimeoutRemove { target: sqe.addr, update: None });
        }
        clock(flags)?;
        let known = IORING_TIMEOUT_UPDATE_MASK | IORING_TIMEOUT_ABS | later_flags();
        if flags & !known != 0 {
            return Err(Errno::INVAL);
        }
        let when = When::read(sqe.off, flags)?;
        // IORING_LINK_TIMEOUT_UPDATE alone is checked as an update but is none (`io_timeout_remove` in
        // io_uring/timeout.c).
        let updates = flags & IORING_TIMEOUT_UPDATE != 0;
        let update = updates.then_some((when, flags & IORING_LINK_TIMEOUT_UPDATE != 0));
        Ok(TimeoutRemove { target: sqe.addr, update })
    }
}

impl Operation for TimeoutRemove {
    fn issue_on(&mut self, ring: &mut impl OnRing, _fd: i32) -> Verdict {
        ring.remove_timeout(self)
    }
}
