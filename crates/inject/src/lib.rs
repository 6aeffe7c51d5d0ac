//! libanyring.so: the ways into the engine. The files here define the entry points, or keep the library unnoticed
//! by the program. All entry points lead to [`door`], which passes the call to the engine or to the kernel.

mod arch;
pub mod backend;
#[cfg(not(test))]
mod constructor;
mod copy;
pub mod descriptor;
pub mod dispatch;
pub mod door;
pub mod embed;
mod entry;
pub mod exec;
#[cfg(feature = "forced-panics")]
pub mod forced;
pub mod fork;
mod host;
pub mod identity;
mod joined;
pub mod jump;
pub mod libaio;
pub mod liburing;
pub mod lookup;
pub mod memory;
mod musl;
pub mod named;
mod next;
pub mod passing;
pub mod raw;
mod sanitizer;
pub mod shell;
pub mod signals;
pub mod syscall;
mod unwind;
pub mod wait;

use anyring_serve::{environment, probe, sys};

#[cfg(all(not(test), feature = "allocator"))]
#[global_allocator]
static GLOBAL: anyring_engine::alloc::Global = anyring_engine::alloc::Global;
