//! The system: one thread runs at a time, and at each call the seed says which.
//!
//! Descriptors, files and memory are the kernel's. Threads, time and sleeps are not: a thread that has the *turn* runs until
//! its next call (or lock), where another one may get the turn; a sleep ends when what it waits for is there, or, when nobody
//! can run, at the earliest end of a sleep, to which the clock jumps. So a wake-up that is lost shows at once: nobody can run.

use crate::faults::{self, Faults};
use anyring_engine::os::simulated::{kernel, System};
use anyring_engine::Errno;
use std::cell::Cell;
use std::fmt::Write as _;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::Duration;

/// Steps without progress after which nothing will come any more: threads that look again and again.
const STEPS_WITHOUT_PROGRESS: u64 = 300_000;
/// The same, of the simulated clock.
const NS_WITHOUT_PROGRESS: u64 = 600_000_000_000;
/// A sleep that is longer has no end.
const FOR_EVER_NS: u64 = 1_000_000_000_000;

thread_local! {
    /// The thread's place in [`Inner::threads`].
    static PLACE: Cell<Option<usize>> = const { Cell::new(None) };
}

/// What a thread waits for.
#[derive(Debug, Clone)]
enum Wait {
    /// A wake-up of this futex, which sets `woken`.
    Futex { address: usize, bits: u32, woken: bool },
    /// One of these descriptors.
    Descriptors(Vec<(i32, i16)>),
    /// The end of the thread in this place.
    End(usize),
    /// The end of the sleep.
    Time,
}

#[derive(Debug, Clone)]
enum State {
    Runs,
    /// Until then, by the clock; until the word at `stop` is not 0.
    Sleeps {
        wait: Wait,
        until_ns: Option<u64>,
        stop: Option<usize>,
    },
    Ended,
}

/// Why a sleep is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Why {
    Ready,
    Late,
    Stopped,
    Interrupted,
}

struct Thread {
    /// gettid(2); 0 before it is there.
    id: u32,
    state: State,
    why: Why,
    /// Not chosen before this step, as long as another one can run.
    delayed_until: u64,
    /// Its last call.
    call: libc::c_long,
    /// It has the turn.
    turn: &'static AtomicU32,
    is_engines: bool,
    /// How often it has slept.
    sleeps: u64,
}

impl Thread {
    /// The calling thread.
    fn new(turn: &'static AtomicU32, is_engines: bool) -> Thread {
        let (id, state, why) = (thread_id(), State::Runs, Why::Ready);
        Thread { id, state, why, delayed_until: 0, call: -1, turn, is_engines, sleeps: 0 }
    }
}

