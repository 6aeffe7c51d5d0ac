//! The trait `Os` on Linux itself.

use super::arch::{kernel, EPOLL_WAIT, POLL};
use super::changes::Change;
use super::question::{is_permitted, is_refused_by, Question};
use super::{check, wait, wait_interruptibly, EpollEvent, Os};
use crate::os::calls;
use crate::os::Sys;
use crate::Errno;
use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering::Relaxed};
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, IntoRawFd, OwnedFd, RawFd};

/// The running kernel.
pub struct Linux;

/// Makes one system call, with its number (`libc::SYS_*`) and its arguments. Returns the register's value.
///
/// The function is safe to call in the sense that the kernel checks the arguments. The caller is responsible for the
/// *effect*: a write into program memory must be one that the program asked for.
#[inline(always)]
pub fn syscall(number: libc::c_long, args: [usize; 6]) -> isize {
    #[cfg(feature = "simulated")]
    if let Some(system) = super::simulated::system() {
        return system.call(number, args, None);
    }
    kernel(number, args)
}

/// Lets other threads run, the longer the more `tries` there were. It sleeps instead of yielding, since a real-time
/// thread that only yields would keep the CPU from the thread for which it waits.
pub fn nap(tries: u32) {
    if tries < 4 {
        syscall(libc::SYS_sched_yield, [0; 6]);
        return;
    }
    pause(if tries < 40 { 20_000 } else { 1_000_000 });
}

/// Sleeps for `pause_ns`, or until a signal comes. It uses futex(2), which the engine needs anyway. A seccomp filter
/// may refuse nanosleep(2), or kill for it.
pub fn pause(pause_ns: u64) {
    let time = timespec(pause_ns);
    #[cfg(feature = "simulated")]
    if super::simulated::system().is_some() {
        syscall(libc::SYS_nanosleep, [time.as_ptr() as usize, 0, 0, 0, 0, 0]);
        return;
    }
    // No other thread knows the word.
    let word = 0_u32;
    let wait = (libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG) as usize;
    syscall(libc::SYS_futex, [&raw const word as usize, wait, 0, time.as_ptr() as usize, 0, 0]);
}

/// Makes the `struct timespec` of a relative timeout.
fn timespec(timeout_ns: u64) -> [i64; 2] {
    [(timeout_ns / 1_000_000_000) as i64, (timeout_ns % 1_000_000_000) as i64]
}

/// 1 once epoll_pwait2 failed with ENOSYS (Linux before 5.11, or a filter).
static NO_EPOLL_PWAIT2: AtomicU32 = AtomicU32::new(0);

/// The result of [`probe_flags`]: [`CHECKED`], [`IGNORED`], [`REFUSED`], or 0 before the first probe.
static FLAGS: AtomicU32 = AtomicU32::new(0);
const CHECKED: u32 = 1;
const IGNORED: u32 = 2;
/// A filter refuses preadv2(2) or pwritev2(2) with any arguments.
const REFUSED: u32 = 3;

/// Returns the number of CPUs that the calling thread may run on. 0 if the system does not say. Source:
/// sched_getaffinity(2).
pub fn usable_cpus() -> u32 {
    let mut mask = [0u64; 128];
    let size = size_of_val(&mask);
    let answer = syscall(libc::SYS_sched_getaffinity, [0, size, mask.as_mut_ptr() as usize, 0, 0, 0]);
    if answer > 0 {
        mask.iter().map(|word| word.count_ones()).sum()
    } else {
        0
    }
}

/// True if preadv2(2) and pwritev2(2) ignore their flags on some files (gVisor, on pipes). RWF_NOWAIT must then not
/// be tried.
#[inline]
pub fn flags_are_ignored() -> bool {
    FLAGS.load(Relaxed) >= IGNORED
}

/// True if a filter refuses preadv2(2) or pwritev2(2).
#[cold]
pub fn calls_with_flags_are_refused() -> bool {
    FLAGS.load(Relaxed) == REFUSED
}

/// Whether preadv2(2) and pwritev2(2) are permitted.
pub static ACCEPTS_FLAGS: Question = Question::new(ask_for_calls_with_flags);

/// Tries both calls with no buffers, on a descriptor that is not open.
pub(super) fn ask_for_calls_with_flags() -> isize {
    [libc::SYS_preadv2, libc::SYS_pwritev2]
        .map(|number| is_permitted(number, [usize::MAX, 0, 0, 0, 0, 0]))
        .into_iter()
        .min()
        .unwrap_or(0)
}

