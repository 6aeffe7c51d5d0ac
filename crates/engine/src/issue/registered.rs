//! Finds the registered files and buffers that requests name, under the ring's lock.

use crate::op::nop::NopWith;
use crate::op::rw::Rw;
use crate::op::splice::Splice;
use crate::op::Op;
use crate::os::file_status;
use crate::poll::PollSet;
use crate::request::{Id, Target};
use crate::resource::files::{is_locked, FixedFile};
use crate::ring::State;
use crate::{descriptors, Errno};
use anyring_abi::IORING_FILE_INDEX_ALLOC;
use std::sync::Arc;

impl State {
    /// The number of the file that a target names, -1 for none.
    #[inline]
    pub(crate) fn number_of(&self, target: &Target) -> Result<i32, Errno> {
        match target {
            Target::None => Ok(-1),
            Target::Number(fd) => Ok(*fd),
            Target::Fixed(file) | Target::Private(file) => Ok(file.fd),
            Target::Index(index) => {
                self.files.as_ref().ok_or(Errno::BADF).and_then(|files| files.get(*index)).map(|file| file.fd)
            }
        }
    }

    /// From now on the request keeps the registered file that its index names.
    #[inline]
    pub(crate) fn keep_file(&mut self, id: Id) -> Result<(), Errno> {
        if let Target::Index(index) = self.slab[id].target {
            self.slab[id].target = Target::Fixed(self.fixed_file(index)?);
        }
        Ok(())
    }

    /// New files are in these slots: what is remembered of their numbers is of files that had them before.
    pub fn forget_before(&mut self, slots: core::ops::Range<u32>) {
        let state = self;
        for file in state.files.iter().flat_map(|files| files.in_slots(slots.clone())) {
            state.poll_set.forget(file.fd);
        }
    }

    /// The registered file with this index.
    pub(crate) fn fixed_file(&self, index: u32) -> Result<Arc<FixedFile>, Errno> {
        self.files.as_ref().ok_or(Errno::BADF)?.get(index).cloned()
    }

    /// A NOP's file and registered buffer, which only have to be there.
    pub(crate) fn look_up_nop(&self, nop: &mut NopWith) {
        let file = match nop.file {
            None => Ok(()),
            Some((index, true)) => self.fixed_file(index as u32).map(|_| ()),
            Some((fd, false)) if descriptors::is_own(fd) => Err(Errno::BADF), // not open to the program
            Some((fd, false)) => descriptors::check_open(fd),
        };
        let buffer = match nop.buffer {
            None => Ok(()),
            Some(index) => {
                self.buffers.as_ref().ok_or(Errno::FAULT).and_then(|buffers| buffers.get(index).map(|_| ()))
            }
        };
        nop.looked_up(file.and(buffer));
    }

    /// A splice's second file, where it is a registered one.
    pub(crate) fn look_up_input(&self, splice: &mut Splice) -> Result<(), Errno> {
        if let Some(index) = splice.input_index() {
            splice.set_input(self.fixed_file(index)?);
        }
        Ok(())
    }

    /// For a *_FIXED request that has not been looked at: its registered buffer, which it keeps from now on. That its
    /// file `fd` is not open comes first.
    #[inline]
    pub(crate) fn find_buffer(&self, rw: &mut Rw, fd: i32) -> Result<(), Errno> {
        match rw.take_registered() {
            None => Ok(()),
            Some(index) => {
                self.keep_buffer(rw, index).map_err(|error| descriptors::check_open(fd).err().unwrap_or(error))
            }
        }
    }

    fn keep_buffer(&self, rw: &mut Rw, index: u16) -> Result<(), Errno> {
        let buffers = self.buffers.as_ref().ok_or(Errno::FAULT)?;
        let mut buffer = None;
        for [address, bytes] in rw.ranges() {
            if *bytes == 0 && rw.is_vectored() {
                return Err(Errno::FAULT); // io_uring/rsrc.c: a vector of nothing lies in no buffer
            }
            buffer = Some(buffers.find(index, *address as u64, *bytes as u64)?.clone());
        }
        rw.keep(buffer);
        Ok(())
    }

    /// Puts a new descriptor, which a request has made, into the table of registered files: the result.
    pub(crate) fn install_in_slot(&mut self, id: Id, fd: i32, slot: u32) -> Result<i32, Errno> {
        let is_cached = matches!(&self.slab[id].op, Op::Fs(fs) if fs.opens_through_cache());
        let installed = match self.files.as_mut() {
            Some(files) => files.install(fd, slot).inspect(|found| {
                let index = if slot == IORING_FILE_INDEX_ALLOC as u32 { *found as u32 } else { slot - 1 };
                self.forget_before(index..index + 1);
                if let (true, Ok(file)) = (is_cached, self.fixed_file(index)) {
                    self.poll_set.note_cached(file.fd);
                }
            }),
            None => {
                descriptors::close(fd);
                Err(if slot == IORING_FILE_INDEX_ALLOC as u32 { Errno::NFILE } else { Errno::NXIO })
            }
        };
        installed
    }
}

/// Somebody may wait for a splice's output, or sleep in the call: its input is the request's own from now on. Only a file with a
/// lock stays the program's, or on a server that may know one, since a duplicate could not be closed before the lock has gone.
pub(crate) fn hold_input(poll_set: &mut PollSet, splice: &mut Splice) {
    // A server cannot be asked for its locks under the ring's.
    let may_be_locked = |fd| file_status(fd).is_ok_and(|status| status.is_remote()) || is_locked(fd);
    if splice.input_number().is_some_and(may_be_locked) {
        return;
    }
    // That it is not open, say, the call will tell.
    if let Some(input) = splice.hold_input().ok().filter(|input| input.is_new) {
        poll_set.forget(input.fd);
    }
}