struct Inner {
    threads: Vec<Thread>,
    random: fastrand::Rng,
    faults: Faults,
    now_ns: u64,
    steps: u64,
    /// When something was last submitted or answered: the step, and the time.
    progress: (u64, u64),
    /// A thread is being made: its turn, and whether it is the engine's.
    arriving: Option<(&'static AtomicU32, bool)>,
    /// The thread that has just ended, until the kernel has forgotten it.
    leaving: Option<u32>,
    /// One switch in so many points.
    switch_every: u64,
    /// One long delay in so many switches.
    delay_every: u64,
    digest: u64,
    jumps: u64,
    on_jump: Option<fn() -> Option<String>>,
}

/// The system of a process.
pub struct Simulated {
    inner: Mutex<Inner>,
    arrived: Condvar,
}

/// What a run was made of.
pub struct Figures {
    /// Calls, locks and looks of every thread.
    pub steps: u64,
    /// Of all that was chosen.
    pub digest: u64,
    /// How often the clock jumped because nobody could run.
    pub jumps: u64,
    /// Faults by kind.
    pub faults: Vec<(String, u64)>,
}

fn thread_id() -> u32 {
    kernel(libc::SYS_gettid, [0; 6]) as u32
}

impl Simulated {
    /// The system of this seed, in which the calling thread has the turn.
    pub fn new(seed: u64) -> Simulated {
        let mut random = fastrand::Rng::with_seed(seed ^ 0x5eed_0f5e_ed00);
        let switch_every = [1, 2, 4, 16, 64][random.usize(..5)];
        let delay_every = [8, 64, 1024][random.usize(..3)];
        let faults = Faults::new(&mut random);
        let inner = Inner {
            threads: Vec::new(),
            random,
            faults,
            now_ns: 1_000_000_000,
            steps: 0,
            progress: (0, 0),
            arriving: None,
            leaving: None,
            switch_every,
            delay_every,
            digest: seed,
            jumps: 0,
            on_jump: None,
        };
        let system = Simulated { inner: Mutex::new(inner), arrived: Condvar::new() };
        system.join();
        system
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// The calling thread is one of the threads from now on.
    fn join(&self) {
        let mut inner = self.inner();
        let turn: &'static AtomicU32 = Box::leak(Box::new(AtomicU32::new(0)));
        PLACE.set(Some(inner.threads.len()));
        inner.threads.push(Thread::new(turn, false));
    }

    /// Starts a thread of the program's; done when `work` is. The answer is its place.
    pub fn spawn(&'static self, work: impl FnOnce() + Send + 'static) -> usize {
        self.point(); // the one before is there then
        self.announce(false);
        let place = self.inner().threads.len();
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

    /// Threads of the engine's that have not ended.
    pub fn engines_threads(&self) -> usize {
        let inner = self.inner();
        inner.threads.iter().filter(|thread| thread.is_engines && !matches!(thread.state, State::Ended)).count()
    }

    /// What each thread that has not ended does.
    pub fn states(&self) -> String {
        let inner = self.inner();
        let live = inner.threads.iter().filter(|thread| !matches!(thread.state, State::Ended));
        live.map(|thread| format!("thread {}: call {}, {:?}\n", thread.id, thread.call, thread.state)).collect()
    }

    /// The calling thread sleeps.
    pub fn sleep(&self, ns: u64) {
        if let Some(me) = PLACE.get() {
            let mut inner = self.step(me, libc::SYS_nanosleep);
            let until_ns = Some(inner.now_ns + ns);
            inner.sleeps(me, Wait::Time, until_ns, None);
            self.switch(inner, me, true);
        }
    }

    /// Something was submitted or answered.
    pub fn progresses(&self) {
        let mut inner = self.inner();
        inner.progress = (inner.steps, inner.now_ns);
    }

    /// The clock.
    pub fn now_ns(&self) -> u64 {
        self.inner().now_ns
    }

    /// Lets no more call fail, or fail again.
    pub fn set_faulty(&self, faulty: bool) {
        self.inner().faults.on = faulty;
    }

    /// Looks at the faults so far.
    pub fn faults<T>(&self, look: impl FnOnce(&Faults) -> T) -> T {
        look(&self.inner().faults)
    }

    /// Counts what is no fault of a call.
    pub fn faults_mut(&self, change: impl FnOnce(&mut Faults)) {
        change(&mut self.inner().faults);
    }

    /// Every sleep on a futex ends, for nothing.
    pub fn wake_all(&self) {
        for thread in &mut self.inner().threads {
            if let State::Sleeps { wait: Wait::Futex { woken, .. }, .. } = &mut thread.state {
                *woken = true;
            }
        }
    }

    /// Asked whenever the clock jumps: what is wrong with that.
    pub fn on_jump(&self, look: fn() -> Option<String>) {
        self.inner().on_jump = Some(look);
    }

    /// The calling thread, of the program, is where another one may come first.
    pub fn point_of_program(&self) {
        if let Some(me) = PLACE.get() {
            self.pass(me, -5);
        }
    }

    /// What there was so far.
    pub fn figures(&self) -> Figures {
        let inner = self.inner();
        let faults = inner.faults.counts();
        Figures { steps: inner.steps, digest: inner.digest, jumps: inner.jumps, faults }
    }

    /// In a forked child, whose only thread is the calling one.
    pub fn forked(&self) {
        let mut inner = self.inner();
        let me = PLACE.get();
        for (place, thread) in inner.threads.iter_mut().enumerate() {
            match Some(place) == me {
                true => thread.id = thread_id(),
                false => thread.state = State::Ended,
            }
        }
        inner.progress = (inner.steps, inner.now_ns);
    }

    /// The next step of the calling thread, which has the turn and makes this call.
    fn step(&self, me: usize, number: libc::c_long) -> MutexGuard<'_, Inner> {
        let mut inner = self.inner();
        while inner.arriving.is_some() {
            let waited = self.arrived.wait_timeout(inner, Duration::from_secs(10));
            let (held, late) = waited.unwrap_or_else(|poisoned| poisoned.into_inner());
            assert!(!late.timed_out(), "a new thread does not arrive");
            inner = held;
        }
        inner.steps += 1;
        let tick = inner.random.u64(50..1000);
        inner.now_ns += tick;
        inner.threads[me].call = number;
        inner.mix(me as u64 ^ (number as u64) << 8);
        let (step, ns) = inner.progress;
        if inner.steps > step + STEPS_WITHOUT_PROGRESS || inner.now_ns > ns + NS_WITHOUT_PROGRESS {
            inner.give_up("no-progress: threads go on, and nothing is answered");
        }
        inner
    }

    /// Gives the turn to whoever is next, and comes back when the calling thread has it again.
    fn switch<'a>(&'a self, mut inner: MutexGuard<'a, Inner>, me: usize, leaves: bool) -> Why {
        let next = inner.choose(me, leaves);
        if next != me {
            let (turn, mine) = (inner.threads[next].turn, inner.threads[me].turn);
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
        inner.threads[me].why
    }

    /// Another thread may come first.
    fn pass(&self, me: usize, number: libc::c_long) {
        let inner = self.step(me, number);
        self.switch(inner, me, false);
    }

    fn announce(&self, is_engines: bool) {
        let mut inner = self.inner();
        let turn: &'static AtomicU32 = Box::leak(Box::new(AtomicU32::new(0)));
        // In the list once it is there (`begins`): until then nobody makes a step.
        inner.arriving = Some((turn, is_engines));
    }

    /// Waits, and then makes the call, which does not wait any more; or answers instead of it.
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
        inner.sleeps(me, wait, until_ns, stop);
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
        // SAFETY: a word of the engine's, which it waits on.
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
        let mut inner = self.inner();
        let mut sleepers: Vec<usize> = (0..inner.threads.len()).filter(|place| {
            matches!(inner.threads[*place].state, State::Sleeps { wait: Wait::Futex { address: at, bits, woken: false }, .. }
                if at == address && bits & mask != 0)
        }).collect();
        // Whoever it is that wakes: the order is not promised.
        inner.random.shuffle(&mut sleepers);
        sleepers.truncate(most);
        for place in &sleepers {
            if let State::Sleeps { wait: Wait::Futex { woken, .. }, .. } = &mut inner.threads[*place].state {
                *woken = true;
            }
        }
        sleepers.len() as isize
    }

