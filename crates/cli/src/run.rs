//! `anyring run`: decides which of the kernel and anyring serves the program's io_uring and Linux AIO, then becomes
//! the program.

use crate::arch;
use crate::asked::{self, Decision, Means};
use crate::child::Outcome;
use crate::cli::{Backend, RunOptions};
use crate::doctor::{self, Server, Trial};
use crate::elf::Way;
use crate::exec::{can_start, exec, exec_by, resolve};
use crate::failure::{Failure, CANNOT_EXECUTE, USAGE};
use crate::{child, elf, library, needs, ring};
use anyring_abi::interface::Name;
use anyring_guest::State;
use anyring_serve::environment::{REFUSES, WORKS};
use anyring_serve::probe;
use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use std::convert::Infallible;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// Executes the program with libanyring.so preloaded, or as a guest. A program that anyring should not serve starts
/// without it. So does a program that anyring cannot serve, if the kernel serves it.
pub fn run(options: &RunOptions) -> Result<Infallible, Failure> {
    const KILLED: &str = "anyring cannot serve io_uring: a seccomp filter kills it for a call it needs";
    child::rehearse(|| plan(options)).unwrap_or_else(|| Err(Failure::own(KILLED)))?.carry_out(options)
}

/// The plan for starting the program. Making the plan only asks the kernel and tries servers, so a child can do it.
#[derive(Serialize, Deserialize)]
struct Plan {
    rings: Decision,
    aio: Decision,
    /// The means of starting the program, for the log. `None` if the program does not exist.
    means: Option<Means>,
    /// True if the environment has to name the servers.
    is_served: bool,
    /// Variables to set, and to remove.
    variables: Vec<(String, Option<OsString>)>,
    /// The host of guests, and the arguments between its name and the program's arguments.
    host: Option<(OsString, Vec<OsString>)>,
    /// True if a filter kills for io_uring's calls.
    calls_kill: bool,
}

impl Plan {
    /// The plan to start the program without anyring.
    fn plainly(rings: Decision, aio: Decision, means: Option<Means>) -> Plan {
        Plan { rings, aio, means, is_served: false, variables: Vec::new(), host: None, calls_kill: false }
    }

    /// The plan to start the program with anyring.
    fn served(rings: Decision, aio: Decision, means: Option<Means>) -> Plan {
        Plan { is_served: true, ..Plan::plainly(rings, aio, means) }
    }

    fn set(&mut self, variable: &str, value: Option<OsString>) {
        self.variables.push((variable.to_owned(), value));
    }

    fn carry_out(self, options: &RunOptions) -> Result<Infallible, Failure> {
        if let Some(means) = &self.means {
            asked::open(options, &self.rings, &self.aio, means)?;
        }
        if self.is_served {
            set_environment(options, &self)?;
        }
        for (variable, value) in self.variables {
            match value {
                Some(value) => std::env::set_var(variable, value),
                None => std::env::remove_var(variable),
            }
        }
        match self.host {
            Some((host, lead)) => exec_by(Path::new(&host), lead, &options.program),
            None => exec(&options.program),
        }
    }
}

fn plan(options: &RunOptions) -> Result<Plan, Failure> {
    let (rings, aio) = (chosen(options.backend, "ANYRING_BACKEND")?, chosen(options.aio, "ANYRING_AIO")?);
    let needs = needs::parse(&options.needs)?;
    let (rings, aio, calls_kill) = servers(rings, aio)?;
    let mut plan = plan_with(options, with_needs(rings, &needs)?, aio)?;
    plan.calls_kill =
        plan.is_served && plan.rings.server == Server::User && calls_kill.unwrap_or_else(probe::ring_calls_kill);
    Ok(plan)
}

