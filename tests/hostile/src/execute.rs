//! Runs a program's steps. Nothing here allocates: a limit on addresses may be in force.

mod aio;
mod nuisances;
pub mod numbers;
pub mod places;
mod rings;

use crate::arena::{self, Area};
use crate::call::{self, poke, poke_u32};
use crate::child::{self, report, Progress};
use crate::program::*;
use crate::witness;
use anyring_test_kit::set_soft_limit;
use libc::c_int;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::time::{Duration, Instant};

/// The time after which a program takes no further step.
const STEPS: Duration = Duration::from_millis(1500);
/// The time after which a thread or a child that should have ended counts as hanging. All their waits end after
/// milliseconds.
const PATIENCE: Duration = Duration::from_secs(40);
/// The least number of checks in that time.
const LOOKS: u32 = 2000;
/// The most children of a process.
const CHILDREN: usize = 32;

/// The soft limits that a program begins with.
#[derive(Clone)]
struct Limits([(u32, u64); 6]);

impl Limits {
    fn now() -> Limits {
        let of = |resource: u32| {
            let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
            // SAFETY: a local that outlives the call.
            unsafe { libc::getrlimit(resource, &mut limit) };
            (resource, limit.rlim_cur)
        };
        let all = [
            libc::RLIMIT_NOFILE,
            libc::RLIMIT_AS,
            libc::RLIMIT_FSIZE,
            libc::RLIMIT_NPROC,
            libc::RLIMIT_MEMLOCK,
            libc::RLIMIT_SIGPENDING,
        ];
        Limits(all.map(of))
    }

    /// Restores this limit, or all of them for `None`.
    fn restore(&self, resource: Option<u32>) {
        self.restore_those(|known| resource.is_none_or(|resource| resource == known));
    }

    fn restore_but(&self, resource: u32) {
        self.restore_those(|known| known != resource);
    }

    fn restore_those(&self, is_meant: impl Fn(u32) -> bool) {
        for (known, value) in self.0.into_iter().filter(|(known, _)| is_meant(*known)) {
            set_soft_limit(known, value);
        }
    }
}

/// True if the words of rings are left alone, since Linux 6.18 hung when they changed. Relaxed: stored before any
/// thread is made.
static GENTLE: AtomicBool = AtomicBool::new(false);

fn is_gentle() -> bool {
    GENTLE.load(Ordering::Relaxed)
}

/// The state of a process that runs steps.
#[derive(Clone)]
struct Runner {
    limits: Limits,
    children: [libc::pid_t; CHILDREN],
    /// True in a child or another thread: a step does not change the place from here.
    is_elsewhere: bool,
    /// True in a child, whose parent does the final checks.
    is_child: bool,
    until: Option<Instant>,
}

/// Runs the steps, ends all that they began, and reports hangs.
pub fn run(program: &Program, progress: &Progress, slowly: bool, gentle: bool) {
    GENTLE.store(gentle, Ordering::Relaxed);
    let until = (!slowly).then(|| Instant::now() + STEPS);
    let mut runner =
        Runner { limits: Limits::now(), children: [0; CHILDREN], is_elsewhere: false, is_child: false, until };
    child::IS_PROGRAMS.set(true);
    nuisances::prepare();
    places::prepare();
    runner.steps(&program.steps, Some(progress));
    progress.at(10_000);
    // A waiting thread or child needs no descriptor.
    runner.limits.restore_but(libc::RLIMIT_NOFILE);
    nuisances::end(PATIENCE);
    progress.at(10_001);
    runner.wait_for_children();
    progress.at(10_002);
    witness::check(program, PATIENCE);
    runner.limits.restore(None);
    numbers::empty();
    progress.at(10_003);
    aio::destroy_all();
    progress.at(10_004);
    rings::close_all(program.seed);
    progress.at(10_005);
}

impl Runner {
    /// Runs steps, one after the other.
    fn steps(&mut self, steps: &[Step], progress: Option<&Progress>) {
        let mut next = 0;
        while let Some(step) = steps.get(next) {
            if let Some(progress) = progress {
                progress.at(next);
            }
            if self.until.is_some_and(|until| Instant::now() > until) {
                return;
            }
            next += 1;
            match step {
                Step::Within { place, steps: count } => {
                    let end = steps.len().min(next + usize::from(*count));
                    next += self.within(*place, &steps[next..end]);
                }
                step => self.step(step),
            }
        }
    }

