//! `cargo xtask`: the command line of the build steps, see `--help`.

mod mutations;

use anyhow::{ensure, Result};
use anyring_xtask::dropin::{self, Tools};
use anyring_xtask::{artifacts, conformance, heads, processors, prose, rooms, symbols, unwinding};
use clap::{Parser, Subcommand};
use std::path::PathBuf;

#[derive(Parser)]
#[command(name = "cargo xtask", about = "Build steps that cargo alone cannot do")]
struct Arguments {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Build liburing.so.2 and liburing-ffi.so.2 that can stand in for the installed ones
    Dropin {
        /// Use the release profile
        #[arg(long)]
        release: bool,
        /// Build for another processor, by rustc's name (aarch64-unknown-linux-gnu) [default: for this machine]
        #[arg(long)]
        target: Option<String>,
        /// The folder to put them into [default: target/PROFILE/dropin]
        #[arg(long, value_name = "DIR")]
        out: Option<PathBuf>,
    },
    /// Compare the symbols of libanyring.so and both drop-ins with the version maps and the installed liburing
    CheckSymbols {
        /// Use the release profile
        #[arg(long)]
        release: bool,
        /// Check another processor's libraries, by rustc's name (aarch64-unknown-linux-gnu) [default: this machine's]
        #[arg(long)]
        target: Option<String>,
    },
    /// Check that a library's tables for unwinding are right at each instruction
    CheckUnwinding {
        #[arg(value_name = "LIBRARY", required = true)]
        libraries: Vec<PathBuf>,
    },
    /// Write docs/conformance.md anew; fails while a name is not served or has no case
    Conformance,
    /// Print which rooms of the engine import which, and what
    Rooms {
        /// Print each source file instead, with the first sentence of its head
        #[arg(long)]
        list: bool,
    },
    /// Print which files outside arch/ have conditions on the processor, and why; fails if a number has grown
    Processors,
    /// Check the English of documents, help and doc comments
    Prose {
        /// Check only the files whose paths begin with this (may be repeated)
        #[arg(value_name = "PATH")]
        paths: Vec<String>,
    },
    /// Prove for each bug of crates/engine/src/mutation.rs that its check fails with the bug and passes without it
    Mutations(mutations::Options),
}

fn main() -> Result<()> {
    match Arguments::parse().task {
        Task::Dropin { release, target, out } => {
            let built = artifacts::build(release, target.as_deref())?;
            let out = out.unwrap_or_else(|| built.directory().join("dropin"));
            for library in dropin::link(&built, &tools_for(target.as_deref()), &out)? {
                println!("{}", library.display());
            }
        }
        Task::CheckSymbols { release, target } => check_symbols(release, target.as_deref())?,
        Task::CheckUnwinding { libraries } => {
            for library in &libraries {
                let complaints = unwinding::check(library)?;
                ensure!(complaints.is_empty(), "{}: {}", library.display(), complaints.join("\n"));
            }
        }
        Task::Conformance => make_conformance()?,
        Task::Rooms { list: true } => list_rooms()?,
        Task::Rooms { list: false } => print_rooms()?,
        Task::Processors => list_processors()?,
        Task::Prose { paths } => prose::check(anyring_xtask::root(), &paths)?,
        Task::Mutations(options) => mutations::prove(&options)?,
    }
    Ok(())
}

fn tools_for(target: Option<&str>) -> Tools {
    target.map_or_else(Tools::here, Tools::of)
}

fn check_symbols(release: bool, target: Option<&str>) -> Result<()> {
    let (built, tools) = (artifacts::build(release, target)?, tools_for(target));
    let libraries = dropin::link(&built, &tools, &built.directory().join("dropin"))?;
    let mut complaints = symbols::check_preload(&built.shared)?;
    complaints.extend(symbols::check_needed(&built.shared, symbols::OF_ANY_LIBC)?);
    complaints.extend(symbols::check_versions(&built.shared)?);
    complaints.extend(symbols::check_not_for_tests(&built.shared)?);
    for library in &libraries {
        complaints.extend(symbols::check_dropin(library)?);
        complaints.extend(symbols::check_needed(library, symbols::OF_GLIBC)?);
        complaints.extend(symbols::check_versions(library)?);
        complaints.extend(symbols::check_not_for_tests(library)?);
    }
    match symbols::installed(&tools, "liburing.so.2")? {
        Some(path) => complaints.extend(symbols::check_replaces(&libraries[0], &path)?),
        None => println!("skipped: the comparison with the installed liburing.so.2, which is not installed"),
    }
    complaints.iter().for_each(|complaint| eprintln!("{complaint}"));
    ensure!(complaints.is_empty(), "{} symbols are not as they should be", complaints.len());
    println!("all symbols of libanyring.so, liburing.so.2 and liburing-ffi.so.2 are as they should be");
    Ok(())
}

fn make_conformance() -> Result<()> {
    let root = anyring_xtask::root();
    let (text, complaints) = conformance::Sources::read(root)?.table()?;
    std::fs::write(root.join("docs/conformance.md"), text)?;
    complaints.iter().for_each(|complaint| println!("{complaint}"));
    ensure!(complaints.is_empty(), "not every name is as it should be");
    Ok(())
}

fn list_rooms() -> Result<()> {
    let root = anyring_xtask::root();
    print!("{}", heads::list(root)?);
    Ok(())
}

fn list_processors() -> Result<()> {
    for (file, count, why) in processors::ELSEWHERE {
        println!("{count} {file}: {why}");
    }
    let complaints = processors::check(anyring_xtask::root())?;
    complaints.iter().for_each(|complaint| eprintln!("{complaint}"));
    ensure!(complaints.is_empty(), "{} files are not as the list says", complaints.len());
    Ok(())
}

fn print_rooms() -> Result<()> {
    let root = anyring_xtask::root();
    let rooms = rooms::Rooms::read(&root.join("crates/engine/src"))?;
    let arrows = rooms.arrows();
    for ((from, to), lines) in &arrows {
        println!("{from} -> {to}");
        lines.iter().for_each(|line| println!("    {line}"));
    }
    let (known, all) = rooms.pairs();
    println!("{} rooms, {known} of {all} pairs know each other", rooms.names().len());
    for circle in rooms.circles() {
        println!("circle: {circle:?}");
    }
    println!("{} files extend RingGuard", rooms.files.iter().filter(|file| file.extends_guard).count());
    Ok(())
}
