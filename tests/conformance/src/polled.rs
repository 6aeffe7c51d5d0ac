//! A ring with IORING_SETUP_SQPOLL as the cases about polling threads use it: mostly without any call.

use crate::asleep::wait_thread_asleep;
use crate::case::Context;
use crate::ring::{Ring, PATIENCE};
use anyring_abi::*;
use std::sync::atomic::{fence, Ordering};
use std::time::Instant;

/// Milliseconds after which most of these threads go to sleep.
pub const IDLE_MS: u32 = 20;

/// Parameters of a polled ring, with more flags.
pub fn params(flags: u32) -> Params {
    Params { flags: flags | IORING_SETUP_SQPOLL, sq_thread_idle: IDLE_MS, ..Params::default() }
}

/// A ring of exactly these parameters.
pub fn ring_of(cx: &Context, entries: u32, params: Params) -> Ring {
    Ring::from_params(cx.door, entries, params).unwrap_or_else(|answer| panic!("setup answered {answer}"))
}

/// A polled ring.
pub fn polled(cx: &Context, entries: u32) -> Ring {
    ring_of(cx, entries, params(0))
}

/// Makes a ring with a polling thread, and waits until that thread runs. Returns the ring and the thread's id.
pub fn polled_by(cx: &Context) -> (Ring, i32) {
    let ring = polled(cx, 4);
    poll_until("the thread", || pollers().len() == 1);
    (ring, pollers()[0])
}

/// Checks memory until `done` holds. The only system call that it makes is one that yields the processor.
pub fn poll_until(what: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < PATIENCE, "it never came: {what}");
        std::thread::yield_now();
    }
}

/// True if the thread asks to be woken.
pub fn sleeps(ring: &Ring) -> bool {
    ring.sq_flags() & IORING_SQ_NEED_WAKEUP != 0
}

/// Polls memory until the thread asks to be woken.
pub fn wait_asleep(ring: &Ring) {
    poll_until("the thread's sleep", || sleeps(ring));
}

/// Checks until the thread asks to be woken, and waits until it sleeps: it sets the flag first, then reads the tail
/// once more.
pub fn wait_blocked(ring: &Ring) {
    wait_asleep(ring);
    let thread = if std::path::Path::new("/proc/self/task").exists() { pollers()[0] } else { 0 };
    wait_thread_asleep(thread);
}

/// Checks until the thread has taken every SQE that was published. It moves the head past them only after it ran
/// them, so their CQEs may be posted before.
pub fn wait_consumed(ring: &Ring) {
    poll_until("the head at the tail", || ring.sq_ready() == 0);
}

/// Publishes what was pushed and wakes the thread if it asks for that, as liburing does.
pub fn publish(ring: &mut Ring) {
    ring.publish();
    // The thread sets the flag before it reads the tail for the last time. This fence pairs with its barrier there.
    fence(Ordering::SeqCst);
    if sleeps(ring) {
        assert_eq!(ring.door.enter_unseen(ring.fd, 0, 0, IORING_ENTER_SQ_WAKEUP, 0, 0), 0);
    }
}

/// Pushes these and has the thread see them.
pub fn go(ring: &mut Ring, sqes: &[Sqe]) {
    sqes.iter().for_each(|sqe| ring.push(*sqe));
    publish(ring);
}

/// Waits for the next CQE by reading memory only.
pub fn seen(ring: &mut Ring) -> Cqe {
    poll_until("a CQE", || ring.cq_ready() != 0);
    ring.peek().expect("a CQE")
}

/// The ids of this process's polling threads. The engine's threads and the kernel's are found by their names. The case
/// ends as skipped if there is no /proc.
pub fn pollers() -> Vec<i32> {
    let tasks =
        std::fs::read_dir("/proc/self/task").unwrap_or_else(|_| crate::case::skip("there is no /proc here"));
    let ids = tasks.map(|entry| entry.expect("a task").file_name().to_string_lossy().parse().expect("a number"));
    ids.filter(|id: &i32| {
        let name = std::fs::read_to_string(format!("/proc/self/task/{id}/comm")).unwrap_or_default();
        name.starts_with("iou-sqp") || name.starts_with("anyring-sqpoll")
    })
    .collect()
}

/// A line of a polling thread's /proc status.
pub fn status_of(thread: i32, field: &str) -> String {
    let status = std::fs::read_to_string(format!("/proc/self/task/{thread}/status")).expect("the thread's status");
    let line = status.lines().find_map(|line| line.strip_prefix(field)).expect("the field");
    line.trim_start_matches(':').trim().to_owned()
}
