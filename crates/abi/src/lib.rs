//! Wire types and constants of Linux's io_uring interface: the contents of ring memory and the arguments of the three
//! system calls. The crate has no logic, no allocator and no std.
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
