//! Ways to learn of a completion: only the CQ, the ring's descriptor, an eventfd, task work, other threads.

use super::prelude::*;
use crate::ring::QUIET;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

topic!(since: "5.1", source: "io_uring_setup(2), io_uring_register(2), io_uring/eventfd.c");

const READABLE: isize = libc::POLLIN as isize;
const DEFER: u32 = IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN;

/// Writes one byte from another thread once this one sleeps.
fn feed_later(mut writer: std::fs::File) -> std::thread::JoinHandle<std::fs::File> {
    once_asleep(move || {
        writer.write_all(b"x").expect("write");
        writer
    })
}

/// True once the case's thread polls memory.
static LOOKS: AtomicBool = AtomicBool::new(false);

/// Writes one byte from another thread once this one polls memory, and no other thread has anything to do.
fn feed_poller(mut writer: std::fs::File) -> std::thread::JoinHandle<std::fs::File> {
    let tid = gettid();
    std::thread::spawn(move || {
        while !LOOKS.load(Ordering::SeqCst) {
            std::thread::yield_now();
        }
        wait_others_asleep(&[tid]);
        writer.write_all(b"x").expect("write");
        writer
    })
}

/// Polls only memory until `done` holds, without a system call (the clock is read in the vDSO).
fn spin(mut done: impl FnMut() -> bool) {
    LOOKS.store(true, Ordering::SeqCst);
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < crate::ring::PATIENCE, "it never came");
        std::hint::spin_loop();
    }
}

#[case(own_flags, since = "5.6")]
fn cq_is_filled_without_a_call(cx: &Context) {
    let ((reader, writer), mut ring, mut buffer) = (pipe(), cx.ring_with(4, 0), [0; 1]);
    ring.go(sqe::read(fd(&reader), &mut buffer, 0));
    let feeder = feed_poller(writer);
    spin(|| ring.cq_ready() == 1);
    assert_eq!(ring.peek().map(|cqe| cqe.res), Some(1));
    feeder.join().expect("the feeder");
}

#[case(own_flags, since = "5.4")]
fn cq_is_filled_without_a_call_for_a_timeout(cx: &Context) {
    let (mut ring, ts) = (cx.ring_with(4, 0), ms(10));
    ring.go(sqe::timeout(&ts, 0, 0));
    spin(|| ring.cq_ready() == 1);
    assert_eq!(ring.peek().map(|cqe| cqe.res), Some(-ETIME));
}

#[case(own_flags, since = "5.6")]
fn cq_is_filled_without_a_call_for_an_async_read(cx: &Context) {
    let ((reader, writer), mut ring, mut buffer) = (pipe(), cx.ring_with(4, 0), [0; 1]);
    ring.go(sqe::read(fd(&reader), &mut buffer, 0).with(IOSQE_ASYNC));
    let feeder = feed_poller(writer);
    spin(|| ring.cq_ready() == 1);
    assert_eq!(ring.peek().map(|cqe| cqe.res), Some(1));
    feeder.join().expect("the feeder");
}

#[case(own_flags, since = "5.19")]
fn coop_taskrun_needs_some_call(cx: &Context) {
    let ((reader, writer), mut ring, mut buffer) = (pipe(), cx.ring_with(4, IORING_SETUP_COOP_TASKRUN), [0; 1]);
    ring.go(sqe::read(fd(&reader), &mut buffer, 0));
    let feeder = feed_poller(writer);
    LOOKS.store(true, Ordering::SeqCst);
    let start = Instant::now();
    while ring.cq_ready() == 0 {
        assert!(start.elapsed() < crate::ring::PATIENCE, "it never came");
        std::thread::sleep(Duration::from_millis(1));
    }
    feeder.join().expect("the feeder");
}

