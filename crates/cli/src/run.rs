//! `anyring run`: decides who serves the program's io_uring, then becomes the program.

use crate::cli::{Backend, RunOptions};
use crate::exec::{exec, resolve};
use crate::failure::{Failure, CANNOT_EXECUTE};
use crate::{elf, library, ring};
use std::convert::Infallible;
use std::path::Path;

/// Executes the program plainly where the kernel serves it, else with libanyring.so preloaded.
pub fn run(options: &RunOptions) -> Result<Infallible, Failure> {
    if options.backend != Backend::User {
        let trial = ring::try_here();
        if ring::kernel_works(&trial) {
            return exec(&options.program);
        }
        if options.backend == Backend::Kernel {
            let why = ring::describe(&trial);
            return Err(Failure::own(format!(
                "the kernel's io_uring does not work here: {why} (`anyring doctor` says more)"
            )));
        }
    }
    let library = library::find().map_err(Failure::own)?;
    // A program that is not found is left to exec, which says so.
    if let Some(file) = resolve(&options.program.words[0]) {
        elf::check_preloadable(&file).map_err(|message| Failure { status: CANNOT_EXECUTE, message })?;
    }
    set_environment(options, &library)?;
    exec(&options.program)
}

fn set_environment(options: &RunOptions, library: &Path) -> Result<(), Failure> {
    std::env::set_var("LD_PRELOAD", library::preload_list(library));
    std::env::set_var("ANYRING_BACKEND", "user");
    // Absolute, since the program may change its directory before a child of it opens them.
    for (variable, file) in [("ANYRING_STATS", &options.stats), ("ANYRING_LOG", &options.log)] {
        let Some(file) = file else { continue };
        let file =
            std::path::absolute(file).map_err(|error| Failure::own(format!("{}: {error}", file.display())))?;
        std::env::set_var(variable, file);
    }
    if options.no_raw {
        std::env::set_var("ANYRING_RAW", "0");
    }
    Ok(())
}
