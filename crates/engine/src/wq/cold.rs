//! Reads that missed the page cache. An attempt with RWF_NOWAIT does not wait for the pages, but usually makes the
//! kernel read them (`filemap_get_pages` in mm/filemap.c). Then no thread has to make the transfer, but only to wait
//! for its end.
//!
//! One thread waits for several transfers in order, and finds most of them done when the first is. A thread for each
//! transfer would only cost two more switches per transfer.
//!
//! Not every kernel reads pages for an attempt. So the first misses of a process are trials, which find out.

use crate::op::{Op, Verdict};
use crate::os;
use crate::wq::Approach;
use core::sync::atomic::{AtomicU32, Ordering};

/// Number of workers that wait for transfers begun by attempts. There are several, so that a slow transfer does not
/// delay the completion of the others. Each further worker costs more switches. The measure was fio's cold reads of 4
/// KiB on two CPUs. With 1, 2, 4 and 8 workers they reached 0.85, 0.80, 0.6 and 0.5 of the kernel's rate.
static MOST_WORKERS: AtomicU32 = AtomicU32::new(LEAST_WORKERS);
const LEAST_WORKERS: u32 = 2;

pub fn most_workers() -> u32 {
    MOST_WORKERS.load(Ordering::Relaxed)
}

/// Number of misses that are trials. If none of them succeeds, attempts begin no transfers on this kernel.
const TRIALS: u32 = 8;
/// The value of `TRIED` once a trial has succeeded.
const KNOWN: u32 = u32::MAX;

/// Number of trials so far, or [`KNOWN`].
static TRIED: AtomicU32 = AtomicU32::new(0);

/// Chooses how a worker makes a transfer whose attempt would have waited.
pub fn approach_to_missed(op: &Op) -> Approach {
    if op.rw().is_none_or(|rw| rw.reads_at().is_none()) {
        return Approach::Plain;
    }
    let one_more = |tried| (tried < TRIALS).then(|| tried + 1);
    // Relaxed: with any value, the call that follows is right.
    match TRIED.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more) {
        Ok(_) => Approach::Trial,
        Err(KNOWN) => Approach::Started,
        Err(_) => Approach::Plain,
    }
}

/// Retries a missed read for some milliseconds. `None` if the data has not come by then.
pub fn attempt_for_a_while(mut attempt: impl FnMut() -> Verdict) -> Option<Verdict> {
    const FIRST_PAUSE_NS: u64 = 50_000;
    const LAST_PAUSE_NS: u64 = 15_000_000;
    let mut pause_ns = FIRST_PAUSE_NS;
    while pause_ns < LAST_PAUSE_NS {
        os::pause(pause_ns);
        match attempt() {
            Verdict::WouldBlock(_) => pause_ns *= 2,
            Verdict::NeedsWorker(_) | Verdict::NeedsWorkerWhenReady(_) => return None,
            verdict => {
                MOST_WORKERS.store((os::usable_cpus() / 2).max(LEAST_WORKERS), Ordering::Relaxed);
                TRIED.store(KNOWN, Ordering::Relaxed);
                return Some(verdict);
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::op::rw::Rw;

    #[test]
    fn trials_end_with_the_first_that_comes() {
        let mut attempts = 0;
        let come = attempt_for_a_while(|| {
            attempts += 1;
            if attempts < 3 {
                Verdict::WouldBlock(crate::op::Direction::Read)
            } else {
                Verdict::Done(7)
            }
        });
        assert_eq!((come, attempts), (Some(Verdict::Done(7)), 3));
        assert!(TRIED.load(Ordering::Relaxed) == KNOWN && most_workers() >= LEAST_WORKERS);
        assert_eq!(attempt_for_a_while(|| Verdict::WouldBlock(crate::op::Direction::Read)), None);
        assert_eq!(approach_to_missed(&Op::default()), Approach::Plain, "it is no read");
        let sqe = anyring_abi::Sqe { addr: 0x10000, len: 4096, ..Default::default() };
        let read = Op::Rw(Rw::prep(anyring_abi::Opcode::Read, &sqe).expect("a read"));
        assert_eq!(approach_to_missed(&read), Approach::Started);
    }
}
