//! The code that differs between processors: one file for each processor, with the same names. `state` and `patch`
//! are for x86-64 only, since only guests and replaced instructions need them.

#[cfg(target_arch = "aarch64")]
mod aarch64;
#[cfg(target_arch = "aarch64")]
pub(crate) use aarch64::*;
#[cfg(target_arch = "x86_64")]
mod x86_64;
#[cfg(target_arch = "x86_64")]
pub(crate) use x86_64::*;
