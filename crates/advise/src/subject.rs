//! The file or descriptor under test: its kind, its limits, and whether it may be written.

use crate::on;
use anyring_lab::message::{On, Transferring};
use anyring_lab::scratch::{request_limits, RequestLimits};
use serde::Serialize;
use std::ffi::OsStr;
use std::fs::{self, File, Metadata, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// The kinds of files and descriptors that advise can measure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs)]
pub enum Kind {
    File,
    BlockDevice,
    Pipe,
    Tcp,
}

impl Kind {
    /// True if it becomes ready instead of having offsets.
    pub fn is_stream(self) -> bool {
        matches!(self, Kind::Pipe | Kind::Tcp)
    }
}

/// The file or descriptor under test.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Subject {
    /// The name on the command line.
    pub name: String,
    /// Its kind.
    pub kind: Kind,
    /// Its description for the worker.
    #[serde(skip)]
    pub on: On,
    /// The size in bytes; `None` for a stream.
    pub bytes: Option<u64>,
    /// The type of a file's file system, by statfs(2).
    pub file_system: Option<String>,
    /// The block device: itself, or the one below its file system.
    pub device: Option<String>,
    /// The largest request that the device takes.
    pub request_limits: Option<RequestLimits>,
    /// The unit of sizes: the device's logical block.
    pub step: u32,
    /// True if the operation can be tried with RWF_NOWAIT; `None` where that was not tried.
    pub nowait: Option<bool>,
    /// True if a file has no blocks on the disk in some places.
    pub has_holes: bool,
}

/// The reason why nothing is measured.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fault {
    /// The question makes no sense: one line for people.
    Usage(String),
    /// The measurement is impossible or forbidden: one line for people.
    Refused(String),
}

/// Finds and checks the subject. `rewrite` allows its bytes to be written again.
pub fn find(name: &OsStr, operation: Transferring, direct: bool, rewrite: bool) -> Result<Subject, Fault> {
    let shown = name.to_string_lossy().into_owned();
    let sockets_only = matches!(operation, Transferring::Recv | Transferring::Send);
    let on = on(name);
    let wrong = |what: &str| Fault::Usage(format!("{shown}: {what}"));
    if sockets_only && on != On::Tcp {
        return Err(wrong("recv and send are for sockets: ask about tcp, or take --op read or write"));
    }
    let kind = match &on {
        On::Path(path) => return of_path(path, shown, operation, direct, rewrite),
        _ if direct => return Err(wrong("--direct is for files and block devices")),
        _ if rewrite => return Err(wrong("--rewrite is for files and block devices")),
        On::Pipe => Kind::Pipe,
        On::Tcp => Kind::Tcp,
    };
    Ok(Subject {
        name: shown,
        kind,
        on,
        bytes: None,
        file_system: None,
        device: None,
        request_limits: None,
        step: 1,
        nowait: None,
        has_holes: false,
    })
}

