//! aio(7) of glibc, which is implemented with threads. Completions are found by aio_suspend(3) and aio_error(3).

use super::{Transfer, Transfers};
use crate::outcome::{checked, Outcome};

/// Control blocks, one for each transfer in flight.
#[derive(Default)]
pub struct PosixAio {
    /// Boxed: glibc keeps their addresses.
    blocks: Vec<(u64, Box<libc::aiocb>)>,
}

impl Transfers for PosixAio {
    fn begin(&mut self, slot: u64, what: Transfer) -> Outcome<()> {
        // SAFETY: integers and pointers, for which zeroes are values; no notification (SIGEV_NONE) is set below.
        let mut block: Box<libc::aiocb> = Box::new(unsafe { std::mem::zeroed() });
        block.aio_fildes = what.fd;
        block.aio_buf = what.address.cast();
        block.aio_nbytes = what.bytes as usize;
        block.aio_offset = what.offset.unwrap_or(0) as i64;
        block.aio_sigevent.sigev_notify = libc::SIGEV_NONE;
        // SAFETY: the block lives until aio_return was called, and the caller keeps its memory for as long.
        let answer = unsafe {
            match what.write {
                true => libc::aio_write(&mut *block),
                false => libc::aio_read(&mut *block),
            }
        };
        checked(if what.write { "aio_write" } else { "aio_read" }, answer)?;
        self.blocks.push((slot, block));
        Ok(())
    }

    fn flush(&mut self) -> Outcome<()> {
        Ok(())
    }

    fn wait(&mut self, ended: &mut Vec<(u64, i64)>) -> Outcome<()> {
        let list: Vec<*const libc::aiocb> = self.blocks.iter().map(|(_, block)| &raw const **block).collect();
        // SAFETY: blocks in flight, all alive.
        let answer = unsafe { libc::aio_suspend(list.as_ptr(), list.len() as i32, std::ptr::null()) };
        checked("aio_suspend", answer)?;
        self.blocks.retain_mut(|(slot, block)| {
            // SAFETY: a block that aio_read or aio_write took.
            match unsafe { libc::aio_error(&**block) } {
                libc::EINPROGRESS => true,
                error => {
                    // SAFETY: such a block at its end, once.
                    let result = unsafe { libc::aio_return(&mut **block) };
                    ended.push((*slot, if error == 0 { result as i64 } else { -i64::from(error) }));
                    false
                }
            }
        });
        Ok(())
    }
}
