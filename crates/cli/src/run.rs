//! `anyring run`: decides who serves the program's io_uring and Linux AIO, then becomes the program.

use crate::asked::{self, Decision, Means};
use crate::cli::{Backend, RunOptions};
use crate::doctor::{self, Server};
use crate::elf::Way;
use crate::exec::{can_start, exec, exec_by, resolve};
use crate::failure::{Failure, CANNOT_EXECUTE, USAGE};
use crate::{elf, library, ring};
use anyring_guest::State;
use anyring_serve::environment::{REFUSES, WORKS};
use anyring_serve::probe;
use clap::ValueEnum;
use std::convert::Infallible;
use std::path::Path;

/// Executes the program with libanyring.so preloaded, or as a guest: what is not to be served, or cannot be and need not, plainly.
pub fn run(options: &RunOptions) -> Result<Infallible, Failure> {
    let rings = server_of_rings(chosen(options.backend, "ANYRING_BACKEND")?)?;
    let aio = server_of_aio(chosen(options.aio, "ANYRING_AIO")?)?;
    // What is not found, or cannot be executed, is left to exec, which says so: nobody serves it.
    let file = resolve(&options.program.words[0]).filter(|file| can_start(file));
    if (rings.server, aio.server) == (Server::Kernel, Server::Kernel) && !options.guest {
        return leave_to_kernel(options, file.as_deref(), &rings, &aio);
    }
    let missing = if rings.server == Server::User { doctor::missing_block() } else { None };
    if let Some(why) = missing {
        return Err(Failure::own(format!("anyring cannot serve io_uring: {why} (`anyring doctor` says more)")));
    }
    let way = match &file {
        Some(file) => elf::way_of(file).map_err(|message| Failure { status: CANNOT_EXECUTE, message })?,
        None => Way::Preloaded,
    };
    // In a guest everything comes by its own instructions.
    let is_zero = |variable| std::env::var_os(variable).is_some_and(|value| value == "0");
    let no_guest = options.no_guest || options.no_raw || is_zero("ANYRING_RAW") || is_zero("ANYRING_GUEST");
    let why_no_library = match (way, &file) {
        (Way::Guest { refusal, .. }, _) if no_guest => {
            return Err(Failure { status: CANNOT_EXECUTE, message: refusal });
        }
        (Way::Guest { what, .. }, _) => format!("it is {what}"),
        (Way::Preloaded, Some(_)) if options.guest => "asked for".to_owned(),
        (Way::Preloaded, file) => match library::try_find(file.as_deref()).map_err(Failure::own)? {
            Ok(library) => return preload(options, &library, file.is_some(), no_guest, &rings, &aio),
            Err(why) if no_guest || file.is_none() => return Err(Failure::own(why)),
            Err(why) => why,
        },
    };
    match &file {
        Some(file) => run_guest(options, file, &why_no_library, &rings, &aio),
        None => exec(&options.program),
    }
}

/// Executes the program of which the kernel serves all that it does not refuse: with the library standing by, where that can be
/// had, and else plainly.
fn leave_to_kernel(
    options: &RunOptions,
    file: Option<&Path>,
    rings: &Decision,
    aio: &Decision,
) -> Result<Infallible, Failure> {
    let Some(file) = file else { return exec(&options.program) };
    let is_wanted = rings.stands_by() || aio.stands_by();
    let library = is_wanted.then(|| elf::takes_library(file).and_then(|()| library::find_for(file)));
    let why = match library {
        Some(Ok(library)) => return preload(options, &library, true, false, rings, aio),
        Some(Err(why)) => Some(why),
        None => None,
    };
    asked::open(options, rings, aio, &Means::Plain(why.as_deref()))?;
    exec(&options.program)
}

