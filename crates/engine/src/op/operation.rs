//! What is asked of an operation, and what it asks of its ring. Each file of `op/` answers for its own operations, only where they
//! differ from most: what an opcode does is read there and in its row of the table.

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

/// What an operation on the ring itself answers where there is none.
const RING_ONLY: Verdict = Verdict::Done(-libc::EINVAL);

/// Results that a multishot receive posts in a row before others have their turn (`MULTISHOT_MAX_RETRY`).
pub(super) const SHOTS_TOGETHER: u32 = 32;

/// A prepared operation.
pub trait Operation {
    /// Attempts an operation that is nothing but system calls.
    #[inline]
    fn issue(&mut self, _context: Context) -> Verdict {
        RING_ONLY // of the ring's own no worker ever gets one
    }

    /// Attempts it in the submitter, which holds its ring.
    #[inline]
    fn issue_on(&mut self, _ring: &mut impl OnRing, fd: i32) -> Verdict {
        self.issue(Context { fd, nonblock: true })
    }

    /// Goes on from its first call's answer, which was made from the SQE (`AtOnce` in its row).
    #[inline]
    fn issue_after(&mut self, _ring: &mut impl OnRing, _first: Result<usize, Errno>, _fd: i32) -> Verdict {
        RING_ONLY
    }

    /// What only the ring can tell of it, when its SQE was read.
    #[inline]
    fn check_on(&self, _ring: &mut impl OnRing) -> Result<(), Errno> {
        Ok(())
    }

    /// Finds what it names of the ring's registered files and buffers. What it keeps of them it finds once.
    #[inline]
    fn look_up(&mut self, _ring: &mut impl OnRing, _fd: i32) -> Result<(), Errno> {
        Ok(())
    }

    /// A thread may sleep in its call: what it names besides its file is its own from now on. The number that it has for that, if one
    /// was made just now: it may have been another file's before.
    fn hold_names(&mut self) -> Option<i32> {
        None
    }

    /// Why it may not work on `fd` if that is a ring. What is in a ring's socket is the engine's own. Natively a ring has no read,
    /// write or command either.
    #[inline]
    fn refused_by_ring(&self) -> Option<Errno> {
        None
    }

    /// `IORING_CQE_F_*` that its CQE has from the start. `IORING_CQE_F_NOTIF` among them says that a notification follows the
    /// CQE, `IORING_NOTIF_USAGE_ZC_COPIED` is what that one answers.
    #[inline]
    fn cqe_flags(&self) -> u32 {
        0
    }

    /// When its maker's identity counts, which its row says but for what the ring itself makes.
    #[inline]
    fn identity(&self, row: Identity) -> Identity {
        row
    }

    /// Natively a worker makes it from the start, besides those of which the row says so.
    #[inline]
    fn is_forced(&self) -> bool {
        false
    }

    /// It asks for a status that a server or a disk may have to give: natively a worker does, and no submission waits for that.
    fn asks_elsewhere(&self) -> bool {
        false
    }

    /// A call of a worker's may sleep until somebody else does something to its file.
    #[inline]
    fn may_sleep_on_file(&self) -> bool {
        false
    }

    /// With IOSQE_BUFFER_SELECT: the group it chooses from and the buffer it has.
    #[inline]
    fn selection(&mut self) -> Option<&mut Selection> {
        None
    }

    /// Whether it chooses its buffer.
    #[inline]
    fn selects(&self) -> bool {
        false
    }

    /// The ranges of its selection are where it transfers to or from, from their start.
    fn use_buffers(&mut self) {}

    /// It chooses as many buffers as it has data for (`IORING_RECVSEND_BUNDLE`).
    fn is_bundle(&self) -> bool {
        false
    }

    /// It sends what is in the buffer that it chooses.
    fn sends(&self) -> bool {
        false
    }

    /// What becomes of an attempt that used its buffers: with `appends` it may go on, to have what its socket has left.
    fn settle(&mut self, attempted: Attempted, _held: Held, _appends: bool) -> ControlFlow<Verdict> {
        let Attempted { result, flags, .. } = attempted;
        ControlFlow::Break(match self.is_multishot() && result > 0 {
            true => Verdict::Shot { result, flags },
            false => attempted.verdict(),
        })
    }

    /// Whether the last shot of a receive left room in its buffer.
    #[inline]
    fn was_short_receive(&self) -> bool {
        false
    }

    /// It answers again and again until it fails or is ended (POLL_ADD and TIMEOUT have their own ways).
    #[inline]
    fn is_multishot(&self) -> bool {
        false
    }

    /// How many results it posts in a row, at most.
    fn shots_together(&self) -> u32 {
        SHOTS_TOGETHER
    }

    /// Once where the attempt, or the result, is that of its submission, which the kernel makes without polling.
    #[inline]
    fn take_submitted(&mut self) -> bool {
        false
    }

    /// The attempt of its submission has a result: until that is posted, `take_submitted` says so.
    fn shoots_once(&mut self) {}

    /// Bytes transferred by attempts that did not end it.
    fn transferred(&self) -> usize {
        0
    }

    /// What was transferred has been answered.
    fn forget_transferred(&mut self) {}

    /// How many bytes it is to write, if it is a write.
    fn wanted_to_write(&self) -> Option<u64> {
        None
    }

    /// It waits before its first attempt, which is yet to come (`IORING_RECVSEND_POLL_FIRST`, `IORING_ACCEPT_POLL_FIRST`).
    #[inline]
    fn will_poll_first(&self) -> bool {
        false
    }

    /// Once where that is so: what it waits for before its first attempt, and who makes up for that, or why not.
    #[inline]
    fn wait_first(&mut self, _fd: i32) -> Option<Result<(Direction, Skip), Errno>> {
        None
    }

