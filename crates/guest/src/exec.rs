//! execve(2) by a guest. The process becomes a new host, which loads the executed program. Filters are inherited, and
//! their traps would kill a program that runs without a host. Programs into which the library can be preloaded are
//! executed directly, since that is faster. Their code must not be at addresses at which guests have theirs.

use crate::start;
use crate::state::State;
use crate::{exe, script};
use anyring_engine::{os, Errno};
use anyring_serve::exec::kind::{self, Kind};
use anyring_serve::exec::{self, Environment};
use anyring_serve::filters;
use anyring_serve::signals::mask;
use anyring_serve::sys;
use std::ffi::{CString, OsStr};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;

/// The longest path (PATH_MAX).
const PATH_MOST: usize = 4096;

/// Reads a string from the guest's memory, without its terminating zero.
pub fn read_string(address: usize) -> Result<Vec<u8>, Errno> {
    const PAGE: usize = 4096;
    let mut string = Vec::new();
    while string.len() < PATH_MOST {
        let at = address.wrapping_add(string.len());
        let mut piece = vec![0_u8; PAGE - at % PAGE];
        os::user_read_slice(at as u64, &mut piece)?;
        if let Some(end) = piece.iter().position(|byte| *byte == 0) {
            string.extend_from_slice(&piece[..end]);
            return Ok(string);
        }
        string.extend_from_slice(&piece);
    }
    Err(Errno::NAMETOOLONG)
}

/// Serves execveat(2) with its five arguments. Returns only if that fails.
pub fn execute(directory: i32, path: usize, arguments: usize, environment: usize, flags: usize) -> isize {
    if let Some(answer) = preloaded([directory as usize, path, arguments, environment, flags]) {
        return answer;
    }
    let mut answer = 0;
    exec::preload::loadable(environment, false, &mut |environment| {
        let ready = prepare(directory, path, arguments, flags);
        answer = match ready.map(|ready| ready.execute(environment)) {
            Ok(answer) => answer,
            Err(error) => -(error.raw_os_error() as isize),
        };
    });
    answer
}

/// Executes a program with the library preloaded, if it can be served in that way. Returns the error if that fails, and
/// `None` for other programs. Logs programs that cannot be served at all.
fn preloaded([directory, path, arguments, environment, flags]: [usize; 5]) -> Option<isize> {
    let settings = Environment::read(environment);
    match kind::of(directory as i32, path, flags) {
        Kind::Preloaded { is_fixed: false } if State::here().preloads && !filters::are_many() => {}
        Kind::Unserved(why) => {
            settings.record_unserved(path, why);
            return None;
        }
        _ => return None,
    }
    let mut answer = None;
    settings.with_preload(environment, &mut |environment| {
        let args = [directory, path, arguments, environment, flags, 0];
        // SAFETY: arguments that the guest has named, which the kernel checks, and a list of its strings and one of the
        // host's.
        answer = Some(mask::inherited(|| unsafe { sys::call(libc::SYS_execveat, args) }));
    });
    answer
}

/// The arguments of a new host.
struct Ready {
    state: State,
    /// The file to be loaded.
    file: Vec<u8>,
    /// The guest's name for that file.
    name: Vec<u8>,
    /// The address of the guest's own arguments.
    arguments: usize,
    /// The descriptor that `file` names. It stays open over the exec, and the new host closes it.
    descriptor: Option<OwnedFd>,
}

