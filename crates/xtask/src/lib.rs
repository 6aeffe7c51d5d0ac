//! Build steps that cargo alone cannot do, as functions, so that the tests of anyring-inject link and check the same
//! objects as `cargo xtask` does.

pub use anyring_dist::dropin;

pub mod artifacts;
pub mod conformance;
pub mod heads;
pub mod processors;
pub mod prose;
pub mod rooms;
pub mod symbols;
pub mod unwinding;

/// The repository's root.
///
/// # Panics
///
/// Never: this crate is inside the repository.
pub fn root() -> &'static std::path::Path {
    std::path::Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("crates/xtask is in the repository")
}
