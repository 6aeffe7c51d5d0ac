//! The simulated system: one thread runs at a time, and at each call the seed decides which.
//!
//! Descriptors, files and memory are the kernel's. Threads, time and sleeps are simulated. A thread that has the
//! *turn* runs until its next call (or lock), where another thread may get the turn. A sleep ends when its event is
//! there. If no thread can run, the clock jumps to the earliest end of a sleep. So a lost wake-up shows at once: no
//! thread can run.

use crate::faults::{self, Faults};
use crate::schedule::{await_turn, give, new_turn, Figures, Schedule, Wait, Why};
use anyring_engine::os::simulated::{kernel, System};
use anyring_engine::Errno;
use std::cell::Cell;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::Duration;

/// The limit above which a sleep counts as endless.
const FOR_EVER_NS: u64 = 1_000_000_000_000;

thread_local! {
    /// The thread's place in the schedule.
    static PLACE: Cell<Option<usize>> = const { Cell::new(None) };
}

/// The system of a process.
pub struct Simulated {
    inner: Mutex<Schedule>,
    arrived: Condvar,
}

impl Simulated {
    /// The system of this seed, in which the calling thread has the turn.
    pub fn new(seed: u64) -> Simulated {
        let system = Simulated { inner: Mutex::new(Schedule::new(seed)), arrived: Condvar::new() };
        system.join();
        system
    }

    fn inner(&self) -> MutexGuard<'_, Schedule> {
        self.inner.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Adds the calling thread to the schedule.
    fn join(&self) {
        PLACE.set(Some(self.inner().add(new_turn(), false)));
    }

    /// Starts a thread of the program, which ends with `work`. Returns its place.
    pub fn spawn(&'static self, work: impl FnOnce() + Send + 'static) -> usize {
        self.point(); // the one before is there then
        self.announce(false);
        let place = self.inner().next_place();
        std::thread::spawn(move || {
            self.begins();
            work();
            self.ends();
        });
        place
    }

    /// Waits until the thread in this place has ended.
    pub fn join_thread(&self, place: usize) {
        self.point(); // it is in the list then
        if let Some(me) = PLACE.get() {
            self.wait(me, libc::SYS_waitid, Wait::End(place), None, None);
        }
    }

    /// The number of the engine's threads that have not ended.
    pub fn engines_threads(&self) -> usize {
        self.inner().engines_threads()
    }

    /// Describes each thread that has not ended.
    pub fn states(&self) -> String {
        self.inner().states()
    }

    /// Lets the calling thread sleep.
    pub fn sleep(&self, ns: u64) {
        if let Some(me) = PLACE.get() {
            let mut inner = self.step(me, libc::SYS_nanosleep);
            let until_ns = Some(inner.now_ns + ns);
            inner.sleep(me, Wait::Time, until_ns, None);
            self.switch(inner, me, true);
        }
    }

    /// Records that something was submitted or completed.
    pub fn progresses(&self) {
        self.inner().progresses();
    }

    /// The clock.
    pub fn now_ns(&self) -> u64 {
        self.inner().now_ns
    }

    /// Enables or disables faults.
    pub fn set_faulty(&self, faulty: bool) {
        self.inner().faults.on = faulty;
    }

    /// Passes the faults so far to `look`.
    pub fn faults<T>(&self, look: impl FnOnce(&Faults) -> T) -> T {
        look(&self.inner().faults)
    }

    /// Passes the faults to `change`, which counts an event there that is no call's error, such as a fork.
    pub fn faults_mut(&self, change: impl FnOnce(&mut Faults)) {
        change(&mut self.inner().faults);
    }

    /// Ends every sleep on a futex, spuriously.
    pub fn wake_all(&self) {
        self.inner().wake_all();
    }

    /// Sets a check that runs whenever the clock jumps to a time. It returns an error if the jump is wrong.
    pub fn on_jump(&self, look: fn(u64) -> Option<String>) {
        self.inner().on_jump = Some(look);
    }

    /// Marks a point of a program's thread where another may get the turn.
    pub fn point_of_program(&self) {
        if let Some(me) = PLACE.get() {
            self.pass(me, -5);
        }
    }