fn plan_with(options: &RunOptions, rings: Decision, aio: Decision) -> Result<Plan, Failure> {
    // A program that is not found, or cannot be executed, is left to exec, which reports it.
    let file = resolve(&options.program.words[0]).filter(|file| can_start(file));
    if (rings.server, aio.server) == (Server::Kernel, Server::Kernel) && !options.guest {
        return Ok(left_to_kernel(file.as_deref(), rings, aio));
    }
    let way = match &file {
        Some(file) => elf::way_of(file).map_err(|message| Failure { status: CANNOT_EXECUTE, message })?,
        None => Way::Preloaded,
    };
    // A guest makes all its calls by its own instructions, so `no_raw` rules guests out.
    let is_zero = |variable| std::env::var_os(variable).is_some_and(|value| value == "0");
    let no_raw = options.no_raw || is_zero("ANYRING_RAW");
    let no_guest = options.no_guest || no_raw || is_zero("ANYRING_GUEST");
    let missing = || if rings.server == Server::User { doctor::missing_block() } else { None };
    let not_missing = || match missing() {
        Some(why) => Err(not_served(&why)),
        None => Ok(()),
    };
    // Below a filter it is unknown which of the engine's calls are fatal, before they are made.
    let is_tried = rings.server == Server::User && child::may_be_filtered();
    if !is_tried {
        not_missing()?;
    }
    // A missing block explains more than the outcome of a trial. Returns the reason for leaving instructions alone,
    // if any.
    let judge = |trial: Trial| match trial {
        _ if !is_tried => Ok(None),
        Trial::Served => Ok(None),
        Trial::WithoutInstructions(why) => not_missing().map(|()| Some(why)),
        Trial::Faulty => not_missing().map(|()| None),
        Trial::Killed(why) => not_missing().and(Err(not_served(&why))),
    };
    let why_no_library = match (way, &file) {
        (Way::Guest { refusal, .. }, _) if no_guest => {
            return Err(Failure { status: CANNOT_EXECUTE, message: refusal });
        }
        (Way::Guest { what, .. }, _) => format!("it is {what}"),
        (Way::Preloaded, Some(_)) if options.guest => "asked for".to_owned(),
        (Way::Preloaded, file) => match find_library(file.as_deref(), is_tried, !no_raw)? {
            Ok((library, trial)) => {
                let without = judge(trial)?;
                return Ok(preloaded(library, without, file.is_some(), no_guest, rings, aio));
            }
            Err(why) if no_guest || file.is_none() => return Err(Failure::own(why)),
            Err(why) => why,
        },
    };
    let Some(file) = &file else { return Ok(Plan::plainly(rings, aio, None)) };
    if is_tried {
        judge(doctor::try_guest())?;
    }
    as_guest(options, file, why_no_library, rings, aio)
}

/// Finds the library, and tries it if `is_tried`. If the trial's requests were served, the loader of the trial's
/// program accepts the library. If the program has another loader, or the requests were not served, the program's
/// loader is asked.
fn find_library(
    file: Option<&Path>,
    is_tried: bool,
    with_instructions: bool,
) -> Result<Result<(PathBuf, Trial), String>, Failure> {
    let loader = file.and_then(|file| elf::loader_of(&elf::loaded_for(file)));
    let mut trial = Trial::Faulty;
    if let (true, Ok(library)) = (is_tried, library::find_loadable()) {
        trial = doctor::try_library(&library, with_instructions);
        if matches!(trial, Trial::Served) && loader.as_deref() == Some(Path::new(arch::LOADER)) {
            return Ok(Ok((library, trial)));
        }
    }
    Ok(library::try_find(file).map_err(Failure::own)?.map(|library| (library, trial)))
}

fn not_served(why: &str) -> Failure {
    Failure::own(format!("anyring cannot serve io_uring: {why} (`anyring doctor` says more)"))
}

/// The plan for a program that the kernel serves. If the library is available, it serves the requests that the kernel
/// refuses. If not, the program starts without anyring.
fn left_to_kernel(file: Option<&Path>, rings: Decision, aio: Decision) -> Plan {
    let Some(file) = file else { return Plan::plainly(rings, aio, None) };
    let is_wanted = rings.kernel_is_first() || aio.kernel_is_first();
    let library = is_wanted.then(|| elf::can_preload(file).and_then(|()| library::find_for(file)));
    let why = match library {
        Some(Ok(library)) => return preloaded(library, None, true, false, rings, aio),
        Some(Err(why)) => Some(why),
        None => None,
    };
    Plan::plainly(rings, aio, Some(Means::Plain(why)))
}

/// The plan with the library preloaded. `without`: the reason why system call instructions of the program are not
/// served.
fn preloaded(
    library: PathBuf,
    without: Option<String>,
    is_found: bool,
    no_guest: bool,
    rings: Decision,
    aio: Decision,
) -> Plan {
    let no_guest = no_guest || without.is_some();
    let variables = [
        ("LD_PRELOAD", Some(library::preload_list(&library))),
        ("ANYRING_LIBRARY", Some(library.clone().into())),
        ("ANYRING_RAW", without.as_ref().map(|_| "0".into())),
    ];
    let mut plan = Plan::served(rings, aio, is_found.then(|| Means::Library(library.into(), without)));
    for (variable, value) in variables.into_iter().filter(|(_, value)| value.is_some()) {
        plan.set(variable, value);
    }
    // For children into which the library cannot be preloaded. Without a host, the log names them.
    let host = match library::find_guest() {
        Ok(host) if !no_guest => Some(host.into()),
        _ if no_guest => Some("0".into()),
        _ => None,
    };
    plan.set("ANYRING_GUEST", host);
    plan
}

/// The plan for a guest, and for the programs that it starts.
fn as_guest(
    options: &RunOptions,
    file: &Path,
    why: String,
    rings: Decision,
    aio: Decision,
) -> Result<Plan, Failure> {
    let host = library::find_guest().map_err(Failure::own)?;
    let mut plan = Plan::served(rings, aio, Some(Means::Guest(why)));
    // Programs that it starts get the library preloaded, where that works.
    let library = if options.guest { None } else { library::find_loadable().ok() };
    if let Some(library) = &library {
        plan.set("ANYRING_LIBRARY", Some(library.into()));
        plan.set("ANYRING_GUEST", Some(host.clone().into()));
    }
    let [rings, aio] = [&plan.rings, &plan.aio].map(|decision| decision.server == Server::User);
    let state = State { rings, aio, preloads: library.is_some(), ..State::default() };
    plan.host = Some((host.into(), anyring_guest::lead(state, file).into()));
    Ok(plan)
}

