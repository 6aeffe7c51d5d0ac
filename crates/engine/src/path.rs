//! The paths a request can take, and the one place that picks among them.

pub mod child;
pub mod crew;
pub mod driver;
pub mod handover;
pub mod helper;
pub mod iopoll;
pub mod kernel_aio;
pub mod readiness;
mod registered;
pub mod route;
mod select;
pub mod spin;
pub mod sqpoll;
pub mod watch;
pub mod worker;
