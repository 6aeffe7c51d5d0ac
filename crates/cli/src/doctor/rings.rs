//! The rings of a running process, for `anyring doctor --pid`: the kernel's from /proc, and anyring's from the labels in
//! the process's memory.

use crate::errno;
use anyring_engine::descriptors::{cookie_of, pipe_identity};
use anyring_engine::shared::label::Seen;
use serde::Serialize;
use std::collections::HashSet;
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

/// One ring of the process.
#[derive(Serialize)]
pub struct Ring {
    /// `kernel` or `anyring`.
    pub server: &'static str,
    /// The process's descriptors of the ring. None if it closed them all, and requests or threads still use the ring.
    pub numbers: Vec<u32>,
    /// Entries of the two queues, where known.
    pub sq_entries: Option<u32>,
    pub cq_entries: Option<u32>,
    /// The flags of io_uring_setup(2), without `IORING_SETUP_`. The kernel does not tell those of its rings.
    pub flags: Option<String>,
    /// The process that made the ring, as it is called in its own PID namespace.
    pub maker: Option<u32>,
    /// The errno with which the kernel refused the ring. Absent if the kernel was not asked for it.
    pub refused: Option<String>,
}

/// A descriptor of the process.
struct Descriptor {
    number: u32,
    is_kernel_ring: bool,
    /// The numbers that may identify a ring's descriptor.
    identities: Vec<u64>,
}

/// Returns the rings of the process whose folder in /proc is `folder`. `maps` is the text of its /proc/PID/maps.
pub fn of(pid: u32, folder: &Path, maps: &str) -> io::Result<Vec<Ring>> {
    let descriptors = descriptors(pid, folder)?;
    let kernels = descriptors.iter().filter(|descriptor| descriptor.is_kernel_ring);
    let mut rings: Vec<_> = kernels.map(|descriptor| kernel_ring(folder, descriptor.number)).collect();
    rings.extend(labels(folder, maps)?.into_iter().map(|label| {
        let has = |descriptor: &&Descriptor| descriptor.identities.contains(&label.identity);
        Ring {
            server: "anyring",
            numbers: descriptors.iter().filter(has).map(|descriptor| descriptor.number).collect(),
            sq_entries: Some(label.entries[0]),
            cq_entries: Some(label.entries[1]),
            flags: Some(anyring_trace::setup_flags(label.flags)),
            maker: Some(label.maker),
            refused: i32::try_from(label.refused).ok().filter(|refused| *refused != 0).map(errno::name),
        }
    }));
    rings.sort_by_key(|ring| ring.numbers.first().copied().unwrap_or(u32::MAX));
    Ok(rings)
}

/// The labels in the process's memory, each once.
fn labels(folder: &Path, maps: &str) -> io::Result<Vec<Seen>> {
    let memory = File::open(folder.join("mem"))?;
    let mut files = HashSet::new();
    let starts = maps.lines().filter_map(|line| {
        // address perms offset dev inode pathname
        let mut fields = line.split_ascii_whitespace();
        let (range, permissions, offset) = (fields.next()?, fields.next()?, fields.next()?);
        let (device, inode, name) = (fields.next()?, fields.next()?, fields.next()?);
        let begins = permissions.starts_with("rw-s") && offset.bytes().all(|digit| digit == b'0');
        let is_new = begins && Seen::may_begin(name) && files.insert((device.to_owned(), inode.to_owned()));
        is_new.then(|| u64::from_str_radix(range.split('-').next()?, 16).ok()).flatten()
    });
    let read = |start| {
        let mut bytes = [0; Seen::BYTES];
        // The process may just have unmapped it.
        memory.read_exact_at(&mut bytes, start).ok()?;
        Seen::at_start_of(&bytes)
    };
    Ok(starts.filter_map(read).collect())
}

fn descriptors(pid: u32, folder: &Path) -> io::Result<Vec<Descriptor>> {
    // Without this descriptor the inode numbers must do.
    // SAFETY: the call takes two numbers, and answers a new descriptor or -1.
    let process = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) } as i32;
    // SAFETY: the call has just made that descriptor.
    let process = (process >= 0).then(|| unsafe { OwnedFd::from_raw_fd(process) });
    let mut found = Vec::new();
    for entry in fs::read_dir(folder.join("fd"))? {
        let entry = entry?;
        let Some(number) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else { continue };
        // The process may have closed it meanwhile.
        let Ok(name) = fs::read_link(entry.path()) else { continue };
        let name = name.to_string_lossy();
        let file = || fs::metadata(entry.path()).ok();
        let identities = match name.split(':').next() {
            Some("socket") => {
                let cookie = process.as_ref().and_then(|process| cookie(process, number));
                cookie.into_iter().chain(file().map(|file| file.ino())).collect()
            }
            // The engine's end of a pipe only writes.
            Some("pipe") if reads_and_writes(&entry.path()) => {
                file().map(|file| pipe_identity(file.dev(), file.ino())).into_iter().collect()
            }
            _ => Vec::new(),
        };
        found.push(Descriptor { number, is_kernel_ring: name == "anon_inode:[io_uring]", identities });
    }
    found.sort_unstable_by_key(|descriptor| descriptor.number);
    Ok(found)
}

/// True if the descriptor reads and writes. The permissions of its link in /proc say so.
fn reads_and_writes(link: &Path) -> bool {
    fs::symlink_metadata(link).is_ok_and(|link| link.mode() & 0o600 == 0o600)
}

/// The cookie of a socket of the process. Takes a copy of the descriptor for a moment.
fn cookie(process: &OwnedFd, number: u32) -> Option<u64> {
    // SAFETY: the call takes three numbers, and answers a new descriptor or -1.
    let copy = unsafe { libc::syscall(libc::SYS_pidfd_getfd, process.as_raw_fd(), number, 0) } as i32;
    // SAFETY: the call has just made that descriptor.
    let copy = (copy >= 0).then(|| unsafe { OwnedFd::from_raw_fd(copy) })?;
    cookie_of(copy.as_raw_fd())
}

/// Reads from /proc about a ring of the kernel.
fn kernel_ring(folder: &Path, number: u32) -> Ring {
    let text = fs::read_to_string(folder.join(format!("fdinfo/{number}"))).unwrap_or_default();
    let entries = |name: &str| {
        let value = text.lines().find_map(|line| line.strip_prefix(name))?.trim().strip_prefix("0x")?;
        u32::from_str_radix(value, 16).ok()?.checked_add(1)
    };
    Ring {
        server: "kernel",
        numbers: vec![number],
        sq_entries: entries("SqMask:"),
        cq_entries: entries("CqMask:"),
        flags: None,
        maker: None,
        refused: None,
    }
}
