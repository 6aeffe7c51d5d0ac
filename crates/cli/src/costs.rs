//! Measures the costs of requests on this machine. A finding advises one of two ways to make a request, so each
//! request is measured in both ways. A forked child does this on the kernel's io_uring, or on the engine in this
//! executable. A cost is the least CPU time of several tries.

use crate::child::{ask, Outcome};
use anyring_abi::{
    Cqe, Opcode, Params, Sqe, IORING_CQE_F_MORE, IORING_ENTER_GETEVENTS, IORING_POLL_ADD_MULTI,
    IORING_REGISTER_FILES, IORING_SETUP_CQSIZE, IORING_SETUP_DEFER_TASKRUN, IORING_SETUP_NO_MMAP,
    IORING_SETUP_NO_SQARRAY, IORING_SETUP_SINGLE_ISSUER, IORING_TIMEOUT_MULTISHOT, IOSQE_FIXED_FILE,
    NR_IO_URING_ENTER, NR_IO_URING_REGISTER, NR_IO_URING_SETUP,
};
use anyring_engine::{register, setup, Enter};
use anyring_trace::Costs;
use rustix::event::{eventfd, EventfdFlags, Timespec};
use rustix::fs::{memfd_create, MemfdFlags};
use rustix::time::{clock_gettime, ClockId};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

const ENTRIES: usize = 64;
/// Number of tries. Most figures are the least of them. A busy machine disturbs most tries.
const TRIES: usize = 12;
const ROUNDS: u32 = 50;
/// Number of requests in a call where the cost of the call itself hardly matters.
const TOGETHER: u32 = 16;
/// A timeout that is longer than a round, even on a busy machine. If timeouts expired together, each would cost
/// less.
static TICK: Timespec = Timespec { tv_sec: 0, tv_nsec: 200_000 };

/// Measures the costs; `None` without rings in the program's own memory (Linux 6.5), or after an error.
pub fn here(by_kernel: bool) -> Option<Costs> {
    match ask(|| measure(by_kernel)) {
        Outcome::Replied(costs) => costs,
        _ => None,
    }
}

/// Returns for how long this machine's processors have been idle since it started, summed over the processors.
/// `None` if /proc/stat does not say so.
pub fn idle() -> Option<Duration> {
    const TICKS: u64 = 100; // a second (USER_HZ)
    let text = std::fs::read_to_string("/proc/stat").ok()?;
    let mut fields = text.lines().next()?.split_whitespace().skip(4).map(str::parse::<u64>);
    let (idle, waiting) = (fields.next()?.ok()?, fields.next()?.ok()?);
    Some(Duration::from_millis((idle + waiting) * 1_000 / TICKS))
}

/// Total CPU time of rounds that each make one request: a NOP, or a poll whose event comes. `events`: a file for the
/// events of anyring's engine. Here every try counts: writing events to new pages costs more than to those in use.
pub fn rounds_ns(by_kernel: bool, polls: bool, events: Option<&Path>) -> Option<f64> {
    let rounds = || {
        if let Some(file) = events {
            anyring_engine::event::open(file.to_str()?).ok()?;
        }
        let mut client = Client::new(by_kernel, 0, 0)?;
        let begin_ns = cpu_ns();
        if polls {
            client.polls(false)?;
        } else {
            client.nops(1)?;
        }
        Some(cpu_ns() - begin_ns)
    };
    match ask(rounds) {
        Outcome::Replied(total_ns) => total_ns,
        _ => None,
    }
}

/// CPU time of this process so far, in nanoseconds.
fn cpu_ns() -> f64 {
    let now = clock_gettime(ClockId::ProcessCPUTime);
    now.tv_sec as f64 * 1e9 + now.tv_nsec as f64
}