#[case(own_flags, since = "6.1")]
fn defer_taskrun_needs_an_enter(cx: &Context) {
    let ((reader, mut writer), mut ring, mut buffer) = (pipe(), cx.ring_with(4, DEFER), [0; 1]);
    ring.go(sqe::read(fd(&reader), &mut buffer, 0));
    writer.write_all(b"x").expect("write");
    std::thread::sleep(QUIET);
    assert_eq!(ring.cq_ready(), 0, "other system calls do not run deferred work");
    assert_eq!(ring.enter(0, 1, IORING_ENTER_GETEVENTS, 0, 0), 0);
    assert_eq!(ring.peek().map(|cqe| cqe.res), Some(1));
}

#[case(undisturbed, own_flags, since = "6.1")]
fn defer_taskrun_runs_in_getevents(cx: &Context) {
    let ((reader, mut writer), mut ring, mut buffer) = (pipe(), cx.ring_with(4, DEFER), [0; 1]);
    ring.go(sqe::read(fd(&reader), &mut buffer, 0));
    writer.write_all(b"x").expect("write");
    assert_eq!(ring.enter(0, 0, IORING_ENTER_GETEVENTS, 0, 0), 0);
    assert_eq!(ring.cq_ready(), 1);
}

#[case(own_flags, since = "6.1")]
fn defer_taskrun_ring_is_readable_before_the_enter(cx: &Context) {
    let ((reader, mut writer), mut ring, mut buffer) = (pipe(), cx.ring_with(4, DEFER), [0; 1]);
    ring.go(sqe::read(fd(&reader), &mut buffer, 0));
    assert_eq!(ring.door.poll(ring.fd, libc::POLLIN, 0), 0);
    writer.write_all(b"x").expect("write");
    assert_eq!(ring.door.poll(ring.fd, libc::POLLIN, 10_000), READABLE);
    assert_eq!(ring.wait().res, 1);
}

/// Completes a request of each kind on a deferred ring. Only then does `look` watch the ring's descriptor for the
/// first time. It returns true if the ring is readable.
fn looks_first_afterwards(
    cx: &Context,
    (flags, signals): (u32, bool),
    kinds: &[&str],
    look: &dyn Fn(&Context, i32) -> bool,
) {
    let short = Timespec { tv_sec: 0, tv_nsec: 1_000_000 };
    for &kind in kinds {
        let ((reader, mut writer), mut buffer) = (pipe(), [0; 1]);
        let (mut ring, mut other) = (cx.ring_with(4, DEFER | flags), cx.ring_with(4, 0));
        let file = sys::file("plain", b"abcd");
        let _kept = signals.then(|| eventfd(0, libc::EFD_NONBLOCK));
        if let Some(kept) = &_kept {
            let number = fd(kept);
            assert_eq!(ring.register(IORING_REGISTER_EVENTFD, &raw const number as usize, 1), 0);
        }
        match kind {
            "read" => ring.go(sqe::read(fd(&reader), &mut buffer, 0)),
            "poll" => ring.go(sqe::poll_add(fd(&reader), libc::POLLIN, 0)),
            "timeout" => ring.go(sqe::timeout(&short, 0, 0)),
            "worker" => ring.go(sqe::fsync(fd(&file), 0).with(IOSQE_ASYNC)),
            _ => assert_eq!(other.run(prep(Opcode::MsgRing, ring.fd, 0, 5, 77)), 0),
        }
        writer.write_all(b"x").expect("write");
        // No event reports its completion before `look`.
        std::thread::sleep(QUIET);
        assert!(look(cx, ring.fd), "{kind}, flags {flags:#x}, eventfd {signals}");
        ring.wait();
    }
}

