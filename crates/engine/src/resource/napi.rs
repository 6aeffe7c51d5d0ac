//! Busy polling of network queues: io_uring_register(2), IORING_REGISTER_NAPI. The engine keeps the program's
//! settings and reports them back. The engine's waits never poll a queue. The kernel's do not either for sockets
//! without a queue (loopback, Unix). Source: io_uring/napi.c.

use crate::alloc;
use crate::os::{user_read, user_write};
use crate::Errno;
use anyring_abi::*;
use std::collections::BTreeSet;

/// The last number of a processor. Higher numbers are those of queues. `MIN_NAPI_ID` is one more than the number of
/// processors that a kernel is built for, 8,192 at most.
const LAST_PROCESSOR: u32 = 8192;

/// A ring's settings.
#[derive(Debug)]
pub struct Napi {
    timeout_us: u32,
    prefer: bool,
    tracking: u32,
    /// The queues that the program named, with static tracking.
    queues: BTreeSet<u32>,
}

impl Default for Napi {
    fn default() -> Napi {
        Napi { timeout_us: 0, prefer: false, tracking: IO_URING_NAPI_TRACKING_INACTIVE, queues: BTreeSet::new() }
    }
}

impl Napi {
    /// Registers the settings of `struct io_uring_napi`, which are the timeout in microseconds, preference,
    /// operation, padding, parameter, padding.
    pub fn register(&mut self, arg: u64) -> Result<u32, Errno> {
        let [head, tail]: [u64; 2] = user_read(arg)?;
        let [_, _, _, _, prefer, operation, padding @ ..] = head.to_le_bytes();
        if padding != [0; 2] || tail >> 32 != 0 {
            return Err(Errno::INVAL);
        }
        alloc::reserve()?;
        user_write(arg, &self.as_words(self.tracking))?;
        let parameter = tail as u32;
        match operation {
            IO_URING_NAPI_REGISTER_OP => match parameter {
                IO_URING_NAPI_TRACKING_DYNAMIC | IO_URING_NAPI_TRACKING_STATIC => {
                    let (timeout_us, prefer) = (head as u32, prefer != 0);
                    *self = Napi { timeout_us, prefer, tracking: parameter, queues: BTreeSet::new() };
                    Ok(0)
                }
                _ => Err(Errno::INVAL),
            },
            IO_URING_NAPI_STATIC_ADD_ID if self.accepts_queue(parameter) => match self.queues.insert(parameter) {
                true => Ok(0),
                false => Err(Errno::EXIST),
            },
            IO_URING_NAPI_STATIC_DEL_ID if self.accepts_queue(parameter) => match self.queues.remove(&parameter) {
                true => Ok(0),
                false => Err(Errno::NOENT),
            },
            _ => Err(Errno::INVAL),
        }
    }

    /// True if the program may name a queue now, and `queue` can be one. Whether that queue exists is not checked.
    fn accepts_queue(&self, queue: u32) -> bool {
        self.tracking == IO_URING_NAPI_TRACKING_STATIC && queue > LAST_PROCESSOR
    }

    /// Turns polling off. Reports the settings so far, except the tracking, if the program asks for them.
    pub fn unregister(&mut self, arg: u64, count: u32) -> Result<u32, Errno> {
        if count != 1 {
            return Err(Errno::INVAL);
        }
        if arg != 0 {
            user_write(arg, &self.as_words(0))?;
        }
        *self = Napi::default();
        Ok(0)
    }

    fn as_words(&self, tracking: u32) -> [u64; 2] {
        [u64::from(self.timeout_us) | u64::from(self.prefer) << 32, tracking.into()]
    }
}
