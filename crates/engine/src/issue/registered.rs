//! Finds the registered files and buffers that requests name, under the ring's lock.

use crate::request::{Id, Target};
use crate::resource::files::FixedFile;
use crate::ring::State;
use crate::{descriptors, Errno};
use anyring_abi::IORING_FILE_INDEX_ALLOC;
use std::sync::Arc;

impl State {
    /// Returns the descriptor of the file that a target names; -1 if it names none.
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

    /// Makes the request keep the registered file that its index names.
    #[inline]
    pub(crate) fn keep_file(&mut self, id: Id) -> Result<(), Errno> {
        if let Target::Index(index) = self.slab[id].target {
            self.slab[id].target = Target::Fixed(self.fixed_file(index)?);
        }
        Ok(())
    }

    /// Forgets all that is known about the descriptors in these slots, which have new files.
    pub fn forget_before(&mut self, slots: core::ops::Range<u32>) {
        let state = self;
        for file in state.files.iter().flat_map(|files| files.in_slots(slots.clone())) {
            state.poll_set.forget(file.fd);
        }
    }

    /// Returns the registered file with this index.
    pub(crate) fn fixed_file(&self, index: u32) -> Result<Arc<FixedFile>, Errno> {
        self.files.as_ref().ok_or(Errno::BADF)?.get(index).cloned()
    }

    /// Puts a new descriptor that a request has made into the table of registered files. Returns the request's result.
    pub(crate) fn install_in_slot(&mut self, id: Id, fd: i32, slot: u32) -> Result<i32, Errno> {
        let is_cached = self.slab[id].op.opens_through_cache();
        let installed = match self.files.as_mut() {
            Some(files) => files.install(fd, slot).inspect(|found| {
                let index = if slot == IORING_FILE_INDEX_ALLOC as u32 { *found as u32 } else { slot - 1 };
                self.forget_before(index..index + 1);
                if let (true, Ok(file)) = (is_cached, self.fixed_file(index)) {
                    self.poll_set.mark_cached(file.fd);
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
