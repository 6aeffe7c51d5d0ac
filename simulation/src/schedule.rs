//! The threads of a simulated process: what each sleeps on, and which of them runs next.

use crate::faults::Faults;
use anyring_engine::os::simulated::kernel;
use std::fmt::Write as _;
use std::sync::atomic::{AtomicU32, Ordering};

/// Steps without progress after which nothing will come any more: threads that look again and again.
pub const STEPS_WITHOUT_PROGRESS: u64 = 300_000;
/// The same, of the simulated clock.
pub const NS_WITHOUT_PROGRESS: u64 = 600_000_000_000;

/// What a thread waits for.
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

/// What a thread does.
#[derive(Debug, Clone)]
pub enum State {
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
pub enum Why {
    Ready,
    Late,
    Stopped,
    Interrupted,
}

/// A thread of the program's or the engine's.
pub struct Thread {
    /// gettid(2); 0 before it is there.
    pub id: u32,
    pub state: State,
    pub why: Why,
    /// Not chosen before this step, as long as another one can run.
    pub delayed_until: u64,
    /// Its last call.
    pub call: libc::c_long,
    /// It has the turn.
    pub turn: &'static AtomicU32,
    pub is_engines: bool,
    /// How often it has slept.
    pub sleeps: u64,
}

impl Thread {
    /// The calling thread.
    pub fn new(turn: &'static AtomicU32, is_engines: bool) -> Thread {
        let (id, state, why) = (thread_id(), State::Runs, Why::Ready);
        Thread { id, state, why, delayed_until: 0, call: -1, turn, is_engines, sleeps: 0 }
    }
}

/// Which threads there are, and all that decides who is next.
pub struct Schedule {
    pub threads: Vec<Thread>,
    pub random: fastrand::Rng,
    pub faults: Faults,
    pub now_ns: u64,
    pub steps: u64,
    /// When something was last submitted or answered: the step, and the time.
    pub progress: (u64, u64),
    /// A thread is being made: its turn, and whether it is the engine's.
    pub arriving: Option<(&'static AtomicU32, bool)>,
    /// The thread that has just ended, until the kernel has forgotten it.
    pub leaving: Option<u32>,
    /// One switch in so many points.
    pub switch_every: u64,
    /// One long delay in so many switches.
    pub delay_every: u64,
    pub digest: u64,
    pub jumps: u64,
    pub on_jump: Option<fn() -> Option<String>>,
}

pub fn thread_id() -> u32 {
    kernel(libc::SYS_gettid, [0; 6]) as u32
}

pub fn give(turn: &AtomicU32) {
    turn.store(1, Ordering::Release); // partner: the Acquire in `await_turn`
    kernel(
        libc::SYS_futex,
        [turn.as_ptr() as usize, (libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG) as usize, 1, 0, 0, 0],
    );
}

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
    pub fn sleeps(&mut self, me: usize, wait: Wait, until_ns: Option<u64>, stop: Option<usize>) {
        self.threads[me].sleeps += 1;
        self.threads[me].state = State::Sleeps { wait, until_ns, stop };
    }

    pub fn mix(&mut self, value: u64) {
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
    pub fn choose(&mut self, me: usize, leaves: bool) -> usize {
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
    pub fn give_up(&self, why: &str) -> ! {
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
