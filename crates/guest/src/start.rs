//! Prepares the process before the guest begins.

use crate::arch::crossing;
use crate::elf::Refusal;
use crate::filter::{self, Calls};
use crate::stack::{Begin, First};
use crate::state::State;
use crate::{exe, hot, loader, probe, script, signals, tcb, world};
use anyring_engine::{alloc, descriptors, log, os, process, thread};
use anyring_serve::filters::Way;
use anyring_serve::{engine, sys};
use core::ffi::{c_char, c_int, CStr};
use core::mem::ManuallyDrop;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};
use std::fs::File;
use std::os::fd::{FromRawFd, IntoRawFd};
use std::os::unix::fs::MetadataExt;

/// Exit status if the program cannot be served. This and the next two statuses are also those of `anyring run`.
pub const CANNOT_SERVE: c_int = 125;
pub const CANNOT_EXECUTE: c_int = 126;
pub const NOT_FOUND: c_int = 127;

static RINGS: AtomicBool = AtomicBool::new(false);
static AIO: AtomicBool = AtomicBool::new(false);
static PRELOADS: AtomicBool = AtomicBool::new(false);
static FILTERED: AtomicBool = AtomicBool::new(false);
static WITH_RINGS: AtomicBool = AtomicBool::new(false);
static WITH_LEVELS: AtomicBool = AtomicBool::new(false);
/// The host's own file, open.
static HOST: AtomicI32 = AtomicI32::new(-1);
/// The device and inode of that file.
static HOST_ID: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];

impl State {
    /// Returns the state of this process.
    pub fn here() -> State {
        State {
            rings: serves_rings(),
            aio: serves_aio(),
            preloads: PRELOADS.load(Ordering::Relaxed),
            filtered: FILTERED.load(Ordering::Relaxed),
            with_rings: WITH_RINGS.load(Ordering::Relaxed),
            with_levels: WITH_LEVELS.load(Ordering::Relaxed),
            closes: None,
        }
    }
}

/// True if the engine serves io_uring here.
pub fn serves_rings() -> bool {
    RINGS.load(Ordering::Relaxed)
}

/// True if the engine serves Linux AIO here.
pub fn serves_aio() -> bool {
    AIO.load(Ordering::Relaxed)
}

/// Returns the descriptor of the host's own file, if the guest has not closed it and opened another file with that
/// number.
pub fn host() -> Option<c_int> {
    let number = HOST.load(Ordering::Relaxed);
    // SAFETY: only the file's status is asked for, and it is not closed here.
    let file = (number >= 0).then(|| unsafe { ManuallyDrop::new(File::from_raw_fd(number)) })?;
    is_host(&file).then_some(number)
}

/// True if this is the host's own file.
pub fn is_host(file: &File) -> bool {
    let own = HOST_ID.each_ref().map(|word| word.load(Ordering::Relaxed));
    file.metadata().is_ok_and(|status| [status.dev(), status.ino()] == own)
}

/// Traps calls that only matter with a ring from now on, since a ring exists or is about to be made.
pub fn trap_with_rings() {
    if !WITH_RINGS.swap(true, Ordering::Relaxed) {
        if let Err(why) = filter::install(Calls::WithRings) {
            descriptors::set_closes_are_seen(false);
            log::line(&format!("poll, select and close of the guest's are left to the kernel: {why}"));
        }
    }
}

/// Traps epoll waits from now on, if an epoll set has a level-triggered ring.
#[inline]
pub fn trap_with_levels() {
    if descriptors::level::any() {
        install_for_levels();
    }
}

fn install_for_levels() {
    if !WITH_LEVELS.swap(true, Ordering::Relaxed) {
        if let Err(why) = filter::install(Calls::WithLevels) {
            log::line(&format!("epoll_wait of the guest's is left to the kernel: {why}"));
        }
    }
}

/// Returns the calls that the installed filters trap.
pub fn trapped() -> impl Iterator<Item = Calls> {
    let rings = WITH_RINGS.load(Ordering::Relaxed).then_some(Calls::WithRings);
    let levels = WITH_LEVELS.load(Ordering::Relaxed).then_some(Calls::WithLevels);
    [Some(Calls::General), rings, levels].into_iter().flatten()
}

/// If the arguments are those of a host, makes the process the host of a program and does not return. `None` if they
/// are not. On failure, prints the reason on standard error and returns the exit status.
///
/// # Safety
/// Called once by the C `main`, before anything else there, with what libc's start code has passed.
pub unsafe fn main(count: c_int, arguments: *const *const c_char) -> Option<c_int> {
    // SAFETY: libc passes what it got, unchanged.
    let first = unsafe { First::new(count as usize, arguments) };
    let words = first.arguments();
    let [_, state, file, name, _, ..] = words[..] else { return None };
    let state = State::parse(state.to_bytes())?;
    match begin(&first, state, file, name) {
        Err(refusal) => {
            say(&format!("cannot run `{}`: {}", name.to_string_lossy(), refusal.why));
            Some(match refusal.errno {
                0 => CANNOT_SERVE,
                libc::ENOENT => NOT_FOUND,
                _ => CANNOT_EXECUTE,
            })
        }
        // SAFETY: `begin` has loaded the program, and nothing on this stack is needed any more.
        Ok(Begin { entry, stack, words }) => unsafe {
            crossing::begin(entry, stack, words.as_ptr(), words.len());
        },
    }
}

