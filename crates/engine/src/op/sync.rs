//! FSYNC, SYNC_FILE_RANGE, FALLOCATE, FTRUNCATE, FADVISE, MADVISE: calls that may sleep and have no nonblocking form.

use super::{call, reject_unused, Context, Field, Operation, Punt, Verdict};
use crate::mutation::{mutated, Mutation};
use crate::Errno;
use anyring_abi::{Opcode, Sqe, IORING_FSYNC_DATASYNC};

/// An operation of this family, with its arguments.
#[derive(Debug)]
pub enum Sync {
    /// fsync(2), or fdatasync(2). Source: io_uring_enter(2), IORING_OP_FSYNC.
    Fsync {
        /// Syncs the data only (`IORING_FSYNC_DATASYNC`).
        data_only: bool,
        /// First byte. The whole file is synced for any offset, but a negative offset is refused.
        offset: u64,
    },
    /// sync_file_range(2).
    Range {
        /// First byte.
        offset: u64,
        /// Bytes; 0 for all up to the end.
        bytes: u32,
        /// `SYNC_FILE_RANGE_*`.
        flags: u32,
    },
    /// fallocate(2).
    Fallocate {
        /// First byte.
        offset: u64,
        /// Number of bytes.
        bytes: u64,
        /// `FALLOC_FL_*`.
        mode: u32,
    },
    /// ftruncate(2).
    Truncate {
        /// The file's size from then on, in bytes.
        bytes: u64,
    },
    /// posix_fadvise(2).
    Fadvise {
        /// First byte.
        offset: u64,
        /// Bytes; 0 for all up to the end.
        bytes: u64,
        /// `POSIX_FADV_*`.
        advice: u32,
    },
    /// madvise(2).
    Madvise {
        /// Start of the range.
        address: u64,
        /// Number of bytes.
        bytes: u64,
        /// `MADV_*`.
        advice: u32,
    },
}

impl Sync {
    /// Reads the SQE and checks its fields.
    pub fn prep(opcode: Opcode, sqe: &Sqe) -> Result<Sync, Errno> {
        reject_unused(sqe, &[Field::BufIndex, Field::FileIndex])?;
        Ok(match opcode {
            Opcode::Fsync => {
                reject_unused(sqe, &[Field::Addr])?;
                if sqe.op_flags & !IORING_FSYNC_DATASYNC != 0 || i64::try_from(sqe.off).is_err() {
                    return Err(Errno::INVAL);
                }
                Sync::Fsync { data_only: sqe.op_flags != 0, offset: sqe.off }
            }
            Opcode::SyncFileRange => {
                reject_unused(sqe, &[Field::Addr])?;
                Sync::Range { offset: sqe.off, bytes: sqe.len, flags: sqe.op_flags }
            }
            Opcode::Fallocate => {
                reject_unused(sqe, &[Field::OpFlags])?;
                let mode = if mutated(Mutation::FallocateIgnoresItsMode) { 0 } else { sqe.len };
                Sync::Fallocate { offset: sqe.off, bytes: sqe.addr, mode }
            }
            Opcode::Ftruncate => {
                reject_unused(sqe, &[Field::OpFlags, Field::Addr, Field::Len, Field::Addr3])?;
                Sync::Truncate { bytes: sqe.off }
            }
            Opcode::Fadvise => {
                let bytes = if sqe.addr != 0 { sqe.addr } else { sqe.len.into() };
                Sync::Fadvise { offset: sqe.off, bytes, advice: sqe.op_flags }
            }
            _ => {
                let bytes = if sqe.off != 0 { sqe.off } else { sqe.len.into() };
                Sync::Madvise { address: sqe.addr, bytes, advice: sqe.op_flags }
            }
        })
    }

    /// True for advice that never sleeps: file advice that only sets a flag (io_uring/advise.c,
    /// io_fadvise_force_async), and memory advice that reads nothing in. The submitting thread makes these calls. If a
    /// worker made them, its new stack could take the place of memory that the program has just unmapped.
    fn cheap_advice(&self) -> bool {
        match *self {
            Sync::Fadvise { advice, .. } => {
                [libc::POSIX_FADV_NORMAL, libc::POSIX_FADV_RANDOM, libc::POSIX_FADV_SEQUENTIAL]
                    .contains(&(advice as i32))
            }
            Sync::Madvise { advice, .. } => {
                ![libc::MADV_WILLNEED, libc::MADV_POPULATE_READ, libc::MADV_POPULATE_WRITE, libc::MADV_PAGEOUT]
                    .contains(&(advice as i32))
            }
            _ => false,
        }
    }
}

impl Operation for Sync {
    fn issue(&mut self, context: Context) -> Verdict {
        if context.nonblock && !self.cheap_advice() {
            return Verdict::NeedsWorker(Punt::NoForm);
        }
        let fd = context.fd as usize;
        let answer = match *self {
            Sync::Fsync { data_only: false, .. } => call(libc::SYS_fsync, [fd, 0, 0, 0, 0, 0]),
            Sync::Fsync { data_only: true, .. } => call(libc::SYS_fdatasync, [fd, 0, 0, 0, 0, 0]),
            Sync::Range { offset, bytes, flags } => {
                let args = [fd, offset as usize, bytes as usize, flags as usize, 0, 0];
                call(libc::SYS_sync_file_range, args)
            }
            Sync::Fallocate { offset, bytes, mode } => {
                let args = [fd, mode as usize, offset as usize, bytes as usize, 0, 0];
                call(libc::SYS_fallocate, args)
            }
            Sync::Truncate { bytes } => call(libc::SYS_ftruncate, [fd, bytes as usize, 0, 0, 0, 0]),
            Sync::Fadvise { offset, bytes, advice } => {
                let args = [fd, offset as usize, bytes as usize, advice as usize, 0, 0];
                call(libc::SYS_fadvise64, args)
            }
            Sync::Madvise { address, bytes, advice } => {
                call(libc::SYS_madvise, [address as usize, bytes as usize, advice as usize, 0, 0, 0])
            }
        };
        match self {
            Sync::Fadvise { .. } => Verdict::of(answer),
            Sync::Madvise { .. } => Verdict::uncounted(answer),
            _ => Verdict::uncounted_on(context.fd, answer),
        }
    }
}
