//! As much of the engine's `ring` as the files under test name.

#[path = "../../src/ring/arrivals.rs"]
pub mod arrivals;
