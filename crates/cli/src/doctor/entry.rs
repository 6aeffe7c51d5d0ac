//! Tries each way into the engine end to end, in a new process that makes a ring in this way. The process is a
//! dynamic program (`trial.c`) with the library preloaded. For the way of guests, it is this executable as a guest
//! of itself.

use super::Check;
use crate::arch::LOADER;
use crate::child::{self, ask, capture_output, makes_memfds, Outcome, Output};
use crate::cli::EntryPoint;
use crate::errno;
use crate::exec::Environment;
use crate::library::{executable, preload_list};
use crate::ring::{complete_requests, Needs, Server};
use anyring_guest::State;
use anyring_serve::environment::EXPENDABLE;
use clap::ValueEnum;
use rustix::fs::{memfd_create, MemfdFlags};
use std::ffi::{c_char, CString, OsStr};
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::atomic::AtomicU32;

/// The program of `trial.c`, built by build.rs.
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

/// Tries every way that is available here. The library's ways are only tried with glibc. Also returns glibc's version.
pub fn entry_points(library: Option<&Path>) -> (Vec<Check>, Option<String>) {
    let library = library.filter(|_| Path::new(LOADER).exists());
    // In a child: a filter may kill for this call.
    let leaves_no_core = matches!(ask(limit_core), Outcome::Replied(true));
    let mut glibc = None;
    let mut checks = Vec::new();
    for entry in EntryPoint::value_variants() {
        let found = match (entry, library) {
            (EntryPoint::Guest, _) => start(*entry, None, leaves_no_core, Needs::All),
            (_, Some(library)) => start(*entry, Some(library), leaves_no_core, Needs::All),
            (_, None) => continue,
        };
        if let (EntryPoint::Preload, Ok(printed)) = (entry, &found) {
            glibc = Some(printed.trim().to_owned()).filter(|version| !version.is_empty());
        }
        checks.push(Check {
            name: entry.name().to_owned(),
            purpose: entry.purpose().to_owned(),
            needed: false,
            instead: None,
            works: found.is_ok(),
            answer: found.err().map_or_else(|| "works".to_owned(), Fault::into_words),
        });
    }
    (checks, glibc)
}

/// The ways in which programs can be served here, as the requests of another process have shown.
pub enum Trial {
    /// Programs are served in every way.
    Served,
    /// Programs are served through functions only. The process that used a system call instruction was killed. The text
    /// says how.
    WithoutInstructions(String),
    /// Requests failed for a reason that need not affect every program.
    Faulty,
    /// A process that makes a ring is killed. The text says how.
    Killed(String),
}

/// Tries the library with only the calls that every program needs, below a filter that may kill for any call. An
/// expendable process ends if that fails.
pub fn try_library(library: &Path, with_instructions: bool) -> Trial {
    let start = |way| start(way, Some(library), true, Needs::Least);
    let by_instruction = with_instructions.then(|| start(EntryPoint::Raw));
    if let Some(Ok(_)) = by_instruction {
        return Trial::Served;
    }
    if child::is_expendable() {
        child::leave();
    }
    match (start(EntryPoint::Liburing), by_instruction) {
        (Err(Fault::Killed(why)), _) => Trial::Killed(why),
        (_, Some(Err(Fault::Killed(why)))) => Trial::WithoutInstructions(why),
        (Ok(_), None) => Trial::Served,
        _ => Trial::Faulty,
    }
}

/// Tries a guest in the same way. This shows only whether guests are killed.
pub fn try_guest() -> Trial {
    match start(EntryPoint::Guest, None, true, Needs::Least) {
        Err(Fault::Killed(why)) => Trial::Killed(why),
        Ok(_) | Err(Fault::Reported(_)) => Trial::Faulty,
    }
}

/// The reason why requests were not served.
enum Fault {
    /// The process reported the fault, or failed before it could report anything.
    Reported(String),
    /// A signal ended the process.
    Killed(String),
}

impl Fault {
    fn into_words(self) -> String {
        let (Fault::Reported(why) | Fault::Killed(why)) = self;
        why
    }
}

