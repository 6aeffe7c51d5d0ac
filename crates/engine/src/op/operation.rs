//! The interface between an operation and its ring. A file of `op/` implements only those methods in which its
//! operations differ from most. To learn an opcode's behaviour, read that file and the opcode's row in the table.

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

/// The verdict on an operation that needs its ring and is issued without one.
const RING_ONLY: Verdict = Verdict::Done(-libc::EINVAL);

/// The most results that a multishot receive posts before other requests have their turn (`MULTISHOT_MAX_RETRY`).
pub(super) const SHOTS_TOGETHER: u32 = 32;

/// A prepared operation.
pub trait Operation {
    /// Attempts an operation that only makes system calls.
    #[inline]
    fn issue(&mut self, _context: Context) -> Verdict {
        RING_ONLY // a worker never gets an operation on the ring itself
    }

    /// Attempts the operation in the submitting thread, which holds the ring.
    #[inline]
    fn issue_on(&mut self, _ring: &mut impl OnRing, fd: i32) -> Verdict {
        self.issue(Context { fd, nonblock: true })
    }

    /// Continues after the operation's first call, which was made directly from the SQE (`AtOnce` in its row).
    #[inline]
    fn issue_after(&mut self, _ring: &mut impl OnRing, _first: Result<usize, Errno>, _fd: i32) -> Verdict {
        RING_ONLY
    }

    /// Makes the checks that need the ring, after the SQE was read.
    #[inline]
    fn check_on(&self, _ring: &mut impl OnRing) -> Result<(), Errno> {
        Ok(())
    }

    /// Finds the registered files and buffers that the operation names. Those that it keeps are looked up only once.
    #[inline]
    fn look_up(&mut self, _ring: &mut impl OnRing, _fd: i32) -> Result<(), Errno> {
        Ok(())
    }

    /// Duplicates the descriptors that the operation names, except its file's: a thread may sleep in its call. Returns
    /// the number of a duplicate that was made just now. That number may have been another file's before.
    fn own_names(&mut self) -> Option<i32> {
        None
    }

    /// Returns the error with which the operation fails if `fd` is a ring; `None` if it may work on rings. The data in
    /// a ring's socket is the engine's own. The kernel's rings have no read, write or command either.
    #[inline]
    fn refused_by_ring(&self) -> Option<Errno> {
        None
    }

    /// `IORING_CQE_F_*` that the operation's CQE has from the start. With `IORING_CQE_F_NOTIF` a notification follows
    /// the CQE, and `IORING_NOTIF_USAGE_ZC_COPIED` is the notification's result.
    #[inline]
    fn cqe_flags(&self) -> u32 {
        0
    }

    /// Returns the `user_data` of the notification, if it is not the request's.
    fn notified(&self) -> Option<u64> {
        None
    }

    /// Returns when the issuing thread's identity matters. The row says so, except for operations that the ring itself
    /// makes.
    #[inline]
    fn identity(&self, row: Identity) -> Identity {
        row
    }

    /// True if the kernel always gives this operation to a worker, although the row does not say so.
    #[inline]
    fn is_forced(&self) -> bool {
        false
    }

    /// Returns the arguments that filters see, in the words of `struct io_uring_bpf_ctx` after its head.
    fn seen_by_filters(&self) -> [u32; 6] {
        [0; 6]
    }

    /// True if the operation asks for a status that may have to come from a server or a disk. The kernel gives it to a
    /// worker, so that no submission waits.
    fn asks_elsewhere(&self) -> bool {
        false
    }

    /// True if a worker's call may sleep until another thread or process does something to its file.
    #[inline]
    fn may_sleep_on_file(&self) -> bool {
        false
    }

    /// Returns, with IOSQE_BUFFER_SELECT, the group to choose from and the chosen buffer.
    #[inline]
    fn selection(&mut self) -> Option<&mut Selection> {
        None
    }

    /// True if the operation has IOSQE_BUFFER_SELECT.
    #[inline]
    fn selects(&self) -> bool {
        false
    }

    /// Makes the ranges of the chosen buffers the memory to transfer, from their start.
    fn use_buffers(&mut self) {}

