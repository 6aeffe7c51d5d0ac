//! The x86-64 part.

pub mod calls;
pub mod crossing;
pub mod fast;
mod island;
pub mod patch;
pub mod tls;
pub mod trap;