/// Probes whether preadv2(2) checks its flags, by a call that cannot wait. At the end of a pipe without writers, a
/// flag that no kernel knows is either refused or ignored. Done once per process, before its first ring.
pub fn probe_flags() {
    if FLAGS.load(Relaxed) == 0 {
        let found = match ACCEPTS_FLAGS.is_yes().then(flags_are_checked) {
            None => REFUSED,
            Some(Some(true)) => CHECKED,
            Some(Some(false)) => IGNORED,
            // No pipe could be made at this moment. The next ring probes again.
            Some(None) => return,
        };
        FLAGS.store(found, Relaxed);
    }
}

/// Makes the test of [`probe_flags`] where the calls are permitted. `None` without descriptors for it.
pub fn flags_are_checked() -> Option<bool> {
    const UNKNOWN_FLAG: usize = 1 << 31;
    const NO_OFFSET: usize = usize::MAX;
    let (reader, writer) = calls::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).ok()?;
    drop(writer);
    let mut byte = 0u8;
    let iovec = [&mut byte as *mut u8 as usize, 1];
    let fd = rustix::fd::AsRawFd::as_raw_fd(&reader) as usize;
    Some(syscall(libc::SYS_preadv2, [fd, iovec.as_ptr() as usize, 1, NO_OFFSET, 0, UNKNOWN_FLAG]) < 0)
}

/// Polls by select(2), which does not distinguish a hang-up from data. RLIMIT_NOFILE restricts poll(2), but not
/// select(2) (`do_sys_poll`, `core_sys_select` in fs/select.c).
#[cold]
fn select_now(fd: i32, events: u16) -> Result<u16, Errno> {
    const READ: i16 = libc::POLLIN | libc::POLLRDNORM;
    const WRITE: i16 = libc::POLLOUT | libc::POLLWRNORM;
    let (place, bit) = (fd as usize / 64, 1u64 << (fd % 64));
    let kinds = [READ, WRITE, libc::POLLPRI].map(|bits| bits as u16 & events);
    let mut sets = kinds.map(|bits| {
        let mut set = vec![0u64; place + 1];
        set[place] = if bits != 0 { bit } else { 0 };
        set
    });
    let [read, write, except] = sets.each_mut().map(|set| set.as_mut_ptr() as usize);
    let at_once = [0i64; 2];
    let args = [fd as usize + 1, read, write, except, at_once.as_ptr() as usize, 0];
    match check(syscall(libc::SYS_pselect6, args)) {
        Ok(_) => Ok(kinds.iter().zip(&sets).filter(|(_, set)| set[place] != 0).map(|(bits, _)| bits).sum()),
        Err(Errno::BADF) => Ok(libc::POLLNVAL as u16),
        Err(error) => Err(error),
    }
}

type Call = fn(libc::c_long, [usize; 6]) -> isize;

fn futex_wait_by(call: Call, word: &AtomicU32, expected: u32, timeout_ns: Option<u64>) -> Result<(), Errno> {
    let timeout = timeout_ns.map(timespec);
    let timeout = timeout.as_ref().map_or(0, |t| t.as_ptr() as usize);
    let args = [word.as_ptr() as usize, libc::FUTEX_WAIT as usize, expected as usize, timeout, 0, 0];
    check(call(libc::SYS_futex, args)).map(|_| ())
}

/// True if futex_waitv(2) is available: on Linux 5.16 or newer, where no filter refuses it.
pub fn can_wait_for_several() -> bool {
    // The kernel refuses an empty vector with EINVAL.
    static CAN: Question = Question::new(|| is_refused_by(libc::SYS_futex_waitv, [0; 6], libc::EINVAL));
    CAN.is_yes()
}

/// Returns 0 if this call, which waits for events, fails because there is no such epoll set. Used to ask a question.
/// The call gets room for an event, so that a tool that checks its arguments finds nothing wrong.
fn waits_on_no_set(number: libc::c_long) -> isize {
    let mut room = [EpollEvent::default()];
    is_refused_by(number, [usize::MAX, room.as_mut_ptr() as usize, 1, 0, 0, 0], libc::EBADF)
}

/// Whether epoll_pwait2(2) is available: Linux 5.11.
pub static WAITS_FOR_NANOSECONDS: Question = Question::new(|| waits_on_no_set(libc::SYS_epoll_pwait2));

/// Whether epoll_wait(2) is available. On machines that have it, it costs a little less than epoll_pwait(2).
pub static WAITS_WITHOUT_MASK: Question =
    Question::new(|| EPOLL_WAIT.map_or(-(libc::ENOSYS as isize), waits_on_no_set));

/// Whether ppoll(2) is permitted.
pub static POLLS_FOR_NANOSECONDS: Question = Question::new(|| {
    let at_once = [0_i64; 2];
    is_permitted(libc::SYS_ppoll, [0, 0, at_once.as_ptr() as usize, 0, 0, 0])
});

type ClockGettime = unsafe extern "C" fn(libc::clockid_t, *mut libc::timespec) -> libc::c_int;