fn of_path(
    path: &Path,
    name: String,
    operation: Transferring,
    direct: bool,
    rewrite: bool,
) -> Result<Subject, Fault> {
    let refused = |why: &str| Fault::Refused(format!("{name}: {why}"));
    let failed = |error: std::io::Error| refused(&anyring_lab::message::in_words(&error));
    let metadata = fs::metadata(path).map_err(failed)?;
    let absolute = std::path::absolute(path).map_err(failed)?;
    if absolute.to_str().is_none() {
        return Err(refused("its path is not UTF-8, which the worker needs"));
    }
    let file_type = metadata.file_type();
    let kind = match () {
        () if file_type.is_file() => Kind::File,
        () if file_type.is_block_device() => Kind::BlockDevice,
        () if file_type.is_dir() => return Err(refused("it is a directory: name a file in it")),
        () if file_type.is_fifo() => {
            return Err(refused("it is a FIFO: ask about pipe, which is measured on one's own"))
        }
        () if file_type.is_socket() => return Err(refused("it is a socket: ask about tcp")),
        () => return Err(refused("it is neither a file nor a block device")),
    };
    let write = operation.is_write();
    if write && !rewrite {
        return Err(refused(
            "writes need --rewrite, which reads the data and writes it again; no other program may write it then",
        ));
    }
    if rewrite && !write {
        return Err(Fault::Usage(format!("{name}: --rewrite is for --op write")));
    }
    let device = device_of(&metadata, kind);
    if write {
        if let Some(user) = in_use(path, &metadata, kind) {
            return Err(refused(&format!("it is not written to, since {user}")));
        }
    }
    let file =
        OpenOptions::new().read(true).write(write).custom_flags(libc::O_NONBLOCK).open(path).map_err(failed)?;
    // SAFETY: a descriptor of this process and plain numbers.
    let end = unsafe { libc::lseek(file.as_raw_fd(), 0, libc::SEEK_END) };
    if end <= 0 {
        return Err(refused("it is empty: requests need bytes that are there"));
    }
    let step = match &device {
        Some(queue) => number(&queue.join("logical_block_size")).unwrap_or(4096),
        None => 4096,
    };
    Ok(Subject {
        kind,
        bytes: Some(end as u64),
        file_system: (kind == Kind::File).then(|| file_system(&file)),
        device: device.as_deref().and_then(device_name),
        request_limits: device.as_deref().and_then(request_limits),
        step,
        nowait: nowait(&file, write && !direct),
        // SAFETY: as above. A file without holes has its only one at the end.
        has_holes: unsafe { libc::lseek(file.as_raw_fd(), 0, libc::SEEK_HOLE) } < end && kind == Kind::File,
        on: On::Path(absolute),
        name,
    })
}

/// The folder `queue` of the block device, which a partition shares with its disk.
fn device_of(metadata: &Metadata, kind: Kind) -> Option<PathBuf> {
    let number = if kind == Kind::BlockDevice { metadata.rdev() } else { metadata.dev() };
    let folder = Path::new("/sys/dev/block").join(major_minor(number));
    // A link is resolved, so that `..` is the disk and not the folder of links.
    let folder = fs::canonicalize(folder).ok()?;
    [folder.join("queue"), folder.parent()?.join("queue")].into_iter().find(|queue| queue.is_dir())
}

fn major_minor(device: u64) -> String {
    format!("{}:{}", libc::major(device), libc::minor(device))
}

fn device_name(queue: &Path) -> Option<String> {
    Some(queue.parent()?.file_name()?.to_string_lossy().into_owned())
}

fn number(path: &Path) -> Option<u32> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// Names the user of a device or file that would be written. For a device: a mount, swap, another device; for a file: a
/// loop device. The worker also opens block devices with O_EXCL, which covers other mount namespaces.
fn in_use(path: &Path, metadata: &Metadata, kind: Kind) -> Option<String> {
    if kind == Kind::File {
        let own = fs::canonicalize(path).ok()?;
        let backs = |device: &fs::DirEntry| {
            fs::read_to_string(device.path().join("loop/backing_file"))
                .is_ok_and(|file| Path::new(file.trim_end()) == own)
        };
        let device = fs::read_dir("/sys/block").ok()?.flatten().find(backs)?;
        return Some(format!("{} is made of it", device.file_name().to_string_lossy()));
    }
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    if let Some(place) = mounted_at(&mounts, &major_minor(metadata.rdev())) {
        return Some(format!("it is mounted on {place}"));
    }
    let opened = OpenOptions::new().read(true).custom_flags(libc::O_EXCL | libc::O_NONBLOCK).open(path);
    let busy = opened.is_err_and(|error| error.raw_os_error() == Some(libc::EBUSY));
    busy.then(|| "it, or a partition of it, is mounted or otherwise in use".to_owned())
}

/// The mount point of this device in mountinfo (proc_pid_mountinfo(5)).
fn mounted_at<'a>(mounts: &'a str, device: &str) -> Option<&'a str> {
    let fields = mounts.lines().map(|line| line.split(' ').collect::<Vec<_>>());
    fields.filter(|fields| fields.get(2) == Some(&device)).find_map(|fields| fields.get(4).copied())
}