    /// True if the operation chooses as many buffers as it has data for (`IORING_RECVSEND_BUNDLE`).
    fn is_bundle(&self) -> bool {
        false
    }

    /// True if the operation sends the content of the buffer that it chooses.
    fn sends(&self) -> bool {
        false
    }

    /// Decides what follows from an attempt that used its buffers. With `appends` the operation may continue, to
    /// receive what the socket still has.
    fn finish_attempt(&mut self, attempted: Attempted, _held: Held, _appends: bool) -> ControlFlow<Verdict> {
        let Attempted { result, flags, .. } = attempted;
        ControlFlow::Break(match self.is_multishot() && result > 0 {
            true => Verdict::Shot { result, flags },
            false => attempted.verdict(),
        })
    }

    /// True if the last result of a multishot receive left room in its buffer.
    #[inline]
    fn was_short_receive(&self) -> bool {
        false
    }

    /// True if the operation posts result after result until it fails or is ended. POLL_ADD and TIMEOUT are handled
    /// elsewhere.
    #[inline]
    fn is_multishot(&self) -> bool {
        false
    }

    /// The most results that the operation posts in a row.
    fn shots_together(&self) -> u32 {
        SHOTS_TOGETHER
    }

    /// True for the attempt or the result that belongs to the submission, which the kernel makes without polling. Later
    /// calls return false.
    #[inline]
    fn take_submitted(&mut self) -> bool {
        false
    }

    /// Records that the submission's attempt has a result. `take_submitted` returns true until that result is posted.
    fn shoots_once(&mut self) {}

    /// Number of bytes that earlier attempts transferred without ending the operation.
    fn transferred(&self) -> usize {
        0
    }

    /// Forgets the bytes transferred, since their CQE is posted.
    fn forget_transferred(&mut self) {}

    /// Number of bytes to write, if the operation is a write.
    fn wanted_to_write(&self) -> Option<u64> {
        None
    }

    /// True if the operation waits before its first attempt and has not yet waited (`IORING_RECVSEND_POLL_FIRST`,
    /// `IORING_ACCEPT_POLL_FIRST`).
    #[inline]
    fn will_poll_first(&self) -> bool {
        false
    }

    /// Returns, once for an operation that waits before its first attempt, the direction to wait for and the reason
    /// for skipping the attempt. An error means that the operation cannot wait.
    #[inline]
    fn wait_first(&mut self, _fd: i32) -> Option<Result<(Direction, Skip), Errno>> {
        None
    }

    /// The readiness without which a nonblocking attempt finds nothing, for operations on streams. `None` for others.
    #[inline]
    fn waits_for(&self) -> Option<Direction> {
        None
    }

    /// True if urgent data (`EPOLLPRI`) wakes the operation while it waits to read.
    fn hears_urgent_data(&self) -> bool {
        false
    }

    /// Returns the number to wait on, where `fd` is the SQE's file. Also returns a number that was made just now, if
    /// any. Errors: those of dup(2).
    #[inline]
    fn polled_number(&mut self, fd: i32, _direction: Direction) -> Result<(i32, Option<i32>), Errno> {
        Ok((fd, None))
    }

    /// The verdict if the operation's file cannot be polled; `None` if a worker makes the operation. Workers make no
    /// multishot requests.
    fn verdict_unpolled(&mut self, _fd: i32) -> Option<Verdict> {
        self.is_multishot().then_some(Verdict::error(Errno::BADFD))
    }

    /// The verdict if the operation waits to read from a datagram socket that was shut down. `None` if it continues to
    /// wait, as a multishot request does.
    fn end_of_datagrams(&self, _fd: i32) -> Option<Verdict> {
        None
    }

    /// Returns which waiting requests are served before the operation: those that the kernel has queued by then.
    fn turn(&self) -> Turn {
        self.waits_for().map_or(Turn::Unknown, Turn::Behind)
    }

    /// Returns which waiting requests are served before the operation's turn in a chain, if that may make a difference.
    fn handled_before(&self) -> HandledBefore {
        HandledBefore::Nothing
    }

    /// The thread that waits for the operation, if that is no worker.
    fn waiter(&self) -> Option<Waiter> {
        None
    }

    /// True if task work makes the operation in the kernel, after the submission.
    fn by_task_work(&self) -> bool {
        false
    }

