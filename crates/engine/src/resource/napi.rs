//! Busy polling of network queues: io_uring_register(2), IORING_REGISTER_NAPI. What the program sets is kept and told back;
//! waits here never poll a queue, which is what the kernel's do for sockets without one (loopback, Unix). Source:
//! io_uring/napi.c.

use crate::os::{user_read, user_write};
use crate::Errno;

const REGISTER: u8 = 0;
const TRACKING_DYNAMIC: u32 = 0;
const TRACKING_STATIC: u32 = 1;
const TRACKING_INACTIVE: u32 = 255;

/// A ring's settings.
#[derive(Debug, Clone, Copy)]
pub struct Napi {
    timeout_us: u32,
    prefer: bool,
    tracking: u32,
}

impl Default for Napi {
    fn default() -> Napi {
        Napi { timeout_us: 0, prefer: false, tracking: TRACKING_INACTIVE }
    }
}

impl Napi {
    /// `struct io_uring_napi`: timeout in microseconds; preference, operation, padding; parameter, padding. Single queues
    /// (STATIC_ADD_ID, STATIC_DEL_ID) are `EINVAL`, as ids that no queue has.
    pub fn register(&mut self, arg: u64) -> Result<u32, Errno> {
        let [head, tail]: [u64; 2] = user_read(arg)?;
        let [_, _, _, _, prefer, operation, padding @ ..] = head.to_le_bytes();
        if padding != [0; 2] || tail >> 32 != 0 {
            return Err(Errno::INVAL);
        }
        user_write(arg, &self.as_words())?;
        let tracking = tail as u32;
        if operation != REGISTER || !matches!(tracking, TRACKING_DYNAMIC | TRACKING_STATIC) {
            return Err(Errno::INVAL);
        }
        *self = Napi { timeout_us: head as u32, prefer: prefer != 0, tracking };
        Ok(0)
    }

    /// Back to no polling; tells what was set, but for the tracking, where it is asked.
    pub fn unregister(&mut self, arg: u64, count: u32) -> Result<u32, Errno> {
        if count != 1 {
            return Err(Errno::INVAL);
        }
        if arg != 0 {
            user_write(arg, &Napi { tracking: 0, ..*self }.as_words())?;
        }
        *self = Napi::default();
        Ok(0)
    }

    fn as_words(self) -> [u64; 2] {
        [u64::from(self.timeout_us) | u64::from(self.prefer) << 32, self.tracking.into()]
    }
}
