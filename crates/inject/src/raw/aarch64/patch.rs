//! No instruction becomes a jump on aarch64: each traps every time.

use super::object::Object;

/// When an instruction is replaced: names what `patch.rs` of x86-64 names, for shared code.
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
