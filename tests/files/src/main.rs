//! `anyring-files`: random programs that work on one file by several rings and processes. Each result and each byte is
//! compared with a model of the file. README.md of this crate explains the output.

mod abilities;
mod execute;
mod generate;
mod memory;
mod model;
mod opened;
mod program;
mod runs;
mod together;

use anyhow::Result;
use anyring_test_kit::exit_code;
use clap::{Parser, Subcommand};
use std::process::ExitCode;

/// Runs random programs on files, and compares each byte with a model.
#[derive(Parser)]
#[command(version)]
struct Options {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run seeds in each folder, and print each difference
    Run(runs::RunOptions),
    /// Print the fewest steps of the first seed that still differ
    Shrink(runs::RunOptions),
    /// Print a seed's program
    Show {
        /// The seed
        seed: u64,
    },
    /// Be the program, in the working directory (what `run` starts)
    #[command(hide = true)]
    Child {
        /// The seed
        #[arg(long)]
        seed: u64,
        /// Steps that are left out
        #[arg(long, value_delimiter = ',')]
        without: Vec<usize>,
    },
}

fn main() -> ExitCode {
    anyring_conformance::door::have_instructions();
    let done = match Options::parse().command {
        Command::Run(options) => runs::run(&options),
        Command::Shrink(options) => runs::shrink(&options),
        Command::Show { seed } => {
            print!("{}", generate::program(seed));
            Ok(true)
        }
        Command::Child { seed, without } => child(seed, &without),
    };
    exit_code("anyring-files", done)
}

/// Runs a program in this process and its children. The first prints the number of its requests.
fn child(seed: u64, without: &[usize]) -> Result<bool> {
    let program = generate::program(seed).without(without);
    let (mut together, done) = execute::run(&program)?;
    let count = done.inspect_err(|_| together.fail())?;
    if together.process == 0 {
        together.wait()?;
        println!("requests {count}");
    }
    Ok(true)
}
