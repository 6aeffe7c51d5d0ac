//! Programs that a served program executes. [`kind`] decides how each is served. The functions here start the guest
//! host for those that need it.
//!
//! All of this code also runs in signal handlers, and in children of vfork(2), whose memory is their parent's. It
//! allocates no memory and changes no state. Strings stay where the program has them. If anything fails here, the
//! program's own call goes to the kernel, which reports the reason.

pub mod kind;
pub mod preload;
mod words;

use crate::{arch, filters, sys};
use anyring_engine::stats;
use core::ffi::c_int;
use core::mem::MaybeUninit;
use kind::Kind;
use words::with_words;

/// The beginning of the host's second argument.
pub const STATE: &str = "--program=";
/// The host's first argument. It is also the process's name until the guest begins.
pub const HOST_NAME: &core::ffi::CStr = c"anyring";
/// The most arguments handled here. The kernel accepts no more. Its MAX_ARG_STRINGS is larger, but the kernel also
/// limits the arguments' memory.
const ARGUMENTS_MOST: usize = 1 << 22;

/// execveat(2)'s arguments; the addresses are the program's.
#[derive(Clone, Copy)]
pub struct Call {
    /// The base of a relative path: a descriptor, or AT_FDCWD.
    pub directory: c_int,
    /// The path.
    pub path: usize,
    /// The list of arguments.
    pub arguments: usize,
    /// The list of the environment.
    pub environment: usize,
    /// AT_EMPTY_PATH, AT_SYMLINK_NOFOLLOW.
    pub flags: usize,
}

impl Call {
    /// True if the call would start a program for another kind of processor, into which this library cannot be loaded.
    pub fn is_foreign(&self) -> bool {
        kind::is_foreign(self.directory, self.path, self.flags)
    }
}

/// Anyring's variables in the environment of a new program. Each address is that of a value, or 0 if the variable is
/// absent.
#[derive(Clone, Copy, Default)]
pub struct Environment {
    /// LD_PRELOAD.
    pub preload: usize,
    /// True if LD_PRELOAD names the library.
    pub preloads: bool,
    /// ANYRING_GUEST: the host's path.
    pub guest: usize,
    /// ANYRING_LIBRARY.
    pub library: usize,
    /// ANYRING_LOG.
    log: usize,
    /// ANYRING_STATS.
    stats: usize,
}

impl Environment {
    /// Reads an environment: a list that ends with a null pointer.
    pub fn read(list: usize) -> Environment {
        let mut found = Environment::default();
        for index in 0.. {
            let word = sys::read_program((list as *const usize).wrapping_add(index));
            let Some(string) = word.filter(|string| *string != 0) else { break };
            let mut head = [0; 24];
            let head = peek(string, &mut head);
            let value = |name: &str| head.starts_with(name.as_bytes()).then_some(string + name.len());
            if let Some(value) = value("LD_PRELOAD=") {
                let mut list = [0; 512];
                found.preload = value;
                found.preloads = contains(peek(value, &mut list), b"libanyring");
            }
            for (name, place) in [
                ("ANYRING_GUEST=", &mut found.guest),
                ("ANYRING_LIBRARY=", &mut found.library),
                ("ANYRING_LOG=", &mut found.log),
                ("ANYRING_STATS=", &mut found.stats),
            ] {
                if let Some(value) = value(name) {
                    *place = value;
                }
            }
        }
        found
    }

    /// True if the environment names a host.
    fn has_guest(&self) -> bool {
        sys::read_program(self.guest as *const u8) == Some(b'/')
    }

    /// Calls `then` with a copy of this environment, which is at `list`, with the library in LD_PRELOAD. Does not
    /// call it if the environment names no library, or one that cannot be loaded.
    pub fn with_preload(&self, list: usize, then: &mut dyn FnMut(usize)) {
        let (mut library, mut string, mut others) = ([0; 512], [0; 1024], [0; 512]);
        let library = peek(self.library, &mut library);
        if !library.starts_with(b"/") || library.len() == 512 || !preload::can_be_loaded(library) {
            return;
        }
        let rest: &[u8] = if self.preload == 0 { b"" } else { peek(self.preload, &mut others) };
        with_copy(list, 2, &mut |words| {
            if rest.len() == 512 || contains(rest, library) {
                // Listed already, or too long to change.
                return if contains(rest, library) {
                    then(words.as_ptr() as usize)
                };
            }
            let colon: &[u8] = if rest.is_empty() { b"" } else { b":" };
            let before = self.preload.wrapping_sub(preload::NAME.len());
            let place = words.iter().position(|word| *word == before || *word == 0);
            if let (Some(place), Some(string)) =
                (place, text(&mut string, &[preload::NAME, library, colon, rest], None))
            {
                words[place] = string;
                then(words.as_ptr() as usize);
            }
        });
    }