/// True if the file can be read, or written in the page cache, with RWF_NOWAIT. A write writes the first byte again.
fn nowait(file: &File, write: bool) -> Option<bool> {
    let mut byte = 0u8;
    let iovec = libc::iovec { iov_base: std::ptr::from_mut(&mut byte).cast(), iov_len: 1 };
    let fd = file.as_raw_fd();
    // SAFETY: a descriptor of this process and one byte.
    let answer = unsafe {
        match write {
            true if libc::pread(fd, iovec.iov_base, 1, 0) != 1 => return None,
            true => libc::pwritev2(fd, &iovec, 1, 0, libc::RWF_NOWAIT),
            false => libc::preadv2(fd, &iovec, 1, 0, libc::RWF_NOWAIT),
        }
    };
    Some(answer != -1 || std::io::Error::last_os_error().raw_os_error() != Some(libc::EOPNOTSUPP))
}

/// statfs(2)'s types.
const FILE_SYSTEMS: [(i64, &str); 14] = [
    (0xEF53, "ext2/ext3/ext4"),
    (0x5846_5342, "xfs"),
    (0x9123_683E, "btrfs"),
    (0x0102_1994, "tmpfs"),
    (0x8584_58F6, "ramfs"),
    (0x794C_7630, "overlayfs"),
    (0x6969, "nfs"),
    (0x0102_1997, "9p"),
    (0x6573_5546, "fuse"),
    (0xF2F5_2010, "f2fs"),
    (0x2FC1_2FC1, "zfs"),
    (0x4D44, "vfat"),
    (0x9FA0, "proc"),
    (0x6265_6572, "sysfs"),
];

fn file_system(file: &File) -> String {
    // SAFETY: numbers, for which zero is a value.
    let mut status: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: a descriptor of this process, and `status` is writable.
    if unsafe { libc::fstatfs(file.as_raw_fd(), &mut status) } != 0 {
        return "unknown".to_owned();
    }
    let known = FILE_SYSTEMS.iter().find(|(magic, _)| *magic == status.f_type);
    known.map_or_else(|| format!("type {:#x}", status.f_type), |(_, name)| (*name).to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTS: &str =
        "22 1 254:0 / / rw,relatime - ext4 /dev/vda rw\n35 22 7:3 / /mnt/with\\040space rw - xfs /dev/loop3 rw\n";

    #[test]
    fn a_mount_is_found_by_its_device() {
        assert_eq!(mounted_at(MOUNTS, "7:3"), Some("/mnt/with\\040space"));
        assert_eq!(mounted_at(MOUNTS, "254:0"), Some("/"));
        assert_eq!(mounted_at(MOUNTS, "7:33"), None);
    }

    #[test]
    fn a_subject_that_makes_no_sense_is_refused() {
        let fault = |name: &str, operation, direct, rewrite| match find(name.as_ref(), operation, direct, rewrite) {
            Err(Fault::Usage(why) | Fault::Refused(why)) => why,
            Ok(found) => panic!("{found:?}"),
        };
        use Transferring::{Read, Recv, Send, Write};
        let file = tempfile::NamedTempFile::new().expect("a file");
        let path = file.path().to_str().expect("UTF-8");
        assert!(fault(path, Read, false, false).contains("empty"));
        fs::write(path, [7; 8192]).expect("write");
        assert!(fault(path, Write, false, false).contains("--rewrite"));
        assert!(fault(path, Read, false, true).contains("--op write"));
        assert!(fault(path, Send, false, false).contains("tcp"));
        assert!(fault("pipe", Recv, false, false).contains("tcp"));
        assert!(fault("tcp", Read, true, false).contains("--direct"));
        assert!(fault("/dev/null", Read, false, false).contains("neither"));
        assert!(fault("/proc", Read, false, false).contains("directory"));
        assert!(fault("/nonexistent", Read, false, false).contains("no such file"));
        assert_eq!(fs::read(path).expect("read"), [7; 8192]);
        let subject = find(path.as_ref(), Write, false, true).expect("a file");
        assert_eq!((subject.kind, subject.bytes), (Kind::File, Some(8192)));
        assert_eq!(fs::read(path).expect("read"), [7; 8192]);
    }
}
