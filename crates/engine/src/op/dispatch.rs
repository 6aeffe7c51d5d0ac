//! The kinds of operations: their only list, and the dispatch to each kind.

use super::operation::{HandledBefore, OnRing, Operation, Turn, Waiter};
use super::poll::PollAdd;
use super::rw::Rw;
use super::selection::{Attempted, Selection};
use super::timeout::Timeout;
use super::{row, Context, Direction, Identity, Skip, Verdict};
use crate::resource::buf_ring::Held;
use crate::{identity, Errno};
use anyring_abi::Opcode;
use core::ops::ControlFlow;

/// Defines the kinds, and `each!`, which dispatches to each of them. In that macro `$d` stands for a dollar sign.
macro_rules! kinds {
    (($d:tt) $($kind:ident($type:ty),)*) => {
        /// A prepared operation.
        #[derive(Debug)]
        #[allow(missing_docs)] // each variant is documented where its type is
        pub enum Op {
            $($kind($type),)*
        }

        macro_rules! each {
            ($d op:expr, $d it:ident => $d answer:expr) => {
                match $d op {
                    $(Op::$kind($d it) => $d answer,)*
                }
            };
        }
    };
}

kinds! {
    ($)
    Nop(super::nop::Nop),
    NopWith(super::nop::NopWith),
    Rw(super::rw::Rw),
    Sync(super::sync::Sync),
    Poll(super::poll::PollAdd),
    PollRemove(super::poll::PollRemove),
    Timeout(super::timeout::Timeout),
    TimeoutRemove(super::timeout::TimeoutRemove),
    Cancel(super::cancel::Cancel),
    Net(super::net::Net),
    Fs(super::fs::Fs),
    Splice(super::splice::Splice),
    EpollCtl(super::epoll::EpollCtl),
    EpollWait(super::epoll::EpollWait),
    Xattr(super::xattr::Xattr),
    Pipe(super::pipe::Pipe),
    FilesUpdate(super::file_table::FilesUpdate),
    Buffers(super::buffers::BuffersChange),
    FixedFdInstall(super::file_table::FixedFdInstall),
    MsgRing(super::msg_ring::MsgRing),
    FutexWait(super::futex::Wait),
    FutexWake(super::futex::Wake),
    Waitid(super::waitid::Waitid),
    UringCmd(super::uring_cmd::UringCmd),
}

