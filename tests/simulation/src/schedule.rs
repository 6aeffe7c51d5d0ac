//! The threads of a simulated process: what each sleeps on, and which of them runs next.

use crate::faults::Faults;
use anyring_engine::os::simulated::kernel;
use anyring_test_kit::Choices;
use std::fmt::Write as _;
use std::sync::atomic::{AtomicU32, Ordering};

/// Steps without progress after which the run is given up: threads only check again and again.
const STEPS_WITHOUT_PROGRESS: u64 = 300_000;
/// Nanoseconds of the simulated clock without progress after which the run is given up.
const NS_WITHOUT_PROGRESS: u64 = 600_000_000_000;

/// The event that a thread waits for.
#[derive(Debug, Clone)]
pub enum Wait {
    /// A wake-up of this futex, which sets `woken`.
    Futex { address: usize, bits: u32, woken: bool },
    /// One of these descriptors.
    Descriptors(Vec<(i32, i16)>),
    /// The end of the thread in this place.
    End(usize),
    /// The end of the sleep.
    Time,
}

/// The state of a thread.
#[derive(Debug, Clone)]
enum State {
    Runs,
    /// Sleeps until this time of the clock, or until the word at `stop` is not 0.
    Sleeps {
        wait: Wait,
        until_ns: Option<u64>,
        stop: Option<usize>,
    },
    Ended,
}

/// The reason why a sleep ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Why {
    Ready,
    Late,
    Stopped,
    Interrupted,
}

/// A thread of the program or of the engine.
struct Thread {
    /// gettid(2); 0 before the thread runs.
    id: u32,
    state: State,
    why: Why,
    /// The first step at which it may be chosen, unless no other thread can run.
    delayed_until: u64,
    /// Its last call.
    call: libc::c_long,
    /// The futex word by which it gets the turn.
    turn: &'static AtomicU32,
    is_engines: bool,
    /// The number of its sleeps.
    sleeps: u64,
}

impl Thread {
    /// The calling thread.
    fn new(turn: &'static AtomicU32, is_engines: bool) -> Thread {
        let (id, state, why) = (thread_id(), State::Runs, Why::Ready);
        Thread { id, state, why, delayed_until: 0, call: -1, turn, is_engines, sleeps: 0 }
    }

    /// Marks its futex, if it sleeps on one, as woken.
    fn wake(&mut self) {
        if let State::Sleeps { wait: Wait::Futex { woken, .. }, .. } = &mut self.state {
            *woken = true;
        }
    }
}

/// The threads, and everything that decides which is next.
pub struct Schedule {
    threads: Vec<Thread>,
    pub random: fastrand::Rng,
    pub faults: Faults,
    pub now_ns: u64,
    steps: u64,
    /// The step and the time at which something was last submitted or completed.
    progress: (u64, u64),
    /// A thread that is being made: its turn, and whether it is the engine's.
    pub arriving: Option<(&'static AtomicU32, bool)>,
    /// The thread that has just ended, until the kernel has forgotten it.
    pub leaving: Option<u32>,
    /// A thread is switched at one of this many points.
    switch_every: u64,
    /// One of this many switches is a long delay.
    delay_every: u64,
    digest: u64,
    jumps: u64,
    pub on_jump: Option<fn(u64) -> Option<String>>,
}

/// The figures of a run.
pub struct Figures {
    /// Number of steps of all threads: calls, locks and checks.
    pub steps: u64,
    /// A digest of all choices.
    pub digest: u64,
    /// Number of times that the clock jumped because no thread could run.
    pub jumps: u64,
    /// Faults by kind.
    pub faults: Vec<(String, u64)>,
}

fn thread_id() -> u32 {
    kernel(libc::SYS_gettid, [0; 6]) as u32
}

/// Makes a word by which a thread gets the turn.
pub fn new_turn() -> &'static AtomicU32 {
    Box::leak(Box::new(AtomicU32::new(0)))
}

/// Gives the turn to a thread, by its word.
pub fn give(turn: &AtomicU32) {
    turn.store(1, Ordering::Release); // partner: the Acquire in `await_turn`
    kernel(
        libc::SYS_futex,
        [turn.as_ptr() as usize, (libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG) as usize, 1, 0, 0, 0],
    );
}

