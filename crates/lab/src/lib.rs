//! The lab: compares costs on anyring's engine, on the kernel's io_uring, and on the interfaces that a program would
//! use instead.
//!
//! A workload ([`workloads`]) states the work and its backends. Each run is a separate process, `anyring-lab-worker`.
//! This is an ordinary program, which is the same on the kernel's io_uring and, with libanyring.so preloaded, on
//! anyring's. [`worker`] starts it, [`message`] has the messages between the two, and [`measure`] takes the turns.
//! [`report`] holds the results, and [`text`], [`chart`] and [`html`] show them.

pub mod backend;
pub mod chart;
pub mod html;
pub mod machine;
pub mod measure;
pub mod message;
pub mod report;
pub mod scratch;
pub mod spawn;
pub mod statistics;
pub mod text;
pub mod trace;
pub mod worker;
pub mod workloads;