/// Defines methods that call the operation's method of the same name.
macro_rules! asks {
    ($($(#[$attribute:meta])* fn $name:ident(self $(, $arg:ident: $type:ty)*) -> $answer:ty;)*) => {
        $(
            #[doc = concat!("See [`Operation::", stringify!($name), "`].")]
            $(#[$attribute])*
            pub fn $name(&self $(, $arg: $type)*) -> $answer {
                each!(self, it => it.$name($($arg),*))
            }
        )*
    };
}

/// Does the same as `asks!` for methods that may change the operation.
macro_rules! has {
    ($($(#[$attribute:meta])* fn $name:ident(self $(, $arg:ident: $type:ty)*) $(-> $answer:ty)?;)*) => {
        $(
            #[doc = concat!("See [`Operation::", stringify!($name), "`].")]
            $(#[$attribute])*
            pub fn $name(&mut self $(, $arg: $type)*) $(-> $answer)? {
                each!(self, it => it.$name($($arg),*))
            }
        )*
    };
}

impl Op {
    has! {
        #[inline] fn issue(self, context: Context) -> Verdict;
        #[inline(always)] fn issue_on(self, ring: &mut impl OnRing, fd: i32) -> Verdict;
        fn issue_after(self, ring: &mut impl OnRing, first: Result<usize, Errno>, fd: i32) -> Verdict;
        #[inline] fn look_up(self, ring: &mut impl OnRing, fd: i32) -> Result<(), Errno>;
        fn own_names(self) -> Option<i32>;
        #[inline] fn selection(self) -> Option<&mut Selection>;
        fn use_buffers(self);
        fn finish_attempt(self, attempted: Attempted, held: Held, appends: bool) -> ControlFlow<Verdict>;
        #[inline] fn wait_first(self, fd: i32) -> Option<Result<(Direction, Skip), Errno>>;
        #[inline] fn take_submitted(self) -> bool;
        fn shoots_once(self);
        fn forget_transferred(self);
        #[inline] fn polled_number(self, fd: i32, direction: Direction) -> Result<(i32, Option<i32>), Errno>;
        fn verdict_unpolled(self, fd: i32) -> Option<Verdict>;
    }

    asks! {
        #[inline] fn check_on(self, ring: &mut impl OnRing) -> Result<(), Errno>;
        #[inline] fn refused_by_ring(self) -> Option<Errno>;
        #[inline] fn cqe_flags(self) -> u32;
        fn notified(self) -> Option<u64>;
        #[inline] fn may_sleep_on_file(self) -> bool;
        #[inline] fn selects(self) -> bool;
        fn is_bundle(self) -> bool;
        fn sends(self) -> bool;
        #[inline] fn was_short_receive(self) -> bool;
        #[inline] fn is_multishot(self) -> bool;
        fn shots_together(self) -> u32;
        fn transferred(self) -> usize;
        fn wanted_to_write(self) -> Option<u64>;
        #[inline] fn will_poll_first(self) -> bool;
        #[inline] fn waits_for(self) -> Option<Direction>;
        fn hears_urgent_data(self) -> bool;
        fn end_of_datagrams(self, fd: i32) -> Option<Verdict>;
        fn turn(self) -> Turn;
        fn handled_before(self) -> HandledBefore;
        fn waiter(self) -> Option<Waiter>;
        fn by_task_work(self) -> bool;
        fn worker_fails_with_eagain(self, number: Option<i32>) -> bool;
        fn is_brought(self, result: i32, inline: bool) -> bool;
        fn waits_for_storage(self, fd: i32) -> bool;
        fn verdict_in_worker(self, verdict: Verdict, user_data: u64, opcode: Opcode) -> Verdict;
        fn asks_elsewhere(self) -> bool;
        fn seen_by_filters(self) -> [u32; 6];
        fn write_back_cancelled(self) -> ();
        fn extra(self) -> Option<[u64; 2]>;
        fn slot(self) -> u32;
        fn verdict_installed(self, installed: Result<i32, Errno>) -> Verdict;
        fn opens_through_cache(self) -> bool;
    }

    /// Returns when the issuing thread's identity matters (`wq::creds`). The opcode's row says so, except for
    /// operations that the ring itself makes.
    pub fn identity(&self, opcode: Opcode) -> Identity {
        let row = row(opcode).map_or(Identity::Never, |row| row.identity);
        each!(self, it => it.identity(row))
    }

    /// True if the outcome depends on the calling thread's credentials and directory: see `wq::creds`.
    pub fn depends_on_caller(&self, opcode: Opcode) -> bool {
        match self.identity(opcode) {
            Identity::Never => false,
            Identity::Submitted | Identity::Ready => identity::may_differ(),
            Identity::Names => true,
        }
    }

    /// True if the kernel always gives the operation to a worker (`REQ_F_FORCE_ASYNC`).
    pub fn is_forced(&self, opcode: Opcode) -> bool {
        row(opcode).is_some_and(|row| row.forced) || each!(self, it => it.is_forced())
    }

    /// True for a SEND with IORING_RECVSEND_BUNDLE.
    pub fn sends_bundle(&self) -> bool {
        self.is_bundle() && self.sends()
    }

    /// Returns the operation if it is a READ or WRITE of any form.
    #[inline]
    pub fn rw(&self) -> Option<&Rw> {
        if let Op::Rw(rw) = self {
            Some(rw)
        } else {
            None
        }
    }

    /// Returns the operation, for changes, if it is a READ or WRITE of any form.
    #[inline]
    pub fn rw_mut(&mut self) -> Option<&mut Rw> {
        if let Op::Rw(rw) = self {
            Some(rw)
        } else {
            None
        }
    }

    /// Returns the operation if it is a POLL_ADD.
    #[inline]
    pub fn poll(&self) -> Option<&PollAdd> {
        if let Op::Poll(poll) = self {
            Some(poll)
        } else {
            None
        }
    }

    /// Returns the operation, for changes, if it is a POLL_ADD.
    #[inline]
    pub fn poll_mut(&mut self) -> Option<&mut PollAdd> {
        if let Op::Poll(poll) = self {
            Some(poll)
        } else {
            None
        }
    }

    /// Returns the operation if it is a TIMEOUT or LINK_TIMEOUT, which only a timer completes.
    #[inline]
    pub fn timeout(&self) -> Option<&Timeout> {
        if let Op::Timeout(timeout) = self {
            Some(timeout)
        } else {
            None
        }
    }

    /// Returns the operation, for changes, if it is a TIMEOUT or LINK_TIMEOUT.
    #[inline]
    pub fn timeout_mut(&mut self) -> Option<&mut Timeout> {
        if let Op::Timeout(timeout) = self {
            Some(timeout)
        } else {
            None
        }
    }
}
