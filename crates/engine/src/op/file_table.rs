//! FILES_UPDATE and FIXED_FD_INSTALL: they move files between the program's descriptors and the registered files.

use super::{call, reject_unused, Context, Field, OnRing, Operation, Verdict};
use crate::Errno;
use anyring_abi::{Sqe, IORING_FIXED_FD_NO_CLOEXEC, IOSQE_FIXED_FILE};

/// Replaces registered files. `issue`, which owns them, makes the change. Source: io_uring_enter(2),
/// IORING_OP_FILES_UPDATE; `io_files_update` in io_uring/rsrc.c.
#[derive(Debug, Clone, Copy)]
pub struct FilesUpdate {
    /// The first slot, or `IORING_FILE_INDEX_ALLOC` for any free slots.
    pub first: u32,
    /// Address of the descriptors.
    pub fds: u64,
    /// Number of descriptors.
    pub count: u32,
}

impl FilesUpdate {
    /// Reads the SQE and checks its fields.
    pub fn prep(sqe: &Sqe) -> Result<FilesUpdate, Errno> {
        reject_unused(sqe, &[Field::OpFlags, Field::FileIndex])?;
        if sqe.flags & IOSQE_FIXED_FILE != 0 || sqe.len == 0 {
            return Err(Errno::INVAL);
        }
        Ok(FilesUpdate { first: sqe.off as u32, fds: sqe.addr, count: sqe.len })
    }
}

impl Operation for FilesUpdate {
    fn issue_on(&mut self, ring: &mut impl OnRing, _fd: i32) -> Verdict {
        ring.update_files(*self)
    }
}

/// Makes an ordinary descriptor for a registered file. Source: io_uring_enter(2), IORING_OP_FIXED_FD_INSTALL;
/// io_uring/openclose.c.
#[derive(Debug, Clone, Copy)]
pub struct FixedFdInstall {
    close_on_exec: bool,
}

impl FixedFdInstall {
    /// Reads the SQE and checks its fields.
    pub fn prep(sqe: &Sqe) -> Result<FixedFdInstall, Errno> {
        let unused = [Field::Off, Field::Addr, Field::Len, Field::BufIndex, Field::FileIndex, Field::Addr3];
        reject_unused(sqe, &unused)?;
        if sqe.flags & IOSQE_FIXED_FILE == 0 {
            return Err(Errno::BADF);
        }
        if sqe.op_flags & !IORING_FIXED_FD_NO_CLOEXEC != 0 {
            return Err(Errno::INVAL);
        }
        if sqe.personality != 0 {
            return Err(Errno::PERM); // the new number is the caller's own
        }
        Ok(FixedFdInstall { close_on_exec: sqe.op_flags == 0 })
    }
}

impl Operation for FixedFdInstall {
    fn issue(&mut self, context: Context) -> Verdict {
        let command = if self.close_on_exec { libc::F_DUPFD_CLOEXEC } else { libc::F_DUPFD };
        match call(libc::SYS_fcntl, [context.fd as usize, command as usize, 0, 0, 0, 0]) {
            Ok(fd) => Verdict::Descriptor(fd as i32),
            Err(error) => Verdict::error(error),
        }
    }
}