    /// Reports in the log, and in the counters, that a child is not served.
    pub fn record_unserved(&self, path: usize, why: &str) {
        let (mut line, mut name, mut head) = ([0; 512], [0; 300], [0; 32]);
        let Some(_) = text(&mut head, &[b"anyring["], sys::process_id()) else { return };
        let head = head.split(|byte| *byte == 0).next().unwrap_or_default();
        let (mut length, mut child) = (0, 0);
        for part in
            [head, b"]: a child is not served: ", b"`", peek(path, &mut name), b"`: ", why.as_bytes(), b"\n"]
        {
            if part == b"`" {
                child = length;
            }
            let room = part.len().min(line.len() - length);
            line[length..length + room].copy_from_slice(&part[..room]);
            length += room;
        }
        if self.stats != 0 {
            stats::count_unserved(self.stats, &line[child..length - 1]);
        }
        if self.log == 0 {
            return;
        }
        let flags = libc::O_WRONLY | libc::O_CREAT | libc::O_APPEND | libc::O_CLOEXEC | libc::O_NONBLOCK;
        let open = [libc::AT_FDCWD as usize, self.log, flags as usize, 0o644, 0, 0];
        // SAFETY: the kernel reads the path and the line; nothing else uses the descriptor.
        unsafe {
            let file = sys::call(libc::SYS_openat, open);
            if file >= 0 {
                sys::call(libc::SYS_write, [file as usize, line.as_ptr() as usize, length, 0, 0, 0]);
                sys::call(libc::SYS_close, [file as usize, 0, 0, 0, 0, 0]);
            }
        }
    }
}

/// Lets `start` replace the calling program with the guest host, if the program that the call names needs the host.
/// `start` gets the host's path and its arguments. The function returns if the host is not needed, or if starting it
/// failed. The caller then makes the call itself. `letters` say whether the kernel or the engine serves, in the
/// form of the host's second argument.
pub fn start_host(call: &Call, letters: &str, start: &mut dyn FnMut(usize, usize)) {
    // SAFETY: reads the auxiliary vector.
    if unsafe { libc::getauxval(libc::AT_SECURE) } != 0 {
        return;
    }
    let environment = Environment::read(call.environment);
    // The program removed the library from the child's environment: it wants a child that is not served.
    if !environment.preloads {
        return;
    }
    match kind::of(call.directory, call.path, call.flags) {
        Kind::Guest if !environment.has_guest() => environment.record_unserved(
            call.path,
            "no library can be preloaded into it, and the host of guests is missing or forbidden",
        ),
        Kind::Guest if !guests_are_possible() => environment
            .record_unserved(call.path, "no library can be preloaded into it, and guests cannot run here"),
        Kind::Guest => with_host_arguments(call, letters, &mut |list| start(environment.guest, list)),
        Kind::Preloaded { .. } if filters::are_many() && environment.has_guest() && guests_are_possible() => {
            with_host_arguments(call, letters, &mut |list| start(environment.guest, list));
        }
        Kind::Unserved(why) => environment.record_unserved(call.path, why),
        Kind::Preloaded { .. } if preload::is_absent(environment.preload) => {
            environment.record_unserved(call.path, "the library's file cannot be loaded where it runs");
        }
        Kind::Preloaded { .. } | Kind::Unknown => {}
    }
}

/// Calls `then` with the host's arguments for this call.
fn with_host_arguments(call: &Call, letters: &str, then: &mut dyn FnMut(usize)) {
    let mut first = [0_u8; 1];
    let is_relative = call.directory != libc::AT_FDCWD && peek(call.path, &mut first) != b"/";
    if !is_relative {
        let mut state = [0; 32];
        let parts = [STATE.as_bytes(), letters.as_bytes()];
        if let Some(state) = text(&mut state, &parts, None) {
            with_arguments([state, call.path, call.path], call.arguments, then);
        }
        return;
    }
    // SAFETY: makes a new number for a descriptor that the program named; it is closed again, here or by the host.
    let copy = unsafe { sys::call(libc::SYS_dup, [call.directory as usize, 0, 0, 0, 0, 0]) };
    if copy < 0 {
        return;
    }
    by_directory(call, letters, copy as c_int, then);
    // SAFETY: as above.
    unsafe { sys::call(libc::SYS_close, [copy as usize, 0, 0, 0, 0, 0]) };
}