#[case(own_flags, since = "6.1")]
fn defer_taskrun_ring_is_readable_at_the_first_look(cx: &Context) {
    const AT_ONCE: [&str; 4] = ["read", "message", "timeout", "poll"];
    const ALL: [&str; 5] = ["read", "message", "timeout", "poll", "worker"];
    for ring in [(0, false), (IORING_SETUP_TASKRUN_FLAG, false), (0, true)] {
        looks_first_afterwards(cx, ring, &ALL, &|cx, fd| cx.door.poll(fd, libc::POLLIN, 10_000) == READABLE);
        // A worker may take longer than the case waits.
        looks_first_afterwards(cx, ring, &AT_ONCE, &|cx, fd| cx.door.poll(fd, libc::POLLIN, 0) == READABLE);
        for edge in [0, libc::EPOLLET] {
            looks_first_afterwards(cx, ring, &ALL, &|cx, ring| {
                let epoll = epoll();
                assert_eq!(cx.door.epoll_add(fd(&epoll), ring, (libc::EPOLLIN | edge) as u32), 0);
                cx.door.epoll_wait(fd(&epoll), 10_000) == READABLE
            });
        }
        looks_first_afterwards(cx, ring, &ALL, &|cx, ring| {
            let mut watcher = cx.ring_with(4, 0);
            watcher.go(sqe::poll_add(ring, libc::POLLIN, 0));
            watcher.wait().res & libc::POLLIN as i32 != 0
        });
    }
}

#[case(own_flags, since = "6.1")]
fn taskrun_flag_tells_of_deferred_work(cx: &Context) {
    let flags = DEFER | IORING_SETUP_TASKRUN_FLAG;
    let ((reader, mut writer), mut ring, mut buffer) = (pipe(), cx.ring_with(4, flags), [0; 1]);
    ring.go(sqe::read(fd(&reader), &mut buffer, 0));
    assert_eq!(ring.sq_flags() & IORING_SQ_TASKRUN, 0);
    writer.write_all(b"x").expect("write");
    spin(|| ring.sq_flags() & IORING_SQ_TASKRUN != 0);
    assert_eq!(ring.enter(0, 0, IORING_ENTER_GETEVENTS, 0, 0), 0);
    assert_eq!((ring.sq_flags() & IORING_SQ_TASKRUN, ring.cq_ready()), (0, 1));
}

#[case(own_flags, since = "5.19")]
fn taskrun_flag_with_coop(cx: &Context) {
    let flags = IORING_SETUP_COOP_TASKRUN | IORING_SETUP_TASKRUN_FLAG;
    let ((reader, writer), mut ring, mut buffer) = (pipe(), cx.ring_with(4, flags), [0; 1]);
    ring.go(sqe::read(fd(&reader), &mut buffer, 0));
    let feeder = feed_poller(writer);
    // An interrupt may run the work before the flag is seen: then the CQE is there.
    spin(|| ring.sq_flags() & IORING_SQ_TASKRUN != 0 || ring.cq_ready() == 1);
    assert_eq!(ring.enter(0, 0, IORING_ENTER_GETEVENTS, 0, 0), 0);
    assert_eq!((ring.sq_flags() & IORING_SQ_TASKRUN, ring.cq_ready()), (0, 1));
    feeder.join().expect("the feeder");
}

/// Runs `action` in another thread and hands the ring back.
fn elsewhere<T: Send + 'static>(mut ring: Ring, action: impl FnOnce(&mut Ring) -> T + Send + 'static) -> (T, Ring) {
    let thread = std::thread::spawn(move || {
        let answer = action(&mut ring);
        (answer, ring)
    });
    thread.join().expect("the other thread")
}

fn push_and_submit(ring: &mut Ring) -> i32 {
    ring.push(sqe::nop());
    ring.submit() as i32
}

#[case(own_flags, since = "6.0")]
fn single_issuer_refuses_another_thread(cx: &Context) {
    let ring = cx.ring_with(4, IORING_SETUP_SINGLE_ISSUER);
    let (answer, mut ring) = elsewhere(ring, push_and_submit);
    assert_eq!(answer, -EEXIST);
    assert_eq!(ring.enter(1, 0, 0, 0, 0), 1, "the one that made the ring may");
    assert_eq!(ring.wait().res, 0);
}

#[case(own_flags, since = "6.0")]
fn single_issuer_belongs_to_the_first_submitter_when_disabled(cx: &Context) {
    let ring = cx.ring_with(4, IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_R_DISABLED);
    let (answer, mut ring) = elsewhere(ring, |ring| {
        assert_eq!(ring.register(IORING_REGISTER_ENABLE_RINGS, 0, 0), 0);
        push_and_submit(ring)
    });
    assert_eq!(answer, 1, "the thread that enabled it is its issuer");
    assert_eq!(push_and_submit(&mut ring), -EEXIST);
}

