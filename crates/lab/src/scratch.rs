//! Files and loop devices for a measurement, removed at its end.

use serde::Serialize;
use std::fs::{File, OpenOptions};
use std::io::{BufWriter, Write};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

/// Returns the word at this offset (a multiple of 8) of every file that [`Scratch::file`] makes. It differs in each
/// place, so that a block from the wrong place shows.
pub fn word_at(offset: u64) -> u64 {
    offset.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// A folder for files, with the devices made of them.
#[derive(Debug)]
pub struct Scratch {
    folder: tempfile::TempDir,
    /// Earlier limits of devices, each with its file in sysfs. A device keeps a limit for its next user, so they are
    /// restored.
    limits: Vec<(PathBuf, String)>,
    /// Open files: a loop device that clears itself does so at the last close.
    devices: Vec<File>,
}

impl Drop for Scratch {
    fn drop(&mut self) {
        for (file, before) in self.limits.drain(..).rev() {
            let _ = std::fs::write(file, before);
        }
    }
}

impl Scratch {
    /// Makes the folder in TMPDIR, else in /var/tmp, else in /tmp. /tmp comes last because it is often in memory, where
    /// O_DIRECT means nothing.
    pub fn new() -> Result<Self, String> {
        let on_disk = || Some(PathBuf::from("/var/tmp")).filter(|folder| folder.is_dir());
        let named = std::env::var_os("TMPDIR").map(PathBuf::from);
        let parent = named.or_else(on_disk).unwrap_or_else(|| PathBuf::from("/tmp"));
        let folder = tempfile::Builder::new().prefix("anyring-lab-").tempdir_in(&parent);
        let folder = folder.map_err(|error| format!("a folder in {}: {error}", parent.display()))?;
        Ok(Scratch { folder, limits: Vec::new(), devices: Vec::new() })
    }

    /// Makes a file of `bytes` bytes (a multiple of 8) on the disk, with the contents of [`word_at`].
    pub fn file(&self, name: &str, bytes: u64) -> Result<PathBuf, String> {
        let path = self.folder.path().join(name);
        let write = || {
            let mut file = BufWriter::with_capacity(1 << 20, File::create(&path)?);
            for offset in (0..bytes).step_by(8) {
                file.write_all(&word_at(offset).to_ne_bytes())?;
            }
            file.into_inner()?.sync_all()
        };
        write().map_err(|error: std::io::Error| format!("{}: {error}", path.display()))?;
        Ok(path)
    }

    /// Makes a loop device on a file of `bytes` zero bytes. The error says in one line what is missing.
    pub fn loop_device(&mut self, bytes: u64) -> Result<PathBuf, String> {
        let path = self.folder.path().join("device");
        let backing = OpenOptions::new().read(true).write(true).create_new(true).open(&path);
        let backing = backing.map_err(|error| format!("{}: {error}", path.display()))?;
        // SAFETY: a descriptor of this process and plain numbers.
        if unsafe { libc::posix_fallocate(backing.as_raw_fd(), 0, bytes as i64) } != 0 {
            return Err(format!("{}: no room for {bytes} bytes", path.display()));
        }
        let (device, name) = attach(&backing).map_err(|error| format!("a loop device: {error}"))?;
        self.devices.push(device);
        Ok(name)
    }

    /// Limits the size of one request to a device of [`loop_device`](Self::loop_device), as long as this value lives
    /// and if sysfs permits it. Returns the limits now in effect.
    pub fn limit_requests(&mut self, device: &Path, sectors_kib: u64) -> Option<RequestLimits> {
        let queue = Path::new("/sys/block").join(device.file_name()?).join("queue");
        let file = queue.join("max_sectors_kb");
        let before = std::fs::read_to_string(&file).ok()?;
        // If it is read-only, the device's own limit is returned.
        if std::fs::write(&file, sectors_kib.to_string()).is_ok() {
            self.limits.push((file, before));
        }
        request_limits(&queue)
    }
}

// linux/loop.h
const LOOP_CTL_GET_FREE: libc::c_ulong = 0x4C82;
const LOOP_CONFIGURE: libc::c_ulong = 0x4C0A;
const LO_FLAGS_AUTOCLEAR: u32 = 4;
const LO_FLAGS_DIRECT_IO: u32 = 16;

/// `struct loop_info64`.
#[repr(C)]
struct LoopInfo {
    numbers: [u64; 5],
    number: u32,
    encrypt_type: u32,
    encrypt_key_size: u32,
    flags: u32,
    names: [u8; 64 + 64 + 32],
    init: [u64; 2],
}

/// `struct loop_config`.
#[repr(C)]
struct LoopConfig {
    fd: u32,
    block_size: u32,
    info: LoopInfo,
    reserved: [u64; 8],
}

const _: () = assert!(size_of::<LoopInfo>() == 232 && size_of::<LoopConfig>() == 304);

/// Attaches a device of 512-byte blocks to `backing`, with O_DIRECT.
fn attach(backing: &File) -> std::io::Result<(File, PathBuf)> {
    let control = OpenOptions::new().read(true).write(true).open("/dev/loop-control")?;
    loop {
        // SAFETY: takes no argument.
        let number = unsafe { libc::ioctl(control.as_raw_fd(), LOOP_CTL_GET_FREE) };
        if number < 0 {
            return Err(std::io::Error::last_os_error());
        }
        let name = PathBuf::from(format!("/dev/loop{number}"));
        let device = OpenOptions::new().read(true).write(true).open(&name)?;
        // SAFETY: numbers, for which zero is a value.
        let mut config: LoopConfig = unsafe { std::mem::zeroed() };
        config.fd = backing.as_raw_fd() as u32;
        config.block_size = 512;
        config.info.flags = LO_FLAGS_AUTOCLEAR | LO_FLAGS_DIRECT_IO;
        // SAFETY: the structure that LOOP_CONFIGURE takes (asserted above).
        if unsafe { libc::ioctl(device.as_raw_fd(), LOOP_CONFIGURE, &config) } == 0 {
            return Ok((device, name));
        }
        let error = std::io::Error::last_os_error();
        // EBUSY: another process took the device first.
        if error.raw_os_error() != Some(libc::EBUSY) {
            return Err(error);
        }
    }
}

/// The size of the requests that a block device takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct RequestLimits {
    /// `queue/max_sectors_kb`.
    pub sectors_kib: u64,
    /// `queue/max_segments` in KiB, if no two of a request's pages are adjacent in physical memory.
    pub segments_kib: u64,
}

