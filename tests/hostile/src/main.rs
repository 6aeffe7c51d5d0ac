//! `anyring-hostile`: random programs that misuse io_uring and Linux AIO. Each runs in a process of its own, watched
//! from outside. README.md of this crate says what counts as a finding.

mod arena;
mod call;
mod child;
mod execute;
mod generate;
mod program;
mod runs;
mod shrink;
mod threads;
mod witness;

use anyring_test_kit::exit_code;
use clap::{Parser, Subcommand};
use std::process::ExitCode;

/// Runs hostile io_uring programs, made by seed, and reports what breaks.
#[derive(Parser)]
#[command(version)]
struct Options {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run many seeds and print each finding
    Run(runs::RunOptions),
    /// Print the fewest steps of the first seed that still lead to its finding
    Shrink(runs::RunOptions),
    /// Print a seed's steps
    Show {
        /// The seed
        seed: u64,
    },
    /// Be the hostile program (what `run` starts)
    #[command(hide = true)]
    Child(child::ChildOptions),
    /// Be what the hostile program executes
    #[command(hide = true)]
    Survivors,
}

fn main() -> ExitCode {
    let done = match Options::parse().command {
        Command::Run(options) => runs::run(&options),
        Command::Shrink(options) => shrink::shrink(&options),
        Command::Show { seed } => {
            print!("{}", generate::program(seed));
            Ok(true)
        }
        Command::Survivors => {
            execute::numbers::survivors();
            Ok(true)
        }
        Command::Child(options) => child::run(&options).map(|()| true),
    };
    exit_code("anyring-hostile", done)
}
