//! The only opcode table: how each opcode is prepared, and what is known of it without its operation.

use super::*;
use crate::os::{can_wait_for_several, version};
use crate::Errno;
use anyring_abi::{Opcode, Sqe};

/// The meaning of an SQE's `fd` for an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileUse {
    /// No file, or a directory that the system call itself resolves.
    None,
    /// A file: a number, or an index into the registered files with `IOSQE_FIXED_FILE`.
    File,
}

/// The times at which the identity of the issuing thread matters: its credentials, directory and umask.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Identity {
    /// The identity never matters.
    Never,
    /// The identity matters at submission. Once the request waits for readiness, nothing that it does depends on the
    /// identity.
    Submitted,
    /// The identity also matters after the request has waited: it sends, writes, or makes a file.
    Ready,
    /// The identity always matters: the request looks up a name, makes a socket, or reports its peer.
    Names,
}

/// The shortcut for an SQE that asks for nothing except its operation (no flag, priority or credentials). It is taken
/// on rings that check nothing else about each request: see `ring/sq/first_call.rs`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AtOnce {
    /// No shortcut: the operation is prepared and attempted like most.
    Nothing,
    /// The result is 0, without any call.
    Nop,
    /// READ or WRITE.
    File(Direction),
    /// RECV or SEND.
    Socket(Direction),
}

/// The table's row for one opcode.
#[derive(Clone, Copy)]
pub struct Definition {
    /// Reads the SQE, or returns the error with which it is refused.
    pub prep: fn(Opcode, &Sqe) -> Result<Op, Errno>,
    /// The meaning of `fd`.
    pub file: FileUse,
    /// The operation reads `ioprio`; otherwise `ioprio` must be zero.
    pub ioprio: bool,
    /// The operation may have `IOSQE_BUFFER_SELECT`.
    pub selects: bool,
    /// The operation gets a slot before it is attempted: it is a timer, or has two CQEs.
    pub own_place: bool,
    /// `IOSQE_ASYNC` sends the operation to a worker. False for operations on the ring itself, which never leave the
    /// submitter.
    pub on_worker: bool,
    /// The kernel always gives the operation to a worker: its `prep` in io_uring/ sets `REQ_F_FORCE_ASYNC`. For OPENAT
    /// and OPENAT2 this holds in some cases only ([`super::Operation::is_forced`]).
    pub forced: bool,
    /// Workers make the operation in order with others on the same regular file. Source: `hash_reg_file` in
    /// io_uring/opdef.c. A request that goes to a worker without an attempt has no file yet by which the kernel could
    /// order it.
    pub hashed: bool,
    /// A ring of polled devices (`IORING_SETUP_IOPOLL`) takes the operation. Source: `iopoll` in io_uring/opdef.c.
    pub iopoll: bool,
    /// The operation may end other requests.
    pub ends_others: bool,
    /// The shortcut for an SQE that asks for nothing else.
    pub at_once: AtOnce,
    /// The times at which the issuing thread's identity matters. [`super::Operation::identity`] has the exceptions.
    pub identity: Identity,
}

impl Definition {
    /// Makes the row of an operation on a file.
    const fn on_file(prep: fn(Opcode, &Sqe) -> Result<Op, Errno>) -> Definition {
        Definition {
            prep,
            file: FileUse::File,
            ioprio: false,
            selects: false,
            own_place: false,
            on_worker: true,
            forced: false,
            hashed: false,
            iopoll: false,
            ends_others: false,
            at_once: AtOnce::Nothing,
            identity: Identity::Never,
        }
    }

    /// Makes the row of an operation without a file.
    const fn without_file(prep: fn(Opcode, &Sqe) -> Result<Op, Errno>) -> Definition {
        Definition { file: FileUse::None, ..Definition::on_file(prep) }
    }

    const fn ioprio(self) -> Definition {
        Definition { ioprio: true, ..self }
    }

    const fn selects(self) -> Definition {
        Definition { selects: true, ..self }
    }

    const fn own_place(self) -> Definition {
        Definition { own_place: true, ..self }
    }

    const fn of_ring(self) -> Definition {
        Definition { on_worker: false, ..self }
    }

