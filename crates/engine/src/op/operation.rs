//! The interface between an operation and its ring. A file of `op/` implements only those methods in which its
//! operations differ from most. An opcode's behaviour is read there and in its row of the table.

use super::cancel::Cancel;
use super::file_table::FilesUpdate;
use super::msg_ring::MsgRing;
use super::pipe::Pipe;
use super::poll::PollRemove;
use super::selection::{Attempted, Selection};
use super::timeout::{Timeout, TimeoutRemove};
use super::{Context, Direction, Identity, Skip, Verdict};
use crate::resource::buf_ring::{Groups, Held};
use crate::resource::buffers::Buffers;
use crate::resource::files::FixedFile;
use crate::Errno;
use anyring_abi::Opcode;
use core::ops::ControlFlow;
use std::sync::Arc;

/// The answer of an operation on the ring itself where there is no ring.
const RING_ONLY: Verdict = Verdict::Done(-libc::EINVAL);

/// The most results that a multishot receive posts in a row before others have their turn (`MULTISHOT_MAX_RETRY`).
pub(super) const SHOTS_TOGETHER: u32 = 32;

/// A prepared operation, which is "it" in the comments of the methods.
pub trait Operation {
    /// Attempts an operation that consists of system calls only.
    #[inline]
    fn issue(&mut self, _context: Context) -> Verdict {
        RING_ONLY // a worker never gets an operation on the ring itself
    }

    /// Attempts the operation in the submitter, which holds its ring.
    #[inline]
    fn issue_on(&mut self, _ring: &mut impl OnRing, fd: i32) -> Verdict {
        self.issue(Context { fd, nonblock: true })
    }

    /// Continues after the operation's first call, which was made from the SQE (`AtOnce` in its row).
    #[inline]
    fn issue_after(&mut self, _ring: &mut impl OnRing, _first: Result<usize, Errno>, _fd: i32) -> Verdict {
        RING_ONLY
    }

    /// Checks, after its SQE was read, what only the ring knows.
    #[inline]
    fn check_on(&self, _ring: &mut impl OnRing) -> Result<(), Errno> {
        Ok(())
    }

    /// Finds the registered files and buffers that it names. Those that it keeps are looked up once.
    #[inline]
    fn look_up(&mut self, _ring: &mut impl OnRing, _fd: i32) -> Result<(), Errno> {
        Ok(())
    }

    /// Makes all that it names, except its file, its own from now on: a thread may sleep in its call. Returns the
    /// number that it has for that, if one was made just now. The number may have been another file's before.
    fn own_names(&mut self) -> Option<i32> {
        None
    }

    /// Returns why it may not work on `fd` if that is a ring. The data in a ring's socket is the engine's own.
    /// Natively a ring has no read, write or command either.
    #[inline]
    fn refused_by_ring(&self) -> Option<Errno> {
        None
    }

    /// `IORING_CQE_F_*` that its CQE has from the start. With `IORING_CQE_F_NOTIF` a notification follows the CQE,
    /// and `IORING_NOTIF_USAGE_ZC_COPIED` is the notification's result.
    #[inline]
    fn cqe_flags(&self) -> u32 {
        0
    }

    /// Returns when the issuing thread's identity counts: as its row says, except for what the ring itself makes.
    #[inline]
    fn identity(&self, row: Identity) -> Identity {
        row
    }

    /// True if natively a worker makes it from the start, although its row does not say so.
    #[inline]
    fn is_forced(&self) -> bool {
        false
    }

    /// True if it asks for a status that a server or a disk may have to give. Natively a worker makes it, and no
    /// submission waits.
    fn asks_elsewhere(&self) -> bool {
        false
    }

    /// True if a worker's call may sleep until somebody else does something to its file.
    #[inline]
    fn may_sleep_on_file(&self) -> bool {
        false
    }

    /// Returns, with IOSQE_BUFFER_SELECT, the group that it chooses from and the buffer that it has.
    #[inline]
    fn selection(&mut self) -> Option<&mut Selection> {
        None
    }

    /// True if it chooses its buffer.
    #[inline]
    fn selects(&self) -> bool {
        false
    }

    /// Makes the ranges of its selection the memory to transfer, from their start.
    fn use_buffers(&mut self) {}

    /// True if it chooses as many buffers as it has data for (`IORING_RECVSEND_BUNDLE`).
    fn is_bundle(&self) -> bool {
        false
    }

