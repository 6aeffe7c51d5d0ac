//! `anyring-differential`: random programs of io_uring requests. Each runs on the kernel's io_uring and on anyring's,
//! and the results are compared. The kernel is the oracle. README.md of this crate explains the output.

mod chaos;
mod child;
mod compare;
mod confirm;
mod coverage;
mod execute;
mod generate;
mod known;
mod program;
mod record;
mod shrink;

use anyring_test_kit::exit_code;
use clap::{Parser, Subcommand};
use std::process::ExitCode;

/// Runs random io_uring programs on the kernel and on anyring, and compares.
#[derive(Parser)]
#[command(version)]
struct Options {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run seeds on both sides and compare
    Compare(compare::CompareOptions),
    /// Run seeds on the engine under chaos, and count each request's CQEs
    Chaos(compare::RunnerOptions),
    /// Print the smallest part of a seed's program that still diverges
    Shrink(compare::CompareOptions),
    /// Print a seed's program
    Show {
        /// The seed
        seed: u64,
    },
    /// Run seeds on the io_uring that this process has (what `compare` starts)
    Run(child::RunOptions),
}

fn main() -> ExitCode {
    anyring_conformance::door::have_instructions();
    let done = match Options::parse().command {
        Command::Compare(options) => compare::compare(&options),
        Command::Chaos(options) => chaos::chaos(&options),
        Command::Shrink(options) => shrink::shrink(&options),
        Command::Show { seed } => {
            print!("{}", generate::program(seed, None));
            Ok(true)
        }
        Command::Run(options) => child::run(&options).map(|()| true),
    };
    exit_code("anyring-differential", done)
}
