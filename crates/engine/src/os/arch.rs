//! Code that differs between processors: one file for each, with the same names in it. Nothing else in the engine
//! names registers or contains assembly.

#[cfg(target_arch = "aarch64")]
mod aarch64;
#[cfg(target_arch = "aarch64")]
pub use aarch64::*;
#[cfg(target_arch = "x86_64")]
mod x86_64;
#[cfg(target_arch = "x86_64")]
pub use x86_64::*;

/// Makes thread-local memory of `$bytes` zeros, of the initial-exec kind. That kind needs neither an allocation nor a
/// lock.
#[macro_export]
macro_rules! thread_local_memory {
    ($name:literal, $bytes:expr) => {
        core::arch::global_asm!(
            ".section .tbss,\"awT\",@nobits",
            ".p2align 4",
            concat!(".type ", $name, ",@object"),
            concat!(".size ", $name, ",{bytes}"),
            concat!(".globl ", $name),
            concat!(".hidden ", $name),
            concat!($name, ":"),
            ".zero {bytes}",
            ".text",
            bytes = const $bytes,
        );
    };
}
