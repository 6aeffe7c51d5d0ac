//! The code that differs between processors: one file for each processor, with the same names. Outside it, only the
//! files for raw instructions (`raw/`) contain assembly or name registers.

#[cfg(target_arch = "aarch64")]
mod aarch64;
#[cfg(target_arch = "aarch64")]
pub(crate) use aarch64::*;
#[cfg(target_arch = "x86_64")]
mod x86_64;
#[cfg(target_arch = "x86_64")]
pub(crate) use x86_64::*;
