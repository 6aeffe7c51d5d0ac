//! A read or write as an [`Operation`].

use super::{is_file, refusal_of_protection, Buffers, Rw, RWF_NOWAIT, RWF_OF_FILES, RWF_SUPPORTED};
use crate::op::net::is_blocking;
use crate::op::selection::Selection;
use crate::op::{Context, Direction, HandledBefore, OnRing, Operation, Skip, Verdict};
use crate::{descriptors, Errno};
use anyring_abi::MAX_RW_COUNT;

impl Operation for Rw {
    /// A READ_MULTISHOT is armed before its first attempt.
    #[inline]
    fn wait_first(&mut self, _fd: i32) -> Option<Result<(Direction, Skip), Errno>> {
        let first = self.multishot && !core::mem::replace(&mut self.polled, true);
        first.then_some(Ok((Direction::Read, Skip::LookOnceArmed)))
    }

    #[inline]
    fn issue(&mut self, context: Context) -> Verdict {
        let total = self.total();
        if self.flags & !(RWF_SUPPORTED & !RWF_OF_FILES) != 0 {
            if let Some(error) = self.refused_flags(context.fd) {
                return self.finish_error(error, total);
            }
        }
        if self.protected {
            return self.finish_error(refusal_of_protection(context.fd), total);
        }
        let first = self.transfer(context, self.offset);
        self.follow_call(first, context)
    }

    #[inline]
    fn selects(&self) -> bool {
        self.selection.is_some()
    }

    fn selection(&mut self) -> Option<&mut Selection> {
        self.selection.as_deref_mut()
    }

    fn use_buffers(&mut self) {
        let Some([[address, bytes]]) = self.selection.as_ref().map(|selection| &selection.ranges[..]) else {
            return;
        };
        self.buffers = Buffers::One([*address, (*bytes).min(MAX_RW_COUNT)]);
        self.aligned = (address | bytes | self.offset as usize).is_multiple_of(512);
        self.done = 0;
    }

    fn is_multishot(&self) -> bool {
        self.multishot
    }

    fn take_submitted(&mut self) -> bool {
        core::mem::take(&mut self.submitted)
    }

    fn shoots_once(&mut self) {
        self.submitted = true;
    }

    fn transferred(&self) -> usize {
        self.done as usize
    }

    fn forget_transferred(&mut self) {
        self.done = 0;
    }

    #[inline]
    fn waits_for(&self) -> Option<Direction> {
        let polls_first = self.multishot && !self.polled;
        let known = self.flags & (RWF_NOWAIT | RWF_OF_FILES) == 0 && !polls_first && !self.is_of_nothing();
        known.then(|| self.direction())
    }

    fn end_of_datagrams(&self, fd: i32) -> Option<Verdict> {
        if self.write || self.multishot {
            return None;
        }
        Some(if is_blocking(fd) { self.finish(self.total()) } else { Verdict::error(Errno::AGAIN) })
    }

    /// Attempts the transfer with what the ring knows of the file, and records what the attempt shows.
    #[inline]
    fn issue_on(&mut self, ring: &mut impl OnRing, fd: i32) -> Verdict {
        if ring.is_stream(fd) {
            self.assume_stream();
        }
        let verdict = self.issue(Context { fd, nonblock: true });
        self.teach(ring, fd);
        verdict
    }

    #[inline]
    fn issue_after(&mut self, ring: &mut impl OnRing, first: Result<usize, Errno>, fd: i32) -> Verdict {
        if ring.is_stream(fd) {
            self.assume_stream();
        }
        let verdict = self.follow_call(first, Context { fd, nonblock: true });
        self.teach(ring, fd);
        verdict
    }

    /// Refuses RWF_HIPRI with EINVAL, except on rings of polled devices.
    #[inline]
    fn check_on(&self, ring: &mut impl OnRing) -> Result<(), Errno> {
        match self.is_polled() && !ring.polls_devices() {
            true => Err(Errno::INVAL),
            false => Ok(()),
        }
    }

    /// Finds and keeps the registered buffer of a *_FIXED request; done once. A file that is not open is reported
    /// first.
    #[inline]
    fn look_up(&mut self, ring: &mut impl OnRing, fd: i32) -> Result<(), Errno> {
        match self.take_registered() {
            None => Ok(()),
            Some(index) => {
                self.find_buffer(ring, index).map_err(|error| descriptors::check_open(fd).err().unwrap_or(error))
            }
        }
    }

    fn refused_by_ring(&self) -> Option<Errno> {
        Some(Errno::INVAL)
    }

    fn may_sleep_on_file(&self) -> bool {
        true
    }

    /// A READ_MULTISHOT continues until the file has no more data (`io_poll_multishot_retry`).
    fn shots_together(&self) -> u32 {
        u32::MAX
    }

    fn wanted_to_write(&self) -> Option<u64> {
        self.write.then(|| self.total())
    }

    fn handled_before(&self) -> HandledBefore {
        HandledBefore::ItsFile
    }

    fn worker_fails_with_eagain(&self, number: Option<i32>) -> bool {
        number.is_some_and(|fd| !is_blocking(fd))
    }

    fn is_brought(&self, result: i32, _inline: bool) -> bool {
        result < 0
    }

    /// A read that missed the page cache waits for storage, and so does a write that has to allocate blocks.
    fn waits_for_storage(&self, fd: i32) -> bool {
        self.reads_memory() || is_file(fd)
    }
}

impl Rw {
    /// Records in the ring that the file has no position, if the attempt showed that.
    #[inline]
    fn teach(&self, ring: &mut impl OnRing, fd: i32) {
        if self.is_of_stream() && !ring.is_stream(fd) {
            ring.mark_stream(fd);
        }
    }

    fn find_buffer(&mut self, ring: &impl OnRing, index: u16) -> Result<(), Errno> {
        let buffers = ring.buffers().ok_or(Errno::FAULT)?;
        let mut buffer = None;
        for [address, bytes] in self.ranges() {
            if *bytes == 0 && self.is_vectored() {
                return Err(Errno::FAULT); // io_uring/rsrc.c: an empty vector is in no buffer
            }
            buffer = Some(buffers.find(index, *address as u64, *bytes as u64)?.clone());
        }
        self.keep(buffer);
        Ok(())
    }
}
