//! Wire types and constants of Linux's io_uring interface: what is in ring memory and what passes through the three
//! system calls. No logic lives here, and nothing depends on an allocator or on std.
#![no_std]

mod aio;
mod constants;
pub mod interface;
mod limits;
mod opcode;
pub mod since;
mod types;

pub use aio::*;
pub use constants::*;
pub use limits::*;
pub use opcode::Opcode;
pub use types::*;