    /// True if it sends the content of the buffer that it chooses.
    fn sends(&self) -> bool {
        false
    }

    /// Settles an attempt that used its buffers. With `appends` it may continue, to have what its socket has left.
    fn finish_attempt(&mut self, attempted: Attempted, _held: Held, _appends: bool) -> ControlFlow<Verdict> {
        let Attempted { result, flags, .. } = attempted;
        ControlFlow::Break(match self.is_multishot() && result > 0 {
            true => Verdict::Shot { result, flags },
            false => attempted.verdict(),
        })
    }

    /// True if the last shot of a receive left room in its buffer.
    #[inline]
    fn was_short_receive(&self) -> bool {
        false
    }

    /// True if it posts result after result until it fails or is ended. POLL_ADD and TIMEOUT are handled elsewhere.
    #[inline]
    fn is_multishot(&self) -> bool {
        false
    }

    /// The most results that it posts in a row.
    fn shots_together(&self) -> u32 {
        SHOTS_TOGETHER
    }

    /// True once, if the attempt or the result is that of its submission, which the kernel makes without polling.
    #[inline]
    fn take_submitted(&mut self) -> bool {
        false
    }

    /// Records that the attempt of its submission has a result: `take_submitted` says so until that is posted.
    fn shoots_once(&mut self) {}

    /// Number of bytes transferred by attempts that did not end it.
    fn transferred(&self) -> usize {
        0
    }

    /// Forgets the bytes transferred: their CQE is posted.
    fn forget_transferred(&mut self) {}

    /// Number of bytes that it is to write, if it is a write.
    fn wanted_to_write(&self) -> Option<u64> {
        None
    }

    /// True if it waits before its first attempt, which is still to come (`IORING_RECVSEND_POLL_FIRST`,
    /// `IORING_ACCEPT_POLL_FIRST`).
    #[inline]
    fn will_poll_first(&self) -> bool {
        false
    }

    /// Returns, once for such an operation, the direction to wait for and the reason for skipping, or why it cannot
    /// wait.
    #[inline]
    fn wait_first(&mut self, _fd: i32) -> Option<Result<(Direction, Skip), Errno>> {
        None
    }

    /// The readiness that a nonblocking attempt would need, for operations on streams.
    #[inline]
    fn waits_for(&self) -> Option<Direction> {
        None
    }

    /// True if an event of urgent data (`EPOLLPRI`) wakes it when it waits to read.
    fn hears_urgent_data(&self) -> bool {
        false
    }

    /// Returns the number to wait on, if its SQE's file is `fd`; then a number that was made just now, if any.
    /// Errors: those of dup(2).
    #[inline]
    fn polled_number(&mut self, fd: i32, _direction: Direction) -> Result<(i32, Option<i32>), Errno> {
        Ok((fd, None))
    }

    /// The answer if its file cannot be polled; `None` if a worker makes it. Workers make no multishot requests.
    fn answer_unpolled(&mut self, _fd: i32) -> Option<Verdict> {
        self.is_multishot().then_some(Verdict::error(Errno::BADFD))
    }

    /// The answer if it waits to read from a datagram socket that was shut down. `None` if it goes on waiting, as a
    /// multishot request does.
    fn end_of_datagrams(&self, _fd: i32) -> Option<Verdict> {
        None
    }

    /// Returns which waiting requests are served before it: those that the kernel has queued by then.
    fn turn(&self) -> Turn {
        self.waits_for().map_or(Turn::Unknown, Turn::Behind)
    }

    /// Returns which waiting requests are served before its turn in a chain, if that may make a difference to it.
    fn served_before(&self) -> ServedBefore {
        ServedBefore::Nothing
    }

    /// The thread that waits for it, if that is no worker.
    fn waiter(&self) -> Option<Waiter> {
        None
    }

    /// True if natively task work makes it, after the submission.
    fn by_task_work(&self) -> bool {
        false
    }

    /// True if a worker that finds nothing answers EAGAIN, instead of waiting. `number` is its file's, unless the
    /// file is a registered one.
    fn worker_answers_eagain(&self, _number: Option<i32>) -> bool {
        false
    }

    /// True if natively this result goes to the submitter, which then continues the chain, although a worker makes
    /// the request. With `inline` it completed where it was issued.
    fn is_brought(&self, _result: i32, _inline: bool) -> bool {
        false
    }

