//! State that the processes which use a ring share: the control area, its members, its waiters.

pub mod control;
pub mod fences;
pub mod label;
pub mod member;
pub mod waiters;
