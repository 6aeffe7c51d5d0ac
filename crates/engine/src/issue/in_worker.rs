//! Requests that natively a worker of io-wq issues unasked: the next request of a chain after one that a worker has
//! completed, and the head of a chain that the submission's end cuts off. Such a worker makes the plain call; what
//! would wait on a file with O_NONBLOCK, or for events of an epoll set, answers EAGAIN there instead of being armed.
//! Source: `io_wq_submit_work`, `io_wq_free_work` and `io_submit_state_end` in io_uring/io_uring.c.

use crate::op::cancel::Cancel;
use crate::op::net::{is_blocking, Net};
use crate::op::rw::is_file;
use crate::op::{Op, Verdict};
use crate::request::{Id, Request};
use crate::ring::RingGuard;
use crate::stats::Path;
use crate::Errno;
use anyring_abi::{IORING_SETUP_DEFER_TASKRUN, IORING_SETUP_IOPOLL, IOSQE_ASYNC, IOSQE_BUFFER_SELECT};

impl RingGuard {
    /// Whether the next request of its chain is issued by the worker that completes this one. With these setup flags results
    /// go to the submitter first (`io_req_complete_post`).
    pub(crate) fn hands_chain_to_worker(&self, id: Id, result: i32) -> bool {
        let deferred = self.ring().has(IORING_SETUP_DEFER_TASKRUN) || self.ring().has(IORING_SETUP_IOPOLL);
        !deferred && ends_in_worker(&self.slab[id], result)
    }

    /// What an ASYNC_CANCEL answers: one that a worker makes finds itself among those that workers are at, where it means
    /// itself. Source: `__io_async_cancel` in io_uring/cancel.c.
    pub(crate) fn after_cancel(&self, id: Id, cancel: &Cancel, verdict: Verdict) -> Verdict {
        let request = &self.slab[id];
        let by_worker = request.in_worker || request.flags & IOSQE_ASYNC != 0;
        let means_itself = !cancel.all && cancel.matches(request.user_data, request.opcode, false);
        if verdict == Verdict::error(Errno::NOENT) && by_worker && means_itself {
            return Verdict::error(Errno::ALREADY);
        }
        verdict
    }

    /// A request that a worker issues found nothing: whether that is its end, or the look that was put off found something.
    #[cold]
    pub(crate) fn gives_up_in_worker(&mut self, id: Id) -> bool {
        let request = &self.slab[id];
        let gives_up = request.flags & IOSQE_ASYNC == 0
            && !request.op.is_multishot()
            && match &request.op {
                Op::EpollWait(_) => true,
                Op::Rw(_) | Op::Net(Net::Accept(_)) => request.target.number().is_some_and(|fd| !is_blocking(fd)),
                _ => false,
            };
        if !gives_up {
            return false;
        }
        match self.attempt_again(id) {
            Verdict::WouldBlock(_) | Verdict::Skipped(..) | Verdict::NeedsWorkerWhenReady(_) => {}
            verdict => {
                self.follow(id, verdict);
                return true;
            }
        }
        if self.slab[id].flags & IOSQE_BUFFER_SELECT != 0 {
            // A worker takes its buffer before it reads.
            let mut op = core::mem::replace(&mut self.slab[id].op, Op::placeholder());
            let _ = self.hold_buffer(id, &mut op); // the attempt has found one
            self.slab[id].op = op;
        }
        self.finish(id, -Errno::AGAIN.raw_os_error(), true);
        true
    }
}

/// Whether a worker completes it, natively.
fn ends_in_worker(request: &Request, result: i32) -> bool {
    if request.failed.is_some() {
        return false;
    }
    if request.op.is_forced(request.opcode) {
        return result != -Errno::BADF.raw_os_error(); // what has no file fails before the call
    }
    // Their errors, and what somebody else ends, are brought to the submitter.
    let brought = match request.op {
        Op::Rw(_) | Op::EpollWait(_) => result < 0,
        Op::Timeout(_) | Op::LinkTimeout(_) => true,
        Op::FutexWait(_) | Op::Waitid(_) => request.path != Path::Inline,
        _ => false,
    };
    let sent = request.in_worker || request.flags & IOSQE_ASYNC != 0;
    let by_worker = match request.path {
        Path::Inline => sent,
        // A read that missed the page cache, a write that has blocks to allocate.
        Path::Worker => sent || matches!(request.op, Op::Rw(_)) && request.target.number().is_some_and(is_file),
        Path::Poll | Path::Device => false,
    };
    by_worker && !brought
}