/// Reads the limits from a device's folder `queue` in sysfs.
pub fn request_limits(queue: &Path) -> Option<RequestLimits> {
    let number = |name: &str| std::fs::read_to_string(queue.join(name)).ok()?.trim().parse::<u64>().ok();
    Some(RequestLimits { sectors_kib: number("max_sectors_kb")?, segments_kib: number("max_segments")? * 4 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_has_another_word_in_each_place_and_goes_away() {
        let scratch = Scratch::new().expect("a folder");
        let path = scratch.file("data", 4096).expect("a file");
        let bytes = std::fs::read(&path).expect("read");
        assert_eq!(bytes.len(), 4096);
        assert_eq!(bytes[4088..], word_at(4088).to_ne_bytes());
        assert_ne!(bytes[..8], bytes[8..16]);
        drop(scratch);
        assert!(!path.exists());
    }

    #[test]
    fn a_device_gets_its_limit_back() {
        let mut scratch = Scratch::new().expect("a folder");
        let Ok(device) = scratch.loop_device(1 << 20) else {
            eprintln!("SKIPPED: a device's limit: no loop device can be made");
            return;
        };
        let name = device.file_name().expect("a name");
        let file = Path::new("/sys/block").join(name).join("queue/max_sectors_kb");
        let before = std::fs::read_to_string(&file).expect("its limit");
        let limits = scratch.limit_requests(&device, 64).expect("limits");
        if limits.sectors_kib != 64 {
            eprintln!("SKIPPED: a device's limit: sysfs cannot be written");
            return;
        }
        let _still_attached = std::mem::take(&mut scratch.devices);
        drop(scratch);
        assert_eq!(std::fs::read_to_string(&file).expect("its limit"), before);
    }
}
