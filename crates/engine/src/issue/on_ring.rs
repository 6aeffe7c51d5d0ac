//! The services of the ring for the operations that change the ring itself.

use crate::issue::{files, msg_ring};
use crate::op::cancel::Cancel;
use crate::op::file_table::FilesUpdate;
use crate::op::msg_ring::MsgRing;
use crate::op::pipe::Pipe;
use crate::op::poll::PollRemove;
use crate::op::timeout::{Timeout, TimeoutRemove};
use crate::op::{OnRing, Verdict};
use crate::request::Target;
use crate::resource::buf_ring::Groups;
use crate::resource::buffers::Buffers;
use crate::resource::files::FixedFile;
use crate::ring::{table, RingGuard, State};
use crate::{descriptors, Errno};
use anyring_abi::{IORING_SETUP_CQE32, IORING_SETUP_CQE_MIXED};
use core::sync::atomic::Ordering;
use std::sync::Arc;

impl OnRing for RingGuard {
    #[inline]
    fn polls_devices(&self) -> bool {
        self.iopoll.is_some()
    }

    fn has_large_cqes(&self) -> bool {
        self.ring().has(IORING_SETUP_CQE32 | IORING_SETUP_CQE_MIXED)
    }

    fn check_link_timeout(&self) -> Result<(), Errno> {
        self.check_guarded()
    }

    fn make_room_for_timer(&mut self, timeout: &Timeout) -> Result<(), Errno> {
        self.reserve_timer(timeout)
    }

    #[inline]
    fn is_stream(&self, fd: i32) -> bool {
        self.poll_set.is_stream(fd)
    }

    fn mark_stream(&mut self, fd: i32) {
        if descriptors::closes_are_seen() {
            self.poll_set.mark_stream(fd);
        }
    }

    fn fixed_file(&self, index: u32) -> Result<Arc<FixedFile>, Errno> {
        State::fixed_file(self, index)
    }

    fn buffers(&self) -> Option<&Buffers> {
        self.buffers.as_ref()
    }

    fn groups(&mut self) -> &mut Groups {
        &mut self.groups
    }

    fn record_file(&mut self, fd: i32) {
        self.record(|it| it.file_get(&Target::Number(fd)));
    }

    fn watch_ring(&mut self, fd: i32, edge_triggered: bool) {
        if !descriptors::is_ring(fd) {
            return;
        }
        match table::ring(fd) {
            Some(watched) if core::ptr::eq(watched, self.ring()) => self.add_watcher(edge_triggered),
            Some(watched) => {
                watched.add_watcher_from_elsewhere(edge_triggered, self.ring().fd.load(Ordering::Relaxed))
            }
            None => {}
        }
    }

    #[inline]
    fn polled_ahead(&mut self, fd: i32, events: u16) -> Option<u16> {
        self.poll_set.ahead.take(fd, events)
    }

    fn remove_poll(&mut self, remove: &PollRemove) -> Verdict {
        self.end_poll(remove)
    }

    fn remove_timeout(&mut self, remove: &TimeoutRemove) -> Verdict {
        self.end_timeout(remove)
    }

    fn cancel(&mut self, cancel: &Cancel) -> Verdict {
        self.cancel_requests(cancel)
    }

    /// Carries out a CLOSE. Source: io_uring_enter(2), IORING_OP_CLOSE. A ring's own descriptor is refused as in
    /// io_uring/openclose.c.
    fn close_file(&mut self, fd: i32, slot: u32) -> Verdict {
        if slot != 0 {
            let files = self.files.as_mut().ok_or(Errno::NXIO);
            let removed = files.and_then(|files| files.remove(slot - 1)).map(|_| 0);
            self.post_tags();
            return Verdict::of(removed);
        }
        if descriptors::is_ring(fd) || descriptors::is_own(fd) {
            return Verdict::error(Errno::BADF);
        }
        Verdict::NeedsCaller // close(2) may have to write back, or to linger
    }

    fn send_message(&mut self, message: &MsgRing, fd: i32) -> Verdict {
        msg_ring::send_message(self, message, fd)
    }

    fn look_up_sent(&mut self, message: &mut MsgRing, fd: i32) -> Result<(), Errno> {
        msg_ring::look_up_sent(self, message, fd).map(|_| ())
    }

    fn update_files(&mut self, update: FilesUpdate) -> Verdict {
        Verdict::of(files::issue_files_update(self, update))
    }

    fn make_registered_pipe(&mut self, pipe: &Pipe) -> Verdict {
        let verdict = files::make_registered_pipe(self, pipe);
        self.post_tags();
        verdict
    }
}