    /// Which readiness a nonblocking attempt would need, for operations on streams.
    #[inline]
    fn waits_for(&self) -> Option<Direction> {
        None
    }

    /// An event of urgent data (`EPOLLPRI`) is one for it where it waits to read.
    fn hears_urgent_data(&self) -> bool {
        false
    }

    /// The number to wait on, where its SQE's file is `fd`; then a number that was made just now. Errors: those of dup(2).
    #[inline]
    fn polled_number(&mut self, fd: i32, _direction: Direction) -> Result<(i32, Option<i32>), Errno> {
        Ok((fd, None))
    }

    /// What it answers where its file cannot be polled; `None` where a worker makes it. A multishot request has none.
    fn answer_unpolled(&mut self, _fd: i32) -> Option<Verdict> {
        self.is_multishot().then_some(Verdict::error(Errno::BADFD))
    }

    /// Its answer where it waits to read from a socket of datagrams that was shut down; a multishot request goes on waiting.
    fn end_of_datagrams(&self, _fd: i32) -> Option<Verdict> {
        None
    }

    /// Before whom those that wait are served, which the kernel has queued by then.
    fn turn(&self) -> Turn {
        self.waits_for().map_or(Turn::Unknown, Turn::Behind)
    }

    /// What waits is served before its turn in a chain comes, where that may make a difference to it.
    fn looks_before(&self) -> LooksBefore {
        LooksBefore::Nothing
    }

    /// The thread that waits for it, where it is no worker.
    fn waiter(&self) -> Option<Waiter> {
        None
    }

    /// Natively it is made by task work, behind the submission.
    fn by_task_work(&self) -> bool {
        false
    }

    /// Whether a worker that finds nothing answers EAGAIN, and does not have it wait; `number` is its file's, where it is no
    /// registered one.
    fn gives_up_in_worker(&self, _number: Option<i32>) -> bool {
        false
    }

    /// Natively this result is brought to the submitter, who then goes on with its chain, though a worker makes it. `inline`: it was
    /// answered where it was issued.
    fn is_brought(&self, _result: i32, _inline: bool) -> bool {
        false
    }

    /// A worker makes it on this file since storage has to be waited for.
    fn waits_for_storage(&self, _fd: i32) -> bool {
        false
    }

    /// What it answers where a worker of io-wq makes it, as far as that differs.
    fn answer_in_worker(&self, verdict: Verdict, _user_data: u64, _opcode: Opcode) -> Verdict {
        verdict
    }

    /// The program is told of a cancellation.
    fn tell_cancelled(&self) {}

    /// The second half of a CQE of 32 bytes, for an operation that has one.
    fn extra(&self) -> Option<[u64; 2]> {
        None
    }

    /// The SQE's `file_index` for a new descriptor: 0 for a number, else a slot of the registered files.
    fn slot(&self) -> u32 {
        0
    }

    /// Its answer once the descriptor that it made is installed, as a number or in a slot.
    fn answer_installed(&self, installed: Result<i32, Errno>) -> Verdict {
        match installed {
            Ok(result) => Verdict::DoneWith { result, flags: 0, failed: false },
            Err(error) => Verdict::error(error),
        }
    }

    /// It opens a file without O_DIRECT.
    fn opens_through_cache(&self) -> bool {
        false
    }
}

/// Before whom those that wait for the same are served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Turn {
    /// It makes nothing ready.
    Nobody,
    /// It comes behind those that wait on its file.
    Behind(Direction),
    /// Nobody knows what it makes ready.
    Unknown,
}

/// What is served before the turn of the next request of a chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LooksBefore {
    /// Nothing.
    Nothing,
    /// Those that wait on its file.
    ItsFile,
    /// All: it may end any of them.
    Everything,
}

/// A thread of ours that waits for a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Waiter {
    /// That of futexes.
    Futex,
    /// One that waits for a child, where no descriptor tells.
    Child,
}

/// What operations ask of the ring that they were submitted to. `issue` answers.
pub trait OnRing {
    /// It is one of polled devices (`IORING_SETUP_IOPOLL`).
    fn polls_devices(&self) -> bool;
    /// It has CQEs of 32 bytes.
    fn has_large_cqes(&self) -> bool;
    /// A LINK_TIMEOUT must follow a request that it can guard.
    fn check_link_timeout(&self) -> Result<(), Errno>;
    /// Makes room for a timer. Errors: NOMEM.
    fn make_room_for_timer(&mut self, timeout: &Timeout) -> Result<(), Errno>;
    /// The file of this number is known to have no position.
    fn is_stream(&self, fd: i32) -> bool;
    /// An attempt has found that.
    fn note_stream(&mut self, fd: i32);
    /// The registered file with this index.
    fn fixed_file(&self, index: u32) -> Result<Arc<FixedFile>, Errno>;
    /// Registered buffers.
    fn buffers(&self) -> Option<&Buffers>;
    /// Groups of buffers to choose from.
    fn groups(&mut self) -> &mut Groups;
    /// The file of this number is looked up: for traces.
    fn record_file(&mut self, fd: i32);
    /// If `fd` is a ring (perhaps this one), its CQEs make it readable from now on.
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
    /// A MSG_RING on `fd` finds the file that it sends.
    fn look_up_sent(&mut self, message: &mut MsgRing, fd: i32) -> Result<(), Errno>;
    /// FILES_UPDATE.
    fn update_files(&mut self, update: FilesUpdate) -> Verdict;
    /// PIPE into two slots.
    fn make_registered_pipe(&mut self, pipe: &Pipe) -> Verdict;
}
