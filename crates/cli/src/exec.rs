//! Starts the program in place of this process.

use crate::cli::Program;
use crate::errno;
use crate::failure::{Failure, CANNOT_EXECUTE, NOT_FOUND};
use rustix::fs::{accessat, Access, AtFlags, CWD};
use std::convert::Infallible;
use std::ffi::{c_char, CString, OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// An environment, as execve(2) takes it.
pub struct Environment {
    /// Keeps the strings that `pointers` names.
    _strings: Vec<CString>,
    pointers: Vec<*const c_char>,
}

impl Environment {
    /// The environment of this process, with variables set or removed.
    pub fn with(changes: &[(&str, Option<&OsStr>)]) -> Environment {
        let is_changed = |name: &OsStr| changes.iter().any(|(changed, _)| name == *changed);
        let kept = std::env::vars_os().filter(|(name, _)| !is_changed(name));
        let set =
            changes.iter().filter_map(|(name, value)| Some((OsString::from(name), OsString::from((*value)?))));
        let line = |(name, value): (OsString, OsString)| [name.as_bytes(), b"=", value.as_bytes()].concat();
        let strings: Vec<_> = kept.chain(set).filter_map(|pair| CString::new(line(pair)).ok()).collect();
        let pointers = strings.iter().map(|string| string.as_ptr()).chain([std::ptr::null()]).collect();
        Environment { _strings: strings, pointers }
    }

    /// The list of the strings, which ends with null. It lives as long as the environment.
    pub fn as_ptr(&self) -> *const *const c_char {
        self.pointers.as_ptr()
    }
}

/// Executes the program by execvp(3). Returns only if that fails, with the reason. It does not use
/// `std::process::Command`, which would reset the signal mask and SIGPIPE that the program must inherit.
pub fn exec(program: &Program) -> Result<Infallible, Failure> {
    // An argument from the kernel contains no NUL byte, so none is lost here.
    let words: Vec<CString> = program.words.iter().filter_map(|word| CString::new(word.as_bytes()).ok()).collect();
    let mut argv: Vec<_> = words.iter().map(|word| word.as_ptr()).collect();
    argv.push(std::ptr::null());
    // SAFETY: argv is null-terminated and points into `words`, both alive until the call returns; clap requires at
    // least one word, so argv[0] is a string.
    unsafe { libc::execvp(argv[0], argv.as_ptr()) };
    Err(refusal(program, errno::last()))
}

/// Executes the guest host `host` in place of this process. The arguments in `lead` name the program to run, and how.
pub fn exec_by(host: &Path, lead: Vec<OsString>, program: &Program) -> Result<Infallible, Failure> {
    let words = [OsString::from("anyring")].into_iter().chain(lead);
    let words = words.chain(program.words.iter().cloned());
    let words: Vec<CString> = words.filter_map(|word| CString::new(word.as_bytes()).ok()).collect();
    let mut argv: Vec<_> = words.iter().map(|word| word.as_ptr()).collect();
    argv.push(std::ptr::null());
    if let Ok(host) = CString::new(host.as_os_str().as_bytes()) {
        // SAFETY: as in `exec`.
        unsafe { libc::execv(host.as_ptr(), argv.as_ptr()) };
    }
    Err(Failure::own(format!("cannot execute {}: {}", host.display(), errno::describe(errno::last()))))
}

fn refusal(program: &Program, code: i32) -> Failure {
    let missing = resolve(&program.words[0]).and_then(|file| crate::elf::missing_interpreter(&file));
    let reason = match (code, missing) {
        (libc::ENOENT, Some(interpreter)) => {
            format!("its interpreter, {}, is missing; install it, or name another after #!", interpreter.display())
        }
        (libc::ENOENT, None) => "no such file or directory".to_owned(),
        (code, _) => errno::describe(code),
    };
    let status = if code == libc::ENOENT { NOT_FOUND } else { CANNOT_EXECUTE };
    Failure { status, message: format!("cannot execute `{}`: {reason}", program.words[0].to_string_lossy()) }
}

/// Fails as [`exec`] would if the program does not exist, before anything is prepared for it.
pub fn check_found(program: &Program) -> Result<(), Failure> {
    match resolve(&program.words[0]) {
        Some(file) if std::fs::exists(&file).unwrap_or(true) => Ok(()),
        _ => Err(refusal(program, libc::ENOENT)),
    }
}

/// The file that execvp(3) would execute for `name`, or `None` if it would find none.
pub fn resolve(name: &OsStr) -> Option<PathBuf> {
    if name.as_bytes().contains(&b'/') {
        return Some(PathBuf::from(name));
    }
    // execvp(3): the default path is what confstr(_CS_PATH) gives.
    let path = std::env::var_os("PATH").unwrap_or_else(|| "/bin:/usr/bin".into());
    std::env::split_paths(&path).map(|directory| directory.join(name)).find(|file| is_executable(file))
}

/// True if execve(2) will probably accept the file. If not, the log says nothing of a server before the program
/// starts.
pub fn can_start(file: &Path) -> bool {
    is_executable(file) && crate::elf::missing_interpreter(file).is_none()
}

/// True if this process may execute the file.
pub fn is_executable(file: &Path) -> bool {
    file.is_file() && accessat(CWD, file, Access::EXEC_OK, AtFlags::EACCESS).is_ok()
}

/// True if no_new_privs is set (PR_SET_NO_NEW_PRIVS(2const)). An exec then grants no IDs or capabilities.
pub fn no_new_privs() -> bool {
    // SAFETY: takes no pointers; the unused arguments must be 0.
    unsafe { libc::prctl(libc::PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) == 1 }
}
