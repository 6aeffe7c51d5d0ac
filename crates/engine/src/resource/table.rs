//! Arguments that describe resources to register or to replace: registered files and buffers, with their tags.

use crate::alloc;
use crate::os::{user_read, user_read_slice};
use crate::Errno;
use anyring_abi::*;

/// Resources to register: where their descriptions are and, if not 0, their tags.
pub(crate) struct Table {
    pub(crate) address: u64,
    pub(crate) count: u32,
    pub(crate) tags: u64,
}

/// Resources to replace, from slot `first` on.
pub(crate) struct Update {
    pub(crate) first: u32,
    pub(crate) table: Table,
}

impl Table {
    /// `struct io_uring_rsrc_register`: count, flags, padding, addresses of data and tags. With
    /// `IORING_RSRC_REGISTER_SPARSE` all slots are to be empty.
    pub(crate) fn read(arg: u64, size: u32) -> Result<(Table, bool), Errno> {
        if size != 32 {
            return Err(Errno::INVAL);
        }
        let [head, padding, address, tags]: [u64; 4] = user_read(arg)?;
        let (count, flags) = (head as u32, (head >> 32) as u32);
        let sparse = flags == IORING_RSRC_REGISTER_SPARSE;
        if count == 0 || padding != 0 || flags & !IORING_RSRC_REGISTER_SPARSE != 0 || (sparse && address != 0) {
            return Err(Errno::INVAL);
        }
        Ok((Table { address, count, tags }, sparse))
    }

    /// The tags, or none.
    pub(crate) fn tags(&self) -> Result<Vec<u64>, Errno> {
        if self.tags == 0 {
            return Ok(Vec::new());
        }
        let mut tags = alloc::filled(0u64, self.count as usize)?;
        user_read_slice(self.tags, &mut tags)?;
        Ok(tags)
    }

    /// The descriptors of a table of files, -1 for each slot of one that is `sparse`.
    pub(crate) fn fds_or_empty(&self, sparse: bool) -> Result<Vec<i32>, Errno> {
        match sparse {
            true => alloc::filled(-1, self.count as usize),
            false => self.fds(),
        }
    }

    /// The descriptors of a table of files.
    pub(crate) fn fds(&self) -> Result<Vec<i32>, Errno> {
        let mut fds = alloc::filled(0i32, self.count as usize)?;
        user_read_slice(self.address, &mut fds)?;
        Ok(fds)
    }
}

impl Update {
    /// The slot behind the last. To be compared with the slots that there are before memory is had for the table: the count
    /// is the program's.
    pub(crate) fn end(&self) -> Result<u32, Errno> {
        self.first.checked_add(self.table.count).ok_or(Errno::OVERFLOW)
    }

    /// `struct io_uring_rsrc_update2`: first slot, padding, addresses of data and tags, count, padding.
    pub(crate) fn read(arg: u64, size: u32) -> Result<Update, Errno> {
        if size != 32 {
            return Err(Errno::INVAL);
        }
        let [head, address, tags, tail]: [u64; 4] = user_read(arg)?;
        let (first, count) = (head as u32, tail as u32);
        if head >> 32 != 0 || tail >> 32 != 0 || count == 0 {
            return Err(Errno::INVAL);
        }
        Ok(Update { first, table: Table { address, count, tags } })
    }

    /// `struct io_uring_files_update`: first slot, padding, address of the descriptors.
    pub(crate) fn read_short(arg: u64, count: u32) -> Result<Update, Errno> {
        if count == 0 {
            return Err(Errno::INVAL);
        }
        let [head, address]: [u64; 2] = user_read(arg)?;
        if head >> 32 != 0 {
            return Err(Errno::INVAL);
        }
        Ok(Update { first: head as u32, table: Table { address, count, tags: 0 } })
    }
}
