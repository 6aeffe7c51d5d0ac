//! `anyring-simulation`: random programs on the engine, on a system whose threads, clock and failures a seed decides.
//! README.md of this crate says what counts as a finding.

mod check;
mod child;
mod faults;
mod program;
mod report;
mod ring;
mod runs;
mod schedule;
mod system;

use anyring_test_kit::exit_code;
use clap::{Parser, Subcommand};
use std::process::ExitCode;

/// Runs programs on the engine, on a simulated system, and reports what breaks.
#[derive(Parser)]
#[command(version)]
struct Options {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run seeds, and print each finding with the command that repeats it
    Run(runs::RunOptions),
    /// Plant bugs, and list those found by seeds that find nothing without them
    Planted(runs::RunOptions),
    /// Be the program (what `run` starts)
    #[command(hide = true)]
    Child(child::ChildOptions),
}

fn main() -> ExitCode {
    let done = match Options::parse().command {
        Command::Run(options) => runs::run(&options),
        Command::Planted(options) => runs::planted(&options),
        Command::Child(options) => child::run(&options).map(|()| true),
    };
    exit_code("anyring-simulation", done)
}
