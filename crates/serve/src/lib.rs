//! Serves a program's system calls with the engine, whichever way they arrive. The preloaded library (`crates/inject`)
//! and the guest host (`crates/guest`) share this code, and each implements [`Host`]. Nothing here looks up or exports
//! symbols.

mod arch;
#[cfg_attr(target_arch = "aarch64", path = "crossing/aarch64.rs")]
pub mod crossing;
pub mod descriptor;
pub mod dispatch;
pub mod door;
pub mod engine;
pub mod entry;
pub mod environment;
pub mod exec;
pub mod filters;
pub mod host;
pub mod memory;
mod mixed;
pub mod named;
pub mod passing;
#[cfg_attr(target_arch = "aarch64", path = "patch/aarch64.rs")]
pub mod patch;
pub mod probe;
pub mod signals;
#[cfg(target_arch = "x86_64")]
pub mod state;
pub mod sys;
pub mod wait;

pub use host::Host;
