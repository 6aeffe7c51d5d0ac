//! libanyring.so: the ways in. Every file here is an entry point or what an entry point needs to stay invisible to
//! the program; all of them end in [`door`], which hands the call to the engine or to the kernel.

pub mod door;
pub mod liburing;
