//! The clocks by which timeouts and waits are measured.

use super::{Os, Sys};

/// The clocks that a timeout can name. Source: io_uring_enter(2), IORING_OP_TIMEOUT.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Clock {
    /// CLOCK_MONOTONIC.
    Monotonic,
    /// CLOCK_BOOTTIME.
    Boottime,
    /// CLOCK_REALTIME.
    Realtime,
}

impl Clock {
    /// Every clock.
    pub const ALL: [Clock; 3] = [Clock::Monotonic, Clock::Boottime, Clock::Realtime];

    /// Returns the clock's reading in nanoseconds.
    pub fn now_ns(self) -> u64 {
        Sys::clock_ns(match self {
            Clock::Monotonic => libc::CLOCK_MONOTONIC,
            Clock::Boottime => libc::CLOCK_BOOTTIME,
            Clock::Realtime => libc::CLOCK_REALTIME,
        })
    }
}
