//! The lab: what things cost on our engine, on the kernel's io_uring, and on what a program would use instead.
//!
//! A workload ([`workloads`]) says what is measured, on which backends. Each run is a process of its own,
//! `anyring-lab-worker`: an ordinary program, the same on the kernel's io_uring and, with libanyring.so preloaded, on
//! ours. [`worker`] starts it, [`message`] is what passes between, [`measure`] takes the turns, [`report`] holds what
//! came out, and [`text`], [`chart`] and [`html`] show it.

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