    /// Returns the figures so far.
    pub fn figures(&self) -> Figures {
        self.inner().figures()
    }

    /// Adapts to a forked child, whose only thread is the calling one.
    pub fn forked(&self) {
        self.inner().forked(PLACE.get());
    }

    /// Begins the next step of the calling thread, which has the turn and makes this call.
    fn step(&self, me: usize, number: libc::c_long) -> MutexGuard<'_, Schedule> {
        let mut inner = self.inner();
        while inner.arriving.is_some() {
            let waited = self.arrived.wait_timeout(inner, Duration::from_secs(10));
            let (held, late) = waited.unwrap_or_else(|poisoned| poisoned.into_inner());
            assert!(!late.timed_out(), "a new thread does not arrive");
            inner = held;
        }
        inner.step(me, number);
        inner
    }

    /// Gives the turn to the next thread, and returns when the calling thread has it again.
    fn switch<'a>(&'a self, mut inner: MutexGuard<'a, Schedule>, me: usize, leaves: bool) -> Why {
        let next = inner.choose(me, leaves);
        if next != me {
            let (turn, mine) = (inner.turn(next), inner.turn(me));
            drop(inner);
            give(turn);
            await_turn(mine);
            inner = self.inner();
        }
        if let Some(thread) = inner.leaving.take() {
            let process = kernel(libc::SYS_getpid, [0; 6]) as usize;
            while kernel(libc::SYS_tgkill, [process, thread as usize, 0, 0, 0, 0]) == 0 {
                std::thread::yield_now();
            }
        }
        inner.why(me)
    }

    /// Counts a step with this call. Another thread may get the turn before it.
    fn pass(&self, me: usize, number: libc::c_long) {
        let inner = self.step(me, number);
        self.switch(inner, me, false);
    }

    fn announce(&self, is_engines: bool) {
        let mut inner = self.inner();
        // The thread joins the list when it runs (`begins`). Until then no thread makes a step.
        inner.arriving = Some((new_turn(), is_engines));
    }

    /// Waits in place of the kernel. Then makes the call, which does not wait any more, or answers instead of it.
    fn wait(
        &self,
        me: usize,
        number: libc::c_long,
        wait: Wait,
        timeout_ns: Option<u64>,
        stop: Option<&AtomicU32>,
    ) -> Why {
        let mut inner = self.step(me, number);
        let until_ns = timeout_ns.filter(|ns| *ns < FOR_EVER_NS).map(|ns| inner.now_ns + ns);
        let stop = stop.map(|word| word.as_ptr() as usize);
        inner.sleep(me, wait, until_ns, stop);
        self.switch(inner, me, true)
    }

    fn futex(&self, me: usize, args: [usize; 6], stop: Option<&AtomicU32>) -> Option<isize> {
        let [address, operation, value, timeout, _, bits] = args;
        match operation as i32 & !(libc::FUTEX_PRIVATE_FLAG | libc::FUTEX_CLOCK_REALTIME) {
            libc::FUTEX_WAIT => Some(self.futex_wait(me, address, value as u32, timeout, u32::MAX, stop)),
            libc::FUTEX_WAIT_BITSET if timeout == 0 => {
                Some(self.futex_wait(me, address, value as u32, 0, bits as u32, stop))
            }
            libc::FUTEX_WAKE => Some(self.futex_wake(me, address, value, u32::MAX)),
            libc::FUTEX_WAKE_BITSET => Some(self.futex_wake(me, address, value, bits as u32)),
            _ => None,
        }
    }

    fn futex_wait(
        &self,
        me: usize,
        address: usize,
        value: u32,
        timeout: usize,
        bits: u32,
        stop: Option<&AtomicU32>,
    ) -> isize {
        self.pass(me, libc::SYS_futex);
        // SAFETY: a word of the engine, which waits on.
        let word = unsafe { &*(address as *const AtomicU32) };
        if word.load(Ordering::SeqCst) != value {
            return -(libc::EAGAIN as isize);
        }
        let wait = Wait::Futex { address, bits, woken: false };
        match self.wait(me, libc::SYS_futex, wait, time_of(timeout), stop) {
            Why::Ready => 0,
            Why::Late => -(libc::ETIMEDOUT as isize),
            Why::Stopped | Why::Interrupted => -(libc::EINTR as isize),
        }
    }

    fn futex_wake(&self, me: usize, address: usize, most: usize, mask: u32) -> isize {
        self.pass(me, libc::SYS_futex);
        self.inner().wake(address, most, mask) as isize
    }

    /// Serves getrusage(2) of the calling thread, with the number of its sleeps in this system. The kernel's number
    /// also has waits for the turn: those in which the thread really slept.
    fn usage(&self, me: usize, args: [usize; 6]) -> isize {
        let done = kernel(libc::SYS_getrusage, args);
        if done == 0 && args[0] as i32 == libc::RUSAGE_THREAD {
            // SAFETY: the engine's own structure, which the call has just written.
            unsafe { (*(args[1] as *mut libc::rusage)).ru_nvcsw = self.inner().sleeps_of(me) as libc::c_long };
        }
        done
    }

    /// Waits until a descriptor is ready for a call that would wait in the kernel.
    fn wait_for(&self, me: usize, number: libc::c_long, set: Vec<(i32, i16)>, stop: Option<&AtomicU32>) -> Why {
        self.wait(me, number, Wait::Descriptors(set), None, stop)
    }

    /// Simulates the call if it is one that waits, and returns its result. `None`: the call is left to the kernel.
    fn sleeping(
        &self,
        me: usize,
        number: libc::c_long,
        mut args: [usize; 6],
        stop: Option<&AtomicU32>,
    ) -> Option<isize> {
        const INTERRUPTED: isize = -(libc::EINTR as isize);
        let (fd, readable, writable) = (args[0] as i32, libc::POLLIN, libc::POLLOUT);
        let flags = || kernel(libc::SYS_fcntl, [args[0], libc::F_GETFL as usize, 0, 0, 0, 0]);
        match number {
            libc::SYS_futex => return self.futex(me, args, stop),
            libc::SYS_sched_yield => {
                self.spin();
                return Some(0);
            }
            libc::SYS_nanosleep => {
                self.sleep(time_of(args[0]).unwrap_or(0));
                return Some(0);
            }
            // A descriptor that is not open is refused at once.
            libc::SYS_epoll_wait | libc::SYS_epoll_pwait | libc::SYS_epoll_pwait2 if flags() >= 0 => {
                let timeout_ns = match number {
                    libc::SYS_epoll_pwait2 => time_of(args[3]),
                    _ => (args[3] as i32 >= 0).then(|| args[3] as u64 * 1_000_000),
                };
                if timeout_ns != Some(0) {
                    match self.wait(me, number, Wait::Descriptors(vec![(fd, readable)]), timeout_ns, stop) {
                        Why::Ready => {}
                        Why::Late => return Some(0),
                        Why::Stopped | Why::Interrupted => return Some(INTERRUPTED),
                    }
                } else {
                    self.pass(me, number);
                }
                args[3] = 0;
                return Some(kernel(libc::SYS_epoll_pwait, [args[0], args[1], args[2], 0, 0, 8]));
            }
            libc::SYS_ppoll if time_of(args[2]) != Some(0) => {
                // SAFETY: the engine's own array, of the length that it gives.
                let set = unsafe { std::slice::from_raw_parts(args[0] as *const libc::pollfd, args[1]) };
                let set = set.iter().map(|one| (one.fd, one.events)).collect();
                match self.wait(me, number, Wait::Descriptors(set), time_of(args[2]), stop) {
                    Why::Ready | Why::Late => {}
                    Why::Stopped | Why::Interrupted => return Some(INTERRUPTED),
                }
                let now = [0i64; 2];
                return Some(kernel(number, [args[0], args[1], now.as_ptr() as usize, 0, 8, 0]));
            }
            _ => {}
        }
        let waits_for = match number {
            libc::SYS_preadv2 if args[5] & faults::RWF_NOWAIT != 0 => return None,
            libc::SYS_pwritev2 if args[5] & faults::RWF_NOWAIT != 0 => return None,
            libc::SYS_recvfrom | libc::SYS_sendto if args[3] & libc::MSG_DONTWAIT as usize != 0 => return None,
            libc::SYS_recvmsg | libc::SYS_sendmsg if args[2] & libc::MSG_DONTWAIT as usize != 0 => return None,
            libc::SYS_read | libc::SYS_readv | libc::SYS_preadv2 | libc::SYS_recvfrom | libc::SYS_recvmsg => {
                readable
            }
            libc::SYS_write | libc::SYS_writev | libc::SYS_pwritev2 | libc::SYS_sendto | libc::SYS_sendmsg => {
                writable
            }
            _ => return None,
        };
        let flags = flags();
        if flags < 0 || flags as i32 & libc::O_NONBLOCK != 0 {
            return None;
        }
        match self.wait_for(me, number, vec![(fd, waits_for)], stop) {
            Why::Ready | Why::Late => None,
            Why::Stopped | Why::Interrupted => Some(INTERRUPTED),
        }
    }
}

