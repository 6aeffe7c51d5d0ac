//! The aarch64 part.

pub mod calls;
pub mod crossing;
pub mod fast;
pub mod patch;
pub mod tls;
pub mod trap;
