//! The `anyring` command: `run`, `deny`, `doctor`, `stats`, `trace`, `report`, `check`, `advise`, `chaos` and `lab`.
//!
//! `run` and `deny` end by executing the program in this process, so exit code, signals and standard streams pass
//! through by construction. For the same reason this file has a C `main`. Rust's own start would ignore SIGPIPE and
//! open closed standard descriptors, and the program would inherit both.
//!
//! The same executable is the host of guests (`crates/guest`). It is therefore linked statically, and its memory is
//! the engine's: one file serves programs with any C library, or none.
#![no_main]

mod advise;
mod arch;
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
mod needs;
mod output;
mod places;
mod ring;
mod run;
mod stats;
mod trace;

use clap::error::ErrorKind;
use clap::{Args, FromArgMatches, Parser};
use cli::{Cli, Command, RunOptions};
use failure::Failure;
use std::ffi::{c_char, c_int, c_void};
use std::io::Write;

#[global_allocator]
static GLOBAL: anyring_engine::alloc::Global = anyring_engine::alloc::Global;

/// Replaces sbrk(2) for glibc's malloc, by a linker option (build.rs): in a host the program break belongs to the
/// guest.
#[no_mangle]
extern "C" fn __wrap___sbrk(_: isize) -> *mut c_void {
    usize::MAX as *mut _
}

/// The C entry point. `std::env::args_os` works as usual: glibc passes the arguments to std's initializer.
///
/// # Safety
/// Called by libc's start code with the arguments from the kernel.
#[no_mangle]
unsafe extern "C" fn main(argc: c_int, argv: *const *const c_char) -> c_int {
    // SAFETY: the arguments come from libc's start code, and nothing has run before.
    if let Some(status) = unsafe { anyring_guest::main(argc, argv) } {
        return status;
    }
    let outcome = parse().and_then(dispatch);
    let status = outcome.unwrap_or_else(|failure| {
        failure.say();
        failure.status
    });
    // Not a return: this flushes standard output, as std's own start would, which this `main` replaces.
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

/// Parses the command line; an error is one line. Help and version are printed here and end the process.
fn parse() -> Result<Command, Failure> {
    if let Some(options) = parse_run() {
        return Ok(Command::Run(options));
    }
    Cli::try_parse().map(|cli| cli.command).map_err(|error| {
        if !error.use_stderr() || error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
            match error.print().and_then(|()| std::io::stdout().flush()) {
                Ok(()) => std::process::exit(error.exit_code()),
                Err(why) => return output::unwritten("standard output", &why),
            }
        }
        let text = error.to_string();
        // clap describes the error in its first paragraph; usage and hints follow.
        let fault: Vec<_> = text.lines().take_while(|line| !line.is_empty()).map(str::trim).collect();
        let fault = fault.join(" ");
        // A suggestion is a paragraph of its own.
        let tip = text.lines().find_map(|line| line.trim().strip_prefix("tip: "));
        let tip = tip.map_or(String::new(), |tip| format!("; {tip}"));
        let message = format!("{}{tip} (see --help)", fault.strip_prefix("error: ").unwrap_or(&fault));
        Failure { status: failure::USAGE, message }
    })
}

/// Parses `anyring run` without describing the other commands, which takes longer than all else that parsing does.
/// `None` if that does not lead to a start.
fn parse_run() -> Option<RunOptions> {
    let words = || std::env::args_os().skip(1);
    if words().next()? != "run" {
        return None;
    }
    let found = RunOptions::augment_args(clap::Command::new("run")).try_get_matches_from(words()).ok()?;
    RunOptions::from_arg_matches(&found).ok()
}
