//! Panics on demand. The test of decision 14 (docs/decisions) makes each place named in this file panic once.
//!
//! Only the build with the feature `forced-panics` does so. In every other build a [`point`] is nothing. The variable
//! `ANYRING_PANIC` holds `POINT` or `POINT:N`. The N-th arrival at that point from the start of the process panics. A
//! program that wants to choose the moment finds the function `anyring_force_panic` (see
//! `crates/inject/src/forced.rs`).

/// The part of the engine that a panic at a point breaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Breaks {
    /// Only the ring on which the engine was working.
    Ring,
    /// No ring. A call that makes a ring fails with EIO, and any other call continues as without the engine.
    Nothing,
}

macro_rules! points {
    ($($point:ident $name:literal $breaks:ident, $what:literal;)*) => {
        /// The places that can be made to panic.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Point { $(#[doc = $what] $point,)* }

        /// Every point, its name, and the part that a panic there breaks.
        pub const POINTS: &[(Point, &str, Breaks)] = &[$((Point::$point, $name, Breaks::$breaks),)*];
    };
}

points! {
    Constructor "constructor" Nothing, "The library is loaded.";
    Liburing "liburing" Nothing, "A function of liburing's.";
    Syscall "syscall" Nothing, "libc's `syscall()`.";
    Trap "trap" Nothing, "A trapped instruction.";
    SetupDoor "setup" Nothing, "io_uring_setup(2).";
    SetupMade "setup-made" Nothing, "io_uring_setup(2), with memory and descriptors made.";
    EnterDoor "enter" Ring, "io_uring_enter(2), before the engine.";
    RegisterDoor "register" Ring, "io_uring_register(2), before the engine.";
    Close "close" Nothing, "close(2), dup2(2), dup3(2), fclose(3).";
    Dup "dup" Nothing, "dup(2) of a ring.";
    CloseRange "close-range" Nothing, "close_range(2), closefrom(3).";
    Fcntl "fcntl" Nothing, "fcntl(2) on a ring.";
    Sendmsg "sendmsg" Nothing, "sendmsg(2), sendmmsg(2).";
    Mmap "mmap" Nothing, "mmap(2) of a ring.";
    EpollCtl "epoll-ctl" Nothing, "epoll_ctl(2) on a ring.";
    EpollWait "epoll-wait" Nothing, "epoll_wait(2) and its relatives.";
    Poll "poll" Nothing, "poll(2), ppoll(2).";
    Select "select" Nothing, "select(2), pselect(2).";
    Sigaction "sigaction" Nothing, "sigaction(2) and its relatives.";
    Sigmask "sigmask" Nothing, "sigprocmask(2) and its relatives.";
    Context "context" Nothing, "setcontext(3), swapcontext(3).";
    Jump "jump" Nothing, "longjmp(3).";
    Dlopen "dlopen" Nothing, "dlopen(3).";
    ThreadExit "thread-exit" Nothing, "A thread that registered rings for itself ends.";
    Identity "identity" Nothing, "A thread is about to change its identity, beside others.";
    Table "table" Nothing, "A thread has got a table of descriptors of its own.";
    Room "room" Ring, "Memory for the next request is made sure of.";
    Intake "intake" Ring, "An SQE is consumed.";
    Prep "prep" Ring, "It was copied and is prepared.";
    Attempt "attempt" Ring, "A request is attempted.";
    Arm "arm" Ring, "A request is armed: on a list, not counted.";
    Punt "punt" Ring, "A request is on its way to a worker.";
    Stage "stage" Ring, "A transfer is staged for the kernel's AIO.";
    Reap "reap" Ring, "The kernel's AIO has ended a transfer.";
    Finish "finish" Ring, "A request has left the slab, its CQE is not posted.";
    Serve "serve" Ring, "An event of the poll set is served.";
    Retry "retry" Ring, "An armed request is attempted again.";
    Timer "timer" Ring, "A timer is off the heap and has not completed.";
    Cancel "cancel" Ring, "A request is being cancelled.";
    Post "post" Ring, "The post lock is held, nothing is posted.";
    Posted "posted" Ring, "The post lock is held, the tail has moved.";
    Backlog "backlog" Ring, "The post lock is held, one CQE is in the backlog.";
    Calls "calls" Ring, "The thread that submitted is about to make a call.";
    Left "left" Ring, "No lock is held any more: what has waited for that is done.";
    FinishBatch "finish-batch" Ring, "The ring's lock is about to be released.";
    Sleep "sleep" Ring, "A waiter is in the books and about to sleep.";
    Register "register-locked" Ring, "io_uring_register(2) holds the ring.";
    CloseRing "close-ring" Ring, "A ring's number is being closed.";
    Teardown "teardown" Nothing, "A ring has ended, its memory and descriptors are still there.";
    WorkerBefore "worker-before" Ring, "A worker has taken a job.";
    WorkerInside "worker-inside" Ring, "A worker makes the call.";
    WorkerAfter "worker-after" Ring, "A worker brings the result back.";
    WorkerIdle "worker-idle" Nothing, "A worker looks for a job.";
    CredsPoolIdle "creds-pool-idle" Nothing, "A worker with its submitter's identity looks for a job.";
    PollerRound "sqpoll-round" Nothing, "The polling thread looks at its rings.";
    PollerRing "sqpoll-ring" Ring, "The polling thread holds a ring.";
    HelperStart "helper-start" Nothing, "The helper begins.";
    HelperTick "helper-tick" Nothing, "The helper looks after its rings.";
    HelperRing "helper-ring" Ring, "The helper holds a ring.";
}

/// Panics at this point if that was asked for.
#[cfg(not(feature = "forced-panics"))]
#[inline(always)]
pub fn point(_: Point) {}

#[cfg(feature = "forced-panics")]
pub use armed::{arm, point};

#[cfg(feature = "forced-panics")]
mod armed {
    use super::{Point, POINTS};
    use core::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};

    const NONE: u32 = u32::MAX;
    /// The armed point's place in [`POINTS`], which is its discriminant.
    static ARMED: AtomicU32 = AtomicU32::new(NONE);
    /// Number of arrivals left at the armed point. The last one panics.
    static LEFT: AtomicU32 = AtomicU32::new(0);
    /// True once the environment has been read.
    static ASKED: AtomicBool = AtomicBool::new(false);

    /// Panics at this point if that was asked for.
    pub fn point(point: Point) {
        if !ASKED.swap(true, Relaxed) {
            if let Ok(wanted) = std::env::var("ANYRING_PANIC") {
                assert!(arm(&wanted), "ANYRING_PANIC={wanted} names no point");
            }
        }
        if ARMED.load(Relaxed) == point as u32 && LEFT.fetch_sub(1, Relaxed) == 1 {
            ARMED.store(NONE, Relaxed);
            panic!("forced at {}", POINTS[point as usize].1);
        }
    }

    /// Arms `POINT` or `POINT:N`. False if there is no such point.
    pub fn arm(wanted: &str) -> bool {
        let (name, count) = wanted.split_once(':').unwrap_or((wanted, "1"));
        let Some(place) = POINTS.iter().position(|(_, known, _)| *known == name) else { return false };
        let Ok(count @ 1..) = count.parse::<u32>() else { return false };
        ASKED.store(true, Relaxed);
        LEFT.store(count, Relaxed);
        ARMED.store(place as u32, Relaxed);
        true
    }
}