/// Makes a new process do requests, with the library preloaded or as a guest. Returns its output, or the fault.
fn start(entry: EntryPoint, library: Option<&Path>, leaves_no_core: bool, needs: Needs) -> Result<String, Fault> {
    let executable = executable().map_err(Fault::Reported)?;
    let state = State { rings: true, aio: true, ..State::default() };
    let words = [executable.clone().into_os_string()].into_iter().chain(anyring_guest::lead(state, &executable));
    let words = words.chain([executable.clone().into_os_string()]);
    let words = words.chain(["entry-point", entry.name()].map(Into::into));
    let words = words.chain((needs == Needs::Least).then(|| "--least".into()));
    let words: Vec<_> = words.filter_map(|word| CString::new(word.into_vec()).ok()).collect();
    let argv: Vec<_> = words.iter().map(|word| word.as_ptr()).chain([std::ptr::null()]).collect();
    // A trial before a start tests only this library, whatever else the program preloads.
    let list = library.map(|library| if needs == Needs::Least { library.into() } else { preload_list(library) });
    let ours = ["ANYRING_STATS", "ANYRING_LOG", "ANYRING_RAW", "ANYRING_TRACE", "ANYRING_CHAOS"];
    let mut changes: Vec<_> = ours.map(|variable| (variable, None)).into();
    changes.push(("ANYRING_BACKEND", Some(OsStr::new("user"))));
    changes.push((EXPENDABLE, child::is_expendable().then_some(OsStr::new("1"))));
    changes.extend(list.as_ref().map(|list| ("LD_PRELOAD", Some(list.as_os_str()))));
    let environment = Environment::with(&changes);
    let trial = library.map(|_| TrialProgram::new(entry, needs)).transpose().map_err(Fault::Reported)?;
    let printed = capture_output(|| {
        if leaves_no_core {
            limit_core();
        }
        if let Some(trial) = &trial {
            return trial.execute(environment.as_ptr());
        }
        // SAFETY: strings, a list of them that ends with null, and an environment.
        unsafe { libc::execve(argv[0], argv.as_ptr(), environment.as_ptr()) };
        format!("anyring cannot execute itself: {}", errno::describe(errno::last()))
    });
    match printed {
        Outcome::Replied(Output { status: 0, text }) => Ok(text),
        // A complaint of the loader about the library comes first, before the trial's own report.
        Outcome::Replied(Output { text, .. }) => Err(Fault::Reported(first_line_after_prefix(&text))),
        Outcome::Killed(signal) => {
            Err(Fault::Killed(format!("the process was killed by {}", errno::signal_name(signal))))
        }
        other => Err(Fault::Reported(other.describe(|_| String::new()))),
    }
}

/// Sets the limit of core files to 0, so that a killed process leaves none.
fn limit_core() -> bool {
    let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: a pointer to an initialised rlimit.
    unsafe { libc::setrlimit(libc::RLIMIT_CORE, &none) == 0 }
}

fn first_line_after_prefix(text: &str) -> String {
    let line = text.lines().next().unwrap_or("it failed without a word");
    line.strip_prefix("anyring: ").unwrap_or(line).to_owned()
}

/// Checks in the new process whether this way leads to the engine.
pub fn run(entry: EntryPoint, needs: Needs) -> Result<(), String> {
    if entry == EntryPoint::Guest {
        wake_futex();
    }
    match entry {
        EntryPoint::Guest => match complete_requests(needs).map_err(|fault| fault.to_string())? {
            Server::Emulation => Ok(()),
            Server::Kernel => Err("the kernel answered, not anyring".to_owned()),
        },
        _ => Err(TrialProgram::new(entry, needs)?.execute(Environment::with(&[]).as_ptr())),
    }
}

/// Makes the call that threads make when they meet at a lock. The threads of a trial do so only by chance. As in libc, a
/// refusal ends the process. [`TRIAL`] makes the call itself.
fn wake_futex() {
    let lock = AtomicU32::new(0);
    // SAFETY: FUTEX_WAKE does not access the word.
    let woken =
        unsafe { libc::syscall(libc::SYS_futex, lock.as_ptr(), libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG, 1) };
    if woken != 0 {
        std::process::abort();
    }
}

/// Makes a file of [`TRIAL`] that has no name: a memfd, or a file in /dev/shm or /tmp if memfds are refused.
fn trial_file() -> std::io::Result<File> {
    if makes_memfds() {
        let mut file = File::from(memfd_create("anyring-trial", MemfdFlags::CLOEXEC)?);
        file.write_all(TRIAL)?;
        return Ok(file);
    }
    let unnamed = |folder: &str| -> std::io::Result<File> {
        let mut file =
            OpenOptions::new().write(true).mode(0o700).custom_flags(libc::O_TMPFILE | libc::O_EXCL).open(folder)?;
        file.write_all(TRIAL)?;
        // A file that is open for writing cannot be executed.
        File::open(format!("/proc/self/fd/{}", file.as_raw_fd()))
    };
    unnamed("/dev/shm").or_else(|_| unnamed("/tmp"))
}

/// [`TRIAL`] in a file, with its arguments.
struct TrialProgram {
    file: File,
    path: CString,
    way: CString,
    needs: Needs,
}

impl TrialProgram {
    fn new(way: EntryPoint, needs: Needs) -> Result<TrialProgram, String> {
        let file = trial_file().map_err(|error| format!("no file for a program: {}", errno::of(&error)))?;
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        let [path, way] = [path.as_str(), way.name()].map(|text| CString::new(text).unwrap_or_default());
        Ok(TrialProgram { file, path, way, needs })
    }

    /// Executes the program in place of this process, with this environment. Returns only if that fails, with the
    /// reason.
    fn execute(&self, environment: *const *const c_char) -> String {
        let sockets = if self.needs == Needs::All { c"sockets".as_ptr() } else { std::ptr::null() };
        let argv = [self.way.as_ptr(), self.way.as_ptr(), sockets, std::ptr::null()];
        // SAFETY: two lists of strings that end with null.
        unsafe {
            // First by the call that starting any program needs.
            libc::execve(self.path.as_ptr(), argv.as_ptr(), environment);
            libc::syscall(
                libc::SYS_execveat,
                self.file.as_raw_fd(),
                c"".as_ptr(),
                argv.as_ptr(),
                environment,
                libc::AT_EMPTY_PATH,
            )
        };
        let why = errno::of(&std::io::Error::last_os_error());
        format!("a program in a file without a name cannot be executed: {why}")
    }
}
