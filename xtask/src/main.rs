//! `cargo xtask`: see `--help`.

mod manual;

use anyhow::{ensure, Context, Result};
use anyring_abi::interface;
use anyring_xtask::{artifacts, conformance, dropin, symbols};
use clap::{Parser, Subcommand};
use std::path::{Path, PathBuf};

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
        /// With the release profile
        #[arg(long)]
        release: bool,
        /// Where to put them [default: target/PROFILE/dropin]
        #[arg(long, value_name = "DIR")]
        out: Option<PathBuf>,
    },
    /// Make what `make install` installs besides cargo's own outputs: drop-ins, man pages, completions
    Dist {
        /// Where cargo put libanyring.a and libanyring.so (target/release)
        #[arg(value_name = "DIR")]
        built: PathBuf,
        /// Where to put them [default: DIR/dist]
        #[arg(long, value_name = "DIR")]
        out: Option<PathBuf>,
    },
    /// Compare the symbols of libanyring.so and both drop-ins with the version maps and the installed liburing
    CheckSymbols {
        /// With the release profile
        #[arg(long)]
        release: bool,
    },
    /// Make CONFORMANCE.md of the records of two conformance runs; fails while a name is not served or has no case
    Conformance {
        /// The record of the run on the kernel's io_uring
        #[arg(value_name = "KERNEL")]
        kernel: PathBuf,
        /// The record of the run on anyring
        #[arg(value_name = "ENGINE")]
        engine: PathBuf,
        /// Do not write the file, but fail if it is not what it would be
        #[arg(long)]
        check: bool,
    },
}

fn main() -> Result<()> {
    match Arguments::parse().task {
        Task::Dropin { release, out } => {
            let built = artifacts::build(release)?;
            let out = out.unwrap_or_else(|| built.directory().join("dropin"));
            for library in dropin::link(&built, &out)? {
                println!("{}", library.display());
            }
        }
        Task::Dist { built, out } => {
            let out = out.unwrap_or_else(|| built.join("dist"));
            dropin::link(&artifacts::Artifacts::in_directory(&built)?, &out.join("dropin"))?;
            manual::write(&out)?;
            println!("{}", out.display());
        }
        Task::CheckSymbols { release } => {
            let built = artifacts::build(release)?;
            let libraries = dropin::link(&built, &built.directory().join("dropin"))?;
            let mut complaints = symbols::check_preload(&built.shared)?;
            complaints.extend(symbols::check_needed(&built.shared, symbols::OF_ANY_LIBC)?);
            complaints.extend(symbols::check_unforced(&built.shared)?);
            for library in &libraries {
                complaints.extend(symbols::check_dropin(library)?);
                complaints.extend(symbols::check_needed(library, symbols::OF_GLIBC)?);
                complaints.extend(symbols::check_unforced(library)?);
            }
            match symbols::installed("liburing.so.2")? {
                Some(path) => complaints.extend(symbols::check_replaces(&libraries[0], &path)?),
                None => {
                    println!("skipped: the comparison with the installed liburing.so.2, which is not installed")
                }
            }
            complaints.iter().for_each(|complaint| eprintln!("{complaint}"));
            ensure!(complaints.is_empty(), "{} symbols are not as they should be", complaints.len());
            println!("all symbols of libanyring.so, liburing.so.2 and liburing-ffi.so.2 are as they should be");
        }
        Task::Conformance { kernel, engine, check } => make_conformance(&kernel, &engine, check)?,
    }
    Ok(())
}

/// What a row claims: its name and status. How many cases saw a name, and where, depends on timing for some.
fn claim(line: &str) -> Option<(&str, &str)> {
    let mut cells = line.strip_prefix("| ")?.split(" | ");
    Some((cells.next()?, cells.next()?))
}

fn make_conformance(kernel: &Path, engine: &Path, check: bool) -> Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().context("xtask/ is in the repository")?;
    let read = |name: &str| std::fs::read_to_string(root.join(name)).with_context(|| name.to_owned());
    let (differences, limits) = (read("conformance/differences.txt")?, read("docs/limits.md")?);
    let documents = conformance::Documents { differences: &differences, limits: &limits };
    let (text, complaints) =
        conformance::table(&conformance::read(kernel)?, &conformance::read(engine)?, &documents)?;
    let mut failed = complaints.len();
    if check {
        let current = read("CONFORMANCE.md")?;
        let lacking: Vec<_> =
            text.lines().filter(|line| !current.lines().any(|known| claim(known) == claim(line))).collect();
        if !lacking.is_empty() {
            lacking.iter().for_each(|line| println!("CONFORMANCE.md lacks: {line}"));
            println!("CONFORMANCE.md is not what the results say: `make conformance-renew` writes it anew");
            failed += 1;
        }
    } else {
        std::fs::write(root.join("CONFORMANCE.md"), text)?;
    }
    complaints.iter().for_each(|complaint| println!("{complaint}"));
    println!("{} passed, {failed} failed, 0 skipped", interface::names().count().saturating_sub(complaints.len()));
    ensure!(failed == 0, "not every name is as it should be");
    Ok(())
}
