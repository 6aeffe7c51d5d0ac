//! A file or a block device, and the situation of requests on it.

use crate::outcome::{checked, Outcome, Stop};
use anyring_lab::message::{Paired, Situation};
use std::fs::OpenOptions;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, FileTypeExt, OpenOptionsExt};
use std::path::Path;
use std::time::Duration;

/// Requests begin at multiples of this.
const STEP: u64 = 4096;
/// The page cache drops pages by folios, which may be as large as this.
const FOLIO: u64 = 2 << 20;

/// An open file.
pub struct File {
    file: std::fs::File,
    /// The first offset at which no request can begin.
    places: u64,
    bytes: u32,
    situation: Situation,
    write: bool,
}

impl File {
    /// Opens the file for `work`.
    pub fn open(path: &Path, work: &Paired) -> Outcome<File> {
        let (write, direct) = (work.opcode.is_write(), work.situation == Situation::Direct);
        let is_device = std::fs::metadata(path)?.file_type().is_block_device();
        // For a block device, open(2) defines O_EXCL: it fails if the device is mounted or otherwise in use.
        let exclusive = if write && is_device { libc::O_EXCL } else { 0 };
        let flags = exclusive | if direct { libc::O_DIRECT } else { 0 };
        let open = OpenOptions::new().read(true).write(write).custom_flags(flags).open(path);
        let file = open.map_err(|error| match error.raw_os_error() {
            Some(libc::EINVAL) if direct => Stop::Missing("the file system has no O_DIRECT".to_owned()),
            Some(libc::EBUSY) => Stop::Missing("the device is mounted or in use".to_owned()),
            _ => error.into(),
        })?;
        // SAFETY: a descriptor of this process and plain numbers.
        let end = checked("lseek", unsafe { libc::lseek(file.as_raw_fd(), 0, libc::SEEK_END) })? as u64;
        let Some(last) = end.checked_sub(u64::from(work.bytes)) else {
            return Err(format!("it has {end} bytes, {} are needed", work.bytes).into());
        };
        Ok(File { file, places: last + 1, bytes: work.bytes, situation: work.situation, write })
    }

    /// Returns the descriptor for the SQE.
    pub fn fd(&self) -> i32 {
        self.file.as_raw_fd()
    }

    /// Sets up the situation, and returns the offset for this round. For a write, `memory` gets the present contents.
    pub fn prepare(&self, round: u32, memory: &mut [u8]) -> Outcome<u64> {
        let step = u64::from(self.bytes).next_multiple_of(STEP);
        let offset = (u64::from(round) * step) % self.places / STEP * STEP;
        if self.write || self.situation == Situation::Cached {
            self.file.read_exact_at(memory, offset)?;
        }
        if self.situation == Situation::Uncached {
            self.evict(offset, round)?;
        }
        Ok(offset)
    }

    fn evict(&self, offset: u64, round: u32) -> Outcome<()> {
        let start = offset / FOLIO * FOLIO;
        let bytes = (offset + u64::from(self.bytes)).next_multiple_of(FOLIO) - start;
        for _ in 0..5 {
            // SAFETY: a descriptor of this process and plain numbers.
            let error =
                unsafe { libc::posix_fadvise(self.fd(), start as i64, bytes as i64, libc::POSIX_FADV_DONTNEED) };
            if error == 0 && !self.is_still_cached(offset) {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        match round {
            0 => Err(Stop::Missing("its pages do not leave the page cache".to_owned())),
            _ => Ok(()),
        }
    }

    /// True if pages are cached that should not be. If the kernel cannot report that (Linux before 6.5), assumes that
    /// posix_fadvise(2) worked.
    pub fn is_still_cached(&self, offset: u64) -> bool {
        if self.situation != Situation::Uncached {
            return false;
        }
        let range = [offset, u64::from(self.bytes)];
        // struct cachestat: nr_cache, nr_dirty, nr_writeback, nr_evicted, nr_recently_evicted
        let mut pages = [0u64; 5];
        // SAFETY: cachestat(2) reads two words and writes five, in arrays of that size.
        let answer = unsafe { libc::syscall(SYS_CACHESTAT, self.fd(), range.as_ptr(), pages.as_mut_ptr(), 0) };
        answer == 0 && pages[0] > 0
    }
}

/// The number of cachestat(2), the same on all architectures. The C library's header may be older.
const SYS_CACHESTAT: libc::c_long = 451;