#[case(own_flags, since = "6.1")]
fn defer_taskrun_wait_from_another_thread_is_eexist(cx: &Context) {
    let ring = cx.ring_with(4, DEFER);
    let (answer, _ring) = elsewhere(ring, |ring| ring.enter(0, 1, IORING_ENTER_GETEVENTS, 0, 0));
    assert_eq!(answer as i32, -EEXIST);
}

#[case(own_flags, since = "6.0")]
fn register_from_another_thread_is_eexist(cx: &Context) {
    let ring = cx.ring_with(4, IORING_SETUP_SINGLE_ISSUER);
    let (answer, _ring) = elsewhere(ring, |ring| ring.register(IORING_UNREGISTER_EVENTFD, 0, 0));
    assert_eq!(answer as i32, -EEXIST);
}

/// Starts a thread that waits for a CQE. Returns once that thread sleeps.
fn wait_in_thread(cx: &Context, number: i32) -> std::thread::JoinHandle<isize> {
    let door = cx.door;
    asleep_in(move || door.enter(number, 0, 1, IORING_ENTER_GETEVENTS, 0, 0))
}

#[case(own_flags)]
fn another_thread_may_wait(cx: &Context) {
    let mut ring = cx.ring_with(4, 0);
    let waiter = wait_in_thread(cx, ring.fd);
    assert!(!waiter.is_finished());
    ring.go(sqe::nop());
    assert_eq!(waiter.join().expect("the waiter"), 0);
}

#[case(own_flags)]
fn two_threads_may_wait(cx: &Context) {
    let mut ring = cx.ring_with(4, 0);
    let waiters = [wait_in_thread(cx, ring.fd), wait_in_thread(cx, ring.fd)];
    ring.go(sqe::nop());
    for waiter in waiters {
        assert_eq!(waiter.join().expect("the waiter"), 0, "the CQE is still there for both");
    }
}

#[case(own_flags, since = "5.6")]
fn another_thread_may_submit(cx: &Context) {
    let ((reader, mut writer), ring) = (pipe(), cx.ring_with(4, 0));
    let buffer = pages(1);
    let (number, at) = (fd(&reader), address(buffer));
    let (thread, keep) = std::sync::mpsc::channel::<()>();
    let (send_ring, take_ring) = std::sync::mpsc::channel();
    let submitter = std::thread::spawn(move || {
        let mut ring = ring;
        ring.go(prep(Opcode::Read, number, at, 1, 0));
        send_ring.send(ring).expect("hand the ring over");
        // The thread lives on, since its end would cancel the read.
        let _ = keep.recv();
    });
    let mut ring = take_ring.recv().expect("the ring");
    writer.write_all(b"x").expect("write");
    assert_eq!(ring.wait().res, 1);
    drop(thread);
    submitter.join().expect("the submitter");
}

#[case]
fn ring_descriptor_is_readable_with_a_cqe(cx: &Context) {
    let mut ring = cx.ring(4);
    assert_eq!(ring.door.poll(ring.fd, libc::POLLIN, 0), 0);
    ring.go(sqe::nop());
    assert_eq!(ring.door.poll(ring.fd, libc::POLLIN, 10_000), READABLE);
    assert_eq!(ring.door.poll(ring.fd, libc::POLLIN, 10_000), READABLE, "as long as it is there");
    ring.wait();
    assert_eq!(ring.door.poll(ring.fd, libc::POLLIN, 0), 0);
}

#[case]
fn ring_descriptor_is_writable_unless_the_sq_is_full(cx: &Context) {
    let mut ring = cx.ring(2);
    let out = libc::POLLOUT;
    assert_eq!(ring.door.poll(ring.fd, out, 0), isize::from(out));
    ring.push(sqe::nop());
    ring.push(sqe::nop());
    ring.publish();
    assert_eq!(ring.door.poll(ring.fd, out, 0), 0);
    assert_eq!(ring.enter(2, 0, 0, 0, 0), 2);
    assert_eq!(ring.door.poll(ring.fd, out, 0), isize::from(out));
}

