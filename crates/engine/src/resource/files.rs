//! Registered files: io_uring_register(2), IORING_REGISTER_FILES and what works on it.
//!
//! A registered file is a private duplicate of the program's descriptor: it stays open whatever the program does with the
//! number, and what is known of it can never become stale. Requests in flight keep theirs open (`Arc`).

use crate::{descriptors, Errno};
use anyring_abi::{IORING_FILE_INDEX_ALLOC, IORING_REGISTER_FILES_SKIP};
use std::sync::Arc;

/// A descriptor of the engine's own, closed when nobody uses it any more.
#[derive(Debug)]
pub struct FixedFile {
    /// The number.
    pub fd: i32,
}

impl Drop for FixedFile {
    fn drop(&mut self) {
        descriptors::close(self.fd);
    }
}

/// The table of registered files of a ring.
#[derive(Debug, Default)]
pub struct Files {
    slots: Vec<Option<Arc<FixedFile>>>,
    /// Where the next allocation starts looking (`IORING_FILE_INDEX_ALLOC`).
    next: usize,
}

/// The most files a ring takes (`IORING_MAX_FIXED_FILES`).
pub const MAX_FILES: u32 = 1 << 20;

impl Files {
    /// Registers `fds`; -1 leaves a slot empty.
    pub fn new(fds: &[i32]) -> Result<Files, Errno> {
        let slots = fds.iter().map(|fd| open(*fd)).collect::<Result<_, _>>()?;
        Ok(Files { slots, next: 0 })
    }

    /// The file in slot `index`.
    pub fn get(&self, index: u32) -> Result<&Arc<FixedFile>, Errno> {
        self.slots.get(index as usize).and_then(Option::as_ref).ok_or(Errno::BADF)
    }

    /// Replaces the files from slot `first` on; answers how many were done before an error.
    pub fn update(&mut self, first: u32, fds: &[i32]) -> Result<usize, Errno> {
        let end = first.checked_add(fds.len() as u32).ok_or(Errno::OVERFLOW)?;
        let slots = self.slots.get_mut(first as usize..end as usize).ok_or(Errno::INVAL)?;
        for (done, (slot, fd)) in slots.iter_mut().zip(fds).enumerate() {
            if *fd == IORING_REGISTER_FILES_SKIP {
                continue;
            }
            match open(*fd) {
                Ok(file) => *slot = file,
                Err(error) if done == 0 => {
                    *slot = None;
                    return Err(error);
                }
                Err(_) => {
                    *slot = None;
                    return Ok(done);
                }
            }
        }
        Ok(fds.len())
    }

    /// Puts a new descriptor, which becomes the engine's, into the slot that an SQE's `file_index` names: slot + 1, or
    /// `IORING_FILE_INDEX_ALLOC` for any free one. Answers what the CQE says: 0, or the slot that was found.
    pub fn install(&mut self, fd: i32, file_index: u32) -> Result<i32, Errno> {
        let fd = {
            let moved = descriptors::to_top(descriptors::owned(fd as usize))?;
            rustix::fd::IntoRawFd::into_raw_fd(moved)
        };
        let file = Arc::new(FixedFile { fd });
        if file_index == IORING_FILE_INDEX_ALLOC as u32 {
            let free = (self.next..self.slots.len()).chain(0..self.next).find(|slot| self.slots[*slot].is_none());
            let slot = free.ok_or(Errno::NFILE)?;
            self.slots[slot] = Some(file);
            self.next = slot + 1;
            return Ok(slot as i32);
        }
        let slot = self.slots.get_mut(file_index as usize - 1).ok_or(Errno::INVAL)?;
        *slot = Some(file);
        Ok(0)
    }

    /// Empties a slot: CLOSE of a registered file.
    pub fn remove(&mut self, index: u32) -> Result<(), Errno> {
        let slot = self.slots.get_mut(index as usize).ok_or(Errno::INVAL)?;
        slot.take().map(|_| ()).ok_or(Errno::BADF)
    }
}

fn open(fd: i32) -> Result<Option<Arc<FixedFile>>, Errno> {
    if fd == -1 {
        return Ok(None);
    }
    if crate::process::is_ring(fd) {
        return Err(Errno::BADF); // the kernel refuses to register a ring in a ring
    }
    Ok(Some(Arc::new(FixedFile { fd: descriptors::duplicate(fd)? })))
}