/// Waits for the turn, by the thread's word.
pub fn await_turn(turn: &AtomicU32) {
    // Acquire pairs with the Release in `give`.
    while turn.swap(0, Ordering::Acquire) == 0 {
        kernel(
            libc::SYS_futex,
            [turn.as_ptr() as usize, (libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG) as usize, 0, 0, 0, 0],
        );
    }
}

impl Schedule {
    /// The schedule of this seed, with no threads.
    pub fn new(seed: u64) -> Schedule {
        let mut random = fastrand::Rng::with_seed(seed ^ 0x5eed_0f5e_ed00);
        let switch_every = [1, 2, 4, 16, 64][random.usize(..5)];
        let delay_every = [8, 64, 1024][random.usize(..3)];
        let faults = Faults::new(&mut random);
        Schedule {
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
        }
    }

    /// The place of the next new thread.
    pub fn next_place(&self) -> usize {
        self.threads.len()
    }

    /// Adds the calling thread. Returns its place.
    pub fn add(&mut self, turn: &'static AtomicU32, is_engines: bool) -> usize {
        self.threads.push(Thread::new(turn, is_engines));
        self.threads.len() - 1
    }

    /// Ends the calling thread, which has this place.
    pub fn ends(&mut self, place: usize) {
        self.threads[place].state = State::Ended;
        self.leaving = Some(thread_id());
    }

