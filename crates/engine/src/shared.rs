//! The memory of a ring that all processes share which inherited it.

pub mod control;
pub mod member;
pub mod waiters;
