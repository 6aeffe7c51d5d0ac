//! The aarch64 part. Each call traps: no instruction becomes a jump.

pub mod calls;
pub mod crossing;
pub mod fast;
pub mod patch;
pub mod tls;
pub mod trap;
