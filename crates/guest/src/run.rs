//! `anyring-guest run [OPTIONS] -- PROGRAM ARGS`: what `anyring run --guest` does, where this one file is all that there is: an
//! image of any C library, or of none. It needs no folder that can be written to; without /proc the program runs, but starts no
//! others.

use anyring_serve::exec::HOST_NAME;
use anyring_serve::probe;
use core::ffi::{c_char, c_int, CStr};
use std::env;
use std::ffi::{CString, OsStr};
use std::os::unix::ffi::OsStrExt;
use std::path::{absolute, Path, PathBuf};

use crate::start::{State, CANNOT_EXECUTE, CANNOT_SERVE, NOT_FOUND, USAGE};

pub const USAGE_LINE: &str = "usage: anyring-guest run [--backend auto|kernel|user] [--aio auto|kernel|user] \
                              [--stats FILE] [--log FILE] -- PROGRAM [ARGS]...";

/// The exit status, and a line for people.
pub type Failure = (c_int, String);

/// One of the two interfaces, and who was asked to serve it.
struct Choice {
    what: &'static str,
    flag: &'static str,
    variable: &'static str,
    wanted: String,
    refusal: fn() -> c_int,
}

impl Choice {
    fn new(what: &'static str, flag: &'static str, variable: &'static str, refusal: fn() -> c_int) -> Choice {
        let wanted = env::var_os(variable).filter(|value| !value.is_empty());
        let wanted = wanted.map_or("auto".to_owned(), |value| value.to_string_lossy().into_owned());
        Choice { what, flag, variable, wanted, refusal }
    }

    /// Whether the engine serves it. The program and its children are told.
    fn decide(&self) -> Result<bool, Failure> {
        let refusal = if self.wanted == "user" { 0 } else { (self.refusal)() };
        let is_user = match (&*self.wanted, refusal) {
            ("user", _) => true,
            ("auto", errno) => errno != 0,
            ("kernel", 0) => false,
            ("kernel", errno) => {
                let why = std::io::Error::from_raw_os_error(errno);
                return Err((CANNOT_SERVE, format!("the kernel's {} does not work here: {why}", self.what)));
            }
            (other, _) => {
                let (flag, variable) = (self.flag, self.variable);
                return Err((USAGE, format!("{flag} or {variable}: auto, kernel or user, not `{other}`")));
            }
        };
        env::set_var(self.variable, if is_user { "user" } else { "kernel" });
        Ok(is_user)
    }
}

/// Becomes the program where the kernel serves it, else the host that runs it. `words` are those behind `run`; `own` is what
/// this process was executed as, for where there is no /proc. Returns only to say why not.
pub fn run(words: &[&CStr], own: Option<&CStr>) -> Failure {
    let mut rings = Choice::new("io_uring", "--backend", "ANYRING_BACKEND", probe::kernel_refusal);
    let mut aio = Choice::new("AIO", "--aio", "ANYRING_AIO", probe::aio_refusal);
    let program = match options(words, &mut rings, &mut aio) {
        Ok(program) => program,
        Err(failure) => return failure,
    };
    let (rings, aio) = match (rings.decide(), aio.decide()) {
        (Ok(rings), Ok(aio)) => (rings, aio),
        (Err(failure), _) | (_, Err(failure)) => return failure,
    };
    if !rings && !aio {
        return execute(None, program.to_vec());
    }
    let name = OsStr::from_bytes(program[0].to_bytes());
    let Some(file) = resolve(name).and_then(|file| CString::new(file.into_os_string().as_bytes()).ok()) else {
        return (NOT_FOUND, format!("cannot execute `{}`: no such file or directory", name.display()));
    };
    let state = State { rings, aio, ..State::default() };
    let Ok(state) = CString::new(state.to_argument()) else {
        return (CANNOT_SERVE, "there is no state".to_owned());
    };
    let lead = [HOST_NAME, &state, &file, &file];
    let words: Vec<&CStr> = lead.into_iter().chain(program.iter().copied()).collect();
    let failure = execute(Some(c"/proc/self/exe"), words.clone());
    own.map_or(failure, |own| execute(Some(own), words))
}

/// Reads the options, and answers the program's words.
fn options<'w, 'c>(words: &'w [&'c CStr], rings: &mut Choice, aio: &mut Choice) -> Result<&'w [&'c CStr], Failure> {
    let usage = || (USAGE, USAGE_LINE.to_owned());
    let mut rest = words;
    while let [flag, after @ ..] = rest {
        let text = flag.to_string_lossy();
        if text == "--" {
            rest = after;
            break;
        }
        if !text.starts_with('-') {
            break;
        }
        let (flag, value) = match text.split_once('=') {
            Some((flag, value)) => (flag, value.to_owned()),
            None if text == "--guest" => (&*text, String::new()),
            None => match after {
                [value, more @ ..] => {
                    rest = more;
                    if let Some(choice) = [&mut *rings, &mut *aio].into_iter().find(|choice| choice.flag == text) {
                        choice.wanted = value.to_string_lossy().into_owned();
                        continue;
                    }
                    name_file(&text, value.to_bytes())?;
                    continue;
                }
                [] => return Err(usage()),
            },
        };
        rest = after;
        match flag {
            "--guest" => {}
            "--backend" => rings.wanted = value,
            "--aio" => aio.wanted = value,
            _ => name_file(flag, value.as_bytes())?,
        }
    }
    match rest {
        [] => Err(usage()),
        program => Ok(program),
    }
}

/// Absolute, since the program may change its folder before a child of it opens them.
fn name_file(flag: &str, file: &[u8]) -> Result<(), Failure> {
    let variable = match flag {
        "--stats" => "ANYRING_STATS",
        "--log" => "ANYRING_LOG",
        _ => return Err((USAGE, USAGE_LINE.to_owned())),
    };
    let file = absolute(OsStr::from_bytes(file)).map_err(|error| (CANNOT_SERVE, format!("{flag}: {error}")))?;
    env::set_var(variable, file);
    Ok(())
}

/// The file that execvp(3) would take.
fn resolve(name: &OsStr) -> Option<PathBuf> {
    if name.as_bytes().contains(&b'/') {
        return Path::new(name).exists().then(|| name.into());
    }
    let path = env::var_os("PATH").unwrap_or_else(|| "/bin:/usr/bin".into());
    let may_execute = |file: &PathBuf| {
        let text = CString::new(file.as_os_str().as_bytes());
        // SAFETY: a C string, which the kernel reads.
        file.is_file() && text.is_ok_and(|text| unsafe { libc::access(text.as_ptr(), libc::X_OK) } == 0)
    };
    env::split_paths(&path).map(|folder| folder.join(name)).find(may_execute)
}

/// Becomes `file`, or what execvp(3) finds for the first word. Not by the standard library, which would reset the mask of
/// signals that the program is to inherit.
fn execute(file: Option<&CStr>, words: Vec<&CStr>) -> Failure {
    let mut argv: Vec<*const c_char> = words.iter().map(|word| word.as_ptr()).collect();
    argv.push(core::ptr::null());
    // SAFETY: the list of C strings ends with null, and has one at least.
    unsafe {
        match file {
            Some(file) => libc::execv(file.as_ptr(), argv.as_ptr()),
            None => libc::execvp(argv[0], argv.as_ptr()),
        }
    };
    let error = std::io::Error::last_os_error();
    let status = if error.kind() == std::io::ErrorKind::NotFound { NOT_FOUND } else { CANNOT_EXECUTE };
    (status, format!("cannot execute `{}`: {error}", file.unwrap_or(words[0]).to_string_lossy()))
}
