//! `anyring run`: decides who serves the program's io_uring and Linux AIO, then becomes the program.

use crate::cli::{Backend, RunOptions};
use crate::doctor::{self, Server};
use crate::exec::{exec, resolve};
use crate::failure::{Failure, CANNOT_EXECUTE};
use crate::{elf, library, ring};
use std::convert::Infallible;
use std::path::Path;

/// Executes the program plainly where the kernel serves it, else with libanyring.so preloaded.
pub fn run(options: &RunOptions) -> Result<Infallible, Failure> {
    let rings = server_of_rings(options.backend)?;
    let aio = server_of_aio(options.aio)?;
    if (rings, aio) == (Server::Kernel, Server::Kernel) {
        return exec(&options.program);
    }
    let library = library::find().map_err(Failure::own)?;
    // A program that is not found is left to exec, which says so.
    if let Some(file) = resolve(&options.program.words[0]) {
        elf::check_preloadable(&file).map_err(|message| Failure { status: CANNOT_EXECUTE, message })?;
    }
    set_environment(options, &library, rings, aio)?;
    exec(&options.program)
}

/// Who serves io_uring, or why nobody does as was asked for.
pub fn server_of_rings(choice: Backend) -> Result<Server, Failure> {
    if choice == Backend::User {
        return Ok(Server::User);
    }
    let trial = ring::try_here();
    match ring::kernel_works(&trial) {
        true => Ok(Server::Kernel),
        false if choice == Backend::Auto => Ok(Server::User),
        false => Err(refusal("io_uring", &ring::describe(&trial))),
    }
}

/// The same for Linux AIO.
fn server_of_aio(choice: Backend) -> Result<Server, Failure> {
    if choice == Backend::User {
        return Ok(Server::User);
    }
    let trial = doctor::kernel_aio();
    match trial.works {
        true => Ok(Server::Kernel),
        false if choice == Backend::Auto => Ok(Server::User),
        false => Err(refusal("AIO", &trial.answer)),
    }
}

fn refusal(what: &str, why: &str) -> Failure {
    Failure::own(format!("the kernel's {what} does not work here: {why} (`anyring doctor` says more)"))
}

fn set_environment(options: &RunOptions, library: &Path, rings: Server, aio: Server) -> Result<(), Failure> {
    std::env::set_var("LD_PRELOAD", library::preload_list(library));
    for (variable, server) in [("ANYRING_BACKEND", rings), ("ANYRING_AIO", aio)] {
        std::env::set_var(variable, if server == Server::User { "user" } else { "kernel" });
    }
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
    if options.no_spin {
        std::env::set_var("ANYRING_SPIN", "0");
    }
    Ok(())
}
