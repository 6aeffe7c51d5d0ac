//! The `anyring` command: `run`, `deny` and `doctor`.
//!
//! `run` and `deny` end by exec'ing the program in this very process, so that exit code, signals and standard streams
//! pass through by construction. For the same reason the C `main` is ours: Rust's own start would ignore SIGPIPE and
//! open closed standard descriptors, and the program would inherit both.
#![no_main]

mod child;
mod cli;
mod deny;
mod doctor;
mod elf;
mod errno;
mod exec;
mod failure;
mod filter;
mod library;
mod ring;
mod run;

use clap::Parser;
use cli::{Cli, Command};
use std::ffi::{c_char, c_int};

/// The C entry point. `std::env::args_os` needs no help here: glibc hands the arguments to std's initializer.
#[no_mangle]
extern "C" fn main(_argc: c_int, _argv: *const *const c_char) -> c_int {
    let outcome = match Cli::parse().command {
        Command::Run(options) => run::run(&options).map(|never| match never {}),
        Command::Deny(options) => deny::run(&options).map(|never| match never {}),
        Command::Doctor(options) => doctor::run(&options),
        Command::EntryPoint { name } => doctor::try_entry_point(name),
    };
    let status = outcome.unwrap_or_else(|failure| {
        eprintln!("anyring: {}", failure.message);
        failure.status
    });
    // Not a return: this flushes standard output, which std otherwise does in the start that we replaced.
    std::process::exit(status)
}