/// Prints one line on standard error, before there is a guest.
fn say(text: &str) {
    let line = format!("anyring: {}\n", text.replace('\n', " "));
    // SAFETY: the kernel reads the line.
    unsafe { sys::call(libc::SYS_write, [2, line.as_ptr() as usize, line.len(), 0, 0, 0]) };
}

/// Prepares the host and loads the guest: everything except the jump to the guest's first instruction.
fn begin(first: &First, state: State, file: &CStr, name: &CStr) -> Result<Begin, Refusal> {
    keep_environment(first);
    RINGS.store(state.rings, Ordering::Relaxed);
    AIO.store(state.aio, Ordering::Relaxed);
    PRELOADS.store(state.preloads, Ordering::Relaxed);
    WITH_RINGS.store(state.with_rings, Ordering::Relaxed);
    WITH_LEVELS.store(state.with_levels, Ordering::Relaxed);
    prepare().map_err(|why| Refusal { errno: 0, why: why.to_owned() })?;
    let program = script::find(file.to_bytes(), name.to_bytes())?;
    let loaded = loader::load(&program.file, &program.elf)?;
    exe::set(program.real_path());
    log::line(&format!("the program runs as a guest: {}", String::from_utf8_lossy(exe::path())));
    if let Some(number) = state.closes {
        // SAFETY: a descriptor that the previous host has left open for this one.
        unsafe { sys::call(libc::SYS_close, [number as usize, 0, 0, 0, 0, 0]) };
    }
    let begin = first.of_guest(4, &program, &loaded, name);
    set_name(name);
    drop(program);
    let inherited = if state.filtered { [true; 3] } else { probe::inherited() };
    if !state.filtered {
        WITH_RINGS.store(inherited[1], Ordering::Relaxed);
        WITH_LEVELS.store(inherited[2], Ordering::Relaxed);
    }
    if !inherited[0] {
        let way = filter::install(Calls::General).map_err(|why| Refusal { errno: 0, why: why.to_owned() })?;
        if way == Way::OnlyThread {
            // Nothing more could be trapped later, with more threads.
            trap_with_rings();
            install_for_levels();
        }
    }
    FILTERED.store(true, Ordering::Relaxed);
    let images = [Some(&loaded.program), loaded.loader.as_ref()];
    for code in images.into_iter().flatten().flat_map(|image| image.code.clone()) {
        filter::cover(code.clone());
        hot::ahead(code).map_err(|why| Refusal { errno: 0, why })?;
    }
    Ok(begin)
}

/// Prepares the host itself.
fn prepare() -> Result<(), &'static str> {
    engine::quieten_panics();
    thread::prepare();
    alloc::reserve().map_err(|_| "there is no memory")?;
    crossing::prepare()?;
    tcb::prepare()?;
    if !world::adopt_first() {
        return Err("there is no memory");
    }
    signals::prepare()?;
    hot::prepare();
    process::at_fork(engine::renew_after_fork);
    descriptors::set_closes_are_seen(true);
    keep_host_open();
    engine::open_log();
    engine::open_counters();
    Ok(())
}

/// Copies the environment and arguments to which glibc and the standard library point on the first stack, which is
/// about to become the guest's.
fn keep_environment(first: &First) {
    extern "C" {
        static mut environ: *const *const c_char;
        static mut _dl_auxv: *const [usize; 2];
    }
    let strings = first.environment();
    // SAFETY: each is a string of the environment. The copies are leaked. There is no other thread yet that could read
    // the variables during the change.
    unsafe {
        let copy = |string: &usize| CStr::from_ptr(*string as *const c_char).to_owned().into_raw() as *const c_char;
        let mut list: Vec<*const c_char> = strings.iter().map(copy).collect();
        list.push(core::ptr::null());
        environ = list.leak().as_ptr();
        let vector: Vec<[usize; 2]> = first.vector().into_iter().map(|(kind, value)| [kind, value]).collect();
        _dl_auxv = vector.leak().as_ptr();
    }
}

/// Opens the host's own file. It is needed when the guest executes a program, and the guest may be in another root
/// directory by then.
fn keep_host_open() {
    let flags = libc::O_PATH | libc::O_CLOEXEC;
    let open = [libc::AT_FDCWD as usize, c"/proc/self/exe".as_ptr() as usize, flags as usize, 0, 0, 0];
    // SAFETY: a string that the kernel reads.
    let file = match unsafe { sys::call(libc::SYS_openat, open) } {
        ..0 => return,
        // SAFETY: a new descriptor, which nothing else uses.
        number => unsafe { File::from_raw_fd(number as c_int) },
    };
    if let Ok(status) = file.metadata() {
        HOST_ID[0].store(status.dev(), Ordering::Relaxed);
        HOST_ID[1].store(status.ino(), Ordering::Relaxed);
    }
    if let Ok(own) = descriptors::to_top(os::for_now(file.into())) {
        HOST.store(own.into_raw_fd(), Ordering::Relaxed);
    }
}

/// Gives the process the name of the executed file, as execve(2) does.
fn set_name(name: &CStr) {
    let bytes = name.to_bytes();
    let base = bytes.rsplit(|byte| *byte == b'/').next().unwrap_or(bytes);
    let mut text = [0_u8; 16];
    let length = base.len().min(text.len() - 1);
    text[..length].copy_from_slice(&base[..length]);
    // SAFETY: a string that the kernel reads.
    unsafe { sys::call(libc::SYS_prctl, [libc::PR_SET_NAME as usize, text.as_ptr() as usize, 0, 0, 0, 0]) };
}