fn measure(by_kernel: bool) -> Option<Costs> {
    let mut client = Client::new(by_kernel, 0, 0)?;
    let alone_ns = client.nops(1)?;
    let together = f64::from(TOGETHER);
    let call_ns = (alone_ns - client.nops(TOGETHER)?).max(0.0) * together / (together - 1.0);
    let [poll_once_ns, poll_ns] = [client.polls(true)?, Client::new(by_kernel, 0, 0)?.polls(false)?];
    let deferred = Client::new(by_kernel, IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN, 0);
    let deferred_ns = deferred.and_then(|mut client| client.polls(false)).map_or(0.0, |it| poll_ns - it);
    let overflow_ns = Client::new(by_kernel, 0, 16)?.fill()? - Client::new(by_kernel, 0, 64)?.fill()?;
    let attempt_ns = client.attempts()? - client.nops(TOGETHER)?;
    let (sync_ns, worker_switches) = client.syncs()?;
    let lookup_ns = client.lookup_ns()?;
    // Last, since the multishot timeout keeps running. Linux before 6.4 has none.
    let again = [false, true].map(|alone| client.timeouts(false, alone));
    let once_ns = Client::new(by_kernel, 0, 0)?.timeouts(true, false);
    let [timeout_ns, timeout_alone_ns] = again.map(|again_ns| match (again_ns, once_ns) {
        (Some(again_ns), Some(once_ns)) => (again_ns - once_ns).max(0.0),
        _ => 0.0,
    });
    let costs = Costs {
        call_ns,
        poll_ns: (poll_ns - poll_once_ns).max(0.0),
        timeout_ns,
        timeout_alone_ns,
        tick_ns: once_ns.unwrap_or(0.0),
        attempt_ns: attempt_ns.max(0.0),
        worker_ns: (sync_ns - alone_ns).max(0.0),
        worker_switches,
        lookup_ns: lookup_ns.max(0.0),
        overflow_ns: overflow_ns.max(0.0) * 64.0 / 48.0,
        deferred_ns: deferred_ns.max(0.0),
        thread_ns: least(50, || std::thread::spawn(|| ()).join().ok())?,
        event_ns: 0.0,
        cores: std::thread::available_parallelism().map_or(1, |count| count.get() as u32),
    };
    Some(costs.rounded())
}

/// CPU time of one call: the least average of the tries, each of `rounds` calls.
fn least(rounds: u32, call: impl FnMut() -> Option<()>) -> Option<f64> {
    tries(rounds, call)?.first().copied()
}

/// CPU time of one call: the average of each try, the least first.
fn tries(rounds: u32, mut call: impl FnMut() -> Option<()>) -> Option<[f64; TRIES]> {
    let mut all = [0.0; TRIES];
    for each in &mut all {
        let begin_ns = cpu_ns();
        for _ in 0..rounds {
            call()?;
        }
        *each = (cpu_ns() - begin_ns) / f64::from(rounds);
    }
    all.sort_by(f64::total_cmp);
    Some(all)
}

/// Number of times that threads of this process have slept.
fn switches() -> i64 {
    // SAFETY: `used` is writable, and all zeros are a rusage.
    unsafe {
        let mut used: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_SELF, &mut used);
        used.ru_nvcsw
    }
}

/// A ring in memory of this process, which ends with the process.
struct Client {
    by_kernel: bool,
    fd: i32,
    params: Params,
    queues: *mut u8,
    sqes: *mut Sqe,
    tail: u32,
}

impl Client {
    fn new(by_kernel: bool, flags: u32, cq_entries: u32) -> Option<Client> {
        // Claims a fault handler, which is not needed: every address here is valid.
        anyring_engine::os::handler_installed();
        std::env::remove_var("ANYRING_TRACE");
        let area = || {
            let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
            // SAFETY: a new mapping, at an address that the kernel chooses.
            let address = unsafe { libc::mmap(std::ptr::null_mut(), 1 << 14, protection, flags, -1, 0) };
            (address != libc::MAP_FAILED).then_some(address)
        };
        let (queues, sqes) = (area()?, area()?);
        let sized = if cq_entries != 0 { IORING_SETUP_CQSIZE } else { 0 };
        let flags = flags | sized | IORING_SETUP_NO_MMAP | IORING_SETUP_NO_SQARRAY;
        let mut params = Params { flags, cq_entries, ..Params::default() };
        (params.cq_off.user_addr, params.sq_off.user_addr) = (queues as u64, sqes as u64);
        let entries = if cq_entries != 0 { 8 } else { ENTRIES };
        let address = std::ptr::from_mut(&mut params) as u64;
        let fd = match by_kernel {
            // SAFETY: the parameters outlive the call, and the memory that they name outlives the ring.
            true => unsafe { libc::syscall(NR_IO_URING_SETUP, entries, address) as i32 },
            false => setup(entries as u32, address).ok()?,
        };
        (fd >= 0).then(|| Client { by_kernel, fd, params, queues: queues.cast(), sqes: sqes.cast(), tail: 0 })
    }