/// Address of libc's own clock_gettime(3), which uses the vDSO; 0 before [`set_clock`]. Relaxed: a function pointer
/// publishes no other memory.
static CLOCK: AtomicUsize = AtomicUsize::new(0);

/// Sets the address of libc's own clock_gettime(3). A program may define one that stands still (libfaketime).
pub fn set_clock(address: usize) {
    CLOCK.store(address, Relaxed);
}

fn clock_gettime() -> ClockGettime {
    match CLOCK.load(Relaxed) {
        0 => libc::clock_gettime,
        // SAFETY: `set_clock` has stored a function of this type.
        address => unsafe { core::mem::transmute::<usize, ClockGettime>(address) },
    }
}

/// Returns milliseconds, not less than `timeout_ns`.
fn milliseconds(timeout_ns: u64) -> isize {
    timeout_ns.div_ceil(1_000_000).min(i32::MAX as u64) as isize
}

impl Os for Linux {
    fn clock_ns(clock: i32) -> u64 {
        #[cfg(feature = "simulated")]
        if let Some(system) = super::simulated::system() {
            return system.clock_ns();
        }
        let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: `now` is a timespec that this call may write.
        unsafe { clock_gettime()(clock, &mut now) };
        now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
    }

    fn thread_id() -> u32 {
        syscall(libc::SYS_gettid, [0; 6]) as u32
    }

    fn process_id() -> u32 {
        syscall(libc::SYS_getpid, [0; 6]) as u32
    }

    fn futex_wait(word: &AtomicU32, expected: u32, timeout_ns: Option<u64>) -> Result<(), Errno> {
        futex_wait_by(wait, word, expected, timeout_ns)
    }

    fn futex_sleep(word: &AtomicU32, expected: u32, timeout_ns: Option<u64>) -> Result<(), Errno> {
        futex_wait_by(wait_interruptibly, word, expected, timeout_ns)
    }

    fn sleep_ns(left_ns: u64, polls: bool) -> u64 {
        // A larger slack counts as this much. If a thread chose to be woken that late, every timer of the machine
        // ends its sleep anyway.
        const SLACK_MAX_NS: u64 = 1_000_000;
        const ESTIMATE_MAX_NS: u64 = 100_000_000;
        let slack_ns = match left_ns {
            0..1_000_000_000 => {
                let answer = syscall(libc::SYS_prctl, [libc::PR_GET_TIMERSLACK as usize, 0, 0, 0, 0, 0]);
                check(answer).map_or(0, |slack_ns| (slack_ns as u64).min(SLACK_MAX_NS))
            }
            // The slack is not read: something else ends most such sleeps, and the other sleeps are continued once
            // more.
            _ => SLACK_MAX_NS,
        };
        let estimate_ns = if polls { (left_ns / 1000).min(ESTIMATE_MAX_NS) } else { 0 };
        // 0 would not sleep at all.
        left_ns.saturating_sub(slack_ns.max(estimate_ns)).max(1.min(left_ns))
    }

    fn futex_wake(word: &AtomicU32, count: u32) {
        syscall(libc::SYS_futex, [word.as_ptr() as usize, libc::FUTEX_WAKE as usize, count as usize, 0, 0, 0]);
    }

    fn epoll_wait(
        epoll: i32,
        events: &mut [EpollEvent],
        timeout_ns: Option<u64>,
        sigmask: Option<&u64>,
    ) -> Result<usize, Errno> {
        let mask = sigmask.map_or(0, |m| m as *const u64 as usize);
        let (buffer, room) = (events.as_mut_ptr() as usize, events.len());
        let timed = timeout_ns.is_some_and(|timeout_ns| timeout_ns != 0);
        if timed && NO_EPOLL_PWAIT2.load(Relaxed) == 0 && WAITS_FOR_NANOSECONDS.is_yes() {
            let timeout = timeout_ns.map(timespec);
            let timeout = timeout.as_ref().map_or(0, |t| t.as_ptr() as usize);
            match check(wait_interruptibly(
                libc::SYS_epoll_pwait2,
                [epoll as usize, buffer, room, timeout, mask, 8],
            )) {
                Err(Errno::NOSYS) | Err(Errno::PERM) => NO_EPOLL_PWAIT2.store(1, Relaxed),
                answer => return answer,
            }
        }
        let by = |timeout_ms: isize| if timeout_ms == 0 { syscall } else { wait_interruptibly };
        let wait = |timeout_ms: isize| {
            let plain = EPOLL_WAIT.filter(|_| sigmask.is_none() && WAITS_WITHOUT_MASK.is_yes());
            if let Some(epoll_wait) = plain {
                let args = [epoll as usize, buffer, room, timeout_ms as usize, 0, 0];
                match check(by(timeout_ms)(epoll_wait, args)) {
                    Err(Errno::NOSYS) | Err(Errno::PERM) => {} // a filter was installed later
                    answer => return answer,
                }
            }
            let args = [epoll as usize, buffer, room, timeout_ms as usize, mask, 8];
            check(by(timeout_ms)(libc::SYS_epoll_pwait, args))
        };
        match timeout_ns {
            None => wait(-1),
            Some(0) => wait(0),
            Some(timeout_ns) if !POLLS_FOR_NANOSECONDS.is_yes() => wait(milliseconds(timeout_ns)),
            // ppoll(2) takes nanoseconds, and an epoll descriptor is readable if it has an event.
            Some(timeout_ns) => {
                let mut set = [libc::pollfd { fd: epoll, events: libc::POLLIN, revents: 0 }];
                match Linux::poll(&mut set, Some(timeout_ns), sigmask)? {
                    0 => Ok(0),
                    _ => wait(0),
                }
            }
        }
    }

