//! The `anyring` command: `run`, `deny`, `doctor`, `stats`, `trace`, `report`, `check`, `advise`, `chaos` and `lab`.
//!
//! `run` and `deny` end by exec'ing the program in this very process, so that exit code, signals and standard streams
//! pass through by construction. For the same reason the C `main` is ours: Rust's own start would ignore SIGPIPE and
//! open closed standard descriptors, and the program would inherit both.
//!
//! The same executable is the host of guests (`crates/guest`), which is why it is linked statically and its memory is the
//! engine's: one file serves programs in images of any C library, or of none.
#![no_main]

mod advise;
mod asked;
mod chaos;
mod check;
mod child;
mod cli;
mod costs;
mod deny;
mod doctor;
mod elf;
mod errno;
mod exec;
mod failure;
mod filter;
mod junit;
mod lab;
mod library;
mod output;
mod ring;
mod run;
mod stats;
mod trace;

use clap::error::ErrorKind;
use clap::Parser;
use cli::{Cli, Command};
use failure::Failure;
use std::ffi::{c_char, c_int, c_void};
use std::io::Write;

#[global_allocator]
static GLOBAL: anyring_engine::alloc::Global = anyring_engine::alloc::Global;

/// What the linker has glibc's malloc call instead of sbrk(2) (build.rs): in a host the program break is the guest's.
#[no_mangle]
extern "C" fn __wrap___sbrk(_: isize) -> *mut c_void {
    usize::MAX as *mut _
}

/// The C entry point. `std::env::args_os` needs no help here: glibc hands the arguments to std's initializer.
///
/// # Safety
/// Called by libc's start code with what the kernel has passed.
#[no_mangle]
unsafe extern "C" fn main(argc: c_int, argv: *const *const c_char) -> c_int {
    // SAFETY: what libc's start code has passed, and nothing was done yet.
    if let Some(status) = unsafe { anyring_guest::main(argc, argv) } {
        return status;
    }
    let outcome = parse().and_then(dispatch);
    let status = outcome.unwrap_or_else(|failure| {
        failure.say();
        failure.status
    });
    // Not a return: this flushes standard output, which std otherwise does in the start that we replaced.
    std::process::exit(status)
}

fn dispatch(command: Command) -> Result<i32, Failure> {
    match command {
        Command::Run(options) => run::run(&options).map(|never| match never {}),
        Command::Deny(options) => deny::run(&options).map(|never| match never {}),
        Command::Doctor(options) => doctor::run(&options),
        Command::Stats(options) => stats::run(&options),
        Command::Trace(options) => trace::run(&options),
        Command::Report(options) => trace::report(&options),
        Command::Check(options) => check::run(&options),
        Command::Lab(options) => lab::run(&options),
        Command::Advise(options) => advise::run(&options),
        Command::Chaos(options) => chaos::run(&options),
        Command::EntryPoint { name, least } => doctor::try_entry_point(name, least),
    }
}

/// The command line, or its fault in one line. Help and version are printed here and end the process.
fn parse() -> Result<Command, Failure> {
    Cli::try_parse().map(|cli| cli.command).map_err(|error| {
        if !error.use_stderr() || error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
            match error.print().and_then(|()| std::io::stdout().flush()) {
                Ok(()) => std::process::exit(error.exit_code()),
                Err(why) => return output::unwritten("standard output", &why),
            }
        }
        let text = error.to_string();
        // clap says what is wrong in its first paragraph; usage and hints follow.
        let fault: Vec<_> = text.lines().take_while(|line| !line.is_empty()).map(str::trim).collect();
        let fault = fault.join(" ");
        // What may have been meant stands in a paragraph of its own.
        let tip = text.lines().find_map(|line| line.trim().strip_prefix("tip: "));
        let tip = tip.map_or(String::new(), |tip| format!("; {tip}"));
        let message = format!("{}{tip} (see --help)", fault.strip_prefix("error: ").unwrap_or(&fault));
        Failure { status: failure::USAGE, message }
    })
}