    fn step(&mut self, step: &Step) {
        match step {
            Step::Setup { .. }
            | Step::Submit { .. }
            | Step::Enter(_)
            | Step::Register { .. }
            | Step::Reap { .. } => {
                rings::step(step);
            }
            Step::MapBufferRing { .. } | Step::Poll { .. } => rings::step(step),
            Step::AioSetup { .. } | Step::AioSubmit { .. } | Step::AioGetevents { .. } => aio::step(step),
            Step::AioCancel { .. } | Step::AioDestroy { .. } | Step::AioScramble { .. } => aio::step(step),
            Step::Write { at: Word::At(Area::Rings(_), _), .. } if is_gentle() => {}
            Step::Write { at, words } => {
                for (number, word) in words.iter().enumerate() {
                    poke(resolve(*at) as usize + 8 * number, &resolve(*word).to_ne_bytes());
                }
            }
            Step::Protect { area, page, pages, how } => protect(*area, *page, *pages, *how),
            Step::Close(fd) => {
                // SAFETY: a number from 10 on, on which nothing of this process depends.
                unsafe { libc::close(rings::number(*fd)) };
            }
            Step::CloseRange { first, last } => {
                // SAFETY: victims.
                unsafe { libc::close_range(*first as u32, *last as u32, 0) };
            }
            Step::Dup { from, onto } => {
                let from = rings::number(*from);
                // SAFETY: numbers; the second a victim's, or a new one from 10 on.
                unsafe {
                    match *onto {
                        -1 => libc::fcntl(from, libc::F_DUPFD_CLOEXEC, 10),
                        onto => libc::dup2(from, onto),
                    }
                };
            }
            Step::Reopen { victim, kind } => child::open_victim(*victim, *kind),
            Step::Feed { victim, write, bytes } => feed(*victim, *write, *bytes),
            Step::Limit { resource, value } => match value {
                None => self.limits.restore(Some(*resource)),
                Some(value) if *resource == libc::RLIMIT_AS => {
                    set_soft_limit(*resource, used_bytes() + (value << 20))
                }
                Some(value) => set_soft_limit(*resource, *value),
            },
            Step::Signal { signal, to_process } => {
                // SAFETY: the program has a handler for it.
                unsafe {
                    match to_process {
                        true => libc::kill(libc::getpid(), *signal),
                        false => libc::pthread_kill(libc::pthread_self(), *signal),
                    }
                };
            }
            Step::Start(kind, seed) => {
                if !self.is_child {
                    nuisances::start(*kind, *seed);
                }
            }
            // A child may have its parent's table.
            Step::Standard { .. } if self.is_child => {}
            Step::Standard { numbers } => numbers::close_standard(*numbers),
            Step::Fill { .. } | Step::Empty if self.is_child => {}
            Step::Fill { limit, left } => numbers::fill(*limit, *left),
            Step::Empty => numbers::empty(),
            Step::Name { call } => numbers::name(*call),
            Step::Witness { flags } => {
                if !self.is_child {
                    // The first thread submits to it, whichever thread makes it.
                    witness::make(if self.is_elsewhere { 0 } else { *flags });
                }
                if !self.is_elsewhere {
                    witness::arm();
                }
            }
            Step::Pause => std::thread::sleep(Duration::from_millis(2)),
            Step::Within { .. } => unreachable!("the caller that goes through the steps handles it"),
        }
    }

    fn wait_for_children(&self) {
        for child in self.children.iter().filter(|child| **child > 0) {
            wait_for_child(*child, PATIENCE);
        }
    }
}

/// Waits for a child, and reports if it crashed or hangs. A WAITID request may have reaped it already.
pub fn wait_for_child(child: libc::pid_t, patience: Duration) {
    let start = Instant::now();
    let (mut status, mut looks) = (0, 0);
    loop {
        // SAFETY: a local for the status.
        match unsafe { libc::waitpid(child, &mut status, libc::WNOHANG) } {
            0 => {}
            -1 => return,
            _ => break,
        }
        looks += 1;
        // Few checks mean that the machine stood still: then the time alone does not count.
        if start.elapsed() > patience && looks > LOOKS {
            let mut place = [0; 64];
            report(format_args!("hang: forked child {child} does not end: {}", place_of(child, &mut place)));
            // SAFETY: it belongs to this process and was not waited for.
            unsafe { libc::kill(child, libc::SIGKILL) };
            return;
        }
        std::thread::sleep(Duration::from_micros(500));
    }
    if libc::WIFSIGNALED(status) {
        report(format_args!("signal {} killed a forked child", libc::WTERMSIG(status)));
    } else if libc::WEXITSTATUS(status) != 0 {
        report(format_args!("exit: a forked child ended with {}", libc::WEXITSTATUS(status)));
    }
}