    fn word(&self, offset: u32) -> &AtomicU32 {
        // SAFETY: one of the words that setup placed in the area, which lasts as long as the process.
        unsafe { &*self.queues.add(offset as usize).cast() }
    }

    fn push(&mut self, sqe: Sqe) {
        // SAFETY: the index is below the entries, for which there is room; the server reads it after the tail's
        // store.
        unsafe { self.sqes.add((self.tail & (self.params.sq_entries - 1)) as usize).write_volatile(sqe) };
        self.tail = self.tail.wrapping_add(1);
        // Release: the server's Acquire load of the tail sees the SQE.
        self.word(self.params.sq_off.tail).store(self.tail, Ordering::Release);
    }

    fn enter(&self, to_submit: u32, min_complete: u32) -> Option<()> {
        let flags = IORING_ENTER_GETEVENTS;
        let submitted = match self.by_kernel {
            // SAFETY: no pointers; the memory that the SQEs name outlives the requests.
            true => unsafe { libc::syscall(NR_IO_URING_ENTER, self.fd, to_submit, min_complete, flags, 0, 0) },
            false => {
                let call = Enter { fd: self.fd as u32, to_submit, min_complete, flags, arg: 0, arg_size: 0 };
                i64::from(anyring_engine::enter(&call).ok()?)
            }
        };
        (submitted == i64::from(to_submit)).then_some(())
    }

    /// Reaps all CQEs and returns the last. It must have succeeded, or be a timeout that expired.
    fn reap(&self) -> Option<Cqe> {
        self.last().filter(|cqe| cqe.res >= 0 || cqe.res == -libc::ETIME)
    }

    /// Reaps all CQEs and returns the last.
    fn last(&self) -> Option<Cqe> {
        // Acquire: pairs with the server's Release store of the tail after the CQEs. Relaxed: only this thread stores
        // it.
        let tail = self.word(self.params.cq_off.tail).load(Ordering::Acquire);
        let head = self.word(self.params.cq_off.head);
        if head.load(Ordering::Relaxed) == tail {
            return None;
        }
        let place = (tail.wrapping_sub(1) & (self.params.cq_entries - 1)) as usize;
        // SAFETY: inside the CQ, whose CQEs before the tail are written.
        let cqe =
            unsafe { self.queues.add(self.params.cq_off.cqes as usize).cast::<Cqe>().add(place).read_volatile() };
        // Release: the server's Acquire load of the head sees that the CQEs were read.
        head.store(tail, Ordering::Release);
        Some(cqe)
    }

    fn nops(&mut self, together: u32) -> Option<f64> {
        let each = least(ROUNDS, || {
            (0..together).for_each(|_| self.push(Sqe { opcode: Opcode::Nop as u8, fd: -1, ..Sqe::default() }));
            self.enter(together, together)?;
            self.reap().map(drop)
        })?;
        Some(each / f64::from(together))
    }

    /// Submits as many NOPs as overflow a small CQ, eight in a call.
    fn fill(&mut self) -> Option<f64> {
        let each = least(50, || {
            for _ in 0..8 {
                (0..8).for_each(|_| self.push(Sqe { opcode: Opcode::Nop as u8, fd: -1, ..Sqe::default() }));
                self.enter(8, 0)?;
            }
            for _ in 1..64 / self.params.cq_entries.min(64) {
                self.reap()?;
                self.enter(0, 1)?; // as who waits for a CQE
            }
            self.reap().map(drop)
        })?;
        Some(each / 64.0)
    }

    /// Handles an event in each round, either with a new poll or with a single poll for all rounds (`once`).
    fn polls(&mut self, once: bool) -> Option<f64> {
        let event: OwnedFd = eventfd(0, EventfdFlags::NONBLOCK).ok()?;
        let len = if once { IORING_POLL_ADD_MULTI } else { 0 };
        let (opcode, op_flags) = (Opcode::PollAdd as u8, libc::POLLIN as u32);
        let sqe = Sqe { opcode, fd: event.as_raw_fd(), len, op_flags, ..Sqe::default() };
        if once {
            self.push(sqe);
            self.enter(1, 0)?;
        }
        let cost = least(ROUNDS, || {
            if !once {
                self.push(sqe);
                self.enter(1, 0)?;
            }
            rustix::io::write(&event, &1u64.to_ne_bytes()).ok()?;
            self.enter(0, 1)?;
            rustix::io::read(&event, &mut [0u8; 8]).ok()?;
            self.reap().map(drop)
        });
        std::mem::forget(event); // the poll remains armed
        cost
    }

