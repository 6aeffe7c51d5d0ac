//! Reads of files that do not support RWF_NOWAIT: overlayfs, most file systems in user space. Only the plain call
//! shows whether such a read waits for a device. If the page cache has the data, waking a thread takes several times
//! as long as the read. So one worker makes all such reads one after the other, as io-wq's worker does while it does
//! not sleep.
//!
//! The scheduler notifies io-wq when a worker sleeps, but it does not notify this pool. So another thread watches: it
//! sleeps for a while, again and again. If no job was taken during such a sleep although some are queued, the worker
//! sleeps in its call. From then on each read gets a thread, until several reads in a row have returned without
//! sleeping.
//!
//! This state is part of the pool, under the pool's lock.

use super::{Need, POOL};
use crate::mutation::{mutated, Mutation};
use crate::os::{self, Clock};
use crate::wq::Job;
use std::sync::Arc;

/// Number of reads that one worker makes before it looks for other work.
const TOGETHER: u32 = 64;
/// Number of queued jobs for which another worker pays off, if there is a CPU for it.
const SHARE: usize = 8;
/// Number of reads in a row that must not sleep before one worker makes them all again.
const CALM: u32 = 8;
/// A call that takes longer than this may have slept, in nanoseconds.
const SLOW_NS: u64 = 30_000;
/// The first pause of the watching thread, in nanoseconds. It lengthens up to `LAST_PAUSE_NS`. A sleeping worker is
/// noticed that late.
const FIRST_PAUSE_NS: u64 = 100_000;
const LAST_PAUSE_NS: u64 = 1_000_000;
/// Number of pauses in a row, each with nothing queued at its end, after which the watch stops.
const QUIET_PAUSES: u32 = 4;

/// The state of the watch for a sleeping worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Monitor {
    Nobody,
    /// A watching thread was asked for, and has not begun yet.
    Wanted,
    Somebody,
}

/// The pool's statistics of reads of files that do not support RWF_NOWAIT.
pub struct Quick {
    /// Number of workers that make such reads.
    running: u32,
    /// Counter of jobs of any kind that were taken.
    started: u32,
    /// Number of reads that must still return without having slept before one worker makes all reads.
    unsettled: u32,
    /// Number of workers that may make such reads while they do not sleep; 0 before it was computed.
    most: u32,
    monitor: Monitor,
}

impl Quick {
    /// The value when nothing is queued or running.
    pub const NONE: Quick = Quick { running: 0, started: 0, unsettled: 0, most: 0, monitor: Monitor::Nobody };

    /// Counts a worker that begins to make such reads.
    pub fn begin(&mut self) {
        if self.most == 0 {
            self.most = (os::usable_cpus() / 2).max(1);
        }
        self.running += 1;
    }

    /// Counts that a worker makes no more such reads.
    pub fn end(&mut self) {
        self.running -= 1;
    }

    /// Counts that a job of any kind was taken.
    pub fn record_started(&mut self) {
        self.started = self.started.wrapping_add(1);
    }

    /// Records that a read has returned, and whether it slept.
    pub fn record_made(&mut self, slept: bool) {
        self.unsettled = if slept { CALM } else { self.unsettled.saturating_sub(1) };
    }

    /// True if a read gets a thread although a worker is awake. That is so if some reads have slept, or if the `queued`
    /// reads are enough work for another worker.
    pub fn wants_thread(&self, queued: usize) -> bool {
        self.unsettled != 0 || (self.running < self.most && queued > SHARE * self.running as usize)
    }

    /// Claims the watch. True if the caller must start a watching thread, since queued jobs would wait unnoticed if
    /// the worker slept.
    pub fn request_monitor(&mut self) -> bool {
        let wanted = self.running != 0 && self.monitor == Monitor::Nobody && !mutated(Mutation::NobodyWatches);
        if wanted {
            self.monitor = Monitor::Wanted;
        }
        wanted
    }

