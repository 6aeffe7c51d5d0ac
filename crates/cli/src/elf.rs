//! Decides from a program's file how it can be served. LD_PRELOAD reaches a dynamically linked ELF file for this
//! machine that glibc's loader starts and that gains no privileges. A program that is linked otherwise may run as a
//! guest.

use crate::arch::MACHINE;
use crate::exec::is_executable;
use crate::output::complain;
use object::elf::{FileHeader32, FileHeader64, Machine, ET_DYN, PT_INTERP};
use object::read::elf::{FileHeader, ProgramHeader};
use object::read::{FileKind, ReadCache, ReadRef};
use object::{Endian, Endianness};
use rustix::fs::StatVfsMountFlags;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{ErrorKind, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Most `#!` files that may name each other, as in the kernel (fs/exec.c, exec_binprm).
const INTERPRETER_DEPTH: usize = 5;
/// Bytes at the start of a file that the kernel examines for `#!` (BINPRM_BUF_SIZE).
const SCRIPT_LINE_BYTES: u64 = 256;

/// The way in which a program can be served.
#[derive(Debug, PartialEq, Eq)]
pub enum Way {
    /// The library can be preloaded.
    Preloaded,
    /// The program can only be a guest.
    Guest {
        /// The property of the program that LD_PRELOAD cannot handle.
        what: String,
        /// The line that refuses the program if guests are not permitted.
        refusal: String,
    },
}

/// Decides how the program can be served. `Err` is the line that refuses it. For a file that cannot be read, or is
/// not ELF, execve(2) decides.
pub fn way_of(program: &Path) -> Result<Way, String> {
    let file = loaded_for(program);
    let opened = File::open(&file);
    if opened.as_ref().is_err_and(|error| error.kind() == ErrorKind::PermissionDenied) && is_executable(&file) {
        let file = file.display();
        complain(&format!("anyring: {file} may be executed but not read, so it is unknown whether it is served"));
    }
    // A guest's privileges matter as well: a program that another one loads does not gain them.
    let by_linkage = opened.ok().and_then(obstacle);
    let obstacle = match by_linkage {
        Some(Obstacle { is_for_guest: true, .. }) => privileges(&file).or(by_linkage),
        by_linkage => by_linkage.or_else(|| privileges(&file)),
    };
    let Some(Obstacle { what, advice, is_for_guest }) = obstacle else { return Ok(Way::Preloaded) };
    let through = if file == program { String::new() } else { format!(" (run by `{}`)", program.display()) };
    let line = format!("cannot serve `{}`{through}: it is {what}; {advice}", file.display());
    if is_for_guest {
        Ok(Way::Guest { what, refusal: line })
    } else {
        Err(line)
    }
}

/// Checks whether the library can be preloaded into the program; `Err` is the reason why not. Prints nothing, since
/// the program starts in any case.
pub fn can_preload(program: &Path) -> Result<(), String> {
    let file = loaded_for(program);
    let opened = File::open(&file).map_err(|error| crate::errno::of(&error))?;
    obstacle(opened)
        .or_else(|| privileges(&file))
        .map_or(Ok(()), |obstacle| Err(format!("it is {}", obstacle.what)))
}

/// True if glibc's loader starts the file, so that LD_TRACE_LOADED_OBJECTS has an effect.
pub fn is_of_glibc(file: &Path) -> bool {
    let loader = loader_of(file);
    let name = loader.as_deref().and_then(Path::file_name);
    name.is_some_and(|name| name.as_bytes().starts_with(b"ld-linux"))
}

/// The loader that starts the file, if it has one.
pub fn loader_of(file: &Path) -> Option<PathBuf> {
    let data = ReadCache::new(File::open(file).ok()?);
    let header = FileHeader64::<Endianness>::parse(&data).ok()?;
    let endian = header.endian().ok()?;
    let segments = header.program_headers(endian, &data).ok()?;
    let loader = segments.iter().find_map(|segment| segment.interpreter(endian, &data).ok().flatten())?;
    Some(PathBuf::from(OsStr::from_bytes(loader)))
}

/// The file that is executed for a program: for a script, its interpreter.
pub fn loaded_for(program: &Path) -> PathBuf {
    let mut file = program.to_owned();
    for _ in 0..INTERPRETER_DEPTH {
        match interpreter(&file) {
            Some(next) => file = next,
            None => break,
        }
    }
    file
}

/// Checks that the file is a shared library for this machine; `Err` describes it otherwise.
pub fn check_library(library: &Path) -> Result<(), String> {
    let file = File::open(library).map_err(|error| crate::errno::of(&error))?;
    let data = ReadCache::new(file);
    let foreign = || "it is not a shared library".to_owned();
    let FileKind::Elf64 = FileKind::parse(&data).map_err(|_| foreign())? else { return Err(foreign()) };
    let header = FileHeader64::<Endianness>::parse(&data).map_err(|_| foreign())?;
    let endian = header.endian().map_err(|_| foreign())?;
    match (header.e_type(endian), header.e_machine(endian)) {
        (ET_DYN, machine) if machine == MACHINE.0 && endian.is_little_endian() => Ok(()),
        (ET_DYN, machine) => Err(format!("it is for {}, not {}", machine_name(machine), MACHINE.1)),
        _ => Err(foreign()),
    }
}

/// The file named by a script's `#!` line.
fn interpreter(script: &Path) -> Option<PathBuf> {
    let mut head = Vec::new();
    File::open(script).ok()?.take(SCRIPT_LINE_BYTES).read_to_end(&mut head).ok()?;
    let line = head.strip_prefix(b"#!")?.split(|byte| *byte == b'\n').next()?;
    let word = line.split(|byte| b" \t\0".contains(byte)).find(|word| !word.is_empty())?;
    Some(PathBuf::from(OsStr::from_bytes(word)))
}

/// Returns the interpreter of a script that cannot be executed because the interpreter is missing.
pub fn missing_interpreter(script: &Path) -> Option<PathBuf> {
    let mut file = script.to_owned();
    for _ in 0..INTERPRETER_DEPTH {
        file = interpreter(&file)?;
        if !file.exists() {
            return Some(file);
        }
    }
    None
}

/// The reason why LD_PRELOAD does not reach a program.
struct Obstacle {
    /// The property that prevents it.
    what: String,
    /// The advice for the user.
    advice: &'static str,
    /// Whether the program can run as a guest.
    is_for_guest: bool,
}

impl Obstacle {
    fn new(what: String, advice: &'static str) -> Obstacle {
        Obstacle { what, advice, is_for_guest: false }
    }

    fn for_guest(what: String, advice: &'static str) -> Obstacle {
        Obstacle { what, advice, is_for_guest: true }
    }
}

const WHERE_PERMITTED: &str =
    "run it where the kernel's io_uring works (`anyring doctor` says what stands in the way)";
const OTHER_BUILD: &str = "use a dynamically linked 64-bit glibc build of it";

/// Describes a file that starts as ELF but is truncated: a shell would take it for a script.
fn damaged() -> Obstacle {
    Obstacle::new("a damaged ELF file, shorter than its headers say".to_owned(), "get an intact copy of it")
}

fn obstacle(file: File) -> Option<Obstacle> {
    let data = ReadCache::new(file);
    if data.read_bytes_at(0, 4).ok()? != b"\x7fELF" {
        return None;
    }
    let Ok(kind) = FileKind::parse(&data) else { return Some(damaged()) };
    match kind {
        FileKind::Elf64 => match FileHeader64::<Endianness>::parse(&data) {
            Ok(header) if header.endian().is_ok_and(|endian| header.program_headers(endian, &data).is_err()) => {
                Some(damaged())
            }
            Ok(header) => linkage(header, &data),
            Err(_) => Some(damaged()),
        },
        FileKind::Elf32 => {
            let header = FileHeader32::<Endianness>::parse(&data).ok()?;
            let machine = header.e_machine(header.endian().ok()?);
            Some(Obstacle::new(format!("a 32-bit program ({})", machine_name(machine)), OTHER_BUILD))
        }
        _ => None,
    }
}

fn linkage<'data>(header: &FileHeader64<Endianness>, data: impl ReadRef<'data>) -> Option<Obstacle> {
    let endian = header.endian().ok()?;
    let machine = header.e_machine(endian);
    if machine != MACHINE.0 || endian.is_big_endian() {
        let what = format!("a program for {}, not {}", machine_name(machine), MACHINE.1);
        return Some(Obstacle::new(what, OTHER_BUILD));
    }
    let segments = header.program_headers(endian, data).ok()?;
    let Some(segment) = segments.iter().find(|segment| segment.p_type(endian) == PT_INTERP) else {
        let kind = if header.e_type(endian) == ET_DYN { " (static-pie)" } else { "" };
        let what = format!("statically linked{kind}, so no library can be preloaded into it");
        return Some(Obstacle::for_guest(what, WHERE_PERMITTED));
    };
    let loader = segment.data(endian, data).ok()?.split(|byte| *byte == 0).next()?;
    let loader = Path::new(OsStr::from_bytes(loader));
    if loader.file_name()?.as_bytes().starts_with(b"ld-musl") {
        let what = format!("linked with musl (its loader is {})", loader.display());
        // If its loader is missing, that is the fault to report.
        return Some(if loader.exists() {
            Obstacle::for_guest(what, OTHER_BUILD)
        } else {
            Obstacle::new(what, OTHER_BUILD)
        });
    }
    if !loader.exists() {
        let what = format!("a program whose loader, {}, is missing", loader.display());
        return Some(Obstacle::new(what, "install the C library that it was built with"));
    }
    None
}

