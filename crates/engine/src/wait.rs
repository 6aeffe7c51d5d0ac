//! Waiting for completions: in enter, by the helper, by a thread that polls, by spinning.

pub mod enter;
pub mod enter_wait;
pub mod helper;
pub mod iopoll;
pub mod sqpoll;

use crate::{process, ring};

/// Before the first ring: from now on there can be a helper.
pub fn begin() {
    ring::helper::START.set(helper::start);
    let _ = process::at_fork(helper::reset_after_fork); // there are more slots than callers
}