fn prepare(directory: i32, path: usize, arguments: usize, flags: usize) -> Result<Ready, Errno> {
    let asked = read_string(path)?;
    if flags & !(libc::AT_EMPTY_PATH | libc::AT_SYMLINK_NOFOLLOW) as usize != 0 {
        return Err(Errno::INVAL);
    }
    let is_relative = directory != libc::AT_FDCWD && asked.first() != Some(&b'/');
    let (name, file, mut descriptor) = match is_relative {
        true if asked.is_empty() && flags & libc::AT_EMPTY_PATH as usize == 0 => return Err(Errno::NOENT),
        true => {
            let copy = duplicate(directory)?;
            let slash = if asked.is_empty() { "" } else { "/" };
            let below =
                |folder: &str, number: i32| [format!("{folder}{number}{slash}").as_bytes(), &asked].concat();
            (below("/dev/fd/", directory), below("/proc/self/fd/", copy.as_raw_fd()), Some(copy))
        }
        false if exe::is_meant(&asked) => (asked, exe::path().to_vec(), None),
        false => (asked.clone(), asked, None),
    };
    if flags & libc::AT_SYMLINK_NOFOLLOW as usize != 0 && !name.ends_with(b"/") {
        let status = std::fs::symlink_metadata(OsStr::from_bytes(&file));
        if status.is_ok_and(|status| status.file_type().is_symlink()) && (descriptor.is_none() || !name.is_empty())
        {
            return Err(Errno::LOOP);
        }
    }
    // Find errors now: after the exec, nothing can report them to the guest.
    let program = script::find(&file, &name).map_err(|refusal| Errno::from_raw_os_error(refusal.errno))?;
    let as_host = if start::is_host(&program.file) { by_itself(arguments, &mut descriptor)? } else { None };
    Ok(as_host.unwrap_or(Ready { state: State::here(), file, name, arguments, descriptor }))
}

/// Number of a host's arguments before the program's own, in words.
const LEAD: usize = 4;

/// Returns the arguments of the new host if the guest itself executes `anyring` as a host, as `anyring run` in a guest
/// does. The executed host then replaces this one, instead of being loaded as a guest. `None` for any other use of the
/// executable.
fn by_itself(arguments: usize, descriptor: &mut Option<OwnedFd>) -> Result<Option<Ready>, Errno> {
    let here = State::here();
    let mut words = Vec::new();
    for index in 0..=LEAD {
        match os::user_read::<u64>((arguments + index * size_of::<u64>()) as u64)? {
            0 => return Ok(None),
            word if index < LEAD => words.push(read_string(word as usize)?),
            _ => {}
        }
    }
    let (Some(state), [_, _, file, name]) = (State::parse(&words[1]), &words[..]) else { return Ok(None) };
    // The existing filter traps Linux AIO only if that was served.
    let filtered = here.filtered && (here.aio || !state.aio);
    let state = State { rings: state.rings, aio: state.aio, preloads: state.preloads, filtered, ..here };
    let (file, name, descriptor) = (file.clone(), name.clone(), descriptor.take());
    Ok(Some(Ready { state, file, name, arguments: arguments + LEAD * size_of::<u64>(), descriptor }))
}

/// Duplicates a descriptor; the copy stays open over an exec.
fn duplicate(descriptor: i32) -> Result<OwnedFd, Errno> {
    // SAFETY: makes a new number for a descriptor that the guest has named; nothing else uses it.
    unsafe {
        match sys::call(libc::SYS_dup, [descriptor as usize, 0, 0, 0, 0, 0]) {
            error @ ..0 => Err(Errno::from_raw_os_error(-error as i32)),
            copy => Ok(OwnedFd::from_raw_fd(copy as i32)),
        }
    }
}

impl Ready {
    fn execute(self, environment: usize) -> isize {
        let state = State { closes: self.descriptor.as_ref().map(AsRawFd::as_raw_fd), ..self.state };
        let texts = [state.to_argument(), self.file, self.name].map(CString::new);
        let [Ok(state), Ok(file), Ok(name)] = texts else {
            return -(libc::ENOENT as isize);
        };
        let mut answer = -(libc::EFAULT as isize);
        let lead = [&state, &file, &name].map(|text| text.as_ptr() as usize);
        exec::with_arguments(lead, self.arguments, &mut |list| {
            let by_name = [c"/proc/self/exe".as_ptr() as usize, list, environment, 0, 0, 0];
            let (number, args) = match start::host() {
                Some(host) => {
                    let empty = c"".as_ptr() as usize;
                    (libc::SYS_execveat, [host as usize, empty, list, environment, EMPTY_PATH, 0])
                }
                None => (libc::SYS_execve, by_name),
            };
            // SAFETY: strings and a list of the host's, and arguments that the guest has named, which the kernel
            // checks.
            answer = mask::inherited(|| unsafe { sys::call(number, args) });
        });
        answer
    }
}

const EMPTY_PATH: usize = libc::AT_EMPTY_PATH as usize;
