//! Where libanyring.so and the host of guests are.

use crate::child::{self, Outcome};
use crate::elf;
use std::ffi::{CStr, OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const NAME: &str = "libanyring.so";

/// Where an installed library is, seen from the folder above the executable's. `make install LIBDIR=...` knows the same
/// list (scripts/install.sh).
const INSTALLED: [&str; 4] = ["lib/anyring", "lib64/anyring", "lib/x86_64-linux-gnu/anyring", "lib"];

/// The library's absolute path: what ANYRING_LIBRARY names, else beside the executable, else in one of [`INSTALLED`].
/// The error is one line for people.
pub fn find() -> Result<PathBuf, String> {
    let candidates = match std::env::var_os("ANYRING_LIBRARY") {
        Some(named) => vec![PathBuf::from(named)],
        None => beside_executable()?,
    };
    if let Some(named) = std::env::var_os("ANYRING_LIBRARY").map(PathBuf::from).filter(|named| named.is_dir()) {
        return Err(format!("ANYRING_LIBRARY={}: it is a directory, not {NAME}", named.display()));
    }
    let Some(found) = candidates.iter().find(|path| path.is_file()) else {
        let looked: Vec<_> = candidates.iter().map(|path| path.display().to_string()).collect();
        return Err(format!("{NAME} not found: looked for {} (ANYRING_LIBRARY=FILE names it)", looked.join(", ")));
    };
    let path = std::path::absolute(found).map_err(|error| format!("{}: {error}", found.display()))?;
    // ld.so(8): LD_PRELOAD is split at colons and spaces, and `$` begins a token that is expanded.
    if path.as_os_str().as_bytes().iter().any(|byte| b": \t\n$".contains(byte)) {
        return Err(format!(
            "`{}` cannot be preloaded: LD_PRELOAD allows no colon, space or $ in a path",
            path.display()
        ));
    }
    Ok(path)
}

/// Whether ANYRING_LIBRARY names it.
pub fn is_named() -> bool {
    std::env::var_os("ANYRING_LIBRARY").is_some()
}

/// [`find`], and that the loader would take it: of a file that it cannot load it says so itself, in the program's output,
/// and starts the program without it.
pub fn find_loadable() -> Result<PathBuf, String> {
    let library = find()?;
    let why = match elf::check_library(&library) {
        Ok(()) => return Ok(library),
        Err(why) => why,
    };
    Err(format!("{} cannot be preloaded: {why} (ANYRING_LIBRARY=FILE names another)", library.display()))
}

/// [`find_loadable`], and that it loads into this program.
pub fn find_for(program: &Path) -> Result<PathBuf, String> {
    let library = find_loadable()?;
    loads_into(&library, program).map_err(|why| format!("{} cannot be preloaded: {why}", library.display()))?;
    Ok(library)
}

/// The same, where a program is served without it, too: as a guest, for the inner reason. One that was named is meant, and its
/// fault is the outer error.
pub fn try_find(program: Option<&Path>) -> Result<Result<PathBuf, String>, String> {
    match program.map_or_else(find_loadable, find_for) {
        Err(why) if is_named() => Err(why),
        found => Ok(found),
    }
}

/// Whether the loader of a program takes the library: it says what it would load, in a child. It may lack what the library needs, or
/// the library lies where nothing may be executed, of which the program's own output would tell, or its end.
pub fn loads_into(library: &Path, program: &Path) -> Result<(), String> {
    let file = elf::loaded_for(program);
    if !elf::is_of_glibc(&file) {
        return Ok(());
    }
    let told = child::ask(|| {
        // SAFETY: no handler is involved. Ignored, it would hide how the loader ends.
        unsafe { libc::signal(libc::SIGCHLD, libc::SIG_DFL) };
        let mut loader = Command::new(&file);
        loader.env("LD_PRELOAD", preload_list(library)).env("LD_TRACE_LOADED_OBJECTS", "1").stdin(Stdio::null());
        loader.output().map_err(|error| crate::errno::of(&error)).map(|told| [told.stdout, told.stderr].concat())
    });
    let Outcome::Answered(told) = told else { return Err(told.describe(|_| String::new())) };
    let told = told.map(|told| String::from_utf8_lossy(&told).into_owned())?;
    let is_fault = |line: &&str| {
        let named = line.contains("cannot be preloaded") && line.contains(&*library.to_string_lossy());
        named || line.contains("not found") || line.contains("error while loading")
    };
    told.lines().find(is_fault).map_or(Ok(()), |line| Err(line.trim().to_owned()))
}

/// The file of this process. Without /proc it is what execve(2) was given, as the auxiliary vector keeps it.
pub fn executable() -> Result<PathBuf, String> {
    std::env::current_exe().or_else(|_| of_auxiliary_vector()).map_err(|error| error.to_string())
}

fn of_auxiliary_vector() -> std::io::Result<PathBuf> {
    // SAFETY: the vector's entry is null or a string at the top of the stack that the kernel put there for good.
    let name = unsafe {
        let name = libc::getauxval(libc::AT_EXECFN) as *const libc::c_char;
        name.as_ref().map(|name| CStr::from_ptr(name))
    };
    let name = name.ok_or(std::io::ErrorKind::NotFound)?;
    std::fs::canonicalize(OsStr::from_bytes(name.to_bytes()))
}

/// The absolute path of the host of guests: what ANYRING_GUEST names, else this executable. The error is one line.
pub fn find_guest() -> Result<PathBuf, String> {
    if !anyring_guest::HERE {
        return Err("there are no guests on this processor, only on x86-64".to_owned());
    }
    let Some(named) = std::env::var_os("ANYRING_GUEST").map(PathBuf::from) else { return executable() };
    if !named.is_file() {
        return Err(format!("ANYRING_GUEST={}: there is no such file", named.display()));
    }
    std::path::absolute(&named).map_err(|error| format!("{}: {error}", named.display()))
}

/// Where the library may be that belongs to this command.
fn beside_executable() -> Result<Vec<PathBuf>, String> {
    let executable = executable().map_err(|error| format!("cannot find {NAME}: {error}"))?;
    let directory = executable.parent().unwrap_or(Path::new("/"));
    let above = directory.parent().unwrap_or(Path::new("/"));
    let installed = INSTALLED.iter().map(|folder| above.join(folder).join(NAME));
    Ok(std::iter::once(directory.join(NAME)).chain(installed).collect())
}

/// LD_PRELOAD with `library` first and whatever is preloaded already behind it.
pub fn preload_list(library: &Path) -> OsString {
    let mut list = library.as_os_str().to_owned();
    if let Some(present) = std::env::var_os("LD_PRELOAD").filter(|present| !present.is_empty()) {
        let others = present.as_bytes().split(|byte| b": \t\n".contains(byte));
        // Nested `run`s must not load it twice.
        for other in others.filter(|other| !other.is_empty() && *other != library.as_os_str().as_bytes()) {
            list.push(":");
            list.push(OsStr::from_bytes(other));
        }
    }
    list
}
