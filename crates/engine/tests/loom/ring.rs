//! The parts of the engine's `ring` that the tested files refer to.

#[path = "../../src/ring/arrivals.rs"]
pub mod arrivals;

#[path = "../../src/shared/waiters.rs"]
pub mod waiters;
