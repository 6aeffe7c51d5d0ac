//! What differs between processors: one file for each, with the same names in it. What only guests and raw instructions need
//! (`state`, `patch`) is of x86-64, as these are.

#[cfg(target_arch = "aarch64")]
mod aarch64;
#[cfg(target_arch = "aarch64")]
pub(crate) use aarch64::*;
#[cfg(target_arch = "x86_64")]
mod x86_64;
#[cfg(target_arch = "x86_64")]
pub(crate) use x86_64::*;
