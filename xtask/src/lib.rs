//! Build steps that cargo alone cannot do, as functions, so that the tests of anyring-inject link and check the same
//! objects as `cargo xtask` does.

pub use anyring_dist::dropin;

pub mod artifacts;
pub mod conformance;
pub mod heads;
pub mod rooms;
pub mod symbols;
pub mod unwinding;
