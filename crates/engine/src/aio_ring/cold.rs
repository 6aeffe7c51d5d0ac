//! Finds out whether a read has to wait for a device, without touching the device. An attempt with RWF_NOWAIT that
//! misses the page cache starts the transfer. To start it takes longer than anything else in io_submit(2), and may
//! wait for room in the device's queue. cachestat(2), which exists since Linux 6.5, only checks.

use crate::op::rw::Rw;
use crate::op::{call, Operation};
use crate::Errno;

/// cachestat(2).
const SYS_CACHESTAT: i64 = 451;
/// Number of successive reads found in the page cache after which the context stops calling cachestat(2).
const HITS: u32 = 16;

/// A context's record of page cache misses. While reads hit the cache, calling cachestat(2) first costs more than
/// it saves.
#[derive(Default)]
pub struct Cold {
    /// Number of reads before which cachestat(2) is still to be called.
    asks: u32,
    /// True if cachestat(2) gives no answer: an older kernel, a filter, or a file that belongs to another user.
    silent: bool,
}

impl Cold {
    /// Records that an attempt missed the page cache.
    pub fn missed(&mut self) {
        if !self.silent {
            self.asks = HITS;
        }
    }

    /// True if `rw`, on `fd`, is a read that would have to wait.
    pub fn would_miss(&mut self, rw: &Rw, fd: i32) -> bool {
        let Some(offset) = rw.reads_at().filter(|_| self.asks != 0 && rw.waits_for().is_some()) else {
            return false;
        };
        let bytes = rw.ranges().iter().map(|range| range[1] as u64).sum();
        let Ok(missing) = misses(fd, offset, bytes) else {
            *self = Cold { asks: 0, silent: true };
            return false;
        };
        self.asks = if missing { HITS } else { self.asks - 1 };
        missing
    }
}

/// True if some of these bytes are not in the page cache. Bytes after the end of the file never are.
fn misses(fd: i32, offset: u64, bytes: u64) -> Result<bool, Errno> {
    const PAGE: u64 = 4096;
    if bytes == 0 {
        return Ok(false);
    }
    let range = [offset, bytes];
    let mut counts = [0u64; 5]; // struct cachestat: the first word is the number of cached pages
    call(SYS_CACHESTAT, [fd as usize, range.as_ptr() as usize, counts.as_mut_ptr() as usize, 0, 0, 0])?;
    Ok(counts[0] < (offset + bytes).div_ceil(PAGE) - offset / PAGE)
}