    /// True if a worker that finds the file not ready answers EAGAIN instead of waiting. `number` is the file's number,
    /// or `None` for a registered file.
    fn worker_fails_with_eagain(&self, _number: Option<i32>) -> bool {
        false
    }

    /// True if the kernel's worker hands this result to the submitter, which then continues the chain. `inline` says
    /// that the operation completed where it was issued.
    fn is_brought(&self, _result: i32, _inline: bool) -> bool {
        false
    }

    /// True if a worker makes the operation on this file because it has to wait for storage.
    fn waits_for_storage(&self, _fd: i32) -> bool {
        false
    }

    /// Returns the verdict of an io-wq worker, if it differs from the given `verdict`.
    fn verdict_in_worker(&self, verdict: Verdict, _user_data: u64, _opcode: Opcode) -> Verdict {
        verdict
    }

    /// Reports a cancellation to the program.
    fn write_back_cancelled(&self) {}

    /// The second half of a CQE of 32 bytes, for an operation that has one.
    fn extra(&self) -> Option<[u64; 2]> {
        None
    }

    /// The SQE's `file_index` for a new descriptor: 0 for a number, otherwise a slot of the registered files plus one.
    fn slot(&self) -> u32 {
        0
    }

    /// Returns the verdict once the descriptor that the operation made is installed, as a number or in a slot.
    fn verdict_installed(&self, installed: Result<i32, Errno>) -> Verdict {
        match installed {
            Ok(result) => Verdict::DoneWith { result, flags: 0, failed: false },
            Err(error) => Verdict::error(error),
        }
    }

    /// True if the operation opens a file without O_DIRECT.
    fn opens_through_cache(&self) -> bool {
        false
    }
}

/// The waiting requests that are served before an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Turn {
    /// No request: the operation makes nothing ready.
    Nobody,
    /// The requests that wait on the operation's file in this direction.
    Behind(Direction),
    /// No request, and none before later SQEs of the submission either: it is unknown what the operation makes ready.
    Unknown,
}

/// The waiting requests that are served before an operation that is next in its chain is issued.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HandledBefore {
    /// No request.
    Nothing,
    /// The requests that wait on the operation's file.
    ItsFile,
    /// All requests: the operation may end any of them.
    Everything,
}

/// A thread of the engine that waits on behalf of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Waiter {
    /// The thread that waits for futexes.
    Futex,
    /// A thread that waits for a child process, if no descriptor reports the child's end.
    Child,
}

/// The ring's services for operations that were submitted to it. `issue` implements them.
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
    /// Records in the trace that the file of this number is looked up.
    fn record_file(&mut self, fd: i32);
    /// If `fd` is a ring (perhaps this ring), makes that ring's CQEs turn it readable from now on.
    fn watch_ring(&mut self, fd: i32, edge_triggered: bool);
    /// Returns which of `events` one call for several POLL_ADDs has found on `fd`; `None` if it was not asked.
    fn polled_ahead(&mut self, fd: i32, events: u16) -> Option<u16>;
    /// Carries out a POLL_REMOVE.
    fn remove_poll(&mut self, remove: &PollRemove) -> Verdict;
    /// Carries out a TIMEOUT_REMOVE.
    fn remove_timeout(&mut self, remove: &TimeoutRemove) -> Verdict;
    /// Carries out an ASYNC_CANCEL.
    fn cancel(&mut self, cancel: &Cancel) -> Verdict;
    /// Carries out a CLOSE of a number, or of a slot (`slot` is the slot plus one).
    fn close_file(&mut self, fd: i32, slot: u32) -> Verdict;
    /// Sends a MSG_RING to the ring that `fd` names.
    fn send_message(&mut self, message: &MsgRing, fd: i32) -> Verdict;
    /// Finds the file that a MSG_RING on `fd` sends.
    fn look_up_sent(&mut self, message: &mut MsgRing, fd: i32) -> Result<(), Errno>;
    /// Carries out a FILES_UPDATE.
    fn update_files(&mut self, update: FilesUpdate) -> Verdict;
    /// Carries out a PIPE into two slots.
    fn make_registered_pipe(&mut self, pipe: &Pipe) -> Verdict;
}
