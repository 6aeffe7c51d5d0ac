//! The one opcode table: for each opcode how it is prepared and what may be said of it before it is issued.

use super::{
    buffers, cancel, epoll, file_table, fs, futex, msg_ring, net, nop, pipe, poll, rw, splice, sync, timeout,
    uring_cmd, waitid, xattr, Op,
};
use crate::Errno;
use anyring_abi::{Opcode, Sqe};

/// What an SQE's `fd` is to an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileUse {
    /// Nothing, or a directory that the system call itself resolves.
    None,
    /// A file: a number, or an index into the registered files with `IOSQE_FIXED_FILE`.
    File,
}

/// One opcode's row.
pub struct Definition {
    /// Reads the SQE, or says with which error it is refused.
    pub prep: fn(Opcode, &Sqe) -> Result<Op, Errno>,
    /// What `fd` is.
    pub file: FileUse,
    /// A non-zero `ioprio` means something.
    pub ioprio: bool,
    /// `IOSQE_BUFFER_SELECT` means something.
    pub selects: bool,
    /// It is made a request before it is attempted: a timer, or what has two CQEs.
    pub own_place: bool,
    /// `IOSQE_ASYNC` sends it to a worker; false for operations on the ring itself, which never leave the submitter.
    pub on_worker: bool,
}

const fn row(prep: fn(Opcode, &Sqe) -> Result<Op, Errno>, file: FileUse) -> Option<Definition> {
    Some(Definition { prep, file, ioprio: false, selects: false, own_place: false, on_worker: true })
}

const fn with_ioprio(row: Option<Definition>) -> Option<Definition> {
    match row {
        Some(row) => Some(Definition { ioprio: true, ..row }),
        None => None,
    }
}

const fn selecting(row: Option<Definition>) -> Option<Definition> {
    match row {
        Some(row) => Some(Definition { selects: true, ..row }),
        None => None,
    }
}

const fn with_own_place(row: Option<Definition>) -> Option<Definition> {
    match row {
        Some(row) => Some(Definition { own_place: true, ..row }),
        None => None,
    }
}

const fn of_ring(row: Option<Definition>) -> Option<Definition> {
    match row {
        Some(row) => Some(Definition { on_worker: false, ..row }),
        None => None,
    }
}

/// Whether workers make it one after the other with others on the same regular file. Source: `hash_reg_file` in
/// io_uring/opdef.c; what is sent to a worker without an attempt has no file yet by which it could be told.
pub fn is_hashed(opcode: Opcode) -> bool {
    use Opcode as O;
    matches!(opcode, O::Write | O::Writev | O::WriteFixed | O::WritevFixed | O::Splice | O::Tee)
}

/// Whether a ring of polled devices (`IORING_SETUP_IOPOLL`) takes it. Source: `iopoll` in io_uring/opdef.c.
pub fn on_iopoll(opcode: Opcode) -> bool {
    use Opcode as O;
    matches!(
        opcode,
        O::Nop
            | O::Read
            | O::Readv
            | O::ReadFixed
            | O::ReadvFixed
            | O::Write
            | O::Writev
            | O::WriteFixed
            | O::WritevFixed
            | O::FilesUpdate
            | O::ProvideBuffers
            | O::RemoveBuffers
            | O::MsgRing
            | O::UringCmd
    )
}

