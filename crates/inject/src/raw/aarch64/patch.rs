//! No instruction becomes a jump on aarch64: each traps every time.

use super::object::Object;

/// The moment at which an instruction is replaced. Shared code needs the same names as in `patch.rs` of x86-64.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum When {
    /// Before it first runs.
    Ahead,
}

/// Nothing is to be prepared.
pub fn prepare() {}

/// False, as nothing is patched.
pub fn is_possible() -> bool {
    false
}

/// Nothing is to be forgotten.
pub fn forget_unmapped(_: &[Object]) {}

/// Always the error.
pub fn patch(_: &Object, _: usize, _: &[u32], _: When, _: bool) -> Result<(), &'static str> {
    Err("on aarch64 nothing is replaced")
}
