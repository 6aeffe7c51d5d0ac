//! Finds the file to load when a file is executed. A script names its interpreter, which may itself be a script.

use crate::elf::{failed, no_program, Elf, Refusal};
use anyring_serve::sys;
use std::ffi::OsStr;
use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};

/// Number of `#!` files that may name each other, as in the kernel (fs/exec.c, exec_binprm).
const DEPTH: usize = 5;
/// Number of bytes that the kernel reads for `#!` (BINPRM_BUF_SIZE).
const LINE_BYTES: usize = 256;

/// A program to be loaded.
pub struct Program {
    /// The open file, close-on-exec.
    pub file: File,
    pub elf: Elf,
    /// The path by which it was found: that of the script's interpreter, or the requested one.
    pub path: Vec<u8>,
    /// The arguments that replace the first one of a script: interpreter, its argument, the script.
    pub arguments: Option<Vec<Vec<u8>>>,
}

/// Finds the program that executing the file at `path` would load. If it is a script, `name` becomes the script's name
/// in the interpreter's arguments. An error is the answer of execve(2).
pub fn find(path: &[u8], name: &[u8]) -> Result<Program, Refusal> {
    let (mut path, mut name) = (path.to_vec(), name.to_vec());
    let mut arguments: Option<Vec<Vec<u8>>> = None;
    for _ in 0..DEPTH {
        let file = open(&path)?;
        let mut head = [0; LINE_BYTES];
        let bytes = file.read_at(&mut head, 0).map_err(|error| failed("it cannot be read", &error))?;
        let Some(line) = head[..bytes].strip_prefix(b"#!") else {
            let elf = Elf::read(&file)?;
            if let Some(loader) = &elf.interpreter {
                crate::loader::open_loader(loader)?;
            }
            return Ok(Program { file, elf, path, arguments });
        };
        let (interpreter, argument) = words(line)?;
        let mut now = vec![interpreter.clone()];
        now.extend(argument);
        now.push(core::mem::replace(&mut name, interpreter.clone()));
        path = interpreter;
        // Its own first argument is the script that names it.
        now.extend(arguments.into_iter().flatten().skip(1));
        arguments = Some(now);
    }
    Err(Refusal { errno: libc::ELOOP, why: "too many scripts are interpreters of each other".to_owned() })
}

/// Returns the interpreter that a first line names, and its argument, if it has one (fs/binfmt_script.c).
fn words(line: &[u8]) -> Result<(Vec<u8>, Option<Vec<u8>>), Refusal> {
    let is_blank = |byte: &u8| *byte == b' ' || *byte == b'\t';
    let end = line.iter().position(|byte| *byte == b'\n' || *byte == 0);
    let text = &line[..end.unwrap_or(line.len())];
    let from = text.iter().position(|byte| !is_blank(byte)).ok_or_else(|| no_program("its #! line is empty"))?;
    let to = text.iter().rposition(|byte| !is_blank(byte)).map_or(from, |last| last + 1);
    let text = &text[from..to];
    let name_end = text.iter().position(is_blank).unwrap_or(text.len());
    if end.is_none() && name_end == text.len() {
        return Err(no_program("its #! line is too long"));
    }
    let rest = &text[name_end..];
    let argument = rest.iter().position(|byte| !is_blank(byte)).map(|start| rest[start..].to_vec());
    Ok((text[..name_end].to_vec(), argument))
}

/// Opens a regular file that may be executed and read.
fn open(path: &[u8]) -> Result<File, Refusal> {
    let name = [path, b"\0"].concat();
    let flags = libc::O_RDONLY | libc::O_CLOEXEC | libc::O_NONBLOCK | libc::O_NOCTTY;
    let directory = libc::AT_FDCWD as usize;
    let refused = |what: &str, answer: isize| failed(what, &std::io::Error::from_raw_os_error(-answer as i32));
    // Check first, so that no FIFO or device is opened.
    let status =
        std::fs::metadata(OsStr::from_bytes(path)).map_err(|error| failed("it cannot be executed", &error))?;
    if status.mode() & libc::S_IFMT != libc::S_IFREG {
        return Err(refused("it is no regular file", -(libc::EACCES as isize)));
    }
    if !may_execute(&name) {
        return Err(refused("it may not be executed", -(libc::EACCES as isize)));
    }
    // SAFETY: a C string, which the kernel reads.
    let answer =
        unsafe { sys::call(libc::SYS_openat, [directory, name.as_ptr() as usize, flags as usize, 0, 0, 0]) };
    match answer {
        // SAFETY: a descriptor that was just opened, and that nothing else uses.
        0.. => Ok(unsafe { File::from_raw_fd(answer as i32) }),
        error => Err(refused("it cannot be read", error)),
    }
}

/// True if the calling thread may execute the file by its effective identity, and the file system allows execution.
fn may_execute(name: &[u8]) -> bool {
    let ask = [libc::AT_FDCWD as usize, name.as_ptr() as usize, libc::X_OK as usize];
    let [directory, path, mode] = ask;
    // SAFETY: C strings.
    unsafe {
        match sys::call(libc::SYS_faccessat2, [directory, path, mode, libc::AT_EACCESS as usize, 0, 0]) {
            // An older kernel, or a filter that does not know the call: check with the real identity, which is mostly
            // the same.
            answer if answer == -(libc::ENOSYS as isize) || answer == -(libc::EPERM as isize) => {
                sys::call(libc::SYS_faccessat, [directory, path, mode, 0, 0, 0]) == 0
            }
            answer => answer == 0,
        }
    }
}

impl Program {
    /// Returns the path of the file that is loaded, as the kernel knows it.
    pub fn real_path(&self) -> Vec<u8> {
        let link = format!("/proc/self/fd/{}", self.file.as_raw_fd());
        match std::fs::read_link(link).or_else(|_| std::fs::canonicalize(OsStr::from_bytes(&self.path))) {
            Ok(path) => path.as_os_str().as_bytes().to_vec(),
            Err(_) => self.path.clone(),
        }
    }
}
