//! execve(2): whatever the guest becomes is loaded by a new host, since filters are inherited and would kill a program that
//! does not expect their traps.

use crate::start::{self, State, HOST_NAME};
use crate::{exe, script};
use anyring_engine::{os, Errno};
use anyring_serve::sys;
use std::ffi::{CString, OsStr};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;

/// The longest path (PATH_MAX).
const PATH_MOST: usize = 4096;
/// More arguments than this the kernel takes from nobody (MAX_ARG_STRINGS is larger, but their pages are not).
const ARGUMENTS_MOST: usize = 1 << 22;

/// A string of the guest's, without its end.
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

/// execveat(2) with its five arguments: only an error comes back.
pub fn execute(directory: i32, path: usize, arguments: usize, environment: usize, flags: usize) -> isize {
    let answer = prepare(directory, path, arguments, flags).map(|ready| ready.execute(environment));
    answer.unwrap_or_else(|error| -(error.raw_os_error() as isize))
}

/// What a new host is told.
struct Ready {
    state: State,
    /// The file to be loaded.
    file: Vec<u8>,
    /// What the guest calls it.
    name: Vec<u8>,
    /// The guest's own arguments.
    arguments: Vec<u64>,
    /// What `file` names a file by: kept open for the new host, which closes it.
    descriptor: Option<OwnedFd>,
}

fn prepare(directory: i32, path: usize, arguments: usize, flags: usize) -> Result<Ready, Errno> {
    let asked = read_string(path)?;
    if flags & !(libc::AT_EMPTY_PATH | libc::AT_SYMLINK_NOFOLLOW) as usize != 0 {
        return Err(Errno::INVAL);
    }
    let is_relative = directory != libc::AT_FDCWD && asked.first() != Some(&b'/');
    let (name, file, descriptor) = match is_relative {
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
    // What only execve(2) can answer.
    let program = script::find(&file, &name).map_err(|refusal| Errno::from_raw_os_error(refusal.errno))?;
    let arguments = read_list(arguments)?;
    match start::is_host(&program.file) {
        true => by_itself(arguments, descriptor),
        false => Ok(Ready { state: State::here(), file, name, arguments, descriptor }),
    }
}

/// The guest executes the host (`anyring run` in a guest does): that takes this one's place, and is not loaded as a guest.
fn by_itself(arguments: Vec<u64>, descriptor: Option<OwnedFd>) -> Result<Ready, Errno> {
    /// What comes before the guest's own arguments.
    const LEAD: usize = 4;
    let here = State::here();
    let words = arguments.iter().take(LEAD).skip(1).map(|word| read_string(*word as usize));
    let words = words.collect::<Result<Vec<_>, _>>()?;
    let (Some(state), [_, file, name]) = (words.first().and_then(|word| State::parse(word)), &words[..]) else {
        return Err(Errno::INVAL); // it would end by saying how it is used
    };
    Ok(Ready {
        // The filter that there is knows of Linux AIO only if that was served.
        state: State {
            rings: state.rings,
            aio: state.aio,
            filtered: here.filtered && (here.aio || !state.aio),
            ..here
        },
        file: file.clone(),
        name: name.clone(),
        arguments: arguments[LEAD..].to_vec(),
        descriptor,
    })
}

/// A duplicate that stays open over an exec.
fn duplicate(descriptor: i32) -> Result<OwnedFd, Errno> {
    // SAFETY: makes a new number for what the guest has named; it is nobody else's.
    unsafe {
        match sys::call(libc::SYS_dup, [descriptor as usize, 0, 0, 0, 0, 0]) {
            error @ ..0 => Err(Errno::from_raw_os_error(-error as i32)),
            copy => Ok(OwnedFd::from_raw_fd(copy as i32)),
        }
    }
}

/// The guest's array of arguments, without its end.
fn read_list(address: usize) -> Result<Vec<u64>, Errno> {
    let mut list = Vec::new();
    if address == 0 {
        return Ok(list);
    }
    loop {
        match os::user_read((address + list.len() * size_of::<u64>()) as u64)? {
            0 => return Ok(list),
            _ if list.len() >= ARGUMENTS_MOST => return Err(Errno::TOOBIG),
            argument => list.push(argument),
        }
    }
}

impl Ready {
    fn execute(self, environment: usize) -> isize {
        let state = State { closes: self.descriptor.as_ref().map(AsRawFd::as_raw_fd), ..self.state };
        let texts = [HOST_NAME.to_vec(), state.to_argument(), self.file, self.name];
        let Ok(texts) = texts.into_iter().map(CString::new).collect::<Result<Vec<_>, _>>() else {
            return -(libc::ENOENT as isize);
        };
        let mut list: Vec<u64> = texts.iter().map(|text| text.as_ptr() as u64).collect();
        list.extend(&self.arguments);
        if self.arguments.is_empty() {
            // As Linux has it since 5.18: there always is a first argument.
            list.push(c"".as_ptr() as u64);
        }
        list.push(0);
        let (list, environment) = (list.as_ptr() as usize, environment);
        let by_name = [c"/proc/self/exe".as_ptr() as usize, list, environment, 0, 0, 0];
        // SAFETY: strings and an array of this function's, and what the guest has named, which the kernel checks.
        unsafe {
            match start::host() {
                Some(host) => {
                    let args = [host as usize, c"".as_ptr() as usize, list, environment, EMPTY_PATH, 0];
                    sys::call(libc::SYS_execveat, args)
                }
                None => sys::call(libc::SYS_execve, by_name),
            }
        }
    }
}

const EMPTY_PATH: usize = libc::AT_EMPTY_PATH as usize;
