//! The code that differs between processors: one file for each, with the same names. No other file names assembly or
//! registers, except those for raw instructions (`raw/`), which are served on x86-64 only.

#[cfg(target_arch = "aarch64")]
mod aarch64;
#[cfg(target_arch = "aarch64")]
pub(crate) use aarch64::*;
#[cfg(target_arch = "x86_64")]
mod x86_64;
#[cfg(target_arch = "x86_64")]
pub(crate) use x86_64::*;
