//! Runs a program that LD_PRELOAD does not reach (statically linked, of musl, for another glibc) in its own
//! process, and serves io_uring in that process.
//!
//! The executable `anyring`, the *host*, is linked statically with a glibc of its own. It maps the *guest* next to
//! itself. A seccomp filter traps the calls of the guest's code that concern io_uring, threads, signals and exec. Each
//! of the guest's threads has two *worlds*, which the thread pointer distinguishes (the FS base on x86-64, `tpidr_el0` on
//! aarch64). In the guest's world, it points to the guest's own TLS. In the host's world, it points to a TCB of the
//! host's glibc, and the engine runs on one of the host's stacks.
//!
//! | file | what it does |
//! |---|---|
//! | `state.rs` | the arguments with which it is started |
//! | `start.rs` | prepares the process before the guest begins |
//! | `elf.rs`, `loader.rs`, `script.rs` | reads the guest's file and maps it |
//! | `stack.rs` | turns the first stack, as the kernel made it for the host, into the guest's |
//! | `filter.rs`, `probe.rs` | which calls are trapped, and where; inherited filters |
//! | `world.rs`, `tcb.rs` | the records of threads; the host's TCBs for them |
//! | `trap.rs` | from SIGSYS to `dispatch.rs` and back |
//! | `arch/*/crossing.rs` | the code that goes from one world to the other |
//! | `arch/*/trap.rs` | the registers of a trapped call |
//! | `arch/*/tls.rs`, `arch/*/calls.rs` | the thread pointer; system calls and addresses |
//! | `arch/*/patch.rs`, `island.rs` | x86-64: instructions that trapped often become jumps to code which needs no signal |
//! | `arch/*/fast.rs` | x86-64: finds the thread by its thread pointer, for that code |
//! | `dispatch.rs` | serves each trapped call |
//! | `signals.rs` | the guest's handlers, whichever world they interrupt |
//! | `threads.rs` | clone, vfork and fork |
//! | `exec.rs` | execve: the new program is a guest, or has the library preloaded |
//! | `exe.rs` | /proc/self/exe |
//!
//! The executable is started again to be a host: `anyring --program=STATE FILE NAME ARGV0 [ARGS...]`, see `state.rs`.

mod arch;
mod dispatch;
mod elf;
mod exe;
mod exec;
mod filter;
mod hot;
mod loader;
mod probe;
mod script;
mod signals;
mod stack;
mod start;
mod state;
mod tcb;
mod threads;
mod trap;
mod world;

pub use start::main;
pub use state::{lead, State};
