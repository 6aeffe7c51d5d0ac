//! exec(3) and posix_spawn(3): the guest host ([`anyring_serve::exec`]) runs a program into which this library cannot
//! be preloaded. libc executes every other program, and reports why a call fails.
//!
//! The functions here also run in children of vfork(2) and in signal handlers. No wrapper sees the system calls that
//! posix_spawn(3) makes. Its program is therefore checked in the parent, before the call.

use crate::next::{missing, next};
use crate::signals::mask;
use crate::{arch, backend, entry, sys};
use anyring_serve::exec::{self, kind, preload, Call};
use anyring_serve::host::Server;
use core::ffi::{c_char, c_int, c_void, CStr};
use libc::posix_spawnattr_t;

type List = *const *const c_char;

next! {
    EXECVE = c"execve": fn(*const c_char, List, List) -> c_int;
    EXECVPE = c"execvpe": fn(*const c_char, List, List) -> c_int;
    FEXECVE = c"fexecve": fn(c_int, List, List) -> c_int;
    EXECVEAT = c"execveat": fn(c_int, *const c_char, List, List, c_int) -> c_int;
    POSIX_SPAWN = c"posix_spawn": fn(*mut c_int, *const c_char, *const c_void, *const c_void, List, List) -> c_int;
    POSIX_SPAWNP = c"posix_spawnp": fn(*mut c_int, *const c_char, *const c_void, *const c_void, List, List) -> c_int;
}

extern "C" {
    static mut environ: List;
}

/// Sets the address of the environment, if libc does not yet know it.
#[cfg(not(test))]
pub fn begin(environment: List) {
    // SAFETY: libc's variable, in a process with one thread; libc is going to store the value that the loader passes.
    unsafe {
        if environ.is_null() {
            environ = environment;
        }
    }
}

/// Returns the environment of the process, as the kernel takes it.
pub fn own_environment() -> List {
    // SAFETY: libc's variable. A program that changes it during an exec races with libc in any case.
    unsafe { environ }
}

/// Calls `start` with the host's path and arguments, if the guest host is to run the program of this call.
fn start_host(call: &Call, start: &mut dyn FnMut(usize, usize)) {
    entry::aside(|| {
        let letters = match (backend::rings() == Server::Engine, backend::aio_is_chosen()) {
            (true, true) => "rap",
            (true, false) => "rp",
            (false, true) => "ap",
            (false, false) => return,
        };
        exec::start_host(call, letters, start);
    });
}

/// Executes a program: calls `start` with the environment to use. Does not return if `start` executes the program, or
/// if the guest host takes the process's place.
pub fn execute<T>(call: &Call, start: impl FnOnce(usize) -> T) -> Option<T> {
    before(call);
    with_environment(call.environment, call.is_foreign(), |environment| mask::inherited(|| start(environment)))
}

/// Replaces the process with the guest host, if the host is to run the program of this call.
fn before(call: &Call) {
    start_host(call, &mut |host, arguments| {
        // SAFETY: strings and lists from the program and this library, which the kernel reads.
        mask::inherited(|| unsafe { sys::call(libc::SYS_execve, [host, arguments, call.environment, 0, 0, 0]) });
    });
}

/// Calls `start` with the environment that the program is to get: see [`preload`].
fn with_environment<T>(environment: usize, is_foreign: bool, start: impl FnOnce(usize) -> T) -> Option<T> {
    let (mut start, mut answer) = (Some(start), None);
    preload::loadable(environment, is_foreign, &mut |environment| {
        answer = start.take().map(|start| start(environment));
    });
    answer
}

fn call_of(path: *const c_char, arguments: List, environment: List) -> Call {
    let (path, arguments, environment) = (path as usize, arguments as usize, environment as usize);
    Call { directory: libc::AT_FDCWD, path, arguments, environment, flags: 0 }
}

/// execve(2).
///
/// # Safety
/// As libc's `execve`.
#[cfg_attr(not(test), no_mangle)]
pub unsafe extern "C-unwind" fn execve(path: *const c_char, arguments: List, environment: List) -> c_int {
    let Some(next) = EXECVE.get() else { return missing() };
    // SAFETY: the caller's own arguments, or some of its environment.
    let start = |environment| unsafe { next(path, arguments, environment as List) };
    execute(&call_of(path, arguments, environment), start).unwrap_or_else(missing)
}

/// execv(3).
///
/// # Safety
/// As libc's `execv`.
#[cfg_attr(not(test), no_mangle)]
pub unsafe extern "C-unwind" fn execv(path: *const c_char, arguments: List) -> c_int {
    // SAFETY: the caller's contract is the same.
    unsafe { execve(path, arguments, own_environment()) }
}

