//! The lab: what things cost on our engine and on the kernel's io_uring, measured in turns.
//!
//! The workloads are ordinary programs of the interface. They run in a process of their own, `anyring-lab-worker`, the
//! same binary on both sides: libanyring.so is preloaded into it or not. [`worker`] starts it, [`message`] is what
//! passes between; [`nop`] and [`load`] are the two measurements. This library measures and counts; the `anyring`
//! command shows.

pub mod load;
pub mod machine;
pub mod message;
pub mod nop;
pub mod spawn;
pub mod statistics;
pub mod worker;