    const fn forced(self) -> Definition {
        Definition { forced: true, ..self }
    }

    const fn hashed(self) -> Definition {
        Definition { hashed: true, ..self }
    }

    const fn iopoll(self) -> Definition {
        Definition { iopoll: true, ..self }
    }

    const fn ends_others(self) -> Definition {
        Definition { ends_others: true, ..self }
    }

    const fn at_once(self, at_once: AtOnce) -> Definition {
        Definition { at_once, ..self }
    }

    const fn by(self, identity: Identity) -> Definition {
        Definition { identity, ..self }
    }
}

const fn define(opcode: Opcode) -> Option<Definition> {
    use Identity::{Names, Ready, Submitted};
    use Opcode as O;
    let rw = Definition::on_file(|opcode, sqe| rw::Rw::prep(opcode, sqe).map(Op::Rw));
    let sync = Definition::on_file(|opcode, sqe| sync::Sync::prep(opcode, sqe).map(Op::Sync)).by(Submitted);
    let net = Definition::on_file(|opcode, sqe| net::Net::prep(opcode, sqe).map(Op::Net));
    let fs = Definition::without_file(|opcode, sqe| fs::Fs::prep(opcode, sqe).map(Op::Fs));
    let xattr =
        Definition::on_file(|opcode, sqe| xattr::Xattr::prep(opcode, sqe).map(Op::Xattr)).by(Names).forced();
    Some(match opcode {
        O::Nop => Definition::without_file(|_, sqe| nop::prep(sqe)).iopoll().at_once(AtOnce::Nop),
        O::Nop128 => Definition::without_file(|_, sqe| nop::prep(sqe)).iopoll(),
        O::Read => rw.by(Submitted).ioprio().selects().iopoll().at_once(AtOnce::File(Direction::Read)),
        O::Readv => rw.by(Submitted).ioprio().selects().iopoll(),
        O::ReadFixed | O::ReadvFixed => rw.by(Submitted).ioprio().iopoll(),
        O::Write => rw.by(Ready).ioprio().iopoll().hashed().at_once(AtOnce::File(Direction::Write)),
        O::Writev | O::WriteFixed | O::WritevFixed => rw.by(Ready).ioprio().iopoll().hashed(),
        O::ReadMultishot => rw.selects(),
        O::Fsync | O::SyncFileRange | O::Fallocate | O::Ftruncate => sync.forced(),
        O::Fadvise => sync,
        O::Madvise => Definition { file: FileUse::None, ..sync }.forced(),
        O::PollAdd => Definition::on_file(|_, sqe| poll::PollAdd::prep(sqe).map(Op::Poll)).of_ring(),
        O::PollRemove => Definition::without_file(|_, sqe| poll::PollRemove::prep(sqe).map(Op::PollRemove))
            .of_ring()
            .ends_others(),
        O::Timeout => Definition::without_file(|_, sqe| timeout::Timeout::prep(sqe, false).map(Op::Timeout))
            .of_ring()
            .own_place(),
        O::LinkTimeout => Definition::without_file(|_, sqe| timeout::Timeout::prep(sqe, true).map(Op::Timeout))
            .of_ring()
            .own_place(),
        O::TimeoutRemove => {
            Definition::without_file(|_, sqe| timeout::TimeoutRemove::prep(sqe).map(Op::TimeoutRemove))
                .of_ring()
                .ends_others()
        }
        O::AsyncCancel => {
            Definition::without_file(|_, sqe| cancel::Cancel::prep(sqe).map(Op::Cancel)).of_ring().ends_others()
        }
        O::Recv => net.ioprio().selects().at_once(AtOnce::Socket(Direction::Read)),
        O::Recvmsg => net.ioprio().selects(),
        O::Send => net.by(Ready).ioprio().selects().at_once(AtOnce::Socket(Direction::Write)),
        O::Sendmsg => net.by(Ready).ioprio(),
        O::SendZc | O::SendmsgZc => net.by(Ready).ioprio().own_place(),
        O::Accept => net.by(Ready).ioprio(),
        O::Connect | O::Bind => net.by(Names),
        O::Socket => Definition { file: FileUse::None, ..net }.by(Names),
        O::Listen => net,
        O::Shutdown => net.forced(),
        // A close concerns the ring's registered files and the requests that wait on the number. So it never leaves the
        // submitter.
        O::Close => fs.of_ring(),
        O::Openat | O::Openat2 => fs.by(Names),
        O::Statx | O::Renameat | O::Unlinkat | O::Mkdirat | O::Symlinkat | O::Linkat => fs.by(Names).forced(),
        O::Splice | O::Tee => Definition::on_file(|opcode, sqe| splice::Splice::prep(opcode, sqe).map(Op::Splice))
            .by(Ready)
            .forced()
            .hashed(),
        O::EpollCtl => Definition::without_file(|_, sqe| epoll::EpollCtl::prep(sqe).map(Op::EpollCtl)),
        O::EpollWait => Definition::on_file(|_, sqe| epoll::EpollWait::prep(sqe).map(Op::EpollWait)),
        O::Fsetxattr | O::Fgetxattr => xattr,
        O::Setxattr | O::Getxattr => Definition { file: FileUse::None, ..xattr },
        // A message does not wait: the submitter sends it.
        O::MsgRing => {
            Definition::on_file(|_, sqe| msg_ring::MsgRing::prep(sqe).map(Op::MsgRing)).of_ring().iopoll()
        }
        O::FutexWait | O::FutexWaitv => {
            Definition::without_file(|opcode, sqe| futex::prep_wait(opcode, sqe).map(Op::FutexWait))
        }
        O::FutexWake => Definition::without_file(|_, sqe| futex::Wake::prep(sqe).map(Op::FutexWake)),
        O::UringCmd | O::UringCmd128 => {
            Definition::on_file(|_, sqe| uring_cmd::UringCmd::prep(sqe).map(Op::UringCmd))
                .by(Submitted)
                .selects()
                .iopoll()
        }
        O::Waitid => Definition::without_file(|_, sqe| waitid::Waitid::prep(sqe).map(Op::Waitid)),
        // The ends of a pipe may go to the registered files: a PIPE never leaves the submitter.
        O::Pipe => Definition::without_file(|_, sqe| pipe::Pipe::prep(sqe).map(Op::Pipe)).by(Submitted).of_ring(),
        O::ProvideBuffers | O::RemoveBuffers => {
            Definition::without_file(|opcode, sqe| buffers::BuffersChange::prep(opcode, sqe).map(Op::Buffers))
                .of_ring()
                .iopoll()
        }
        O::FilesUpdate => {
            Definition::without_file(|_, sqe| file_table::FilesUpdate::prep(sqe).map(Op::FilesUpdate))
                .of_ring()
                .iopoll()
        }
        O::FixedFdInstall => {
            Definition::on_file(|_, sqe| file_table::FixedFdInstall::prep(sqe).map(Op::FixedFdInstall)).of_ring()
        }
        _ => return None,
    })
}

