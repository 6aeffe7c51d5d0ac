//! Whether a read has to wait for a device, found out without touching the device. An attempt with RWF_NOWAIT that misses
//! the page cache starts the transfer, which takes longer than anything else that io_submit(2) does, and may wait for room
//! in the device's queue. cachestat(2) looks only; it is there since Linux 6.5.

use crate::op::rw::Rw;
use crate::op::{call, Operation};
use crate::Errno;

/// cachestat(2).
const SYS_CACHESTAT: i64 = 451;
/// How many reads in a row may be found in the page cache before nobody asks any more.
const HITS: u32 = 16;

/// What a context knows of its reads: where they hit the page cache, asking first would cost more than it saves.
#[derive(Default)]
pub struct Cold {
    /// How many more reads to ask about.
    asks: u32,
    /// There is no answer: an older kernel, a filter, or a file that is another user's.
    silent: bool,
}

impl Cold {
    /// An attempt missed the page cache.
    pub fn missed(&mut self) {
        if !self.silent {
            self.asks = HITS;
        }
    }

    /// Whether `rw`, of `fd`, is a read that would have to wait.
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

/// Whether some of these bytes are not in the page cache. Bytes behind the end of the file never are.
fn misses(fd: i32, offset: u64, bytes: u64) -> Result<bool, Errno> {
    const PAGE: u64 = 4096;
    if bytes == 0 {
        return Ok(false);
    }
    let range = [offset, bytes];
    let mut counts = [0u64; 5]; // struct cachestat: the first is the pages that are there
    call(SYS_CACHESTAT, [fd as usize, range.as_ptr() as usize, counts.as_mut_ptr() as usize, 0, 0, 0])?;
    Ok(counts[0] < (offset + bytes).div_ceil(PAGE) - offset / PAGE)
}