/// True if a wait returned an error after which it is repeated.
pub fn call_interrupted(answer: i64) -> bool {
    [libc::EINTR, libc::EAGAIN, libc::EBUSY].iter().any(|error| answer == -i64::from(*error))
}

/// Returns the kernel function in which a process sleeps.
fn place_of(process: libc::pid_t, place: &mut [u8; 64]) -> &str {
    use std::io::Write;
    let mut path = [0u8; 32];
    let _ = write!(&mut path[..31], "/proc/{process}/wchan"); // it has room
                                                              // SAFETY: a path that ends in a zero, and memory of the caller's to read to.
    let length = unsafe {
        let file = libc::open(path.as_ptr().cast(), libc::O_RDONLY | libc::O_CLOEXEC);
        let length = libc::read(file, place.as_mut_ptr().cast(), place.len());
        libc::close(file);
        length
    };
    let read = place.get(..usize::try_from(length).unwrap_or(0)).unwrap_or_default();
    core::str::from_utf8(read).unwrap_or_default()
}

/// Returns the number or address.
pub fn resolve(word: Word) -> u64 {
    match word {
        Word::Plain(value) => value,
        Word::At(Area::Rings(_), _) if is_gentle() => Area::Scratch.start() as u64,
        Word::At(area, offset) => area.start() as u64 + u64::from(offset),
    }
}

/// Protects or replaces pages of the arena, as `how` says.
pub fn protect(area: Area, page: u8, pages: u8, how: u8) {
    if is_gentle() && matches!(area, Area::Rings(_)) {
        return;
    }
    let (start, both) = (area.start() + usize::from(page) * arena::PAGE, libc::PROT_READ | libc::PROT_WRITE);
    let bytes = usize::from(pages) * arena::PAGE;
    match how {
        0 => arena::protect(start, bytes, libc::PROT_NONE),
        1 => arena::protect(start, bytes, libc::PROT_READ),
        2 | 3 => arena::protect(start, bytes, both),
        // Inaccessible, but still reserved.
        4 => {
            arena::map(start, bytes, libc::PROT_NONE, -1, 0);
        }
        _ => {
            arena::map(start, bytes, both, -1, 0);
        }
    }
}

/// Writes to a victim, or reads from it, without waiting.
fn feed(victim: c_int, write: bool, bytes: u16) {
    let mut ready =
        libc::pollfd { fd: victim, events: if write { libc::POLLOUT } else { libc::POLLIN }, revents: 0 };
    let (data, length) = (Area::Scratch.start() as *mut libc::c_void, usize::from(bytes).min(32 << 10));
    // SAFETY: a local, and an area that is never unmapped. If the call waits after all, since another thread was
    // faster, the alarm ends it.
    unsafe {
        if libc::poll(&mut ready, 1, 0) != 1 {
            return;
        }
        if write {
            libc::write(victim, data, length);
        } else {
            libc::read(victim, data, length);
        }
    }
}

/// Returns the bytes of addresses that this process uses.
fn used_bytes() -> u64 {
    let mut text = [0u8; 64];
    // SAFETY: a constant path and a local to read to.
    unsafe {
        let file = libc::open(c"/proc/self/statm".as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC);
        libc::read(file, text.as_mut_ptr().cast(), text.len());
        libc::close(file);
    }
    let digits = text.iter().take_while(|byte| byte.is_ascii_digit());
    let pages = digits.fold(0u64, |number, digit| number * 10 + u64::from(digit - b'0'));
    pages * arena::PAGE as u64
}

/// Reads a word that several threads use. Relaxed: a wrong value does no harm, since a hostile program may name
/// anything.
fn get(word: &AtomicI32) -> i32 {
    word.load(Ordering::Relaxed)
}