/// All opcodes of the header; `None` where the engine answers like a kernel without that opcode.
static TABLE: [Option<Definition>; Opcode::COUNT] = {
    let mut table = [const { None }; Opcode::COUNT];
    let mut number = 0;
    while number < Opcode::COUNT {
        table[number] = define(Opcode::ALL[number]);
        number += 1;
    }
    table
};

/// Number of opcodes that exist at this kernel version. Those newer than Linux 6.18 are the last.
pub fn count() -> usize {
    if version::has_later_names() {
        Opcode::COUNT
    } else {
        Opcode::Nop128 as usize
    }
}

/// True if an opcode can succeed on this machine. FUTEX_WAITV needs one of the kernel's system calls (`wq::futex`).
pub fn is_supported(opcode: u8) -> bool {
    definition(opcode).is_some() && (opcode != Opcode::FutexWaitv as u8 || can_wait_for_several())
}

/// Returns the row of a request's opcode.
#[inline]
pub fn row(opcode: Opcode) -> Option<&'static Definition> {
    TABLE[opcode as usize].as_ref()
}

/// Returns the row of the opcode that an SQE's byte names.
#[inline]
pub fn definition(opcode: u8) -> Option<(Opcode, &'static Definition)> {
    let row = TABLE.get(usize::from(opcode))?.as_ref()?;
    Some((Opcode::from_u8(opcode)?, row))
}
