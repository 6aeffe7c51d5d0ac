//! Waiting for completions: in enter, by the helper, by a thread that polls, by spinning.

pub mod enter_wait;
pub mod helper;
pub mod iopoll;
pub mod owner;
pub mod sleeps;
pub mod spin;
pub mod sqpoll;
