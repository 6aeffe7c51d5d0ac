//! The paths a request can take, and the one place that picks among them.

pub mod asleep;
pub mod calls;
pub mod child;
pub mod crew;
pub mod driver;
pub mod handover;
pub mod helper;
mod in_worker;
pub mod iopoll;
pub mod kernel_aio;
pub mod punt;
pub mod readiness;
mod registered;
pub mod route;
mod select;
mod shots;
pub mod spin;
pub mod sqpoll;
pub mod stalls;
pub mod watch;
pub mod worker;