fn machine_name(machine: Machine) -> String {
    match machine {
        object::elf::EM_386 => "i386".to_owned(),
        object::elf::EM_X86_64 => "x86-64".to_owned(),
        object::elf::EM_ARM => "arm".to_owned(),
        object::elf::EM_AARCH64 => "aarch64".to_owned(),
        object::elf::EM_RISCV => "riscv".to_owned(),
        object::elf::EM_PPC64 => "ppc64".to_owned(),
        object::elf::EM_S390 => "s390".to_owned(),
        other => format!("ELF machine {}", other.0),
    }
}

/// Finds privileges that the file gives. In secure-execution mode the loader ignores a path in LD_PRELOAD (ld.so(8)).
/// The kernel asks for that mode if executing the file changes an ID. For a user other than root, file capabilities
/// have the same effect (security/commoncap.c).
fn privileges(file: &Path) -> Option<Obstacle> {
    let may_gain = !rustix::fs::statvfs(file).ok()?.f_flag.contains(StatVfsMountFlags::NOSUID);
    let status = fs::metadata(file).ok()?;
    let (uid, gid) = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
    let executable_by_group = libc::S_ISGID | libc::S_IXGRP;
    let changes_uid = status.mode() & libc::S_ISUID != 0 && status.uid() != uid;
    let changes_gid = status.mode() & executable_by_group == executable_by_group && status.gid() != gid;
    let has_capabilities = rustix::fs::getxattr(file, "security.capability", &mut [0u8; 64]).is_ok();
    let what = if !may_gain {
        return None;
    } else if (changes_uid || changes_gid) && !crate::exec::no_new_privs() {
        if changes_uid {
            "set-user-ID"
        } else {
            "set-group-ID"
        }
    } else if has_capabilities && uid != 0 {
        "given file capabilities"
    } else {
        return None;
    };
    Some(Obstacle::new(
        format!("{what}, so the loader ignores LD_PRELOAD"),
        "make a copy of it, which has no such privileges, and run that as a user who has them",
    ))
}
