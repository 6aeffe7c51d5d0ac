//! The ways into libanyring.so, each tried end to end: this executable is started again with the library preloaded,
//! and makes a ring by that way.

use super::Check;
use crate::child::PATIENCE_S;
use crate::cli::EntryPoint;
use crate::errno;
use crate::library::{executable, preload_list};
use crate::ring::{nop, server_of, Server, Way};
use clap::ValueEnum;
use std::ffi::{c_void, CStr, OsStr};
use std::os::fd::BorrowedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Command, Stdio};

impl EntryPoint {
    fn name(self) -> &'static str {
        match self {
            EntryPoint::Preload => "preload",
            EntryPoint::Liburing => "liburing",
            EntryPoint::Syscall => "syscall",
            EntryPoint::Raw => "raw",
        }
    }

    fn purpose(self) -> &'static str {
        match self {
            EntryPoint::Preload => "the library loads into a dynamically linked program",
            EntryPoint::Liburing => "programs that call liburing's functions",
            EntryPoint::Syscall => "programs that call libc's syscall(): most Rust crates, Node",
            EntryPoint::Raw => "programs with system call instructions of their own: fio",
        }
    }
}

/// Tries every way with this library.
pub fn entry_points(library: &Path) -> Vec<Check> {
    EntryPoint::value_variants().iter().map(|entry| check(*entry, library)).collect()
}

fn check(entry: EntryPoint, library: &Path) -> Check {
    let found = start(entry, library);
    Check {
        name: entry.name().to_owned(),
        purpose: entry.purpose().to_owned(),
        needed: entry == EntryPoint::Preload,
        instead: None,
        works: found.is_ok(),
        answer: found.err().unwrap_or_else(|| "works".to_owned()),
    }
}

/// Runs [`run`] in a new process with the library preloaded.
fn start(entry: EntryPoint, library: &Path) -> Result<(), String> {
    let executable = executable()?;
    let mut command = Command::new(executable);
    command.args(["entry-point", entry.name()]).stdin(Stdio::null());
    command.env("LD_PRELOAD", preload_list(library)).env("ANYRING_BACKEND", "user");
    for ours in ["ANYRING_STATS", "ANYRING_LOG", "ANYRING_RAW"] {
        command.env_remove(ours);
    }
    let limit = || {
        let no_core = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: both are async-signal-safe system calls; the alarm outlives exec and ends a process that hangs.
        unsafe {
            libc::setrlimit(libc::RLIMIT_CORE, &no_core);
            libc::alarm(PATIENCE_S);
        }
        Ok(())
    };
    // SAFETY: `limit` allocates nothing and takes no lock.
    let output = unsafe { command.pre_exec(limit) }.output().map_err(|error| error.to_string())?;
    match (output.status.code(), output.status.signal()) {
        (Some(0), _) => Ok(()),
        (_, Some(libc::SIGALRM)) => Err(format!("no answer within {PATIENCE_S} s")),
        (_, Some(signal)) => Err(format!("the process was killed by {}", errno::signal_name(signal))),
        // The last line is run()'s finding; the loader's complaint about the library would come before it.
        _ => Err(first_line_after_prefix(&output.stderr)),
    }
}

fn first_line_after_prefix(text: &[u8]) -> String {
    let text = String::from_utf8_lossy(text);
    let line = text.lines().next().unwrap_or("it failed without a word");
    line.strip_prefix("anyring: ").unwrap_or(line).to_owned()
}

/// The new process's part: whether this way leads to the library.
pub fn run(entry: EntryPoint) -> Result<(), String> {
    match entry {
        EntryPoint::Preload => loaded(),
        EntryPoint::Liburing => liburing(),
        EntryPoint::Syscall => served(Way::Libc),
        EntryPoint::Raw => served(Way::Raw),
    }
}

fn loaded() -> Result<(), String> {
    let preloaded = std::env::var("LD_PRELOAD").unwrap_or_default();
    let library = preloaded.split(':').next().unwrap_or_default();
    let real = |path: &Path| std::fs::canonicalize(path).map_err(|error| format!("{}: {error}", path.display()));
    // The object that answers for liburing; not by /proc/self/maps, which a sandbox may lack.
    let mut object: libc::Dl_info = libc::Dl_info {
        dli_fname: std::ptr::null(),
        dli_fbase: std::ptr::null_mut(),
        dli_sname: std::ptr::null(),
        dli_saddr: std::ptr::null_mut(),
    };
    let address = symbol(c"io_uring_queue_init").map_err(|_| "the loader did not load it".to_owned())?;
    // SAFETY: an address in a loaded object, and room for what is known of that, whose name lives as long as it.
    let file = unsafe {
        libc::dladdr(address, &mut object);
        object.dli_fname.as_ref().map(|name| CStr::from_ptr(name))
    };
    let file = file.ok_or("the loader does not know it")?;
    match real(Path::new(OsStr::from_bytes(file.to_bytes())))? == real(Path::new(library))? {
        true => Ok(()),
        false => Err("the loader did not load it".to_owned()),
    }
}

fn served(way: Way) -> Result<(), String> {
    by_library(nop(way).map_err(|fault| fault.to_string())?)
}

fn by_library(server: Server) -> Result<(), String> {
    match server {
        Server::Emulation => Ok(()),
        Server::Kernel => Err("the kernel answered, not the library".to_owned()),
    }
}

/// `struct io_uring` of liburing is 216 bytes (static programs fix its size); this has room to spare.
#[repr(C, align(8))]
struct LiburingRing([u8; 512]);

/// Where its `ring_fd` is: after two queues of 104 and 88 bytes and the flags.
const RING_FD_OFFSET: usize = 196;

fn liburing() -> Result<(), String> {
    type QueueInit = unsafe extern "C" fn(u32, *mut LiburingRing, u32) -> i32;
    type QueueExit = unsafe extern "C" fn(*mut LiburingRing);
    let (init, exit) = (symbol(c"io_uring_queue_init")?, symbol(c"io_uring_queue_exit")?);
    // SAFETY: io_uring_queue_init(3): these are the types of the functions that have these names.
    let (init, exit) = unsafe {
        (std::mem::transmute::<*mut c_void, QueueInit>(init), std::mem::transmute::<*mut c_void, QueueExit>(exit))
    };
    let mut ring = LiburingRing([0; 512]);
    // SAFETY: `ring` is writable and larger than the structure.
    match unsafe { init(2, &mut ring, 0) } {
        0 => {
            let fd = i32::from_ne_bytes(std::array::from_fn(|byte| ring.0[RING_FD_OFFSET + byte]));
            // SAFETY: the ring just made keeps its descriptor open until the exit below.
            let server = server_of(unsafe { BorrowedFd::borrow_raw(fd) });
            // SAFETY: the ring that was just made.
            unsafe { exit(&mut ring) };
            by_library(server)
        }
        error => Err(format!("io_uring_queue_init answered {}", errno::name(-error))),
    }
}

fn symbol(name: &std::ffi::CStr) -> Result<*mut c_void, String> {
    // SAFETY: a terminated name, looked up among the loaded libraries.
    let address = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    if address.is_null() {
        return Err(format!("the library does not export {}", name.to_string_lossy()));
    }
    Ok(address)
}