/// Executes the program with the library preloaded.
fn preload(
    options: &RunOptions,
    library: &Path,
    is_found: bool,
    no_guest: bool,
    rings: &Decision,
    aio: &Decision,
) -> Result<Infallible, Failure> {
    if is_found {
        asked::open(options, rings, aio, &Means::Library(library))?;
    }
    set_environment(options, rings, aio)?;
    std::env::set_var("LD_PRELOAD", library::preload_list(library));
    std::env::set_var("ANYRING_LIBRARY", library);
    // For children into which the library cannot be preloaded. Without a host they are named in the log.
    match library::find_guest() {
        Ok(host) if !no_guest => std::env::set_var("ANYRING_GUEST", host),
        _ if no_guest => std::env::set_var("ANYRING_GUEST", "0"),
        _ => std::env::remove_var("ANYRING_GUEST"),
    }
    exec(&options.program)
}

/// Runs the program as a guest, and whatever that starts.
fn run_guest(
    options: &RunOptions,
    file: &Path,
    why: &str,
    rings: &Decision,
    aio: &Decision,
) -> Result<Infallible, Failure> {
    let host = library::find_guest().map_err(Failure::own)?;
    asked::open(options, rings, aio, &Means::Guest(why))?;
    set_environment(options, rings, aio)?;
    // What it starts has the library preloaded, where that works.
    let library = if options.guest { None } else { library::find_loadable().ok() };
    if let Some(library) = &library {
        std::env::set_var("ANYRING_LIBRARY", library);
        std::env::set_var("ANYRING_GUEST", &host);
    }
    let [rings, aio] = [rings, aio].map(|decision| decision.server == Server::User);
    let state = State { rings, aio, preloads: library.is_some(), ..State::default() };
    exec_by(&host, state, file, &options.program)
}

/// What the flag says, or else the variable, which the library reads by itself where there is no `run`.
pub fn chosen(flag: Option<Backend>, variable: &str) -> Result<Backend, Failure> {
    if let Some(backend) = flag {
        return Ok(backend);
    }
    let Some(value) = std::env::var_os(variable).filter(|value| !value.is_empty()) else {
        return Ok(Backend::Auto);
    };
    // Below another `run`: what works there need not do so here.
    if value == WORKS {
        return Ok(Backend::Auto);
    }
    let known = value.to_str().and_then(|value| Backend::from_str(value, false).ok());
    known.ok_or_else(|| Failure {
        status: USAGE,
        message: format!("{variable}={}: it must be auto, kernel or user", value.to_string_lossy()),
    })
}

/// Who serves io_uring, or why nobody does as was asked for.
pub fn server_of_rings(choice: Backend) -> Result<Decision, Failure> {
    decide(choice, "io_uring", || {
        let trial = ring::try_here();
        (ring::kernel_works(&trial), ring::describe(&trial))
    })
}

/// The same for Linux AIO.
fn server_of_aio(choice: Backend) -> Result<Decision, Failure> {
    decide(choice, "AIO", || {
        let trial = doctor::kernel_aio_in_brief();
        (trial.works, trial.answer)
    })
}

fn decide(choice: Backend, what: &str, try_kernel: impl FnOnce() -> (bool, String)) -> Result<Decision, Failure> {
    let decision = |server, why: String| Ok(Decision { server, is_auto: choice == Backend::Auto, why });
    if choice == Backend::User {
        return decision(Server::User, "asked for".to_owned());
    }
    match (try_kernel(), choice) {
        ((true, _), Backend::Kernel) => decision(Server::Kernel, "asked for, and works".to_owned()),
        ((true, _), _) => decision(Server::Kernel, "its own works here".to_owned()),
        ((false, why), Backend::Kernel) => Err(refusal(what, &why)),
        ((false, why), _) => decision(Server::User, format!("the kernel's does not work: {why}")),
    }
}

fn refusal(what: &str, why: &str) -> Failure {
    Failure::own(format!("the kernel's {what} does not work here: {why} (`anyring doctor` says more)"))
}

fn set_environment(options: &RunOptions, rings: &Decision, aio: &Decision) -> Result<(), Failure> {
    for (variable, decision) in [("ANYRING_BACKEND", rings), ("ANYRING_AIO", aio)] {
        let value = match decision.server {
            Server::User => "user",
            Server::Kernel if decision.is_auto => WORKS,
            Server::Kernel => "kernel",
        };
        std::env::set_var(variable, value);
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
    if rings.server == Server::User && probe::ring_calls_kill() {
        std::env::set_var(REFUSES, std::process::id().to_string());
    }
    Ok(())
}
