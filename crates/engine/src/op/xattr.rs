//! FSETXATTR, SETXATTR, FGETXATTR, GETXATTR: extended attributes of a file.
//!
//! The submitting thread makes the calls, with its credentials and working directory, as for path operations (see
//! `op/fs.rs`). Names, paths and values to set are copied when the SQE is read.

use super::fs::Path;
use super::{call, reject_fixed_file, Context, OnRing, Operation, Verdict};
use crate::os::user_read_slice;
use crate::Errno;
use anyring_abi::{Opcode, Sqe};

/// `XATTR_NAME_MAX` of limits.h: the longest name, without its terminating zero.
const NAME_BYTES_MAX: usize = 255;
/// `XATTR_SIZE_MAX` of limits.h.
const VALUE_BYTES_MAX: usize = 65_536;

/// An operation of this family, with its arguments.
#[derive(Debug)]
pub struct Xattr {
    /// The path; `None` for the file that the SQE names.
    path: Option<Path>,
    name: Path,
    access: Access,
}

#[derive(Debug)]
enum Access {
    /// Copies the value to the program: address and room in bytes.
    Get(u64, u32),
    /// Sets the attribute to this copy, with `XATTR_CREATE` or `XATTR_REPLACE`.
    Set(Box<[u8]>, u32),
}

impl Xattr {
    /// Reads the SQE: `addr` has the name, `off` (`addr2`) the value, `len` its size, `addr3` the path. Source:
    /// io_uring_enter(2), IORING_OP_SETXATTR. The order of the checks is that of io_uring/xattr.c.
    pub fn prep(opcode: Opcode, sqe: &Sqe) -> Result<Xattr, Errno> {
        let by_path = matches!(opcode, Opcode::Setxattr | Opcode::Getxattr);
        if by_path {
            reject_fixed_file(sqe)?;
        }
        let gets = matches!(opcode, Opcode::Fgetxattr | Opcode::Getxattr);
        if gets && sqe.op_flags != 0 {
            return Err(Errno::INVAL);
        }
        if !gets && sqe.op_flags & !(libc::XATTR_CREATE | libc::XATTR_REPLACE) as u32 != 0 {
            return Err(Errno::INVAL);
        }
        let name = import_name(sqe.addr)?;
        let access = match gets {
            true => Access::Get(sqe.off, sqe.len),
            false => Access::Set(value(sqe.off, sqe.len)?, sqe.op_flags),
        };
        let path = by_path.then(|| Path::import(sqe.addr3, false)).transpose()?;
        Ok(Xattr { path, name, access })
    }

    /// Calls `place` for the memory of a value to read, as [`super::Op::each_part`] says.
    pub fn each_part(&mut self, place: &mut dyn FnMut(&'static str, usize, usize) -> usize) {
        if let Access::Get(address, room) = &mut self.access {
            *address = place("value", *address as usize, *room as usize) as u64;
        }
    }
}

impl Operation for Xattr {
    fn issue(&mut self, context: Context) -> Verdict {
        let name = self.name.address();
        let on = self.path.as_ref().map_or(context.fd as usize, Path::address);
        let by_path = self.path.is_some();
        let answer = match &self.access {
            Access::Get(address, room) => {
                let number = if by_path { libc::SYS_getxattr } else { libc::SYS_fgetxattr };
                call(number, [on, name, *address as usize, *room as usize, 0, 0])
            }
            Access::Set(value, flags) => {
                let number = if by_path { libc::SYS_setxattr } else { libc::SYS_fsetxattr };
                call(number, [on, name, value.as_ptr() as usize, value.len(), *flags as usize, 0])
            }
        };
        match by_path {
            true => Verdict::uncounted(answer),
            false => Verdict::uncounted_on(context.fd, answer),
        }
    }

    fn issue_on(&mut self, _ring: &mut impl OnRing, _fd: i32) -> Verdict {
        Verdict::NeedsCaller
    }
}

/// Copies an attribute's name. Fails with ERANGE if the name is empty or too long.
fn import_name(address: u64) -> Result<Path, Errno> {
    match Path::import_bounded(address, NAME_BYTES_MAX + 1) {
        Ok(name) if !name.is_empty() => Ok(name),
        Ok(_) | Err(Errno::NAMETOOLONG) => Err(Errno::RANGE),
        Err(error) => Err(error),
    }
}

/// Copies the value to set.
fn value(address: u64, bytes: u32) -> Result<Box<[u8]>, Errno> {
    if bytes as usize > VALUE_BYTES_MAX {
        return Err(Errno::TOOBIG);
    }
    let mut value = crate::alloc::filled(0u8, bytes as usize)?.into_boxed_slice();
    user_read_slice(address, &mut value)?;
    Ok(value)
}
