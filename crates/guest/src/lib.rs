//! Runs a program that LD_PRELOAD does not reach (statically linked, of musl, for another glibc) in its own process,
//! and serves its io_uring there.
//!
//! The executable `anyring`, the *host*, is linked statically with a glibc of its own. It maps the *guest* next to
//! itself. A seccomp filter traps the calls of the guest's code that concern io_uring, threads, signals and exec. Each
//! of the guest's threads has two *worlds*, which the FS base distinguishes. In the guest's world, the FS base points
//! to the guest's own TLS. In the host's world, it points to a TCB of the host's glibc, and the engine runs on one of
//! the host's stacks.
//!
//! | file | what it does |
//! |---|---|
//! | `state.rs` | the arguments with which it is started |
//! | `start.rs` | prepares the process before the guest begins |
//! | `elf.rs`, `loader.rs`, `script.rs` | reads the guest's file and maps it |
//! | `stack.rs` | turns the first stack, as the kernel made it for the host, into the guest's |
//! | `filter.rs`, `probe.rs` | which calls are trapped, and where; inherited filters |
//! | `world.rs`, `tcb.rs` | the records of threads; the host's TCBs for them |
//! | `crossing.rs` | the code that goes from one world to the other |
//! | `trap.rs` | from SIGSYS to `dispatch.rs` and back |
//! | `patch.rs`, `island.rs` | instructions that trapped often become jumps to code which needs no signal |
//! | `fast.rs` | finds the thread by its FS base, for that code |
//! | `dispatch.rs` | serves each trapped call |
//! | `signals.rs` | the guest's handlers, whichever world they interrupt |
//! | `threads.rs` | clone, vfork and fork |
//! | `exec.rs` | execve: the new program is a guest, or has the library preloaded |
//! | `exe.rs` | /proc/self/exe |
//!
//! The executable is started again to be a host: `anyring --program=STATE FILE NAME ARGV0 [ARGS...]`, see `state.rs`.
//!
//! All this exists on x86-64 only; elsewhere there are no guests ([`HERE`]).

mod state;
pub use state::{lead, State};

/// True if guests are supported on this processor.
pub const HERE: bool = cfg!(target_arch = "x86_64");

/// All modules but one, so that they need one condition.
#[cfg(target_arch = "x86_64")]
#[path = "."]
mod x86_64 {
    pub mod crossing;
    pub mod dispatch;
    pub mod elf;
    pub mod exe;
    pub mod exec;
    pub mod fast;
    pub mod filter;
    pub mod island;
    pub mod loader;
    pub mod patch;
    pub mod probe;
    pub mod script;
    pub mod signals;
    pub mod stack;
    pub mod start;
    pub mod tcb;
    pub mod threads;
    pub mod trap;
    pub mod world;
}
#[cfg(target_arch = "x86_64")]
pub use start::main;
#[cfg(target_arch = "x86_64")]
use x86_64::*;

/// Returns `None`: there are no hosts on this processor.
///
/// # Safety
/// None is needed.
#[cfg(not(target_arch = "x86_64"))]
pub unsafe fn main(_: core::ffi::c_int, _: *const *const core::ffi::c_char) -> Option<core::ffi::c_int> {
    None
}