/// execvp(3).
///
/// # Safety
/// As libc's `execvp`.
#[cfg_attr(not(test), no_mangle)]
pub unsafe extern "C-unwind" fn execvp(file: *const c_char, arguments: List) -> c_int {
    // SAFETY: the caller's contract is the same, and libc's function does the same.
    unsafe { execvpe(file, arguments, own_environment()) }
}

/// execvpe(3).
///
/// # Safety
/// As libc's `execvpe`.
#[cfg_attr(not(test), no_mangle)]
pub unsafe extern "C-unwind" fn execvpe(file: *const c_char, arguments: List, environment: List) -> c_int {
    let Some(next) = EXECVPE.get() else { return missing() };
    let mut is_foreign = false;
    search(file, &mut |path| {
        let call = call_of(path, arguments, environment);
        before(&call);
        is_foreign = call.is_foreign();
    });
    // SAFETY: the caller's own arguments, or some of its environment.
    let start = |environment| mask::inherited(|| unsafe { next(file, arguments, environment as List) });
    with_environment(environment as usize, is_foreign, start).unwrap_or_else(missing)
}

/// fexecve(3).
///
/// # Safety
/// As libc's `fexecve`.
#[cfg_attr(not(test), no_mangle)]
pub unsafe extern "C-unwind" fn fexecve(fd: c_int, arguments: List, environment: List) -> c_int {
    let Some(next) = FEXECVE.get() else { return missing() };
    // SAFETY: the caller's own arguments, or some of its environment.
    let start = |environment| unsafe { next(fd, arguments, environment as List) };
    if fd < 0 || arguments.is_null() || environment.is_null() {
        return start(environment as usize);
    }
    let call = call_of(c"".as_ptr(), arguments, environment);
    execute(&Call { directory: fd, flags: libc::AT_EMPTY_PATH as usize, ..call }, start).unwrap_or_else(missing)
}

/// execveat(2).
///
/// # Safety
/// As libc's `execveat`.
#[cfg_attr(not(test), no_mangle)]
pub unsafe extern "C-unwind" fn execveat(
    directory: c_int,
    path: *const c_char,
    arguments: List,
    environment: List,
    flags: c_int,
) -> c_int {
    let Some(next) = EXECVEAT.get() else { return missing() };
    // SAFETY: the caller's own arguments, or some of its environment.
    let start = |environment| unsafe { next(directory, path, arguments, environment as List, flags) };
    let call = call_of(path, arguments, environment);
    execute(&Call { directory, flags: flags as usize, ..call }, start).unwrap_or_else(missing)
}

/// posix_spawn(3).
///
/// # Safety
/// As libc's `posix_spawn`.
#[cfg_attr(not(test), no_mangle)]
pub unsafe extern "C-unwind" fn posix_spawn(
    pid: *mut c_int,
    path: *const c_char,
    actions: *const c_void,
    attributes: *const c_void,
    arguments: List,
    environment: List,
) -> c_int {
    let Some(next) = POSIX_SPAWN.get() else { return libc::ENOSYS };
    let masked = with_mask(attributes);
    let attributes = masked.as_ref().map_or(attributes, |masked| core::ptr::from_ref(masked).cast());
    let call = call_of(path, arguments, environment);
    let spawned = spawn_host(&call, &mut |host, list| {
        // SAFETY: the caller's own arguments, with other strings.
        unsafe { next(pid, host as *const c_char, actions, attributes, list as List, environment) }
    });
    // SAFETY: the caller's own arguments, or some of its environment.
    let start = |environment| unsafe { next(pid, path, actions, attributes, arguments, environment as List) };
    spawned.or_else(|| with_environment(environment as usize, call.is_foreign(), start)).unwrap_or(libc::ENOSYS)
}

/// posix_spawnp(3).
///
/// # Safety
/// As libc's `posix_spawnp`.
#[cfg_attr(not(test), no_mangle)]
pub unsafe extern "C-unwind" fn posix_spawnp(
    pid: *mut c_int,
    file: *const c_char,
    actions: *const c_void,
    attributes: *const c_void,
    arguments: List,
    environment: List,
) -> c_int {
    let Some(next) = POSIX_SPAWNP.get() else { return libc::ENOSYS };
    let masked = with_mask(attributes);
    let attributes = masked.as_ref().map_or(attributes, |masked| core::ptr::from_ref(masked).cast());
    let (mut spawned, mut is_foreign) = (None, false);
    search(file, &mut |path| {
        let call = call_of(path, arguments, environment);
        is_foreign = call.is_foreign();
        spawned = spawn_host(&call, &mut |host, list| {
            // SAFETY: the caller's own arguments, with other strings; a path is not searched for.
            unsafe { next(pid, host as *const c_char, actions, attributes, list as List, environment) }
        });
    });
    // SAFETY: the caller's own arguments, or some of its environment.
    let start = |environment| unsafe { next(pid, file, actions, attributes, arguments, environment as List) };
    spawned.or_else(|| with_environment(environment as usize, is_foreign, start)).unwrap_or(libc::ENOSYS)
}