#[case(since = "5.6")]
fn poll_of_the_ring_wakes(cx: &Context) {
    let ((reader, writer), mut ring, mut buffer) = (pipe(), cx.ring(4), [0; 1]);
    ring.go(sqe::read(fd(&reader), &mut buffer, 0));
    let feeder = feed_later(writer);
    assert_eq!(ring.door.poll(ring.fd, libc::POLLIN, 10_000), READABLE);
    assert_eq!(ring.wait().res, 1);
    feeder.join().expect("the feeder");
}

#[case]
fn level_epoll_reports_until_reaped(cx: &Context) {
    let (mut ring, epoll) = (cx.ring(4), epoll());
    assert_eq!(cx.door.epoll_add(fd(&epoll), ring.fd, libc::EPOLLIN as u32), 0);
    assert_eq!(cx.door.epoll_wait(fd(&epoll), 0), 0);
    ring.go_all(&[sqe::nop(), sqe::nop()]);
    for _ in 0..2 {
        assert_eq!(cx.door.epoll_wait(fd(&epoll), 10_000), READABLE);
        assert_eq!(cx.door.epoll_wait(fd(&epoll), 10_000), READABLE);
        ring.wait();
    }
    assert_eq!(cx.door.epoll_wait(fd(&epoll), 0), 0);
}

#[case]
fn edge_epoll_reports_each_batch(cx: &Context) {
    let (mut ring, epoll) = (cx.ring(8), epoll());
    let events = libc::EPOLLIN as u32 | libc::EPOLLET as u32;
    assert_eq!(cx.door.epoll_add(fd(&epoll), ring.fd, events), 0);
    for round in 0..3 {
        ring.go(sqe::nop());
        assert_eq!(cx.door.epoll_wait(fd(&epoll), 10_000), READABLE, "round {round}, nothing was reaped");
        assert_eq!(cx.door.epoll_wait(fd(&epoll), 0), 0, "one edge a batch");
    }
    ring.wait_all(3);
    assert_eq!(cx.door.epoll_wait(fd(&epoll), 0), 0);
    ring.go(sqe::nop());
    assert_eq!(cx.door.epoll_wait(fd(&epoll), 10_000), READABLE);
}

/// Checks that an epoll that watches the ring for `events` reports a read that completes while it waits. There is no
/// claim for DEFER_TASKRUN, where Linux 6.18 leaves such a wait asleep.
fn epoll_wakes(cx: &Context, mut ring: Ring, events: i32) -> bool {
    let ((reader, writer), epoll, mut buffer) = (pipe(), epoll(), [0; 1]);
    assert_eq!(cx.door.epoll_add(fd(&epoll), ring.fd, events as u32), 0);
    ring.go(sqe::read(fd(&reader), &mut buffer, 0));
    let feeder = feed_later(writer);
    // Task work may interrupt the wait, as a signal would.
    let mut answers = std::iter::repeat_with(|| cx.door.epoll_wait(fd(&epoll), 10_000));
    let answer = answers.find(|answer| *answer != -EINTR as isize);
    assert_eq!(ring.wait().res, 1);
    feeder.join().expect("the feeder");
    answer == Some(READABLE)
}

#[case(own_flags, since = "5.6")]
fn level_epoll_wakes_for_a_pending_read(cx: &Context) {
    assert!(epoll_wakes(cx, cx.ring_with(4, 0), libc::EPOLLIN));
}

#[case(own_flags, since = "5.6")]
fn edge_epoll_wakes_for_a_pending_read(cx: &Context) {
    assert!(epoll_wakes(cx, cx.ring_with(4, 0), libc::EPOLLIN | libc::EPOLLET));
}

fn with_eventfd(ring: Ring, opcode: u32) -> (Ring, std::fs::File) {
    let file = eventfd(0, libc::EFD_NONBLOCK);
    let number = fd(&file);
    assert_eq!(ring.register(opcode, &raw const number as usize, 1), 0);
    (ring, file)
}

