//! Waits until a thread sleeps in a call, before a case wakes it.
//!
//! A door may put the thread to sleep in any system call. So this checks two facts that hold for all of them: the
//! scheduler's state of the thread, and its number of context switches.

use crate::ring::PATIENCE;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The number of successive checks that must find the thread asleep, without it having run between them.
const LOOKS: u32 = 5;
const BETWEEN_LOOKS: Duration = Duration::from_millis(1);

/// Waits until the thread, or the process of one thread, `tid` sleeps (proc_pid_stat(5): state S or D) and stays asleep.
/// Returns when it has ended, too. Where there is no /proc it gives the thread 20 ms.
pub fn wait_thread_asleep(tid: i32) {
    if !std::path::Path::new("/proc/self/status").exists() {
        return std::thread::sleep(Duration::from_millis(20));
    }
    let start = Instant::now();
    let (mut last, mut looks) = (None, 0);
    while looks < LOOKS {
        assert!(start.elapsed() < PATIENCE, "thread {tid} never sleeps");
        let Some((asleep, switches)) = state_of(tid) else { return };
        looks = if asleep && last == Some(switches) { looks + 1 } else { 0 };
        last = Some(switches);
        std::thread::sleep(BETWEEN_LOOKS);
    }
}

/// Waits until each thread of this process sleeps, except this one and `awake`. Workers of the kernel or of the engine
/// have then done what they can, if the thread that asked for them has called io_uring_enter(2) since.
pub fn wait_others_asleep(awake: &[i32]) {
    let Ok(tasks) = std::fs::read_dir("/proc/self/task") else {
        return std::thread::sleep(Duration::from_millis(20));
    };
    let own = crate::sys::gettid();
    let ids: Vec<i32> = tasks.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect();
    ids.into_iter().filter(|id| *id != own && !awake.contains(id)).for_each(wait_thread_asleep);
}

/// Runs `action` in another thread once this one sleeps.
pub fn once_asleep<T: Send + 'static>(action: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
    let tid = crate::sys::gettid();
    std::thread::spawn(move || {
        wait_thread_asleep(tid);
        action()
    })
}

/// Runs `action` in another thread; returns once that thread sleeps, or has ended.
pub fn asleep_in<T: Send + 'static>(action: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
    let (sender, receiver) = std::sync::mpsc::channel();
    let thread = std::thread::spawn(move || {
        sender.send(crate::sys::gettid()).expect("tell the id");
        action()
    });
    wait_thread_asleep(receiver.recv().expect("the thread's id"));
    thread
}

/// Returns whether the thread sleeps, and its voluntary context switches; `None` once it has ended.
fn state_of(tid: i32) -> Option<(bool, u64)> {
    // A thread's directory in /proc is not listed there, but can be opened.
    let status = std::fs::read_to_string(format!("/proc/{tid}/status")).ok()?;
    let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
    let state = field("State:")?;
    match state.chars().next()? {
        'Z' | 'X' => None,
        state => Some((matches!(state, 'S' | 'D'), field("voluntary_ctxt_switches:")?.parse().ok()?)),
    }
}