const fn define(opcode: Opcode) -> Option<Definition> {
    use FileUse::{File, None as NoFile};
    use Opcode as O;
    match opcode {
        O::Nop => row(|_, sqe| nop::prep(sqe), NoFile),
        O::Read | O::Readv => {
            selecting(with_ioprio(row(|opcode, sqe| rw::Rw::prep(opcode, sqe).map(Op::Rw), File)))
        }
        O::ReadMultishot => selecting(row(|opcode, sqe| rw::Rw::prep(opcode, sqe).map(Op::Rw), File)),
        O::Writev | O::ReadFixed | O::WriteFixed | O::ReadvFixed | O::WritevFixed | O::Write => {
            with_ioprio(row(|opcode, sqe| rw::Rw::prep(opcode, sqe).map(Op::Rw), File))
        }
        O::Fsync | O::SyncFileRange | O::Fallocate | O::Ftruncate | O::Fadvise => {
            row(|opcode, sqe| sync::Sync::prep(opcode, sqe).map(Op::Sync), File)
        }
        O::Madvise => row(|opcode, sqe| sync::Sync::prep(opcode, sqe).map(Op::Sync), NoFile),
        O::PollAdd => of_ring(row(|_, sqe| poll::PollAdd::prep(sqe).map(Op::Poll), File)),
        O::PollRemove => of_ring(row(|_, sqe| poll::PollRemove::prep(sqe).map(Op::PollRemove), NoFile)),
        O::Timeout => {
            with_own_place(of_ring(row(|_, sqe| timeout::Timeout::prep(sqe, false).map(Op::Timeout), NoFile)))
        }
        O::LinkTimeout => {
            with_own_place(of_ring(row(|_, sqe| timeout::Timeout::prep(sqe, true).map(Op::LinkTimeout), NoFile)))
        }
        O::TimeoutRemove => of_ring(row(|_, sqe| timeout::TimeoutRemove::prep(sqe).map(Op::TimeoutRemove), NoFile)),
        O::AsyncCancel => of_ring(row(|_, sqe| cancel::Cancel::prep(sqe).map(Op::Cancel), NoFile)),
        O::Send | O::Recv | O::Recvmsg => {
            selecting(with_ioprio(row(|opcode, sqe| net::Net::prep(opcode, sqe).map(Op::Net), File)))
        }
        O::Accept | O::Sendmsg => with_ioprio(row(|opcode, sqe| net::Net::prep(opcode, sqe).map(Op::Net), File)),
        O::SendZc | O::SendmsgZc => {
            with_own_place(with_ioprio(row(|opcode, sqe| net::Net::prep(opcode, sqe).map(Op::Net), File)))
        }
        O::Connect | O::Shutdown | O::Bind | O::Listen => {
            row(|opcode, sqe| net::Net::prep(opcode, sqe).map(Op::Net), File)
        }
        O::Socket => row(|opcode, sqe| net::Net::prep(opcode, sqe).map(Op::Net), NoFile),
        // Closing concerns the ring's registered files and what waits on the number: it never leaves the submitter.
        O::Close => of_ring(row(|opcode, sqe| fs::Fs::prep(opcode, sqe).map(Op::Fs), NoFile)),
        O::Openat | O::Openat2 | O::Statx | O::Renameat | O::Unlinkat | O::Mkdirat | O::Symlinkat | O::Linkat => {
            row(|opcode, sqe| fs::Fs::prep(opcode, sqe).map(Op::Fs), NoFile)
        }
        O::Splice | O::Tee => row(|opcode, sqe| splice::Splice::prep(opcode, sqe).map(Op::Splice), File),
        O::EpollCtl => row(|_, sqe| epoll::EpollCtl::prep(sqe).map(Op::EpollCtl), NoFile),
        O::EpollWait => row(|_, sqe| epoll::EpollWait::prep(sqe).map(Op::EpollWait), File),
        O::Fsetxattr | O::Fgetxattr => row(|opcode, sqe| xattr::Xattr::prep(opcode, sqe).map(Op::Xattr), File),
        O::Setxattr | O::Getxattr => row(|opcode, sqe| xattr::Xattr::prep(opcode, sqe).map(Op::Xattr), NoFile),
        O::MsgRing => row(|_, sqe| msg_ring::MsgRing::prep(sqe).map(Op::MsgRing), File),
        O::FutexWait | O::FutexWaitv => row(|opcode, sqe| futex::prep_wait(opcode, sqe).map(Op::FutexWait), NoFile),
        O::FutexWake => row(|_, sqe| futex::Wake::prep(sqe).map(Op::FutexWake), NoFile),
        O::UringCmd => selecting(row(|_, sqe| uring_cmd::UringCmd::prep(sqe).map(Op::UringCmd), File)),
        O::Waitid => row(|_, sqe| waitid::Waitid::prep(sqe).map(Op::Waitid), NoFile),
        // Of the registered files too: they never leave the submitter.
        O::Pipe => of_ring(row(|_, sqe| pipe::Pipe::prep(sqe).map(Op::Pipe), NoFile)),
        O::ProvideBuffers | O::RemoveBuffers => {
            of_ring(row(|opcode, sqe| buffers::BuffersChange::prep(opcode, sqe).map(Op::Buffers), NoFile))
        }
        O::FilesUpdate => of_ring(row(|_, sqe| file_table::FilesUpdate::prep(sqe).map(Op::FilesUpdate), NoFile)),
        O::FixedFdInstall => {
            of_ring(row(|_, sqe| file_table::FixedFdInstall::prep(sqe).map(Op::FixedFdInstall), File))
        }
        _ => None,
    }
}

/// Every opcode of the header; `None` where this engine answers as a kernel that does not have it.
static TABLE: [Option<Definition>; Opcode::COUNT] = {
    let mut table = [const { None }; Opcode::COUNT];
    let mut number = 0;
    while number < Opcode::COUNT {
        table[number] = define(Opcode::ALL[number]);
        number += 1;
    }
    table
};

/// Whether an opcode can succeed here. FUTEX_WAITV needs a call of the kernel's (`wq::futex`).
pub fn is_served(opcode: u8) -> bool {
    definition(opcode).is_some() && (opcode != Opcode::FutexWaitv as u8 || crate::wq::futex::can_wait_for_several())
}

/// The row of the opcode that an SQE's byte names.
#[inline]
pub fn definition(opcode: u8) -> Option<(Opcode, &'static Definition)> {
    let row = TABLE.get(usize::from(opcode))?.as_ref()?;
    Some((Opcode::from_u8(opcode)?, row))
}