    fn epoll_ctl(epoll: i32, operation: i32, fd: i32, events: u32, data: u64) -> Result<(), Errno> {
        let event = EpollEvent { events, data };
        let args = [epoll as usize, operation as usize, fd as usize, &event as *const _ as usize, 0, 0];
        check(syscall(libc::SYS_epoll_ctl, args)).map(|_| ())
    }

    #[inline] // little of it is left if the time is known
    fn poll(set: &mut [libc::pollfd], timeout_ns: Option<u64>, sigmask: Option<&u64>) -> Result<usize, Errno> {
        let by = if timeout_ns == Some(0) { syscall } else { wait_interruptibly };
        let plain = POLL.filter(|_| sigmask.is_none() && !POLLS_FOR_NANOSECONDS.is_yes());
        if let Some(poll) = plain {
            let timeout_ms = timeout_ns.map_or(-1, milliseconds) as usize;
            return check(by(poll, [set.as_mut_ptr() as usize, set.len(), timeout_ms, 0, 0, 0]));
        }
        let timeout = timeout_ns.map(timespec);
        let timeout = timeout.as_ref().map_or(0, |t| t.as_ptr() as usize);
        let mask = sigmask.map_or(0, |m| m as *const u64 as usize);
        check(by(libc::SYS_ppoll, [set.as_mut_ptr() as usize, set.len(), timeout, mask, 8, 0]))
    }

    fn poll_now(fd: i32, events: u16) -> Result<u16, Errno> {
        let mut set = [libc::pollfd { fd, events: events as i16, revents: 0 }];
        loop {
            // A pending signal ends the call although it does not wait (`do_poll` in fs/select.c). The signal is
            // handled before the next call.
            match Linux::poll(&mut set, Some(0), None) {
                Err(Errno::INTR) => {}
                Err(Errno::INVAL) => return select_now(fd, events),
                answer => return answer.map(|_| set[0].revents as u16),
            }
        }
    }

    fn close(fd: i32) {
        syscall(libc::SYS_close, [fd as usize, 0, 0, 0, 0, 0]);
    }
}

/// A descriptor of the engine for short use, which keeps its number. The program cannot close it meanwhile by a close
/// of many numbers. Dropping an `OwnedFd` calls libc's `close`, and so anyring's wrapper, which takes the locks of
/// rings. So no `OwnedFd` may be dropped while the thread holds a ring's lock.
pub struct ForNow(RawFd, Change);

/// Keeps `fd` for a moment.
pub fn for_now(fd: OwnedFd) -> ForNow {
    ForNow(fd.into_raw_fd(), Change::begin())
}

/// Descriptors that the kernel has just made.
pub trait Made {
    /// These descriptors, for short use.
    type ForNow;
    /// Keeps them for a moment.
    fn for_now(self) -> Self::ForNow;
}

impl Made for OwnedFd {
    type ForNow = ForNow;
    fn for_now(self) -> ForNow {
        for_now(self)
    }
}

impl Made for (OwnedFd, OwnedFd) {
    type ForNow = (ForNow, ForNow);
    fn for_now(self) -> (ForNow, ForNow) {
        (for_now(self.0), for_now(self.1))
    }
}

impl IntoRawFd for ForNow {
    /// Returns the number, which the caller gives to the program.
    fn into_raw_fd(self) -> RawFd {
        let number = self.0;
        let this = core::mem::ManuallyDrop::new(self);
        // SAFETY: `this` is not used any more, nor dropped.
        drop(unsafe { core::ptr::read(&raw const this.1) });
        number
    }
}

impl AsRawFd for ForNow {
    fn as_raw_fd(&self) -> RawFd {
        self.0
    }
}

impl AsFd for ForNow {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the number is open until this is dropped.
        unsafe { BorrowedFd::borrow_raw(self.0) }
    }
}

impl Drop for ForNow {
    fn drop(&mut self) {
        Sys::close(self.0);
    }
}