    /// True if a worker makes it on this file because it has to wait for storage.
    fn waits_for_storage(&self, _fd: i32) -> bool {
        false
    }

    /// Returns the verdict of a worker of io-wq, as far as it differs.
    fn answer_in_worker(&self, verdict: Verdict, _user_data: u64, _opcode: Opcode) -> Verdict {
        verdict
    }

    /// Reports a cancellation to the program.
    fn write_back_cancelled(&self) {}

    /// The second half of a CQE of 32 bytes, for an operation that has one.
    fn extra(&self) -> Option<[u64; 2]> {
        None
    }

    /// The SQE's `file_index` for a new descriptor: 0 for a number, else a slot of the registered files.
    fn slot(&self) -> u32 {
        0
    }

    /// Returns the answer once the descriptor that it made is installed, as a number or in a slot.
    fn answer_installed(&self, installed: Result<i32, Errno>) -> Verdict {
        match installed {
            Ok(result) => Verdict::DoneWith { result, flags: 0, failed: false },
            Err(error) => Verdict::error(error),
        }
    }

    /// True if it opens a file without O_DIRECT.
    fn opens_through_cache(&self) -> bool {
        false
    }
}

/// The waiting requests that are served before an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Turn {
    /// None: the operation makes nothing ready.
    Nobody,
    /// Those that wait on its file in this direction.
    Behind(Direction),
    /// None, and none before later SQEs of the submission: it is unknown what the operation makes ready.
    Unknown,
}

/// The waiting requests that are served before the turn of the next request of a chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ServedBefore {
    /// Nothing.
    Nothing,
    /// Those that wait on its file.
    ItsFile,
    /// All: the operation may end any of them.
    Everything,
}

/// A thread of the engine that waits for a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Waiter {
    /// The thread that waits for futexes.
    Futex,
    /// A thread that waits for a child, if no descriptor reports it.
    Child,
}

/// The services of the ring for operations that were submitted to it. `issue` implements them.
pub trait OnRing {
    /// True if the ring is one of polled devices (`IORING_SETUP_IOPOLL`).
    fn polls_devices(&self) -> bool;
    /// True if the ring has CQEs of 32 bytes.
    fn has_large_cqes(&self) -> bool;
    /// Checks that a LINK_TIMEOUT follows a request that it can guard.
    fn check_link_timeout(&self) -> Result<(), Errno>;
    /// Makes room for a timer. Errors: NOMEM.
    fn make_room_for_timer(&mut self, timeout: &Timeout) -> Result<(), Errno>;
    /// True if the file of this number is known to have no position.
    fn is_stream(&self, fd: i32) -> bool;
    /// Records that the file of this number has no position.
    fn mark_stream(&mut self, fd: i32);
    /// Returns the registered file with this index.
    fn fixed_file(&self, index: u32) -> Result<Arc<FixedFile>, Errno>;
    /// The registered buffers.
    fn buffers(&self) -> Option<&Buffers>;
    /// The groups of buffers to choose from.
    fn groups(&mut self) -> &mut Groups;
    /// Records for traces that the file of this number is looked up.
    fn record_file(&mut self, fd: i32);
    /// If `fd` is a ring (perhaps this one), makes its CQEs turn it readable from now on.
    fn watch_ring(&mut self, fd: i32, edge_triggered: bool);
    /// POLL_REMOVE.
    fn remove_poll(&mut self, remove: &PollRemove) -> Verdict;
    /// TIMEOUT_REMOVE.
    fn remove_timeout(&mut self, remove: &TimeoutRemove) -> Verdict;
    /// ASYNC_CANCEL.
    fn cancel(&mut self, cancel: &Cancel) -> Verdict;
    /// CLOSE of a number, or of a slot (plus one).
    fn close_file(&mut self, fd: i32, slot: u32) -> Verdict;
    /// MSG_RING to the ring that `fd` names.
    fn send_message(&mut self, message: &MsgRing, fd: i32) -> Verdict;
    /// Finds the file that a MSG_RING on `fd` sends.
    fn look_up_sent(&mut self, message: &mut MsgRing, fd: i32) -> Result<(), Errno>;
    /// FILES_UPDATE.
    fn update_files(&mut self, update: FilesUpdate) -> Verdict;
    /// PIPE into two slots.
    fn make_registered_pipe(&mut self, pipe: &Pipe) -> Verdict;
}
