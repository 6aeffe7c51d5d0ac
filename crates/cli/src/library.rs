//! Finds libanyring.so and the host of guests.

use crate::arch;
use crate::child::{self, Outcome};
use crate::elf;
use crate::exec::Environment;
use std::ffi::{CStr, CString, OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

const NAME: &str = "libanyring.so";

/// Places of an installed library, relative to the folder above the executable's. scripts/install.sh has the same
/// list (`make install LIBDIR=...`).
const INSTALLED: [&str; 4] = ["lib/anyring", "lib64/anyring", arch::MULTIARCH, "lib"];

/// The library's absolute path: from ANYRING_LIBRARY, else beside the executable, else in one of [`INSTALLED`]. The
/// error is one line for people.
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

/// True if ANYRING_LIBRARY names the library.
pub fn is_named() -> bool {
    std::env::var_os("ANYRING_LIBRARY").is_some()
}

/// Finds the library as [`find`] does, and checks that the loader accepts it. The loader would complain about another
/// library in the program's output, and start the program without it.
pub fn find_loadable() -> Result<PathBuf, String> {
    let library = find()?;
    let why = match elf::check_library(&library) {
        Ok(()) => return Ok(library),
        Err(why) => why,
    };
    Err(format!("{} cannot be preloaded: {why} (ANYRING_LIBRARY=FILE names another)", library.display()))
}

/// Finds the library as [`find_loadable`] does, and checks that it loads into this program.
pub fn find_for(program: &Path) -> Result<PathBuf, String> {
    let library = find_loadable()?;
    loads_into(&library, program).map_err(|why| format!("{} cannot be preloaded: {why}", library.display()))?;
    Ok(library)
}

/// Finds the library as [`find_for`] does, for a program that could also be a guest. The inner error is the reason for
/// running it as a guest. The outer error is a fault of the library that ANYRING_LIBRARY names.
pub fn try_find(program: Option<&Path>) -> Result<Result<PathBuf, String>, String> {
    match program.map_or_else(find_loadable, find_for) {
        Err(why) if is_named() => Err(why),
        found => Ok(found),
    }
}

/// Checks that a program's loader accepts the library. In a child, the loader lists what it would load. The loader may
/// lack something that the library needs, or the library may be on a file system without execution. Without this check,
/// the fault would only show in the program's own output, or at its end.
pub fn loads_into(library: &Path, program: &Path) -> Result<(), String> {
    let file = elf::loaded_for(program);
    if !elf::is_of_glibc(&file) {
        return Ok(());
    }
    let words = [file.as_os_str().as_bytes()].map(|word| CString::new(word).unwrap_or_default());
    let list = preload_list(library);
    let environment =
        Environment::with(&[("LD_PRELOAD", Some(&list)), ("LD_TRACE_LOADED_OBJECTS", Some(OsStr::new("1")))]);
    let printed = child::capture_output(|| {
        let argv = [words[0].as_ptr(), std::ptr::null()];
        // SAFETY: a string, a list of it that ends with null, and an environment.
        unsafe { libc::execve(words[0].as_ptr(), argv.as_ptr(), environment.as_ptr()) };
        crate::errno::describe(crate::errno::last())
    });
    let text = match printed {
        Outcome::Replied(printed) => printed.text,
        // No child: not tried.
        Outcome::Failed(why) if why.starts_with(child::NO_CHILD) => return Ok(()),
        other => return Err(other.describe(|_| String::new())),
    };
    let is_fault = |line: &&str| {
        let named = line.contains("cannot be preloaded") && line.contains(&*library.to_string_lossy());
        named || line.contains("not found") || line.contains("error while loading")
    };
    text.lines().find(is_fault).map_or(Ok(()), |line| Err(line.trim().to_owned()))
}

/// The file of this process. Without /proc it is the path given to execve(2), from the auxiliary vector.
pub fn executable() -> Result<PathBuf, String> {
    let why = |error: std::io::Error| format!("anyring's own file cannot be found: {}", crate::errno::of(&error));
    std::env::current_exe().or_else(|_| of_auxiliary_vector()).map_err(why)
}

fn of_auxiliary_vector() -> std::io::Result<PathBuf> {
    // SAFETY: the vector's entry is null or a string at the top of the stack, which the kernel put there and never
    // removes.
    let name = unsafe {
        let name = libc::getauxval(libc::AT_EXECFN) as *const libc::c_char;
        name.as_ref().map(|name| CStr::from_ptr(name))
    };
    let name = name.ok_or(std::io::ErrorKind::NotFound)?;
    let name = Path::new(OsStr::from_bytes(name.to_bytes()));
    // Where readlink(2) is refused, the path stays as it is.
    std::fs::canonicalize(name).or_else(|_| std::path::absolute(name))
}

/// The absolute path of the host of guests: from ANYRING_GUEST, else this executable. The error is one line.
pub fn find_guest() -> Result<PathBuf, String> {
    let Some(named) = std::env::var_os("ANYRING_GUEST").map(PathBuf::from) else { return executable() };
    if !named.is_file() {
        return Err(format!("ANYRING_GUEST={}: there is no such file", named.display()));
    }
    std::path::absolute(&named).map_err(|error| format!("{}: {error}", named.display()))
}

/// Paths at which this command's library may be.
fn beside_executable() -> Result<Vec<PathBuf>, String> {
    let executable = executable().map_err(|error| format!("cannot find {NAME}: {error}"))?;
    let directory = executable.parent().unwrap_or(Path::new("/"));
    let above = directory.parent().unwrap_or(Path::new("/"));
    let installed = INSTALLED.iter().map(|folder| above.join(folder).join(NAME));
    Ok(std::iter::once(directory.join(NAME)).chain(installed).collect())
}

/// LD_PRELOAD with `library` first, followed by all that is preloaded already.
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