    /// Takes the watch over. True if the calling thread must watch.
    pub fn claim_monitor(&mut self) -> bool {
        if self.monitor != Monitor::Wanted {
            return false;
        }
        let any = self.running != 0; // false if the worker was this thread, or has finished
        self.monitor = if any { Monitor::Somebody } else { Monitor::Nobody };
        any
    }
}

/// Watches until a worker sleeps while jobs are queued, or nothing is left to watch. The caller then looks for jobs.
pub(super) fn monitor() {
    let (mut pause_ns, mut quiet, mut seen) = (FIRST_PAUSE_NS, 0, None);
    loop {
        {
            let mut pool = POOL.lock().expect("a worker does not interrupt itself");
            let is_queued = pool.next().is_some();
            let sleeps = is_queued && seen == Some(pool.quick.started);
            quiet = if is_queued { 0 } else { quiet + 1 };
            if sleeps {
                pool.quick.unsettled = CALM;
            }
            if sleeps || quiet > QUIET_PAUSES {
                pool.quick.monitor = Monitor::Nobody;
                return;
            }
            seen = Some(pool.quick.started);
        }
        os::pause(pause_ns);
        pause_ns = (pause_ns * 2).min(LAST_PAUSE_NS);
    }
}

/// Makes a read, and then reads queued for the same ring. Each is delivered at once, since the next read may sleep.
pub(super) fn run(first: Arc<Job>) {
    let mut sleeps = Sleeps::new();
    let mut next = Some(first);
    let mut left = TOGETHER;
    while let Some(job) = next {
        let begun_ns = Clock::Monotonic.now_ns();
        let made = super::make(&job);
        let slept = sleeps.slept_since(begun_ns);
        if made {
            job.ring.deliver(vec![job.clone()]);
        }
        left -= 1;
        next = go_on(&job, slept, left != 0);
    }
}

/// Records whether a read slept. Returns the next read, if the caller must make it.
fn go_on(done: &Job, slept: bool, more: bool) -> Option<Arc<Job>> {
    let mut pool = POOL.lock()?;
    pool.quick.record_made(slept);
    let next = if more { pool.take_another(done) } else { None };
    // If the pool has no threads, the thread that queues a job makes it.
    let need = if next.is_some() && pool.threads != 0 { Need::of(&mut pool) } else { Need::Nothing };
    drop(pool);
    need.satisfy();
    next
}

/// Detects whether calls of the thread that made this value slept.
struct Sleeps {
    switches: u64,
}

impl Sleeps {
    fn new() -> Sleeps {
        Sleeps { switches: switches() }
    }

    /// True if a call that began at `begun_ns` has slept. Being preempted does not count as sleep.
    fn slept_since(&mut self, begun_ns: u64) -> bool {
        if Clock::Monotonic.now_ns() - begun_ns < SLOW_NS {
            return false;
        }
        let switches = switches();
        switches != core::mem::replace(&mut self.switches, switches)
    }
}