    /// getrusage(2) of the calling thread: how often it has slept here. The kernel would count its waits for the turn too,
    /// and of these only the ones that the giver was too late for.
    fn usage(&self, me: usize, args: [usize; 6]) -> isize {
        let done = kernel(libc::SYS_getrusage, args);
        if done == 0 && args[0] as i32 == libc::RUSAGE_THREAD {
            // SAFETY: the engine's own structure, which the call has just written.
            unsafe { (*(args[1] as *mut libc::rusage)).ru_nvcsw = self.inner().threads[me].sleeps as libc::c_long };
        }
        done
    }

    /// Waits until a descriptor is ready for a call that would wait in the kernel.
    fn wait_for(&self, me: usize, number: libc::c_long, set: Vec<(i32, i16)>, stop: Option<&AtomicU32>) -> Why {
        self.wait(me, number, Wait::Descriptors(set), None, stop)
    }

    /// A call that waits, if it is one.
    fn sleeping(
        &self,
        me: usize,
        number: libc::c_long,
        mut args: [usize; 6],
        stop: Option<&AtomicU32>,
    ) -> Option<isize> {
        const INTERRUPTED: isize = -(libc::EINTR as isize);
        let (fd, readable, writable) = (args[0] as i32, libc::POLLIN, libc::POLLOUT);
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
            libc::SYS_epoll_wait | libc::SYS_epoll_pwait | libc::SYS_epoll_pwait2 => {
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
        let flags = kernel(libc::SYS_fcntl, [args[0], libc::F_GETFL as usize, 0, 0, 0, 0]);
        if flags >= 0 && flags as i32 & libc::O_NONBLOCK != 0 {
            return None;
        }
        match self.wait_for(me, number, vec![(fd, waits_for)], stop) {
            Why::Ready | Why::Late => None,
            Why::Stopped | Why::Interrupted => Some(INTERRUPTED),
        }
    }
}

/// What a `struct timespec` says; None for none.
fn time_of(address: usize) -> Option<u64> {
    // SAFETY: the engine's own, which is not changed during the call.
    let time = (address != 0).then(|| unsafe { *(address as *const [i64; 2]) })?;
    Some((time[0] as u64).saturating_mul(1_000_000_000).saturating_add(time[1] as u64))
}

fn give(turn: &AtomicU32) {
    turn.store(1, Ordering::Release); // partner: the Acquire in `await_turn`
    kernel(
        libc::SYS_futex,
        [turn.as_ptr() as usize, (libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG) as usize, 1, 0, 0, 0],
    );
}

fn await_turn(turn: &AtomicU32) {
    // Acquire pairs with the Release in `give`.
    while turn.swap(0, Ordering::Acquire) == 0 {
        kernel(
            libc::SYS_futex,
            [turn.as_ptr() as usize, (libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG) as usize, 0, 0, 0, 0],
        );
    }
}

impl Inner {
    fn sleeps(&mut self, me: usize, wait: Wait, until_ns: Option<u64>, stop: Option<usize>) {
        self.threads[me].sleeps += 1;
        self.threads[me].state = State::Sleeps { wait, until_ns, stop };
    }

