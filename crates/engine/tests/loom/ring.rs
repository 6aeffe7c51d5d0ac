//! As much of the engine's `ring` as the files under test name.

#[path = "../../src/ring/arrivals.rs"]
pub mod arrivals;

#[path = "../../src/shared/waiters.rs"]
pub mod waiters;
