//! The file systems of a ring's files, and whether they read and write without waiting (RWF_NOWAIT). On a file system
//! that does not, every request goes to a worker, even if its data is in the page cache.
//!
//! anyring's engine reports why a worker gets a request. For the kernel's rings, the tracer tries RWF_NOWAIT once
//! for each file system. It uses an unnamed file (O_TMPFILE) of 4 KiB in the folder of the first file that it sees
//! on that file system. If the tracer may not create that file, nothing is known of the file system.

use crate::{Event, Processes};
use anyring_engine::event::{FileKind, Kind};
use rustix::fs::{Mode, OFlags};
use rustix::io::{Errno, ReadWriteFlags};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::fs;
use std::io::{IoSlice, IoSliceMut};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Number of descriptors that are examined. Further ones are probably on the same file systems.
const MOST: usize = 4096;

/// The file systems found so far.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct FileSystems {
    /// True if RWF_NOWAIT is tried on the files.
    #[serde(skip)]
    tries: bool,
    /// Descriptors that were examined: ring, thread and number.
    #[serde(skip)]
    seen: HashSet<(u32, u32, i32)>,
    /// File systems by `st_dev`.
    known: BTreeMap<u64, FileSystem>,
    /// The file systems of each ring, each with a flag for files that were opened with O_DIRECT.
    rings: BTreeMap<u32, BTreeSet<(u64, bool)>>,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
struct FileSystem {
    name: Option<String>,
    reads: Option<bool>,
    writes: Option<bool>,
}

/// A file system of a ring's files.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct FilesOn {
    /// Its type, as in /proc/filesystems; `None` if unknown.
    pub file_system: Option<String>,
    /// True if these files were opened with O_DIRECT.
    pub direct: bool,
    /// True if the file system supports reads through the page cache with RWF_NOWAIT; `None` if unknown.
    pub nonblocking_reads: Option<bool>,
    /// True if the file system supports writes to the page cache with RWF_NOWAIT; `None` if unknown.
    pub nonblocking_writes: Option<bool>,
}

impl FileSystems {
    /// Starts empty. RWF_NOWAIT is tried if the events come from the kernel.
    pub fn new(by_kernel: bool) -> FileSystems {
        FileSystems { tries: by_kernel, ..FileSystems::default() }
    }

    /// Examines the file that the event names, unless it was examined before. `processes` must have observed the
    /// event first.
    pub fn observe(&mut self, event: &Event, processes: &Processes) {
        let Event { ring, thread, fd, .. } = *event;
        let is_file = event.kind == Kind::FileGet && event.file == FileKind::Regular;
        // The number of an unknown thread may belong to another thread here.
        let is_file = is_file && processes.of_thread(thread).is_some();
        if !is_file || self.seen.len() >= MOST || !self.seen.insert((ring, thread, fd)) {
            return;
        }
        let link = PathBuf::from(format!("/proc/{thread}/fd/{fd}"));
        let Ok(device) = fs::metadata(&link).map(|file| file.dev()) else { return };
        let tries = self.tries;
        self.known.entry(device).or_insert_with(|| match tries {
            true => FileSystem::try_beside(&link, device),
            false => FileSystem { name: type_of(device), ..FileSystem::default() },
        });
        self.rings.entry(ring).or_default().insert((device, is_direct(thread, fd)));
    }

    /// The file systems of a ring's files.
    pub fn of_ring(&self, ring: u32) -> Vec<FilesOn> {
        let places = self.rings.get(&ring).into_iter().flatten();
        let found = places.filter_map(|(device, direct)| {
            let FileSystem { name, reads, writes } = self.known.get(device)?.clone();
            Some(FilesOn {
                file_system: name,
                direct: *direct,
                nonblocking_reads: reads,
                nonblocking_writes: writes,
            })
        });
        found.collect()
    }
}