    fn mix(&mut self, value: u64) {
        self.digest = (self.digest ^ value).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(23);
    }

    /// Why the thread could go on now.
    fn can_run(&self, place: usize) -> Option<Why> {
        let (wait, until_ns, stop) = match &self.threads[place].state {
            State::Runs => return Some(Why::Ready),
            State::Ended => return None,
            State::Sleeps { wait, until_ns, stop } => (wait, until_ns, stop),
        };
        let is_ready = match wait {
            Wait::Futex { woken, .. } => *woken,
            Wait::Descriptors(set) => are_ready(set),
            Wait::End(of) => matches!(self.threads[*of].state, State::Ended),
            Wait::Time => false,
        };
        // SAFETY: the word is that of the call in which the thread sleeps.
        let stopped =
            || stop.is_some_and(|word| unsafe { (*(word as *const AtomicU32)).load(Ordering::SeqCst) != 0 });
        match () {
            () if is_ready => Some(Why::Ready),
            () if stopped() => Some(Why::Stopped),
            () if until_ns.is_some_and(|until_ns| until_ns <= self.now_ns) => Some(Why::Late),
            () => None,
        }
    }

    /// Who runs next. `leaves`: the thread that has the turn sleeps, or looks for others.
    fn choose(&mut self, me: usize, leaves: bool) -> usize {
        if !leaves && self.random.u64(..self.switch_every) != 0 {
            self.threads[me].why = Why::Ready;
            return me;
        }
        if !leaves && self.random.u64(..self.delay_every) == 0 {
            let steps = [20, 200, 2000][self.random.usize(..3)];
            self.threads[me].delayed_until = self.steps + self.random.u64(..steps);
            self.faults.count("delay", 1);
        }
        let next = loop {
            let can: Vec<_> = (0..self.threads.len()).filter_map(|it| Some((it, self.can_run(it)?))).collect();
            let soon: Vec<_> = can.iter().filter(|(it, _)| self.threads[*it].delayed_until <= self.steps).collect();
            if let Some(next) = self.faults.spurious(&mut self.random).and_then(|pick| self.sleeper(pick)) {
                break (next, Why::Interrupted);
            }
            // Who only looks for others comes when there is nobody else.
            let others = |it: &&&(usize, Why)| it.0 != me || !leaves;
            let soon: Vec<_> = match soon.iter().filter(others).count() {
                0 => soon.into_iter().collect(),
                _ => soon.iter().filter(others).copied().collect(),
            };
            if !soon.is_empty() {
                break *soon[self.random.usize(..soon.len())];
            }
            if !can.is_empty() {
                break can[self.random.usize(..can.len())];
            }
            let ends = self.threads.iter().filter_map(|thread| match thread.state {
                State::Sleeps { until_ns, .. } => until_ns,
                _ => None,
            });
            let wrong = self.on_jump.and_then(|look| look());
            if let Some(wrong) = wrong {
                self.give_up(&wrong);
            }
            match ends.min() {
                Some(until_ns) => (self.now_ns, self.jumps) = (until_ns.max(self.now_ns), self.jumps + 1),
                None => self.give_up("deadlock: nobody can run"),
            }
            let (_, ns) = self.progress;
            if self.now_ns > ns + NS_WITHOUT_PROGRESS {
                self.give_up("no-progress: threads only wait");
            }
        };
        self.mix(next.0 as u64);
        self.threads[next.0].why = next.1;
        self.threads[next.0].state = State::Runs;
        next.0
    }

