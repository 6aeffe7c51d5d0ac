//! Runs a program that LD_PRELOAD does not reach (statically linked, of musl, for another glibc) in its own process and serves
//! its io_uring there.
//!
//! The executable `anyring`, the *host*, is linked statically with a glibc of its own. It maps the *guest* beside itself, and traps by
//! a seccomp filter what the guest's code asks of io_uring, of threads, of signals and of exec. Each thread of the guest's
//! has two worlds, told apart by the FS base: the guest's own TLS, and a TCB of the host's glibc, with which the engine runs
//! on a stack of the host's.
//!
//! | file | what it does |
//! |---|---|
//! | `start.rs` | puts the process in order before the guest begins |
//! | `elf.rs`, `loader.rs`, `script.rs` | reads the guest's file and maps it |
//! | `stack.rs` | turns the first stack, as the kernel made it for the host, into the guest's |
//! | `filter.rs`, `probe.rs` | which calls are trapped, and where; what is trapped already |
//! | `world.rs`, `tcb.rs` | the records of threads; the host's TCBs for them |
//! | `crossing.rs` | the code that goes from one world to the other |
//! | `trap.rs` | from SIGSYS to `dispatch.rs` and back |
//! | `patch.rs`, `island.rs` | instructions that trapped often become jumps to code which needs no signal |
//! | `fast.rs` | the thread by its FS base, for that code |
//! | `dispatch.rs` | what becomes of each trapped call |
//! | `signals.rs` | the guest's handlers, whichever world they interrupt |
//! | `threads.rs` | clone, vfork and fork |
//! | `exec.rs` | execve: what a guest becomes is a guest, or has the library preloaded |
//! | `exe.rs` | /proc/self/exe |
//!
//! The executable is started anew to be a host: `anyring --program=STATE FILE NAME ARGV0 [ARGS...]`, see `start.rs`.

mod crossing;
mod dispatch;
mod elf;
mod exe;
mod exec;
mod fast;
mod filter;
mod island;
mod loader;
mod patch;
mod probe;
mod script;
mod signals;
mod stack;
mod start;
mod tcb;
mod threads;
mod trap;
mod world;
pub use start::{lead, main, State};