    /// Waits for a TIMEOUT in each round, or for shots of a single TIMEOUT (`once`). `alone`: submits it in a separate
    /// call.
    fn timeouts(&mut self, once: bool, alone: bool) -> Option<f64> {
        let op_flags = if once { IORING_TIMEOUT_MULTISHOT } else { 0 };
        let addr = &raw const TICK as u64;
        let sqe = Sqe { opcode: Opcode::Timeout as u8, fd: -1, addr, len: 1, op_flags, ..Sqe::default() };
        if once {
            self.push(sqe);
            self.enter(1, 0)?;
        }
        least(20, || {
            if !once {
                self.push(sqe);
            }
            if alone {
                self.enter(1, 0)?;
            }
            self.enter(u32::from(!once && !alone), 1)?;
            // If the CQEs are not reaped for long, they fill the CQ, and the multishot timeout ends.
            let has_ended = self.reap()?.flags & IORING_CQE_F_MORE == 0;
            if once && has_ended {
                self.push(sqe);
                self.enter(1, 0)?;
            }
            Some(())
        })
    }

    /// Makes FSYNCs of a file in memory. An FSYNC always goes to a worker, and this one has nothing to do there. Returns
    /// the cost of one, and how often threads slept for it. The cost is the median: on a busy machine waking a thread is
    /// sometimes cheap.
    fn syncs(&mut self) -> Option<(f64, f64)> {
        const SYNCS: u32 = 100;
        let file = memfd_create("anyring-costs", MemfdFlags::CLOEXEC).ok()?;
        let before = switches();
        let costs = tries(SYNCS, || {
            self.push(Sqe { opcode: Opcode::Fsync as u8, fd: file.as_raw_fd(), ..Sqe::default() });
            self.enter(1, 1)?;
            self.reap().map(drop)
        })?;
        Some((costs[TRIES / 2], (switches() - before) as f64 / f64::from(TRIES as u32 * SYNCS)))
    }

    /// Receives from a socket without data, without waiting for it.
    fn attempts(&mut self) -> Option<f64> {
        let (socket, _peer) = std::os::unix::net::UnixStream::pair().ok()?;
        let mut byte = 0u8;
        let (fd, addr, op_flags) = (socket.as_raw_fd(), &raw mut byte as u64, libc::MSG_DONTWAIT as u32);
        let sqe = Sqe { opcode: Opcode::Recv as u8, fd, addr, len: 1, op_flags, ..Sqe::default() };
        let each = least(ROUNDS, || {
            (0..TOGETHER).for_each(|_| self.push(sqe));
            self.enter(TOGETHER, TOGETHER)?;
            (self.last()?.res == -libc::EAGAIN).then_some(())
        })?;
        Some(each / f64::from(TOGETHER))
    }

    fn lookup_ns(&mut self) -> Option<f64> {
        let file = std::fs::File::open("/dev/zero").ok()?;
        let files = [file.as_raw_fd()];
        let (fd, address) = (self.fd as u32, files.as_ptr() as u64);
        match self.by_kernel {
            // SAFETY: the array outlives the call.
            true => unsafe { libc::syscall(NR_IO_URING_REGISTER, fd, IORING_REGISTER_FILES, address, 1) == 0 },
            false => register(fd, IORING_REGISTER_FILES, address, 1).is_ok(),
        }
        .then_some(())?;
        let mut byte = 0u8;
        let addr = &raw mut byte as u64;
        let mut cost = |fd: i32, flags: u8| {
            let sqe = Sqe { opcode: Opcode::Read as u8, fd, flags, addr, len: 1, ..Sqe::default() };
            least(200, || {
                (0..16).for_each(|_| self.push(sqe));
                self.enter(16, 16)?;
                self.reap().map(drop)
            })
        };
        Some((cost(files[0], 0)? - cost(0, IOSQE_FIXED_FILE)?) / 16.0)
    }
}
