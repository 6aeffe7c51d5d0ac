//! Arguments that describe resources to register or to replace: registered files and buffers, with their tags.

use crate::os::user_read;
use crate::Errno;
use anyring_abi::*;

/// Resources to register: the address of their descriptions and, if not 0, the address of their tags.
pub struct Table {
    pub address: u64,
    pub count: u32,
    pub tags: u64,
}

/// Resources to replace, from slot `first` on.
pub struct Update {
    pub first: u32,
    pub table: Table,
}

impl Table {
    /// Reads a `struct io_uring_rsrc_register`: count, flags, padding, addresses of data and tags. Also returns
    /// whether `IORING_RSRC_REGISTER_SPARSE` is set, so that all slots begin empty.
    pub fn read(arg: u64, size: u32) -> Result<(Table, bool), Errno> {
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

    /// Reads the tag of the `index`th resource; 0 for none. Each tag is read in its turn. If a tag cannot be read,
    /// the resources before it stay registered.
    pub fn tag(&self, index: u32) -> Result<u64, Errno> {
        match self.tags {
            0 => Ok(0),
            tags => user_read(tags.wrapping_add(8 * u64::from(index))),
        }
    }

    /// Reads the `index`th descriptor of a table of files. -1 if all slots begin empty.
    pub fn fd(&self, index: u32) -> Result<i32, Errno> {
        match self.address {
            0 => Ok(-1),
            _ => user_read(self.fd_address(index)),
        }
    }

    /// Returns the address of the `index`th descriptor.
    pub fn fd_address(&self, index: u32) -> u64 {
        self.address.wrapping_add(4 * u64::from(index))
    }
}

impl Update {
    /// Returns the slot after the last. The caller must compare it with the number of slots before it allocates
    /// memory for the table, since the program chooses the count.
    pub fn end(&self) -> Result<u32, Errno> {
        self.first.checked_add(self.table.count).ok_or(Errno::OVERFLOW)
    }

    /// Reads a `struct io_uring_rsrc_update2`: first slot, padding, addresses of data and tags, count, padding.
    pub fn read(arg: u64, size: u32) -> Result<Update, Errno> {
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

    /// Reads a `struct io_uring_files_update`: first slot, padding, address of the descriptors.
    pub fn read_short(arg: u64, count: u32) -> Result<Update, Errno> {
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
