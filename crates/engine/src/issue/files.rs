//! Requests that change the registered files: FILES_UPDATE, and PIPE into two slots. `issue`, which holds the ring,
//! carries them out; they never leave the submitter.

use crate::op::file_table::FilesUpdate;
use crate::op::pipe::Pipe;
use crate::op::Verdict;
use crate::os::{user_read, user_write};
use crate::resource::files::{duplicate_to_register, Files};
use crate::resource::table::{Table, Update};
use crate::ring::RingGuard;
use crate::{descriptors, Errno};
use anyring_abi::IORING_FILE_INDEX_ALLOC;

/// Carries out a FILES_UPDATE. Returns the number of files that were replaced, or that were put into free slots.
pub fn issue_files_update(guard: &mut RingGuard, update: FilesUpdate) -> Result<usize, Errno> {
    let table = Table { address: update.fds, count: update.count, tags: 0 };
    if update.first != IORING_FILE_INDEX_ALLOC as u32 {
        return update_files(guard, Update { first: update.first, table }).map(|done| done as usize);
    }
    let files = guard.files.as_mut().ok_or(Errno::NXIO)?;
    for done in 0..update.count {
        match install_anywhere(files, update.fds + 4 * u64::from(done)) {
            Ok(()) => {}
            Err(error) if done == 0 => return Err(error),
            Err(_) => return Ok(done as usize),
        }
    }
    Ok(update.count as usize)
}

/// Carries out a PIPE with a slot: its ends become two registered files. Source: `io_pipe_fixed` in
/// io_uring/openclose.c.
pub fn make_registered_pipe(guard: &mut RingGuard, pipe: &Pipe) -> Verdict {
    let ends = match pipe.make_for_slots() {
        Ok(ends) => ends,
        Err(error) => return Verdict::error(error),
    };
    let anywhere = pipe.slot == IORING_FILE_INDEX_ALLOC as u32;
    let Some(files) = guard.files.as_mut() else {
        ends.into_iter().for_each(descriptors::close);
        return Verdict::error(if anywhere { Errno::NFILE } else { Errno::NXIO });
    };
    // If the program named a slot, the answer is that slot's number.
    let second = if anywhere { pipe.slot } else { pipe.slot.wrapping_add(1) };
    let slot_of = |index: u32, found: i32| if anywhere { found } else { index as i32 - 1 };
    let read_slot = match files.install(ends[0], pipe.slot) {
        Ok(found) => slot_of(pipe.slot, found),
        Err(error) => {
            descriptors::close(ends[1]);
            return Verdict::error(error);
        }
    };
    let written = match files.install(ends[1], second) {
        Ok(found) => {
            let write_slot = slot_of(second, found);
            match pipe.write_back([read_slot, write_slot]) {
                Ok(()) => return Verdict::Done(0),
                Err(error) => {
                    // Remove the files in this order: the search for free slots begins at the slot that was freed last.
                    let _ = files.remove(read_slot as u32);
                    let _ = files.remove(write_slot as u32);
                    return Verdict::error(error);
                }
            }
        }
        Err(error) => error,
    };
    let _ = files.remove(read_slot as u32);
    Verdict::error(written)
}

/// Registers the file whose number is at `address` in a free slot. The slot's index replaces the number at `address`.
fn install_anywhere(files: &mut Files, address: u64) -> Result<(), Errno> {
    let fd: i32 = user_read(address)?;
    let slot = files.install(duplicate_to_register(fd)?, IORING_FILE_INDEX_ALLOC as u32)?;
    user_write(address, &slot).inspect_err(|_| {
        let _ = files.remove(slot as u32);
    })
}

/// Carries out an IORING_REGISTER_FILES_UPDATE. Returns the number of files that were replaced.
pub(crate) fn update_files(guard: &mut RingGuard, update: Update) -> Result<u32, Errno> {
    let end = update.end()?;
    let ring = guard.ring();
    let files = guard.files.as_mut().ok_or(Errno::NXIO)?;
    if end > files.slot_count() {
        return Err(Errno::INVAL);
    }
    let answer = files.update(ring, &update);
    guard.forget_before(update.first..end);
    guard.post_tags();
    answer
}