/// Returns the nanoseconds of a `struct timespec`; `None` for a null address.
fn time_of(address: usize) -> Option<u64> {
    // SAFETY: the engine's own, which is not changed during the call.
    let time = (address != 0).then(|| unsafe { *(address as *const [i64; 2]) })?;
    Some((time[0] as u64).saturating_mul(1_000_000_000).saturating_add(time[1] as u64))
}

impl System for Simulated {
    fn call(&self, number: libc::c_long, args: [usize; 6], stop: Option<&AtomicU32>) -> isize {
        let Some(me) = PLACE.get() else { return kernel(number, args) };
        if number == libc::SYS_gettid || number == libc::SYS_getpid || number == libc::SYS_exit_group {
            return kernel(number, args);
        }
        if let Some(answer) = self.sleeping(me, number, args, stop) {
            return answer;
        }
        self.pass(me, number);
        if number == libc::SYS_getrusage {
            return self.usage(me, args);
        }
        let fault = {
            let inner = &mut *self.inner();
            inner.faults.of_call(&mut inner.random, number, &args)
        };
        match fault {
            faults::Fault::None => kernel(number, args),
            faults::Fault::Fails(error) => -(error as isize),
            faults::Fault::Short => faults::shorter(number, args, kernel),
        }
    }

    fn before(&self, number: libc::c_long) -> Result<(), Errno> {
        let Some(me) = PLACE.get() else { return Ok(()) };
        self.pass(me, number);
        let inner = &mut *self.inner();
        match inner.faults.before(&mut inner.random, number) {
            Some(error) => Err(Errno::from_raw_os_error(error)),
            None => Ok(()),
        }
    }