/// Returns a copy of the attributes with the signal mask that the thread believes to have. None if the attributes name
/// a mask themselves, or if the thread's real mask is the one that it believes to have.
fn with_mask(attributes: *const c_void) -> Option<posix_spawnattr_t> {
    let mask = mask::to_inherit()?;
    let mut flags = 0;
    // SAFETY: null or attributes, which are plain memory; a copy is initialised as they are.
    unsafe {
        let mut own: posix_spawnattr_t = core::mem::zeroed();
        match attributes.cast::<posix_spawnattr_t>().as_ref() {
            Some(given) => own = *given,
            None => _ = libc::posix_spawnattr_init(&mut own),
        }
        libc::posix_spawnattr_getflags(&own, &mut flags);
        if flags & libc::POSIX_SPAWN_SETSIGMASK as i16 != 0 {
            return None;
        }
        libc::posix_spawnattr_setflags(&mut own, flags | libc::POSIX_SPAWN_SETSIGMASK as i16);
        libc::posix_spawnattr_setsigmask(&mut own, &mask::as_set(mask));
        Some(own)
    }
}

/// Starts the guest host. Returns `Some(0)` if the host was started. `None`: make the program's own call, which reports
/// why it fails.
fn spawn_host(call: &Call, spawn: &mut dyn FnMut(usize, usize) -> c_int) -> Option<c_int> {
    let mut answer = None;
    start_host(call, &mut |host, list| {
        if answer.is_none() {
            answer = Some(spawn(host, list)).filter(|answer| *answer == 0);
        }
    });
    answer
}

/// Calls `then` with the path that libc would find along PATH, if there is one.
fn search(file: *const c_char, then: &mut dyn FnMut(*const c_char)) {
    const LONGEST: usize = 1024;
    if file.is_null() {
        return;
    }
    // SAFETY: the caller of exec(3) has passed a string.
    let name = unsafe { CStr::from_ptr(file) }.to_bytes();
    if name.contains(&b'/') {
        return then(file);
    }
    // SAFETY: libc's functions look there, too; the string is that of the environment.
    let path = unsafe {
        let path = libc::getenv(c"PATH".as_ptr());
        // confstr(_CS_PATH)
        if path.is_null() {
            c"/bin:/usr/bin"
        } else {
            CStr::from_ptr(path)
        }
    };
    for folder in path.to_bytes().split(|byte| *byte == b':') {
        let mut candidate = [0_u8; LONGEST];
        let slash: &[u8] = if folder.is_empty() { b"" } else { b"/" };
        if name.is_empty() || folder.len() + slash.len() + name.len() >= LONGEST {
            continue;
        }
        let mut at = 0;
        for part in [folder, slash, name] {
            candidate[at..at + part.len()].copy_from_slice(part);
            at += part.len();
        }
        if kind::is_found(candidate.as_ptr() as usize) {
            return then(candidate.as_ptr().cast());
        }
    }
}

/// execl(3).
///
/// # Safety
/// As libc's `execl`.
#[cfg_attr(not(test), no_mangle)]
#[unsafe(naked)]
pub unsafe extern "C" fn execl() -> c_int {
    arch::with_list!(execv)
}

/// execlp(3).
///
/// # Safety
/// As libc's `execlp`.
#[cfg_attr(not(test), no_mangle)]
#[unsafe(naked)]
pub unsafe extern "C" fn execlp() -> c_int {
    arch::with_list!(execvp)
}

/// execle(3).
///
/// # Safety
/// As libc's `execle`.
#[cfg_attr(not(test), no_mangle)]
#[unsafe(naked)]
pub unsafe extern "C" fn execle() -> c_int {
    arch::with_list!(execve_after)
}

/// execve(2) with the environment that follows the end of the arguments, as execle(3) has it.
unsafe extern "C-unwind" fn execve_after(path: *const c_char, arguments: List) -> c_int {
    // SAFETY: the list of an execle(3), which has an end, and the environment after it.
    unsafe {
        let mut end = arguments;
        while !(*end).is_null() {
            end = end.add(1);
        }
        execve(path, arguments, *end.add(1) as List)
    }
}
