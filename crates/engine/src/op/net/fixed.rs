//! The registered buffer of a send or receive (`IORING_RECVSEND_FIXED_BUF`): of SEND_ZC and SENDMSG_ZC, and from Linux
//! 7.3 on of SEND and RECV, too.

use super::socket_option;
use super::transfer::{Data, Transfer};
use super::zero_copy::ZeroCopy;
use super::Sqe;
use crate::os::version;
use crate::resource::buffers::{Buffer, Buffers};
use crate::Errno;
use anyring_abi::{IORING_RECVSEND_FIXED_BUF, MAX_RW_COUNT};
use std::sync::Arc;

/// The additional state of a transfer with a registered buffer, or without a copy.
#[derive(Debug)]
pub(super) struct Special {
    fixed: Option<Fixed>,
    /// The state of SEND_ZC and SENDMSG_ZC.
    pub(super) zero_copy: Option<ZeroCopy>,
}

impl Special {
    /// Returns what the SQE asks for. `None` for a transfer that needs no such state.
    #[inline]
    pub(super) fn of(sqe: &Sqe, zero_copy: bool) -> Option<Box<Special>> {
        let fixed = u32::from(sqe.ioprio) & IORING_RECVSEND_FIXED_BUF != 0;
        (fixed || zero_copy).then(|| {
            let fixed = fixed.then_some(Fixed { index: Some(sqe.buf_index), buffer: None });
            Box::new(Special { fixed, zero_copy: zero_copy.then(|| ZeroCopy::new(sqe)) })
        })
    }
}

/// The registered buffer that must contain a transfer's data.
#[derive(Debug)]
struct Fixed {
    /// The buffer's index; `None` once it was found.
    index: Option<u16>,
    /// The buffer, which stays registered for as long as the request needs it.
    buffer: Option<Arc<Buffer>>,
}

impl Fixed {
    /// Finds the buffer once. Source: `io_import_reg_vec` in io_uring/rsrc.c, which refuses empty ranges of a `vector`.
    fn find(&mut self, buffers: Option<&Buffers>, ranges: &[[usize; 2]], vector: bool) -> Result<(), Errno> {
        let Some(index) = self.index else { return Ok(()) };
        let buffers = buffers.ok_or(Errno::FAULT)?;
        let mut buffer = buffers.get(index)?;
        let mut total = 0usize;
        for [address, bytes] in ranges {
            if vector && *bytes == 0 {
                return Err(Errno::FAULT);
            }
            buffer = buffers.find(index, *address as u64, *bytes as u64)?;
            total = total.checked_add(*bytes).ok_or(Errno::OVERFLOW)?;
        }
        if total > MAX_RW_COUNT {
            return Err(Errno::INVAL);
        }
        self.buffer = Some(buffer.clone());
        self.index = None;
        Ok(())
    }
}

impl Transfer {
    /// Checks the socket of a zero-copy send, and finds the registered buffer. The order of the checks is that of
    /// io_uring/net.c.
    #[inline]
    pub(crate) fn find_buffer(&mut self, fd: i32, buffers: Option<&Buffers>) -> Result<(), Errno> {
        match self.special {
            None => Ok(()),
            Some(_) => self.find_buffer_of_special(fd, buffers),
        }
    }

    fn find_buffer_of_special(&mut self, fd: i32, buffers: Option<&Buffers>) -> Result<(), Errno> {
        let polls_first = self.will_poll_first();
        let (data, Some(special)) = (&self.data, &mut self.special) else { return Ok(()) };
        let Special { fixed, zero_copy } = &mut **special;
        let mut find = |ranges: &[[usize; 2]], vector| match fixed {
            Some(fixed) => fixed.find(buffers, ranges, vector),
            None => Ok(()),
        };
        match (zero_copy, data) {
            (None, _) if polls_first => Ok(()), // the kernel looks for it after the wait
            (None, Data::Buffer { address, bytes, .. }) => {
                socket_option(fd, libc::SO_TYPE)?;
                find(&[[*address, *bytes]], false)
            }
            (None, Data::Message(_)) => Ok(()), // has none
            (Some(zero_copy), Data::Message(message)) => {
                if version::answers_as_7_3() {
                    zero_copy.check_socket(fd)?;
                }
                find(&message.iovecs, true)?;
                zero_copy.check_socket(fd)
            }
            (Some(zero_copy), Data::Buffer { address, bytes, .. }) => {
                zero_copy.check_socket(fd)?;
                find(&[[*address, *bytes]], false)
            }
        }
    }
}
