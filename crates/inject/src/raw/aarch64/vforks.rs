//! Children that run in this memory are not noted on aarch64: the kernel is asked which process this is.

/// No function is wrapped.
pub fn resolve() {}

/// Such children are never seen.
pub fn look(_: bool) {}