/// Does the same as [`with_host_arguments`] for a path relative to a directory. `copy` is a duplicate of the
/// directory's descriptor that stays open.
fn by_directory(call: &Call, letters: &str, copy: c_int, then: &mut dyn FnMut(usize)) {
    const LONGEST: usize = 256;
    let (mut state, mut path) = ([0; 32], [0; LONGEST]);
    let (mut file, mut name) = ([0; LONGEST + 32], [0; LONGEST + 32]);
    let asked = peek(call.path, &mut path);
    if asked.len() == LONGEST {
        return;
    }
    let slash: &[u8] = if asked.is_empty() { b"" } else { b"/" };
    let Some(state) = text(&mut state, &[STATE.as_bytes(), letters.as_bytes()], copy) else { return };
    let below = |into: &mut [u8], folder: &[u8], number: c_int| {
        text(into, &[folder], number)?;
        let at = into.iter().position(|byte| *byte == 0)?;
        text(&mut into[at..], &[slash, asked], None)?;
        Some(into.as_ptr() as usize)
    };
    let Some(file) = below(&mut file, b"/proc/self/fd/", copy) else { return };
    let Some(name) = below(&mut name, b"/dev/fd/", call.directory) else { return };
    with_arguments([state, file, name], call.arguments, then);
}

/// Calls `then` with the list of the host's arguments: `lead`, then the program's own. If the program has none, an
/// empty one is added, as Linux does since 5.18. Does not call it if the program's arguments cannot be read.
pub fn with_arguments(lead: [usize; 3], arguments: usize, then: &mut dyn FnMut(usize)) {
    let Some(count) = count(arguments) else { return };
    let fill = &mut |list: &mut [usize]| {
        list.fill(0);
        list[0] = HOST_NAME.as_ptr() as usize;
        list[1..4].copy_from_slice(&lead);
        list[4] = c"".as_ptr() as usize;
        let own = &mut list[4..4 + count];
        // SAFETY: initialized words; every bit pattern is a valid value.
        let own = unsafe { core::slice::from_raw_parts_mut(own.as_mut_ptr().cast::<MaybeUninit<u64>>(), count) };
        if count == 0 || sys::read_program_into(arguments as *const u64, own) {
            then(list.as_ptr() as usize);
        }
    };
    with_words(4 + count.max(1) + 1, fill);
}

/// Returns the number of words before the null pointer.
fn count(list: usize) -> Option<usize> {
    if list == 0 {
        return Some(0);
    }
    (0..ARGUMENTS_MOST).find_map(|index| match sys::read_program((list as *const u64).wrapping_add(index)) {
        Some(0) => Some(Some(index)),
        Some(_) => None,
        None => Some(None),
    })?
}

/// Calls `then` with a copy of the list of strings at `list`, followed by `extra` null pointers. Does not call it if
/// the list cannot be read.
fn with_copy(list: usize, extra: usize, then: &mut dyn FnMut(&mut [usize])) {
    let Some(count) = count(list) else { return };
    with_words(count + extra, &mut |words| {
        // SAFETY: initialized words; every bit pattern is a valid value.
        let own = unsafe { core::slice::from_raw_parts_mut(words.as_mut_ptr().cast::<MaybeUninit<u64>>(), count) };
        if count == 0 || sys::read_program_into(list as *const u64, own) {
            then(words);
        }
    });
}

/// True if the host can run on this system. Check this first, since the host would print its errors to the program's
/// standard error.
pub fn guests_are_possible() -> bool {
    arch::has_two_worlds() && filters::way().is_some()
}

/// Reads the string at this address, or as much of it as fits and may be read.
fn peek(address: usize, into: &mut [u8]) -> &[u8] {
    const PAGE: usize = 4096;
    let mut length = 0;
    while length < into.len() {
        let at = address.wrapping_add(length);
        let room = (PAGE - at % PAGE).min(into.len() - length);
        let piece = &mut into[length..length + room];
        // SAFETY: initialized bytes; every value is valid.
        let piece = unsafe { core::slice::from_raw_parts_mut(piece.as_mut_ptr().cast::<MaybeUninit<u8>>(), room) };
        if !sys::read_program_into(at as *const u8, piece) {
            break;
        }
        if let Some(end) = into[length..length + room].iter().position(|byte| *byte == 0) {
            return &into[..length + end];
        }
        length += room;
    }
    &into[..length]
}

fn contains(text: &[u8], part: &[u8]) -> bool {
    text.windows(part.len()).any(|window| window == part)
}

/// Writes the parts, followed by the number, as a C string. Returns its address if there was room.
fn text(into: &mut [u8], parts: &[&[u8]], number: impl Into<Option<c_int>>) -> Option<usize> {
    let mut length = 0;
    let mut add = |part: &[u8]| {
        into.get_mut(length..length + part.len())?.copy_from_slice(part);
        length += part.len();
        Some(())
    };
    for part in parts {
        add(part)?;
    }
    if let Some(number) = number.into() {
        let (mut digits, mut rest, mut at) = ([0; 12], number.unsigned_abs(), 12);
        while at == 12 || rest != 0 {
            at -= 1;
            digits[at] = b'0' + (rest % 10) as u8;
            rest /= 10;
        }
        add(&digits[at..])?;
    }
    add(&[0])?;
    Some(into.as_ptr() as usize)
}