    /// One of the threads whose sleep may end for nothing: those of futexes, and what signals interrupt.
    fn sleeper(&self, pick: usize) -> Option<usize> {
        let sleeps = |thread: &Thread| matches!(thread.state, State::Sleeps { wait: Wait::Futex { .. }, .. });
        let sleepers: Vec<_> = (0..self.threads.len()).filter(|it| sleeps(&self.threads[*it])).collect();
        (!sleepers.is_empty()).then(|| sleepers[pick % sleepers.len()])
    }

    /// Reports what everybody does, and ends the process.
    fn give_up(&self, why: &str) -> ! {
        let faults: Vec<_> =
            self.faults.counts().into_iter().map(|(kind, count)| format!("{kind}: {count}")).collect();
        let mut text = format!("{why} (step {}, {} ns; {})\n", self.steps, self.now_ns, faults.join(", "));
        for (place, thread) in self.threads.iter().enumerate() {
            if !matches!(thread.state, State::Ended) {
                let whose = if thread.is_engines { "engine" } else { "program" };
                let _ = writeln!(text, "  thread {place} ({whose}): call {}, {:?}", thread.call, thread.state);
            }
        }
        crate::report::finding(&text)
    }
}

/// Whether one of the descriptors has what it is waited for, or never will.
fn are_ready(set: &[(i32, i16)]) -> bool {
    let mut set: Vec<_> =
        set.iter().map(|(fd, events)| libc::pollfd { fd: *fd, events: *events, revents: 0 }).collect();
    let now = [0i64; 2];
    kernel(libc::SYS_ppoll, [set.as_mut_ptr() as usize, set.len(), now.as_ptr() as usize, 0, 8, 0]) > 0
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
        PLACE.set(Some(inner.threads.len()));
        inner.threads.push(Thread::new(turn, is_engines));
        drop(inner);
        self.arrived.notify_all();
        await_turn(turn);
    }

    fn ends(&self) {
        let Some(me) = PLACE.take() else { return };
        let mut inner = self.step(me, -4);
        inner.threads[me].state = State::Ended;
        inner.leaving = Some(thread_id());
        let next = inner.choose(me, true);
        let turn = inner.threads[next].turn;
        drop(inner);
        give(turn);
    }

    fn sleeps(&self, thread: u32) -> Option<bool> {
        let inner = self.inner();
        let found = inner.threads.iter().find(|it| it.id == thread && !matches!(it.state, State::Ended))?;
        Some(!matches!(found.state, State::Runs))
    }
}