/// Returns the number of times that the calling thread has given up its CPU voluntarily.
fn switches() -> u64 {
    const RU_NVCSW: usize = 16;
    let mut usage = [0u64; 18]; // struct rusage
    let args = [libc::RUSAGE_THREAD as usize, usage.as_mut_ptr() as usize, 0, 0, 0, 0];
    os::syscall(libc::SYS_getrusage, args);
    usage[RU_NVCSW]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::op::rw::Rw;
    use crate::op::{Op, Verdict};
    use crate::wq::{queue, Approach, Origin};
    use anyring_abi::{Opcode, Sqe};
    use std::io::Write;
    use std::os::fd::AsRawFd;
    use std::sync::mpsc::{channel, Sender};
    use std::sync::Mutex;
    use std::time::{Duration, Instant};

    /// A ring that reports the requests that come back.
    struct Reporter(Mutex<Sender<(u64, Option<Verdict>)>>);

    impl Origin for Reporter {
        fn deliver(&'static self, jobs: Vec<Arc<Job>>) {
            for job in jobs {
                let verdict = job.verdict.lock().and_then(|verdict| *verdict);
                self.0.lock().unwrap().send((job.request, verdict)).unwrap();
            }
        }
        fn mark_panicked(&'static self) {}
        fn submits_singly(&self) -> bool {
            false
        }
    }

    #[test]
    fn a_read_that_sleeps_keeps_no_other_for_long() {
        let (sender, results) = channel();
        let ring: &'static dyn Origin = Box::leak(Box::new(Reporter(Mutex::new(sender))));
        // The first pipe is empty until the others have come back.
        let mut pipes: Vec<_> = (0..20).map(|_| std::io::pipe().expect("a pipe")).collect();
        for (_, writer) in &mut pipes[1..] {
            writer.write_all(b"x").expect("room");
        }
        let buffer = Box::leak(Box::new([0u8; 20]));
        for (n, (reader, _)) in pipes.iter().enumerate() {
            let sqe = Sqe { addr: &raw mut buffer[n] as u64, len: 1, off: u64::MAX, ..Default::default() };
            let op = Op::Rw(Rw::prep(Opcode::Read, &sqe).expect("a read"));
            let of = (ring, 0, n as u64);
            let job = Job::new(of, (Opcode::Read, op), (reader.as_raw_fd(), None), Approach::Quick, None);
            assert!(queue(job));
        }
        let mut come: Vec<_> =
            (1..20).map(|_| results.recv_timeout(Duration::from_secs(30)).expect("a result")).collect();
        come.sort_unstable_by_key(|result| result.0);
        let expected: Vec<_> = (1..20).map(|n| (n, Some(Verdict::Done(1)))).collect();
        assert_eq!(come, expected);
        pipes[0].1.write_all(b"x").expect("room");
        assert_eq!(results.recv(), Ok((0, Some(Verdict::Done(1)))));
    }

    #[test]
    fn one_thread_monitors_while_reads_are_made() {
        let mut quick = Quick::NONE;
        assert!(!quick.request_monitor(), "nothing is made");
        quick.begin();
        assert!(quick.request_monitor() && !quick.request_monitor());
        assert!(quick.claim_monitor() && !quick.claim_monitor() && !quick.request_monitor());
        quick.monitor = Monitor::Nobody;
        assert!(quick.request_monitor());
        quick.end();
        assert!(!quick.claim_monitor(), "it is over");
        quick.begin();
        assert!(quick.request_monitor(), "and begins again");
    }

    #[test]
    fn some_reads_after_a_sleep_get_a_thread_each() {
        let mut quick = Quick::NONE;
        quick.record_made(false);
        assert!(!quick.wants_thread(1));
        quick.record_made(true);
        for _ in 0..CALM {
            assert!(quick.wants_thread(1));
            quick.record_made(false);
        }
        assert!(!quick.wants_thread(1));
    }

    #[test]
    fn more_workers_come_for_many_reads_where_there_are_cpus() {
        let mut quick = Quick { most: 2, ..Quick::NONE };
        quick.begin();
        assert!(!quick.wants_thread(SHARE) && quick.wants_thread(SHARE + 1));
        quick.begin();
        assert!(!quick.wants_thread(100), "half of the CPUs have one");
    }

    #[test]
    fn a_sleep_is_distinguished_from_work() {
        let mut sleeps = Sleeps::new();
        let begun_ns = Clock::Monotonic.now_ns();
        std::thread::sleep(Duration::from_millis(10)); // where timers are late, too short a sleep does not count
        assert!(sleeps.slept_since(begun_ns));
        let (begun, begun_ns) = (Instant::now(), Clock::Monotonic.now_ns());
        while begun.elapsed() < Duration::from_nanos(2 * SLOW_NS) {}
        assert!(!sleeps.slept_since(begun_ns));
        assert!(!sleeps.slept_since(Clock::Monotonic.now_ns()), "too short to have slept");
    }
}