/// Returns true if the eventfd was signalled within this time, and takes its count.
fn signalled(cx: &Context, mut file: &std::fs::File, limit_ms: i32) -> bool {
    let ready = cx.door.poll(fd(file), libc::POLLIN, limit_ms) == READABLE;
    if ready {
        file.read_exact(&mut [0; 8]).expect("read");
    }
    ready
}

#[case(since = "5.2")]
fn eventfd_is_signalled(cx: &Context) {
    let (mut ring, file) = with_eventfd(cx.ring(4), IORING_REGISTER_EVENTFD);
    for _ in 0..3 {
        ring.go(sqe::nop());
        assert!(signalled(cx, &file, 10_000));
        assert!(!signalled(cx, &file, 10));
    }
}

#[case(since = "5.6")]
fn eventfd_is_signalled_for_a_pending_read(cx: &Context) {
    let ((reader, writer), mut buffer) = (pipe(), [0; 1]);
    let (mut ring, file) = with_eventfd(cx.ring(4), IORING_REGISTER_EVENTFD);
    ring.go(sqe::read(fd(&reader), &mut buffer, 0));
    assert!(!signalled(cx, &file, 10));
    let feeder = feed_later(writer);
    assert!(signalled(cx, &file, 10_000));
    assert_eq!(ring.wait().res, 1);
    feeder.join().expect("the feeder");
}

#[case(since = "5.8")]
fn eventfd_disabled_is_quiet(cx: &Context) {
    let (mut ring, file) = with_eventfd(cx.ring(4), IORING_REGISTER_EVENTFD);
    ring.set_cq_flags(IORING_CQ_EVENTFD_DISABLED);
    ring.go(sqe::nop());
    assert!(!signalled(cx, &file, 10));
    ring.set_cq_flags(0);
    ring.go(sqe::nop());
    assert!(signalled(cx, &file, 10_000));
}

#[case(since = "5.6")]
fn eventfd_async_skips_inline_completions(cx: &Context) {
    let (mut ring, file) = with_eventfd(cx.ring(4), IORING_REGISTER_EVENTFD_ASYNC);
    ring.go(sqe::nop());
    assert!(!signalled(cx, &file, 10));
}

#[case(own_flags, since = "5.6")]
fn eventfd_async_signals_pending_ones(cx: &Context) {
    let ((reader, writer), mut buffer) = (pipe(), [0; 1]);
    let (mut ring, file) = with_eventfd(cx.ring_with(4, 0), IORING_REGISTER_EVENTFD_ASYNC);
    ring.go(sqe::read(fd(&reader), &mut buffer, 0).with(IOSQE_ASYNC));
    let feeder = feed_later(writer);
    assert!(signalled(cx, &file, 10_000));
    feeder.join().expect("the feeder");
}

#[case(since = "5.2")]
fn unregistered_eventfd_is_quiet(cx: &Context) {
    let (mut ring, file) = with_eventfd(cx.ring(4), IORING_REGISTER_EVENTFD);
    assert_eq!(ring.register(IORING_UNREGISTER_EVENTFD, 0, 0), 0);
    ring.go(sqe::nop());
    assert!(!signalled(cx, &file, 10));
}

#[case(own_flags)]
fn ring_polled_with_select(cx: &Context) {
    let mut ring = cx.ring_with(4, 0);
    assert!(ring.fd < 1024, "a ring's number fits a set");
    let select = |number| {
        // SAFETY: the set is plain data, filled in before use; one timeval is read; the number is below 1024.
        unsafe {
            let mut set: libc::fd_set = std::mem::zeroed();
            libc::FD_SET(number, &mut set);
            let mut limit = libc::timeval { tv_sec: 0, tv_usec: 10_000 };
            let none = std::ptr::null_mut();
            libc::select(number + 1, &mut set, none, none, &mut limit)
        }
    };
    assert_eq!(select(ring.fd), 0);
    ring.go(sqe::nop());
    assert_eq!(select(ring.fd), 1);
}
