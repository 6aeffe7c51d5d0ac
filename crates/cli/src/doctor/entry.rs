//! The ways into the engine, each tried end to end in a new process: a dynamic program (`trial.c`) with the library preloaded,
//! which makes a ring by that way, or this executable as a guest of itself.

use super::Check;
use crate::child::{ask, hear, Outcome, Said};
use crate::cli::EntryPoint;
use crate::errno;
use crate::library::{executable, preload_list};
use crate::ring::{complete_requests, Server};
use anyring_guest::State;
use clap::ValueEnum;
use rustix::fs::{memfd_create, MemfdFlags};
use std::convert::Infallible;
use std::ffi::{c_char, CString};
use std::fs::File;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStringExt;
use std::path::Path;

/// glibc's loader, by the name that dynamic programs have in them.
const LOADER: &str =
    if cfg!(target_arch = "aarch64") { "/lib/ld-linux-aarch64.so.1" } else { "/lib64/ld-linux-x86-64.so.2" };

/// The program of `trial.c`, which build.rs has made.
static TRIAL: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/trial"));

impl EntryPoint {
    fn name(self) -> &'static str {
        match self {
            EntryPoint::Preload => "preload",
            EntryPoint::Liburing => "liburing",
            EntryPoint::Syscall => "syscall",
            EntryPoint::Raw => "raw",
            EntryPoint::Guest => "guest",
        }
    }

    fn purpose(self) -> &'static str {
        match self {
            EntryPoint::Preload => "the library loads into a dynamically linked program",
            EntryPoint::Liburing => "programs that call liburing's functions",
            EntryPoint::Syscall => "programs that call libc's syscall(): most Rust crates, Node",
            EntryPoint::Raw => "programs with system call instructions of their own: fio",
            EntryPoint::Guest => "programs that no library can be preloaded into: static ones, musl's",
        }
    }
}

/// Tries every way that there is here: those of the library only with glibc. Answers glibc's version, too.
pub fn entry_points(library: Option<&Path>) -> (Vec<Check>, Option<String>) {
    let library = library.filter(|_| Path::new(LOADER).exists());
    // A filter may kill for it.
    let leaves_no_core = matches!(ask(limit_core), Outcome::Answered(true));
    let mut glibc = None;
    let mut checks = Vec::new();
    for entry in EntryPoint::value_variants() {
        let found = match (entry, library) {
            (EntryPoint::Raw | EntryPoint::Guest, _) if !anyring_guest::HERE => Err("x86-64 only".to_owned()),
            (EntryPoint::Guest, _) => start(*entry, None, leaves_no_core),
            (_, Some(library)) => start(*entry, Some(library), leaves_no_core),
            (_, None) => continue,
        };
        if let (EntryPoint::Preload, Ok(said)) = (entry, &found) {
            glibc = Some(said.trim().to_owned()).filter(|version| !version.is_empty());
        }
        checks.push(Check {
            name: entry.name().to_owned(),
            purpose: entry.purpose().to_owned(),
            needed: false,
            instead: None,
            works: found.is_ok(),
            answer: found.err().unwrap_or_else(|| "works".to_owned()),
        });
    }
    (checks, glibc)
}

/// Runs [`run`] in a new process with the library preloaded, or as a guest: what that prints, or why it failed.
fn start(entry: EntryPoint, library: Option<&Path>, leaves_no_core: bool) -> Result<String, String> {
    let executable = executable()?;
    let lead: Vec<_> = match library {
        Some(_) => Vec::new(),
        None => {
            let state = State { rings: true, aio: true, ..State::default() };
            anyring_guest::lead(state, &executable)
                .into_iter()
                .chain([executable.clone().into_os_string()])
                .collect()
        }
    };
    let words = [executable.clone().into_os_string()].into_iter().chain(lead);
    let words = words.chain(["entry-point", entry.name()].map(Into::into));
    let words: Vec<_> = words.filter_map(|word| CString::new(word.into_vec()).ok()).collect();
    let argv: Vec<_> = words.iter().map(|word| word.as_ptr()).chain([std::ptr::null()]).collect();
    let said = hear(|| {
        if leaves_no_core {
            limit_core();
        }
        if let Some(library) = library {
            std::env::set_var("LD_PRELOAD", preload_list(library));
        }
        std::env::set_var("ANYRING_BACKEND", "user");
        for ours in ["ANYRING_STATS", "ANYRING_LOG", "ANYRING_RAW"] {
            std::env::remove_var(ours);
        }
        // SAFETY: strings, and a list of them that ends with null.
        unsafe { libc::execv(argv[0], argv.as_ptr()) };
        format!("anyring cannot execute itself: {}", errno::describe(errno::last()))
    });
    match said {
        Outcome::Answered(Said { status: 0, text }) => Ok(text),
        // The loader's complaint about the library would come before what was found.
        Outcome::Answered(Said { text, .. }) => Err(first_line_after_prefix(&text)),
        Outcome::Killed(signal) => Err(format!("the process was killed by {}", errno::signal_name(signal))),
        other => Err(other.describe(|_| String::new())),
    }
}

/// What is killed leaves no core file.
fn limit_core() -> bool {
    let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: a pointer to an initialised rlimit.
    unsafe { libc::setrlimit(libc::RLIMIT_CORE, &none) == 0 }
}

fn first_line_after_prefix(text: &str) -> String {
    let line = text.lines().next().unwrap_or("it failed without a word");
    line.strip_prefix("anyring: ").unwrap_or(line).to_owned()
}

/// The new process's part: whether this way leads to the engine.
pub fn run(entry: EntryPoint) -> Result<(), String> {
    match entry {
        EntryPoint::Guest => match complete_requests().map_err(|fault| fault.to_string())? {
            Server::Emulation => Ok(()),
            Server::Kernel => Err("the kernel answered, not anyring".to_owned()),
        },
        _ => become_trial(entry).map(|never| match never {}),
    }
}

/// Becomes [`TRIAL`], with this process's environment: returns only to say why not.
fn become_trial(way: EntryPoint) -> Result<Infallible, String> {
    let failed = |what: &str, error: std::io::Error| format!("{what}: {}", errno::of(&error));
    let file =
        memfd_create("anyring-trial", MemfdFlags::CLOEXEC).map_err(|error| failed("memfd_create", error.into()))?;
    let mut file = File::from(file);
    file.write_all(TRIAL).map_err(|error| failed("a memfd", error))?;
    let [name, way] = [way.name(), way.name()].map(|text| CString::new(text).unwrap_or_default());
    let argv = [name.as_ptr(), way.as_ptr(), std::ptr::null()];
    extern "C" {
        static environ: *const *const c_char;
    }
    // SAFETY: a list of strings that ends with null, and the process's environment, which nobody changes: there is one thread.
    unsafe {
        libc::syscall(
            libc::SYS_execveat,
            file.as_raw_fd(),
            c"".as_ptr(),
            argv.as_ptr(),
            environ,
            libc::AT_EMPTY_PATH,
        )
    };
    Err(failed("a program in a memfd cannot be executed", std::io::Error::last_os_error()))
}