    fn clock_ns(&self) -> u64 {
        self.inner().now_ns
    }

    fn point(&self) {
        if let Some(me) = PLACE.get() {
            self.pass(me, -2);
        }
    }

    fn spin(&self) {
        if let Some(me) = PLACE.get() {
            let inner = self.step(me, -3);
            self.switch(inner, me, true);
        }
    }

    fn starts(&self) -> bool {
        self.point();
        let refused = {
            let inner = &mut *self.inner();
            inner.faults.before(&mut inner.random, libc::SYS_clone3).is_some()
        };
        if !refused {
            self.announce(true);
        }
        !refused
    }

    fn begins(&self) {
        let mut inner = self.inner();
        let (turn, is_engines) = inner.arriving.take().expect("an announced thread");
        PLACE.set(Some(inner.add(turn, is_engines)));
        drop(inner);
        self.arrived.notify_all();
        await_turn(turn);
    }

    fn ends(&self) {
        let Some(me) = PLACE.take() else { return };
        let mut inner = self.step(me, -4);
        inner.ends(me);
        let next = inner.choose(me, true);
        let turn = inner.turn(next);
        drop(inner);
        give(turn);
    }

    fn sleeps(&self, thread: u32) -> Option<bool> {
        self.inner().is_asleep(thread)
    }
}