    /// The word by which the thread in this place gets the turn.
    pub fn turn(&self, place: usize) -> &'static AtomicU32 {
        self.threads[place].turn
    }

    /// The reason why its last sleep ended.
    pub fn why(&self, place: usize) -> Why {
        self.threads[place].why
    }

    /// Returns the number of its sleeps.
    pub fn sleeps_of(&self, place: usize) -> u64 {
        self.threads[place].sleeps
    }

    /// True if the thread with this id sleeps; `None` if there is none.
    pub fn is_asleep(&self, id: u32) -> Option<bool> {
        self.live().find(|thread| thread.id == id).map(|thread| !matches!(thread.state, State::Runs))
    }

    fn live(&self) -> impl Iterator<Item = &Thread> {
        self.threads.iter().filter(|thread| !matches!(thread.state, State::Ended))
    }

    /// The number of the engine's threads that have not ended.
    pub fn engines_threads(&self) -> usize {
        self.live().filter(|thread| thread.is_engines).count()
    }

    /// Describes each thread that has not ended.
    pub fn states(&self) -> String {
        self.live()
            .map(|thread| format!("thread {}: call {}, {:?}\n", thread.id, thread.call, thread.state))
            .collect()
    }

    /// Returns the figures so far.
    pub fn figures(&self) -> Figures {
        let faults = self.faults.counts();
        Figures { steps: self.steps, digest: self.digest, jumps: self.jumps, faults }
    }

    /// Records that something was submitted or completed.
    pub fn progresses(&mut self) {
        self.progress = (self.steps, self.now_ns);
    }

    /// Adapts to a forked child, whose only thread is number `me` of `threads`. Marks all other threads as ended.
    pub fn forked(&mut self, me: Option<usize>) {
        for (place, thread) in self.threads.iter_mut().enumerate() {
            match Some(place) == me {
                true => thread.id = thread_id(),
                false => thread.state = State::Ended,
            }
        }
        // The threads that wait on the program's rings are the parent's.
        self.on_jump = None;
        self.progresses();
    }

    /// Counts a step, with this call, of the thread in this place, which has the turn.
    pub fn step(&mut self, me: usize, number: libc::c_long) {
        self.steps += 1;
        let tick = self.random.u64(50..1000);
        self.now_ns += tick;
        self.threads[me].call = number;
        self.mix(me as u64 ^ (number as u64) << 8);
        let (step, ns) = self.progress;
        if self.steps > step + STEPS_WITHOUT_PROGRESS || self.now_ns > ns + NS_WITHOUT_PROGRESS {
            self.give_up("no-progress: threads go on, and nothing is answered");
        }
    }

    /// Puts the thread in this place to sleep: at most until this time, or until the word at `stop` is not 0.
    pub fn sleep(&mut self, me: usize, wait: Wait, until_ns: Option<u64>, stop: Option<usize>) {
        self.threads[me].sleeps += 1;
        self.threads[me].state = State::Sleeps { wait, until_ns, stop };
    }

    /// Wakes at most this many sleepers of a futex, by FUTEX_WAKE_BITSET's rules. Returns their number.
    pub fn wake(&mut self, address: usize, most: usize, mask: u32) -> usize {
        let mut sleepers: Vec<usize> = (0..self.threads.len()).filter(|place| {
            matches!(self.threads[*place].state, State::Sleeps { wait: Wait::Futex { address: at, bits, woken: false }, .. }
                if at == address && bits & mask != 0)
        }).collect();
        // Sleepers wake in a random order, since none is promised.
        self.random.shuffle(&mut sleepers);
        sleepers.truncate(most);
        sleepers.iter().for_each(|place| self.threads[*place].wake());
        sleepers.len()
    }

    /// Ends every sleep on a futex, spuriously.
    pub fn wake_all(&mut self) {
        self.threads.iter_mut().for_each(Thread::wake);
    }

    fn mix(&mut self, value: u64) {
        self.digest = (self.digest ^ value).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(23);
    }

    /// The reason why the thread could continue now; `None` if it cannot.
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

    /// Chooses the thread to run next. `leaves`: the thread that has the turn sleeps, or yields.
    pub fn choose(&mut self, me: usize, leaves: bool) -> usize {
        if !leaves && self.random.u64(..self.switch_every) != 0 {
            self.threads[me].why = Why::Ready;
            return me;
        }
        if !leaves && self.random.u64(..self.delay_every) == 0 {
            let steps = self.random.choose(&[20, 200, 2000]);
            self.threads[me].delayed_until = self.steps + self.random.u64(..steps);
            self.faults.count("delay", 1);
        }
        let next = loop {
            let can: Vec<_> = (0..self.threads.len()).filter_map(|it| Some((it, self.can_run(it)?))).collect();
            let soon: Vec<_> = can.iter().filter(|(it, _)| self.threads[*it].delayed_until <= self.steps).collect();
            if let Some(next) = self.faults.spurious(&mut self.random).and_then(|pick| self.sleeper(pick)) {
                break (next, Why::Interrupted);
            }
            // A thread that yields runs on only if no other can.
            let others = |it: &&&(usize, Why)| it.0 != me || !leaves;
            let soon: Vec<_> = match soon.iter().filter(others).count() {
                0 => soon.into_iter().collect(),
                _ => soon.iter().filter(others).copied().collect(),
            };
            if !soon.is_empty() {
                break *self.random.choose(&soon);
            }
            if !can.is_empty() {
                break self.random.choose(&can);
            }
            let ends = self.threads.iter().filter_map(|thread| match thread.state {
                State::Sleeps { until_ns, .. } => until_ns,
                _ => None,
            });
            let ends = ends.min();
            let wrong = self.on_jump.and_then(|look| look(ends.unwrap_or(u64::MAX)));
            if let Some(wrong) = wrong {
                self.give_up(&wrong);
            }
            match ends {
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

    /// Picks a thread whose sleep may end spuriously: on a futex, or in a call that a signal interrupts and that is
    /// not repeated.
    fn sleeper(&self, pick: usize) -> Option<usize> {
        const POLLS: [libc::c_long; 4] =
            [libc::SYS_epoll_wait, libc::SYS_epoll_pwait, libc::SYS_epoll_pwait2, libc::SYS_ppoll];
        let sleeps = |thread: &Thread| match &thread.state {
            State::Sleeps { wait: Wait::Futex { .. }, .. } => true,
            State::Sleeps { wait: Wait::Descriptors(_), .. } => POLLS.contains(&thread.call),
            _ => false,
        };
        let sleepers: Vec<_> = (0..self.threads.len()).filter(|it| sleeps(&self.threads[*it])).collect();
        (!sleepers.is_empty()).then(|| sleepers[pick % sleepers.len()])
    }

    /// Reports the states of all threads, and ends the process.
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

/// True if one of the descriptors is ready, or never will be.
fn are_ready(set: &[(i32, i16)]) -> bool {
    let mut set: Vec<_> =
        set.iter().map(|(fd, events)| libc::pollfd { fd: *fd, events: *events, revents: 0 }).collect();
    let now = [0i64; 2];
    kernel(libc::SYS_ppoll, [set.as_mut_ptr() as usize, set.len(), now.as_ptr() as usize, 0, 8, 0]) > 0
}