/// True if the file was opened with O_DIRECT; false if that cannot be found out.
fn is_direct(thread: u32, fd: i32) -> bool {
    let text = fs::read_to_string(format!("/proc/{thread}/fdinfo/{fd}")).unwrap_or_default();
    let flags = text.lines().find_map(|line| line.strip_prefix("flags:"));
    let flags = flags.and_then(|flags| u32::from_str_radix(flags.trim(), 8).ok()).unwrap_or(0);
    flags & OFlags::DIRECT.bits() != 0
}

impl FileSystem {
    /// Describes the file system of the open file that `link` leads to.
    fn try_beside(link: &Path, device: u64) -> FileSystem {
        let name = type_of(device);
        let folder = fs::read_link(link).ok().and_then(|file| file.parent().map(Path::to_owned));
        // In another mount namespace this path may lead to another folder.
        let is_there = |folder: &PathBuf| fs::metadata(folder).is_ok_and(|folder| folder.dev() == device);
        let (reads, writes) = folder.filter(is_there).map_or((None, None), |folder| try_in(&folder));
        FileSystem { name, reads, writes }
    }
}

/// The file system type of the mount with this `st_dev`.
fn type_of(device: u64) -> Option<String> {
    let wanted = format!("{}:{}", rustix::fs::major(device), rustix::fs::minor(device));
    let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
    let of_it = |line: &&str| line.split(' ').nth(2) == Some(&wanted);
    let line = mounts.lines().find(of_it)?;
    line.split_once(" - ")?.1.split(' ').next().map(str::to_owned)
}

/// Tries a read and a write with RWF_NOWAIT of a block that is in the page cache and allocated. `None`: unknown.
fn try_in(folder: &Path) -> (Option<bool>, Option<bool>) {
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    let Ok(file) = rustix::fs::open(folder, flags, Mode::RUSR | Mode::WUSR) else { return (None, None) };
    let mut bytes = [0u8; 4096];
    if rustix::io::pwrite(&file, &bytes, 0) != Ok(bytes.len()) {
        return (None, None);
    }
    let told = |answer: Result<usize, Errno>| match answer {
        Ok(_) => Some(true),
        Err(Errno::OPNOTSUPP) => Some(false),
        Err(_) => None,
    };
    let nowait = ReadWriteFlags::NOWAIT;
    let writes = rustix::io::pwritev2(&file, &[IoSlice::new(&bytes)], 0, nowait);
    let reads = rustix::io::preadv2(&file, &mut [IoSliceMut::new(&mut bytes)], 0, nowait);
    (told(reads), told(writes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;

    #[test]
    fn the_file_system_of_a_file_is_tried_and_reported() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        let thread = rustix::thread::gettid().as_raw_nonzero().get() as u32;
        let fd = file.as_file().as_raw_fd();
        let event = Event { ring: 1, thread, fd, file: FileKind::Regular, ..Event::new(Kind::FileGet) };
        let mut file_systems = FileSystems::new(true);
        let mut processes = Processes::default();
        file_systems.observe(&event, &processes);
        assert_eq!(file_systems.of_ring(1), [], "of a thread that is not known nothing is said");
        processes.insert(thread, std::process::id(), "test");
        file_systems.observe(&event, &processes);
        file_systems.observe(&Event { ring: 2, fd: -1, ..event }, &processes);
        let expected = try_in(&std::env::temp_dir());
        let [found] = &file_systems.of_ring(1)[..] else { panic!("one: {file_systems:?}") };
        assert_eq!((found.nonblocking_reads, found.nonblocking_writes), expected);
        assert!(!found.direct);
        assert_eq!(file_systems.of_ring(2), [], "of a file that is not open nothing is said");
        let mut untried = FileSystems::new(false);
        untried.observe(&event, &processes);
        let [other] = &untried.of_ring(1)[..] else { panic!("one: {untried:?}") };
        assert_eq!((&other.file_system, other.nonblocking_reads), (&found.file_system, None));
        let names = fs::read_to_string("/proc/filesystems").expect("the types");
        if let Some(name) = &found.file_system {
            assert!(names.split_whitespace().any(|known| known == name), "{name}");
        }
    }
}