/// Returns the backend from the flag, or else from the variable. Without `anyring run`, the library reads that variable
/// itself.
pub fn chosen(flag: Option<Backend>, variable: &str) -> Result<Backend, Failure> {
    if let Some(backend) = flag {
        return Ok(backend);
    }
    let Some(value) = std::env::var_os(variable).filter(|value| !value.is_empty()) else {
        return Ok(Backend::Auto);
    };
    // Set by an outer `run`: the kernel's io_uring need not work here as well.
    if value == WORKS {
        return Ok(Backend::Auto);
    }
    let known = value.to_str().and_then(|value| Backend::from_str(value, false).ok());
    known.ok_or_else(|| Failure {
        status: USAGE,
        message: format!("{variable}={}: it must be auto, kernel or user", value.to_string_lossy()),
    })
}

/// The answers of a child that is asked all questions. One that kills it, and those after it, stay unanswered.
#[derive(Default, Serialize, Deserialize)]
struct Answers {
    aio_works: Option<bool>,
    makes_memfds: Option<bool>,
    /// False if no filter kills for io_uring's calls.
    calls_kill: Option<bool>,
    rings: Option<Result<ring::Server, ring::Fault>>,
}

/// Decides on the servers of io_uring and Linux AIO; fails if a requested one does not work. Also returns whether a
/// filter kills for io_uring's calls, if that is known.
fn servers(rings: Backend, aio: Backend) -> Result<(Decision, Decision, Option<bool>), Failure> {
    let answers = child::ask_in_turn::<Answers>(|give| {
        let mut answers = Answers::default();
        if aio != Backend::User {
            answers.aio_works = Some(doctor::aio_in_brief().is_ok());
            give(&answers);
        }
        answers.makes_memfds = Some(child::make_memfd());
        give(&answers);
        if rings != Backend::Kernel {
            probe::make_ring_calls();
            answers.calls_kill = Some(false);
            give(&answers);
        }
        if rings != Backend::User {
            answers.rings = Some(ring::complete_requests(ring::Needs::All));
        }
        give(&answers)
    });
    let answers = answers.unwrap_or_default();
    if let Some(answer) = answers.makes_memfds {
        child::learn_memfds(answer);
    }
    let rings = decide_on_rings(rings, || answers.rings.map_or_else(ring::try_here, Outcome::Replied))?;
    let aio = decide(aio, "AIO", || match answers.aio_works {
        Some(true) => (true, String::new()),
        Some(false) => doctor::kernel_aio().outcome(),
        None => doctor::kernel_aio_in_brief().outcome(),
    })?;
    Ok((rings, aio, answers.calls_kill))
}

/// Decides on the server of io_uring; fails if the requested one does not work.
pub fn server_of_rings(choice: Backend) -> Result<Decision, Failure> {
    decide_on_rings(choice, ring::try_here)
}

fn decide_on_rings(choice: Backend, try_kernel: impl FnOnce() -> ring::Trial) -> Result<Decision, Failure> {
    decide(choice, "io_uring", || {
        let trial = try_kernel();
        (ring::kernel_works(&trial), ring::describe(&trial))
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

/// Gives io_uring to anyring if the kernel lacks something that the program needs; fails if the kernel was asked for.
fn with_needs(rings: Decision, needs: &[&'static Name]) -> Result<Decision, Failure> {
    match rings.server {
        Server::User => Ok(rings),
        Server::Kernel => match needs::lack(needs) {
            None => Ok(rings),
            Some(why) if rings.is_auto => Ok(Decision { server: Server::User, why, ..rings }),
            Some(why) => Err(Failure::own(format!("--needs: {why}"))),
        },
    }
}

fn refusal(what: &str, why: &str) -> Failure {
    Failure::own(format!("the kernel's {what} does not work here: {why} (`anyring doctor` says more)"))
}

fn set_environment(options: &RunOptions, plan: &Plan) -> Result<(), Failure> {
    for (variable, decision) in [("ANYRING_BACKEND", &plan.rings), ("ANYRING_AIO", &plan.aio)] {
        let value = match decision.server {
            Server::User => "user",
            Server::Kernel if decision.is_auto => WORKS,
            Server::Kernel => "kernel",
        };
        std::env::set_var(variable, value);
    }
    // Absolute, since the program may change its directory before its child opens them.
    for (variable, file) in [("ANYRING_STATS", &options.stats), ("ANYRING_LOG", &options.log)] {
        let Some(file) = file else { continue };
        let file =
            std::path::absolute(file).map_err(|error| Failure::own(format!("{}: {error}", file.display())))?;
        std::env::set_var(variable, file);
    }
    if options.no_raw {
        std::env::set_var("ANYRING_RAW", "0");
    }
    if plan.calls_kill && !options.no_raw {
        std::env::set_var(REFUSES, std::process::id().to_string());
    }
    Ok(())
}
